"""A file to which whole lines are appended, by threads and processes at once; a kill loses no line that is there."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = ["LineFile"]


class LineFile:
    """A file open for appending, each line by one write.

    A line that a kill or a full disk left unfinished stays as it is: the next one goes on a line of its own. Raises
    OSError where the file cannot be opened, and from `append` where it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        self._turn = threading.Lock()  # threads share the place in the file that is read at

    def append(self, line: bytes) -> None:
        """Write a line, which must end in a newline."""
        with self._turn, self._alone():
            line = b"\n" + line if self._is_cut_off() else line
            written = os.write(self._file, line)
        if written != len(line):
            raise OSError(f"cannot write to {self.path}: only {written} of {len(line)} bytes: is the disk full?")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While nobody else writes to the file: of a long line, others would see the beginning first."""
        locked = False
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(self._file, fcntl.LOCK_EX)
                locked = True
        try:
            yield
        finally:
            if fcntl is not None and locked:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _is_cut_off(self) -> bool:
        """Whether the file ends within a line, as a kill or a full disk leaves it, of this process or another."""
        size = os.lseek(self._file, 0, os.SEEK_END)
        if not size:
            return False
        os.lseek(self._file, size - 1, os.SEEK_SET)
        return os.read(self._file, 1) not in (b"\n", b"")

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
