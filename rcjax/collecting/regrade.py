"""Verdicts for answers that are there: graded again, by other graders, without asking the models again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any

from rcjax.collecting.answer_file import AnswerFile, AnswerRows
from rcjax.collecting.graders.attempt import GraderError
from rcjax.collecting.graders.registry import Graders
from rcjax.collecting.grading import graded, is_score, question_of, score_remarks
from rcjax.collecting.purse import Purse
from rcjax.collecting.questions import Question
from rcjax.collecting.respondent import Bill
from rcjax.logs.errors import LogError, listed, near
from rcjax.policy.counted import SAME_AS
from rcjax.serving.call_log import has_failed


def _nobody(done: int, whole: int) -> None:
    """Tells nobody."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How answers are graded again."""

    into: str = "correct"
    """The column of the verdicts; that of a judge leaves the labels in `correct` as they are."""
    again: bool = False
    """Also what the same grader has graded by the same right answer."""
    against: str | None = None
    """The model whose answers are the right ones of the questions (`questions_against`); what it answered itself is not
    graded, nor are the queries that it did not answer."""
    calls: Collection[str] | None = None
    """Names of the calls whose answers are graded, where others cannot be; None for all."""
    concurrency: int = 8
    """How many at once."""
    watch: Callable[[int, int], object] = _nobody
    """Is told how many answers have been looked at, of how many."""


@dataclass(frozen=True, slots=True)
class Regrading:
    """What grading again has changed."""

    graded: int
    """Answers with a verdict of these graders."""
    changed: int
    """Answers whose verdict is another one than before."""
    without: int
    """Answers that these graders have no verdict on."""
    problem: GraderError | None
    """Why grading has ended early."""
    spent: Decimal
    """Money for judges."""
    labelled: int = 0
    """Answers with a verdict in a judge's column, and a label besides."""
    agree: int = 0
    """Those of them on which both say the same."""
    apart: float | None = None
    """How far verdict and label are apart on average, where some are scores; None if all are right or wrong."""
    remarks: tuple[str, ...] = ()
    """What is to be said of the verdicts."""


async def regrade(
    file: AnswerFile,
    questions: Mapping[str, Question],
    graders: Graders,
    purse: Purse,
    manner: Manner | None = None,
) -> Regrading:
    """Grade the answers of a file.

    Args:
        file: open; each answer is written again with its verdict, as soon as that is there.
        questions: by id, where their file is at hand; others are taken from the rows.
        graders: that judge.
        purse: that pays for judges.
        manner: how; None for the usual one.

    Where a grader cannot work, what is graded until then counts. Raises OSError where the file cannot be written.
    """
    manner = manner or Manner()
    into = manner.into
    problems: list[GraderError] = []
    judged = [row for row in file.answers.rows.values() if not has_failed(row)]
    if manner.against is not None:
        judged = [row for row in judged if row["model"] != manner.against and row["query"] in questions]
    if manner.calls is not None:
        judged = [row for row in judged if row["call"] in manner.calls]
    marks = {} if manner.against is None else {SAME_AS: manner.against}
    waiting = enumerate(judged)

    async def work() -> None:
        for number, row in waiting:
            if problems:
                return
            manner.watch(number, len(judged))
            question = _question(row, questions)
            reference = _reference(row, question, into)
            by_it = row.get(into) is not None and row.get(_author(into)) == graders.named(question)
            by_it = by_it and all(row.get(name) == value for name, value in marks.items())
            if by_it and reference == row.get("reference") and not manner.again:
                continue
            name = f"{row['call']}/judge"
            bill = Bill(partial(file.begin, name, row["query"], row["model"]))
            try:
                ungraded = {**row, "reference": reference, "correct": None, "graded_by": None}
                verdict, problem = await graded(ungraded, question, graders, bill)
            finally:
                await purse.settle(bill.reserved, bill.spent)
            if problem is not None:
                problems.append(problem)
                placed = {**row, "grading_cost": verdict["grading_cost"]}
            else:
                placed = {**_placed(verdict, row, into), **marks}
            if placed != row:
                file.write(placed)
            file.end(name)

    tasks = [asyncio.ensure_future(work()) for _ in range(manner.concurrency)]
    try:
        await asyncio.gather(*tasks)
    except BaseException as problem:  # an interrupt, or a disk that is full
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(problem, KeyboardInterrupt):  # the loop has ended by it, and would tell of it once more
            raise asyncio.CancelledError from None
        raise
    file.tidy()
    return _regrading(judged, file.answers, into, problems, purse)


def questions_against(answers: AnswerRows, questions: Mapping[str, Question], reference: str) -> dict[str, Question]:
    """The questions with what a model answered in place of the right answers, of those that it has answered.

    Args:
        answers: of a file.
        questions: by id, where their file is at hand; others are taken from the rows.
        reference: the model.

    Raises LogError where it has answered none.
    """
    replies = {row["query"]: row for (_, model, _), row in reversed([*answers.answered.items()]) if model == reference}
    if not replies:
        models = sorted({model for _, model, _ in answers.answered})
        raise LogError(f"no answer of {reference}, the reference{near(reference, models)}: it has {listed(models)}")
    said = {query: row.get("text") or "" for query, row in replies.items()}
    return {
        query: replace(_question(row, questions), reference=(said[query],), grade=None)
        for query, row in replies.items()
        if said[query].strip()
    }


def _reference(row: Mapping[str, Any], question: Question, into: str) -> Any:
    """The right answers that a row keeps: those that its label is by; a judge's verdict is no label."""
    return list(question.reference) if question.reference and into == "correct" else row.get("reference")


def _author(into: str) -> str:
    """The column that tells whose verdicts are in a column."""
    return "graded_by" if into == "correct" else f"graded_by_{into}"


def _placed(verdict: Mapping[str, Any], row: Mapping[str, Any], into: str) -> dict[str, Any]:
    """A row with a verdict, which is in its column correct, in the column that it is for.

    >>> row = {"query": "a", "correct": 1, "graded_by": "exact"}
    >>> _placed({**row, "correct": 0, "graded_by": "judge:large"}, row, "judged")["correct"]
    1
    """
    if into == "correct":
        return dict(verdict)
    labels = {name: row[name] for name in ("correct", "graded_by") if name in row}
    rest = {name: value for name, value in verdict.items() if name not in ("correct", "graded_by")}
    return {**rest, **labels, into: verdict.get("correct"), _author(into): verdict.get("graded_by")}


def _question(row: Mapping[str, Any], questions: Mapping[str, Question]) -> Question:
    return questions.get(row["query"]) or question_of(row)


def _regrading(
    judged: Sequence[Mapping[str, Any]],
    answers: AnswerRows,
    into: str,
    problems: Sequence[GraderError],
    purse: Purse,
) -> Regrading:
    now = [answers.rows[row["call"]] for row in judged]
    changed = sum(old.get(into) != new.get(into) for old, new in zip(judged, now, strict=True))
    without = sum(row.get(into) is None for row in now)
    problem = problems[0] if problems else None
    both = [row for row in now if None not in (row.get(into), row.get("correct"))] if into != "correct" else []
    agree = sum(row[into] == row["correct"] for row in both)
    scored = any(is_score(row[column]) for row in both for column in (into, "correct"))
    apart = sum(abs(row[into] - row["correct"]) for row in both) / len(both) if scored else None
    figures = len(now) - without, changed, without, problem, purse.spent, len(both), agree, apart
    return Regrading(*figures, tuple(score_remarks(now, into)))
