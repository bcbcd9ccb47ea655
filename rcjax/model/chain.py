"""A chain of margins joined by copulas, as pure functions: its log density, its draws, and draws of what comes later.

Margins F_1 … F_k and copulas C_1 … C_{k−1} of neighbours make a Markov chain (section 4.3 of the paper). A margin is
the mixture of `rcjax.model.marginals`, with its point masses, or a smooth distribution of another library. Where
every margin is smooth, the density is

    p(x) = Π_j f_j(x_j) · Π_j c_j(F_j(x_j), F_{j+1}(x_{j+1}))

With masses it is a density of the measure that is Lebesgue's plus one for each point mass, in every coordinate: a
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
from jax.scipy import special
from jax.typing import ArrayLike

from rcjax._core.compilation import is_traced
from rcjax._core.numerics import betaln, open_unit
from rcjax.copulas import Copula
from rcjax.model.marginals import Marginal
from rcjax.model.pair_likelihood import SMOOTH, Ranks, log_likelihood, mass_number, masses_of, ranks

#: Axes of a marginal's array behind those of its batch, where there are any.
_PARTS = ("proportion", "a", "b")

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Chain:
    """k margins and the copulas that join neighbours."""

    copulas: Copula  # leaves (*batch, k − 1), or what broadcasts to it
    margins: tuple[Any, ...]  # `Marginal`s of (*batch, m) with m of the k margins each, or one of another library each

    @property
    def size(self) -> int:
        """The number k of margins."""
        return sum(_width(margin) for margin in self.margins)

    @property
    def batch_shape(self) -> Shape:
        """What copulas and margins broadcast to."""
        shapes = [jnp.shape(leaf)[:-1] for leaf in jax.tree.leaves(self.copulas)]
        for margin in self.margins:
            shapes.append(jnp.shape(margin.lowest)[:-1] if isinstance(margin, Marginal) else tuple(margin.batch_shape))
        return np.broadcast_shapes(*shapes)


def have_masses(*margins: Any) -> bool:
    """Whether any of the margins has point masses, or may have, while jax traces.

    >>> from rcjax import demo_model
    >>> have_masses(demo_model().marginals)
    True
    """
    ours = [margin for margin in margins if isinstance(margin, Marginal)]
    masses = jax.tree.leaves([(m.mass_lowest, m.mass_highest, m.atoms and m.atoms.mass) for m in ours])
    if is_traced(masses):
        return True
    values = [np.asarray(mass) for mass in masses]
    return any(value.dtype.kind not in "fiu" or bool((value > 0).any()) for value in values)


def through(marginals: Marginal, copulas: Copula) -> Chain:
    """The chain through all models of a cascade, in their order.

    Args:
        marginals: (*batch, k) of the models.
        copulas: (*batch, k(k − 1)/2) of all pairs, in the order of `pairs(k)`; those of neighbours are taken.
    """
    k = jnp.shape(marginals.lowest)[-1]
    neighbours = np.flatnonzero(np.diff(np.triu_indices(k, 1), axis=0) == 1)
    return Chain(jax.tree.map(lambda leaf: jnp.asarray(leaf)[..., neighbours], copulas), (marginals,))


def log_prob(chain: Chain, value: ArrayLike) -> jax.Array:
    """log p of values (…, k), broadcast against the batch; −∞ outside of the margins' supports, NaN of NaN.

    Ranks are kept off 0 and 1 by what the float type resolves: 8 standard deviations of a normal margin in float64.

    >>> from rcjax import demo_model
    >>> model = demo_model()
    >>> log_prob(through(model.marginals, model.copulas), model.marginals.highest) > 0  # the log of a density
    Array(False, dtype=bool)
    """
    value = jnp.asarray(value, jnp.result_type(float))
    batch, k = chain.batch_shape, chain.size
    if value.shape[-1:] != (k,):
        raise ValueError(f"value has shape {value.shape}; its last axis must be the {k} margins")
    shape = np.broadcast_shapes(value.shape[:-1], batch)
    rows = jnp.broadcast_to(value, (*shape, k)).reshape(-1, *batch, k)
    ranked, log_density, log_mass, inside = _locate(chain, rows, batch)
    total = log_density.sum(1) - log_mass[:, 1:-1].sum(1)  # a mass between two copulas is in both their terms
    total = total + _links(_flat_links(chain, batch), ranked) if k > 1 else total + log_mass.sum(1)
    total = jnp.where(inside.all(1), total, -jnp.inf).T.reshape(shape)
    return jnp.where(jnp.isnan(value).any(-1), jnp.nan, total)


def sample(chain: Chain, key: jax.Array, shape: Shape = ()) -> jax.Array:
    """Draws (*shape, *batch, k): each margin's quantile at the inverse conditional of the one before (Rosenblatt 1952).

    The chain remembers a value, not where in a point mass it stood: a rank in a mass is drawn again for the next one.
    """
    uniform = jax.random.uniform(key, (2, chain.size, math.prod(chain.batch_shape), math.prod(shape)))
    return from_uniform(chain, uniform).reshape(*shape, *chain.batch_shape, chain.size)


def from_uniform(chain: Chain, uniform: jax.Array) -> jax.Array:
    """Draws (S, *batch, k) made of independent uniform numbers (2, k, B, S): levels, and where they stand in a mass."""
    batch, draws = chain.batch_shape, open_unit(uniform)
    levels = draws[0]
    if chain.size > 1:
        later = _walk(levels[0], _flat_links(chain, batch), _edges(chain, batch), levels[1:], draws[1, :-1])
        levels = jnp.concatenate([levels[:1], later])
    return _quantiles(chain, levels, batch)


def sample_conditional(chain: Chain, key: jax.Array, value: ArrayLike, shape: Shape = ()) -> jax.Array:
    """Draws (*shape, …, k − m) of the later margins, where the first m have values (…, m), broadcast against the batch.

    By Markov's property the last of these values decides; the others are looked at for whether they are possible. Of
    what is not, outside a support or no number, draws are NaN. ValueError unless 0 < m < k.

    Args:
        chain: of k margins.
        key: of `jax.random`.
        value: (…, m) the values of the first m margins.
        shape: of the draws, ahead of the batch.
    """
    value = jnp.asarray(value, jnp.result_type(float))
    batch, k = chain.batch_shape, chain.size
    if not value.ndim or not 0 < value.shape[-1] < k:
        raise ValueError(f"value has shape {value.shape}; its last axis must be the first of the {k} margins, not all")
    m = value.shape[-1]
    full = np.broadcast_shapes(value.shape[:-1], batch)
    rows = jnp.broadcast_to(value, (*full, m)).reshape(-1, *batch, m)
    placed = _locate(_between(chain, 0, m), rows, batch)
    rank = jnp.tile(_last_rank(placed.ranks), (1, math.prod(shape)))
    draws = open_unit(jax.random.uniform(key, (2, k - m, *rank.shape)))
    from_last = _between(chain, m - 1, k)
    levels = _walk(rank, _flat_links(from_last, batch), _edges(from_last, batch), *draws)
    later = _quantiles(_between(chain, m, k), levels, batch).reshape(*shape, *full, k - m)
    return jnp.where(placed.inside.all(1).T.reshape(*full, 1), later, jnp.nan)


def _between(chain: Chain, first: int, last: int) -> Chain:
    """The chain of the margins from `first` to before `last`."""
    margins, start = [], 0
    for margin in chain.margins:
        low, high = max(first - start, 0), min(last - start, _width(margin))
        start += _width(margin)
        if low < high:
            margins.append(_columns(margin, slice(low, high)) if isinstance(margin, Marginal) else margin)
    return Chain(jax.tree.map(lambda leaf: leaf[..., first : last - 1], chain.copulas), tuple(margins))


def _columns(marginal: Marginal, columns: slice) -> Marginal:
    """Some of a model's marginals."""
    return map_marginal(lambda leaf, core: leaf[(..., columns, *[slice(None)] * core)], marginal)


@jax.jit
def _last_rank(ranked: Ranks) -> jax.Array:
    """(B, S) ranks of the last margin's values; of those in a mass its middle, as the mass is drawn from anew."""
    last = jax.tree.map(lambda leaf: leaf[:, -1], ranked)
    if last.side is None:
        return last.u

    def of_one(one: Ranks) -> jax.Array:
        start, end = masses_of(one)
        return jnp.where(one.side == SMOOTH, one.u, ((start + end) / 2)[mass_number(one)])

    return jax.vmap(of_one)(last)


def _flat_links(chain: Chain, batch: Shape) -> Copula:
    """The copulas (B, k − 1)."""
    return jax.tree.map(lambda leaf: _flat(leaf, (*batch, chain.size - 1)), chain.copulas)


@jax.jit
def _links(copulas: Copula, ranked: Ranks) -> jax.Array:
    """(B, S) what the copulas (B, k − 1) say of ranks (B, k, S)."""
    first, second = (jax.tree.map(lambda leaf, s=s: leaf[:, s], ranked) for s in (slice(-1), slice(1, None)))
    return jax.vmap(jax.vmap(log_likelihood))(copulas, first, second).sum(1)


@jax.jit
def _walk(
    rank: jax.Array, copulas: Copula, edges: tuple[jax.Array, jax.Array], draws: jax.Array, renewing: jax.Array
) -> jax.Array:
    """(m, B, S) the next m ranks of chains.

    Args:
        rank: (B, S) of the margin before.
        copulas: (B, m) to each next margin.
        edges: (B, m + 1, M) of the masses, of the margin before too.
        draws, renewing: (m, B, S) uniform, of the next rank and of the place in a mass before it.
    """

    def advance(rank: jax.Array, step: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
        copula, (start, end), draw, again = step
        inside = (rank[..., None] > start[:, None]) & (rank[..., None] <= end[:, None])
        renewed = (inside * (start[:, None] + (end - start)[:, None] * again[..., None])).sum(-1)
        rank = open_unit(jnp.where(inside.any(-1), renewed, rank))
        rank = jax.vmap(lambda one, u, p: one.inverse_conditional(u, p))(copula, rank, draw)
        return rank, rank

    links = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), copulas)
    before = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0)[:-1], edges)
    # Like what comes next, so that under `jax.shard_map` both vary over the same devices.
    start = rank + jnp.zeros_like(sum(leaf.sum() for leaf in jax.tree.leaves((links, before, draws))), rank.dtype)
    return jax.lax.scan(advance, start, (links, before, draws, renewing))[1]


class _Placed(NamedTuple):
    """Where S values of m margins lie, for each entry of the flattened batch B."""

    ranks: Ranks  # (B, m, S); its ends (B, m)
    log_density: jax.Array  # (B, m, S) of the margin; 0 in a mass
    log_mass: jax.Array  # (B, m, S) of the mass; 0 in the smooth part
    inside: jax.Array  # (B, m, S) bool: there is density or mass


def _locate(chain: Chain, rows: jax.Array, batch: Shape) -> _Placed:
    """Rows (S, *batch, k) among their margins."""
    atoms = max(map(_atoms, chain.margins))
    placed, first = [], 0
    for margin in chain.margins:
        values = rows[..., first : first + _width(margin)]
        first += values.shape[-1]
        if not isinstance(margin, Marginal):
            placed.append(_beside(margin, values))
            continue
        columns = jnp.moveaxis(values.reshape(len(values), -1, values.shape[-1]), 0, -1)
        placed.append(_of_marginals(_flat_marginal(margin, (*batch, values.shape[-1])), columns, atoms))
    if not any(isinstance(margin, Marginal) for margin in chain.margins):
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, 1), *placed)
    sided = [p if p.ranks.side is not None else _with_sides(p, atoms) for p in placed]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, 1), *sided)


@partial(jax.jit, static_argnames="atoms")
def _of_marginals(marginals: Marginal, values: jax.Array, atoms: int) -> _Placed:
    """Values (B, m, S) of marginals (B, m)."""
    return jax.vmap(jax.vmap(lambda one, x: _of_marginal(one, x, atoms)))(marginals, values)


def _of_marginal(marginal: Marginal, value: jax.Array, atoms: int) -> _Placed:
    """Values (S,) of one marginal."""
    placed = ranks(marginal, value)
    side = jnp.asarray(placed.side)
    start, end = masses_of(placed)
    smooth, mass = side == SMOOTH, (end - start)[mass_number(placed)]
    possible = jnp.where(smooth, marginal.smooth, mass) > 0
    inside = (value >= marginal.lowest) & (value <= marginal.highest) & possible
    log_density = jnp.where(smooth, _log_density(marginal, value, smooth & inside), 0.0)
    log_mass = jnp.where(smooth, 0.0, jnp.log(jnp.where(smooth | ~possible, 1.0, mass)))
    return _Placed(_with_atoms(placed, atoms), log_density, log_mass, inside)


def _log_density(marginal: Marginal, value: jax.Array, inside: jax.Array) -> jax.Array:
    """(S,) log density of the smooth part; of values that are not `inside` it, something finite."""
    width, smooth = (jnp.where(x > 0, x, 1.0) for x in (marginal.highest - marginal.lowest, marginal.smooth))
    x = open_unit(jnp.where(inside, (value - marginal.lowest) / width, 0.5))[..., None]
    log_power = (marginal.a - 1) * jnp.log(x) + (marginal.b - 1) * jnp.log1p(-x) - betaln(marginal.a, marginal.b)
    return special.logsumexp(log_power, axis=-1, b=marginal.proportion) + jnp.log(smooth) - jnp.log(width)


def _beside(margin: Any, rows: jax.Array) -> _Placed:
    """Rows (S, *batch, 1) of a smooth margin."""
    value = rows[..., 0]

    def flat(x: ArrayLike) -> jax.Array:
        return jnp.broadcast_to(x, value.shape).reshape(value.shape[0], -1).T[:, None]

    u, log_density = flat(open_unit(margin.cdf(value))), flat(margin.log_prob(value))
    none, one = jnp.zeros(u.shape[:2], u.dtype), jnp.ones(u.shape[:2], u.dtype)
    return _Placed(Ranks(u, none, one, None), log_density, jnp.zeros_like(u), jnp.ones(u.shape, bool))


def _with_sides(placed: _Placed, atoms: int) -> _Placed:
    """A smooth margin beside one with masses."""
    ranked = dataclasses.replace(placed.ranks, side=jnp.full(placed.ranks.u.shape, SMOOTH))
    return placed._replace(ranks=_with_atoms(ranked, atoms))


def _with_atoms(placed: Ranks, atoms: int) -> Ranks:
    """Ranks with so many places for atoms, of which the last have no width; None for none, as margins must agree."""
    start, end = placed.atoms or (jnp.zeros((*placed.lowest.shape, 0), placed.u.dtype),) * 2
    if not atoms:
        return placed
    fill = jnp.broadcast_to(placed.highest[..., None], (*placed.lowest.shape, atoms - start.shape[-1]))
    return dataclasses.replace(placed, atoms=tuple(jnp.concatenate([edge, fill], -1) for edge in (start, end)))


def _edges(chain: Chain, batch: Shape) -> tuple[jax.Array, jax.Array]:
    """(start, end), each (B, k, M), of the point masses as ranks; smooth margins have masses without width."""
    atoms = max(map(_atoms, chain.margins))
    none = jnp.zeros((math.prod(batch), 1, 2 + atoms))
    edges = [
        _marginal_edges(_flat_marginal(margin, (*batch, _width(margin))), atoms)
        if isinstance(margin, Marginal)
        else (none, none)
        for margin in chain.margins
    ]
    start, end = (jnp.concatenate(parts, 1) for parts in zip(*edges, strict=True))
    return start, end


@partial(jax.jit, static_argnames="atoms")
def _marginal_edges(marginals: Marginal, atoms: int) -> tuple[jax.Array, jax.Array]:
    """`masses_of` of marginals (B, m)."""

    def of_one(marginal: Marginal) -> tuple[jax.Array, jax.Array]:
        return masses_of(_with_atoms(ranks(marginal, marginal.lowest[None]), atoms))

    return jax.vmap(jax.vmap(of_one))(marginals)


def _quantiles(chain: Chain, levels: jax.Array, batch: Shape) -> jax.Array:
    """(S, *batch, k) the margins' quantiles at levels (k, B, S)."""
    columns, first = [], 0
    for margin in chain.margins:
        margin_levels = levels[first : first + _width(margin)]
        if isinstance(margin, Marginal):
            flat = _flat_marginal(margin, (*batch, margin_levels.shape[0]))
            value = jnp.moveaxis(_marginal_quantiles(flat, jnp.moveaxis(margin_levels, 0, 1)), -1, 0)
            columns.append(value.reshape(-1, *batch, margin_levels.shape[0]))
        else:
            quantile = getattr(margin, "quantile", None) or margin.icdf  # TensorFlow Probability's name, and NumPyro's
            columns.append(quantile(margin_levels[0].T.reshape(-1, *batch))[..., None])
        first += margin_levels.shape[0]
    return jnp.concatenate(columns, -1)


@jax.jit
def _marginal_quantiles(marginals: Marginal, levels: jax.Array) -> jax.Array:
    """(B, m, S) quantiles of marginals (B, m)."""
    return jax.vmap(jax.vmap(Marginal.quantile))(marginals, levels)


def _width(margin: Any) -> int:
    return jnp.shape(margin.lowest)[-1] if isinstance(margin, Marginal) else 1


def _atoms(margin: Any) -> int:
    return jnp.shape(margin.atoms.mass)[-1] if isinstance(margin, Marginal) and margin.atoms is not None else 0


def _flat(leaf: ArrayLike, shape: Shape, core: int = 0) -> jax.Array:
    """An array broadcast to (*batch, m), with its own axes behind, as (B, m, …)."""
    leaf = jnp.asarray(leaf)
    behind = leaf.shape[leaf.ndim - core :]
    return jnp.broadcast_to(leaf, (*shape, *behind)).reshape(math.prod(shape[:-1]), shape[-1], *behind)


def _flat_marginal(marginal: Marginal, shape: Shape) -> Marginal:
    return map_marginal(lambda leaf, core: _flat(jnp.asarray(leaf, jnp.result_type(float)), shape, core), marginal)


def map_marginal(function: Callable[[Any, int], Any], marginal: Marginal) -> Marginal:
    """A function of an array and its number of axes behind those of the batch, of all of a marginal's arrays."""
    fields = {f.name: getattr(marginal, f.name) for f in dataclasses.fields(marginal)}
    mapped = {
        name: jax.tree.map(lambda leaf, core=int(name in (*_PARTS, "atoms")): function(leaf, core), value)
        for name, value in fields.items()
    }
    return Marginal(**mapped)
