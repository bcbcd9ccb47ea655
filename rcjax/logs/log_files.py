"""The files that a log is read from: a file or a dataframe, or a call log with the parts that rolled off it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rcjax._base.log_parts import parts_of
from rcjax._base.wording import count
from rcjax.logs.checked_rows import Choose, Rows, read_rows
from rcjax.logs.dialects import open_text
from rcjax.logs.errors import LogError, NoRowsError
from rcjax.logs.scoring import RIGHT_OR_WRONG, Scoring
from rcjax.logs.text_files import find_damage, holds_calls

__all__ = ["LogFiles"]


_KINDS = (".jsonl", ".ndjson")


class LogFiles:
    """A log's source, and the parts beside it where that is the path of a call log that rolled over.

    Parts are read in order of time, and the file itself last, if there is anything in it. A part that is given as the
    source is read alone.

    Args:
        source: as `read_log` takes it.
        more: which columns to read besides, as `read_rows` takes it.
        scoring: how its labels are written.
    """

    def __init__(self, source: Any, more: Choose | None = None, scoring: Scoring = RIGHT_OR_WRONG) -> None:
        self.source = source
        self._more, self._scoring = more, scoring
        self.name = ""
        """The log's, for messages; not that of one of its parts."""
        self.cut = 0
        """Lines of a call log that are cut off, so far."""
        self.parts: list[Path] = []
        """Those that were read, so far."""
        self._whole = False

    def rows(self, priced: bool, needed_label: str | None) -> Iterator[Rows]:
        """The rows, some at a time, as `read_rows` has them, each with the name of the file that it is in.

        Raises LogError where a file cannot be used, or the log rolled over while its end was read.
        """
        if not _may_roll(self.source):
            rows, self.cut = read_rows(self.source, priced, needed_label, self._more, self._scoring)
            for some in rows:
                self.name = some.name
                yield some
            return
        path = Path(self.source)
        self.name = path.name
        any_rows, empty = False, None
        for file in self.files():
            try:
                rows, cut = read_rows(file, priced, needed_label, self._more, self._scoring)
                self.cut += cut
                for some in rows:
                    any_rows = True
                    yield some
            except NoRowsError as nothing:  # all that a kill left of it
                self.cut, empty = self.cut + nothing.cut, nothing
        if empty is not None and not any_rows:
            alone = f"{path.name}: no rows: all {self.cut} lines of it and its parts are cut off"
            raise NoRowsError(alone, self.cut) if self.parts else empty

    def files(self) -> Iterator[Path]:
        """Of a call log the parts, those too that the log rolls to meanwhile, then the file.

        Raises LogError as `rows` does.
        """
        path = Path(self.source)
        while not self._whole:
            later = self._later(path)
            for part in later:
                _require_calls(part, path)
                self.parts.append(part)
                yield part
            if not later and _size(path):
                self._whole = True
                yield path
            elif not later and not self._later(path):  # else it rolled over just now
                return
        if self._later(path):
            raise LogError(f"{path.name}: it rolled over while it was read: read it again")

    def _later(self, path: Path) -> list[Path]:
        """The parts that are there and were not read."""
        read = {*self.parts}
        return [part for part in _filled(path) if part not in read]

    @property
    def parts_read(self) -> str:
        """One line on the parts that were read; empty where there are none."""
        if not self.parts:
            return ""
        named = f"{self.parts[0].name} to {self.parts[-1].name}" if self.parts[1:] else self.parts[0].name
        also = "" if self._whole else "; it holds nothing since"
        return f"{self.name}: read with {count(len(self.parts), 'part')} that rolled off it, {named}{also}"


def _may_roll(source: Any) -> bool:
    """Whether a source is the path of a call log, or of one that holds nothing yet and has parts beside it."""
    if not isinstance(source, str | os.PathLike) or Path(source).suffix.lower() not in _KINDS:
        return False
    path = Path(source)
    if _size(path):
        return _holds_calls(path)
    return not path.is_dir() and any(map(_holds_calls, _filled(path)))


def _filled(path: Path) -> list[Path]:
    """What stands in the place of parts, but for files that are empty: a part that is just being made."""
    return [part for part in parts_of(path) if _size(part) or (os.path.lexists(part) and not part.is_file())]


def _size(path: Path) -> int:
    """Bytes in a file; 0 where there is none, or nobody may look."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _holds_calls(path: Path) -> bool:
    try:
        return path.is_file() and holds_calls(open_text(path, ()))
    except (OSError, ValueError):
        return False


def _require_calls(part: Path, path: Path) -> None:
    """Refuse what has the name of a part, but is none."""
    if _holds_calls(part):
        return
    what = f"it has the name of a part of {path.name}"
    if not part.is_file():
        raise LogError(f"{part.name}: {what}, and is {'a folder' if part.is_dir() else 'no file'}: move it away")
    try:
        damage = find_damage(open_text(part, ()))
    except (OSError, ValueError) as error:
        raise LogError(f"{part.name}: {what}, and cannot be read: {error}") from None
    raise LogError(part.name + (damage or f": {what}, but holds no calls: move it away"))
