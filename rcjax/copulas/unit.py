"""Probabilities with their complements: near 1 a float forgets what 1 − u still tells."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._core.numerics import log_of_pair


class Unit(NamedTuple):
    """u in (0, 1) and 1 − u, each to full relative precision, so that both logarithms are too.

    `score` is its quantile under some distribution symmetric about 0, where it is computed once for many uses.

    >>> tiny = Unit(jnp.asarray(1.0), jnp.asarray(1e-30))
    >>> f"{float(tiny.log):.1g} {float(tiny.log_complement):.3f}"
    '-1e-30 -69.078'
    """

    value: jax.Array
    complement: jax.Array
    score: jax.Array | None = None

    @property
    def log(self) -> jax.Array:
        """log u."""
        return _log(self.value, self.complement)

    @property
    def log_complement(self) -> jax.Array:
        """log(1 − u)."""
        return _log(self.complement, self.value)

    @property
    def flipped(self) -> "Unit":
        """1 − u."""
        return Unit(self.complement, self.value, None if self.score is None else -self.score)


def unit(u: ArrayLike) -> Unit:
    """u in [0, 1], or the nearer of both, with its complement, both kept off 0 by the root of the smallest number.

    So that quotients and powers of two of them, and their logarithms times any parameter, stay finite numbers.

    >>> bool(unit(1.0).complement > 0), bool(unit(0.0).value > 0)
    (True, True)
    """
    u = jnp.asarray(u, jnp.result_type(float))
    least = float(np.sqrt(jnp.finfo(u.dtype).tiny))
    return Unit(jnp.where(u > 1, 1.0, jnp.maximum(u, least)), jnp.maximum(1 - u, least))


def turned(condition: jax.Array, u: Unit) -> Unit:
    """1 − u where the condition holds, else u."""
    return jax.tree.map(lambda one, other: jnp.where(condition, one, other), u.flipped, u)


def with_flips(u: Unit, v: Unit, *parameters: jax.Array) -> tuple[Unit, Unit]:
    """(u and 1 − u, v and 1 − v), stacked along a new first axis ahead of all the shapes, the parameters' included.

    One program then serves C(u, v) and C(1 − u, 1 − v).
    """
    shape = jnp.broadcast_shapes(*map(jnp.shape, (u.value, v.value, *parameters)))

    def stacked(one: jax.Array, other: jax.Array) -> jax.Array:
        return jnp.stack([jnp.broadcast_to(one, shape), jnp.broadcast_to(other, shape)])

    return jax.tree.map(stacked, u, u.flipped), jax.tree.map(stacked, v, v.flipped)


def from_log(log: jax.Array) -> Unit:
    """The probability with the given logarithm ≤ 0."""
    return Unit(jnp.exp(log), -jnp.expm1(log))


def is_zero(tangent: Any) -> bool:
    """Whether nothing moves with an argument, in a rule of derivatives with symbolic zeros."""
    return isinstance(tangent, jax.custom_derivatives.SymbolicZero)


def _log(value: jax.Array, complement: jax.Array) -> jax.Array:
    # A probability that has underflown has the logarithm of the smallest number, and no gradient.
    return log_of_pair(jnp.maximum(value, jnp.finfo(value.dtype).tiny), complement)
