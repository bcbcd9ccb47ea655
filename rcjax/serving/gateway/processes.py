"""Runs the service on Uvicorn: the socket, one process or several workers, signals.

Uvicorn has no time limit for request heads, and at its end it closes idle connections at once, although a request may
be on its way. `Connection` mends both. It builds on h11 (0.1 ms slower than httptools), because h11 limits the size of
headers, and keeps the body of a request that offers an upgrade to HTTP/2.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from starlette.applications import Starlette
from uvicorn import Config, Server
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.supervisors import Multiprocess

from rcjax._base.files import try_lock
from rcjax.serving.failures import CascadeWarning
from rcjax.serving.gateway.catalog import Catalog, CatalogMaker, EndpointConnections, ServiceSettings, describe_problem
from rcjax.serving.gateway.metrics import METRICS_FOLDER
from rcjax.serving.gateway.service import STOPPING, build_app


class Connection(H11Protocol):
    """A connection of Uvicorn that limits the time of slow clients, and loses no request when the service ends."""

    head_seconds: ClassVar[float] = 30.0
    """Seconds for the arrival of a request's head."""

    farewell_seconds: ClassVar[float] = 1.0
    """Seconds that an idle connection stays open at the end, for a request on its way."""

    unread_seconds: ClassVar[float] = 30.0
    """Seconds after which the connection of a client that reads nothing is closed."""

    _write_timer: asyncio.TimerHandle | None = None
    _head_timer: asyncio.TimerHandle | None = None
    _is_ending = False

    def connection_made(self, transport: Any) -> None:
        """Start the timer of the first head."""
        super().connection_made(transport)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        """Stop the timer when a head is complete, and start it again with the next head."""
        super().data_received(data)
        if not self._is_at_work():
            self._start_head_timer()
            return
        self._stop_head_timer()
        if self._is_ending:
            self._close_after()

    def pause_writing(self) -> None:
        """Start the timer of a client that does not read, as unread bytes fill the memory."""
        super().pause_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._write_timer = asyncio.get_running_loop().call_later(self.unread_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timer, and go on writing."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._stop_head_timer()
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End gracefully: an idle connection stays open for a moment, and answers a request that is on its way."""
        self._is_ending = True
        if self._is_at_work():
            self._close_after()
            super().shutdown()
            return
        asyncio.get_running_loop().call_later(self.farewell_seconds, super().shutdown)

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing about an offer of another protocol, which is ignored."""

    def _is_at_work(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _close_after(self) -> None:
        """Close the connection after this request, so that the answer has the header `connection: close`."""
        self.scope.setdefault("state", {})[STOPPING] = True
        self.scope["headers"] = [*self.scope["headers"], CLOSE_HEADER]

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = asyncio.get_running_loop().call_later(self.head_seconds, self._close)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close(self) -> None:
        self._head_timer = None
        if not self._is_at_work():
            self.transport.close()


_LOGGER = logging.getLogger("rcjax.serving")

_BACKLOG = 2048  # connections that wait to be accepted

_LISTENERS = 16  # copies of the socket: uvloop accepts one connection per socket and iteration

_RESTART_SECONDS = 2.0  # seconds before a new worker replaces one that could not start

_WORKER_SECONDS = 60  # seconds for a worker's answer to its supervisor: on a busy machine, imports alone take long


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


def serve(
    settings: ServiceSettings, host: str, port: int, workers: int, announce: Callable[[str, Catalog], None]
) -> None:
    """Serve until a signal ends it.

    Args:
        settings: settings of the service.
        host: address to listen at.
        port: port to listen at; 0 for a free one.
        workers: number of processes.
        announce: receives the service's URL and its catalog once the socket accepts connections.

    Raises ValueError or OSError for invalid settings, files and addresses, before anything is served.
    """
    if (ledger := settings.open_ledger()) is not None:
        with closing(ledger):
            ledger.check()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CascadeWarning)  # the workers repeat these warnings
        catalog = CatalogMaker(settings, EndpointConnections(settings.limits.timeout).api_client).read()
    with _listening(host, port) as listener, _open_shared_folder(workers) as folder:
        settings = replace(settings, shared_folder=folder)
        if (log := settings.open_log()) is not None:  # an unusable log ends the start
            log.close()
        config = Config(
            partial(_build_worker_app, settings, alone=workers == 1),  # each worker calls it
            factory=True,
            workers=workers,
            lifespan="on",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(settings.limits.drain) + 2,
            timeout_worker_healthcheck=_WORKER_SECONDS,
            http=Connection,
            log_config=_LOG_CONFIG,
            log_level="info" if workers > 1 else "warning",  # the starts of workers
            ws="none",
        )
        if hasattr(signal, "SIGHUP"):  # until the workers handle it
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        announce(_format_url(host, listener.getsockname()[1]), catalog)
        sockets = [listener, *(listener.dup() for _ in range(_LISTENERS - 1))]  # the server closes them
        for copy in sockets:
            copy.set_inheritable(True)
        if workers > 1:
            _WorkerSupervisor(config, sockets).run()
        else:
            server = _SingleServer(config)
            # Uvicorn raises the signal once more at its end: status 0. Before its start the signal ends the process.
            signal.signal(signal.SIGTERM, lambda *_: None if server.started else sys.exit(0))
            server.run(sockets)


class _SingleServer(Server):
    """Uvicorn's server in one process."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down. A second signal cancels the requests in progress, which is not logged as an error."""
        await super().shutdown(sockets)
        if self.force_exit:
            logging.getLogger("uvicorn.error").disabled = True


class _WorkerSupervisor(Multiprocess):
    """Uvicorn's workers; a dead worker is noticed at once."""

    def keep_subprocess_alive(self) -> None:
        for process in self.processes:
            process.child_conn.close()  # the worker's end of the pipe: while open here, the worker's death shows no EOF
        super().keep_subprocess_alive()

    def terminate_all(self) -> None:
        """Close the sockets first, so that new connections are refused, not left waiting."""
        for listener in self.sockets:
            listener.close()
        super().terminate_all()


def _build_worker_app(settings: ServiceSettings, *, alone: bool) -> Starlette:
    """Build the application of a process, which logs warnings.

    If a file has become invalid since the start of the service, one of several workers logs the problem and ends, and
    its supervisor tries another worker; the others go on.
    """
    warnings.showwarning = lambda message, *_, **__: _LOGGER.warning("%s", message)
    warnings.simplefilter("always", CascadeWarning)  # its callers avoid repetitions
    if not alone:
        threading.Thread(target=_end_after_supervisor, daemon=True).start()
    try:
        app = build_app(settings)
    except (ValueError, OSError) as problem:
        if alone:
            raise
        _LOGGER.error("a worker cannot start, another one will be tried: %s", describe_problem(problem))
        time.sleep(_RESTART_SECONDS)
        sys.exit(1)
    # Imported objects live as long as the process: collecting garbage among them blocked requests for 0.1 s.
    gc.collect()
    gc.freeze()
    return app


def _end_after_supervisor() -> None:
    """Wait for the supervisor's end, and end this worker as SIGTERM does: a killed supervisor sends no signal."""
    supervisor = multiprocessing.parent_process()
    if supervisor is not None:
        supervisor.join()
        signal.raise_signal(signal.SIGTERM)


def _format_url(host: str, port: int) -> str:
    """Return the URL of the service.

    >>> _format_url("::1", 8080)
    'http://[::1]:8080'
    """
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).partition(" (while attempting")[0]
        raise OSError(
            f"cannot listen at {_format_url(host, port)}: {reason}: choose another --host or --port"
        ) from None
    with listener:
        # Connections inherit it: else the body of an answer, sent after its head, waits for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listener


_PREFIX = "rcjax-serve-"  # of temporary folders


def _remove_unlocked_folders() -> None:
    """Remove the folders of services that were killed, whose locks ended with them."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/lock") if sys.platform != "win32" else ():
        with suppress(OSError), open(path, "rb") as lock:
            if try_lock(lock.fileno()):
                shutil.rmtree(path.parent, ignore_errors=True)


@contextmanager
def _open_shared_folder(workers: int) -> Iterator[Path | None]:
    """Yield the folder in which several workers count together, also their metrics; None with one worker."""
    os.environ.pop(METRICS_FOLDER, None)  # it may be another program's
    if workers == 1:
        yield None
        return
    _remove_unlocked_folders()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder, open(Path(folder, "lock"), "x") as lock:
        try_lock(lock.fileno())
        os.environ[METRICS_FOLDER] = folder
        try:
            yield Path(folder)
        finally:
            os.environ.pop(METRICS_FOLDER, None)
