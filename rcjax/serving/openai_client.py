"""OpenAI-compatible endpoints: their clients, one request, its reply or its failure, without secrets.

Replies have limits, and chunks of streams take turns on the event loop.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from http import HTTPStatus
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from rcjax._base.extras import how_to_install
from rcjax.policy.signals.answers import as_object
from rcjax.serving.completions import Assembly, read_chunks, read_completion
from rcjax.serving.failures import (
    CallError,
    Failure,
    connection_error,
    error_code_of,
    is_transient,
    malformed_error,
    parameter_of,
    read_retry_after,
)
from rcjax.serving.usage import CallUsage

try:
    import openai
    import openai.resources.chat
except ImportError:
    raise ImportError(f"running a cascade needs the client of OpenAI: {how_to_install('run')}") from None


RETRY_HEADER = "x-stainless-retry-count"  # the client's own header, which counts from 0

#: The module of HTTPX, or of its successor in newer clients.
HTTP: Any = import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__)

_MAX_CONNECTIONS = 10_000  # the gateway and the collector have lower limits of their own

#: Headers from the environment for OpenAI's own endpoint; OPENAI_CUSTOM_HEADERS has others.
_OPENAI_HEADERS = ("OpenAI-Organization", "OpenAI-Project")


@cache
def certificates() -> Any:
    """Return the trusted certificates for clients' `verify`, cached: reading them is the slowest part of a client."""
    create = getattr(HTTP, "create_ssl_context", None)
    return True if create is None else create()


def make_api_client(
    *,
    base_url: str | None,
    key: str,
    timeout: float,
    query: Mapping[str, object] | None = None,
    connect: float | None = None,
    retries: int = 2,
) -> openai.AsyncOpenAI:
    """Make the client of an endpoint, on aiohttp if that is installed, else on HTTPX.

    HTTPX takes four times the CPU time where 256 requests are in flight. The client follows no redirect, which would
    send a prompt to another host. It asks for uncompressed replies, and refuses others. It reads at most
    `MAX_REPLY_BYTES` of a reply, and four times as many of a stream. Endpoints other than OpenAI's do not get the
    headers that the environment has for OpenAI.

    Args:
        base_url: the endpoint's address without a query; None is OpenAI's.
        key: the key.
        timeout: seconds for a reply, or for each chunk of a stream.
        query: query of all requests.
        connect: seconds for a connection; by default as for a reply.
        retries: number of retries of a request.
    """
    settings: Any = {
        "verify": certificates(),
        "limits": HTTP.Limits(max_connections=_MAX_CONNECTIONS),
        "follow_redirects": False,
        "event_hooks": {"response": [_limit_response]},
    }
    try:
        http = openai.DefaultAioHttpClient(**settings)
    except RuntimeError:  # aiohttp is not installed
        http = openai.DefaultAsyncHttpxClient(**settings)
    headers: dict[str, Any] = {"accept-encoding": "identity"}
    if base_url is not None:
        custom = (line.partition(":")[0].strip() for line in os.environ.get("OPENAI_CUSTOM_HEADERS", "").splitlines())
        headers |= dict.fromkeys((*_OPENAI_HEADERS, *filter(None, custom)), openai.Omit())
    return openai.AsyncOpenAI(
        api_key=key,
        base_url=base_url,
        timeout=timeout if connect is None else openai.Timeout(timeout, connect=connect),
        http_client=http,
        default_headers=headers,
        default_query=query,
        max_retries=retries,
    )


MAX_REPLY_BYTES = 16_000_000  # bytes of a reply

_STREAM_FACTOR = 4  # times MAX_REPLY_BYTES: bytes of a stream


class RequestMemory:
    """The bytes that a request, its replies and its shadow calls keep in memory; in this class without a limit."""

    def reserve(self, size: int) -> bool:
        """Count more bytes, and return whether there is room for them."""
        return True

    def keep(self) -> AbstractContextManager[RequestMemory | None]:
        """Keep the bytes for shadow calls, even after the request's end, and yield the memory of these calls.

        Yields None if shadow calls keep as many bytes as they may.
        """
        return nullcontext(self)


_UNLIMITED = RequestMemory()

request_memory: ContextVar[RequestMemory] = ContextVar("request_memory", default=_UNLIMITED)
"""The memory of the running task's request: whole replies stay in memory until their request ends."""

NOT_READ = "rcjax_not_read"  # a response's extension: the reason why it was not read to its end


async def _limit_response(response: Any) -> None:
    """Limit the bytes of a response, and the seconds for reading it (an event hook of HTTPX)."""
    compressed = response.headers.get("content-encoding", "").strip().lower() not in ("", "identity")
    if compressed:  # a few compressed bytes may expand to more than the memory holds
        del response.headers["content-encoding"]
        response.extensions[NOT_READ] = "compressed, which was not asked for"
    response.stream = LimitedStream(response, 0 if compressed else MAX_REPLY_BYTES)


class FairQueue:
    """A fair queue, which resumes its first `tasks_per_turn` tasks once in `iterations_per_turn` of the event loop."""

    def __init__(self, tasks_per_turn: int = 1, iterations_per_turn: int = 1) -> None:
        self._tasks_per_turn, self._iterations_per_turn = tasks_per_turn, iterations_per_turn
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._iteration = 0

    async def wait_turn(self) -> None:
        """Wait for this task's turn."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._next, loop)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._iteration = (self._iteration + 1) % self._iterations_per_turn
        left = 0 if self._iteration else self._tasks_per_turn
        while left and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # its task may be cancelled
                turn.set_result(None)
                left -= 1
        if self._waiting:
            loop.call_soon(self._next, loop)


#: (number, every) of the queue of each kind of work: a chunk of a stream takes .5 ms, a new request 1 to 2 ms.
QUEUES = {"chunks": (1, 3), "requests": (4, 1)}

_QUEUES_BY_LOOP: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, FairQueue]] = WeakKeyDictionary()


def fair_queue(kind: str) -> FairQueue:
    """Return the queue of a kind of work on the running event loop."""
    loop = asyncio.get_running_loop()
    if (kinds := _QUEUES_BY_LOOP.get(loop)) is None:
        kinds = _QUEUES_BY_LOOP[loop] = {name: FairQueue(*settings) for name, settings in QUEUES.items()}
    return kinds[kind]


_TURN_BYTES = 2_048  # bytes of a stream that a task reads in its turn: some ten chunks, .5 ms


class LimitedStream(HTTP.AsyncByteStream):
    """The first `max_bytes` of a response, within its time limit. A larger response gets the extension NOT_READ."""

    def __init__(self, response: Any, max_bytes: int) -> None:
        self._response, self._stream, self._max_bytes = response, response.stream, max_bytes
        self._by_chunks = False

    def read_by_chunks(self) -> None:
        """Allow four times as many bytes without a time limit, in chunks that take turns with other streams' chunks."""
        self._by_chunks, self._max_bytes = True, _STREAM_FACTOR * self._max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, loop, request = 0, asyncio.get_running_loop(), self._response.request
        seconds = None if self._by_chunks else request.extensions.get("timeout", {}).get("read")
        end = None if seconds is None else loop.time() + seconds
        async for part in _read_parts(self._stream):
            size += len(part)
            if end is not None and loop.time() > end:  # a slow sender keeps to the limit of each single read
                raise HTTP.ReadTimeout("the reply takes too long", request=request)
            if size > self._max_bytes:
                self._response.extensions.setdefault(NOT_READ, f"larger than {self._max_bytes:,} bytes")
                return
            if self._by_chunks:
                turns = fair_queue("chunks")
                for start in range(0, len(part), _TURN_BYTES):
                    await turns.wait_turn()
                    yield part[start : start + _TURN_BYTES]
            elif request_memory.get().reserve(len(part)):
                yield part
            else:
                self._response.extensions.setdefault(NOT_READ, "too large beside others at once")
                return

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()


async def _read_parts(stream: Any) -> AsyncIterator[bytes]:
    """Yield the parts of a response. If the connection breaks, also yield the parts that aiohttp would drop."""
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


#: Arguments of `chat.completions.create` outside the body, by the names that `post` has for them.
_POST_NAMES = {"extra_headers": "headers", "extra_query": "params", "extra_body": "extra_json", "timeout": "timeout"}

#: OpenAI's own host: its newer models refuse `max_tokens`, and all of its models accept `max_completion_tokens`.
_OPENAI_HOST = "api.openai.com"

#: Errors for a reply or a connection that does not come in time: HTTPX's, then aiohttp's.
_TIMEOUTS = {"TimeoutException", "ServerTimeoutError"}

#: Errors for a connection that was not made: HTTPX's, then aiohttp's.
_UNSENT = {"ConnectError", "ConnectTimeout", "PoolTimeout", "ClientConnectorError", "ConnectionTimeoutError"}


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request for the completion of a conversation."""

    api_client: openai.AsyncOpenAI
    """The client of the endpoint, with its number of retries."""
    model: str
    """The model's name at the endpoint."""
    messages: Sequence[Mapping[str, object]]
    """The conversation."""
    options: Mapping[str, object]
    """Options of `chat.completions.create`."""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The limits of one call's requests."""

    slots: asyncio.Semaphore | None = None
    """Slots for requests in flight: each attempt takes one. None without a limit."""
    end: float | None = None
    """Time limit of the call, by the event loop's clock: no retry waits until then. None without a limit."""


_NO_LIMITS = CallLimits()


async def complete(request: CompletionRequest, usage: CallUsage, limits: CallLimits = _NO_LIMITS) -> Mapping[str, Any]:
    """Send a request, and return the server's JSON. The usage of the call is updated even if the call fails.

    Raises CallError if no completion came back.
    """
    async with _post(request, usage, limits) as response:
        usage.end_request()
    if NOT_READ in response.extensions:
        usage.add(None)
        raise malformed_error(response.extensions[NOT_READ])
    return read_completion(response.content, usage)


@asynccontextmanager
async def _post(
    request: CompletionRequest, usage: CallUsage, limits: CallLimits, **streaming: Any
) -> AsyncIterator[Any]:
    """Send a request, with retries, and yield the response, unread if it streams.

    The usage counts the request as under way. Each attempt takes a slot; a back-off takes none. Retries are made here,
    because those of the client would hide what each attempt costs. `post` is used in place of
    `chat.completions.create`, which converts each part of a request by its type hints and builds objects of a reply.
    """
    client: Any = request.api_client
    fields = {name: value for name, value in request.options.items() if name not in _POST_NAMES}
    arguments: Any = {_POST_NAMES[name]: value for name, value in request.options.items() if name in _POST_NAMES}
    if client.base_url.host == _OPENAI_HOST and "max_tokens" in fields:
        fields.setdefault("max_completion_tokens", fields.pop("max_tokens"))
    body = {"model": request.model, "messages": request.messages, **fields}
    if streaming:
        body["stream"] = True
    retries = 0
    while True:
        headers = {RETRY_HEADER: str(retries), **(arguments.get("headers") or {})}
        more: Any = {**arguments, "headers": headers, "max_retries": 0}
        async with limits.slots or nullcontext():
            usage.begin_request(request.messages, request.options)
            start = time.perf_counter()
            try:
                posted = client.post("/chat/completions", cast_to=HTTP.Response, body=body, options=more, **streaming)
                response = await posted
            except Exception as error:  # no error of a client may end a batch
                problem = _error_of_client(error)
            else:
                usage.reply_seconds += time.perf_counter() - start
                yield response
                return
        wait = _retry_wait(problem.failure, retries, limits.end)
        if not problem.failure.charged:
            usage.end_request()
        elif not problem.failure.timed_out:  # else its server may still work on it
            usage.mark_lost()
        if wait is None or retries >= client.max_retries:
            raise problem  # outside of `except`: the client's error, which holds the request, is not its context
        retries += 1
        await asyncio.sleep(wait)


BACKOFF_SECONDS = (0.5, 8.0)  # seconds before the first retry, and at most

MAX_WAIT_SECONDS = 120.0  # longest back-off that a server may ask for


def backoff_seconds(failure: Failure, retries: int) -> float:
    """Return the seconds before the next attempt: as the server says, or else exponential, as of OpenAI's client."""
    first, longest = BACKOFF_SECONDS
    return failure.retry_after or min(longest, first * 2.0 ** min(retries, 10)) * random.uniform(0.75, 1.0)


def _retry_wait(failure: Failure, retries: int, end: float | None) -> float | None:
    """Return the seconds before the next attempt; None if no retry is of use.

    A wait beyond the end of the call is of no use: the next model is asked at once. A request whose answer took too
    long is not repeated: the second would be as slow, and both may be charged.
    """
    if not failure.transient or (failure.timed_out and failure.charged):
        return None
    wait = backoff_seconds(failure, retries)
    is_late = end is not None and asyncio.get_running_loop().time() + wait >= end
    return None if wait > MAX_WAIT_SECONDS or is_late else wait


ForwardChunk = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Receives a chunk of a completion, and raises nothing."""


async def stream(
    request: CompletionRequest, usage: CallUsage, forward: ForwardChunk, limits: CallLimits = _NO_LIMITS
) -> Mapping[str, Any]:
    """Ask for a completion as `complete` does, and forward its chunks as they come. A broken stream is paid, too.

    Args:
        request: the request.
        usage: the usage of the call, updated even if the call fails.
        forward: receives each chunk.
        limits: the limits of the call's requests.
    """
    stream_options = {**as_object(request.options.get("stream_options")), "include_usage": True}
    request = replace(request, options={**request.options, "stream_options": stream_options})
    assembly, problem, ended = Assembly(), None, False
    streaming = {"stream": True, "stream_cls": openai.AsyncStream[Any]}
    async with _post(request, usage, limits, **streaming) as response:
        try:
            await _read_stream(response, assembly, usage, forward)
            problem, ended = assembly.problem, True
        except CallError as error:  # a chunk, or something unreadable, has arrived
            problem, assembly.arrived = error, True
        except Exception as error:
            problem = _error_of_client(error, connected=True)
        finally:
            if NOT_READ in response.extensions:
                problem = malformed_error(response.extensions[NOT_READ])
                assembly.arrived = True
            if assembly.arrived or (problem is not None and not problem.failure.charged):
                usage.end_request()
            elif problem is not None and not problem.failure.timed_out:
                usage.mark_lost()
            usage.broken += assembly.arrived and not ended
            completion = assembly.completion(usage)
    if problem is not None:
        raise problem
    return completion


async def _read_stream(response: Any, assembly: Assembly, usage: CallUsage, forward: ForwardChunk) -> None:
    """Read a streamed response to its end: assemble its chunks, and forward those before a failure."""
    if isinstance(response.stream, LimitedStream):
        response.stream.read_by_chunks()
    start = time.perf_counter()
    async with (
        aclosing(response),
        aclosing(_lines(response.aiter_bytes())) as lines,
        aclosing(read_chunks(lines)) as chunks,
    ):
        async for chunk in chunks:
            usage.reply_seconds += time.perf_counter() - start
            numbered = assembly.add(chunk)
            if assembly.problem is None:  # the usage may still come after a failure
                await forward(numbered)
            start = time.perf_counter()


async def _lines(chunks: AsyncIterable[bytes]) -> AsyncGenerator[str, None]:
    """Yield the lines of a text that comes in chunks. Only a line feed ends a line, unlike in `splitlines`."""
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        parts.append(first)
        size = size + len(first) if not others else len(others[-1])
        if size > MAX_REPLY_BYTES:
            raise malformed_error(f"a line of more than {MAX_REPLY_BYTES:,} bytes")
        for start in others:
            yield b"".join(parts).rstrip(b"\r").decode("utf-8", "replace")
            parts = [start]
    if any(parts):
        yield b"".join(parts).decode("utf-8", "replace")


_STATUSES = frozenset(map(int, HTTPStatus))

#: Statuses of a proxy that has sent a request on and got no reply in time: HTTP's, then Cloudflare's.
_PROXY_TIMEOUTS = (504, 524)


def _error_of_client(error: Exception, connected: bool = False) -> CallError:
    """Turn a client's error into a CallError; `connected` says whether a response had begun."""
    kinds = _class_names(error)
    timed_out = not kinds.isdisjoint(_TIMEOUTS)
    if isinstance(error, openai.APIConnectionError):
        # Without a connection, nothing was sent that could be charged.
        return connection_error(timed_out=timed_out, charged=kinds.isdisjoint(_UNSENT))
    if isinstance(error, openai.APIError):
        code, name, kind, failure = error_code_of(error.body), type(error).__name__, "other", Failure(charged=True)
        parameter = parameter_of(error.body)
        if isinstance(error, openai.APIStatusError):
            status, name, headers = error.status_code, f"HTTP {error.status_code}", error.response.headers
            kind = name if status in _STATUSES else "HTTP other"
            transient = {"true": True, "false": False}.get(headers.get("x-should-retry", ""), is_transient(status))
            is_late = status in _PROXY_TIMEOUTS
            failure = Failure(status, code, read_retry_after(headers), transient, charged=is_late, timed_out=is_late)
        words = ": ".join(word for word in (code, parameter) if word)
        return CallError(f"{name} ({words})" if words else name, failure, kind=kind)
    if kinds & {"TransportError", "ClientError"}:
        return connection_error(timed_out=timed_out, transient=not connected)
    failure = Failure(charged=connected)  # before a response, it failed to make the request: nothing was sent
    return CallError(f"the client failed: {type(error).__name__}", failure, kind="the client failed")


def _class_names(error: BaseException) -> set[str]:
    """Return the class names of an error and its causes, or of aiohttp's error alone if there is one.

    The transport of aiohttp for HTTPX calls every lost connection a timeout, so its own error decides.
    """
    names: set[str] = set()
    cause: BaseException | None = error
    while cause is not None:
        kinds = {kind.__name__ for kind in type(cause).__mro__}
        if "ClientError" in kinds:
            return kinds
        names, cause = names | kinds, cause.__cause__
    return names
