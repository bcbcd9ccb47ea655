"""Streamed responses: items, events, endings, and models that break off."""

import asyncio
import json

import pytest
from helpers.acting_models import ActingModels, said
from helpers.chat_server import Response, sure
from helpers.gateway_service import UNSURE, gateway, make_policy
from helpers.response_clients import EVENTS, QUESTION, check_events, events_of, sent
from openai.types import responses
from test_clients import BREAKS_OFF, TOOLS as OF_BOTH

from rcjax.policy import Rule
from rcjax.serving.gateway.clients import ApiError
from rcjax.serving.gateway.responses import ResponsesResponder

TOOLS = OF_BOTH["responses"]

#: What a model says, and what a response makes of it: its status, why it is incomplete, and its parts.
ENDINGS = {
    "cut": (said("large", "length", content="So it"), "incomplete", "max_output_tokens", [("output_text", "So it")]),
    "filtered": (said("large", "content_filter", content="A"), "incomplete", "content_filter", [("output_text", "A")]),
    "refused": (said("large", content=None, refusal="I cannot."), "completed", None, [("refusal", "I cannot.")]),
    "all thought": (said("large", "length", content=""), "incomplete", "max_output_tokens", []),
    "in parts": (
        said("large", content=[{"type": "text", "text": "So "}, {"type": "text", "text": "it is."}]),
        "completed",
        None,
        [("output_text", "So it is.")],
    ),
    "another reason": (said("large", "eos", content="So."), "completed", None, [("output_text", "So.")]),
}


@pytest.mark.parametrize(("body", "status", "reason", "parts"), list(ENDINGS.values()), ids=list(ENDINGS))
def test_how_a_response_ends(service, body, status, reason, parts):
    service.server.behave = lambda *_: Response(body)
    ways = [sent(service, model="large")[0].json]
    if isinstance(body["choices"][0]["message"]["content"], str | None):  # as events have it
        ways.append(check_events(events_of(sent(service, model="large", stream=True)[0])))
    for response in ways:
        responses.Response.model_validate(response)
        assert (response["status"], response["incomplete_details"]) == (status, reason and {"reason": reason})
        contents = [part for item in response["output"] for part in item["content"]]
        assert [(part["type"], part.get("text", part.get("refusal"))) for part in contents] == parts
        assert {item["status"] for item in response["output"]} <= {status}


def test_a_policy_that_abstains():
    policy = make_policy(rules=make_policy().rules | {"large": (Rule(0.5, "abstain"), Rule(1.0, "answer"))})
    with gateway(policy, lambda *_: Response(sure("A", UNSURE))) as service:
        for response in (sent(service)[0].json, check_events(events_of(sent(service, stream=True)[0]))):
            assert response["output"][0]["content"][0]["text"] == "I am not sure enough to answer this."
            assert response["rcjax"]["status"] == "abstained"


def test_the_protocol_of_a_stream(service):
    """A stream that is held back and sent at once, or chunk by chunk; with calls of tools; of a named model."""
    service.server.behave = behave = ActingModels()
    for unsure, fields in (
        ((), {}),
        (("small", "middle"), {}),
        ((), {"tools": TOOLS}),
        ((), {"model": "large"}),
    ):
        behave.unsure = unsure
        reply, _ = sent(service, stream=True, **fields)
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert check_events(events_of(reply))["usage"]["total_tokens"] >= 101


def test_text_and_calls_in_one_answer(service):
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "x"}'}}
    service.server.behave = lambda *_: Response(said("large", "tool_calls", content="I look.", tool_calls=[call]))
    for stream in (False, True):
        reply, _ = sent(service, tools=TOOLS, stream=stream)
        response = check_events(events_of(reply)) if stream else reply.json
        assert [item["type"] for item in response["output"]] == ["message", "function_call"]
    asked = [{"role": "user", "content": "Where?"}, *response["output"]]
    asked.append({"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "y"}]})
    _, (request,) = sent(service, tools=TOOLS, input=asked)
    assert request["messages"] == [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "y"},
    ]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_an_item_of_its_own(service, name):
    """A client may send the item again with the answer: it goes to no model."""
    service.server.behave = lambda *_: Response(said("large", content="It is B.", **{name: "Hm."}))
    for stream in (False, True):
        reply, _ = sent(service, model="large", stream=stream)
        response = check_events(events_of(reply)) if stream else reply.json
        responses.Response.model_validate(response)
        thought, answer = response["output"]
        assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]
        assert answer["content"][0]["text"] == "It is B."
        asked = [*response["output"], {"role": "user", "content": "Sure?"}]
        _, (request,) = sent(service, model="large", input=asked)
        assert request["messages"] == [
            {"role": "assistant", "content": "It is B."},
            {"role": "user", "content": "Sure?"},
        ]


def test_a_stream_that_breaks_off_is_a_failed_response(service):
    """The response has the chunks so far; clients raise the event before the last."""
    service.server.behave = lambda *_: BREAKS_OFF
    reply, _ = sent(service, model="large", stream=True)
    *before, error, last = events_of(reply)
    assert [event["sequence_number"] for event in (*before, error, last)] == [*range(len(before) + 2)]
    for event in (error, last):
        EVENTS.validate_python(event)
    assert (error["type"], error["code"], last["type"]) == ("error", "upstream_failed", "response.failed")
    assert (last["response"]["status"], last["response"]["error"]["code"]) == ("failed", "server_error")
    assert "large: " in last["response"]["error"]["message"]
    (item,) = last["response"]["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", "B")


@pytest.mark.parametrize(("where", "names"), [(0, []), (1, ["response.created", "response.in_progress", "error"])])
def test_a_reply_nested_too_deep_is_an_error_of_the_model(where, names):
    """Before the first event the error is a document; after it, the error is the last event."""
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    chunks: list = [{"id": "1", "created": 1, "model": "large", "choices": []} for _ in range(2)]
    chunks[where]["x"] = deep
    sent_parts = []

    async def send(message):
        sent_parts.append(message)

    async def main():
        responder = ResponsesResponder(send)
        responder.read(json.dumps(QUESTION).encode())
        try:
            for chunk in chunks:
                await responder.send_event(chunk, {})
            await responder.end_stream()
        except ApiError as problem:
            await responder.send_error(problem, {})

    asyncio.run(main())
    start, *bodies = sent_parts
    assert start["status"] == (502 if where == 0 else 200)
    assert not bodies[-1]["more_body"]
    lines = b"".join(body["body"] for body in bodies).split(b"\n")
    assert [line[7:].decode() for line in lines if line.startswith(b"event: ")] == names
    assert b"nested too deep" in bodies[-1]["body"]
