"""Check values at the boundary: arguments and JSON files. A message is one line that names the place.

An argument of a wrong type is a TypeError that says what was expected; a wrong value in a file is a ValueError.
"""

from __future__ import annotations

import inspect
import json
import operator
import os
import reprlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from numbers import Real
from pathlib import Path
from types import NoneType
from typing import Any, ParamSpec, TypeVar

from rcjax._base.wording import visible

T = TypeVar("T")

SCHEMA_VERSION = 1  # of all files that rcjax writes

_WORDS = {
    NoneType: "None",
    bool: "True or False",
    Real: "a number",
    int: "a whole number",
    str: "a text",
    os.PathLike: "a path",
    Mapping: "a mapping",
}

#: rcjax's classes in words, with the function that returns one.
_OURS = {
    "AnyPolicy": "a policy (rcjax.load_policy)",
    "CascadeModel": "a model (rcjax.fit)",
    "Fitted": "a model (rcjax.fit)",
    "Frontier": "a frontier (rcjax.solve_frontier)",
    "Log": "a log (rcjax.read_log)",
    "Posterior": "a posterior (rcjax.bayes.sample_posterior)",
}

_LONGEST = 200  # characters of a value in a message

_short = reprlib.Repr()

_short.maxstring = _short.maxother = 80


def instance(value: object, kinds: type | tuple[type, ...], argument: str) -> None:
    """Raise TypeError unless an argument is an instance of a class, or of one of several.

    >>> instance("x", (str, Mapping), "prices")
    >>> instance(None, (str, Mapping), "prices")
    Traceback (most recent call last):
    TypeError: prices must be a text or a mapping, not None
    """
    if not isinstance(value, kinds):
        several = kinds if isinstance(kinds, tuple) else (kinds,)
        wanted = [_WORDS.get(kind) or _OURS.get(kind.__name__) or _with_article(kind.__name__) for kind in several]
        raise TypeError(f"{argument} must be {' or '.join(wanted)}, not {what_it_is(value)}")


P = ParamSpec("P")


def takes(**kinds: type | tuple[type | None, ...]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function to raise TypeError if an argument is not of its class.

    Args:
        kinds: the class of each argument to check, or a tuple of classes; None in the tuple allows None.

    >>> @takes(log=Mapping, test=(Mapping, None))
    ... def tune(log, *, test=None):
    ...     return len(log)
    >>> tune({})
    0
    >>> tune("log.csv")
    Traceback (most recent call last):
    TypeError: log must be a mapping, not a text
    """
    several = {name: kind if isinstance(kind, tuple) else (kind,) for name, kind in kinds.items()}
    wanted = {name: tuple(NoneType if one is None else one for one in kind) for name, kind in several.items()}

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        places = {name: place for place, name in enumerate(inspect.signature(function).parameters)}

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            for name, classes in wanted.items():
                if places[name] < len(args):
                    instance(args[places[name]], classes, name)
                elif name in kwargs:
                    instance(kwargs[name], classes, name)
            return function(*args, **kwargs)

        return checked

    return decorate


def whole(value: Any, argument: str, low: int | None = None) -> int:
    """Return a whole number of at least `low` as int; TypeError or ValueError for other values, bools included.

    >>> whole(1.5, "retries", 0)
    Traceback (most recent call last):
    TypeError: retries must be a whole number, not a float
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{argument} must be a whole number, not {what_it_is(value)}")
    if low is not None and value < low:
        raise ValueError(f"{argument} must be at least {low}, not {value}")
    return operator.index(value)


def what_it_is(value: object) -> str:
    """Return the type of a value in words.

    >>> what_it_is(None), what_it_is(int), what_it_is([1]), what_it_is("1.5")
    ('None', 'the class int', 'a list', 'a text')
    """
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "a text" if type(value) is str else _with_article(type(value).__name__)


def _with_article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiouAEIO" else f"a {name}"


def shown(value: object) -> str:
    """Return a value as a message quotes it: on one line, nested and long values abbreviated."""
    text = _short.repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def require(condition: bool, where: str, what: str, value: object) -> None:
    """Raise ValueError unless a condition holds.

    Args:
        condition: the condition.
        where: place of the value, for the message.
        what: the requirement, in words.
        value: the value.
    """
    if not condition:
        problem = "it is missing or null" if value is None else f"it is {shown(value)}"
        raise ValueError(visible(f"{where}: {what}, but {problem}"))  # names in files may hold anything


@contextmanager
def inside(where: str) -> Iterator[None]:
    """Prefix the place in errors raised inside: they name it relative to `where`."""
    try:
        yield
    except ValueError as problem:
        raise ValueError(f"{where}.{problem}" if where else str(problem)) from None


def header(data: Any, kind: str) -> None:
    """Check the beginning of a file that rcjax wrote: an object with its format and the version of its schema."""
    require(isinstance(data, Mapping), "file", "must hold a JSON object", data)
    form, version = data.get("format"), data.get("schema_version")
    require(form == kind, "format", f"must be {kind!r}, as in every {kind.removeprefix('rcjax-')}", form)
    if version != SCHEMA_VERSION or type(version) is not int:
        newer = type(version) is int and version > SCHEMA_VERSION
        advice = ": a newer rcjax wrote it: upgrade rcjax" if newer else ""
        raise ValueError(
            f"schema_version: this file has version {shown(version)}; rcjax reads {SCHEMA_VERSION}{advice}"
        )


def load(path: str | os.PathLike[str], build: Callable[[Any], T]) -> T:
    """Build an object from the JSON value in a file; errors name the file."""
    instance(path, (str, os.PathLike), "path")
    content = Path(path).read_bytes()
    try:
        return build(parsed(content))
    except ValueError as problem:
        raise ValueError(f"{os.fspath(path)}: {problem}") from problem


def parsed(content: bytes) -> Any:
    """Parse the bytes of a JSON file; ValueError for invalid JSON, or a key that occurs twice in one object."""
    try:
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=_unique)
    except RecursionError as problem:
        raise ValueError("not JSON that rcjax writes: it is nested too deeply") from problem
    except ValueError as problem:
        raise ValueError(f"not JSON ({problem}); if it was cut off, write it again") from problem


def read_table(path: str | os.PathLike[str]) -> Any:
    """Read a TOML or JSON file, by its suffix; UTF-8, or the encoding of a byte order mark.

    Raises ValueError, which names the file, the problem and, if the parser knows it, the line; and OSError.
    """
    import tomllib  # here: few commands need it

    path = Path(path)
    content = path.read_bytes()
    if path.suffix.lower() not in (".toml", ".json"):
        raise ValueError(f"{path.name}: a file of kind {path.suffix!r} cannot be read: give .toml or .json")
    try:
        text = content.decode(json.detect_encoding(content)).removeprefix("\ufeff")
        is_toml = path.suffix.lower() == ".toml"
        return tomllib.loads(text.replace("\r\n", "\n")) if is_toml else parsed(text.encode())
    except (RecursionError, ValueError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"{path.name}: cannot be read: {why}: correct the file") from None


def object_in(line: bytes | str) -> dict[str, Any]:
    """Return the JSON object in a line; {} if it is not an object.

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
