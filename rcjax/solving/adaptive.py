"""The best policy of all at every λ: after each answer, keep it or ask any later model, by how unsure we are.

Bellman's equation without a cascade to follow:

    V_j(u) = max{ Q_j(u), max over l > j of −λ·cost_l + E[V_l(Φ_l) | Φ_j = u] }

Where models may refuse to answer, the worth of a refusal stands beside Q_j(u), as one more action.

One backward pass, and every interval of confidence has its own action. The optimum over every policy.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcjax._core.batching import part
from rcjax.frontier.points import Outcomes
from rcjax.frontier.policies import ABSTAIN
from rcjax.model.calibrated import pairs
from rcjax.solving.bellman import crossing
from rcjax.solving.objective import Tables, arrivals, tally
from rcjax.solving.quadrature import Grid

#: Intervals of confidence per model that a policy may tell apart.
MAX_INTERVALS = 8


def adaptive_policies(
    tables: Tables, lam: jax.Array, refusal: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The optimum over every policy: (first (L,), upper ends of intervals in u (L, k, R), actions (L, k, R)).

    Action l > j of model j asks model l, action j answers, ABSTAIN refuses. The tables hold all pairs of models.
    """
    k = tables.cost.shape[0]
    link_index = np.zeros((k, k), int)
    link_index[tuple(np.triu_indices(k, 1))] = np.arange(len(pairs(k)))

    def ask_or_answer(integrands: jax.Array, model: tuple[Any, Any]) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        j, links = model
        grid = part(tables.grid, j)
        worth = jnp.zeros_like(integrands)
        if tables.left.size:  # one model alone has nobody to ask
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
    """Where each of the options (o, G) is best: upper ends (R,) in u, options (R,), and the weighted value (G,)."""
    nodes = grid.u.shape[0]
    action = jnp.argmax(options, axis=0)
    # A point mass without weight has no say.
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
    """(R, G) the part of each node's weight in each interval, from the upper ends (R,) in u."""
    below = jax.vmap(grid.below)(upper)
    return jnp.diff(below, axis=0, prepend=jnp.zeros((1, below.shape[1]), below.dtype))


def evaluate_intervals(
    tables: Tables, first: jax.Array, upper: jax.Array, action: jax.Array, refusing: bool = False
) -> Outcomes:
    """What is expected of a query by one adaptive policy.

    Args:
        tables: the quadrature of the model.
        first: () the model asked first.
        upper: (k, R) the upper ends of each model's intervals, on the scale of ranks.
        action: (k, R) the model to ask next, itself to answer.
        refusing: whether some action may be to refuse.
    """
    k = tables.cost.shape[0]
    weights = jax.vmap(interval_weights)(tables.grid, upper)
    to = jax.vmap(lambda action, weights, model: ((action == model)[:, None] * weights).sum(0))
    deferred = to(action[tables.left], weights[tables.left], tables.right)
    density = arrivals(tables, first, deferred, tables.kernel)
    refused = to(action, weights, np.full(k, ABSTAIN)) if refusing else None
    return tally(tables, density, to(action, weights, np.arange(k)), refused)
