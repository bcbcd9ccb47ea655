"""The copulas of the bivariate normal and Student's t distributions: dependence of either sign."""

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.typing import ArrayLike

from rcjax._core.numerics import Unit, as_floats, betaln, divide, flipped_where, log_of_pair, ndtri
from rcjax.copulas.base import RadiallySymmetric, TailDependence, param

#: Nodes of the normal integral; `_FEW_NODES` suffice if it starts from ρ = 0 and all quantiles lie within ±`_NEAR`.
_NODES, _FEW_NODES, _NEAR = 48, 20, 6.0
#: For Student's t: nodes of the integral, and how many a turn of the loop takes; Halley steps; terms of a series.
_STUDENT_NODES, _UNROLLED, _QUANTILE_STEPS, _TERMS = 36, 4, 3, 24
_FINEST = 1e-12  # least scale of the integrand, as a share of the range of integration
_FARTHEST_SCORE = 40.0  # standard deviations beyond which the tail of a normal variate underflows to 0


class Gaussian(RadiallySymmetric):
    """The normal copula C(u, v) = Φ₂(Φ⁻¹(u), Φ⁻¹(v); ρ), −1 ≤ ρ ≤ 1; ρ = 0 is independence.

    It has no tail dependence for ρ < 1.

    >>> round(float(Gaussian(0.5).cdf(0.5, 0.5)), 4)  # ¼ + asin(ρ)/(2π)
    0.3333
    """

    rho: jax.Array | float = param(0.5, support=(-1.0, 1.0))

    def with_score(self, u: Unit) -> Unit:
        """Return u with its normal quantile."""
        return u._replace(score=_normal_quantile(u))

    def lower_cdf(self, u: Unit, v: Unit) -> jax.Array:
        """Return C(u, v) from Plackett's integral over the correlation."""
        return _normal_cdf(_off_the_ends(self.rho), u, v)

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """Return h = Φ((y − ρx)/√(1 − ρ²)) with x = Φ⁻¹(u), y = Φ⁻¹(v)."""
        return _normal_conditional(_off_the_ends(self.rho), u, v)

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """Return log c = −log √(1 − ρ²) − (ρ (x ∓ y))²/(2 (1 − ρ²)) + ρxy/(1 + |ρ|), − for ρ ≥ 0 and + for ρ < 0."""
        rho, x, y = _off_the_ends(self.rho), _normal_quantile(u), _normal_quantile(v)
        scale, apart = _spread(rho), _gap(rho, x, y)
        return rho * x * y / (1 + jnp.abs(rho)) - (apart * rho / scale) ** 2 / 2 - jnp.log(scale)

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """Return v = Φ(ρx + √(1 − ρ²) Φ⁻¹(p))."""
        rho = _off_the_ends(self.rho)
        return _normal_probability(rho * _normal_quantile(u) + _spread(rho) * _normal_quantile(p))

    def spearman(self) -> jax.Array:
        """Return Spearman's ρ = (6/π) asin(ρ/2)."""
        return 6 / np.pi * jnp.arcsin(jnp.asarray(self.rho) / 2)

    def tail_dependence(self) -> TailDependence:
        """Return λ_L = λ_U = 1 at ρ = 1, else 0."""
        share = (jnp.asarray(self.rho) >= 1).astype(jnp.result_type(float))
        return TailDependence(share, share)

    def tau(self) -> jax.Array:
        """Return Kendall's τ = (2/π) asin ρ."""
        return 2 / np.pi * jnp.arcsin(jnp.asarray(self.rho))

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """Return the member with ρ = sin(πτ/2), for τ held within ±0.98."""
        return cls(jnp.sin(np.pi / 2 * cls._clip_tau(tau)))


# Formulas in ρ that keep their digits near ±1, shared by the Gaussian and Student's t copulas.


def _off_the_ends(rho: ArrayLike) -> jax.Array:
    """Clip ρ just inside ±1, so that 1 − ρ² > 0; the slope stays 1."""
    rho = as_floats(rho)
    last = 1 - 2 * jnp.finfo(rho.dtype).eps
    return jnp.where(jnp.abs(rho) <= last, rho, rho * last)


def _spread(rho: jax.Array) -> jax.Array:
    """Return √(1 − ρ²), the standard deviation of y given x."""
    return jnp.sqrt((1 - rho) * (1 + rho))


def _gap(rho: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return x − y for ρ ≥ 0, x + y for ρ < 0: the offset of (x, y) from the line y = ±x of perfect correlation."""
    return jnp.where(rho < 0, x + y, x - y)


def _quadratic_form(rho: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return (x² − 2ρxy + y²)/(1 − ρ²), computed from the gap: near ρ = ±1 the terms of the numerator cancel.

    It is quadratic in (x, y): callers that fear an overflow scale both down.
    """
    return (_gap(rho, x, y) / _spread(rho)) ** 2 + jnp.where(rho < 0, -2, 2) * x * y / (1 + jnp.abs(rho))


def _residual(rho: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return (y − ρx)/√(1 − ρ²), with the gap y ∓ x as a term of its own, since it dominates near ρ = ±1."""
    narrow = jnp.sqrt((1 - jnp.abs(rho)) / (1 + jnp.abs(rho)))
    return _gap(rho, y, x) / _spread(rho) + jnp.where(rho < 0, -x, x) * narrow


def _nearer_tail(u: Unit) -> tuple[jax.Array, jax.Array]:
    """Return (whether u is in the lower half, the smaller of u and 1 − u)."""
    lower = u.value <= u.complement
    return lower, jnp.where(lower, u.value, u.complement)


def _normal_quantile(u: Unit) -> jax.Array:
    if u.score is not None:
        return u.score
    lower, tail = _nearer_tail(u)
    z = ndtri(tail)
    return jnp.where(lower, z, -z)


def _normal_probability(z: jax.Array) -> Unit:
    """Compute Φ(z) and Φ(−z) by `erfc` alone, in a fifth of the time of `ndtr`, which evaluates `erf` too."""
    return Unit(lax.erfc(-z * np.sqrt(0.5)) / 2, lax.erfc(z * np.sqrt(0.5)) / 2)


@jax.custom_jvp
def _normal_cdf(rho: jax.Array, u: Unit, v: Unit) -> jax.Array:
    """Integrate Plackett's (1954) ∂Φ₂/∂ρ = φ₂ over the angle acos ρ, for Φ₂ at the quantiles of u and v.

    The integral starts at ρ = 0, 1 or −1, where Φ₂ is known, chosen against cancellation and for a smooth integrand:
    near ±1 it rises at an angle of |x ∓ y|, which must lie outside. The relative accuracy is 1e-11, tails included.
    Genz (2004), "Numerical computation of rectangular bivariate and trivariate normal and t probabilities", has the
    same integrals for absolute accuracy.
    """
    # For ρ < 0 and u + v > 1, C(u, v) = u + v − 1 + C(1 − u, 1 − v) has the smaller integral.
    reflect = (rho < 0) & (v.value > u.complement)
    first, second = flipped_where(reflect, u), flipped_where(reflect, v)
    x, y = _normal_quantile(first), _normal_quantile(second)
    apart, product = _gap(rho, x, y), jnp.where(rho < 0, -x * y, x * y)
    from_zero = (jnp.abs(apart) < jnp.arccos(jnp.abs(rho))) | (rho >= 0) & (rho < 0.9)
    smooth = jnp.all(from_zero & (jnp.maximum(jnp.abs(x), jnp.abs(y)) < _NEAR))
    few, many = partial(_angle_integral, _FEW_NODES), partial(_angle_integral, _NODES)
    area = lax.cond(smooth, few, many, rho, from_zero, apart, product) / (2 * np.pi)
    independent, smaller = first.value * second.value, jnp.minimum(first.value, second.value)
    positive = jnp.where(from_zero, independent + area, smaller - area)
    below = jnp.where(rho < 0, jnp.where(from_zero, independent - area, area), positive)
    return jnp.where(reflect, u.value - v.complement, 0.0) + below


@partial(_normal_cdf.defjvp, symbolic_zeros=True)
def _normal_cdf_jvp(
    primals: tuple[jax.Array, Unit, Unit], tangents: tuple[Any, Any, Any]
) -> tuple[jax.Array, jax.Array]:
    # The integrand and the conditionals are the slopes: no loop is differentiated.
    rho, u, v = primals
    rho_tangent, u_tangent, v_tangent = tangents
    value = _normal_cdf(rho, u, v)
    change = jnp.zeros_like(value)
    if not isinstance(rho_tangent, SymbolicZero):
        form = _quadratic_form(rho, _normal_quantile(u), _normal_quantile(v))
        change += jnp.exp(-form / 2) / (2 * np.pi * _spread(rho)) * rho_tangent
    for condition, other, tangent in ((u, v, u_tangent), (v, u, v_tangent)):
        if not isinstance(tangent.value, SymbolicZero):
            change += _normal_conditional(rho, condition, other).value * tangent.value
    return value, change


def _normal_conditional(rho: jax.Array, u: Unit, v: Unit) -> Unit:
    return _normal_probability(_residual(rho, _normal_quantile(u), _normal_quantile(v)))


def _angle_integral(
    nodes: int, rho: jax.Array, from_zero: jax.Array, apart: jax.Array, product: jax.Array
) -> jax.Array:
    """Compute 2π times the integral of φ₂ over the angle, from ρ to 0 or to ±1, by Gauss–Legendre quadrature."""
    angle = jnp.arccos(jnp.abs(rho))
    points, weights = np.polynomial.legendre.leggauss(nodes)
    s, weight = (points + 1) / 2, weights / 2
    crowded, slope = 1 - (1 - s) ** 2, 2 * (1 - s)

    def coefficients(omega: jax.Array, width: jax.Array) -> tuple[jax.Array, ...]:
        # (x² + y² ∓ 2xy cos ω) / sin² ω, with 1 − cos ω as a term of its own: far out, x² + y² and 2xy cancel.
        square = jnp.tan(omega / 2) ** 2
        return (1 + square) ** 2 / (8 * square), (1 + square) / 2, width

    def add(node: jax.Array, total: jax.Array) -> jax.Array:
        far, near, weight_here = (jnp.asarray(values)[node] for values in (s, crowded, weight))
        # The coefficients depend on the correlation alone, so that all points share them.
        ahead = coefficients(angle + (np.pi / 2 - angle) * far, np.pi / 2 - angle)
        close = coefficients(angle * near, angle * jnp.asarray(slope)[node])
        steep, mild, width = (jnp.where(from_zero, first, second) for first, second in zip(ahead, close, strict=True))
        return total + weight_here * width * jnp.exp(-apart * apart * steep - product * mild)

    return lax.fori_loop(0, nodes, add, jnp.zeros_like(apart * rho))


class StudentT(RadiallySymmetric):
    """The t copula C(u, v) = T₂(T⁻¹(u), T⁻¹(v); ρ) with df ≥ 1 degrees of freedom; it has tail dependence at both ends.

    A likelihood fit profiles the degrees of freedom over a grid. Demarta & McNeil (2005), "The t copula and related
    copulas".

    >>> round(float(StudentT(0.5, 4.0).cdf(0.5, 0.5)), 4)  # ¼ + asin(ρ)/(2π), whatever the degrees of freedom
    0.3333
    """

    rho: jax.Array | float = param(0.5, support=(-1.0, 1.0))
    df: jax.Array | float = param(4.0, support=(1.0, float("inf")), grid=(2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0, 40.0))

    def with_score(self, u: Unit) -> Unit:
        """Return u with its t quantile, which the correlation does not change."""
        return u._replace(score=_student_quantile(self._parameters()[1], u))

    def lower_cdf(self, u: Unit, v: Unit) -> jax.Array:
        """Return C(u, v) from Plackett's integral over the correlation."""
        return _student_cdf(*self._parameters(), u, v)

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """Return h = T_{df + 1}((y − ρx) √((df + 1)/((1 − ρ²)(df + x²)))) with x = T⁻¹(u), y = T⁻¹(v)."""
        rho, df = self._parameters()
        return _student_conditional(rho, df, u, v)

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """Return the log of the bivariate t density over the product of its margins' densities."""
        rho, df = self._parameters()
        x, y = _student_quantile(df, u), _student_quantile(df, v)
        # Γ(ν/2) Γ(ν/2 + 1) / Γ((ν + 1)/2)² is (ν/2) B(ν/2, ½)² / π.
        constant = jnp.log(df / 2) + 2 * betaln(df / 2, 0.5) - np.log(np.pi) - jnp.log(_spread(rho))
        # x² may overflow: log(1 + x²/ν) is computed in units of max(|x|, |y|, 1).
        unit = jnp.maximum(jnp.maximum(jnp.abs(x), jnp.abs(y)), 1.0)
        p, q, inverse_square = x / unit, y / unit, 1 / unit**2
        form = _quadratic_form(rho, p, q)
        margins = jnp.log(inverse_square + p * p / df) + jnp.log(inverse_square + q * q / df)
        return (
            constant + (df + 1) / 2 * margins - (df + 2) / 2 * jnp.log(inverse_square + form / df) + df * jnp.log(unit)
        )

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """Return v = T(ρx + T_{df + 1}⁻¹(p) √((1 − ρ²)(df + x²)/(df + 1)))."""
        rho, df = self._parameters()
        x = _student_quantile(df, u)
        scale = _spread(rho) * jnp.hypot(jnp.sqrt(df), x) / jnp.sqrt(df + 1)
        return _student_probability(df, rho * x + scale * _student_quantile(df + 1, p))

    def tail_dependence(self) -> TailDependence:
        """Return λ_L = λ_U = 2 P(T ≤ −√((ν + 1)(1 − ρ)/(1 + ρ))), T with ν + 1 degrees of freedom."""
        rho, df = jnp.broadcast_arrays(*(as_floats(value) for value in (self.rho, self.df)))
        # Two roots: at ρ = 1 the slope in ν is 0.
        apart = jnp.sqrt(df + 1) * jnp.sqrt((1 - rho) / jnp.where(rho > -1, 1 + rho, 1.0))
        share = jnp.where(rho > -1, 2 * _student_probability(df + 1, -apart).value, 0.0)
        return TailDependence(share, share)

    def tau(self) -> jax.Array:
        """Return Kendall's τ = (2/π) asin ρ, whatever the degrees of freedom."""
        return 2 / np.pi * jnp.arcsin(jnp.asarray(self.rho)) + jnp.zeros_like(jnp.asarray(self.df))

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """Return the member with ρ = sin(πτ/2), for τ held within ±0.98, with 4 degrees of freedom."""
        rho = jnp.sin(np.pi / 2 * cls._clip_tau(tau))
        return cls(rho, jnp.full_like(rho, 4.0))

    def _parameters(self) -> tuple[jax.Array, jax.Array]:
        """Return (ρ kept off ±1, df), in JAX's default float type."""
        return _off_the_ends(self.rho), as_floats(self.df)


@jax.custom_jvp
def _student_cdf(rho: jax.Array, df: jax.Array, u: Unit, v: Unit) -> jax.Array:
    """Compute T₂ at the quantiles of u and v, integrated as in `_normal_cdf` (Genz 2004).

    The integral runs over the tangent t of half the angle, and its integrand rises near the branch points ±i `scale`;
    in asinh(t/scale) these stay away from the path. It starts from ρ = −1, or from ρ = 1 for ρ > 0.7 and where the
    scale from −1 is small, near u + v = 1: there C is a large part of min(u, v), and nothing cancels. With 36 nodes
    the relative error is 1e-13 for uniform ranks, and at most 1e-11 for ν ≤ 40 where both coordinates are extreme.
    """
    reflect = v.value > u.complement
    first, second = flipped_where(reflect, u), flipped_where(reflect, v)
    x, y = _student_quantile(df, first), _student_quantile(df, second)
    x, y, rho, df = jnp.broadcast_arrays(x, y, rho, df)
    down = (rho > 0.7) | ((rho > -0.6) & (jnp.abs(x - y) > 4 * jnp.abs(x + y)))
    end = jnp.tan(jnp.arccos(jnp.where(down, rho, -rho)) / 2)
    offset, product = jnp.where(down, x - y, x + y), jnp.where(down, x * y, -x * y)
    scale = jnp.clip(jnp.abs(offset) / jnp.hypot(2 * jnp.sqrt(df), np.sqrt(2) * jnp.hypot(x, y)), _FINEST * end, end)
    reach = jnp.arcsinh(end / scale)
    points, weight = np.polynomial.legendre.leggauss(_STUDENT_NODES)
    s = (1 + points) / 2
    largest, inverse = jnp.finfo(x.dtype).max / 8, 1 / df

    def add(node: jax.Array, total: jax.Array) -> jax.Array:
        growth = jnp.exp(reach * jnp.asarray(s)[node])
        tangent, run = scale / 2 * (growth - 1 / growth), scale / 2 * (growth + 1 / growth)
        above = 1 + tangent * tangent
        reciprocal = 1 / (above * tangent)
        part = jnp.clip((offset * above * above * reciprocal / 2) ** 2 + product * above, 0.0, largest) * inverse
        share = 1 / (1 + part)
        # dω is 2 dt/(1 + t²).
        width = jnp.asarray(weight)[node] * run * tangent * reciprocal
        return total + width * jnp.exp(df / 2 * log_of_pair(share, part * share))

    area = lax.fori_loop(0, _STUDENT_NODES, add, jnp.zeros_like(x), unroll=_UNROLLED) * reach / (2 * np.pi)
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
    if not isinstance(rho_tangent, SymbolicZero):
        x, y = _student_quantile(df, u), _student_quantile(df, v)
        density = jnp.exp(-df / 2 * jnp.log1p(_quadratic_form(rho, x, y) / df)) / (2 * np.pi * _spread(rho))
        change += density * rho_tangent
    if not isinstance(df_tangent, SymbolicZero):
        # The quantiles depend on df, so that cached quantiles do not serve.
        bare = [z._replace(score=None) for z in (u, v)]
        change += jax.jvp(lambda df: _student_cdf.fun(rho, df, *bare), (df,), (df_tangent,))[1]
    for condition, other, tangent in ((u, v, u_tangent), (v, u, v_tangent)):
        if not isinstance(tangent.value, SymbolicZero):
            change += _student_conditional(rho, df, condition, other).value * tangent.value
    return value, change


def _student_conditional(rho: jax.Array, df: jax.Array, u: Unit, v: Unit) -> Unit:
    x, y = _student_quantile(df, u), _student_quantile(df, v)
    stretch = jnp.sqrt(df + 1) / jnp.hypot(jnp.sqrt(df), x)
    return _student_probability(df + 1, _residual(rho, x, y) * stretch)


def _angle(df: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (log cos, sin) of the angle with tangent x/√ν, for x ≥ 0."""
    root = jnp.sqrt(df)
    radius = jnp.hypot(root, x)
    cosine, sine = root / radius, x / radius
    return log_of_pair(cosine, sine * sine / (1 + cosine)), sine


def _tail_ratio(df: jax.Array, points: int) -> Callable[[jax.Array], jax.Array]:
    """Return P(T > x) / (½ cos^ν) as a function of the sine of the `_angle` of x.

    Few points take an integral each. Many points share a Chebyshev series, since they share a few degrees of freedom.
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
    """Compute 2/B(ν/2, ½) ∫₀^∞ (cosh s + sin · sinh s)^{−ν} ds, by substituting x = √ν sinh(asinh(tan) + s).

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
    if not isinstance(tangents[1], SymbolicZero):
        slope += jnp.exp(_log_student_density(df, x)) * tangents[1]
    if not isinstance(tangents[0], SymbolicZero):
        slope += jax.jvp(lambda df: _student_probability.fun(df, x).value, (df,), tangents[:1])[1]
    return value, Unit(slope, -slope)


def _student_quantile(df: jax.Array, u: Unit) -> jax.Array:
    return _quantile(df, u) if u.score is None else u.score


@jax.custom_jvp
def _quantile(df: jax.Array, u: Unit) -> jax.Array:
    lower, tail = _nearer_tail(u)
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
    if not isinstance(tangents[1].value, SymbolicZero):
        change += tangents[1].value
    if not isinstance(tangents[0], SymbolicZero):
        change -= jax.jvp(lambda df: _student_probability(df, x).value, (df,), tangents[:1])[1]
    return x, change * jnp.exp(-_log_student_density(df, x))


def _upper_quantile(df: jax.Array, tail: jax.Array) -> jax.Array:
    """Find x > 0 with P(T > x) = tail, by Halley's method on log P in log x, where log P is concave and falls."""
    # Start from the stretched normal quantile (Hill 1970 gives the exponent) or from the tail's power law, whose
    # logarithm is log lim P(T > x) x^df.
    z, log_tail = ndtri(tail), jnp.log(tail)
    stretched = (jnp.log(df) + jnp.log(jnp.expm1(jnp.minimum(z * z / df * (1 + 0.5 / df), 600.0)))) / 2
    power = ((df / 2 - 1) * jnp.log(df) - betaln(df / 2, 0.5) - log_tail) / df
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
