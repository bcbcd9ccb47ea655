"""Cascades at given λ as pure functions of arrays: the programme's cuts, and what they mean in calibrated confidence.

To be jitted by those who call them, and vmapped over fitted models: bootstrap replicates, folds, posterior draws.
"""

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.batching import part
from rcjax.copulas import Copula
from rcjax.frontier.points import Points, PointStatus
from rcjax.frontier.policies import NEVER_ANSWER, NEVER_REFUSE, Policies, asked_at_all
from rcjax.frontier.searches import Chain
from rcjax.model.marginals import Marginal
from rcjax.solving.adaptive import adaptive_policies, evaluate_intervals
from rcjax.solving.bellman import Cut, best_cascades, gain_tolerance
from rcjax.solving.objective import Tables, build_tables, evaluate
from rcjax.solving.paper import best_cascades_paper
from rcjax.solving.paths import CascadePlan
from rcjax.solving.quadrature import Grid
from rcjax.solving.thresholds import settle_threshold

if TYPE_CHECKING:
    from rcjax.frontier.outcomes import Outcomes


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
    # As an array's, not as a Python number's type: points between the optima, on the host, share their programme.
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
