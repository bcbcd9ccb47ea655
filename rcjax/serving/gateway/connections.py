"""Connections whose requests must begin: Uvicorn waits for ever for the rest of a head that comes slowly, or never."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.auto import AutoHTTPProtocol

__all__ = ["Connection"]


class Connection(AutoHTTPProtocol):  # type: ignore[valid-type, misc]
    """One of Uvicorn's connections, closed where the head of a request takes too long to come."""

    head_seconds: ClassVar[float] = 30.0

    _timer: asyncio.TimerHandle | None = None
    _transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._transport = transport
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait no more once a head is whole, and again from the first byte of the next one."""
        super().data_received(data)
        if self._is_at_work():
            self._stop()
        elif self._timer is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop()
        super().connection_lost(exc)

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
