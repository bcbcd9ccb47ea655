"""Spans of OpenTelemetry's GenAI conventions, as OTLP in JSON: what SDKs and the collector write to files.

A span of a chat or completion is one answer. The query is named by its messages, which instrumentations leave out
unless told otherwise. Spans tell no log-probabilities, and no right from wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rcjax.importing.answers import DamageError, How, ImportedAnswer, answers_of, require_sound, seconds_of
from rcjax.importing.chats import UNANSWERED, messages_of, prompt_of, query_of

name, files = "otel", "OpenTelemetry (OTLP JSON with GenAI spans)"

#: Operations that answer in text; agents, tools and embeddings have spans of their own, which are passed over.
_OPERATIONS = ("chat", "completion", "text_completion", "generate_content")

_CAPTURE = "the instrumentation records them with OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=span_only"

#: Names of attributes: those of today first, then those of former conventions.
_ASKED = ("gen_ai.input.messages", "gen_ai.prompt", "gen_ai.content.prompt")
_SAID = ("gen_ai.output.messages", "gen_ai.completion", "gen_ai.content.completion")
_SENT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_RECEIVED = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")


def recognises(path: Path, head: bytes) -> bool:
    """Lines with the spans of resources."""
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") and b'"resourceSpans"' in head


def read(path: Path, how: How) -> Iterator[ImportedAnswer | DamageError]:
    """The answers of a file, one per span of a call of a model."""
    by = how.columns.get("query")
    return answers_of(path, "OpenTelemetry", lambda record, where: _answers(record, by, where))


def _answers(record: Mapping[str, Any], by: str | None, where: str) -> Iterator[ImportedAnswer]:
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
) -> Iterator[ImportedAnswer]:
    """The answers of a span, which share its tokens; most have one."""
    system = [("system", text) for _, text in messages_of(_parsed(attributes.get("gen_ai.system_instructions")))]
    asked = system + _messages(attributes, _ASKED)
    query = query_of(asked) if by is None else attributes.get(by)
    require_sound(query is not None, where, f"no attribute {by}, which is to name the query")
    said = _messages(attributes, _SAID) or [("assistant", "")]
    failed = (span.get("status") or {}).get("code") in (2, "STATUS_CODE_ERROR") or "error.type" in attributes
    nothing = UNANSWERED if asked else f"without messages ({_CAPTURE})"
    finish = attributes.get("gen_ai.response.finish_reasons")
    for _, text in said:
        yield ImportedAnswer(
            query=str(query),
            model=model,
            attempt=None,
            judged=False,
            failure="with an error" if failed else None if text else nothing,
            text=text,
            prompt=prompt_of(asked),
            finish=str(finish[0]) if isinstance(finish, list) and finish else None,
            input_tokens=_share(attributes, _SENT, len(said)),
            output_tokens=_share(attributes, _RECEIVED, len(said)),
            cost=_share(attributes, ("gen_ai.usage.cost",), len(said)),
            seconds=seconds_of((int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9),
        )


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


def _messages(attributes: Mapping[str, Any], names: tuple[str, ...]) -> list[tuple[str, str]]:
    """The messages under the first of the names that there is, or in attributes numbered below it."""
    for label in names:
        if label in attributes:
            return messages_of(_parsed(attributes[label]))
        numbered: list[tuple[str, str]] = []
        while (content := attributes.get(f"{label}.{len(numbered)}.content")) is not None:
            numbered.append((str(attributes.get(f"{label}.{len(numbered)}.role") or "user"), str(content)))
        if numbered:
            return numbered
    return []


def _parsed(value: Any) -> Any:
    """Messages, which stand as JSON in a text, as spans had no other way."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _share(attributes: Mapping[str, Any], names: tuple[str, ...], several: int) -> float | None:
    """The share of one of several answers in the number under the first of the names that there is."""
    values = [attributes[label] for label in names if label in attributes]
    return float(values[0]) / several if values else None
