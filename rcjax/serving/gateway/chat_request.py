"""Requests: the arrival of bodies within a worker's limits, the fields, and the reasons not to judge the answer."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from openai.types.chat import completion_create_params
from starlette.datastructures import Headers
from starlette.types import Receive

from rcjax.policy.signals.answers import PLAIN_FORM, ROLES, request_form_of, strict_json
from rcjax.serving.gateway.clients import ApiError, invalid_field
from rcjax.serving.models_file import SERVER_OPTIONS
from rcjax.serving.openai_client import RequestMemory, request_memory
from rcjax.serving.usage import TOKEN_LIMITS, reply_samples, token_limit

_MAX_NAME_LENGTH = 64  # characters of a field's name that a message repeats

_QUERY, _SEGMENT = "x-rcjax-query", "x-rcjax-segment"


def read_query_id(headers: Headers, client: str | None) -> str:
    """Return the id of a query: the id in the client's header, for labels that come later, or a random id.

    The client's name goes in front, so that no client can use the ids of another client.
    """
    value = headers.get(_QUERY, uuid.uuid4().hex)
    if not re.fullmatch(r"[\x21-\x7e]{1,200}", value):
        raise invalid_field(_QUERY, "must be 1 to 200 visible characters without spaces")
    return value if client is None else f"{client}/{value}"


def read_segment(headers: Headers) -> str | None:
    """Return the segment that the client's header names, for policies with segments; None without the header."""
    value = headers.get(_SEGMENT, "").strip()
    if len(value) > 200:
        raise invalid_field(_SEGMENT, "must have 200 characters at most")
    return value or None


def id_headers(query: str) -> dict[str, str]:
    """Return the headers of an answer or an error that name its query, as the call log does.

    >>> id_headers("q1")
    {'x-request-id': 'q1', 'x-rcjax-query': 'q1'}
    """
    return {"x-request-id": query, _QUERY: query}  # OpenAI's clients show the first with an error


#: Fields of a request with a parameter in OpenAI's client; other fields go into its `extra_body`.
_PARAMETERS = frozenset(completion_create_params.CompletionCreateParamsBase.__annotations__)

#: Fields of servers for reasoning, and for the form and the sources of an answer.
_SERVER_FIELDS = {"chat_template_kwargs", "documents", "grammar", "guided_choice", "guided_grammar", "guided_json"}
_SERVER_FIELDS |= {"guided_regex", "include_reasoning", "json_schema", "reasoning", "safety_settings"}
_SERVER_FIELDS |= {"structured_outputs", "thinking"}

#: Fields that change the cost of an answer beside its tokens: the tier, and searches, which no price covers.
_PRICED_FIELDS = frozenset({"service_tier", "web_search_options"})

#: Fields that clients may send: OpenAI's except `_PRICED_FIELDS`, and other servers' fields that change how one answer
#: is written. Further fields may name other models, addresses or keys.
PERMITTED_FIELDS = (_PARAMETERS - _PRICED_FIELDS) | SERVER_OPTIONS | _SERVER_FIELDS

#: Fields that the gateway itself handles.
_HANDLED_FIELDS = frozenset({"model", "messages", "stream"})


#: Fields that ordinary signals cannot judge, each with a test of whether its value is set.
_NOT_JUDGED: Mapping[str, Callable[[Any], bool]] = {
    "tools": bool,
    "functions": bool,
    # A choice of tools means nothing without tools, and tools are a reason by themselves.
    "tool_choice": lambda value: value not in (None, "none", "auto"),
    "function_call": lambda value: value not in (None, "none", "auto"),
    "n": lambda value: value is not None and value != 1,
    "response_format": lambda value: value is not None and value != {"type": "text"},
    "modalities": lambda value: value not in (None, ["text"]),
    "audio": lambda value: value is not None,
    "prediction": lambda value: value is not None,
    "web_search_options": lambda value: value is not None,
}


#: Reasons not to judge the answer to a request whose form was not in the policy's log, in words.
OTHER_TOOLS, OTHER_SCHEMA, NO_TOOLS, TOOL_RESULT = "other tools", "another schema", "no tools", "a tool's result"

#: Tools that act while a model answers, such as a search, and must not run twice.
PROVIDER_TOOLS = "provider tools"

#: Types of tools that the client runs: they cost tokens alone.
_CLIENT_TOOLS = ("function", "custom")

#: Parts of messages that are no text.
_PART_NAMES = {"image_url": "images", "input_audio": "audio", "file": "files"}

_UNKNOWN_PART = "unknown parts"


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for a completion whose fields have been checked."""

    model: str
    """The name of a policy or a model."""
    messages: Sequence[Mapping[str, object]]
    """The conversation."""
    fields: Mapping[str, object]
    """The other fields."""
    stream: bool
    """Whether the answer is streamed."""
    includes_usage: bool
    """Whether a stream ends with a chunk that has the usage."""
    parts_not_judged: tuple[str, ...]
    """Parts of the request, in words, because of which no policy judges the answer without a check."""

    @property
    def request_form(self) -> str:
        """A digest of the request's tools and schema, which decide the form of the answer."""
        return request_form_of(self.messages, self.fields)

    def describe_unknown_form(self, known: Container[str]) -> str:
        """Describe the part of the form by which it differs from the known forms."""
        if request_form_of((), self.fields) in known:
            return TOOL_RESULT
        if self.fields.get("tools"):
            return OTHER_TOOLS
        return OTHER_SCHEMA if self.request_form != PLAIN_FORM else NO_TOOLS

    @property
    def logprobs(self) -> bool:
        """Whether the client wants log-probabilities."""
        return self.fields.get("logprobs") is True

    @property
    def top_logprobs(self) -> int:
        """Number of likeliest tokens that the client wants."""
        return cast(int, self.fields.get("top_logprobs") or 0)

    def options(self, *, judged: bool, checked: Container[str] = ()) -> dict[str, Any]:
        """Return the fields as options of OpenAI's client.

        For a judged answer, leave out `n`, the fields of log-probabilities if the client wants none, and the fields of
        `_NOT_JUDGED` that are not in `checked`: a judged request has only their default values.

        >>> request = {"model": "m", "messages": [{"role": "user"}], "seed": 1, "top_k": 2}
        >>> parse_chat_request(request).options(judged=True)
        {'seed': 1, 'extra_body': {'top_k': 2}}
        """
        fields = {name: value for name, value in self.fields.items() if value is not None}
        if judged:
            dropped = ("n", *_NOT_JUDGED) if self.logprobs else ("n", "logprobs", "top_logprobs", *_NOT_JUDGED)
            fields = {name: value for name, value in fields.items() if name not in dropped or name in checked}
        options = {name: value for name, value in fields.items() if name in _PARAMETERS}
        others = {name: value for name, value in fields.items() if name not in _PARAMETERS}
        return options | ({"extra_body": others} if others else {})


def read_object(body: bytes) -> dict[str, Any]:
    """Read the JSON object of a body. Python's extensions of JSON are refused, as endpoints cannot read them.

    Raises ApiError for invalid JSON, or too many parts.
    """
    _require_simple(body)
    try:
        data = strict_json(body.decode("utf-8-sig"))
        if _SURROGATE.search(body):
            json.dumps(data, ensure_ascii=False).encode()  # unpaired surrogates are no text
        if not isinstance(data, dict):
            raise ValueError
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not JSON: send a JSON object, in UTF-8", "invalid_json") from None
    return data


def parse_chat_request(data: Mapping[str, Any]) -> ChatRequest:
    """Make a request from its fields. Raises ApiError for invalid fields."""
    model, messages = data.get("model"), data.get("messages")
    if not isinstance(model, str) or not model:
        raise invalid_field("model", "must be a text: the name of a policy, or of a model; GET /v1/models lists them")
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise invalid_field("messages", "must be a list of one or more messages, each an object")
    for index, message in enumerate(messages):
        if message.get("role") not in ROLES:
            raise invalid_field(f"messages[{index}].role", f"must be {', '.join(ROLES[:-1])} or {ROLES[-1]}")
    _require_types(data)
    options = data.get("stream_options")
    return ChatRequest(
        model=model,
        messages=messages,
        fields={name: value for name, value in data.items() if name not in _HANDLED_FIELDS},
        stream=bool(data.get("stream")),
        includes_usage=bool(options and options.get("include_usage")),
        parts_not_judged=tuple(dict.fromkeys(_parts_not_judged(data, messages))),
    )


_MAX_MARKS, _MAX_DEPTH = 100_000, 100  # parts of a body, levels of nesting

#: A text (up to its closing quote or the end of the body), a bracket, a brace or a comma.
_MARKS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{}\],]', re.DOTALL)


def _require_simple(body: bytes) -> None:
    """Refuse a body of very many parts, or nested very deep, before parsing it would block the event loop.

    Raises ApiError: 413 for too many texts, lists, objects and commas, 400 for too deep a nesting.
    """
    opened = body.count(b"[") + body.count(b"{")
    if opened <= _MAX_DEPTH and opened + body.count(b",") <= _MAX_MARKS // 2:  # at most as many texts
        return
    depth = 0
    for number, mark in enumerate(_MARKS.finditer(body), 1):
        first = body[mark.start()]
        depth += (first in b"[{") - (first in b"]}")
        if number > _MAX_MARKS:
            problem = f"the request has more than {_MAX_MARKS:,} parts (texts, lists, objects): send fewer"
            raise ApiError(413, problem, "request_too_complex")
        if depth > _MAX_DEPTH:
            raise ApiError(400, f"the body is nested deeper than {_MAX_DEPTH}", "invalid_json")


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


_MAX_CHOICES = 128  # answers, and alternatives of a token, that a request may ask for

_RANGES = {"temperature": (0, 2), "top_p": (0, 1), "frequency_penalty": (-2, 2), "presence_penalty": (-2, 2)}


def _require_types(data: Mapping[str, Any]) -> None:
    """Refuse an invalid value in a field that the gateway reads, or whose values OpenAI's API fixes.

    An endpoint would refuse it too, once for each model that a policy asks.
    """
    for name in ("stream", "logprobs"):
        if not isinstance(data.get(name), bool | None):
            raise invalid_field(name, "must be true or false")
    for name, lowest in (("n", 1), ("top_logprobs", 0)):
        value = data.get(name)
        if value is not None and (type(value) is not int or not lowest <= value <= _MAX_CHOICES):
            raise invalid_field(name, f"must be a whole number from {lowest} to {_MAX_CHOICES}")
    for name in TOKEN_LIMITS:
        require_token_limit(name, data.get(name))
    for name, (low, high) in _RANGES.items():
        value = data.get(name)
        if value is not None and (type(value) not in (int, float) or not low <= value <= high):
            raise invalid_field(name, f"must be a number from {low} to {high}")
    _require_tools(data)
    options = data.get("stream_options")
    if not isinstance(options, dict | None):
        raise invalid_field("stream_options", "must be an object")
    if options is not None and not data.get("stream"):
        raise invalid_field("stream_options", "needs stream=true")
    if data.get("top_logprobs") and not data.get("logprobs"):
        raise invalid_field("top_logprobs", "needs logprobs=true")


def require_token_limit(name: str, value: object) -> None:
    """Refuse a field that is neither a limit on tokens nor empty with ApiError."""
    if value is not None and (type(value) is not int or value < 1):
        raise invalid_field(name, "must be a whole number above 0")


def _require_tools(data: Mapping[str, Any]) -> None:
    """Refuse malformed tools, tool choices and response formats."""
    tools = data.get("tools")
    if not isinstance(tools, list | None) or not all(isinstance(tool, dict) for tool in tools or ()):
        raise invalid_field("tools", "must be a list of objects")
    for index, tool in enumerate(tools or ()):
        function = tool.get("function")
        if tool.get("type") != "function":
            continue
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise invalid_field(f"tools[{index}].function", "must be an object with a name")
        if not isinstance(function.get("parameters"), dict | None):
            raise invalid_field(f"tools[{index}].function.parameters", "must be an object: a JSON schema")
    if not isinstance(data.get("tool_choice"), str | dict | None):
        raise invalid_field("tool_choice", "must be a text or an object")
    if not isinstance(data.get("response_format"), dict | None):
        raise invalid_field("response_format", "must be an object")


def _parts_not_judged(data: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the parts of a request that no policy judges, in words."""
    for name, is_there in _NOT_JUDGED.items():
        if is_there(data.get(name)):
            yield name
    if any(tool.get("type") not in _CLIENT_TOOLS for tool in data.get("tools") or ()):
        yield PROVIDER_TOOLS
    for message in messages:
        if message.get("role") in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
            yield "tools"
        if message.get("audio"):
            yield "audio"
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if kind not in ("text", "refusal"):
                yield _PART_NAMES.get(kind, _UNKNOWN_PART) if isinstance(kind, str) else _UNKNOWN_PART


def require_permitted_fields(request: ChatRequest, limits: RequestLimits) -> None:
    """Refuse a request with a field or a tool that clients may not send, or with too high a limit on tokens.

    Raises ApiError.
    """
    fields, tokens = limits.allowed_fields, limits.max_tokens
    for name, value in request.fields.items():
        if value is not None and name not in PERMITTED_FIELDS and name not in fields:
            problem = "is not passed on by this service: its operator can permit the field (--allow-field)"
            raise invalid_field(name if len(name) <= _MAX_NAME_LENGTH else "a field", problem, "unsupported_parameter")
    tools = () if "tools" in fields else cast(Sequence[Mapping[str, object]], request.fields.get("tools") or ())
    for index, tool in enumerate(tools):
        if tool.get("type") not in _CLIENT_TOOLS:
            problem = "must be function or custom, as no price covers a provider's tools: the operator can permit them"
            raise invalid_field(f"tools[{index}].type", f"{problem} (--allow-field tools)", "unsupported_parameter")
    if tokens is None:
        return
    answers, reason = reply_samples(request.fields), f"all answers together may have {tokens:,} tokens"
    if answers > tokens:
        raise invalid_field("n", f"must be at most {tokens:,}: {reason}")
    for name in TOKEN_LIMITS:
        if (token_limit({name: request.fields.get(name)}) or 0) > tokens // answers:
            raise invalid_field(name, f"must be at most {tokens // answers:,}: {reason}")
    if answers > 1 and token_limit(request.fields) is None:
        raise invalid_field("n", f"needs max_tokens: {reason}")


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits on the size, number and time of requests."""

    deadline: float = 120.0
    """Seconds for a request, from the arrival of its head to the end of the models' calls."""
    timeout: float = 60.0
    """Seconds for one attempt at a model."""
    retries: int = 2
    """Number of retries of an attempt."""
    concurrency: int = 256
    """Number of requests that one worker answers at a time; further requests are refused with 429."""
    max_body: int = 4_000_000
    """Bytes of the body of one request."""
    max_in_flight: int = 32_000_000
    """Bytes of all requests, shadow queries and their replies at one worker; further requests are refused with 429."""
    body_seconds: float = 30.0
    """Seconds for the arrival of a request's body."""
    drain: float = 30.0
    """Seconds for the end of requests after the signal to stop, and then for the end of shadow calls."""
    max_tokens: int | None = None
    """Tokens that each model may write for a request, over all its answers; None without a limit."""
    allowed_fields: frozenset[str] = frozenset()
    """Fields that clients may send besides `PERMITTED_FIELDS`; "tools" stands for tools that a provider runs."""


class ClientLeftError(Exception):
    """The client has disconnected: nobody waits for the answer."""


_MAX_SHADOW_SHARE = 0.25  # of `max_in_flight`, in bytes of other shadow queries: with more, no shadow query begins


@dataclass(slots=True, eq=False)
class _LimitedMemory(RequestMemory):
    """The bytes of a request and its replies, or of its shadow calls, within the limit for all requests."""

    body_reader: BodyReader
    size: int = 0
    has_ended: bool = False
    was_dropped: bool = False
    """Whether the body was dropped to make room for other requests."""

    def reserve(self, size: int) -> bool:
        """Count more bytes, and return whether there is room for them."""
        if self.body_reader.size + size > self.body_reader.limits.max_in_flight:
            return False
        self.size, self.body_reader.size = self.size + size, self.body_reader.size + size
        return True

    @contextmanager
    def keep(self) -> Iterator[RequestMemory | None]:
        """Keep the bytes for shadow calls, even after the request's end; yield None if many are kept already.

        The size of this request plays no part, so that shadow queries are a fair sample of short and long requests.
        """
        body_reader = self.body_reader
        if sum(kept.size for kept in body_reader.kept) >= _MAX_SHADOW_SHARE * body_reader.limits.max_in_flight:
            yield None
            return
        kept, self.size = _LimitedMemory(body_reader, self.size), 0
        body_reader.kept.add(kept)
        try:
            yield kept
        finally:
            body_reader.kept.remove(kept)
            if self.has_ended:
                body_reader.size -= kept.size
            else:
                self.size += kept.size


class BodyReader:
    """Reads the bodies of requests, and limits the bytes of all requests that a worker reads or answers.

    The bytes of a shadow query count until its shadow calls have ended.

    At most `concurrency` bodies arrive at a time. Beyond that, the client with the most arriving bodies loses the
    oldest of them, so that slow senders block no other client.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self.size = 0
        """Bytes of all requests."""
        self.kept: set[_LimitedMemory] = set()
        """Memory of the shadow calls under way."""
        self._arriving: dict[asyncio.Timeout, tuple[str | None, _LimitedMemory]] = {}

    @contextmanager
    def open_memory(self) -> Iterator[_LimitedMemory]:
        """Count the bytes of a request until its end."""
        memory = _LimitedMemory(self)
        token = request_memory.set(memory)
        try:
            yield memory
        finally:
            request_memory.reset(token)
            self.size -= memory.size
            memory.has_ended = True

    async def read(
        self, receive: Receive, headers: Headers, memory: _LimitedMemory, client: str | None = None
    ) -> bytes:
        """Read the body of a request.

        Args:
            receive: ASGI's function for the parts of the body.
            headers: the request's headers.
            memory: the request's memory, which counts the body's bytes.
            client: the client's name; None if clients have no names.

        Raises ApiError if the body is too large or too slow, or if there is no room beside other requests, and
        ClientLeftError if the client disconnects.
        """
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self.limits.max_body:
            raise self._too_large()
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self.limits.body_seconds) as timer:
                if len(self._arriving) >= self.limits.concurrency:
                    self._drop_oldest()
                self._arriving[timer] = client, memory
                try:
                    while await self._part(receive, parts, memory):
                        pass
                finally:
                    self._arriving.pop(timer, None)
        except TimeoutError:
            if not memory.was_dropped:
                problem = f"the request body took longer than {self.limits.body_seconds:g} s"
                raise ApiError(408, problem, "request_timed_out") from None
        if memory.was_dropped:  # its last part may have come before the timeout
            raise ApiError(429, "too many requests arrive at once: try again", "too_many_requests", retry_after=1.0)
        return b"".join(parts)

    async def _part(self, receive: Receive, parts: list[bytes], memory: _LimitedMemory) -> bool:
        """Read a part of a body, and return whether there are more."""
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        part = message.get("body", b"")
        if memory.size + len(part) > self.limits.max_body:
            raise self._too_large()
        while not memory.reserve(len(part)):
            if not self._drop_oldest(memory):
                problem = "too many bytes of requests at once: try again"
                raise ApiError(429, problem, "too_many_requests", retry_after=1.0)
        parts.append(part)
        return bool(message.get("more_body"))

    def _drop_oldest(self, spared: _LimitedMemory | None = None) -> bool:
        """Drop the oldest body of the client with the most arriving bodies; return whether there was a body to drop.

        The spared body is never dropped.
        """
        arriving = {timer: client for timer, (client, memory) in self._arriving.items() if memory is not spared}
        if not arriving:
            return False
        client, _ = Counter(arriving.values()).most_common(1)[0]
        oldest = next(timer for timer, name in arriving.items() if name == client)
        _, memory = self._arriving.pop(oldest)
        self.size, memory.size, memory.was_dropped = self.size - memory.size, 0, True
        if not oldest.expired():  # its time may be up in the same turn of the event loop
            oldest.reschedule(asyncio.get_running_loop().time())
        return True

    def _too_large(self) -> ApiError:
        limit = f"{self.limits.max_body:,} bytes"
        return ApiError(413, f"the request is larger than {limit}", "request_too_large")
