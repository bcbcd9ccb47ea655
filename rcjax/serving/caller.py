"""Models asked in service: how their requests are sent, within what time, and that each call is told and logged."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from rcjax._base.wording import visible
from rcjax.policy.policy import Policy
from rcjax.serving.call_log import Call, CallLog, CascadeWarning
from rcjax.serving.completions import (
    Assembly,
    CallError,
    Delivery,
    Failure,
    Piece,
    choice_text,
    joined,
    read_chunks,
    read_reply,
)
from rcjax.serving.endpoint import TIMED_OUT, complete, openai, stream_lines
from rcjax.serving.exchange import Endpoint, Exchange, Prompt, record_endpoint
from rcjax.serving.running_checks import Checks
from rcjax.serving.usage import Usage, request_bytes
from rcjax.serving.workers import in_short
from rcjax.signals import Check, Reply

Observe = Callable[[Call], None]
"""Is told of each call as it ends."""


_COUNTED = {"include_usage": True}

_MOST_KEPT, _LONGEST_KEPT = 256, 512  # ways of asking that are kept as JSON; characters of the options of one


class Caller:
    """Asks models, each at its endpoint.

    Args:
        endpoints: of each model by name.
        log: where to write each call.
        concurrency: how many requests may be in flight at once.
        observe: is told of each call as it ends.
        check_seconds: that a check of an answer may take.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        log: CallLog | None,
        concurrency: int,
        observe: Observe | None = None,
        check_seconds: float = 30.0,
    ) -> None:
        self.endpoints, self.log = endpoints, log
        self._checks = Checks(check_seconds)
        self._asked: dict[tuple[str, str], str | None] = {}
        self._slots = asyncio.Semaphore(concurrency)
        self._observe = observe
        self._warned: set[str] = set()

    async def call(
        self,
        question: Prompt,
        model: str,
        policy: Policy | None,
        seconds: float | None = None,
        attempts: list[Exchange] | None = None,
        *,
        kept: bool = False,
    ) -> Exchange:
        """Ask a model, its second question included, and log it; nothing that a server does is raised.

        Args:
            question: what to ask.
            model: by its name in the policy.
            policy: by which its confidence is calibrated; None for a model besides.
            seconds: in which it must answer, all in all.
            attempts: at the question before this one, which is added to them once it has ended, cancelled or not.
            kept: its answer is kept whatever it is: then it is handed on while it comes, if the question wants that.
        """
        attempts = [] if attempts is None else attempts
        exchange, delivery = Exchange(question, model, self.endpoints[model]), None
        if kept and question.deliver is not None:
            calls = tuple(one.call for one in attempts)
            delivery = Delivery(question.deliver, Piece(model, calls, position=question.position, rung=question.rung))
        try:
            async with asyncio.timeout(seconds):
                await exchange.run(self._first(exchange, delivery), partial(self._second, exchange), self._checks)
        except TimeoutError:
            exchange.fail(CallError(TIMED_OUT, Failure(passing=True, charged=True)))
        except asyncio.CancelledError:
            exchange.error = "cancelled: nobody waits for the answer"
            self._end(exchange, policy)
            attempts.append(exchange)
            raise
        if exchange.unread is not None:
            self._warn_once(model, f"model {model}: its confidence cannot be read: {exchange.unread}")
        self._end(exchange, policy)
        attempts.append(exchange)
        if delivery is not None:
            exchange.begun = delivery.begun
            if delivery.problem is not None:
                self._warn_once("deliver", f"deliver= failed: {delivery.problem}: the answer is in the result")
        return exchange

    async def _first(self, exchange: Exchange, delivery: Delivery | None) -> Reply | None:
        """The reply to the question itself; None of a model whose answers are not judged."""
        signal = exchange.endpoint.signal
        exchange.completion = completion = await self._completion(exchange, delivery)
        if signal is None:
            exchange.text = _first_text(completion)
            return None
        return read_reply(completion, calls_alone=isinstance(signal, Check))

    async def _second(
        self, exchange: Exchange, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> Reply:
        """The reply to the second question of a signal."""
        async with self._slots:
            return read_reply(await complete(*_request(exchange, messages, options)))

    async def close(self) -> None:
        """End what runs checks."""
        await self._checks.close()

    async def _completion(self, exchange: Exchange, delivery: Delivery | None) -> Mapping[str, Any]:
        """The completion of the question itself."""
        endpoint, messages = exchange.endpoint, exchange.question.messages
        options = dict(endpoint.options_for(exchange.question.options))
        streaming = {"stream_options": {**(options.pop("stream_options", None) or {}), **_COUNTED}}
        if endpoint.samples > 1:
            return await self._several(exchange, options)
        async with self._slots:
            if delivery is None or (endpoint.signal is not None and options.get("n", 1) != 1):
                return await complete(*_request(exchange, messages, options))
            completion = await _handed_on(_request(exchange, messages, options | streaming), delivery)
        if endpoint.signal is None:
            await delivery.flush()
        await delivery.end()
        return completion

    async def _several(self, exchange: Exchange, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """The completions of answers that vote, asked for at once, as one. Raises CallError where none comes."""

        async def one() -> Mapping[str, Any] | CallError:
            async with self._slots:
                try:
                    return await complete(*_request(exchange, exchange.question.messages, options))
                except CallError as problem:
                    return problem

        replies = await asyncio.gather(*(one() for _ in range(exchange.endpoint.samples)))
        problems = [reply for reply in replies if isinstance(reply, CallError)]
        if len(problems) == len(replies):
            raise problems[0]
        return joined([reply for reply in replies if not isinstance(reply, CallError)])

    def _end(self, exchange: Exchange, policy: Policy | None) -> None:
        """Tell and log the call that an exchange was."""
        question, endpoint = exchange.question, exchange.endpoint
        remarks = [] if getattr(endpoint.client, "tells_cost", False) else exchange.usage.remarks(endpoint.price)
        for remark in remarks:  # what does not add up is other figures in each call
            self._warn_once(f"{exchange.model}: {remark[:16]}", f"model {exchange.model}: {remark}")
        call = exchange.end(policy, self._how_asked(exchange.model, question.options))
        if self._observe is not None:
            try:
                self._observe(call)
            except Exception as problem:  # the answer is paid for: it is given, and logged, all the same
                self._warn_once("observe", f"observe= failed, this call is not counted: {in_short(problem)}")
        news = None if self.log is None else self.log.keep(call, question.messages)
        if news is not None:
            warnings.warn(visible(news), CascadeWarning, stacklevel=2)

    def _how_asked(self, model: str, overrides: Mapping[str, Any]) -> str | None:
        """`record_endpoint` of a model, made once for questions that have the same options of their own."""
        key = model, repr(overrides)
        if key in self._asked:
            return self._asked[key]
        if len(self._asked) >= _MOST_KEPT:
            self._asked.clear()
        record = record_endpoint(self.endpoints[model], overrides)
        if len(key[1]) <= _LONGEST_KEPT:
            self._asked[key] = record
        return record

    def _warn_once(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(visible(message), CascadeWarning, stacklevel=2)


def _first_text(completion: Mapping[str, Any]) -> str | None:
    """The text of an answer that is passed on as it is. Raises CallError for choices that are none."""
    choices = completion["choices"]
    if not all(isinstance(choice, Mapping) for choice in choices):
        raise CallError("malformed answer: no choices")
    return choice_text(choices[0]) or None


_Request = tuple[openai.AsyncOpenAI, str, Sequence[Any], Mapping[str, Any], Usage]


def _request(exchange: Exchange, messages: Sequence[Any], options: Mapping[str, Any]) -> _Request:
    """What is sent, as the functions of `rcjax.serving.endpoint` take it."""
    return exchange.endpoint.client, exchange.endpoint.served, messages, options, exchange.usage


async def _handed_on(sent: _Request, delivery: Delivery) -> Mapping[str, Any]:
    """A completion whose chunks were handed on as they came."""
    _, _, messages, options, usage = sent
    asked, before = request_bytes(messages, options), usage.attempts
    whole, timed_out = Assembly(), True
    usage.waiting += asked
    try:
        async with (
            aclosing(stream_lines(*sent)) as lines,
            aclosing(whole.watch(lines)) as watched,
            aclosing(read_chunks(watched)) as chunks,
        ):
            async for chunk in chunks:
                whole.add(chunk)
                await delivery.hand_on(chunk)
    except CallError as problem:
        timed_out = str(problem) == TIMED_OUT
        raise
    finally:  # what was read of an answer that breaks off is paid for too
        tries = max(usage.attempts - before, 1)
        usage.waiting += asked * (tries - 1) if timed_out and not whole.arrived else -asked
        completion = whole.completion(usage, asked)
    return completion
