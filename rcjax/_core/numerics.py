"""Numerically stable primitives: scalar functions, probabilities with their complements, roots, beta functions, τ-b."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.scipy import special
from jax.typing import ArrayLike

from rcjax._core.batching import with_automatic_axes

_ARTANH = [1 / (2 * power + 1) for power in range(17)]


def as_floats(values: ArrayLike) -> jax.Array:
    """Convert values to an array of JAX's default float type.

    >>> as_floats(2).dtype.kind
    'f'
    """
    return jnp.asarray(values, jnp.result_type(float))


def log1mexp(x: ArrayLike) -> jax.Array:
    """Return log(1 − eˣ) for x ≤ 0, exact for x near 0 and for very negative x.

    The formula combines the two of Mächler (2012), "Accurately computing log(1 − exp(−|a|))".

    >>> round(float(log1mexp(-1e-12)), 3)
    -27.631
    """
    x = as_floats(x)
    return log_of_pair(-jnp.expm1(x), jnp.exp(x))


def log_of_pair(value: jax.Array, complement: jax.Array) -> jax.Array:
    """Return log u from rounded u and 1 − u, with the relative precision of the smaller number.

    One logarithm serves both ends: XLA's `log1p` takes twice as long as `log`, with errors of up to 100 roundings.

    >>> f"{float(log_of_pair(jnp.asarray(1.0), jnp.asarray(1e-30))):.0e}"
    '-1e-30'
    """
    # u's rounding error is (1 − u) − complement. It matters only near u = 1, where 1/u is close to 2 − u.
    lost = ((1 - value) - complement) * (2 - value)
    return jnp.log(value) + jnp.where(value >= 0.5, lost, 0.0)


def log1p_ratio(y: jax.Array) -> jax.Array:
    """Return log(1 + y)/y for −½ ≤ y ≤ 1, smooth at 0 where it is 1.

    It sums the series of 2 artanh s = log((1 + s)/(1 − s)) with s = y/(2 + y): s² is at most 1/9.

    >>> float(log1p_ratio(jnp.asarray(0.0))), round(float(log1p_ratio(jnp.asarray(1.0))), 4)
    (1.0, 0.6931)
    """
    square = (y / (2 + y)) ** 2
    return 2 / (2 + y) * polynomial(_ARTANH, square)


def polynomial(coefficients: Iterable[float], x: jax.Array) -> jax.Array:
    """Evaluate a polynomial at x by Horner's rule; coefficients begin with the constant.

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
    """Return log(1 + eˣ) for any x; with derivatives it takes a fraction of the time of `jax.nn.softplus`.

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
    """Return 1/(1 + e⁻ˣ), with the exponential that `softplus` computes too."""
    small = jnp.exp(-jnp.abs(x))
    return jnp.where(x >= 0, 1.0, small) / (1 + small)


@_sigmoid.defjvp
def _sigmoid_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    value = _sigmoid(*primals)
    return value, value * _sigmoid(-primals[0]) * tangents[0]


def open_unit(u: ArrayLike) -> jax.Array:
    """Clip u to the open interval (0, 1), so that log u and log(1 − u) are finite.

    >>> bool(open_unit(0.0) > 0), bool(open_unit(1.0) < 1)
    (True, True)
    """
    u = as_floats(u)
    info = jnp.finfo(u.dtype)
    return jnp.clip(u, info.tiny, 1 - info.epsneg)


class Unit(NamedTuple):
    """A number u in (0, 1) and 1 − u, each to full relative precision, and so are both logarithms.

    `score` caches the quantile of u under a distribution symmetric about 0.

    >>> tiny = Unit(jnp.asarray(1.0), jnp.asarray(1e-30))
    >>> f"{float(tiny.log):.1g} {float(tiny.log_complement):.3f}"
    '-1e-30 -69.078'
    """

    value: jax.Array
    complement: jax.Array
    score: jax.Array | None = None

    @property
    def log(self) -> jax.Array:
        """log u."""
        return _log_floored(self.value, self.complement)

    @property
    def log_complement(self) -> jax.Array:
        """log(1 − u)."""
        return _log_floored(self.complement, self.value)

    @property
    def flipped(self) -> "Unit":
        """1 − u."""
        return Unit(self.complement, self.value, None if self.score is None else -self.score)


def unit(u: ArrayLike) -> Unit:
    """Clip u to [0, 1], and return u with its complement, both at least the root of the smallest normal number.

    Quotients and products of two results, and logarithms times any parameter, then stay finite.

    >>> bool(unit(1.0).complement > 0), bool(unit(0.0).value > 0)
    (True, True)
    """
    u = as_floats(u)
    least = float(np.sqrt(jnp.finfo(u.dtype).tiny))
    return Unit(jnp.where(u > 1, 1.0, jnp.maximum(u, least)), jnp.maximum(1 - u, least))


def flipped_where(condition: jax.Array, u: Unit) -> Unit:
    """Return 1 − u where the condition holds, else u."""
    return jax.tree.map(lambda flipped, straight: jnp.where(condition, flipped, straight), u.flipped, u)


def stacked_with_flips(u: Unit, v: Unit, *parameters: jax.Array) -> tuple[Unit, Unit]:
    """Stack u with 1 − u and v with 1 − v along a new first axis, broadcast against the parameters.

    One program then computes C(u, v) and C(1 − u, 1 − v).
    """
    shape = jnp.broadcast_shapes(*map(jnp.shape, (u.value, v.value, *parameters)))

    def stacked(straight: jax.Array, flipped: jax.Array) -> jax.Array:
        return jnp.stack([jnp.broadcast_to(straight, shape), jnp.broadcast_to(flipped, shape)])

    return jax.tree.map(stacked, u, u.flipped), jax.tree.map(stacked, v, v.flipped)


def unit_from_log(log: jax.Array) -> Unit:
    """Return the probability with the given logarithm ≤ 0."""
    return Unit(jnp.exp(log), -jnp.expm1(log))


def _log_floored(value: jax.Array, complement: jax.Array) -> jax.Array:
    # The logarithm of an underflown probability is that of the smallest number, with gradient 0.
    return log_of_pair(jnp.maximum(value, jnp.finfo(value.dtype).tiny), complement)


def divide(numerator: ArrayLike, denominator: ArrayLike, otherwise: ArrayLike = 0.0) -> jax.Array:
    """Return numerator / denominator, or `otherwise` if the denominator is 0; gradients are finite in both cases.

    >>> float(divide(1.0, 0.0)), float(divide(1.0, 4.0))
    (0.0, 0.25)
    """
    denominator = jnp.asarray(denominator)
    safe = jnp.where(denominator == 0, 1, denominator)
    return jnp.where(denominator == 0, otherwise, numerator / safe)


def extremes(values: ArrayLike, present: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Return (minimum, maximum) of the present values along the last axis, in one reduction; (∞, −∞) without any.

    >>> [float(end) for end in extremes(jnp.array([3.0, 1.0, 2.0]), jnp.array([True, False, True]))]
    [2.0, 3.0]
    """
    values = jnp.asarray(values)
    values, present = jnp.broadcast_arrays(values, present)
    ends = jnp.max(jnp.where(present, jnp.stack([-values, values]), -jnp.inf), axis=-1)
    negative, largest = ends
    return -negative, largest


def bisection(low: ArrayLike, high: ArrayLike, dtype: Any) -> Callable[..., jax.Array]:
    """Return a solver for `implicit_root`, which finds the root of an increasing function in [low, high], to rounding.

    Without a root in the bracket, the solver returns the end nearer to a root.
    """
    halvings = jnp.finfo(dtype).nmant + 12

    def solve(increasing: Callable[..., Any], _) -> jax.Array:
        def halve(_, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = bracket
            middle = (low + high) / 2
            above = increasing(middle) > 0
            return jnp.where(above, low, middle), jnp.where(above, middle, high)

        # A zero that depends on the function: under `jax.shard_map` the bracket then varies over the same devices.
        zero = ((increasing(jnp.asarray(low, dtype)) > 0) & False).astype(dtype)
        bracket = lax.fori_loop(0, halvings, halve, (low + zero, high + zero))
        return (bracket[0] + bracket[1]) / 2

    return solve


class _Bracket(NamedTuple):
    """State of a bracketed Newton search."""

    steps: jax.Array  # () number of steps taken
    done: jax.Array  # () bool
    z: jax.Array  # () the current point
    low: jax.Array  # () ends of the bracket
    high: jax.Array
    last_step: jax.Array  # () length of the last step


def bracketed_newton(increasing: Callable[..., Any], start: jax.Array, low: ArrayLike, high: ArrayLike) -> jax.Array:
    """Find the root of an increasing function of order 1 in [low, high] by Newton's method, to rounding.

    A bracket shrinks around the root. The bracket is halved in place of a step that leaves the bracket, is longer than
    half the last step, or is short although the function is far from 0. Without a root in the bracket, the result is
    the end nearer to a root.

    Args:
        increasing: scalar function with a derivative.
        start: scalar in [low, high].
        low, high: ends of the bracket.

    >>> round(float(bracketed_newton(lambda x: x**3 / 8 - 1, jnp.asarray(1.0), 0.0, 10.0)), 6)
    2.0
    """
    info = jnp.finfo(start.dtype)
    low, high = jnp.asarray(low, info.dtype), jnp.asarray(high, info.dtype)
    # Newton's method squares errors: after a step as short as this the root is exact to rounding.
    short, near, most = float(info.eps) ** 0.6, 0.01, 2 * (info.nmant + 12)

    def advance(state: _Bracket) -> _Bracket:
        steps, _, z, low, high, last_step = state
        value, slope = jax.jvp(increasing, (z,), (jnp.ones_like(z),))
        low, high = jnp.where(value > 0, low, z), jnp.where(value > 0, z, high)
        newton = z - value / slope
        length, closes = jnp.abs(newton - z), jnp.abs(value) < near
        shrinks = jnp.where(length > short, length <= last_step / 2, closes)
        usable = (newton >= low) & (newton <= high) & shrinks
        middle, width = (low + high) / 2, high - low
        done = (value == 0) | usable & (length <= short) | (width <= info.eps * jnp.maximum(jnp.abs(middle), 1.0))
        z = jnp.where(value == 0, z, jnp.where(usable, newton, middle))
        return _Bracket(steps + 1, done, z, low, high, jnp.where(usable, length, width))

    # Zeros that depend on the function: under `jax.shard_map` the state then varies over the same devices.
    never = jnp.isnan(increasing(start)) & False
    zero = never.astype(info.dtype)
    state = _Bracket(jnp.asarray(0), never, start + zero, low + zero, high + zero, high - low + zero)
    return lax.while_loop(lambda state: (state.steps < most) & ~state.done, advance, state).z


def implicit_root(function: Callable[[jax.Array], jax.Array], solve: Callable[..., jax.Array], dtype: Any) -> Any:
    """Return the scalar z with function(z) = 0, found by solve(function, guess).

    It is differentiable in the variables that the function closes over, by the implicit function theorem (Blondel et
    al. 2022, "Efficient and modular implicit differentiation"); the gradient is 0 if the function is flat.

    >>> cube_root = lambda c: implicit_root(lambda z: z**3 - c, bisection(0.0, 10.0, float), float)
    >>> round(float(jax.grad(cube_root)(8.0)), 4)  # 1 / (3 z²)
    0.0833
    """

    def tangent(linear: Any, value: jax.Array) -> jax.Array:
        return divide(value, linear(jnp.ones_like(value)))

    return lax.custom_root(function, jnp.zeros((), dtype), solve, tangent)


def ndtri(p: jax.Array) -> jax.Array:
    """Return the normal quantile, elementwise. `jax.scipy.special.ndtri` alone fails under an explicit mesh.

    >>> round(float(ndtri(jnp.asarray(0.975))), 2)
    1.96
    """
    return with_automatic_axes(special.ndtri, p, like=p)


_FRACTION_TERMS = 80  # enough for 1e-12 up to shapes of 10⁴
#: Terms of a continued fraction per kernel on an accelerator, where most of a frontier's time goes to kernels that wait
#: for each other. On a CPU unrolling is no quicker, and takes longer to compile.
UNROLLED = 8


def betaln(a: ArrayLike, b: ArrayLike) -> jax.Array:
    """Return log B(a, b) for a, b > 0, by ten steps of the recurrence on each side and Stirling's series.

    jax.scipy.special.betaln is off by up to 4e-7 where max(a, b) > 8, in float64 too.

    >>> round(float(betaln(3.0, 12.0)), 4)
    -6.9958
    """
    a, b = jnp.broadcast_arrays(*(jnp.asarray(value, dtype=jnp.result_type(a, b, float)) for value in (a, b)))
    step = jnp.arange(10, dtype=a.dtype)
    p, q = a[..., None] + step, b[..., None] + step
    sums = (a + b)[..., None] + step
    ratio = sums / jnp.minimum(p, q) * ((sums + 10) / jnp.maximum(p, q))
    p, q = a + 10, b + 10

    # Stacked arguments make one loop: a small formula takes longest to compile.
    y = 1 / jnp.stack([p, q, p + q])
    square = y * y
    inner = 1 / 1260 - square * (1 / 1680 - square * (1 / 1188 - square * 691 / 360360))
    series = y * (1 / 12 - square * (1 / 360 - square * inner))
    log_1p = jnp.log1p(jnp.stack([q / p, p / q]))
    shape = -(p - 0.5) * log_1p[0] - q * log_1p[1] - 0.5 * jnp.log(q)
    return jnp.log(ratio).sum(-1) + shape + series[0] + series[1] - series[2] + 0.9189385332046727  # log √2π


def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> jax.Array:
    """Return the regularised incomplete beta function I_x(a, b), differentiable in all three arguments.

    jax and tensorflow-probability lack the gradients in a and b, or get them wrong at integers. Here the continued
    fraction is differentiated term by term (Boik & Robison-Cox 1998, "Derivatives of the incomplete beta function",
    J. Stat. Softw. 3(1)).

    >>> round(float(betainc(2.0, 3.0, 0.5)), 4)
    0.6875
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

    if not isinstance(tangents[2], SymbolicZero):
        value_tangent += power / (safe * (1 - safe)) * tangents[2]
        log_tangent += (a / safe - b / (1 - safe)) * tangents[2]
    if not all(isinstance(tangent, SymbolicZero) for tangent in tangents[:2]):
        (digamma_a, digamma_b, digamma_both), _ = polygammas(jnp.stack(jnp.broadcast_arrays(a, b, a + b)))
        by_a, by_b = _shape_gradients(a, b, x, power, (digamma_a, digamma_b, digamma_both))
        for tangent, gradient, log_gradient in (
            (tangents[0], by_a, jnp.log(safe) - digamma_a + digamma_both),
            (tangents[1], by_b, jnp.log1p(-safe) - digamma_b + digamma_both),
        ):
            if not isinstance(tangent, SymbolicZero):
                value_tangent += gradient * tangent
                log_tangent += log_gradient * tangent
    return (value, power), (value_tangent, power * log_tangent)


def _shape_gradients(
    a: jax.Array, b: jax.Array, x: jax.Array, power: jax.Array, digammas: tuple[jax.Array, jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Return (∂I_x(a, b)/∂a, ∂I_x(a, b)/∂b), elementwise; 0 at x = 0 and x = 1.

    `power` is xᵃ(1 − x)ᵇ / B(a, b), 0 at either end; `digammas` are ψ(a), ψ(b) and ψ(a + b).
    """
    digamma_a, digamma_b, digamma_both = digammas
    a, b, x = jnp.broadcast_arrays(a, b, x)
    inside = (x > 0) & (x < 1)
    x = jnp.where(inside, x, 0.5)
    swap, p, q, y = _reflect(a, b, x)
    log_y, log_1y = jnp.where(swap, jnp.log1p(-x), jnp.log(x)), jnp.where(swap, jnp.log(x), jnp.log1p(-x))
    # One loop computes both slopes; its compilation takes most of the time.
    directions = jnp.eye(2, dtype=p.dtype).reshape(2, 2, *[1] * p.ndim) * jnp.ones_like(p)
    fraction, (by_p, by_q) = jax.vmap(
        lambda direction: jax.jvp(lambda p, q: _fraction(p, q, y), (p, q), tuple(direction)), out_axes=(None, 0)
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
    """Evaluate the continued fraction of I_y(p, q), DLMF 8.17.22, backwards.

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
        above = 1 + tail
        return even * above * (n + 1) / ((n - 1) * (above * n * (n + 1) + odd))

    tail = lax.fori_loop(0, _FRACTION_TERMS, back, tail, unroll=unrolled_terms())
    return 1 / (1 - (p + q) * y / ((p + 1) * (1 + tail)))


def unrolled_terms() -> int:
    return 1 if jax.default_backend() == "cpu" else UNROLLED


def polygammas(x: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Return (ψ(x), ψ′(x)), digamma and trigamma of x > 0: ten steps of the recurrence, then the asymptotic series.

    Abramowitz & Stegun 6.3.5, 6.3.18, 6.4.6 and 6.4.12. jax's own trigamma is a Hurwitz zeta that takes a second to
    compile.

    >>> [round(float(value), 6) for value in polygammas(1.0)]
    [-0.577216, 1.644934]
    """
    x = as_floats(x)[..., None]
    reciprocal = 1 / (x + jnp.arange(10, dtype=x.dtype))
    y = 1 / (x[..., 0] + 10)
    square = y * y
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    slope = square * (1 / 6 - square * (1 / 30 - square * (1 / 42 - square * (1 / 30 - square * 5 / 66))))
    digamma = -jnp.log(y) - y / 2 - series - reciprocal.sum(-1)
    trigamma = y * (1 + y / 2 + slope) + (reciprocal**2).sum(-1)
    return digamma, trigamma


def kendall_tau(x: jax.Array, y: jax.Array, present: jax.Array) -> jax.Array:
    """Return Kendall's tau-b of the entries that are present, in [−1, 1]; 0 if it is undefined (x or y constant).

    Kendall (1945), "The treatment of ties in ranking problems". It takes O(n log n) time: the discordant pairs are the
    inversions of y once sorted by (x, y) (Knight 1966, "A computer method for calculating Kendall's tau with ungrouped
    data"). The counts are rounded to floats: within 1e-6 in float32, for any n below 2²⁹.

    Args:
        x, y: (n,) numbers.
        present: (n,) bool, whether an entry counts.

    >>> present = jnp.ones(4, bool)
    >>> round(float(kendall_tau(jnp.array([1., 2., 3., 4.]), jnp.array([1., 3., 2., 4.]), present)), 4)
    0.6667
    """
    # NaN sorts after all numbers and equals none: absent entries come last in every order, in the same order.
    x, y = jnp.where(present, jnp.stack([x, y]), jnp.nan)
    order = jnp.argsort(y, stable=True)
    order = order[jnp.argsort(x[order], stable=True)]
    x, y = x[order], y[order]
    by_y = jnp.argsort(y, stable=True)  # ties in y are in the order of x, so that none counts as an inversion
    ordered_y, index = y[by_y], jnp.arange(len(y), dtype=jnp.int32)
    same_x = x[1:] == x[:-1]
    tied_x, tied_y = _pairs_in_runs(same_x), _pairs_in_runs(ordered_y[1:] == ordered_y[:-1])
    tied_both = _pairs_in_runs(same_x & (y[1:] == y[:-1]))
    m = present.sum().astype(tied_x.dtype)
    total = m * (m - 1) / 2
    discordant = _inversions(jnp.zeros_like(index).at[by_y].set(index, unique_indices=True))
    concordant = total - tied_x - tied_y + tied_both - discordant
    return divide(concordant - discordant, jnp.sqrt(total - tied_x) * jnp.sqrt(total - tied_y))


def _pairs_in_runs(is_equal: jax.Array) -> jax.Array:
    """Count the pairs within runs of equal neighbours: each entry pairs with the earlier entries of its run."""
    index = jnp.arange(is_equal.shape[0] + 1, dtype=jnp.int32)
    start = lax.cummax(jnp.where(jnp.concatenate([jnp.zeros(1, bool), is_equal]), 0, index))
    return _total(index - start)


def _inversions(order: jax.Array) -> jax.Array:
    """Count the inversions of a permutation: two entries separate at the highest bit in which they differ.

    After padding to a power of two, entries with equal higher bits form a block of known position and size, half of it
    ones (a wavelet tree: Grossi, Gupta & Vitter 2003). A stable partition of each block by the next bit moves a 0 past
    the 1s before it; these are counted.
    """
    n = order.shape[0]
    bits = max(n - 1, 1).bit_length()
    index = jnp.arange(2**bits, dtype=order.dtype)
    order = jnp.concatenate([order, index[n:]])

    def part(step: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        count, order = state
        bit = bits - 1 - step
        start = (index >> (bit + 1)) << (bit + 1)
        bit_value = (order >> bit) & 1
        ones_before = jnp.cumsum(bit_value) - bit_value - start // 2
        target = jnp.where(bit_value == 1, start + (1 << bit) + ones_before, index - ones_before)
        parted = jnp.zeros_like(order).at[target].set(order, unique_indices=True, mode="promise_in_bounds")
        return count + _total(jnp.where(bit_value == 1, 0, ones_before)), parted

    return lax.fori_loop(0, bits, part, (jnp.zeros((), jnp.result_type(float)), order))[0]


def _total(counts: jax.Array) -> jax.Array:
    """Sum (n,) counts below n to a float: as integers in chunks that do not overflow, then the chunks as floats."""
    n = counts.shape[0]
    size = max(1, 2**30 // n)
    counts = jnp.pad(counts, (0, -n % min(size, n)))
    return counts.reshape(-1, min(size, n)).sum(1).astype(jnp.result_type(float)).sum()
