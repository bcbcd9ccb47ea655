"""Replicates of a statistic, and from them to a p-value."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

#: Queries that the bootstraps of marginals and copulas use; their time grows with the square.
MOST_QUERIES = 500

#: What they are filled up to: by a quarter at most, as replicates run for longer than they compile.
_SIZES = (96, 120, 150, 188, 236, 296, 372, 468, MOST_QUERIES)


def bootstrap_size(n: int) -> int:
    """The number of queries that n are filled up to for these bootstraps; more than they use stay as they are.

    >>> [bootstrap_size(n) for n in (100, 285, 480, 501)]
    [120, 296, 500, 501]
    """
    return next((size for size in _SIZES if size >= n), n)


def replicate(statistic: Callable[[Any], Any], keys: Any, most: int) -> Any:
    """The statistic of every one of B keys, or of other entries of a pytree, at most so many at a time.

    Batches are of one size, the last one filled up: what `lax.map` has left over it traces and compiles once more.

    >>> replicate(lambda key: key + 1, jnp.arange(5), 2).tolist()
    [1, 2, 3, 4, 5]
    """
    batches = jax.tree.map(lambda leaf: in_batches(leaf, most), keys)
    count = jax.tree.leaves(keys)[0].shape[0]
    statistics = lax.map(jax.vmap(statistic), batches)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:count], statistics)


def in_batches(keys: jax.Array, most: int) -> jax.Array:
    """B keys in batches of one size, `most` at most: (batches, size), filled up with keys that are there.

    >>> in_batches(jnp.arange(5), 2).tolist()
    [[0, 1], [2, 3], [4, 0]]
    """
    count = keys.shape[0]
    batches = -(-count // max(1, most))
    size = -(-count // batches)
    return jnp.concatenate([keys, keys[: batches * size - count]]).reshape(batches, size, *keys.shape[1:])


def p_value(statistic: jax.Array, replicates: jax.Array) -> jax.Array:
    """(exceedances + ½)/(B + 1) of a statistic () among B replicates; NaN where it, or each of them, is not finite.

    Replicates that are not finite do not count.

    >>> float(p_value(jnp.asarray(0.3), jnp.array([0.1, 0.2, 0.4])))
    0.375
    """
    valid = jnp.isfinite(replicates)
    exceeding = (valid & (replicates >= statistic)).sum()
    return jnp.where(jnp.isfinite(statistic) & valid.any(), (exceeding + 0.5) / (valid.sum() + 1), jnp.nan)
