"""Cross-validation of cascades by length: which ones compete, what earns its place, and logs that teach little."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest
from misses import in_turn
from selection_references import make_log

import rcjax
from rcjax.frontier.searches import cascade_names
from rcjax.replaying.walk import outcomes
from rcjax.solving.frontiers import solve_frontier
from rcjax.solving.paths import make_plan
from rcjax.tuning.comparison import (
    COMPARING,
    COMPARING_ALONE,
    LONGER,
    AtBudgets,
    Bar,
    Comparison,
    Gain,
    Gains,
)
from rcjax.tuning.cross_validation import PRICES, cross_validate, longer_cascades
from rcjax.tuning.judging import AS_USUAL

pytestmark = pytest.mark.usefixtures("float64")

N, FOLDS = 120, 5


# -- which length is chosen


def comparison(gain, gain_se, overall, overall_se):
    """Of lengths 1, 2, … from made-up gains (S, G)."""
    gain = np.array(gain, float)
    lengths = np.arange(1, len(gain) + 1)
    figures = np.zeros_like(gain), np.zeros_like(gain), gain, np.array(gain_se, float)
    return Comparison(lengths, np.geomspace(1, 1000, gain.shape[1]), *figures, np.array(overall), np.array(overall_se))


def test_a_pair_stays_where_no_chain_gains_more_than_a_standard_error_overall():
    gain, se = [[-1] * 4, [0] * 4, [5, 5, 5, 5]], np.full((3, 4), 0.1)
    assert comparison(gain, se, [-1.0, 0.0, 0.99], [0.1, 0.0, 1.0]).chosen.tolist() == [2, 2, 2, 2]
    assert comparison(gain, se, [-1.0, 0.0, 1.0], [0.1, 0.0, 1.0]).chosen.tolist() == [2, 2, 2, 2]
    assert comparison(gain, se, [-1.0, 0.0, 1.01], [0.1, 0.0, 1.0]).chosen.tolist() == [3, 3, 3, 3]


def test_a_chain_must_gain_at_the_price_too():
    seen = comparison([[-1] * 4, [0] * 4, [-5, 0.5, 1, 1.1]], np.ones((3, 4)), [-1, 0, 2], [0.1, 0, 1])
    assert seen.chosen.tolist() == [2, 2, 2, 3]


def test_of_chains_that_gain_the_one_that_gains_most_is_chosen():
    gain, se = [[-1] * 3, [0] * 3, [1, 9, 1], [2, 1, 2], [9, 9, 9]], np.full((5, 3), 1.5)
    seen = comparison(gain, se, [-1, 0, 2, 3, 4], [0.1, 0, 1, 1, 5])
    assert seen.chosen.tolist() == [4, 2, 4]


def test_a_single_model_is_no_chain_however_much_it_gains():
    assert comparison([[9, 9], [0, 0]], np.zeros((2, 2)), [9, 0], [0, 0]).chosen.tolist() == [2, 2]
    assert comparison([[0, 0]], np.zeros((1, 2)), [0], [0]).chosen.tolist() == [1, 1]


def test_what_is_not_known_is_not_chosen():
    nan = np.full((3, 2), np.nan)
    assert comparison(nan, nan, [np.nan] * 3, [np.nan] * 3).chosen.tolist() == [2, 2]


def test_the_nearest_price_is_so_on_the_logarithmic_scale():
    seen = comparison([[0] * 4], [[0] * 4], [0], [0])  # λ = 1, 10, 100, 1000
    assert seen.nearest([0, 1e-9, 3, 3.3, 10, 317, 1e9]).tolist() == [0, 0, 0, 1, 1, 3, 3]
    assert int(seen.nearest(31.0)) == 1
    assert seen.nearest(np.ones((2, 3))).shape == (2, 3)


BARS = [  # gain, its standard error, counted, its standard error: whether it earns its place
    (LONGER, (0.011, 0.01, 0.011, 0.01), True),
    (LONGER, (0.009, 0.01, 0.009, 0.01), False),
    (LONGER, (0.0, 0.0, 0.0, 0.0), False),
    (COMPARING, (0.0021, 9.0, 0.0, 0.1), True),  # however unsure
    (COMPARING, (0.0020, 0.0, 0.1, 0.1), False),
    (COMPARING, (0.05, 0.01, -0.31, 0.1), False),  # the labels left out contradict
    (COMPARING, (0.05, 0.01, -0.29, 0.1), True),
    (COMPARING_ALONE, (0.0041, 0.0040, 0.0, 0.1), True),
    (COMPARING_ALONE, (0.0041, 0.0042, 0.0, 0.1), False),
    (COMPARING_ALONE, (0.0039, 0.0, 0.0, 0.1), False),
    (Bar(0.5, 2.0), (np.nan, np.nan, np.nan, np.nan), False),
]


@in_turn("bar, figures, earned", BARS)
def test_what_earns_a_place(bar, figures, earned):
    assert bool(bar.earned(Gain(*figures[:2]), Gain(*figures[2:]))) is earned


def test_gains_go_by_a_bar():
    for bar, figures, earned in BARS:
        gains = Gains(Gain(np.zeros(3), np.zeros(3)), Gain(*figures[:2]), Gain(*figures[2:]))
        assert gains.earn(bar) is earned


def test_comparing_answers_must_gain_at_the_price_and_more_than_a_longer_chain():
    gain = Gain(np.array([0.1, -0.1, 0.0, 0.2]), np.zeros(4))
    rival = Gains(gain, Gain(0.05, 0.01), Gain(0.05, 0.01))
    longer = comparison([[-1] * 4, [0] * 4, [5, 5, 5, -5]], np.full((3, 4), 0.1), [-1, 0, 0.04], [0.1, 0, 0.01])
    assert dataclasses.replace(longer, agreement=rival).agreeing.tolist() == [True, False, False, True]
    better = dataclasses.replace(longer, overall=np.array([-1, 0, 0.06]), agreement=rival)
    assert better.agreeing.tolist() == [False, False, False, True]
    none = rival._replace(overall=Gain(0.0, 0.01))
    assert dataclasses.replace(longer, agreement=none).agreeing.tolist() == [False] * 4
    assert longer.agreeing.tolist() == [False] * 4


def test_the_nearest_budget_is_so_on_the_logarithmic_scale():
    nothing = np.zeros((2, 4))
    at = AtBudgets(np.geomspace(1, 1000, 4), Gain(nothing, nothing))
    assert [at.nearest(budget) for budget in (0.0, 1e-9, 3.0, 3.3, 10.0, 317.0, 1e9)] == [0, 0, 0, 1, 1, 3, 3]
    # Of those that pay for the same models alone, where there are any.
    bills = [0.5, 9.0, 11.0, 300.0]
    pairs = [(9.5, 1), (8.9, 0), (3.3, 0), (10.9, 1), (11.0, 2), (299.0, 2), (300.0, 3), (0.4, 0), (1e9, 3)]
    assert [at.nearest(budget, bills) for budget, _ in pairs] == [place for _, place in pairs]
    assert at.nearest(0.0, [0.0, 9.0]) == 0


# -- the longer cascades


@in_turn("k, max_length", [(1, None), (2, None), (3, None), (3, 2), (4, 3), (5, None), (5, 4)])
def test_longer_cascades_are_all_of_three_models_and_more(k, max_length):
    longer = longer_cascades(k, max_length)
    assert longer.lengths == tuple(range(3, (max_length or k) + 1))
    names = tuple("abcde"[:k])
    members = np.asarray(longer.plan.members)
    for length, rows in zip(longer.lengths, longer.rows, strict=True):
        cascades = cascade_names(members[np.unique(rows)], names)
        assert sorted(cascades) == list(itertools.combinations(names, length))
    # The plan is that of a search through all cascades, whose programmes are compiled for many others.
    every = [
        path for size in range(1, max(2, *longer.lengths, 2) + 1) for path in itertools.combinations(range(k), size)
    ]
    for one, other in zip(jax.tree.leaves(longer.plan), jax.tree.leaves(make_plan(every, k)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert longer.rows.shape == (len(longer.lengths), len(longer.plan.ends))


def test_of_many_models_only_short_chains_compete():
    """Up to a thousand cascades, unless a length is asked for."""
    longer = longer_cascades(12, None)
    assert longer.lengths == (3, 4)
    assert math.comb(12, 3) + math.comb(12, 4) <= 1000
    assert longer_cascades(12, 3).lengths == (3,)
    assert longer_cascades(20, None).lengths == ()


# -- cross-validation


@pytest.fixture(scope="module")
def two(float64):
    """A log of two models, and the comparison on it."""
    log = make_log(N, 2, seed=1)
    return log, cross_validate(log, rcjax.fit(log), longer_cascades(2, None), AS_USUAL, FOLDS, 7)


def test_the_seed_deals_the_folds(two):
    log, seen = two
    model, longer = rcjax.fit(log), longer_cascades(2, None)
    again, other = (cross_validate(log, model, longer, AS_USUAL, FOLDS, seed) for seed in (7, 8))
    np.testing.assert_array_equal(again.error, seen.error)
    assert (other.error != seen.error).any()


def test_a_second_comparison_compiles_nothing(two, compilations):
    log = make_log(N, 2, seed=3)
    model, longer = rcjax.fit(log), longer_cascades(2, None)
    with compilations() as compiled:
        cross_validate(log, model, longer, AS_USUAL, FOLDS, 0)
    assert not compiled


@in_turn(
    "changes",
    [
        {"correct": np.array([True, False])},
        {"correct": np.array([True, True])},
        {"correct": np.arange(N)[:, None] < 1},
        {"logprob": np.array([-0.5, -0.5])},
        {"logprob": np.where(np.arange(N)[:, None] % 2, -np.inf, 0.0)},
        {"query_cost": np.array([0.0, 0.0])},
        {"query_cost": np.array([0.0, 2.0])},
    ],
    ids=["one is always right", "both are", "right once", "one confidence", "certain", "free", "the first is free"],
)
def test_a_log_that_teaches_little_is_compared_on_all_the_same(two, changes):
    log = make_log(N, 2, seed=4, **changes)
    seen = cross_validate(log, rcjax.fit(log), longer_cascades(2, None), AS_USUAL, FOLDS, 0)
    for name in ("lam", "error", "cost", "gain", "gain_se", "overall", "overall_se"):
        assert np.isfinite(getattr(seen, name)).all(), name
    right = np.asarray(log.correct)
    assert (seen.error >= 1 - right.any(1).mean() - 1e-12).all()
    assert (seen.error <= 1 - right.all(1).mean() + 1e-12).all()
    at = seen.at_budgets
    for name in ("budgets", "saved"):
        assert np.isfinite(getattr(at, name)).all(), name
    assert (at.saved.mean[0] == 0).all()
    assert np.isfinite(seen.luck).all()
    spent = np.asarray(log.cost)
    assert (seen.cost[0] >= spent.min() - 1e-12).all()
    assert (seen.cost <= spent.sum() + 1e-12).all()


def test_the_best_pair_may_be_a_single_model(two):
    """At prices at which only the cheapest model is worth its cost."""
    log, seen = two
    assert seen.cost[1, -1] == seen.cost[0, -1] == pytest.approx(float(log.cost.min()), rel=1e-12)
    assert seen.gain[0, -1] == 0


@pytest.mark.thorough
def test_one_model_is_compared_with_nothing(float64):
    log = make_log(N, 1, seed=5)
    seen = cross_validate(log, rcjax.fit(log), longer_cascades(1, None), AS_USUAL, FOLDS, 0)
    assert seen.lengths.tolist() == [1]
    np.testing.assert_allclose(seen.error, 1 - np.asarray(log.correct).mean(), rtol=1e-12)
    np.testing.assert_allclose(seen.cost, float(log.cost[0]), rtol=1e-12)
    assert seen.chosen.tolist() == [1] * PRICES
    np.testing.assert_allclose(np.concatenate(seen.luck), 0, atol=1e-12)  # nothing was chosen
    assert seen.at_budgets.saved.mean.shape == (1, len(seen.at_budgets.budgets))


@pytest.mark.thorough
def test_chains_are_those_of_the_fit_without_their_fold(float64):
    """Whole fits and solutions of each fold: marginals start from those of the whole log, so up to a few queries."""
    log = make_log(N, 3, seed=6)
    model, longer = rcjax.fit(log), longer_cascades(3, None)
    seen = cross_validate(log, model, longer, AS_USUAL, 4, 2)
    assert seen.lengths.tolist() == [1, 2, 3]
    fold = np.random.default_rng(2).permutation(N) % 4
    lam = seen.lam[::3]
    wrong, charge = np.zeros((2, len(lam), N))
    for number in range(4):
        out = fold == number
        fitted = dataclasses.replace(rcjax.fit(log.take(~out)), cost=log.cost)
        found = solve_frontier(fitted, lam=lam, cascades=[log.models])
        confidence = fitted.calibrate(log.logprob)
        followed = jax.jit(outcomes)(confidence, log.correct, log.query_cost, found.policies)
        wrong[:, out], charge[:, out] = (np.asarray(each)[:, out] for each in (followed.wrong, followed.cost))
    loss = wrong.mean(-1) + lam * charge.mean(-1)
    np.testing.assert_allclose((seen.error + seen.lam * seen.cost)[2, ::3], loss, rtol=0.05)
    np.testing.assert_allclose(seen.error[2, ::3], wrong.mean(-1), atol=0.05)
