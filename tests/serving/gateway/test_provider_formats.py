"""Replies of providers have the same outcome and cost in the log, the headers and the metrics."""

import json

import pytest
from helpers.chat_server import Response
from helpers.gateway_service import PRICES, gateway

from benchmarks.gateway.quirks import QUIRKS, stream_of, whole
from rcjax.logs.importing.evaluations import ImportOptions, import_evaluations

pytestmark = pytest.mark.filterwarnings("ignore::rcjax.serving.failures.CascadeWarning")
WHOLE = {name: quirk for name, quirk in QUIRKS.items() if quirk.whole is not None}
STREAMED = {name: quirk for name, quirk in QUIRKS.items() if quirk.events is not None}


def behave(request, headers):
    """The small model replies with the quirk that the question names; the others answer."""
    quirk = QUIRKS[request["messages"][-1]["content"]]
    if request["model"] != "org/small":
        return Response(whole())
    return Response([stream_of(quirk.events)] if request.get("stream") else quirk.whole)


@pytest.fixture(scope="module")
def service():
    with gateway(None, behave, limits={"retries": 0}) as running:
        yield running


def money(quirk):
    """Return the cost that the reply states; None if it states none."""
    if quirk.cost is not None:
        return 0.02
    read, written = PRICES["small"]
    return quirk.tokens and (quirk.tokens[0] * read + quirk.tokens[1] * written) / 1e6


@pytest.mark.parametrize("name", WHOLE)
def test_a_judged_reply_is_kept_or_the_next_model_is_asked(service, name):
    service.forget()
    reply = service.ask(name)
    assert (reply.status, reply.json["choices"][0]["message"]["content"] is None) == (200, False)
    first, *others = service.log_rows()
    is_answer = QUIRKS[name].outcome == "answer"
    assert (first["error"] is None, [row["model"] for row in others]) == (is_answer, [] if is_answer else ["middle"])
    assert reply.headers["x-rcjax-model"] == ("small" if is_answer else "middle")
    assert (first["logprob"] is not None) == is_answer
    if (cost := money(QUIRKS[name])) is not None:
        assert (first["cost"], first["estimated"]) == (pytest.approx(cost), False)
    assert float(reply.headers["x-rcjax-cost"]) == pytest.approx(sum(row["cost"] for row in service.log_rows()))


@pytest.mark.parametrize("name", STREAMED)
def test_a_streamed_reply_ends_with_its_finish_reason_or_an_error(service, name):
    """The request names the model, so that the answer is passed on chunk by chunk."""
    service.forget()
    quirk, before = QUIRKS[name], spent(service)
    reply = service.ask(name, model="small", stream=True)
    assert reply.status == 200
    ends = [choice.get("finish_reason") for one in reply.events[:-1] for choice in one.get("choices", ())]
    is_failure = quirk.outcome == "failed"
    assert (reply.events[-1] == "[DONE]", any(ends)) == (not is_failure, not is_failure)
    if is_failure:
        assert reply.events[-1]["error"]["type"]
    (row,) = service.log_rows()
    assert (row["not_judged"], row["error"] is not None) == ("by name", is_failure), row
    if (cost := money(quirk)) is not None:
        assert (row["cost"], row["estimated"]) == (pytest.approx(cost), False)
    assert spent(service) - before == pytest.approx(row["cost"])
    events = service.post({"model": "small", "input": name, "stream": True}, "/v1/responses").body.decode()
    last = json.loads(events.rsplit("data: ", 1)[1])
    wanted = {"failed": "failed", "held back": "incomplete"}.get(quirk.outcome, "completed")
    cut = quirk.outcome == "answer" and "length" in ends
    assert last["response"]["status"] == ("incomplete" if cut else wanted)


def spent(service):
    page = service.get("/metrics").body.decode()
    figures = page.partition('rcjax_request_cost_total{policy="small"} ')[2].split()
    return float(figures[0]) if figures else 0.0


@pytest.mark.parametrize("name", WHOLE)
def test_an_imported_reply_is_an_answer_or_a_reported_omission(name, tmp_path):
    quirk, path = QUIRKS[name], tmp_path / "batch.jsonl"
    bodies = {"a": quirk.whole, "b": whole()}
    bodies = {key: json.loads(body) if isinstance(body, bytes) else body for key, body in bodies.items()}
    rows = [
        {"id": key, "custom_id": key, "response": {"status_code": 200, "body": {"model": "m", **body}}, "error": None}
        for key, body in bodies.items()
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = import_evaluations([path], ImportOptions())
    if quirk.outcome == "answer":
        assert read.left_out is None
        assert read.frame["answer"].to_list() == ["B", "B"]
        assert read.frame["logprob"].null_count() == 0
    else:
        assert read.frame["query"].to_list() == ["b"]
        assert read.left_out.startswith("1 answer left out: 1 with a") or read.unreadable, read
