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
    x_rank = jnp.where(present, _dense_rank(jnp.where(present, x, jnp.inf)), n)
    y_rank = jnp.where(present, _dense_rank(jnp.where(present, y, jnp.inf)), n)
    order = jnp.lexsort((y_rank, x_rank))
    x_rank, y_rank, present = x_rank[order], y_rank[order], present[order]
    m = present.sum().astype(jnp.result_type(float))
    total = m * (m - 1) / 2
    tied_x = _tied_pairs(x_rank, x_rank, present)
    tied_y = _tied_pairs(jnp.sort(y_rank), jnp.sort(y_rank), jnp.arange(n) < m)
    tied_both = _tied_pairs(x_rank, y_rank, present)
    discordant = _inversions(y_rank)
    concordant = total - tied_x - tied_y + tied_both - discordant
    return concordant - discordant, total - tied_x, total - tied_y


def _dense_rank(values):
    order = jnp.argsort(values)
    ordered = values[order]
    new = jnp.concatenate([jnp.zeros(1, bool), ordered[1:] != ordered[:-1]])
    return jnp.zeros(values.shape, int).at[order].set(jnp.cumsum(new))


def _tied_pairs(first, second, present):
    """Pairs with both ranks equal, where equal entries are neighbours: each entry pairs with the earlier of its run."""
    new = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    place = jnp.arange(first.shape[0])
    start = lax.cummax(jnp.where(jnp.concatenate([jnp.ones(1, bool), new]), place, 0))
    return jnp.where(present, place - start, 0).astype(jnp.result_type(float)).sum()


def _inversions(rank):
    """Pairs out of order: two entries part at the highest bit in which they differ, so count those bit by bit."""
    n = rank.shape[0]
    count = jnp.zeros((), jnp.result_type(float))
    for bit in reversed(range(n.bit_length())):
        group = rank >> (bit + 1)
        one = (rank >> bit) & 1
        ones = jnp.cumsum(one)
        starts = jnp.concatenate([jnp.ones(1, bool), group[1:] != group[:-1]])
        before = lax.cummax(jnp.where(starts, ones - one, 0))
        count += jnp.where(one == 0, ones - before, 0).astype(count.dtype).sum()
        rank = rank[jnp.argsort(rank >> bit, stable=True)]
    return count
