"""The best policy at every λ, globally: Bellman's equation of a cascade on quadrature nodes.

Along the exact chain, choosing when to stop is an optimal-stopping problem (DESIGN of the package; Puterman 1994,
Markov Decision Processes, chapter 4):

    V_j(u) = max{ Q_j(u), max over l > j of −λ·cost_l + E[V_l(Φ_l) | Φ_j = u] }

One backward pass solves it for all λ at once: for a fixed cascade l is the next model and each model answers above
one cut; for an adaptive policy every interval of confidence has its own action. Values are integrated up to the
cuts, not to the nearest node.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rcjax.cascade import Tables, part, tally
from rcjax.joint import pairs
from rcjax.quadrature import Grid

#: Intervals of confidence per model that an adaptive policy may tell apart.
MAX_INTERVALS = 8


@dataclasses.dataclass(frozen=True)
class Plan:
    """The candidate cascades, as paths of model positions, and their suffixes by first model (hashable)."""

    paths: tuple[tuple[int, ...], ...]
    k: int

    @property
    def suffixes(self) -> list[list[tuple[int, ...]]]:
        """suffixes[j]: all distinct ends of paths that begin with model j, by the model asked next, and so on."""
        ends = {path[start:] for path in self.paths for start in range(len(path))}
        return [sorted(end for end in ends if end[0] == j) for j in range(self.k)]

    @property
    def members(self) -> np.ndarray:
        """(paths, k) bool."""
        return np.array([[j in path for j in range(self.k)] for path in self.paths])

    @property
    def links(self) -> np.ndarray:
        """(paths, k, k) 1 where i defers to j."""
        links = np.zeros((len(self.paths), self.k, self.k))
        for number, path in enumerate(self.paths):
            links[number, path[:-1], path[1:]] = 1
        return links

    @property
    def first(self) -> np.ndarray:
        """(paths, k) 1 for the model asked first."""
        return np.eye(self.k)[[path[0] for path in self.paths]]


def best_cascades(tables: Tables, lam: jax.Array, plan: Plan) -> tuple[jax.Array, jax.Array]:
    """(number of the best path (L,), its cuts in u (L, k)) for each λ (L,), by one backward pass over suffixes.

    A suffix is solved once for all paths that share it. The best single cut of a model is the exact optimum where
    answering gains on deferring as confidence grows; `polish` settles the rest.
    """
    k, suffixes = plan.k, plan.suffixes
    place = {pair: p for p, pair in enumerate(pairs(k))}
    integrands, cuts = {}, {}
    for j in reversed(range(k)):
        grid = part(tables.grid, j)
        worth, later_cuts = [], []
        for l in range(j + 1, k):  # noqa: E741
            rows = [suffixes[l].index(end[1:]) for end in suffixes[j] if end[1:2] == (l,)]
            if rows:
                deferring = integrands[l][np.array(rows)] @ tables.kernel[place[j, l]].T
                worth.append(deferring - (lam * tables.cost[l])[:, None])
                later_cuts.append(cuts[l][np.array(rows)])
        # Sorted as tuples, the suffix that ends here comes first, then blocks by the model asked next.
        alone = int((j,) in suffixes[j])
        integrands[j] = jnp.broadcast_to(grid.weight * grid.quantile, (alone, *lam.shape, grid.u.shape[0]))
        cuts[j] = jnp.zeros((alone, *lam.shape, k), lam.dtype)
        if worth:
            deferring = jnp.concatenate(worth)
            cut = jax.vmap(jax.vmap(partial(best_cut, grid)))(grid.quantile - deferring)
            below = jax.vmap(jax.vmap(grid.below))(cut)
            value = grid.weight * grid.quantile + below * (deferring - grid.quantile)
            integrands[j] = jnp.concatenate([integrands[j], value])
            cuts[j] = jnp.concatenate([cuts[j], jnp.concatenate(later_cuts).at[..., j].set(cut)])
    roots = [(path[0], suffixes[path[0]].index(path)) for path in plan.paths]
    values = jnp.stack([integrands[j][row].sum(-1) - lam * tables.cost[j] for j, row in roots])
    best = jnp.argmax(values, axis=0)
    everything = jnp.stack([cuts[j][row] for j, row in roots])
    return best, jnp.take_along_axis(everything, best[None, :, None], axis=0)[0]


def best_cut(grid: Grid, advantage: jax.Array, density: jax.Array | float = 1.0) -> jax.Array:
    """The cut in u above which answering is best in total, from the advantage of answering at the nodes (G,).

    The best of all cell edges, moved to where the advantage crosses zero between the two nodes beside it.
    """
    gain = grid.weight * advantage * density
    total = jnp.concatenate([jnp.cumsum(gain[::-1])[::-1], jnp.zeros(1, gain.dtype)])
    edge = jnp.argmax(total)
    return _crossing(grid, advantage, edge)


def _crossing(grid, advantage, edge):
    """The zero of `advantage` between the nodes on both sides of a cell's edge; the edge itself beside a mass."""
    left, right = jnp.clip(edge - 1, 0, grid.u.shape[0] - 1), jnp.clip(edge, 0, grid.u.shape[0] - 1)
    before, after = advantage[left], advantage[right]
    crosses = (before < 0) & (after > 0) | (before > 0) & (after < 0)
    share = jnp.where(crosses, before / jnp.where(crosses, before - after, 1.0), 0.5)
    zero = grid.u[left] + share * (grid.u[right] - grid.u[left])
    smooth = (left >= 1) & (right <= grid.u.shape[0] - 2) & (left < right) & crosses
    return jnp.where(smooth, zero, grid.edges[edge])


def adaptive_policies(tables: Tables, lam: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The optimum over every policy: (first (L,), upper ends of intervals in u (L, k, R), actions (L, k, R)).

    Action l > j of model j asks model l, action j answers.
    """
    k = tables.cost.shape[0]
    place = {pair: p for p, pair in enumerate(pairs(k))}
    integrands, values, ends, actions = {}, [], [], []
    for j in reversed(range(k)):
        grid = part(tables.grid, j)
        options = [jnp.broadcast_to(grid.quantile, (*lam.shape, grid.u.shape[0]))]
        for l in range(j + 1, k):  # noqa: E741
            options.append(integrands[l] @ tables.kernel[place[j, l]].T - (lam * tables.cost[l])[:, None])
        upper, action, integrand = jax.vmap(partial(_intervals, grid))(jnp.stack(options, axis=1))
        integrands[j] = integrand
        values.insert(0, integrand.sum(-1) - lam * tables.cost[j])
        ends.insert(0, upper)
        actions.insert(0, action + j)
    return jnp.argmax(jnp.stack(values), axis=0), jnp.stack(ends, 1), jnp.stack(actions, 1)


def _intervals(grid, options):
    """Where each of the options (o, G) is best: upper ends (R,) in u, options (R,), and the weighted value (G,)."""
    nodes = grid.u.shape[0]
    action = jnp.argmax(options, axis=0)
    # A point mass without weight has no say.
    action = action.at[0].set(jnp.where(grid.weight[0] > 0, action[0], action[1]))
    action = action.at[-1].set(jnp.where(grid.weight[-1] > 0, action[-1], action[-2]))
    switches = jnp.concatenate([jnp.zeros(1, bool), action[1:] != action[:-1]])
    edges = jnp.nonzero(switches, size=MAX_INTERVALS - 1, fill_value=nodes)[0]

    def crossing(edge):
        before, after = action[jnp.maximum(edge - 1, 0)], action[jnp.minimum(edge, nodes - 1)]
        return jnp.where(edge < nodes, _crossing(grid, options[after] - options[before], edge), 1.0)

    upper = jnp.append(jax.vmap(crossing)(edges), jnp.ones(1, grid.u.dtype))
    chosen = action[jnp.clip(jnp.concatenate([jnp.zeros(1, edges.dtype), edges]), 0, nodes - 1)]
    parts = interval_weights(grid, upper)
    return upper, chosen, (parts * options[chosen]).sum(0)


def interval_weights(grid: Grid, upper: jax.Array) -> jax.Array:
    """(R, G) the part of each node's weight in each interval, from the upper ends (R,) in u."""
    below = jax.vmap(grid.below)(upper)
    return jnp.diff(below, axis=0, prepend=jnp.zeros((1, below.shape[1]), below.dtype))


def evaluate_intervals(
    tables: Tables, first: jax.Array, upper: jax.Array, action: jax.Array, chosen: Sequence[tuple[int, int]]
) -> tuple[jax.Array, jax.Array]:
    """(error, cost) of one adaptive policy: first (), upper ends (k, R) in u, actions (k, R)."""
    from rcjax.cascade import arrivals

    k = tables.cost.shape[0]
    weights = jax.vmap(interval_weights)(tables.grid, upper)

    def to(j, l):  # noqa: E741
        return ((action[j] == l)[:, None] * weights[j]).sum(0)

    deferred = {(i, j): to(i, j) for i, j in chosen}
    density = arrivals(tables, chosen, jnp.eye(k, dtype=upper.dtype)[first], deferred)
    return tally(tables, density, jnp.stack([to(j, j) for j in range(k)]))


def best_cascades_paper(tables: Tables, lam: jax.Array, plan: Plan) -> tuple[jax.Array, jax.Array]:
    """As `best_cascades`, under the paper's factorisation, where what follows depends on the last threshold alone.

    State and decision are thresholds on the cells' edges: with J the value given that the predecessor i deferred
    below u_i, J(u_i) = −λ·cost_j + max over u_j of ∫_{u_j}^1 Q_j dG(v given u_i) + G(u_j given u_i)·J(u_j),
    G(v given u) = C(u, v)/u.
    """
    k, suffixes = plan.k, plan.suffixes
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
    from rcjax.cascade import truncated_transition

    grid = part(tables.grid, j)
    if i < 0:
        density = jnp.ones((1, grid.u.shape[0]), grid.u.dtype)
    else:
        copula, edges = part(tables.copulas, place[i, j]), tables.grid.edges[i]
        density = jax.vmap(lambda u: truncated_transition(copula, u, grid))(edges)
    below = jax.vmap(grid.below)(grid.edges)
    return density @ below.T, density @ ((grid.weight - below) * grid.quantile).T
