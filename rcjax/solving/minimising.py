"""Policies that minimise a user's objective, by gradient.

Objectives that add up along a cascade, as error and cost do, have Bellman's optimum (`rcjax.solving.bellman`). A capped
cost, a quantile of the seconds or fairness between models does not add up. Here an objective is a function of a
cascade's outcome, which is differentiable in the ranks (k,), the cuts of the cascade's models.

Within a point mass the objective is linear between the ends, as for a policy that passes a random share of the ties. A
threshold passes all ties or none. Ranks inside a mass move to the nearer end of the mass, a *step*, and every step is
then tried.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from rcjax._base.codec import describe_type, takes, whole_number
from rcjax._base.extras import import_extra
from rcjax._core.batching import Array, join, map_in_chunks, take_entries
from rcjax._core.compilation import compiled
from rcjax._core.numerics import divide
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.marginals import Marginal
from rcjax.policy.spec import OWN_OBJECTIVE, CascadeSet, Spec
from rcjax.solving.bellman import (
    CascadePlan,
    Cut,
    SearchTables,
    batch_size,
    cuts_of_cascades,
    list_cascades,
    make_plan,
)
from rcjax.solving.frontier.frontier import Frontier, make_frontier
from rcjax.solving.frontier.points import PointStatus, check_lam, lam_range
from rcjax.solving.optimum import OptimalCuts
from rcjax.solving.quadrature import Outcome, QuadratureTables, outcome_of_cuts
from rcjax.solving.tradeoff import build_search_tables, evaluate_optima

if TYPE_CHECKING:
    from optax import OptState

Loss = Callable[[Array], Array]
Objective = Callable[[Outcome, Array], Any]

#: Number of times that every model tries every step: the best step of a model depends on the other models' steps.
_ROUNDS = 2
#: Widths of `Outcome.smoothing`, in turn; the last width decides on convergence.
_WIDTHS = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)
_TRIALS = 120  # greatest number of evaluations of a loss
_HISTORY = 5  # pairs of steps and slopes that L-BFGS keeps; there are few ranks
_ARMIJO_SHARE = 1e-4  # share of the gain predicted by the slope that a step must reach (Armijo's rule)
_SHORTER = (0.1, 0.5)  # bounds of the next trial's length, as a share of a rejected length
_TIGHTER = 1 / 40  # share of the tolerance at which a descent ends
_NUDGE = 1e-4  # starts stay this share of the range off the bounds, where the slope in x is 0
_AT_BOUND = 1e-5  # share of the range within which the bound itself is tried


class Bounds(NamedTuple):
    """Lower and upper bounds of ranks."""

    low: Array  # (n,)
    high: Array  # (n,)

    def ranks_of_angles(self, x: Array) -> Array:
        """Map angles x (n,) to ranks within the bounds: (n,)."""
        return self.low + (self.high - self.low) * (1 - jnp.cos(x)) / 2

    def angles_of_ranks(self, u: Array) -> Array:
        """Map ranks, moved a little inside the bounds, to angles: (n,)."""
        share = divide(u - self.low, self.high - self.low, 0.5)
        return jnp.arccos(1 - 2 * jnp.clip(share, _NUDGE, 1 - _NUDGE))


def tolerance(dtype: DTypeLike) -> float:
    """Return the largest slope of a loss, per unit of rank, that counts as converged; the loss errs by its square."""
    return 4 * float(jnp.finfo(dtype).eps) ** 0.25


def descend(loss: Loss, u: Array, bounds: Bounds) -> Array:
    """Minimise a loss of order 1 from ranks (n,) by optax's L-BFGS with a line search: (n,).

    A rank in [low, high] is u = low + (high − low)·(1 − cos x)/2. The angle x is unconstrained, and an optimum at a
    bound is a stationary point in x (James & Roos 1975, "Minuit: a system for function minimization"). The descent ends
    when the slope is far below `tolerance`, no step improves, or the steps are used up.
    """
    x, value = _run_lbfgs(lambda x: loss(bounds.ranks_of_angles(x)), bounds.angles_of_ranks(u))
    reached = bounds.ranks_of_angles(x)
    share = divide(reached - bounds.low, bounds.high - bounds.low, 0.5)
    at_bounds = jnp.where(share < _AT_BOUND, bounds.low, jnp.where(share > 1 - _AT_BOUND, bounds.high, reached))
    return jnp.where(loss(at_bounds) <= value, at_bounds, reached)


class _Descent(NamedTuple):
    """State of a descent, and its next trial step."""

    x: Array  # (n,)
    value: Array  # ()
    slope: Array  # (n,)
    state: "OptState"  # state of L-BFGS
    direction: Array  # (n,)
    length: Array  # () length of the next trial, as a share of the direction
    count: Array  # () number of trials
    done: Array  # () bool


def _run_lbfgs(loss: Loss, x: Array) -> tuple[Array, Array]:
    """Descend by L-BFGS with backtracking (Nocedal & Wright 2006, section 3.5), and return (x (n,), value ()).

    Each iteration is one trial, accepted or not, so that no descent of a batch waits for another's line search.
    """
    lbfgs = import_extra("optax", extra="objectives").scale_by_lbfgs(memory_size=_HISTORY)
    value_and_slope = jax.value_and_grad(loss)
    rounding = 4 * float(jnp.finfo(x.dtype).eps)

    def attempt(search: _Descent) -> _Descent:
        x = search.x - search.length * search.direction
        value, slope = value_and_slope(x)
        promised = search.length * (search.direction @ search.slope)
        taken = value <= search.value - _ARMIJO_SHARE * promised
        direction, state = lbfgs.update(slope, search.state, x)
        steepest = slope * jnp.minimum(1.0, divide(1.0, jnp.linalg.norm(slope), 1.0))
        arrived = ~(jnp.abs(slope).max(initial=0.0) > _TIGHTER * tolerance(slope.dtype))  # negated so that NaN ends too
        upward = ~(direction @ slope > 0)  # the loss is concave, or a slope is NaN: reset L-BFGS
        direction, state = jax.tree.map(partial(jnp.where, upward), (steepest, lbfgs.init(x)), (direction, state))
        count = search.count + 1
        accepted = _Descent(x, value, slope, state, direction, jnp.ones_like(value), count, arrived)
        # Minimum of the parabola through both values and the slope at the start.
        share = divide(promised, 2 * (value - search.value + promised), _SHORTER[1])
        share = jnp.clip(jnp.where(jnp.isfinite(share), share, _SHORTER[0]), *_SHORTER)
        lost = ~(promised > rounding * (1 + jnp.abs(search.value)))
        shorter = search._replace(length=search.length * share, count=count, done=lost)
        return jax.tree.map(partial(jnp.where, taken), accepted, shorter)

    # The first trial is the start.
    nowhere, unit = jnp.zeros_like(x), jnp.ones((), x.dtype)
    start = _Descent(x, unit * jnp.inf, nowhere, lbfgs.init(x), nowhere, unit, jnp.zeros((), int), jnp.zeros((), bool))
    search = lax.while_loop(lambda search: ~search.done & (search.count < _TRIALS), attempt, start)
    return search.x, search.value


def remaining_slope(loss: Loss, u: Array, bounds: Bounds) -> Array:
    """Compute the largest step of ranks down the slope of the loss within their bounds: (); NaN if the slope is NaN."""
    slope = jax.grad(loss)(u)
    return jnp.abs(u - jnp.clip(u - slope, bounds.low, bounds.high)).max(initial=0.0) + 0 * slope.sum()


class MassSteps(NamedTuple):
    """The ranks at which the point masses of k models start and end, with 0 and 1, E for each model."""

    edges: Array  # (k, E) ranks, rising
    smooth: Array  # (k, E − 1) bool, whether no mass lies between neighbouring edges

    @property
    def smooth_range(self) -> Bounds:
        """(k,) bounds of the ranks between the masses at the ends."""
        return Bounds(self.edges[:, 1], self.edges[:, -2])


def find_mass_steps(marginals: Marginal) -> MassSteps:
    """Find the edges of the point masses of marginals (k,)."""
    starts, ends = jax.vmap(Marginal.mass_ranks)(marginals)
    edges = jnp.sort(jnp.concatenate([starts, ends], axis=1), axis=1)
    middle = (edges[:, 1:] + edges[:, :-1]) / 2
    inside = (middle[..., None] > starts[:, None]) & (middle[..., None] < ends[:, None])
    return MassSteps(edges, ~inside.any(-1) & (jnp.diff(edges, axis=1) > 0))


def move_to_steps(steps: MassSteps, u: Array) -> Array:
    """Move ranks (k,) within a mass to its nearer end: (k,)."""
    smooth, start, end = _piece(steps, u, "right")
    return jnp.where(smooth, u, jnp.where(u - start < end - u, start, end))


def smooth_pieces(steps: MassSteps, u: Array) -> Bounds:
    """Return the bounds of the smooth piece that holds each rank (k,), ends included; else the rank alone."""
    low, high = u, u
    for side in ("left", "right"):
        smooth, start, end = _piece(steps, u, side)
        smooth &= (start <= u) & (u <= end)
        low, high = jnp.where(smooth, start, low), jnp.where(smooth, end, high)
    return Bounds(low, high)


def _piece(steps: MassSteps, u: Array, side: str) -> tuple[Array, Array, Array]:
    """Return (is smooth, start, end) of the piece between two edges in which each rank lies: (k,) each."""

    def single(edges: Array, u: Array) -> Array:
        return jnp.clip(jnp.searchsorted(edges, u, side=side, method="compare_all") - 1, 0, edges.shape[0] - 2)

    piece = jax.vmap(single)(steps.edges, u)
    rows = np.arange(len(steps.edges))
    return steps.smooth[rows, piece], steps.edges[rows, piece], steps.edges[rows, piece + 1]


def best_steps(loss: Callable[[jax.Array], Array], u: jax.Array, steps: MassSteps) -> Array:
    """Move ranks (k,) to steps that lower the loss: (k,).

    Each rank in turn tries every step, and stays at the best.
    """
    models, edges = steps.edges.shape
    ranks = np.tile(np.arange(models), _ROUNDS)
    trials = jnp.asarray(np.repeat(ranks, edges)), jnp.tile(steps.edges.reshape(-1), _ROUNDS)

    def attempt(carry: tuple[jax.Array, jax.Array], trial: tuple[Array, Array]) -> tuple[tuple, None]:
        u, least = carry
        rank, edge = trial
        moved = u.at[rank].set(edge)
        value = loss(moved)
        better = value < least
        return (jnp.where(better, moved, u), jnp.where(better, value, least)), None

    return lax.scan(attempt, (u, jnp.asarray(loss(u))), trials)[0][0]


#: Descents at a time on the CPU: their arrays fit into its caches, and the slowest descent delays few others.
TOGETHER = 64


class OutcomeTables(NamedTuple):
    """The tables and plan of a search, which all λ share."""

    tables: QuadratureTables
    steps: MassSteps
    plan: CascadePlan


class TrialCascade(NamedTuple):
    """A cascade that a search tries, with its outcome; leading axes batch it."""

    ranks: Array  # (k,)
    cascade: Array  # () number of the cascade in the plan
    outcome: Outcome  # `smoothing` is 0


class DescentStart(NamedTuple):
    """Start of a descent for one λ."""

    ranks: Array  # (k,)
    cascade: Array  # () number of the cascade in the plan
    lam: Array  # ()
    scale: Array  # () divisor of the objective, so that its slopes are of order 1


def _evaluate(objective: Objective, outcome: Outcome, lam: Array, width: Any = 0.0) -> Array:
    """Evaluate the objective of an outcome, with a width of smoothing: ()."""
    smoothing = jnp.asarray(width, outcome.asked.dtype)
    return jnp.asarray(objective(dataclasses.replace(outcome, smoothing=smoothing), lam), smoothing.dtype)


def outcome_of_ranks(search: OutcomeTables, ranks: Array, cascade: Array) -> Outcome:
    """Evaluate the cascade with given ranks."""
    plan = search.plan
    u = jnp.where(plan.defers[cascade], ranks, 0.0)
    return outcome_of_cuts(search.tables, u, plan.links[cascade], plan.first[cascade])


@partial(compiled, static_argnames="count", runs="long")
def list_candidates(additive: SearchTables, lam: jax.Array, count: int) -> tuple[OutcomeTables, TrialCascade]:
    """Return the tables of the search, and the optima of additive objectives by cascade and λ: (N·P, …).

    `additive` are the tables for additive objectives, at rising λ (P,); `count` is the number N without padding.
    """
    search = OutcomeTables(additive.tables, find_mass_steps(additive.tables.marginals), additive.plan)
    ranks = cuts_of_cascades(additive, lam).u[:count].reshape(count * len(lam), -1)
    cascade = jnp.repeat(np.arange(count), len(lam))
    return search, _evaluated(search, jax.vmap(partial(move_to_steps, search.steps))(ranks), cascade)


def _evaluated(search: OutcomeTables, ranks: Array, cascade: Array) -> TrialCascade:
    def outcome(row: tuple[Array, Array]) -> Outcome:
        return outcome_of_ranks(search, *row)

    outcomes = lax.map(outcome, (ranks, cascade), batch_size=batch_size(len(cascade), TOGETHER))
    return TrialCascade(ranks, cascade, outcomes)


@partial(compiled, static_argnames="objective")
def objective_values(objective: Objective, outcome: Outcome, lam: Array) -> Array:
    """Evaluate the objective of every candidate at every λ: (L, C); infinite in place of NaN."""
    of_candidates = jax.vmap(partial(_evaluate, objective), (0, None))
    value = lax.map(lambda single_lam: of_candidates(outcome, single_lam), lam)
    return jnp.where(jnp.isnan(value), jnp.inf, value)


@partial(compiled, static_argnames="objective", runs="long")
def descend_from_starts(
    objective: Objective, search: OutcomeTables, start: DescentStart, settling: Array
) -> tuple[TrialCascade, Array]:
    """Descend from each start, and return (results (B,), remaining slopes (B,)).

    Args:
        objective: function to minimise.
        search: tables and plan.
        start: (B,) starts.
        settling: () bool. False: ranks move freely between the masses at the ends, through atoms, to find the valley.
            True: ranks first try all steps, and then stay within their smooth piece.
    """

    def single(start: DescentStart) -> tuple[Array, Array]:
        def loss(ranks: Array, width: Any) -> Array:
            outcome = outcome_of_ranks(search, ranks, start.cascade)
            return _evaluate(objective, outcome, start.lam, width) / start.scale

        def go_on(ranks: Array, width: Array) -> tuple[Array, None]:
            return descend(partial(loss, width=width), ranks, bounds), None

        exact = partial(loss, width=0.0)
        ranks = lax.cond(settling, lambda u: best_steps(exact, u, search.steps), lambda u: u, start.ranks)
        pieces = smooth_pieces(search.steps, ranks), search.steps.smooth_range
        bounds = jax.tree.map(partial(jnp.where, settling), *pieces)
        ranks, _ = lax.scan(go_on, ranks, jnp.asarray(_WIDTHS, ranks.dtype))
        return move_to_steps(search.steps, ranks), remaining_slope(partial(loss, width=_WIDTHS[-1]), ranks, bounds)

    ranks, slope = jax.vmap(single)(start)
    return _evaluated(search, ranks, start.cascade), slope


_ADDITIVE_LAM = 64  # λ of additive objectives
_MIN_SCALE = 0.01  # least scale as a share of the least value, so that slopes exceed rounding errors

#: Slope that rounding may leave, in roots of a rounding error of the objective. A descent ends when no step gains more
#: than a rounding error; the slope is then √(2·curvature·rounding). The curvature is largest, in the hundreds, where
#: panels of the quadrature meet.
_ROUNDING_SLOPE = 200
_FEW_STARTS = 16  # smaller padded number of starts beside `TOGETHER`; each number needs a program


@takes(model=CascadeModel)
def minimise(
    objective: Callable[..., Any], model: CascadeModel, cascades: CascadeSet = "all", *, lam: Any, starts: int = 4
) -> Frontier:
    """Minimise a user's objective for each λ by gradient, and return the policies as a frontier.

    The objective is a pure JAX function of a cascade's expected outcome (`Outcome`): the shares asked, answered and
    answered wrongly by each model, hence error, cost, and the probability and cost of each path. It need not add up
    along a cascade; if it does, as error + λ·cost, `solve_frontier` is exact and far faster.

    *Descent.* Thresholds are ranks u = F(φ). L-BFGS descends from several starts for every λ and cascade, in one
    compiled program. Candidate starts are Bellman's optima of error + μ·cost at 64 μ, from μ at which cost hardly
    counts to μ at which only the cheapest model pays. The range of μ is cut into `starts` stretches; the candidate with
    the least objective of each stretch is a start. Each λ tries the results of all others, and its best descends again.

    *Kinks and jumps.* Write a quantile as `smoothed_quantile(…, outcome.smoothing)`. The solver reduces this width from
    1e-2 to 1e-5 in seven steps, and compares all results at width 0, which is exact. At other kinks the slope does not
    vanish: the status is `NOT_CONVERGED`, although the policy may be optimal.

    *Point masses*. A threshold passes all of a mass or none. A descent crosses a mass as if ties were broken at random,
    and its result moves to the mass's nearer end. Each threshold is then tried at both ends of every mass, and the
    other thresholds descend within smooth pieces. Without smooth pieces this is a search over steps, good but not
    proven optimal.

    Args:
        objective: `objective(outcome, lam)` returns one real number for traced arrays. Functions are cached by
            identity: the same function does not compile again.
        model: fitted model.
        cascades: "all", "full", or a list of cascades, as in `solve_frontier`.
        lam: (L,) λ, at least 0. The objective takes each λ, and defines its meaning.
        starts: descents for every λ and cascade.

    The frontier's `status` says for each λ whether the slope vanished. `frontier.policy_at(i)` is the policy of the
    i-th λ, and `frontier.policy(budget=…)` picks one by error and cost. Needs `pip install 'rcjax[objectives]'`.

    Raises ValueError for an objective that does not return one real number, for λ that are negative, not finite or
    missing, for unknown models, and for cascades without a threshold to choose.

    >>> import rcjax
    >>> model = rcjax.demo_model()
    >>> pair = ("llama3.2-1b", "llama3.1-70b")
    >>> def squared(outcome, lam):  # dear queries are worse than their money
    ...     return outcome.error + lam * (outcome.taken * outcome.path_cost**2).sum()
    >>> frontier = minimise(squared, model, [pair], lam=[1e5, 1e6])
    >>> frontier.thresholds.shape, frontier.status.tolist(), bool(frontier.cost[1] < frontier.cost[0])
    ((2, 5), [0, 0], True)
    >>> frontier.policy_at(1).models
    ('llama3.2-1b', 'llama3.1-70b')
    """
    lam = check_lam(lam)
    positions = list_cascades(model.models, cascades)
    if positions is None:
        raise ValueError("cascades='adaptive' does not exist here: use 'all', 'full' or a list of cascades")
    if max(map(len, positions)) < 2:
        alone = model.models[positions[0][0]]
        raise ValueError(f"cascades: {alone} alone has no threshold to choose: name a cascade of two models or more")
    import_extra("optax", extra="objectives")
    plan = make_plan(positions, len(model.models))
    starts = min(whole_number(starts, "starts", 1), _ADDITIVE_LAM)
    additive_lam = lam_range(np.asarray(model.cost, float)[np.asarray(plan.members)[-1]], _ADDITIVE_LAM)
    additive = build_search_tables(model, plan, None)
    assert isinstance(additive, SearchTables)  # as there is a plan
    search, proposed = list_candidates(additive, additive_lam.astype(lam.dtype), len(positions))
    _check_objective(objective, proposed.outcome)
    chosen, status = _search(objective, search, proposed, lam.astype(model.cost.dtype), starts)
    cut = Cut.at(jnp.where(plan.defers[chosen.cascade], chosen.ranks, 0.0))
    points = evaluate_optima(additive, OptimalCuts(lam, chosen.cascade, jax.device_get(cut), status))
    return make_frontier(model, points, Spec(cascade=OWN_OBJECTIVE))


def _check_objective(objective: Objective, outcomes: Outcome) -> None:
    """Raise ValueError if the objective does not return one real number."""
    outcome = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), outcomes)
    value = jax.eval_shape(objective, outcome, jax.ShapeDtypeStruct((), outcomes.asked.dtype))
    if not isinstance(value, jax.ShapeDtypeStruct) or value.shape or not np.issubdtype(value.dtype, np.floating):
        raise ValueError(
            f"objective must return one real number that has a slope, not {describe_type(value)}: take a sum or a mean"
        )


def _search(
    objective: Objective, search: OutcomeTables, proposed: TrialCascade, lam: np.ndarray, starts: int
) -> tuple[TrialCascade, np.ndarray]:
    """Descend for every λ (L,), and return (the best candidates (L,), their statuses (L,)).

    `proposed` (C,) are the initial candidates, and `starts` the number of descents for each λ and cascade.
    """
    value = np.asarray(objective_values(objective, proposed.outcome, lam), float)
    scale = _scale(value).astype(lam.dtype)
    proposed = jax.device_get(proposed)
    rows = _starting_rows(value, starts)  # (L, N, S)
    target = np.repeat(np.arange(len(lam)), rows[0].size)
    rows = rows.reshape(-1)
    start = DescentStart(proposed.ranks[rows], proposed.cascade[rows], lam[target], scale[target])
    together = len(rows) if jax.default_backend() != "cpu" else _FEW_STARTS if len(rows) <= _FEW_STARTS else TOGETHER

    def descend(start: DescentStart, settling: bool) -> tuple[TrialCascade, np.ndarray]:
        return map_in_chunks(
            lambda batch: descend_from_starts(objective, search, batch, np.asarray(settling)), start, together
        )

    reached, _ = descend(start, settling=False)
    candidates = join([proposed, reached])
    # The result of a descent at one λ is a candidate at every other.
    best = take_entries(candidates, np.asarray(objective_values(objective, candidates.outcome, lam)).argmin(1))
    settled, slope = descend(DescentStart(best.ranks, best.cascade, lam, scale), settling=True)
    before, after = (
        np.diagonal(np.asarray(objective_values(objective, batch.outcome, lam), float)) for batch in (best, settled)
    )
    better = after < before
    chosen = take_entries(
        jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), best, settled), (np.arange(len(lam)), better * 1)
    )
    reached_value = np.where(better, after, before)
    return chosen, _status(search, chosen, reached_value, slope, slope_tolerance(reached_value, scale))


def _scale(value: np.ndarray) -> np.ndarray:
    """Return the median excess of the finite candidates (L, C) over the best, bounded away from 0: (L,)."""
    number = np.where(np.isfinite(value), value, np.nan)
    finite = np.isfinite(value).any(1)
    least, middle = (np.ones(len(value)) for _ in range(2))
    least[finite], middle[finite] = np.nanmin(number[finite], axis=1), np.nanmedian(number[finite], axis=1)
    size = np.maximum(middle - least, _MIN_SCALE * np.abs(least))
    return np.where(finite & (size > 0), size, 1.0)


def _starting_rows(value: np.ndarray, starts: int) -> np.ndarray:
    """Find the best of the candidates (L, N·P) in each of S stretches of their λ: (L, N, S)."""
    by_lam = value.reshape(len(value), -1, _ADDITIVE_LAM)
    stretches = np.array_split(np.arange(_ADDITIVE_LAM), starts)
    best = [stretch[0] + by_lam[:, :, stretch].argmin(-1) for stretch in stretches]
    return np.stack(best, axis=-1) + _ADDITIVE_LAM * np.arange(by_lam.shape[1])[:, None]


def slope_tolerance(value: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the largest slopes that count as converged: (L,).

    They allow for rounding of the objective, which may differ between processors. `value` (L,) is the objective at the
    ends of the descents, and `scale` (L,) divides losses and slopes, in the precision of the descents.
    """
    roundings = np.abs(value) / scale * _ROUNDING_SLOPE * np.finfo(scale.dtype).eps ** 0.5
    return tolerance(scale.dtype) * np.maximum(1.0, roundings)


def _status(
    search: OutcomeTables, chosen: TrialCascade, value: np.ndarray, slope: np.ndarray, largest: np.ndarray
) -> np.ndarray:
    """Return the status of each λ: (L,)."""
    cut = chosen.ranks
    low, high = jax.device_get(search.steps.smooth_range)
    at_bound = (np.asarray(search.plan.defers)[chosen.cascade] & ((cut <= low) | (cut >= high))).any(1)
    status = np.where(at_bound, PointStatus.AT_BOUND, PointStatus.CONVERGED)
    arrived = slope <= largest  # False for NaN
    status = np.where(arrived, status, PointStatus.NOT_CONVERGED)
    return np.where(np.isfinite(value), status, PointStatus.NOT_FINITE)
