"""A table of one's own: any file that `read_log` reads, whatever its columns are called."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rcjax.importing.answers import Answer, Choices, require
from rcjax.logs.checked_rows import load
from rcjax.logs.errors import LogError
from rcjax.logs.listing import listed, near
from rcjax.signals.replies import ROUNDING, logprob_of
from rcjax.signals.tokens import NO_LOGPROB

name, files = "table", "a table of your own (CSV, JSON Lines, Parquet)"

_NEEDED = ("query", "model", "correct")

#: What a table may say of an answer beside that.
_OPTIONAL = (
    *("logprob", "confidence", "answer", "answer_key", "attempt", "input_tokens", "output_tokens", "cost"),
    *("seconds", "latency_ms"),
)

_KINDS = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson")


def recognises(path: Path, head: bytes) -> bool:
    """Any kind of table: others are asked before."""
    return path.suffix.lower() in _KINDS


def read(path: Path, choices: Choices) -> Iterator[Answer]:
    """The answers of a table, a row each."""
    theirs = dict(choices.columns)
    unknown = [own for own in theirs if own not in (*_NEEDED, *_OPTIONAL)]
    require(not unknown, f"column {', '.join(unknown)}", f"is none of ours: they are {listed((*_NEEDED, *_OPTIONAL))}")
    columns: dict[str, str] = {}

    def choose(source: str, there: list[str]) -> list[str]:
        for own in (*_NEEDED, *_OPTIONAL):
            column = theirs.get(own, own)
            if column in there:
                columns[own] = column
            elif own in _NEEDED or own in theirs:
                advice = f"name it, with --column {own}=…"
                raise LogError(
                    f"{source}: no column {column}{near(column, there)}: {advice}; there are {listed(there)}"
                )
        return list(columns.values())

    row = 0
    for frame in load(str(path), choose).frames:
        for values in frame.iter_rows(named=True):
            row += 1
            yield _answer({own: values[column] for own, column in columns.items()}, f"{path.name}, row {row}")


def _answer(values: Mapping[str, Any], where: str) -> Answer:
    for own in ("query", "model"):
        require(values[own] is not None, where, f"no {own}")
    told = _logprob(values, where)
    logprob = logprob_of(told)
    both = [own for own in ("seconds", "latency_ms") if values.get(own) is not None]
    require(len(both) < 2, where, "both seconds and latency_ms: drop one of the columns")
    waits = _number(values, both[0], where) if both else None
    require(waits is None or 0 <= waits < math.inf, where, f"{both[0] if both else ''} is not a time of 0 or more")
    return Answer(
        query=str(values["query"]),
        model=str(values["model"]),
        attempt=int(_number(values, "attempt", where) or 1),
        score=values["correct"],
        text=None if values.get("answer") is None else str(values["answer"]),
        key=None if values.get("answer_key") is None else str(values["answer_key"]),
        logprobs={} if logprob is None else {"own": logprob},
        unusable=NO_LOGPROB if told is not None and logprob is None else None,
        input_tokens=_number(values, "input_tokens", where),
        output_tokens=_number(values, "output_tokens", where),
        cost=_number(values, "cost", where),
        seconds=waits if waits is None or both == ["seconds"] else waits / 1000,
    )


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
