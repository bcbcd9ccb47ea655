"""Following a bill: where on a ladder a service stands, so that what it pays keeps to its budget.

What some hundred labels say of a bill is off by several per cent, and queries change; what was paid is known. Each
answer's cost goes into a balance, and the next query aims at what brings the balance back within a window of queries:
the dual descent by which advertisers pace their budgets (Balseiro & Gur 2019, "Learning in repeated auctions with
budgets: regret minimization and equilibrium"). Standard library only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rcjax._base import json_checks as check

#: Queries within which a balance is to be brought back: fewer follow more closely, and wander more on the ladder.
WINDOW = 400.0
#: What the newest query counts in the running means of what was paid and what was expected.
_NEWEST = 0.005


@dataclass(frozen=True, slots=True)
class Bill:
    """What a service has paid against its budget: immutable; `pay` gives the bill after another query.

    Args:
        budget: money per query.
        window: queries within which the balance is to be brought back to 0.
        balance: money left of the budgets of the queries so far; below 0, what was paid too much. What is left beyond
            one window's budgets is given up: money that was not needed for so long is no reason to spend it at once.
        paid: running mean of what queries cost.
        expected: running mean of what the tuning expected of them, by the rungs that they went by.

    >>> bill = Bill.of(1e-4)
    >>> bill.pay(3e-4, expected=1e-4).aim < bill.aim == 1e-4
    True
    """

    budget: float
    window: float
    balance: float
    paid: float
    expected: float

    @classmethod
    def of(cls, budget: float, window: float = WINDOW) -> Bill:
        """The bill of a service that has answered nothing."""
        check.positive(budget, "budget")
        check.require(window >= 1, "window", "must be at least one query", window)
        return cls(budget, window, 0.0, budget, budget)

    @property
    def aim(self) -> float:
        """Money that the next query should cost, on average: the budget, and a part of the balance."""
        return max(0.0, self.budget + self.balance / self.window)

    @property
    def ratio(self) -> float:
        """How many times what was expected queries cost, of late."""
        return self.paid / self.expected if self.expected > 0 else 1.0

    def position(self, costs: Sequence[float]) -> float:
        """Where on a ladder the expected cost of a query is the aim.

        Args:
            costs: what each rung was tuned to cost, rising; money per query.

        >>> Bill.of(1e-4).position([5e-5, 9e-5, 2.9e-4]), Bill.of(1e-5).position([5e-5, 9e-5])
        (1.05, 0.0)
        """
        return position_at(costs, self.aim / self.ratio if self.ratio > 0 else self.aim)

    def pay(self, cost: float, expected: float | None) -> Bill:
        """The bill after a query.

        Args:
            cost: of all its calls, those that failed included; money.
            expected: what its rung was tuned to cost; None where it went by none, which tells nothing of the rungs.
        """
        balance = min(self.balance + self.budget - cost, self.window * self.budget)
        if expected is None:
            return replace(self, balance=balance)
        return replace(
            self,
            balance=balance,
            paid=self.paid + _NEWEST * (cost - self.paid),
            expected=self.expected + _NEWEST * (expected - self.expected),
        )


def position_at(figures: Sequence[float], value: float) -> float:
    """Where on a ladder a figure of its rungs, strictly rising, has a value: its first or last rung beyond them.

    >>> [position_at([1.0, 2.0, 4.0], value) for value in (0.5, 1.0, 3.0, 4.0, 9.0)]
    [0.0, 0.0, 1.5, 2.0, 2.0]
    """
    above = bisect_left(figures, value)
    if above == 0 or above == len(figures):
        return float(min(above, len(figures) - 1))
    low, high = figures[above - 1], figures[above]
    return above - 1 + (value - low) / (high - low)
