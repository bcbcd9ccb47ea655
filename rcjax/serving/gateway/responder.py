"""Sends one answer over ASGI: a JSON document, or events one by one, and an error in the middle of either."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.types import Send

from rcjax.serving.gateway.api_errors import ApiError
from rcjax.serving.gateway.chat_request import ChatRequest, read_request

STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


class Responder:
    """The answer to one request, in the words of chat completions.

    It is `begun` once something was sent, and `complete` once all was.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = self.complete = False
        self.status: int | None = None

    def read(self, body: bytes) -> ChatRequest:
        """The request in a body. Raises ApiError for what cannot be one."""
        return read_request(body)

    async def document(self, document: Mapping[str, Any], headers: Mapping[str, str], status: int = 200) -> None:
        """Send all of an answer."""
        body = encoded(document)
        await self._start(status, {"content-type": "application/json", "content-length": str(len(body)), **headers})
        await self._body(body, more=False)

    async def event(self, document: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """Send an event; the headers with the first."""
        if not self.begun:
            await self._start(200, {**STREAM, **headers})
        await self._body(b"data: " + encoded(document) + b"\n\n", more=True)

    async def done(self) -> None:
        """End a stream."""
        if not self.complete:
            await self._body(b"data: [DONE]\n\n", more=False)

    async def error(self, problem: ApiError, headers: Mapping[str, str] | None = None) -> None:
        """Send an error in place of an answer, or of the rest of it."""
        if self.complete:
            return
        if self.begun:
            await self._body(b"data: " + encoded(problem.to_json()) + b"\n\n", more=False)
        else:
            await self.document(problem.to_json(), {**problem.headers, **(headers or {})}, problem.status)

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.begun, self.status = True, status
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def _body(self, body: bytes, *, more: bool) -> None:
        self.complete = not more
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def encoded(document: Mapping[str, Any]) -> bytes:
    """A document as JSON in ASCII: it may hold half a character, and what some clients take for the end of a line.

    Raises ApiError for a model's answer that is nested too deep.
    """
    try:
        try:
            text = _JSON.encode(document)
        except ValueError:  # a number of a model's that JSON has not
            text = _JSON.encode(_finite(document))
    except RecursionError:
        raise ApiError(502, "malformed answer: nested too deep", "upstream_failed") from None
    return text.encode()


_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    """The same with null for what is no number, for infinities, and for whole numbers of thousands of digits."""
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    odd = isinstance(value, float) and not math.isfinite(value)
    return None if odd or (isinstance(value, int) and value.bit_length() > _MOST_BITS) else value


_MOST_BITS = 4096
