"""The questions that are put to a cascade: pairs of an id and messages, checked. Standard library only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from rcjax._base.arguments import what_it_is
from rcjax.serving.call_log import Billed
from rcjax.serving.streams import Deliver

Messages = str | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is put to the models."""

    query: str
    """Its id."""
    messages: Sequence[Mapping[str, Any]]
    """The conversation, as in the API."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of its requests, which go before those of the models, and after those of the signal."""
    segment: str | None = None
    """What kind of query it is, for policies with cascades for segments; None if nobody tells."""
    shadow: bool = False
    """It goes to all models, whatever they answer."""
    deliver: Deliver | None = None
    """Takes the answer of a model that is kept whatever it is, while it comes."""
    unjudged: str | None = None
    """Why its answer is not judged, where it is not."""
    billed: Billed | None = None
    """On whose bill it is; None if on no policy's."""
    position: float | None = None
    """Where on its ladder the policy stands; None for a policy of one rung."""
    rung: int | None = None
    """By which rung it goes; None for a policy of one rung."""


def text_bytes(messages: Sequence[Mapping[str, Any]]) -> int:
    """Bytes of the text in messages, in UTF-8; images and the like count for nothing.

    >>> text_bytes([{"content": "Größe"}, {"content": [{"type": "text", "text": "?"}, {"type": "image_url"}]}])
    8
    """
    total = 0
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list | tuple) else [{"text": content}]
        texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
        total += sum(len(text.encode("utf-8", "replace")) for text in texts if isinstance(text, str))
    return total


def request_bytes(messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> int:
    """Bytes of what a request has a model read: the text of its messages, and tools and their calls as JSON."""
    tools = [options.get("tools"), options.get("functions"), *(one.get("tool_calls") for one in messages)]
    return text_bytes(messages) + sum(len(json.dumps(one, default=str)) for one in tools if one)


_PAIRS = "questions must be pairs of an id and messages"


def check_question(query: Any, messages: Any, of: str = "") -> None:
    """Refuse an id and messages that can be none; `of` says which question of several it is."""
    if isinstance(query, bool) or not isinstance(query, Integral | str | None):
        raise TypeError(f"query{of} must be a whole number or a text that names it, not {what_it_is(query)}")
    if isinstance(query, str) and not query.strip():
        raise ValueError(f"query{of} must be a text that is not empty, or a whole number")
    wanted = f"messages{of} must be a text, or a list of messages as the API has them"
    if isinstance(messages, str):
        return
    if isinstance(messages, bytes | bytearray) or not isinstance(messages, Sequence):
        raise TypeError(f"{wanted}, not {what_it_is(messages)}")
    if not messages:
        raise ValueError(f"{wanted}, not an empty one")
    for message in messages:
        if not isinstance(message, Mapping):
            raise TypeError(
                f"{wanted}, such as {{'role': 'user', 'content': '…'}}: one of them is {what_it_is(message)}"
            )


async def one_by_one(questions: Any) -> AsyncIterator[tuple[int | str, Messages]]:
    """The questions of any iterable, as they are needed; those of a list are checked before the first costs money.

    Raises TypeError or ValueError for what is no pair of an id and messages.
    """
    if isinstance(questions, str | bytes | Mapping) or not isinstance(questions, Iterable | AsyncIterable):
        advice = ": give .items() of it" if isinstance(questions, Mapping) else ""
        raise TypeError(f"{_PAIRS}, not {what_it_is(questions)}{advice}")
    if isinstance(questions, AsyncIterable):
        index = 0
        async for question in questions:
            yield _pair(question, index)
            index += 1
        return
    if isinstance(questions, Sequence):
        for index, question in enumerate(questions):
            _pair(question, index)
    for index, question in enumerate(questions):
        yield _pair(question, index)


def _pair(question: Any, index: int) -> tuple[int | str, Messages]:
    """(the id, the messages) of a question, which is at this place, from 0."""
    if not isinstance(question, tuple | list) or len(question) != 2:
        raise TypeError(f"{_PAIRS}: question {index + 1} is {what_it_is(question)}")
    if question[0] is None:
        raise TypeError(f"{_PAIRS}: question {index + 1} has no id")
    check_question(*question, of=f" of question {index + 1}")
    return question[0], question[1]
