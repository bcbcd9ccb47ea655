"""The scores of all candidate policies on a log, and the weights by which labels are blended in them.

Tables keep all single models, and of the other candidates the corners of their lower hull: each is the best at some λ.

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

The best weights a and b (`candidates`) differ from log to log. Cross-fitted least squares estimate them: the gain of
each pair at sixteen thresholds is predicted from four folds, and compared with the labels of the fifth fold. A prior
that is worth 300 labels draws both weights to three eighths, which does well on most logs.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from rcjax._core.batching import Array, join, list_pairs, pad_to_size_class
from rcjax._core.compilation import compiled
from rcjax.logs.log import NO_ANSWER, Log
from rcjax.model.calibrated_models import refit_calibrators
from rcjax.model.calibration import Calibrator
from rcjax.model.label_outcomes import FOLDS, deal_folds
from rcjax.solving.frontier.points import ALWAYS_ANSWER, NEVER_ANSWER, Policies, abstain_worth_at, lower_hull
from rcjax.tuning.candidates import (
    ENOUGH_QUERIES,
    MAX_THRESHOLDS,
    Blending,
    CalibratedRows,
    Candidates,
    TrainingRows,
    best_abstentions,
    blend_labels,
    calibrate_training_rows,
    candidates_at_thresholds,
    draw_enough,
    recentre,
    score_pairs,
    spread_thresholds,
)
from rcjax.tuning.chains import score_chains_of_verdicts
from rcjax.tuning.replaying.walk import walk

_NEWTON_STEPS = 8  # from 0, on a concave function of one variable
_SURE = 1e-6  # least distance of probabilities from 0 and 1, so that labels can change them


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
    comparable = (earlier != NO_ANSWER) & (later != NO_ANSWER) & (second != third)
    equal, differ = comparable & (earlier == later), comparable & (earlier != later)
    second_right = (rows.confidence[:, second] + rows.conditional_of(second, first)) / 2
    second_right = _multiply_odds(second_right, rows.correct[:, second], is_included & equal, equal)
    by_earlier = rows.conditional_of(third, first) + rows.conditional_of(third, second)
    third_right = rows.confidence[:, third] / 2 + by_earlier / 4
    third_right = _multiply_odds(third_right, rows.correct[:, third], is_included & differ, differ)
    return is_included, equal, differ, second_right, third_right


def _multiply_odds(probability: Array, correct: Array, labelled: Array, group: Array) -> Array:
    """Multiply the odds of being right by one factor for a group of queries: (n,) probabilities.

    Args:
        probability: (n,) probabilities of being right, regardless of the group.
        correct: (n,) bool: the answer is right.
        labelled: (n,) bool: the queries of the group that the factor is fitted to.
        group: (n,) bool: the queries of the group.
    """
    logit = special.logit(jnp.clip(probability, _SURE, 1 - _SURE))

    def step(_: Any, shift: Array) -> Array:
        expected = special.expit(logit + shift)
        slope = jnp.where(labelled, correct - expected, 0.0).sum() - shift
        return shift + slope / (1 + jnp.where(labelled, expected * (1 - expected), 0.0).sum())

    shift = lax.fori_loop(0, _NEWTON_STEPS, step, jnp.zeros((), probability.dtype))
    return jnp.where(group, special.expit(logit + shift), probability)


@compiled
def _expected_wrong(
    calibrators: Calibrator,
    training: TrainingRows,
    answered: Array,
    table: tuple[Candidates, Policies],
) -> Array:
    rows = CalibratedRows.of(calibrators, training, answered=answered)
    assert rows.answer is not None
    codes = rows.answer.T
    confidence = jnp.asarray(rows.confidence)

    def wrong(row: tuple[Candidates, Policies]) -> Array:
        candidate, policy = row
        first, second, third = candidate.first, candidate.second, candidate.third
        *_, second_right, third_right = split_by_agreement(rows, first, second, third)
        right = confidence.T  # for chains, which do not compare answers
        for model, probability in ((third, third_right), (second, second_right), (first, confidence[:, first])):
            right = right.at[model].set(probability)
        answered_by = walk(confidence.T, policy, codes).answered_by
        return jnp.where(answered_by, 1 - right, 0.0).sum(0)

    return lax.map(wrong, table)


def estimate_wrong(calibrators: Calibrator, training: TrainingRows, log: Log, several: list[Candidates]) -> np.ndarray:
    """Estimate the probability that policies answer the queries of a log wrongly, from some of its labels: (S, L, n).

    Args:
        calibrators: (k,) calibrators of the models.
        training: the queries of the log; their labels count where they are `included`.
        log: the log.
        several: S tables of L policies each, whose models are asked in their order in the log.
    """
    assert all(((table.first <= table.second) & (table.second <= table.third)).all() for table in several)
    answer = np.full(log.answered.shape, NO_ANSWER) if log.answer is None else log.answer
    (answered,), padded = pad_to_size_class(log.answered), training._replace(answer=answer).padded()
    tables = ((candidates, candidates.policies(agreement=True)) for candidates in several)
    wrong = [_expected_wrong(calibrators, padded, answered, table) for table in tables]
    return np.asarray(wrong, float)[..., : log.n_queries]


#: Thresholds tried for all agreement policies together (roughly), and for three models (at least).
_ALL_THRESHOLDS, _MIN_THRESHOLDS = 40_000, 40


def score_agreement(rows: CalibratedRows, blending: Blending) -> Candidates:
    """Score the agreement policies of every three models, at 40 to 400 thresholds of the first, on n queries.

    Args:
        rows: the queries, with the codes of answers.
        blending: the blending weights of labels.

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
    """Score the agreement policies of three models, by rising cost, at M thresholds.

    Args:
        rows, blending: as for `score_agreement`.
        columns: the columns of `rows` that do not depend on the three models.
        most: number of thresholds at most.
        models: indices of the three models, () each.
    """
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


def impute_query_cost(log: Log) -> np.ndarray:
    """Return the money of each answer, or the mean money of its model if the answer is missing: (n, k).

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> bool((impute_query_cost(log) == np.asarray(log.query_cost)).all())
    True
    """
    return np.where(np.asarray(log.answered), np.asarray(log.query_cost), np.asarray(log.cost))


_ROUNDING = 1e-6  # of an error, and of a bill, in single precision
_score_pairs = compiled(score_pairs, runs="long")
_score_agreement = compiled(score_agreement, runs="long")


def calibrate_padded_rows(
    calibrators: Calibrator, training: TrainingRows, abstain_price: float | None = None
) -> CalibratedRows:
    """Calibrate n queries, padded to their size class: folds, replicates and logs of similar size share a program.

    Args:
        calibrators: (k,) calibrators of the models.
        training: the queries.
        abstain_price: price of an abstention, in errors; None: models do not abstain.
    """
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
    chains = score_chains_of_verdicts(calibrators, training, blending) if rows.abstain_worth is None else None
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
        cheaper = np.searchsorted(table.cost[:k][rising], table.cost * (1 - _ROUNDING))
        is_kept &= table.is_single | (least[cheaper] >= label_penalty - _ROUNDING)
    return np.flatnonzero(is_kept)


def _keep_corners(
    table: Candidates, allowed: np.ndarray, admits: Callable[[Policies], np.ndarray] | None
) -> Candidates:
    """Take the single models, and the corners of the lower hull of the other candidates.

    Args:
        table: the candidates.
        allowed: indices of the candidates to choose from.
        admits: as for `score_candidates`.
    """
    if admits is not None and allowed.size:
        allowed = allowed[admits(table.take(allowed).policies())]
    is_single = table.is_single[allowed]
    others = allowed[~is_single]
    corners = others[lower_hull(table.cost[others], table.penalty[others])]
    kept = table.take(np.concatenate([allowed[is_single], corners]))
    no_chains = np.full((len(kept.cost), kept.k), np.nan, kept.cost.dtype)
    return kept if kept.chain is not None else replace(kept, chain=no_chains)  # so that all tables can be joined


_THRESHOLDS = 16  # thresholds of each model at which the weights are estimated
_PRIOR = 300  # weight of the prior, in labels


def estimate_blending(log: Log, fitted: Calibrator) -> Blending:
    """Estimate the blending weights (a, b) by cross-fitted least squares; the defaults for one model or few labels.

    Args:
        log: the log, of which at most 5,000 labelled queries are drawn at random.
        fitted: (k,) calibrators fitted to the log, whose transform and stated values are used.

    >>> import rcjax
    >>> from rcjax.model.calibrated_models import fit_calibrated
    >>> log = rcjax.sample_log(300, seed=0)
    >>> blending = estimate_blending(log, fit_calibrated(log).calibrators)
    >>> 0 <= blending.calibrated <= 1, 0 <= blending.conditional <= 1, 0 <= blending.label <= 1
    (True, True, True)
    """
    labelled = log.labelled & np.asarray(log.answered)
    if not labelled.any(1).all():  # drop queries without labels first, so that folds have equal numbers of labels
        log, labelled = log.take(labelled.any(1)), labelled[labelled.any(1)]
    if log.n_queries > ENOUGH_QUERIES:
        rows = draw_enough(np.arange(log.n_queries))
        log, labelled = log.take(rows), labelled[rows]
    if len(log.models) < 2 or labelled.all(1).sum() < 2 * FOLDS:
        return Blending()
    fold = deal_folds(log.queries, np.asarray(labelled.all(1)))
    sums = [_normal_equations(log, fitted, labelled, fold == number) for number in range(FOLDS)]
    square, product = (np.sum(part, axis=0) for part in zip(*sums, strict=True))
    prior = np.trace(square) / 2 * _PRIOR / labelled.all(1).sum()
    calibrated, conditional = _least_squares(
        square + prior * np.eye(2), product + prior * np.array([Blending.calibrated, Blending.conditional])
    )
    return Blending(float(calibrated), float(conditional))


def _normal_equations(
    log: Log, fitted: Calibrator, labelled: np.ndarray, out: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the normal equations ((2, 2), (2,)), summed over pairs and thresholds.

    Gains of the queries `out` (n,) are predicted from the other queries.
    """
    logprob = np.asarray(log.logprob, float)
    right = np.where(labelled, np.asarray(log.correct, float), 0.0)
    train = labelled & ~out[:, None]
    training = TrainingRows(np.asarray(log.logprob), np.asarray(log.correct), train)
    rows = calibrate_training_rows(refit_calibrators(fitted, training[:3]), training.padded())
    confidence, conditional = np.asarray(rows.confidence, float), np.asarray(rows.conditional, float)
    square, product = np.zeros((2, 2)), np.zeros(2)
    for pair, (i, j) in enumerate(list_pairs(len(log.models))):
        trained, tested = train[:, i] & train[:, j], labelled[:, i] & labelled[:, j] & out
        if not (trained.any() and tested.any()):
            continue
        thresholds = np.unique(np.quantile(logprob[trained, i], np.linspace(0.04, 0.96, _THRESHOLDS), method="lower"))
        first_by_itself = recentre(confidence[: len(out), i], right[:, i], trained) - right[:, i]
        second_by_itself = recentre(confidence[: len(out), j], right[:, j], trained) - right[:, j]
        second_by_first = recentre(conditional[pair, : len(out)], right[:, j], trained) - right[:, j]
        changes = second_by_itself - first_by_itself, second_by_first - first_by_itself
        gain = right[:, j] - right[:, i]
        deferred = logprob[:, i, None] <= thresholds
        predicted = np.stack([*changes, gain])[:, trained] @ deferred[trained] / trained.sum()
        observed = gain[tested] @ deferred[tested] / tested.sum()
        square += predicted[:2] @ predicted[:2].T
        product += predicted[:2] @ (observed - predicted[2])
    return square, product


def _least_squares(square: np.ndarray, product: np.ndarray) -> np.ndarray:
    """Minimise x'Sx − 2x'p over x ≥ 0 with a sum of at most 1: (2,).

    >>> _least_squares(np.eye(2), np.array([0.2, 0.3])).tolist(), _least_squares(np.eye(2), np.array([2.0, 0])).tolist()
    ([0.2, 0.3], [1.0, 0.0])
    """
    # The minimum is inside, on one of the three edges, or at the origin.
    curvature = square[0, 0] + square[1, 1] - 2 * square[0, 1]
    share = np.clip(_ratio(square[1, 1] - square[0, 1] + product[0] - product[1], curvature), 0, 1)
    tries = [np.zeros(2), np.array([share, 1 - share])]
    tries += [np.eye(2)[n] * np.clip(_ratio(product[n], square[n, n]), 0, 1) for n in range(2)]
    if np.linalg.matrix_rank(square) == 2:
        tries.append(np.linalg.solve(square, product))
    feasible = [x for x in tries if (x >= 0).all() and x.sum() <= 1 + 1e-12]
    return min(feasible, key=lambda x: float(x @ square @ x - 2 * x @ product))


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else 0.0
