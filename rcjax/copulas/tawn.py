"""Tawn's copula: upper tail dependence, asymmetric in its margins."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.numerics import divide, softplus
from rcjax.copulas.base import ClosedForm, TailDependence, nodes, param
from rcjax.copulas.unit import Unit


class Tawn(ClosedForm):
    """C(u, v) = u^{1−α} v^{1−β} exp(−((−α log u)^θ + (−β log v)^θ)^{1/θ}), θ ≥ 1, 0 ≤ α, β ≤ 1: not exchangeable.

    α = β = 1 is Gumbel's; α = 0, β = 0 or θ = 1 is independence. Strong dependence is a ridge beside the diagonal,
    along v^β = u^α. Formulas are in log-space, with s = −α log u, t = −β log v, w = (s^θ + t^θ)^{1/θ}. Tawn (1988),
    Bivariate extreme value theory: models and estimation.

    >>> round(float(Tawn(3.0, 0.5, 0.9).tau()), 4), float(Tawn(2.0, 1.0, 1.0).tau())
    (0.3674, 0.5)
    """

    exchangeable: ClassVar[bool] = False

    theta: jax.Array | float = param(2.0, support=(1.0, float("inf")))
    alpha: jax.Array | float = param(0.7, support=(0.0, 1.0))
    beta: jax.Array | float = param(0.7, support=(0.0, 1.0))

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """C = u v e^g and S = (1 − u)(1 − v) + u v (e^g − 1), with g = s + t − w."""
        gain = self._by_size(u, v)[0]
        above = u.complement * v.complement + u.value * v.value * jnp.expm1(gain)
        return jnp.exp(gain + u.log + v.log), above

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """log h = s − w + (1 − β) log v + log(1 − α + α (s/w)^{θ−1})."""
        _, _, by_s, by_t = self._by_size(u, v)
        s, t, shorter = -jnp.asarray(self.alpha) * u.log, -jnp.asarray(self.beta) * v.log, by_s < by_t
        growth = jnp.where(shorter, s, t) * jnp.expm1(jnp.where(shorter, by_s, by_t))  # w less the larger one
        rise = growth + jnp.where(shorter, 0.0, t - s)
        base, power = (1 - jnp.asarray(self.beta)) * v.log - rise, (self.theta - 1) * by_s
        log_h = base + _log_mixed(self.alpha, power)
        # At α = 1 the product has a slope in α even if (s/w)^{θ−1} underflows; its logarithm has none.
        h = jnp.exp(base) * (1 - self.alpha + self.alpha * jnp.exp(-power))
        high = log_h > -1.0
        above = -jnp.expm1(jnp.where(high, log_h, -1.0))
        return Unit(jnp.where(h > 1, 1.0, h), jnp.where(above < 0, 0.0, jnp.where(high, above, 1 - h)))

    def two_sided_conditional_on_v(self, u: Unit, v: Unit) -> Unit:
        """∂C/∂v, by exchanging α with β and u with v."""
        return Tawn(self.theta, self.beta, self.alpha).two_sided_conditional(v, u)

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """log c = g + log(A B + (θ − 1) α β (s t / w²)^{θ−1} / w), with A = 1 − α + α (s/w)^{θ−1}, and B like it."""
        gain, log_w, by_s, by_t = self._by_size(u, v)
        powers = (self.theta - 1) * by_s, (self.theta - 1) * by_t
        apart = _log_mixed(self.alpha, powers[0]) + _log_mixed(self.beta, powers[1])
        together = _log(self.alpha) + _log(self.beta) - powers[0] - powers[1] - log_w
        return gain + apart + jnp.log1p((self.theta - 1) * jnp.exp(together - apart))

    def tail_dependence(self) -> TailDependence:
        """λ_L = 0 and λ_U = α + β − (α^θ + β^θ)^{1/θ}."""
        theta, alpha, beta = self._arrays()
        less, more = jnp.minimum(alpha, beta), jnp.maximum(alpha, beta)
        upper = less - more * jnp.expm1(softplus(theta * (_log(less) - _log(more))) / theta)
        return TailDependence(jnp.zeros_like(upper), upper)

    def tau(self) -> jax.Array:
        """Kendall's τ = (1 − 1/θ) ∫₀¹ dp / (1 + (1/α − 1)(1 − p)^{1/θ} + (1/β − 1) p^{1/θ}).

        It follows from ∫ t (1 − t) A″/A dt for C = exp(−(x + y) A(y/(x + y))) (Ghoudi, Khoudraji & Rivest 1998), by
        substituting p = t^θ/(s^θ + t^θ).
        """
        node, weight = nodes()
        theta, alpha, beta = (value[..., None] for value in self._arrays())
        below = (1 - alpha) * beta * (1 - node) ** (1 / theta) + (1 - beta) * alpha * node ** (1 / theta)
        return (1 - 1 / theta[..., 0]) * (divide(alpha * beta, alpha * beta + below) @ weight)

    @classmethod
    def _others_at(cls, tau: jax.Array) -> dict[str, Any]:
        """α = β such that the largest τ, α/(2 − α) at θ = ∞, is (1 + τ)/2."""
        tau = jnp.maximum(tau, 0.0)
        share = 2 * (1 + tau) / (3 + tau)
        return {"alpha": share, "beta": share}

    def _arrays(self) -> list[jax.Array]:
        return [jnp.asarray(value, jnp.result_type(float)) for value in (self.theta, self.alpha, self.beta)]

    def _by_size(self, u: Unit, v: Unit) -> tuple[jax.Array, ...]:
        """(g = s + t − w, log w, log(w/s), log(w/t))."""
        log_s, log_t = _log(self.alpha) + jnp.log(-u.log), _log(self.beta) + jnp.log(-v.log)
        s, t = -jnp.asarray(self.alpha) * u.log, -jnp.asarray(self.beta) * v.log
        swap = log_s > log_t
        less, more = jnp.where(swap, t, s), jnp.where(swap, s, t)
        apart = jnp.where(swap, log_s - log_t, log_t - log_s)
        growth = softplus(-self.theta * apart) / self.theta  # log(w/the larger one)
        by_s, by_t = growth + jnp.where(swap, 0.0, apart), growth + jnp.where(swap, apart, 0.0)
        return less - more * jnp.expm1(growth), jnp.where(swap, log_s, log_t) + growth, by_s, by_t


def _log(share: jax.Array | float) -> jax.Array:
    """log of a share, with 0 replaced by the smallest number."""
    share = jnp.asarray(share, jnp.result_type(float))
    return jnp.log(jnp.maximum(share, jnp.finfo(share.dtype).tiny))


def _log_mixed(share: jax.Array | float, k: jax.Array) -> jax.Array:
    """log(1 − α + α e^{−k}) for k ≥ 0, finite at α = 1 even if e^{−k} underflows."""
    rest = 1 - jnp.asarray(share, jnp.result_type(float))
    far = -0.9 * float(np.log(jnp.finfo(rest.dtype).tiny))
    near = jnp.log(rest + share * jnp.exp(-jnp.minimum(k, far)))
    most = _log(share) - jnp.maximum(k, far)
    mixed = jnp.where(rest > 0, jnp.logaddexp(jnp.log(jnp.where(rest > 0, rest, 1.0)), most), most)
    return jnp.where(k < far, near, mixed)
