"""The client of OpenAI asks for responses: text, streams, tools, forms, and what is refused."""

import asyncio
import json
import time

import openai
import pytest
from acting_models import FORM, ActingModels, said
from chat_server import Response, completion, sure
from gateway_service import MODELS, SURE, UNSURE, gateway, make_policy
from misses import in_turn
from openai import AsyncOpenAI, OpenAI
from openai.types import responses
from pydantic import BaseModel, TypeAdapter

from rcjax.policy import Rule
from rcjax.serving.gateway.errors import ApiError
from rcjax.serving.gateway.response_events import ResponsesResponder

KEY = "sk-of-a-client"
QUESTION = {"model": "policy", "input": "A or B?"}
AT = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"], "additionalProperties": False}
TOOLS = [{"type": "function", "name": name, "strict": True, "parameters": AT} for name in ("look", "listen")]
EVENTS = TypeAdapter(responses.ResponseStreamEvent)
LOGPROBS = ["message.output_text.logprobs"]


class Letter(BaseModel):
    letter: str
    why: str


@pytest.fixture(scope="module")
def running():
    with gateway(behave=ActingModels(), limits={"retries": 0}) as service:
        yield service


@pytest.fixture
def service(running):
    running.server.behave = ActingModels()
    return running


class Sync:
    """Calls as a program without asyncio makes them."""

    def __init__(self, service, **options):
        self._options = {"api_key": KEY, "base_url": f"{service.url}/v1", "max_retries": 0, **options}

    def create(self, **fields):
        with OpenAI(**self._options) as client:
            return client.responses.create(**QUESTION | fields)

    def events(self, **fields):
        with OpenAI(**self._options) as client:
            return [*client.responses.create(**QUESTION | fields, stream=True)]

    def whole(self, **fields):
        """The response that the client itself puts together from the events."""
        with OpenAI(**self._options) as client, client.responses.stream(**QUESTION | fields) as stream:
            return stream.get_final_response()

    def parse(self, **fields):
        with OpenAI(**self._options) as client:
            return client.responses.parse(**QUESTION | fields)


class Async:
    """The same, with asyncio."""

    def __init__(self, service, **options):
        self._options = {"api_key": KEY, "base_url": f"{service.url}/v1", "max_retries": 0, **options}

    def _run(self, work):
        async def main():
            async with AsyncOpenAI(**self._options) as client:
                return await work(client.responses)

        return asyncio.run(main())

    def create(self, **fields):
        return self._run(lambda api: api.create(**QUESTION | fields))

    def events(self, **fields):
        async def work(api):
            return [event async for event in await api.create(**QUESTION | fields, stream=True)]

        return self._run(work)

    def whole(self, **fields):
        async def work(api):
            async with api.stream(**QUESTION | fields) as stream:
                return await stream.get_final_response()

        return self._run(work)

    def parse(self, **fields):
        return self._run(lambda api: api.parse(**QUESTION | fields))


@pytest.fixture(params=[Sync, Async])
def client(request, service):
    return request.param(service)


def sent(service, **fields):
    """(the reply, what reached the upstream for it)."""
    before = len(service.server.requests)
    reply = service.post(QUESTION | fields, "/v1/responses")
    return reply, service.server.requests[before:]


def check_events(events):
    """What the protocol of a stream says, of events as JSON; the last one's response."""
    for number, event in enumerate(events):
        EVENTS.validate_python(event)
        assert event["sequence_number"] == number
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]["response"]
    responses.Response.model_validate(last)
    assert events[-1]["type"] == f"response.{last['status']}"
    assert {event["response"]["id"] for event in events if "response" in event} == {last["id"]}
    for index, item in enumerate(last["output"]):
        own = [event for event in events if event.get("output_index") == index]
        assert [own[0]["type"], own[-1]["type"]] == ["response.output_item.added", "response.output_item.done"]
        assert own[-1]["item"] == item
        assert own[0]["item"]["status"] == "in_progress"
        assert {event["item_id"] for event in own if "item_id" in event} == {item["id"]}
        if item["type"] == "function_call":
            assert "".join(one["delta"] for one in own if one["type"].endswith("delta")) == item["arguments"]
            continue
        for place, part in enumerate(item["content"]):
            of_part = [event for event in own if event.get("content_index") == place]
            name = "refusal" if part["type"] == "refusal" else "text"
            kinds = [event["type"].removeprefix("response.") for event in of_part]
            between = [f"{part['type']}.delta"] * (len(of_part) - 3)
            assert kinds == ["content_part.added", *between, f"{part['type']}.done", "content_part.done"]
            assert "".join(event["delta"] for event in of_part[1:-2]) == part[name] == of_part[-2][name]
            assert of_part[-1]["part"] == part
    return last


def events_of(reply):
    """The events of a stream as JSON, each named as its data are."""
    blocks = [block.split(b"\n") for block in reply.body.split(b"\n\n") if block]
    assert all(len(block) == 2 for block in blocks)
    events = [json.loads(data.removeprefix(b"data: ")) for _, data in blocks]
    assert [name.removeprefix(b"event: ").decode() for name, _ in blocks] == [event["type"] for event in events]
    return events


ASKED = [((), "small", 1), (("small",), "middle", 2), (("small", "middle"), "large", 3)]


@in_turn("unsure, model, asked", ASKED)
def test_an_answer(client, service, unsure, model, asked):
    service.server.behave.unsure = unsure
    for answer in (client.create(), client.whole(), client.events()[-1].response):
        assert (answer.output_text, answer.model, answer.status) == ("B", model, "completed")
        assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (
            100 * asked,
            asked,
            101 * asked,
        )
        assert answer.model_extra["rcjax"]["models"] == ["small", "middle", "large"][:asked]
        assert answer.output[0].content[0].logprobs == []
        assert (answer.error, answer.incomplete_details) == (None, None)
        assert answer.id.startswith("resp_")


@in_turn("model", ["policy", "large"])
def test_calls_of_tools(client, service, model):
    for answer in (client.create(model=model, tools=TOOLS), client.whole(model=model, tools=TOOLS)):
        assert (answer.model, answer.status) == ("large", "completed")
        assert [(call.type, call.call_id, call.name) for call in answer.output] == [
            ("function_call", f"call_{name}", name) for name in ("look", "listen")
        ]
        assert [json.loads(call.arguments) for call in answer.output] == [{"at": "é look"}, {"at": "é listen"}]
        assert service.server.requests[-1]["tools"] == [
            {"type": "function", "function": {"name": name, "strict": True, "parameters": AT}}
            for name in ("look", "listen")
        ]
        results = [
            {"type": "function_call_output", "call_id": call.call_id, "output": f"seen by {call.name}"}
            for call in answer.output
        ]
        asked = [{"role": "user", "content": "A or B?"}, *answer.output, *results]
        assert client.create(model=model, tools=TOOLS, input=asked).output_text == "B"
        question, calls, *outputs = service.server.requests[-1]["messages"]
        assert question == {"role": "user", "content": "A or B?"}
        assert (calls["role"], calls["content"]) == ("assistant", None)
        assert [(call["id"], call["function"]["name"]) for call in calls["tool_calls"]] == [
            ("call_look", "look"),
            ("call_listen", "listen"),
        ]
        assert outputs == [
            {"role": "tool", "tool_call_id": f"call_{name}", "content": f"seen by {name}"}
            for name in ("look", "listen")
        ]


def test_answers_of_a_form(client, service):
    answer = client.create(text={"format": {"type": "json_object"}})
    assert json.loads(answer.output_text) == FORM
    assert answer.model_extra["rcjax"]["not_judged"] == ["response_format"]
    assert client.parse(text_format=Letter).output_parsed == Letter(**FORM)
    form = service.server.requests[-1]["response_format"]
    assert (form["type"], form["json_schema"]["name"], form["json_schema"]["strict"]) == ("json_schema", "Letter", True)
    assert form["json_schema"]["schema"]["required"] == ["letter", "why"]
    assert client.whole(text_format=Letter).output_parsed == Letter(**FORM)


@in_turn(
    "asked, top", [({"include": LOGPROBS}, 0), ({"include": LOGPROBS, "top_logprobs": 1}, 1), ({"top_logprobs": 1}, 1)]
)
def test_log_probabilities(client, service, asked, top):
    """As many as were asked for, though the policy asks the model for twenty."""
    for answer in (client.create(**asked), client.events(**asked)[-1].response):
        (token,) = answer.output[0].content[0].logprobs
        assert (token.token, token.logprob, token.bytes) == ("B", SURE, [66])
        assert [one.token for one in token.top_logprobs] == ["B"][:top]
        assert service.server.requests[-1]["top_logprobs"] == 20
    deltas = [event for event in client.events(**asked) if event.type == "response.output_text.delta"]
    assert [token.logprob for event in deltas for token in event.logprobs] == [SURE]


def test_what_a_response_repeats(client):
    asked = {
        "instructions": "Be brief.",
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "reasoning": {"effort": "low"},
        "temperature": 0.5,
        "text": {"verbosity": "low"},
        "tools": TOOLS,
        "tool_choice": "none",
        "top_p": 0.5,
        "user": "me",
    }
    for answer in (client.create(**asked), client.events(**asked)[0].response, client.whole(**asked)):
        repeated = answer.to_dict()
        assert {name: repeated[name] for name in asked if name != "text"} == {
            name: value for name, value in asked.items() if name != "text"
        }
        assert repeated["text"] == {"format": {"type": "text"}, "verbosity": "low"}
        assert (repeated["store"], repeated["truncation"]) == (False, "disabled")


def test_headers_are_those_of_a_completion(service):
    service.server.behave.unsure = ("small",)
    with OpenAI(api_key=KEY, base_url=f"{service.url}/v1") as client:
        raw = client.responses.with_raw_response.create(
            **QUESTION, temperature=0, extra_headers={"x-rcjax-query": "q-1/r"}
        )
        names = {name: value for name, value in raw.headers.items() if name.startswith("x-rcjax-")}
        assert names.pop("x-rcjax-policy-hash") == raw.parse().model_extra["rcjax"]["policy_hash"]
        assert names == {
            "x-rcjax-query": "q-1/r",
            "x-rcjax-status": "answered",
            "x-rcjax-model": "middle",
            "x-rcjax-models": "small,middle",
            "x-rcjax-policy": "policy",
            "x-rcjax-confidence": "0.829000",
            "x-rcjax-cost": "6.19e-05",
        }
    assert [row["model"] for row in service.log_rows() if row["query"] == "q-1/r"] == ["small", "middle"]


#: What a model says, and what a response makes of it: its status, why it is incomplete, and its parts.
ENDINGS = {
    "cut": (said("large", "length", content="So it"), "incomplete", "max_output_tokens", [("output_text", "So it")]),
    "filtered": (
        said("large", "content_filter", content="So"),
        "incomplete",
        "content_filter",
        [("output_text", "So")],
    ),
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


@in_turn("body, status, reason, parts", list(ENDINGS.values()), ids=list(ENDINGS))
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


def test_a_policy_that_refuses():
    policy = make_policy(rules=make_policy().rules | {"large": (Rule(0.5, "abstain"), Rule(1.0, "answer"))})
    with gateway(policy, lambda *_: Response(sure("A", UNSURE))) as refusing:
        for response in (sent(refusing)[0].json, check_events(events_of(sent(refusing, stream=True)[0]))):
            assert response["output"][0]["content"][0]["text"] == "I am not sure enough to answer this."
            assert response["rcjax"]["status"] == "abstained"


def test_the_protocol_of_a_stream(service):
    """Held back and sent at once, piece by piece, with calls of tools, and of a model that is named."""
    service.server.behave = behave = ActingModels()
    for unsure, fields in (((), {}), (("small", "middle"), {}), ((), {"tools": TOOLS}), ((), {"model": "large"})):
        behave.unsure = unsure
        reply, _ = sent(service, stream=True, **fields)
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert check_events(events_of(reply))["usage"]["total_tokens"] >= 101


def test_text_comes_while_a_model_says_it(service):
    service.server.behave = lambda *_: Response(completion("So it is B."), pause=0.02)
    events = events_of(sent(service, model="large", stream=True)[0])
    assert [event["delta"] for event in events if event["type"].endswith("text.delta")] == ["So ", "it ", "is ", "B."]


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


@in_turn("name", ["reasoning_content", "reasoning"])
def test_what_a_model_thinks_before_it_answers(service, name):
    """It is an item of its own, and a client may send it again with the answer: it goes to no model."""
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


def test_a_stream_that_breaks_off_is_a_response_that_failed(client, service):
    """What came is there; the client raises the event before the last, as it does with OpenAI's own."""
    service.server.behave = lambda *_: Response(
        [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": "B"}}]}], hang=True
    )
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
    with pytest.raises(openai.APIError, match="large: "):
        client.events(model="large")


@in_turn("where, names", [(0, []), (1, ["response.created", "response.in_progress", "error"])])
def test_what_is_nested_too_deep_to_be_sent_is_an_error_of_the_model_s(where, names):
    """Before the first event it is an answer of its own; after it, the last event."""
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
                await responder.event(chunk, {})
            await responder.done()
        except ApiError as problem:
            await responder.error(problem)

    asyncio.run(main())
    start, *bodies = sent_parts
    assert start["status"] == (502 if where == 0 else 200)
    assert not bodies[-1]["more_body"]
    lines = b"".join(body["body"] for body in bodies).split(b"\n")
    assert [line[7:].decode() for line in lines if line.startswith(b"event: ")] == names
    assert b"nested too deep" in bodies[-1]["body"]


def failing(status=500, headers=None, **error):
    return lambda request, _: Response({"error": {"message": "", **error}}, status, headers or {})


ERRORS = [
    ({"model": "larger"}, None, openai.NotFoundError, 404, "model_not_found"),
    ({"previous_response_id": "resp_1"}, None, openai.BadRequestError, 400, "unsupported_parameter"),
    ({}, failing(400, code="context_length_exceeded"), openai.BadRequestError, 400, "context_length_exceeded"),
    ({}, failing(429), openai.RateLimitError, 429, "upstream_rate_limited"),
    ({}, failing(500), openai.InternalServerError, 502, "upstream_failed"),
    ({}, lambda request, headers: Response(b"<html>"), openai.InternalServerError, 502, "upstream_failed"),
]


@in_turn("fields, behave, kind, status, code", ERRORS)
@in_turn("way", ["create", "events"])
def test_errors(client, service, way, fields, behave, kind, status, code):
    if behave is not None:
        service.server.behave = behave
    with pytest.raises(kind) as caught:
        getattr(client, way)(**fields)
    assert (caught.value.status_code, caught.value.code) == (status, code)
    assert caught.value.type
    assert caught.value.message


def test_shadow_calls_are_those_of_completions():
    """All models are asked of the messages that the input makes, and the log has them under the query's own id."""
    with gateway(behave=ActingModels(), shadow=1.0, logging={"prompts": True}) as service:
        reply = service.post(QUESTION | {"instructions": "Be brief."}, "/v1/responses", x_rcjax_query="q1")
        assert reply.json["rcjax"]["models"] == ["small"]
        end = time.monotonic() + 30
        while len(service.log_rows()) < 3:
            assert time.monotonic() < end
            time.sleep(0.01)
        rows = service.log_rows()
        assert {(row["query"], row["model"], row["shadow"]) for row in rows} == {
            ("q1", model, True) for model in MODELS
        }
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A or B?"}]
        assert [request["messages"] for request in service.server.requests] == [messages] * 3


def test_a_policy_of_checks_judges_forms():
    """A check judges any text, so a form is no reason to ask the largest model."""
    with gateway(behave=ActingModels(), signal="json") as service:
        for stream in (False, True):
            reply, _ = sent(service, text={"format": {"type": "json_object"}}, stream=stream)
            response = check_events(events_of(reply)) if stream else reply.json
            assert (response["rcjax"]["status"], response["rcjax"]["not_judged"]) == ("answered", [])
            assert {request["response_format"]["type"] for request in service.server.requests} == {"json_object"}


def test_keys_limits_and_methods(monkeypatch):
    monkeypatch.setenv("KEYS_OF_CLIENTS", KEY)
    with gateway(behave=ActingModels(), key_env="KEYS_OF_CLIENTS", limits={"body_bytes": 500}) as service:
        assert Sync(service).create().output_text == "B"
        assert Sync(service, base_url=service.url).create().output_text == "B"
        with pytest.raises(openai.AuthenticationError):
            Sync(service, api_key="wrong").create()
        with pytest.raises(openai.APIStatusError, match="larger than"):
            Sync(service).create(input="A" * 600)
        assert service.get("/v1/responses").status == 405
        assert service.get("/v1/responses/resp_1").json["error"]["code"] == "unknown_path"
        page = service.get("/metrics", authorization=f"Bearer {KEY}").body.decode()
        assert 'rcjax_requests_total{model="small",policy="policy",status="answered"} 2.0' in page
