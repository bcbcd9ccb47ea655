"""The likelihood of confidences: of a pair under a copula, exact at point masses, and of a chain; draws of a chain.

A confidence lies in a point mass of its margin or in the smooth part. The likelihood of a pair differentiates C along
smooth coordinates and differences it along masses (section 5 of Genest & Nešlehová 2007, "A primer on copulas for count
data"):

                        v smooth                        v in a mass (c, d]
    u smooth            c(u, v)                         h(d given u) − h(c given u)
    u in a mass (a, b]  ∂C/∂v (b, v) − ∂C/∂v (a, v)     C(b, d) − C(a, d) − C(b, c) + C(a, c)

with h = ∂C/∂u. A mass at an end, where a = 0 or b = 1, needs one evaluation per cell, at the corner that loses no
digits. The densities of the margins' smooth parts are left out.

Marginals F_1 … F_k and copulas C_1 … C_{k−1} of neighbours define a Markov chain (section 4.3 of the paper). With
smooth marginals its density is

    p(x) = Π_j f_j(x_j) · Π_j c_j(F_j(x_j), F_{j+1}(x_{j+1}))

With point masses, a value in a mass counts with its probability, a value in the smooth part with its density, and
neighbours with the likelihood of their pair. The integral of p over the smooth parts plus its sum over the masses is 1.
Values of log p are comparable if they lie in the same masses: p is a likelihood for the parameters of copulas and
mixtures and for the sizes of masses, but not for their places.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rcjax._core.batching import take_entries, with_automatic_axes
from rcjax._core.compilation import compiled
from rcjax._core.numerics import Unit, as_floats, open_unit, unit
from rcjax.copulas import Copula
from rcjax.model.marginals import Marginal

SMOOTH = -1
"""Mass number of an observation in the smooth part."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ranks:
    """Ranks of observations of one margin, with its point masses; a leading axis batches it over margins.

    Masses are in the order of their values: the first starts at rank 0, and the last ends at 1.
    """

    u: jax.Array  # (n,) rank F(φ); any number in a point mass
    mass: jax.Array | None = None  # (n,) number of the observation's mass, or SMOOTH; None: the margin has no masses
    start: jax.Array | None = None  # (S,) rank at which each mass starts
    end: jax.Array | None = None  # (S,) rank at which each mass ends

    @property
    def masses(self) -> tuple[jax.Array, jax.Array]:
        """(S,) rank at which each mass starts, and (S,) rank at which each ends, for a margin with masses."""
        assert self.start is not None
        assert self.end is not None
        return self.start, self.end


def compute_ranks(marginal: Marginal, confidence: jax.Array) -> Ranks:
    """Compute ranks of confidences (n,) under a fitted marginal, differentiable in its parameters.

    >>> marginal = Marginal(0., 1., 0.2, 0.3, jnp.array([0.5, 0.5]), jnp.ones(2), jnp.ones(2))
    >>> placed = compute_ranks(marginal, jnp.array([0.0, 0.5, 1.0]))
    >>> placed.mass.tolist(), round(float(placed.u[1]), 4)
    ([0, -1, 1], 0.45)
    """
    start, end = marginal.mass_ranks()
    mass = jnp.where(confidence <= marginal.lowest, 0, SMOOTH)
    if marginal.atoms is not None:
        at_atom = marginal.mark_atom(confidence)
        mass = jnp.where((mass == SMOOTH) & at_atom.any(-1), 1 + jnp.argmax(at_atom, axis=-1), mass)
    # If φ_min = φ_max, all confidences are in the mass at φ_max.
    mass = jnp.where(confidence >= marginal.highest, len(start) - 1, mass)
    # Observations in a mass need no rank; any inner point keeps gradients finite.
    inside = jnp.where(mass == SMOOTH, confidence, (marginal.lowest + marginal.highest) / 2)
    return Ranks(marginal.cdf(inside), mass, start, end)


def log_likelihood(copula: Copula, first: Ranks, second: Ranks) -> jax.Array:
    """Return the log-likelihood of each observation of a pair, without the densities of its margins: (n,).

    It is differentiable in the copula's parameters and in the ranks. `vmap` it over pairs. Raises ValueError if one
    margin has masses and the other has none.

    >>> from rcjax.copulas import Gumbel
    >>> ends = Ranks(jnp.array([0.5, 0.5]), jnp.array([0, 1]), jnp.array([0.0, 0.5]), jnp.array([0.5, 1.0]))
    >>> [round(float(corner), 4) for corner in log_likelihood(Gumbel(1.0), ends, ends)]  # corners of a quarter each
    [-1.3863, -1.3863]
    """
    return _make_terms(copula, first, second)(copula)


def weighted_sum(copula: Copula, first: Ranks, second: Ranks, weights: jax.Array) -> Callable[[Copula], jax.Array]:
    """Return the function copula ↦ Σ weight · log-likelihood, for all members of one family.

    Args:
        copula: any member of the family; it computes the scores of the ranks that all members share.
        first, second: ranks of the n observations under their two margins.
        weights: (n,) weight of each observation; terms of weight 0 are ignored, even NaN.
    """
    terms = _make_terms(copula, first, second)
    return lambda member: jnp.sum(weights * jnp.where(weights > 0, terms(member), 0.0))


def _make_terms(copula: Copula, first: Ranks, second: Ranks) -> Callable[[Any], jax.Array]:
    """Return the log-likelihood of each observation (n,) as a function of the member of the family."""
    if (first.mass is None) != (second.mass is None):
        raise ValueError("one margin has point masses and the other none: give both of them masses")
    # Ranks in both margins; ½ for observations in a mass, whose density is not used.
    smooth = (r.u if r.mass is None else jnp.where(r.mass == SMOOTH, r.u, 0.5) for r in (first, second))
    u, v = (copula.with_score(unit(rank)) for rank in smooth)

    def density(member: Any) -> jax.Array:
        return member.two_sided_log_density(u, v)

    if first.mass is None:
        return density
    smooth_u, smooth_v = first.mass == SMOOTH, second.mass == SMOOTH
    in_strip = _make_strips(copula, (first, second), (u, v))
    in_cell = cell_likelihoods(copula, first.masses, second.masses)

    def of_member(member: Any) -> jax.Array:
        cell = in_cell(member)[first.mass, second.mass]
        masses = jnp.where(smooth_u | smooth_v, in_strip(member), cell)
        return jnp.where(smooth_u & smooth_v, density(member), masses)

    return of_member


def _make_strips(copula: Copula, margins: tuple[Ranks, Ranks], smooth: tuple[Unit, Unit]) -> Callable[[Any], jax.Array]:
    """Return log P(mass of one margin | smooth value of the other) (n,) as a function of the member of the family.

    The probability of a mass at an end is the conditional at its inner edge; of an atom, a difference of two. `copula`
    may be any member of the family: it computes the scores that all members share. `smooth` are the ranks in both
    margins, with their scores.
    """
    u, v = smooth
    smooth_u = margins[0].mass == SMOOTH
    masses = [margin.masses for margin in margins]
    numbers = [jnp.maximum(jnp.asarray(margin.mass), 0) for margin in margins]
    tops = [number == len(start) - 1 for number, (start, _) in zip(numbers, masses, strict=True)]
    number, top = jnp.where(smooth_u, numbers[1], numbers[0]), jnp.where(smooth_u, tops[1], tops[0])

    def at_edges(edges: Iterable[jax.Array]) -> Callable[[Any], Any]:
        end_u, end_v = (copula.with_score(unit(edge)) for edge in edges)
        return lambda member: _conditional(member, smooth_u, (u, end_u), (v, end_v))

    rows = list(zip(masses, numbers, tops, strict=True))
    inside = at_edges(jnp.where(is_last, start[mass], end[mass]) for (start, end), mass, is_last in rows)
    have_atoms = any(len(start) > 2 for start, _ in masses)
    starting = at_edges(start[mass] for (start, _), mass, _ in rows) if have_atoms else None

    def of_member(member: Any) -> jax.Array:
        near = inside(member)
        outermost = jnp.where(top, near.log_complement, near.log)
        if starting is None:
            return outermost
        # Subtract the probabilities or their complements, whichever are smaller.
        below = starting(member)
        between = jnp.where(near.value < 0.5, near.value - below.value, below.complement - near.complement)
        between = jnp.log(jnp.maximum(between, jnp.finfo(between.dtype).tiny))
        return jnp.where(top | (number == 0), outermost, between)

    return of_member


def _conditional(copula: Any, smooth_u: jax.Array, first: tuple[Unit, Unit], second: tuple[Unit, Unit]) -> Any:
    """Return P(other margin ≤ edge | smooth margin); the smooth margin is u where `smooth_u`, else v."""
    (u, end_u), (v, end_v) = first, second
    if copula.exchangeable:
        return copula.two_sided_conditional(_choose(smooth_u, u, v), _choose(smooth_u, end_v, end_u))
    by_u, by_v = copula.two_sided_conditional(u, end_v), copula.two_sided_conditional_on_v(end_u, v)
    return _choose(smooth_u, by_u, by_v)


def _choose(condition: jax.Array, first: Unit, second: Unit) -> Unit:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), first, second)


def cell_likelihoods(
    copula: Copula, first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]
) -> Callable[[Any], jax.Array]:
    """Return log P(U in mass s, V in mass t) (S, T) as a function of the member of the family.

    `copula` may be any member: it computes the scores that all share. `first` and `second` are (starts, ends) of the
    masses of both margins, (S,) and (T,) each, from rank 0 to rank 1.
    """
    # The copula is evaluated at the edges inside (0, 1): ends of all but the last mass, starts of all but the first.
    edges = [jnp.stack([end[:-1], start[1:]], axis=-1).reshape(-1) for start, end in (first, second)]
    lattice = copula.with_score(unit(edges[0][:, None])), copula.with_score(unit(edges[1]))
    middle = [(start + end) / 2 for start, end in (first, second)]
    upper = [(m > 0.5).at[0].set(False).at[-1].set(True) for m in middle]
    right, high = upper[0][:, None], upper[1]
    u, v = lattice[0].value, lattice[1].value

    def of_member(member: Any) -> jax.Array:
        below, above = member.two_sided_cdf(*lattice)
        # Each cell takes the quadrant of its nearest corner of the square, whose probabilities are small.
        quadrants = [below, jnp.maximum(u - below, 0.0), jnp.maximum(v - below, 0.0), above]
        lower_left, upper_left, lower_right, upper_right = (
            _cell_probabilities(_with_outer_edges(quadrant, u, v, number), number)
            for number, quadrant in enumerate(quadrants)
        )
        mass = jnp.where(right, jnp.where(high, upper_right, lower_right), jnp.where(high, upper_left, lower_left))
        return jnp.log(jnp.maximum(mass, jnp.finfo(mass.dtype).tiny))

    return of_member


def _with_outer_edges(quadrant: jax.Array, u: jax.Array, v: jax.Array, number: int) -> jax.Array:
    """Extend the probabilities of a quadrant from the inner edges (E, F) to all edges, with 0 and 1.

    Quadrants are below both edges (0), left of u and above v (1), right of u and below v (2), above both (3).
    """
    left, low = number in (0, 1), number in (0, 2)
    u, v = jnp.pad(u[:, 0], 1, constant_values=(0.0, 1.0)), jnp.pad(v, 1, constant_values=(0.0, 1.0))
    # At ranks 0 and 1 a quadrant is empty, or has a margin's probability.
    end_u, end_v = (np.arange(size) == (size - 1 if far else 0) for size, far in ((len(u), left), (len(v), low)))
    by_u, by_v = (u if left else 1 - u)[:, None], v if low else 1 - v
    return jnp.where(end_u[:, None], by_v, jnp.where(end_v, by_u, jnp.pad(quadrant, 1)))


def _cell_probabilities(table: jax.Array, number: int) -> jax.Array:
    """Compute the probability of each cell from those of a quadrant at the edges (2S, 2T): (S, T).

    Starts and ends of masses alternate among the edges.
    """
    start, end = table[0::2], table[1::2]
    sign_u, sign_v = (1 if number in (0, 1) else -1), (1 if number in (0, 2) else -1)
    strip = sign_u * (end - start)
    return sign_v * (strip[:, 1::2] - strip[:, 0::2])


#: Ties bias Kendall's τ-b if a larger share of the answers is at atoms, or a smaller share in the smooth part.
_MAX_AT_ATOMS, _MIN_SMOOTH = 0.05, 0.1


@compiled  # one program in place of a dozen single operations
def pairs_by_likelihood(marginals: Marginal) -> jax.Array:
    """Mark the pairs of k models with heavy ties, whose copulas are fitted by likelihood: (P,) bool.

    A model of such a pair gives few values: its atoms hold more than a twentieth of its answers, or its smooth part
    less than a tenth.

    >>> ends = map(np.asarray, ([0.0] * 2, [1.0] * 2, [0.1, 0.5], [0.1, 0.5]))
    >>> uniform = Marginal(*ends, *[np.ones((2, 2)) / 2] * 3)
    >>> pairs_by_likelihood(uniform).tolist()
    [True]
    """
    tied = marginals.smooth_mass < _MIN_SMOOTH
    if marginals.atoms is not None:
        tied |= marginals.atoms.mass.sum(-1) > _MAX_AT_ATOMS
    left, right = np.triu_indices(len(tied), 1)
    return tied[left] | tied[right]


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

        Leading axes of `marginals` (*batch, k) batch it; `copulas` are those of all pairs, in `list_pairs(k)` order.
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
        """Return log p of values (…, k), broadcast against the batch; −∞ outside the supports, NaN for NaN.

        With `clip`, a value beyond an end counts as the end.

        >>> from rcjax import demo_model
        >>> model = demo_model()
        >>> Chain.through(model.marginals, model.copulas).log_prob(model.marginals.highest) > 0  # the log of a density
        Array(False, dtype=bool)
        """
        value = as_floats(value)
        if value.shape[-1:] != (self.size,):
            raise ValueError(f"value has shape {value.shape}; its last axis must be the {self.size} models")
        return with_automatic_axes(partial(_log_prob, clip=clip), self, value, like=value, trailing=1)

    @partial(jax.jit, static_argnames="shape")
    def sample(self, key: jax.Array, shape: Shape = ()) -> jax.Array:
        """Draw values by inverting each conditional given the model before (Rosenblatt 1952): (*shape, *batch, k).

        The next model depends on the value alone. A value in a point mass has no rank of its own, so a rank within the
        mass is drawn anew.
        """
        batch, k = self.batch_shape, self.size
        draws = self.from_uniform(jax.random.uniform(key, (*batch, 2, k, math.prod(shape))))
        return jnp.moveaxis(draws, -2, 0).reshape(*shape, *batch, k)

    def from_uniform(self, uniform: jax.Array) -> jax.Array:
        """Turn uniform numbers (*batch, 2, k, S), levels and places in a mass, into draws: (*batch, S, k)."""

        def draw(chain: Chain, uniform: jax.Array) -> jax.Array:
            levels, renewing = open_unit(uniform)
            if chain.size > 1:
                levels = jnp.concatenate([levels[:1], _draw_ranks(chain, levels[0], levels[1:], renewing[:-1])])
            return jax.vmap(Marginal.quantile, out_axes=-1)(chain.marginals, levels)

        return self.batched(draw, uniform, axes="(n,k,s)->(s,k)")

    def batched(self, function: Callable[..., jax.Array], *arrays: jax.Array, axes: str) -> jax.Array:
        """Map a function of one chain and arrays over the batch; `axes` is a signature of `jnp.vectorize`."""
        leaves, structure = jax.tree.flatten(self)

        def single(*values: jax.Array) -> jax.Array:
            return function(jax.tree.unflatten(structure, values[: len(leaves)]), *values[len(leaves) :])

        return jnp.vectorize(single, signature=",".join([*self._axes(), axes]))(*leaves, *arrays)

    def _axes(self) -> list[str]:
        """Return the axes of each array behind its batch axes, in the notation of `jnp.vectorize`."""
        atoms, copulas = (len(jax.tree.leaves(part)) for part in (self.marginals.atoms, self.copulas))
        return ["(k)"] * 4 + ["(k,c)"] * 3 + ["(k,a)"] * atoms + ["(l)"] * copulas


@partial(jax.jit, static_argnames="clip")
def _log_prob(chain: Chain, value: jax.Array, clip: bool) -> jax.Array:
    def of_chain(chain: Chain, value: jax.Array) -> jax.Array:
        placed = jax.vmap(partial(_locate, clip=clip))(chain.marginals, value)
        total = placed.log_density.sum()
        if chain.size > 1:  # the copulas on both sides count a mass between them
            first, second = take_entries(placed.ranks, slice(-1)), take_entries(placed.ranks, slice(1, None))
            total += jax.vmap(log_likelihood)(chain.copulas, first, second).sum() - placed.log_mass[1:-1].sum()
        else:
            total += placed.log_mass.sum()
        return jnp.where(jnp.isnan(value).any(), jnp.nan, jnp.where(placed.inside.all(), total, -jnp.inf))

    return chain.batched(of_chain, value, axes="(k)->()")


def _draw_ranks(chain: Chain, rank: jax.Array, draws: jax.Array, renewing: jax.Array) -> jax.Array:
    """Draw the ranks of the later marginals of a chain of m + 1 from those of the first (S,): (m, S).

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
    # Added zeros: under `jax.shard_map` the first rank varies over the same devices as the later ranks.
    first = rank + jnp.zeros_like(sum(leaf.sum() for leaf in jax.tree.leaves(steps)), rank.dtype)
    return jax.lax.scan(advance, first, steps)[1]


class _Placed(NamedTuple):
    """Position of a value under its marginal: smooth part or mass."""

    ranks: Ranks
    log_density: jax.Array  # log density of the smooth part; 0 in a mass
    log_mass: jax.Array  # log probability of the mass; 0 in the smooth part
    inside: jax.Array  # bool, whether the value has density or mass


def _locate(marginal: Marginal, value: jax.Array, clip: bool) -> _Placed:
    placed = compute_ranks(marginal, value)
    start, end = placed.masses
    smooth, mass = placed.mass == SMOOTH, (end - start)[placed.mass]
    possible = jnp.where(smooth, marginal.smooth_mass, mass) > 0
    inside = possible  # beyond an end, `compute_ranks` has the mass of that end
    if not clip:
        inside &= (value >= marginal.lowest) & (value <= marginal.highest)
    log_density = jnp.where(smooth, _smooth_log_density(marginal, value, smooth & inside), 0.0)
    log_mass = jnp.where(smooth, 0.0, jnp.log(jnp.where(smooth | ~possible, 1.0, mass)))
    return _Placed(placed, log_density, log_mass, inside)


def _smooth_log_density(marginal: Marginal, value: jax.Array, inside: jax.Array) -> jax.Array:
    """Return the log density of the smooth part; an arbitrary finite number for values not `inside` the part."""
    width, smooth = (jnp.where(x > 0, x, 1.0) for x in (marginal.highest - marginal.lowest, marginal.smooth_mass))
    x = open_unit(jnp.where(inside, (value - marginal.lowest) / width, 0.5))
    return marginal.smooth_log_density(x) + jnp.log(smooth) - jnp.log(width)
