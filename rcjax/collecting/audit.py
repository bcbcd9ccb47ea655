"""How often a grader and a person agree: a random sample of answers, graded by hand in a table, blind to both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcjax._base.hashing import draw_lot
from rcjax.collecting.questions import Question, conversation
from rcjax.logs.errors import LogError
from rcjax.logs.sheet_cells import read_table, write_table

__all__ = ["Agreement", "agreement", "read_audit", "write_audit"]

_COLUMNS = ("id", "question", "right_answer", "answer", "correct")

_VERDICTS = {"1": True, "true": True, "yes": True, "y": True, "0": False, "false": False, "no": False, "n": False}


@dataclass(frozen=True, slots=True)
class Agreement:
    """A person's verdicts beside the grader's."""

    n: int
    """Answers that both have judged."""
    agree: int
    """On so many they agree."""
    too_kind: int
    """Answers that the grader alone holds to be right."""
    too_strict: int
    """Answers that the person alone holds to be right."""


def write_audit(
    path: Path, rows: Iterable[Mapping[str, Any]], questions: Mapping[str, Question], size: int, seed: int
) -> int:
    """Write a table of answers drawn at random, for a person to grade; how many there are.

    Args:
        path: of the table, in CSV.
        rows: of a file of answers.
        questions: by id, to show what was asked.
        size: how many answers are drawn, of those with a verdict.
        seed: of the draw.

    Who answered and how it was graded are not in it.
    """
    judged = [row for row in rows if row.get("error") is None and row.get("correct") is not None]
    drawn = sorted(judged, key=lambda row: draw_lot(f"audit {seed}", row["call"]))[:size]
    table: list[Sequence[str]] = [_COLUMNS]
    for row in drawn:
        question = questions.get(row["query"])
        asked = row["query"] if question is None else conversation(question.messages)
        right = " or ".join(map(str, row.get("reference") or ()))
        table.append([row["call"], asked, right, row.get("text") or "", ""])
    write_table(path, table)
    return len(drawn)


def read_audit(path: Path) -> dict[str, bool]:
    """A person's verdicts by call; rows without one are left out. Raises LogError for a table that is none of ours."""
    table = read_table(path, _COLUMNS)
    head = table[0] if table else []
    if not {"id", "correct"} <= {*head}:
        raise LogError(f"{path.name}: no columns id and correct: this is no table of an audit")
    verdicts = {}
    for number, row in enumerate(table[1:], start=2):
        values = dict(zip(head, row, strict=False))
        word = values.get("correct", "").strip().casefold()
        if word and word not in _VERDICTS:
            raise LogError(f"{path.name}, row {number}: correct is {word[:30]!r}: give 1 or 0, or nothing")
        if word:
            verdicts[values["id"]] = _VERDICTS[word]
    return verdicts


def agreement(rows: Iterable[Mapping[str, Any]], verdicts: Mapping[str, bool]) -> Agreement:
    """How often the verdicts of rows are those of a person.

    >>> rows = [{"call": "a", "correct": True}, {"call": "b", "correct": False}]
    >>> agreement(rows, {"a": True, "b": True}).agree
    1
    """
    pairs = [(bool(row["correct"]), verdicts[row["call"]]) for row in rows if _judged(row, verdicts)]
    agree = sum(own == person for own, person in pairs)
    kind = sum(own and not person for own, person in pairs)
    return Agreement(len(pairs), agree, kind, len(pairs) - agree - kind)


def _judged(row: Mapping[str, Any], verdicts: Mapping[str, bool]) -> bool:
    return row["call"] in verdicts and row.get("correct") is not None
