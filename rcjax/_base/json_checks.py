"""JSON files and their values, checked: what is wrong is one line, with its place. Standard library only.

A check takes a value and its place in the file, and returns the value as it is kept: immutable, of one type.
"""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

from rcjax._base.arguments import instance

T = TypeVar("T")

SCHEMA_VERSION = 1  # of all files of ours

HUGE = 1e100  # no sum of money or coefficient comes near it, and products of two or three still are finite

TINY = 1 / HUGE

_LONGEST = 200  # characters of a value in a message

_short = reprlib.Repr()

_short.maxstring = _short.maxother = 80


def shown(value: object) -> str:
    """A value as a message quotes it: what is nested or long is cut, so that it stays one line."""
    text = _short.repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def require(condition: bool, where: str, what: str, value: object) -> None:
    """Raise ValueError unless a condition holds.

    Args:
        condition: what must be.
        where: the place, for the message.
        what: what the value at this place must be, in words.
        value: what it is.
    """
    if not condition:
        problem = "it is missing or null" if value is None else f"it is {shown(value)}"
        raise ValueError(f"{where}: {what}, but {problem}")


def number(value: Any, where: str, low: float = -HUGE, high: float = HUGE) -> float:
    """A number, as float; no boolean, no NaN.

    Args:
        value: what the file holds there.
        where: the place, for the message.
        low, high: the least and the greatest that it may be.
    """
    if type(value) is float and low <= value <= high:  # nearly all there are, in files of any size
        return value
    require(issubclass(type(value), Real) and type(value) is not bool, where, "must be a number", value)
    exact = value if isinstance(value, int) else float(value)  # 10**400 has no float, 1e100 no float32
    require(low <= exact <= high, where, f"must be between {low:g} and {high:g}", value)  # NaN is not
    return float(value)


def whole(value: Any, where: str, low: int = 0, high: int = 10**15) -> int:
    """A whole number; no boolean.

    Args:
        value: what the file holds there.
        where: the place, for the message.
        low, high: the least and the greatest that it may be.
    """
    require(issubclass(type(value), Integral) and type(value) is not bool, where, "must be a whole number", value)
    require(low <= value <= high, where, f"must be between {low:g} and {high:g}", value)
    return int(value)


def flag(value: Any, where: str) -> bool:
    """True or false."""
    require(isinstance(value, bool), where, "must be true or false", value)
    return value


def name(value: Any, where: str) -> str:
    """A text that is not empty."""
    require(isinstance(value, str) and value != "", where, "must be a text that is not empty", value)
    return value


def choice(value: Any, where: str, allowed: tuple[str, ...]) -> str:
    """One of the words allowed."""
    if type(value) is not str or value not in allowed:
        require(name(value, where) in allowed, where, f"this rcjax knows {', '.join(allowed)} only", value)
    return value


def header(data: Any, kind: str) -> None:
    """The beginning of every file of ours: an object that tells its format and the version of its schema."""
    require(isinstance(data, Mapping), "file", "must hold a JSON object", data)
    form, version = data.get("format"), data.get("schema_version")
    require(form == kind, "format", f"must be {kind!r}, as in every {kind.removeprefix('rcjax-')}", form)
    if version != SCHEMA_VERSION or type(version) is not int:
        raise ValueError(f"schema_version: this file has version {shown(version)}; rcjax reads {SCHEMA_VERSION}")


@contextmanager
def inside(where: str) -> Iterator[None]:
    """Errors inside tell their place from there on: put the place of the whole before it."""
    try:
        yield
    except ValueError as problem:
        raise ValueError(f"{where}.{problem}" if where else str(problem)) from None


def load(path: str | os.PathLike[str], build: Callable[[Any], T]) -> T:
    """What `build` makes of the JSON value in a file; its errors name the file."""
    instance(path, (str, os.PathLike), "path")
    content = Path(path).read_bytes()
    try:
        return build(parsed(content))
    except ValueError as problem:
        raise ValueError(f"{os.fspath(path)}: {problem}") from problem


def parsed(content: bytes) -> Any:
    """The JSON value in the bytes of a file; a key that is there twice in one object is refused."""
    try:
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=_unique)
    except RecursionError as problem:
        raise ValueError("not JSON that rcjax writes: it is nested too deeply") from problem
    except ValueError as problem:
        raise ValueError(f"not JSON ({problem}); if it was cut off, write it again") from problem


def object_in(line: bytes | str) -> dict[str, Any]:
    """The JSON object in a line; an empty one where it is none.

    >>> object_in('{"a": 1}'), object_in("[1]"), object_in(b'{"a"')
    ({'a': 1}, {}, {})
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise ValueError(f"the key {shown(twice)} is there twice in one object")
    return unique
