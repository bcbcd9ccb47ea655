"""Large JSON files a piece at a time: the members of an object, and the entries of one list in it.

By Python's own decoder, which takes what evaluations write: ijson is no faster, and refuses NaN and whole numbers of
more than 64 bits.
"""

import json
from collections.abc import Iterator
from typing import Any, TextIO

_CHUNK = 1 << 20
_SPACE = " \t\r\n"


def members(file: TextIO, streamed: str) -> Iterator[tuple[str, Any]]:
    """(name, value) of every member of the object that a file holds; of the member `streamed`, a list, every entry.

    No more than one value is held at a time. Raises ValueError where the text is no JSON object, or ends too early.

    >>> import io
    >>> [*members(io.StringIO('{"a": 1, "samples": [2, {"b": 3}]}'), "samples")]
    [('a', 1), ('samples', 2), ('samples', {'b': 3})]
    """
    text = _Text(file)
    text.take("{")
    if text.peek() == "}":
        return
    while True:
        name = text.value()
        text.take(":")
        if name == streamed and text.peek() == "[":
            text.take("[")
            while text.peek() != "]":
                yield name, text.value()
                if text.peek() != "]":
                    text.take(",")
            text.take("]")
        else:
            yield name, text.value()
        if text.peek() == "}":
            return
        text.take(",")


class _Text:
    """A text that is read as far as it is needed."""

    def __init__(self, file: TextIO) -> None:
        self.file, self.buffer, self.position, self.ended = file, "", 0, False
        self.decoder = json.JSONDecoder()

    def _more(self) -> None:
        if self.ended:
            raise ValueError("the file ends too early")
        # Twice as much as there is, so that a value of any size is tried few times only.
        more = self.file.read(max(_CHUNK, len(self.buffer) - self.position))
        self.ended = not more
        self.buffer, self.position = self.buffer[self.position :] + more, 0

    def peek(self) -> str:
        """The next character that is no space; it stays."""
        while True:
            while self.position < len(self.buffer):
                if self.buffer[self.position] not in _SPACE:
                    return self.buffer[self.position]
                self.position += 1
            self._more()

    def take(self, character: str) -> None:
        """Pass the next character, which must be this one."""
        if self.peek() != character:
            raise ValueError(f"{self.buffer[self.position]!r} where {character!r} should be")
        self.position += 1

    def value(self) -> Any:
        """The next value. One at the end of what was read may go on: it is read again with more."""
        self.peek()
        while True:
            try:
                value, end = self.decoder.raw_decode(self.buffer, self.position)
            except json.JSONDecodeError as error:
                if self.ended or (error.pos < len(self.buffer) - 64 and "Unterminated" not in error.msg):
                    raise ValueError(f"{error.msg} at character {error.pos - self.position} of a value") from None
                self._more()
                continue
            # A number may go on behind two characters more: "1.5e+" is read as 1.5.
            if end + 2 < len(self.buffer) or self.ended:
                self.position = end
                return value
            self._more()
