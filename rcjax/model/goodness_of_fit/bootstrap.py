"""Sequential bootstrap p-values.

Drawing stops once so many replicates reach the statistic that it cannot be significant (Besag & Clifford 1991,
"Sequential Monte Carlo p-values"). If the model fits, a test then needs a tenth of the replicates.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rcjax._core.batching import size_class

#: Significance level of every test.
SIGNIFICANT = 0.05

#: Queries that the bootstraps of marginals and copulas use at most; their time grows with the square.
MOST_QUERIES = 500

#: Exceedances before drawing may stop: the relative standard error of the p-value is then 1/√20, a fifth.
_FEWEST_EXCEEDANCES = 20


def bootstrap_size(n: int) -> int:
    """The padded size of a bootstrap of n queries: their size class, or `MOST_QUERIES` if n fits into that.

    >>> [bootstrap_size(n) for n in (100, 285, 480, 501)]
    [192, 384, 500, 768]
    """
    return MOST_QUERIES if n <= MOST_QUERIES < size_class(n) else size_class(n)


def exceedances_needed(replicates: int) -> int:
    """The number of exceedances that ends drawing: p is then above the level, whatever the other replicates are.

    >>> [exceedances_needed(replicates) for replicates in (100, 1000, 10_000)]
    [20, 50, 500]
    """
    return max(_FEWEST_EXCEEDANCES, math.ceil(SIGNIFICANT * (replicates + 1) - 0.5))


def replicate(
    step: Callable[[Any, Any], tuple[Any, Any, Any]], state: Any, batches: Any, replicates: int
) -> tuple[Any, Any, Any]:
    """Draw replicates of a statistic, batch by batch, until its p-value is known.

    Args:
        step: function of (state, batch) that returns (next state, statistic of the log (), statistics of the batch
            (size,)); NaN if the batch holds no replicate.
        state: initial state.
        batches: keys, or a pytree of arrays as `in_batches` gives them; (batches, size, …).
        replicates: greatest number of replicates.

    Returns:
        (last state, statistic of the log (), statistics of the replicates (batches · size,)). NaN stands for replicates
        that were not drawn or not needed; which ones does not depend on the size of a batch.

    >>> keys = jnp.arange(1.0, 1001.0)
    >>> step = lambda state, batch: (state, jnp.asarray(0.5), batch % 2)  # every other one exceeds a half
    >>> _, statistic, drawn = replicate(step, (), in_batches(keys, 64), 1000)
    >>> int(jnp.isfinite(drawn).sum()), round(float(p_value(statistic, drawn)), 3)
    (99, 0.505)
    """
    needed = exceedances_needed(replicates)
    count, size = jax.tree.leaves(batches)[0].shape[:2]

    def unknown(loop: tuple[Any, ...]) -> jax.Array:
        number, _, observed, drawn = loop
        return (number < count) & ((drawn >= observed).sum() < needed)

    def draw(loop: tuple[Any, ...]) -> tuple[Any, ...]:
        number, state, _, drawn = loop
        state, observed, batch = step(state, jax.tree.map(lambda leaf: leaf[number], batches))
        return number + 1, state, observed, drawn.at[number].set(batch)

    _, like, _ = jax.eval_shape(step, state, jax.tree.map(lambda leaf: leaf[0], batches))
    nothing, drawn = (jnp.full(shape, jnp.nan, like.dtype) for shape in ((), (count, size)))
    _, state, observed, drawn = lax.while_loop(unknown, draw, (0, state, nothing, drawn))
    exceeds = drawn.reshape(-1) >= observed
    return state, observed, jnp.where(jnp.cumsum(exceeds) - exceeds < needed, drawn.reshape(-1), jnp.nan)


def in_batches(keys: jax.Array, most: int) -> jax.Array:
    """Divide B keys into batches of equal size, `most` at most, repeating the first keys as padding; (batches, size).

    >>> in_batches(jnp.arange(5), 2).tolist()
    [[0, 1], [2, 3], [4, 0]]
    """
    count = keys.shape[0]
    batches = -(-count // max(1, most))
    size = -(-count // batches)
    return jnp.concatenate([keys, keys[: batches * size - count]]).reshape(batches, size, *keys.shape[1:])


def p_value(statistic: jax.Array, replicates: jax.Array) -> jax.Array:
    """(exceedances + ½)/(B + 1) of a statistic () among its B finite replicates.

    It is NaN if the statistic, or every replicate, is not finite.

    >>> float(p_value(jnp.asarray(0.3), jnp.array([0.1, 0.2, 0.4])))
    0.375
    """
    valid = jnp.isfinite(replicates)
    exceeding = (valid & (replicates >= statistic)).sum()
    return jnp.where(jnp.isfinite(statistic) & valid.any(), (exceeding + 0.5) / (valid.sum() + 1), jnp.nan)
