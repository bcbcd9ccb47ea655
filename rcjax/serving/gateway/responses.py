"""`/v1/responses`: translates its requests into requests for a completion, and completions into responses.

Fields that need a state, tools that a provider runs, and fields that chat completions lack are refused by name.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from starlette.types import Send

from rcjax.policy.signals.answers import as_object, objects_in
from rcjax.policy.signals.replies import token_content
from rcjax.serving.completions import REASONING, choice_text
from rcjax.serving.failures import is_withheld, raw_finish_reason
from rcjax.serving.gateway.chat import STREAM, Responder, encode_json, split_into_chunks
from rcjax.serving.gateway.chat_request import ChatRequest, parse_chat_request, read_object, require_token_limit
from rcjax.serving.gateway.clients import ApiError, invalid_field

JsonObject = Mapping[str, Any]

_RESPONSE_FIELDS = ResponseCreateParamsBase.__annotations__.keys()
_CHAT_FIELDS = CompletionCreateParamsBase.__annotations__.keys()

#: Fields that have another name, or none, in chat completions. OpenAI accepts metadata only with a stored completion.
_TRANSLATED = frozenset(
    {"include", "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "reasoning"}
    | {"parallel_tool_calls", "stream_options", "text", "tool_choice", "tools", "top_logprobs"}
)

#: Sampling options of chat completions that responses lack, and that are passed on nevertheless.
_CHAT_SAMPLING = frozenset({"frequency_penalty", "logit_bias", "presence_penalty", "seed", "stop"})

_NO_FIELD = "cannot be used: the models are asked by chat completions, which have no such field"

_NO_STATE = f"{_NO_FIELD}, and no response is kept here: send the whole conversation as input"

_CHAT_ONLY = "is a field of chat completions: responses have another field for it, or none"

#: Fields that are refused, with the problem: no endpoint can fulfil them, or only chat completions have them.
_REFUSED = (
    {name: _NO_STATE for name in _RESPONSE_FIELDS if name not in _TRANSLATED | _CHAT_FIELDS}
    | {"store": _NO_STATE}
    | {name: _CHAT_ONLY for name in _CHAT_FIELDS if name not in _CHAT_SAMPLING | _RESPONSE_FIELDS}
)

#: Values of refused fields that are accepted, as they change nothing.
_HARMLESS: dict[str, Any] = {"background": False, "store": False, "truncation": "disabled"}

#: Values that a response repeats for fields that its request left out.
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
    request = parse_chat_request(chat | {"messages": _translate_messages(data), **dict(_translate_options(data))})
    repeatable = _RESPONSE_FIELDS - _NOT_REPEATED
    repeated = _DEFAULTS | {name: value for name, value in data.items() if name in repeatable}
    tools = [{"parameters": None, "strict": None, **tool} for tool in repeated["tools"]]
    text = {**_DEFAULTS["text"], **repeated["text"]}
    return replace(request, includes_usage=True), {**repeated, "tools": tools, "text": text}


def _unsupported(field: str, problem: str) -> ApiError:
    return invalid_field(field, problem, "unsupported_parameter")


_NOUNS = {str: "a text", list: "a list", dict: "an object"}


def _read_typed(data: JsonObject, name: str, kind: type, within: str = "", *, needed: bool = False) -> Any:
    """Return a field of a type, or None if it is missing and not needed. Raises ApiError for another type."""
    value = data.get(name)
    if isinstance(value, kind) or (value is None and not needed):
        return value
    raise invalid_field(within + name, f"must be {_NOUNS[kind]}")


def _read_text(data: JsonObject, name: str, within: str) -> str:
    return _read_typed(data, name, str, within, needed=True)


def _read_objects(data: JsonObject, name: str, within: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (its place, the object) for each object of a list. Raises ApiError for anything else."""
    for index, value in enumerate(_read_typed(data, name, list, within) or ()):
        where = f"{within}{name}[{index}]"
        if not isinstance(value, dict):
            raise invalid_field(where, "must be an object")
        yield where, value


def _select_fields(data: JsonObject, names: Iterable[str], within: str) -> dict[str, Any]:
    """Return the fields of an object with these names. Raises ApiError for any other field that is not empty."""
    for name, value in data.items():
        if value and name not in names:
            raise _unsupported(f"{within}{name}", _NO_FIELD)
    return {name: data[name] for name in names if data.get(name) is not None}


def _translate_options(data: JsonObject) -> Iterator[tuple[str, Any]]:
    """Yield the options of a completion that have other names in a response. Raises ApiError for invalid ones."""
    included = _read_typed(data, "include", list) or []  # the others name no data of a completion
    if data.get("top_logprobs") or "message.output_text.logprobs" in included:
        yield from (("logprobs", True), ("top_logprobs", data.get("top_logprobs")))
    if "max_output_tokens" in data:
        require_token_limit("max_output_tokens", data["max_output_tokens"])
        yield "max_completion_tokens", data["max_output_tokens"]
    reasoning = _select_fields(_read_typed(data, "reasoning", dict) or {}, ["effort"], "reasoning.")
    yield from ((f"reasoning_{name}", value) for name, value in reasoning.items())
    text = _select_fields(_read_typed(data, "text", dict) or {}, ["format", "verbosity"], "text.")
    form = _read_typed(text, "format", dict, "text.") or {"type": "text"}
    if form.get("type") == "json_schema":  # an object within an object in chat completions
        form = {"type": "json_schema", "json_schema": {name: form[name] for name in form if name != "type"}}
    if form != {"type": "text"}:
        yield "response_format", form
    yield from ((name, value) for name, value in text.items() if name == "verbosity")
    tools = [_translate_tool(tool, f"{where}.") for where, tool in _read_objects(data, "tools")]
    if tools:
        yield "tools", tools
        if "parallel_tool_calls" in data:  # which chat completions refuse without tools
            yield "parallel_tool_calls", data["parallel_tool_calls"]
    choice = data.get("tool_choice")
    if choice is not None and (tools or choice not in ("auto", "none")):  # without tools, auto and none change nothing
        is_text = isinstance(choice, str)
        yield "tool_choice", choice if is_text else _translate_tool_choice(_read_typed(data, "tool_choice", dict))


def _translate_tool(tool: JsonObject, within: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise _unsupported(f"{within}type", "must be function: chat completions have only tools that the client runs")
    function = _select_fields(tool, ("type", "name", "description", "parameters", "strict"), within)
    _read_text(tool, "name", within)
    return {"type": function.pop("type"), "function": function}


def _translate_tool_choice(choice: JsonObject) -> dict[str, Any]:
    """Translate the choice of a function: chat completions nest it in an object of its own."""
    if choice.get("type") != "function":
        raise _unsupported("tool_choice.type", "must be function: chat completions have no other choices")
    return {"type": "function", "function": {"name": _read_text(choice, "name", "tool_choice.")}}


def _translate_messages(data: JsonObject) -> list[dict[str, Any]]:
    """Translate the instructions and the input into messages."""
    instructions = _read_typed(data, "instructions", str)
    content = data.get("input")
    messages = [] if instructions is None else [{"role": "system", "content": instructions}]
    if isinstance(content, str):
        return [*messages, {"role": "user", "content": content}]
    if not isinstance(content, list):
        raise invalid_field("input", "must be a text, or a list of messages")
    for where, item in _read_objects(data, "input"):
        _add_item(messages, item, f"{where}.")
    if not messages:
        raise invalid_field("input", "must contain a message; reasoning items alone are not enough")
    return messages


def _add_item(messages: list[dict[str, Any]], item: JsonObject, within: str) -> None:
    kind = item.get("type") or "message"
    if kind == "message":
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            raise invalid_field(f"{within}role", "must be user, assistant, system or developer")
        messages.append(
            {"role": role, "content": _translate_content(item, "content", within, (*_TEXTS, *_OTHER_PARTS))}
        )
    elif kind == "function_call":  # a part of the assistant's message
        function = {name: _read_text(item, name, within) for name in ("name", "arguments")}
        call = {"id": _read_text(item, "call_id", within), "type": "function", "function": function}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        call, content = _read_text(item, "call_id", within), _translate_content(item, "output", within, _TEXTS)
        messages.append({"role": "tool", "tool_call_id": call, "content": content})
    elif kind != "reasoning":  # the reasoning of earlier answers is not sent again
        known = "message, function_call, function_call_output or reasoning"
        advice = "item references need stored responses, which this service does not keep"
        raise _unsupported(f"{within}type", f"must be {known}: {advice}")


_CACHE_MARK = "prompt_cache_breakpoint"

_TEXTS, _OTHER_PARTS = ("input_text", "output_text"), ("refusal", "input_image", "input_file", "input_audio")


def _translate_content(item: JsonObject, name: str, within: str, kinds: Sequence[str]) -> str | list[dict[str, Any]]:
    """Translate a content whose parts are of some kinds; a single text becomes a string, which all servers accept."""
    value = item.get(name)
    if isinstance(value, str):
        return value
    if value is None:
        raise invalid_field(f"{within}{name}", "must be a text, or a list of parts")
    parts = []
    for where, part in _read_objects(item, name, within):
        if part.get("type") not in kinds:
            raise _unsupported(f"{where}.type", f"must be one of {', '.join(kinds)}")
        marks = {_CACHE_MARK: part[_CACHE_MARK]} if part.get(_CACHE_MARK) is not None else {}
        parts.append(_translate_part(part, f"{where}.") | marks)
    alone = len(parts) == 1 and parts[0].keys() == {"type", "text"}
    return parts[0]["text"] if alone else parts


def _translate_part(part: JsonObject, within: str) -> dict[str, Any]:
    """Translate a part of a message."""
    match part["type"]:
        case "refusal":
            return {"type": "refusal", "refusal": _read_text(part, "refusal", within)}
        case "input_image":
            shown = _select_fields(part, ("type", "image_url", "detail", _CACHE_MARK), within)
            detail = {"detail": shown["detail"]} if "detail" in shown else {}
            return {"type": "image_url", "image_url": {"url": _read_text(part, "image_url", within), **detail}}
        case "input_file":
            file = _select_fields(part, ("type", "file_data", "file_id", "filename", _CACHE_MARK), within)
            return {"type": "file", "file": {name: file[name] for name in file if name not in ("type", _CACHE_MARK)}}
        case "input_audio":
            return {"type": "input_audio", "input_audio": _read_typed(part, "input_audio", dict, within) or {}}
        case _:
            return {"type": "text", "text": _read_text(part, "text", within)}


Event = dict[str, Any]
"""An event of a stream."""


_ARGUMENTS = "function_call_arguments"


@dataclass(slots=True)
class _Item:
    """An item of a response: a message, its reasoning, or a function call."""

    index: int
    head: Mapping[str, object]
    """Fields that are not streamed in chunks, such as the id and the type."""
    texts: dict[str, list[str]] = field(default_factory=dict)
    """Pieces of each part by its kind: "output_text", "refusal", "reasoning_text" or, in a call, the arguments."""
    logprobs: list[Event] = field(default_factory=list)
    """Log-probabilities of the text's tokens."""

    def to_json(self, status: str) -> dict[str, Any]:
        """Return the item for a response."""
        if _ARGUMENTS in self.texts:
            return {**self.head, "status": status, "arguments": "".join(self.texts[_ARGUMENTS])}
        return {**self.head, "status": status, "content": [self._part_to_json(kind) for kind in self.texts]}

    def add(self, kind: str, text: str, logprobs: Sequence[Event] = ()) -> Iterator[Event]:
        """Add a chunk to a part, which may be new, and yield its events."""
        if kind not in self.texts:
            self.texts[kind] = []
            yield self._event(kind, "content_part.added", {"part": self._part_to_json(kind)})
        self.texts[kind].append(text)
        self.logprobs += logprobs
        more = {"logprobs": logprobs} if kind == "output_text" else {}
        yield self._event(kind, f"{kind}.delta", {"delta": text, **more})

    def end(self) -> Iterator[Event]:
        """Yield the events that end each part."""
        for kind in self.texts:
            if kind == _ARGUMENTS:
                function = {"name": self.head["name"], "arguments": "".join(self.texts[kind])}
                yield self._event(kind, f"{kind}.done", function)
                continue
            part = self._part_to_json(kind)
            content = {name: value for name, value in part.items() if name not in ("type", "annotations")}
            yield self._event(kind, f"{kind}.done", content)
            yield self._event(kind, "content_part.done", {"part": part})

    def _part_to_json(self, kind: str) -> dict[str, Any]:
        more = {"annotations": [], "logprobs": [*self.logprobs]} if kind == "output_text" else {}
        return {"type": kind, "refusal" if kind == "refusal" else "text": "".join(self.texts[kind]), **more}

    def _event(self, kind: str, event: str, content: Event) -> Event:
        where = {"item_id": self.head["id"], "output_index": self.index}
        where |= {} if kind == _ARGUMENTS else {"content_index": [*self.texts].index(kind)}
        return {"type": f"response.{event}", **where, **content}


#: Fields of a chunk that a response has in another form, or not at all.
_CHUNK_ONLY = frozenset({"id", "object", "created", "model", "choices", "usage", "rcjax", "obfuscation", "created_at"})

#: The type of the item of each kind of part.
_ITEM_TYPES = {"output_text": "message", "refusal": "message", "reasoning_text": "reasoning"}

_PREFIXES = {"message": "msg", "reasoning": "rs"}  # prefixes of the ids of items


@dataclass(slots=True)
class ResponseAssembly:
    """A response, assembled from the chunks of a completion.

    >>> assembly = ResponseAssembly({})
    >>> head = {"id": "1", "created": 1, "model": "small"}
    >>> choice = {"index": 0, "delta": {"content": "B"}, "finish_reason": "length"}
    >>> [event["type"] for event in assembly.add({**head, "choices": [choice]})][:3]
    ['response.created', 'response.in_progress', 'response.output_item.added']
    >>> assembly.ending, [event["type"] for event in assembly.end()][-1]
    ('incomplete', 'response.incomplete')
    """

    request_fields: Mapping[str, object]
    """Fields of the request that the response repeats."""
    _id: str = ""
    """The completion's id."""
    _head: dict[str, object] = field(default_factory=dict)
    _items: dict[str | int, _Item] = field(default_factory=dict)
    """Items with text, by their type, and calls, by their number."""
    _finish_reason: object = None
    _last: dict[str, object] = field(default_factory=dict)
    """The latest `usage`, and the latest report of the cascade."""

    @property
    def ending(self) -> str:
        """The final status: "completed" or "incomplete"."""
        return "completed" if self._reason is None else "incomplete"

    @property
    def _reason(self) -> str | None:
        """The reason why the response is incomplete; None if it is complete."""
        if is_withheld({"finish_reason": self._finish_reason}):
            return "content_filter"
        return "max_output_tokens" if self._finish_reason == "length" else None

    def add(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        """Add a chunk, and yield its events."""
        begins = not self._head
        self._head |= {name: value for name, value in chunk.items() if name not in _CHUNK_ONLY}
        if begins:
            self._id = chunk["id"]
            self._head |= {"id": f"resp_{self._id}", "created_at": chunk["created"], "model": chunk["model"]}
            for kind in ("created", "in_progress"):
                yield {"type": f"response.{kind}", "response": self.to_json("in_progress")}
        self._last |= {name: chunk[name] for name in ("usage", "rcjax") if chunk.get(name) is not None}
        for choice in chunk["choices"]:
            if choice.get("index", 0) == 0:
                yield from self._add_delta(choice.get("delta"), choice.get("logprobs"))
                self._finish_reason = raw_finish_reason(choice) or self._finish_reason

    def end(self) -> Iterator[Event]:
        """Yield the events that end each item, and the event with the whole response."""
        status = self.ending
        for item in self._items.values():
            yield from item.end()
            yield self._item_event("done", item, status)
        yield {"type": f"response.{status}", "response": self.to_json(status)}

    def fail(self, problem: ApiError) -> Iterator[Event]:
        """Yield the events of a failure: an error, which clients raise, and the failed response if one was begun."""
        error = problem.to_json()["error"]
        yield {**error, "type": "error", "error": error}
        if not self._head:
            return
        code = "rate_limit_exceeded" if problem.status == 429 else "server_error"  # the codes of a failed response
        yield {"type": "response.failed", "response": self.to_json("failed") | {"error": error | {"code": code}}}

    def to_json(self, status: str) -> dict[str, Any]:
        """Return the response with this status."""
        reason = self._reason if status == "incomplete" else None
        item_status = "incomplete" if status == "failed" else status
        return {
            **self._head,
            **self.request_fields,
            "object": "response",
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": None,
            "incomplete_details": None if reason is None else {"reason": reason},
            "output": [item.to_json(item_status) for item in self._items.values()],
            "usage": _translate_usage(self._last.get("usage")),
            **({"rcjax": self._last["rcjax"]} if "rcjax" in self._last else {}),
        }

    def _add_delta(self, delta: Any, logprobs: Any) -> Iterator[Event]:
        fields = as_object(delta)
        tokens = _response_tokens(token_content(logprobs))
        reasoning = next(filter(None, map(fields.get, REASONING)), None)
        yield from self._add_text("reasoning_text", reasoning, [])
        yield from self._add_text("output_text", fields.get("content"), tokens)
        yield from self._add_text("refusal", fields.get("refusal"), [])
        for call in objects_in(fields.get("tool_calls")):
            yield from self._add_call(call)

    def _add_text(self, kind: str, content: Any, tokens: list[Event]) -> Iterator[Event]:
        text, item = choice_text({"message": {"content": content}}), _ITEM_TYPES[kind]
        if not text and not (tokens and item in self._items):  # the last tokens may have no text
            return
        if item not in self._items:
            more = {"role": "assistant"} if item == "message" else {"summary": []}
            yield from self._add_item(item, {"id": f"{_PREFIXES[item]}_{self._id}", "type": item, **more})
        yield from self._items[item].add(kind, text, tokens)

    def _add_call(self, call: JsonObject) -> Iterator[Event]:
        function = call.get("function")
        if not isinstance(function, Mapping):
            return
        number = call.get("index", 0)
        number = number if isinstance(number, int) else 0
        if number not in self._items:
            item_id, call_id, name = f"fc_{self._id}_{len(self._items)}", call.get("id"), function.get("name")
            call_id = call_id if isinstance(call_id, str) and call_id else f"call_{item_id}"
            name = name if isinstance(name, str) else ""
            head = {"id": item_id, "type": "function_call", "call_id": call_id, "name": name}
            yield from self._add_item(number, head, {_ARGUMENTS: []})
        arguments = function.get("arguments")
        if isinstance(arguments, str) and arguments:
            yield from self._items[number].add(_ARGUMENTS, arguments)

    def _add_item(self, key: str | int, head: Event, texts: dict[str, list[str]] | None = None) -> Iterator[Event]:
        self._items[key] = _Item(len(self._items), head, {} if texts is None else texts)
        yield self._item_event("added", self._items[key], "in_progress")

    @staticmethod
    def _item_event(kind: str, item: _Item, status: str) -> Event:
        event = f"response.output_item.{kind}"
        return {"type": event, "output_index": item.index, "item": item.to_json(status)}


def _response_tokens(content: Any, *, likeliest: bool = True) -> list[Event]:
    """Return the valid tokens of a text, with their log-probabilities and the likeliest tokens of each.

    A response needs the bytes of each token: if a server sends none, the bytes of its text are used.
    """
    tokens = []
    for token in objects_in(content):
        text = token.get("token")
        if isinstance(text, str) and type(token.get("logprob")) in (int, float):
            octets = token.get("bytes")
            octets = octets if isinstance(octets, list) else [*text.encode("utf-8", "replace")]
            more = {"top_logprobs": _response_tokens(token.get("top_logprobs"), likeliest=False)} if likeliest else {}
            tokens.append({"token": text, "logprob": token["logprob"], "bytes": octets, **more})
    return tokens


def _translate_usage(usage: Any) -> dict[str, Any] | None:
    """Return the usage of a completion under the names of a response, and its other fields unchanged.

    >>> _translate_usage({"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9})["input_tokens_details"]
    {'cached_tokens': 0, 'cache_write_tokens': 0}
    """
    if not isinstance(usage, Mapping):
        return None
    read, written = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    return {
        **{name: value for name, value in usage.items() if not name.startswith(("prompt_tokens", "completion_tokens"))},
        "input_tokens": usage.get("prompt_tokens"),
        "output_tokens": usage.get("completion_tokens"),
        "input_tokens_details": _read_counts(read, ("cached_tokens", "cache_write_tokens")),
        "output_tokens_details": _read_counts(written, ("reasoning_tokens",)),
    }


def _read_counts(details: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the details of a count of tokens; each of the names has 0 if its value is not a whole number."""
    counts = as_object(details)
    return {**counts, **{name: counts[name] if type(counts.get(name)) is int else 0 for name in names}}


def _name_as_sent(problem: ApiError) -> ApiError:
    """Return the error of an invalid value with the field's name in responses, in place of its name in completions."""
    field = problem.param
    if field is None or problem.code != "invalid_value":
        return problem
    sent = "max_output_tokens" if field == "max_completion_tokens" else field.replace("].function", "]")
    return invalid_field(sent, problem.message.removeprefix(f"{field} "))


class ResponsesResponder(Responder):
    """Sends the answer to one request in the format of responses."""

    def __init__(self, send: Send) -> None:
        super().__init__(send)
        self._assembly = ResponseAssembly({})
        self._events = 0  # events sent

    def read(self, body: bytes) -> ChatRequest:
        """Read the request in a body as a request for a completion. Raises ApiError for an invalid request."""
        request, repeated = read_response_request(body)
        self._assembly = ResponseAssembly(repeated)
        return request

    async def send_document(self, document: Mapping[str, Any], headers: Mapping[str, str], status: int = 200) -> None:
        """Send a completion as a response, or an error unchanged."""
        if status == 200:
            first = [{**choice, "index": 0} for choice in document["choices"][:1]]
            for chunk in split_into_chunks({**document, "choices": first}, includes_usage=True):
                for _ in self._assembly.add(chunk):
                    pass
            document = self._assembly.to_json(self._assembly.ending)
        await super().send_document(document, headers, status)

    async def send_event(self, document: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """Send the events of a chunk; the headers go before the first event."""
        await self._send_events(self._assembly.add(document), headers)

    async def end_stream(self) -> None:
        """End a stream with the complete response."""
        if not self.is_complete:
            await self._send_events(self._assembly.end())

    async def send_error(self, problem: ApiError, headers: Mapping[str, str]) -> None:
        """Send an error in place of an answer, or at the end of a stream."""
        problem = _name_as_sent(problem)
        if not self.has_begun or self.is_complete or self._is_document:
            await super().send_error(problem, headers)
            return
        error, *rest = self._assembly.fail(problem)
        try:
            await self._send_events([error, *rest])
        except ApiError:  # the answer so far cannot be encoded
            await self._send_events([error])

    async def _send_events(self, events: Iterable[Event], headers: Mapping[str, str] | None = None) -> None:
        """Send events, after the headers if these are the first; events without headers are the last."""
        parts = []
        for number, event in enumerate(events, self._events):
            data = encode_json({**event, "sequence_number": number})
            parts.append(b"event: " + event["type"].encode() + b"\ndata: " + data + b"\n\n")
        self._events += len(parts)
        if headers is not None and not self.has_begun:
            await self._start(200, {**STREAM, **headers})
        if parts or headers is None:
            await self._body(b"".join(parts), more=headers is not None)
