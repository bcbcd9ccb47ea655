"""The copula of the bivariate Student's t distribution: dependence of either sign, and in both tails."""

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from rcjax._core.batching import ndtri
from rcjax._core.numerics import betaln, divide, log_of_pair
from rcjax.copulas.base import RadialForm, TailDependence, param
from rcjax.copulas.gaussian import nearer_tail, off_the_ends, quadratic_form, residual, spread
from rcjax.copulas.unit import Unit, is_zero, turned

_NODES, _QUANTILE_STEPS, _TERMS = 48, 3, 24
_FINEST, _UNROLLED = 1e-12, 4
#: Standard deviations beyond which the tail of a normal variate underflows to 0.
_FARTHEST_SCORE = 40.0


class StudentT(RadialForm):
    """C(u, v) = T₂(T⁻¹(u), T⁻¹(v); ρ), for Student's t with df ≥ 1 degrees of freedom; tail dependence at both ends.

    A likelihood fit profiles the degrees of freedom over a grid. Demarta & McNeil (2005), "The t copula and related
    copulas".

    >>> round(float(StudentT(0.5, 4.0).cdf(0.5, 0.5)), 4)  # ¼ + asin(ρ)/(2π), whatever the degrees of freedom
    0.3333
    """

    rho: jax.Array | float = param(0.5, support=(-1.0, 1.0))
    df: jax.Array | float = param(4.0, support=(1.0, float("inf")), grid=(2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0, 40.0))

    def prepared(self, u: Unit) -> Unit:
        """u with its t quantile, which the correlation does not change."""
        return u._replace(score=_student_quantile(self._parameters()[1], u))

    def lower_cdf(self, u: Unit, v: Unit) -> jax.Array:
        """C(u, v) from Plackett's integral over the correlation."""
        return _student_cdf(*self._parameters(), u, v)

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """h = T_{df + 1}((y − ρx) √((df + 1)/((1 − ρ²)(df + x²)))) with x = T⁻¹(u), y = T⁻¹(v)."""
        rho, df = self._parameters()
        return _student_conditional(rho, df, u, v)

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """The log of the bivariate t density over the product of the margins'."""
        rho, df = self._parameters()
        x, y = _student_quantile(df, u), _student_quantile(df, v)
        # Γ(ν/2) Γ(ν/2 + 1) / Γ((ν + 1)/2)² is (ν/2) B(ν/2, ½)² / π.
        constant = jnp.log(df / 2) + 2 * betaln(df / 2, 0.5) - np.log(np.pi) - jnp.log(spread(rho))
        # x² may overflow: log(1 + x²/ν) is computed in units of max(|x|, |y|, 1).
        unit = jnp.maximum(jnp.maximum(jnp.abs(x), jnp.abs(y)), 1.0)
        p, q, inverse_square = x / unit, y / unit, 1 / unit**2
        form = quadratic_form(rho, p, q)
        margins = jnp.log(inverse_square + p * p / df) + jnp.log(inverse_square + q * q / df)
        return (
            constant + (df + 1) / 2 * margins - (df + 2) / 2 * jnp.log(inverse_square + form / df) + df * jnp.log(unit)
        )

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """v = T(ρx + T_{df + 1}⁻¹(p) √((1 − ρ²)(df + x²)/(df + 1)))."""
        rho, df = self._parameters()
        x = _student_quantile(df, u)
        scale = spread(rho) * jnp.hypot(jnp.sqrt(df), x) / jnp.sqrt(df + 1)
        return _student_probability(df, rho * x + scale * _student_quantile(df + 1, p))

    def tail_dependence(self) -> TailDependence:
        """λ_L = λ_U = 2 P(T ≤ −√((ν + 1)(1 − ρ)/(1 + ρ))), T with ν + 1 degrees of freedom."""
        rho, df = jnp.broadcast_arrays(*(jnp.asarray(value, jnp.result_type(float)) for value in (self.rho, self.df)))
        apart = jnp.sqrt((df + 1) * (1 - rho) / jnp.where(rho > -1, 1 + rho, 1.0))
        share = jnp.where(rho > -1, 2 * _student_probability(df + 1, -apart).value, 0.0)
        return TailDependence(share, share)

    def tau(self) -> jax.Array:
        """Kendall's τ = (2/π) asin ρ, whatever the degrees of freedom."""
        return 2 / np.pi * jnp.arcsin(jnp.asarray(self.rho)) + jnp.zeros_like(jnp.asarray(self.df))

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """ρ = sin(πτ/2), for τ held within ±0.98, with 4 degrees of freedom."""
        rho = jnp.sin(np.pi / 2 * cls._within_reach(tau))
        return cls(rho, jnp.full_like(rho, 4.0))

    def _parameters(self) -> tuple[jax.Array, jax.Array]:
        """(ρ kept off ±1, df), in JAX's default float type."""
        return off_the_ends(self.rho), jnp.asarray(self.df, jnp.result_type(float))


@jax.custom_jvp
def _student_cdf(rho: jax.Array, df: jax.Array, u: Unit, v: Unit) -> jax.Array:
    """T₂ at the quantiles of u and v, integrated as in `gaussian._normal_cdf` (Genz 2004).

    The integral starts from ρ = −1, or from ρ = 1 for ρ > 0.7, and runs over the tangent t of half the angle. Its
    integrand rises near the branch points ±i `scale`; in asinh(t/scale) these stay away from the path.
    """
    reflect = v.value > u.complement
    first, second = turned(reflect, u), turned(reflect, v)
    x, y = _student_quantile(df, first), _student_quantile(df, second)
    x, y, rho, df = jnp.broadcast_arrays(x, y, rho, df)
    down = rho > 0.7
    end = jnp.tan(jnp.arccos(jnp.where(down, rho, -rho)) / 2)
    gap, both = jnp.where(down, x - y, x + y), jnp.where(down, x * y, -x * y)
    scale = jnp.clip(jnp.abs(gap) / jnp.hypot(2 * jnp.sqrt(df), np.sqrt(2) * jnp.hypot(x, y)), _FINEST * end, end)
    reach = jnp.arcsinh(end / scale)
    points, weights = np.polynomial.legendre.leggauss(_NODES)
    # Most of the integral lies in the last steps.
    s, weight = 1 - ((1 - points) / 2) ** 2, weights * (1 - points)
    largest, inverse = jnp.finfo(x.dtype).max / 8, 1 / df

    def add(node: jax.Array, total: jax.Array) -> jax.Array:
        growth = jnp.exp(reach * jnp.asarray(s)[node])
        tangent, run = scale / 2 * (growth - 1 / growth), scale / 2 * (growth + 1 / growth)
        above = 1 + tangent * tangent
        reciprocal = 1 / (above * tangent)
        part = jnp.clip((gap * above * above * reciprocal / 2) ** 2 + both * above, 0.0, largest) * inverse
        share = 1 / (1 + part)
        # dω is 2 dt/(1 + t²).
        width = jnp.asarray(weight)[node] * run * tangent * reciprocal
        return total + width * jnp.exp(df / 2 * log_of_pair(share, part * share))

    area = lax.fori_loop(0, _NODES, add, jnp.zeros_like(x), unroll=_UNROLLED) * reach / (2 * np.pi)
    below = jnp.where(down, jnp.minimum(first.value, second.value) - area, area)
    return jnp.where(reflect, u.value - v.complement, 0.0) + below


@partial(_student_cdf.defjvp, symbolic_zeros=True)
def _student_cdf_jvp(
    primals: tuple[jax.Array, jax.Array, Unit, Unit], tangents: tuple[Any, Any, Unit, Unit]
) -> tuple[jax.Array, jax.Array]:
    # The conditionals are the slopes in u and v: near u + v = 1 the integral's slope changes faster than its nodes see.
    rho, df, u, v = primals
    rho_tangent, df_tangent, u_tangent, v_tangent = tangents
    value = _student_cdf(rho, df, u, v)
    change = jnp.zeros_like(value)
    if not is_zero(rho_tangent):
        x, y = _student_quantile(df, u), _student_quantile(df, v)
        change += jnp.exp(-df / 2 * jnp.log1p(quadratic_form(rho, x, y) / df)) / (2 * np.pi * spread(rho)) * rho_tangent
    if not is_zero(df_tangent):
        # The quantiles depend on df, so that the cached ones cannot be used.
        bare = [z._replace(score=None) for z in (u, v)]
        change += jax.jvp(lambda df: _student_cdf.fun(rho, df, *bare), (df,), (df_tangent,))[1]
    for condition, other, tangent in ((u, v, u_tangent), (v, u, v_tangent)):
        if not is_zero(tangent.value):
            change += _student_conditional(rho, df, condition, other).value * tangent.value
    return value, change


def _student_conditional(rho: jax.Array, df: jax.Array, u: Unit, v: Unit) -> Unit:
    x, y = _student_quantile(df, u), _student_quantile(df, v)
    stretch = jnp.sqrt(df + 1) / jnp.hypot(jnp.sqrt(df), x)
    return _student_probability(df + 1, residual(rho, x, y) * stretch)


def _log_power_law(df: jax.Array) -> jax.Array:
    """log lim P(T > x) x^df, as x → ∞."""
    return (df / 2 - 1) * jnp.log(df) - betaln(df / 2, 0.5)


def _angle(df: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(log cos, sin) of the angle with tangent x/√ν, for x ≥ 0."""
    root = jnp.sqrt(df)
    radius = jnp.hypot(root, x)
    cosine, sine = root / radius, x / radius
    return log_of_pair(cosine, sine * sine / (1 + cosine)), sine


def _tail_ratio(df: jax.Array, points: int) -> Callable[[jax.Array], jax.Array]:
    """Return P(T > x) / (½ cos^ν) as a function of the sine of the `_angle` of x.

    A few points take the integral each. Many points share a Chebyshev series, since they share a few degrees of
    freedom.
    """
    if points < _TERMS * df.size:
        return partial(_ratio_by_integral, df)
    # In g/(g + 4), with g = √ν sin, the ratio is smooth to its ends for every ν: for ν = ∞ it is erfcx(g/√2).
    root = jnp.sqrt(df)
    end = jnp.minimum(root, _FARTHEST_SCORE)
    end_share = end / (end + 4)
    turns = np.pi * (np.arange(_TERMS) + 0.5) / _TERMS
    nodes = (jnp.asarray(np.cos(turns) + 1) / 2).reshape(-1, *(1,) * df.ndim) * end_share
    values = _ratio_by_integral(df, jnp.minimum(4 * nodes / ((1 - nodes) * root), 1.0))
    cosines = np.cos(np.outer(np.arange(_TERMS), turns)) * 2 / _TERMS
    cosines[0] /= 2
    series = jnp.tensordot(jnp.asarray(cosines), values, 1)

    def ratio(sine: jax.Array) -> jax.Array:
        t = jnp.minimum(2 * (sine / (sine + 4 / root) / end_share) - 1, 1.0)
        last, before = jnp.zeros_like(t), jnp.zeros_like(t)
        for term in range(_TERMS - 1, 0, -1):  # Clenshaw's recurrence
            last, before = series[term] + 2 * t * last - before, last
        return series[0] + t * last - before

    return ratio


def _ratio_by_integral(df: jax.Array, sine: jax.Array) -> jax.Array:
    """2/B(ν/2, ½) ∫₀^∞ (cosh s + sin · sinh s)^{−ν} ds, by substituting x = √ν sinh(asinh(tan) + s).

    The trapezoidal rule in y, with s ∝ exp(y − e^{−y}) (Takahasi & Mori 1974), is accurate to 1e-14 for 1 ≤ ν ≤ 10⁶.
    """
    grid = np.linspace(-3.6, 4.1, 56)
    z = np.exp(grid - np.exp(-grid))
    weights = z * (1 + np.exp(-grid)) * (grid[1] - grid[0])
    df, sine = jnp.broadcast_arrays(df, sine)
    width = 1 / (df * sine + jnp.sqrt(df))
    step = width[..., None] * jnp.asarray(z)
    part = (1 - sine)[..., None] / 2 * -jnp.expm1(-2 * step)
    powers = jnp.exp(-df[..., None] * (step + log_of_pair(1 - part, part)))
    return 2 * jnp.exp(-betaln(df / 2, 0.5)) * width * (powers @ jnp.asarray(weights))


def _log_student_density(df: jax.Array, x: jax.Array) -> jax.Array:
    return -jnp.log(df) / 2 - betaln(df / 2, 0.5) - (df + 1) * jnp.log(jnp.hypot(1.0, x / jnp.sqrt(df)))


@jax.custom_jvp
def _student_probability(df: jax.Array, x: jax.Array) -> Unit:
    df, size = jnp.asarray(df), jnp.abs(x)
    log_cosine, sine = _angle(df, size)
    tail = jnp.exp(df * log_cosine) / 2 * _tail_ratio(df, sine.size)(sine)
    lower = x <= 0
    return Unit(jnp.where(lower, tail, 1 - tail), jnp.where(lower, 1 - tail, tail))


@partial(_student_probability.defjvp, symbolic_zeros=True)
def _student_probability_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[Any, jax.Array]
) -> tuple[Unit, Unit]:
    df, x = primals
    value = _student_probability(df, x)
    slope = jnp.zeros_like(value.value)
    if not is_zero(tangents[1]):
        slope += jnp.exp(_log_student_density(df, x)) * tangents[1]
    if not is_zero(tangents[0]):
        slope += jax.jvp(lambda df: _student_probability.fun(df, x).value, (df,), tangents[:1])[1]
    return value, Unit(slope, -slope)


def _student_quantile(df: jax.Array, u: Unit) -> jax.Array:
    return _quantile(df, u) if u.score is None else u.score


@jax.custom_jvp
def _quantile(df: jax.Array, u: Unit) -> jax.Array:
    lower, tail = nearer_tail(u)
    middle, rounding = 0.5 - tail, jnp.finfo(tail.dtype).eps
    # Near the median a straight line: the Halley iteration is in log x, and 0 has no logarithm.
    straight = middle * jnp.exp(-_log_student_density(df, jnp.zeros_like(tail)))
    size = jnp.where(middle > rounding, _upper_quantile(df, jnp.minimum(tail, 0.5 - rounding)), straight)
    return jnp.where(lower, -size, size)


@partial(_quantile.defjvp, symbolic_zeros=True)
def _quantile_jvp(primals: tuple[jax.Array, Unit], tangents: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    df, u = primals
    x = _quantile(df, u)
    change = jnp.zeros_like(x)
    if not is_zero(tangents[1].value):
        change += tangents[1].value
    if not is_zero(tangents[0]):
        change -= jax.jvp(lambda df: _student_probability(df, x).value, (df,), tangents[:1])[1]
    return x, change * jnp.exp(-_log_student_density(df, x))


def _upper_quantile(df: jax.Array, tail: jax.Array) -> jax.Array:
    """The x > 0 with P(T > x) = tail: Halley's method on log P in log x, where it is concave and falls."""
    # Start from the stretched normal quantile (Hill 1970 gives the exponent) or from the power law of the tail.
    z, log_tail = ndtri(tail), jnp.log(tail)
    stretched = (jnp.log(df) + jnp.log(jnp.expm1(jnp.minimum(z * z / df * (1 + 0.5 / df), 600.0)))) / 2
    power = (_log_power_law(df) - log_tail) / df
    start = jnp.minimum(stretched, power)
    ratio, beta = _tail_ratio(df, start.size), jnp.exp(betaln(df / 2, 0.5))

    def step(_, log_x: jax.Array) -> jax.Array:
        log_cosine, sine = _angle(df, jnp.exp(log_x))
        level = ratio(sine)
        slope = -2 * sine / (beta * level)
        curvature = slope * (1 - (df + 1) * sine**2 - slope)
        newton = divide(df * log_cosine + jnp.log(level / 2) - log_tail, slope)
        # Halley's step is Newton's, corrected for the curvature.
        return log_x - newton / jnp.maximum(1 - newton * divide(curvature, slope) / 2, 0.5)

    return jnp.exp(lax.fori_loop(0, _QUANTILE_STEPS, step, start))
