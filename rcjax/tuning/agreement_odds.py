"""How likely an answer is to be right, given whether two models said the same.

What is expected of an answer changes with agreement: by Bayes' theorem the odds that it is right are multiplied by

    P(equal | y_j = 1) / P(equal | y_j = 0)

which is taken to be one number for each pair, whatever the confidences are: its logarithm δ is the intercept that is
likeliest on the labels of the queries with equal answers, drawn to 0 by a normal prior of variance 1. So the second
model j, asked after i, is right where both say the same with probability

    σ(logit((Φ_j + P(y_j = 1 | ξ_i)) / 2) + δ)

and likewise a third model l, asked where they differ, from Φ_l / 2 + (P(y_l = 1 | ξ_i) + P(y_l = 1 | ξ_j)) / 4.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

from rcjax._core.compilation import compiled
from rcjax._core.size_classes import fill_up
from rcjax.frontier.policies import Policies
from rcjax.logs.log import NO_ANSWER, Log
from rcjax.model.calibration import Calibrator, calibrate_all
from rcjax.model.pairs import pairs
from rcjax.replaying.walk import walk
from rcjax.tuning.judging import cross_calibrate

_NEWTON_STEPS = 8  # of a concave function of one number, from 0


_SURE = 1e-6  # expected probabilities are kept so far from 0 and 1 that the labels can move them


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Answers:
    """What is known of n queries and k models."""

    confidence: jax.Array  # (n, k) calibrated
    crossed: jax.Array  # (P, n) of `cross_calibrate`
    correct: jax.Array  # (n, k)
    present: jax.Array  # (n, k)
    answer: jax.Array  # (n, k) codes


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Models:
    """The models of policies (T,), by position, and the rows of `cross_calibrate`: what one model tells of a later."""

    first: Any
    second: Any
    third: Any
    second_by_first: Any  # the row of what the first tells of the second
    third_by_first: Any
    third_by_second: Any


def models_of(first: Any, second: Any, third: Any, k: int) -> Models:
    """The models of policies, and the rows of `cross_calibrate` for each two of them.

    Args:
        first, second, third: their positions; the second again for no third.
        k: the number of models.
    """
    number = np.zeros((k, k), int)
    for pair, (i, j) in enumerate(pairs(k)):
        number[i, j] = number[j, i] = pair
    table = jnp.asarray(number)
    return Models(first, second, third, table[first, second], table[first, third], table[second, third])


def groups(log: Answers, at: Models) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(n,) which queries count, those on which the first and the second say the same, and those where they differ."""
    counts = log.present[:, at.first] & log.present[:, at.second] & log.present[:, at.third]
    first, second = log.answer[:, at.first], log.answer[:, at.second]
    comparable = (first != NO_ANSWER) & (second != NO_ANSWER)
    return counts, comparable & (first == second), comparable & (first != second)


def second_right(log: Answers, at: Models, counts: jax.Array, equal: jax.Array) -> jax.Array:
    """(n,) how likely the second is right, where it is asked.

    Args:
        log: what is known.
        at: the models.
        counts: (n,) the queries whose labels tell it.
        equal: (n,) those on which it says what the first says.
    """
    plain = (log.confidence[:, at.second] + log.crossed[at.second_by_first]) / 2
    return _with_group_odds(plain, log.correct[:, at.second], counts & equal, equal)


def third_right(log: Answers, at: Models, counts: jax.Array, differ: jax.Array) -> jax.Array:
    """(n,) how likely the third is right, where it is asked.

    Args:
        log: what is known.
        at: the models.
        counts: (n,) the queries whose labels tell it.
        differ: (n,) those on which the first and the second differ.
    """
    plain = log.confidence[:, at.third] / 2 + (log.crossed[at.third_by_first] + log.crossed[at.third_by_second]) / 4
    return _with_group_odds(plain, log.correct[:, at.third], counts & differ, differ)


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
def expected_wrong(
    calibrators: Calibrator,
    rows: tuple[jax.Array, jax.Array, jax.Array],
    answered: jax.Array,
    answer: jax.Array,
    policies: Policies,
) -> jax.Array:
    """(L, n) how likely policies of one model, of pairs, and by agreement are to answer wrongly, as far as labels tell.

    Args:
        calibrators: (k,) of the models.
        rows: (logprob, correct, present), each (n, k); the last says which labels may be learnt from.
        answered: (n, k) whether there is an answer.
        answer: (n, k) codes of answers.
        policies: L policies that may compare answers.
    """
    logprob, correct, present = rows
    confidence = calibrate_all(calibrators, logprob, answered)
    crossed = cross_calibrate(logprob, correct, present, calibrators.transform, answered)
    log = Answers(confidence, crossed, correct, present, answer)
    return jax.lax.map(lambda policy: _expected_wrong(log, policy), policies)


def _expected_wrong(log: Answers, policy: Policies) -> jax.Array:
    """(n,) of one policy, which compares two of its models, or has two at most."""
    k = log.confidence.shape[1]
    assert policy.agreements is not None
    compares = policy.agreements.compares
    first, others = policy.first, policy.members & (jnp.arange(k) != policy.first)
    second = jnp.where(compares.any(), compares.argmax(), others.argmax())
    third = jnp.where(compares.any(), policy.agreements.differ[second], second)
    at = models_of(first, second, third, k)
    counts, equal, differ = groups(log, at)
    right = jnp.zeros(log.confidence.T.shape, log.confidence.dtype)
    right = right.at[at.third].set(third_right(log, at, counts, differ & compares.any()))
    right = right.at[second].set(second_right(log, at, counts, equal & compares.any()))
    right = right.at[first].set(log.confidence[:, first])
    where = walk(log.confidence.T, policy, log.answer.T)
    return jnp.where(where.answers > 0, where.answers * (1 - right), 0.0).sum(0)


def expected_on_log(calibrators: Calibrator, rows: tuple[Any, ...], log: Log, several: list[Policies]) -> np.ndarray:
    """(S, L, n) `expected_wrong` of several lists of L policies, by what some rows of a log tell.

    Args:
        calibrators: (k,) of the models.
        rows: (logprob, correct, present), each (n, k): what may be learnt from.
        log: the log.
        several: S lists, of policies that may compare answers.
    """
    answer = np.full(log.answered.shape, NO_ANSWER) if log.answer is None else log.answer
    *labels, answered, codes = fill_up(*rows, log.answered, answer)

    def expected(policies: Policies) -> np.ndarray:
        policies = jax.tree.map(lambda leaf: leaf.astype(log.cost.dtype) if leaf.dtype.kind == "f" else leaf, policies)
        wrong = expected_wrong(calibrators, tuple(labels), answered, codes, policies)
        return np.asarray(wrong, float)[:, : log.n_queries]

    return np.stack([expected(policies) for policies in several])
