"""Stable primitives that the rest of rcjax is written in: scalar mathematics, elementwise on arrays."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

_ARTANH = [1 / (2 * power + 1) for power in range(17)]


def log1mexp(x: ArrayLike) -> jax.Array:
    """log(1 − eˣ) for x ≤ 0, exact for x near 0 and for very negative x.

    Mächler (2012), "Accurately computing log(1 − exp(−|a|))", has two formulas for it, here are both in one.

    >>> round(float(log1mexp(-1e-12)), 3)
    -27.631
    """
    x = jnp.asarray(x, dtype=jnp.result_type(float))
    return log_of_pair(-jnp.expm1(x), jnp.exp(x))


def log_of_pair(value: jax.Array, complement: jax.Array) -> jax.Array:
    """log u for u and 1 − u, each rounded: to the digits of 1 − u where that is the smaller.

    One logarithm for both ends: in XLA `log1p` takes twice as long as `log`, and is off by up to 100 roundings.

    >>> f"{float(log_of_pair(jnp.asarray(1.0), jnp.asarray(1e-30))):.0e}"
    '-1e-30'
    """
    # What rounding took from u is the rest of 1 − u; over u, which 1/(2 − u) is near 1, where alone that matters.
    lost = ((1 - value) - complement) * (2 - value)
    return jnp.log(value) + jnp.where(value >= 0.5, lost, 0.0)


def log1p_ratio(y: jax.Array) -> jax.Array:
    """log(1 + y)/y for −½ ≤ y ≤ 1, smooth at 0 where it is 1.

    By the series of 2 artanh s = log((1 + s)/(1 − s)) with s = y/(2 + y): s² is at most 1/9.

    >>> float(log1p_ratio(jnp.asarray(0.0))), round(float(log1p_ratio(jnp.asarray(1.0))), 4)
    (1.0, 0.6931)
    """
    square = (y / (2 + y)) ** 2
    return 2 / (2 + y) * polynomial(_ARTANH, square)


def polynomial(coefficients: Iterable[float], x: jax.Array) -> jax.Array:
    """The polynomial at x by Horner's rule; coefficients from the constant on.

    >>> float(polynomial([1.0, 0.0, 2.0], jnp.asarray(3.0)))
    19.0
    """
    highest, *others = reversed(list(coefficients))
    total = jnp.full_like(x, highest)
    for coefficient in others:
        total = total * x + coefficient
    return total


@jax.custom_jvp
def softplus(x: jax.Array) -> jax.Array:
    """log(1 + eˣ), for any x: with its derivatives in a fraction of the time that `jax.nn.softplus` takes.

    >>> round(float(softplus(jnp.asarray(0.0))), 4), float(softplus(jnp.asarray(-jnp.inf)))
    (0.6931, 0.0)
    """
    small = jnp.exp(-jnp.abs(x))
    return jnp.maximum(x, 0.0) + small * log1p_ratio(small)


@softplus.defjvp
def _softplus_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return softplus(*primals), _sigmoid(*primals) * tangents[0]


@jax.custom_jvp
def _sigmoid(x: jax.Array) -> jax.Array:
    """1/(1 + e⁻ˣ), from the exponential that `softplus` takes anyway."""
    small = jnp.exp(-jnp.abs(x))
    return jnp.where(x >= 0, 1.0, small) / (1 + small)


@_sigmoid.defjvp
def _sigmoid_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    value = _sigmoid(*primals)
    return value, value * _sigmoid(-primals[0]) * tangents[0]


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


def extremes(values: ArrayLike, present: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """(least, largest) along the last axis of the values that are present, in one reduction; (∞, −∞) of none.

    >>> [float(end) for end in extremes(jnp.array([3.0, 1.0, 2.0]), jnp.array([True, False, True]))]
    [2.0, 3.0]
    """
    values = jnp.asarray(values)
    values, present = jnp.broadcast_arrays(values, present)
    ends = jnp.max(jnp.where(present, jnp.stack([-values, values]), -jnp.inf), axis=-1)
    negative, largest = ends
    return -negative, largest


def sorted_numbers(values: jax.Array) -> jax.Array:
    """`jnp.sort` of floats, none of them NaN, without derivatives: as integers, in a sixth of the time.

    >>> sorted_numbers(jnp.array([2.0, -jnp.inf, -1.0, 0.0])).tolist()
    [-inf, -1.0, 0.0, 2.0]
    """
    kind = jnp.int64 if values.dtype == jnp.float64 else jnp.int32

    def turn(bits: jax.Array) -> jax.Array:  # of negative numbers, the larger have the smaller bits
        return jnp.where(bits < 0, bits ^ jnp.iinfo(kind).max, bits)

    bits = lax.bitcast_convert_type(values + 0.0, kind)  # −0 is 0
    return lax.bitcast_convert_type(turn(jnp.sort(turn(bits), stable=False)), values.dtype)


def bisection(low: ArrayLike, high: ArrayLike, dtype: Any) -> Callable[..., jax.Array]:
    """A solver for `implicit_root`: the scalar in [low, high] where an increasing function crosses 0, to rounding.

    The nearer end where it does not cross.
    """
    halvings = jnp.finfo(dtype).nmant + 12

    def solve(increasing: Callable[..., Any], _) -> jax.Array:
        def halve(_, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = bracket
            middle = (low + high) / 2
            above = increasing(middle) > 0
            return jnp.where(above, low, middle), jnp.where(above, middle, high)

        # Like what is sought, so that under `jax.shard_map` both vary over the same devices.
        like = ((increasing(jnp.asarray(low, dtype)) > 0) & False).astype(dtype)
        bracket = lax.fori_loop(0, halvings, halve, (low + like, high + like))
        return (bracket[0] + bracket[1]) / 2

    return solve


def implicit_root(function: Callable[[jax.Array], jax.Array], solve: Callable[..., jax.Array], dtype: Any) -> Any:
    """The scalar z with function(z) = 0, found by solve(function, guess).

    Differentiable in what the function closes over, by the implicit function theorem (Blondel et al. 2022,
    "Efficient and modular implicit differentiation"); the gradient is 0 where the function is flat.

    >>> cube_root = lambda c: implicit_root(lambda z: z**3 - c, bisection(0.0, 10.0, float), float)
    >>> round(float(jax.grad(cube_root)(8.0)), 4)  # 1 / (3 z²)
    0.0833
    """

    def tangent(linear: Any, value: jax.Array) -> jax.Array:
        return divide(value, linear(jnp.ones_like(value)))

    return lax.custom_root(function, jnp.zeros((), dtype), solve, tangent)
