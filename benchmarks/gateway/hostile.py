"""What hostile clients send to `rcjax serve`, as bytes, and the statuses that are right for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
JSON = b"content-type: application/json\r\n"
BODY = b'{"model": "policy", "messages": [{"role": "user", "content": "good"}]}'
_START = BODY[:-1] + b', "documents": '
_UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"

#: Bodies of some four megabytes, and the statuses that are right.
BODIES: dict[str, tuple[Callable[[], bytes], Sequence[int]]] = {
    "a body of 1.2 million empty lists": (lambda: _START + b"[" + b"[]," * 1_200_000 + b"[]]}", (413,)),
    "a body of 600,000 fields": (lambda: _START + b"{" + b'"a":1,' * 600_000 + b'"b":1}}', (413,)),
    "a body nested 1.9 million deep": (lambda: _START + b"[" * 1_900_000 + b"]" * 1_900_000 + b"}", (400,)),
    "a body of 1.2 million messages": (
        lambda: b'{"model":"policy","messages":[' + b"{}," * 1_200_000 + b"{}]}",
        (413,),
    ),
    "a number of 3.9 million digits": (lambda: _START + b"1" * 3_900_000 + b"}", (400,)),
    "a text of 3.6 million characters": (lambda: _START + b'"' + b"[{," * 1_200_000 + b'"}', (200,)),
    "a body of 11 megabytes": (lambda: b" " * 11_000_000, (413,)),
    "bytes that are no JSON": (lambda: bytes(range(256)) * 4000, (400,)),
}


def posted(body: bytes, more: bytes = JSON, head: bytes = HEAD) -> bytes:
    return head + more + b"content-length: %d\r\n\r\n" % len(body) + body


#: What is sent as it is, and the statuses that are right; 0 where the connection is closed without a word.
SENT: dict[str, tuple[Callable[[], Sequence[bytes]], Sequence[int]]] = {
    "a header without an end": (lambda: [HEAD + b"x: ", *[b"y" * 65_536] * 64], (400, 0)),
    "100,000 headers": (lambda: [HEAD, *[b"a: b\r\n" * 10_000] * 10], (400, 0)),
    "a path without an end": (lambda: [b"GET /", *[b"a" * 65_536] * 64], (400, 0)),
    "what follows a body, without an end": (
        lambda: [HEAD + JSON + b"transfer-encoding: chunked\r\n\r\n0\r\n", *[b"x" * 65_536] * 64],
        (400, 0),
    ),
    "an offer of HTTP/2": (lambda: [posted(BODY, JSON + _UPGRADE)], (200,)),
    "4,000 offers of HTTP/2 at once": (
        lambda: [(b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + _UPGRADE + b"\r\n") * 4000],
        (200, 0),
    ),
    "a web page's request": (lambda: [posted(BODY, b"content-type: text/plain\r\norigin: https://a.b\r\n")], (403,)),
    "a form's request": (lambda: [posted(BODY, b"content-type: text/plain\r\n")], (415,)),
    "another name of this host": (
        lambda: [posted(BODY, head=b"POST /v1/chat/completions HTTP/1.1\r\nhost: evil.example\r\n")],
        (421,),
    ),
    "what is no HTTP": (lambda: [b"\x16\x03\x01\x00\xee" + bytes(range(256)) + b"\r\n\r\n"], (400, 0)),
    "2,000 requests in one piece": (lambda: [b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2000], (200,)),
}
