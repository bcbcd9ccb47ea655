"""The run that asks every model every question: side by side, within the budget, never twice, and to be stopped.

Answers that are there to something else than is asked now, another question, another model, in another way, are refused
before (`require_same`). `collected` sums up what a run has brought, and what is still to do.

Money for all answers to a question, put aside before the first model is asked it.
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

from rcjax._base.wording import count, not_likeliest
from rcjax.collecting.answer_file import AnswerFile, AnswerRows
from rcjax.collecting.calls import Asked, call, estimate, judging_cost, worst_of
from rcjax.collecting.grader import UnpaidError
from rcjax.collecting.grading import Manner, grade_row, score_remarks
from rcjax.collecting.plan import Setup
from rcjax.collecting.questions import Question
from rcjax.collecting.respondent import Budget, NotCoveredError, Respondent, StoppedError
from rcjax.logs.errors import LogError, brief
from rcjax.logs.oddities import summarise, tell_unread
from rcjax.serving.call_log import has_failed


@dataclass(frozen=True, slots=True)
class Share:
    """Money put aside for one answer, at the worst."""

    call: Decimal
    judge: Decimal


class Reservations:
    """The money of a run, put aside question by question for all models that are still to answer it.

    A budget that ends between two models would have paid for answers that no log can use. Once a question is not
    covered, later and shorter ones are not begun either: the log would hold the short ones alone. Money goes to the
    questions in their order: models that wait for a later one would else hold what an earlier one needs.

    Args:
        budget: The budget of the run.
        questions: The questions of the run.
        waiting: For each model, the (question, sample) pairs that it is still to answer, in this order.
        judge_of: The model that judges answers to a question; None if none does.
    """

    def __init__(
        self,
        budget: Budget,
        questions: Sequence[Question],
        waiting: Iterable[tuple[Asked, Iterable[tuple[Question, int]]]],
        judge_of: Callable[[Question], Respondent | None],
    ) -> None:
        self.budget, self._judge_of, self._spent = budget, judge_of, False
        missing: dict[str, list[tuple[Asked, Question, int]]] = {question.query: [] for question in questions}
        for asked, pairs in waiting:
            for question, number in pairs:
                missing[question.query].append((asked, question, number))
        self._missing = [*missing.values()]
        self._places = {query: place for place, query in enumerate(missing)}
        self._decided = [asyncio.Event() for _ in missing]
        self._wanted, self._wish = -1, asyncio.Event()
        self._deciding: asyncio.Task[None] | None = None
        self._shares: dict[str, dict[tuple[str, int], Share]] = {}  # by model

    async def take(self, asked: Asked, question: Question, number: int) -> Share:
        """Return the share of one answer, which the caller spends or frees.

        Raises StoppedError for a model that is not asked any more, and NotCoveredError where the budget does not cover
        all answers to the question.
        """
        place = self._places[question.query]
        if self._deciding is None:
            self._deciding = asyncio.ensure_future(self._decide())
        self._wanted = max(self._wanted, place)
        self._wish.set()
        await self._decided[place].wait()
        share = self._shares.get(asked.name, {}).pop((question.query, number), None)
        if asked.respondent.stopped is not None:
            await self.free(share)
            raise StoppedError(asked.respondent.stopped)
        if share is None:
            raise NotCoveredError
        return share

    async def renew(self, share: Share, asked: Asked, question: Question) -> Share:
        """Return the share by what is known of the bills of model and judge by now. Raises as `take` does."""
        if asked.respondent.stopped is not None:
            await self.free(share)
            raise StoppedError(asked.respondent.stopped)
        now = self._share(asked, question)
        now = Share(max(now.call, share.call), max(now.judge, share.judge))
        more = now.call + now.judge - share.call - share.judge
        if more <= 0:
            return share
        if not self.budget.covers(more):
            await self.free(share)
            raise NotCoveredError
        self.budget.reserved += more
        return now

    def retake(self, asked: Asked, question: Question) -> Share:
        """Put the share of one answer aside again, which was freed for others. Raises NotCoveredError."""
        share = self._share(asked, question)
        if not self.budget.covers(share.call + share.judge):
            raise NotCoveredError
        self.budget.reserved += share.call + share.judge
        return share

    async def free(self, *shares: Share | None) -> None:
        """Let others have money that is not needed."""
        await self.budget.free(sum((share.call + share.judge for share in shares if share), Decimal(0)))

    async def free_all_of(self, model: str) -> None:
        """Let others have the money of a model that is not asked any more."""
        await self.free(*self._shares.pop(model, {}).values())

    async def close(self, *shares: Share) -> None:
        """Free these shares and all that are put aside, and put nothing aside any more."""
        self._spent = True
        for model in [*self._shares]:
            await self.free_all_of(model)
        await self.free(*shares)

    async def end(self) -> None:
        """End what waits for money. Raises what went wrong there."""
        if self._deciding is not None:
            self._deciding.cancel()
            (problem,) = await asyncio.gather(self._deciding, return_exceptions=True)
            if isinstance(problem, Exception):
                raise problem

    async def _decide(self) -> None:
        """Put money aside for one question after the other, as far as somebody wants one."""
        try:
            for place, missing in enumerate(self._missing):
                while place > self._wanted:
                    self._wish.clear()
                    await self._wish.wait()
                if missing and not self._spent:
                    await self._put_aside(missing)
                self._decided[place].set()
        finally:  # nobody waits for what does not come
            for decided in self._decided:
                decided.set()

    async def _put_aside(self, missing: Sequence[tuple[Asked, Question, int]]) -> None:
        shares = [
            (asked, (question.query, number), self._share(asked, question))
            for asked, question, number in missing
            if asked.respondent.stopped is None
        ]
        try:
            await self.budget.put_aside(sum((share.call + share.judge for *_, share in shares), Decimal(0)))
        except NotCoveredError:
            self._spent = True
            return
        for asked, which, share in shares:
            if asked.respondent.stopped is None and not self._spent:
                self._shares.setdefault(asked.name, {})[which] = share
            else:  # meanwhile
                await self.free(share)

    def _share(self, asked: Asked, question: Question) -> Share:
        return Share(sum(worst_of(asked, question), Decimal(0)), judging_cost(asked, question, self._judge_of))


def require_same(models: Iterable[Asked], questions: Sequence[Question], answers: AnswerRows, path: Path) -> None:
    """Raise LogError where answers that are there are to something else than is asked now: both sides of the first.

    Args:
        models: of the run, and how each is asked; what others were asked is compared too, not how.
        questions: of the run; answers to others are left alone.
        answers: that there are. A row that does not tell something is taken to be right in it.
        path: of their file.
    """
    put = {question.query: {"question_digest": question.digest} for question in questions}
    ways = {asked.name: asked.record(questions[0]) for asked in models if questions}
    served = {asked.name: {"served": asked.respondent.settings.served} for asked in models}
    record, differing = cache(json.loads), list[str]()
    for row in answers.answered.values():
        query, model = row["query"], row["model"]
        if query not in put:
            continue
        then = _told(row, record(row["asked"]))
        now = _told(served.get(model, {}) | put[query], record(ways.get(model, "{}")))
        others = (what for what in then if None not in (then[what], now[what]) and then[what] != now[what])
        if (what := next(others, None)) is not None:
            was, here = (repr(value) if value else "none" for value in (then[what], now[what]))
            where = f"{path.name}, model {brief(model)}, query {brief(query)}"
            differing.append(f"{where}: its answers were asked for with the {what} {was}, not {here}")
    if differing:
        advice = "another --out begins another log"
        raise LogError(f"{differing[0]}; {count(len(differing), 'answer')} differ so: {advice}")


def _told(row: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """What a row says of who was asked what, and a record of how, in words; None for what is not told."""
    return {
        "served model": row.get("served"),
        "question (its choices, template and system message included) of digest": row.get("question_digest"),
        "signal": record.get("signal"),
        "options": record.get("options"),
        "other options of digest": None if record.get("options") is None else record.get("others", ""),
    }


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


@dataclass(slots=True)
class Tally:
    """How far one model is."""

    to_do: int = 0
    """Answers that it had not given yet, when the run began."""
    samples: int = 1
    """Answers to each question."""
    done: int = 0
    failed: int = 0
    error: str | None = None
    """The last failure."""
    stopped: str | None = None
    """Why it is not asked any more in this run."""

    @property
    def goes_on(self) -> bool:
        """Whether there are answers that it is still to give."""
        return self.stopped is None and self.done + self.failed < self.to_do


_ENOUGH = 20  # answers of each model, that tell what the others cost


class Run:
    """Puts questions to models until each has answered each.

    Args:
        questions: in the order in which they are put.
        models: and how each is asked.
        file: where each call is written, at once.
        setup: the budget that pays, and the graders that judge each answer.
        concurrency: how many questions a model is put at once.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        models: Sequence[Asked],
        file: AnswerFile,
        setup: Setup,
        concurrency: int = 8,
    ) -> None:
        self.questions, self.models, self.file, self.concurrency = questions, models, file, concurrency
        self.budget, self.graders, self._judge_of = setup.budget, setup.graders, setup.judge_of
        self.forecast: float | None = None
        """Money that it will have cost in all, earlier runs included; None before there are answers enough to tell."""
        self._enough = _ENOUGH
        self.tallies: dict[str, Tally] = {}
        self._numbered = file.answers.numbered or any(asked.samples > 1 for asked in models)
        answered = {*file.answers.answered}
        self.interrupted = self.budget_spent = False
        self._grading: dict[str, str] = {}  # by the name of a grader, why it cannot work any more
        self._judged: set[str] = set()
        self._unpaid: list[tuple[Mapping[str, Any], Question]] = []  # answers whose verdicts were too dear
        self._ends = False
        self._problem: OSError | None = None
        self._waiting = {asked.name: asked.waiting(questions, answered) for asked in models}
        self._reservations = Reservations(
            setup.budget, questions, [(asked, self._waiting[asked.name]) for asked in models], setup.judge_of
        )
        for asked in models:
            self.tallies[asked.name] = Tally(len(self._waiting[asked.name]), asked.samples)

    @property
    def grading(self) -> str | None:
        """Why answers could not be graded."""
        return next(iter(self._grading.values()), None)

    @property
    def _is_ending(self) -> bool:
        """Whether no call is begun any more."""
        return self.interrupted or self._problem is not None

    def stop(self) -> None:
        """Begin no call any more; those under way are finished."""
        self.interrupted = True

    async def go(self) -> None:
        """Ask, until all is answered, the money is spent, or somebody stops the run.

        Raises OSError where the file cannot be written any more: what was under way is finished before, and written
        as far as the disk allows.
        """
        if self._numbered:
            self.file.number()
        tasks = [task for asked in self.models for task in self._workers(asked)]
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

    def _workers(self, asked: Asked) -> list[asyncio.Task[None]]:
        waiting = iter(self._waiting[asked.name])
        return [asyncio.ensure_future(self._work(asked, waiting)) for _ in range(self.concurrency)]

    async def _work(self, asked: Asked, waiting: Iterable[tuple[Question, int]]) -> None:
        tally = self.tallies[asked.name]
        for question, number in waiting:
            try:
                share = await self._reservations.take(asked, question, number)
                if self._is_ending:
                    await self._reservations.close(share)  # others may wait for it
                    return
                share = await self._verdicts_first(share, asked, question)
                async with asked.respondent.one_at_first(self.budget):
                    share = await self._reservations.renew(share, asked, question)
                    sample = number if self._numbered else None
                    row = await call(asked, question, self.file, self.budget, share.call, sample)
                    self.file.write(row)  # before anything else can go wrong with what is paid for
            except StoppedError as why:
                tally.stopped = str(why)
                await self._reservations.free_all_of(asked.name)
                return
            except NotCoveredError:  # there may be money aside for later questions
                self.budget_spent = self.budget_spent or not self._is_ending
                continue
            except OSError as problem:
                self._problem = self._problem or problem
                return
            self._count(tally, row)
            if _is_cancelled():
                raise asyncio.CancelledError
            await self._grade(row, question, share.judge)
            self._look_ahead()

    async def _verdicts_first(self, share: Share, asked: Asked, question: Question) -> Share:
        """Pay for verdicts that were too dear when their answers came, before another answer begins.

        Returns the share of that answer. Raises NotCoveredError where there is not enough for both.
        """
        if not self._unpaid:
            return share
        await self._reservations.free(share)
        waiting, self._unpaid = self._unpaid, []
        for row, earlier in waiting:
            await self._grade(row, earlier)
        if self._unpaid:
            raise NotCoveredError
        return self._reservations.retake(asked, question)

    def _count(self, tally: Tally, row: Mapping[str, Any]) -> None:
        failed = has_failed(row)
        tally.done += not failed
        tally.failed += failed
        tally.error = row["error"] or tally.error

    def _look_ahead(self) -> None:
        """Tell what it costs in all by its own answers: from twenty of each model on, and anew as they double."""
        left = [one for one in self.models if self.tallies[one.name].goes_on]
        least = min((self.tallies[one.name].done for one in left), default=0)
        if least >= self._enough:
            self._enough = 2 * least
            costs = (estimate(one, self.questions, self.file.answers, self._judge_of).likely_cost for one in left)
            self.forecast = float(self.budget.spent) + sum(costs)

    async def _grade(self, row: Mapping[str, Any], question: Question, aside: Decimal = Decimal(0)) -> None:
        """Write the row again with its verdict, where something can tell; no answer is graded twice in a run.

        `aside` is money that was put aside for its judge.
        """
        grader = self.graders.named(question)
        if has_failed(row) or grader is None or grader in self._grading or row["call"] in self._judged:
            await self.budget.free(aside)
            return
        self._judged.add(row["call"])
        try:
            problem = await grade_row(self.file, row, question, self.graders, self.budget, Manner(aside=aside))
        except OSError as full:
            self._problem = self._problem or full
            return
        if isinstance(problem, UnpaidError) and not self._ends:
            self._judged.discard(row["call"])
            self._unpaid.append((row, question))
        elif problem is not None:
            self._grading.setdefault(grader, str(problem))

    async def _grade_the_rest(self) -> None:
        """Judge the answers, of earlier runs too, that have no verdict yet."""
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
    """grep -v '"unread": true' LOG > NEW.jsonl, and go on with --out NEW.jsonl"""
)


def collected(run: Run) -> dict[str, Any]:
    """The end of a run in JSON values.

    Of each model: `answers`, `graded`, `accuracy`, `separation`, `cost` (money per answer), `failed` and `left` (in
    this run), `samples` (answers asked for, to each question), `not_likeliest` (answers that give another choice than
    the one that the model held likeliest); then `answered_by_all` (questions, with all samples), `answers`,
    `ungraded`, `without_reference` (of these, to questions without a right answer), `graded_by` (answers by grader),
    `silent` (models without any answer), `stopped` (why a model is not asked any more), `notes` (remarks, in words),
    and `out`. Where some answers have scores, `scored` says so, and accuracy is the mean score.
    """
    answered = run.file.answers.answered
    rows = [*answered.values()]
    asked = [(name, number) for name, one in run.tallies.items() for number in range(1, one.samples + 1)]
    models = _models(rows, run.tallies)
    twisted = [
        not_likeliest(one["model"], one["not_likeliest"], one["answers"]) for one in models if one["not_likeliest"]
    ]
    without = [row for row in rows if row["logprob"] is None]
    unread = [f"{tell_unread(without)}; the last one: {without[-1]['error']}", _ASK_ANEW] if without else []
    money = [f"{one.name}: {remark}" for one in run.models for remark in one.respondent.remarks]
    return {
        "models": models,
        "answers": len(rows),
        "ungraded": sum(row["correct"] is None for row in rows),
        "without_reference": sum(row["correct"] is None and not row.get("reference") for row in rows),
        "graded_by": dict(Counter(row["graded_by"] for row in rows if row["correct"] is not None)),
        "answered_by_all": sum(all((q.query, *one) in answered for one in asked) for q in run.questions),
        "silent": [one["model"] for one in models if not one["answers"]],
        "stopped": {name: tally.stopped for name, tally in run.tallies.items() if tally.stopped},
        "budget_spent": run.budget_spent,
        "interrupted": run.interrupted,
        "grading": run.grading,
        "notes": [*score_remarks(rows), *twisted, *unread, *money],
        "out": str(run.file.path),
    } | ({"scored": True} if score_remarks(rows) else {})


def _models(rows: Sequence[Mapping[str, Any]], tallies: Mapping[str, Tally]) -> list[dict[str, Any]]:
    """What `collected` tells of each model."""
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
