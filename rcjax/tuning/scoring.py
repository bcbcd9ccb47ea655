"""The scores of all candidate policies on a log: single models and pairs, agreement policies, and chains.

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

Longer chains are candidates only if every confidence is the verdict of a check, 0 or 1. Each model then has one
threshold: queries whose answer fails the check are deferred. On three public sets of programming tasks longer chains
have 7 to 47 % fewer failures for the same money. On eight logs whose confidences have more values, longer chains gain
nothing. The paper's Markov chain cannot score them, as attempts of one model fail on the same queries. So chains are
scored on the queries of the log themselves.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from rcjax._core.batching import Array, pad_to_size_class
from rcjax._core.compilation import compiled
from rcjax.logs.log import NO_ANSWER, Log
from rcjax.model.calibration import Calibrator, calibrate_rows
from rcjax.policy.decisions import NO_CONFIDENCE
from rcjax.solving.frontier.hull import lower_hull
from rcjax.solving.frontier.points import ALWAYS_ANSWER, NEVER_ANSWER, Policies
from rcjax.tuning.candidates import (
    MAX_THRESHOLDS,
    CandidateRows,
    Candidates,
    LabelledAnswers,
    ScoringOptions,
    best_abstentions,
    blend_labels,
    candidate_rows,
    candidates_at_thresholds,
    score_pairs,
    spread_thresholds,
)
from rcjax.tuning.replaying.walk import walk

_NEWTON_STEPS = 8  # from 0, on a concave function of one variable
_SURE = 1e-6  # least distance of probabilities from 0 and 1, so that labels can change them


def split_by_agreement(rows: CandidateRows, first: Any, second: Any, third: Any) -> tuple[Array, ...]:
    """Divide the queries by agreement, and estimate the probabilities that the second and the third answer are right.

    The result is (queries that count, queries with equal answers, queries with different answers, probability for the
    second model, probability for the third model), (n,) each.

    Args:
        rows: the queries.
        first, second, third: indices of the models; if the second is the third, answers are not compared.
    """
    is_scored = rows.scored[:, first] & rows.scored[:, second] & rows.scored[:, third]
    assert rows.answer is not None
    earlier, later = rows.answer[:, first], rows.answer[:, second]
    comparable = (earlier != NO_ANSWER) & (later != NO_ANSWER) & (second != third)
    equal, differ = comparable & (earlier == later), comparable & (earlier != later)
    second_right = (rows.confidence[:, second] + rows.conditional_of(second, first)) / 2
    second_right = _multiply_odds(second_right, rows.correct[:, second], is_scored & equal, equal)
    by_earlier = rows.conditional_of(third, first) + rows.conditional_of(third, second)
    third_right = rows.confidence[:, third] / 2 + by_earlier / 4
    third_right = _multiply_odds(third_right, rows.correct[:, third], is_scored & differ, differ)
    return is_scored, equal, differ, second_right, third_right


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
    labelled: LabelledAnswers,
    answered: Array,
    table: tuple[Candidates, Policies],
) -> Array:
    rows = CandidateRows.of(calibrators, labelled, answered=answered)
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
        answers = walk(confidence.T, policy, codes).answers
        return jnp.where(answers, 1 - right, 0.0).sum(0)

    return lax.map(wrong, table)


def estimate_wrong(
    calibrators: Calibrator, labelled: LabelledAnswers, log: Log, several: list[Candidates]
) -> np.ndarray:
    """Estimate the probability that policies answer the queries of a log wrongly, from some of its labels: (S, L, n).

    Args:
        calibrators: (k,) calibrators of the models.
        labelled: the queries of the log; their labels count where they are `scored`.
        log: the log.
        several: S tables of L policies each, whose models are asked in their order in the log.
    """
    assert all(((table.first <= table.second) & (table.second <= table.third)).all() for table in several)
    answer = np.full(log.answered.shape, NO_ANSWER) if log.answer is None else log.answer
    (answered,), padded = pad_to_size_class(log.answered), labelled._replace(answer=answer).padded()
    tables = ((candidates, candidates.policies(agreement=True)) for candidates in several)
    wrong = [_expected_wrong(calibrators, padded, answered, table) for table in tables]
    return np.asarray(wrong, float)[..., : log.n_queries]


#: Thresholds tried for all agreement policies together (roughly), and for three models (at least).
_ALL_THRESHOLDS, _MIN_THRESHOLDS = 40_000, 40


def score_agreement(rows: CandidateRows, options: ScoringOptions) -> Candidates:
    """Score the agreement policies of every three models, at 40 to 400 thresholds of the first, on n queries.

    Args:
        rows: the queries, with the codes of answers.
        options: the blending weights of labels, and the worth of an abstention.

    >>> confidence, right = jnp.full((4, 3), 0.5), jnp.array([[0, 0, 1], [0, 0, 1], [1, 1, 1], [1, 1, 1]], bool)
    >>> answer = jnp.array([[0, 1, 2], [0, 1, 2], [0, 0, 0], [0, 0, 0]])
    >>> sure, cost = jnp.full((3, 4), 0.5), jnp.tile(jnp.array([1.0, 1.0, 8.0]), (4, 1))
    >>> rows = CandidateRows(confidence, sure, right, jnp.ones((4, 3), bool), cost, answer)
    >>> table = score_agreement(rows, ScoringOptions())   # as all are unsure, the second is always asked
    >>> best = int(table.penalty.argmin())
    >>> float(table.threshold[best]), float(table.cost[best])
    (1.0, 6.0)
    """
    k = rows.confidence.shape[1]
    triples = np.array([*itertools.combinations(range(k), 3)], int).reshape(-1, 3).T
    most = min(MAX_THRESHOLDS, max(_MIN_THRESHOLDS, _ALL_THRESHOLDS // max(triples.shape[1], 1)))
    columns = _AgreementColumns(
        right=blend_labels(rows.confidence, rows.correct, rows.scored, options.label, jnp),
        rising=jnp.argsort(rows.confidence, axis=0).T,
        abstain_thresholds=None if options.abstain_worth is None else best_abstentions(rows, options)[0],
    )

    def score(models: tuple[Array, ...]) -> Candidates:
        return _score_triple(rows, options, columns, most, *models)

    return jax.tree.map(jnp.ravel, lax.map(score, tuple(triples)))


class _AgreementColumns(NamedTuple):
    """Columns that are computed once for the agreement policies of all triples."""

    right: Array  # (n, k) blended labels
    rising: Array  # (k, n) the queries by rising confidence of each model
    abstain_thresholds: Array | None  # (k,) confidence up to which each model abstains as the last


def _score_triple(
    rows: CandidateRows, options: ScoringOptions, columns: _AgreementColumns, most: int, *models: Array
) -> Candidates:
    """Score the agreement policies of three models, by rising cost, at M thresholds.

    Args:
        rows, options: as for `score_agreement`.
        columns: the columns of `rows` that do not depend on the three models.
        most: number of thresholds at most.
        models: indices of the three models, () each.
    """
    first, second, third = models
    abstain_thresholds = columns.abstain_thresholds
    is_scored, equal, differ, second_right, third_right = split_by_agreement(rows, *models)
    confidence, label = rows.confidence, options.label
    fallback = _matching_threshold(confidence[:, second], is_scored & (equal | differ), differ)
    settled = equal | (~(equal | differ) & (confidence[:, second] > fallback))
    abstains, worth = jnp.zeros_like(settled), 0.0
    if abstain_thresholds is not None:
        abstains = confidence[:, third] <= abstain_thresholds[third]
        worth = jnp.asarray(options.abstain_worth, confidence.dtype)

    # The probability that an answer is right: of the first model, and of the model that answers if the second is asked.
    first_right = columns.right[:, first]
    second_right = label * rows.correct[:, second] + (1 - label) * second_right
    third_right = label * rows.correct[:, third] + (1 - label) * third_right
    answer_right = jnp.where(settled, second_right, jnp.where(abstains, worth, third_right))
    later_cost = rows.query_cost[:, second] + jnp.where(~settled, rows.query_cost[:, third], 0.0)

    grid = spread_thresholds(confidence[:, first], is_scored, most, columns.rising[first])
    wrong = grid.mean(1 - first_right, empty=1.0) - grid.mean_up_to(answer_right - first_right)
    penalty = jnp.where(grid.splits | grid.covers_all, wrong, jnp.inf)
    cost = grid.mean(rows.query_cost[:, first]) + grid.mean_up_to(later_cost)
    abstention = grid.mean_up_to(~settled & abstains)
    figures = {"penalty": penalty, "cost": cost, "abstention": abstention}
    abstain_threshold = None if abstain_thresholds is None else abstain_thresholds[third]
    return candidates_at_thresholds(grid, models, confidence.shape[1], abstain_threshold, fallback, **figures)


def _matching_threshold(confidence: Array, scored: Array, differ: Array) -> Array:
    """Return the threshold below which as many queries lie as have different answers."""
    ordered = jnp.sort(jnp.where(scored, confidence, jnp.inf))
    many, count = (scored & differ).sum(), scored.sum()
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


#: Most models in a chain.
LONGEST_CHAIN = 8

_MAX_TRIPLES = 2_500  # of models: 25 models have 2,300


def are_verdicts(logprob: np.ndarray, scored: np.ndarray) -> bool:
    """Return whether all confidences are 0, 1 or unknown, and some model has two of these; arguments are (n, k).

    >>> scored = np.ones((2, 2), bool)
    >>> are_verdicts(np.array([[0.0, -np.inf], [0.0, 0.0]]), scored), are_verdicts(np.zeros((2, 2)), scored)
    (True, False)
    """
    known = np.isin(logprob, np.array([0.0, -np.inf, NO_CONFIDENCE], logprob.dtype)) | ~scored
    several = [np.unique(column[rows]).size > 1 for column, rows in zip(logprob.T, scored.T, strict=True)]
    return bool(known.all() and any(several))


def score_chains(
    confidence: np.ndarray, right: np.ndarray, complete: np.ndarray, query_cost: np.ndarray
) -> Candidates | None:
    """Score chains of three or more models on the queries that all models answered; None where there are no chains.

    A greedy search grows a chain from each model, in the order of the models. It appends the later model that gains
    most right answers for its money on the queries that reach it. Every prefix is a candidate, and so are all triples
    if they are few.

    Args:
        confidence: (n, k) calibrated confidence.
        right: (n, k) probability that the answer is right, by blended labels.
        complete: (n,) bool: the queries that all models answered.
        query_cost: (n, k) money of each answer.

    >>> verdict = np.array([[0, 0, 1], [1, 0, 1], [0, 1, 1], [0, 0, 1]]) * 0.8 + 0.1
    >>> chains = score_chains(verdict, verdict > 0.5, np.ones(4, bool), np.tile([1.0, 1.0, 9.0], (4, 1)))
    >>> chains.chain.round(2).tolist(), chains.penalty.tolist(), chains.cost.tolist()
    ([[0.5, 0.5, 0.0]], [0.0], [6.25])
    """
    k, n = confidence.shape[1], int(complete.sum())
    if k < 3 or not n:
        return None
    confidence, right, query_cost = (np.asarray(column, float)[complete] for column in (confidence, right, query_cost))
    thresholds = np.array([_threshold_between_top_values(column) for column in confidence.T])
    sums = _DeferredSums(confidence <= thresholds, right, query_cost)
    chains = {chain for first in range(k) for chain in _grow_chain(first, sums)}
    if k * (k - 1) * (k - 2) // 6 <= _MAX_TRIPLES:
        chains |= {*itertools.combinations(range(k), 3)}
    useful = sorted(chain for chain in chains if all(0 < thresholds[j] < 1 for j in chain[:-1]))
    if not useful:
        return None
    shares, bills = np.array([sums.of_chain(chain) for chain in useful]).T / n
    places = np.full((len(useful), k), np.nan)
    for row, chain in zip(places, useful, strict=True):
        row[list(chain)] = [*thresholds[list(chain[:-1])], ALWAYS_ANSWER]
    first, last = (np.array([chain[end] for chain in useful]) for end in (0, -1))
    level = np.zeros(len(useful))
    figures: Any = {"penalty": 1 - shares, "cost": bills, "abstention": level}
    return Candidates(k, first, second=last, third=last, threshold=level, fallback=level, **figures, chain=places)


class _DeferredSums:
    """Sums over the queries that several models defer: right answers and money of each of k models.

    The path of a query depends only on the set of models that defer it: queries with the same set are one row.
    """

    def __init__(self, defers: np.ndarray, right: np.ndarray, query_cost: np.ndarray) -> None:
        patterns, group = np.unique(np.packbits(defers, axis=1), axis=0, return_inverse=True)
        self.k = defers.shape[1]
        self._defers = np.unpackbits(patterns, axis=1, count=self.k).astype(bool).T
        columns = np.concatenate([right, query_cost], axis=1).T
        self._figures = np.stack([np.bincount(group.ravel(), column) for column in columns])
        self._cache: dict[frozenset[int], np.ndarray] = {}

    def deferred_by(self, models: Sequence[int]) -> np.ndarray:
        """Return (right answers, money) of each model on the queries that all the given models defer: (2, k)."""
        key = frozenset(models)
        if key not in self._cache:
            reached = self._defers[list(models)].all(0)
            self._cache[key] = (self._figures @ reached.astype(float)).reshape(2, self.k)
        return self._cache[key]

    def of_chain(self, chain: Sequence[int]) -> tuple[float, float]:
        """Return (right answers, money) of a chain."""
        reached = [self.deferred_by(chain[:length]) for length in range(len(chain))]
        kept = (
            (here - later)[0, model] for model, (here, later) in zip(chain, itertools.pairwise(reached), strict=False)
        )
        right = reached[-1][0, chain[-1]] + sum(kept)
        cost = sum(here[1, model] for model, here in zip(chain, reached, strict=True))
        return float(right), float(cost)


def _threshold_between_top_values(confidence: np.ndarray) -> float:
    """Return the threshold halfway between the two largest confidences; 1 if all confidences are equal."""
    values = np.unique(confidence)
    return float(values[-2:].mean()) if values.size > 1 else 1.0


def _grow_chain(first: int, sums: _DeferredSums) -> list[tuple[int, ...]]:
    """Grow a chain from one model greedily, and return its prefixes of three or more models."""
    chain = (first,)
    while len(chain) < LONGEST_CHAIN and (later := range(chain[-1] + 1, sums.k)):
        right, cost = sums.deferred_by(chain)
        worth = (right[later] - right[chain[-1]]) / np.maximum(cost[later], np.finfo(float).tiny)
        if worth.max() <= 0:
            break
        chain = (*chain, later[int(worth.argmax())])
    return [chain[:length] for length in range(3, len(chain) + 1)]


_ROUNDING = 1e-6  # of an error, and of a bill, in single precision
_score_pairs = compiled(score_pairs, runs="long")
_score_agreement = compiled(score_agreement, runs="long")


def padded_rows(calibrators: Calibrator, labelled: LabelledAnswers, query_cost: Any) -> CandidateRows:
    """Calibrate n queries, padded to their size class: folds, replicates and logs of similar size share a program.

    Args:
        calibrators: (k,) calibrators of the models.
        labelled: the queries.
        query_cost: money of each answer (n, k), or mean money of each model (k,).
    """
    (cost,) = pad_to_size_class(np.broadcast_to(query_cost, labelled.correct.shape))
    padded = labelled.padded()
    rows = candidate_rows(calibrators, padded._replace(answer=None))  # one program, with answers or without
    return replace(rows, query_cost=cost, answer=padded.answer)


def score_candidates(
    calibrators: Calibrator,
    labelled: LabelledAnswers,
    query_cost: Any,
    options: ScoringOptions,
    only_complete: bool = False,
    admits: Callable[[Policies], np.ndarray] | None = None,
) -> tuple[Candidates, Candidates | None]:
    """Score all candidates; keep single models, and other candidates that are the best for some target.

    The result is (single models and pairs, agreement policies or None). If all confidences are verdicts, the first
    table has chains of three or more models too.

    Args:
        calibrators: (k,) calibrators of the models.
        labelled: the queries; without codes of answers there are no agreement policies.
        query_cost: money of each answer (n, k), or mean money of each model (k,).
        options: the blending weights of labels, and the worth of an abstention.
        only_complete: score all candidates on the queries with the answers of all models.
        admits: function from policies (C,) to a mask of the policies to choose from, (C,) bool; None: all.
    """
    rows = padded_rows(calibrators, labelled, query_cost)
    if only_complete:
        rows = replace(rows, scored=np.asarray(rows.scored) & np.asarray(rows.scored).all(1, keepdims=True))
    table, label_penalty = jax.tree.map(np.asarray, _score_pairs(replace(rows, answer=None), options))
    table = _keep_corners(table, _undominated_rows(table, label_penalty), admits)
    longer = _chains_of_verdicts(calibrators, labelled, query_cost, options)
    if longer is not None:
        table = table.with_chains(_keep_corners(longer, np.arange(len(longer.cost)), admits))
    if labelled.answer is None:
        return table, None
    agreement = jax.tree.map(np.asarray, _score_agreement(rows, options))
    agreement = _keep_corners(agreement, np.flatnonzero(np.isfinite(agreement.penalty)), admits)
    if longer is not None and agreement.cost.size:
        agreement = agreement.with_chain_column()
    return table, agreement if agreement.cost.size else None


def _chains_of_verdicts(
    calibrators: Calibrator, labelled: LabelledAnswers, query_cost: Any, options: ScoringOptions
) -> Candidates | None:
    """Score chains of three or more models; None unless confidences are verdicts and no model may abstain."""
    logprob, correct, scored = map(np.asarray, labelled[:3])
    if options.abstain_worth is not None or not are_verdicts(logprob, scored):
        return None
    confidence = np.asarray(calibrate_rows(calibrators, logprob), float)
    right = blend_labels(confidence, correct, scored, float(options.label))
    return score_chains(
        confidence, right, np.asarray(scored.all(1)), np.broadcast_to(np.asarray(query_cost, float), logprob.shape)
    )


def _undominated_rows(pairs: Candidates, label_penalty: np.ndarray) -> np.ndarray:
    """Return the indices of the candidates that no cheaper single model beats by labels alone.

    If models may abstain, single models beat no candidate. Thresholds that divide no queries are dropped too.
    `label_penalty` (C,) are the penalties by labels, of `score_pairs`.
    """
    use, k = np.isfinite(pairs.penalty), pairs.k
    if pairs.abstain_threshold is None:
        rising = np.argsort(pairs.cost[:k])
        errors = np.append(np.inf, label_penalty[:k][rising])
        least = np.minimum.accumulate(errors)  # among the 0, 1, … cheapest models
        cheaper = np.searchsorted(pairs.cost[:k][rising], pairs.cost * (1 - _ROUNDING))
        use &= pairs.is_single | (least[cheaper] >= label_penalty - _ROUNDING)
    return np.flatnonzero(use)


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
    return table.take(np.concatenate([allowed[is_single], corners]))
