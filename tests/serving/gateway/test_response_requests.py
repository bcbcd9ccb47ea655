"""Every field of a request for a response that the client of OpenAI knows: translated, passed on, or refused."""

from typing import get_args, get_type_hints

import pytest
from helpers.chat_server import Response, sure
from helpers.gateway_service import SURE
from helpers.response_clients import sent
from openai.types import responses
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params
from test_request_fields import IS_JUDGED, by_largest, judgement_of

HERE = {*response_create_params.ResponseCreateParamsBase.__annotations__}
THERE = {*completion_create_params.CompletionCreateParamsBase.__annotations__}
TOOL = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}, "strict": False}
FUNCTION = {name: value for name, value in TOOL.items() if name != "type"}
SCHEMA = {"name": "letter", "strict": True, "schema": {"type": "object", "properties": {}}}
CHAT_TOOLS = {"tools": [{"type": "function", "function": FUNCTION}]}
CALL = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "seen"}
TEXT = {"type": "input_text", "text": "A or B?"}
CACHED = {"prompt_cache_breakpoint": {"mode": "explicit"}}

#: Fields that are translated; all others that both interfaces know go along as they are, `store` apart.
TRANSLATED = {
    *("include", "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "reasoning"),
    *("parallel_tool_calls", "stream_options", "text", "tool_choice", "tools", "top_logprobs"),
}
PASSED = {"frequency_penalty": 0.5, "presence_penalty": 1, "logit_bias": {"1": 2}, "seed": 1, "stop": ["x"]}

#: Fields, and what of them reaches a model that is judged.
JUDGED = [
    ({"max_output_tokens": 9}, {"max_completion_tokens": 9}),
    ({"reasoning": {"effort": "low", "summary": None}}, {"reasoning_effort": "low"}),
    ({"text": {"verbosity": "low", "format": {"type": "text"}}}, {"verbosity": "low"}),
    ({"include": ["reasoning.encrypted_content", "web_search_call.results"]}, {}),
    ({"include": ["message.output_text.logprobs"], "top_logprobs": 50}, {"top_logprobs": 50}),
    ({"top_logprobs": 0, "max_tool_calls": 3, "metadata": {"a": "b"}, "stream_options": {}}, {}),
    ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": False, "text": {}}, {}),
    ({"background": False, "store": False, "truncation": "disabled", "stream": False}, {}),
    (PASSED | {"top_k": 3, "guided_choice": ["A"]},) * 2,
]

#: Fields, what of them reaches the one model that answers what is not judged, and why it is not.
NOT_JUDGED = [
    ({"tools": [TOOL | {"output_schema": None}], "tool_choice": "none"}, CHAT_TOOLS | {"tool_choice": "none"}, "tools"),
    ({"tools": [TOOL], "parallel_tool_calls": False}, CHAT_TOOLS | {"parallel_tool_calls": False}, "tools"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": "look"}},
        {**CHAT_TOOLS, "tool_choice": {"type": "function", "function": {"name": "look"}}},
        "tools,tool_choice",
    ),
    ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}, "response_format"),
    (
        {"text": {"format": {"type": "json_schema", **SCHEMA}}},
        {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
        "response_format",
    ),
]  # fmt: skip


def said(*parts, role="user"):
    """An input of one message."""
    return [{"role": role, "content": [*parts]}]


#: What cannot be, by the field that the error names: one case for each check.
REFUSED = [
    ("store", {"store": True}),
    ("truncation", {"truncation": "auto"}),
    *(("input", {"input": value}) for value in (None, [], 3, {}, [{"type": "reasoning", "id": "rs_1", "summary": []}])),
    ("input[0]", {"input": ["A or B?"]}),
    *(("input[0].role", {"input": said(role=role)}) for role in ("tool", ["user"], None)),
    *(("input[0].content", {"input": [{"role": "user", "content": value}]}) for value in (None, 3)),
    *(("input[0].content[0].type", {"input": said({"type": kind, "text": "?"})}) for kind in ("text", {})),
    ("input[0].content[0].text", {"input": said({"type": "input_text"})}),
    ("input[0].content[0].file_id", {"input": said({"type": "input_image", "file_id": "file-1"})}),
    ("input[0].output[0].type", {"input": [{**OUTPUT, "output": [{"type": "input_image", "image_url": "data:"}]}]}),
    ("input[0].call_id", {"input": [{**OUTPUT, "call_id": None}]}),
    *(("max_output_tokens", {"max_output_tokens": value}) for value in (0, "64")),
    ("temperature", {"temperature": "hot"}),
    ("reasoning", {"reasoning": "low"}),
    ("reasoning.summary", {"reasoning": {"summary": "auto"}}),
    *(("tools[0].type", {"tools": [tool]}) for tool in ({"type": "web_search"}, {"type": "custom", "name": "sh"}, {})),
    ("tools[0].name", {"tools": [{"type": "function"}]}),
    ("tools[0].parameters", {"tools": [{**TOOL, "parameters": 3}]}),
    ("tools[1].defer_loading", {"tools": [TOOL, {**TOOL, "defer_loading": True}]}),
    *(("tool_choice", {"tool_choice": value}) for value in (3, [])),
    *(("tool_choice.type", {"tool_choice": value}) for value in ({"type": "web_search"}, {})),
    ("tool_choice.name", {"tool_choice": {"type": "function"}}),
]


@pytest.fixture(autouse=True)
def service(service):
    service.server.behave = lambda request, headers: Response(sure("B", SURE))
    return service


MESSAGES = [{"role": "user", "content": "A or B?"}]
BY_POLICY = {"model": "org/small", "messages": MESSAGES, "logprobs": True, "top_logprobs": 20}


def test_a_field_reaches_a_model_by_its_name_there(service):
    same = {name: f"{name} of a test" for name in (HERE & THERE) - TRANSLATED - {"model", "store"}}
    same |= {"temperature": 0.5, "top_p": 1}
    nothing = [({name: None}, {}) for name in sorted(HERE - {"model", "input"})]
    for fields, chat in ((same, same), *JUDGED, *nothing):
        reply, requests = sent(service, **fields)
        assert (judgement_of(reply), requests) == (IS_JUDGED, [BY_POLICY | chat]), fields
        reply, requests = sent(service, **fields, model="large")
        more = {"logprobs": True} if "top_logprobs" in chat else {}
        assert requests == [{"model": "org/large", "messages": MESSAGES} | chat | more]
    for stream in (False, True):
        streaming = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        for fields, chat, why in NOT_JUDGED:
            reply, requests = sent(service, **fields, stream=stream)
            assert judgement_of(reply) == by_largest(why)
            assert requests == [{"model": "org/large", "messages": MESSAGES, **chat, **streaming}]


def test_an_invalid_field_is_refused(service):
    """Fields that chat completions lack are refused, and chat fields that have another name in responses."""
    others = sorted((HERE - THERE - TRANSLATED) | (THERE - HERE - {*PASSED}))
    for param, fields in (*((name, {name: [1]}) for name in others), *REFUSED):
        reply, requests = sent(service, **fields)
        error = reply.json["error"]
        assert (reply.status, requests, error["param"]) == (400, [], param), fields
        assert error["type"] == "invalid_request_error"
        assert error["code"] in ("invalid_value", "unsupported_parameter")
        assert error["message"].startswith(f"{param} ")
        assert "\n" not in error["message"]


#: Items of an input that are judged, and their messages.
ITEMS = [
    ("A or B?", MESSAGES),
    ([{"role": role, "content": "x"} for role in ("developer", "system", "user", "assistant")],) * 2,
    ([{"type": "message", "role": "user", "content": [TEXT], "status": "completed"}], MESSAGES),
    (said(TEXT, {**TEXT, **CACHED}), said({**TEXT, "type": "text"}, {**TEXT, "type": "text", **CACHED})),
    (
        [
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "phase": "final_answer",
             "content": [{"type": "output_text", "text": "B", "annotations": [], "logprobs": []}]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "AAAA"},
            {"role": "user", "content": "Sure?"},
        ],
        [
            {"role": "assistant", "content": "B"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            {"role": "user", "content": "Sure?"},
        ],
    ),
]  # fmt: skip

#: Parts that are not judged: those of chat completions, and why.
PARTS = [
    (
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
        "images",
    ),
    (
        {"type": "input_file", "file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}},
        "files",
    ),
    ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},) * 2 + ("audio",),
]


def test_an_input_reaches_a_model_as_messages(service):
    """Parts that are no text are not judged."""
    for items, messages in ITEMS:
        for instructions in (None, "Be brief."):
            reply, requests = sent(service, input=items, instructions=instructions)
            first = [] if instructions is None else [{"role": "system", "content": instructions}]
            assert (judgement_of(reply), requests) == (IS_JUDGED, [BY_POLICY | {"messages": first + messages}])
    for part, chat, why in PARTS:
        reply, requests = sent(service, input=said({"type": "input_text", "text": "?"}, part))
        assert judgement_of(reply) == by_largest(why)
        assert requests[0]["messages"] == said({"type": "text", "text": "?"}, chat)


def test_every_item_of_an_input_is_translated_or_refused(service):
    """Calls and their outputs are not judged; items of stored data or provider tools are refused by their place."""
    for kind in get_args(responses.ResponseInputItemParam):
        hint = get_type_hints(kind)["type"]
        (name,) = [one for one in get_args(get_args(hint)[0] if type(None) in get_args(hint) else hint) if one]
        if name in ("message", "function_call", "function_call_output", "reasoning"):
            continue
        reply, requests = sent(service, input=[*MESSAGES, {"type": name, "id": "x"}])
        assert (reply.status, requests, reply.json["error"]["param"]) == (400, [], "input[1].type"), name
    reply, (request,) = sent(service, input=[{"role": "user", "content": "Look."}, CALL, OUTPUT])
    assert judgement_of(reply) == by_largest("tools")
    calls = [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    assert request["messages"] == [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "seen"},
    ]
