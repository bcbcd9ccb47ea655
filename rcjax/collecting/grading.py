"""Make graders from their names, and grade the rows of an answer file, during a run or later.

Each kind of question may have its grader: `math=number`, `essay=judge:large`. The column `grade` of a question names
its kind. Only the command can name a grader that runs code or costs money; a file of questions selects among these.
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
from rcjax.collecting.questions import Question
from rcjax.collecting.respondent import Budget, Expense, Respondent, StoppedError
from rcjax.collecting.right_answers import (
    ComparisonGrader,
    JsonGrader,
    NumberGrader,
    contains_answer,
    is_exact,
    is_number,
    is_right_call,
    is_right_choice,
)
from rcjax.collecting.user_graders import (
    AskJudge,
    CheckGrader,
    Grader,
    GraderError,
    JudgeGrader,
    NoVerdictError,
    PatternGrader,
    ProcessGrader,
    Submission,
    UnpaidError,
)
from rcjax.logs.errors import LogError, join_names, shorten, suggest_name
from rcjax.policy.error_kind import SAME_AS
from rcjax.policy.signals.answers import canonical_json
from rcjax.serving.call_log import has_failed
from rcjax.serving.completions import read_reply
from rcjax.serving.failures import CallError, NotCoveredError
from rcjax.serving.usage import CallUsage

#: Graders that compare texts, by name.
COMPARISONS = {"exact": is_exact, "choice": is_right_choice, "contains": contains_answer}

_MAX_FAILURES = 10  # answers in a row, after which a grader is not used any more

_MAX_CHARACTERS = 300  # of an error in a message

_GRADER_NAMES = "exact, choice, number, contains, call, json, regex:…, python:module:function, command:…, judge:MODEL"


@dataclass(frozen=True, slots=True)
class GraderTable:
    """The graders of a run: the common grader, and graders by kind of question."""

    common: str | None
    """Name of the common grader; None to choose a grader by the form of the question."""
    by_name: Mapping[str, Grader] = field(default_factory=dict)
    """All graders by name."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Names of graders by kind of question."""
    _failures: dict[str, list[str]] = field(default_factory=dict)
    """Descriptions of failures by grader."""
    _failures_in_a_row: Counter[str] = field(default_factory=Counter)

    def grader_name(self, question: Question) -> str | None:
        """Return the name of a question's grader; None if no grader can grade it."""
        if question.grade is not None:
            name: str | None = self.kinds.get(question.grade, question.grade)
        else:
            name = self.common or suited_grader(question)
        if name is None or (self.by_name[name].needs_reference and not question.reference):
            return None
        return name

    def note_failure(self, name: str, place: str, error: Exception) -> GraderError | None:
        """Record a grader's failure on an answer; after ten failures in a row, return an error."""
        reason = str(error) if isinstance(error, GraderError) else f"{name} failed: {type(error).__name__}: {error}"
        line = f"{place}: {' '.join(reason.split())[:_MAX_CHARACTERS]}"
        self._failures.setdefault(name, []).append(line)
        self._failures_in_a_row[name] += 1
        if self._failures_in_a_row[name] < _MAX_FAILURES:
            return None
        return GraderError(f"{_MAX_FAILURES} answers in a row without a verdict, as {name} failed, the last one {line}")

    def note_success(self, name: str) -> None:
        """Record that a grader worked on an answer."""
        self._failures_in_a_row[name] = 0

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
        unreadable = [
            f"{name}: asked twice, no verdict on {count(judge.without_verdict, 'answer')}: "
            f"it must reply with {judge.reply_form} alone on its last line"
            for name, judge in self.by_name.items()
            if isinstance(judge, JudgeGrader) and judge.without_verdict
        ]
        failures = [
            f"no verdict on {count(len(lines), 'answer')}, as {name} failed; the first one is {lines[0]}"
            for name, lines in self._failures.items()
        ]
        return unreadable + failures

    async def close(self) -> None:
        """End the graders' processes."""
        for grader in self.by_name.values():
            if isinstance(grader, ProcessGrader | CheckGrader):
                await grader.close()


def suited_grader(question: Question) -> str | None:
    """Choose a grader by the form of a question: call, json, choice, number or exact; None without a right answer.

    >>> [suited_grader(Question("q", (), (text,))) for text in ("1,200", "Paris", "{}")]
    ['number', 'exact', 'json']
    """
    if not question.reference:
        return None
    if question.options:
        return "call" if question.options.get("tools") else "json"
    if question.choices:
        return "choice"
    if all((canonical_json(text) or "").startswith("{") for text in question.reference):
        return "json"
    return "number" if all(is_number(text) for text in question.reference) else "exact"


def make_graders(
    named: Sequence[str],
    ask: Callable[[str], AskJudge] | None = None,
    template: str | None = None,
    score_max: float | None = None,
    is_binary: bool = False,
) -> GraderTable:
    """Make the graders that a command names.

    Args:
        named: graders in the notation of the command line, such as `["exact", "math=number"]`.
        ask: returns the function that asks a judge, from the name of a model; None without models.
        template: template of a judge's prompt; None for the built-in one.
        score_max: full score of judges, functions and programs; None if judges and `json` say right or wrong, and the
            scores of others go from 0 to 1.
        is_binary: whether functions and programs, too, must say right or wrong.

    Raises GraderError for an unknown name, two common graders, and a full score that no grader uses.
    """

    def judge(model: str) -> JudgeGrader:
        if ask is None:
            raise GraderError(f"judge:{model}: a judge is a model: give --models models.toml")
        return JudgeGrader(ask(model), template, score_max)

    max_score = None if is_binary else score_max or 1.0
    by_name: dict[str, Grader] = {name: ComparisonGrader(compare) for name, compare in COMPARISONS.items()}
    by_name["number"] = NumberGrader()
    by_name["call"] = ComparisonGrader(is_right_call)
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
        graders = "judge:MODEL, python:module:function, command:… or json"
        raise GraderError(f"--score-max {score_max:g}: no grader gives scores: name one of {graders}, or leave it out")
    return GraderTable(common, by_name, kinds)


def _make(name: str, max_score: float | None, judge: Callable[[str], JudgeGrader]) -> Grader:
    kind, _, rest = name.partition(":")
    makers = {"regex": lambda: PatternGrader(rest), "judge": lambda: judge(rest)}
    makers |= dict.fromkeys(("python", "command"), lambda: CheckGrader(name, max_score))
    if kind not in makers or not rest:
        raise GraderError(f"{name!r} is not a grader: give {_GRADER_NAMES}")
    return makers[kind]()


#: The expense that pays for the judge of the row under grading.
_EXPENSE: ContextVar[Expense] = ContextVar("_EXPENSE")

_CONCURRENCY = 8  # answers graded at once

#: Default options of a judge's request.
_VERDICT_OPTIONS = {"max_tokens": 8, "temperature": 0.0}


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


def make_ask_judge(respondent: Respondent) -> AskJudge:
    """Return a function that asks a model as a judge, for eight tokens at most unless its options set a limit."""
    configured = respondent.settings.options
    options = {**({} if "max_completion_tokens" in configured else _VERDICT_OPTIONS), **configured}

    async def ask(messages: Sequence[Mapping[str, Any]]) -> str:
        try:
            expense, request = _EXPENSE.get(), respondent.make_request(messages, options)
            async with respondent.serialise_until_priced(expense.budget):
                return read_reply(await respondent.send(request, CallUsage(), expense=expense)).text
        except (CallError, StoppedError) as problem:
            # A judge that refuses one answer may accept others; a judge that is down fails on all answers.
            is_refusal = isinstance(problem, CallError) and not (problem.failure.transient or respondent.why_stopped)
            kind = NoVerdictError if is_refusal else GraderError
            raise kind(f"the judge {respondent.settings.name}: {problem}") from None
        except NotCoveredError:
            raise UnpaidError("the budget does not cover the judge") from None

    return ask


async def _find_verdict(row: Mapping[str, Any], question: Question, graders: GraderTable) -> float | None:
    """Return the verdict on a row; None if no grader can grade the row, or its grader fails, which `graders` records.

    Raises GraderError if the grader cannot work any more.
    """
    name = graders.grader_name(question)
    if name is None:
        return None
    text = row.get("text") or ""
    answer = row["answer"] if isinstance(row.get("answer"), str) else text
    try:
        verdict = await graders.by_name[name].grade(Submission(question, text, answer))
    except Exception as error:  # an unexpected reply must not end the run
        if isinstance(error, GraderError) and not isinstance(error, NoVerdictError):
            raise
        place = f"query {shorten(row['query'])}, model {shorten(row['model'])}"
        if (problem := graders.note_failure(name, place, error)) is not None:
            raise problem from None
        return None
    graders.note_success(name)
    return verdict


def grader_column(into: str) -> str:
    """Return the column of the graders whose verdicts are in a column."""
    return "graded_by" if into == "correct" else f"graded_by_{into}"


@dataclass(frozen=True, slots=True)
class GradingOptions:
    """Options of grading."""

    into: str = "correct"
    """Column of the verdicts; a judge's column leaves the labels in `correct` unchanged."""
    regrade: bool = False
    """Whether answers with a verdict of the same grader by the same right answer are graded again."""
    reference_model: str | None = None
    """Name of the model whose answers count as right (`questions_with_answers_of`). Its answers, and answers to queries
    that it did not answer, are not graded."""
    calls: Collection[str] | None = None
    """Names of the calls to grade; None for all."""
    reserved: Decimal = Decimal(0)
    """Money reserved for the judge of one answer."""
    report_progress: Callable[[int, int], object] = lambda done, total: None
    """Receiver of the number of answers processed, and the total number."""

    def columns(self, row: Mapping[str, Any], question: Question, verdict: Any, grader: str | None) -> dict[str, Any]:
        """Return a row's columns for a verdict: the verdict, its grader, and the right answers if it is a label.

        Args:
            row: row of the answer.
            question: the question.
            verdict: the verdict, or None.
            grader: name of the grader.
        """
        reference = (list(question.reference) if self.into == "correct" else []) or row.get("reference")
        columns: dict[str, Any] = {"reference": reference, self.into: verdict}
        columns |= {grader_column(self.into): None if verdict is None else grader}
        return columns if self.reference_model is None else columns | {SAME_AS: self.reference_model}


async def grade_row(
    file: AnswerFile,
    row: Mapping[str, Any],
    question: Question,
    graders: GraderTable,
    budget: Budget,
    options: GradingOptions,
) -> GraderError | None:
    """Grade the answer of a row, and write the row again if the verdict or the cost changes the row.

    Args:
        file: answer file of the row, which journals calls under way.
        row: row to grade.
        question: question of the row.
        graders: graders of the run.
        budget: budget that pays for judges.
        options: options of grading.

    Returns:
        None; or an error if the grader cannot work any more, and the row has no verdict. Raises OSError.
    """
    name, graded = f"{row['call']}/judge", {**row}
    async with budget.expense(partial(file.begin, name, row["query"], row["model"]), options.reserved) as expense:
        if options.reserved:
            expense.note(options.reserved)
        token = _EXPENSE.set(expense)
        try:
            verdict = await _find_verdict(row, question, graders)
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
    """The outcome of grading an answer file again."""

    graded_by: Mapping[str, int]
    """Number of answers with a verdict, by grader."""
    changed: int
    """Number of answers whose verdict has changed."""
    without: int
    """Number of answers without a verdict."""
    problem: GraderError | None
    """Error that ended grading early; None if all answers were processed."""
    labelled: int = 0
    """Number of answers with both a verdict in a judge's column and a label."""
    agreement: float | None = None
    """Mean of 1 − |label − verdict| over these answers; None without any."""
    remarks: tuple[str, ...] = ()
    """Sentences about the verdicts."""

    @property
    def graded(self) -> int:
        """Number of answers with a verdict."""
        return sum(self.graded_by.values())


async def regrade(
    file: AnswerFile, questions: Mapping[str, Question], graders: GraderTable, budget: Budget, options: GradingOptions
) -> Regrading:
    """Grade the answers of a file; if a grader stops working, earlier verdicts are kept.

    Args:
        file: open answer file; each answer is written again as soon as it has a verdict.
        questions: questions by id, if their file is known; others are reconstructed from the rows.
        graders: graders of the answers.
        budget: budget that pays for judges.
        options: options of grading.

    Raises OSError if the file cannot be written, and GraderError for a kind of question without a grader.
    """
    problems: list[GraderError] = []
    rows = [row for row in file.answers.rows.values() if not has_failed(row)]
    if options.reference_model is not None:
        rows = [row for row in rows if row["model"] != options.reference_model and row["query"] in questions]
    if options.calls is not None:
        rows = [row for row in rows if row["call"] in options.calls]
    asked = {row["query"]: questions.get(row["query"]) or question_of(row) for row in rows}
    graders.require(asked.values())
    waiting = enumerate(rows)

    async def work() -> None:
        for number, row in waiting:
            if problems:
                return
            options.report_progress(number, len(rows))
            question = asked[row["query"]]
            verdict = row.get(options.into)
            is_current = row == {**row, **options.columns(row, question, verdict, graders.grader_name(question))}
            if verdict is None or not is_current or options.regrade:
                problem = await grade_row(file, row, question, graders, budget, options)
                problems.extend([] if problem is None else [problem])

    tasks = [asyncio.ensure_future(work()) for _ in range(_CONCURRENCY)]
    try:
        await asyncio.gather(*tasks)
    except BaseException as problem:  # an interrupt, or a full disk
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(problem, KeyboardInterrupt):  # the loop would raise the interrupt a second time
            raise asyncio.CancelledError from None
        raise
    file.rewrite_if_needed()
    graded = [file.answers.rows[row["call"]] for row in rows]
    return _summarise(rows, graded, options.into, next(iter(problems), None))


def questions_with_answers_of(
    answers: AnswerRows, questions: Mapping[str, Question], reference: str
) -> dict[str, Question]:
    """Return the questions that the reference model has answered, each with its answer as the right answer.

    A question that is not in `questions`, by id, is reconstructed from its rows.

    Raises LogError if the model has answered none.
    """
    replies = {row["query"]: row for (_, model, _), row in reversed([*answers.answered.items()]) if model == reference}
    if not replies:
        models = sorted({model for _, model, _ in answers.answered})
        raise LogError(
            f"no answer of {reference}, the reference{suggest_name(reference, models)}: it has {join_names(models)}"
        )
    texts = {query: row.get("text") or "" for query, row in replies.items()}
    return {
        query: replace(questions.get(query) or question_of(row), reference=(texts[query],), grade=None)
        for query, row in replies.items()
        if texts[query].strip()
    }


def _summarise(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], into: str, problem: GraderError | None
) -> Regrading:
    """Summarise the difference between the rows before and after grading."""
    both = [row for row in after if None not in (row.get(into), row.get("correct"))] if into != "correct" else []
    return Regrading(
        graded_by=Counter(row.get(grader_column(into)) or "hand" for row in after if row.get(into) is not None),
        changed=sum(old.get(into) != new.get(into) for old, new in zip(before, after, strict=True)),
        without=sum(row.get(into) is None for row in after),
        problem=problem,
        labelled=len(both),
        agreement=sum(1 - abs(row[into] - row["correct"]) for row in both) / len(both) if both else None,
        remarks=tuple(score_remarks(after, into)),
    )
