"""Logs of calls, which tell no right from wrong, as JSON Lines or arrays: LiteLLM's, OpenAI's batches.

The query is named by the messages, and in a batch by its `custom_id`, which the batches of all models must share.

- LiteLLM: standard logging payloads, as its callbacks and its proxy hand them on, and the proxy's spend logs
  (`/spend/logs`), where these store prompts. A payload is one call. The model is named by what was asked for: the
  proxy's own name of it, where there is one.
- OpenAI's batches: their output, a line for each request, with the body of the response, or an error. The model is
  named by the body; prompts are in the file of requests alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from rcjax.importing.chats import decoded, messages_of, prompt_of, query_of, replies_of
from rcjax.importing.lines import (
    DamageError,
    Format,
    How,
    Line,
    amount_of,
    holding,
    lines_of,
    require_sound,
)


def _read(
    program: str, lines: Callable[[Mapping[str, Any], str | None, str], Iterable[Line]]
) -> Callable[[Path, How], Iterator[Line | DamageError]]:
    """What reads the files of a program, by the lines of an object, what names its query, and its place."""

    def read(path: Path, how: How) -> Iterator[Line | DamageError]:
        by = how.columns.get("query")
        return lines_of(path, program, lambda record, where: lines(record, by, where))

    return read


# -- LiteLLM

_TEXTS = ("completion", "text_completion", "responses", "anthropic_messages")

_REDACTED = "redacted-by-litellm"


def _of_payload(record: Mapping[str, Any], by: str | None, where: str) -> list[Line]:
    payload = record.get("standard_logging_object", record)
    sent = decoded(payload.get("proxy_server_request")) or {}
    messages = messages_of(decoded(payload.get("messages")) or sent.get("messages"))
    named = query_of(messages) if by is None else _looked_up(payload, by)
    require_sound(named is not None, where, f"nothing at {by}, which is to name the query")
    line = {"query": str(named), "model": payload.get("model_group") or payload["model"]}
    failure = _failure(payload, messages)
    if failure is not None:
        return [line | {"error": failure}]
    line["prompt"] = prompt_of(messages)
    if str(payload.get("cache_hit")).lower() != "true":  # a cache tells nothing of the model's time and money
        line |= {"cost": _cost(payload), "seconds": _duration(payload)}
    return replies_of(decoded(payload["response"]), line)


def _failure(payload: Mapping[str, Any], messages: list[tuple[str, str]]) -> str | None:
    """Why a call holds no answer; None if it may."""
    kind = str(payload["call_type"])
    if payload.get("status") not in ("success", None):
        return "with an error"
    if kind.removeprefix("a") not in _TEXTS and kind not in _TEXTS:
        return f"of another kind of call ({kind})"
    if any(text == _REDACTED for _, text in messages) or _REDACTED in str(payload.get("response"))[:200]:
        return "redacted (turn_off_message_logging)"
    return None if messages else "without messages (spend logs have them with store_prompts_in_spend_logs: true)"


def _cost(payload: Mapping[str, Any]) -> float | None:
    """Money; None if LiteLLM says that it could not tell."""
    cost = payload.get("response_cost", payload.get("spend"))
    if cost is None or (not cost and payload.get("response_cost_failure_debug_info")):
        return None
    return float(cost)


def _duration(payload: Mapping[str, Any]) -> float | None:
    """From the start of a call to its end: of a streamed reply, `response_time` is that of the first token."""
    begin, end = payload.get("startTime"), payload.get("endTime")
    if isinstance(begin, str) and isinstance(end, str):
        return amount_of((datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds())
    if isinstance(begin, int | float) and isinstance(end, int | float):
        return amount_of(end - begin)
    return amount_of(payload.get("response_time"))


def _looked_up(record: Mapping[str, Any], path: str) -> Any:
    """What stands at a path of names with dots between them; None if there is nothing.

    >>> _looked_up({"metadata": {"my.id": 7}}, "metadata.my.id"), _looked_up({}, "metadata")
    (7, None)
    """
    if path in record:
        return record[path]
    names = path.split(".")
    for end in range(1, len(names)):
        inner = record.get(".".join(names[:end]))
        value = _looked_up(inner, ".".join(names[end:])) if isinstance(inner, Mapping) else None
        if value is not None:
            return value
    return None


# -- OpenAI's batches


def _of_request(record: Mapping[str, Any], by: str | None, where: str) -> list[Line]:
    response = record["response"] or {}
    body = response.get("body") or {}
    line = {"query": str(record["custom_id"]), "model": str(body.get("model") or "?")}
    if record.get("error") or response.get("status_code") != 200 or body.get("error"):
        return [line | {"error": "with an error"}]
    if "choices" not in body and "output" not in body:
        return [line | {"error": f"of another kind of call ({body.get('object')})"}]
    return replies_of(body, line)


def _is_litellm(path: Path, head: bytes) -> bool:
    money = b'"response_cost"' in head or b'"spend"' in head
    return money and holding(b"call_type", b"model_group")(path, head)


LITELLM = Format(
    "litellm", "LiteLLM (standard logging payloads, spend logs)", _is_litellm, _read("LiteLLM", _of_payload)
)

BATCHES = Format(
    "openai-batch",
    "OpenAI's batches (their output)",
    holding(b"custom_id", b"response", b"error"),
    _read("OpenAI", _of_request),
)
