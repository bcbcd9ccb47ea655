"""A request for a response (`/v1/responses`), put as one for a completion: models are asked by chat completions.

What these can express is translated, and judged or not as they are; what needs a state, a hosted tool, or a field that
they have not, is refused by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from rcjax.serving.gateway.chat_request import ApiError, ChatRequest, chat_request, invalid, read_object

_Fields = Mapping[str, Any]

_NO_FIELD = "cannot be used: the models are asked by chat completions, which have no such field"

_NO_STATE = "cannot be used: no response is kept here; leave it out, and send the whole conversation as input"

#: Fields that no upstream can be asked for, and those of chat completions, with what to do.
_REFUSED = (
    dict.fromkeys(("access_programs", "image"), _NO_FIELD)
    | dict.fromkeys(("background", "background_options", "context_management", "conversation"), _NO_STATE)
    | dict.fromkeys(("previous_response_id", "prompt", "store", "truncation"), _NO_STATE)
    | {"logprobs": 'is of chat completions: send include=["message.output_text.logprobs"]'}
    | dict.fromkeys(("max_completion_tokens", "max_tokens"), "is of chat completions: send max_output_tokens")
    | {"messages": "is of chat completions: send input"}
    | {"reasoning_effort": "is of chat completions: send reasoning.effort"}
    | {"response_format": "is of chat completions: send text.format"}
    | {"verbosity": "is of chat completions: send text.verbosity"}
    | dict.fromkeys(
        ("audio", "function_call", "functions", "modalities", "n", "prediction", "web_search_options"),
        "is of chat completions: responses have none",
    )
)


#: What these may say, as it is so anyway.
_HARMLESS = {"background": False, "store": False, "truncation": "disabled"}


#: Fields that have another name in chat completions, or none there; all others go along as they are. OpenAI takes
#: metadata only with a completion that is stored.
_TRANSLATED = frozenset(
    {"include", "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "reasoning"}
    | {"stream_options", "text", "tool_choice", "tools", "top_logprobs", *_REFUSED}
)


#: What a response repeats of its request, and what holds where that says nothing.
_REPEATED: _Fields = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "prompt_cache_retention": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "store": False,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}


def read_response_request(body: bytes) -> tuple[ChatRequest, dict[str, Any]]:
    """(the request for a completion, what the response repeats of its own) in a body.

    Raises ApiError for what cannot be a request, and for what no upstream can be asked for.

    >>> request, _ = read_response_request(b'{"model": "m", "input": "A or B?", "max_output_tokens": 9, "top_k": 2}')
    >>> request.messages, request.fields
    ([{'role': 'user', 'content': 'A or B?'}], {'top_k': 2, 'max_completion_tokens': 9})
    """
    data = read_object(body)
    _refuse(data)
    chat = {name: value for name, value in data.items() if name not in _TRANSLATED}
    request = chat_request(chat | {"messages": _messages(data), **dict(_options(data))})
    return replace(request, counted=True), _repeated(data)


def _refuse(data: _Fields) -> None:
    """Refuse fields that no upstream can be asked for, and those of chat completions."""
    for name, problem in _REFUSED.items():
        if data.get(name) is not None and data[name] != _HARMLESS.get(name):
            raise _unsupported(name, problem)


def _unsupported(field: str, problem: str) -> ApiError:
    return invalid(field, problem, "unsupported_parameter")


def _repeated(data: _Fields) -> dict[str, Any]:
    fields = {name: usual if data.get(name) is None else data[name] for name, usual in _REPEATED.items()}
    tools = [{"parameters": None, "strict": None, **tool} for tool in fields["tools"]]
    return fields | {"tools": tools, "text": {**_REPEATED["text"], **fields["text"]}}


_NOUNS = {str: "a text", list: "a list", dict: "an object", int: "a whole number"}


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


def _only(data: _Fields, names: tuple[str, ...], within: str) -> dict[str, Any]:
    """What an object says by these names. Raises ApiError for what it says besides."""
    for name, value in data.items():
        if value and name not in names:
            raise _unsupported(f"{within}{name}", _NO_FIELD)
    return {name: data[name] for name in names if data.get(name) is not None}


def _options(data: _Fields) -> Iterator[tuple[str, Any]]:
    """The options of a completion that have other names in a response. Raises ApiError for those that cannot be."""
    included = _typed(data, "include", list) or []  # of what else it may name, there is nothing
    top = _typed(data, "top_logprobs", int)
    if top or "message.output_text.logprobs" in included:
        yield from (("logprobs", True), ("top_logprobs", top))
    if data.get("max_output_tokens") is not None:
        yield "max_completion_tokens", data["max_output_tokens"]
    _typed(data, "stream_options", dict)
    reasoning = _only(_typed(data, "reasoning", dict) or {}, ("effort",), "reasoning.")
    yield from ((f"reasoning_{name}", value) for name, value in reasoning.items())
    text = _only(_typed(data, "text", dict) or {}, ("format", "verbosity"), "text.")
    if "verbosity" in text:
        yield "verbosity", text["verbosity"]
    form = _typed(text, "format", dict, "text.") or {"type": "text"}
    if form.get("type") == "json_schema":  # which has an object of its own in chat completions
        form = {"type": "json_schema", "json_schema": {name: form[name] for name in form if name != "type"}}
    if form != {"type": "text"}:
        yield "response_format", form
    tools = [_tool(tool, f"{where}.") for where, tool in _objects(data, "tools")]
    if tools:
        yield "tools", tools
    choice = data.get("tool_choice")
    if choice is not None and (tools or choice not in ("auto", "none")):  # without tools these say nothing
        yield "tool_choice", choice if isinstance(choice, str) else _choice(_typed(data, "tool_choice", dict))


_FUNCTION = ("name", "description", "parameters", "strict")


def _tool(tool: _Fields, within: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise _unsupported(f"{within}type", "must be function: chat completions have no tools but those of the client")
    function = _only(tool, ("type", *_FUNCTION), within)
    _text(tool, "name", within)
    return {"type": function.pop("type"), "function": function}


def _choice(choice: _Fields) -> dict[str, Any]:
    """The function that is to be called, which has an object of its own in chat completions."""
    if choice.get("type") != "function":
        raise _unsupported("tool_choice.type", "must be function: other choices have no like in chat completions")
    return {"type": "function", "function": {"name": _text(choice, "name", "tool_choice.")}}


def _messages(data: _Fields) -> list[dict[str, Any]]:
    """The instructions and the input as messages."""
    instructions = _typed(data, "instructions", str)
    messages = [] if instructions is None else [{"role": "system", "content": instructions}]
    content = data.get("input")
    if isinstance(content, str):
        return [*messages, {"role": "user", "content": content}]
    if not isinstance(content, list) or not content:
        raise invalid("input", "must be a text, or a list of messages, not an empty one")
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


def _content(item: _Fields, name: str, within: str, kinds: tuple[str, ...]) -> str | list[dict[str, Any]]:
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


_MARK = "prompt_cache_breakpoint"

_TEXTS, _MORE = ("input_text", "output_text"), ("refusal", "input_image", "input_file", "input_audio")


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
            names = ("file_data", "file_id", "filename")
            _only(part, ("type", *names, _MARK), within)
            return {"type": "file", "file": {name: part[name] for name in names if part.get(name) is not None}}
        case "input_audio":
            return {"type": "input_audio", "input_audio": _typed(part, "input_audio", dict, within) or {}}
        case _:
            return {"type": "text", "text": _text(part, "text", within)}
