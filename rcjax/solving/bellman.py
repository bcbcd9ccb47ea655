"""The best cascades at every λ, globally: Bellman's equation of a cascade on quadrature nodes.

Along the exact chain, choosing when to stop is an optimal-stopping problem (Puterman 1994, Markov Decision Processes,
chapter 4). Where model j defers to model l, deferring at u is worth

    D_j(u) = −λ·cost_l + E[V_l(Φ_l) | Φ_j = u]        V_j(u) = Q_j(u) above the cut of j, D_j(u) below it

One backward pass solves it for all λ and all cascades at once, as cascades share their ends. Values are integrated
up to the cuts, not to the nearest node.

Where models may refuse to answer, which is worth R = 1 − (what a refusal costs, in errors), the last model of a cascade
does so up to its cut: V_j(u) = R below it.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from rcjax._core.batching import part
from rcjax._core.numerics import divide
from rcjax.solving.objective import Tables, arrivals
from rcjax.solving.paths import MANY_STEPS, CascadePlan
from rcjax.solving.quadrature import Grid

_ROUNDS = 8

_FIRST_CUTS = (1.0, 0.2)

#: How many λ have a round at a time on the CPU.
_TOGETHER = 32

#: How many at a time where a plan has many steps, once all have had one: few are not done then.
_FEW_TOGETHER = 8


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cut:
    """Where a model stops deferring, or refusing where it asks nobody, and the straight line of what that is worth."""

    u: jax.Array  # the cut: the model answers above it
    worth: jax.Array  # value of deferring at the cut
    slope: jax.Array  # its derivative by u

    @classmethod
    def at(cls, u: ArrayLike) -> "Cut":
        """Cuts that stay where they are: what deferring is worth there is not known."""
        u = jnp.asarray(u)
        return cls(u, jnp.full_like(u, jnp.nan), jnp.zeros_like(u))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Search:
    """What is known of the best path of each λ."""

    rounds: jax.Array  # (L,) how many it has had
    value: jax.Array  # (L,) of the best path so far
    path: jax.Array  # (L,) its number
    cut: Cut  # (L, k)
    gain: jax.Array  # (L,) what the last round gained; 0 where nothing can be gained any more
    done: jax.Array  # (L,) bool


def best_cascades(
    tables: Tables, lam: jax.Array, plan: CascadePlan, refusal: jax.Array | None = None
) -> tuple[jax.Array, Cut, jax.Array]:
    """(number of the best path (L,), its cuts (L, k), what the last round gained (L,)) for each λ.

    Rounds of two halves: a forward pass of the best path so far gives the density of the queries that reach each
    model, and a backward pass over all ends of paths chooses each cut under these densities. Where answering gains on
    deferring as confidence grows, as it nearly always does, the best cut is the same under any density. A λ is done
    once that holds, or all that could be gained where it does not is too little to make another path the best
    (`_is_sure`): most are after one round. Elsewhere each round can only improve on the one before, until none
    does. The first two start from densities of their own: that all queries reach every model, or only those with
    little confidence in the models before.

    Args:
        tables: the quadrature of the model.
        lam: (L,) in errors per unit of money.
        plan: the paths to search.
        refusal: () what one is worth, in right answers; None: nobody refuses.
    """

    def improve(search: _Search, together: int) -> _Search:
        if together == lam.shape[0]:
            return _improve(tables, lam, plan, search, refusal)
        # Those that have had the fewest rounds, and of these the first, so that neighbours stay together.
        rows = jnp.argsort(search.rounds + _ROUNDS * search.done)[:together]
        better = _improve(tables, lam[rows], plan, part(search, rows), refusal)
        return jax.tree.map(lambda old, new: old.at[rows].set(new, unique_indices=True), search, better)

    # Like λ, and not constants: under `jax.shard_map` what a loop begins with varies as what it comes to.
    none = jnp.full_like(lam, -jnp.inf)
    nowhere = jnp.zeros_like(lam, shape=(*lam.shape, tables.cost.shape[0]))
    cuts = Cut.at(nowhere)
    zeros = jnp.zeros_like(lam, int)
    start = _Search(zeros, none, zeros, cuts, -none, zeros > 0)
    together = _together(lam.shape[0], _TOGETHER)
    if plan.steps.shape[0] > MANY_STEPS:
        start = lax.while_loop(lambda search: (search.rounds == 0).any(), partial(improve, together=together), start)
        together = _together(lam.shape[0], _FEW_TOGETHER)
    search = lax.while_loop(lambda search: ~search.done.all(), partial(improve, together=together), start)
    return search.path, search.cut, search.gain


def _together(count: int, most: int) -> int:
    """How many λ have a round at a time: on the CPU few, whose integrands fit into its caches; elsewhere all."""
    return min(count, most) if jax.default_backend() == "cpu" else count


def _improve(tables: Tables, lam: jax.Array, plan: CascadePlan, search: _Search, refusal: jax.Array | None) -> _Search:
    """One more round for every λ of a search (L,)."""

    def reached(path: jax.Array, cut: Cut) -> jax.Array:
        deferred = plan.links[path][:, None] * jax.vmap(Grid.below)(tables.grid, cut.u)[tables.left]
        density = arrivals(tables, plan.first[path], deferred)
        # Whom no query reaches, any cut suits: theirs is the best for all queries, where a neighbouring λ may need it.
        reached = plan.members[path] & ((tables.grid.weight * density).sum(1) > jnp.finfo(lam.dtype).eps)
        return jnp.where(reached[:, None], density, 1.0)

    starting = search.rounds < len(_FIRST_CUTS)
    path = jnp.where(starting, plan.ends.shape[0], search.path)
    first_cut = jnp.asarray(_FIRST_CUTS, lam.dtype)[search.rounds]
    u = jnp.where(starting[:, None], first_cut[:, None], search.cut.u)
    value, path, cut, sure = _best_paths(tables, lam, plan, jax.vmap(reached)(path, Cut.at(u)), refusal)
    gain = value - search.value
    # Of two that are as good, the new one: its cuts are nearer to where they settle, and rounding chooses nothing.
    good = gain > -64 * jnp.finfo(lam.dtype).eps
    best = search.value, search.path, search.cut
    value, path, cut = jax.tree.map(lambda old, new: jnp.where(_beside(good, new), new, old), best, (value, path, cut))
    gain = jnp.where(sure, 0.0, gain)
    rounds = search.rounds + 1
    # At least one round under the densities of what was found.
    settled = (rounds > len(_FIRST_CUTS)) & ~(gain > gain_tolerance(lam.dtype))
    return _Search(rounds, value, path, cut, gain, sure | settled | (rounds >= _ROUNDS))


def gain_tolerance(dtype: DTypeLike) -> float:
    """A round that lowers no loss by more than this is the last one: the next would gain its square."""
    return max(1e-8, 64 * float(jnp.finfo(dtype).eps))


def _beside(per_lambda: jax.Array, other: jax.Array) -> jax.Array:
    """(L,) with as many axes as `other` (L, …)."""
    return per_lambda.reshape(per_lambda.shape + (1,) * (other.ndim - 1))


def cuts_of_paths(tables: Tables, lam: jax.Array, plan: CascadePlan) -> Cut:
    """The cuts (N, L, k) of every path at every λ, the best one among them or not: by one backward pass.

    Cuts are chosen as if all queries reached every model, which is the optimum wherever answering gains on deferring as
    confidence grows.

    Args:
        tables: the quadrature of the model.
        lam: (L,) in errors per unit of money.
        plan: the paths.
    """
    everyone = jnp.ones((lam.shape[0], *tables.grid.u.shape), lam.dtype)
    _, stop, cuts, _ = _backward(tables, lam, plan, everyone, None)
    step = plan.cuts[plan.ends]
    stopping = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(step), *lam.shape, *leaf.shape)), stop)
    if cuts is None:
        return stopping
    chosen = jax.tree.map(lambda all_: jnp.moveaxis(all_[step], 1, -1), cuts)
    return jax.tree.map(partial(jnp.where, (step >= 0)[:, None]), chosen, stopping)


def _best_paths(
    tables: Tables, lam: jax.Array, plan: CascadePlan, density: jax.Array, refusal: jax.Array | None
) -> tuple[jax.Array, jax.Array, Cut, jax.Array]:
    """(value (L,), number (L,), cuts (L, k), whether no path has a better one (L,)) of the best path.

    By one backward pass, cuts chosen under the densities.
    """
    integrands, stop, cuts, to_gain = _backward(tables, lam, plan, density, refusal)
    cut = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*lam.shape, *leaf.shape)), stop)
    values = integrands.sum(-1)[plan.ends] - lam * tables.cost[plan.heads[plan.ends]][:, None]
    best = jnp.argmax(values, axis=0)
    sure = jnp.ones(lam.shape, bool)
    if cuts is not None:
        sure = _is_sure(values, to_gain, plan)
        step = plan.cuts[plan.ends[best]]
        chosen = part(cuts, (step, jnp.arange(lam.shape[0])[:, None]))
        cut = jax.tree.map(partial(jnp.where, step >= 0), chosen, cut)
    return values.max(0), best, cut, sure


def _backward(
    tables: Tables, lam: jax.Array, plan: CascadePlan, density: jax.Array, refusal: jax.Array | None
) -> tuple[jax.Array, Cut, Cut | None, jax.Array]:
    """(integrands (E, L, G) of the ends, the cuts (k,) of models that ask nobody, those (S, L) of the steps, None if
    there are none, and what each step can gain (S, L)).

    Cuts are chosen under the densities (L, k, G). The integrand of an end is the weighted value at each node of its
    first model.
    """
    most = _most_arrivals(tables)

    def defer(number: jax.Array, carry: tuple[jax.Array, Cut, jax.Array]) -> tuple[jax.Array, Cut, jax.Array]:
        integrands, cuts, to_gain = carry
        end, rest, pair = plan.steps[number]
        j = tables.left[pair]
        grid = part(tables.grid, j)
        price = lam * tables.cost[tables.right[pair]]
        after = lax.dynamic_index_in_dim(integrands, rest, keepdims=False)
        deferring = after @ tables.kernel[pair].T - price[:, None]
        cut, misplaced = jax.vmap(partial(best_cut, grid))(deferring, density[:, j])
        value = grid.weight * grid.quantile + jax.vmap(grid.below)(cut.u) * (deferring - grid.quantile)
        written = cut, misplaced @ (grid.weight * most[j])
        cuts, to_gain = jax.tree.map(
            lambda all_, new: lax.dynamic_update_index_in_dim(all_, new, number, 0), (cuts, to_gain), written
        )
        return lax.dynamic_update_index_in_dim(integrands, value, end, 0), cuts, to_gain

    nowhere = jnp.zeros_like(tables.cost)
    answering, stop = tables.grid.weight * tables.grid.quantile, Cut(nowhere, nowhere, nowhere)
    if refusal is not None:
        stop = jax.vmap(partial(_stopping_cut, refusal))(tables.grid)
        answering += jax.vmap(Grid.below)(tables.grid, stop.u) * (refusal - tables.grid.quantile)
    integrands = jnp.broadcast_to(answering[plan.heads, None], (*plan.heads.shape, *lam.shape, answering.shape[-1]))
    to_gain = untaken = jnp.zeros_like(lam, shape=(plan.steps.shape[0], *lam.shape))
    cuts = None
    if plan.steps.shape[0]:
        cuts = Cut(untaken, untaken, untaken)
        integrands, cuts, to_gain = lax.fori_loop(0, _turns(plan), defer, (integrands, cuts, to_gain))
    return integrands, stop, cuts, to_gain


def _turns(plan: CascadePlan) -> Any:
    """How many steps are taken: on the CPU those that the paths need; elsewhere all, as many as is known beforehand,
    since a loop that might end asks the host at every turn. What fills steps up writes to where nobody reads."""
    return plan.count if jax.default_backend() == "cpu" else plan.steps.shape[0]


def _most_arrivals(tables: Tables) -> jax.Array:
    """(k, G) the most that the density of those who reach a model can be: the first one's is 1, a later one's a mean
    of its kernels' rows."""
    reached = jnp.ones_like(tables.grid.u)
    return reached.at[tables.right].max(tables.kernel.max(1)) if tables.left.size else reached


def _is_sure(values: jax.Array, to_gain: jax.Array, plan: CascadePlan) -> jax.Array:
    """(L,) whether the best of the paths is so whatever the cuts of all.

    What a path can gain is at most the sum, over its models, of what deferring or answering otherwise would gain there
    under the most arrivals (Kakade & Langford 2002, "Approximately optimal approximate reinforcement learning", lemma
    6.1).

    Args:
        values: (N, L) of the paths.
        to_gain: (S, L) what each step can gain.
        plan: which paths there are.
    """
    steps = plan.cuts[plan.ends]
    gains = jnp.where((steps >= 0)[..., None], to_gain[steps], 0.0).sum(1)
    rounding = 64 * jnp.finfo(values.dtype).eps
    return ((gains <= rounding) | (values + gains < values.max(0))).all(0)


def best_cut(grid: Grid, deferring: jax.Array, density: jax.Array) -> tuple[Cut, jax.Array]:
    """The cut above which answering is best in total, from what deferring is worth at the nodes (G,).

    The best of all cell edges under the density (G,) of the queries that arrive, moved to where the advantage of
    answering crosses zero between the two nodes beside it. Also what the other choice would gain at each node (G,).
    """
    advantage = grid.quantile - deferring
    edge = _best_edge(grid, advantage, density)
    u = crossing(grid, advantage, edge)
    beside = jnp.clip(edge, 1, grid.u.shape[0] - 1) + np.array([-1, 0])
    ranks, worth = grid.u[beside], deferring[beside]
    slope = divide(worth[1] - worth[0], ranks[1] - ranks[0])
    return Cut(u, worth[0] + slope * (u - ranks[0]), slope), _misplaced(advantage, edge)


def _misplaced(advantage: jax.Array, edge: jax.Array) -> jax.Array:
    """(G,) by how much the advantage is below zero above the edge, or above zero below it."""
    above = np.arange(advantage.shape[0]) >= edge
    return jnp.maximum(jnp.where(above, -advantage, advantage), 0.0)


def _best_edge(grid: Grid, advantage: jax.Array, density: jax.Array) -> jax.Array:
    """The first of the cell edges above which the advantage (G,) adds up to most, under the density (G,)."""
    # Without the barrier XLA works the sums out anew for the comparison, rounded otherwise: none is the largest then.
    total = lax.optimization_barrier(_sums_above(grid, grid.weight * advantage * density))
    # Not by `argmax`, which takes XLA three times as long.
    return jnp.min(jnp.where(total == total.max(), np.arange(total.shape[0]), total.shape[0] - 1))


def _sums_above(grid: Grid, values: jax.Array) -> jax.Array:
    """(G + 1,) the sum of the values (G,) above each cell edge: in panels, and of panels, by matrices of ones.

    A cumulative sum takes XLA longer to compile than all the rest here.
    """
    panels, last = grid.starts.shape[0], 1 if len(grid.masses) == 2 else 0  # values behind all panels
    inside = values[1 : values.shape[0] - last].reshape(panels, -1)
    inside = inside @ np.tri(inside.shape[1], dtype=values.dtype)
    later = inside[:, 0] @ np.tri(panels, k=-1, dtype=values.dtype)
    if last:
        later += values[-1]
    above = (inside + later[:, None]).reshape(-1)
    behind = [values[-1:]] if last else []
    return jnp.concatenate([(values[0] + above[0])[None], above, *behind, jnp.zeros_like(values[:1])])


def _stopping_cut(refusal: jax.Array, grid: Grid) -> Cut:
    """The cut of a model that asks nobody: it refuses where its confidence is less than a refusal is worth."""
    refusing = jnp.full_like(grid.u, refusal)
    cut, _ = best_cut(grid, refusing, jnp.ones_like(grid.u))
    return Cut(cut.u, refusal.astype(cut.u.dtype), jnp.zeros_like(cut.u))


def crossing(grid: Grid, advantage: jax.Array, edge: jax.Array) -> jax.Array:
    """The zero of `advantage` between the nodes on both sides of a cell's edge; the edge itself beside a mass."""
    beside = jnp.clip(edge, 1, grid.u.shape[0] - 1) + np.array([-1, 0])
    ranks, (before, after) = grid.u[beside], advantage[beside]
    smooth = (edge >= 2) & (edge <= grid.u.shape[0] - 2) & (before * after < 0)
    inner = grid.masses[1:-1]
    if inner.size:
        atom = jnp.zeros(grid.u.shape, bool).at[inner].set(grid.weight[inner] > 0)
        smooth &= ~atom[beside].any()
    zero = ranks[0] + divide(before, before - after) * (ranks[1] - ranks[0])
    return jnp.where(smooth, zero, grid.edges[edge])
