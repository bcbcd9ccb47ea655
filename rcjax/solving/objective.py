"""Thresholds → error and cost: the objective of a cascade, in u-space.

With u_j = F_j(φ_j), the queries that reach model j have a density a_j over u (the first model's is 1), model i
answers where u > u_i, and the rest go on to j:

    a_j(v) = ∫₀^{u_i} c_ij(u, v) a_i(u) du
    P(correct) = Σ_j ∫_{u_j}^1 Q_j(v) a_j(v) dv        E[cost] = Σ_j cost_j ∫₀¹ a_j

On the nodes of `quadrature` that is one product of a vector and a matrix for each step of the cascade. Section 4.3 of
Zellinger & Thomson (2025) has the same objective with a shorter memory (their eq. 5 and proposition 2), which is
`chain="paper"`.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from rcjax._core.batching import part
from rcjax._core.compilation import in_full
from rcjax._core.numerics import divide
from rcjax._core.signatures import is_traced
from rcjax._core.size_classes import fill_up
from rcjax.copulas import Copula
from rcjax.frontier.outcomes import ErrorAndCost, ErrorCostAbstention, Outcomes
from rcjax.frontier.policies import ALWAYS_ANSWER
from rcjax.frontier.searches import Chain, check_cascade
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.marginals import Marginal
from rcjax.model.pairs import pairs
from rcjax.solving.quadrature import Grid, build_grid

#: Rows of thresholds that are evaluated at a time, few or many: fewer are filled up, which saves compiling for each
#: number of rows; of the many, the integrands of a piece fit into a CPU's caches.
_FEW, _MANY = 16, 384


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tables:
    """A model laid out on quadrature nodes: all that the objective and the frontier evaluate."""

    grid: Grid  # leading axis k
    left: jax.Array  # (P,) the models i of the pairs that are laid out, earlier ones first
    right: jax.Array  # (P,) and j > i
    copulas: Any  # Copula with leading axis P; None where chain="exact", which needs the kernel alone
    kernel: jax.Array  # (P, G, G) density of model j's nodes given model i's node
    cost: jax.Array  # (k,)


def build_tables(
    marginals: Marginal, copulas: Copula, cost: jax.Array, left: Any, right: Any, panels: int | None = None
) -> Tables:
    """Grids of all models, and the transition kernels of pairs of models.

    Args:
        marginals: (k,) of the models.
        copulas: (P,) of the pairs.
        cost: (k,) money per answer.
        left, right: (P,) the models of each pair, by position.
        panels: of each grid; by default as `quadrature` has them.
    """
    grid = jax.vmap(partial(build_grid, panels=panels))(marginals)
    left, right = jnp.asarray(left, int), jnp.asarray(right, int)
    kernel = jax.vmap(transition)(copulas, part(grid, left), part(grid, right))
    return Tables(grid, left, right, copulas, kernel, cost)


def transition(copula: Copula, source: Grid, target: Grid) -> jax.Array:
    """(G, G) density at the target's nodes given the source's node; rows integrate to 1 with the target's weights.

    From the conditional cdf h(v given u) on the edges of the target's cells. Given that the source sits in a point
    mass, h is averaged over the mass, which the cdf does exactly: (C(b, v) − C(a, v)) / (b − a).
    """
    v, masses = target.edges[1:-1], source.masses
    left, right = source.edges[masses][:, None], source.edges[masses + 1][:, None]
    rows = copula.conditional(source.u[:, None], v)
    below = copula.cdf(jnp.concatenate([right[:-1], left[1:]]), v)
    up_to, before = below[: len(masses) - 1], below[len(masses) - 1 :]
    above = jnp.concatenate([up_to, v[None]]) - jnp.concatenate([jnp.zeros_like(v)[None], before])
    means = divide(above, right - left, otherwise=rows[masses])
    if len(masses) == 2:
        cumulative = jnp.concatenate([means[:1], rows[1:-1], means[1:]])
    else:
        cumulative = rows.at[masses].set(means, unique_indices=True, indices_are_sorted=True)
    return target.density(jnp.pad(cumulative, ((0, 0), (1, 1)), constant_values=((0, 0), (0.0, 1.0))))


def truncated_transition(copula: Copula, u: jax.Array, target: Grid) -> jax.Array:
    """(G,) density at the target's nodes given that the source's rank is at most u: ∂ᵥ C(u, v) / u."""
    v = target.edges[1:-1]
    positive = u > 0
    safe = jnp.where(positive, u, 0.5)
    cumulative = jnp.where(positive, copula.cdf(safe, v) / safe, copula.conditional(jnp.zeros_like(u), v))
    return target.density(jnp.pad(cumulative, 1, constant_values=(0.0, 1.0)))


def arrivals(tables: Tables, first: jax.Array, deferred: jax.Array, law: jax.Array) -> jax.Array:
    """The density a_j (k, G) of the queries that reach each model, over the nodes of its grid.

    Args:
        tables: the quadrature of the model.
        first: () the model asked first.
        deferred: (P, G) the part of each node's weight that model i passes on to model j.
        law: what model j sees: the kernels (P, G, G), by the confidence of model i, or one density (P, G) given only
            that i deferred.
    """

    def pass_on(density: jax.Array, link: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        i, j, part_of_weight, density_after = link
        passed = part_of_weight * density[i]
        reached = passed @ density_after if density_after.ndim == 2 else passed.sum() * density_after
        return density.at[j].add(reached), None

    starting = jnp.arange(tables.cost.shape[0]) == first
    # Like what is passed on, so that under `jax.shard_map` both vary over the same devices.
    start = starting[:, None] * jnp.ones_like(deferred, shape=deferred.shape[-1:])
    return lax.scan(pass_on, start, (tables.left, tables.right, deferred, law))[0]


def tally(tables: Tables, density: jax.Array, answered: jax.Array, refused: jax.Array | None = None) -> Outcomes:
    """What is expected of a query, from the densities of those that reach each model.

    Args:
        tables: the quadrature of the model.
        density: (k, G) the densities a_j.
        answered: (k, G) the part of each node's weight that is answered.
        refused: (k, G) the part that is refused; None where no model may refuse.
    """
    correct = (answered * tables.grid.quantile * density).sum()
    cost = tables.cost @ (tables.grid.weight * density).sum(-1)
    unanswered = jnp.zeros_like(correct) if refused is None else (refused * density).sum()
    return Outcomes(1 - correct - unanswered, cost, unanswered)


def evaluate(
    tables: Tables,
    u: jax.Array,
    links: jax.Array,
    first: jax.Array,
    *,
    chain: Chain = "exact",
    above: jax.Array | None = None,
    refused: jax.Array | None = None,
) -> Outcomes:
    """What is expected of a query by a cascade: model i answers above its cut, the rest go to its link.

    Under the paper's factorisation (eq. 5, proposition 2) the law of Φ_j is taken to depend on Φ_i ≤ φ_i alone, whoever
    was asked before: a_j(v) = P(i is reached and defers) · ∂ᵥC_ij(u_i, v)/u_i. Scalar in u: `vmap` it over λ.

    Args:
        tables: the quadrature of the model.
        u: (k,) the cuts, on the scale of ranks; the last model of the cascade has 0.
        links: (P,) whether i defers to j, for the pairs (i, j).
        first: () the model asked first.
        chain: "exact", or "paper" for the paper's factorisation.
        above: (k,) E[Φ_j; Φ_j > φ_j] in closed form; it stands in for the quadrature of Q over the panel that the
            threshold cuts.
        refused: (k,) at most u: model i gives no answer up to here; the last model has the two equal.
    """
    flows = flow(tables, u, links, first, chain=chain, refused=refused)
    expected = tally(tables, flows.density, flows.answered, flows.refused)
    if above is None:
        return expected
    return expected._replace(wrong=expected.wrong - missed(tables, u, flows, above).sum())


class Flows(NamedTuple):
    """Where queries go: arrays (k, G) over the nodes of each model."""

    density: jax.Array  # the densities a_j of those that reach each model
    answered: jax.Array  # the part of each node's weight that is answered
    refused: jax.Array | None  # the part that is refused; None where no model may refuse


def flow(
    tables: Tables,
    u: jax.Array,
    links: jax.Array,
    first: jax.Array,
    *,
    chain: Chain = "exact",
    refused: jax.Array | None = None,
) -> Flows:
    """Who reaches each model of a cascade, and what becomes of them there.

    Args:
        tables, u, links, first, chain, refused: as of `evaluate`.
    """
    below = jax.vmap(Grid.below)(tables.grid, u)
    below_refused = None if refused is None else jax.vmap(Grid.below)(tables.grid, refused)
    passed = below if below_refused is None else below - below_refused
    if chain == "paper":
        law = jax.vmap(truncated_transition)(tables.copulas, u[tables.left], part(tables.grid, tables.right))
    else:
        law = tables.kernel
    density = arrivals(tables, first, links[:, None] * passed[tables.left], law)
    return Flows(density, tables.grid.weight - below, below_refused)


def missed(tables: Tables, u: jax.Array, flows: Flows, above: jax.Array) -> jax.Array:
    """(k,) what the quadrature of Q over the panel that a threshold cuts leaves out of right answers of each model.

    Args:
        tables: the quadrature of the model.
        u: (k,) the cuts.
        flows: who reaches each model.
        above: (k,) E[Φ_j; Φ_j > φ_j] in closed form.
    """
    missing = above - (flows.answered * tables.grid.quantile).sum(-1)
    return missing * jax.vmap(lambda grid, cut, values: grid.at(cut) @ values)(tables.grid, u, flows.density)


@overload
def error_and_cost(
    model: CascadeModel,
    thresholds: jax.Array,
    cascade: Sequence[str] | None = None,
    *,
    chain: Chain = "exact",
    refusals: jax.Array | None = None,
) -> ErrorAndCost: ...


@overload
def error_and_cost(
    model: CascadeModel,
    thresholds: jax.Array,
    cascade: Sequence[str] | None = None,
    *,
    chain: Chain = "exact",
    refusals: jax.Array,
) -> ErrorCostAbstention: ...


def error_and_cost(
    model: CascadeModel,
    thresholds: jax.Array,
    cascade: Sequence[str] | None = None,
    *,
    chain: Chain = "exact",
    refusals: jax.Array | None = None,
) -> ErrorAndCost | ErrorCostAbstention:
    """(error probability, expected cost per query) that the model predicts for a cascade at given thresholds.

    A query is answered by model j where Φ_j > φ_j, and by the last one else. Leading axes are batched. Pure, jittable,
    and differentiable in the thresholds and in every array of the model (not in thresholds outside (φ_min, φ_max),
    where nothing changes). Money as in `model.cost`.

    Args:
        model: the fitted model, of k models.
        thresholds: (…, m) calibrated confidence: one for each of the m models of the cascade, in the order asked (the
            last one's is ignored: it always answers), or for each but the last; or (…, k), one for each of the models,
            in the order of `model.models` (a row of `Frontier.thresholds`).
        cascade: the names of its models, in the order asked; by default all.
        chain: "paper" forgets, as the paper does, all but the last deferral.
        refusals: (…, m) or (…, k), in the same orders: up to this confidence a model refuses to answer, the last one
            included. A threshold below its refusal counts as equal to it. The result then is (probability of a wrong
            answer, cost, probability of no answer).

    Raises ValueError for unknown models, an order that is not the model's, or a wrong number of thresholds or refusals.

    >>> import rcjax
    >>> model = rcjax.fit(rcjax.sample_log(300, seed=0))
    >>> error, cost = error_and_cost(model, jnp.array([0.6]), ("llama3.2-1b", "llama3.1-70b"))
    >>> bool(0 < error < 1), bool(model.cost[0] < cost)
    (True, True)
    >>> pair, refusals = ("llama3.2-1b", "llama3.1-70b"), jnp.array([0.0, 0.5])
    >>> fewer, same, refused = error_and_cost(model, jnp.array([0.6]), pair, refusals=refusals)
    >>> bool(fewer < error < fewer + refused), bool(jnp.isclose(same, cost))
    (True, True)
    """
    members = check_cascade(model.models, model.models if cascade is None else cascade)
    if chain not in ("exact", "paper"):
        raise ValueError(f"chain is {chain!r}; it is 'exact' or 'paper'")
    k, m = len(model.models), len(members)
    columns = np.array(members)
    cuts = level_columns("thresholds", thresholds, {m - 1: np.arange(m - 1), m: np.arange(m - 1), k: columns[:-1]}, m)
    lowest = None if refusals is None else level_columns("refusals", refusals, {m: np.arange(m), k: columns}, m)
    neighbours = np.array([pairs(k).index(pair) for pair in itertools.pairwise(members)], int)
    levels = (thresholds, cuts), (refusals, lowest)
    whole = model.marginals, model.copulas, model.cost
    shape = np.broadcast_shapes(*(np.shape(array)[:-1] for array, _ in levels if array is not None))
    if is_traced(jax.tree.leaves((whole, thresholds, refusals))):
        arrays = _of_cascade(jnp, whole, levels, columns, neighbours)
        expected = jax.tree.map(lambda figure: figure.reshape(shape), _expected(*arrays, chain=chain))
    else:
        arrays = _of_cascade(np, jax.tree.map(np.asarray, whole), levels, columns, neighbours)
        figures = _in_pieces(*arrays, chain=chain)
        expected = jax.device_put(jax.tree.map(lambda figure: figure.reshape(shape), figures))
    return expected.figures(refusing=refusals is not None)


def level_columns(name: str, levels: ArrayLike, columns: dict[int, np.ndarray], m: int) -> np.ndarray:
    """Which columns of levels are those of the cascade; ValueError where none are.

    Args:
        name: of the levels, for the message.
        levels: (…, *) thresholds or refusals.
        columns: by how many columns there are, those of the cascade.
        m: how many models it has.
    """
    shape = np.shape(levels)
    count = shape[-1] if shape else -1
    if count not in columns:
        fewer = f"all but the last ({m - 1}), " if m - 1 in columns else ""
        raise ValueError(
            f"{name} has shape {shape}; its last axis must be the {m} models of the cascade, {fewer}or all "
            f"{max(columns)} models"
        )
    return columns[count]


def _of_cascade(
    module: Any, whole: tuple[Marginal, Copula, Any], levels: Sequence[Any], columns: np.ndarray, neighbours: np.ndarray
) -> tuple[Any, ...]:
    """What `_expected` takes of a cascade, by arrays of numpy's or jax's module.

    Args:
        module: numpy, or jax.numpy.
        whole: marginals (k,), copulas of all pairs, and costs (k,).
        levels: (thresholds (…, *), the columns of the cascade's), and the same of refusals, or (None, None).
        columns: (m,) the models of the cascade, by position.
        neighbours: (m − 1,) the pairs that follow one another in it.
    """
    marginals, copulas, cost = whole
    rows = [module.asarray(array, dtype=cost.dtype)[..., column] for array, column in levels if array is not None]
    shape = np.broadcast_shapes(*(array.shape[:-1] for array in rows))
    rows = [module.broadcast_to(array, (*shape, array.shape[-1])) for array in rows]
    rows = [array.reshape(math.prod(shape), array.shape[-1]) for array in rows]
    return part(marginals, columns), part(copulas, neighbours), cost[columns], *rows, *[None] * (2 - len(rows))


def _in_pieces(
    marginals: Marginal, copulas: Copula, cost: np.ndarray, cuts: np.ndarray, refusals: np.ndarray | None, chain: Chain
) -> Outcomes:
    """`_expected` of any number of rows by two programmes."""
    size = _FEW if len(cuts) <= _FEW else _MANY
    pieces = []
    for start in range(0, max(len(cuts), 1), size):
        piece = slice(start, start + size)
        n = len(cuts[piece])
        rows = [None if levels is None else fill_up(levels[piece], size=size)[0] for levels in (cuts, refusals)]
        expected = _expected(marginals, copulas, cost, *rows, chain)
        pieces.append([np.asarray(figure)[:n] for figure in expected])
    return Outcomes(*(np.concatenate(figures) for figures in zip(*pieces, strict=True)))


@partial(jax.jit, static_argnames="chain")
@in_full
def _expected(
    marginals: Marginal,
    copulas: Copula,
    cost: jax.Array,
    cuts: jax.Array,
    refusals: jax.Array | None,
    chain: Chain,
) -> Outcomes:
    """(n,) what is expected of a query by a cascade of m models.

    Args:
        marginals: (m,) of its models.
        copulas: (m − 1,) of those that follow one another.
        cost: (m,) money per answer.
        cuts: (n, m − 1) the thresholds of all but the last.
        refusals: (n, m) up to where models refuse, or None.
        chain: "exact", or "paper".
    """
    m = cost.shape[0]
    tables = build_tables(marginals, copulas, cost, np.arange(m - 1), np.arange(1, m))
    cuts = jnp.concatenate([cuts, jnp.full_like(cuts, ALWAYS_ANSWER, shape=(cuts.shape[0], 1))], axis=-1)
    if refusals is not None:
        cuts = jnp.maximum(cuts, refusals)

    def single(threshold: jax.Array, refusal: jax.Array | None) -> Outcomes:
        u, _, above = jax.vmap(Marginal.profile)(marginals, threshold)
        refused = None if refusal is None else jax.vmap(Marginal.cdf)(marginals, refusal)
        links, first = jnp.ones(m - 1, bool), jnp.zeros((), int)
        return evaluate(tables, u, links, first, chain=chain, above=above, refused=refused)

    return jax.vmap(single)(cuts, refusals)
