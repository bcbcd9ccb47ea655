"""The likelihood of a pair of models' confidences under a copula, exact where margins have point masses.

A confidence lies in the point mass at its margin's lowest value, in the smooth part, or in the mass at the highest
value. Differentiating C along the smooth coordinates and differencing it along the masses gives nine cells (Genest &
Nešlehová 2007, "A primer on copulas for count data", section 5, for the principle); as the masses sit at the ends,
each cell takes one evaluation:

                      v at the lowest      v smooth               v at the highest
    u at the lowest   C(a, b)              ∂C/∂v (a, v)           P(U ≤ a, V > b′)
    u smooth          ∂C/∂u (u, b)         c(u, v)                1 − ∂C/∂u (u, b′)
    u at the highest  P(U > a′, V ≤ b)     1 − ∂C/∂v (a′, v)      P(U > a′, V > b′)

with a = w_min, a′ = 1 − w_max of the first margin and b, b′ of the second. The densities of the margins' smooth parts
belong to the margins and are left out.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.batching import part
from rcjax.copulas import Copula
from rcjax.copulas.unit import unit
from rcjax.model.marginals import Marginal

if TYPE_CHECKING:
    from rcjax.copulas.unit import Scored, Unit

#: Sides of a margin on which an observation lies.
LOWEST, SMOOTH, HIGHEST = -1, 0, 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ranks:
    """Where observations of one margin lie on its u-scale. A leading axis batches it over margins."""

    u: jax.Array  # (n,) F(φ), within (lowest, highest); anything for those in a point mass
    lowest: jax.Array  # () w_min: the mass at the lowest value reaches up to here
    highest: jax.Array  # () 1 − w_max: the mass at the highest value starts here
    side: jax.Array | None  # (n,) LOWEST, SMOOTH or HIGHEST; None where the margin has no masses


def ranks(marginal: Marginal, confidence: jax.Array) -> Ranks:
    """Ranks of confidences (n,) under a fitted marginal, differentiable in its parameters.

    >>> marginal = Marginal(0., 1., 0.2, 0.3, jnp.array([0.5, 0.5]), jnp.ones(2), jnp.ones(2))
    >>> placed = ranks(marginal, jnp.array([0.0, 0.5, 1.0]))
    >>> placed.side.tolist(), round(float(placed.u[1]), 4)
    ([-1, 0, 1], 0.45)
    """
    low, high = confidence <= marginal.lowest, confidence >= marginal.highest
    # For those in a mass, which need no u, a point whose gradients are finite.
    inside = jnp.where(low | high, (marginal.lowest + marginal.highest) / 2, confidence)
    side = jnp.where(low, LOWEST, jnp.where(high, HIGHEST, SMOOTH))
    return Ranks(marginal.cdf(inside), jnp.asarray(marginal.mass_lowest), 1 - marginal.mass_highest, side)


def pseudo_ranks(values: jax.Array, weights: jax.Array) -> Ranks:
    """Ranks without a model of the margin (the semiparametric variant): weighted mid-ranks over the weight plus one.

    values (n,), weights (n,) of the observations, such as how often a bootstrap replicate draws each; 0 leaves one
    out. Values tied with the least (the largest) form a point mass; other ties share a mid-rank. Genest, Ghoudi &
    Rivest (1995), "A semiparametric estimation procedure of dependence parameters".

    >>> pseudo_ranks(jnp.array([0.1, 0.4, 0.2]), jnp.ones(3)).u.tolist()
    [0.25, 0.75, 0.5]
    """
    weights = jnp.asarray(weights, jnp.result_type(float))
    return ranks_of_counts(*rank_counts(values, weights), weights.sum())


def rank_counts(values: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(weight below, weight at or below), each (n,), of every value among the values (n,) with weights (n,).

    >>> [count.tolist() for count in rank_counts(jnp.array([0.1, 0.4, 0.1]), jnp.ones(3))]
    [[0.0, 2.0, 0.0], [2.0, 3.0, 2.0]]
    """
    values = jnp.where(weights > 0, values, jnp.inf)
    order = jnp.argsort(values)
    ordered = values[order]
    cumulative = jnp.concatenate([jnp.zeros(1, weights.dtype), jnp.cumsum(weights[order])])
    below, through = (cumulative[jnp.searchsorted(ordered, values, side=side)] for side in ("left", "right"))
    return below, through


def ranks_of_counts(below: jax.Array, through: jax.Array, total: jax.Array) -> Ranks:
    """`pseudo_ranks` from the `rank_counts` (n,) of the values and their weight in total."""
    count = through - below
    # With the values themselves, a lone least value is an observation like any other; a tie is a mass.
    low, high = (below == 0) & (count > 1), (through == total) & (count > 1) & (below > 0)
    scale = 1 / (total + 1)
    lowest = jnp.max(jnp.where(low, through, 0.0)) * scale
    highest = 1 - jnp.max(jnp.where(high, count, 0.0)) * scale
    side = jnp.where(low, LOWEST, jnp.where(high, HIGHEST, SMOOTH))
    return Ranks((below + (count + 1) / 2) * scale, lowest, highest, side)


def log_likelihood(copula: Copula, first: Ranks, second: Ranks) -> jax.Array:
    """(n,) the log-likelihood of each observation of a pair, less that of its margins; see the head of the module.

    Differentiable in the copula's parameters and in the ranks. For one copula: `vmap` it over pairs.

    >>> from rcjax import Gumbel
    >>> ends = Ranks(jnp.array([0.5, 0.5]), jnp.asarray(0.5), jnp.asarray(0.5), jnp.array([-1, 1]))
    >>> [round(float(corner), 4) for corner in log_likelihood(Gumbel(1.0), ends, ends)]  # corners of a quarter each
    [-1.3863, -1.3863]
    """
    return likelihood_of(copula, first, second)(copula)


def likelihood_of(copula: Copula, first: Ranks, second: Ranks) -> Callable[[Copula], jax.Array]:
    """`log_likelihood` of a pair as a function of the copula, for many members that differ in free parameters only.

    What they share, the given `copula` computes once. ValueError where one margin has sides and the other has none.
    """
    if (first.side is None) != (second.side is None):
        raise ValueError("one margin has point masses and the other none: give both of them sides")
    if first.side is None or second.side is None:
        u, v = copula.prepared(unit(first.u)), copula.prepared(unit(second.u))
        return lambda member: member.two_sided_log_density(u, v)
    smooth_u, smooth_v = first.side == SMOOTH, second.side == SMOOTH
    u, v = (copula.prepared(unit(jnp.where(s, r.u, 0.5))) for s, r in ((smooth_u, first), (smooth_v, second)))
    # The corners (lowest, lowest), (lowest, highest), (highest, lowest), (highest, highest).
    ends_u, ends_v = (copula.prepared(unit(jnp.stack([r.lowest, r.highest]))) for r in (first, second))
    corners = part(ends_u, np.array([0, 0, 1, 1])), part(ends_v, np.array([0, 1, 0, 1]))
    side_u, side_v = ((r.side == HIGHEST).astype(int) for r in (first, second))
    end_u, end_v = part(ends_u, side_u), part(ends_v, side_v)
    upper = jnp.where(smooth_u, side_v, side_u) == 1

    def of_member(member: Any) -> jax.Array:
        conditional = _conditional(member, smooth_u, (u, end_u), (v, end_v))
        below, above = member.two_sided_cdf(*corners)
        mass = jnp.stack([below[0], corners[0].value[1] - below[1], corners[1].value[2] - below[2], above[3]])
        corner = jnp.log(jnp.maximum(mass, jnp.finfo(mass.dtype).tiny))[2 * side_u + side_v]
        one_end = jnp.where(upper, conditional.log_complement, conditional.log)
        density = member.two_sided_log_density(u, v)
        return jnp.where(smooth_u & smooth_v, density, jnp.where(smooth_u | smooth_v, one_end, corner))

    return of_member


def _conditional(
    copula: Any,
    given_u: jax.Array,
    first: "tuple[Unit | Scored, Unit | Scored]",
    second: "tuple[Unit | Scored, Unit | Scored]",
) -> Any:
    """P(the mass below the other margin's end | the smooth one), for one smooth margin: u where `given_u`, else v."""
    (u, end_u), (v, end_v) = first, second
    if copula.exchangeable:
        return copula.two_sided_conditional(_choose(given_u, u, v), _choose(given_u, end_v, end_u))
    by_u, by_v = copula.two_sided_conditional(u, end_v), copula.two_sided_conditional_on_v(end_u, v)
    return _choose(given_u, by_u, by_v)


def _choose(condition: jax.Array, one: "Unit | Scored", other: "Unit | Scored") -> "Unit | Scored":
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)
