"""Whether `rcjax serve` answers others while streams run: /ready and a cheap request beside many fast streams.

    python -m benchmarks.gateway.streams [--streams 200] [--pieces 50] [--seconds 10]

The model, the readers and the gateway (one worker) are processes of their own, on loopback. Each stream gets so many
pieces a second; with 0 as many as it takes. Linux; needs `pip install 'rcjax[serve]'`. Prints a Markdown table.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

from benchmarks import record
from benchmarks.gateway.servers import Server, free_port, rcjax, running
from benchmarks.gateway.upstream import _BODIES, wording

_CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
_DELTA = {"index": 0, "delta": {"content": " word"}, "logprobs": None, "finish_reason": None}
_TURN_BYTES = b"data: %s\n\n" % json.dumps({**_CHUNK, "choices": [_DELTA]}).encode()
_ASK = "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"


async def _model(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pieces: float) -> None:
    """Answer each request: a stream without an end, or one token."""
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            body = await reader.readexactly(length)
            if b'"stream":true' not in body.replace(b" ", b""):
                answer = _BODIES[0, 0]
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                writer.write(b"content-length: %d\r\n\r\n%s" % (len(answer), answer))
                continue
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            while True:
                writer.write(_TURN_BYTES)
                await writer.drain()
                await asyncio.sleep(1 / pieces if pieces else 0)
    writer.close()


async def _read(port: int, seconds: float, counts: list[int]) -> None:
    """Read one stream for a while."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    messages = [{"role": "user", "content": "Go on."}]
    body = json.dumps({"model": "large", "stream": True, "messages": messages})
    writer.write(f"{_ASK}content-length: {len(body)}\r\n\r\n{body}".encode())
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while part := await reader.read(65_536):
                counts[0] += part.count(b"\ndata: ")
    writer.close()


async def _act(words: list[str]) -> None:
    what, port, number, seconds = words[0], int(words[1]), float(words[2]), float(words[3])
    if what == "model":
        server = await asyncio.start_server(lambda *pair: _model(*pair, pieces=number), "127.0.0.1", port, backlog=2048)
        await server.serve_forever()
    counts = [0]
    await asyncio.gather(*(_read(port, seconds, counts) for _ in range(int(number))))
    print(counts[0])


def _look(port: int, request: tuple[str, ...]) -> float:
    """Seconds until a new connection has its answer."""
    start, connection = time.perf_counter(), HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(*request, {"content-type": "application/json"})  # type: ignore[arg-type]
    assert connection.getresponse().read()
    connection.close()
    return time.perf_counter() - start


def looks(server: Server, seconds: float) -> tuple[list[float], list[float]]:
    """(seconds of /ready, of cheap requests), one after the other for a while."""
    body = json.dumps({"model": "large", "messages": [{"role": "user", "content": wording(0.0)}]})
    ready, cheap, end = list[float](), list[float](), time.monotonic() + seconds
    while time.monotonic() < end:
        ready.append(_look(server.port, ("GET", "/ready", "")))
        cheap.append(_look(server.port, ("POST", "/v1/chat/completions", body)))
        time.sleep(0.05)
    return ready, cheap


def measure(streams: int, pieces: float, seconds: float) -> tuple[list[list[float]], float, float]:
    """(seconds of /ready and of cheap requests, alone and beside streams; pieces a second that readers got; seconds of
    CPU for each)."""
    script = [sys.executable, "-m", "benchmarks.gateway.streams", "--act"]
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        path = {"PYTHONPATH": str(Path(__file__).parents[2])}
        with (
            running([*script, "model", str(port), str(pieces), "0"], port, folder / "model", path) as pid,
            rcjax(folder / "a", Server(port, pid, "large"), ["large"], judged=False, logged=False) as server,
        ):
            alone = looks(server, 3.0)
            words, busy = [*script, "readers", str(server.port), str(streams), str(seconds)], server.busy()
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as readers:
                beside = looks(server, seconds)  # from before they begin: all at once
                told = int(readers.communicate()[0])
            return [*alone, *beside], told / seconds, (server.busy() - busy) / max(told, 1)


def main() -> None:
    """Measure, and print the table; with `--act` be one of the processes."""
    options = record.parser(__doc__)
    options.add_argument("--streams", type=int, default=200, help="at once")
    options.add_argument("--pieces", type=float, default=50.0, help="of each stream, a second; 0: as many as it takes")
    options.add_argument("--seconds", type=float, default=10.0, help="of the measurement")
    options.add_argument("--act", nargs="*", help="of its processes alone")
    chosen = options.parse_args()
    if chosen.act:
        asyncio.run(_act(chosen.act))
        return
    (ready, cheap, ready_beside, cheap_beside), rate, busy = measure(chosen.streams, chosen.pieces, chosen.seconds)
    print("| milliseconds | alone: p50 | most | beside the streams: p50 | most |\n|---|--:|--:|--:|--:|")
    for what, alone, beside in (("/ready", ready, ready_beside), ("a cheap request", cheap, cheap_beside)):
        cells = [1e3 * figure for one in (alone, beside) for figure in (statistics.median(one), max(one))]
        print(f"| {what} |" + "".join(f" {cell:.0f} |" for cell in cells))
    print(
        f"\n{chosen.streams} streams of {chosen.pieces:g} pieces a second: readers got {rate:,.0f} a second, for "
        f"{1e6 * busy:.0f} microseconds of CPU each."
    )
    record.headline(
        f"`rcjax serve`, one worker, beside {chosen.streams} streams of {chosen.pieces:g} pieces a second: /ready, the "
        "slowest; pieces a second",
        f"{1e3 * max(ready_beside):.0f} ms; {rate:,.0f}",
    )


if __name__ == "__main__":
    record.run(main)
