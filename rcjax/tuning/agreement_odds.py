"""How likely an answer is to be right, given whether two models said the same.

What is expected of an answer changes with agreement: by Bayes' theorem the odds that it is right are multiplied by

    P(equal | y_j = 1) / P(equal | y_j = 0)

which is taken to be one number for each pair, whatever the confidences are: its logarithm δ is the intercept that is
likeliest on the labels of the queries with equal answers, drawn to 0 by a normal prior of variance 1. So the second
model j, asked after i, is right where both say the same with probability

    σ(logit((Φ_j + P(y_j = 1 | ξ_i)) / 2) + δ)

and likewise a third model l, asked where they differ, from Φ_l / 2 + (P(y_l = 1 | ξ_i) + P(y_l = 1 | ξ_j)) / 4.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

from rcjax._core.batching import fill_up
from rcjax._core.compilation import compiled
from rcjax.frontier.policies import Policies
from rcjax.logs.log import NO_ANSWER, Log
from rcjax.model.calibration import Calibrator
from rcjax.replaying.walk import walk
from rcjax.tuning.candidates import Candidates
from rcjax.tuning.label_candidates import CandidateRows

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

    shift = jax.lax.fori_loop(0, _NEWTON_STEPS, step, jnp.zeros((), plain.dtype))
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
        right = jnp.zeros(confidence.T.shape, confidence.dtype)
        for model, likely in ((third, by_third), (second, by_second), (first, confidence[:, first])):
            right = right.at[model].set(likely)
        answers = walk(confidence.T, policy, answer.T).answers
        return jnp.where(answers, 1 - right, 0.0).sum(0)

    return jax.lax.map(one, of)


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
