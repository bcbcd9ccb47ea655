"""What a run will cost, before its first call: by the length of the questions, and by the calls that there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rcjax._base.tokens import Tokens
from rcjax.collecting.answer_file import AnswerRows
from rcjax.collecting.calls import Asked, second_options, worst_of
from rcjax.collecting.purse import most_input_tokens, most_output_tokens, usual_input_tokens
from rcjax.collecting.questions import Question
from rcjax.collecting.respondent import Respondent
from rcjax.serving.call_log import has_failed

_USUAL_TEXT = 200  # tokens of an answer in words

_USUAL_CHOICE = 2  # of a letter

_SECOND = 80  # tokens of a second question, besides the question and the answer

_RUBRIC, _VERDICT = 300, 8  # tokens of what a judge is asked besides question and answer, and of what it may reply


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one model is still to be asked, and what that costs."""

    model: str
    questions: int
    """Still to be asked, once at least."""
    calls: int
    """For them: one for each answer that is missing."""
    likely_cost: float
    """Money for them, judges and failures included: as is usual, and the more calls there are, as theirs was."""
    most_cost: float
    """Money for them and their judges, at the worst."""
    requests: int = 0
    """That the calls consist of, where none fails: two of each whose signal asks a second question."""


def estimate(
    asked: Asked,
    questions: Sequence[Question],
    answers: AnswerRows,
    judge: Callable[[Question], Respondent | None] = lambda question: None,
) -> Estimate:
    """What the questions that a model has not answered will cost.

    Args:
        asked: the model, and how it is asked.
        questions: of the run.
        answers: that there are.
        judge: the model that judges answers to a question; None if none does.
    """
    waiting = [question for question, _ in asked.waiting(questions, answers.answered)]
    most = sum((sum(worst_of(asked, question), _judging(asked, question, judge, True)) for question in waiting), _NONE)
    usual = sum((_usual(asked, question, judge) for question in waiting), _NONE)
    observed = _observed(asked, questions, answers, judge)
    distinct = len({question.query for question in waiting})
    twice = sum(second_options(asked.signal_for(question)) is not None for question in waiting)
    money = float(min(usual * observed, most)), float(most)
    return Estimate(asked.name, distinct, len(waiting), *money, len(waiting) + twice)


_NONE = Decimal(0)

_GUESS = Decimal("0.25")  # of an answer, that what is usual counts

_ENOUGH = 20  # answers of each model, that tell what the others cost


def _observed(
    asked: Asked, questions: Sequence[Question], answers: AnswerRows, judge: Callable[[Question], Respondent | None]
) -> Decimal:
    """What answers of a model have cost, as a multiple of what is usual.

    With failures on the way, and judges. That things are as usual counts as a part of an answer beside those that there
    are: what usual answers have is a guess, which may be ten times too much.
    """
    of_run = {question.query: question for question in questions}
    rows = [row for row in answers.rows.values() if row["model"] == asked.name and row["query"] in of_run]
    usual = [_usual(asked, of_run[row["query"]], judge) for row in rows if not has_failed(row)]
    if not sum(usual):
        return Decimal(1)
    guess = _GUESS * sum(usual, _NONE) / len(usual)
    # What calls and their judges have cost; where nobody told, as is likely, not as it is at most.
    paid = [Decimal(str(row.get(name) or 0)) for row in rows for name in ("cost", "grading_cost")]
    return (sum(paid, _NONE) + guess) / (sum(usual, _NONE) + guess)


class Forecast:
    """What a run will cost from here on, by its own answers: from twenty of each model on, and anew as they double.

    Args:
        models: and how each is asked.
        questions: of the run.
        judge: as `estimate` takes it.
    """

    def __init__(
        self, models: Sequence[Asked], questions: Sequence[Question], judge: Callable[[Question], Respondent | None]
    ) -> None:
        self._models, self._questions, self._judge = models, questions, judge
        self._next = _ENOUGH
        self._whole: Decimal | None = None

    def whole(self, answers: AnswerRows, ended: Sequence[int], spent: Decimal) -> Decimal | None:
        """Money in all, what is spent included; None before there are answers enough.

        Args:
            answers: that there are.
            ended: how many each model has given.
            spent: so far.
        """
        if ended and min(ended) >= self._next:
            self._next = 2 * min(ended)
            left = (estimate(one, self._questions, answers, self._judge).likely_cost for one in self._models)
            self._whole = spent + Decimal(str(sum(left)))
        return self._whole


def _usual(asked: Asked, question: Question, judge: Callable[[Question], Respondent | None]) -> Decimal:
    """Money for a call, and its judge, by the length of the question."""
    endpoint = asked.endpoint(question)
    read, written = usual_input_tokens(question.messages), _written(question, endpoint.options)
    second = second_options(endpoint.signal)
    if second is not None:
        read += read + written + _SECOND
        written += min(4, most_output_tokens(second))
    price = asked.respondent.settings.price
    return price.money(Tokens(read, written)) + _judging(asked, question, judge, False)


def _written(question: Question, options: Mapping[str, Any]) -> int:
    """Tokens that an answer usually has, over all samples."""
    usual = (_USUAL_CHOICE if question.choices else _USUAL_TEXT) * (options.get("n") or 1)
    return min(usual, most_output_tokens(options))


def _judging(asked: Asked, question: Question, judge: Callable[[Question], Respondent | None], worst: bool) -> Decimal:
    """Money for judging one answer: at the `worst` a longest one, asked about twice."""
    respondent = judge(question)
    if respondent is None:
        return _NONE
    options, price = asked.endpoint(question).options, respondent.settings.price
    if worst:
        read = 2 * (most_input_tokens(question.messages) + 4 * (most_output_tokens(options) + _RUBRIC))
    else:
        read = usual_input_tokens(question.messages) + _written(question, options) + _RUBRIC
    return price.money(Tokens(read, 2 * _VERDICT if worst else 1, stored=read if worst else 0))
