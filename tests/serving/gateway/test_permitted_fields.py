"""Permissions of requests: fields, tokens of answers, and options that the operator's file fixes."""

import pytest
from helpers.chat_server import Response, sure
from helpers.gateway_service import SURE, UNSURE, gateway

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def behave(request, headers):
    return Response(sure("B", SURE))


@pytest.fixture(scope="module")
def service():
    tables = {
        "small": 'options = { max_tokens = 5, reasoning_effort = "low", seed = 1 }',
        "large": 'options = { max_tokens = 5, service_tier = "flex", extra_body = { provider = { only = ["a"] } } }',
    }
    with gateway(
        behave=behave, tables=tables, limits={"max_tokens": 1000, "allowed_fields": frozenset({"service_tier"})}
    ) as service:
        yield service


def asked(service, **fields):
    """Return the request that reached the model."""
    service.forget()
    assert service.ask(**fields).status == 200
    return service.server.requests[-1]


@pytest.mark.parametrize(
    "name", ["models", "provider", "api_base", "api_key", "base_url", "extra_body", "timeout", "n_predict", "x" * 99]
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_fields_that_may_name_models_addresses_and_keys_are_refused(service, name, path):
    service.forget()
    asking = {"input": "A or B?"} if "responses" in path else {"messages": [{"role": "user", "content": "A or B?"}]}
    for model in ("policy", "large"):
        reply = service.post({"model": model, **asking, name: ["s3cret"]}, path)
        error = reply.json["error"]
        assert (reply.status, error["code"]) == (400, "unsupported_parameter")
        assert "--allow-field" in error["message"]
        assert "s3cret" not in error["message"]
        assert len(error["message"]) < 200
    assert service.server.requests == []


def test_a_tier_and_searches_are_refused_unless_the_operator_permits_it(service):
    assert asked(service, service_tier="priority")["service_tier"] == "priority"
    with gateway(behave=behave) as strict:
        for name, value in {"service_tier": "priority", "web_search_options": {}}.items():
            assert strict.ask(**{name: value}).json["error"]["param"] == name
        assert strict.ask(service_tier=None, top_k=3).status == 200


@pytest.mark.parametrize("tool", [{"type": "web_search"}, {"google_search": {}}, {"type": ["function"]}])
def test_tools_of_a_provider_are_refused_unless_the_operator_permits_them(service, tool):
    service.forget()
    for model in ("policy", "large"):
        reply = service.ask(model=model, tools=[TOOL, tool])
        error = reply.json["error"]
        assert (reply.status, error["code"], error["param"]) == (400, "unsupported_parameter", "tools[1].type")
        assert "--allow-field tools" in error["message"]
    assert service.server.requests == []
    custom = {"type": "custom", "custom": {"name": "sh"}}
    assert asked(service, tools=[TOOL, custom])["tools"] == [TOOL, custom]
    with gateway(behave=behave, limits={"allowed_fields": frozenset({"tools"})}) as permitting:
        assert asked(permitting, tools=[TOOL, tool])["tools"] == [TOOL, tool]


@pytest.mark.parametrize(("wanted", "sent"), [(3, 3), (5, 5), (6, 5), (1000, 5)])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_lower_limit_on_the_tokens_of_a_judged_answer_holds(service, name, wanted, sent):
    request = asked(service, **{name: wanted})
    assert [request[one] for one in ("max_tokens", "max_completion_tokens") if one in request] == [sent]


@pytest.mark.parametrize(("wanted", "sent"), [(5, 5), (1000, 100)])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_client_lowers_a_limit_in_extra_body(name, wanted, sent):
    tables = dict.fromkeys(("small", "large"), "options = { extra_body = { max_tokens = 100 } }")
    with gateway(behave=behave, limits={"max_tokens": 1000}, tables=tables) as service:
        for model in ("policy", "large"):
            request = asked(service, model=model, **{name: wanted})
            assert [request[one] for one in ("max_tokens", "max_completion_tokens") if one in request] == [sent]


def test_no_client_replaces_options_of_the_file_that_change_the_price(service):
    request = asked(service, reasoning_effort="high", seed=7)
    assert (request["reasoning_effort"], request["seed"]) == ("low", 7)
    request = asked(service, reasoning_effort="high", service_tier="priority", tools=[TOOL])
    assert (request["reasoning_effort"], request["service_tier"]) == ("high", "flex")
    assert request["provider"] == {"only": ["a"]}


#: How clients ask for more thinking, each by the words of another server.
THINKING = {
    "reasoning_effort": "high",
    "reasoning": {"effort": "high"},
    "thinking": {"type": "enabled"},
    "enable_thinking": True,
    "chat_template_kwargs": {"enable_thinking": True},
}


def test_an_option_for_thinking_in_the_file_fixes_all_such_options():
    tables = {
        "small": 'options = { reasoning_effort = "low" }',
        "middle": "options = { seed = 1 }",
        "large": "options = { extra_body = { enable_thinking = false } }",
    }
    unsure = Response(sure("B", UNSURE))
    with gateway(behave=lambda *_: unsure, tables=tables) as service:
        asked(service, **THINKING, top_k=3)
        small, middle, large = service.server.requests
        passed_on = asked(service, **THINKING, top_k=3, tools=[TOOL])
    sent = [{name: one[name] for name in (*THINKING, "top_k") if name in one} for one in (small, middle, large)]
    assert sent == [
        {"reasoning_effort": "low", "top_k": 3},
        THINKING | {"top_k": 3},
        {"enable_thinking": False, "top_k": 3},
    ]
    assert {*THINKING} & {*passed_on} == {"enable_thinking"}
    assert passed_on["enable_thinking"] is False


def test_the_limit_on_tokens_holds_for_all_answers_to_a_request(service):
    assert asked(service, tools=[TOOL])["max_tokens"] == 1000
    assert asked(service, tools=[TOOL], max_completion_tokens=7)["max_completion_tokens"] == 7
    assert asked(service, n=10, max_tokens=100)["max_tokens"] == 100
    for fields, name in (
        ({"max_tokens": 1001}, "max_tokens"),
        ({"max_completion_tokens": 10**9}, "max_completion_tokens"),
        ({"max_tokens": 101, "n": 10}, "max_tokens"),
        ({"max_tokens": 10, "max_completion_tokens": 1001}, "max_completion_tokens"),
        ({"n": 2}, "n"),
    ):
        error = service.ask(**fields).json["error"]
        assert (error["param"], error["code"]) == (name, "invalid_value")
        assert "1,000 tokens" in error["message"]
    error = service.post({"model": "policy", "input": "A?", "max_output_tokens": 1001}, "/v1/responses").json["error"]
    assert error["message"].startswith(f"{error['param']} must be at most 1,000")
    assert error["param"] == "max_output_tokens"


def test_a_judged_answer_without_a_limit_gets_the_limit_of_the_service():
    with gateway(behave=behave, limits={"max_tokens": 64}) as service:
        assert asked(service)["max_tokens"] == 64
        assert asked(service, max_tokens=3)["max_tokens"] == 3
        error = service.ask(n=65, max_tokens=1).json["error"]
        assert (error["param"], error["message"]) == (
            "n",
            "n must be at most 64: all answers together may have 64 tokens",
        )


@pytest.mark.parametrize("limit", ["max_tokens = 8000", 'max_tokens = "8000"', "extra_body = { max_tokens = 8000 }"])
def test_the_limit_of_the_service_holds_over_the_file_and_over_all_votes(limit):
    tables = dict.fromkeys(("small", "large"), f"options = {{ {limit} }}")
    for signal, most in (("choice", 100), ("votes", 20)):
        with gateway(behave=behave, limits={"max_tokens": 100}, tables=tables, signal=signal) as service:
            assert asked(service)["max_tokens"] == most
            assert asked(service, max_tokens=most // 2)["max_tokens"] <= most
            assert asked(service, model="large")["max_tokens"] == 100
    with (
        pytest.raises(ValueError, match="4 tokens are too few for 5 answers that vote: raise the limit"),
        gateway(behave=behave, limits={"max_tokens": 4}, signal="votes"),
    ):
        pass
