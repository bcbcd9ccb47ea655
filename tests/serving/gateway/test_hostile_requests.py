"""Hostile clients: bodies, heads, upgrades, and web pages that call a gateway on their reader's machine."""

import json
import math
import socket
import time

import pytest
from helpers.chat_server import Response, sure
from helpers.gateway_service import SURE, gateway

QUESTION = {"model": "policy", "messages": [{"role": "user", "content": "A or B?"}]}
OPEN = json.dumps(QUESTION)[:-1].encode()


def answers(request, headers):
    return Response(sure("A", SURE))


@pytest.fixture(scope="module")
def service():
    with gateway(behave=answers) as service:
        yield service


def with_field(value):
    """A request with a field that the gateway does not know."""
    return OPEN + b', "x": ' + value + b"}"


#: Bodies that are small enough, and what becomes of them.
BODIES = {
    "lists": (with_field(b"[" + b"[]," * 1_200_000 + b"[]]"), 413),
    "one field again and again": (with_field(b"{" + b'"a":1,' * 500_000 + b'"a":1}'), 413),
    "very deep lists": (with_field(b"[" * 1_900_000 + b"]" * 1_900_000), 400),
    "quotes that are escaped": (with_field(b'"' + rb"\"" * 1_900_000 + b"[" * 101), 400),
    "quotes": (with_field(b'"' * 3_900_000 + b"[" * 101), 413),
    "a long whole number": (with_field(b"1" * 3_900_000), 400),
    "a long text": (
        json.dumps({**QUESTION, "messages": [{"role": "user", "content": "[{," * 1_200_000}]}).encode(),
        200,
    ),
    "no end": (with_field(b"[" + b"1," * 90_000), 400),
}


def test_a_legal_body_delays_no_other_request(service):
    for name, (body, status) in BODIES.items():
        asked, start = len(service.server.requests), time.process_time()
        reply = service.post(body)
        assert time.process_time() - start < 1.5, name  # of this process, where the client is too
        assert reply.status == status, name
        if status != 200:
            assert reply.json["error"]["code"] in ("request_too_complex", "invalid_json")
            assert len(service.server.requests) == asked


def exchange(service, *parts, replies=math.inf):
    """Send bytes unchanged, and return the gateway's bytes until it closes, or has sent a number of replies."""
    host, port = service.url.removeprefix("http://").split(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=120.0) as connection:
        try:
            for part in parts:
                connection.sendall(part)
            while data := connection.recv(65536):
                received += data
                if received.count(b"HTTP/1.1 ") >= replies:
                    connection.settimeout(0.5)
        except (ConnectionError, TimeoutError):
            pass
    return received


POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
BODY = json.dumps(QUESTION).encode()
HEADS = [
    [POST + b"x: ", *[b"y" * 65536] * 4],
    [POST, *[b"a: b\r\n" * 4000] * 8],
    [b"GET /" + b"a" * 65536, *[b"a" * 65536] * 4],
]


def test_a_head_that_is_too_large_is_refused(service):
    for parts in HEADS:
        said = exchange(service, *parts)
        assert said.startswith(b"HTTP/1.1 400 ") or said == b""  # what was read no more resets the connection
        assert service.ask().status == 200


def test_bytes_after_a_body_are_limited(service):
    chunked = POST + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
    exchange(service, chunked, *[b"x: " + b"y" * 65536] * 8)
    assert b" 200 OK" in exchange(service, chunked + b"x: y\r\n\r\n", replies=1)


def upgrade(*more, method=POST, body=BODY):
    lines = b"".join(line + b"\r\n" for line in more)
    return method + lines + b"content-length: %d\r\n\r\n" % len(body) + body


#: What Java's client, curl and others send beside a request, to go on by HTTP/2 if the server can.
H2C = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAARAAAAAAAIAAAAA")
UPGRADES = {
    "Java's": upgrade(*H2C),
    "byte by byte": [bytes([one]) for one in upgrade(*H2C)],
    "a web socket's": upgrade(b"connection: upgrade", b"upgrade: websocket", b"sec-websocket-key: AA=="),
    "with the next request behind it": upgrade(*H2C) + upgrade(b"connection: close"),
}


@pytest.mark.parametrize("sent", list(UPGRADES.values()), ids=list(UPGRADES))
def test_an_offer_of_another_protocol_is_ignored(service, sent):
    before, parts = len(service.server.requests), [sent] if isinstance(sent, bytes) else sent
    number = 2 if b"connection: close" in b"".join(parts) else 1
    assert exchange(service, *parts, replies=number).count(b"HTTP/1.1 200 OK") == number
    assert {request["messages"][0]["content"] for request in service.server.requests[before:]} == {"A or B?"}


JSON = {"content-type": "application/json"}
#: Headers of a request without a key, and what becomes of it.
PAGES = [
    ({**JSON}, 200, None),
    ({"content-type": "Application/JSON; charset=utf-8"}, 200, None),
    ({"content-type": "text/plain"}, 415, "unsupported_media_type"),
    ({"content-type": "application/jsonp"}, 415, "unsupported_media_type"),
    ({"content-type": ""}, 415, "unsupported_media_type"),
    ({**JSON, "origin": "https://evil.example"}, 403, "foreign_origin"),
    ({**JSON, "origin": "null"}, 403, "foreign_origin"),
    ({**JSON, "host": "evil.example"}, 421, "unknown_host"),
    ({**JSON, "host": "127.0.0.1.evil.example"}, 421, "unknown_host"),
    ({**JSON, "host": "localhost@evil.example"}, 421, "unknown_host"),
    ({**JSON, "host": ""}, 421, "unknown_host"),
    ({**JSON, "host": "[]"}, 421, "unknown_host"),
    ({**JSON, "host": "[]:80"}, 421, "unknown_host"),
    ({**JSON, "host": ":80"}, 421, "unknown_host"),
    ({**JSON, "host": "localhost:8080"}, 200, None),
    ({**JSON, "host": "LOCALHOST"}, 200, None),
    ({**JSON, "host": "[::1]:80"}, 200, None),
    ({**JSON, "host": "127.0.0.2"}, 200, None),
    ({**JSON, "host": "Box.local:8080"}, 200, None),
]


@pytest.fixture(scope="module")
def local():
    with gateway(behave=answers, hosts=("box.local",)) as service:
        yield service


def test_requests_that_a_web_page_could_send_are_refused(local):
    for headers, status, code in PAGES:
        before = len(local.server.requests)
        reply = local.post(QUESTION, **{"content-type": headers["content-type"], **headers})
        assert (reply.status, reply.json.get("error", {}).get("code")) == (status, code), headers
        assert len(local.server.requests) == before + (status == 200)
        if "host" in headers:
            assert local.get("/metrics", host=headers["host"]).status == (421 if status == 421 else 200)
            assert local.get("/health", host=headers["host"]).status == 200
        if code is not None:
            assert f'reason="{code}",status="{status}"' in local.get("/metrics").body.decode()


def test_a_path_with_an_extra_slash_redirects_to_no_other_host(service):
    reply = service.post(QUESTION, "/v1/chat/completions/", host="evil.example")
    assert (reply.status, "location" in reply.headers) == (404, False)


CHUNK = b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
BEHIND = [
    (b"localhost", b"host: evil.example\r\norigin: null\r\nx-rcjax-query: a b\r\n", 200),
    (b"[::1].evil.example", b"", 421),
    (b"[::1]evil:80", b"", 421),
]


def test_what_stands_behind_a_body_or_a_name_counts_for_nothing(local):
    for host, behind, status in BEHIND:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: %s\r\nconnection: close\r\n" % host
        assert exchange(local, head + CHUNK + behind + b"\r\n").startswith(b"HTTP/1.1 %d " % status)
