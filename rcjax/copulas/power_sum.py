"""Generators shared by BB1 and BB7: log(1 + θ k)/θ and (e^{θx} − 1)/θ in log-space, smooth at θ = 0."""

import jax
import jax.numpy as jnp

from rcjax._core.numerics import log1p_ratio, log_of_pair, softplus

_FEW = 1e-30  # a floor for θ: as good as 0, and its logarithm is finite in float32


def log1p_over(theta: jax.Array, log_k: jax.Array) -> jax.Array:
    """log(1 + θ k)/θ for k = exp(log_k) and θ ≥ 0; k at θ = 0.

    >>> import math
    >>> [round(float(value), 4) for value in log1p_over(jnp.array([0.0, 2.0]), jnp.log(3.0))]
    [3.0, 0.973]
    """
    theta = jnp.asarray(theta, jnp.result_type(float))
    log_y = jnp.log(jnp.maximum(theta, _FEW)) + log_k
    near = log_y < -1.0
    k = jnp.exp(jnp.where(near, log_k, 0.0))
    small = k * log1p_ratio(jnp.where(near, theta * k, 0.0))
    large = softplus(jnp.where(near, 0.0, log_y)) / jnp.where(near, 1.0, theta)
    return jnp.where(near, small, large)


def log_expm1_over(theta: jax.Array, x: jax.Array, log_x: jax.Array | float) -> jax.Array:
    """log((e^{θx} − 1)/θ) for x ≥ 0 and θ ≥ 0; log x at θ = 0.

    >>> x = jnp.array([1.0, 1.0])
    >>> [round(float(value), 4) for value in log_expm1_over(jnp.array([0.0, 2.0]), x, jnp.log(x))]
    [0.0, 1.1614]
    """
    z = jnp.asarray(theta, jnp.result_type(float)) * x
    near = z < 0.5
    # (1 − e^{−z})/z, as its Taylor polynomial of degree 10.
    little = jnp.where(near, z, 0.0)
    ratio = jnp.ones_like(little)
    for power in range(11, 1, -1):
        ratio = 1 - little / power * ratio
    much = jnp.where(near, 1.0, z)
    small, far = jnp.exp(-much), jnp.log(much)
    log_ratio = jnp.where(near, jnp.log(ratio), log_of_pair(-jnp.expm1(-much), small) - far)
    return log_x + z + log_ratio
