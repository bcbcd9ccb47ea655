"""Accounts of clients: requests of this minute, requests in progress, and money of this period, with their limits."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from rcjax.policy.ladder import Period
from rcjax.serving.gateway.chat_request import ApiError
from rcjax.serving.gateway.keys import Client
from rcjax.serving.totals import Total, Totals

_MINUTE = 60.0  # seconds

_DEFAULT_PERIOD = Period(1.0, "month")  # period for the requests of a client without a limit on money


class ClientUsage(NamedTuple):
    """The usage of a client, for figures and the page."""

    client: Client
    every: str
    """The period, "day", "week" or "month": of the limit on money, or else a month."""
    money: float
    """Money spent in the period."""
    requests: int
    """Number of requests in the period."""
    at_once: int
    """Number of requests in progress, at this worker."""


@dataclass(slots=True)
class _ClientState:
    """The requests of a client at this worker."""

    in_progress: int = 0
    reserved: dict[object, float] = field(default_factory=dict)
    """Money put aside for each request in progress."""
    counts: dict[tuple[str, float], int] = field(default_factory=dict)
    """Number of requests by the kind and the end of a period."""


class Accounts:
    """The accounts of all clients, by name.

    Args:
        totals: totals shared with other workers.
    """

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._by_client: dict[str, _ClientState] = {}

    @contextmanager
    def admitted(self, client: Client) -> Iterator[None]:
        """Count a request of a client while it is in progress. Raises ApiError 429 beyond the client's limits."""
        if client.name is None:
            yield
            return
        now, state = time.time(), self._by_client.setdefault(client.name, _ClientState())
        if client.at_once is not None and state.in_progress >= client.at_once:
            problem = f"{client.name} may have {client.at_once} requests at once: try again"
            raise ApiError(429, problem, "too_many_requests", wait=1.0)
        start = now - now % _MINUTE
        end = start + _MINUTE
        if client.requests is not None and self._requests(client.name, "minute", (start, end)) >= client.requests:
            problem = f"{client.name} may send {client.requests:,} requests a minute: the next one begins {_utc(end)}"
            raise ApiError(429, problem, "client_limit", wait=end - now)
        for every, bounds in (("minute", (start, end)), self._period(client, now)):
            self._totals.total(_key(client.name), every, bounds).add(0.0, 1)
            state.counts[every, bounds[1]] = state.counts.get((every, bounds[1]), 0) + 1
        for key in [key for key in state.counts if key[1] <= now - 2 * _MINUTE]:
            del state.counts[key]
        state.in_progress += 1
        try:
            yield
        finally:
            state.in_progress -= 1

    @contextmanager
    def reserve(self, client: Client, cost: float) -> Iterator[None]:
        """Put aside the money that a request may cost its client. Raises ApiError 429 if less is left."""
        if client.name is None or client.money is None:
            yield
            return
        now, state = time.time(), self._by_client.setdefault(client.name, _ClientState())
        every, bounds = self._period(client, now)
        left = client.money.money - self._total(client, now).last_read()[0] - math.fsum(state.reserved.values())
        if cost > left or left <= 0:
            problem = f"what is left to {client.name} of {client.money} does not cover this request"
            message = f"{problem}: the next {every} begins {_utc(bounds[1])}"
            raise ApiError(429, message, "client_limit", wait=bounds[1] - now, lasting=True)
        key = object()
        state.reserved[key] = cost
        try:
            yield
        finally:
            del state.reserved[key]

    def pay(self, client: Client, cost: float) -> None:
        """Count the cost of a call for a client."""
        if client.name is not None:
            self._total(client, time.time()).add(cost, 0)

    def usage_of(self, clients: Iterable[Client]) -> list[ClientUsage]:
        """Return the usage of each client that has a name, in its period."""
        now, found = time.time(), []
        for client in clients:
            every, bounds = self._period(client, now)
            if client.name is not None:
                requests, money = self._requests(client.name, every, bounds), self._total(client, now).last_read()[0]
                at_once = self._by_client.get(client.name, _ClientState()).in_progress
                found.append(ClientUsage(client, every, money, requests, at_once))
        return found

    def watch(self, clients: Iterable[Client]) -> None:
        """Begin to read the totals of clients, even of clients that have not called yet."""
        now = time.time()
        for client in clients:
            self._total(client, now)

    def _total(self, client: Client, now: float) -> Total:
        every, bounds = self._period(client, now)
        return self._totals.total(_key(client.name or ""), every, bounds)

    def _period(self, client: Client, now: float) -> tuple[str, tuple[float, float]]:
        period = client.money or _DEFAULT_PERIOD
        return period.every, period.bounds(now)

    def _requests(self, name: str, every: str, bounds: tuple[float, float]) -> int:
        """Count the requests of a client in a period, at all workers."""
        here = self._by_client.get(name, _ClientState()).counts.get((every, bounds[1]), 0)
        return here + int(self._totals.total(_key(name), every, bounds).last_read()[1])


def _key(name: str) -> str:
    return f"client {name}"


def _utc(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")
