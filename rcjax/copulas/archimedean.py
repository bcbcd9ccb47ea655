"""Archimedean copulas of one parameter: Clayton, Gumbel, Joe, Frank, and rotations."""

import math
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from rcjax._core.numerics import (
    Unit,
    as_floats,
    divide,
    flipped_where,
    implicit_root,
    log1mexp,
    log1p_ratio,
    polygammas,
    polynomial,
    softplus,
    unit_from_log,
)
from rcjax.copulas.base import (
    ClosedForm,
    RadiallySymmetric,
    Rotation,
    TailDependence,
    no_tail_dependence,
    param,
)

_NEWTON_STEPS = 12  # of the inverses of Gumbel and Joe
_SERIES = [(-1) ** power / math.factorial(power + 1) for power in range(15)]  # of Frank's (1 − e^{−x})/x
_SERIES_BELOW = 1e-4  # Clayton's θ times the larger logarithm, below which a series in θ avoids dividing by θ


class Clayton(ClosedForm):
    """The Clayton copula C(u, v) = (u^{−θ} + v^{−θ} − 1)^{−1/θ}, θ ≥ 0; θ = 0 is independence.

    Formulas are in log-space, with x = −log u and y = −log v. Nelsen (2006), family 4.2.1.

    >>> float(Clayton(2.0).tau())
    0.5
    """

    theta: jax.Array | float = param(2.0, support=(0.0, float("inf")))

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """Return C = u v e^g and S = (1 − u)(1 − v) + u v (e^g − 1)."""
        return cdf_of_gain(u, v, _gain(as_floats(self.theta), -u.log, -v.log))

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """Return h with log h = −(1 + 1/θ) log(1 + (v^{−θ} − 1) u^θ)."""
        theta = as_floats(self.theta)
        return unit_from_log(-(1 + theta) * _log_sum(theta, -u.log, -v.log))

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """Return log c = log(1 + θ) + (2θ + 1) g − θ (x + y)."""
        theta, x, y = as_floats(self.theta), -u.log, -v.log
        return jnp.log1p(theta) + (2 * theta + 1) * _gain(theta, x, y) - theta * (x + y)

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """Return v with θ y = log(1 + (p^{−θ/(1 + θ)} − 1) u^{−θ})."""
        theta = as_floats(self.theta)
        return unit_from_log(-_log_sum(theta, u.log, -p.log / (1 + theta)))

    def tail_dependence(self) -> TailDependence:
        """Return λ_L = 2^(−1/θ), 0 at θ = 0, and λ_U = 0."""
        lower = clayton_lower_tail(self.theta)
        return TailDependence(lower, jnp.zeros_like(lower))

    def tau(self) -> jax.Array:
        """Return Kendall's τ = θ / (θ + 2)."""
        theta = jnp.asarray(self.theta)
        return theta / (theta + 2)

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """Return the member with θ = 2τ / (1 − τ), held between 0 (τ ≤ 0: independence) and 98 (τ = 0.98)."""
        tau = jnp.maximum(cls._clip_tau(tau), 0.0)
        return cls(2 * tau / (1 - tau))


def cdf_of_gain(u: Unit, v: Unit, gain: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return C = u v e^g and S = (1 − u)(1 − v) + u v (e^g − 1)."""
    above = u.complement * v.complement + u.value * v.value * jnp.expm1(gain)
    return jnp.exp(gain + u.log + v.log), above


def clayton_lower_tail(theta: ArrayLike) -> jax.Array:
    """Return λ_L = 2^(−1/θ) of a Clayton copula, 0 at θ = 0."""
    theta = jnp.asarray(theta)
    return jnp.where(theta > 0, 2 ** (-1 / jnp.where(theta > 0, theta, 1.0)), 0.0)


class SurvivalClayton(Rotation, family=Clayton, degrees=180):
    """The law of (1 − U, 1 − V) for a Clayton (U, V): upper tail dependence."""

    theta: jax.Array | float


def _log_sum(theta: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return log(1 + (e^{θy} − 1) e^{−θx})/θ, which is y at θ = 0."""
    # In log-space the slope in θ is a difference of two numbers of order 1/θ. For small θ the formula is therefore y
    # less the gain; for large θ that difference would cancel.
    size = theta * jnp.maximum(jnp.abs(x), y)
    tiny, near = size < _SERIES_BELOW, size < 0.5
    divisor = jnp.where(tiny, 1.0, theta)
    fall = jnp.expm1(-divisor * y)
    close = y + jnp.log1p(-jnp.expm1(-divisor * jnp.where(near & ~tiny, x, 0.0)) * fall) / divisor
    far = softplus(divisor * (y - x) + jnp.log(-fall)) / divisor
    return jnp.where(tiny, y - _first_terms(jnp.where(tiny, theta, 0.0), x, y), jnp.where(near, close, far))


def _gain(theta: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return g = log(C / (u v)) = −log(1 − (1 − u^θ)(1 − v^θ)) / θ, which is 0 at θ = 0."""
    tiny = theta * jnp.maximum(x, y) < _SERIES_BELOW
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
    """Return the gain to the third power of θ; the remainder is θ⁴ times a polynomial of degree 5."""
    return theta * x * y * (1 - theta * ((x + y) / 2 - theta * ((x * x + y * y) / 6 + 0.75 * x * y)))


def _upper_tail(self: Any) -> TailDependence:
    """Return λ_L = 0 and λ_U = 2 − 2^(1/θ)."""
    upper = 2 - 2 ** (1 / jnp.asarray(self.theta))
    return TailDependence(jnp.zeros_like(upper), upper)


class Gumbel(ClosedForm):
    """The Gumbel copula C(u, v) = exp(−((−log u)^θ + (−log v)^θ)^{1/θ}), θ ≥ 1; θ = 1 is independence.

    Formulas are in log-space, with x = −log u, y = −log v and w = (x^θ + y^θ)^{1/θ}: θ = 50 near (1, 1) neither
    overflows nor loses digits. Nelsen (2006), An Introduction to Copulas, family 4.2.4.

    >>> float(Gumbel(2.0).tau())
    0.5
    """

    theta: jax.Array | float = param(2.0, support=(1.0, float("inf")))

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """Return C = e^{−w}, and S = (1 − u)(1 − v) + u v (e^{x + y − w} − 1)."""
        less, more, _, d = self._by_size(u, v)
        growth = jnp.expm1(d)
        above = u.complement * v.complement + u.value * v.value * jnp.expm1(less - more * growth)
        return jnp.exp(-more * (1 + growth)), above

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """Return h with log h = −x expm1(d) − (θ − 1) d with d = log(1 + (y/x)^θ)/θ."""
        x, y = -u.log, -v.log
        d = softplus(self.theta * (jnp.log(y) - jnp.log(x))) / self.theta
        return unit_from_log(-x * jnp.expm1(d) - (self.theta - 1) * d)

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """Return log c = x + y − w − (θ − 1)(d + d′) + log(w + θ − 1) − log w, with d′ the d of (y, x).

        The smaller of d and d′ is log(w/max(x, y)), and the other is larger by |log(y/x)|.
        """
        less, more, apart, d = self._by_size(u, v)
        growth = jnp.expm1(d)
        slope = less - more * growth - (self.theta - 1) * (apart + 2 * d)
        return slope + jnp.log(more * (1 + growth) + (self.theta - 1)) - (jnp.log(more) + d)

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """Solve x expm1(d) + (θ − 1) d + log p = 0, convex in d, by Newton's method."""
        x, log_p = -u.log, p.log
        # The root lies below the intercept of either term alone. From there convexity makes Newton's method converge.
        # Gradients come from the steps, not from the start, which has none at θ = 1.
        theta = self.theta
        d = jnp.minimum(jnp.log1p(-log_p / x), -log_p / jnp.maximum(theta - 1, jnp.finfo(x.dtype).tiny))
        d = lax.stop_gradient(d)

        def step(_, d: jax.Array) -> jax.Array:
            value = x * jnp.expm1(d) + (theta - 1) * d + log_p
            return jnp.maximum(d - value / (x * jnp.exp(d) + (theta - 1)), 0.0)

        # A loop, because unrolled steps compile for longer, and XLA repeats them for every use of the result.
        d = lax.fori_loop(0, _NEWTON_STEPS, step, d)
        scaled = theta * d
        log_ratio = scaled + jnp.log(-jnp.expm1(-jnp.maximum(scaled, jnp.finfo(d.dtype).tiny)))
        return unit_from_log(-x * jnp.exp(log_ratio / theta))

    def _by_size(self, u: Unit, v: Unit) -> tuple[jax.Array, ...]:
        """Return (min(x, y), max(x, y), |log(y/x)|, log(w/max(x, y)))."""
        x, y = -u.log, -v.log
        log_x, log_y = jnp.log(x), jnp.log(y)
        # One comparison orders all three: x and y may differ by a rounding that their logarithms do not show, and
        # separate minima would mix slopes of both sides.
        swap = x > y
        less, more = jnp.where(swap, y, x), jnp.where(swap, x, y)
        apart = jnp.where(swap, log_x - log_y, log_y - log_x)
        return less, more, apart, softplus(-self.theta * apart) / self.theta

    tail_dependence = _upper_tail

    def tau(self) -> jax.Array:
        """Return Kendall's τ = 1 − 1/θ."""
        return 1 - 1 / jnp.asarray(self.theta)

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """Return the member with θ = 1/(1 − τ), between 1 (τ ≤ 0: independence) and 50 (section 4.2 of the paper)."""
        return cls(1 / (1 - jnp.maximum(cls._clip_tau(tau), 0.0)))


class SurvivalGumbel(Rotation, family=Gumbel, degrees=180):
    """The law of (1 − U, 1 − V) for a Gumbel (U, V): lower tail dependence."""

    theta: jax.Array | float


class Joe(ClosedForm):
    """The Joe copula C(u, v) = 1 − (ū^θ + v̄^θ − ū^θ v̄^θ)^{1/θ}, θ ≥ 1; θ = 1 is independence.

    Here ū = 1 − u and v̄ = 1 − v. Formulas are in log-space, with a = θ log ū, b = θ log v̄ and s = ū^θ + v̄^θ − ū^θ v̄^θ.
    Nelsen (2006), family 4.2.6.

    >>> round(float(Joe(2.0).tau()), 4)
    0.3551
    """

    theta: jax.Array | float = param(2.0, support=(1.0, float("inf")))

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """Return C = 1 − s^{1/θ} and S = ū + v̄ − s^{1/θ}."""
        return cdf_of_s(self.theta, u, v, _joe_log_s, _joe_growth)

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """Return h with log h = log(1 − v̄^θ) − (1 − 1/θ) log(s / ū^θ)."""
        a, b = self.theta * u.log_complement, self.theta * v.log_complement
        return unit_from_log(log1mexp(b) - (1 - 1 / jnp.asarray(self.theta)) * _joe_growth(a, b))

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """Return log c = (1/θ − 2) log s + (1 − 1/θ)(a + b) + log(θ − 1 + s)."""
        theta = jnp.asarray(self.theta)
        a, b = theta * u.log_complement, theta * v.log_complement
        log_s = _joe_log_s(a, b)
        return (1 / theta - 2) * log_s + (1 - 1 / theta) * (a + b) + jnp.log(theta - 1 + jnp.exp(log_s))

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """Solve log h = log p for −b, in which log h is concave and increasing, by Newton's method."""
        theta = as_floats(self.theta)
        solve = jnp.vectorize(_solve_joe)
        b = solve(theta, theta * u.log_complement, p.log, p.log_complement)
        return unit_from_log(b / theta).flipped

    tail_dependence = _upper_tail

    def tau(self) -> jax.Array:
        """Return Kendall's τ = 1 − (2/θ) (ψ(1 + 2/θ) − ψ(2)) / (2/θ − 1), the quotient as the mean of ψ′ in between."""
        theta = as_floats(self.theta)
        nodes, weights = np.polynomial.legendre.leggauss(16)
        between = 2 + (2 / theta[..., None] - 1) * jnp.asarray((nodes + 1) / 2)
        return 1 - 2 / theta * (polygammas(between)[1] @ jnp.asarray(weights / 2))


class SurvivalJoe(Rotation, family=Joe, degrees=180):
    """The law of (1 − U, 1 − V) for a Joe (U, V): lower tail dependence."""

    theta: jax.Array | float


def cdf_of_s(
    theta: jax.Array | float, u: Unit, v: Unit, log_s: Callable[..., jax.Array], growth: Callable[..., jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Return C = 1 − s^{1/θ} and S = ū + v̄ − s^{1/θ}.

    Args:
        theta: θ.
        u, v: arguments of the copula.
        log_s, growth: log s and log(s/ū^θ), as functions of a = θ log ū and b = θ log v̄.
    """
    a, b = theta * u.log_complement, theta * v.log_complement
    # One comparison orders all: ranks may differ by a rounding that their logarithms do not show.
    swap = u.complement < v.complement
    greater, less = jnp.where(swap, v.complement, u.complement), jnp.where(swap, u.complement, v.complement)
    rise = growth(jnp.where(swap, b, a), jnp.where(swap, a, b)) / theta
    return -jnp.expm1(log_s(a, b) / theta), less - greater * jnp.expm1(rise)


def _joe_growth(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return log(s / ū^θ) = log(1 + (v̄/ū)^θ (1 − ū^θ)), for a = θ log ū and b = θ log v̄."""
    return softplus(b - a + log1mexp(a))


def _joe_log_s(a: jax.Array, b: jax.Array) -> jax.Array:
    below = jnp.expm1(a) * jnp.expm1(b)  # 1 − s, which is small where u and v are
    near = below < 0.5
    return jnp.where(near, jnp.log1p(-jnp.where(near, below, 0.0)), a + _joe_growth(a, b))


def _solve_joe(theta: jax.Array, a: jax.Array, log_p: jax.Array, log_rest: jax.Array) -> jax.Array:
    shape = 1 - 1 / theta
    log_k = log1mexp(a) - a  # log(ū^{−θ} − 1)

    def excess(drop: jax.Array) -> jax.Array:
        return log1mexp(-drop) - shape * softplus(log_k - drop) - log_p

    def newton(function: Callable[..., Any], _) -> jax.Array:
        # From a lower bound Newton's method climbs a concave function without overshoot. Either term alone gives
        # a lower bound, and so do both where drop ≤ 1: they are at most log(drop) and shape (drop − log_k).
        ratio = divide(-log_p, shape, jnp.inf)
        second = jnp.where(ratio < jnp.inf, log_k - ratio - log1mexp(-jnp.minimum(ratio, 1e6)), -jnp.inf)
        both = jnp.exp(jnp.minimum(log_p + shape * (log_k - 1), 0.0))
        start = jnp.maximum(jnp.maximum(-log_rest, second), both)

        def step(_, drop: jax.Array) -> jax.Array:
            value, slope = jax.jvp(function, (drop,), (jnp.ones_like(drop),))
            return drop - divide(value, slope)

        return lax.fori_loop(0, _NEWTON_STEPS, step, jnp.maximum(start, jnp.finfo(a.dtype).tiny))

    return -implicit_root(excess, newton, a.dtype)


class NegativeClayton(Rotation, family=Clayton, degrees=90):
    """The law of (1 − U, V) for a Clayton (U, V): low values of V come with high values of 1 − U.

    >>> float(NegativeClayton(2.0).tau())
    -0.5
    """

    theta: jax.Array | float


class Frank(RadiallySymmetric):
    """The Frank copula C(u, v) = −log(1 + (e^{−θu} − 1)(e^{−θv} − 1)/(e^{−θ} − 1))/θ, any θ; θ = 0 is independence.

    For |θ| < ½ the formulas use e(x) = (1 − e^{−x})/x and never divide by θ, so they are smooth at θ = 0. The copula
    is its own survival copula. Nelsen (2006), family 4.2.5.

    >>> round(float(Frank(5.0).tau()), 4), round(float(Frank(-5.0).tau()), 4)
    (0.4567, -0.4567)
    """

    theta: jax.Array | float = param(5.0, support=(-float("inf"), float("inf")))

    def lower_cdf(self, u: Unit, v: Unit) -> jax.Array:
        """Return C = base ± log(1 + y)/|θ|; base and y are chosen against cancellation (`_strong_cdf`)."""
        theta, weak, strength, slight = _strength(self.theta)
        positive, (base, y) = theta > 0, _strong_cdf(strength, theta > 0, u, v)
        q = u.value * v.value * _e(slight * u.value) * _e(slight * v.value) / _e(slight)
        y = jnp.where(weak, -slight * q, y)
        return jnp.where(weak, 0.0, base) + jnp.where(weak, q, jnp.where(positive, -y, y) / strength) * log1p_ratio(y)

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """Return h, the first of `_two_terms` over their sum."""
        first, second, _ = _two_terms(self.theta, u, v)
        return Unit(first / (first + second), second / (first + second))

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """Return log c = log e(θ) − θ (u + v) − 2 log(the sum of `_two_terms`)."""
        first, second, log_numerator = _two_terms(self.theta, u, v)
        return log_numerator - 2 * jnp.log(first + second)

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """Return v with θ v = log(1 + e^q) − log(1 + e^{q − θ}) with q = logit p + θ u."""
        theta, weak, _, slight = _strength(self.theta)
        logit = p.log - p.log_complement

        def solve(q: jax.Array) -> jax.Array:
            share = jax.nn.sigmoid(q) * _e(slight)
            far = (softplus(q) - softplus(q - theta)) / jnp.where(weak, 1.0, theta)
            return jnp.where(weak, share * log1p_ratio(-slight * share), far)

        return Unit(solve(logit + theta * u.value), solve(theta * u.complement - logit))

    tail_dependence = no_tail_dependence

    def tau(self) -> jax.Array:
        """Return Kendall's τ = 1 − 4 (1 − D₁(θ))/θ, with D₁ Debye's function."""
        nodes, weights = np.polynomial.legendre.leggauss(64)
        # (1 − D₁)/θ = ∫₀¹ s φ(θs) ds with φ(z) = (1 − z/(e^z − 1))/z, which is ½ − z/12 + … near 0.
        s = (nodes + 1) / 2
        z = as_floats(self.theta)[..., None] * jnp.asarray(s)
        small = jnp.abs(z) < 0.1
        safe = jnp.where(small, 1.0, z)
        series = 0.5 - z / 12 * (1 - z**2 / 60 * (1 - z**2 / 42 * (1 - z**2 / 40)))
        # z/(e^z − 1) without e^z, which overflows in float32 from θ = 89: its slope would be NaN.
        size = jnp.abs(safe)
        ratio = size * jnp.where(safe > 0, jnp.exp(-size), 1.0) / -jnp.expm1(-size)
        phi = jnp.where(small, series, (1 - ratio) / safe)
        return 1 - 4 * (phi @ jnp.asarray(s * weights / 2))


def _strength(theta: jax.Array | float) -> tuple[jax.Array, ...]:
    """Return (θ, whether |θ| < ½, |θ| where strong, θ where weak); elsewhere the last two are harmless numbers."""
    theta = as_floats(theta)
    weak = jnp.abs(theta) < 0.5
    return theta, weak, jnp.where(weak, 1.0, jnp.abs(theta)), jnp.where(weak, theta, 0.0)


def _e(x: jax.Array) -> jax.Array:
    """Return (1 − e^{−x})/x for |x| ≤ ½."""
    return polynomial(_SERIES, x)


def _strong_cdf(strength: jax.Array, positive: jax.Array, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
    """Return (base, y) with C = base ∓ log(1 + y)/|θ|, − for θ > 0, where −½ ≤ y ≤ 1.

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
    """Return (e^{−θu} v e(θv), e^{−θv} (1 − v) e(θ(1 − v)), log(c times the square of their sum)).

    Strong θ scales both terms by θ e^{θ min(u, v)}, so that the larger exponential is 1; θ < 0 takes 1 − v for v.
    """
    theta, weak, strength, slight = _strength(theta)
    near = jnp.exp(-slight * u.value) * v.value * _e(slight * v.value)
    far = jnp.exp(-slight * v.value) * v.complement * _e(slight * v.complement)
    other = flipped_where(theta < 0, v)
    lower = u.value <= other.value
    apart = jnp.where(lower, other.value - u.value, u.value - other.value)
    fall = jnp.exp(-strength * apart)
    strong_first = jnp.where(lower, 1.0, fall) * -jnp.expm1(-strength * other.value)
    strong_second = jnp.where(lower, fall, 1.0) * -jnp.expm1(-strength * other.complement)
    first = jnp.where(weak, near, jnp.where(theta < 0, strong_second, strong_first))
    second = jnp.where(weak, far, jnp.where(theta < 0, strong_first, strong_second))
    log_scale = jnp.log(jnp.where(weak, _e(slight), -strength * jnp.expm1(-strength)))
    return first, second, log_scale - jnp.where(weak, slight * (u.value + v.value), strength * apart)
