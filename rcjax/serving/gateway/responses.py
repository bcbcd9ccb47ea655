"""A request for a response (`/v1/responses`), put as one for a completion: models are asked by chat completions.

What these can express is translated, and judged or not as they are; what needs a state, a hosted tool, or a field that
they have not, is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rcjax.serving.gateway.chat_request import ApiError, ChatRequest, chat_request, invalid, read_object

_Fields = Mapping[str, Any]

_NO_STATE = "cannot be used: no response is kept here; send the whole conversation as input"

_NO_FIELD = "cannot be used: the models are asked by chat completions, which have no such field"


#: Fields that no upstream can be asked for, and what to do.
_REFUSED = {
    "access_programs": _NO_FIELD,
    "background": "cannot be used: no response is kept here; leave it out, and wait for the answer",
    "background_options": _NO_STATE,
    "context_management": _NO_STATE,
    "conversation": _NO_STATE,
    "image": _NO_FIELD,
    "previous_response_id": _NO_STATE,
    "prompt": "cannot be used: no prompts are kept here; send the text as instructions and input",
    "store": "cannot be used: no response is kept here; send false, or leave it out",
    "truncation": "cannot be used: input is never shortened here; send disabled, or leave it out",
}


#: What these may say, as it is so anyway.
_HARMLESS = {"background": False, "store": False, "truncation": "disabled"}


#: Fields of chat completions, and those of a response that say the same.
_INSTEAD = {
    "logprobs": 'include=["message.output_text.logprobs"]',
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
}


#: Fields of chat completions that say the same by none.
_CHATS = ("audio", "function_call", "functions", "modalities", "n", "prediction", "web_search_options")


#: Fields that have another name in chat completions, or none there; all others go along as they are. OpenAI takes
#: metadata only with a completion that is stored.
_TRANSLATED = frozenset(
    {"include", "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "reasoning"}
    | {"stream_options", "text", "tool_choice", "tools", "top_logprobs", *_REFUSED, *_INSTEAD, *_CHATS}
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
        value = data.get(name)
        if value is not None and value != _HARMLESS.get(name):
            raise _unsupported(name, problem)
    for name in (*_INSTEAD, *_CHATS):
        if data.get(name) is not None:
            other = _INSTEAD.get(name)
            raise _unsupported(name, f"is of chat completions: {f'send {other}' if other else 'responses have none'}")


def _unsupported(field: str, problem: str) -> ApiError:
    return invalid(field, problem, "unsupported_parameter")


def _repeated(data: _Fields) -> dict[str, Any]:
    fields = {name: usual if data.get(name) is None else data[name] for name, usual in _REPEATED.items()}
    tools = [{"parameters": None, "strict": None, **tool} for tool in fields["tools"]]
    return fields | {"tools": tools, "text": {**_REPEATED["text"], **fields["text"]}}


def _options(data: _Fields) -> Iterator[tuple[str, Any]]:
    """The options of a completion that have other names in a response. Raises ApiError for those that cannot be."""
    included = _typed(data, "include", list, "a list of texts") or []  # of what else it may name, there is nothing
    top = _typed(data, "top_logprobs", int, "a whole number from 0 on")
    if top or "message.output_text.logprobs" in included:
        yield from (("logprobs", True), ("top_logprobs", top))
    if data.get("max_output_tokens") is not None:
        yield "max_completion_tokens", data["max_output_tokens"]
    _typed(data, "stream_options", dict, "an object")
    reasoning, text = _typed(data, "reasoning", dict, "an object") or {}, _typed(data, "text", dict, "an object") or {}
    _only(reasoning, ("effort",), "reasoning")
    _only(text, ("format", "verbosity"), "text")
    if reasoning.get("effort") is not None:
        yield "reasoning_effort", reasoning["effort"]
    if text.get("verbosity") is not None:
        yield "verbosity", text["verbosity"]
    form = _typed(text, "format", dict, "an object", "text.")
    if form not in (None, {"type": "text"}):
        yield "response_format", _format(form)
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(_objects(data, "tools"))]
    if tools:
        yield "tools", tools
    choice = data.get("tool_choice")
    if choice is not None and (tools or choice not in ("auto", "none")):  # without tools these say nothing
        yield "tool_choice", _choice(choice)


def _typed(data: _Fields, name: str, kind: type, wanted: str, within: str = "") -> Any:
    """A field of this type, or None. Raises ApiError for any other."""
    value = data.get(name)
    if value is not None and not isinstance(value, kind):
        raise invalid(within + name, f"must be {wanted}")
    return value


def _objects(data: _Fields, name: str, within: str = "") -> list[Any]:
    """A list of objects; an empty one where there is none. Raises ApiError for anything else."""
    values = _typed(data, name, list, "a list of objects", within) or []
    for index, value in enumerate(values):
        if not isinstance(value, dict):
            raise invalid(f"{within}{name}[{index}]", "must be an object")
    return values


def _text(data: _Fields, name: str, where: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise invalid(f"{where}.{name}", "must be a text")
    return value


def _only(data: _Fields, names: tuple[str, ...], where: str) -> None:
    """Refuse what an object says besides."""
    for name, value in data.items():
        if value and name not in names:
            raise _unsupported(f"{where}.{name}", _NO_FIELD)


def _format(form: _Fields) -> dict[str, Any]:
    """The form of an answer: that of a schema has an object of its own in chat completions."""
    if form.get("type") != "json_schema":
        return dict(form)
    return {"type": "json_schema", "json_schema": {name: value for name, value in form.items() if name != "type"}}


_FUNCTION = ("name", "description", "parameters", "strict")


def _tool(tool: _Fields, where: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise _unsupported(f"{where}.type", "must be function: chat completions have no tools but those of the client")
    _only(tool, ("type", *_FUNCTION), where)
    _text(tool, "name", where)
    return {"type": "function", "function": {name: tool[name] for name in _FUNCTION if tool.get(name) is not None}}


def _choice(choice: Any) -> Any:
    """Which tool is to be called; a function that is named has an object of its own in chat completions."""
    if isinstance(choice, str):
        return choice
    if not isinstance(choice, dict):
        raise invalid("tool_choice", "must be none, auto, required or a function")
    if choice.get("type") != "function":
        raise _unsupported("tool_choice.type", "must be function: other choices have no like in chat completions")
    return {"type": "function", "function": {"name": _text(choice, "name", "tool_choice")}}


def _messages(data: _Fields) -> list[dict[str, Any]]:
    """The instructions and the input as messages."""
    instructions = _typed(data, "instructions", str, "a text")
    messages = [] if instructions is None else [{"role": "system", "content": instructions}]
    content = data.get("input")
    if isinstance(content, str):
        return [*messages, {"role": "user", "content": content}]
    if not isinstance(content, list) or not content:
        raise invalid("input", "must be a text, or a list of messages, not an empty one")
    for index, item in enumerate(_objects(data, "input")):
        where, kind = f"input[{index}]", item.get("type") or "message"
        add = _ITEMS.get(kind) if isinstance(kind, str) else None
        if add is None:
            raise _unsupported(
                f"{where}.type", f"must be one of {', '.join(_ITEMS)}: others need what is kept elsewhere"
            )
        add(messages, item, where)
    if not messages:
        raise invalid("input", "must have a message: what a model thought is none")
    return messages


def _add_message(messages: list[dict[str, Any]], item: _Fields, where: str) -> None:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise invalid(f"{where}.role", "must be user, assistant, system or developer")
    messages.append({"role": role, "content": _content(item, "content", where, _PARTS)})


def _add_call(messages: list[dict[str, Any]], item: _Fields, where: str) -> None:
    """Add the call of a tool to the message that it was made with: all of these stand in one."""
    function = {name: _text(item, name, where) for name in ("name", "arguments")}
    call = {"id": _text(item, "call_id", where), "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", []).append(call)


def _add_output(messages: list[dict[str, Any]], item: _Fields, where: str) -> None:
    call, content = _text(item, "call_id", where), _content(item, "output", where, _TEXTS)
    messages.append({"role": "tool", "tool_call_id": call, "content": content})


def _add_reasoning(messages: list[dict[str, Any]], item: _Fields, where: str) -> None:
    """Add nothing: what a model thought before an earlier answer is not sent again in chat completions."""


_ITEMS: Mapping[str, Callable[[list[dict[str, Any]], _Fields, str], None]] = {
    "message": _add_message,
    "function_call": _add_call,
    "function_call_output": _add_output,
    "reasoning": _add_reasoning,
}


_Part = Callable[[_Fields, str], dict[str, Any]]


def _content(item: _Fields, name: str, where: str, kinds: Mapping[str, _Part]) -> str | list[dict[str, Any]]:
    """A content of these kinds of parts; one that is a single text as that text, which all servers take."""
    value = item.get(name)
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid(f"{where}.{name}", "must be a text, or a list of parts")
    parts = []
    for index, part in enumerate(_objects(item, name, f"{where}.")):
        at, kind = f"{where}.{name}[{index}]", part.get("type")
        read = kinds.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise _unsupported(
                f"{at}.type", f"must be one of {', '.join(kinds)}: chat completions take no others there"
            )
        parts.append(read(part, at) | {mark: part[mark] for mark in _MARKS if part.get(mark) is not None})
    alone = len(parts) == 1 and parts[0].keys() == {"type", "text"}
    return parts[0]["text"] if alone else parts


_MARKS = ("prompt_cache_breakpoint",)


def _text_part(part: _Fields, where: str) -> dict[str, Any]:
    return {"type": "text", "text": _text(part, "text", where)}


def _image_part(part: _Fields, where: str) -> dict[str, Any]:
    if part.get("file_id") is not None:
        raise _unsupported(f"{where}.file_id", "cannot be used: chat completions take images by image_url alone")
    image = {"url": _text(part, "image_url", where), **_some(part, ("detail",))}
    return {"type": "image_url", "image_url": image}


def _file_part(part: _Fields, where: str) -> dict[str, Any]:
    if part.get("file_url") is not None:
        raise _unsupported(f"{where}.file_url", "cannot be used: chat completions take files by file_data or file_id")
    return {"type": "file", "file": _some(part, ("file_data", "file_id", "filename"))}


def _audio_part(part: _Fields, where: str) -> dict[str, Any]:
    audio = _typed(part, "input_audio", dict, "an object", f"{where}.")
    return {"type": "input_audio", "input_audio": audio or {}}


def _some(part: _Fields, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: part[name] for name in names if part.get(name) is not None}


_TEXTS: Mapping[str, _Part] = {"input_text": _text_part, "output_text": _text_part}


_PARTS: Mapping[str, _Part] = {
    **_TEXTS,
    "refusal": lambda part, where: {"type": "refusal", "refusal": _text(part, "refusal", where)},
    "input_image": _image_part,
    "input_file": _file_part,
    "input_audio": _audio_part,
}
