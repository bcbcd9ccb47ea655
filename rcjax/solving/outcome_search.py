"""The search for cascades that are best by an objective of their outcome, by gradient: what is compiled.

Ranks (k,) are the cuts of a cascade's models.

Within a point mass the objective goes straight from the one end to the other, which is what a policy would do that
passes a share of the ties at random. No threshold does. So a rank within a mass goes to the nearer end, a step, and
which ends are best is found by trying them.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from rcjax._base.extras import required
from rcjax._core.compilation import compiled
from rcjax._core.numerics import divide
from rcjax.model.marginals import Marginal
from rcjax.solving.bellman import cuts_of_paths
from rcjax.solving.objective import Outcome, Tables, outcome_of_cuts
from rcjax.solving.paths import CascadePlan

#: How often every model is given every step: what was best for one need not be after another has moved.
_ROUNDS = 2


#: Widths of `Outcome.smoothing`, one after the other; the last is where a point is held to be converged.
_WIDTHS = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)

Loss = Callable[[jax.Array], jax.Array]

_TRIALS = 120  # evaluations of a loss at most

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


def descend(loss: Loss, u: jax.Array, bounds: Bounds) -> jax.Array:
    """(n,) ranks of less loss, from ranks (n,): by optax's L-BFGS, with a line search.

    Within [low, high] a rank is u = low + (high − low)·(1 − cos x)/2, so that x is free, and an optimum at a bound is
    one in x too (James & Roos 1975, "Minuit: a system for function minimization").

    Ends where the slope is far below `tolerance`, where no step gains anything any more, or the steps run out.

    Args:
        loss: a function of the ranks, of order 1.
        u: where to start.
        bounds: of the ranks.
    """

    x, value = _by_lbfgs(lambda x: loss(bounds.of_angle(x)), bounds.angle(u))
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


def _by_lbfgs(loss: Loss, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(x (n,), value) by L-BFGS; a step is shortened until it gains (Nocedal & Wright 2006, section 3.5).

    Every turn of the loop is one trial, whether it is taken or not, so that of many descents at a time none waits for
    the line search of another.
    """
    lbfgs = required("optax", extra="objectives").scale_by_lbfgs(memory_size=_MEMORY)
    both = jax.value_and_grad(loss)
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


def _arrived(slope: jax.Array) -> jax.Array:
    return ~(jnp.abs(slope).max(initial=0.0) > _SURELY * tolerance(slope.dtype))  # so written, NaN ends it too


def slope_left(loss: Loss, u: jax.Array, bounds: Bounds) -> jax.Array:
    """() how far ranks would still move down the slope of the loss, within their bounds; NaN if it has none."""
    slope = jax.grad(loss)(u)
    return jnp.abs(u - jnp.clip(u - slope, bounds.low, bounds.high)).max(initial=0.0) + 0 * slope.sum()


class MassSteps(NamedTuple):
    """The ranks of k models at which point masses begin and end, E of them, rising, with 0 and 1 among them."""

    edges: jax.Array  # (k, E)
    smooth: jax.Array  # (k, E − 1) bool, whether there is no mass between one and the next

    @property
    def smooth_range(self) -> Bounds:
        """(k,) the ranks between the masses at the ends."""
        return Bounds(self.edges[:, 1], self.edges[:, -2])


def steps_of(marginals: Marginal) -> MassSteps:
    """The steps of marginals (k,)."""
    starts, ends = jax.vmap(Marginal.mass_ranks)(marginals)
    edges = jnp.sort(jnp.concatenate([starts, ends], axis=1), axis=1)
    middle = (edges[:, 1:] + edges[:, :-1]) / 2
    inside = (middle[..., None] > starts[:, None]) & (middle[..., None] < ends[:, None])
    return MassSteps(edges, ~inside.any(-1) & (jnp.diff(edges, axis=1) > 0))


def on_steps(steps: MassSteps, u: jax.Array) -> jax.Array:
    """(k,) the ranks (k,), those within a mass at its nearer end."""
    piece, start, end = _piece(steps, u, "right")
    smooth = jnp.take_along_axis(steps.smooth, piece[:, None], axis=1)[:, 0]
    return jnp.where(smooth, u, jnp.where(u - start < end - u, start, end))


def smooth_pieces(steps: MassSteps, u: jax.Array) -> Bounds:
    """The smooth piece that each rank (k,) lies in, or that begins or ends there; of none, the rank alone."""
    low, high = u, u
    for side in ("left", "right"):
        piece, start, end = _piece(steps, u, side)
        smooth = jnp.take_along_axis(steps.smooth, piece[:, None], axis=1)[:, 0] & (start <= u) & (u <= end)
        low, high = jnp.where(smooth, start, low), jnp.where(smooth, end, high)
    return Bounds(low, high)


def _piece(steps: MassSteps, u: jax.Array, side: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(number, start, end), each (k,), of the piece between two steps that each rank lies in."""

    def single(edges: jax.Array, u: jax.Array) -> jax.Array:
        return jnp.clip(jnp.searchsorted(edges, u, side=side, method="compare_all") - 1, 0, edges.shape[0] - 2)

    piece = jax.vmap(single)(steps.edges, u)
    rows = np.arange(len(steps.edges))
    return piece, steps.edges[rows, piece], steps.edges[rows, piece + 1]


def best_steps(loss: Callable[[jax.Array], jax.Array], u: jax.Array, steps: MassSteps) -> jax.Array:
    """The ranks (k,), each at a step where that lowers the loss.

    One rank after the other is moved to every step, and stays at the best.
    """
    count, many = steps.edges.shape
    ranks = np.tile(np.arange(count), _ROUNDS)
    trials = jnp.asarray(np.repeat(ranks, many)), jnp.tile(steps.edges.reshape(-1), _ROUNDS)

    def attempt(carry: tuple[jax.Array, jax.Array], trial: tuple[jax.Array, jax.Array]) -> tuple[tuple, None]:
        u, least = carry
        rank, edge = trial
        moved = u.at[rank].set(edge)
        value = loss(moved)
        better = value < least
        return (jnp.where(better, moved, u), jnp.where(better, value, least)), None

    return lax.scan(attempt, (u, loss(u)), trials)[0][0]


#: Starts that the CPU descends from at a time: what they need fits into its caches, and the slowest holds up few.
TOGETHER = 64


class OutcomeProblem(NamedTuple):
    """What every λ shares."""

    tables: Tables
    steps: MassSteps
    plan: CascadePlan


class Candidate(NamedTuple):
    """A cascade that may be the best."""

    ranks: Any  # (k,)
    path: Any  # () its number in the plan
    outcome: Outcome  # without smoothing


class Start(NamedTuple):
    """Where a descent starts, and for which λ."""

    ranks: Any  # (k,)
    path: Any  # ()
    lam: Any  # ()
    scale: Any  # () how much the objective varies, for its slopes to be of order 1


Objective = Callable[[Outcome, jax.Array], Any]


def _value_of(objective: Objective, outcome: Outcome, lam: jax.Array, width: Any = 0.0) -> jax.Array:
    """() the objective of what a cascade does, with so wide a smoothing."""
    smoothing = jnp.asarray(width, outcome.asked.dtype)
    return jnp.asarray(objective(dataclasses.replace(outcome, smoothing=smoothing), lam), smoothing.dtype)


def outcome_of_ranks(problem: OutcomeProblem, ranks: jax.Array, path: jax.Array) -> Outcome:
    """What a cascade does."""
    plan = problem.plan
    u = jnp.where(plan.defers[path], ranks, 0.0)
    return outcome_of_cuts(problem.tables, u, plan.links[path], plan.first[path])


@partial(compiled, static_argnames="paths", runs="long")
def propose(tables: Tables, plan: CascadePlan, prices: jax.Array, paths: int) -> tuple[OutcomeProblem, Candidate]:
    """The problem, and the optima of additive objectives: (N·P, …), by cascade and price.

    Args:
        tables: the quadrature of the model.
        plan: the cascades.
        prices: (P,) rising λ of the additive objectives.
        paths: N, how many entries of the plan are cascades.
    """
    problem = OutcomeProblem(tables, steps_of(tables.marginals), plan)
    ranks = cuts_of_paths(tables, prices, plan).u[:paths].reshape(paths * len(prices), -1)
    path = jnp.repeat(np.arange(paths), len(prices))
    return problem, _evaluated(problem, jax.vmap(partial(on_steps, problem.steps))(ranks), path)


def _evaluated(problem: OutcomeProblem, ranks: jax.Array, path: jax.Array) -> Candidate:
    def outcome(row: tuple[jax.Array, jax.Array]) -> Outcome:
        return outcome_of_ranks(problem, *row)

    size = len(path) if jax.default_backend() != "cpu" else min(len(path), TOGETHER)
    return Candidate(ranks, path, lax.map(outcome, (ranks, path), batch_size=size))


@partial(compiled, static_argnames="objective")
def weigh(objective: Objective, outcome: Outcome, lam: jax.Array) -> jax.Array:
    """(L, C) the objective of every candidate at every λ; infinite where it is no number."""
    value = lax.map(lambda price: jax.vmap(partial(_value_of, objective), (0, None))(outcome, price), lam)
    return jnp.where(jnp.isnan(value), jnp.inf, value)


@partial(compiled, static_argnames="objective", runs="long")
def improve(
    objective: Objective, problem: OutcomeProblem, start: Start, settling: jax.Array
) -> tuple[Candidate, jax.Array]:
    """(what descents come to (B,), the slopes that they leave (B,)).

    Args:
        objective: what is minimised.
        problem: what every λ shares.
        start: (B,) where descents start.
        settling: () bool. Without it ranks go everywhere between the masses at the ends, and through the others, to
            find the valley. With it they first try all steps, and then keep to the smooth piece that they are in.
    """

    def single(start: Start) -> tuple[jax.Array, jax.Array]:
        def loss(ranks: jax.Array, width: Any) -> jax.Array:
            outcome = outcome_of_ranks(problem, ranks, start.path)
            return _value_of(objective, outcome, start.lam, width) / start.scale

        def go_on(ranks: jax.Array, width: jax.Array) -> tuple[jax.Array, None]:
            return descend(partial(loss, width=width), ranks, bounds), None

        exact = partial(loss, width=0.0)
        ranks = lax.cond(settling, lambda u: best_steps(exact, u, problem.steps), lambda u: u, start.ranks)
        pieces = smooth_pieces(problem.steps, ranks), problem.steps.smooth_range
        bounds = jax.tree.map(partial(jnp.where, settling), *pieces)
        ranks, _ = lax.scan(go_on, ranks, jnp.asarray(_WIDTHS, ranks.dtype))
        return on_steps(problem.steps, ranks), slope_left(partial(loss, width=_WIDTHS[-1]), ranks, bounds)

    ranks, slope = jax.vmap(single)(start)
    return _evaluated(problem, ranks, start.path), slope
