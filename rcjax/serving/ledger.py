"""Running totals of money and requests that replicas on several machines share, in a store: Redis or Valkey.

A thread sends a process's payments within a twentieth of a second, so that no answer waits for the store. Increments
are numbered, so that the store counts a repeated increment once. While the store cannot be reached, a process goes on
with the last totals and its own payments, and sends the payments later.
"""

from __future__ import annotations

import itertools
import re
import socket
import threading
import time
import uuid
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from rcjax._base.codec import visible
from rcjax._base.extras import import_extra
from rcjax._base.figures import count
from rcjax.serving.failures import CascadeWarning
from rcjax.serving.totals import SYNC_SECONDS, QueryCount, SharedSpending, seconds_kept

_SECONDS_BETWEEN_INCREMENTS = 0.05  # seconds in which payments are collected for one increment
ANSWER_SECONDS = 2.0  # seconds for an answer of the store
_SECONDS_KEPT_IDLE = 28 * 86_400  # seconds that a balance or a count of queries is kept after its last query
_INFINITE = 1e300  # no bound, as a number that the store can read

# Processes restore a store that lost its data. A total that only grows never falls below the amount that a process has
# read. A balance that the store lacks begins with the amount that a process has read.
_SCRIPT = """
local amount = math.max(tonumber(redis.call('HGET', KEYS[1], 'amount') or ARGV[10]), tonumber(ARGV[4]))
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
            unstored = self._waiting.amount + (0.0 if self._sent is None else self._sent.amount)
            return SharedSpending(max(-self.cap, min(self._stored.amount + unstored, self.cap)), self._others)

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
            own = "" if self.own_query_count is None or not number else " ".join(map(repr, self.own_query_count))
            return (
                number,
                repr(sent.amount),
                sent.queries,
                *floors,
                self.cap,
                self.seconds,
                own,
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
                seconds = _SECONDS_KEPT_IDLE if every == "query" else int(end - start) + seconds_kept(every)
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
            news = f"the ledger at {self.address} did not get {count(self.waiting, 'payment')}"
            warnings.warn(f"{news}: the other replicas count their money as unspent", CascadeWarning, stacklevel=2)
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
            news = f"the ledger at {self.address} has not answered since {since:%Y-%m-%d %H:%M:%S UTC} ({kind})"
            rest = "answers go on, and their cost is counted when it answers again"
            warnings.warn(visible(f"{news}: {rest}"), CascadeWarning, stacklevel=2)

    def _note_answer(self) -> None:
        self.has_answered = True
        if self.down_since is not None:
            news = f"the ledger at {self.address} answers again, after {time.time() - self.down_since:.0f} s"
            self.down_since = None
            warnings.warn(f"{news}: the spending of the meantime is counted", CascadeWarning, stacklevel=2)


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
