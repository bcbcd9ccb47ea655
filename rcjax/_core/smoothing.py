"""A largest value and a quantile without kinks or jumps, as near to the true ones as asked: for descent by gradient.

Nesterov (2005), "Smooth minimization of non-smooth functions": what is minimised is a smooth function nearby, and
nearer with every round.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax.scipy import special

from rcjax._core.numerics import bisection, divide, implicit_root


def smooth_maximum(values: jax.Array, width: jax.Array | float) -> jax.Array:
    """The largest of the values (…, n), rounded off: t·log Σ exp(x/t), with t = width·(root mean square of the values).

    Above the largest by at most t·log n, and the largest itself for a width of 0. The unit of the values does not
    matter, so the kink of max(x, 0) at 0 stays: take max(x, 0)² there. In an objective of `rcjax.solving.minimise`,
    `outcome.smoothing` is the width that the solver tightens.

    >>> values = jnp.array([0.2, 0.3, 0.1])
    >>> [round(float(smooth_maximum(values, width)), 3) for width in (0.0, 0.1, 0.5)]
    [0.3, 0.3, 0.348]
    """
    values = jnp.asarray(values, jnp.result_type(float))
    square = (values**2).mean(-1)
    t = jnp.asarray(width, values.dtype) * jnp.sqrt(jnp.where(square > 0, square, 1.0))
    rounded = (t > 0) & (square > 0)
    t = jnp.where(rounded, t, 1.0)
    return jnp.where(rounded, t * special.logsumexp(values / t[..., None], axis=-1), values.max(-1))


def smooth_quantile(values: jax.Array, weights: jax.Array, level: float, width: jax.Array | float) -> jax.Array:
    """The quantile of the values (…, n), each as probable as its weight (…, n), with every value spread out a little.

    The q at which Σ wᵢ σ((q − xᵢ)/h) is the level, with σ the logistic function and h = width·(largest − least value).
    For a width of 0 the least value that at least so much of the weight does not exceed: it jumps as weights change,
    and does not tell a gradient where to go. In an objective of `rcjax.solving.minimise`, `outcome.smoothing`
    is the width that the solver tightens.

    Args:
        values: such as the seconds of each path, `outcome.along(seconds)`.
        weights: such as how often each path is taken, `outcome.taken`.
        level: in (0, 1).
        width: at least 0.

    Raises ValueError for a level outside (0, 1).

    >>> seconds, taken = jnp.array([1.0, 3.0, 9.0]), jnp.array([0.6, 0.3, 0.1])
    >>> [round(float(smooth_quantile(seconds, taken, 0.8, width)), 1) for width in (0.0, 0.01, 0.1)]
    [3.0, 3.1, 3.8]
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it must be between 0 and 1")
    dtype = jnp.result_type(float)
    values, weights = (jnp.asarray(array, dtype) for array in (values, weights))
    single = partial(_quantile, level=level)
    return jnp.vectorize(single, signature="(n),(n),()->()")(values, weights, jnp.asarray(width, dtype))


def _quantile(values: jax.Array, weights: jax.Array, width: jax.Array, level: float) -> jax.Array:
    shares = divide(weights, weights.sum())
    spread = width * (values.max() - values.min())
    h = jnp.where(spread > 0, spread, 1.0)
    shift = h * math.log(level / (1 - level))

    def excess(q: jax.Array) -> jax.Array:
        return shares @ special.expit((q - values) / h) - level

    low, high = jax.lax.stop_gradient((values.min() + shift, values.max() + shift))
    smooth = implicit_root(excess, bisection(low, high, values.dtype), values.dtype)
    order = jnp.argsort(values)
    reached = jnp.cumsum(shares[order]) >= level - 8 * values.shape[0] * jnp.finfo(values.dtype).eps
    return jnp.where(spread > 0, smooth, values[order][jnp.argmax(reached)])
