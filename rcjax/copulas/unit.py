"""Probabilities with their complements: near 1 a float loses the digits that 1 − u keeps."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._core.numerics import log_of_pair


class Unit(NamedTuple):
    """u in (0, 1) and 1 − u, each to full relative precision, and so are both logarithms.

    `score` caches the quantile of u under a distribution symmetric about 0.

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
    """u clipped to [0, 1] with its complement, both at least √tiny, tiny being the smallest normal number.

    Quotients and products of two such numbers, and their logarithms times any parameter, then stay finite.

    >>> bool(unit(1.0).complement > 0), bool(unit(0.0).value > 0)
    (True, True)
    """
    u = jnp.asarray(u, jnp.result_type(float))
    least = float(np.sqrt(jnp.finfo(u.dtype).tiny))
    return Unit(jnp.where(u > 1, 1.0, jnp.maximum(u, least)), jnp.maximum(1 - u, least))


def turned(condition: jax.Array, u: Unit) -> Unit:
    """1 − u where the condition holds, else u."""
    return jax.tree.map(lambda flipped, straight: jnp.where(condition, flipped, straight), u.flipped, u)


def with_flips(u: Unit, v: Unit, *parameters: jax.Array) -> tuple[Unit, Unit]:
    """Stack u with 1 − u and v with 1 − v along a new first axis, broadcast against the parameters.

    One program then computes C(u, v) and C(1 − u, 1 − v).
    """
    shape = jnp.broadcast_shapes(*map(jnp.shape, (u.value, v.value, *parameters)))

    def stacked(straight: jax.Array, flipped: jax.Array) -> jax.Array:
        return jnp.stack([jnp.broadcast_to(straight, shape), jnp.broadcast_to(flipped, shape)])

    return jax.tree.map(stacked, u, u.flipped), jax.tree.map(stacked, v, v.flipped)


def from_log(log: jax.Array) -> Unit:
    """The probability with the given logarithm ≤ 0."""
    return Unit(jnp.exp(log), -jnp.expm1(log))


def is_zero(tangent: Any) -> bool:
    """Whether a tangent is a symbolic zero, in a derivative rule with `symbolic_zeros=True`."""
    return isinstance(tangent, jax.custom_derivatives.SymbolicZero)


def _log(value: jax.Array, complement: jax.Array) -> jax.Array:
    # The logarithm of an underflown probability is that of the smallest number, with gradient 0.
    return log_of_pair(jnp.maximum(value, jnp.finfo(value.dtype).tiny), complement)
