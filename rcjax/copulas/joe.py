"""The Joe copula: upper tail dependence, stronger than Gumbel's."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.numerics import divide, implicit_root, log1mexp, polygammas, softplus
from rcjax.copulas.base import ClosedForm, TailDependence, param
from rcjax.copulas.rotation import Rotation
from rcjax.copulas.unit import Unit, from_log

_NEWTON_STEPS = 12


class Joe(ClosedForm):
    """C(u, v) = 1 − (ū^θ + v̄^θ − ū^θ v̄^θ)^{1/θ} with ū = 1 − u, v̄ = 1 − v, θ ≥ 1; θ = 1 is independence.

    Formulas are in log-space, with a = θ log ū, b = θ log v̄ and s = ū^θ + v̄^θ − ū^θ v̄^θ. Nelsen (2006), family
    4.2.6.

    >>> round(float(Joe(2.0).tau()), 4)
    0.3551
    """

    theta: jax.Array | float = param(2.0, support=(1.0, float("inf")))

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """C = 1 − s^{1/θ} and S = ū + v̄ − s^{1/θ}."""
        a, b = self.theta * u.log_complement, self.theta * v.log_complement
        greater = jnp.maximum(u.complement, v.complement)
        less = jnp.minimum(u.complement, v.complement)
        # The order of u and v is taken once: at u = v the smaller of two growths would be chosen by rounding.
        growth = _growth(jnp.maximum(a, b), jnp.minimum(a, b)) / self.theta
        return -jnp.expm1(_log_s(a, b) / self.theta), less - greater * jnp.expm1(growth)

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """log h = log(1 − v̄^θ) − (1 − 1/θ) log(s / ū^θ)."""
        a, b = self.theta * u.log_complement, self.theta * v.log_complement
        return from_log(log1mexp(b) - (1 - 1 / jnp.asarray(self.theta)) * _growth(a, b))

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """log c = (1/θ − 2) log s + (1 − 1/θ)(a + b) + log(θ − 1 + s)."""
        theta = jnp.asarray(self.theta)
        a, b = theta * u.log_complement, theta * v.log_complement
        log_s = _log_s(a, b)
        return (1 / theta - 2) * log_s + (1 - 1 / theta) * (a + b) + jnp.log(theta - 1 + jnp.exp(log_s))

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """Solve log h = log p for −b, in which log h is concave and increasing, by Newton's method."""
        theta = jnp.asarray(self.theta, jnp.result_type(float))
        solve = jnp.vectorize(_solve_inverse)
        b = solve(theta, theta * u.log_complement, p.log, p.log_complement)
        return from_log(b / theta).flipped

    def tail_dependence(self) -> TailDependence:
        """λ_L = 0 and λ_U = 2 − 2^(1/θ)."""
        upper = 2 - 2 ** (1 / jnp.asarray(self.theta))
        return TailDependence(jnp.zeros_like(upper), upper)

    def tau(self) -> jax.Array:
        """Kendall's τ = 1 − (2/θ) (ψ(1 + 2/θ) − ψ(2)) / (2/θ − 1), the quotient as the mean of ψ′ in between."""
        theta = jnp.asarray(self.theta, jnp.result_type(float))
        nodes, weights = np.polynomial.legendre.leggauss(16)
        between = 2 + (2 / theta[..., None] - 1) * jnp.asarray((nodes + 1) / 2)
        return 1 - 2 / theta * (polygammas(between)[1] @ jnp.asarray(weights / 2))


class SurvivalJoe(Rotation, of=Joe, degrees=180):
    """The law of (1 − U, 1 − V) for a Joe (U, V): lower tail dependence."""

    theta: jax.Array | float = param(2.0, support=(1.0, float("inf")))


def _growth(a: jax.Array, b: jax.Array) -> jax.Array:
    """log(s / ū^θ) = log(1 + (v̄/ū)^θ (1 − ū^θ)), for a = θ log ū and b = θ log v̄."""
    return softplus(b - a + log1mexp(a))


def _log_s(a: jax.Array, b: jax.Array) -> jax.Array:
    below = jnp.expm1(a) * jnp.expm1(b)  # 1 − s, which is small where u and v are
    near = below < 0.5
    return jnp.where(near, jnp.log1p(-jnp.where(near, below, 0.0)), a + _growth(a, b))


def _solve_inverse(theta: jax.Array, a: jax.Array, log_p: jax.Array, log_rest: jax.Array) -> jax.Array:
    shape = 1 - 1 / theta
    log_k = log1mexp(a) - a  # log(ū^{−θ} − 1)

    def excess(drop: jax.Array) -> jax.Array:
        return log1mexp(-drop) - shape * softplus(log_k - drop) - log_p

    def newton(function: Callable[..., Any], _) -> jax.Array:
        # Either term alone gives a lower bound, from which Newton's method climbs a concave function without overshoot.
        ratio = divide(-log_p, shape, jnp.inf)
        second = jnp.where(ratio < jnp.inf, log_k - ratio - log1mexp(-jnp.minimum(ratio, 1e6)), -jnp.inf)
        start = jnp.maximum(-log_rest, second)

        def step(_, drop: jax.Array) -> jax.Array:
            value, slope = jax.jvp(function, (drop,), (jnp.ones_like(drop),))
            return drop - divide(value, slope)

        return lax.fori_loop(0, _NEWTON_STEPS, step, jnp.maximum(start, jnp.finfo(a.dtype).tiny))

    return -implicit_root(excess, newton, a.dtype)
