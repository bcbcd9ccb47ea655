"""Compiled programs kept in a folder of this user's, one file each.

JAX's own cache saves compiling alone: a program is traced and lowered again to know its key. Here the key is what
the call looks like (`rcjax._core.compilation`), so that nothing is traced.

An executable is machine code, in a pickle: it is loaded only from a folder that is this user's own and that nobody else
may open, so that nobody else can have put a file there.
"""

import hashlib
import os
import pickle
import re
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

_OF_JAX = "jax"  # the folder of JAX's own cache

#: What may be deleted: our programs, and what JAX keeps. A cache folder may hold files of the user's too.
_OURS = re.compile(rf"[0-9a-f]{{64}}{re.escape(_SUFFIX)}|.+-[0-9a-f]{{64}}-(cache|atime)")

Program = Callable[..., Any]


@dataclass(frozen=True)
class ProgramFiles:
    """A folder of compiled programs."""

    folder: Path

    def load(self, key: str) -> tuple[Program, Any] | None:
        """(the program, an example of what it returns, with its leaves numbered); None if none is kept.

        A damaged file counts as none, and so does one that somebody else may have put there.
        """
        path = self._path(key)
        try:
            if not _is_private(self.folder):
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
        """Delete what was not used for longest, in the folder and in the one beside it, which is JAX's."""
        entries = []
        for folder in (self.folder, self.folder.with_name(_OF_JAX)):
            for path in folder.iterdir() if folder.is_dir() else ():
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
    folder = _private_folder(cache / "programs")
    return None if folder is None else ProgramFiles(folder)


def jax_folder(cache: Path) -> Path | None:
    """Where JAX may keep what it compiles, in a cache folder; None if others could put theirs there."""
    return _private_folder(cache / _OF_JAX)


def _private_folder(folder: Path) -> Path | None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder if _is_private(folder) else None
    except OSError:
        return None


def _is_private(folder: Path) -> bool:
    """Whether a folder is this user's own, and closed to everybody else; False where the system does not tell."""
    if not hasattr(os, "geteuid"):
        return False
    status = folder.lstat()
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077


@cache
def _bind_lapack() -> None:
    """Have JAX find LAPACK, which it does when it lowers the first call of it: a program that is loaded needs it too.

    Without, the program calls a null pointer.
    """
    jax.jit(jnp.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), jnp.float32))
