"""The beta function, the incomplete beta function with all derivatives, digamma and trigamma; elementwise on arrays."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

_FRACTION_TERMS = 80
#: Terms of a continued fraction per kernel on an accelerator: kernels that wait for one another take most of the time
#: of a frontier there. On a CPU unrolling is no quicker, and takes longer to compile.
UNROLLED = 8


def betaln(a: ArrayLike, b: ArrayLike) -> jax.Array:
    """log B(a, b) for a, b > 0: ten steps of the recurrence on each side, then Stirling's series.

    jax.scipy.special.betaln is off by up to 4e-7 where max(a, b) > 8, in float64 too.

    >>> round(float(betaln(3.0, 12.0)), 4)
    -6.9958
    """
    a, b = jnp.broadcast_arrays(*(jnp.asarray(value, dtype=jnp.result_type(a, b, float)) for value in (a, b)))
    step = jnp.arange(10, dtype=a.dtype)
    p, q = a[..., None] + step, b[..., None] + step
    both = (a + b)[..., None] + step
    ratio = both / jnp.minimum(p, q) * ((both + 10) / jnp.maximum(p, q))
    p, q = a + 10, b + 10

    # Stacked, they are one loop: a small formula takes longest to compile.
    y = 1 / jnp.stack([p, q, p + q])
    square = y * y
    inner = 1 / 1260 - square * (1 / 1680 - square * (1 / 1188 - square * 691 / 360360))
    series = y * (1 / 12 - square * (1 / 360 - square * inner))
    log_1p = jnp.log1p(jnp.stack([q / p, p / q]))
    shape = -(p - 0.5) * log_1p[0] - q * log_1p[1] - 0.5 * jnp.log(q)
    return jnp.log(ratio).sum(-1) + shape + series[0] + series[1] - series[2] + 0.9189385332046727  # log √2π


def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> jax.Array:
    """The regularised incomplete beta function I_x(a, b), differentiable in all three arguments.

    jax and tensorflow-probability lack the gradients in a and b, or get them wrong at integers. Here the continued
    fraction is differentiated term by term (Boik & Robison-Cox 1998, "Derivatives of the incomplete beta function",
    J. Stat. Softw. 3(1)).

    >>> round(float(betainc(2.0, 3.0, 0.5)), 4)
    0.6875
    >>> round(float(jax.grad(betainc)(1.0, 6.0, 0.15)), 3)
    -0.408
    """
    return betainc_and_power(a, b, x)[0]


@jax.custom_jvp
def betainc_and_power(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Return (I_x(a, b), xᵃ(1 − x)ᵇ / B(a, b)): the cdf of a beta variate, and x(1 − x) times its density.

    Both come from one evaluation, and I_x(a + 1, b) is the first minus the second divided by a (DLMF 8.17.20).

    >>> [round(float(value), 4) for value in betainc_and_power(2.0, 3.0, 0.5)]
    [0.6875, 0.375]
    """
    a, b, x = (jnp.asarray(value, dtype=jnp.result_type(a, b, x, float)) for value in (a, b, x))
    # Before broadcasting: the parameters are few and the points many.
    log_beta = betaln(a, b)
    return _betainc_and_power(*jnp.broadcast_arrays(a, b, x, log_beta))


@partial(betainc_and_power.defjvp, symbolic_zeros=True)
def _betainc_and_power_jvp(
    primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, Any, Any]
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    a, b, x = primals
    value, power = betainc_and_power(a, b, x)
    inside = (x > 0) & (x < 1)
    safe = jnp.where(inside, x, 0.5)
    value_tangent, log_tangent = jnp.zeros_like(value), jnp.zeros_like(value)

    def varies(tangent: Any) -> bool:
        return not isinstance(tangent, jax.custom_derivatives.SymbolicZero)

    if varies(tangents[2]):
        value_tangent += power / (safe * (1 - safe)) * tangents[2]
        log_tangent += (a / safe - b / (1 - safe)) * tangents[2]
    if varies(tangents[0]) or varies(tangents[1]):
        (digamma_a, digamma_b, digamma_both), _ = polygammas(jnp.stack(jnp.broadcast_arrays(a, b, a + b)))
        by_a, by_b = _shape_gradients(a, b, x, power, (digamma_a, digamma_b, digamma_both))
        for tangent, gradient, log_gradient in (
            (tangents[0], by_a, jnp.log(safe) - digamma_a + digamma_both),
            (tangents[1], by_b, jnp.log1p(-safe) - digamma_b + digamma_both),
        ):
            if varies(tangent):
                value_tangent += gradient * tangent
                log_tangent += log_gradient * tangent
    return (value, power), (value_tangent, power * log_tangent)


def _shape_gradients(
    a: jax.Array, b: jax.Array, x: jax.Array, power: jax.Array, digammas: tuple[jax.Array, jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Return (∂I_x(a, b)/∂a, ∂I_x(a, b)/∂b), elementwise; 0 at x = 0 and x = 1.

    Args:
        a, b, x: of I_x(a, b).
        power: xᵃ(1 − x)ᵇ / B(a, b), which is 0 at either end.
        digammas: of a, b and a + b.
    """
    digamma_a, digamma_b, digamma_both = digammas
    a, b, x = jnp.broadcast_arrays(a, b, x)
    inside = (x > 0) & (x < 1)
    x = jnp.where(inside, x, 0.5)
    swap, p, q, y = _reflect(a, b, x)
    log_y, log_1y = jnp.where(swap, jnp.log1p(-x), jnp.log(x)), jnp.where(swap, jnp.log(x), jnp.log1p(-x))
    # Both slopes by one loop, which is most of what there is to compile.
    directions = jnp.eye(2, dtype=p.dtype).reshape(2, 2, *[1] * p.ndim) * jnp.ones_like(p)
    fraction, (by_p, by_q) = jax.vmap(
        lambda one: jax.jvp(lambda p, q: _fraction(p, q, y), (p, q), tuple(one)), out_axes=(None, 0)
    )(directions)
    front = power / p * fraction
    digamma_p, digamma_q = jnp.where(swap, digamma_b, digamma_a), jnp.where(swap, digamma_a, digamma_b)
    d_p = front * (log_y - digamma_p + digamma_both - 1 / p + by_p / fraction)
    d_q = front * (log_1y - digamma_q + digamma_both + by_q / fraction)
    return jnp.where(swap, -d_q, d_p), jnp.where(swap, -d_p, d_q)


def _reflect(a: jax.Array, b: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
    """Return (swapped, p, q, y) with a fast fraction: I_x(a, b) = 1 − I_{1−x}(b, a) for x > (a + 1)/(a + b + 2)."""
    swap = x > (a + 1) / (a + b + 2)
    return swap, jnp.where(swap, b, a), jnp.where(swap, a, b), jnp.where(swap, 1 - x, x)


def _betainc_and_power(a: jax.Array, b: jax.Array, x: jax.Array, log_beta: jax.Array) -> tuple[jax.Array, jax.Array]:
    inside = (x > 0) & (x < 1)
    swap, p, q, y = _reflect(a, b, jnp.where(inside, x, 0.5))
    power = jnp.exp(p * jnp.log(y) + q * jnp.log1p(-y) - log_beta)
    value = power / p * _fraction(p, q, y)
    value = jnp.where(inside, jnp.where(swap, 1 - value, value), jnp.clip(x, 0.0, 1.0))
    return value, jnp.where(inside, power, 0.0)


def _fraction(p: jax.Array, q: jax.Array, y: jax.Array) -> jax.Array:
    """The continued fraction of I_y(p, q), DLMF 8.17.22, evaluated backwards.

    Backward evaluation carries one number and needs one division for two terms. The omitted tail repeats its first
    terms (Gill 1975, "Infinite compositions of Möbius transformations"). Errors are below 1e-12 for shapes up to 10⁴
    and y below (p + 1)/(p + q + 2).
    """

    def numerators(m: int | jax.Array) -> tuple[jax.Array, ...]:
        n = p + 2 * m
        return n, m * (q - m) * y, -(p + m) * (p + q + m) * y

    n, even, odd = numerators(_FRACTION_TERMS + 1)
    even, odd = even / ((n - 1) * n), odd / (n * (n + 1))
    middle = (1 + odd - even) / 2
    tail = jnp.sqrt(jnp.maximum(middle**2 + even, 0.0)) - middle

    def back(step: jax.Array, tail: jax.Array) -> jax.Array:
        n, even, odd = numerators(jnp.asarray(_FRACTION_TERMS - step, y.dtype))
        rest = 1 + tail
        return even * rest * (n + 1) / ((n - 1) * (rest * n * (n + 1) + odd))

    tail = lax.fori_loop(0, _FRACTION_TERMS, back, tail, unroll=_unrolled())
    return 1 / (1 - (p + q) * y / ((p + 1) * (1 + tail)))


def _unrolled() -> int:
    return 1 if jax.default_backend() == "cpu" else UNROLLED


def polygammas(x: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Return (ψ(x), ψ′(x)), digamma and trigamma of x > 0: ten steps of the recurrence, then the asymptotic series.

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
