"""The Clayton copula: lower tail dependence."""

from typing import Self

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rcjax._base.arguments import check_arguments
from rcjax._core.numerics import log1mexp, softplus
from rcjax.copulas.base import param
from rcjax.copulas.closed import ClosedForm
from rcjax.copulas.rotation import Rotation
from rcjax.copulas.unit import Unit, from_log


class Clayton(ClosedForm):
    """C(u, v) = (u^{−θ} + v^{−θ} − 1)^{−1/θ}, θ ≥ 0; θ = 0 is independence.

    In log-space, with x = −log u and y = −log v. Nelsen (2006), family 4.2.1.

    >>> float(Clayton(2.0).tau())
    0.5
    """

    theta: jax.Array | float = param(2.0, support=(0.0, float("inf")))

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """C = u v e^g and S = (1 − u)(1 − v) + u v (e^g − 1)."""
        x, y = -u.log, -v.log
        gain = _gain(_positive(self.theta), x, y)
        above = u.complement * v.complement + u.value * v.value * jnp.expm1(gain)
        return jnp.exp(gain - x - y), above

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """log h = −(1 + 1/θ) log(1 + (v^{−θ} − 1) u^θ)."""
        theta, x, y = _positive(self.theta), -u.log, -v.log
        return from_log(-(1 + theta) * softplus(theta * (y - x) + log1mexp(-theta * y)) / theta)

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """log c = log(1 + θ) + (2θ + 1) g − θ (x + y)."""
        theta, x, y = _positive(self.theta), -u.log, -v.log
        return jnp.log1p(theta) + (2 * theta + 1) * _gain(theta, x, y) - theta * (x + y)

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """θ y = log(1 + (p^{−θ/(1 + θ)} − 1) u^{−θ})."""
        theta, x = _positive(self.theta), -u.log
        drop = -theta / (1 + theta) * p.log
        return from_log(-softplus(drop + log1mexp(-drop) + theta * x) / theta)

    def tau(self) -> jax.Array:
        """Kendall's τ = θ / (θ + 2)."""
        theta = jnp.asarray(self.theta)
        return theta / (theta + 2)

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """θ = 2τ / (1 − τ), held between 0 (τ ≤ 0: independence) and 98 (τ = 0.98)."""
        check_arguments(Clayton.from_tau, locals())
        tau = jnp.clip(jnp.asarray(tau, jnp.result_type(float)), 0.0, cls.MAX_TAU)
        return cls(2 * tau / (1 - tau))

    def tail_dependence(self) -> tuple[jax.Array, jax.Array]:
        """(lower, upper) tail dependence: 2^{−1/θ} and 0."""
        theta = jnp.asarray(self.theta)
        return 2 ** (-1 / _positive(theta)), jnp.zeros_like(theta)


class SurvivalClayton(Rotation, of=Clayton, degrees=180):
    """The law of (1 − U, 1 − V) for a Clayton (U, V): upper tail dependence.

    >>> [round(float(tail), 3) for tail in SurvivalClayton(1.0).tail_dependence()]
    [0.0, 0.5]
    """

    theta: jax.Array | float = param(2.0, support=(0.0, float("inf")))


def _positive(theta: jax.Array | float) -> jax.Array:
    """θ kept off 0, where the formulas divide by it; what that moves is below rounding."""
    theta = jnp.asarray(theta, jnp.result_type(float))
    return theta + jnp.where(theta < jnp.finfo(theta.dtype).eps, jnp.finfo(theta.dtype).eps, 0.0)


def _gain(theta: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """g = log(C / (u v)) = −log(1 − (1 − u^θ)(1 − v^θ)) / θ."""
    both = jnp.expm1(-theta * x) * jnp.expm1(-theta * y)
    near = both < 0.5
    # Where u^θ and v^θ are small, 1 − both is their sum less their product, in log-space.
    less, more = theta * jnp.minimum(x, y), theta * jnp.maximum(x, y)
    far = less - jnp.log1p(jnp.exp(less - more) - jnp.exp(-more))
    return jnp.where(near, -jnp.log1p(-jnp.where(near, both, 0.0)), far) / theta
