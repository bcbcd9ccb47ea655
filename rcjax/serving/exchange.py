"""One question to one model: the request, the signal's reading of the reply, and the call for the log.

An `Exchange` records a question and its outcome. `ModelCaller` sends the requests of a service, each when a slot is
free. `rcjax.collecting.respondent` sends those of a collection, within a budget.
"""

from __future__ import annotations

import asyncio
import json
import time
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

from rcjax._base.codec import describe_type, visible
from rcjax.policy.policy import Policy
from rcjax.policy.signals import Reading, Reply, ReplyCheck, Signal, SignalError
from rcjax.policy.signals.answers import FORM_OPTIONS, as_object
from rcjax.serving.call_log import Call, CallLog, Query
from rcjax.serving.check_processes import CheckError, CheckRunner
from rcjax.serving.completions import choice_text, join_choices, read_reply
from rcjax.serving.endpoints import Endpoint
from rcjax.serving.failures import CallError, CascadeWarning, Failure, WithheldError, connection_error, describe_fault
from rcjax.serving.models_file import format_request_settings
from rcjax.serving.openai_client import CallLimits, CompletionRequest, complete, stream
from rcjax.serving.usage import AnswerMeans, CallUsage, reply_samples


@dataclass(frozen=True, slots=True)
class AnswerChunk:
    """A chunk of an answer that is delivered while it comes, because the policy keeps it in any case."""

    model: str
    """The model that answers, by its name in the policy."""
    query: Query
    calls: tuple[Call, ...]
    """The calls of the models that were asked before this model."""
    chunk: Mapping[str, object] | None = None
    """The chunk of the completion, as the endpoint sent it; None after the last."""


ReceiveChunk = Callable[[AnswerChunk], Awaitable[None]]
"""Receives each chunk of an answer when it comes."""

SendRequest = Callable[[CompletionRequest, CallUsage], Awaitable[Mapping[str, Any]]]
"""Sends a request and returns the completion. Updates the usage; raises CallError."""


@dataclass(slots=True)
class Exchange:
    """A question to a model and its outcome so far; `end` completes it."""

    query: Query
    model: str
    """The model's name in policies and logs."""
    endpoint: Endpoint
    usage: CallUsage = field(default_factory=CallUsage)
    """The usage of the question's requests; `end` adds that of the second question."""
    second_usage: CallUsage = field(default_factory=CallUsage)
    """The usage of the second question's requests."""
    start: float = field(default_factory=time.perf_counter)
    completion: Mapping[str, object] | None = None
    """The completion as the endpoint sent it, which may lack a text; None if nothing usable came back."""
    text: str | None = None
    """The text of the reply."""
    reading: Reading | None = None
    """The signal's reading of the reply."""
    error: str | None = None
    failure_kind: str | None = None
    """The kind of the failure, for metrics."""
    failure: Failure | None = None
    """The failure of the first request."""
    no_confidence: str | None = None
    """The reason why the signal found no confidence in the reply."""
    is_checking: bool = False
    """Whether the check of the answer has started, so that a failure is the check's."""
    check_cost: float = 0.0
    """Dollars that the check reports as its cost; the mean of earlier checks if it ends without a report."""
    is_check_reported: bool = False
    """Whether the check has reported its cost."""
    is_delivered: bool = False
    """Whether a chunk of the answer has been delivered, so that no other model may answer."""
    means: AnswerMeans | None = None
    """The running means of the model's answers, for estimates of interrupted answers; None: estimate by bytes alone."""
    call: Call = field(init=False, repr=False)
    """The call for the log, set by `end`."""

    async def run(self, send_question: SendRequest, send_second: SendRequest, checks: CheckRunner) -> None:
        """Ask the model, and read the reply with a check or a second question. Failures are noted, not raised."""
        signal = self.endpoint.signal
        try:
            self.completion = completion = await self._ask(send_question)
            if signal is None:
                self.text = choice_text(completion["choices"][0]) or None
                return
            reply = read_reply(completion)
            self.text = reply.text or next(filter(None, reply.texts), "")
            if self.endpoint.skips_second(self.query):
                return
            self.reading = await self._read(signal, reply, send_second, checks)
            self.text = self.reading.text or self.text
        except CallError as problem:
            self.fail(problem)
        except SignalError as problem:
            self.error = self.no_confidence = str(problem)
            self.failure_kind = f"the check {problem.kind}" if isinstance(problem, CheckError) else "signal"
            if isinstance(problem, CheckError) and problem.cost is not None:
                self.check_cost, self.is_check_reported = problem.cost, True

    async def _ask(self, send: SendRequest) -> Mapping[str, Any]:
        """Return the completion of the question. With votes, send the requests concurrently and join their choices."""
        request = self.endpoint.make_request(self.query.messages, self.endpoint.options_for(self.query.options))
        if self.endpoint.votes == 1:
            return await send(request, self.usage)
        # A call that is cancelled waits until each request has ended: only then is its usage complete.
        sent = (send(request, self.usage) for _ in range(self.endpoint.votes))
        votes = await asyncio.gather(*sent, return_exceptions=True)
        for vote in votes:
            if isinstance(vote, BaseException) and not isinstance(vote, CallError):
                raise vote
        replies = [vote for vote in votes if not isinstance(vote, BaseException)]
        if not replies:
            raise cast(CallError, votes[0])
        return join_choices(replies)

    async def _read(self, signal: Signal, reply: Reply, send: SendRequest, checks: CheckRunner) -> Reading:
        endpoint, messages = self.endpoint, self.query.messages
        if isinstance(signal, ReplyCheck):
            self.is_checking, self.check_cost = True, (self.means and self.means.check_cost) or 0.0
            options = endpoint.options_for(self.query.options)
            reading, self.check_cost = await checks.read(signal, messages, reply, options)
            self.is_check_reported = True
            return reading
        second = None
        with _signal_errors():
            follow_up = signal.follow_up(messages, reply)
        if follow_up is not None:
            with _signal_errors():
                # It may repeat a reply with lone surrogates, which cannot be sent.
                text = json.dumps([*follow_up[0]], ensure_ascii=False, default=str).encode(errors="replace")
                request = endpoint.make_request(json.loads(text), {**follow_up[1], **endpoint.routing})
            second = read_reply(await send(request, self.second_usage))
        with _signal_errors():
            reading = signal.read(reply, second)
        if not isinstance(reading, Reading):
            raise SignalError(
                f"the signal's read gave {describe_type(reading)}: it must give a rcjax.policy.signals.Reading"
            )
        return reading

    def fail(self, problem: CallError) -> None:
        """Record a failure of the question or, if there is an answer, of the check or the second question."""
        if self.text is None:
            self.error, self.failure_kind, self.failure = str(problem), problem.kind, problem.failure
            self.completion = self.completion if isinstance(problem, WithheldError) else None
        else:
            self.error = f"{'the check' if self.is_checking else 'the second question:'} {problem}"
            self.failure_kind = f"the check {problem.kind}" if self.is_checking else problem.kind

    def end(self, policy: Policy | None = None, request_settings: str | None = None) -> Call:
        """Complete the exchange and return its call, whose confidence a policy calibrates, if there is one."""
        reading, usage, second = self.reading, self.usage, self.second_usage
        answer_unread = self.text if self.endpoint.skips_second(self.query) else None
        usage.join(second)
        usage.questions += second.questions
        logprob = None if reading is None else reading.logprob
        confidence = None
        if policy is not None and self.model in policy.calibrations and logprob is not None:
            confidence = policy.calibrate(self.model, logprob=logprob)
        seconds = time.perf_counter() - self.start
        figures = self.endpoint.price_call(usage, seconds, self.means, self.query.options)
        cost = figures.cost + self.check_cost
        self.call = Call(
            query=self.query,
            model=self.model,
            upstream_model=self.endpoint.upstream_model,
            text=self.text,
            answer=answer_unread if reading is None else reading.answer,
            logprob=logprob,
            confidence=confidence,
            input_tokens=figures.input_tokens,
            output_tokens=figures.output_tokens,
            cached_tokens=figures.cached_tokens,
            cache_write_tokens=figures.cache_write_tokens,
            cost=cost,
            estimated=figures.estimated or (self.check_cost > 0 and not self.is_check_reported),
            signal_cost=min(self.endpoint.second_cost(second), cost),
            attempts=usage.attempts,
            seconds=seconds,
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            error=self.error,
            failure_kind=self.failure_kind,
            has_no_confidence=self.no_confidence is not None,
            request_settings=request_settings,
        )
        return self.call


def calls_of(exchanges: Iterable[Exchange]) -> tuple[Call, ...]:
    """Return the calls of ended exchanges."""
    return tuple(exchange.call for exchange in exchanges)


@contextmanager
def _signal_errors() -> Iterator[None]:
    """Turn any exception into a SignalError, without its message, which may quote a prompt."""
    try:
        yield
    except SignalError:
        raise
    except Exception as error:
        raise SignalError(f"the signal failed: {describe_fault(error)}") from None


_NEUTRAL_NAMES = """
    logprobs metadata moderation prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier
    service_tier store stream_options top_logprobs user
"""

#: Options of a request that do not change the answer; some of them identify the user.
NEUTRAL_OPTIONS = frozenset(_NEUTRAL_NAMES.split())


def record_endpoint(endpoint: Endpoint, overrides: Mapping[str, Any], request_form: str) -> str | None:
    """Return the signal, options and price of a model as JSON for a log; None if its answers are not judged.

    The form of the request stands for the tools and schemas of the question.
    """
    if endpoint.signal is None:
        return None
    options = endpoint.options_for({name: value for name, value in overrides.items() if name not in FORM_OPTIONS})
    needed = endpoint.signal.options
    others = {name: value for name, value in options.items() if name not in needed or needed[name] != value}
    return format_request_settings(endpoint.signal, others, endpoint.price, request_form)


#: Fields of a chunk that hold no content.
_USUAL_FIELDS = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "obfuscation", "service_tier", "system_fingerprint"}
)


_MAX_HELD_CHUNKS = 1_000  # chunks without content that wait for the first content; further ones are dropped


@dataclass(slots=True)
class ChunkForwarder:
    """Forwards the chunks of an answer to a receiver, from the first chunk with content on.

    An answer without content is a failure, after which the next model is asked.
    """

    deliver: ReceiveChunk
    template: AnswerChunk
    """The fields that all chunks share."""
    has_begun: bool = False
    problem: str | None = None
    """The receiver's exception, after which no chunk is delivered; the answer is read to its end."""
    seconds_waited: float = 0.0
    """Seconds in which the answer waited for the receiver."""
    _waiting: list[Mapping[str, object]] = field(default_factory=list)

    async def forward(self, chunk: Mapping[str, Any]) -> None:
        """Forward a chunk, or hold it back until one has content."""
        others = (value for name, value in chunk.items() if name not in _USUAL_FIELDS)  # a moderation of the prompt
        if not chunk["choices"] and all(value is None for value in others):  # it has the usage of this request only
            return
        deltas = (as_object(choice.get("delta")) for choice in chunk["choices"])
        has_content = any(value for delta in deltas for name, value in delta.items() if name != "role")
        if self.has_begun or has_content or len(self._waiting) < _MAX_HELD_CHUNKS:
            self._waiting.append(chunk)
        if self.has_begun or has_content:
            await self.flush()

    async def end(self) -> None:
        """Tell the receiver that the answer is complete, if any of it was delivered."""
        if self.has_begun:
            await self._deliver(None)

    async def flush(self) -> None:
        """Forward the chunks that wait."""
        waiting, self._waiting = self._waiting, []
        for chunk in waiting:
            self.has_begun = True
            await self._deliver(chunk)

    async def _deliver(self, chunk: Mapping[str, Any] | None) -> None:
        if self.problem is not None:
            return
        start = time.monotonic()
        try:
            await self.deliver(replace(self.template, chunk=chunk))
        except Exception as problem:  # the answer is paid for: it is read to its end, and logged
            self.problem = describe_fault(problem)
        finally:
            self.seconds_waited += time.monotonic() - start


Observe = Callable[[Call], None]
"""Receives each call as it ends."""

_MAX_RECORDS = 256  # records of `record_endpoint` that are cached

_MAX_RECORD_LENGTH = 512  # characters of a query's options: the record of longer options is not cached

_SLOTS_PER_SHADOW_SLOT = 4  # slots of other calls for each slot of shadow calls


class ModelCaller:
    """Asks models, each at its endpoint.

    Args:
        endpoints: the endpoint of each model, by name.
        log: the log that each call is written to.
        concurrency: largest number of requests in flight. Shadow calls have a quarter as many slots of their own, at
            least 1, so that no other call waits for a shadow call.
        observe: receives each call as it ends.
        check_seconds: time limit for the check of one answer.
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
        self._checks = CheckRunner(check_seconds)
        self._records: dict[tuple[str, str, str], str | None] = {}
        self._slots = asyncio.Semaphore(concurrency)
        self.max_shadow_requests = max(1, concurrency // _SLOTS_PER_SHADOW_SLOT)
        """Largest number of requests of shadow calls in flight."""
        self._shadow_slots = asyncio.Semaphore(self.max_shadow_requests)
        self._observe = observe
        self._warned: set[str] = set()
        self._means = {model: endpoint.guess_means() for model, endpoint in endpoints.items()}

    def continue_means(self, before: ModelCaller, models: Iterable[str]) -> None:
        """Continue the means of these models, if their signals stay too, from the replaced model caller."""
        for model in models:
            old, new = before.endpoints.get(model), self.endpoints.get(model)
            if old is not None and new is not None and old.signal == new.signal:
                self._means[model] = before._means[model]

    def estimate_cost(self, query: Query, model: str) -> float:
        """Estimate the money that an answer may cost, from the length of the prompt and the limit on tokens."""
        return self.endpoints[model].estimate_cost(query, self._means[model])

    async def call(
        self,
        query: Query,
        model: str,
        policy: Policy | None,
        exchanges: list[Exchange],
        seconds: float | None = None,
        *,
        deliver: ReceiveChunk | None = None,
    ) -> Exchange:
        """Ask a model and log the call. A server's failure is recorded in the exchange, not raised.

        Args:
            query: the query and its options.
            model: the model's name in the policy.
            policy: the policy that calibrates the confidence; None for an uncalibrated call.
            exchanges: the ended exchanges of the query, to which this exchange is added when it ends.
            seconds: time limit for the whole call.
            deliver: receives the answer while it comes, if the policy keeps it in any case.
        """
        exchange = Exchange(query, model, self.endpoints[model], means=self._means[model])
        forwarder: ChunkForwarder | None = None
        if deliver is not None:
            forwarder = ChunkForwarder(deliver, AnswerChunk(model, query, calls_of(exchanges)))
        try:
            await self._run(exchange, forwarder, seconds)
        except asyncio.CancelledError:
            exchange.error, exchange.failure_kind = "cancelled: nobody waits for the answer", "cancelled"
            raise
        except Exception as problem:  # a fault of rcjax: without an error, the line would be an answer
            exchange.error, exchange.failure_kind = f"rcjax failed: {describe_fault(problem)}", "other"
            raise
        finally:
            exchange.end(policy, self._record_of(model, query))
            exchanges.append(exchange)  # before warnings, which a filter may turn into exceptions: it is paid
            self._report(exchange)
        if exchange.no_confidence is not None:
            self._warn_once(model, f"model {model}: its confidence cannot be read: {exchange.no_confidence}")
        if forwarder is not None:
            exchange.is_delivered = forwarder.has_begun
            if forwarder.problem is not None:
                self._warn_once("deliver", f"deliver= failed: {forwarder.problem}: the answer is in the result")
        return exchange

    async def _run(self, exchange: Exchange, forwarder: ChunkForwarder | None, seconds: float | None) -> None:
        """Run an exchange within its time limit, after which it has failed."""
        slots = self._shadow_slots if exchange.query.handling.is_beyond_policy else self._slots
        try:
            async with asyncio.timeout(seconds) as timer:
                limits = CallLimits(slots, timer.when())
                send = send_question = partial(self._send, limits)
                if forwarder is not None:
                    send_question = partial(self._forward, forwarder, exchange.endpoint, limits)
                await exchange.run(send_question, send, self._checks)
        except TimeoutError:
            exchange.fail(connection_error(timed_out=True))
            if forwarder is not None and forwarder.seconds_waited > (seconds or 0.0) / 2:  # no fault of the model
                exchange.error, exchange.failure_kind = "cancelled: the client reads too slowly", "cancelled"
                exchange.failure = None
        if exchange.text is not None:  # there is an answer: the error is why it has no confidence
            exchange.no_confidence = exchange.error

    async def _send(self, limits: CallLimits, request: CompletionRequest, usage: CallUsage) -> Mapping[str, Any]:
        """Send a request and return its completion."""
        options = {name: value for name, value in request.options.items() if name != "stream_options"}
        return await complete(replace(request, options=options), usage, limits)

    async def _forward(
        self,
        forwarder: ChunkForwarder,
        endpoint: Endpoint,
        limits: CallLimits,
        request: CompletionRequest,
        usage: CallUsage,
    ) -> Mapping[str, Any]:
        """Send a request, and deliver the answer chunk by chunk while it comes; answers that vote are not delivered."""
        if endpoint.votes > 1 or (endpoint.signal is not None and request.options.get("n", 1) != 1):
            return await self._send(limits, request, usage)
        completion = await stream(request, usage, forwarder.forward, limits)
        if endpoint.signal is None:
            await forwarder.flush()
        await forwarder.end()
        return completion

    async def close(self) -> None:
        """End the processes that run checks."""
        await self._checks.close()

    def _report(self, exchange: Exchange) -> None:
        """Report an ended exchange to the model's means, the observer and the log; then warn."""
        query, endpoint, call = exchange.query, exchange.endpoint, exchange.call
        if call.output_tokens and not call.estimated and exchange.means is not None:
            votes = min(endpoint.votes, exchange.usage.replies)
            answers, second = votes * reply_samples(endpoint.options_for(query.options)), exchange.second_usage
            tokens = call.output_tokens - second.tokens.output
            seconds = exchange.usage.reply_seconds - second.reply_seconds
            exchange.means.add(tokens / answers, seconds / votes)
        if exchange.is_checking and exchange.reading is not None and exchange.means is not None:
            exchange.means.add_check(exchange.check_cost)
        problem = None
        if self._observe is not None:
            try:
                self._observe(call)
            except Exception as error:  # the answer is paid for: it is given, and logged, all the same
                problem = describe_fault(error)
        self._log_call(exchange)
        if problem is not None:
            self._warn_once("observe", f"observe= failed, this call is not counted: {problem}")
        for remark in exchange.usage.remarks(endpoint.price):
            self._warn_once(f"{exchange.model}: {remark}", f"model {exchange.model}: {remark}")

    def log_unasked(self, query: Query, model: str) -> None:
        """Log a model that was not asked because the query ended early."""
        exchange = Exchange(query.with_handling(charge=None, is_beyond_policy=True), model, self.endpoints[model])
        exchange.error = "not asked: the query ended early"
        exchange.end(None, self._record_of(model, query))
        self._log_call(exchange)

    def _log_call(self, exchange: Exchange) -> None:
        """Write the call of an exchange into the log."""
        message = None if self.log is None else self.log.write_or_count(exchange.call)
        if message is not None:
            warnings.warn(visible(message), CascadeWarning, stacklevel=2)

    def _record_of(self, model: str, query: Query) -> str | None:
        """Return the record of a model's endpoint, cached for queries of the same form and options."""
        unrecorded = NEUTRAL_OPTIONS.union(FORM_OPTIONS)
        relevant = {name: value for name, value in query.options.items() if name not in unrecorded}
        key = model, repr(relevant), query.request_form
        record = self._records.get(key) or record_endpoint(self.endpoints[model], relevant, query.request_form)
        if len(self._records) < _MAX_RECORDS and len(key[1]) <= _MAX_RECORD_LENGTH:
            self._records[key] = record
        return record

    def _warn_once(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(visible(message), CascadeWarning, stacklevel=2)


async def gather_all(awaitables: Iterable[Awaitable[Any]]) -> list[Any]:
    """Await all concurrently; return the results, or raise the first exception once all have ended."""
    outcomes = await asyncio.gather(*awaitables, return_exceptions=True)
    raise_first(outcomes)
    return outcomes


def raise_first(outcomes: Iterable[object]) -> None:
    """Raise the first exception among the outcomes of `asyncio.gather`, if there is one."""
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
