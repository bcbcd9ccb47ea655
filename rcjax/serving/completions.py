"""Replies of endpoints: reading and checking of chat completions, whole or in chunks.

Standard library only.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rcjax.policy.signals import Reply, SignalError
from rcjax.policy.signals.answers import as_object, format_calls, objects_in
from rcjax.policy.signals.replies import TokensError, read_tokens, token_content
from rcjax.serving.failures import (
    CallError,
    WithheldError,
    body_failure,
    choice_failure,
    finish_reason_of,
    is_withheld,
    malformed_error,
    raw_finish_reason,
    unusable_error,
)
from rcjax.serving.usage import CallUsage, usage_of

MAX_PARTS = 1_000_000  # parts of one reply: log-probabilities of 5,000 tokens, each with twenty others


def read_completion(content: bytes | str, usage: CallUsage) -> Mapping[str, Any]:
    """Read a completion from JSON, without choices that report a failure, and add its tokens to the usage.

    Raises CallError for malformed content, and if no choice is left.
    """
    data = read_json(content)
    fields = as_object(data)
    choices = objects_in(fields.get("choices"))
    usage.add(usage_of(fields), sum(output_bytes(choice.get("message")) for choice in choices))
    if not choices or body_failure(fields) is not None:
        raise unusable_error(data)
    problems = [choice_failure(choice) or _message_problem(choice) for choice in choices]
    failures = [problem for problem in problems if problem is not None]
    if len(failures) == len(choices):
        raise failures[0]
    sound = [choice for choice, problem in zip(number_choices(choices), problems, strict=True) if problem is None]
    return {**fields, "choices": [{**choice, "message": choice.get("message") or _EMPTY} for choice in sound]}


_EMPTY = {"role": "assistant", "content": None}  # the message of a withheld choice that has none


def _message_problem(choice: Mapping[str, Any]) -> CallError | None:
    """Return the failure of a choice without a message, unless a filter withheld it."""
    has_message = isinstance(choice.get("message"), Mapping) or is_withheld(choice)
    return None if has_message else malformed_error("no message")


def read_json(content: bytes | str) -> Any:
    """Read a server's JSON; None if it is invalid, or has so many parts that parsing blocks the event loop for long.

    >>> read_json(b'{"a": [1]}'), read_json("{"), read_json(b"[" * 10_000_000)
    ({'a': [1]}, None, None)
    """
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if data.count(b"[") + data.count(b"{") + data.count(b",") > MAX_PARTS:
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def read_reply(completion: Mapping[str, Any]) -> Reply:
    """Read a completion: the texts of its choices, and the tokens and the finish reason of the first choice.

    Tool calls without a text count as a text, in JSON. Choices that a filter withheld are left out. Raises CallError if
    no choice has a text.
    """
    choices = [choice for choice in completion["choices"] if not is_withheld(choice)]
    if not choices:
        text = "an answer that a filter held back"
        raise WithheldError(f"{text} ({_describe_finish_reason(completion['choices'][0])})", kind=text)
    first = choices[0]
    texts = tuple(text_or_calls(choice) for choice in choices)
    ending = _finish_and_calls(first)
    if not any(texts):
        text = "an answer without text"
        raise WithheldError(f"{text} (finish_reason {_describe_finish_reason(first)})", kind=text)
    try:
        return Reply(texts, read_tokens(token_content(first.get("logprobs")), texts[0]), None, *ending)
    except TokensError as problem:
        return Reply(texts, None, str(problem), *ending)
    except SignalError:  # the server gave no log-probabilities
        return Reply(texts, None, None, *ending)


def _describe_finish_reason(choice: Any) -> str:
    """Return the finish reason of a choice for a message; "unknown" for an unusual one."""
    reason = finish_reason_of(choice) or ""
    return reason if re.fullmatch(r"[A-Za-z_: ]{1,60}", reason) else "unknown"


def _finish_and_calls(choice: Any) -> tuple[str | None, tuple[Mapping[str, Any], ...]]:
    """Return the finish reason and the tool calls of a choice, without malformed ones."""
    message = as_object(as_object(choice).get("message"))
    return finish_reason_of(choice), tuple(objects_in(message.get("tool_calls")))


def text_or_calls(choice: Any) -> str:
    """Return the text of a choice or, without one, its tool calls as JSON.

    >>> text_or_calls({"message": {"content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]}})
    '[{"arguments":{},"name":"f"}]'
    """
    calls = _finish_and_calls(choice)[1]
    return choice_text(choice) or (format_calls(calls) if calls else "")


def join_choices(completions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Join several completions of one question into a completion with the first choice of each.

    >>> one, other = ({"id": name, "choices": [{"index": 0, "message": {"content": name}}]} for name in "ab")
    >>> [(choice["index"], choice_text(choice)) for choice in join_choices([one, other])["choices"]]
    [(0, 'a'), (1, 'b')]
    """
    choices = [{**completion["choices"][0], "index": index} for index, completion in enumerate(completions)]
    return {**completions[0], "choices": choices}


_TEXT_PARTS = ("text", "output_text")


def choice_text(choice: Any) -> str:
    """Return the text of a choice, or its refusal in words; "" without both.

    >>> choice_text({"message": {"content": None, "refusal": "I cannot help with that."}})
    'I cannot help with that.'
    """
    message = as_object(as_object(choice).get("message"))
    content = message.get("content") or message.get("refusal")
    if isinstance(content, list):  # some servers send parts
        parts = [part.get("text") for part in objects_in(content) if part.get("type", "text") in _TEXT_PARTS]
        content = "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


#: Fields of a model's reasoning before its answer.
REASONING = ("reasoning_content", "reasoning")


def output_bytes(message: Any) -> int:
    """Count the bytes of a message or a delta that a model wrote: text, reasoning, tool calls.

    >>> output_bytes({"content": "Größe", "reasoning": "Hm", "tool_calls": [{"function": {"arguments": "{}"}}]})
    11
    """
    fields = as_object(message)
    arguments = [as_object(call.get("function")).get("arguments") for call in objects_in(fields.get("tool_calls"))]
    texts = [choice_text({"message": fields}), *map(fields.get, REASONING), *arguments]
    return sum(len(text.encode("utf-8", "replace")) for text in texts if isinstance(text, str))


_END_SECONDS = 0.5  # seconds after the last event for the server to end the response


async def read_chunks(lines: AsyncIterable[str]) -> AsyncGenerator[Mapping[str, Any], None]:
    """Yield the chunks of an event stream until its end.

    Raises CallError for a malformed chunk, for an error in place of a chunk, and if no finish reason has come.
    """
    finished = False
    async for data in _events(lines):
        if data == _END:
            with suppress(TimeoutError):  # the response ends, so that the connection can be used again
                async with asyncio.timeout(_END_SECONDS):
                    async for _ in lines:
                        pass
            break
        if data in ({}, []):  # some servers send them to keep a connection open
            continue
        choices = (data.get("choices") or []) if isinstance(data, Mapping) and body_failure(data) is None else None
        choices = [choice for choice in choices if choice is not None] if isinstance(choices, list) else None
        if choices is None or not all(isinstance(choice, Mapping) for choice in choices):
            raise unusable_error(data)
        choices = [{**choice, "finish_reason": raw_finish_reason(choice)} for choice in number_choices(choices)]
        finished = finished or any(choice["finish_reason"] is not None for choice in choices)
        yield {**data, "choices": choices}
    if not finished:
        raise CallError("the answer breaks off", kind="the answer breaks off")


_END = "[DONE]"


async def _events(lines: AsyncIterable[str]) -> AsyncGenerator[Any, None]:
    """Yield the data of each event; None for invalid JSON.

    A `data:` line of JSON is an event; other such lines are joined up to the next empty line. The data of an event
    named "error" become an object with an error. An event without data, or with null, is skipped.
    """
    waiting: list[str] = []
    name = ""
    async for line in lines:
        if line.startswith("data:"):
            data = line[5:].strip()
            if not waiting and data in ("", "null"):
                continue
            event = None if waiting else _END if data == _END else read_json(data)
            if event is None:  # the JSON goes on in the next line
                waiting.append(data)
            else:
                yield _parse_event(name, event)
        elif line.startswith("event:"):
            name = line[6:].strip()
        elif not line:
            if waiting:
                yield _parse_event(name, read_json("\n".join(waiting)))
            waiting, name = [], ""
    if waiting:
        yield _parse_event(name, read_json("\n".join(waiting)))


def _parse_event(name: str, data: Any) -> Any:
    """Return the data of an event; an object with an error if the event's name says that it is an error."""
    is_plain = name not in ("error", "exception") or data == _END
    return data if is_plain or body_failure(data) is not None else {"error": data or True}


def number_choices(choices: Sequence[Any]) -> list[Any]:
    """Number choices: a choice without an integer index gets its place in the list.

    >>> number_choices([{"index": None, "text": "a"}, {"index": 1}])
    [{'index': 0, 'text': 'a'}, {'index': 1}]
    """
    return [
        choice if type(choice.get("index")) is int else {**choice, "index": place}
        for place, choice in enumerate(choices)
    ]


_MAX_CALL_LENGTH = 10_000  # characters of arguments: the JSON of longer ones is not parsed to find its end


@dataclass(slots=True)
class _StreamedToolCall:
    """A tool call, assembled from its chunks; the first id, type and name count."""

    number: int
    labels: dict[str, str] = field(default_factory=dict)
    """Its id and its type."""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    """The chunks of the arguments."""
    length: int = 0
    """Characters of the arguments."""

    def add(self, chunk: Mapping[str, Any], function: Mapping[str, Any]) -> None:
        """Add a chunk of the call."""
        self.labels = {label: chunk[label] for label in ("id", "type") if _is_text(chunk.get(label))} | self.labels
        self.name = self.name or (function["name"] if _is_text(function.get("name")) else "")
        if _is_text(function.get("arguments")):
            self.arguments.append(function["arguments"])
            self.length += len(self.arguments[-1])

    @property
    def is_whole(self) -> bool:
        """Whether the arguments are a complete JSON object, so that nothing can follow."""
        is_closed = bool(self.arguments) and self.arguments[-1].endswith("}") and self.length <= _MAX_CALL_LENGTH
        return is_closed and read_json("".join(self.arguments)) is not None

    def is_followed_by(self, call_id: object, name: object) -> bool:
        """Return whether a chunk with this id and name begins another call.

        Some servers repeat the id and the name in every chunk; others draw a new id for each chunk of one call.
        """
        is_new_id = _is_text(call_id) and call_id != self.labels.get("id")
        if is_new_id and "id" in self.labels:
            return _is_text(name) or self.is_whole
        if _is_text(name) and self.name:
            return name != self.name or ((is_new_id or not _is_text(call_id)) and self.is_whole)
        return False

    def to_json(self) -> dict[str, object]:
        """Return the call as in the API."""
        return {"function": {"name": self.name, "arguments": "".join(self.arguments)}, **self.labels}


@dataclass(slots=True)
class StreamedToolCalls:
    """The tool calls of a streamed choice, whose chunks are numbered so that the chunks of a call share an index.

    Some servers leave the index out, or give all calls the index 0: then a new id or a new name begins a new call.

    >>> calls = [{"index": 0, "id": name, "function": {"name": name}} for name in "ab"]
    >>> [chunk["index"] for chunk in map(StreamedToolCalls().add, calls)]
    [0, 1]
    """

    calls: dict[int, _StreamedToolCall] = field(default_factory=dict)
    """The calls by their numbers."""
    _latest: dict[object, _StreamedToolCall] = field(default_factory=dict)
    """The last call by each index and id that the server sent; under None the last call of all."""
    _next: int = 0

    def add(self, chunk: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add a chunk of a call, and return it with the call's number, and its arguments as text."""
        function = as_object(chunk.get("function"))
        if isinstance(function.get("arguments"), Mapping):
            function = {**function, "arguments": json.dumps(function["arguments"])}
            chunk = {**chunk, "function": function}
        index = chunk["index"] if type(chunk.get("index")) is int else None
        call_id = chunk["id"] if _is_text(chunk.get("id")) else None
        call = self._latest.get(call_id if index is None and call_id in self._latest else index)
        if call is None or call.is_followed_by(call_id, function.get("name")):
            number = self._next if index is None or index in self.calls else index
            self._next = max(self._next, number + 1)
            call = self.calls[number] = _StreamedToolCall(number)
        self._latest |= dict.fromkeys((None, index, call_id), call)
        call.add(chunk, function)
        return {**chunk, "index": call.number}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


@dataclass(slots=True)
class Assembly:
    """The first choice of a completion, assembled from its chunks.

    >>> assembly, usage = Assembly(), CallUsage()
    >>> for text in ("Par", "is"):
    ...     chunk = assembly.add({"choices": [{"index": 0, "delta": {"content": text}}]})
    >>> chunk = assembly.add({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}})
    >>> assembly.completion(usage)["choices"][0]["message"]["content"], usage.tokens.output
    ('Paris', 2)
    """

    texts: list[str] = field(default_factory=list)
    tokens: list[object] = field(default_factory=list)
    tool_calls: dict[int, StreamedToolCalls] = field(default_factory=lambda: defaultdict(StreamedToolCalls))
    """The tool calls of each choice."""
    finish_reason: object = None
    usage: object = None
    output_bytes: int = 0
    """Bytes that the model wrote, in all choices."""
    problem: CallError | None = None
    """The failure that the choice reports."""
    arrived: bool = False
    """Whether anything came back: a chunk, or unreadable data in place of a chunk."""

    def add(self, chunk: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add a chunk, and return it with numbered tool calls."""
        self.arrived = True
        self.usage = usage_of(chunk) or self.usage
        choices = [self._add_calls(choice) for choice in chunk["choices"]]
        for choice in choices:
            self.output_bytes += output_bytes(choice.get("delta"))
            if choice.get("index", 0) != 0:
                continue
            text = choice_text({"message": choice.get("delta")})
            self.texts += [text] if text else []
            self.finish_reason = raw_finish_reason(choice) or self.finish_reason
            self.problem = self.problem or choice_failure(choice)
            self.tokens += token_content(choice.get("logprobs")) or []
        return {**chunk, "choices": choices}

    def _add_calls(self, choice: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the chunks of tool calls in a choice, and return it with these chunks numbered."""
        delta = as_object(choice.get("delta"))
        if not isinstance(delta.get("tool_calls"), list):
            return choice
        calls = self.tool_calls[choice.get("index", 0)]
        numbered = [calls.add(chunk) for chunk in objects_in(delta["tool_calls"])]
        return {**choice, "delta": {**delta, "tool_calls": numbered}}

    def completion(self, usage: CallUsage) -> dict[str, Any]:
        """Return the completion, and add its tokens to the usage if anything arrived."""
        if self.arrived:
            usage.add(self.usage, self.output_bytes)
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.texts)}
        if calls := self.tool_calls[0].calls:
            message["tool_calls"] = [call.to_json() for call in calls.values()]
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": self.finish_reason,
            "logprobs": {"content": self.tokens} if self.tokens else None,
        }
        return {"choices": [choice], "usage": self.usage}
