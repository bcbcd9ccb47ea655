"""The client of OpenAI asks for responses: text, streams, tools, forms, and what is refused."""

import json

import openai
import pytest
from acting_models import FORM, ActingModels
from chat_server import Response
from gateway_service import SURE
from pydantic import BaseModel
from response_clients import Sync

AT = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"], "additionalProperties": False}
TOOLS = [{"type": "function", "name": name, "strict": True, "parameters": AT} for name in ("look", "listen")]
LOGPROBS = ["message.output_text.logprobs"]


class Letter(BaseModel):
    letter: str
    why: str


@pytest.fixture
def client(service):
    return Sync(service)


ASKED = [((), "small", 1), (("small",), "middle", 2), (("small", "middle"), "large", 3)]


@pytest.mark.parametrize(("unsure", "model", "asked"), ASKED)
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


@pytest.mark.parametrize("model", ["policy", "large"])
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


def test_answers_of_a_form(client, service):
    answer = client.create(text={"format": {"type": "json_object"}})
    assert json.loads(answer.output_text) == FORM
    assert answer.model_extra["rcjax"]["not_judged"] == ["response_format"]
    assert client.parse(text_format=Letter).output_parsed == Letter(**FORM)
    form = service.server.requests[-1]["response_format"]
    assert (form["type"], form["json_schema"]["name"], form["json_schema"]["strict"]) == ("json_schema", "Letter", True)
    assert form["json_schema"]["schema"]["required"] == ["letter", "why"]
    assert client.whole(text_format=Letter).output_parsed == Letter(**FORM)


@pytest.mark.parametrize(
    ("asked", "top"),
    [({"include": LOGPROBS}, 0), ({"include": LOGPROBS, "top_logprobs": 1}, 1), ({"top_logprobs": 1}, 1)],
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


def failing(status=500, headers=None, **error):
    return lambda request, _: Response({"error": {"message": "", **error}}, status, headers or {})


ERRORS = [
    ({"previous_response_id": "resp_1"}, None, openai.BadRequestError, 400, "unsupported_parameter"),
    ({}, failing(400, code="context_length_exceeded"), openai.BadRequestError, 400, "context_length_exceeded"),
    ({}, failing(500), openai.InternalServerError, 502, "upstream_failed"),
]


def test_errors(client, service):
    for fields, behave, kind, status, code in ERRORS:
        service.server.behave = behave or ActingModels()
        for ask in (client.create, client.events):
            with pytest.raises(kind) as caught:
                ask(**fields)
            assert (caught.value.status_code, caught.value.code) == (status, code)
            assert caught.value.type
            assert caught.value.message


def test_paths_and_methods(service):
    assert Sync(service, base_url=service.url).create().output_text == "B"
    assert service.get("/v1/responses").status == 405
    assert service.get("/v1/responses/resp_1").json["error"]["code"] == "unknown_path"
