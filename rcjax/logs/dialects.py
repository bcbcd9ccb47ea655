"""How people write their text files: the encoding, the ends of lines, the separator, the names of the columns.

All of it is told by the beginning of a file. What is written as polars reads it is left where it is, to be streamed;
any other text is brought into that form in memory.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from rcjax.logs.text_files import TextFile

#: Tables with a separator; by the names of files.
SEPARATED = (".csv", ".tsv")

_BEGINNING = 2**16  # bytes that tell how a file is written

_SEPARATORS = ",;\t|"


def open_text(path: Path, names: Collection[str]) -> TextFile:
    """A CSV or JSON Lines file as UTF-8 with newlines, and its separator: the one that gives most of the `names`.

    UTF-16 and UTF-32 are told by their byte order mark, or by the zeros in their first four bytes. Raises ValueError
    where the text is not what they tell.
    """
    with open(path, "rb") as file:
        start = file.read(_BEGINNING)
    separated = path.suffix.lower() in SEPARATED
    encoding = json.detect_encoding(start)
    as_it_is = encoding == "utf-8" or (separated and encoding == "utf-8-sig")  # polars knows the mark in CSV alone
    content: Path | bytes = path
    if not as_it_is or _ends_in_returns(start):
        content = _as_utf8(path.read_bytes(), encoding)
        start = content[:_BEGINNING]
    return TextFile(content, _separator(start, names) if separated else None)


def plain_name(column: str) -> str:
    """The name of a column in the way that ours are written.

    >>> plain_name(" Input Tokens"), plain_name("LogProb")
    ('input_tokens', 'logprob')
    """
    return re.sub(r"[\s-]+", "_", column.strip("\ufeff").strip().lower())


def known_names(columns: Sequence[str], names: Collection[str]) -> list[str]:
    """The columns under the names that are ours, as far as they are; one that is spelt as ours overrides the others.

    >>> known_names(["Query", "model", "MODEL", "note"], {"query", "model"})
    ['query', 'model', 'MODEL', 'note']
    """
    plain = [plain_name(column) for column in columns]
    return [
        ours if ours in names and ours not in columns else column for column, ours in zip(columns, plain, strict=True)
    ]


def _ends_in_returns(start: bytes) -> bool:
    return b"\r" in start and b"\n" not in start


def _as_utf8(content: bytes, encoding: str) -> bytes:
    if encoding in ("utf-8", "utf-8-sig"):
        text = content.removeprefix(codecs.BOM_UTF8)
    else:
        try:
            text = content.decode(encoding).removeprefix("\ufeff").encode()
        except UnicodeError:
            raise ValueError(f"begins as {encoding.upper()}, but is not: save the file as UTF-8") from None
    return text.replace(b"\r", b"\n") if _ends_in_returns(text[:_BEGINNING]) else text


def _separator(start: bytes, names: Collection[str]) -> str:
    """The separator of a table by its header. csv.Sniffer goes by any sign that recurs, even by letters."""
    lines = io.StringIO(start.decode("utf-8-sig", "replace").lstrip("\r\n"), newline="")
    first = _SEPARATORS[0]
    best = (0, 0)
    for separator in _SEPARATORS:
        lines.seek(0)
        try:
            fields = next(csv.reader(lines, delimiter=separator), [])
        except csv.Error:  # a field longer than the module takes
            continue
        score = (sum(plain_name(field) in names for field in fields), len(fields))
        if score > best:
            first, best = separator, score
    return first
