"""Rank statistics that jit and batch: Kendall's tau-b with ties and missing entries, in O(n log n)."""

import jax
import jax.numpy as jnp
from jax import lax

from rcjax._numerics import divide


def kendall_tau(x: jax.Array, y: jax.Array, present: jax.Array) -> jax.Array:
    """Kendall's tau-b of the entries that are present, in [−1, 1]; 0 where it is undefined (x or y constant).

    x, y (n,) numbers, present (n,) bool. Kendall (1945), "The treatment of ties in ranking problems".

    >>> present = jnp.ones(4, bool)
    >>> round(float(kendall_tau(jnp.array([1., 2., 3., 4.]), jnp.array([1., 3., 2., 4.]), present)), 4)
    0.6667
    """
    difference, untied_x, untied_y = kendall_counts(x, y, present)
    return divide(difference, jnp.sqrt(untied_x) * jnp.sqrt(untied_y))


def kendall_counts(x: jax.Array, y: jax.Array, present: jax.Array) -> tuple[jax.Array, ...]:
    """(concordant − discordant, pairs not tied in x, pairs not tied in y) over the entries that are present.

    x, y (n,) numbers, present (n,) bool; O(n log n) comparisons: the discordant pairs are the inversions of y once
    sorted by (x, y), counted bit by bit of the ranks of y. Jits and batches under `vmap`.

    >>> one = jnp.ones(3, bool)
    >>> [float(c) for c in kendall_counts(jnp.array([1., 2., 3.]), jnp.array([1., 3., 2.]), one)]
    [1.0, 3.0, 3.0]
    """
    n = x.shape[0]
    # Absent entries tie with each other above all others in x and in y: they are concordant with every present one.
    ranks = jax.vmap(_minimum_rank)(jnp.where(present, jnp.stack([x, y]), jnp.inf))
    x_rank, y_rank = jnp.where(present, ranks, n)
    # An entry is not tied with the entries below it: those are its rank.
    untied_x, untied_y = jnp.where(present, ranks, 0).astype(jnp.result_type(float)).sum(-1)
    order = jnp.lexsort((y_rank, x_rank))
    x_rank, y_rank, present = x_rank[order], y_rank[order], present[order]
    m = present.sum().astype(untied_x.dtype)
    total = m * (m - 1) / 2
    tied_both = _pairs_in_runs((x_rank[1:] == x_rank[:-1]) & (y_rank[1:] == y_rank[:-1]), present)
    discordant = _inversions(y_rank)
    concordant = untied_x + untied_y + tied_both - total - discordant
    return concordant - discordant, untied_x, untied_y


def _minimum_rank(values):
    """How many of the values are smaller, for each."""
    return jnp.searchsorted(jnp.sort(values), values)


def _pairs_in_runs(same, present):
    """Pairs of present entries within a run of equal neighbours: each entry pairs with the earlier of its run."""
    place = jnp.arange(present.shape[0])
    start = lax.cummax(jnp.where(jnp.concatenate([jnp.zeros(1, bool), same]), 0, place))
    return jnp.where(present, place - start, 0).astype(jnp.result_type(float)).sum()


def _inversions(rank):
    """Pairs out of order: two entries part at the highest bit in which they differ, so count those bit by bit.

    A stable sort by the leading bits moves each entry whose next bit is 0 past the entries before it whose bit is 1.
    """
    bits = rank.shape[0].bit_length()
    place = jnp.arange(rank.shape[0])

    def count_bit(step, state):
        count, rank = state
        bit = bits - 1 - step
        order = jnp.argsort(rank >> bit, stable=True)
        rank = rank[order]
        moved = jnp.where((rank >> bit) & 1 == 0, order - place, 0)
        return count + moved.astype(count.dtype).sum(), rank

    return lax.fori_loop(0, bits, count_bit, (jnp.zeros((), jnp.result_type(float)), rank))[0]
