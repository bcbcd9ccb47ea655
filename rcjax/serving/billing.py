"""The bill of a policy that is served: what its answers cost, and where on its ladder that brings the next query."""

from __future__ import annotations

import math
import time
import uuid
import warnings
from collections.abc import Sequence
from dataclasses import replace

from rcjax.policy.following import Bill, Following, PeriodBill
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.record import recorded_waiting
from rcjax.serving.answer_keys import CascadeWarning
from rcjax.serving.call_log import Billed, Call, CallLog
from rcjax.serving.spending import LogReader

_LOOK = 1.0  # seconds between looks at what others have spent


class Billing:
    """Follows the bill of a policy.

    Args:
        policy: a ladder follows one, unless it keeps its position.
        name: of the policy, by which the log tells what was spent on its bill.
        log: tells, of money for a period, what was spent before, and what others who write to it spend.
    """

    def __init__(self, policy: AnyPolicy, name: str, log: CallLog | None) -> None:
        self.bill: Following | None = policy.new_bill(time.time())
        self.mark = Billed(name, uuid.uuid4().hex[:8])
        self._fixed, self._costs = policy.position, policy.costs if self.bill is not None else ()
        self._second_cost, _ = recorded_waiting(policy.provenance)
        self._reader = None
        if log is not None and isinstance(self.bill, PeriodBill):
            self._reader = LogReader(log.path, self.bill.earliest)
        self._looked, self._said = -math.inf, -math.inf
        self.catch_up()

    @property
    def position(self) -> float:
        """Where on the ladder the next query finds the policy."""
        return self._fixed if self.bill is None else self.bill.position(self._costs, time.time())

    @property
    def balance(self) -> float | None:
        """Money left of the budgets of the queries so far; None where there is no budget per query."""
        return self.bill.balance if isinstance(self.bill, Bill) else None

    @property
    def left(self) -> float | None:
        """Money that is left of a period's; None where there is no period."""
        return self.bill.left(time.time()) if isinstance(self.bill, PeriodBill) else None

    def pay(self, calls: Sequence[Call], expected: float | None = None) -> None:
        """Put what a query cost into the bill, if there is one.

        Args:
            calls: that were made for it; without any there is nothing to pay.
            expected: what its rung was tuned to cost; None of a query that went by none, as its answer is not judged.
        """
        if self.bill is not None and calls:
            cost = math.fsum(call.cost + self._second_cost * call.seconds for call in calls)
            self.bill = self.bill.pay(cost, expected, time.time())

    def catch_up(self) -> None:
        """Count what the log says that others have spent of a period's money, if the last look is a second ago.

        A warning says, once in a period, that its money is spent.
        """
        bill, now = self.bill, time.monotonic()
        if not isinstance(bill, PeriodBill) or now - self._looked < _LOOK:
            return
        for call in () if self._reader is None else self._reader.new():
            if call.policy == self.mark.policy and call.cascade != self.mark.cascade:
                cost = call.cost + self._second_cost * call.seconds
                bill = bill.count(cost, call.time, queries=int(call.begins))
        self.bill, self._looked = bill.at(time.time()), now
        if self.bill.spent >= bill.period.money and self._said != self.bill.start:
            self._said = self.bill.start
            what = f"policy {self.mark.policy}: the money of this {bill.period.every} is spent ({bill.period})"
            warnings.warn(f"{what}: the cheapest rung answers until it ends", CascadeWarning, stacklevel=2)

    def go_on(self, before: Billing) -> None:
        """Go on with the bill whose place this one takes: with what it has left, or paid too much.

        What was spent of a period's money the log has told, where there is one.
        """
        mine, other = self.bill, before.bill
        if isinstance(mine, Bill) and isinstance(other, Bill):
            self.bill = replace(mine, balance=other.balance)
        elif isinstance(mine, PeriodBill) and isinstance(other, PeriodBill) and self._reader is None:
            self.bill = replace(other, period=mine.period, paid=mine.paid, expected=mine.expected).at(time.time())
