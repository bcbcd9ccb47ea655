"""Running the service: the socket, one process or several workers, signals. Uvicorn does the work.

Alone it waits for ever for the rest of a head that comes slowly, and at the end closes connections on which a request
may just have been sent: `Connection` is for these. It is one of h11, which takes a tenth of a millisecond more than
httptools: no head is of any size, and no body is lost behind an offer of HTTP/2, as `curl --http2` makes it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

from starlette.applications import Starlette
from uvicorn import Config, Server
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.supervisors import Multiprocess

from rcjax.serving.call_log import CascadeWarning
from rcjax.serving.gateway.catalog import FOLDER, Catalog, CatalogMaker, Clients, Settings, in_words
from rcjax.serving.gateway.service import build_app


class Connection(H11Protocol):
    """One of Uvicorn's connections, closed where the head of a request takes too long to come."""

    head_seconds: ClassVar[float] = 30.0
    farewell_seconds: ClassVar[float] = 1.0
    """How long an idle connection stays open at the end, for a request that is on its way."""

    unread_seconds: ClassVar[float] = 30.0
    """How long a client may read nothing of what is sent to it."""

    _unread: asyncio.TimerHandle | None = None
    _timer: asyncio.TimerHandle | None = None
    _ending = False

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait no more once a head is whole, and again from the first byte of the next one."""
        super().data_received(data)
        if not self._is_at_work():
            self._wait()
            return
        self._stop()
        if self._ending:
            self._close_after()

    def pause_writing(self) -> None:
        """Close the connection if its client goes on reading nothing: what waits for it is memory."""
        super().pause_writing()
        if self._unread is not None:
            self._unread.cancel()
        self._unread = asyncio.get_running_loop().call_later(self.unread_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on writing."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End softly: an idle connection waits a moment for a request that is on its way, and answers that."""
        self._ending = True
        if self._is_at_work():
            self._close_after()
            super().shutdown()
            return
        asyncio.get_running_loop().call_later(self.farewell_seconds, super().shutdown)

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing of an offer to go on by another protocol, which is ignored."""

    def _is_at_work(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _close_after(self) -> None:
        """Close after this request, as if its client had asked for that: then its answer says so, too."""
        self.scope["headers"] = [*self.scope["headers"], CLOSE_HEADER]

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.head_seconds, self._close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        self._timer = None
        if not self._is_at_work():
            self.transport.close()


_LOGGER = logging.getLogger("rcjax.serving")

_BACKLOG = 2048  # connections that wait to be taken

_LISTENERS = 16  # uvloop takes one connection of each in a turn of its loop: a busy one has few turns in a second

_PAUSE = 2.0  # seconds before another worker is tried in place of one that could not start

_PATIENCE = 60  # seconds until a worker answers its supervisor: on a busy machine the import alone takes long


_LOG_CONFIG: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(message)s"}},
    "handlers": {"error": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stderr"}},
    "loggers": {
        "rcjax.serving": {"handlers": ["error"], "level": "INFO", "propagate": False},
        "uvicorn": {"handlers": ["error"], "propagate": False},
    },
}


def serve(settings: Settings, host: str, port: int, workers: int, announce: Callable[[str, Catalog], None]) -> None:
    """Serve until a signal ends it.

    Args:
        settings: of the service.
        host: where to listen.
        port: 0 for any that is free.
        workers: how many processes.
        announce: is given the address, with its port, and the policies and models, once connections are taken.

    Raises ValueError or OSError for settings, files and addresses that cannot be used, before anything is served.
    """
    if (ledger := settings.open_ledger()) is not None:
        ledger.check()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CascadeWarning)  # said by whoever answers
        catalog = CatalogMaker(settings, Clients(settings.limits.timeout).of).read()
    with _listening(host, port) as listener, _counting_together(workers):
        if (log := settings.open_log()) is not None:  # one that cannot be opened is refused before anything is served
            log.close()
        config = Config(
            partial(_start, settings, alone=workers == 1),  # which workers call, each for itself
            factory=True,
            workers=workers,
            lifespan="on",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(settings.limits.drain_seconds) + 2,
            timeout_worker_healthcheck=_PATIENCE,
            http=Connection,
            log_config=_LOG_CONFIG,
            log_level="info" if workers > 1 else "warning",  # who starts, and who takes whose place
            ws="none",
        )
        if hasattr(signal, "SIGHUP"):  # until there is somebody who takes it
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        announce(_url(host, listener.getsockname()[1]), catalog)
        sockets = [listener, *(listener.dup() for _ in range(_LISTENERS - 1))]  # which the server closes
        for one in sockets:
            one.set_inheritable(True)
        if workers > 1:
            _Workers(config, sockets).run()
        else:
            server = _Alone(config)
            server.run(sockets)
            if server.interrupted:
                raise KeyboardInterrupt


class _Alone(Server):
    """Uvicorn's server, which ends with status 0 where it was told to end, as several workers do."""

    interrupted = False
    """Whether somebody at a terminal ended it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take signals while it serves; they are obeyed by then."""
        with super().capture_signals():
            yield
            self.interrupted = signal.SIGINT in self._captured_signals
            self._captured_signals.clear()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End; by a second signal at once: that the rest is cancelled then is no fault, and not told as one."""
        await super().shutdown(sockets)
        if self.force_exit:
            logging.getLogger("uvicorn.error").disabled = True


class _Workers(Multiprocess):
    """Uvicorn's workers, of which one that dies is not waited for."""

    def keep_subprocess_alive(self) -> None:
        for process in self.processes:
            process.child_conn.close()  # it is the worker's: open here as well, nothing tells that its other end died
        super().keep_subprocess_alive()

    def terminate_all(self) -> None:
        """Refuse connections from now on, which else would wait for nobody."""
        for listener in self.sockets:
            listener.close()
        super().terminate_all()


def _start(settings: Settings, *, alone: bool) -> Starlette:
    """The application, in a process that says warnings as lines of its log.

    Where files have been broken since the start, one worker of several says so and ends: the others go on, and another
    worker is tried.
    """
    warnings.showwarning = lambda message, *_, **__: _LOGGER.warning("%s", message)
    warnings.simplefilter("always", CascadeWarning)  # which says by itself what is new
    try:
        app = build_app(settings)
    except (ValueError, OSError) as problem:
        if alone:
            raise
        _LOGGER.error("a worker cannot start, another one will be tried: %s", in_words(problem))
        time.sleep(_PAUSE)
        sys.exit(1)
    # What is imported stays: to look through it for garbage kept all requests waiting for a tenth of a second.
    gc.collect()
    gc.freeze()
    return app


def _url(host: str, port: int) -> str:
    """The address of the service.

    >>> _url("::1", 8080)
    'http://[::1]:8080'
    """
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as problem:
        reason = (getattr(problem, "strerror", None) or str(problem)).partition(" (while attempting")[0]
        raise OSError(f"cannot listen at {_url(host, port)}: {reason}: choose another --host or --port") from None
    with listener:
        # Connections have it from here: else the body of an answer, sent after its head, waits for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listener


@contextmanager
def _counting_together(workers: int) -> Iterator[None]:
    """Name a folder in which several workers count together, as long as they run; one counts by itself."""
    os.environ.pop(FOLDER, None)  # that of another program
    if workers == 1:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="rcjax-serve-") as folder:
        os.environ[FOLDER] = folder
        try:
            yield
        finally:
            os.environ.pop(FOLDER, None)
