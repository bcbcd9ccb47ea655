"""A file to which whole lines are appended, by threads and processes at once; a kill loses no line that is there."""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import suppress

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)


class LineFile:
    """A file open for appending, each line by one write.

    A line that a kill or a full disk left unfinished stays as it is: the next one goes on a line of its own. A file
    that another program renames or removes, as logrotate does, gets no line more: the next one goes to the file that
    then has the name, a new one where there is none.

    Args:
        path: of the file; it is made where it is not there.

    Raises OSError where the file cannot be opened, and from `append` where it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._full_path = os.path.abspath(self.path)  # wherever the process goes
        self._turn = threading.Lock()
        self._file = os.open(self._full_path, _FLAGS, 0o666)

    def append(self, line: bytes) -> None:
        """Write a line, which must end in a newline."""
        with self._turn:
            if self._file < 0:
                raise OSError(errno.EBADF, "the file is closed", self.path)
            self._follow_the_name()
            self._lock(exclusive=True)
            try:
                line = b"\n" + line if self._is_cut_off() else line
                written = os.write(self._file, line)
            finally:
                self._lock(exclusive=False)
        if written != len(line):
            raise OSError(f"cannot write to {self.path}: only {written} of {len(line)} bytes: is the disk full?")

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        with self._turn:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _follow_the_name(self) -> None:
        """Open what has the name, where that is another file by now; a new one has the permissions of that before."""
        before = os.fstat(self._file)
        try:
            if os.path.samestat(os.stat(self._full_path), before):
                return
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:  # who may not look keeps what is open
            return
        file = os.open(self._full_path, _FLAGS, stat.S_IMODE(before.st_mode))
        os.close(self._file)
        self._file = file

    def _lock(self, *, exclusive: bool) -> None:
        """Keep others from writing: of a long line, they would see the beginning first."""
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(self._file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_UN)

    def _is_cut_off(self) -> bool:
        """Whether the file ends within a line, as a kill or a full disk leaves it, of this process or another."""
        size = os.lseek(self._file, 0, os.SEEK_END)
        if not size:
            return False
        os.lseek(self._file, size - 1, os.SEEK_SET)
        return os.read(self._file, 1) not in (b"\n", b"")
