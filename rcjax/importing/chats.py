"""Calls of models as APIs have them: what was asked, what was replied; and a name of the query by what was asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rcjax.importing.answers import ImportedAnswer
from rcjax.importing.confidences import TokenSignals, of_content

#: Why there is nothing to judge or to compare in a reply that calls tools, refuses, or is empty.
UNANSWERED = "without a text"


def messages_of(asked: Any) -> list[tuple[str, str]]:
    """(role, text) of each message that was sent, whether a text, a list of messages, or JSON of these.

    >>> messages_of([{"role": "user", "content": [{"type": "text", "text": "Who?"}]}]), messages_of("Who?")
    ([('user', 'Who?')], [('user', 'Who?')])
    >>> messages_of([{"role": "user", "parts": [{"type": "text", "content": "Who?"}]}])
    [('user', 'Who?')]
    """
    if isinstance(asked, str):
        return [("user", asked)] if asked else []
    messages = asked if isinstance(asked, Sequence) else [asked] if isinstance(asked, Mapping) else []
    return [
        (str(one.get("role") or "user"), _text(one.get("content", one.get("parts"))))
        if isinstance(one, Mapping)
        else ("user", _text(one))
        for one in messages
    ]


def _text(content: Any) -> str:
    """The text of a message; what is no text in it (an image, a call of a tool) as JSON, so that queries differ."""
    if isinstance(content, str) or content is None:
        return content or ""
    parts = content if isinstance(content, Sequence) else [content]
    return "\n".join(_part(part) for part in parts)


def _part(part: Any) -> str:
    if isinstance(part, Mapping) and part.get("type") in (None, "text", "input_text", "output_text"):
        text = part.get("text", part.get("content"))
        if isinstance(text, str):
            return text
    return part if isinstance(part, str) else json.dumps(part, sort_keys=True, default=str)


def query_of(messages: Sequence[tuple[str, str]]) -> str:
    """A name of a query by the messages, without their text: the same for every model that was sent them."""
    return hashlib.sha256(json.dumps(messages).encode()).hexdigest()[:16]


def prompt_of(messages: Sequence[tuple[str, str]]) -> str:
    """What was asked, for a person: of several messages each with its role.

    >>> prompt_of([("system", "Be brief."), ("user", "Who?")]), prompt_of([("user", "Who?")])
    ('system: Be brief.\\nuser: Who?', 'Who?')
    """
    if len(messages) == 1:
        return messages[0][1]
    return "\n".join(f"{role}: {text}" for role, text in messages)


def replies_of(body: Mapping[str, Any], answer: ImportedAnswer, cost: float | None = None) -> list[ImportedAnswer]:
    """The answers of a reply of OpenAI's API (chat completions, completions, responses): one, or several to a request.

    Args:
        body: the reply as JSON.
        answer: what they have in common.
        cost: of the call, which they share, as they do the tokens.
    """
    parts = [_responded(body)] if "output" in body else [_completed(choice) for choice in body["choices"]]
    usage, several = body.get("usage") or {}, len(parts)

    def share(value: Any) -> float | None:
        number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
        return value / several if number else None

    answer = replace(
        answer,
        input_tokens=share(usage.get("prompt_tokens", usage.get("input_tokens"))),
        output_tokens=share(usage.get("completion_tokens", usage.get("output_tokens"))),
        cost=share(cost),
    )
    return [
        replace(
            answer,
            text=text,
            finish=finish,
            failure=None if text else UNANSWERED,
            **(of_content(content, text) if content and text else TokenSignals())._asdict(),
        )
        for text, content, finish in parts
    ]


def _completed(choice: Mapping[str, Any]) -> tuple[str, Any, str | None]:
    """(text, tokens, finish reason) of a choice of a chat completion or a completion."""
    logprobs = choice.get("logprobs") or {}
    if "message" in choice:
        return _text((choice["message"] or {}).get("content")), logprobs.get("content"), choice.get("finish_reason")
    pairs = zip(logprobs.get("tokens") or (), logprobs.get("token_logprobs") or (), strict=True)
    content = [{"token": token, "logprob": logprob} for token, logprob in pairs]
    return choice.get("text") or "", content, choice.get("finish_reason")


def _responded(body: Mapping[str, Any]) -> tuple[str, Any, str | None]:
    """The same of a response: of its messages, without reasoning and calls of tools."""
    messages = [item for item in body["output"] if item.get("type") == "message"]
    parts = [part for item in messages for part in item.get("content") or () if part.get("type") == "output_text"]
    content = [token for part in parts for token in part.get("logprobs") or ()]
    reason = (body.get("incomplete_details") or {}).get("reason")
    finish = "length" if reason == "max_output_tokens" else reason or ("stop" if parts else None)
    return "".join(part.get("text") or "" for part in parts), content, finish
