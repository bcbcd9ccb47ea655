"""Calibration and discrimination on a log, and changes between two logs."""

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings, strategies as st
from scipy import stats
from statsmodels.stats.proportion import proportion_confint, proportions_ztest
from tiers import examples

from benchmarks.paper.statistics import accuracy_above
from rcjax.logs.oddities import area_under_roc
from rcjax.model.goodness_of_fit.reliability import (
    CalibrationTest,
    SampleMean,
    accuracy_p_value,
    calibration_change,
    calibration_test,
    distribution_change,
    excess_over_limit,
    holm_adjusted,
    reliability_curve,
    rise_of_mean,
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


def distance(x, y):
    """√∫ (F − G)² dH by its definition: mid-distribution functions, one value at a time."""
    both = np.concatenate([x, y])

    def below(sample, value):
        return np.mean(sample < value) + np.mean(sample == value) / 2

    return np.sqrt(np.mean([(below(x, value) - below(y, value)) ** 2 for value in both]))


samples = st.lists(st.sampled_from([-np.inf, -2, -1, 0]), min_size=2, max_size=12).map(
    lambda values: np.array(values, float)
)


@settings(max_examples=examples(100), deadline=None)
@given(samples, samples)
def test_the_distance_is_as_defined_and_of_ranks_alone(x, y):
    result = distribution_change(x, y)
    assert result.figure == pytest.approx(distance(x, y), abs=1e-9)
    assert 0 <= result.p_value <= 1
    for other in ((y, x), (-x, -y), (np.exp(x) - 1, np.exp(y) - 1)):
        assert distribution_change(*other) == pytest.approx(result, abs=1e-6)


def test_with_ties_the_p_value_is_nearly_that_of_all_permutations():
    x, y = np.array([0, 0, 0, -1.0, -2, -2]), np.array([0, -1, -1, -2.0, -2, -3, -3])
    both = np.concatenate([x, y])
    every = []
    for chosen in itertools.combinations(range(len(both)), len(x)):
        first = np.isin(np.arange(len(both)), chosen)
        every.append(distance(both[first], both[~first]))
    exact = np.mean(np.array(every) >= distance(x, y) - 1e-12)
    assert distribution_change(x, y).p_value == pytest.approx(exact, abs=0.05)


def test_without_ties_the_p_value_is_that_of_scipy_far_out_too():
    rng = np.random.default_rng(0)
    for shift in (0.0, 0.3, 0.5, 0.7):
        x, y = rng.normal(size=100), rng.normal(shift, size=300)
        reference = stats.cramervonmises_2samp(x, y, method="asymptotic").pvalue
        assert distribution_change(x, y).p_value == pytest.approx(reference, rel=0.3, abs=1e-3), shift


def test_a_rise_of_a_share_is_that_of_fishers_exact_test_far_out():
    """Of the mid-p, as a share of few queries is discrete."""
    for wrong, n, wrong_before, n_before in (
        (20, 100, 30, 300),
        (25, 100, 30, 300),
        (9, 30, 30, 300),
        (150, 800, 30, 300),
    ):
        before = SampleMean.estimate(np.arange(n_before) < wrong_before)
        _, p_value = rise_of_mean(before, SampleMean.estimate(np.arange(n) < wrong))
        law = stats.hypergeom(n + n_before, wrong + wrong_before, n)
        exact = law.sf(wrong) + law.pmf(wrong) / 2
        assert p_value == pytest.approx(exact, rel=0.35), (wrong, n, p_value, exact)


def test_means_of_parts_are_those_of_the_whole():
    rng = np.random.default_rng(1)
    x, y = rng.gamma(2, size=40), rng.gamma(3, size=70)
    assert SampleMean.estimate(x).pool(SampleMean.estimate(y)) == pytest.approx(
        SampleMean.estimate(np.concatenate([x, y]))
    )


@pytest.mark.parametrize(("before", "now", "p_value"), [(0.0, 0.0, 1.0), (1.0, 1.0, 1.0), (0.0, 1.0, 0.0)])
def test_samples_without_any_spread(before, now, p_value):
    result = rise_of_mean(SampleMean.estimate(np.full(30, before)), SampleMean.estimate(np.full(20, now)))[1]
    assert result == pytest.approx(p_value, abs=1e-6)
    assert excess_over_limit(SampleMean.estimate(np.full(20, now)), before)[1] <= (0.05 if now > before else 1.0)


@pytest.mark.thorough
def test_small_p_values_come_as_often_as_they_say():
    """A hundred queries against three hundred, tied confidences, rare errors."""
    rng = np.random.default_rng(0)
    result = []
    for _ in range(8000):
        p, q = rng.choice([0.5, 0.7, 0.9, 0.95], 300), rng.choice([0.5, 0.7, 0.9, 0.95], 100)
        y, z = rng.random(300) < p, rng.random(100) < q
        rise = rise_of_mean(SampleMean.estimate(~y), SampleMean.estimate(~z))[1]
        result.append((rise, calibration_change((p, y), (q, z)).p_value, distribution_change(p, q).p_value))
    for column in np.array(result).T:
        for level, most in ((0.05, 0.058), (0.01, 0.0135), (0.001, 0.0026)):
            assert level / 3 < np.mean(column < level) < most, (level, np.mean(column < level))


def test_a_changed_calibration_is_seen_and_an_unchanged_one_is_not():
    rng = np.random.default_rng(2)
    confidence = rng.choice([0.55, 0.7, 0.85, 0.95], 800)
    right = rng.random(800) < confidence
    parts = (confidence[:300], right[:300]), (confidence[300:], right[300:])
    assert calibration_change(*parts).p_value > 0.05
    right[300:] = rng.random(500) < confidence[300:] - 0.15
    assert calibration_change(*parts).p_value < 1e-4
    one = (np.full(50, 0.8), np.ones(50, bool))
    assert calibration_change(one, one).p_value == 1


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_rejects_step_by_step(p_values):
    """By the procedure itself: the smallest p-value at α/K, the next at α/(K − 1), until one is not rejected."""
    adjusted, order = holm_adjusted(p_values), np.argsort(p_values, kind="stable")
    for level in (0.05, 0.3):
        rejected = set()
        for step, place in enumerate(order.tolist()):
            if not p_values[place] * (len(p_values) - step) < level:
                break
            rejected.add(place)
        assert rejected == set(np.flatnonzero(adjusted < level).tolist())


def test_holm_leaves_out_missing_p_values():
    np.testing.assert_allclose(holm_adjusted([0.02, np.nan, 0.03]), [0.04, np.nan, 0.04])
    assert np.isnan(holm_adjusted([np.nan])).all()
