"""Failures of calls: told by HTTP, in place of an answer, or inside an answer that looks whole.

Of what a server says about an error only its code gets into words: its messages may quote keys and prompts. Standard
library only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any


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


class WithheldError(CallError):
    """An answer that is there, and is none: a filter held it back, it has no text, or all of it is reasoning."""


#: Finish reasons of answers that broke down, in lower case, by the documentation of providers. The same request may
#: well work: OpenRouter, Mistral, vLLM, Cohere, watsonx: error; Zhipu: network_error; DeepSeek:
#: insufficient_system_resource; Gemini: malformed_function_call to other; Bedrock: malformed_model_output and
#: malformed_tool_use; vLLM and SGLang: abort; Cohere: error_limit, user_cancel, timeout; watsonx: cancelled.
_BROKEN = """
    abort aborted canceled cancelled error error_limit failed insufficient_system_resource malformed_function_call
    malformed_model_output malformed_response malformed_tool_use missing_thought_signature network_error other timeout
    too_many_tool_calls unexpected_tool_call user_cancel
"""

#: Those of answers that a filter held back: OpenAI, Azure, Moonshot: content_filter; Gemini: blocklist to spii;
#: Bedrock: content_filtered, guardrail_intervened; Zhipu: sensitive; Anthropic: refusal; Cohere: error_toxic.
_WITHHELD = """
    blocklist content_filter content_filtered error_toxic guardrail_intervened image_prohibited_content
    image_recitation image_safety language prohibited_content recitation refusal safety sensitive spii
"""

_HELD_BACK = frozenset[str](_WITHHELD.split())
_NO_ANSWER = _HELD_BACK | frozenset[str](_BROKEN.split())

_NOT_ENDED = ("", "null", "not_finished")  # in place of no finish reason: DashScope and watsonx


def told_finish(choice: Any) -> Any:
    """The finish reason of a choice as the server has it, also by Gemini's own name; None where there is none yet."""
    fields = choice if isinstance(choice, Mapping) else {}
    reason = fields.get("finish_reason") or fields.get("finishReason")
    return None if not reason or (isinstance(reason, str) and reason.lower() in _NOT_ENDED) else reason


def finish_of(choice: Any) -> str | None:
    """Why a choice ends, as the server has it; None if it does not say, or not yet.

    >>> finish_of({"finish_reason": {"type": "abort"}}), finish_of({"finish_reason": "null"})
    ('abort', None)
    """
    reason = told_finish(choice)
    reason = reason.get("type") if isinstance(reason, Mapping) else reason  # as SGLang has it
    return reason if isinstance(reason, str) else None


def ends_badly(reason: str | None) -> bool:
    """Whether a finish reason says that there is no answer.

    >>> ends_badly("length"), ends_badly("content_filter: RECITATION"), ends_badly("MALFORMED_FUNCTION_CALL")
    (False, True, True)
    """
    return reason is not None and not _NO_ANSWER.isdisjoint(_words(reason))


def _words(reason: str) -> list[str]:
    """The words of a finish reason, of which Gemini has two."""
    return re.findall(r"[a-z_]+", reason.lower().removeprefix("finishreason."))


def is_withheld(choice: Any) -> bool:
    """Whether a filter held a choice back, by its finish reason."""
    reason = finish_of(choice)
    return reason is not None and not _HELD_BACK.isdisjoint(_words(reason))


def told_in_choice(choice: Any) -> CallError | None:
    """The failure that a choice tells, by an error of its own or its finish reason; None if it tells none.

    >>> str(told_in_choice({"finish_reason": "error", "error": {"code": 502}}))
    'a failure in place of an answer (502)'
    """
    if not isinstance(choice, Mapping):
        return None
    reason, error = finish_of(choice), choice.get("error")
    if not error and (is_withheld(choice) or not ends_badly(reason)):
        return None
    return _told("a failure", error if error else None, reason, passing=True)


#: Fields of an object that is an error, and values of fields that say so.
_ERRORS = ("error", "errors", "error_code")
_SAYING = {("object", "error"), ("type", "error"), ("status", "error"), ("status", "failed")}


def told_in_place(data: Any) -> CallError | None:
    """The failure that a server tells in place of a completion, or of a chunk of one; None if it tells none.

    >>> str(told_in_place({"text": "no", "error_code": 50001})), told_in_place({"error": None, "choices": []})
    ('an error in place of an answer (50001)', None)
    """
    told = data if isinstance(data, Mapping) else {}
    base = told.get("base_resp")  # as MiniMax has it
    status = base.get("status_code") if isinstance(base, Mapping) else None
    errors = [told[name] for name in _ERRORS if told.get(name)] + ([status] if status else [])
    bare = not told.get("choices") and "usage" not in told and isinstance(told.get("message"), str) and "code" in told
    if not errors and not bare and not any(told.get(name) == value for name, value in _SAYING):
        return None
    error = next((one for one in errors if isinstance(one, Mapping | list)), None)
    error = error[0] if isinstance(error, list) else error
    codes = {"code": next((one for one in (told.get("error_code"), status, told.get("code")) if one), None)}
    return _told("an error", {**codes, **error} if isinstance(error, Mapping) else codes, None, passing=False)


def _told(what: str, error: Any, reason: str | None, *, passing: bool) -> CallError:
    word = error_word(error) or (reason if reason and re.fullmatch(r"[A-Za-z_]{1,40}", reason) else None)
    status = int(word) if word and re.fullmatch(r"[45]\d\d", word) else None
    again = is_passing(status) if status is not None else passing or word in _PASSING
    return CallError(
        f"{what} in place of an answer{f' ({word})' if word else ''}",
        Failure(status, word if word and status is None else None, passing=again, charged=True),
    )


#: Codes and types of errors that pass, by OpenAI, Anthropic, Groq and Mistral.
_PASSING = ("api_error", "internal_server_error", "overloaded_error", "rate_limit_exceeded", "server_error", "timeout")


def is_passing(status: int) -> bool:
    """Whether a request may well work later, by the status of HTTP that it brought."""
    return status in (408, 409, 429) or status >= 500


def unusable(data: Any) -> CallError:
    """What is wrong with what a server sent in place of a completion, or of a chunk of one."""
    malformed = f"malformed answer: {'no choices' if isinstance(data, Mapping) else 'not a JSON object'}"
    return told_in_place(data) or CallError(malformed)


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
    """The code of an error, where it is one: a word of lower case or a number, not a text."""
    words = [body.get(key) for key in ("code", "type")] if isinstance(body, Mapping) else []
    texts = [str(word) for word in words if isinstance(word, str) or type(word) is int]
    codes = [word for word in texts if re.fullmatch(r"[a-z][a-z_]{1,59}|[1-9]\d{2,5}", word, re.ASCII)]
    return codes[0] if codes else None
