"""A log in several files, or a folder of them, as one table: what a service wrote, and what was rotated since."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from rcjax._base.wording import count
from rcjax.logs.columns import known_columns
from rcjax.logs.errors import LogError
from rcjax.logs.sources import TABLES, Parts, load_text, open_text, require_file

#: How the names of tables end, rotated ones too: `calls.jsonl`, `calls.jsonl.1`, `calls.jsonl-20260105.gz`.
_TABLE = re.compile(rf"({'|'.join(map(re.escape, TABLES))})([.-]\d[\d-]*)?(\.gz)?$", re.IGNORECASE)


def join_parts(paths: Sequence[Path]) -> Path | Parts:
    """One file as it is; several, or those of folders, as one table, the oldest first. LogError where one is none."""
    files = [file for path in paths for file in (_files_in(path) if path.is_dir() else [path])]
    if len(paths) == 1 and files == [*paths] and paths[0].suffix.lower() in TABLES:
        return paths[0]
    frames, cut = [], 0
    for file in files:
        frame, lost = _read(file)
        frames.append(frame)
        cut += lost
    name = paths[0].name or str(paths[0].absolute())
    name = name if len(files) == 1 else f"{name} ({count(len(files), 'file')})"
    return Parts(name, pl.concat(frames, how="diagonal_relaxed"), cut)


def _files_in(folder: Path) -> list[Path]:
    """The tables of a folder, the oldest first."""
    files = [file for file in folder.iterdir() if file.is_file() and _TABLE.search(file.name) and file.stat().st_size]
    if not files:
        raise LogError(f"{folder}: no table in this folder: give a log, or a folder of {', '.join(TABLES)}")
    return sorted(files, key=lambda file: (file.stat().st_mtime_ns, file.name))


def _read(file: Path) -> tuple[pl.DataFrame, int]:
    """(the rows of a file as texts, lines of a call log that are cut off)."""
    told = _TABLE.search(file.name)
    if told is None:
        require_file(file, TABLES)
    assert told is not None
    if told[1].lower() == ".parquet":
        return pl.read_parquet(file), 0
    try:
        content = gzip.decompress(file.read_bytes()) if told[3] else None
    except (OSError, EOFError) as problem:
        raise LogError(f"{file.name}: {problem}") from None
    return load_text(open_text(file, known_columns(()), told[1].lower(), content), file.name)


def main_file(paths: Sequence[Path]) -> Path:
    """The file that a service writes to, of those that are its log: of a folder, the last that was written."""
    return _files_in(paths[0])[-1] if paths[0].is_dir() else paths[0]
