"""OpenAI's client, with only its base URL changed, calls policies and models by both interfaces."""

import json

import pytest
from helpers.acting_models import FORM
from helpers.chat_server import Response
from helpers.gateway_service import SURE
from helpers.response_clients import KEY, Sync
from openai import OpenAI
from pydantic import BaseModel

QUESTION = [{"role": "user", "content": "A or B?"}]
AT = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"], "additionalProperties": False}
FUNCTIONS = [{"name": name, "strict": True, "parameters": AT} for name in ("look", "listen")]
CHAT_TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]
TOOLS = {"chat.completions": CHAT_TOOLS, "responses": [{"type": "function", **function} for function in FUNCTIONS]}
BREAKS_OFF = Response([{"choices": [{"index": 0, "delta": {"role": "assistant", "content": "B"}}]}], hang=True)


class Letter(BaseModel):
    letter: str
    why: str


def chat(service, **options):
    return Sync(service, "chat.completions", {"model": "policy", "messages": QUESTION}, **options)


@pytest.fixture(params=TOOLS)
def api(request):
    return request.param


@pytest.fixture
def client(service, api):
    return chat(service) if api == "chat.completions" else Sync(service)


def text_of(answer):
    return answer.output_text if hasattr(answer, "output") else answer.choices[0].message.content


def calls_of(answer):
    """(id, name, arguments) of the calls of tools."""
    if hasattr(answer, "output"):
        return [(call.call_id, call.name, json.loads(call.arguments)) for call in answer.output]
    calls = answer.choices[0].message.tool_calls
    return [(call.id, call.function.name, json.loads(call.function.arguments)) for call in calls]


ASKED = [((), "small", 1), (("small",), "middle", 2), (("small", "middle"), "large", 3)]


@pytest.mark.parametrize(("unsure", "model", "asked"), ASKED)
def test_an_answer(client, service, api, unsure, model, asked):
    service.server.behave.unsure = unsure
    counted = {"stream_options": {"include_usage": True}} if api == "chat.completions" else {}
    for answer in (client.create(), client.whole(**counted)):
        assert (text_of(answer), answer.model) == ("B", model)
        usage = answer.usage.to_dict()
        tokens = [usage.get(name) for name in ("prompt_tokens", "input_tokens", "total_tokens")]
        assert [count for count in tokens if count is not None] == [100 * asked, 101 * asked]
        logprobs = answer.choices[0].logprobs if counted else answer.output[0].content[0].logprobs
        assert not logprobs
        ending = answer.choices[0].finish_reason if counted else answer.status
        assert ending in ("stop", "completed")
    assert client.create().model_extra["rcjax"]["models"] == ["small", "middle", "large"][:asked]
    events = client.events()
    if counted:
        assert {(chunk.model, chunk.usage) for chunk in events} == {(model, None)}
        assert "".join(choice.delta.content or "" for chunk in events for choice in chunk.choices) == "B"


@pytest.mark.parametrize("model", ["policy", "large"])
def test_calls_of_tools(client, service, api, model):
    fields = {"model": model, "tools": TOOLS[api], "parallel_tool_calls": True}
    for answer in (client.create(**fields), client.whole(**fields)):
        assert answer.model == "large"
        expected = [(f"call_{name}", name, {"at": f"é {name}"}) for name in ("look", "listen")]
        assert calls_of(answer) == expected
        assert service.server.requests[-1]["tools"] == CHAT_TOOLS
        if api == "chat.completions":
            message = answer.choices[0].message.model_dump(exclude_none=True)
            results = [{"role": "tool", "tool_call_id": call, "content": "seen"} for call, _, _ in expected]
            assert text_of(client.create(**fields, messages=[*QUESTION, message, *results])) == "B"


def test_answers_of_a_form(client, service, api):
    name = "response_format" if api == "chat.completions" else "text_format"
    parsed = client.parse(**{name: Letter})
    first = parsed.choices[0].message.parsed if api == "chat.completions" else parsed.output_parsed
    assert first == Letter(**FORM)
    assert parsed.model_extra["rcjax"]["not_judged"] == ["response_format"]
    form = service.server.requests[-1]["response_format"]
    assert (form["type"], form["json_schema"]["name"], form["json_schema"]["strict"]) == ("json_schema", "Letter", True)
    assert form["json_schema"]["schema"]["required"] == ["letter", "why"]
    assert json.loads(text_of(client.whole(**{name: Letter}))) == FORM


@pytest.mark.parametrize(
    ("asked", "top"),
    [({"include": ["message.output_text.logprobs"]}, 0), ({"top_logprobs": 1}, 1)],
)
def test_log_probabilities_of_a_response(service, asked, top):
    """The client gets as many as it asked for, although the policy asks the model for twenty."""
    client = Sync(service)
    for answer in (client.create(**asked), client.events(**asked)[-1].response):
        (token,) = answer.output[0].content[0].logprobs
        assert (token.token, token.logprob, token.bytes) == ("B", SURE, [66])
        assert [one.token for one in token.top_logprobs] == ["B"][:top]
        assert service.server.requests[-1]["top_logprobs"] == 20
    deltas = [event for event in client.events(**asked) if event.type == "response.output_text.delta"]
    assert [token.logprob for event in deltas for token in event.logprobs] == [SURE]


def test_what_a_response_repeats(service):
    asked = {
        "instructions": "Be brief.",
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "reasoning": {"effort": "low"},
        "temperature": 0.5,
        "tools": TOOLS["responses"],
        "tool_choice": "none",
        "user": "me",
    }
    client = Sync(service)
    for answer in (client.create(**asked), client.events(**asked)[0].response):
        repeated = answer.to_dict()
        assert {name: repeated[name] for name in asked} == asked
        assert (repeated["store"], repeated["text"]) == (False, {"format": {"type": "text"}})


@pytest.mark.parametrize("base", ["", "/", "/v1/"])
def test_base_urls_as_people_write_them(service, base):
    assert chat(service, base_url=service.url + base).create().choices[0].message.content == "B"
    assert Sync(service, base_url=service.url + base).create().output_text == "B"
    with OpenAI(api_key=KEY, base_url=service.url + base) as client:
        assert len([*client.models.list()]) == 4


def test_headers(service):
    service.server.behave.unsure = ("small",)
    with OpenAI(api_key=KEY, base_url=f"{service.url}/v1") as client:
        completions = client.chat.completions
        raw = completions.with_raw_response.create(
            model="policy", messages=QUESTION, temperature=0, extra_headers={"X-RCJAX-Query": "q-1/e"}
        )
        headers = {name: value for name, value in raw.headers.items() if name.startswith("x-rcjax-")}
        assert headers.pop("x-rcjax-policy-hash") == raw.parse().model_extra["rcjax"]["policy_hash"]
        assert headers == {
            "x-rcjax-query": "q-1/e",
            "x-rcjax-status": "answered",
            "x-rcjax-model": "middle",
            "x-rcjax-models": "small,middle",
            "x-rcjax-policy": "policy",
            "x-rcjax-confidence": "0.829000",
            "x-rcjax-cost": "6.19e-05",
        }
        assert [row["model"] for row in service.log_rows() if row["query"] == "q-1/e"] == ["small", "middle"]
        with completions.with_streaming_response.create(model="large", messages=QUESTION, stream=True) as streamed:
            assert streamed.headers["x-rcjax-status"] == "by name"
            assert "x-rcjax-cost" not in streamed.headers
            assert [*streamed.iter_lines()][-2:] == ["data: [DONE]", ""]
