"""Frontiers whose policies compare answers, as files and as policies."""

import dataclasses
import json

import numpy as np
import pytest

import rcjax
from rcjax.frontier.policies import Agreements
from rcjax.policy import Agreement

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module")
def frontier():
    """Three models; at every other point the second compares its answer with that of the first."""
    log = rcjax.sample_log(200, seed=0).select(["llama3.2-1b", "llama3.1-8b", "llama3.1-70b"])
    solved = rcjax.solve_frontier(rcjax.fit(log), lam=[10.0, 100.0, 1000.0, 10_000.0], cascades="full")
    agreements = Agreements.none((4, 3))
    agreements.earlier[1::2, 1], agreements.differ[1::2, 1] = 0, 2
    policies = dataclasses.replace(solved.policies, agreements=agreements)
    return dataclasses.replace(solved, policies=policies, compare="choice")


@pytest.mark.thorough
def test_a_point_is_a_policy_that_compares(frontier):
    small, middle, large = frontier.models
    assert frontier.point(0).agreements == frontier.point(2).agreements == {}
    assert frontier.point(1).agreements == {middle: Agreement(small, large, "choice")}


@pytest.mark.thorough
def test_a_frontier_comes_back_from_its_file(frontier, tmp_path):
    frontier.save(tmp_path / "frontier.json")
    data = json.loads((tmp_path / "frontier.json").read_text())
    assert ["agreements" in point for point in data["frontier"]] == [False, True, False, True]
    read = rcjax.load_frontier(tmp_path / "frontier.json")
    assert read.compare == "choice"
    for name in ("earlier", "differ"):
        old, new = (getattr(one.policies.agreements, name) for one in (frontier, read))
        np.testing.assert_array_equal(old, new)
    assert read.to_json() == frontier.to_json()
