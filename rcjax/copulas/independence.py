"""The independence copula: what every family must beat."""

from typing import Self

import jax
import jax.numpy as jnp

from rcjax.copulas.base import Copula


class Independence(Copula):
    """C(u, v) = u v. It has no parameter; `scale` carries the batch axes of the pairs it stands for.

    >>> float(Independence().cdf(0.5, 0.5))
    0.25
    """

    scale: jax.Array = 1.0  # pyright: ignore[reportAssignmentType]

    def cdf(self, u: jax.Array, v: jax.Array) -> jax.Array:
        """C(u, v) = u v."""
        return jnp.asarray(u) * v

    def conditional(self, u: jax.Array, v: jax.Array) -> jax.Array:
        """h(v given u) = v."""
        return jnp.broadcast_arrays(jnp.asarray(u), v)[1]

    def log_density(self, u: jax.Array, v: jax.Array) -> jax.Array:
        """log c = 0."""
        return jnp.zeros(jnp.broadcast_shapes(jnp.shape(u), jnp.shape(v)))

    def inverse_conditional(self, u: jax.Array, p: jax.Array) -> jax.Array:
        """The v with h(v given u) = p is p itself."""
        return jnp.broadcast_arrays(jnp.asarray(u), p)[1]

    def tau(self) -> jax.Array:
        """Kendall's τ = 0."""
        return jnp.zeros_like(jnp.asarray(self.scale))

    @classmethod
    def from_tau(cls, tau: jax.Array) -> Self:
        """Independence, whatever τ."""
        return cls(jnp.ones_like(tau))

    def tail_dependence(self) -> tuple[jax.Array, jax.Array]:
        """(lower, upper) tail dependence: none."""
        return self.tau(), self.tau()
