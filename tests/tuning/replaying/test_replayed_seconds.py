"""Seconds along the paths of queries, against a loop over `Policy.step` and a plain mixture."""

import dataclasses
import math

import numpy as np
import pytest
from helpers.timed_logs import timed_log, waited

import rcjax
from rcjax.solving.frontier.points import summarise_seconds

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module")
def log(float64):
    return timed_log(230, seed=3)


@pytest.fixture(scope="module")
def frontier(log):
    return rcjax.solve_frontier(rcjax.fit(log), lam=np.geomspace(30, 30_000, 9))


def figures(waits):
    """Mean, and the least number that 95 % do not exceed, by counting."""
    ordered = sorted(waits)
    return math.fsum(waits) / len(waits), ordered[math.ceil(0.95 * len(ordered) - 1e-9) - 1]


def replayed_seconds(subject, log):
    seconds = rcjax.replay(subject, log).seconds
    return np.array([seconds.mean, seconds.p95])


@pytest.mark.thorough
def test_policies_and_a_frontier_wait_as_the_steps_do(log, frontier):
    whole = replayed_seconds(frontier, log)
    for index in (0, 4, 8):
        policy = frontier.policy_at(index)
        expected = figures(waited(policy, log))
        np.testing.assert_allclose(replayed_seconds(policy, log), expected, rtol=1e-12)
        np.testing.assert_allclose(whole[:, index], expected, rtol=1e-12)


def test_one_query_that_is_known_is_the_mean_and_the_tail():
    seconds = summarise_seconds(np.array([[3.0, np.nan], [2.0, 1.0]]), np.array([[0.5, 0.5], [0.25, 0.25]]))
    assert (float(seconds.mean), float(seconds.p95)) == (pytest.approx(8 / 3), 3.0)


@pytest.mark.thorough
def test_queries_whose_seconds_are_unknown_are_left_out(frontier):
    log, policy = timed_log(230, seed=3, unknown=0.15), frontier.policy_at(4)
    waits = np.array(waited(policy, log))
    assert np.isnan(waits).any()
    np.testing.assert_allclose(replayed_seconds(policy, log), figures(waits[~np.isnan(waits)].tolist()), rtol=1e-12)
    none = rcjax.replay(policy, timed_log(230, seed=3, unknown=1.1)).seconds
    assert none.to_json() == {"seconds": None, "seconds_p95": None}
    assert rcjax.replay(policy, dataclasses.replace(log, seconds=None)).seconds is None
