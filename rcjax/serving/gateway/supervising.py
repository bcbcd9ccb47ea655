"""Several workers: who keeps them alive, and how long a silent one is waited for. Uvicorn's processes and signals."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field

from uvicorn import Config
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import multiprocess

from rcjax.serving.gateway.connections import SoftServer

__all__ = ["Patience", "Workers"]


_LOGGER = logging.getLogger("rcjax.serving")


@dataclass(frozen=True, slots=True)
class Patience:
    """With workers, in seconds."""

    starting: float = 120.0
    """Until a worker that starts takes requests: on a busy machine the import alone takes long."""
    silent: float = 30.0
    """Until one that has taken requests answers again."""
    longest_pause: float = 30.0
    """At most, before another one is tried in place of one that has never taken requests; 1, 2, 4 … before that."""


@dataclass(slots=True)
class _Watch:
    """What is known of one worker."""

    since: float = field(default_factory=lambda: time.monotonic())
    """When it was started, or has answered last."""
    ready: bool = False
    """It has taken requests."""
    asked: bool = False
    """It has not answered yet."""


class _Process(multiprocess.Process):
    """A worker, whose server ends softly."""

    @property
    def server(self) -> SoftServer:
        if self._server is None:
            self._server = SoftServer(config=self.config)
        assert isinstance(self._server, SoftServer)
        return self._server


class Workers(multiprocess.Multiprocess):
    """Workers that read their files again on SIGHUP, and that are replaced where they die, or are silent for long.

    Uvicorn's supervisor waits five seconds for one worker while nobody looks after the others, and kills it then, even
    while it starts.

    Args:
        config: of the service.
        sockets: that it listens at.
        patience: with them.
    """

    def __init__(self, config: Config, sockets: list[socket.socket], patience: Patience | None = None) -> None:
        super().__init__(config, sockets)
        self._patience = patience or Patience()
        self._watches: dict[int | None, _Watch] = {}  # by process
        self._starts, self._failures, self._next = config.workers, 0, 0.0
        self._has_begun = False

    def init_processes(self) -> None:
        """Start the workers, and say how long each is waited for."""
        patience = self._patience.starting, self._patience.silent
        _LOGGER.info(
            "%d workers start: each has %.0f s for that, and then %.0f s to answer", self.processes_num, *patience
        )
        for _ in range(self.processes_num):
            self.processes.append(_Process(self.config, self.sockets))
            self.processes[-1].start()

    def handle_hup(self) -> None:
        """Pass the signal on; a worker that only starts reads the files anyway."""
        for process in self.processes:
            if process.pid is not None and self._watch(process).ready:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGHUP)

    def terminate_all(self) -> None:
        """End all; connections that come from now on are refused, and do not wait for nobody."""
        for listener in self.sockets:
            listener.close()
        super().terminate_all()

    def keep_subprocess_alive(self) -> None:
        """Replace workers that have died, or are silent for too long."""
        for index, process in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            problem = self._problem(process, self._watch(process))
            if problem is not None and time.monotonic() >= self._next:
                self._replace(index, process, problem)

    def _watch(self, process: multiprocess.Process) -> _Watch:
        return self._watches.setdefault(process.pid, _Watch())

    def _problem(self, process: multiprocess.Process, watch: _Watch) -> str | None:
        """Why a worker is to be replaced; None for one that is not."""
        if not process.process.is_alive():
            return "is gone"
        with suppress(OSError, EOFError):
            while process.parent_conn.poll():
                serves, watch.asked = process.parent_conn.recv(), False
                if serves and not watch.ready:
                    watch.ready, self._has_begun, self._failures = True, True, 0
                watch.since = time.monotonic() if watch.ready else watch.since
            if not watch.asked:
                process.parent_conn.send(b"ping")
                watch.asked = True
        patience = self._patience.silent if watch.ready else self._patience.starting
        what = "does not answer" if watch.ready else "has not started"
        return f"{what} in {patience:.0f} s" if time.monotonic() - watch.since > patience else None

    def _replace(self, index: int, process: multiprocess.Process, problem: str) -> None:
        process.kill()
        process.join()
        if process.exitcode == STARTUP_FAILURE and not self._has_begun:
            _LOGGER.error("worker %s cannot start, and no other has: the service ends", process.pid)
            self.should_exit.set()
            return
        if not self._watches.pop(process.pid).ready:
            self._failures += 1
            self._next = time.monotonic() + min(2.0 ** (self._failures - 1), self._patience.longest_pause)
        self._starts += 1
        _LOGGER.warning("worker %s %s: another one takes its place, start %d", process.pid, problem, self._starts)
        self.processes[index] = _Process(self.config, self.sockets)
        self.processes[index].start()
