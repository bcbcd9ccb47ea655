"""The copula of Farlie, Gumbel and Morgenstern: weak dependence of either sign, without tails."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rcjax.copulas.base import Exchangeable, TailDependence, outside, param, within


class FGM(Exchangeable):
    """C(u, v) = u v (1 + θ (1 − u)(1 − v)), −1 ≤ θ ≤ 1; θ = 0 is independence. Nelsen (2006), example 3.12.

    >>> round(float(FGM(0.9).tau()), 4)
    0.2
    """

    theta: jax.Array | float = param(0.5, support=(-1.0, 1.0))

    def cdf(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """C(u, v) = P(U ≤ u, V ≤ v)."""
        u, v = within(u), within(v)
        return u * v * (1 + jnp.asarray(self.theta) * (1 - u) * (1 - v))

    def log_density(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """log c = log(1 + θ (1 − 2u)(1 − 2v))."""
        turned = (1 - 2 * jnp.asarray(u)) * (1 - 2 * jnp.asarray(v))
        return jnp.where(outside(u, v), -jnp.inf, jnp.log1p(jnp.where(outside(u, v), 0.0, self.theta * turned)))

    def inverse_conditional(self, u: ArrayLike, p: ArrayLike) -> jax.Array:
        """The root of v + α v (1 − v) = p, with α = θ (1 − 2u)."""
        alpha, p = jnp.asarray(self.theta) * (1 - 2 * jnp.asarray(u)), jnp.asarray(p)
        square = (1 + alpha) ** 2 - 4 * alpha * p
        root = jnp.sqrt(jnp.maximum(square, jnp.finfo(square.dtype).tiny))
        return jnp.minimum(2 * p / (1 + alpha + root), 1.0)

    def spearman(self) -> jax.Array:
        """Spearman's ρ = θ/3."""
        return jnp.asarray(self.theta) / 3

    def tail_dependence(self) -> TailDependence:
        """λ_L = λ_U = 0."""
        nothing = jnp.zeros_like(jnp.asarray(self.theta))
        return TailDependence(nothing, nothing)

    def tau(self) -> jax.Array:
        """Kendall's τ = 2θ/9."""
        return 2 * jnp.asarray(self.theta) / 9
