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


@dataclass(frozen=True, slots=True)
class Trace:
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
    """The name of the policy; None if a model was named."""
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

    def headers(self, *, ended: bool = True) -> dict[str, str]:
        """Headers of the answer, one for each field of `to_json` that says something; its cost once it has ended."""
        values = self.to_json() | ({} if ended else {"cost": None})
        texts = {name: _header(name, value) for name, value in values.items() if value is not None}
        return {f"x-rcjax-{name.replace('_', '-')}": text for name, text in texts.items() if text} | id_headers(
            self.query
        )

    def to_json(self) -> dict[str, Any]:
        """The field `rcjax` of the answer."""
        asked = [call.model for call in self.calls]
        return {
            "query": self.query,
            "status": self.status,
            "model": self.model,
            "models": asked if self.model is None or self.model in asked else [*asked, self.model],
            "policy": self.policy,
            "policy_hash": self.digest,
            "confidence": self.confidence,
            "position": self.position,
            "rung": self.rung,
            "cost": math.fsum(call.cost for call in self.calls),
            "not_judged": list(self.not_judged),
        }


_SAFE = " :@/()[]+=!*'"  # in a header, besides letters and digits; others are sent as %XX

_FORMATS = {"confidence": ".6f", "position": ".4g", "rung": "d", "cost": ".12g"}


def _header(name: str, value: Any) -> str:
    if name in _FORMATS:
        return format(value, _FORMATS[name])
    texts = [quote(one, safe=_SAFE) for one in (value if isinstance(value, list) else [value])]
    return ",".join(texts).strip()  # as no header may begin or end with a space


def sent_choices(
    request: ChatRequest, refusals: Refusals, completion: Mapping[str, Any] | None, text: str | None, *, judged: bool
) -> list[dict[str, Any]]:
    """The choices of a completion for a client.

    Args:
        request: that it answers.
        refusals: what is said where the policy refuses.
        completion: the server's; None for a refusal.
        text: the answer that was kept.
        judged: whether the answer was judged: then the choice with that text is the only one.
    """
    if completion is None:
        message = {"role": "assistant", "content": refusals.text, "refusal": None}
        return [sent_choice(request, {"index": 0, "message": message, "finish_reason": refusals.finish_reason})]
    choices = [choice for choice in completion["choices"] if isinstance(choice, Mapping)]
    if judged:  # votes have several
        choices = [choice for choice in choices if choice_text(choice) == text][:1] or choices[:1]
        return [sent_choice(request, choices[0]) | {"index": 0}]
    return [sent_choice(request, choice) for choice in choices]


def sent_choice(request: ChatRequest, choice: Mapping[str, Any]) -> dict[str, Any]:
    """A choice with as many log-probabilities as the client asks for."""
    logprobs = choice.get("logprobs")
    if not request.logprobs:
        return {**choice, "logprobs": None}
    if not isinstance(logprobs, Mapping):
        return {**choice, "logprobs": logprobs}
    top = request.top_logprobs
    cut = {name: _tokens(logprobs[name], top) for name in ("content", "refusal") if name in logprobs}
    return {**choice, "logprobs": {**logprobs, **cut}}


def _tokens(tokens: Any, top: int) -> Any:
    """Tokens with so many of the likeliest each, which are null, or numbers by their texts, in some servers."""
    if not isinstance(tokens, list):
        return tokens
    likeliest = [(token, token.get("top_logprobs")) for token in tokens if isinstance(token, Mapping)]
    return [{**token, "top_logprobs": some[:top] if isinstance(some, list) else []} for token, some in likeliest]


_CHUNK = "chat.completion.chunk"

_OWN = frozenset({"id", "object", "created", "model", "choices", "usage", "rcjax"})  # what the gateway says by itself

_REPEATED = frozenset({"id", "object", "created", "model", "system_fingerprint", "service_tier"})  # in every chunk

_SAID = frozenset({"index", "message", "logprobs"})  # what a choice says before it ends


def whole_completion(
    trace: Trace,
    completion: Mapping[str, Any] | None,
    choices: Sequence[Mapping[str, Any]],
    usage: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The body of an answer.

    Args:
        trace: what the gateway did.
        completion: as the endpoint sent it; None for a refusal.
        choices: as the client is to have them.
        usage: tokens of all attempts.
    """
    source = completion or {}
    return {
        **_head(trace, source, "chat.completion"),
        "choices": list(choices),
        "usage": usage,
        **{name: value for name, value in source.items() if name not in _OWN},
        "rcjax": trace.to_json(),
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


def stream_head(trace: Trace, chunk: Mapping[str, Any], *, counted: bool) -> dict[str, Any]:
    """What all chunks of an answer share, by the first that the endpoint sends."""
    return {**_head(trace, chunk, _CHUNK), **({"usage": None} if counted else {})}


def _delta(message: Any) -> dict[str, Any]:
    """A message as a delta: there, calls of tools are numbered."""
    delta = dict(message) if isinstance(message, Mapping) else {}
    calls = delta.get("tool_calls")
    if isinstance(calls, list):
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls) if isinstance(call, Mapping)]
    return delta


def _head(trace: Trace, source: Mapping[str, Any], kind: str) -> dict[str, Any]:
    name, created = source.get("id"), source.get("created")
    return {
        "id": name if isinstance(name, str) and name else f"chatcmpl-{trace.query}",
        "object": kind,
        "created": created if type(created) is int else int(time.time()),
        "model": trace.model,
    }
