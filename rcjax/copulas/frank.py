"""The Frank copula: dependence of either sign, without tails."""

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.numerics import log1mexp, softplus
from rcjax.copulas.base import param
from rcjax.copulas.closed import ClosedForm
from rcjax.copulas.unit import Unit, from_logit, with_flips


class Frank(ClosedForm):
    """C(u, v) = −log(1 + (e^{−θu} − 1)(e^{−θv} − 1)/(e^{−θ} − 1))/θ, any θ; θ = 0 is independence.

    In log-space and in terms of e(x) = (1 − e^{−x})/x, so that nothing is divided by θ: the formulas are as smooth
    at θ = 0 as the family is. The copula is its own survival copula. Nelsen (2006), family 4.2.5.

    >>> round(float(Frank(5.0).tau()), 4), round(float(Frank(-5.0).tau()), 4)
    (0.4567, -0.4567)
    """

    theta: jax.Array | float = param(5.0, support=(-float("inf"), float("inf")))

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """C(u, v), and S(u, v) = C(1 − u, 1 − v)."""
        theta = _array(self.theta)
        below, above = _cdf(theta, *with_flips(u, v, theta))
        return below, above

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """h is the share of the first of two terms in their sum."""
        theta = _array(self.theta)
        first, second = _two_terms(theta, u, v, *_log_e(theta * v.value, theta * v.complement))
        return from_logit(first - second)

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """log c = log e(θ) − θ (u + v) − 2 log(the sum of the two terms of h)."""
        theta = _array(self.theta)
        whole, *parts = _log_e(theta, theta * v.value, theta * v.complement)
        return whole - theta * (u.value + v.value) - 2 * jnp.logaddexp(*_two_terms(theta, u, v, *parts))

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """θ v = log(1 + e^q) − log(1 + e^{q − θ}) with q = logit p + θ u."""
        theta = _array(self.theta)
        logit = p.log - p.log_complement
        weak = jnp.abs(theta) < 1
        divisor = jnp.where(weak, 1.0, theta)

        def solve(q: jax.Array) -> jax.Array:
            share = jax.nn.sigmoid(q) * jnp.exp(_log_e(jnp.where(weak, theta, 0.0))[0])
            far = (softplus(q) - softplus(q - theta)) / divisor
            return jnp.where(weak, share * _log_ratio(jnp.where(weak, theta * share, 0.0)), far)

        return Unit(solve(logit + theta * u.value), solve(theta * u.complement - logit))

    def tau(self) -> jax.Array:
        """Kendall's τ = 1 − 4 (1 − D₁(θ))/θ, with D₁ Debye's function."""
        nodes, weights = np.polynomial.legendre.leggauss(64)
        # (1 − D₁)/θ = ∫₀¹ s φ(θs) ds with φ(z) = (1 − z/(e^z − 1))/z, which is ½ − z/12 + … near 0.
        s = (nodes + 1) / 2
        z = _array(self.theta)[..., None] * jnp.asarray(s)
        small = jnp.abs(z) < 0.1
        safe = jnp.where(small, 1.0, z)
        series = 0.5 - z / 12 * (1 - z**2 / 60 * (1 - z**2 / 42 * (1 - z**2 / 40)))
        phi = jnp.where(small, series, (1 - safe / jnp.expm1(safe)) / safe)
        return 1 - 4 * (phi @ jnp.asarray(s * weights / 2))

    def tail_dependence(self) -> tuple[jax.Array, jax.Array]:
        """(lower, upper) tail dependence: none."""
        none = jnp.zeros_like(_array(self.theta))
        return none, none


def _array(theta: jax.Array | float) -> jax.Array:
    return jnp.asarray(theta, jnp.result_type(float))


def _cdf(theta: jax.Array, u: Unit, v: Unit) -> jax.Array:
    whole, of_u, of_v, of_rest = _log_e(theta, theta * u.value, theta * v.value, theta * v.complement)
    log_q = u.log + v.log + of_u + of_v - whole
    # C = −log(1 − θq)/θ. Near 0 by what is smooth in θ; far off, 1 − θq is the sum of the two terms over e(θ).
    near = jnp.abs(theta) * jnp.exp(log_q) < 0.5
    q = jnp.exp(jnp.where(near, log_q, -1.0))
    size = jnp.where(near, 1.0, jnp.abs(theta))
    negative = softplus(jnp.log(size) + log_q) / size
    positive = (whole - jnp.logaddexp(*_two_terms(theta, u, v, of_v, of_rest))) / size
    close = q * _log_ratio(jnp.where(near, theta * q, 0.0))
    return jnp.where(near, close, jnp.where(theta < 0, negative, positive))


def _two_terms(theta: jax.Array, u: Unit, v: Unit, of_v: jax.Array, of_rest: jax.Array) -> tuple[jax.Array, jax.Array]:
    """log of e^{−θu} v e(θv) and of e^{−θv} (1 − v) e(θ(1 − v)), whose shares of their sum are h and 1 − h."""
    return v.log + of_v - theta * u.value, v.log_complement + of_rest - theta * v.value


def _log_e(*arguments: jax.Array) -> jax.Array:
    """log((1 − e^{−x})/x) = log(sinh(x/2)/(x/2)) − x/2 of each, for x of either sign."""
    # Stacked, they are one program: most of what a small formula costs is its compilation.
    x = jnp.stack(jnp.broadcast_arrays(*arguments))
    y = jnp.abs(x) / 2
    small = y < 0.25
    square = jnp.where(small, x * x / 4, 0.0)
    inner = 1 - square * 4 / 63 * (1 - square * 3 / 40 * (1 - square * 8 / 99))
    series = square / 6 * (1 - square / 30 * inner)
    safe = jnp.where(small, 1.0, y)
    return jnp.where(small, series, safe + log1mexp(-2 * safe) - jnp.log(2 * safe)) - x / 2


def _log_ratio(r: jax.Array) -> jax.Array:
    """−log(1 − r)/r for r < 1, smooth at 0."""
    small = jnp.abs(r) < 1e-3
    safe = jnp.where(small, 0.5, r)
    series = 1 + r * (1 / 2 + r * (1 / 3 + r * (1 / 4 + r * (1 / 5 + r / 6))))
    return jnp.where(small, series, -jnp.log1p(-safe) / safe)
