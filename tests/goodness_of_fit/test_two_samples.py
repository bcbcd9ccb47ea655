"""Two-sample tests: against definitions, enumeration, scipy and statsmodels; their size where many values tie."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats
from tiers import examples

from rcjax.goodness_of_fit.reliability import brier_excess, compare, holm, shuffled_labels

pytestmark = pytest.mark.usefixtures("float64")


def distance(x, y):
    """√∫ (F − G)² dH by its definition: mid-distribution functions, one value at a time."""
    both = np.concatenate([x, y])

    def below(sample, value):
        return np.mean(sample < value) + np.mean(sample == value) / 2

    return np.sqrt(np.mean([(below(x, value) - below(y, value)) ** 2 for value in both]))


def compared(x, y, permutations=199, seed=0, confidence=None, correct=None):
    both = np.concatenate([x, y])
    n = len(both)
    confidence = np.full(n, 0.5) if confidence is None else confidence
    correct = np.zeros(n) if correct is None else correct
    return compare(both, confidence, correct, shuffled_labels(len(x), len(y), permutations, seed))


samples = st.lists(st.sampled_from([-np.inf, -2, -1, 0]), min_size=2, max_size=12).map(
    lambda values: np.array(values, float)
)


@settings(max_examples=examples(100), deadline=None)
@given(samples, samples)
def test_the_distance_is_as_defined_and_of_ranks_alone(x, y):
    found = compared(x, y, 9).distance
    assert found == pytest.approx(distance(x, y), abs=1e-4)
    assert compared(y, x, 9).distance == pytest.approx(found, abs=1e-4)
    assert compared(-x, -y, 9).distance == pytest.approx(found, abs=1e-4)
    assert compared(np.exp(x) - 1, np.exp(y) - 1, 9).distance == pytest.approx(found, abs=1e-4)


def test_with_ties_the_p_value_is_that_of_all_permutations():
    x, y = np.array([0, 0, 0, -1.0, -2]), np.array([0, -1, -1, -2.0, -2, -3])
    both = np.concatenate([x, y])
    every = []
    for chosen in itertools.combinations(range(len(both)), len(x)):
        first = np.isin(np.arange(len(both)), chosen)
        every.append(distance(both[first], both[~first]))
    exact = np.mean(np.array(every) >= distance(x, y) - 1e-12)
    assert compared(x, y, 4000).distance_p == pytest.approx(exact, abs=0.03)


def test_without_ties_the_p_value_is_that_of_scipy():
    rng = np.random.default_rng(0)
    for shift in (0.0, 0.3, 0.5):
        x, y = rng.normal(size=60), rng.normal(shift, size=80)
        assert compared(x, y, 1999).distance_p == pytest.approx(stats.cramervonmises_2samp(x, y).pvalue, abs=0.03)


def test_a_changed_calibration_is_seen_and_an_unchanged_one_is_not():
    rng = np.random.default_rng(2)
    confidence = rng.choice([0.55, 0.7, 0.85, 0.95], 800)
    right = rng.random(800) < confidence
    labels = shuffled_labels(300, 500, 499, 0)
    same = compare(np.zeros(800), confidence, right, labels)
    assert min(same.excess_p, same.curve_p) > 0.05
    right[300:] = rng.random(500) < confidence[300:] - 0.15
    changed = compare(np.zeros(800), confidence, right, labels)
    assert (changed.excess_p, changed.curve_p) == (1 / 500, 1 / 500)
    assert changed.distance_p == 1


def test_the_excess_is_the_brier_score_less_its_expectation():
    p, y = np.array([0.2, 0.8, 0.9, 0.65]), np.array([0, 1, 0, 1])
    assert brier_excess(p, y).sum() == pytest.approx(((y - p) ** 2).sum() - (p * (1 - p)).sum())


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_rejects_step_by_step(p_values):
    """By the procedure itself: the smallest p-value at α/K, the next at α/(K − 1), until one is not rejected."""
    adjusted, order = holm(p_values), np.argsort(p_values, kind="stable")
    for level in (0.05, 0.3):
        rejected = set()
        for step, place in enumerate(order.tolist()):
            if not p_values[place] * (len(p_values) - step) < level:
                break
            rejected.add(place)
        assert rejected == set(np.flatnonzero(adjusted < level).tolist())


def test_holm_leaves_out_what_says_nothing():
    np.testing.assert_allclose(holm([0.02, np.nan, 0.03]), [0.04, np.nan, 0.04])
    assert np.isnan(holm([np.nan])).all()
