"""Atomic writes, which show a reader the old content or the new; lines appended by many processes; broken streams.

Standard library only.
"""

from __future__ import annotations

import atexit
import errno
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TextIO

from rcjax._base.codec import require_instance


def write_atomically(path: str | os.PathLike[str], content: str | bytes, *, private: bool = False) -> None:
    """Write bytes, or text as UTF-8, to a file atomically: write a new file beside it, and rename that.

    An existing file is replaced, also through a symbolic link, and keeps its permissions, its group and, if the process
    may give files away, its owner. A new file has default permissions, or with `private` only its owner can read it. A
    pipe or a device, such as /dev/null, is written to directly. Raises OSError with the
    file's name if it cannot be written; the old content then stays.
    """
    require_instance(path, (str, os.PathLike), "path")
    content = content.encode() if isinstance(content, str) else content
    try:
        if is_stream(path):
            with open(path, "wb") as file:
                file.write(content)
        else:
            target = Path(os.path.realpath(path))  # through a link, so that the link stays one
            _replace(target, content, 0o600 if private else 0o666)
    except OSError as problem:  # a full disk gives no name, other errors the name of the new file
        raise OSError(problem.errno, f"cannot be written: {problem.strerror or problem}", os.fspath(path)) from problem


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a pipe or a device: it exists, and is neither a file nor a folder."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


#: Content of a file that may be replaced, or appended to, by its kind; an answer file begins with "call".
_CONTENTS = {
    "policy": re.compile(rb'(?s)\A[\s\xef\xbb\xbf]*\{.*"format": *"rcjax-(policy|ladder)"'),
    "frontier": re.compile(rb'(?s)\A[\s\xef\xbb\xbf]*\{.*"format": *"rcjax-frontier"'),
    "HTML page": re.compile(rb"<!doctype html>", re.IGNORECASE),
    "log": re.compile(rb"(?s)\A(?=.*query)(?=.*model)"),
    "log of a service": re.compile(rb'\A(?!.*"call":).*"call_log":'),
}
_ENDS = 2**16  # bytes that are read at either end of a file: a Parquet file has its columns at the end


def require_kind(path: str | os.PathLike[str], kind: str) -> None:
    """Raise ValueError for an output that is a file of another kind already: its name is a mistake.

    Args:
        path: path of the output; a missing or empty file, a pipe and a device are fine.
        kind: "policy", "frontier", "HTML page", "log" or "log of a service".
    """
    if not os.path.isfile(path):
        return
    with open(path, "rb") as file:
        content = file.read(_ENDS)
        file.seek(max(file.tell(), os.fstat(file.fileno()).st_size - _ENDS))
        content += file.read()
    if content.strip() and not _CONTENTS[kind].search(content):
        raise ValueError(f"{os.fspath(path)} is there already, and holds no {kind}: give another file")


def _replace(target: Path, content: bytes, mode: int) -> None:
    beside = target.with_name(f".{os.urandom(8).hex()}.tmp")  # same folder: a rename there is atomic
    try:
        with open(beside, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            _keep_access(target, file.fileno())
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # the content must be on the disk before the name points to it
        os.replace(beside, target)
    except BaseException:
        with suppress(OSError):  # report the first error
            beside.unlink(missing_ok=True)
        raise


def _keep_access(target: Path, file: int) -> None:
    """Give a new file the owner, group and permissions of the file that it replaces; at least the group, or nothing."""
    with suppress(FileNotFoundError, AttributeError):  # a new file; Windows
        before = os.stat(target)
        for owner in (before.st_uid, -1):
            with suppress(PermissionError):
                os.fchown(file, owner, before.st_gid)
                os.fchmod(file, stat.S_IMODE(before.st_mode))
                return


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_PATIENCE = 0.02  # seconds for the lock of a file of lines: another writer holds it for less than a millisecond
_PAUSE = 0.001  # seconds between two tries


def try_lock(file: int, patience: float = 0.0) -> bool:
    """Lock a file against other processes until it is closed or unlocked; return whether that worked.

    A file system without locks, and Windows, count as locked. With no patience it never waits.

    Args:
        file: descriptor of the file.
        patience: seconds to wait for another process.
    """
    end = time.monotonic() + patience
    while fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(_PAUSE)
        except OSError:  # a file system without locks
            return True
        else:
            return True
    return True


_FOLDER_SECONDS = 30.0  # seconds to wait for the lock of a folder: a healthy process holds it for some milliseconds


@contextmanager
def lock_folder_of(path: str | os.PathLike[str]) -> Iterator[None]:
    """Lock the folder of a file against other processes that lock it, to read the file and write it anew.

    The file itself cannot have the lock, as `write_atomically` replaces it. Raises OSError; TimeoutError, one of its
    kinds, if another process keeps the lock.
    """
    if fcntl is None:
        yield
        return
    folder = os.open(os.path.dirname(os.path.realpath(path)), os.O_RDONLY)
    try:
        if not try_lock(folder, _FOLDER_SECONDS):
            raise TimeoutError(errno.ETIMEDOUT, "another process has locked its folder", os.fspath(path))
        yield
    finally:
        os.close(folder)


_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)


MAX_WAITING_BYTES = 2**24
"""Bytes of lines that wait for a slow reader of standard output; further lines are dropped."""

_END_SECONDS = 5.0  # for the lines that wait at the end


class StandardOutput:
    """Standard output with whole lines, even if several processes write to it.

    A thread writes the lines, so that a reader that does not read holds up nobody.
    """

    def __init__(self) -> None:
        self._lines = SimpleQueue[bytes | None]()
        self._lock, self._waiting = threading.Lock(), 0  # bytes
        self._lost, self._problem = 0, OSError()  # lines not yet reported as lost; the last problem
        self._thread = threading.Thread(target=self._write_lines, name="rcjax-output", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def append(self, line: bytes) -> None:
        """Have a line written, which must end in a newline.

        Raises OSError once per earlier line that could not be written, or if so many wait that this one is dropped.
        """
        with self._lock:
            if self._waiting + len(line) > MAX_WAITING_BYTES:
                raise OSError(errno.ENOBUFS, "its reader does not keep up")
            self._waiting += len(line)
            self._lines.put(line)
            if self._lost:
                self._lost -= 1
                raise self._problem

    def close(self) -> None:
        """Write the lines that wait, for some seconds at most. Standard output stays open: it is the process's."""
        atexit.unregister(self.close)
        self._lines.put(None)
        self._thread.join(_END_SECONDS)

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            problem = None
            try:
                _write_output(line)
            except OSError as error:
                problem = error
            with self._lock:
                self._waiting -= len(line)
                if problem is not None:
                    self._lost, self._problem = self._lost + 1, problem


OUTPUT = 1
"""Descriptor of standard output."""


def _write_output(line: bytes) -> None:
    _lock_process(OUTPUT, held=True)
    try:
        while line:
            line = line[os.write(OUTPUT, line) :]
    finally:
        _lock_process(OUTPUT, held=False)


def _lock_process(file: int, *, held: bool) -> None:
    """Lock a file against other processes, or unlock it: a pipe takes only 4 kB atomically."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_EX if held else fcntl.LOCK_UN)


class LineFile:
    """A file open for appending, with one write per line.

    After a truncated line, left by a kill or a full disk, the next one begins on a new line. If another program renames
    or removes the file, as logrotate does, the next line goes to the file that then has the name, or to a new one.
    Writers lock the file for a moment each. If another program keeps its lock, lines are written without it: the write
    appends the whole line in any case, and at worst an empty line comes before it.

    Args:
        path: path of the file. A missing file is created, readable by its owner alone: lines may hold prompts.

    Raises OSError if the file cannot be opened, and from `append` if it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._full_path = os.path.abspath(self.path)  # the process may change its folder
        self._thread_lock = threading.Lock()
        self._is_kept_locked = False  # by another program, the last time
        self._file = os.open(self._full_path, _FLAGS, 0o600)

    def append(self, line: bytes) -> None:
        """Write a line, which must end in a newline."""
        with self._thread_lock:
            if self._file < 0:
                raise OSError(errno.EBADF, "the file is closed", self.path)
            self._follow_the_name()
            self._lock()
            try:
                line = b"\n" + line if self._is_cut_off() else line
                written = os.write(self._file, line)
            finally:
                self._unlock()
        if written != len(line):
            raise OSError(f"cannot write to {self.path}: only {written} of {len(line)} bytes: is the disk full?")

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        with self._thread_lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _follow_the_name(self) -> None:
        """Reopen the path if it is another file by now; a new file gets the permissions of the old one."""
        before = os.fstat(self._file)
        try:
            if os.path.samestat(os.stat(self._full_path), before):
                return
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:  # without permission to look, keep the open file
            return
        file = os.open(self._full_path, _FLAGS, stat.S_IMODE(before.st_mode))
        os.close(self._file)
        self._file = file

    def _lock(self) -> None:
        """Lock the file against other processes, which might see the beginning of a long line; give up soon.

        An event loop may write lines, and all requests would wait. After a failure one try is enough until one works.
        """
        self._is_kept_locked = not try_lock(self._file, 0.0 if self._is_kept_locked else _PATIENCE)

    def _unlock(self) -> None:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _is_cut_off(self) -> bool:
        """Return whether the file ends within a line: its writer was killed, or the disk was full."""
        size = os.lseek(self._file, 0, os.SEEK_END)
        if not size:
            return False
        os.lseek(self._file, size - 1, os.SEEK_SET)
        return os.read(self._file, 1) not in (b"\n", b"")


def print_lines(lines: Iterable[str]) -> int:
    """Print lines on standard output, or else the error on standard error; return the exit status."""
    try:
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:
        silence(sys.stdout)
    except OSError as problem:
        silence(sys.stdout)
        print(f"error: standard output: {problem.strerror}", file=sys.stderr)
        return 1
    return 0


def silence(stream: TextIO) -> None:
    """Redirect a broken stream to the null device, as Python flushes it once more at the end."""
    with suppress(OSError, ValueError):  # ValueError: it is not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
