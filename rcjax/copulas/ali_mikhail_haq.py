"""The copula of Ali, Mikhail and Haq: weak dependence of either sign."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rcjax.copulas.base import Exchangeable, TailDependence, outside, param, within


class AMH(Exchangeable):
    """C(u, v) = u v / (1 − θ (1 − u)(1 − v)), −1 ≤ θ ≤ 1; θ = 0 is independence. Nelsen (2006), family 4.2.3.

    >>> round(float(AMH(1.0).tau()), 4)  # from −0.1817 to 1/3
    0.3333
    """

    theta: jax.Array | float = param(0.5, support=(-1.0, 1.0))

    def cdf(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """C(u, v) = P(U ≤ u, V ≤ v)."""
        u, v = within(u), within(v)
        below = self._below(u, v)
        empty = below <= 0
        return jnp.where(empty, 0.0, u * v / jnp.where(empty, 1.0, below))

    def log_density(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """log of ((1 − θ)² + θ (1 − θ)(u + v) + θ (1 + θ) u v) / (1 − θ (1 − u)(1 − v))³."""
        beyond, theta = outside(u, v), jnp.asarray(self.theta)
        u, v = (jnp.where(beyond, 0.5, jnp.asarray(z)) for z in (u, v))
        above = (1 - theta) ** 2 + theta * (1 - theta) * (u + v) + theta * (1 + theta) * u * v
        tiny = jnp.finfo(above.dtype).tiny
        inside = jnp.log(jnp.maximum(above, tiny)) - 3 * jnp.log(jnp.maximum(self._below(u, v), tiny))
        return jnp.where(beyond, -jnp.inf, inside)

    def tail_dependence(self) -> TailDependence:
        """λ_L = ½ at θ = 1, else 0; λ_U = 0."""
        lower = 0.5 * (jnp.asarray(self.theta) >= 1).astype(jnp.result_type(float))
        return TailDependence(lower, jnp.zeros_like(lower))

    def _below(self, u: jax.Array, v: jax.Array) -> jax.Array:
        """1 − θ (1 − u)(1 − v), without cancellation near θ = 1."""
        theta = jnp.asarray(self.theta)
        return 1 - theta + theta * (u + v - u * v)
