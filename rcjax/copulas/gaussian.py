"""The copula of the bivariate normal distribution: dependence of either sign, none in the tails."""

from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from rcjax._core.batching import ndtri
from rcjax.copulas.base import RadialForm, TailDependence, param
from rcjax.copulas.unit import Unit, is_zero, turned

#: Nodes of the integral; `_FEW_NODES` do if it starts from ρ = 0 and all quantiles are within ±`_NEAR`.
_NODES, _FEW_NODES, _NEAR = 48, 20, 6.0
_UNROLLED = 1


class Gaussian(RadialForm):
    """C(u, v) = Φ₂(Φ⁻¹(u), Φ⁻¹(v); ρ), −1 ≤ ρ ≤ 1; ρ = 0 is independence. It has no tail dependence for ρ < 1.

    >>> round(float(Gaussian(0.5).cdf(0.5, 0.5)), 4)  # ¼ + asin(ρ)/(2π)
    0.3333
    """

    rho: jax.Array | float = param(0.5, support=(-1.0, 1.0))

    def prepared(self, u: Unit) -> Unit:
        """u with its normal quantile."""
        return u._replace(score=_normal_quantile(u))

    def lower_cdf(self, u: Unit, v: Unit) -> jax.Array:
        """C(u, v) from Plackett's integral over the correlation."""
        return _normal_cdf(off_the_ends(self.rho), u, v)

    def two_sided_conditional(self, u: Unit, v: Unit) -> Unit:
        """h = Φ((y − ρx)/√(1 − ρ²)) with x = Φ⁻¹(u), y = Φ⁻¹(v)."""
        return _normal_conditional(off_the_ends(self.rho), u, v)

    def two_sided_log_density(self, u: Unit, v: Unit) -> jax.Array:
        """log c = −log √(1 − ρ²) − (ρ (x ∓ y))²/(2 (1 − ρ²)) + ρxy/(1 + |ρ|), − for ρ ≥ 0 and + for ρ < 0."""
        rho, x, y = off_the_ends(self.rho), _normal_quantile(u), _normal_quantile(v)
        scale, apart = spread(rho), gap(rho, x, y)
        return rho * x * y / (1 + jnp.abs(rho)) - (apart * rho / scale) ** 2 / 2 - jnp.log(scale)

    def two_sided_inverse(self, u: Unit, p: Unit) -> Unit:
        """v = Φ(ρx + √(1 − ρ²) Φ⁻¹(p))."""
        rho = off_the_ends(self.rho)
        return _normal_probability(rho * _normal_quantile(u) + spread(rho) * _normal_quantile(p))

    def spearman(self) -> jax.Array:
        """Spearman's ρ = (6/π) asin(ρ/2)."""
        return 6 / np.pi * jnp.arcsin(jnp.asarray(self.rho) / 2)

    def tail_dependence(self) -> TailDependence:
        """λ_L = λ_U = 1 at ρ = 1, else 0."""
        share = (jnp.asarray(self.rho) >= 1).astype(jnp.result_type(float))
        return TailDependence(share, share)

    def tau(self) -> jax.Array:
        """Kendall's τ = (2/π) asin ρ."""
        return 2 / np.pi * jnp.arcsin(jnp.asarray(self.rho))

    @classmethod
    def from_tau(cls, tau: ArrayLike) -> Self:
        """ρ = sin(πτ/2), for τ held within ±0.98."""
        return cls(jnp.sin(np.pi / 2 * cls._within_reach(tau)))


# Formulas in ρ that keep their digits near ±1, shared by the Gaussian and Student's t copulas.


def off_the_ends(rho: ArrayLike) -> jax.Array:
    """Clip ρ just inside ±1, so that 1 − ρ² > 0; the slope stays 1.

    >>> bool(off_the_ends(1.0) < 1), float(off_the_ends(0.5))
    (True, 0.5)
    """
    rho = jnp.asarray(rho, jnp.result_type(float))
    last = 1 - 2 * jnp.finfo(rho.dtype).eps
    return jnp.where(jnp.abs(rho) <= last, rho, rho * last)


def spread(rho: jax.Array) -> jax.Array:
    """√(1 − ρ²), the standard deviation of y given x.

    >>> round(float(spread(0.6)), 4)
    0.8
    """
    return jnp.sqrt((1 - rho) * (1 + rho))


def gap(rho: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """x − y for ρ ≥ 0, x + y for ρ < 0: the offset of (x, y) from the line y = ±x of perfect correlation.

    >>> float(gap(0.5, 3.0, 1.0)), float(gap(-0.5, 3.0, 1.0))
    (2.0, 4.0)
    """
    return jnp.where(rho < 0, x + y, x - y)


def quadratic_form(rho: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """(x² − 2ρxy + y²)/(1 − ρ²), computed from the gap: near ρ = ±1 the terms of the numerator cancel.

    It is quadratic in (x, y): callers that fear an overflow scale both down.

    >>> round(float(quadratic_form(0.5, 2.0, 1.0)), 4)
    4.0
    """
    return (gap(rho, x, y) / spread(rho)) ** 2 + jnp.where(rho < 0, -2, 2) * x * y / (1 + jnp.abs(rho))


def residual(rho: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """(y − ρx)/√(1 − ρ²), with the gap y ∓ x as a term of its own, since it dominates near ρ = ±1.

    >>> round(float(residual(0.6, 1.0, 1.0)), 4)
    0.5
    """
    rest = jnp.sqrt((1 - jnp.abs(rho)) / (1 + jnp.abs(rho)))
    return gap(rho, y, x) / spread(rho) + jnp.where(rho < 0, -x, x) * rest


def nearer_tail(u: Unit) -> tuple[jax.Array, jax.Array]:
    """(whether u is in the lower half, the smaller of u and 1 − u).

    >>> lower, tail = nearer_tail(Unit(jnp.asarray(1.0), jnp.asarray(1e-30)))
    >>> bool(lower), f"{float(tail):.1g}"
    (False, '1e-30')
    """
    lower = u.value <= u.complement
    return lower, jnp.where(lower, u.value, u.complement)


def _normal_quantile(u: Unit) -> jax.Array:
    if u.score is not None:
        return u.score
    lower, tail = nearer_tail(u)
    z = ndtri(tail)
    return jnp.where(lower, z, -z)


def _normal_probability(z: jax.Array) -> Unit:
    """Φ(z) and Φ(−z) by `erfc` alone, in a fifth of the time of `ndtr`, which evaluates `erf` too."""
    return Unit(lax.erfc(-z * np.sqrt(0.5)) / 2, lax.erfc(z * np.sqrt(0.5)) / 2)


@jax.custom_jvp
def _normal_cdf(rho: jax.Array, u: Unit, v: Unit) -> jax.Array:
    """Φ₂ at the quantiles of u and v, from Plackett's (1954) ∂Φ₂/∂ρ = φ₂, integrated over the angle acos ρ.

    The integral starts at ρ = 0, 1 or −1, where Φ₂ is known, chosen against cancellation and for a smooth integrand:
    near ±1 it rises at an angle of |x ∓ y|, which must lie outside. The relative accuracy is 1e-11, tails included.
    Genz (2004), "Numerical computation of rectangular bivariate and trivariate normal and t probabilities", has the
    same integrals for absolute accuracy.
    """
    # For ρ < 0 and u + v > 1, C(u, v) = u + v − 1 + C(1 − u, 1 − v) has the smaller integral.
    reflect = (rho < 0) & (v.value > u.complement)
    first, second = turned(reflect, u), turned(reflect, v)
    x, y = _normal_quantile(first), _normal_quantile(second)
    apart, product = gap(rho, x, y), jnp.where(rho < 0, -x * y, x * y)
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
    if not is_zero(rho_tangent):
        form = quadratic_form(rho, _normal_quantile(u), _normal_quantile(v))
        change += jnp.exp(-form / 2) / (2 * np.pi * spread(rho)) * rho_tangent
    for condition, other, tangent in ((u, v, u_tangent), (v, u, v_tangent)):
        if not is_zero(tangent.value):
            change += _normal_conditional(rho, condition, other).value * tangent.value
    return value, change


def _normal_conditional(rho: jax.Array, u: Unit, v: Unit) -> Unit:
    return _normal_probability(residual(rho, _normal_quantile(u), _normal_quantile(v)))


def _angle_integral(
    nodes: int, rho: jax.Array, from_zero: jax.Array, apart: jax.Array, product: jax.Array
) -> jax.Array:
    """2π times the integral of φ₂ over the angle, from ρ to 0 or to ±1, by Gauss–Legendre quadrature."""
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
        # These depend on the correlation alone, so that all points share them.
        ahead = coefficients(angle + (np.pi / 2 - angle) * far, np.pi / 2 - angle)
        close = coefficients(angle * near, angle * jnp.asarray(slope)[node])
        steep, rest, width = (jnp.where(from_zero, first, second) for first, second in zip(ahead, close, strict=True))
        return total + weight_here * width * jnp.exp(-apart * apart * steep - product * rest)

    return lax.fori_loop(0, nodes, add, jnp.zeros_like(apart * rho), unroll=_UNROLLED)
