"""Spans: what a backend of OpenTelemetry is sent by `rcjax serve`, and what it is not."""

import http.server
import json
import threading
from contextlib import contextmanager

import pytest
from helpers.chat_server import Response, sure
from helpers.gateway_service import gateway, gateway_process
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, server_attributes, url_attributes

from rcjax.serving.gateway.traces import are_wanted

CONVENTIONS = (error_attributes, gen_ai_attributes, http_attributes, server_attributes, url_attributes)
SECRET = "my card number is 4111"


@contextmanager
def collector():
    """A collector on loopback: its address, and the exports that it has got."""
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()


def spans_of(exports):
    return [
        span
        for _, export in exports
        for one in export.resource_spans
        for part in one.scope_spans
        for span in part.spans
    ]


def value_of(value):
    kind = value.WhichOneof("value")
    return [value_of(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def attributes(span):
    return {one.key: value_of(one.value) for one in span.attributes}


@pytest.fixture(scope="module")
def traced():
    """(spans, resource, port of the models, all that was sent) of an answer by two models, a stream and a failure."""

    def behave(request, _):
        text = request["messages"][-1]["content"]
        if "fail" in text:
            return Response({"error": {"message": text, "code": "server_error"}}, 500)
        return Response(sure("B", -0.1 if request["model"] == "org/middle" else -0.9))

    with collector() as (url, got), pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        with gateway(behave=behave, limits={"retries": 0}) as service:
            parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            assert service.ask(SECRET, temperature=0.5).status == 200
            service.post(
                {"model": "policy", "messages": [{"role": "user", "content": SECRET}], "stream": True},
                traceparent=parent,
            )
            assert service.ask(f"fail {SECRET}").status == 502
            assert service.get("/health").status == 200
            port = service.server.port
        # The end of the service sends what is left.
    (path,) = {path for path, _ in got}
    assert path == "/v1/traces"
    return spans_of(got), got[0][1].resource_spans[0].resource, port, str(got)


def test_an_answer_has_a_span_and_each_of_its_calls_one_within(traced):
    spans, resource, port, _ = traced
    request, small, middle = (
        span for span in sorted(spans, key=lambda one: one.start_time_unix_nano) if span.trace_id == spans[0].trace_id
    )
    assert attributes(resource)["service.name"] == "rcjax"
    assert [span.name for span in (request, small, middle)] == [
        "POST /v1/chat/completions",
        "chat org/small",
        "chat org/middle",
    ]
    assert (request.kind, small.kind, middle.kind) == (request.SPAN_KIND_SERVER, *[request.SPAN_KIND_CLIENT] * 2)
    assert small.parent_span_id == middle.parent_span_id == request.span_id
    for call in (small, middle):
        assert request.start_time_unix_nano <= call.start_time_unix_nano + 2_000_000  # clocks of two kinds
        assert call.start_time_unix_nano < call.end_time_unix_nano <= request.end_time_unix_nano
    whole, first = attributes(request), attributes(small)
    assert (whole["http.response.status_code"], whole["rcjax.status"]) == (200, "answered")
    assert whole["rcjax.models"] == ["small", "middle"]
    assert whole["rcjax.cost"] == pytest.approx(first["rcjax.cost"] + attributes(middle)["rcjax.cost"])
    assert first["gen_ai.operation.name"] == "chat"
    assert first["gen_ai.request.model"] == "org/small"
    assert (first["gen_ai.usage.input_tokens"], first["gen_ai.usage.output_tokens"]) == (100, 1)
    assert first["gen_ai.request.temperature"] == 0.5
    assert (first["server.address"], first["server.port"]) == ("127.0.0.1", port)
    assert not any(name.startswith("gen_ai.usage") for name in whole)  # backends sum them over spans


def test_a_client_that_traces_has_the_request_within_its_own_span(traced):
    (request,) = [
        span for span in traced[0] if span.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c" and span.kind == 2
    ]
    assert request.parent_span_id.hex() == "b7ad6b7169203331"


def test_a_failure_is_an_error(traced):
    failed = [span for span in traced[0] if span.status.code == span.status.STATUS_CODE_ERROR]
    kinds = {(span.name, attributes(span)["error.type"]) for span in failed}
    assert ("POST /v1/chat/completions", "502") in kinds
    assert ("chat org/small", "HTTP 500") in kinds


def test_names_are_those_of_the_conventions_and_nothing_has_content(traced):
    spans, _, _, text = traced
    known = {value for module in CONVENTIONS for value in vars(module).values() if isinstance(value, str)}
    names = {name for span in spans for name in attributes(span)}
    assert {name for name in names if not name.startswith("rcjax.")} <= known
    assert not names & {"gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"}
    assert "card number" not in text
    assert not any(span.events for span in spans)


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_variables_switch_it_on(variables, wanted):
    assert are_wanted(variables) == wanted


def test_without_them_nothing_of_it_is_imported(running):
    assert running.app.state.gateway.traces is None


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "must be http/protobuf, not 'grpc'"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, "spans cannot be sent and are lost"),
    ],
    ids=["another protocol", "nobody collects"],
)
@pytest.mark.thorough
def test_answers_go_on_where_spans_cannot_be_sent(variables, said, monkeypatch):
    for name, value in {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", **variables}.items():
        monkeypatch.setenv(name, value)
    with gateway_process(None, lambda *_: Response(sure("B", -0.1)), "--drain", 1) as service:
        assert service.ask(SECRET).status == 200
        folder = service.folder
        service.process.terminate()
        assert service.process.wait(20) in (0, -15)
        errors = (folder / "stderr").read_text()
    assert errors.count(said) == 1
    assert len(errors.splitlines()) == 1
    assert "Traceback" not in errors
    assert "card number" not in errors


@pytest.mark.thorough
def test_workers_send_their_own():
    with collector() as (url, got), pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with gateway_process(None, lambda *_: Response(sure("B", -0.1)), "--workers", 2) as service:
            for _ in range(10):
                assert json.loads(service.ask().body)["rcjax"]["model"] == "small"
    assert sorted(span.name for span in spans_of(got)) == ["POST /v1/chat/completions"] * 10 + ["chat org/small"] * 10
