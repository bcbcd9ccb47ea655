"""Connections of Uvicorn's, with what it leaves open: how long and how large a head may be, upgrades, a soft end.

Uvicorn waits for ever for the rest of a head that comes slowly, keeps a head of any size, loses the body of a request
that offers HTTP/2 as well (as Java's client and `curl --http2` do), and at the end closes connections on which a
request may just have been sent.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rcjax.serving.gateway.api_errors import ApiError

_HOP = (b"connection", b"upgrade", b"http2-settings")  # headers that go with an offer of another protocol


class Connection(HttpToolsProtocol):
    """One of Uvicorn's connections, closed where the head of a request takes too long to come, or is too large."""

    head_seconds: ClassVar[float] = 30.0
    head_bytes: ClassVar[int] = 65_536
    farewell_seconds: ClassVar[float] = 1.0
    """How long an idle connection stays open at the end, for a request that is on its way."""

    parser: Any
    _timer: asyncio.TimerHandle | None = None
    _transport: asyncio.BaseTransport | None = None
    _unread = 0  # bytes that made no part of a request whole
    _data = b""
    _again = _ending = _in_body = False

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._transport = transport
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait no more once a head is whole, and again from the first byte of the next one."""
        self._data = data
        self._unread += len(data)
        super().data_received(data)
        self._data = b""
        if self._unread > self.head_bytes:
            self._refuse()
        if self._is_at_work():
            self._stop()
        elif self._timer is None:
            self._wait()

    def on_message_begin(self) -> None:
        """Take the head of a request."""
        self._in_body = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those behind a body are none of the request's, which may be answered by then."""
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer, unless the head is too large, or must be read again without an offer to upgrade."""
        self._unread, self._in_body = 0, True
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.head_bytes:
            self._refuse()
        elif not self._offers_upgrade():
            super().on_headers_complete()
            self.cycle.keep_alive = self.cycle.keep_alive and not self._ending

    def on_body(self, body: bytes) -> None:
        """Take a part of a body, unless its request was refused."""
        self._unread = 0
        if self.cycle is not None and not self._is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Take the end of a request, unless it was refused, or is read again."""
        self._unread = 0
        if self.cycle is not None and not self._is_closing() and not self._offers_upgrade():
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End softly: an idle connection waits a moment for a request that is on its way, and answers that."""
        if self._is_at_work():
            super().shutdown()
            return
        self._ending = True
        asyncio.get_running_loop().call_later(self.farewell_seconds, super().shutdown)

    def _offers_upgrade(self) -> bool:
        """Whether a request is to be read again: httptools takes what follows for another protocol, not for a body."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _unsupported_upgrade_warning(self) -> None:
        """Read a request again without its offer; Uvicorn calls this where its parser stops at one."""
        stop = sys.exc_info()[1]
        if self._again or stop is None or not stop.args:  # several at once are no client's
            self.transport.close()
            return
        old, rest = self.parser, self._data[stop.args[0] :]
        head = [b"%s %s HTTP/%s" % (old.get_method(), self.url, old.get_http_version().encode())]
        head += [b"%s: %s" % pair for pair in self.headers if pair[0] not in _HOP]
        head += [] if old.should_keep_alive() else [b"connection: close"]
        self.parser, self._again = type(old)(self), True
        self.data_received(b"\r\n".join([*head, b"", b""]) + rest)
        self._again = False

    def _refuse(self) -> None:
        """Answer a head that is too large, where no other answer is under way, and close."""
        self._unread = 0
        if self._is_closing():
            return
        gateway = self.app_state.get("gateway")
        error = ApiError(431, f"the head of the request is larger than {self.head_bytes:,} bytes", "head_too_large")
        if gateway is not None:
            gateway.metrics.refused(error.code, error.status)
        if not self._is_at_work():
            body = json.dumps(error.to_json()).encode()
            head = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
            self.transport.write(head + b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        self.transport.close()

    def _is_closing(self) -> bool:
        return self.transport.is_closing()

    def _is_at_work(self) -> bool:
        cycle: Any = getattr(self, "cycle", None)
        return cycle is not None and not cycle.response_complete

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.head_seconds, self._close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        self._timer = None
        if self._transport is not None and not self._is_at_work():
            self._transport.close()
