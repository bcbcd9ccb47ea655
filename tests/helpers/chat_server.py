"""A server on loopback that speaks the chat-completions protocol of OpenAI, as well or as badly as a test wants."""

import asyncio
import contextlib
import json
import math
import re
import ssl
import threading
from dataclasses import dataclass, field

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

KEY = "sk-secret-of-the-test"

#: One for all clients: each would read the certificates of every authority, for a server that has none.
CERTIFICATES = ssl.create_default_context()


@dataclass
class Response:
    """What to send: a JSON object, bytes, or a list of events, of which bytes are sent as they are.

    A completion is sent as events where the request is for a stream. `hang` closes the connection without a word,
    after the events if there are some; `delay` is in seconds, before all, and `pause` before each event. With `held`,
    nothing is sent before that event is set, by `behave` for another request.
    """

    body: object
    status: int = 200
    headers: dict = field(default_factory=dict)
    delay: float = 0.0
    hang: bool = False
    pause: float = 0.0
    held: asyncio.Event | None = None


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


def events_of(body, counted=False):
    """A completion as the events of a stream: the role, each word or token, calls of tools, the end, the usage."""
    head = {name: value for name, value in body.items() if name not in ("choices", "usage")}
    head |= {"object": "chat.completion.chunk"} | ({"usage": None} if counted else {})
    events = []
    for choice in body["choices"]:
        for delta, tokens in _deltas(choice):
            said = {"index": choice["index"], "delta": delta, "logprobs": tokens, "finish_reason": None}
            events.append({**head, "choices": [said]})
    for choice in body["choices"]:
        rest = {name: value for name, value in choice.items() if name not in ("message", "logprobs")}
        events.append({**head, "choices": [{**rest, "delta": {}, "logprobs": None}]})
    if counted:
        events.append({**head, "choices": [], "usage": body["usage"]})
    return [*events, b"data: [DONE]\n\n"]


def _deltas(choice):
    """(delta, log-probabilities) for each chunk of a message."""
    message = choice["message"]
    others = {name: value for name, value in message.items() if name not in ("role", "content", "tool_calls")}
    yield {"role": message["role"], "content": "", **others}, None
    tokens = (choice.get("logprobs") or {}).get("content")
    for token in tokens or ():
        yield {"content": token["token"]}, {"content": [token], "refusal": None}
    for word in () if tokens else re.findall(r"\S+\s*|\s+", message["content"] or ""):
        yield {"content": word}, None
    for place, call in enumerate(message.get("tool_calls") or ()):
        function, arguments = call["function"], call["function"]["arguments"]
        yield {"tool_calls": [{"index": place, **call, "function": {**function, "arguments": ""}}]}, None
        for half in (arguments[: len(arguments) // 2], arguments[len(arguments) // 2 :]):
            yield {"tool_calls": [{"index": place, "function": {"arguments": half}}]}, None


class Server:
    """Calls `behave(request, headers)` for each request, and keeps the requests."""

    def __init__(self, behave, key=KEY):
        self.behave, self.key = behave, key
        self.requests = []
        self.changed = threading.Condition()
        self.port = None
        self.busy = self.busiest = 0

    def wait_for(self, number):
        """Wait until so many requests are there."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.requests) >= number, 120)

    async def __call__(self, reader, writer):
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._exchange(reader, writer):
                    pass
        finally:
            writer.close()  # also after an error of `behave`: Python 3.11.2 leaves the connection open

    async def _exchange(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        assert head[0] == "POST /v1/chat/completions HTTP/1.1"
        assert headers["authorization"].lower() == f"bearer {self.key}"
        request = json.loads(await reader.readexactly(int(headers["content-length"])))
        with self.changed:
            self.requests.append(request)
            self.changed.notify_all()
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            response = self.behave(request, headers)
            if response.held:
                await response.held.wait()
            if response.delay:
                await asyncio.sleep(response.delay)
        finally:
            self.busy -= 1
        body = response.body
        if request.get("stream") and isinstance(body, dict) and "choices" in body:
            body = events_of(body, bool((request.get("stream_options") or {}).get("include_usage")))
        if isinstance(body, list):
            return await _send_events(writer, response, body)
        if response.hang:
            return False
        body = response.body if isinstance(response.body, bytes) else json.dumps(response.body).encode()
        lines = {"content-type": "application/json", "content-length": len(body), **response.headers}
        start = f"HTTP/1.1 {response.status} x\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items())
        writer.write(start.encode() + b"\r\n" + body)
        await writer.drain()
        return True


async def _send_events(writer, response, events):
    lines = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **response.headers}
    start = f"HTTP/1.1 {response.status} x\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items())
    writer.write(start.encode() + b"\r\n")
    for event in events:
        if response.pause:
            await writer.drain()
            await asyncio.sleep(response.pause)
        data = event if isinstance(event, bytes) else b"data: " + json.dumps(event).encode() + b"\n\n"
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
    await writer.drain()
    if response.hang:
        return False
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


@contextlib.asynccontextmanager
async def serving(behave):
    """(the server, a client of it), within the running event loop."""
    server = Server(behave)
    listening = await asyncio.start_server(server, "127.0.0.1", 0, backlog=512)
    port = listening.sockets[0].getsockname()[1]
    http_client = DefaultAsyncHttpxClient(verify=CERTIFICATES)
    client = AsyncOpenAI(api_key=KEY, base_url=f"http://127.0.0.1:{port}/v1", http_client=http_client)
    try:
        yield server, client
    finally:
        await client.close()
        listening.close()


@contextlib.contextmanager
def served(behave, key=KEY, port=0):
    """(the server, its base URL), in a thread: for programs that run beside the test; at port 0, any that is free."""
    server = Server(behave, key)
    with in_thread(server, port) as server.port:
        yield server, f"http://127.0.0.1:{server.port}/v1"


@contextlib.contextmanager
def raw_server(answer):
    """(the heads and bodies that came, the base URL) of a server that does what `answer(head, reader, writer)` does."""
    came = []

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                size = int(next(x for x in head.lower().split("\r\n") if x.startswith("content-length")).split(":")[1])
                came.append((head, await reader.readexactly(size)))
                await answer(head, reader, writer)
        writer.close()

    with in_thread(serve) as port:
        yield came, f"http://127.0.0.1:{port}/v1"


@contextlib.contextmanager
def in_thread(serve, port=0):
    """The port at which a thread serves connections."""
    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", port, backlog=512))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        listening.close()
        loop.run_until_complete(_end_the_rest())
        loop.close()


async def _end_the_rest():
    """End the connections that are open still."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
