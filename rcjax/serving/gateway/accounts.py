"""What each client has used: its requests of this minute, those at once, its money of this period; and its limits."""

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

_USUAL = Period(1.0, "month")  # in which a client's requests are counted that has no limit


class Used(NamedTuple):
    """What a client has used, for figures and the page."""

    client: Client
    every: str
    """The period of its money; a month without a limit."""
    money: float
    requests: int
    """In that period."""
    at_once: int
    """Of this worker."""


@dataclass(slots=True)
class _Open:
    """What a client has under way."""

    requests: int = 0
    held: dict[object, float] = field(default_factory=dict)
    """Money that is put aside, by request."""
    seen: dict[tuple[str, float], int] = field(default_factory=dict)
    """Requests of this worker by kind and end of a period."""


class Accounts:
    """The accounts of all clients, by name.

    Args:
        totals: that are shared with other workers.
    """

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._open: dict[str, _Open] = {}

    @contextmanager
    def admitted(self, client: Client) -> Iterator[None]:
        """Count a request of a client, as long as it is worked on. Raises ApiError 429 where that is one too many."""
        if client.name is None:
            yield
            return
        now, mine = time.time(), self._open.setdefault(client.name, _Open())
        if client.at_once is not None and mine.requests >= client.at_once:
            what = f"{client.name} may have {client.at_once} requests at once: try again"
            raise ApiError(429, what, "too_many_requests", wait=1.0)
        start = now - now % _MINUTE
        end = start + _MINUTE
        if client.requests is not None and self._requests(client.name, "minute", (start, end)) >= client.requests:
            what = f"{client.name} may send {client.requests:,} requests a minute: the next one begins {_when(end)}"
            raise ApiError(429, what, "client_limit", wait=end - now)
        for every, around in (("minute", (start, end)), self._period(client, now)):
            self._totals.page(_key(client.name), every, around).add(0.0, 1)
            counts = mine.seen
            counts[every, around[1]] = counts.get((every, around[1]), 0) + 1
        for key in [key for key in mine.seen if key[1] <= now - 2 * _MINUTE]:
            del mine.seen[key]
        mine.requests += 1
        try:
            yield
        finally:
            mine.requests -= 1

    @contextmanager
    def holding(self, client: Client, cost: float) -> Iterator[None]:
        """Put aside what a request may cost its client. Raises ApiError 429 where less than that is left."""
        if client.name is None or client.money is None:
            yield
            return
        now, mine = time.time(), self._open.setdefault(client.name, _Open())
        every, around = self._period(client, now)
        left = client.money.money - self._page(client, now).told()[0] - math.fsum(mine.held.values())
        if cost > left or left <= 0:
            what = f"what is left to {client.name} of {client.money} does not cover this request"
            message = f"{what}: the next {every} begins {_when(around[1])}"
            raise ApiError(429, message, "client_limit", wait=around[1] - now, lasting=True)
        hold = object()
        mine.held[hold] = cost
        try:
            yield
        finally:
            del mine.held[hold]

    def pay(self, client: Client, cost: float) -> None:
        """Count what a call for a client cost."""
        if client.name is not None:
            self._page(client, time.time()).add(cost, 0)

    def used(self, clients: Iterable[Client]) -> list[Used]:
        """What each of some clients has used in its period."""
        now, found = time.time(), []
        for client in clients:
            every, around = self._period(client, now)
            if client.name is not None:
                requests, money = self._requests(client.name, every, around), self._page(client, now).told()[0]
                found.append(Used(client, every, money, requests, self._open.get(client.name, _Open()).requests))
        return found

    def watch(self, clients: Iterable[Client]) -> None:
        """Have the totals of clients looked at from now on, also of those that have not called yet."""
        now = time.time()
        for client in clients:
            self._page(client, now)

    def _page(self, client: Client, now: float) -> Total:
        every, around = self._period(client, now)
        return self._totals.page(_key(client.name or ""), every, around)

    def _period(self, client: Client, now: float) -> tuple[str, tuple[float, float]]:
        period = client.money or _USUAL
        return period.every, period.around(now)

    def _requests(self, name: str, every: str, around: tuple[float, float]) -> int:
        """Of all workers."""
        own = self._open.get(name, _Open()).seen.get((every, around[1]), 0)
        return own + int(self._totals.page(_key(name), every, around).told()[1])


def _key(name: str) -> str:
    return f"client {name}"


def _when(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")
