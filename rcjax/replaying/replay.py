"""Policies on logged data: what they would have cost and got wrong, and the area under an error–cost curve.

Nothing here is modelled: a policy walks through the answers that a log holds, and its mistakes are counted.
On a log that was not used for tuning, this is the honest figure beside the one that the model predicts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.compilation import compiled
from rcjax._core.numerics import divide
from rcjax._core.size_classes import fill_up
from rcjax.frontier.policies import Policies
from rcjax.frontier.waiting_times import Seconds
from rcjax.logs.log import Log
from rcjax.model.calibration import Transform
from rcjax.policy.policy import AnyPolicy
from rcjax.replaying.packing import Part, calibrated, columns_of, pack_frontier, pack_policy, reached, require_answers
from rcjax.replaying.waiting import as_tuned, frontier_seconds, paths, seconds_columns, seconds_of
from rcjax.replaying.walk import walk

if TYPE_CHECKING:
    from rcjax.frontier.frontier import Frontier

_ROUND = 64


_BATCH_ELEMENTS = 2**22  # queries × lambdas held at a time: some 100 MB of intermediate arrays


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("error", "cost", "error_se", "cost_se", "share", "spent", "spent_se", "abstention", "seconds"),
    meta_fields=("n", "models"),
)
@dataclasses.dataclass(frozen=True)
class Replay:
    """What happened to the queries of a log: scalars for a policy, a leading axis L for a `Frontier`."""

    error: jax.Array
    """(…) share of the queries that were answered wrongly; those that were refused count as no error."""
    cost: jax.Array
    """(…) money per query as the paper counts it: each answer at its model's mean cost on the n queries."""
    error_se: jax.Array
    """(…) standard error of `error`: √(sample variance / n); NaN for a single query."""
    cost_se: jax.Array
    """(…) standard error of `cost`."""
    share: jax.Array
    """(…, k) share of the queries that each model answered; with `abstention`, sums to 1 over the models."""
    spent: jax.Array
    """(…) money per query as billed: each answer at its own cost; above `cost` where long queries defer."""
    spent_se: jax.Array
    """(…) standard error of `spent`."""
    abstention: jax.Array
    """(…) share of the queries that were refused: 0 unless the policies may abstain."""
    n: int
    """Number of queries replayed: those that every model that may be asked has answered."""
    models: tuple[str, ...]
    """Names of the k models, in the order of the policy or frontier."""
    seconds: Seconds | None = None
    """How long the queries waited, where the log tells: each answer at its own seconds, summed along the path."""

    @property
    def error_answered(self) -> jax.Array:
        """(…) share of the answered queries that were answered wrongly; 0 where none was answered."""
        return _share_of_answered(self.error, self.abstention)


def replay(policy_or_frontier: AnyPolicy | Frontier, log: Log) -> Replay:
    """Answer the queries of a log by a policy, a ladder, or every policy of a frontier, in jitted calls.

    Raw confidences are calibrated as the policy (or the frontier's model) says, then model j answers or defers by the
    first interval with Φ_j ≤ bound: with one threshold φ, it answers where Φ_j > φ. Right or wrong is the log's own,
    and so is which answers are equal; a query that is refused is neither right nor wrong, and its calls are paid for.
    `cost` charges each answer the model's mean cost on the queries replayed, as the paper and the model's prediction
    do, so that the two compare; `spent` charges what the answer itself cost, which is more where the queries that are
    deferred are longer than others. Only queries answered by all the models that may be asked are replayed; a frontier
    is replayed on the same queries throughout. Other models of the log do not matter. Of a ladder the rungs on
    either side of its position answer every query, and what counts is the weighted mean: its expected figures on the
    log, without the noise of the lots.
    So it is where a policy passes on a share of the queries of an interval: each counts with what its lot may be.

    Where answers lack labels, errors are those of the outcomes that the labels correct (`Log.hand`,
    `rcjax.model.label_outcomes`): right on average whatever a judge says, with standard errors that know how few
    labels there are. The regression learns from the queries of this log, of the models of the policy.

    Where the log tells how long answers took, `Replay.seconds` says how long queries waited along their paths. Queries
    with an answer on their path whose seconds are not known are left out of it. Where the policy was tuned with a price
    of waiting, `cost` and `spent` count it too.

    Arrays have the log's float type. In float32, a confidence within rounding of a threshold may fall on its
    other side: replay in float64 where many confidences tie with a threshold.

    Raises `LogError` where the log lacks a model that may be asked, no query has the answers of them all, policies
    compare answers and the log tells none, or count waiting and the log does not tell the seconds of every answer.

    >>> import rcjax
    >>> train, test = rcjax.sample_log(600, seed=0).split(0.5, seed=0)
    >>> policy = rcjax.solve_frontier(rcjax.fit(train)).policy(error_cost=0.001)
    >>> replayed = replay(policy, test)
    >>> replayed.n, replayed.error.shape, bool(0 < replayed.error < 1)
    (300, (), True)
    """
    if not isinstance(policy_or_frontier, AnyPolicy):
        return _replay_frontier(policy_or_frontier, as_tuned(policy_or_frontier, log))
    return _replay_parts(policy_or_frontier, as_tuned(policy_or_frontier, log))


class Walked(NamedTuple):
    """What became of each of n queries under a policy of k models, or how likely it was; numpy's arrays."""

    wrong: np.ndarray  # (n,)
    refused: np.ndarray  # (n,)
    asked: np.ndarray  # (k, n)
    query_cost: np.ndarray  # (k, n) money, 0 for a model that no query can reach
    seconds: Seconds | None = None  # None where the log tells none

    @property
    def charge(self) -> np.ndarray:
        """(n,) money, each answer at its model's mean cost on these queries."""
        return self.query_cost.mean(1) @ self.asked


def walk_log(policy: AnyPolicy, log: Log) -> Walked:
    """Answer the queries of a log by a policy, as `replay` does, and tell of each what became of it.

    Of a ladder the rungs on either side of its position answer every query, and what counts is the weighted mean.
    Where a policy has shares, what
    counts is the expectation over the lots.
    """
    log = as_tuned(policy, log)
    parts, (*data, codes) = _in_parts(policy, log)
    n, walked = data[0].shape[1], []
    wrong, refused, asked = np.zeros(n), np.zeros(n), np.zeros(data[0].shape)
    for weight, rows, packed in parts:
        columns = *fill_up(*(column[rows] for column in data[:2]), axis=1), _codes(codes, packed.policies, rows)
        outcomes = _walked(packed.calibrators, packed.policies.take(0), *columns, transforms=packed.transforms)
        wrong_here, refused_here, asked_here = (np.asarray(outcome)[..., :n] for outcome in outcomes)
        wrong += weight * wrong_here
        refused += weight * refused_here
        asked[rows] += weight * asked_here
        walked.append(asked_here)
    return Walked(wrong, refused, asked, data[2].astype(float), _seconds(parts, walked, log, policy.models))


def _seconds(parts: Sequence[Part], asked: Sequence[np.ndarray], log: Log, models: tuple[str, ...]) -> Seconds | None:
    """Those of a policy or mixture, each part of which asked models (k', n); None where the log tells none."""
    seconds = seconds_columns(log, models, reached(parts, len(models)))
    if seconds is None:
        return None
    each = [paths(own, seconds[rows]) for own, (_, rows, _) in zip(asked, parts, strict=True)]
    weighted = [weight * odds for (weight, _, _), (odds, _) in zip(parts, each, strict=True)]
    return seconds_of(np.concatenate(weighted), np.concatenate([waits for _, waits in each]))


def _in_parts(policy: AnyPolicy, log: Log) -> tuple[list[Part], tuple[Any, ...]]:
    """(the parts, columns of all its models) of a policy."""
    packed = [pack_policy(part, log.logprob.dtype) for part in policy.policies]
    rows = [
        slice(None) if part.models == policy.models else [policy.models.index(name) for name in part.models]
        for part in policy.policies
    ]
    for one in packed:
        require_answers(one.policies, log)
    parts = list(zip(policy.weights, rows, packed, strict=True))
    return parts, columns_of(log, policy.models, reached(parts, len(policy.models)))


def _replay_frontier(frontier: Frontier, log: Log) -> Replay:
    packed, models = pack_frontier(frontier, log.logprob.dtype), tuple(frontier.models)
    require_answers(packed.policies, log)
    *data, codes = columns_of(log, models, packed.asked)
    seconds = frontier_seconds(packed, log, models, data[0], codes)
    columns, codes = _filled(*data), _codes(codes, packed.policies)
    # Frontiers have any number of points; rounded up, few programmes serve them all.
    points = len(packed.policies.first)
    filled = np.minimum(np.arange(points + -points % _ROUND), points - 1)
    batch = max(1, min(_ROUND, _BATCH_ELEMENTS // columns[0].shape[1]))
    policies = packed.policies.take(filled)
    figures = _replay_all(packed.calibrators, policies, *columns, codes, transforms=packed.transforms, batch=batch)
    figures = jax.device_put(tuple(np.asarray(figure)[:points] for figure in figures))
    return Replay(*figures, n=data[0].shape[1], models=models, seconds=seconds)


def _replay_parts(policy: AnyPolicy, log: Log) -> Replay:
    """`replay` of a policy, every part of which answers every query."""
    parts, (*data, codes) = _in_parts(policy, log)
    columns = _filled(*data)
    walked = []
    for _, rows, packed in parts:
        here = *(column[rows] for column in columns[:3]), columns[3], _codes(codes, packed.policies, rows)
        walked.append(_walk_one(packed.calibrators, packed.policies.take(0), *here, transforms=packed.transforms))
    n = data[0].shape[1]
    seconds = _seconds(parts, [np.asarray(asked)[:, :n] for *_, asked in walked], log, policy.models)
    walked = [one[:-1] for one in walked]
    outcomes = _weighted(parts, walked, columns[0]) if len(parts) > 1 else walked[0]
    return Replay(*_figures_of(*outcomes, columns[3]), n=n, models=policy.models, seconds=seconds)


def _weighted(parts: Sequence[Part], walked: Sequence[tuple[Any, ...]], like: np.ndarray) -> list[np.ndarray]:
    """The means of what `_walk_one` tells of each part, by their weights; for models like those of an array (k, n)."""
    means = [np.zeros(shape, like.dtype) for shape in (like.shape[1:],) * 4 + (like.shape,)]
    for (weight, rows, _), (*outcomes, answers) in zip(parts, walked, strict=True):
        outcomes.append(np.zeros_like(like))
        outcomes[-1][rows] = answers
        means = [mean + weight * np.asarray(outcome) for mean, outcome in zip(means, outcomes, strict=True)]
    return means


def _filled(logprob: np.ndarray, correct: np.ndarray, query_cost: np.ndarray) -> tuple[np.ndarray, ...]:
    """Columns (k, n) filled up to the size class, and which queries count (n,)."""
    return fill_up(logprob, correct, query_cost, axis=1) + fill_up(np.ones(logprob.shape[1], bool))


def _codes(codes: np.ndarray | None, policies: Policies, rows: Any = slice(None)) -> np.ndarray | None:
    """Codes of answers (k, n) for policies that compare those of some models, filled up; None for others."""
    return None if codes is None or policies.agreements is None else fill_up(codes[rows], axis=1)[0]


def _outcomes(
    phi: jax.Array,
    policy: Policies,
    correct: jax.Array,
    query_cost: jax.Array,
    counts: jax.Array,
    codes: jax.Array | None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Of each query (n,): was it answered wrongly, was it refused, what is it charged and what was spent; (k, n): who
    answered it, who was asked. Where the policy has shares, how likely, and expected money.
    """
    where = walk(phi, policy, codes)
    mean_cost = query_cost.sum(axis=1, keepdims=True) / counts.sum()
    charged, spent = (
        jnp.where(where.asked > 0, where.asked * money, 0).sum(axis=0) for money in (mean_cost, query_cost)
    )
    wrong, refused = where.wrong(correct).astype(phi.dtype), where.refused.astype(phi.dtype)
    return wrong, refused, charged, spent, where.answers, where.asked


def _figures(
    wrong: jax.Array, refused: jax.Array, charged: jax.Array, spent: jax.Array, answers: jax.Array, counts: jax.Array
) -> tuple[jax.Array, ...]:
    """The fields of `Replay` from the outcomes of all queries, of which those that count do."""
    error, error_se = _mean_and_se(wrong, counts)
    cost, cost_se = _mean_and_se(charged, counts)
    n = counts.sum().astype(wrong.dtype)
    share, abstention = (jnp.where(counts, outcome, 0).sum(-1) / n for outcome in (answers, refused))
    return error, cost, error_se, cost_se, share, *_mean_and_se(spent, counts), abstention


def _mean_and_se(values: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array]:
    n = counts.sum().astype(values.dtype)
    guess = jnp.where(counts, values, 0).sum() / n
    residual = jnp.where(counts, values - guess, 0)
    correction = residual.sum() / n  # a float32 sum of small numbers loses digits: the second pass restores them
    variance = jnp.where(counts, (residual - correction) ** 2, 0).sum() / (n - 1)
    return guess + correction, jnp.sqrt(variance / n)


_figures_of = compiled(_figures)


@compiled
def _share_of_answered(error: jax.Array, abstention: jax.Array) -> jax.Array:
    return divide(error, 1 - abstention)


@partial(compiled, static_argnames="transforms")
def _walk_one(
    calibrators: tuple[Any, ...],
    policy: Policies,
    logprob: jax.Array,
    correct: jax.Array,
    query_cost: jax.Array,
    counts: jax.Array,
    codes: jax.Array | None,
    *,
    transforms: tuple[Transform, ...],
) -> tuple[jax.Array, ...]:
    phi = calibrated(transforms, calibrators, logprob)
    return _outcomes(phi, policy, correct, query_cost, counts, codes)


@partial(compiled, static_argnames="transforms")
def _walked(
    calibrators: tuple[Any, ...],
    policy: Policies,
    logprob: jax.Array,
    correct: jax.Array,
    codes: jax.Array | None,
    *,
    transforms: tuple[Transform, ...],
) -> tuple[jax.Array, ...]:
    where = walk(calibrated(transforms, calibrators, logprob), policy, codes)
    return where.wrong(correct), where.refused, where.asked


@partial(compiled, static_argnames=("transforms", "batch"))
def _replay_all(
    calibrators: tuple[Any, ...],
    policies: Policies,
    logprob: jax.Array,
    correct: jax.Array,
    query_cost: jax.Array,
    counts: jax.Array,
    codes: jax.Array | None,
    *,
    transforms: tuple[Transform, ...],
    batch: int,
) -> tuple[jax.Array, ...]:
    phi = calibrated(transforms, calibrators, logprob)

    def one(policy: Policies) -> tuple[jax.Array, ...]:
        outcomes = _outcomes(phi, policy, correct, query_cost, counts, codes)
        return _figures(*outcomes[:5], counts)

    return lax.map(one, policies, batch_size=batch)
