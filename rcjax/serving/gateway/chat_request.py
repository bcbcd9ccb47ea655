"""A request for a completion: what is asked, by which options, and whether an answer to it can be judged."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openai.types.chat import completion_create_params

from rcjax.serving.gateway.api_errors import ApiError

#: Fields of a request that the client of OpenAI has a parameter for; others go along in its `extra_body`.
_PARAMETERS = frozenset(completion_create_params.CompletionCreateParamsBase.__annotations__)

#: Fields that the gateway answers to by itself.
_OWN = frozenset({"model", "messages", "stream"})


#: What a policy says nothing of, by field: an answer to such a request is given by one model, and not judged.
_UNJUDGED: Mapping[str, Callable[[Any], bool]] = {
    "tools": bool,
    "functions": bool,
    "tool_choice": lambda value: value not in (None, "none"),
    "function_call": lambda value: value not in (None, "none"),
    "n": lambda value: value is not None and value != 1,
    "response_format": lambda value: value is not None and value != {"type": "text"},
    "modalities": lambda value: value not in (None, ["text"]),
    "audio": lambda value: value is not None,
    "prediction": lambda value: value is not None,
    "web_search_options": lambda value: value is not None,
}


#: Parts of messages that are no text.
_PARTS = {"image_url": "images", "input_audio": "audio", "file": "files"}

_UNKNOWN = "unknown parts"


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request, checked."""

    model: str
    """The name of a policy, or of a model."""
    messages: Sequence[Mapping[str, Any]]
    """The conversation."""
    fields: Mapping[str, Any]
    """The other fields."""
    stream: bool
    """The answer is to come in pieces."""
    counted: bool
    """The last piece is to tell the tokens."""
    unjudged: tuple[str, ...]
    """What is in it that no policy judges."""

    @property
    def logprobs(self) -> bool:
        """Whether the client asks for log-probabilities."""
        return self.fields.get("logprobs") is True

    @property
    def top_logprobs(self) -> int:
        """How many of the likeliest tokens it asks for."""
        return self.fields.get("top_logprobs") or 0

    def options(self, *, judged: bool, checked: Container[str] = ()) -> dict[str, Any]:
        """The fields as options of the client of OpenAI: of a judged request, without those that are as always.

        Those that are `checked` go along.

        >>> read_request(b'{"model": "m", "messages": [{}], "seed": 1, "top_k": 2}').options(judged=True)
        {'seed': 1, 'extra_body': {'top_k': 2}}
        """
        fields = {name: value for name, value in self.fields.items() if value is not None}
        if judged:
            usual = ("n", "logprobs", "top_logprobs", *_UNJUDGED) if not self.logprobs else ("n", *_UNJUDGED)
            fields = {name: value for name, value in fields.items() if name not in usual or name in checked}
        options = {name: value for name, value in fields.items() if name in _PARAMETERS}
        others = {name: value for name, value in fields.items() if name not in _PARAMETERS}
        return options | ({"extra_body": others} if others else {})


def read_request(body: bytes) -> ChatRequest:
    """The request in a body. Raises ApiError for what cannot be one."""
    return chat_request(read_object(body))


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body. Raises ApiError for what is none, or has too many parts."""
    data = _parsed(body)
    if not isinstance(data, dict):
        raise ApiError(400, "the body must be a JSON object", "invalid_json")
    return data


def chat_request(data: Mapping[str, Any]) -> ChatRequest:
    """A request from its fields. Raises ApiError for those that cannot be."""
    model, messages = data.get("model"), data.get("messages")
    if not isinstance(model, str) or not model:
        raise invalid("model", "must be a text: the name of a policy, or of a model; GET /v1/models lists them")
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        raise invalid("messages", "must be a list of messages, each an object, not an empty one")
    _check_types(data)
    options = data.get("stream_options")
    return ChatRequest(
        model=model,
        messages=messages,
        fields={name: value for name, value in data.items() if name not in _OWN},
        stream=bool(data.get("stream")),
        counted=bool(options and options.get("include_usage")),
        unjudged=tuple(dict.fromkeys(_unjudged(data, messages))),
    )


def _parsed(body: bytes) -> Any:
    """The JSON of a body: none of what Python reads besides, which no model could be sent."""
    _require_simple(body)
    try:
        data = _DECODER.decode(body.decode("utf-8-sig"))
        if _SURROGATE.search(body):
            json.dumps(data, ensure_ascii=False).encode()  # where they are no pairs, they are no text
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not JSON: send a JSON object, in UTF-8", "invalid_json") from None
    return data


_MOST_MARKS, _DEEPEST = 100_000, 100

#: A text to its end, or to that of the body, or what a list or object begins, goes on and ends with.
_MARKS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{}\],]', re.DOTALL)


def _require_simple(body: bytes) -> None:
    """Refuse a body of very many parts, or nested very deep, before it is parsed: nobody else is answered meanwhile.

    Raises ApiError: 413 for too many texts, lists, objects and commas, 400 for too many within each other.
    """
    opened = body.count(b"[") + body.count(b"{")
    if opened <= _DEEPEST and opened + body.count(b",") <= _MOST_MARKS // 2:  # texts are as many at most
        return
    depth = 0
    for number, mark in enumerate(_MARKS.finditer(body), 1):
        first = body[mark.start()]
        depth += (first in b"[{") - (first in b"]}")
        if number > _MOST_MARKS:
            what = f"the request has more than {_MOST_MARKS:,} parts (texts, lists, objects): send fewer"
            raise ApiError(413, what, "request_too_complex")
        if depth > _DEEPEST:
            raise ApiError(400, f"the body is nested deeper than {_DEEPEST}", "invalid_json")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)  # the constants are NaN and the infinities

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def _check_types(data: Mapping[str, Any]) -> None:
    """Refuse fields that the gateway itself reads and that are of another kind."""
    for name in ("stream", "logprobs"):
        if not isinstance(data.get(name), bool | None):
            raise invalid(name, "must be true or false")
    for name, least in (("n", 1), ("top_logprobs", 0)):
        value = data.get(name)
        if value is not None and (type(value) is not int or not least <= value <= 128):
            raise invalid(name, f"must be a whole number from {least} on")
    options = data.get("stream_options")
    if not isinstance(options, dict | None):
        raise invalid("stream_options", "must be an object")
    if options is not None and not data.get("stream"):
        raise invalid("stream_options", "goes with stream=true only")
    if data.get("top_logprobs") and not data.get("logprobs"):
        raise invalid("top_logprobs", "goes with logprobs=true only")


def invalid(field: str, problem: str, code: str = "invalid_value") -> ApiError:
    """The error of a field, by the words that follow its name."""
    return ApiError(400, f"{field} {problem}", code, field)


def _unjudged(data: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What is in a request that no policy judges, in words."""
    for name, is_there in _UNJUDGED.items():
        if is_there(data.get(name)):
            yield name
    for message in messages:
        if message.get("role") in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
            yield "tools"
        if message.get("audio"):
            yield "audio"
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if kind not in ("text", "refusal"):
                yield _PARTS.get(kind, _UNKNOWN) if isinstance(kind, str) else _UNKNOWN
