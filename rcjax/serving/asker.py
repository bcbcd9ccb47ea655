"""One asker: a question is put to a model, what its signal reads in the reply, and the call that a log keeps of it.

`Exchange` is what has come of that. How a request is sent is for whoever asks: a `Caller` sends it when a slot is free
and hands the answer on while it comes; `rcjax.collecting.respondent` has it sent again, and minds the money.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from rcjax._base.checks import what_it_is
from rcjax._base.wording import visible
from rcjax.policy.policy import Policy
from rcjax.serving.asking import Endpoint
from rcjax.serving.call_log import Billed, Call, CallLog, CascadeWarning
from rcjax.serving.completions import Deliver, Delivery, Piece, choice_text, joined, read_reply
from rcjax.serving.endpoint import TIMED_OUT, complete, stream
from rcjax.serving.failures import CallError, Failure, WithheldError
from rcjax.serving.models_file import record_asked
from rcjax.serving.pace import Pace, most_written
from rcjax.serving.running_checks import Checks
from rcjax.serving.usage import Usage
from rcjax.serving.workers import in_short
from rcjax.signals import Check, Reading, Reply, Signal, SignalError
from rcjax.signals.request_form import FORMING, PLAIN


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is put to the models."""

    query: str
    """Its id."""
    messages: Sequence[Mapping[str, Any]]
    """The conversation, as in the API."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of its requests, which go before those of the models, and after those of the signal."""
    segment: str | None = None
    """What kind of query it is, for policies with cascades for segments; None if nobody tells."""
    client: str | None = None
    """Who asks, by name; None if clients have none."""
    shadow: bool = False
    """It goes to all models, whatever they answer."""
    deliver: Deliver | None = None
    """Takes the answer of a model that is kept whatever it is, while it comes."""
    form: str = PLAIN
    """Of the request (`rcjax.signals.request_form`)."""
    unjudged: str | None = None
    """Why its answer is not judged, where it is not."""
    billed: Billed | None = None
    """On whose bill it is; None if on no policy's."""
    position: float | None = None
    """Where on its ladder the policy stands; None for a policy of one rung."""
    rung: int | None = None
    """By which rung it goes; None for a policy of one rung."""


Send = Callable[[Endpoint, Sequence[Mapping[str, Any]], Mapping[str, Any], Usage], Awaitable[Mapping[str, Any]]]
"""Sends messages to an endpoint, by the options of the request, and gives the completion; CallError where none comes.
What the request uses is added to the usage."""


@dataclass(slots=True)
class Exchange:
    """What has come of putting a question to a model: so far, and from `end` on all of it."""

    question: Prompt
    model: str
    """By its name in policies and logs."""
    endpoint: Endpoint
    usage: Usage = field(default_factory=Usage)
    """What its requests have used."""
    start: float = field(default_factory=time.perf_counter)
    completion: Mapping[str, Any] | None = None
    """As the endpoint sent it, one without text too; None if nothing usable came back."""
    text: str | None = None
    """What the model replied."""
    reading: Reading | None = None
    """What the signal reads in it."""
    error: str | None = None
    failure: Failure | None = None
    """What went wrong with the first request."""
    unread: str | None = None
    """Why the signal reads nothing in the reply."""
    checking: bool = False
    """The answer is there, and is being checked."""
    check_cost: float = 0.0
    """Money that its check says it cost."""
    begun: bool = False
    """Some of the answer was handed on while it came."""
    pace: Pace | None = None
    """Of the model's answers, by which an answer that is cut off is reckoned; None if by its bytes alone."""
    call: Call = field(init=False, repr=False)
    """What a log keeps of it, once it has ended."""

    async def run(self, first: Send, send: Send, checks: Checks) -> None:
        """Ask, and read the reply, by a check or with a second question; what fails is noted, and not raised.

        Args:
            first: sends the question itself.
            send: sends the second question of the signal.
            checks: runs the check that the signal is.
        """
        signal = self.endpoint.signal
        try:
            self.completion = completion = await self._answered(first)
            if signal is None:
                self.text = _first_text(completion)
                return
            reply = read_reply(completion)
            self.text = reply.text or next(filter(None, reply.texts), "")
            self.reading = await self._read(signal, reply, send, checks)
            self.text = self.reading.text or self.text
        except CallError as problem:
            self.fail(problem)
        except SignalError as problem:
            self.error = self.unread = str(problem)

    async def _answered(self, send: Send) -> Mapping[str, Any]:
        """The completion of the question itself: of answers that vote, asked for at once, all as one."""
        request = self.endpoint, self.question.messages, self.endpoint.options_for(self.question.options), self.usage

        async def one() -> Mapping[str, Any] | CallError:
            try:
                return await send(*request)
            except CallError as problem:
                return problem

        if self.endpoint.samples == 1:
            return await send(*request)
        replies = await asyncio.gather(*(one() for _ in range(self.endpoint.samples)))
        problems = [reply for reply in replies if isinstance(reply, CallError)]
        if len(problems) == len(replies):
            raise problems[0]
        return joined([reply for reply in replies if not isinstance(reply, CallError)])

    async def _read(self, signal: Signal, reply: Reply, send: Send, checks: Checks) -> Reading:
        endpoint, messages = self.endpoint, self.question.messages
        if isinstance(signal, Check):
            self.checking = True
            options = endpoint.options_for(self.question.options)
            reading, self.check_cost = await checks.reading(signal, messages, reply, options)
            return reading
        with _failures():
            question = signal.follow_up(messages, reply)
            request = None if question is None else (list(question[0]), {**question[1], **endpoint.routing})
        second = None if request is None else read_reply(await send(endpoint, *request, self.usage))
        with _failures():
            reading = signal.read(reply, second)
        if not isinstance(reading, Reading):
            raise SignalError(f"the signal's read gave {what_it_is(reading)}: it must give a rcjax.signals.Reading")
        return reading

    def fail(self, problem: CallError) -> None:
        """Note a request that failed: the first, or the second on an answer that is there."""
        if self.text is None:
            self.error, self.failure = str(problem), problem.failure
            self.completion = self.completion if isinstance(problem, WithheldError) else None
        else:
            self.error = f"{'the check' if self.checking else 'the second question:'} {problem}"

    def end(self, policy: Policy | None = None, asked: str | None = None) -> Call:
        """End it: what it was as a call.

        Args:
            policy: by which the confidence is calibrated; None if none is.
            asked: how the model is asked, as JSON.
        """
        question, read, usage = self.question, self.reading, self.usage
        logprob = None if read is None else read.logprob
        calibrated = policy is not None and self.model in policy.calibrations and logprob is not None
        seconds, is_cut = time.perf_counter() - self.start, usage.waiting or usage.broken
        most = most_written(self.endpoint.options_for(question.options)) if is_cut else None
        account = self.endpoint.account(usage, seconds, self.pace, most)
        account["cost"] += self.check_cost
        self.call = Call(
            query=question.query,
            model=self.model,
            served=self.endpoint.served,
            text=self.text,
            answer=None if read is None else read.answer,
            logprob=logprob,
            confidence=policy.calibrate(self.model, logprob=logprob) if calibrated else None,  # type: ignore[union-attr]
            **account,
            attempts=max(usage.attempts, 1 if usage.waiting else 0),
            seconds=seconds,
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            shadow=question.shadow,
            segment=question.segment,
            client=question.client,
            error=self.error or question.unjudged,
            unread=self.unread is not None,
            asked=asked,
            likeliest=None if read is None else read.likeliest,
            added=question.shadow and policy is None,
            billed=question.billed,
        )
        return self.call


@contextmanager
def _failures() -> Iterator[None]:
    """Make a SignalError of whatever is raised, without its message, which may quote a prompt."""
    try:
        yield
    except SignalError:
        raise
    except Exception as error:
        raise SignalError(f"the signal failed: {in_short(error)}") from None


def _first_text(completion: Mapping[str, Any]) -> str | None:
    """The text of an answer that is passed on as it is. Raises CallError for choices that are none."""
    choices = completion["choices"]
    if not all(isinstance(choice, Mapping) for choice in choices):
        raise CallError("malformed answer: no choices")
    return choice_text(choices[0]) or None


_NAMES = """
    logprobs metadata moderation prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier
    service_tier store stream_options top_logprobs user
"""

#: Options of a request that change no answer; some of them say who asks.
NEUTRAL = frozenset(_NAMES.split())


def record_endpoint(endpoint: Endpoint, overrides: Mapping[str, Any], form: str = PLAIN) -> str | None:
    """What a log keeps of how a model is asked, by a question of some form that has options of its own, as JSON.

    None if nothing is judged. The tools and schemas of the question itself are told by its form alone.
    """
    if endpoint.signal is None:
        return None
    overrides = {name: value for name, value in overrides.items() if name not in FORMING}
    options, needed = endpoint.options_for(overrides), endpoint.signal.options
    more = {name: value for name, value in options.items() if name not in needed or needed[name] != value}
    return record_asked(endpoint.signal, more, endpoint.price, form)


Observe = Callable[[Call], None]
"""Is told of each call as it ends."""

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
        self._asked: dict[tuple[str, str, str], str | None] = {}
        self._slots = asyncio.Semaphore(concurrency)
        self._observe = observe
        self._warned: set[str] = set()
        self._paces = {model: endpoint.guess_pace() for model, endpoint in endpoints.items()}

    def expect(self, question: Prompt, model: str) -> float:
        """What an answer of a model may cost: money, by the length of the prompt and the limit on its tokens."""
        return self.endpoints[model].expect(question.messages, question.options, self._paces[model])

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
        exchange = Exchange(question, model, self.endpoints[model], pace=self._paces[model])
        delivery, first = None, self._send
        if kept and question.deliver is not None:
            calls = tuple(one.call for one in attempts)
            delivery = Delivery(question.deliver, Piece(model, calls, position=question.position, rung=question.rung))
            first = partial(self._hand_on, delivery)
        try:
            async with asyncio.timeout(seconds):
                await exchange.run(first, self._send, self._checks)
        except TimeoutError:
            exchange.fail(CallError(TIMED_OUT, Failure(passing=True, charged=True)))
        except asyncio.CancelledError:
            exchange.error = "cancelled: nobody waits for the answer"
            raise
        finally:
            self._end(exchange, policy)
            attempts.append(exchange)
        if exchange.unread is not None:
            self._warn_once(model, f"model {model}: its confidence cannot be read: {exchange.unread}")
        if delivery is not None:
            exchange.begun = delivery.begun
            if delivery.problem is not None:
                self._warn_once("deliver", f"deliver= failed: {delivery.problem}: the answer is in the result")
        return exchange

    async def _send(
        self, endpoint: Endpoint, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], usage: Usage
    ) -> Mapping[str, Any]:
        """The completion of one request, which the client sends again by itself."""
        options = {name: value for name, value in options.items() if name != "stream_options"}
        async with self._slots:
            return await complete(endpoint.client, endpoint.served, messages, options, usage)

    async def _hand_on(
        self,
        delivery: Delivery,
        endpoint: Endpoint,
        messages: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        usage: Usage,
    ) -> Mapping[str, Any]:
        """A completion that is handed on as it comes; as a whole, where several answers are one."""
        if endpoint.samples > 1 or (endpoint.signal is not None and options.get("n", 1) != 1):
            return await self._send(endpoint, messages, options, usage)
        async with self._slots:
            completion = await stream(endpoint.client, endpoint.served, messages, options, usage, delivery.hand_on)
        if endpoint.signal is None:
            await delivery.flush()
        await delivery.end()
        return completion

    async def close(self) -> None:
        """End what runs checks."""
        await self._checks.close()

    def _end(self, exchange: Exchange, policy: Policy | None) -> None:
        """Tell and log the call that an exchange was."""
        question, endpoint = exchange.question, exchange.endpoint
        remarks = [] if getattr(endpoint.client, "tells_cost", False) else exchange.usage.remarks(endpoint.price)
        for remark in remarks:
            self._warn_once(f"{exchange.model}: {remark}", f"model {exchange.model}: {remark}")
        call = exchange.end(policy, self._how_asked(exchange.model, question))
        if call.output_tokens and not call.estimated and exchange.pace is not None:
            exchange.pace.add(call.output_tokens, call.seconds)
        if self._observe is not None:
            try:
                self._observe(call)
            except Exception as problem:  # the answer is paid for: it is given, and logged, all the same
                self._warn_once("observe", f"observe= failed, this call is not counted: {in_short(problem)}")
        news = None if self.log is None else self.log.keep(call, question.messages)
        if news is not None:
            warnings.warn(visible(news), CascadeWarning, stacklevel=2)

    def _how_asked(self, model: str, question: Prompt) -> str | None:
        """`record_endpoint` of a model, made once for questions of one form with the same options of their own."""
        unseen = NEUTRAL.union(FORMING)
        relevant = {name: value for name, value in question.options.items() if name not in unseen}
        key = model, repr(relevant), question.form
        record = self._asked.get(key) or record_endpoint(self.endpoints[model], relevant, question.form)
        if len(self._asked) < _MOST_KEPT and len(key[1]) <= _LONGEST_KEPT:
            self._asked[key] = record
        return record

    def _warn_once(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(visible(message), CascadeWarning, stacklevel=2)
