"""A chain of marginals joined by copulas, as pure functions: its log density and its draws.

Marginals F_1 … F_k and copulas C_1 … C_{k−1} of neighbours make a Markov chain (section 4.3 of the paper). Were every
marginal smooth, its density would be

    p(x) = Π_j f_j(x_j) · Π_j c_j(F_j(x_j), F_{j+1}(x_{j+1}))

With point masses it is a density of the measure that is Lebesgue's plus one for each point mass, in every coordinate: a
value in a mass counts with probability and no longer with probability per unit of length, and a pair as
`rcjax.model.pair_likelihood` has it. So log p is comparable between values that lie in the same masses, its integral
over the smooth parts plus its sum over the masses is one, and likelihoods of parameters of copulas, of mixtures and
of masses are right. Where the masses lie is no such parameter: as they move, so does the measure.
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
    """k marginals and the copulas that join neighbours; a batch of chains, where arrays have leading axes."""

    marginals: Marginal  # (*batch, k)
    copulas: Copula  # (*batch, k − 1)

    @classmethod
    def through(cls, marginals: Marginal, copulas: Copula) -> "Chain":
        """The chain through all models of a cascade, in their order.

        Args:
            marginals: (*batch, k) of the models.
            copulas: (*batch, k(k − 1)/2) of all pairs, in the order of `pairs(k)`; those of neighbours are taken.
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
        """What copulas and marginals broadcast to."""
        leaves = zip(jax.tree.leaves(self), self._axes(), strict=True)
        return np.broadcast_shapes(*(jnp.shape(leaf)[: jnp.ndim(leaf) - axes.count(",") - 1] for leaf, axes in leaves))

    def log_prob(self, value: ArrayLike, *, clip: bool = False) -> jax.Array:
        """log p of values (…, k), broadcast against the batch; −∞ outside of the supports, NaN of NaN.

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
        """Draws (*shape, *batch, k): quantiles at inverse conditionals of the model before (Rosenblatt 1952).

        The chain remembers a value, not where in a point mass it stood: a rank in a mass is drawn again for the next.
        """
        batch, k = self.batch_shape, self.size
        draws = self.from_uniform(jax.random.uniform(key, (*batch, 2, k, math.prod(shape))))
        return jnp.moveaxis(draws, -2, 0).reshape(*shape, *batch, k)

    def from_uniform(self, uniform: jax.Array) -> jax.Array:
        """Draws (*batch, S, k) of independent uniform numbers (*batch, 2, k, S): levels, and places in a mass."""

        def draw(chain: Chain, uniform: jax.Array) -> jax.Array:
            levels, renewing = open_unit(uniform)
            if chain.size > 1:
                levels = jnp.concatenate([levels[:1], _walk(chain, levels[0], levels[1:], renewing[:-1])])
            return jax.vmap(Marginal.quantile, out_axes=-1)(chain.marginals, levels)

        return self.batched(draw, uniform, axes="(n,k,s)->(s,k)")

    def batched(self, function: Callable[..., jax.Array], *arrays: jax.Array, axes: str) -> jax.Array:
        """A function of one chain and of arrays with these axes, as `jnp.vectorize` writes them, over the batch."""
        leaves, structure = jax.tree.flatten(self)

        def single(*values: jax.Array) -> jax.Array:
            return function(jax.tree.unflatten(structure, values[: len(leaves)]), *values[len(leaves) :])

        return jnp.vectorize(single, signature=",".join([*self._axes(), axes]))(*leaves, *arrays)

    def _axes(self) -> list[str]:
        """The axes of each array behind those of its batch, as `jnp.vectorize` writes them."""
        ends, atoms = ["(k)"] * 4, ["(k,a)"] * len(jax.tree.leaves(self.marginals.atoms))
        rest = len(jax.tree.leaves(self.marginals)) - len(ends) - len(atoms)
        return [*ends, *atoms, *[self.marginals.parameter_axes] * rest] + ["(l)"] * len(jax.tree.leaves(self.copulas))


@partial(jax.jit, static_argnames="clip")
def _log_prob(chain: Chain, value: jax.Array, clip: bool) -> jax.Array:
    def one(chain: Chain, value: jax.Array) -> jax.Array:
        placed = jax.vmap(partial(_locate, clip=clip))(chain.marginals, value)
        total = placed.log_density.sum()
        if chain.size > 1:  # a mass between two copulas is in both their terms
            first, second = part(placed.ranks, slice(-1)), part(placed.ranks, slice(1, None))
            total += jax.vmap(log_likelihood)(chain.copulas, first, second).sum() - placed.log_mass[1:-1].sum()
        else:
            total += placed.log_mass.sum()
        return jnp.where(jnp.isnan(value).any(), jnp.nan, jnp.where(placed.inside.all(), total, -jnp.inf))

    return chain.batched(one, value, axes="(k)->()")


def _walk(chain: Chain, rank: jax.Array, draws: jax.Array, renewing: jax.Array) -> jax.Array:
    """(m, S) ranks of the later marginals of a chain of m + 1, from those of the first (S,).

    `draws` and `renewing` (m, S) are uniform: of the next rank, and of the place in a mass before it.
    """
    start, end = jax.vmap(Marginal.mass_ranks)(chain.marginals)

    def advance(rank: jax.Array, step: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
        copula, start, end, draw, again = step
        inside = (rank[:, None] > start) & (rank[:, None] <= end)
        renewed = (inside * (start + (end - start) * again[:, None])).sum(-1)
        rank = copula.inverse_conditional(open_unit(jnp.where(inside.any(-1), renewed, rank)), draw)
        return rank, rank

    steps = chain.copulas, start[:-1], end[:-1], draws, renewing
    # Like what comes next, so that under `jax.shard_map` both vary over the same devices.
    first = rank + jnp.zeros_like(sum(leaf.sum() for leaf in jax.tree.leaves(steps)), rank.dtype)
    return jax.lax.scan(advance, first, steps)[1]


class _Placed(NamedTuple):
    """Where a value of a marginal lies."""

    ranks: Ranks
    log_density: jax.Array  # of the marginal; 0 in a mass
    log_mass: jax.Array  # of the mass; 0 in the smooth part
    inside: jax.Array  # bool: there is density or mass


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
    """Log density of the smooth part; of a value that is not `inside` it, something finite."""
    width, smooth = (jnp.where(x > 0, x, 1.0) for x in (marginal.highest - marginal.lowest, marginal.smooth))
    x = open_unit(jnp.where(inside, (value - marginal.lowest) / width, 0.5))
    return marginal.smooth_log_density(x) + jnp.log(smooth) - jnp.log(width)
