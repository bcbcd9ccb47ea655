"""Changes between two samples: of a mean, of a calibration and of a distribution; several tests together.

The p-values have closed forms that are accurate far into the tail: a weekly check compares p-values with a thousandth,
for which permutation tests need ten thousand replicates. The null distribution of a statistic is a Pearson III with the
statistic's first three moments. A difference of means takes the moments of the pooled sample, as a permutation test
does (Mielke, Berry & Johnson 1976, Communications in Statistics 5(14)). A quadratic form in nearly normal sums takes
the moments of Σ λ χ².
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_MIN_P_VALUE = 1e-16  # least p-value reported, because the approximation of the tail is no longer accurate
_SYMMETRIC = 1.6e-5  # skewness below which a Pearson III is a normal law, to the precision of a float64
_MAX_GROUPS = 200  # most groups of equal or neighbouring values in the null distribution of the distance


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


_ROUNDING = 1e-9  # share of the largest variance, below which a variance may be a rounding error


def calibration_change(before: tuple[np.ndarray, np.ndarray], now: tuple[np.ndarray, np.ndarray]) -> Change:
    """Test for a change of calibration by the χ² of (y − p, (y − p)·p), with two degrees of freedom.

    It is the score test of a change in the intercept and slope of a logistic recalibration, and includes
    Spiegelhalter's (y − p)(1 − 2p) as a direction. `figure` is χ². A sample is (calibrated confidence, labels).

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
    if not (np.isfinite(variance).all() and variance.any()):
        return Change(0.0, 1.0)
    along, directions = np.linalg.eigh(variance)
    kept = along > _ROUNDING * along.max()  # if p does not vary, there is one direction, and rounding errors beside it
    figure = float(((gap @ directions)[kept] ** 2 / along[kept]).sum())
    return Change(figure, float(chdtrc(kept.sum(), figure)))


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
    """Return the traces of K, K² and K³, for the covariance K of mid-rank cumulative shares of groups `weight` (G,).

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
