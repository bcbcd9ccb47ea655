"""Calibration and discrimination on a log, and changes between two logs.

Calibration asks whether 80 % of the answers are right at a confidence of 80 %; discrimination, whether right answers
rank higher. The p-values of changes have closed forms that are accurate far into the tail: a weekly check compares
p-values with a thousandth, for which permutation tests need ten thousand replicates. The null distribution of a
statistic is a Pearson III with the statistic's first three moments. A difference of means takes the moments of the
pooled sample, as a permutation test does (Mielke, Berry & Johnson 1976, Communications in Statistics 5(14)). A
quadratic form in nearly normal sums takes the moments of Σ λ χ².
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rcjax._base.figures import interval_half_width
from rcjax.logs.columns import are_scores
from rcjax.model.calibration import binned_gap, decile_bins

_MIN_P_VALUE = 1e-16  # least p-value reported, because the approximation of the tail is no longer accurate
_SYMMETRIC = 1.6e-5  # skewness below which a Pearson III is a normal law, to the precision of a float64
_MAX_GROUPS = 200  # most groups of equal or neighbouring values in the null distribution of the distance


class CalibrationTest(NamedTuple):
    """The calibration of one model on a log."""

    error: float
    """Expected calibration error, in [0, 1]."""
    by_chance: float
    """Mean error of perfectly calibrated models on as many queries."""
    p_value: float
    """Probability of an error at least as large under perfect calibration."""


def calibration_test(
    confidence: np.ndarray, correct: np.ndarray, rng: np.random.Generator, replicates: int = 1000
) -> CalibrationTest:
    """Test whether a model's expected calibration error exceeds that of perfect calibration.

    Ten bins of n/10 queries show an error even under perfect calibration: about 6 % with 300 queries. Replicates draw
    labels with the confidences as probabilities. Scores vary less than labels; their replicates flip the sign of each
    gap between score and confidence at random (the wild bootstrap: Liu 1988, Annals of Statistics 16(4)). The p-value
    is (exceedances + ½)/(replicates + 1). The queries should be held out: on its training queries a calibrator errs
    less.

    Args:
        confidence: (n,) calibrated confidence.
        correct: (n,) whether the answer is right; floats are scores.
        rng: generator of the replicates.
        replicates: number of replicates.

    >>> rng = np.random.default_rng(0)
    >>> confidence = rng.random(300)
    >>> test = calibration_test(confidence, rng.random(300) < confidence, rng)
    >>> bool(test.p_value > 0.05), bool(0.03 < test.by_chance < 0.07)
    (True, True)
    """
    confidence, correct = np.asarray(confidence), np.asarray(correct)
    bins, n = decile_bins(confidence), len(confidence)
    gap = correct.astype(float) - confidence
    signs = np.issubdtype(correct.dtype, np.floating)
    drawn = (rng.random(n) for _ in range(replicates))
    gaps = (np.where(u < 0.5, gap, -gap) if signs else (u < confidence) - confidence for u in drawn)
    chance = np.array([binned_gap(bins, drawn_gap) for drawn_gap in gaps])
    error = binned_gap(bins, gap)
    # Replicates that equal the error up to rounding count as exceedances.
    exceedances = (chance >= error * (1 - 1e-9)).sum()
    return CalibrationTest(error, float(chance.mean()), float((exceedances + 0.5) / (replicates + 1)))


def accuracy_p_value(expected: float, correct: np.ndarray, trained_on: int) -> float:
    """Return the two-sided p-value of a log's accuracy, if the expected accuracy holds for the log.

    A small value says that the log is easier or harder than the training log. The difference is taken as normal, with
    the sampling variances of the n queries and of the `trained_on` queries behind the expectation.

    Args:
        expected: expected accuracy.
        correct: (n,) labels, or estimated outcomes if some labels are missing.
        trained_on: number of queries behind the expectation.

    >>> round(accuracy_p_value(0.5, np.arange(100) < 60, 100), 3)  # ten points, over √(2 · 0.5²/100)
    0.157
    """
    is_label = np.isin(correct, (0, 1)).all()
    variance = expected * (1 - expected) if is_label else float(np.var(correct))
    spread = math.sqrt(variance * (1 / len(correct) + 1 / trained_on))
    gap = abs(float(np.mean(correct)) - expected)
    return math.erfc(gap / spread / math.sqrt(2)) if spread > 0 else float(gap == 0)


def wilson_interval(share: ArrayLike, n: int | np.ndarray, level: float = 0.9) -> np.ndarray:
    """Return a confidence interval of a probability, given the share (…) of successes in n trials: (…, 2).

    Wilson (1927), "Probable inference, the law of succession, and statistical inference".

    >>> wilson_interval(0.0, 50).round(4).tolist()
    [0.0, 0.0513]
    """
    z = interval_half_width(level)
    share = np.asarray(share, float)
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z * np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2) / (1 + z**2 / n)
    return np.clip(np.stack([middle - reach, middle + reach], axis=-1), 0.0, 1.0)


def reliability_curve(confidence: np.ndarray, correct: np.ndarray) -> dict[str, np.ndarray]:
    """Compute accuracy and confidence in the ten bins of the calibration error; empty bins are left out.

    The keys are `confidence` and `accuracy`, the means of each bin; `low` and `high`, the 90 % Wilson interval of the
    accuracy; and `n`, the number of queries. For scores the interval takes the number of binary labels that would vary
    as much.

    Args:
        confidence: (n,) calibrated confidence.
        correct: (n,) labels or scores.

    >>> curve = reliability_curve(np.array([0.2, 0.2, 0.9, 0.9]), np.array([0, 0, 1, 0]))
    >>> curve["confidence"].round(2).tolist(), curve["accuracy"].tolist()
    ([0.2, 0.9], [0.0, 0.5])
    """
    bins = (decile_bins(np.asarray(confidence)) == np.arange(10)[:, None]).astype(float)
    n = bins.sum(1)
    bins, n = bins[n > 0], n[n > 0]
    score = np.asarray(correct, float)
    share = bins @ score / n
    size = n
    if are_scores(score):
        spread = bins @ score**2 / n - share**2
        size = n * np.divide(share * (1 - share), spread, out=np.ones(len(n)), where=spread > 1e-9)
    low, high = wilson_interval(share, size).T
    return {"confidence": bins @ np.asarray(confidence, float) / n, "accuracy": share, "low": low, "high": high, "n": n}


def holm_adjusted(p_values: Sequence[float]) -> np.ndarray:
    """Adjust p-values for multiple tests by Holm's method; the tests may depend on each other.

    With probability at least 1 − α, no true null hypothesis has an adjusted p-value below α (Holm 1979, "A simple
    sequentially rejective multiple test procedure"). NaN stays NaN and does not count as a test.

    >>> holm_adjusted([0.01, 0.5, 0.02]).round(2).tolist()
    [0.03, 0.5, 0.04]
    """
    p = np.asarray(p_values, float)
    order = np.argsort(p)  # NaN last
    count = int(np.isfinite(p).sum())
    adjusted = np.full(len(p), np.nan)
    factors = count - np.arange(count)
    adjusted[order[:count]] = np.minimum(np.maximum.accumulate(factors * p[order[:count]]), 1.0)
    return adjusted


class Change(NamedTuple):
    """A change between two samples, and its p-value."""

    figure: float
    """Size of the change; NaN if a sample is too small."""
    p_value: float
    """Probability of a change at least as large under the null hypothesis."""


class SampleMean(NamedTuple):
    """The mean of a sample, with its moments."""

    mean: float
    variance: float
    """Variance of one query."""
    third: float
    """Third central moment of one query."""
    n: int
    """Number of queries."""

    @classmethod
    def estimate(cls, values: np.ndarray, mean: float | None = None, n: int | None = None) -> "SampleMean":
        """Estimate the mean and its moments from a sample.

        Args:
            values: (m,) the sample.
            mean: better estimate of the mean; None: the sample's.
            n: number of queries behind the estimate, if the sample is a part of them.
        """
        average = float(values.mean())
        residual = values - average
        moments = float((residual**2).mean()), float((residual**3).mean())
        return cls(average if mean is None else mean, *moments, n or len(values))

    def pool(self, other: "SampleMean") -> "SampleMean":
        """Pool two samples, as under the null hypothesis of no change."""
        n, shares = self.n + other.n, (self.n, other.n)
        mean = (self.n * self.mean + other.n * other.mean) / n
        second = third = 0.0
        for sample, share in zip((self, other), shares, strict=True):
            gap = sample.mean - mean
            second += share / n * (sample.variance + gap**2)
            third += share / n * (sample.third + 3 * gap * sample.variance + gap**3)
        return SampleMean(mean, second, third, n)


def rise_of_mean(before: SampleMean, now: SampleMean) -> tuple[float, float]:
    """Return (standard error of the difference of two means, one-sided p-value of the rise).

    The variance is that of the pooled sample (a score test), since a sample without errors has variance 0. The skewness
    corrects the tail for small samples.

    >>> rare, common = SampleMean.estimate(np.arange(300) % 20 == 0), SampleMean.estimate(np.arange(100) % 8 == 0)
    >>> se, p_value = rise_of_mean(rare, common)
    >>> round(se, 3), round(p_value, 3)
    (0.029, 0.006)
    """
    pooled = before.pool(now)
    se = math.sqrt(pooled.variance * (1 / before.n + 1 / now.n))
    gap = now.mean - before.mean
    if se <= 1e-12 * max(abs(pooled.mean), 1e-300):
        return se, float(gap <= 1e-9 * abs(pooled.mean))
    skewness = pooled.third * (1 / now.n**2 - 1 / before.n**2) / se**3
    return se, _tail(gap / se, skewness)


def excess_over_limit(now: SampleMean, limit: float) -> tuple[float, float]:
    """Return (standard error of a mean, one-sided p-value of its excess over a fixed limit).

    >>> se, p_value = excess_over_limit(SampleMean.estimate(np.arange(100) % 8 == 0), 0.05)
    >>> round(se, 3), round(p_value, 3)
    (0.035, 0.016)
    """
    variance = now.variance + (now.mean - limit) ** 2  # under the null hypothesis that the limit is the mean
    se = math.sqrt(variance / now.n)
    if se <= 1e-12 * max(abs(limit), abs(now.mean), 1e-300):
        return se, float(now.mean <= limit)
    third = now.third + 3 * (now.mean - limit) * now.variance + (now.mean - limit) ** 3
    return se, _tail((now.mean - limit) / se, third / now.n**2 / se**3)


def _tail(z: float, skewness: float) -> float:
    """Return the upper tail probability at z of a Pearson III law with mean 0 and variance 1.

    It is a gamma law, moved and scaled.
    """
    from scipy.special import gammainc, gammaincc, ndtr  # importing scipy.stats takes nearly as long as JAX

    if abs(skewness) < _SYMMETRIC:
        return float(np.clip(ndtr(-z), _MIN_P_VALUE, 1.0))
    scale = 2.0 / skewness
    tail = (gammaincc if skewness > 0 else gammainc)(scale**2, max(scale * (z + scale), 0.0))
    return float(np.clip(tail, _MIN_P_VALUE, 1.0))


def calibration_change(before: tuple[np.ndarray, np.ndarray], now: tuple[np.ndarray, np.ndarray]) -> Change:
    """Test for a change of calibration by the χ² of (y − p, (y − p)·p), with two degrees of freedom.

    It is the score test of a change in the intercept and slope of a logistic recalibration, and includes
    Spiegelhalter's (y − p)(1 − 2p) as a direction. `figure` is χ².

    Args:
        before, now: (calibrated confidence (n,), labels (n,)) of each sample.

    >>> rng = np.random.default_rng(0)
    >>> p = rng.random((2, 400))
    >>> y = rng.random((2, 400)) < p
    >>> same, surer = (calibration_change((p[0], y[0]), (q, y[1])) for q in (p[1], np.sqrt(p[1])))
    >>> same.p_value > 0.05, surer.p_value < 1e-3
    (True, True)
    """
    from scipy.special import chdtrc

    scores = [np.stack([y - p, (y - p) * p], -1) for p, y in (before, now)]
    sizes = [len(rows) for rows in scores]
    pooled = np.concatenate(scores)
    gap = scores[1].mean(0) - scores[0].mean(0)
    variance = np.cov(pooled.T) * (1 / sizes[0] + 1 / sizes[1])
    rank = int(np.linalg.matrix_rank(variance, hermitian=True)) if np.isfinite(variance).all() else 0
    if rank == 0:
        return Change(0.0, 1.0)
    figure = float(gap @ np.linalg.pinv(variance, hermitian=True) @ gap)
    return Change(figure, float(chdtrc(rank, figure)))


def distribution_change(before: np.ndarray, now: np.ndarray) -> Change:
    """Test for a change of distribution by √∫ (F − G)² dH, H being the pooled distribution (Cramér–von Mises).

    F is the distribution `before` (n,), and G that of `now` (m,); they count half of the tied values as below
    (mid-ranks). Under the null hypothesis nm/(n + m) ∫ (F − G)² dH is a sum of λ χ². The λ are the eigenvalues of the
    covariance of the cumulative shares, ties included, and three traces give its moments. `figure` is the distance.

    >>> rng = np.random.default_rng(0)
    >>> distance, p_value = distribution_change(rng.random(300), rng.random(2000) ** 1.3)
    >>> bool(0.1 < distance < 0.15), bool(p_value < 1e-6)
    (True, True)
    """
    n, m = len(before), len(now)
    values, group = np.unique(np.concatenate([before, now]), return_inverse=True)
    counts = [np.bincount(part, minlength=len(values)) for part in (group[:n], group[n:])]
    shares = [count / size for count, size in zip(counts, (n, m), strict=True)]
    below = [share.cumsum() - share / 2 for share in shares]
    weight = (counts[0] + counts[1]) / (n + m)
    square = float(weight @ (below[1] - below[0]) ** 2)
    traces = _traces(weight)
    moments = traces[0], 2 * traces[1], 8 * traces[2]
    if moments[1] <= 0:
        return Change(0.0, 1.0)
    z = (n * m / (n + m) * square - moments[0]) / math.sqrt(moments[1])
    return Change(math.sqrt(square), _tail(z, moments[2] / moments[1] ** 1.5))


def _traces(weight: np.ndarray) -> tuple[float, float, float]:
    """Return the traces of K, K² and K³, for the covariance K of mid-rank cumulative shares.

    Groups have shares `weight` (G,).

    With F at the middles of groups i ≤ j, K_ij = F_i − F_i F_j, less w_i/4 if i = j; √w weighs rows and columns.

    >>> np.round(_traces(np.full(100, 0.01)), 4).tolist()  # without ties 1/6, 1/90, 1/945
    [0.1642, 0.0111, 0.0011]
    """
    if len(weight) > _MAX_GROUPS:  # merge neighbours
        edges = np.floor((weight.cumsum() - weight / 2) * _MAX_GROUPS).astype(int)
        weight = np.bincount(edges, weight)
    weight = weight[weight > 0]
    below, root = weight.cumsum() - weight / 2, np.sqrt(weight)
    covariance = np.minimum.outer(below, below) - np.outer(below, below) - np.diag(weight / 4)
    kernel = root[:, None] * covariance * root
    return float(kernel.trace()), float((kernel**2).sum()), float(((kernel @ kernel) * kernel).sum())
