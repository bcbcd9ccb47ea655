"""Shadow queries, which make the log of a service fit for tuning: their share and their cost. Standard library only.

Shadow queries go to all models. A constant share of the queries is a fair sample, but its cost grows with the traffic.
A check needs a fixed number a week: the share is then this number divided by the mean number of queries a week, over
the last four weeks. A mean over hours would draw more queries at night.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from rcjax._base.codec import number
from rcjax._base.figures import choose_unit, percent
from rcjax.policy.ladder import DAYS_PER_PERIOD, figure_at, split_per_period
from rcjax.policy.policy import AbstractPolicy
from rcjax.serving.call_log import CallLog

_DATE = r"([-.]\d[\d-]*)?"  # in the name of a rotated log: calls-20261124.jsonl, calls.jsonl.1


_DAYS_COUNTED = 28  # days before the newest query: older traffic does not tell today's


def queries_per_day(*logs: str | os.PathLike[str], policy: str | None = None) -> float | None:
    """Compute a service's mean number of queries a day in the last four weeks of its call logs.

    Returns None if the logs cover less than a day.

    Args:
        logs: paths of each replica's log, or of folders of logs; the rotated files beside a log count once.
        policy: name of the policy whose judged queries count; None for all queries of all policies.
    """
    files = dict[tuple[int, int], tuple[float, Path]]()  # by device and inode: a file may have several names
    for log in map(Path, logs):
        for path in log.iterdir() if log.is_dir() else (log,):
            files |= dict(_with_rotated(path.absolute()))
    times, oldest = list[float](), -math.inf
    for changed, file in sorted(files.values(), reverse=True):
        if changed >= oldest:  # the file may have a query that counts
            times += _query_times(file, policy)
            oldest = max(times, default=-math.inf) - _DAYS_COUNTED * _DAY
    times = [time for time in times if time >= oldest]
    days = (max(times) - min(times)) / _DAY if times else 0.0
    return (len(times) - 1) / days if days >= 1 else None


def _with_rotated(path: Path) -> Iterator[tuple[tuple[int, int], tuple[float, Path]]]:
    """Yield ((device, inode), (time of the last change, file)) of a log and of the rotated files beside it."""
    names = re.compile(rf"{re.escape(path.stem)}{_DATE}{re.escape(path.suffix)}{_DATE}")
    for file in path.parent.iterdir() if path.parent.is_dir() else ():
        with suppress(OSError):
            if names.fullmatch(file.name) and file.is_file():
                status = file.stat()
                yield (status.st_dev, status.st_ino), (status.st_mtime, file)


# Fields of a line, four times as fast as by reading its JSON: within a text, quotes have a backslash.
_FIRST_CALL, _TIME = re.compile(rb'"step":\s*1\s*[,}]'), re.compile(rb'"time":\s*"([^"]*)"')
_NOT_JUDGED = re.compile(rb'"not_judged":\s*"')


def _query_times(file: Path, policy: str | None) -> Iterator[float]:
    """Yield the end of each query's first call, in seconds since 1970; with `policy`, of queries that it judged."""
    pays = None if policy is None else re.compile(rb'"policy":\s*' + re.escape(json.dumps(policy).encode()))
    with suppress(OSError), open(file, "rb") as lines:
        for line in lines:
            is_counted = pays is None or (pays.search(line) and not _NOT_JUDGED.search(line))
            if is_counted and _FIRST_CALL.search(line) and (end := _TIME.search(line)):
                with suppress(ValueError, OverflowError):
                    yield datetime.fromisoformat(end[1].decode()).timestamp()


_DAY = 86_400.0  # seconds

_SECONDS_AVERAGED = 28 * _DAY  # time constant of the running mean of a policy's traffic

_MIN_SECONDS = 3_600.0  # in the first hour, the queries so far count as the traffic of an hour


@dataclass(frozen=True, slots=True)
class ShadowRate:
    """A number of shadow queries in a period.

    Args:
        queries: number of queries.
        every: the period: day, week or month.
        workers: number of processes that share the queries equally.

    >>> ShadowRate.parse("200/week"), str(ShadowRate.parse("200/week"))
    (ShadowRate(queries=200.0, every='week', workers=1), '200 queries a week')
    """

    queries: float
    every: str
    workers: int = 1

    @classmethod
    def parse(cls, text: str) -> ShadowRate:
        """Read a rate from a text such as 200/week. Raises ValueError for an invalid one."""
        amount, every = split_per_period(text) or ("", "")
        try:
            queries = float(amount)
        except ValueError:
            queries = math.nan
        if not 0 < queries < math.inf:
            raise ValueError(f"{text!r}: give a share such as 5%, or queries and a period, such as 200/week")
        return cls(queries, every)

    @property
    def per_second(self) -> float:
        """Shadow queries per second of one worker."""
        return self.queries / (DAYS_PER_PERIOD[self.every] * _DAY * self.workers)

    def __str__(self) -> str:
        return f"{self.queries:g} queries a {self.every}"


class ShadowShare:
    """The share of shadow queries of a policy, updated with each query.

    Args:
        shadow: a share, or a number in a period.
        per_day: earlier queries a day that the policy judged, at all workers, if known.
    """

    def __init__(self, shadow: float | ShadowRate, per_day: float | None = None) -> None:
        if not isinstance(shadow, ShadowRate):
            number(shadow, "shadow", 0.0, 1.0)
        self.shadow = shadow
        self._seconds = 7 * _DAY if per_day is not None else 0.0
        self._count = 7 * per_day / shadow.workers if per_day is not None and isinstance(shadow, ShadowRate) else 0.0
        self._time: float | None = None

    def count_and_share(self, time: float) -> float:
        """Count a query and return the share for it; `time` is its time in seconds.

        >>> share = ShadowShare(ShadowRate(200, "week"), per_day=4_000.0)
        >>> round(share.count_and_share(1e9), 5)
        0.00714
        """
        if not isinstance(self.shadow, ShadowRate):
            return self.shadow
        gap = 0.0 if self._time is None else max(time - self._time, 0.0)
        fade, self._time = math.exp(-gap / _SECONDS_AVERAGED), time
        self._count, self._seconds = self._count * fade + 1.0, (self._seconds + gap) * fade
        return min(1.0, self.shadow.per_second * max(self._seconds, _MIN_SECONDS) / self._count)


_MUCH = 0.2  # share of a policy's cost above which the cost of its shadow queries is warned of


class ShadowCost(NamedTuple):
    """The expected cost of shadow queries."""

    query: float
    """Money that a shadow query adds: calls of models that the policy would not have asked."""
    by_policy: float
    """Money that a query costs by the policy; 0 if unknown."""
    unknown: tuple[str, ...]
    """Models asked on shadow queries whose costs are not known yet."""

    @classmethod
    def estimate(cls, policy: AbstractPolicy, models: Sequence[str]) -> ShadowCost:
        """Compute the cost of shadow queries that go to these models, from the costs that a policy records."""
        known = {name: money for rung in policy.rungs for name, money in rung.cost.items()}
        has_cost = policy.expected.get("cost") is not None  # a policy made by hand may have none
        by_policy = figure_at(policy.rung_costs, policy.position) if has_cost else 0.0
        every = math.fsum(known[name] for name in models if name in known)
        more = every - by_policy if every > by_policy * (1 + 1e-9) else 0.0  # not a rounding error
        return cls(more, by_policy, tuple(name for name in models if name not in known))

    def describe(self, shadow: float | ShadowRate) -> str:
        """Describe the cost in words, for a share or a rate of shadow queries.

        >>> ShadowCost(2e-4, 1e-4, ("huge",)).describe(0.05)
        '$10.0 per million queries, 10.0 % on top of what the policy costs, and what huge costs'
        >>> ShadowCost(2e-4, 1e-4, ()).describe(1.0)
        '$200 per million queries, 200.0 % on top of what the policy costs (warning: --shadow 10% would add 20 %)'
        >>> ShadowCost(2e-4, 1e-4, ()).describe(ShadowRate(200, "week"))
        '$0.04 a week'
        """
        more = f", and what {', '.join(self.unknown)} costs" if self.unknown else ""
        if isinstance(shadow, ShadowRate):
            return f"${shadow.queries * self.query:.3g} a {shadow.every}{more}"
        money = choose_unit([shadow * self.query])
        if not self.by_policy:
            return f"{money.full(shadow * self.query)}{more}"
        added = shadow * self.query / self.by_policy
        part = f"{percent(added)} on top of what the policy costs"
        if added > _MUCH:
            part += f" (warning: --shadow {100 * shadow * _MUCH / added:.2g}% would add {100 * _MUCH:.0f} %)"
        return f"{money.full(shadow * self.query)}, {part}{more}"

    def to_json(self, shadow: float | ShadowRate) -> dict[str, Any]:
        """Return the figures as JSON values: with the cost of a period for a rate, or `share_of_bill` for a share."""
        figures: dict[str, Any] = {"cost_per_shadow_query": self.query, "cost_unknown": list(self.unknown)}
        if isinstance(shadow, ShadowRate):
            return figures | {f"cost_per_{shadow.every}": shadow.queries * self.query}
        return figures | ({"share_of_bill": shadow * self.query / self.by_policy} if self.by_policy else {})


def make_shadow_share(shadow: float | ShadowRate | ShadowShare, log: CallLog | None, policy: str) -> ShadowShare:
    """Return the share of shadow queries of a policy, with its traffic in the log if a rate needs it."""
    if isinstance(shadow, ShadowShare):
        return shadow
    if not isinstance(shadow, ShadowRate) or log is None or log.path is None:
        return ShadowShare(shadow)
    return ShadowShare(shadow, queries_per_day(log.path, policy=policy))
