"""What a command prints: text without control characters, JSON, warnings, and what went wrong, in one line.

Names of models, queries and files come from other people: an escape sequence or a line feed in one could write whatever
it likes on a terminal. What is shown passes through `shown`, messages pass through `one_line`, so nothing is printed
raw. Ctrl-C, and SIGTERM, which does the same, stop a command that works for long. The standard library and typer alone.
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

INTERRUPTED = 130  # exit status after Ctrl-C, as shells have it

_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "failed to map segment", "can't start new thread")  # of XLA, ld.so, Python

_MEMORY = "there is not enough memory: give it more, or a part of the log"

_REPORT = "if the reason is not clear, please report it with what RCJAX_TRACEBACK=1 in the environment prints"


def escaped(value: Any) -> Any:
    r"""Texts and paths, in lists and mappings too, with what is not printable written as Python writes it in a string.

    That is control characters, line breaks, marks that turn the direction of writing, and white space that is no space.

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
    r"""A message on one line: white space at its ends and line breaks go, other control characters are escaped.

    >>> one_line("first\n  second \x1b[31m")
    'first second \\x1b[31m'
    """
    return escaped(" ".join(text.split()))


def shown(show: Callable[P, None]) -> Callable[P, None]:
    """A function that prints its arguments, so that it prints them `escaped` and its errors name standard output."""

    @functools.wraps(show)
    def show_escaped(*args: P.args, **named: P.kwargs) -> None:
        with standard_output():
            show(*map(escaped, args), **{name: escaped(value) for name, value in named.items()})  # type: ignore[arg-type]

    return show_escaped


def command(*words: object, **options: object) -> str:
    """A command of rcjax as a shell takes it, with the options that are not None; True is a flag.

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
    """Print a line on standard error, which a terminal folds between words: a warning, or what else it is."""
    line = f"{kind}: {one_line(str(message))}"
    if sys.stderr.isatty():
        line = textwrap.fill(line, shutil.get_terminal_size().columns, break_long_words=False, break_on_hyphens=False)
    with suppress(OSError):  # nobody reads it
        typer.echo(line, err=True)


@contextmanager
def standard_output() -> Iterator[None]:
    """A block that prints: an error of writing is one of standard output, which is then silent."""
    try:
        yield
        sys.stdout.flush()
    except OSError as problem:
        if isinstance(problem, BrokenPipeError) or problem.filename is not None or problem.errno is None:
            raise
        silence()
        raise OSError(problem.errno, problem.strerror, "standard output") from problem


def silence() -> None:
    """Give standard output, which nobody takes, somewhere to go: Python flushes it once more at the end."""
    with suppress(OSError, ValueError):  # ValueError: it is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# What came of it, and what went wrong.


def attempt(write: Callable[[], object]) -> OSError | None:
    """Write a file; what went wrong, to be raised once the results are shown (`conclude`)."""
    try:
        write()
    except OSError as problem:
        return problem
    return None


def conclude(
    document: Mapping[str, Any], show: Callable[[], None], *, as_json: bool, problem: Exception | None = None
) -> None:
    """Print results, as one JSON document or as `show` does, then the problem, if there is one, and end with status 1.

    A pipe that nobody reads any more is no error.
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
    """Print what went wrong, in a line; if `as_json`, add {"error": {"message", "kind"}} to the document of results.

    With RCJAX_TRACEBACK in the environment, where it was raised too.
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


#: Left out where only `rcjax serve` is installed.
_HEAVY = ("jax", "narwhals", "numpy", "polars", "scipy")


def _describe(problem: BaseException) -> tuple[str, str]:
    """The message of a problem, and its kind: usage, data, infeasible, file, memory, missing or internal."""
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
        choosing = sys.modules.get("rcjax.frontier.hull")  # where it is not there nothing was infeasible
        infeasible = choosing is not None and isinstance(problem, choosing.InfeasibleError)
        return text, "infeasible" if infeasible else "data"
    if isinstance(problem, ModuleNotFoundError) and (name := (problem.name or "").partition(".")[0]) in _HEAVY:
        return f"this needs {name}, which an installation for rcjax serve alone lacks: pip install rcjax", "missing"
    return f"unexpected {type(problem).__name__}: {text}: {_REPORT}", "internal"


# Signals.

_TOLD = b"finishing the calls under way; Ctrl-C again ends at once\n"


@contextmanager
def terminable() -> Iterator[None]:
    """A block in which SIGTERM does what Ctrl-C does there; once it has ended by that, another one changes nothing."""
    with _handling(signal.SIGTERM, _terminate) as afterwards:
        try:
            yield
        except BaseException as problem:
            import asyncio  # which takes long to import

            # Files are closed, and the exit status is to tell what happened. Handlers in Python end before Python does.
            if isinstance(problem, KeyboardInterrupt | asyncio.CancelledError):
                afterwards[0] = signal.SIG_IGN
            raise


@contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """A block of a task in which the first Ctrl-C calls `stop`, and the next one ends the task where it is.

    So is one that does not wait but computes, as a grader of the user's own may for ever.
    """
    import asyncio

    loop, heard = asyncio.get_running_loop(), list[int]()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if heard:
            raise KeyboardInterrupt
        heard.append(number)
        with suppress(OSError):
            os.write(2, _TOLD)  # sys.stderr may be in the midst of another line
        loop.call_soon_threadsafe(stop)

    with _handling(signal.SIGINT, interrupt):
        yield


def _terminate(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # in the background, shells have Ctrl-C ignored
        raise KeyboardInterrupt
    handler(number, frame)


@contextmanager
def _handling(number: signal.Signals, handler: Callable[[int, FrameType | None], None]) -> Iterator[list[Any]]:
    """A block with a handler of a signal; what it yields has the handler that comes after the block."""
    try:
        before = signal.signal(number, handler)
    except ValueError:  # not the main thread, which alone has signals
        yield [None]
        return
    afterwards = [before if before is not None else signal.SIG_DFL]
    try:
        yield afterwards
    finally:
        signal.signal(number, afterwards[0])
