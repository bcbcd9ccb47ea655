"""Files written whole: who reads one sees the old content or the new; lines appended by many. Standard library only."""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

from rcjax._base.checks import instance


def write_atomically(path: str | os.PathLike[str], content: str | bytes, *, private: bool = False) -> None:
    """Write bytes, or text as UTF-8, to a file at once: into a new file beside it, which then takes its name.

    A file that was there is replaced, through a symbolic link to it too; the new one has the permissions that
    any new file of the process gets, or if it is `private` those by which its owner alone reads it. A pipe or a device,
    such as /dev/null, is written to as it is. Raises OSError with the file's name where it cannot be written; what was
    there is then untouched.
    """
    instance(path, (str, os.PathLike), "path")
    content = content.encode() if isinstance(content, str) else content
    try:
        if is_stream(path):
            with open(path, "wb") as file:
                file.write(content)
        else:
            target = Path(os.path.realpath(path))  # through a link, so that the link stays one
            _replace(target, content, 0o600 if private else 0o666)
    except OSError as problem:  # a full disk tells no name, other errors that of the new file
        raise OSError(problem.errno, f"cannot be written: {problem.strerror or problem}", os.fspath(path)) from problem


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether there is something of this name that is neither a file nor a folder: a pipe or a device."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _replace(target: Path, content: bytes, mode: int) -> None:
    beside = target.with_name(f".{os.urandom(8).hex()}.tmp")  # same folder: a rename there is atomic
    try:
        with open(beside, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # the content must be on the disk before the name points to it
        os.replace(beside, target)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            beside.unlink(missing_ok=True)
        raise


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)


class LineStream:
    """Standard output, each line whole, also where several processes write to it."""

    def __init__(self) -> None:
        self._turn = threading.Lock()

    def append(self, line: bytes) -> None:
        """Write a line, which must end in a newline. Raises OSError where nobody reads it."""
        with self._turn:
            _lock_process(_OUTPUT, held=True)
            try:
                while line:
                    line = line[os.write(_OUTPUT, line) :]
            finally:
                _lock_process(_OUTPUT, held=False)

    def close(self) -> None:
        """Leave it open: it is the process's."""


_OUTPUT = 1  # standard output


def _lock_process(file: int, *, held: bool) -> None:
    """Keep other processes that share a file from writing: a pipe takes 4 kB at once, and no more."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_EX if held else fcntl.LOCK_UN)


class LineFile:
    """A file open for appending, each line by one write.

    A line that a kill or a full disk left unfinished stays as it is: the next one goes on a line of its own. A file
    that another program renames or removes, as logrotate does, gets no line more: the next one goes to the file that
    then has the name, a new one where there is none.

    Args:
        path: of the file; it is made where it is not there, for its owner alone to read: lines may hold what was asked.

    Raises OSError where the file cannot be opened, and from `append` where it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._full_path = os.path.abspath(self.path)  # wherever the process goes
        self._turn = threading.Lock()
        self._file = os.open(self._full_path, _FLAGS, 0o600)

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

    def is_cut_off(self) -> bool:
        """Return whether the file ends within a line: its writer was killed, or the disk was full."""
        with self._turn:
            return self._is_cut_off()

    def has_room(self) -> bool:
        """Return whether its disk has room for more."""
        with self._turn, suppress(OSError, AttributeError):  # Windows has no such call
            return os.fstatvfs(self._file).f_bavail > 0
        return True

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
