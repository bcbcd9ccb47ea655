"""A completion that comes in pieces: its chunks, and the whole that they make. Standard library only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from rcjax.serving.call_log import Call
from rcjax.serving.check_worker import in_short
from rcjax.serving.completions import CallError, choice_text, read_json, said_bytes, unusable
from rcjax.serving.usage import Usage


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
    finished = False
    async for data in _events(lines):
        if data == _END:
            await _read_out(lines)
            return
        chunk = _checked(data)
        finished = finished or any(choice.get("finish_reason") for choice in chunk["choices"])
        yield chunk
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


async def _read_out(lines: AsyncIterable[str]) -> None:
    """Read what comes after the end, which is nothing, so that the connection can be used again."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            async for _ in lines:
                pass


def _checked(chunk: Any) -> Mapping[str, Any]:
    choices = (chunk.get("choices") or []) if isinstance(chunk, Mapping) and not chunk.get("error") else None
    if not isinstance(choices, list) or not all(isinstance(choice, Mapping) for choice in choices):
        raise unusable(chunk)
    return {**chunk, "choices": choices}


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
    """Something came back: a chunk, or what could not be read in its place. What never arrived costs nothing."""

    async def watch(self, lines: AsyncIterable[str]) -> AsyncGenerator[str, None]:
        """The lines of its event stream as they are, noting whether any arrives; comments are no answer."""
        async for line in lines:
            self.arrived = self.arrived or line.startswith("data:")
            yield line
        self.arrived = True  # to its end, if there is nothing in it

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
            for name, value in function.items() if isinstance(function, Mapping) else ():
                if isinstance(value, str) and name in whole["function"]:
                    whole["function"][name] += value
            whole.update({name: call[name] for name in ("id", "type") if isinstance(call.get(name), str)})

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
