"""Frontiers in files, with and without bands; what is damaged is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rcjax
from rcjax import solve_frontier
from rcjax.frontier.files import frontier_from_json, load_frontier
from rcjax.frontier.points import Bands, check_level

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("cascades", ["all", pytest.param("adaptive", marks=pytest.mark.thorough)])
def test_save_and_load(demo, demo_lam, cascades, tmp_path):
    frontier = solve_frontier(demo, lam=demo_lam, cascades=cascades)
    frontier.save(tmp_path / "frontier.json")
    loaded = load_frontier(tmp_path / "frontier.json")
    for name in ("lam", "error", "cost", "members", "status", "first"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(frontier, name), err_msg=name)
    if cascades == "all":
        np.testing.assert_array_equal(loaded.thresholds, frontier.thresholds)
    else:
        assert loaded.thresholds is None
    for row in range(len(demo_lam)):
        assert loaded.point(row) == frontier.point(row)


@pytest.fixture(scope="module")
def banded(demo, demo_lam):
    """A frontier with bands around its points."""
    frontier = solve_frontier(demo, lam=demo_lam)
    rng = np.random.default_rng(0)
    error, cost = (jnp.asarray(np.sort(rng.uniform(size=(len(demo_lam), 2)))) for _ in range(2))
    bands = Bands(error, cost, level=0.9, replicates=200, abstention=cost)
    return dataclasses.replace(frontier, bands=bands)


def test_bands_survive_a_file(banded, tmp_path):
    banded.save(tmp_path / "frontier.json")
    loaded = load_frontier(tmp_path / "frontier.json")
    for name in ("error", "cost", "abstention"):
        np.testing.assert_array_equal(getattr(loaded.bands, name), getattr(banded.bands, name), err_msg=name)
    assert (loaded.bands.level, loaded.bands.replicates) == (0.9, 200)
    assert loaded.point(2) == banded.point(2)


@pytest.mark.parametrize("name", ["error_interval", "cost_interval", "abstention_interval"])
@pytest.mark.parametrize("damage", [None, [0.1], "wide", [0.2, 0.1]])
def test_damaged_intervals_are_refused(banded, name, damage):
    data = banded.to_json()
    data["frontier"][2][name] = damage
    with pytest.raises(ValueError, match=rf"frontier\[2\]\.{name}: "):
        frontier_from_json(data)


@pytest.mark.parametrize("level", [0.0, 1.0, 90, -0.1, float("nan")])
def test_a_level_that_no_interval_has_is_refused(level):
    with pytest.raises(ValueError, match=f"level is {level}"):
        check_level(level)


def test_a_policy_expects_what_the_bands_say(banded):
    expected = banded.point(3).expected
    low, high = (float(end) for end in banded.bands.error[3])
    assert (expected["error_low"], expected["error_high"]) == (low, high)
    low, high = (float(end) for end in banded.bands.cost[3])
    assert (expected["cost_low"], expected["cost_high"]) == (low, high)
    assert expected["level"] == 0.9
    lam = float(banded.lam[3])
    assert banded.policy(lam=lam).expected["level"] == 0.9
    plain = dataclasses.replace(banded, bands=None).point(3).expected
    assert set(expected) - set(plain) == {"error_low", "error_high", "cost_low", "cost_high", "level"}
    assert {name: expected[name] for name in plain} == dict(plain)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "search"),
    [
        ({}, "all"),
        ({"cascades": "full"}, "full"),
        ({"cascades": "adaptive"}, "adaptive"),
        (
            {"cascades": [("llama3.2-3b", "llama3.1-8b"), "llama3.2-1b"]},
            {("llama3.2-1b",), ("llama3.2-3b", "llama3.1-8b")},
        ),
        ({"max_length": 1}, {(name,) for name in rcjax.demo_model().models}),
    ],
    ids=["all", "full", "adaptive", "a list", "max_length"],
)
def test_which_cascades_competed_survives_a_file(demo, demo_lam, options, search, tmp_path):
    frontier = solve_frontier(demo, lam=demo_lam, **options)
    frontier.save(tmp_path / "frontier.json")
    loaded = load_frontier(tmp_path / "frontier.json")
    assert loaded.search == frontier.search
    assert (loaded.search if isinstance(search, str) else set(loaded.search)) == search
    assert hash(jax.tree.structure(loaded)) == hash(jax.tree.structure(frontier))
