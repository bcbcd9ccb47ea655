"""Compiled programs in a private folder, one file each.

JAX's own cache saves only the compilation: a program is traced and lowered again to compute its key. Here the key is
the signature of the call (`rcjax._core.compilation`), so that nothing is traced.

An executable is machine code in a pickle. It is loaded only from a folder that belongs to this user and is closed to
all others, so that nobody else can have put a file there.
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

#: Limit of the cache folder, JAX's files included; the least recently used files are deleted first.
MOST_BYTES = 256 * 2**20

#: A full folder is emptied down to this share, so that not every new program has to delete files.
_LEFT = 0.75

_SUFFIX = ".program"

_OF_JAX = "jax"  # the folder of JAX's own cache

#: Names of files that may be deleted: stored programs, and JAX's files. The folder may also hold files of the user.
_OURS = re.compile(rf"[0-9a-f]{{64}}{re.escape(_SUFFIX)}|.+-[0-9a-f]{{64}}-(cache|atime)")

Program = Callable[..., Any]


@dataclass(frozen=True)
class ProgramFiles:
    """A folder of compiled programs."""

    folder: Path

    def load(self, key: str) -> tuple[Program, Any] | None:
        """Load a program; return (the program, its result's structure with numbered leaves), or None if not stored.

        A damaged file is ignored, and so is a folder that others could write to.
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
            # A program is compiled for the first device; there may be more.
            devices = jax.devices()[:1]
            return serialize_executable.deserialize_and_load(executable, *trees, execution_devices=devices), example
        except Exception:  # a cache must never fail a call
            return None

    def save(self, key: str, program: jax.stages.Compiled, leaves: int, example: Any) -> None:
        """Store a program; a failure, such as a full disk, is ignored.

        Args:
            key: key of the program, from `rcjax._core.compilation.signature_key`.
            program: the compiled program.
            leaves: number of its arguments, all arrays.
            example: structure of its result, with numbered leaves.
        """
        with suppress(Exception):
            executable, _, _ = serialize_executable.serialize(program)
            record = executable, leaves, example, b"lapack_" in executable  # it contains the names of its callees
            content = zlib.compress(pickle.dumps(record), level=1)
            write_atomically(self._path(key), hashlib.sha256(content).digest() + content)
            self._make_room()

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def _make_room(self) -> None:
        """Delete the least recently used files of this folder and of JAX's beside it, if they exceed the limit."""
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
    """Open the subfolder of programs in a cache folder; None if others could write to it."""
    folder = _private_folder(cache / "programs")
    return None if folder is None else ProgramFiles(folder)


def jax_folder(cache: Path) -> Path | None:
    """Return JAX's subfolder in a cache folder; None if others could write to it."""
    return _private_folder(cache / _OF_JAX)


def _private_folder(folder: Path) -> Path | None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder if _is_private(folder) else None
    except OSError:
        return None


def _is_private(folder: Path) -> bool:
    """Return whether a folder belongs to this user and is closed to all others; False if the system does not tell."""
    if not hasattr(os, "geteuid"):
        return False
    status = folder.lstat()
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077


@cache
def _bind_lapack() -> None:
    """Make JAX bind LAPACK, as it does when it lowers the first call: else a loaded program calls a null pointer."""
    jax.jit(jnp.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), jnp.float32))
