"""How far confidences are from the shares of right answers, in ten bins."""

import jax
import jax.numpy as jnp
import numpy as np


def expected_calibration_error(confidence: jax.Array, correct: jax.Array) -> jax.Array:
    """Expected calibration error, in [0, 1], over ten bins whose edges are the deciles of the confidence.

    confidence (n,), correct (n,). The share-weighted mean of |accuracy − mean confidence| over the bins
    [edge, next edge); the last bin is closed. Section 5.1 of the paper.

    >>> float(expected_calibration_error(jnp.array([0.5, 0.5, 0.5, 0.5]), jnp.array([1, 0, 1, 0])))
    0.0
    """
    confidence, correct = jnp.asarray(confidence), jnp.asarray(correct)
    gap = jnp.abs(decile_bins(confidence) @ (correct.astype(confidence.dtype) - confidence))
    return gap.sum() / confidence.shape[0]


def decile_bins(confidence: jax.Array, present: jax.Array | None = None) -> jax.Array:
    """(10, n) which of ten bins each confidence (n,) is in, as 0 and 1: edges on the deciles, [edge, next edge).

    The last bin is closed; where deciles are equal, the bins between them are empty. What is not `present` (n,) is in
    no bin.
    """
    present = jnp.ones(confidence.shape, bool) if present is None else present
    # Not jnp.percentile, whose rounding can part a decile that is a data point from that point.
    tenths = np.arange(11) * (present.sum() - 1)
    low, rest = tenths // 10, tenths % 10
    ordered = jnp.sort(jnp.where(present, confidence, jnp.inf))
    upper = ordered[low + (rest > 0)]
    edges = ordered[low] + rest.astype(confidence.dtype) / 10 * (upper - ordered[low])
    lower, upper = edges[:-1, None], edges[1:, None].at[-1].set(jnp.inf)
    return ((confidence >= lower) & (confidence < upper) & present).astype(confidence.dtype)


def calibration_error(confidence: np.ndarray, correct: np.ndarray) -> float:
    """`rcjax.model.expected_calibration_error` in numpy, which need not be compiled for every number of answers.

    >>> calibration_error(np.array([0.5, 0.5, 0.5, 0.5]), np.array([1, 0, 1, 0]))
    0.0
    """
    gaps = np.bincount(tenths(confidence), weights=np.asarray(correct, float) - confidence)
    return float(np.abs(gaps).sum() / len(confidence))


def tenths(confidence: np.ndarray) -> np.ndarray:
    """(n,) the number of the bin of each confidence (n,), as of `decile_bins`."""
    low, rest = np.divmod(np.arange(1, 10) * (len(confidence) - 1), 10)
    ordered = np.sort(confidence)
    edges = ordered[low] + rest.astype(ordered.dtype) / 10 * (ordered[low + (rest > 0)] - ordered[low])
    return np.searchsorted(edges, confidence, side="right")
