"""Changes between two samples: p-values against references, far out in the tail."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats
from tiers import examples

from rcjax.model.goodness_of_fit.two_samples import (
    SampleMean,
    calibration_change,
    distribution_change,
    excess_over_limit,
    holm_adjusted,
    rise_of_mean,
)

pytestmark = pytest.mark.usefixtures("float64")


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


def test_a_model_of_one_confidence_is_tested_in_one_direction():
    rng = np.random.default_rng(0)
    y, z = rng.random(300) < 0.7, rng.random(300) < 0.8
    p = np.full(300, 0.7)
    gap, variance = z.mean() - y.mean(), np.cov(np.concatenate([y, z]))
    for order in (rng.permutation(300) for _ in range(5)):
        found = calibration_change((p, y[order]), (p, z))
        assert found.figure == pytest.approx(gap**2 / (variance / 150), rel=1e-9)


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
