"""The paper's factorisation, solved: a program over thresholds, and Newton steps that settle it.

Under eq. 5 and proposition 2 what follows a model depends on its threshold alone, not on who was asked before, so the
state of the program is the last threshold. The thresholds of neighbours move each other, hence the full Hessian.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rcjax._core.batching import part
from rcjax.solving.bellman import Cut
from rcjax.solving.objective import Tables, evaluate, truncated_transition
from rcjax.solving.paths import CascadePlan

_STEPS = 6

_LENGTHS = (1.0, 0.3, 0.05, 0.0)

_MAX_MOVE = 0.05

_NEVER = -1e30


def best_cascades_paper(tables: Tables, lam: jax.Array, plan: CascadePlan) -> tuple[jax.Array, Cut, jax.Array]:
    """As `bellman.best_cascades`, under the paper's factorisation."""
    path, cuts = _best_paths(tables, lam, plan)
    low, high = tables.grid.smooth

    def improve(
        u: jax.Array, lam: jax.Array, links: jax.Array, first: jax.Array, defers: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        def loss(u: jax.Array) -> jax.Array:
            return evaluate(tables, u, links, first, chain="paper").loss(lam)

        return _newton(loss, u, low, high, defers)

    cuts, gain = jax.vmap(improve)(cuts, lam, plan.links[path], plan.first[path], plan.defers[path])
    return path, Cut.at(cuts), gain


def _newton(
    loss: Callable[[jax.Array], jax.Array], u: jax.Array, low: jax.Array, high: jax.Array, deferring: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(u (k,), gain of the last step ()) after projected Newton steps on the loss of one λ that never raise it.

    Cuts move within [low, high], between the point masses; a cut at or inside a mass stays, for the loss is linear
    there. `deferring` (k,) is true for models of the cascade but the last.
    """
    free = deferring & (u >= low) & (u <= high) & (low < high)
    lengths = jnp.asarray(_LENGTHS, u.dtype)

    def direction(u: jax.Array) -> jax.Array:
        gradient, hessian = jax.grad(loss)(u), jax.hessian(loss)(u)
        both = free[:, None] & free[None, :]
        hessian = jnp.where(both, hessian, 0.0) + jnp.diag(jnp.where(free, 1e-9, 1.0))
        move = jnp.linalg.solve(hessian, jnp.where(free, -gradient, 0.0))
        move = jnp.where((move * gradient).sum() < 0, move, -gradient)
        outward = ((u <= low) & (gradient > 0)) | ((u >= high) & (gradient < 0))
        return jnp.clip(jnp.where(free & ~outward, jnp.nan_to_num(move), 0.0), -_MAX_MOVE, _MAX_MOVE)

    def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        u, value = carry
        trials = jnp.where(free, jnp.clip(u + lengths[:, None] * direction(u), low, high), u)
        values = jax.vmap(loss)(trials)
        best = jnp.argmin(values)
        return (trials[best], values[best]), value - values[best]

    (u, _), gains = jax.lax.scan(step, (u, loss(u)), length=_STEPS)
    return u, gains[-1]


def _best_paths(tables: Tables, lam: jax.Array, plan: CascadePlan) -> tuple[jax.Array, jax.Array]:
    """(number of the best path (L,), its cuts (L, k)) with every threshold at an edge of a cell.

    With J(u_i) what deferring from i to j below u_i is worth to a query, and G(v given u) = C(u, v)/u,
    J(u_i) = −λ·cost_j + max over u_j of ∫_{u_j}^1 Q_j dG(v given u_i) + G(u_j given u_i)·J(u_j).
    """
    passed, earned, passed_first, earned_first = _pass_or_answer(tables)
    edges = tables.grid.edges

    def defer(carry: tuple[Any, ...], step: Any) -> tuple[tuple[Any, ...], Any]:
        worth, choices = carry
        end, rest, pair = step
        total = earned[pair] + passed[pair] * worth[rest][:, None]
        price = lam * tables.cost[tables.right[pair]]
        worth = worth.at[end].set(total.max(-1) - price[:, None])
        return (worth, choices.at[end].set(jnp.argmax(total, -1))), None

    # The last model of a path passes nothing: its cut is the first edge.
    nothing = jnp.where(jnp.arange(edges.shape[1]) > 0, _NEVER, 0.0).astype(lam.dtype)
    worth = jnp.broadcast_to(nothing, (*plan.heads.shape, *lam.shape, edges.shape[1]))
    choices, rests = jnp.zeros(worth.shape, int), jnp.arange(plan.heads.shape[0])
    if plan.steps.shape[0]:
        (worth, choices), _ = lax.scan(defer, (worth, choices), tuple(plan.steps.T))
        rests = rests.at[plan.steps[:, 0]].set(plan.steps[:, 1])
    asked = plan.heads[plan.ends]
    total = earned_first[asked][:, None] + passed_first[asked][:, None] * worth[plan.ends]
    best = jnp.argmax(total.max(-1) - lam * tables.cost[asked][:, None], axis=0)

    def follow(end: jax.Array, edge: jax.Array, choices: jax.Array) -> Any:
        def ask(carry: tuple[Any, ...], _: Any) -> tuple[tuple[Any, ...], Any]:
            u, end, edge = carry
            j = plan.heads[end]
            return (u.at[j].set(edges[j, edge]), rests[end], choices[end, edge]), None

        start = (jnp.zeros(edges.shape[0], edges.dtype), end, edge)
        return lax.scan(ask, start, length=edges.shape[0])[0][0]

    first_edge = jnp.argmax(total, -1)[best, jnp.arange(lam.shape[0])]
    return best, jax.vmap(follow, (0, 0, 1))(plan.ends[best], first_edge, choices)


def _pass_or_answer(tables: Tables) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Of each pair (i, j), G(e_m given e_n) and what j earns above e_m (P, N, N), by edges n of i and m of j.

    The same (k, N) of each model that is asked first.
    """
    below = jax.vmap(lambda grid: jax.vmap(grid.below)(grid.edges))(tables.grid)
    earned = (tables.grid.weight[:, None] - below) * tables.grid.quantile[:, None]
    law = jax.vmap(jax.vmap(truncated_transition, (None, 0, None)))
    density = law(tables.copulas, tables.grid.edges[tables.left], part(tables.grid, tables.right))
    passing, earning = (density @ jnp.swapaxes(table[tables.right], 1, 2) for table in (below, earned))
    return passing, earning, below.sum(-1), earned.sum(-1)
