"""Cascades at given λ as pure functions of arrays: the program's cuts, and what they mean in calibrated confidence.

To be jitted by those who call them, and vmapped over fitted models: bootstrap replicates, folds, posterior draws.
A cut in u-space becomes the best threshold near it.
"""

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.batching import part
from rcjax._core.numerics import divide
from rcjax.copulas import Copula
from rcjax.frontier.points import Points, PointStatus
from rcjax.frontier.policies import ALWAYS_ANSWER, NEVER_ANSWER, NEVER_REFUSE, Chain, Policies, asked_at_all
from rcjax.model.marginals import Marginal
from rcjax.solving.adaptive import adaptive_policies, evaluate_intervals
from rcjax.solving.bellman import Cut, best_cascades, gain_tolerance
from rcjax.solving.objective import Tables, build_tables, evaluate
from rcjax.solving.paper import best_cascades_paper
from rcjax.solving.paths import CascadePlan
from rcjax.solving.quadrature import Grid

if TYPE_CHECKING:
    from rcjax.frontier.points import Outcomes


_ULPS, _SETTLING_STEPS = 16, 5


def settle_threshold(
    marginal: Marginal, grid: Grid, u: jax.Array, worth: jax.Array, slope: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The best threshold φ near a cut, and what it really does: (φ, F(φ), E[Φ; Φ > φ]), each scalar.

    Deferring is worth `worth` + `slope`·(F(φ) − u) to a query of confidence φ, so the loss is stationary where that
    equals φ: Newton's method on the exact gradient, between the nodes around u. φ is 0 or 1 where u cuts a point mass,
    since a threshold passes all of it or none. A threshold beside a mass keeps a few units in the last place away from
    it, so that the rounding of a calibrated confidence, here or in a service, does not move a whole mass across.

    Args:
        marginal: of the model.
        grid: its quadrature nodes.
        u: () the cut, on the scale of ranks.
        worth: () of deferring at the cut, in right answers; where it is NaN, φ solves F(φ) = u instead.
        slope: () of that worth, per unit of rank.
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
    """(cut, lowest, highest threshold) of a cut that passes all of every point mass or none of it.

    A cut within an atom goes to its nearer end. Where nothing smooth lies between two masses, the threshold is midway.

    Args:
        marginal: of the model; with atoms.
        u: () the cut.
        around: thresholds between which it lies.
        margin: how far from a mass a threshold stays.
    """
    atoms = marginal.atoms
    assert atoms is not None
    bottom, top = jnp.asarray(marginal.mass_lowest)[None], 1 - jnp.asarray(marginal.mass_highest)[None]
    start, end = (
        jnp.concatenate([first, middle, last])
        for first, middle, last in zip((0 * bottom, bottom), marginal.atom_ranks(), (top, 1 + 0 * top), strict=True)
    )
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
    marginals: Marginal, copulas: Copula, cost: jax.Array, chosen: tuple[Any, Any, Any], panels: int | None = None
) -> Tables:
    """The tables of a fitted model for some of its pairs of models.

    Args:
        marginals: (k,) of the models.
        copulas: of all pairs.
        cost: (k,) money per answer.
        chosen: (left, right, indices), each (P,): the models of each pair, and its index among all pairs.
        panels: of quadrature; by default as `quadrature` has them.
    """
    left, right, indices = chosen
    return build_tables(marginals, part(copulas, indices), cost, left, right, panels)


class Optima(NamedTuple):
    """The best cascade for each of L λ, as cuts in u-space."""

    lam: Any  # (L,)
    path: Any  # (L,) its number in the plan
    cut: Cut  # (L, k)
    status: Any  # (L,) a `Status`


class Settled(NamedTuple):
    """L cascades with their thresholds, and where these lie on the u-scale."""

    policies: Policies
    ranks: jax.Array  # (L, k) F(φ) of the thresholds
    above: jax.Array  # (L, k) E[Φ; Φ > φ] above the thresholds


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Solutions(Points):
    """Points as a solver finds them."""

    ranks: Any  # (L, …) of the thresholds on the u-scale: how far neighbours are apart
    path: Any = None  # (L,) number of the cascade in the plan; None for adaptive policies


def optimise(
    tables: Tables, lam: jax.Array, plan: CascadePlan, chain: Chain, refusal: jax.Array | None = None
) -> Optima:
    """The best path for each λ, and its cuts.

    Args:
        tables: the quadrature of the model.
        lam: (L,) in errors per unit of money.
        plan: the paths to search.
        chain: "exact", or "paper" for the paper's factorisation.
        refusal: () what one is worth, in right answers; None: nobody refuses.
    """
    if chain == "exact":
        path, cut, gain = best_cascades(tables, lam, plan, refusal)
    else:
        path, cut, gain = best_cascades_paper(tables, lam, plan)
    low, high = tables.grid.smooth
    at_bound = (plan.defers[path] & ((cut.u <= low) | (cut.u >= high))).any(-1)
    unfinished = gain > gain_tolerance(lam.dtype)
    settled = jnp.where(at_bound, PointStatus.AT_BOUND, PointStatus.CONVERGED)
    status = jnp.where(unfinished, PointStatus.NOT_CONVERGED, settled)
    # As an array's, not as a Python number's type: points between the optima, on the host, share their program.
    return Optima(lam, path, cut, status.astype(int))


def thresholds_at(
    marginals: Marginal, tables: Tables, path: jax.Array, cut: Cut, plan: CascadePlan, refusing: bool = False
) -> Settled:
    """Cascades with thresholds at given cuts.

    Args:
        marginals: (k,) of the models.
        tables: their quadrature.
        path: (L,) the numbers of the paths.
        cut: (L, k) where their models stop deferring, the last one of each refusing.
        plan: which paths there are.
        refusing: whether the last model may refuse.
    """
    members = plan.members[path]
    # The last model of a path answers everything that it does not refuse, and a model that is not on it nothing.
    cutting = members if refusing else plan.defers[path]
    u = jnp.where(cutting, cut.u, jnp.where(members, 0.0, 1.0))
    thresholds, ranks, above = settle(marginals, tables.grid, dataclasses.replace(cut, u=u))
    refusals = jnp.where(plan.stops[path], thresholds, NEVER_REFUSE) if refusing else None
    # Nobody asks the models after one that always answers: the cascade ends there, where it may.
    members = jnp.where(plan.prefixes, asked_at_all(thresholds, members), members)
    thresholds = jnp.where(members, thresholds, NEVER_ANSWER)
    return Settled(Policies.of_cascades(thresholds, members, refusals, jnp), ranks, above)


def points_at(
    marginals: Marginal, tables: Tables, optima: Optima, plan: CascadePlan, chain: Chain, refusing: bool = False
) -> Solutions:
    """The optima with their thresholds, and what is exactly to be expected of them.

    Args:
        marginals: (k,) of the models.
        tables: their quadrature.
        optima: L of them, of `optimise`.
        plan: which paths there are.
        chain: "exact", or "paper" for the paper's factorisation.
        refusing: whether the last model of a cascade may refuse.
    """
    lam, path, cut, status = optima
    settled = thresholds_at(marginals, tables, path, cut, plan, refusing)

    def single(u: jax.Array, above: jax.Array, path: jax.Array) -> "Outcomes":
        refused = jnp.where(plan.stops[path], u, 0.0) if refusing else None
        return evaluate(tables, u, plan.links[path], plan.first[path], chain=chain, above=above, refused=refused)

    expected = jax.vmap(single)(settled.ranks, settled.above, path)
    return Solutions(lam, status, expected, settled.policies, settled.ranks, path)


def settle(marginals: Marginal, grid: Grid, cut: Cut) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`settle_threshold` for cuts (L, k, …)."""
    settle_all = jax.vmap(jnp.vectorize(settle_threshold, excluded=(0, 1)), (0, 0, 1, 1, 1), 1)
    return settle_all(marginals, grid, cut.u, cut.worth, cut.slope)


def adaptive_points(marginals: Marginal, tables: Tables, lam: jax.Array, refusal: jax.Array | None = None) -> Solutions:
    """The best adaptive policies for all λ, and what is exactly to be expected of them.

    Args:
        marginals: (k,) of the models.
        tables: their quadrature.
        lam: (L,) in errors per unit of money.
        refusal: () what one is worth, in right answers; None: nobody refuses.
    """
    k = tables.cost.shape[0]
    first, upper, action = adaptive_policies(tables, lam, refusal)
    evaluated = partial(evaluate_intervals, tables, refusing=refusal is not None)
    expected = jax.vmap(evaluated)(first, upper, action)
    bounds, *_ = settle(marginals, tables.grid, Cut.at(upper))
    bounds = jnp.where(upper >= 1, 1.0, bounds).at[..., -1].set(1.0)
    used = jnp.diff(upper, axis=-1, prepend=jnp.zeros_like(upper[..., :1])) > 0

    def ask(asked: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        i, j = pair
        return asked.at[:, j].max(asked[:, i] & (used[:, i] & (action[:, i] == j)).any(-1)), None

    asked, _ = lax.scan(ask, first[:, None] == np.arange(k), (tables.left, tables.right))
    policies = Policies(first, bounds, action, asked)
    return Solutions(lam, jnp.zeros_like(first), expected, policies, upper.reshape(*lam.shape, -1))
