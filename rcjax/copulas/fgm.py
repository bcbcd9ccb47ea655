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
        u, v, theta = within(u), within(v), jnp.asarray(self.theta)
        return u * v * ((1 + theta) - theta * (u + v - u * v))  # at θ = −1 nothing cancels near (0, 0)

    def log_density(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """log c = log(1 + θ (1 − 2u)(1 − 2v))."""
        # Where c is small, it is 1 − |θ| + 2 |θ| (a + b − 2ab), of the distances a and b to the nearest corner.
        beyond, size = outside(u, v), jnp.abs(jnp.asarray(self.theta))
        u, v = (jnp.where(beyond, 0.5, jnp.asarray(one)) for one in (u, v))
        excess = self.theta * (1 - 2 * u) * (1 - 2 * v)
        a, b = jnp.minimum(u, 1 - u), jnp.minimum(v, 1 - v)
        small = excess < -0.5
        near = jnp.log(jnp.where(small, (1 - size) + 2 * size * (a + b - 2 * a * b), 1.0))
        return jnp.where(beyond, -jnp.inf, jnp.where(small, near, jnp.log1p(jnp.where(small, 0.0, excess))))

    def inverse_conditional(self, u: ArrayLike, p: ArrayLike) -> jax.Array:
        """The root of v + α v (1 − v) = p, with α = θ (1 − 2u)."""
        theta, u, p = jnp.asarray(self.theta), jnp.asarray(u), jnp.asarray(p)
        alpha, above = theta * (1 - 2 * u), (1 + theta) - 2 * theta * u  # 1 + α, which does not cancel
        square = above**2 - 4 * alpha * p
        root = jnp.sqrt(jnp.maximum(square, jnp.finfo(square.dtype).tiny))
        return jnp.minimum(2 * p / (above + root), 1.0)

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
