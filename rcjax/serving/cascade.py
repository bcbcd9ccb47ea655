"""Running a cascade: asks model after model, by any OpenAI-compatible endpoint, until the policy keeps an answer.

    cascade = Cascade(load_policy("policy.json"), AsyncOpenAI(), signal=signals.Choice(), log=CallLog("calls.jsonl"))
    result = await cascade.ask("Which planet is largest? A Mars, B Jupiter. Reply with the letter.", query="q1")

Needs `pip install 'rcjax[run]'`; neither JAX nor numpy is imported.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
import warnings
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import NoneType, TracebackType
from typing import Any, Literal

from rcjax._base.arguments import instance, whole
from rcjax._base.hashing import draw_lot
from rcjax._base.json_checks import number
from rcjax._base.wording import visible
from rcjax.policy.mixture import Mixture
from rcjax.policy.policy import Answer, Defer, Policy
from rcjax.serving.asking import Asking, Endpoint, known_endpoints
from rcjax.serving.call_log import Call, CallLog
from rcjax.serving.endpoint import CallError, Usage, openai, request
from rcjax.serving.questions import Messages, check_question, one_by_one
from rcjax.signals import Signal, SignalError

__all__ = ["Cascade", "CascadeError", "CascadeWarning", "Result"]


Status = Literal["answered", "best so far", "abstained", "failed"]


class CascadeError(RuntimeError):
    """No model answered a query; `result` holds the calls made, and the message why each failed."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.problem)
        self.result = result


class CascadeWarning(UserWarning):
    """A model's confidence cannot be read, or a call cannot be logged; the cascade goes on."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a cascade made of a query."""

    query: str
    """The query's id."""
    status: Status
    """`"answered"`, `"best so far"` where the largest model failed, `"abstained"`, or `"failed"`."""
    text: str | None
    """The reply that was kept; None where there is none."""
    answer: str | None
    """The answer as the signal reads it, such as the letter of a choice."""
    model: str | None
    """The model that gave it, by its name in the policy."""
    confidence: float | None
    """Its calibrated confidence, where that could be read."""
    cost: float
    """Money for the calls below, in the currency of the prices."""
    calls: tuple[Call, ...]
    """The calls that led to the answer, in order; not those that a shadow query adds."""

    @property
    def problem(self) -> str:
        """One line on what failed; empty where nothing did."""
        failed = [call for call in self.calls if call.error]
        listed = "; ".join(f"{call.model}: {call.error} (attempts: {call.attempts})" for call in failed)
        what = "no model answered" if self.status == "failed" else "some models failed"
        return visible(f"query {self.query}: {what}: {listed}") if failed else ""


class Cascade:
    """Asks the models of a policy, or of a mixture, until one is sure enough.

    A model that fails for good (after the client's retries, which wait as long as the server says) is skipped
    upward: the next larger model of the policy is asked. So is one whose confidence cannot be read, unless it always
    answers. Where the largest fails, the answer of highest confidence so far counts (`status` "best so far").

    Args:
        policy: a `Policy` or `Mixture`, which gives each query to one of its policies by a hash of the query's id.
        client: an `openai.AsyncOpenAI`, for any OpenAI-compatible endpoint, or one for each model by name.
        signal: how to read the confidence, from `rcjax.signals`; or one for each model by name. It must be what the
            log was made with that the policy was tuned on: a policy that records it (`rcjax collect` does) needs none,
            and refuses another.
        log: where to write each call.
        served: names of the models at the endpoint, where they differ from those in the policy.
        options: of `chat.completions.create` for every question, such as `{"max_tokens": 1, "temperature": 0}`;
            those of the signal go before, those that
            the policy records after. A second question has the signal's own, and `extra_body` and the like.
        model_options: such options by model, which go before both.
        prices: input and output price per million tokens by model, where those of the policy do not hold:
            `{"small": {"input": 0.1, "output": 0.4}}`. Without prices a call costs the policy's mean.
        concurrency: how many requests may be in flight at once.
        timeout: seconds that one attempt may take.
        retries: how often a request is sent again after a timeout, a lost connection, 408, 409, 429 and 5xx.
        shadow: share of queries, chosen by a hash of the query's id, that all models are asked about, so that the log
            can be tuned on: only such queries are a fair sample. Their answers are not delayed, and the calls that
            are added are in the log only.
        shadow_models: more models that shadow queries are asked of, by the names that the log is to have: those that
            the tuning left out, so that a later one can take them back, or new ones. They need prices, if not among
            those that the policy was tuned with; `client`, `signal`, `served` and `model_options` may name them.

    Raises ValueError for arguments that cannot be right. Use one cascade within one event loop, and leave it as a
    context (`async with`) or `await cascade.close()`, so that shadow calls under way are finished.
    """

    def __init__(
        self,
        policy: Policy | Mixture,
        client: openai.AsyncOpenAI | Mapping[str, openai.AsyncOpenAI],
        *,
        signal: Signal | Mapping[str, Signal] | None = None,
        log: CallLog | None = None,
        served: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        model_options: Mapping[str, Mapping[str, Any]] | None = None,
        prices: Mapping[str, Mapping[str, float]] | None = None,
        concurrency: int = 64,
        timeout: float = 30.0,
        retries: int = 2,
        shadow: float = 0.0,
        shadow_models: Sequence[str] = (),
    ) -> None:
        instance(policy, (Policy, Mixture), "policy")
        instance(log, (CallLog, NoneType), "log")
        self.policy = policy
        self.models = policy.models
        self._everyone = _everyone(policy, shadow_models, shadow)
        whole(concurrency, "concurrency", 1)
        whole(retries, "retries", 0)
        if not number(timeout, "timeout", 0.0, math.inf):
            raise ValueError("timeout must be above 0 seconds")
        asking = Asking(client, signal, served, options, model_options, prices, timeout, retries)
        self._endpoints = known_endpoints(policy, self._everyone, asking)
        self._log = log
        self._shadow = shadow
        self._concurrency = concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self._background: set[asyncio.Task[Any]] = set()
        self._warned: set[str] = set()

    async def ask(self, messages: Messages, query: int | str | None = None) -> Result:
        """Answer one query: `messages` as in the API, or a text of the user's; `query` is its id in log and lots.

        Without an id the query gets a random one. Raises CascadeError where no model answers; TypeError or ValueError
        for messages or an id that can be none.
        """
        check_question(query, messages)
        result, rest = await self._answer(messages, query)
        if rest is not None:
            task = asyncio.create_task(rest)
            self._background.add(task)  # the event loop itself keeps no hold of it
            task.add_done_callback(self._background.discard)
        if result.status == "failed":
            raise CascadeError(result)
        return result

    async def ask_all(
        self, questions: Iterable[tuple[int | str, Messages]] | AsyncIterable[tuple[int | str, Messages]]
    ) -> list[Result]:
        """Answer pairs of an id and messages, many at a time; the results are in the order of the questions.

        A query that no model answers has the status "failed", and ends nothing. Shadow calls are finished too.
        Raises TypeError or ValueError for what is no such pair: of a list before any model is asked.
        """
        pairs = [pair async for pair in self._stream(questions)]
        return [result for _, result in sorted(pairs, key=lambda pair: pair[0])]

    async def stream(
        self, questions: Iterable[tuple[int | str, Messages]] | AsyncIterable[tuple[int | str, Messages]]
    ) -> AsyncIterator[Result]:
        """As `ask_all`, each result as soon as it is there; questions are taken as they are needed."""
        async for _, result in self._stream(questions):
            yield result

    async def close(self) -> None:
        """Wait for the shadow calls under way. Clients and log stay open: they are the caller's."""
        while self._background:
            await asyncio.gather(*self._background)

    async def __aenter__(self) -> Cascade:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _stream(self, questions: Any) -> AsyncIterator[tuple[int, Result]]:
        async def one(place: int, query: int | str, messages: Messages) -> tuple[int, Result]:
            result, rest = await self._answer(messages, query)
            if rest is not None:
                await rest
            return place, result

        pending: set[asyncio.Task[tuple[int, Result]]] = set()
        place = 0
        try:
            async for query, messages in one_by_one(questions):
                pending.add(asyncio.create_task(one(place, query, messages)))
                place += 1
                if len(pending) >= self._concurrency:
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        yield task.result()
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield task.result()
        finally:
            for task in pending:
                task.cancel()

    async def _answer(self, messages: Messages, query: int | str | None) -> tuple[Result, Any]:
        """(the result, the calls still to make if this is a shadow query, as a coroutine, else None)."""
        name = uuid.uuid4().hex if query is None else str(query)
        asked = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        policy = self.policy.choose(name)
        shadow = draw_lot("shadow", name) < self._shadow
        result = await self._follow(policy, name, asked, shadow)
        others = [model for model in self._everyone if model not in {call.model for call in result.calls}]
        return result, self._ask_others(others, name, asked) if shadow and others else None

    async def _ask_others(self, models: Sequence[str], query: str, messages: Sequence[Mapping[str, Any]]) -> None:
        await asyncio.gather(*(self._call(None, model, query, messages, True) for model in models))

    async def _follow(self, policy: Policy, query: str, messages: Sequence[Mapping[str, Any]], shadow: bool) -> Result:
        calls: list[Call] = []
        model: str | None = policy.first
        while model is not None:
            call = await self._call(policy, model, query, messages, shadow)
            calls.append(call)
            rules = policy.rules[model]
            if call.text is not None and len(rules) == 1 and rules[0].action == "answer":
                return _result(query, "answered", call, calls)
            if call.logprob is None:
                model = next(iter(policy.models[policy.models.index(model) + 1 :]), None)
                continue
            decision = policy.step(model, logprob=call.logprob)
            if not isinstance(decision, Defer):
                return _result(query, "answered" if isinstance(decision, Answer) else "abstained", call, calls)
            model = decision.next_model
        usable = [call for call in calls if call.text is not None]
        if not usable:
            return _result(query, "failed", None, calls)
        return _result(query, "best so far", max(usable, key=_sureness), calls)

    async def _call(
        self, policy: Policy | None, model: str, query: str, messages: Sequence[Mapping[str, Any]], shadow: bool
    ) -> Call:
        """Ask one model, its follow-up question included, and log it; nothing that a server does is raised."""
        endpoint, usage, start = self._endpoints[model], Usage(), time.perf_counter()
        text = answer = logprob = error = None
        try:
            reply = await self._request(endpoint, messages, endpoint.options, usage)
            text = reply.text or next(filter(None, reply.texts))
            second = endpoint.follow_up(messages, reply)
            if second is not None:
                second = await self._request(endpoint, *second, usage)
            reading = endpoint.read(reply, second)
            text, answer, logprob = reading.text or text, reading.answer, reading.logprob
        except CallError as problem:
            error = str(problem) if text is None else f"the second question: {problem}"
        except SignalError as problem:
            error = str(problem)
            self._warn_once(model, f"model {model}: its confidence cannot be read: {problem}")
        known = policy is not None and model in policy.models and logprob is not None
        account = endpoint.account(usage)
        if account["cost"] is None:  # free it was not: learning leaves out what failed
            account["cost"], error = 0.0, error or "the server tells no tokens: what it cost is not known"
        call = Call(
            query=query,
            model=model,
            served=endpoint.served,
            text=text,
            answer=answer,
            logprob=logprob,
            confidence=policy.calibrate(model, logprob=logprob) if known else None,  # type: ignore[union-attr]
            **account,
            attempts=usage.attempts,
            seconds=time.perf_counter() - start,
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            shadow=shadow,
            error=error,
        )
        self._write(call, messages)
        return call

    async def _request(
        self, endpoint: Endpoint, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], usage: Usage
    ) -> Any:
        async with self._slots:
            return await request(endpoint.client, endpoint.served, messages, options, usage)

    def _write(self, call: Call, messages: Sequence[Mapping[str, Any]]) -> None:
        if self._log is None:
            return
        try:
            self._log.write(call, messages)
        except Exception as problem:  # the answer is paid for: give it all the same
            reason = (problem.strerror if isinstance(problem, OSError) else None) or str(problem)
            self._warn_once("", f"calls are not logged: {self._log.path}: {reason}")

    def _warn_once(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(visible(message), CascadeWarning, stacklevel=2)


def _result(query: str, status: Status, kept: Call | None, calls: Sequence[Call]) -> Result:
    gives = kept is not None and status != "abstained"
    return Result(
        query=query,
        status=status,
        text=kept.text if kept and gives else None,
        answer=kept.answer if kept and gives else None,
        model=kept.model if kept else None,
        confidence=kept.confidence if kept else None,
        cost=math.fsum(call.cost for call in calls),
        calls=tuple(calls),
    )


def _sureness(call: Call) -> float:
    return -1.0 if call.confidence is None else call.confidence


def _everyone(policy: Policy | Mixture, shadow_models: Sequence[str], shadow: float) -> tuple[str, ...]:
    """The models of the policy, then those that shadow queries are asked of besides."""
    number(shadow, "shadow", 0.0, 1.0)
    if (
        isinstance(shadow_models, str | bytes)
        or not isinstance(shadow_models, Sequence)
        or (shadow_models and not shadow)
    ):
        raise ValueError("shadow_models are names of models, a list of them, which need shadow above 0")
    for name in shadow_models:
        instance(name, str, "each of shadow_models")
    return tuple(dict.fromkeys([*policy.models, *shadow_models]))
