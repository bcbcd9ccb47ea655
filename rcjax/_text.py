"""The lines of a text file, which polars does not tell: where each record starts, and which line is broken or cut."""

import json
from pathlib import Path

import numpy as np

#: How each line of a call log begins.
CALL = b'{"call_log": '


def find_damage(path: Path) -> str | None:
    """Say which line of a CSV or JSON Lines file is broken, and how; None where nothing is found, as in Parquet.

    The text continues a message that starts with the file's name.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
    >>> path.write_text("[1]")
    3
    >>> find_damage(path)
    ', line 1: not a JSON object: write one object per line'
    """
    line = 0
    try:
        text = "" if path.suffix.lower() == ".parquet" else path.read_text(encoding="utf-8")
        if path.suffix.lower() == ".csv":
            lines, fields = csv_records(path)
            i = int(np.argmax(fields > fields[0]))
            count = f"{fields[i]} fields, {fields[0]} in the header"
            return f", line {lines[i]}: {count}: put text that holds a comma in quotes" if i else None
        for line, record in enumerate(text.split("\n"), start=1):
            if not isinstance(json.loads(record.strip() or "{}", parse_constant=int), dict):
                return f", line {line}: not a JSON object: write one object per line"
    except UnicodeDecodeError:
        return ": not UTF-8 text: save the file as UTF-8"
    except json.JSONDecodeError as error:
        return f", line {line}: not JSON: {error.msg}: write one object per line"
    except ValueError:  # of int("-Infinity")
        return f", line {line}: JSON has no infinity and no NaN: write them in quotes"
    return None


def sound_calls(path: Path) -> tuple[bytes | Path, int]:
    """(the lines of a call log that are whole, how many are not); of any other file (its path, 0).

    A line is cut off where the process that wrote it was killed: it is the last one, or was until the log was opened
    again. What does not begin as a line of a call log does is kept, for others to find fault with.
    """
    with open(path, "rb") as file:
        if file.read(len(CALL)) != CALL:
            return path, 0
        file.seek(0)
        lines = file.read().split(b"\n")
    whole = [line for line in lines if line.strip() and not _is_cut(line)]
    return b"\n".join(whole), sum(map(bool, map(bytes.strip, lines))) - len(whole)


def _is_cut(line: bytes) -> bool:
    if line[: len(CALL)] != CALL[: len(line)]:
        return False
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


def csv_records(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the line, counted from 1, that each record of a CSV file starts in, and its number of fields.

    The header comes first; last, where the file ends in a newline, the empty rest after it.
    """
    text = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    unquoted = np.cumsum(text == ord('"')) % 2 == 0  # quoted text may hold commas and run over lines
    newline = text == ord("\n")
    ends = np.flatnonzero(newline & unquoted)
    commas = np.flatnonzero((text == ord(",")) & unquoted)
    fields = 1 + np.bincount(np.searchsorted(ends, commas), minlength=len(ends) + 1)
    return np.append(0, np.cumsum(newline)[ends]) + 1, fields
