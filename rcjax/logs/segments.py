"""Segments: kinds of queries, told by a column of the log, that a ladder has cascades of their own for."""

from __future__ import annotations

import dataclasses
from typing import Any

from rcjax.logs.checked_rows import load
from rcjax.logs.errors import LogError, brief, listed, near
from rcjax.logs.log import Log


def with_segments(log: Log, source: Any, column: str) -> Log:
    """The log with the segment of each of its queries (`Log.segment`), "" where the cell is empty.

    Args:
        log: what was read from the source.
        source: a file or dataframe with columns `query` and the segment's, such as `read_log` reads.
        column: the name of the segment's; its cells are texts, numbers or empty.

    Raises LogError where there is no such column, or the rows of a query differ in it.

    >>> import polars as pl
    >>> from rcjax import read_log
    >>> table = {"query": [1, 1, 2, 2], "model": ["small", "large"] * 2, "subject": ["law", "law", "art", "art"]}
    >>> frame = pl.DataFrame(table | {"correct": [0, 1, 1, 1], "confidence": [0.4, 0.9] * 2, "cost": [1.0, 3.0] * 2})
    >>> with_segments(read_log(frame), frame, "subject").segment
    ('law', 'art')
    """
    import polars as pl

    def choose(name: str, columns: list[str]) -> list[str]:
        for needed in ("query", column):
            if needed not in columns:
                has = f"it has {listed(columns)}"
                raise LogError(f"{name}: no column {brief(needed)!r}{near(needed, columns)} for segments: {has}")
        return ["query", column]

    told: dict[str, str] = {}
    table = load(source, choose)
    for frame in table.frames:
        rows = frame.select(pl.col("query", column).cast(pl.String)).drop_nulls("query").unique(maintain_order=True)
        for query, value in rows.iter_rows():
            segment = (value or "").strip()
            if told.setdefault(query, segment) != segment:
                both = f"{brief(told[query])!r} and {brief(segment)!r}"
                raise LogError(f"{table.name}, query {brief(query)}: its {column} is {both}: give a query one segment")
    return dataclasses.replace(log, segment=tuple(told[str(query)] for query in log.queries))
