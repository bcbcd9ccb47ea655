"""Requests to a chat endpoint, so many in flight all the time: a process of its own, which does as little as it can.

    python -m benchmarks.gateway.load '{"port": 8080, "model": "large", "width": 64, "seconds": 10, "delay": 0.5}'

Connections are kept. Each waits for its answer before it sends the next request, whose answer takes the model between
half and one and a half times `delay` seconds. Prints a JSON object: requests answered, errors by status or kind,
seconds, and of each answer the milliseconds that it took longer than the model's time.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.gateway.upstream import wording

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_END_OF_CHUNKS = b"0\r\n\r\n"
_OK = b"HTTP/1.1 200"


@dataclass(frozen=True, slots=True)
class Load:
    """What to send."""

    port: int
    model: str
    width: int
    """Requests in flight."""
    seconds: float
    delay: float = 0.0
    """Mean seconds of the model."""
    calls: int = 1
    """How often it is asked, one after the other."""
    streamed: float = 0.0
    """Share of requests whose answer is to come in pieces."""
    left: float = 0.0
    """Share of requests whose client leaves before the answer is there."""
    logprobs: bool = False
    """The client asks for log-probabilities."""

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))


class _Connection(asyncio.Protocol):
    """Sends a request when the answer to the one before is there."""

    def __init__(self, generator: _Generator) -> None:
        self.generator = generator
        self.answered: asyncio.Future[bytes] | None = None
        self.received = bytearray()
        self.size = -1  # of the answer; -1 until known, 0 of one in chunks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def send(self, request: bytes) -> asyncio.Future[bytes]:
        """The beginning of the answer, once all of it is there."""
        self.answered = asyncio.get_running_loop().create_future()
        self.received, self.size = bytearray(), -1
        self.transport.write(request)  # type: ignore[attr-defined]
        return self.answered

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.size < 0:
            head = self.received.find(b"\r\n\r\n")
            if head < 0:
                return
            length = _LENGTH.search(self.received, 0, head)
            self.size = head + 4 + int(length[1]) if length else 0
        whole = len(self.received) >= self.size if self.size else self.received.endswith(_END_OF_CHUNKS)
        if whole and self.answered is not None and not self.answered.done():
            self.answered.set_result(bytes(self.received[: len(_OK)]))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.answered is not None and not self.answered.done():
            self.answered.set_exception(ConnectionError("closed"))


class _Generator:
    """Keeps so many requests in flight, for so long."""

    def __init__(self, load: Load) -> None:
        self.load, self.lots = load, random.Random(0)
        self.added: list[float] = []
        self.left = 0
        self.errors: Counter[str] = Counter()

    async def run(self) -> dict[str, Any]:
        """Send until the time is over, and finish what is in flight."""
        start = time.perf_counter()
        self.end = start + self.load.seconds
        await asyncio.gather(*(self._keep_one_in_flight() for _ in range(self.load.width)))
        return {
            "requests": len(self.added),
            "left": self.left,
            "errors": self.errors,
            "seconds": time.perf_counter() - start,
            "added": [round(1e3 * seconds, 3) for seconds in self.added],
        }

    async def _keep_one_in_flight(self) -> None:
        await asyncio.sleep(self.lots.random() * max(self.load.delay, 0.01))  # not all at the same moment
        connection = None
        while time.perf_counter() < self.end:
            try:
                if connection is None or connection.transport.is_closing():
                    connection = await self._connect()
                await self._one_request(connection)
            except OSError as problem:
                self.errors[type(problem).__name__] += 1
                connection = None
                await asyncio.sleep(0.01)
        if connection is not None:
            connection.transport.close()

    async def _connect(self) -> Any:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: _Connection(self), "127.0.0.1", self.load.port)
        return connection

    async def _one_request(self, connection: Any) -> None:
        delay = self.load.delay * self.lots.uniform(0.5, 1.5)
        start = time.perf_counter()
        answered = connection.send(self._request(delay))
        if self.lots.random() < self.load.left:
            await self._leave(connection, answered, delay)
            return
        beginning = await answered
        if beginning == _OK:
            self.added.append(time.perf_counter() - start - delay * self.load.calls)
        else:
            self.errors[beginning[-3:].decode("latin-1")] += 1

    async def _leave(self, connection: Any, answered: asyncio.Future[bytes], delay: float) -> None:
        with suppress(TimeoutError, ConnectionError):
            await asyncio.wait_for(answered, self.lots.uniform(0, max(delay, 0.01)))
        connection.transport.abort()
        self.left += 1

    def _request(self, delay: float) -> bytes:
        fields: dict[str, Any] = {"model": self.load.model}
        fields["messages"] = [{"role": "user", "content": wording(delay)}]
        fields["max_tokens"] = 1
        if self.load.logprobs:
            fields |= {"logprobs": True, "top_logprobs": 20}
        if self.lots.random() < self.load.streamed:
            fields["stream"] = True
        body = json.dumps(fields).encode()
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer sk-none\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        )


def main() -> None:
    """Send what the command line says."""
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        raise SystemExit(0)
    generator = _Generator(Load(**json.loads(sys.argv[1])))
    try:
        from uvloop import run
    except ImportError:
        from asyncio import run
    told = run(generator.run())
    with open(sys.stdout.fileno(), "w", closefd=False) as output:  # buffered, whatever the environment says
        json.dump(told, output)


if __name__ == "__main__":
    main()
