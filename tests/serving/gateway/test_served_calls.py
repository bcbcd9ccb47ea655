"""Requests with tools: a call that two cheap models make is kept, and requests that are not judged are counted."""

import asyncio
import json

import pytest
from helpers.chat_server import Response, completion
from helpers.gateway_service import gateway, make_policy
from openai import AsyncOpenAI

from rcjax.policy import Rule
from rcjax.policy.decisions import Agreement
from rcjax.policy.signals.answers import request_form_of

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "required": ["city"]}}}
OTHER = {"type": "function", "function": {"name": "sum", "parameters": {"type": "object"}}}
ASKED = [{"role": "user", "content": "A or B?"}]


def policy(*options, messages=ASKED):
    """A policy that asks small and middle, and large if they differ; its log had requests with these options."""
    rules = {
        "small": (Rule(1.0, "ask", "middle"),),
        "middle": (Rule(0.99, "ask", "large"), Rule(1.0, "answer")),
        "large": (Rule(1.0, "answer"),),
    }
    asked = {"signal": "call", "options": {}}
    if options:
        asked["requests"] = sorted({request_form_of(messages, one) for one in options})
    agreements = {"middle": Agreement("small", "large")}
    provenance = {"request_settings": dict.fromkeys(("small", "middle", "large"), asked)}
    return make_policy(rules=rules, agreements=agreements, provenance=provenance)


def called(*cities, number="call_1", **more):
    calls = [
        {
            "id": f"{number}{i}",
            "type": "function",
            "function": {"name": "weather", "arguments": json.dumps({"city": city})},
        }
        for i, city in enumerate(cities)
    ]
    body = completion(None, **more)
    body["choices"][0] |= {
        "finish_reason": "tool_calls",
        "message": {"role": "assistant", "content": None, "tool_calls": calls},
    }
    return body


def replies(small, middle, large):
    """An upstream with these replies of its models."""
    bodies = {"org/small": small, "org/middle": middle, "org/large": large}
    return lambda request, headers: Response(bodies[request["model"]])


def cities(message):
    return [json.loads(call["function"]["arguments"])["city"] for call in message["tool_calls"]]


SAME = replies(called("Paris"), called("Paris", number="x"), called("Rome"))
APART = replies(called("Paris"), called("Lyon"), called("Rome"))


def test_an_equal_call_is_kept_and_a_different_call_is_not():
    with gateway(policy({"tools": [TOOL]}), SAME, signal="call") as service:
        reply = service.ask(tools=[TOOL]).json
        assert cities(reply["choices"][0]["message"]) == ["Paris"]
        assert reply["rcjax"]["models"] == ["small", "middle"]
        assert reply["rcjax"]["not_judged"] == []
        row = service.log_rows()[0]
        assert row["answer"] == '[{"arguments":{"city":"Paris"},"name":"weather"}]'
        assert json.loads(row["request_settings"])["requests"] == request_form_of(ASKED, {"tools": [TOOL]})
    with gateway(policy({"tools": [TOOL]}), APART, signal="call") as service:
        reply = service.ask(tools=[TOOL]).json
        assert cities(reply["choices"][0]["message"]) == ["Rome"]
        assert reply["rcjax"]["models"] == ["small", "middle", "large"]


@pytest.mark.parametrize(
    ("small", "middle"),
    [
        (called("Paris", "Lyon"), called("Lyon", "Paris")),  # in another order
        (completion("I need none."), completion("No tool is needed.")),  # no call is an answer too
    ],
)
def test_what_is_equal(small, middle):
    with gateway(policy({"tools": [TOOL]}), replies(small, middle, called("Rome")), signal="call") as service:
        assert service.ask(tools=[TOOL]).json["rcjax"]["model"] == "middle"


def test_invalid_and_unreadable_calls_agree_with_nothing():
    invalid = called("Paris")
    invalid["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = "{}"
    broken = called("Paris")
    broken["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = '{"city": '
    for body in (invalid, broken):
        with gateway(policy({"tools": [TOOL]}), replies(body, body, called("Rome")), signal="call") as service:
            assert service.ask(tools=[TOOL]).json["rcjax"]["model"] == "large"
            assert service.log_rows()[0]["answer"].startswith("[invalid] [")


def test_both_are_asked_at_the_same_time():
    models, are_both_asked = set(), asyncio.Event()

    def behave(request, headers):
        models.add(request["model"])
        if len(models) == 2:
            are_both_asked.set()
        return Response(called("Paris"), held=are_both_asked)

    with gateway(policy({"tools": [TOOL]}), behave, signal="call") as service:
        assert service.ask(tools=[TOOL]).json["rcjax"]["models"] == ["small", "middle"]


@pytest.mark.parametrize("failing", ["org/small", "org/middle"])
def test_one_of_both_fails(failing):
    def behave(request, headers):
        body = called("Rome" if request["model"] == "org/large" else "Paris")
        return Response({}, status=400) if request["model"] == failing else Response(body)

    with gateway(policy({"tools": [TOOL]}), behave, signal="call") as service:
        assert service.ask(tools=[TOOL]).json["rcjax"]["model"] == "large"
        assert len(service.log_rows()) == 3


REASONS = [
    ({"tools": [TOOL, OTHER]}, "other tools"),
    ({"tools": [TOOL], "tool_choice": "required"}, "other tools"),
    ({"tools": [TOOL, {"type": "web_search"}]}, "provider tools"),
    ({"tools": [TOOL, {"type": "custom", "custom": {"name": "sh"}}]}, "other tools"),  # which the client runs
    ({"tools": [TOOL], "messages": [*ASKED, {"role": "tool", "tool_call_id": "1", "content": "5"}]}, "a tool's result"),
    ({}, "no tools"),
    ({"response_format": {"type": "json_object"}}, "another schema"),
    ({"tools": [TOOL], "n": 2}, "n"),
]


def test_other_requests_go_to_the_largest_model_and_are_counted_by_reason():
    limits = {"allowed_fields": frozenset({"tools"})}
    with gateway(policy({"tools": [TOOL]}), SAME, signal="call", limits=limits) as service:
        for fields, reason in REASONS:
            reply = service.ask(**fields).json["rcjax"]
            assert (reply["models"], reply["not_judged"]) == (["large"], [reason])
            assert service.log_rows()[-1]["not_judged"] == reason
        service.ask(tools=[TOOL])
        figures = service.get("/metrics").body.decode()
        for _, reason in REASONS:
            assert f'rcjax_not_judged_requests_total{{policy="policy",reason="{reason}"}}' in figures


def test_descriptions_and_the_order_of_tools_do_not_count():
    described = {"type": "function", "function": {**TOOL["function"], "description": "As of today."}}
    with gateway(policy({"tools": [TOOL, OTHER]}), SAME, signal="call") as service:
        assert service.ask(tools=[OTHER, described]).json["rcjax"]["not_judged"] == []


def test_a_tool_result_is_judged_if_the_log_had_tool_results():
    after = [*ASKED, {"role": "tool", "tool_call_id": "1", "content": "5"}]
    with gateway(policy({"tools": [TOOL]}, messages=after), SAME, signal="call") as service:
        assert service.ask(tools=[TOOL], messages=after).json["rcjax"]["not_judged"] == []
        assert service.ask(tools=[TOOL]).json["rcjax"]["not_judged"] == ["other tools"]


def test_a_policy_whose_log_has_no_forms_judges_all_tools():
    with gateway(policy(), SAME, signal="call") as service:
        assert service.ask(tools=[OTHER, TOOL]).json["rcjax"]["not_judged"] == []
    with gateway(policy(), replies(completion("It is B."), completion("A"), completion("B")), signal="call") as service:
        assert service.ask().json["rcjax"]["models"] == ["small", "middle", "large"]  # texts, compared as texts


BAD = [
    ({"tools": {"weather": 1}}, "tools must be a list of objects"),
    ({"tools": ["weather"]}, "tools must be a list of objects"),
    ({"tools": [{"type": "function"}]}, "tools[0].function must be an object with a name"),
    ({"tools": [{"type": "function", "function": {"name": 5}}]}, "tools[0].function must be an object with a name"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": [1]}}]},
        "tools[0].function.parameters must be an object: a JSON schema",
    ),
    ({"tools": [TOOL], "tool_choice": 5}, "tool_choice must be a text or an object"),
    ({"response_format": "json"}, "response_format must be an object"),
]


def test_bad_tools_are_refused_with_their_place():
    with gateway(policy({"tools": [TOOL]}), SAME, signal="call") as service:
        for fields, says in BAD:
            reply = service.ask(**fields)
            assert (reply.status, reply.json["error"]["message"]) == (400, says)
        assert service.server.requests == []
        many = [{"type": "function", "function": {"name": f"tool{i}"}} for i in range(1000)]
        assert service.ask(tools=many).json["rcjax"]["not_judged"] == ["other tools"]


def test_arguments_of_a_megabyte_and_an_invalid_schema():
    long = called("P" * 1_000_000)
    nonsense = {"type": "function", "function": {"name": "weather", "parameters": {"type": "nonsense"}}}
    with gateway(policy({"tools": [TOOL]}, {"tools": [nonsense]}), replies(long, long, long), signal="call") as service:
        assert service.ask(tools=[TOOL]).json["rcjax"]["model"] == "middle"
        assert service.ask(tools=[nonsense]).json["rcjax"]["model"] == "large"  # nobody can tell whether they are valid


def test_the_official_client_by_chat_stream_and_response():
    async def ask(url, behave_model):
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            whole = await client.chat.completions.create(model="policy", messages=ASKED, tools=[TOOL])
            calls = {}
            stream = await client.chat.completions.create(model="policy", messages=ASKED, tools=[TOOL], stream=True)
            async for chunk in stream:
                for call in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
                    assert call.index not in calls  # whole
                    calls[call.index] = call.function
            tool = {"type": "function", **TOOL["function"], "strict": False}
            response = await client.responses.create(model="policy", input="A or B?", tools=[tool])
        return [
            [call.function.arguments for call in whole.choices[0].message.tool_calls],
            [call.arguments for call in calls.values()],
            [item.arguments for item in response.output],
        ]

    for behave, city in ((SAME, "Paris"), (APART, "Rome")):
        with gateway(policy({"tools": [TOOL]}), behave, signal="call") as service:
            assert asyncio.run(ask(service.url, behave)) == [[json.dumps({"city": city})]] * 3
            assert {row["query"] for row in service.log_rows()}


def test_shadow_queries_of_a_service_without_a_policy_have_their_calls_logged(tmp_path):
    pass_model = {"pass_model": "large", "shadow": 1.0}
    with gateway({"policy": None}, SAME, signal="call", **pass_model) as service:
        assert service.ask(tools=[TOOL]).json["rcjax"]["models"] == ["large"]
        rows = service.logged(3)
        assert {row["model"]: row["answer"] for row in rows}[
            "small"
        ] == '[{"arguments":{"city":"Paris"},"name":"weather"}]'
        assert {json.loads(row["request_settings"])["requests"] for row in rows} == {
            request_form_of(ASKED, {"tools": [TOOL]})
        }
        assert not any(row["error"] for row in rows)
