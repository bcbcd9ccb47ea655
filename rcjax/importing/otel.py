"""Spans of OpenTelemetry's GenAI conventions, as OTLP in JSON: what SDKs and the collector write to files.

A span of a chat or completion is one answer. The query is named by its messages, which instrumentations leave out
unless told otherwise. Spans tell no log-probabilities, and no right from wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rcjax.importing.chats import UNANSWERED, decoded, messages_of, prompt_of, query_of, said, shared, used
from rcjax.importing.lines import DamageError, How, Line, amount_of, begins_as_json, lines_of, require_sound

name, files = "otel", "OpenTelemetry (OTLP JSON with GenAI spans)"

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


def recognises(path: Path, head: bytes) -> bool:
    """Lines with the spans of resources."""
    return begins_as_json(head) and b'"resourceSpans"' in head


def read(path: Path, how: How) -> Iterator[Line | DamageError]:
    """The lines of a file, one per span of a call of a model."""
    by = how.columns.get("query")
    return lines_of(path, "OpenTelemetry", lambda record, where: _lines(record, by, where))


def _lines(record: Mapping[str, Any], by: str | None, where: str) -> Iterator[Line]:
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
        **used({name: _number(attributes, names) for name, names in _USAGE.items()}),
        "cost": _number(attributes, ("gen_ai.usage.cost",)),
        "seconds": amount_of((int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9),
    }
    nothing = UNANSWERED if asked else f"without messages ({_CAPTURE})"
    replies = _messages(attributes, _SAID, said) or [("assistant", "")]
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
