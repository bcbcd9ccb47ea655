"""The objective of a cascade: error and cost as functions of its thresholds, in u-space.

Let u_j = F_j(φ_j). The queries that reach model j have a density a_j over u; the first model's is 1. Model i answers if
u > u_i, and defers the rest to j:

    a_j(v) = ∫₀^{u_i} c_ij(u, v) a_i(u) du
    P(correct) = Σ_j ∫_{u_j}^1 Q_j(v) a_j(v) dv        E[cost] = Σ_j cost_j ∫₀¹ a_j

On the nodes of `quadrature` each step of the cascade is a product of a vector and a matrix. Section 4.3 of Zellinger &
Thomson (2025) has the same objective with a shorter memory (their eq. 5 and proposition 2).
"""

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special
from jax.typing import ArrayLike

from rcjax._core.batching import part
from rcjax._core.exporting import exportable
from rcjax._core.numerics import bisection, divide, implicit_root
from rcjax.copulas import Copula
from rcjax.model.marginals import Marginal
from rcjax.solving.frontier.points import Outcomes
from rcjax.solving.quadrature import Grid, build_grid


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tables:
    """A fitted model on quadrature nodes, as the objective and the solvers need it."""

    marginals: Marginal  # leading axis k
    grid: Grid  # leading axis k
    left: jax.Array  # (P,) model i of each pair, in rising order
    right: jax.Array  # (P,) model j > i of each pair
    kernel: jax.Array  # (P, G, G) density at model j's nodes given model i's node
    cost: jax.Array  # (k,) money per answer


def build_tables(
    marginals: Marginal, copulas: Copula, cost: jax.Array, left: Any, right: Any, panels: int | None = None
) -> Tables:
    """Build the grids of all models, and the transition kernels of pairs of models.

    Args:
        marginals: (k,) marginals of the models.
        copulas: (P,) copulas of the pairs.
        cost: (k,) money per answer.
        left, right: (P,) positions of each pair's models.
        panels: panels of each grid; None: the default of `quadrature`.
    """
    grid = jax.vmap(partial(build_grid, panels=panels))(marginals)
    left, right = jnp.asarray(left, int), jnp.asarray(right, int)
    kernel = jax.vmap(transition)(copulas, part(grid, left), part(grid, right))
    return Tables(marginals, grid, left, right, kernel, cost)


def transition(copula: Copula, source: Grid, target: Grid) -> jax.Array:
    """Density at the target's nodes given the source's node; rows integrate to 1 with the target's weights; (G, G).

    It is derived from the conditional cdf h(v given u) on the edges of the target's cells. Given a point mass of the
    source, h is averaged over the mass, which the cdf does exactly: (C(b, v) − C(a, v)) / (b − a).
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


def arrivals(tables: Tables, first: jax.Array, deferred: jax.Array) -> jax.Array:
    """Density a_j of the queries that reach each model, at the nodes of its grid; (k, G).

    Args:
        tables: quadrature of the model.
        first: () model asked first.
        deferred: (P, G) part of each node's weight that model i defers to model j.
    """

    def pass_on(density: jax.Array, link: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        i, j, part_of_weight, kernel = link
        return density.at[j].add((part_of_weight * density[i]) @ kernel), None

    starting = jnp.arange(tables.cost.shape[0]) == first
    # Added ones: under `jax.shard_map` the start varies over the same devices as the deferred weights.
    start = starting[:, None] * jnp.ones_like(deferred, shape=deferred.shape[-1:])
    return lax.scan(pass_on, start, (tables.left, tables.right, deferred, tables.kernel))[0]


@exportable
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Outcome:
    """Expected outcome of a query under a cascade of k models, in the order of `models`.

    A query takes one of the cascade's paths: path j asks the cascade's models in turn up to model j, which answers or
    refuses. Arrays by model are therefore arrays by path too. They are JAX arrays, differentiable in the thresholds.
    """

    members: jax.Array
    """1.0 for models of the cascade, else 0.0; (k,)."""
    asked: jax.Array
    """Share of the queries that each model is asked; (k,)."""
    answered: jax.Array
    """Share of the queries that each model answers; (k,)."""
    wrong: jax.Array
    """Share of the queries that each model answers wrongly; the error is the sum; (k,)."""
    unanswered: jax.Array
    """Share of the queries that end with a refusal of each model; zeros if no model may refuse; (k,)."""
    price: jax.Array
    """Expected money of one answer of each model; (k,)."""
    smoothing: jax.Array
    """Width for `smooth_quantile`, which `minimise` reduces to 0; ()."""

    @property
    def error(self) -> jax.Array:
        """Probability of a wrong answer; ()."""
        return self.wrong.sum(-1)

    @property
    def cost(self) -> jax.Array:
        """Expected money per query; ()."""
        return (self.asked * self.price).sum(-1)

    @property
    def refused(self) -> jax.Array:
        """Probability that a query gets no answer; ()."""
        return self.unanswered.sum(-1)

    @property
    def taken(self) -> jax.Array:
        """Probability of each path, that is, that the query ends with its last model; (k,)."""
        return self.answered + self.unanswered

    @property
    def path_cost(self) -> jax.Array:
        """Expected money of each path; no query takes the paths of models outside the cascade; (k,)."""
        return self.along(self.price)

    def along(self, values: ArrayLike) -> jax.Array:
        """Sum values of the models (k,), such as seconds, along each path; (k,).

        >>> import rcjax
        >>> pair = ("llama3.2-1b", "llama3.1-70b")
        >>> expected = rcjax.solving.outcomes(rcjax.solve_frontier(rcjax.demo_model(), lam=300.0, cascades=[pair]))
        >>> expected.along(jnp.array([1.0, 1.0, 1.0, 3.0, 9.0])).tolist()
        [[1.0, 1.0, 1.0, 4.0, 4.0]]
        """
        return jnp.cumsum(self.members * jnp.asarray(values, self.members.dtype), axis=-1)


def outcome_of_cuts(
    tables: Tables,
    u: jax.Array,
    links: jax.Array,
    first: jax.Array,
    *,
    above: jax.Array | None = None,
    refused: jax.Array | None = None,
) -> Outcome:
    """Evaluate one cascade, in which model i answers above its cut and defers the rest; `smoothing` is 0.

    `vmap` it over λ.

    Args:
        tables: quadrature of the model.
        u: (k,) cuts, on the scale of ranks; 0 for the last model of the cascade.
        links: (P,) whether i defers to j, for the pairs (i, j).
        first: () model asked first.
        above: (k,) E[Φ_j; Φ_j > φ_j] in closed form, in place of the quadrature of Q over the panel of the cut.
        refused: (k,) at most u: model i refuses up to this rank; equal to u for the last model.
    """
    grid, nothing = tables.grid, jnp.zeros_like(u)
    below = jax.vmap(Grid.below)(grid, u)
    below_refused = jnp.zeros_like(below) if refused is None else jax.vmap(Grid.below)(grid, refused)
    density = arrivals(tables, first, links[:, None] * (below - below_refused)[tables.left])
    answered = grid.weight - below
    wrong = (answered * (1 - grid.quantile) * density).sum(-1)
    if above is not None:
        missing = above - (answered * grid.quantile).sum(-1)
        wrong -= missing * jax.vmap(lambda grid, cut, values: grid.at(cut) @ values)(grid, u, density)
    return Outcome(
        members=nothing.at[first].set(1.0).at[tables.right].max(links.astype(u.dtype)),
        asked=(grid.weight * density).sum(-1),
        answered=(answered * density).sum(-1),
        wrong=wrong,
        unanswered=(below_refused * density).sum(-1),
        price=tables.cost,
        smoothing=jnp.zeros((), u.dtype),
    )


def evaluate(tables: Tables, u: jax.Array, links: jax.Array, first: jax.Array, **options: Any) -> Outcomes:
    """Error, cost and refusals of one cascade, as `outcome_of_cuts` computes them.

    Args:
        tables, u, links, first, options: as in `outcome_of_cuts`.
    """
    expected = outcome_of_cuts(tables, u, links, first, **options)
    return Outcomes(expected.error, expected.cost, expected.refused)


def smooth_quantile(values: jax.Array, weights: jax.Array, level: float, width: jax.Array | float) -> jax.Array:
    """The quantile of a smoothed discrete distribution, differentiable in its values and weights.

    It solves Σ wᵢ σ((q − xᵢ)/h) = level for q, with σ the logistic function and h = width·(largest − least value). At
    width 0 it is the ordinary quantile, which jumps as weights change and has no useful gradient. An objective of
    `rcjax.solving.minimise` passes `outcome.smoothing`, which the solver reduces to 0.

    Args:
        values: (…, n) values, such as the seconds of each path, `outcome.along(seconds)`.
        weights: (…, n) probabilities of the values, such as `outcome.taken`.
        level: level of the quantile, in (0, 1).
        width: width of the smoothing, at least 0, as a share of the range of values.

    Raises ValueError for a level outside (0, 1).

    >>> seconds, taken = jnp.array([1.0, 3.0, 9.0]), jnp.array([0.6, 0.3, 0.1])
    >>> [round(float(smooth_quantile(seconds, taken, 0.8, width)), 1) for width in (0.0, 0.01, 0.1)]
    [3.0, 3.1, 3.8]
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it must be between 0 and 1")
    dtype = jnp.result_type(float)
    values, weights = (jnp.asarray(array, dtype) for array in (values, weights))
    single = partial(_quantile, level=level)
    return jnp.vectorize(single, signature="(n),(n),()->()")(values, weights, jnp.asarray(width, dtype))


def _quantile(values: jax.Array, weights: jax.Array, width: jax.Array, level: float) -> jax.Array:
    shares = divide(weights, weights.sum())
    spread = width * (values.max() - values.min())
    h = jnp.where(spread > 0, spread, 1.0)
    shift = h * math.log(level / (1 - level))

    def excess(q: jax.Array) -> jax.Array:
        return shares @ special.expit((q - values) / h) - level

    low, high = jax.lax.stop_gradient((values.min() + shift, values.max() + shift))
    smooth = implicit_root(excess, bisection(low, high, values.dtype), values.dtype)
    order = jnp.argsort(values)
    reached = jnp.cumsum(shares[order]) >= level - 8 * values.shape[0] * jnp.finfo(values.dtype).eps
    return jnp.where(spread > 0, smooth, values[order][jnp.argmax(reached)])
