"""Calibration and discrimination on a log."""

import numpy as np
import pytest
import scipy.stats
from statsmodels.stats.proportion import proportion_confint, proportions_ztest

from benchmarks.paper.statistics import accuracy_above
from rcjax.logs.oddities import area_under_roc
from rcjax.model.goodness_of_fit.reliability import (
    CalibrationTest,
    accuracy_p_value,
    calibration_test,
    reliability_curve,
)

pytestmark = pytest.mark.usefixtures("float64")

N, REPLICATES, LOGS = 100, 99, 200


@pytest.fixture(scope="module")
def confidences(float64):
    """(LOGS, N) in tenths of a per cent, so that some tie."""
    return np.random.default_rng(0).beta(2, 1, (LOGS, N)).round(3).clip(0.001, 0.999)


@pytest.fixture(scope="module")
def tests(confidences):
    """A function of probabilities (LOGS, N): the test of each log whose answers are right with these."""

    def judge(probability):
        rng = np.random.default_rng(1)
        correct = rng.random((LOGS, N)) < probability
        result = [calibration_test(*each, rng, REPLICATES) for each in zip(confidences, correct, strict=True)]
        return correct, CalibrationTest(*np.array(result).T)

    return judge


def plain_error(confidence, correct):
    edges = np.quantile(confidence, np.arange(11) / 10)
    place = np.clip(np.searchsorted(edges, confidence, side="right") - 1, 0, 9)
    return sum(abs((correct - confidence)[..., place == b].sum(-1)) for b in range(10)) / len(confidence)


@pytest.mark.thorough
def test_error_and_chance_are_those_of_a_plain_count(confidences, tests):
    correct, result = tests(confidences)
    rng = np.random.default_rng(2)
    for confidence, right, error, chance in zip(
        confidences[:20], correct, result.error, result.by_chance, strict=False
    ):
        assert error == pytest.approx(plain_error(confidence, right), abs=1e-12)
        drawn = plain_error(confidence, rng.random((2000, N)) < confidence)
        assert abs(chance - drawn.mean()) < 5 * drawn.std() * np.sqrt(1 / REPLICATES + 1 / 2000)


def test_p_values_hold_where_confidences_are_true_and_are_small_where_they_are_not(confidences, tests):
    true, biased = tests(confidences)[1].p_value, tests(confidences - 0.25)[1].p_value
    assert scipy.stats.kstest(true, "uniform").pvalue > 0.01
    assert np.mean(biased <= 0.05) > 0.9
    assert biased.min() == 0.5 / (REPLICATES + 1)


def test_reliability_has_wilsons_intervals(confidences):
    confidence = confidences[0]
    correct = np.random.default_rng(3).random(N) < confidence
    curve = reliability_curve(confidence, correct)
    right = curve["accuracy"] * curve["n"]
    np.testing.assert_allclose(right, right.round(), atol=1e-9)
    low, high = proportion_confint(right.round(), curve["n"], alpha=0.1, method="wilson")
    np.testing.assert_allclose(curve["low"], low, atol=1e-7)
    np.testing.assert_allclose(curve["high"], high, atol=1e-7)
    assert curve["n"].sum() == N
    assert curve["confidence"] @ curve["n"] == pytest.approx(confidence.sum())
    gap = np.abs(curve["accuracy"] - curve["confidence"]) @ curve["n"] / N
    assert gap == pytest.approx(plain_error(confidence, correct))


def test_accuracy_above_is_a_plain_count():
    rng = np.random.default_rng(4)
    confidence, correct = rng.integers(1, 8, 50) / 8, rng.random(50) < 0.6
    curve = accuracy_above(confidence, correct)
    assert curve["confidence"].tolist() == sorted(set(confidence.tolist()))
    for value, share, accuracy in zip(*curve.values(), strict=True):
        assert share == pytest.approx(np.mean(confidence >= value))
        assert accuracy == pytest.approx(np.mean(correct[confidence >= value]))


@pytest.mark.parametrize("levels", [4, 10**6])
def test_area_under_roc_is_mann_whitneys_u(levels):
    rng = np.random.default_rng(5)
    confidence, correct = rng.integers(0, levels, 80) / levels, rng.random(80) < 0.7
    u = scipy.stats.mannwhitneyu(confidence[correct], confidence[~correct]).statistic
    assert area_under_roc(confidence, correct) == pytest.approx(u / (correct.sum() * (~correct).sum()))


def test_accuracy_p_value_is_that_of_two_proportions():
    correct = np.arange(150) < 97
    expected = 180 / 250
    _, p = proportions_ztest([97, 180], [150, 250], prop_var=expected)
    assert accuracy_p_value(expected, correct, 250) == pytest.approx(p)
    assert accuracy_p_value(97 / 150, correct, 250) == pytest.approx(1.0)
    assert accuracy_p_value(1.0, np.ones(5), 10) == 1
    assert accuracy_p_value(1.0, np.arange(5) > 0, 10) == 0


def test_scores_all_above_the_confidence_are_no_chance():
    confidence = np.linspace(0.2, 0.7, 60)
    result = calibration_test(confidence, confidence + 0.1, np.random.default_rng(0), 50)
    assert (result.error, result.p_value) == (pytest.approx(0.1), pytest.approx(0.5 / 51))
    assert 0.02 < result.by_chance < 0.05


@pytest.mark.parametrize(
    ("confidence", "correct"),
    [
        ([0.3, 0.5, 0.7, 0.9], [1, 1, 1, 1]),
        ([0.3, 0.5, 0.7, 0.9], [0, 0, 0, 0]),
        ([0.6, 0.6, 0.6, 0.6], [1, 0, 1, 0]),
        ([0.2, 0.8], [1, 0]),
    ],
)
def test_degenerate_samples_have_defined_figures(confidence, correct):
    confidence, correct = np.array(confidence), np.array(correct, bool)
    result = calibration_test(confidence, correct, np.random.default_rng(0), 50)
    assert float(result.error) == pytest.approx(plain_error(confidence, correct))
    assert 0 < result.by_chance < 1
    assert 0 < result.p_value < 1
    curve = reliability_curve(confidence, correct)
    assert all(np.isfinite(column).all() for column in curve.values())
    assert (curve["low"] <= curve["accuracy"] + 1e-12).all()
    assert (curve["high"] >= curve["accuracy"] - 1e-12).all()
    assert accuracy_above(confidence, correct)["accuracy"][0] == correct.mean()
    one_kind = correct.all() or not correct.any()
    assert np.isnan(area_under_roc(confidence, correct)) if one_kind else 0 <= area_under_roc(confidence, correct) <= 1
    if len(set(confidence)) == 1 and not one_kind:
        assert area_under_roc(confidence, correct) == 0.5


def test_lists_are_samples_and_empty_samples_are_refused():
    assert calibration_test([0.5, 0.6], [1, 0], np.random.default_rng(0)).error == pytest.approx(0.55)
    with pytest.raises(ValueError, match="confidence is empty"):
        reliability_curve([], [])


def test_the_order_of_the_queries_changes_no_p_value():
    rng = np.random.default_rng(3)
    confidence = rng.uniform(size=100).round(1)
    correct, order = rng.uniform(size=100) < confidence, rng.permutation(100)
    tests = [calibration_test(confidence[rows], correct[rows], np.random.default_rng(0), 50) for rows in (order, ...)]
    assert tests[0] == pytest.approx(tests[1])
