"""Shadow queries: the choice of queries that go to all models, and their cost. Standard library only.

A constant share of the queries is a fair sample, but its cost grows with the traffic. A check needs a number a week,
whatever the traffic: then the share is that number divided by the queries a week, a running mean over four weeks. A
mean over hours would sample more of the nights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rcjax._base.codec import number
from rcjax._base.figures import choose_unit, percent
from rcjax.policy.ladder import PERIODS, figure_at
from rcjax.policy.policy import AnyPolicy

_DAY = 86_400.0  # seconds


_MEMORY = 28 * _DAY


_FIRST = 3_600.0  # seconds: until then, the queries so far count as the traffic of an hour


@dataclass(frozen=True, slots=True)
class ShadowRate:
    """A number of shadow queries in a period.

    Args:
        queries: number of queries.
        every: the period: day, week or month.
        workers: number of processes that share the queries equally.

    >>> ShadowRate.of("200/week"), str(ShadowRate.of("200/week"))
    (ShadowRate(queries=200.0, every='week', workers=1), '200 queries a week')
    """

    queries: float
    every: str
    workers: int = 1

    @classmethod
    def of(cls, text: str) -> ShadowRate:
        """Read a rate from a text such as 200/week. Raises ValueError for an invalid one."""
        amount, _, every = text.strip().lower().partition("/")
        try:
            queries = float(amount)
        except ValueError:
            queries = math.nan
        if every.strip() not in PERIODS or not 0 < queries < math.inf:
            raise ValueError(f"{text!r}: give a share such as 5%, or queries and a period, such as 200/week")
        return cls(queries, every.strip())

    @property
    def per_second(self) -> float:
        """Shadow queries per second of one worker."""
        return self.queries / (PERIODS[self.every] * _DAY * self.workers)

    def __str__(self) -> str:
        return f"{self.queries:g} queries a {self.every}"


class ShadowShare:
    """The share of shadow queries, updated with each query.

    Args:
        shadow: a share, or a number in a period.
        per_day: earlier queries a day at all workers, if known.
    """

    def __init__(self, shadow: float | ShadowRate, per_day: float | None = None) -> None:
        if not isinstance(shadow, ShadowRate):
            number(shadow, "shadow", 0.0, 1.0)
        self.shadow = shadow
        self._seconds = 7 * _DAY if per_day is not None else 0.0
        self._count = 7 * per_day / shadow.workers if per_day is not None and isinstance(shadow, ShadowRate) else 0.0
        self._time: float | None = None

    def of_next(self, time: float) -> float:
        """Count a query and return the share for it; `time` is its time in seconds.

        >>> share = ShadowShare(ShadowRate(200, "week"), per_day=4_000.0)
        >>> round(share.of_next(1e9), 5)
        0.00714
        """
        if not isinstance(self.shadow, ShadowRate):
            return self.shadow
        gap = 0.0 if self._time is None else max(time - self._time, 0.0)
        fade, self._time = math.exp(-gap / _MEMORY), time
        self._count, self._seconds = self._count * fade + 1.0, (self._seconds + gap) * fade
        return min(1.0, self.shadow.per_second * max(self._seconds, _FIRST) / self._count)


class ShadowCost(NamedTuple):
    """The expected cost of shadow queries."""

    query: float
    """Money that a shadow query adds: calls of models that the policy would not have asked."""
    by_policy: float
    """Money that a query costs by the policy; 0 if unknown."""
    unknown: tuple[str, ...]
    """Models asked on shadow queries whose costs are not known yet."""

    @classmethod
    def of(cls, policy: AnyPolicy, models: Sequence[str]) -> ShadowCost:
        """Compute the cost of shadow queries that go to these models, from the costs that a policy records."""
        known = {name: money for rung in policy.rungs for name, money in rung.cost.items()}
        has_cost = policy.expected.get("cost") is not None  # a policy made by hand may have none
        by_policy = figure_at(policy.rung_costs, policy.position) if has_cost else 0.0
        every = math.fsum(known[name] for name in models if name in known)
        return cls(max(every - by_policy, 0.0), by_policy, tuple(name for name in models if name not in known))

    def describe(self, shadow: float | ShadowRate) -> str:
        """Describe the cost in words, for a share or a rate of shadow queries.

        >>> ShadowCost(2e-4, 1e-4, ("huge",)).describe(0.05)
        '$10.0 per million queries, 10.0 % on top of what the policy costs, and what huge costs'
        >>> ShadowCost(2e-4, 1e-4, ()).describe(ShadowRate(200, "week"))
        '$0.04 a week'
        """
        more = f", and what {', '.join(self.unknown)} costs" if self.unknown else ""
        if isinstance(shadow, ShadowRate):
            return f"${shadow.queries * self.query:.3g} a {shadow.every}{more}"
        money = choose_unit([shadow * self.query])
        if not self.by_policy:
            return f"{money.full(shadow * self.query)}{more}"
        part = f"{percent(shadow * self.query / self.by_policy)} on top of what the policy costs"
        return f"{money.full(shadow * self.query)}, {part}{more}"

    def to_json(self, shadow: float | ShadowRate) -> dict[str, Any]:
        """Return the figures as JSON values: with the cost of a period for a rate, or `share_of_bill` for a share."""
        figures: dict[str, Any] = {"cost_per_shadow_query": self.query, "cost_unknown": list(self.unknown)}
        if isinstance(shadow, ShadowRate):
            return figures | {f"cost_per_{shadow.every}": shadow.queries * self.query}
        return figures | ({"share_of_bill": shadow * self.query / self.by_policy} if self.by_policy else {})
