"""Logs filled up to a few sizes: compiled programs are made for one number of queries, and no two logs have the same.

What is filled in are queries that nobody answered, which count for nothing. Up to `LEAST` queries there is one size,
then they double as long as programs take longer to compile than to run, then grow by an eighth.
"""

from typing import Any

import numpy as np

LEAST, _DOUBLING_TO, _GROWTH = 96, 1536, 1.125

#: Logs of more queries are not filled up: the time of their programs is what counts.
LARGEST = 2**16


def size_class(n: int) -> int:
    """The number of queries that a log of n queries is filled up to.

    >>> [size_class(n) for n in (2, 96, 97, 300, 1000, 1536, 1537, 100_000)]
    [96, 96, 192, 384, 1536, 1536, 1728, 100000]
    """
    size = LEAST
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
    return arrays if missing <= 0 else tuple(_filled(np.asarray(array), axis, missing) for array in arrays)


def _filled(array: np.ndarray, axis: int, missing: int) -> np.ndarray:
    shape = list(array.shape)
    shape[axis] = missing
    return np.concatenate([array, np.zeros(shape, array.dtype)], axis=axis)
