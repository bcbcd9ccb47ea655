"""Single models and pairs of models, judged on the queries of the log itself: no copula, and labels with less noise.

A pair that asks model i and, where Φ_i ≤ φ, then model j, errs with probability

    E[1 − y_i; Φ_i > φ] + E[1 − y_j; Φ_i ≤ φ]        y = 1 where the answer is right

A mean over n labels is noisy, and the best of many noisy figures is the luckiest one. So each label of a pair is
averaged with what is expected of it, by its own confidence and by that of the model asked before:

    ŷ_j = (1 − a − b) y_j + a Φ_j + b P(y_j = 1 | ξ_i)        ŷ_i = (1 − a − b) y_i + (a + b) Φ_i

What is expected takes away noise and adds a bias, where confidences tell little: `judging` estimates a and b. A pair
costs what its path costs on each of the queries: those that are passed on may be longer than others. Queries of one
confidence stay together: between two thresholds stands a ladder of both.

Where models may refuse to answer, the last one of a policy does so up to the confidence ρ that is best for it alone. It
earns of each query R = 1 − (what a refusal costs, in errors) where Φ ≤ ρ, and else y; the best ρ is the best of cuts.
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
from rcjax.model.calibration import Calibrator, Transform, calibrate_all, fit_calibrator
from rcjax.solving.frontier.policies import ALWAYS_ANSWER, NEVER_ANSWER, NEVER_REFUSE
from rcjax.tuning.candidates import Candidates, together

#: Cuts tried for each model, at most.
MOST_CUTS = 200


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cuts:
    """Places that part n queries by their confidence, M of them; ties stay together."""

    order: jax.Array  # (n,) the queries by rising confidence, those that do not count last
    last: jax.Array  # (M,) the place in that order of the last query below the cut
    threshold: jax.Array  # (M,) halfway to the next confidence; NEVER_ANSWER where it parts nothing
    parts: jax.Array  # (M,) whether there are queries on both sides, and no cut before is the same
    every: jax.Array  # (M,) whether all queries are below, and at no cut before
    count: jax.Array  # () queries that count

    def sums(self, values: jax.Array) -> jax.Array:
        """(M,) the sum of values (n,) over the queries below each cut."""
        return jnp.cumsum(values[self.order])[self.last]

    def means_below(self, values: jax.Array, present: jax.Array) -> jax.Array:
        """(M,) `sums` of the queries that are present (n,), as a share of all that count."""
        return divide(self.sums(jnp.where(present, values, 0.0)), self.count)

    def mean(self, values: jax.Array, present: jax.Array, empty: float = 0.0) -> jax.Array:
        """() the mean of values (n,) over the queries that are present (n,); `empty` where there is none."""
        return divide(jnp.where(present, values, 0.0).sum(), self.count, empty)


def spread_cuts(confidence: jax.Array, present: jax.Array, most: int, rising: jax.Array | None = None) -> Cuts:
    """At most so many cuts between the confidences (n,) of the queries that are `present` (n,), spread over them.

    The thresholds lie halfway between confidences that differ, so that no rounding moves a tie across.

    Args:
        confidence: (n,) of the queries.
        present: (n,) which of them count.
        most: cuts.
        rising: (n,) the queries by rising confidence, for who has it: sorting takes longer than all the rest.

    >>> cuts = spread_cuts(jnp.array([0.75, 0.25, 0.25]), jnp.ones(3, bool), 10)
    >>> cuts.threshold.tolist(), cuts.last.tolist(), cuts.parts.tolist()
    ([0.5, 1.0, 1.0], [1, 1, 2], [True, False, False])
    """
    n = confidence.shape[0]
    count = present.sum()
    rising = jnp.argsort(confidence) if rising is None else rising
    counts = present[rising]
    before = jnp.cumsum(counts)  # those that count go ahead, in that order
    place = jnp.where(counts, before - 1, count + jnp.arange(n) - before)
    order = jnp.zeros_like(rising).at[place].set(rising, unique_indices=True)
    ordered = jnp.where(present, confidence, jnp.inf)[order]
    tries = min(n, most)
    # The last of the queries below: spread over those present, and moved to the end of its ties.
    last = jnp.maximum(-(-np.arange(1, tries + 1) * count // tries) - 1, 0)
    last = jnp.searchsorted(ordered, ordered[last], side="right") - 1
    following = jnp.minimum(last + 1, n - 1)
    fresh = jnp.diff(last, prepend=-1) != 0
    parts = fresh & (last + 1 < count) & (ordered[following] > ordered[last])
    middle = _between(ordered[last], ordered[following])
    every = fresh & (last + 1 == count)
    return Cuts(order, last, jnp.where(parts, middle, NEVER_ANSWER), parts, every, count)


def _between(low: jax.Array, high: jax.Array) -> jax.Array:
    """Halfway between two confidences; the lower one where there is nothing between, as they are neighbours."""
    middle = low + (high - low) / 2
    return jnp.where(middle < high, middle, low)


def refuse_alone(
    confidence: jax.Array, right: jax.Array, present: jax.Array, worth: jax.Array
) -> tuple[jax.Array, ...]:
    """(refusal, gain, share refused) of one model that refuses where that gains most on answering everything.

    The refusal is the confidence up to which it refuses, NEVER_REFUSE where nothing is gained; the gain is per query.

    Args:
        confidence: (n,) calibrated.
        right: (n,) how often the answer is right.
        present: (n,) whether the query counts.
        worth: () of a refusal, in right answers.

    >>> right = jnp.array([0.1, 0.9, 0.8])
    >>> [round(float(figure), 3) for figure in refuse_alone(right, right, jnp.ones(3, bool), jnp.asarray(0.7))]
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
class Judging:
    """How policies are judged: weights of what is expected of a label, as do well on most logs; and refusals."""

    calibrated: Any = 0.375
    """() the weight of the model's own calibrated confidence, a."""
    crossed: Any = 0.375
    """() that of the probability that the confidence of the model before tells, b."""
    refusal: Any = None
    """() what a refusal is worth, in right answers; None: nobody refuses."""

    @property
    def label(self) -> Any:
        """() the weight of the label itself."""
        return 1 - self.calibrated - self.crossed


def cross_calibrate(
    logprob: jax.Array, correct: jax.Array, present: jax.Array, transform: Transform, answered: jax.Array | None = None
) -> jax.Array:
    """(P, n) probability that the second model of each pair is right, by the confidence of the first.

    As `fit_calibrator`, with the labels of another model.

    Args:
        logprob: (n, k) raw log-probabilities.
        correct: (n, k) whether the answer is right.
        present: (n, k) whether there is an answer and the query is to count.
        transform: that of the raw confidence.
        answered: (n, k) which log-probabilities to predict from; by default those that count.
    """
    left, right = np.triu_indices(logprob.shape[1], 1)

    def one(left: jax.Array, right: jax.Array) -> jax.Array:
        raw, both = logprob[:, left], present[:, left] & present[:, right]
        mask = both if answered is None else answered[:, left]
        return fit_calibrator(raw, correct[:, right], both, transform)(jnp.where(mask, raw, -1.0))

    return lax.map(lambda pair: one(*pair), (left, right))  # in step all would wait for the slowest


def centred(expected: Any, right: Any, present: Any, xp: Any = np) -> Any:
    """(n,) what is expected of labels, moved so that its mean is that of the labels.

    Args:
        expected: (n,)
        right: (n,) the labels.
        present: (n,) the queries that the means are over.
        xp: numpy, or jax.numpy within a jitted function.
    """
    count = xp.maximum(present.sum(), 1)
    return expected + xp.where(present, right - expected, 0.0).sum() / count


#: Thresholds tried for each pair, at most.
MOST_THRESHOLDS = 400


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CandidateRows:
    """What is known of n queries, and P pairs of k models."""

    confidence: Any  # (n, k) calibrated
    crossed: Any  # (P, n) of `cross_calibrate`
    correct: Any  # (n, k) whether the answer is right
    present: Any  # (n, k) whether there is an answer and the query is to count
    charge: Any = None  # (n, k) money of each answer, or (k,) of any; None where none is asked for
    answer: Any = None  # (n, k) codes of answers, as `Log.answer` has them; None where none are compared

    @classmethod
    def of(
        cls,
        calibrators: Calibrator,
        rows: tuple[jax.Array, jax.Array, jax.Array],
        charge: Any = None,
        answer: Any = None,
        answered: jax.Array | None = None,
    ) -> "CandidateRows":
        """With what their own labels and raw confidences tell of one model by another.

        Args:
            calibrators: (k,) of the models.
            rows: (logprob, correct, present), each (n, k): raw log-probabilities, whether the answer is right, and
                whether there is one and the query is to count.
            charge, answer: as the fields.
            answered: (n, k) whether there is an answer, where not all of them are to count.
        """
        logprob, correct, present = rows
        crossed = cross_calibrate(logprob, correct, present, calibrators.transform, answered)
        confidence = calibrate_all(calibrators, logprob, present if answered is None else answered)
        return cls(confidence, crossed, correct, present, charge, answer)

    @property
    def charges(self) -> jax.Array:
        """(n, k) money of each answer."""
        return jnp.broadcast_to(self.charge, self.confidence.shape)

    def told(self, model: Any, other: Any) -> jax.Array:
        """(n,) how likely a model is right, by the confidence of another; positions."""
        k = self.confidence.shape[1]
        number = np.zeros((k, k), int)
        for pair, (i, j) in enumerate(combinations(range(k), 2)):
            number[i, j] = number[j, i] = pair
        return self.crossed[jnp.asarray(number)[model, other]]


def candidates(rows: CandidateRows, judging: Judging) -> Candidates:
    """Every single model, and every pair at every threshold that parts the queries, judged on n queries.

    `vmap` it over resampled or masked logs.

    Args:
        rows: of the queries.
        judging: how they are judged.

    >>> confidence, right = jnp.array([[0.2, 0.9], [0.9, 0.9]]), jnp.array([[False, True], [True, True]])
    >>> charge = jnp.array([[1.0, 14.0], [1.0, 6.0]])
    >>> rows = CandidateRows(confidence, jnp.full((1, 2), 0.9), right, jnp.ones((2, 2), bool), charge)
    >>> cascades = candidates(rows, Judging())
    >>> cascades.cost.tolist(), cascades.counted.tolist()  # small, large, small → large: the second query is answered
    ([1.0, 10.0, 8.0, 11.0], [0.5, 0.0, 0.0, inf])
    """
    alone = _single_models(rows, judging)
    rising = jnp.argsort(rows.confidence, axis=0).T
    left, right = np.triu_indices(alone.k, 1)
    pairs = lax.map(lambda pair: _pair(rows, judging, alone, rising[pair[0]], *pair), (left, right, rows.crossed))
    return together(alone, jax.tree.map(jnp.ravel, pairs), xp=jnp)


def _single_models(rows: CandidateRows, judging: Judging) -> Candidates:
    """(k,) each model alone: by its labels as they are, but for refusals; without answers of the error inf."""
    answers = rows.present.sum(0)
    error = jnp.where(answers > 0, 1 - divide((rows.present * rows.correct).sum(0), answers, 0.5), jnp.inf)
    bill = jnp.where(rows.present, rows.charges, 0.0).sum(0) / jnp.maximum(answers, 1)
    cost = jnp.where(answers > 0, bill, rows.charges.mean(0))
    refusal, abstention, always = None, jnp.zeros_like(cost), jnp.full_like(cost, ALWAYS_ANSWER)
    if judging.refusal is not None:
        refusal, gain, abstention = refusals(rows, judging)
        error = error - gain
    models = jnp.arange(len(cost))
    places = {"first": models, "second": models, "third": models}
    judged = {"error": error, "cost": cost, "counted": error, "abstention": abstention}
    return Candidates(k=len(cost), **places, threshold=always, fallback=always, **judged, refusal=refusal)


def refusals(rows: CandidateRows, judging: Judging) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(the confidence up to which each model refuses alone, what that gains, the share refused), each (k,).

    >>> confidence, right = jnp.array([[0.2, 0.9], [0.9, 0.9]]), jnp.array([[False, True], [True, True]])
    >>> rows = CandidateRows(confidence, jnp.full((1, 2), 0.9), right, jnp.ones((2, 2), bool), jnp.array([1.0, 10.0]))
    >>> [round(float(figure[0]), 3) for figure in refusals(rows, Judging(refusal=jnp.array(0.8)))]
    [0.55, 0.344, 0.5]
    """
    worth = jnp.asarray(judging.refusal, rows.confidence.dtype)
    right = alone_right(rows, judging)
    level, gain, share = jax.vmap(refuse_alone, (1, 1, 1, None))(rows.confidence, right, rows.present, worth)
    return level, gain, share


def alone_right(rows: CandidateRows, judging: Judging) -> jax.Array:
    """(n, k) how likely each answer is right, its label blended with what is expected of it."""
    by_model = jax.vmap(partial(centred, xp=jnp), 1, 1)
    expected = by_model(rows.confidence, rows.correct.astype(rows.confidence.dtype), rows.present)
    return judging.label * rows.correct + (1 - judging.label) * expected


def _pair(
    rows: CandidateRows,
    judging: Judging,
    alone: Candidates,
    rising: jax.Array,
    left: Any,
    right: Any,
    crossed: jax.Array,
) -> Candidates:
    """One pair of models at M thresholds: queries below a cut are passed on.

    Args:
        rows, judging: as of `candidates`.
        alone: the single models.
        rising: (n,) the queries by rising confidence of the first.
        left, right: () the models.
        crossed: (n,) what the first tells of the second.
    """
    present = rows.present[:, left] & rows.present[:, right]
    labels = rows.correct.astype(rows.confidence.dtype)
    confidence, beyond = rows.confidence[:, left], rows.confidence[:, right]
    first_label, second_label = labels[:, left], labels[:, right]
    by_itself, by_second, by_first = (
        centred(expected, label, present, jnp)
        for expected, label in ((confidence, first_label), (beyond, second_label), (crossed, second_label))
    )
    first = judging.label * first_label + (judging.calibrated + judging.crossed) * by_itself
    second = judging.label * second_label + judging.calibrated * by_second + judging.crossed * by_first
    refuses, refusal = None, None
    if alone.refusal is not None:
        refusal = alone.refusal[right]
        refuses, worth = beyond <= refusal, jnp.asarray(judging.refusal, second.dtype)
        second, second_label = (jnp.where(refuses, worth, of) for of in (second, second_label))

    cuts = spread_cuts(confidence, present, MOST_THRESHOLDS, rising)
    passed_on, everyone = partial(cuts.means_below, present=present), partial(cuts.mean, present=present)
    wrong = everyone(1 - first_label, empty=1.0)
    places, level = jnp.zeros_like(cuts.last), jnp.zeros_like(cuts.threshold)
    return Candidates(
        k=alone.k,
        first=places + left,
        second=places + right,
        third=places + right,
        threshold=cuts.threshold,
        fallback=level + ALWAYS_ANSWER,
        error=jnp.where(cuts.parts, wrong - passed_on(second - first), jnp.inf),
        cost=alone.cost[left] + passed_on(rows.charges[:, right]),
        counted=jnp.where(cuts.parts, wrong - passed_on(second_label - first_label), jnp.inf),
        abstention=level if refuses is None else passed_on(refuses.astype(second.dtype)),
        refusal=None if refusal is None else level + refusal,
    )
