"""Checks of replies, each in a process with a time limit, since a check may hang or crash.

Python's `re` and a user's own check may take for ever on a stranger's text; in another process they block no request.
`run_command` runs a program that reads an input and prints a verdict. Messages quote neither question nor reply.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from multiprocessing.context import SpawnContext, SpawnProcess
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from rcjax._base.extras import how_to_install, import_extra
from rcjax._base.figures import count
from rcjax.policy.signals import Reading, Reply, ReplyCheck, SignalError
from rcjax.policy.signals.answers import TRUNCATED, functions_of, read_calls, strict_json
from rcjax.policy.signals.reply_checks import Verdict, read_verdict, reported_cost
from rcjax.serving.failures import describe_fault

MAX_OUTPUT_BYTES = 2**16
"""Bytes that a program may print."""

_TICK = 0.01  # seconds between two polls of a program
_MIN_READINGS = 5  # least number of readings of an environment that seems empty

_MARK_VARIABLE = "RCJAX_CHECK"  # environment variable with a mark, in all processes that a check starts


async def run_command(
    words: Sequence[str], content: bytes, seconds: float, *, silent: bool = True
) -> tuple[bytes, int]:
    """Run a program and return (its output, its status). The program leads a session of its own, which ends with it.

    Args:
        words: the words of its command line, which no shell reads.
        content: the content of its standard input.
        seconds: time limit.
        silent: whether its standard error is discarded.

    A program that prints more than MAX_OUTPUT_BYTES is ended; its output is then one byte longer than that, and its
    status 0. Raises OSError and TimeoutError.
    """
    is_unwanted = threading.Event()
    run = partial(_run_command, words, content, seconds, is_unwanted, silent=silent)
    try:
        return await asyncio.get_running_loop().run_in_executor(_COMMAND_THREADS, run)
    finally:
        is_unwanted.set()


_COMMAND_THREADS = ThreadPoolExecutor(64, "rcjax-command")  # each starts a program, waits for it and ends it


def _run_command(
    words: Sequence[str], content: bytes, seconds: float, is_unwanted: threading.Event, *, silent: bool
) -> tuple[bytes, int]:
    """Run a program as `run_command` does, and end it once `is_unwanted` is set.

    The output goes to a file, since a pipe stays open as long as a child of the program holds it.
    """
    end = time.monotonic() + seconds
    mark = uuid.uuid4().hex
    with _scratch_file() as source, _scratch_file() as sink:
        source.write(content)
        source.seek(0)
        errors = subprocess.DEVNULL if silent else None
        marked = os.environ | {_MARK_VARIABLE: mark}
        process = subprocess.Popen(words, stdin=source, stdout=sink, stderr=errors, start_new_session=True, env=marked)
        try:
            while process.poll() is None and os.fstat(sink.fileno()).st_size <= MAX_OUTPUT_BYTES:
                if is_unwanted.wait(_TICK) or time.monotonic() >= end:
                    raise TimeoutError
        finally:
            end_session(process.pid, mark, started_now=True)
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
        sink.seek(0)
        output = sink.read(MAX_OUTPUT_BYTES + 1)
    return output, 0 if len(output) > MAX_OUTPUT_BYTES else process.returncode


def _scratch_file() -> IO[bytes]:
    """Open a file without a name, in memory if the system can."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("rcjax"), "w+b")
    return tempfile.TemporaryFile()


def end_session(leader: int, mark: str, *, started_now: bool) -> None:
    """Kill the processes of a session and, if /proc lists processes, those with its mark in their environment.

    If the leader has `started_now`, processes with lower ids than its own are not its children.
    """
    marked = f"{_MARK_VARIABLE}={mark}".encode()
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
    ended: set[int] = set()
    while more := {*_members(leader, marked, lists_newer=started_now)} - ended:  # `timeout` makes itself a group
        for pid in more:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended |= more


def _members(leader: int, mark: bytes, *, lists_newer: bool) -> Iterator[int]:
    """Yield the processes of a session, and processes with a mark in their environment.

    With `lists_newer`, only processes with ids from the leader's on are read, unless ids have begun again meanwhile.
    """
    end = time.monotonic() + _TICK
    names = os.listdir("/proc") if os.path.isdir("/proc/self") else ()
    oldest = leader if lists_newer and _newest_process() >= leader else 0
    for pid in map(int, filter(str.isdigit, names)):
        with suppress(OSError):
            if pid >= oldest and (
                mark in _environment(Path("/proc", str(pid)), end).split(b"\0") or os.getsid(pid) == leader
            ):
                yield pid


def _newest_process() -> int:
    """Return the id of the newest process, from /proc/loadavg; 0 if it cannot be read."""
    try:
        return int(Path("/proc/loadavg").read_text("ascii").split()[-1])
    except (OSError, ValueError, IndexError):
        return 0


def _environment(process: Path, end: float) -> bytes:
    """Return the environment of a process, which seems empty for a moment while the process loads another program.

    An empty one is read again until `end`, by the monotonic clock. There are at least `_MIN_READINGS` readings, because
    `end` may pass before the first on a busy machine.
    """
    readings = 1
    while not (content := (process / "environ").read_bytes()) and (readings < _MIN_READINGS or time.monotonic() < end):
        os.readlink(process / "exe")  # raises OSError for a thread of the kernel, which has none
        time.sleep(_TICK / 10)
        readings += 1
    return content


_START_SECONDS = 60.0  # seconds for the start of a process, with its imports

MAX_PROCESSES = min(8, max(4, os.cpu_count() or 1))
"""Largest number of processes of one check: some may wait for a disk or another program."""

_STARTING = threading.Lock()


class ProcessEndedError(Exception):
    """The failure of a process that ended without an answer; `status` is None if it did not start."""

    def __init__(self, status: int | None) -> None:
        super().__init__("it broke down" if status is None else f"it ended with status {status}")
        self.status = status


class _Beginning:
    """Calls `lead_session` in a new process, which unpickles it first: an orphan prints no traceback."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return lead_session, ()


class _Process(SpawnProcess):
    """A process that does not import the user's main module. When it ends, so do the processes that it started."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self.beginning = _Beginning()
        super().__init__(*args, **more)

    def start(self) -> None:
        with _STARTING:
            main = sys.modules["__main__"]
            sys.modules["__main__"] = ModuleType("__main__")  # a script without a guard would run again as main
            try:
                super().start()
            finally:
                sys.modules["__main__"] = main

    def terminate(self) -> None:
        if self.pid is not None:
            end_session(self.pid, str(self.pid), started_now=False)
        with suppress(ProcessLookupError):
            super().kill()  # for a process that leads no session yet


class _Context(SpawnContext):
    Process = _Process


class CheckPool:
    """A pool of at most `max_processes` processes that have loaded a check by its name (`load_check`).

    They start with the first call, and end when the pool is collected. Raises ImportError if pebble is not installed.
    """

    def __init__(self, name: str, max_processes: int = MAX_PROCESSES) -> None:
        self._pebble = import_extra("pebble", "run")
        self._broken = (self._pebble.ProcessExpired, BrokenProcessPool)
        self._name, self._max_processes = name, max_processes
        self._pool: Any = None
        self._turn = threading.Lock()

    def _schedule(self, function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float | None) -> Any:
        with self._turn:
            if self._pool is None or not self._pool.active:
                self.close()
                self._pool = self._pebble.ProcessPool(
                    self._max_processes, initializer=load_check, initargs=[self._name], context=_Context()
                )
                self._end_processes = weakref.finalize(self, _end_pool, self._pool)
            return self._pool.schedule(function, args=arguments, timeout=seconds)

    async def call(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
        """Call a function of this module, which raises nothing, in a process, and return its value.

        Raises TimeoutError after so many seconds, and ProcessEndedError.
        """
        for may_retry in (True, False):
            try:
                scheduled = await asyncio.to_thread(self._schedule, function, arguments, seconds)  # starts processes
                return await asyncio.wait_for(asyncio.wrap_future(scheduled), _START_SECONDS + seconds)
            except BrokenProcessPool:  # perhaps by the process of another call
                if not may_retry:
                    raise ProcessEndedError(None) from None
            except self._pebble.ProcessExpired as error:
                await asyncio.to_thread(end_session, error.pid, str(error.pid), started_now=False)  # its children
                raise ProcessEndedError(error.exitcode) from None

    def call_blocking(self, function: Callable[..., Any]) -> Any:
        """Start a process, and return a function's value in it. Raises TimeoutError and ProcessEndedError."""
        try:
            return self._schedule(function, (), None).result(_START_SECONDS)
        except self._broken as error:
            raise ProcessEndedError(getattr(error, "exitcode", None)) from None

    def close(self) -> None:
        """End the processes at once."""
        if self._pool is not None:
            self._pool = None
            self._end_processes()


def _end_pool(pool: Any) -> None:
    """End the processes of a pool; in a thread if an event loop runs here, so that no request waits."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        _stop_and_join(pool)
    else:
        threading.Thread(target=_stop_and_join, args=(pool,), name="rcjax-checks-end").start()


def _stop_and_join(pool: Any) -> None:
    pool.stop()
    pool.join()


MAX_VERDICT_CHARS = 10_000  # characters of a verdict as JSON


class _RefusedError(Exception):
    """A check that cannot be run."""


_LOADED: dict[str, Any] = {}  # the check of this process, or the reason for its refusal


def lead_session() -> None:
    """Make this process the leader of a session, with empty standard streams."""
    if hasattr(os, "setsid"):
        os.setsid()
    os.environ[_MARK_VARIABLE] = str(os.getpid())
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def load_check(name: str) -> None:
    """Load the check or grader of this name, whose imports may take long."""
    sys.path.insert(0, os.getcwd())
    if name == "number":
        importlib.import_module("math_verify")
    kind, _, rest = name.partition(":")
    try:
        if kind in ("json", "call", "python"):
            made = {"json": _json_check, "call": _call_check, "python": lambda: _function(rest)}
            _LOADED["check"] = made[kind]()
    except _RefusedError as problem:
        _LOADED["refusal"] = str(problem)


def load_problem() -> str | None:
    """Return the reason why the check cannot be run; None if it can be run."""
    return _LOADED.get("refusal")


def run_check(arguments: str) -> dict[str, Any]:
    """Run the check on its arguments, a JSON list, and return {"value": the verdict} or {"failed": the error}."""
    if "check" not in _LOADED:
        return {"failed": "it cannot be imported any more"}
    try:
        verdict = _LOADED["check"](*json.loads(arguments))
        verdict = asyncio.run(_awaited(verdict)) if inspect.isawaitable(verdict) else verdict
    except BaseException as error:  # SystemExit included
        return {"failed": describe_fault(error)}
    try:
        text = json.dumps(verdict, default=_to_builtin)
    except Exception:
        text = ""
    return {"value": json.loads(text) if 0 < len(text) <= MAX_VERDICT_CHARS else []}


def search_pattern(pattern: str, text: str, reference: Sequence[str]) -> dict[str, Any]:
    """Search a text for a pattern, with each right answer for `{answer}`; return {"value": …} or {"failed": …}."""
    forms = [re.escape(right) for right in reference] if "{answer}" in pattern else [""]
    try:
        return {"value": any(re.search(pattern.replace("{answer}", form), text, re.M) is not None for form in forms)}
    except Exception as error:  # with an answer, the pattern may be invalid or need too much memory
        return {"failed": f"{type(error).__name__}: {error}"}


def _function(target: str) -> Callable[..., Any]:
    """Import the function of `module:function`."""
    name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        problem = f"there is no module {error.name}"
        raise _RefusedError(f"{problem}: it is looked for in the working folder, and where Python looks") from None
    except BaseException as error:  # the user's own module may raise anything
        raise _RefusedError(f"the module {name} fails as it is imported: {describe_fault(error)}") from None
    function = getattr(module, attribute, None)
    if not callable(function):
        raise _RefusedError(f"the module {name} has no function {attribute}: name one that it has")
    return function


def _json_check() -> Callable[[dict[str, Any]], Any]:
    """Make the check of JSON, which applies the request's schema if it has one."""
    holds = _schema_test()

    def check(call: dict[str, Any]) -> float:
        schema = _schema(call.get("response_format"))
        return float(_is_json(call) and (schema is None or holds(schema, json.loads(call["answer"]))))

    return check


def _schema_test() -> Callable[[Any, Any], bool]:
    """Make the test of whether a value fits a JSON schema; remote references are not fetched."""
    try:
        from jsonschema.validators import Draft202012Validator, validator_for
        from jsonschema_specifications import REGISTRY
    except ImportError:
        raise _RefusedError(f"it needs jsonschema: {how_to_install('tools')}") from None

    def holds(schema: Any, value: Any) -> bool:
        return validator_for(schema, default=Draft202012Validator)(schema, registry=REGISTRY).is_valid(value)

    return holds


def _call_check() -> Callable[[dict[str, Any]], Any]:
    """Make the check of tool calls: each names a tool of the request, with arguments that fit the tool's schema."""
    holds = _schema_test()

    def check(call: dict[str, Any]) -> float:
        calls, wanted = read_calls(call["tool_calls"]), call.get("tool_choice")
        ids = [made.get("id") for made in call["tool_calls"] if isinstance(made.get("id"), str) and made["id"]]
        if calls is None or len({*ids}) < len(ids) or call.get("finish_reason") in TRUNCATED:
            return 0.0
        forced = wanted == "required" or isinstance(wanted, dict)
        if (forced and not calls) or (wanted == "none" and calls):
            return 0.0
        offered = {function["name"]: function.get("parameters") for function in functions_of(call.get("tools"))}
        named = functions_of([wanted]) if isinstance(wanted, dict) else []
        allowed = {*offered} & ({function["name"] for function in named} or {*offered})

        def fits(made: Mapping[str, Any]) -> bool:
            schema = offered.get(made["name"])
            return made["name"] in allowed and (schema is None or holds(schema, made["arguments"]))

        return float(all(map(fits, calls)))

    return check


def _is_json(call: Mapping[str, Any]) -> bool:
    """Return whether the answer is standard JSON, and an object if the request asked for one."""
    try:
        document = strict_json(call["answer"])
    except (ValueError, RecursionError):
        return False
    form = call.get("response_format")
    return not (isinstance(form, dict) and form.get("type") == "json_object") or isinstance(document, dict)


def _schema(response_format: Any) -> Any:
    """Return the schema in a `response_format` of OpenAI's or another server's form; None without one."""
    if not isinstance(response_format, dict):
        return None
    inner = response_format.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else response_format.get("schema")
    return schema if isinstance(schema, dict | bool) else None


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _to_builtin(value: Any) -> Any:
    """Convert numbers and truth values of NumPy and the like to Python's."""
    if type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    return float(value) if isinstance(value, Real) else dict(value)


class CheckError(SignalError):
    """A check without a verdict: `kind` says why, such as "timed out"; `cost` is in dollars, None if unknown."""

    def __init__(self, kind: str, more: str = "", cost: float | None = None) -> None:
        super().__init__(f"the check {kind}{more}")
        self.kind, self.cost = kind, cost


def require_runnable(checks: Iterable[ReplyCheck]) -> None:
    """Refuse a check that cannot be run with a ValueError that names the check and the remedy."""
    for check in dict.fromkeys(checks):
        if check.kind == "command":
            program = shlex.split(check.argument)[0]
            if shutil.which(program) is None:
                problem = f"{check.name}: there is no program {program} that can be run: looked for in {os.getcwd()}"
                raise ValueError(f"{problem} and where the system looks; quote a path with spaces")
        elif check.kind != "length":
            problem = _why_not_runnable(check)
            if problem is not None:
                raise ValueError(f"{check.name}: cannot be run: {problem}")


def _why_not_runnable(check: ReplyCheck) -> str | None:
    """Return the reason why Python cannot run a check; None if it can."""
    try:
        pool = CheckPool(check.name, 1)
    except ImportError as error:
        return str(error)
    try:
        return None if check.kind == "regex" else pool.call_blocking(load_problem)
    except TimeoutError:
        return "it is not there within a minute"
    except ProcessEndedError as error:
        return str(error)
    finally:
        pool.close()


class CheckRunner:
    """Runs checks: Python's checks in a few lasting processes, a command in a new process for each reply.

    A verdict has so many `seconds`. The standard error of commands is discarded if they are to be `silent`.
    """

    def __init__(self, seconds: float, *, silent: bool = True) -> None:
        self.seconds, self.silent = seconds, silent
        self._pools: dict[str, CheckPool] = {}
        self._slots: dict[tuple[str, asyncio.AbstractEventLoop], asyncio.Semaphore] = {}
        self._failures: dict[str, Counter[str]] = {}

    async def read(
        self, check: ReplyCheck, messages: Sequence[Mapping[str, Any]], reply: Reply, options: Mapping[str, Any]
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
            verdict = await self._verdict(check, [check.document(messages, reply, options)])
        except CheckError as problem:
            self._failures.setdefault(check.name, Counter())[problem.kind] += 1
            raise
        return check.reading(reply, verdict, options), verdict.cost

    async def run(self, check: ReplyCheck, arguments: Sequence[Any]) -> Any:
        """Run a check, at most MAX_PROCESSES at once, and return the value that it gives. Raises CheckError."""
        key = check.name, asyncio.get_running_loop()  # a semaphore belongs to one event loop
        run = self._run_command if check.kind == "command" else self._run_in_process
        try:
            async with self._slots.setdefault(key, asyncio.Semaphore(MAX_PROCESSES)):
                return await run(check, arguments)
        except CheckError:
            raise
        except TimeoutError:
            raise CheckError("timed out", f": no verdict within {self.seconds:g} seconds") from None
        except ProcessEndedError as error:
            raise CheckError("broke down", f": {error}") from None
        except OSError as error:
            raise CheckError("failed", f": it cannot be started: {error.strerror}", 0.0) from None
        except Exception as problem:  # for example a question nested too deep for JSON
            raise CheckError("failed", f": {type(problem).__name__}") from None

    async def _verdict(self, check: ReplyCheck, arguments: Sequence[Any]) -> Verdict:
        output = await self.run(check, arguments)
        try:
            verdict = read_verdict(output)
        except ValueError as problem:
            raise CheckError("gave nonsense", f": {problem}", reported_cost(output)) from None
        if verdict is None:
            raise CheckError("gave nothing", cost=reported_cost(output))
        return verdict

    async def _run_in_process(self, check: ReplyCheck, arguments: Sequence[Any]) -> Any:
        if check.name not in self._pools:
            self._pools[check.name] = CheckPool(check.name)
        call = partial(self._pools[check.name].call, seconds=self.seconds)
        if check.kind == "regex":
            reply = await call(search_pattern, check.argument, arguments[0]["answer"], ())
        else:
            reply = await call(run_check, _as_json(list(arguments)))
        if "failed" in reply:
            raise CheckError("failed", f": {reply['failed']}" if check.kind != "regex" else "")
        return reply["value"]

    async def _run_command(self, check: ReplyCheck, arguments: Sequence[Any]) -> Any:
        content = _as_json(arguments[0]).encode()
        output, status = await run_command(shlex.split(check.argument), content, self.seconds, silent=self.silent)
        if status < 0:
            raise ProcessEndedError(status)
        if status:
            raise CheckError("failed", f": it ended with status {status}")
        if len(output) > MAX_OUTPUT_BYTES:
            raise CheckError("gave nonsense", f": it printed more than {MAX_OUTPUT_BYTES >> 10} KB")
        try:
            return json.loads(output) if output.strip() else None
        except (ValueError, RecursionError):
            raise CheckError("gave nonsense", ": what it printed is no JSON") from None

    def remarks(self) -> list[str]:
        """Describe the replies without a verdict, for each check: their number and the reasons."""
        return [
            f"check {name}: no confidence in {count(kinds.total(), 'answer')}, as it "
            + ", ".join(f"{kind} ({number:,})" for kind, number in kinds.items())
            for name, kinds in self._failures.items()
        ]

    async def close(self) -> None:
        """End the processes."""
        for pool in self._pools.values():
            await asyncio.to_thread(pool.close)


def _as_json(value: Any) -> str:
    return json.dumps(value, default=str)
