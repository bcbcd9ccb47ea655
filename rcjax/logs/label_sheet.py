"""The table in which a person labels answers: drawn at random, a row each, with an empty column `correct`.

To draw answers more often where policies depend on them was tried, and brought nothing that could be told from noise.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from rcjax._base.files import write_atomically
from rcjax._base.wording import count
from rcjax.logs.checked_rows import load
from rcjax.logs.columns import SAMPLE, require_columns
from rcjax.logs.dialects import plain_name
from rcjax.logs.errors import LogError

if TYPE_CHECKING:
    from rcjax.logs.log import Log

#: What columns of a log may be called that hold texts; the first that there is.
TEXTS = {
    "question": ("question", "prompt", "input"),
    "right_answer": ("right_answer", "reference"),
    "answer": ("text", "answer", "response", "output"),
}

# What a spreadsheet runs, behind blanks and signs that nobody sees; numbers stay what they are.
_FORMULA = r"^'*(?:[\s\x00-\x20\x7f\u00ad\u200b-\u200f\u2060-\u2064\ufeff]*[=+\-@＝＋－＠﹦﹢﹣﹫]|[\t\r\n])"
_NUMBER = r"^[+-]?\d+(?:[.,]\d+)*\s?%?$"


def draw_answers(log: Log, number: int, seed: int = 0) -> list[tuple[int, int]]:
    """(query, model) of so many answers without a label, by position, in order of the queries.

    Models get so many that all have as many labels in the end; of a model, each answer is as likely as another.
    Raises `LogError` where there are not so many.
    """
    free, labels = np.asarray(log.answered) & ~log.labelled, log.labelled.sum(0)
    if not free.any():
        raise LogError(f"{log.source}: every answer has a label already")
    if number > free.sum():
        only = f"only {count(int(free.sum()), 'answer')} without a label"
        raise LogError(f"{log.source}: {only}: draw no more than that")
    new, left, rng = np.zeros(len(labels), int), free.sum(0), np.random.default_rng(seed)
    for _ in range(number):
        new[np.where(new < left, labels + new, np.inf).argmin()] += 1
    drawn = (rng.choice(np.flatnonzero(column), size, replace=False) for column, size in zip(free.T, new, strict=True))
    return sorted((int(query), model) for model, queries in enumerate(drawn) for query in queries)


def label_sheet(log: Log, drawn: Sequence[tuple[int, int]], texts: pl.DataFrame) -> pl.DataFrame:
    """The table: the answers drawn, then those that have a label; columns that would be empty are left out."""
    old = [(int(query), int(model)) for query, model in zip(*np.nonzero(log.labelled), strict=True)]
    cells, correct, samples = [*drawn, *old], np.asarray(log.correct), log.hand and log.hand.samples
    columns = {
        "query": [str(log.queries[query]) for query, _ in cells],
        "model": [log.models[model] for _, model in cells],
        **({} if samples is None else {SAMPLE: [str(samples[cell]) for cell in cells]}),
    }
    key = [name for name in columns if name in texts.columns]
    sheet = pl.DataFrame(columns).join(texts.unique(key, keep="first"), on=key, how="left", maintain_order="left")
    shown = [name for name in TEXTS if name in sheet.columns and sheet[name].fill_null("").ne("").any()]
    labels = [*[None] * len(drawn), *(str(int(correct[cell])) for cell in old)]
    return sheet.select(*columns, *shown, pl.Series("correct", labels, pl.String))


def answer_texts(source: Path) -> pl.DataFrame:
    """What a log tells of each query and model (and sample): questions, right answers, answers, as far as it does.

    Of a call log, calls that failed, or that did not go to all models, are left out.
    """
    names: dict[str, str] = {}

    def choose(name: str, columns: list[str]) -> list[str]:
        require_columns(name, ["query", "model"], columns)
        plain = {plain_name(column): column for column in reversed(columns)}
        for text, synonyms in TEXTS.items():
            if (column := next((plain[one] for one in synonyms if one in plain), None)) is not None:
                names[text] = column
        marks = ("error", "shadow") if "call_log" in columns else ()
        besides = [column for column in (SAMPLE, *marks) if column in columns]
        return list(dict.fromkeys(["query", "model", *names.values(), *besides]))

    parts = []
    for frame in load(source, choose).frames:
        if "error" in frame.columns:
            frame = frame.filter(pl.col("error").is_null())
        if "shadow" in frame.columns:
            frame = frame.filter(pl.col("shadow").cast(pl.String) == "true")
        key = [pl.col(name).cast(pl.String) for name in ("query", "model", SAMPLE) if name in frame.columns]
        parts.append(frame.select(*key, *(_joined(frame, column).alias(text) for text, column in names.items())))
    return pl.concat(parts)


def _joined(frame: pl.DataFrame, column: str) -> pl.Expr:
    """A column as texts; of several right answers any one."""
    several = isinstance(frame.schema[column], pl.List)
    return pl.col(column).cast(pl.List(pl.String)).list.join(" or ") if several else pl.col(column).cast(pl.String)


def write_sheet(path: str | os.PathLike[str], sheet: pl.DataFrame) -> None:
    """Write a table whole, in CSV: a cell that a spreadsheet would run stands behind an apostrophe."""
    text = pl.col(pl.String)
    guarded = pl.when(_runs(text)).then(text.str.replace("^", "'")).otherwise(text)
    write_atomically(path, sheet.with_columns(guarded).write_csv())


def plain_cells(sheet: pl.DataFrame) -> pl.DataFrame:
    """A table with what the cells of `write_sheet` were made of."""
    text = pl.col(pl.String)
    bare = text.str.strip_prefix("'")
    return sheet.with_columns(pl.when(text.str.starts_with("'") & _runs(bare)).then(bare).otherwise(text))


def _runs(text: pl.Expr) -> pl.Expr:
    return text.str.contains(_FORMULA) & ~text.str.contains(_NUMBER)


def read_sheet(path: Path) -> pl.DataFrame:
    """A table that is there already, with the columns that a person has added. LogError where it is none."""

    def choose(name: str, columns: list[str]) -> list[str]:
        require_columns(name, ["query", "model", "correct"], columns)
        return columns

    frames = [plain_cells(frame) for frame in load(path, choose).frames]
    return pl.concat(frames).filter(pl.col("query").is_not_null())
