"""Single models and pairs judged on a log, against loops over the definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from selection_references import COSTS, best_by_labels, feature, judge, logistic, make_log
from tiers import examples

import rcjax
from rcjax.frontier.policies import ALWAYS_ANSWER, NEVER_ANSWER
from rcjax.frontier.prices import lam_range
from rcjax.model.calibration import CalibrationStatus, Calibrator, calibrate_all, fit_calibrator
from rcjax.model.pairs import pairs
from rcjax.replaying.walk import outcomes
from rcjax.tuning import label_candidates
from rcjax.tuning.choices import judge_all
from rcjax.tuning.judging import AS_USUAL, Blend, Judging, cross_calibrate
from rcjax.tuning.label_candidates import CandidateRows, Candidates, as_cascades, candidates
from rcjax.tuning.label_weights import charges

pytestmark = pytest.mark.usefixtures("float64")

K, N = 3, 12
COLUMNS = ("first", "second", "threshold", "error", "cost")  # of candidates that do not refuse
COST = np.array(COSTS[:K])
tried = jax.jit(lambda *rows: candidates(CandidateRows(*rows), AS_USUAL))
crossing = jax.jit(cross_calibrate, static_argnums=3)
fit_one = jax.jit(fit_calibrator, static_argnums=3)


def tried_anew(*rows):
    """`tried`, traced again, as what it looks up in its module has changed."""
    return jax.jit(lambda *arrays: candidates(CandidateRows(*arrays), AS_USUAL))(*rows)


def random_log(seed, levels=5, missing=0.2):
    """(confidence, crossed, correct, present), with many ties, and two queries at least that all have answered."""
    rng = np.random.default_rng(seed)
    confidence = rng.integers(1, levels + 1, (N, K)) / (levels + 1)
    present = (rng.uniform(size=(N, K)) >= missing) | (np.arange(N) < 2)[:, None]
    correct = (rng.uniform(size=(N, K)) < 0.6) & present
    return confidence, rng.uniform(size=(len(pairs(K)), N)), correct, present


def by_definition(confidence, crossed, correct, present):
    return judge(confidence, dict(zip(pairs(K), crossed, strict=True)), correct, present, COST)


def assert_like_definition(found, expected, tolerance=1e-12):
    """All that is finite is a policy of the definition, with its figures, and all of them are there."""
    kept = np.isfinite(np.asarray(found.error))
    columns = [np.asarray(getattr(found, name), float)[kept] for name in COLUMNS]
    known = {(i, j, round(threshold, 5)): (threshold, error, cost) for i, j, threshold, error, cost in expected}
    assert len(known) == len(expected)
    seen = set()
    for first, second, threshold, error, cost in zip(*columns, strict=True):
        key = (int(first), int(second), round(float(threshold), 5))
        np.testing.assert_allclose((threshold, error, cost), known[key], rtol=tolerance, atol=tolerance, err_msg=key)
        seen.add(key)
    assert seen == set(known)


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 5, 1000]), st.sampled_from([0.0, 0.3, 0.8]))
def test_candidates_are_those_of_the_definition(seed, levels, missing):
    log = random_log(seed, levels, missing)
    found = tried(*log, COST)
    assert_like_definition(found, by_definition(*log))
    # A threshold that parts no queries belongs to a policy that never stops asking.
    assert (np.asarray(found.threshold)[~np.isfinite(found.error)] == NEVER_ANSWER).all()


@pytest.mark.thorough
def test_candidates_batch_over_masks():
    confidence, crossed, correct, present = random_log(1)
    masks = present & (np.arange(4)[:, None, None] != (np.arange(N) % 4)[:, None])
    batch = jax.jit(jax.vmap(tried, (None, None, None, 0, None)))(confidence, crossed, correct, masks, COST)
    for row, mask in enumerate(masks):
        one = jax.tree.map(lambda leaf, row=row: leaf[row], batch)
        assert_like_definition(one, by_definition(confidence, crossed, correct, mask))


def test_what_a_query_that_does_not_count_holds_plays_no_part():
    confidence, crossed, correct, present = random_log(2, missing=0.4)
    rng = np.random.default_rng(9)
    other = np.where(present, confidence, rng.uniform(size=(N, K)))
    anything = np.where(present, correct, True)
    found, same = tried(confidence, crossed, correct, present, COST), tried(other, crossed, anything, present, COST)
    for name in COLUMNS:
        np.testing.assert_allclose(getattr(same, name), getattr(found, name), rtol=1e-12)


judged_by = jax.jit(candidates)
every_cascade = jax.jit(lambda found: as_cascades(found, np.arange(found.error.shape[0]), K))


@pytest.mark.parametrize("seed", range(3))
def test_what_labels_count_and_queries_cost_is_that_of_a_walk(seed):
    """Whatever is expected, and without any of that the error too, as the queries' own charges have it."""
    confidence, crossed, correct, present = random_log(seed, missing=0.0)
    charge = COST * np.random.default_rng(seed).uniform(0.2, 5, (N, K))
    rows = CandidateRows(confidence, crossed, correct, present, charge)
    found, plain = (judged_by(rows, Judging(blend)) for blend in (Blend(0.5, 0.2), Blend(0.0, 0.0)))
    kept = np.flatnonzero(np.isfinite(found.error))
    fates = jax.jit(outcomes)(confidence, correct, charge, every_cascade(found))
    wrong, spent, refused = (np.asarray(fate)[kept] for fate in fates)
    assert not refused.any()
    assert (np.abs(wrong.mean(1) - found.error[kept])[K:] > 1e-3).any()
    for one in (found.counted, plain.counted, plain.error):
        np.testing.assert_allclose(wrong.mean(1), one[kept], atol=1e-12)
    np.testing.assert_allclose(spent.mean(1), found.cost[kept], rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_threshold_parts_confidences_that_are_as_close_as_can_be(dtype):
    """Halfway between neighbouring floats lies one of the two: it must be the lower one."""
    with jax.enable_x64(dtype == np.float64):
        for level in (0.1, 0.3, 0.7, 0.999):
            steps = [dtype(level)]
            for _ in range(4):
                steps.append(np.nextafter(steps[-1], dtype(1)))
            confidence = np.stack([np.array(steps), np.full(5, 0.9, dtype)], axis=1)
            right, present, cost = np.array([[False, True]] * 5), np.ones((5, 2), bool), np.array([1.0, 2.0], dtype)
            found = tried(confidence, np.full((1, 5), 0.5, dtype), right, present, cost)
            kept = np.asarray(found.threshold)[2:][np.isfinite(found.error[2:])]
            passed = (confidence[:, 0] <= kept[:, None]).sum(1)
            assert passed.tolist() == [1, 2, 3, 4], level


@pytest.mark.thorough
def test_few_thresholds_are_spread_over_the_queries(monkeypatch):
    monkeypatch.setattr(label_candidates, "MOST_THRESHOLDS", 4)
    log = random_log(3, levels=10**6, missing=0.0)
    found = tried_anew(*log, COST)
    assert found.error.shape == (K + 4 * len(pairs(K)),)
    kept = np.isfinite(found.error)
    every = {row[:3]: row[3:] for row in by_definition(*log)}
    for row in zip(*(np.asarray(getattr(found, name))[kept].tolist() for name in COLUMNS), strict=True):
        near = min((each for each in every if each[:2] == row[:2]), key=lambda each: abs(each[2] - row[2]))
        np.testing.assert_allclose((*near[2:], *every[near]), row[2:], rtol=1e-12)
    for place, (_, j) in enumerate(pairs(K)):
        shares = (found.cost[K + 4 * place :][:4] - found.cost[found.first[K + 4 * place]]) / COST[j]
        np.testing.assert_allclose(shares[:3], [0.25, 0.5, 0.75], atol=1e-12)


def test_a_large_log_tries_four_hundred_thresholds():
    n = 1000
    rng = np.random.default_rng(4)
    confidence, correct = rng.uniform(size=(n, 2)), rng.uniform(size=(n, 2)) < 0.5
    found = tried(confidence, np.full((1, n), 0.5), correct, np.ones((n, 2), bool), np.array([1.0, 2.0]))
    kept = np.asarray(found.threshold)[2:][np.isfinite(found.error[2:])]
    shares = np.searchsorted(np.sort(confidence[:, 0]), kept) / n
    assert len(kept) == 399
    np.testing.assert_allclose(shares, np.arange(1, 400) / 400, atol=1.01 / n)


def test_candidates_as_cascades():
    figures = [0.1] * 3, [1.0] * 3, [0.1] * 3
    found = Candidates(*map(jnp.asarray, ([0, 0, 1], [2, 0, 2], [0.7, ALWAYS_ANSWER, 0.2], *figures)))
    cascades = as_cascades(found, np.array([2, 1, 0, 0]), 3)
    never = NEVER_ANSWER
    assert cascades.thresholds.tolist() == [[never, 0.2, 0], [0, never, never], [0.7, never, 0], [0.7, never, 0]]
    assert cascades.refusals is None
    assert cascades.members.tolist() == [[False, True, True], [True, False, False], *[[True, False, True]] * 2]


@pytest.mark.thorough
def test_one_model_has_no_pairs():
    confidence, _, correct, present = random_log(6)
    found = tried(confidence[:, :1], np.zeros((0, N)), correct[:, :1], present[:, :1], COST[:1])
    assert found.error.shape == (1,)
    assert float(found.error[0]) == pytest.approx(1 - correct[present[:, 0], 0].mean())
    cascades = as_cascades(found, np.zeros(2, int), 1)
    assert cascades.thresholds.tolist() == [[ALWAYS_ANSWER]] * 2
    assert cascades.members.all()


def test_queries_that_no_pair_shares_give_no_pair():
    confidence, crossed, correct, _ = random_log(7)
    present = np.arange(N)[:, None] % K == np.arange(K)
    found = tried(confidence, crossed, correct, present, COST)
    np.testing.assert_array_equal(np.isfinite(found.error), np.arange(len(found.error)) < K)


def test_a_model_without_answers_is_no_candidate():
    """A resampled log may hold none of a model's few answers: it then is unknown, not free and right half the time."""
    confidence, crossed, correct, present = random_log(8, missing=0.0)
    present[:, 2] = False
    found = tried(confidence, crossed, correct & present, present, np.array([1.0, 3.0, 0.0]))
    used = (np.asarray(found.first) == 2) | (np.asarray(found.second) == 2)
    assert not np.isfinite(np.asarray(found.error)[used]).any()


# -- calibration of one model by another


@pytest.mark.thorough
def test_one_model_is_calibrated_by_another_as_by_statsmodels():
    log = make_log(120, K, seed=1, missing=0.2)
    logprob, correct, present = (np.asarray(each) for each in (log.logprob, log.correct, log.answered))
    crossed = crossing(log.logprob, log.correct, log.answered, "generation")
    assert np.isfinite(crossed).all()
    for (i, j), ours in zip(pairs(K), np.asarray(crossed), strict=True):
        both = present[:, i] & present[:, j]
        theirs = logistic(logprob[:, i], correct[:, j], both)
        np.testing.assert_allclose(ours[both], theirs[both], rtol=1e-6)
        assert (np.corrcoef(ours[both], feature(logprob[both, i]))[0, 1]) > 0


def test_a_model_that_is_always_right_is_so_whoever_was_asked_before():
    log = make_log(120, K, seed=2, correct=np.array([False, True, True]) | (np.arange(120) % 2 == 0)[:, None])
    crossed = crossing(log.logprob, log.correct, log.answered, "generation")
    np.testing.assert_allclose(crossed, 120.5 / 121, rtol=1e-12)


@pytest.mark.thorough
def test_all_confidences_are_those_of_each_calibrator():
    log = make_log(120, K, seed=3, missing=0.3)
    columns = [[each[:, j] for each in (log.logprob, log.correct, log.answered)] for j in range(K)]
    fitted = [fit_one(*each, "choice") for each in columns]
    assert CalibrationStatus.CONSTANT not in [int(each.status) for each in fitted]
    together: Calibrator = jax.tree.map(lambda *leaves: jnp.stack(leaves), *fitted)
    confidence = np.asarray(jax.jit(calibrate_all)(together, log.logprob, log.answered))
    assert np.isfinite(confidence).all()
    present = np.asarray(log.answered)
    for j, calibrator in enumerate(fitted):
        expected = np.asarray(calibrator(log.logprob[:, j]))
        np.testing.assert_allclose(confidence[present[:, j], j], expected[present[:, j]], rtol=1e-14)


def tune_by_labels(calibrators, rows, charge, lam):
    """(L,) the best policy for each λ (L,)."""
    return judge_all(calibrators, rows, charge, AS_USUAL)[0].best(lam).policies


def test_by_labels_the_best_single_model_or_pair_is_chosen_by_its_bills():
    log = make_log(120, 2, seed=1)
    lam = lam_range(np.asarray(log.cost), 40)
    rows = log.logprob, log.correct, log.answered, None
    tuned, by_mean = (tune_by_labels(rcjax.fit(log).calibrators, rows, cost, lam) for cost in (charges(log), log.cost))
    assert (by_mean.thresholds != tuned.thresholds).any()
    assert tuned.thresholds.shape == tuned.members.shape == (40, 2)
    *_, both = best_by_labels(*map(np.asarray, (log.logprob, log.correct, log.answered, log.query_cost)), lam)
    for place, (i, j, threshold, *_) in enumerate(both):
        assert np.flatnonzero(tuned.members[place]).tolist() == sorted({i, j})
        assert tuned.thresholds[place, i] == pytest.approx(threshold, rel=1e-7)
    assert {1, 2} == {*tuned.members.sum(-1).tolist()}
