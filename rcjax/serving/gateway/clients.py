"""Clients of the gateway: their keys, their limits, their spending, and the errors that answer their requests.

Errors have the form and the status codes of OpenAI's interface, whose clients retry on 408, 409, 429 and from 500 on.
They quote no headers, no prompts, and no text of a server.

A file of clients has a table for each client:

    ["team-a"]
    sha256 = "5994…"                # hash of its key, by rcjax key team-a
    requests = 600                  # per minute
    max_concurrent = 16             # per worker
    money = "50/month"              # or a day, a week
    policies = ["support"]          # policies that it may name; by default all
    models = ["large"]              # models of models.toml that it may name; by default no model
    metrics = true                  # access to /metrics; by default none
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
import secrets
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from starlette.datastructures import Headers

from rcjax._base.codec import Between, Reads, Record, read_table, read_value
from rcjax._base.files import lock_folder_of, write_atomically
from rcjax.policy.ladder import Period, split_per_period
from rcjax.serving.billing import BudgetSpentError, SpendingUnknownError, covers, format_minute, reserving
from rcjax.serving.failures import NO_CREDIT, Failure, describe_fault
from rcjax.serving.totals import Total, TotalStore


@dataclass(eq=False)
class ApiError(Exception):
    """An error that answers a request."""

    status: int
    """HTTP status."""
    message: str
    """One line for people."""
    code: str | None = None
    """One word for programs."""
    param: str | None = None
    """The field with the fault."""
    retry_after: float | None = None
    """Seconds of back-off before a retry."""
    no_retry: bool = False
    """Whether clients should not retry, whatever the status."""
    counted_as: str | None = None
    """The reason in the figures; None if it is the code."""

    def __str__(self) -> str:
        return self.message

    @property
    def reason(self) -> str:
        """The reason in the figures, from the gateway's own short list, never an endpoint's word."""
        return self.counted_as or self.code or "error"

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the error: the back-off, and whether to retry, which OpenAI's clients obey."""
        retry_after = {} if self.retry_after is None else {"retry-after": str(max(1, math.ceil(self.retry_after)))}
        return retry_after | ({"x-should-retry": "false"} if self.no_retry else {})

    def to_json(self) -> dict[str, Any]:
        """Return the body of the error.

        >>> [ApiError(status, "no").to_json()["error"]["type"] for status in (404, 429, 503)]
        ['invalid_request_error', 'rate_limit_error', 'server_error']
        """
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = "rate_limit_error" if self.status == 429 else kind  # as compatible servers; OpenAI: requests or tokens
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def invalid_field(field: str, problem: str, code: str = "invalid_value") -> ApiError:
    """Make the error of a field; `problem` is a predicate, such as "must be a number"."""
    return ApiError(400, f"{field} {problem}", code, field)


def money_error(problem: BudgetSpentError | SpendingUnknownError) -> ApiError:
    """Make the error of a request that the money of its policy or client does not cover, or may not cover."""
    if isinstance(problem, SpendingUnknownError):
        return ApiError(503, str(problem), "spending_unknown", retry_after=1.0)
    reason = "budget_spent" if problem.client is None else "client_limit"
    if problem.end is None:
        return ApiError(429, str(problem), "too_many_requests", retry_after=1.0, counted_as=reason)
    return ApiError(429, str(problem), reason, retry_after=problem.end - time.time(), no_retry=True)


#: An endpoint's statuses for a fault of the gateway: its keys, credit or model names.
_GATEWAY_FAULTS = (401, 402, 403, 404)


def upstream_error(failure: Failure | None, errors: Sequence[str]) -> ApiError:
    """Make the error of a request that no model answered, with the endpoint's code if there is one.

    A fault of the gateway's settings has a code of the gateway: a client would take an endpoint's `invalid_api_key` for
    a fault of the client's own key.

    Args:
        failure: the last failure; None if no model could answer in time.
        errors: model and error of each failed call, in words.
    """
    problem = f"no model answered: {'; '.join(errors)}"
    if failure is None:
        return ApiError(504, "no model could answer in time", "deadline_exceeded")
    if failure.status == 402 or failure.code in NO_CREDIT:
        return ApiError(502, problem, "upstream_out_of_credit", no_retry=True)
    if failure.status in _GATEWAY_FAULTS:
        return ApiError(502, problem, "upstream_failed", no_retry=True)
    status, reason, retry_after = 502, "upstream_failed", failure.retry_after
    if failure.is_refusal:
        status, reason, retry_after = failure.status or 400, "upstream_refused", None
    elif failure.status == 429:
        status, reason, retry_after = 429, "upstream_rate_limited", failure.retry_after or 1.0
    elif failure.timed_out:
        status, reason, retry_after = 504, "upstream_timed_out", None
    return ApiError(status, problem, failure.code or reason, retry_after=retry_after, counted_as=reason)


def log_fault(problem: Exception, query: str) -> ApiError:
    """Log an internal fault without its message, which may quote a prompt, and return the client's error."""
    traceback = problem if os.environ.get("RCJAX_TRACEBACK") else None  # it shows the message, too
    logger = logging.getLogger("rcjax.serving")
    logger.error("query %s failed within rcjax: %s", query, describe_fault(problem), exc_info=traceback)
    return ApiError(500, "rcjax itself failed: its standard error says where", "internal_error")


_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

_Count = Annotated[int, Between(1, 10**9)]


def _read_digest(text: str, where: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", text):  # the text may be the key itself, so it is not quoted
        raise ValueError(f"{where}: must be the SHA-256 of a key, 64 hexadecimal digits: rcjax key makes both")
    return text


def _read_period(text: Any, where: str) -> Period:
    """Read money for a period from a text.

    >>> _read_period("5/month", "money")
    Period(money=5.0, every='month')
    """
    if isinstance(text, Period):  # a client made in Python
        return text
    amount, every = (split_per_period(text) if isinstance(text, str) else None) or ("", "")
    try:
        return Period(float(amount), every)
    except ValueError:
        raise ValueError(f'{where}: give money and a period, such as "5/month", or /week or /day') from None


_DEFAULT_PERIOD = Period(1.0, "month")  # period for the money of a client without a limit


@dataclass(frozen=True)
class Client(Record):
    """A client of the gateway, with its permissions and limits."""

    sha256: Annotated[str, _read_digest]
    """SHA-256 of the client's key, in hexadecimal."""
    requests: _Count | None = None
    """Limit on requests in a minute of the clock; None without one."""
    max_concurrent: _Count | None = None
    """Limit on requests admitted at the same time, per worker; None without one."""
    money: Annotated[Period, Reads(_read_period)] | None = None
    """Limit on the money for its requests in a day, a week or a month; None without one."""
    policies: tuple[str, ...] | None = None
    """Names of the policies that the client may call; None for all policies."""
    models: tuple[str, ...] = ()
    """Names of the models of `models.toml` that the client may call."""
    metrics: bool = False
    """Whether the client may see `/metrics`, with the spending of others."""
    name: str | None = None
    """The client's name; None if clients have no names."""

    @property
    def period(self) -> Period:
        """The period in which the client's money is counted: a month if the money has no limit."""
        return self.money or _DEFAULT_PERIOD

    def may_call(self, model: str, policies: Container[str]) -> bool:
        """Return whether the client may call a policy or model of this name."""
        if model in policies:
            return self.policies is None or model in self.policies
        return model in self.models

    def scale(self, share: float) -> Client:
        """Return the client with a replica's share of its money and of its requests a minute (at least one request)."""
        money = None if self.money is None else replace(self.money, money=self.money.money * share)
        requests = None if self.requests is None else max(1, int(round(self.requests * share, 6)))
        return replace(self, money=money, requests=requests)


_FIELDS = ("sha256", "requests", "max_concurrent", "money", "policies", "models", "metrics")


@dataclass(frozen=True)
class KeyRing:
    """The clients of a service, by the SHA-256 of their keys.

    Args:
        clients: the clients by the hash of their key.
        anonymous: the client for requests without a key; None if a key is needed.
    """

    clients: Mapping[str, Client]
    anonymous: Client | None = None

    @classmethod
    def of_keys(cls, keys: Iterable[str], models: Iterable[str]) -> KeyRing:
        """Make a client without a name or limits for each key; without keys, an anonymous client.

        All of them may call the models.
        """
        listed = tuple(models)
        clients = {hash_key(key): Client(hash_key(key), models=listed, metrics=True) for key in keys}
        return cls(clients, None if clients else Client("0" * 64, models=listed, metrics=True))

    @classmethod
    def read(
        cls, path: str | os.PathLike[str], policies: Container[str], models: Container[str], share: float = 1.0
    ) -> KeyRing:
        """Read the clients of a file. Raises ValueError, which names the file and the client, and OSError.

        Args:
            path: path of the file.
            policies, models: names of the service's policies and models.
            share: the replica's share of the clients' money and requests.
        """
        where, clients = Path(path).name, dict[str, Client]()
        for name, entry in _read_tables(path).items():
            place = f"{where}, client {name}"
            if not _NAME.fullmatch(name):
                raise ValueError(f"{where}: {_describe_invalid_name(name)}")
            unknown = [key for key in entry if key not in _FIELDS]
            if unknown:
                raise ValueError(f"{place}: {unknown[0]} is not a setting of a client: there are {', '.join(_FIELDS)}")
            client: Client = read_value(Client, {**entry, "name": name}, place)
            for kind, named, known in (
                ("policies", client.policies or (), policies),
                ("models", client.models, models),
            ):
                missing = [name for name in named if name not in known]
                if missing:
                    raise ValueError(f"{place}.{kind}: there is no {missing[0]}: correct the name")
            if client.sha256 in clients:
                raise ValueError(
                    f"{place}: has the key of {clients[client.sha256].name}: give each client a key of its own"
                )
            clients[client.sha256] = client.scale(share)
        if not clients:
            raise ValueError(f"{where}: no clients: rcjax key NAME --keys {where} adds one")
        return cls(clients)

    @property
    def named(self) -> list[Client]:
        """Clients with names."""
        return [client for client in self.clients.values() if client.name]

    def by_name(self, name: str | None) -> Client | None:
        """Return the client of a name; None if no client has the name."""
        return None if name is None else self._clients_by_name.get(name)

    @cached_property
    def _clients_by_name(self) -> dict[str | None, Client]:
        return {client.name: client for client in self.named}

    def client_of(self, headers: Headers) -> Client:
        """Return the client whose key a request has. Raises ApiError for a missing or unknown key."""
        if self.anonymous is not None:
            return self.anonymous
        scheme, _, key = headers.get("authorization", "").partition(" ")
        client = self.clients.get(hash_key(key.strip())) if scheme.lower() == "bearer" else None
        if client is None:
            message = "no valid key: send the header Authorization: Bearer KEY, with a key of this service"
            raise ApiError(401, message, "invalid_api_key")
        return client


def _describe_invalid_name(name: str) -> str:
    return f"{name!r} is not a name of a client: give letters, digits and . _ - (at most 64)"


def hash_key(key: str) -> str:
    """Return the SHA-256 of a key: the time that a comparison of hashes takes reveals nothing about keys.

    >>> hash_key("secret")[:8]
    '2bb80d53'
    """
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def _read_tables(path: str | os.PathLike[str]) -> dict[str, Any]:
    _require_toml(path)
    tables: dict[str, Any] = read_table(path)
    for name, entry in tables.items():
        if not isinstance(entry, Mapping):
            raise ValueError(
                f"{Path(path).name}: {name} is not a table: write a table for each client, such as [team-a]"
            )
    return tables


def _require_toml(path: str | os.PathLike[str]) -> None:
    if Path(path).suffix.lower() != ".toml":
        raise ValueError(f"{Path(path).name}: a file of keys is TOML: give a name that ends in .toml")


def add_key(name: str, path: str | os.PathLike[str]) -> str:
    """Add a client to a file of keys, and return its key; the file has only the hash. A missing file is made.

    Raises ValueError for a file that is not TOML, an invalid name, or a name that the file has already, and OSError.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(_describe_invalid_name(name))
    _require_toml(path)
    path = Path(path)
    with lock_folder_of(path):
        if path.exists() and name in _read_tables(path):
            raise ValueError(f"{path.name} has a client {name} already: remove its table, or choose another name")
        before = path.read_text("utf-8") if path.exists() else ""
        key = f"rcjax-{secrets.token_urlsafe(32)}"
        table = f'["{name}"]\nsha256 = "{hash_key(key)}"\n'
        write_atomically(path, f"{before.rstrip()}\n\n{table}" if before.strip() else table, private=True)
    return key


_MINUTE = 60.0  # seconds


@dataclass(slots=True)
class _ClientState:
    """The requests of a client at this worker."""

    admitted: int = 0
    """Number of requests that have been admitted and have not ended."""
    reserved: dict[object, float] = field(default_factory=dict)
    """Money put aside for each of the admitted requests."""


_RESERVATION: ContextVar[object] = ContextVar("reservation", default=None)
"""The key of the running request's reservation; the tasks of the request inherit it."""


class ClientLimits:
    """Enforces the limits of clients, and counts the requests and money of each name in totals of all workers."""

    def __init__(self, totals: TotalStore) -> None:
        self._totals = totals
        self._by_client: dict[str, _ClientState] = {}

    @contextmanager
    def admit(self, client: Client) -> Iterator[None]:
        """Admit a request of a client, and count it until it ends. Raises ApiError 429 beyond the client's limits."""
        if client.name is None:
            yield
            return
        now = time.time()
        state = self._by_client.setdefault(client.name, _ClientState())
        if client.max_concurrent is not None and state.admitted >= client.max_concurrent:
            problem = f"{client.name} may have {client.max_concurrent} requests in progress at once: try again"
            raise ApiError(429, problem, "too_many_requests", retry_after=1.0, counted_as="client_limit")
        if client.requests is not None:
            self._count_request(client.name, client.requests, now)
        state.admitted += 1
        try:
            yield
        finally:
            state.admitted -= 1

    @contextmanager
    def reserve(self, client: Client, cost: float) -> Iterator[None]:
        """Put aside the dollars that a request may cost its client, if the client's money is limited.

        Within a request, as for a fallback, this replaces what is left of the request's reservation.
        Raises BudgetSpentError if less is left, and SpendingUnknownError while the client's spending is unknown.
        """
        if client.name is None or client.money is None:
            yield
            return
        now = time.time()
        total = self._total(client, now)
        if total.is_unknown:
            raise SpendingUnknownError(client.name)
        state = self._by_client.setdefault(client.name, _ClientState())
        left = client.money.money - total.last_read().money
        if _RESERVATION.get() in state.reserved:
            state.reserved[_RESERVATION.get()] = 0.0
        if not covers(left, cost):
            raise BudgetSpentError(client.money, client.money.bounds(now)[1], client.name)
        if not covers(left - math.fsum(state.reserved.values()), cost):
            raise BudgetSpentError(client.money, None, client.name)
        with reserving(state.reserved, cost) as key:
            token = _RESERVATION.set(key)
            try:
                yield
            finally:
                _RESERVATION.reset(token)

    def pay(self, client: Client, cost: float) -> None:
        """Count the cost of a call for a client, and subtract it from the reservation of the call's request."""
        if client.name is not None:
            self._total(client, time.time()).add(cost, 0)
            reserved, key = self._by_client.setdefault(client.name, _ClientState()).reserved, _RESERVATION.get()
            if key in reserved:
                reserved[key] = max(0.0, reserved[key] - cost)

    def track(self, clients: Iterable[Client]) -> None:
        """Begin to read the totals of clients that may not have called yet."""
        now = time.time()
        for client in clients:
            self._total(client, now)
            if client.requests is not None:
                self._minute_total(client.name or "", now)

    def _total(self, client: Client, now: float) -> Total:
        return self._totals.total(_total_key(client.name or ""), client.period.every, client.period.bounds(now))

    def _minute_total(self, name: str, now: float) -> tuple[Total, float]:
        """Return (the total of a client's requests in this minute, the end of the minute)."""
        end = now - now % _MINUTE + _MINUTE
        return self._totals.total(_total_key(name), "minute", (end - _MINUTE, end)), end

    def _count_request(self, name: str, limit: int, now: float) -> None:
        """Count a request in its minute, together with other workers. Raises ApiError 429 beyond the limit."""
        total, end = self._minute_total(name, now)
        if total.last_read().queries >= limit:
            problem = f"{name} may send {limit:,} requests a minute: the next one begins {format_minute(end)}"
            raise ApiError(429, problem, "client_limit", retry_after=end - now)
        total.add(0.0, 1)


def _total_key(name: str) -> str:
    return f"client {name}"
