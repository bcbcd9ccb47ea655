"""The copula BB1: tail dependence at both ends, with a parameter for each."""

from typing import Self

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rcjax._core.numerics import log1mexp, softplus
from rcjax.copulas.base import ClosedForm, TailDependence, param
from rcjax.copulas.power_sum import log1p_over, log_expm1_over
from rcjax.copulas.unit import Unit, from_log


class BB1(ClosedForm):
    """C(u, v) = (1 + ((u^{−θ} − 1)^δ + (v^{−θ} − 1)^δ)^{1/δ})^{−1/θ}, θ ≥ 0, δ ≥ 1.

    δ = 1 is Clayton's, θ = 0 is Gumbel's. Formulas are in log-space, with x = −log u and y = −log v. Let
    X = (e^{θx} − 1)/θ, Y = (e^{θy} − 1)/θ and W = (X^δ + Y^δ)^{1/δ}; then −log C = log(1 + θ W)/θ. Joe (2014),
    Dependence Modeling with Copulas, section 4.17.

    >>> float(BB1(2.0, 1.0).tau()), float(BB1(0.0, 2.0).tau())
    (0.5, 0.5)
    """

    theta: jax.Array | float = param(0.5, support=(0.0, float("inf")))
    delta: jax.Array | float = param(1.5, support=(1.0, float("inf")))

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """C = u v e^g and S = (1 − u)(1 − v) + u v (e^g − 1), with g = x + y + log C."""
        gain, _, _ = self._by_size(u, v)
        above = u.complement * v.complement + u.value * v.value * jnp.expm1(gain)
        return jnp.exp(gain + u.log + v.log), above

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """log h = (1 + θ) log(C/u) − (δ − 1) log(W/X)."""
        theta, (x, log_x, _, log_y) = jnp.asarray(self.theta, jnp.result_type(float)), self._powers(u, v)
        by_x = softplus(self.delta * (log_y - log_x)) / self.delta
        return from_log(-(1 + theta) * _fall(theta, x, log_x, by_x) - (self.delta - 1) * by_x)

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """log c = (1 + θ) g − (δ − 1) log(W²/(X Y)) − log W + log(δ − 1 + (1 + θ) W/(1 + θ W))."""
        gain, log_w, apart = self._by_size(u, v)
        theta, delta = jnp.asarray(self.theta, jnp.result_type(float)), jnp.asarray(self.delta, jnp.result_type(float))
        share = jnp.exp(log_w - theta * log1p_over(theta, log_w))  # W/(1 + θ W)
        return (1 + theta) * gain - (delta - 1) * apart - log_w + jnp.log(delta - 1 + (1 + theta) * share)

    def tail_dependence(self) -> TailDependence:
        """λ_L = 2^{−1/(θ δ)} and λ_U = 2 − 2^{1/δ}."""
        product, delta = jnp.asarray(self.theta) * jnp.asarray(self.delta), jnp.asarray(self.delta)
        lower = jnp.where(product > 0, 2 ** (-1 / jnp.where(product > 0, product, 1.0)), 0.0)
        return TailDependence(lower, jnp.broadcast_to(2 - 2 ** (1 / delta), lower.shape))

    def tau(self) -> jax.Array:
        """Kendall's τ = 1 − 2/(δ (θ + 2))."""
        return 1 - 2 / (jnp.asarray(self.delta) * (jnp.asarray(self.theta) + 2))

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """δ = 1 + θ/2 = (1 − τ)^{−1/2}, half of the dependence by each parameter; independence where τ ≤ 0."""
        delta = 1 / jnp.sqrt(1 - jnp.maximum(cls._within_reach(tau), 0.0))
        return cls(2 * (delta - 1), delta)

    def _powers(self, u: Unit, v: Unit) -> tuple[jax.Array, ...]:
        """(x, log X, y, log Y)."""
        x, y, theta = -u.log, -v.log, jnp.asarray(self.theta, jnp.result_type(float))
        return x, log_expm1_over(theta, x, jnp.log(x)), y, log_expm1_over(theta, y, jnp.log(y))

    def _by_size(self, u: Unit, v: Unit) -> tuple[jax.Array, ...]:
        """(g = x + y + log C, log W, log(W²/(X Y)))."""
        x, log_x, y, log_y = self._powers(u, v)
        theta, swap = jnp.asarray(self.theta, jnp.result_type(float)), x > y
        less, more, log_more = jnp.where(swap, y, x), jnp.where(swap, x, y), jnp.where(swap, log_x, log_y)
        apart = jnp.where(swap, log_x - log_y, log_y - log_x)
        growth = softplus(-self.delta * apart) / self.delta  # log(W/the larger one)
        return less - _fall(theta, more, log_more, growth), log_more + growth, apart + 2 * growth


def _fall(theta: jax.Array, x: jax.Array, log_x: jax.Array, growth: jax.Array) -> jax.Array:
    """log(u/C) = log(1 + θ X/(1 + θ X) (W/X − 1))/θ, for growth = log(W/X)."""
    # A growth of 0 has no logarithm.
    growth = jnp.maximum(growth, jnp.finfo(growth.dtype).tiny)
    return log1p_over(theta, log_x - theta * x + growth + log1mexp(-growth))
