"""Answering a request for a completion: by a policy, or by one model where none judges."""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import Protocol

from starlette.datastructures import Headers

from rcjax.serving.cascade import CascadeError, Result
from rcjax.serving.completions import sum_usages
from rcjax.serving.gateway.api_errors import ApiError, upstream_error
from rcjax.serving.gateway.chat_request import ChatRequest
from rcjax.serving.gateway.lineup import Lineup, ServedPolicy
from rcjax.serving.gateway.option_changes import changed_options, replaced_options
from rcjax.serving.gateway.responder import Responder
from rcjax.serving.gateway.sending import Sending
from rcjax.serving.gateway.sent_completions import Account, Wording
from rcjax.serving.gateway.settings import Settings
from rcjax.serving.prompts import Prompt

_QUERY = "x-rcjax-query"


def query_of(headers: Headers) -> str:
    """The id of a query: the client's own, for labels that come later, or a random one."""
    value = headers.get(_QUERY)
    if value is None:
        return uuid.uuid4().hex
    if not re.fullmatch(r"[\x21-\x7e]{1,200}", value):
        raise ApiError(400, f"{_QUERY} must be 1 to 200 visible characters without spaces", "invalid_value", _QUERY)
    return value


class Counting(Protocol):
    """Is told how requests end, as `rcjax.serving.gateway.metrics.Metrics` is."""

    def ended(self, name: str, result: Result, seconds: float) -> None:
        """A request went through a policy to its end.

        Args:
            name: what the client asked for.
            result: what became of it.
            seconds: how long the whole request took.
        """
        ...

    def passed(self, name: str, model: str, status: str, seconds: float) -> None:
        """A request that no policy judged went to a model.

        Args:
            name: what the client asked for.
            model: that was asked.
            status: as `Result.status` has it.
            seconds: how long the whole request took.
        """
        ...


@dataclass(slots=True)
class Conversation:
    """One request and its answer."""

    settings: Settings
    lineup: Lineup
    metrics: Counting
    request: ChatRequest
    query: str
    responder: Responder
    start: float = field(default_factory=time.perf_counter)

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
            )
        except CascadeError as problem:
            result = problem.result
        if result.status == "failed" and result.completion is not None:  # to its end, and without text
            result = replace(result, status="answered")
        self.metrics.ended(served.name, result, self._seconds)
        if result.status == "failed":
            raise upstream_error(result.failure, _problem(result))
        outcome = {"status": result.status, "model": result.model, "confidence": result.confidence}
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
            deliver=sending.piece if self.request.stream else None,
            unjudged=why,
        )
        attempt = await self.lineup.caller.call(question, model, None, self._left, before=())
        ending = "failed" if attempt.completion is None else status
        self.metrics.passed(served.name if served else model, model, ending, self._seconds)
        if attempt.completion is None:
            raise upstream_error(attempt.failure, f"model {model}: {attempt.call.error}")
        sending.account = replace(sending.account, calls=(attempt.call,))
        await sending.rest(attempt.completion, None, sum_usages([attempt.usage]), judged=False)


def _problem(result: Result) -> str:
    """What failed, for the client: by model, without the query's id."""
    failures = "; ".join(f"{call.model}: {call.error}" for call in result.calls if call.error)
    return f"no model answered: {failures}"
