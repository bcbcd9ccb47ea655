"""Single models and pairs of models, judged on the queries of the log itself: no copula, and labels with less noise.

A pair that asks model i and, where Φ_i ≤ φ, then model j, errs with probability

    E[1 − y_i; Φ_i > φ] + E[1 − y_j; Φ_i ≤ φ]        y = 1 where the answer is right

A mean over n labelled queries is noisy, and the best of many noisy figures is the luckiest one. So each label is
averaged with what it is expected to be, given what is known of the query:

    ŷ_i = ¼ y_i + ¾ Φ_i        ŷ_j = ¼ y_j + ⅜ Φ_j + ⅜ P(y_j = 1 | ξ_i)

The last is the calibration of one model by the confidence of *another*. Φ_j alone would take the answer of j to be
right or wrong regardless of Φ_i: but what is hard for one model is hard for the next, and the queries that are deferred
would look too easy. By how much the labels count matters little.

Where models may refuse to answer (`label_refusals`), a refusal counts as so many errors as it costs.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from rcjax._core.batching import map_entries, part
from rcjax._core.compilation import compiled
from rcjax._core.numerics import divide
from rcjax._core.size_classes import fill_up
from rcjax.frontier.policies import ALWAYS_ANSWER, NEVER_ANSWER, NEVER_REFUSE, Policies
from rcjax.model.calibration import Calibrator, Transform, calibrate_all, fit_calibrator
from rcjax.model.pairs import pairs
from rcjax.solving.bellman import Refusal
from rcjax.tuning.label_refusals import best_cuts, earnings, refuse_alone, spread_cuts, sum_up

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
    error: jax.Array  # (C,) estimated, a refusal at its price; inf for a threshold that parts no queries
    cost: jax.Array  # (C,)
    refused: jax.Array | None = None  # (C, 2) confidence up to which the first and the second refuse; None: none does
    abstention: jax.Array | None = None  # (C,) share of the queries that get no answer


def cross_calibrate(
    logprob: jax.Array, correct: jax.Array, present: jax.Array, transform: Transform, told: jax.Array | None = None
) -> jax.Array:
    """(P, n) probability that the second model of each pair is right, by the confidence of the first.

    As `fit_calibrator`, with the labels of another model.

    Args:
        logprob: (n, k) raw log-probabilities.
        correct: (n, k) whether the answer is right.
        present: (n, k) whether there is an answer and the query is to count.
        transform: that of the raw confidence.
        told: (n, k) which log-probabilities to tell the probability by; by default those that count.
    """
    left, right = np.array(pairs(logprob.shape[1]), int).reshape(-1, 2).T

    def one(left: jax.Array, right: jax.Array) -> jax.Array:
        raw, both = logprob[:, left], present[:, left] & present[:, right]
        known = both if told is None else told[:, left]
        return fit_calibrator(raw, correct[:, right], both, transform)(jnp.where(known, raw, -1.0))

    return map_entries(one, len(logprob), (0, 0))(left, right)


def candidates(
    confidence: jax.Array, crossed: jax.Array, correct: jax.Array, present: jax.Array, cost: jax.Array
) -> Candidates:
    """Every single model and pair, judged on n queries. `vmap` it over resampled or masked logs.

    Args:
        confidence: (n, k) calibrated.
        crossed: (P, n) of `cross_calibrate`.
        correct: (n, k) whether the answer is right.
        present: (n, k) whether there is an answer and the query is to count.
        cost: (k,) money per answer.

    >>> confidence, right = jnp.array([[0.2, 0.9], [0.9, 0.9]]), jnp.array([[False, True], [True, True]])
    >>> cascades = candidates(confidence, jnp.full((1, 2), 0.9), right, jnp.ones((2, 2), bool), jnp.array([1.0, 10.0]))
    >>> cascades.cost.tolist(), [round(figure, 4) for figure in cascades.error.tolist()]  # small, large, small → large
    ([1.0, 10.0, 6.0, 11.0], [0.5, 0.0, 0.075, inf])
    """
    confidence, correct, present = map(jnp.asarray, (confidence, correct, present))
    k = confidence.shape[1]
    left, right = np.array(pairs(k), int).reshape(-1, 2).T

    def one(left: jax.Array, right: jax.Array, crossed: jax.Array) -> tuple[jax.Array, ...]:
        first = LABEL * correct[:, left] + (1 - LABEL) * confidence[:, left]
        second = LABEL * correct[:, right] + (1 - LABEL) / 2 * (confidence[:, right] + crossed)
        return _thresholds(confidence[:, left], first, second, present[:, left] & present[:, right])

    thresholds, errors, shares = map_entries(one, len(confidence), (0, 0, 0))(left, right, crossed)
    tried = thresholds.shape[1]
    everyone = np.arange(k)
    return Candidates(
        first=jnp.concatenate([everyone, np.repeat(left, tried)]),
        second=jnp.concatenate([everyone, np.repeat(right, tried)]),
        threshold=jnp.concatenate([jnp.full(k, ALWAYS_ANSWER, thresholds.dtype), thresholds.reshape(-1)]),
        error=jnp.concatenate([_alone(correct, present), errors.reshape(-1)]),
        cost=jnp.concatenate([cost, (cost[left][:, None] + cost[right][:, None] * shares).reshape(-1)]),
    )


def _expected(
    confidence: jax.Array, crossed: jax.Array, correct: jax.Array, present: jax.Array
) -> tuple[jax.Array, ...]:
    """ŷ of single models (n, k) and of the second ones of pairs (P, n), and whether both have answered (P, n)."""
    left, right = np.array(pairs(confidence.shape[1]), int).reshape(-1, 2).T
    expected = LABEL * correct + (1 - LABEL) * confidence
    second = LABEL * correct[:, right].T + (1 - LABEL) / 2 * (confidence[:, right].T + crossed)
    return expected, second, (present[:, left] & present[:, right]).T


def _alone(correct: jax.Array, present: jax.Array) -> jax.Array:
    """(k,) how often each model errs; inf for one that has not answered."""
    answered = present.sum(0)
    return jnp.where(answered > 0, 1 - divide((present * correct).sum(0), answered, 0.5), jnp.inf)


def refusing_candidates(
    confidence: jax.Array,
    crossed: jax.Array,
    correct: jax.Array,
    present: jax.Array,
    cost: jax.Array,
    lam: jax.Array,
    refusal: Refusal,
) -> Candidates:
    """Every single model and pair where models may refuse to answer, for each λ: (L, C).

    Each has the refusals that are best at its λ, and a pair, with these, every threshold, the best one at λ among them.

    Args:
        confidence, crossed, correct, present, cost: as in `candidates`.
        lam: (L,) in errors per unit of money.
        refusal: what a refusal costs, and who may refuse.

    >>> confidence, right = jnp.array([[0.2, 0.9], [0.9, 0.9]]), jnp.array([[False, True], [True, True]])
    >>> log, refusal = (confidence, jnp.full((1, 2), 0.9), right, jnp.ones((2, 2), bool)), Refusal(jnp.array(0.8), True)
    >>> judged = refusing_candidates(*log, jnp.array([1.0, 10.0]), jnp.array([1.0]), refusal)
    >>> small = [round(float(figure[0, 0]), 3) for figure in (judged.error, judged.abstention, judged.refused[..., 0])]
    >>> small                                              # refuses one of two queries, and is right on the other
    [0.175, 0.5, 0.55]
    """
    k = confidence.shape[1]
    left, right = np.array(pairs(k), int).reshape(-1, 2).T
    expected, second, both = _expected(confidence, crossed, correct, present)
    worth = jnp.asarray(refusal.worth, confidence.dtype)
    level, gain, share = jax.vmap(refuse_alone, (1, 1, 1, None))(confidence, expected, present, worth)
    confidences = jnp.stack([confidence.T[left], confidence.T[right]], axis=1)
    rights = jnp.stack([expected.T[left], second], axis=1)
    sums = jax.vmap(sum_up, (0, 0, 0, None))(confidences, rights, both, worth)
    tried, everyone = sums.cut.shape[1], np.arange(k)

    def at(price: jax.Array) -> Candidates:
        refused, refuses = jax.vmap(best_cuts, (0, 0, None))(sums, price * cost[right], refusal)
        earned, unanswered, asked = jax.vmap(earnings, (0, 0, 0, None))(sums, refused, refuses, worth)
        levels = jax.vmap(lambda sums, i, j: jnp.stack([sums.cut[i], sums.refusal[j]]))(sums, refused, refuses)
        flat = [(1 - earned), cost[left][:, None] + cost[right][:, None] * asked, unanswered, sums.cut]
        error, spent, unanswered, cut = (values.reshape(-1) for values in flat)
        return Candidates(
            first=jnp.concatenate([everyone, np.repeat(left, tried)]),
            second=jnp.concatenate([everyone, np.repeat(right, tried)]),
            threshold=jnp.concatenate([jnp.full(k, ALWAYS_ANSWER, cut.dtype), cut]),
            error=jnp.concatenate([_alone(correct, present) - gain, error]),
            cost=jnp.concatenate([cost, spent]),
            refused=jnp.concatenate([jnp.stack([level, level], axis=1), jnp.repeat(levels, tried, axis=0)]),
            abstention=jnp.concatenate([share, unanswered]),
        )

    return jax.vmap(at)(lam)


def _thresholds(
    confidence: jax.Array, first: jax.Array, second: jax.Array, present: jax.Array
) -> tuple[jax.Array, ...]:
    """(thresholds, error, share deferred), each (M,), of one pair.

    confidence, first, second, present (n,): Φ_i, ŷ_i, ŷ_j, and which queries count.
    """
    cuts = spread_cuts(confidence, present, MOST_THRESHOLDS)
    gain = jnp.cumsum(jnp.where(present, second - first, 0.0)[cuts.order])[cuts.last]
    wrong = divide(jnp.where(present, 1 - first, 0.0).sum() - gain, cuts.count, 1.0)
    return cuts.threshold, jnp.where(cuts.parts, wrong, jnp.inf), divide(cuts.last + 1.0, cuts.count, 1.0)


def judge(
    calibrators: Calibrator,
    logprob: jax.Array,
    correct: jax.Array,
    present: jax.Array,
    cost: jax.Array,
    lam: jax.Array | None = None,
    refusal: Refusal | None = None,
) -> Candidates:
    """`candidates` on n queries, with what their own labels and raw confidences tell of one model by another.

    Args:
        calibrators: (k,) of the models.
        logprob: (n, k) raw log-probabilities.
        correct: (n, k) whether the answer is right.
        present: (n, k) whether there is an answer and the query is to count.
        cost: (k,) money per answer.
        lam: (L,) for `refusing_candidates`.
        refusal: with one, models may refuse, and `lam` is needed.
    """
    confidence = calibrate_all(calibrators, logprob, present)
    crossed = cross_calibrate(logprob, correct, present, calibrators.transform)
    if refusal is None:
        return candidates(confidence, crossed, correct, present, cost)
    assert lam is not None
    return refusing_candidates(confidence, crossed, correct, present, cost, lam, refusal)


def without_barred(candidates: Candidates, barred: np.ndarray | None, xp: Any = np) -> Candidates:
    """The candidates, of which those that are barred are never the best.

    Args:
        candidates: all of them, (C,) or (L, C).
        barred: (k, k) bool, as of `rcjax.model.pairs.barred_pairs`; None: nobody is.
        xp: numpy, or jax.numpy within a jitted function.
    """
    if barred is None:
        return candidates
    out = xp.asarray(barred)[candidates.first, candidates.second]
    return dataclasses.replace(candidates, error=xp.where(out, np.inf, candidates.error))


def merged(candidates: Candidates) -> Candidates:
    """The candidates for each λ, (L, C), as so many, (L·C,)."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), candidates)


def best_candidates(candidates: Candidates, lam: Any) -> Any:
    """(L,) the place of the candidate with the least error + λ·cost for each λ (L,), among all of them or its own."""
    return (candidates.error + lam[:, None] * candidates.cost).argmin(-1)


def as_cascades(trial: Candidates, places: Any, k: int, xp: Any = jnp) -> Policies:
    """(L,) the candidates at some places, as policies over k models.

    Args:
        trial: all candidates.
        places: (L,) by position.
        k: the number of models.
        xp: jax.numpy, or numpy outside of a jitted function.
    """
    chosen = part(trial, places)
    everyone = np.arange(k)
    is_first, is_second = (place[:, None] == everyone for place in (chosen.first, chosen.second))
    alone = xp.where(is_second, ALWAYS_ANSWER, NEVER_ANSWER).astype(chosen.threshold.dtype)
    thresholds, members = xp.where(is_first, chosen.threshold[:, None], alone), is_first | is_second
    if chosen.refused is None:
        return Policies.of_cascades(thresholds, members, xp=xp)
    second = xp.where(is_second, chosen.refused[:, 1:], NEVER_REFUSE)
    refusals = xp.where(is_first, chosen.refused[:, :1], second)
    return Policies.of_cascades(xp.maximum(thresholds, refusals), members, refusals, xp)


def best_by_labels(trial: Candidates, lam: np.ndarray, k: int) -> tuple[Policies, ...]:
    """(L,) the best single models, and the best pairs, for each λ; of one model, the former alone.

    Of and by numpy's arrays.
    """
    alone = dataclasses.replace(trial, error=np.where(np.arange(trial.error.shape[-1]) < k, trial.error, np.inf))

    def best(candidates: Candidates) -> Policies:
        places = best_candidates(candidates, lam)
        if candidates.refused is not None:  # each λ has candidates of its own
            rows = np.arange(lam.shape[0]) * trial.error.shape[-1]
            candidates, places = merged(candidates), rows + places
        return as_cascades(candidates, places, k, np)

    return tuple(best(candidates) for candidates in (alone, trial)[: min(2, k)])


_judge_filled = compiled(judge, runs="long")


def judge_log(
    calibrators: Calibrator,
    logprob: ArrayLike,
    correct: ArrayLike,
    present: ArrayLike,
    cost: ArrayLike,
    lam: ArrayLike | None = None,
    refusal: Refusal | None = None,
) -> Candidates:
    """`judge`, compiled for one log at a time, so that folds, replicates and deals share it, and logs of like size.

    Args:
        calibrators, logprob, correct, present, cost, lam, refusal: as of `judge`.
    """
    return _judge_filled(calibrators, *fill_up(logprob, correct, present), cost, lam, refusal)


def tune_by_labels(
    calibrators: Calibrator,
    logprob: ArrayLike,
    correct: ArrayLike,
    present: ArrayLike,
    cost: jax.Array,
    lam: np.ndarray,
    refusal: Refusal | None = None,
    barred: np.ndarray | None = None,
) -> tuple[Policies, ...]:
    """`best_by_labels` of a log.

    Args:
        calibrators, logprob, correct, present, cost, refusal: as of `judge`.
        lam: (L,) in errors per unit of money.
        barred: (k, k) bool, which models never stand in one cascade; None for none.
    """
    lam = np.asarray(lam, cost.dtype)
    prices = None if refusal is None else lam  # else the programme would be one for each number of λ
    trial = judge_log(calibrators, logprob, correct, present, cost, prices, refusal)
    return best_by_labels(without_barred(jax.tree.map(np.asarray, trial), barred), lam, len(cost))
