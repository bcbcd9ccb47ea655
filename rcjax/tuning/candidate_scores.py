"""The scores of single models, pairs and agreement policies by the labels of a log, without copulas.

A pair asks model i and, where Φ_i ≤ φ, then model j. Its error probability is

    E[1 − y_i; Φ_i > φ] + E[1 − y_j; Φ_i ≤ φ]        y = 1 where the answer is right

A mean over n labels is noisy, and the best of many noisy means is optimistic. So each label of a pair is averaged with
two estimates of its probability: given the confidence of the model itself, and given that of the earlier model:

    ŷ_j = (1 − a − b) y_j + a Φ_j + b P(y_j = 1 | ξ_i),        ŷ_i = (1 − a − b) y_i + (a + b) Φ_i.

ξ is the transformed confidence (`rcjax.model.calibration`). Each probability is first shifted so that its mean is the
mean of the labels (`recentre`). So ŷ_i has the mean of y_i. The error is mean(1 − y_i) − Σ_{Φ_i ≤ φ} (ŷ_j − ŷ_i)/n.
The probabilities reduce the noise, but add a bias where confidences tell little: `search.estimate_blending` estimates a
and b from the log.

The cost of a pair is the mean cost of its path over the queries, as deferred queries may be longer than others. The
last model of a policy is not asked for a confidence, as its answer is kept in any case (`Log.signal_cost`).

Where answers are missing, the figures of all policies are means over the complete queries, since hard or easy queries
may lack answers more often. If too few queries are complete (`Log.comparable`), they are means over the queries that
all models of the policy answered; the cost of the first model of a pair is then its mean over all of its own answers.

An agreement policy compares answers. It asks model i and, if Φ_i ≤ φ, model j too. If the two answers are equal, the
answer of j is kept; if they differ, model l is asked. The error probability of the policy is

    E[1 − y_i; Φ_i > φ] + E[1 − y_j; Φ_i ≤ φ, equal] + E[1 − y_l; Φ_i ≤ φ, different]

Labels are averaged with their probabilities, as for pairs. Agreement changes the probability that an answer is right:
by Bayes' theorem its odds are multiplied by P(equal | y_j = 1) / P(equal | y_j = 0). This ratio is taken to be one
number for each pair, independent of the confidences. Its logarithm δ is an intercept, fitted by maximum a posteriori to
the labels of the queries with equal answers; the prior is standard normal. If the answers of i and j are equal, the
answer of j is right with probability

    σ(logit((Φ_j + P(y_j = 1 | ξ_i)) / 2) + δ).

If they differ, the answer of l is right with a probability of the same form. It has an intercept of its own, and the
logit is of Φ_l / 2 + (P(y_l = 1 | ξ_i) + P(y_l = 1 | ξ_j)) / 4. If an answer is not known, model j defers up to a
confidence at which it defers as often as known answers differ.

Tables keep all single models, and of the other candidates the corners of their lower hull: each is the best at some λ.
"""

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from rcjax._core.batching import Array, join, number_pairs, pad_to_size_class
from rcjax._core.compilation import compiled
from rcjax._core.numerics import divide
from rcjax.model.calibration import Calibrator, Transform, calibrate_all, calibrate_rows, fit_calibrator
from rcjax.solving.frontier.points import (
    ALWAYS_ANSWER,
    NEVER_ABSTAIN,
    NEVER_ANSWER,
    Policies,
    abstain_worth_at,
    lower_hull,
)
from rcjax.tuning.candidate_table import (
    MAX_THRESHOLDS,
    Candidates,
    are_verdicts,
    best_abstention,
    candidates_at_thresholds,
    score_chains,
    spread_thresholds,
)

_NEWTON_STEPS = 8  # from 0, on a concave function of one variable
_SURE = 1e-6  # least distance of probabilities from 0 and 1, so that labels can change them


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
        """Calibrate raw confidences by calibrators (k,), and cross-calibrate every pair of models on the same rows.

        `answered` (n, k) marks the answers, whether or not the query counts; None: as `included`.
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
    members = {"first": models, "second": models, "third": models}
    figures = {"penalty": penalty, "cost": cost, "abstention": abstention}
    return Candidates(
        k=len(cost), **members, threshold=always, fallback=always, **figures, abstain_threshold=abstain_threshold
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

    The result is (candidates (M,), (M,) their penalties by the labels alone). `rising` (n,) are the queries by rising
    confidence of the first model, and `conditional` (n,) the probabilities of the second given that confidence.
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


def split_by_agreement(rows: CalibratedRows, first: Any, second: Any, third: Any) -> tuple[Array, ...]:
    """Divide the queries by agreement, and estimate the probabilities that the second and the third answer are right.

    The result is (queries that count, queries with equal answers, queries with different answers, probability for the
    second model, probability for the third model), (n,) each.

    Args:
        rows: the queries.
        first, second, third: indices of the models; if the second is the third, answers are not compared.
    """
    is_included = rows.included[:, first] & rows.included[:, second] & rows.included[:, third]
    assert rows.answer is not None
    earlier, later = rows.answer[:, first], rows.answer[:, second]
    comparable = (earlier >= 0) & (later >= 0) & (second != third)  # an answer that is not known is −1
    equal, differ = comparable & (earlier == later), comparable & (earlier != later)
    second_right = (rows.confidence[:, second] + rows.conditional_of(second, first)) / 2
    second_right = _multiply_odds(second_right, rows.correct[:, second], is_included & equal, equal)
    by_earlier = rows.conditional_of(third, first) + rows.conditional_of(third, second)
    third_right = rows.confidence[:, third] / 2 + by_earlier / 4
    third_right = _multiply_odds(third_right, rows.correct[:, third], is_included & differ, differ)
    return is_included, equal, differ, second_right, third_right


def _multiply_odds(probability: Array, correct: Array, labelled: Array, group: Array) -> Array:
    """Multiply the odds of being right (n,) by one factor for a group of queries: (n,) probabilities.

    The factor is fitted to the labels `correct` of the queries of the group that are `labelled`.
    """
    logit = special.logit(jnp.clip(probability, _SURE, 1 - _SURE))

    def step(_: Any, shift: Array) -> Array:
        expected = special.expit(logit + shift)
        slope = jnp.where(labelled, correct - expected, 0.0).sum() - shift
        return shift + slope / (1 + jnp.where(labelled, expected * (1 - expected), 0.0).sum())

    shift = lax.fori_loop(0, _NEWTON_STEPS, step, jnp.zeros((), probability.dtype))
    return jnp.where(group, special.expit(logit + shift), probability)


#: Thresholds tried for all agreement policies together (roughly), and for three models (at least).
_ALL_THRESHOLDS, _MIN_THRESHOLDS = 40_000, 40


def score_agreement(rows: CalibratedRows, blending: Blending) -> Candidates:
    """Score the agreement policies of every three models, at 40 to 400 thresholds of the first, on n queries.

    >>> confidence, right = jnp.full((4, 3), 0.5), jnp.array([[0, 0, 1], [0, 0, 1], [1, 1, 1], [1, 1, 1]], bool)
    >>> answer = jnp.array([[0, 1, 2], [0, 1, 2], [0, 0, 0], [0, 0, 0]])
    >>> sure, cost = jnp.full((3, 4), 0.5), jnp.tile(jnp.array([1.0, 1.0, 8.0]), (4, 1))
    >>> rows = CalibratedRows(confidence, sure, right, jnp.ones((4, 3), bool), cost, answer)
    >>> table = score_agreement(rows, Blending())   # as all are unsure, the second is always asked
    >>> best = int(table.penalty.argmin())
    >>> float(table.threshold[best]), float(table.cost[best])
    (1.0, 6.0)
    """
    k = rows.confidence.shape[1]
    triples = np.array([*itertools.combinations(range(k), 3)], int).reshape(-1, 3).T
    most = min(MAX_THRESHOLDS, max(_MIN_THRESHOLDS, _ALL_THRESHOLDS // max(triples.shape[1], 1)))
    columns = _AgreementColumns(
        right=blend_labels(rows.confidence, rows.correct, rows.included, blending.label),
        rising=jnp.argsort(rows.confidence, axis=0).T,
        abstain_thresholds=None if rows.abstain_worth is None else best_abstentions(rows, blending)[0],
    )

    def score(models: tuple[Array, ...]) -> Candidates:
        return _score_triple(rows, blending, columns, most, *models)

    return jax.tree.map(jnp.ravel, lax.map(score, tuple(triples)))


class _AgreementColumns(NamedTuple):
    """Columns that are computed once for the agreement policies of all triples."""

    right: Array  # (n, k) blended labels
    rising: Array  # (k, n) the queries by rising confidence of each model
    abstain_thresholds: Array | None  # (k,) confidence up to which each model abstains as the last


def _score_triple(
    rows: CalibratedRows, blending: Blending, columns: _AgreementColumns, most: int, *models: Array
) -> Candidates:
    """Score the agreement policies of three models, by rising cost, at `most` thresholds at most."""
    first, second, third = models
    abstain_thresholds = columns.abstain_thresholds
    is_included, equal, differ, second_right, third_right = split_by_agreement(rows, *models)
    confidence, label = rows.confidence, blending.label
    fallback = _matching_threshold(confidence[:, second], is_included & (equal | differ), differ)
    settled = equal | (~(equal | differ) & (confidence[:, second] > fallback))
    abstains, worth = jnp.zeros_like(settled), 0.0
    if abstain_thresholds is not None:
        abstains = confidence[:, third] <= abstain_thresholds[third]
        worth = jnp.asarray(rows.abstain_worth, confidence.dtype)

    # The probability that an answer is right: of the first model, and of the model that answers if the second is asked.
    first_right = columns.right[:, first]
    second_right = label * rows.correct[:, second] + (1 - label) * second_right
    third_right = label * rows.correct[:, third] + (1 - label) * third_right
    answer_right = jnp.where(settled, second_right, jnp.where(abstains, worth, third_right))
    last_cost = rows.last_cost(abstain_thresholds)[:, third]
    later_cost = rows.query_cost[:, second] + jnp.where(~settled, last_cost, 0.0)

    grid = spread_thresholds(confidence[:, first], is_included, most, columns.rising[first])
    wrong = grid.mean(1 - first_right, empty=1.0) - grid.mean_up_to(answer_right - first_right)
    penalty = jnp.where(grid.splits | grid.covers_all, wrong, jnp.inf)
    cost = grid.mean(rows.query_cost[:, first]) + grid.mean_up_to(later_cost)
    abstention = grid.mean_up_to(~settled & abstains)
    figures = {"penalty": penalty, "cost": cost, "abstention": abstention}
    abstain_threshold = None if abstain_thresholds is None else abstain_thresholds[third]
    return candidates_at_thresholds(grid, models, confidence.shape[1], abstain_threshold, fallback, **figures)


def _matching_threshold(confidence: Array, included: Array, differ: Array) -> Array:
    """Return the threshold below which as many queries lie as have different answers."""
    ordered = jnp.sort(jnp.where(included, confidence, jnp.inf))
    many, count = (included & differ).sum(), included.sum()
    below, above = ordered[jnp.maximum(many - 1, 0)], ordered[jnp.minimum(many, len(ordered) - 1)]
    between = below + (above - below) / 2
    return jnp.where(many == 0, ALWAYS_ANSWER, jnp.where(many == count, NEVER_ANSWER, between))


_SINGLE_TOLERANCE = 1e-6  # in single precision: absolute for errors, relative for costs
_score_pairs = compiled(score_pairs, runs="long")
_score_agreement = compiled(score_agreement, runs="long")


def calibrate_padded_rows(
    calibrators: Calibrator, training: TrainingRows, abstain_price: float | None
) -> CalibratedRows:
    """Calibrate n queries, padded to their size class: folds, replicates and logs of similar size share a program."""
    padded = training.padded()
    rows = calibrate_training_rows(calibrators, TrainingRows(*padded[:3]))  # one program for all
    optional = {name: getattr(padded, name) for name in ("query_cost", "answer", "signal_cost")}
    return replace(rows, **optional, abstain_worth=abstain_worth_at(abstain_price, rows.confidence.dtype))


def score_candidates(
    calibrators: Calibrator,
    training: TrainingRows,
    blending: Blending,
    abstain_price: float | None = None,
    only_complete: bool = False,
    admits: Callable[[Policies], np.ndarray] | None = None,
) -> tuple[Candidates, Candidates | None]:
    """Score all candidates; keep single models, and other candidates that are the best for some target.

    The result is (single models and pairs, agreement policies or None). If all confidences are verdicts, the first
    table has chains of three or more models too.

    Args:
        calibrators: (k,) calibrators of the models.
        training: the queries; without codes of answers there are no agreement policies.
        blending: the blending weights of labels.
        abstain_price: price of an abstention, in errors; None: models do not abstain.
        only_complete: score all candidates on the queries with the answers of all models.
        admits: function from policies (C,) to a mask of the policies to choose from, (C,) bool; None: all.
    """
    rows = calibrate_padded_rows(calibrators, training, abstain_price)
    if only_complete:
        included = np.asarray(rows.included)
        rows = replace(rows, included=included & included.all(1, keepdims=True))
    table, label_penalty = jax.tree.map(np.asarray, _score_pairs(replace(rows, answer=None), blending))
    table = _keep_corners(table, _undominated(table, label_penalty), admits)
    chains = _score_chains_of_verdicts(calibrators, training, blending) if rows.abstain_worth is None else None
    if chains is not None:
        table = join([table, _keep_corners(chains, np.arange(len(chains.cost)), admits)])
    if training.answer is None:
        return table, None
    agreement = jax.tree.map(np.asarray, _score_agreement(rows, blending))
    agreement = _keep_corners(agreement, np.flatnonzero(np.isfinite(agreement.penalty)), admits)
    return table, agreement if agreement.cost.size else None


def _undominated(table: Candidates, label_penalty: np.ndarray) -> np.ndarray:
    """Return the indices of the candidates that no cheaper single model beats by labels alone.

    If models may abstain, single models beat no candidate. Thresholds that divide no queries are dropped too.
    `label_penalty` (C,) are the penalties by labels, of `score_pairs`.
    """
    is_kept, k = np.isfinite(table.penalty), table.k
    if table.abstain_threshold is None:
        rising = np.argsort(table.cost[:k])
        errors = np.append(np.inf, label_penalty[:k][rising])
        least = np.minimum.accumulate(errors)  # among the 0, 1, … cheapest models
        cheaper = np.searchsorted(table.cost[:k][rising], table.cost * (1 - _SINGLE_TOLERANCE))
        is_kept &= table.is_single | (least[cheaper] >= label_penalty - _SINGLE_TOLERANCE)
    return np.flatnonzero(is_kept)


def _keep_corners(
    table: Candidates, allowed: np.ndarray, admits: Callable[[Policies], np.ndarray] | None
) -> Candidates:
    """Take the single models at the indices `allowed`, and the corners of the lower hull of the other candidates."""
    if admits is not None and allowed.size:
        allowed = allowed[admits(table.take(allowed).policies())]
    is_single = table.is_single[allowed]
    others = allowed[~is_single]
    corners = others[lower_hull(table.cost[others], table.penalty[others])]
    kept = table.take(np.concatenate([allowed[is_single], corners]))
    no_chains = np.full((len(kept.cost), kept.k), np.nan, kept.cost.dtype)
    return kept if kept.chain is not None else replace(kept, chain=no_chains)  # so that all tables can be joined


def _score_chains_of_verdicts(calibrators: Calibrator, training: TrainingRows, blending: Blending) -> Candidates | None:
    """Score chains of three or more models; None unless confidences are verdicts."""
    logprob, correct, included = map(np.asarray, training[:3])
    if not are_verdicts(logprob, included):
        return None
    confidence = np.asarray(calibrate_rows(calibrators, logprob), float)
    right = blend_labels(confidence, correct, included, float(blending.label))
    money = np.asarray(training.query_cost, float)
    return score_chains(confidence, right, np.asarray(included.all(1)), money, training.signal_cost)
