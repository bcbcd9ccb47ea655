"""Seconds along the paths of queries, against a loop over `Policy.step`, scipy's ranks and a plain mixture."""

import dataclasses
import math

import numpy as np
import polars as pl
import pytest
from misses import in_turn
from scipy import stats
from timed_logs import timed_log, timed_table, waited

import rcjax
from rcjax.logs import LogError
from rcjax.policy.mixture import Mixture
from rcjax.replaying.replay import walk_log
from rcjax.replaying.waiting import quantile_ranks

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module")
def log(float64):
    return timed_log(230, seed=3)


@pytest.fixture(scope="module")
def frontier(log):
    return rcjax.solve_frontier(rcjax.fit(log), lam=np.geomspace(30, 30_000, 9))


def figures(waits):
    """Mean, and the least number that so many do not exceed, by counting."""
    ordered = sorted(waits)
    return [
        math.fsum(waits) / len(waits),
        *(ordered[math.ceil(share * len(ordered) - 1e-9) - 1] for share in (0.5, 0.95, 0.99)),
    ]


@pytest.mark.thorough
def test_a_policy_waits_as_its_steps_do(log, frontier):
    for index in (0, 4, 8):
        policy = frontier.point(index)
        waits = waited(policy, log)
        np.testing.assert_allclose(walk_log(policy, log).seconds, waits, rtol=1e-12)
        told = rcjax.replay(policy, log).seconds
        np.testing.assert_allclose(told.figures, figures(waits), rtol=1e-12)
        assert (int(told.known), int(told.unknown), told.money) == (230, 0, None)


def test_a_frontier_is_its_policies(log, frontier):
    whole = rcjax.replay(frontier, log).seconds
    for index in range(9):
        alone = rcjax.replay(frontier.point(index), log).seconds
        np.testing.assert_allclose(whole.figures[index], alone.figures, rtol=1e-12)
        np.testing.assert_allclose(whole.intervals[index], alone.intervals, rtol=1e-12)


@pytest.mark.thorough
def test_policies_that_compare_answers_wait_as_their_steps_do():
    rng = np.random.default_rng(5)
    answers = timed_table(150, seed=5).with_columns(answer=pl.Series(rng.choice(list("ab"), 450)))
    log = rcjax.read_log(answers)
    frontier = rcjax.tune(log, cascade=["small", "middle", "large"], intervals=False, error_cost=0.01).frontier
    policy = frontier.point(0)
    from rcjax.policy.agreement import Agreement

    compared = {"middle": Agreement("small", "ask", "large", "text")}
    rules = {name: policy.rules.get(name) for name in policy.models}
    if {*policy.models} != {*log.models}:
        pytest.skip("the first policy does not ask all models")
    agreeing = dataclasses.replace(policy, agreements=compared, rules=rules)
    np.testing.assert_allclose(walk_log(agreeing, log).seconds, waited(agreeing, log), rtol=1e-12)
    told = rcjax.replay(agreeing, log).seconds
    np.testing.assert_allclose(told.figures, figures(waited(agreeing, log)), rtol=1e-12)


def test_a_mixture_is_the_weighted_sum_of_its_policies(log, frontier):
    parts = frontier.point(1), frontier.point(7)
    told = rcjax.replay(Mixture(parts, (0.25, 0.75)), log).seconds
    few, many = (waited(part, log) for part in parts)
    expected = figures([*few, *many, *many, *many])  # each of the second counts three times as often
    np.testing.assert_allclose(told.figures, expected, rtol=1e-9)


def test_queries_whose_seconds_are_unknown_are_left_out_and_counted(frontier):
    log = timed_log(230, seed=3, unknown=0.15)
    policy = frontier.point(4)
    waits = np.array(waited(policy, log))
    told = rcjax.replay(policy, log).seconds
    assert int(told.unknown) == int(np.isnan(waits).sum()) > 0
    assert int(told.known) == 230 - int(told.unknown)
    np.testing.assert_allclose(told.figures, figures(waits[~np.isnan(waits)].tolist()), rtol=1e-12)
    assert told.to_json()["seconds_unknown"] == int(told.unknown)


def test_no_seconds_known_gives_no_figure(frontier):
    log = timed_log(230, seed=3, unknown=1.1)
    told = rcjax.replay(frontier.point(0), log).seconds
    assert told.to_json()["seconds"] is None
    assert told.to_json()["seconds_p95_interval"] == [0.0, None]
    assert rcjax.replay(frontier.point(0), dataclasses.replace(log, seconds=None)).seconds is None


@in_turn("n", [2, 20, 59, 100, 1531])
@in_turn("share", [0.5, 0.95, 0.99])
@in_turn("level", [0.8, 0.9, 0.99])
def test_ranks_are_the_narrowest_that_hold(n, share, level):
    low, high = quantile_ranks(n, share, level)
    below, tail = stats.binom(n, share), (1 - level) / 2
    assert below.cdf(low - 1) <= tail * (1 + 1e-9) < below.cdf(low) * (1 + 2e-9)
    assert below.sf(high - 1) <= tail * (1 + 1e-9)
    assert high == 0 or below.sf(high - 2) > tail * (1 - 1e-9)


def test_intervals_of_quantiles_hold_as_often_as_they_say():
    rng = np.random.default_rng(0)
    values = np.sort(rng.exponential(size=(4000, 120)), axis=1)
    for share in (0.5, 0.95):
        low, high = quantile_ranks(120, share, 0.9)
        true = -math.log1p(-share)
        ends = values[:, low - 1], values[:, high - 1] if high <= 120 else np.full(4000, np.inf)
        assert ((ends[0] <= true) & (true <= ends[1])).mean() > 0.885


def test_money_and_waiting_are_told_apart(log):
    frontier = rcjax.solve_frontier(rcjax.fit(log.with_waiting(0.001)), lam=[30.0, 300.0])
    policy = frontier.point(1)
    told = rcjax.replay(policy, log)  # a log without waiting: the policy says what it is worth
    plain = rcjax.replay(dataclasses.replace(policy, provenance={}), log)
    asked = walk_log(policy, log).asked
    waiting = asked.mean(1) @ np.asarray(log.seconds).mean(0)[[log.models.index(name) for name in policy.models]]
    assert float(told.seconds.money) == pytest.approx(float(plain.cost))
    assert float(told.cost) == pytest.approx(float(plain.cost) + 0.001 * waiting)
    assert policy.cost == {name: pytest.approx(float(log.cost[log.models.index(name)])) for name in policy.models}
    with pytest.raises(LogError, match=r"tuned with a price of \$0.001 a second: .*no column seconds"):
        rcjax.replay(policy, dataclasses.replace(log, seconds=None))
