"""The parts that a log file rolls off: their names, which sort by time, and which of them are there.

A part of `calls.jsonl` is `calls.2026-11-24.0001.jsonl`, beside it: the day in UTC of its first line, and its number
among the parts of that day. Standard library only.
"""

from __future__ import annotations

import os
import re
from datetime import date
from pathlib import Path

__all__ = ["new_part", "parts_of"]


def parts_of(path: str | os.PathLike[str]) -> list[Path]:
    """What stands beside a log, or beside the file that a link to it leads to, under the name of a part, oldest first.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> names = "calls.2026-11-24.10000.jsonl", "calls.2026-11-24.0002.jsonl", "calls.2026-11-24.jsonl", "calls.jsonl"
    >>> for name in names:
    ...     (folder / name).touch()
    >>> [part.name for part in parts_of(folder / "calls.jsonl")]
    ['calls.2026-11-24.0002.jsonl', 'calls.2026-11-24.10000.jsonl']
    """
    try:
        real = Path(os.path.realpath(path))
    except ValueError:  # no file has such a name
        return []
    dated = _dated_parts(real)
    return [real.with_name(name) for name in sorted(dated, key=dated.__getitem__)]


def new_part(path: str | os.PathLike[str], day: date) -> Path:
    """Take the name of the next part of a log, by an empty file: whatever takes its place overwrites nothing else.

    Args:
        path: the log, no link to it.
        day: of its first line. Where clocks went back the day is that of the newest part, so that names sort.

    Raises OSError where no file can be made there.
    """
    path, number = Path(path), 0
    latest = max(_dated_parts(path).values(), default=(day, number))
    if latest[0] >= day:
        day, number = latest
    while True:
        number += 1
        part = path.with_name(f"{path.stem}.{day.isoformat()}.{number:04d}{path.suffix}")
        try:
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        except FileExistsError:  # somebody was quicker
            continue
        return part


def _dated_parts(path: Path) -> dict[str, tuple[date, int]]:
    """The day and the number of each part of a log, by its name."""
    try:
        names = os.listdir(path.parent)
    except OSError:  # there is no such folder, or nobody may look into it
        return {}
    return {name: dated for name in names if (dated := _day_and_number(path, name)) is not None}


def _day_and_number(path: Path, name: str) -> tuple[date, int] | None:
    """(the day, the number) of a part by its name; None of what is no part of this log."""
    form = rf"{re.escape(path.stem)}\.([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})\.([0-9]{{4,}}){re.escape(path.suffix)}"
    match = re.fullmatch(form, name, re.DOTALL)
    if match is None or match[2] != f"{int(match[2][-18:]):04d}":
        return None
    try:
        return date.fromisoformat(match[1]), int(match[2])
    except ValueError:  # no day has that name
        return None
