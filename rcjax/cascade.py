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
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._numerics import divide
from rcjax.copulas import Copula
from rcjax.joint import CascadeModel, pairs
from rcjax.marginals import Marginal
from rcjax.quadrature import Grid, build_grid

Chain = Literal["exact", "paper"]

#: Thresholds of a model that answers everything, and of one that answers nothing.
ALWAYS_ANSWER, NEVER_ANSWER = 0.0, 1.0
_ULPS = 16


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tables:
    """A model laid out on quadrature nodes: all that the objective and the frontier evaluate."""

    grid: Grid  # leading axis k
    copulas: Copula  # leading axis pairs
    kernel: jax.Array  # (pairs, G, G) density of model j's nodes given model i's node
    cost: jax.Array  # (k,)


def build_tables(marginals: Marginal, copulas: Copula, cost: jax.Array, chosen: Sequence[tuple[int, int]]) -> Tables:
    """Grids of all models, and the transition kernels of the chosen pairs (i, j), whose copulas are given in order."""
    grid = jax.vmap(build_grid)(marginals)
    left, right = np.array(chosen, int).reshape(-1, 2).T
    kernel = jax.vmap(transition)(copulas, part(grid, left), part(grid, right))
    return Tables(grid, copulas, kernel, cost)


def transition(copula: Copula, source: Grid, target: Grid) -> jax.Array:
    """(G, G) density at the target's nodes given the source's node; rows integrate to 1 with the target's weights.

    From the conditional cdf h(v given u) on the edges of the target's cells. Given that the source sits in a point
    mass, h is averaged over the mass, which the cdf does exactly: (C(b, v) − C(a, v)) / (b − a).
    """
    v = target.edges[1:-1]
    rows = copula.conditional(source.u[1:-1, None], v[None, :])
    bottom, top = source.edges[1], source.edges[-2]
    low = divide(copula.cdf(bottom, v), bottom, otherwise=copula.conditional(bottom, v))
    high = divide(v - copula.cdf(top, v), 1 - top, otherwise=copula.conditional(top, v))
    cumulative = jnp.concatenate([low[None], rows, high[None]])
    return target.density(jnp.pad(cumulative, ((0, 0), (1, 1)), constant_values=((0, 0), (0.0, 1.0))))


def truncated_transition(copula: Copula, u: jax.Array, target: Grid) -> jax.Array:
    """(G,) density at the target's nodes given that the source's rank is at most u: ∂ᵥ C(u, v) / u."""
    v = target.edges[1:-1]
    positive = u > 0
    safe = jnp.where(positive, u, 0.5)
    cumulative = jnp.where(positive, copula.cdf(safe, v) / safe, copula.conditional(jnp.zeros_like(u), v))
    return target.density(jnp.pad(cumulative, 1, constant_values=(0.0, 1.0)))


def part(tree: Any, place: Any) -> Any:
    """The entries of a batched pytree at a place (an index, slice or array) of its leading axis."""
    return jax.tree.map(lambda leaf: leaf[place], tree)


def arrivals(tables: Tables, chosen: Sequence[tuple[int, int]], first: jax.Array, deferred: Any) -> list[jax.Array]:
    """The density a_j (G,) of the queries that reach each model, by the exact recursion of the chain.

    `first` (k,) is 1 for the model asked first; `deferred[i, j]` (G,) holds the part of each node's weight that model
    i passes on to model j, for the chosen pairs (i, j), in the order of the kernels.
    """
    k, nodes = tables.grid.u.shape
    density = [first[j] * jnp.ones(nodes, tables.cost.dtype) for j in range(k)]
    for p, (i, j) in enumerate(chosen):
        density[j] = density[j] + (deferred[i, j] * density[i]) @ tables.kernel[p]
    return density


def paper_arrivals(
    tables: Tables, chosen: Sequence[tuple[int, int]], first: jax.Array, links: Any, u: jax.Array
) -> list[jax.Array]:
    """The density of the queries that reach each model under the paper's factorisation (eq. 5, proposition 2).

    Given that model i deferred, the law of Φ_j is taken to depend on Φ_i ≤ φ_i alone, whoever was asked before:
    a_j(v) = P(i is reached and defers) · ∂ᵥC_ij(u_i, v)/u_i.
    """
    k, nodes = tables.grid.u.shape
    density = [first[j] * jnp.ones(nodes, tables.cost.dtype) for j in range(k)]
    for p, (i, j) in enumerate(chosen):
        passed = part(tables.grid, i).below(u[i]) @ density[i]
        law = truncated_transition(part(tables.copulas, p), u[i], part(tables.grid, j))
        density[j] = density[j] + links[i, j] * passed * law
    return density


def tally(tables: Tables, density: Sequence[jax.Array], answered: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(error, cost) from the densities a_j and the part of each node's weight (k, G) that is answered."""
    reached = jnp.stack(density)
    correct = (answered * tables.grid.quantile * reached).sum()
    return 1 - correct, tables.cost @ (tables.grid.weight * reached).sum(-1)


def evaluate(
    tables: Tables,
    u: jax.Array,
    links: Any,
    first: jax.Array,
    *,
    chosen: Sequence[tuple[int, int]],
    chain: Chain = "exact",
    above: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """(error, cost) of one cascade with cuts u (k,) in u-space: model i answers above u_i, the rest go to its link.

    links (k, k) is 1 where i defers to j, first (k,) is 1 for the model asked first; the last model of the cascade has
    u = 0. Where `above` (k,) gives E[Φ_j; Φ_j > φ_j] in closed form, it stands in for the quadrature of Q over the
    panel that the threshold cuts. Scalar in u: `vmap` it over lambdas.
    """
    below = jax.vmap(lambda grid, cut: grid.below(cut))(tables.grid, u)
    if chain == "paper":
        density = paper_arrivals(tables, chosen, first, links, u)
    else:
        density = arrivals(tables, chosen, first, {(i, j): links[i, j] * below[i] for i, j in chosen})
    answered = tables.grid.weight - below
    error, cost = tally(tables, density, answered)
    if above is not None:
        missing = above - (answered * tables.grid.quantile).sum(-1)
        at_cut = jax.vmap(lambda grid, cut, values: grid.at(cut) @ values)(tables.grid, u, jnp.stack(density))
        error = error - missing @ at_cut
    return error, cost


def error_and_cost(
    model: CascadeModel,
    thresholds: jax.Array,
    cascade: Sequence[str] | None = None,
    *,
    chain: Chain = "exact",
) -> tuple[jax.Array, jax.Array]:
    """(error probability, expected cost per query) that the model predicts for a cascade at given thresholds.

    thresholds (…, m) in calibrated confidence: one for each of the m models of the cascade (the last one's is
    ignored: it always answers), or for each but the last, or one for each of the k models of `model` (a row of
    `Frontier.thresholds`). A query is answered by model j where Φ_j > φ_j. `cascade` names the models in the order
    asked, by default all; `chain="paper"` forgets, as the paper does, all but the last deferral. Leading axes are
    batched. Pure, jittable, and differentiable in the thresholds and in every array of the model (not in thresholds
    outside (φ_min, φ_max), where nothing changes). Money as in `model.cost`.

    Raises ValueError for unknown models, an order that is not the model's, or a wrong number of thresholds.

    >>> import rcjax
    >>> model = rcjax.fit(rcjax.sample_log(500, seed=0))
    >>> error, cost = error_and_cost(model, jnp.array([0.6]), ("llama3.2-1b", "llama3.1-70b"))
    >>> bool(0 < error < 1), bool(model.cost[0] < cost)
    (True, True)
    """
    members = check_cascade(model, model.models if cascade is None else cascade)
    if chain not in ("exact", "paper"):
        raise ValueError(f"chain is {chain!r}; it is 'exact' or 'paper'")
    k, m = len(model.models), len(members)
    thresholds = jnp.asarray(thresholds, dtype=model.cost.dtype)
    given = thresholds.shape[-1] if thresholds.ndim else -1
    if given == m - 1:
        cuts = thresholds
    elif given == m:
        cuts = thresholds[..., :-1]
    elif given == k:
        cuts = thresholds[..., np.array(members[:-1], int)]
    else:
        raise ValueError(
            f"thresholds has shape {thresholds.shape}; its last axis must be the {m} models of the cascade, all but "
            f"the last ({m - 1}), or all {k} models"
        )
    return _error_and_cost(model.marginals, model.copulas, model.cost, cuts, members, chain)


@partial(jax.jit, static_argnames=("members", "chain"))
def _error_and_cost(marginals, copulas, cost, cuts, members, chain):
    k, m = cost.shape[0], len(members)
    place = {pair: p for p, pair in enumerate(pairs(k))}
    used = np.array([place[pair] for pair in itertools.pairwise(members)], int)
    marginals, copulas = part(marginals, np.array(members)), part(copulas, used)
    chosen = tuple((i, i + 1) for i in range(m - 1))
    tables = build_tables(marginals, copulas, cost[np.array(members)], chosen)
    first = jnp.eye(m, dtype=cuts.dtype)[0]

    def single(cut):
        threshold = jnp.append(cut, jnp.full(1, ALWAYS_ANSWER, cut.dtype))
        u, above = jax.vmap(lambda marginal, value: marginal.cdf_and_mean_above(value))(marginals, threshold)
        return evaluate(tables, u, np.eye(m, k=1), first, chosen=chosen, chain=chain, above=above)

    # Without −1, which is undefined where a cascade of one model has no cuts.
    error, cost = jax.vmap(single)(cuts.reshape(math.prod(cuts.shape[:-1]), m - 1))
    return error.reshape(cuts.shape[:-1]), cost.reshape(cuts.shape[:-1])


def threshold_at(marginal: Marginal, u: jax.Array) -> jax.Array:
    """The threshold φ with F(φ) = u: 0 or 1 where u cuts a point mass, since a threshold passes all of it or none.

    A threshold beside a mass keeps a few units in the last place away from it, so that the rounding of a calibrated
    confidence, here or in a service, does not move a whole mass across.
    """
    width = marginal.highest - marginal.lowest
    margin = jnp.minimum(_ULPS * jnp.finfo(marginal.highest.dtype).eps, width / 4)
    inner = jnp.clip(marginal.quantile(u), marginal.lowest + margin, marginal.highest - margin)
    bottom, top = marginal.mass_lowest, 1 - marginal.mass_highest
    slack = 4 * jnp.finfo(marginal.highest.dtype).eps
    always, never = u < bottom - slack, (u > top + slack) | (u >= 1)
    return jnp.where(always | (u <= 0), ALWAYS_ANSWER, jnp.where(never, NEVER_ANSWER, inner))


def check_cascade(model: CascadeModel, cascade: Sequence[str]) -> tuple[int, ...]:
    """Positions of a cascade's models; ValueError where it is empty, repeats a model, or is out of order."""
    if isinstance(cascade, str) or not len(cascade):
        raise ValueError(f"a cascade is a non-empty tuple of model names, not {cascade!r}")
    members = model.index(cascade)
    if any(i >= j for i, j in itertools.pairwise(members)):
        raise ValueError(
            f"the cascade {' → '.join(cascade)} does not follow the model's order {' → '.join(model.models)}; "
            "read the log with models= in the order in which they are to be asked"
        )
    return members
