"""Make graders from their names, and grade the rows of an answer file, at once or later; the account of judges.

Each kind of question may have its grader: `math=number`, `essay=judge:large`. The column `grade` of a question names
its kind. Only the command can name a grader that runs code or costs money; a file of questions can only select one.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import Any

from rcjax._base.figures import count
from rcjax.collecting.answer_file import AnswerFile, AnswerRows
from rcjax.collecting.graders import (
    AskJudge,
    FunctionGrader,
    Grader,
    GraderError,
    JudgeGrader,
    NoVerdictError,
    PatternGrader,
    ProcessGrader,
    ProgramGrader,
    Submission,
    UnpaidError,
)
from rcjax.collecting.questions import Question
from rcjax.collecting.respondent import Budget, Expense, NotCoveredError, Respondent, StoppedError
from rcjax.collecting.right_answers import (
    ComparisonGrader,
    JsonGrader,
    NumberGrader,
    contains,
    exact,
    is_number,
    right_call,
    right_choice,
)
from rcjax.logs.errors import LogError, brief, listed, near
from rcjax.policy.counted import SAME_AS
from rcjax.serving.call_log import has_failed
from rcjax.serving.completions import read_reply
from rcjax.serving.failures import CallError
from rcjax.serving.usage import CallUsage

#: Graders that compare texts, by name.
COMPARISONS: dict[str, Callable[[Submission], bool]] = {"exact": exact, "choice": right_choice, "contains": contains}

_FAILURES = 10  # in a row, after which grading ends

_LONG = 300  # characters of an error in a message

_GRADER_NAMES = (
    "exact",
    "choice",
    "number",
    "contains",
    "call",
    "json",
    "regex:…",
    "python:module:function",
    "command:…",
    "judge:MODEL",
)


@dataclass(frozen=True, slots=True)
class Graders:
    """The graders of a run: the common grader, and graders by kind of question."""

    common: str | None
    """Name of the common grader; None to choose a grader by the form of the question."""
    by_name: Mapping[str, Grader] = field(default_factory=dict)
    """All graders by name."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Names of graders by kind of question."""
    _failures: dict[str, list[str]] = field(default_factory=dict)
    """Descriptions of failures by grader."""
    _in_a_row: Counter[str] = field(default_factory=Counter)

    def grader_name(self, question: Question) -> str | None:
        """Return the name of a question's grader; None if no grader can grade it."""
        if question.grade is not None:
            name: str | None = self.kinds.get(question.grade, question.grade)
        else:
            name = self.common or suited_grader(question)
        if name is None or (self.by_name[name].needs_reference and not question.reference):
            return None
        return name

    def note_failure(self, name: str, where: str, error: Exception) -> GraderError | None:
        """Record a grader's failure on an answer; return an error after ten failures in a row, else None."""
        why = str(error) if isinstance(error, GraderError) else f"{name} failed: {type(error).__name__}: {error}"
        line = f"{where}: {' '.join(why.split())[:_LONG]}"
        self._failures.setdefault(name, []).append(line)
        self._in_a_row[name] += 1
        if self._in_a_row[name] < _FAILURES:
            return None
        return GraderError(f"{_FAILURES} answers in a row without a verdict, as {name} failed, the last one {line}")

    def note_success(self, name: str) -> None:
        """Record that a grader worked on an answer."""
        self._in_a_row[name] = 0

    def require(self, questions: Iterable[Question]) -> None:
        """Raise GraderError for a kind of question without a grader, and for a missing library."""
        for question in questions:
            if question.grade is not None and self.kinds.get(question.grade, question.grade) not in self.by_name:
                kind = question.grade
                raise GraderError(f"query {question.query}: no grader for the kind {kind!r}: give --grade {kind}=…")
            grader = self.by_name.get(self.grader_name(question) or "")
            if isinstance(grader, ProcessGrader):
                grader.require()

    def remarks(self) -> list[str]:
        """Return sentences about answers without a verdict: unreadable replies of judges, and failures."""
        without = [
            f"{name}: asked twice, no verdict on {count(one.without_verdict, 'answer')}: "
            f"it must reply with {one.reply_form} alone on its last line"
            for name, one in self.by_name.items()
            if isinstance(one, JudgeGrader) and one.without_verdict
        ]
        failures = [
            f"no verdict on {count(len(lines), 'answer')}, as {name} failed; the first one is {lines[0]}"
            for name, lines in self._failures.items()
        ]
        return without + failures

    async def close(self) -> None:
        """End the graders' processes."""
        for grader in self.by_name.values():
            if isinstance(grader, ProcessGrader):
                await grader.close()


def suited_grader(question: Question) -> str | None:
    """Choose a grader by the form of a question: call, json, choice, number or exact; None without a right answer.

    >>> suited_grader(Question("q", (), ("1,200",))), suited_grader(Question("q", (), ("Paris",)))
    ('number', 'exact')
    """
    if not question.reference:
        return None
    if question.options:
        return "call" if question.options.get("tools") else "json"
    if question.choices:
        return "choice"
    return "number" if all(is_number(text) for text in question.reference) else "exact"


def make_graders(
    named: Sequence[str],
    ask: Callable[[str], AskJudge] | None = None,
    template: str | None = None,
    score_max: float | None = None,
    binary: bool = False,
) -> Graders:
    """Make the graders that a command names.

    Args:
        named: graders in the notation of the command line, such as `["exact", "math=number"]`.
        ask: returns the `AskJudge` of a judge, from the name of a model; None without models.
        template: template of a judge's prompt; None for the built-in one.
        score_max: full score of judges, functions and programs; None if judges and `json` say right or wrong, and the
            scores of others go from 0 to 1.
        binary: whether functions and programs, too, must say right or wrong.

    Raises GraderError for an unknown name, two common graders, and a full score that no grader uses.
    """

    def judge(model: str) -> JudgeGrader:
        if ask is None:
            raise GraderError(f"judge:{model}: a judge is a model: give --models models.toml")
        return JudgeGrader(ask(model), template, score_max)

    max_score = None if binary else score_max or 1.0
    by_name: dict[str, Grader] = {name: ComparisonGrader(compare) for name, compare in COMPARISONS.items()}
    by_name["number"] = NumberGrader()
    by_name["call"] = ComparisonGrader(right_call)
    by_name["json"] = JsonGrader(scores=score_max is not None)
    kinds: dict[str, str] = {}
    common: str | None = None
    for text in named:
        kind = re.match(r"([\w-]+)=(?=\S)", text)
        name = text[kind.end() :] if kind else text
        if kind:
            kinds[kind[1]] = name
        elif common is not None:
            raise GraderError(f"--grade {common} and {name}: one for all; for a kind of question give KIND={name}")
        else:
            common = name
        if name not in by_name:
            by_name[name] = _make(name, max_score, judge)
    scoring = re.compile(r"(?:judge|python|command):|json\Z")
    if score_max is not None and not any(scoring.match(name) for name in [*kinds.values(), common or ""]):
        what = "is the full score of judge:MODEL, python:module:function, command:… or json: name one"
        raise GraderError(f"--score-max {score_max:g}: {what}, or leave it out")
    return Graders(common, by_name, kinds)


def _make(name: str, max_score: float | None, judge: Callable[[str], JudgeGrader]) -> Grader:
    kind, _, rest = name.partition(":")
    makers = {"regex": lambda: PatternGrader(rest), "judge": lambda: judge(rest)}
    makers |= {"python": lambda: FunctionGrader(name, max_score), "command": lambda: ProgramGrader(name, max_score)}
    if kind not in makers or not rest:
        raise GraderError(f"{name!r} is no grader: give {', '.join(_GRADER_NAMES)}")
    return makers[kind]()


#: The expense of the row under grading, which pays for a judge.
_EXPENSE: ContextVar[Expense] = ContextVar("_EXPENSE")

_AT_ONCE = 8  # answers graded concurrently

#: Default options of a judge's request.
_LETTER = {"max_tokens": 8, "temperature": 0.0}


def is_score(verdict: Any) -> bool:
    """Return whether a verdict is a score strictly between wrong and right."""
    return verdict not in (None, 0, 1)


def score_remarks(rows: Iterable[Mapping[str, Any]], column: str = "correct") -> list[str]:
    """Return a sentence about a column of verdicts if some are scores; else an empty list."""
    if not any(is_score(row.get(column)) for row in rows):
        return []
    counted = ": rcjax tune counts the score that is lost" if column == "correct" else ""
    return [f"scores from 0 to 1 are in the column {column}{counted}"]


def question_of(row: Mapping[str, Any]) -> Question:
    """Reconstruct the question of a row, without its messages."""
    choices = json.loads(row["choices"]) if row.get("choices") else ()
    words = choices if isinstance(choices, dict) else {}
    reference = tuple(map(str, row.get("reference") or ()))
    return Question(row["query"], (), reference, tuple(map(str, choices)), words, row.get("grade"))


def submission_of(row: Mapping[str, Any], question: Question) -> Submission:
    """Return a row as a grader sees it: without the model's name."""
    text = row.get("text") or ""
    answer = row.get("answer") if isinstance(row.get("answer"), str) else text
    return Submission(question, text, str(answer))


def make_ask_judge(respondent: Respondent) -> AskJudge:
    """Make a judge of a model, with its options; without a limit there, replies have at most eight tokens."""
    configured = respondent.settings.options
    limits = {} if "max_completion_tokens" in configured else _LETTER
    options = {**limits, **configured}

    async def ask(messages: Sequence[Mapping[str, Any]]) -> str:
        try:
            expense, usage = _EXPENSE.get(), CallUsage()
            async with respondent.serialise_until_priced(expense.budget):
                sent = respondent.send(respondent.endpoint(options), messages, options, usage, expense=expense)
                return read_reply(await sent).text
        except (CallError, StoppedError) as problem:
            # A judge that refuses one answer may accept others; a judge that is down fails on all.
            one = isinstance(problem, CallError) and not problem.failure.transient and respondent.stopped is None
            kind = NoVerdictError if one else GraderError
            raise kind(f"the judge {respondent.settings.name}: {problem}") from None
        except NotCoveredError:
            raise UnpaidError("the budget does not cover the judge") from None

    return ask


async def _verdict(row: Mapping[str, Any], question: Question, graders: Graders) -> float | None:
    """Return the verdict on a row; None if no grader can grade it, or if its grader fails, which `graders` records.

    Raises GraderError if the grader cannot work any more.
    """
    name = graders.grader_name(question)
    if name is None:
        return None
    try:
        verdict = await graders.by_name[name].grade(submission_of(row, question))
    except Exception as error:  # an unexpected reply must not end the run
        if isinstance(error, GraderError) and not isinstance(error, NoVerdictError):
            raise
        where = f"query {brief(row['query'])}, model {brief(row['model'])}"
        if (problem := graders.note_failure(name, where, error)) is not None:
            raise problem from None
        return None
    graders.note_success(name)
    return verdict


@dataclass(frozen=True, slots=True)
class GradingOptions:
    """Options of grading."""

    into: str = "correct"
    """Column of the verdicts; a judge's column leaves the labels in `correct` unchanged."""
    regrade: bool = False
    """Whether answers with a verdict of the same grader by the same right answer are graded again."""
    reference_model: str | None = None
    """Name of the model whose answers count as right (`questions_with_answers_of`). Neither its own answers are graded
    nor answers to queries that it did not answer."""
    calls: Collection[str] | None = None
    """Names of the calls to grade; None for all."""
    reserved: Decimal = Decimal(0)
    """Money reserved for the judge of one answer."""
    report_progress: Callable[[int, int], object] = lambda done, whole: None
    """Progress callback: number of answers processed, and of all."""

    def columns(self, row: Mapping[str, Any], question: Question, verdict: Any, grader: str | None) -> dict[str, Any]:
        """Return a row's columns for a verdict: the verdict, its grader, and the right answers if it is a label.

        Args:
            row: row of the answer.
            question: the question.
            verdict: the verdict, or None.
            grader: name of the grader.
        """
        right = list(question.reference) if self.into == "correct" else []
        author = "graded_by" if self.into == "correct" else f"graded_by_{self.into}"
        columns = {"reference": right or row.get("reference"), self.into: verdict}
        columns |= {author: None if verdict is None else grader}
        return columns if self.reference_model is None else columns | {SAME_AS: self.reference_model}


async def grade_row(
    file: AnswerFile,
    row: Mapping[str, Any],
    question: Question,
    graders: Graders,
    budget: Budget,
    options: GradingOptions,
) -> GraderError | None:
    """Grade the answer of a row, and write the row again with verdict and cost if that changes it.

    Args:
        file: answer file of the row, which journals calls under way.
        row: row to grade.
        question: question of the row.
        graders: graders of the run.
        budget: budget that pays for judges.
        options: options of grading.

    Returns:
        An error if the grader cannot work any more, which leaves the row without a verdict; else None. Raises OSError.
    """
    name, graded = f"{row['call']}/judge", {**row}
    async with budget.expense(partial(file.begin, name, row["query"], row["model"]), options.reserved) as expense:
        if options.reserved:
            expense.note(options.reserved)
        token = _EXPENSE.set(expense)
        try:
            verdict = await _verdict(row, question, graders)
            graded |= options.columns(row, question, verdict, graders.grader_name(question))
        except GraderError as problem:
            return problem
        finally:  # an interrupted call may be charged, too
            graded["grading_cost"] = float(expense.spent) + (row.get("grading_cost") or 0.0)
            if graded != row:
                file.write(graded)
            file.end(name)
            _EXPENSE.reset(token)
    return None


@dataclass(frozen=True, slots=True)
class Regrading:
    """Summary of grading an answer file again."""

    graded: int
    """Number of answers with a verdict."""
    changed: int
    """Number of answers whose verdict has changed."""
    without: int
    """Number of answers without a verdict."""
    problem: GraderError | None
    """Error that ended grading early; else None."""
    labelled: int = 0
    """Number of answers with both a verdict in a judge's column and a label."""
    agreement: float | None = None
    """Mean of 1 − |label − verdict| over these answers; None without any."""
    remarks: tuple[str, ...] = ()
    """Sentences about the verdicts."""


async def regrade(
    file: AnswerFile,
    questions: Mapping[str, Question],
    graders: Graders,
    budget: Budget,
    options: GradingOptions,
) -> Regrading:
    """Grade the answers of a file.

    Args:
        file: open answer file; each answer is written again as soon as it has a verdict.
        questions: questions by id, if their file is known; others are reconstructed from the rows.
        graders: graders of the answers.
        budget: budget that pays for judges.
        options: options of grading.

    If a grader stops working, the verdicts until then are kept. Raises OSError if the file cannot be written.
    """
    problems: list[GraderError] = []
    judged = [row for row in file.answers.rows.values() if not has_failed(row)]
    if options.reference_model is not None:
        judged = [row for row in judged if row["model"] != options.reference_model and row["query"] in questions]
    if options.calls is not None:
        judged = [row for row in judged if row["call"] in options.calls]
    waiting = enumerate(judged)

    async def work() -> None:
        for number, row in waiting:
            if problems:
                return
            options.report_progress(number, len(judged))
            question = questions.get(row["query"]) or question_of(row)
            verdict = row.get(options.into)
            is_current = row == {**row, **options.columns(row, question, verdict, graders.grader_name(question))}
            if verdict is None or not is_current or options.regrade:
                problem = await grade_row(file, row, question, graders, budget, options)
                problems.extend([] if problem is None else [problem])

    tasks = [asyncio.ensure_future(work()) for _ in range(_AT_ONCE)]
    try:
        await asyncio.gather(*tasks)
    except BaseException as problem:  # an interrupt, or a disk that is full
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(problem, KeyboardInterrupt):  # it has ended the loop, which would raise it a second time
            raise asyncio.CancelledError from None
        raise
    file.rewrite_if_needed()
    now = [file.answers.rows[row["call"]] for row in judged]
    return _summarise(judged, now, options.into, next(iter(problems), None))


def questions_with_answers_of(
    answers: AnswerRows, questions: Mapping[str, Question], reference: str
) -> dict[str, Question]:
    """Return the questions that a model has answered, with its answers as the right ones.

    Args:
        answers: rows of an answer file.
        questions: questions by id, if their file is known; others are reconstructed from the rows.
        reference: name of the model.

    Raises LogError if the model has answered none.
    """
    replies = {row["query"]: row for (_, model, _), row in reversed([*answers.answered.items()]) if model == reference}
    if not replies:
        models = sorted({model for _, model, _ in answers.answered})
        raise LogError(f"no answer of {reference}, the reference{near(reference, models)}: it has {listed(models)}")
    texts = {query: row.get("text") or "" for query, row in replies.items()}
    return {
        query: replace(questions.get(query) or question_of(row), reference=(texts[query],), grade=None)
        for query, row in replies.items()
        if texts[query].strip()
    }


def _summarise(
    judged: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]], into: str, problem: GraderError | None
) -> Regrading:
    """Summarise the difference between the rows before and after grading."""
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
