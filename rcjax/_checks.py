"""JSON files and their values, checked: what is wrong is one line, with its place. Standard library only.

A check takes a value and its place in the file, and returns the value as it is kept: immutable, of one type.
"""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from rcjax._arguments import instance

T = TypeVar("T")
Check = Callable[[Any, str], T]  # takes a value and its place in the file, returns the value as it is stored

_HUGE = 1e100  # no sum of money or coefficient comes near it, and products of two or three still are finite
_DEEPEST = 50  # levels of nesting in free JSON values, well inside Python's recursion limit
_short = reprlib.Repr()  # keeps messages to a line
_short.maxstring = _short.maxother = 80


def require(condition: bool, where: str, what: str, value: object) -> None:
    """Raise ValueError unless the condition holds: `what` says what the value at this place must be."""
    if not condition:
        problem = "it is missing or null" if value is None else f"it is {_short.repr(value)}"
        raise ValueError(f"{where}: {what}, but {problem}")


def number(value: Any, where: str, low: float = -_HUGE, high: float = _HUGE) -> float:
    """A number from `low` to `high`, as float; no boolean, no NaN."""
    require(issubclass(type(value), Real) and type(value) is not bool, where, "must be a number", value)
    exact = value if isinstance(value, int) else float(value)  # 10**400 has no float, 1e100 no float32
    require(low <= exact <= high, where, f"must be between {low:g} and {high:g}", value)  # NaN is not
    return float(value)


def name(value: Any, where: str) -> str:
    """A text that is not empty."""
    require(isinstance(value, str) and value != "", where, "must be a text that is not empty", value)
    return value


def choice(value: Any, known: tuple[str, ...], where: str) -> None:
    """One of the known words; others may be from a newer rcjax."""
    what = f"this rcjax knows {', '.join(known)} only (upgrade it for more)"
    require(name(value, where) in known, where, what, value)


def sequence(value: Any, where: str, check: Check[T]) -> tuple[T, ...]:
    """A list that is not empty, each of its entries checked."""
    require(isinstance(value, (list, tuple)) and len(value) > 0, where, "must be a list, not empty", value)
    return tuple(check(each, f"{where}[{i}]") for i, each in enumerate(value))


def items(value: Any, where: str, check: Check[T]) -> Mapping[str, T]:
    """An object, each of its entries checked."""
    require(isinstance(value, Mapping), where, "must be an object", value)
    return MappingProxyType({name(k, where): check(each, f"{where}[{k!r}]") for k, each in value.items()})


amount = partial(number, low=0.0)
amounts = partial(items, check=amount)


def frozen(value: Any, where: str, depth: int = 0) -> Any:
    """Any JSON value, with tuples for lists and read-only mappings for objects."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Real):
        checked = number(value, where)
        return int(value) if isinstance(value, Integral) else checked
    require(depth < _DEEPEST, f"{where[:40]}…", f"must not be nested more than {_DEEPEST} deep", value)
    deeper = partial(frozen, depth=depth + 1)
    if isinstance(value, (list, tuple)):
        return tuple(deeper(each, f"{where}[{i}]") for i, each in enumerate(value))
    require(isinstance(value, Mapping), where, "must be a JSON value", value)
    return items(value, where, deeper)


def header(data: Any, kind: str, newest: int) -> None:
    """The beginning of every file of ours: an object that tells its format and the version of its schema."""
    require(isinstance(data, Mapping), "file", "must hold a JSON object", data)
    found, version = data.get("format"), data.get("schema_version")
    require(found == kind, "format", f"must be {kind!r}, as in every {kind.removeprefix('rcjax-')}", found)
    require(type(version) is int and version > 0, "schema_version", "must be a whole number", version)
    if version > newest:
        known = f"this rcjax reads up to {newest}: upgrade rcjax"
        raise ValueError(f"schema_version: this file has schema version {_short.repr(version)}, {known}")


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
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"not JSON ({problem}); if it was cut off, write it again") from problem


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = {}
    for key, value in pairs:
        if key in unique:
            raise ValueError(f"the key {key!r} is there twice in one object")
        unique[key] = value
    return unique
