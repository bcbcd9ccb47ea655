"""Text chunks of a stream, passed on without parsing.

A server repeats id, model and time with every word. A chunk that equals an earlier one but for the text is neither
parsed nor encoded as JSON: the bytes of its text are put between the bytes that all such chunks share. Standard library
only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Fields whose texts vary: the delta's text, and OpenAI's padding that hides the sizes of pieces.
_VARYING = ("content", "obfuscation")

_MARK = "\0rcjax-"  # begins a text that no model writes

_DECODER = json.JSONDecoder()

_TRIES = 20  # patterns learnt from one stream: if its chunks share nothing, it is parsed as usual


class TextChunk(dict[str, Any]):
    """A chunk that equals an earlier one but for its texts."""

    __slots__ = ("literals", "pattern", "text")

    pattern: Pattern
    """The pattern that it shares with the earlier chunk."""
    literals: list[str]
    """Its texts as JSON in ASCII, in their order."""
    text: str
    """The text of its delta."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The text around the varying texts of a chunk."""

    parts: tuple[str, ...]
    """The text before, between and after the varying texts."""
    names: tuple[str, ...]
    """The fields of the varying texts, in their order."""
    chunk: Mapping[str, Any]
    """The chunk from which the pattern was learnt."""

    def read(self, data: str) -> TextChunk | None:
        """Read a chunk from the data of an event; None if it differs in more than its texts.

        >>> first = '{"choices": [{"index": 0, "delta": {"content": "Par"}}]}'
        >>> found = Pattern.of(first, json.loads(first)).read(first.replace("Par", "is"))
        >>> found["choices"], found.literals
        ([{'index': 0, 'delta': {'content': 'is'}}], ['"is"'])
        """
        place = 0
        texts = list[str]()
        literals = list[str]()
        plain = data.isascii()
        for part in self.parts[:-1]:
            if not data.startswith(part, place) or not data.startswith('"', start := place + len(part)):
                return None
            try:
                text, place = _DECODER.raw_decode(data, start)
            except ValueError:
                return None
            texts.append(text)
            literals.append(data[start:place] if plain else json.dumps(text))
        return self.of_texts(texts, literals) if data[place:] == self.parts[-1] else None

    def of_texts(self, texts: Sequence[str], literals: list[str]) -> TextChunk:
        """Return the chunk with other texts."""
        chunk = TextChunk(self.chunk)
        named = dict(zip(self.names, texts, strict=True))
        (choice,) = self.chunk["choices"]
        chunk.pattern, chunk.literals, chunk.text = self, literals, named["content"]
        chunk["choices"] = [{**choice, "delta": {**choice["delta"], "content": chunk.text}}]
        if "obfuscation" in named:
            chunk["obfuscation"] = named["obfuscation"]
        return chunk

    def marked(self) -> TextChunk:
        """Return the chunk with a mark in place of each text, so that `split` finds the places in a document."""
        marks = [f"{_MARK}{name}" for name in self.names]
        return self.of_texts(marks, [json.dumps(mark) for mark in marks])

    def split(self, written: bytes) -> list[bytes] | None:
        """Return the bytes before, between and after the marks of a document; None if a mark is missing."""
        parts, rest = list[bytes](), written
        for name in self.names:
            part, mark, rest = rest.partition(json.dumps(f"{_MARK}{name}").encode())
            if not mark:
                return None
            parts.append(part)
        return [*parts, rest]

    @classmethod
    def of(cls, data: str, chunk: Mapping[str, Any]) -> Pattern | None:
        """Learn the pattern of a chunk from its data; None if more than its text may vary."""
        if not _has_text_alone(chunk):
            return None
        spans = sorted(
            (*span, name) for name in _VARYING if name == "content" or name in chunk for span in _find(data, name)
        )
        names = tuple(name for _, _, name in spans)
        if len(set(names)) < len(names) or "content" not in names:
            return None
        ends = [0, *(end for _, end, _ in spans)], [*(start for start, _, _ in spans), len(data)]
        pattern = cls(tuple(data[start:end] for start, end in zip(*ends, strict=True)), names, chunk)
        marked = pattern.marked()
        return pattern if _has_marks(pattern, marked) else None


def _has_text_alone(chunk: Mapping[str, Any]) -> bool:
    """Return whether a chunk has a text, and nothing else that matters."""
    choices = chunk["choices"]
    if len(choices) != 1 or chunk.get("usage") or chunk.get("x_groq"):
        return False
    (choice,) = choices
    delta = choice.get("delta")
    others = {name: value for name, value in choice.items() if name not in ("index", "delta") and value is not None}
    is_plain = choice.get("index") == 0 and not others and isinstance(delta, Mapping)
    if not is_plain or not isinstance(delta.get("content"), str):
        return False
    return all(value is None for name, value in delta.items() if name not in ("content", "role"))


def _find(data: str, name: str) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each text of a field."""
    key, place = f'"{name}":', 0
    while (place := data.find(key, place)) >= 0:
        place += len(key)
        start = place + len(data[place:]) - len(data[place:].lstrip(" "))
        if data.startswith('"', start):
            try:
                yield start, _DECODER.raw_decode(data, start)[1]
            except ValueError:
                return


def _has_marks(pattern: Pattern, marked: TextChunk) -> bool:
    """Return whether a pattern's JSON has the marks in the same fields as the chunk."""
    pairs = zip(pattern.parts, [*marked.literals, ""], strict=True)
    try:
        read = json.loads("".join(text for pair in pairs for text in pair))
    except (ValueError, RecursionError):
        return False
    texts = read["choices"][0]["delta"]["content"], read.get("obfuscation")
    return texts == (marked.text, marked.get("obfuscation"))


@dataclass(slots=True)
class Patterns:
    """The last pattern of a stream, and the number of patterns that may still be learnt."""

    _last: Pattern | None = None
    _data: str = ""
    _left: int = field(default=_TRIES)

    def read(self, data: str) -> TextChunk | None:
        """Read a chunk from the data of an event; None if it differs from the last pattern."""
        self._data = data
        return None if self._last is None else self._last.read(data)

    def learn(self, chunk: Mapping[str, Any]) -> None:
        """Learn the pattern of a chunk that was parsed from the last data."""
        if self._left:
            pattern = Pattern.of(self._data, chunk)
            self._last = pattern or self._last
            self._left -= pattern is not None
        self._data = ""  # it may be long
