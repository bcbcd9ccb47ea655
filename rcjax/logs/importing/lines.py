"""The lines that importers make, one per answer, and the import of a user's own table.

A line is a line of a call log with a score. Its values are JSON values by name:

- `query`, `model`: texts; a query has the same name for all models.
- `sample`: number of the answer among several of a model to the query, from 1; without it, the next in file order.
- `answer`, `prompt`: texts, as in a call log. `answer_key` replaces `answer` if a scorer extracted the
  answer from a longer reply, as a service would have to do, too.
- `logprob`, `signal`: raw confidence and its source (`evaluations.SIGNALS`); absent if unknown.
- `correct`, `scorer`: score on the scale of the file, and name of the scorer. Without `correct`, labels come later.
- `error`: reason for a missing answer or, with `has_no_confidence`, for a missing confidence.
- `input_tokens`, `output_tokens`: tokens of all calls; `estimated`: the tokens are estimated from the texts.
- `cached_tokens`, `cache_write_tokens`: input tokens read from a cache, and written to one.
- `guessed_by`: name of the file whose folder gave the name of the model, in want of a better source.
- `cost`, `seconds`, `finish`: money, latency, and finish reason in the words of the API.

A table may be any file that `read_log` reads, with columns of any name. A wide table, common in benchmarks of routers,
has a row per query and several columns per model: `m` with the score, `m|cost`, `m|answer`. The text after the last bar
says which quantity of the model a column holds.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypedDict

import numpy as np
import polars as pl

from rcjax.logs.checked_rows import Rows, numbers, read_logprobs, seconds_cells, typed_rows, with_decimal_points
from rcjax.logs.columns import (
    CACHED,
    SAMPLE,
    SECONDS,
    TOKENS,
    Scoring,
    equivalent_columns,
    find_column,
    require_unique_columns,
    suggest_columns,
)
from rcjax.logs.errors import LogError, join_names, suggest_name
from rcjax.logs.sources import SEPARATED, TABLES, TextFile, load_table, open_text
from rcjax.policy.decisions import NO_CONFIDENCE
from rcjax.serving.failures import lacks_answer

#: An answer, by the names in the module's docstring.
Line = dict[str, Any]

_TEXTS = ("query", "model", "scorer", "error", "answer", "answer_key", "prompt", "finish")
_AMOUNTS = (*TOKENS, *CACHED, "cost", "seconds")

#: Characters per token of English text, for files without token counts.
CHARACTERS = 4.0


class DamageError(LogError):
    """A file, or a part of a file, that is damaged; it is left out if others can be read."""


class WrongValueError(ValueError):
    """A value of a wrong type in a line; the message names it."""


@dataclass(frozen=True)
class ImportOptions:
    """Options of an import."""

    format: str | None = None
    """Name of one of `evaluations.FORMATS`; None to recognise each file by its content."""
    scorer: str | None = None
    """Name of the scorer, filter or metric whose scores count, if there are several."""
    rename: Mapping[str, str] = field(default_factory=dict)
    """New names of models, by their old names."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Names of a table's columns, by the canonical names."""
    prompts: bool = False
    """Whether the prompts are kept in the log, for a person to label."""
    score_max: float = 1.0
    """Full score."""
    table_columns: set[str] = field(default_factory=set, repr=False, compare=False)
    """Columns of all tables that an import has read."""


class ImportFields(TypedDict, total=False):
    """The fields of `ImportOptions` that functions take as keywords."""

    format: str | None
    scorer: str | None
    rename: Mapping[str, str]
    columns: Mapping[str, str]
    prompts: bool
    score_max: float


class Format(NamedTuple):
    """A format of files, which `evaluations.FORMATS` lists."""

    name: str
    """Value of `--format`."""
    files: str
    """Description of its files, for messages."""
    recognises: Callable[[Path, bytes], bool]
    """Predicate of a file's path and first bytes."""
    read: Callable[[Path, ImportOptions], Iterator[Line | DamageError]]
    """Reader: yields lines in file order, and damage to parts; raises DamageError if the whole file is unreadable, and
    LogError if an option is missing or wrong."""


def holds_keys(*keys: bytes) -> Callable[[Path, bytes], bool]:
    """Return a predicate of files: a JSON object or array that has all these keys in its first bytes."""

    def recognises(path: Path, head: bytes) -> bool:
        starts = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")
        return starts and all(b'"%b"' % key in head for key in keys)

    return recognises


def without_confidence(reason: str) -> Line:
    """Return the values of a line whose confidence cannot be read."""
    return {"error": reason, "has_no_confidence": True}


def check_line(line: Line) -> Line:
    """Check and normalise the values of a line. Raises WrongValueError for a value of a wrong type.

    Names are stripped and in Unicode's normal form NFC, so that they agree between files; a lone surrogate becomes `?`.
    A reply whose finish reason is a failure gets an error.

    >>> check_line({"query": " e\\u0301 ", "model": "m"})["query"] == "\\xe9"
    True
    """
    for name in _TEXTS:
        value = line.get(name)
        if not isinstance(value, str) and (value is not None or name in ("query", "model")):
            raise WrongValueError(f"{name} must be a text, not {value!r:.40}")
        if value is not None:
            line[name] = value.encode(errors="replace").decode()
    if lacks_answer(line.get("finish")) and (line.get("error") is None or line.get("has_no_confidence")):
        line |= {"error": f"with a failure in place of an answer ({line['finish']:.40})", "has_no_confidence": False}
    for name in ("query", "model"):
        line[name] = unicodedata.normalize("NFC", line[name]).strip()
    for name in _AMOUNTS:
        if line.get(name) is not None and to_amount(line[name]) is None:
            raise WrongValueError(f"{name} must be an amount of 0 or more, not {line[name]!r:.40}")
    return line


def tokens_or_estimate(sent: Any, received: Any, prompt: str | None, replies: Iterable[str | None]) -> Line:
    """Return the token counts of an answer; if they are missing and the prompt is known, estimate them from the texts.

    Args:
        sent, received: counts in the file; None for a missing count.
        prompt: prompt of each call, or None.
        replies: reply of each call.

    >>> tokens_or_estimate(7, 1, None, []), tokens_or_estimate(None, None, "What is it?", ["B"])["estimated"]
    ({'input_tokens': 7, 'output_tokens': 1}, True)
    """
    texts = list(replies)
    if prompt is None or (sent and received is not None):  # no prompt has 0 tokens
        return {"input_tokens": sent, "output_tokens": received}
    characters = len(texts) * len(prompt), sum(len(text or "") for text in texts)
    sent, received = (max(1, round(number / CHARACTERS)) for number in characters)
    return {"input_tokens": sent, "output_tokens": received, "estimated": True}


def to_amount(value: Any, per: float = 1.0) -> float | None:
    """Return a finite number of 0 or more, divided by `per`; None for any other value.

    >>> to_amount(250, 1000), to_amount(None), to_amount("soon")
    (0.25, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        return None
    return value / per


def require(condition: bool, place: str, problem: str) -> None:
    """Raise LogError with the place and the problem unless a condition holds."""
    if not condition:
        raise LogError(f"{place}: {problem}")


def require_sound(condition: bool, place: str, problem: str) -> None:
    """Raise DamageError with the place and the problem unless a condition holds."""
    if not condition:
        raise DamageError(f"{place}: {problem}")


def not_as_written(place: str, program: str, problem: object) -> DamageError:
    """Return the damage of a file, or a part of it, that is not as its program writes it."""
    return DamageError(f"{place}: is not as {program} writes it ({problem}): is it whole?")


def read_piece(place: str, program: str, read: Callable[[], Iterable[Line]]) -> Iterator[Line | DamageError]:
    """Yield the checked lines of a part of a file, or the damage if the part is not as its program writes it.

    A KeyError or the like from `read` means damage.
    """
    try:
        lines: list[Line | DamageError] = [check_line(line) for line in read()]
    except DamageError as damage:
        lines = [damage]
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as problem:
        if isinstance(problem, LogError):
            raise
        lines = [not_as_written(place, program, _describe_damage(problem))]
    yield from lines


def read_pieces(
    records: Iterable[Any], name: str, program: str, read: Callable[[Any, str], Iterable[Line]]
) -> Iterator[Line | DamageError]:
    """Yield the lines of all records, or their damage.

    Args:
        records: records of a file.
        name: name of a record in messages, before its number.
        program: name of the program that wrote the file.
        read: returns the lines of a record, given the record and its place.
    """
    for number, record in enumerate(records, 1):
        yield from read_piece(f"{name} {number}", program, partial(read, record, f"{name} {number}"))


def _describe_damage(problem: Exception) -> str:
    """Describe the damage to a part of a file without quoting Python's messages.

    >>> _describe_damage(KeyError("response")), _describe_damage(AttributeError("'list' object has no attribute 'get'"))
    ("'response' is missing", 'a value is of another kind')
    """
    if isinstance(problem, WrongValueError):
        return str(problem)
    if isinstance(problem, KeyError) and problem.args and isinstance(problem.args[0], str):
        return f"{problem.args[0]!r:.40} is missing"
    return "it is nested too deep" if isinstance(problem, RecursionError) else "a value is of another kind"


def read_lines(
    path: Path, program: str, read: Callable[[Mapping[str, Any], str], Iterable[Line]]
) -> Iterator[Line | DamageError]:
    """Yield the lines of all JSON objects in a file, and the damage to unreadable ones.

    A file is JSON Lines, with an object or an array of objects in each line, or one array or object over many lines.
    `read` returns the lines of an object; an error from it means damage to this object. Raises DamageError if the file
    is not text, or has no object.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            first = next((line for line in file if line.strip()), "")
        document = None if _parse(first) is not None else _parse(path.read_text("utf-8-sig"))
        has_records = False
        for position, content in _values(path) if document is None else [("", document)]:
            for place, record in _objects(content, f"{path.name}{position}"):
                has_records = True
                if isinstance(record, dict):
                    yield from read_piece(place, program, partial(read, record, place))
                else:
                    yield not_as_written(place, program, "no JSON object")
    except (OSError, UnicodeError) as problem:
        raise DamageError(f"{path.name}: cannot be read as {program} writes it: {problem}: is it whole?") from None
    if not has_records:
        raise DamageError(f"{path.name}: holds no answers: was it written completely?")


def read_document(path: Path, program: str) -> Any:
    """Return the content of a JSON file; NaN and long numbers are allowed. Raises DamageError if it is unreadable."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, RecursionError, ValueError) as problem:
        raise DamageError(f"{path.name}: cannot be read as {program} writes it: {problem}: is it whole?") from None


def _values(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (place, value) of each line that is not blank; the value of invalid JSON is None."""
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f", line {number}", _parse(line)


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (RecursionError, ValueError):
        return None


def _objects(content: Any, place: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(content, list):
        yield place, content
        return
    for number, record in enumerate(content, 1):
        yield f"{place}, entry {number}", record


#: Optional columns of a table.
OPTIONAL = ("logprob", "confidence", "answer", "answer_key", "prompt", SAMPLE, *TOKENS, *CACHED, "cost", *SECONDS)

_TABLE_TEXTS = ("query", "model", "answer", "answer_key", "prompt")
_JSON = (".json", ".jsonl", ".ndjson")


def _is_array(head: bytes) -> bool:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["


def open_table(path: Path) -> Path | TextFile:
    """Return a table for `load_table`; a JSON array becomes JSON Lines."""
    if path.suffix.lower() not in _JSON:
        return path
    with open(path, "rb") as file:
        if not _is_array(file.read(1 << 10)):
            return path
    try:
        rows = [dict(row) for row in json.loads(path.read_text("utf-8-sig"))]
    except (RecursionError, TypeError, ValueError) as problem:
        raise DamageError(f"{path.name}: is not an array of JSON objects: {problem}: is it whole?") from None
    return TextFile("\n".join(map(json.dumps, rows)).encode(), separator=None)


def _read_table(path: Path, options: ImportOptions) -> Iterator[Line]:
    """Yield the lines of a table, one per row."""
    require_canonical(options.columns, ("query", "model", "correct", *OPTIONAL))
    return _read_source(open_table(path), path.name, options, options.columns)


def require_canonical(assigned: Mapping[str, str], canonical: tuple[str, ...]) -> None:
    """Refuse columns that are given for an unknown canonical name."""
    unknown = [name for name in assigned if name not in canonical]
    require(not unknown, f"column {', '.join(unknown)}", f"is unknown: give some of {join_names(canonical)}")


def _read_source(
    source: Any, place: str, options: ImportOptions, assigned: Mapping[str, str], model: str | None = None
) -> Iterator[Line]:
    """Yield the lines of a table, checked as by `read_log`; all lines are of `model` unless that is None.

    Raises LogError for a missing column or an invalid cell.
    """
    scoring = Scoring(options.score_max)

    def choose(_: str, columns: list[str]) -> list[str]:
        nonlocal scoring
        scoring = scoring.for_columns(columns)
        labels = scoring.column
        advice = "give it to rcjax tune, with --labels if it has none, as it also records how models were asked"
        require("call_log" not in columns, place, f"a call log needs no import: {advice}")
        needed = ("query",) if model else ("query", "model", labels)
        for name in needed:
            if name not in columns:
                _refuse_missing(name, assigned.get(name, name), place, columns)
        if (
            model is None
            and not {*equivalent_columns("confidence")} & {*columns}
            and suggest_columns(["logprob"], columns)
        ):
            _refuse_missing("confidence", "logprob or confidence", place, columns)
        require_unique_columns(place, columns)
        return [
            name
            for name in ("query", "model", labels, *OPTIONAL)
            if name in columns and (name != "prompt" or options.prompts)
        ]

    table = load_table(source, choose, assigned, place)
    options.table_columns.update(table.columns)
    for rows in typed_rows(table, scoring, ["prompt"]):
        if model is not None:
            rows = dataclasses.replace(rows, frame=rows.frame.with_columns(model=pl.lit(model)))
        yield from _read_rows(rows, options.columns.get("correct"))


def _refuse_missing(name: str, column: str, place: str, columns: list[str]) -> NoReturn:
    suggestion = suggest_columns(["logprob" if name == "confidence" else name], columns) or suggest_name(
        column, columns
    )
    advice = [f"name it, with --column {name}=…"]
    advice += ["add it without labels, where there are none yet"] if name == "correct" else []
    advice += ["give --format wide for columns of each model"] if any("|" in name for name in columns) else []
    raise LogError(f"{place}: no column {column}{suggestion}: {', or '.join(advice)}; there are {join_names(columns)}")


def _read_rows(rows: Rows, scorer: str | None) -> Iterator[Line]:
    for column in ("query", "model"):
        rows.refuse(rows.frame[column].is_null(), column, f"is missing: {find_column(column).advice}")
    columns = rows.frame.columns
    cells = {name: rows.frame[name].cast(pl.String) for name in _TABLE_TEXTS if name in columns}
    if "correct" in columns:
        cells["correct"] = with_decimal_points(rows, "correct").replace("nan", None)
    measured = {name: numbers(rows, name, optional=True) for name in (*TOKENS, *CACHED, "cost") if name in columns}
    measured |= seconds_cells(rows)
    if {*equivalent_columns("logprob")} & {*columns}:
        values = read_logprobs(rows)
        measured["logprob"] = np.where(values == NO_CONFIDENCE, np.nan, values)
    cells |= {name: pl.Series(values) for name, values in measured.items()}
    if SAMPLE in columns:
        cells[SAMPLE] = rows.frame[SAMPLE].cast(pl.Int64, strict=False)
    for row in zip(*(column.to_list() for column in cells.values()), strict=True):
        line = {name: value for name, value in zip(cells, row, strict=True) if value is not None and value == value}
        line |= {"scorer": scorer} | ({"signal": "own"} if "logprob" in line else {})
        yield line if SAMPLE in columns else line | {SAMPLE: 1}


# -- wide tables

BAR = "|"

#: Endings of a model's columns, after the bar, by canonical name; the first ending present is used.
_ENDINGS = {
    "correct": ("correct", "score"),
    "answer": ("answer", "model_response", "response"),
    "cost": ("cost", "total_cost"),
} | {name: (name,) for name in OPTIONAL if name not in ("answer", "cost", "prompt", SAMPLE)}

#: Names of the columns of a whole row, by canonical name.
_ROW_COLUMNS = {"query": ("query", "sample_id", "query_id", "question_id", "id"), "prompt": ("prompt", "question")}


def _read_wide(path: Path, options: ImportOptions) -> Iterator[Line]:
    """Yield the lines of a wide table, model by model."""
    require_canonical(options.columns, (*_ROW_COLUMNS, *_ENDINGS))
    source = _open_separated(path)
    columns: list[str] = []

    def choose(_: str, names: list[str]) -> list[str]:
        columns[:] = names
        return names

    load_table(source, choose, name=path.name)
    options.table_columns.update(column.rpartition(BAR)[2] for column in columns)
    names = {
        name: (options.columns[name],) if name in options.columns else alternatives
        for name, alternatives in (_ROW_COLUMNS | _ENDINGS).items()
    }
    row_columns = {name: next(filter(columns.__contains__, names[name]), None) for name in _ROW_COLUMNS}
    problem = f"no column names the query: name one, with --column query=…; there are {join_names(columns)}"
    require(row_columns["query"] is not None, path.name, problem)
    models = _models(columns, {name: names[name] for name in _ENDINGS})
    advice = "each model needs a column of its name, and another such as NAME|cost"
    require(bool(models), path.name, f"no columns of models: {advice}; there are {join_names(columns)}")
    for model, model_columns in models.items():
        assigned = {name: column for name, column in row_columns.items() if column is not None} | model_columns
        for line in _read_source(source, path.name, options, assigned, model):
            line |= {text: _unwrap(line[text]) for text in ("answer", "prompt") if text in line}
            usable = any(line.get(name) is not None for name in ("correct", "answer", "answer_key"))
            yield line if usable else line | {"error": "without a score or an answer"}


def _open_separated(path: Path) -> Path | TextFile:
    """Return the table for `load_table`, with a separator other than the bar, which occurs in names of columns."""
    if path.suffix.lower() not in SEPARATED:
        return open_table(path)
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
                model, bar, ending_found = column.rpartition(BAR)
                if bar and model and ending_found == ending:
                    models.setdefault(model, {}).setdefault(name, column)
    for model in {*models} & {*columns}:
        models[model]["correct"] = model
    return dict(sorted(models.items(), key=lambda item: min(columns.index(column) for column in item[1].values())))


def _unwrap(text: str) -> str:
    """Return the text in a Python list of one text, such as `['B']` (RouterBench); other texts are unchanged."""
    if text[:2] in ("['", '["') and text.endswith("]"):
        try:
            values = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return text
        return values[0] if len(values) == 1 and isinstance(values[0], str) else text
    return text


#: Recognised by the name alone, after other formats have not recognised the file.
TABLE = Format(
    "table",
    "a table of your own (CSV, JSON Lines, Parquet, an array of JSON)",
    lambda path, head: path.suffix.lower() in TABLES or (path.suffix.lower() in _JSON and _is_array(head)),
    _read_table,
)

#: The format must be named: a table may have columns with a bar for other reasons.
WIDE = Format(
    "wide",
    "a table with columns for each model, such as m, m|cost, m|answer (--format wide)",
    lambda *_: False,
    _read_wide,
)
