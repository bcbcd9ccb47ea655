"""The interface of graders, and the graders that run a pattern, a function or a program of the user.

Grading is blind: a grader does not see the model's name. Patterns and functions run in separate processes, with a time
limit for each answer. Functions and programs return right or wrong, or a score up to the full score `most`; with `most=None`
only right or wrong.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Protocol

from rcjax._base.codec import what_it_is
from rcjax._base.extras import required
from rcjax.collecting.questions import Question
from rcjax.policy.signals import ReplyCheck
from rcjax.policy.signals.records import without_rounding
from rcjax.serving.workers import (
    MOST,
    BrokeDownError,
    Workers,
    require_runnable,
    run_check,
    run_command,
    search_pattern,
)


class GraderError(ValueError):
    """A grader cannot work, or does not exist; the message says why and what to do."""


class UnpaidError(GraderError):
    """The rest of the budget does not cover a verdict now."""


class NoVerdictError(GraderError):
    """A grader failed on one answer, which gets no verdict; it may work on others."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A reply to a question; the question's `messages` are empty if they are unknown."""

    question: Question
    text: str
    """Text of the reply."""
    answer: str = ""
    """Answer as the signal reads it, such as the letter of a choice; often the reply itself."""


class Grader(Protocol):
    """A grader of replies."""

    @property
    def needs_reference(self) -> bool:
        """Whether the grader needs a right answer."""
        ...

    async def grade(self, submission: Submission) -> float | None:
        """Return True, False, a score between 0 and 1, or None without a verdict.

        Raises NoVerdictError if it fails on this answer, and GraderError if it cannot work at all.
        """
        ...


_PROCESS_SECONDS = 5.0  # seconds per answer


class ProcessGrader:
    """A grader in separate processes, which start with the first answer.

    Args:
        name: name of the grader, for messages.
        most: largest number of processes, each of which grades one answer at a time.
    """

    needs_reference = True
    libraries: ClassVar[dict[str, str]] = {"pebble": "run"}
    """Libraries that the grader needs, with their extras."""

    def __init__(self, name: str, most: int = 1) -> None:
        self.name = name
        self._most = most
        self._workers: Workers | None = None
        self._slots = asyncio.Semaphore(most)

    def require(self) -> None:
        """Raise GraderError if a library is missing."""
        try:
            for library, extra in self.libraries.items():
                required(library, extra)
        except ImportError as error:
            raise GraderError(f"{self.name}: {error}") from None

    async def call(self, function: Callable[..., Any], *arguments: Any, seconds: float | None = None) -> Any:
        """Call a function in a process. Raises NoVerdictError if the process fails or takes too long.

        Args:
            function: a function that raises nothing.
            arguments: its arguments, which can be pickled.
            seconds: time limit; five seconds by default.
        """
        seconds = _PROCESS_SECONDS if seconds is None else seconds
        async with self._slots:
            self._workers = self._workers or Workers(self.name, self._most)
            try:
                return await self._workers.call(function, *arguments, seconds=seconds)
            except TimeoutError:
                raise NoVerdictError(f"{self.name} takes more than {seconds:g} seconds") from None
            except BrokeDownError as error:
                raise NoVerdictError(f"{self.name}: {error}") from None

    async def close(self) -> None:
        """End the processes."""
        if self._workers is not None:
            await asyncio.to_thread(self._workers.close)


class Matching(ProcessGrader):
    """A grader that searches the reply for a regular expression, in which `{answer}` stands for a right answer.

    Args:
        pattern: regular expression of Python's `re`.

    Raises GraderError for an invalid expression, or if pebble is missing.
    """

    def __init__(self, pattern: str) -> None:
        try:
            re.compile(pattern.replace("{answer}", "x"))
        except (re.error, RecursionError, OverflowError) as error:
            raise GraderError(f"regex:{pattern}: no regular expression: {error}") from None
        super().__init__(f"regex:{pattern}")
        self._pattern, self.needs_reference = pattern, "{answer}" in pattern
        self.require()

    async def grade(self, submission: Submission) -> bool:
        """Return whether the reply matches the pattern."""
        reply = await self.call(search_pattern, self._pattern, submission.text, submission.question.reference)
        if "failed" in reply:
            raise NoVerdictError(f"{self.name} failed: {reply['failed']}")
        return reply["said"]


_PROGRAM_SECONDS = 60.0  # seconds per answer


class Function(ProcessGrader):
    """A grader that calls a function of the reply and the right answers, which may be asynchronous.

    It runs in processes of its own, which import the module: what it prints is discarded.

    Args:
        name: `python:module:function`; the module may be in the working folder.
        most: full score; None if the function returns only right or wrong.

    Raises GraderError if the function cannot be imported.
    """

    needs_reference = False

    def __init__(self, name: str, most: float | None = 1.0) -> None:
        try:
            require_runnable([ReplyCheck(name)])
        except ValueError as error:
            raise GraderError(str(error)) from None
        super().__init__(name, MOST)
        self.most = most

    async def grade(self, submission: Submission) -> float | None:
        """Call the function, and return True, False, a share of the full score, or None without a verdict."""
        arguments = json.dumps([submission.text, submission.question.reference])
        reply = await self.call(run_check, arguments, seconds=_PROGRAM_SECONDS)
        if "failed" in reply:
            raise NoVerdictError(f"{self.name} failed: {reply['failed']}")
        return as_verdict(reply["said"], self.name, self.most)


class Program:
    """A grader that starts a program of the user for each answer; the program reads and prints JSON.

    Input: `{"query", "text", "answer", "reference", "choices"}`. Output: true, false or a score; nothing or null means
    no verdict.

    Args:
        name: `command:` and the command line.
        most: full score; None if the program prints only right or wrong.

    Raises GraderError for an invalid command line.
    """

    needs_reference = False

    def __init__(self, name: str, most: float | None = 1.0) -> None:
        try:
            ReplyCheck(name)  # which raises for an invalid command line
        except ValueError as error:
            raise GraderError(str(error)) from None
        self.name = name
        self.most = most
        self._words = shlex.split(name.partition(":")[2])
        self._slots = asyncio.Semaphore(MOST)

    async def grade(self, submission: Submission) -> float | None:
        """Run the program, and return its verdict."""
        question = {name: getattr(submission.question, name) for name in ("query", "reference", "choices")}
        row = question | {"text": submission.text, "answer": submission.answer}
        try:
            async with self._slots:
                output, status = await run_command(
                    self._words, json.dumps(row).encode(), _PROGRAM_SECONDS, silent=False
                )
            verdict = json.loads(output) if output.strip() and not status else None
        except TimeoutError:
            raise NoVerdictError(f"{self.name} gives no verdict for {_PROGRAM_SECONDS:g} seconds") from None
        except OSError as error:
            raise GraderError(f"{self.name} cannot be started: {error.strerror or error}") from None
        except (ValueError, RecursionError):
            raise NoVerdictError(f"{self.name} prints what is no JSON: it must print true, false or null") from None
        if status:
            raise NoVerdictError(f"{self.name} has ended with status {status}")
        return as_verdict(verdict, self.name, self.most)


def as_verdict(value: Any, name: str, most: float | None) -> float | None:
    """Convert a grader's output to True, False, a share of the full score, or None without a verdict."""
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
