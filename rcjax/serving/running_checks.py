"""Checks in service, named by `rcjax.policy.signals.Check`: each in its own processes, within a time limit.

A check runs in other processes, so that one that hangs, crashes or writes without end blocks no request. Messages name
the failure and its place, and quote neither the question nor the reply.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rcjax._base.wording import count
from rcjax.policy.signals import Check, Reading, Reply, SignalError
from rcjax.policy.signals.records import Verdict, read_verdict
from rcjax.serving.workers import (
    LONGEST,
    MOST,
    BrokeDownError,
    Workers,
    refusal,
    run_check,
    run_command,
    search_pattern,
)


class CheckError(SignalError):
    """A check without a verdict; `kind` is the reason in a word or two, such as "timed out" or "gave nothing"."""

    def __init__(self, kind: str, more: str = "") -> None:
        super().__init__(f"the check {kind}{more}")
        self.kind = kind


def require_runnable(checks: Iterable[Check]) -> None:
    """Refuse a check that cannot be run with a ValueError that names the check and the remedy."""
    for check in dict.fromkeys(checks):
        if check.kind == "command":
            program = shlex.split(check.rest)[0]
            if shutil.which(program) is None:
                problem = f"{check.name}: there is no program {program} that can be run: looked for in {os.getcwd()}"
                raise ValueError(f"{problem} and where the system looks; quote a path with spaces")
        elif check.kind != "length":
            problem = _refusal(check)
            if problem is not None:
                raise ValueError(f"{check.name}: cannot be run: {problem}")


def _refusal(check: Check) -> str | None:
    """Return the reason why Python cannot run a check; None if it can."""
    try:
        workers = Workers(check.name, 1)
    except ImportError as error:
        return str(error)
    try:
        return None if check.kind == "regex" else workers.first(refusal)
    except TimeoutError:
        return "it is not there within a minute"
    except BrokeDownError as error:
        return str(error)
    finally:
        workers.close()


class Checks:
    """Runs checks: Python's checks in a few lasting processes, a command in a new process for each reply.

    Args:
        seconds: time limit for a verdict.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._workers: dict[str, Workers] = {}
        self._slots: dict[tuple[str, asyncio.AbstractEventLoop], asyncio.Semaphore] = {}
        self._failures: dict[str, Counter[str]] = {}

    async def reading(
        self, check: Check, messages: Sequence[Mapping[str, Any]], reply: Reply, options: Mapping[str, Any]
    ) -> tuple[Reading, float]:
        """Return (a check's reading of a reply, the money that the check reports). Raises CheckError without a verdict.

        Args:
            check: the model's check.
            messages: the question.
            reply: the reply to the question.
            options: the options of the request, such as its `response_format`.
        """
        if check.kind == "length":
            return check.read(reply), 0.0
        try:
            verdict = await self._verdict(check, check.document(messages, reply, options))
        except CheckError as problem:
            self._failures.setdefault(check.name, Counter())[problem.kind] += 1
            raise
        return check.reading(reply, verdict, options), verdict.cost

    async def _verdict(self, check: Check, document: Mapping[str, Any]) -> Verdict:
        """Run a check on a call, at most MOST at once, and return its verdict. Raises CheckError."""
        key = check.name, asyncio.get_running_loop()  # a semaphore belongs to one event loop
        run = self._run_command if check.kind == "command" else self._run_in_worker
        try:
            async with self._slots.setdefault(key, asyncio.Semaphore(MOST)):
                output = await run(check, document)
        except CheckError:
            raise
        except TimeoutError:
            raise CheckError("timed out", f": no verdict within {self._seconds:g} seconds") from None
        except BrokeDownError as error:
            raise CheckError("broke down", f": {error}") from None
        except OSError as error:
            raise CheckError("failed", f": it cannot be started: {error.strerror}") from None
        except Exception as problem:  # such as a question nested too deep for JSON: other calls must go on
            raise CheckError("failed", f": {type(problem).__name__}") from None
        try:
            verdict = read_verdict(output)
        except ValueError as problem:
            raise CheckError("gave nonsense", f": {problem}") from None
        if verdict is None:
            raise CheckError("gave nothing")
        return verdict

    async def _run_in_worker(self, check: Check, document: Mapping[str, Any]) -> Any:
        if check.name not in self._workers:
            self._workers[check.name] = Workers(check.name)
        function, *arguments = (run_check, _as_json(document))
        if check.kind == "regex":
            function, *arguments = (search_pattern, check.rest, document["answer"], ())
        reply = await self._workers[check.name].call(function, *arguments, seconds=self._seconds)
        if "failed" in reply:
            raise CheckError("failed", f": {reply['failed']}" if check.kind != "regex" else "")
        return reply["said"]

    async def _run_command(self, check: Check, document: Mapping[str, Any]) -> Any:
        output, status = await run_command(shlex.split(check.rest), _as_json(document).encode(), self._seconds)
        if status < 0:
            raise BrokeDownError(status)
        if status:
            raise CheckError("failed", f": it ended with status {status}")
        if len(output) > LONGEST:
            raise CheckError("gave nonsense", f": it printed more than {LONGEST >> 10} KB")
        try:
            return json.loads(output) if output.strip() else None
        except (ValueError, RecursionError):
            raise CheckError("gave nonsense", ": what it printed is no JSON") from None

    def remarks(self) -> list[str]:
        """Describe, for each check, the number of replies without a verdict and the reasons."""
        return [
            f"check {name}: no confidence in {count(kinds.total(), 'answer')}, as it "
            + ", ".join(f"{kind} ({number:,})" for kind, number in kinds.items())
            for name, kinds in self._failures.items()
        ]

    async def close(self) -> None:
        """End the processes."""
        for workers in self._workers.values():
            await asyncio.to_thread(workers.close)


def _as_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, default=str)
