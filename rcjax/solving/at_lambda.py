"""The best cascades and adaptive policies at given λ, as pure functions of a model's arrays.

Callers jit them, and vmap them over fitted models: bootstrap replicates, folds, posterior draws. A cut in u-space is
turned into the best threshold near it. An adaptive policy is the optimum over all policies: after each answer it keeps
the answer or asks any later model, depending on the confidence. Bellman's equation is then

    V_j(u) = max{ Q_j(u), max over l > j of −λ·cost_l + E[V_l(Φ_l) | Φ_j = u] }

If models may refuse to answer, the value of a refusal is one more term of the maximum.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.batching import part
from rcjax._core.numerics import divide
from rcjax.copulas import Copula
from rcjax.model.marginals import Marginal
from rcjax.solving.bellman import Cut, best_cascades, crossing, gain_tolerance
from rcjax.solving.frontier.points import Outcomes, Points, PointStatus
from rcjax.solving.frontier.policies import ABSTAIN, ALWAYS_ANSWER, NEVER_ANSWER, NEVER_REFUSE, Policies
from rcjax.solving.objective import Tables, arrivals, build_tables, evaluate
from rcjax.solving.paths import CascadePlan
from rcjax.solving.quadrature import Grid

_ULPS, _SETTLING_STEPS = 16, 5


def settle_threshold(
    marginal: Marginal, grid: Grid, u: jax.Array, worth: jax.Array, slope: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Find the best threshold φ near a cut; (φ, F(φ), E[Φ; Φ > φ]), each scalar.

    The value of deferring a query of confidence φ is `worth` + `slope`·(F(φ) − u), and the loss is stationary where it
    equals φ. Newton's method solves this between the nodes around u. φ is 0 or 1 if u cuts a point mass, since a
    threshold passes all of a mass or none. A threshold beside a mass keeps a few rounding errors away from it. A
    rounded confidence, here or in a service, then moves no mass across.

    Args:
        marginal: marginal of the model.
        grid: quadrature nodes of the model.
        u: () cut, on the scale of ranks.
        worth: () value of deferring at the cut, in right answers; NaN: φ solves F(φ) = u.
        slope: () derivative of the value, per unit of rank.
    """
    eps = jnp.finfo(grid.u.dtype).eps
    bottom, top = grid.edges[1], grid.edges[-2]
    always, never = (u < bottom - 4 * eps) | (u <= 0), (u > top + 4 * eps) | (u >= 1)
    nodes = jnp.concatenate([bottom[None], grid.u[1:-1], top[None]])
    last = nodes.shape[0] - 1
    right = jnp.clip(jnp.searchsorted(nodes, u, method="compare_all"), 1, last)
    beside, around = jnp.stack([nodes, grid.quantile])[:, jnp.clip(right + np.arange(-2, 2), 0, last)]
    margin = jnp.minimum(_ULPS * eps, (marginal.highest - marginal.lowest) / 4)
    low, high = jnp.clip(around[np.array([0, 3])], marginal.lowest + margin, marginal.highest - margin)
    if marginal.atoms is not None:
        u, low, high = _between_atoms(marginal, u, (low, high), margin)
    low, high = (jnp.where(always, ALWAYS_ANSWER, jnp.where(never, NEVER_ANSWER, end)) for end in (low, high))
    worth = jnp.where((u > bottom + 4 * eps) & (u < top - 4 * eps), worth, jnp.nan)

    def newton(_, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        threshold = state[0]
        cdf, density, above = marginal.profile(threshold)
        to_optimum = divide(worth + slope * (cdf - u) - threshold, 1 - jnp.minimum(slope * density, 0.9))
        step = jnp.where(jnp.isnan(worth), divide(u - cdf, density), to_optimum)
        return jnp.clip(threshold + jnp.nan_to_num(step), low, high), threshold, cdf, above

    share = divide(u - beside[1], beside[2] - beside[1], 0.5)
    guess = jnp.clip(around[1] + share * (around[2] - around[1]), low, high)
    return lax.fori_loop(0, _SETTLING_STEPS, newton, (guess, guess, guess, guess))[1:]


def _between_atoms(
    marginal: Marginal, u: jax.Array, around: tuple[jax.Array, jax.Array], margin: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Move a cut off the atoms, and return (cut, lowest threshold, highest threshold).

    A cut within an atom goes to its nearer end. If nothing smooth lies between two masses, the threshold is midway.

    Args:
        marginal: marginal of the model, with atoms.
        u: () cut, on the scale of ranks.
        around: thresholds between which the cut lies.
        margin: least distance of a threshold from a mass, in confidence.
    """
    atoms = marginal.atoms
    assert atoms is not None
    start, end = marginal.mass_ranks()
    value = jnp.concatenate([marginal.lowest[None], atoms.value, marginal.highest[None]])
    there = end > start
    inside = there & (u > start) & (u < end) & (value > marginal.lowest) & (value < marginal.highest)
    nearer = jnp.where(u - start < end - u, start, end)
    u = jnp.where(inside.any(), (inside * nearer).sum(), u)
    rounding = 8 * jnp.finfo(u.dtype).eps
    passed, ahead = there & (end <= u + rounding), there & (start >= u - rounding) & ~(there & (end <= u + rounding))
    below = jnp.where(passed, value, marginal.lowest).max()
    above = jnp.where(ahead, value, marginal.highest).min()
    reached, next_start = jnp.where(passed, end, 0.0).max(), jnp.where(ahead, start, 1.0).min()
    empty = next_start - reached <= rounding * value.shape[0]
    margin = jnp.minimum(margin, (above - below) / 4)
    low, high = jnp.clip(jnp.stack(around), below + margin, above - margin)
    middle = (below + above) / 2
    return u, jnp.where(empty, middle, low), jnp.where(empty, middle, high)


def lay_out(
    marginals: Marginal,
    copulas: Copula,
    cost: jax.Array,
    indices: Any = None,
    panels: int | None = None,
) -> Tables:
    """Build the tables of a fitted model for some of its pairs of models.

    Args:
        marginals: (k,) marginals of the models.
        copulas: copulas of all pairs.
        cost: (k,) money per answer.
        indices: (P,) numbers of the pairs to lay out; None: all.
        panels: panels of the quadrature; None: the default of `quadrature`.
    """
    left, right = map(jnp.asarray, np.triu_indices(cost.shape[0], 1))
    indices = np.arange(len(left)) if indices is None else indices
    left, right = left[indices], right[indices]
    return build_tables(marginals, part(copulas, indices), cost, left, right, panels)


class Optima(NamedTuple):
    """The best cascade for each of L λ, as cuts in u-space."""

    lam: Any  # (L,) errors per unit of money
    path: Any  # (L,) number of the cascade in the plan
    cut: Cut  # (L, k)
    status: Any  # (L,) a `Status`


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Solutions(Points):
    """Points found by a solver, with the ranks of their thresholds."""

    ranks: Any  # (L, …) thresholds on the scale of ranks, for distances between neighbours
    path: Any = None  # (L,) number of the cascade in the plan; None for adaptive policies


def optimise(tables: Tables, lam: jax.Array, plan: CascadePlan, refusal: jax.Array | None = None) -> Optima:
    """Find the best path and its cuts for each λ.

    Args:
        tables: quadrature of the model.
        lam: (L,) errors per unit of money.
        plan: candidate paths.
        refusal: () value of a refusal, in right answers; None: no refusals.
    """
    path, cut, gain = best_cascades(tables, lam, plan, refusal)
    low, high = tables.grid.smooth
    at_bound = (plan.defers[path] & ((cut.u <= low) | (cut.u >= high))).any(-1)
    unfinished = gain > gain_tolerance(lam.dtype)
    settled = jnp.where(at_bound, PointStatus.AT_BOUND, PointStatus.CONVERGED)
    status = jnp.where(unfinished, PointStatus.NOT_CONVERGED, settled)
    # A strong integer type, so that points interpolated on the host share the program.
    return Optima(lam, path, cut, status.astype(int))


def points_at(tables: Tables, optima: Optima, plan: CascadePlan, refusing: bool = False) -> Solutions:
    """Turn optima into thresholds, and evaluate their outcomes exactly.

    Args:
        tables: quadrature of the model.
        optima: L optima (`optimise`).
        plan: candidate paths.
        refusing: whether the last model of a cascade may refuse.
    """
    lam, path, cut, status = optima
    members, stops = plan.members[path], plan.stops[path]
    # The last model of a path answers whatever it does not refuse; models off the path answer nothing.
    cutting = members if refusing else plan.defers[path]
    u = jnp.where(cutting, cut.u, jnp.where(members, 0.0, 1.0))
    thresholds, ranks, above = settle(tables, dataclasses.replace(cut, u=u))

    def single(u: jax.Array, above: jax.Array, path: jax.Array) -> Outcomes:
        refused = jnp.where(plan.stops[path], u, 0.0) if refusing else None
        return evaluate(tables, u, plan.links[path], plan.first[path], above=above, refused=refused)

    expected = jax.vmap(single)(ranks, above, path)
    refusals = jnp.where(stops, thresholds, NEVER_REFUSE) if refusing else None
    # Models after one that always answers are never asked: the cascade ends there if the plan has that cascade.
    members = jnp.where(plan.prefixes, asked_at_all(thresholds, members), members)
    thresholds = jnp.where(members, thresholds, NEVER_ANSWER)
    return Solutions(lam, status, expected, Policies.of_cascades(thresholds, members, refusals, jnp), ranks, path)


def settle(tables: Tables, cut: Cut) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`settle_threshold` for cuts (L, k, …)."""
    settle_all = jax.vmap(jnp.vectorize(settle_threshold, excluded=(0, 1)), (0, 0, 1, 1, 1), 1)
    return settle_all(tables.marginals, tables.grid, cut.u, cut.worth, cut.slope)


def adaptive_points(tables: Tables, lam: jax.Array, refusal: jax.Array | None = None) -> Solutions:
    """Find the best adaptive policies for all λ, and evaluate their outcomes exactly.

    Args:
        tables: quadrature of the model.
        lam: (L,) errors per unit of money.
        refusal: () value of a refusal, in right answers; None: no refusals.
    """
    k = tables.cost.shape[0]
    first, upper, action = adaptive_policies(tables, lam, refusal)
    evaluated = partial(evaluate_intervals, tables, refusing=refusal is not None)
    expected = jax.vmap(evaluated)(first, upper, action)
    bounds, *_ = settle(tables, Cut.at(upper))
    bounds = jnp.where(upper >= 1, 1.0, bounds).at[..., -1].set(1.0)
    used = jnp.diff(upper, axis=-1, prepend=jnp.zeros_like(upper[..., :1])) > 0

    def ask(asked: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        i, j = pair
        return asked.at[:, j].max(asked[:, i] & (used[:, i] & (action[:, i] == j)).any(-1)), None

    asked, _ = lax.scan(ask, first[:, None] == np.arange(k), (tables.left, tables.right))
    policies = Policies(first, bounds, action, asked)
    return Solutions(lam, jnp.zeros_like(first), expected, policies, upper.reshape(*lam.shape, -1))


#: Greatest number of intervals of confidence per model in an adaptive policy.
MAX_INTERVALS = 8


def adaptive_policies(
    tables: Tables, lam: jax.Array, refusal: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Solve for the optimum over all policies; (first model (L,), upper ends in u (L, k, R), actions (L, k, R)).

    Action l > j of model j asks model l, action j answers, ABSTAIN refuses. The tables must hold all pairs of models.
    """
    k = tables.cost.shape[0]
    link_index = np.zeros((k, k), int)
    link_index[np.triu_indices(k, 1)] = np.arange(k * (k - 1) // 2)

    def ask_or_answer(integrands: jax.Array, model: tuple[Any, Any]) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        j, links = model
        grid = part(tables.grid, j)
        worth = jnp.zeros_like(integrands)
        if tables.left.size:  # a single model has no pairs
            worth = jax.vmap(lambda values, link: values @ tables.kernel[link].T)(integrands, links)
        asking = jnp.where(
            (jnp.arange(k) > j)[:, None, None], worth - (tables.cost[:, None] * lam)[..., None], -jnp.inf
        )
        answering = jnp.broadcast_to(grid.quantile, asking.shape[1:])
        options = jnp.concatenate([answering[None], asking])
        if refusal is not None:
            options = jnp.concatenate([options, jnp.broadcast_to(refusal, answering.shape)[None]])
        upper, option, integrand = jax.vmap(partial(_intervals, grid), 1)(options)
        action = jnp.where(option == 0, j, jnp.where(option > k, ABSTAIN, option - 1))
        return integrands.at[j].set(integrand), (upper, action, integrand.sum(-1) - lam * tables.cost[j])

    nothing = jnp.zeros((k, *lam.shape, tables.grid.u.shape[-1]), lam.dtype)
    _, policy = lax.scan(ask_or_answer, nothing, (np.arange(k), link_index), reverse=True)
    upper, action, values = policy
    return jnp.argmax(values, axis=0), jnp.moveaxis(upper, 0, 1), jnp.moveaxis(action, 0, 1)


def _intervals(grid: Grid, options: jax.Array) -> tuple[jax.Array, ...]:
    """Intervals in which each option (o, G) is best: (upper ends (R,) in u, options (R,), weighted value (G,))."""
    nodes = grid.u.shape[0]
    action = jnp.argmax(options, axis=0)
    # A point mass without weight takes its neighbour's option.
    action = action.at[0].set(jnp.where(grid.weight[0] > 0, action[0], action[1]))
    action = action.at[-1].set(jnp.where(grid.weight[-1] > 0, action[-1], action[-2]))
    switches = jnp.concatenate([jnp.zeros(1, bool), action[1:] != action[:-1]])
    edges = jnp.nonzero(switches, size=MAX_INTERVALS - 1, fill_value=nodes)[0]

    def switch(edge: jax.Array) -> jax.Array:
        before, after = action[jnp.maximum(edge - 1, 0)], action[jnp.minimum(edge, nodes - 1)]
        return jnp.where(edge < nodes, crossing(grid, options[after] - options[before], edge), 1.0)

    upper = jnp.append(jax.vmap(switch)(edges), jnp.ones(1, grid.u.dtype))
    chosen = action[jnp.clip(jnp.concatenate([jnp.zeros(1, edges.dtype), edges]), 0, nodes - 1)]
    parts = interval_weights(grid, upper)
    return upper, chosen, (parts * options[chosen]).sum(0)


def interval_weights(grid: Grid, upper: jax.Array) -> jax.Array:
    """Share of each node's weight in each interval, from the upper ends (R,) in u; (R, G)."""
    below = jax.vmap(grid.below)(upper)
    return jnp.diff(below, axis=0, prepend=jnp.zeros((1, below.shape[1]), below.dtype))


def evaluate_intervals(
    tables: Tables, first: jax.Array, upper: jax.Array, action: jax.Array, refusing: bool = False
) -> Outcomes:
    """Expected outcome of a query under one adaptive policy.

    Args:
        tables: quadrature of the model.
        first: () model asked first.
        upper: (k, R) upper ends of each model's intervals, on the scale of ranks.
        action: (k, R) model to ask next; the model's own number: answer.
        refusing: whether actions may be refusals.
    """
    k = tables.cost.shape[0]
    weights = jax.vmap(interval_weights)(tables.grid, upper)
    to = jax.vmap(lambda action, weights, model: ((action == model)[:, None] * weights).sum(0))
    deferred = to(action[tables.left], weights[tables.left], tables.right)
    density = arrivals(tables, first, deferred)
    answered = to(action, weights, np.arange(k))
    wrong, cost = (answered * (1 - tables.grid.quantile) * density).sum(), (tables.grid.weight * density).sum(-1)
    refused = (to(action, weights, np.full(k, ABSTAIN)) * density).sum() if refusing else jnp.zeros_like(wrong)
    return Outcomes(wrong, tables.cost @ cost, refused)


def asked_at_all(thresholds: Any, members: Any) -> Any:
    """Drop the members of cascades that come after one that always answers; NumPy or JAX arrays (…, k).

    >>> asked_at_all(np.array([0.7, 0.0, 0.4]), np.array([True, True, True])).tolist()
    [True, True, False]
    """
    stops = members & (thresholds <= ALWAYS_ANSWER)
    return members & (stops @ np.tri(stops.shape[-1], k=-1).T == 0)
