"""Arguments where values enter: what is of another kind is a TypeError that says what was wanted. Standard library."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from numbers import Real
from types import NoneType
from typing import Any

_WORDS = {
    NoneType: "None",
    bool: "True or False",
    Real: "a number",
    int: "a whole number",
    str: "a text",
    os.PathLike: "a path",
    Mapping: "a mapping",
}


def instance(value: object, kinds: type | tuple[type, ...], argument: str) -> None:
    """Raise TypeError unless an argument is of a class, or of one of several.

    >>> instance("x", (str, Mapping), "prices")
    >>> instance(None, (str, Mapping), "prices")
    Traceback (most recent call last):
    TypeError: prices must be a text or a mapping, not None
    """
    if not isinstance(value, kinds):
        several = kinds if isinstance(kinds, tuple) else (kinds,)
        wanted = [_WORDS.get(kind) or _with_article(kind.__name__) for kind in several]
        raise TypeError(f"{argument} must be {' or '.join(wanted)}, not {what_it_is(value)}")


def whole(value: Any, argument: str, low: int | None = None) -> int:
    """A whole number, at least `low`, as int; TypeError or ValueError for anything else, a boolean too.

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
    """What kind of thing a value is, in words.

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
