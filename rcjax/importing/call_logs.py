"""Logs of calls, which tell no right from wrong, as JSON Lines or arrays: LiteLLM's, OpenTelemetry's, OpenAI's batches.

The query is named by the messages, and in a batch by its `custom_id`, which the batches of all models must share.

- LiteLLM: standard logging payloads, as its callbacks and its proxy hand them on, and the proxy's spend logs
  (`/spend/logs`), where these store prompts. A payload is one call. The model is named by what was asked for: the
  proxy's own name of it, where there is one.
- OpenTelemetry: spans of the GenAI conventions, as OTLP in JSON, which SDKs and the collector write to files. A span of
  a chat or completion is one answer, without log-probabilities; instrumentations leave messages out unless told
  otherwise.
- OpenAI's batches: their output, a line for each request, with the body of the response, or an error. The model is
  named by the body; prompts are in the file of requests alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from rcjax.importing.chats import UNANSWERED, decoded, messages_of, prompt_of, query_of, replies_of, said, shared, used
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


# -- OpenTelemetry

#: Operations that answer in text; agents, tools and embeddings have spans of their own, which are passed over.
_OPERATIONS = ("chat", "completion", "text_completion", "generate_content")

_CAPTURE = "the instrumentation records them with OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=span_only"

#: Names of attributes: those of today first, then those of former conventions.
_ASKED = ("gen_ai.input.messages", "gen_ai.prompt", "gen_ai.content.prompt")
_SAID = ("gen_ai.output.messages", "gen_ai.completion", "gen_ai.content.completion")
#: By the conventions what a cache gave and took is within the input tokens; some instrumentations have it beside them,
#: which `told_tokens` sees where it is more.
_USAGE = {
    "prompt_tokens": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    "completion_tokens": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    "total_tokens": ("gen_ai.usage.total_tokens", "llm.usage.total_tokens"),
    "cache_read_input_tokens": ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens"),
    "cache_creation_input_tokens": (
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_creation_input_tokens",
    ),
}


def _of_resources(record: Mapping[str, Any], by: str | None, where: str) -> Iterator[Line]:
    for resource in record["resourceSpans"]:
        for scope in resource.get("scopeSpans") or ():
            for span in scope.get("spans") or ():
                attributes = _attributes(span)
                model = attributes.get("gen_ai.request.model") or attributes.get("gen_ai.response.model")
                operation = attributes.get("gen_ai.operation.name", attributes.get("llm.request.type", "chat"))
                if model and operation in _OPERATIONS:
                    position = f"{where}, span {span.get('spanId', '')}"
                    yield from _of_span(span, attributes, str(model), by, position)


def _of_span(
    span: Mapping[str, Any], attributes: Mapping[str, Any], model: str, by: str | None, where: str
) -> list[Line]:
    """The answers of a span, which share its tokens; most have one."""
    system = [("system", text) for _, text in messages_of(decoded(attributes.get("gen_ai.system_instructions")))]
    asked = system + _messages(attributes, _ASKED)
    query = query_of(asked) if by is None else attributes.get(by)
    require_sound(query is not None, where, f"no attribute {by}, which is to name the query")
    line: Line = {"query": str(query), "model": model}
    if (span.get("status") or {}).get("code") in (2, "STATUS_CODE_ERROR") or "error.type" in attributes:
        return [line | {"error": "with an error"}]
    finish = attributes.get("gen_ai.response.finish_reasons")
    line |= {
        "prompt": prompt_of(asked),
        "finish": str(finish[0]) if isinstance(finish, list) and finish else None,
        "cost": _number(attributes, ("gen_ai.usage.cost",)),
        "seconds": amount_of((int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9),
    }
    nothing = UNANSWERED if asked else f"without messages ({_CAPTURE})"
    replies = _messages(attributes, _SAID, said) or [("assistant", "")]
    usage = {name: _number(attributes, names) for name, names in _USAGE.items()}
    line |= used(usage, line["prompt"] if asked else None, [text for _, text in replies])
    return shared([line | ({"answer": text} if text else {"error": nothing}) for _, text in replies])


def _attributes(span: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a span, and of its events that are about generative AI: there some put what was said."""
    parts = [*(event.get("attributes") for event in span.get("events") or ()), span.get("attributes")]
    return {one["key"]: _value(one["value"]) for part in parts for one in part or ()}


def _value(value: Mapping[str, Any]) -> Any:
    """A value as OTLP writes it: the name of its kind, and it; whole numbers are texts."""
    kind: str
    content: Any
    (kind, content), *_ = [*value.items()] or [("", None)]
    if kind == "arrayValue":
        return [_value(one) for one in content.get("values") or ()]
    if kind == "kvlistValue":
        return {one["key"]: _value(one["value"]) for one in content.get("values") or ()}
    return int(content) if kind == "intValue" else content


def _messages(attributes: Mapping[str, Any], names: tuple[str, ...], text: Any = None) -> list[tuple[str, str]]:
    """The messages under the first of the names that there is, or in attributes numbered below it."""
    for label in names:
        if label in attributes:
            return messages_of(decoded(attributes[label]), text)
        numbered: list[tuple[str, str]] = []
        while (content := attributes.get(f"{label}.{len(numbered)}.content")) is not None:
            numbered.append((str(attributes.get(f"{label}.{len(numbered)}.role") or "user"), str(content)))
        if numbered:
            return numbered
    return []


def _number(attributes: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """The number under the first of the names that there is."""
    values = [attributes[label] for label in names if label in attributes]
    return float(values[0]) if values else None


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

OTEL = Format(
    "otel",
    "OpenTelemetry (OTLP JSON with GenAI spans)",
    holding(b"resourceSpans"),
    _read("OpenTelemetry", _of_resources),
)

BATCHES = Format(
    "openai-batch",
    "OpenAI's batches (their output)",
    holding(b"custom_id", b"response", b"error"),
    _read("OpenAI", _of_request),
)
