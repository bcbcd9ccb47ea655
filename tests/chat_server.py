"""A server on loopback that speaks the chat-completions protocol of OpenAI, as well or as badly as a test wants."""

import asyncio
import contextlib
import json
import math
import threading
from dataclasses import dataclass, field

from openai import AsyncOpenAI

KEY = "sk-secret-of-the-test"


@dataclass
class Response:
    """What to send; `hang` closes the connection without a word."""

    body: object
    status: int = 200
    headers: dict = field(default_factory=dict)
    delay: float = 0.0
    hang: bool = False


def completion(text, tokens=None, usage=(100, 1), **changes):
    """The body of an answer; tokens are (text, {text: logprob}) pairs."""
    content = tokens and [
        {
            "token": token,
            "logprob": top[token],
            "bytes": None,
            "top_logprobs": [{"token": each, "logprob": logprob, "bytes": None} for each, logprob in top.items()],
        }
        for token, top in tokens
    ]
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": text},
        "logprobs": content and {"content": content},
    }
    counts = usage and {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    body = {
        "id": "chat-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": counts,
    }
    return body | changes


def sure(letter, logprob, usage=(100, 1)):
    """An answer by a letter, with so much log-probability on it and the rest on no choice."""
    rest = math.log(-math.expm1(logprob)) if logprob < 0 else -9999.0
    return completion(letter, [(letter, {letter: logprob, "Hm": rest})], usage)


class Server:
    """Calls `behave(request, headers)` for each request, and keeps the requests."""

    def __init__(self, behave, key=KEY):
        self.behave, self.key = behave, key
        self.requests = []
        self.busy = self.busiest = 0

    async def __call__(self, reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._exchange(reader, writer):
                pass
        writer.close()

    async def _exchange(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        assert head[0] == "POST /v1/chat/completions HTTP/1.1"
        assert headers["authorization"].lower() == f"bearer {self.key}"
        request = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.requests.append(request)
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            response = self.behave(request, headers)
            if response.delay:
                await asyncio.sleep(response.delay)
        finally:
            self.busy -= 1
        if response.hang:
            return False
        body = response.body if isinstance(response.body, bytes) else json.dumps(response.body).encode()
        lines = {"content-type": "application/json", "content-length": len(body), **response.headers}
        start = f"HTTP/1.1 {response.status} x\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items())
        writer.write(start.encode() + b"\r\n" + body)
        await writer.drain()
        return True


@contextlib.asynccontextmanager
async def serving(behave):
    """(the server, a client of it), within the running event loop."""
    server = Server(behave)
    listening = await asyncio.start_server(server, "127.0.0.1", 0, backlog=512)
    port = listening.sockets[0].getsockname()[1]
    client = AsyncOpenAI(api_key=KEY, base_url=f"http://127.0.0.1:{port}/v1")
    try:
        yield server, client
    finally:
        await client.close()
        listening.close()


@contextlib.contextmanager
def served(behave, key=KEY):
    """(the server, its base URL), in a thread: for programs that run beside the test."""
    server, loop = Server(behave, key), asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(server, "127.0.0.1", 0, backlog=512))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        listening.close()
        loop.close()
