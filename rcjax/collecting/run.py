"""A run, which asks every model every question: concurrently, within the budget, and never twice.

`require_same_settings` refuses existing answers to another question, of another model, or with other request settings.
`Reservations` reserves the money for all answers to a question before the first model is asked. `summarise_run` gives
the results of a run as JSON values.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from rcjax._base.figures import count, describe_missing_confidences
from rcjax.collecting.answer_file import AnswerFile, AnswerRows
from rcjax.collecting.grading import GradingOptions, grade_row, score_remarks
from rcjax.collecting.plan import RunResources, estimate, judging_cost
from rcjax.collecting.questions import Question
from rcjax.collecting.respondent import CollectedModel, StoppedError, ask_question, max_costs
from rcjax.collecting.user_graders import UnpaidError
from rcjax.logs.errors import LogError, shorten
from rcjax.logs.oddities import summarise_models
from rcjax.serving.call_log import has_failed
from rcjax.serving.failures import NotCoveredError


@dataclass(frozen=True, slots=True)
class Reservation:
    """Money reserved for one answer: the largest costs of its call and its judge."""

    call: Decimal
    judge: Decimal

    @property
    def money(self) -> Decimal:
        """Money for the call and the judge."""
        return self.call + self.judge


class Reservations:
    """The money of a run, reserved question by question for all models with missing answers.

    If the budget ended between two models, the answers already paid would be useless to a log. If the budget does not
    cover a question, no later question is begun: the log would be biased towards short questions. Reservations are made
    in the order of the questions, so that no model holds money for a later question while an earlier question waits.

    Args:
        resources: budget of the run, and the models that judge answers.
        questions: questions of the run.
        waiting: (question, sample) of the missing answers of each model, in order.
    """

    def __init__(
        self,
        resources: RunResources,
        questions: Sequence[Question],
        waiting: Iterable[tuple[CollectedModel, Iterable[tuple[Question, int]]]],
    ) -> None:
        self.budget, self._judge_of, self._is_closed = resources.budget, resources.judge_of, False
        missing: dict[str, list[tuple[CollectedModel, Question, int]]] = {question.query: [] for question in questions}
        for collected, pairs in waiting:
            for question, number in pairs:
                missing[question.query].append((collected, question, number))
        self._missing = [*missing.values()]
        self._places = {query: place for place, query in enumerate(missing)}
        self._decided = [asyncio.Event() for _ in missing]  # by place: money is reserved, or refused
        self._last_claimed, self._claimed = -1, asyncio.Event()
        self._reserving: asyncio.Task[None] | None = None
        self._reserved: dict[str, dict[tuple[str, int], Reservation]] = {}  # by model

    async def claim(self, collected: CollectedModel, question: Question, number: int) -> Reservation:
        """Wait for the reservation of an answer and return it; the caller must spend or release the money.

        Raises StoppedError if the model is not asked any more, and NotCoveredError if the budget does not cover all
        answers to the question.
        """
        place = self._places[question.query]
        if self._reserving is None:
            self._reserving = asyncio.ensure_future(self._reserve_in_order())
        self._last_claimed = max(self._last_claimed, place)
        self._claimed.set()
        await self._decided[place].wait()
        reservation = self._reserved.get(collected.name, {}).pop((question.query, number), None)
        await self._release_if_stopped(collected, reservation)
        if reservation is None:
            raise NotCoveredError
        return reservation

    async def _release_if_stopped(self, collected: CollectedModel, reservation: Reservation | None) -> None:
        """Release a reservation and raise StoppedError if the model is not asked any more."""
        if collected.respondent.why_stopped is not None:
            await self.release(reservation)
            raise StoppedError(collected.respondent.why_stopped)

    async def raise_to_worst_case(
        self, reservation: Reservation, collected: CollectedModel, question: Question
    ) -> Reservation:
        """Raise a reservation to the worst cost as known now. Raises the errors of `claim`."""
        await self._release_if_stopped(collected, reservation)
        now = self._worst_case(collected, question)
        now = Reservation(max(now.call, reservation.call), max(now.judge, reservation.judge))
        if now.money <= reservation.money:
            return reservation
        try:
            self.budget.reserve_at_once(now.money - reservation.money)
        except NotCoveredError:
            await self.release(reservation)
            raise
        return now

    def reserve_again(self, collected: CollectedModel, question: Question) -> Reservation:
        """Reserve the money of an answer again. Raises NotCoveredError if the budget does not cover the answer."""
        reservation = self._worst_case(collected, question)
        self.budget.reserve_at_once(reservation.money)
        return reservation

    async def release(self, *reservations: Reservation | None) -> None:
        """Release reservations that are not needed."""
        await self.budget.release(sum((reservation.money for reservation in reservations if reservation), Decimal(0)))

    async def release_all_of(self, model: str) -> None:
        """Release the reservations of a model that is not asked any more."""
        await self.release(*self._reserved.pop(model, {}).values())

    async def close(self, reservation: Reservation) -> None:
        """Release a claimed reservation and all others, and reserve no more money."""
        self._is_closed = True
        for model in [*self._reserved]:
            await self.release_all_of(model)
        await self.release(reservation)

    async def end(self) -> None:
        """Stop reserving money. Raises an exception that ended the reserving task."""
        if self._reserving is not None:
            self._reserving.cancel()
            (problem,) = await asyncio.gather(self._reserving, return_exceptions=True)
            if isinstance(problem, Exception):
                raise problem

    async def _reserve_in_order(self) -> None:
        """Reserve money for one question after the other, up to the last question claimed."""
        try:
            for place, missing in enumerate(self._missing):
                while place > self._last_claimed:
                    self._claimed.clear()
                    await self._claimed.wait()
                if missing and not self._is_closed:
                    await self._reserve(missing)
                self._decided[place].set()
        finally:  # wake all waiting claims
            for decided in self._decided:
                decided.set()

    async def _reserve(self, missing: Sequence[tuple[CollectedModel, Question, int]]) -> None:
        reservations = [
            (collected, (question.query, number), self._worst_case(collected, question))
            for collected, question, number in missing
            if collected.respondent.why_stopped is None
        ]
        try:
            await self.budget.reserve(sum((reservation.money for *_, reservation in reservations), Decimal(0)))
        except NotCoveredError:
            self._is_closed = True
            return
        for collected, answer, reservation in reservations:
            if collected.respondent.why_stopped is None and not self._is_closed:
                self._reserved.setdefault(collected.name, {})[answer] = reservation
            else:  # stopped or closed meanwhile
                await self.release(reservation)

    def _worst_case(self, collected: CollectedModel, question: Question) -> Reservation:
        return Reservation(
            sum(max_costs(collected, question), Decimal(0)), judging_cost(collected, question, self._judge_of)
        )


def require_same_settings(
    models: Iterable[CollectedModel], questions: Sequence[Question], answers: AnswerRows, path: Path
) -> None:
    """Raise LogError if existing answers have another question, model or settings than the run; name the first answer.

    Args:
        models: models of the run with their request settings. For other models only the questions are compared.
        questions: questions of the run; answers to other questions are ignored.
        answers: existing answers; a value that a row lacks is not compared.
        path: path of the answer file.
    """
    digests = {question.query: {"question_digest": question.digest} for question in questions}
    settings = {collected.name: collected.record(questions[0]) for collected in models if questions}
    names = {collected.name: {"upstream_model": collected.respondent.settings.upstream_model} for collected in models}
    read_settings, differing = cache(json.loads), list[str]()
    for row in answers.answered.values():
        query, model = row["query"], row["model"]
        if query not in digests:
            continue
        before = _comparable_values(row, read_settings(row["request_settings"]))
        now = _comparable_values(names.get(model, {}) | digests[query], read_settings(settings.get(model, "{}")))
        changed = (name for name in before if None not in (before[name], now[name]) and before[name] != now[name])
        if (name := next(changed, None)) is not None:
            old, new = (repr(value) if value else "none" for value in (before[name], now[name]))
            place = f"{path.name}, model {shorten(model)}, query {shorten(query)}"
            change = f"its answers were asked for with the {name} {old}, not {new}"
            differing.append(f"{place}: {_REWORDED if name == _QUESTION else change}")
    if differing:
        advice = "another --out begins another log"
        raise LogError(f"{differing[0]}; {count(len(differing), 'answer')} differ so: {advice}")


_QUESTION = "question"
_REWORDED = "the question, its choices, the template or the system message has changed since it was asked"


def _comparable_values(row: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a row and its request settings that must not differ, by description; None if unknown."""
    return {
        "model at the endpoint": row.get("upstream_model"),
        _QUESTION: row.get("question_digest"),
        "signal": settings.get("signal"),
        "options": settings.get("options"),
        "other options of digest": None if settings.get("options") is None else settings.get("others", ""),
    }


def clear_stale_verdicts(file: AnswerFile, questions: Iterable[Question]) -> str | None:
    """Remove the verdicts on answers whose right answer has changed; return a sentence about these answers, or None.

    The run then grades these answers. A question without a right answer keeps its verdicts.
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
    old, new = (", ".join(map(str, texts)) or "none" for texts in (first["reference"], now[first["query"]].reference))
    example = f"query {shorten(first['query'])}: {shorten(old)} before, {shorten(new)} now"
    questions_changed = count(len({row["query"] for row in stale}), "question")
    graded = f"{count(len(stale), 'answer')} graded anew"
    return f"the right answer of {questions_changed} has changed ({example}): {graded}"


@dataclass(slots=True)
class Tally:
    """Numbers of a model's answers in a run, so far."""

    to_do: int = 0
    """Number of missing answers when the run began."""
    done: int = 0
    failed: int = 0
    error: str | None = None
    """Error of the last failed call."""
    why_stopped: str | None = None
    """Reason why the model is not asked any more in this run; None while it is asked."""

    @property
    def is_active(self) -> bool:
        """Whether calls of the model are left to make."""
        return self.why_stopped is None and self.done + self.failed < self.to_do


_MIN_ANSWERS = 20  # answers of each model from which the cost of the missing answers is forecast


class Run:
    """A run that asks models until each has answered each question.

    Args:
        questions: questions in the order in which they are asked.
        models: models with their request settings.
        file: answer file, to which each call is written at once.
        resources: budget that pays, and graders of the answers.
        concurrency: number of concurrent questions per model.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        models: Sequence[CollectedModel],
        file: AnswerFile,
        resources: RunResources,
        concurrency: int = 8,
    ) -> None:
        self.questions, self.models, self.file, self.concurrency = questions, models, file, concurrency
        self.budget, self.graders, self._judge_of = resources.budget, resources.graders, resources.judge_of
        self.forecast: float | None = None
        """Forecast of the total cost, earlier runs included; None until every model has enough answers."""
        self._next_forecast = _MIN_ANSWERS  # answers of each model
        are_numbered = any(row.get("sample") is not None for row in file.answers.rows.values())
        self._has_samples = are_numbered or any(collected.samples > 1 for collected in models)
        answered = {*file.answers.answered}
        self.interrupted = self.budget_spent = False
        self.grader_errors: dict[str, str] = {}  # errors of graders that cannot work any more, by name
        self._graded: set[str] = set()  # calls graded in this run
        self._unpaid: list[tuple[Mapping[str, Any], Question]] = []  # answers whose verdicts were not covered
        self._is_last_grading = False
        self._file_error: OSError | None = None
        self._waiting = {collected.name: collected.missing_answers(questions, answered) for collected in models}
        waiting = [(collected, self._waiting[collected.name]) for collected in models]
        self._reservations = Reservations(resources, questions, waiting)
        self.tallies = {name: Tally(len(missing)) for name, missing in self._waiting.items()}

    @property
    def _is_ending(self) -> bool:
        """Whether no more calls are begun."""
        return self.interrupted or self._file_error is not None

    def stop(self) -> None:
        """Begin no more calls; finish those under way."""
        self.interrupted = True

    async def ask_all(self) -> None:
        """Ask until every question is answered, the money is spent, or the run is stopped.

        Raises OSError if the file cannot be written any more, after the calls under way have ended.
        """
        if self._has_samples:
            self.file.number_samples()
        # A model's workers share an iterator.
        waiting = [(collected, iter(self._waiting[collected.name])) for collected in self.models]
        tasks = [asyncio.ensure_future(self._work(*pair)) for pair in waiting for _ in range(self.concurrency)]
        try:
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        finally:
            await self._reservations.end()
        if self._file_error is None:
            await self._grade_the_rest()
        if self._file_error is not None:
            raise self._file_error
        self.file.rewrite_if_needed()

    async def _work(self, collected: CollectedModel, waiting: Iterable[tuple[Question, int]]) -> None:
        tally = self.tallies[collected.name]
        for question, number in waiting:
            try:
                reservation = await self._reservations.claim(collected, question, number)
                if self._is_ending:
                    await self._reservations.close(reservation)  # other models may wait for this money
                    return
                reservation = await self._pay_verdicts_first(reservation, collected, question)
                async with collected.respondent.serialise_until_priced(self.budget):
                    reservation = await self._reservations.raise_to_worst_case(reservation, collected, question)
                    sample = number if self._has_samples else None
                    row = await ask_question(collected, question, self.file, self.budget, reservation.call, sample)
                    self.file.write(row)  # before anything else: the answer is paid for
            except StoppedError as reason:
                tally.why_stopped = str(reason)
                await self._reservations.release_all_of(collected.name)
                return
            except NotCoveredError:  # money may be reserved for later questions
                self.budget_spent = self.budget_spent or not self._is_ending
                continue
            except OSError as problem:  # `ask_question` has released the money of the call, but not of the judge
                self._file_error = self._file_error or problem
                await self._reservations.close(Reservation(Decimal(0), reservation.judge))
                return
            failed = has_failed(row)
            tally.done += not failed
            tally.failed += failed
            tally.error = row["error"] or tally.error
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # `ask_question` returns a row even then
                raise asyncio.CancelledError
            await self._grade(row, question, reservation.judge)
            self._update_forecast()

    async def _pay_verdicts_first(
        self, reservation: Reservation, collected: CollectedModel, question: Question
    ) -> Reservation:
        """Grade the answers whose verdicts were not covered earlier, before a model is asked for another answer.

        Returns the reservation of the other answer. Raises NotCoveredError if the budget does not cover all of it.
        """
        if not self._unpaid:
            return reservation
        await self._reservations.release(reservation)
        waiting, self._unpaid = self._unpaid, []
        for row, earlier in waiting:
            await self._grade(row, earlier)
        if self._unpaid:
            raise NotCoveredError
        return self._reservations.reserve_again(collected, question)

    def _update_forecast(self) -> None:
        """Forecast the total cost when each active model has twenty answers, and each time the number doubles."""
        active = [collected for collected in self.models if self.tallies[collected.name].is_active]
        fewest = min((self.tallies[collected.name].done for collected in active), default=0)
        if fewest >= self._next_forecast:
            self._next_forecast = 2 * fewest
            costs = (
                estimate(collected, self.questions, self.file.answers, self._judge_of).likely_cost
                for collected in active
            )
            self.forecast = float(self.budget.spent) + sum(costs)

    async def _grade(self, row: Mapping[str, Any], question: Question, reserved: Decimal = Decimal(0)) -> None:
        """Grade a row and write it again, unless it failed, has no grader, or was graded in this run.

        `reserved` is money reserved for its judge.
        """
        grader = self.graders.grader_name(question)
        if has_failed(row) or grader is None or grader in self.grader_errors or row["call"] in self._graded:
            await self.budget.release(reserved)
            return
        self._graded.add(row["call"])
        try:
            problem = await grade_row(
                self.file, row, question, self.graders, self.budget, GradingOptions(reserved=reserved)
            )
        except OSError as error:
            self._file_error = self._file_error or error
            return
        if isinstance(problem, UnpaidError) and not self._is_last_grading:
            self._graded.discard(row["call"])
            self._unpaid.append((row, question))
        elif problem is not None:
            self.grader_errors.setdefault(grader, str(problem))

    async def _grade_the_rest(self) -> None:
        """Grade all answers without a verdict, also answers of earlier runs."""
        self._is_last_grading = True
        questions = {question.query: question for question in self.questions}
        rows = [row for row in self.file.answers.answered.values() if row["correct"] is None]
        for row in rows:
            if self._is_ending:
                return
            if row["query"] in questions:
                await self._grade(row, questions[row["query"]])


_ASK_ANEW = (
    "answers without a confidence are not asked for again; to ask for them, take their lines out: "
    """grep -v '"has_no_confidence": true' LOG > NEW.jsonl, and go on with --out NEW.jsonl"""
)


def summarise_run(run: Run) -> dict[str, Any]:
    """Summarise a run in JSON values.

    - `models`, one record per model: `answers`, `graded`, `accuracy`, `separation`, `cost` (money per answer);
      `failed` and `left` (in this run); `samples` (answers per question).
    - Numbers: `answers`; `answered_by_all` (questions, with all samples); `ungraded`; `without_reference` (ungraded
      answers to questions without a right answer); `graded_by` (answers by grader).
    - `silent` (models without an answer), `stopped` (reasons by model), `notes` (sentences) and `out` (path).
    - `scored`, if some verdicts are scores: accuracy is then the mean score.
    """
    answered = run.file.answers.answered
    rows = [*answered.values()]
    samples = [(model.name, number) for model in run.models for number in range(1, model.samples + 1)]
    models = _models(rows, run)
    notes = score_remarks(rows)
    if unsure := [row for row in rows if row["logprob"] is None]:
        missing = describe_missing_confidences((row["model"], row["correct"]) for row in unsure)
        notes += [f"{missing}; the last one: {unsure[-1]['error']}", _ASK_ANEW]
    notes += [f"{collected.name}: {remark}" for collected in run.models for remark in collected.respondent.remarks]
    return {
        "models": models,
        "answers": len(rows),
        "ungraded": sum(row["correct"] is None for row in rows),
        "without_reference": sum(row["correct"] is None and not row.get("reference") for row in rows),
        "graded_by": dict(Counter(row["graded_by"] for row in rows if row["correct"] is not None)),
        "answered_by_all": sum(all((q.query, *sample) in answered for sample in samples) for q in run.questions),
        "silent": [row["model"] for row in models if not row["answers"]],
        "stopped": {name: tally.why_stopped for name, tally in run.tallies.items() if tally.why_stopped},
        "budget_spent": run.budget_spent,
        "interrupted": run.interrupted,
        "grading": next(iter(run.grader_errors.values()), None),
        "notes": notes,
        "out": str(run.file.path),
    } | ({"scored": True} if score_remarks(rows) else {})


def _models(rows: Sequence[Mapping[str, Any]], run: Run) -> list[dict[str, Any]]:
    """Return the records of the models for `summarise_run`."""
    import polars as pl

    numbers = ("correct", "logprob", "cost")
    columns = [
        {"query": row["query"], "model": row["model"]}
        | {name: None if row[name] is None else float(row[name]) for name in numbers}
        for row in rows
    ]
    frame = pl.DataFrame(columns, schema_overrides=dict.fromkeys(numbers, pl.Float64))
    figures = {row["model"]: row for row in summarise_models(frame)["models"]} if rows else {}
    unknown = {"answers": 0, "accuracy": None, "separation": None, "cost": None}
    return [
        {
            **unknown,
            "model": model.name,
            **figures.get(model.name, {}),
            "graded": sum(row["model"] == model.name and row["correct"] is not None for row in rows),
            "failed": tally.failed,
            "error": tally.error,
            "left": tally.to_do - tally.done,
            "samples": model.samples,
        }
        for model in run.models
        for tally in [run.tallies[model.name]]
    ]
