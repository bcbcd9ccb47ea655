"""The ledger of several replicas: what each policy has spent, in a store that speaks the protocol of Redis.

A process tells the store within a twentieth of a second what it spent, by a thread of its own: no answer waits for the
store. Each increment has a number, by which the store knows one that is sent again, and counts it once. If the store
cannot be reached, a process goes on with the last totals and its own spending, and sends that later.
"""

from __future__ import annotations

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

from rcjax._base.extras import required
from rcjax._base.wording import count, visible
from rcjax.serving.call_log import CascadeWarning

_LOOK = 1.0  # seconds between looks at what others have spent
_PAUSE = 0.05  # seconds between two increments
_PATIENCE = 2.0  # seconds for an answer of the store
_LATE = 86_400  # seconds after its period's end that a total is kept, for clocks that are late
_LONG = 28 * 86_400  # seconds without a query after which a balance and a pace are forgotten
_INFINITE = 1e300  # as the store reads it

# A total is never less than a process has seen of it: if the store lost its last second, those who know it restore it.
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
    """Money, the queries that it was for, and in how many payments it came."""

    amount: float = 0.0
    queries: float = 0.0
    payments: int = 0

    def add(self, amount: float, queries: float) -> None:
        """Add a payment."""
        self.amount, self.queries, self.payments = self.amount + amount, self.queries + queries, self.payments + 1


@dataclass(slots=True)
class Page:
    """One total of the ledger, as a process knows it: money of a period, or a balance. All threads may use it."""

    keys: tuple[str, str, str]
    """In the store: of the total, of the number of this process's last increment, of the policy's pace."""
    seconds: int
    """For which the store keeps it from the last increment on."""
    most: float = _INFINITE
    """That the amount may be, either way; what is beyond is given up."""
    falls: bool = False
    """Whether the amount may fall, as a balance does."""
    pace: tuple[float, float] | None = None
    """The running count of queries, and its time, as the store has it."""
    own_pace: tuple[float, float] | None = None
    """The same, as this process has it."""
    _stored: _Sum = field(default_factory=_Sum)
    _sent: _Sum | None = None  # which the store may have, or not
    _waiting: _Sum = field(default_factory=_Sum)
    _number: int = 0
    _others: float = 0.0
    _turn: Any = field(default_factory=threading.Lock)

    def add(self, amount: float, queries: int = 1) -> None:
        """Put a payment for some queries into the ledger, soon."""
        with self._turn:
            self._waiting.add(amount, queries)

    def told(self) -> tuple[float, float]:
        """Return (the amount of all replicas, the queries that others had and this process has heard of)."""
        with self._turn:
            own = self._waiting.amount + (0.0 if self._sent is None else self._sent.amount)
            return max(-self.most, min(self._stored.amount + own, self.most)), self._others

    @property
    def waiting(self) -> int:
        """How many payments the store is not known to have."""
        with self._turn:
            return self._waiting.payments + (0 if self._sent is None else self._sent.payments)

    def arguments(self) -> tuple[Any, ...]:
        """What is sent to the store: the increment that it may have already, else all that waits."""
        with self._turn:
            if self._sent is None and self._waiting.payments:
                self._sent, self._waiting, self._number = self._waiting, _Sum(), self._number + 1
            sent = _Sum() if self._sent is None else self._sent
            number = 0 if self._sent is None else self._number
            floors = (-_INFINITE, 0.0) if self.falls else (self._stored.amount, self._stored.queries)
            pace = "" if self.own_pace is None or not number else " ".join(map(repr, self.own_pace))
            return (number, repr(sent.amount), sent.queries, *floors, self.most, self.seconds, pace, _LONG)

    def take(self, reply: Any) -> None:
        """Take what the store answered. Raises ValueError or TypeError for what is no answer of it."""
        amount, queries = (float(one) for one in reply[:2])
        pace = tuple(map(float, reply[2].split()))
        with self._turn:
            sent = _Sum() if self._sent is None else self._sent
            self._others += max(0.0, queries - self._stored.queries - sent.queries)
            self._stored, self._sent = _Sum(amount, queries), None
            self.pace = (pace[0], pace[1]) if len(pace) == 2 else None


class Ledger:
    """What policies have spent, shared by the replicas of a service through a store: Redis or Valkey.

    Args:
        url: of the store: `redis://[[name]:password@]host[:port][/number]`, or `rediss://` for TLS.
        replica: name of this replica in the store; by default the host's.

    Raises ValueError for what is no such address, ImportError without the extra `ledger`.
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
                socket_timeout=_PATIENCE,
                socket_connect_timeout=_PATIENCE,
                retry=retrying[0].Retry(retrying[1].NoBackoff(), 0),
            )
        except (ValueError, redis.RedisError):
            raise ValueError(f"{self.place}: {_FORM}") from None
        plain = re.sub(r"[^\w.-]", "_", replica or socket.gethostname())[:64]
        self._process = f"{plain}:{uuid.uuid4().hex[:12]}"
        self._pages: dict[tuple[str, str, float], Page] = {}
        self._turn, self._wake, self._ended = threading.Lock(), threading.Event(), False
        self._thread: threading.Thread | None = None
        self.down_since: float | None = None
        """Since when the store does not answer, in seconds since 1970; None if it does."""
        self.has_answered = False
        """Whether the store has ever answered."""

    def check(self) -> None:
        """Ask the store once. Raises ValueError if it refuses the password or the rights; not if it is away."""
        with suppress(*(kind for kind in self._errors if kind is not ValueError)):
            try:
                self._client.ping()
            except self._refusals as problem:
                raise ValueError(f"{self.place} refuses: {type(problem).__name__}: check the password") from None

    def page(self, name: str, every: str, around: tuple[float, float], **more: Any) -> Page:
        """The total of a policy in a period.

        Args:
            name: of the policy, or of who else has a total.
            every: "minute", "day", "week" or "month"; "query" for the balance of budgets per query.
            around: the start and the end of the period, in seconds since 1970; zeros for a balance.
            more: `most` and `falls` of the page.
        """
        start, end = around
        with self._turn:
            if (name, every, start) not in self._pages:
                for key in [key for key in self._pages if key[:2] == (name, every) and key[2] < start]:
                    if not self._pages[key].waiting:
                        del self._pages[key]
                stem = f"rcjax:{{{_NO_NAME.sub('_', name)}}}"  # in braces: its keys have one place in a cluster
                total = f"{stem}:balance" if every == "query" else f"{stem}:{every}:{_label(start)}"
                seconds = _LONG if every == "query" else int(end - start) + _LATE
                keys = total, f"{total}:from:{self._process}", f"{stem}:pace:{every}"
                self._pages[name, every, start] = Page(keys, seconds, **more)
            return self._pages[name, every, start]

    def start(self) -> None:
        """Ask the store now, unless it does not answer, and from now on again and again."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rcjax-ledger", daemon=True)
            self._thread.start()
        if self.down_since is None:
            self.sync()

    def wake(self) -> None:
        """Have the store told of payments soon."""
        if not self._wake.is_set():
            self._wake.set()

    @property
    def waiting(self) -> int:
        """How many payments the store is not known to have."""
        return sum(page.waiting for page in [*self._pages.values()])

    def sync(self) -> bool:
        """Tell the store all that waits, and hear what others have spent; whether it answered."""
        with self._turn:
            pages = [*self._pages.values()]
            try:
                pipe = self._client.pipeline(transaction=False)
                for page in pages:
                    pipe.eval(_SCRIPT, len(page.keys), *page.keys, *page.arguments())
                for page, reply in zip(pages, pipe.execute(), strict=True):
                    page.take(reply)
            except self._errors as problem:
                self._is_away(type(problem).__name__)
                return False
            self._is_there()
            return True

    def close(self) -> None:
        """Tell the store what still waits, and end; a warning says what it could not be told."""
        self._ended = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(2 * _PATIENCE)
        if self.waiting and not self.sync():
            what = f"the ledger at {self.place} was not told of {count(self.waiting, 'payment')}"
            warnings.warn(f"{what}: their money counts as left", CascadeWarning, stacklevel=2)
        self._client.close()

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait(_LOOK)
            self._wake.clear()
            if not self._ended:
                self.sync()
                time.sleep(_PAUSE if self.down_since is None else _LOOK)

    def _is_away(self, kind: str) -> None:
        if self.down_since is None:
            self.down_since = time.time()
            since = datetime.fromtimestamp(self.down_since, UTC)
            what = f"the ledger at {self.place} does not answer since {since:%Y-%m-%d %H:%M:%S UTC} ({kind})"
            rest = "answers go on, and what they cost is counted later"
            warnings.warn(visible(f"{what}: {rest}"), CascadeWarning, stacklevel=2)

    def _is_there(self) -> None:
        self.has_answered = True
        if self.down_since is not None:
            what = f"the ledger at {self.place} answers again, after {time.time() - self.down_since:.0f} s"
            self.down_since = None
            warnings.warn(f"{what}: all that was spent meanwhile is counted", CascadeWarning, stacklevel=2)


_NO_NAME = re.compile(r"[^\w.:/@+-]")

_FORM = "give redis://host:6379, or rediss:// for TLS, with name:password@ before the host if the store wants that"


def place_of(url: str) -> str:
    """The address of a store without its password, for messages. Raises ValueError for what is none.

    >>> place_of("redis://:secret@ledger:6379/1")
    'redis://ledger:6379/1'
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
        parts = None
    if parts is None or parts.scheme not in ("redis", "rediss") or not host:
        raise ValueError(f"the ledger's address is none: {_FORM}")
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path}"


def _label(time: float) -> str:
    """When a period begins, in a key: its day, with the time of what begins within one."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M}".removesuffix("T00:00")
