"""The client of OpenAI, changed by nothing but its base URL, calls policies and models of a gateway."""

import json
import time

import openai
import pytest
from acting_models import FORM, ActingModels
from chat_server import Response
from openai import OpenAI
from pydantic import BaseModel
from response_clients import KEY, Sync

QUESTION = [{"role": "user", "content": "A or B?"}]
AT = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"], "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": name, "strict": True, "parameters": AT}} for name in ("look", "listen")
]


class Letter(BaseModel):
    letter: str
    why: str


def chat(service, **options):
    return Sync(service, "chat.completions", {"model": "policy", "messages": QUESTION}, **options)


@pytest.fixture
def client(service):
    return chat(service)


def text_of(chunks):
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


ASKED = [((), "small", 1), (("small",), "middle", 2), (("small", "middle"), "large", 3)]


@pytest.mark.parametrize(("unsure", "model", "asked"), ASKED)
def test_an_answer(client, service, unsure, model, asked):
    service.server.behave.unsure = unsure
    answer = client.create()
    assert (answer.choices[0].message.content, answer.model, answer.choices[0].finish_reason) == ("B", model, "stop")
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (100 * asked, 101 * asked)
    assert answer.model_extra["rcjax"]["models"] == ["small", "middle", "large"][:asked]
    assert answer.choices[0].logprobs is None
    chunks = client.events()
    assert text_of(chunks) == "B"
    assert {(chunk.model, chunk.usage) for chunk in chunks} == {(model, None)}
    assert chunks[-1].choices[0].finish_reason == "stop"
    whole = client.whole(stream_options={"include_usage": True})  # with the usage
    assert (whole.choices[0].message.content, whole.model, whole.usage.total_tokens) == ("B", model, 101 * asked)


@pytest.mark.parametrize("model", ["policy", "large"])
def test_calls_of_tools(client, model):
    fields = {"model": model, "tools": TOOLS, "parallel_tool_calls": True}
    for answer in (client.create(**fields), client.whole(**fields)):
        assert (answer.model, answer.choices[0].finish_reason) == ("large", "tool_calls")
        calls = answer.choices[0].message.tool_calls
        assert [(call.id, call.type, call.function.name) for call in calls] == [
            (f"call_{name}", "function", name) for name in ("look", "listen")
        ]
        assert [json.loads(call.function.arguments) for call in calls] == [{"at": "é look"}, {"at": "é listen"}]
        message = answer.choices[0].message.model_dump(exclude_none=True)
        results = [{"role": "tool", "tool_call_id": call.id, "content": "seen"} for call in calls]
        after = client.create(**fields, messages=[*QUESTION, message, *results])
        assert after.choices[0].message.content == "B"


def test_answers_of_a_form(client, service):
    answer = client.create(response_format={"type": "json_object"})
    assert json.loads(answer.choices[0].message.content) == FORM
    assert answer.model_extra["rcjax"]["not_judged"] == ["response_format"]
    parsed = client.parse(response_format=Letter)
    assert parsed.choices[0].message.parsed == Letter(**FORM)
    schema = service.server.requests[-1]["response_format"]["json_schema"]
    assert schema["schema"]["required"] == ["letter", "why"]
    assert client.whole(response_format=Letter).choices[0].message.parsed == Letter(**FORM)


@pytest.mark.parametrize("base", ["", "/", "/v1/"])
def test_base_urls_as_people_write_them(service, base):
    assert chat(service, base_url=service.url + base).create().choices[0].message.content == "B"
    with OpenAI(api_key=KEY, base_url=service.url + base) as client:
        assert len([*client.models.list()]) == 4


def test_headers(service):
    service.server.behave.unsure = ("small",)
    with OpenAI(api_key=KEY, base_url=f"{service.url}/v1") as client:
        completions = client.chat.completions
        raw = completions.with_raw_response.create(
            model="policy", messages=QUESTION, temperature=0, extra_headers={"X-RCJAX-Query": "q-1/e"}
        )
        told = {name: value for name, value in raw.headers.items() if name.startswith("x-rcjax-")}
        assert told.pop("x-rcjax-policy-hash") == raw.parse().model_extra["rcjax"]["policy_hash"]
        assert told == {
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
            assert streamed.headers["x-rcjax-status"] == "passed on"
            assert "x-rcjax-cost" not in streamed.headers
            assert [*streamed.iter_lines()][-2:] == ["data: [DONE]", ""]


def failing(status=500, headers=None, **error):
    return lambda request, _: Response({"error": {"message": "", **error}}, status, headers or {})


def test_a_client_waits_as_long_as_it_is_told(service, monkeypatch):
    """Where the upstream says so, and where the gateway has no place."""
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    limited = [failing(429, {"retry-after": "7"})] * 3
    service.server.behave = lambda *request: (limited.pop() if limited else ActingModels())(*request)
    assert chat(service, max_retries=1).create().choices[0].message.content == "B"
    assert waits == [7.0]


def test_a_stream_that_breaks_off_is_an_error(client, service):
    """What came is there, and then an error rather than an end."""
    service.server.behave = lambda request, headers: Response(
        [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": "B"}}]}], hang=True
    )
    with pytest.raises(openai.APIError, match="large: "):
        client.events(model="large")
