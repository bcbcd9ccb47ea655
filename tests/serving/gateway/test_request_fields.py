"""Every field of a request that the client of OpenAI knows: judged, given to one model unchanged, or refused."""

import pytest
from chat_server import Response, sure
from gateway_service import SURE
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

REFUSED = {
    "model": [None, "", ["policy"]],
    "messages": [None, [], "A or B?", ["A or B?"]],
    "n": [0, True, 1.5, "2", 10**6],
    "top_logprobs": [-1, True, "5", 129, 5],
    "logprobs": [1, "true"],
    "stream": [0, []],
    "stream_options": [True, "x", {"include_usage": True}],
}


#: What is told of an answer that is judged, and what the model is asked.
IS_JUDGED = {"status": "answered", "model": "small", "not-judged": None}
ASKED = {"model": "org/small", "messages": QUESTION, "logprobs": True, "top_logprobs": 20}


def rows(table):
    return [(name, value) for name, values in table.items() for value in values]


@pytest.fixture(autouse=True)
def service(service):
    service.server.behave = lambda request, headers: Response(sure("B", SURE))
    return service


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


def test_a_field_reaches_a_model_that_is_judged_and_what_is_so_anyway_is_not_sent(service):
    nothing = [(name, None) for name in sorted({*JUDGED, *UNJUDGED, *APART} - {"messages", "model"})]
    for name, value in (*rows(JUDGED), *rows(AS_ALWAYS), *nothing):
        reply, requests = sent(service, **{name: value})
        is_sent = name in JUDGED and value is not None
        assert (told(reply), requests) == (IS_JUDGED, [ASKED | ({name: value} if is_sent else {})]), (name, value)
        assert not is_sent or type(requests[0][name]) is type(value)


@pytest.mark.parametrize("stream", [False, True])
def test_a_field_that_is_not_judged_reaches_the_largest_model(service, stream):
    for name, value in rows(UNJUDGED):
        reply, requests = sent(service, **{name: value}, **({"stream": True} if stream else {}))
        assert told(reply) == {"status": "not judged", "model": "large", "not-judged": name}, value
        streaming = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        assert requests == [{"model": "org/large", "messages": QUESTION, name: value, **streaming}]


def test_a_field_that_cannot_be_is_refused(service):
    for name, value in rows(REFUSED):
        reply, requests = sent(service, **{name: value})
        error = reply.json["error"]
        assert (reply.status, requests, error["param"]) == (400, [], name), value
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


def test_options_of_a_stream(service):
    """An answer that is judged is not streamed by the model, and one that is not is always counted."""
    known = {*chat.ChatCompletionStreamOptionsParam.__annotations__}
    assert known <= {"include_usage", "include_obfuscation"}, f"say in {__name__} what becomes of the new options"
    for options in ({}, {"include_usage": False}, {"include_usage": True, "of_a_server": [1]}):
        assert sent(service, stream=True, stream_options=options)[1] == [ASKED]
        _, requests = sent(service, model="large", stream=True, stream_options=options)
        assert requests[0]["stream"] is True
        assert requests[0]["stream_options"] == {**options, "include_usage": True}


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


def test_fields_that_only_a_server_knows_reach_it(service):
    for model in ("policy", "large"):
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


def test_messages_are_judged_where_all_that_they_hold_is_text(service):
    """Others go to the largest model, and none is changed."""
    for role, fields in ROLES.items():
        messages = [{"role": role, **fields, "of_a_server": {"a": None}}, *QUESTION]
        reply, requests = sent(service, messages=messages)
        assert (told(reply), requests[0]["messages"]) == (IS_JUDGED, messages)
    unjudged = [(why, [*QUESTION, message]) for why, message in rows(ROLES_UNJUDGED)]
    for kind, (why, fields) in PARTS_UNJUDGED.items():
        parts = [{"type": "text", "text": "?"}, {"type": kind, **fields, **CACHED}]
        unjudged.append((why, [{"role": "user", "content": parts}]))
    for why, messages in unjudged:
        reply, requests = sent(service, messages=messages)
        assert told(reply) == {"status": "not judged", "model": "large", "not-judged": why}
        assert requests == [{"model": "org/large", "messages": messages}]


BODIES = [b"", b"{", b"null", b"[]", b'"policy"', b"\xff\xfe{", b"[" * 100_000]
BODIES += [
    b'{"model": "policy", "messages": [{"role": "user", "content": "?"}], "x": %s}' % value
    for value in (b"NaN", b"-Infinity", b"1e999", b'"\xff"', b'"\\ud800"', b'"\xed\xa0\x80"', b'{"\\uDC00": 1}')
]


def test_a_body_that_is_no_json_is_refused(service):
    for body in BODIES:
        reply = service.post(body)
        assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_json"), body[-30:]
    assert service.server.requests == []
