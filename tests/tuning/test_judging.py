"""How policies are judged: what is expected, bills, thresholds that part ties, and budgets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from misses import in_turn
from selection_references import figures_of_pair, make_log

from rcjax.frontier.policies import ALWAYS_ANSWER, NEVER_ANSWER
from rcjax.model.fitting import fit
from rcjax.model.pairs import pairs
from rcjax.replaying.walk import outcomes
from rcjax.tuning.choices import RESERVE, as_cascades, best_candidates, reserve, within
from rcjax.tuning.judging import AS_USUAL, ATOM, Blend, Judging, centred
from rcjax.tuning.label_candidates import CandidateRows, Candidates, candidates, judge_log
from rcjax.tuning.label_weights import charges, estimate_blend, has_atoms, judging_of
from rcjax.tuning.trials import pairs_on_trial

pytestmark = pytest.mark.usefixtures("float64")

K = 3
COST = np.array([1.0, 10.0, 40.0])
judged, walk_of = jax.jit(candidates), jax.jit(outcomes)


# -- what is expected, and what is charged


@in_turn("xp", [np, jnp])
def test_what_is_expected_is_moved_to_the_mean_of_the_labels(xp):
    rng = np.random.default_rng(0)
    expected, right, present = rng.uniform(size=30), rng.uniform(size=30) < 0.4, rng.uniform(size=30) < 0.7
    moved = np.asarray(centred(xp.asarray(expected), xp.asarray(right), xp.asarray(present), xp))
    assert moved[present].mean() == pytest.approx(right[present].mean())
    np.testing.assert_allclose(np.diff(moved), np.diff(expected), atol=1e-12)
    np.testing.assert_array_equal(centred(expected, right, np.zeros(30, bool)), expected)


def test_an_answer_that_there_is_not_is_charged_as_others_of_its_model():
    log = make_log(50, 3, seed=1, missing=0.3)
    answered, own = np.asarray(log.answered), np.asarray(log.query_cost)
    assert not answered.all()
    money = charges(log)
    for j in range(3):
        here = answered[:, j]
        np.testing.assert_array_equal(money[here, j], own[here, j])
        np.testing.assert_allclose(money[~here, j], own[here, j].mean())


@pytest.mark.thorough
def test_where_thresholds_part_a_confidence():
    n = 200
    base = make_log(n, 2, seed=2)
    distinct = np.asarray(base.logprob) - 1e-6 * np.arange(n)[:, None]

    def tied(many, column=0):
        logprob = distinct.copy()
        logprob[:many, column] = np.log(0.6)
        return make_log(n, 2, seed=2, logprob=logprob)

    edge = int(ATOM * n)
    table = [(tied(0), False), (tied(edge), False), (tied(edge + 1), True), (tied(edge + 1, 1), True)]
    table += [(make_log(n, 2, logprob=np.log(0.5)), False)]  # one confidence for all tells nothing
    for log, expected in table:
        assert has_atoms(log) is expected
        assert judging_of(log, "generation").split is expected
    refusal = jnp.asarray(0.8)
    own = judging_of(tied(n // 2), "generation", refusal)
    assert (own.split, own.refusal) == (False, refusal)
    assert own.blend == estimate_blend(tied(n // 2), "generation")
    # Of answers that there are not, none has a confidence.
    answered = np.ones((n, 2), bool)
    answered[: edge + 1] = False
    assert not has_atoms(make_log(n, 2, seed=2, logprob=np.asarray(tied(edge + 1).logprob), answered=answered))


# -- candidates, by brute force


def two_atoms(rng, n):
    return rng.choice([0.4, 0.9], (n, K))


def gate(rng, n):
    return rng.choice([0.25, 0.5, 0.75], (n, K), p=[0.1, 0.3, 0.6])


def all_tied(_, n):
    return np.full((n, K), 0.5)


def mixed(rng, n):
    """Half of the queries in one atom, another of just above and one of just below what is parted, others alone."""
    confidence = rng.uniform(0.05, 0.95, (n, K))
    edge = int(ATOM * n)
    for rows, level in (
        (slice(0, n // 2), 0.5),
        (slice(n // 2, n // 2 + edge + 2), 0.7),
        (slice(-edge + 1, None), 0.3),
    ):
        confidence[rows] = level
    return rng.permuted(confidence, axis=0)


def apart(rng, n):
    return rng.uniform(0.05, 0.95, (n, K))


def random_rows(confidences, n, seed, missing=0.2):
    """Rows whose money depends on how sure the first is: the queries that are passed on are the longer ones."""
    rng = np.random.default_rng(seed)
    confidence = confidences(rng, n)
    present = (rng.uniform(size=(n, K)) >= missing) | (np.arange(n) < 2)[:, None]
    correct = (rng.uniform(size=(n, K)) < 0.6) & present
    charge = COST * rng.uniform(0.5, 2, (n, K)) * (2 - confidence[:, :1])
    return CandidateRows(confidence, rng.uniform(size=(len(pairs(K)), n)), correct, present, charge)


def passed_on(rows, found, place):
    """(n,) how likely the first of a candidate passes a query on."""
    confidence, up_to = rows.confidence[:, found.first[place]], found.threshold[place]
    if found.share is None:
        return (confidence <= up_to).astype(float)
    return np.where(confidence <= found.above[place], 1.0, np.where(confidence <= up_to, found.share[place], 0.0))


def by_definition(rows, found, place, blend):
    crossed = dict(zip(pairs(K), rows.crossed, strict=True))
    data = rows.confidence, crossed, rows.correct, rows.present, rows.charge
    i, j = int(found.first[place]), int(found.second[place])
    return figures_of_pair(data, i, j, passed_on(rows, found, place), (blend.calibrated, blend.crossed))


TABLE = [(two_atoms, 60), (gate, 60), (all_tied, 60), (mixed, 60), (apart, 60), (mixed, 900), (gate, 900)]
FIGURES = ("error", "cost", "cost_se", "counted")


def assert_by_definition(rows, found, blend, tolerance):
    many = np.flatnonzero(np.isfinite(found.error[K:])) + K
    for place in many[:: max(1, len(many) // 150)]:
        figures = [getattr(found, name)[place] for name in FIGURES]
        np.testing.assert_allclose(figures, by_definition(rows, found, place, blend), rtol=tolerance, atol=tolerance)
    return many


@pytest.mark.thorough
@in_turn("split", [False, True])
@in_turn("confidences, n", TABLE)
def test_every_candidate_has_the_figures_of_the_definition(confidences, n, split):
    rows, blend = random_rows(confidences, n, seed=n), Blend(0.5, 0.2)
    found = jax.tree.map(np.asarray, judged(rows, Judging(blend, split=split)))
    for j in range(K):
        here = rows.present[:, j]
        bill, wrong = rows.charge[here, j], 1 - rows.correct[here, j].mean()
        expected = wrong, bill.mean(), bill.std() / np.sqrt(here.sum()), wrong
        np.testing.assert_allclose([getattr(found, name)[j] for name in FIGURES], expected)
        assert (found.first[j], found.second[j], found.threshold[j]) == (j, j, ALWAYS_ANSWER)
    many = assert_by_definition(rows, found, blend, 1e-7)
    if confidences is all_tied and not split:
        assert not many.size
    if not split:
        assert found.share is None


def test_candidates_in_single_precision(float32):
    rows, blend = random_rows(mixed, 900, seed=4), Blend(0.5, 0.2)
    low = jax.tree.map(lambda leaf: leaf.astype(np.float32) if leaf.dtype.kind == "f" else leaf, rows)
    found = jax.tree.map(np.asarray, judged(low, Judging(blend, split=True)))
    assert {getattr(found, name).dtype for name in (*FIGURES, "threshold", "above", "share")} == {np.dtype(np.float32)}
    assert_by_definition(low, found, blend, 1e-3)
    assert (found.share < 1).sum() > 100


@in_turn("confidences, n", TABLE)
def test_thresholds_part_large_ties_alone_and_reach_every_share_of_these(confidences, n):
    """Of n or 400 steps, all that end within a tie of more than `ATOM`; the others are as without."""
    rows = random_rows(confidences, n, seed=n + 1)
    found = jax.tree.map(np.asarray, judged(rows, Judging(split=True)))
    plain = jax.tree.map(np.asarray, judged(rows, AS_USUAL))
    left, tries = jax.tree.map(lambda leaf: leaf[found.share >= 1], found), min(n, 400)
    kept = [np.isfinite(one.error) for one in (left, plain)]
    for name in ("first", "second", "threshold", *FIGURES):
        np.testing.assert_allclose(getattr(left, name)[kept[0]], getattr(plain, name)[kept[1]], rtol=1e-12)
    for i, j in pairs(K):
        both = rows.present[:, i] & rows.present[:, j]
        confidence = np.sort(rows.confidence[both, i])
        values, sizes = np.unique(confidence, return_counts=True)
        ends = np.cumsum(sizes)
        expected = set()
        for step in range(1, tries + 1):
            rank = -(-step * both.sum() // tries)
            tie = np.searchsorted(ends, rank)
            if sizes[tie] > ATOM * both.sum() and rank < ends[tie]:
                expected.add((values[tie], int(rank)))
        own = np.flatnonzero((found.first == i) & (found.second == j) & np.isfinite(found.error) & (found.share < 1))
        seen = set()
        for place in own:
            tie = (values > found.above[place]) & (values <= found.threshold[place])
            assert tie.sum() == 1
            passed = passed_on(rows, found, place)[both].sum()
            assert passed == pytest.approx(round(passed), abs=1e-9)
            seen.add((values[tie][0], round(passed)))
        assert seen == expected
        assert len(own) == len(seen)
        lowest, highest = values[0], values[-1]
        for place in own:
            assert (found.above[place] == ALWAYS_ANSWER) == (lowest > found.above[place])
            assert (found.threshold[place] == NEVER_ANSWER) == (highest <= found.threshold[place])


@in_turn("confidences, n", [row for row in TABLE if row[0] is not apart])
def test_between_the_whole_thresholds_error_and_cost_are_linear(confidences, n):
    rows, judging = random_rows(confidences, n, seed=n + 2), Judging(Blend(0.2, 0.3), split=True)
    found = jax.tree.map(np.asarray, judged(rows, judging))
    crossed = dict(zip(pairs(K), rows.crossed, strict=True))
    data = rows.confidence, crossed, rows.correct, rows.present, rows.charge
    split = 0
    for i, j in pairs(K):
        both = rows.present[:, i] & rows.present[:, j]
        own = np.flatnonzero((found.first == i) & (found.second == j) & np.isfinite(found.error))
        passed = np.array([passed_on(rows, found, place)[both].mean() for place in own])
        entire = found.share[own] == 1
        nobody, everyone = (figures_of_pair(data, i, j, np.full(n, share), (0.2, 0.3))[:2] for share in (0.0, 1.0))
        for column, name in enumerate(("error", "cost")):
            values = getattr(found, name)[own]
            at = np.concatenate([[0.0], passed[entire], [1.0]])
            ends = np.concatenate([[nobody[column]], values[entire], [everyone[column]]])
            order = np.argsort(at)
            if n <= 400 or confidences is not mixed:  # else some ends of ties lie between two whole thresholds
                np.testing.assert_allclose(values, np.interp(passed, at[order], ends[order]), rtol=1e-9)
        split += (~entire).sum()
    assert split > 50


@in_turn("confidences", [gate, mixed, all_tied])
def test_a_candidate_that_parts_ties_counts_and_costs_what_its_walk_does(confidences):
    rows = random_rows(confidences, 60, seed=3, missing=0.0)
    found = jax.tree.map(np.asarray, judged(rows, Judging(split=True)))
    places = np.resize(np.flatnonzero(np.isfinite(found.error)), 150)
    assert (found.share[places] < 1).any()
    walked = walk_of(rows.confidence, rows.correct, rows.charge, as_cascades(found, places, K, np))
    np.testing.assert_allclose(np.asarray(walked.wrong).mean(1), found.counted[places], atol=1e-9)
    np.testing.assert_allclose(np.asarray(walked.cost).mean(1), found.cost[places], rtol=1e-9)


@pytest.mark.thorough
def test_queries_that_nobody_answered_count_for_nothing():
    """Though fewer are then filled in; and mean costs may be those of each query, or of all, (k,)."""
    levels = np.log(np.exp(np.asarray(make_log(72, K, seed=3).logprob)).round(1).clip(0.05, 0.95))
    answered = np.random.default_rng(0).uniform(size=(72, K)) < 0.8
    answered[60:] = False
    log = make_log(72, K, seed=3, logprob=levels, answered=answered)
    calibrators, own = fit(log).calibrators, [np.asarray(one) for one in (log.logprob, log.correct, log.answered)]
    anything = np.where(np.arange(72)[:, None] < 60, own[0], -0.1), own[1] | ~answered, answered
    judging, cost = Judging(Blend(0.1, 0.6), split=True), np.asarray(log.cost)
    money = charges(log) + 0.5 * ~answered, np.broadcast_to(cost, (72, K)), cost
    several = [judge_log(calibrators, anything, charge, judging=judging) for charge in money]
    short = judge_log(calibrators, tuple(one[:60] for one in own), money[0][:60], judging=judging)
    use = np.isfinite(short.error)
    for name in ("first", "second", "threshold", "above", "share", *FIGURES):
        first, *others = (np.asarray(getattr(one, name))[use] for one in several)
        np.testing.assert_allclose(first, np.asarray(getattr(short, name))[use], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(*others, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(np.isfinite(several[0].error), use)
    np.testing.assert_array_equal(several[0].error, several[1].error)
    assert (np.asarray(several[0].cost) != np.asarray(several[1].cost))[use].mean() > 0.9
    assert (np.asarray(short.share)[use] < 1).any()


# -- what a price, and a budget, gets


def made_candidates(seed, count=40, shares=False):
    """Single models and pairs with made-up figures, some of which part nothing."""
    rng = np.random.default_rng(seed)
    k = 4
    first = np.concatenate([np.arange(k), rng.integers(0, k - 1, count)])
    second = np.concatenate([np.arange(k), rng.integers(first[k:] + 1, k)])
    size = k + count
    error = np.where(rng.uniform(size=size) < 0.2, np.inf, rng.uniform(size=size).round(2))
    error[0] = 0.9
    cost, spread = rng.uniform(1, 10, size).round(1), rng.uniform(0, 2, size)
    share = np.where((first != second) & (rng.uniform(size=size) < 0.5), 0.3, 1.0)
    extra = {"above": np.full(size, 0.2), "share": share} if shares else {}
    return Candidates(first, second, np.full(size, 0.5), error, cost, spread, error, **extra)


def within_budgets(found, budgets):
    """The places of the best within each budget."""
    return within(budgets, np.where(np.isfinite(found.error), found.cost + reserve(found), np.inf), found.error)


@in_turn("seed", range(5))
def test_a_budget_gets_the_least_error_whose_bill_it_holds_with_something_in_hand(seed):
    found = made_candidates(seed)
    needed = [
        float(cost + (0.0 if i == j else RESERVE * spread))
        for i, j, cost, spread in zip(found.first, found.second, found.cost, found.cost_se, strict=True)
    ]
    np.testing.assert_allclose(reserve(found), np.array(needed) - found.cost, atol=1e-12)
    budgets = np.array([0.1, *np.linspace(1, 13, 60), found.cost[0], 100.0])
    places = within_budgets(found, budgets)
    usable = [place for place in range(len(needed)) if np.isfinite(found.error[place])]
    for budget, place in zip(budgets, places, strict=True):
        fit = [one for one in usable if needed[one] <= budget]
        if fit:
            assert needed[place] <= budget
            assert found.error[place] == min(found.error[one] for one in fit)
        else:
            assert needed[place] == min(needed[one] for one in usable)
    assert places[0] != places[-1]


@in_turn("seed", range(3))
def test_a_limit_on_the_error_gets_the_least_bill(seed):
    trial = made_candidates(seed)
    limits = np.array([-0.1, *np.linspace(0, 1, 41)])
    usable = np.flatnonzero(np.isfinite(trial.error))
    for limit, place in zip(limits, within(limits, trial.error, trial.cost), strict=True):
        fit = [one for one in usable if trial.error[one] <= limit]
        if fit:
            assert trial.error[place] <= limit
            assert trial.cost[place] == min(trial.cost[one] for one in fit)
        else:
            assert trial.error[place] == min(trial.error[usable])


@in_turn("seed", range(3))
def test_a_price_parts_no_ties_and_a_budget_does(seed):
    found, lam = made_candidates(seed, shares=True), np.geomspace(1e-3, 1, 20)
    places = best_candidates(found, lam)
    losses = found.error + lam[:, None] * found.cost
    assert (found.share[places] == 1).all()
    np.testing.assert_array_equal(losses[np.arange(20), places], losses[:, found.share == 1].min(1))
    assert (found.share[within_budgets(found, np.linspace(1, 13, 60))] < 1).any()


@in_turn("split", [False, True])
def test_what_a_single_model_beats_by_its_labels_is_no_candidate(split):
    """In error as counted and in money, whatever is expected of it; all others are, and the models themselves."""
    rows = random_rows(gate, 60, seed=8)
    found = jax.tree.map(np.asarray, judged(rows, Judging(split=split)))
    trial = pairs_on_trial(found, K)
    expected = []
    for place, (error, counted, cost) in enumerate(zip(found.error, found.counted, found.cost, strict=True)):
        beaten = any(found.counted[j] < counted and found.cost[j] < cost for j in range(K))
        if np.isfinite(error) and (place < K or not beaten):
            expected.append(place)
    finite = int(np.isfinite(found.error).sum())
    assert K + 3 < len(expected) < finite
    for name, own in (("error", trial.penalty), ("cost", trial.cost)):
        np.testing.assert_array_equal(own, getattr(found, name)[expected])
    np.testing.assert_array_equal(trial.reserve, reserve(found)[expected])
    assert trial.alone.sum() == K
    assert (trial.policies.shares is None) != split
