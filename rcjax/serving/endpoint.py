"""OpenAI-compatible endpoints: their clients, one request, what comes back, and what went wrong, without secrets."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from contextvars import ContextVar
from functools import cache, partial
from http.cookiejar import DefaultCookiePolicy
from importlib import import_module
from typing import Any

from rcjax._base.extras import how_to_install
from rcjax.serving.completions import Assembly, read_chunks, read_completion
from rcjax.serving.failures import CallError, Failure, error_word, is_passing, read_wait
from rcjax.serving.turns import turns_of
from rcjax.serving.usage import Usage

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


class DirectClient(openai.AsyncOpenAI):
    """A client for requests that are JSON already.

    The usual one goes through every part of a request by its type hints, and makes objects of the reply.
    """

    tells_cost = False
    """Whether the `cost` in the usage of its replies is what they cost."""

    def __init__(self, *, base_url: Any = None, **settings: Any) -> None:
        # Another endpoint is told nothing of OpenAI's; `with_options` makes a client with the address of the first.
        names = () if base_url is None else _OF_OPENAI
        values = {name: os.environ.pop(name) for name in names if name in os.environ}
        try:
            super().__init__(base_url=base_url, **settings)
        finally:
            os.environ.update(values)
        self._requests: dict[str, Any] = {}

    def _build_request(self, options: Any, **retries: Any) -> Any:
        """Note on a request whether its reply streams."""
        request = self._request(options, **retries)
        request.extensions[_STREAMS] = isinstance(options.json_data, dict) and options.json_data.get("stream") is True
        return request

    def _request(self, options: Any, **retries: Any) -> Any:
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
    *,
    base_url: str | None,
    key: str,
    timeout: float,
    query: Mapping[str, object] | None = None,
    connect: float | None = None,
    retries: int = 2,
) -> DirectClient:
    """A direct client, by aiohttp where that is installed, which takes half the time of HTTPX.

    It follows no redirect, which would take a prompt to another host; keeps no cookies; asks for replies that are not
    compressed, and takes no others; and reads no more than `LARGEST` bytes of one, and of a stream four times that.

    Args:
        base_url: of the endpoint, without a query; None is OpenAI's.
        key: that is sent.
        timeout: seconds for a reply; of one that streams, for each piece.
        query: of all requests.
        connect: seconds until a connection is made; by default as for a reply.
        retries: how often a request is sent again.
    """
    settings: Any = {
        "verify": certificates(),
        "limits": HTTP.Limits(max_connections=_MOST_CONNECTIONS),
        "follow_redirects": False,
    }
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
    limit = timeout if connect is None else openai.Timeout(timeout, connect=connect)
    arguments: Any = {"timeout": limit, "http_client": http, "default_headers": plain, "default_query": query}
    arguments |= {"max_retries": retries}
    return DirectClient(api_key=key, base_url=base_url, **arguments)


def _session(transport: Any) -> Any:
    """A session of aiohttp that keeps no cookies, with the connections that a transport would open."""
    from aiohttp import ClientSession, DummyCookieJar

    transport.client = None
    usual = transport.get_client()
    connector = usual.connector
    usual.detach()
    return ClientSession(connector=connector, cookie_jar=DummyCookieJar())


LARGEST = 16_000_000  # bytes of a reply

_STREAMED = 4  # times as many of one that streams

HOLD: ContextVar[Callable[[int], bool]] = ContextVar("HOLD", default=lambda size: True)
"""Is told of the bytes of whole replies, which stay in memory until the request that they are for has ended: whether
there is room for them."""

_STREAMS = "rcjax_streams"  # whether the reply to a request is read piece by piece, in its extensions

NOT_READ = "rcjax_not_read"  # why not all of a response was read, in its extensions


async def _limit(response: Any) -> None:
    """Have no more read of a response than is to be read, and no longer: one that streams may take its time."""
    request = response.request
    streams = bool(request.extensions.get(_STREAMS))
    most = LARGEST * (_STREAMED if streams else 1)
    seconds = None if streams else request.extensions.get("timeout", {}).get("read")
    packed = response.headers.get("content-encoding", "").strip().lower() not in ("", "identity")
    if packed:  # a few bytes of it may be as many as there is memory for
        del response.headers["content-encoding"]
        response.extensions[NOT_READ] = "compressed, which was not asked for"
        most = 0
    response.stream = Part(response, most, seconds)


_PIECE = 2_048  # bytes of a stream that are read at once: some ten chunks, half a millisecond


class Part(HTTP.AsyncByteStream):
    """As many bytes of a response as are to be read, in as many seconds; of one that has more it is noted."""

    def __init__(self, response: Any, most: int, seconds: float | None = None) -> None:
        self._response, self._stream, self._most, self._seconds = response, response.stream, most, seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, loop = 0, asyncio.get_running_loop()
        end = None if self._seconds is None else loop.time() + self._seconds
        async for part in _arrived(self._stream):
            size += len(part)
            if end is not None and loop.time() > end:  # a byte now and then is in time for each read
                raise HTTP.ReadTimeout("the reply takes too long", request=self._response.request)
            if size > self._most:
                self._response.extensions.setdefault(NOT_READ, f"larger than {self._most:,} bytes")
                return
            if self._seconds is not None:
                if not HOLD.get()(len(part)):
                    self._response.extensions.setdefault(NOT_READ, "too large beside others at once")
                    return
                yield part
                continue
            turns = turns_of("pieces")
            for start in range(0, len(part), _PIECE):
                await turns.take()
                yield part[start : start + _PIECE]

    async def aclose(self) -> None:
        """Close the connection, if something is left on it."""
        await self._stream.aclose()


async def _arrived(stream: Any) -> AsyncIterator[bytes]:
    """Yield the parts of a response; if its connection breaks, also those that came before, which aiohttp discards."""
    try:
        async for part in stream:
            yield part
    except Exception:
        while stream is not None and not hasattr(stream, "_aiohttp_response"):
            stream = getattr(stream, "_stream", None)
        if stream is not None:
            content = stream._aiohttp_response.content
            content.set_exception(None)
            yield content.read_nowait()
        raise


TIMED_OUT = "timed out"

#: Arguments of `chat.completions.create` that are not sent in the body, as `post` has them.
_BESIDE = {"extra_headers": "headers", "extra_query": "params", "extra_body": "extra_json", "timeout": "timeout"}

#: Errors of HTTPX, then of aiohttp, of a connection that was not made.
_UNSENT = {"ConnectError", "ConnectTimeout", "PoolTimeout", "ClientConnectorError", "ConnectionTimeoutError"}


async def complete(
    client: openai.AsyncOpenAI, model: str, messages: Sequence[Any], options: Mapping[str, Any], usage: Usage
) -> Mapping[str, Any]:
    """The completion of a conversation as the endpoint sends it, with the client's own retries.

    Args:
        client: of the endpoint.
        model: its name there.
        messages: the conversation.
        options: of the request.
        usage: what is used is added to it, also where the call fails.

    Raises CallError where no completion came back.
    """
    problem, sent, lost = None, usage.begin(messages, options), 0
    try:
        response = await _post(client, model, messages, options)
        if NOT_READ in response.extensions:
            raise CallError(f"malformed answer: {response.extensions[NOT_READ]}")
        content = response.content
        usage.attempts += _attempts(response)
    except CallError as error:
        usage.attempts, problem = usage.attempts + 1, error
        usage.add(None, sent)
    except Exception as error:  # whatever a client can meet with must not end a batch
        before = usage.attempts
        problem = _problem(error, usage)
        if problem.failure.charged:  # each time; a server that says no has not worked on it
            lost = usage.attempts - before
    usage.lose(sent, lost, cut=str(problem) == TIMED_OUT)
    if problem is not None:  # raised here, so that the client's error, which holds the request, is no part of it
        raise problem
    return read_completion(content, usage, sent)


async def _post(client: Any, model: str, messages: Any, options: Mapping[str, Any], **streaming: Any) -> Any:
    """The response to a request, not read yet if it streams."""
    body = {name: value for name, value in options.items() if name not in _BESIDE}
    beside = {_BESIDE[name]: value for name, value in options.items() if name in _BESIDE}
    asked = {"model": model, "messages": messages, **body}
    if streaming:
        asked["stream"] = True
    return await client.post("/chat/completions", cast_to=HTTP.Response, body=asked, options=beside, **streaming)


def _attempts(response: Any) -> int:
    """How often its request was sent."""
    return int(response.request.headers.get(RETRIES, "0")) + 1


async def stream(
    client: openai.AsyncOpenAI,
    model: str,
    messages: Sequence[Any],
    options: Mapping[str, Any],
    usage: Usage,
    hand_on: Callable[[Mapping[str, Any]], Awaitable[None]],
) -> Mapping[str, Any]:
    """As `complete`, of a completion whose chunks are handed on as they come; what came before it breaks off is paid.

    Args:
        client: of the endpoint.
        model: its name there.
        messages: the conversation.
        options: of the request.
        usage: what is used is added to it.
        hand_on: takes each chunk, and raises nothing.
    """
    problem, before, response = None, usage.attempts, None
    options = {**options, "stream_options": {**(options.get("stream_options") or {}), "include_usage": True}}
    whole, ended, sent = Assembly(), False, usage.begin(messages, options)
    try:
        response = await _post(client, model, messages, options, stream=True, stream_cls=openai.AsyncStream[Any])
        usage.attempts += _attempts(response)
        async with aclosing(response), aclosing(_lines(response.aiter_bytes())) as lines:
            async with aclosing(read_chunks(lines)) as chunks:
                async for chunk in chunks:
                    whole.add(chunk)
                    if whole.problem is None:  # after it the tokens may come
                        await hand_on(chunk)
            problem, ended = whole.problem, True
    except CallError as error:  # something came, though not what was asked for
        problem, whole.arrived = error, True
    except Exception as error:
        problem = _problem(error, usage, connected=usage.attempts > before)
    finally:
        if response is not None and NOT_READ in response.extensions:
            problem = CallError(f"malformed answer: {response.extensions[NOT_READ]}")
            whole.arrived = True
        lost = not whole.arrived and (problem is None or problem.failure.charged)
        left = problem is None or str(problem) == TIMED_OUT
        usage.lose(sent, max(usage.attempts - before, 1) if lost else 0, cut=left)
        usage.broken += whole.arrived and not ended
        completion = whole.completion(usage, sent)
    if problem is not None:
        raise problem
    return completion


async def _lines(pieces: AsyncIterable[bytes]) -> AsyncGenerator[str, None]:
    """The lines of a text that comes in pieces; U+2028 and the like, at which Python cuts a text, end no event."""
    parts: list[bytes] = []
    size = 0
    async for piece in pieces:
        first, *others = piece.split(b"\n")
        parts.append(first)
        size = size + len(first) if not others else len(others[-1])
        if size > LARGEST:
            raise CallError(f"malformed answer: a line of more than {LARGEST:,} bytes")
        for start in others:
            yield b"".join(parts).rstrip(b"\r").decode("utf-8", "replace")
            parts = [start]
    if any(parts):
        yield b"".join(parts).decode("utf-8", "replace")


def _problem(error: Exception, usage: Usage, connected: bool = False) -> CallError:
    """What a client met with, in words; the requests that failed are counted."""
    retries = error.request.headers.get(RETRIES, "0") if isinstance(error, openai.APIError) else "0"
    if not connected:
        usage.attempts += int(retries) + 1 if retries.isdigit() else 1
    kinds = _kinds(error)
    if isinstance(error, openai.APIConnectionError):
        return CallError(_lost(kinds), _failure(error))
    if isinstance(error, openai.APIError):
        status = f"HTTP {error.status_code}" if isinstance(error, openai.APIStatusError) else type(error).__name__
        code = error_word(error.body)
        return CallError(f"{status} ({code})" if code else status, _failure(error))
    if kinds & {"TransportError", "ClientError"}:
        return CallError(_lost(kinds), Failure(passing=not connected, charged=True))
    return CallError(f"the client failed: {type(error).__name__}")


def _kinds(error: BaseException) -> set[str]:
    """The names of the classes of an error and of its causes, by which HTTPX and aiohttp are told apart, or of the
    error of aiohttp alone: its transport for HTTPX calls every lost connection a timeout."""
    names: set[str] = set()
    cause: BaseException | None = error
    while cause is not None:
        kinds = {kind.__name__ for kind in type(cause).__mro__}
        if "ClientError" in kinds:
            return kinds
        names, cause = names | kinds, cause.__cause__
    return names


def _lost(kinds: set[str]) -> str:
    """What became of a connection, in words."""
    return TIMED_OUT if kinds & {"TimeoutException", "ServerTimeoutError"} else "no connection"


def _failure(error: openai.APIError) -> Failure:
    if isinstance(error, openai.APIStatusError):
        status = error.status_code
        return Failure(status, error_word(error.body), read_wait(error.response.headers), is_passing(status))
    # A connection that was not made has carried nothing that could be charged.
    unsent = _kinds(error) & _UNSENT
    return Failure(passing=isinstance(error, openai.APIConnectionError), charged=not unsent)
