"""Writing a log as a file of any kind that `read_log` reads."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from rcjax._base.files import write_atomically
from rcjax.logs.errors import LogError

_WRITERS: dict[str, Callable[[pl.DataFrame, Any], Any]] = {
    ".csv": pl.DataFrame.write_csv,
    ".tsv": partial(pl.DataFrame.write_csv, separator="\t"),
    ".parquet": pl.DataFrame.write_parquet,
    ".jsonl": pl.DataFrame.write_ndjson,
    ".ndjson": pl.DataFrame.write_ndjson,
    "": pl.DataFrame.write_csv,
}


def require_kind(path: Path) -> None:
    """Refuse a name that tells another kind of file; without an ending it is CSV. Raises LogError."""
    if path.suffix.lower() not in _WRITERS:
        kinds = ", ".join(filter(None, _WRITERS))
        raise LogError(f"{path.name}: a log of kind {path.suffix!r} cannot be written: give {kinds}")


def write_table(frame: pl.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write a frame to a file whole, of the kind that its name tells. Raises LogError, and OSError where it cannot.

    >>> write_table(pl.DataFrame({"query": [1]}), "log.xlsx")
    Traceback (most recent call last):
    rcjax.logs.errors.LogError: log.xlsx: ...
    """
    path = Path(path)
    require_kind(path)
    content = io.BytesIO()
    _WRITERS[path.suffix.lower()](frame, content)
    write_atomically(path, content.getvalue())
