"""What goes wrong in a command: one line on standard error, the exit status, and with `--json` a document.

Ctrl-C, and SIGTERM, which does the same, stop a command that works for long.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup

from rcjax.cli.printing import escaped, one_line, print_json, silence, standard_output, warn

INTERRUPTED = 130  # exit status after Ctrl-C, as shells have it

_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "failed to map segment", "can't start new thread")  # of XLA, ld.so, Python

_MEMORY = "there is not enough memory: give it more, or a part of the log"

_REPORT = "if the reason is not clear, please report it with what RCJAX_TRACEBACK=1 in the environment prints"


class PartlyDone(Exception):  # noqa: N818 - it says what is there
    """A problem that came after there were results, which `--json` prints with it."""

    def __init__(self, problem: Exception, document: Mapping[str, Any]) -> None:
        super().__init__(problem, document)
        self.problem, self.document = problem, document


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
    """Print results, as one JSON document or as `show` does, then raise the problem, if there is one."""
    if not as_json:
        show()
        if problem is not None:
            raise problem
    elif problem is not None:
        raise PartlyDone(problem, document)
    else:
        print_json(document)


@contextmanager
def reported(*, as_json: bool, status: int = 1) -> Iterator[None]:
    """Turn whatever goes wrong within into one line, the exit status, and if `as_json` {"error": {"message", "kind"}}.

    A pipe that nobody reads any more is no error: what comes after the block is done. Warnings become one line each.
    """
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: warn(message)
        try:
            yield
        except BrokenPipeError:
            silence()
        except (typer.Exit, typer.Abort, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as problem:  # a panic of polars is no Exception
            if hasattr(problem, "format_message"):  # a usage error, of typer: see CommandLine
                raise
            _tell(problem, as_json)
            raise typer.Exit(status) from None


def _tell(problem: BaseException, as_json: bool) -> None:
    """Print what went wrong: with RCJAX_TRACEBACK in the environment, where it was raised too."""
    document: Mapping[str, Any] = {}
    if isinstance(problem, PartlyDone):
        problem, document = problem.problem, problem.document
    if os.environ.get("RCJAX_TRACEBACK"):
        traceback.print_exception(problem)
    message, kind = _describe(problem)
    with suppress(OSError):  # nobody reads it
        typer.echo(f"error: {one_line(message)}", err=True)
    if as_json:
        _print_error(message, kind, document)


def _print_error(message: str, kind: str, document: Mapping[str, Any]) -> None:
    try:
        print_json({**document, "error": {"message": " ".join(message.split()), "kind": kind}})
    except OSError:
        silence()


def _describe(problem: BaseException) -> tuple[str, str]:
    """The message of a problem, and its kind: "data", "infeasible", "file", "memory" or "internal"."""
    text = str(problem)
    memory = isinstance(problem, MemoryError) or any(words in text for words in _OUT_OF_MEMORY)
    if memory or (isinstance(problem, OSError) and problem.errno == errno.ENOMEM):
        return f"{_MEMORY} ({text})" if text else _MEMORY, "memory"
    if isinstance(problem, OSError):
        named = problem.filename is not None
        return f"{os.fsdecode(problem.filename)}: {problem.strerror}" if named else text, "file"
    if isinstance(problem, ValueError):
        return text, "infeasible" if _is_infeasible(problem) else "data"
    return f"unexpected {type(problem).__name__}: {text}: {_REPORT}", "internal"


def _is_infeasible(problem: ValueError) -> bool:
    # Where its module is not there it was not raised, and JAX need not be imported to find out.
    if "rcjax.frontier.frontier" not in sys.modules:
        return False
    from rcjax.frontier.hull import InfeasibleError

    return isinstance(problem, InfeasibleError)


class CommandLine(TyperGroup):
    """The group of all commands: what goes wrong outside of them, usage errors above all, is told as within.

    Its exit status is 2 for usage errors; a pipe that nobody reads any more, as of `--help | head -1`, is no error.
    """

    def main(self, args: Sequence[str] | None = None, *rest: Any, standalone_mode: bool = True, **named: Any) -> Any:
        """Run a command and leave the process with its exit status."""
        if not standalone_mode:
            return super().main(args, *rest, standalone_mode=False, **named)
        words = list(sys.argv[1:] if args is None else args)
        try:
            with standard_output():
                status = super().main(args, *rest, standalone_mode=False, **named) or 0
        except BrokenPipeError:
            silence()
            status = 0
        except SystemExit as leaving:
            if not isinstance(leaving.__context__, OSError):
                raise
            status = 0  # typer and rich leave so where a pipe broke
        except typer.Abort:
            status = INTERRUPTED
        except Exception as problem:
            status = _status_outside(problem, words)
        sys.exit(status)


def _status_outside(problem: Any, words: Sequence[str]) -> int:
    """Tell of a problem outside of the block of a command, with these words on the command line; the exit status."""
    as_json = "--json" in words
    if not hasattr(problem, "format_message"):
        _tell(problem, as_json)
        return 2 if "check" in words[:1] else 1
    message = escaped(problem.format_message())
    if as_json:
        with suppress(OSError):
            typer.echo(f"error: {one_line(message)}", err=True)
        _print_error(message, "usage", {})
    else:
        from typer import rich_utils

        problem.format_message = lambda: message
        rich_utils.rich_format_error(problem)
    return problem.exit_code


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
    """A block of a task in which the first Ctrl-C calls `stop`, and the next one ends the task, whatever it waits for.

    A task that does not wait but computes, as a grader of the user's own may for ever, is ended where it is.
    """
    import asyncio

    interrupt = _Interrupt(stop, asyncio.get_running_loop(), asyncio.current_task())
    with _handling(signal.SIGINT, interrupt):
        yield


class _Interrupt:
    """What Ctrl-C does to a task."""

    def __init__(self, stop: Callable[[], None], loop: Any, task: Any) -> None:
        self._stop, self._loop, self._task = stop, loop, task
        self._times = 0
        self._heard = False  # by the loop, which does not run while something computes

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._times += 1
        heard, self._heard = self._heard, False
        self._loop.call_soon_threadsafe(self._hear)
        if self._times == 1:
            with suppress(OSError):
                os.write(2, _TOLD)  # sys.stderr may be in the midst of another line
            self._stop()
        elif heard and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        else:
            raise KeyboardInterrupt

    def _hear(self) -> None:
        self._heard = True


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
