"""Answering a request for a completion: by a policy, or by one model where none judges.

`Sending` brings it to the client: whole, as events at once, or piece by piece while it comes.
"""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.datastructures import Headers

from rcjax.serving.asked import NEUTRAL
from rcjax.serving.call_log import Call
from rcjax.serving.cascade import CascadeError, Result
from rcjax.serving.exchange import Exchange
from rcjax.serving.gateway.api_errors import ApiError, upstream_error
from rcjax.serving.gateway.chat_request import ChatRequest
from rcjax.serving.gateway.lineup import Lineup, ServedPolicy
from rcjax.serving.gateway.metrics import Metrics
from rcjax.serving.gateway.responder import Responder
from rcjax.serving.gateway.sent_completions import Account, Wording, chunks_of, stream_head, whole_completion
from rcjax.serving.gateway.settings import Settings
from rcjax.serving.prompts import Prompt
from rcjax.serving.streams import Piece
from rcjax.serving.usage import sum_usages


@dataclass(slots=True)
class Sending:
    """Sends one answer, as its client asked for it."""

    wording: Wording
    responder: Responder
    account: Account
    """What is known of what the gateway did; more of it while the answer comes."""
    _head: Mapping[str, Any] = field(default_factory=dict)
    _problem: Exception | None = None

    @property
    def _counted(self) -> bool:
        return self.wording.request.counted

    async def piece(self, piece: Piece) -> None:
        """Send a piece of an answer while it comes; what goes wrong is raised by `rest`."""
        try:
            await self._piece(piece)
        except Exception as problem:
            self._problem = problem
            raise

    async def _piece(self, piece: Piece) -> None:
        if piece.chunk is None:
            if not self._counted:  # a second question of the signal keeps nobody waiting
                await self.responder.done()
            return
        if not self.responder.begun:
            names = ("model", "calls", "position", "rung")
            self.account = replace(self.account, **{name: getattr(piece, name) for name in names})
            self._head = stream_head(self.account, piece.chunk, counted=self._counted)
        fields = {name: value for name, value in piece.chunk.items() if name != "usage"}  # of one attempt only
        choices = [self.wording.choice(choice) for choice in piece.chunk["choices"]]
        chunk = {**fields, **self._head, "choices": choices}
        if any(choice.get("finish_reason") for choice in choices) and not self._counted:
            chunk["rcjax"] = self.account.to_json() | {"cost": None}  # which is not known yet
        await self.responder.event(chunk, self.account.headers(ended=False))

    async def rest(
        self, completion: Mapping[str, Any] | None, text: str | None, usage: Mapping[str, Any] | None, *, judged: bool
    ) -> None:
        """Send an answer that is there to its end, or what is not sent of it yet.

        Args:
            completion: as the endpoint sent it; None for a refusal.
            text: of the choice that was kept, where it is judged.
            usage: tokens of all attempts.
            judged: one choice of it is the answer; else all are.
        """
        if self._problem is not None:
            raise self._problem
        if self.responder.begun:
            if self._counted:
                last = {**self._head, "choices": [], "usage": usage, "rcjax": self.account.to_json()}
                await self.responder.event(last, {})
            await self.responder.done()
            return
        choices = self.wording.choices(completion, text, judged=judged)
        whole, headers = whole_completion(self.account, completion, choices, usage), self.account.headers()
        if not self.wording.request.stream:
            await self.responder.document(whole, headers)
            return
        for chunk in chunks_of(whole, counted=self._counted):
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
    """What kind of query it is, as the client says, for policies with cascades for segments; None where it does not."""
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
    """Is told how it ends; None where nothing is counted."""
    request: ChatRequest
    query: str
    responder: Responder
    start: float = field(default_factory=time.perf_counter)
    segment: str | None = None

    async def answer(self) -> None:
        """Answer it. Raises ApiError where no model does."""
        served = self.lineup.policies.get(self.request.model)
        if served is not None and served.checked.issuperset(self.request.unjudged):
            await self._by_policy(served)
        elif served is not None:
            await self._by_model(served.unjudged, served)
        elif self.request.model in self.lineup.models:
            await self._by_model(self.request.model, None)
        else:
            message = "there is no policy or model of this name: GET /v1/models lists them"
            raise ApiError(404, message, "model_not_found", "model")

    @property
    def _seconds(self) -> float:
        """Since it began."""
        return time.perf_counter() - self.start

    @property
    def _left(self) -> float:
        """Seconds that it may still take."""
        return max(self.settings.limits.deadline - self._seconds, 1e-3)

    def _sending(self, account: Account) -> Sending:
        return Sending(Wording(self.request, self.settings.refusals), self.responder, account)

    async def _by_policy(self, served: ServedPolicy) -> None:
        options = self.request.options(judged=True, checked=served.checked)
        replaced = replaced_options(options, served.needed)
        recorded = [served.options[model] for model in served.policy.models if model in served.options]
        changed = tuple(name for name in changed_options(options, recorded) if name not in replaced)
        sending = self._sending(
            Account(self.query, "answered", None, (), served.name, served.digest, changed=changed, replaced=replaced)
        )
        try:
            result = await served.cascade.ask(
                self.request.messages,
                self.query,
                options=options,
                deadline=self._left,
                deliver=sending.piece if self.request.stream else None,
                segment=self.segment,
            )
        except CascadeError as problem:
            result = problem.result
        if result.status == "failed" and result.completion is not None:  # to its end, and without text
            result = replace(result, status="answered")
        if self.metrics is not None:
            self.metrics.ended(served.name, result, self._seconds)
            self.metrics.followed(served.name, served.cascade.billing)
        if result.status == "failed":
            raise upstream_error(result.failure, _problem(result))
        outcome = {name: getattr(result, name) for name in ("status", "model", "confidence", "position", "rung")}
        sending.account = replace(sending.account, calls=result.calls, **outcome)
        await sending.rest(result.completion, result.text, result.usage, judged=True)

    async def _by_model(self, model: str, served: ServedPolicy | None) -> None:
        if served is None:
            status = why = "passed on"
            sending = self._sending(Account(self.query, status, model))
        else:
            fields = self.request.unjudged
            status, why = "not judged", f"not judged: {', '.join(fields)}"
            sending = self._sending(
                Account(self.query, status, model, (), served.name, served.digest, not_judged=fields)
            )
        question = Prompt(
            self.query,
            self.request.messages,
            self.request.options(judged=False),
            segment=self.segment,
            deliver=sending.piece if self.request.stream else None,
            unjudged=why,
            billed=None if served is None else served.cascade.billing.mark,
        )
        attempts: list[Exchange] = []
        try:
            attempt = await self.lineup.caller.call(question, model, None, self._left, attempts, kept=True)
        finally:  # who leaves has been worked for
            self._pay([one.call for one in attempts], model, served)
        ending = "failed" if attempt.completion is None else status
        if self.metrics is not None:
            self.metrics.passed(served.name if served else model, model, ending, self._seconds, attempt.call.cost)
        if attempt.completion is None:
            raise upstream_error(attempt.failure, f"model {model}: {attempt.call.error}")
        sending.account = replace(sending.account, calls=(attempt.call,))
        await sending.rest(attempt.completion, None, sum_usages([attempt.usage]), judged=False)

    def _pay(self, calls: Sequence[Call], model: str, served: ServedPolicy | None) -> None:
        """Put what an answer that is not judged has cost into the figures, and into the bill of its policy."""
        if self.metrics is not None:
            self.metrics.paid(served.name if served else model, math.fsum(call.cost for call in calls))
        if served is not None:
            served.cascade.billing.pay(calls)
            if self.metrics is not None:
                self.metrics.followed(served.name, served.cascade.billing)


def _problem(result: Result) -> str:
    """What failed, for the client: by model, without the query's id."""
    failures = "; ".join(f"{call.model}: {call.error}" for call in result.calls if call.error)
    return f"no model answered: {failures}"


def changed_options(options: Mapping[str, Any], recorded: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The options that are not those of the log that a policy was tuned on, as far as it tells them.

    Args:
        options: of a request.
        recorded: of the log, by model.

    >>> changed_options({"temperature": 1, "user": "me"}, [{"temperature": 0}, {}])
    ('temperature',)
    """
    records = [_flat(one) for one in recorded]
    relevant = {name: value for name, value in _flat(options).items() if name not in NEUTRAL}
    return tuple(name for name, value in relevant.items() if any(record.get(name) != value for record in records))


def replaced_options(options: Mapping[str, Any], needed: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The options for which a signal needs others, so that they are not sent.

    Log-probabilities are none of them: a client gets as many as it asked for.

    >>> replaced_options({"temperature": 0}, [{"n": 5, "temperature": 0.7}])
    ('temperature',)
    """
    signals = [*needed]
    relevant = {name: value for name, value in options.items() if name not in NEUTRAL}
    return tuple(name for name, value in relevant.items() if any(value != one.get(name, value) for one in signals))


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by the names that they have in a request."""
    others = options.get("extra_body")
    named = {name: value for name, value in options.items() if name != "extra_body"}
    return {**named, **others} if isinstance(others, Mapping) else named
