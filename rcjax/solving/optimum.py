"""The best cascade at given λ as a pure function of a fitted model, for `jit`, `vmap` and `grad`.

Callers map `solve`, or `optimise` and `points_at`, over fitted models: bootstrap replicates, folds, posterior draws. A
cut in u-space becomes the best threshold near the cut. An adaptive policy is the optimum over all policies: after each
answer it keeps the answer or asks any later model, depending on the confidence. Bellman's equation is then

    V_j(u) = max{ Q_j(u), max over l > j of −λ·cost_l + E[V_l(Φ_l) | Φ_j = u] }

If models may abstain, the worth of an abstention is one more term of the maximum.

The search over cascades has no derivative. At the result of the search the loss L(φ; x) = error + λ·cost is stationary
in every free threshold φ, where x is λ and every array of the model. The implicit function theorem gives

    dφ = −(∂²L/∂φ²)⁻¹ (∂²L/∂φ∂x) dx

and dL = ∂L/∂x dx (the envelope theorem). A held threshold, beside a point mass or at an end of the confidences, has
derivative 0.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._base.codec import takes
from rcjax._core.batching import Array, number_pairs, take_entries, vary_over_same_devices, with_automatic_axes
from rcjax._core.compilation import compiled, is_traced
from rcjax._core.numerics import divide
from rcjax.copulas import Copula
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.marginals import Marginal
from rcjax.policy.spec import CascadeSet
from rcjax.solving.bellman import (
    AdaptiveTables,
    CascadePlan,
    Cut,
    SearchTables,
    best_cascades,
    find_crossing,
    gain_tolerance,
    plan_cascades,
)
from rcjax.solving.frontier.points import (
    ABSTAIN,
    ALWAYS_ANSWER,
    NEVER_ABSTAIN,
    NEVER_ANSWER,
    LossTerms,
    Points,
    PointStatus,
    Policies,
)
from rcjax.solving.quadrature import (
    PANELS,
    QuadratureGrid,
    QuadratureTables,
    arrival_densities,
    build_tables,
    outcome_of_cuts,
)

#: Distance of a threshold from a point mass, in machine epsilons; Newton steps from a cut to its threshold.
_ULPS, _SETTLING_STEPS = 16, 5


class Threshold(NamedTuple):
    """A threshold, with the figures of its marginal there; arrays of one shape."""

    value: jax.Array  # φ, a calibrated confidence
    rank: jax.Array  # F(φ)
    mean_above: jax.Array  # E[Φ; Φ > φ]


def settle_threshold(
    marginal: Marginal, grid: QuadratureGrid, u: jax.Array, worth: jax.Array, slope: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Find the best threshold φ near a cut, as the fields of a `Threshold`, each ().

    The value of deferring a query of confidence φ is `worth` + `slope`·(F(φ) − u), and the loss is stationary where
    this value equals φ. Newton's method solves the equation between the nodes around u. A threshold passes all of a
    mass or none: φ is 0 or 1 if u cuts the mass at an end. Elsewhere φ keeps a few rounding errors away from a mass,
    so that a rounded confidence, here or in a service, does not cross the threshold.

    Args:
        marginal: marginal of the model.
        grid: quadrature nodes of the model.
        u: () cut, on the scale of ranks.
        worth: () value of deferring at the cut, in right answers; NaN: φ solves F(φ) = u.
        slope: () derivative of the value, per unit of rank.
    """
    eps = jnp.finfo(grid.u.dtype).eps
    bottom, top = grid.edges[1], grid.edges[-2]
    is_below, is_above = (u < bottom - 4 * eps) | (u <= 0), (u > top + 4 * eps) | (u >= 1)
    nodes = jnp.concatenate([bottom[None], grid.u[1:-1], top[None]])
    last = nodes.shape[0] - 1
    right = jnp.clip(jnp.searchsorted(nodes, u, method="compare_all"), 1, last)
    beside, around = jnp.stack([nodes, grid.quantile])[:, jnp.clip(right + np.arange(-2, 2), 0, last)]
    margin = jnp.minimum(_ULPS * eps, (marginal.highest - marginal.lowest) / 4)
    low, high = jnp.clip(around[np.array([0, 3])], marginal.lowest + margin, marginal.highest - margin)
    if marginal.atoms is not None:
        u, low, high = _between_atoms(marginal, u, (low, high), margin)
    low, high = (jnp.where(is_below, ALWAYS_ANSWER, jnp.where(is_above, NEVER_ANSWER, end)) for end in (low, high))
    worth = jnp.where((u > bottom + 4 * eps) & (u < top - 4 * eps), worth, jnp.nan)

    def newton(_, state: tuple[jax.Array, Threshold]) -> tuple[jax.Array, Threshold]:
        threshold, _ = state
        cdf, density, above = marginal.profile(threshold)
        to_optimum = divide(worth + slope * (cdf - u) - threshold, 1 - jnp.minimum(slope * density, 0.9))
        step = jnp.where(jnp.isnan(worth), divide(u - cdf, density), to_optimum)
        return jnp.clip(threshold + jnp.nan_to_num(step), low, high), Threshold(threshold, cdf, above)

    share = divide(u - beside[1], beside[2] - beside[1], 0.5)
    guess = jnp.clip(around[1] + share * (around[2] - around[1]), low, high)
    return tuple(lax.fori_loop(0, _SETTLING_STEPS, newton, (guess, Threshold(guess, guess, guess)))[1])


def _between_atoms(
    marginal: Marginal, u: jax.Array, around: tuple[jax.Array, jax.Array], margin: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Move a cut () off the atoms of a marginal, and return (cut, lowest threshold, highest threshold).

    A cut within an atom goes to the atom's nearer end. If no smooth part lies between two masses, the threshold is
    midway. Thresholds stay within `around`, and `margin` away from a mass, in confidence.
    """
    atoms = marginal.atoms
    assert atoms is not None
    start, end = marginal.mass_ranks()
    value = jnp.concatenate([marginal.lowest[None], atoms.value, marginal.highest[None]])
    has_mass = end > start
    inside = has_mass & (u > start) & (u < end) & (value > marginal.lowest) & (value < marginal.highest)
    nearer = jnp.where(u - start < end - u, start, end)
    u = jnp.where(inside.any(), (inside * nearer).sum(), u)
    rounding = 8 * jnp.finfo(u.dtype).eps
    passed = has_mass & (end <= u + rounding)
    ahead = has_mass & (start >= u - rounding) & ~passed
    below = jnp.where(passed, value, marginal.lowest).max()
    above = jnp.where(ahead, value, marginal.highest).min()
    reached, next_start = jnp.where(passed, end, 0.0).max(), jnp.where(ahead, start, 1.0).min()
    empty = next_start - reached <= rounding * value.shape[0]
    margin = jnp.minimum(margin, (above - below) / 4)
    low, high = jnp.clip(jnp.stack(around), below + margin, above - margin)
    middle = (below + above) / 2
    return u, jnp.where(empty, middle, low), jnp.where(empty, middle, high)


def build_pair_tables(
    marginals: Marginal, copulas: Copula, cost: jax.Array, indices: Any = None, panels: int = PANELS
) -> QuadratureTables:
    """Build the tables of a fitted model for some of its pairs of models.

    Args:
        marginals: (k,) marginals of the models.
        copulas: copulas of all pairs.
        cost: (k,) money per answer.
        indices: (P,) numbers of the pairs; None: all.
        panels: panels of the quadrature.
    """
    left, right = map(jnp.asarray, np.triu_indices(cost.shape[0], 1))
    indices = np.arange(len(left)) if indices is None else indices
    left, right = left[indices], right[indices]
    return build_tables(marginals, take_entries(copulas, indices), cost, left, right, panels)


class OptimalCuts(NamedTuple):
    """The best cascade for each of L λ, as cuts in u-space."""

    lam: Array  # (L,) errors per unit of money
    cascade: Array  # (L,) number of the cascade in the plan
    cut: Cut  # (L, k)
    status: Array  # (L,) a `PointStatus`


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SolvedPoints(Points):
    """Points found by a solver, with the ranks of their thresholds."""

    ranks: Array  # (L, …) thresholds on the scale of ranks, for distances between neighbours
    cascade: Array | None = None  # (L,) number of the cascade in the plan; None for adaptive policies


@partial(compiled, runs="long")
def optimise(search: SearchTables, lam: jax.Array) -> OptimalCuts:
    """Find the best cascade and its cuts for each λ (L,)."""
    best = best_cascades(search, lam)
    low, high = search.tables.grid.smooth_range
    at_bound = (search.plan.defers[best.cascade] & ((best.cut.u <= low) | (best.cut.u >= high))).any(-1)
    finished = jnp.where(at_bound, PointStatus.AT_BOUND, PointStatus.CONVERGED)
    status = jnp.where(best.gain > gain_tolerance(lam.dtype), PointStatus.NOT_CONVERGED, finished)
    # A strong integer type, so that points interpolated on the host share the program.
    return OptimalCuts(lam, best.cascade, best.cut, status.astype(int))


@compiled
def points_at(search: SearchTables, optima: OptimalCuts) -> SolvedPoints:
    """Turn the cuts of L optima (`optimise`) into thresholds, and evaluate their outcomes exactly."""
    tables, plan, abstaining = search.tables, search.plan, search.abstain_worth is not None
    lam, cascade, cut, status = optima
    members, stops = plan.members[cascade], plan.stops[cascade]
    # The last model of a cascade answers all queries on which it does not abstain; models outside it answer none.
    cutting = members if abstaining else plan.defers[cascade]
    u = jnp.where(cutting, cut.u, jnp.where(members, 0.0, 1.0))
    settled = thresholds_of_cuts(tables, dataclasses.replace(cut, u=u))

    def single(u: jax.Array, above: jax.Array, cascade: Array) -> LossTerms:
        abstain_cuts = jnp.where(plan.stops[cascade], u, 0.0) if abstaining else None
        links, first = plan.links[cascade], plan.first[cascade]
        return outcome_of_cuts(tables, u, links, first, above=above, abstain_cuts=abstain_cuts).terms

    expected = jax.vmap(single)(settled.rank, settled.mean_above, cascade)
    abstain_thresholds = jnp.where(stops, settled.value, NEVER_ABSTAIN) if abstaining else None
    # Drop models after a model that always answers, if the shorter cascade is in the plan.
    members = jnp.where(plan.has_all_prefixes, drop_unreached(settled.value, members), members)
    thresholds = jnp.where(members, settled.value, NEVER_ANSWER)
    policies = Policies.from_cascades(thresholds, members, abstain_thresholds)
    return SolvedPoints(lam, status, expected, policies, settled.rank, cascade)


def thresholds_of_cuts(tables: QuadratureTables, cut: Cut) -> Threshold:
    """Find the best thresholds near cuts (L, k, …) by `settle_threshold`: (L, k, …)."""
    settle_all = jax.vmap(jnp.vectorize(settle_threshold, excluded=(0, 1)), (0, 0, 1, 1, 1), 1)
    return Threshold(*settle_all(tables.marginals, tables.grid, cut.u, cut.worth, cut.slope))


@compiled
def adaptive_points(search: AdaptiveTables, lam: jax.Array) -> SolvedPoints:
    """Find the best adaptive policies for all λ (L,), and evaluate their outcomes exactly."""
    tables, abstain_worth = search
    k = tables.cost.shape[0]
    best = adaptive_policies(tables, lam, abstain_worth)
    expected = jax.vmap(partial(evaluate_intervals, tables, abstaining=abstain_worth is not None))(best)
    first, upper, action = best
    bounds = jnp.where(upper >= 1, 1.0, thresholds_of_cuts(tables, Cut.at(upper)).value).at[..., -1].set(1.0)
    used = jnp.diff(upper, axis=-1, prepend=jnp.zeros_like(upper[..., :1])) > 0

    def ask(asked: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        i, j = pair
        return asked.at[:, j].max(asked[:, i] & (used[:, i] & (action[:, i] == j)).any(-1)), None

    asked, _ = lax.scan(ask, first[:, None] == np.arange(k), (tables.left, tables.right))
    policies = Policies(bounds, action, asked)
    return SolvedPoints(lam, jnp.zeros_like(first), expected, policies, upper.reshape(*lam.shape, -1))


MAX_INTERVALS = 8  # greatest number of intervals of confidence per model in an adaptive policy


class IntervalPolicy(NamedTuple):
    """An adaptive policy over k models, with R intervals of rank for each model; leading axes batch it."""

    first: jax.Array  # () model asked first
    upper: jax.Array  # (k, R) upper ends of the intervals, on the scale of ranks
    action: jax.Array  # (k, R) model to ask next; the model's own number: answer; ABSTAIN: abstain


def adaptive_policies(tables: QuadratureTables, lam: jax.Array, abstain_worth: jax.Array | None) -> IntervalPolicy:
    """Solve for the optimum over all policies for each λ (L,), with tables of all pairs of models: (L,)."""
    k = tables.cost.shape[0]

    def ask_or_answer(integrands: jax.Array, model: tuple[Any, Any]) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        j, links = model
        grid = take_entries(tables.grid, j)
        worth = jnp.zeros_like(integrands)
        if tables.left.size:  # a single model has no pairs
            worth = jax.vmap(lambda values, link: values @ tables.kernel[link].T)(integrands, links)
        net_worth = worth - (tables.cost[:, None] * lam)[..., None]
        asking = jnp.where((jnp.arange(k) > j)[:, None, None], net_worth, -jnp.inf)
        answering = jnp.broadcast_to(grid.quantile, asking.shape[1:])
        options = jnp.concatenate([answering[None], asking])
        if abstain_worth is not None:
            options = jnp.concatenate([options, jnp.broadcast_to(abstain_worth, answering.shape)[None]])
        upper, option, integrand = jax.vmap(partial(_intervals, grid), 1)(options)
        action = jnp.where(option == 0, j, jnp.where(option > k, ABSTAIN, option - 1))
        return integrands.at[j].set(integrand), (upper, action, integrand.sum(-1) - lam * tables.cost[j])

    zeros = jnp.zeros((k, *lam.shape, tables.grid.u.shape[-1]), lam.dtype)
    _, (upper, action, values) = lax.scan(ask_or_answer, zeros, (np.arange(k), number_pairs(k)), reverse=True)
    return IntervalPolicy(jnp.argmax(values, axis=0), jnp.moveaxis(upper, 0, 1), jnp.moveaxis(action, 0, 1))


def _intervals(grid: QuadratureGrid, options: jax.Array) -> tuple[jax.Array, ...]:
    """Return (upper ends (R,) in u, best options (R,), weighted value (G,)) of the intervals where an option is best.

    `options` (o, G) are the values of the options at the nodes.
    """
    nodes = grid.u.shape[0]
    action = jnp.argmax(options, axis=0)
    # A point mass without weight takes its neighbour's option.
    action = action.at[0].set(jnp.where(grid.weight[0] > 0, action[0], action[1]))
    action = action.at[-1].set(jnp.where(grid.weight[-1] > 0, action[-1], action[-2]))
    switches = jnp.concatenate([jnp.zeros(1, bool), action[1:] != action[:-1]])
    edges = jnp.nonzero(switches, size=MAX_INTERVALS - 1, fill_value=nodes)[0]

    def switch(edge: jax.Array) -> jax.Array:
        before, after = action[jnp.maximum(edge - 1, 0)], action[jnp.minimum(edge, nodes - 1)]
        return jnp.where(edge < nodes, find_crossing(grid, options[after] - options[before], edge), 1.0)

    upper = jnp.append(jax.vmap(switch)(edges), jnp.ones(1, grid.u.dtype))
    chosen = action[jnp.clip(jnp.concatenate([jnp.zeros(1, edges.dtype), edges]), 0, nodes - 1)]
    parts = interval_weights(grid, upper)
    return upper, chosen, (parts * options[chosen]).sum(0)


def interval_weights(grid: QuadratureGrid, upper: jax.Array) -> jax.Array:
    """Divide each node's weight among the intervals with upper ends (R,) in u: (R, G)."""
    below = jax.vmap(grid.weights_below)(upper)
    return jnp.diff(below, axis=0, prepend=jnp.zeros((1, below.shape[1]), below.dtype))


def evaluate_intervals(tables: QuadratureTables, policy: IntervalPolicy, abstaining: bool = False) -> LossTerms:
    """Compute the expected loss terms of a query under one adaptive policy, which may abstain if `abstaining`."""
    k, action = tables.cost.shape[0], policy.action
    weights = jax.vmap(interval_weights)(tables.grid, policy.upper)
    weight_with_action = jax.vmap(lambda action, weights, model: ((action == model)[:, None] * weights).sum(0))
    deferred = weight_with_action(action[tables.left], weights[tables.left], tables.right)
    density = arrival_densities(tables, policy.first, deferred)
    answered = weight_with_action(action, weights, np.arange(k))
    wrong, asked = (answered * (1 - tables.grid.quantile) * density).sum(), (tables.grid.weight * density).sum(-1)
    abstained = jnp.zeros_like(wrong)
    if abstaining:
        abstained = (weight_with_action(action, weights, np.full(k, ABSTAIN)) * density).sum()
    return LossTerms(wrong, tables.cost @ asked, abstained)


def drop_unreached(thresholds: Any, members: Any) -> Any:
    """Drop the members of cascades that follow a model that always answers; NumPy or JAX arrays (…, k).

    >>> drop_unreached(np.array([0.7, 0.0, 0.4]), np.array([True, True, True])).tolist()
    [True, True, False]
    """
    stops = members & (thresholds <= ALWAYS_ANSWER)
    return members & (stops @ np.tri(stops.shape[-1], k=-1).T == 0)


_THRESHOLD_STEPS = 5  # Newton steps on the exact gradient of the loss
_HELD_MARGIN = 64  # machine epsilons from a point mass within which a threshold is held


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """The best cascade for each λ, as JAX arrays; k models, in the order of `CascadeModel.models`.

    Leading axes are those of λ, and of models under `vmap`.
    """

    lam: jax.Array
    """(…) λ, in errors per unit of money."""
    thresholds: jax.Array
    """(…, k) calibrated confidence above which a model answers; 0 for the last model, 1 for models not asked."""
    members: jax.Array
    """(…, k) bool: the models of the cascade."""
    error: jax.Array
    """(…) probability of a wrong answer."""
    cost: jax.Array
    """(…) expected money per query."""
    status: jax.Array
    """(…) `PointStatus`: 0 converged, 1 at a bound, 2 not converged, 6 invalid λ."""
    loss: jax.Array
    """(…) minimum of error + λ·cost; its gradients compile fastest, by the envelope theorem."""


@takes(model=CascadeModel)
def solve(model: CascadeModel, lam: jax.Array | float | Sequence[float], cascades: CascadeSet = "all") -> Solution:
    """Minimise error + λ·cost under the model over cascades and thresholds, as a pure function.

    It works under `jit`, `vmap` (over λ, and over stacked models) and `grad`. Error, cost, loss and thresholds have
    first and second derivatives in λ and in every array of the model, in forward and reverse mode, except where the
    best cascade changes. `solve_frontier` adds a grid of λ, checks, names, and batches of λ that fit into memory.

    Args:
        model: fitted model of k models; under `vmap` with a leading axis.
        lam: (…) errors per unit of money, finite and at least 0. For invalid traced values `status` is 6 and all
            figures are NaN.
        cascades: "all", "full" or a list of cascades, as in `solve_frontier`; not "adaptive".

    Raises ValueError for unknown models, for adaptive policies, and for λ that are negative or not finite, unless
    traced.

    >>> import jax, rcjax
    >>> from rcjax.solving import solve
    >>> model = rcjax.demo_model()
    >>> def loss(cost):
    ...     return solve(dataclasses.replace(model, cost=cost), 300.0, "full").loss
    >>> slope = jax.jit(jax.grad(loss))(model.cost)  # λ times the share of queries that each model is asked
    >>> [round(float(share), 3) for share in slope / 300.0][0]
    1.0
    """
    with jax.ensure_compile_time_eval():  # a plan depends on names alone
        plan = plan_cascades(model.models, cascades)
    if plan is None:
        raise ValueError("cascades='adaptive' has intervals instead of thresholds: use solve_frontier")
    lam = jnp.asarray(lam, model.cost.dtype)
    if not is_traced([lam]) and not bool(((np.asarray(lam) >= 0) & np.isfinite(lam)).all()):
        raise ValueError("lam must be finite and at least 0: errors per unit of money")

    def solved(arrays: tuple[Any, ...], lam: jax.Array) -> Solution:
        flat = _solution_compiled(arrays, lam.reshape(-1), plan)
        return jax.tree.map(lambda leaf: leaf.reshape(*lam.shape, *leaf.shape[1:]), flat)

    return with_automatic_axes(solved, (model.marginals, model.copulas, model.cost), lam, like=lam)


class _CascadeLoss(NamedTuple):
    """The loss of one cascade at one λ, as a function of its thresholds (k,)."""

    tables: QuadratureTables
    lam: jax.Array  # ()
    links: jax.Array  # (P,)
    first: jax.Array  # ()
    defers: Array  # (k,) bool

    def expected(self, thresholds: jax.Array) -> LossTerms:
        """Compute the expected outcome of a query."""
        u, _, above = jax.vmap(Marginal.profile)(self.tables.marginals, thresholds)
        return outcome_of_cuts(self.tables, u, self.links, self.first, above=above).terms

    def slope(self, thresholds: jax.Array) -> jax.Array:
        """Compute the gradient of the loss in the thresholds: (k,)."""
        return jax.grad(lambda thresholds: self.expected(thresholds).loss(self.lam))(thresholds)

    def curvature(self, thresholds: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return (gradient of the loss (k,), which thresholds are free (k,), Hessian (k, k)).

        Held thresholds have gradient 0, and rows and columns of the identity in the Hessian.
        """
        curvature, slope = jax.jacfwd(lambda thresholds: (self.slope(thresholds),) * 2, has_aux=True)(thresholds)
        free = self.defers & ~_are_held(self.tables.marginals, thresholds) & (jnp.diagonal(curvature) > 0)
        within = jnp.where(free[:, None] & free, curvature, jnp.eye(len(free), dtype=curvature.dtype))
        return jnp.where(free, slope, 0.0), free, within


def _solution(arrays: tuple[Any, ...], lam: jax.Array, plan: CascadePlan) -> Solution:
    """Solve for λ (L,), given (marginals (k,), copulas of all pairs, cost (k,))."""
    (marginals, copulas, cost), requested = vary_over_same_devices((arrays, lam))
    is_valid = (requested >= 0) & jnp.isfinite(requested)
    lam = jnp.where(is_valid, requested, 1.0)  # invalid λ are solved as 1, and get their status
    tables = build_pair_tables(marginals, copulas, cost, plan.pairs)
    search = SearchTables(lax.stop_gradient(tables), plan)
    optima = optimise(search, lax.stop_gradient(lam))
    policies = points_at(search, optima).policies
    members = policies.members
    defers = members & (jnp.cumsum(members, axis=-1) < members.sum(-1, keepdims=True))
    start = jnp.where(defers, policies.thresholds, jnp.where(members, ALWAYS_ANSWER, NEVER_ANSWER))
    cascade = _CascadeLoss(tables, lam, plan.links[optima.cascade], plan.first[optima.cascade], defers)
    axes: Any = _CascadeLoss(None, 0, 0, 0, 0)  # type: ignore[arg-type]
    thresholds = jax.vmap(_stationary, (axes, 0))(cascade, lax.stop_gradient(start)).thresholds
    expected = jax.vmap(_CascadeLoss.expected, (axes, 0))(cascade, thresholds)
    loss = jax.vmap(_known_loss, (axes, 0, 0))(cascade, thresholds, expected.loss(lam))
    thresholds, error, cost, loss = jax.tree.map(
        lambda leaf: jnp.where(is_valid.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, jnp.nan),
        (thresholds, expected.wrong, expected.cost, loss),
    )
    status = jnp.where(is_valid, optima.status, PointStatus.INVALID_LAMBDA)
    return Solution(requested, thresholds, members & is_valid[:, None], error, cost, status, loss)


#: `compiled` leaves traced calls uncompiled; the `jit` inside compiles under other transformations too.
_solution_compiled = compiled(jax.jit(_solution))


class _Stationary(NamedTuple):
    """The stationary point of a cascade's loss."""

    thresholds: jax.Array  # (k,)
    free: jax.Array  # (k,) 1, or 0 for held thresholds; `shard_map` takes no tangent of a bool
    hessian: jax.Array  # (k, k) of the loss, as `_CascadeLoss.curvature` returns it


@jax.custom_jvp
def _stationary(cascade: _CascadeLoss, start: jax.Array) -> _Stationary:
    """Refine the optimum `start` by Newton's method, and keep the iterate with the smallest gradient."""

    def step(thresholds: jax.Array, _: None) -> tuple[jax.Array, tuple[jax.Array, _Stationary]]:
        slope, free, hessian = cascade.curvature(thresholds)
        moved = thresholds - jnp.linalg.solve(hessian, slope)
        inside = (moved > cascade.tables.marginals.lowest) & (moved < cascade.tables.marginals.highest)
        remaining = jnp.nan_to_num(jnp.abs(slope).max(), nan=jnp.inf)
        visited = _Stationary(thresholds, free.astype(slope.dtype), hessian)
        return jnp.where(free & inside, moved, thresholds), (remaining, visited)

    _, (remaining, visited) = lax.scan(step, lax.stop_gradient(start), length=_THRESHOLD_STEPS)
    return take_entries(visited, jnp.argmin(remaining))


@_stationary.defjvp
def _stationary_jvp(primals: tuple[_CascadeLoss, jax.Array], tangents: tuple[_CascadeLoss, Any]) -> tuple[Any, Any]:
    """Differentiate by the implicit function theorem; held thresholds have derivative 0."""
    cascade, _ = primals
    point = _stationary(*primals)
    _, moved = jax.jvp(lambda cascade: cascade.slope(point.thresholds), (cascade,), (tangents[0],))
    hessian = _known_hessian(cascade, point.thresholds, point.hessian)
    slope = -jnp.linalg.solve(hessian, jnp.where(point.free > 0, moved, 0.0))
    return point, _Stationary(slope, jnp.zeros_like(point.free), jnp.zeros_like(point.hessian))


@jax.custom_jvp
def _known_hessian(cascade: _CascadeLoss, thresholds: jax.Array, known: jax.Array) -> jax.Array:
    """Return the known Hessian (k, k) at these thresholds; only its derivative is computed."""
    return known


@_known_hessian.defjvp
def _known_hessian_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    _, slope = jax.jvp(lambda cascade, thresholds: cascade.curvature(thresholds)[2], primals[:2], tangents[:2])
    return _known_hessian(*primals), slope


@jax.custom_jvp
def _known_loss(cascade: _CascadeLoss, thresholds: jax.Array, known: jax.Array) -> jax.Array:
    """Return the known loss () at stationary thresholds (k,); only its derivative is computed."""
    return known


@_known_loss.defjvp
def _known_loss_jvp(
    primals: tuple[_CascadeLoss, jax.Array, jax.Array], tangents: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    """Differentiate by the envelope theorem, without the first derivatives of the thresholds."""
    cascade, thresholds, _ = primals
    _, slope = jax.jvp(lambda cascade: cascade.expected(thresholds).loss(cascade.lam), (cascade,), (tangents[0],))
    return _known_loss(*primals), slope


def _are_held(marginals: Marginal, thresholds: jax.Array) -> jax.Array:
    """Return whether each threshold is beside a point mass or outside the range of confidences: (k,)."""
    margin = _HELD_MARGIN * jnp.finfo(thresholds.dtype).eps
    is_held = (thresholds <= marginals.lowest + margin) | (thresholds >= marginals.highest - margin)
    if marginals.atoms is not None:
        beside = jnp.abs(thresholds[:, None] - marginals.atoms.value) <= margin
        is_held |= (beside & (marginals.atoms.mass > 0)).any(-1)
    return is_held
