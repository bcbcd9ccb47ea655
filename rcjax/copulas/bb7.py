"""The copula BB7: tails at both ends, Clayton's below and Joe's above."""

from typing import Any

import jax
import jax.numpy as jnp

from rcjax._core.numerics import log1mexp, log1p_ratio, softplus
from rcjax.copulas.base import ClosedForm, TailDependence, nodes, param
from rcjax.copulas.clayton import Clayton
from rcjax.copulas.power_sum import log1p_over, log_expm1_over
from rcjax.copulas.unit import Unit, from_log

_FAR = -30.0


class BB7(ClosedForm):
    """C(u, v) = 1 − (1 − C′(1 − ū^θ, 1 − v̄^θ))^{1/θ} with ū = 1 − u, v̄ = 1 − v and C′ Clayton's of δ; θ ≥ 1, δ ≥ 0.

    θ = 1 is Clayton's, δ = 0 is Joe's. Formulas are in log-space, with a = θ log ū and b = θ log v̄. Joe (2014),
    Dependence Modeling with Copulas, section 4.21.

    >>> round(float(BB7(1.0, 2.0).tau()), 4), round(float(BB7(2.0, 0.0).tau()), 4)
    (0.5, 0.3551)
    """

    theta: jax.Array | float = param(1.5, support=(1.0, float("inf")))
    delta: jax.Array | float = param(0.5, support=(0.0, float("inf")))

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """C = 1 − s^{1/θ} and S = ū + v̄ − s^{1/θ}, with s = 1 − C′."""
        a, b = self._logs(u, v)
        greater, less = jnp.maximum(u.complement, v.complement), jnp.minimum(u.complement, v.complement)
        growth = self._growth(jnp.maximum(a, b), jnp.minimum(a, b)) / self.theta
        return -jnp.expm1(self._log_s(a, b) / self.theta), less - greater * jnp.expm1(growth)

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """log h = (1 + δ) log(C′/(1 − ū^θ)) − (1 − 1/θ) log(s/ū^θ)."""
        a, b = self._logs(u, v)
        fall = log1p_over(jnp.asarray(self.delta), self._log_odds(a, b))
        return from_log(-(1 + self.delta) * fall - (1 - 1 / jnp.asarray(self.theta)) * self._growth(a, b))

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """log c = (1 − 1/θ)(a + b) + (1/θ − 2) log s + log(c′/(1 + δ)) + log(θ − 1 + (1 + θ δ) s), c′ of Clayton's."""
        theta, (a, b) = jnp.asarray(self.theta, jnp.result_type(float)), self._logs(u, v)
        log_s = self._log_s(a, b)
        inner = Clayton(self.delta).two_sided_log_density(_turned(a), _turned(b)) - jnp.log1p(jnp.asarray(self.delta))
        last = jnp.log(theta - 1 + (1 + theta * self.delta) * jnp.exp(log_s))
        return (1 - 1 / theta) * (a + b) + (1 / theta - 2) * log_s + inner + last

    def tail_dependence(self) -> TailDependence:
        """λ_L = 2^{−1/δ} and λ_U = 2 − 2^{1/θ}."""
        theta, delta = jnp.asarray(self.theta), jnp.asarray(self.delta)
        lower = jnp.where(delta > 0, 2 ** (-1 / jnp.where(delta > 0, delta, 1.0)), 0.0)
        upper = 2 - 2 ** (1 / theta)
        return TailDependence(*jnp.broadcast_arrays(lower, upper))

    def tau(self) -> jax.Array:
        """Kendall's τ = 1 − 4 ∫₀¹ z (1 − z^θ) (1 − (1 − z^θ)^δ)/(δ z^θ) dz / θ, from the generator."""
        node, weight = nodes()
        theta, delta = (jnp.asarray(value, jnp.result_type(float))[..., None] for value in (self.theta, self.delta))
        power = jnp.exp(theta * jnp.log(node))  # z^θ
        few = power < 1e-9
        log_rest = jnp.log1p(-jnp.where(few, 0.5, power))
        # (1 − (1 − z^θ)^δ)/δ, or its limit at δ = 0.
        fall = -log_rest * jnp.exp(log_expm1_over(delta, -log_rest, 0.0) + delta * log_rest)
        integrand = node * (1 - power) * jnp.where(few, 1.0, fall / jnp.where(few, 1.0, power))
        return 1 - 4 * (integrand @ weight) / jnp.asarray(self.theta)

    @classmethod
    def _others_at(cls, tau: jax.Array) -> dict[str, Any]:
        """δ of the Clayton copula with τ/2; `from_tau` then solves for θ."""
        half = jnp.maximum(tau, 0.0) / 2
        return {"delta": 2 * half / (1 - half)}

    def _logs(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        return self.theta * u.log_complement, self.theta * v.log_complement

    def _log_odds(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """log K for −log(C′/(1 − ū^θ)) = log(1 + δ K)/δ: K = ((1 − v̄^θ)^{−δ} − 1) (1 − ū^θ)^δ/δ."""
        delta = jnp.asarray(self.delta, jnp.result_type(float))
        return delta * log1mexp(a) + log_expm1_over(delta, -log1mexp(b), _log_of_minus_log1mexp(b))

    def _growth(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """log(s/ū^θ) = log(1 + (1 − ū^θ)(1 − C′/(1 − ū^θ))/ū^θ)."""
        delta, log_k = jnp.asarray(self.delta, jnp.result_type(float)), self._log_odds(a, b)
        few = log_k < _FAR
        fall = log1p_over(delta, jnp.where(few, 0.0, log_k))
        log_share = jnp.where(few, log_k - (1 + delta) / 2 * jnp.exp(jnp.where(few, log_k, 0.0)), log1mexp(-fall))
        return softplus(log1mexp(a) + log_share - a)

    def _log_s(self, a: jax.Array, b: jax.Array) -> jax.Array:
        below, _ = Clayton(self.delta).two_sided_cdf(_turned(a), _turned(b))
        near = below < 0.5
        far = jnp.maximum(a, b) + self._growth(jnp.maximum(a, b), jnp.minimum(a, b))
        return jnp.where(near, jnp.log1p(-jnp.where(near, below, 0.0)), far)


def _turned(a: jax.Array) -> Unit:
    """1 − ū^θ, for a = θ log ū."""
    return Unit(-jnp.expm1(a), jnp.exp(a))


def _log_of_minus_log1mexp(b: jax.Array) -> jax.Array:
    """log(−log(1 − e^b)) for b < 0; it tends to b as b falls."""
    near = b < -1.0
    z = jnp.exp(jnp.where(near, b, -1.0))
    return jnp.where(near, b + jnp.log(log1p_ratio(-z)), jnp.log(-log1mexp(jnp.where(near, -0.5, b))))
