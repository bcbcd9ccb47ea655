"""A table of one's own: any file that `read_log` reads, whatever its columns are called."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from rcjax.importing.answers import DamageError, How, ImportedAnswer, require
from rcjax.logs.checked_rows import load
from rcjax.logs.errors import LogError, listed, near
from rcjax.logs.scoring import Scoring
from rcjax.signals.replies import ROUNDING, logprob_of
from rcjax.signals.tokens import NO_LOGPROB

name, files = "table", "a table of your own (CSV, JSON Lines, Parquet, an array of JSON)"

_NEEDED = ("query", "model", "correct")

#: What a table may say of an answer beside that.
OPTIONAL = (
    *("logprob", "confidence", "answer", "answer_key", "attempt", "input_tokens", "output_tokens", "cost"),
    *("seconds", "latency_ms"),
)

_KINDS = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson")

_JSON = (".json", ".jsonl", ".ndjson")


def recognises(path: Path, head: bytes) -> bool:
    """Any kind of table: others are asked before."""
    return path.suffix.lower() in _KINDS or (path.suffix.lower() in _JSON and _is_array(head))


def _is_array(head: bytes) -> bool:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["


def source_of(path: Path) -> Path | pl.DataFrame:
    """A table to be loaded: of an array of JSON, its objects as a frame."""
    if path.suffix.lower() not in _JSON:
        return path
    with open(path, "rb") as file:
        if not _is_array(file.read(1 << 10)):
            return path
    try:
        rows = json.loads(path.read_text("utf-8-sig"))
        texts = [{key: _as_text(value) for key, value in row.items()} for row in rows]
    except (AttributeError, RecursionError, UnicodeError, ValueError) as problem:
        raise DamageError(f"{path.name}: is no array of JSON objects: {problem}: is it whole?") from None
    columns = dict.fromkeys(key for row in texts for key in row)
    return pl.DataFrame(
        {key: [row.get(key) for row in texts] for key in columns}, schema=dict.fromkeys(columns, pl.String)
    )


def _as_text(value: Any) -> str | None:
    """A value of JSON as a table of texts has it."""
    return value if isinstance(value, str) or value is None else json.dumps(value)


def read(path: Path, how: How) -> Iterator[ImportedAnswer]:
    """The answers of a table, a row each."""
    theirs = how.columns
    unknown = [own for own in theirs if own not in (*_NEEDED, *OPTIONAL)]
    require(not unknown, f"column {', '.join(unknown)}", f"is none of ours: they are {listed((*_NEEDED, *OPTIONAL))}")
    columns: dict[str, str] = {}

    def choose(_: str, there: list[str]) -> list[str]:
        usual = {"correct": Scoring().of_table([*there, *theirs]).column}  # or score
        for own in (*_NEEDED, *OPTIONAL):
            column = theirs.get(own, usual.get(own, own))
            if column in there:
                columns[own] = column
            elif own in _NEEDED or own in theirs:
                wide = any("|" in column for column in there)
                advice = f"name it, with --column {own}=…{', or give --wide for columns of each model' if wide else ''}"
                what = f"no column {column}{near(column, there)}: {advice}; there are {listed(there)}"
                raise LogError(f"{path.name}: {what}")
        return list(columns.values())

    row = 0
    for frame in load(source_of(path), choose).frames:
        for values in frame.iter_rows(named=True):
            row += 1
            cells = {own: values[column] for own, column in columns.items()} | {"scorer": theirs.get("correct")}
            yield answer_of(cells, f"{path.name}, row {row}")


def answer_of(values: Mapping[str, Any], where: str) -> ImportedAnswer:
    """The answer that a row tells, by the names that are ours. Raises LogError for what is no number, or no query."""
    for field in ("query", "model"):
        require(values[field] is not None, where, f"no {field}")
    stated = _logprob(values, where)
    logprob = logprob_of(stated)
    both = [field for field in ("seconds", "latency_ms") if values.get(field) is not None]
    require(len(both) < 2, where, "both seconds and latency_ms: drop one of the columns")
    waits = _number(values, both[0], where) if both else None
    require(waits is None or 0 <= waits < math.inf, where, f"{both[0] if both else ''} is not a time of 0 or more")
    try:
        return ImportedAnswer(
            query=str(values["query"]),
            model=str(values["model"]),
            attempt=int(_number(values, "attempt", where) or 1),
            score=values["correct"],
            scorer=values.get("scorer"),
            text=None if values.get("answer") is None else str(values["answer"]),
            key=None if values.get("answer_key") is None else str(values["answer_key"]),
            logprob=logprob,
            signal=None if logprob is None else "own",
            unusable=NO_LOGPROB if stated is not None and logprob is None else None,
            input_tokens=_number(values, "input_tokens", where),
            output_tokens=_number(values, "output_tokens", where),
            cost=_number(values, "cost", where),
            seconds=waits if waits is None or both == ["seconds"] else waits / 1000,
        )
    except ValueError as problem:
        raise LogError(f"{where}: {problem}") from None


def _logprob(values: Mapping[str, Any], where: str) -> float | None:
    """What a row holds as its log-probability, by either column, whether or not it is one; None where it is empty."""
    logprob, confidence = (_read(values, column, where) for column in ("logprob", "confidence"))
    if logprob is not None or confidence is None or math.isnan(confidence):
        return confidence if logprob is None else logprob
    require(0 <= confidence <= 1 + ROUNDING, where, f"the confidence {confidence:g} is not from 0 to 1")
    return math.log(min(confidence, 1.0)) if confidence else -math.inf


def _number(values: Mapping[str, Any], column: str, where: str) -> float | None:
    number = _read(values, column, where)
    require(number is None or not math.isnan(number), where, f"{column} is not a number")
    return number


def _read(values: Mapping[str, Any], column: str, where: str) -> float | None:
    """The number in a cell, which may be NaN; None where it is empty."""
    value = values.get(column)
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise LogError(f"{where}: {column} is {value!r:.60}: give a number") from None
