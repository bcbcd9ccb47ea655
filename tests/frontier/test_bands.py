"""Intervals around the points of a frontier as JSON values, and back."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from misses import in_turn
from tiers import examples

from rcjax.frontier.bands import Bands, bands_from_json, bands_to_json, check_level, frequencies

pytestmark = pytest.mark.usefixtures("float64")

NAMES = ("small", "middle", "large")
CASCADES = (("small",), ("small", "large"), ("middle",), ("small", "middle", "large"))


def make_bands(seed, points=4, frequency=None):
    rng = np.random.default_rng(seed)
    thresholds = np.sort(rng.uniform(size=(points, 3, 2)), axis=-1)
    thresholds[rng.uniform(size=(points, 3)) < 0.4] = np.nan
    shares = rng.dirichlet(np.ones(len(CASCADES)), points) if frequency is None else np.asarray(frequency)
    return Bands(
        error=jnp.asarray(np.sort(rng.uniform(size=(points, 2)))),
        cost=jnp.asarray(np.sort(rng.uniform(1e-5, 1e-3, (points, 2)))),
        thresholds=jnp.asarray(thresholds),
        optimism=jnp.asarray(rng.normal(size=points)),
        frequency=jnp.asarray(shares),
        cascades=CASCADES,
        level=0.8,
        replicates=137,
    )


def through_json(bands):
    points = [bands_to_json(bands, NAMES, row) for row in range(len(bands.error))]
    text = json.dumps(
        {"points": points, "head": {"level": bands.level, "replicates": bands.replicates}}, allow_nan=False
    )
    data = json.loads(text)
    return bands_from_json(NAMES, data["points"], data["head"])


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_bands_survive_json(seed):
    bands = make_bands(seed)
    again = through_json(bands)
    for name in ("error", "cost", "thresholds", "optimism"):
        np.testing.assert_array_equal(getattr(again, name), getattr(bands, name), err_msg=name)
    assert (again.level, again.replicates) == (0.8, 137)
    known = dict(zip(again.cascades, np.asarray(again.frequency).T, strict=True))
    assert set(known) <= set(CASCADES)
    for names, shares in zip(CASCADES, np.asarray(bands.frequency).T, strict=True):
        expected = np.where(shares >= 0.02, shares, 0)
        np.testing.assert_array_equal(known.get(names, np.zeros(4)), expected)


def test_cascades_that_few_replicates_choose_are_left_out():
    shares = [[0.5, 0.019, 0.0, 0.481], [0.02, 0.98, 0.0, 0.0]]
    bands = make_bands(0, 2, shares)
    listed = bands_to_json(bands, NAMES, 0)["chosen_by_replicates"]
    assert listed == [{"models": ["small"], "share": 0.5}, {"models": ["small", "middle", "large"], "share": 0.481}]
    listed = bands_to_json(bands, NAMES, 1)["chosen_by_replicates"]
    assert listed == [{"models": ["small", "large"], "share": 0.98}, {"models": ["small"], "share": 0.02}]
    again = through_json(bands)
    assert again.cascades == (("small",), ("small", "middle", "large"), ("small", "large"))
    assert again.frequency.tolist() == [[0.5, 0.481, 0], [0.02, 0, 0.98]]


def test_a_threshold_that_no_replicate_has_is_not_in_the_file():
    bands = make_bands(1, 1)
    bands = Bands(**{**vars(bands), "thresholds": jnp.array([[[0.2, 0.4], [np.nan, np.nan], [np.nan, np.nan]]])})
    data = bands_to_json(bands, NAMES, 0)
    assert data["threshold_intervals"] == {"small": [0.2, 0.4]}
    np.testing.assert_array_equal(through_json(bands).thresholds, bands.thresholds)


def test_a_hundred_cascades_none_of_which_stands_out():
    everyone = tuple((f"c{i}",) for i in range(100))
    bands = Bands(**{**vars(make_bands(2, 1)), "cascades": everyone, "frequency": jnp.full((1, 100), 0.01)})
    again = through_json(bands)
    assert again.cascades == ()
    assert again.frequency.shape == (1, 0)


def test_bands_are_a_pytree():
    bands = make_bands(3)
    doubled = jax.tree.map(lambda leaf: 2 * leaf, bands)
    np.testing.assert_array_equal(doubled.error, 2 * bands.error)
    assert (doubled.cascades, doubled.level, doubled.replicates) == (CASCADES, 0.8, 137)
    assert jax.jit(lambda one: one.cost.sum())(bands) == pytest.approx(float(bands.cost.sum()))


@in_turn("missing", ["error_interval", "cost_interval", "threshold_intervals", "optimism", "chosen_by_replicates"])
def test_damaged_points_are_refused(missing):
    bands = make_bands(4)
    points = [bands_to_json(bands, NAMES, row) for row in range(4)]
    del points[2][missing]
    with pytest.raises(ValueError, match=rf"frontier\[2\]\.{missing}: "):
        bands_from_json(NAMES, points, {"level": 0.9, "replicates": 20})


@in_turn("head", [{}, {"level": 0.9}, {"level": "high", "replicates": 3}, [], None])
def test_a_damaged_head_is_refused(head):
    points = [bands_to_json(make_bands(5), NAMES, 0)]
    with pytest.raises(ValueError, match="bands"):
        bands_from_json(NAMES, points, head)


@pytest.mark.parametrize("damage", [{"error_interval": [0.1]}, {"error_interval": "wide"}, {"chosen_by_replicates": 3}])
def test_damaged_figures_are_refused(damage):
    points = [bands_to_json(make_bands(6), NAMES, row) for row in range(2)]
    with pytest.raises(ValueError, match=rf"frontier\[1\]\.{next(iter(damage))}: "):
        bands_from_json(NAMES, [points[0], points[1] | damage], {"level": 0.9, "replicates": 20})


def test_frequencies_are_counted():
    rng = np.random.default_rng(1)
    members = rng.uniform(size=(30, 4, 3)) < 0.5
    members[..., 0] |= ~members.any(-1)
    cascades, shares = frequencies(members, ("a", "b", "c"))
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-12)
    for column, names in enumerate(cascades):
        wanted = np.array([name in names for name in ("a", "b", "c")])
        np.testing.assert_allclose(shares[:, column], (members == wanted).all(-1).mean(0), rtol=1e-12)


@in_turn("level", [0.0, 1.0, 90, -0.1, float("nan")])
def test_a_level_that_no_interval_has_is_refused(level):
    with pytest.raises(ValueError, match=f"level is {level}"):
        check_level(level)
