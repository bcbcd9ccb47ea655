"""Intervals of the error that was replayed: Wilson's where all have labels, wider where few do, and true."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
from helpers.judged_logs import MODELS, judged_log

import rcjax
from rcjax.model.goodness_of_fit.reliability import wilson_interval
from rcjax.policy import Scores
from rcjax.policy.error_kind import JUDGED_SAME
from rcjax.tuning.replaying.replay import ReferenceDifference, compare_with_reference_model, error_interval

N, LABELS = 192, 16  # queries, and labels of each model


@pytest.fixture(scope="module")
def frontier():
    log = rcjax.sample_log(N, seed=10**6).select(MODELS)
    return rcjax.solve_frontier(rcjax.fit(log), lam=np.geomspace(10, 5000, 12))


def ends(frontier, log):
    return error_interval(rcjax.replay(frontier, log), log)


def test_wilsons_interval_is_scipys():
    for k, n, level in ((0, 7, 0.9), (3, 12, 0.9), (41, 60, 0.95), (60, 60, 0.8)):
        expected = scipy.stats.binomtest(k, n).proportion_ci(level, "wilson")
        np.testing.assert_allclose(wilson_interval(k / n, n, level), expected, atol=1e-12)


def test_scores_have_the_interval_of_as_many_labels_as_have_their_standard_error():
    log = rcjax.sample_log(40, seed=1)
    scored = dataclasses.replace(log, correct=log.correct.astype(float), scores=Scores())
    replayed = SimpleNamespace(error=[0.25, 0.0], error_se=[np.sqrt(0.25 * 0.75 / 60), 0.0], n_queries=40)
    np.testing.assert_allclose(error_interval(replayed, scored), [wilson_interval(0.25, 60), wilson_interval(0.0, 40)])


def test_models_that_the_log_lacks_need_no_labels():
    log = judged_log(40, LABELS, "none", by_answer=True).select(MODELS[:1])
    alone = SimpleNamespace(error=0.3, error_se=0.1, n_queries=40, models=MODELS[:1], share=[1.0])
    ladder = SimpleNamespace(**vars(alone) | {"models": MODELS[::-1], "share": [*[0.0] * (len(MODELS) - 1), 1.0]})
    np.testing.assert_array_equal(error_interval(ladder, log), error_interval(alone, log))


def test_without_labels_only_the_difference_is_described():
    sentence = ReferenceDifference("large", (0.03, 0.01), None).describe()
    assert sentence.startswith(
        "differs from large in 3.0 ± 1.0 % of the queries; how often it errs cannot be known without"
    )


@pytest.mark.thorough
def test_a_fully_labelled_log_has_wilsons_interval(frontier):
    log = rcjax.sample_log(N, seed=1).select(MODELS)
    assert (ends(frontier, log) == wilson_interval(np.asarray(rcjax.replay(frontier, log).error), N)).all()
    scored = dataclasses.replace(log, correct=log.correct.astype(float), scores=Scores())
    assert ends(frontier, scored) == pytest.approx(ends(frontier, log), rel=0.02)


@pytest.mark.thorough
def test_labels_without_an_error_leave_room_for_errors(frontier):
    log = judged_log(N, LABELS, "none", by_answer=True)
    log = dataclasses.replace(log, correct=log.labelled)
    assert (ends(frontier, log)[:, 1] > 0.1).all()  # Wilson's of 16 labels, all right, reaches to 0.14


@pytest.mark.thorough
@pytest.mark.parametrize("known", [1.0, 0.5])
def test_differences_do_not_depend_on_labels(known, frontier):
    few = judged_log(N, LABELS, "fair", by_answer=True)
    rng = np.random.default_rng(0)
    same = np.where(rng.random((N, len(MODELS))) < known, rng.random((N, len(MODELS))) < 0.9, np.nan)
    hand = dataclasses.replace(few.hand_labels, judges=(JUDGED_SAME,), judged=same[..., None])
    reference = rcjax.policy.Reference(MODELS[-1], counts="errors")
    log = dataclasses.replace(few, hand_labels=hand, reference=reference)
    differs, _ = compare_with_reference_model(frontier.policy(lam=100.0), log).differs
    assert differs == pytest.approx(0.1, abs=0.05 / known)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["fair", "lenient", "none"])
def test_intervals_hold_the_truth_as_often_as_they_say(kind, frontier):
    true = np.asarray(rcjax.replay(frontier, rcjax.sample_log(20_000, seed=10**6 + 1).select(MODELS)).error)
    bands = np.array([ends(frontier, judged_log(N, LABELS, kind, seed, by_answer=True)) for seed in range(80)])
    inside = (bands[..., 0] <= true) & (true <= bands[..., 1])
    assert 0.86 <= inside.mean() <= 0.97
