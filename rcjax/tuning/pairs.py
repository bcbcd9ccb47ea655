"""Score single models and pairs of models on the queries of the log itself, by labels with less noise; no copula.

A pair asks model i and, where Φ_i ≤ φ, then model j. Its error probability is

    E[1 − y_i; Φ_i > φ] + E[1 − y_j; Φ_i ≤ φ]        y = 1 where the answer is right

A mean over n labels is noisy, and the best of many noisy means is optimistic. So each label of a pair is averaged with
two probabilities of it: by the model's own confidence, and by the confidence of the model asked before:

    ŷ_j = (1 − a − b) y_j + a Φ_j + b P(y_j = 1 | ξ_i),        ŷ_i = (1 − a − b) y_i + (a + b) Φ_i.

Each probability is first shifted so that its mean is that of the labels (`recentre`). So ŷ_i has the mean of y_i, and
the error is mean(1 − y_i) − Σ_{Φ_i ≤ φ} (ŷ_j − ŷ_i) / n.

The probabilities reduce the noise, but add a bias where confidences tell little: `scoring.estimate_blending` estimates
a and b. ξ is the transformed confidence (`rcjax.model.calibration`). The cost of a pair is the mean cost of its path
over the queries: deferred queries may be longer than others. Queries of one confidence stay together; a ladder of two
thresholds lies between them.

Where models may refuse to answer, the last model of a policy refuses up to the confidence ρ that is best for it alone.
A query earns R = 1 − (the price of a refusal, in errors) where Φ ≤ ρ, and y elsewhere; ρ is the best of the cuts.
"""

import dataclasses
from functools import partial
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.numerics import divide
from rcjax._core.pytrees import Array
from rcjax.model.calibration import Calibrator, Transform, calibrate_all, fit_calibrator
from rcjax.solving.frontier.points import ALWAYS_ANSWER, NEVER_ANSWER, NEVER_REFUSE
from rcjax.tuning.candidates import Candidates, concatenate

#: Cuts tried for each model, at most.
MOST_CUTS = 200


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cuts:
    """M cuts that divide n queries by their confidence; ties stay together."""

    order: Array  # (n,) the queries by rising confidence, then the queries that do not count
    last: Array  # (M,) the position in `order` of the last query below the cut
    threshold: Array  # (M,) halfway to the next confidence; NEVER_ANSWER where the cut divides nothing
    parts: Array  # (M,) bool: queries lie on both sides, and no earlier cut is the same
    every: Array  # (M,) bool: all queries lie below, and no earlier cut is the same
    count: Array  # () number of queries that count

    def sums(self, values: Array) -> Array:
        """Sum values (n,) over the queries below each cut: (M,)."""
        return jnp.cumsum(values[self.order])[self.last]

    def sum_below_per_query(self, values: Array, present: Array) -> Array:
        """Sum values (n,) over the present queries below each cut, divided by the queries that count: (M,)."""
        return divide(self.sums(jnp.where(present, values, 0.0)), self.count)

    def mean(self, values: Array, present: Array, empty: float = 0.0) -> Array:
        """Return the mean of values (n,) over the queries that are `present` (n,); `empty` where there is none."""
        return divide(jnp.where(present, values, 0.0).sum(), self.count, empty)


def spread_cuts(confidence: Array, present: Array, most: int, rising: Array | None = None) -> Cuts:
    """Spread at most `most` cuts evenly over the confidences of the queries that count.

    The thresholds lie halfway between confidences that differ, so that rounding does not move a tie across.

    Args:
        confidence: (n,) confidences of the queries.
        present: (n,) bool: the queries that count.
        most: number of cuts at most.
        rising: (n,) the queries by rising confidence, where the caller has sorted them: sorting is the slowest step.

    >>> cuts = spread_cuts(jnp.array([0.75, 0.25, 0.25]), jnp.ones(3, bool), 10)
    >>> cuts.threshold.tolist(), cuts.last.tolist(), cuts.parts.tolist()
    ([0.5, 1.0, 1.0], [1, 1, 2], [True, False, False])
    """
    n = confidence.shape[0]
    count = present.sum()
    rising = jnp.argsort(confidence) if rising is None else rising
    counts = present[rising]
    before = jnp.cumsum(counts)  # the queries that count go first, in the same order
    place = jnp.where(counts, before - 1, count + jnp.arange(n) - before)
    order = jnp.zeros_like(rising).at[place].set(rising, unique_indices=True)
    ordered = jnp.where(present, confidence, jnp.inf)[order]
    tries = min(n, most)
    # The last query below each cut: evenly spread over the present queries, then moved to the end of its ties.
    last = jnp.maximum(-(-np.arange(1, tries + 1) * count // tries) - 1, 0)
    last = jnp.searchsorted(ordered, ordered[last], side="right") - 1
    following = jnp.minimum(last + 1, n - 1)
    fresh = jnp.diff(last, prepend=-1) != 0
    parts = fresh & (last + 1 < count) & (ordered[following] > ordered[last])
    middle = _between(ordered[last], ordered[following])
    every = fresh & (last + 1 == count)
    return Cuts(order, last, jnp.where(parts, middle, NEVER_ANSWER), parts, every, count)


def _between(low: Array, high: Array) -> Array:
    """Return the midpoint of two confidences; the lower confidence if no float lies between them."""
    middle = low + (high - low) / 2
    return jnp.where(middle < high, middle, low)


def best_refusal(confidence: Array, right: Array, present: Array, worth: Array) -> tuple[Array, ...]:
    """Return the refusal threshold that gains most over answering everything, for one model.

    The result is (threshold, gain per query, share refused). The model refuses up to the threshold, which is
    NEVER_REFUSE where no threshold gains.

    Args:
        confidence: (n,) calibrated confidence.
        right: (n,) probability that the answer is right.
        present: (n,) bool: the queries that count.
        worth: () worth of a refusal, in right answers.

    >>> right = jnp.array([0.1, 0.9, 0.8])
    >>> [round(float(figure), 3) for figure in best_refusal(right, right, jnp.ones(3, bool), jnp.asarray(0.7))]
    [0.45, 0.2, 0.333]
    """
    cuts = spread_cuts(confidence, present, MOST_CUTS)
    gain = cuts.sums(jnp.where(present, worth - right, 0.0))
    gain = jnp.where(cuts.parts | cuts.every, gain, -jnp.inf)
    best = jnp.argmax(gain)
    gains = gain[best] > 0
    refusal = jnp.where(gains, cuts.threshold[best], NEVER_REFUSE)
    share = jnp.where(gains, cuts.last[best] + 1.0, 0.0)
    return refusal, divide(jnp.maximum(gain[best], 0.0), cuts.count), divide(share, cuts.count)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Blending:
    """The blending weights of labels with their probabilities, and the worth of a refusal.

    The default weights do well on most logs.
    """

    calibrated: float | Array = 0.375
    """() weight of the model's own calibrated confidence, a."""
    conditional: float | Array = 0.375
    """() weight of the probability given the confidence of the model asked before, b."""
    refusal_worth: Array | None = None
    """() worth of a refusal, in right answers; None: models do not refuse."""

    @property
    def label(self) -> float | Array:
        """() weight of the label itself, 1 − a − b."""
        return 1 - self.calibrated - self.conditional


def calibrate_conditionally(
    logprob: Array, correct: Array, present: Array, transform: Transform, answered: Array | None = None
) -> Array:
    """Estimate the probability that the second model of each pair is right, given the confidence of the first: (P, n).

    The estimate is that of `fit_calibrator`, with the labels of another model.

    Args:
        logprob: (n, k) raw log-probabilities.
        correct: (n, k) bool: the answer is right.
        present: (n, k) bool: there is an answer, and the query counts.
        transform: the transform of the raw confidence.
        answered: (n, k) bool: the log-probabilities to predict from; None: as `present`.
    """
    left, right = np.triu_indices(logprob.shape[1], 1)

    def one(left: Array, right: Array) -> Array:
        raw = logprob[:, left]
        both = present[:, left] & present[:, right]
        mask = both if answered is None else answered[:, left]
        return fit_calibrator(raw, correct[:, right], both, transform)(jnp.where(mask, raw, -1.0))

    return lax.map(lambda pair: one(*pair), (left, right))  # `vmap` would run every pair as long as the slowest


def recentre(expected: Any, right: Any, present: Any, xp: Any = np) -> Any:
    """Shift expected labels so that their mean is the mean of the labels: (n,).

    Args:
        expected: (n,) expected labels.
        right: (n,) the labels.
        present: (n,) bool: the queries that both means are over.
        xp: numpy, or jax.numpy within a jitted function.
    """
    count = xp.maximum(present.sum(), 1)
    return expected + xp.where(present, right - expected, 0.0).sum() / count


#: Thresholds tried for each pair, at most.
MOST_THRESHOLDS = 400


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CandidateRows:
    """The data that candidates are scored by: n queries, k models and their P pairs."""

    confidence: Array  # (n, k) calibrated confidence
    conditional: Array  # (P, n) probabilities of `calibrate_conditionally`
    correct: Array  # (n, k) bool: the answer is right
    present: Array  # (n, k) bool: there is an answer, and the query counts
    charge: Array | None = None  # money of each answer (n, k), or of every answer of a model (k,)
    answer: Array | None = None  # (n, k) codes of answers, as in `Log.answer`; None: answers are not compared

    @classmethod
    def of(
        cls,
        calibrators: Calibrator,
        rows: tuple[Array, Array, Array],
        charge: Any = None,
        answer: Any = None,
        answered: Array | None = None,
    ) -> "CandidateRows":
        """Calibrate raw confidences, and cross-calibrate every pair of models on the same rows.

        Args:
            calibrators: (k,) calibrators of the models.
            rows: (logprob, correct, present), each (n, k): raw log-probabilities, whether the answer is right, and
                whether there is an answer and the query counts.
            charge, answer: as the fields.
            answered: (n, k) bool: there is an answer, whether or not the query counts; None: as `present`.
        """
        logprob, correct, present = rows
        conditional = calibrate_conditionally(logprob, correct, present, calibrators.transform, answered)
        confidence = calibrate_all(calibrators, logprob, present if answered is None else answered)
        return cls(confidence, conditional, correct, present, charge, answer)

    @property
    def charges(self) -> Array:
        """(n, k) money of each answer."""
        return jnp.broadcast_to(jnp.asarray(self.charge), self.confidence.shape)

    def conditional_of(self, model: Any, other: Any) -> Array:
        """Return the probability that a model is right, given the confidence of another: (n,); by position."""
        k = self.confidence.shape[1]
        number = np.zeros((k, k), int)
        for pair, (i, j) in enumerate(combinations(range(k), 2)):
            number[i, j] = number[j, i] = pair
        return self.conditional[jnp.asarray(number)[model, other]]


def score_pairs(rows: CandidateRows, blending: Blending) -> Candidates:
    """Score every single model, and every pair at each of its thresholds, on n queries.

    The function can be mapped (`vmap`) over resampled or masked logs.

    Args:
        rows: the queries.
        blending: the blending weights of labels, and the worth of a refusal.

    >>> confidence, right = jnp.array([[0.2, 0.9], [0.9, 0.9]]), jnp.array([[False, True], [True, True]])
    >>> charge = jnp.array([[1.0, 14.0], [1.0, 6.0]])
    >>> rows = CandidateRows(confidence, jnp.full((1, 2), 0.9), right, jnp.ones((2, 2), bool), charge)
    >>> cascades = score_pairs(rows, Blending())
    >>> cascades.cost.tolist(), cascades.label_error.tolist()  # small, large, small → large, which answers the second
    ([1.0, 10.0, 8.0, 11.0], [0.5, 0.0, 0.0, inf])
    """
    alone = _single_models(rows, blending)
    rising = jnp.argsort(rows.confidence, axis=0).T
    left, right = np.triu_indices(alone.k, 1)
    pairs = lax.map(lambda pair: _pair(rows, blending, alone, rising[pair[0]], *pair), (left, right, rows.conditional))
    return concatenate(alone, jax.tree.map(jnp.ravel, pairs), xp=jnp)


def _single_models(rows: CandidateRows, blending: Blending) -> Candidates:
    """Score each model alone (k,), by its labels as they are; a model without answers has the error inf."""
    answers = rows.present.sum(0)
    error = jnp.where(answers > 0, 1 - divide((rows.present * rows.correct).sum(0), answers, 0.5), jnp.inf)
    bill = jnp.where(rows.present, rows.charges, 0.0).sum(0) / jnp.maximum(answers, 1)
    cost = jnp.where(answers > 0, bill, rows.charges.mean(0))
    refusal, abstention, always = None, jnp.zeros_like(cost), jnp.full_like(cost, ALWAYS_ANSWER)
    if blending.refusal_worth is not None:
        refusal, gain, abstention = best_refusals(rows, blending)
        error = error - gain
    models = jnp.arange(len(cost))
    places = {"first": models, "second": models, "third": models}
    judged = {"error": error, "cost": cost, "label_error": error, "abstention": abstention}
    return Candidates(k=len(cost), **places, threshold=always, fallback=always, **judged, refusal=refusal)


def best_refusals(rows: CandidateRows, blending: Blending) -> tuple[Array, Array, Array]:
    """Return `best_refusal` of every model: (threshold, gain per query, share refused), each (k,)."""
    worth = jnp.asarray(blending.refusal_worth, rows.confidence.dtype)
    right = blend_labels(rows, blending)
    level, gain, share = jax.vmap(best_refusal, (1, 1, 1, None))(rows.confidence, right, rows.present, worth)
    return level, gain, share


def blend_labels(rows: CandidateRows, blending: Blending) -> Array:
    """Blend each label with the calibrated confidence of its model: (n, k) probabilities of being right."""
    by_model = jax.vmap(partial(recentre, xp=jnp), 1, 1)
    expected = by_model(rows.confidence, rows.correct.astype(rows.confidence.dtype), rows.present)
    return blending.label * rows.correct + (1 - blending.label) * expected


def _pair(
    rows: CandidateRows,
    blending: Blending,
    singles: Candidates,
    rising: Array,
    first: Any,
    second: Any,
    conditional: Array,
) -> Candidates:
    """Score one pair of models at M thresholds: queries below a cut are deferred.

    Args:
        rows, blending: as for `score_pairs`.
        singles: the single models.
        rising: (n,) the queries by rising confidence of the first model.
        first, second: () indices of the two models.
        conditional: (n,) probability that the second model is right, given the confidence of the first.
    """
    present = rows.present[:, first] & rows.present[:, second]
    confidence, second_confidence = rows.confidence[:, first], rows.confidence[:, second]
    first_label, second_label = (rows.correct[:, model].astype(confidence.dtype) for model in (first, second))
    by_itself, by_second, by_first = (
        recentre(expected, label, present, jnp)
        for expected, label in (
            (confidence, first_label),
            (second_confidence, second_label),
            (conditional, second_label),
        )
    )
    first_right = blending.label * first_label + (blending.calibrated + blending.conditional) * by_itself
    second_right = blending.label * second_label + blending.calibrated * by_second + blending.conditional * by_first
    refuses, refusal = None, None
    if singles.refusal is not None:
        refusal = singles.refusal[second]
        refuses, worth = second_confidence <= refusal, jnp.asarray(blending.refusal_worth, second_right.dtype)
        second_right, second_label = (jnp.where(refuses, worth, of) for of in (second_right, second_label))

    cuts = spread_cuts(confidence, present, MOST_THRESHOLDS, rising)
    below = partial(cuts.sum_below_per_query, present=present)
    mean = partial(cuts.mean, present=present)
    wrong = mean(1 - first_label, empty=1.0)
    places, level = jnp.zeros_like(cuts.last), jnp.zeros_like(cuts.threshold)
    return Candidates(
        k=singles.k,
        first=places + first,
        second=places + second,
        third=places + second,
        threshold=cuts.threshold,
        fallback=level + ALWAYS_ANSWER,
        error=jnp.where(cuts.parts, wrong - below(second_right - first_right), jnp.inf),
        cost=singles.cost[first] + below(rows.charges[:, second]),
        label_error=jnp.where(cuts.parts, wrong - below(second_label - first_label), jnp.inf),
        abstention=level if refuses is None else below(refuses.astype(second_right.dtype)),
        refusal=None if refusal is None else level + refusal,
    )
