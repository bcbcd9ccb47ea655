"""Stated values: raw confidences that a model gives repeatedly, as 0.9 or four votes of five, and their calibration.

A probability computed from tokens takes as many values as there are answers; a verbalised confidence, or a share of
votes, takes a few. With many answers per value, the accuracy at each value beats a curve through all values; with a
handful the curve is better. Each estimate is therefore the mean of both, in which the curve counts as `CURVE` answers.
Estimates are made monotone (Ayer et al. 1955, "An empirical distribution function for sampling with incomplete
information").

A value is stated if more answers share it than lie beside it. A model states its confidences if 15 % of its
answers are at such values. Computed probabilities tie too, if rounded to single precision or to percents, but then as
many answers lie beside a value as at it.

Answers without a confidence count as a value below all others, however few they are. Its estimate is their accuracy.
Answers with a lower estimate are pooled with them, and placed just above.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from rcjax._core.numerics import divide
from rcjax.policy.decisions import MIN_RATIO, NO_CONFIDENCE, STATED_TOLERANCE

#: Array sizes for the values of a model; the last size is the greatest number of values.
SIZES = (4, 8, 16, 32)

#: Answers that the curve counts for at each value; 5 and 20 do about as well on held-out answers.
CURVE = 10.0

_POOLINGS = 30  # iterations of `_pool_accuracy`, more than needed

#: (least number of answers at a value, least share of answers, radius within which other answers lie beside it).
#: Values with few answers need a wide radius free of others.
_LIGHT, _HEAVY = (3, 0.01, 0.02), (5, 0.05, 1e-3)

_MIN_TOGETHER = 0.15  # least share of answers at stated values; with less, a mixture of betas suffices

_MAX_OTHERS = 0.1  # greatest share of answers at no stated value, for certainty to count as a stated value


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StatedValues:
    """The values that one model states, by rising raw confidence, padded with NaN."""

    logprob: jax.Array  # (V,) raw log-probability
    confidence: jax.Array  # (V,) calibrated confidence, monotone in `logprob`

    def matches(self, logprob: ArrayLike) -> jax.Array:
        """Mark the value that a raw log-probability is, if any: (…, V) bool.

        >>> stated = StatedValues(jnp.log(jnp.array([0.5, 0.9])), jnp.array([0.4, 0.8]))
        >>> stated.matches(jnp.log(jnp.array([0.9001, 0.7]))).tolist()
        [[False, True], [False, False]]
        """
        logprob = jnp.asarray(logprob)[..., None]
        none = self.logprob == NO_CONFIDENCE
        distance = jnp.abs(jnp.exp(logprob) - jnp.exp(self.logprob))
        distance = jnp.where(jnp.isnan(distance) | none, jnp.inf, distance)
        distance = jnp.where((logprob == NO_CONFIDENCE) & none.any(-1), jnp.where(none, 0.0, jnp.inf), distance)
        nearest = jnp.argmin(distance, axis=-1)[..., None] == np.arange(self.logprob.shape[-1])
        return nearest & (distance <= STATED_TOLERANCE)

    def amend(self, logprob: ArrayLike, curve: jax.Array) -> jax.Array:
        """Replace the curve by the estimates at stated values, and clip it between neighbouring estimates; elementwise.

        `curve` is the calibrated confidence by the curve through all values.

        >>> stated = StatedValues(jnp.log(jnp.array([0.5, 0.9])), jnp.array([0.4, 0.8]))
        >>> [round(float(x), 2) for x in stated.amend(jnp.log(jnp.array([0.5, 0.7, 0.7])), jnp.array([0.1, 0.6, 0.9]))]
        [0.4, 0.6, 0.8]
        """
        matched, stated = self.matches(logprob), ~(jnp.isnan(self.logprob) | (self.logprob == NO_CONFIDENCE))
        raw, values = jnp.exp(jnp.asarray(logprob))[..., None], jnp.exp(self.logprob)
        most, least = (jnp.where(stated, self.confidence, other) for other in (-jnp.inf, jnp.inf))
        rising = most.argmax(-1) >= least.argmin(-1)
        lower = jnp.where(rising, values < raw, values > raw) & stated
        upper = jnp.where(rising, values > raw, values < raw) & stated
        low = jnp.where(lower, self.confidence, 0.0).max(-1)
        high = jnp.where(upper, self.confidence, 1.0).min(-1)
        estimated = jnp.where(matched, self.confidence, 0.0).sum(-1)
        amended = jnp.where(matched.any(-1), estimated, jnp.clip(curve, low, high))
        return jnp.where(jnp.asarray(logprob) == NO_CONFIDENCE, amended, jnp.maximum(amended, self.lower_bound()))

    def lower_bound(self) -> jax.Array:
        """Return the lower bound of the calibrated confidence of answers that have a raw confidence: (…)."""
        none = self.logprob == NO_CONFIDENCE
        return jnp.minimum(MIN_RATIO * jnp.where(none, self.confidence, 0.0).sum(-1), 1.0)

    def raw_and_calibrated(self) -> tuple[tuple[float, float], ...]:
        """Return (raw, calibrated) confidence of each value of one model, the inverse of `stack_stated_values`."""
        rows = zip(np.asarray(self.logprob, float), np.asarray(self.confidence, float), strict=True)
        values = ((raw, value) for raw, value in rows if not (np.isnan(raw) or raw == NO_CONFIDENCE))
        return tuple((float(np.exp(raw)), float(value)) for raw, value in values)

    def no_confidence(self) -> float | None:
        """Return the calibrated confidence of one model's answers without a raw confidence; None if there are none."""
        values = np.asarray(self.confidence, float)[np.asarray(self.logprob) == NO_CONFIDENCE]
        return float(values[0]) if len(values) else None


def find_stated_logprobs(logprob: ArrayLike, answered: ArrayLike) -> np.ndarray | None:
    """Find the values that k models state, rising raw log-probabilities padded with NaN: (k, V); None: none.

    A confidence of 1 may be a rounded computed probability. It counts as a stated value on two conditions. First, the
    model states a value below 1 too, or is certain of all answers. Second, at most a tenth of its answers are neither
    certain nor at a stated value.

    Args:
        logprob: (n, k) raw log-probability.
        answered: (n, k) whether there is an answer.

    >>> votes = np.log(np.array([[0.6, 0.61], [0.8, 0.72], [0.6, 0.83], [0.6, 0.94], [0.8, 0.95], [0.8, 0.96]]))
    >>> np.exp(find_stated_logprobs(votes, np.ones((6, 2), bool))).round(2).tolist()
    [[0.6, 0.8, nan, nan], [nan, nan, nan, nan]]
    """
    columns = zip(np.asarray(logprob, float).T, np.asarray(answered, bool).T, strict=True)
    values = [_stated_by_model(column[is_answered]) for column, is_answered in columns]
    return pad_rows(values, np.nan) if any(map(len, values)) else None


def pad_rows(rows: Sequence[Any], padding: float, size: int | None = None) -> np.ndarray:
    """Pad rows of different lengths with a number, to `size` or else to one of `SIZES`: (k, V).

    >>> pad_rows([[0.5], []], 0.0).tolist()
    [[0.5, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """
    size = next(places for places in SIZES if places >= max(map(len, rows))) if size is None else size
    return np.stack([np.pad(np.asarray(row, float), (0, size - len(row)), constant_values=padding) for row in rows])


def stack_stated_values(
    rows: Sequence[Sequence[tuple[float, float]]], dtype: Any, no_confidence: Sequence[float | None] = ()
) -> StatedValues | None:
    """Build the stated values of k models from pairs of raw and calibrated confidence: (k, V); None: no model has any.

    Args:
        rows: pairs of each model.
        dtype: type of the arrays.
        no_confidence: each model's calibrated confidence of answers without a raw confidence; None: there are none.

    >>> stack_stated_values([((0.5, 0.4), (0.9, 0.8)), ()], float).confidence.tolist()
    [[0.4, 0.8, nan, nan], [nan, nan, nan, nan]]
    """
    with np.errstate(divide="ignore"):
        values = [[(float(np.log(raw)), value) for raw, value in row] for row in rows]
    for row, value in zip(values, no_confidence, strict=False):
        row += [] if value is None else [(NO_CONFIDENCE, value)]
    if not any(values):
        return None
    columns = ([[pair[place] for pair in sorted(row)] for row in values] for place in (0, 1))
    return StatedValues(*(pad_rows(rows, np.nan).astype(dtype) for rows in columns))  # pyright: ignore[reportArgumentType]


def _stated_by_model(logprob: np.ndarray) -> np.ndarray:
    """Find the values that one model states among its log-probabilities (m,): at most the most frequent `SIZES[-1]`."""
    no_confidence, logprob = logprob[logprob == NO_CONFIDENCE][:1], logprob[logprob != NO_CONFIDENCE]
    values, count = np.unique(logprob, return_counts=True)
    if count.max(initial=0) < min(_LIGHT[0], _HEAVY[0]):  # typical of computed confidences
        return no_confidence
    raw = np.exp(values)
    through = np.concatenate([[0], np.cumsum(count)])
    shared = np.zeros(len(values), bool)
    for least, share, radius in (_LIGHT, _HEAVY):
        low, high = np.searchsorted(raw, raw - radius, "left"), np.searchsorted(raw, raw + radius, "right")
        beside = through[high] - through[low] - count
        shared |= (count >= max(least, share * len(logprob))) & (count > beside)
    certain = ~(np.isfinite(values) & (values < 0))
    share_of_others = 1 - count[shared | certain].sum() / max(len(logprob), 1)
    is_rounded = ~(shared & (values < 0)).any() and not certain.all()  # computed confidences near 1 tie at 1 alone
    if share_of_others > _MAX_OTHERS or is_rounded:
        shared &= ~certain
    if count[shared].sum() < _MIN_TOGETHER * len(logprob):
        return no_confidence
    stated = np.flatnonzero(shared)
    heaviest = stated[np.argsort(-count[stated], kind="stable")[: SIZES[-1] - len(no_confidence)]]
    return np.sort(np.concatenate([no_confidence, values[heaviest]]))


def estimate_stated(
    logprob: jax.Array,
    weight: jax.Array,
    right: jax.Array,
    values: jax.Array,
    curve: Callable[[jax.Array], jax.Array],
    slope: jax.Array,
) -> StatedValues:
    """Estimate the calibrated confidence of each stated value of one model.

    Args:
        logprob: (n,) raw log-probability.
        weight: (n,) weight of each answer.
        right: (n,) weight times outcome.
        values: (V,) raw log-probabilities of the values, rising, padded with NaN.
        curve: function from raw log-probabilities to calibrated confidence by the regression.
        slope: () slope of the regression, whose sign the estimates follow.
    """
    by_curve = curve(jnp.where(jnp.isnan(values), -1.0, values))
    stated = StatedValues(values, by_curve)
    matched = stated.matches(logprob).astype(weight.dtype)
    answers, correct = jnp.stack([weight @ matched, right @ matched])
    none, falling = values == NO_CONFIDENCE, slope < 0
    stated_values = ~(jnp.isnan(values) | none)
    mean = divide(correct + CURVE * by_curve, answers + CURVE)
    # Padding holds the largest value with almost no weight, so that it does not lower the last estimate.
    turned = jnp.where(stated_values, jnp.where(falling, -mean, mean), 1.0)
    monotone = isotonic(turned, jnp.where(stated_values, answers + CURVE, 1e-9))
    estimates = jnp.where(stated_values, jnp.where(falling, -monotone, monotone), jnp.nan)
    others = StatedValues(jnp.where(none, jnp.nan, values), estimates).amend(logprob, curve(logprob))
    no_confidence = jnp.where(none, answers, 0.0).sum(), jnp.where(none, correct, 0.0).sum()
    level = _pool_accuracy(no_confidence, others, jnp.where(logprob == NO_CONFIDENCE, 0.0, weight))
    return StatedValues(values, jnp.where(none, level, jnp.maximum(estimates, jnp.minimum(MIN_RATIO * level, 1.0))))


def _pool_accuracy(no_confidence: tuple[jax.Array, jax.Array], others: jax.Array, weight: jax.Array) -> jax.Array:
    """Estimate the accuracy of answers without a confidence, pooled with answers of lower calibrated confidence.

    `no_confidence` is (number of answers without a confidence, number of right ones among these). The other answers
    have calibrated confidences `others` (n,) and weights (n,).

    >>> pooled = _pool_accuracy((jnp.array(3.0), jnp.array(1.0)), jnp.array([0.1, 0.9]), jnp.ones(2))
    >>> round(float(pooled), 3)  # (1.5 + 0.1)/(4 + 1): half a right answer of one is added
    0.32
    """
    count, right = no_confidence
    count, right = jnp.where(count > 0, count + 1, 0.0), jnp.where(count > 0, right + 0.5, 0.0)

    def pool(_: int, level: jax.Array) -> jax.Array:
        below = jnp.where(others < level, weight, 0.0)
        pooled, pooled_right = (below.sum(), (below * others).sum())
        return divide(right + pooled_right, count + pooled, 0.0)

    return lax.fori_loop(0, _POOLINGS, pool, divide(right, count, 0.0))


def isotonic(values: jax.Array, weights: jax.Array) -> jax.Array:
    """Fit a rising sequence to `values` (V,) by weighted least squares, with the max–min formula: (V,).

    Barlow, Bartholomew, Bremner & Brunk (1972), "Statistical Inference under Order Restrictions", section 1.4.

    >>> isotonic(jnp.array([1.0, 3.0, 2.0, 4.0]), jnp.ones(4)).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    size = values.shape[0]
    upto = np.tri(size, dtype=values.dtype)
    # Sums over the run from a to b: sums up to b, less sums before a.
    sums, counts = (upto @ x - (upto @ x - x)[:, None] for x in (values * weights, weights))
    means = jnp.where(upto.T > 0, sums / jnp.where(upto.T > 0, counts, 1.0), jnp.inf)
    least = jnp.min(jnp.where(np.tri(size).T[None] > 0, means[:, None], jnp.inf), axis=-1)  # over b ≥ i
    return jnp.max(jnp.where(upto.T > 0, least, -jnp.inf), axis=0)  # over a ≤ i
