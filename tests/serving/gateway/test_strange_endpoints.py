"""Endpoints that drip, that have a query in their address, or are not OpenAI's; what a request may leave in the log."""

import asyncio
import json
import socket
import time

import pytest
from chat_server import Response, raw_server, sure
from gateway_service import MODELS, SURE, gateway

from rcjax.serving.gateway.settings import Access

QUESTION = {"model": "policy", "messages": [{"role": "user", "content": "A or B?"}]}


def answers(request, headers):
    return Response(sure("B", SURE))


async def at_once(head, reader, writer):
    body = json.dumps(sure("B", SURE)).encode()
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))


async def drips(head, reader, writer):
    """A byte of the answer now and then."""
    body = json.dumps(sure("B", SURE)).encode()
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
    for byte in body:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.1)


def test_what_is_for_openai_goes_to_openai_alone(monkeypatch):
    """Organisation, project and headers of OpenAI's went to every endpoint, and took the place of its key."""
    monkeypatch.setenv("OPENAI_ORG_ID", "s3cret-org")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "s3cret-project")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Custom: s3cret\nAuthorization: Bearer s3cret")
    with raw_server(at_once) as (came, url), gateway(base_url=url) as service:
        assert service.ask().status == 200
        assert service.post({**QUESTION, "model": "large"}).status == 200
    assert len(came) == 2
    assert not any("s3cret" in head for head, _ in came)


def test_a_base_url_may_have_a_query():
    """The path of the interface was put behind the query."""
    with raw_server(at_once) as (came, url), gateway(base_url=f"{url}?api-version=2024-10-21") as service:
        assert service.ask().status == 200
        assert service.post({**QUESTION, "model": "large"}).status == 200
    assert {head.split()[1] for head, _ in came} == {"/v1/chat/completions?api-version=2024-10-21"}


@pytest.mark.parametrize("value", ['"é"', '"one\\ntwo"', "3"])
def test_a_header_that_cannot_be_sent_is_told_at_the_start(value):
    tables = dict.fromkeys(MODELS, f'options = {{ extra_headers = {{ "X-Own" = {value} }} }}')
    says = "model small: options: extra_headers: the header 'X-Own' cannot be sent"
    with pytest.raises(ValueError, match=says), gateway(tables=tables):
        pass


def test_an_attempt_has_an_end_whatever_drips_in():
    """The limit was one of each read: all of --deadline went by."""
    limits = {"timeout": 0.4, "deadline": 30.0, "retries": 1}
    with raw_server(drips) as (came, url), gateway(base_url=url, limits=limits) as service:
        start = time.monotonic()
        reply = service.post({**QUESTION, "model": "large"})
        assert time.monotonic() - start < 10
        assert (reply.status, reply.json["error"]["code"]) == (504, "upstream_timed_out")
        assert len(came) == 2
        assert [(row["error"], row["attempts"]) for row in service.log_rows()] == [("timed out", 2)]


def test_no_options_make_a_line_long():
    """Options of sampling within each other made lines of any length."""
    stop = ["x" * 32] * 64
    nested = {"stop": stop}
    for _ in range(30):
        nested = {"options": nested, "stop": stop}
    wide = {name: ["A" * 32] * 64 for name in ("effort", "min_p", "priority", "seed", "top_k", "type", "verbosity")}
    with gateway(behave=answers) as service:
        for fields in (nested, wide, {**wide, "seed": 1}, {"top_k": 4}):
            assert service.post({**QUESTION, **fields}).status == 200
        rows = service.log_rows()
    assert max(len(json.dumps(row)) for row in rows) < 16_000
    told = [json.loads(row["asked"]) for row in rows]
    assert told[-1]["options"]["extra_body"] == {"top_k": 4}
    assert len({one.get("others") for one in told}) == 4  # each is another way of asking


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: %s\r\ncontent-type: application/json\r\n"
BODY = json.dumps(QUESTION).encode()
CHUNK = b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (HEAD % b"localhost" + CHUNK + b"host: evil.example\r\norigin: null\r\n\r\n", 200),
        (HEAD % b"localhost" + CHUNK + b"x-rcjax-query: a b\r\n\r\n", 200),
        (HEAD % b"[::1].evil.example" + CHUNK + b"\r\n", 421),
        (HEAD % b"[::1]evil:80" + CHUNK + b"\r\n", 421),
        (HEAD % b"[::1]:80" + CHUNK + b"\r\n", 200),
    ],
)
def test_what_stands_behind_a_body_or_a_name_counts_for_nothing(sent, status):
    with gateway(behave=answers, access=Access((), guarded=True)) as service:
        host, port = service.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(sent)
            assert connection.recv(65_536).startswith(b"HTTP/1.1 %d " % status)
