"""Money for all answers to a question, put aside before the first model is asked it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from rcjax.collecting.calls import Asked, judging_cost, worst_of
from rcjax.collecting.questions import Question
from rcjax.collecting.respondent import Budget, NotCoveredError, Respondent, StoppedError


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
