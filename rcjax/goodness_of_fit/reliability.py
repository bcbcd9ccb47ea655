"""Calibration on a log: does a confidence of 80 % mean that 80 % are right, and does it tell right from wrong?"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rcjax._base.normal_law import half_width
from rcjax.logs.columns import are_scores
from rcjax.model.calibration import mean_gap, tenths


class CalibrationTest(NamedTuple):
    """The calibration of one model on a log."""

    error: float  # expected calibration error, in [0, 1]
    by_chance: float  # what it would be on average, were every confidence true, with so many queries
    p_value: float  # of the error, were every confidence true


def calibration_test(
    confidence: np.ndarray, correct: np.ndarray, rng: np.random.Generator, replicates: int = 1000
) -> CalibrationTest:
    """Is the expected calibration error of one model more than chance makes it?

    Ten bins of n/10 queries have an error even where every confidence is true: about 6 % with 300 queries. Replicates
    draw right and wrong answers by the confidences themselves; of scores, which vary less, they turn the sign of each
    gap between score and confidence at random (the wild bootstrap: Liu 1988, Annals of Statistics 16(4)). p =
    (exceedances + ½)/(replicates + 1). Meant for queries that the calibrator did not see: on its own it errs less.

    Args:
        confidence: (n,) calibrated.
        correct: (n,) whether the answer is right; floats are scores.
        rng: for the replicates.
        replicates: how many.

    >>> rng = np.random.default_rng(0)
    >>> confidence = rng.random(300)
    >>> test = calibration_test(confidence, rng.random(300) < confidence, rng)
    >>> bool(test.p_value > 0.05), bool(0.03 < test.by_chance < 0.07)
    (True, True)
    """
    bins, n = tenths(confidence), len(confidence)
    gap = np.asarray(correct, float) - confidence
    signs = np.issubdtype(correct.dtype, np.floating)
    drawn = (rng.random(n) for _ in range(replicates))
    gaps = (np.where(u < 0.5, gap, -gap) if signs else (u < confidence) - confidence for u in drawn)
    chance = np.array([mean_gap(bins, one) for one in gaps])
    error = mean_gap(bins, gap)
    # What equals the error apart from rounding exceeds it.
    exceedances = (chance >= error * (1 - 1e-9)).sum()
    return CalibrationTest(error, float(chance.mean()), float((exceedances + 0.5) / (replicates + 1)))


def accuracy_p_value(expected: float, correct: np.ndarray, trained_on: int) -> float:
    """p-value, two-sided, of the accuracy on a log against that expected: is the log as hard as what was learnt from?

    correct (n,), or outcomes that stand for it where some have no label.

    By the normal law of the difference, which counts the sampling of these n queries and that of the
    `trained_on` queries which the expectation comes from.

    >>> round(accuracy_p_value(0.5, np.arange(100) < 60, 100), 3)  # ten points, over √(2 · 0.5²/100)
    0.157
    """
    is_label = np.isin(correct, (0, 1)).all()
    variance = expected * (1 - expected) if is_label else float(np.var(correct))
    spread = math.sqrt(variance * (1 / len(correct) + 1 / trained_on))
    gap = abs(float(np.mean(correct)) - expected)
    return math.erfc(gap / spread / math.sqrt(2)) if spread > 0 else float(gap == 0)


def wilson_interval(share: ArrayLike, n: int | np.ndarray, level: float = 0.9) -> np.ndarray:
    """(…, 2) interval for a probability of which the share (…) was seen in n trials (Wilson 1927).

    >>> wilson_interval(0.0, 50).round(4).tolist()
    [0.0, 0.0513]
    """
    z = half_width(level)
    share = np.asarray(share, float)
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z * np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2) / (1 + z**2 / n)
    return np.clip(np.stack([middle - reach, middle + reach], axis=-1), 0.0, 1.0)


def reliability_curve(confidence: np.ndarray, correct: np.ndarray) -> dict[str, np.ndarray]:
    """Accuracy against confidence, in the ten bins of the calibration error: one row for each bin that is not empty.

    confidence (n,), correct (n,). Keys: `confidence` and `accuracy`, means of the bin, `low` and `high`, the 90 %
    interval of the accuracy (Wilson 1927; of scores with as many queries as, all right or wrong, would vary as much),
    and `n`, its queries.

    >>> curve = reliability_curve(np.array([0.2, 0.2, 0.9, 0.9]), np.array([0, 0, 1, 0]))
    >>> curve["confidence"].round(2).tolist(), curve["accuracy"].tolist()
    ([0.2, 0.9], [0.0, 0.5])
    """
    bins = (tenths(np.asarray(confidence)) == np.arange(10)[:, None]).astype(float)
    n = bins.sum(1)
    bins, n = bins[n > 0], n[n > 0]
    score = np.asarray(correct, float)
    share = bins @ score / n
    size = n
    if are_scores(score):
        spread = bins @ score**2 / n - share**2
        size = n * np.divide(share * (1 - share), spread, out=np.ones(len(n)), where=spread > 1e-9)
    low, high = wilson_interval(share, size).T
    return {
        "confidence": bins @ np.asarray(confidence, float) / n,
        "accuracy": share,
        "low": low,
        "high": high,
        "n": n,
    }


def separation(confidence: np.ndarray, correct: np.ndarray) -> float:
    """P(a right answer is more confident than a wrong one), ties counting half: the area under the ROC curve.

    confidence (n,), correct (n,). ½ is a confidence that tells nothing; NaN if all are right, or all wrong. An
    answer with a score is right by that share, and wrong by the rest.

    >>> separation(np.array([0.2, 0.5, 0.9]), np.array([0, 1, 1]))
    1.0
    """
    _, inverse, count = np.unique(confidence, return_inverse=True, return_counts=True)
    rights = np.bincount(inverse, weights=np.asarray(correct, float), minlength=len(count))
    wrongs = count - rights
    pairs = rights.sum() * wrongs.sum()
    return float(rights @ (wrongs.cumsum() - wrongs / 2) / pairs) if pairs else float("nan")


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
