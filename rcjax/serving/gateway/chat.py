"""Answering a request for a completion: by a policy, or by one model where none judges.

`Sending` brings it to the client: whole, as events at once, or piece by piece while it comes.
"""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.datastructures import Headers

from rcjax.serving.asker import Exchange, Prompt
from rcjax.serving.cascade import CascadeError, Result, make_result
from rcjax.serving.completions import Piece
from rcjax.serving.gateway.api_errors import ApiError, upstream_error
from rcjax.serving.gateway.chat_request import ChatRequest
from rcjax.serving.gateway.lineup import Lineup, ServedPolicy
from rcjax.serving.gateway.metrics import Metrics
from rcjax.serving.gateway.responder import Responder
from rcjax.serving.gateway.sent_completions import (
    Trace,
    chunks_of,
    sent_choice,
    sent_choices,
    stream_head,
    whole_completion,
)
from rcjax.serving.gateway.settings import Refusals, Settings


@dataclass(slots=True)
class Sending:
    """Sends one answer, as its client asked for it."""

    request: ChatRequest
    refusals: Refusals
    """What the client is told where the policy refuses."""
    responder: Responder
    trace: Trace
    """What is known of what the gateway did; more of it while the answer comes."""
    _head: Mapping[str, Any] = field(default_factory=dict)
    _problem: Exception | None = None

    async def piece(self, piece: Piece) -> None:
        """Send a piece of an answer while it comes; what goes wrong is raised by `rest`."""
        try:
            await self._piece(piece)
        except Exception as problem:
            self._problem = problem
            raise

    async def _piece(self, piece: Piece) -> None:
        counted = self.request.counted
        if piece.chunk is None:
            if not counted:  # a second question of the signal keeps nobody waiting
                await self.responder.done()
            return
        if not self.responder.begun:
            names = ("model", "calls", "position", "rung")
            self.trace = replace(self.trace, **{name: getattr(piece, name) for name in names})
            self._head = stream_head(self.trace, piece.chunk, counted=counted)
        fields = {name: value for name, value in piece.chunk.items() if name != "usage"}  # of one attempt only
        choices = [sent_choice(self.request, choice) for choice in piece.chunk["choices"]]
        chunk = {**fields, **self._head, "choices": choices}
        if any(choice.get("finish_reason") for choice in choices) and not counted:
            chunk["rcjax"] = self.trace.to_json() | {"cost": None}  # which is not known yet
        await self.responder.event(chunk, self.trace.headers(ended=False))

    async def rest(self, result: Result, *, judged: bool) -> None:
        """Send an answer that is there to its end, or what is not sent of it yet.

        Args:
            result: with the answer.
            judged: one choice of it is the answer; else all are.
        """
        if self._problem is not None:
            raise self._problem
        names = ("status", "model", "calls", "confidence", "position", "rung")
        self.trace = replace(self.trace, **{name: getattr(result, name) for name in names})
        if self.responder.begun:
            if self.request.counted:
                last = {**self._head, "choices": [], "usage": result.usage, "rcjax": self.trace.to_json()}
                await self.responder.event(last, {})
            await self.responder.done()
            return
        choices = sent_choices(self.request, self.refusals, result.completion, result.text, judged=judged)
        whole, headers = whole_completion(self.trace, result.completion, choices, result.usage), self.trace.headers()
        if not self.request.stream:
            await self.responder.document(whole, headers)
            return
        for chunk in chunks_of(whole, counted=self.request.counted):
            await self.responder.event(chunk, headers)
        await self.responder.done()


_QUERY, _SEGMENT = "x-rcjax-query", "x-rcjax-segment"


def query_of(headers: Headers) -> str:
    """The id of a query: the client's own, for labels that come later, or a random one."""
    value = headers.get(_QUERY)
    if value is None:
        return uuid.uuid4().hex
    if not re.fullmatch(r"[\x21-\x7e]{1,200}", value):
        raise ApiError(400, f"{_QUERY} must be 1 to 200 visible characters without spaces", "invalid_value", _QUERY)
    return value


def segment_of(headers: Headers) -> str | None:
    """What kind of query it is, as the client says, for policies with cascades for segments; None if it does not."""
    value = headers.get(_SEGMENT, "").strip()
    if len(value) > 200:
        raise ApiError(400, f"{_SEGMENT} must have 200 characters at most", "invalid_value", _SEGMENT)
    return value or None


@dataclass(slots=True)
class Conversation:
    """One request and its answer."""

    settings: Settings
    lineup: Lineup
    metrics: Metrics | None
    """Is told how it ends; None if nothing is counted."""
    request: ChatRequest
    query: str
    responder: Responder
    start: float = field(default_factory=time.perf_counter)
    segment: str | None = None

    async def answer(self) -> None:
        """Answer it. Raises ApiError where no model does."""
        name, served = self.request.model, self.lineup.policies.get(self.request.model)
        if served is None and name not in self.lineup.models:
            message = "there is no policy or model of this name: GET /v1/models lists them"
            raise ApiError(404, message, "model_not_found", "model")
        judged = served is not None and served.checked.issuperset(self.request.unjudged)
        options = self.request.options(judged=judged, checked=served.checked if served else ())
        trace = self._trace(served, judged=judged)
        sending = Sending(self.request, self.settings.refusals, self.responder, trace)
        if served is not None and judged:
            result = await self._by_policy(served, options, sending)
        else:
            result = await self._by_model(served, options, sending)
        if self.metrics is not None:
            rung = served.policy.rungs[result.rung or 0] if served is not None and judged else None
            tuned = None if rung is None else rung.expected.get("cost")
            self.metrics.ended(name, result, time.perf_counter() - self.start, judged=judged, tuned=tuned)
            if served is not None:
                self.metrics.followed(name, served.cascade.billing)
        if result.status == "failed":
            raise upstream_error(result.failure, _problem(result))
        await sending.rest(result, judged=judged)

    @property
    def _left(self) -> float:
        """Seconds that it may still take."""
        return max(self.settings.limits.deadline - (time.perf_counter() - self.start), 1e-3)

    def _trace(self, served: ServedPolicy | None, *, judged: bool) -> Trace:
        """What is known before any model is asked."""
        if served is None:
            return Trace(self.query, "passed on", self.request.model)
        trace = Trace(self.query, "answered", None, policy=served.name, digest=served.digest)
        if judged:
            return trace
        return replace(trace, status="not judged", model=served.unjudged, not_judged=self.request.unjudged)

    async def _by_policy(self, served: ServedPolicy, options: Mapping[str, Any], sending: Sending) -> Result:
        try:
            return await served.cascade.ask(
                self.request.messages,
                self.query,
                options=options,
                deadline=self._left,
                deliver=sending.piece if self.request.stream else None,
                segment=self.segment,
            )
        except CascadeError as problem:
            result = problem.result
        # An answer that is there to its end, and has no text.
        return result if result.completion is None else replace(result, status="answered")

    async def _by_model(self, served: ServedPolicy | None, options: Mapping[str, Any], sending: Sending) -> Result:
        trace, fields = sending.trace, ", ".join(self.request.unjudged)
        question = Prompt(
            self.query,
            self.request.messages,
            options,
            segment=self.segment,
            deliver=sending.piece if self.request.stream else None,
            unjudged="passed on" if served is None else f"not judged: {fields}",
            billed=None if served is None else served.cascade.billing.mark,
        )
        attempts: list[Exchange] = []
        try:
            attempt = await self.lineup.caller.call(question, trace.model or "", None, self._left, attempts, kept=True)
        finally:  # who leaves has been worked for
            calls = [one.call for one in attempts]
            if self.metrics is not None:
                self.metrics.paid(self.request.model, math.fsum(call.cost for call in calls))
            if served is not None:
                served.cascade.billing.pay(calls)
        return make_result(question, "failed" if attempt.completion is None else trace.status, attempt, attempts)


def _problem(result: Result) -> str:
    """What failed, for the client: by model, without the query's id."""
    failures = "; ".join(f"{call.model}: {call.error}" for call in result.calls if call.error)
    return f"no model answered: {failures}"
