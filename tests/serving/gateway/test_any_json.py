"""Whatever JSON a client or a server sends, a gateway answers it, or says in one line what is wrong: it never fails."""

import copy
import json

import pytest
from chat_server import Response, completion, events_of, sure
from gateway_service import SURE, UNSURE, gateway
from hypothesis import HealthCheck, given, settings, strategies as st
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params
from test_reply_fields import WHOLE
from tiers import examples

FIELDS = sorted({*completion_create_params.CompletionCreateParamsBase.__annotations__, "stream", "top_k", "extra_body"})
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    # surrogates are refused as a whole, which has a test of its own
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    | st.sampled_from(["policy", "large", "auto", "text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image_url", ["text"], {}]) | VALUES}, optional={"text": VALUES}
)
MESSAGES = st.fixed_dictionaries(
    {"content": st.lists(PARTS, min_size=1, max_size=2) | st.text("ab é", max_size=5) | VALUES},
    optional={"role": st.sampled_from(["user", "assistant", "tool", ["user"]]), "tool_calls": VALUES, "audio": VALUES},
)
BODIES = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["policy", "large"]) | VALUES,
        "messages": st.lists(MESSAGES, min_size=1, max_size=2) | VALUES,
    },
    optional={name: VALUES for name in FIELDS if name not in ("model", "messages")},
)

often = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Upstream:
    """The first two models are not sure; the last one says what a test wants."""

    def __init__(self):
        self.last = Response(sure("B", SURE))

    def __call__(self, request, headers):
        return self.last if request["model"] == "org/large" else Response(sure("A", UNSURE))


@pytest.fixture(scope="module", params=["choice", "stated"])
def service(request):
    with gateway(behave=Upstream(), signal=request.param, limits={"retries": 0}) as service:
        yield service


def check(reply, statuses):
    """An answer, or an error in the form of OpenAI that is not the gateway's own."""
    assert reply.status in statuses
    if reply.status != 200:
        error = reply.json["error"]
        assert error["code"] != "internal_error"
        assert "\n" not in error["message"]
    elif reply.headers["content-type"] == "application/json":
        assert reply.json["choices"]
    else:
        assert reply.events[-1] == "[DONE]" or reply.events[-1]["error"]["code"] != "internal_error"


@often
@given(body=BODIES)
def test_any_request(service, body):
    service.server.behave.last = Response(sure("B", SURE))
    check(service.post(body), (200, 400, 404, 502))


@often
@given(message=MESSAGES)
def test_any_message(service, message):
    service.server.behave.last = Response(sure("B", SURE))
    check(service.post({"model": "policy", "messages": [message]}), (200,))


def places(data, path=()):
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield (*path, key)
        yield from places(value, (*path, key))


def edited(data, path, value):
    data = copy.deepcopy(data)
    spot = data
    for key in path[:-1]:
        spot = spot[key]
    spot[path[-1]] = value
    return data


@often
@given(
    path=st.sampled_from([*places(WHOLE)]),
    value=VALUES,
    stream=st.booleans(),
    model=st.sampled_from(["policy", "large"]),
)
def test_any_completion(service, path, value, stream, model):
    """Of the model that is named, or of the last one of the policy, which may be asked for a stream and send none."""
    service.server.behave.last = Response(json.dumps(edited(WHOLE, path, value)).encode())
    check(service.ask(model=model, stream=stream), (200, 502))
    check_response(asked(service, model=model, stream=stream, top_logprobs=2), (502,))


EVENTS = events_of(completion("So it is."), counted=True)[:-1]


@often
@given(
    path=st.sampled_from([*places(EVENTS)]),
    value=VALUES,
    counted=st.booleans(),
    model=st.sampled_from(["policy", "large"]),
)
def test_any_event(service, path, value, counted, model):
    service.server.behave.last = Response([*edited(EVENTS, path, value), b"data: [DONE]\n\n"])
    check(service.ask(model=model, stream=True, stream_options={"include_usage": counted}), (200, 502))
    check_response(asked(service, model=model, stream=True, top_logprobs=2), (502,))


# Responses

RESPONSE_FIELDS = sorted(
    {*response_create_params.ResponseCreateParamsBase.__annotations__, "stream", "messages", "n", "top_k"}
)
KINDS = ["input_text", "output_text", "refusal", "input_image", "input_file", "input_audio", ["input_text"], {}]
RESPONSE_PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS) | VALUES},
    optional=dict.fromkeys(("text", "refusal", "image_url", "file_data", "input_audio"), VALUES),
)
CONTENTS = st.lists(RESPONSE_PARTS, min_size=1, max_size=2) | st.text("ab é", max_size=5) | VALUES
ITEMS = st.fixed_dictionaries(
    {"content": CONTENTS, "role": st.sampled_from(["user", "assistant", "tool", ["user"]])},
    optional={"type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning"]) | VALUES}
    | {name: VALUES | st.just("x") for name in ("call_id", "name", "arguments")}
    | {"output": CONTENTS},
)
TOOLS = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["function", "web_search"]) | VALUES, "name": VALUES}), max_size=2
)
RESPONSE_BODIES = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["policy", "large"]) | VALUES,
        "input": st.lists(ITEMS, min_size=1, max_size=3) | st.text("ab é", max_size=5) | VALUES,
    },
    optional={name: VALUES for name in RESPONSE_FIELDS if name not in ("model", "input", "tools")}
    | {"tools": TOOLS | VALUES},
)


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
@given(body=RESPONSE_BODIES)
def test_any_request_for_a_response(service, body):
    service.server.behave.last = Response(sure("B", SURE))
    check_response(service.post(body, "/v1/responses"), (400, 404, 502))


@often
@given(item=ITEMS)
def test_any_item_of_an_input(service, item):
    service.server.behave.last = Response(sure("B", SURE))
    check_response(asked(service, input=[item]), (400,))
