"""What a run will cost, before its first call: by the length of the questions, or by the calls that there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rcjax.collecting.answer_file import Answers
from rcjax.collecting.calls import Asked, second_options, worst_of
from rcjax.collecting.purse import most_output_tokens, usual_input_tokens
from rcjax.collecting.questions import Question

__all__ = ["Estimate", "as_document", "estimate", "reach"]

_ENOUGH = 20  # calls of a model that tell what its next ones cost

_USUAL_TEXT = 200  # tokens of an answer in words

_USUAL_CHOICE = 2  # of a letter

_SECOND = 80  # tokens of a second question, besides the question and the answer


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one model is still to be asked, and what that costs."""

    model: str
    questions: int
    """Still to be asked, once at least."""
    calls: int
    """For them: one for each answer that is missing."""
    likely: float
    """Money for them, as things usually are."""
    most: float
    """Money for them, at the worst."""
    requests: int = 0
    """That the calls consist of, where none fails: two of each whose signal asks a second question."""


def estimate(asked: Asked, questions: Sequence[Question], answers: Answers) -> Estimate:
    """What the questions that a model has not answered will cost.

    Args:
        asked: the model, and how it is asked.
        questions: of the run.
        answers: that there are.
    """
    answered = answers.answered
    waiting = [question for question, _ in asked.waiting(questions, answered)]
    most = sum((sum(worst_of(asked, question), Decimal(0)) for question in waiting), Decimal(0))
    known = [row["cost"] for (_, model, _), row in answered.items() if model == asked.name]
    if len(known) >= _ENOUGH:
        likely = Decimal(str(sum(known) / len(known))) * len(waiting)
    else:
        likely = sum((_usual(asked, question) for question in waiting), Decimal(0))
    distinct = len({question.query for question in waiting})
    twice = sum(second_options(asked.signal_for(question)) is not None for question in waiting)
    money = float(min(likely, most)), float(most)
    return Estimate(asked.name, distinct, len(waiting), *money, len(waiting) + twice)


def _usual(asked: Asked, question: Question) -> Decimal:
    signal = asked.signal_for(question)
    options = asked.options_for(signal)
    read, samples = usual_input_tokens(question.messages), options.get("n") or 1
    usual = (_USUAL_CHOICE if question.choices else _USUAL_TEXT) * samples
    written = min(usual, most_output_tokens(options))
    second = second_options(signal)
    if second is not None:
        read += read + written + _SECOND
        written += min(4, most_output_tokens(second))
    price = asked.respondent.settings.price
    return (read * price[0] + written * price[1]) / 1_000_000


def reach(estimates: Iterable[Estimate], budget: float | None) -> float | None:
    """The share of what is to be asked that a budget is likely to cover; None where it covers all.

    >>> small = Estimate("small", 100, 100, likely=2.0, most=5.0)
    >>> reach([small], 1.0), reach([small], None)
    (0.5, None)
    >>> reach([], -1.0)  # all is asked, and more is spent than the budget has
    """
    likely = sum(one.likely for one in estimates)
    return None if budget is None or likely <= max(0.0, budget) else max(0.0, budget) / likely


def as_document(estimates: Iterable[Estimate]) -> list[Mapping[str, Any]]:
    """The estimates as JSON values."""
    return [
        {
            "model": one.model,
            "questions": one.questions,
            "calls": one.calls,
            "requests": one.requests,
            "likely_cost": one.likely,
            "most_cost": one.most,
        }
        for one in estimates
    ]
