"""Score policies that compare the answers of two models, on the queries of the log itself.

Model i is asked; where Φ_i ≤ φ, model j is asked too. Where their answers are equal, the answer of j is kept; where
they differ, model l is asked. The error probability of the policy is

    E[1 − y_i; Φ_i > φ] + E[1 − y_j; Φ_i ≤ φ, equal] + E[1 − y_l; Φ_i ≤ φ, different]

Labels are averaged with their probabilities, as in `pairs`. Agreement changes the probability that an answer is right:
by Bayes' theorem its odds are multiplied by

    P(equal | y_j = 1) / P(equal | y_j = 0).

This ratio is taken to be one number for each pair, independent of the confidences. Its logarithm δ is an intercept,
fitted by maximum a posteriori to the labels of the queries with equal answers; the prior is standard normal. Where the
answers of i and j are equal, the answer of j is right with probability

    σ(logit((Φ_j + P(y_j = 1 | ξ_i)) / 2) + δ).

For a third model l, asked where they differ, the logit is of Φ_l / 2 + (P(y_l = 1 | ξ_i) + P(y_l = 1 | ξ_j)) / 4.

Where an answer is not known, the second model defers by its confidence, on the same share of queries as would differ.
"""

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from rcjax._core.batching import fill_up
from rcjax._core.compilation import compiled
from rcjax._core.pytrees import Array
from rcjax.logs.log import NO_ANSWER, Log
from rcjax.model.calibration import Calibrator
from rcjax.solving.frontier.points import ALWAYS_ANSWER, NEVER_ANSWER, Policies
from rcjax.tuning.candidates import Candidates
from rcjax.tuning.pairs import MOST_THRESHOLDS, Blending, CandidateRows, best_refusals, blend_labels, spread_cuts
from rcjax.tuning.replaying.walk import walk

_NEWTON_STEPS = 8  # from 0, on a concave function of one variable

_SURE = 1e-6  # least distance of probabilities from 0 and 1, so that the labels can move them


def by_agreement(rows: CandidateRows, first: Any, second: Any, third: Any) -> tuple[Array, ...]:
    """Divide the queries by agreement, and estimate how likely the second and third answers are right.

    The result is (queries that count, queries with equal answers, queries with different answers, probability that the
    second model is right where it is asked, the same of the third), (n,) each.

    Args:
        rows: the queries.
        first, second, third: positions of the models; a third equal to the second: answers are not compared.
    """
    counts = rows.present[:, first] & rows.present[:, second] & rows.present[:, third]
    assert rows.answer is not None  # without answers no policy compares them
    earlier, later = rows.answer[:, first], rows.answer[:, second]
    comparable = (earlier != NO_ANSWER) & (later != NO_ANSWER) & (second != third)
    equal, differ = comparable & (earlier == later), comparable & (earlier != later)
    plain = (rows.confidence[:, second] + rows.conditional_of(second, first)) / 2
    by_second = _with_group_odds(plain, rows.correct[:, second], counts & equal, equal)
    plain = rows.confidence[:, third] / 2 + (rows.conditional_of(third, first) + rows.conditional_of(third, second)) / 4
    return counts, equal, differ, by_second, _with_group_odds(plain, rows.correct[:, third], counts & differ, differ)


def _with_group_odds(plain: Array, correct: Array, labels: Array, group: Array) -> Array:
    """Multiply the odds of being right by one factor for a group of queries: (n,) probabilities.

    Args:
        plain: (n,) probabilities of being right, regardless of the group.
        correct: (n,) bool: the answer is right.
        labels: (n,) bool: the queries of the group whose labels the factor is fitted to.
        group: (n,) bool: the queries of the group.
    """
    odds = special.logit(jnp.clip(plain, _SURE, 1 - _SURE))

    def step(_: Any, shift: Array) -> Array:
        expected = special.expit(odds + shift)
        slope = jnp.where(labels, correct - expected, 0.0).sum() - shift
        return shift + slope / (1 + jnp.where(labels, expected * (1 - expected), 0.0).sum())

    shift = lax.fori_loop(0, _NEWTON_STEPS, step, jnp.zeros((), plain.dtype))
    return jnp.where(group, special.expit(odds + shift), plain)


@compiled
def _expected_wrong(
    calibrators: Calibrator,
    rows: tuple[Array, Array, Array],
    answered: Array,
    answer: Array,
    of: tuple[Candidates, Policies],
) -> Array:
    """Estimate the probability that each of L policies answers a query wrongly: (L, n); as `expected_on_log`."""
    known = CandidateRows.of(calibrators, rows, answer=answer, answered=answered)
    confidence = jnp.asarray(known.confidence)

    def one(of: tuple[Candidates, Policies]) -> Array:
        candidate, policy = of
        first, second, third = candidate.first, candidate.second, candidate.third
        *_, by_second, by_third = by_agreement(known, first, second, third)
        right = confidence.T  # for chains, which do not compare answers
        for model, likely in ((third, by_third), (second, by_second), (first, confidence[:, first])):
            right = right.at[model].set(likely)
        answers = walk(confidence.T, policy, answer.T).answers
        return jnp.where(answers, 1 - right, 0.0).sum(0)

    return lax.map(one, of)


def expected_on_log(calibrators: Calibrator, rows: tuple[Any, ...], log: Log, several: list[Candidates]) -> np.ndarray:
    """Estimate the probability that policies answer the queries of a log wrongly, from some of its labels: (S, L, n).

    Args:
        calibrators: (k,) calibrators of the models.
        rows: (logprob, correct, present), each (n, k); `present` are the labels to learn from.
        log: the log.
        several: S tables of L policies each.
    """
    answer = np.full(log.answered.shape, NO_ANSWER) if log.answer is None else log.answer
    *labels, answered, codes = fill_up(*rows, log.answered, answer)
    of = ((candidates, candidates.policies(comparing=True)) for candidates in several)
    wrong = [_expected_wrong(calibrators, tuple(labels), answered, codes, some) for some in of]
    return np.asarray(wrong, float)[..., : log.n_queries]


#: About how many thresholds to try for all triples together; and how many at least for each triple.
_MOST, _FEWEST_THRESHOLDS = 40_000, 40


def score_triples(rows: CandidateRows, blending: Blending) -> Candidates:
    """Score every triple of models, by rising cost, at every threshold of its first model, on n queries.

    Args:
        rows: the queries, with the codes of answers.
        blending: the blending weights of labels; with `refusal`, the last model may refuse.

    >>> confidence, right = jnp.full((4, 3), 0.5), jnp.array([[0, 0, 1], [0, 0, 1], [1, 1, 1], [1, 1, 1]], bool)
    >>> answer = jnp.array([[0, 1, 2], [0, 1, 2], [0, 0, 0], [0, 0, 0]])
    >>> sure, money = jnp.full((3, 4), 0.5), jnp.array([1.0, 1.0, 8.0])
    >>> rows = CandidateRows(confidence, sure, right, jnp.ones((4, 3), bool), money, answer)
    >>> trial = score_triples(rows, Blending())   # as all are unsure, the second is always asked
    >>> best = int(trial.error.argmin())
    >>> float(trial.threshold[best]), float(trial.cost[best])
    (1.0, 6.0)
    """
    k = rows.confidence.shape[1]
    triples = np.array([*itertools.combinations(range(k), 3)], int).reshape(-1, 3).T
    most = min(MOST_THRESHOLDS, max(_FEWEST_THRESHOLDS, _MOST // max(triples.shape[1], 1)))
    refused = None if blending.refusal_worth is None else best_refusals(rows, blending)[0]
    rising = jnp.argsort(rows.confidence, axis=0).T
    judged = lax.map(lambda models: _triple(rows, blending, refused, most, rising[models[0]], *models), tuple(triples))
    return jax.tree.map(jnp.ravel, judged)


def _triple(
    rows: CandidateRows,
    blending: Blending,
    refused: Array | None,
    most: int,
    rising: Array,
    *models: Array,
) -> Candidates:
    """Score one triple of models at M thresholds.

    Args:
        rows, blending: as for `score_triples`.
        refused: (k,) confidence up to which each model refuses as the last.
        most: number of thresholds at most.
        rising: (n,) the queries by rising confidence of the first model.
        models: positions of the three models, () each.
    """
    first, second, third = models
    counts, equal, differ, by_second, by_third = by_agreement(rows, *models)
    confidence, label = rows.confidence, blending.label
    fallback = _matching_threshold(confidence[:, second], counts & (equal | differ), differ)
    settled = equal | (~(equal | differ) & (confidence[:, second] > fallback))
    refuses, worth = jnp.zeros_like(settled), 0.0
    if refused is not None:
        refuses, worth = confidence[:, third] <= refused[third], jnp.asarray(blending.refusal_worth, confidence.dtype)

    # Probability that the answer is right: of the first model, and of the answering model where the second is asked.
    first_right = blend_labels(rows, blending)[:, first]
    by_second = label * rows.correct[:, second] + (1 - label) * by_second
    by_third = label * rows.correct[:, third] + (1 - label) * by_third
    answer_right = jnp.where(settled, by_second, jnp.where(refuses, worth, by_third))
    later_cost = rows.charges[:, second] + jnp.where(~settled, rows.charges[:, third], 0.0)

    cuts = spread_cuts(confidence[:, first], counts, most, rising)
    below = partial(cuts.sum_below_per_query, present=counts)
    mean = partial(cuts.mean, present=counts)
    wrong = mean(1 - first_right, empty=1.0) - below(answer_right - first_right)
    error = jnp.where(cuts.parts | cuts.every, wrong, jnp.inf)
    places, level = jnp.zeros_like(cuts.last), jnp.zeros_like(cuts.threshold)
    return Candidates(
        k=confidence.shape[1],
        first=places + first,
        second=places + second,
        third=places + third,
        threshold=cuts.threshold,
        fallback=level + fallback,
        error=error,
        cost=mean(rows.charges[:, first]) + below(later_cost),
        label_error=error,
        abstention=below(~settled & refuses),
        refusal=None if refused is None else level + refused[third],
    )


def _matching_threshold(confidence: Array, present: Array, differ: Array) -> Array:
    """Return the confidence up to which as many of the present queries lie as have different answers."""
    ordered = jnp.sort(jnp.where(present, confidence, jnp.inf))
    many, count = (present & differ).sum(), present.sum()
    below, above = ordered[jnp.maximum(many - 1, 0)], ordered[jnp.minimum(many, len(ordered) - 1)]
    between = below + (above - below) / 2
    return jnp.where(many == 0, ALWAYS_ANSWER, jnp.where(many == count, NEVER_ANSWER, between))
