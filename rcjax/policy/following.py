"""Following a bill: where on a ladder a service stands, so that what it pays keeps to its budget.

What some hundred labels say of a bill is off by several per cent, and queries change; what was paid is known. Each
answer's cost goes into a balance, and the next query aims at what brings the balance back within a window of queries:
the dual descent by which advertisers pace their budgets (Balseiro & Gur 2019, "Learning in repeated auctions with
budgets: regret minimization and equilibrium"). Money for a day, a week or a month is spread over the queries that are
still expected in it. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from rcjax._base.checks import require
from rcjax._base.codec import Positive, read
from rcjax.policy.any_policy import AnyPolicy
from rcjax.policy.ladder import Period, position_at

#: Queries within which a balance is to be brought back: fewer follow more closely, and wander more on the ladder.
WINDOW = 400.0
#: What the newest query counts in the running means of what was paid and what was expected.
_NEWEST = 0.005
DAY = 86_400.0  # seconds
#: How many times what its rung was tuned to cost an answer counts at most in the mean of what was paid: beyond that it
#: tells of itself, or of a wrong count, and not of the answers to come.
MOST_TIMES = 100.0
_OTHERS = 30  # periods beside the one that counts whose money is remembered: of days, a month
_JUMP = 60.0  # seconds that a clock goes back, from which on it was set anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """What a service that follows its bill knows of costs: immutable.

    Args:
        paid: running mean of what queries cost.
        expected: running mean of what the tuning expected of them, by the rungs that they went by.
    """

    paid: float
    expected: float

    @property
    def ratio(self) -> float:
        """How many times what was expected queries cost, of late."""
        return self.paid / self.expected if self.expected > 0 else 1.0

    def aim(self, time: float = 0.0) -> float:
        """Money that the next query, at a time, should cost on average."""
        raise NotImplementedError

    def position(self, costs: Sequence[float], time: float = 0.0) -> float:
        """Where on a ladder the expected cost of a query is the aim.

        Args:
            costs: what each rung was tuned to cost, rising; money per query.
            time: now, in seconds since 1970; a `Bill` needs none.

        >>> Bill.of(1e-4).position([5e-5, 9e-5, 2.9e-4]), Bill.of(1e-5).position([5e-5, 9e-5])
        (1.05, 0.0)
        """
        aim = self.aim(time)
        return position_at(costs, aim / self.ratio if self.ratio > 0 else aim)

    def spend(self, cost: float, time: float, **means: float) -> Self:
        """The bill after money was spent, which ends at a time; `means` are the running means after it."""
        raise NotImplementedError

    def pay(self, cost: float, expected: float | None, time: float = 0.0) -> Self:
        """The bill after a query.

        Args:
            cost: of all its calls, those that failed included; money.
            expected: what its rung was tuned to cost; None if it went by none, which tells nothing of the rungs.
            time: when it ended, as of `position`.
        """
        if expected is None:
            return self.spend(cost, time)
        paid = self.paid + _NEWEST * (min(cost, MOST_TIMES * expected) - self.paid)
        return self.spend(cost, time, paid=paid, expected=self.expected + _NEWEST * (expected - self.expected))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill(Following):
    """What a service has paid against a budget per query: immutable; `pay` gives the bill after another query.

    Args:
        budget: money per query.
        window: queries within which the balance is to be brought back to 0.
        balance: money left of the budgets of the queries so far; below 0, what was paid too much. What is left beyond
            one window's budgets is given up: money that was not needed for so long is no reason to spend it at once.
            So is what was paid too much beyond them: one wrong count must not set the next queries on the cheapest rung
            for good.

    >>> bill = Bill.of(1e-4)
    >>> bill.pay(3e-4, expected=1e-4).aim() < bill.aim() == 1e-4
    True
    """

    budget: float
    window: float
    balance: float

    @classmethod
    def of(cls, budget: float, window: float = WINDOW) -> Bill:
        """The bill of a service that has answered nothing."""
        read(Positive, budget, "budget")
        require(window >= 1, "window", "must be at least one query", window)
        return cls(budget=budget, window=window, balance=0.0, paid=budget, expected=budget)

    def aim(self, time: float = 0.0) -> float:
        """Money that the next query should cost, on average: the budget, and a part of the balance."""
        return max(0.0, self.budget + self.balance / self.window)

    def spend(self, cost: float, time: float, **means: float) -> Bill:
        """The bill after money was spent, at whatever time; `means` are the running means after it."""
        most = self.window * self.budget
        return replace(self, balance=max(-most, min(self.balance + self.budget - cost, most)), **means)


def bill_within(shared: Following, mine: Bill | None, time: float) -> Bill | None:
    """The bill of one client among several, whose budget per query is what the shared bill aims at.

    So what one client's queries cost moves its own position; of the others that for a budget per query not at all, and
    that for a period's money by what there is left.

    Args:
        shared: of all clients.
        mine: what the client has paid so far; None of a new one.
        time: now, as of `Following.position`.

    Returns None where nothing is left for anybody.

    >>> shared = Bill.of(1e-4)
    >>> greedy = bill_within(shared, None, 0.0).pay(1e-2, expected=1e-4)
    >>> shared = shared.pay(1e-2, expected=1e-4)
    >>> [bill_within(shared, one, 0.0).aim() for one in (greedy, None)]
    [7.525e-05, 0.0001]
    """
    aim = shared.budget if isinstance(shared, Bill) else shared.aim(time)
    if aim <= 0:
        return None
    return Bill.of(aim) if mine is None else replace(mine, budget=aim)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodBill(Following):
    """What a service has paid of the money for a period: immutable; `pay` gives the bill after another query.

    A query aims at what is left of the money over the queries that are still expected. At the end of a period what is
    left is given up, and what was paid too much forgiven.

    Args:
        period: the money, and for how long it is.
        start: of the period that the bill is of, in seconds since 1970.
        spent: in it.
        before: (the start, what was spent) of the last other ones: a log need not be in the order of its times.
        queries: a running count, of which in `memory` seconds all but 1/e is forgotten.
        time: of the latest query.
    """

    period: Period
    start: float
    spent: float
    before: tuple[tuple[float, float], ...]
    queries: float
    time: float

    @classmethod
    def of(cls, period: Period, budget: float, time: float) -> PeriodBill:
        """The bill of a service that has answered nothing.

        Args:
            period: the money.
            budget: money per query that the tuning made of it, by the queries of a period.
            time: now.
        """
        read(Positive, budget, "budget")
        start, _ = period.around(time)
        queries = _memory(period) * period.money / budget / (DAY * period.days)
        place = {"start": start, "spent": 0.0, "before": (), "time": time}
        return cls(period=period, queries=queries, paid=budget, expected=budget, **place)

    @property
    def memory(self) -> float:
        """Seconds over which the rate of queries is a running mean: the period, a week at most."""
        return _memory(self.period)

    @property
    def earliest(self) -> float:
        """From when on queries matter to it, in seconds since 1970."""
        return min(self.start, self.time - 3 * self.memory)

    def at(self, time: float) -> PeriodBill:
        """The bill of the period that a time is in."""
        start, _ = self.period.around(time)
        if start == self.start:
            return self
        known = {**dict(self.before), self.start: self.spent}
        spent = known.pop(start, 0.0)
        return replace(self, start=start, spent=spent, before=tuple(known.items())[-_OTHERS:])

    def left(self, time: float) -> float:
        """Money that is left of the period that a time is in; below 0, what was paid too much."""
        return self.period.money - self.at(time).spent

    def aim(self, time: float = 0.0) -> float:
        """Money that the next query should cost, on average: what is left, over the queries still expected."""
        rate = self._queries_at(time) / self.memory
        _, end = self.period.around(time)
        return max(0.0, self.left(time)) / max(1.0, rate * (end - time))

    def spend(self, cost: float, time: float, *, queries: int = 1, **means: float) -> PeriodBill:
        """The bill after calls, of whichever rung.

        Args:
            cost: of the calls; money.
            time: when they ended.
            queries: that begin with them.
            means: the running means after them.
        """
        latest = time if self.time - time > _JUMP else max(self.time, time)
        at = self.at(time)
        return replace(at, spent=at.spent + cost, queries=self._queries_at(time) + queries, time=latest, **means)

    def _queries_at(self, time: float) -> float:
        """The running count at a time: a third of the memory is the longest gap, whatever a clock says."""
        gap = min(max(time - self.time, 0.0), self.memory / 3)
        return self.queries * math.exp(-gap / self.memory)


def _memory(period: Period) -> float:
    return DAY * min(period.days, 7.0)


def new_bill(policy: AnyPolicy, time: float) -> Following | None:
    """What a service that begins at a time follows: the bill of the period, or else of the budget per query.

    Args:
        policy: that it serves; of one that keeps its position there is no bill.
        time: in seconds since 1970.
    """
    if not policy.follows or policy.budget is None:
        return None
    return Bill.of(policy.budget) if policy.period is None else PeriodBill.of(policy.period, policy.budget, time)
