"""Functions that may hang or break down, in processes beside this one, each call within a time limit, by pebble.

Python's `re` may take longer than anybody lives over a text that a stranger wrote, and so may a user's own check.
`run_command` is for programs: one is given something to read and prints something short.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import IO, Any

from rcjax._base.extras import required
from rcjax.serving import check_worker

LONGEST = 2**16
"""Bytes that a program may print."""

_TICK = 0.01  # seconds between two looks


async def run_command(
    words: Sequence[str], written: bytes, seconds: float, *, silent: bool = True
) -> tuple[bytes, int]:
    """(what a program prints, its status). It is the leader of a session of its own, which ends with it.

    Args:
        words: of its command line, which no shell reads.
        written: that it can read.
        seconds: that it may take.
        silent: what it writes to standard error is for nobody.

    One that prints more than LONGEST bytes is ended: it has a byte more, and the status 0. What it prints goes to a
    file, so that nobody waits for a child that still holds its output. Raises OSError and TimeoutError.
    """
    with _scratch() as told, _scratch() as said:
        told.write(written)
        told.seek(0)
        errors = subprocess.DEVNULL if silent else None
        process = subprocess.Popen(words, stdin=told, stdout=said, stderr=errors, start_new_session=True)
        try:
            async with asyncio.timeout(seconds):
                while process.poll() is None and os.fstat(said.fileno()).st_size <= LONGEST:
                    await asyncio.sleep(_TICK)
        finally:
            end_session(process.pid)
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
        said.seek(0)
        output = said.read(LONGEST + 1)
    return output, 0 if len(output) > LONGEST else process.returncode


def _scratch() -> IO[bytes]:
    """A file without a name: in memory, where the system has such ones."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("rcjax"), "w+b")
    return tempfile.TemporaryFile()


def end_session(leader: int) -> None:
    """End all processes of a session at once, by its leader: where /proc lists them, in groups of their own too."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
    ended: set[int] = set()
    while more := {*_members(leader)} - ended:  # `timeout` makes itself a group
        for pid in more:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended |= more


def _members(leader: int) -> Iterator[int]:
    """The processes of a session."""
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        with suppress(ProcessLookupError, PermissionError):
            if name.isdigit() and os.getsid(int(name)) == leader:
                yield int(name)


_START = 60.0  # seconds until a process is there: what it imports may take long

MOST = min(8, max(4, os.cpu_count() or 1))
"""Processes of one check: some wait for a disk, or for others."""

_STARTING = threading.Lock()


class BrokeDownError(Exception):
    """A process that has ended in place of an answer; `status` is that of its end, None if it did not start."""

    def __init__(self, status: int | None) -> None:
        super().__init__("it broke down" if status is None else f"it ended with status {status}")
        self.status = status


class _Beginning:
    """What a process reads first of itself: whatever fails from then on says nothing on anybody's screen."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return check_worker.begin, ()


class _Process(SpawnProcess):
    """A process that runs nothing of the user's program, and ends with all that it has started."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self.beginning = _Beginning()
        super().__init__(*args, **more)

    def start(self) -> None:
        with _STARTING:
            main = sys.modules["__main__"]
            sys.modules["__main__"] = ModuleType("__main__")  # or a script without a guard would run once more
            try:
                super().start()
            finally:
                sys.modules["__main__"] = main

    def terminate(self) -> None:
        if self.pid is not None:
            end_session(self.pid)
        with suppress(ProcessLookupError):
            super().kill()  # it leads no session yet


class _Context(SpawnContext):
    Process = _Process


class Workers:
    """A few processes that keep a check at hand; they start with the first call, and end when this is forgotten.

    Args:
        name: of the check (`check_worker.load`).
        most: how many processes.

    Raises ImportError where pebble is not installed.
    """

    def __init__(self, name: str, most: int = MOST) -> None:
        self._pebble = required("pebble", "run")
        self._broken = (self._pebble.ProcessExpired, BrokenProcessPool)
        self._name, self._most = name, most
        self._pool: Any = None

    def _schedule(self, function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float | None) -> Any:
        if self._pool is None or not self._pool.active:
            self.close()
            self._pool = self._pebble.ProcessPool(
                self._most, initializer=check_worker.load, initargs=[self._name], context=_Context()
            )
            self._end = weakref.finalize(self, _end, self._pool)
        return self._pool.schedule(function, args=arguments, timeout=seconds)

    async def call(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
        """What a function of `check_worker` returns. Raises TimeoutError and BrokeDownError.

        Args:
            function: that raises nothing.
            arguments: that can be pickled.
            seconds: that it may take.
        """
        for again in (True, False):
            try:
                waiting = asyncio.wrap_future(self._schedule(function, arguments, seconds))
                return await asyncio.wait_for(waiting, _START + seconds)
            except BrokenProcessPool:  # another call's process may have taken all along, as it ended
                if not again:
                    raise BrokeDownError(None) from None
            except self._pebble.ProcessExpired as error:
                end_session(error.pid)  # what it has left behind
                raise BrokeDownError(error.exitcode) from None

    def first(self, function: Callable[..., Any]) -> Any:
        """What a function returns as the check is there. Raises TimeoutError and BrokeDownError."""
        try:
            return self._schedule(function, (), None).result(_START)
        except self._broken as error:
            raise BrokeDownError(getattr(error, "exitcode", None)) from None

    def close(self) -> None:
        """End the processes at once: none has anything to lose."""
        if self._pool is not None:
            self._pool = None
            self._end()


def _end(pool: Any) -> None:
    pool.stop()
    pool.join()
