"""Graders of the user's own: a function of a Python module, and a program that is started once and talks JSON Lines.

Both say right or wrong, or give a score up to the full one, `most`; where that is None they say right or wrong alone.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from rcjax._base.arguments import what_it_is
from rcjax._base.line_programs import EndedError, LineProgram
from rcjax.collecting.graders.attempt import Attempt, GraderError, NoVerdictError

__all__ = ["Function", "Program", "function_grader", "program_grader"]

_SECONDS = 60.0  # that a program may take for one answer

_ONE_LINE = "it must write one line for each that it reads, and nothing else to standard output"


class Function:
    """A grader by a function of a text and the right answers; it may be asynchronous."""

    needs_reference = False

    def __init__(self, function: Callable[[str, tuple[str, ...]], Any], name: str, most: float | None = 1.0) -> None:
        self.function, self.name, self.most = function, name, most

    async def grade(self, attempt: Attempt) -> float | None:
        """What the function returns: True, False, a share of the full score, or None where it cannot tell."""
        try:
            verdict = self.function(attempt.text, attempt.reference)
            verdict = await verdict if inspect.isawaitable(verdict) else verdict
        except Exception as error:  # the user's own code
            raise NoVerdictError(f"{self.name} failed: {type(error).__name__}: {error}") from None
        return _verdict(verdict, self.name, self.most)


def function_grader(place: str, most: float | None = 1.0) -> Function:
    """The grader of `module:function`, the module looked for in the working folder too.

    Raises GraderError where there is none.
    """
    module, _, name = place.partition(":")
    if not module or not name:
        raise GraderError(f"python:{place}: give python:module:function")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        function = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise GraderError(f"python:{place}: cannot be imported: {error}") from None
    except AttributeError:
        raise GraderError(f"python:{place}: the module {module} has no {name}") from None
    except Exception as error:  # the user's own module
        raise GraderError(f"python:{place}: the module fails: {type(error).__name__}: {error}") from None
    if not callable(function):
        raise GraderError(
            f"python:{place}: {name} is {what_it_is(function)}: give a function of a text and the answers"
        )
    return Function(function, f"python:{place}", most)


class Program:
    """A grader by a program of the user's, started at the first answer; a line of JSON in, a line out.

    In: `{"id", "query", "text", "answer", "reference", "choices"}`. Out: `{"id", "correct": true}`, false, a score, or
    null where it cannot tell, with the id that came in. A line too many, which would shift all verdicts, is an error.
    One that breaks down over an answer, or takes too long, leaves that one without a verdict, and is started again.

    Args:
        words: of the command line.
        name: of the grader.
        most: the full score; None where it says right or wrong alone.
    """

    needs_reference = False

    def __init__(self, words: Sequence[str], name: str, most: float | None = 1.0) -> None:
        self.name, self.most = name, most
        self._program = LineProgram(words)
        self._sent = self._read = 0
        self._turn = asyncio.Lock()

    async def grade(self, attempt: Attempt) -> float | None:
        """What the program answers."""
        row = {
            "query": attempt.query,
            "text": attempt.text,
            "answer": attempt.answer,
            "reference": list(attempt.reference),
            "choices": list(attempt.choices),
        }
        async with self._turn:
            self._sent += 1
            number, line = self._sent, json.dumps({"id": self._sent, **row}).encode() + b"\n"
            verdict = self._verdict(await self._answer(line), number)
            self._read += 1
            return verdict

    def _broken(self, status: int) -> NoVerdictError:
        """What is said where the program has broken down over an answer, with this status."""
        return NoVerdictError(f"{self.name} has ended, with status {status}: it must answer line by line until its end")

    def _verdict(self, line: bytes, number: int) -> float | None:
        """The verdict of the answer of this number. Raises GraderError where the line holds none."""
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            raise GraderError(f"{self.name} answers what is no JSON: it must write one object per line") from None
        if not isinstance(reply, dict) or "correct" not in reply:
            raise GraderError(f'{self.name} answers without "correct": it must be true, false or null')
        if "id" not in reply:
            advice = 'it must repeat the id of the line that it answers, {"id": row["id"], "correct": …}'
            raise GraderError(f'{self.name} answers without "id": {advice}')
        if type(reply["id"]) is not int or reply["id"] != number:
            raise GraderError(f"{self.name} answers {_id_in_words(reply['id'], number)}: {_ONE_LINE}")
        return _verdict(reply["correct"], self.name, self.most)

    async def _answer(self, line: bytes) -> bytes:
        try:
            return await self._program.exchange(line, _SECONDS)
        except TimeoutError:
            what = f"{self.name} gives no answer for {_SECONDS:g} seconds"
            problem: GraderError = NoVerdictError(f"{what}: does it flush its output?")
        except EndedError as error:
            problem = self._broken(error.status)
            problem = problem if error.status else GraderError(str(problem))  # status 0: it holds that to be right
        except (ConnectionError, ValueError) as error:
            problem = GraderError(f"{self.name} cannot be talked to: {error}")
        except OSError as error:
            problem = GraderError(f"{self.name} cannot be started: {error.strerror or error}")
        self._read = self._sent
        raise problem

    async def close(self) -> GraderError | None:
        """End the program; what is wrong where it has written a line that answers nothing."""
        rest = await self._program.close()
        if self._read < self._sent or not rest.strip():  # what is late was complained of before
            return None
        return GraderError(f"{self.name} writes more lines than it reads: {_ONE_LINE}")


def program_grader(command: str, most: float | None = 1.0) -> Program:
    """The grader of a command line. Raises GraderError where it is none."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise GraderError(f"command:{command}: {error}") from None
    if not words:
        raise GraderError("command: gives no program: give command:./grade.py, or the like")
    return Program(words, f"command:{command}", most)


def _id_in_words(value: Any, number: int) -> str:
    if type(value) is int and 0 < value < number:
        return f"the line of id {value} again, not that of id {number}"
    return f"with the id {json.dumps(value)[:40]} a line of id {number}"


def _verdict(value: Any, name: str, most: float | None) -> float | None:
    """Right, wrong, or the share that a score is of the full one; None where there is no verdict."""
    if value is None or type(value).__name__ in ("bool", "bool_") or (most is None and type(value) is int):
        verdict = value if value is None or value in (0, 1) else math.nan
    elif isinstance(value, Real) and most is not None:
        verdict = float(value) / most
    else:
        verdict = math.nan
    if verdict is None or 0 <= verdict <= 1:
        return bool(verdict) if verdict in (0, 1) else verdict
    score = "" if most is None else f", a score from 0 to {most:g}"
    gives = f"{value:g}" if isinstance(value, Real) and most is not None else what_it_is(value)
    raise GraderError(f"{name} gives {gives}: it must give true, false{score}, or nothing where it cannot tell")
