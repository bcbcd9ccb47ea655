"""The Clayton copula: lower tail dependence."""

from typing import Self

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rcjax._core.numerics import softplus
from rcjax.copulas.base import ClosedForm, TailDependence, param
from rcjax.copulas.rotation import Rotation
from rcjax.copulas.unit import Unit, from_log

_TINY = 1e-4  # θ times the larger logarithm, below which a series in θ avoids dividing by θ


class Clayton(ClosedForm):
    """C(u, v) = (u^{−θ} + v^{−θ} − 1)^{−1/θ}, θ ≥ 0; θ = 0 is independence.

    Formulas are in log-space, with x = −log u and y = −log v. Nelsen (2006), family 4.2.1.

    >>> float(Clayton(2.0).tau())
    0.5
    """

    theta: jax.Array | float = param(2.0, support=(0.0, float("inf")))

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """C = u v e^g and S = (1 − u)(1 − v) + u v (e^g − 1)."""
        x, y = -u.log, -v.log
        gain = _gain(_array(self.theta), x, y)
        above = u.complement * v.complement + u.value * v.value * jnp.expm1(gain)
        return jnp.exp(gain - x - y), above

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """log h = −(1 + 1/θ) log(1 + (v^{−θ} − 1) u^θ)."""
        theta = _array(self.theta)
        return from_log(-(1 + theta) * _log_sum(theta, -u.log, -v.log))

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """log c = log(1 + θ) + (2θ + 1) g − θ (x + y)."""
        theta, x, y = _array(self.theta), -u.log, -v.log
        return jnp.log1p(theta) + (2 * theta + 1) * _gain(theta, x, y) - theta * (x + y)

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """θ y = log(1 + (p^{−θ/(1 + θ)} − 1) u^{−θ})."""
        theta = _array(self.theta)
        return from_log(-_log_sum(theta, u.log, -p.log / (1 + theta)))

    def tail_dependence(self) -> TailDependence:
        """λ_L = 2^(−1/θ), 0 at θ = 0, and λ_U = 0."""
        theta = jnp.asarray(self.theta)
        lower = jnp.where(theta > 0, 2 ** (-1 / jnp.where(theta > 0, theta, 1.0)), 0.0)
        return TailDependence(lower, jnp.zeros_like(lower))

    def tau(self) -> jax.Array:
        """Kendall's τ = θ / (θ + 2)."""
        theta = jnp.asarray(self.theta)
        return theta / (theta + 2)

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """θ = 2τ / (1 − τ), held between 0 (τ ≤ 0: independence) and 98 (τ = 0.98)."""
        tau = jnp.maximum(cls._within_reach(tau), 0.0)
        return cls(2 * tau / (1 - tau))


class SurvivalClayton(Rotation, of=Clayton, degrees=180):
    """The law of (1 − U, 1 − V) for a Clayton (U, V): upper tail dependence."""

    theta: jax.Array | float = param(2.0, support=(0.0, float("inf")))


def _array(theta: jax.Array | float) -> jax.Array:
    return jnp.asarray(theta, jnp.result_type(float))


def _log_sum(theta: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """log(1 + (e^{θy} − 1) e^{−θx})/θ, which is y at θ = 0."""
    # In log-space the slope in θ is a difference of two numbers of order 1/θ. For small θ the formula is therefore y
    # less the gain; for large θ that difference would cancel.
    size = theta * jnp.maximum(jnp.abs(x), y)
    tiny, near = size < _TINY, size < 0.5
    divisor = jnp.where(tiny, 1.0, theta)
    fall = jnp.expm1(-divisor * y)
    close = y + jnp.log1p(-jnp.expm1(-divisor * jnp.where(near & ~tiny, x, 0.0)) * fall) / divisor
    far = softplus(divisor * (y - x) + jnp.log(-fall)) / divisor
    return jnp.where(tiny, y - _first_terms(jnp.where(tiny, theta, 0.0), x, y), jnp.where(near, close, far))


def _gain(theta: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """g = log(C / (u v)) = −log(1 − (1 − u^θ)(1 − v^θ)) / θ, which is 0 at θ = 0."""
    tiny = theta * jnp.maximum(x, y) < _TINY
    divisor = jnp.where(tiny, 1.0, theta)
    by_x, by_y = jnp.expm1(-divisor * x), jnp.expm1(-divisor * y)
    both = by_x * by_y
    near = both < 0.5
    # For small u^θ and v^θ, 1 − (1 − u^θ)(1 − v^θ) is their sum less their product, in log-space. One comparison
    # orders logarithms and powers alike: two could disagree after rounding, and mix slopes of both sides.
    ordered = x < y
    less, more = divisor * jnp.where(ordered, x, y), divisor * jnp.where(ordered, y, x)
    far = less - jnp.log(jnp.exp(less - more) - jnp.where(ordered, by_y, by_x))
    gain = jnp.where(near, -jnp.log1p(-jnp.where(near, both, 0.0)), far) / divisor
    return jnp.where(tiny, _first_terms(jnp.where(tiny, theta, 0.0), x, y), gain)


def _first_terms(theta: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """The gain to the third power of θ; the remainder is θ⁴ times a polynomial of degree 5."""
    return theta * x * y * (1 - theta * ((x + y) / 2 - theta * ((x * x + y * y) / 6 + 0.75 * x * y)))
