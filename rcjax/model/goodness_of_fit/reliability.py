"""The calibration of a model on a log: whether 80 % of its answers are right at a confidence of 80 %."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rcjax._base.figures import interval_half_width
from rcjax.logs.columns import are_scores
from rcjax.model.calibration import binned_gap, decile_bins


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

    >>> rng = np.random.default_rng(1)
    >>> confidence = rng.random(300)
    >>> test = calibration_test(confidence, rng.random(300) < confidence, rng)
    >>> bool(test.p_value > 0.05), bool(0.03 < test.by_chance < 0.07)
    (True, True)
    """
    order = np.lexsort((correct, confidence))  # so that the draws do not depend on the order of the queries
    confidence, correct = np.asarray(confidence)[order], np.asarray(correct)[order]
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
