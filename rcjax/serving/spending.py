"""What a call log says was spent on the bill of a policy: by all who write to it, and before a restart.

Standard library only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

_WHEN = r"([-.]\d[\d-]*)?"
_MOST = 1e11  # of money and seconds: no NaN, and no year that a calendar has not


class Spent(NamedTuple):
    """One call that is on the bill of a policy."""

    policy: str
    """The policy's name."""
    cascade: str
    """The `Cascade` that asked, by its random name."""
    begins: bool
    """It is the first of its query."""
    cost: float
    """Money."""
    seconds: float
    """That it took."""
    time: float
    """When it ended, in seconds since 1970."""


class LogReader:
    """Reads the calls of a call log that were not read before, each once, also those in files renamed meanwhile.

    Args:
        path: of the log. Files beside it that have its name and a date or number are its past, as `logrotate` leaves
            it: `calls-20261124.jsonl`, `calls.jsonl.1`.
        since: calls that ended earlier are left out; seconds since 1970.
    """

    def __init__(self, path: str | os.PathLike[str], since: float = 0.0) -> None:
        self._path, self._since = Path(path).absolute(), since
        stem, suffix = re.escape(self._path.stem), re.escape(self._path.suffix)
        self._names = re.compile(rf"{stem}{_WHEN}{suffix}{_WHEN}")
        self._read: dict[tuple[int, int], int] = {}

    def new(self) -> Iterator[Spent]:
        """The calls that are new, file by file; what is no line of a call that is on a bill is passed over."""
        for path, status in sorted(self._files(), key=lambda file: file[1].st_mtime_ns):
            which = status.st_dev, status.st_ino  # whatever its name is by now
            start = self._read.get(which, 0)
            self._read[which] = start = start if start <= status.st_size else 0  # a new one in place of one deleted
            if start < status.st_size and status.st_mtime >= self._since:
                with suppress(OSError), open(path, "rb") as file:
                    if os.path.samestat(os.fstat(file.fileno()), status):  # else renamed just now
                        file.seek(start)
                        yield from self._calls(file, which)

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        with suppress(OSError):
            for path in self._path.parent.iterdir():
                if self._names.fullmatch(path.name):
                    with suppress(OSError):
                        yield path, path.stat()

    def _calls(self, file: BinaryIO, which: tuple[int, int]) -> Iterator[Spent]:
        for line in file:
            if not line.endswith(b"\n"):  # half of it is not written yet
                return
            self._read[which] += len(line)
            spent = _spent(line)
            if spent is not None and spent.time >= self._since:
                yield spent


def _spent(line: bytes) -> Spent | None:
    """A call on a bill, by its line of the log; None of anything else."""
    with suppress(ValueError, KeyError, TypeError, RecursionError, OverflowError):
        row: Mapping[str, Any] = json.loads(line)
        names = str(row["policy"]), str(row["cascade"])
        figures = float(row["cost"]), float(row["seconds"]), datetime.fromisoformat(row["time"]).timestamp()
        if all(0 <= figure < _MOST for figure in figures):
            return Spent(*names, row["step"] == 1, *figures)
    return None


def queries_per_day(path: str | os.PathLike[str]) -> float | None:
    """How many queries a day a service had while it wrote a call log; None where the log does not tell, or of a day.

    Args:
        path: of the log.
    """
    times = [spent.time for spent in LogReader(path).new() if spent.begins]
    days = (max(times) - min(times)) / 86_400 if times else 0.0
    return (len(times) - 1) / days if days >= 1 else None
