"""Single models and pairs of models, judged on the queries of the log itself: no copula, and labels with less noise.

A pair that asks model i and, where Φ_i ≤ φ, then model j, errs with probability

    E[1 − y_i; Φ_i > φ] + E[1 − y_j; Φ_i ≤ φ]        y = 1 where the answer is right

A mean over n labelled queries is noisy, and the best of many noisy figures is the luckiest one. So each label is
averaged with what it is expected to be, given what is known of the query:

    ŷ_i = ¼ y_i + ¾ Φ_i        ŷ_j = ¼ y_j + ⅜ Φ_j + ⅜ P(y_j = 1 | ξ_i)

The last is the calibration of one model by the confidence of *another*. Φ_j alone would take the answer of j to be
right or wrong regardless of Φ_i: but what is hard for one model is hard for the next, and the queries that are deferred
would look too easy. By how much the labels count matters little.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._numerics import divide
from rcjax._trees import each, part
from rcjax.calibration import Transform, fit_calibrator
from rcjax.cascade import ALWAYS_ANSWER, NEVER_ANSWER
from rcjax.joint import pairs

#: Weight of the label itself; the rest goes to what is expected of it.
LABEL = 0.25
#: Thresholds tried for each pair, at most.
MOST_THRESHOLDS = 400


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Candidates:
    """Policies on trial, C of them: every single model, and every pair at every threshold that parts the queries."""

    first: jax.Array  # (C,) the model asked first
    second: jax.Array  # (C,) the model asked where it is unsure; itself where none is
    threshold: jax.Array  # (C,) calibrated confidence up to which it is; ALWAYS_ANSWER for a single model
    error: jax.Array  # (C,) estimated; inf for a threshold that parts no queries
    cost: jax.Array  # (C,)


def cross_calibrate(logprob: jax.Array, correct: jax.Array, present: jax.Array, transform: Transform) -> jax.Array:
    """(P, n) probability that the second model of each pair is right, by the confidence of the first.

    logprob, correct, present (n, k). As `fit_calibrator`, with the labels of another model.
    """
    left, right = np.array(pairs(logprob.shape[1]), int).reshape(-1, 2).T

    def one(left, right):
        raw, both = logprob[:, left], present[:, left] & present[:, right]
        return fit_calibrator(raw, correct[:, right], both, transform)(jnp.where(both, raw, -1.0))

    return each(one, len(logprob), (0, 0))(left, right)


def candidates(
    confidence: jax.Array, crossed: jax.Array, correct: jax.Array, present: jax.Array, cost: jax.Array
) -> Candidates:
    """Every single model and pair, judged on n queries.

    confidence (n, k) calibrated, crossed (P, n) of `cross_calibrate`, correct (n, k), present (n, k) bool: where a
    model has answered and the query is to count; cost (k,). `vmap` it over resampled or masked logs.

    >>> confidence, right = jnp.array([[0.2, 0.9], [0.9, 0.9]]), jnp.array([[False, True], [True, True]])
    >>> found = candidates(confidence, jnp.full((1, 2), 0.9), right, jnp.ones((2, 2), bool), jnp.array([1.0, 10.0]))
    >>> found.cost.tolist(), [round(each, 4) for each in found.error.tolist()]      # small, large, small → large
    ([1.0, 10.0, 6.0, 11.0], [0.5, 0.0, 0.075, inf])
    """
    k = confidence.shape[1]
    left, right = np.array(pairs(k), int).reshape(-1, 2).T
    answered = present.astype(confidence.dtype)
    right_share = divide((answered * correct).sum(0), answered.sum(0), 0.5)

    def one(left, right, crossed):
        first = LABEL * correct[:, left] + (1 - LABEL) * confidence[:, left]
        second = LABEL * correct[:, right] + (1 - LABEL) / 2 * (confidence[:, right] + crossed)
        return _thresholds(confidence[:, left], first, second, present[:, left] & present[:, right])

    thresholds, errors, shares = each(one, len(confidence), (0, 0, 0))(left, right, crossed)
    tried = thresholds.shape[1]
    everyone = np.arange(k)
    return Candidates(
        first=jnp.concatenate([everyone, np.repeat(left, tried)]),
        second=jnp.concatenate([everyone, np.repeat(right, tried)]),
        threshold=jnp.concatenate([jnp.full(k, ALWAYS_ANSWER, thresholds.dtype), thresholds.reshape(-1)]),
        error=jnp.concatenate([jnp.where(present.any(0), 1 - right_share, jnp.inf), errors.reshape(-1)]),
        cost=jnp.concatenate([cost, (cost[left][:, None] + cost[right][:, None] * shares).reshape(-1)]),
    )


def _thresholds(confidence, first, second, present):
    """(thresholds, error, share deferred), each (M,), of one pair.

    confidence, first, second, present (n,): Φ_i, ŷ_i, ŷ_j, and which queries count. The thresholds lie halfway between
    confidences that differ, so that no rounding moves a tie across.
    """
    n = confidence.shape[0]
    order = jnp.argsort(jnp.where(present, confidence, jnp.inf))
    ordered = jnp.where(present, confidence, jnp.inf)[order]
    count = present.sum()
    gain = jnp.cumsum(jnp.where(present, second - first, 0.0)[order])
    tries = min(n, MOST_THRESHOLDS)
    # The last of the queries to defer: spread over those present, and moved to the end of its ties.
    last = jnp.maximum(-(-np.arange(1, tries + 1) * count // tries) - 1, 0)
    last = jnp.searchsorted(ordered, ordered[last], side="right") - 1
    following = jnp.minimum(last + 1, n - 1)
    parts = (last + 1 < count) & (ordered[following] > ordered[last])
    low, high = ordered[last], ordered[following]
    middle = low + (high - low) / 2
    middle = jnp.where(middle < high, middle, low)  # between neighbours in floating point there is nothing
    threshold = jnp.where(parts, middle, NEVER_ANSWER)
    wrong = divide(jnp.where(present, 1 - first, 0.0).sum() - gain[last], count, 1.0)
    return threshold, jnp.where(parts, wrong, jnp.inf), divide(last + 1.0, count, 1.0)


@partial(jax.jit, static_argnames="transform")
def judge(
    logprob: jax.Array,
    confidence: jax.Array,
    correct: jax.Array,
    present: jax.Array,
    cost: jax.Array,
    transform: Transform,
) -> Candidates:
    """`candidates` on n queries, with what their own labels and raw confidences (n, k) tell of one model by another."""
    crossed = cross_calibrate(logprob, correct, present, transform)
    return candidates(confidence, crossed, correct, present, cost)


def best_candidates(found: Candidates, lam: jax.Array) -> jax.Array:
    """(L,) the place of the candidate with the least error + λ·cost for each λ (L,)."""
    return jax.vmap(lambda price: jnp.argmin(found.error + price * found.cost))(lam)


def as_cascades(found: Candidates, places: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """(thresholds (L, k), members (L, k)) of the candidates at some places, as a `Frontier` holds them."""
    chosen = part(found, places)
    everyone = np.arange(k)
    is_first, is_second = (place[:, None] == everyone for place in (chosen.first, chosen.second))
    alone = jnp.where(is_second, ALWAYS_ANSWER, NEVER_ANSWER).astype(chosen.threshold.dtype)
    return jnp.where(is_first, chosen.threshold[:, None], alone), is_first | is_second


def by_labels(
    logprob: jax.Array,
    confidence: jax.Array,
    correct: jax.Array,
    present: jax.Array,
    cost: jax.Array,
    lam: jax.Array,
    transform: Transform,
) -> tuple[jax.Array, jax.Array]:
    """(thresholds, members), each (2, L, k), of the best single models and the best pairs (1, L, k for one model)."""
    k = confidence.shape[1]
    found = judge(logprob, confidence, correct, present, cost, transform)
    alone = dataclasses.replace(found, error=jnp.where(np.arange(len(found.error)) < k, found.error, jnp.inf))
    both = [as_cascades(each, best_candidates(each, lam), k) for each in (alone, found)[: min(2, k)]]
    thresholds, members = (jnp.stack(each) for each in zip(*both, strict=True))
    return thresholds, members
