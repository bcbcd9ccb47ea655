"""Answers of a log that are to something else than is asked now: another question, another model, in another way.

A row of a log tells what was asked (digests of the question and of the system message), of whom (`served`) and how
(`asked`). Under the id of a question that has changed, its answers would be taken for answers to the new one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcjax._base.wording import count
from rcjax.collecting.answer_file import AnswerFile, AnswerRows
from rcjax.collecting.calls import Asked
from rcjax.collecting.questions import Question
from rcjax.logs.errors import LogError, brief
from rcjax.serving.call_log import ASKED_ANEW


@dataclass(frozen=True, slots=True)
class Change:
    """What an answer was asked for, that is asked for otherwise now."""

    row: Mapping[str, Any]
    """Of the answer."""
    what: str
    """That differs, in words."""
    then: Any
    """What it was."""
    now: Any
    """What it is."""

    @property
    def set_aside(self) -> dict[str, Any]:
        """The row as a call that counts as spent and no longer as an answer."""
        return {**self.row, "error": f"{ASKED_ANEW}: the {self.what} was {_shown(self.then)}, not {_shown(self.now)}"}


def changes(models: Iterable[Asked], questions: Sequence[Question], answers: AnswerRows) -> list[Change]:
    """The answers that are to something else than is asked now, each with the first thing that differs.

    Args:
        models: of the run, and how each is asked; what others were asked is compared too, not how.
        questions: of the run; answers to others are left alone.
        answers: that there are. A row that does not tell something is taken to be right in it.
    """
    put = {q.query: {"system_digest": q.system_digest, "question_digest": q.digest} for q in questions}
    served = {asked.name: {"served": asked.respondent.settings.served} for asked in models}
    ways = {asked.name: json.loads(asked.record(questions[0])) for asked in models if questions}
    records: dict[str, Mapping[str, Any]] = {}
    differing = []
    for row in answers.answered.values():
        if row["query"] not in put:
            continue
        if row["asked"] not in records:
            records[row["asked"]] = json.loads(row["asked"])
        then = _told(row, records[row["asked"]])
        now = _told(served.get(row["model"], {}) | put[row["query"]], ways.get(row["model"], {}))
        what = next(
            (what for what, value in then.items() if None not in (value, now[what]) and now[what] != value), None
        )
        if what is not None:
            differing.append(Change(row, what, then[what], now[what]))
    return differing


def _told(row: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """What a row says of who was asked what, and a record of how, as changes name it; None for what is not told."""
    return {
        "served model": row.get("served"),
        "system message of digest": row.get("system_digest"),
        "question (its choices and template included) of digest": row.get("question_digest"),
        "signal": record.get("signal"),
        "check of digest": record.get("check"),
        "options": record.get("options"),
        "other options of digest": None if record.get("options") is None else record.get("others", ""),
    }


def _shown(value: Any) -> str:
    return repr(value) if value else "none"


def refuse(differing: Sequence[Change], path: Path) -> None:
    """Raise LogError where answers differ, with both sides of the first, how many there are, and what can be done."""
    if not differing:
        return
    first = differing[0]
    where = f"{path.name}, model {brief(first.row['model'])}, query {brief(first.row['query'])}"
    what = f"its answers were asked for with the {first.what} {_shown(first.then)}, not {_shown(first.now)}"
    kinds = Counter(change.what.partition(" of digest")[0] for change in differing)
    several = ", ".join(f"{number:,} by the {kind}" for kind, number in kinds.items())
    ways = "--again asks for them anew, another --out begins another log"
    raise LogError(f"{where}: {what}; {count(len(differing), 'answer')} differ so ({several}): {ways}")


def set_aside(answers: AnswerRows, differing: Iterable[Change]) -> AnswerRows:
    """The same rows, in which the answers that differ are calls that are paid for and no answers."""
    return AnswerRows({**answers.rows, **{change.row["call"]: change.set_aside for change in differing}})


def grade_anew(file: AnswerFile, questions: Iterable[Question]) -> str | None:
    """Take back the verdicts on answers whose right answer has changed since; in words how many, None if none has.

    Args:
        file: of the answers, which are written without a verdict, for the run to grade them.
        questions: of the run; one without a right answer leaves verdicts as they are.
    """
    now = {question.query: question for question in questions if question.reference}
    stale = [
        row
        for row in file.answers.answered.values()
        if row["query"] in now and row.get("reference") != list(now[row["query"]].reference)
    ]
    for row in stale:
        reference = list(now[row["query"]].reference)
        file.write({**row, "reference": reference, "correct": None, "graded_by": None})
    if not stale:
        return None
    first = stale[0]
    then, there = (", ".join(map(str, one)) or "none" for one in (first["reference"], now[first["query"]].reference))
    which = f"query {brief(first['query'])}: {brief(then)} before, {brief(there)} now"
    return f"the right answer of {count(len({row['query'] for row in stale}), 'question')} has changed ({which}): " + (
        f"{count(len(stale), 'answer')} graded anew"
    )
