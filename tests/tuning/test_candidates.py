"""Single models and pairs judged on a log, against loops over the definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.selection_references import COSTS, best_by_labels, feature, judge, logistic, make_log
from hypothesis import given, settings, strategies as st
from tiers import examples

import rcjax
from rcjax._core.batching import list_pairs
from rcjax.solving.frontier.points import NEVER_ANSWER, lam_range
from rcjax.tuning.candidate_scores import (
    Blending,
    CalibratedRows,
    TrainingRows,
    calibrate_conditionally,
    recentre,
    score_candidates,
    score_pairs,
)
from rcjax.tuning.candidate_table import MAX_THRESHOLDS, even_parts
from rcjax.tuning.cross_validation import impute_query_cost
from rcjax.tuning.replaying.walk import loss_terms

pytestmark = pytest.mark.usefixtures("float64")

K, N = 3, 12
COLUMNS = ("first", "second", "threshold", "penalty", "cost")  # of candidates that do not abstain
COST = np.array(COSTS[:K])
QUERY_COST = np.tile(COST, (N, 1))
BLEND = (0.5, 0.2)
score_jitted = jax.jit(lambda *rows: score_pairs(CalibratedRows(*rows), Blending(*BLEND)))
crossing = jax.jit(calibrate_conditionally, static_argnums=3)


def random_log(seed, levels=5, missing=0.2):
    """(confidence, conditional, correct, present), with many ties, and two queries at least that all have answered."""
    rng = np.random.default_rng(seed)
    confidence = rng.integers(1, levels + 1, (N, K)) / (levels + 1)
    present = (rng.uniform(size=(N, K)) >= missing) | (np.arange(N) < 2)[:, None]
    correct = (rng.uniform(size=(N, K)) < 0.6) & present
    return confidence, rng.uniform(size=(len(list_pairs(K)), N)), correct, present


def by_definition(log, query_cost):
    confidence, conditional, correct, present = log
    return judge(confidence, dict(zip(list_pairs(K), conditional, strict=True)), correct, present, query_cost, BLEND)


def assert_like_definition(found, label_penalty, expected, tolerance=1e-12):
    """The finite candidates are the policies of the definition, with its figures."""
    kept = np.isfinite(np.asarray(found.penalty))
    columns = [getattr(found, name) for name in COLUMNS] + [label_penalty]
    columns = [np.asarray(column, float)[kept] for column in columns]
    known = {(i, j, round(threshold, 5)): (threshold, *figures) for i, j, threshold, *figures in expected}
    assert len(known) == len(expected)
    seen = set()
    for first, second, threshold, *figures in zip(*columns, strict=True):
        key = (int(first), int(second), round(float(threshold), 5))
        np.testing.assert_allclose((threshold, *figures), known[key], rtol=tolerance, atol=tolerance, err_msg=key)
        seen.add(key)
    assert seen == set(known)


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 5, 1000]), st.sampled_from([0.0, 0.3, 0.8]))
def test_candidates_are_those_of_the_definition(seed, levels, missing):
    log, query_cost = random_log(seed, levels, missing), COST * np.random.default_rng(seed).uniform(0.5, 2, (N, K))
    found, label_penalty = score_jitted(*log, query_cost)
    assert_like_definition(found, label_penalty, by_definition(log, query_cost))
    # A threshold that parts no queries belongs to a policy that never stops asking.
    assert (np.asarray(found.threshold)[~np.isfinite(found.penalty)] == NEVER_ANSWER).all()


def test_tables_are_equal_only_to_themselves():
    table, _ = score_jitted(*random_log(0), QUERY_COST)
    assert table == table
    assert len({table, jax.tree.map(jnp.copy, table)}) == 2


judged_by = jax.jit(score_pairs)


@pytest.mark.parametrize("seed", range(3))
def test_label_errors_and_costs_are_those_of_a_walk(seed):
    """Whatever is expected, and without any of that the error too, as the queries' own costs have it."""
    confidence, conditional, correct, present = random_log(seed, missing=0.0)
    query_cost = COST * np.random.default_rng(seed).uniform(0.2, 5, (N, K))
    rows = CalibratedRows(confidence, conditional, correct, present, query_cost)
    (found, label_penalty), (plain, plain_label_penalty) = (
        judged_by(rows, Blending(*weights)) for weights in ((0.5, 0.2), (0.0, 0.0))
    )
    kept = np.flatnonzero(np.isfinite(found.penalty))
    losses = jax.jit(loss_terms)(confidence, correct, query_cost, found.policies())
    wrong, spent, abstained = (np.asarray(loss)[kept] for loss in losses)
    assert not abstained.any()
    assert (np.abs(wrong.mean(1) - found.penalty[kept])[K:] > 1e-3).any()
    for one in (label_penalty, plain_label_penalty, plain.penalty):
        np.testing.assert_allclose(wrong.mean(1), one[kept], atol=1e-12)
    np.testing.assert_allclose(spent.mean(1), found.cost[kept], rtol=1e-12)


@pytest.mark.parametrize("worth", [None, 0.3])
def test_a_question_that_a_policy_does_not_ask_is_not_in_its_cost(worth):
    """Single models and the second of a pair are not asked how sure they are, unless they may abstain."""
    confidence, conditional, correct, present = random_log(0, missing=0.0)
    query_cost = COST * np.random.default_rng(0).uniform(0.2, 5, (N, K))
    optional = {"signal_cost": query_cost / 3, "abstain_worth": None if worth is None else jnp.asarray(worth)}
    rows = CalibratedRows(confidence, conditional, correct, present, query_cost, **optional)
    found, _ = judged_by(rows, Blending())
    kept = np.flatnonzero(np.isfinite(found.penalty))
    losses = loss_terms(confidence, correct, query_cost, found.policies(), signal_cost=query_cost / 3)
    np.testing.assert_allclose(np.asarray(losses.cost)[kept].mean(1), found.cost[kept], rtol=1e-12)
    is_alone = np.asarray(found.abstention)[:K] == 0
    assert is_alone.any()
    assert (worth is None) == is_alone.all()
    np.testing.assert_allclose(found.cost[:K], np.where(is_alone, 2 / 3, 1) * query_cost.mean(0), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_threshold_separates_neighbouring_floats(dtype):
    """Halfway between neighbouring floats lies one of the two: it must be the lower one."""
    with jax.enable_x64(dtype == np.float64):
        for level in (0.1, 0.3, 0.7, 0.999):
            steps = [dtype(level)]
            for _ in range(4):
                steps.append(np.nextafter(steps[-1], dtype(1)))
            confidence = np.stack([np.array(steps), np.full(5, 0.9, dtype)], axis=1)
            right, present, cost = (
                np.array([[False, True]] * 5),
                np.ones((5, 2), bool),
                np.tile(np.array([1.0, 2.0], dtype), (5, 1)),
            )
            found, _ = score_jitted(confidence, np.full((1, 5), 0.5, dtype), right, present, cost)
            kept = np.asarray(found.threshold)[2:][np.isfinite(found.penalty[2:])]
            passed = (confidence[:, 0] <= kept[:, None]).sum(1)
            assert passed.tolist() == [1, 2, 3, 4], level


def test_a_model_without_answers_is_no_candidate():
    """A resampled log may hold none of a model's few answers: it then is unknown, not free and right half the time."""
    confidence, conditional, correct, present = random_log(8, missing=0.0)
    present[:, 2] = False
    found, _ = score_jitted(confidence, conditional, correct & present, present, np.tile([1.0, 3.0, 0.0], (N, 1)))
    used = (np.asarray(found.first) == 2) | (np.asarray(found.second) == 2)
    assert not np.isfinite(np.asarray(found.penalty)[used]).any()


# -- calibration of one model by another


@pytest.mark.thorough
def test_the_confidence_of_one_model_calibrates_another_as_in_statsmodels():
    log = make_log(120, K, seed=1, missing=0.2)
    logprob, correct, present = (np.asarray(each) for each in (log.logprob, log.correct, log.answered))
    conditional = crossing(log.logprob, log.correct, log.answered, "generation")
    assert np.isfinite(conditional).all()
    for (i, j), ours in zip(list_pairs(K), np.asarray(conditional), strict=True):
        both = present[:, i] & present[:, j]
        theirs = logistic(logprob[:, i], correct[:, j], both)
        np.testing.assert_allclose(ours[both], theirs[both], rtol=1e-6)
        assert (np.corrcoef(ours[both], feature(logprob[both, i]))[0, 1]) > 0


def tune_by_labels(calibrators, rows, query_cost, lam):
    """(L,) the best policy for each λ (L,)."""
    rows = rows._replace(query_cost=np.broadcast_to(query_cost, rows.correct.shape))
    return score_candidates(calibrators, rows, Blending())[0].best(lam).policies()


def test_by_labels_the_best_single_model_or_pair_is_chosen_by_its_bills():
    log = make_log(120, 2, seed=1)
    lam = lam_range(np.asarray(log.cost), 40)
    rows = TrainingRows(log.logprob, log.correct, log.answered)
    tuned, by_mean = (
        tune_by_labels(rcjax.fit(log).calibrators, rows, cost, lam) for cost in (impute_query_cost(log), log.cost)
    )
    thresholds = tuned.thresholds
    assert (by_mean.thresholds != thresholds).any()
    assert thresholds.shape == tuned.members.shape == (40, 2)
    *_, both = best_by_labels(*map(np.asarray, (log.logprob, log.correct, log.answered, log.query_cost)), lam)
    for place, (i, j, threshold, *_) in enumerate(both):
        assert np.flatnonzero(tuned.members[place]).tolist() == sorted({i, j})
        assert thresholds[place, i] == pytest.approx(threshold, rel=1e-7)
    assert {1, 2} == {*tuned.members.sum(-1).tolist()}


@pytest.mark.parametrize("xp", [np, jnp])
def test_expected_labels_are_shifted_to_the_mean_of_the_labels(xp):
    rng = np.random.default_rng(0)
    expected, right, present = rng.uniform(size=30), rng.uniform(size=30) < 0.4, rng.uniform(size=30) < 0.7
    moved = np.asarray(recentre(xp.asarray(expected), xp.asarray(right), xp.asarray(present)))
    assert moved[present].mean() == pytest.approx(right[present].mean())
    np.testing.assert_allclose(np.diff(moved), np.diff(expected), atol=1e-12)
    np.testing.assert_array_equal(recentre(expected, right, np.zeros(30, bool)), expected)


def test_a_missing_answer_costs_the_mean_of_its_model():
    log = make_log(50, 3, seed=1, missing=0.3)
    answered, own = np.asarray(log.answered), np.asarray(log.query_cost)
    assert not answered.all()
    money = impute_query_cost(log)
    for j in range(3):
        here = answered[:, j]
        np.testing.assert_array_equal(money[here, j], own[here, j])
        np.testing.assert_allclose(money[~here, j], own[here, j].mean())


def test_even_parts_are_those_of_whole_numbers_beyond_int32():
    for count in (0, 1, 3, 399, 400, 401, 12_345, 2**31 - 1):
        for parts in (1, 2, 7, MAX_THRESHOLDS):
            expected = [-(-i * count // parts) for i in range(1, parts + 1)]
            with jax.enable_x64(False):
                assert even_parts(jnp.int32(count), parts).tolist() == expected
