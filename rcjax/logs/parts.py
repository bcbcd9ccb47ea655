"""A log in several files, or a folder of them, as one table: what a service wrote, and what was rotated since."""

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

#: How the names of tables end, rotated ones too: `calls.jsonl`, `calls.jsonl.1`, `calls.jsonl-20260105.gz`.
_TABLE = re.compile(rf"({'|'.join(map(re.escape, TABLES))})([.-]\d[\d-]*)?(\.gz)?$", re.IGNORECASE)


def join_parts(paths: Sequence[Path]) -> Path | Parts:
    """One file as it is; several, or those of folders, as one table, the oldest first.

    Of a folder tables count that tell of answers: labels beside a log are no part of it. Raises LogError where a file
    cannot be read, or a folder has no log.
    """
    if len(paths) == 1 and not paths[0].is_dir() and paths[0].suffix.lower() in TABLES:
        return paths[0]
    parts = [part for path in paths for part in (_parts_of(path) if path.is_dir() else [_read(path)])]
    name = paths[0].name or str(paths[0].absolute())
    name = name if len(parts) == 1 else f"{name} ({count(len(parts), 'file')})"
    frames, cut = zip(*parts, strict=True)
    return Parts(name, pl.concat(frames, how="diagonal_relaxed"), sum(cut))


def _parts_of(folder: Path) -> list[tuple[pl.DataFrame, int]]:
    """The tables of a folder that tell of answers, with the lines that are cut off."""
    parts = [(frame, cut) for frame, cut in map(_read, _files_in(folder)) if _tells_answers(frame.columns)]
    if not parts:
        needed = "query, model, and a confidence or what a call cost"
        raise LogError(f"{folder}: no log in this folder: give one, or a folder of tables with {needed}")
    return parts


def _tells_answers(columns: Sequence[str]) -> bool:
    """Whether a table is a log of answers, and not one of labels, say."""
    names = {*map(plain_name, columns)}
    return {"query", "model"} <= names and bool({"logprob", "confidence", "cost", *TOKENS} & names)


def _files_in(folder: Path) -> list[Path]:
    """The tables of a folder, the oldest first."""
    files = [file for file in folder.iterdir() if file.is_file() and _TABLE.search(file.name) and file.stat().st_size]
    return sorted(files, key=lambda file: (file.stat().st_mtime_ns, file.name))


def _read(file: Path) -> tuple[pl.DataFrame, int]:
    """(the rows of a file as texts, lines of a call log that are cut off)."""
    told = _TABLE.search(file.name)
    if told is None:
        require_file(file, TABLES)
    assert told is not None
    if told[1].lower() == ".parquet":
        return scan_parquet(file).collect(), 0
    try:
        content = gzip.decompress(file.read_bytes()) if told[3] else None
    except (OSError, EOFError) as problem:
        raise LogError(f"{file.name}: {problem}") from None
    return load_text(open_text(file, known_columns(()), told[1].lower(), content), file.name)


def main_file(paths: Sequence[Path]) -> Path:
    """The file that a service writes to, of those that are its log: of a folder, the last JSON Lines written."""
    if not paths[0].is_dir():
        return paths[0]
    files = _files_in(paths[0])
    return next((file for file in files[::-1] if ".jsonl" in file.name), files[-1] if files else paths[0])
