"""Translation of a completion into a response: its items, the events of its stream, and their sending."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Send

from rcjax.policy.signals.replies import token_content
from rcjax.serving.completions import REASONING, choice_text
from rcjax.serving.failures import is_withheld, raw_finish_reason
from rcjax.serving.gateway.chat import STREAM, Responder, chunks_of, encoded
from rcjax.serving.gateway.chat_request import ApiError, ChatRequest
from rcjax.serving.gateway.responses import read_response_request

Event = dict[str, Any]
"""An event of a stream."""


_ARGUMENTS = "function_call_arguments"


@dataclass(slots=True)
class _Item:
    """An item of a response: a message, its reasoning, or a function call."""

    index: int
    head: Mapping[str, Any]
    """The fields that do not come in pieces, such as the id and the type."""
    texts: dict[str, list[str]] = field(default_factory=dict)
    """The pieces of each part by its kind: "output_text", "refusal", "reasoning_text" or, in a call, the arguments."""
    logprobs: list[Event] = field(default_factory=list)
    """The log-probabilities of the text's tokens."""

    def to_json(self, status: str) -> dict[str, Any]:
        """Return the item for a response."""
        if _ARGUMENTS in self.texts:
            return {**self.head, "status": status, "arguments": "".join(self.texts[_ARGUMENTS])}
        return {**self.head, "status": status, "content": [self._part(kind) for kind in self.texts]}

    def add(self, kind: str, text: str, logprobs: Sequence[Event] = ()) -> Iterator[Event]:
        """Add a piece to a part, which may be new, and yield the events."""
        if kind not in self.texts:
            self.texts[kind] = []
            yield self._event(kind, "content_part.added", {"part": self._part(kind)})
        self.texts[kind].append(text)
        self.logprobs += logprobs
        more = {"logprobs": logprobs} if kind == "output_text" else {}
        yield self._event(kind, f"{kind}.delta", {"delta": text, **more})

    def end(self) -> Iterator[Event]:
        """Yield the events with each complete part."""
        for kind in self.texts:
            if kind == _ARGUMENTS:
                function = {"name": self.head["name"], "arguments": "".join(self.texts[kind])}
                yield self._event(kind, f"{kind}.done", function)
                continue
            part = self._part(kind)
            content = {name: value for name, value in part.items() if name not in ("type", "annotations")}
            yield self._event(kind, f"{kind}.done", content)
            yield self._event(kind, "content_part.done", {"part": part})

    def _part(self, kind: str) -> dict[str, Any]:
        more = {"annotations": [], "logprobs": [*self.logprobs]} if kind == "output_text" else {}
        return {"type": kind, "refusal" if kind == "refusal" else "text": "".join(self.texts[kind]), **more}

    def _event(self, kind: str, event: str, content: Event) -> Event:
        where = {"item_id": self.head["id"], "output_index": self.index}
        where |= {} if kind == _ARGUMENTS else {"content_index": [*self.texts].index(kind)}
        return {"type": f"response.{event}", **where, **content}


#: Fields of a chunk that a response has in another form, or not at all.
_REWORDED = frozenset({"id", "object", "created", "model", "choices", "usage", "rcjax", "obfuscation", "created_at"})

#: The item that each kind of part belongs to.
_ITEMS = {"output_text": "message", "refusal": "message", "reasoning_text": "reasoning"}

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

    asked: Mapping[str, Any]
    """The fields of the request that the response repeats."""
    _id: str = ""
    """The completion's id."""
    _head: dict[str, Any] = field(default_factory=dict)
    _items: dict[str | int, _Item] = field(default_factory=dict)
    """The items: those with text by their type, calls by their number."""
    _finish_reason: Any = None
    _last: dict[str, Any] = field(default_factory=dict)
    """The last known tokens, and the last report of the cascade."""

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
        self._head |= {name: value for name, value in chunk.items() if name not in _REWORDED}
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
        """Yield the events with each complete item, and with the complete response."""
        status = self.ending
        for item in self._items.values():
            yield from item.end()
            yield self._item_event("done", item, status)
        yield {"type": f"response.{status}", "response": self.to_json(status)}

    def fail(self, problem: ApiError) -> Iterator[Event]:
        """Yield the events of a failure; clients raise the first one."""
        error = problem.to_json()["error"]
        yield {**error, "type": "error", "error": error}
        code = "rate_limit_exceeded" if problem.status == 429 else "server_error"  # the codes of a failed response
        yield {"type": "response.failed", "response": self.to_json("failed") | {"error": error | {"code": code}}}

    def to_json(self, status: str) -> dict[str, Any]:
        """Return the response with this status."""
        reason = self._reason if status == "incomplete" else None
        of_items = "incomplete" if status == "failed" else status
        return {
            **self._head,
            **self.asked,
            "object": "response",
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": None,
            "incomplete_details": None if reason is None else {"reason": reason},
            "output": [item.to_json(of_items) for item in self._items.values()],
            "usage": _usage(self._last.get("usage")),
            **({"rcjax": self._last["rcjax"]} if "rcjax" in self._last else {}),
        }

    def _add_delta(self, delta: Any, logprobs: Any) -> Iterator[Event]:
        fields = delta if isinstance(delta, Mapping) else {}
        tokens = _tokens(token_content(logprobs))
        reasoning = next(filter(None, map(fields.get, REASONING)), None)
        yield from self._add_text("reasoning_text", reasoning, [])
        yield from self._add_text("output_text", fields.get("content"), tokens)
        yield from self._add_text("refusal", fields.get("refusal"), [])
        calls = fields.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            yield from self._add_call(call)

    def _add_text(self, kind: str, content: Any, tokens: list[Event]) -> Iterator[Event]:
        text, item = choice_text({"message": {"content": content}}), _ITEMS[kind]
        if not text and not (tokens and item in self._items):  # the last tokens may have no text
            return
        if item not in self._items:
            more = {"role": "assistant"} if item == "message" else {"summary": []}
            yield from self._add_item(item, {"id": f"{_PREFIXES[item]}_{self._id}", "type": item, **more})
        yield from self._items[item].add(kind, text, tokens)

    def _add_call(self, call: Any) -> Iterator[Event]:
        function = call.get("function") if isinstance(call, Mapping) else None
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


def _tokens(content: Any, *, likeliest: bool = True) -> list[Event]:
    """Return the valid tokens of a text, with their log-probabilities and the likeliest tokens of each.

    A response needs the bytes of a token: without them, they are those of its text.
    """
    tokens = []
    for token in content if isinstance(content, list) else ():
        text = token.get("token") if isinstance(token, Mapping) else None
        if isinstance(text, str) and type(token.get("logprob")) in (int, float):
            octets = token.get("bytes")
            octets = octets if isinstance(octets, list) else [*text.encode("utf-8", "replace")]
            more = {"top_logprobs": _tokens(token.get("top_logprobs"), likeliest=False)} if likeliest else {}
            tokens.append({"token": text, "logprob": token["logprob"], "bytes": octets, **more})
    return tokens


def _usage(usage: Any) -> dict[str, Any] | None:
    """Return the usage of a completion under the names of a response, with all its other fields.

    >>> _usage({"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9})["input_tokens_details"]
    {'cached_tokens': 0, 'cache_write_tokens': 0}
    """
    if not isinstance(usage, Mapping):
        return None
    read, written = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    return {
        **{name: value for name, value in usage.items() if not name.startswith(("prompt_tokens", "completion_tokens"))},
        "input_tokens": usage.get("prompt_tokens"),
        "output_tokens": usage.get("completion_tokens"),
        "input_tokens_details": _counts(read, ("cached_tokens", "cache_write_tokens")),
        "output_tokens_details": _counts(written, ("reasoning_tokens",)),
    }


def _counts(details: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the details of a count of tokens, with 0 for a name without a whole number."""
    counts = details if isinstance(details, Mapping) else {}
    return {**counts, **{name: counts[name] if type(counts.get(name)) is int else 0 for name in names}}


class ResponsesResponder(Responder):
    """Sends the answer to one request in the format of responses."""

    forwards_text = False

    def __init__(self, send: Send) -> None:
        super().__init__(send)
        self._assembly = ResponseAssembly({})
        self._events = 0  # events sent

    def read(self, body: bytes) -> ChatRequest:
        """Read the request in a body as one for a completion. Raises ApiError for an invalid one."""
        request, repeated = read_response_request(body)
        self._assembly = ResponseAssembly(repeated)
        return request

    async def document(self, document: Mapping[str, Any], headers: Mapping[str, str], status: int = 200) -> None:
        """Send a completion as a response, or an error unchanged."""
        if status == 200:
            first = [{**choice, "index": 0} for choice in document["choices"][:1]]
            for chunk in chunks_of({**document, "choices": first}, includes_usage=True):
                for _ in self._assembly.add(chunk):
                    pass
            document = self._assembly.to_json(self._assembly.ending)
        await super().document(document, headers, status)

    async def event(self, document: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """Send the events of a chunk, the first ones after the headers."""
        await self._send_events(self._assembly.add(document), headers)

    async def done(self) -> None:
        """End a stream with the complete response."""
        if not self.complete:
            await self._send_events(self._assembly.end())

    async def error(self, problem: ApiError, headers: Mapping[str, str]) -> None:
        """Send an error in place of an answer, or at the end of a stream."""
        if not self.begun or self.complete:
            await super().error(problem, headers)
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
            data = encoded({**event, "sequence_number": number})
            parts.append(b"event: " + event["type"].encode() + b"\ndata: " + data + b"\n\n")
        self._events += len(parts)
        if headers is not None and not self.begun:
            await self._start(200, {**STREAM, **headers})
        if parts or headers is None:
            await self._body(b"".join(parts), more=headers is not None)
