"""Verdicts for the rows of a file of answers, as they come, and again by other graders; what judging costs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any

from rcjax.collecting.answer_file import AnswerFile, AnswerRows
from rcjax.collecting.grader import Attempt, GraderError, NoVerdictError, UnpaidError
from rcjax.collecting.graders import Graders
from rcjax.collecting.questions import Question
from rcjax.collecting.respondent import Budget, Expense, NotCoveredError, Respondent, StoppedError
from rcjax.collecting.text_graders import Ask
from rcjax.logs.errors import LogError, brief, listed, near
from rcjax.policy.counted import SAME_AS
from rcjax.serving.call_log import has_failed
from rcjax.serving.completions import read_reply
from rcjax.serving.failures import CallError
from rcjax.serving.usage import Usage

#: The expense of the row that is graded now, for judges, which cost money.
_EXPENSE: ContextVar[Expense] = ContextVar("_EXPENSE")

_AT_ONCE = 8  # answers that are graded

_LETTER = {"max_tokens": 8, "temperature": 0.0}


def is_score(verdict: Any) -> bool:
    """Whether a verdict is neither right nor wrong, nor none: a score between."""
    return verdict not in (None, 0, 1)


def score_remarks(rows: Iterable[Mapping[str, Any]], column: str = "correct") -> list[str]:
    """What is to be said of verdicts, in a column of rows, some of which are scores; nothing where none is."""
    if not any(is_score(row.get(column)) for row in rows):
        return []
    counted = ": rcjax tune counts the score that is lost" if column == "correct" else ""
    return [f"scores from 0 to 1 are in the column {column}{counted}"]


def question_of(row: Mapping[str, Any]) -> Question:
    """What a row tells of its question: all but what was asked."""
    choices = json.loads(row["choices"]) if row.get("choices") else ()
    words = choices if isinstance(choices, dict) else {}
    reference = tuple(map(str, row.get("reference") or ()))
    return Question(row["query"], (), reference, tuple(map(str, choices)), words, row.get("grade"))


def attempt_of(row: Mapping[str, Any], question: Question) -> Attempt:
    """What a grader sees of a row: not who answered."""
    text = row.get("text") or ""
    answer = row.get("answer") if isinstance(row.get("answer"), str) else text
    return Attempt(question, text, str(answer))


def judge_by(respondent: Respondent) -> Ask:
    """How a model is asked as a judge: with its own options, and eight tokens to answer where they say nothing."""
    configured = respondent.settings.options
    limits = {} if "max_completion_tokens" in configured else _LETTER
    options = {**limits, **configured}

    async def ask(messages: Sequence[Mapping[str, Any]]) -> str:
        try:
            expense, usage = _EXPENSE.get(), Usage()
            async with respondent.one_at_first(expense.budget):
                sent = respondent.send(respondent.endpoint(options), messages, options, usage, expense=expense)
                return read_reply(await sent).text
        except (CallError, StoppedError) as problem:
            # A judge that refuses one answer may well take the others; one that is down takes none.
            one = isinstance(problem, CallError) and not problem.failure.passing and respondent.stopped is None
            kind = NoVerdictError if one else GraderError
            raise kind(f"the judge {respondent.settings.name}: {problem}") from None
        except NotCoveredError:
            raise UnpaidError("the budget does not cover the judge") from None

    return ask


async def _verdict(row: Mapping[str, Any], question: Question, graders: Graders) -> float | None:
    """The verdict on the answer of a row; None where nothing can grade it, or its grader fails, which `graders` note.

    Raises GraderError where the grader cannot work any more.
    """
    name = graders.named(question)
    if name is None:
        return None
    try:
        verdict = await graders.by_name[name].grade(attempt_of(row, question))
    except Exception as error:  # replies are written by strangers: one that no grader was made for must not end a run
        if isinstance(error, GraderError) and not isinstance(error, NoVerdictError):
            raise
        where = f"query {brief(row['query'])}, model {brief(row['model'])}"
        if (problem := graders.note_failure(name, where, error)) is not None:
            raise problem from None
        return None
    graders.note_success(name)
    return verdict


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
    aside: Decimal = Decimal(0)
    """Money put aside for the judge of one answer."""
    watch: Callable[[int, int], object] = lambda done, whole: None
    """Is told how many answers have been looked at, of how many."""

    def columns(self, row: Mapping[str, Any], question: Question, verdict: Any, grader: str | None) -> dict[str, Any]:
        """What a row says of a verdict: what it is, by which right answers if it is a label, and whose.

        Args:
            row: of the answer.
            question: that it answers.
            verdict: on it; None for none.
            grader: whose it is.
        """
        right = list(question.reference) if self.into == "correct" else []
        author = "graded_by" if self.into == "correct" else f"graded_by_{self.into}"
        said = {"reference": right or row.get("reference"), self.into: verdict}
        said |= {author: None if verdict is None else grader}
        return said if self.against is None else said | {SAME_AS: self.against}


async def grade_row(
    file: AnswerFile, row: Mapping[str, Any], question: Question, graders: Graders, budget: Budget, manner: Manner
) -> GraderError | None:
    """Grade the answer of a row, and write it again with its verdict and what that has cost, if it is another row then.

    Args:
        file: of the row, which keeps what is under way.
        row: whose answer is graded.
        question: that it answers.
        graders: that judge.
        budget: that pays for judges.
        manner: where the verdict goes, and what is noted besides.

    Gives why the grader cannot work any more, which is no verdict; None if it can. Raises OSError.
    """
    name, placed = f"{row['call']}/judge", {**row}
    async with budget.expense(partial(file.begin, name, row["query"], row["model"]), manner.aside) as expense:
        if manner.aside:
            expense.note(manner.aside)
        token = _EXPENSE.set(expense)
        try:
            verdict = await _verdict(row, question, graders)
            placed |= manner.columns(row, question, verdict, graders.named(question))
        except GraderError as problem:
            return problem
        finally:  # what an interrupt ends may be charged, too
            placed["grading_cost"] = float(expense.spent) + (row.get("grading_cost") or 0.0)
            if placed != row:
                file.write(placed)
            file.end(name)
            _EXPENSE.reset(token)
    return None


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
    labelled: int = 0
    """Answers with a verdict in a judge's column, and a label besides."""
    agreement: float | None = None
    """Mean over these of 1 − |label − verdict|; None if there are none."""
    remarks: tuple[str, ...] = ()
    """What is to be said of the verdicts."""


async def regrade(
    file: AnswerFile,
    questions: Mapping[str, Question],
    graders: Graders,
    budget: Budget,
    manner: Manner,
) -> Regrading:
    """Grade the answers of a file.

    Args:
        file: open; each answer is written again with its verdict, as soon as that is there.
        questions: by id, where their file is at hand; others are taken from the rows.
        graders: that judge.
        budget: that pays for judges.
        manner: how.

    Where a grader cannot work, what is graded until then counts. Raises OSError where the file cannot be written.
    """
    problems: list[GraderError] = []
    judged = [row for row in file.answers.rows.values() if not has_failed(row)]
    if manner.against is not None:
        judged = [row for row in judged if row["model"] != manner.against and row["query"] in questions]
    if manner.calls is not None:
        judged = [row for row in judged if row["call"] in manner.calls]
    waiting = enumerate(judged)

    async def work() -> None:
        for number, row in waiting:
            if problems:
                return
            manner.watch(number, len(judged))
            question = questions.get(row["query"]) or question_of(row)
            said = row.get(manner.into)
            by_it = row == {**row, **manner.columns(row, question, said, graders.named(question))}
            if said is None or not by_it or manner.again:
                problem = await grade_row(file, row, question, graders, budget, manner)
                problems.extend([] if problem is None else [problem])

    tasks = [asyncio.ensure_future(work()) for _ in range(_AT_ONCE)]
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
    now = [file.answers.rows[row["call"]] for row in judged]
    return _regrading(judged, now, manner.into, next(iter(problems), None))


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
        query: replace(questions.get(query) or question_of(row), reference=(said[query],), grade=None)
        for query, row in replies.items()
        if said[query].strip()
    }


def _regrading(
    judged: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]], into: str, problem: GraderError | None
) -> Regrading:
    """What has changed between two states of rows."""
    both = [row for row in now if None not in (row.get(into), row.get("correct"))] if into != "correct" else []
    without = sum(row.get(into) is None for row in now)
    return Regrading(
        graded=len(now) - without,
        changed=sum(old.get(into) != new.get(into) for old, new in zip(judged, now, strict=True)),
        without=without,
        problem=problem,
        labelled=len(both),
        agreement=sum(1 - abs(row[into] - row["correct"]) for row in both) / len(both) if both else None,
        remarks=tuple(score_remarks(now, into)),
    )
