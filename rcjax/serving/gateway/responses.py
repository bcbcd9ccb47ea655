"""Translation of requests for a response (`/v1/responses`) into requests for a completion, which models understand.

A field that needs a state, a hosted tool, or a field that chat completions lack, is refused by its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from rcjax.serving.gateway.chat_request import ApiError, ChatRequest, chat_request, invalid_field, read_object

_Fields = Mapping[str, Any]

_RESPONSE_FIELDS = ResponseCreateParamsBase.__annotations__.keys()
_CHAT_FIELDS = CompletionCreateParamsBase.__annotations__.keys()

#: Fields that have another name, or none, in chat completions. OpenAI accepts metadata only with a stored completion.
_TRANSLATED = frozenset(
    {"include", "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "reasoning"}
    | {"stream_options", "text", "tool_choice", "tools", "top_logprobs"}
)

#: Fields of chat completions that are passed on, as are fields that only a server knows: they are sampling options.
_SAMPLING = frozenset({"frequency_penalty", "logit_bias", "presence_penalty", "seed", "stop"})

_NO_FIELD = "cannot be used: the models are asked by chat completions, which have no such field"

_NO_STATE = f"{_NO_FIELD}, and no response is kept here: send the whole conversation as input"

_OF_CHATS = "is of chat completions: responses have another field for it, or none"

#: Fields that no endpoint can fulfil, and fields of chat completions alone, with the problem.
_REFUSED = (
    {name: _NO_STATE for name in _RESPONSE_FIELDS if name not in _TRANSLATED | _CHAT_FIELDS}
    | {"store": _NO_STATE}
    | {name: _OF_CHATS for name in _CHAT_FIELDS if name not in _SAMPLING | _RESPONSE_FIELDS}
)

#: Values of refused fields that are accepted, as they change nothing.
_HARMLESS: dict[str, Any] = {"background": False, "store": False, "truncation": "disabled"}

#: Values by which a response describes fields that its request left out.
_DEFAULTS: dict[str, Any] = {
    **_HARMLESS,
    "instructions": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
}

_NOT_REPEATED = frozenset({"include", "input", "model", "stream_options"})


def read_response_request(body: bytes) -> tuple[ChatRequest, dict[str, Any]]:
    """Read a body: return (the request for a completion, the fields that the response repeats).

    Raises ApiError for an invalid request, and for fields that no endpoint can fulfil.

    >>> request, _ = read_response_request(b'{"model": "m", "input": "A or B?", "max_output_tokens": 9, "top_k": 2}')
    >>> request.messages, request.fields
    ([{'role': 'user', 'content': 'A or B?'}], {'top_k': 2, 'max_completion_tokens': 9})
    """
    data = {name: value for name, value in read_object(body).items() if value is not None}
    for name, problem in _REFUSED.items():
        if name in data and data[name] != _HARMLESS.get(name):
            raise _unsupported(name, problem)
    chat = {name: value for name, value in data.items() if name not in _TRANSLATED and name not in _HARMLESS}
    request = chat_request(chat | {"messages": _messages(data), **dict(_options(data))})
    repeatable = _RESPONSE_FIELDS - _NOT_REPEATED
    repeated = _DEFAULTS | {name: value for name, value in data.items() if name in repeatable}
    tools = [{"parameters": None, "strict": None, **tool} for tool in repeated["tools"]]
    text = {**_DEFAULTS["text"], **repeated["text"]}
    return replace(request, includes_usage=True), {**repeated, "tools": tools, "text": text}


def _unsupported(field: str, problem: str) -> ApiError:
    return invalid_field(field, problem, "unsupported_parameter")


_NOUNS = {str: "a text", list: "a list", dict: "an object"}


def _typed(data: _Fields, name: str, kind: type, within: str = "", *, needed: bool = False) -> Any:
    """Return a field of this type, or None if it is missing and not needed. Raises ApiError for another type."""
    value = data.get(name)
    if isinstance(value, kind) or (value is None and not needed):
        return value
    raise invalid_field(within + name, f"must be {_NOUNS[kind]}")


def _text(data: _Fields, name: str, within: str) -> str:
    return _typed(data, name, str, within, needed=True)


def _objects(data: _Fields, name: str, within: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (its place, the object) for each object of a list. Raises ApiError for anything else."""
    for index, value in enumerate(_typed(data, name, list, within) or ()):
        where = f"{within}{name}[{index}]"
        if not isinstance(value, dict):
            raise invalid_field(where, "must be an object")
        yield where, value


def _select(data: _Fields, names: Iterable[str], within: str) -> dict[str, Any]:
    """Return the fields of an object with these names. Raises ApiError for any other field that is not empty."""
    for name, value in data.items():
        if value and name not in names:
            raise _unsupported(f"{within}{name}", _NO_FIELD)
    return {name: data[name] for name in names if data.get(name) is not None}


def _options(data: _Fields) -> Iterator[tuple[str, Any]]:
    """Yield the options of a completion that have other names in a response. Raises ApiError for invalid ones."""
    included = _typed(data, "include", list) or []  # the others name no data of a completion
    if data.get("top_logprobs") or "message.output_text.logprobs" in included:
        yield from (("logprobs", True), ("top_logprobs", data.get("top_logprobs")))
    if "max_output_tokens" in data:
        yield "max_completion_tokens", data["max_output_tokens"]
    reasoning = _select(_typed(data, "reasoning", dict) or {}, ["effort"], "reasoning.")
    yield from ((f"reasoning_{name}", value) for name, value in reasoning.items())
    text = _select(_typed(data, "text", dict) or {}, ["format", "verbosity"], "text.")
    form = _typed(text, "format", dict, "text.") or {"type": "text"}
    if form.get("type") == "json_schema":  # an object within an object in chat completions
        form = {"type": "json_schema", "json_schema": {name: form[name] for name in form if name != "type"}}
    if form != {"type": "text"}:
        yield "response_format", form
    yield from ((name, value) for name, value in text.items() if name == "verbosity")
    tools = [_tool(tool, f"{where}.") for where, tool in _objects(data, "tools")]
    if tools:
        yield "tools", tools
    choice = data.get("tool_choice")
    if choice is not None and (tools or choice not in ("auto", "none")):  # without tools, these change nothing
        yield "tool_choice", choice if isinstance(choice, str) else _choice(_typed(data, "tool_choice", dict))


def _tool(tool: _Fields, within: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise _unsupported(f"{within}type", "must be function: chat completions have no tools but those of the client")
    function = _select(tool, ("type", "name", "description", "parameters", "strict"), within)
    _text(tool, "name", within)
    return {"type": function.pop("type"), "function": function}


def _choice(choice: _Fields) -> dict[str, Any]:
    """Translate the choice of a function, which has its own object in chat completions."""
    if choice.get("type") != "function":
        raise _unsupported("tool_choice.type", "must be function: other choices have no like in chat completions")
    return {"type": "function", "function": {"name": _text(choice, "name", "tool_choice.")}}


def _messages(data: _Fields) -> list[dict[str, Any]]:
    """Translate the instructions and the input into messages."""
    instructions, content = _typed(data, "instructions", str), data.get("input")
    messages = [] if instructions is None else [{"role": "system", "content": instructions}]
    if isinstance(content, str):
        return [*messages, {"role": "user", "content": content}]
    if not isinstance(content, list):
        raise invalid_field("input", "must be a text, or a list of messages")
    for where, item in _objects(data, "input"):
        _add_item(messages, item, f"{where}.")
    if not messages:
        raise invalid_field("input", "must have a message: what a model thought is none")
    return messages


def _add_item(messages: list[dict[str, Any]], item: _Fields, within: str) -> None:
    kind = item.get("type") or "message"
    if kind == "message":
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            raise invalid_field(f"{within}role", "must be user, assistant, system or developer")
        messages.append({"role": role, "content": _content(item, "content", within, (*_TEXTS, *_MORE))})
    elif kind == "function_call":  # it belongs to the message that it was made with
        function = {name: _text(item, name, within) for name in ("name", "arguments")}
        call = {"id": _text(item, "call_id", within), "type": "function", "function": function}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        call, content = _text(item, "call_id", within), _content(item, "output", within, _TEXTS)
        messages.append({"role": "tool", "tool_call_id": call, "content": content})
    elif kind != "reasoning":  # the reasoning of earlier answers is not sent again
        known = "message, function_call, function_call_output or reasoning"
        raise _unsupported(f"{within}type", f"must be {known}: others need what is kept elsewhere")


_MARK = "prompt_cache_breakpoint"

_TEXTS, _MORE = ("input_text", "output_text"), ("refusal", "input_image", "input_file", "input_audio")


def _content(item: _Fields, name: str, within: str, kinds: Sequence[str]) -> str | list[dict[str, Any]]:
    """Translate a content with parts of these kinds; a single text becomes a string, which all servers accept."""
    value = item.get(name)
    if isinstance(value, str):
        return value
    if value is None:
        raise invalid_field(f"{within}{name}", "must be a text, or a list of parts")
    parts = []
    for where, part in _objects(item, name, within):
        if part.get("type") not in kinds:
            raise _unsupported(f"{where}.type", f"must be one of {', '.join(kinds)}")
        marks = {_MARK: part[_MARK]} if part.get(_MARK) is not None else {}
        parts.append(_part(part, f"{where}.") | marks)
    alone = len(parts) == 1 and parts[0].keys() == {"type", "text"}
    return parts[0]["text"] if alone else parts


def _part(part: _Fields, within: str) -> dict[str, Any]:
    """Translate a part of a message."""
    match part["type"]:
        case "refusal":
            return {"type": "refusal", "refusal": _text(part, "refusal", within)}
        case "input_image":
            shown = _select(part, ("type", "image_url", "detail", _MARK), within)
            detail = {"detail": shown["detail"]} if "detail" in shown else {}
            return {"type": "image_url", "image_url": {"url": _text(part, "image_url", within), **detail}}
        case "input_file":
            file = _select(part, ("type", "file_data", "file_id", "filename", _MARK), within)
            return {"type": "file", "file": {name: file[name] for name in file if name not in ("type", _MARK)}}
        case "input_audio":
            return {"type": "input_audio", "input_audio": _typed(part, "input_audio", dict, within) or {}}
        case _:
            return {"type": "text", "text": _text(part, "text", within)}
