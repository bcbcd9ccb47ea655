"""How long the queries of a log wait under policies: seconds summed along the path that each query takes.

Quantiles are order statistics, and so are the ends of their intervals: the rank of the true quantile among n
independent queries is binomial (David & Nagaraja 2003, "Order Statistics", section 7.1). The interval of the mean is
by the normal law.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.compilation import compiled
from rcjax._core.size_classes import fill_up
from rcjax.frontier.policies import Policies
from rcjax.frontier.waiting_times import FIGURES, Seconds
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.record import recorded_waiting
from rcjax.policy.terms import say_prices
from rcjax.replaying.calibrating import calibrated
from rcjax.replaying.packing import Packed, Part, reached
from rcjax.replaying.walk import walk

if TYPE_CHECKING:
    from rcjax.frontier.frontier import Frontier

LEVEL = 0.9  # of the intervals


_AT_ONCE, _MANY = 64, 512  # policies that walk the log at a time: of a frontier, and of so many candidates or more


_ROUNDING = 1e-9  # of sums of weights


_MOST_ELEMENTS = 2**23  # queries × policies × models held at a time


def as_tuned(subject: AnyPolicy | Frontier, log: Log) -> Log:
    """A log with the costs that a policy or frontier counts: what a second of waiting is worth as when it was tuned.

    Raises LogError where that is not 0, and the log does not tell how long every answer took.
    """
    provenance = subject.provenance if isinstance(subject, AnyPolicy) else subject.model.provenance
    prices, _ = recorded_waiting(provenance)
    try:
        return log.with_waiting(**prices)
    except LogError as problem:
        raise LogError(f"the policy was tuned with a price of {say_prices(prices, 'a {unit}')}: {problem}") from None


def seconds_columns(log: Log, models: tuple[str, ...], asked: np.ndarray) -> np.ndarray | None:
    """(k, n) the seconds of the queries that all those asked have answered, as `columns_of` has them; None for none."""
    if log.seconds is None:
        return None
    part = log.select([name for name, used in zip(models, asked, strict=True) if used])
    waits = np.asarray(part.seconds)[part.complete].T
    filled = np.zeros((len(models), waits.shape[1]), waits.dtype)
    filled[asked] = waits
    return filled


def path_seconds(
    packed: Packed, logprob: np.ndarray, seconds: np.ndarray, codes: np.ndarray | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(seconds (C, n) along each query's path, NaN where those of a call are not known; models asked (C, k), as shares)
    of some policies after the other.

    Args:
        packed: the policies.
        logprob, seconds: (k, n) raw log-probabilities, and seconds.
        codes: (k, n) of answers, for policies that compare them; else None.
    """
    k, n = logprob.shape
    policies, total = packed.policies, len(packed.policies.first)
    data = fill_up(logprob, seconds, axis=1)
    codes = None if codes is None or policies.agreements is None else fill_up(codes, axis=1)[0]
    size = max(1, min(_MANY if total > _MANY else _AT_ONCE, _MOST_ELEMENTS // (k * data[0].shape[1])))
    size = 1 if total == 1 else size
    for start in range(0, total, size):
        rows = np.minimum(np.arange(start, start + size), total - 1)
        taken = policies.take(rows)
        waits, asked = _paths(packed.calibrators, taken, *data, codes, transforms=packed.transforms)
        count = min(size, total - start)
        asked = np.asarray(asked)[:count, :, :n]
        yield np.asarray(waits)[:count, :n].astype(float), asked.mean(-1)


def path_mixtures(
    packed: Packed, logprob: np.ndarray, seconds: np.ndarray, codes: np.ndarray | None
) -> Iterator[tuple[list[tuple[float, np.ndarray]], np.ndarray]]:
    """([(weight, seconds (n,) along each query's path)], models asked (k,), as shares) of each policy in turn.

    One path for each query, but where policies have shares: then one for each of the policies that it is a mixture of.

    Args:
        packed, logprob, seconds, codes: as of `path_seconds`.
    """
    policies, owner, weights = packed.policies.unsplit()
    paths = path_seconds(packed._replace(policies=policies), logprob, seconds, codes)
    rows = ((path, share) for waits, asked in paths for path, share in zip(waits, asked, strict=True))
    for _, group in groupby(zip(owner, weights.tolist(), rows, strict=True), key=lambda row: row[0]):
        parts = [(weight, *row) for _, weight, row in group]
        asked = np.sum([weight * share for weight, _, share in parts], axis=0)
        yield [(weight, waits) for weight, waits, _ in parts], asked


def mixture_paths(
    parts: Sequence[Part],
    seconds: np.ndarray,
    logprob: np.ndarray,
    codes: np.ndarray | None,
) -> tuple[list[tuple[float, np.ndarray]], np.ndarray]:
    """What `path_mixtures` tells of a mixture, every policy of which answers every query.

    Args:
        parts: weight, places of its models among the k, and the packed policy, for each policy.
        seconds, logprob, codes: (k, n) as `columns_of` has them.
    """
    weighted, asked = [], np.zeros(len(logprob))
    for weight, rows, packed in parts:
        mine = None if codes is None else codes[rows]
        ((waits, shares),) = path_mixtures(packed, logprob[rows], seconds[rows], mine)
        weighted += [(weight * odds, one) for odds, one in waits]
        asked[rows] += weight * shares
    return weighted, asked


def frontier_seconds(
    packed: Packed, log: Log, models: tuple[str, ...], logprob: np.ndarray, codes: np.ndarray | None
) -> Seconds | None:
    """Those of policies (L,); None where the log tells none.

    Args:
        packed: the policies.
        log: the log.
        models: of the policies, k.
        logprob, codes: (k, n) as `columns_of` has them.
    """
    seconds = seconds_columns(log, models, packed.asked)
    if seconds is None:
        return None
    per_call, rows, money = _money_columns(log, models, packed.asked), [], []
    for waits, asked in path_mixtures(packed, logprob, seconds, codes):
        rows.append(seconds_of(waits))
        money += [] if per_call is None else [float(asked @ per_call)]
    columns = [(row.figures, row.intervals, row.known, row.unknown) for row in rows]
    figures = (np.stack(column) for column in zip(*columns, strict=True))
    return Seconds(*figures, level=LEVEL, money=None if per_call is None else np.array(money))


def mixture_seconds(
    parts: Sequence[Part],
    log: Log,
    models: tuple[str, ...],
    logprob: np.ndarray,
    codes: np.ndarray | None,
) -> Seconds | None:
    """Those of a mixture, every policy of which answers every query; None where the log tells none.

    Args:
        parts: weight, places of its models, and the packed policy, for each policy.
        log, models, logprob, codes: as of `frontier_seconds`.
    """
    asked = reached(parts, len(models))
    seconds = seconds_columns(log, models, asked)
    if seconds is None:
        return None
    per_call = _money_columns(log, models, asked)
    weighted, share = mixture_paths(parts, seconds, logprob, codes)
    return dataclasses.replace(seconds_of(weighted), money=None if per_call is None else np.array(share @ per_call))


def _money_columns(log: Log, models: tuple[str, ...], asked: np.ndarray) -> np.ndarray | None:
    """(k,) mean money per answer on the queries that are replayed; None where costs are money alone."""
    if log.money is None:
        return None
    part = log.select([name for name, used in zip(models, asked, strict=True) if used])
    mean = np.zeros(len(models))
    mean[asked] = np.asarray(part.money, float)[part.complete].mean(0)
    return mean


def seconds_of(parts: Sequence[tuple[Any, np.ndarray]]) -> Seconds:
    """The figures of one policy, or of a mixture of several.

    Args:
        parts: the weight of each policy, or (n,) for each query, and the seconds (n,) of queries along their paths, NaN
            where not known.

    >>> seconds = seconds_of([(1.0, np.array([3.0, 1.0, 2.0, np.nan]))])
    >>> seconds.figures.tolist(), int(seconds.known), int(seconds.unknown)
    ([2.0, 2.0, 3.0, 3.0], 3, 1)
    """
    mask = np.all([~np.isnan(waits) for _, waits in parts], axis=0)
    n = int(mask.sum())
    figures, intervals = np.full(len(FIGURES), np.nan), np.tile([0.0, np.inf], (len(FIGURES), 1))
    if n:
        rows = np.stack([waits[mask] for _, waits in parts])
        weights = np.stack([np.broadcast_to(weight, mask.shape)[mask] for weight, _ in parts])
        expected = (weights * rows).sum(0)
        reach = NormalDist().inv_cdf((1 + LEVEL) / 2) * expected.std(ddof=1) / np.sqrt(n) if n > 1 else np.inf
        figures[0] = expected.mean()
        intervals[0] = max(figures[0] - reach, 0.0), figures[0] + reach
        shares = {column: share for column, share in enumerate(FIGURES.values()) if share is not None}
        ranks = {column: (*quantile_ranks(n, share, LEVEL), share * n) for column, share in shares.items()}
        at = _order_statistics(rows, weights, [rank for three in ranks.values() for rank in three])
        for column, (low, high, middle) in ranks.items():
            figures[column], intervals[column] = at[middle], (at.get(low, 0.0), at.get(high, np.inf))
    return Seconds(figures, intervals, np.array(n), np.array(len(mask) - n), LEVEL)


def _order_statistics(rows: np.ndarray, weights: np.ndarray, ranks: list[float]) -> dict[float, float]:
    """By rank among n, from 1, the least value up to which so many of the queries wait; not of 0, or n + 1.

    rows (P, n) under P policies, of which each has its weight (P, n).
    """
    n = rows.shape[1]
    inside = np.unique([rank for rank in ranks if 0 < rank <= n])
    if len(rows) == 1:
        positions = np.ceil(inside - _ROUNDING * n).astype(int) - 1
        return dict(zip(inside.tolist(), np.partition(rows[0], np.unique(positions))[positions].tolist(), strict=True))
    order = np.argsort(rows, axis=None)
    reached = np.cumsum(weights.reshape(-1)[order])
    positions = np.minimum(np.searchsorted(reached, inside - _ROUNDING * n), rows.size - 1)
    return dict(zip(inside.tolist(), rows.reshape(-1)[order][positions].tolist(), strict=True))


@lru_cache(maxsize=4096)
def quantile_ranks(n: int, share: float, level: float) -> tuple[int, int]:
    """Ranks, from 1, between whose values the true quantile lies with a probability of at least `level`.

    Of n independent values the number below the quantile is binomial: the lower end is the largest rank r with
    P(Bin(n, share) < r) ≤ (1 − level)/2, 0 where there is none; the upper one the least with P(Bin(n, share) ≥ r) so
    low, n + 1 where there is none.

    >>> quantile_ranks(100, 0.5, 0.9), quantile_ranks(300, 0.95, 0.9), quantile_ranks(50, 0.99, 0.9)
    ((42, 59), (279, 292), (48, 51))
    """
    i = np.arange(1, n + 1)
    logs = n * np.log1p(-share) + np.append(0.0, np.cumsum(np.log((n - i + 1) / i) + np.log(share) - np.log1p(-share)))
    below = np.cumsum(np.exp(logs))  # (n + 1,) P(Bin ≤ 0), P(Bin ≤ 1), …
    tail = (1 - level) / 2
    low = int(np.searchsorted(below, tail, side="right"))
    return low, min(int(np.searchsorted(below, 1 - tail)) + 1, n + 1)


@partial(compiled, static_argnames="transforms")
def _paths(
    calibrators: tuple[Any, ...],
    policies: Policies,
    logprob: jax.Array,
    seconds: jax.Array,
    codes: jax.Array | None,
    *,
    transforms: tuple[Any, ...],
) -> tuple[jax.Array, jax.Array]:
    """((C, n) seconds along the paths, (C, k, n) bool who is asked) of policies (C,)."""
    phi = calibrated(transforms, calibrators, logprob)

    def one(policy: Policies) -> tuple[jax.Array, jax.Array]:
        asked = walk(phi, policy, codes).asked
        return jnp.where(asked, seconds, 0).sum(0), asked

    return jax.vmap(one)(policies)
