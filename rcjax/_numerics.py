"""Stable primitives that the rest of rcjax is written in: scalar mathematics, elementwise on arrays."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

_FRACTION_TERMS = 1_000


def log1mexp(x: ArrayLike) -> jax.Array:
    """log(1 − eˣ) for x ≤ 0, exact for x near 0 and for very negative x.

    Reference: Mächler (2012), "Accurately computing log(1 − exp(−|a|))".

    >>> round(float(log1mexp(-1e-12)), 3)
    -27.631
    """
    x = jnp.asarray(x, dtype=jnp.result_type(float))
    near = x > -0.6931471805599453
    # Each branch sees a harmless argument where the other one is taken, so that gradients stay finite there.
    return jnp.where(
        near,
        jnp.log(-jnp.expm1(jnp.where(near, x, -1.0))),
        jnp.log1p(-jnp.exp(jnp.where(near, -1.0, x))),
    )


def open_unit(u: ArrayLike) -> jax.Array:
    """u clipped to the open interval (0, 1): the nearest numbers whose logarithms are finite.

    >>> bool(open_unit(0.0) > 0), bool(open_unit(1.0) < 1)
    (True, True)
    """
    u = jnp.asarray(u, dtype=jnp.result_type(float))
    info = jnp.finfo(u.dtype)
    return jnp.clip(u, info.tiny, 1 - info.epsneg)


def divide(numerator: ArrayLike, denominator: ArrayLike, otherwise: ArrayLike = 0.0) -> jax.Array:
    """numerator / denominator, and `otherwise` where the denominator is 0; gradients are finite in both cases.

    >>> float(divide(1.0, 0.0)), float(divide(1.0, 4.0))
    (0.0, 0.25)
    """
    denominator = jnp.asarray(denominator)
    safe = jnp.where(denominator == 0, 1, denominator)
    return jnp.where(denominator == 0, otherwise, numerator / safe)


def betaln(a: ArrayLike, b: ArrayLike) -> jax.Array:
    """log B(a, b) for a, b > 0: ten steps of the recurrence on each side, then Stirling's series.

    jax.scipy.special.betaln is off by up to 4e-7 where max(a, b) > 8, in float64 too.

    >>> round(float(betaln(3.0, 12.0)), 4)
    -6.9958
    """
    a, b = (jnp.asarray(value, dtype=jnp.result_type(a, b, float)) for value in (a, b))
    step = jnp.arange(10, dtype=a.dtype)
    p, q = a[..., None] + step, b[..., None] + step
    both = (a + b)[..., None] + step
    ratio = both / jnp.minimum(p, q) * ((both + 10) / jnp.maximum(p, q))
    p, q = a + 10, b + 10

    def stirling(x):
        y = 1 / x
        square = y * y
        inner = 1 / 1260 - square * (1 / 1680 - square * (1 / 1188 - square * 691 / 360360))
        return y * (1 / 12 - square * (1 / 360 - square * inner))

    series = stirling(p) + stirling(q) - stirling(p + q) + 0.9189385332046727  # log √2π
    shape = -(p - 0.5) * jnp.log1p(q / p) - q * jnp.log1p(p / q) - 0.5 * jnp.log(q)
    return jnp.log(ratio).sum(-1) + shape + series


@jax.custom_jvp
def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> jax.Array:
    """The regularised incomplete beta function I_x(a, b), differentiable in all three arguments.

    jax and tensorflow-probability leave the gradients in a and b out or get them wrong at integers; here they come
    from the continued fraction, whose terms are differentiated as it is summed (Boik & Robison-Cox 1998,
    "Derivatives of the incomplete beta function", J. Stat. Softw. 3(1)).

    >>> round(float(betainc(2.0, 3.0, 0.5)), 4)
    0.6875
    >>> round(float(jax.grad(betainc)(1.0, 6.0, 0.15)), 3)
    -0.408
    """
    a, b, x = (jnp.asarray(value, dtype=jnp.result_type(a, b, x, float)) for value in (a, b, x))
    # Before broadcasting: the shapes are few and the points many.
    log_beta = betaln(a, b)
    return _betainc_value(*jnp.broadcast_arrays(a, b, x, log_beta))


@partial(betainc.defjvp, symbolic_zeros=True)
def _betainc_jvp(primals, tangents):
    a, b, x = primals
    value = betainc(a, b, x)
    zero = jax.custom_derivatives.SymbolicZero
    tangent = jnp.zeros_like(value)
    if not isinstance(tangents[2], zero):
        inside = (x > 0) & (x < 1)
        density = jnp.where(inside, jnp.exp(_log_beta_density(a, b, jnp.where(inside, x, 0.5))), 0.0)
        tangent += density * tangents[2]
    if not (isinstance(tangents[0], zero) and isinstance(tangents[1], zero)):
        by_a, by_b = betainc_shape_gradients(a, b, x)
        for partial_derivative, shape_tangent in ((by_a, tangents[0]), (by_b, tangents[1])):
            if not isinstance(shape_tangent, zero):
                tangent += partial_derivative * shape_tangent
    return value, tangent


def _log_beta_density(a, b, x):
    return (a - 1) * jnp.log(x) + (b - 1) * jnp.log1p(-x) - betaln(a, b)


def betainc_shape_gradients(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """(∂I_x(a, b)/∂a, ∂I_x(a, b)/∂b), elementwise; 0 at x = 0 and x = 1.

    >>> [round(float(g), 4) for g in betainc_shape_gradients(2.0, 2.0, 0.5)]
    [-0.2216, 0.2216]
    """
    a, b, x = (jnp.asarray(value, dtype=jnp.result_type(a, b, x, float)) for value in (a, b, x))
    return jnp.vectorize(_betainc_shape_gradients)(a, b, x)


def _reflect(a, b, x):
    """Arguments for which the fraction converges fast: above the mean, I_x(a, b) = 1 − I_{1−x}(b, a)."""
    swap = x > (a + 1) / (a + b + 2)
    return swap, jnp.where(swap, b, a), jnp.where(swap, a, b), jnp.where(swap, 1 - x, x)


def _betainc_value(a, b, x, log_beta):
    inside = (x > 0) & (x < 1)
    swap, p, q, y = _reflect(a, b, jnp.where(inside, x, 0.5))

    def unfinished(carry):
        m, *_, change = carry
        return jnp.any(change > 4 * jnp.finfo(y.dtype).eps) & (m < _FRACTION_TERMS)

    def advance(carry):
        m, c, d, f, _ = carry
        c, d, new = _lentz_step(m, p, q, y, c, d, f)
        return m + 1, c, d, new, jnp.abs(c * d - 1)

    start = _lentz_start(p, q, y)
    *_, fraction, _ = lax.while_loop(unfinished, advance, (jnp.ones((), y.dtype), *start, jnp.ones_like(y)))
    value = jnp.exp(p * jnp.log(y) + q * jnp.log1p(-y) - log_beta) / p * fraction
    return jnp.where(inside, jnp.where(swap, 1 - value, value), jnp.clip(x, 0.0, 1.0))


def _betainc_shape_gradients(a, b, x):
    inside = (x > 0) & (x < 1)
    x = jnp.where(inside, x, 0.5)
    swap, p, q, y = _reflect(a, b, x)
    log_y, log_1y = jnp.where(swap, jnp.log1p(-x), jnp.log(x)), jnp.where(swap, jnp.log(x), jnp.log1p(-x))
    fraction, (by_p, by_q) = _fraction_and_gradients(p, q, y)
    front = jnp.exp(p * log_y + q * log_1y - betaln(p, q)) / p * fraction
    (digamma_p, digamma_q, digamma_both), _ = polygammas(jnp.stack([p, q, p + q]))
    d_p = front * (log_y - digamma_p + digamma_both - 1 / p + by_p / fraction)
    d_q = front * (log_1y - digamma_q + digamma_both + by_q / fraction)
    by_a, by_b = jnp.where(swap, -d_q, d_p), jnp.where(swap, -d_p, d_q)
    return jnp.where(inside, by_a, 0.0), jnp.where(inside, by_b, 0.0)


def _lentz_start(p, q, y):
    d = 1 / _away_from_zero(1 - (p + q) * y / (p + 1))
    return jnp.ones_like(y), d, d


def _lentz_step(m, p, q, y, c, d, f):
    """Two terms of the fraction of I_y(p, q), by Lentz's modified algorithm (DLMF 8.17.22)."""
    even = m * (q - m) * y / ((p + 2 * m - 1) * (p + 2 * m))
    odd = -(p + m) * (p + q + m) * y / ((p + 2 * m) * (p + 2 * m + 1))
    for term in (even, odd):
        d = 1 / _away_from_zero(1 + term * d)
        c = _away_from_zero(1 + term / c)
        f = f * c * d
    return c, d, f


def _away_from_zero(value):
    tiny = jnp.finfo(value.dtype).eps ** 2
    return jnp.where(jnp.abs(value) < tiny, tiny, value)


def _fraction_and_gradients(p, q, y):
    """The fraction and its derivatives by p and q, differentiated term by term as it is summed."""
    directions = jnp.eye(2, dtype=y.dtype)

    def push(function, point, tangents):
        along = jax.vmap(lambda tangent: jax.jvp(function, point, tangent), out_axes=(None, 0))
        return along(tangents)

    def advance(carry):
        m, state, slopes, _ = carry
        new, new_slopes = push(
            lambda p, q, *state: _lentz_step(m, p, q, y, *state), (p, q, *state), (*directions.T, *slopes)
        )
        change = jnp.max(jnp.abs(new_slopes[2] - slopes[2])) / (1 + jnp.max(jnp.abs(new_slopes[2])))
        return m + 1, new, new_slopes, jnp.maximum(change, jnp.abs(new[2] / state[2] - 1))

    def unfinished(carry):
        m, *_, change = carry
        return (change > 4 * jnp.finfo(y.dtype).eps) & (m < _FRACTION_TERMS)

    state, slopes = push(lambda p, q: _lentz_start(p, q, y), (p, q), tuple(directions.T))
    start = (jnp.ones_like(y), state, slopes, jnp.full_like(y, jnp.inf))
    _, state, slopes, _ = lax.while_loop(unfinished, advance, start)
    return state[2], slopes[2]


def polygammas(x: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """(ψ(x), ψ′(x)), digamma and trigamma of x > 0 together: ten steps of the recurrence, then the asymptotic series.

    Abramowitz & Stegun 6.3.5, 6.3.18, 6.4.6 and 6.4.12. jax's own trigamma is a Hurwitz zeta that takes a second to
    compile.

    >>> [round(float(value), 6) for value in polygammas(1.0)]
    [-0.577216, 1.644934]
    """
    x = jnp.asarray(x, dtype=jnp.result_type(float))[..., None]
    reciprocal = 1 / (x + jnp.arange(10, dtype=x.dtype))
    y = 1 / (x[..., 0] + 10)
    square = y * y
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    slope = square * (1 / 6 - square * (1 / 30 - square * (1 / 42 - square * (1 / 30 - square * 5 / 66))))
    digamma = -jnp.log(y) - y / 2 - series - reciprocal.sum(-1)
    trigamma = y * (1 + y / 2 + slope) + (reciprocal**2).sum(-1)
    return digamma, trigamma
