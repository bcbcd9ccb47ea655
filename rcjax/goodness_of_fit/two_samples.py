"""Do two logs come from one source? Permutation tests for the confidences and the calibration of a model.

Where nothing has changed, it does not matter which queries are called old and which new: shuffling the labels shows
what chance does, ties and all (Anderson 1962, "On the distribution of the two-sample Cramér–von Mises criterion", whose
tables are for continuous distributions). Everything here is numpy.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rcjax.logs.columns import are_scores
from rcjax.model.calibration import tenths

_ROWS = 1000  # of labels that are worked on at a time, so that many permutations take time, not memory

_TOLERANCE = 1e-4  # of a statistic, in single precision: what equals it apart from rounding exceeds it


class SampleComparison(NamedTuple):
    """One model on two samples: distances, and the p-values of their permutations."""

    distance: float  # √∫ (F − G)² dH of the raw confidences, H being the distribution of both together
    distance_p: float
    excess_p: float  # of the change in the mean of `brier_excess`
    curve_p: float  # of the change of the calibration curve: mean residuals in ten bins


def brier_excess(confidence: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """(n,) by how much (y − p)² is above what is expected of it if p is true: (y − p)(1 − 2p).

    Its sum is the numerator of Spiegelhalter's z; its mean is how much worse the Brier score is than promised.

    >>> brier_excess(np.array([0.9, 0.9]), np.array([1, 0])).round(2).tolist()
    [-0.08, 0.72]
    """
    confidence = np.asarray(confidence, float)
    return (correct - confidence) * (1 - 2 * confidence)


def spiegelhalter_z(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Spiegelhalter's z: standard normal if every confidence is the probability of being right; NaN if it cannot vary.

    confidence (n,), correct (n,), where some are scores with the variance that they show. Spiegelhalter 1986,
    "Probabilistic prediction in patient management and clinical trials", Statistics in Medicine 5. Above 0: surer than
    right.

    >>> round(spiegelhalter_z(np.full(100, 0.9), np.arange(100) < 80), 2)
    3.33
    """
    p = np.asarray(confidence, float)
    y = np.asarray(correct, float)
    variance = ((1 - 2 * p) ** 2 * ((y - p) ** 2 if are_scores(y) else p * (1 - p))).sum()
    return float(brier_excess(p, correct).sum() / np.sqrt(variance)) if variance > 0 else float("nan")


def shuffled_labels(first: int, second: int, permutations: int, seed: int) -> np.ndarray:
    """(1 + permutations, first + second), 1 in the first sample and 0 in the second; row 0 is as things are.

    Args:
        first, second: the sizes of the samples.
        permutations: how many.
        seed: of the permutations.

    >>> labels = shuffled_labels(2, 3, 4, seed=0)
    >>> labels[0].tolist(), labels.sum(1).tolist()
    ([1, 1, 0, 0, 0], [2, 2, 2, 2, 2])
    """
    labels = np.zeros((1 + permutations, first + second), np.uint8)
    labels[:, :first] = 1
    np.random.default_rng(seed).permuted(labels[1:], axis=1, out=labels[1:])
    return labels


def compare(logprob: np.ndarray, confidence: np.ndarray, correct: np.ndarray, labels: np.ndarray) -> SampleComparison:
    """Compare one model on two samples, put one after the other: N answers in all.

    The bins of the calibration curve are the deciles of both samples together. p = (1 + permutations that reach the
    statistic)/(1 + P), which is at most α with a probability of at most α.

    Args:
        logprob: (N,) raw log-probabilities.
        confidence: (N,) calibrated.
        correct: (N,) whether the answer is right.
        labels: (1 + P, N) of `shuffled_labels`.
    """
    residual = np.asarray(correct, float) - confidence
    values = np.column_stack(
        [brier_excess(confidence, correct), residual[:, None] * (tenths(confidence)[:, None] == np.arange(10))]
    )
    blocks = (labels[start : start + _ROWS].astype(np.float32) for start in range(0, len(labels), _ROWS))
    statistics = np.concatenate([_statistics(logprob, values, block) for block in blocks], axis=1)
    return SampleComparison(float(np.sqrt(statistics[0, 0])), *map(_p_value, statistics))


def _statistics(logprob: np.ndarray, values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(3, P) the distance, the change in the mean of `values` (N, 1 + bins) and that of the bins, of labels (P, N)."""
    first = labels[0].sum()
    sums, total = labels @ values.astype(np.float32), values.sum(0)
    changes = np.abs(sums / first - (total - sums) / (labels.shape[1] - first))
    return np.stack([_distances(logprob, labels), changes[:, 0], changes[:, 1:].sum(1)])


def _distances(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(P,) ∫ (F − G)² dH, by mid-ranks: of values that tie, half lie below."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    count = np.diff(ends, prepend=-1)
    until = np.cumsum(labels[:, order], axis=1, dtype=np.float32)[:, ends]
    below = np.concatenate([np.zeros((len(labels), 1), np.float32), until[:, :-1]], axis=1)
    size, everyone = len(values), np.cumsum(count)
    first = float(labels[0].sum())
    pooled = (everyone - count / 2) / size
    gap = (until + below) / (2 * first) - pooled.astype(np.float32)
    # F − G = (F − H)·N/n, as H is made of both.
    return (gap**2 @ (count / size).astype(np.float32)) * (size / (size - first)) ** 2


def _p_value(statistics: np.ndarray) -> float:
    """Of the first, among them all."""
    reached = statistics >= statistics[0] * (1 - _TOLERANCE) - np.finfo(np.float32).eps ** 2
    return float(reached.mean())


def holm(p_values: Sequence[float]) -> np.ndarray:
    """p-values adjusted for their number: those below α are all true alarms with a probability of at least 1 − α.

    Holm 1979, "A simple sequentially rejective multiple test procedure"; the tests may depend on each other. NaN, of a
    test that says nothing, stays and does not count.

    >>> holm([0.01, 0.5, 0.02]).round(2).tolist()
    [0.03, 0.5, 0.04]
    """
    p = np.asarray(p_values, float)
    order = np.argsort(p)  # NaN last
    count = int(np.isfinite(p).sum())
    adjusted = np.full(len(p), np.nan)
    factors = count - np.arange(count)
    adjusted[order[:count]] = np.minimum(np.maximum.accumulate(factors * p[order[:count]]), 1.0)
    return adjusted
