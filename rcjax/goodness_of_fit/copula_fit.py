"""Goodness of fit of a pair's copula: does the family describe how the confidences of two models move together?

With C_n the empirical copula of a pair's ranks Û, V̂ and C_θ the family's member of greatest likelihood (Genest,
Rémillard & Beaudoin 2009, "Goodness-of-fit tests for copulas: a review and a power study"):

    S_n = Σ_i (C_n(Û_i, V̂_i) − C_θ(Û_i, V̂_i))²

Its law depends on θ and on how the margins tie, so p-values come from a parametric bootstrap of the whole: each
replicate is drawn from C_θ, tied where the log is tied, ranked and fitted again. The paper's own test ranks the data
but not the replicates, whose empirical copula then strays from C_θ much further than that of ranks: it rejects
nothing (`python -m benchmarks.goodness_of_fit study`).
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import ArrayLike

from rcjax._core.batching import fill_up, part
from rcjax._core.compilation import compiled
from rcjax._core.kendall import kendall_tau
from rcjax._core.numerics import open_unit, sorted_numbers
from rcjax.copulas import Copula
from rcjax.goodness_of_fit.bootstrap import bootstrap_size, in_batches, p_value, replicate
from rcjax.model.copula_fitting import fit_pair
from rcjax.model.pair_likelihood import SMOOTH, Ranks

#: Observations that are compared with all others at a time.
_ROWS = 32
#: Queries × queries × replicates whose comparisons are held at a time.
_BATCH = 2**21


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CopulaTest:
    """The goodness of fit of a family to a pair. Leading axes batch it."""

    copula: Copula  # the member of the family that the ranks make likeliest
    process: jax.Array  # () S_n
    process_p: jax.Array  # () its p-value
    distance: jax.Array  # () √(S_n / n), the root mean squared gap between C_n and C_θ, in probability
    n: jax.Array  # () observations


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ties:
    """Where the values of a margin tie, on its scale of ranks over m, in slots of one observation each."""

    upper: jax.Array  # (n,) how many of the m values are at most that of the slot
    tied: jax.Array  # (n,) whether the slot shares its value with another
    m: jax.Array  # () values present

    @classmethod
    def of(cls, values: jax.Array, present: jax.Array) -> "Ties":
        """The ties among the values (n,) that are present (n,)."""
        ordered = jnp.sort(jnp.where(present, values, jnp.inf))
        upper = jnp.searchsorted(ordered, ordered, side="right")
        tied = upper - jnp.searchsorted(ordered, ordered, side="left") > 1
        return cls(upper, tied, present.sum())

    def upper_end(self, values: jax.Array, present: jax.Array, of: jax.Array) -> jax.Array:
        """(A,) where `impose` puts what falls among each of the values `of` (A,); infinite where that is."""
        ordered = jnp.sort(jnp.where(present, values, jnp.inf))
        return jnp.where(jnp.isfinite(of), jnp.searchsorted(ordered, of, side="right") / self.m, jnp.inf)

    def impose(self, u: jax.Array) -> jax.Array:
        """u (…) in (0, 1), with what falls among tied values moved to their common upper end."""
        slot = jnp.clip((u * self.m).astype(int), 0, jnp.maximum(self.m - 1, 0))
        return jnp.where(self.tied[slot], self.upper[slot] / self.m, u)


def copula_test(
    family: type[Copula],
    x: ArrayLike,
    y: ArrayLike,
    present: ArrayLike,
    key: jax.Array,
    replicates: int = 1000,
    atoms: tuple[ArrayLike, ArrayLike] | None = None,
) -> CopulaTest:
    """S_n of a family on one or more pairs of models, with bootstrapped p-values, in one compiled call.

    p = (exceedances + ½)/(replicates drawn + 1): none is drawn any more once p cannot be significant. Replicates
    without a finite statistic are left out of the count, and p is NaN if the data have none. Ties of the log, the
    point masses among them, are imposed on every replicate (Kojadinovic 2017, "Some copula inference procedures adapted
    to the presence of ties").

    Args:
        family: the family of copulas.
        x, y: (…, n) the confidences of the two models.
        present: (…, n) whether both answered the query.
        key: one key of JAX for all pairs.
        replicates: how many are drawn at most.
        atoms: (…, A) confidences that either model states again and again, which are fitted as point masses as those
            at the ends are; infinite where there are fewer. None: there are none.

    >>> from rcjax.copulas import Gumbel
    >>> u, v = Gumbel(2.0).sample(jax.random.key(0), (200,))
    >>> test = copula_test(Gumbel, u, v, jnp.ones(200, bool), jax.random.key(1), replicates=100)
    >>> bool(test.process_p > 0.05), bool(test.distance < 0.02)
    (True, True)
    """
    shape, n = np.shape(x)[:-1], np.shape(x)[-1]
    rows = [np.asarray(array).reshape(-1, n) for array in (x, y, np.broadcast_to(present, np.shape(x)))]
    rows = fill_up(*rows, axis=-1, size=bootstrap_size(n))
    batch = max(1, _BATCH // rows[0].shape[-1] ** 2)
    stated = None if atoms is None else tuple(np.reshape(values, (-1, np.shape(values)[-1])) for values in atoms)
    tests = _copula_tests(*rows, _taus(*rows), key, stated, family=family, replicates=replicates, batch=batch)
    return jax.tree.map(lambda leaf: leaf.reshape(shape), tests)


_taus = compiled(jax.vmap(kendall_tau))


@partial(compiled, static_argnames=("family", "replicates", "batch"), runs="long")
def _copula_tests(
    x: jax.Array,
    y: jax.Array,
    present: jax.Array,
    tau: jax.Array,
    key: jax.Array,
    atoms: tuple[jax.Array, jax.Array] | None,
    family: type[Copula],
    replicates: int,
    batch: int,
) -> CopulaTest:
    keys = jax.random.split(key, x.shape[0])
    return lax.map(lambda pair: _copula_test(family, pair, replicates, batch), (x, y, present, tau, keys, atoms))


def _copula_test(family: type[Copula], pair: tuple[Any, ...], replicates: int, batch: int) -> CopulaTest:
    x, y, present, tau, key, atoms = pair
    margins = Ties.of(x, present), Ties.of(y, present)
    drawn_atoms = None
    if atoms is not None:
        rows = zip(margins, (x, y), atoms, strict=True)
        drawn_atoms = tuple(margin.upper_end(values, present, stated) for margin, values, stated in rows)

    def judge(state: tuple[Copula, jax.Array, jax.Array], keys: jax.Array) -> tuple[Any, Any, Any]:
        """The statistics of a batch of samples of the copula that is known; before one is, that of the log itself.

        In one loop, so that the statistic, which takes long to compile, is compiled once.
        """
        copula, drawing, observed = state
        start = jnp.where(drawing, copula.tau(), tau)

        def one(key: jax.Array) -> tuple[Copula, jax.Array]:
            drawn = (margin.impose(u) for margin, u in zip(margins, _draw(copula, key, len(x)), strict=True))
            first, second = (jnp.where(drawing, new, value) for new, value in zip(drawn, (x, y), strict=True))
            current = jax.tree.map(lambda new, value: jnp.where(drawing, new, value), drawn_atoms, atoms)
            return fitted_process(family, first, second, present, start, current)

        figures = jax.vmap(one)(keys)
        copula, observed = jax.tree.map(lambda old, new: jnp.where(drawing, old, new[0]), (copula, observed), figures)
        return (copula, jnp.ones((), bool), observed), observed, jnp.where(drawing, figures[1], jnp.nan)

    nothing = tau * jnp.nan
    unknown = family(**dict.fromkeys(family.supports, nothing))
    keys = in_batches(jax.random.split(key, replicates), batch)
    keys = jnp.concatenate([keys[:1], keys])  # one more, for the log
    (copula, *_), process, drawn = replicate(judge, (unknown, jnp.zeros((), bool), nothing), keys, replicates)
    n = present.sum()
    return CopulaTest(copula, process, p_value(process, drawn[keys.shape[1] :][:replicates]), jnp.sqrt(process / n), n)


def _draw(copula: Copula, key: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """(u, v), each (n,), as `Copula.sample` draws them, but that those of a query do not depend on n."""
    u, p = open_unit(jax.random.uniform(key, (n, 2)).T)
    return u, copula.inverse_conditional(u, p)


def fitted_process(
    family: type[Copula],
    x: jax.Array,
    y: jax.Array,
    present: jax.Array,
    tau: jax.Array,
    atoms: tuple[jax.Array, jax.Array] | None = None,
) -> tuple[Copula, jax.Array]:
    """(the member fitted to the ranks, S_n) of one pair.

    Args:
        family: the family of copulas.
        x, y: (n,) the confidences of the two models.
        present: (n,) whether both answered the query.
        tau: () where the search for the member starts.
        atoms: (A,) values of x, and of y, that are point masses between the ends; infinite where there are fewer.
    """
    both = jnp.stack([x, y])
    counts = jax.vmap(present_counts, (0, None))(both, present)
    stated = None if atoms is None else jnp.stack(atoms)
    ranked = jax.vmap(ranks_of_values, (0, None, 0, 0))(both, present, counts, stated)
    weights = present.astype(x.dtype)
    copula = fit_pair(family, part(ranked, 0), part(ranked, 1), weights, tau).copula
    through = counts[1]
    u, v = through / (weights.sum() + 1)
    x_rank, y_rank = through.astype(jnp.int32)
    gap = empirical_copula(x_rank, y_rank, present) - copula.cdf(u, v)
    return copula, jnp.where(present, gap**2, 0.0).sum()


def present_counts(values: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(values below, values at or below), each (n,), of every value among those (n,) that are present (n,).

    >>> [count.tolist() for count in present_counts(jnp.array([0.1, 0.4, 0.1]), jnp.ones(3, bool))]
    [[0.0, 2.0, 0.0], [2.0, 3.0, 2.0]]
    """
    values = jnp.where(present, values, jnp.inf)
    ordered = sorted_numbers(values)
    below, through = (jnp.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return below.astype(values.dtype), jnp.minimum(through, present.sum(dtype=through.dtype)).astype(values.dtype)


def ranks_of_values(
    values: jax.Array, present: jax.Array, counts: tuple[jax.Array, jax.Array], atoms: jax.Array | None
) -> Ranks:
    """Ranks without a model of the margin (the semiparametric variant): mid-ranks over the number plus one.

    Values tied with the least (the largest) form a point mass, and so do those tied at an atom between; other ties
    share a mid-rank. Genest, Ghoudi & Rivest (1995), "A semiparametric estimation procedure of dependence parameters".

    Args:
        values: (n,) of the observations.
        present: (n,) whether each counts.
        counts: their `present_counts`.
        atoms: (A,) values that are to be point masses; infinite where there are fewer. None: there are none.

    >>> rows = jnp.array([0.1, 0.5, 0.5, 0.9]), jnp.ones(4, bool)
    >>> ranked = ranks_of_values(*rows, present_counts(*rows), jnp.array([0.5]))
    >>> ranked.u.tolist(), ranked.mass.tolist(), ranked.start.round(2).tolist(), ranked.end.round(2).tolist()
    ([0.2..., 0.5, 0.5, 0.8...], [-1, 1, 1, -1], [0.0, 0.199..., 1.0], [0.0, 0.599..., 1.0])
    """
    below, through = counts
    count, total = through - below, present.sum(dtype=values.dtype)
    scale = 1 / (total + 1)
    # With the values themselves, a lone least value is an observation like any other; a tie is a mass.
    low, high = (below == 0) & (count > 1), (through == total) & (count > 1) & (below > 0)
    lowest = jnp.max(jnp.where(low, through, 0.0), keepdims=True) * scale
    highest = 1 - jnp.max(jnp.where(high, count, 0.0), keepdims=True) * scale
    starts, ends = [jnp.zeros_like(lowest), highest], [lowest, jnp.ones_like(highest)]
    mass = SMOOTH
    if atoms is not None:
        order = jnp.sort(atoms)
        ordered = jnp.sort(jnp.where(present, values, jnp.inf))
        before, until = (jnp.searchsorted(ordered, order, side=side) for side in ("left", "right"))
        between = (before > 0) & (until < total) & (until - before > 1) & jnp.isfinite(order)
        # A mass starts where the ranks before it end; one that is none has no width.
        start = jnp.where(between, before * scale, 1 - scale)
        starts.insert(1, start)
        ends.insert(1, jnp.where(between, until * scale, start))
        here = (values[:, None] == order) & between
        mass = jnp.where(here.any(-1), 1 + jnp.argmax(here, axis=-1), SMOOTH)
    start, end = jnp.concatenate(starts), jnp.concatenate(ends)
    mass = jnp.where(low, 0, jnp.where(high, len(start) - 1, mass))
    return Ranks((below + (count + 1) / 2) * scale, mass, start, end)


def empirical_copula(x: jax.Array, y: jax.Array, present: jax.Array) -> jax.Array:
    """C_n (n,): the share of the observations present that lies below each in both of x, y (n,). O(n²) comparisons.

    >>> empirical_copula(jnp.array([1, 2, 3]), jnp.array([1, 3, 2]), jnp.ones(3, bool)).tolist()
    [0.333..., 0.666..., 0.666...]
    """
    # Along the first axis, in 32 bits: XLA then counts a row of observations at a time. So many that what is compared
    # stays in the fastest cache, and is not written down.
    rows = [jnp.pad(column, (0, -len(x) % _ROWS)).reshape(-1, _ROWS, 1) for column in (x, y, present)]

    def add(count: jax.Array, some: list[jax.Array]) -> tuple[jax.Array, None]:
        first, second, there = some
        return count + ((first <= x) & (second <= y) & there).sum(0, dtype=jnp.int32), None

    return lax.scan(add, jnp.zeros(len(x), jnp.int32), rows)[0] / jnp.maximum(present.sum(), 1)
