"""What the files of every format come to: answers of one kind; and what a format must be able to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
    logprobs: Mapping[str, float] = field(default_factory=dict)
    """The raw confidence by each signal that the file allows, as a log-probability: see `confidences.SIGNALS`."""
    unusable: str | None = None
    """Why what the file tells of it is no confidence, such as "a log-probability is NaN"; None where it is one."""
    likeliest: str | None = None
    """The choice that the model held likelier than the one it gave; None where there is none."""
    input_tokens: float | None = None
    output_tokens: float | None = None
    characters: tuple[int, int] | None = None
    """Of the prompt and of the reply: tokens are estimated by these, where they were not counted."""
    cost: float | None = None
    """Money."""
    seconds: float | None = None
    """How long the call took."""

    @property
    def scored(self) -> bool:
        """Whether there is a score, or is none to be expected."""
        return self.score is not None or not self.judged


@dataclass(frozen=True, slots=True)
class Choices:
    """What a person must choose, where a file holds several things of a kind."""

    scorer: str | None = None
    """Whose scores count: a scorer of Inspect, a filter or a metric of lm-eval, a metric of HELM."""
    columns: tuple[tuple[str, str], ...] = ()
    """(our name, theirs) of the columns of a table."""
    split: str = "test"
    """Whose instances of HELM count."""


class Format(Protocol):
    """One kind of file. A new one is a module with these, and a row of `formats.FORMATS`."""

    @property
    def name(self) -> str:
        """What `--format` calls it."""
        ...

    @property
    def files(self) -> str:
        """What its files are, in words, for messages."""
        ...

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether a file is of this format, by its first bytes, and by its name where the content does not tell."""
        ...

    def read(self, path: Path, choices: Choices) -> Iterator[ImportedAnswer | DamageError]:
        """The answers of a file, in its order, and what of it cannot be read.

        Raises DamageError where the file cannot be read at all, and LogError where a person must choose something.
        """
        ...


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
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as problem:
        if isinstance(problem, LogError):
            raise
        answers = [DamageError(f"{where}: is not as {program} writes it ({problem!r:.80}): is it whole?")]
    yield from answers
