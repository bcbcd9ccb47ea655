"""Writing files whole: who reads one sees the old content or the new, never half. Standard library only."""

import os
from contextlib import suppress
from pathlib import Path

from rcjax._base.arguments import instance


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write bytes, or text as UTF-8, to a file at once: into a new file beside it, which then takes its name.

    A file that was there is replaced, through a symbolic link to it too; the new one has the permissions that
    any new file of the process gets. A pipe or a device, such as /dev/null, is written to as it is. Raises OSError
    with the file's name where it cannot be written; what was there is then untouched.
    """
    instance(path, (str, os.PathLike), "path")
    content = content.encode() if isinstance(content, str) else content
    try:
        if is_stream(path):
            with open(path, "wb") as file:
                file.write(content)
        else:
            _replace(Path(os.path.realpath(path)), content)  # through a link, so that the link stays one
    except OSError as problem:  # a full disk tells no name, other errors that of the new file
        raise OSError(problem.errno, f"cannot be written: {problem.strerror or problem}", os.fspath(path)) from problem


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether there is something of this name that is neither a file nor a folder: a pipe or a device."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _replace(target: Path, content: bytes) -> None:
    beside = target.with_name(f".{os.urandom(8).hex()}.tmp")  # same folder: a rename there is atomic
    try:
        with open(beside, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # the content must be on the disk before the name points to it
        os.replace(beside, target)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            beside.unlink(missing_ok=True)
        raise
