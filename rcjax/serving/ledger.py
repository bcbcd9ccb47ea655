"""Running totals of money and requests that several processes share: in a file, or in a store of several machines.

`FileTotals` keeps the totals in a small file, for the processes of one machine, which write each payment at once unless
another holds the lock. `Ledger` keeps them in a store: a thread sends a process's payments within a twentieth of a
second, so that no answer waits for the store. Increments are numbered: the store counts a repeated one once. If the
store cannot be reached, a process goes on with the last totals and its own payments, and sends these later.
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
from functools import reduce
from operator import attrgetter
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from rcjax._base.codec import visible
from rcjax._base.extras import required
from rcjax._base.figures import count
from rcjax._base.files import try_lock
from rcjax.serving.call_log import CascadeWarning


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

    def plus(self, other: Spending) -> Spending:
        """Return the sum of two spendings."""
        return Spending(self.money + other.money, self.queries + other.queries)


class QueryCount(NamedTuple):
    """The running count of a policy's queries, which decays, and its time."""

    queries: float
    time: float  # of the count, in seconds since 1970


class Total(Protocol):
    """The spending on one account in one period."""

    pace: QueryCount | None
    """The newest count that a process has recorded; None without any."""
    own_pace: QueryCount | None
    """The count of this process, to be recorded with its next payment."""

    def add(self, amount: float, queries: int = 1) -> None:
        """Add money and requests."""

    def last_read(self) -> tuple[float, float]:
        """Return (the money of all processes, the requests of others), as last read."""
        ...


class Totals(Protocol):
    """A store of totals that several processes share."""

    @property
    def is_unknown(self) -> bool:
        """Whether the totals have never been read, or payments cannot be recorded."""
        ...

    def total(self, name: str, every: str, bounds: tuple[float, float]) -> Total:
        """Return the total of a name in a period: its kind, its start and its end in seconds since 1970."""
        ...

    def start(self) -> None:
        """Read the totals that have been asked for, and record payments from now on."""

    def look(self) -> None:
        """Read what others have spent, if that is due."""

    def record(self) -> None:
        """Record the payments that were added."""

    def settle(self) -> None:
        """Record at the end of a service what could not be recorded at once."""


@dataclass(slots=True)
class FileTotal:
    """One total of a file: the payments of this process, and those of others as last read."""

    own: Spending = field(default_factory=Spending)
    others: Spending = field(default_factory=Spending)
    pace: QueryCount | None = None
    own_pace: QueryCount | None = None

    def add(self, amount: float, queries: int = 1) -> None:
        """Add money and requests."""
        self.own = self.own.plus(Spending(amount, queries))

    def last_read(self) -> tuple[float, float]:
        """Return (the money of all processes, the requests of others), as last read."""
        return self.own.money + self.others.money, self.others.queries

    def take(self, others: Sequence[_Row]) -> None:
        """Take the rows of the other processes."""
        self.others = reduce(Spending.plus, (row.spending for row in others), Spending())
        counts = [row.pace for row in others if row.pace is not None]
        self.pace = max(counts, key=lambda count: count.time, default=None)


class _Row(NamedTuple):
    """The row of a process in the file."""

    spending: Spending
    pace: QueryCount | None


_SPENDING = attrgetter("spending")
_BLOCK = 4096  # bytes
_FIELDS = 8  # of a row; a later version may add more
_KEPT, _MINUTE_KEPT = 86_400.0, 60.0  # seconds that a total is kept after its period, as a clock may be set back
_LOCKED_LONG = 60.0  # seconds without the file's lock until a warning: another process may just be writing
LOCK_SECONDS = 2.0  # seconds for the lock of the file: a healthy process holds it for less than a millisecond


class FileTotals:
    """Totals in a small file, for the processes of one machine.

    Each process has its own rows. A row has the total so far, so that nothing counts twice, and the next write makes
    up for a failed one. The file grows first, in whole blocks, and is then overwritten in place: if the disk is full,
    the old content stays. A file that is lost or unreadable is written anew, with all that its processes have read of
    it.

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
        self._rows: dict[_RowKey, _Row] = {}  # of the file, as last read or written
        self._content = b""  # of the file with these rows
        self._turn = threading.Lock()  # serialises `sync` between threads: a late one would write older totals
        self._looked_at = self._synced_at = -math.inf
        self.is_unknown = False
        """Whether the file is unreadable or unwritable, or has been locked for a minute."""

    def start(self) -> None:
        """Read the file, and wait a moment for its lock."""
        self._try_sync(LOCK_SECONDS)

    def look(self) -> None:
        """Exchange totals with the file, at most once a second."""
        if time.monotonic() - self._looked_at >= EXCHANGE_SECONDS:
            self._try_sync(0.0)

    def record(self) -> None:
        """Exchange totals with the file, so that a kill forgets no payment; a held lock puts it off a second."""
        self._try_sync(0.0)

    def settle(self) -> None:
        """Exchange totals with the file, and wait a moment for its lock."""
        self._try_sync(LOCK_SECONDS)

    def _try_sync(self, patience: float) -> None:
        """Exchange totals; a failure is a warning, once until it works again, and the next time makes up for it."""
        now = self._looked_at = time.monotonic()
        try:
            self.sync(patience)
        except OSError as problem:
            is_brief = isinstance(problem, TimeoutError) and now - self._synced_at < _LOCKED_LONG
            if not is_brief and not self.is_unknown:
                news = f"what is spent is not kept in {self.path}: {problem.strerror or problem}"
                warnings.warn(visible(f"{news}: until it is, the cheapest rung answers"), CascadeWarning, stacklevel=2)
                self.is_unknown = True
        else:
            self.is_unknown, self._synced_at = False, now

    def total(self, name: str, every: str, bounds: tuple[float, float]) -> FileTotal:
        """Return the total of a name in a period."""
        return self._totals.setdefault((name, every, bounds[1]), FileTotal())

    def sync(self, patience: float = LOCK_SECONDS) -> None:
        """Write the totals of this process, and read those of others.

        Raises OSError on failure; TimeoutError, one of its kinds, if another process holds the file's lock for
        `patience` seconds. With 0 it never waits, so that an event loop may call it. Threads take turns.
        """
        if not self._turn.acquire(timeout=patience):
            raise TimeoutError(errno.ETIMEDOUT, "another thread exchanges totals")
        try:
            self._sync(patience)
        finally:
            self._turn.release()

    def _sync(self, patience: float) -> None:
        now = time.time()
        totals = dict(self._totals)
        for key in [key for key in totals if not _is_kept(key[1], key[2], now)]:
            del totals[key], self._totals[key]
        if self.path is None or not totals:
            return
        self._exchange(totals, now, patience)
        others: dict[tuple[str, str, float], list[_Row]] = {key: [] for key in totals}
        for row, value in self._rows.items():
            if row.writer != self._writer and row[:3] in others:
                others[row[:3]].append(value)
        for key, total in totals.items():
            total.take(others[key])

    def _exchange(self, totals: Mapping[tuple[str, str, float], FileTotal], now: float, patience: float) -> None:
        """Write the rows of this process, and read the rows of all processes."""
        assert self.path is not None
        is_needed = bool(self._rows) or any(any(total.own) for total in totals.values())
        try:
            file = os.open(self.path, os.O_RDWR | (os.O_CREAT if is_needed else 0) | getattr(os, "O_BINARY", 0), 0o600)
        except FileNotFoundError:
            return
        try:
            if not try_lock(file, patience):
                raise TimeoutError(errno.ETIMEDOUT, "another process holds its lock")
            content = _read_bytes(file)
            before = self._rows if content == self._content else _decode(content)
            if content.strip() and not before:
                then = "it is written anew" if self._rows else "what was spent is counted anew"
                warnings.warn(f"{self.path} cannot be read: {then}", CascadeWarning, stacklevel=2)
            known = before if before is self._rows else _newest(self._rows, before)
            rows = {key: row for key, row in known.items() if _is_kept(key.every, key.end, now)}
            for key, total in totals.items():
                if any(total.own):
                    rows[_RowKey(*key, self._writer)] = _Row(total.own, total.own_pace)
            if rows != before:
                content = _encode(rows)
                _overwrite(file, content, self.path)
            self._rows, self._content = rows, content
        finally:
            os.close(file)


def _is_kept(every: str, end: float, now: float) -> bool:
    """Return whether a total is kept; totals of minutes are many."""
    return end > now - (_MINUTE_KEPT if every == "minute" else _KEPT)


def _newest(one: Mapping[_RowKey, _Row], other: Mapping[_RowKey, _Row]) -> dict[_RowKey, _Row]:
    """Merge two tables of rows. If both have a key, the larger row counts: spending never decreases."""
    return {**one, **other} | {key: max(one[key], other[key], key=_SPENDING) for key in one.keys() & other.keys()}


def _overwrite(file: int, content: bytes, path: str) -> None:
    """Replace the content of a file. A full disk is an OSError, and leaves what was there."""
    size = os.fstat(file).st_size
    try:
        _write_at(file, size, b" " * (len(content) - size), path)  # the end of JSON may have white space
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
    rows = [[*key, *row.spending, *(row.pace or ())] for key, row in totals.items()]
    text = json.dumps({"totals": rows}, separators=(",", ":")).encode()
    return text.ljust(-(-(len(text) + 1) // _BLOCK) * _BLOCK - 1) + b"\n"


def _decode(content: bytes) -> dict[_RowKey, _Row]:
    """Return the rows in a file; what follows them, as where a kill came before the file was cut, is ignored."""
    with suppress(ValueError, KeyError, TypeError, RecursionError, OverflowError):
        rows: list[Any] = json.JSONDecoder().raw_decode(content.decode())[0]["totals"]
        return {
            _RowKey(str(name), str(every), float(end), str(writer)): _Row(
                Spending(float(money), int(requests)), QueryCount(*map(float, pace)) if pace else None
            )
            for name, every, end, writer, money, requests, *pace in (row[:_FIELDS] for row in rows)
        }
    return {}


EXCHANGE_SECONDS = 1.0  # seconds between two reads of the totals
_PAUSE = 0.05  # seconds between two increments
ANSWER_SECONDS = 2.0  # seconds for an answer of the store
_LATE = 86_400  # seconds that a total is kept after its period's end, for clocks that are late
_LONG = 28 * 86_400  # seconds without a query until a balance and a pace are forgotten
_INFINITE = 1e300  # a bound that the store can read

# A total is never less than a process has seen: if the store lost its last second, the processes restore it.
_SCRIPT = """
local amount = math.max(tonumber(redis.call('HGET', KEYS[1], 'amount') or '0'), tonumber(ARGV[4]))
local queries = math.max(tonumber(redis.call('HGET', KEYS[1], 'queries') or '0'), tonumber(ARGV[5]))
if tonumber(ARGV[1]) > tonumber(redis.call('GET', KEYS[2]) or '0') then
    amount = math.max(-tonumber(ARGV[6]), math.min(amount + tonumber(ARGV[2]), tonumber(ARGV[6])))
    queries = queries + tonumber(ARGV[3])
    redis.call('SET', KEYS[2], ARGV[1], 'EX', ARGV[7])
end
if ARGV[8] ~= '' then redis.call('SET', KEYS[3], ARGV[8], 'EX', ARGV[9]) end
local amount_text, queries_text = string.format('%.17g', amount), string.format('%.17g', queries)
redis.call('HSET', KEYS[1], 'amount', amount_text, 'queries', queries_text)
redis.call('EXPIRE', KEYS[1], ARGV[7])
return {amount_text, queries_text, redis.call('GET', KEYS[3]) or ''}
"""


@dataclass(slots=True)
class _Sum:
    """A sum of payments: money, queries, and the number of payments."""

    amount: float = 0.0
    queries: float = 0.0
    payments: int = 0

    def add(self, amount: float, queries: float) -> None:
        """Add a payment."""
        self.amount, self.queries, self.payments = self.amount + amount, self.queries + queries, self.payments + 1


@dataclass(slots=True)
class LedgerTotal:
    """One total of the ledger, as a process knows it: money of a period, or a balance. It is thread-safe."""

    keys: tuple[str, str, str]
    """Keys in the store: the total, the number of this object's last increment, and the policy's pace."""
    seconds: int
    """Seconds that the store keeps the total after the last increment."""
    most: float = _INFINITE
    """Limit on the absolute amount; money beyond it is dropped."""
    falls: bool = False
    """Whether the amount may fall, as a balance does."""
    pace: QueryCount | None = None
    own_pace: QueryCount | None = None
    _stored: _Sum = field(default_factory=_Sum)
    _sent: _Sum | None = None  # an increment without an answer: the store may have it
    _waiting: _Sum = field(default_factory=_Sum)
    _number: int = 0
    _others: float = 0.0
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def add(self, amount: float, queries: int = 1) -> None:
        """Queue a payment for the ledger."""
        with self._turn:
            self._waiting.add(amount, queries)

    def last_read(self) -> tuple[float, float]:
        """Return (the amount of all replicas, the queries of others), as last read, with own payments since."""
        with self._turn:
            unstored = self._waiting.amount + (0.0 if self._sent is None else self._sent.amount)
            return max(-self.most, min(self._stored.amount + unstored, self.most)), self._others

    @property
    def waiting(self) -> int:
        """Number of payments that the store has not confirmed."""
        with self._turn:
            return self._waiting.payments + (0 if self._sent is None else self._sent.payments)

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments of the store's script: the unconfirmed increment, or else all payments that wait."""
        with self._turn:
            if self._sent is None and self._waiting.payments:
                self._sent, self._waiting, self._number = self._waiting, _Sum(), self._number + 1
            sent = _Sum() if self._sent is None else self._sent
            number = 0 if self._sent is None else self._number
            floors = (-_INFINITE, 0.0) if self.falls else (self._stored.amount, self._stored.queries)
            pace = "" if self.own_pace is None or not number else " ".join(map(repr, self.own_pace))
            return (number, repr(sent.amount), sent.queries, *floors, self.most, self.seconds, pace, _LONG)

    def take(self, reply: Any) -> None:
        """Take the store's answer. Raises ValueError or TypeError for a malformed one."""
        amount, queries = (float(figure) for figure in reply[:2])
        pace = tuple(map(float, reply[2].split()))
        with self._turn:
            sent = _Sum() if self._sent is None else self._sent
            self._others += max(0.0, queries - self._stored.queries - sent.queries)
            self._stored, self._sent = _Sum(amount, queries), None
            self.pace = QueryCount(*pace) if len(pace) == 2 else None


class Ledger:
    """The spending of policies, shared by the replicas of a service through a store: Redis or Valkey.

    Args:
        url: the store's address: `redis://[[name]:password@]host[:port][/number]`, or `rediss://` for TLS.
        replica: name of this replica in the store; by default the host's.

    Raises ValueError for an invalid address, ImportError without the extra `ledger`.
    """

    def __init__(self, url: str, replica: str | None = None) -> None:
        redis: Any = required("redis", "ledger")
        retrying = required("redis.retry", "ledger"), required("redis.backoff", "ledger")
        self._errors: tuple[type[Exception], ...] = (redis.RedisError, OSError, ValueError, TypeError)
        self._refusals = redis.AuthenticationError, redis.exceptions.NoPermissionError
        self.place = place_of(url)
        try:
            self._client: Any = redis.Redis.from_url(
                url,
                decode_responses=True,
                socket_timeout=ANSWER_SECONDS,
                socket_connect_timeout=ANSWER_SECONDS,
                retry=retrying[0].Retry(retrying[1].NoBackoff(), 0),
            )
        except (ValueError, redis.RedisError):
            raise ValueError(f"{self.place}: {_FORM}") from None
        plain = re.sub(r"[^\w.-]", "_", replica or socket.gethostname())[:64]
        self._process = f"{plain}:{uuid.uuid4().hex[:12]}"
        self._totals: dict[tuple[str, str, float], LedgerTotal] = {}
        self._begun = itertools.count()  # totals, of which one may begin anew
        self._turn = threading.Lock()
        self._wake = threading.Event()
        self._ended = False
        self._known = threading.Lock()  # guards `_totals`; not held during I/O, as requests take it on the event loop
        self._thread: threading.Thread | None = None
        self.down_since: float | None = None
        """Time of the first failure, in seconds since 1970; None while the store answers."""
        self._has_answered = False

    def check(self) -> None:
        """Ask the store once. Raises ValueError if it refuses the password or a permission, not if it is down."""
        with suppress(*(kind for kind in self._errors if kind is not ValueError)):
            try:
                self._client.ping()
            except self._refusals as problem:
                raise ValueError(f"{self.place} refuses: {type(problem).__name__}: check the password") from None

    def total(
        self, name: str, every: str, bounds: tuple[float, float], most: float = _INFINITE, *, falls: bool = False
    ) -> LedgerTotal:
        """Return the total of a policy or a client in a period.

        Args:
            name: name of the policy or the client.
            every: "minute", "day", "week" or "month"; "query" for the balance of budgets per query.
            bounds: start and end of the period, in seconds since 1970; zeros for a balance.
            most: limit on the absolute amount.
            falls: whether the amount may fall, as a balance does.
        """
        start, end = bounds
        with self._known:
            if (name, every, start) not in self._totals:
                for key in [key for key in self._totals if key[:2] == (name, every) and key[2] < start]:
                    if not self._totals[key].waiting:
                        del self._totals[key]
                stem = f"rcjax:{{{_UNSAFE.sub('_', name)}}}"  # braces keep its keys on one node of a cluster
                total = f"{stem}:balance" if every == "query" else f"{stem}:{every}:{_label(start)}"
                seconds = _LONG if every == "query" else int(end - start) + _LATE
                # Increments are numbered from 1 on, also where a clock that is set back begins the total once more.
                sender = f"{self._process}:{next(self._begun)}"
                keys = total, f"{total}:from:{sender}", f"{stem}:pace:{every}"
                self._totals[name, every, start] = LedgerTotal(keys, seconds, most, falls)
            return self._totals[name, every, start]

    def start(self) -> None:
        """Start the thread that reads and writes the store, and synchronise once if the store is not down."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rcjax-ledger", daemon=True)
            self._thread.start()
        if self.down_since is None:
            self.sync()

    @property
    def is_unknown(self) -> bool:
        """Whether the store has never answered."""
        return not self._has_answered

    def look(self) -> None:
        """Do nothing: the thread reads the totals."""

    def record(self) -> None:
        """Let the thread send the payments that wait."""
        if not self._wake.is_set():
            self._wake.set()

    def settle(self) -> None:
        """Let the thread send the payments that wait; `close` waits for it."""
        self.record()

    @property
    def waiting(self) -> int:
        """Number of payments that the store has not confirmed."""
        return sum(total.waiting for total in [*self._totals.values()])

    def sync(self) -> bool:
        """Send the payments that wait, read the totals, and return whether the store answered."""
        with self._turn:
            with self._known:
                totals = [*self._totals.values()]
            try:
                pipe = self._client.pipeline(transaction=False)
                for total in totals:
                    pipe.eval(_SCRIPT, len(total.keys), *total.keys, *total.arguments())
                for total, reply in zip(totals, pipe.execute(), strict=True):
                    total.take(reply)
            except self._errors as problem:
                self._note_failure(type(problem).__name__)
                return False
            self._note_answer()
            return True

    def close(self) -> None:
        """Send the payments that wait, and close the connection. Payments that cannot be sent become a warning."""
        self._ended = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(2 * ANSWER_SECONDS)
        if self.waiting and not self.sync():
            news = f"the ledger at {self.place} was not told of {count(self.waiting, 'payment')}"
            warnings.warn(f"{news}: their money counts as left", CascadeWarning, stacklevel=2)
        self._client.close()

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait(EXCHANGE_SECONDS)
            self._wake.clear()
            if not self._ended:
                self.sync()
                time.sleep(_PAUSE if self.down_since is None else EXCHANGE_SECONDS)

    def _note_failure(self, kind: str) -> None:
        if self.down_since is None:
            self.down_since = time.time()
            since = datetime.fromtimestamp(self.down_since, UTC)
            news = f"the ledger at {self.place} does not answer since {since:%Y-%m-%d %H:%M:%S UTC} ({kind})"
            rest = "answers go on, and what they cost is counted later"
            warnings.warn(visible(f"{news}: {rest}"), CascadeWarning, stacklevel=2)

    def _note_answer(self) -> None:
        self._has_answered = True
        if self.down_since is not None:
            news = f"the ledger at {self.place} answers again, after {time.time() - self.down_since:.0f} s"
            self.down_since = None
            warnings.warn(f"{news}: all that was spent meanwhile is counted", CascadeWarning, stacklevel=2)


_UNSAFE = re.compile(r"[^\w.:/@+-]")

_FORM = "give redis://host:6379, or rediss:// for TLS, with name:password@ before the host if the store wants that"


def place_of(url: str) -> str:
    """Return the address of a store without its password, for messages. Raises ValueError for an invalid one.

    >>> place_of("redis://:secret@ledger:6379/1")
    'redis://ledger:6379/1'
    """
    with suppress(ValueError):
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        if parts.scheme in ("redis", "rediss") and parts.hostname:
            return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"
    raise ValueError(f"the ledger's address is none: {_FORM}")


def _label(time: float) -> str:
    """Return the start of a period for a key: the day, with the time if it is not midnight."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M}".removesuffix("T00:00")
