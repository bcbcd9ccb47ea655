"""The paper's factorisation, solved: a programme over thresholds, and Newton steps that settle it.

Under eq. 5 and proposition 2 what follows a model depends on its threshold alone, not on who was asked before, so the
state of the programme is the last threshold. The thresholds of neighbours move each other, hence the full Hessian.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rcjax._trees import part
from rcjax.cascade import Tables, evaluate, truncated_transition
from rcjax.joint import pairs
from rcjax.programme import Cut, Plan

_STEPS = 6
_LENGTHS = (1.0, 0.3, 0.05, 0.0)
_MAX_MOVE = 0.05


def best_cascades_paper(tables: Tables, lam: jax.Array, plan: Plan) -> tuple[jax.Array, Cut, jax.Array]:
    """As `programme.best_cascades`, under the paper's factorisation."""
    path, cuts = _best_paths(tables, lam, plan)
    low, high = tables.grid.panels[:, 0], tables.grid.panels[:, -1]

    def improve(u, lam, links, first):
        def loss(u):
            error, cost = evaluate(tables, u, links, first, chosen=pairs(plan.k), chain="paper")
            return error + lam * cost

        return _newton(loss, u, low, high, links.sum(-1) > 0)

    links, first = (jnp.asarray(x, lam.dtype)[path] for x in (plan.links, plan.first))
    cuts, gain = jax.vmap(improve)(cuts, lam, links, first)
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

    def direction(u):
        gradient, hessian = jax.grad(loss)(u), jax.hessian(loss)(u)
        both = free[:, None] & free[None, :]
        hessian = jnp.where(both, hessian, 0.0) + jnp.diag(jnp.where(free, 1e-9, 1.0))
        move = jnp.linalg.solve(hessian, jnp.where(free, -gradient, 0.0))
        move = jnp.where((move * gradient).sum() < 0, move, -gradient)
        outward = ((u <= low) & (gradient > 0)) | ((u >= high) & (gradient < 0))
        return jnp.clip(jnp.where(free & ~outward, jnp.nan_to_num(move), 0.0), -_MAX_MOVE, _MAX_MOVE)

    def step(carry, _):
        u, value = carry
        trials = jnp.where(free, jnp.clip(u + lengths[:, None] * direction(u), low, high), u)
        values = jax.vmap(loss)(trials)
        best = jnp.argmin(values)
        return (trials[best], values[best]), value - values[best]

    (u, _), gains = jax.lax.scan(step, (u, loss(u)), length=_STEPS)
    return u, gains[-1]


def _best_paths(tables, lam, plan):
    """(number of the best path (L,), its cuts (L, k)) with every threshold at an edge of a cell.

    With J the value given that the predecessor i deferred below u_i, and G(v given u) = C(u, v)/u,
    J(u_i) = −λ·cost_j + max over u_j of ∫_{u_j}^1 Q_j dG(v given u_i) + G(u_j given u_i)·J(u_j).
    """
    k = plan.k
    suffixes = [[end for end in plan.suffixes if end[0] == j] for j in range(k)]
    place = {pair: p for p, pair in enumerate(pairs(k))}
    values: dict = {}
    for j in reversed(range(k)):
        grid = part(tables.grid, j)
        for i in [-1, *range(j)]:
            mass, reward = _answer_or_pass(tables, place, i, j)
            for end in suffixes[j]:
                if len(end) == 1:
                    best = jnp.broadcast_to(reward[:, 0], (*lam.shape, reward.shape[0]))
                    cuts = jnp.zeros((*best.shape, k), lam.dtype)
                else:
                    later, later_cuts = values[j, end[1:]]
                    total = reward + mass * later[:, None, :]
                    place_of = jnp.argmax(total, axis=-1)
                    best = jnp.take_along_axis(total, place_of[..., None], -1)[..., 0]
                    cuts = jnp.take_along_axis(later_cuts, place_of[..., None], 1).at[..., j].set(grid.edges[place_of])
                values[i, end] = best - lam[:, None] * tables.cost[j], cuts
    value = jnp.stack([values[-1, path][0][:, 0] for path in plan.paths])
    best = jnp.argmax(value, axis=0)
    cuts = jnp.stack([values[-1, path][1][:, 0] for path in plan.paths])
    return best, jnp.take_along_axis(cuts, best[None, :, None], axis=0)[0]


def _answer_or_pass(tables, place, i, j):
    """(G(e_n | e_m), reward of answering above e_n) (M, N): by the predecessor's edges m and model j's edges n."""
    grid = part(tables.grid, j)
    if i < 0:
        density = jnp.ones((1, grid.u.shape[0]), grid.u.dtype)
    else:
        copula, edges = part(tables.copulas, place[i, j]), tables.grid.edges[i]
        density = jax.vmap(lambda u: truncated_transition(copula, u, grid))(edges)
    below = jax.vmap(grid.below)(grid.edges)
    return density @ below.T, density @ ((grid.weight - below) * grid.quantile).T
