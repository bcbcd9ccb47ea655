"""The rows of a log, checked batch by batch, and their cells as numbers; an error names its row."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from rcjax.logs.columns import (
    ANSWERS,
    CALL_COLUMNS,
    MISSING,
    NUMBERS,
    RIGHT_OR_WRONG,
    SAMPLE,
    SECONDS,
    TOKENS,
    WORDS,
    Scoring,
    find_column,
    judge_columns,
    lacks_confidence,
)
from rcjax.logs.errors import LogError, shorten
from rcjax.logs.sources import Table, TextFile, csv_line
from rcjax.policy.decisions import NO_CONFIDENCE

#: Bounds of the cost of a query, other than 0: ratios of sums are then finite in float32, squares in float64, and every
#: policy can be written (`_base.codec` allows 1e100).
MIN_COST, MAX_COST = 1e-18, 1e18

_WHOLE = "give the number of tokens, without a point or a comma between thousands"
_DECIMALS = "write decimals with a point, and nothing between thousands"


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows to check, with their positions in the source, from 0, and the scale of `correct`."""

    name: str
    source: object
    frame: pl.DataFrame
    position: np.ndarray
    scoring: Scoring = RIGHT_OR_WRONG
    parts: tuple[tuple[str, int], ...] = ()  # (name, number of rows) of each file, if the rows are of several

    def keep(self, condition: pl.Expr) -> Rows:
        """Return the rows for which an expression is true."""
        mask = self.frame.select(condition.fill_null(False)).to_series()
        if mask.all():
            return self
        return dataclasses.replace(self, frame=self.frame.filter(mask), position=self.position[mask.to_numpy()])

    def row_in_words(self, position: int) -> str:
        """Return the place of a row in words: the line number in a CSV file, else the number of the row, from 1.

        Of several files, the place is the row of one of them.
        """
        if len(self.parts) > 1:
            for file, rows in self.parts:
                if position < rows:
                    return f"row {position + 1} of {file}"
                position -= rows
        if isinstance(self.source, TextFile) and self.source.separator is not None:
            return f"line {csv_line(self.source, position + 1)}"
        return f"row {position + 1}"

    def refuse(self, bad: pl.Series | np.ndarray, column: str, problem: str) -> None:
        """Raise a `LogError` about the value of a column in the first bad row, if any row is bad."""
        if bad.any():
            i = int(np.argmax(np.asarray(bad)))
            model, value = self.frame["model"][i], self.frame[column][i]
            of_model = f", model {shorten(model)}" if model and column != "model" else ""
            cell = "" if value is None else shorten(value) + " "
            place = f"{self.name}, {self.row_in_words(int(self.position[i]))}{of_model}"
            raise LogError(f"{place}: {_spelling(column, self.scoring)} {cell}{problem}")


def typed_rows(table: Table, scoring: Scoring = RIGHT_OR_WRONG, texts: Sequence[str] = ()) -> Iterator[Rows]:
    """Yield the rows of a table, batch by batch.

    Raises LogError for a column of an unusable type, and for a table without rows.
    """
    name, start, has_rows = table.name, 0, False
    for frame in table.frames:
        frame = frame.rename({scoring.column: "correct"}, strict=False)
        text_columns = [column for column in (*ANSWERS, SAMPLE, *CALL_COLUMNS, *texts) if column in frame.columns]
        for column in text_columns:
            if frame.schema[column].is_nested():
                raise LogError(f"{name}: column {column} holds {frame.schema[column]} values: give texts or numbers")
        for column, dtype in frame.drop(text_columns).schema.items():
            is_numeric = dtype.is_integer() if column == "query" else dtype.is_numeric() and column != "model"
            is_verdict = column == "correct" or judge_columns([column])
            if not (is_numeric or dtype == pl.String or (dtype == pl.Boolean and is_verdict)):
                column_name = _spelling(column, scoring)
                raise LogError(f"{name}: column {column_name} holds {dtype} values: {_advice(column, scoring)}")
        frame = frame.with_columns(pl.col(text_columns).cast(pl.String)).with_columns(labels_as_texts(frame, scoring))
        rows = Rows(name, table.source, frame, np.arange(start, start + frame.height), scoring, table.parts)
        start += frame.height
        if set(frame.dtypes) == {pl.String}:
            rows = rows.keep(pl.any_horizontal(pl.all().is_not_null()))
        if rows.frame.height:
            has_rows = True
            _require_one_notation(rows)
            yield rows
    if not has_rows:
        raise LogError(f"{name}: no rows: a log needs one for each query and model")


_NOTATIONS = {
    "comma": r"^[+-]?[0-9.]*,[0-9]+([eE][+-]?[0-9]+)?$",
    "point": r"^[+-]?[0-9]*\.[0-9.]+([eE][+-]?[0-9]+)?$",
}


def _require_one_notation(rows: Rows) -> None:
    """Refuse a table with semicolons whose numbers have commas and points, as one sign may separate thousands."""
    frame = rows.frame
    if not isinstance(rows.source, TextFile) or rows.source.separator != ";":
        return
    first: list[tuple[int, str, str]] = []  # (row, column, sign) of the first number with each sign
    for sign, pattern in _NOTATIONS.items():
        names = [name for name in frame.columns if frame.schema[name] == pl.String]
        numbered = [name for name in names if name in NUMBERS or judge_columns([name])]
        matching = {name: frame[name].str.contains(pattern).fill_null(False) for name in numbered}
        places = [(int(cells.arg_max() or 0), name, sign) for name, cells in matching.items() if cells.any()]
        first += [min(places)] if places else []
    if len(first) < len(_NOTATIONS):
        return
    (first_row, first_column, first_sign), (row, name, sign) = sorted(first)
    difference = f"has a {sign}, and {first_column} {shorten(frame[first_column][first_row])} a {first_sign}"
    at_row = np.arange(frame.height) == row
    rows.refuse(at_row, name, f"{difference}: write all decimals of a file alike, and nothing between thousands")


def _spelling(column: str, scoring: Scoring) -> str:
    """Return the name of a column in the source, where labels may be in a column `score`."""
    return scoring.column if column == "correct" else column


def _advice(column: str, scoring: Scoring) -> str:
    return scoring.advice if column == "correct" else find_column(column).advice


def labels_as_texts(frame: pl.DataFrame, scoring: Scoring = RIGHT_OR_WRONG) -> list[pl.Expr]:
    """Return expressions that turn labels and verdicts into texts of numbers; a right label becomes the full score."""
    columns = []
    for name in frame.columns:
        if name == "correct" or judge_columns([name]):
            right_text = f"{scoring.most:.17g}" if name == "correct" else "1"
            words = {word: right_text if is_right else "0" for word, is_right in WORDS.items()}
            columns.append(pl.col(name).cast(pl.String).str.to_lowercase().replace(words))
    return columns


def require_names(rows: Rows) -> None:
    """Refuse a row without a model or a query."""
    for name in ("model", "query"):
        rows.refuse(rows.frame[name].is_null(), name, f"is missing: {find_column(name).advice}")
    if isinstance(rows.source, TextFile) and rows.source.separator is None:
        nested = rows.frame["model"].str.contains(r"^\{.*\}$|^\[.*\]$")
        rows.refuse(nested, "model", f"is not a text: {find_column('model').advice}")


def numbers(rows: Rows, name: str, optional: bool = False) -> np.ndarray:
    """Return a column as float64; LogError for a value outside the column's range.

    An empty cell, or a word for a missing value, is NaN if `optional`, else an error. Labels are rescaled to [0, 1].
    """
    texts, column, advice = with_decimal_points(rows, name), find_column(name), _advice(name, rows.scoring)
    high = rows.scoring.most if name == "correct" else column.most
    if texts.dtype == pl.String:
        texts = texts.set(texts.str.to_lowercase().is_in(MISSING).fill_null(False), None)
    values = texts.cast(float, strict=False)
    missing = texts.is_null() | values.is_nan().fill_null(False)
    if not optional:
        rows.refuse(missing, name, f"is missing: {advice}")
    unclear = values.is_null() & ~missing
    if unclear.any():
        comma = "," in str(texts.filter(unclear)[0])
        rows.refuse(unclear, name, f"is not clear: {_DECIMALS if comma else advice}")
    rows.refuse((values > high + column.rounding) & ~missing, name, f"> {high:g}: {advice}")
    rows.refuse((values < column.least) & ~missing, name, f"< {column.least:g}: {advice}")
    if name in TOKENS:
        rows.refuse((values % 1 != 0) & ~missing, name, f"is not a whole number: {_WHOLE}")
    values = values.clip(upper_bound=high) if column.rounding else values
    array = values.fill_null(math.nan).to_numpy()
    return array / high if name == "correct" and high != 1 else array


def with_decimal_points(rows: Rows, column: str) -> pl.Series:
    """Return a column; in a file with semicolons, replace decimal commas by points, except in counts of tokens."""
    values, source = rows.frame[column], rows.source
    if column in TOKENS or values.dtype != pl.String or not isinstance(source, TextFile) or source.separator != ";":
        return values
    return values.str.replace(r"^([+-]?[0-9]*),([0-9]+([eE][+-]?[0-9]+)?)$", "$1.$2")


def require_money(rows: Rows, money: np.ndarray, column: str) -> None:
    """Refuse costs outside [`MIN_COST`, `MAX_COST`], other than 0; `column` holds the costs, or tokens."""
    verb = "" if column == "cost" else "leads to a cost "
    advice = f"costs are 0, or from {MIN_COST:g} to {MAX_COST:g} per query: count in another unit of money"
    rows.refuse(money > MAX_COST, column, f"{verb}> {MAX_COST:g}: {advice}")
    rows.refuse((money > 0) & (money < MIN_COST), column, f"{verb}< {MIN_COST:g}: {advice}")


def read_logprobs(rows: Rows) -> np.ndarray:
    """Return raw log-probabilities, `NO_CONFIDENCE` for empty cells; all 0 for a log without a confidence column."""
    if lacks_confidence(rows.frame.columns):
        return np.zeros(rows.frame.height)
    with np.errstate(divide="ignore"):  # the log of a confidence of 0 is -inf
        column = "logprob" if "logprob" in rows.frame.columns else "confidence"
        values = numbers(rows, column, optional=True)
        return np.where(np.isnan(values), NO_CONFIDENCE, values if column == "logprob" else np.log(values))


def seconds_cells(rows: Rows) -> dict[str, np.ndarray]:
    """Return {"seconds": seconds per answer, NaN for an empty cell}; {} if the rows have no such column."""
    column = next((name for name in SECONDS if name in rows.frame.columns), None)
    return {} if column is None else {"seconds": numbers(rows, column, optional=True) / SECONDS[column]}


_MAX_TIME = 1e10  # seconds since 1970, in the year 2286; as milliseconds, in April 1970


def read_times(times: pl.Series, place: str) -> pl.Series:
    """Return times (ISO 8601 texts, numbers, or polars' temporal types) as seconds since 1970; null for other cells.

    Args:
        times: the column; texts without a zone are in UTC.
        place: name of the log, for messages.

    Raises LogError for a time after the year 2286, as milliseconds since 1970 would be.

    >>> read_times(pl.Series(["2026-01-01T01:00:00+01:00", "1767225600", "?"]), "log.csv").to_list()
    [1767225600.0, 1767225600.0, None]
    """
    if times.dtype.is_temporal():
        seconds = times.cast(pl.Datetime("us")).dt.timestamp("us") / 1e6
    elif times.dtype.is_numeric():
        seconds = times.cast(pl.Float64)
    else:
        texts = times.cast(pl.String).str.replace(r"^(\d{4}-\d\d-\d\d)$", "${1}T00:00:00Z")
        zoned = texts.str.contains(r"(Z|[+-]\d\d:?\d\d)$")
        stamps = pl.select(pl.when(zoned).then(texts).otherwise(texts + "Z").alias("time")).to_series()
        moments = stamps.str.to_datetime(time_unit="us", time_zone="UTC", strict=False)
        seconds = (moments.dt.timestamp("us") / 1e6).fill_null(texts.cast(pl.Float64, strict=False))
    seconds = seconds.fill_nan(None).alias(times.name)
    if (late := times.filter(seconds > _MAX_TIME)).len():
        advice = "give ISO 8601 or seconds since 1970, not milliseconds"
        raise LogError(f"{place}: time {shorten(str(late[0]))} is after the year 2286: {advice}")
    return seconds
