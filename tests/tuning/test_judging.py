"""How policies are judged: what is expected, bills, and thresholds that part ties."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from selection_references import figures_of_pair, make_log

from rcjax.frontier.policies import ALWAYS_ANSWER
from rcjax.model.fitting import fit
from rcjax.model.pairs import pairs
from rcjax.tuning.judging import Blend, Judging, centred
from rcjax.tuning.label_candidates import CandidateRows, candidates, judge_log
from rcjax.tuning.label_weights import charges

pytestmark = pytest.mark.usefixtures("float64")

K = 3
COST = np.array([1.0, 10.0, 40.0])
judged = jax.jit(candidates)


# -- what is expected, and what is charged


@pytest.mark.parametrize("xp", [np, jnp])
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
    edge = int(0.03 * n)
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
    return (confidence <= up_to).astype(float)


def by_definition(rows, found, place, blend):
    crossed = dict(zip(pairs(K), rows.crossed, strict=True))
    data = rows.confidence, crossed, rows.correct, rows.present, rows.charge
    i, j = int(found.first[place]), int(found.second[place])
    return figures_of_pair(data, i, j, passed_on(rows, found, place), (blend.calibrated, blend.crossed))


TABLE = [(two_atoms, 60), (gate, 60), (all_tied, 60), (mixed, 60), (apart, 60), (mixed, 900), (gate, 900)]
FIGURES = ("error", "cost", "counted")


def assert_by_definition(rows, found, blend, tolerance):
    many = np.flatnonzero(np.isfinite(found.error[K:])) + K
    for place in many[:: max(1, len(many) // 150)]:
        figures = [getattr(found, name)[place] for name in FIGURES]
        np.testing.assert_allclose(figures, by_definition(rows, found, place, blend), rtol=tolerance, atol=tolerance)
    return many


@pytest.mark.thorough
@pytest.mark.parametrize(("confidences", "n"), TABLE)
def test_every_candidate_has_the_figures_of_the_definition(confidences, n):
    rows, blend = random_rows(confidences, n, seed=n), Blend(0.5, 0.2)
    found = jax.tree.map(np.asarray, judged(rows, Judging(blend)))
    for j in range(K):
        here = rows.present[:, j]
        bill, wrong = rows.charge[here, j], 1 - rows.correct[here, j].mean()
        expected = wrong, bill.mean(), wrong
        np.testing.assert_allclose([getattr(found, name)[j] for name in FIGURES], expected)
        assert (found.first[j], found.second[j], found.threshold[j]) == (j, j, ALWAYS_ANSWER)
    many = assert_by_definition(rows, found, blend, 1e-7)
    if confidences is all_tied:
        assert not many.size


@pytest.mark.thorough
def test_queries_that_nobody_answered_count_for_nothing():
    """Though fewer are then filled in; and mean costs may be those of each query, or of all, (k,)."""
    levels = np.log(np.exp(np.asarray(make_log(72, K, seed=3).logprob)).round(1).clip(0.05, 0.95))
    answered = np.random.default_rng(0).uniform(size=(72, K)) < 0.8
    answered[60:] = False
    log = make_log(72, K, seed=3, logprob=levels, answered=answered)
    calibrators, own = fit(log).calibrators, [np.asarray(one) for one in (log.logprob, log.correct, log.answered)]
    anything = np.where(np.arange(72)[:, None] < 60, own[0], -0.1), own[1] | ~answered, answered
    judging, cost = Judging(Blend(0.1, 0.6)), np.asarray(log.cost)
    money = charges(log) + 0.5 * ~answered, np.broadcast_to(cost, (72, K)), cost
    several = [judge_log(calibrators, anything, charge, judging=judging) for charge in money]
    short = judge_log(calibrators, tuple(one[:60] for one in own), money[0][:60], judging=judging)
    use = np.isfinite(short.error)
    for name in ("first", "second", "threshold", *FIGURES):
        first, *others = (np.asarray(getattr(one, name))[use] for one in several)
        np.testing.assert_allclose(first, np.asarray(getattr(short, name))[use], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(*others, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(np.isfinite(several[0].error), use)
    np.testing.assert_array_equal(several[0].error, several[1].error)
    assert (np.asarray(several[0].cost) != np.asarray(several[1].cost))[use].mean() > 0.9
