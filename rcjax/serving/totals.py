"""Running totals of money and requests, which the processes of one machine share by a file.

Processes of several machines share totals by a `rcjax.serving.ledger.Ledger`.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import threading
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from rcjax._base.files import try_lock
from rcjax.serving.failures import CascadeWarning


class _RowKey(NamedTuple):
    """The key of a row: a bill or a client, its period, and the process that writes the row."""

    name: str
    every: str
    end: float  # end of the period, in seconds since 1970
    writer: str


class Spending(NamedTuple):
    """Money, and the number of requests or queries that it was spent on."""

    money: float = 0.0
    queries: int = 0


class SharedSpending(NamedTuple):
    """A total as last read: the money of all processes, and the queries of the other processes."""

    money_of_all: float
    queries_of_others: float


class QueryCount(NamedTuple):
    """An exponentially decayed count of a policy's queries at a time, in seconds since 1970."""

    queries: float
    time: float


class Total(Protocol):
    """The spending of one bill or client in one period."""

    query_count: QueryCount | None
    """The newest count that another process has recorded; None without any."""
    own_query_count: QueryCount | None
    """The count of this process, which its next payment records."""

    @property
    def is_unknown(self) -> bool:
        """Whether more may have been spent than `last_read` says, since the store could not be read."""
        ...

    def add(self, amount: float, queries: int = 1) -> None:
        """Add money and requests."""

    def last_read(self) -> SharedSpending:
        """Return the spending of all processes, as last read."""
        ...


class TotalStore(Protocol):
    """A store of totals that several processes share."""

    def total(self, name: str, every: str, bounds: tuple[float, float]) -> Total:
        """Return the total of a name in a period: its kind, its start and its end in seconds since 1970."""
        ...

    def sync(self, patience: float = ...) -> object:
        """Write the payments of this process, and read the totals of all processes. May raise OSError.

        Args:
            patience: seconds to wait for a busy store; with 0 nothing waits, so that an event loop may call it.
        """


@dataclass(slots=True)
class TotalInFile:
    """One total of a file: the spending of this process, and the spending of others as last read."""

    file: TotalsFile
    own: Spending = field(default_factory=Spending)
    others: Spending = field(default_factory=Spending)
    query_count: QueryCount | None = None
    own_query_count: QueryCount | None = None

    @property
    def is_unknown(self) -> bool:
        """Whether the file cannot be read or written."""
        return self.file.is_unknown

    def add(self, amount: float, queries: int = 1) -> None:
        """Add money and requests."""
        self.own = Spending(self.own.money + amount, self.own.queries + queries)

    def last_read(self) -> SharedSpending:
        """Return the spending of all processes, as last read."""
        return SharedSpending(self.own.money + self.others.money, self.others.queries)

    def apply_rows(self, others: Sequence[_Row]) -> None:
        """Add up the rows of the other processes."""
        self.others = Spending(sum(row.spending.money for row in others), sum(row.spending.queries for row in others))
        counts = [row.query_count for row in others if row.query_count is not None]
        self.query_count = max(counts, key=lambda count: count.time, default=None)


class _Row(NamedTuple):
    """The row of a process in the file."""

    spending: Spending
    query_count: QueryCount | None


_SPENDING = attrgetter("spending")
_BLOCK = 4096  # bytes by which the file grows
SYNC_SECONDS = 1.0  # seconds between two readings of the payments of other processes
_SECONDS_KEPT = 86_400  # seconds that a total is kept after its period, for clocks that are late or set back
_SECONDS_KEPT_OF_MINUTES = 60  # the same for totals of minutes, which are many
_LOCKED_SECONDS = 60.0  # seconds without the file's lock until a warning: another process may just be writing
LOCK_SECONDS = 2.0  # seconds to wait for the file's lock: a healthy process holds it for less than a millisecond


class TotalsFile:
    """Totals in a small file, for the processes of one machine.

    Each process has its own rows. A row has the total so far: nothing counts twice, and the next write makes up for a
    failed write. The file grows first, in whole blocks, and is then overwritten in place: if the disk is full, the old
    content stays. If the file is lost or unreadable, its processes write it anew with all rows that they have read.

    Args:
        path: path of the file, which is created with the first total; None to share nothing.
        writer: name of this process in the file; random by default.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "calls.jsonl.totals")
        >>> one, other = TotalsFile(path), TotalsFile(path)
        >>> one.total("team-a", "month", (0.0, 4e9)).add(0.5)
        >>> one.sync()
        >>> total = other.total("team-a", "month", (0.0, 4e9))
        >>> other.sync()
        >>> total.last_read()
        SharedSpending(money_of_all=0.5, queries_of_others=1)
    """

    def __init__(self, path: str | os.PathLike[str] | None, writer: str | None = None) -> None:
        self.path = None if path is None else os.path.abspath(os.fspath(path))
        self._writer = writer or uuid.uuid4().hex[:8]
        self._totals: dict[tuple[str, str, float], TotalInFile] = {}
        self._rows: dict[_RowKey, _Row] = {}  # of the file, as last read or written
        self._content = b""  # of the file with these rows
        self._sync_lock = threading.Lock()  # serialises `sync`: a slow thread would write older totals
        self._synced_at = -math.inf
        self.is_unknown = False
        """Whether the file is unreadable or unwritable, or has been locked for a minute."""

    def total(self, name: str, every: str, bounds: tuple[float, float]) -> TotalInFile:
        """Return the total of a name in a period."""
        return self._totals.setdefault((name, every, bounds[1]), TotalInFile(self))

    def sync(self, patience: float = LOCK_SECONDS) -> None:
        """Write the totals of this process, and read the totals of others; spending is unknown while this fails.

        Raises OSError on failure, and TimeoutError, a kind of it, if another process or thread holds the file's lock
        for `patience` seconds. With 0 it never waits, so that an event loop may call it.
        """
        start = time.monotonic()
        try:
            if not self._sync_lock.acquire(timeout=patience):
                raise TimeoutError(errno.ETIMEDOUT, "another thread synchronises totals")
            try:
                self._sync_totals(patience)
            finally:
                self._sync_lock.release()
        except OSError as problem:
            is_brief = isinstance(problem, TimeoutError) and start - self._synced_at < _LOCKED_SECONDS
            self.is_unknown = self.is_unknown or not is_brief
            raise
        self.is_unknown, self._synced_at = False, start

    def _sync_totals(self, patience: float) -> None:
        """Forget the totals of past periods, exchange rows, and add up the rows of the other processes."""
        now = time.time()
        totals = dict(self._totals)
        for key in [key for key in totals if not _is_kept(key[1], key[2], now)]:
            del totals[key], self._totals[key]
        if self.path is None or not totals:
            return
        self._sync_rows(totals, now, patience)
        others: dict[tuple[str, str, float], list[_Row]] = {key: [] for key in totals}
        for row, value in self._rows.items():
            if row.writer != self._writer and row[:3] in others:
                others[row[:3]].append(value)
        for key, total in totals.items():
            total.apply_rows(others[key])

    def _sync_rows(self, totals: Mapping[tuple[str, str, float], TotalInFile], now: float, patience: float) -> None:
        """Write the rows of this process, and read the rows of all processes."""
        assert self.path is not None
        is_needed = bool(self._rows) or any(any(total.own) for total in totals.values())
        try:
            file = os.open(self.path, os.O_RDWR | (os.O_CREAT if is_needed else 0) | getattr(os, "O_BINARY", 0), 0o600)
        except FileNotFoundError:
            if is_needed:  # the folder is missing
                raise
            return
        try:
            if not try_lock(file, patience):
                raise TimeoutError(errno.ETIMEDOUT, "another process holds its lock")
            content = _read_bytes(file)
            before = self._rows if content == self._content else _decode(content)
            if before is None:
                before = {}
                then = "it is written anew" if self._rows else "what was spent is counted anew"
                warnings.warn(f"{self.path} cannot be read: {then}", CascadeWarning, stacklevel=2)
            known = before if before is self._rows else _newest(self._rows, before)
            rows = {key: row for key, row in known.items() if _is_kept(key.every, key.end, now)}
            for key, total in totals.items():
                if any(total.own):
                    rows[_RowKey(*key, self._writer)] = _Row(total.own, total.own_query_count)
            if rows != before:
                content = _encode(rows)
                _overwrite(file, content, self.path)
            self._rows, self._content = rows, content
        finally:
            os.close(file)


def seconds_kept(every: str) -> int:
    """Return the seconds that a total is kept after the end of its period."""
    return _SECONDS_KEPT_OF_MINUTES if every == "minute" else _SECONDS_KEPT


def _is_kept(every: str, end: float, now: float) -> bool:
    return end > now - seconds_kept(every)


def _newest(one: Mapping[_RowKey, _Row], other: Mapping[_RowKey, _Row]) -> dict[_RowKey, _Row]:
    """Merge two tables of rows. Of two rows with one key the larger counts, as spending never decreases."""
    return {**one, **other} | {key: max(one[key], other[key], key=_SPENDING) for key in one.keys() & other.keys()}


def _overwrite(file: int, content: bytes, path: str) -> None:
    """Replace the content of a file. If the disk is full, raises OSError and leaves the old content."""
    size = os.fstat(file).st_size
    try:
        _write_at(file, size, b" " * (len(content) - size), path)  # white space may follow JSON
    except OSError:
        os.ftruncate(file, size)
        raise
    _write_at(file, 0, content, path)
    os.ftruncate(file, len(content))


def _write_at(file: int, place: int, text: bytes, path: str) -> None:
    os.lseek(file, place, os.SEEK_SET)
    if text and os.write(file, text) != len(text):
        raise OSError(f"cannot write to {path}: is the disk full?")


def _read_bytes(file: int) -> bytes:
    size = os.fstat(file).st_size if stat.S_ISREG(os.fstat(file).st_mode) else 0
    os.lseek(file, 0, os.SEEK_SET)
    return os.read(file, size) if size else b""


def _encode(totals: Mapping[_RowKey, _Row]) -> bytes:
    rows = [[*key, *row.spending, *(row.query_count or ())] for key, row in totals.items()]
    text = json.dumps({"totals": rows}, separators=(",", ":")).encode()
    return text.ljust(-(-(len(text) + 1) // _BLOCK) * _BLOCK - 1) + b"\n"


def _decode(content: bytes) -> dict[_RowKey, _Row] | None:
    """Return the rows of a file; None if it is unreadable. Text that a kill has left after the rows is ignored."""
    if not content.strip():
        return {}
    with suppress(ValueError, KeyError, TypeError, RecursionError, OverflowError):
        rows: list[Any] = json.JSONDecoder().raw_decode(content.decode())[0]["totals"]
        return {
            _RowKey(str(name), str(every), float(end), str(writer)): _Row(
                Spending(float(money), int(requests)), QueryCount(*map(float, counted)) if counted else None
            )
            for name, every, end, writer, money, requests, *counted in rows
        }
    return None
