"""Writing files whole: who reads one sees the old content or the new, never half. Standard library only."""

import os
from pathlib import Path

from rcjax._arguments import instance


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write bytes, or text as UTF-8, to a file at once: into a new file beside it, which then takes its name.

    A file that was there is replaced, through a symbolic link to it too; the new one has the permissions that
    any new file of the process gets. Raises OSError where the file cannot be written; what was there is then
    untouched.
    """
    instance(path, (str, os.PathLike), "path")
    target = Path(os.path.realpath(path))  # through a link, so that the link stays one
    beside = target.with_name(f".{os.urandom(8).hex()}.tmp")  # same folder: a rename there is atomic
    try:
        with open(beside, "xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())  # the content must be on the disk before the name points to it
        os.replace(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
