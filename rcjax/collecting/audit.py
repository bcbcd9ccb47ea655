"""How often a grader and a person agree: a random sample of answers, graded by hand in a table, blind to both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcjax._base.hashing import draw_lot
from rcjax.collecting.questions import Question, conversation
from rcjax.logs.errors import LogError
from rcjax.logs.sheet_cells import VERDICTS, read_table, write_table
from rcjax.policy.reference import JUDGED_SAME

__all__ = ["RIGHT", "SAME", "Audited", "HumanAgreement", "agreement", "read_audit", "write_audit"]


@dataclass(frozen=True, slots=True)
class Audited:
    """What a person says of an answer."""

    verdict: str
    """The column of a file of answers with the grader's verdicts."""
    beside: str
    """The column of the table with the answer that it is held to."""
    person: str
    """The column of the table that a person fills in."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the table."""
        return "id", "question", self.beside, "answer", self.person


#: Whether it is right.
RIGHT = Audited("correct", "right_answer", "correct")

#: Whether it is that of a reference.
SAME = Audited(JUDGED_SAME, "answer_of_reference", "same")


@dataclass(frozen=True, slots=True)
class HumanAgreement:
    """A person's verdicts beside the grader's."""

    n: int
    """Answers that both have judged."""
    agree: int
    """On so many they agree."""
    too_kind: int
    """Answers that the grader alone holds to be right."""
    too_strict: int
    """Answers that the person alone holds to be right."""
    right: int = 0
    """Answers that the grader holds to be right."""


def write_audit(
    path: Path,
    rows: Iterable[Mapping[str, Any]],
    questions: Mapping[str, Question],
    size: int,
    seed: int,
    audited: Audited = RIGHT,
) -> int:
    """Write a table of answers drawn at random, for a person to grade; how many there are.

    Args:
        path: of the table, in CSV.
        rows: of a file of answers.
        questions: by id, to show what was asked.
        size: how many answers are drawn, of those with a verdict.
        seed: of the draw.
        audited: what is asked of the person.

    Who answered and how it was graded are not in it.
    """
    judged = [row for row in rows if row.get("error") is None and row.get(audited.verdict) is not None]
    drawn = sorted(judged, key=lambda row: draw_lot(f"audit {seed}", row["call"]))[:size]
    table: list[Sequence[str]] = [audited.columns]
    for row in drawn:
        question = questions.get(row["query"])
        asked = row["query"] if question is None or not question.messages else conversation(question.messages)
        held_to = question.reference if audited is SAME and question is not None else row.get("reference") or ()
        table.append([row["call"], asked, " or ".join(map(str, held_to)), row.get("text") or "", ""])
    write_table(path, table)
    return len(drawn)


def read_audit(path: Path, audited: Audited = RIGHT) -> dict[str, bool]:
    """A person's verdicts by call; rows without one are left out. Raises LogError for a table that is none of ours."""
    table = read_table(path, audited.columns)
    head = table[0] if table else []
    person = audited.person
    if not {"id", person} <= {*head}:
        raise LogError(f"{path.name}: no columns id and {person}: this is no table of an audit")
    verdicts = {}
    for number, row in enumerate(table[1:], start=2):
        values = dict(zip(head, row, strict=False))
        word = values.get(person, "").strip().casefold()
        if word and word not in VERDICTS:
            raise LogError(f"{path.name}, row {number}: {person} is {word[:30]!r}: give 1 or 0, or nothing")
        if word:
            verdicts[values["id"]] = VERDICTS[word]
    return verdicts


def agreement(
    rows: Iterable[Mapping[str, Any]], verdicts: Mapping[str, bool], audited: Audited = RIGHT
) -> HumanAgreement:
    """How often the verdicts of rows are those of a person.

    >>> rows = [{"call": "a", "correct": True}, {"call": "b", "correct": False}]
    >>> agreement(rows, {"a": True, "b": True}).agree
    1
    """
    judged = [row for row in rows if row["call"] in verdicts and row.get(audited.verdict) is not None]
    pairs = [(bool(row[audited.verdict]), verdicts[row["call"]]) for row in judged]
    agree = sum(verdict == person for verdict, person in pairs)
    kind = sum(verdict and not person for verdict, person in pairs)
    return HumanAgreement(len(pairs), agree, kind, len(pairs) - agree - kind, sum(verdict for verdict, _ in pairs))
