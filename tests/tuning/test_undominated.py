"""What a frontier keeps: policies near the hull that none beats, and for budgets ones as good as without answers."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from rcjax.frontier.hull import lower_hull
from rcjax.frontier.policies import Policies
from rcjax.frontier.statuses import PointStatus
from rcjax.tuning.trials import SLACK, Trial
from rcjax.tuning.undominated import _thinned, undominated


def test_what_is_dearer_than_the_end_of_the_hull_is_not_near_it():
    """However near: with 20 queries an error of 10 % more would be, between the corners."""
    half, one = np.full((4, 2), 0.5), np.ones((4, 2), bool)
    cost, error = np.array([1.0, 2.0, 2.1, 3.0]), np.array([0.3, 0.2, 0.2, 0.21])
    everything = Trial(error, cost, 0 * cost, Policies.of_cascades(half, one, 0 * half))
    left, _, _ = undominated(everything, everything.take(np.zeros(0, int)), 20)
    assert left.cost.tolist() == [2.0, 1.0]


def points(seed, count, levels):
    """Made-up policies with k = 5 models, ties among them."""
    rng = np.random.default_rng(seed)
    cost = rng.integers(1, levels, count) / levels
    error = np.clip(np.exp(-3 * cost) + rng.integers(0, levels, count) / levels * 0.2, 0, 1)
    members = rng.uniform(size=(count, 5)) < 0.4
    members[np.arange(count), rng.integers(0, 5, count)] = True
    half = np.full((count, 5), 0.5)
    return Trial(error, cost, 0 * cost, Policies.of_cascades(half, members, 0 * half))


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 5, 60]), st.sampled_from([3, 10, 10**6]), st.sampled_from([20, 2000]))  # fmt: skip # noqa: E501
def test_kept_are_the_policies_near_the_hull_that_none_beats(seed, count, levels, n):
    everything, none = points(seed, count, levels), points(seed, 0, levels)
    left, lam, status = undominated(everything, none, n)
    error, cost = left.penalty, left.cost
    assert (np.diff(cost) < 0).all()
    assert (np.diff(error) > 0).all()
    assert (np.diff(lam) >= -1e-12 * lam[1:]).all()
    assert (lam > 0).all()
    known = set(zip(everything.penalty.tolist(), everything.cost.tolist(), strict=True))
    assert set(zip(error.tolist(), cost.tolist(), strict=True)) <= known
    hull = lower_hull(everything.cost, everything.penalty)
    corners = set(zip(everything.penalty[hull].tolist(), everything.cost[hull].tolist(), strict=True))
    assert corners <= set(zip(error.tolist(), cost.tolist(), strict=True))
    assert cost.min() == everything.cost[hull[0]]  # nothing beyond the ends of the hull is near it
    assert cost.max() == everything.cost[hull[-1]]
    line = np.interp(cost, everything.cost[hull], everything.penalty[hull])
    assert (error <= line + SLACK * np.sqrt(line * (1 - line) / n) + 1e-12).all()
    # What is left out is beaten by another, or far from the hull.
    for wrong, spent in known - set(zip(error.tolist(), cost.tolist(), strict=True)):
        beaten = ((everything.penalty <= wrong) & (everything.cost <= spent)).sum() > 1
        line = np.interp(spent, everything.cost[hull], everything.penalty[hull])
        assert beaten or spent > everything.cost[hull[-1]] or wrong > line + SLACK * np.sqrt(line * (1 - line) / n)
    # At the λ of a corner nothing beats it, and only corners have converged.
    for row in range(len(lam)):
        corner = (float(error[row]), float(cost[row])) in corners
        assert (int(status[row]) == PointStatus.CONVERGED) == corner
        if corner:
            own = error[row] + lam[row] * cost[row]
            assert own <= (everything.penalty + lam[row] * everything.cost).min() + 1e-12


def test_many_policies_are_thinned_but_corners_stay():
    places, corners = np.arange(1000, 2000), np.array([1001, 1002, 1500, 1998])
    thinned = _thinned(places, corners)
    assert set(corners.tolist()) <= set(thinned.tolist())
    assert 250 <= len(thinned) <= 254
    assert (np.diff(thinned) > 0).all()
    assert np.diff(thinned).max() <= 5
    np.testing.assert_array_equal(_thinned(places[:250], corners), places[:250])


def best_within(trial, budget):
    return trial.penalty[trial.cost <= budget].min(initial=np.inf)


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 5, 60]), st.sampled_from([1, 4, 30]), st.sampled_from([20, 2000]))
def test_a_budget_gets_no_worse_a_policy_with_answers_than_without(seed, count, others, n):
    everything, none = points(seed, count, 10**6), points(seed, 0, 10**6)
    agreeing = points(seed + 1, others, 10**6)
    agreeing = agreeing._replace(penalty=0.7 * agreeing.penalty, cost=0.2 + agreeing.cost)
    alone, _, _ = undominated(everything, none, n)
    both, lam, status = undominated(everything, none, n, agreeing)
    for budget in (*alone.cost, *both.cost, alone.cost.min() / 2, 10.0):
        assert best_within(both, budget) <= best_within(alone, budget)
    assert (np.diff(both.cost) < 0).all()
    assert (np.diff(both.penalty) > 0).all()
    assert (np.diff(lam) >= -1e-12 * lam[1:]).all()
    # The best for each λ is there.
    every = np.concatenate([everything.penalty, agreeing.penalty]), np.concatenate([everything.cost, agreeing.cost])
    for row in np.flatnonzero(status == PointStatus.CONVERGED):
        own = both.penalty[row] + lam[row] * both.cost[row]
        assert own <= (every[0] + lam[row] * every[1]).min() + 1e-12


def test_what_agreement_beats_is_not_kept():
    """A pair with more error at more cost than a policy by agreement; one that fills the gap below it stays."""
    half, one = np.full((4, 2), 0.5), np.ones((4, 2), bool)
    policies = Policies.of_cascades(half, one, 0 * half)
    cost, error = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.4, 0.32, 0.28, 0.25])
    everything = Trial(error, cost, 0 * cost, policies)
    agreeing = everything._replace(penalty=error - 0.15, cost=cost - 0.5).take(np.array([2]))  # costs 2.5, errs on 0.13
    left, _, _ = undominated(everything, everything.take(np.zeros(0, int)), 2000, agreeing)
    assert left.cost.tolist() == [2.5, 2.0, 1.0]
