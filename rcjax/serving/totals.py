"""Running totals of money and requests, which processes share.

The processes of one machine share totals by a file. Replicas on several machines share them by a store, Redis or
Valkey: a thread sends a process's payments within a twentieth of a second, so that no answer waits for the store.
Increments are numbered, so that the store counts a repeated increment once. While the store cannot be reached, a
process goes on with the last totals and its own payments, and sends the payments later.
"""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import re
import socket
import stat
import threading
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rcjax._base.codec import visible
from rcjax._base.extras import import_extra
from rcjax._base.figures import count
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
    """A total as last read: money and queries of all processes, and the queries of the other processes."""

    money: float
    queries: float
    queries_of_others: float


class QueryCount(NamedTuple):
    """An exponentially decayed count of a policy's queries at a time, in seconds since 1970."""

    queries: float
    time: float


@dataclass(slots=True)
class TotalInFile:
    """One total of a file: the spending of this process, and the spending of others as last read."""

    file: TotalsFile
    own: Spending = field(default_factory=Spending)
    others: Spending = field(default_factory=Spending)
    query_count: QueryCount | None = None
    """The newest count that another process has recorded; None without any."""
    own_query_count: QueryCount | None = None
    """The count of this process, which its next payment records."""

    @property
    def is_unknown(self) -> bool:
        """Whether the file cannot be read or written."""
        return self.file.is_unknown

    def add(self, amount: float, queries: int = 1) -> None:
        """Add money and requests."""
        self.own = Spending(self.own.money + amount, self.own.queries + queries)

    def last_read(self) -> SharedSpending:
        """Return the spending of all processes, as last read."""
        own, others = self.own, self.others
        return SharedSpending(own.money + others.money, own.queries + others.queries, others.queries)

    def apply_rows(self, others: Sequence[_Row]) -> None:
        """Add up the rows of the other processes."""
        self.others = Spending(sum(row.spending.money for row in others), sum(row.spending.queries for row in others))
        counts = [row.query_count for row in others if row.query_count is not None]
        self.query_count = max(counts, key=lambda count: count.time, default=None)


class _Row(NamedTuple):
    """The row of a process in the file."""

    spending: Spending
    query_count: QueryCount | None


_BLOCK = 4096  # bytes by which the file grows
SYNC_SECONDS = 1.0  # seconds between two readings of the payments of other processes
_SECONDS_KEPT = 86_400  # seconds that a total is kept after its period, for clocks that are late or set back
_SECONDS_KEPT_OF_MINUTES = 60  # the same for totals of minutes, which are many
_UNKNOWN_AFTER_SECONDS = 60.0  # seconds without the file's lock until the spending counts as unknown: others may write
LOCK_WAIT_SECONDS = 2.0  # seconds to wait for the file's lock: a healthy process holds it for less than a millisecond


class TotalsFile:
    """Totals in a small file, for the processes of one machine.

    Each process has its own rows. A row has the total so far: nothing counts twice, and the next write makes up for a
    failed write. The file grows first, in whole blocks, and is then overwritten in place: if the disk is full, the old
    content stays. If the file is lost or unreadable, its processes write it anew with all rows that they have read.

    Args:
        path: path of the file, which is created with the first total; None to share nothing.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "calls.jsonl.totals")
        >>> one, other = TotalsFile(path), TotalsFile(path)
        >>> one.total("team-a", "month", (0.0, 4e9)).add(0.5)
        >>> one.sync()
        >>> total = other.total("team-a", "month", (0.0, 4e9))
        >>> other.sync()
        >>> total.last_read()
        SharedSpending(money=0.5, queries=1, queries_of_others=1)
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = None if path is None else os.path.abspath(os.fspath(path))
        self._writer = uuid.uuid4().hex[:8]  # name of this process in the file
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

    def sync(self, patience: float = LOCK_WAIT_SECONDS) -> None:
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
            is_brief = isinstance(problem, TimeoutError) and start - self._synced_at < _UNKNOWN_AFTER_SECONDS
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
                consequence = "it is written anew" if self._rows else "what was spent is counted anew"
                warnings.warn(f"{self.path} cannot be read: {consequence}", CascadeWarning, stacklevel=2)
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


def _seconds_kept(every: str) -> int:
    """Return the seconds that a total is kept after the end of its period."""
    return _SECONDS_KEPT_OF_MINUTES if every == "minute" else _SECONDS_KEPT


def _is_kept(every: str, end: float, now: float) -> bool:
    return end > now - _seconds_kept(every)


def _newest(first: Mapping[_RowKey, _Row], second: Mapping[_RowKey, _Row]) -> dict[_RowKey, _Row]:
    """Merge two tables of rows. Of two rows with one key the larger counts, as spending never decreases."""
    return {**first, **second} | {
        key: max(first[key], second[key], key=lambda row: row.spending) for key in first.keys() & second.keys()
    }


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


_SECONDS_BETWEEN_INCREMENTS = 0.05  # seconds in which payments are collected for one increment
ANSWER_SECONDS = 2.0  # seconds for an answer of the store
_SECONDS_KEPT_IDLE = 28 * 86_400  # seconds that a balance or a count of queries is kept after its last query
_INFINITE = 1e300  # no bound, as a number that the store can read

# The store may have lost its data. A total that only grows is at least what this process has read (floor). A missing
# balance starts from what this process has read (start).
_SCRIPT = """
local number, paid, paid_queries, floor, floor_queries, cap, keep, count, keep_count, start = unpack(ARGV)
local amount = math.max(tonumber(redis.call('HGET', KEYS[1], 'amount') or start), tonumber(floor))
local queries = math.max(tonumber(redis.call('HGET', KEYS[1], 'queries') or '0'), tonumber(floor_queries))
if tonumber(number) > tonumber(redis.call('GET', KEYS[2]) or '0') then
    amount = math.max(-tonumber(cap), math.min(amount + tonumber(paid), tonumber(cap)))
    queries = queries + tonumber(paid_queries)
    redis.call('SET', KEYS[2], number, 'EX', keep)
end
if count ~= '' then redis.call('SET', KEYS[3], count, 'EX', keep_count) end
local amount_text, queries_text = string.format('%.17g', amount), string.format('%.17g', queries)
redis.call('HSET', KEYS[1], 'amount', amount_text, 'queries', queries_text)
redis.call('EXPIRE', KEYS[1], keep)
return {amount_text, queries_text, redis.call('GET', KEYS[3]) or ''}
"""


@dataclass(slots=True)
class _Sum:
    """A sum of payments: money, queries, and the number of payments."""

    amount: float = 0.0
    queries: float = 0.0
    payments: int = 0

    def add(self, amount: float, queries: float) -> None:
        self.amount, self.queries, self.payments = self.amount + amount, self.queries + queries, self.payments + 1


@dataclass(slots=True)
class TotalInLedger:
    """One total of the ledger as this process knows it: the money of a period, or a balance. It is thread-safe."""

    ledger: Ledger
    keys: tuple[str, str, str]
    """Keys in the store: the total, the number of this object's last increment, and the policy's count of queries."""
    seconds: int
    """Seconds that the store keeps the total after the last increment."""
    start: float
    """Start of the total's period, in seconds since 1970; 0 for a balance."""
    cap: float = _INFINITE
    """Limit on the absolute amount; money beyond it is dropped."""
    may_fall: bool = False
    """Whether the amount may fall, as a balance does."""
    query_count: QueryCount | None = None
    own_query_count: QueryCount | None = None
    _is_read: bool = False
    _stored: _Sum = field(default_factory=_Sum)
    _sent: _Sum | None = None  # an increment that the store has not confirmed, and may have
    _waiting: _Sum = field(default_factory=_Sum)
    _number: int = 0
    _others: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_unknown(self) -> bool:
        """Whether spending may have been missed: the store is away, and was never read for this total.

        A period that begins while the store is away begins at $0.
        """
        if self._is_read:
            return False
        down_since = self.ledger.down_since
        return not self.ledger.has_answered or (down_since is not None and self.start < down_since)

    def add(self, amount: float, queries: int = 1) -> None:
        """Queue a payment for the ledger."""
        with self._lock:
            self._waiting.add(amount, queries)

    def last_read(self) -> SharedSpending:
        """Return the spending of all replicas as last read, with this process's payments since then."""
        with self._lock:
            parts = self._stored, self._waiting, self._sent or _Sum()
            amount, queries = sum(part.amount for part in parts), sum(part.queries for part in parts)
            return SharedSpending(max(-self.cap, min(amount, self.cap)), queries, self._others)

    @property
    def waiting(self) -> int:
        """Number of payments that the store has not confirmed."""
        with self._lock:
            return self._waiting.payments + (0 if self._sent is None else self._sent.payments)

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments of the store's script: the unconfirmed increment, or else all payments that wait."""
        with self._lock:
            if self._sent is None and self._waiting.payments:
                self._sent, self._waiting, self._number = self._waiting, _Sum(), self._number + 1
            sent = _Sum() if self._sent is None else self._sent
            number = 0 if self._sent is None else self._number
            floors = (-_INFINITE, 0.0) if self.may_fall else (self._stored.amount, self._stored.queries)
            own_count = "" if self.own_query_count is None or not number else " ".join(map(repr, self.own_query_count))
            return (
                number,
                repr(sent.amount),
                sent.queries,
                *floors,
                self.cap,
                self.seconds,
                own_count,
                _SECONDS_KEPT_IDLE,
                repr(self._stored.amount),
            )

    def apply_reply(self, reply: Any) -> None:
        """Apply the reply of the store. Raises an exception if it is malformed."""
        amount, queries = (float(figure) for figure in reply[:2])
        counted = tuple(map(float, reply[2].split()))
        with self._lock:
            sent = _Sum() if self._sent is None else self._sent
            self._others += max(0.0, queries - self._stored.queries - sent.queries)
            self._stored, self._sent, self._is_read = _Sum(amount, queries), None, True
            self.query_count = QueryCount(*counted) if len(counted) == 2 else None


class Ledger:
    """The spending of policies, shared by the replicas of a service through a store: Redis or Valkey.

    Args:
        url: the store's address: `redis://[[name]:password@]host[:port][/number]`, or `rediss://` for TLS.
        replica: name of this replica in the store; by default the host's.

    Raises ValueError for an invalid address, ImportError without the extra `ledger`.
    """

    def __init__(self, url: str, replica: str | None = None) -> None:
        redis: Any = import_extra("redis", "ledger")
        retrying = import_extra("redis.retry", "ledger"), import_extra("redis.backoff", "ledger")
        self._refusals = redis.AuthenticationError, redis.exceptions.NoPermissionError
        self.address = address_of(url)
        try:
            self._client: Any = redis.Redis.from_url(
                url,
                decode_responses=True,
                socket_timeout=ANSWER_SECONDS,
                socket_connect_timeout=ANSWER_SECONDS,
                retry=retrying[0].Retry(retrying[1].NoBackoff(), 0),
            )
        except (ValueError, redis.RedisError):
            raise ValueError(f"{self.address}: {_URL_FORM}") from None
        plain = re.sub(r"[^\w.-]", "_", replica or socket.gethostname())[:64]
        self._process = f"{plain}:{uuid.uuid4().hex[:12]}"
        self._totals: dict[tuple[str, str, float], TotalInLedger] = {}
        self._numbers = itertools.count()  # numbers the totals made, as a total may be made twice
        self._sync_lock = threading.Lock()
        self._wake = threading.Event()
        self._ended = False
        self._totals_lock = threading.Lock()  # not held during I/O: requests take it on the event loop
        self._thread: threading.Thread | None = None
        self.down_since: float | None = None
        """Time of the first failure, in seconds since 1970; None while the store answers."""
        self.has_answered = False
        """Whether the store has ever answered."""

    def check(self) -> None:
        """Ask the store once. Raises ValueError if it refuses the password or a permission, not if it is down."""
        try:
            self._client.ping()
        except self._refusals as problem:
            raise ValueError(f"{self.address} refuses: {type(problem).__name__}: check the password") from None
        except Exception:  # the store may come later
            return

    def total(
        self, name: str, every: str, bounds: tuple[float, float], cap: float = _INFINITE, *, may_fall: bool = False
    ) -> TotalInLedger:
        """Return the total of a policy or a client in a period.

        Args:
            name: name of the policy or the client.
            every: "minute", "day", "week" or "month"; "query" for the balance of budgets per query.
            bounds: start and end of the period, in seconds since 1970; zeros for a balance.
            cap: limit on the absolute amount; the last call's counts, as a reload may change the budget.
            may_fall: whether the amount may fall, as a balance does.
        """
        start, end = bounds
        with self._totals_lock:
            if (name, every, start) not in self._totals:
                for key in [key for key in self._totals if key[:2] == (name, every) and key[2] < start]:
                    if not self._totals[key].waiting:
                        del self._totals[key]
                stem = f"rcjax:{{{_UNSAFE.sub('_', name)}}}"  # braces keep its keys on one node of a cluster
                total = f"{stem}:balance" if every == "query" else f"{stem}:{every}:{_label(start)}"
                seconds = _SECONDS_KEPT_IDLE if every == "query" else int(end - start) + _seconds_kept(every)
                # Increments are numbered from 1 on, also if a clock that is set back begins the total once more.
                sender = f"{self._process}:{next(self._numbers)}"
                keys = total, f"{total}:from:{sender}", f"{stem}:query_count:{every}"
                self._totals[name, every, start] = TotalInLedger(self, keys, seconds, start, may_fall=may_fall)
            total = self._totals[name, every, start]
            total.cap = cap
            return total

    @property
    def waiting(self) -> int:
        """Number of payments that the store has not confirmed."""
        return sum(total.waiting for total in [*self._totals.values()])

    def sync(self, patience: float = ANSWER_SECONDS) -> bool:
        """Send the payments that wait, read the totals, and return whether the store answers.

        With a patience of 0 a thread does so at once, and this method waits for nothing.
        """
        if not patience:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rcjax-ledger", daemon=True)
                self._thread.start()
            self._wake.set()
            return self.down_since is None
        with self._sync_lock:
            totals = self._current_totals()
            try:
                pipe = self._client.pipeline(transaction=False)
                for total in totals:
                    pipe.eval(_SCRIPT, len(total.keys), *total.keys, *total.arguments())
                for total, reply in zip(totals, pipe.execute(), strict=True):
                    total.apply_reply(reply)
            except Exception as problem:  # whatever the store replies: the thread goes on
                self._note_failure(type(problem).__name__)
                return False
            self._note_answer()
            return True

    def _current_totals(self) -> list[TotalInLedger]:
        """Return the totals to synchronise, and forget the totals of past minutes."""
        now = time.time()
        with self._totals_lock:
            for (name, every, start), total in [*self._totals.items()]:
                if every == "minute" and start + total.seconds < now and not total.waiting:
                    del self._totals[name, every, start]
            return [*self._totals.values()]

    def close(self) -> None:
        """Send the payments that wait, and close the connection. Payments that cannot be sent become a warning."""
        self._ended = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(2 * ANSWER_SECONDS)
        if self.waiting and not self.sync():
            message = f"the ledger at {self.address} did not get {count(self.waiting, 'payment')}"
            warnings.warn(f"{message}: the other replicas count their money as unspent", CascadeWarning, stacklevel=2)
        self._client.close()

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait(SYNC_SECONDS)
            self._wake.clear()
            if not self._ended:
                self.sync()
                time.sleep(_SECONDS_BETWEEN_INCREMENTS if self.down_since is None else SYNC_SECONDS)

    def _note_failure(self, kind: str) -> None:
        if self.down_since is None:
            self.down_since = time.time()
            since = datetime.fromtimestamp(self.down_since, UTC)
            message = f"the ledger at {self.address} has not answered since {since:%Y-%m-%d %H:%M:%S UTC} ({kind})"
            consequence = "answers go on, and their cost is counted when it answers again"
            warnings.warn(visible(f"{message}: {consequence}"), CascadeWarning, stacklevel=2)

    def _note_answer(self) -> None:
        self.has_answered = True
        if self.down_since is not None:
            message = f"the ledger at {self.address} answers again, after {time.time() - self.down_since:.0f} s"
            self.down_since = None
            warnings.warn(f"{message}: the spending of the meantime is counted", CascadeWarning, stacklevel=2)


_UNSAFE = re.compile(r"[^\w.:/@+-]")

_URL_FORM = "give redis://host:6379, or rediss:// for TLS, with name:password@ before the host if the store wants that"


def address_of(url: str) -> str:
    """Return the address of a store without its password, for messages. Raises ValueError for an invalid one.

    >>> address_of("redis://:secret@ledger:6379/1")
    'redis://ledger:6379/1'
    """
    with suppress(ValueError):
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        if parts.scheme in ("redis", "rediss") and parts.hostname:
            return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"
    raise ValueError(f"not an address of a ledger: {_URL_FORM}")


def _label(time: float) -> str:
    """Return the start of a period for a key: the day, and the time unless it is midnight."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M}".removesuffix("T00:00")


Total = TotalInFile | TotalInLedger
"""The spending of one bill or client in one period."""

TotalStore = TotalsFile | Ledger
"""A store of totals that several processes share."""
