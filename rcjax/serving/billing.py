"""The bill of a policy that is served: what its answers cost, and where on its ladder that brings the next query.

Of money for a period a call log tells what was spent before, and by all who write to it. Standard library only.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from rcjax._base.wording import visible
from rcjax.policy.following import MOST_TIMES, Bill, Following, PeriodBill, bill_within, new_bill
from rcjax.policy.ladder import Period
from rcjax.policy.policy import AnyPolicy
from rcjax.serving.call_log import Billed, Call, CallLog, CascadeWarning
from rcjax.serving.ledger import Ledger, Page
from rcjax.serving.totals import FileTotals, WriterTotals

_TOLD_EVERY = 60.0  # seconds between two warnings of dear answers

_LOOK = 1.0  # seconds between looks at what others have spent

Way = TypeVar("Way")

_BESIDE = 1_000_000  # the step of calls that shadow queries add: none of them begins a query


class BudgetSpentError(RuntimeError):
    """The money that is left of a period's does not cover a request.

    Args:
        period: the money.
        end: of the period, in seconds since 1970.
    """

    def __init__(self, period: Period, end: float) -> None:
        until = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%d %H:%M UTC")
        what = f"what is left of {period} does not cover this request"
        super().__init__(f"{what}: the next {period.every} begins {until}")
        self.end = end


_LATE = 3600.0  # seconds after the start of a period, from which on a log that begins then may lack calls


class Billing:
    """Follows the bill of a policy.

    Args:
        policy: a ladder follows one, unless it keeps its position.
        name: of the policy, by which the log tells what was spent on its bill.
        log: tells, of money for a period, what was spent before, and what others who write to it spend.
        ledger: tells that in place of the log, and the balance of budgets per query too.
    """

    def __init__(self, policy: AnyPolicy, name: str, log: CallLog | None, ledger: Ledger | None = None) -> None:
        self.bill: Following | None = new_bill(policy, time.time())
        self.mark = Billed(name, uuid.uuid4().hex[:8])
        self._fixed, self._costs = policy.position, policy.costs if self.bill is not None else ()
        self._log = log
        self._reader, self._ledger = None, None if self.bill is None else ledger
        self._totals = self._shared = None
        path = None if log is None else log.path
        if path is not None and ledger is None and isinstance(self.bill, PeriodBill):
            self._reader = LogReader(path, self.bill.earliest)
            self._totals = FileTotals(f"{path}.totals", self.mark.cascade)
            self._shared = WriterTotals()
            why = None if log is None else log.why_incomplete()
            if why is not None:
                what = f"policy {name}: more of the money may be spent than {path} says: {why}"
                warnings.warn(f"{what}: make room, and give --ledger, or count by hand", CascadeWarning, stacklevel=2)
        self._looked = self._said = self._told_dear = -math.inf
        self._held: dict[object, float] = {}
        self._clients: dict[str, Bill] = {}  # of each by name
        self.stops = False
        """Whether a request that the money of a period does not cover is refused, not answered by the cheapest way."""
        self._begin()
        self._look()
        self._tell_lacking()

    @property
    def position(self) -> float:
        """Where on the ladder the next query finds the policy.

        Of money for a period it is the cheapest rung, as long as the ledger has told nothing yet, or the log, which is
        to tell what is spent, cannot be written.
        """
        if self._is_blind:
            return 0.0
        return self._fixed if self.bill is None else self.bill.position(self._costs, time.time())

    @property
    def _is_blind(self) -> bool:
        """Whether nothing tells, or will tell, what is spent of the money for a period."""
        if not isinstance(self.bill, PeriodBill):
            return False
        is_untold = self._ledger is not None and not self._ledger.has_answered
        return is_untold or (self._reader is not None and self._log is not None and self._log.is_losing)

    def position_of(self, client: str | None) -> float:
        """Where on the ladder the next query of a client finds the policy: each with a name has a bill of its own."""
        if self.bill is None or client is None or self._is_blind:
            return self.position
        mine = bill_within(self.bill, self._clients.get(client), time.time())
        return 0.0 if mine is None else mine.position(self._costs)

    @property
    def balance(self) -> float | None:
        """Money left of the budgets of the queries so far; None if there is no budget per query."""
        return self.bill.balance if isinstance(self.bill, Bill) else None

    @property
    def left(self) -> float | None:
        """Money that is left of a period's; None if there is no period."""
        return self.bill.left(time.time()) if isinstance(self.bill, PeriodBill) else None

    @contextmanager
    def holding(self, ways: Sequence[Way], expect: Callable[[Way], float], client: str | None = None) -> Iterator[Way]:
        """Put aside what a request may cost, until its end, and give the first way to answer it that is covered.

        Args:
            ways: to answer it, the cheapest last, which is the one if the money is spent.
            expect: what a way may cost.
            client: who asks, by name.

        Raises BudgetSpentError if what is left of the money for a period covers no way, and the service `stops`.
        """
        if not isinstance(self.bill, PeriodBill):
            mine = None if client is None else self._clients.get(client)
            bill = mine if client is not None else self.bill
            yield ways[-1] if bill is not None and not bill.aim() else ways[0]
            return
        now, costs = time.time(), [expect(way) for way in ways]
        covered = [place for place, cost in enumerate(costs) if self._covers(cost)]
        if not covered and self.stops:
            raise BudgetSpentError(self.bill.period, self.bill.period.around(now)[1])
        place = covered[0] if covered else len(ways) - 1
        with self._aside(costs[place]):
            yield ways[place]

    @contextmanager
    def holding_beside(self, cost: float) -> Iterator[bool]:
        """Put aside what shadow calls may cost, until their end; False if the money for a period does not cover it."""
        is_covered = self._covers(cost)
        with self._aside(cost if is_covered else 0.0):
            yield is_covered

    def _covers(self, cost: float) -> bool:
        left = math.inf if self.left is None else self.left - math.fsum(self._held.values())
        return cost <= left and left > 0

    @contextmanager
    def _aside(self, cost: float) -> Iterator[None]:
        hold = object()
        self._held[hold] = cost
        try:
            yield
        finally:
            del self._held[hold]

    def pay(self, calls: Sequence[Call], expected: float | None = None, client: str | None = None) -> None:
        """Put what a query cost into the bill, if there is one.

        Args:
            calls: that were made for it; without any there is nothing to pay.
            expected: what its rung was tuned to cost; None of a query that went by none, as its answer is not judged.
            client: who asked, by name.
        """
        if self.bill is not None and calls:
            cost = math.fsum(call.cost for call in calls)
            mine = None if client is None else bill_within(self.bill, self._clients.get(client), time.time())
            if client is not None and mine is not None:
                self._clients[client] = mine.pay(cost, expected)
            self.bill = self.bill.pay(cost, expected, time.time())
            self._tell(cost, 1)
            rung = expected or max(self._costs, default=0.0)
            if 0 < MOST_TIMES * rung < cost:
                self._tell_dear(cost, rung)

    def _tell_dear(self, cost: float, rung: float) -> None:
        """Warn of an answer that costs a hundred times a rung; of others within a minute, not."""
        if time.monotonic() - self._told_dear > _TOLD_EVERY:
            self._told_dear = time.monotonic()
            what = f"an answer cost ${cost:.3g}, where its rung was tuned to cost ${rung:.3g}"
            advice = "is a count of its server wrong, or max_tokens too high?"
            warnings.warn(f"policy {self.mark.policy}: {what}: {advice}", CascadeWarning, stacklevel=3)

    @property
    def mark_beside(self) -> Billed | None:
        """On whose bill calls are that shadow queries add: on that of money for a period, which is all that there is.

        A budget per query is what an answer may cost, and is what the tuning promised; what is learnt comes on top.
        """
        return replace(self.mark, step=_BESIDE) if isinstance(self.bill, PeriodBill) else None

    def pay_beside(self, calls: Sequence[Call]) -> None:
        """Put calls that a shadow query adds into the bill, where they are on it."""
        if isinstance(self.bill, PeriodBill) and calls:
            cost = math.fsum(call.cost for call in calls)
            self.bill = self.bill.spend(cost, time.time(), queries=0)
            self._tell(cost, 0)

    def _begin(self) -> None:
        """Begin with what the ledger tells."""
        page = self._page()
        if page is None or self._ledger is None:
            return
        self._ledger.start()
        self._heard = page, page.told()[1]
        if page.pace is not None and isinstance(self.bill, PeriodBill):
            queries, at = page.pace
            self.bill = replace(self.bill, queries=queries, time=min(at, time.time()))

    def _page(self) -> Page | None:
        """Where the ledger has the bill; None without a ledger or a bill."""
        bill = self.bill
        if self._ledger is None or bill is None:
            return None
        if isinstance(bill, PeriodBill):
            return self._ledger.page(self.mark.policy, bill.period.every, bill.period.around(time.time()))
        assert isinstance(bill, Bill)
        return self._ledger.page(self.mark.policy, "query", (0.0, 0.0), falls=True, most=bill.window * bill.budget)

    def _tell(self, cost: float, queries: int) -> None:
        """Put a payment into the ledger, or the file beside the log, where there is one."""
        if self._shared is not None and isinstance(self.bill, PeriodBill):
            self._shared.pay(cost, queries, self.bill.start)
        page = self._page()
        if page is None or self._ledger is None:
            return
        if isinstance(self.bill, PeriodBill):
            page.own_pace = self.bill.queries, self.bill.time
        page.add(self.bill.budget - cost if isinstance(self.bill, Bill) else cost, queries)
        self._ledger.wake()

    def _hear(self, page: Page) -> None:
        """Count what the ledger says that all have spent."""
        amount, others = page.told()
        if isinstance(self.bill, Bill):
            self.bill = replace(self.bill, balance=amount)
        elif isinstance(self.bill, PeriodBill):
            before = self._heard[1] if self._heard[0] is page else 0.0  # another period begins
            now, self._heard = time.time(), (page, others)
            self.bill = replace(self.bill.at(now).spend(0.0, now, queries=int(others - before)), spent=amount)
            page.own_pace = (self.bill.queries, self.bill.time) if page.own_pace else None

    def catch_up(self) -> None:
        """Count what others have spent: as the ledger says, or the log, if the last look is a second ago.

        A warning says, once in a period, that its money is spent.
        """
        self._look()
        bill = self.bill
        if isinstance(bill, PeriodBill) and bill.spent >= bill.period.money and self._said != bill.start:
            self._said = bill.start
            what = f"policy {self.mark.policy}: the money of this {bill.period.every} is spent ({bill.period})"
            then = "requests are refused" if self.stops else "the cheapest rung answers"
            warnings.warn(f"{what}: {then} until it ends", CascadeWarning, stacklevel=2)

    def _look(self) -> None:
        """Count what others have spent, if the last look is a second ago."""
        page = self._page()
        if page is not None:
            self._hear(page)
        bill, now = self.bill, time.monotonic()
        if not isinstance(bill, PeriodBill) or now - self._looked < _LOOK:
            return
        if self._shared is not None:
            bill = self._read_log(bill, self._shared)
        self.bill, self._looked = bill.at(time.time()), now

    def _read_log(self, bill: PeriodBill, shared: WriterTotals) -> PeriodBill:
        """The bill with what others have spent: of each the log's calls, or its row beside the log where that has more.

        The log may lack calls: its disk was full, or somebody cut it. The rows may lack those since their last look.
        """
        assert self._reader is not None
        for call in self._reader.new():
            if call.policy == self.mark.policy and call.cascade != self.mark.cascade:
                start = bill.at(time.time()).start
                cost, queries = shared.hear(call.cascade, (call.cost, int(call.begins)), call.time, start)
                bill = bill.spend(cost, call.time, queries=queries)
        if self._totals is None:
            return bill
        now = time.time()
        page = self._totals.page(f"policy {self.mark.policy}", bill.period.every, bill.period.around(now))
        page.put(*shared.own_of(bill.period.around(now)[0]))
        try:
            self._totals.sync()
        except OSError as problem:  # what it has spent is kept with the next look
            if not shared.is_unkept:
                what = f"what is spent is kept in the log alone: {problem.strerror or problem}"
                warnings.warn(visible(f"policy {self.mark.policy}: {what}"), CascadeWarning, stacklevel=3)
            shared.is_unkept = True
            return bill
        shared.is_unkept = False
        for writer, (money, queries) in page.by_writer.items():
            cost, more = shared.raise_to(writer, money, queries, bill.at(now).start)
            bill = bill.spend(cost, now, queries=more) if cost > 0 or more else bill
        return bill

    def _tell_lacking(self) -> None:
        """Say, at the start, where the log does not tell all that was spent of a period's money."""
        if self._shared is None or not isinstance(self.bill, PeriodBill):
            return
        lacking, first, every = self._shared.lacking, self._shared.first, self.bill.period.every
        if lacking > 1e-9:
            what = (
                f"the log lacks ${lacking:.3g} of what was spent this {every}; the file beside it has that: it counts"
            )
            warnings.warn(f"policy {self.mark.policy}: {what}", CascadeWarning, stacklevel=3)
        elif math.inf > first > self.bill.start + _LATE and not self._shared.has_rows:
            begin = datetime.fromtimestamp(first, UTC)
            what = f"the log begins {begin:%Y-%m-%d %H:%M} UTC, after this {every}: what was spent before is not known"
            warnings.warn(f"policy {self.mark.policy}: {what}", CascadeWarning, stacklevel=3)

    def go_on(self, before: Billing) -> None:
        """Go on with the bill whose place this one takes: with what it has left, or paid too much.

        What was spent of a period's money the log or the ledger has told, where there is one.
        """
        mine, other = self.bill, before.bill
        self._clients = dict(before._clients)
        if isinstance(mine, Bill) and isinstance(other, Bill):
            self.bill = replace(mine, balance=other.balance)
        elif isinstance(mine, PeriodBill) and isinstance(other, PeriodBill) and self._reader is None:
            self.bill = replace(other, period=mine.period, paid=mine.paid, expected=mine.expected).at(time.time())


_WHEN = r"([-.]\d[\d-]*)?"
_MOST = 1e11  # of money and seconds: no NaN, and no year that a calendar has not


class Spent(NamedTuple):
    """One call that is on the bill of a policy."""

    policy: str  # its name
    cascade: str  # the `Cascade` that asked, by its random name
    begins: bool  # it is the first of its query
    cost: float
    seconds: float  # that it took
    time: float  # when it ended, in seconds since 1970


class LogReader:
    """Reads the calls of a call log that were not read before, each once, also those in files renamed meanwhile.

    Args:
        path: of the log. Files beside it that have its name and a date or number are its past, as `logrotate` leaves
            it: `calls-20261124.jsonl`, `calls.jsonl.1`.
        since: calls that ended earlier are left out; seconds since 1970.
        read: bytes of each file, by its device and number, that are read already.
    """

    def __init__(
        self, path: str | os.PathLike[str], since: float = 0.0, read: dict[tuple[int, int], int] | None = None
    ) -> None:
        self._path, self._since = Path(path).absolute(), since
        stem, suffix = re.escape(self._path.stem), re.escape(self._path.suffix)
        self._names = re.compile(rf"{stem}{_WHEN}{suffix}{_WHEN}")
        self._read: dict[tuple[int, int], int] = {} if read is None else read

    def new(self) -> Iterator[Spent]:
        """The calls that are new, file by file; what is no line of a call that is on a bill is passed over."""
        for path, status in sorted(self._files(), key=lambda file: file[1].st_mtime_ns):
            which = status.st_dev, status.st_ino  # whatever its name is by now
            start = self._read.get(which, 0)
            self._read[which] = start = start if start <= status.st_size else 0  # a new one in place of one deleted
            if start < status.st_size and status.st_mtime >= self._since:
                with suppress(OSError), open(path, "rb") as file:
                    if os.path.samestat(os.fstat(file.fileno()), status):  # else renamed just now
                        file.seek(start)
                        yield from self._calls(file, which)

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        with suppress(OSError):
            for path in self._path.parent.iterdir():
                if self._names.fullmatch(path.name):
                    with suppress(OSError):
                        yield path, path.stat()

    def _calls(self, file: BinaryIO, which: tuple[int, int]) -> Iterator[Spent]:
        for line in file:
            if not line.endswith(b"\n"):  # half of it is not written yet
                return
            self._read[which] += len(line)
            spent = _spent(line)
            if spent is not None and spent.time >= self._since:
                yield spent


def _spent(line: bytes) -> Spent | None:
    """A call on a bill, by its line of the log; None of anything else."""
    with suppress(ValueError, KeyError, TypeError, RecursionError, OverflowError):
        row: Mapping[str, Any] = json.loads(line)
        names = str(row["policy"]), str(row["cascade"])
        figures = float(row["cost"]), float(row["seconds"]), datetime.fromisoformat(row["time"]).timestamp()
        if all(0 <= figure < _MOST for figure in figures):
            return Spent(*names, row["step"] == 1, *figures)
    return None


def queries_per_day(*logs: str | os.PathLike[str]) -> float | None:
    """How many queries a day a service had while it wrote call logs; None if these do not tell, or of a day.

    Args:
        logs: paths, of each replica's log, or of folders of them; what is beside a log as its past counts once.
    """
    paths = [Path(log) for log in logs]
    files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    read: dict[tuple[int, int], int] = {}
    times = [spent.time for file in files for spent in LogReader(file, read=read).new() if spent.begins]
    days = (max(times) - min(times)) / 86_400 if times else 0.0
    return (len(times) - 1) / days if days >= 1 else None
