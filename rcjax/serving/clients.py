"""Clients of OpenAI-compatible endpoints: that of OpenAI, and one for programs that pass requests on."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from http.cookiejar import DefaultCookiePolicy
from importlib import import_module
from typing import Any

from rcjax._base.extras import how_to_install

try:
    import openai
    import openai.resources.chat
except ImportError:
    raise ImportError(f"running a cascade needs the client of OpenAI: {how_to_install('run')}") from None


RETRIES = "x-stainless-retry-count"  # the client's own header, which counts from 0

_SENT_AGAIN = RETRIES.encode()

_VARY = (_SENT_AGAIN, b"content-length")

#: HTTPX, or the successor that newer clients have.
HTTP: Any = import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__)

_MOST_CONNECTIONS = 10_000  # who passes requests on has a limit of its own


@cache
def certificates() -> Any:
    """Whom connections trust, for clients' `verify`: to read them takes longer than all else of opening a client."""
    create = getattr(HTTP, "create_ssl_context", None)
    return True if create is None else create()


#: What OpenAI's client sends along besides the key.
_OF_OPENAI = ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS")


@contextmanager
def environment_for(base_url: str | None) -> Iterator[None]:
    """Without what the environment has for OpenAI, where an endpoint is another one, while a client of it is made."""
    names = () if base_url is None else _OF_OPENAI
    values = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(values)


class DirectClient(openai.AsyncOpenAI):
    """A client for requests that are JSON already.

    The usual one goes through every part of a request by its type hints, and makes objects of the reply.
    """

    tells_cost = False
    """Whether the `cost` in the usage of its replies is what they cost."""

    def __init__(self, *, base_url: Any = None, **settings: Any) -> None:
        with environment_for(base_url):  # `with_options` makes another one, which has the address of the first
            super().__init__(base_url=base_url, **settings)
        self._requests: dict[str, Any] = {}

    def _build_request(self, options: Any, **retries: Any) -> Any:
        """A request whose address and headers are those of the first one to its path.

        To make them anew takes a fifth of the time of passing a request on. One with headers, a query, or a time
        limit of its own is made as usual.
        """
        extras = options.headers, options.params, options.extra_json, options.files, getattr(options, "content", None)
        if any(extras) or not isinstance(options.json_data, dict) or not isinstance(options.timeout, openai.NotGiven):
            return super()._build_request(options, **retries)
        if options.url not in self._requests:
            self._requests[options.url] = super()._build_request(options, **retries)
        first = self._requests[options.url]
        headers = [header for header in first.headers.raw if header[0].lower() not in _VARY]
        headers.append((_SENT_AGAIN, str(retries.get("retries_taken", 0)).encode()))
        body = json.dumps(options.json_data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return HTTP.Request(
            first.method, first.url, headers=headers, content=body.encode(), extensions=dict(first.extensions)
        )


def direct_client(
    *, base_url: str | None, key: str, timeout: float, query: Mapping[str, object] | None = None
) -> DirectClient:
    """A direct client, by aiohttp where that is installed, which takes half the time of HTTPX.

    It follows no redirect, which would take a prompt to another host; keeps no cookies; asks for replies that are not
    compressed, and takes no others; and reads no more than `LARGEST` bytes of one, and of a stream eight times that.

    Args:
        base_url: of the endpoint, without a query; None is OpenAI's.
        key: that is sent.
        timeout: seconds for a reply; of one that streams, for each piece.
        query: of all requests.
    """
    settings: Any = {"limits": HTTP.Limits(max_connections=_MOST_CONNECTIONS), "follow_redirects": False}
    settings |= {"event_hooks": {"response": [_limit]}}
    try:
        http: Any = openai.DefaultAioHttpClient(**settings)
        for transport in [http._transport, *http._mounts.values()]:
            if hasattr(transport, "get_client"):
                transport.client = partial(_session, transport)
    except RuntimeError:  # aiohttp is not installed
        http = openai.DefaultAsyncHttpxClient(**settings)
    http.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))
    plain = {"accept-encoding": "identity"}
    arguments: Any = {"timeout": timeout, "http_client": http, "default_headers": plain, "default_query": query}
    return DirectClient(api_key=key, base_url=base_url, **arguments)


def _session(transport: Any) -> Any:
    """A session of aiohttp that keeps no cookies, with the connections that a transport would open."""
    from aiohttp import ClientSession, DummyCookieJar

    transport.client = None
    usual = transport.get_client()
    connector = usual.connector
    usual.detach()
    return ClientSession(connector=connector, cookie_jar=DummyCookieJar())


LARGEST = 32_000_000  # bytes of a reply

_RAW = b"x-stainless-raw-response"  # the client's own header, by which it says that a reply is read piece by piece

NOT_READ = "rcjax_not_read"  # why not all of a response was read, in its extensions


def header(message: Any, name: bytes) -> bytes:
    """A request's or a response's header of a name, which is in lower case; empty if there is none.

    HTTPX decodes all headers to look for one.
    """
    return b", ".join([value for one, value in message.headers.raw if one.lower() == name])


async def _limit(response: Any) -> None:
    """Have no more read of a response than is to be read, and no longer: one that streams may take its time."""
    request = response.request
    streams = header(request, _RAW) == b"stream"
    most = LARGEST * (8 if streams else 1)
    seconds = None if streams else request.extensions.get("timeout", {}).get("read")
    packed = header(response, b"content-encoding").strip().lower() not in (b"", b"identity")
    if packed:  # a few bytes of it may be as many as there is memory for
        del response.headers["content-encoding"]
        response.extensions[NOT_READ] = "compressed, which was not asked for"
        most = 0
    response.stream = Part(response, most, seconds)


class Part(HTTP.AsyncByteStream):
    """As many bytes of a response as are to be read, in as many seconds; of one that has more it is noted."""

    def __init__(self, response: Any, most: int, seconds: float | None = None) -> None:
        self._response, self._stream, self._most, self._seconds = response, response.stream, most, seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, loop = 0, asyncio.get_running_loop()
        end = None if self._seconds is None else loop.time() + self._seconds
        async for part in self._stream:
            size += len(part)
            if end is not None and loop.time() > end:  # a byte now and then is in time for each read
                raise HTTP.ReadTimeout("the reply takes too long", request=self._response.request)
            if size > self._most:
                self.exceed()
                return
            yield part

    def exceed(self) -> None:
        """Note that there is more."""
        self._response.extensions.setdefault(NOT_READ, f"larger than {self._most:,} bytes")

    async def aclose(self) -> None:
        """Close the connection, if something is left on it."""
        await self._stream.aclose()
