"""Drawing confidences from the Markov chain through all models."""

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._base.arguments import check_arguments
from rcjax._core.batching import part
from rcjax._core.numerics import open_unit
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.pairs import pairs

if TYPE_CHECKING:
    from rcjax.copulas import Copula
    from rcjax.model.marginals import Marginal


def sample_confidences(model: CascadeModel, key: jax.Array, n: int) -> jax.Array:
    """(n, k) calibrated confidences drawn from the chain through all models, in their order."""
    check_arguments(sample_confidences, locals())
    return _sample(model.marginals, model.copulas, key, n)


@partial(jax.jit, static_argnames="n")
def _sample(marginals: "Marginal", copulas: "Copula", key: jax.Array, n: int) -> jax.Array:
    k = marginals.lowest.shape[0]
    place = {pair: p for p, pair in enumerate(pairs(k))}
    draws = open_unit(jax.random.uniform(key, (2, k, n), dtype=marginals.lowest.dtype))
    neighbours = np.array([place[j, j + 1] for j in range(k - 1)], int)
    links, before = part(copulas, neighbours), part(marginals, slice(-1))

    def advance(rank: jax.Array, step: "tuple[Marginal, Copula, jax.Array, jax.Array]") -> tuple[jax.Array, jax.Array]:
        marginal, copula, draw, shuffle = step
        rank = copula.inverse_conditional(open_unit(_shuffle_ties(marginal, rank, shuffle)), draw)
        return rank, rank

    _, later = jax.lax.scan(advance, draws[0, 0], (before, links, draws[0, 1:], draws[1, :-1]))
    ranks = jnp.concatenate([draws[0, :1], later])
    return jax.vmap(lambda marginal, rank: marginal.quantile(rank), out_axes=1)(marginals, ranks)


def _shuffle_ties(marginal: "Marginal", rank: jax.Array, draw: jax.Array) -> jax.Array:
    """A fresh rank within each point mass: the chain remembers a confidence, not where among its ties a query stood."""
    bottom, top = marginal.mass_lowest, 1 - marginal.mass_highest
    if marginal.atoms is not None:
        start, end = marginal.atom_ranks()
        here = (rank[..., None] > start) & (rank[..., None] <= end)
        within = (here * (start + (end - start) * draw[..., None])).sum(-1)
        rank = jnp.where(here.any(-1), within, rank)
    return jnp.where(rank <= bottom, bottom * draw, jnp.where(rank >= top, top + (1 - top) * draw, rank))
