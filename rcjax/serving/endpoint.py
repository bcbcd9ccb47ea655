"""One request to an OpenAI-compatible endpoint: what comes back, and what went wrong, in words without secrets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from rcjax.serving.clients import HTTP, LARGEST, NOT_READ, RETRIES, header, openai
from rcjax.serving.completions import (
    CallError,
    Failure,
    Usage,
    error_word,
    read_completion,
    read_wait,
)
from rcjax.serving.prompts import request_bytes

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
    problem, sent = None, request_bytes(messages, options)
    usage.waiting += sent
    try:
        body = {name: value for name, value in options.items() if name not in _BESIDE}
        beside: Any = {_BESIDE[name]: value for name, value in options.items() if name in _BESIDE}
        asked = {"model": model, "messages": messages, **body}
        response = await client.post("/chat/completions", cast_to=HTTP.Response, body=asked, options=beside)
        if NOT_READ in response.extensions:
            raise CallError(f"malformed answer: {response.extensions[NOT_READ]}")
        content = response.content
        usage.attempts += int(header(response.request, RETRIES.encode()) or 0) + 1
    except CallError as error:
        usage.attempts, problem = usage.attempts + 1, error
        usage.add(None, sent)
    except Exception as error:  # whatever a client can meet with must not end a batch
        before = usage.attempts
        problem = _problem(error, usage)
        if str(problem) == TIMED_OUT:  # each time; a server that says no, or hangs up, has not worked on it
            usage.waiting += sent * (usage.attempts - before)
    usage.waiting -= sent
    if problem is not None:  # raised here, so that the client's error, which holds the request, is no part of it
        raise problem
    return read_completion(content, usage, sent)


async def stream_lines(
    client: openai.AsyncOpenAI, model: str, messages: Sequence[Any], options: Mapping[str, Any], usage: Usage
) -> AsyncGenerator[str, None]:
    """The lines of a completion that is streamed, as they come; its tokens are for the caller to count.

    Args:
        client: of the endpoint.
        model: its name there.
        messages: the conversation.
        options: of the request.
        usage: its attempts are added to it.

    Raises CallError where it cannot be begun, or breaks off.
    """
    problem = None
    streaming = client.chat.completions.with_streaming_response
    try:
        async with streaming.create(model=model, messages=messages, stream=True, **options) as raw:
            usage.attempts += raw.retries_taken + 1
            async with aclosing(_lines(raw.iter_bytes())) as lines:
                async for line in lines:
                    yield line
    except CallError as error:
        problem = error
    except Exception as error:
        problem = _problem(error, usage, connected=usage.attempts > 0)
    if problem is not None:
        raise problem


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
    if isinstance(error, openai.APIError):
        return CallError(_in_words(error), _failure(error))
    kinds = _kinds(error)
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


def _in_words(error: openai.APIError) -> str:
    if isinstance(error, openai.APIConnectionError):
        return _lost(_kinds(error))
    status = f"HTTP {error.status_code}" if isinstance(error, openai.APIStatusError) else type(error).__name__
    code = error_word(error.body)
    return f"{status} ({code})" if code else status


def _failure(error: openai.APIError) -> Failure:
    if isinstance(error, openai.APIStatusError):
        status = error.status_code
        passing = status in (408, 409, 429) or status >= 500
        return Failure(status, error_word(error.body), read_wait(error.response.headers), passing)
    # A connection that was not made has carried nothing that could be charged.
    unsent = _kinds(error) & _UNSENT
    return Failure(passing=isinstance(error, openai.APIConnectionError), charged=not unsent)
