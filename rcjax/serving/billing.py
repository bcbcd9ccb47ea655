"""The bill of a policy in service: the cost of its answers, and the position on its ladder that follows from it.

With money for a period, a file beside the call log or a ledger holds the spending of all processes and earlier runs.
Standard library only.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from rcjax._base.codec import visible
from rcjax.policy.bills import MAX_COST_RATIO, AbstractBill, Bill, PeriodBill, client_bill, new_bill
from rcjax.policy.ladder import Period
from rcjax.policy.policy import AbstractPolicy
from rcjax.serving.call_log import Call, CallLog, Charge
from rcjax.serving.failures import CascadeWarning, NotCoveredError
from rcjax.serving.totals import LOCK_WAIT_SECONDS, SYNC_SECONDS, Ledger, QueryCount, Total, TotalsFile, TotalStore

_SECONDS_BETWEEN_WARNINGS = 60.0  # between two warnings of expensive answers

Candidate = TypeVar("Candidate")

_SHADOW_STEP = 1_000_000  # step of shadow calls, so that none of them counts as the first call of a query


class BudgetSpentError(NotCoveredError):
    """The money left for the period does not cover a request.

    Args:
        period: the money and its period.
        end: end of the period, in seconds since 1970; None if running requests reserve the money that is left.
        client: the client whose money it is; None for a policy's money; the message then omits the amount.
    """

    def __init__(self, period: Period, end: float | None, client: str | None = None) -> None:
        problem = "running requests have reserved the money that is left: try again"
        if end is not None:
            next_period = f"the next {period.every} begins {format_minute(end)}"
            problem = f"the money left does not cover this request: {next_period}"
        super().__init__(problem if client is None else f"{client} may spend {period}, and {problem}")
        self.end, self.client = end, client


class SpendingUnknownError(RuntimeError):
    """The spending of a policy or a client cannot be read or recorded."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the spending of {name} is not known now, because its store cannot be read: try again")


def format_minute(time: float) -> str:
    """Format a time in seconds since 1970 for people, to the minute."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")


def describe_new_period(every: str, before: str) -> str:
    """Describe a change of the period of a policy's or a client's money, whose total then begins at $0."""
    change = f"its money is for a {every} from now on, not for a {before}"
    return f"{change}: what was spent before the change does not count in it"


ReserveMoney = Callable[[float], AbstractContextManager[object]]
"""Puts aside dollars of a request's client until the context ends; raises an exception if its money is too little."""


@contextmanager
def reserving(reserved: dict[object, float], cost: float) -> Iterator[object]:
    """Reserve the cost of a request, in dollars, until the context ends; yield the key of the reservation."""
    key = object()
    reserved[key] = cost
    try:
        yield key
    finally:
        del reserved[key]


def covers(left: float, cost: float) -> bool:
    """Return whether the money left covers a cost; spent money covers nothing, even if the cost is $0."""
    return cost <= left and left > 0


def _has_content(path: str) -> bool:
    return os.path.exists(path) and os.path.getsize(path) > 0


class _CountedQueries(NamedTuple):
    """Queries of other processes at the last reading of a total.

    The bill's query count grows by the difference to the next reading; a new period's total starts at 0. Queries before
    the first reading are not current traffic.
    """

    total: Total
    queries: float


class SharedBill:
    """Follows the bill of a policy, which processes may share.

    Args:
        policy: the policy; a ladder follows a bill, unless it keeps its position.
        name: the policy's name in the log and the ledger.
        log: the call log. The file `LOG.totals` beside it holds the spending of a period.
        ledger: the ledger, which holds the spending in place of the file, and also the balance of budgets per query.
        stops_at_budget: whether to refuse a request that the period's money does not cover, rather than give it the
            cheapest answer.
    """

    def __init__(
        self,
        policy: AbstractPolicy,
        name: str,
        log: CallLog | None,
        ledger: Ledger | None = None,
        *,
        stops_at_budget: bool = False,
    ) -> None:
        self.bill: AbstractBill | None = new_bill(policy, time.time())
        self.charge = Charge(name)
        self._fixed_position = policy.position
        self._costs = policy.rung_costs if self.bill is not None else ()
        self._totals = self._open_totals(None if log is None else log.path, ledger)
        self._warned_spent = self._warned_refusal = self._warned_expensive = -math.inf
        self._reserved: dict[object, float] = {}
        self._successor: SharedBill | None = None  # takes over when the policy's file has changed
        self._clients: dict[str, Bill] = {}  # bills by the client's name
        self.stops_at_budget = stops_at_budget
        self._counted: _CountedQueries | None = None  # before the first reading
        self._synced_at = -math.inf
        if self._shared_total() is not None:
            self._sync(waits=True)
        self._read_spending()

    def _open_totals(self, log: str | None, ledger: Ledger | None) -> TotalStore | None:
        """Return the store through which processes share the bill; None for a bill of this process alone."""
        if ledger is not None or not isinstance(self.bill, PeriodBill) or log is None:
            return None if self.bill is None else ledger
        path = f"{log}.totals"
        if not _has_content(path) and _has_content(log):
            state = f"{path} is empty" if os.path.exists(path) else f"there is no {path}"
            message = f"policy {self.charge.policy}: {state}: what was spent before counts as $0"
            advice = "if the file was lost, put it back and start again"
            warnings.warn(visible(f"{message}: {advice}"), CascadeWarning, stacklevel=4)
        return TotalsFile(path)

    @property
    def position(self) -> float:
        """Position on the ladder for the next query: the cheapest rung while the spending of a period is unknown."""
        if self._is_spending_unknown:
            return 0.0
        return self._fixed_position if self.bill is None else self.bill.position(self._costs, time.time())

    @property
    def _is_spending_unknown(self) -> bool:
        """Whether the spending of a period cannot be read or recorded."""
        total = self._shared_total() if isinstance(self.bill, PeriodBill) else None
        return total is not None and total.is_unknown

    def position_of(self, client: str | None) -> float:
        """Return the position for the next query of a client; each client with a name has its own bill."""
        if self.bill is None or client is None or self._is_spending_unknown:
            return self.position
        now = time.time()
        current_bill = client_bill(self.bill, self._clients.get(client), now)
        return 0.0 if current_bill is None else current_bill.position(self._costs, now)

    @property
    def balance(self) -> float | None:
        """Budgets of the queries so far minus their costs; None without a budget per query."""
        return self.bill.balance if isinstance(self.bill, Bill) else None

    @property
    def money_left(self) -> float | None:
        """Money left for the period; None without one."""
        return self.bill.money_left(time.time()) if isinstance(self.bill, PeriodBill) else None

    def choose_and_reserve(
        self, candidates: Sequence[Candidate], estimate_cost: Callable[[Candidate], float], client: str | None = None
    ) -> AbstractContextManager[Candidate]:
        """Return a context with the candidate that a bill allows, which puts aside the money of a period for it.

        Args:
            candidates: rungs or models that may answer, in order of preference. The last one is the cheapest, and
                answers if no candidate is covered.
            estimate_cost: returns the money that a candidate may cost.
            client: the client's name.

        If the service stops at its budget, raises BudgetSpentError if the money left for a period covers no candidate,
        and SpendingUnknownError while that is unknown.
        """
        if isinstance(self.bill, PeriodBill):
            return self._reserve_in_period(self.bill.period, candidates, estimate_cost)
        bill = self.bill if client is None else self._clients.get(client)  # it may aim at $0
        return nullcontext(candidates[-1 if bill is not None and not bill.target_cost(time.time()) else 0])

    @contextmanager
    def _reserve_in_period(
        self, period: Period, candidates: Sequence[Candidate], estimate_cost: Callable[[Candidate], float]
    ) -> Iterator[Candidate]:
        """Yield the first candidate that the period's money covers, and put its cost aside; else the cheapest one.

        A cost that the money does not cover puts nothing aside: one request must not take the money from all others.
        """
        if self.stops_at_budget and self._is_spending_unknown:
            raise SpendingUnknownError(self.charge.policy)
        now, costs = time.time(), [estimate_cost(candidate) for candidate in candidates]
        covered = [index for index, cost in enumerate(costs) if self._can_reserve(cost)]
        if not covered and self.stops_at_budget:
            (start, end), left = period.bounds(now), self.money_left or 0.0
            if covers(left, min(costs)):
                raise BudgetSpentError(period, None)
            if start not in (self._warned_spent, self._warned_refusal):
                self._warned_refusal = start
                message = f"${left:.3g} is left of {period}: a request that may cost ${min(costs):.3g} is refused"
                advice = "no further line says so in this period"
                warnings.warn(f"policy {self.charge.policy}: {message}: {advice}", CascadeWarning, stacklevel=4)
            raise BudgetSpentError(period, end)
        index, cost = (covered[0], costs[covered[0]]) if covered else (-1, 0.0)
        with self.reserve(cost):
            yield candidates[index]

    @contextmanager
    def reserve_if_covered(self, cost: float) -> Iterator[bool]:
        """Put aside the money for shadow calls until their end; yield False if the period's money does not cover it."""
        is_covered = self._can_reserve(cost)
        with self.reserve(cost if is_covered else 0.0):
            yield is_covered

    def reserve_for_fallback(self, cost: float, client: str | None) -> AbstractContextManager[bool]:
        """Return a context that yields whether a client's bill allows a further cost, which it then puts aside."""
        bill = self.bill if client is None else self._clients.get(client)
        if not isinstance(self.bill, PeriodBill) and bill is not None and not bill.target_cost(time.time()):
            return nullcontext(False)
        return self.reserve_if_covered(cost)

    def reserve(self, cost: float) -> AbstractContextManager[object]:
        """Put aside the money for calls whose cost may exceed the money left."""
        return reserving(self._reserved, cost)

    def _can_reserve(self, cost: float) -> bool:
        """Return whether the period's money covers a cost; False while the spending of others is unknown."""
        if self._is_spending_unknown:
            return False
        return self.money_left is None or covers(self.money_left - math.fsum(self._reserved.values()), cost)

    def pay(self, calls: Sequence[Call], expected: float | None = None, client: str | None = None) -> None:
        """Add the cost of a query's calls to the bill, if there is one.

        `expected` is the expected cost of its rung; None for an answer that no policy judges.
        """
        if self.bill is not None and calls:
            cost = math.fsum(call.cost for call in calls)
            now = time.time()
            current_bill = None if client is None else client_bill(self.bill, self._clients.get(client), now)
            if client is not None and current_bill is not None:
                self._clients[client] = current_bill.after_query(cost, expected, now)
            self.bill = self.bill.after_query(cost, expected, now)
            self._record(cost, 1)
            self._forward_cost(cost)
            rung_cost = expected or max(self._costs, default=0.0)
            if 0 < MAX_COST_RATIO * rung_cost < cost:
                self._warn_expensive(cost, rung_cost)

    def _forward_cost(self, cost: float) -> None:
        """Add a cost to the bill that has taken over meanwhile, unless shared totals hold the cost already."""
        after = self._successor
        if after is None or self._totals is not None:
            return
        if isinstance(self.bill, Bill) and isinstance(after.bill, Bill):
            after.bill = after.bill.after_cost(cost, time.time())
            after._forward_cost(cost)

    def _warn_expensive(self, cost: float, rung_cost: float) -> None:
        """Warn of an answer that costs many times its rung, at most once a minute."""
        if time.monotonic() - self._warned_expensive > _SECONDS_BETWEEN_WARNINGS:
            self._warned_expensive = time.monotonic()
            problem = f"an answer cost ${cost:.3g}, where its rung was tuned to cost ${rung_cost:.3g}"
            advice = "is a count of its server wrong, or max_tokens too high?"
            warnings.warn(f"policy {self.charge.policy}: {problem}: {advice}", CascadeWarning, stacklevel=3)

    @property
    def shadow_charge(self) -> Charge | None:
        """Charge of shadow calls to the money for a period; None with a budget per query, which pays only answers."""
        return replace(self.charge, step=_SHADOW_STEP) if isinstance(self.bill, PeriodBill) else None

    def pay_shadow(self, calls: Sequence[Call]) -> None:
        """Add the cost of shadow calls, if the bill is for a period."""
        if isinstance(self.bill, PeriodBill) and calls:
            cost = math.fsum(call.cost for call in calls)
            self.bill = self.bill.after_cost(cost, time.time(), queries=0)
            self._record(cost, 0)

    def _shared_total(self) -> Total | None:
        """Return the total of the bill that processes share; None for a bill of this process alone."""
        bill = self.bill
        if isinstance(bill, PeriodBill) and self._totals is not None:
            return self._totals.total(self._account, bill.period.every, bill.period.bounds(time.time()))
        if isinstance(bill, Bill) and isinstance(self._totals, Ledger):
            return self._totals.total(self._account, "query", (0.0, 0.0), may_fall=True, cap=bill.window * bill.budget)
        return None

    @property
    def _account(self) -> str:
        """The policy's name in the totals, which no client has."""
        return f"policy {self.charge.policy}"

    def _record(self, cost: float, queries: int) -> None:
        """Record a payment in the totals, if the bill is shared."""
        total = self._shared_total()
        if total is None:
            return
        if isinstance(self.bill, PeriodBill):
            total.own_query_count = QueryCount(self.bill.queries, self.bill.time)
        total.add(self.bill.budget - cost if isinstance(self.bill, Bill) else cost, queries)
        self._sync()

    def _apply_total(self, total: Total) -> None:
        """Update the bill from the total of all processes."""
        amount, _, others = total.last_read()
        if isinstance(self.bill, Bill):
            self.bill = replace(self.bill, balance=amount)
        elif isinstance(self.bill, PeriodBill):
            if self._counted is None and not self._is_spending_unknown:
                self._counted = _CountedQueries(total, others)  # queries before the start are not current traffic
                self._continue_query_count(total)
            now, new = time.time(), 0.0
            if self._counted is not None:
                new = others - self._counted.queries if total is self._counted.total else others
                self._counted = _CountedQueries(total, others)
            self.bill = replace(self.bill.at_time(now).after_cost(0.0, now, queries=int(new)), spent=amount)
            total.own_query_count = QueryCount(self.bill.queries, self.bill.time) if total.own_query_count else None

    def _continue_query_count(self, total: Total) -> None:
        """Continue the newest count of the policy's queries."""
        counts = [count for count in (total.query_count, total.own_query_count) if count is not None]
        if counts and isinstance(self.bill, PeriodBill):
            newest = max(counts, key=lambda count: count.time)
            self.bill = replace(self.bill, queries=newest.queries, time=min(newest.time, time.time()))

    def catch_up(self) -> None:
        """Update the bill with the spending of others, and warn once in a period when its money is spent."""
        self._read_spending()
        bill = self.bill
        if isinstance(bill, PeriodBill) and bill.spent >= bill.period.money and self._warned_spent != bill.start:
            self._warned_spent = bill.start
            message = f"policy {self.charge.policy}: the money of this {bill.period.every} is spent ({bill.period})"
            consequence = "requests are refused" if self.stops_at_budget else "the cheapest rung answers"
            warnings.warn(f"{message}: {consequence} until it ends", CascadeWarning, stacklevel=2)

    def _read_spending(self) -> None:
        """Update the bill with the spending of others."""
        total = self._shared_total()
        if total is not None:
            if time.monotonic() - self._synced_at >= SYNC_SECONDS:
                self._sync()
            self._apply_total(total)
        elif isinstance(self.bill, PeriodBill):
            self.bill = self.bill.at_time(time.time())

    def flush(self) -> None:
        """Record, at the end of the service, the payments that a busy store has not taken yet."""
        if self._totals is not None:
            self._sync(waits=True)

    def _sync(self, *, waits: bool = False) -> None:
        """Exchange payments with the other processes. A failure becomes a warning, once until it works again.

        `waits` for a store that is busy, as at the start and at the end.
        """
        totals, was_unknown, self._synced_at = self._totals, self._is_spending_unknown, time.monotonic()
        assert totals is not None
        is_down = isinstance(totals, Ledger) and totals.down_since is not None
        try:
            totals.sync(LOCK_WAIT_SECONDS if waits and not is_down else 0.0)
        except OSError as problem:
            assert isinstance(totals, TotalsFile)  # a ledger raises nothing
            if self._is_spending_unknown and not was_unknown:
                message = f"cannot save spending to {totals.path}: {problem.strerror or problem}"
                consequence = "until this works the cheapest rung answers, or nothing with --stop-at-budget"
                warnings.warn(visible(f"{message}: {consequence}"), CascadeWarning, stacklevel=2)

    def continue_from(self, before: SharedBill) -> None:
        """Continue the bill that this one replaces: its balance or spending, and the clients' bills.

        A `TotalsFile` stays in use, with its unwritten payments. Another kind of period has a total of its own, and
        begins at $0. Requests that began before keep the old bill: both bills share their reservations, and the old
        bill forwards late costs.
        """
        new, old = self.bill, before.bill
        self._clients, self._reserved, before._successor = before._clients, before._reserved, self
        if isinstance(new, Bill) and isinstance(old, Bill):
            self.bill = replace(new, balance=old.balance)
        elif isinstance(self._totals, TotalsFile) and isinstance(before._totals, TotalsFile):
            self._totals, self._counted = before._totals, None
            self._shared_total()  # registers this period's total, so that `_sync` reads it
            self._sync()
            self._read_spending()
        if isinstance(new, PeriodBill) and isinstance(old, PeriodBill):
            if new.period.every != old.period.every:
                message = f"policy {self.charge.policy}: {describe_new_period(new.period.every, old.period.every)}"
                warnings.warn(visible(message), CascadeWarning, stacklevel=2)
            elif self._totals is None:
                means = {"mean_paid": new.mean_paid, "mean_expected": new.mean_expected}
                self.bill = replace(old, period=new.period, **means).at_time(time.time())
