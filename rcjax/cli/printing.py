"""What reaches standard output and standard error: text without control characters, JSON documents, warnings.

Names of models, queries and files come from other people: an escape sequence or a line feed in one could write whatever
it likes on a terminal. What is shown passes through `shown`, messages pass through `one_line`, so nothing is printed
raw. The standard library and typer alone.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import PurePath
from typing import Any, ParamSpec, TypeVar

import typer

from rcjax._base.wording import visible

P = ParamSpec("P")

T = TypeVar("T")


def escaped(value: Any) -> Any:
    r"""Texts and paths, in lists and mappings too, with what is not printable written as Python writes it in a string.

    That is control characters, line breaks, marks that turn the direction of writing, and white space that is no space.

    >>> escaped({"small\x1b[2J": ["a\u202eb", 1.5]})
    {'small\\x1b[2J': ['a\\u202eb', 1.5]}
    """
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, PurePath):
        return escaped(str(value))
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


def command(*words: object, **files: object) -> str:
    """A command of rcjax as a shell takes it, with the options that are not None.

    >>> command("check", "my policy.json", "log.csv", prices=None, labels="labels.csv")
    "rcjax check 'my policy.json' log.csv --labels labels.csv"
    """
    options = [(f"--{name}", str(value)) for name, value in files.items() if value is not None]
    return shlex.join(["rcjax", *map(str, words), *(word for pair in options for word in pair)])


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on standard output, in ASCII."""
    with standard_output():
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")


def warn(message: object) -> None:
    """Print a warning of one line on standard error."""
    with suppress(OSError):  # nobody reads it
        typer.echo(f"warning: {one_line(str(message))}", err=True)


@contextmanager
def standard_output() -> Iterator[None]:
    """A block that prints: an error of writing is one of standard output, which is then silent."""
    try:
        yield
        sys.stdout.flush()
    except OSError as problem:
        if isinstance(problem, BrokenPipeError) or problem.filename is not None:
            raise
        silence()
        raise OSError(problem.errno, problem.strerror, "standard output") from problem


def silence() -> None:
    """Give standard output, which nobody takes, somewhere to go: Python flushes it once more at the end."""
    with suppress(OSError, ValueError):  # ValueError: it is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def open_closed_streams() -> None:
    """Open what the shell has closed (`>&-`) on the null device, so that no other file is taken for it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - until the end
