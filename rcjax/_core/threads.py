"""Python's side of work in several threads: XLA compiles and runs without Python's lock."""

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any, TypeVar

import jax

from rcjax._core.batching import MANY

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


#: Whether this thread is one of several that `side_by_side` keeps all cores busy with.
_WORKER = threading.local()


def side_by_side(function: Callable[[Item], Found], items: Iterable[Item], n: int, alike: bool = True) -> list[Found]:
    """The function of every item, in their order, by as many threads as there are cores; in such a thread, by itself.

    Args:
        function: what is called.
        items: what with.
        n: entries of an item. Where there are so many that one item alone takes a lot of memory, and keeps all cores
            busy, they come one after the other.
        alike: whether all items need the same programmes: the first then goes ahead, so that they are compiled once.

    >>> side_by_side(lambda x: x + 1, [1, 2, 3], n=1)
    [2, 3, 4]
    """
    items = list(items)
    if len(items) < 2 or getattr(_WORKER, "busy", False):
        return [function(item) for item in items]
    ahead = items[:1] if alike else []
    results = [function(item) for item in ahead]
    threads = ThreadPoolExecutor(cores() if n < MANY else 1, initializer=_keep_busy)
    try:
        return results + list(threads.map(as_here(function), items[len(ahead) :]))
    finally:  # where one has failed, or somebody has had enough, the others need not be waited for
        threads.shutdown(cancel_futures=True)


def _keep_busy() -> None:
    _WORKER.busy = True
