"""Checks in service, as `rcjax.signals.Check` names them: each in processes of its own, within a time limit.

Nothing of a check runs in this process, so that one that hangs, breaks down or writes without end keeps nobody waiting.
Messages say what went wrong and where, and quote neither the question nor the reply.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shlex
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rcjax._base.wording import count
from rcjax.serving.workers import (
    LONGEST,
    MOST,
    BrokeDownError,
    Workers,
    run_check,
    run_command,
    search_pattern,
    version,
)
from rcjax.signals import Check, Reading, Reply, SignalError
from rcjax.signals.records import Verdict, read_verdict


class CheckError(SignalError):
    """A check without a verdict; `kind` says in a word or two why: "timed out", "gave nothing", "failed", say."""

    def __init__(self, kind: str, more: str = "") -> None:
        super().__init__(f"the check {kind}{more}")
        self.kind = kind


def prepared(checks: Iterable[Check]) -> dict[str, Check]:
    """The checks by name, each with the version that it has now.

    Raises ValueError, a line that names the check and says what to do, for one that cannot be run.
    """
    return {name: Check(name, _version(Check(name))) for name in dict.fromkeys(check.name for check in checks)}


def _version(check: Check) -> str | None:
    if check.kind == "command":
        return _command_version(check)
    if check.kind == "length":
        return None
    what = f"{check.name}: cannot be run"
    try:
        workers = Workers(check.name, 1)
    except ImportError as error:
        raise ValueError(f"{what}: {error}") from None
    if check.kind == "regex":
        return None
    try:
        reply = workers.first(version)
    except TimeoutError:
        raise ValueError(f"{what}: it is not there within a minute") from None
    except BrokeDownError as error:
        raise ValueError(f"{what}: {error}") from None
    finally:
        workers.close()
    if "version" not in reply:
        raise ValueError(f"{what}: {reply['refused']}")
    return reply["version"]


def _command_version(check: Check) -> str:
    """A digest of the files that a command line names: its program, by its path, and scripts that it is given."""
    words = shlex.split(check.rest)
    program = shutil.which(words[0])
    if program is None:
        what = f"{check.name}: there is no program {words[0]} that can be run"
        raise ValueError(f"{what}: looked for in {os.getcwd()} and where the system looks; quote a path with spaces")
    paths = [Path(word) for word in words if os.sep in word or word != words[0]]
    files = [path for path in paths if path.is_file()] or [Path(program)]
    digest = hashlib.sha256()
    for path in files:
        try:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise ValueError(f"{check.name}: {path}: {error.strerror or error}") from None
    return digest.hexdigest()[:16]


class Checks:
    """Runs checks: those that Python runs by a few processes that stay, commands by a process for each reply.

    Args:
        seconds: in which a verdict must be there.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._workers: dict[str, Workers] = {}
        self._slots: dict[tuple[str, asyncio.AbstractEventLoop], asyncio.Semaphore] = {}
        self._failures: dict[str, Counter[str]] = {}

    async def reading(
        self, check: Check, messages: Sequence[Mapping[str, Any]], reply: Reply, options: Mapping[str, Any]
    ) -> tuple[Reading, float]:
        """(what a check reads in a reply, money that it says it cost). Raises CheckError where it says nothing.

        Args:
            check: of the model.
            messages: the question.
            reply: to it.
            options: by which it was asked, a `response_format` among them.
        """
        if check.kind == "length":
            return check.read(reply), 0.0
        try:
            verdict = await self._verdict(check, check.document(messages, reply, options))
        except CheckError as problem:
            self._failures.setdefault(check.name, Counter())[problem.kind] += 1
            raise
        return check.reading(reply, verdict.value), verdict.cost

    async def _verdict(self, check: Check, document: Mapping[str, Any]) -> Verdict:
        """What a check says of a call, of which only so many run at once."""
        where = check.name, asyncio.get_running_loop()  # to which those that wait for a place belong
        run = self._by_command if check.kind == "command" else self._by_worker
        try:
            async with self._slots.setdefault(where, asyncio.Semaphore(MOST)):
                said = await run(check, document)
        except CheckError:
            raise
        except TimeoutError:
            raise CheckError("timed out", f": no verdict within {self._seconds:g} seconds") from None
        except BrokeDownError as error:
            raise CheckError("broke down", f": {error}") from None
        except OSError as error:
            raise CheckError("failed", f": it cannot be started: {error.strerror}") from None
        except Exception as problem:  # such as a question that is nested too deep for JSON; it ends nothing else
            raise CheckError("failed", f": {type(problem).__name__}") from None
        try:
            verdict = read_verdict(said)
        except ValueError as problem:
            raise CheckError("gave nonsense", f": {problem}") from None
        if verdict is None:
            raise CheckError("gave nothing")
        return verdict

    async def _by_worker(self, check: Check, document: Mapping[str, Any]) -> Any:
        if check.name not in self._workers:
            self._workers[check.name] = Workers(check.name)
        function, *arguments = (run_check, _as_json(document))
        if check.kind == "regex":
            function, *arguments = (search_pattern, check.rest, document["answer"], ())
        reply = await self._workers[check.name].call(function, *arguments, seconds=self._seconds)
        if "failed" in reply:
            raise CheckError("failed", f": {reply['failed']}" if check.kind != "regex" else "")
        return reply["said"]

    async def _by_command(self, check: Check, document: Mapping[str, Any]) -> Any:
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
        """On how many replies each check gave no verdict, and why, in words."""
        return [
            f"check {name}: no confidence in {count(kinds.total(), 'answer')}, as it "
            + ", ".join(f"{kind} ({number:,})" for kind, number in kinds.items())
            for name, kinds in self._failures.items()
        ]

    async def close(self) -> None:
        """End the programs."""
        for workers in self._workers.values():
            await asyncio.to_thread(workers.close)


def _as_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, default=str)
