"""Ask a model a question, the second question of its signal included, within a budget, with retries and rate limits."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import AsyncIterator, Callable, Container, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from types import MappingProxyType
from typing import Any

from rcjax.collecting.answer_file import LOST, AnswerFile
from rcjax.collecting.questions import Question
from rcjax.policy.signals import ReplyCheck, Signal, Votes
from rcjax.policy.signals.answers import FORM_OPTIONS, as_object
from rcjax.policy.signals.signal import PickedChoice, signal_by_name
from rcjax.serving.call_log import call_row
from rcjax.serving.check_processes import ReplyChecks
from rcjax.serving.completions import read_reply, text_or_calls
from rcjax.serving.endpoints import AsInLog, Endpoint
from rcjax.serving.exchange import Exchange, Query
from rcjax.serving.failures import NO_CREDIT, CallError, Failure, connection_error
from rcjax.serving.models_file import ModelSettings, record_request_settings
from rcjax.serving.openai_client import complete, make_api_client
from rcjax.serving.usage import CallUsage, token_limit

_PER_MESSAGE, _PER_REQUEST = 16, 64  # most tokens that endpoints add to a message, and to a request

_IMAGE = 20_000  # most tokens of a part that is not text

_CHARACTERS = 4  # per token, in usual texts


class NotCoveredError(Exception):
    """The rest of the budget does not cover the largest cost of a request."""


class Budget:
    """Money for calls: the money spent, and the largest cost of calls under way, stay within a limit.

    Args:
        limit: limit of the money spent; None for no limit.
        spent: money spent by earlier runs.
    """

    def __init__(self, limit: Decimal | None = None, spent: Decimal = Decimal(0)) -> None:
        self.limit, self.spent, self.reserved = limit, spent, Decimal(0)
        self._changed = asyncio.Condition()

    async def reserve(self, amount: Decimal) -> None:
        """Reserve money, waiting for calls under way to leave enough. Raises NotCoveredError if they cannot."""
        async with self._changed:
            while amount and not self.covers(amount):
                if not self.reserved:
                    raise NotCoveredError
                await self._changed.wait()
            self.reserved += amount

    async def release(self, amount: Decimal) -> None:
        """Release reserved money."""
        self.reserved -= amount
        async with self._changed:
            self._changed.notify_all()

    @asynccontextmanager
    async def expense(
        self, note: Callable[[Decimal], object], reserved: Decimal = Decimal(0)
    ) -> AsyncIterator[Expense]:
        """Open the expense of a call; however the call ends, its cost is spent and the rest released.

        Args:
            note: records the largest cost of the call before it is incurred.
            reserved: money already reserved for the call.
        """
        expense = Expense(self, note, reserved)
        try:
            yield expense
        finally:
            self.spent += expense.spent
            await self.release(expense.reserved)

    def covers(self, amount: Decimal) -> bool:
        """Return whether an amount is available: neither spent nor reserved."""
        return self.limit is None or amount <= self.limit - self.spent - self.reserved


@dataclass(slots=True)
class Expense:
    """The cost of one call, with an upper bound while it is unknown."""

    budget: Budget
    note: Callable[[Decimal], object]
    """Recorder of the largest cost, called before it is incurred."""
    reserved: Decimal = Decimal(0)
    spent: Decimal = Decimal(0)

    def reserve(self, needed: Decimal) -> None:
        """Reserve `needed` in addition to the money spent. Raises NotCoveredError at once, since others may wait."""
        lacking = self.spent + needed - self.reserved
        if lacking > 0:
            if not self.budget.covers(lacking):
                raise NotCoveredError
            self.budget.reserved += lacking
            self.reserved += lacking
            self.note(self.reserved)


def max_input_tokens(messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any] = MappingProxyType({})) -> int:
    """Return an upper bound of the tokens of messages and tools: one per byte, and those that endpoints add.

    >>> max_input_tokens([{"role": "user", "content": "Hi"}])
    82
    """
    sizes = (_PER_MESSAGE + _bytes(message.get("content")) + _in_json(message, _CALLS) for message in messages)
    return _PER_REQUEST + sum(sizes) + _in_json(options, FORM_OPTIONS)


def usual_input_tokens(messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any] = MappingProxyType({})) -> int:
    """Estimate the tokens of messages and tools: one per four bytes, and four per message."""
    sizes = (_bytes(message.get("content")) + _in_json(message, _CALLS) for message in messages)
    return 3 + sum(4 + size // _CHARACTERS for size in sizes) + _in_json(options, FORM_OPTIONS) // _CHARACTERS


_CALLS = ("tool_calls", "tool_call_id")


def _in_json(values: Mapping[str, Any], names: Sequence[str]) -> int:
    """Return the number of characters of some values as JSON."""
    present = {name: values[name] for name in names if values.get(name) is not None}
    return len(json.dumps(present, default=str)) if present else 0


def _bytes(content: Any) -> int:
    if content is None:
        return 0
    if isinstance(content, str):
        return len(content.encode("utf-8", "replace"))
    parts = content if isinstance(content, Sequence) else [content]
    texts = sum(_bytes(part.get("text")) for part in parts if isinstance(part, Mapping))
    others = [part for part in parts if not isinstance(part, Mapping) or part.get("type") != "text"]
    return texts + sum(max(_IMAGE, len(json.dumps(part, default=str)) // 8) for part in others)


def max_output_tokens(options: Mapping[str, Any]) -> int:
    """Return an upper bound of the output tokens, over all samples. Raises ValueError if the options set no limit.

    >>> max_output_tokens({"max_tokens": 10, "n": 5})
    50
    """
    max_tokens = token_limit(options)
    if max_tokens is None:
        raise ValueError("options without max_tokens: what such a call costs has no limit")
    return max_tokens


_CONNECTING = 0.9  # share of an attempt's time in which to connect: a failure until then has cost nothing

_FATAL = {  # HTTP statuses that will recur at the next question, with advice
    **dict.fromkeys((401, 403), ": is its key right?"),
    **{402: "", 404: ": is its name right?"},
    **dict.fromkeys((301, 302, 303, 307, 308), ": it is to be asked elsewhere, which base_url must say"),
}

_FAILURES = 10  # in a row, after which a model is not asked any more

_MAX_TEXT = 1_000_000  # characters of a reply; more than any model writes

_MAX_WAIT = 120.0  # seconds; a model that asks for more is left to another run

_UNPRICED = 2  # calls made one at a time while no cost is known

_ATTEMPTS = 5  # per request, with transient failures; and twice as many waits for a rate limit

BACKOFF_SECONDS = (0.5, 8.0)  # seconds before the second attempt, and at most


class StoppedError(Exception):
    """A model is not asked any more in this run; the message says why."""


class Respondent:
    """A model behind its endpoint, with retries, back-off and a record of its costs.

    Args:
        settings: settings of the model.
        timeout: seconds per attempt, to the end of the reply.

    Raises ValueError if its key is not in the environment, or cannot be sent.
    """

    def __init__(self, settings: ModelSettings, timeout: float = 60.0) -> None:
        address, query = settings.address()
        self.api_client = make_api_client(
            base_url=address,
            key=settings.key(),
            timeout=timeout,
            query=query,
            connect=_CONNECTING * timeout,
            retries=0,
        )
        self.settings, self.timeout = settings, timeout
        self.stopped: str | None = None
        self.remarks: dict[str, None] = {}  # sentences about its costs
        self.highest_cost = Decimal(0)
        """Largest cost of a request so far: a server may charge more than the prices say."""
        self._pricing, self._unpriced = asyncio.Lock(), 0  # of calls made one at a time, to learn a cost
        self._failures = self._unreadable = 0
        self._closed_until = 0.0

    def endpoint(self, options: Mapping[str, Any], signal: Any = None) -> Endpoint:
        """Return the model's endpoint with the options of the first request."""
        return Endpoint(self.api_client, self.settings.endpoint_name, signal, options, self.settings.price, None)

    def max_cost(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Decimal:
        """Return the largest cost of a request, from the prices and the costs so far."""
        price, read, written = self.settings.price, max_input_tokens(messages, options), max_output_tokens(options)
        return max(self.highest_cost, (read * price.dearest_input + written * price.output) / 1_000_000)

    @asynccontextmanager
    async def serialise_until_priced(self, budget: Budget) -> AsyncIterator[None]:
        """Make calls one at a time until a cost of the model is known, if the budget has a limit.

        Two calls without a cost are enough: a model that fails costs nothing, and must not delay the others.
        """
        if self._has_known_cost(budget):
            yield
            return
        async with self._pricing:
            if not self._has_known_cost(budget):
                try:
                    yield
                finally:
                    self._unpriced += 1
                return
        yield

    def _has_known_cost(self, budget: Budget) -> bool:
        return budget.limit is None or self.highest_cost > 0 or self._unpriced >= _UNPRICED

    def counted_money(self, usage: CallUsage) -> Decimal:
        """Return the money for the tokens that the replies count."""
        return usage.money(self.settings.price) or Decimal(0)

    async def send(
        self,
        endpoint: Endpoint,
        messages: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        usage: CallUsage,
        *,
        expense: Expense,
        after: Decimal = Decimal(0),
        attempts: int = _ATTEMPTS,
    ) -> Mapping[str, Any]:
        """Send a request, with retries after transient failures, and return the completion.

        Args:
            endpoint: endpoint of this model.
            messages: messages of the request.
            options: options of the request.
            usage: usage to which the request's is added.
            expense: expense that pays.
            after: money that later requests of the call need.
            attempts: number of attempts; up to twice as many waits for a rate limit are added.

        Raises CallError without a reply, StoppedError if the model is not asked any more, and NotCoveredError.
        """
        # The second question may repeat a reply with lone surrogates, which cannot be sent.
        messages = json.loads(json.dumps(messages, ensure_ascii=False, default=str).encode(errors="replace"))
        attempt, waits = 1, 0
        while True:
            await self._open()
            max_cost = self.max_cost(messages, options)
            expense.reserve(max_cost + after)
            try:
                completion = await self._once(endpoint, messages, options, usage, expense, max_cost)
            except CallError as problem:
                limited = problem.failure.status == 429
                waits, attempt = (waits + 1, attempt) if limited else (waits, attempt + 1)
                if problem.failure.status in _FATAL:
                    self.stop(f"{problem}{_FATAL[problem.failure.status]}")
                elif problem.failure.code in NO_CREDIT:
                    self.stop(f"out of credit: {problem}")
                if not problem.failure.transient or attempt > attempts or waits > 2 * attempts or self.stopped:
                    self._failures += 1
                    if self._failures >= _FAILURES:
                        self.stop(f"{_FAILURES} calls in a row have failed, the last one with: {problem}")
                    raise
                await self._wait(problem.failure, attempt + waits)
            else:
                self._failures = 0
                return completion

    async def _once(
        self,
        endpoint: Endpoint,
        messages: Any,
        options: Mapping[str, Any],
        usage: CallUsage,
        expense: Expense,
        max_cost: Decimal,
    ) -> Mapping[str, Any]:
        """Make one attempt within its time limit, so that a trickle of bytes does not hold a connection for ever."""
        once, cost, limit = CallUsage(), max_cost, options.get("timeout")
        try:
            async with asyncio.timeout(limit if isinstance(limit, int | float) else self.timeout):
                completion = await complete(endpoint.api_client, endpoint.endpoint_name, messages, options, once)
            longest = max(len(text_or_calls(choice)) for choice in completion["choices"])
            if longest > _MAX_TEXT:
                raise CallError(f"a reply of {longest:,} characters, of which no more than {_MAX_TEXT:,} are taken")
            read_reply(completion)  # without text it is a failure
            cost = self.counted_money(once) if once.counted else max_cost
            return completion
        except TimeoutError:
            raise connection_error(timed_out=True) from None
        except CallError as problem:
            counted = self.counted_money(once) if once.counted else max_cost
            cost = counted if problem.failure.charged else Decimal(0)
            raise
        finally:  # a cancelled call may be charged, too
            expense.spent += cost
            self.highest_cost = max(self.highest_cost, cost if once.counted else Decimal(0))
            usage.join(once)
            self.remarks |= dict.fromkeys(once.remarks(self.settings.price))

    async def _open(self) -> None:
        """Wait until the model may be asked."""
        loop = asyncio.get_running_loop()
        while self.stopped is None and (wait := self._closed_until - loop.time()) > 0:
            await asyncio.sleep(wait * random.uniform(1.0, 1.1))
        if self.stopped is not None:
            raise StoppedError(self.stopped)

    async def _wait(self, failure: Failure, attempt: int) -> None:
        """Back off before the next attempt, exponentially or as the server says; a rate limit holds for all calls."""
        first, longest = BACKOFF_SECONDS
        seconds = failure.wait if failure.wait is not None else min(longest, first * 2 ** (attempt - 2))
        if seconds > _MAX_WAIT:
            self.stop(f"its server asks for a back-off of {seconds:,.0f} seconds")
        elif failure.status == 429:
            self._closed_until = max(self._closed_until, asyncio.get_running_loop().time() + seconds)
        else:
            await asyncio.sleep(seconds * random.uniform(0.8, 1.2))

    def count_reading(self, problem: str | None) -> None:
        """Record whether a reply's confidence could be read; stop the model after ten failures in a row."""
        self._unreadable = 0 if problem is None else self._unreadable + 1
        if self._unreadable >= _FAILURES:
            what = f"the confidence of {_FAILURES} replies in a row cannot be read: {problem}"
            self.stop(f"{what}; mend that, or give it another signal (rcjax collect --probe)")

    def stop(self, why: str) -> None:
        """Do not ask the model any more in this run."""
        self.stopped = self.stopped or why

    async def close(self) -> None:
        """Close the model's connections."""
        await self.api_client.close()


_SECOND_TEMPLATE = 400  # tokens of a second question besides the question and the answer, at most


@dataclass(frozen=True, slots=True)
class ModelSetup:
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
    """Whether only the answer is requested: the samples vote, and their agreement is the confidence."""
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
            normalise = PickedChoice(tuple(question.choices)) if question.choices else AsInLog("text")
            return Votes(1, temperature=None, normalise=normalise, apart=True)
        return self.check or signal_by_name(self.signal, question.choices)

    def endpoint(self, question: Question) -> Endpoint:
        """Return the endpoint for a question, with the options of the first request."""
        signal = self.signal_for(question)
        return self.respondent.endpoint({**signal.options, **self.options}, signal)

    def record(self, question: Question) -> str:
        """Return the request settings that the log records, as JSON."""
        return record_request_settings(
            self.signal_for(question), self.options, self.respondent.settings.price, question.request_form
        )


def second_options(signal: Signal | None) -> Mapping[str, Any] | None:
    """Return the options of a signal's second request; None if the signal has none."""
    return None if getattr(signal, "question", "") is None else getattr(signal, "second_options", None)


def max_costs(setup: ModelSetup, question: Question) -> tuple[Decimal, Decimal]:
    """Return the largest cost of a call's first request, and of its signal's second request."""
    endpoint = setup.endpoint(question)
    options = endpoint.options_for(question.options)
    first = setup.respondent.max_cost(question.messages, options)
    second = second_options(endpoint.signal)
    if second is None:
        return first, Decimal(0)
    # The second request repeats the first one and its answer.
    words = max_input_tokens(question.messages) + 4 * max_output_tokens(endpoint.options) + _SECOND_TEMPLATE
    price = setup.respondent.settings.price
    by_price = (words * price.dearest_input + max_output_tokens(second) * price.output) / 1_000_000
    return first, max(setup.respondent.highest_cost, by_price)


async def call(
    setup: ModelSetup,
    question: Question,
    file: AnswerFile,
    budget: Budget,
    reserved: Decimal,
    sample: int | None = None,
) -> dict[str, Any]:
    """Ask a model a question, and return the line of the log; a failure of the server is an error in the line.

    Args:
        setup: the model and its request settings.
        question: the question.
        file: the answer file, which journals calls under way.
        budget: the budget that pays.
        reserved: money reserved for the call, at least `max_costs`.
        sample: sample number of the answer; None for a single answer.
    """
    respondent, name = setup.respondent, uuid.uuid4().hex[:16]
    _, second = max_costs(setup, question)
    prompt = Query(
        question.query, question.messages, question.options, is_shadow_query=True, request_form=question.request_form
    )
    exchange = Exchange(prompt, setup.name, setup.endpoint(question))
    async with budget.expense(partial(file.begin, name, question.query, setup.name), reserved) as expense:
        expense.note(reserved)
        send = partial(respondent.send, expense=expense)
        try:
            await exchange.run(partial(send, after=second), send, setup.checks)
            if exchange.reading is not None or exchange.no_confidence is not None:
                respondent.count_reading(exchange.no_confidence)
        except StoppedError as problem:
            exchange.error = str(problem)
        except NotCoveredError:
            exchange.error = "the budget does not cover another attempt"
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
            "request_settings": setup.record(question),
            **question.others,
            **({} if sample is None else {"sample": sample}),
        }
