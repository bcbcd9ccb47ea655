"""Compiled programs kept in a folder of this user's, one file each.

JAX's own cache saves compiling alone: a program is traced and lowered again to know its key. Here the key is what
the call looks like (`rcjax._core.compilation`), so that nothing is traced.

An executable is machine code, in a pickle: it is loaded only from files that nobody but this user can have written
(`is_private`).
"""

import hashlib
import os
import pickle
import re
import stat
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import serialize_executable

from rcjax._base.files import write_atomically

#: The most that the cache folder may hold, what JAX keeps there included; what was not used for longest goes first.
MOST_BYTES = 256 * 2**20

#: A full folder is emptied down to this share, so that not every new program has to look for what may go.
_LEFT = 0.75

_SUFFIX = ".program"

#: What may be deleted: our programs, and what JAX keeps. A cache folder may hold files of the user's too.
_OURS = re.compile(rf"[0-9a-f]{{64}}{re.escape(_SUFFIX)}|.+-[0-9a-f]{{64}}-(cache|atime)")

Program = Callable[..., Any]


@dataclass(frozen=True)
class ProgramFiles:
    """A folder of compiled programs."""

    folder: Path

    def load(self, key: str) -> tuple[Program, Any] | None:
        """(the program, an example of what it returns, with its leaves numbered); None if none is kept.

        A damaged file counts as none, and so does one that somebody else can write to.
        """
        path = self._path(key)
        try:
            if not is_private(path):
                return None
            content = path.read_bytes()
            if hashlib.sha256(content[32:]).digest() != content[:32]:
                return None
            executable, leaves, example, linear_algebra = pickle.loads(zlib.decompress(content[32:]))
            if linear_algebra:
                _bind_lapack()
            with suppress(OSError):
                os.utime(path)  # the time of its last use
            trees = jax.tree.structure(((0,) * leaves, {})), jax.tree.structure([0] * len(jax.tree.leaves(example)))
            # The first device alone: there may be more, and a program is compiled for one.
            devices = jax.devices()[:1]
            return serialize_executable.deserialize_and_load(executable, *trees, execution_devices=devices), example
        except Exception:  # whatever is wrong with a file of a cache, it is only a cache
            return None

    def save(self, key: str, program: jax.stages.Compiled, leaves: int, example: Any) -> None:
        """Keep a program; that a disk is full, or that it cannot be kept, costs nothing.

        Args:
            key: its name, `rcjax._core.compilation.signature_key`.
            program: the compiled program.
            leaves: how many arrays it takes.
            example: what it returns, with its leaves numbered.
        """
        with suppress(Exception):
            executable, _, _ = serialize_executable.serialize(program)
            record = executable, leaves, example, b"lapack_" in executable  # the names of what it calls are in there
            content = zlib.compress(pickle.dumps(record), level=1)
            write_atomically(self._path(key), hashlib.sha256(content).digest() + content)
            self._make_room()

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def _make_room(self) -> None:
        """Delete what was not used for longest, in the folder and in the one above, which is JAX's."""
        entries = []
        for folder in (self.folder, self.folder.parent):
            for path in folder.iterdir():
                with suppress(OSError):  # another process may have deleted it
                    if _OURS.fullmatch(path.name):
                        status = path.lstat()
                        entries.append((status.st_mtime, status.st_size, path))
        size = sum(entry[1] for entry in entries)
        if size <= MOST_BYTES:
            return
        for _, bytes_, path in sorted(entries):
            with suppress(OSError):
                path.unlink()
            size -= bytes_
            if size <= _LEFT * MOST_BYTES:
                return


def open_program_files(cache: Path) -> ProgramFiles | None:
    """The programs of a cache folder, in one of their own; None if others could put theirs there."""
    folder = cache / "programs"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return ProgramFiles(folder) if is_private(folder) else None


@cache
def _bind_lapack() -> None:
    """Have JAX find LAPACK, which it does when it lowers the first call of it: a program that is loaded needs it too.

    Without, the program calls a null pointer.
    """
    jax.jit(jnp.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), jnp.float32))


def is_private(path: str | os.PathLike[str]) -> bool:
    """Whether nobody but this user, and root, can change a file or folder, or put another in its place.

    So for the path itself and for every folder above it, links followed. A folder that others can write to may stand
    above where its sticky bit keeps them from renaming what is not theirs, as in /tmp. False where the system does
    not tell, as on Windows, and where the path does not exist.

    >>> is_private("/nowhere/at/all")
    False
    """
    if not hasattr(os, "geteuid"):
        return False
    whole = Path(os.path.realpath(path))
    try:
        return _only_ours(whole.stat()) and all(_only_ours(folder.stat(), above=True) for folder in whole.parents)
    except OSError:
        return False


def _only_ours(status: os.stat_result, above: bool = False) -> bool:
    if status.st_uid not in (os.geteuid(), 0) or (status.st_uid == 0 != os.geteuid() and not above):
        return False
    if above and status.st_mode & stat.S_ISVTX:
        return True
    return not status.st_mode & stat.S_IWOTH and (not status.st_mode & stat.S_IWGRP or _is_private_group(status.st_gid))


def _is_private_group(number: int) -> bool:
    """Whether a group is the user's own, as most distributions have it: of the user's name, with no other member."""
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and user.pw_gid == number and {*group.gr_mem} <= {user.pw_name}
