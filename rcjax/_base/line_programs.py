"""Programs beside this one that may break down or hang: a line of JSON in, a line out, each within a time limit.

Graders and checks of the user's own run so, and so do regular expressions: Python's `re` may take longer than anybody
lives over a text that a stranger wrote, such as `^(a+)+$` over "aaa…b", and nothing else runs meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rcjax._base import pattern_search

__all__ = ["EndedError", "LineProgram", "end_at_once", "pattern_program", "took_too_long"]


_LEAVE = 5.0  # seconds that a program may take to end

_LONGEST = 2**24  # bytes of a line

_MOST_REST = 2**16  # bytes that are looked at behind the last answer


class EndedError(Exception):
    """A program that has ended in place of an answer; `status` is that of its end."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the program has ended, with status {status}")
        self.status = status


class LineProgram:
    """A program that answers a line with a line: started when it is first needed, and again where it has ended.

    It is the leader of a session of its own, and is ended with all that it has started.

    Args:
        words: of its command line.
        silent: what it writes to standard error is for nobody: it may quote what it was asked.
    """

    def __init__(self, words: Sequence[str], *, silent: bool = False) -> None:
        self.words, self._silent = tuple(words), silent
        self.process: asyncio.subprocess.Process | None = None
        """None where it does not run."""
        self._loop: asyncio.AbstractEventLoop | None = None

    async def exchange(self, line: bytes, seconds: float) -> bytes:
        """The line that it answers a line with; one call at a time.

        Raises OSError where it cannot be started, TimeoutError where no line comes within so many seconds, EndedError
        where it has ended, and ValueError for a line of more than 16 MB. After these, and where nobody waits any more,
        it is ended: what it would say later is no answer to another line.
        """
        process = await self._started()
        try:
            answer = await asyncio.wait_for(_exchange(process, line), seconds)
        except BaseException:
            self.process = None
            end_at_once(process)
            await process.wait()
            raise
        if not answer:
            raise EndedError(await self._status(process))
        return answer

    async def read(self, seconds: float) -> bytes:
        """The next line that it writes by itself, as it starts; raises as `exchange` does."""
        return await self.exchange(b"", seconds)

    @property
    def runs(self) -> bool:
        """Whether the next line goes to a program that is there already: one of another event loop cannot be heard."""
        return self.process is not None and self._loop is asyncio.get_running_loop()

    async def end(self) -> None:
        """End the program at once."""
        process, self.process = self.process, None
        if process is not None:
            end_at_once(process)
            if self._loop is asyncio.get_running_loop():
                await process.wait()

    async def _started(self) -> asyncio.subprocess.Process:
        if self.process is None or not self.runs:
            await self.end()
            self._loop = asyncio.get_running_loop()
            pipe, nobody = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
            streams = {"stdin": pipe, "stdout": pipe, "stderr": nobody if self._silent else None}
            self.process = await asyncio.create_subprocess_exec(
                *self.words, **streams, limit=_LONGEST, start_new_session=True
            )
        return self.process

    async def _status(self, process: asyncio.subprocess.Process) -> int:
        """See a program off that has ended its output, so that another is started for the next line; its status."""
        self.process = None
        try:
            return await asyncio.wait_for(process.wait(), _LEAVE)
        except TimeoutError:
            end_at_once(process)
            return await process.wait()
        finally:
            end_at_once(process)

    async def close(self) -> bytes:
        """End the program, which may go on for five seconds where it has still something to do; what it wrote then."""
        process, self.process = self.process, None
        rest = b""
        if process is None:
            return rest
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(ProcessLookupError, ConnectionError):
            process.stdin.close()
            try:
                rest = await asyncio.wait_for(process.stdout.read(_MOST_REST), _LEAVE)
                await asyncio.wait_for(process.wait(), _LEAVE)
            except TimeoutError:
                end_at_once(process)
                await process.wait()
        end_at_once(process)
        return rest


def end_at_once(process: asyncio.subprocess.Process) -> None:
    """End a program, and what it has started and left behind, which is of its session."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


async def _exchange(process: asyncio.subprocess.Process, line: bytes) -> bytes:
    """The line that a program answers a line with; nothing where it has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(ConnectionError):
        process.stdin.write(line)
        await process.stdin.drain()
    return await process.stdout.readline()


def pattern_program(pattern: str, seconds: float) -> tuple[str, ...]:
    """The command line of a program that searches texts for a regular expression, each for so many seconds at most.

    In: `{"id", "text", "reference"}`, of which each stands in turn for `{answer}` in the pattern. Out: `{"id",
    "correct"}`, or `{"id", "failed"}` with the reason. Over a text that takes it too long it ends itself.
    """
    script = str(Path(pattern_search.__file__).resolve())
    return (sys.executable, "-I", "-S", "-W", "ignore", script, json.dumps(pattern), str(seconds))


def took_too_long(status: int) -> bool:
    """Whether this is the status of a search for a pattern that has ended itself."""
    return status == -getattr(signal, "SIGPROF", 0)
