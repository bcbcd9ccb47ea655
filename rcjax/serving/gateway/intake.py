"""Intake of a worker: limits on the bodies of requests that arrive at once, and on the bytes held for all requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from starlette.datastructures import Headers
from starlette.types import Receive

from rcjax.serving.gateway.chat_request import _LONGEST_NAME, FIELDS, ApiError, ChatRequest, invalid_field
from rcjax.serving.openai_client import RESERVE_BYTES
from rcjax.serving.pace import TOKEN_LIMITS, token_limit


def require_permitted(request: ChatRequest, fields: Container[str], tokens: int | None) -> None:
    """Refuse a request with a field that clients may not send, or for more tokens than its answers may have.

    Args:
        request: the request.
        fields: fields that may be sent besides `FIELDS`.
        tokens: limit on the tokens of all answers to the request; None without one.

    Raises ApiError.
    """
    for name, value in request.fields.items():
        if value is not None and name not in FIELDS and name not in fields:
            problem = "is no field that this service passes on: its operator can permit it (--allow-field)"
            raise invalid_field(name if len(name) <= _LONGEST_NAME else "a field", problem, "unsupported_parameter")
    if tokens is None:
        return
    most = token_limit(request.fields)
    for name in TOKEN_LIMITS:
        if name in request.fields and most is not None and most > tokens:
            raise invalid_field(
                name, f"must be at most {tokens // request.samples:,}, as all answers may have {tokens:,} tokens"
            )
    if most is None and request.samples > 1:
        raise invalid_field("n", f"goes with max_tokens, as all answers may have {tokens:,} tokens together")


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits on the size, number and time of requests."""

    deadline: float = 120.0
    """Seconds for a request, from its head to the end of the models' calls."""
    timeout: float = 60.0
    """Seconds for one attempt at a model."""
    retries: int = 2
    """Number of retries of an attempt."""
    concurrency: int = 256
    """Number of requests in progress at one worker; more are refused with 429."""
    body_bytes: int = 4_000_000
    """Bytes of the body of a request."""
    held_bytes: int = 32_000_000
    """Bytes of all requests in progress at one worker, and of the replies to them; more are refused."""
    body_seconds: float = 30.0
    """Seconds for the arrival of a request's body."""
    drain_seconds: float = 30.0
    """Seconds to drain requests in progress, after the signal to stop."""
    tokens: int | None = None
    """Tokens of all answers to a request; None without a limit."""
    fields: frozenset[str] = frozenset()
    """Fields that clients may send besides the sampling options."""


class ClientLeftError(Exception):
    """The client has disconnected: nobody waits for the answer."""


@dataclass(slots=True)
class _RequestBytes:
    """Bytes held for one request and the replies to it."""

    size: int = 0
    ended: bool = False
    dropped: bool = False
    """Whether the body was dropped to make room for other requests."""


class Intake:
    """The requests that a worker reads or works on.

    Arriving bodies have places of their own. If they are too many, or their bytes too many, the client with most of
    them loses its oldest one: a client that sends a byte now and then keeps nobody out.

    Args:
        limits: limits of the service.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._size = 0
        self._arriving: dict[asyncio.Timeout, tuple[str | None, _RequestBytes]] = {}

    @contextmanager
    def count_bytes(self) -> Iterator[_RequestBytes]:
        """Count the bytes of a request until its end."""
        held = _RequestBytes()
        token = RESERVE_BYTES.set(partial(self._reserve, held))
        try:
            yield held
        finally:
            RESERVE_BYTES.reset(token)
            self._size -= held.size
            held.ended = True

    def _reserve(self, held: _RequestBytes, size: int) -> bool:
        """Hold more bytes for a request and return whether there is room. Shadow calls after its end do not count."""
        if held.ended:
            return True
        if self._size + size > self._limits.held_bytes:
            return False
        held.size, self._size = held.size + size, self._size + size
        return True

    async def read(self, receive: Receive, headers: Headers, held: _RequestBytes, client: str | None = None) -> bytes:
        """Read the body of a request.

        Args:
            receive: ASGI's function for the parts of the body.
            headers: the request's headers.
            held: the record that the body's bytes are added to.
            client: the client's name; None if clients have no names.

        Raises ApiError if the body is too large or too slow, or if there is no room beside other requests, and
        ClientLeftError if the client disconnects.
        """
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._limits.body_bytes:
            raise self._too_large()
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self._limits.body_seconds) as timer:
                if len(self._arriving) >= self._limits.concurrency:
                    self._drop_oldest()
                self._arriving[timer] = client, held
                try:
                    while await self._part(receive, parts, held):
                        pass
                finally:
                    self._arriving.pop(timer, None)
        except TimeoutError:
            if held.dropped:
                problem = "too many requests come at once: try again"
                raise ApiError(429, problem, "too_many_requests", wait=1.0) from None
            raise ApiError(408, "the request did not come in time", "request_timed_out") from None
        return b"".join(parts)

    async def _part(self, receive: Receive, parts: list[bytes], held: _RequestBytes) -> bool:
        """Read a part of a body, and return whether there are more."""
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        part, before = message.get("body", b""), held.size
        if held.size + len(part) > self._limits.body_bytes:
            raise self._too_large()
        while not self._reserve(held, len(part)) and self._drop_oldest(held):
            pass
        if held.size < before + len(part):
            raise ApiError(429, "too many bytes of requests at once: try again", "too_many_requests", wait=1.0)
        parts.append(part)
        return bool(message.get("more_body"))

    def _drop_oldest(self, spared: _RequestBytes | None = None) -> bool:
        """Drop the oldest body of the client with most of them, never the spared one; return whether there was one."""
        arriving = {timer: client for timer, (client, held) in self._arriving.items() if held is not spared}
        if not arriving:
            return False
        client, _ = Counter(arriving.values()).most_common(1)[0]
        oldest = next(timer for timer, name in arriving.items() if name == client)
        _, held = self._arriving.pop(oldest)
        self._size, held.size, held.dropped = self._size - held.size, 0, True
        oldest.reschedule(asyncio.get_running_loop().time())
        return True

    def _too_large(self) -> ApiError:
        most = f"{self._limits.body_bytes:,} bytes"
        return ApiError(413, f"the request is larger than {most}", "request_too_large")
