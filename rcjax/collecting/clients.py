"""Clients of models' endpoints for `rcjax collect`, which keep to what was told: no other host, no endless reply."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from rcjax.serving.clients import certificates
from rcjax.serving.endpoint import openai
from rcjax.serving.models_file import ModelSettings

__all__ = ["MOST_BYTES", "TooLongError", "open_client"]

MOST_BYTES = 64 * 2**20
"""Of a reply. With the 20 likeliest tokens beside each, an answer of 16,000 tokens has a third of it."""

#: HTTPX, or the successor that newer clients have.
_HTTP: Any = import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__)

_PACKED = 64  # a part of that, where a server packs what it sends, unasked: a byte may stand for a thousand

_CONNECTING = 0.9  # of the time for an attempt: a connection that is not made by then has cost nothing

#: What OpenAI's client sends along besides the key.
_OF_OPENAI = ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS")


class TooLongError(BaseException):
    """A reply is longer than is read; no Exception, as clients make a lost connection of every one."""


def open_client(settings: ModelSettings, timeout: float) -> openai.AsyncOpenAI:
    """A client of a model's endpoint, which does not send anything again by itself, and to nobody else.

    Raises ValueError where its key is not in the environment, or cannot be sent.
    """
    address, query = _parted(settings)
    hooks: Any = {"response": [_limit]}
    http = openai.DefaultAsyncHttpxClient(verify=certificates(), follow_redirects=False, event_hooks=hooks)
    with _environment(settings):
        return openai.AsyncOpenAI(
            api_key=settings.key(),
            base_url=address,
            default_query=query,
            default_headers={"Accept-Encoding": "identity"},
            timeout=openai.Timeout(timeout, connect=_CONNECTING * timeout),
            max_retries=0,
            http_client=http,
        )


def _parted(settings: ModelSettings) -> tuple[str | None, dict[str, object]]:
    """(the address of a model's endpoint without its query, its query)."""
    if settings.base_url is None:
        return None, {}
    parts = urlsplit(settings.base_url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    query: dict[str, object] = dict(pairs)
    if len(query) < len(pairs) or parts.fragment:
        what = "has a # in it" if parts.fragment else "has one name twice in its query"
        raise ValueError(f"model {settings.name}: base_url {what}, which no request can have: correct it")
    return urlunsplit(parts._replace(query="")), query


@contextmanager
def _environment(settings: ModelSettings) -> Iterator[None]:
    """Without what the environment has for OpenAI, where the endpoint is another one, while a client is made."""
    names = () if settings.base_url is None else _OF_OPENAI
    values = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(values)


async def _limit(response: Any) -> None:
    packed = response.headers.get("content-encoding", "identity") != "identity"
    response.stream = _Limited(response.stream, MOST_BYTES // _PACKED if packed else MOST_BYTES)


class _Limited(_HTTP.AsyncByteStream):
    """The bytes of a reply, as long as they are not too many."""

    def __init__(self, stream: Any, most: int) -> None:
        self._stream, self._most = stream, most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > self._most:
                raise TooLongError
            yield part

    async def aclose(self) -> None:
        """Close the connection, if something is left on it."""
        await self._stream.aclose()
