"""One request to an OpenAI-compatible endpoint: what comes back, and what went wrong, in words without secrets.

Of what a server says about an error only its code gets into words: its messages may quote keys and prompts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeGuard

from rcjax.signals import Reply, Token

__all__ = ["AsyncCompletions", "CallError", "Failure", "Usage", "openai", "request"]


try:
    import openai
    from openai.resources.chat import AsyncCompletions
except ImportError:
    raise ImportError("running a cascade needs the client of OpenAI: pip install 'rcjax[run]'") from None


_RETRIES = "x-stainless-retry-count"  # the client's own header, which counts from 0


_MOST_TOKENS = 10**9  # of one reply: whatever says more does not count tokens


_ROUNDING = 0.01  # a log-probability above 0 by more is none: some servers put probabilities in its place


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong with a request, for whoever decides whether to send it again."""

    status: int | None = None
    """Of HTTP; None where there was no answer."""
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


@dataclass(slots=True)
class Usage:
    """What the requests of one call have used so far."""

    attempts: int = 0
    replies: int = 0
    counted: int = 0  # replies that told their tokens
    input_tokens: int = 0
    output_tokens: int = 0

    def add(self, usage: Any) -> None:
        """Count a reply, and its tokens from the `usage` that came with it."""
        self.replies += 1
        told = usage if isinstance(usage, Mapping) else {}
        read, written = told.get("prompt_tokens"), told.get("completion_tokens")
        if _is_count(read) and _is_count(written):
            self.counted += 1
            self.input_tokens += read
            self.output_tokens += written


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MOST_TOKENS


async def request(
    client: openai.AsyncOpenAI, model: str, messages: Sequence[Any], options: Mapping[str, Any], usage: Usage
) -> Reply:
    """Ask a model once, with the client's own retries.

    Args:
        client: of the endpoint.
        model: its name there.
        messages: the conversation.
        options: of the request.
        usage: what is used is added to it, also where the call fails.

    Raises CallError where no text came back.
    """
    problem, failure = "", Failure(charged=True)
    try:
        raw = await client.chat.completions.with_raw_response.create(model=model, messages=messages, **options)
        usage.attempts += raw.retries_taken + 1
        content = raw.content
    except openai.APIError as error:
        sent = error.request.headers.get(_RETRIES, "0")
        usage.attempts += int(sent) + 1 if sent.isdigit() else 1
        problem, failure = _in_words(error), _failure(error)
    except Exception as error:  # whatever a client can meet with must not end a batch
        usage.attempts += 1
        problem = f"the client failed: {type(error).__name__}"
    if problem:  # raised here, so that the client's error, which holds the request, is no part of it
        raise CallError(problem, failure)
    return _reply(content, usage)


def _in_words(error: openai.APIError) -> str:
    if isinstance(error, openai.APITimeoutError):
        return "timed out"
    if isinstance(error, openai.APIConnectionError):
        return "no connection"
    status = f"HTTP {error.status_code}" if isinstance(error, openai.APIStatusError) else type(error).__name__
    return status + _code(error.body)


def _failure(error: openai.APIError) -> Failure:
    if isinstance(error, openai.APIStatusError):
        status = error.status_code
        passing = status in (408, 409, 429) or status >= 500
        return Failure(status, _word(error.body), _wait(error.response.headers), passing)
    # A connection that was not made has carried nothing that could be charged.
    unsent = type(error.__cause__).__name__ in ("ConnectError", "ConnectTimeout", "PoolTimeout")
    return Failure(passing=isinstance(error, openai.APIConnectionError), charged=not unsent)


def _wait(headers: Mapping[str, str]) -> float | None:
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


def _code(body: Any) -> str:
    """The code of an error in brackets, where there is one."""
    code = _word(body)
    return f" ({code})" if code else ""


def _word(body: Any) -> str | None:
    """The code of an error, where it is one: a word of lower case, not a text."""
    words = [body.get(key) for key in ("code", "type")] if isinstance(body, Mapping) else []
    told = [str(word) for word in words if isinstance(word, str | int)]
    codes = [word for word in told if re.fullmatch(r"[a-z][a-z_]{1,59}|[1-5]\d\d", word, re.ASCII)]
    return codes[0] if codes else None


def _reply(content: bytes, usage: Usage) -> Reply:
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        data = None
    usage.add(data.get("usage") if isinstance(data, Mapping) else None)
    if not isinstance(data, Mapping):
        raise CallError("malformed answer: not a JSON object")
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices:
        error = data.get("error")
        raise CallError(f"an error in place of an answer{_code(error)}" if error else "malformed answer: no choices")
    first = choices[0]
    texts = tuple(_text(choice) for choice in choices)
    if not any(texts):
        reason = first.get("finish_reason") if isinstance(first, Mapping) else None
        known = reason if isinstance(reason, str) and re.fullmatch(r"[a-z_]{1,30}", reason) else "unknown"
        raise CallError(f"an answer without text (finish_reason {known})")
    return Reply(texts, _tokens(first))


def _text(choice: Any) -> str:
    message = choice.get("message") if isinstance(choice, Mapping) else None
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, list):  # in parts, as some servers have it
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        content = "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _tokens(choice: Any) -> tuple[Token, ...] | None:
    """The tokens of a choice; None where there are none, or anything about them is not as it should be."""
    try:
        return tuple(
            Token(
                _string(entry["token"]),
                _logprob(entry["logprob"]),
                {_string(one["token"]): _logprob(one["logprob"]) for one in entry.get("top_logprobs") or ()},
            )
            for entry in choice["logprobs"]["content"]
        )
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
        return None


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _logprob(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value <= _ROUNDING:  # NaN is not
        raise TypeError
    return min(0.0, float(value))
