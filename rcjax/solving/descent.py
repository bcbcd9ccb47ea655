"""Ranks that make an objective least, by gradient: from one start, within bounds, by a solver of optax's.

Within [low, high] a rank is u = low + (high − low)·(1 − cos x)/2, so that x is free, and an optimum at a bound is one
in x too (James & Roos 1975, "Minuit: a system for function minimization"). Scalar mathematics: `vmap` it over starts.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special
from jax.typing import DTypeLike

from rcjax._base.extras import required
from rcjax._core.numerics import bisection, divide, implicit_root

Loss = Callable[[jax.Array], jax.Array]

#: Evaluations of a loss at most: by the usual solver, and by one that is passed.
_TRIALS, _STEPS = 120, 1000

_MEMORY = 5  # pairs of steps and slopes: there are few ranks

_LEAST_GAIN = 1e-4  # of what the slope promises, for a step to be taken (Armijo's rule)

_SHORTER = (0.1, 0.5)  # the next trial's length, as a share of that of one that is not taken

_SURELY = 1 / 40  # of the tolerance, at which a descent ends

_NUDGE = 1e-4  # at a bound itself x has no slope

_AT_BOUND = 1e-5  # so near to a bound, as a share of the range, the bound itself is tried


class Bounds(NamedTuple):
    """Where ranks may be."""

    low: jax.Array  # (n,)
    high: jax.Array  # (n,)

    def of_angle(self, x: jax.Array) -> jax.Array:
        """(n,) ranks."""
        return self.low + (self.high - self.low) * (1 - jnp.cos(x)) / 2

    def angle(self, u: jax.Array) -> jax.Array:
        """(n,) the x of ranks, a little inside the bounds."""
        share = divide(u - self.low, self.high - self.low, 0.5)
        return jnp.arccos(1 - 2 * jnp.clip(share, _NUDGE, 1 - _NUDGE))


def tolerance(dtype: DTypeLike) -> float:
    """The largest slope of a loss, per unit of rank, at which a descent has arrived: the loss is off by its square."""
    return 4 * float(jnp.finfo(dtype).eps) ** 0.25


def descend(loss: Loss, u: jax.Array, bounds: Bounds, solver: Any = None) -> jax.Array:
    """(n,) ranks of less loss, from ranks (n,).

    Ends where the slope is far below `tolerance`, where no step gains anything any more, or the steps run out.

    Args:
        loss: a function of the ranks, of order 1.
        u: where to start.
        bounds: of the ranks.
        solver: a transformation of optax's; by default optax's L-BFGS, with a line search.
    """

    def value_of(x: jax.Array) -> jax.Array:
        return loss(bounds.of_angle(x))

    start = bounds.angle(u)
    x, value = _by_lbfgs(value_of, start) if solver is None else _by_steps(value_of, start, solver)
    reached = bounds.of_angle(x)
    share = divide(reached - bounds.low, bounds.high - bounds.low, 0.5)
    at_bounds = jnp.where(share < _AT_BOUND, bounds.low, jnp.where(share > 1 - _AT_BOUND, bounds.high, reached))
    return jnp.where(loss(at_bounds) <= value, at_bounds, reached)


class _Descent(NamedTuple):
    """A descent, and the step that it tries."""

    x: jax.Array  # (n,)
    value: jax.Array  # ()
    slope: jax.Array  # (n,)
    state: Any  # of L-BFGS
    direction: jax.Array  # (n,)
    length: jax.Array  # () of the next trial, in directions
    count: jax.Array  # () of trials
    done: jax.Array  # () bool


def _by_lbfgs(value_of: Loss, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(x (n,), value) by L-BFGS; a step is shortened until it gains (Nocedal & Wright 2006, section 3.5).

    Every turn of the loop is one trial, whether it is taken or not, so that of many descents at a time none waits for
    the line search of another.
    """
    lbfgs = required("optax", extra="objectives").scale_by_lbfgs(memory_size=_MEMORY)
    both = jax.value_and_grad(value_of)
    rounding = 4 * float(jnp.finfo(x.dtype).eps)

    def attempt(search: _Descent) -> _Descent:
        x = search.x - search.length * search.direction
        value, slope = both(x)
        promised = search.length * (search.direction @ search.slope)
        taken = value <= search.value - _LEAST_GAIN * promised
        direction, state = lbfgs.update(slope, search.state, x)
        steepest = slope * jnp.minimum(1.0, divide(1.0, jnp.linalg.norm(slope), 1.0))
        upward = ~(direction @ slope > 0)  # where the loss is concave, or a slope is no number: forget what was
        direction, state = jax.tree.map(partial(jnp.where, upward), (steepest, lbfgs.init(x)), (direction, state))
        count = search.count + 1
        onward = _Descent(x, value, slope, state, direction, jnp.ones_like(value), count, _arrived(slope))
        # The parabola through both values and the slope at the start.
        share = divide(promised, 2 * (value - search.value + promised), _SHORTER[1])
        share = jnp.clip(jnp.where(jnp.isfinite(share), share, _SHORTER[0]), *_SHORTER)
        lost = ~(promised > rounding * (1 + jnp.abs(search.value)))
        shorter = search._replace(length=search.length * share, count=count, done=lost)
        return jax.tree.map(partial(jnp.where, taken), onward, shorter)

    # The first trial is the start itself.
    nowhere, one = jnp.zeros_like(x), jnp.ones((), x.dtype)
    start = _Descent(x, one * jnp.inf, nowhere, lbfgs.init(x), nowhere, one, jnp.zeros((), int), jnp.zeros((), bool))
    search = lax.while_loop(lambda search: ~search.done & (search.count < _TRIALS), attempt, start)
    return search.x, search.value


def _by_steps(value_of: Loss, x: jax.Array, solver: Any) -> tuple[jax.Array, jax.Array]:
    """(x (n,), value) by a transformation of optax's, which may have a line search of its own."""
    optax = required("optax", extra="objectives")
    solver = optax.with_extra_args_support(solver)
    both = jax.value_and_grad(value_of)

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        x, state, value, slope, count, done = carry
        # One of several that has arrived waits for the others: without a slope its line search ends at once.
        slope = jnp.where(done, 0.0, slope)
        update, state = solver.update(slope, state, x, value=value, grad=slope, value_fn=value_of)
        x = optax.apply_updates(x, update)
        value, slope = both(x)
        return x, state, value, slope, count + 1, _arrived(slope)

    value, slope = both(x)
    start = x, solver.init(x), value, slope, jnp.zeros((), int), _arrived(slope)
    x, _, value, *_ = lax.while_loop(lambda carry: ~carry[-1] & (carry[-2] < _STEPS), step, start)
    return x, value


def _arrived(slope: jax.Array) -> jax.Array:
    return ~(jnp.abs(slope).max(initial=0.0) > _SURELY * tolerance(slope.dtype))  # so written, NaN ends it too


def slope_left(loss: Loss, u: jax.Array, bounds: Bounds) -> jax.Array:
    """() how far ranks would still move down the slope of the loss, within their bounds; NaN if it has none."""
    slope = jax.grad(loss)(u)
    return jnp.abs(u - jnp.clip(u - slope, bounds.low, bounds.high)).max(initial=0.0) + 0 * slope.sum()


def smooth_maximum(values: jax.Array, width: jax.Array | float) -> jax.Array:
    """The largest of the values (…, n), rounded off: t·log Σ exp(x/t), with t = width·(root mean square of the values).

    Above the largest by at most t·log n, and the largest itself for a width of 0. The unit of the values does not
    matter, so the kink of max(x, 0) at 0 stays: take max(x, 0)² there. In an objective of `rcjax.solving.minimise`,
    `outcome.smoothing` is the width that the solver tightens.

    >>> values = jnp.array([0.2, 0.3, 0.1])
    >>> [round(float(smooth_maximum(values, width)), 3) for width in (0.0, 0.1, 0.5)]
    [0.3, 0.3, 0.348]
    """
    values = jnp.asarray(values, jnp.result_type(float))
    square = (values**2).mean(-1)
    t = jnp.asarray(width, values.dtype) * jnp.sqrt(jnp.where(square > 0, square, 1.0))
    rounded = (t > 0) & (square > 0)
    t = jnp.where(rounded, t, 1.0)
    return jnp.where(rounded, t * special.logsumexp(values / t[..., None], axis=-1), values.max(-1))


def smooth_quantile(values: jax.Array, weights: jax.Array, level: float, width: jax.Array | float) -> jax.Array:
    """The quantile of the values (…, n), each as probable as its weight (…, n), with every value spread out a little.

    The q at which Σ wᵢ σ((q − xᵢ)/h) is the level, with σ the logistic function and h = width·(largest − least value).
    For a width of 0 the least value that at least so much of the weight does not exceed: it jumps as weights change,
    and does not tell a gradient where to go. In an objective of `rcjax.solving.minimise`, `outcome.smoothing`
    is the width that the solver tightens.

    Args:
        values: such as the seconds of each path, `outcome.along(seconds)`.
        weights: such as how often each path is taken, `outcome.taken`.
        level: in (0, 1).
        width: at least 0.

    Raises ValueError for a level outside (0, 1).

    >>> seconds, taken = jnp.array([1.0, 3.0, 9.0]), jnp.array([0.6, 0.3, 0.1])
    >>> [round(float(smooth_quantile(seconds, taken, 0.8, width)), 1) for width in (0.0, 0.01, 0.1)]
    [3.0, 3.1, 3.8]
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it must be between 0 and 1")
    dtype = jnp.result_type(float)
    values, weights = (jnp.asarray(array, dtype) for array in (values, weights))
    single = partial(_quantile, level=level)
    return jnp.vectorize(single, signature="(n),(n),()->()")(values, weights, jnp.asarray(width, dtype))


def _quantile(values: jax.Array, weights: jax.Array, width: jax.Array, level: float) -> jax.Array:
    shares = divide(weights, weights.sum())
    spread = width * (values.max() - values.min())
    h = jnp.where(spread > 0, spread, 1.0)
    shift = h * math.log(level / (1 - level))

    def excess(q: jax.Array) -> jax.Array:
        return shares @ special.expit((q - values) / h) - level

    low, high = jax.lax.stop_gradient((values.min() + shift, values.max() + shift))
    smooth = implicit_root(excess, bisection(low, high, values.dtype), values.dtype)
    order = jnp.argsort(values)
    reached = jnp.cumsum(shares[order]) >= level - 8 * values.shape[0] * jnp.finfo(values.dtype).eps
    return jnp.where(spread > 0, smooth, values[order][jnp.argmax(reached)])
