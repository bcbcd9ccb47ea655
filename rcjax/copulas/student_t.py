"""The copula of the bivariate Student's t distribution: dependence of either sign, and in both tails."""

from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtri
from jax.typing import ArrayLike

from rcjax._base.arguments import check_arguments
from rcjax._core.numerics import betainc, betaln, divide
from rcjax.copulas.base import param
from rcjax.copulas.closed import ClosedForm
from rcjax.copulas.elliptical import nearer_tail, off_the_ends, quadratic_form, residual, spread
from rcjax.copulas.unit import Scored, Unit, turned, with_flips

_NODES, _QUANTILE_STEPS = 80, 3
_FINEST = 1e-7


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
        _, df = self._parameters()
        return Scored(u.value, u.complement, _student_quantile(df, u))

    def two_sided_cdf(self, u: Unit, v: Unit) -> tuple[jax.Array, jax.Array]:
        """C by `_student_cdf`, and S(u, v) = C(1 − u, 1 − v)."""
        rho, df = self._parameters()
        below, above = _student_cdf(rho, df, *with_flips(u, v, rho, df))
        return below, above

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
        # Far out x² overflows: log(1 + x²/ν) in units of the larger of |x|, |y| and 1.
        unit = jnp.maximum(jnp.maximum(jnp.abs(x), jnp.abs(y)), 1.0)
        p, q, one = x / unit, y / unit, 1 / unit**2
        form = quadratic_form(rho, p, q)
        margins = jnp.log(one + p * p / df) + jnp.log(one + q * q / df)
        return constant + (df + 1) / 2 * margins - (df + 2) / 2 * jnp.log(one + form / df) + df * jnp.log(unit)

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """v = T(ρx + T_{df + 1}⁻¹(p) √((1 − ρ²)(df + x²)/(df + 1)))."""
        rho, df = self._parameters()
        x = _student_quantile(df, u)
        scale = spread(rho) * jnp.hypot(jnp.sqrt(df), x) / jnp.sqrt(df + 1)
        return _student_cdf_1d(df, rho * x + scale * _student_quantile(df + 1, p))

    def tau(self) -> jax.Array:
        """Kendall's τ = (2/π) asin ρ, whatever the degrees of freedom."""
        return 2 / np.pi * jnp.arcsin(jnp.asarray(self.rho)) + jnp.zeros_like(jnp.asarray(self.df))

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """ρ = sin(πτ/2), for τ held within ±0.98, with 4 degrees of freedom."""
        check_arguments(StudentT.from_tau, locals())
        rho = jnp.sin(np.pi / 2 * cls._within_reach(tau))
        return cls(rho, jnp.full_like(rho, 4.0))

    def tail_dependence(self) -> tuple[jax.Array, jax.Array]:
        """(lower, upper) tail dependence: both 2 T_{df + 1}(−√((df + 1)(1 − ρ)/(1 + ρ)))."""
        rho, df = self._parameters()
        both = 2 * _student_cdf_1d(df + 1, -jnp.sqrt((df + 1) * (1 - rho) / (1 + rho))).value
        return both, both

    def _parameters(self) -> tuple[jax.Array, jax.Array]:
        """(ρ kept off ±1, df), in jax's default float type."""
        return off_the_ends(self.rho), jnp.asarray(self.df, jnp.result_type(float))


@jax.custom_jvp
def _student_cdf(rho: jax.Array, df: jax.Array, u: Any, v: Any) -> jax.Array:
    """T₂ at the quantiles of u and v: as `gaussian._normal_cdf`, from ρ = −1, or from ρ = 1 for ρ > 0.9 (Genz 2004).

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
    points, weights = np.polynomial.legendre.leggauss(_NODES)
    s = (points + 1) / 2

    def add(place: jax.Array, total: jax.Array) -> jax.Array:
        z = reach * jnp.asarray(s)[place]
        tangent = scale * jnp.sinh(z)
        square = tangent * tangent
        form = (gap * (1 + square) / (2 * tangent)) ** 2 + both * (1 + square)
        width = jnp.asarray(weights)[place] * scale * jnp.cosh(z) / (1 + square)  # dω is 2 dt/(1 + t²)
        return total + width * jnp.exp(-df / 2 * jnp.log1p(jnp.maximum(form, 0.0) / df))

    area = lax.fori_loop(0, _NODES, add, jnp.zeros_like(x)) * reach / (2 * np.pi)
    below = jnp.where(down, jnp.minimum(first.value, second.value) - area, area)
    return jnp.where(reflect, u.value - v.complement, 0.0) + below


@partial(_student_cdf.defjvp, symbolic_zeros=True)
def _student_cdf_jvp(
    primals: tuple[jax.Array, jax.Array, Scored | Unit, Scored | Unit],
    tangents: tuple[Any, Any, Scored | Unit, Scored | Unit],
) -> tuple[jax.Array, jax.Array]:
    # In u and v by the conditionals: near u + v = 1 the slope of the integral changes faster than its nodes see.
    rho, df, u, v = primals
    rho_tangent, df_tangent, u_tangent, v_tangent = tangents
    value = _student_cdf(rho, df, u, v)
    change = jnp.zeros_like(value)
    if not _is_zero(rho_tangent):
        x, y = _student_quantile(df, u), _student_quantile(df, v)
        change += jnp.exp(-df / 2 * jnp.log1p(quadratic_form(rho, x, y) / df)) / (2 * np.pi * spread(rho)) * rho_tangent
    if not _is_zero(df_tangent):
        # The quantiles move with df: those that came with u and v are made again.
        bare = [Unit(z.value, z.complement) for z in (u, v)]
        change += jax.jvp(lambda df: _student_cdf.fun(rho, df, *bare), (df,), (df_tangent,))[1]
    for condition, other, tangent in ((u, v, u_tangent), (v, u, v_tangent)):
        if not _is_zero(tangent.value):
            change += _student_conditional(rho, df, condition, other).value * tangent.value
    return value, change


def _student_conditional(rho: jax.Array, df: jax.Array, u: Any, v: Any) -> Unit:
    x, y = _student_quantile(df, u), _student_quantile(df, v)
    stretch = jnp.sqrt(df + 1) / jnp.hypot(jnp.sqrt(df), x)
    return _student_cdf_1d(df + 1, residual(rho, x, y) * stretch)


def _log_tail(df: jax.Array, log_x: jax.Array) -> jax.Array:
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


def _log_power_law(df: jax.Array) -> jax.Array:
    """log of the limit of P(T > x) x^df."""
    return (df / 2 - 1) * jnp.log(df) - betaln(df / 2, 0.5)


def _log_student_density(df: jax.Array, x: jax.Array) -> jax.Array:
    return -jnp.log(df) / 2 - betaln(df / 2, 0.5) - (df + 1) * jnp.log(jnp.hypot(1.0, x / jnp.sqrt(df)))


@jax.custom_jvp
def _student_cdf_1d(df: jax.Array, x: jax.Array) -> Unit:
    size = jnp.abs(x)
    tail = jnp.where(size > 0, jnp.exp(_log_tail(df, jnp.log(jnp.where(size > 0, size, 1.0)))), 0.5)
    lower = x <= 0
    return Unit(jnp.where(lower, tail, 1 - tail), jnp.where(lower, 1 - tail, tail))


@partial(_student_cdf_1d.defjvp, symbolic_zeros=True)
def _student_cdf_1d_jvp(primals: tuple[jax.Array, jax.Array], tangents: tuple[Any, jax.Array]) -> tuple[Unit, Unit]:
    df, x = primals
    value = _student_cdf_1d(df, x)
    slope = jnp.zeros_like(value.value)
    if not _is_zero(tangents[1]):
        slope += jnp.exp(_log_student_density(df, x)) * tangents[1]
    if not _is_zero(tangents[0]):
        slope += jax.jvp(lambda df: _student_cdf_1d.fun(df, x).value, (df,), tangents[:1])[1]
    return value, Unit(slope, -slope)


def _student_quantile(df: jax.Array, u: Unit | Scored) -> jax.Array:
    return u.score if isinstance(u, Scored) else _quantile(df, u)


@jax.custom_jvp
def _quantile(df: jax.Array, u: Unit) -> jax.Array:
    lower, tail = nearer_tail(u)
    tail, df = jnp.broadcast_arrays(tail, df)
    size = jnp.vectorize(_upper_quantile)(df, jnp.minimum(tail, 0.5 - jnp.finfo(tail.dtype).eps))
    return jnp.where(lower, -size, size)


@partial(_quantile.defjvp, symbolic_zeros=True)
def _quantile_jvp(primals: tuple[jax.Array, Unit], tangents: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    df, u = primals
    x = _quantile(df, u)
    change = jnp.zeros_like(x)
    if not _is_zero(tangents[1].value):
        change += tangents[1].value
    if not _is_zero(tangents[0]):
        change -= jax.jvp(lambda df: _student_cdf_1d(df, x).value, (df,), tangents[:1])[1]
    return x, change * jnp.exp(-_log_student_density(df, x))


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, jax.custom_derivatives.SymbolicZero)


def _upper_quantile(df: jax.Array, tail: jax.Array) -> jax.Array:
    """The x > 0 with P(T > x) = tail: Halley's method on log P in log x, where it is concave and falls."""
    # The normal quantile, stretched (Hill 1970 gives the exponent), or the power law of the tail.
    z = ndtri(tail)
    stretched = jnp.log(jnp.sqrt(df * jnp.expm1(jnp.minimum(z * z / df * (1 + 0.5 / df), 600.0))))
    power = (_log_power_law(df) - jnp.log(tail)) / df

    def step(_, log_x: jax.Array) -> jax.Array:
        x, value = jnp.exp(log_x), _log_tail(df, log_x)
        slope = -jnp.exp(log_x + _log_student_density(df, x) - value)
        curvature = slope * (1 - (df + 1) * (x / jnp.hypot(jnp.sqrt(df), x)) ** 2 - slope)
        excess = value - jnp.log(tail)
        newton = divide(excess, slope)
        # Halley's step: Newton's with the curvature, which is known.
        return log_x - newton / jnp.maximum(1 - newton * divide(curvature, slope) / 2, 0.5)

    return jnp.exp(lax.fori_loop(0, _QUANTILE_STEPS, step, jnp.minimum(stretched, power)))
