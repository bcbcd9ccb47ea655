"""What a grader sees of an answer, and those that run something: a pattern, a function, a program of the user's own.

Who answered is not seen: grading is blind. A pattern runs in a process of its own, with a limit for each answer.
Functions and programs say right or wrong, or give a score up to the full one, `most`; where that is None they say right
or wrong alone.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Protocol

from rcjax._base.checks import what_it_is
from rcjax._base.extras import required
from rcjax.collecting.questions import Question
from rcjax.serving.workers import MOST, BrokeDownError, Workers, run_command, search_pattern
from rcjax.signals import Check
from rcjax.signals.records import without_rounding


class GraderError(ValueError):
    """A grader that cannot work, or a name of one that is none; the message says why and what to do."""


class UnpaidError(GraderError):
    """A verdict that what is left of the budget does not cover now."""


class NoVerdictError(GraderError):
    """A grader that has failed on one answer, which has no verdict then; it may well work on others."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One reply to one question, whose `messages` are empty if they are not known any more."""

    question: Question
    text: str
    """The reply."""
    answer: str = ""
    """The answer as the signal reads it, such as the letter of a choice; often the reply itself."""


class Grader(Protocol):
    """Anything that tells whether a reply is right, or how good it is."""

    @property
    def needs_reference(self) -> bool:
        """Whether a question without a right answer cannot be graded."""
        ...

    async def grade(self, attempt: Attempt) -> float | None:
        """True, False, a score between 0 and 1, or None if it cannot tell.

        Raises NoVerdictError where it fails on this answer, and GraderError where it cannot work at all.
        """
        ...


_PROCESS_SECONDS = 5.0  # over one answer


class Beside:
    """A process of a grader's own, which starts with the first answer.

    Args:
        name: of the grader.
    """

    needs_reference = True
    libraries: ClassVar[dict[str, str]] = {"pebble": "run"}
    """That it needs, each with its extra."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._workers: Workers | None = None
        self._turn = asyncio.Lock()

    def require(self) -> None:
        """Raise GraderError where a library is not installed."""
        try:
            for library, extra in self.libraries.items():
                required(library, extra)
        except ImportError as error:
            raise GraderError(f"{self.name}: {error}") from None

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function returns there. Raises NoVerdictError where it returns nothing in time."""
        async with self._turn:
            self._workers = self._workers or Workers(self.name, 1)
            try:
                return await self._workers.call(function, *arguments, seconds=_PROCESS_SECONDS)
            except TimeoutError:
                raise NoVerdictError(f"{self.name} takes more than {_PROCESS_SECONDS:g} seconds") from None
            except BrokeDownError as error:
                raise NoVerdictError(f"{self.name}: {error}") from None

    async def close(self) -> None:
        """End the process."""
        if self._workers is not None:
            await asyncio.to_thread(self._workers.close)


class Matching(Beside):
    """A grader by a regular expression, searched for in the reply; `{answer}` in it stands for a right answer.

    Args:
        pattern: the regular expression, as Python's `re` has it.

    Raises GraderError where it is none, or pebble is not installed.
    """

    def __init__(self, pattern: str) -> None:
        try:
            re.compile(pattern.replace("{answer}", "x"))
        except (re.error, RecursionError, OverflowError) as error:
            raise GraderError(f"regex:{pattern}: no regular expression: {error}") from None
        super().__init__(f"regex:{pattern}")
        self._pattern, self.needs_reference = pattern, "{answer}" in pattern
        self.require()

    async def grade(self, attempt: Attempt) -> bool:
        """Whether the pattern is found."""
        reply = await self.call(search_pattern, self._pattern, attempt.text, attempt.question.reference)
        if "failed" in reply:
            raise NoVerdictError(f"{self.name} failed: {reply['failed']}")
        return reply["said"]


_PROGRAM_SECONDS = 60.0  # that a program may take for one answer


class Function:
    """A grader by a function of a text and the right answers; it may be asynchronous.

    Args:
        name: `python:module:function`, the module looked for in the working folder too.
        most: the full score; None if it says right or wrong alone.

    Raises GraderError where there is none.
    """

    needs_reference = False

    def __init__(self, name: str, most: float | None = 1.0) -> None:
        _require_form(name)
        self.name, self.most = name, most
        _, module, function = name.split(":")
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            self._function: Any = getattr(importlib.import_module(module), function, None)
        except ImportError as error:
            raise GraderError(f"{name}: cannot be imported: {error}") from None
        except Exception as error:  # the user's own module
            raise GraderError(f"{name}: the module fails: {type(error).__name__}: {error}") from None
        if not callable(self._function):
            raise GraderError(f"{name}: the module has no function {function}: give one of a text and the answers")

    async def grade(self, attempt: Attempt) -> float | None:
        """What the function returns: True, False, a share of the full score, or None if it cannot tell."""
        try:
            verdict = self._function(attempt.text, attempt.question.reference)
            verdict = await verdict if inspect.isawaitable(verdict) else verdict
        except Exception as error:  # the user's own code
            raise NoVerdictError(f"{self.name} failed: {type(error).__name__}: {error}") from None
        return as_verdict(verdict, self.name, self.most)


class Program:
    """A grader by a program of the user's, started for each answer: an answer in, a verdict out, both JSON.

    In: `{"query", "text", "answer", "reference", "choices"}`. Out: true, false, a score, or nothing, or null, where it
    cannot tell.

    Args:
        name: `command:` and the command line.
        most: the full score; None if it says right or wrong alone.

    Raises GraderError where it is no command line.
    """

    needs_reference = False

    def __init__(self, name: str, most: float | None = 1.0) -> None:
        _require_form(name)
        self.name, self.most, self._words = name, most, shlex.split(name.partition(":")[2])
        self._slots = asyncio.Semaphore(MOST)

    async def grade(self, attempt: Attempt) -> float | None:
        """What the program prints."""
        question = {name: getattr(attempt.question, name) for name in ("query", "reference", "choices")}
        row = question | {"text": attempt.text, "answer": attempt.answer}
        try:
            async with self._slots:
                output, status = await run_command(
                    self._words, json.dumps(row).encode(), _PROGRAM_SECONDS, silent=False
                )
            said = json.loads(output) if output.strip() and not status else None
        except TimeoutError:
            raise NoVerdictError(f"{self.name} gives no verdict for {_PROGRAM_SECONDS:g} seconds") from None
        except OSError as error:
            raise GraderError(f"{self.name} cannot be started: {error.strerror or error}") from None
        except (ValueError, RecursionError):
            raise NoVerdictError(f"{self.name} prints what is no JSON: it must print true, false or null") from None
        if status:
            raise NoVerdictError(f"{self.name} has ended with status {status}")
        return as_verdict(said, self.name, self.most)


def _require_form(name: str) -> None:
    """Raise GraderError for what is no `python:module:function` or `command:./program`."""
    try:
        Check(name)
    except ValueError as error:
        raise GraderError(str(error)) from None


def as_verdict(value: Any, name: str, most: float | None) -> float | None:
    """Right, wrong, or the share that a score is of the full one; None if there is no verdict."""
    if value is None or type(value).__name__ in ("bool", "bool_") or (most is None and type(value) is int):
        verdict = value if value is None or value in (0, 1) else math.nan
    elif isinstance(value, Real) and most is not None:
        verdict = without_rounding(float(value) / most)
    else:
        verdict = math.nan
    if verdict is None or 0 <= verdict <= 1:
        return bool(verdict) if verdict in (0, 1) else verdict
    score = "" if most is None else f", a score from 0 to {most:g}"
    gives = f"{value:g}" if isinstance(value, Real) and most is not None else what_it_is(value)
    raise GraderError(f"{name} gives {gives}: it must give true, false{score}, or nothing where it cannot tell")
