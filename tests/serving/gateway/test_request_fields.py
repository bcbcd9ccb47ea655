"""Every field of a request that the client of OpenAI knows: judged, given to one model unchanged, or refused."""

import itertools
from typing import get_args, get_type_hints

import pytest
from chat_server import Response, sure
from gateway_service import SURE, gateway
from openai.types import chat
from openai.types.chat import completion_create_params

QUESTION = [{"role": "user", "content": "A or B?"}]
FUNCTION = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
CUSTOM = {"type": "custom", "custom": {"name": "sh", "format": {"type": "text"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
SCHEMA = {"name": "letter", "strict": True, "schema": {"type": "object", "properties": {}}}

#: Fields that reach the model unchanged, and whose answer is judged.
JUDGED = {
    "frequency_penalty": [-0.5, 0, 2],
    "logit_bias": [{"50256": -100}, {}],
    "max_completion_tokens": [7],
    "max_tokens": [7],
    "metadata": [{"a": "b", "ü": "λ"}],
    "moderation": [{"model": "omni-moderation-latest"}],
    "parallel_tool_calls": [False, True],
    "presence_penalty": [0.25],
    "prompt_cache_key": ["key"],
    "prompt_cache_options": [{"mode": "explicit"}],
    "prompt_cache_retention": ["24h"],
    "reasoning_effort": ["low", "none"],
    "safety_identifier": ["somebody"],
    "seed": [0, 2**63 - 1, -1],
    "service_tier": ["flex"],
    "stop": ["\n", ["a", "b"]],
    "store": [True, False],
    "temperature": [0, 0.1, 1],
    "top_p": [0.95],
    "user": ["somebody"],
    "verbosity": ["low"],
}

#: Fields that no policy judges: they reach the model for that unchanged.
UNJUDGED = {
    "audio": [{"voice": "alloy", "format": "mp3"}],
    "function_call": ["auto", {"name": "look"}],
    "functions": [[FUNCTION]],
    "modalities": [["text", "audio"], ["audio"]],
    "n": [2, 128],
    "prediction": [{"type": "content", "content": "B"}],
    "response_format": [{"type": "json_object"}, {"type": "json_schema", "json_schema": SCHEMA}],
    "tool_choice": ["auto", "required", {"type": "function", "function": {"name": "look"}}],
    "tools": [[TOOL], [TOOL, CUSTOM]],
    "web_search_options": [{}, {"search_context_size": "low"}],
}

#: What a request says that is so without it: judged, and not sent.
AS_ALWAYS = {
    "function_call": ["none"],
    "functions": [[]],
    "logprobs": [False],
    "modalities": [["text"]],
    "n": [1],
    "response_format": [{"type": "text"}],
    "stream": [False],
    "tool_choice": ["none"],
    "tools": [[]],
}

#: Fields that the gateway reads itself, or whose meaning hangs on another: each has tests of its own.
APART = {"messages", "model", "logprobs", "top_logprobs", "stream", "stream_options"}

REFUSED = [
    ("model", [None, "", 3, ["policy"], {}]),
    ("messages", [None, [], {}, "A or B?", ["A or B?"], [None]]),
    ("n", [0, -1, True, 1.5, "2", [1], 10**6]),
    ("top_logprobs", [-1, True, 1.5, "5", 129, 5]),
    ("logprobs", [1, 0, "true", []]),
    ("stream", [1, 0, "true", []]),
    ("stream_options", [True, [], "x", {"include_usage": True}]),
]


def rows(table):
    return [pytest.param(name, value, id=f"{name}={value!r}"[:60]) for name, values in table for value in values]


def behave(request, headers):
    return Response(sure("B", SURE))


@pytest.fixture(scope="module")
def service():
    with gateway(behave=behave) as service:
        yield service


def sent(service, **fields):
    """(the reply, what reached the upstream for it)."""
    before = len(service.server.requests)
    reply = service.post({"model": "policy", "messages": QUESTION, **fields})
    return reply, service.server.requests[before:]


def told(reply):
    return {name: reply.headers.get(f"x-rcjax-{name}") for name in ("status", "model", "not-judged")}


def test_every_field_of_the_client_is_tabled():
    streaming = completion_create_params.CompletionCreateParamsStreaming.__annotations__
    known = {*completion_create_params.CompletionCreateParamsBase.__annotations__, *streaming}
    new = sorted(known - {*JUDGED, *UNJUDGED, *APART})
    assert not new, f"the client of OpenAI has new fields: say in {__name__} what becomes of {', '.join(new)}"


@pytest.mark.parametrize(("name", "value"), rows(JUDGED.items()))
def test_a_field_reaches_a_model_that_is_judged(service, name, value):
    reply, requests = sent(service, **{name: value})
    assert told(reply) == {"status": "answered", "model": "small", "not-judged": None}
    asked = {"model": "org/small", "messages": QUESTION, "logprobs": True, "top_logprobs": 20}
    assert requests == [{**asked, name: value}]
    assert type(requests[0][name]) is type(value)


@pytest.mark.parametrize(("name", "value"), rows(UNJUDGED.items()))
@pytest.mark.parametrize("stream", [False, True])
def test_a_field_that_is_not_judged_reaches_the_largest_model(service, name, value, stream):
    reply, requests = sent(service, **{name: value}, **({"stream": True} if stream else {}))
    assert told(reply) == {"status": "not judged", "model": "large", "not-judged": name}
    streaming = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    assert requests == [{"model": "org/large", "messages": QUESTION, name: value, **streaming}]


@pytest.mark.parametrize(("name", "value"), rows(AS_ALWAYS.items()))
def test_what_is_so_anyway_is_judged(service, name, value):
    reply, requests = sent(service, **{name: value})
    assert told(reply) == {"status": "answered", "model": "small", "not-judged": None}
    assert requests == [{"model": "org/small", "messages": QUESTION, "logprobs": True, "top_logprobs": 20}]


@pytest.mark.parametrize("name", sorted({*JUDGED, *UNJUDGED, *APART} - {"messages", "model"}))
def test_null_is_as_if_it_were_not_there(service, name):
    reply, requests = sent(service, **{name: None})
    assert told(reply) == {"status": "answered", "model": "small", "not-judged": None}
    assert requests == [{"model": "org/small", "messages": QUESTION, "logprobs": True, "top_logprobs": 20}]


@pytest.mark.parametrize(("name", "value"), rows(REFUSED))
def test_a_field_that_cannot_be_is_refused(service, name, value):
    reply, requests = sent(service, **{name: value})
    assert (reply.status, requests) == (400, [])
    error = reply.json["error"]
    assert error["param"] == name
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(f"{name} ")
    assert "\n" not in error["message"]


def test_log_probabilities_are_asked_for_as_the_client_wants_and_the_policy_needs(service):
    for top in (0, 5, 20, 50):
        _, requests = sent(service, logprobs=True, top_logprobs=top)
        assert (requests[0]["logprobs"], requests[0]["top_logprobs"]) == (True, max(top, 20))
        _, requests = sent(service, model="large", logprobs=True, top_logprobs=top)
        assert (requests[0]["logprobs"], requests[0]["top_logprobs"]) == (True, top)
    _, requests = sent(service, model="large", logprobs=True)
    assert requests == [{"model": "org/large", "messages": QUESTION, "logprobs": True}]


@pytest.mark.parametrize("options", [{}, {"include_usage": False}, {"include_usage": True}])
def test_options_of_a_stream(service, options):
    """An answer that is judged is not streamed by the model, and one that is not is always counted."""
    _, requests = sent(service, stream=True, stream_options=options)
    assert requests == [{"model": "org/small", "messages": QUESTION, "logprobs": True, "top_logprobs": 20}]
    for others in ({}, {"include_obfuscation": False}, {"of_a_server": [1]}):
        _, requests = sent(service, model="large", stream=True, stream_options=options | others)
        assert requests[0]["stream"] is True
        assert requests[0]["stream_options"] == {**options, **others, "include_usage": True}


def test_every_option_of_a_stream_is_known():
    known = {*chat.ChatCompletionStreamOptionsParam.__annotations__}
    assert known <= {"include_usage", "include_obfuscation"}, f"say in {__name__} what becomes of the new options"


OTHERS = {
    "top_k": 40,
    "guided_choice": ["A", "B"],
    "chat_template_kwargs": {"enable_thinking": False},
    "extra_body": {"a": 1},
    "extra_headers": {"X-A": "b"},
    "extra_query": {"a": "b"},
    "timeout": 3,
    "self": 1,
    "ünknown field": [None, {"a": None}],
}


@pytest.mark.parametrize("model", ["policy", "large"])
def test_fields_that_only_a_server_knows_reach_it(service, model):
    _, requests = sent(service, model=model, **OTHERS)
    assert {name: requests[0].get(name) for name in OTHERS} == OTHERS


ROLES = {
    "developer": {"content": "Be brief.", "name": "dev"},
    "system": {"content": "Be brief.", "name": "sys"},
    "user": {"content": "A or B?", "name": "somebody"},
    "assistant": {"content": "B", "name": "small", "refusal": "No."},
}
ROLES_UNJUDGED = {
    "tools": [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "tool", "tool_call_id": "call_1", "content": "seen"},
        {"role": "function", "name": "look", "content": "seen"},
    ],
    "audio": [{"role": "assistant", "audio": {"id": "audio_1"}}],
}
PARTS = {"text": {"text": "A or B?"}}
PARTS_UNJUDGED = {
    "image_url": ("images", {"image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}),
    "input_audio": ("audio", {"input_audio": {"data": "AAAA", "format": "wav"}}),
    "file": ("files", {"file": {"file_id": "file-1"}}),
    "video_url": ("unknown parts", {"video_url": {"url": "http://localhost/1.mp4"}}),
}
CACHED = {"prompt_cache_breakpoint": {"mode": "explicit"}}


def test_every_field_of_a_message_is_tabled():
    unjudged = itertools.chain.from_iterable(ROLES_UNJUDGED.values())
    tabled = {(role, name) for role, fields in ROLES.items() for name in (*fields, "role")}
    tabled |= {(message["role"], name) for message in unjudged for name in message}
    known = set()
    for kind in get_args(chat.ChatCompletionMessageParam):
        hints = get_type_hints(kind)
        known |= {(get_args(hints["role"])[0], name) for name in hints}
    assert known <= tabled, f"say in {__name__} what becomes of {sorted(known - tabled)}"
    parts = {(kind, name) for kind, fields in PARTS.items() for name in (*fields, "type", *CACHED)}
    parts |= {(kind, name) for kind, (_, fields) in PARTS_UNJUDGED.items() for name in (*fields, "type", *CACHED)}
    for kind in get_args(chat.ChatCompletionContentPartParam):
        hints = get_type_hints(kind)
        new = {(get_args(hints["type"])[0], name) for name in hints} - parts
        assert not new, f"say in {__name__} what becomes of {sorted(new)}"


@pytest.mark.parametrize("role", ROLES)
def test_a_message_reaches_a_model_that_is_judged(service, role):
    messages = [{"role": role, **ROLES[role], "of_a_server": {"a": None}}, *QUESTION]
    reply, requests = sent(service, messages=messages)
    assert told(reply) == {"status": "answered", "model": "small", "not-judged": None}
    assert requests[0]["messages"] == messages


@pytest.mark.parametrize(("why", "message"), rows(ROLES_UNJUDGED.items()))
def test_a_message_that_is_not_judged_reaches_the_largest_model(service, why, message):
    reply, requests = sent(service, messages=[*QUESTION, message])
    assert told(reply) == {"status": "not judged", "model": "large", "not-judged": why}
    assert requests == [{"model": "org/large", "messages": [*QUESTION, message]}]


@pytest.mark.parametrize("kind", PARTS_UNJUDGED)
def test_parts_that_are_no_text_are_not_judged(service, kind):
    why, fields = PARTS_UNJUDGED[kind]
    messages = [{"role": "user", "content": [{"type": "text", "text": "?"}, {"type": kind, **fields, **CACHED}]}]
    reply, requests = sent(service, messages=messages)
    assert told(reply) == {"status": "not judged", "model": "large", "not-judged": why}
    assert requests == [{"model": "org/large", "messages": messages}]


BODIES = [b"", b"{", b"null", b"[]", b'"policy"', b"\xff\xfe{", b"[" * 100_000]
BODIES += [
    b'{"model": "policy", "messages": [{"role": "user", "content": "?"}], "x": %s}' % value
    for value in (b"NaN", b"-Infinity", b"1e999", b'"\xff"', b'"\\ud800"', b'"\xed\xa0\x80"', b'{"\\uDC00": 1}')
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[-30:]))
def test_a_body_that_is_no_json_is_refused(service, body):
    before = len(service.server.requests)
    reply = service.post(body)
    assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_json")
    assert len(service.server.requests) == before
