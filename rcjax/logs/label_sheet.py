"""The table in which a person labels answers: a row each, with what was asked and answered, and an empty `correct`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rcjax.logs.checked_rows import load
from rcjax.logs.columns import LABEL_PROBABILITY, SAMPLE, require_columns
from rcjax.logs.dialects import plain_name
from rcjax.logs.errors import LogError
from rcjax.logs.listing import brief
from rcjax.logs.sheet_cells import VERDICTS, read_table, write_table

_NEEDED = ("query", "model", "correct", LABEL_PROBABILITY)


#: What columns of a log may be called that hold texts; the first that there is.
_TEXTS = {
    "question": ("question", "prompt", "input"),
    "right_answer": ("right_answer", "reference"),
    "answer": ("text", "answer", "response", "output"),
}


class AnswerKey(NamedTuple):
    """What an answer is told by."""

    query: str
    model: str
    sample: str = ""
    """Which of several it is; empty where there is one of each model."""


class Texts(NamedTuple):
    """What a person must see to tell whether an answer is right; empty where it is not known."""

    question: str = ""
    right_answer: str = ""
    answer: str = ""


@dataclasses.dataclass(frozen=True)
class LabelSheet:
    """Rows to label: of each the columns by name, as texts. A row is labelled where `correct` is not empty."""

    path: Path
    columns: tuple[str, ...]
    rows: list[dict[str, str]]

    @classmethod
    def of(cls, path: Path, rows: Sequence[tuple[AnswerKey, Texts, bool | None, float]]) -> LabelSheet:
        """A new one, of (answer, texts, label, probability); columns that would be empty are left out."""
        shown = [name for name in Texts._fields if any(getattr(texts, name) for _, texts, *_ in rows)]
        key = AnswerKey._fields if any(answer.sample for answer, *_ in rows) else AnswerKey._fields[:2]
        cells = [
            {name: getattr(answer, name) for name in key}
            | {name: getattr(texts, name) for name in shown}
            | {"correct": "" if label is None else str(int(label)), LABEL_PROBABILITY: f"{chance:.9g}"}
            for answer, texts, label, chance in rows
        ]
        columns = (*key, *shown, "correct", LABEL_PROBABILITY)
        return cls(path, columns, cells)

    def label(self, index: int) -> bool | None:
        """What a row says; None where it is not labelled. Raises `LogError` for a cell that is neither."""
        word = self.rows[index]["correct"].strip().casefold()
        if word and word not in VERDICTS:
            row = f"{self.path.name}, row {index + 1}: correct {brief(word)} is not clear"
            raise LogError(f"{row}: give 1 or 0, or nothing")
        return VERDICTS[word] if word else None

    def set_label(self, index: int, label: bool | None) -> None:
        """Label a row, or take its label away, and write the file."""
        self.rows[index]["correct"] = "" if label is None else str(int(label))
        self.write()

    def texts(self, index: int) -> Texts:
        """What a row shows."""
        return Texts(*(self.rows[index].get(name, "") for name in Texts._fields))

    @property
    def labels(self) -> list[bool | None]:
        """Of all rows."""
        return [self.label(index) for index in range(len(self.rows))]

    def write(self) -> None:
        """Write the file whole: who reads it sees what it was, or what it is."""
        write_table(self.path, [self.columns, *([row[name] for name in self.columns] for row in self.rows)])


def read_sheet(path: Path) -> LabelSheet:
    """A table that is there already. Raises `LogError` where it is none of these."""
    head, *lines = read_table(path, _NEEDED) or [[]]
    missing = [name for name in _NEEDED if name not in head]
    if missing:
        what = f"no columns {', '.join(missing)}: it is no table of rcjax label"
        raise LogError(f"{path.name}: {what}: give another file")
    if any(len(line) != len(head) for line in lines):
        raise LogError(f"{path.name}: a row has more or fewer cells than the first: save it as CSV anew")
    sheet = LabelSheet(path, tuple(head), [dict(zip(head, line, strict=True)) for line in lines])
    _ = sheet.labels  # refused here, where a cell is not clear
    return sheet


def missing_answers(sheet: LabelSheet, source: Any) -> int:
    """How many answers of a sheet a log does not have. Raises LogError where it is none of that log.

    That is so where the log has none of them, or says of one that another thing was answered.
    """
    keys = [AnswerKey(row["query"], row["model"], row.get("sample", "")) for row in sheet.rows]
    texts = answer_texts(source, {*keys})
    advice = "it is the table of another log, or was drawn with other options: give those of before, or another --out"
    for index, key in enumerate(keys):
        here, there = sheet.texts(index).answer, texts.get(key, Texts()).answer
        if here and there and here.split() != there.split():
            what = f"query {brief(key.query)}, model {brief(key.model)} answers {brief(there)!r} in the log"
            raise LogError(f"{sheet.path.name}, row {index + 1}: {what}, not {brief(here)!r}: {advice}")
    missing = sum(key not in texts for key in keys)
    if keys and missing == len(keys):
        raise LogError(f"{sheet.path.name}: the log has none of its answers: {advice}")
    return missing


def answer_texts(source: Any, drawn: Collection[AnswerKey]) -> dict[AnswerKey, Texts]:
    """What a log, or a table of answers, tells of some answers, as far as it does.

    Of several calls, the first that did not fail.
    """
    import polars as pl

    texts: dict[AnswerKey, Texts] = {}
    names: dict[str, str] = {}
    several = any(answer.sample for answer in drawn)

    def choose(name: str, columns: list[str]) -> list[str]:
        require_columns(name, ["query", "model"], columns)
        if SAMPLE in columns and not several and "call_log" not in columns:
            what = "several answers per query and model (column sample), and the log has one of each"
            raise LogError(f"{name}: {what}: leave one of each")
        if several and SAMPLE not in columns:
            what = "no column sample, and the log has several answers per query and model"
            raise LogError(f"{name}: {what}: tell them apart by sample, as the log does")
        plain = {plain_name(column): column for column in reversed(columns)}
        for text, synonyms in _TEXTS.items():
            column = next((plain[other] for other in synonyms if other in plain), None)
            names.update({} if column is None else {text: column})
        calls = [column for column in ("error", "shadow") if "call_log" in columns and column in columns]
        return list(dict.fromkeys([*key, *names.values(), *calls]))

    key = AnswerKey._fields if several else AnswerKey._fields[:2]
    queries = {answer.query for answer in drawn}
    for frame in load(source, choose).frames:
        frame = frame.with_columns(pl.col(key).cast(pl.String)).filter(pl.col("query").is_in(queries))
        for row in frame.to_dicts():
            answer = AnswerKey(*(row[name] for name in key))
            failed = row.get("error") is not None or str(row.get("shadow", True)).lower() == "false"
            if answer in drawn and answer not in texts and not failed:
                texts[answer] = Texts(**{text: _text(row[column]) for text, column in names.items()})
    return texts


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " or ".join(map(str, value))
    return "" if value is None else str(value)


def completed(texts: Mapping[AnswerKey, Texts], more: Mapping[AnswerKey, Texts]) -> dict[AnswerKey, Texts]:
    """Texts of two sources: those of the second where it has them.

    >>> one = AnswerKey("1", "a")
    >>> completed({one: Texts("Why?", "", "so")}, {one: Texts(answer="because")})[one].answer
    'because'
    """
    keys = dict.fromkeys([*texts, *more])
    pairs = {key: (texts.get(key, Texts()), more.get(key, Texts())) for key in keys}
    return {key: Texts(*(new or old for old, new in zip(*both, strict=True))) for key, both in pairs.items()}
