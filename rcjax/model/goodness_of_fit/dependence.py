"""Tests of the dependence between confidences: the copulas of pairs, their comparison, and the Markov property.

The test of a copula asks whether a family describes the dependence between two models' confidences. C_n is the
empirical copula of a pair's ranks Û, V̂, and C_θ the family's maximum likelihood fit (Genest, Rémillard & Beaudoin 2009,
"Goodness-of-fit tests for copulas: a review and a power study"):

    S_n = Σ_i (C_n(Û_i, V̂_i) − C_θ(Û_i, V̂_i))²

The null distribution depends on θ and on the ties of the margins, so p-values come from a parametric bootstrap: each
replicate is drawn from C_θ, tied as the log is, ranked and fitted again. The paper's test ranks the data but not the
replicates. The empirical copula of unranked replicates strays from C_θ much further than that of ranks, and the test
rejects nothing (`python -m benchmarks.goodness_of_fit study`).

The Markov property (section 4.3 of the paper) holds if, given the confidence of the preceding model, earlier
confidences carry no more information about the next. Its test needs no labels.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import ArrayLike

from rcjax._core.batching import pad_to_size_class, take_entries
from rcjax._core.compilation import compiled
from rcjax._core.numerics import divide, kendall_tau, open_unit
from rcjax.copulas import Copula, TailDependence
from rcjax.copulas.families import FAMILIES, as_family
from rcjax.model.goodness_of_fit.bootstrap import bootstrap_size, divide_into_batches, draw_replicates, p_value
from rcjax.model.likelihood import SMOOTH, Ranks
from rcjax.model.maximum_likelihood import CopulaFit, FitStatus, count_parameters, fit_pair

_ROWS = 32  # observations compared with all others at a time
_BATCH = 2**21  # comparisons held in memory at a time: queries × queries × replicates
_STRATUM = 10  # queries per stratum, in which the middle model's confidence hardly varies


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CopulaTest:
    """The goodness of fit of a family to a pair; leading axes batch it."""

    copula: Copula
    """The family's maximum likelihood fit to the ranks."""
    process: jax.Array
    """() S_n."""
    process_p: jax.Array
    """() p-value of S_n."""
    distance: jax.Array
    """() √(S_n / n), the root mean squared gap between C_n and C_θ, in probability."""
    n: jax.Array
    """() number of observations."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ties:
    """The ties of a margin's m values; slot i holds the i-th smallest value, and spans the ranks i/m to (i + 1)/m."""

    upper: jax.Array  # (n,) number of values not above the slot's
    tied: jax.Array  # (n,) whether the slot shares its value with another
    m: jax.Array  # () number of values present

    @classmethod
    def find(cls, values: jax.Array, present: jax.Array) -> "Ties":
        """Find the ties among the values (n,) that are present (n,)."""
        ordered = jnp.sort(jnp.where(present, values, jnp.inf))
        upper = jnp.searchsorted(ordered, ordered, side="right")
        tied = upper - jnp.searchsorted(ordered, ordered, side="left") > 1
        return cls(upper, tied, present.sum())

    def upper_end(self, values: jax.Array, present: jax.Array, atoms: jax.Array) -> jax.Array:
        """Return the rank to which `impose` moves draws tied at each atom (A,): (A,); infinite for infinite atoms."""
        ordered = jnp.sort(jnp.where(present, values, jnp.inf))
        return jnp.where(jnp.isfinite(atoms), jnp.searchsorted(ordered, atoms, side="right") / self.m, jnp.inf)

    def impose(self, u: jax.Array) -> jax.Array:
        """Give draws u (…) in (0, 1) the ties of the margin: draws among tied ranks move to the ranks' upper end."""
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
    """Test a family on one or more pairs of models by S_n, with bootstrap p-values, in one compiled call.

    p = (exceedances + ½)/(replicates drawn + 1); drawing stops once p cannot be significant. Replicates without a
    finite statistic are left out, and p is NaN if the data have none. Every replicate gets the ties of the log, point
    masses included (Kojadinovic 2017, "Some copula inference procedures adapted to the presence of ties").

    Args:
        family: family of copulas.
        x, y: (…, n) confidences of the two models.
        present: (…, n) whether both models answered the query.
        key: one JAX key for all pairs.
        replicates: greatest number of replicates.
        atoms: (…, A) confidences that each model states repeatedly, fitted as point masses; infinite entries are
            padding. None: no atoms.

    >>> from rcjax.copulas import Clayton
    >>> u, v = Clayton(2.0).sample(jax.random.key(0), (300,))
    >>> test = copula_test(Clayton, u, v, jnp.ones(300, bool), jax.random.key(1), replicates=100)
    >>> bool(test.process_p > 0.05), bool(test.distance < 0.02)
    (True, True)
    """
    shape, n = np.shape(x)[:-1], np.shape(x)[-1]
    rows = [np.asarray(array).reshape(-1, n) for array in (x, y, np.broadcast_to(present, np.shape(x)))]
    first, second, both = pad_to_size_class(*rows, axis=-1, size=bootstrap_size(n))
    batch = max(1, _BATCH // first.shape[-1] ** 2)
    stated = None if atoms is None else tuple(np.reshape(values, (-1, np.shape(values)[-1])) for values in atoms)
    tau = _kendall_taus_compiled(first, second, both)
    pairs = _PairSample(first, second, both, tau, jax.random.split(key, len(first)), stated)
    tests = _copula_tests(pairs, family=family, replicates=replicates, batch=batch)
    return jax.tree.map(lambda leaf: leaf.reshape(shape), tests)


class _PairSample(NamedTuple):
    """The confidences of a pair of models on n queries; a leading axis batches it."""

    x: jax.Array  # (n,)
    y: jax.Array  # (n,)
    present: jax.Array  # (n,) whether both models answered the query
    tau: jax.Array  # () Kendall's τ
    key: jax.Array  # () of the replicates
    atoms: tuple[Any, ...] | None  # (A,) confidences that each model states repeatedly


_kendall_taus_compiled = compiled(jax.vmap(kendall_tau))


@partial(compiled, static_argnames=("family", "replicates", "batch"), runs="long")
def _copula_tests(pairs: _PairSample, family: type[Copula], replicates: int, batch: int) -> CopulaTest:
    return lax.map(lambda pair: _copula_test(family, pair, replicates, batch), pairs)


def _copula_test(family: type[Copula], pair: _PairSample, replicates: int, batch: int) -> CopulaTest:
    x, y, present, tau, key, atoms = pair
    margins = Ties.find(x, present), Ties.find(y, present)
    drawn_atoms = None
    if atoms is not None:
        rows = zip(margins, (x, y), atoms, strict=True)
        drawn_atoms = tuple(margin.upper_end(values, present, stated) for margin, values, stated in rows)

    def measure(state: tuple[Copula, jax.Array, jax.Array], keys: jax.Array) -> tuple[Any, Any, Any]:
        """Compute the statistics of a batch of samples from the fitted copula; at the first call, fit the log's copula.

        One function does both, because the statistic takes long to compile.
        """
        copula, drawing, observed = state
        start = jnp.where(drawing, copula.tau(), tau)

        def refit(key: jax.Array) -> tuple[Copula, jax.Array]:
            drawn = (margin.impose(u) for margin, u in zip(margins, _draw_pair(copula, key, len(x)), strict=True))
            first, second = (jnp.where(drawing, new, value) for new, value in zip(drawn, (x, y), strict=True))
            current = jax.tree.map(lambda new, value: jnp.where(drawing, new, value), drawn_atoms, atoms)
            return fitted_process(family, first, second, present, start, current)

        figures = jax.vmap(refit)(keys)
        copula, observed = jax.tree.map(lambda old, new: jnp.where(drawing, old, new[0]), (copula, observed), figures)
        return (copula, jnp.ones((), bool), observed), observed, jnp.where(drawing, figures[1], jnp.nan)

    unknown_figure = tau * jnp.nan
    unknown_copula = family(**dict.fromkeys(family.supports, unknown_figure))
    keys = divide_into_batches(jax.random.split(key, replicates), batch)
    keys = jnp.concatenate([keys[:1], keys])  # the first batch is the log's
    (copula, *_), process, drawn = draw_replicates(
        measure, (unknown_copula, jnp.zeros((), bool), unknown_figure), keys, replicates
    )
    n = present.sum()
    return CopulaTest(copula, process, p_value(process, drawn[keys.shape[1] :][:replicates]), jnp.sqrt(process / n), n)


def _draw_pair(copula: Copula, key: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """Draw (u, v), each (n,), as `Copula.sample` does, with draws of a query that do not depend on n."""
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
    """Fit a family to the ranks of one pair, and return (the copula, S_n).

    Args:
        family: family of copulas.
        x, y: (n,) confidences of the two models.
        present: (n,) whether both models answered the query.
        tau: () Kendall's τ at which the fit starts.
        atoms: (A,) values of x, and of y, that are point masses between the ends; infinite entries are padding.
    """
    pair = jnp.stack([x, y])
    counts = jax.vmap(present_counts, (0, None))(pair, present)
    stated = None if atoms is None else jnp.stack(atoms)
    ranked = jax.vmap(ranks_of_values, (0, None, 0, 0))(pair, present, counts, stated)
    weights = present.astype(x.dtype)
    copula = fit_pair(family, take_entries(ranked, 0), take_entries(ranked, 1), weights, tau).copula
    through = counts[1]
    u, v = through / (weights.sum() + 1)
    x_rank, y_rank = through.astype(jnp.int32)
    gap = empirical_copula(x_rank, y_rank, present) - copula.cdf(u, v)
    return copula, jnp.where(present, gap**2, 0.0).sum()


def present_counts(values: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Count the present values below each value (n,), and the present values not above it: (n,) each.

    >>> [count.tolist() for count in present_counts(jnp.array([0.1, 0.4, 0.1]), jnp.ones(3, bool))]
    [[0.0, 2.0, 0.0], [2.0, 3.0, 2.0]]
    """
    values = jnp.where(present, values, jnp.inf)
    ordered = jnp.sort(values)
    below, through = (jnp.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return below.astype(values.dtype), jnp.minimum(through, present.sum(dtype=through.dtype)).astype(values.dtype)


def ranks_of_values(
    values: jax.Array, present: jax.Array, counts: tuple[jax.Array, jax.Array], atoms: jax.Array | None
) -> Ranks:
    """Rank m values that are present, without marginals: mid-ranks over m + 1.

    Values tied at the minimum, the maximum or an atom form a point mass; other ties share a mid-rank. A likelihood of
    these ranks is semiparametric (Genest, Ghoudi & Rivest 1995, "A semiparametric estimation procedure of dependence
    parameters").

    Args:
        values: (n,) observations.
        present: (n,) whether each observation counts.
        counts: `present_counts` of the observations.
        atoms: (A,) values that form point masses; infinite entries are padding. None: no atoms.

    >>> rows = jnp.array([0.1, 0.5, 0.5, 0.9]), jnp.ones(4, bool)
    >>> ranked = ranks_of_values(*rows, present_counts(*rows), jnp.array([0.5]))
    >>> ranked.u.tolist(), ranked.mass.tolist(), ranked.start.round(2).tolist(), ranked.end.round(2).tolist()
    ([0.2..., 0.5, 0.5, 0.8...], [-1, 1, 1, -1], [0.0, 0.199..., 1.0], [0.0, 0.599..., 1.0])
    """
    below, through = counts
    count, total = through - below, present.sum(dtype=values.dtype)
    scale = 1 / (total + 1)
    # A single least value is an ordinary observation; tied least values are a mass.
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
        # A mass starts where the ranks before it end; padding has no width.
        start = jnp.where(between, before * scale, 1 - scale)
        starts.insert(1, start)
        ends.insert(1, jnp.where(between, until * scale, start))
        at_atom = (values[:, None] == order) & between
        mass = jnp.where(at_atom.any(-1), 1 + jnp.argmax(at_atom, axis=-1), SMOOTH)
    start, end = jnp.concatenate(starts), jnp.concatenate(ends)
    mass = jnp.where(low, 0, jnp.where(high, len(start) - 1, mass))
    return Ranks((below + (count + 1) / 2) * scale, mass, start, end)


def empirical_copula(x: jax.Array, y: jax.Array, present: jax.Array) -> jax.Array:
    """Compute the empirical copula C_n at each observation, in O(n²) comparisons: (n,).

    C_n is the share of the observations present whose x (n,) and y (n,) are not above the observation's.

    >>> empirical_copula(jnp.array([1, 2, 3]), jnp.array([1, 3, 2]), jnp.ones(3, bool)).tolist()
    [0.333..., 0.666..., 0.666...]
    """
    # Summing 32-bit integers along the first axis lets XLA vectorise. A block of `_ROWS` stays in the fastest cache.
    rows = [jnp.pad(column, (0, -len(x) % _ROWS)).reshape(-1, _ROWS, 1) for column in (x, y, present)]

    def add(count: jax.Array, block: list[jax.Array]) -> tuple[jax.Array, None]:
        first, second, is_present = block
        return count + ((first <= x) & (second <= y) & is_present).sum(0, dtype=jnp.int32), None

    return lax.scan(add, jnp.zeros(len(x), jnp.int32), rows)[0] / jnp.maximum(present.sum(), 1)


@dataclasses.dataclass(frozen=True)
class CopulaResult:
    """The maximum likelihood fit of one family to n pairs of observations."""

    family: str
    """Name of the family."""
    copula: Copula
    """Fitted copula."""
    parameters: dict[str, float]
    """Estimates by name."""
    standard_errors: dict[str, float]
    """Standard errors by name, from the Hessian, valid if `status` is "converged"; infinite if there are none."""
    log_likelihood: float
    """Log-likelihood of the ranks; NaN if the fit failed."""
    aic: float
    """2 × parameters − 2 log L."""
    bic: float
    """log(n) × parameters − 2 log L."""
    status: str
    """Status of the fit: "converged", or the reason for failure."""
    tau: float
    """Kendall's τ of the fitted copula."""
    spearman: float
    """Spearman's ρ of the fitted copula."""
    tail_dependence: TailDependence
    """(λ_L, λ_U) of the fitted copula."""
    p_value: float | None
    """p-value of S_n (`copula_test`), small if the family does not describe the pairs; None without replicates."""


def compare_copulas(
    x: ArrayLike,
    y: ArrayLike,
    families: str | Sequence[str | type[Copula]] = "auto",
    *,
    replicates: int = 0,
    seed: int = 0,
) -> tuple[CopulaResult, ...]:
    """Fit one or more copula families to pairs of observations by likelihood; the least AIC first, failed fits last.

    The likelihood takes ranks over n + 1, ties at their mean rank. If many observations tie, as confidences do at 0 and
    1, the likelihood of `rcjax.fit` is exact. `rcjax.model.fit_copula` fits one copula in a pure function.

    Args:
        x, y: (n,) observations of the two variables, on any scale, n at least 10.
        families: "auto" for the ten common families (`FAMILIES`); or one or more names and classes.
        replicates: bootstrap replicates of S_n for every family; 0: no test of fit.
        seed: seed of the replicates.

    Raises ValueError for other shapes, NaN, a constant x or y, and unknown families.

    >>> from rcjax.copulas import Clayton
    >>> u, v = Clayton(2.0).sample(jax.random.key(0), (300,))
    >>> best, *others = compare_copulas(u, v, ["clayton", "gumbel"])
    >>> best.family, best.status, abs(best.parameters["theta"] - 2) < 3 * best.standard_errors["theta"]
    ('Clayton', 'converged', True)
    """
    from scipy.stats import rankdata  # importing scipy.stats takes nearly as long as JAX

    columns = [np.asarray(values, float) for values in (x, y)]
    if columns[0].ndim != 1 or columns[0].shape != columns[1].shape or len(columns[0]) < 10:
        raise ValueError(f"x and y have shapes {columns[0].shape} and {columns[1].shape}; both must be (n,), n ≥ 10")
    for name, values in zip("xy", columns, strict=True):
        wrong = np.flatnonzero(~np.isfinite(values))
        if len(wrong):
            raise ValueError(f"{name}[{wrong[0]}] is {values[wrong[0]]:g}; it must be finite")
        if np.ptp(values) == 0:
            raise ValueError(f"{name} is {values[0]:g} throughout: a constant has no dependence to fit")
    if not len(families):
        raise ValueError("families is empty: name at least one family")
    tried = FAMILIES if families == "auto" else (families,) if isinstance(families, str) else tuple(families)
    ranks = [jnp.asarray(rankdata(values) / (len(values) + 1), jnp.result_type(float)) for values in columns]
    results = [_fit_family(as_family(family), ranks, replicates, seed) for family in tried]
    return tuple(sorted(results, key=lambda result: np.inf if np.isnan(result.aic) else result.aic))


def _fit_family(family: type[Copula], ranks: list[jax.Array], replicates: int, seed: int) -> CopulaResult:
    fit, measures = jax.device_get(_fit_and_measure(*ranks, family=family))
    names = (*family.free, *family.grids)
    count = count_parameters(family)
    n = len(ranks[0])
    value = np.nan if fit.status == FitStatus.FAILED else float(fit.log_likelihood)
    p_value = None
    if replicates:
        u, v = ranks
        test = copula_test(family, u, v, np.ones(n, bool), jax.random.key(seed), replicates)
        p_value = float(test.process_p)
    tau, spearman, tails = measures
    return CopulaResult(
        family=family.__name__,
        copula=fit.copula,
        parameters={name: float(getattr(fit.copula, name)) for name in names},
        standard_errors={name: float(fit.standard_errors[name]) for name in names},
        log_likelihood=value,
        aic=2 * count - 2 * value,
        bic=float(np.log(n)) * count - 2 * value,
        status=FitStatus(int(fit.status)).message,
        tau=float(tau),
        spearman=float(spearman),
        tail_dependence=TailDependence(*map(float, tails)),  # pyright: ignore[reportArgumentType]
        p_value=p_value,
    )


@partial(compiled, static_argnames="family")
def _fit_and_measure(u: jax.Array, v: jax.Array, family: type[Copula]) -> tuple[CopulaFit, Any]:
    """Return (the fit, (τ, Spearman's ρ, tail dependence) of the fitted copula)."""
    tau = kendall_tau(u, v, jnp.ones(u.shape, bool))
    fit = fit_pair(family, Ranks(u), Ranks(v), jnp.ones_like(u), tau)
    return fit, (fit.copula.tau(), fit.copula.spearman(), fit.copula.tail_dependence())


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MarkovTest:
    """A test of conditional independence of two models' confidences given a third's; a leading axis batches it."""

    tau: jax.Array
    """() Kendall's τ-b within strata of the middle model's confidence."""
    p_value: jax.Array
    """() two-sided p-value of τ = 0, by permutations within the strata."""
    n: jax.Array
    """() number of queries that all three models answered."""


@partial(jax.jit, static_argnames="replicates")
def conditional_test(
    first: jax.Array, middle: jax.Array, last: jax.Array, present: jax.Array, key: jax.Array, replicates: int = 1000
) -> MarkovTest:
    """Test the rank correlation of `first` and `last` given `middle`, which is 0 along a Markov chain.

    `vmap` it over triples of models.

    Queries are sorted by the middle confidence, ties in random order, and cut into strata of ten. Kendall's τ-b
    compares queries of one stratum only (Agresti 1977, "Considerations in measuring partial association for ordinal
    categorical data"). Permuting `last` within strata leaves its null distribution unchanged, whichever copulas are
    right; p = (exceedances + ½)/(replicates + 1).

    Args:
        first, middle, last: (n,) confidences of three models, in the order asked.
        present: (n,) whether all three models answered the query.
        key: JAX key for ties and permutations.
        replicates: number of permutations.

    >>> a, b, c = jax.random.normal(jax.random.key(0), (3, 300))
    >>> present = jnp.ones(300, bool)
    >>> chain = conditional_test(a, a + b, a + b + c, present, jax.random.key(1))
    >>> fork = conditional_test(a, b, a + b + c, present, jax.random.key(1))
    >>> bool(chain.p_value > 0.05), bool(fork.p_value < 0.01), bool(fork.tau > 0.3)
    (True, True, True)
    """
    n = first.shape[0]
    shuffle, permute = jax.random.split(key)
    order = jnp.lexsort((jax.random.uniform(shuffle, (n,)), middle, ~present))
    rows = -(-n // _STRATUM)

    def strata(values: jax.Array) -> jax.Array:
        return jnp.pad(values[order], (0, rows * _STRATUM - n)).reshape(rows, _STRATUM)

    x, y, is_present = strata(first), strata(last), strata(present)
    upper = np.triu(np.ones((_STRATUM, _STRATUM), bool), 1)
    comparable = is_present[:, :, None] & is_present[:, None, :] & upper
    sign_x = jnp.where(comparable, jnp.sign(x[:, :, None] - x[:, None, :]), 0.0)

    def association(y: jax.Array) -> tuple[jax.Array, jax.Array]:
        sign_y = jnp.where(comparable, jnp.sign(y[:, :, None] - y[:, None, :]), 0.0)
        return (sign_x * sign_y).sum(), jnp.abs(sign_y).sum()

    def replicate(key: jax.Array) -> jax.Array:
        # Padding and unanswered queries stay at the end of the last strata.
        permutation = jnp.argsort(jnp.where(is_present, jax.random.uniform(key, x.shape), 2.0), axis=1)
        return association(jnp.take_along_axis(y, permutation, axis=1))[0]

    statistic, untied = association(y)
    drawn = jax.vmap(replicate)(jax.random.split(permute, replicates))
    tau = divide(statistic, jnp.sqrt(jnp.abs(sign_x).sum() * untied))
    return MarkovTest(tau, p_value(jnp.abs(statistic), jnp.abs(drawn)), present.sum())
