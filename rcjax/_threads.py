"""Python's side of work in several threads: XLA compiles and runs without Python's lock."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any, TypeVar

import jax

Item = TypeVar("Item")
Found = TypeVar("Found")


def same_floats(function: Callable[..., Found]) -> Callable[..., Found]:
    """The function with this thread's float type, to be called in another one, which does not take it over."""
    wide = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Found:
        with jax.enable_x64(wide):
            return function(*args, **kwargs)

    return call


def at_once(*parts: Callable[[], Any]) -> list[Any]:
    """What each of several functions returns; they start in this order, as many at a time as there are cores.

    >>> at_once(lambda: 1, lambda: "two")
    [1, 'two']
    """
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return [future.result() for future in [threads.submit(same_floats(part)) for part in parts]]


def side_by_side(function: Callable[[Item], Found], items: Iterable[Item]) -> list[Found]:
    """The function of every item, in their order, by as many threads as there are cores.

    The first item goes ahead, so that what is to be compiled is compiled once.

    >>> side_by_side(lambda x: x + 1, [1, 2, 3])
    [2, 3, 4]
    """
    first, *others = items
    found = [function(first)]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return found + list(threads.map(same_floats(function), others))
