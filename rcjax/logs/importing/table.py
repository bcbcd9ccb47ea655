"""Import a table of the user: any file that `read_log` reads, with columns of any name.

A wide table, common in benchmarks of routers, has a row per query and several columns per model: `m` with the score,
`m|cost`, `m|answer`. The text after the last bar says which quantity of the model a column holds.
"""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import polars as pl

from rcjax.logs.checked_rows import Rows, logprobs, measured_cells, numbers, typed, with_points
from rcjax.logs.columns import CACHED, SAMPLE, SECONDS, TOKENS, Scoring, column_of, in_place_of, meant_for, require_once
from rcjax.logs.errors import LogError, listed, near
from rcjax.logs.importing.lines import DamageError, Format, How, Line, require
from rcjax.logs.sources import SEPARATED, TextFile, load, open_text
from rcjax.policy.decisions import NO_CONFIDENCE

#: Optional columns of a table.
OPTIONAL = ("logprob", "confidence", "answer", "answer_key", "prompt", SAMPLE, *TOKENS, *CACHED, "cost", *SECONDS)

_TEXTS = ("query", "model", "answer", "answer_key", "prompt")

_JSON = (".json", ".jsonl", ".ndjson")

_KINDS = (".csv", ".tsv", ".parquet", *_JSON[1:])


def _recognises(path: Path, head: bytes) -> bool:
    """Return whether a file may be a table; other formats are tried first."""
    return path.suffix.lower() in _KINDS or (path.suffix.lower() in _JSON and _is_array(head))


def _is_array(head: bytes) -> bool:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["


def source_of(path: Path) -> Path | TextFile:
    """Return a table for `load`; a JSON array becomes JSON Lines."""
    if path.suffix.lower() not in _JSON:
        return path
    with open(path, "rb") as file:
        if not _is_array(file.read(1 << 10)):
            return path
    try:
        rows = [dict(row) for row in json.loads(path.read_text("utf-8-sig"))]
    except (RecursionError, TypeError, ValueError) as problem:
        raise DamageError(f"{path.name}: is no array of JSON objects: {problem}: is it whole?") from None
    return TextFile("\n".join(map(json.dumps, rows)).encode(), separator=None)


def _read(path: Path, how: How) -> Iterator[Line]:
    """Yield the lines of a table, one per row."""
    require_ours(how.columns, ("query", "model", "correct", *OPTIONAL))
    return lines_of(source_of(path), path.name, how, how.columns)


def require_ours(named: Mapping[str, str], ours: tuple[str, ...]) -> None:
    """Refuse names of columns that are given for an unknown canonical name."""
    unknown = [name for name in named if name not in ours]
    require(not unknown, f"column {', '.join(unknown)}", f"is none of ours: they are {listed(ours)}")


def lines_of(source: Any, where: str, how: How, named: Mapping[str, str], model: str | None = None) -> Iterator[Line]:
    """Yield the lines of a table, read as `read_log` reads it.

    Args:
        source: the table, as `load` takes it.
        where: name of the table, for messages.
        how: options of the import.
        named: names of its columns, by the canonical names.
        model: name of the model of all rows, if no column holds it.

    Raises LogError for a missing column or an invalid cell.
    """
    scoring = Scoring(how.score_max)

    def choose(_: str, there: list[str]) -> list[str]:
        nonlocal scoring
        scoring = scoring.of_table(there)
        labels = scoring.column
        is_calls = "call_log" in there and labels not in there
        require(
            not is_calls,
            where,
            "a call log is a log as it is, which also tells how models were asked: "
            "give it to rcjax tune, with --labels",
        )
        needed = ("query",) if model else ("query", "model", labels)
        for name in needed:
            if name not in there:
                _refuse_missing(name, named.get(name, name), where, there)
        if model is None and not {*in_place_of("confidence")} & {*there} and meant_for(["logprob"], there):
            _refuse_missing("confidence", "logprob or confidence", where, there)
        require_once(where, there)
        return [
            name
            for name in ("query", "model", labels, *OPTIONAL)
            if name in there and (name != "prompt" or how.prompts)
        ]

    table = load(source, choose, named, where)
    how.seen.update(table.columns)
    for rows in typed(table, scoring, ["prompt"]):
        if model is not None:
            rows = dataclasses.replace(rows, frame=rows.frame.with_columns(model=pl.lit(model)))
        yield from _lines(rows, how.columns.get("correct"))


def _refuse_missing(name: str, column: str, where: str, there: list[str]) -> NoReturn:
    meant = meant_for(["logprob" if name == "confidence" else name], there) or near(column, there)
    advice = [f"name it, with --column {name}=…"]
    advice += ["add it without labels, where there are none yet"] if name == "correct" else []
    advice += ["give --format wide for columns of each model"] if any("|" in one for one in there) else []
    raise LogError(f"{where}: no column {column}{meant}: {', or '.join(advice)}; there are {listed(there)}")


def _lines(rows: Rows, scorer: str | None) -> Iterator[Line]:
    for column in ("query", "model"):
        rows.refuse(rows.frame[column].is_null(), column, f"is missing: {column_of(column).advice}")
    there = rows.frame.columns
    cells = {name: rows.frame[name].cast(pl.String) for name in _TEXTS if name in there}
    if "correct" in there:
        cells["correct"] = with_points(rows, "correct").replace("nan", None)
    measured = {name: numbers(rows, name, optional=True) for name in (*TOKENS, *CACHED, "cost") if name in there}
    measured |= measured_cells(rows) | _logprobs(rows)
    cells |= {name: pl.Series(values) for name, values in measured.items()}
    if SAMPLE in there:
        cells[SAMPLE] = rows.frame[SAMPLE].cast(pl.Int64, strict=False)
    for row in zip(*(column.to_list() for column in cells.values()), strict=True):
        line = {name: value for name, value in zip(cells, row, strict=True) if value is not None and value == value}
        line |= {"scorer": scorer} | ({"signal": "own"} if "logprob" in line else {})
        yield line if SAMPLE in there else line | {SAMPLE: 1}


def _logprobs(rows: Rows) -> dict[str, np.ndarray]:
    if not {*in_place_of("logprob")} & {*rows.frame.columns}:
        return {}
    values = logprobs(rows)
    return {"logprob": np.where(values == NO_CONFIDENCE, np.nan, values)}


# -- wide tables

BAR = "|"

#: Endings of a model's columns, after the bar, by canonical name; the first one present is used.
_ENDINGS = {
    "correct": ("correct", "score"),
    "answer": ("answer", "model_response", "response"),
    "cost": ("cost", "total_cost"),
} | {name: (name,) for name in OPTIONAL if name not in ("answer", "cost", "prompt", SAMPLE)}

#: Names of the columns of a whole row, by canonical name.
_OF_ROW = {
    "query": ("query", "sample_id", "query_id", "question_id", "id"),
    "prompt": ("prompt", "question"),
}


def _read_wide(path: Path, how: How) -> Iterator[Line]:
    """Yield the lines of a wide table, model by model."""
    require_ours(how.columns, (*_OF_ROW, *_ENDINGS))
    source = _separated(path)
    columns: list[str] = []

    def choose(_: str, there: list[str]) -> list[str]:
        columns[:] = there
        return there

    load(source, choose, name=path.name)
    how.seen.update(column.rpartition(BAR)[2] for column in columns)
    names = {
        name: (how.columns[name],) if name in how.columns else usual for name, usual in (_OF_ROW | _ENDINGS).items()
    }
    of_row = {name: next((one for one in names[name] if one in columns), None) for name in _OF_ROW}
    what = f"no column names the query: --column query=…; there are {listed(columns)}"
    require(of_row["query"] is not None, path.name, what)
    models = _models(columns, {name: names[name] for name in _ENDINGS})
    advice = "each model needs a column of its name, and another such as NAME|cost"
    require(bool(models), path.name, f"no columns of models: {advice}; there are {listed(columns)}")
    for model, of_model in models.items():
        named = {name: column for name, column in of_row.items() if column is not None} | of_model
        for line in lines_of(source, path.name, how, named, model):
            line |= {text: _unwrapped(line[text]) for text in ("answer", "prompt") if text in line}
            usable = any(line.get(name) is not None for name in ("correct", "answer", "answer_key"))
            yield line if usable else line | {"error": "without a score or an answer"}


def _separated(path: Path) -> Path | TextFile:
    """Return the table for `load`, with a separator other than the bar, which occurs in names of columns."""
    if path.suffix.lower() not in SEPARATED:
        return source_of(path)
    text = open_text(path, ())
    with text.open() as file:
        head = file.readline().decode("utf-8-sig", "replace")
    return dataclasses.replace(text, separator=max(",;\t", key=head.count))


def _models(columns: list[str], names: Mapping[str, tuple[str, ...]]) -> dict[str, dict[str, str]]:
    """Return each model's columns by canonical name, models in the order of columns; unknown endings are ignored."""
    models: dict[str, dict[str, str]] = {}
    for name, endings in names.items():
        for ending in endings:
            for column in columns:
                model, bar, tells = column.rpartition(BAR)
                if bar and model and tells == ending:
                    models.setdefault(model, {}).setdefault(name, column)
    for model in {*models} & {*columns}:
        models[model]["correct"] = model
    return dict(sorted(models.items(), key=lambda one: min(columns.index(column) for column in one[1].values())))


def _unwrapped(text: str) -> str:
    """Return the text in a Python list of one text, such as `['B']` (RouterBench); other texts are unchanged."""
    if text[:2] in ("['", '["') and text.endswith("]"):
        try:
            values = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return text
        return values[0] if len(values) == 1 and isinstance(values[0], str) else text
    return text


TABLE = Format("table", "a table of your own (CSV, JSON Lines, Parquet, an array of JSON)", _recognises, _read)

#: The format must be named: a table may have columns with a bar for other reasons.
WIDE = Format(
    "wide",
    "a table with columns for each model, such as m, m|cost, m|answer (--format wide)",
    lambda *_: False,
    _read_wide,
)
