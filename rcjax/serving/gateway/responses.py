"""A request for a response (`/v1/responses`), put as one for a completion: models are asked by chat completions.

What these can express is translated, and judged or not as they are; what needs a state, a hosted tool, or a field that
they have not, is refused by its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from rcjax.serving.gateway.chat_request import ApiError, ChatRequest, chat_request, invalid, read_object

_Fields = Mapping[str, Any]

_HERE, _THERE = ResponseCreateParamsBase.__annotations__.keys(), CompletionCreateParamsBase.__annotations__.keys()

#: Fields that have another name in chat completions, or none there. OpenAI takes metadata only with a completion that
#: is stored.
_TRANSLATED = frozenset(
    {"include", "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "reasoning"}
    | {"stream_options", "text", "tool_choice", "tools", "top_logprobs"}
)

#: Fields of chat completions that go along, as those do that only a server knows: they say how an answer is drawn.
_SAMPLING = frozenset({"frequency_penalty", "logit_bias", "presence_penalty", "seed", "stop"})

_NO_FIELD = "cannot be used: the models are asked by chat completions, which have no such field"

_NO_STATE = f"{_NO_FIELD}, and no response is kept here: send the whole conversation as input"

_CHATS = "is of chat completions: responses have another field for it, or none"

#: Fields that no upstream can be asked for, and those of chat completions alone.
_REFUSED = (
    {name: _NO_STATE for name in _HERE if name not in _TRANSLATED | _THERE}
    | {"store": _NO_STATE}
    | {name: _CHATS for name in _THERE if name not in _SAMPLING | _HERE}
)

#: What these may say, as it is so anyway.
_HARMLESS: dict[str, Any] = {"background": False, "store": False, "truncation": "disabled"}

#: What a response says of its request besides what that holds.
_USUAL: dict[str, Any] = {
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
    """(the request for a completion, what the response repeats of its own) in a body.

    Raises ApiError for what cannot be a request, and for what no upstream can be asked for.

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
    repeated = _USUAL | {name: value for name, value in data.items() if name in _HERE and name not in _NOT_REPEATED}
    tools = [{"parameters": None, "strict": None, **tool} for tool in repeated["tools"]]
    text = {**_USUAL["text"], **repeated["text"]}
    return replace(request, counted=True), {**repeated, "tools": tools, "text": text}


def _unsupported(field: str, problem: str) -> ApiError:
    return invalid(field, problem, "unsupported_parameter")


_NOUNS = {str: "a text", list: "a list", dict: "an object"}


def _typed(data: _Fields, name: str, kind: type, within: str = "", *, needed: bool = False) -> Any:
    """A field of this type, or None unless it is needed. Raises ApiError for any other."""
    value = data.get(name)
    if isinstance(value, kind) or (value is None and not needed):
        return value
    raise invalid(within + name, f"must be {_NOUNS[kind]}")


def _text(data: _Fields, name: str, within: str) -> str:
    return _typed(data, name, str, within, needed=True)


def _objects(data: _Fields, name: str, within: str = "") -> Iterator[tuple[str, Any]]:
    """(its place, an object) of each in a list. Raises ApiError for anything else."""
    for index, value in enumerate(_typed(data, name, list, within) or ()):
        where = f"{within}{name}[{index}]"
        if not isinstance(value, dict):
            raise invalid(where, "must be an object")
        yield where, value


def _only(data: _Fields, names: Iterable[str], within: str) -> dict[str, Any]:
    """What an object says by these names. Raises ApiError for what it says besides."""
    for name, value in data.items():
        if value and name not in names:
            raise _unsupported(f"{within}{name}", _NO_FIELD)
    return {name: data[name] for name in names if data.get(name) is not None}


def _options(data: _Fields) -> Iterator[tuple[str, Any]]:
    """The options of a completion that have other names in a response. Raises ApiError for those that cannot be."""
    included = _typed(data, "include", list) or []  # of what else it may name, there is nothing
    if data.get("top_logprobs") or "message.output_text.logprobs" in included:
        yield from (("logprobs", True), ("top_logprobs", data.get("top_logprobs")))
    if "max_output_tokens" in data:
        yield "max_completion_tokens", data["max_output_tokens"]
    reasoning = _only(_typed(data, "reasoning", dict) or {}, ["effort"], "reasoning.")
    yield from ((f"reasoning_{name}", value) for name, value in reasoning.items())
    text = _only(_typed(data, "text", dict) or {}, ["format", "verbosity"], "text.")
    form = _typed(text, "format", dict, "text.") or {"type": "text"}
    if form.get("type") == "json_schema":  # which has an object of its own in chat completions
        form = {"type": "json_schema", "json_schema": {name: form[name] for name in form if name != "type"}}
    if form != {"type": "text"}:
        yield "response_format", form
    yield from ((name, value) for name, value in text.items() if name == "verbosity")
    tools = [_tool(tool, f"{where}.") for where, tool in _objects(data, "tools")]
    if tools:
        yield "tools", tools
    choice = data.get("tool_choice")
    if choice is not None and (tools or choice not in ("auto", "none")):  # without tools these say nothing
        yield "tool_choice", choice if isinstance(choice, str) else _choice(_typed(data, "tool_choice", dict))


def _tool(tool: _Fields, within: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise _unsupported(f"{within}type", "must be function: chat completions have no tools but those of the client")
    function = _only(tool, ("type", "name", "description", "parameters", "strict"), within)
    _text(tool, "name", within)
    return {"type": function.pop("type"), "function": function}


def _choice(choice: _Fields) -> dict[str, Any]:
    """The function that is to be called, which has an object of its own in chat completions."""
    if choice.get("type") != "function":
        raise _unsupported("tool_choice.type", "must be function: other choices have no like in chat completions")
    return {"type": "function", "function": {"name": _text(choice, "name", "tool_choice.")}}


def _messages(data: _Fields) -> list[dict[str, Any]]:
    """The instructions and the input as messages."""
    instructions, content = _typed(data, "instructions", str), data.get("input")
    messages = [] if instructions is None else [{"role": "system", "content": instructions}]
    if isinstance(content, str):
        return [*messages, {"role": "user", "content": content}]
    if not isinstance(content, list):
        raise invalid("input", "must be a text, or a list of messages")
    for where, item in _objects(data, "input"):
        _add_item(messages, item, f"{where}.")
    if not messages:
        raise invalid("input", "must have a message: what a model thought is none")
    return messages


def _add_item(messages: list[dict[str, Any]], item: _Fields, within: str) -> None:
    kind = item.get("type") or "message"
    if kind == "message":
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            raise invalid(f"{within}role", "must be user, assistant, system or developer")
        messages.append({"role": role, "content": _content(item, "content", within, (*_TEXTS, *_MORE))})
    elif kind == "function_call":  # which stands in the message that it was made with
        function = {name: _text(item, name, within) for name in ("name", "arguments")}
        call = {"id": _text(item, "call_id", within), "type": "function", "function": function}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        call, content = _text(item, "call_id", within), _content(item, "output", within, _TEXTS)
        messages.append({"role": "tool", "tool_call_id": call, "content": content})
    elif kind != "reasoning":  # what a model thought before an earlier answer is not sent again
        known = "message, function_call, function_call_output or reasoning"
        raise _unsupported(f"{within}type", f"must be {known}: others need what is kept elsewhere")


_MARK = "prompt_cache_breakpoint"

_TEXTS, _MORE = ("input_text", "output_text"), ("refusal", "input_image", "input_file", "input_audio")


def _content(item: _Fields, name: str, within: str, kinds: Sequence[str]) -> str | list[dict[str, Any]]:
    """A content of these kinds of parts; one that is a single text as that text, which all servers take."""
    value = item.get(name)
    if isinstance(value, str):
        return value
    if value is None:
        raise invalid(f"{within}{name}", "must be a text, or a list of parts")
    parts = []
    for where, part in _objects(item, name, within):
        if part.get("type") not in kinds:
            raise _unsupported(f"{where}.type", f"must be one of {', '.join(kinds)}")
        marks = {_MARK: part[_MARK]} if part.get(_MARK) is not None else {}
        parts.append(_part(part, f"{where}.") | marks)
    alone = len(parts) == 1 and parts[0].keys() == {"type", "text"}
    return parts[0]["text"] if alone else parts


def _part(part: _Fields, within: str) -> dict[str, Any]:
    """A part of a message as chat completions have it."""
    match part["type"]:
        case "refusal":
            return {"type": "refusal", "refusal": _text(part, "refusal", within)}
        case "input_image":
            shown = _only(part, ("type", "image_url", "detail", _MARK), within)
            detail = {"detail": shown["detail"]} if "detail" in shown else {}
            return {"type": "image_url", "image_url": {"url": _text(part, "image_url", within), **detail}}
        case "input_file":
            file = _only(part, ("type", "file_data", "file_id", "filename", _MARK), within)
            return {"type": "file", "file": {name: file[name] for name in file if name not in ("type", _MARK)}}
        case "input_audio":
            return {"type": "input_audio", "input_audio": _typed(part, "input_audio", dict, within) or {}}
        case _:
            return {"type": "text", "text": _text(part, "text", within)}
