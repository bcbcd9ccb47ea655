"""The segment of each query: a column of the log that is known before the first call, such as a language."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rcjax.logs.columns import ADVICE, ANSWERS, CALL_COLUMNS, SAMPLE, judge_columns
from rcjax.logs.dialects import plain_name
from rcjax.logs.errors import LogError
from rcjax.logs.listing import brief, listed, near
from rcjax.logs.matrices import numbered

if TYPE_CHECKING:
    from rcjax.logs.checked_rows import Rows

__all__ = ["CALLED", "UNTOLD", "Segments", "segment_column"]


#: The segment of a query of a call log that was asked without one.
UNTOLD = ""


#: The column of a call log in which a service writes the segment that it was told, whatever the log tuned on calls it.
CALLED = "segment"


def segment_column(name: str, columns: Sequence[str], by: str) -> str:
    """The column that tells the segments, of those that a log has; in a call log, `segment` where it has no `by`.

    Names may be in capitals, and have spaces for underscores. Raises `LogError` where there is none, or where it says
    what is known after the first call only.

    >>> segment_column("log.csv", ["query", "model", "Language"], "language")
    'Language'
    """
    if plain_name(by) in (*ADVICE, *ANSWERS, SAMPLE, *CALL_COLUMNS) or judge_columns([plain_name(by)]):
        raise LogError(
            f"{name}: by {brief(by)}: segments are told by a column of their own, known before the first call"
        )
    alike = [column for column in columns if column == by] or [
        column for column in columns if plain_name(column) == plain_name(by)
    ]
    if not alike and "call_log" in columns and CALLED in columns:
        return CALLED
    if not alike:
        raise LogError(
            f"{name}: no column {brief(by)} to tell the segments{near(by, columns)}; found: {listed(columns)}"
        )
    if len(alike) > 1 or f"{alike[0]}_duplicated_0" in columns:
        raise LogError(f"{name}: column {brief(by)} occurs twice: drop one of the two")
    return alike[0]


class Segments:
    """Gathers the segment of each query from the rows of a log, all of which must tell the same.

    Args:
        by: the column, as `read_log` takes it.
    """

    def __init__(self, by: str) -> None:
        self._by = by
        self._queries: dict[str, int] = {}
        self._values: dict[str, int] = {}
        self._value = np.zeros(0, int)  # of each query, by number
        self._row = np.zeros(0, int)  # the first that tells it

    def columns(self, name: str, columns: Sequence[str]) -> list[str]:
        """The columns of a log to read besides: the one that tells the segments."""
        return [segment_column(name, columns, self._by)]

    def put(self, rows: Rows) -> None:
        """Take some rows. Raises `LogError` for a cell that is empty, or is not that of the query's other rows."""
        import polars as pl

        column = segment_column(rows.name, rows.frame.columns, self._by)
        texts = rows.frame[column]
        if "call_log" in rows.frame.columns:
            texts = texts.fill_null(UNTOLD)
        rows.refuse(texts.is_null(), column, "is missing: say which segment the query is of, in all of its rows")
        query = numbered(self._queries, rows.frame["query"].cast(pl.String).fill_null(""))
        value = numbered(self._values, texts)
        more = len(self._queries) - len(self._value)
        self._value, self._row = (np.concatenate([old, np.full(more, -1)]) for old in (self._value, self._row))
        new = np.flatnonzero(self._value[query] < 0)[::-1]  # of several rows, the first stays
        self._value[query[new]], self._row[query[new]] = value[new], rows.position[new]
        other = self._value[query] != value
        if other.any():
            i = int(np.argmax(other))
            first = rows.row_in_words(int(self._row[query[i]]))
            segment = [*self._values][self._value[query[i]]]
            what = f"is not {brief(segment)}, as {first} has it for this query: a query is of one segment"
            rows.refuse(other, column, what)

    def of(self, queries: Iterable[str]) -> tuple[str, ...]:
        """The segment of each query, by its id in the rows."""
        values = [*self._values]
        return tuple(values[self._value[self._queries[query]]] for query in queries)
