"""Intervals around the points of a frontier as JSON values, and back."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rcjax.frontier.bands import Bands, bands_from_json, bands_to_json, check_level

pytestmark = pytest.mark.usefixtures("float64")


def make_bands(seed, points=4):
    rng = np.random.default_rng(seed)
    error, cost, refused = (jnp.asarray(np.sort(rng.uniform(size=(points, 2)))) for _ in range(3))
    return Bands(error, cost, level=0.8, replicates=137, abstention=refused if seed else None)


@pytest.mark.parametrize("seed", range(3))
def test_bands_survive_json(seed):
    bands = make_bands(seed)
    points = [bands_to_json(bands, row) for row in range(4)]
    document = {"points": points, "head": {"level": bands.level, "replicates": bands.replicates}}
    data = json.loads(json.dumps(document, allow_nan=False))
    again = bands_from_json(data["points"], data["head"])
    assert jax.tree.structure(again) == jax.tree.structure(bands)  # level and replicates too
    jax.tree.map(np.testing.assert_array_equal, again, bands)


@pytest.mark.parametrize("missing", ["error_interval", "cost_interval", "abstention_interval"])
@pytest.mark.parametrize("damage", [None, [0.1], "wide", [0.2, 0.1]])
def test_damaged_points_are_refused(missing, damage):
    points = [bands_to_json(make_bands(4), row) for row in range(4)]
    points[2][missing] = damage
    with pytest.raises(ValueError, match=rf"frontier\[2\]\.{missing}: "):
        bands_from_json(points, {"level": 0.9, "replicates": 20})


@pytest.mark.parametrize("head", [{}, {"level": 0.9}, {"level": "high", "replicates": 3}, [], None])
def test_a_damaged_head_is_refused(head):
    with pytest.raises(ValueError, match="bands"):
        bands_from_json([bands_to_json(make_bands(5), 0)], head)


@pytest.mark.parametrize("level", [0.0, 1.0, 90, -0.1, float("nan")])
def test_a_level_that_no_interval_has_is_refused(level):
    with pytest.raises(ValueError, match=f"level is {level}"):
        check_level(level)
