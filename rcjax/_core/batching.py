"""Many alike at a time: batched pytrees, logs filled up to few sizes, and work in pieces and threads.

Compiled programs are made for one number of queries, and no two logs have the same: so a log is filled up with queries
that nobody answered, which count for nothing. Up to `_LEAST` queries there is one size, then they double as long as
programs take longer to compile than to run, then grow by an eighth. XLA compiles and runs without Python's lock.
"""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def part(tree: Any, index: Any) -> Any:
    """The entries of a batched pytree at an index, a slice or an array of indices of its leading axis.

    >>> import numpy as np
    >>> batch = {"mean": np.array([1.0, 2.0, 3.0]), "weights": np.eye(3)}
    >>> {name: leaf.tolist() for name, leaf in part(batch, 1).items()}
    {'mean': 2.0, 'weights': [0.0, 1.0, 0.0]}
    """
    return jax.tree.map(lambda leaf: leaf[index], tree)


def stack(trees: Sequence[Any]) -> Any:
    """Pytrees of one shape as a batch of them, of numpy's arrays.

    >>> stack([{"mean": 1.0}, {"mean": 2.0}])["mean"].tolist()
    [1.0, 2.0]
    """
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def unstack(batch: Any) -> list[Any]:
    """The entries of a batched pytree, in numpy's arrays: JAX would compile a program to take one of its own.

    >>> [one["mean"].item() for one in unstack({"mean": jnp.array([1.0, 2.0])})]
    [1.0, 2.0]
    """
    fetched = jax.device_get(batch)
    return [part(fetched, index) for index in range(len(jax.tree.leaves(fetched)[0]))]


def join(batches: Sequence[Any]) -> Any:
    """Batched pytrees one after the other, in numpy's arrays.

    >>> join([{"mean": np.array([1.0])}, {"mean": np.array([2.0, 3.0])}])["mean"].tolist()
    [1.0, 2.0, 3.0]
    """
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)


def varying_together(tree: Any) -> Any:
    """A pytree with zero added to its floats: under `jax.shard_map` all then vary over the same devices, as loops ask.

    >>> varying_together({"mean": jnp.array([1.0, 2.0]), "count": 3})["mean"].tolist()
    [1.0, 2.0]
    """

    def is_float(leaf: Any) -> bool:
        return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)

    zero = jnp.zeros_like(sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree) if is_float(leaf)))
    return jax.tree.map(lambda leaf: leaf + zero.astype(jnp.result_type(leaf)) if is_float(leaf) else leaf, tree)


#: From how many queries on things are computed one after the other: memory counts then, and each keeps all cores busy.
MANY = 2**16


def map_entries(function: Callable[..., Any], n: int, in_axes: Sequence[int]) -> Callable[..., Any]:
    """`jax.vmap` of a function of arrays with n entries; of `MANY` and more, `lax.map`, which holds one call at a time.

    >>> map_entries(lambda x, y: x @ y, 2, (0, 1))(jnp.eye(2), jnp.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [1.0, 4.0]
    """
    if n < MANY:
        return jax.vmap(function, in_axes)

    def one_by_one(*trees: jax.Array) -> Any:
        moved = (
            jax.tree.map(lambda leaf, axis=axis: jnp.moveaxis(leaf, axis, 0), t)
            for axis, t in zip(in_axes, trees, strict=True)
        )
        return lax.map(lambda arguments: function(*arguments), tuple(moved))

    return one_by_one


_LEAST, _DOUBLING_TO, _GROWTH = 96, 1536, 1.125

#: Logs of more queries are not filled up: the time of their programs is what counts.
LARGEST = 2**16


def size_class(n: int) -> int:
    """The number of queries that a log of n queries is filled up to.

    >>> [size_class(n) for n in (2, 96, 97, 300, 1000, 1536, 1537, 100_000)]
    [96, 96, 192, 384, 1536, 1536, 1728, 100000]
    """
    size = _LEAST
    while size < n:
        size = size * 2 if size < _DOUBLING_TO else -(-int(size * _GROWTH) // 64) * 64
    return n if n > LARGEST else min(size, LARGEST)


def fill_up(*arrays: Any, axis: int = 0, size: int | None = None) -> tuple[Any, ...]:
    """Arrays with n entries along an axis, filled up to the size class of n, or to a size: by zeros and False.

    On the host, unless nothing is to be filled.

    >>> [len(array) for array in fill_up(np.zeros(300), np.ones((300, 2), bool))]
    [384, 384]
    """
    n = np.shape(arrays[0])[axis]
    missing = (size_class(n) if size is None else size) - n

    def filled(array: np.ndarray) -> np.ndarray:
        shape = [missing if side == axis % array.ndim else width for side, width in enumerate(array.shape)]
        return np.concatenate([array, np.zeros(shape, array.dtype)], axis)

    return arrays if missing <= 0 else tuple(filled(np.asarray(array)) for array in arrays)


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
    return part(join(solved), slice(count))


def is_repeating() -> bool:
    """Whether what this thread does is one of many items of `side_by_side` that need the same programs.

    >>> [{*side_by_side(lambda _: is_repeating(), range(count), n=1)} for count in (3, 200)]
    [{False}, {True}]
    """
    return getattr(_WORKER, "repeating", False)


def _keep_busy(repeating: bool) -> None:
    _WORKER.busy, _WORKER.repeating = True, repeating
