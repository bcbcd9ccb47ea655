"""Graders of the user's own: a function of a Python module, and a program that is started once and talks JSON Lines."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rcjax._base.arguments import what_it_is
from rcjax.collecting.graders.attempt import Attempt, GraderError, NoVerdictError

__all__ = ["Function", "Program", "function_grader", "program_grader"]

_SECONDS = 60.0  # that a program may take for one answer

_LEAVE = 5.0  # seconds that a program may take to end

_MOST_REST = 2**16  # bytes that are looked at behind the last answer

_ONE_LINE = "it must write one line for each that it reads, and nothing else to standard output"


class Function:
    """A grader by a function of a text and the right answers; it may be asynchronous."""

    needs_reference = False

    def __init__(self, function: Callable[[str, tuple[str, ...]], Any], name: str) -> None:
        self.function, self.name = function, name

    async def grade(self, attempt: Attempt) -> bool | None:
        """What the function returns: True, False, or None where it cannot tell."""
        try:
            verdict = self.function(attempt.text, attempt.reference)
            verdict = await verdict if inspect.isawaitable(verdict) else verdict
        except Exception as error:  # the user's own code
            raise NoVerdictError(f"{self.name} failed: {type(error).__name__}: {error}") from None
        return _verdict(verdict, self.name)


def function_grader(place: str) -> Function:
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
    return Function(function, f"python:{place}")


class Program:
    """A grader by a program of the user's, started at the first answer; a line of JSON in, a line out.

    In: `{"id", "query", "text", "answer", "reference", "choices"}`. Out: `{"id", "correct": true}`, false, or null
    where it cannot tell, with the id that came in. A line too many, which would shift all verdicts, is an error. One
    that breaks down over an answer, or takes too long, leaves that one without a verdict, and is started again.

    Args:
        words: of the command line.
        name: of the grader.
    """

    needs_reference = False

    def __init__(self, words: Sequence[str], name: str) -> None:
        self.words, self.name = words, name
        self._process: asyncio.subprocess.Process | None = None
        self._sent = self._read = 0
        self._turn = asyncio.Lock()

    async def grade(self, attempt: Attempt) -> bool | None:
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

    def _verdict(self, line: bytes, number: int) -> bool | None:
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
        return _verdict(reply["correct"], self.name)

    async def _answer(self, line: bytes) -> bytes:
        process = await self._started()
        try:
            answer = await asyncio.wait_for(_exchange(process, line), _SECONDS)
        except TimeoutError:
            _kill(process)
            await self._end(process)
            what = f"{self.name} gives no answer for {_SECONDS:g} seconds"
            raise NoVerdictError(f"{what}: does it flush its output?") from None
        except (ConnectionError, ValueError) as error:
            raise GraderError(f"{self.name} cannot be talked to: {error}") from None
        if not answer:
            status = await self._end(process)
            problem = self._broken(status)
            raise problem if status else GraderError(str(problem))  # status 0: it holds that to be right
        return answer

    async def _end(self, process: asyncio.subprocess.Process) -> int:
        """See a program off that cannot go on, so that another is started for the next answer; its status."""
        self._process, self._read = None, self._sent
        try:
            return await asyncio.wait_for(process.wait(), _LEAVE)
        except TimeoutError:
            _kill(process)
            return await process.wait()
        finally:
            _kill(process)

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            pipe = asyncio.subprocess.PIPE
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self.words, stdin=pipe, stdout=pipe, limit=2**24, start_new_session=True
                )
            except OSError as error:
                raise GraderError(f"{self.name} cannot be started: {error.strerror or error}") from None
        return self._process

    async def close(self) -> GraderError | None:
        """End the program; what is wrong where it has written a line that answers nothing."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None
        assert process.stdout is not None
        rest = b""
        with suppress(ProcessLookupError, ConnectionError):
            process.stdin.close()
            try:
                rest = await asyncio.wait_for(process.stdout.read(_MOST_REST), _LEAVE)
                await asyncio.wait_for(process.wait(), _LEAVE)
            except TimeoutError:
                _kill(process)
                await process.wait()
        _kill(process)
        if self._read < self._sent or not rest.strip():  # what is late was complained of before
            return None
        return GraderError(f"{self.name} writes more lines than it reads: {_ONE_LINE}")


def _kill(process: asyncio.subprocess.Process) -> None:
    """End a program, and what it has started and left behind, which is of its session."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


async def _exchange(process: asyncio.subprocess.Process, line: bytes) -> bytes:
    """The line that a program answers a line with; nothing where it has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(ConnectionError):
        process.stdin.write(line)
        await process.stdin.drain()
    return await process.stdout.readline()


def program_grader(command: str) -> Program:
    """The grader of a command line. Raises GraderError where it is none."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise GraderError(f"command:{command}: {error}") from None
    if not words:
        raise GraderError("command: gives no program: give command:./grade.py, or the like")
    return Program(words, f"command:{command}")


def _id_in_words(value: Any, number: int) -> str:
    if type(value) is int and 0 < value < number:
        return f"the line of id {value} again, not that of id {number}"
    return f"with the id {json.dumps(value)[:40]} a line of id {number}"


def _verdict(value: Any, name: str) -> bool | None:
    if value is None or type(value).__name__ in ("bool", "bool_") or (type(value) is int and value in (0, 1)):
        return None if value is None else bool(value)
    raise GraderError(f"{name} gives {what_it_is(value)}: it must give true, false, or nothing where it cannot tell")
