"""Outcomes where labels are missing: the labels where there are any, right on average, with less variance."""

import dataclasses

import numpy as np
import pytest
from helpers.judged_logs import KINDS, MODELS, judged_log, partly, some_labelled, verdicts
from hypothesis import given, settings, strategies as st
from tiers import examples

import rcjax
from rcjax.model.label_outcomes import corrected_log, expected_log

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.thorough
def test_a_fully_labelled_log_keeps_its_labels():
    log = rcjax.sample_log(100, seed=0)
    assert expected_log(log) is not None
    for form in (expected_log(log), corrected_log(log)):
        assert form.correct is log.correct
        assert form.hand_labels is None
    judged = np.random.default_rng(0).random((*log.correct.shape, 1))
    full = partly(log, np.ones(log.correct.shape, bool), judged)
    for form in (expected_log(full), corrected_log(full)):
        assert form.correct.dtype == bool
        assert np.array_equal(form.correct, log.correct)
        assert form.hand_labels is None


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_corrected_outcomes_are_right_on_average_and_vary_less_than_labels(kind):
    full = rcjax.sample_log(500, seed=1).select(MODELS)
    right = np.asarray(full.correct)
    rng = np.random.default_rng(5)
    judged, draws = verdicts(right, kind, rng), 150
    means, alone = [], []
    for _ in range(draws):
        labelled = some_labelled(full, 100, rng)
        means.append(np.asarray(corrected_log(partly(full, labelled, judged)).correct).mean(0))
        alone.append(right[labelled[:, 0]].mean(0))
    gap = np.mean(means, 0) - right.mean(0)
    spread = np.std(means, 0, ddof=1)
    assert (np.abs(gap) < 4 * spread / np.sqrt(draws) + 0.002).all()
    least = {"useless": 1.1, "none": 1.05}.get(kind, 0.8)  # of the deviation of labels alone
    assert (spread < least * np.std(alone, 0, ddof=1)).all()
    if kind in ("lenient", "strict"):  # the judge's word is not right on average
        assert np.abs(judged[..., 0].mean(0) - right.mean(0)).max() > 0.03


@settings(deadline=None, max_examples=examples(20))
@given(st.integers(0, 10_000))
def test_no_pattern_of_labels_gives_nan(seed):
    rng = np.random.default_rng(seed)
    log = judged_log(30, 20, rng.choice(KINDS), seed=seed % 5, by_answer=True)
    log = partly(
        log, log.labelled & (rng.random(log.labelled.shape) < rng.random()), np.asarray(log.hand_labels.judged)
    )
    for form in (expected_log(log), corrected_log(log)):
        assert np.isfinite(np.asarray(form.correct, float)).all()


def test_the_outcomes_of_a_log_are_computed_once_and_no_other_log_has_them():
    log = judged_log(60, 30)
    for derive in (expected_log, corrected_log):
        assert derive(log) is derive(log)
        relabelled = dataclasses.replace(log, correct=~np.asarray(log.correct))
        for other in (log.take(slice(30)), log.select(MODELS[::-1]), relabelled):
            assert derive(other).correct.shape == other.correct.shape
            assert not np.array_equal(derive(other).correct, derive(log).correct)
