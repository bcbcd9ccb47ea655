"""A file to which whole lines are appended, by threads and processes at once; a kill loses no line that is there.

Where it is to roll over, the file is renamed to a part beside it (`rcjax._base.log_parts`) and a new one begins.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import islice

from rcjax._base.log_parts import new_part

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = ["LineFile", "Rolling"]


_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)


_FIRST = 100  # lines that may tell of which day a file is


@dataclass(frozen=True, slots=True)
class Rolling:
    """When a file rolls over: before a line would make it too long, or is of a later day than its first line."""

    size: int | None
    """Bytes that it may have; a longer line is alone in its file."""
    daily: bool
    """A file is to hold the lines of one day in UTC."""
    day_of: Callable[[bytes], date | None]
    """Of which day a line is; None where it does not tell."""


class LineFile:
    """A file open for appending, each line by one write.

    A line that a kill or a full disk left unfinished stays as it is: the next one goes on a line of its own. A file
    that is renamed or removed, by another process that rolls it over or by any other programme, gets no line more: the
    next one goes to the file that then has the name, a new one where there is none.

    Args:
        path: of the file; it is made where it is not there.
        rolling: when it rolls over; never without. Who appends to one file without, follows those who roll it.

    Raises OSError where the file cannot be opened, and from `append` where it cannot be written or rolled over.
    """

    def __init__(self, path: str | os.PathLike[str], rolling: Rolling | None = None) -> None:
        self.path = os.fspath(path)
        self._full_path = os.path.abspath(self.path)  # wherever the process goes
        self._rolling = rolling
        self._turn = threading.Lock()  # threads share the place in the file that is read at
        self._closed = False
        self._mode: int | None = None  # of the file before this one
        self._file = -1
        self._open()
        _FILES.add(self)

    def append(self, line: bytes, day: date | None = None) -> None:
        """Write a line, which must end in a newline; `day` is that of the line, in UTC, today if it is not known."""
        with self._turn:
            self._find_room(line, day)
            try:
                line = b"\n" + line if self._is_cut_off() else line
                written = os.write(self._file, line)
            finally:
                self._unlock()
        if written != len(line):
            raise OSError(f"cannot write to {self.path}: only {written} of {len(line)} bytes: is the disk full?")

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        with self._turn:
            self._closed = True
            self._release()

    def _find_room(self, line: bytes, day: date | None) -> None:
        """Lock the file that has the name now, once it has room for the line.

        The lock is on what is open, not on the name: who waited for it may hold a part by then.
        """
        if self._closed:
            raise OSError(errno.EBADF, "the file is closed", self.path)
        while True:
            if self._file < 0:
                self._open()
            self._lock()
            try:
                here = self._has_the_name()
                part_day = self._part_day(line, day) if here else None
                if here and part_day is None:
                    return
                if part_day is not None:
                    self._roll(part_day)
            except BaseException:
                self._unlock()
                raise
            self._unlock()
            self._release()

    def _open(self) -> None:
        """Open what has the name; a file that is made after one before it has the permissions of that."""
        self._first: date | None = None  # the day of its first line, once that is read
        if self._mode is not None:
            with suppress(FileExistsError):
                self._file = os.open(self._full_path, _FLAGS | os.O_EXCL, self._mode)
                if hasattr(os, "fchmod"):  # whatever the umask is
                    os.fchmod(self._file, self._mode)
                return
        self._file = os.open(self._full_path, _FLAGS, 0o666)

    def _release(self) -> None:
        """Let go of the file, and of its lock unless that is shared with the process that this one was forked from."""
        if self._file >= 0:
            self._mode = stat.S_IMODE(os.fstat(self._file).st_mode)
            os.close(self._file)
            self._file = -1

    def _lock(self) -> None:
        """Keep others from writing: of a long line, they would see the beginning first."""
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(self._file, fcntl.LOCK_EX)

    def _unlock(self) -> None:
        if fcntl is not None and self._file >= 0:
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _has_the_name(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._full_path), os.fstat(self._file))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # who may not look keeps what is open
            return True

    def _is_cut_off(self) -> bool:
        """Whether the file ends within a line, as a kill or a full disk leaves it, of this process or another."""
        size = os.lseek(self._file, 0, os.SEEK_END)
        if not size:
            return False
        os.lseek(self._file, size - 1, os.SEEK_SET)
        return os.read(self._file, 1) not in (b"\n", b"")

    def _part_day(self, line: bytes, day: date | None) -> date | None:
        """The day of the part that the file becomes before the line is written; None where it has room for it."""
        if self._rolling is None or not os.fstat(self._file).st_size:
            self._first = None
            return None
        full = self._is_full(line)
        if not full and not self._is_old(day):
            return None
        self._first = None  # read it again: another programme may have emptied the file
        return self._first_day() if full or self._is_old(day) else None

    def _is_full(self, line: bytes) -> bool:
        if self._rolling is None or self._rolling.size is None:
            return False
        return os.fstat(self._file).st_size + self._is_cut_off() + len(line) > self._rolling.size

    def _is_old(self, day: date | None) -> bool:
        """Whether the file is of an earlier day; one of days to come is the work of a wrong clock."""
        if self._rolling is None or not self._rolling.daily:
            return False
        # Who waits for the lock at midnight may write a line of the day before.
        return not 0 <= (self._first_day() - (day or datetime.now(UTC).date())).days <= 1

    def _first_day(self) -> date:
        """The day of the first line that tells one; where none of the first does, that of the last write."""
        if self._first is None and self._rolling is not None:
            os.lseek(self._file, 0, os.SEEK_SET)
            with open(os.dup(self._file), "rb") as file:
                days = (self._rolling.day_of(line) for line in islice(file, _FIRST))
                self._first = next(filter(None, days), None)
        if self._first is None:
            self._first = datetime.fromtimestamp(os.fstat(self._file).st_mtime, UTC).date()
        return self._first

    def _roll(self, day: date) -> None:
        """Rename the file to a part. A kill leaves the file or the part, and at most an empty part besides."""
        real = os.path.realpath(self._full_path)  # a link stays one
        part = new_part(real, day)
        try:
            if fcntl is None:  # Windows renames no file that is open, and one process writes alone there
                self._release()
            os.replace(real, part)
        except OSError as problem:
            with suppress(OSError):
                part.unlink()
            if not isinstance(problem, FileNotFoundError):  # whoever else renames it
                raise

    def _leave_to_parent(self) -> None:
        """In a process that was forked: let go of the file, whose lock is the parent's; the next line opens it anew."""
        self._turn = threading.Lock()
        self._release()


#: All that are there, for processes that are forked.
_FILES: weakref.WeakSet[LineFile] = weakref.WeakSet()


def _after_fork() -> None:
    for file in [*_FILES]:
        file._leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
