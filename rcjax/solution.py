"""Cascades at given λ as pure functions of arrays: the programme's cuts, and what they mean in calibrated confidence.

To be jitted by those who call them, and vmapped over fitted models: bootstrap replicates, folds, posterior draws.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._points import asked_at_all
from rcjax._trees import part
from rcjax.adaptive import adaptive_policies, evaluate_intervals
from rcjax.cascade import (
    NEVER_ANSWER,
    Chain,
    Tables,
    build_tables,
    evaluate,
    settle_threshold,
)
from rcjax.copulas import Copula
from rcjax.marginals import Marginal
from rcjax.paper import best_cascades_paper
from rcjax.plan import Plan
from rcjax.programme import AT_BOUND, CONVERGED, NOT_CONVERGED, Cut, Refusal, best_cascades, gain_tolerance
from rcjax.quadrature import Grid

#: What is evaluated of a policy, in this order; the last where models may refuse to answer.
FIGURES = ("error", "cost", "abstention")


def check_abstain_price(price: Any) -> float | None:
    """The price as a number of errors, None where it is infinite; ValueError for one below 0."""
    if price is None:
        return None
    if not price >= 0:  # so written, NaN is refused too
        raise ValueError(f"abstain_price is {price}; it is what a refusal costs in errors, such as 0.3, at least 0")
    return float(price) if price < np.inf else None


def refusal_at(price: float | None, early: bool, dtype: Any) -> Refusal | None:
    """A price in errors as the solvers have it; None where nobody refuses, because a wrong answer is no dearer."""
    return None if price is None or price >= 1 else Refusal(jnp.asarray(1 - price, dtype), jnp.asarray(early))


def lay_out(marginals: Marginal, copulas: Copula, cost: jax.Array, left: Any, right: Any, places: Any) -> Tables:
    """The tables of a fitted model for P pairs (left, right), which are at these `places` among all its copulas."""
    return build_tables(marginals, part(copulas, places), cost, left, right)


def optimise(
    tables: Tables, lam: jax.Array, plan: Plan, chain: Chain, refusal: Refusal | None = None
) -> tuple[jax.Array, Cut, jax.Array]:
    """The number of the best path (L,), its cuts (L, k) and the status (L,) for all λ (L,)."""
    if chain == "exact":
        path, cut, gain = best_cascades(tables, lam, plan, refusal)
    else:
        path, cut, gain = best_cascades_paper(tables, lam, plan)
    low, high = tables.grid.panels[:, 0], tables.grid.panels[:, -1]
    at_bound = (plan.defers[path] & ((cut.u <= low) | (cut.u >= high))).any(-1)
    unfinished = gain > gain_tolerance(lam.dtype)
    return path, cut, jnp.where(unfinished, NOT_CONVERGED, jnp.where(at_bound, AT_BOUND, CONVERGED))


def thresholds_at(
    marginals: Marginal, tables: Tables, path: jax.Array, cut: Cut, plan: Plan
) -> tuple[dict[str, jax.Array], jax.Array]:
    """Thresholds (L, k) at the cuts (L, k) of the given paths (L,), and E[Φ; Φ > φ] (L, k) above them.

    Where models may refuse, `refusals` (L, k) too: the confidence up to which each does, and with `refused` its rank.
    """
    members = plan.members[path]
    # The last model of a path answers everything that it does not refuse, and a model that is not on it nothing.
    cutting = plan.defers[path] if cut.refused is None else members
    u = jnp.where(cutting, cut.u, jnp.where(members, 0.0, 1.0))
    thresholds, ranks, above = settle(marginals, tables.grid, dataclasses.replace(cut, u=u))
    found, refusals = {"u": ranks, "first": plan.first[path]}, None
    if cut.refused is not None:
        # A model that is not on the path refuses nothing.
        refused = jnp.where(members, cut.refused, 0.0)
        refusals, refused = _settle_refusals(marginals, tables.grid, u, refused, thresholds, ranks)
        found |= {"refusals": refusals, "refused": refused}
    # Nobody asks the models after one that never defers: the cascade ends there, where it may.
    members = jnp.where(plan.prefixes, asked_at_all(thresholds, members, refusals), members)
    thresholds = jnp.where(members, thresholds, NEVER_ANSWER)
    return {**found, "thresholds": thresholds, "members": members}, above


def _settle_refusals(marginals, grid, u, refused, thresholds, ranks):
    """(refusals, their ranks), each (L, k), of the cuts; where a model defers nothing, they are its threshold's."""
    settled, rank, _ = settle(marginals, grid, Cut.at(jnp.minimum(refused, u)))
    together, ends = refused >= u, ((settled, thresholds), (rank, ranks))
    return tuple(jnp.where(together, most, jnp.minimum(own, most)) for own, most in ends)


def points_at(
    marginals: Marginal, tables: Tables, path: jax.Array, cut: Cut, plan: Plan, chain: Chain
) -> dict[str, jax.Array]:
    """`thresholds_at`, with their exact error and cost (L,), and `abstention` (L,) where models may refuse."""
    points, above = thresholds_at(marginals, tables, path, cut, plan)

    def single(u, above, links, first, refused):
        return evaluate(tables, u, links, first, chain=chain, above=above, refused=refused)

    figures = jax.vmap(single)(points["u"], above, plan.links[path], points["first"], points.get("refused"))
    return points | dict(zip(FIGURES, figures, strict=False))


def settle(marginals: Marginal, grid: Grid, cut: Cut) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`settle_threshold` for cuts (L, k, …)."""
    each = jax.vmap(jnp.vectorize(settle_threshold, excluded=(0, 1)), (0, 0, 1, 1, 1), 1)
    return each(marginals, grid, cut.u, cut.worth, cut.slope)


def adaptive_points(
    marginals: Marginal, tables: Tables, lam: jax.Array, refusal: Refusal | None = None
) -> dict[str, jax.Array]:
    """The best adaptive policies for all λ (L,), with their exact error and cost (L,), and abstention (L,)."""
    k = tables.cost.shape[0]
    first, upper, action = adaptive_policies(tables, lam, refusal)
    evaluated = partial(evaluate_intervals, tables, refusing=refusal is not None)
    figures = dict(zip(FIGURES, jax.vmap(evaluated)(first, upper, action), strict=False))
    bounds, *_ = settle(marginals, tables.grid, Cut.at(upper))
    bounds = jnp.where(upper >= 1, 1.0, bounds).at[..., -1].set(1.0)
    used = jnp.diff(upper, axis=-1, prepend=jnp.zeros_like(upper[..., :1])) > 0

    def ask(asked, pair):
        i, j = pair
        return asked.at[:, j].max(asked[:, i] & (used[:, i] & (action[:, i] == j)).any(-1)), None

    asked, _ = lax.scan(ask, first[:, None] == np.arange(k), (tables.left, tables.right))
    found = {"lam": lam, **figures, "members": asked, "first": first, "bounds": bounds}
    return {**found, "actions": action, "u": upper.reshape(*lam.shape, -1), "status": jnp.zeros_like(first)}
