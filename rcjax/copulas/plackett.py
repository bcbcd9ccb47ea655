"""Plackett's copula: one odds ratio at every cut of the square in four; dependence of either sign, without tails."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rcjax.copulas.base import Exchangeable, TailDependence, outside, param, within


class Plackett(Exchangeable):
    """θ = C (1 − u − v + C) / ((u − C)(v − C)) everywhere, θ > 0; θ = 1 is independence. Plackett (1965).

    >>> round(float(Plackett(4.0).spearman()), 4)
    0.4344
    """

    theta: jax.Array | float = param(3.0, support=(1e-3, float("inf")))

    def cdf(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """C(u, v) = P(U ≤ u, V ≤ v), the smaller root of a quadratic equation."""
        u, v = within(u), within(v)
        a, root = jnp.asarray(self.theta) - 1, jnp.sqrt(self._square(u, v))
        total = 1 + a * (u + v)
        positive = total > 0
        quotient = 2 * u * v * (a + 1) / jnp.where(positive, total + root, 1.0)
        return jnp.where(positive, quotient, (root - total) / jnp.where(positive, 1.0, -2 * a))

    def log_density(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """log of θ (1 + (θ − 1)(u + v − 2 u v)) / root³."""
        beyond, theta = outside(u, v), jnp.asarray(self.theta)
        u, v = (jnp.where(beyond, 0.5, jnp.asarray(z)) for z in (u, v))
        # The same as 1 + (θ − 1)(…), with both terms positive.
        mixed = (u * v + (1 - u) * (1 - v)) + theta * (u * (1 - v) + v * (1 - u))
        inside = jnp.log(theta) + jnp.log(mixed) - 1.5 * jnp.log(self._square(u, v))
        return jnp.where(beyond, -jnp.inf, inside)

    def tail_dependence(self) -> TailDependence:
        """λ_L = λ_U = 0."""
        nothing = jnp.zeros_like(jnp.asarray(self.theta))
        return TailDependence(nothing, nothing)

    def _square(self, u: jax.Array, v: jax.Array) -> jax.Array:
        """(1 + (θ − 1)(u + v))² − 4 θ (θ − 1) u v, as (1 + (θ − 1)(u − v))² + 4 (θ − 1) v (1 − u)."""
        a = jnp.asarray(self.theta) - 1
        rounding = jnp.finfo(jnp.result_type(float)).tiny
        return jnp.maximum((1 + a * (u - v)) ** 2 + 4 * a * v * (1 - u), rounding)
