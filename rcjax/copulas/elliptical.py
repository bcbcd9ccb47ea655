"""The copulas of the bivariate normal and Student's t distributions: dependence of either sign."""

from functools import partial
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtr, ndtri
from jax.typing import ArrayLike

from rcjax._numerics import betainc, betaln, divide
from rcjax.copulas.base import param
from rcjax.copulas.closed import ClosedForm
from rcjax.copulas.unit import Scored, Unit, turned, with_flips

_NORMAL_NODES, _STUDENT_NODES, _QUANTILE_STEPS = 48, 80, 3
_FINEST = 1e-7


class Gaussian(ClosedForm):
    """C(u, v) = Φ₂(Φ⁻¹(u), Φ⁻¹(v); ρ), −1 ≤ ρ ≤ 1; ρ = 0 is independence. Without tail dependence.

    >>> round(float(Gaussian(0.5).cdf(0.5, 0.5)), 4)  # ¼ + asin(ρ)/(2π)
    0.3333
    """

    rho: jax.Array | float = param(0.5, support=(-1.0, 1.0))

    def prepared(self, u: Unit) -> Scored:
        """u with its normal quantile."""
        return Scored(u.value, u.complement, _normal_quantile(u))

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """C by `_normal_cdf`, and S(u, v) = C(1 − u, 1 − v)."""
        rho = _inside(self.rho)
        below, above = _normal_cdf(rho, *with_flips(u, v, rho))
        return below, above

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """h = Φ((y − ρx)/√(1 − ρ²)) with x = Φ⁻¹(u), y = Φ⁻¹(v)."""
        z = _residual(_inside(self.rho), _normal_quantile(u), _normal_quantile(v))
        return Unit(ndtr(z), ndtr(-z))

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """log c = −log √(1 − ρ²) − (ρ (x ∓ y))²/(2 (1 − ρ²)) + ρxy/(1 + |ρ|), − for ρ ≥ 0 and + for ρ < 0."""
        rho, x, y = _inside(self.rho), _normal_quantile(u), _normal_quantile(v)
        spread, gap = _spread(rho), jnp.where(rho < 0, x + y, x - y)
        return rho * x * y / (1 + jnp.abs(rho)) - (gap * rho / spread) ** 2 / 2 - jnp.log(spread)

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """v = Φ(ρx + √(1 − ρ²) Φ⁻¹(p))."""
        rho = _inside(self.rho)
        y = rho * _normal_quantile(u) + _spread(rho) * _normal_quantile(p)
        return Unit(ndtr(y), ndtr(-y))

    def tau(self) -> jax.Array:
        """Kendall's τ = (2/π) asin ρ."""
        return 2 / np.pi * jnp.arcsin(jnp.asarray(self.rho))

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """ρ = sin(πτ/2), for τ held within ±0.98."""
        return cls(jnp.sin(np.pi / 2 * jnp.clip(tau, -cls.MAX_TAU, cls.MAX_TAU)))

    def tail_dependence(self) -> tuple[jax.Array, jax.Array]:
        """(lower, upper) tail dependence: none, unless ρ = 1."""
        both = jnp.where(jnp.asarray(self.rho) < 1, 0.0, 1.0)
        return both, both


class StudentT(ClosedForm):
    """C(u, v) = T₂(T⁻¹(u), T⁻¹(v); ρ), for Student's t with df ≥ 1 degrees of freedom; tail dependence on both ends.

    A likelihood fit profiles the degrees of freedom over a grid. Demarta & McNeil (2005), "The t copula and related
    copulas".

    >>> [round(float(tail), 3) for tail in StudentT(0.5, 4.0).tail_dependence()]
    [0.253, 0.253]
    """

    rho: jax.Array | float = param(0.5, support=(-1.0, 1.0))
    df: jax.Array | float = param(4.0, support=(1.0, float("inf")), grid=(2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0, 40.0))

    def prepared(self, u: Unit) -> Scored:
        """u with its t quantile, which the correlation does not change."""
        df = jnp.asarray(self.df, jnp.result_type(float))
        return Scored(u.value, u.complement, _student_quantile(df, u))

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """C by `_student_cdf`, and S(u, v) = C(1 − u, 1 − v)."""
        rho, df = _inside(self.rho), jnp.asarray(self.df, jnp.result_type(float))
        below, above = _student_cdf(rho, df, *with_flips(u, v, rho, df))
        return below, above

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """h = T_{df + 1}((y − ρx) √((df + 1)/((1 − ρ²)(df + x²)))) with x = T⁻¹(u), y = T⁻¹(v)."""
        rho, df = _inside(self.rho), jnp.asarray(self.df, jnp.result_type(float))
        return _student_conditional(rho, df, u, v)

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """The log of the bivariate t density over the product of the margins'."""
        rho, df = _inside(self.rho), jnp.asarray(self.df, jnp.result_type(float))
        x, y = _student_quantile(df, u), _student_quantile(df, v)
        # Γ(ν/2) Γ(ν/2 + 1) / Γ((ν + 1)/2)² is (ν/2) B(ν/2, ½)² / π.
        constant = jnp.log(df / 2) + 2 * betaln(df / 2, 0.5) - np.log(np.pi) - jnp.log(_spread(rho))
        # Far out x² overflows: log(1 + x²/ν) in units of the larger of |x|, |y| and 1.
        unit = jnp.maximum(jnp.maximum(jnp.abs(x), jnp.abs(y)), 1.0)
        p, q, one = x / unit, y / unit, 1 / unit**2
        gap = jnp.where(rho < 0, p + q, p - q)
        form = (gap / _spread(rho)) ** 2 + jnp.where(rho < 0, -2, 2) * p * q / (1 + jnp.abs(rho))
        margins = jnp.log(one + p * p / df) + jnp.log(one + q * q / df)
        return constant + (df + 1) / 2 * margins - (df + 2) / 2 * jnp.log(one + form / df) + df * jnp.log(unit)

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """v = T(ρx + T_{df + 1}⁻¹(p) √((1 − ρ²)(df + x²)/(df + 1)))."""
        rho, df = _inside(self.rho), jnp.asarray(self.df, jnp.result_type(float))
        x = _student_quantile(df, u)
        scale = _spread(rho) * jnp.hypot(jnp.sqrt(df), x) / jnp.sqrt(df + 1)
        return _student_cdf_1d(df, rho * x + scale * _student_quantile(df + 1, p))

    def tau(self) -> jax.Array:
        """Kendall's τ = (2/π) asin ρ, whatever the degrees of freedom."""
        return 2 / np.pi * jnp.arcsin(jnp.asarray(self.rho)) + jnp.zeros_like(jnp.asarray(self.df))

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """ρ = sin(πτ/2), for τ held within ±0.98, with 4 degrees of freedom."""
        rho = jnp.sin(np.pi / 2 * jnp.clip(tau, -cls.MAX_TAU, cls.MAX_TAU))
        return cls(rho, jnp.full_like(rho, 4.0))

    def tail_dependence(self) -> tuple[jax.Array, jax.Array]:
        """(lower, upper) tail dependence: both 2 T_{df + 1}(−√((df + 1)(1 − ρ)/(1 + ρ)))."""
        rho, df = _inside(self.rho), jnp.asarray(self.df, jnp.result_type(float))
        both = 2 * _student_cdf_1d(df + 1, -jnp.sqrt((df + 1) * (1 - rho) / (1 + rho))).value
        return both, both


def _inside(rho):
    """ρ kept off ±1 by what rounding would move it."""
    rho = jnp.asarray(rho, jnp.result_type(float))
    return rho * (1 - 2 * jnp.finfo(rho.dtype).eps)


def _spread(rho):
    return jnp.sqrt((1 - rho) * (1 + rho))


def _residual(rho, x, y):
    """(y − ρx)/√(1 − ρ²), with y ∓ x apart from what is left of ρ: near ρ = ±1 that is all there is."""
    gap = jnp.where(rho < 0, y + x, y - x)
    rest = jnp.sqrt((1 - jnp.abs(rho)) / (1 + jnp.abs(rho)))
    return gap / _spread(rho) + jnp.where(rho < 0, -x, x) * rest


def _lesser(u):
    """(whether u is the lower half, the smaller of u and 1 − u)."""
    lower = u.value <= u.complement
    return lower, jnp.where(lower, u.value, u.complement)


def _normal_quantile(u):
    if isinstance(u, Scored):
        return u.score
    lower, tail = _lesser(u)
    z = ndtri(tail)
    return jnp.where(lower, z, -z)


def _normal_cdf(rho, u, v):
    """Φ₂ at the quantiles of u and v, from Plackett's (1954) ∂Φ₂/∂ρ = φ₂, integrated over the angle acos ρ.

    The integral starts from where Φ₂ is known, ρ = 0, 1 or −1, such that nothing cancels and the integrand is
    smooth: near ±1 it rises at an angle of |x ∓ y|, which must lie outside. Relative accuracy 1e-11, tails included
    (Genz 2004, "Numerical computation of rectangular bivariate and trivariate normal and t probabilities", has the
    same integrals for absolute accuracy).
    """
    # For ρ < 0 and u + v > 1: C(u, v) = u + v − 1 + C(1 − u, 1 − v), whose integral is the smaller one.
    reflect = (rho < 0) & (v.value > u.complement)
    first, second = turned(reflect, u), turned(reflect, v)
    x, y = _normal_quantile(first), _normal_quantile(second)
    gap, product = jnp.where(rho < 0, x + y, x - y), jnp.where(rho < 0, -x * y, x * y)
    angle = jnp.arccos(jnp.abs(rho))
    from_zero = (jnp.abs(gap) < angle) | (rho >= 0) & (rho < 0.9)
    points, weights = np.polynomial.legendre.leggauss(_NORMAL_NODES)
    s, weight = (points + 1) / 2, weights / 2
    crowded, slope = 1 - (1 - s) ** 2, 2 * (1 - s)

    def coefficients(omega, width):
        # (x² + y² ∓ 2xy cos ω) / sin² ω, with 1 − cos ω kept apart: far out, x² + y² and 2xy agree in most digits.
        square = jnp.tan(omega / 2) ** 2
        return (1 + square) ** 2 / (8 * square), (1 + square) / 2, width

    def add(place, total):
        far, near, weight_here = (jnp.asarray(values)[place] for values in (s, crowded, weight))
        # Of the correlation alone, so that a million points share them.
        ahead = coefficients(angle + (np.pi / 2 - angle) * far, np.pi / 2 - angle)
        close = coefficients(angle * near, angle * jnp.asarray(slope)[place])
        spread, rest, width = (jnp.where(from_zero, one, other) for one, other in zip(ahead, close, strict=True))
        return total + weight_here * width * jnp.exp(-gap * gap * spread - product * rest)

    start = jnp.zeros(jnp.broadcast_shapes(jnp.shape(gap), jnp.shape(rho)), x.dtype)
    area = lax.fori_loop(0, _NORMAL_NODES, add, start) / (2 * np.pi)
    independent, smaller = first.value * second.value, jnp.minimum(first.value, second.value)
    positive = jnp.where(from_zero, independent + area, smaller - area)
    below = jnp.where(rho < 0, jnp.where(from_zero, independent - area, area), positive)
    return jnp.where(reflect, u.value - v.complement, 0.0) + below


@jax.custom_jvp
def _student_cdf(rho, df, u, v):
    """T₂ at the quantiles of u and v: as `_normal_cdf`, from ρ = −1, or from ρ = 1 for ρ > 0.9 (Genz 2004).

    Over the tangent of half the angle, in steps that grow from the scale of |x ± y|, where the integrand rises.
    """
    reflect = v.value > u.complement
    first, second = turned(reflect, u), turned(reflect, v)
    x, y = _student_quantile(df, first), _student_quantile(df, second)
    x, y, rho, df = jnp.broadcast_arrays(x, y, rho, df)
    down = rho > 0.9
    end = jnp.tan(jnp.arccos(jnp.where(down, rho, -rho)) / 2)
    gap, both = jnp.where(down, x - y, x + y), jnp.where(down, x * y, -x * y)
    scale = jnp.clip(jnp.abs(gap) / jnp.sqrt(df), _FINEST * end, end)
    reach = jnp.arcsinh(end / scale)
    points, weights = np.polynomial.legendre.leggauss(_STUDENT_NODES)
    s = (points + 1) / 2

    def add(place, total):
        z = reach * jnp.asarray(s)[place]
        tangent = scale * jnp.sinh(z)
        square = tangent * tangent
        form = (gap * (1 + square) / (2 * tangent)) ** 2 + both * (1 + square)
        width = jnp.asarray(weights)[place] * scale * jnp.cosh(z) / (1 + square)  # dω is 2 dt/(1 + t²)
        return total + width * jnp.exp(-df / 2 * jnp.log1p(jnp.maximum(form, 0.0) / df))

    area = lax.fori_loop(0, _STUDENT_NODES, add, jnp.zeros_like(x)) * reach / (2 * np.pi)
    below = jnp.where(down, jnp.minimum(first.value, second.value) - area, area)
    return jnp.where(reflect, u.value - v.complement, 0.0) + below


@partial(_student_cdf.defjvp, symbolic_zeros=True)
def _student_cdf_jvp(primals, tangents):
    # In u and v by the conditionals: near u + v = 1 the slope of the integral changes faster than its nodes see.
    rho, df, u, v = primals
    rho_tangent, df_tangent, u_tangent, v_tangent = tangents
    value = _student_cdf(rho, df, u, v)
    change = jnp.zeros_like(value)
    if not _is_zero(rho_tangent):
        x, y = _student_quantile(df, u), _student_quantile(df, v)
        gap = jnp.where(rho < 0, x + y, x - y)
        form = (gap / _spread(rho)) ** 2 + jnp.where(rho < 0, -2, 2) * x * y / (1 + jnp.abs(rho))
        change += jnp.exp(-df / 2 * jnp.log1p(form / df)) / (2 * np.pi * _spread(rho)) * rho_tangent
    if not _is_zero(df_tangent):
        # The quantiles move with df: those that came with u and v are made again.
        bare = [Unit(z.value, z.complement) for z in (u, v)]
        change += jax.jvp(lambda df: _student_cdf.fun(rho, df, *bare), (df,), (df_tangent,))[1]
    for given, other, tangent in ((u, v, u_tangent), (v, u, v_tangent)):
        if not _is_zero(tangent.value):
            change += _student_conditional(rho, df, given, other).value * tangent.value
    return value, change


def _student_conditional(rho, df, u, v):
    x, y = _student_quantile(df, u), _student_quantile(df, v)
    stretch = jnp.sqrt(df + 1) / jnp.hypot(jnp.sqrt(df), x)
    return _student_cdf_1d(df + 1, _residual(rho, x, y) * stretch)


def _log_tail(df, log_x):
    """log P(T > x) for x > 0: by the incomplete beta function, far out by its power law."""
    far = log_x > 0.25 * np.log(jnp.finfo(log_x.dtype).max)  # where x² would overflow
    square = jnp.exp(2 * jnp.where(far, 0.0, log_x))
    # P(T > x) = I_z(df/2, ½)/2 with z = df/(df + x²); below 1 from the other side, which keeps the digits of x².
    small = square < 1
    whole = df + square
    half = jnp.asarray(0.5, square.dtype)
    part = betainc(jnp.where(small, half, df / 2), jnp.where(small, df / 2, half), jnp.where(small, square, df) / whole)
    tail = jnp.log(jnp.maximum(jnp.where(small, 0.5 - part / 2, part / 2), jnp.finfo(part.dtype).tiny))
    return jnp.where(far, _log_power_law(df) - df * log_x, tail)


def _log_power_law(df):
    """log of the limit of P(T > x) x^df."""
    return (df / 2 - 1) * jnp.log(df) - betaln(df / 2, 0.5)


def _log_student_density(df, x):
    return -jnp.log(df) / 2 - betaln(df / 2, 0.5) - (df + 1) * jnp.log(jnp.hypot(1.0, x / jnp.sqrt(df)))


@jax.custom_jvp
def _student_cdf_1d(df, x):
    size = jnp.abs(x)
    tail = jnp.where(size > 0, jnp.exp(_log_tail(df, jnp.log(jnp.where(size > 0, size, 1.0)))), 0.5)
    lower = x <= 0
    return Unit(jnp.where(lower, tail, 1 - tail), jnp.where(lower, 1 - tail, tail))


@partial(_student_cdf_1d.defjvp, symbolic_zeros=True)
def _student_cdf_1d_jvp(primals, tangents):
    df, x = primals
    value = _student_cdf_1d(df, x)
    slope = jnp.zeros_like(value.value)
    if not _is_zero(tangents[1]):
        slope += jnp.exp(_log_student_density(df, x)) * tangents[1]
    if not _is_zero(tangents[0]):
        slope += jax.jvp(lambda df: _student_cdf_1d.fun(df, x).value, (df,), tangents[:1])[1]
    return value, Unit(slope, -slope)


def _student_quantile(df, u):
    return u.score if isinstance(u, Scored) else _quantile(df, u)


@jax.custom_jvp
def _quantile(df, u):
    lower, tail = _lesser(u)
    tail, df = jnp.broadcast_arrays(tail, df)
    size = jnp.vectorize(_upper_quantile)(df, jnp.minimum(tail, 0.5 - jnp.finfo(tail.dtype).eps))
    return jnp.where(lower, -size, size)


@partial(_quantile.defjvp, symbolic_zeros=True)
def _quantile_jvp(primals, tangents):
    df, u = primals
    x = _quantile(df, u)
    change = jnp.zeros_like(x)
    if not _is_zero(tangents[1].value):
        change += tangents[1].value
    if not _is_zero(tangents[0]):
        change -= jax.jvp(lambda df: _student_cdf_1d(df, x).value, (df,), tangents[:1])[1]
    return x, change * jnp.exp(-_log_student_density(df, x))


def _is_zero(tangent):
    return isinstance(tangent, jax.custom_derivatives.SymbolicZero)


def _upper_quantile(df, tail):
    """The x > 0 with P(T > x) = tail: Halley's method on log P in log x, where it is concave and falls."""
    # The normal quantile, stretched (Hill 1970 gives the exponent), or the power law of the tail.
    z = ndtri(tail)
    stretched = jnp.log(jnp.sqrt(df * jnp.expm1(jnp.minimum(z * z / df * (1 + 0.5 / df), 600.0))))
    power = (_log_power_law(df) - jnp.log(tail)) / df

    def step(_, log_x):
        x, value = jnp.exp(log_x), _log_tail(df, log_x)
        slope = -jnp.exp(log_x + _log_student_density(df, x) - value)
        curvature = slope * (1 - (df + 1) * (x / jnp.hypot(jnp.sqrt(df), x)) ** 2 - slope)
        excess = value - jnp.log(tail)
        newton = divide(excess, slope)
        # Halley's step: Newton's with the curvature, which is known.
        return log_x - newton / jnp.maximum(1 - newton * divide(curvature, slope) / 2, 0.5)

    return jnp.exp(lax.fori_loop(0, _QUANTILE_STEPS, step, jnp.minimum(stretched, power)))
