"""What an endpoint replies: a chat completion as JSON, checked as far as it is used, and what is read in it.

Of what a server says about an error only its code gets into words: its messages may quote keys and prompts. Standard
library only.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from rcjax.serving.usage import Usage
from rcjax.signals import Reply, SignalError
from rcjax.signals.tokens import TokensError, read_tokens

_MOST_PARTS = 4_000_000  # of one reply: log-probabilities of 16,000 tokens, each with twenty others, have 3 million


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong with a request, for whoever decides whether to send it again."""

    status: int | None = None
    """Of HTTP; None if there was no answer."""
    code: str | None = None
    """The server's own word for it, such as "insufficient_quota"."""
    wait: float | None = None
    """Seconds that the server asks to wait."""
    passing: bool = False
    """The same request may well work later: a timeout, a lost connection, 408, 409, 429, 5xx."""
    charged: bool = False
    """What was sent may have been worked on, and may be charged."""


class CallError(Exception):
    """A request that brought no usable reply; the message is one line without secrets."""

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure or Failure(charged=True)  # what came back could not be used


class NoTextError(CallError):
    """An answer that is there and has no text, as a filter held it back, or all of it is reasoning."""


def read_completion(content: bytes | str, usage: Usage, sent: int = 0) -> Mapping[str, Any]:
    """A completion from its JSON, with one choice at least; what it used is added to the usage.

    Args:
        content: of the reply.
        usage: of the call.
        sent: bytes of the request.

    Raises CallError for anything else.
    """
    data = read_json(content)
    told = data if isinstance(data, Mapping) else {}
    listed = told.get("choices")
    messages = [one.get("message") for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    usage.add(told.get("usage"), sent, sum(map(said_bytes, messages)))
    choices = told.get("choices")
    if not isinstance(choices, list) or not choices:
        raise unusable(data)
    return told


def unusable(data: Any) -> CallError:
    """What is wrong with what a server sent in place of a completion, or of a chunk of one."""
    error = data.get("error") if isinstance(data, Mapping) else None
    code = error_word(error)
    if error:
        return CallError(f"an error in place of an answer{f' ({code})' if code else ''}")
    return CallError(f"malformed answer: {'no choices' if isinstance(data, Mapping) else 'not a JSON object'}")


def read_json(content: bytes | str) -> Any:
    """What a server sent as JSON; None if it is none, or has so many parts that reading them would stop all else.

    >>> read_json(b'{"a": [1]}'), read_json("{"), read_json(b"[" * 10_000_000)
    ({'a': [1]}, None, None)
    """
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if data.count(b"[") + data.count(b"{") + data.count(b",") > _MOST_PARTS:
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def read_reply(completion: Mapping[str, Any], *, calls_alone: bool = False) -> Reply:
    """The texts of a completion, the tokens of the first one's text, and how it ends.

    Raises CallError where it has no text, unless calls of tools alone are a reply.
    """
    choices = completion["choices"]
    first = choices[0]
    texts = tuple(choice_text(choice) for choice in choices)
    ending = _ending(first)
    if not any(texts) and not (calls_alone and ending[1]):
        reason = first.get("finish_reason") if isinstance(first, Mapping) else None
        word = reason if isinstance(reason, str) and re.fullmatch(r"[a-z_]{1,30}", reason) else "unknown"
        kind = NoTextError if all(isinstance(choice, Mapping) for choice in choices) else CallError
        raise kind(f"an answer without text (finish_reason {word})")
    logprobs = first.get("logprobs") if isinstance(first, Mapping) else None
    try:
        content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
        return Reply(texts, read_tokens(content, texts[0]), None, *ending)
    except TokensError as problem:
        return Reply(texts, None, str(problem), *ending)
    except SignalError:  # the server told none
        return Reply(texts, None, None, *ending)


def _ending(choice: Any) -> tuple[str | None, tuple[Mapping[str, Any], ...]]:
    """(the reason to finish, the calls of tools) of a choice, as far as they are such."""
    fields = choice if isinstance(choice, Mapping) else {}
    message, reason = fields.get("message"), fields.get("finish_reason")
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    listed = calls if isinstance(calls, list) else []
    return reason if isinstance(reason, str) else None, tuple(call for call in listed if isinstance(call, Mapping))


def joined(completions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Several completions of one question as one that has the first choice of each.

    >>> one, other = ({"id": name, "choices": [{"index": 0, "message": {"content": name}}]} for name in "ab")
    >>> [(choice["index"], choice_text(choice)) for choice in joined([one, other])["choices"]]
    [(0, 'a'), (1, 'b')]
    """
    choices = [completion["choices"][0] for completion in completions]
    numbered = [
        {**choice, "index": index} if isinstance(choice, Mapping) else choice for index, choice in enumerate(choices)
    ]
    return {**completions[0], "choices": numbered}


_TEXT_PARTS = ("text", "output_text")


def choice_text(choice: Any) -> str:
    """The text of a choice, that of a refusal too; "" where it has none.

    >>> choice_text({"message": {"content": None, "refusal": "I cannot help with that."}})
    'I cannot help with that.'
    """
    message = choice.get("message") if isinstance(choice, Mapping) else None
    said = message if isinstance(message, Mapping) else {}
    content = said.get("content") or said.get("refusal")
    if isinstance(content, list):  # in parts, as some servers have it
        texts = [part for part in content if isinstance(part, Mapping) and part.get("type", "text") in _TEXT_PARTS]
        parts = [part.get("text") for part in texts]
        content = "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


#: Where servers tell what a model thinks before it answers.
REASONING = ("reasoning_content", "reasoning")


def said_bytes(message: Any) -> int:
    """Bytes of what a message, or a piece of one, has a model write: its text, its reasoning, its calls of tools.

    >>> said_bytes({"content": "Größe", "reasoning": "Hm", "tool_calls": [{"function": {"arguments": "{}"}}]})
    11
    """
    said = message if isinstance(message, Mapping) else {}
    calls = said.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    arguments = [one.get("arguments") for one in functions if isinstance(one, Mapping)]
    texts = [choice_text({"message": said}), *map(said.get, REASONING), *arguments]
    return sum(len(text.encode("utf-8", "replace")) for text in texts if isinstance(text, str))


def read_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, by the headers that servers tell it in: milliseconds, seconds, or a date."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * scale
        except ValueError:
            continue
        return seconds if 0 <= seconds < math.inf else None
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
        return max(0.0, (date - datetime.now(date.tzinfo)).total_seconds())
    except (TypeError, ValueError):
        return None


def error_word(body: Any) -> str | None:
    """The code of an error, where it is one: a word of lower case, not a text."""
    words = [body.get(key) for key in ("code", "type")] if isinstance(body, Mapping) else []
    texts = [str(word) for word in words if isinstance(word, str | int)]
    codes = [word for word in texts if re.fullmatch(r"[a-z][a-z_]{1,59}|[1-5]\d\d", word, re.ASCII)]
    return codes[0] if codes else None
