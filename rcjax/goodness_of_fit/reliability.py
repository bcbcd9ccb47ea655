"""Calibration on a log: does a confidence of 80 % mean that 80 % are right, and does it tell right from wrong?"""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rcjax.goodness_of_fit.bootstrap import p_value
from rcjax.logs.columns import are_scores
from rcjax.model.calibration import decile_bins, tenths


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CalibrationTest:
    """The calibration of one model on a log. A leading axis batches it over models."""

    error: jax.Array  # () expected calibration error, in [0, 1]
    by_chance: jax.Array  # () what it would be on average, were every confidence true, with so many queries
    p_value: jax.Array  # () of the error, were every confidence true


@partial(jax.jit, static_argnames="replicates")
def calibration_test(
    confidence: jax.Array,
    correct: jax.Array,
    key: jax.Array,
    replicates: int = 1000,
    present: jax.Array | None = None,
) -> CalibrationTest:
    """Is the expected calibration error more than chance makes it? For one model; `vmap` it over models.

    Ten bins of n/10 queries have an error even where every confidence is true: about 6 % with 300 queries. Replicates
    draw right and wrong answers by the confidences themselves; of scores, which vary less, they turn the sign of each
    gap between score and confidence at random (the wild bootstrap: Liu 1988, Annals of Statistics 16(4)). p =
    (exceedances + ½)/(replicates + 1). Meant for queries that the calibrator did not see: on its own it errs less.

    Args:
        confidence: (n,) calibrated.
        correct: (n,) whether the answer is right; floats are scores.
        key: of JAX, for the replicates.
        replicates: how many.
        present: (n,) whether the query counts; by default all do.

    >>> draw, key = jax.random.split(jax.random.key(0))
    >>> confidence = jax.random.uniform(draw, (300,))
    >>> test = calibration_test(confidence, jax.random.bernoulli(key, confidence), jax.random.key(1))
    >>> bool(test.p_value > 0.05), bool(0.03 < test.by_chance < 0.07)
    (True, True)
    """
    present = jnp.ones(confidence.shape, bool) if present is None else present
    bins, n = decile_bins(confidence, present), present.sum()
    # Queries first: what is drawn for one does not depend on how many there are.
    drawn = jax.random.uniform(key, (*confidence.shape, replicates), confidence.dtype)
    gap = correct.astype(confidence.dtype) - confidence
    if jnp.issubdtype(correct.dtype, jnp.floating):
        gaps = jnp.where(drawn < 0.5, gap[:, None], -gap[:, None])
    else:
        gaps = (drawn < confidence[:, None]) - confidence[:, None]
    chance = jnp.abs(bins @ gaps).sum(0) / n
    error = jnp.abs(bins @ gap).sum() / n
    # What equals the error apart from rounding exceeds it.
    return CalibrationTest(error, chance.mean(), p_value(error * (1 - 8 * jnp.finfo(error.dtype).eps), chance))


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
    z, size = 1.644854, n
    if are_scores(score):
        spread = bins @ score**2 / n - share**2
        size = n * np.divide(share * (1 - share), spread, out=np.ones(len(n)), where=spread > 1e-9)
    middle = (share + z * z / (2 * size)) / (1 + z * z / size)
    reach = z / (1 + z * z / size) * np.sqrt(share * (1 - share) / size + z * z / (4 * size * size))
    return {
        "confidence": bins @ np.asarray(confidence, float) / n,
        "accuracy": share,
        "low": np.maximum(middle - reach, 0.0),
        "high": np.minimum(middle + reach, 1.0),
        "n": n,
    }


def accuracy_above(confidence: np.ndarray, correct: np.ndarray) -> dict[str, np.ndarray]:
    """Accuracy of the answers above a confidence (appendix E of the paper), at every value the confidence takes.

    confidence (n,), correct (n,). Keys: `confidence`, increasing, with `share` and `accuracy` of the answers at least
    as confident.

    >>> curve = accuracy_above(np.array([0.2, 0.5, 0.9]), np.array([0, 1, 1]))
    >>> curve["share"].round(2).tolist(), curve["accuracy"].round(2).tolist()
    ([1.0, 0.67, 0.33], [0.67, 1.0, 1.0])
    """
    values, inverse = np.unique(confidence, return_inverse=True)
    number = np.bincount(inverse)[::-1].cumsum()[::-1]
    right = np.bincount(inverse, weights=np.asarray(correct, float))[::-1].cumsum()[::-1]
    return {"confidence": values, "share": number / len(confidence), "accuracy": right / number}


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
