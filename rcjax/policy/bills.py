"""The bill that a service follows: the service moves along its ladder, so that its bill keeps to the budget.

A bill predicted from some hundred labels is off by several per cent, and queries change; the bill paid is known. The
cost of each answer goes into a balance. The target for the next query is the cost that restores the balance within a
window of queries. Advertisers pace their budgets by this dual descent (Balseiro & Gur 2019, "Learning in repeated
auctions with budgets: regret minimization and equilibrium"). Money for a day, a week or a month is spread over the
queries that are still expected in it. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from rcjax._base.codec import Positive, read_value, require
from rcjax.policy.ladder import Period, position_at
from rcjax.policy.policy import AbstractPolicy

#: Queries within which a balance is restored: a shorter window follows more closely, and moves more on the ladder.
WINDOW = 400.0

#: Weight of the newest query in the running means of paid and of expected costs.
_MEAN_WEIGHT = 0.005

DAY = 86_400.0  # seconds

#: Largest cost of an answer in the mean of paid costs, as a multiple of its rung's expected cost: a larger cost is an
#: outlier or a wrong count, and predicts nothing.
MAX_COST_RATIO = 100.0

_MAX_OTHER_PERIODS = 30  # other periods whose money is remembered: a month of days
_JUMP = 60.0  # seconds: a time this much before the last one is a clock set back, and is accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class AbstractBill:
    """The running means of a service's paid and expected costs; immutable.

    Args:
        mean_paid: running mean of the paid costs, in dollars per query.
        mean_expected: running mean of the costs that the tuning expected of the same rungs, in dollars per query.
    """

    mean_paid: float
    mean_expected: float

    def target_cost(self, time: float) -> float:
        """Return the mean cost that the next query should have, at a time, in dollars."""
        raise NotImplementedError

    def position(self, costs: Sequence[float], time: float) -> float:
        """Return the position on a ladder whose expected cost, corrected by recent bills, is the target at a time.

        The costs are those that the tuning expected of each rung, rising, in dollars per query.

        >>> Bill.open(1e-4).position([5e-5, 9e-5, 2.9e-4], 0.0), Bill.open(1e-5).position([5e-5, 9e-5], 0.0)
        (1.05, 0.0)
        """
        ratio = self.mean_paid / self.mean_expected if self.mean_expected > 0 else 1.0
        return position_at(costs, self.target_cost(time) / (ratio if ratio > 0 else 1.0))

    def after_cost(self, cost: float, time: float, **means: float) -> Self:
        """Return the bill after a cost that was complete at a time; `means` are the running means after it."""
        raise NotImplementedError

    def after_query(self, cost: float, expected: float | None, time: float) -> Self:
        """Return the bill after a query.

        Args:
            cost: cost of all its calls, failed calls included, in dollars.
            expected: expected cost of its rung by the tuning; None for a query that no rung decided.
            time: end of the query, in seconds since 1970.
        """
        if expected is None:
            return self.after_cost(cost, time)
        plausible_cost = min(cost, MAX_COST_RATIO * expected)
        means = {
            "mean_paid": self.mean_paid + _MEAN_WEIGHT * (plausible_cost - self.mean_paid),
            "mean_expected": self.mean_expected + _MEAN_WEIGHT * (expected - self.mean_expected),
        }
        return self.after_cost(cost, time, **means)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill(AbstractBill):
    """The bill of a service with a budget per query: immutable; `after_query` gives the bill after another query.

    Args:
        budget: dollars per query.
        window: number of queries within which the balance returns to 0.
        balance: dollars left of the budgets of past queries; negative after overspending. It is clipped to one window's
            budgets on either side: old savings are not spent at once, and one wrong count does not keep the service on
            the cheapest rung for good.

    >>> bill = Bill.open(1e-4)
    >>> bill.after_query(3e-4, 1e-4, 0.0).target_cost(0.0) < bill.target_cost(0.0) == 1e-4
    True
    """

    budget: float
    window: float
    balance: float

    @classmethod
    def open(cls, budget: float, window: float = WINDOW) -> Bill:
        """Return the bill of a service that has answered nothing."""
        read_value(Positive, budget, "budget")
        require(window >= 1, "window", "must be at least one query", window)
        return cls(budget=budget, window=window, balance=0.0, mean_paid=budget, mean_expected=budget)

    def target_cost(self, time: float) -> float:
        """Return the mean cost that the next query should have: the budget, and a part of the balance."""
        return max(0.0, self.budget + self.balance / self.window)

    def after_cost(self, cost: float, time: float, **means: float) -> Bill:
        """Return the bill after a cost; `means` are the running means after it, and the time does not matter."""
        max_balance = self.window * self.budget
        return replace(self, balance=max(-max_balance, min(self.balance + self.budget - cost, max_balance)), **means)


def client_bill(shared: AbstractBill, mine: Bill | None, time: float) -> Bill | None:
    """Return the bill of one client among several; None if no money is left. The client's bill is None if it is new.

    The client's budget per query is the shared budget or, for a period, the current target of the shared bill. A
    client's costs move only that client's position; with money for a period, they also shrink what is left for all.

    >>> shared = Bill.open(1e-4)
    >>> greedy = client_bill(shared, None, 0.0).after_query(1e-2, 1e-4, 0.0)
    >>> shared = shared.after_query(1e-2, 1e-4, 0.0)
    >>> [client_bill(shared, bill, 0.0).target_cost(0.0) for bill in (greedy, None)]
    [7.525e-05, 0.0001]
    """
    budget = shared.budget if isinstance(shared, Bill) else shared.target_cost(time)
    if budget <= 0:
        return None
    return Bill.open(budget) if mine is None else replace(mine, budget=budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodBill(AbstractBill):
    """The bill of a service with money for a period: immutable; `after_query` gives the bill after another query.

    The target of a query is the money left over the number of queries still expected. The end of a period cancels
    savings and overspending.

    Args:
        period: the money and the length of the period.
        start: start of the bill's period, in seconds since 1970.
        spent: dollars spent in the period.
        other_periods: (start, dollars spent) of recent other periods: a clock may be set back.
        queries: running count of queries, which decays by a factor e in `memory` seconds.
        time: end of the latest query, in seconds since 1970.
    """

    period: Period
    start: float
    spent: float
    other_periods: tuple[tuple[float, float], ...] = ()
    queries: float
    time: float

    @classmethod
    def open(cls, period: Period, budget: float, time: float) -> PeriodBill:
        """Return the bill of a service that has answered nothing.

        Args:
            period: the money and the length of the period.
            budget: dollars per query, which the tuning derived from the number of queries in a period.
            time: current time, in seconds since 1970.
        """
        read_value(Positive, budget, "budget")
        start, _ = period.bounds(time)
        bill = cls(
            period=period, start=start, spent=0.0, queries=0.0, time=time, mean_paid=budget, mean_expected=budget
        )
        return replace(bill, queries=bill.memory * period.money / budget / (DAY * period.days))

    @property
    def memory(self) -> float:
        """Time constant of the running rate of queries, in seconds: the period, at most a week."""
        return DAY * min(self.period.days, 7.0)

    def at_time(self, time: float) -> PeriodBill:
        """Return the bill of the period that contains a time."""
        start, _ = self.period.bounds(time)
        if start == self.start:
            return self
        known = {**dict(self.other_periods), self.start: self.spent}
        spent = known.pop(start, 0.0)
        return replace(self, start=start, spent=spent, other_periods=tuple(known.items())[-_MAX_OTHER_PERIODS:])

    def money_left(self, time: float) -> float:
        """Return the dollars left in the period that contains a time; negative after overspending."""
        return self.period.money - self.at_time(time).spent

    def target_cost(self, time: float) -> float:
        """Return the mean cost that the next query should have: the money left over the queries still expected."""
        rate = self._queries_at(time) / self.memory
        _, end = self.period.bounds(time)
        return max(0.0, self.money_left(time)) / max(1.0, rate * (end - time))

    def after_cost(self, cost: float, time: float, *, queries: int = 1, **means: float) -> PeriodBill:
        """Return the bill after calls of any rung, which begin so many queries; `means` are the running means then."""
        latest = time if self.time - time > _JUMP else max(self.time, time)
        bill = self.at_time(time)
        return replace(bill, spent=bill.spent + cost, queries=self._queries_at(time) + queries, time=latest, **means)

    def _queries_at(self, time: float) -> float:
        """Return the running count at a time; a gap counts as at most a third of the memory, against jumping clocks."""
        gap = min(max(time - self.time, 0.0), self.memory / 3)
        return self.queries * math.exp(-gap / self.memory)


def new_bill(policy: AbstractPolicy, time: float) -> AbstractBill | None:
    """Return the first bill of a service, for the money of a period or else for the budget per query.

    Returns None for a policy that keeps its position.
    """
    if not policy.follows or policy.budget is None:
        return None
    return Bill.open(policy.budget) if policy.period is None else PeriodBill.open(policy.period, policy.budget, time)
