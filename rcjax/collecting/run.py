"""A run asks every model every question: concurrently, within the budget, never twice, and until it is stopped.

`require_same` refuses existing answers to another question, of another model, or with other request settings.
`collected` summarises a run. `Reservations` reserves the money for all answers to a question before the first model is
asked.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from rcjax._base.figures import count, not_likeliest
from rcjax.collecting.answer_file import AnswerFile, AnswerRows
from rcjax.collecting.graders import UnpaidError
from rcjax.collecting.grading import GradingOptions, grade_row, score_remarks
from rcjax.collecting.plan import RunResources, estimate, judging_cost
from rcjax.collecting.questions import Question
from rcjax.collecting.respondent import Budget, ModelSetup, NotCoveredError, Respondent, StoppedError, call, max_costs
from rcjax.logs.errors import LogError, brief
from rcjax.logs.oddities import describe_missing_confidences, summarise
from rcjax.serving.call_log import has_failed


@dataclass(frozen=True, slots=True)
class Reservation:
    """Money reserved for one answer: the largest costs of its call and its judge."""

    call: Decimal
    judge: Decimal

    @property
    def money(self) -> Decimal:
        """The whole money."""
        return self.call + self.judge


class Reservations:
    """The money of a run, reserved question by question for all models with missing answers.

    If a budget ended between two models, the answers already paid would be useless to a log. Once a question is not
    covered, later and shorter ones are not begun either: the log would be biased towards short questions. Reservations
    follow the order of the questions, so that models waiting for a later one do not hold the money of an earlier one.

    Args:
        budget: budget of the run.
        questions: questions of the run.
        waiting: (question, sample) of the missing answers of each model, in order.
        judge_of: returns the model that judges answers to a question, or None.
    """

    def __init__(
        self,
        budget: Budget,
        questions: Sequence[Question],
        waiting: Iterable[tuple[ModelSetup, Iterable[tuple[Question, int]]]],
        judge_of: Callable[[Question], Respondent | None],
    ) -> None:
        self.budget, self._judge_of, self._spent = budget, judge_of, False
        missing: dict[str, list[tuple[ModelSetup, Question, int]]] = {question.query: [] for question in questions}
        for setup, pairs in waiting:
            for question, number in pairs:
                missing[question.query].append((setup, question, number))
        self._missing = [*missing.values()]
        self._places = {query: place for place, query in enumerate(missing)}
        self._decided = [asyncio.Event() for _ in missing]
        self._wanted, self._wish = -1, asyncio.Event()
        self._deciding: asyncio.Task[None] | None = None
        self._reserved: dict[str, dict[tuple[str, int], Reservation]] = {}  # by model

    async def claim(self, setup: ModelSetup, question: Question, number: int) -> Reservation:
        """Wait for the reservation of an answer and return it; the caller spends or releases it.

        Raises StoppedError for a model that is not asked any more, and NotCoveredError if the budget does not cover all
        answers to the question.
        """
        place = self._places[question.query]
        if self._deciding is None:
            self._deciding = asyncio.ensure_future(self._decide())
        self._wanted = max(self._wanted, place)
        self._wish.set()
        await self._decided[place].wait()
        reservation = self._reserved.get(setup.name, {}).pop((question.query, number), None)
        if setup.respondent.stopped is not None:
            await self.release(reservation)
            raise StoppedError(setup.respondent.stopped)
        if reservation is None:
            raise NotCoveredError
        return reservation

    async def raise_to_worst_case(self, reservation: Reservation, setup: ModelSetup, question: Question) -> Reservation:
        """Raise a reservation to the worst cost as known now. Raises as `claim` does."""
        if setup.respondent.stopped is not None:
            await self.release(reservation)
            raise StoppedError(setup.respondent.stopped)
        now = self._worst_case(setup, question)
        now = Reservation(max(now.call, reservation.call), max(now.judge, reservation.judge))
        more = now.money - reservation.money
        if more <= 0:
            return reservation
        if not self.budget.covers(more):
            await self.release(reservation)
            raise NotCoveredError
        self.budget.reserved += more
        return now

    def reserve_again(self, setup: ModelSetup, question: Question) -> Reservation:
        """Reserve the money of an answer again after it was released. Raises NotCoveredError."""
        reservation = self._worst_case(setup, question)
        if not self.budget.covers(reservation.money):
            raise NotCoveredError
        self.budget.reserved += reservation.money
        return reservation

    async def release(self, *reservations: Reservation | None) -> None:
        """Release reservations that are not needed."""
        await self.budget.release(sum((reservation.money for reservation in reservations if reservation), Decimal(0)))

    async def release_all_of(self, model: str) -> None:
        """Release the reservations of a model that is not asked any more."""
        await self.release(*self._reserved.pop(model, {}).values())

    async def close(self, *reservations: Reservation) -> None:
        """Release these reservations and all others, and reserve no more."""
        self._spent = True
        for model in [*self._reserved]:
            await self.release_all_of(model)
        await self.release(*reservations)

    async def end(self) -> None:
        """Stop reserving money; re-raise an error of the reservations."""
        if self._deciding is not None:
            self._deciding.cancel()
            (problem,) = await asyncio.gather(self._deciding, return_exceptions=True)
            if isinstance(problem, Exception):
                raise problem

    async def _decide(self) -> None:
        """Reserve money for one question after the other, up to the last one wanted."""
        try:
            for place, missing in enumerate(self._missing):
                while place > self._wanted:
                    self._wish.clear()
                    await self._wish.wait()
                if missing and not self._spent:
                    await self._reserve(missing)
                self._decided[place].set()
        finally:  # wake all who wait
            for decided in self._decided:
                decided.set()

    async def _reserve(self, missing: Sequence[tuple[ModelSetup, Question, int]]) -> None:
        reservations = [
            (setup, (question.query, number), self._worst_case(setup, question))
            for setup, question, number in missing
            if setup.respondent.stopped is None
        ]
        try:
            await self.budget.reserve(sum((reservation.money for *_, reservation in reservations), Decimal(0)))
        except NotCoveredError:
            self._spent = True
            return
        for setup, which, reservation in reservations:
            if setup.respondent.stopped is None and not self._spent:
                self._reserved.setdefault(setup.name, {})[which] = reservation
            else:  # stopped meanwhile
                await self.release(reservation)

    def _worst_case(self, setup: ModelSetup, question: Question) -> Reservation:
        return Reservation(sum(max_costs(setup, question), Decimal(0)), judging_cost(setup, question, self._judge_of))


def require_same(models: Iterable[ModelSetup], questions: Sequence[Question], answers: AnswerRows, path: Path) -> None:
    """Raise LogError if existing answers have another question, model or settings than the run; name the first.

    Args:
        models: models of the run with their request settings. For other models only the questions are compared.
        questions: questions of the run; answers to others are ignored.
        answers: existing answers; a value that a row lacks is not compared.
        path: path of the answer file.
    """
    put = {question.query: {"question_digest": question.digest} for question in questions}
    settings = {setup.name: setup.record(questions[0]) for setup in models if questions}
    names = {setup.name: {"endpoint_name": setup.respondent.settings.endpoint_name} for setup in models}
    record, differing = cache(json.loads), list[str]()
    for row in answers.answered.values():
        query, model = row["query"], row["model"]
        if query not in put:
            continue
        then = _comparable(row, record(row["request_settings"]))
        now = _comparable(names.get(model, {}) | put[query], record(settings.get(model, "{}")))
        others = (what for what in then if None not in (then[what], now[what]) and then[what] != now[what])
        if (what := next(others, None)) is not None:
            was, here = (repr(value) if value else "none" for value in (then[what], now[what]))
            where = f"{path.name}, model {brief(model)}, query {brief(query)}"
            differing.append(f"{where}: its answers were asked for with the {what} {was}, not {here}")
    if differing:
        advice = "another --out begins another log"
        raise LogError(f"{differing[0]}; {count(len(differing), 'answer')} differ so: {advice}")


def _comparable(row: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a row and its request settings that must not differ, by description; None if unknown."""
    return {
        "model at the endpoint": row.get("endpoint_name"),
        "question (its choices, template and system message included) of digest": row.get("question_digest"),
        "signal": record.get("signal"),
        "options": record.get("options"),
        "other options of digest": None if record.get("options") is None else record.get("others", ""),
    }


def grade_anew(file: AnswerFile, questions: Iterable[Question]) -> str | None:
    """Remove the verdicts on answers whose right answer has changed; return a sentence about them, or None.

    Args:
        file: answer file; the rows are written without a verdict, and the run grades them.
        questions: questions of the run; a question without a right answer leaves its verdicts unchanged.
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


@dataclass(slots=True)
class Tally:
    """Progress of one model."""

    to_do: int = 0
    """Number of missing answers when the run began."""
    samples: int = 1
    """Number of answers to each question."""
    done: int = 0
    failed: int = 0
    error: str | None = None
    """Last failure."""
    stopped: str | None = None
    """Reason why the model is not asked any more in this run."""

    @property
    def goes_on(self) -> bool:
        """Whether the model is still to be asked."""
        return self.stopped is None and self.done + self.failed < self.to_do


_ENOUGH = 20  # answers of each model from which the cost of the others is forecast


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
        models: Sequence[ModelSetup],
        file: AnswerFile,
        resources: RunResources,
        concurrency: int = 8,
    ) -> None:
        self.questions, self.models, self.file, self.concurrency = questions, models, file, concurrency
        self.budget, self.graders, self._judge_of = resources.budget, resources.graders, resources.judge_of
        self.forecast: float | None = None
        """Forecast of the total cost, earlier runs included; None until every model has enough answers."""
        self._enough = _ENOUGH
        self.tallies: dict[str, Tally] = {}
        self._has_samples = file.answers.has_samples or any(setup.samples > 1 for setup in models)
        answered = {*file.answers.answered}
        self.interrupted = self.budget_spent = False
        self._grading: dict[str, str] = {}  # errors of graders that cannot work any more, by name
        self._judged: set[str] = set()
        self._unpaid: list[tuple[Mapping[str, Any], Question]] = []  # answers whose verdicts were not covered
        self._ends = False
        self._problem: OSError | None = None
        self._waiting = {setup.name: setup.waiting(questions, answered) for setup in models}
        self._reservations = Reservations(
            resources.budget, questions, [(setup, self._waiting[setup.name]) for setup in models], resources.judge_of
        )
        for setup in models:
            self.tallies[setup.name] = Tally(len(self._waiting[setup.name]), setup.samples)

    @property
    def grading(self) -> str | None:
        """Error of a grader that cannot work any more; None without one."""
        return next(iter(self._grading.values()), None)

    @property
    def _is_ending(self) -> bool:
        """Whether no more calls are begun."""
        return self.interrupted or self._problem is not None

    def stop(self) -> None:
        """Begin no more calls; finish those under way."""
        self.interrupted = True

    async def go(self) -> None:
        """Ask until every question is answered, the money is spent, or the run is stopped.

        Raises OSError if the file cannot be written any more, after the calls under way have ended.
        """
        if self._has_samples:
            self.file.number()
        tasks = [task for setup in self.models for task in self._workers(setup)]
        try:
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        finally:
            await self._reservations.end()
        if self._problem is None:
            await self._grade_the_rest()
        if self._problem is not None:
            raise self._problem
        self.file.tidy()

    def _workers(self, setup: ModelSetup) -> list[asyncio.Task[None]]:
        waiting = iter(self._waiting[setup.name])
        return [asyncio.ensure_future(self._work(setup, waiting)) for _ in range(self.concurrency)]

    async def _work(self, setup: ModelSetup, waiting: Iterable[tuple[Question, int]]) -> None:
        tally = self.tallies[setup.name]
        for question, number in waiting:
            try:
                reservation = await self._reservations.claim(setup, question, number)
                if self._is_ending:
                    await self._reservations.close(reservation)  # others may wait for it
                    return
                reservation = await self._verdicts_first(reservation, setup, question)
                async with setup.respondent.serialise_until_priced(self.budget):
                    reservation = await self._reservations.raise_to_worst_case(reservation, setup, question)
                    sample = number if self._has_samples else None
                    row = await call(setup, question, self.file, self.budget, reservation.call, sample)
                    self.file.write(row)  # first of all: the answer is paid for
            except StoppedError as why:
                tally.stopped = str(why)
                await self._reservations.release_all_of(setup.name)
                return
            except NotCoveredError:  # money may be reserved for later questions
                self.budget_spent = self.budget_spent or not self._is_ending
                continue
            except OSError as problem:  # the call's money is free again, its verdict's is not: others may wait for it
                self._problem = self._problem or problem
                await self._reservations.close(Reservation(Decimal(0), reservation.judge))
                return
            self._count(tally, row)
            if _is_cancelled():
                raise asyncio.CancelledError
            await self._grade(row, question, reservation.judge)
            self._look_ahead()

    async def _verdicts_first(self, reservation: Reservation, setup: ModelSetup, question: Question) -> Reservation:
        """Pay for verdicts that were not covered earlier, before another answer begins.

        Returns the reservation of that answer. Raises NotCoveredError if the budget does not cover both.
        """
        if not self._unpaid:
            return reservation
        await self._reservations.release(reservation)
        waiting, self._unpaid = self._unpaid, []
        for row, earlier in waiting:
            await self._grade(row, earlier)
        if self._unpaid:
            raise NotCoveredError
        return self._reservations.reserve_again(setup, question)

    def _count(self, tally: Tally, row: Mapping[str, Any]) -> None:
        failed = has_failed(row)
        tally.done += not failed
        tally.failed += failed
        tally.error = row["error"] or tally.error

    def _look_ahead(self) -> None:
        """Forecast the total cost from the answers so far: at twenty of each model, and each time they double."""
        left = [one for one in self.models if self.tallies[one.name].goes_on]
        fewest = min((self.tallies[one.name].done for one in left), default=0)
        if fewest >= self._enough:
            self._enough = 2 * fewest
            costs = (estimate(one, self.questions, self.file.answers, self._judge_of).likely_cost for one in left)
            self.forecast = float(self.budget.spent) + sum(costs)

    async def _grade(self, row: Mapping[str, Any], question: Question, reserved: Decimal = Decimal(0)) -> None:
        """Grade a row and write it again, unless it failed, has no grader, or was graded in this run.

        `reserved` is money reserved for its judge.
        """
        grader = self.graders.named(question)
        if has_failed(row) or grader is None or grader in self._grading or row["call"] in self._judged:
            await self.budget.release(reserved)
            return
        self._judged.add(row["call"])
        try:
            problem = await grade_row(
                self.file, row, question, self.graders, self.budget, GradingOptions(reserved=reserved)
            )
        except OSError as full:
            self._problem = self._problem or full
            return
        if isinstance(problem, UnpaidError) and not self._ends:
            self._judged.discard(row["call"])
            self._unpaid.append((row, question))
        elif problem is not None:
            self._grading.setdefault(grader, str(problem))

    async def _grade_the_rest(self) -> None:
        """Grade the answers without a verdict, those of earlier runs included."""
        self._ends = True
        questions = {question.query: question for question in self.questions}
        rows = [row for row in self.file.answers.answered.values() if row["correct"] is None]
        for row in rows:
            if self._is_ending:
                return
            if row["query"] in questions:
                await self._grade(row, questions[row["query"]])


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


_ASK_ANEW = (
    "answers without a confidence are not asked for again; to do so, take their lines out: "
    """grep -v '"has_no_confidence": true' LOG > NEW.jsonl, and go on with --out NEW.jsonl"""
)


def collected(run: Run) -> dict[str, Any]:
    """Summarise a run in JSON values.

    - `models`, one record per model: `answers`, `graded`, `accuracy`, `separation`, `cost` (money per answer);
      `failed` and `left` (in this run); `samples` (answers per question); `not_likeliest` (number of answers with
      another choice than the likeliest one).
    - Numbers: `answers`; `answered_by_all` (questions, with all samples); `ungraded`; `without_reference` (ungraded
      answers to questions without a right answer); `graded_by` (answers by grader).
    - `silent` (models without an answer), `stopped` (reasons by model), `notes` (sentences) and `out` (path).
    - `scored`, if some verdicts are scores: accuracy is then the mean score.
    """
    answered = run.file.answers.answered
    rows = [*answered.values()]
    wanted = [(name, number) for name, one in run.tallies.items() for number in range(1, one.samples + 1)]
    models = _models(rows, run.tallies)
    twisted = [
        not_likeliest(one["model"], one["not_likeliest"], one["answers"]) for one in models if one["not_likeliest"]
    ]
    without = [row for row in rows if row["logprob"] is None]
    unsure = (
        [f"{describe_missing_confidences(without)}; the last one: {without[-1]['error']}", _ASK_ANEW] if without else []
    )
    money = [f"{one.name}: {remark}" for one in run.models for remark in one.respondent.remarks]
    return {
        "models": models,
        "answers": len(rows),
        "ungraded": sum(row["correct"] is None for row in rows),
        "without_reference": sum(row["correct"] is None and not row.get("reference") for row in rows),
        "graded_by": dict(Counter(row["graded_by"] for row in rows if row["correct"] is not None)),
        "answered_by_all": sum(all((q.query, *one) in answered for one in wanted) for q in run.questions),
        "silent": [one["model"] for one in models if not one["answers"]],
        "stopped": {name: tally.stopped for name, tally in run.tallies.items() if tally.stopped},
        "budget_spent": run.budget_spent,
        "interrupted": run.interrupted,
        "grading": run.grading,
        "notes": [*score_remarks(rows), *twisted, *unsure, *money],
        "out": str(run.file.path),
    } | ({"scored": True} if score_remarks(rows) else {})


def _models(rows: Sequence[Mapping[str, Any]], tallies: Mapping[str, Tally]) -> list[dict[str, Any]]:
    """Return the records of the models for `collected`."""
    import polars as pl

    numbers = ("correct", "logprob", "cost")
    columns = [
        {"query": row["query"], "model": row["model"]}
        | {name: None if row[name] is None else float(row[name]) for name in numbers}
        for row in rows
    ]
    frame = pl.DataFrame(columns, schema_overrides=dict.fromkeys(numbers, pl.Float64))
    figures = {one["model"]: one for one in summarise(frame)["models"]} if rows else {}
    unknown = {"answers": 0, "accuracy": None, "separation": None, "cost": None}
    return [
        {
            **unknown,
            "model": name,
            **figures.get(name, {}),
            "graded": sum(row["model"] == name and row["correct"] is not None for row in rows),
            "failed": tally.failed,
            "error": tally.error,
            "left": tally.to_do - tally.done,
            "samples": tally.samples,
            "not_likeliest": sum(row["model"] == name and row.get("likeliest") is not None for row in rows),
        }
        for name, tally in tallies.items()
    ]
