"""Arguments of public functions, checked: what is of another kind is a TypeError that says what was wanted."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Mapping
from typing import Any

_MAKERS = {  # of what the public functions pass on to each other
    "CallLog": "rcjax.CallLog(path) opens",
    "CascadeModel": "rcjax.fit makes",
    "Frontier": "rcjax.solve_frontier makes",
    "Log": "rcjax.read_log reads",
    "Policy": "rcjax.load_policy reads",
    "Posterior": "rcjax.sample_posterior draws",
}
_NOUNS = {Mapping: "mapping", str: "text"}
_short = reprlib.Repr()  # keeps messages to a line
_short.maxstring = _short.maxother = 80


def instance(value: object, kinds: type | tuple[type, ...], argument: str) -> None:
    """Raise TypeError unless the argument of a public function is of a class, or of one of several.

    >>> instance("x", (str, Mapping), "prices")
    >>> instance(None, (str, Mapping), "prices")
    Traceback (most recent call last):
    TypeError: prices must be a text or a mapping, not None
    """
    if not isinstance(value, kinds):
        classes = kinds if isinstance(kinds, tuple) else (kinds,)
        made = f" (as {_MAKERS[classes[0].__name__]})" if classes[0].__name__ in _MAKERS else ""
        raise TypeError(f"{argument} must be {' or '.join(map(_a, classes))}{made}, not {what_it_is(value)}")


def whole(value: Any, argument: str, low: int | None = None) -> int:
    """A whole number, at least `low`, as int; TypeError or ValueError for anything else, a boolean too.

    >>> whole(1.5, "retries", 0)
    Traceback (most recent call last):
    TypeError: retries must be a whole number, not a float
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        checked = operator.index(value)
    except TypeError:
        raise TypeError(f"{argument} must be a whole number, not {what_it_is(value)}") from None
    if low is not None and checked < low:
        raise ValueError(f"{argument} must be at least {low}, not {_short.repr(checked)}")
    return checked


def what_it_is(value: object) -> str:
    """What kind of thing a value is, in words.

    >>> what_it_is(None), what_it_is(int), what_it_is([1]), what_it_is(1.5)
    ('None', 'the class int', 'a list', 'a float')
    """
    if value is None:
        return "None"
    return f"the class {value.__name__}" if isinstance(value, type) else _a(type(value))


def _a(kind: type) -> str:
    name = "None" if kind is type(None) else _NOUNS.get(kind, kind.__name__)
    return name if name == "None" else f"an {name}" if name[0] in "aeiouAEIO" else f"a {name}"
