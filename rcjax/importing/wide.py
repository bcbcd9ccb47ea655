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
from rcjax.importing.answers import How, ImportedAnswer, require
from rcjax.logs.checked_rows import load
from rcjax.logs.dialects import SEPARATED, open_text
from rcjax.logs.errors import LogError, listed
from rcjax.logs.text_files import TextFile

name, files = "wide", "a table with columns for each model, such as m, m|cost, m|answer (--wide)"

BAR = "|"

#: What columns behind a bar may be called, the first that there is.
_TELLS = {
    "correct": ("correct", "score"),
    "answer": ("answer", "model_response", "response"),
    "cost": ("cost", "total_cost"),
} | {field: (field,) for field in table.OPTIONAL if field not in ("answer", "cost", "attempt")}

_QUERIES = ("query", "sample_id", "query_id", "question_id", "id")

_PROMPTS = ("prompt", "question")


def recognises(path: Path, head: bytes) -> bool:
    """Never: a person says so, as a table may have columns with a bar for other reasons."""
    return False


def read(path: Path, how: How) -> Iterator[ImportedAnswer]:
    """The answers of a table, by row and model."""
    theirs = how.columns
    unknown = [field for field in theirs if field not in ("query", "prompt", *_TELLS)]
    require(not unknown, f"column {', '.join(unknown)}", f"is none of ours: they are {listed(('query', *_TELLS))}")
    columns: list[str] = []

    def choose(source: str, there: list[str]) -> list[str]:
        columns[:] = there
        return there

    frames = load(_source(path), choose).frames
    query = _first(columns, (theirs["query"],) if "query" in theirs else _QUERIES)
    if query is None:
        what = f"no column names the query: --column query=…; there are {listed(columns)}"
        raise LogError(f"{path.name}: {what}")
    prompt = _first(columns, (theirs["prompt"],) if "prompt" in theirs else _PROMPTS)
    models = _models(columns, theirs)
    advice = "each model needs a column of its name, and another such as NAME|cost"
    require(bool(models), path.name, f"no columns of models: {advice}; there are {listed(columns)}")
    row = 0
    for frame in frames:
        for values in frame.iter_rows(named=True):
            row += 1
            named = {"query": values[query], "prompt": values.get(prompt or "")}
            for model, of_model in models.items():
                cells = named | {field: values[column] for field, column in of_model.items()}
                yield _answer(cells, model, f"{path.name}, row {row}, model {model}")


def _source(path: Path) -> Path | TextFile | Any:
    """The table to be read: of a text with separators, one that is not the bar, which is within names."""
    if path.suffix.lower() not in SEPARATED:
        return table.source_of(path)
    text = open_text(path, ())
    with text.open() as file:
        head = file.readline().decode("utf-8-sig", "replace")
    return dataclasses.replace(text, separator=max(",;\t", key=head.count))


def _first(columns: list[str], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in columns), None)


def _models(columns: list[str], theirs: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """By model, the columns by what they tell; columns that tell nothing known are of no model."""
    models: dict[str, dict[str, str]] = {}
    for field, others in _TELLS.items():
        for ending in (theirs[field],) if field in theirs else others:
            for column in columns:
                model, bar, tells = column.rpartition(BAR)
                if bar and model and tells == ending:
                    models.setdefault(model, {}).setdefault(field, column)
    for model, of_model in models.items():
        if model in columns:
            of_model["correct"] = model
    return {model: models[model] for model in sorted(models, key=lambda model: _first_index(columns, models[model]))}


def _first_index(columns: list[str], of_model: Mapping[str, str]) -> int:
    return min(columns.index(column) for column in of_model.values())


def _answer(cells: Mapping[str, Any], model: str, where: str) -> ImportedAnswer:
    whole = {"correct": None, **cells, "model": model, "answer": _unwrapped(cells.get("answer"))}
    answer = table.answer_of(whole, where)
    prompt = _unwrapped(cells["prompt"])
    answered = any(cells.get(field) is not None for field in ("correct", "answer", "answer_key"))
    return dataclasses.replace(
        answer,
        prompt=None if prompt is None else str(prompt),
        judged="correct" in cells,
        failure=None if answered else "without a score or an answer",
    )


def _unwrapped(text: Any) -> Any:
    """A text out of a list of one, as RouterBench has it: written as Python does, `['B']`."""
    if isinstance(text, str) and text[:2] in ("['", '["') and text.endswith("]"):
        try:
            text = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return text
    return text[0] if isinstance(text, list) and len(text) == 1 else text
