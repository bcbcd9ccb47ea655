"""One model that is asked: its endpoint, how long it wants to be left alone, and the budget that each request is in.

Its client keeps to what was told: no other host, no endless reply.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from rcjax.serving.completions import CallError, Failure, read_reply
from rcjax.serving.endpoint import TIMED_OUT, Part, certificates, complete, environment_for, openai
from rcjax.serving.models_file import ModelSettings
from rcjax.serving.usage import Usage
from rcjax.signals import Reply

_PER_MESSAGE, _PER_REQUEST = 16, 64  # tokens that endpoints put around messages, at most

_IMAGE = 20_000  # tokens that a part which is no text may stand for

_CHARACTERS = 4  # of a token, in usual texts


class BudgetSpentError(Exception):
    """What is left of the budget does not cover a call at its worst."""


class Purse:
    """Money for calls, within a budget.

    Args:
        budget: at most so much is spent; None is no limit.
        spent: by earlier runs.
    """

    def __init__(self, budget: Decimal | None = None, spent: Decimal = Decimal(0)) -> None:
        self.budget, self.spent, self.reserved = budget, spent, Decimal(0)
        self._changed = asyncio.Condition()

    @property
    def left(self) -> Decimal | None:
        """What is neither spent nor reserved; None without a budget."""
        return None if self.budget is None else self.budget - self.spent - self.reserved

    async def reserve(self, amount: Decimal) -> None:
        """Put so much aside for a call, when calls under way have left enough of what they reserved.

        Raises BudgetSpentError where it will not be enough.
        """
        async with self._changed:
            while not self.covers(amount):
                if not self.reserved:
                    raise BudgetSpentError
                await self._changed.wait()
            self.reserved += amount

    def reserve_more(self, amount: Decimal) -> None:
        """Put more aside for a call under way, which does not wait: others may wait for it."""
        if not self.covers(amount):
            raise BudgetSpentError
        self.reserved += amount

    def covers(self, amount: Decimal) -> bool:
        """Whether so much is left."""
        return self.left is None or amount <= self.left

    async def settle(self, reserved: Decimal, spent: Decimal) -> None:
        """End a call: what was put aside for it, and what it has cost."""
        self.reserved -= reserved
        self.spent += spent
        async with self._changed:
            self._changed.notify_all()


def most_input_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    """At most so many tokens are in messages: one for each byte, and what endpoints put around them.

    >>> most_input_tokens([{"role": "user", "content": "Hi"}])
    82
    """
    return _PER_REQUEST + sum(_PER_MESSAGE + _bytes(message.get("content")) for message in messages)


def usual_input_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    """About so many tokens are in messages: one for four characters, and four around each."""
    return 3 + sum(4 + _bytes(message.get("content")) // _CHARACTERS for message in messages)


def _bytes(content: Any) -> int:
    if content is None:
        return 0
    if isinstance(content, str):
        return len(content.encode("utf-8", "replace"))
    parts = content if isinstance(content, Sequence) else [content]
    texts = sum(_bytes(part.get("text")) for part in parts if isinstance(part, Mapping))
    others = [part for part in parts if not isinstance(part, Mapping) or part.get("type") != "text"]
    return texts + sum(max(_IMAGE, len(json.dumps(part, default=str)) // 8) for part in others)


def most_output_tokens(options: Mapping[str, Any]) -> int:
    """At most so many tokens come back, over all samples. Raises ValueError where the options set no limit.

    >>> most_output_tokens({"max_tokens": 10, "n": 5})
    50
    """
    limits = [options[name] for name in ("max_tokens", "max_completion_tokens") if _is_count(options.get(name))]
    samples = options.get("n")
    if not limits:
        raise ValueError("options without max_tokens: what such a call costs has no limit")
    return max(limits) * (samples if _is_count(samples) else 1)


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


MOST_BYTES = 64 * 2**20
"""Of a reply. With the 20 likeliest tokens beside each, an answer of 16,000 tokens has a third of it."""

_PACKED = 64  # a part of that, where a server packs what it sends, unasked: a byte may stand for a thousand

_CONNECTING = 0.9  # of the time for an attempt: a connection that is not made by then has cost nothing


class TooLongError(BaseException):
    """A reply is longer than is read; no Exception, as clients make a lost connection of every one."""


def open_client(settings: ModelSettings, timeout: float) -> openai.AsyncOpenAI:
    """A client of a model's endpoint, which does not send anything again by itself, and to nobody else.

    Raises ValueError where its key is not in the environment, or cannot be sent.
    """
    address, query = settings.address()
    hooks: Any = {"response": [_limit]}
    http = openai.DefaultAsyncHttpxClient(verify=certificates(), follow_redirects=False, event_hooks=hooks)
    with environment_for(settings.base_url):
        return openai.AsyncOpenAI(
            api_key=settings.key(),
            base_url=address,
            default_query=query,
            default_headers={"Accept-Encoding": "identity"},
            timeout=openai.Timeout(timeout, connect=_CONNECTING * timeout),
            max_retries=0,
            http_client=http,
        )


async def _limit(response: Any) -> None:
    packed = response.headers.get("content-encoding", "identity") != "identity"
    response.stream = _Guarded(response, MOST_BYTES // _PACKED if packed else MOST_BYTES)


class _Guarded(Part):
    """The bytes of a reply, as long as they are not too many."""

    def exceed(self) -> None:
        raise TooLongError


_MILLION = 1_000_000

_FATAL = {  # nothing will be different at the next question
    **dict.fromkeys((401, 403), ": is its key right?"),
    **{402: "", 404: ": is its name right?"},
    **dict.fromkeys((301, 302, 303, 307, 308), ": it is to be asked elsewhere, which base_url must say"),
}

_NO_CREDIT = ("insufficient_quota", "billing_hard_limit_reached", "insufficient_credits", "payment_required")

_FAILURES = 10  # in a row, after which a model is left alone

_MOST_TEXT = 1_000_000  # characters of a reply; more than any model writes

_LONGEST_WAIT = 120.0  # seconds; who is to wait longer is asked in another run

_MOST_WAITS = 12  # for the rate limit, of one request

_BACKOFF = (0.5, 8.0)  # seconds before the second attempt, and at most


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a request is sent."""

    attempts: int = 5
    """Where it fails in passing."""
    waits: int = _MOST_WAITS
    """For a rate limit, beside that."""


class StoppedError(Exception):
    """A model that is not asked any more in this run; the message says why."""


@dataclass(slots=True)
class Bill:
    """What one call has used, and what it may have cost."""

    note: Callable[[Decimal], None]
    """Writes down what the call may cost, before it does."""
    usage: Usage = field(default_factory=Usage)
    reserved: Decimal = Decimal(0)
    spent: Decimal = Decimal(0)
    characters: int = 0
    """About so many were read and written, for a cost where replies tell no tokens."""

    def reserve_more(self, purse: Purse, needed: Decimal) -> None:
        """See to it that so much is put aside beside what is spent. Raises BudgetSpentError."""
        lacking = self.spent + needed - self.reserved
        if lacking > 0:
            purse.reserve_more(lacking)
            self.reserved += lacking
            self.note(self.reserved)


class Respondent:
    """A model, asked with patience.

    Args:
        settings: of the model.
        client: of its endpoint.
        purse: that pays.
        timeout: seconds that one attempt may take, to the end of the reply.
    """

    def __init__(
        self, settings: ModelSettings, client: openai.AsyncOpenAI, purse: Purse, timeout: float = 60.0
    ) -> None:
        self.settings, self.client, self.purse, self.timeout = settings, client, purse, timeout
        self.stopped: str | None = None
        self.remarks: dict[str, None] = {}  # on how its money is reckoned
        self._failures = self._unreadable = 0
        self._closed_until = 0.0

    def worst(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Decimal:
        """Money that one request may cost."""
        price, read, written = self.settings.price, most_input_tokens(messages), most_output_tokens(options)
        return (read * price.dearest_input + written * price.output) / _MILLION

    def counted_money(self, usage: Usage) -> Decimal:
        """Money for the tokens that replies told."""
        return usage.money(self.settings.price) or Decimal(0)

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        bill: Bill,
        after: Decimal = Decimal(0),
        patience: Retries | None = None,
    ) -> Reply:
        """Put messages to the model, again where that failed in passing; the bill gets what it used.

        Args:
            messages: the conversation.
            options: of the request.
            bill: of the call.
            after: money that what follows this request needs.
            patience: how often it is sent again.

        Raises CallError where no reply comes, StoppedError where the model is not asked any more, and BudgetSpentError.
        """
        patience = patience or Retries()
        attempt, waits = 1, 0
        while True:
            await self._open()
            worst = self.worst(messages, options)
            bill.reserve_more(self.purse, worst + after)
            try:
                reply = await self._once(messages, options, bill, worst)
            except CallError as problem:
                limited = problem.failure.status == 429
                waits, attempt = (waits + 1, attempt) if limited else (waits, attempt + 1)
                self._learn(problem.failure, str(problem))
                if not problem.failure.passing or attempt > patience.attempts or waits > patience.waits or self.stopped:
                    self._count_failure(str(problem))
                    raise
                await self._wait(problem.failure, attempt + waits)
            else:
                self._failures = 0
                bill.characters += 4 * usual_input_tokens(messages) + sum(map(len, reply.texts))
                return reply

    async def _once(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], bill: Bill, worst: Decimal
    ) -> Reply:
        usage, charged = Usage(), worst
        try:
            reply = await self._within(messages, options, usage)
            charged = self._charge(usage, worst)
            return reply
        except CallError as problem:
            charged = self._charge(usage, worst) if problem.failure.charged else Decimal(0)
            raise
        finally:  # a call that is cancelled may be charged, too
            bill.spent += charged
            bill.usage.join(usage)
            self.remarks |= dict.fromkeys(usage.remarks(self.settings.price))

    async def _within(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], usage: Usage) -> Reply:
        """A reply, within the time for an attempt: servers that send a byte now and then hold a connection for ever."""
        limit = options.get("timeout")
        try:
            async with asyncio.timeout(limit if isinstance(limit, int | float) else self.timeout):
                reply = read_reply(await complete(self.client, self.settings.served, messages, options, usage))
        except TimeoutError:
            usage.attempts += 1
            raise CallError(TIMED_OUT, Failure(passing=True, charged=True)) from None
        except TooLongError:
            usage.attempts += 1
            raise CallError(f"a reply of more than {MOST_BYTES >> 20} megabytes") from None
        longest = max(map(len, reply.texts))
        if longest > _MOST_TEXT:
            raise CallError(f"a reply of {longest:,} characters, of which no more than {_MOST_TEXT:,} are taken")
        return reply

    def _charge(self, usage: Usage, worst: Decimal) -> Decimal:
        return self.counted_money(usage) if usage.counted else worst

    async def _open(self) -> None:
        """Wait until the model may be asked."""
        loop = asyncio.get_running_loop()
        while self.stopped is None and (wait := self._closed_until - loop.time()) > 0:
            await asyncio.sleep(wait * random.uniform(1.0, 1.1))
        if self.stopped is not None:
            raise StoppedError(self.stopped)

    async def _wait(self, failure: Failure, attempt: int) -> None:
        """Wait before the next attempt, as long as the server says or longer each time; a rate limit is for all."""
        first, most = _BACKOFF
        seconds = failure.wait if failure.wait is not None else min(most, first * 2 ** (attempt - 2))
        if seconds > _LONGEST_WAIT:
            self.stop(f"it wants to be left alone for {seconds:,.0f} seconds")
        elif failure.status == 429:
            self._closed_until = max(self._closed_until, asyncio.get_running_loop().time() + seconds)
        else:
            await asyncio.sleep(seconds * random.uniform(0.8, 1.2))

    def _learn(self, failure: Failure, problem: str) -> None:
        if failure.status in _FATAL:
            self.stop(problem + _FATAL[failure.status])
        elif failure.code in _NO_CREDIT:
            self.stop(f"out of credit: {problem}")

    def _count_failure(self, problem: str) -> None:
        self._failures += 1
        if self._failures >= _FAILURES:
            self.stop(f"{_FAILURES} calls in a row have failed, the last one with: {problem}")

    def count_reading(self, problem: str | None) -> None:
        """Note that a reply could be read, or why not: who is never understood is not asked any more."""
        self._unreadable = 0 if problem is None else self._unreadable + 1
        if self._unreadable >= _FAILURES:
            self.stop(f"the confidence of {_FAILURES} replies in a row cannot be read: {problem}")

    def stop(self, why: str) -> None:
        """Ask the model no more in this run."""
        self.stopped = self.stopped or why

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()
