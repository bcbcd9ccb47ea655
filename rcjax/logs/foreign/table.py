"""A table of one's own: any file that `read_log` reads, whatever its columns are called."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rcjax.logs.checked_rows import load
from rcjax.logs.errors import LogError
from rcjax.logs.foreign.answers import Answer, Choices, require
from rcjax.logs.listing import listed, near

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
    logprob, confidence = _number(values, "logprob", where), _number(values, "confidence", where)
    if logprob is None and confidence is not None:
        require(0 <= confidence <= 1, where, f"the confidence {confidence:g} is not from 0 to 1")
        logprob = math.log(confidence) if confidence else -math.inf
    require(logprob is None or logprob <= 0, where, "the logprob is above 0")
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
        input_tokens=_number(values, "input_tokens", where),
        output_tokens=_number(values, "output_tokens", where),
        cost=_number(values, "cost", where),
        seconds=waits if waits is None or both == ["seconds"] else waits / 1000,
    )


def _number(values: Mapping[str, Any], column: str, where: str) -> float | None:
    value = values.get(column)
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise LogError(f"{where}: {column} is {value!r:.60}: give a number") from None
    require(not math.isnan(number), where, f"{column} is not a number")
    return number
