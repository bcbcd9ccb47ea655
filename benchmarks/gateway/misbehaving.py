"""An upstream that misbehaves in the way that the text of a question names: on loopback, in a thread."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

_GIGABYTE = 10**9
_PIECE = b"x" * 65_536
_TOKEN = {
    "token": "B",
    "logprob": -0.1,
    "bytes": None,
    "top_logprobs": [{"token": "B", "logprob": -0.1, "bytes": None}],
}
_CHOICE = {"index": 0, "message": {"role": "assistant", "content": "B"}, "logprobs": {"content": [_TOKEN]}}
_GOOD = {
    "id": "c",
    "choices": [{**_CHOICE, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 1},
}

_ANSWERED, _FAILED = (200,), (502, 504)

#: What is wrong, and the statuses that are right for whoever asked.
MODES: dict[str, Sequence[int]] = {
    "a gigabyte, its length told": _FAILED,
    "a gigabyte in chunks": _FAILED,
    "a line of a gigabyte": (*_FAILED, 200),
    "ten gigabytes, compressed": _FAILED,
    "ten million lists": _FAILED,
    "nested": (*_FAILED, 200),
    "NaN and infinities": _ANSWERED,
    "no text": _ANSWERED,
    "a redirect": _FAILED,
    "cookies": _ANSWERED,
    "events of several lines": (*_FAILED, 200),
    "hangs": _FAILED,
    "a byte now and then": (*_FAILED, 200),
    "resets": _FAILED,
    "a head without an end": _FAILED,
    "no HTTP": _FAILED,
    "status 500": _FAILED,
    "status 429": (429,),
}


def _head(status: int, length: int | None, *more: str, kind: str = "application/json") -> bytes:
    size = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return "\r\n".join([f"HTTP/1.1 {status} x", f"content-type: {kind}", size, *more, "", ""]).encode()


def _whole(body: bytes, status: int = 200, *more: str, kind: str = "application/json") -> list[bytes]:
    return [_head(status, len(body), *more, kind=kind), body]


def _chunked(pieces: Sequence[bytes], kind: str = "application/json") -> Iterator[bytes]:
    yield _head(200, None, kind=kind)
    for piece in pieces:
        yield b"%x\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def _events(document: dict[str, Any]) -> list[dict[str, Any]]:
    choices = [{**choice, "delta": choice["message"]} for choice in document["choices"]]
    return [{**document, "choices": choices}]


def _answer(document: dict[str, Any], *, stream: bool, lines: bool = False) -> list[bytes]:
    """A completion, whole or as events."""
    if not stream:
        return _whole(json.dumps(document).encode(), 200, "set-cookie: a=b")
    texts = [json.dumps(event, indent=1 if lines else None) for event in _events(document)]
    data = ["".join(f"data: {line}\n" for line in text.split("\n")) + "\n" for text in [*texts, "[DONE]"]]
    return _whole("".join(data).encode(), kind="text/event-stream")


_STREAM = "text/event-stream"
_ODD = {**_GOOD, "x": [float("nan"), float("inf"), -float("inf")]}
_LONG = {**_GOOD, "choices": [{**_CHOICE, "message": {"role": "assistant", "content": "B" * 8_000_000}}]}
_NO_TEXT = {**_GOOD, "choices": [{**_CHOICE, "message": {"content": None}, "finish_reason": "content_filter"}]}
_DEEP = b'{"choices": [{"message": {"content": "B"}, "x": ' + b"[" * 900 + b"]" * 900 + b"}]}"
_BOMB: list[bytes] = []


def _bomb() -> bytes:
    """Ten megabytes that become ten gigabytes."""
    if not _BOMB:
        _BOMB.append(gzip.compress(b" " * 10_000_000) * 1000)
    return _BOMB[0]


_ROLE = {**_GOOD, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}


def _roles() -> Iterator[bytes]:
    """A stream without an end, of chunks that say nothing."""
    chunk = b"data: %s\n\n" % json.dumps(_ROLE).encode()
    yield _head(200, None, kind=_STREAM)
    while True:
        yield b"%x\r\n%s\r\n" % (100 * len(chunk), 100 * chunk)


_REPLIES: dict[str, Callable[[bool], Any]] = {
    "good": lambda stream: _answer(_GOOD, stream=stream),
    "slow": lambda stream: [1.0, *_answer(_GOOD, stream=stream)],
    "long": lambda stream: _answer(_LONG, stream=stream),
    "fifty megabytes": lambda stream: _whole(json.dumps(_GOOD).encode()[:-1] + b" " * 50_000_000 + b"}"),
    "roles without an end": lambda stream: _roles(),
    "a gigabyte, its length told": lambda stream: [_head(200, _GIGABYTE), *[_PIECE] * (_GIGABYTE // len(_PIECE))],
    "a gigabyte in chunks": lambda stream: _chunked([_PIECE] * (_GIGABYTE // len(_PIECE))),
    "a line of a gigabyte": lambda stream: _chunked([b"data: ", *[_PIECE] * (_GIGABYTE // len(_PIECE))], _STREAM),
    "ten gigabytes, compressed": lambda stream: _whole(_bomb(), 200, "content-encoding: gzip"),
    "ten million lists": lambda stream: _whole(b'{"choices": [' + b"[]," * 10_000_000 + b"[]]}"),
    "nested": lambda stream: _whole(_DEEP),
    "NaN and infinities": lambda stream: _answer(_ODD, stream=stream),
    "no text": lambda stream: _answer(_NO_TEXT, stream=stream),
    "a redirect": lambda stream: _whole(b"{}", 307, "location: http://evil.example/v1/chat/completions"),
    "cookies": lambda stream: _answer(_GOOD, stream=stream),
    "events of several lines": lambda stream: _answer(_GOOD, stream=stream, lines=True),
    "hangs": lambda stream: [30.0],
    "a byte now and then": lambda stream: [_head(200, 1000), *[b" ", 1.0] * 60],
    "resets": lambda stream: [_head(200, 1000)],
    "a head without an end": lambda stream: [b"HTTP/1.1 200 OK\r\n", *[b"x: " + _PIECE + b"\r\n"] * 1000],
    "no HTTP": lambda stream: [b"\x16\x03\x01" + bytes(range(256)) + b"\r\n\r\n"],
    "status 500": lambda stream: _whole(b"<html>", 500, "retry-after-ms: 1"),
    "status 429": lambda stream: _whole(b"{}", 429, "retry-after-ms: 1"),
}


async def _answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async for parts in _requests(reader):
            for part in parts:
                if isinstance(part, float):
                    await asyncio.sleep(part)
                else:
                    writer.write(part)
                    await writer.drain()
    writer.close()


async def _requests(reader: asyncio.StreamReader) -> AsyncIterator[Any]:
    """What is to be sent to each request of a connection; a wrong one ends it."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        request = json.loads(await reader.readexactly(int(length.partition(b":")[2])))
        mode = request["messages"][0]["content"]
        yield (
            _REPLIES.get(mode, _REPLIES["good"])(bool(request.get("stream")))
            if b"cookie: " not in head
            else [b"kept a cookie\r\n\r\n"]
        )
        if mode not in ("good", "NaN and infinities", "no text", "cookies"):
            return


@contextmanager
def misbehaving() -> Iterator[str]:
    """The base URL of the upstream."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(_answers, "127.0.0.1", 0, backlog=512))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://localhost:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(_end_the_rest())
        loop.close()


async def _end_the_rest() -> None:
    """End the connections that are open still."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
