"""Result codes, batched pytrees, padding to size classes, threads, and sharding over a mesh.

A compiled program serves one number of queries, and logs have different numbers. A log is therefore padded to a size
class, with queries that have no answers and no weight. The first class is `_MIN_SIZE` queries; classes double while
compilation takes longer than the run, and then grow by an eighth. Threads work in parallel, since XLA compiles and runs
without Python's global lock.

With explicit axes every operation must state the sharding of its result; the loops and gathers of a search do not. A
function therefore runs with automatic axes, and its result gets the sharding of an argument.
"""

import itertools
import math
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from functools import wraps
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

#: Array of numpy on the host, of jax within compiled functions.
Array: TypeAlias = np.ndarray | jax.Array


def as_json_values(value: Any) -> Any:
    """Convert arrays to lists, and numbers that are not finite (an undefined standard error) to None, recursively.

    >>> as_json_values({"error": np.array([0.5, np.nan]), "models": ("small", "large")})
    {'error': [0.5, None], 'models': ['small', 'large']}
    """
    if isinstance(value, dict):
        return {name: as_json_values(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json_values(item) for item in value]
    if hasattr(value, "__array__"):
        return as_json_values(np.asarray(value).tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Status(IntEnum):
    """A result code with its meaning: subclasses list their members as `NAME = code, "meaning"`.

    A member is an integer, which arrays and jitted functions can hold.

    >>> class Weather(Status):
    ...     FAIR = 0, "not a cloud"
    >>> Weather(0).message, Weather.FAIR + 1
    ('not a cloud', 1)
    """

    message: str

    def __new__(cls, code: int, message: str) -> "Status":
        """Make a member of its code and message."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.message = message
        return member


def with_automatic_axes(function: Callable[..., Any], *arguments: Any, like: Any = None, trailing: int = 0) -> Any:
    """Return function(*arguments), also if some arrays are sharded over an explicit mesh.

    Args:
        function: function that returns a pytree of arrays with the leading axes of `like`, and closes over no array of
            an explicit mesh.
        arguments: pytrees of arrays.
        like: array whose sharding the result gets; None to replicate the result on every device.
        trailing: number of last axes of `like` that the result lacks.

    >>> float(with_automatic_axes(jax.numpy.sum, jax.numpy.arange(3.0)))
    3.0
    """
    # The mesh of a number is empty.
    meshes = [
        jax.sharding.get_abstract_mesh(),
        *(jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves(arguments)),
    ]
    mesh = next(
        (candidate for candidate in meshes if not candidate.empty and AxisType.Explicit in candidate.axis_types), None
    )
    if mesh is None:
        return function(*arguments)
    spec = () if like is None else tuple(jax.typeof(like).sharding.spec)[: np.ndim(like) - trailing]
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    return jax.sharding.auto_axes(function, out_sharding=sharding)(*arguments)


def take_entries(tree: Any, index: Any) -> Any:
    """Return the entries of a batched pytree at an index, a slice or an array of indices of its leading axis.

    >>> import numpy as np
    >>> batch = {"mean": np.array([1.0, 2.0, 3.0]), "weights": np.eye(3)}
    >>> {name: leaf.tolist() for name, leaf in take_entries(batch, 1).items()}
    {'mean': 2.0, 'weights': [0.0, 1.0, 0.0]}
    """
    return jax.tree.map(lambda leaf: leaf[index], tree)


def list_pairs(k: int) -> tuple[tuple[int, int], ...]:
    """Return all pairs (i, j) with i < j < k, in the order of `np.triu_indices(k, 1)` and of all arrays of pairs.

    >>> list_pairs(3)
    ((0, 1), (0, 2), (1, 2))
    """
    return tuple(itertools.combinations(range(k), 2))


def number_pairs(k: int) -> np.ndarray:
    """Return the index of each pair (i, j) with i < j, in the order of `np.triu_indices(k, 1)`; else 0: (k, k).

    >>> number_pairs(3).tolist()
    [[0, 0, 1], [0, 0, 2], [0, 0, 0]]
    """
    numbers = np.zeros((k, k), int)
    numbers[np.triu_indices(k, 1)] = np.arange(k * (k - 1) // 2)
    return numbers


def stack(trees: Sequence[Any]) -> Any:
    """Stack pytrees of one structure into a batch of numpy arrays.

    >>> stack([{"mean": 1.0}, {"mean": 2.0}])["mean"].tolist()
    [1.0, 2.0]
    """
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def unstack(batch: Any) -> list[Any]:
    """Split a batched pytree into its entries, as numpy arrays: indexing a JAX array would compile a program.

    >>> [entry["mean"].item() for entry in unstack({"mean": jnp.array([1.0, 2.0])})]
    [1.0, 2.0]
    """
    fetched = jax.device_get(batch)
    return [take_entries(fetched, index) for index in range(len(jax.tree.leaves(fetched)[0]))]


def join(batches: Sequence[Any]) -> Any:
    """Concatenate batched pytrees: numpy arrays, or jax arrays within a jitted function.

    >>> join([{"mean": np.array([1.0])}, {"mean": np.array([2.0, 3.0])}])["mean"].tolist()
    [1.0, 2.0, 3.0]
    """
    return jax.tree.map(lambda *leaves: leaves[0].__array_namespace__().concatenate(leaves), *batches)


def vary_over_same_devices(tree: Any) -> Any:
    """Add zero to the floats of a pytree, so that under `jax.shard_map` all vary over the same devices, as loops need.

    >>> vary_over_same_devices({"mean": jnp.array([1.0, 2.0]), "count": 3})["mean"].tolist()
    [1.0, 2.0]
    """

    def is_float(leaf: Any) -> bool:
        return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)

    zero = jnp.zeros_like(sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree) if is_float(leaf)))
    return jax.tree.map(lambda leaf: leaf + zero.astype(jnp.result_type(leaf)) if is_float(leaf) else leaf, tree)


#: Number of queries from which items are computed one after the other: a single item then fills memory and cores.
MANY = 2**16


def map_entries(function: Callable[..., Any], n: int, in_axes: Sequence[int]) -> Callable[..., Any]:
    """Map a function over arrays with n entries: by `jax.vmap`, or from `MANY` entries by `lax.map`, to save memory.

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


#: Least size class; size up to which classes double; growth of larger classes.
_MIN_SIZE, _DOUBLING_TO, _GROWTH = 96, 1536, 1.125

#: Larger logs are not padded: their programs run longer than they compile.
LARGEST = 2**16


def size_class(n: int) -> int:
    """Return the number of queries to which a log of n queries is padded.

    >>> [size_class(n) for n in (2, 96, 97, 300, 1000, 1536, 1537, 100_000)]
    [96, 96, 192, 384, 1536, 1536, 1728, 100000]
    """
    size = _MIN_SIZE
    while size < n:
        size = size * 2 if size < _DOUBLING_TO else -(-int(size * _GROWTH) // 64) * 64
    return n if n > LARGEST else min(size, LARGEST)


def pad_to_size_class(*arrays: Any, axis: int = 0, size: int | None = None) -> tuple[Any, ...]:
    """Pad arrays with n entries along an axis to the size class of n, or to `size`, with zeros and False.

    Padded arrays are numpy arrays; arrays that need no padding are returned unchanged.

    >>> [len(array) for array in pad_to_size_class(np.zeros(300), np.ones((300, 2), bool))]
    [384, 384]
    """
    n = np.shape(arrays[0])[axis]
    missing = (size_class(n) if size is None else size) - n

    def filled(array: np.ndarray) -> np.ndarray:
        shape = [missing if side == axis % array.ndim else width for side, width in enumerate(array.shape)]
        return np.concatenate([array, np.zeros(shape, array.dtype)], axis)

    return arrays if missing <= 0 else tuple(filled(np.asarray(array)) for array in arrays)


Item = TypeVar("Item")
Result = TypeVar("Result")


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def with_thread_settings(function: Callable[..., Result]) -> Callable[..., Result]:
    """Bind a function to this thread's float type and device, which other threads do not inherit."""
    wide = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
    device = jax.config.jax_default_device  # type: ignore[attr-defined]

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Result:
        with jax.enable_x64(wide), jax.default_device(device):
            return function(*args, **kwargs)

    return call


#: Flags of a thread: `busy` in a worker of `map_in_threads`; `repeating` for one of many items that share programs.
_WORKER = threading.local()

#: Number of items from which more compilation pays off in run time.
_REPEATS = 50


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], n: int, same_programs: bool = True
) -> list[Result]:
    """Map a function over items, in order, with one thread per core; inside such a thread, without more threads.

    Args:
        function: the function.
        items: its arguments.
        n: entries of an item; from `MANY` entries on, items are computed one after the other.
        same_programs: whether all items need the same programs; the first item then runs alone, to compile them once.

    >>> map_in_threads(lambda x: x + 1, [1, 2, 3], n=1)
    [2, 3, 4]
    """
    items = list(items)
    if len(items) < 2 or getattr(_WORKER, "busy", False):
        return [function(item) for item in items]
    ahead = items[:1] if same_programs else []
    repeating = same_programs and len(items) >= _REPEATS
    before, _WORKER.repeating = is_repeating(), repeating
    threads = ThreadPoolExecutor(count_cores() if n < MANY else 1, initializer=_keep_busy, initargs=(repeating,))
    try:
        results = [function(item) for item in ahead]
        return results + list(threads.map(with_thread_settings(function), items[len(ahead) :]))
    finally:  # after a failure or an interrupt, do not start the other items
        _WORKER.repeating = before
        threads.shutdown(cancel_futures=True)


def map_in_chunks(function: Callable[[Any], Any], rows: Any, size: int, same_programs: bool = True) -> Any:
    """Map a function over batched rows in chunks, and join the results on the host.

    All chunks have one size, so that they share a program: the last chunk repeats its last row.

    Args:
        function: function of the rows of a chunk.
        rows: pytree of (n, …) numpy arrays.
        size: number of rows of a chunk.
        same_programs: whether all chunks need the same programs, as in `map_in_threads`.

    >>> map_in_chunks(lambda x: x * x, np.arange(5.0), size=2).tolist()
    [0.0, 1.0, 4.0, 9.0, 16.0]
    """
    count = len(jax.tree.leaves(rows)[0])
    if not count:  # a row of zeros gives the shapes
        rows = jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape[1:]), leaf.dtype), rows)
    chunks = np.minimum(np.arange(-(-max(count, 1) // size) * size), max(count, 1) - 1).reshape(-1, size)
    solved = map_in_threads(
        lambda chunk: jax.device_get(function(take_entries(rows, chunk))), chunks, n=count, same_programs=same_programs
    )
    return take_entries(join(solved), slice(count))


def is_repeating() -> bool:
    """Return whether this thread works on one of many items of `map_in_threads` that need the same programs.

    >>> [{*map_in_threads(lambda _: is_repeating(), range(count), n=1)} for count in (3, 200)]
    [{False}, {True}]
    """
    return getattr(_WORKER, "repeating", False)


def _keep_busy(repeating: bool) -> None:
    _WORKER.busy, _WORKER.repeating = True, repeating
