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
from collections.abc import Sequence
from functools import partial
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from rcjax._base.arguments import check_arguments
from rcjax._core.batching import part
from rcjax._core.numerics import divide
from rcjax.copulas import Copula
from rcjax.frontier.outcomes import ErrorAndCost, ErrorCostAbstention, Outcomes
from rcjax.frontier.policies import ALWAYS_ANSWER
from rcjax.frontier.searches import Chain, check_cascade
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.marginals import Marginal
from rcjax.model.pairs import pairs
from rcjax.solving.quadrature import Grid, build_grid


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
    v, ends = target.edges[1:-1], source.edges[np.array([1, -2])][:, None]
    rows = copula.conditional(source.u[:, None], v)
    below = copula.cdf(ends, v)
    low = divide(below[0], ends[0], otherwise=rows[0])
    high = divide(v - below[1], 1 - ends[1], otherwise=rows[-1])
    cumulative = jnp.concatenate([low[None], rows[1:-1], high[None]])
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
    start = starting[:, None] * jnp.ones(deferred.shape[-1], deferred.dtype)
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
    below = jax.vmap(Grid.below)(tables.grid, u)
    below_refused = None if refused is None else jax.vmap(Grid.below)(tables.grid, refused)
    passed = below if below_refused is None else below - below_refused
    if chain == "paper":
        law = jax.vmap(truncated_transition)(tables.copulas, u[tables.left], part(tables.grid, tables.right))
    else:
        law = tables.kernel
    density = arrivals(tables, first, links[:, None] * passed[tables.left], law)
    answered = tables.grid.weight - below
    expected = tally(tables, density, answered, below_refused)
    if above is None:
        return expected
    missing = above - (answered * tables.grid.quantile).sum(-1)
    right = missing @ jax.vmap(lambda grid, cut, values: grid.at(cut) @ values)(tables.grid, u, density)
    return expected._replace(wrong=expected.wrong - right)


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
    check_arguments(error_and_cost, locals())
    members = check_cascade(model.models, model.models if cascade is None else cascade)
    if chain not in ("exact", "paper"):
        raise ValueError(f"chain is {chain!r}; it is 'exact' or 'paper'")
    k, m = len(model.models), len(members)
    thresholds = jnp.asarray(thresholds, dtype=model.cost.dtype)
    count = thresholds.shape[-1] if thresholds.ndim else -1
    if count == m - 1:
        cuts = thresholds
    elif count == m:
        cuts = thresholds[..., :-1]
    elif count == k:
        cuts = thresholds[..., np.array(members[:-1], int)]
    else:
        raise ValueError(
            f"thresholds has shape {thresholds.shape}; its last axis must be the {m} models of the cascade, all but "
            f"the last ({m - 1}), or all {k} models"
        )
    cuts = jnp.concatenate([cuts, jnp.full_like(cuts, ALWAYS_ANSWER, shape=(*cuts.shape[:-1], 1))], axis=-1)
    if refusals is not None:
        refusals = _refusals(refusals, members, k, model.cost.dtype)
        cuts, refusals = jnp.broadcast_arrays(jnp.maximum(cuts, refusals), refusals)
    expected = _error_and_cost(model.marginals, model.copulas, model.cost, cuts, refusals, members, chain)
    return expected.figures(refusing=refusals is not None)


def _refusals(levels: ArrayLike, members: tuple[int, ...], k: int, dtype: Any) -> jax.Array:
    """(…, m) those of the members."""
    refusals = jnp.asarray(levels, dtype=dtype)
    count = refusals.shape[-1] if refusals.ndim else -1
    if count not in (len(members), k):
        raise ValueError(
            f"refusals has shape {refusals.shape}; its last axis must be the {len(members)} models of the cascade, or "
            f"all {k} models"
        )
    return refusals if count == len(members) else refusals[..., np.array(members)]


@partial(jax.jit, static_argnames=("members", "chain"))
def _error_and_cost(
    marginals: Marginal,
    copulas: Copula,
    cost: jax.Array,
    cuts: jax.Array,
    refusals: jax.Array | None,
    members: tuple[int, ...],
    chain: Chain,
) -> Outcomes:
    k, m = cost.shape[0], len(members)
    place = {pair: p for p, pair in enumerate(pairs(k))}
    used = np.array([place[pair] for pair in itertools.pairwise(members)], int)
    marginals, copulas = part(marginals, np.array(members)), part(copulas, used)
    tables = build_tables(marginals, copulas, cost[np.array(members)], np.arange(m - 1), np.arange(1, m))

    def single(threshold: jax.Array, refusal: jax.Array | None) -> Outcomes:
        u, _, above = jax.vmap(Marginal.profile)(marginals, threshold)
        refused = None if refusal is None else jax.vmap(Marginal.cdf)(marginals, refusal)
        links, first = jnp.ones(m - 1, bool), jnp.zeros((), int)
        return evaluate(tables, u, links, first, chain=chain, above=above, refused=refused)

    flat = jax.tree.map(lambda array: array.reshape(-1, m), (cuts, refusals))
    return jax.tree.map(lambda figure: figure.reshape(cuts.shape[:-1]), jax.vmap(single)(*flat))
