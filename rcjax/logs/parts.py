"""Read a log of several files or a folder as one table: the file that a service writes, and its rotated files."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from rcjax._base.wording import count
from rcjax.logs.columns import TOKENS, known_columns, plain_name
from rcjax.logs.errors import LogError
from rcjax.logs.sources import TABLES, Parts, load_text, open_text, require_file, scan_parquet

#: Endings of the names of tables, rotated ones included: `calls.jsonl`, `calls.jsonl.1`, `calls.jsonl-20260105.gz`.
_TABLE = re.compile(rf"({'|'.join(map(re.escape, TABLES))})([.-]\d[\d-]*)?(\.gz)?$", re.IGNORECASE)


def join_parts(paths: Sequence[Path]) -> Path | Parts:
    """Return a single file as it is; join several, and those of folders, into one table, the oldest first.

    Tables without answers in a folder, such as labels, are passed over. Raises LogError if a file cannot be read, or a
    folder has no log.
    """
    if len(paths) == 1 and not paths[0].is_dir() and paths[0].suffix.lower() in TABLES:
        return paths[0]
    parts = [part for path in paths for part in (_parts_of(path) if path.is_dir() else [_read(path)])]
    name = paths[0].name or str(paths[0].absolute())
    name = name if len(parts) == 1 else f"{name} ({count(len(parts), 'file')})"
    frames, cut = zip(*parts, strict=True)
    return Parts(name, pl.concat(frames, how="diagonal_relaxed"), sum(cut))


def _parts_of(folder: Path) -> list[tuple[pl.DataFrame, int]]:
    """Return (rows, number of truncated lines) of each table of answers in a folder."""
    parts = [(frame, cut) for frame, cut in map(_read, _files_in(folder)) if _tells_answers(frame.columns)]
    if not parts:
        needed = "query, model, and a confidence or what a call cost"
        raise LogError(f"{folder}: no log in this folder: give one, or a folder of tables with {needed}")
    return parts


def _tells_answers(columns: Sequence[str]) -> bool:
    """Return whether a table is a log of answers, by its columns."""
    names = {*map(plain_name, columns)}
    return {"query", "model"} <= names and bool({"logprob", "confidence", "cost", *TOKENS} & names)


def _files_in(folder: Path) -> list[Path]:
    """Return the tables of a folder, the oldest first."""
    files = [file for file in folder.iterdir() if file.is_file() and _TABLE.search(file.name) and file.stat().st_size]
    return sorted(files, key=lambda file: (file.stat().st_mtime_ns, file.name))


def _read(file: Path) -> tuple[pl.DataFrame, int]:
    """Return (the rows of a file, as texts unless it is Parquet; the number of truncated lines of a call log)."""
    ending = _TABLE.search(file.name)
    if ending is None:
        require_file(file, TABLES)
    assert ending is not None
    if ending[1].lower() == ".parquet":
        return scan_parquet(file).collect(), 0
    try:
        content = gzip.decompress(file.read_bytes()) if ending[3] else None
    except (OSError, EOFError) as problem:
        raise LogError(f"{file.name}: {problem}") from None
    return load_text(open_text(file, known_columns(()), ending[1].lower(), content), file.name)


def main_file(paths: Sequence[Path]) -> Path:
    """Return the file that a service writes to: the first path or, of a folder, the last JSON Lines file written."""
    if not paths[0].is_dir():
        return paths[0]
    files = _files_in(paths[0])
    return next((file for file in files[::-1] if ".jsonl" in file.name), files[-1] if files else paths[0])
