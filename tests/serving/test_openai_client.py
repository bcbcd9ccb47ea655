"""Requests to an endpoint are sent alike, and fail alike, whichever client sends them."""

import asyncio
import contextlib
import json
import os
import socket
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import openai
import pytest
from helpers.chat_server import completion
from openai._models import FinalRequestOptions

from rcjax.serving import openai_client
from rcjax.serving.failures import CallError, Failure, read_retry_after
from rcjax.serving.openai_client import CompletionRequest, complete, stream
from rcjax.serving.usage import CallUsage

MESSAGES = [{"role": "user", "content": "Is it médium?"}]
BODY = json.dumps(completion("A")).encode()
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY)
CHUNK = b'data: {"choices": [{"index": 0, "delta": {"content": "A"}, "finish_reason": null}]}\n\n'
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
BEGUN = STREAM + b"%x\r\n%s\r\n" % (len(CHUNK), CHUNK)
LIMITED = b"HTTP/1.1 429 x\r\ncontent-length: 0\r\nretry-after: 1\r\n\r\n"
LOST = Failure(transient=True, charged=True)
LATE = replace(LOST, timed_out=True)


@dataclass(frozen=True)
class Way:
    """What a server does with a request."""

    said: bytes = b""
    ends: bool = True
    """It closes the connection then."""
    resets: bool = False


class Server:
    """Takes requests, one a connection at a time, and says the same to each, or what a list has."""

    def __init__(self, way):
        self.way, self.requests = way, []
        self.asked, self.closed = asyncio.Event(), asyncio.Event()

    async def __call__(self, reader, writer):
        way = self.way.pop(0) if isinstance(self.way, list) else self.way
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
                headers = dict(line.split(": ", 1) for line in head[1:] if line)
                body = await reader.readexactly(int(headers["content-length"]))
                self.requests.append((head[0], headers, json.loads(body)))
                self.asked.set()
                writer.write(way.said)
                await writer.drain()
                if way.resets:
                    writer.transport.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
                    )
                if way.ends:
                    break
        self.closed.set()
        writer.close()


def make_client(kind, base_url, monkeypatch):
    if kind == "user's":
        return openai.AsyncOpenAI(api_key="key", base_url=base_url)
    if kind == "ours, HTTPX":

        def missing(**_):
            raise RuntimeError("install the package with the `aiohttp` extra")

        monkeypatch.setattr(openai, "DefaultAioHttpClient", missing)
    return openai_client.make_api_client(base_url=base_url, key="key", timeout=5.0)


@contextlib.asynccontextmanager
async def serving(kind, way, monkeypatch, retries=0, timeout=None):
    """(the server, a client of it), whose time is short only where the server goes on saying nothing."""
    if timeout is None:
        timeout = 30.0 if way is None or way.ends else 2.0
    server = Server(way)
    listening = await asyncio.start_server(server, "127.0.0.1", 0, backlog=1024)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    if way is None:
        listening.close()
    async with make_client(kind, url, monkeypatch) as client:
        yield server, client.with_options(max_retries=retries, timeout=timeout)
    listening.close()


every_client = pytest.mark.parametrize("kind", ["user's", "ours, HTTPX", "ours"])


@every_client
def test_every_option_is_sent(kind, monkeypatch):
    options = {
        "temperature": 0.5,
        "logprobs": True,
        "stop": ["é", "\n"],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "extra_headers": {"X-Own": "1"},
        "extra_query": {"api-version": "2"},
        "extra_body": {"top_k": 3, "temperature": 0.7},
        "timeout": 40.0,
    }

    async def main():
        async with serving(kind, Way(HEAD + BODY, ends=False), monkeypatch) as (server, client):
            usage = CallUsage()
            reply = await complete(CompletionRequest(client, "org/m", MESSAGES, options), usage)
        return server.requests, reply, usage

    ((line, headers, body),), reply, usage = asyncio.run(main())
    assert line == "post /v1/chat/completions?api-version=2 http/1.1"
    fields = {name: value for name, value in options.items() if not name.startswith("extra") and name != "timeout"}
    assert body == {"model": "org/m", "messages": MESSAGES} | fields | options["extra_body"]
    expected = {"authorization": "bearer key", "x-own": "1", "content-type": "application/json"}
    assert expected.items() <= headers.items()
    assert float(headers["x-stainless-read-timeout"]) == 40
    assert reply == completion("A")
    assert (usage.attempts, usage.replies, usage.tokens.input) == (1, 1, 100)


@every_client
@pytest.mark.parametrize(
    ("way", "words", "failure"),
    [
        (None, "no connection", Failure(transient=True, charged=False)),
        (Way(), "no connection", LOST),
        (Way(resets=True), "no connection", LOST),
        (Way(HEAD + BODY[:50]), "no connection", LOST),
        (Way(ends=False), "timed out", LATE),
        (Way(HEAD + BODY[:50], ends=False), "timed out", LATE),
        (Way(b"\xff\xfe no HTTP\r\n\r\n"), "no connection", LOST),
        (Way(LIMITED), "HTTP 429", Failure(429, None, 1.0, True)),
        (Way(b"HTTP/1.1 404 x\r\ncontent-length: 0\r\n\r\n"), "HTTP 404", Failure(404)),
        (Way(b"HTTP/1.1 524 x\r\ncontent-length: 0\r\n\r\n"), "HTTP 524", Failure(524, None, None, True, True, True)),
    ],
)
def test_failures_are_alike_for_all_clients(kind, way, words, failure, monkeypatch):
    async def main():
        async with serving(kind, way, monkeypatch, retries=1) as (server, client):
            usage = CallUsage()
            with pytest.raises(CallError) as problem:
                await complete(CompletionRequest(client, "m", MESSAGES, {}), usage)
        return problem.value, usage, [headers[openai_client.RETRY_HEADER] for _, headers, _ in server.requests]

    problem, usage, sent = asyncio.run(main())
    assert (str(problem), problem.failure) == (words, failure)
    assert sent == ([] if way is None else ["0", "1"][: usage.attempts])
    is_repeated = failure.transient and not failure.timed_out  # a late answer may be charged: it is not bought again
    assert usage.attempts == 1 + is_repeated or b"no HTTP" in way.said
    assert problem.__context__ is None


@every_client
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("said", ["lost, answer", "limited, limited, lost"])
def test_each_attempt_that_may_be_charged_is_counted(kind, said, streamed, monkeypatch):
    """A refused one is not, whatever comes before or after it."""
    limited = Way(LIMITED.replace(b"retry-after: 1", b"retry-after-ms: 1\r\nconnection: close"))
    answer = Way(BEGUN + b"0\r\n\r\n" if streamed else HEAD + BODY)
    ways, usage = {"lost": Way(), "limited": limited, "answer": answer}, CallUsage()

    async def forward(chunk):
        pass

    async def main():
        script = [ways[name] for name in said.split(", ")]
        async with serving(kind, script, monkeypatch, retries=2, timeout=30.0) as (_, client):
            request = CompletionRequest(client, "m", MESSAGES, {})
            with contextlib.suppress(CallError):
                await (stream(request, usage, forward) if streamed else complete(request, usage))

    asyncio.run(main())
    assert (usage.attempts, usage.replies, usage.unanswered) == (said.count(",") + 1, int("answer" in said), 1)


@every_client
@pytest.mark.parametrize(("ends", "words"), [(True, "no connection"), (False, "timed out")])
def test_a_stream_that_breaks_off_says_so_after_what_came(kind, ends, words, monkeypatch):
    chunks, usage = [], CallUsage()

    async def forward(chunk):
        chunks.append(chunk)

    async def main():
        async with serving(kind, Way(BEGUN, ends=ends), monkeypatch) as (_, client):
            await stream(CompletionRequest(client, "m", MESSAGES, {}), usage, forward)

    with pytest.raises(CallError) as problem:
        asyncio.run(main())
    assert chunks == [json.loads(CHUNK.decode().strip().removeprefix("data: "))]
    failure = Failure(charged=True, timed_out=not ends)
    assert (str(problem.value), problem.value.failure, usage.attempts) == (words, failure, 1)


def test_chunks_that_came_before_a_connection_broke_are_handed_on(monkeypatch):
    """However late they are read: aiohttp drops what it holds when it sees the end."""
    number, chunks, gone = 1000, [], asyncio.Event()

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(BEGUN + BEGUN.removeprefix(STREAM) * (number - 1))
        writer.write_eof()
        while await reader.read(1000):
            pass
        gone.set()  # the client has seen the end, and has closed

    async def forward(chunk):
        chunks.append(chunk)
        await gone.wait()

    async def main():
        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
        async with make_client("ours", url, monkeypatch) as client:
            with pytest.raises(CallError, match="no connection"):
                await stream(CompletionRequest(client, "m", MESSAGES, {}), CallUsage(), forward)
        listening.close()

    asyncio.run(asyncio.wait_for(main(), 30))
    assert len(chunks) == number


@every_client
@pytest.mark.parametrize("streamed", [False, True])
def test_a_request_that_nobody_waits_for_is_closed_at_once(kind, streamed, monkeypatch):
    way = Way(BEGUN if streamed else b"", ends=False)

    async def main():
        begun = asyncio.Event()
        async with serving(kind, way, monkeypatch, timeout=60.0) as (server, client):

            async def forward(chunk):
                begun.set()

            async def ask():
                request = CompletionRequest(client, "m", MESSAGES, {})
                if not streamed:
                    await complete(request, CallUsage())
                await stream(request, CallUsage(), forward)

            task = asyncio.create_task(ask())
            await (begun if streamed else server.asked).wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(server.closed.wait(), 30.0)

    asyncio.run(main())


def test_only_openais_endpoint_gets_what_the_environment_has_for_it(monkeypatch):
    """And the environment stays as it is, for whoever reads it at the same time."""
    for name, value in (("ORG_ID", "an-org"), ("PROJECT_ID", "a-project"), ("CUSTOM_HEADERS", "x-secret: yes")):
        monkeypatch.setenv(f"OPENAI_{name}", value)
    monkeypatch.setattr(os.environ.__class__, "pop", lambda *_: pytest.fail("the environment is changed"))
    sent = {}
    for address in (None, "http://127.0.0.1:9/v1"):
        for kind in ("plain", "with options"):
            client = openai_client.make_api_client(base_url=address, key="k", timeout=1.0)
            client = client if kind == "plain" else client.with_options(timeout=2.0, max_retries=0)
            options = FinalRequestOptions(method="post", url="/chat/completions", json_data={})
            sent[address, kind] = client._build_request(options).headers
    for (address, _), headers in sent.items():
        values = [headers.get(name) for name in ("openai-organization", "openai-project", "x-secret")]
        assert values == (["an-org", "a-project", "yes"] if address is None else [None] * 3)
        assert headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(("base_url", "name"), [(None, "max_completion_tokens"), ("http://box:1/v1", "max_tokens")])
def test_openai_gets_its_newer_name_of_the_limit_on_tokens(base_url, name, monkeypatch):
    """Its newer models refuse the older name, also in a signal's second question."""
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    sent = []

    def behave(request):
        sent.append(json.loads(request.content))
        return openai_client.HTTP.Response(200, json=completion("A"))

    async def ask():
        http = openai_client.HTTP.AsyncClient(transport=openai_client.HTTP.MockTransport(behave))
        client = openai.AsyncOpenAI(api_key="key", base_url=base_url, http_client=http)
        await complete(CompletionRequest(client, "m", MESSAGES, {"max_tokens": 8}), CallUsage())

    asyncio.run(ask())
    assert {one: sent[0].get(one) for one in ("max_tokens", "max_completion_tokens") if one in sent[0]} == {name: 8}


@pytest.mark.parametrize("zone", ["GMT", "+0000", "-0000", ""])
def test_a_date_to_retry_at_is_in_utc_if_it_has_no_zone(zone, monkeypatch):
    monkeypatch.setenv("TZ", "Etc/GMT-9")
    time.tzset()
    try:
        later = datetime.now(UTC) + timedelta(seconds=100)
        assert 90 < read_retry_after({"retry-after": f"{later:%a, %d %b %Y %H:%M:%S} {zone}"}) <= 100
    finally:
        monkeypatch.undo()
        time.tzset()
