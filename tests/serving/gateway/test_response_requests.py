"""Every field of a request for a response that the client of OpenAI knows: translated, passed on, or refused."""

from typing import get_args, get_type_hints

import pytest
from chat_server import Response, sure
from gateway_service import SURE
from openai.types import responses
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params
from response_clients import sent
from test_request_fields import IS_JUDGED, JUDGED as PASSED_ON, told

TOOL = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}, "strict": False}
FUNCTION = {name: value for name, value in TOOL.items() if name != "type"}
SCHEMA = {"name": "letter", "strict": True, "schema": {"type": "object", "properties": {}}}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "seen"}
TEXT = {"type": "input_text", "text": "A or B?"}
CACHED = {"prompt_cache_breakpoint": {"mode": "explicit"}}

#: Fields that go along as they are.
SAME = [
    "moderation",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "temperature",
    "top_p",
    "user",
]

#: Fields, and what of them reaches a model that is judged.
JUDGED = [
    ({"max_output_tokens": 9}, {"max_completion_tokens": 9}),
    ({"reasoning": {"effort": "low", "summary": None}}, {"reasoning_effort": "low"}),
    ({"text": {"verbosity": "low", "format": {"type": "text"}}}, {"verbosity": "low"}),
    ({"text": {}}, {}),
    ({"include": ["reasoning.encrypted_content", "web_search_call.results"]}, {}),
    ({"include": ["message.output_text.logprobs"], "top_logprobs": 50}, {"top_logprobs": 50}),
    ({"top_logprobs": 0}, {}),
    ({"max_tool_calls": 3, "metadata": {"a": "b"}}, {}),
    ({"tools": [], "tool_choice": "auto"}, {}),
    ({"tool_choice": "none"}, {}),
    ({"background": False, "store": False, "truncation": "disabled", "stream": False}, {}),
    (
        {"top_k": 3, "seed": 1, "stop": ["x"], "guided_choice": ["A"]},
        {"top_k": 3, "seed": 1, "stop": ["x"], "guided_choice": ["A"]},
    ),
]

#: Fields, what of them reaches the one model that answers what is not judged, and why it is not.
UNJUDGED = [
    ({"tools": [TOOL]}, {"tools": CHAT_TOOLS}, "tools"),
    (
        {"tools": [{**TOOL, "strict": None, "output_schema": None}]},
        {
            "tools": [
                {**CHAT_TOOLS[0], "function": {name: value for name, value in FUNCTION.items() if name != "strict"}}
            ]
        },
        "tools",
    ),
    ({"tools": [TOOL], "tool_choice": "none"}, {"tools": CHAT_TOOLS, "tool_choice": "none"}, "tools"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": "look"}},
        {"tools": CHAT_TOOLS, "tool_choice": {"type": "function", "function": {"name": "look"}}},
        "tools,tool_choice",
    ),
    ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}, "response_format"),
    (
        {"text": {"format": {"type": "json_schema", **SCHEMA}}},
        {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
        "response_format",
    ),
]


def said(*parts, role="user"):
    """An input of one message."""
    return [{"role": role, "content": [*parts]}]


REFUSED = [
    ("previous_response_id", ["resp_1", 3], None),
    ("conversation", ["conv_1", {"id": "conv_1"}], None),
    ("background", [True, "yes"], None),
    ("background_options", [{"completion_window": "2h"}], None),
    ("context_management", [[{"type": "compaction"}]], None),
    ("prompt", [{"id": "pmpt_1"}], None),
    ("store", [True], None),
    ("truncation", ["auto"], None),
    ("access_programs", [{"cyber": "standard"}], None),
    ("image", [{"context_compression": "auto"}], None),
    ("messages", [[{"role": "user", "content": "?"}]], None),
    ("n", [2], None),
    ("max_tokens", [9], None),
    ("response_format", [{"type": "json_object"}], None),
    ("functions", [[FUNCTION]], None),
    ("model", [None, "", 3], None),
    ("input", [None, [], 3, {}], None),
    ("input", [["A or B?"]], "input[0]"),
    ("input", [said(role="tool"), said(role=["user"]), [{"content": "?"}]], "input[0].role"),
    ("input", [[{"role": "user"}], [{"role": "user", "content": 3}]], "input[0].content"),
    ("input", [said("?")], "input[0].content[0]"),
    ("input", [said({"type": "text", "text": "?"}), said({"type": {}})], "input[0].content[0].type"),
    ("input", [said({"type": "input_text"})], "input[0].content[0].text"),
    ("input", [said({"type": "input_image", "file_id": "file-1"})], "input[0].content[0].file_id"),
    ("input", [said({"type": "input_file", "file_url": "http://localhost"})], "input[0].content[0].file_url"),
    ("input", [[{**OUTPUT, "output": [{"type": "input_image", "image_url": "data:"}]}]], "input[0].output[0].type"),
    ("input", [[{"type": "function_call", "call_id": "1", "name": "look"}]], "input[0].arguments"),
    ("input", [[{"type": "function_call_output", "output": "?"}]], "input[0].call_id"),
    ("input", [[{"type": "reasoning", "id": "rs_1", "summary": []}]], None),
    ("instructions", [3, ["Be brief."]], None),
    ("include", ["message.output_text.logprobs", {}], None),
    ("top_logprobs", [-1, True, "5", 129], None),
    ("stream", [1, "true"], None),
    ("stream_options", [True, []], None),
    ("reasoning", ["low", []], None),
    ("reasoning", [{"summary": "auto"}], "reasoning.summary"),
    ("text", ["json"], None),
    ("text", [{"format": "json"}], "text.format"),
    ("text", [{"of_a_server": 1}], "text.of_a_server"),
    ("tools", ["look", {}], None),
    ("tools", [["look"]], "tools[0]"),
    ("tools", [[{"type": "web_search"}], [{"type": "custom", "name": "sh"}], [{}]], "tools[0].type"),
    ("tools", [[{"type": "function"}]], "tools[0].name"),
    ("tools", [[TOOL, {**TOOL, "defer_loading": True}]], "tools[1].defer_loading"),
    ("tool_choice", [3, []], None),
    ("tool_choice", [{"type": "web_search"}, {}], "tool_choice.type"),
    ("tool_choice", [{"type": "function"}], "tool_choice.name"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def service(service):
    service.server.behave = lambda request, headers: Response(sure("B", SURE))
    return service


MESSAGES = [{"role": "user", "content": "A or B?"}]
BY_POLICY = {"model": "org/small", "messages": MESSAGES, "logprobs": True, "top_logprobs": 20}


def test_every_field_of_the_client_is_tabled():
    tabled = {*SAME, "input", "instructions", "model", "stream", *(name for name, *_ in REFUSED)}
    tabled |= {name for fields, *_ in (*JUDGED, *UNJUDGED) for name in fields}
    known = {*response_create_params.ResponseCreateParamsBase.__annotations__}
    assert known <= tabled, f"say in {__name__} what becomes of {sorted(known - tabled)}"


def test_every_field_of_chat_completions_is_passed_on_or_refused(service):
    """No field that would change what comes back slips through under its old name."""
    known = {*completion_create_params.CompletionCreateParamsBase.__annotations__}
    known -= {*response_create_params.ResponseCreateParamsBase.__annotations__}
    passed = {"frequency_penalty", "presence_penalty", "logit_bias", "seed", "stop"}
    for name in sorted(known):
        reply, requests = sent(service, **{name: PASSED_ON[name][0] if name in passed else [1]})
        assert (reply.status, len(requests)) == ((200, 1) if name in passed else (400, 0)), name


def test_a_field_reaches_a_model_that_is_judged_by_its_name_there(service):
    same = [({name: PASSED_ON[name][0]},) * 2 for name in SAME]
    nothing = [({name: None}, {}) for name in sorted({*SAME, *(name for name, *_ in REFUSED)} - {"model", "input"})]
    for fields, chat in (*same, *JUDGED, *nothing):
        reply, requests = sent(service, **fields)
        assert (told(reply), requests) == (IS_JUDGED, [BY_POLICY | chat]), fields
        reply, requests = sent(service, **fields, model="large")
        more = {"logprobs": True} if "top_logprobs" in chat else {}
        assert requests == [{"model": "org/large", "messages": MESSAGES} | chat | more]


@pytest.mark.parametrize("stream", [False, True])
def test_a_field_that_is_not_judged_reaches_the_largest_model(service, stream):
    for fields, chat, why in UNJUDGED:
        reply, requests = sent(service, **fields, stream=stream)
        assert told(reply) == {"status": "not judged", "model": "large", "not-judged": why}
        streaming = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        assert requests == [{"model": "org/large", "messages": MESSAGES, **chat, **streaming}]


def test_a_field_that_cannot_be_is_refused(service):
    for name, param, value in [(name, param or name, value) for name, values, param in REFUSED for value in values]:
        reply, requests = sent(service, **{name: value})
        error = reply.json["error"]
        assert (reply.status, requests, error["param"]) == (400, [], param), value
        assert error["type"] == "invalid_request_error"
        assert error["code"] in ("invalid_value", "unsupported_parameter")
        assert error["message"].startswith(f"{param} ")
        assert "\n" not in error["message"]


#: Items of an input that are judged, and their messages.
ITEMS = [
    ("A or B?", MESSAGES),
    (
        [{"role": role, "content": "x"} for role in ("developer", "system", "user", "assistant")],
        [{"role": role, "content": "x"} for role in ("developer", "system", "user", "assistant")],
    ),
    (
        [{"type": "message", "role": "user", "content": [TEXT], "status": "completed"}],
        MESSAGES,
    ),
    (
        said(TEXT, {**TEXT, **CACHED}),
        said({**TEXT, "type": "text"}, {**TEXT, "type": "text", **CACHED}),
    ),
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
    (
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        "audio",
    ),
]


def test_an_input_reaches_a_model_as_messages(service):
    """Parts that are no text are not judged."""
    for items, messages in ITEMS:
        for instructions in (None, "Be brief."):
            reply, requests = sent(service, input=items, instructions=instructions)
            first = [] if instructions is None else [{"role": "system", "content": instructions}]
            assert (told(reply), requests) == (IS_JUDGED, [BY_POLICY | {"messages": first + messages}])
    for part, chat, why in PARTS:
        reply, requests = sent(service, input=said({"type": "input_text", "text": "?"}, part))
        assert told(reply) == {"status": "not judged", "model": "large", "not-judged": why}
        assert requests[0]["messages"] == said({"type": "text", "text": "?"}, chat)


def test_every_item_of_an_input_is_translated_or_refused(service):
    """Calls and their outputs are not judged; items of what others keep or run are refused by their place."""
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    for kind in get_args(responses.ResponseInputItemParam):
        hint = get_type_hints(kind)["type"]
        (name,) = [one for one in get_args(get_args(hint)[0] if type(None) in get_args(hint) else hint) if one]
        if name in ("message", "function_call", "function_call_output", "reasoning"):
            continue
        reply, requests = sent(service, input=[*ITEMS[1][0], {"type": name, "id": "x"}])
        assert (reply.status, requests, reply.json["error"]["param"]) == (400, [], "input[4].type"), name
    reply, (request,) = sent(service, input=[{"role": "user", "content": "Look."}, call, OUTPUT])
    assert told(reply) == {"status": "not judged", "model": "large", "not-judged": "tools"}
    calls = [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    assert request["messages"] == [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "seen"},
    ]
