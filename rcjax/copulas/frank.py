"""The Frank copula: dependence of either sign, without tails."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.numerics import log1p_ratio, polynomial, softplus
from rcjax.copulas.base import RadialForm, TailDependence, param
from rcjax.copulas.unit import Unit, turned

_SERIES = [(-1) ** power / math.factorial(power + 1) for power in range(15)]


class Frank(RadialForm):
    """C(u, v) = −log(1 + (e^{−θu} − 1)(e^{−θv} − 1)/(e^{−θ} − 1))/θ, any θ; θ = 0 is independence.

    For |θ| < ½ the formulas use e(x) = (1 − e^{−x})/x and never divide by θ, so they are smooth at θ = 0. The copula
    is its own survival copula. Nelsen (2006), family 4.2.5.

    >>> round(float(Frank(5.0).tau()), 4), round(float(Frank(-5.0).tau()), 4)
    (0.4567, -0.4567)
    """

    theta: jax.Array | float = param(5.0, support=(-float("inf"), float("inf")))

    def lower_cdf(self, u: Unit, v: Unit) -> jax.Array:
        """C = base ± log(1 + y)/|θ|; base and y are chosen against cancellation (`_strong_cdf`)."""
        theta, weak, strength, slight = _strength(self.theta)
        positive, (base, y) = theta > 0, _strong_cdf(strength, theta > 0, u, v)
        q = u.value * v.value * _e(slight * u.value) * _e(slight * v.value) / _e(slight)
        y = jnp.where(weak, -slight * q, y)
        return jnp.where(weak, 0.0, base) + jnp.where(weak, q, jnp.where(positive, -y, y) / strength) * log1p_ratio(y)

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """h = the first of `_two_terms` over their sum."""
        first, second, _ = _two_terms(self.theta, u, v)
        return Unit(first / (first + second), second / (first + second))

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """log c = log e(θ) − θ (u + v) − 2 log(the sum of `_two_terms`)."""
        first, second, log_numerator = _two_terms(self.theta, u, v)
        return log_numerator - 2 * jnp.log(first + second)

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """θ v = log(1 + e^q) − log(1 + e^{q − θ}) with q = logit p + θ u."""
        theta, weak, _, slight = _strength(self.theta)
        logit = p.log - p.log_complement

        def solve(q: jax.Array) -> jax.Array:
            share = jax.nn.sigmoid(q) * _e(slight)
            far = (softplus(q) - softplus(q - theta)) / jnp.where(weak, 1.0, theta)
            return jnp.where(weak, share * log1p_ratio(-slight * share), far)

        return Unit(solve(logit + theta * u.value), solve(theta * u.complement - logit))

    def tail_dependence(self) -> TailDependence:
        """λ_L = λ_U = 0."""
        nothing = jnp.zeros_like(jnp.asarray(self.theta))
        return TailDependence(nothing, nothing)

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


def _array(theta: jax.Array | float) -> jax.Array:
    return jnp.asarray(theta, jnp.result_type(float))


def _strength(theta: jax.Array | float) -> tuple[jax.Array, ...]:
    """(θ, whether |θ| < ½, |θ| where strong, θ where weak); the last two are harmless numbers elsewhere."""
    theta = _array(theta)
    weak = jnp.abs(theta) < 0.5
    return theta, weak, jnp.where(weak, 1.0, jnp.abs(theta)), jnp.where(weak, theta, 0.0)


def _e(x: jax.Array) -> jax.Array:
    """(1 − e^{−x})/x for |x| ≤ ½."""
    return polynomial(_SERIES, x)


def _strong_cdf(strength: jax.Array, positive: jax.Array, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
    """(base, y) with C = base ∓ log(1 + y)/|θ|, − for θ > 0, where −½ ≤ y ≤ 1.

    For θ > 0 C is −log(1 − r)/θ or, for r near 1, counted from min(u, v); for θ < 0 from max(u + v − 1, 0).
    """
    fall_u, fall_v, fall_1 = (-jnp.expm1(-strength * z) for z in (u.value, v.value, 1.0))
    r = fall_u * fall_v / fall_1
    # Choices in place of `min` and `max`, whose slope at a tie is the mean of both sides.
    lower, near, over = u.value <= v.value, r < 0.5, u.value > v.complement
    apart = jnp.where(lower, v.value - u.value, u.value - v.value)
    rest_of_v = -jnp.expm1(-strength * jnp.where(lower, v.complement, u.complement))
    both = jnp.where(lower, fall_v, fall_u) + jnp.exp(-strength * apart) * rest_of_v
    up = jnp.where(near, 0.0, jnp.where(lower, u.value, v.value)), jnp.where(near, -r, (both - fall_1) / fall_1)
    excess = u.value - v.complement
    beyond, short = jnp.where(over, excess, 0.0), jnp.where(over, 0.0, excess)
    down = beyond, r * jnp.exp(strength * short) + jnp.expm1(-strength * beyond)
    return jnp.where(positive, up[0], down[0]), jnp.where(positive, up[1], down[1])


def _two_terms(theta: jax.Array | float, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(e^{−θu} v e(θv), e^{−θv} (1 − v) e(θ(1 − v)), log(c times the square of their sum)).

    Strong θ scales both terms by θ e^{θ min(u, v)}, so that the larger exponential is 1; θ < 0 takes 1 − v for v.
    """
    theta, weak, strength, slight = _strength(theta)
    near = jnp.exp(-slight * u.value) * v.value * _e(slight * v.value)
    far = jnp.exp(-slight * v.value) * v.complement * _e(slight * v.complement)
    other = turned(theta < 0, v)
    lower = u.value <= other.value
    apart = jnp.where(lower, other.value - u.value, u.value - other.value)
    fall = jnp.exp(-strength * apart)
    strong_first = jnp.where(lower, 1.0, fall) * -jnp.expm1(-strength * other.value)
    strong_second = jnp.where(lower, fall, 1.0) * -jnp.expm1(-strength * other.complement)
    first = jnp.where(weak, near, jnp.where(theta < 0, strong_second, strong_first))
    second = jnp.where(weak, far, jnp.where(theta < 0, strong_first, strong_second))
    log_scale = jnp.log(jnp.where(weak, _e(slight), -strength * jnp.expm1(-strength)))
    return first, second, log_scale - jnp.where(weak, slight * (u.value + v.value), strength * apart)
