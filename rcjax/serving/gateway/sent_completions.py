"""What a client is sent: a completion, or its chunks, with what the cascade did beside it. Standard library only."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from rcjax.serving.call_log import Call
from rcjax.serving.completions import choice_text
from rcjax.serving.gateway.chat_request import ChatRequest
from rcjax.serving.gateway.settings import Refusals


def id_headers(query: str) -> dict[str, str]:
    """Headers of an answer, or of an error, by which the query is found in the call log.

    >>> id_headers("q1")
    {'x-request-id': 'q1', 'x-rcjax-query': 'q1'}
    """
    return {"x-request-id": query, "x-rcjax-query": query}  # clients of OpenAI tell the first with an error


_SAFE = " :@/()[]+=!*'"  # in a header, besides letters and digits; others are sent as %XX


@dataclass(frozen=True, slots=True)
class Account:
    """What the gateway did for a request."""

    query: str
    """The query's id, in the call log too."""
    status: str
    """"answered", "best so far", "abstained", "not judged", "passed on"."""
    model: str | None
    """The model that answers."""
    calls: tuple[Call, ...] = ()
    """So far."""
    policy: str | None = None
    """The name of the policy; None where a model was named."""
    digest: str | None = None
    """Of the policy."""
    confidence: float | None = None
    """Calibrated, of the answer."""
    position: float | None = None
    """Where on its ladder the policy stood; None for a policy of one rung."""
    rung: int | None = None
    """By which rung it went, from 0 on; None for a policy of one rung."""
    not_judged: tuple[str, ...] = ()
    """Why the answer is not judged."""
    changed: tuple[str, ...] = ()
    """Options that are not those of the log that the policy was tuned on."""
    replaced: tuple[str, ...] = ()
    """Options for which the signal needs others, so that they were not sent."""

    @property
    def asked(self) -> list[str]:
        """The models that were asked, in order; the one that answers is the last."""
        names = [call.model for call in self.calls]
        return names if self.model is None or self.model in names else [*names, self.model]

    def headers(self, *, ended: bool = True) -> dict[str, str]:
        """Headers of the answer; its cost is known once it has ended."""
        values = {
            "x-rcjax-status": [self.status],
            "x-rcjax-model": [self.model],
            "x-rcjax-models": self.asked,
            "x-rcjax-policy": [self.policy],
            "x-rcjax-policy-hash": [self.digest],
            "x-rcjax-confidence": [None if self.confidence is None else f"{self.confidence:.6f}"],
            "x-rcjax-position": [None if self.position is None else f"{self.position:.4g}"],
            "x-rcjax-rung": [None if self.rung is None else str(self.rung)],
            "x-rcjax-cost": [f"{self._cost:.12g}" if ended else None],
            "x-rcjax-not-judged": self.not_judged,
            "x-rcjax-changed": self.changed,
            "x-rcjax-replaced": self.replaced,
        }
        texts = {name: ",".join(quote(one, safe=_SAFE) for one in several if one) for name, several in values.items()}
        return id_headers(self.query) | {name: text for name, text in texts.items() if text}

    def to_json(self) -> dict[str, Any]:
        """The field `rcjax` of the answer."""
        return {
            "query": self.query,
            "status": self.status,
            "model": self.model,
            "models": self.asked,
            "policy": self.policy,
            "policy_hash": self.digest,
            "confidence": self.confidence,
            "position": self.position,
            "rung": self.rung,
            "cost": self._cost,
            "not_judged": list(self.not_judged),
            "changed": list(self.changed),
            "replaced": list(self.replaced),
        }

    @property
    def _cost(self) -> float:
        return math.fsum(call.cost for call in self.calls)


@dataclass(frozen=True, slots=True)
class Wording:
    """How an answer is put for a client: by what it asked for, and what it is told where the policy refuses."""

    request: ChatRequest
    refusals: Refusals

    def choices(self, completion: Mapping[str, Any] | None, text: str | None, *, judged: bool) -> list[dict[str, Any]]:
        """The choices of a completion: of a judged one, that of the text alone; None is a refusal."""
        if completion is None:
            message = {"role": "assistant", "content": self.refusals.text, "refusal": None}
            return [self.choice({"index": 0, "message": message, "finish_reason": self.refusals.finish_reason})]
        choices = [choice for choice in completion["choices"] if isinstance(choice, Mapping)]
        if judged:  # votes have several
            choices = [choice for choice in choices if choice_text(choice) == text][:1] or choices[:1]
            return [self.choice(choices[0]) | {"index": 0}]
        return [self.choice(choice) for choice in choices]

    def choice(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        """A choice with as many log-probabilities as the client asks for."""
        logprobs = choice.get("logprobs")
        if not self.request.logprobs:
            return {**choice, "logprobs": None}
        if not isinstance(logprobs, Mapping):
            return {**choice, "logprobs": logprobs}
        cut = {name: self._tokens(logprobs[name]) for name in ("content", "refusal") if name in logprobs}
        return {**choice, "logprobs": {**logprobs, **cut}}

    def _tokens(self, tokens: Any) -> Any:
        if not isinstance(tokens, list):
            return tokens
        top = self.request.top_logprobs
        tokens = [token for token in tokens if isinstance(token, Mapping)]
        listed = [token.get("top_logprobs") for token in tokens]  # null, or numbers by their texts, in some servers
        cut = [likeliest[:top] if isinstance(likeliest, list) else [] for likeliest in listed]
        return [{**token, "top_logprobs": likeliest} for token, likeliest in zip(tokens, cut, strict=True)]


_CHUNK = "chat.completion.chunk"


_OWN = frozenset({"id", "object", "created", "model", "choices", "usage", "rcjax"})  # what the gateway says by itself


_REPEATED = frozenset({"id", "object", "created", "model", "system_fingerprint", "service_tier"})  # in every chunk


_SAID = frozenset({"index", "message", "logprobs"})  # what a choice says before it ends


def whole_completion(
    account: Account,
    completion: Mapping[str, Any] | None,
    choices: Sequence[Mapping[str, Any]],
    usage: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The body of an answer.

    Args:
        account: what the gateway did.
        completion: as the endpoint sent it; None for a refusal.
        choices: as the client is to have them.
        usage: tokens of all attempts.
    """
    source = completion or {}
    return {
        **_head(account, source, "chat.completion"),
        "choices": list(choices),
        "usage": usage,
        **{name: value for name, value in source.items() if name not in _OWN},
        "rcjax": account.to_json(),
    }


def chunks_of(whole: Mapping[str, Any], *, counted: bool) -> Iterator[dict[str, Any]]:
    """A completion that is there, as chunks: all that it says, how it ends, and its tokens if they are to be told."""
    shared = {name: value for name, value in whole.items() if name in _REPEATED}
    others = {name: value for name, value in whole.items() if name not in _REPEATED | _OWN}
    head = {**shared, "object": _CHUNK, **({"usage": None} if counted else {})}
    said = [
        {
            "index": choice.get("index", 0),
            "delta": _delta(choice.get("message")),
            "logprobs": choice.get("logprobs"),
            "finish_reason": None,
        }
        for choice in whole["choices"]
    ]
    yield {**head, **others, "choices": said}
    ends = [
        {"index": choice.get("index", 0), "delta": {}, "logprobs": None, "finish_reason": None}
        | {name: value for name, value in choice.items() if name not in _SAID}
        for choice in whole["choices"]
    ]
    yield {**head, "choices": ends, "rcjax": whole["rcjax"]}
    if counted:
        yield {**head, "choices": [], "usage": whole["usage"], "rcjax": whole["rcjax"]}


def stream_head(account: Account, chunk: Mapping[str, Any], *, counted: bool) -> dict[str, Any]:
    """What all chunks of an answer share, by the first that the endpoint sends."""
    return {**_head(account, chunk, _CHUNK), **({"usage": None} if counted else {})}


def _delta(message: Any) -> dict[str, Any]:
    """A message as a delta: there, calls of tools are numbered."""
    delta = dict(message) if isinstance(message, Mapping) else {}
    calls = delta.get("tool_calls")
    if isinstance(calls, list):
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls) if isinstance(call, Mapping)]
    return delta


def _head(account: Account, source: Mapping[str, Any], kind: str) -> dict[str, Any]:
    name, created = source.get("id"), source.get("created")
    return {
        "id": name if isinstance(name, str) and name else f"chatcmpl-{account.query}",
        "object": kind,
        "created": created if type(created) is int else int(time.time()),
        "model": account.model,
    }
