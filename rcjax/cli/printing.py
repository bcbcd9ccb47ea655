"""Print text without control characters, JSON, warnings and errors of one line; and handle interrupts.

Names of models, queries and files come from other people: an escape sequence or a line feed in a name could write
anything on a terminal. All screens pass through `shown`, and all messages through `one_line`, so that no text is
printed raw. Ctrl-C and SIGTERM stop long work. Standard library and typer only.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import shlex
import shutil
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import PurePath
from types import FrameType
from typing import Any, ParamSpec

import typer

from rcjax._base.wording import visible

P = ParamSpec("P")

INTERRUPTED = 130  # the usual exit status after Ctrl-C

_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "failed to map segment", "can't start new thread")  # by XLA, ld.so, Python

_MEMORY = "there is not enough memory: give it more, or a part of the log"

_REPORT = "if the reason is not clear, please report it with what RCJAX_TRACEBACK=1 in the environment prints"


def escaped(value: Any) -> Any:
    r"""Escape unprintable characters in texts and paths, also in lists and mappings, as Python does in a string.

    Unprintable are control characters, line breaks, marks of the direction of writing, and white space but the space.

    >>> escaped({"small\x1b[2J": ["a\u202eb", 1.5]})
    {'small\\x1b[2J': ['a\\u202eb', 1.5]}
    """
    if isinstance(value, str | PurePath):
        return visible(str(value))
    if isinstance(value, Mapping):
        return {escaped(name): escaped(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [escaped(item) for item in value]
    return value


def one_line(text: str) -> str:
    r"""Put a message on one line: strip its ends, replace line breaks by spaces, escape control characters.

    >>> one_line("first\n  second \x1b[31m")
    'first second \\x1b[31m'
    """
    return escaped(" ".join(text.split()))


def shown(show: Callable[P, None]) -> Callable[P, None]:
    """Decorate a function that prints its arguments: they are `escaped`, and its errors name standard output."""

    @functools.wraps(show)
    def show_escaped(*args: P.args, **named: P.kwargs) -> None:
        with standard_output():
            show(*map(escaped, args), **{name: escaped(value) for name, value in named.items()})  # type: ignore[arg-type]

    return show_escaped


def command(*words: object, **options: object) -> str:
    """Return a command of rcjax for a shell, with the options that are not None; True stands for a flag.

    >>> command("check", "my policy.json", "log.csv", prices=None, labels="labels.csv", yes=True)
    "rcjax check 'my policy.json' log.csv --labels labels.csv --yes"
    """
    line = ["rcjax", *map(str, words)]
    for name, value in options.items():
        if value is not None:
            line += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join(line)


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on standard output, in ASCII."""
    with standard_output():
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")


def warn(message: object, kind: str = "warning") -> None:
    """Print a line on standard error, a warning or another `kind`; in a terminal it is folded between words."""
    line = f"{kind}: {one_line(str(message))}"
    if sys.stderr.isatty():
        line = textwrap.fill(line, shutil.get_terminal_size().columns, break_long_words=False, break_on_hyphens=False)
    with suppress(OSError):  # standard error is closed
        typer.echo(line, err=True)


@contextmanager
def standard_output() -> Iterator[None]:
    """Name standard output in the block's errors of writing, and silence it after one."""
    try:
        yield
        sys.stdout.flush()
    except OSError as problem:
        if isinstance(problem, BrokenPipeError) or problem.filename is not None or problem.errno is None:
            raise
        silence()
        raise OSError(problem.errno, problem.strerror, "standard output") from problem


def silence() -> None:
    """Redirect a broken standard output to the null device, as Python flushes it once more at the end."""
    with suppress(OSError, ValueError):  # ValueError: it is not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# Results and errors.


def attempt(write: Callable[[], object]) -> OSError | None:
    """Write a file; return the error, which is reported after the results (`conclude`)."""
    try:
        write()
    except OSError as problem:
        return problem
    return None


def conclude(
    document: Mapping[str, Any], show: Callable[[], None], *, as_json: bool, problem: Exception | None = None
) -> None:
    """Print results, as one JSON document or by `show`; then report the problem, if any, and exit with status 1.

    A closed pipe is not an error.
    """
    try:
        if not as_json:
            show()
        elif problem is None:
            print_json(document)
    except BrokenPipeError:
        silence()
    if problem is not None:
        report(problem, as_json, document)
        raise typer.Exit(1)


def report(problem: BaseException, as_json: bool, document: Mapping[str, Any] | None = None) -> None:
    """Print a problem in one line; if `as_json`, add {"error": {"message", "kind"}} to the document of results.

    With RCJAX_TRACEBACK in the environment, the traceback is printed, too.
    """
    message, kind = _describe(problem)
    message = one_line(message)
    if kind != "usage" and os.environ.get("RCJAX_TRACEBACK"):
        traceback.print_exception(problem)
    if kind == "usage" and not as_json:
        from typer import rich_utils

        problem.format_message = lambda: message  # type: ignore[attr-defined]
        rich_utils.rich_format_error(problem)  # type: ignore[arg-type]
        return
    warn(message, "error")
    if as_json:
        try:
            print_json({**(document or {}), "error": {"message": message, "kind": kind}})
        except OSError:
            silence()


#: The libraries that an installation for `rcjax serve` alone lacks.
_HEAVY = ("jax", "narwhals", "numpy", "polars", "scipy")


def _describe(problem: BaseException) -> tuple[str, str]:
    """Return (message, kind) of a problem: usage, data, infeasible, file, memory, missing or internal."""
    if (usage := getattr(problem, "format_message", None)) is not None:  # of typer
        return usage(), "usage"
    text = str(problem)
    memory = isinstance(problem, MemoryError) or any(words in text for words in _OUT_OF_MEMORY)
    if memory or (isinstance(problem, OSError) and problem.errno == errno.ENOMEM):
        return f"{_MEMORY} ({text})" if text else _MEMORY, "memory"
    if isinstance(problem, OSError):
        named = problem.filename is not None
        return f"{os.fsdecode(problem.filename)}: {problem.strerror}" if named else text, "file"
    if isinstance(problem, ValueError):
        hull = sys.modules.get("rcjax.solving.frontier.hull")  # nothing is infeasible before it is imported
        infeasible = hull is not None and isinstance(problem, hull.InfeasibleError)
        return text, "infeasible" if infeasible else "data"
    if isinstance(problem, ModuleNotFoundError) and (name := (problem.name or "").partition(".")[0]) in _HEAVY:
        return f"this needs {name}, which an installation for rcjax serve alone lacks: pip install rcjax", "missing"
    return f"unexpected {type(problem).__name__}: {text}: {_REPORT}", "internal"


# Signals.

_FINISHING = b"finishing the calls under way; Ctrl-C again ends at once\n"


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM do in the block what Ctrl-C does; after an interrupt, a further SIGTERM is ignored."""
    with _handling(signal.SIGTERM, _terminate) as afterwards:
        try:
            yield
        except BaseException as problem:
            import asyncio  # slow to import

            # The interrupt is handled already, and the exit status must tell of it: ignore SIGTERM until the end.
            if isinstance(problem, KeyboardInterrupt | asyncio.CancelledError):
                afterwards[0] = signal.SIG_IGN
            raise


@contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """Let the first Ctrl-C in a task's block call `stop`, and the second one end the task at once.

    The second one also ends a task that computes without waiting, as a user's grader may.
    """
    import asyncio

    loop, received = asyncio.get_running_loop(), list[int]()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        with suppress(OSError):
            os.write(2, _FINISHING)  # sys.stderr may be in the midst of another line
        loop.call_soon_threadsafe(stop)

    with _handling(signal.SIGINT, interrupt):
        yield


def _terminate(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # shells ignore Ctrl-C for a process in the background
        raise KeyboardInterrupt
    handler(number, frame)


@contextmanager
def _handling(number: signal.Signals, handler: Callable[[int, FrameType | None], None]) -> Iterator[list[Any]]:
    """Handle a signal in the block; the yielded list holds the handler for after the block."""
    try:
        before = signal.signal(number, handler)
    except ValueError:  # only the main thread can handle signals
        yield [None]
        return
    afterwards = [before if before is not None else signal.SIG_DFL]
    try:
        yield afterwards
    finally:
        signal.signal(number, afterwards[0])
