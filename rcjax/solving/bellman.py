"""The globally best cascade at every λ, by Bellman's equation on quadrature nodes.

A cascade decides when to stop along a chain, which is an optimal-stopping problem (Puterman 1994, Markov Decision
Processes, chapter 4). If model j defers to model l, the value D of deferring at u, and the value V of a query at model
j, are

    D_j(u) = −λ·cost_l + E[V_l(Φ_l) | Φ_j = u]        V_j(u) = Q_j(u) above the cut of j, D_j(u) below it

Cascades share their suffixes, so that one backward pass solves all λ and all cascades. Values are integrated up to the
cuts, not to the nearest node.

An abstention is worth R right answers: 1 − its price in errors. If models may abstain, the last model of a cascade does
so up to its cut: V_j(u) = R below it.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from rcjax._core.batching import number_pairs, take_entries
from rcjax._core.numerics import divide
from rcjax.policy.spec import CascadeSet
from rcjax.solving.quadrature import QuadratureGrid, QuadratureTables, arrival_densities

MANY_STEPS = 256  # steps above which a plan's run takes longer than its compilation
_MAX_MODELS = 12  # largest number of models of which all subcascades are searched
_MIN_SIZE = 4  # least size to which the arrays of a plan are padded


def check_cascade(models: tuple[str, ...], cascade: Sequence[str]) -> tuple[int, ...]:
    """Return the positions of a cascade's models.

    Raises ValueError for an empty cascade, unknown models, or another order than the model's.
    """
    if isinstance(cascade, str) or not len(cascade):
        raise ValueError(f"a cascade is a non-empty tuple of model names, not {cascade!r}")
    unknown = [name for name in cascade if name not in models]
    if unknown:
        raise ValueError(f"unknown model {unknown[0]!r}; the models are {', '.join(models)}")
    members = tuple(models.index(name) for name in cascade)
    if any(i >= j for i, j in itertools.pairwise(members)):
        raise ValueError(
            f"the cascade {' → '.join(cascade)} does not follow the model's order {' → '.join(models)}; "
            "read the log with models= in the order in which they are to be asked"
        )
    return members


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CascadePlan:
    """N candidate cascades among k models, with E suffixes, S steps and P pairs.

    Cascades that share a suffix share its solution. A step solves a suffix; the first model of the suffix defers to a
    shorter suffix, whose step comes before. Sizes are padded: padding repeats an entry, or writes to an unused suffix.
    """

    members: jax.Array  # (N + 1, k) bool; the last row is that of `all_models`
    links: jax.Array  # (N + 1, P) bool, the pairs (i, j) in which i defers to j
    first: jax.Array  # (N + 1,) model asked first
    last: jax.Array  # (N + 1,) model that answers every query that reaches it
    suffixes: jax.Array  # (N,) each cascade's number among the suffixes
    suffix_first: jax.Array  # (E,) first model of a suffix
    steps: jax.Array  # (S, 3) (suffix, suffix after its first model, pair of its first two models), by length
    count: jax.Array  # () number of steps without padding
    cut_steps: jax.Array  # (E, k) step that cuts each model of a suffix; −1: the model does not defer
    pairs: jax.Array  # (P,) number of each pair, among all pairs of the k models
    has_all_prefixes: jax.Array  # () bool, whether every prefix of a cascade is a cascade

    @property
    def all_models(self) -> int:
        """Number of the cascade of all models that any candidate asks; a search starts with its densities."""
        return self.suffixes.shape[0]

    @property
    def defers(self) -> jax.Array:
        """(N + 1, k) bool: the members that defer."""
        return self.members & ~self.stops

    @property
    def stops(self) -> jax.Array:
        """(N + 1, k) bool: the last model of each cascade, which answers or abstains."""
        return np.arange(self.members.shape[-1]) == self.last[:, None]


def make_plan(cascades: Sequence[tuple[int, ...]], k: int) -> CascadePlan:
    """Build the plan of distinct cascades, each of rising positions among k models."""
    all_models = tuple(sorted({j for cascade in cascades for j in cascade}))
    all_suffixes = {cascade[i:] for cascade in cascades for i in range(len(cascade))}
    suffixes = sorted(all_suffixes, key=lambda suffix: (len(suffix), -suffix[0], suffix))
    numbers = number_pairs(k)
    used = sorted({link for cascade in [*cascades, all_models] for link in itertools.pairwise(cascade)})
    row, column = ({item: index for index, item in enumerate(items)} for items in (suffixes, used))
    steps = _pad(
        [(row[suffix], row[suffix[1:]], column[suffix[:2]]) for suffix in suffixes if len(suffix) > 1],
        2**k - 1 - k,
        (len(suffixes), len(suffixes), 0),
    )
    suffix_first = _pad([*(suffix[0] for suffix in suffixes), 0], 2**k, 0, 2 * _MIN_SIZE)
    padded = [*_pad(list(cascades), 2**k - 1, cascades[0]), all_models]
    cut_steps = np.full((len(suffix_first), k), -1)
    step_of_suffix = {suffix: step for step, (suffix, *_) in enumerate(steps)}
    for suffix in suffixes:
        cut_steps[row[suffix], list(suffix[:-1])] = [step_of_suffix[row[suffix[i:]]] for i in range(len(suffix) - 1)]
    indices = [int(numbers[pair]) for pair in _pad(used, k * (k - 1) // 2, used[0] if used else None)]
    links = np.zeros((len(padded), len(indices)), bool)
    for number, cascade in enumerate(padded):
        links[number, [column[link] for link in itertools.pairwise(cascade)]] = True
    arrays = {
        "members": np.array([[j in cascade for j in range(k)] for cascade in padded]),
        "links": links,
        "first": np.array([cascade[0] for cascade in padded]),
        "last": np.array([cascade[-1] for cascade in padded]),
        "suffixes": np.array([row[cascade] for cascade in padded[:-1]]),
        "suffix_first": np.array(suffix_first),
        "steps": np.array(steps, int).reshape(-1, 3),
        "count": np.array(sum(len(suffix) > 1 for suffix in suffixes)),
        "cut_steps": cut_steps,
        "pairs": np.array(indices, int),
        "has_all_prefixes": np.array({cascade[:-1] for cascade in cascades if len(cascade) > 1} <= set(cascades)),
    }
    return CascadePlan(**jax.device_put(arrays))


def plan_cascades(models: tuple[str, ...], cascades: CascadeSet) -> CascadePlan | None:
    """Build the plan of a search of `solve_frontier` over some models; None for adaptive policies."""
    positions = list_cascades(models, cascades)
    return None if positions is None else make_plan(positions, len(models))


def list_cascades(models: tuple[str, ...], cascades: CascadeSet) -> list[tuple[int, ...]] | None:
    """Return the positions of the models of each cascade of a search; None for adaptive policies.

    >>> list_cascades(("small", "large"), "all"), list_cascades(("small", "large"), ("small", "large"))
    ([(0,), (1,), (0, 1)], [(0, 1)])
    """
    k = len(models)
    everything = tuple(range(k))
    if isinstance(cascades, str):
        if cascades == "adaptive":
            return None
        if cascades == "full":
            return [everything]
        if cascades != "all":
            raise ValueError(f"cascades is {cascades!r}; it is 'all', 'full', 'adaptive' or a list of cascades")
        if k > _MAX_MODELS:
            advice = "name fewer models (--models), search 'adaptive' (--cascade adaptive), or list cascades (Python)"
            raise ValueError(f"{k} models have {2**k - 1:,} subcascades: {advice}")
        return [part for size in range(1, k + 1) for part in itertools.combinations(everything, size)]
    is_one = all(isinstance(name, str) for name in cascades)  # the models of one cascade
    listed: Any = [cascades] * bool(cascades) if is_one else cascades
    positions = [check_cascade(models, (names,) if isinstance(names, str) else names) for names in listed]
    if not positions:
        raise ValueError("cascades is empty: name at least one cascade")
    return list(dict.fromkeys(positions))


def _pad(items: list, most: int, padding: Any, least: int = _MIN_SIZE) -> list:
    """Pad a list to the next power of two, `most` at most, so that few sizes occur."""
    size = min(most, max(least, 1 << (len(items) - 1).bit_length())) if items else 0
    return items + [padding] * (size - len(items))


_ROUNDS = 8  # most rounds of a search: nearly all λ are done after the first

#: Cuts, in u, that give the densities of the first two rounds: all queries reach every model, or only unsure queries.
_FIRST_CUTS = (1.0, 0.2)

#: Number of λ that share a round on the CPU. After the first round of a plan with many steps few λ are left.
_BATCH, _LATER_BATCH = 32, 8


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cut:
    """The rank above which a model answers, with a linear approximation of the value of deferring (or abstaining)."""

    u: jax.Array  # cut, on the scale of ranks
    worth: jax.Array  # value of deferring at the cut, in right answers
    slope: jax.Array  # derivative of that value, per unit of rank

    @classmethod
    def at(cls, u: ArrayLike) -> "Cut":
        """Make cuts at given ranks, with unknown values of deferring."""
        u = jnp.asarray(u)
        return cls(u, jnp.full_like(u, jnp.nan), jnp.zeros_like(u))


class SearchTables(NamedTuple):
    """The quadrature and the candidates of a search among cascades, which all λ share."""

    tables: QuadratureTables
    plan: CascadePlan
    abstain_worth: jax.Array | None = None  # () worth of an abstention, in right answers; None: models do not abstain


class AdaptiveTables(NamedTuple):
    """The quadrature of a search among adaptive policies, which all λ share."""

    tables: QuadratureTables
    abstain_worth: jax.Array | None = None  # as for `SearchTables`


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SearchState:
    """State and result of the search for the best cascade of each λ."""

    rounds: jax.Array  # (L,) rounds taken
    value: jax.Array  # (L,) value of the best cascade so far
    cascade: jax.Array  # (L,) number of the best cascade
    cut: Cut  # (L, k) cuts of the best cascade
    gain: jax.Array  # (L,) gain of the last round; 0 if the cascade is proven best
    done: jax.Array  # (L,) bool


def best_cascades(search: SearchTables, lam: jax.Array) -> SearchState:
    """Find the best cascade and its cuts for each λ (L,).

    Each round has two halves. A forward pass of the best cascade so far gives the density of the queries that reach
    each model. A backward pass over all suffixes of cascades chooses each cut under these densities.

    The advantage of answering over deferring nearly always grows with confidence. The best cut is then the same under
    any density. A λ is done if no other cascade can catch up under any density (`is_proven`), usually after one round.
    Otherwise rounds continue until a round gains nothing. The first two rounds start from the fixed densities of
    `_FIRST_CUTS`.
    """

    def improve(state: SearchState, batch: int) -> SearchState:
        if batch == lam.shape[0]:
            return _improve(search, lam, state)
        # The λ with the fewest rounds come first; the stable order keeps neighbours together.
        rows = jnp.argsort(state.rounds + _ROUNDS * state.done)[:batch]
        better = _improve(search, lam[rows], take_entries(state, rows))
        return jax.tree.map(lambda old, new: old.at[rows].set(new, unique_indices=True), state, better)

    # The start derives from λ, so that under `jax.shard_map` the loop's state varies over the same devices throughout.
    unknown, zeros = jnp.full_like(lam, -jnp.inf), jnp.zeros_like(lam, int)
    cuts = Cut.at(jnp.zeros_like(lam, shape=(*lam.shape, search.tables.cost.shape[0])))
    state = SearchState(zeros, unknown, zeros, cuts, -unknown, zeros > 0)
    batch = batch_size(lam.shape[0], _BATCH)
    if search.plan.steps.shape[0] > MANY_STEPS:
        state = lax.while_loop(lambda state: (state.rounds == 0).any(), partial(improve, batch=batch), state)
        batch = batch_size(lam.shape[0], _LATER_BATCH)
    return lax.while_loop(lambda state: ~state.done.all(), partial(improve, batch=batch), state)


def batch_size(count: int, most: int) -> int:
    """Return the number of λ per round: on the CPU few, so that their integrands fit into its caches; elsewhere all."""
    return min(count, most) if jax.default_backend() == "cpu" else count


def _improve(search: SearchTables, lam: jax.Array, state: SearchState) -> SearchState:
    """Take another round for every λ (L,)."""
    tables, plan, _ = search

    def arriving(cascade: jax.Array, cut: Cut) -> jax.Array:
        below = jax.vmap(QuadratureGrid.weights_below)(tables.grid, cut.u)[tables.left]
        density = arrival_densities(tables, plan.first[cascade], plan.links[cascade][:, None] * below)
        # Models that no query reaches get the cut for a uniform density: a neighbouring λ may start from it.
        is_reached = plan.members[cascade] & ((tables.grid.weight * density).sum(1) > jnp.finfo(lam.dtype).eps)
        return jnp.where(is_reached[:, None], density, 1.0)

    starting = state.rounds < len(_FIRST_CUTS)
    cascade = jnp.where(starting, plan.all_models, state.cascade)
    first_cut = jnp.asarray(_FIRST_CUTS, lam.dtype)[state.rounds]
    u = jnp.where(starting[:, None], first_cut[:, None], state.cut.u)
    best = _best_for_densities(search, lam, jax.vmap(arriving)(cascade, Cut.at(u)))
    gain = best.value - state.value
    # The new cascade wins a tie up to rounding: its cuts are closer to convergence.
    is_accepted = gain > -64 * jnp.finfo(lam.dtype).eps
    value, cascade, cut = jax.tree.map(
        lambda new, old: jnp.where(is_accepted.reshape(-1, *[1] * (new.ndim - 1)), new, old),
        (best.value, best.cascade, best.cut),
        (state.value, state.cascade, state.cut),
    )
    gain = jnp.where(best.proven, 0.0, gain)
    rounds = state.rounds + 1
    # At least one round uses the densities of the best cascade.
    settled = (rounds > len(_FIRST_CUTS)) & ~(gain > gain_tolerance(lam.dtype))
    return SearchState(rounds, value, cascade, cut, gain, best.proven | settled | (rounds >= _ROUNDS))


def gain_tolerance(dtype: DTypeLike) -> float:
    """Return the gain above which another round follows: a round gains about the square of the last gain."""
    return max(1e-8, 64 * float(jnp.finfo(dtype).eps))


def cuts_of_cascades(search: SearchTables, lam: jax.Array) -> Cut:
    """Choose the cuts of all N cascades at every λ (L,), by one backward pass: (N, L, k).

    Cuts are chosen as if all queries reached every model. They are optimal if the advantage of answering
    over deferring grows with confidence.
    """
    uniform = jnp.ones((lam.shape[0], *search.tables.grid.u.shape), lam.dtype)
    solved = _backward(search, lam, uniform)
    step = search.plan.cut_steps[search.plan.suffixes]
    stopping = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(step), *lam.shape, *leaf.shape)), solved.stop)
    if solved.cuts is None:
        return stopping
    chosen = jax.tree.map(lambda leaf: jnp.moveaxis(leaf[step], 1, -1), solved.cuts)
    return jax.tree.map(partial(jnp.where, (step >= 0)[:, None]), chosen, stopping)


class _BestCascades(NamedTuple):
    """The best cascade of each λ under given densities."""

    value: jax.Array  # (L,)
    cascade: jax.Array  # (L,) number of the cascade
    cut: Cut  # (L, k)
    proven: jax.Array  # (L,) bool: no other cascade is better, whatever its cuts


def _best_for_densities(search: SearchTables, lam: jax.Array, density: jax.Array) -> _BestCascades:
    """Find the best cascade under given densities (L, k, G), by one backward pass."""
    tables, plan, _ = search
    solved = _backward(search, lam, density)
    cut = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*lam.shape, *leaf.shape)), solved.stop)
    values = solved.integrands.sum(-1)[plan.suffixes] - lam * tables.cost[plan.first[:-1]][:, None]
    best = jnp.argmax(values, axis=0)
    if solved.cuts is None:
        return _BestCascades(values.max(0), best, cut, jnp.ones(lam.shape, bool))
    step = plan.cut_steps[plan.suffixes[best]]
    chosen = take_entries(solved.cuts, (step, jnp.arange(lam.shape[0])[:, None]))
    cut = jax.tree.map(partial(jnp.where, step >= 0), chosen, cut)
    return _BestCascades(values.max(0), best, cut, is_proven(values, solved.possible_gain, plan))


class _Suffixes(NamedTuple):
    """The solutions of all suffixes of cascades, from a backward pass."""

    integrands: jax.Array  # (E, L, G) weighted value at each node of a suffix's first model
    stop: Cut  # (k,) cuts of last models
    cuts: Cut | None  # (S, L) cuts of the steps; None without steps
    possible_gain: jax.Array  # (S, L) gain of the best cut under any density, at most


def _backward(search: SearchTables, lam: jax.Array, density: jax.Array) -> _Suffixes:
    """Take the backward pass over all suffixes of cascades, choosing cuts under the densities (L, k, G)."""
    tables, plan, abstain_worth = search
    most = _bound_densities(tables)

    def defer(number: jax.Array, solved: _Suffixes) -> _Suffixes:
        integrands, stop, cuts, possible_gain = solved
        suffix, later, pair = plan.steps[number]
        j = tables.left[pair]
        grid = take_entries(tables.grid, j)
        added = lam * tables.cost[tables.right[pair]]
        after = lax.dynamic_index_in_dim(integrands, later, keepdims=False)
        deferring = after @ tables.kernel[pair].T - added[:, None]
        cut, gain = jax.vmap(partial(best_cut, grid))(deferring, density[:, j])
        value = grid.weight * grid.quantile + jax.vmap(grid.weights_below)(cut.u) * (deferring - grid.quantile)
        cuts, possible_gain = jax.tree.map(
            lambda stored, new: lax.dynamic_update_index_in_dim(stored, new, number, 0),
            (cuts, possible_gain),
            (cut, gain @ (grid.weight * most[j])),
        )
        return _Suffixes(lax.dynamic_update_index_in_dim(integrands, value, suffix, 0), stop, cuts, possible_gain)

    zero_cuts = jnp.zeros_like(tables.cost)
    answering, stop = tables.grid.weight * tables.grid.quantile, Cut(zero_cuts, zero_cuts, zero_cuts)
    if abstain_worth is not None:
        stop = jax.vmap(partial(_stopping_cut, abstain_worth))(tables.grid)
        below = jax.vmap(QuadratureGrid.weights_below)(tables.grid, stop.u)
        answering += below * (abstain_worth - tables.grid.quantile)
    shape = *plan.suffix_first.shape, *lam.shape, answering.shape[-1]
    integrands = jnp.broadcast_to(answering[plan.suffix_first, None], shape)
    zeros = jnp.zeros_like(lam, shape=(plan.steps.shape[0], *lam.shape))
    if not plan.steps.shape[0]:
        return _Suffixes(integrands, stop, None, zeros)
    # Accelerators take the padded steps too, which write to an unused row: a dynamic number asks the host every turn.
    steps = plan.count if jax.default_backend() == "cpu" else plan.steps.shape[0]
    return lax.fori_loop(0, steps, defer, _Suffixes(integrands, stop, Cut(zeros, zeros, zeros), zeros))


def _bound_densities(tables: QuadratureTables) -> jax.Array:
    """Bound the density of the queries that reach each model from above: (k, G).

    The first model's density is 1, and a later model's is a mean of its kernels' rows.
    """
    reached = jnp.ones_like(tables.grid.u)
    return reached.at[tables.right].max(tables.kernel.max(1)) if tables.left.size else reached


def is_proven(values: jax.Array, possible_gain: jax.Array, plan: CascadePlan) -> jax.Array:
    """Return whether the best cascade stays the best, whatever cuts the other cascades have: (L,).

    A cascade of value `values` (N, L) gains at most the sum of its steps' `possible_gain` (S, L): the gain of reversing
    wrong decisions under the greatest density. Kakade & Langford (2002), "Approximately optimal approximate
    reinforcement learning", lemma 6.1.
    """
    steps = plan.cut_steps[plan.suffixes]
    gains = jnp.where((steps >= 0)[..., None], possible_gain[steps], 0.0).sum(1)
    rounding = 64 * jnp.finfo(values.dtype).eps
    return ((gains <= rounding) | (values + gains < values.max(0))).all(0)


def best_cut(grid: QuadratureGrid, deferring: jax.Array, density: jax.Array) -> tuple[Cut, jax.Array]:
    """Choose the cut with the greatest total value, and return it with the gain of reversing each decision (G,).

    The cut is the best cell edge under the density (G,) of arriving queries, moved to where the advantage of answering
    over `deferring` (G,) crosses zero between the edge's two nodes.
    """
    advantage = grid.quantile - deferring
    edge = _best_edge(grid, advantage, density)
    u = find_crossing(grid, advantage, edge)
    beside = _nodes_beside(grid, edge)
    ranks, worth = grid.u[beside], deferring[beside]
    slope = divide(worth[1] - worth[0], ranks[1] - ranks[0])
    answers = np.arange(advantage.shape[0]) >= edge
    gain_of_reversal = jnp.maximum(jnp.where(answers, -advantage, advantage), 0.0)
    return Cut(u, worth[0] + slope * (u - ranks[0]), slope), gain_of_reversal


def _best_edge(grid: QuadratureGrid, advantage: jax.Array, density: jax.Array) -> jax.Array:
    """Find the first cell edge above which the advantage (G,) has the largest sum under the density (G,)."""
    # Without the barrier XLA computes the sums again with other rounding, and none equals their maximum.
    total = lax.optimization_barrier(_sums_above(grid, grid.weight * advantage * density))
    # `argmax` takes XLA three times as long.
    return jnp.min(jnp.where(total == total.max(), np.arange(total.shape[0]), total.shape[0] - 1))


def _sums_above(grid: QuadratureGrid, values: jax.Array) -> jax.Array:
    """Sum of the values (G,) above each cell edge, within and over panels, by triangular matrices: (G + 1,).

    XLA takes longer to compile a cumulative sum than the rest of this module.
    """
    panels = grid.starts.shape[0]
    last = 1 if len(grid.mass_indices) == 2 else 0  # number of values behind all panels
    inside = values[1 : values.shape[0] - last].reshape(panels, -1)
    inside = inside @ np.tri(inside.shape[1], dtype=values.dtype)
    later = inside[:, 0] @ np.tri(panels, k=-1, dtype=values.dtype)
    if last:
        later += values[-1]
    above = (inside + later[:, None]).reshape(-1)
    behind = [values[-1:]] if last else []
    return jnp.concatenate([(values[0] + above[0])[None], above, *behind, jnp.zeros_like(values[:1])])


def _stopping_cut(abstain_worth: jax.Array, grid: QuadratureGrid) -> Cut:
    """Choose the cut of a last model: it abstains on queries whose confidence is below the worth of an abstention."""
    abstaining = jnp.full_like(grid.u, abstain_worth)
    cut, _ = best_cut(grid, abstaining, jnp.ones_like(grid.u))
    return Cut(cut.u, abstain_worth.astype(cut.u.dtype), jnp.zeros_like(cut.u))


def _nodes_beside(grid: QuadratureGrid, edge: jax.Array) -> jax.Array:
    """Return the indices of the nodes on both sides of a cell's edge: (2,)."""
    return jnp.clip(edge, 1, grid.u.shape[0] - 1) + np.array([-1, 0])


def find_crossing(grid: QuadratureGrid, advantage: jax.Array, edge: jax.Array) -> jax.Array:
    """Interpolate the zero of `advantage` between the nodes beside a cell's edge; beside a mass, return the edge."""
    beside = _nodes_beside(grid, edge)
    ranks, (before, after) = grid.u[beside], advantage[beside]
    smooth = (edge >= 2) & (edge <= grid.u.shape[0] - 2) & (before * after < 0)
    inner = grid.mass_indices[1:-1]
    if inner.size:
        atom = jnp.zeros(grid.u.shape, bool).at[inner].set(grid.weight[inner] > 0)
        smooth &= ~atom[beside].any()
    zero = ranks[0] + divide(before, before - after) * (ranks[1] - ranks[0])
    return jnp.where(smooth, zero, grid.edges[edge])
