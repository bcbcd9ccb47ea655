"""A program that is given something to read and prints something short, within a time limit. Standard library only."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

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
    """End all processes of a session at once, by its leader."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
