"""The output of an importer: for each answer a line of a call log with a score, as JSON values by name.

- `query`, `model`: texts; a query has the same name for all models.
- `sample`: number of the answer among several of a model to the query, from 1; without it, the next in file order.
- `answer`, `prompt`, `likeliest`: texts, as in a call log. `answer_key` replaces `answer`: the answer that a scorer
  extracted from a longer reply, which a service would have to extract too.
- `logprob`, `signal`: raw confidence and its source (`evaluations.SIGNALS`); absent if unknown.
- `correct`, `scorer`: score, as the file has it, and name of the scorer. Without `correct`, labels come later.
- `error`: reason for a missing answer or, with `unread`, for a missing confidence.
- `input_tokens`, `output_tokens`: tokens of all calls; `estimated`: the tokens are estimated from the texts.
- `cached_tokens`, `cache_write_tokens`: input tokens read from a cache, and written to one.
- `cost`, `seconds`, `finish`: money, latency, and finish reason in the words of the API.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rcjax.logs.columns import CACHED, TOKENS
from rcjax.logs.errors import LogError
from rcjax.serving.failures import ends_badly

#: An answer, by the names in the module's docstring.
Line = dict[str, Any]

_TEXTS = ("query", "model", "scorer", "error", "answer", "answer_key", "prompt", "finish", "likeliest")
_AMOUNTS = (*TOKENS, *CACHED, "cost", "seconds")

#: Characters per token of English text, for files without token counts.
CHARACTERS = 4.0


class DamageError(LogError):
    """A file, or a part of one, is not as its program writes it; it is left out if others can be read."""


class WrongValueError(ValueError):
    """A value of a line has a wrong type; the message names it."""


@dataclass(frozen=True)
class How:
    """Options of an import, which the files leave open."""

    format: str | None = None
    """Name of one of `gathering.FORMATS`; None to recognise each file by its content."""
    scorer: str | None = None
    """Name of the scorer, filter or metric whose scores count, if there are several."""
    rename: Mapping[str, str] = field(default_factory=dict)
    """New names of models, by the old ones."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Names of a table's columns, by the canonical names."""
    prompts: bool = False
    """Keep the prompts in the log, for a person to label."""
    score_max: float = 1.0
    """Full score."""
    seen: set[str] = field(default_factory=set, repr=False, compare=False)
    """Columns of all tables read so far."""


class Format(NamedTuple):
    """A format of files; a new one needs a place in `gathering.FORMATS`."""

    name: str
    """Value of `--format`."""
    files: str
    """Description of its files, for messages."""
    recognises: Callable[[Path, bytes], bool]
    """Predicate of a file's path and first bytes."""
    read: Callable[[Path, How], Iterator[Line | DamageError]]
    """Reader: yields lines in file order, and damage to parts; raises DamageError if the whole file is unreadable, and
    LogError if an option is missing or wrong."""


def holding(*keys: bytes) -> Callable[[Path, bytes], bool]:
    """Return a predicate of files: a JSON object or array with all these keys in its beginning."""

    def recognises(path: Path, head: bytes) -> bool:
        starts = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")
        return starts and all(b'"%b"' % key in head for key in keys)

    return recognises


def unread(why: str) -> Line:
    """Return the values of a line whose confidence cannot be read."""
    return {"error": why, "unread": True}


def checked(line: Line) -> Line:
    """Check and normalise the values of a line. Raises WrongValueError for a value of a wrong type.

    Names are stripped and in Unicode's normal form NFC, so that they agree between files; a lone surrogate becomes `?`.
    A reply whose finish reason is a failure gets an error.

    >>> checked({"query": " e\\u0301 ", "model": "m"})["query"] == "\\xe9"
    True
    """
    for name in _TEXTS:
        value = line.get(name)
        if not isinstance(value, str) and (value is not None or name in ("query", "model")):
            raise WrongValueError(f"{name} is {value!r:.40}, no text")
        if value is not None:
            line[name] = value.encode(errors="replace").decode()
    if ends_badly(line.get("finish")) and (line.get("error") is None or line.get("unread")):
        line |= {"error": f"with a failure in place of an answer ({line['finish']:.40})", "unread": False}
    for name in ("query", "model"):
        line[name] = unicodedata.normalize("NFC", line[name]).strip()
    for name in _AMOUNTS:
        if line.get(name) is not None and amount_of(line[name]) is None:
            raise WrongValueError(f"{name} is {line[name]!r:.40}, no amount of 0 or more")
    return line


def tokens_of(sent: Any, received: Any, prompt: str | None, replies: Iterable[str | None]) -> Line:
    """Return the token counts of an answer, or estimate them from the texts if they are missing and a prompt is known.

    Args:
        sent, received: counts in the file, or None.
        prompt: prompt of each call, or None.
        replies: reply of each call.

    >>> tokens_of(7, 1, None, []), tokens_of(None, None, "What is it?", ["B"])["estimated"]
    ({'input_tokens': 7, 'output_tokens': 1}, True)
    """
    texts = list(replies)
    if prompt is None or (sent and received is not None):  # no prompt has 0 tokens
        return {"input_tokens": sent, "output_tokens": received}
    characters = len(texts) * len(prompt), sum(len(text or "") for text in texts)
    sent, received = (max(1, round(number / CHARACTERS)) for number in characters)
    return {"input_tokens": sent, "output_tokens": received, "estimated": True}


def amount_of(value: Any, per: float = 1.0) -> float | None:
    """Return a finite number of 0 or more, divided by `per`; None for any other value.

    >>> amount_of(250, 1000), amount_of(None), amount_of("soon")
    (0.25, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        return None
    return value / per


def require(condition: bool, where: str, what: str) -> None:
    """Raise LogError with the place and the problem unless a condition holds."""
    if not condition:
        raise LogError(f"{where}: {what}")


def require_sound(condition: bool, where: str, what: str) -> None:
    """Raise DamageError with the place and the problem unless a condition holds."""
    if not condition:
        raise DamageError(f"{where}: {what}")


def pieces(where: str, program: str, read: Callable[[], Iterable[Line]]) -> Iterator[Line | DamageError]:
    """Yield the checked lines of one piece of a file, or the damage if the piece is not as its program writes it.

    Args:
        where: place of the piece, for messages.
        program: name of the program that wrote the file.
        read: returns the lines; a KeyError or the like from it means damage.
    """
    try:
        lines: list[Line | DamageError] = [checked(line) for line in read()]
    except DamageError as damage:
        lines = [damage]
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as problem:
        if isinstance(problem, LogError):
            raise
        lines = [DamageError(f"{where}: is not as {program} writes it ({_in_words(problem)}): is it whole?")]
    yield from lines


def _in_words(problem: Exception) -> str:
    """Describe the damage to a piece of a file without quoting Python's messages.

    >>> _in_words(KeyError("response")), _in_words(AttributeError("'list' object has no attribute 'get'"))
    ("'response' is missing", 'a value is of another kind')
    """
    if isinstance(problem, WrongValueError):
        return str(problem)
    if isinstance(problem, KeyError) and problem.args and isinstance(problem.args[0], str):
        return f"{problem.args[0]!r:.40} is missing"
    return "it is nested too deep" if isinstance(problem, RecursionError) else "a value is of another kind"


def lines_of(
    path: Path, program: str, read: Callable[[Mapping[str, Any], str], Iterable[Line]]
) -> Iterator[Line | DamageError]:
    """Yield the lines of all JSON objects in a file, and the damage to unreadable ones.

    A file is JSON Lines, with an object or an array of objects in each line, or one array or object over many lines.
    Raises DamageError if the file is not text, or has no object.

    Args:
        path: path of the file.
        program: name of the program that wrote the file.
        read: returns the lines of an object, given the object and its place; an error means damage to this object.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            first = next((line for line in file if line.strip()), "")
        document = None if _parsed(first) is not None else _parsed(path.read_text("utf-8-sig"))
        any_record = False
        for position, content in _values(path) if document is None else [("", document)]:
            for where, record in _objects(content, f"{path.name}{position}"):
                any_record = True
                if isinstance(record, dict):
                    yield from pieces(where, program, partial(read, record, where))
                else:
                    yield DamageError(f"{where}: is not as {program} writes it (no JSON object): is it whole?")
    except (OSError, UnicodeError) as problem:
        raise DamageError(f"{path.name}: cannot be read as {program} writes it: {problem}: is it whole?") from None
    if not any_record:
        raise DamageError(f"{path.name}: holds no answers: was it written completely?")


def document_of(path: Path, program: str) -> Any:
    """Return the content of a JSON file; NaN and long numbers are allowed. Raises DamageError if it is unreadable."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, RecursionError, ValueError) as problem:
        raise DamageError(f"{path.name}: cannot be read as {program} writes it: {problem}: is it whole?") from None


def _values(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (place, value) of each line that is not blank; the value of invalid JSON is None."""
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f", line {number}", _parsed(line)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (RecursionError, ValueError):
        return None


def _objects(content: Any, where: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(content, list):
        yield where, content
        return
    for number, record in enumerate(content, 1):
        yield f"{where}, entry {number}", record
