"""Ctrl-C and SIGTERM, which does the same: how a command that works for long is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

_TOLD = b"finishing the calls under way; Ctrl-C again ends at once\n"


@contextmanager
def terminable() -> Iterator[None]:
    """A block in which SIGTERM does what Ctrl-C does there; once it has ended by that, another one changes nothing."""
    with _handling(signal.SIGTERM, _terminate) as afterwards:
        try:
            yield
        except (KeyboardInterrupt, asyncio.CancelledError):
            # Files are closed, and the exit status is to tell what happened. Handlers in Python end before Python does.
            afterwards[0] = signal.SIG_IGN
            raise


@contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """A block of a task in which the first Ctrl-C calls `stop`, and the next one ends the task, whatever it waits for.

    A task that does not wait but computes, as a grader of the user's own may for ever, is ended where it is.
    """
    interrupt = _Interrupt(stop, asyncio.get_running_loop(), asyncio.current_task())
    with _handling(signal.SIGINT, interrupt):
        yield


class _Interrupt:
    """What Ctrl-C does to a task."""

    def __init__(
        self, stop: Callable[[], None], loop: asyncio.AbstractEventLoop, task: asyncio.Task[object] | None
    ) -> None:
        self._stop, self._loop, self._task = stop, loop, task
        self._times = 0
        self._heard = False  # by the loop, which does not run while something computes

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._times += 1
        heard, self._heard = self._heard, False
        self._loop.call_soon_threadsafe(self._hear)
        if self._times == 1:
            with suppress(OSError):
                os.write(2, _TOLD)  # sys.stderr may be in the midst of another line
            self._stop()
        elif heard and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        else:
            raise KeyboardInterrupt

    def _hear(self) -> None:
        self._heard = True


def _terminate(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # in the background, shells have Ctrl-C ignored
        raise KeyboardInterrupt
    handler(number, frame)


@contextmanager
def _handling(number: signal.Signals, handler: Callable[[int, FrameType | None], None]) -> Iterator[list[Any]]:
    """A block with a handler of a signal; what it yields has the handler that comes after the block."""
    try:
        before = signal.signal(number, handler)
    except ValueError:  # not the main thread, which alone has signals
        yield [None]
        return
    afterwards = [before if before is not None else signal.SIG_DFL]
    try:
        yield afterwards
    finally:
        signal.signal(number, afterwards[0])
