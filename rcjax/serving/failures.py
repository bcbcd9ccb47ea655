"""Failures of calls to models, and the warning of a cascade that goes on. Standard library only.

A call fails by HTTP's status, in place of an answer, or inside an answer that looks complete. Messages name an error by
the server's code alone, since its text may quote keys and prompts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from traceback import extract_tb
from typing import Any

from rcjax.policy.signals.answers import as_object


class NotCoveredError(RuntimeError):
    """The money that is left does not cover a request."""


class CascadeWarning(UserWarning):
    """A problem that stops no cascade: a confidence cannot be read, a call is not logged, or the money is spent."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a request, for the decision on a retry."""

    status: int | None = None
    """HTTP status; None if there was no answer."""
    code: str | None = None
    """The server's code of the error, such as "insufficient_quota"."""
    retry_after: float | None = None
    """Seconds of back-off that the server asks for."""
    transient: bool = False
    """Whether a retry may work: as the server says (`x-should-retry`), or after a timeout, a lost connection, 408, 409,
    429 or 5xx."""
    charged: bool = False
    """Whether the server may have worked on the request, and may charge it."""
    timed_out: bool = False
    """Whether a reply or a connection did not come in time, here or at a proxy (504, 524)."""

    @property
    def is_refusal(self) -> bool:
        """Whether the server found a fault of the request, which other servers would find, too."""
        return self.status in (400, 413, 415, 422, 451)


class CallError(Exception):
    """A request that brought no usable reply; the message is one line without secrets.

    Args:
        message: what went wrong; it may quote a word of the server.
        failure: the failure, for the decision on a retry; by default the failure of an unusable reply.
        kind: the kind of error, from a short list, for metrics.
    """

    def __init__(self, message: str, failure: Failure | None = None, *, kind: str = "other") -> None:
        super().__init__(message)
        self.failure = failure or Failure(charged=True)
        self.kind = kind


def connection_error(*, timed_out: bool, transient: bool = True, charged: bool = True) -> CallError:
    """Make the error of a request that found no connection, lost its connection, or ran out of time."""
    message = "timed out" if timed_out else "no connection"
    return CallError(message, Failure(transient=transient, charged=charged, timed_out=timed_out), kind=message)


def malformed_error(reason: str) -> CallError:
    """Make the error of a reply that cannot be read, for a reason in words."""
    return CallError(f"malformed answer: {reason}", kind="malformed answer")


class WithheldError(CallError):
    """A complete reply without an answer: a filter withheld the answer, or the reply has no text but reasoning."""


#: Finish reasons of answers that broke down, in lower case, by the documentation of providers; a retry may work.
#: OpenRouter, Mistral, vLLM, Cohere, watsonx: error; Zhipu: network_error; DeepSeek:
#: insufficient_system_resource; Gemini: malformed_function_call to other; Bedrock: malformed_model_output and
#: malformed_tool_use; vLLM and SGLang: abort; Cohere: error_limit, user_cancel, timeout; watsonx: cancelled.
_BROKEN = """
    abort aborted canceled cancelled error error_limit failed insufficient_system_resource malformed_function_call
    malformed_model_output malformed_response malformed_tool_use missing_thought_signature network_error other timeout
    too_many_tool_calls unexpected_tool_call user_cancel
"""

#: Finish reasons of withheld answers: OpenAI, Azure, Moonshot: content_filter; Gemini: blocklist to spii;
#: Bedrock: content_filtered, guardrail_intervened; Zhipu: sensitive; Anthropic: refusal; Cohere: error_toxic.
_WITHHELD = """
    blocklist content_filter content_filtered error_toxic guardrail_intervened image_prohibited_content
    image_recitation image_safety language prohibited_content recitation refusal safety sensitive spii
"""

_NO_ANSWER = frozenset[str]((*_WITHHELD.split(), *_BROKEN.split()))

_NOT_ENDED = ("", "null", "not_finished")  # no finish reason yet, by DashScope and watsonx


def raw_finish_reason(choice: Any) -> Any:
    """Return a choice's finish reason as the server sends it, also under Gemini's name; None before the end."""
    fields = as_object(choice)
    reason = fields.get("finish_reason") or fields.get("finishReason")
    return None if not reason or (isinstance(reason, str) and reason.lower() in _NOT_ENDED) else reason


def finish_reason_of(choice: Any) -> str | None:
    """Return the finish reason of a choice as a text; None before the end.

    >>> finish_reason_of({"finish_reason": {"type": "abort"}}), finish_reason_of({"finish_reason": "null"})
    ('abort', None)
    """
    reason = raw_finish_reason(choice)
    reason = reason.get("type") if isinstance(reason, Mapping) else reason  # SGLang's is an object
    return reason if isinstance(reason, str) else None


def lacks_answer(reason: str | None) -> bool:
    """Return whether a finish reason reports a reply without an answer.

    >>> lacks_answer("length"), lacks_answer("content_filter: RECITATION"), lacks_answer("MALFORMED_FUNCTION_CALL")
    (False, True, True)
    """
    return reason is not None and not _NO_ANSWER.isdisjoint(_words(reason))


def _words(reason: str) -> list[str]:
    """Split a finish reason into words, as Gemini's has two."""
    return re.findall(r"[a-z_]+", reason.lower().removeprefix("finishreason."))


def is_withheld(choice: Any) -> bool:
    """Return whether a filter withheld a choice, by its finish reason."""
    reason = finish_reason_of(choice)
    return reason is not None and not set(_words(reason)).isdisjoint(_WITHHELD.split())


def choice_failure(choice: Any) -> CallError | None:
    """Return the failure that a choice reports by an error or a finish reason; None without a failure.

    >>> str(choice_failure({"finish_reason": "error", "error": {"code": 502}}))
    'a failure in place of an answer (502)'
    """
    reason, error = finish_reason_of(choice), choice.get("error")
    if not error and (is_withheld(choice) or not lacks_answer(reason)):
        return None
    return _reported_error("a failure", error if error else None, reason, transient=True)


#: Fields that hold an error, and pairs of a field and its value that mark an object as an error.
_ERRORS = ("error", "errors", "error_code")
_ERROR_MARKS = {("object", "error"), ("type", "error"), ("status", "error"), ("status", "failed")}


def body_failure(data: Any) -> CallError | None:
    """Return the failure that a server reports in place of a completion or a chunk; None without a failure.

    >>> str(body_failure({"text": "no", "error_code": 50001})), body_failure({"error": None, "choices": []})
    ('an error in place of an answer (50001)', None)
    """
    fields = as_object(data)
    status = as_object(fields.get("base_resp")).get("status_code")  # MiniMax's field
    errors = [fields[name] for name in _ERRORS if fields.get(name)] + ([status] if status else [])
    is_bare = isinstance(fields.get("message"), str) and "code" in fields  # an error alone
    is_bare = is_bare and "usage" not in fields and not fields.get("choices")
    if not errors and not is_bare and not any(fields.get(name) == value for name, value in _ERROR_MARKS):
        return None
    error = next((error for error in errors if isinstance(error, Mapping | list)), None)
    error = error[0] if isinstance(error, list) else error
    codes = {"code": next((code for code in (fields.get("error_code"), status, fields.get("code")) if code), None)}
    return _reported_error(
        "an error", {**codes, **error} if isinstance(error, Mapping) else codes, None, transient=False
    )


def _reported_error(noun: str, error: Any, reason: str | None, *, transient: bool) -> CallError:
    word = error_code_of(error) or (reason if reason and re.fullmatch(r"[A-Za-z_]{1,40}", reason) else None)
    status = int(word) if word and re.fullmatch(r"[45]\d\d", word) else None
    may_retry = is_transient(status) if status is not None else transient or word in _TRANSIENT
    kind = f"{noun} in place of an answer"
    return CallError(
        f"{kind} ({word})" if word else kind,
        Failure(status, word if word and status is None else None, transient=may_retry, charged=True),
        kind=kind,
    )


#: Codes and types of errors after which a retry may work, by OpenAI, Anthropic, Groq and Mistral.
_TRANSIENT = ("api_error", "internal_server_error", "overloaded_error", "rate_limit_exceeded")
_TRANSIENT += ("server_error", "timeout")


def is_transient(status: int) -> bool:
    """Return whether a retry may work after this HTTP status."""
    return status in (408, 409, 429) or status >= 500


def unusable_error(data: Any) -> CallError:
    """Return the error of data that is neither a completion nor a chunk: the server's error, or a malformed answer."""
    return body_failure(data) or malformed_error("no choices" if isinstance(data, Mapping) else "not a JSON object")


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Read the seconds of back-off from a reply's headers: milliseconds, seconds or a date. None if there are none."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * scale
        except ValueError:
            continue
        return seconds if 0 <= seconds < math.inf else None
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
        return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None


def error_code_of(body: Any) -> str | None:
    """Return the code or type of an error if it is a number or a word in lower case, not a text; else None."""
    words = [as_object(body).get(key) for key in ("code", "type")]
    texts = [str(word) for word in words if isinstance(word, str) or type(word) is int]
    codes = [word for word in texts if re.fullmatch(r"[a-z][a-z_]{1,59}|[1-9]\d{2,5}", word, re.ASCII)]
    return codes[0] if codes else None


def parameter_of(body: Any) -> str | None:
    """Return the name of the request's field that an error refuses, such as "max_tokens"; None without one."""
    name = as_object(body).get("param")
    return name if isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_.\[\]]{0,59}", name, re.ASCII) else None


#: An endpoint's codes for an account without credit, whatever the status, which is 429 at OpenAI.
NO_CREDIT = ("insufficient_quota", "billing_hard_limit_reached", "insufficient_credits", "payment_required")


def describe_fault(problem: BaseException) -> str:
    """Describe an error by its kind and place, without its message, which may quote a prompt or a reply."""
    last = extract_tb(problem.__traceback__)[-1]
    return f"{type(problem).__name__} in {Path(last.filename).name}, line {last.lineno}"
