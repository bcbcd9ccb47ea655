"""Cross-validation of cascades by length: against a loop over folds in numpy, and against whole fits and solutions."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest
from misses import in_turn
from selection_references import best_by_labels, follow, make_log

import rcjax
from rcjax.frontier.searches import cascade_names
from rcjax.replaying.walk import outcomes
from rcjax.solving.lambda_grid import lam_range
from rcjax.solving.paths import make_plan
from rcjax.solving.solve import solve_frontier
from rcjax.tuning.comparison import Comparison
from rcjax.tuning.cross_validation import PRICES, cross_validate, deal_folds, longer_cascades, without

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


# -- folds


@in_turn("share", [0.0, 0.1, 0.28, 0.7, 1.0])
@in_turn("n", [10, 76, 201])
def test_folds_hold_as_many_queries_and_as_many_complete_ones(n, share):
    complete = np.random.default_rng(1).random(n) < share
    for seed in range(20):
        fold = deal_folds(complete, FOLDS, seed)
        for some in (fold, fold[complete], fold[~complete]):
            sizes = np.bincount(some, minlength=FOLDS)
            assert sizes.max() - sizes.min() <= 1


def test_where_all_are_complete_every_query_may_be_in_any_fold():
    complete = np.ones(15, bool)
    dealt = np.array([deal_folds(complete, FOLDS, seed) for seed in range(300)])
    counts = np.array([(dealt == fold).sum(0) for fold in range(FOLDS)])
    assert counts.min() > 35  # 60 each are expected, with a standard deviation of 7


def test_a_log_without_some_queries_has_their_answers_no_more():
    log = make_log(N, 2, seed=1)
    rows = np.arange(N) % 3 == 0
    less = without(log, rows)
    assert less.n_queries == N
    assert not less.answered[rows].any()
    for name in ("logprob", "correct", "query_cost", "answered"):
        np.testing.assert_array_equal(getattr(less, name)[~rows], getattr(log, name)[~rows])
    np.testing.assert_allclose(less.cost, log.take(~rows).cost)


# -- cross-validation


def by_folds(log, folds, seed):
    """(wrong, charge), each (2, G, n), of the best single models and pairs without each query's fold; prices (G,)."""
    logprob, correct, present, cost = (np.asarray(each) for each in (log.logprob, log.correct, log.answered, log.cost))
    lam = lam_range(cost, PRICES)
    shuffled, fold = np.random.default_rng(seed).permutation(len(logprob)), np.zeros(len(logprob), int)
    for place, query in enumerate(sorted(range(len(logprob)), key=lambda i: (not present[i].all(), shuffled[i]))):
        fold[query] = place % folds
    wrong, charge = np.zeros((2, 2, PRICES, len(logprob)))
    for number in range(folds):
        out = fold == number
        confidence, *policies = best_by_labels(logprob, correct, present & ~out[:, None], cost, lam)
        for length, place in itertools.product(range(2), range(PRICES)):
            followed = follow(policies[length][place], confidence, correct, cost)
            wrong[length, place, out], charge[length, place, out] = (each[out] for each in followed)
    return wrong, charge, lam


@pytest.fixture(scope="module")
def two(float64):
    """A log of two models, and the comparison on it."""
    log = make_log(N, 2, seed=1)
    return log, cross_validate(log, rcjax.fit(log), longer_cascades(2, None), FOLDS, 7)


def assert_like_folds(seen, log, folds, seed):
    wrong, charge, lam = by_folds(log, folds, seed)
    wrong, charge = wrong[..., log.complete], charge[..., log.complete]
    n = wrong.shape[-1]
    loss = wrong + lam[:, None] * charge
    gain = loss[1] - loss
    overall = np.array([[gain[s, g] / loss[1, g].mean() for g in range(PRICES)] for s in range(2)]).mean(1)
    expected = {
        "lengths": [1, 2],
        "lam": lam,
        "error": wrong.mean(-1),
        "cost": charge.mean(-1),
        "gain": gain.mean(-1),
        "gain_se": gain.std(-1, ddof=1) / np.sqrt(n),
        "overall": overall.mean(-1),
        "overall_se": overall.std(-1, ddof=1) / np.sqrt(n),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(seen, name), value, rtol=1e-9, atol=1e-12, err_msg=name)


def test_cross_validation_is_a_loop_over_the_folds(two):
    log, seen = two
    assert_like_folds(seen, log, FOLDS, 7)
    assert seen.chosen.tolist() == [2] * PRICES
    assert len(set(seen.error[1].tolist())) > 3


def test_queries_that_lack_an_answer_help_to_fit_but_are_not_compared_on(two):
    log = make_log(N, 2, seed=2, missing=0.2)
    assert 0 < log.complete.sum() < N
    assert_like_folds(cross_validate(log, rcjax.fit(log), longer_cascades(2, None), FOLDS, 3), log, FOLDS, 3)


def test_the_seed_deals_the_folds(two):
    log, seen = two
    model, longer = rcjax.fit(log), longer_cascades(2, None)
    again, other = (cross_validate(log, model, longer, FOLDS, seed) for seed in (7, 8))
    np.testing.assert_array_equal(again.error, seen.error)
    assert (other.error != seen.error).any()


def test_a_second_comparison_compiles_nothing(two, compilations):
    log = make_log(N, 2, seed=3)
    model, longer = rcjax.fit(log), longer_cascades(2, None)
    with compilations() as compiled:
        cross_validate(log, model, longer, FOLDS, 0)
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
    seen = cross_validate(log, rcjax.fit(log), longer_cascades(2, None), FOLDS, 0)
    for name in ("lam", "error", "cost", "gain", "gain_se", "overall", "overall_se"):
        assert np.isfinite(getattr(seen, name)).all(), name
    right = np.asarray(log.correct)
    assert (seen.error >= 1 - right.any(1).mean() - 1e-12).all()
    assert (seen.error <= 1 - right.all(1).mean() + 1e-12).all()
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
    seen = cross_validate(log, rcjax.fit(log), longer_cascades(1, None), FOLDS, 0)
    assert seen.lengths.tolist() == [1]
    np.testing.assert_allclose(seen.error, 1 - np.asarray(log.correct).mean(), rtol=1e-12)
    np.testing.assert_allclose(seen.cost, float(log.cost[0]), rtol=1e-12)
    assert seen.chosen.tolist() == [1] * PRICES


@pytest.mark.thorough
def test_chains_are_those_of_the_fit_without_their_fold(float64):
    """Whole fits and solutions of each fold: marginals start from those of the whole log, so up to a few queries."""
    log = make_log(N, 3, seed=6)
    model, longer = rcjax.fit(log), longer_cascades(3, None)
    seen = cross_validate(log, model, longer, 4, 2)
    assert seen.lengths.tolist() == [1, 2, 3]
    fold = np.random.default_rng(2).permutation(N) % 4
    lam = seen.lam[::3]
    wrong, charge = np.zeros((2, len(lam), N))
    for number in range(4):
        out = fold == number
        fitted = dataclasses.replace(rcjax.fit(log.take(~out)), cost=log.cost)
        found = solve_frontier(fitted, lam=lam, cascades=[log.models])
        confidence = fitted.calibrate(log.logprob)
        followed = jax.jit(outcomes)(confidence, log.correct, log.cost, found.policies)
        wrong[:, out], charge[:, out] = (np.asarray(each)[:, out] for each in (followed.wrong, followed.cost))
    loss = wrong.mean(-1) + lam * charge.mean(-1)
    np.testing.assert_allclose((seen.error + seen.lam * seen.cost)[2, ::3], loss, rtol=0.05)
    np.testing.assert_allclose(seen.error[2, ::3], wrong.mean(-1), atol=0.05)
