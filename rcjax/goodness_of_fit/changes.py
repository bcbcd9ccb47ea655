"""Has something changed between two samples? Tests with p-values in closed form, small ones too.

A check that looks every week compares p-values with a thousandth, which permutations reach only by the ten thousand.
Here the law of each statistic, where nothing has changed, is a Pearson III with its first three moments: of a
difference of means these are the moments of both samples together (as of a permutation test: Mielke, Berry & Johnson
1976, Communications in Statistics 5(14)), of a quadratic form in nearly normal sums those of Σ λ χ².
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

#: The least p-value that is told: no approximation of a tail says more.
_LEAST = 1e-16

#: Groups of equal or neighbouring values that the law of the distance is computed with.
_MOST_GROUPS = 200


class Change(NamedTuple):
    """A change between two samples."""

    figure: float
    """Its size; NaN where a sample is too small to tell."""
    p_value: float
    """How likely chance alone makes one as large."""


class Mean(NamedTuple):
    """What a sample tells of a mean: of a log tuned on, as the tuning promised it, or of a fresh one."""

    mean: float
    variance: float
    """Of one query."""
    third: float
    """Third central moment of one query."""
    n: int
    """Queries."""

    @classmethod
    def of(cls, values: np.ndarray, mean: float | None = None, n: int | None = None) -> Mean:
        """The mean of a sample.

        Args:
            values: (m,) the sample.
            mean: another mean, where one is known better than by the sample.
            n: how many queries tell it, where the sample is a part of them.
        """
        own = float(values.mean())
        residual = values - own
        moments = float((residual**2).mean()), float((residual**3).mean())
        return cls(own if mean is None else mean, *moments, n or len(values))

    def and_(self, other: Mean) -> Mean:
        """Both samples together, as where nothing has changed."""
        n, shares = self.n + other.n, (self.n, other.n)
        mean = (self.n * self.mean + other.n * other.mean) / n
        second = third = 0.0
        for one, share in zip((self, other), shares, strict=True):
            gap = one.mean - mean
            second += share / n * (one.variance + gap**2)
            third += share / n * (one.third + 3 * gap * one.variance + gap**3)
        return Mean(mean, second, third, n)


def mean_rise(before: Mean, now: Mean) -> tuple[float, float]:
    """(standard error of the difference of two means, one-sided p-value of a rise so large).

    The variance is that of both samples together, as where nothing has changed (the score test): a sample without any
    error has no variance of its own. The skewness makes the tail of a few queries right.

    >>> rare, common = Mean.of(np.arange(300) % 20 == 0), Mean.of(np.arange(100) % 8 == 0)
    >>> se, p_value = mean_rise(rare, common)
    >>> round(se, 3), round(p_value, 3)
    (0.029, 0.006)
    """
    both = before.and_(now)
    se = math.sqrt(both.variance * (1 / before.n + 1 / now.n))
    gap = now.mean - before.mean
    if se <= 1e-12 * max(abs(both.mean), 1e-300):
        return se, float(gap <= 1e-9 * abs(both.mean))
    skewness = both.third * (1 / now.n**2 - 1 / before.n**2) / se**3
    return se, _tail(gap / se, skewness)


def excess(now: Mean, limit: float) -> tuple[float, float]:
    """(standard error of a mean, one-sided p-value of its being so far above a limit, which is no sample).

    >>> se, p_value = excess(Mean.of(np.arange(100) % 8 == 0), 0.05)
    >>> round(se, 3), round(p_value, 3)
    (0.035, 0.016)
    """
    variance = now.variance + (now.mean - limit) ** 2  # as where the limit is the mean
    se = math.sqrt(variance / now.n)
    if se <= 1e-12 * max(abs(limit), abs(now.mean), 1e-300):
        return se, float(now.mean <= limit)
    third = now.third + 3 * (now.mean - limit) * now.variance + (now.mean - limit) ** 3
    return se, _tail((now.mean - limit) / se, third / now.n**2 / se**3)


def _tail(z: float, skewness: float) -> float:
    """The probability of more than z of a Pearson III of mean 0 and variance 1."""
    from scipy.stats import pearson3

    return float(np.clip(pearson3.sf(z, skewness), _LEAST, 1.0))


def calibration_change(before: tuple[np.ndarray, np.ndarray], now: tuple[np.ndarray, np.ndarray]) -> Change:
    """Whether confidences mean something else than they did: the χ² of (y − p, (y − p)·p), two degrees of freedom.

    That is the score test of a change of a logistic recalibration, intercept and slope; Spiegelhalter's
    (y − p)(1 − 2p) is one direction of the two. `figure` is χ².

    Args:
        before, now: calibrated confidences (n,), and whether the answers are right (n,).

    >>> rng = np.random.default_rng(0)
    >>> p = rng.random((2, 400))
    >>> y = rng.random((2, 400)) < p
    >>> same, surer = (calibration_change((p[0], y[0]), (q, y[1])) for q in (p[1], np.sqrt(p[1])))
    >>> same.p_value > 0.05, surer.p_value < 1e-3
    (True, True)
    """
    from scipy.stats import chi2

    scores = [np.stack([y - p, (y - p) * p], -1) for p, y in (before, now)]
    sizes = [len(one) for one in scores]
    every = np.concatenate(scores)
    gap = scores[1].mean(0) - scores[0].mean(0)
    variance = np.cov(every.T) * (1 / sizes[0] + 1 / sizes[1])
    rank = int(np.linalg.matrix_rank(variance, hermitian=True)) if np.isfinite(variance).all() else 0
    if rank == 0:
        return Change(0.0, 1.0)
    figure = float(gap @ np.linalg.pinv(variance, hermitian=True) @ gap)
    return Change(figure, float(chi2.sf(figure, rank)))


def distribution_change(before: np.ndarray, now: np.ndarray) -> Change:
    """Whether values are distributed as they were: √∫ (F − G)² dH, H being the distribution of both (Cramér–von Mises).

    By mid-ranks: of values that tie, half lie below. Where nothing has changed, nm/(n + m) ∫ (F − G)² dH is a sum of
    λ χ², whose λ are the eigenvalues of the covariance of the cumulative shares, ties and all: three traces tell its
    moments.

    Args:
        before: (n,) values.
        now: (m,) values.

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
    """Of K, K² and K³, K being the covariance of mid-rank cumulative shares, for groups with shares (G,) of all values.

    Of groups i ≤ j with F below their middles it is F_i − F_i F_j, w_i/4 less where i = j; √w weighs rows and columns.

    >>> np.round(_traces(np.full(100, 0.01)), 4).tolist()  # of values that never tie 1/6, 1/90, 1/945
    [0.1642, 0.0111, 0.0011]
    """
    if len(weight) > _MOST_GROUPS:  # neighbours together
        edges = np.floor((weight.cumsum() - weight / 2) * _MOST_GROUPS).astype(int)
        weight = np.bincount(edges, weight)
    weight = weight[weight > 0]
    below, root = weight.cumsum() - weight / 2, np.sqrt(weight)
    covariance = np.minimum.outer(below, below) - np.outer(below, below) - np.diag(weight / 4)
    kernel = root[:, None] * covariance * root
    return float(kernel.trace()), float((kernel**2).sum()), float(((kernel @ kernel) * kernel).sum())
