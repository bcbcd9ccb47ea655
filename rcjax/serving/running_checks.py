"""Checks in service, as `rcjax.signals.Check` names them: each in processes of its own, within a time limit.

Nothing of a check runs in this process, so that one that hangs, breaks down or writes without end keeps nobody waiting.
Messages say what went wrong and where, and quote neither the question nor the reply. Standard library only.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rcjax._base.json_checks import object_in
from rcjax._base.line_programs import EndedError, LineProgram, end_at_once, pattern_program, took_too_long
from rcjax._base.wording import count
from rcjax.serving import check_worker
from rcjax.signals import Check, Reading, Reply, SignalError
from rcjax.signals.checks import Verdict, read_verdict

__all__ = ["CheckError", "Checks", "prepared", "without_schemas"]

_START = 60.0  # seconds until a check is there: what it imports may take long

_PATTERN = 2.0  # of computing, over one reply

_LONGEST = 2**16  # bytes that a program may print

_MOST = max(4, 2 * (os.cpu_count() or 1))  # processes of one check: some wait for a disk, or for others


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


def without_schemas(check: Check) -> str | None:
    """What is to be said of a check of JSON that no schema is checked by; None for others."""
    if check.kind != "json" or check.version == "schemas":
        return None
    return "json: jsonschema is not installed: replies are checked to be JSON alone, and by no schema of a request"


def _version(check: Check) -> str | None:
    if check.kind == "command":
        return _command_version(check)
    if check.kind not in ("python", "json"):
        return None
    what = f"{check.name}: cannot be run"
    words = _worker(check)
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_START, check=False)
    except subprocess.TimeoutExpired:
        raise ValueError(f"{what}: it is not there within {_START:g} seconds") from None
    except OSError as error:
        raise ValueError(f"{what}: {error.strerror or error}") from None
    reply = object_in(done.stdout)
    if "version" not in reply:
        raise ValueError(f"{what}: {reply.get('refused', f'Python ends with status {done.returncode}')}")
    return reply["version"]


def _command_version(check: Check) -> str:
    """A digest of the files that a command line names: its program, by its path, and scripts that it is given."""
    words = shlex.split(check.rest)
    program = shutil.which(words[0])
    if program is None:
        raise ValueError(f"{check.name}: {_why_none(check, words[0])}")
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


def _why_none(check: Check, word: str) -> str:
    if Path(check.rest).is_file() and check.rest != word:
        return f"put a path with spaces into quotes, command:{shlex.quote(check.rest)}"
    if Path(word).is_dir():
        return f"{word} is a folder: give a program"
    if Path(word).is_file():
        return f"{word} cannot be executed: chmod +x {shlex.quote(word)}, or name the program that runs it"
    return f"there is no program {word} (the working folder is {os.getcwd()})"


def _worker(check: Check) -> tuple[str, ...]:
    return (sys.executable, "-W", "ignore", str(Path(check_worker.__file__).resolve()), check.name)


class Checks:
    """Runs checks: those that Python runs by a few programs that stay, commands by a process for each reply.

    Args:
        seconds: in which a verdict must be there.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._programs: dict[str, _Programs] = {}
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
        if check.name not in self._programs:
            self._programs[check.name] = _Programs(check, self._seconds)
        try:
            verdict = await self._verdict(check, check.document(messages, reply, options))
        except CheckError as problem:
            self._failures.setdefault(check.name, Counter())[problem.kind] += 1
            raise
        return check.reading(reply, verdict.value), verdict.cost

    async def _verdict(self, check: Check, document: Mapping[str, Any]) -> Verdict:
        try:
            return _verdict(await self._programs[check.name].said(document))
        except CheckError:
            raise
        except Exception as problem:  # such as a question that is nested too deep for JSON; it ends nothing else
            raise CheckError("failed", f": {type(problem).__name__}") from None

    def remarks(self) -> list[str]:
        """On how many replies each check gave no verdict, and why, in words."""
        return [
            f"check {name}: no confidence in {count(kinds.total(), 'answer')}, as it "
            + ", ".join(f"{kind} ({number:,})" for kind, number in kinds.items())
            for name, kinds in self._failures.items()
        ]

    async def close(self) -> None:
        """End the programs."""
        for programs in self._programs.values():
            await programs.close()


def _verdict(said: Any) -> Verdict:
    try:
        verdict = read_verdict(said)
    except ValueError as problem:
        raise CheckError("gave nonsense", f": {problem}") from None
    if verdict is None:
        raise CheckError("gave nothing")
    return verdict


class _Programs:
    """The processes of one check, of which only so many run at once; they end when it is forgotten."""

    def __init__(self, check: Check, seconds: float) -> None:
        self._check, self._seconds = check, seconds
        self._slots, self._loop = asyncio.Semaphore(_MOST), None
        self._words = pattern_program(check.rest, _PATTERN) if check.kind == "regex" else _worker(check)
        self._all: list[LineProgram] = []
        self._idle: list[LineProgram] = []
        self._sent = 0
        weakref.finalize(self, _end_all, self._all)

    async def said(self, document: Mapping[str, Any]) -> Any:
        """What the check says, as JSON has it. Raises CheckError."""
        if self._loop is not asyncio.get_running_loop():  # to which those that wait for a place belong
            self._slots, self._loop = asyncio.Semaphore(_MOST), asyncio.get_running_loop()
        async with self._slots:
            try:
                return await (self._by_command if self._check.kind == "command" else self._by_program)(document)
            except TimeoutError:
                raise CheckError("timed out", f": no verdict within {self._seconds:g} seconds") from None
            except EndedError as error:
                if took_too_long(error.status):
                    raise CheckError("timed out", f": more than {_PATTERN:g} seconds of computing") from None
                raise CheckError("broke down", f": it ended with status {error.status}") from None
            except OSError as error:
                raise CheckError("failed", f": it cannot be started: {error.strerror}") from None

    async def _by_program(self, document: Mapping[str, Any]) -> Any:
        program = self._idle.pop() if self._idle else self._new()
        try:
            return await self._answer(program, document)
        finally:
            self._idle.append(program)

    def _new(self) -> LineProgram:
        self._all.append(LineProgram(self._words, silent=True))
        return self._all[-1]

    async def _answer(self, program: LineProgram, document: Mapping[str, Any]) -> Any:
        self._sent += 1
        number = self._sent
        if self._check.kind == "regex":
            line = {"id": number, "text": document["answer"], "reference": []}
        else:
            line = {"id": number, "call": document}
            if not program.runs and "version" not in object_in(await program.read(_START)):
                await program.end()
                raise CheckError("failed", ": it cannot be imported any more")
        try:
            answer = await program.exchange(_as_json(line) + b"\n", self._seconds)
        except ValueError:  # too long a line
            answer = b""
        reply = object_in(answer)
        if reply.get("id") != number:
            await program.end()
            raise CheckError("gave nonsense", ": what it wrote is no answer")
        if "failed" in reply:
            raise CheckError("failed", f": {reply['failed']}" if self._check.kind != "regex" else "")
        return reply.get("said", reply.get("correct"))

    async def _by_command(self, document: Mapping[str, Any]) -> Any:
        output, status = await _run(shlex.split(self._check.rest), _as_json(document), self._seconds)
        if status < 0:
            raise EndedError(status)
        if status:
            raise CheckError("failed", f": it ended with status {status}")
        if len(output) > _LONGEST:
            raise CheckError("gave nonsense", f": it printed more than {_LONGEST >> 10} KB")
        if not output.strip():
            return None
        try:
            return json.loads(output)
        except (ValueError, RecursionError):
            raise CheckError("gave nonsense", ": what it printed is no JSON") from None

    async def close(self) -> None:
        """End the programs at once: none has anything to lose."""
        for program in self._all:
            await program.end()


def _end_all(programs: Sequence[LineProgram]) -> None:
    for program in programs:
        if program.process is not None and program.process.returncode is None:
            end_at_once(program.process)


async def _run(words: Sequence[str], written: bytes, seconds: float) -> tuple[bytes, int]:
    """(what a program prints, its status), which is given something to read: both of no shell.

    One that prints too much is ended, and its status is 0. Raises OSError and TimeoutError.
    """
    pipe, nobody = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *words, stdin=pipe, stdout=pipe, stderr=nobody, start_new_session=True
    )
    feeding = asyncio.create_task(_feed(process, written))
    output = b""
    try:
        async with asyncio.timeout(seconds):
            assert process.stdout is not None
            while chunk := await process.stdout.read(_LONGEST):
                output += chunk
                if len(output) > _LONGEST:
                    return output, 0
            return output, await process.wait()
    finally:
        feeding.cancel()
        end_at_once(process)
        await asyncio.gather(feeding, process.wait(), return_exceptions=True)


async def _feed(process: asyncio.subprocess.Process, written: bytes) -> None:
    """Write all to a program that may not read it."""
    assert process.stdin is not None
    try:
        process.stdin.write(written)
        await process.stdin.drain()
    except ConnectionError:
        return
    process.stdin.close()


def _as_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, default=str).encode()
