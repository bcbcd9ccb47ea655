"""A table with columns of its own for each model, as benchmarks of routers have them: `m`, `m|cost`, `m|answer`.

A row is a query. `m` holds the score; what stands behind the last bar says what a column tells of the model before it.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rcjax.importing import table
from rcjax.importing.lines import How, Line, require
from rcjax.logs.columns import SAMPLE
from rcjax.logs.errors import listed
from rcjax.logs.sources import SEPARATED, TextFile, load, open_text

name, files = "wide", "a table with columns for each model, such as m, m|cost, m|answer (--format wide)"

BAR = "|"

#: What columns behind a bar may be called, the first that there is.
_TELLS = {
    "correct": ("correct", "score"),
    "answer": ("answer", "model_response", "response"),
    "cost": ("cost", "total_cost"),
} | {own: (own,) for own in table.OPTIONAL if own not in ("answer", "cost", "prompt", SAMPLE)}

#: What columns of the whole row may be called.
_OF_ROW = {
    "query": ("query", "sample_id", "query_id", "question_id", "id"),
    "prompt": ("prompt", "question"),
}


def recognises(path: Path, head: bytes) -> bool:
    """Never: a person says so, as a table may have columns with a bar for other reasons."""
    return False


def read(path: Path, how: How) -> Iterator[Line]:
    """The lines of a table, model by model."""
    table.require_ours(how.columns, (*_OF_ROW, *_TELLS))
    source = _source(path)
    columns: list[str] = []

    def choose(_: str, there: list[str]) -> list[str]:
        columns[:] = there
        return there

    load(source, choose, name=path.name)
    how.seen.update(column.rpartition(BAR)[2] for column in columns)
    names = {own: (how.columns[own],) if own in how.columns else usual for own, usual in (_OF_ROW | _TELLS).items()}
    of_row = {own: next((one for one in names[own] if one in columns), None) for own in _OF_ROW}
    what = f"no column names the query: --column query=…; there are {listed(columns)}"
    require(of_row["query"] is not None, path.name, what)
    models = _models(columns, {own: names[own] for own in _TELLS})
    advice = "each model needs a column of its name, and another such as NAME|cost"
    require(bool(models), path.name, f"no columns of models: {advice}; there are {listed(columns)}")
    for model, of_model in models.items():
        named = {own: column for own, column in of_row.items() if column is not None} | of_model
        for line in table.lines_of(source, path.name, how, named, model):
            line |= {text: _unwrapped(line[text]) for text in ("answer", "prompt") if text in line}
            told = any(line.get(own) is not None for own in ("correct", "answer", "answer_key"))
            yield line if told else line | {"error": "without a score or an answer"}


def _source(path: Path) -> Path | TextFile | Any:
    """The table to be read: of a text with separators, one that is not the bar, which is within names."""
    if path.suffix.lower() not in SEPARATED:
        return table.source_of(path)
    text = open_text(path, ())
    with text.open() as file:
        head = file.readline().decode("utf-8-sig", "replace")
    return dataclasses.replace(text, separator=max(",;\t", key=head.count))


def _models(columns: list[str], names: Mapping[str, tuple[str, ...]]) -> dict[str, dict[str, str]]:
    """By model, in the order of the columns, these by what they tell; columns that tell nothing known are of none."""
    models: dict[str, dict[str, str]] = {}
    for own, endings in names.items():
        for ending in endings:
            for column in columns:
                model, bar, tells = column.rpartition(BAR)
                if bar and model and tells == ending:
                    models.setdefault(model, {}).setdefault(own, column)
    for model in {*models} & {*columns}:
        models[model]["correct"] = model
    return dict(sorted(models.items(), key=lambda one: min(columns.index(column) for column in one[1].values())))


def _unwrapped(text: str) -> str:
    """A text out of a list of one, as RouterBench has it: written as Python does, `['B']`."""
    if text[:2] in ("['", '["') and text.endswith("]"):
        try:
            whole = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return text
        return whole[0] if len(whole) == 1 and isinstance(whole[0], str) else text
    return text
