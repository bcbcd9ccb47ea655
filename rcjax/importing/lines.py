"""What an importer gives: for each answer a line of a call log, as JSON values by name, beside what a scorer said.

- `query`, `model`: texts; the same query has the same name for all models.
- `sample`: which of several answers to the query it is, from 1; none: the next, in the order of the files.
- `answer`, `prompt`, `likeliest`: texts, as the call log has them. `answer_key`, in place of the first: what a scorer
  took for the answer in a longer reply, and a service would have to take out of it, too.
- `logprob`, `signal`: the raw confidence, and where it comes from (`evaluations.SIGNALS`); none: it is unknown.
- `correct`, `scorer`: what the scorer gave, as the file has it, and what it is called. Without `correct`, labels are to
  come.
- `error`: why there is no answer; with `unread`, why there is no confidence in the one that there is.
- `input_tokens`, `output_tokens`: of all calls; `estimated`: nobody counted tokens.
- `cached_tokens`, `cache_write_tokens`: of the input, what came from a cache, and what was put into one.
- `cost`, `seconds`, `finish`: money, time, and why the reply ended, as APIs say it.
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

#: One answer.
Line = dict[str, Any]

_TEXTS = ("query", "model", "scorer", "error", "answer", "answer_key", "prompt", "finish", "likeliest")
_AMOUNTS = (*TOKENS, *CACHED, "cost", "seconds")

#: Characters of a token, where a file counts none: of English text.
CHARACTERS = 4.0


class DamageError(LogError):
    """A file, or a part of one, that cannot be read as its program writes it: it is left out where others can."""


class WrongValueError(ValueError):
    """A value of a line that is of no kind that it may have; the message says which."""


@dataclass(frozen=True)
class How:
    """How evaluations are read, where their files leave a choice."""

    format: str | None = None
    """The name of one of `gathering.FORMATS`; None: by the content of each file."""
    scorer: str | None = None
    """Whose scores count, where there are several: a scorer, a filter or a metric."""
    rename: Mapping[str, str] = field(default_factory=dict)
    """New names of models, by the old ones."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Names of a table's columns, by ours."""
    prompts: bool = False
    """Whether the log is to say what was asked, for a person to label."""
    score_max: float = 1.0
    """The full score."""
    seen: set[str] = field(default_factory=set, repr=False, compare=False)
    """The columns of all tables that were read so far."""


class Format(NamedTuple):
    """One kind of file; a new one needs a place in `gathering.FORMATS`."""

    name: str
    """What `--format` calls it."""
    files: str
    """What its files are, in words."""
    recognises: Callable[[Path, bytes], bool]
    """Tells a file by its path and first bytes."""
    read: Callable[[Path, How], Iterator[Line | DamageError]]
    """The lines in the order of the file, and what of it cannot be read; raises DamageError where the whole cannot, and
    LogError where a person must choose something."""


def holding(*keys: bytes) -> Callable[[Path, bytes], bool]:
    """What recognises an object or an array of JSON with all these keys in its beginning."""

    def recognises(path: Path, head: bytes) -> bool:
        starts = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")
        return starts and all(b'"%b"' % key in head for key in keys)

    return recognises


def unread(why: str) -> Line:
    """The part of the line of an answer whose confidence cannot be read."""
    return {"error": why, "unread": True}


def checked(line: Line) -> Line:
    """A line whose values are of their kinds; half of a pair of surrogates becomes a `?`.

    Names are composed letters without blanks around them, so that two files call a query alike. A reply whose reason
    to end is a failure is an error. Raises WrongValueError.

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
    """The tokens of an answer, as counted; where they are not, estimated by the texts, if there is a prompt.

    Args:
        sent, received: as the file counts them; None if it does not.
        prompt: what was asked, in each call.
        replies: to each call.

    >>> tokens_of(7, 1, None, []), tokens_of(None, None, "What is it?", ["B"])["estimated"]
    ({'input_tokens': 7, 'output_tokens': 1}, True)
    """
    said = list(replies)
    if prompt is None or (sent and received is not None):  # no prompt has 0 tokens
        return {"input_tokens": sent, "output_tokens": received}
    characters = len(said) * len(prompt), sum(len(text or "") for text in said)
    sent, received = (max(1, round(number / CHARACTERS)) for number in characters)
    return {"input_tokens": sent, "output_tokens": received, "estimated": True}


def amount_of(value: Any, per: float = 1.0) -> float | None:
    """A number of 0 or more that a file tells, in units of which so many make ours; None for anything else.

    >>> amount_of(250, 1000), amount_of(None), amount_of("soon")
    (0.25, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        return None
    return value / per


def require(condition: bool, where: str, what: str) -> None:
    """Refuse a file: LogError with the place and what is wrong there."""
    if not condition:
        raise LogError(f"{where}: {what}")


def require_sound(condition: bool, where: str, what: str) -> None:
    """Raise DamageError with the place and what cannot be read there."""
    if not condition:
        raise DamageError(f"{where}: {what}")


def pieces(where: str, program: str, read: Callable[[], Iterable[Line]]) -> Iterator[Line | DamageError]:
    """The lines of one piece of a file, or the damage where it is not as its program writes it.

    Args:
        where: the place, for the message.
        program: whose file it is.
        read: gives the lines; its KeyError and the like mean that the piece is damaged.
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
    """What is wrong with a piece of a file, without the words of Python.

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
    """The lines of all objects of JSON in a file, and the damage of those that cannot be read.

    A file is JSON Lines, with an object or an array of them in each line, or else one array or object over many lines.
    Raises DamageError where the file is no text, or holds nothing.

    Args:
        path: the file.
        program: whose it is.
        read: gives the lines of an object and its place; what it raises of damage is that of this object.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            first = next((line for line in file if line.strip()), "")
        whole = None if _parsed(first) is not None else _parsed(path.read_text("utf-8-sig"))
        any_record = False
        for position, content in _values(path) if whole is None else [("", whole)]:
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
    """What a file of JSON holds. Raises DamageError where it cannot be read; NaN is read, and so are long numbers."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, RecursionError, ValueError) as problem:
        raise DamageError(f"{path.name}: cannot be read as {program} writes it: {problem}: is it whole?") from None


def _values(path: Path) -> Iterator[tuple[str, Any]]:
    """(place, value) of each line that is not blank; None for one that is no JSON."""
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
