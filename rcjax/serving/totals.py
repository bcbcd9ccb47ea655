"""Running totals of money and requests by name and period, so that several processes share one limit.

`FileTotals` keeps the totals in a small file, for the processes of one machine; another `Totals` may keep them
elsewhere, for several machines. Standard library only.
"""

from __future__ import annotations

import json
import math
import os
import stat
import time
import uuid
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from rcjax.serving.call_log import CascadeWarning

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


class _RowKey(NamedTuple):
    """The key of a row: a bill or a client, its period, and the process that writes the row."""

    name: str
    every: str
    end: float  # end of the period, in seconds since 1970
    writer: str


class _Spending(NamedTuple):
    """The spending of one process on an account."""

    money: float = 0.0
    requests: int = 0


class Total(Protocol):
    """The spending on one account in one period."""

    def add(self, amount: float, queries: int = 1) -> None:
        """Add money and requests."""

    def last_read(self) -> tuple[float, float]:
        """Return (the money of all processes, the requests of others), as last read."""
        ...


class Totals(Protocol):
    """A store of totals that several processes share."""

    def total(self, name: str, every: str, bounds: tuple[float, float]) -> Total:
        """Return the total of a name in a period: its kind, its start and its end in seconds since 1970."""
        ...


class FileTotal:
    """One total of a file: the payments of this process, and those of others as last read."""

    def __init__(self) -> None:
        self.own, self.others = _Spending(), _Spending()
        self.by_writer: dict[str, tuple[float, int]] = {}
        """(money, requests) of each other process."""

    def add(self, amount: float, queries: int = 1) -> None:
        """Add money and requests."""
        self.own = _Spending(self.own.money + amount, self.own.requests + queries)

    def put(self, money: float, requests: int) -> None:
        """Replace the total of this process."""
        self.own = _Spending(money, requests)

    def last_read(self) -> tuple[float, float]:
        """Return (the money of all processes, the requests of others), as last read."""
        return self.own.money + self.others.money, self.others.requests


_BLOCK = 4096  # bytes

_KEPT = 3600.0  # seconds that a total is kept after its period, as a clock may be set back


class FileTotals:
    """Totals in a small file, for the processes of one machine.

    Each process has its own rows. A row has the total so far, so that nothing counts twice, and the next write makes
    up for a failed one. The file is overwritten in place and padded to whole blocks: a full disk has room for it as
    long as it does not grow. An unreadable file begins anew.

    Args:
        path: path of the file, which is created with the first total; None to share nothing.
        writer: name of this process in the file; random by default.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "calls.jsonl.totals")
        >>> one, other = FileTotals(path), FileTotals(path)
        >>> one.total("team-a", "month", (0.0, 4e9)).add(0.5)
        >>> one.sync()
        >>> total = other.total("team-a", "month", (0.0, 4e9))
        >>> other.sync()
        >>> total.last_read()
        (0.5, 1)
    """

    def __init__(self, path: str | os.PathLike[str] | None, writer: str | None = None) -> None:
        self.path = None if path is None else os.path.abspath(os.fspath(path))
        self._writer = writer or uuid.uuid4().hex[:8]
        self._totals: dict[tuple[str, str, float], FileTotal] = {}

    def total(self, name: str, every: str, bounds: tuple[float, float]) -> FileTotal:
        """Return the total of a name in a period."""
        return self._totals.setdefault((name, every, bounds[1]), FileTotal())

    def sync(self) -> None:
        """Write the totals of this process, and read those of others. Raises OSError on failure."""
        oldest = time.time() - _KEPT
        totals = dict(self._totals)
        for key in [key for key in totals if key[2] <= oldest]:
            del totals[key], self._totals[key]
        if self.path is None or not totals:
            return
        rows_here = {_RowKey(*key, self._writer): total.own for key, total in totals.items() if any(total.own)}
        rows = self._exchange(rows_here, oldest)
        for key, total in totals.items():
            same = {row.writer: spending for row, spending in rows.items() if row[:3] == key}
            others = {writer: spending for writer, spending in same.items() if writer != self._writer}
            total.by_writer = {writer: (spending.money, spending.requests) for writer, spending in others.items()}
            total.others = _Spending(*map(sum, zip(*others.values(), strict=True))) if others else _Spending()

    def _exchange(self, rows_here: Mapping[_RowKey, _Spending], oldest: float) -> dict[_RowKey, _Spending]:
        """Write the rows of this process, and return the rows of all processes."""
        assert self.path is not None
        try:
            file = os.open(self.path, os.O_RDWR | (os.O_CREAT if rows_here else 0) | getattr(os, "O_BINARY", 0), 0o600)
        except FileNotFoundError:
            return {}
        try:
            if fcntl is not None:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX)
            content = _read_bytes(file)
            before = _decode(content)
            if content.strip() and not before:
                news = f"{self.path} cannot be read: what was spent is counted anew"
                warnings.warn(news, CascadeWarning, stacklevel=2)
            rows = {key: total for key, total in before.items() if key.end > oldest} | dict(rows_here)
            if rows != before:
                text = _encode(rows)
                os.lseek(file, 0, os.SEEK_SET)
                if os.write(file, text) != len(text):
                    raise OSError(f"cannot write to {self.path}: is the disk full?")
                os.ftruncate(file, len(text))
            return rows
        finally:
            os.close(file)


class WriterTotals:
    """The spending of each writer of a log in the period, by the log and by the file beside it."""

    def __init__(self) -> None:
        self.start = -math.inf
        self.first = math.inf  # time of the first call in the log
        self.is_unsaved = self.has_rows = False
        self._logged: dict[str, tuple[float, int]] = {}
        self._kept: dict[str, tuple[float, int]] = {}
        self._spent = (0.0, 0)

    @property
    def lacking(self) -> float:
        """Money that is in the file and not in the log."""
        logged = {writer: self._logged.get(writer, (0.0, 0))[0] for writer in self._kept}
        return math.fsum(max(0.0, kept[0] - logged[writer]) for writer, kept in self._kept.items())

    def own_since(self, start: float) -> tuple[float, int]:
        """Return (money, queries) of this process in the period with this start."""
        self._begin(start)
        return self._spent

    def pay(self, cost: float, queries: int, start: float) -> None:
        """Count a payment of this process."""
        self._begin(start)
        self._spent = self._spent[0] + cost, self._spent[1] + queries

    def add_logged(self, writer: str, spent: tuple[float, int], time: float, start: float) -> tuple[float, int]:
        """Count a call of the log, and return the (money, queries) that it adds to its writer's known total.

        Args:
            writer: name of the process that wrote the call.
            spent: (money, queries that begin with the call).
            time: end of the call, in seconds since 1970.
            start: start of the period, in seconds since 1970.
        """
        self._begin(start)
        self.first = min(self.first, time)
        if time < start:
            return spent
        money, queries = self._logged.get(writer, (0.0, 0))
        return self._grow(self._logged, writer, (money + spent[0], queries + spent[1]))

    def set_kept(self, writer: str, money: float, queries: int, start: float) -> tuple[float, int]:
        """Take a row of the file, and return the (money, queries) that it adds to its writer's known total.

        Args:
            writer: name of the process that wrote the row.
            money, queries: total in the row.
            start: start of the period, in seconds since 1970.
        """
        self._begin(start)
        self.has_rows = True
        return self._grow(self._kept, writer, (money, queries))

    def _grow(self, totals: dict[str, tuple[float, int]], writer: str, total: tuple[float, int]) -> tuple[float, int]:
        before = self._known_total(writer)
        totals[writer] = total
        after = self._known_total(writer)
        return after[0] - before[0], after[1] - before[1]

    def _known_total(self, writer: str) -> tuple[float, int]:
        pairs = self._logged.get(writer, (0.0, 0)), self._kept.get(writer, (0.0, 0))
        return max(money for money, _ in pairs), max(queries for _, queries in pairs)

    def _begin(self, start: float) -> None:
        if start != self.start:
            self.start, self._spent = start, (0.0, 0)
            self._logged.clear()
            self._kept.clear()


def _read_bytes(file: int) -> bytes:
    size = os.fstat(file).st_size if stat.S_ISREG(os.fstat(file).st_mode) else 0
    os.lseek(file, 0, os.SEEK_SET)
    return os.read(file, size) if size else b""


def _encode(totals: Mapping[_RowKey, _Spending]) -> bytes:
    rows = [[*key, *total] for key, total in totals.items()]
    text = json.dumps({"totals": rows}, separators=(",", ":")).encode()
    return text.ljust(-(-(len(text) + 1) // _BLOCK) * _BLOCK - 1) + b"\n"


def _decode(content: bytes) -> dict[_RowKey, _Spending]:
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        rows: list[Any] = json.loads(content)["totals"]
        return {
            _RowKey(str(name), str(every), float(end), str(writer)): _Spending(float(money), int(requests))
            for name, every, end, writer, money, requests in rows
        }
    return {}
