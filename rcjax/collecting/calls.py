"""Ask a model a question, the second question of its signal included; and estimate the cost of calls."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from rcjax._base.codec import as_object
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
from rcjax.policy.signals import ReplyCheck, Signal, Votes
from rcjax.policy.signals.records import LetterOf, signal_by_name
from rcjax.serving.call_log import call_row, has_failed
from rcjax.serving.endpoints import AsInLog, Endpoint
from rcjax.serving.exchange import Exchange, ServedQuery
from rcjax.serving.models_file import record_asked
from rcjax.serving.workers import ReplyChecks

_SECOND_TEMPLATE = 400  # tokens of a second question besides the question and the answer, at most


@dataclass(frozen=True, slots=True)
class Asked:
    """A model with the request settings of this run."""

    respondent: Respondent
    signal: str
    """Name of its signal."""
    options: Mapping[str, object]
    """Options of each request, in addition to those of the signal."""
    checks: ReplyChecks
    """Runner of checks, for a signal that is a check."""
    samples: int = 1
    """Number of answers to each question, each from a separate call."""
    apart: bool = False
    """Request the answer only: the samples vote, and their agreement is the confidence."""
    check: ReplyCheck | None = None
    """The signal, if it is a check."""

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.respondent.settings.name

    @property
    def why_alike(self) -> str | None:
        """Reason why several samples would be equal, in words; None without such a reason, or with one sample."""
        options = {**self.options, **as_object(self.options.get("extra_body"))}
        if self.samples > 1 and options.get("temperature") == 0:
            return "temperature is 0"
        return "a seed is set" if self.samples > 1 and options.get("seed") is not None else None

    def waiting(
        self, questions: Iterable[Question], answered: Container[tuple[str, str, int]]
    ) -> list[tuple[Question, int]]:
        """Return (question, sample) of each missing answer, question by question.

        Args:
            questions: questions of the run.
            answered: (query, model, sample) of each existing answer.
        """
        samples = range(1, self.samples + 1)
        return [(q, number) for q in questions for number in samples if (q.query, self.name, number) not in answered]

    def signal_for(self, question: Question) -> Signal:
        """Return the signal for a question and its choices; for samples that vote, one that reads the answer only."""
        if self.apart:
            normalise = LetterOf(tuple(question.choices)) if question.choices else AsInLog("text")
            return Votes(1, temperature=None, normalise=normalise, apart=True)
        return self.check or signal_by_name(self.signal, question.choices)

    def endpoint(self, question: Question) -> Endpoint:
        """Return the endpoint for a question, with the options of the first request."""
        signal = self.signal_for(question)
        return self.respondent.endpoint({**signal.options, **self.options}, signal)

    def record(self, question: Question) -> str:
        """Return the request settings that the log records, as JSON."""
        return record_asked(self.signal_for(question), self.options, self.respondent.settings.price, question.form)


def second_options(signal: Signal | None) -> Mapping[str, Any] | None:
    """Return the options of a signal's second request; None if the signal has none."""
    return None if getattr(signal, "question", "") is None else getattr(signal, "second_options", None)


def worst_of(asked: Asked, question: Question) -> tuple[Decimal, Decimal]:
    """Return the largest cost of a call's first request, and of its signal's second request."""
    endpoint = asked.endpoint(question)
    options = endpoint.options_for(question.options)
    first = asked.respondent.worst(question.messages, options)
    second = second_options(endpoint.signal)
    if second is None:
        return first, Decimal(0)
    # The second request repeats the first one and its answer.
    words = most_input_tokens(question.messages) + 4 * most_output_tokens(endpoint.options) + _SECOND_TEMPLATE
    price = asked.respondent.settings.price
    by_price = (words * price.dearest_input + most_output_tokens(second) * price.output) / 1_000_000
    return first, max(asked.respondent.highest_cost, by_price)


async def call(
    asked: Asked, question: Question, file: AnswerFile, budget: Budget, aside: Decimal, sample: int | None = None
) -> dict[str, Any]:
    """Ask a model a question, and return the line of the log; a failure of the server is an error in the line.

    Args:
        asked: the model and its request settings.
        question: the question.
        file: the answer file, which journals calls under way.
        budget: the budget that pays.
        aside: money reserved for the call, at least `worst_of`.
        sample: sample number of the answer; None for a single answer.
    """
    respondent, name = asked.respondent, uuid.uuid4().hex[:16]
    _, second = worst_of(asked, question)
    prompt = ServedQuery(question.query, question.messages, question.options, shadow=True, form=question.form)
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


#: Assumed tokens of an answer in words, and of a choice, until a model has answered.
USUAL_TEXT, USUAL_CHOICE = 200, 2


_SECOND = 80  # tokens of a second question, besides the question and the answer


_RUBRIC, _VERDICT = 300, 8  # tokens of a judge's rubric, and of its reply


@dataclass(frozen=True, slots=True)
class Estimate:
    """The missing answers of a model, and estimates of their cost."""

    model: str
    questions: int
    """Number of questions with a missing answer."""
    calls: int
    """Number of missing answers."""
    likely_cost: float
    """Expected cost, judges and failures included: a prior from usual lengths, corrected by the observed costs."""
    most_cost: float
    """Largest possible cost, judges included."""


def estimate(
    asked: Asked,
    questions: Sequence[Question],
    answers: AnswerRows,
    judge: Callable[[Question], Respondent | None] = lambda question: None,
) -> Estimate:
    """Estimate the cost of a model's missing answers.

    Args:
        asked: the model and its request settings.
        questions: questions of the run.
        answers: existing answers.
        judge: returns the model that judges answers to a question, or None.
    """
    waiting = [question for question, _ in asked.waiting(questions, answers.answered)]
    most = sum((sum(worst_of(asked, question), judging_cost(asked, question, judge)) for question in waiting), _NONE)
    usual = sum((_usual(asked, question, judge) for question in waiting), _NONE)
    observed = _observed(asked, questions, answers, judge)
    distinct = len({question.query for question in waiting})
    return Estimate(asked.name, distinct, len(waiting), float(min(usual * observed, most)), float(most))


_NONE = Decimal(0)


_GUESS = Decimal("0.25")  # weight of the prior, in answers


def _observed(
    asked: Asked, questions: Sequence[Question], answers: AnswerRows, judge: Callable[[Question], Respondent | None]
) -> Decimal:
    """Return the ratio of a model's observed costs, failures and judges included, to the usual costs.

    The prior ratio of 1 has the weight of a quarter of an answer: the usual length is a guess, which may be ten times
    too large.
    """
    of_run = {question.query: question for question in questions}
    rows = [row for row in answers.rows.values() if row["model"] == asked.name and row["query"] in of_run]
    usual = [_usual(asked, of_run[row["query"]], judge) for row in rows if not has_failed(row)]
    if not sum(usual):
        return Decimal(1)
    guess = _GUESS * sum(usual, _NONE) / len(usual)
    # Likely costs of calls and judges: unbilled calls count by their estimate, not by their upper bound.
    paid = [Decimal(str(row.get(name) or 0)) for row in rows for name in ("cost", "grading_cost")]
    return (sum(paid, _NONE) + guess) / (sum(usual, _NONE) + guess)


def _usual(asked: Asked, question: Question, judge: Callable[[Question], Respondent | None]) -> Decimal:
    """Return the usual cost of a call and its judge, from the length of the question."""
    endpoint = asked.endpoint(question)
    read, written = usual_input_tokens(question.messages, question.options), _written(question, endpoint.options)
    second = second_options(endpoint.signal)
    if second is not None:
        read += read + written + _SECOND
        written += min(4, most_output_tokens(second))
    price = asked.respondent.settings.price
    return price.money(Tokens(read, written)) + judging_cost(asked, question, judge, worst=False)


def _written(question: Question, options: Mapping[str, Any]) -> int:
    """Return the usual number of output tokens, over all samples of a request."""
    usual = (USUAL_CHOICE if question.choices else USUAL_TEXT) * (options.get("n") or 1)
    return min(usual, most_output_tokens(options))


def judging_cost(
    asked: Asked, question: Question, judge: Callable[[Question], Respondent | None], *, worst: bool = True
) -> Decimal:
    """Return the cost of judging one answer, in money.

    Args:
        asked: the model that answers, and its request settings.
        question: the question.
        judge: returns the model that judges answers to a question, or None.
        worst: assume the longest answer, judged twice; else a usual answer, judged once.
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
    return max(2 * respondent.highest_cost, by_price) if worst else by_price
