"""One model asked about one question: the second question of its signal included, timed, paid for, and in the log."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rcjax._base.wording import visible
from rcjax.policy.policy import Policy
from rcjax.serving.answer_keys import CascadeWarning
from rcjax.serving.asked import AskedRecords
from rcjax.serving.asking import Endpoint
from rcjax.serving.call_log import Call, CallLog
from rcjax.serving.completions import CallError, Failure, NoTextError, Usage, choice_text, joined, read_reply
from rcjax.serving.endpoint import TIMED_OUT, complete, openai, stream_lines
from rcjax.serving.prompts import Prompt, text_bytes
from rcjax.serving.running_checks import Checks
from rcjax.serving.streams import Assembly, Delivery, in_short, read_chunks
from rcjax.signals import Check, Reading, Reply, SignalError

__all__ = ["Caller", "CascadeWarning", "ModelAttempt", "Observe"]


Observe = Callable[[Call], None]
"""Is told of each call as it ends."""


_COUNTED = {"include_usage": True}


_REMEMBERED, _ENOUGH = 50, 20  # calls of a model whose seconds are remembered, and that tell how quick it can be


@dataclass(frozen=True, slots=True)
class ModelAttempt:
    """A model that was asked."""

    call: Call
    completion: Mapping[str, Any] | None
    """As the endpoint sent it, one without text too; None where nothing usable came back."""
    failure: Failure | None
    """What went wrong with the first question."""
    usage: Usage
    """What its requests have used."""
    begun: bool
    """Some of the answer was handed on while it came."""


@dataclass(slots=True)
class _Progress:
    """What a call has brought so far."""

    usage: Usage = field(default_factory=Usage)
    start: float = field(default_factory=time.perf_counter)
    completion: Mapping[str, Any] | None = None
    delivery: Delivery | None = None
    text: str | None = None
    answer: str | None = None
    likeliest: str | None = None
    logprob: float | None = None
    error: str | None = None
    failure: Failure | None = None
    checking: bool = False
    """The answer is there, and is being checked."""
    check_cost: float = 0.0
    """Money that its check says it cost."""
    sent: int = 0
    """Bytes of text of a request, as far as they may be charged though nothing came back."""

    def fail(self, problem: CallError) -> None:
        """Note a request that failed: the first, or the second on an answer that is there."""
        later = "the check" if self.checking else "the second question:"
        self.error = str(problem) if self.text is None else f"{later} {problem}"
        if self.text is None:
            self.failure = problem.failure
        if str(problem) != TIMED_OUT:  # a server that says no, or hangs up, has not worked on it
            self.sent = 0


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
        self._asked = AskedRecords(endpoints)
        self._slots = asyncio.Semaphore(concurrency)
        self._observe = observe
        self._seconds: dict[str, deque[float]] = {model: deque(maxlen=_REMEMBERED) for model in endpoints}
        self._warned: set[str] = set()

    def can_answer(self, model: str, seconds: float) -> bool:
        """Whether a model has ever answered within so many seconds, as far as its last calls tell."""
        past = self._seconds[model]
        return seconds > 0 and (len(past) < _ENOUGH or min(past) <= seconds)

    async def call(
        self,
        question: Prompt,
        model: str,
        policy: Policy | None,
        seconds: float | None = None,
        before: tuple[Call, ...] | None = None,
    ) -> ModelAttempt:
        """Ask a model, its second question included, and log it; nothing that a server does is raised.

        Args:
            question: what to ask.
            model: by its name in the policy.
            policy: by which its confidence is calibrated; None for a model besides.
            seconds: in which it must answer, all in all.
            before: the calls before this one, where its answer is kept whatever it is: then it is handed on while it
                comes, if the question wants that.
        """
        progress = _Progress()
        if before is not None and question.deliver is not None:
            progress.delivery = Delivery(question.deliver, model, before)
        try:
            async with asyncio.timeout(seconds):
                await self._ask(question, model, progress)
        except TimeoutError:
            progress.fail(CallError(TIMED_OUT, Failure(passing=True, charged=True)))
        except asyncio.CancelledError:
            progress.error = "cancelled: nobody waits for the answer"
            self._write(self._end(question, model, policy, progress), question)
            raise
        call = self._end(question, model, policy, progress)
        self._write(call, question)
        begun = progress.delivery is not None and progress.delivery.begun
        if progress.delivery is not None and progress.delivery.problem is not None:
            self._warn_once("deliver", f"deliver= failed: {progress.delivery.problem}: the answer is in the result")
        return ModelAttempt(call, progress.completion, progress.failure, progress.usage, begun)

    async def _ask(self, question: Prompt, model: str, progress: _Progress) -> None:
        endpoint, completion = self.endpoints[model], None
        try:
            completion = await self._first(question, endpoint, progress)
            self._seconds[model].append(time.perf_counter() - progress.start)
            if endpoint.signal is None:
                progress.text, progress.completion = _first_text(completion), completion
                return
            checked = isinstance(endpoint.signal, Check)
            reply, progress.completion = read_reply(completion, calls_alone=checked), completion
            progress.text = reply.text or next(filter(None, reply.texts), "")
            reading = await self._reading(question, endpoint, reply, progress)
            progress.text, progress.answer = reading.text or progress.text, reading.answer
            progress.logprob, progress.likeliest = reading.logprob, reading.likeliest
        except CallError as problem:
            progress.fail(problem)
            if isinstance(problem, NoTextError) and progress.text is None:
                progress.completion = completion
        except SignalError as problem:
            progress.error = str(problem)
            self._warn_once(model, f"model {model}: its confidence cannot be read: {problem}")

    async def _reading(self, question: Prompt, endpoint: Endpoint, reply: Reply, progress: _Progress) -> Reading:
        """What the signal reads in a reply: by a second question to the model, or by a check."""
        if isinstance(endpoint.signal, Check):
            progress.checking = True
            call = question.messages, reply, endpoint.options_for(question.options)
            reading, progress.check_cost = await self._checks.reading(endpoint.signal, *call)
            return reading
        second = endpoint.follow_up(question.messages, reply)
        if second is not None:
            async with self._slots:
                second = read_reply(await complete(endpoint.client, endpoint.served, *second, progress.usage))
        return endpoint.read(reply, second)

    async def close(self) -> None:
        """End what runs checks."""
        await self._checks.close()

    async def _first(self, question: Prompt, endpoint: Endpoint, progress: _Progress) -> Mapping[str, Any]:
        """The completion of the question itself."""
        options = dict(endpoint.options_for(question.options))
        streaming = {"stream_options": {**(options.pop("stream_options", None) or {}), **_COUNTED}}
        target = endpoint.client, endpoint.served, question.messages
        if endpoint.samples > 1:
            progress.sent = text_bytes(question.messages)
            return await self._several(target, options, endpoint.samples, progress.usage)
        async with self._slots:
            progress.sent = text_bytes(question.messages)
            if progress.delivery is None or (endpoint.signal is not None and options.get("n", 1) != 1):
                return await complete(*target, options, progress.usage)
            completion = await _handed_on(target, options | streaming, progress.usage, progress.delivery)
        if endpoint.signal is None:
            await progress.delivery.flush()
        await progress.delivery.end()
        return completion

    async def _several(
        self,
        target: tuple[openai.AsyncOpenAI, str, Sequence[Any]],
        options: Mapping[str, Any],
        number: int,
        usage: Usage,
    ) -> Mapping[str, Any]:
        """So many completions of a question at once, as one: of those that come. Raises CallError where none does."""

        async def one() -> Mapping[str, Any] | CallError:
            async with self._slots:
                try:
                    return await complete(*target, options, usage)
                except CallError as problem:
                    return problem

        replies = await asyncio.gather(*(one() for _ in range(number)))
        problems = [reply for reply in replies if isinstance(reply, CallError)]
        if len(problems) == number:
            raise problems[0]
        return joined([reply for reply in replies if not isinstance(reply, CallError)])

    def _end(self, question: Prompt, model: str, policy: Policy | None, progress: _Progress) -> Call:
        endpoint, usage, logprob = self.endpoints[model], progress.usage, progress.logprob
        calibrated = policy is not None and model in policy.models and logprob is not None
        account, error = endpoint.account(usage, progress.sent), progress.error or question.unjudged
        account["cost"] = None if account["cost"] is None else account["cost"] + progress.check_cost
        if account["cost"] is None:  # free it was not: learning leaves out what failed
            account["cost"], error = 0.0, error or "the server tells no tokens: what it cost is not known"
        return Call(
            query=question.query,
            model=model,
            served=endpoint.served,
            text=progress.text,
            answer=progress.answer,
            logprob=logprob,
            confidence=policy.calibrate(model, logprob=logprob) if calibrated else None,  # type: ignore[union-attr]
            **account,
            attempts=max(usage.attempts, 1 if progress.sent else 0),
            seconds=time.perf_counter() - progress.start,
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            shadow=question.shadow,
            error=error,
            asked=self._asked.of(model, question.options),
            segment=question.segment,
            likeliest=progress.likeliest,
        )

    def _write(self, call: Call, question: Prompt) -> None:
        if self._observe is not None:
            try:
                self._observe(call)
            except Exception as problem:  # the answer is paid for: it is given, and logged, all the same
                self._warn_once("observe", f"observe= failed, calls are not told: {in_short(problem)}")
        news = None if self.log is None else self.log.keep(call, question.messages)
        if news is not None:
            warnings.warn(visible(news), CascadeWarning, stacklevel=2)

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


async def _handed_on(
    target: tuple[openai.AsyncOpenAI, str, Sequence[Any]],
    options: Mapping[str, Any],
    usage: Usage,
    delivery: Delivery,
) -> Mapping[str, Any]:
    """A completion whose chunks were handed on as they came."""
    whole = Assembly()
    request = stream_lines(*target, options, usage)
    try:
        async with (
            aclosing(request) as lines,
            aclosing(whole.watch(lines)) as watched,
            aclosing(read_chunks(watched)) as chunks,
        ):
            async for chunk in chunks:
                whole.add(chunk)
                await delivery.hand_on(chunk)
    finally:  # what was read of an answer that breaks off is paid for too
        completion = whole.completion(usage)
    return completion
