"""Spans for OpenTelemetry: one for each request, and one for each call of a model within it.

Spans of calls follow the semantic conventions for generative AI, spans of requests those for HTTP; both have further
attributes of rcjax's own. Spans of requests have no `gen_ai` attributes, since backends sum tokens over spans. No span
has content. The environment variables of OpenTelemetry's exporter switch the spans on.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from starlette.types import Message, Scope, Send

from rcjax._base.extras import how_to_install, version
from rcjax.serving.call_log import Call
from rcjax.serving.gateway.metrics import error_kind

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_LOGGER = logging.getLogger("rcjax.serving")

_ADDRESSES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")

_OPENAI = "https://api.openai.com/v1"

_PORTS = {"http": 80, "https": 443}

#: The names in spans of numeric options, by their names in `models.toml`.
_OPTIONS = {
    "frequency_penalty": "frequency_penalty",
    "max_completion_tokens": "max_tokens",
    "max_tokens": "max_tokens",
    "presence_penalty": "presence_penalty",
    "seed": "seed",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
}

_NUMBERS = ("confidence", "cost", "position", "rung")  # headers of an answer that are numbers

_LISTS = ("models", "not_judged")  # headers of an answer that are lists


def are_wanted(environment: Mapping[str, str]) -> bool:
    """Return whether the environment asks for spans.

    >>> are_wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}), are_wanted({})
    (True, False)
    """
    disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    chosen = environment.get("OTEL_TRACES_EXPORTER", "otlp").strip()
    return not disabled and chosen == "otlp" and any(environment.get(name, "").strip() for name in _ADDRESSES)


def open_traces() -> Traces | None:
    """Return the sender of spans by the environment; None if it asks for none, or if they cannot be sent.

    In the latter case the service's log says why, and answers go on without spans.
    """
    if not are_wanted(os.environ):
        return None
    protocol = next(filter(None, map(os.environ.get, _PROTOCOLS)), "http/protobuf")
    if protocol != "http/protobuf":
        _LOGGER.warning("no spans are sent: OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf, not %r", protocol)
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        _LOGGER.warning("no spans are sent, although %s is set: %s", _ADDRESSES[1], how_to_install("traces"))
        return None
    resource = Resource.create({SERVICE_VERSION: version()})
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "rcjax"}))
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it logs every failed batch and every retry
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter: Any = _Watched(OTLPSpanExporter())
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Traces(provider)


class _Watched:
    """An exporter that logs when spans begin to be lost, and when they are sent again."""

    def __init__(self, exporter: Any) -> None:
        self._exporter, self._loses = exporter, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exporter, name)

    def export(self, spans: Any) -> Any:
        """Send spans."""
        result = self._exporter.export(spans)
        loses = result.name != "SUCCESS"
        if loses and not self._loses:
            _LOGGER.warning("spans cannot be sent and are lost from now on; answers go on")
        elif self._loses and not loses:
            _LOGGER.info("spans are sent again")
        self._loses = loses
        return result


class Traces:
    """Makes spans with a provider of OpenTelemetry's."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("rcjax", version())
        self._kinds, self._error = trace.SpanKind, trace.Status(trace.StatusCode.ERROR)
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def request(self, scope: Scope, send: Send) -> Iterator[Send]:
        """Open the span of a request, within the client's `traceparent`, and yield a `send` that adds to it."""
        sent = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        about = {"http.request.method": scope["method"], "http.route": scope["path"], "url.path": scope["path"]}
        about["url.scheme"] = scope["scheme"]
        with self._tracer.start_as_current_span(
            f"{scope['method']} {scope['path']}",
            context=self._propagator.extract(sent),
            kind=self._kinds.SERVER,
            attributes=about,
            record_exception=False,  # its message may quote a prompt
            set_status_on_exception=False,
        ) as span:
            begun = False

            async def noting(message: Message) -> None:
                nonlocal begun
                if message["type"] == "http.response.start":
                    begun = True
                    span.set_attributes(_answer_attributes(message))
                    if message["status"] >= 500:
                        span.set_status(self._error)
                await send(message)

            yield noting
            if not begun:
                span.set_attribute("error.type", "client_left")

    def called(self, call: Call, base_url: str | None, policy: str | None = None) -> None:
        """Make the span of a call that has ended, within the span of its request.

        Args:
            call: the call.
            base_url: address of the endpoint; None is OpenAI's.
            policy: name of the policy that made the call.
        """
        end = time.time_ns()
        kind = error_kind(call)
        span = self._tracer.start_span(
            f"chat {call.served}",
            kind=self._kinds.CLIENT,
            attributes=_call_attributes(call, base_url or _OPENAI, policy, kind),
            start_time=end - int(call.seconds * 1e9),
        )
        if kind is not None and call.text is None:
            span.set_status(self._error)
        span.end(end)

    def close(self) -> None:
        """Send the spans that wait."""
        self._provider.shutdown()


def _answer_attributes(message: Message) -> dict[str, Any]:
    """Return the attributes of a request from the head of its answer: the status, and the report of the cascade."""
    attributes: dict[str, Any] = {"http.response.status_code": message["status"]}
    if message["status"] >= 500:
        attributes["error.type"] = str(message["status"])
    for raw, value in message["headers"]:
        _, prefix, name = raw.decode("latin-1").partition("x-rcjax-")
        if not prefix:
            continue
        name, text = name.replace("-", "_"), value.decode("latin-1")
        listed = [unquote(part) for part in text.split(",")]
        attributes[f"rcjax.{name}"] = float(text) if name in _NUMBERS else listed if name in _LISTS else unquote(text)
    return attributes


def _call_attributes(call: Call, base_url: str, policy: str | None, kind: str | None) -> dict[str, Any]:
    """Return the attributes of a call. By the conventions, the provider is that of the interface: OpenAI."""
    place = urlsplit(base_url)
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": call.served,
        "gen_ai.usage.input_tokens": call.input_tokens,
        "gen_ai.usage.output_tokens": call.output_tokens,
        "server.address": place.hostname,
        "server.port": place.port or _PORTS.get(place.scheme),
        "error.type": kind,
        "rcjax.model": call.model,
        "rcjax.query": call.query,
        "rcjax.policy": policy,
        "rcjax.confidence": call.confidence,
        "rcjax.cost": call.cost,
        "rcjax.attempts": call.attempts,
        "rcjax.shadow": call.added,
        **_options(call.asked),
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _options(asked: str | None) -> dict[str, float]:
    """Return the numeric options of a call, under the names of the conventions.

    >>> _options('{"options": {"max_tokens": 1, "temperature": 0, "stop": "secret"}}')
    {'gen_ai.request.max_tokens': 1, 'gen_ai.request.temperature': 0}
    """
    record = json.loads(asked) if asked else {}
    options = record.get("options") if isinstance(record, Mapping) else None
    numbers = [(name, value) for name, value in (options or {}).items() if type(value) in (int, float)]
    return {f"gen_ai.request.{_OPTIONS[name]}": value for name, value in numbers if name in _OPTIONS}
