"""A request for a completion: what is asked, by which options, whether an answer to it can be judged; and its errors.

They have the form and the status codes of OpenAI's interface, whose clients try again on 408, 409, 429 and from 500 on;
nothing of headers, prompts or what a server said is quoted.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import uuid
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openai.types.chat import completion_create_params
from starlette.datastructures import Headers

from rcjax.policy.signals.request_form import PLAIN, form_of
from rcjax.serving.cascade import Result
from rcjax.serving.pace import LIMITS, most_written


@dataclass(eq=False)
class ApiError(Exception):
    """A request that gets an error for an answer."""

    status: int
    """Of HTTP."""
    message: str
    """One line for people."""
    code: str | None = None
    """One word for programs."""
    param: str | None = None
    """The field that it is about."""
    wait: float | None = None
    """Seconds after which to try again."""
    lasting: bool = False
    """Trying again will not help, whatever the status."""

    def __str__(self) -> str:
        return self.message

    @property
    def headers(self) -> dict[str, str]:
        """Headers that go with it: when to try again, and whether to (which clients of OpenAI read)."""
        wait = {} if self.wait is None else {"retry-after": str(max(1, math.ceil(self.wait)))}
        return wait | ({"x-should-retry": "false"} if self.lasting else {})

    def to_json(self) -> dict[str, Any]:
        """The body of the answer.

        >>> ApiError(404, "no such model", "model_not_found", "model").to_json()["error"]["type"]
        'invalid_request_error'
        """
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def invalid(field: str, problem: str, code: str = "invalid_value") -> ApiError:
    """The error of a field, by the words that follow its name."""
    return ApiError(400, f"{field} {problem}", code, field)


_LONGEST_NAME = 64  # of a field that a message repeats

_CLIENTS = (400, 413, 422)  # statuses of an endpoint that are the request's own fault

_GATEWAYS = (401, 402, 403, 404)  # that are the gateway's: its keys, its credit, its names of models


def upstream_error(result: Result) -> ApiError:
    """The error of a request that no model answered: by the failure of the last one."""
    failure, failures = result.failure, "; ".join(f"{call.model}: {call.error}" for call in result.calls if call.error)
    problem = f"no model answered: {failures}"
    if failure is None:
        return ApiError(504, "no model could answer in time", "deadline_exceeded")
    if failure.status in _CLIENTS:
        return ApiError(failure.status or 400, problem, failure.code or "upstream_refused")
    if failure.status == 429:
        return ApiError(429, problem, failure.code or "upstream_rate_limited", wait=failure.wait or 1.0)
    if failure.passing and failure.status is None and "timed out" in problem:
        return ApiError(504, problem, "upstream_timed_out")
    lasting = failure.status in _GATEWAYS
    return ApiError(
        502, problem, failure.code or "upstream_failed", wait=None if lasting else failure.wait, lasting=lasting
    )


def fault_within(problem: Exception) -> ApiError:
    """Log a fault of rcjax's own, whose message may quote what was asked; what the client is told of it."""
    traceback = problem if os.environ.get("RCJAX_TRACEBACK") else None  # its lines hold no values, but a message may
    where = logging.getLogger("rcjax.serving")
    where.error("a request failed within rcjax: %s", type(problem).__name__, exc_info=traceback)
    return ApiError(500, "rcjax itself failed: its log says where", "internal_error")


_QUERY, _SEGMENT = "x-rcjax-query", "x-rcjax-segment"


def query_of(headers: Headers, client: str | None = None) -> str:
    """The id of a query: the client's own, for labels that come later, or a random one; after the client's name.

    So no client can take the id of another's query.
    """
    value = headers.get(_QUERY, uuid.uuid4().hex)
    if not re.fullmatch(r"[\x21-\x7e]{1,200}", value):
        raise invalid(_QUERY, "must be 1 to 200 visible characters without spaces")
    return value if client is None else f"{client}/{value}"


def segment_of(headers: Headers) -> str | None:
    """What kind of query it is, as the client says, for policies with cascades for segments; None if it does not."""
    value = headers.get(_SEGMENT, "").strip()
    if len(value) > 200:
        raise invalid(_SEGMENT, "must have 200 characters at most")
    return value or None


def id_headers(query: str) -> dict[str, str]:
    """Headers of an answer, or of an error, by which the query is found in the call log.

    >>> id_headers("q1")
    {'x-request-id': 'q1', 'x-rcjax-query': 'q1'}
    """
    return {"x-request-id": query, _QUERY: query}  # clients of OpenAI tell the first with an error


#: Fields of a request that the client of OpenAI has a parameter for; others go along in its `extra_body`.
_PARAMETERS = frozenset(completion_create_params.CompletionCreateParamsBase.__annotations__)

_NAMES = """
    add_generation_prompt cache_prompt chat_template_kwargs continue_final_message documents do_sample dynatemp_exponent
    dynatemp_range enable_thinking grammar guided_choice guided_grammar guided_json guided_regex ignore_eos
    include_reasoning include_stop_str_in_output json_schema length_penalty min_p min_tokens mirostat mirostat_eta
    mirostat_mode mirostat_tau n_probs penalize_newline penalize_nl prompt_logprobs reasoning reasoning_format
    repeat_last_n repeat_penalty repetition_penalty safe_prompt safety_settings separate_reasoning skip_special_tokens
    spaces_between_special_tokens stop_token_ids stream_reasoning structured_outputs tfs_z thinking top_a top_k
    truncate_prompt_tokens typical_p
"""

#: Fields that clients may send: OpenAI's but for the tier, which says what an answer costs, and those of other servers
#: that say how an answer is drawn. Others may name other models, addresses or keys.
FIELDS = (_PARAMETERS - {"service_tier"}) | frozenset(_NAMES.split())

#: Fields that the gateway answers to by itself.
_OWN = frozenset({"model", "messages", "stream"})


#: What a policy says nothing of, by field: an answer to such a request is given by one model, and not judged.
_UNJUDGED: Mapping[str, Callable[[Any], bool]] = {
    "tools": bool,
    "functions": bool,
    "tool_choice": lambda value: value not in (None, "none", "auto"),  # tools are a reason of their own
    "function_call": lambda value: value not in (None, "none", "auto"),
    "n": lambda value: value is not None and value != 1,
    "response_format": lambda value: value is not None and value != {"type": "text"},
    "modalities": lambda value: value not in (None, ["text"]),
    "audio": lambda value: value is not None,
    "prediction": lambda value: value is not None,
    "web_search_options": lambda value: value is not None,
}


#: What a policy says nothing of whose log had requests of other forms, in words.
OTHER_TOOLS, OTHER_SCHEMA, NO_TOOLS, TOOL_RESULT = "other tools", "another schema", "no tools", "a tool's result"

#: Tools that act while a model answers, such as a search, and must not be asked twice.
PROVIDER_TOOLS = "provider tools"

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
    """What is in it that no policy judges but by a check."""

    @property
    def form(self) -> str:
        """What it asks of the form of its answer, as a digest."""
        return form_of(self.messages, self.fields)

    def unknown_form(self, known: Container[str]) -> str:
        """Which part of its form is none of the known ones, in words."""
        if form_of((), self.fields) in known:
            return TOOL_RESULT
        return OTHER_TOOLS if self.fields.get("tools") else OTHER_SCHEMA if self.form != PLAIN else NO_TOOLS

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

        >>> chat_request({"model": "m", "messages": [{}], "seed": 1, "top_k": 2}).options(judged=True)
        {'seed': 1, 'extra_body': {'top_k': 2}}
        """
        fields = {name: value for name, value in self.fields.items() if value is not None}
        if judged:
            usual = ("n", "logprobs", "top_logprobs", *_UNJUDGED) if not self.logprobs else ("n", *_UNJUDGED)
            fields = {name: value for name, value in fields.items() if name not in usual or name in checked}
        options = {name: value for name, value in fields.items() if name in _PARAMETERS}
        others = {name: value for name, value in fields.items() if name not in _PARAMETERS}
        return options | ({"extra_body": others} if others else {})


def require_permitted(request: ChatRequest, fields: Container[str], tokens: int | None) -> None:
    """Refuse a request with a field that clients may not send, or for more tokens than its answers may have.

    Args:
        request: of a client.
        fields: that may be sent besides `FIELDS`.
        tokens: of all answers to it; None for any number.

    Raises ApiError.
    """
    for name, value in request.fields.items():
        if value is not None and name not in FIELDS and name not in fields:
            what = "is no field that this service passes on: its operator can permit it (--allow-field)"
            raise invalid(name if len(name) <= _LONGEST_NAME else "a field", what, "unsupported_parameter")
    if tokens is None:
        return
    most, samples = most_written(request.fields), request.fields.get("n") or 1
    for name in LIMITS:
        if name in request.fields and most is not None and most > tokens:
            raise invalid(name, f"must be at most {tokens // samples:,}, as all answers may have {tokens:,} tokens")
    if most is None and samples > 1:
        raise invalid("n", f"goes with max_tokens, as all answers may have {tokens:,} tokens together")


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body: nothing that Python reads besides, which no model could be sent.

    Raises ApiError for what is none, or has too many parts.
    """
    _require_simple(body)
    try:
        data = _DECODER.decode(body.decode("utf-8-sig"))
        if _SURROGATE.search(body):
            json.dumps(data, ensure_ascii=False).encode()  # where they are no pairs, they are no text
        if not isinstance(data, dict):
            raise ValueError
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not JSON: send a JSON object, in UTF-8", "invalid_json") from None
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
    _check_tools(data)
    options = data.get("stream_options")
    if not isinstance(options, dict | None):
        raise invalid("stream_options", "must be an object")
    if options is not None and not data.get("stream"):
        raise invalid("stream_options", "goes with stream=true only")
    if data.get("top_logprobs") and not data.get("logprobs"):
        raise invalid("top_logprobs", "goes with logprobs=true only")


def _check_tools(data: Mapping[str, Any]) -> None:
    """Refuse tools, a choice of one, and a form of the answer that are none."""
    tools = data.get("tools")
    if not isinstance(tools, list | None) or not all(isinstance(tool, dict) for tool in tools or ()):
        raise invalid("tools", "must be a list of objects")
    for index, tool in enumerate(tools or ()):
        function = tool.get("function")
        if tool.get("type") != "function":
            continue
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise invalid(f"tools[{index}].function", "must be an object with a name")
        if not isinstance(function.get("parameters"), dict | None):
            raise invalid(f"tools[{index}].function.parameters", "must be an object: a JSON schema")
    if not isinstance(data.get("tool_choice"), str | dict | None):
        raise invalid("tool_choice", "must be a text or an object")
    if not isinstance(data.get("response_format"), dict | None):
        raise invalid("response_format", "must be an object")


def _unjudged(data: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What is in a request that no policy judges, in words."""
    for name, is_there in _UNJUDGED.items():
        if is_there(data.get(name)):
            yield name
    if any(tool.get("type") != "function" for tool in data.get("tools") or ()):
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
                yield _PARTS.get(kind, _UNKNOWN) if isinstance(kind, str) else _UNKNOWN
