"""What a frontier holds: the policies that no other beats, and at which prices the corners of their hull are best."""

import numpy as np
from hypothesis import given, settings, strategies as st
from tiers import examples

from rcjax.frontier.points import PointStatus
from rcjax.frontier.policies import Policies
from rcjax.tuning.trials import Trial, _thinned, all_trials, undominated


def trial_of(cost, error, reserve=None, compares=False):
    """Made-up policies of two models."""
    cost, error = np.asarray(cost, float), np.asarray(error, float)
    policies = Policies.of_cascades(np.full((len(cost), 2), 0.5), np.ones((len(cost), 2), bool))
    policies = policies.comparing() if compares else policies
    return Trial(error, cost, 0 * cost if reserve is None else reserve, 0 * cost, policies)


def points(seed, count, levels, compares=False):
    """Made-up policies, ties among them where there are few levels."""
    rng = np.random.default_rng(seed)
    cost = rng.integers(1, levels, count) / levels
    error = np.clip(np.exp(-3 * cost) + rng.integers(0, levels, count) / levels * 0.2, 0, 1)
    return trial_of(cost, error, rng.uniform(size=count), compares)


def undominated_by_definition(trial):
    """The set of (error, cost) than which nothing has less of one and no more of the other."""
    known = {*zip(trial.penalty.tolist(), trial.cost.tolist(), strict=True)}
    return {own for own in known if not any(o != own and o[0] <= own[0] and o[1] <= own[1] for o in known)}


def prices(own, others):
    """(low, high): the λ between which a point has the least error + λ·cost."""
    low = max([(own[0] - e) / (c - own[1]) for e, c in others if c > own[1]], default=0.0)
    high = min([(e - own[0]) / (own[1] - c) for e, c in others if c < own[1]], default=np.inf)
    return max(low, 0.0), high


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 5, 60]), st.sampled_from([3, 10, 10**6]))
def test_a_frontier_holds_what_no_other_beats(seed, count, levels):
    everything = points(seed, count, levels)
    left, lam, status = undominated(everything)
    expected = undominated_by_definition(everything)
    rows = [*zip(left.penalty.tolist(), left.cost.tolist(), strict=True)]
    assert {*rows} == expected
    assert len(rows) == len(expected)
    assert (np.diff(left.cost) < 0).all()
    assert (np.diff(lam) >= 0).all()
    assert (lam > 0).all()
    whole = {*zip(*(figure.tolist() for figure in everything[:3]), strict=True)}
    assert {*zip(*(figure.tolist() for figure in left[:3]), strict=True)} <= whole
    for own, price, how in zip(rows, lam, status, strict=True):
        low, high = prices(own, expected)
        assert (how == PointStatus.CONVERGED) == (low < high)
        assert how in (PointStatus.CONVERGED, PointStatus.INTERPOLATED)
        if low < high:
            assert low <= price <= high
            continue
        # Between two corners, at their price: both are the best for it, and one is cheaper and one dearer.
        losses = {other: other[0] + price * other[1] for other in expected}
        best = [other for other, loss in losses.items() if loss <= min(losses.values()) + 1e-12]
        assert min(cost for _, cost in best) < own[1] < max(cost for _, cost in best)


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([3, 12, 400]), st.sampled_from([6, 10**6]))
def test_a_budget_that_pays_for_a_model_buys_nothing_worse(seed, count, levels):
    """Also where a cascade, which needs something in hand, errs less often and costs less by a little."""
    rng = np.random.default_rng(seed)
    everything = points(seed, count, levels)
    alone = rng.uniform(size=count) < 0.3
    members = np.where(alone[:, None], [True, False], everything.policies.members)
    policies = Policies.of_cascades(np.full((count, 2), 0.5), members)
    kept = np.where(alone, 0.0, everything.reserve / 10)
    everything = everything._replace(policies=policies, reserve=kept)
    left, _, _ = undominated(everything)
    for cost, error in zip(everything.cost[alone], everything.penalty[alone], strict=True):
        paid = left.cost + left.reserve <= cost * (1 + 1e-12)
        assert left.penalty[paid].min(initial=np.inf) <= error
    assert (left.reserve >= 0).all()
    most: dict[tuple[float, float], float] = {}
    for error, cost, own in zip(everything.penalty, everything.cost, kept, strict=True):
        most[error, cost] = max(own, most.get((error, cost), 0.0))
    assert all(own <= most[error, cost] for error, cost, own in zip(*left[:3], strict=True))


def test_what_lies_beyond_the_line_between_corners_stays():
    """However far from it: a budget of 2 has nothing better."""
    left, lam, status = undominated(trial_of([1.0, 2.0, 3.0, 2.5], [0.5, 0.49, 0.1, 0.495]))
    assert left.cost.tolist() == [3.0, 2.0, 1.0]
    assert status.tolist() == [PointStatus.CONVERGED, PointStatus.INTERPOLATED, PointStatus.CONVERGED]
    np.testing.assert_allclose(lam, [0.1, 0.2, 0.4])  # the slope, 0.2, half of it and twice that


def test_one_policy_is_best_at_any_price():
    left, lam, status = undominated(trial_of([4.0, 5.0], [0.3, 0.3]))
    assert (left.cost.tolist(), lam.tolist(), status.tolist()) == ([4.0], [0.25], [PointStatus.CONVERGED])
    assert undominated(trial_of([0.0], [0.3]))[1].tolist() == [1.0]


def test_many_policies_are_thinned_but_corners_stay():
    places, corners = np.arange(1000, 2000), np.array([1001, 1002, 1500, 1998])
    thinned = _thinned(places, corners)
    assert set(corners.tolist()) <= set(thinned.tolist())
    assert 250 <= len(thinned) <= 254
    assert (np.diff(thinned) > 0).all()
    assert np.diff(thinned).max() <= 5
    np.testing.assert_array_equal(_thinned(places[:250], corners), places[:250])
    # 700 policies just above a line that is bent three times.
    cost, bends = np.linspace(1, 8, 701), [1, 1.5, 3.34, 6, 8]
    error = np.interp(cost, bends, [0.9, 0.6, 0.3, 0.2, 0.15])
    everything = trial_of(cost, error + 1e-3 * ~np.isclose(cost[:, None], bends).any(1))
    left, _, status = undominated(everything)
    assert 240 <= len(left.cost) <= 255
    np.testing.assert_allclose(left.cost[status == PointStatus.CONVERGED], bends[::-1])
    assert np.diff(left.cost).min() > -0.06


def best_within(trial, budget):
    return trial.penalty[trial.cost <= budget].min(initial=np.inf)


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 5, 60]), st.sampled_from([1, 4, 30]))
def test_a_budget_gets_the_best_of_all_with_answers_and_without(seed, count, others):
    everything, agreeing = points(seed, count, 10**6), points(seed + 1, others, 10**6, compares=True)
    agreeing = agreeing._replace(penalty=0.7 * agreeing.penalty, cost=0.2 + agreeing.cost)
    both, _, _ = undominated(all_trials(everything, agreeing))
    for budget in (*everything.cost, *agreeing.cost, *both.cost, everything.cost.min() / 2, 10.0):
        assert best_within(both, budget) == min(best_within(everything, budget), best_within(agreeing, budget))


def test_what_agreement_beats_is_not_kept():
    """A pair with more error at more cost than a policy by agreement; one that fills the gap below it stays."""
    everything = trial_of([1.0, 2.0, 3.0, 4.0], [0.4, 0.32, 0.28, 0.25])
    left, _, _ = undominated(all_trials(everything, trial_of([2.5], [0.13], compares=True)))
    assert left.cost.tolist() == [2.5, 2.0, 1.0]


def test_a_single_model_that_nothing_beats_is_never_thinned_out():
    """A budget got a pair that was dearer than it was good, beside a model that stood in the same table."""
    cost = np.linspace(1.0, 2.0, 3001)
    many = trial_of(cost, 0.5 - 0.1 * cost)
    for place in (1, 1234, 2999):
        members = many.policies.members.copy()
        members[place, 1] = False
        policies = Policies.of_cascades(np.full((len(cost), 2), 0.5), members)
        left, *_ = undominated(many._replace(policies=policies))
        assert len(left.cost) < len(cost)
        assert cost[place] in left.cost
