"""Verdicts for the rows of a file of answers: which grader judged, whether the answer is right, what judging cost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from rcjax.collecting.graders.attempt import Attempt, GraderError, NoVerdictError
from rcjax.collecting.graders.judge import Ask
from rcjax.collecting.graders.registry import Graders
from rcjax.collecting.purse import BudgetSpentError
from rcjax.collecting.questions import Question
from rcjax.collecting.respondent import Bill, Respondent, StoppedError
from rcjax.logs.errors import brief
from rcjax.serving.call_log import has_failed
from rcjax.serving.completions import CallError

#: The bill of the row that is graded now, for judges, which cost money.
_BILL: ContextVar[Bill] = ContextVar("_BILL")

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
    sides = question.reference, question.choices, question.words, question.messages
    return Attempt(question.query, text, str(answer), *sides)


def judge_by(respondent: Respondent) -> Ask:
    """How a model is asked as a judge: with its own options, and eight tokens to answer where they say nothing."""
    configured = respondent.settings.options
    limits = {} if "max_completion_tokens" in configured else _LETTER
    options = {**limits, **configured}

    async def ask(messages: Sequence[Mapping[str, Any]]) -> str:
        bill = _BILL.get()
        try:
            return (await respondent.ask(messages, options, bill)).text
        except (CallError, StoppedError) as problem:
            # A judge that refuses one answer may well take the others; one that is down takes none.
            one = isinstance(problem, CallError) and not problem.failure.passing and respondent.stopped is None
            kind = NoVerdictError if one else GraderError
            raise kind(f"the judge {respondent.settings.name}: {problem}") from None
        except BudgetSpentError:
            raise GraderError("the budget does not cover the judge") from None

    return ask


async def graded(
    row: Mapping[str, Any], question: Question, graders: Graders, bill: Bill
) -> tuple[dict[str, Any], GraderError | None]:
    """(the row with its verdict, why the grader cannot work any more).

    Args:
        row: of a file of answers.
        question: that it answers.
        graders: of the run.
        bill: of judging it.

    A row without an answer, or that nothing can grade, stays as it is; one on which its grader fails has no verdict,
    which `graders` note.
    """
    name = None if has_failed(row) else graders.named(question)
    if name is None:
        return dict(row), None
    token = _BILL.set(bill)
    verdict, problem = None, None
    where = f"query {brief(row['query'])}, model {brief(row['model'])}"
    try:
        verdict = await graders.by_name[name].grade(attempt_of(row, question))
        graders.note_success(name)
    except GraderError as error:
        problem = graders.note_failure(name, where, error) if isinstance(error, NoVerdictError) else error
    except Exception as error:  # replies are written by strangers: one that no grader was made for must not end a run
        problem = graders.note_failure(name, where, error)
    finally:
        _BILL.reset(token)
    cost = float(bill.spent) + (row.get("grading_cost") or 0.0)
    if verdict is None:
        return {**row, "grading_cost": cost}, problem
    return {**row, "correct": verdict, "graded_by": name, "grading_cost": cost}, problem
