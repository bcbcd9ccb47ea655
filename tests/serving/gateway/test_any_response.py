"""Whatever JSON a client asks for a response by, or a server answers, a gateway gives one, or says what is wrong."""

import json

import pytest
from chat_server import Response, sure
from gateway_service import SURE, gateway
from hypothesis import given, strategies as st
from openai.types.responses import response_create_params
from test_any_json import EVENTS, VALUES, Upstream, check, edited, often, places
from test_reply_fields import WHOLE

FIELDS = sorted({*response_create_params.ResponseCreateParamsBase.__annotations__, "stream", "messages", "n", "top_k"})
KINDS = ["input_text", "output_text", "refusal", "input_image", "input_file", "input_audio", ["input_text"], {}]
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS) | VALUES},
    optional=dict.fromkeys(("text", "refusal", "image_url", "file_data", "input_audio"), VALUES),
)
CONTENTS = st.lists(PARTS, min_size=1, max_size=2) | st.text("ab é", max_size=5) | VALUES
ITEMS = st.fixed_dictionaries(
    {"content": CONTENTS, "role": st.sampled_from(["user", "assistant", "tool", ["user"]])},
    optional={"type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning"]) | VALUES}
    | {name: VALUES | st.just("x") for name in ("call_id", "name", "arguments")}
    | {"output": CONTENTS},
)
TOOLS = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["function", "web_search"]) | VALUES, "name": VALUES}), max_size=2
)
BODIES = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["policy", "large"]) | VALUES,
        "input": st.lists(ITEMS, min_size=1, max_size=3) | st.text("ab é", max_size=5) | VALUES,
    },
    optional={name: VALUES for name in FIELDS if name not in ("model", "input", "tools")} | {"tools": TOOLS | VALUES},
)


@pytest.fixture(scope="module")
def service():
    with gateway(behave=Upstream(), limits={"retries": 0}) as service:
        yield service


def check_response(reply, statuses):
    """A response, or an error in the form of OpenAI that is not the gateway's own."""
    if reply.status != 200:
        check(reply, statuses)
    elif reply.headers["content-type"] == "application/json":
        assert reply.json["object"] == "response"
    else:
        *_, last = [json.loads(block.partition(b"data: ")[2]) for block in reply.body.split(b"\n\n") if block]
        assert last["type"] == f"response.{last['response']['status']}"


def asked(service, **fields):
    return service.post({"model": "policy", "input": "A or B?", **fields}, "/v1/responses")


@often
@given(body=BODIES)
def test_any_request(service, body):
    service.server.behave.last = Response(sure("B", SURE))
    check_response(service.post(body, "/v1/responses"), (400, 404, 502))


@often
@given(item=ITEMS)
def test_any_item(service, item):
    service.server.behave.last = Response(sure("B", SURE))
    check_response(asked(service, input=[item]), (400,))


@often
@given(
    path=st.sampled_from([*places(WHOLE)]),
    value=VALUES,
    stream=st.booleans(),
    model=st.sampled_from(["policy", "large"]),
)
def test_any_completion(service, path, value, stream, model):
    service.server.behave.last = Response(json.dumps(edited(WHOLE, path, value)).encode())
    check_response(asked(service, model=model, stream=stream, top_logprobs=2), (502,))


@often
@given(path=st.sampled_from([*places(EVENTS)]), value=VALUES, model=st.sampled_from(["policy", "large"]))
def test_any_event(service, path, value, model):
    service.server.behave.last = Response([*edited(EVENTS, path, value), b"data: [DONE]\n\n"])
    check_response(asked(service, model=model, stream=True, top_logprobs=2), (502,))
