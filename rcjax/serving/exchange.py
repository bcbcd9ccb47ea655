"""One exchange with a model: a question, the reply, what its signal reads in it, and the call that a log keeps of it.

How a request is sent is for whoever asks: `rcjax.serving.caller` sends it when a slot is free, and hands the answer on
while it comes; `rcjax.collecting.calls` has it sent again, and minds the money.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rcjax.policy.policy import Policy
from rcjax.serving.asking import Endpoint
from rcjax.serving.call_log import Call
from rcjax.serving.completions import CallError, Failure, NoTextError
from rcjax.serving.prompts import Prompt
from rcjax.serving.running_checks import Checks
from rcjax.serving.usage import Usage
from rcjax.signals import Check, Reading, Reply, SignalError

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
