"""What an importer gives, a line of a log to come for each answer; how files are read; what of them is damaged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rcjax.logs.errors import LogError


class DamageError(LogError):
    """A file, or a part of one, that cannot be read as its program writes it: it is left out where others can."""


@dataclass(frozen=True, slots=True)
class ImportedAnswer:
    """One answer of a model to a query, as an evaluation kept it; None for what its file does not say."""

    query: str
    """What names the query, the same for all models: the task, and the number in it."""
    model: str
    attempt: int | None = 1
    """Which of several answers to the same query it is; None: the next, in the order of the files."""
    score: Any = None
    """What the scorer gave, as the file has it; None: nothing."""
    scorer: str | None = None
    """What the file calls the scorer, or the metric; None where it has one alone, without a name."""
    judged: bool = True
    """Whether files of its kind tell right from wrong; where they do not, labels are to come."""
    failure: str | None = None
    """Why there is no answer to judge, such as "with an error"."""
    text: str | None = None
    """The answer, to be compared with others."""
    prompt: str | None = None
    """What was asked."""
    finish: str | None = None
    """Why the reply ended, as APIs say it, such as "stop" or "length"."""
    key: str | None = None
    """The same brought to a form by the user, to be compared as it is."""
    logprob: float | None = None
    """The raw confidence, as a log-probability."""
    signal: str | None = None
    """Where that comes from: see `evaluations.SIGNALS`."""
    unusable: str | None = None
    """Why what the file tells of it is no confidence, such as "a log-probability is NaN"; None where it is one."""
    likeliest: str | None = None
    """The choice that the model held likelier than the one it gave; None where there is none."""
    input_tokens: float | None = None
    output_tokens: float | None = None
    characters: tuple[int, int] | None = None
    """Of the prompt and of the reply: tokens are estimated by these, where they were not counted."""
    calls: int = 1
    """How many calls gave it, whose tokens and money these are."""
    cost: float | None = None
    """Money."""
    seconds: float | None = None
    """How long the call took."""

    def __post_init__(self) -> None:
        """Refuse, by a ValueError, what no line of a log holds; half of a pair of surrogates becomes a `?`."""
        for name in ("query", "model", "scorer", "failure", "text", "prompt", "finish", "key", "likeliest"):
            value = getattr(self, name)
            if not isinstance(value, str) and (value is not None or name in ("query", "model")):
                raise ValueError(f"{name} is {value!r:.40}, no text")
            object.__setattr__(self, name, value and value.encode(errors="replace").decode())
        for name in ("input_tokens", "output_tokens", "cost", "seconds"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
            if value is not None and not number:
                raise ValueError(f"{name} is {value!r:.40}, no amount of 0 or more")


@dataclass(frozen=True)
class How:
    """How evaluations are read, where their files leave a choice."""

    format: str | None = None
    """The name of one of `gathering.FORMATS`; None: by the content of each file."""
    scorer: str | None = None
    """Whose scores count, where there are several: a scorer, a filter or a metric."""
    right_from: float | None = None
    """From which score on an answer is right; None: scores stay scores."""
    rename: Mapping[str, str] = field(default_factory=dict)
    """New names of models, by the old ones."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Names of a table's columns, by ours."""
    tokens: tuple[float, float] | None = None
    """(input, output) tokens of a call, where the files count none; None: estimated by characters."""
    split: str = "test"
    """Whose instances of HELM count."""
    strict: bool = False
    """Whether a file or sample that cannot be read is an error; else it is left out, where others can."""
    prompts: bool = False
    """Whether the log is to say what was asked, for a person to label."""
    score_max: float = 1.0
    """The full score, where scores stay scores."""


class Format(Protocol):
    """One kind of file: a module with what `--format` calls it, what its files are in words, and these functions.

    `recognises` tells by the first bytes, and by the name where the content does not. `read` gives the answers in the
    order of the file, and what of it cannot be read; it raises DamageError where the whole cannot, and LogError where a
    person must choose something. A new format needs a row of `gathering.FORMATS`.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def files(self) -> str: ...  # noqa: D102
    def recognises(self, path: Path, head: bytes) -> bool: ...  # noqa: D102
    def read(self, path: Path, how: How) -> Iterator[ImportedAnswer | DamageError]: ...  # noqa: D102


def seconds_of(value: Any, per_second: float = 1.0) -> float | None:
    """Seconds from what a file says of them, of whose unit so many make a second; None where that is no time.

    >>> seconds_of(250, 1000), seconds_of(None), seconds_of("soon")
    (0.25, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        return None
    return value / per_second


def require(condition: bool, where: str, what: str) -> None:
    """Refuse a file: LogError with the place and what is wrong there."""
    if not condition:
        raise LogError(f"{where}: {what}")


def require_sound(condition: bool, where: str, what: str) -> None:
    """Raise DamageError with the place and what cannot be read there."""
    if not condition:
        raise DamageError(f"{where}: {what}")


def pieces(
    where: str, program: str, read: Callable[[], Iterable[ImportedAnswer]]
) -> Iterator[ImportedAnswer | DamageError]:
    """The answers of one piece of a file, or the damage where it is not as its program writes it.

    Args:
        where: the place, for the message.
        program: whose file it is.
        read: gives the answers; its KeyError and the like mean that the piece is damaged.
    """
    try:
        answers: list[ImportedAnswer | DamageError] = [*read()]
    except DamageError as damage:
        answers = [damage]
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as problem:
        if isinstance(problem, LogError):
            raise
        answers = [DamageError(f"{where}: is not as {program} writes it ({problem!r:.80}): is it whole?")]
    yield from answers


def records(path: Path, program: str) -> Iterator[tuple[str, Mapping[str, Any] | DamageError]]:
    """(position, object) of each object in a file; DamageError for what is none.

    A file is JSON Lines, with an object or an array of them in each line, or else one array or object over many lines.
    Raises DamageError where the file is no text, or holds nothing.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            first = next((line for line in file if line.strip()), "")
        whole = None if _parsed(first) is not None else _parsed(path.read_text("utf-8-sig"))
        any_record = False
        for position, content in _lines(path) if whole is None else [("", whole)]:
            for where, record in _objects(content, f"{path.name}{position}", program):
                any_record = True
                yield where, record
    except (OSError, UnicodeError) as problem:
        raise DamageError(f"{path.name}: cannot be read as {program} writes it: {problem}: is it whole?") from None
    if not any_record:
        raise DamageError(f"{path.name}: holds no answers: was it written completely?")


def answers_of(
    path: Path, program: str, read: Callable[[Mapping[str, Any], str], Iterable[ImportedAnswer]]
) -> Iterator[ImportedAnswer | DamageError]:
    """The answers of all objects in a file, and the damage of those that cannot be read.

    Args:
        path: the file, as `records` takes it.
        program: whose it is.
        read: gives the answers of an object and its place; what it raises of damage is that of this object.
    """
    for where, record in records(path, program):
        if isinstance(record, DamageError):
            yield record
        else:
            yield from pieces(where, program, partial(read, record, where))


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
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


def _objects(content: Any, where: str, program: str) -> Iterator[tuple[str, Mapping[str, Any] | DamageError]]:
    several = isinstance(content, list)
    for number, record in enumerate(content if several else [content], 1):
        position = f"{where}, entry {number}" if several else where
        damage = DamageError(f"{position}: is not as {program} writes it (no JSON object): is it whole?")
        yield position, record if isinstance(record, dict) else damage
