"""Rank statistics that jit and batch: Kendall's tau-b with ties and missing entries, exact.

Of two columns in O(n log n); of all pairs of columns by signs, in O(n²), which for short ones is quicker.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.numerics import divide

#: Up to so many entries all pairs of columns are quicker by their signs, for any number of columns.
FEW_ENTRIES = 1536

_TILE = 48  # entries to a side of what is compared at a time: it fits into caches, and divides the sizes of logs


def kendall_taus(columns: jax.Array, present: jax.Array) -> jax.Array:
    """(k, k) Kendall's tau-b of every two columns, on the entries that are present in both; as `kendall_tau`.

    columns (n, k) numbers, present (n, k) bool; for n up to 4,096, beyond which single precision would lose counts.
    The sum over all pairs of entries of the product of two columns' signs of differences is a product of matrices
    (Kendall 1945, "The treatment of ties in ranking problems", eq. 3), taken a tile of the pairs at a time.

    >>> columns, present = jnp.array([[1., 1.], [2., 3.], [3., 2.], [4., 4.]]), jnp.ones((4, 2), bool)
    >>> round(float(kendall_taus(columns, present)[0, 1]), 4)
    0.6667
    """
    n, k = columns.shape
    rows = (-(-n // _TILE)) * _TILE
    values, there = (jnp.pad(matrix.T, ((0, 0), (0, rows - n))) for matrix in (columns, present))
    tiles = jnp.asarray(np.array(np.tril_indices(rows // _TILE)) * _TILE)  # where each starts; the others mirror them

    def add(number: jax.Array, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        one, other = tiles[:, number]
        (a, present_a), (b, present_b) = (
            [lax.dynamic_slice_in_dim(matrix, start, _TILE, 1) for matrix in (values, there)] for start in (one, other)
        )
        # Whole numbers, which single precision holds exactly.
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
    """Kendall's tau-b of the entries that are present, in [−1, 1]; 0 where it is undefined (x or y constant).

    x, y (n,) numbers, present (n,) bool. Kendall (1945), "The treatment of ties in ranking problems". Exact apart from
    the rounding of the counts to floats: within 1e-6 in float32, for any n below 2²⁹. O(n log n): the discordant pairs
    are the inversions of y once sorted by (x, y) (Knight 1966, "A computer method for calculating Kendall's tau with
    ungrouped data"). Jits, and batches under `vmap`.

    >>> present = jnp.ones(4, bool)
    >>> round(float(kendall_tau(jnp.array([1., 2., 3., 4.]), jnp.array([1., 3., 2., 4.]), present)), 4)
    0.6667
    """
    # NaN, which sorts behind all numbers and equals none: absent entries come last in every order, in the same order.
    x, y = jnp.where(present, jnp.stack([x, y]), jnp.nan)
    order = jnp.argsort(y, stable=True)
    order = order[jnp.argsort(x[order], stable=True)]
    x, y = x[order], y[order]
    by_y = jnp.argsort(y, stable=True)  # ties in y by x: not one of them is out of order
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
    """Pairs within runs of equal neighbours: each entry pairs with the earlier ones of its run."""
    index = jnp.arange(same.shape[0] + 1, dtype=jnp.int32)
    start = lax.cummax(jnp.where(jnp.concatenate([jnp.zeros(1, bool), same]), 0, index))
    return _total(index - start)


def _inversions(order: jax.Array) -> jax.Array:
    """Pairs out of order in a permutation: two entries part at the highest bit in which they differ.

    Padded to a power of two, those that agree in the bits above are a block of known place and size, half of it ones
    (a wavelet tree: Grossi, Gupta & Vitter 2003). Parting each block by the next bit, in order, moves a 0 past the ones
    before it, which are counted.
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
    """The sum of counts (n,) below n as a float, rounded a few times only: in integers as far as those reach."""
    n = counts.shape[0]
    size = max(1, 2**30 // n)
    counts = jnp.pad(counts, (0, -n % min(size, n)))
    return counts.reshape(-1, min(size, n)).sum(1).astype(jnp.result_type(float)).sum()
