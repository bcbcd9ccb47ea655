"""If all models of a query's rung fail, today's model answers, then the dearest of the policy."""

import time

import pytest
from helpers.chat_server import Response, completion, sure
from helpers.gateway_service import SURE, gateway, make_policy
from helpers.scripted_cascade import PRICES, ask, broken
from test_named_clients import Keys

from rcjax.policy import Ladder, Rule
from rcjax.policy.ladder import Period
from rcjax.serving.call_log import CascadeError

COSTS = {"small": 1e-5, "middle": 5e-5, "large": 3e-4}


def cascade_of(*models, today):
    whole, last = make_policy(), (Rule(1.0, "answer"),)
    return make_policy(
        models=models,
        calibrations={name: whole.calibrations[name] for name in models},
        rules={name: whole.rules[name] for name in models[:-1]} | {models[-1]: last},
        cost={name: COSTS[name] for name in models},
        prices={name: PRICES[name] for name in models},
        expected={"error": 0.1, "cost": sum(COSTS[name] for name in models)},
        provenance={"tuning": {"match": 0.01} | ({} if today is None else {"today": today})},
    )


def ladder(position=0.0, today="large", budget=None, period=None):
    rungs = [cascade_of(*models, today=today) for models in (("small", "middle"), ("middle", "large"))]
    return Ladder(tuple(rungs), position, budget, period=period)


def behave_by(**responses):
    """Answer as each model does; a model that is not named fails."""

    def behave(request, headers):
        return responses.get(request["model"].removeprefix("org/"), Response({}, 500, {"retry-after-ms": "1"}))

    return behave


LARGE = behave_by(large=Response(sure("C", SURE)))
LIMITS = {"retries": 0}
ASKED = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "A or B?"}]},
    "/v1/responses": {"input": "A or B?"},
}


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("stream", [False, True])
def test_if_the_models_of_a_rung_are_down_todays_answers(path, stream):
    """Clients got 502 for all queries of this rung, while today's model was up."""
    with gateway(ladder(), LARGE, limits=LIMITS) as service:
        reply = service.post({"model": "policy", "stream": stream, **ASKED[path]}, path)
        assert reply.status == 200
        assert reply.headers["x-rcjax-status"] == "answered"
        assert reply.headers["x-rcjax-models"] == "small,middle,large"
        assert (reply.headers["x-rcjax-model"], reply.headers["x-rcjax-rung"]) == ("large", "0")
        assert '"C"' in reply.body.decode()
        rows = service.log_rows()
        assert [(row["model"], row["step"], row["error"] is None) for row in rows] == [
            ("small", 1, False),
            ("middle", 2, False),
            ("large", 3, True),
        ]
        assert rows[-1]["cost"] > 0
        assert rows[-1]["calibrated"] == pytest.approx(0.829, abs=0.01)
        page = service.get("/metrics").body.decode()
    assert 'rcjax_requests_total{model="large",policy="policy",status="answered"} 1.0' in page
    assert 'rcjax_asked_total{model="large",policy="policy"} 1.0' in page
    assert f'rcjax_request_cost_total{{policy="policy"}} {rows[-1]["cost"]}' in page


def test_if_all_models_are_down_the_client_gets_an_error():
    with gateway(ladder(), behave_by(), limits=LIMITS) as service:
        reply = service.ask()
        assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_failed")
        assert [row["model"] for row in service.log_rows()] == ["small", "middle", "large"]
        assert reply.json["error"]["message"].endswith("large: HTTP 500")


def test_what_is_no_failure_of_all_models_falls_back_to_none():
    """A request that all models refuse, a filtered reply, and an answer by the first model."""
    refusal, filtered = Response({"error": {"code": "too_long"}}, 400), completion("")
    filtered["choices"][0]["finish_reason"] = "content_filter"
    with gateway(ladder(), limits=LIMITS) as service:
        for status, responses in (
            (400, {"small": refusal, "middle": refusal}),
            (200, {"middle": Response(filtered)}),
            (200, {"small": Response(sure("A", -2.0))}),
        ):
            service.forget()
            service.server.behave = behave_by(large=Response(sure("C", SURE)), **responses)
            assert service.ask().status == status
            assert [row["model"] for row in service.log_rows()] == ["small", "middle"]
        service.server.behave = behave_by(large=Response(sure("C", SURE)), small=refusal)
        assert service.ask().json["model"] == "large"


def test_an_answer_that_breaks_off_after_its_first_chunk_falls_back_to_none():
    def behave(request, headers):
        is_middle = request["model"] == "org/middle"
        chunk = {"choices": [{"index": 0, "delta": {"content": "A"}, "finish_reason": None}]}
        return Response([chunk], hang=True) if is_middle else LARGE(request, headers)

    with gateway(ladder(), behave, limits=LIMITS) as service:
        reply = service.ask(stream=True)
        assert "error" in reply.events[-1]
        assert [row["model"] for row in service.log_rows()] == ["small", "middle"]


@pytest.mark.parametrize(
    ("today", "down", "models"),
    [
        (None, {"small", "middle"}, ["small", "middle", "large"]),
        ("elsewhere", {"small", "middle"}, ["small", "middle", "large"]),
        (make_policy().to_json(), {"small", "middle"}, ["small", "middle", "large"]),
        ("huge", {"small", "middle", "large"}, ["small", "middle", "huge"]),
        ("huge", {"small", "middle", "huge"}, ["small", "middle", "huge", "large"]),
    ],
)
def test_todays_model_is_asked_before_the_dearest(today, down, models):
    """Today's model may stand outside of the policy, if shadow queries ask it."""
    up = {name: Response(sure("C", SURE)) for name in {"small", "middle", "large", "huge"} - down}
    settings = {"tables": {"huge": ""}, "shadow": 1e-9, "shadow_models": ("huge",)}
    with gateway(ladder(today=today), behave_by(**up), limits=LIMITS, **settings) as service:
        assert service.ask().json["rcjax"]["models"] == models


def test_a_cascade_in_python_falls_back():
    result, _ = ask(LARGE, policy=ladder(), retries=0)
    assert (result.status, result.model, result.text) == ("answered", "large", "C")
    assert [call.model for call in result.calls] == ["small", "middle", "large"]
    assert result.cost == result.calls[-1].cost > 0
    error, _ = ask(lambda *_: broken(500), policy=ladder(), retries=0)
    assert isinstance(error, CascadeError)
    assert len(error.result.calls) == 3


def test_the_deadline_holds():
    slow = Response(sure("C", SURE), delay=30.0)
    with gateway(ladder(), behave_by(large=slow), limits={"retries": 0, "deadline": 1.0}) as service:
        start = time.monotonic()
        assert service.ask().status == 504
        assert time.monotonic() - start < 10
        service.server.behave = behave_by(small=slow, middle=slow, large=Response(sure("C", SURE)))
        service.forget()
        assert service.ask().status == 504
        assert [row["model"] for row in service.log_rows()] == ["small", "middle"]


@pytest.mark.parametrize("stops", [False, True])
def test_a_fallback_needs_money_of_the_policy(stops):
    """With money for the rung alone, an answer of large would exceed the budget: the client hears of the failure."""
    policy = ladder(budget=1e-4, period=Period(1e-3, "month"))
    with gateway(policy, LARGE, limits=LIMITS, stops_at_budget=stops) as service:
        reply = service.ask(max_tokens=300)
        assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_failed")
        assert [row["model"] for row in service.log_rows()] == ["small", "middle"]
        assert service.ask(max_tokens=5).json["model"] == "large"


def test_a_fallback_needs_money_of_the_client(tmp_path):
    keys = Keys(tmp_path).add("team-a", 'money = "0.001/month"')
    with gateway(ladder(), LARGE, limits=LIMITS, keys_file=keys.path) as service:
        reply = keys.ask(service, "team-a", max_tokens=300)
        assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_failed")
        assert keys.ask(service, "team-a", max_tokens=5).json["model"] == "large"
        cost, page = service.log_rows()[-1]["cost"], service.app.state.gateway.metrics.render()[0].decode()
    assert f'rcjax_client_cost_total{{client="team-a"}} {cost}' in page


@pytest.mark.parametrize("whose", ["policy", "stops", "client"])
def test_a_fallback_may_use_the_money_of_its_own_request(whose, tmp_path):
    """The rung's reservation refused the fallback, and the client was told to try again."""
    money = 4.6e-3  # of which large may cost 4.5e-3, small and middle 0.6e-3
    policy = ladder() if whose == "client" else ladder(budget=1e-4, period=Period(money, "month"))
    keys = Keys(tmp_path).add("team-a", f'money = "{money}/month"' if whose == "client" else "")
    settings = {"limits": LIMITS, "stops_at_budget": whose == "stops", "keys_file": keys.path}
    with gateway(policy, LARGE, **settings) as service:
        assert keys.ask(service, "team-a", max_tokens=300).json["model"] == "large"


def test_a_rung_that_asks_every_fallback_has_none():
    with gateway(make_policy(), LARGE) as service:
        assert service.app.state.gateway.catalog.policies["policy"].cascade.fallbacks == ()
