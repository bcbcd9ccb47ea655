"""A maximum that is nearly known, settled by Newton's method, and its derivatives by what the objective depends on."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_STEPS = 8
#: Curvatures below this share of the largest are none: what they belong to stays where it is.
_FLAT = 1e-10


def stationary(objective: Callable[..., jax.Array], start: jax.Array, *inputs: Any) -> jax.Array:
    """The maximum (d,) of objective(x, *inputs) near `start`, by Newton steps, with derivatives by the inputs.

    By the implicit function theorem dx = −(∂²f/∂x²)⁻¹ (∂²f/∂x∂inputs). Directions in which the objective does not curve
    down stay where they are.

    >>> def objective(x, goal):
    ...     return -((x - goal) ** 2).sum()
    >>> slope = jax.jacobian(lambda goal: stationary(objective, jnp.zeros(1), goal))(jnp.ones(1))
    >>> float(slope[0, 0])
    1.0
    """
    still = lax.stop_gradient(inputs)

    def divided(curvature: jax.Array, slope: jax.Array) -> jax.Array:
        bends, axes = jnp.linalg.eigh(curvature)
        down = bends < -_FLAT * jnp.abs(bends).max()
        return axes @ (jnp.where(down, 1 / jnp.where(down, bends, 1.0), 0.0) * (axes.T @ slope))

    def step(_: Any, x: jax.Array) -> jax.Array:
        moved = x - divided(jax.hessian(objective)(x, *still), jax.grad(objective)(x, *still))
        least = objective(x, *still)
        least -= 64 * jnp.finfo(x.dtype).eps * (1 + jnp.abs(least))  # what rounding takes
        return jnp.where(objective(moved, *still) >= least, moved, x)

    return lax.custom_root(
        lambda x: jax.grad(objective)(x, *inputs),
        lax.stop_gradient(start),
        # From what varies as the objective does, over the devices of `jax.shard_map`.
        lambda _, start: lax.fori_loop(0, _STEPS, step, start + jnp.zeros_like(objective(start, *still))),
        lambda linear, slope: divided(jax.jacobian(linear)(slope), slope),
    )
