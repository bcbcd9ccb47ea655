"""What an endpoint replies: a chat completion, whole or in chunks, checked as far as it is used, and read.

Of what a server says about an error only its code gets into words: its messages may quote keys and prompts. Standard
library only.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from rcjax.serving.call_log import Call
from rcjax.serving.usage import Usage
from rcjax.serving.workers import in_short
from rcjax.signals import Reply, SignalError
from rcjax.signals.replies import TokensError, read_tokens

_MOST_PARTS = 4_000_000  # of one reply: log-probabilities of 16,000 tokens, each with twenty others, have 3 million


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong with a request, for whoever decides whether to send it again."""

    status: int | None = None
    """Of HTTP; None if there was no answer."""
    code: str | None = None
    """The server's own word for it, such as "insufficient_quota"."""
    wait: float | None = None
    """Seconds that the server asks to wait."""
    passing: bool = False
    """The same request may well work later: a timeout, a lost connection, 408, 409, 429, 5xx."""
    charged: bool = False
    """What was sent may have been worked on, and may be charged."""


class CallError(Exception):
    """A request that brought no usable reply; the message is one line without secrets."""

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure or Failure(charged=True)  # what came back could not be used


class NoTextError(CallError):
    """An answer that is there and has no text, as a filter held it back, or all of it is reasoning."""


def read_completion(content: bytes | str, usage: Usage, sent: int = 0) -> Mapping[str, Any]:
    """A completion from its JSON, with one choice at least; what it used is added to the usage.

    Args:
        content: of the reply.
        usage: of the call.
        sent: bytes of the request.

    Raises CallError for anything else.
    """
    data = read_json(content)
    told = data if isinstance(data, Mapping) else {}
    listed = told.get("choices")
    messages = [one.get("message") for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    usage.add(told.get("usage"), sent, sum(map(said_bytes, messages)))
    choices = told.get("choices")
    if not isinstance(choices, list) or not choices:
        raise unusable(data)
    return {**told, "choices": numbered_choices(choices)}


def unusable(data: Any) -> CallError:
    """What is wrong with what a server sent in place of a completion, or of a chunk of one."""
    error = data.get("error") if isinstance(data, Mapping) else None
    code = error_word(error)
    if error:
        return CallError(f"an error in place of an answer{f' ({code})' if code else ''}")
    return CallError(f"malformed answer: {'no choices' if isinstance(data, Mapping) else 'not a JSON object'}")


def read_json(content: bytes | str) -> Any:
    """What a server sent as JSON; None if it is none, or has so many parts that reading them would stop all else.

    >>> read_json(b'{"a": [1]}'), read_json("{"), read_json(b"[" * 10_000_000)
    ({'a': [1]}, None, None)
    """
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if data.count(b"[") + data.count(b"{") + data.count(b",") > _MOST_PARTS:
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def read_reply(completion: Mapping[str, Any], *, calls_alone: bool = False) -> Reply:
    """The texts of a completion, the tokens of the first one's text, and how it ends.

    Raises CallError where it has no text, unless calls of tools alone are a reply.
    """
    choices = completion["choices"]
    first = choices[0]
    texts = tuple(choice_text(choice) for choice in choices)
    ending = _ending(first)
    if not any(texts) and not (calls_alone and ending[1]):
        reason = first.get("finish_reason") if isinstance(first, Mapping) else None
        word = reason if isinstance(reason, str) and re.fullmatch(r"[a-z_]{1,30}", reason) else "unknown"
        kind = NoTextError if all(isinstance(choice, Mapping) for choice in choices) else CallError
        raise kind(f"an answer without text (finish_reason {word})")
    logprobs = first.get("logprobs") if isinstance(first, Mapping) else None
    try:
        content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
        return Reply(texts, read_tokens(content, texts[0]), None, *ending)
    except TokensError as problem:
        return Reply(texts, None, str(problem), *ending)
    except SignalError:  # the server told none
        return Reply(texts, None, None, *ending)


def _ending(choice: Any) -> tuple[str | None, tuple[Mapping[str, Any], ...]]:
    """(the reason to finish, the calls of tools) of a choice, as far as they are such."""
    fields = choice if isinstance(choice, Mapping) else {}
    message, reason = fields.get("message"), fields.get("finish_reason")
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    listed = calls if isinstance(calls, list) else []
    return reason if isinstance(reason, str) else None, tuple(call for call in listed if isinstance(call, Mapping))


def joined(completions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Several completions of one question as one that has the first choice of each.

    >>> one, other = ({"id": name, "choices": [{"index": 0, "message": {"content": name}}]} for name in "ab")
    >>> [(choice["index"], choice_text(choice)) for choice in joined([one, other])["choices"]]
    [(0, 'a'), (1, 'b')]
    """
    choices = [completion["choices"][0] for completion in completions]
    numbered = [
        {**choice, "index": index} if isinstance(choice, Mapping) else choice for index, choice in enumerate(choices)
    ]
    return {**completions[0], "choices": numbered}


_TEXT_PARTS = ("text", "output_text")


def choice_text(choice: Any) -> str:
    """The text of a choice, that of a refusal too; "" where it has none.

    >>> choice_text({"message": {"content": None, "refusal": "I cannot help with that."}})
    'I cannot help with that.'
    """
    message = choice.get("message") if isinstance(choice, Mapping) else None
    said = message if isinstance(message, Mapping) else {}
    content = said.get("content") or said.get("refusal")
    if isinstance(content, list):  # in parts, as some servers have it
        texts = [part for part in content if isinstance(part, Mapping) and part.get("type", "text") in _TEXT_PARTS]
        parts = [part.get("text") for part in texts]
        content = "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


#: Where servers tell what a model thinks before it answers.
REASONING = ("reasoning_content", "reasoning")


def said_bytes(message: Any) -> int:
    """Bytes of what a message, or a piece of one, has a model write: its text, its reasoning, its calls of tools.

    >>> said_bytes({"content": "Größe", "reasoning": "Hm", "tool_calls": [{"function": {"arguments": "{}"}}]})
    11
    """
    said = message if isinstance(message, Mapping) else {}
    calls = said.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    arguments = [one.get("arguments") for one in functions if isinstance(one, Mapping)]
    texts = [choice_text({"message": said}), *map(said.get, REASONING), *arguments]
    return sum(len(text.encode("utf-8", "replace")) for text in texts if isinstance(text, str))


def read_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, by the headers that servers tell it in: milliseconds, seconds, or a date."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * scale
        except ValueError:
            continue
        return seconds if 0 <= seconds < math.inf else None
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
        return max(0.0, (date - datetime.now(date.tzinfo)).total_seconds())
    except (TypeError, ValueError):
        return None


def error_word(body: Any) -> str | None:
    """The code of an error, where it is one: a word of lower case, not a text."""
    words = [body.get(key) for key in ("code", "type")] if isinstance(body, Mapping) else []
    texts = [str(word) for word in words if isinstance(word, str | int)]
    codes = [word for word in texts if re.fullmatch(r"[a-z][a-z_]{1,59}|[1-5]\d\d", word, re.ASCII)]
    return codes[0] if codes else None


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer that is kept whatever it is."""

    model: str
    """The model that answers, by its name in the policy."""
    calls: tuple[Call, ...]
    """Of the models that were asked before it."""
    chunk: Mapping[str, Any] | None = None
    """The chunk of the completion, as the endpoint sent it; None once the answer is there to its end."""
    position: float | None = None
    """Where on its ladder the policy stands; None for a policy of one rung."""
    rung: int | None = None
    """By which rung the query goes; None for a policy of one rung."""


Deliver = Callable[[Piece], Awaitable[None]]
"""Takes the pieces of an answer as they come."""


_PATIENCE = 0.5  # seconds, with a server that leaves the connection open


async def read_chunks(lines: AsyncIterable[str]) -> AsyncGenerator[Mapping[str, Any], None]:
    """The chunks in the lines of an event stream, until its end.

    Raises CallError for a chunk that is none, an error in place of one, and a stream that breaks off.
    """
    finished, calls = False, defaultdict[int, CallNumbers](CallNumbers)
    async for data in _events(lines):
        if data == _END:
            with suppress(TimeoutError):  # nothing comes after the end, and the connection can be used again
                async with asyncio.timeout(_PATIENCE):
                    async for _ in lines:
                        pass
            return
        choices = (data.get("choices") or []) if isinstance(data, Mapping) and not data.get("error") else None
        if not isinstance(choices, list) or not all(isinstance(choice, Mapping) for choice in choices):
            raise unusable(data)
        finished = finished or any(choice.get("finish_reason") for choice in choices)
        yield {**data, "choices": [calls[one["index"]].of_choice(one) for one in numbered_choices(choices)]}
    if not finished:
        raise CallError("the answer breaks off")


_END = "[DONE]"


async def _events(lines: AsyncIterable[str]) -> AsyncGenerator[Any, None]:
    """What events say: of one line as a rule, or of several lines up to an empty one; None of one that is no JSON."""
    waiting: list[str] = []
    async for line in lines:
        if line.startswith("data:"):
            data = line[5:].strip()
            said = None if waiting else _END if data == _END else read_json(data)
            if said is None:  # so far
                waiting.append(data)
            else:
                yield said
        elif not line and waiting:
            yield read_json("\n".join(waiting))
            waiting = []
    if waiting:
        yield read_json("\n".join(waiting))


def numbered_choices(choices: Sequence[Any]) -> list[Any]:
    """Choices with their numbers: a choice whose index is no number has its place in the list.

    >>> numbered_choices([{"index": None, "text": "a"}, {"index": 1}])
    [{'index': 0, 'text': 'a'}, {'index': 1}]
    """
    return [
        one if not isinstance(one, Mapping) or type(one.get("index")) is int else {**one, "index": place}
        for place, one in enumerate(choices)
    ]


_LONGEST_CALL = 10_000  # characters of arguments that are looked at for their end, which takes time for each piece


@dataclass(slots=True)
class _OpenCall:
    """A tool call in a stream, as far as it has come."""

    number: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""

    def add(self, arguments: Any) -> None:
        """Add a piece of the arguments."""
        if isinstance(arguments, str) and len(self.arguments) <= _LONGEST_CALL:
            self.arguments += arguments

    @property
    def is_whole(self) -> bool:
        """Whether the arguments are a JSON object, so that nothing can follow."""
        ends = self.arguments.endswith("}") and len(self.arguments) <= _LONGEST_CALL
        return ends and read_json(self.arguments) is not None

    def is_followed_by(self, call_id: str | None, name: str | None) -> bool:
        """Whether a piece with this id and name begins another call.

        Some servers repeat id and name in every piece, others draw a new id for each piece of one call.
        """
        if call_id and self.id and call_id != self.id:
            return bool(name) or self.is_whole
        if name and self.name:
            return name != self.name or ((call_id is None or call_id != self.id) and self.is_whole)
        return False


@dataclass(slots=True)
class CallNumbers:
    """Numbers the tool calls of one choice of a stream, whose pieces belong together by their index.

    Servers leave the index out, or give all calls the index 0: a new id or a new name begins a new call.

    >>> calls = [{"index": 0, "id": name, "function": {"name": name}} for name in "ab"]
    >>> numbered = CallNumbers().of_choice({"delta": {"tool_calls": calls}})
    >>> [call["index"] for call in numbered["delta"]["tool_calls"]]
    [0, 1]
    """

    _open: dict[int | str | None, _OpenCall] = field(default_factory=dict)
    """The last call of each index and id that the server gives, and under None the last of all."""
    _taken: set[int] = field(default_factory=set)
    _next: int = 0

    def of_choice(self, choice: Mapping[str, Any]) -> Mapping[str, Any]:
        """A choice of a chunk in which each piece of a call has the number of its call."""
        delta = choice.get("delta")
        calls = delta.get("tool_calls") if isinstance(delta, Mapping) else None
        if not isinstance(delta, Mapping) or not isinstance(calls, list):
            return choice
        numbered = [self._numbered(call) for call in calls if isinstance(call, Mapping)]
        return {**choice, "delta": {**delta, "tool_calls": numbered}}

    def _numbered(self, piece: Mapping[str, Any]) -> Mapping[str, Any]:
        function = piece.get("function")
        fields = function if isinstance(function, Mapping) else {}
        index = piece["index"] if type(piece.get("index")) is int else None
        call_id, name = _text_or_none(piece.get("id")), _text_or_none(fields.get("name"))
        call = self._open.get(call_id if index is None and call_id in self._open else index)
        if call is None or call.is_followed_by(call_id, name):
            number = self._next if index is None or index in self._taken else index
            self._taken.add(number)
            self._next = max(self._next, number + 1)
            call = _OpenCall(number)
        self._open |= dict.fromkeys((None, index, call_id), call)
        call.id, call.name = call.id or call_id, call.name or name
        if isinstance(fields.get("arguments"), Mapping):
            fields = {**fields, "arguments": json.dumps(fields["arguments"])}
            piece = {**piece, "function": fields}
        call.add(fields.get("arguments"))
        return {**piece, "index": call.number}


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


@dataclass(slots=True)
class Assembly:
    """The first choice of a completion, put together from its chunks.

    >>> whole, usage = Assembly(), Usage()
    >>> for text in ("Par", "is"):
    ...     whole.add({"choices": [{"index": 0, "delta": {"content": text}}]})
    >>> whole.add({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}})
    >>> whole.completion(usage)["choices"][0]["message"]["content"], usage.tokens.written
    ('Paris', 2)
    """

    texts: list[str] = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)
    tool_calls: dict[Any, dict[str, Any]] = field(default_factory=dict)
    finish_reason: Any = None
    usage: Any = None
    said: int = 0
    """Bytes of all choices."""
    arrived: bool = False
    """Something came back: a chunk, or what could not be read in its place."""

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Add a chunk."""
        self.arrived = True
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk["choices"]:
            self.said += said_bytes(choice.get("delta"))
            if choice.get("index", 0) != 0:
                continue
            self.texts.append(choice_text({"message": choice.get("delta")}))
            self._add_calls(choice.get("delta"))
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            logprobs = choice.get("logprobs")
            content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
            self.tokens += content if isinstance(content, list) else []

    def _add_calls(self, delta: Any) -> None:
        """Add what a delta says of calls of tools, whose arguments come in pieces."""
        calls = delta.get("tool_calls") if isinstance(delta, Mapping) else None
        for call in calls if isinstance(calls, list) else ():
            if not isinstance(call, Mapping) or not isinstance(call.get("index", 0), int):
                continue
            whole = self.tool_calls.setdefault(call.get("index", 0), {"function": {"name": "", "arguments": ""}})
            function = call.get("function")
            fields = function if isinstance(function, Mapping) else {}
            if isinstance(fields.get("arguments"), str):
                whole["function"]["arguments"] += fields["arguments"]
            if isinstance(fields.get("name"), str):
                whole["function"]["name"] = whole["function"]["name"] or fields["name"]
            whole |= {name: call[name] for name in ("id", "type") if isinstance(call.get(name), str)} | whole

    def completion(self, usage: Usage, sent: int = 0) -> dict[str, Any]:
        """The completion; what it used is added to the usage, if anything of it arrived.

        Args:
            usage: of the call.
            sent: bytes of the request.
        """
        if self.arrived:
            usage.add(self.usage, sent, self.said)
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.texts)}
        if self.tool_calls:
            message["tool_calls"] = [*self.tool_calls.values()]
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": self.finish_reason,
            "logprobs": {"content": self.tokens} if self.tokens else None,
        }
        return {"choices": [choice], "usage": self.usage}


#: Fields that every chunk may have.
_USUAL = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "obfuscation", "service_tier", "system_fingerprint"}
)


@dataclass(slots=True)
class Delivery:
    """Hands an answer on, from the first chunk that says something: an answer without text is no answer."""

    deliver: Deliver
    piece: Piece
    """What all its pieces share."""
    begun: bool = False
    problem: str | None = None
    """What whoever takes the pieces raised: after that none is handed on, and the answer goes on."""
    _waiting: list[Mapping[str, Any]] = field(default_factory=list)

    async def hand_on(self, chunk: Mapping[str, Any]) -> None:
        """Hand a chunk on, or keep it until there is text."""
        more = (value for name, value in chunk.items() if name not in _USUAL)  # such as a moderation of what was asked
        if not chunk["choices"] and all(value is None for value in more):  # the usage, which is of one request only
            return
        self._waiting.append(chunk)
        deltas = [choice["delta"] for choice in chunk["choices"] if isinstance(choice.get("delta"), Mapping)]
        if self.begun or any(value for delta in deltas for name, value in delta.items() if name != "role"):
            await self.flush()

    async def end(self) -> None:
        """Say that this was all, if anything was handed on."""
        if self.begun:
            await self._deliver(None)

    async def flush(self) -> None:
        """Hand on what waits."""
        waiting, self._waiting = self._waiting, []
        for chunk in waiting:
            self.begun = True
            await self._deliver(chunk)

    async def _deliver(self, chunk: Mapping[str, Any] | None) -> None:
        if self.problem is not None:
            return
        try:
            await self.deliver(replace(self.piece, chunk=chunk))
        except Exception as problem:  # the answer is paid for: it is read to its end, and logged
            self.problem = in_short(problem)
