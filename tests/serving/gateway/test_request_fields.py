"""Every field of a request that the client of OpenAI knows: judged, given to one model unchanged, or refused."""

import pytest
from helpers.chat_server import Response, sure
from helpers.gateway_service import SURE
from openai.types.chat import completion_create_params

QUESTION = [{"role": "user", "content": "A or B?"}]
FUNCTION = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
SCHEMA = {"name": "letter", "strict": True, "schema": {"type": "object", "properties": {}}}

#: Fields that reach the model unchanged, and whose answer is judged.
JUDGED = {
    *("frequency_penalty", "logit_bias", "max_completion_tokens", "max_tokens", "metadata", "moderation"),
    *("parallel_tool_calls", "presence_penalty", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    *("reasoning_effort", "safety_identifier", "seed", "service_tier", "stop", "store", "temperature", "top_p"),
    *("user", "verbosity"),
}
VALUES = (0, -1.5, 2**63 - 1, False, "\n", [], ["a", "ü"], {}, {"a": [None, {"λ": 1}]})

#: Fields whose values the gateway checks, and values at their ends.
CHECKED = {"frequency_penalty": -2, "presence_penalty": 2.0, "temperature": 2, "top_p": 0}
CHECKED |= {"max_completion_tokens": 2**40, "max_tokens": 1}

#: Fields that no policy judges: they reach the model for that unchanged.
NOT_JUDGED = {
    "audio": [{"voice": "alloy", "format": "mp3"}],
    "function_call": [{"name": "look"}],
    "functions": [[FUNCTION]],
    "modalities": [["text", "audio"]],
    "n": [2, 128],
    "prediction": [{"type": "content", "content": "B"}],
    "response_format": [{"type": "json_object"}, {"type": "json_schema", "json_schema": SCHEMA}],
    "tool_choice": ["required", {"type": "function", "function": {"name": "look"}}],
    "tools": [[TOOL]],
    "web_search_options": [{}],
}

#: What a request says that is so without it: judged, and not sent.
AS_ALWAYS = {
    "function_call": ["none", "auto"],
    "functions": [[]],
    "logprobs": [False],
    "modalities": [["text"]],
    "n": [1],
    "response_format": [{"type": "text"}],
    "stream": [False],
    "tool_choice": ["none", "auto"],
    "tools": [[]],
}

#: Fields that the gateway reads itself, or whose meaning hangs on another.
APART = {"messages", "model", "logprobs", "top_logprobs", "stream", "stream_options"}

REFUSED = {
    "model": [None, "", ["policy"]],
    "messages": [None, [], "A or B?", ["A or B?"]],
    "messages[0].role": ["usr", None, 1, ["user"]],
    "n": [0, True, 1.5, "2", 10**6],
    "temperature": ["hot", -0.1, 2.1, True, [1]],
    "top_p": [1.5, "all"],
    "frequency_penalty": [-2.5],
    "presence_penalty": [{}],
    "max_tokens": [-1, 0, 1.5, "64", True],
    "max_completion_tokens": [-1],
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
    """Return (the reply, the requests that reached the upstream)."""
    before = len(service.server.requests)
    reply = service.post({"model": "policy", "messages": QUESTION, **fields})
    return reply, service.server.requests[before:]


def judgement_of(reply):
    return {name: reply.headers.get(f"x-rcjax-{name}") for name in ("status", "model", "not-judged")}


def by_largest(why):
    return {"status": "not judged", "model": "large", "not-judged": why}


def test_every_field_is_judged_or_passed_on_unchanged_to_the_largest_model(service):
    """Values that change nothing are not sent."""
    streaming = completion_create_params.CompletionCreateParamsStreaming.__annotations__
    known = {*completion_create_params.CompletionCreateParamsBase.__annotations__, *streaming}
    new = sorted(known - {*JUDGED, *NOT_JUDGED, *APART})
    assert not new, f"the client of OpenAI has new fields: say in {__name__} what becomes of {', '.join(new)}"
    fields = {name: VALUES[number % len(VALUES)] for number, name in enumerate(sorted(JUDGED))} | CHECKED
    others = {"top_k": 40, "extra_body": {"a": 1}, "timeout": 3, "self": 1, "ünknown field": [None, {"a": None}]}
    for model, asked in (("policy", ASKED), ("large", {"model": "org/large", "messages": QUESTION})):
        _, (request,) = sent(service, model=model, **fields, **others)
        assert request == asked | fields | others
        assert all(type(request[name]) is type(value) for name, value in fields.items())
    nothing = [(name, None) for name in sorted(known - {"messages", "model"})]
    for name, value in (*rows(AS_ALWAYS), *nothing):
        reply, requests = sent(service, **{name: value})
        assert (judgement_of(reply), requests) == (IS_JUDGED, [ASKED]), (name, value)
    for name, value in rows(NOT_JUDGED):
        for stream in ({}, {"stream": True}):
            reply, requests = sent(service, **{name: value}, **stream)
            assert judgement_of(reply) == by_largest(name), value
            counted = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
            assert requests == [{"model": "org/large", "messages": QUESTION, name: value, **counted}]


def test_an_invalid_field_is_refused(service):
    for name, value in rows(REFUSED):
        is_role = name == "messages[0].role"
        fields = {"messages": [{"role": value, "content": "A or B?"}]} if is_role else {name: value}
        reply, requests = sent(service, **fields)
        error = reply.json["error"]
        assert (reply.status, requests, error["param"]) == (400, [], name), value
        assert error["type"] == "invalid_request_error"
        assert error["message"].startswith(f"{name} ")
        assert "\n" not in error["message"]


def test_a_request_asks_for_the_log_probabilities_of_the_client_and_the_policy(service):
    for top in (0, 5, 20, 50):
        _, requests = sent(service, logprobs=True, top_logprobs=top)
        assert (requests[0]["logprobs"], requests[0]["top_logprobs"]) == (True, max(top, 20))
        _, requests = sent(service, model="large", logprobs=True, top_logprobs=top)
        assert (requests[0]["logprobs"], requests[0]["top_logprobs"]) == (True, top)


def test_options_of_a_stream(service):
    """The model does not stream a judged answer; the tokens of other answers are always counted."""
    for options in ({}, {"include_usage": False}, {"include_usage": True, "of_a_server": [1]}):
        assert sent(service, stream=True, stream_options=options)[1] == [ASKED]
        _, requests = sent(service, model="large", stream=True, stream_options=options)
        assert requests[0]["stream"] is True
        assert requests[0]["stream_options"] == {**options, "include_usage": True}


#: Messages that are judged, and those that are not, with the reason.
ROLES = [{"role": role, "content": "x", "name": "n"} for role in ("developer", "system", "user", "assistant")]
ROLES_NOT_JUDGED = {
    "tools": [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "tool", "tool_call_id": "call_1", "content": "seen"},
        {"role": "function", "name": "look", "content": "seen"},
    ],
    "audio": [{"role": "assistant", "audio": {"id": "audio_1"}}],
}
PARTS_NOT_JUDGED = {"image_url": "images", "input_audio": "audio", "file": "files", "video_url": "unknown parts"}


def test_messages_of_text_alone_are_judged(service):
    """Other requests go to the largest model unchanged."""
    texts = [{"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "refusal", "refusal": "No."}]}]
    for message in (*ROLES, *texts):
        messages = [{**message, "of_a_server": {"a": None}}, *QUESTION]
        reply, requests = sent(service, messages=messages)
        assert (judgement_of(reply), requests[0]["messages"]) == (IS_JUDGED, messages)
    not_judged = [(why, message) for why, message in rows(ROLES_NOT_JUDGED)]
    for kind, why in PARTS_NOT_JUDGED.items():
        parts = [{"type": "text", "text": "?"}, {"type": kind, kind: {"url": "data:"}, "prompt_cache_breakpoint": {}}]
        not_judged.append((why, {"role": "user", "content": parts}))
    for why, message in not_judged:
        reply, requests = sent(service, messages=[*QUESTION, message])
        assert judgement_of(reply) == by_largest(why)
        assert requests == [{"model": "org/large", "messages": [*QUESTION, message]}]


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
