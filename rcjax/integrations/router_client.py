"""The models of a LiteLLM router as an endpoint: requests of OpenAI's client, which the router answers in this process.

What a reply cost by the router's own prices stands in its `usage`, as `cost`, where the router knows a price.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from copy import deepcopy
from typing import Any

from rcjax._base.extras import required
from rcjax.serving.endpoint import HTTP, DirectClient

WITH: ContextVar[Mapping[str, Any] | None] = ContextVar("WITH", default=None)
"""What the router is told with each request of a task, such as `metadata`."""


#: A router's own answer to a failure is to ask another model, whose confidences mean something else.
_ALONE = {"disable_fallbacks": True}


class RouterClient(DirectClient):
    """A client of a router's models."""

    tells_cost = True


def router_client(router: Callable[[], Any]) -> RouterClient:
    """A client of the models of a router.

    Args:
        router: gives the `litellm.Router` of the moment.
    """
    http = HTTP.AsyncClient(transport=_Routed(router))
    return RouterClient(api_key="none", base_url="http://router.invalid/v1", http_client=http, max_retries=0)


class _Routed(HTTP.AsyncBaseTransport):
    """Has a router answer what a client would send."""

    def __init__(self, router: Callable[[], Any]) -> None:
        self._router = router

    async def handle_async_request(self, request: Any) -> Any:
        asked = json.loads(await request.aread())
        try:
            extra = deepcopy(dict(WITH.get() or {}))  # to which a router adds what is of one request alone
            answer = await self._router().acompletion(**{**asked, **extra, **_ALONE})
        except Exception as problem:  # whatever it is, it is a reply of the router's
            return _failure(problem)
        if not asked.get("stream"):
            cost = _reported_cost(getattr(answer, "_hidden_params", None) or {})
            return HTTP.Response(200, content=_encoded(_priced(answer.model_dump(), cost)))
        return HTTP.Response(200, stream=_Events(answer, asked["messages"]))


class _Events(HTTP.AsyncByteStream):
    """A router's stream as events."""

    def __init__(self, answer: Any, messages: Any) -> None:
        self._answer, self._messages = answer, messages
        self._chunks: list[Any] = []

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._answer:
                self._chunks.append(chunk)
                document = chunk.model_dump()
                if document.get("usage"):
                    document = _priced(document, self._cost())
                yield b"data: " + _encoded(document) + b"\n\n"
        except Exception as problem:
            yield b"data: " + _encoded({"error": _error(problem)}) + b"\n\n"
            return
        yield b"data: [DONE]\n\n"

    def _cost(self) -> float | None:
        """What the router's own log will say that the whole of the chunks cost; None if it cannot be reckoned."""
        with suppress(Exception):  # whose log it is; it must not end an answer
            whole = required("litellm", extra="run").stream_chunk_builder(self._chunks, messages=self._messages)
            return _reported_cost({"response_cost": self._answer.logging_obj._response_cost_calculator(result=whole)})
        return None

    async def aclose(self) -> None:
        with suppress(Exception):  # as not every stream of a router can be closed
            await self._answer.aclose()


def _reported_cost(hidden: Mapping[str, Any]) -> float | None:
    """What a router says beside an answer that it cost: 0 is a model without a price, unless it is from the cache.

    >>> [_reported_cost(hidden) for hidden in ({"response_cost": 2e-5}, {"response_cost": 0.0}, {"cache_hit": True})]
    [2e-05, None, 0.0]
    """
    if hidden.get("cache_hit") is True:
        return 0.0
    cost = hidden.get("response_cost")
    return float(cost) if isinstance(cost, int | float) and cost > 0 else None


def _priced(document: Mapping[str, Any], cost: float | None) -> dict[str, Any]:
    """A completion, or a chunk, whose usage tells this cost, or none."""
    usage = document.get("usage")
    if not isinstance(usage, Mapping):
        return {**document}
    counts = {name: value for name, value in usage.items() if name != "cost"}
    return {**document, "usage": counts if cost is None else {**counts, "cost": cost}}


def _encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, default=str).encode()


def _failure(problem: Exception) -> Any:
    """What a server sends where a router raises: its status, the word for it, and when to try again."""
    status = getattr(problem, "status_code", None)
    status = status if isinstance(status, int) and 400 <= status < 600 else 500
    return HTTP.Response(status, content=_encoded({"error": _error(problem)}), headers=_waiting(problem))


#: Errors of LiteLLM for which OpenAI has a word of its own.
_WORDS = {
    "ContentPolicyViolationError": "content_policy_violation",
    "ContextWindowExceededError": "context_length_exceeded",
    "RouterRateLimitError": "no_deployments_available",
}


def _error(problem: Exception) -> dict[str, Any]:
    """The error of a reply, without its text, which may quote what was asked."""
    name = type(problem).__name__
    code = _WORDS.get(name) or getattr(problem, "code", None)
    return {"message": name, "code": code if isinstance(code, str | int) else None}


def _waiting(problem: Exception) -> dict[str, str]:
    """The headers by which a server says when to try again, as far as an error of a router tells it."""
    cooldown = getattr(problem, "cooldown_time", None)
    if isinstance(cooldown, int | float):
        return {"retry-after": str(cooldown)}
    sources = [getattr(getattr(problem, "response", None), "headers", None)]
    sources.append(getattr(problem, "litellm_response_headers", None))
    names = ("retry-after", "retry-after-ms")
    return {name: str(headers[name]) for headers in sources if headers is not None for name in names if name in headers}
