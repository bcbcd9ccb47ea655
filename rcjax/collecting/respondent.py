"""Ask a model a question and its signal's second question, within a budget, with retries and rate limits."""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Container, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from types import MappingProxyType
from typing import Any

from rcjax.collecting.answer_file import LOST_CALL, AnswerFile
from rcjax.collecting.questions import Question
from rcjax.policy.signals import ReplyCheck, Signal, Votes
from rcjax.policy.signals.answers import FORM_OPTIONS
from rcjax.policy.signals.signal import ChoiceNormaliser, signal_by_name
from rcjax.serving.call_log import Handling, Query, call_row
from rcjax.serving.check_processes import CheckRunner
from rcjax.serving.completions import read_reply, text_or_calls
from rcjax.serving.endpoints import Endpoint, LoggedNormaliser
from rcjax.serving.exchange import Exchange
from rcjax.serving.failures import NO_CREDIT, CallError, Failure, NotCoveredError, connection_error
from rcjax.serving.models_file import ModelEntry, format_request_settings
from rcjax.serving.openai_client import MAX_WAIT_SECONDS, CompletionRequest, backoff_seconds, complete, make_api_client
from rcjax.serving.usage import CallUsage, sent_options, text_bytes, token_limit

_TOKENS_PER_MESSAGE, _TOKENS_PER_REQUEST = 16, 64  # most tokens that endpoints add to a message, and to a request

_MAX_PART_TOKENS = 20_000  # most tokens of a part that is not text, such as an image

_BYTES_PER_TOKEN = 4  # of usual texts


class Budget:
    """A limit of money, if there is one, for the money spent and the largest cost of calls under way."""

    def __init__(self, limit: Decimal | None = None) -> None:
        self.limit, self.spent, self.reserved = limit, Decimal(0), Decimal(0)
        self._changed = asyncio.Condition()

    async def reserve(self, amount: Decimal) -> None:
        """Reserve money, waiting for calls under way to leave enough. Raises NotCoveredError if they cannot."""
        async with self._changed:
            while amount and not self.covers(amount):
                if not self.reserved:
                    raise NotCoveredError
                await self._changed.wait()
            self.reserved += amount

    def reserve_at_once(self, amount: Decimal) -> None:
        """Reserve money without waiting for other calls. Raises NotCoveredError if it is not available."""
        if not self.covers(amount):
            raise NotCoveredError
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
        """Open the expense of a call, with money already reserved. `note` records the largest cost beforehand.

        When the call ends, even by an error, its cost is spent and the rest released.
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
        """Reserve `needed` in addition to the money spent. Raises NotCoveredError without waiting for other calls."""
        lacking = self.spent + needed - self.reserved
        if lacking > 0:
            self.budget.reserve_at_once(lacking)
            self.reserved += lacking
            self.note(self.reserved)


def max_input_tokens(messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any] = MappingProxyType({})) -> int:
    """Return an upper bound of the tokens of messages and tools: one per byte, and tokens that endpoints add.

    >>> max_input_tokens([{"role": "user", "content": "Hi"}])
    82
    """
    return _TOKENS_PER_REQUEST + _TOKENS_PER_MESSAGE * len(messages) + _input_bytes(messages, options)


def usual_input_tokens(messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any] = MappingProxyType({})) -> int:
    """Estimate the tokens of messages and tools: one per four bytes, and four per message."""
    return 3 + 4 * len(messages) + _input_bytes(messages, options) // _BYTES_PER_TOKEN


def _input_bytes(messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> int:
    """Count the bytes of texts, calls and tools. Another part, such as an image, counts as its largest token number."""
    contents = (message.get("content") for message in messages if not isinstance(message.get("content"), str))
    parts = [part for content in contents if content for part in (content if isinstance(content, list) else [content])]
    others = [part for part in parts if not isinstance(part, Mapping) or part.get("type") != "text"]
    values = [message.get(name) for message in messages for name in ("tool_calls", "tool_call_id")]
    values += [options.get(name) for name in FORM_OPTIONS]
    in_json = sum(len(json.dumps(value, default=str)) for value in values if value is not None)
    max_tokens = sum(max(_MAX_PART_TOKENS, len(json.dumps(part, default=str)) // 8) for part in others)
    return text_bytes(messages) + in_json + max_tokens


def max_output_tokens(options: Mapping[str, Any]) -> int:
    """Return an upper bound of the output tokens, over all samples. Raises ValueError if the options set no limit.

    >>> max_output_tokens({"max_tokens": 10, "n": 5})
    50
    """
    max_tokens = token_limit(options)
    if max_tokens is None:
        raise ValueError("options without max_tokens: what such a call costs has no limit")
    return max_tokens


_CONNECT_SHARE = 0.9  # share of an attempt's time in which to connect: a failure to connect costs nothing

_FATAL = {  # HTTP statuses that will recur at the next question, with advice
    **dict.fromkeys((401, 403), ": is its key right?"),
    **{402: "", 404: ": is its name right?"},
    **dict.fromkeys((301, 302, 303, 307, 308), ": its server redirects: set base_url to the new address"),
}

_MAX_FAILURES = 10  # calls in a row, after which a model is not asked any more

_MAX_CHARACTERS = 1_000_000  # characters of a reply; more than any model writes

_MAX_UNPRICED_CALLS = 2  # calls made one at a time while no cost is known

_ATTEMPTS = 5  # per request with transient failures; a request waits for a rate limit twice as often

_ADVICE: dict[int | str | None, str] = {  # by HTTP status, or the server's code
    429: ": its rate limit is reached: try again later, or give a lower --concurrency",
    "unsupported_parameter": ": give the model other options in models.toml, or another signal",
}


def describe_failure(problem: CallError) -> str:
    """Return a failure in words, with advice about a rate limit and a parameter that the server refuses."""
    failure = problem.failure
    return f"{problem}{_ADVICE.get(failure.status) or _ADVICE.get(failure.code, '')}"


class StoppedError(Exception):
    """A model is not asked any more in this run; the message says why."""


class Respondent:
    """A model behind its endpoint, with retries, back-off and a record of its costs.

    An attempt has `timeout` seconds, to the end of the reply. Raises ValueError if the model's key is not in the
    environment, or cannot be sent.
    """

    def __init__(self, settings: ModelEntry, timeout: float = 60.0) -> None:
        address, query = settings.address()
        self.api_client = make_api_client(
            base_url=address,
            key=settings.read_key(),
            timeout=timeout,
            query=query,
            connect=_CONNECT_SHARE * timeout,
            retries=0,
        )
        self.settings, self.timeout = settings, timeout
        self.why_stopped: str | None = None
        self.remarks: dict[str, None] = {}  # sentences about its costs
        self.highest_cost = Decimal(0)
        """Largest cost of a request so far: a server may charge more than the prices say."""
        self._pricing, self._unpriced = asyncio.Lock(), 0  # lock and number of calls made one at a time
        self._failures = self._unreadable = 0
        self._closed_until = 0.0

    @property
    def is_limited(self) -> bool:
        """Whether calls wait for a rate limit."""
        return self.why_stopped is None and self._closed_until > time.monotonic()

    def make_request(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> CompletionRequest:
        """Return a request to the model."""
        return CompletionRequest(self.api_client, self.settings.upstream_model, messages, options)

    def make_endpoint(self, options: Mapping[str, Any], signal: Signal) -> Endpoint:
        """Return the model's endpoint with the options of the first request."""
        return Endpoint(self.api_client, self.settings.upstream_model, signal, options, self.settings.price, None)

    def max_cost(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Decimal:
        """Return the largest cost of a request, from the prices and the costs so far."""
        by_price = self.settings.price.max_money(max_input_tokens(messages, options), max_output_tokens(options))
        return max(self.highest_cost, by_price)

    @asynccontextmanager
    async def serialise_until_priced(self, budget: Budget) -> AsyncIterator[None]:
        """Make calls one at a time until a cost of the model is known, if the budget has a limit.

        After two calls without a cost, calls are concurrent: a model that fails must not delay the other models.
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
        return budget.limit is None or self.highest_cost > 0 or self._unpriced >= _MAX_UNPRICED_CALLS

    def counted_money(self, usage: CallUsage) -> Decimal:
        """Return the money for the tokens that the replies count."""
        return usage.money(self.settings.price) or Decimal(0)

    async def send(
        self,
        request: CompletionRequest,
        usage: CallUsage,
        *,
        expense: Expense,
        later_cost: Decimal = Decimal(0),
        attempts: int = _ATTEMPTS,
    ) -> Mapping[str, Any]:
        """Send a request, with retries after transient failures, and return the completion.

        Args:
            request: request to this model.
            usage: usage to which the request's is added.
            expense: expense that pays.
            later_cost: largest cost of later requests of the same call.
            attempts: largest number of attempts, besides twice as many waits for a rate limit.

        Raises CallError if no reply came, StoppedError if the model is not asked any more, and NotCoveredError.
        """
        attempt, waits = 1, 0
        while True:
            await self._wait_until_allowed()
            max_cost = self.max_cost(request.messages, request.options)
            expense.reserve(max_cost + later_cost)
            try:
                completion = await self._attempt(request, usage, expense, max_cost)
            except CallError as problem:
                is_rate_limit = problem.failure.status == 429
                waits, attempt = waits + is_rate_limit, attempt + (not is_rate_limit)
                if problem.failure.status in _FATAL and not problem.failure.transient:
                    self.stop(f"{problem}{_FATAL[problem.failure.status]}")
                elif problem.failure.code in NO_CREDIT:
                    self.stop(f"out of credit: {problem}")
                if not problem.failure.transient or attempt > attempts or waits > 2 * attempts or self.why_stopped:
                    self._failures += 1
                    if self._failures >= _MAX_FAILURES:
                        reason = describe_failure(problem)
                        self.stop(f"{_MAX_FAILURES} calls in a row have failed, the last one with: {reason}")
                    raise
                await self._back_off(problem.failure, attempt + waits - 2)
            else:
                self._failures = 0
                return completion

    async def _attempt(
        self, request: CompletionRequest, usage: CallUsage, expense: Expense, max_cost: Decimal
    ) -> Mapping[str, Any]:
        """Make one attempt. Its time limit holds even if bytes of the reply keep arriving."""
        attempt, cost, limit = CallUsage(), max_cost, request.options.get("timeout")
        try:
            async with asyncio.timeout(limit if isinstance(limit, int | float) else self.timeout):
                completion = await complete(request, attempt)
            longest = max(len(text_or_calls(choice)) for choice in completion["choices"])
            if longest > _MAX_CHARACTERS:
                raise CallError(
                    f"a reply of {longest:,} characters, of which no more than {_MAX_CHARACTERS:,} are taken"
                )
            read_reply(completion)  # raises CallError for a reply without text
            cost = self.counted_money(attempt) if attempt.reported else max_cost
            return completion
        except TimeoutError:
            raise connection_error(timed_out=True) from None
        except CallError as problem:
            counted = self.counted_money(attempt) if attempt.reported else max_cost
            cost = counted if problem.failure.charged else Decimal(0)
            raise
        finally:  # a cancelled call may be charged, too
            expense.spent += cost
            self.highest_cost = max(self.highest_cost, cost if attempt.reported else Decimal(0))
            usage.join(attempt)
            self.remarks |= dict.fromkeys(attempt.remarks(self.settings.price))

    async def _wait_until_allowed(self) -> None:
        """Wait until the model may be asked."""
        while self.why_stopped is None and (wait := self._closed_until - time.monotonic()) > 0:
            await asyncio.sleep(wait * random.uniform(1.0, 1.1))
        if self.why_stopped is not None:
            raise StoppedError(self.why_stopped)

    async def _back_off(self, failure: Failure, retries: int) -> None:
        """Back off before the next attempt; a rate limit holds for all calls, and a very long one ends the run."""
        seconds = backoff_seconds(failure, retries)
        if seconds > MAX_WAIT_SECONDS:
            self.stop(f"its server asks for a back-off of {seconds:,.0f} seconds")
        elif failure.status == 429:
            self._closed_until = max(self._closed_until, time.monotonic() + seconds)
        else:
            await asyncio.sleep(seconds)

    def note_reading(self, problem: str | None) -> None:
        """Record whether a reply's confidence could be read; stop the model after ten failures in a row."""
        self._unreadable = 0 if problem is None else self._unreadable + 1
        if self._unreadable >= _MAX_FAILURES:
            fact = f"the confidence of {_MAX_FAILURES} replies in a row cannot be read: {problem}"
            self.stop(f"{fact}; mend that, or give the model another signal (rcjax collect --probe)")

    def stop(self, reason: str) -> None:
        """Do not ask the model any more in this run; the first reason counts."""
        self.why_stopped = self.why_stopped or reason

    async def close(self) -> None:
        """Close the model's connections."""
        await self.api_client.close()


_SECOND_TEMPLATE_TOKENS = 400  # most tokens of a second question besides the question and the answer


@dataclass(frozen=True, slots=True)
class CollectedModel:
    """A model with the request settings of this run."""

    respondent: Respondent
    signal: str
    """Name of its signal."""
    options: Mapping[str, object]
    """Options of each request, in addition to those of the signal."""
    checks: CheckRunner
    """Runner of checks, for a signal that is a check."""
    samples: int = 1
    """Number of answers to each question, each from a separate call."""
    separate: bool = False
    """Whether the samples vote: a request asks for an answer alone, and the share that agrees is the confidence."""
    check: ReplyCheck | None = None
    """The signal, if it is a check."""

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.respondent.settings.name

    @property
    def why_samples_equal(self) -> str | None:
        """Reason why several samples would be equal, in words; None if they may differ, or there is one sample."""
        options = sent_options(self.options)
        if self.samples > 1 and options.get("temperature") == 0:
            return "temperature is 0"
        return "a seed is set" if self.samples > 1 and options.get("seed") is not None else None

    def missing_answers(
        self, questions: Iterable[Question], answered: Container[tuple[str, str, int]]
    ) -> list[tuple[Question, int]]:
        """Return (question, sample) of each missing answer; `answered` has (query, model, sample) of the others."""
        samples = range(1, self.samples + 1)
        return [(q, number) for q in questions for number in samples if (q.query, self.name, number) not in answered]

    def signal_for(self, question: Question) -> Signal:
        """Return the signal for a question and its choices; samples that vote have a signal that reads answers only."""
        if self.separate:
            normalise = ChoiceNormaliser(tuple(question.choices)) if question.choices else LoggedNormaliser("text")
            return Votes(1, temperature=None, normalise=normalise, separate=True)
        return self.check or signal_by_name(self.signal, question.choices)

    def make_endpoint(self, question: Question) -> Endpoint:
        """Return the endpoint for a question, with the options of the first request."""
        signal = self.signal_for(question)
        return self.respondent.make_endpoint({**signal.options, **self.options}, signal)

    def record(self, question: Question) -> str:
        """Return the request settings that the log records, as JSON."""
        return format_request_settings(
            self.signal_for(question), self.options, self.respondent.settings.price, question.request_form
        )


def max_costs(collected: CollectedModel, question: Question) -> tuple[Decimal, Decimal]:
    """Return the largest cost of a call's first request, and of its signal's second request."""
    endpoint = collected.make_endpoint(question)
    options = endpoint.options_for(question.options)
    first = collected.respondent.max_cost(question.messages, options)
    second = endpoint.second_options
    if second is None:
        return first, Decimal(0)
    # The second request repeats the first request and its answer.
    sent = max_input_tokens(question.messages) + 4 * max_output_tokens(endpoint.options) + _SECOND_TEMPLATE_TOKENS
    by_price = collected.respondent.settings.price.max_money(sent, max_output_tokens(second))
    return first, max(collected.respondent.highest_cost, by_price)


async def ask_question(
    collected: CollectedModel,
    question: Question,
    file: AnswerFile,
    budget: Budget,
    reserved: Decimal,
    sample: int | None,
) -> dict[str, Any]:
    """Ask a model a question and return the row of the log; a failed call has an error in its row.

    Args:
        collected: the model and its request settings.
        question: the question.
        file: the answer file, which journals calls under way.
        budget: the budget that pays.
        reserved: money reserved for the call, at least `max_costs`.
        sample: sample number of the answer; None for a single answer.
    """
    respondent, call = collected.respondent, uuid.uuid4().hex[:16]
    _, second_cost = max_costs(collected, question)
    form = question.request_form
    query = Query(
        question.query, question.messages, question.options, request_form=form, handling=Handling(is_shadow_query=True)
    )
    exchange = Exchange(query, collected.name, collected.make_endpoint(question))
    async with budget.expense(partial(file.begin, call, question.query, collected.name), reserved) as expense:
        expense.note(reserved)
        send = partial(respondent.send, expense=expense)
        try:
            await exchange.run(partial(send, later_cost=second_cost), send, collected.checks)
            if exchange.reading is not None or exchange.no_confidence is not None:
                respondent.note_reading(exchange.no_confidence)
        except StoppedError as problem:
            exchange.error = str(problem)
        except NotCoveredError:
            exchange.error = "the budget does not cover another attempt"
        except asyncio.CancelledError:
            exchange.error = LOST_CALL
        expense.spent += Decimal(str(exchange.check_cost))
        return {
            **call_row(exchange.end()),
            "call": call,
            "text": exchange.text,
            "reference": list(question.reference),
            "choices": json.dumps(dict(question.words) or list(question.choices)) if question.choices else None,
            "grade": question.grade,
            "question_digest": question.digest,
            "correct": None,
            "graded_by": None,
            "at_most": float(expense.spent),
            "grading_cost": 0.0,
            "request_settings": collected.record(question),
            **question.others,
            **({} if sample is None else {"sample": sample}),
        }
