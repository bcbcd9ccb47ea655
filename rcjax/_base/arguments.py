"""Arguments of public functions: what is of another kind is a TypeError that says what was wanted. Standard library."""

from __future__ import annotations

import builtins
import importlib
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from numbers import Number, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_MAKERS = {  # of what the public functions pass on to each other
    "AnyPolicy": "rcjax.load_policy reads",
    "CallLog": "rcjax.CallLog(path) opens",
    "CascadeModel": "rcjax.fit makes",
    "Frontier": "rcjax.solve_frontier makes",
    "Log": "rcjax.read_log reads",
    "Policy": "rcjax.load_policy reads",
    "Posterior": "rcjax.bayes.sample_posterior draws",
    "SegmentedPolicy": "rcjax.load_policy reads",
    "Roll": "rcjax.serving.Roll(size=100_000_000) makes",
}


_WORDS = {
    NoneType: "None",
    bool: "True or False",
    Real: "a number",
    float: "a number",
    int: "a whole number",
    str: "a text",
    os.PathLike: "a path",
    Mapping: "a mapping",
    Callable: "a function",
}


_OF_SEVERAL = {"AnyPolicy": "a Policy or a Mixture or a SegmentedPolicy"}  # what stands for all that is built on it


_LISTS = (Sequence, Iterable, list, tuple)


def check_arguments(function: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Raise TypeError for the first argument of another kind than the function's annotation says.

    The first line of a public function, with its `locals()`. What the annotation leaves open (`Any`), values of an
    array and which text of several it is are the function's own to check.

    >>> def halve(n: int, names: Sequence[str] | None = None) -> None:
    ...     check_arguments(halve, locals())
    >>> halve(3, ["a"])
    >>> halve("3")
    Traceback (most recent call last):
    TypeError: n must be a whole number, not a text
    >>> halve(3, "a")
    Traceback (most recent call last):
    TypeError: names must be a list or None, not a text
    """
    for name, kind in _kinds(function).items():
        if name in values and not _fits(values[name], kind):
            value = values[name]
            begins = f" that begins with {what_it_is(value[0])}" if isinstance(value, list | tuple) and value else ""
            raise TypeError(f"{name} must be {_wanted(kind)}, not {what_it_is(value)}{begins}")


def instance(value: object, kinds: type | tuple[type, ...], argument: str) -> None:
    """Raise TypeError unless an argument is of a class, or of one of several.

    >>> instance("x", (str, Mapping), "prices")
    >>> instance(None, (str, Mapping), "prices")
    Traceback (most recent call last):
    TypeError: prices must be a text or a mapping, not None
    """
    if not isinstance(value, kinds):
        wanted = _wanted(Union[kinds] if isinstance(kinds, tuple) else kinds)  # noqa: UP007 - of a tuple of classes
        raise TypeError(f"{argument} must be {wanted}, not {what_it_is(value)}")


def whole(value: Any, argument: str, low: int | None = None) -> int:
    """A whole number, at least `low`, as int; TypeError or ValueError for anything else, a boolean too.

    >>> whole(1.5, "retries", 0)
    Traceback (most recent call last):
    TypeError: retries must be a whole number, not a float
    """
    if not _fits(value, int):
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


def _kinds(function: Callable[..., Any]) -> dict[str, Any]:
    """By argument, its annotation."""
    return _kinds_now(function, "jax.typing" in sys.modules)


@cache
def _kinds_now(function: Callable[..., Any], jax: bool) -> dict[str, Any]:
    """`_kinds`, where JAX is there or not: before it is imported its types are anything, and not for good."""
    hints = get_type_hints(function, localns=_Names(function.__globals__))  # type: ignore[attr-defined]
    return {name: kind for name, kind in hints.items() if name != "return"}


class _Names(dict[str, Any]):
    """What a module imports for type checkers only: public names of rcjax, JAX where it is there, else anything."""

    def __init__(self, module_names: Mapping[str, Any]) -> None:
        super().__init__()
        self.module_names = module_names

    def __missing__(self, name: str) -> Any:
        if name in self.module_names or hasattr(builtins, name):
            raise KeyError(name)  # Python then looks there
        package = importlib.import_module("rcjax")
        if name in package.__all__:
            return getattr(package, name)
        for part, names in package.PACKAGES.items():
            if name in names:
                return getattr(importlib.import_module(f"rcjax.{part}"), name)
        return getattr(sys.modules.get("jax.typing"), name, sys.modules.get(name, Any))


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of the kind that an annotation names, as far as that tells."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str)
    if origin in _LISTS:
        return _is_list(value, origin, parts)
    if origin is type:
        return isinstance(value, type) and issubclass(value, parts[0])
    if origin is not None:
        return isinstance(value, origin)
    return _is_a(value, kind)


def _is_a(value: Any, kind: Any) -> bool:
    if kind is Any or not isinstance(kind, type):
        return True
    if kind is bool:
        return type(value).__name__ in ("bool", "bool_")
    if kind is int:
        return not isinstance(value, bool) and _is_index(value)
    if kind in (float, complex):
        return (isinstance(value, Real) and not isinstance(value, bool)) or getattr(value, "ndim", None) == 0
    if _is_array(kind):
        arrays = hasattr(value, "dtype") or hasattr(value, "__array__") or hasattr(value, "__jax_array__")
        return not isinstance(value, type) and (arrays or isinstance(value, Number | list | tuple))
    return isinstance(value, kind)


def _is_index(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _is_array(kind: Any) -> bool:
    return getattr(kind, "__name__", "").rpartition(".")[2] in ("Array", "ndarray")  # jax.Array has dots in its name


def _is_list(value: Any, origin: Any, parts: tuple[Any, ...]) -> bool:
    if isinstance(value, str | bytes | type) or (isinstance(value, Mapping) and origin is not Iterable):
        return False
    if not isinstance(value, list | tuple):  # what is gone through once only is not gone through here
        return isinstance(value, Iterable if origin is Iterable else Sequence) or getattr(value, "ndim", 0) > 0
    if origin is tuple and parts and parts[-1] is not Ellipsis and len(value) != len(parts):
        return False
    if parts and get_origin(parts[0]) in _LISTS:  # texts are lists of texts too: what is meant, functions tell
        value = [item for item in value if not isinstance(item, str)]
    return all(_fits(item, parts[0]) for item in value) if parts else True


def _wanted(kind: Any) -> str:
    """An annotation in words, with where such a thing comes from."""
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if any(map(_is_array, parts)):  # which a number can stand for
        parts = [part for part in parts if _is_array(part) or part is NoneType]
    words = list(dict.fromkeys(map(_in_words, parts)))
    maker = _MAKERS.get(getattr(parts[0], "__name__", ""))
    return " or ".join(words) + (f" (as {maker})" if maker else "")


def _in_words(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    if origin in _LISTS:
        parts = get_args(kind)
        return f"a list of {len(parts)}" if origin is tuple and parts[-1] is not Ellipsis else "a list"
    if origin is type:
        return f"a class of {get_args(kind)[0].__name__}"
    if _is_array(kind):
        return "an array of numbers"
    plain = origin or kind
    return _WORDS.get(plain) or _OF_SEVERAL.get(plain.__name__) or _with_article(plain.__name__)
