"""Taking a request in: who may call, how many at once, how large and how slow it may be, who has left."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Receive

from rcjax.serving.gateway.api_errors import ApiError
from rcjax.serving.gateway.responder import Responder
from rcjax.serving.gateway.settings import RequestLimits


class ClientLeftError(Exception):
    """Nobody waits for the answer any more."""


class Capacity:
    """How many requests are worked on, and whether another one may come."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.busy = 0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """A place for a request. Raises ApiError (429) where all are taken."""
        if self.busy >= self._most:
            raise ApiError(429, "too many requests at once: try again", "too_many_requests", wait=1.0)
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1


def require_key(headers: Headers, keys: Sequence[str]) -> None:
    """Refuse a request without one of the keys; without any keys, everybody may call."""
    if not keys:
        return
    scheme, _, key = headers.get("authorization", "").partition(" ")
    offered = key.strip().encode("utf-8", "replace")
    matches = [hmac.compare_digest(offered, one.encode()) for one in keys]
    if scheme.lower() != "bearer" or not any(matches):
        raise ApiError(401, "no valid key: send Authorization: Bearer and the key of this service", "invalid_api_key")


async def read_body(receive: Receive, headers: Headers, limits: RequestLimits) -> bytes:
    """The body of a request. Raises ApiError where it is too large or too slow, ClientLeftError where it ends early."""
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > limits.body_bytes:
        raise _too_large(limits)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeftError
                part = message.get("body", b"")
                size += len(part)
                if size > limits.body_bytes:
                    raise _too_large(limits)
                parts.append(part)
                if not message.get("more_body"):
                    return b"".join(parts)
    except TimeoutError:
        raise ApiError(408, "the request did not come in time", "request_timed_out") from None


def _too_large(limits: RequestLimits) -> ApiError:
    return ApiError(413, f"the request is larger than {limits.body_bytes:,} bytes", "request_too_large")


async def unless_client_leaves(work: Coroutine[Any, Any, None], receive: Receive, responder: Responder) -> None:
    """Do the work of an answer, and stop it where its client leaves before it has it all: ClientLeftError."""
    task = asyncio.current_task()
    assert task is not None
    watching = asyncio.create_task(_stop_when_client_leaves(task, receive, responder))
    try:
        await work
    except asyncio.CancelledError:
        has_left = watching.done() and not watching.cancelled() and watching.result()
        if has_left and not task.uncancel():  # nobody else has cancelled it
            raise ClientLeftError from None
        raise
    finally:
        watching.cancel()


async def _stop_when_client_leaves(task: asyncio.Task[Any], receive: Receive, responder: Responder) -> bool:
    """Cancel a task, and give True, where the client leaves before the answer is complete; else False."""
    while (await receive())["type"] != "http.disconnect":
        pass
    return not responder.complete and task.cancel()
