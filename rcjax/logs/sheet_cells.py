"""Tables that people open in a spreadsheet: no cell runs as a formula there, and each is read as it was written.

A cell that begins as a formula does is written behind an apostrophe, the sign of spreadsheets for a text.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from rcjax._base.files import write_atomically
from rcjax.logs.dialects import open_text
from rcjax.logs.errors import LogError

#: What a person writes for right and for wrong, by its folded letters.
VERDICTS = {"1": True, "true": True, "yes": True, "y": True, "0": False, "false": False, "no": False, "n": False}

# Behind blanks, and signs that nobody sees and that spreadsheets may leave out.
_FORMULA = re.compile(r"'*(?:[\s\x00-\x20\x7f\u00ad\u200b-\u200f\u2060-\u2064\ufeff]*[=+\-@＝＋－＠﹦﹢﹣﹫]|[\t\r\n])")

_NUMBER = re.compile(r"[+-]?\d+(?:[.,]\d+)*\s?%?")

_HALVES = re.compile("[\ud800-\udfff]")


def safe_cell(text: str) -> str:
    """A text as a cell that no spreadsheet takes for a formula; numbers stay what they are.

    >>> safe_cell("=1+1"), safe_cell("-5"), safe_cell("'@a")
    ("'=1+1", '-5', "''@a")
    """
    return f"'{text}" if _is_formula(text) else text


def plain_cell(text: str) -> str:
    """What such a cell was made of.

    >>> plain_cell("'=1+1"), plain_cell("'tis"), plain_cell("''@a")
    ('=1+1', "'tis", "'@a")
    """
    return text[1:] if text.startswith("'") and _is_formula(text[1:]) else text


def _is_formula(text: str) -> bool:
    return _FORMULA.match(text) is not None and _NUMBER.fullmatch(text) is None


def write_table(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """Write a table whole, in CSV; half of a pair of surrogates, which no file can hold, becomes a U+FFFD."""
    content = io.StringIO()
    csv.writer(content).writerows([safe_cell(text) for text in row] for row in rows)
    write_atomically(path, _HALVES.sub("\ufffd", content.getvalue()))


def read_table(path: Path, names: Collection[str]) -> list[list[str]]:
    """The rows of a table, its header first, whatever separator and encoding a spreadsheet has given it.

    Args:
        path: of the table.
        names: of its columns, which tell the separator.

    Raises LogError where it cannot be read.
    """
    csv.field_size_limit(2**27)
    try:
        text = open_text(path, names)
        with text.open() as file:
            content = io.StringIO(file.read().decode("utf-8-sig"), newline="")
        rows = csv.reader(content, delimiter=text.separator or ",", strict=True)
        return [[plain_cell(cell) for cell in row] for row in rows if row]
    except (UnicodeDecodeError, csv.Error):
        raise LogError(f"{path.name}: cannot be read: save it as CSV, in UTF-8") from None
    except ValueError as error:
        raise LogError(f"{path.name}: {error}") from None
