"""A Markov chain of marginals joined by copulas: its log density and its draws, as pure functions.

Marginals F_1 … F_k and copulas C_1 … C_{k−1} of neighbours define a Markov chain (section 4.3 of the paper). With
smooth marginals its density is

    p(x) = Π_j f_j(x_j) · Π_j c_j(F_j(x_j), F_{j+1}(x_{j+1}))

With point masses, p is a density with respect to Lebesgue's measure plus a unit mass at each atom, in every coordinate.
A value in a mass then counts with its probability, and one in the smooth part with its density; pairs follow
`rcjax.model.pair_likelihood`. The integral of p over the smooth parts plus its sum over the masses is 1. Values of
log p are comparable if they lie in the same masses. p is a likelihood for the parameters of copulas and mixtures and
for the sizes of masses, but not for their places: the measure moves with these.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._core.batching import part
from rcjax._core.meshes import automatic
from rcjax._core.numerics import open_unit
from rcjax.copulas import Copula
from rcjax.model.marginals import Marginal
from rcjax.model.pair_likelihood import SMOOTH, Ranks, log_likelihood, ranks

Shape = tuple[int, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Chain:
    """A chain of k marginals and the copulas of neighbours; leading axes batch it."""

    marginals: Marginal  # (*batch, k)
    copulas: Copula  # (*batch, k − 1)

    @classmethod
    def through(cls, marginals: Marginal, copulas: Copula) -> "Chain":
        """Build the chain through all models of a cascade, in their order.

        Args:
            marginals: (*batch, k) marginals of the models.
            copulas: (*batch, k(k − 1)/2) copulas of all pairs, in the order of `pairs(k)`; neighbours' are selected.
        """
        k = jnp.shape(marginals.lowest)[-1]
        neighbours = np.flatnonzero(np.diff(np.triu_indices(k, 1), axis=0) == 1)
        return cls(marginals, jax.tree.map(lambda leaf: jnp.asarray(leaf)[..., neighbours], copulas))

    @property
    def size(self) -> int:
        """The number k of marginals."""
        return jnp.shape(self.marginals.lowest)[-1]

    @property
    def batch_shape(self) -> Shape:
        """The shape to which copulas and marginals broadcast."""
        leaves = zip(jax.tree.leaves(self), self._axes(), strict=True)
        return np.broadcast_shapes(*(jnp.shape(leaf)[: jnp.ndim(leaf) - axes.count(",") - 1] for leaf, axes in leaves))

    def log_prob(self, value: ArrayLike, *, clip: bool = False) -> jax.Array:
        """log p of values (…, k), broadcast against the batch; −∞ outside the supports, NaN for NaN.

        With `clip`, a value beyond either end counts as that end.

        >>> from rcjax import demo_model
        >>> model = demo_model()
        >>> Chain.through(model.marginals, model.copulas).log_prob(model.marginals.highest) > 0  # the log of a density
        Array(False, dtype=bool)
        """
        value = jnp.asarray(value, jnp.result_type(float))
        if value.shape[-1:] != (self.size,):
            raise ValueError(f"value has shape {value.shape}; its last axis must be the {self.size} models")
        return automatic(partial(_log_prob, clip=clip), self, value, like=value, trailing=1)

    @partial(jax.jit, static_argnames="shape")
    def sample(self, key: jax.Array, shape: Shape = ()) -> jax.Array:
        """Draw values by inverting each conditional given the model before (Rosenblatt 1952); (*shape, *batch, k).

        The chain depends on a value, not on its rank within a point mass: that rank is drawn anew for the next model.
        """
        batch, k = self.batch_shape, self.size
        draws = self.from_uniform(jax.random.uniform(key, (*batch, 2, k, math.prod(shape))))
        return jnp.moveaxis(draws, -2, 0).reshape(*shape, *batch, k)

    def from_uniform(self, uniform: jax.Array) -> jax.Array:
        """Turn uniform numbers (*batch, 2, k, S), levels and places in a mass, into draws; (*batch, S, k)."""

        def draw(chain: Chain, uniform: jax.Array) -> jax.Array:
            levels, renewing = open_unit(uniform)
            if chain.size > 1:
                levels = jnp.concatenate([levels[:1], _walk(chain, levels[0], levels[1:], renewing[:-1])])
            return jax.vmap(Marginal.quantile, out_axes=-1)(chain.marginals, levels)

        return self.batched(draw, uniform, axes="(n,k,s)->(s,k)")

    def batched(self, function: Callable[..., jax.Array], *arrays: jax.Array, axes: str) -> jax.Array:
        """Map a function of one chain and arrays over the batch; `axes` is a signature of `jnp.vectorize`."""
        leaves, structure = jax.tree.flatten(self)

        def single(*values: jax.Array) -> jax.Array:
            return function(jax.tree.unflatten(structure, values[: len(leaves)]), *values[len(leaves) :])

        return jnp.vectorize(single, signature=",".join([*self._axes(), axes]))(*leaves, *arrays)

    def _axes(self) -> list[str]:
        """The axes of each array behind its batch axes, in the notation of `jnp.vectorize`."""
        ends, atoms = ["(k)"] * 4, ["(k,a)"] * len(jax.tree.leaves(self.marginals.atoms))
        rest = len(jax.tree.leaves(self.marginals)) - len(ends) - len(atoms)
        return [*ends, *atoms, *[self.marginals.parameter_axes] * rest] + ["(l)"] * len(jax.tree.leaves(self.copulas))


@partial(jax.jit, static_argnames="clip")
def _log_prob(chain: Chain, value: jax.Array, clip: bool) -> jax.Array:
    def of_chain(chain: Chain, value: jax.Array) -> jax.Array:
        placed = jax.vmap(partial(_locate, clip=clip))(chain.marginals, value)
        total = placed.log_density.sum()
        if chain.size > 1:  # the copulas on both sides count a mass between them
            first, second = part(placed.ranks, slice(-1)), part(placed.ranks, slice(1, None))
            total += jax.vmap(log_likelihood)(chain.copulas, first, second).sum() - placed.log_mass[1:-1].sum()
        else:
            total += placed.log_mass.sum()
        return jnp.where(jnp.isnan(value).any(), jnp.nan, jnp.where(placed.inside.all(), total, -jnp.inf))

    return chain.batched(of_chain, value, axes="(k)->()")


def _walk(chain: Chain, rank: jax.Array, draws: jax.Array, renewing: jax.Array) -> jax.Array:
    """Draw the ranks of the later marginals of a chain of m + 1 from those of the first (S,); (m, S).

    `draws` and `renewing` (m, S) are uniform: levels of the next rank, and places in the mass before it.
    """
    start, end = jax.vmap(Marginal.mass_ranks)(chain.marginals)

    def advance(rank: jax.Array, step: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
        copula, start, end, draw, place = step
        inside = (rank[:, None] > start) & (rank[:, None] <= end)
        renewed = (inside * (start + (end - start) * place[:, None])).sum(-1)
        rank = copula.inverse_conditional(open_unit(jnp.where(inside.any(-1), renewed, rank)), draw)
        return rank, rank

    steps = chain.copulas, start[:-1], end[:-1], draws, renewing
    # Added zeros: under `jax.shard_map` the first rank varies over the same devices as the later ones.
    first = rank + jnp.zeros_like(sum(leaf.sum() for leaf in jax.tree.leaves(steps)), rank.dtype)
    return jax.lax.scan(advance, first, steps)[1]


class _Placed(NamedTuple):
    """Position of a value under its marginal: smooth part or mass."""

    ranks: Ranks
    log_density: jax.Array  # log density of the smooth part; 0 in a mass
    log_mass: jax.Array  # log probability of the mass; 0 in the smooth part
    inside: jax.Array  # bool, whether the value has density or mass


def _locate(marginal: Marginal, value: jax.Array, clip: bool) -> _Placed:
    placed = ranks(marginal, value)
    start, end = placed.masses
    smooth, mass = placed.mass == SMOOTH, (end - start)[placed.mass]
    possible = jnp.where(smooth, marginal.smooth, mass) > 0
    inside = possible  # beyond an end, `ranks` has the mass of that end
    if not clip:
        inside &= (value >= marginal.lowest) & (value <= marginal.highest)
    log_density = jnp.where(smooth, _log_density(marginal, value, smooth & inside), 0.0)
    log_mass = jnp.where(smooth, 0.0, jnp.log(jnp.where(smooth | ~possible, 1.0, mass)))
    return _Placed(placed, log_density, log_mass, inside)


def _log_density(marginal: Marginal, value: jax.Array, inside: jax.Array) -> jax.Array:
    """Log density of the smooth part; some finite number for values not `inside` it."""
    width, smooth = (jnp.where(x > 0, x, 1.0) for x in (marginal.highest - marginal.lowest, marginal.smooth))
    x = open_unit(jnp.where(inside, (value - marginal.lowest) / width, 0.5))
    return marginal.smooth_log_density(x) + jnp.log(smooth) - jnp.log(width)
