"""Independence, and two families of either sign without tails: Plackett; Farlie, Gumbel and Morgenstern."""

from typing import Self

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rcjax._core.numerics import Unit, as_floats
from rcjax.copulas.base import (
    ClosedForm,
    Exchangeable,
    clip_unit,
    is_outside_square,
    no_tail_dependence,
    param,
)


class Independence(ClosedForm):
    """The copula C(u, v) = u v, without a free parameter; the shape of `placeholder` is that of the batch.

    >>> float(Independence().cdf(0.5, 0.5))
    0.25
    """

    placeholder: jax.Array | float = param(1.0, support=(-float("inf"), float("inf")), free=False)

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """Return C = u v and S = (1 − u)(1 − v)."""
        u, _ = self._spread(u, v)
        return u.value * v.value, u.complement * v.complement

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """Return h(v given u) = v."""
        return self._spread(u, v)[1]

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """Return log c = 0."""
        return jnp.zeros_like(self._spread(u, v)[0].value)

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """Return v = p."""
        return self.two_sided_conditional(u, p)

    def spearman(self) -> jax.Array:
        """Return Spearman's ρ = 0."""
        return self.tau()

    tail_dependence = no_tail_dependence

    def tau(self) -> jax.Array:
        """Return Kendall's τ = 0."""
        return jnp.zeros_like(jnp.asarray(self.placeholder))

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """Return independence for every τ, in the shape of τ."""
        return cls(jnp.ones_like(as_floats(tau)))

    def _spread(self, u: Unit, v: Unit) -> tuple[Unit, Unit]:
        """Broadcast u and v against each other and the batch."""
        shape = jnp.broadcast_shapes(*map(jnp.shape, (u.value, v.value, self.placeholder)))
        return jax.tree.map(lambda part: jnp.broadcast_to(part, shape), (u, v))


class Plackett(Exchangeable):
    """The Plackett copula: θ = C (1 − u − v + C) / ((u − C)(v − C)) everywhere, θ > 0; θ = 1 is independence.

    Plackett (1965), "A class of bivariate distributions".

    >>> round(float(Plackett(4.0).spearman()), 4)
    0.4344
    """

    theta: jax.Array | float = param(3.0, support=(1e-3, float("inf")))

    def cdf(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """Return C(u, v) = P(U ≤ u, V ≤ v), the smaller root of a quadratic equation."""
        u, v = clip_unit(u), clip_unit(v)
        a, root = jnp.asarray(self.theta) - 1, jnp.sqrt(self._discriminant(u, v))
        total = 1 + a * (u + v)
        positive = total > 0
        quotient = 2 * u * v * (a + 1) / jnp.where(positive, total + root, 1.0)
        return jnp.where(positive, quotient, (root - total) / jnp.where(positive, 1.0, -2 * a))

    def log_density(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """Return the log of θ (1 + (θ − 1)(u + v − 2 u v)) / root³."""
        beyond, theta = is_outside_square(u, v), jnp.asarray(self.theta)
        u, v = (jnp.where(beyond, 0.5, jnp.asarray(z)) for z in (u, v))
        # The same as 1 + (θ − 1)(…), with both terms positive.
        mixed = (u * v + (1 - u) * (1 - v)) + theta * (u * (1 - v) + v * (1 - u))
        inside = jnp.log(theta) + jnp.log(mixed) - 1.5 * jnp.log(self._discriminant(u, v))
        return jnp.where(beyond, -jnp.inf, inside)

    tail_dependence = no_tail_dependence

    def _discriminant(self, u: jax.Array, v: jax.Array) -> jax.Array:
        """Return the discriminant of the quadratic equation, (1 + (θ − 1)(u − v))² + 4 (θ − 1) v (1 − u)."""
        a = jnp.asarray(self.theta) - 1
        rounding = jnp.finfo(jnp.result_type(float)).tiny
        return jnp.maximum((1 + a * (u - v)) ** 2 + 4 * a * v * (1 - u), rounding)


class FGM(Exchangeable):
    """The Farlie–Gumbel–Morgenstern copula C(u, v) = u v (1 + θ (1 − u)(1 − v)), −1 ≤ θ ≤ 1; θ = 0 is independence.

    Nelsen (2006), example 3.12.

    >>> round(float(FGM(0.9).tau()), 4)
    0.2
    """

    theta: jax.Array | float = param(0.5, support=(-1.0, 1.0))

    def cdf(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """Return C(u, v) = P(U ≤ u, V ≤ v)."""
        u, v, theta = clip_unit(u), clip_unit(v), jnp.asarray(self.theta)
        return u * v * ((1 + theta) - theta * (u + v - u * v))  # at θ = −1 nothing cancels near (0, 0)

    def log_density(self, u: ArrayLike, v: ArrayLike) -> jax.Array:
        """Return log c = log(1 + θ (1 − 2u)(1 − 2v))."""
        # Where c is small, it is 1 − |θ| + 2 |θ| (a + b − 2ab), of the distances a and b to the nearest corner.
        beyond, size = is_outside_square(u, v), jnp.abs(jnp.asarray(self.theta))
        u, v = (jnp.where(beyond, 0.5, jnp.asarray(z)) for z in (u, v))
        excess = self.theta * (1 - 2 * u) * (1 - 2 * v)
        a, b = jnp.minimum(u, 1 - u), jnp.minimum(v, 1 - v)
        small = excess < -0.5
        near = jnp.log(jnp.where(small, (1 - size) + 2 * size * (a + b - 2 * a * b), 1.0))
        return jnp.where(beyond, -jnp.inf, jnp.where(small, near, jnp.log1p(jnp.where(small, 0.0, excess))))

    def inverse_conditional(self, u: ArrayLike, p: ArrayLike) -> jax.Array:
        """Solve v + α v (1 − v) = p for v, with α = θ (1 − 2u)."""
        theta, u, p = jnp.asarray(self.theta), jnp.asarray(u), jnp.asarray(p)
        alpha, above = theta * (1 - 2 * u), (1 + theta) - 2 * theta * u  # 1 + α, which does not cancel
        square = above**2 - 4 * alpha * p
        root = jnp.sqrt(jnp.maximum(square, jnp.finfo(square.dtype).tiny))
        return jnp.minimum(2 * p / (above + root), 1.0)

    def spearman(self) -> jax.Array:
        """Return Spearman's ρ = θ/3."""
        return jnp.asarray(self.theta) / 3

    tail_dependence = no_tail_dependence

    def tau(self) -> jax.Array:
        """Return Kendall's τ = 2θ/9."""
        return 2 * jnp.asarray(self.theta) / 9
