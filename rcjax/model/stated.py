"""Raw confidences that a model states again and again, as 0.9 or four votes of five, each with an estimate of its own.

A probability computed from tokens has as many values as answers; one that a model states, or a share of votes, has a
few. Where few values hold many answers, what is right among each of them says more than a curve through all: but with
a handful of answers to a value, the curve says more than they do. So each value's estimate is the mean of both, with
the curve as so many answers more, and monotone (Ayer et al. 1955, "An empirical distribution function for sampling with
incomplete information").

A value counts as stated where more answers share it than lie beside it, and a model states its confidences where a
seventh of its answers are at such values. Computed probabilities that are rounded, to single precision or to percents,
tie too, but with as many at the next place.

Answers without a confidence are a value, too, however few they are, and below all others: its estimate is the share of
them that is right; where others would lie below that, it is that of both together, and they lie just above.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from rcjax._core.exporting import exportable
from rcjax._core.numerics import divide
from rcjax.policy.decisions import ABOVE, NEAR, NO_CONFIDENCE

#: The most values of a model is the last; programs are made for arrays of these sizes.
SIZES = (4, 8, 16, 32)

#: As many answers as the curve through all values counts for at each; 5 and 20 do about as well on answers left out.
CURVE = 10.0

_POOLINGS = 30  # of answers without a confidence with those below their share; fewer do

#: How many answers a value holds at the least, their share, and how near others lie beside it: light ones stand alone.
_LIGHT, _HEAVY = (3, 0.01, 0.02), (5, 0.05, 1e-3)

_LEAST_TOGETHER = 0.15  # of the answers, that all values hold; a mixture of betas makes do with less

_MOST_OTHERS = 0.1  # of the answers at no stated value, where certainty is one


@exportable
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StatedValues:
    """The values that one model states, by rising raw confidence. Places that none takes are NaN, and come last."""

    logprob: jax.Array  # (V,) raw log-probability
    confidence: jax.Array  # (V,) calibrated, rising with it or falling

    def at(self, logprob: ArrayLike) -> jax.Array:
        """(…, V) bool: which value, at most one, a raw log-probability is.

        >>> stated = StatedValues(jnp.log(jnp.array([0.5, 0.9])), jnp.array([0.4, 0.8]))
        >>> stated.at(jnp.log(jnp.array([0.9001, 0.7]))).tolist()
        [[False, True], [False, False]]
        """
        logprob, none = jnp.asarray(logprob)[..., None], self.logprob == NO_CONFIDENCE
        distance = jnp.abs(jnp.exp(logprob) - jnp.exp(self.logprob))
        distance = jnp.where(jnp.isnan(distance) | none, jnp.inf, distance)
        distance = jnp.where((logprob == NO_CONFIDENCE) & none.any(-1), jnp.where(none, 0.0, jnp.inf), distance)
        nearest = jnp.argmin(distance, axis=-1)[..., None] == np.arange(self.logprob.shape[-1])
        return nearest & (distance <= NEAR)

    def amend(self, logprob: ArrayLike, curve: jax.Array) -> jax.Array:
        """Calibrated confidences, elementwise: a value's own; elsewhere the curve's, between those of its neighbours.

        Args:
            logprob: raw log-probabilities.
            curve: the calibrated confidences there by the curve through all values.

        >>> stated = StatedValues(jnp.log(jnp.array([0.5, 0.9])), jnp.array([0.4, 0.8]))
        >>> [round(float(x), 2) for x in stated.amend(jnp.log(jnp.array([0.5, 0.7, 0.7])), jnp.array([0.1, 0.6, 0.9]))]
        [0.4, 0.6, 0.8]
        """
        here, taken = self.at(logprob), ~(jnp.isnan(self.logprob) | (self.logprob == NO_CONFIDENCE))
        raw, values = jnp.exp(jnp.asarray(logprob))[..., None], jnp.exp(self.logprob)
        most, least = (jnp.where(taken, self.confidence, other) for other in (-jnp.inf, jnp.inf))
        rising = most.argmax(-1) >= least.argmin(-1)
        lower = jnp.where(rising, values < raw, values > raw) & taken
        upper = jnp.where(rising, values > raw, values < raw) & taken
        low = jnp.where(lower, self.confidence, 0.0).max(-1)
        high = jnp.where(upper, self.confidence, 1.0).min(-1)
        own = jnp.where(here, self.confidence, 0.0).sum(-1)
        amended = jnp.where(here.any(-1), own, jnp.clip(curve, low, high))
        return jnp.where(jnp.asarray(logprob) == NO_CONFIDENCE, amended, jnp.maximum(amended, self.least()))

    def least(self) -> jax.Array:
        """(…) the least calibrated confidence of answers that have a raw one; 0 where all have."""
        none = self.logprob == NO_CONFIDENCE
        return jnp.minimum(ABOVE * jnp.where(none, self.confidence, 0.0).sum(-1), 1.0)

    def pairs(self) -> tuple[tuple[float, float], ...]:
        """The raw and the calibrated confidence of each value of one model: the inverse of `stated_of_pairs`."""
        rows = zip(np.asarray(self.logprob, float), np.asarray(self.confidence, float), strict=True)
        values = ((raw, value) for raw, value in rows if not (np.isnan(raw) or raw == NO_CONFIDENCE))
        return tuple((float(np.exp(raw)), float(value)) for raw, value in values)

    def unread(self) -> float | None:
        """The calibrated confidence of one model's answers without a raw one; None if it has no such value."""
        values = np.asarray(self.confidence, float)[np.asarray(self.logprob) == NO_CONFIDENCE]
        return float(values[0]) if len(values) else None


def stated_logprobs(logprob: ArrayLike, answered: ArrayLike) -> np.ndarray | None:
    """(k, V) raw log-probabilities of the values that k models state, rising, NaN behind; None if no model does.

    Certainty is one of them only where few answers are at no stated value, and where a value below 1 is stated too, or
    there is none: computed probabilities are rounded to 1. To 0, of an answer that was given, they never are.

    Args:
        logprob: (n, k) raw log-probabilities.
        answered: (n, k) whether there is an answer.

    >>> votes = np.log(np.array([[0.6, 0.61], [0.8, 0.72], [0.6, 0.83], [0.6, 0.94], [0.8, 0.95], [0.8, 0.96]]))
    >>> np.exp(stated_logprobs(votes, np.ones((6, 2), bool))).round(2).tolist()
    [[0.6, 0.8, nan, nan], [nan, nan, nan, nan]]
    """
    columns = zip(np.asarray(logprob, float).T, np.asarray(answered, bool).T, strict=True)
    values = [_stated_by_one(column[there]) for column, there in columns]
    return padded_rows(values, np.nan) if any(map(len, values)) else None


def padded_rows(rows: Sequence[Any], behind: float, size: int | None = None) -> np.ndarray:
    """(k, V) rows of several lengths, with something behind them, in so many places; None: in one of `SIZES`.

    >>> padded_rows([[0.5], []], 0.0).tolist()
    [[0.5, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """
    size = next(one for one in SIZES if one >= max(map(len, rows))) if size is None else size
    return np.stack([np.pad(np.asarray(row, float), (0, size - len(row)), constant_values=behind) for row in rows])


def stated_of_pairs(
    rows: Sequence[Sequence[tuple[float, float]]], dtype: Any, unread: Sequence[float | None] = ()
) -> StatedValues | None:
    """The values of k models, (k, V), from pairs of a raw and a calibrated confidence; None if no model has any.

    Args:
        rows: the pairs of each model.
        dtype: of the arrays.
        unread: of each model the calibrated confidence of answers without a raw one, None if it has none.

    >>> stated_of_pairs([((0.5, 0.4), (0.9, 0.8)), ()], float).confidence.tolist()
    [[0.4, 0.8, nan, nan], [nan, nan, nan, nan]]
    """
    with np.errstate(divide="ignore"):
        values = [[(float(np.log(raw)), value) for raw, value in row] for row in rows]
    for row, value in zip(values, unread, strict=False):
        row += [] if value is None else [(NO_CONFIDENCE, value)]
    if not any(values):
        return None
    columns = ([[pair[place] for pair in sorted(row)] for row in values] for place in (0, 1))
    return StatedValues(*(padded_rows(rows, np.nan).astype(dtype) for rows in columns))  # pyright: ignore[reportArgumentType]


def _stated_by_one(logprob: np.ndarray) -> np.ndarray:
    """The values that one model states, of its answers' (m,); the heaviest, where there are more than places."""
    unread, logprob = logprob[logprob == NO_CONFIDENCE][:1], logprob[logprob != NO_CONFIDENCE]
    values, count = np.unique(logprob, return_counts=True)
    if count.max(initial=0) < min(_LIGHT[0], _HEAVY[0]):  # as of most models that compute theirs
        return unread
    raw = np.exp(values)
    through = np.concatenate([[0], np.cumsum(count)])
    shared = np.zeros(len(values), bool)
    for least, share, beside in (_LIGHT, _HEAVY):
        low, high = np.searchsorted(raw, raw - beside, "left"), np.searchsorted(raw, raw + beside, "right")
        others = through[high] - through[low] - count
        shared |= (count >= max(least, share * len(logprob))) & (count > others)
    certain = ~(np.isfinite(values) & (values < 0))
    others = 1 - count[shared | certain].sum() / max(len(logprob), 1)
    rounded = ~(shared & (values < 0)).any() and not certain.all()  # 1 alone is shared: no answer rounds to 0
    if others > _MOST_OTHERS or rounded:
        shared &= ~certain
    if count[shared].sum() < _LEAST_TOGETHER * len(logprob):
        return unread
    stated = np.flatnonzero(shared)
    heaviest = stated[np.argsort(-count[stated], kind="stable")[: SIZES[-1] - len(unread)]]
    return np.sort(np.concatenate([unread, values[heaviest]]))


def estimate(
    logprob: jax.Array,
    counted: tuple[jax.Array, jax.Array],
    values: jax.Array,
    curve: tuple[Callable[[jax.Array], jax.Array], jax.Array],
) -> StatedValues:
    """The calibrated confidence of each value of one model.

    Args:
        logprob: (n,) raw log-probabilities.
        counted: (n,) how much each answer counts, and (n,) the same where it is right, else 0.
        values: (V,) the values, raw log-probabilities, rising; NaN behind.
        curve: the calibrated confidence of raw log-probabilities by the curve through all answers, and () its slope,
            whose direction the estimates keep.
    """
    by_curve = curve[0](jnp.where(jnp.isnan(values), -1.0, values))
    stated = StatedValues(values, by_curve)
    weight, right = counted
    held = stated.at(logprob).astype(weight.dtype)
    answers, correct = jnp.stack([weight @ held, right @ held])
    none, falling = values == NO_CONFIDENCE, curve[1] < 0
    taken = ~(jnp.isnan(values) | none)
    mean = divide(correct + CURVE * by_curve, answers + CURVE)
    # Behind the last value a place must not lower it: it has the most, and no weight to speak of.
    turned = jnp.where(taken, jnp.where(falling, -mean, mean), 1.0)
    monotone = isotonic(turned, jnp.where(taken, answers + CURVE, 1e-9))
    estimates = jnp.where(taken, jnp.where(falling, -monotone, monotone), jnp.nan)
    others = StatedValues(jnp.where(none, jnp.nan, values), estimates).amend(logprob, curve[0](logprob))
    unread = jnp.where(none, answers, 0.0).sum(), jnp.where(none, correct, 0.0).sum()
    level = _pooled(unread, others, jnp.where(logprob == NO_CONFIDENCE, 0.0, weight))
    return StatedValues(values, jnp.where(none, level, jnp.maximum(estimates, jnp.minimum(ABOVE * level, 1.0))))


def _pooled(unread: tuple[jax.Array, jax.Array], others: jax.Array, weight: jax.Array) -> jax.Array:
    """The share of answers without a confidence that is right, with the others whose confidence is below it.

    Args:
        unread: how many there are, and how many are right.
        others: (n,) the calibrated confidences of the other answers.
        weight: (n,) how much each of these counts.

    >>> nearly = _pooled((jnp.array(3.0), jnp.array(1.0)), jnp.array([0.1, 0.9]), jnp.ones(2))
    >>> round(float(nearly), 3)  # of 1.5 of 4, and 0.1 of 1
    0.32
    """
    count, right = unread
    count, right = jnp.where(count > 0, count + 1, 0.0), jnp.where(count > 0, right + 0.5, 0.0)

    def pool(_: int, level: jax.Array) -> jax.Array:
        below = jnp.where(others < level, weight, 0.0)
        more, theirs = (below.sum(), (below * others).sum())
        return divide(right + theirs, count + more, 0.0)

    return lax.fori_loop(0, _POOLINGS, pool, divide(right, count, 0.0))


def isotonic(values: jax.Array, weights: jax.Array) -> jax.Array:
    """The rising values (V,) nearest to `values` (V,) in weighted squares, by the max–min formula.

    Barlow, Bartholomew, Bremner & Brunk (1972), "Statistical Inference under Order Restrictions", section 1.4.

    >>> isotonic(jnp.array([1.0, 3.0, 2.0, 4.0]), jnp.ones(4)).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    size = values.shape[0]
    upto = np.tri(size, dtype=values.dtype)
    # Of the run from a to b: sums up to b less those before a.
    sums, counts = (upto @ x - (upto @ x - x)[:, None] for x in (values * weights, weights))
    means = jnp.where(upto.T > 0, sums / jnp.where(upto.T > 0, counts, 1.0), jnp.inf)
    least = jnp.min(jnp.where(np.tri(size).T[None] > 0, means[:, None], jnp.inf), axis=-1)  # over b ≥ i
    return jnp.max(jnp.where(upto.T > 0, least, -jnp.inf), axis=0)  # over a ≤ i
