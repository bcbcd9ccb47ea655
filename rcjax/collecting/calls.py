"""One call: a model is put one question, the second one of its signal included; its line, and what calls will cost."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from rcjax._base.tokens import Tokens
from rcjax.collecting.answer_file import LOST, AnswerFile, AnswerRows
from rcjax.collecting.questions import Question
from rcjax.collecting.respondent import (
    Budget,
    NotCoveredError,
    Respondent,
    StoppedError,
    most_input_tokens,
    most_output_tokens,
    usual_input_tokens,
)
from rcjax.serving.asker import Exchange, Prompt
from rcjax.serving.asking import AsInLog, Endpoint
from rcjax.serving.call_log import call_row, has_failed
from rcjax.serving.models_file import record_asked
from rcjax.serving.running_checks import Checks
from rcjax.signals import Check, Signal, Votes
from rcjax.signals.records import LetterOf, signal_by_name

_SECOND_TEMPLATE = 400  # tokens of a second question besides the question and the answer, at most


@dataclass(frozen=True, slots=True)
class Asked:
    """How a model is asked in this run."""

    respondent: Respondent
    signal: str
    """The name of its signal."""
    options: Mapping[str, Any]
    """Of each request, those of the signal besides."""
    checks: Checks
    """What runs checks, where its signal is one."""
    samples: int = 1
    """Answers to each question, by a call each."""
    apart: bool = False
    """Whether nothing but the answer is asked for, as its confidence is how many others agree."""
    check: Check | None = None
    """Its signal, where that is a check."""

    @property
    def name(self) -> str:
        """Of the model."""
        return self.respondent.settings.name

    @property
    def why_alike(self) -> str | None:
        """What makes its answers to a question alike, in words; None if nothing does, or one is asked for."""
        more = self.options.get("extra_body")
        options = {**self.options, **(more if isinstance(more, Mapping) else {})}
        if self.samples > 1 and options.get("temperature") == 0:
            return "temperature is 0"
        return "a seed is set" if self.samples > 1 and options.get("seed") is not None else None

    def waiting(
        self, questions: Iterable[Question], answered: Container[tuple[str, str, int]]
    ) -> list[tuple[Question, int]]:
        """(question, sample) of each answer that is still to be asked for, question by question.

        Args:
            questions: of the run.
            answered: (query, model, sample) of each answer that there is.
        """
        samples = range(1, self.samples + 1)
        return [(q, number) for q in questions for number in samples if (q.query, self.name, number) not in answered]

    def signal_for(self, question: Question) -> Signal:
        """The signal, for a question with its choices; of one of several answers that vote, none but the answer."""
        if self.apart:
            normalise = LetterOf(tuple(question.choices)) if question.choices else AsInLog("text")
            return Votes(1, temperature=None, normalise=normalise, apart=True)
        return self.check or signal_by_name(self.signal, question.choices)

    def endpoint(self, question: Question) -> Endpoint:
        """Where and how it is asked a question; its options are those of the first request."""
        signal = self.signal_for(question)
        return self.respondent.endpoint({**signal.options, **self.options}, signal)

    def record(self, question: Question) -> str:
        """What the log keeps of it, as JSON."""
        return record_asked(self.signal_for(question), self.options, self.respondent.settings.price, question.form)


def second_options(signal: Signal | None) -> Mapping[str, Any] | None:
    """The options of the second request of a signal's calls; None if one request is all."""
    return None if getattr(signal, "question", "") is None else getattr(signal, "second_options", None)


def worst_of(asked: Asked, question: Question) -> tuple[Decimal, Decimal]:
    """Money that the first request of a call may cost, and the second one of its signal."""
    endpoint = asked.endpoint(question)
    options = endpoint.options_for(question.options)
    first, second = asked.respondent.worst(question.messages, options), second_options(endpoint.signal)
    if second is None:
        return first, Decimal(0)
    # The second question repeats the first one and what was answered to it.
    words = most_input_tokens(question.messages) + 4 * most_output_tokens(endpoint.options) + _SECOND_TEMPLATE
    price = asked.respondent.settings.price
    by_price = (words * price.dearest_input + most_output_tokens(second) * price.output) / 1_000_000
    return first, max(asked.respondent.most_billed, by_price)


async def call(
    asked: Asked, question: Question, file: AnswerFile, budget: Budget, aside: Decimal, sample: int | None = None
) -> dict[str, Any]:
    """Put a question to a model, and give the line of the log; whatever a server does is no exception.

    Args:
        asked: the model, and how it is asked.
        question: that is put to it.
        file: that keeps what is under way.
        budget: that pays.
        aside: money that was put aside for it, `worst_of`.
        sample: which of several answers of the model to the question this is; None if there is one alone.
    """
    respondent, name = asked.respondent, uuid.uuid4().hex[:16]
    _, second = worst_of(asked, question)
    prompt = Prompt(question.query, question.messages, question.options, shadow=True, form=question.form)
    exchange = Exchange(prompt, asked.name, asked.endpoint(question))
    async with budget.expense(partial(file.begin, name, question.query, asked.name), aside) as expense:
        expense.note(aside)
        send = partial(respondent.send, expense=expense)
        try:
            await exchange.run(partial(send, after=second), send, asked.checks)
            if exchange.reading is not None or exchange.unread is not None:
                respondent.count_reading(exchange.unread)
        except StoppedError as problem:
            exchange.error = str(problem)
        except NotCoveredError:
            exchange.error = "the budget did not reach for another attempt"
        except asyncio.CancelledError:
            exchange.error = LOST
        expense.spent += Decimal(str(exchange.check_cost))
        return {
            **call_row(exchange.end()),
            "call": name,
            "text": exchange.text,
            "reference": list(question.reference),
            "choices": json.dumps(dict(question.words) or list(question.choices)) if question.choices else None,
            "grade": question.grade,
            "question_digest": question.digest,
            "correct": None,
            "graded_by": None,
            "at_most": float(expense.spent),
            "grading_cost": 0.0,
            "asked": asked.record(question),
            **question.others,
            **({} if sample is None else {"sample": sample}),
        }


#: Tokens that an answer in words, and a letter, are taken to have until a model has answered.
USUAL_TEXT, USUAL_CHOICE = 200, 2

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
    most = sum((sum(worst_of(asked, question), judging_cost(asked, question, judge)) for question in waiting), _NONE)
    usual = sum((_usual(asked, question, judge) for question in waiting), _NONE)
    observed = _observed(asked, questions, answers, judge)
    distinct = len({question.query for question in waiting})
    return Estimate(asked.name, distinct, len(waiting), float(min(usual * observed, most)), float(most))


_NONE = Decimal(0)

_GUESS = Decimal("0.25")  # of an answer, that what is usual counts


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


def _usual(asked: Asked, question: Question, judge: Callable[[Question], Respondent | None]) -> Decimal:
    """Money for a call, and its judge, by the length of the question."""
    endpoint = asked.endpoint(question)
    read, written = usual_input_tokens(question.messages, question.options), _written(question, endpoint.options)
    second = second_options(endpoint.signal)
    if second is not None:
        read += read + written + _SECOND
        written += min(4, most_output_tokens(second))
    price = asked.respondent.settings.price
    return price.money(Tokens(read, written)) + judging_cost(asked, question, judge, worst=False)


def _written(question: Question, options: Mapping[str, Any]) -> int:
    """Tokens that an answer usually has, over all samples."""
    usual = (USUAL_CHOICE if question.choices else USUAL_TEXT) * (options.get("n") or 1)
    return min(usual, most_output_tokens(options))


def judging_cost(
    asked: Asked, question: Question, judge: Callable[[Question], Respondent | None], *, worst: bool = True
) -> Decimal:
    """Return the money for judging one answer.

    Args:
        asked: the model that gives the answer, and how it is asked.
        question: that is answered.
        judge: the model that judges answers to a question; None if none does.
        worst: for the longest answer, asked about twice; else for a usual one.
    """
    respondent = judge(question)
    if respondent is None:
        return _NONE
    options, price = asked.endpoint(question).options, respondent.settings.price
    if worst:
        read = 2 * (most_input_tokens(question.messages) + 4 * (most_output_tokens(options) + _RUBRIC))
    else:
        read = usual_input_tokens(question.messages) + _written(question, options) + _RUBRIC
    by_price = price.money(Tokens(read, 2 * _VERDICT if worst else 1, stored=read if worst else 0))
    return max(2 * respondent.most_billed, by_price) if worst else by_price
