"""Money for all answers to a question, put aside before the first model is asked it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal

from rcjax.collecting.calls import Asked, judging_cost, worst_of
from rcjax.collecting.questions import Question
from rcjax.collecting.respondent import Budget, BudgetSpentError, Respondent, StoppedError


@dataclass(frozen=True, slots=True)
class Share:
    """Money put aside for one answer, at the worst."""

    call: Decimal
    judge: Decimal


class Reservations:
    """The money of a run, put aside question by question for all models that are still to answer it.

    A budget that ends between two models would have paid for answers that no log can use. Once a question is not
    covered, later and shorter ones are not begun either: the log would hold the short ones alone.

    Args:
        budget: The budget of the run.
        waiting: For each model, the (question, sample) pairs that it is still to answer.
        judge_of: The model that judges answers to a question; None if none does.
    """

    def __init__(
        self,
        budget: Budget,
        waiting: Iterable[tuple[Asked, Iterable[tuple[Question, int]]]],
        judge_of: Callable[[Question], Respondent | None],
    ) -> None:
        self.budget, self._judge_of, self._spent = budget, judge_of, False
        self._waiting: dict[str, list[tuple[Asked, Question, int]]] = {}
        for asked, pairs in waiting:
            for question, number in pairs:
                self._waiting.setdefault(question.query, []).append((asked, question, number))
        self._shares: dict[str, dict[tuple[str, int], Share]] = {}  # by model
        self._decided: dict[str, asyncio.Event] = {}  # by question

    async def take(self, asked: Asked, question: Question, number: int) -> Share:
        """Return the share of one answer, which the caller spends or frees.

        Raises StoppedError for a model that is not asked any more, and BudgetSpentError where the budget does not cover
        all answers to the question.
        """
        if question.query in self._decided:
            await self._decided[question.query].wait()
        else:
            decided = self._decided[question.query] = asyncio.Event()
            await self._put_aside(question.query)
            decided.set()
        share = self._shares.get(asked.name, {}).pop((question.query, number), None)
        if asked.respondent.stopped is not None:
            await self.free(share)
            raise StoppedError(asked.respondent.stopped)
        if share is None:
            raise BudgetSpentError
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

    async def _put_aside(self, query: str) -> None:
        goes_on = [one for one in self._waiting[query] if one[0].respondent.stopped is None]
        shares = [(asked, number, self._share(asked, question)) for asked, question, number in goes_on]
        try:
            if not self._spent:
                await self.budget.put_aside(sum((share.call + share.judge for *_, share in shares), Decimal(0)))
                for asked, number, share in shares:
                    self._shares.setdefault(asked.name, {})[query, number] = share
                for asked in {asked.name: asked for asked, *_ in shares}.values():
                    if asked.respondent.stopped is not None:  # meanwhile
                        await self.free_all_of(asked.name)
        except BudgetSpentError:
            self._spent = True

    def _share(self, asked: Asked, question: Question) -> Share:
        return Share(sum(worst_of(asked, question), Decimal(0)), judging_cost(asked, question, self._judge_of))
