"""Policies that go by whether two models' answers are equal, judged on the queries of the log itself.

Model i is asked; where Φ_i ≤ φ, model j is asked too. Where their answers are equal, that of j is kept; where they
differ, model l is asked. Such a policy errs with probability

    E[1 − y_i; Φ_i > φ] + E[1 − y_j; Φ_i ≤ φ, equal] + E[1 − y_l; Φ_i ≤ φ, different]

Labels are averaged with what is expected of them, as those of pairs are (`judging`); how likely an answer is right
where two are equal, or differ, `agreement_odds` tells.

Where an answer is not known the second model goes by its confidence: it asks on as many queries as would differ.
"""

import dataclasses
import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from rcjax._core.batching import map_entries, part
from rcjax._core.compilation import compiled
from rcjax._core.size_classes import fill_up
from rcjax.frontier.policies import (
    ALWAYS_ANSWER,
    NEVER_ANSWER,
    NEVER_REFUSE,
    Agreements,
    Policies,
)
from rcjax.model.calibration import Calibrator
from rcjax.tuning.agreement_odds import Answers, Models, groups, models_of, second_right, third_right
from rcjax.tuning.judging import Judging
from rcjax.tuning.label_candidates import MOST_THRESHOLDS, CandidateRows, alone_right, refusals
from rcjax.tuning.label_refusals import spread_cuts

#: Thresholds tried for all triples together, about, and for each of many.
_MOST, _FEWEST_THRESHOLDS = 40_000, 40


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Agreeing:
    """Policies by agreement on trial, C of them: every triple of models at every threshold of its first."""

    first: Any
    """(C,) the model asked first."""
    second: Any
    """(C,) the model asked where it is unsure, whose answer is kept where it is the same."""
    third: Any
    """(C,) the model asked where the answers differ."""
    threshold: Any
    """(C,) calibrated confidence up to which the second is asked; NEVER_ANSWER where it always is."""
    fallback: Any
    """(C,) confidence of the second up to which the third is asked where an answer is not known."""
    error: Any
    """(C,) estimated, a refusal at its price; inf for a threshold that parts no queries."""
    cost: Any
    """(C,) of the queries, each at what its path costs"""
    abstention: Any
    """(C,) share of the queries that get no answer."""
    refusal: Any
    """(C,) confidence up to which the third refuses."""


def agreeing(rows: CandidateRows, answer: jax.Array, judging: Judging) -> Agreeing:
    """Every triple of models, by rising cost, at every threshold of its first, judged on n queries.

    Args:
        rows: of the queries.
        answer: (n, k) codes of answers, as `Log.answer` has them.
        judging: how they are judged; with a refusal, the last model may refuse.

    >>> confidence, right = jnp.full((4, 3), 0.5), jnp.array([[0, 0, 1], [0, 0, 1], [1, 1, 1], [1, 1, 1]], bool)
    >>> answer = jnp.array([[0, 1, 2], [0, 1, 2], [0, 0, 0], [0, 0, 0]])
    >>> sure, money = jnp.full((3, 4), 0.5), jnp.array([1.0, 1.0, 8.0])
    >>> rows = CandidateRows(confidence, sure, right, jnp.ones((4, 3), bool), money)
    >>> trial = agreeing(rows, answer, Judging())   # as all are unsure, the second is always asked
    >>> best = int(trial.error.argmin())
    >>> float(trial.threshold[best]), float(trial.cost[best])
    (1.0, 6.0)
    """
    confidence = rows.confidence
    k = confidence.shape[1]
    table = np.array([*itertools.combinations(range(k), 3)], int)
    refused, worth = jnp.zeros(k, confidence.dtype), jnp.asarray(0.0)
    if judging.refusal is not None:
        (refused, _, _), worth = refusals(rows, judging), jnp.asarray(judging.refusal, confidence.dtype)
    most = min(MOST_THRESHOLDS, max(_FEWEST_THRESHOLDS, _MOST // max(len(table), 1)))
    triples = models_of(table[:, 0], table[:, 1], table[:, 2], k)
    charge = jnp.broadcast_to(rows.charge, confidence.shape)
    answers = Answers(confidence, rows.crossed, rows.correct, rows.present, answer)
    evidence = _Evidence(answers, alone_right(rows, judging), charge, jnp.asarray(judging.blend.label), refused, worth)
    figures = map_entries(lambda models: _judge(evidence, models, most), len(confidence), (0,))(triples)
    count = figures.threshold.shape[1]
    return Agreeing(
        first=np.repeat(table[:, 0], count),
        second=np.repeat(table[:, 1], count),
        third=np.repeat(table[:, 2], count),
        threshold=figures.threshold.reshape(-1),
        fallback=jnp.repeat(figures.fallback, count),
        error=figures.error.reshape(-1),
        cost=figures.cost.reshape(-1),
        abstention=figures.refused.reshape(-1),
        refusal=jnp.repeat(refused[triples.third], count),
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Evidence:
    """What triples are judged by."""

    answers: Answers
    right: jax.Array  # (n, k) how likely each answer is right, as that of a model alone
    charge: jax.Array  # (n, k) money of each answer
    label: jax.Array  # () weight of a label
    refused: jax.Array  # (k,) the confidence up to which each model refuses, if it is the last
    worth: jax.Array  # () of a refusal, in right answers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Figures:
    """Of one triple at M thresholds."""

    threshold: jax.Array  # (M,)
    error: jax.Array  # (M,) a refusal at its price; inf where the threshold parts no queries
    cost: jax.Array  # (M,)
    refused: jax.Array  # (M,)
    fallback: jax.Array  # ()


def _judge(evidence: _Evidence, at: Models, most: int) -> _Figures:
    """The figures of one triple of models: `vmap` it."""
    log, charge = evidence.answers, evidence.charge
    counts, equal, differ = groups(log, at)
    compared = equal | differ
    first, second, third = (log.confidence[:, j] for j in (at.first, at.second, at.third))
    fallback = _as_often(second, counts & compared, differ)
    settled = equal | (~compared & (second > fallback))
    refuses = third <= evidence.refused[at.third]

    def blended(model: jax.Array, expected: jax.Array) -> jax.Array:
        return evidence.label * log.correct[:, model] + (1 - evidence.label) * expected

    # How likely the answer is right: of the first model alone, and of whoever answers where the second is asked.
    alone = evidence.right[:, at.first]
    by_second = blended(at.second, second_right(log, at, counts, equal))
    by_third = blended(at.third, third_right(log, at, counts, differ))
    right = jnp.where(settled, by_second, jnp.where(refuses, evidence.worth, by_third))
    beyond = charge[:, at.second] + jnp.where(~settled, charge[:, at.third], 0.0)

    cuts = spread_cuts(first, counts, most)
    passed_on, everyone = partial(cuts.means_below, present=counts), partial(cuts.mean, present=counts)
    wrong = everyone(1 - alone, empty=1.0) - passed_on(right - alone)
    return _Figures(
        threshold=cuts.threshold,
        error=jnp.where(cuts.parts | cuts.every, wrong, jnp.inf),
        cost=everyone(charge[:, at.first]) + passed_on(beyond),
        refused=passed_on(~settled & refuses),
        fallback=fallback,
    )


def _as_often(confidence: jax.Array, present: jax.Array, differ: jax.Array) -> jax.Array:
    """The confidence up to which as many of the queries present lie as have different answers."""
    ordered = jnp.sort(jnp.where(present, confidence, jnp.inf))
    many, count = (present & differ).sum(), present.sum()
    below, above = ordered[jnp.maximum(many - 1, 0)], ordered[jnp.minimum(many, len(ordered) - 1)]
    between = below + (above - below) / 2
    return jnp.where(many == 0, ALWAYS_ANSWER, jnp.where(many == count, NEVER_ANSWER, between))


def judge_agreement(
    calibrators: Calibrator,
    rows: tuple[jax.Array, jax.Array, jax.Array],
    charge: jax.Array,
    answer: jax.Array,
    judging: Judging,
) -> Agreeing:
    """`agreeing` on n queries, with what their own labels and raw confidences tell of one model by another.

    Args:
        calibrators, rows, charge, judging: as of `rcjax.tuning.label_candidates.judge`.
        answer: (n, k) codes of answers.
    """
    return agreeing(CandidateRows.of(calibrators, rows, charge), answer, judging)


_judge_filled = compiled(judge_agreement, runs="long")


def judge_answers(
    calibrators: Calibrator,
    rows: tuple[ArrayLike, ArrayLike, ArrayLike],
    charge: ArrayLike,
    answer: ArrayLike,
    judging: Judging,
) -> Agreeing:
    """`judge_agreement`, compiled for one log at a time, in numpy's arrays; logs of like size share the programme.

    Args:
        calibrators, rows, charge, answer, judging: as of `judge_agreement`.
    """
    *filled, codes = fill_up(*rows, answer)
    money = fill_up(charge)[0] if np.ndim(charge) > 1 else charge
    return jax.tree.map(np.asarray, _judge_filled(calibrators, tuple(filled), money, codes, judging))


def as_policies(trial: Agreeing, indices: Any, k: int, refusing: bool) -> Policies:
    """(L,) some of the candidates, as policies over k models, in numpy's arrays.

    Args:
        trial: all candidates.
        indices: (L,) which of them.
        k: the number of models.
        refusing: whether models may refuse.
    """
    chosen = part(trial, indices)
    everyone, nobody = np.arange(k), Agreements.none((len(chosen.first), k))
    first, second, third = (model[:, None] == everyone for model in (chosen.first, chosen.second, chosen.third))
    thresholds = np.where(first, chosen.threshold[:, None], np.where(second, chosen.fallback[:, None], NEVER_ANSWER))
    thresholds = np.where(third, ALWAYS_ANSWER, thresholds).astype(chosen.threshold.dtype)
    agreements = Agreements(
        np.where(second, chosen.first[:, None], nobody.earlier).astype(np.int32),
        np.where(second, chosen.third[:, None], nobody.differ).astype(np.int32),
    )
    refused = None
    if refusing:
        refused = np.where(third, chosen.refusal[:, None], NEVER_REFUSE).astype(thresholds.dtype)
        thresholds = np.maximum(thresholds, refused)
    return Policies.of_cascades(thresholds, first | second | third, refused, agreements=agreements)
