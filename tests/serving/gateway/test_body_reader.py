"""The bodies that a worker reads: stalled bodies, the bytes of all requests, answers that no client reads."""

import asyncio
import contextlib
import json
import re
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import pytest
from helpers.chat_server import Response, completion, sure
from helpers.gateway_service import SURE, gateway, gateway_process, until
from starlette.datastructures import Headers

from benchmarks.gateway.servers import boxed
from rcjax.serving.gateway.chat_request import BodyReader, RequestLimits
from rcjax.serving.gateway.clients import ApiError
from rcjax.serving.gateway.processes import Connection

HEAD = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
HEAD += "content-length: {}\r\n"


def behave(request, headers):
    return Response(sure("B", SURE))


def held(service, stack, number, sent=b" "):
    """Open connections whose bodies stop before their end."""
    port = int(service.url.rpartition(":")[2])
    for _ in range(number):
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 120))
        connection.sendall(HEAD.format(1000).encode() + b"\r\n" + sent)
        yield connection


def figure(service, text):
    return next(line for line in service.get("/metrics").body.decode().splitlines() if line.startswith(text))


def test_stalled_bodies_keep_no_client_out():
    with gateway(behave=behave, limits={"concurrency": 8}) as service, contextlib.ExitStack() as stack:
        connections = [*held(service, stack, 8)]
        until(lambda: len(service.app.state.gateway.body_reader._arriving) == 8)
        assert service.app.state.gateway.in_progress == 0
        for _ in range(3):
            assert service.ask().status == 200
        assert b" 429 " in connections[0].recv(100)  # the oldest
        until(lambda: len(service.app.state.gateway.body_reader._arriving) == 7)


@pytest.mark.parametrize("length", ["²", "-1", "x", ""])
def test_a_length_that_is_no_number_is_ignored(length):
    async def whole():
        return {"type": "http.request", "body": b"y"}

    body_reader = BodyReader(RequestLimits())
    with body_reader.open_memory() as held:
        assert asyncio.run(body_reader.read(whole, Headers({"content-length": length}), held)) == b"y"


def test_a_dropped_body_is_not_answered_even_if_its_last_part_is_there():
    """The bytes of a dropped body no longer count."""

    async def main():
        body_reader = BodyReader(RequestLimits(max_body=4_000, max_in_flight=4_000))
        parts = asyncio.Queue()

        async def read(receive):
            with body_reader.open_memory() as held:
                return await body_reader.read(receive, Headers(), held)

        async def whole():
            return {"type": "http.request", "body": b"y" * 2_000}

        parts.put_nowait({"type": "http.request", "body": b"x" * 3_000, "more_body": True})
        oldest = asyncio.create_task(read(parts.get))
        await asyncio.sleep(0)
        parts.put_nowait({"type": "http.request", "body": b"x"})
        assert len(await read(whole)) == 2_000
        with pytest.raises(ApiError, match="too many requests arrive at once"):
            await oldest
        assert body_reader.size == 0

    asyncio.run(main())


def test_bytes_of_all_requests_are_limited():
    text = "x" * 3_000
    limits = {"max_body": 4_000, "max_in_flight": 9_000}

    refused = threading.Event()

    def behave(request, headers):
        assert refused.wait(120)
        return Response(sure("B", SURE))

    with gateway(behave=behave, limits=limits) as service:
        with ThreadPoolExecutor(6) as pool:
            replies = as_completed([pool.submit(service.ask, text) for _ in range(6)])
            assert [next(replies).result().status for _ in range(4)] == [429] * 4
            refused.set()
            assert [reply.result().status for reply in replies] == [200] * 2
        service.wait_until_idle()
        assert service.app.state.gateway.body_reader.size == 0
        assert service.ask(text).status == 200


def test_an_answer_that_nobody_reads_keeps_its_place_until_its_connection_is_closed(monkeypatch):
    monkeypatch.setattr(Connection, "unread_seconds", 8.0)
    long = "B" * 8_000_000

    with gateway(behave=lambda *_: Response(completion(long)), limits={"concurrency": 1}) as service:
        port = int(service.url.rpartition(":")[2])
        body = json.dumps({"model": "large", "messages": [{"role": "user", "content": "x"}]}).encode()
        with socket.create_connection(("127.0.0.1", port), 120) as connection:
            connection.sendall(HEAD.format(len(body)).encode() + b"\r\n" + body)
            until(lambda: service.app.state.gateway.in_progress == 1)
            time.sleep(1.0)
            assert service.ask().status == 429  # it has its place still
            until(lambda: service.app.state.gateway.in_progress == 0)
        reply = service.ask(model="large")
        assert (reply.status, len(reply.json["choices"][0]["message"]["content"])) == (200, len(long))


def test_whole_replies_count_among_the_bytes_of_their_requests():
    with gateway(behave=lambda *_: Response(completion("B" * 20_000)), limits={"max_in_flight": 9_000}) as service:
        reply = service.ask(model="large")
        assert reply.status == 502
        assert "malformed answer: too large beside others at once" in reply.body.decode()
        assert service.ask(model="large", stream=True).status == 200  # what streams does not stay
        service.wait_until_idle()
        assert service.app.state.gateway.body_reader.size == 0


def test_shadow_queries_keep_their_bytes_until_their_calls_end():
    """Meanwhile no other query is a shadow query, and requests are answered."""
    go = asyncio.Event()

    def behave_once_it_goes(request, headers):
        if request["messages"][0]["content"] == "go":
            go.set()
        return Response(sure("B", SURE), held=None if request["model"] == "org/small" else go)

    with gateway(behave=behave_once_it_goes, shadow=1.0, limits={"max_in_flight": 9_000}) as service:
        body_reader = service.app.state.gateway.body_reader
        assert service.ask("x" * 2_500).status == 200
        until(lambda: len(service.server.requests) == 3)
        assert service.ask("x" * 2_500).status == 200
        until(lambda: 2_500 < body_reader.size < 2_700)
        assert len(service.server.requests) == 4
        assert service.ask("go").status == 200
        service.logged(5)
        until(lambda: body_reader.size == 0)
        assert [row["shadow"] for row in service.log_rows() if row["model"] == "small"] == [True, False, False]
        page = service.get("/metrics").body.decode()
        assert 'rcjax_shadow_queries_total{outcome="asked",policy="policy"} 1.0' in page
        assert 'rcjax_shadow_queries_total{outcome="no memory",policy="policy"} 2.0' in page


def test_replies_to_shadow_calls_count_among_the_bytes_of_all_requests():
    def long_where_shadow(request, headers):
        return Response(sure("B", SURE) if request["model"] == "org/small" else completion("B" * 20_000))

    with gateway(behave=long_where_shadow, shadow=1.0, limits={"max_in_flight": 9_000}) as service:
        assert service.ask().status == 200
        service.logged(3)
        errors = [row["error"] for row in service.log_rows() if row["model"] != "small"]
        assert errors == ["malformed answer: too large beside others at once"] * 2
        until(lambda: service.app.state.gateway.body_reader.size == 0)


@pytest.mark.thorough
def test_prompts_and_replies_of_many_megabytes_fit_into_the_memory_of_a_small_container():
    """Forty requests at once: with prompts of 3.9 MB, with replies of 8 MB, with replies of 3 MB of empty lists."""

    def large(request, headers):
        kind = request["messages"][0]["content"][:5]
        if kind == "reply":
            return Response(completion("B" * 8_000_000))
        reply = completion("B")
        reply["choices"][0]["message"]["more"] = [[]] * (750_000 if kind == "parts" else 0)
        return Response(reply, delay=2.0 if kind == "xxxxx" else 0.0)

    with boxed(512) as box, _within(box, large) as service, ThreadPoolExecutor(40) as pool:
        for text in ("x" * 3_900_000, "reply", "parts"):
            asked = [pool.submit(service.ask, text, model="large") for _ in range(40)]
            assert {one.result().status for one in asked} <= {200, 429, 502}
        status = Path(f"/proc/{service.process.pid}/status").read_text()
        assert int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) < 512_000
        assert box is None or box.killed() == 0


def _within(box, behave):
    """A service whose memory a control group limits, where one can be made."""
    enter = [] if box is None else ["sh", "-c", f'echo $$ > {box.folder}/cgroup.procs && exec "$@"', "sh"]
    return gateway_process(None, behave, python=[*enter, sys.executable])


def test_bytes_of_stalled_bodies_make_room_for_others():
    limits = {"max_body": 4_000, "max_in_flight": 9_000}
    with gateway(behave=behave, limits=limits) as service, contextlib.ExitStack() as stack:
        port = int(service.url.rpartition(":")[2])
        connections = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 120)) for _ in range(3)]
        for number, connection in enumerate(connections):
            connection.sendall(HEAD.format(4_000).encode() + b"\r\n" + b" " * 3_000)
            until(lambda number=number: service.app.state.gateway.body_reader.size == 3_000 * (number + 1))
        assert service.ask("x" * 2_000).status == 200
        assert b" 429 " in connections[0].recv(100)
        until(lambda: service.app.state.gateway.body_reader.size == 6_000)
