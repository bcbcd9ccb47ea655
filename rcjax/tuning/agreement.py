"""Policies that go by whether two models' answers are equal, judged on the queries of the log itself.

Model i is asked; where Φ_i ≤ φ, model j is asked too. Where their answers are equal, that of j is kept; where they
differ, model l is asked. Such a policy errs with probability

    E[1 − y_i; Φ_i > φ] + E[1 − y_j; Φ_i ≤ φ, equal] + E[1 − y_l; Φ_i ≤ φ, different]

Labels are averaged with what is expected of them, as those of pairs are. What is expected of an answer changes with
agreement: by Bayes' theorem the odds that it is right are multiplied by

    P(equal | y_j = 1) / P(equal | y_j = 0)

which is taken to be one number for each pair, whatever the confidences are: its logarithm δ is the intercept that is
likeliest on the labels of the queries with equal answers, drawn to 0 by a normal prior of variance 1. So the second
model j, asked after i, is right where both say the same with probability

    σ(logit((Φ_j + P(y_j = 1 | ξ_i)) / 2) + δ)

and likewise a third model l, asked where they differ, from Φ_l / 2 + (P(y_l = 1 | ξ_i) + P(y_l = 1 | ξ_j)) / 4.

Where an answer is not known the second model goes by its confidence: it asks on as many queries as would differ.
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
from rcjax.logs.log import NO_ANSWER, Log
from rcjax.model.calibration import Calibrator
from rcjax.solving.frontier.policies import ALWAYS_ANSWER, NEVER_ANSWER, Policies
from rcjax.tuning.candidates import Candidates
from rcjax.tuning.pairs import MOST_THRESHOLDS, CandidateRows, Judging, alone_right, refusals, spread_cuts
from rcjax.tuning.replaying.walk import walk

_NEWTON_STEPS = 8  # of a concave function of one number, from 0

_SURE = 1e-6  # expected probabilities are kept so far from 0 and 1 that the labels can move them


def by_agreement(rows: CandidateRows, first: Any, second: Any, third: Any) -> tuple[jax.Array, ...]:
    """(n,) which queries count, on which the first two models say the same, and on which they differ; and how likely
    the second and the third are right where they are asked.

    Args:
        rows: what is known.
        first, second, third: positions of the models; where the third is the second again, no answers are compared.
    """
    counts = rows.present[:, first] & rows.present[:, second] & rows.present[:, third]
    own, other = rows.answer[:, first], rows.answer[:, second]
    comparable = (own != NO_ANSWER) & (other != NO_ANSWER) & (second != third)
    equal, differ = comparable & (own == other), comparable & (own != other)
    plain = (rows.confidence[:, second] + rows.told(second, first)) / 2
    by_second = _with_group_odds(plain, rows.correct[:, second], counts & equal, equal)
    plain = rows.confidence[:, third] / 2 + (rows.told(third, first) + rows.told(third, second)) / 4
    return counts, equal, differ, by_second, _with_group_odds(plain, rows.correct[:, third], counts & differ, differ)


def _with_group_odds(plain: jax.Array, correct: jax.Array, labels: jax.Array, group: jax.Array) -> jax.Array:
    """(n,) probabilities of being right, which for a group of the queries have odds of their own.

    Args:
        plain: (n,) the probabilities, whichever group a query is in.
        correct: (n,) whether the answer is right.
        labels: (n,) the queries of the group that tell its odds.
        group: (n,) which queries are in the group.
    """
    odds = special.logit(jnp.clip(plain, _SURE, 1 - _SURE))

    def step(_: Any, shift: jax.Array) -> jax.Array:
        expected = special.expit(odds + shift)
        slope = jnp.where(labels, correct - expected, 0.0).sum() - shift
        return shift + slope / (1 + jnp.where(labels, expected * (1 - expected), 0.0).sum())

    shift = lax.fori_loop(0, _NEWTON_STEPS, step, jnp.zeros((), plain.dtype))
    return jnp.where(group, special.expit(odds + shift), plain)


@compiled
def _expected_wrong(
    calibrators: Calibrator,
    rows: tuple[jax.Array, jax.Array, jax.Array],
    answered: jax.Array,
    answer: jax.Array,
    of: tuple[Candidates, Policies],
) -> jax.Array:
    """(L, n) how likely L policies are to answer wrongly, as far as the labels that may be learnt from tell."""
    known = CandidateRows.of(calibrators, rows, answer=answer, answered=answered)
    confidence = known.confidence

    def one(of: tuple[Candidates, Policies]) -> jax.Array:
        candidate, policy = of
        first, second, third = candidate.first, candidate.second, candidate.third
        *_, by_second, by_third = by_agreement(known, first, second, third)
        right = confidence.T  # of chains, which compare no answers
        for model, likely in ((third, by_third), (second, by_second), (first, confidence[:, first])):
            right = right.at[model].set(likely)
        answers = walk(confidence.T, policy, answer.T).answers
        return jnp.where(answers, 1 - right, 0.0).sum(0)

    return lax.map(one, of)


def expected_on_log(calibrators: Calibrator, rows: tuple[Any, ...], log: Log, several: list[Candidates]) -> np.ndarray:
    """(S, L, n) how likely policies are to answer the queries of a log wrongly, by what some of its rows tell.

    Args:
        calibrators: (k,) of the models.
        rows: (logprob, correct, present), each (n, k); the last says which labels may be learnt from.
        log: the log.
        several: S lists of L policies.
    """
    answer = np.full(log.answered.shape, NO_ANSWER) if log.answer is None else log.answer
    *labels, answered, codes = fill_up(*rows, log.answered, answer)
    of = ((candidates, candidates.policies(comparing=True)) for candidates in several)
    wrong = [_expected_wrong(calibrators, tuple(labels), answered, codes, some) for some in of]
    return np.asarray(wrong, float)[..., : log.n_queries]


#: Thresholds tried for all triples together, about, and for each of many.
_MOST, _FEWEST_THRESHOLDS = 40_000, 40


def agreeing(rows: CandidateRows, judging: Judging) -> Candidates:
    """Every triple of models, by rising cost, at every threshold of its first, judged on n queries.

    Args:
        rows: of the queries, with the codes of answers.
        judging: how they are judged; with a refusal, the last model may refuse.

    >>> confidence, right = jnp.full((4, 3), 0.5), jnp.array([[0, 0, 1], [0, 0, 1], [1, 1, 1], [1, 1, 1]], bool)
    >>> answer = jnp.array([[0, 1, 2], [0, 1, 2], [0, 0, 0], [0, 0, 0]])
    >>> sure, money = jnp.full((3, 4), 0.5), jnp.array([1.0, 1.0, 8.0])
    >>> rows = CandidateRows(confidence, sure, right, jnp.ones((4, 3), bool), money, answer)
    >>> trial = agreeing(rows, Judging())   # as all are unsure, the second is always asked
    >>> best = int(trial.error.argmin())
    >>> float(trial.threshold[best]), float(trial.cost[best])
    (1.0, 6.0)
    """
    k = rows.confidence.shape[1]
    triples = np.array([*itertools.combinations(range(k), 3)], int).reshape(-1, 3).T
    most = min(MOST_THRESHOLDS, max(_FEWEST_THRESHOLDS, _MOST // max(triples.shape[1], 1)))
    refused = None if judging.refusal is None else refusals(rows, judging)[0]
    rising = jnp.argsort(rows.confidence, axis=0).T
    judged = lax.map(lambda models: _triple(rows, judging, refused, most, rising[models[0]], *models), tuple(triples))
    return jax.tree.map(jnp.ravel, judged)


def _triple(
    rows: CandidateRows,
    judging: Judging,
    refused: jax.Array | None,
    most: int,
    rising: jax.Array,
    *models: jax.Array,
) -> Candidates:
    """One triple of models at M thresholds, `most` at most.

    Args:
        rows, judging: as of `agreeing`.
        refused: (k,) up to where each model refuses, as the last.
        most: thresholds.
        rising: (n,) the queries by rising confidence of the first.
        models: the three, ().
    """
    first, second, third = models
    counts, equal, differ, by_second, by_third = by_agreement(rows, *models)
    confidence, label = rows.confidence, judging.label
    fallback = _as_often(confidence[:, second], counts & (equal | differ), differ)
    settled = equal | (~(equal | differ) & (confidence[:, second] > fallback))
    refuses, worth = jnp.zeros_like(settled), 0.0
    if refused is not None:
        refuses, worth = confidence[:, third] <= refused[third], jnp.asarray(judging.refusal, confidence.dtype)

    # How likely the answer is right: of the first model alone, and of whoever answers where the second is asked.
    alone = alone_right(rows, judging)[:, first]
    by_second = label * rows.correct[:, second] + (1 - label) * by_second
    by_third = label * rows.correct[:, third] + (1 - label) * by_third
    right = jnp.where(settled, by_second, jnp.where(refuses, worth, by_third))
    beyond = rows.charges[:, second] + jnp.where(~settled, rows.charges[:, third], 0.0)

    cuts = spread_cuts(confidence[:, first], counts, most, rising)
    passed_on, everyone = partial(cuts.means_below, present=counts), partial(cuts.mean, present=counts)
    wrong = everyone(1 - alone, empty=1.0) - passed_on(right - alone)
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
        cost=everyone(rows.charges[:, first]) + passed_on(beyond),
        counted=error,
        abstention=passed_on(~settled & refuses),
        refusal=None if refused is None else level + refused[third],
    )


def _as_often(confidence: jax.Array, present: jax.Array, differ: jax.Array) -> jax.Array:
    """The confidence up to which as many of the queries present lie as have different answers."""
    ordered = jnp.sort(jnp.where(present, confidence, jnp.inf))
    many, count = (present & differ).sum(), present.sum()
    below, above = ordered[jnp.maximum(many - 1, 0)], ordered[jnp.minimum(many, len(ordered) - 1)]
    between = below + (above - below) / 2
    return jnp.where(many == 0, ALWAYS_ANSWER, jnp.where(many == count, NEVER_ANSWER, between))
