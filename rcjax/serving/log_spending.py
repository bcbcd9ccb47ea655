"""The spending of a policy, by the call log and the file of totals beside it, for a bill of a period.

The log has the money spent before, and by other processes. Standard library only.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from rcjax._base.figures import visible
from rcjax.policy.following import PeriodBill
from rcjax.serving.call_log import Billed, CallLog, CascadeWarning
from rcjax.serving.ledger import FileTotals, Spending

_LOCKED_LONG = 60.0  # seconds without the file's lock until a warning: another process may just be writing

_LATE = 3600.0  # seconds after the start of a period: a log that begins later may lack calls


class WriterTotals:
    """The spending of each writer of a log in the period, by the log and by the file beside it."""

    def __init__(self) -> None:
        self.start = -math.inf
        self.first = math.inf  # time of the first call in the log
        self.has_rows = False
        self._logged: dict[str, Spending] = {}
        self._kept: dict[str, Spending] = {}
        self._own = Spending()

    @property
    def lacking(self) -> float:
        """Money that is in the file and not in the log."""
        gaps = (kept.money - self._logged.get(writer, Spending()).money for writer, kept in self._kept.items())
        return math.fsum(max(0.0, gap) for gap in gaps)

    def own_since(self, start: float) -> Spending:
        """Return the spending of this process in the period with this start."""
        self._begin(start)
        return self._own

    def pay(self, spending: Spending, start: float) -> None:
        """Count a payment of this process."""
        self._begin(start)
        self._own = self._own.plus(spending)

    def add_logged(self, writer: str, spending: Spending, time: float, start: float) -> Spending:
        """Count a call of the log, and return what it adds to the known spending of its writer.

        Args:
            writer: name of the process that wrote the call.
            spending: the call's cost, and the number of queries that begin with it.
            time: end of the call, in seconds since 1970.
            start: start of the period, in seconds since 1970.
        """
        self._begin(start)
        self.first = min(self.first, time)
        if time < start:
            return spending
        return self._grow(self._logged, writer, self._logged.get(writer, Spending()).plus(spending))

    def set_kept(self, writer: str, total: Spending, start: float) -> Spending:
        """Take a row of the file, and return what it adds to the known spending of its writer.

        Args:
            writer: name of the process that wrote the row.
            total: total in the row.
            start: start of the period, in seconds since 1970.
        """
        self._begin(start)
        self.has_rows = True
        return self._grow(self._kept, writer, total)

    def _grow(self, totals: dict[str, Spending], writer: str, total: Spending) -> Spending:
        before = self._known(writer)
        totals[writer] = total
        return self._known(writer).minus(before)

    def _known(self, writer: str) -> Spending:
        return self._logged.get(writer, Spending()).at_least(self._kept.get(writer, Spending()))

    def _begin(self, start: float) -> None:
        if start != self.start:
            self.start, self._own = start, Spending()
            self._logged.clear()
            self._kept.clear()


class LogSpending:
    """The spending of a policy in a period by all processes that write to a log.

    The log lacks calls after a full disk or a truncation. The file beside it has a row for each process, which lacks
    the calls since its last update. Of each process, the larger spending counts.

    Args:
        log: the call log, which has a path.
        billed: the bill of this process.
        since: time, in seconds since 1970; calls that ended earlier are left out.
    """

    def __init__(self, log: CallLog, billed: Billed, since: float) -> None:
        assert log.path is not None
        self._log, self._billed = log, billed
        self._reader = LogReader(log.path, since)
        self._totals = FileTotals(f"{log.path}.totals", billed.cascade)
        self._writers = WriterTotals()
        self._is_unsaved = False
        self._synced_at = -math.inf
        why = log.why_incomplete()
        if why is not None:
            self._warn(
                f"more of the money may be spent than {log.path} says: {why}: "
                "make room, and give --ledger, or count by hand"
            )

    @property
    def is_losing(self) -> bool:
        """Whether the last call could not be logged."""
        return self._log.is_losing

    def pay(self, spending: Spending, start: float) -> None:
        """Count a payment of this process in the period with this start."""
        self._writers.pay(spending, start)

    def read(self, bill: PeriodBill, patience: float) -> PeriodBill:
        """Return the bill with the new spending of each other process.

        Args:
            bill: the bill.
            patience: seconds that the file beside the log may be locked.
        """
        for call in self._reader.read_new():
            if call.policy == self._billed.policy and call.cascade != self._billed.cascade:
                start, logged = bill.at(time.time()).start, Spending(call.cost, int(call.begins))
                added = self._writers.add_logged(call.cascade, logged, call.time, start)
                bill = bill.spend(added.money, call.time, queries=added.queries)
        now = time.time()
        bounds = bill.period.bounds(now)
        total = self._totals.total(f"policy {self._billed.policy}", bill.period.every, bounds)
        total.put(self._writers.own_since(bounds[0]))
        if self._sync(patience):
            for writer, kept in total.by_writer.items():
                added = self._writers.set_kept(writer, kept, bill.at(now).start)
                bill = bill.spend(added.money, now, queries=added.queries) if added.money > 0 or added.queries else bill
        return bill

    def _sync(self, patience: float) -> bool:
        """Exchange totals with the file beside the log, and return whether that worked; warn once of a failure."""
        try:
            self._totals.sync(patience)
        except OSError as problem:  # the next update writes the total again
            is_brief = isinstance(problem, TimeoutError) and time.monotonic() - self._synced_at < _LOCKED_LONG
            if not is_brief and not self._is_unsaved:
                self._warn(f"what is spent is kept in the log alone: {problem.strerror or problem}")
                self._is_unsaved = True
            return False
        self._is_unsaved, self._synced_at = False, time.monotonic()
        return True

    def warn_lacking(self, bill: PeriodBill) -> None:
        """Warn at the start if the log lacks money that was spent in the period."""
        lacking, first, every = self._writers.lacking, self._writers.first, bill.period.every
        if lacking > 1e-9:
            self._warn(
                f"the log lacks ${lacking:.3g} of what was spent this {every}; the file beside it has that: it counts"
            )
        elif math.inf > first > bill.start + _LATE and not self._writers.has_rows:
            begin = datetime.fromtimestamp(first, UTC)
            self._warn(
                f"the log begins {begin:%Y-%m-%d %H:%M} UTC, after this {every}: what was spent before is not known"
            )

    def _warn(self, news: str) -> None:
        warnings.warn(visible(f"policy {self._billed.policy}: {news}"), CascadeWarning, stacklevel=4)


_DATE = r"([-.]\d[\d-]*)?"
_MOST = 1e11  # money or seconds: it excludes NaN and years beyond the calendar


class BilledCall(NamedTuple):
    """A call on the bill of a policy."""

    policy: str  # the policy's name
    cascade: str  # the random name of the `Cascade` that asked
    begins: bool  # whether the call is the first of its query
    cost: float
    seconds: float  # duration
    time: float  # end of the call, in seconds since 1970


class LogReader:
    """Reads the new calls of a call log, each once, even if the log was renamed meanwhile.

    Args:
        path: path of the log. The rotated files beside it, whose names have a date or a number, are read too:
            `calls-20261124.jsonl`, `calls.jsonl.1`.
        since: time, in seconds since 1970; calls that ended earlier are left out.
        read: bytes already read of each file, by its device and inode.

    A file that appears later under a rotated file's name is a copy, as `copytruncate` leaves it: it begins at its end.
    """

    def __init__(
        self, path: str | os.PathLike[str], since: float = 0.0, read: dict[tuple[int, int], int] | None = None
    ) -> None:
        self._path, self._since = Path(path).absolute(), since
        stem, suffix = re.escape(self._path.stem), re.escape(self._path.suffix)
        self._names = re.compile(rf"{stem}{_DATE}{suffix}{_DATE}")
        self._read: dict[tuple[int, int], int] = {} if read is None else read
        self._has_looked = False

    def read_new(self) -> Iterator[BilledCall]:
        """Yield the new calls, file by file; lines without a call on a bill are skipped."""
        for path, status in sorted(self._files(), key=lambda file: file[1].st_mtime_ns):
            inode = status.st_dev, status.st_ino  # a file's name may have changed
            is_copy = self._has_looked and path != self._path  # a renamed log's inode is known
            start = self._read.get(inode, status.st_size if is_copy else 0)
            self._read[inode] = start = start if start <= status.st_size else 0  # a new file may reuse an inode
            if start < status.st_size and status.st_mtime >= self._since:
                with suppress(OSError), open(path, "rb") as file:
                    if os.path.samestat(os.fstat(file.fileno()), status):  # else it was renamed just now
                        file.seek(start)
                        yield from self._calls(file, inode)
        self._has_looked = True

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        with suppress(OSError):
            for path in self._path.parent.iterdir():
                if self._names.fullmatch(path.name):
                    with suppress(OSError):
                        yield path, path.stat()

    def _calls(self, file: BinaryIO, inode: tuple[int, int]) -> Iterator[BilledCall]:
        for line in file:
            if not line.endswith(b"\n"):  # it is not written to its end yet
                return
            self._read[inode] += len(line)
            call = _read_billed_call(line)
            if call is not None and call.time >= self._since:
                yield call


def _read_billed_call(line: bytes) -> BilledCall | None:
    """Read a call on a bill from a line of the log; None for any other line."""
    with suppress(ValueError, KeyError, TypeError, RecursionError, OverflowError):
        row: Mapping[str, Any] = json.loads(line)
        names = str(row["policy"]), str(row["cascade"])
        figures = float(row["cost"]), float(row["seconds"]), datetime.fromisoformat(row["time"]).timestamp()
        if all(0 <= figure < _MOST for figure in figures):
            return BilledCall(*names, row["step"] == 1, *figures)
    return None


def queries_per_day(*logs: str | os.PathLike[str]) -> float | None:
    """Compute a service's mean number of queries a day from its call logs; None if they cover less than a day.

    Args:
        logs: paths of each replica's log, or of folders of logs; the rotated files beside a log count once.
    """
    paths = [Path(log) for log in logs]
    files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    read: dict[tuple[int, int], int] = {}
    times = [call.time for file in files for call in LogReader(file, read=read).read_new() if call.begins]
    days = (max(times) - min(times)) / 86_400 if times else 0.0
    return (len(times) - 1) / days if days >= 1 else None
