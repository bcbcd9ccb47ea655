"""One exchange with a model: a question, the reply, what its signal reads in it, and the call that a log keeps of it.

How a request is sent is for whoever asks: `rcjax.serving.caller` sends it when a slot is free, and hands the answer on
while it comes; `rcjax.collecting.calls` has it sent again, and minds the money.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rcjax._base.arguments import what_it_is
from rcjax._base.tokens import Price, Tokens
from rcjax.policy.policy import Policy
from rcjax.serving.call_log import Billed, Call
from rcjax.serving.completions import CallError, Deliver, Failure, NoTextError
from rcjax.serving.endpoint import openai
from rcjax.serving.models_file import record_asked
from rcjax.serving.running_checks import Checks
from rcjax.serving.usage import Usage
from rcjax.serving.workers import in_short
from rcjax.signals import Check, Reading, Reply, Signal, SignalError


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
    shadow: bool = False
    """It goes to all models, whatever they answer."""
    deliver: Deliver | None = None
    """Takes the answer of a model that is kept whatever it is, while it comes."""
    unjudged: str | None = None
    """Why its answer is not judged, where it is not."""
    billed: Billed | None = None
    """On whose bill it is; None if on no policy's."""
    position: float | None = None
    """Where on its ladder the policy stands; None for a policy of one rung."""
    rung: int | None = None
    """By which rung it goes; None for a policy of one rung."""


_BYTES = 4  # of a token, as a rule

_SYNONYMS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}  # of which one may be set

_MERGED = ("extra_body", "extra_headers", "extra_query")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and how one model is asked, and what it costs."""

    client: openai.AsyncOpenAI
    served: str
    signal: Signal | None  # None of a model whose answers are not judged
    options: Mapping[str, Any]
    price: Price | None  # per million tokens
    mean: float | None  # cost of a call by a log; None if none is known, which needs a price
    samples: int = 1  # requests that one question takes, whose answers vote

    @property
    def routing(self) -> dict[str, Any]:
        """Options that a second question shares with the first."""
        return {name: value for name, value in self.options.items() if name.startswith("extra_")}

    def options_for(self, overrides: Mapping[str, Any]) -> Mapping[str, Any]:
        """Options of a question that has its own: these go before those of the model, what the signal needs before all.

        >>> from rcjax.signals import MeanLogprob
        >>> endpoint = Endpoint(None, "small", MeanLogprob(), {"logprobs": True, "max_tokens": 9}, None, None)
        >>> endpoint.options_for({"max_completion_tokens": 5, "logprobs": False})
        {'logprobs': True, 'max_completion_tokens': 5}
        """
        if not overrides:
            return self.options
        replaced = {other for name, other in _SYNONYMS.items() if name in overrides}
        options = {name: value for name, value in self.options.items() if name not in replaced} | dict(overrides)
        for name in _MERGED:
            if name in overrides and name in self.options:
                options[name] = {**self.options[name], **overrides[name]}
        signal_options = self.signal.options if self.signal is not None else {}
        needed = {name: self.options[name] for name in signal_options if name in self.options}
        top = max(needed.get("top_logprobs", 0), overrides.get("top_logprobs", 0))
        return {**options, **needed, **({"top_logprobs": top} if top else {})}

    def follow_up(
        self, messages: Sequence[Mapping[str, Any]], reply: Reply
    ) -> tuple[list[Mapping[str, Any]], dict[str, Any]] | None:
        """(messages, options) of the second question, or None; SignalError for whatever goes wrong in the signal."""
        if self.signal is None:
            return None
        with _failures():
            second = self.signal.follow_up(messages, reply)
            return None if second is None else (list(second[0]), {**second[1], **self.routing})

    def read(self, reply: Reply, second: Reply | None) -> Reading:
        """What the signal reads; SignalError for whatever goes wrong in it."""
        if self.signal is None:
            raise SignalError("its answers are not judged")
        with _failures():
            reading = self.signal.read(reply, second)
        if not isinstance(reading, Reading):
            raise SignalError(f"the signal's read gave {what_it_is(reading)}: it must give a rcjax.signals.Reading")
        return reading

    def account(self, usage: Usage) -> dict[str, Any]:
        """The tokens and the cost of a call, as its fields.

        What no reply has counted is estimated: by price, a token for four bytes of what was sent and said; and at least
        the mean of the log, where a reply came. Of votes the mean is of all: those that never came have no part in it.
        """
        told = usage.money(self.price, free=getattr(self.client, "tells_cost", False))
        missing, cost = usage.replies - usage.counted, 0.0 if told is None else float(told)
        whole = not missing and not usage.waiting
        estimated = (told is None or not whole) and bool(usage.replies or usage.waiting)
        if estimated and self.price is not None:
            sizes = usage.uncounted_read + usage.waiting, usage.uncounted_written
            read, written = (-(-size // _BYTES) for size in sizes)
            cost += float(self.price.money(Tokens(read, written)))
        if estimated and self.mean is not None and (missing or self.price is None):
            cost = max(cost, self.mean * min(1.0, (usage.replies or self.samples) / self.samples))
        read, written, cached, stored = usage.tokens if whole and usage.replies else (None, None, 0, 0)
        counts = {"input_tokens": read, "output_tokens": written, "cached_tokens": cached, "cache_write_tokens": stored}
        return {**counts, "cost": cost, "estimated": estimated}


@contextmanager
def _failures() -> Iterator[None]:
    """Make a SignalError of whatever is raised, without its message, which may quote a prompt."""
    try:
        yield
    except SignalError:
        raise
    except Exception as error:
        raise SignalError(f"the signal failed: {in_short(error)}") from None


#: Options of a request that change no answer; some of them say who asks.
NEUTRAL = frozenset(
    {
        "logprobs",
        "metadata",
        "moderation",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "top_logprobs",
        "user",
    }
)


def record_endpoint(endpoint: Endpoint, overrides: Mapping[str, Any] | None = None) -> str | None:
    """The same of an endpoint of a cascade, and of a question's own options; None if nothing is judged."""
    if endpoint.signal is None:
        return None
    relevant = {name: value for name, value in (overrides or {}).items() if name not in NEUTRAL}
    options, needed = endpoint.options_for(relevant), endpoint.signal.options
    more = {name: value for name, value in options.items() if name not in needed or needed[name] != value}
    return record_asked(endpoint.signal, more, endpoint.price)


Send = Callable[[Sequence[Mapping[str, Any]], Mapping[str, Any]], Awaitable[Reply]]
"""Puts messages to a model, by the options of the request; CallError where no reply comes."""


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
    """As the endpoint sent it, one without text too; None if nothing usable came back, or nobody keeps it."""
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
    call: Call = field(init=False, repr=False)
    """What a log keeps of it, once it has ended."""

    async def run(self, first: Awaitable[Reply | None], send: Send, checks: Checks) -> None:
        """Read the reply to the question, by a check or with a second question; what fails is noted, and not raised.

        Args:
            first: brings the reply; None if the answer is not judged.
            send: puts the second question of the signal.
            checks: runs the check that the signal is.
        """
        try:
            reply = await first
            if reply is None:
                return
            self.text = reply.text or next(filter(None, reply.texts), "")
            self.reading = await self._read(reply, send, checks)
            self.text = self.reading.text or self.text
        except CallError as problem:
            self.fail(problem)
        except SignalError as problem:
            self.error = self.unread = str(problem)

    async def _read(self, reply: Reply, send: Send, checks: Checks) -> Reading:
        endpoint, messages = self.endpoint, self.question.messages
        if isinstance(endpoint.signal, Check):
            self.checking = True
            options = endpoint.options_for(self.question.options)
            reading, self.check_cost = await checks.reading(endpoint.signal, messages, reply, options)
            return reading
        second = endpoint.follow_up(messages, reply)
        return endpoint.read(reply, None if second is None else await send(*second))

    def fail(self, problem: CallError) -> None:
        """Note a request that failed: the first, or the second on an answer that is there."""
        if self.text is None:
            self.error, self.failure = str(problem), problem.failure
            self.completion = self.completion if isinstance(problem, NoTextError) else None
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
        account = self.endpoint.account(usage)
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
            seconds=time.perf_counter() - self.start,
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            shadow=question.shadow,
            segment=question.segment,
            error=self.error or question.unjudged,
            unread=self.unread is not None,
            asked=asked,
            likeliest=None if read is None else read.likeliest,
            added=question.shadow and policy is None,
            billed=None if question.shadow and policy is None else question.billed,
        )
        return self.call
