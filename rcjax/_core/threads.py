"""Python's side of work in several threads: XLA compiles and runs without Python's lock."""

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any, TypeVar

import jax
import numpy as np

from rcjax._core.batching import MANY, part

Item = TypeVar("Item")

Found = TypeVar("Found")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def as_here(function: Callable[..., Found]) -> Callable[..., Found]:
    """The function with this thread's float type and device, to be called in another, which does not take them over."""
    wide, device = bool(jax.config.jax_enable_x64), jax.config.jax_default_device  # type: ignore[attr-defined]

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Found:
        with jax.enable_x64(wide), jax.default_device(device):
            return function(*args, **kwargs)

    return call


def at_once(*parts: Callable[[], Any]) -> list[Any]:
    """What each of several functions returns, which run at the same time; those that take longest should come first.

    >>> at_once(lambda: 1, lambda: "two")
    [1, 'two']
    """
    with ThreadPoolExecutor(len(parts)) as threads:
        return [future.result() for future in [threads.submit(as_here(part)) for part in parts]]


#: Whether this thread is one of several that `side_by_side` keeps all cores busy with, and whether its work is one of
#: many alike.
_WORKER = threading.local()

#: From how many items on the time of their programs is worth more compiling.
_REPEATS = 50


def side_by_side(function: Callable[[Item], Found], items: Iterable[Item], n: int, alike: bool = True) -> list[Found]:
    """The function of every item, in their order, by as many threads as there are cores; in such a thread, by itself.

    Args:
        function: what is called.
        items: what with.
        n: entries of an item. Where there are so many that one item alone takes a lot of memory, and keeps all cores
            busy, they come one after the other.
        alike: whether all items need the same programs: the first then goes ahead, so that they are compiled once.

    >>> side_by_side(lambda x: x + 1, [1, 2, 3], n=1)
    [2, 3, 4]
    """
    items = list(items)
    if len(items) < 2 or getattr(_WORKER, "busy", False):
        return [function(item) for item in items]
    ahead, repeating = items[:1] if alike else [], alike and len(items) >= _REPEATS
    before, _WORKER.repeating = is_repeating(), repeating
    threads = ThreadPoolExecutor(cores() if n < MANY else 1, initializer=_keep_busy, initargs=(repeating,))
    try:
        results = [function(item) for item in ahead]
        return results + list(threads.map(as_here(function), items[len(ahead) :]))
    finally:  # where one has failed, or somebody has had enough, the others need not be waited for
        _WORKER.repeating = before
        threads.shutdown(cancel_futures=True)


def in_pieces(function: Callable[[Any], Any], rows: Any, size: int, alike: bool = True) -> Any:
    """What a function gives for batched rows, called with so many at a time: joined, on the host.

    All pieces have one size, so that they share a program: the last one repeats its last row.

    Args:
        function: of the rows of a piece.
        rows: (n, …) numpy's arrays, as a pytree.
        size: how many rows a piece has.
        alike: whether all pieces need the same programs, as for `side_by_side`.

    >>> in_pieces(lambda x: x * x, np.arange(5.0), size=2).tolist()
    [0.0, 1.0, 4.0, 9.0, 16.0]
    """
    count = len(jax.tree.leaves(rows)[0])
    if not count:  # of no rows at all one is made up
        rows = jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape[1:]), leaf.dtype), rows)
    numbers = np.minimum(np.arange(-(-max(count, 1) // size) * size), max(count, 1) - 1).reshape(-1, size)
    solved = side_by_side(lambda some: jax.device_get(function(part(rows, some))), numbers, n=count, alike=alike)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *solved)


def is_repeating() -> bool:
    """Whether what this thread does is one of many items of `side_by_side` that need the same programs.

    >>> [{*side_by_side(lambda _: is_repeating(), range(count), n=1)} for count in (3, 200)]
    [{False}, {True}]
    """
    return getattr(_WORKER, "repeating", False)


def _keep_busy(repeating: bool) -> None:
    _WORKER.busy, _WORKER.repeating = True, repeating
