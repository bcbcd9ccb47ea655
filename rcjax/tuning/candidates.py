"""Tables of candidate policies, and the scores of single models and pairs by the labels of a log, without copulas.

A candidate has a first model, a second model that is asked if the first is unsure, and a third model that is asked if
the two answers differ. A chain of more models has a threshold for each model.

A pair asks model i and, where Φ_i ≤ φ, then model j. Its error probability is

    E[1 − y_i; Φ_i > φ] + E[1 − y_j; Φ_i ≤ φ]        y = 1 where the answer is right

A mean over n labels is noisy, and the best of many noisy means is optimistic. So each label of a pair is averaged with
two estimates of its probability: given the confidence of the model itself, and given that of the earlier model:

    ŷ_j = (1 − a − b) y_j + a Φ_j + b P(y_j = 1 | ξ_i),        ŷ_i = (1 − a − b) y_i + (a + b) Φ_i.

ξ is the transformed confidence (`rcjax.model.calibration`). Each probability is first shifted so that its mean is the
mean of the labels (`recentre`). So ŷ_i has the mean of y_i. The error is mean(1 − y_i) − Σ_{Φ_i ≤ φ} (ŷ_j − ŷ_i)/n.
The probabilities reduce the noise, but add a bias where confidences tell little: `scoring` estimates a and b from the
log.

The cost of a pair is the mean cost of its path over the queries, as deferred queries may be longer than others. The
last model of a policy is not asked for a confidence, as its answer is kept in any case (`Log.signal_cost`). Tied
queries are deferred together; a ladder position between two thresholds sends a random share of them.

Where answers are missing, the figures of all policies are means over the complete queries, as answers may lack for hard
or for easy queries. If too few queries are complete (`Log.comparable`), they are means over the queries that all
models of the policy answered; the cost of the first model of a pair is then its mean over all of its own answers.

If models may abstain, the last model of a policy abstains up to the confidence ρ that is best for it alone.
A query counts as R right answers if Φ ≤ ρ, and as y otherwise: R = 1 − (price of an abstention, in errors). ρ is the
best of 200 thresholds.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.batching import Array, join, number_pairs, pad_to_size_class, take_entries
from rcjax._core.compilation import compiled
from rcjax._core.numerics import divide
from rcjax.model.calibration import Calibrator, Transform, calibrate_all, fit_calibrator
from rcjax.solving.frontier.points import (
    ALWAYS_ANSWER,
    NEVER_ABSTAIN,
    NEVER_ANSWER,
    NO_MODEL,
    Agreements,
    Policies,
    lower_hull,
    thin_hull,
)

#: Most queries that blending weights and seconds are estimated on, and that a bootstrap tunes again by default: more
#: queries would not change a choice.
ENOUGH_QUERIES = 5_000


def draw_enough(rows: np.ndarray) -> np.ndarray:
    """Draw at most `ENOUGH_QUERIES` of some rows at random, with a fixed seed: (m,) in the order of the rows.

    >>> draw_enough(np.arange(3)).tolist(), len(draw_enough(np.arange(6_000)))
    ([0, 1, 2], 5000)
    """
    if len(rows) <= ENOUGH_QUERIES:
        return rows
    return np.sort(np.random.default_rng(0).permutation(rows)[:ENOUGH_QUERIES])


#: Ladders of folds and bootstrap replicates are padded to this many rungs, so that few shapes are compiled; a deployed
#: ladder has fewer (`frontier.MAX_RUNGS`).
RESAMPLED_RUNGS = 32


@partial(
    jax.tree_util.register_dataclass,
    data_fields=(
        *("first", "second", "third", "threshold", "fallback", "abstain_threshold"),
        *("penalty", "cost", "abstention", "chain"),
    ),
    meta_fields=("k",),
)
@dataclasses.dataclass(frozen=True, eq=False)
class Candidates:
    """A table of C policies over k models; jax arrays within compiled functions, numpy arrays elsewhere.

    Four kinds of policies are written in the same columns:

    | kind           | first | second | third | threshold     | fallback      | chain          |
    |----------------|-------|--------|-------|---------------|---------------|----------------|
    | single model i | i     | i      | i     | ALWAYS_ANSWER | not used      | NaN            |
    | pair           | i     | j      | j     | of i          | not used      | NaN            |
    | agreement      | i     | j      | l     | of i          | of j          | NaN            |
    | chain i, …, l  | i     | l      | l     | not used      | not used      | of each member |
    """

    k: int
    first: Array
    """(C,) index of the model asked first."""
    second: Array
    """(C,) index of the model asked if the first is unsure; the first again for a single model."""
    third: Array
    """(C,) index of the model asked if the two answers differ; the second again if answers are not compared."""
    threshold: Array
    """(C,) calibrated confidence up to which the second model is asked; ALWAYS_ANSWER for a single model."""
    fallback: Array
    """(C,) confidence of the second model up to which the third is asked, if an answer is not known."""
    penalty: Array
    """(C,) errors by blended labels, and abstentions at their price; inf for a model without answers, and for a
    threshold that divides no queries."""
    cost: Array
    """(C,) mean cost of the paths of the queries, in money per query."""
    abstention: Array
    """(C,) share of the queries that get no answer."""
    abstain_threshold: Array | None = None
    """(C,) confidence up to which the last model abstains; None: models do not abstain."""
    chain: Array | None = None
    """(C, k) thresholds of a chain's models; NaN for models that it does not ask, and for candidates of other kinds;
    None: no candidate is a chain."""

    def take(self, indices: Any) -> "Candidates":
        """Return the candidates at some indices."""
        return take_entries(self, indices)

    @property
    def is_single(self) -> Any:
        """(C,) bool: the single models."""
        return self.first == self.third

    @property
    def is_agreement(self) -> Any:
        """(C,) bool: the agreement policies, which compare answers."""
        return self.second != self.third

    def loss(self, lam: Any) -> Any:
        """Return penalty + λ·cost of each candidate for each λ (L,): (L, C)."""
        return self.penalty + lam[:, None] * self.cost

    def best(self, lam: Any) -> "Candidates":
        """Return the candidate of the least loss for each λ: (L,)."""
        return self.take(self.loss(lam).argmin(1))

    def rungs(self) -> "Candidates":
        """Return the corners of the lower hull, by rising cost: (R,), `RESAMPLED_RUNGS` at most."""
        hull = lower_hull(self.cost, self.penalty)
        return self.take(hull[thin_hull(self.cost[hull], self.penalty[hull], RESAMPLED_RUNGS)])

    def padded(self) -> "Candidates":
        """Repeat the last candidate until there are `RESAMPLED_RUNGS`."""
        count = len(self.cost)
        return self.take(np.minimum(np.arange(max(RESAMPLED_RUNGS, count)), count - 1))

    def policies(self, agreement: bool | None = None) -> Policies:
        """Return the candidates as `Policies`: (C,).

        Args:
            agreement: include `agreements`; None: only if a candidate is an agreement policy.

        >>> none = np.zeros(2)
        >>> some = Candidates(3, *np.array([[0, 1], [2, 1], [2, 1]]), np.array([0.7, 0.0]), *[none] * 4)
        >>> some.policies().bounds[..., 0].tolist()
        [[0.7, 1.0, 0.0], [1.0, 0.0, 1.0]]
        """
        models, dtype, xp = np.arange(self.k), self.threshold.dtype, self.threshold.__array_namespace__()
        first, second, third = (place[:, None] == models for place in (self.first, self.second, self.third))
        thresholds = xp.where(second, self.fallback[:, None], NEVER_ANSWER)
        thresholds = xp.where(first, self.threshold[:, None], thresholds)
        thresholds = xp.where(third, ALWAYS_ANSWER, thresholds).astype(dtype)
        members = first | second | third
        abstentions = agreements = None
        if self.chain is not None:
            asked = ~xp.isnan(self.chain)
            is_chain = asked.any(1, keepdims=True)
            members = xp.where(is_chain, asked, members)
            thresholds = xp.where(is_chain, xp.where(asked, self.chain, NEVER_ANSWER), thresholds).astype(dtype)
        if self.abstain_threshold is not None:
            abstentions = xp.where(third, self.abstain_threshold[:, None], NEVER_ABSTAIN).astype(dtype)
            thresholds = xp.maximum(thresholds, abstentions)
        if self.is_agreement.any() if agreement is None else agreement:
            is_second = second & self.is_agreement[:, None]
            places = (xp.where(is_second, place[:, None], NO_MODEL) for place in (self.first, self.third))
            agreements = Agreements(*(place.astype(np.int32) for place in places))
        return Policies.from_cascades(thresholds, members, abstentions, agreements)


#: Abstention thresholds tried for each model, at most.
MAX_ABSTAIN_THRESHOLDS = 200


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ThresholdGrid:
    """M thresholds that divide n queries by their confidence; queries with equal confidences stay together."""

    order: Array  # (n,) the queries by rising confidence, then the queries that do not count
    last: Array  # (M,) index in `order` of the last query up to the threshold
    threshold: Array  # (M,) halfway to the next confidence; NEVER_ANSWER if the threshold divides nothing
    splits: Array  # (M,) bool: queries lie on both sides, and no earlier threshold is the same
    covers_all: Array  # (M,) bool: the threshold at the largest confidence, up to which every query lies
    included: Array  # (n,) bool: the queries that count

    @property
    def count(self) -> Array:
        """() number of queries that count."""
        return self.included.sum()

    def sums(self, values: Array) -> Array:
        """Sum values (n,) over the queries that count, up to each threshold: (M,)."""
        return jnp.cumsum(jnp.where(self.included, values, 0.0)[self.order])[self.last]

    def mean_up_to(self, values: Array) -> Array:
        """Return the part of the mean of values (n,) that comes from the queries up to each threshold: (M,)."""
        return divide(self.sums(values), self.count)

    def mean(self, values: Array, empty: float = 0.0) -> Array:
        """Return the mean of values (n,) over the queries that count; `empty` where there is none."""
        return divide(jnp.where(self.included, values, 0.0).sum(), self.count, empty)


def spread_thresholds(confidence: Array, included: Array, most: int, rising: Array | None = None) -> ThresholdGrid:
    """Spread at most `most` thresholds evenly over the confidences of the queries that count.

    Each threshold lies halfway between two confidences, so that rounding moves no query across.

    Args:
        confidence: (n,) confidences of the queries.
        included: (n,) bool: the queries that count.
        most: number of thresholds at most.
        rising: (n,) the queries by rising confidence, if the caller has sorted them: sorting is the slowest step.

    >>> grid = spread_thresholds(jnp.array([0.75, 0.25, 0.25]), jnp.ones(3, bool), 10)
    >>> grid.threshold.tolist(), grid.last.tolist(), grid.splits.tolist()
    ([0.5, 1.0, 1.0], [1, 1, 2], [True, False, False])
    """
    n = confidence.shape[0]
    count = included.sum()
    rising = jnp.argsort(confidence) if rising is None else rising
    is_included = included[rising]
    before = jnp.cumsum(is_included)  # the queries that count go first, in the same order
    place = jnp.where(is_included, before - 1, count + jnp.arange(n) - before)
    order = jnp.zeros_like(rising).at[place].set(rising, unique_indices=True)
    ordered = jnp.where(included, confidence, jnp.inf)[order]
    # The last query up to each threshold: evenly spread over the queries that count, then moved to the end of its ties.
    last = jnp.maximum(even_parts(count, min(n, most)) - 1, 0)
    last = jnp.searchsorted(ordered, ordered[last], side="right") - 1
    following = jnp.minimum(last + 1, n - 1)
    is_new = jnp.diff(last, prepend=-1) != 0
    low, high = ordered[last], ordered[following]
    splits = is_new & (last + 1 < count) & (high > low)
    middle = low + (high - low) / 2
    middle = jnp.where(middle < high, middle, low)  # the lower if no float lies between
    covers_all = is_new & (last + 1 == count)
    return ThresholdGrid(order, last, jnp.where(splits, middle, NEVER_ANSWER), splits, covers_all, included)


def even_parts(count: Array, parts: int) -> Array:
    """Return ⌈i · count / parts⌉ for i = 1, …, parts; i · count may exceed int32, so it is not formed."""
    i = np.arange(1, parts + 1)
    return count // parts * i - (-(count % parts) * i // parts)


def best_abstention(confidence: Array, right: Array, included: Array, worth: Array) -> tuple[Array, Array, Array]:
    """Return the abstention threshold that gains most over answering everything, for one model.

    The result is (threshold, gain per query, share without an answer), () each. The model abstains up to the threshold,
    which is NEVER_ABSTAIN if no threshold gains.

    Args:
        confidence: (n,) calibrated confidence.
        right: (n,) probability that the answer is right.
        included: (n,) bool: the queries that count.
        worth: () worth of an abstention, in right answers.

    >>> right = jnp.array([0.1, 0.9, 0.8])
    >>> [round(float(figure), 3) for figure in best_abstention(right, right, jnp.ones(3, bool), jnp.asarray(0.7))]
    [0.45, 0.2, 0.333]
    """
    grid = spread_thresholds(confidence, included, MAX_ABSTAIN_THRESHOLDS)
    gain = jnp.where(grid.splits | grid.covers_all, grid.sums(worth - right), -jnp.inf)
    best = jnp.argmax(gain)
    gains = gain[best] > 0
    threshold = jnp.where(gains, grid.threshold[best], NEVER_ABSTAIN)
    share = jnp.where(gains, grid.last[best] + 1.0, 0.0)
    return threshold, divide(jnp.maximum(gain[best], 0.0), grid.count), divide(share, grid.count)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Blending:
    """The weights by which labels are blended with their probabilities; the defaults do well on most logs."""

    calibrated: float | Array = 0.375
    """() weight of the model's own calibrated confidence, a."""
    conditional: float | Array = 0.375
    """() weight of the probability given the confidence of the model asked before, b."""

    @property
    def label(self) -> float | Array:
        """() weight of the label itself, 1 − a − b."""
        return 1 - self.calibrated - self.conditional


def calibrate_conditionally(
    logprob: Array, correct: Array, included: Array, transform: Transform, answered: Array | None = None
) -> Array:
    """Estimate the probability that the second model of each pair is right, given the confidence of the first: (P, n).

    The confidence of the first model is calibrated by the labels of the second.

    Args:
        logprob: (n, k) raw log-probabilities.
        correct: (n, k) bool: the answer is right.
        included: (n, k) bool: there is an answer, and the query counts.
        transform: the transform of the raw confidence.
        answered: (n, k) bool: there is an answer, whether or not the query counts; None: as `included`.
    """
    left, right = np.triu_indices(logprob.shape[1], 1)

    def estimate(left: Array, right: Array) -> Array:
        raw = logprob[:, left]
        both = included[:, left] & included[:, right]
        mask = both if answered is None else answered[:, left]
        return fit_calibrator(raw, correct[:, right], both, transform)(jnp.where(mask, raw, -1.0))

    return lax.map(lambda pair: estimate(*pair), (left, right))  # `vmap` would run every pair as long as the slowest


def recentre(expected: Any, right: Any, included: Any) -> Any:
    """Shift the expected labels of each column so that their mean is the mean of the labels: (n, …).

    Args:
        expected: (n, …) expected labels.
        right: (n, …) the labels.
        included: (n, …) bool: the queries that both means are over.
    """
    xp = expected.__array_namespace__()
    count = xp.maximum(included.sum(0), 1)
    return expected + xp.where(included, right - expected, 0.0).sum(0) / count


class TrainingRows(NamedTuple):
    """The columns of a log that candidates are scored by: n queries, k models."""

    logprob: Array  # (n, k) raw log-probabilities
    correct: Array  # (n, k) whether the answer is right, or its probability or score
    included: Array  # (n, k) bool: there is an answer, and the query counts
    answer: Array | None = None  # (n, k) codes of answers, as in `Log.answer`; None: answers are not compared
    signal_cost: Array | None = None  # (n, k) money of questions for a confidence, as in `Log.signal_cost`
    query_cost: Array | None = None  # (n, k) money of each answer; None where no candidate is scored

    def padded(self) -> "TrainingRows":
        """Pad the rows to their size class, so that logs of similar size share one compilation."""
        return TrainingRows._make(None if column is None else pad_to_size_class(column)[0] for column in self)


#: Thresholds tried for each pair, at most.
MAX_THRESHOLDS = 400


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CalibratedRows:
    """The data that candidates are scored by: n queries, k models and their P pairs."""

    confidence: Array  # (n, k) calibrated confidence
    conditional: Array  # (P, n) probabilities of `calibrate_conditionally`
    correct: Array  # (n, k) bool: the answer is right
    included: Array  # (n, k) bool: there is an answer, and the query counts
    query_cost: Array  # (n, k) money of each answer
    answer: Array | None = None  # (n, k) codes of answers, as in `Log.answer`; None: answers are not compared
    signal_cost: Array | None = None  # (n, k) part of `query_cost` for questions for a confidence; None: there is none
    abstain_worth: Array | None = None  # () worth of an abstention, in right answers; None: models do not abstain

    @classmethod
    def of(cls, calibrators: Calibrator, training: TrainingRows, answered: Array | None = None) -> "CalibratedRows":
        """Calibrate raw confidences, and cross-calibrate every pair of models on the same rows.

        Args:
            calibrators: (k,) calibrators of the models.
            training: the queries.
            answered: (n, k) bool: there is an answer, whether or not the query counts; None: as `included`.
        """
        logprob, correct, included, answer, signal_cost, query_cost = training
        conditional = calibrate_conditionally(logprob, correct, included, calibrators.transform, answered)
        confidence = calibrate_all(calibrators, logprob, included if answered is None else answered)
        costs = jnp.zeros_like(confidence) if query_cost is None else query_cost
        return cls(confidence, conditional, correct, included, costs, answer, signal_cost)

    def mean_cost(self, money: Array) -> Array:
        """Return the mean of money (n, k) over the answers of each model that count: (k,)."""
        answers = self.included.sum(0)
        bill = jnp.where(self.included, money, 0.0).sum(0) / jnp.maximum(answers, 1)
        return jnp.where(answers > 0, bill, money.mean(0))

    def last_cost(self, abstain_thresholds: Array | None) -> Array:
        """Return the money of each answer (n, k) of a last model, which needs a confidence only to abstain."""
        if self.signal_cost is None:
            return self.query_cost
        is_asked = False if abstain_thresholds is None else abstain_thresholds > NEVER_ABSTAIN
        return self.query_cost - jnp.where(is_asked, 0.0, self.signal_cost)

    def conditional_of(self, later: Any, earlier: Any) -> Array:
        """Return the probability that a later model is right, given the confidence of an earlier model: (n,)."""
        return self.conditional[jnp.asarray(number_pairs(self.confidence.shape[1]))[earlier, later]]


calibrate_training_rows = compiled(CalibratedRows.of, runs="long")


def score_pairs(rows: CalibratedRows, blending: Blending) -> tuple[Candidates, Array]:
    """Score every single model, and every pair at up to `MAX_THRESHOLDS` thresholds, on n queries.

    The result is (candidates, (C,) their penalties by the labels alone, without blending). The function can be mapped
    (`vmap`) over resampled or masked logs.

    Args:
        rows: the queries.
        blending: the blending weights of labels.

    >>> confidence, right = jnp.array([[0.2, 0.9], [0.9, 0.9]]), jnp.array([[False, True], [True, True]])
    >>> query_cost = jnp.array([[1.0, 14.0], [1.0, 6.0]])
    >>> rows = CalibratedRows(confidence, jnp.full((1, 2), 0.9), right, jnp.ones((2, 2), bool), query_cost)
    >>> cascades, label_penalty = score_pairs(rows, Blending())
    >>> cascades.cost.tolist(), label_penalty.tolist()  # small, large, small → large, which answers the second
    ([1.0, 10.0, 8.0, 11.0], [0.5, 0.0, 0.0, inf])
    """
    singles = _single_models(rows, blending)
    rising = jnp.argsort(rows.confidence, axis=0).T
    left, right = np.triu_indices(singles.k, 1)
    each_pair = left, right, rows.conditional
    results = lax.map(lambda pair: _score_pair(rows, blending, singles, rising[pair[0]], *pair), each_pair)
    pairs, label_penalty = jax.tree.map(jnp.ravel, results)
    return join([singles, pairs]), jnp.concatenate([singles.penalty, label_penalty])


def _single_models(rows: CalibratedRows, blending: Blending) -> Candidates:
    """Score each model alone (k,), by its labels without blending; the penalty is inf for a model without answers."""
    answers = rows.included.sum(0)
    penalty = jnp.where(answers > 0, 1 - divide((rows.included * rows.correct).sum(0), answers, 0.5), jnp.inf)
    abstain_threshold, abstention = None, jnp.zeros_like(rows.query_cost[0])
    if rows.abstain_worth is not None:
        abstain_threshold, gain, abstention = best_abstentions(rows, blending)
        penalty = penalty - gain
    cost = rows.mean_cost(rows.last_cost(abstain_threshold))
    always = jnp.full_like(cost, ALWAYS_ANSWER)
    models = jnp.arange(len(cost))
    places = {"first": models, "second": models, "third": models}
    figures = {"penalty": penalty, "cost": cost, "abstention": abstention}
    return Candidates(
        k=len(cost), **places, threshold=always, fallback=always, **figures, abstain_threshold=abstain_threshold
    )


def best_abstentions(rows: CalibratedRows, blending: Blending) -> tuple[Array, Array, Array]:
    """Return `best_abstention` of every model: (threshold, gain per query, share without an answer), each (k,).

    >>> confidence, right = jnp.array([[0.2, 0.9], [0.9, 0.9]]), jnp.array([[False, True], [True, True]])
    >>> columns = confidence, jnp.full((1, 2), 0.9), right, jnp.ones((2, 2), bool), jnp.ones((2, 2))
    >>> rows = CalibratedRows(*columns, abstain_worth=jnp.array(0.8))
    >>> [round(float(figure[0]), 3) for figure in best_abstentions(rows, Blending())]
    [0.55, 0.344, 0.5]
    """
    worth = jnp.asarray(rows.abstain_worth, rows.confidence.dtype)
    right = blend_labels(rows.confidence, rows.correct, rows.included, blending.label)
    return jax.vmap(best_abstention, (1, 1, 1, None))(rows.confidence, right, rows.included, worth)


def blend_labels(confidence: Any, correct: Any, included: Any, weight: Any) -> Any:
    """Blend each label with the calibrated confidence of its model: (n, k) probabilities of being right.

    Args:
        confidence: (n, k) calibrated confidence.
        correct: (n, k) labels.
        included: (n, k) bool: there is an answer, and the query counts.
        weight: weight of the labels (`Blending.label`).
    """
    expected = recentre(confidence, correct.astype(confidence.dtype), included)
    return weight * correct + (1 - weight) * expected


def _score_pair(
    rows: CalibratedRows,
    blending: Blending,
    singles: Candidates,
    rising: Array,
    first: Any,
    second: Any,
    conditional: Array,
) -> tuple[Candidates, Array]:
    """Score one pair of models at M thresholds of the first, up to which queries are deferred.

    The result is (candidates (M,), (M,) their penalties by the labels alone).

    Args:
        rows, blending: as for `score_pairs`.
        singles: the single models.
        rising: (n,) the queries by rising confidence of the first model.
        first, second: () indices of the two models.
        conditional: (n,) probability that the second model is right, given the confidence of the first.
    """
    is_included = rows.included[:, first] & rows.included[:, second]
    first_label, second_label = (rows.correct[:, model].astype(rows.confidence.dtype) for model in (first, second))
    first_by_itself = recentre(rows.confidence[:, first], first_label, is_included)
    second_by_itself = recentre(rows.confidence[:, second], second_label, is_included)
    second_by_first = recentre(conditional, second_label, is_included)
    a, b = blending.calibrated, blending.conditional
    first_right = blending.label * first_label + (a + b) * first_by_itself
    second_right = blending.label * second_label + a * second_by_itself + b * second_by_first
    abstains, abstain_threshold = jnp.zeros_like(is_included), None
    if singles.abstain_threshold is not None:
        abstain_threshold = singles.abstain_threshold[second]
        abstains = rows.confidence[:, second] <= abstain_threshold
        worth = jnp.asarray(rows.abstain_worth, second_right.dtype)
        second_right, second_label = (jnp.where(abstains, worth, values) for values in (second_right, second_label))

    first_cost = singles.cost if rows.signal_cost is None else rows.mean_cost(rows.query_cost)
    grid = spread_thresholds(rows.confidence[:, first], is_included, MAX_THRESHOLDS, rising)
    wrong = grid.mean(1 - first_label, empty=1.0)
    figures = {
        "penalty": jnp.where(grid.splits, wrong - grid.mean_up_to(second_right - first_right), jnp.inf),
        "cost": first_cost[first] + grid.mean_up_to(rows.last_cost(singles.abstain_threshold)[:, second]),
        "abstention": grid.mean_up_to(abstains.astype(second_right.dtype)),
    }
    label_penalty = jnp.where(grid.splits, wrong - grid.mean_up_to(second_label - first_label), jnp.inf)
    pairs = candidates_at_thresholds(grid, (first, second, second), singles.k, abstain_threshold, **figures)
    return pairs, label_penalty


def candidates_at_thresholds(
    grid: ThresholdGrid,
    models: Sequence[Any],
    k: int,
    abstain_threshold: Array | None,
    fallback: Any = ALWAYS_ANSWER,
    **figures: Array,
) -> Candidates:
    """Make the candidates that ask a first, second and third model, at M thresholds of the first: (M,).

    Args:
        grid: the thresholds.
        models: indices of the three models, of k.
        k: number of models.
        abstain_threshold: () confidence up to which the last model abstains; None: models do not abstain.
        fallback: () confidence of the second model up to which the third is asked, if answers are not known.
        figures: `penalty`, `cost` and `abstention` of the candidates, (M,) each.
    """
    level = jnp.zeros_like(grid.threshold)
    first, second, third = (jnp.zeros_like(grid.last) + model for model in models)
    bound = None if abstain_threshold is None else level + abstain_threshold
    return Candidates(k, first, second, third, grid.threshold, level + fallback, **figures, abstain_threshold=bound)
