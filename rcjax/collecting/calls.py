"""One call: a model is put one question, the second one of its signal included, and a line of the log comes out."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from rcjax.collecting.answer_file import LOST, AnswerFile
from rcjax.collecting.purse import BudgetSpentError, most_input_tokens, most_output_tokens
from rcjax.collecting.questions import Question
from rcjax.collecting.respondent import Bill, Respondent, StoppedError
from rcjax.serving.answer_keys import AsInLog
from rcjax.serving.asked import record_asked
from rcjax.serving.asking import Endpoint
from rcjax.serving.call_log import call_row
from rcjax.serving.exchange import Exchange
from rcjax.serving.prompts import Prompt
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
        settings, signal = self.respondent.settings, self.signal_for(question)
        options = {**signal.options, **self.options}
        return Endpoint(self.respondent.client, settings.served, signal, options, settings.price, None)

    def record(self, question: Question) -> str:
        """What the log keeps of it, as JSON."""
        return record_asked(self.signal_for(question), self.options, self.respondent.settings.price)


def second_options(signal: Signal | None) -> Mapping[str, Any] | None:
    """The options of the second request of a signal's calls; None if one request is all."""
    return None if getattr(signal, "question", "") is None else getattr(signal, "second_options", None)


def worst_of(asked: Asked, question: Question) -> tuple[Decimal, Decimal]:
    """Money that the first request of a call may cost, and the second one of its signal."""
    endpoint = asked.endpoint(question)
    first, second = asked.respondent.worst(question.messages, endpoint.options), second_options(endpoint.signal)
    if second is None:
        return first, Decimal(0)
    # The second question repeats the first one and what was answered to it.
    words = most_input_tokens(question.messages) + 4 * most_output_tokens(endpoint.options) + _SECOND_TEMPLATE
    price = asked.respondent.settings.price
    return first, (words * price.dearest_input + most_output_tokens(second) * price.output) / 1_000_000


async def call(asked: Asked, question: Question, file: AnswerFile, sample: int | None = None) -> dict[str, Any]:
    """Put a question to a model, and give the line of the log; whatever a server does is no exception.

    Args:
        asked: the model, and how it is asked.
        question: that is put to it.
        file: that keeps what is under way.
        sample: which of several answers of the model to the question this is; None if there is one alone.

    Raises StoppedError or BudgetSpentError where nothing was asked.
    """
    respondent, purse = asked.respondent, asked.respondent.purse
    if respondent.stopped is not None:
        raise StoppedError(respondent.stopped)
    first, second = worst_of(asked, question)
    name = uuid.uuid4().hex[:16]
    bill = Bill(lambda most: file.begin(name, question.query, asked.name, most))
    await purse.reserve(first + second)
    bill.reserved = first + second
    prompt = Prompt(question.query, question.messages, shadow=True)
    exchange = Exchange(prompt, asked.name, asked.endpoint(question), bill.usage)
    try:
        if respondent.stopped is not None:  # while it waited for money
            raise StoppedError(respondent.stopped)
        bill.note(bill.reserved)
        await _ask(asked, exchange, bill, second)
        row = _row(asked, question, exchange, bill, name)
    finally:
        await purse.settle(bill.reserved, bill.spent)
    return row if sample is None else {**row, "sample": sample}


async def _ask(asked: Asked, exchange: Exchange, bill: Bill, after: Decimal) -> None:
    """Hold an exchange: its requests are sent again and paid for, and who is never understood is not asked any more."""
    respondent, endpoint = asked.respondent, exchange.endpoint
    try:
        await exchange.run(
            respondent.ask(exchange.question.messages, endpoint.options, bill, after),
            lambda messages, options: respondent.ask(_whole(messages), options, bill),
            asked.checks,
        )
        if exchange.reading is not None or exchange.unread is not None:
            respondent.count_reading(exchange.unread)
    except StoppedError as problem:
        exchange.error = str(problem)
    except BudgetSpentError:
        exchange.error = "the budget did not reach for another attempt"
    except asyncio.CancelledError:
        exchange.error = LOST
    bill.spent += Decimal(str(exchange.check_cost))
    # Where the replies tell no tokens, as texts of their length usually cost.
    usual = bill.characters // 4 * max(respondent.settings.price.full) / 1_000_000
    exchange.endpoint = replace(endpoint, mean=float(min(bill.spent, usual)))


def _whole(messages: Any) -> Any:
    """Messages that can be sent: a reply that they repeat may have halves of surrogate pairs in it."""
    return json.loads(json.dumps(messages, ensure_ascii=False).encode(errors="replace"))


def _row(asked: Asked, question: Question, exchange: Exchange, bill: Bill, name: str) -> dict[str, Any]:
    return {
        **call_row(exchange.end()),
        "call": name,
        "text": exchange.text,
        "reference": list(question.reference),
        "choices": json.dumps(dict(question.words) or list(question.choices)) if question.choices else None,
        "grade": question.grade,
        "question_digest": question.digest,
        "system_digest": question.system_digest,
        "correct": None,
        "graded_by": None,
        "at_most": float(bill.spent),
        "grading_cost": 0.0,
        "asked": asked.record(question),
        **question.others,
    }
