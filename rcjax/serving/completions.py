"""What an endpoint replies: a chat completion, whole or in chunks, checked as far as it is used, and read.

Standard library only.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rcjax.serving.call_log import Call
from rcjax.serving.failures import (
    CallError,
    WithheldError,
    finish_of,
    is_withheld,
    told_finish,
    told_in_choice,
    told_in_place,
    unusable,
)
from rcjax.serving.text_chunks import Patterns, TextChunk
from rcjax.serving.usage import Usage, usage_of
from rcjax.serving.workers import in_short
from rcjax.signals import Reply, SignalError
from rcjax.signals.canonical import written_calls
from rcjax.signals.replies import TokensError, read_tokens, token_content

_MOST_PARTS = 1_000_000  # of one reply: log-probabilities of 5,000 tokens, each with twenty others


def read_completion(content: bytes | str, usage: Usage, sent: int = 0) -> Mapping[str, Any]:
    """A completion from its JSON, with one choice at least; what it used is added to the usage.

    Args:
        content: of the reply.
        usage: of the call.
        sent: bytes of the request.

    Choices that tell a failure are left out. Raises CallError where no other is there, and for anything else.
    """
    data = read_json(content)
    told = data if isinstance(data, Mapping) else {}
    listed = told.get("choices")
    messages = [one.get("message") for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    usage.add(usage_of(told), sent, sum(map(said_bytes, messages)))
    choices = told.get("choices")
    if not isinstance(choices, list) or not choices or told_in_place(told) is not None:
        raise unusable(data)
    problems = [told_in_choice(choice) for choice in choices]
    failures = [problem for problem in problems if problem is not None]
    if len(failures) == len(choices):
        raise failures[0]
    sound = [choice for choice, problem in zip(numbered_choices(choices), problems, strict=True) if problem is None]
    return {**told, "choices": sound}


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


def read_reply(completion: Mapping[str, Any]) -> Reply:
    """The texts of a completion, the tokens of the first one's text, and how it ends.

    Calls of tools alone are a reply, whose text they are. Choices that a filter held back are left out. Raises
    CallError where none says anything.
    """
    choices = [choice for choice in completion["choices"] if not is_withheld(choice)]
    if not choices:
        raise WithheldError(f"an answer that a filter held back ({_word(completion['choices'][0])})")
    first = choices[0]
    texts = tuple(said_text(choice) for choice in choices)
    ending = _ending(first)
    if not any(texts):
        kind = WithheldError if all(isinstance(choice, Mapping) for choice in choices) else CallError
        raise kind(f"an answer without text (finish_reason {_word(first)})")
    try:
        content = token_content(first.get("logprobs")) if isinstance(first, Mapping) else None
        return Reply(texts, read_tokens(content, texts[0]), None, *ending)
    except TokensError as problem:
        return Reply(texts, None, str(problem), *ending)
    except SignalError:  # the server told none
        return Reply(texts, None, None, *ending)


def _word(choice: Any) -> str:
    """The finish reason of a choice for a message."""
    reason = finish_of(choice) or ""
    return reason if re.fullmatch(r"[A-Za-z_: ]{1,60}", reason) else "unknown"


def _ending(choice: Any) -> tuple[str | None, tuple[Mapping[str, Any], ...]]:
    """(the reason to finish, the calls of tools) of a choice, as far as they are such."""
    fields = choice if isinstance(choice, Mapping) else {}
    message = fields.get("message")
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    listed = calls if isinstance(calls, list) else []
    return finish_of(choice), tuple(call for call in listed if isinstance(call, Mapping))


def said_text(choice: Any) -> str:
    """The text of a choice; of calls of tools alone, these as JSON.

    >>> said_text({"message": {"content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]}})
    '[{"arguments":{},"name":"f"}]'
    """
    calls = _ending(choice)[1]
    return choice_text(choice) or (written_calls(calls) if calls else "")


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

    Raises CallError for a chunk that is none, an error in place of one, and a stream that ends without a finish reason.
    """
    finished, calls, patterns = False, defaultdict[int, CallNumbers](CallNumbers), Patterns()
    async for data in _events(lines, patterns):
        if type(data) is TextChunk:
            yield data
            continue
        if data == _END:
            with suppress(TimeoutError):  # nothing comes after the end, and the connection can be used again
                async with asyncio.timeout(_PATIENCE):
                    async for _ in lines:
                        pass
            break
        if data in ({}, []):  # some servers send them to keep a connection open
            continue
        choices = (data.get("choices") or []) if isinstance(data, Mapping) and told_in_place(data) is None else None
        choices = [one for one in choices if one is not None] if isinstance(choices, list) else None
        if choices is None or not all(isinstance(choice, Mapping) for choice in choices):
            raise unusable(data)
        choices = [{**one, "finish_reason": told_finish(one)} for one in numbered_choices(choices)]
        finished = finished or any(one["finish_reason"] is not None for one in choices)
        chunk = {**data, "choices": [calls[one["index"]].of_choice(one) for one in choices]}
        patterns.learn(chunk)
        yield chunk
    if not finished:
        raise CallError("the answer breaks off")


_END = "[DONE]"


async def _events(lines: AsyncIterable[str], patterns: Patterns) -> AsyncGenerator[Any, None]:
    """What events say: of one line as a rule, or of several lines up to an empty one; None of one that is no JSON.

    An event by the name of an error is an object with an error; one that says nothing, or null, is none.
    """
    waiting: list[str] = []
    name = ""
    async for line in lines:
        if line.startswith("data:"):
            data = line[5:].strip()
            if not waiting and data in ("", "null"):
                continue
            if not waiting and not name and (chunk := patterns.read(data)) is not None:
                yield chunk
                continue
            said = None if waiting else _END if data == _END else read_json(data)
            if said is None:  # so far
                waiting.append(data)
            else:
                yield _as_named(name, said)
        elif line.startswith("event:"):
            name = line[6:].strip()
        elif not line:
            if waiting:
                yield _as_named(name, read_json("\n".join(waiting)))
            waiting, name = [], ""
    if waiting:
        yield _as_named(name, read_json("\n".join(waiting)))


def _as_named(name: str, said: Any) -> Any:
    """What an event says, by its name."""
    is_plain = name not in ("error", "exception") or said == _END
    return said if is_plain or told_in_place(said) is not None else {"error": said or True}


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
    problem: CallError | None = None
    """The failure that the choice tells."""
    arrived: bool = False
    """Something came back: a chunk, or what could not be read in its place."""

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Add a chunk."""
        self.arrived = True
        if type(chunk) is TextChunk:
            self.said += len(chunk.text.encode("utf-8", "replace"))
            self.texts += [chunk.text] if chunk.text else []
            return
        self.usage = usage_of(chunk) or self.usage
        for choice in chunk["choices"]:
            self.said += said_bytes(choice.get("delta"))
            if choice.get("index", 0) != 0:
                continue
            text = choice_text({"message": choice.get("delta")})
            self.texts += [text] if text else []
            self._add_calls(choice.get("delta"))
            self.finish_reason = told_finish(choice) or self.finish_reason
            self.problem = self.problem or told_in_choice(choice)
            self.tokens += token_content(choice.get("logprobs")) or []

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


_MOST_WAITING = 1_000  # chunks without text that are kept for a text after them


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
        if self.begun and type(chunk) is TextChunk:
            await self._deliver(chunk)
            return
        more = (value for name, value in chunk.items() if name not in _USUAL)  # such as a moderation of what was asked
        if not chunk["choices"] and all(value is None for value in more):  # the usage, which is of one request only
            return
        if len(self._waiting) < _MOST_WAITING:
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
            shared = self.piece
            await self.deliver(Piece(shared.model, shared.calls, chunk, shared.position, shared.rung))
        except Exception as problem:  # the answer is paid for: it is read to its end, and logged
            self.problem = in_short(problem)
