"""Frontiers in files, with and without bands; what is damaged is refused."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rcjax
from rcjax import solve_frontier
from rcjax.policy import Agreement
from rcjax.solving.frontier.frontier import frontier_from_json, load_frontier
from rcjax.solving.frontier.points import Agreements, Bands

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("cascades", ["all", pytest.param("adaptive", marks=pytest.mark.thorough)])
def test_save_and_load(demo, demo_lam, cascades, tmp_path):
    frontier = solve_frontier(demo, lam=demo_lam, cascades=cascades)
    frontier.save(tmp_path / "frontier.json")
    loaded = load_frontier(tmp_path / "frontier.json")
    for name in ("lam", "error", "cost", "members", "status"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(frontier, name), err_msg=name)
    if cascades == "all":
        np.testing.assert_array_equal(loaded.thresholds, frontier.thresholds)
    else:
        assert loaded.thresholds is None
    for row in range(len(demo_lam)):
        assert loaded.policy_at(row) == frontier.policy_at(row)
    assert loaded != frontier
    assert len({loaded, frontier}) == 2


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
    assert loaded.policy_at(2) == banded.policy_at(2)


@pytest.mark.parametrize("name", ["error_interval", "cost_interval", "abstention_interval"])
@pytest.mark.parametrize("damage", [None, [0.1], "wide", [0.2, 0.1]])
def test_damaged_intervals_are_refused(banded, name, damage):
    data = banded.to_json()
    data["frontier"][2][name] = damage
    with pytest.raises(ValueError, match=rf"frontier\[2\]\.{name}: "):
        frontier_from_json(data)


def test_a_policy_expects_what_the_bands_say(banded):
    expected = banded.policy_at(3).expected
    low, high = (float(end) for end in banded.bands.error[3])
    assert (expected["error_low"], expected["error_high"]) == (low, high)
    low, high = (float(end) for end in banded.bands.cost[3])
    assert (expected["cost_low"], expected["cost_high"]) == (low, high)
    assert expected["level"] == 0.9
    lam = float(banded.lam[3])
    assert banded.policy(lam=lam).expected["level"] == 0.9
    plain = dataclasses.replace(banded, bands=None).policy_at(3).expected
    assert set(expected) - set(plain) == {"error_low", "error_high", "cost_low", "cost_high", "level"}
    assert {name: expected[name] for name in plain} == dict(plain)


@pytest.mark.thorough
def test_the_search_survives_a_file(demo, demo_lam, tmp_path):
    pair, single = ("llama3.2-3b", "llama3.1-8b"), ("llama3.2-1b",)
    frontier = solve_frontier(demo, lam=demo_lam, cascades=[pair, *single])
    frontier.save(tmp_path / "frontier.json")
    loaded = load_frontier(tmp_path / "frontier.json")
    assert loaded.search == frontier.search
    assert {*loaded.search} == {pair, single}
    assert hash(jax.tree.structure(loaded)) == hash(jax.tree.structure(frontier))


# -- policies that compare answers


@pytest.fixture(scope="module")
def comparing(float64):
    """Three models; at every other point the second compares its answer with that of the first."""
    log = rcjax.sample_log(200, seed=0).select(["llama3.2-1b", "llama3.1-8b", "llama3.1-70b"])
    solved = rcjax.solve_frontier(rcjax.fit(log), lam=[10.0, 100.0, 1000.0, 10_000.0], cascades="full")
    agreements = Agreements.none((4, 3))
    agreements.earlier[1::2, 1], agreements.differ[1::2, 1] = 0, 2
    policies = dataclasses.replace(solved.policies, agreements=agreements)
    return dataclasses.replace(solved, policies=policies, compare="choice")


@pytest.mark.thorough
def test_agreement_policies_survive_a_file(comparing, tmp_path):
    comparing.save(tmp_path / "frontier.json")
    assert comparing.policy_at(1).agreements == {"llama3.1-8b": Agreement("llama3.2-1b", "llama3.1-70b", "choice")}
    data = json.loads((tmp_path / "frontier.json").read_text())
    assert ["agreements" in point for point in data["frontier"]] == [False, True, False, True]
    read = rcjax.load_frontier(tmp_path / "frontier.json")
    assert read.compare == "choice"
    for name in ("earlier", "differ"):
        old, new = (getattr(one.policies.agreements, name) for one in (comparing, read))
        np.testing.assert_array_equal(old, new)
    assert read.to_json() == comparing.to_json()
