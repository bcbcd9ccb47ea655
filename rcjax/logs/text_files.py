"""The lines of a text file, which polars does not tell: where each record starts, and which line is broken or cut."""

import dataclasses
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

#: How each line of a call log begins.
CALL = b'{"call_log": '

_BLOCK = 2**22  # bytes of text under a search at a time

_SIGNS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A CSV or JSON Lines file as it is read: UTF-8, lines that end in a newline."""

    content: Path | bytes
    """Where the text is: the file itself, or what was made of it where it is written in another way."""
    separator: str | None = ","
    """What stands between the fields of a CSV file; None for JSON Lines."""

    def open(self) -> BinaryIO:
        """The text as a file of bytes."""
        return io.BytesIO(self.content) if isinstance(self.content, bytes) else open(self.content, "rb")


def find_damage(text: TextFile) -> str | None:
    """Say which line of a CSV or JSON Lines file is broken, and how; None if nothing is found.

    The words continue a message that starts with the file's name.

    >>> find_damage(TextFile(b"[1]", separator=None))
    ', line 1: not a JSON object: write one object per line'
    """
    line = 0
    try:
        with text.open() as file:
            for line, record in enumerate(file, start=1):
                words = record.decode().strip() or "{}"
                if text.separator is None and not isinstance(_parsed(words), dict):
                    return f", line {line}: not a JSON object: write one object per line"
    except UnicodeDecodeError:
        return f", line {line}: not UTF-8 text: save the file as UTF-8"
    except json.JSONDecodeError as error:
        return f", line {line}: not JSON: {error.msg}: write one object per line"
    except RecursionError:
        return f", line {line}: lists or objects nested too deep: write one object per line, its values plain"
    except ValueError:  # of int("-Infinity")
        return f", line {line}: JSON has no infinity and no NaN: write them in quotes"
    return None if text.separator is None else _ragged(text)


def _parsed(words: str) -> dict[str, str] | list[str]:
    return json.loads(words, parse_int=str, parse_float=str, parse_constant=int)


def _ragged(text: TextFile) -> str | None:
    """The first record of a CSV file with more fields than its header has."""
    header = None
    for lines, fields in csv_records(text):
        if not len(fields):
            continue
        header = int(fields[0]) if header is None else header
        i = int(np.argmax(fields > header))
        if fields[i] > header:
            count = f"{fields[i]} fields, {header} in the header"
            return f", line {lines[i]}: {count}: put text that holds {_SIGNS[text.separator or ',']} in quotes"
    return None


def sound_calls(text: TextFile) -> tuple[TextFile, int]:
    """(the lines of a call log that are whole, how many are not); any text without such lines (as it is, 0).

    A line is cut off where the process that wrote it was killed: it is the last one, or was until the log was opened
    again. What does not begin as a line of a call log does is kept, for others to find fault with.
    """
    if not holds_calls(text):
        return text, 0
    with text.open() as file:
        cut = {number for number, line in enumerate(file) if _is_cut(line.strip())}
        if not cut:
            return text, 0
        file.seek(0)
        whole = b"".join(line for number, line in enumerate(file) if number not in cut and line.strip())
        return dataclasses.replace(text, content=whole), len(cut)


def holds_calls(text: TextFile) -> bool:
    """Whether the first line begins as a call does, apart from what was cut off before it got that far.

    >>> holds_calls(TextFile(b'{"call_log": 1, "que', separator=None)), holds_calls(TextFile(b"{}", separator=None))
    (True, False)
    """
    any_text = False
    with text.open() as file:
        line = file.readline(len(CALL) + 1)
        while line and len(line.strip()) < len(CALL) and CALL.startswith(line.strip()):
            any_text |= line.startswith(CALL[:1])
            line = file.readline(len(CALL) + 1)
    return line.startswith(CALL) or (not line and any_text)


def _is_cut(line: bytes) -> bool:
    # A line that ends so is whole, as a quote within a text has a backslash before it, unless the quote is the one that
    # the text begins with: parsing most would take long.
    ends = line[-2:] == b'"}' and line[-3:] != b'\\"}' and line[-4:] != b': "}'
    if not line or line[: len(CALL)] != CALL[: len(line)] or ends:
        return False
    try:
        json.loads(line)
    except RecursionError:  # for polars to find fault with
        return False
    except ValueError:
        return True
    return False


def csv_records(text: TextFile) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of the records of a CSV file, some at a time, the line that each starts in, from 1, and its number of fields.

    The header comes first; last, where the file ends in a newline, the empty rest after it.
    """
    start, commas_before, newlines, quotes = 1, 0, 0, 0  # of the record that a block of text breaks off in
    comma = ord(text.separator or ",")
    with text.open() as file:
        while block := file.read(_BLOCK):
            codes = np.frombuffer(block, dtype=np.uint8)
            marks = np.cumsum(codes == ord('"'), dtype=np.int32) + quotes % 2
            unquoted = marks % 2 == 0  # quoted text may hold commas and run over lines
            newline = codes == ord("\n")
            ends = np.flatnonzero(newline & unquoted)
            commas = np.flatnonzero((codes == comma) & unquoted)
            counts = np.bincount(np.searchsorted(ends, commas), minlength=len(ends) + 1)
            counts[0] += commas_before
            starts = np.append(start, newlines + np.cumsum(newline, dtype=np.int32)[ends] + 1)
            yield starts[:-1], 1 + counts[:-1]
            start, commas_before, newlines, quotes = starts[-1], counts[-1], newlines + newline.sum(), marks[-1]
    yield np.array([start]), np.array([1 + commas_before])


def csv_line(text: TextFile, record: int) -> int:
    """The line, from 1, that a record of a CSV file starts in; the header is record 0. Stray quotes hide records."""
    before = 0
    for lines, _ in csv_records(text):
        if record < before + len(lines):
            return int(lines[record - before])
        before += len(lines)
    return record + 1
