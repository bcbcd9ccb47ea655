"""Policies of segments behind the gateway: the header, the log, the figures, what is expected."""

import pytest
from chat_server import Response, sure
from gateway_samples import make_policy as policy_with_queries
from gateway_service import SURE, UNSURE, gateway, make_policy
from prometheus_client.parser import text_string_to_metric_families

from rcjax.policy import Policy, Rule, SegmentedPolicy
from rcjax.serving.gateway.expectations import expect

COMMON = make_policy()
LARGE = Policy(("large",), {"large": COMMON.calibrations["large"]}, {"large": [Rule(1, "answer")]}, {"large": 3e-4})
POLICIES = SegmentedPolicy(
    COMMON, {"de": LARGE, "en": COMMON, "grün": LARGE}, {"de": 0.3, "en": 0.6, "grün": 0.1}, by="language"
)


def behave(request, headers):
    return Response(sure("B", UNSURE if request["model"].endswith("small") else SURE))


@pytest.fixture(scope="module")
def service():
    with gateway(POLICIES, behave) as service:
        yield service


def ask(service, **headers):
    return service.post({"model": "policy", "messages": [{"role": "user", "content": "A or B?"}]}, **headers)


def counted(service):
    page = service.get("/metrics").body.decode()
    return {
        (sample.labels["segment"], sample.labels["status"]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "rcjax_segment_requests_total"
    }


def test_the_header_names_the_segment(service):
    german, english = ask(service, x_rcjax_segment="de"), ask(service, x_rcjax_segment="en")
    assert german.json["rcjax"]["models"] == ["large"]
    assert english.json["rcjax"]["models"] == ["small", "middle"]
    assert (german.headers["x-rcjax-segment"], german.json["rcjax"]["segment"]) == ("de", "de")
    assert ask(service, x_rcjax_segment="gr%C3%BCn").json["rcjax"]["segment"] == "grün"


def test_others_take_the_common_policy_and_are_counted(service):
    before = counted(service)
    for headers in ({"x_rcjax_segment": "fr"}, {"x_rcjax_segment": "it"}, {}):
        reply = ask(service, **headers)
        assert reply.json["rcjax"]["models"] == ["small", "middle"]
        assert "x-rcjax-segment" not in reply.headers
        assert "segment" not in reply.json["rcjax"]
    ask(service, x_rcjax_segment="de")
    after = counted(service)
    rise = {key: after[key] - before.get(key, 0.0) for key in after}
    assert rise[("", "unknown")] == 2
    assert rise[("", "untold")] == 1
    assert rise[("de", "known")] == 1
    assert not any("fr" in key for key in after)  # what clients send is no label


def test_the_log_holds_what_the_client_said(service):
    ask(service, x_rcjax_segment="fr", x_rcjax_query="of-fr")
    ask(service, x_rcjax_query="of-none")
    told = {row["query"]: row["segment"] for row in service.log_rows()}
    assert (told["of-fr"], told["of-none"]) == ("fr", "")


@pytest.mark.parametrize("segment", ["", "%0A", "x" * 201])
def test_a_header_that_cannot_be_is_refused(service, segment):
    reply = ask(service, x_rcjax_segment=segment)
    assert reply.status == 400
    assert "x-rcjax-segment" in reply.json["error"]["message"]


def test_what_is_passed_on_is_logged_with_its_segment(service):
    service.post(
        {"model": "large", "messages": [{"role": "user", "content": "?"}]}, x_rcjax_segment="de", x_rcjax_query="passed"
    )
    assert next(row for row in service.log_rows() if row["query"] == "passed")["segment"] == "de"


def test_it_is_told_among_the_models(service):
    told = service.get("/v1/models").json["data"][0]["rcjax"]
    assert (told["by"], told["segments"]) == ("language", ["de", "en", "grün"])


def test_what_is_expected_is_the_mean_of_the_segments():
    one, other = (
        policy_with_queries(60, seed=1),
        policy_with_queries(
            90,
            seed=2,
            rules={
                "small": (Rule(0.9, "ask", "large"), Rule(1.0, "answer")),
                "middle": (Rule(1.0, "answer"),),
                "large": (Rule(1.0, "answer"),),
            },
        ),
    )
    whole = expect(SegmentedPolicy(one, {"a": one, "b": other}, {"a": 0.25, "b": 0.75}, by="kind"))
    parts = expect(one), expect(other)
    assert whole.queries == 150
    assert whole.cost == pytest.approx(0.25 * parts[0].cost + 0.75 * parts[1].cost)
    for model in whole.answered:
        mean = 0.25 * parts[0].answered[model] + 0.75 * parts[1].answered.get(model, 0.0)
        assert whole.answered[model] == pytest.approx(mean)
    assert len(whole.reach["small"].logprobs) == sum(len(part.reach["small"].logprobs) for part in parts)
    assert 0 < max(whole.reach["small"].weights) <= 1
