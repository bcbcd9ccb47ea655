"""Kendall's tau-b with ties and missing entries, exact; the functions jit and batch.

For two columns it takes O(n log n); for all pairs of columns O(n²), by signs, which is quicker for short columns.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.numerics import divide

#: Largest number of entries for which signs are quicker, for any number of columns.
FEW_ENTRIES = 1536

_TILE = 48  # side of a tile of pairs, in entries: it fits into caches, and divides the size classes


def kendall_taus(columns: jax.Array, present: jax.Array) -> jax.Array:
    """Return (k, k) Kendall's tau-b of all pairs of columns, on the entries present in both; see `kendall_tau`.

    columns (n, k) numbers, present (n, k) bool; n up to 4,096, since single precision would lose larger counts.
    The sum over pairs of entries of the product of two columns' signs of differences is a matrix product (Kendall
    1945, "The treatment of ties in ranking problems", eq. 3). It is computed tile by tile.

    >>> columns, present = jnp.array([[1., 1.], [2., 3.], [3., 2.], [4., 4.]]), jnp.ones((4, 2), bool)
    >>> round(float(kendall_taus(columns, present)[0, 1]), 4)
    0.6667
    """
    n, k = columns.shape
    rows = (-(-n // _TILE)) * _TILE
    values, there = (jnp.pad(matrix.T, ((0, 0), (0, rows - n))) for matrix in (columns, present))
    tiles = jnp.asarray(np.array(np.tril_indices(rows // _TILE)) * _TILE)  # starts; the other tiles mirror these

    def add(number: jax.Array, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        one, other = tiles[:, number]
        (a, present_a), (b, present_b) = (
            [lax.dynamic_slice_in_dim(matrix, start, _TILE, 1) for matrix in (values, there)] for start in (one, other)
        )
        # Integers, which single precision holds exactly.
        both = (present_a[:, :, None] & present_b[:, None, :]).astype(jnp.float32)
        sign = jnp.where(a[:, :, None] > b[:, None, :], both, jnp.where(a[:, :, None] < b[:, None, :], -both, 0.0))
        both, sign = both.reshape(k, -1), sign.reshape(k, -1)
        count = jnp.where(one == other, 1.0, 2.0).astype(jnp.float32)
        return sums[0] + count * (sign @ sign.T), sums[1] + count * (jnp.abs(sign) @ both.T)

    nothing = jnp.zeros((k, k), jnp.float32)
    twice = lax.fori_loop(0, tiles.shape[1], add, (nothing, nothing))
    difference, untied = (count.astype(jnp.result_type(float)) / 2 for count in twice)
    return divide(difference, jnp.sqrt(untied) * jnp.sqrt(untied.T))


def kendall_tau(x: jax.Array, y: jax.Array, present: jax.Array) -> jax.Array:
    """Return Kendall's tau-b of the entries that are present, in [−1, 1]; 0 if it is undefined (x or y constant).

    x, y (n,) numbers, present (n,) bool. Kendall (1945), "The treatment of ties in ranking problems". Exact apart from
    the rounding of the counts to floats: within 1e-6 in float32, for any n below 2²⁹. O(n log n): the discordant pairs
    are the inversions of y once sorted by (x, y) (Knight 1966, "A computer method for calculating Kendall's tau with
    ungrouped data"). Jits, and batches under `vmap`.

    >>> present = jnp.ones(4, bool)
    >>> round(float(kendall_tau(jnp.array([1., 2., 3., 4.]), jnp.array([1., 3., 2., 4.]), present)), 4)
    0.6667
    """
    # NaN sorts after all numbers and equals none: absent entries come last in every order, in the same order.
    x, y = jnp.where(present, jnp.stack([x, y]), jnp.nan)
    order = jnp.argsort(y, stable=True)
    order = order[jnp.argsort(x[order], stable=True)]
    x, y = x[order], y[order]
    by_y = jnp.argsort(y, stable=True)  # ties in y are in the order of x, so that none counts as an inversion
    ordered_y, index = y[by_y], jnp.arange(len(y), dtype=jnp.int32)
    same_x = x[1:] == x[:-1]
    tied_x, tied_y = _pairs_in_runs(same_x), _pairs_in_runs(ordered_y[1:] == ordered_y[:-1])
    tied_both = _pairs_in_runs(same_x & (y[1:] == y[:-1]))
    m = present.sum().astype(tied_x.dtype)
    total = m * (m - 1) / 2
    discordant = _inversions(jnp.zeros_like(index).at[by_y].set(index, unique_indices=True))
    concordant = total - tied_x - tied_y + tied_both - discordant
    return divide(concordant - discordant, jnp.sqrt(total - tied_x) * jnp.sqrt(total - tied_y))


def _pairs_in_runs(same: jax.Array) -> jax.Array:
    """Count the pairs within runs of equal neighbours: each entry pairs with the earlier ones of its run."""
    index = jnp.arange(same.shape[0] + 1, dtype=jnp.int32)
    start = lax.cummax(jnp.where(jnp.concatenate([jnp.zeros(1, bool), same]), 0, index))
    return _total(index - start)


def _inversions(order: jax.Array) -> jax.Array:
    """Count the inversions of a permutation: two entries separate at the highest bit in which they differ.

    After padding to a power of two, entries with equal higher bits form a block of known position and size, half of it
    ones (a wavelet tree: Grossi, Gupta & Vitter 2003). A stable partition of each block by the next bit moves a 0 past
    the ones before it, which are counted.
    """
    n = order.shape[0]
    bits = max(n - 1, 1).bit_length()
    index = jnp.arange(2**bits, dtype=order.dtype)
    order = jnp.concatenate([order, index[n:]])

    def part(step: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        count, order = state
        bit = bits - 1 - step
        start = (index >> (bit + 1)) << (bit + 1)
        one = (order >> bit) & 1
        ones_before = jnp.cumsum(one) - one - start // 2
        target = jnp.where(one == 1, start + (1 << bit) + ones_before, index - ones_before)
        parted = jnp.zeros_like(order).at[target].set(order, unique_indices=True, mode="promise_in_bounds")
        return count + _total(jnp.where(one == 1, 0, ones_before)), parted

    return lax.fori_loop(0, bits, part, (jnp.zeros((), jnp.result_type(float)), order))[0]


def _total(counts: jax.Array) -> jax.Array:
    """Sum (n,) counts below n to a float: as integers in chunks that do not overflow, then the chunks as floats."""
    n = counts.shape[0]
    size = max(1, 2**30 // n)
    counts = jnp.pad(counts, (0, -n % min(size, n)))
    return counts.reshape(-1, min(size, n)).sum(1).astype(jnp.result_type(float)).sum()
