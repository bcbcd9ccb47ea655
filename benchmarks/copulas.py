"""Copulas against pyvinecopulib and statsmodels: cdf, conditional, log-density and inverse conditional, and fits.

    pip install -e '.[bench]'
    python -m benchmarks.copulas [--points 1000000] [--replicates 200]

In float64, with fixed seeds, on the CPU; both peers run on one core (pyvinecopulib's `num_threads` splits evaluations
only where every point has parameters of its own, and fits only over families), XLA on those it is given.

Evaluations: at points uniform on the unit square, the same for all. Where we evaluate log c, pyvinecopulib evaluates
c; statsmodels has no conditional, no rotations and no Joe copula. A "–" says that there is nothing to compare with.

Fits: by maximum likelihood, of every family of `FAMILIES` to all ten pairs of the five models of the
demo's synthetic log (300 queries, ordinal ranks: no ties, no point masses), for each bootstrap replicate. Replicates
are multinomial weights of the queries, the same for both; the first are ones, the data themselves. We fit all of them
in one jitted call, mapped over chunks of replicates to bound its memory. The peer fits one by one in a Python loop,
only the first few replicates: its time is that sample's, scaled up. We profile the degrees of freedom of Student's t
over a grid of 8 and the peer optimises them, hence the row without that family. The peer searches for τ no further
than 0.1 from Kendall's; where the likeliest τ lies beyond that, the two differ and our likelihood is the greater one.

By the cdf alone: the same families with the derived methods of the base class in place of their own, as a user's family
has them that is only a cdf; times as multiples of those of the written one, and of its fit by likelihood to 300
observations.

The best of up to five runs counts, of fewer where they take long; compilation is the first call less that, tracing
included. Prints Markdown tables.
"""

import itertools
import os
import types
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyvinecopulib as pv
import statsmodels.distributions.copula.api as sm
from scipy.stats import kendalltau, rankdata

import rcjax
from benchmarks import record
from benchmarks.timing import timed
from rcjax._core.compilation import compiled
from rcjax.copulas import Copula
from rcjax.copulas.families import FAMILIES
from rcjax.model.likelihood import Ranks
from rcjax.model.maximum_likelihood import CopulaFit, fit_pair

#: What a copula of ours and of each peer is, if the peer has it.
COPULAS: tuple[tuple[Copula, Any], ...] = (
    (rcjax.copulas.Gumbel(2.0), sm.GumbelCopula(2.0)),
    (rcjax.copulas.SurvivalGumbel(2.0), None),
    (rcjax.copulas.Clayton(2.0), sm.ClaytonCopula(2.0)),
    (rcjax.copulas.Frank(5.0), sm.FrankCopula(5.0)),
    (rcjax.copulas.Joe(2.0), None),
    (rcjax.copulas.Gaussian(0.5), sm.GaussianCopula(0.5)),
    (rcjax.copulas.StudentT(0.5, 4.0), sm.StudentTCopula(0.5, df=4)),
    (rcjax.copulas.Independence(), sm.IndependenceCopula()),
    (rcjax.copulas.BB1(0.5, 1.5), None),
    (rcjax.copulas.BB7(1.5, 0.5), None),
    (rcjax.copulas.Tawn(3.0, 0.5, 0.9), None),
)
#: Families that are evaluated by their cdf alone too.
BY_CDF = (
    *(rcjax.copulas.Gumbel(2.0), rcjax.copulas.Clayton(2.0), rcjax.copulas.Frank(5.0)),
    *(rcjax.copulas.BB1(0.5, 1.5), rcjax.copulas.BB7(1.5, 0.5), rcjax.copulas.Tawn(3.0, 0.5, 0.9)),
)
#: Our method, pyvinecopulib's and statsmodels'.
METHODS = (
    ("cdf", "cdf", "cdf"),
    ("conditional", "hfunc1", None),
    ("log_density", "pdf", "logpdf"),
    ("inverse_conditional", "hinv1", None),
)
CHUNK = 50
#: Seconds for all runs of an evaluation, and of a fit.
PATIENCE, FIT_PATIENCE = 5.0, 25.0
#: How far from Kendall's τ pyvinecopulib searches.
REACH = 0.1


def bicop(family: type[Copula], parameters: Sequence[float] = ()) -> pv.Bicop:
    """pyvinecopulib's copula of one of our families, survival versions by rotation."""
    name = family.__name__.removeprefix("Survival").lower().replace("studentt", "student")
    kind = getattr(pv.BicopFamily, name.replace("independence", "indep"))
    if name == "tawn":  # ours begins with θ, theirs ends with it
        parameters = [*parameters[1:], *parameters[:1]]
    values = np.asarray(parameters, float).reshape((-1, 1) if len(parameters) else (0, 0))
    return pv.Bicop(kind, 180 if family.__name__.startswith("Survival") else 0, values)


def evaluations(points: int) -> None:
    """One row for each family and method."""
    uv = np.asfortranarray(np.random.default_rng(0).uniform(size=(points, 2)))
    u, v = jnp.asarray(uv).T
    print(f"{points:,} evaluations, {os.cpu_count()} cores; peers' times as multiples of ours\n")
    print("| | | compile, s | ours, ns each | pyvinecopulib | largest difference | statsmodels |")
    print("|---|---|--:|--:|--:|--:|--:|")
    ratios = {}
    for (copula, models), (ours, vine, model) in itertools.product(COPULAS, METHODS):
        compile_time, run, values = timed(partial(jax.jit(getattr(type(copula), ours)), copula, u, v), PATIENCE)
        peer = bicop(type(copula), [float(getattr(copula, name)) for name in (*copula.free, *copula.grids)])
        _, theirs, others = timed(partial(getattr(peer, vine), uv), PATIENCE)
        gap = np.abs(np.asarray(values) - (np.log(others) if ours == "log_density" else others)).max()
        ratio = ratio_to(run, models, model, uv)
        ratios[f"{type(copula).__name__}'s `{ours}`"] = theirs / run
        cells = f"{compile_time:.2f} | {run / points * 1e9:.1f} | {theirs / run:.2g} | {gap:.0e} | {ratio}"
        print(f"| {copula} | `{ours}` | {cells} |", flush=True)
    slowest = sorted(ratios, key=lambda name: ratios[name])[:2]
    record.headline(
        "pyvinecopulib's time over ours, evaluations: median; least two",
        f"{np.median(list(ratios.values())):.2g}; " + ", ".join(f"{ratios[name]:.2g} ({name})" for name in slowest),
    )


def ratio_to(run: float, copula: Any, method: str | None, uv: np.ndarray) -> str:
    """Statsmodels' time over ours, where it has such a method."""
    if copula is None or method is None:
        return "–"
    try:
        return f"{timed(lambda: getattr(copula, method)(uv), PATIENCE)[1] / run:.2g}"
    except NotImplementedError:
        return "–"


def only_cdf(copula: Copula) -> Copula:
    """The same copula, of which nothing but the cdf is known."""
    derived = {name: getattr(Copula, name) for name in ("conditional", "conditional_on_v", "log_density", "tau")}
    derived |= {name: getattr(Copula, name) for name in dir(Copula) if name.startswith("two_sided_")}
    derived |= {"inverse_conditional": Copula.inverse_conditional}
    family = type(copula)
    # The cdf of a closed form is written in terms of `two_sided_cdf`, which the base class has by the cdf.
    derived |= {"cdf": lambda self, u, v: family.cdf(family(*jax.tree.leaves(self)), u, v)}
    derived |= {"from_tau": classmethod(lambda cls, tau: cls(*jax.tree.leaves(family.from_tau(tau))))}
    alone = types.new_class(f"Only{family.__name__}", (family,), {}, lambda names: names.update(derived))
    return alone(*jax.tree.leaves(copula))


_compiled_fit = compiled(fit_pair, static_argnames="family")  # as `fit_copula` and `rcjax.fit` compile it


def by_cdf(points: int) -> None:
    """One row for each family and method, and for a fit."""
    u, v = jnp.asarray(np.random.default_rng(0).uniform(size=(points, 2))).T
    print(f"\n{points:,} evaluations; a family that is a cdf alone against one that is written\n")
    print("| | | written: compile, s | ns each | cdf alone: compile, s | times the written one |")
    print("|---|---|--:|--:|--:|--:|")
    ratios = {}
    for copula in BY_CDF:
        pair = copula, only_cdf(copula)
        for method, *_ in METHODS[1:]:
            calls = [partial(jax.jit(getattr(type(one), method)), one, u, v) for one in pair]
            (slow, run, _), (compile_time, alone, _) = (timed(call, PATIENCE) for call in calls)
            ratios[method] = [*ratios.get(method, []), alone / run]
            cells = f"{slow:.2f} | {run / points * 1e9:.1f} | {compile_time:.2f} | {alone / run:.2g}"
            print(f"| {copula} | `{method}` | {cells} |", flush=True)
        first, second = map(Ranks, copula.sample(jax.random.key(0), (300,)))
        fits = [partial(_compiled_fit, type(one), first, second, jnp.ones(300)) for one in pair]
        (slow, run, _), (compile_time, alone, _) = (timed(call, FIT_PATIENCE) for call in fits)
        ratios["fit"] = [*ratios.get("fit", []), alone / run]
        print(
            f"| {copula} | a fit | {slow:.2f} | {run * 1e3:.1f} ms | {compile_time:.2f} | {alone / run:.2g} |",
            flush=True,
        )
    worst = ", ".join(f"{np.median(times):.2g} ({name})" for name, times in ratios.items())
    record.headline("a cdf alone over a written family, median time", worst)


@partial(compiled, static_argnames="families")
def fit_replicates(families, first: Ranks, second: Ranks, weights: jax.Array, taus: jax.Array) -> list[CopulaFit]:
    """Fits with leading axes (replicates, pairs), for weights (replicates, pairs, n)."""

    def one(replicate):
        return [jax.vmap(partial(fit_pair, family))(first, second, replicate, taus) for family in families]

    return jax.lax.map(one, weights, batch_size=CHUNK)


def fit_peer(family: type[Copula], u: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(pairs, 2) tau and log-likelihood with the first weights; u (pairs, n, 2), weights (replicates, pairs, n)."""
    first = []
    for replicate, (pair, uv) in itertools.product(range(len(weights)), enumerate(u)):
        copula = bicop(family)
        copula.fit(uv, pv.FitControlsBicop(parametric_method="mle", weights=weights[replicate, pair]))
        if replicate == 0:
            first.append(copula)
    return np.array([(copula.tau, copula.loglik(uv)) for copula, uv in zip(first, u, strict=True)])


def problem(replicates: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(u (pairs, n, 2), weights (replicates, pairs, n), taus (pairs,))."""
    values = np.asarray(rcjax.sample_log(300, seed=0).logprob)
    n, k = values.shape
    uniform = rankdata(values, method="ordinal", axis=0) / (n + 1)
    u = np.stack([uniform[:, list(pair)] for pair in itertools.combinations(range(k), 2)])
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=replicates - 1)
    weights = np.concatenate([np.ones((1, n)), drawn])
    taus = np.array([kendalltau(*pair.T).statistic for pair in u])
    return u, np.repeat(weights[:, None], len(u), axis=1), taus


def fits(replicates: int, sample: int) -> None:
    """One row for all families and one without Student's t, then one for each family."""
    u, weights, taus = problem(replicates)
    first, second = (Ranks(jnp.asarray(u[..., side])) for side in (0, 1))
    each = {}
    for family in FAMILIES:
        _, seconds, found = timed(partial(fit_peer, family, u, weights[:sample]), FIT_PATIENCE)
        each[family] = seconds / sample / len(u), found
    count = weights.shape[0] * weights.shape[1]
    print(
        f"\n{len(u)} pairs × {replicates} replicates of {u.shape[1]} queries; the peer's: {sample} replicates, scaled\n"
    )
    print("| families | compile, s | ours, s | pyvinecopulib, s | ratio |\n|---|--:|--:|--:|--:|")
    fewer = tuple(family for family in FAMILIES if family is not rcjax.copulas.StudentT)
    for name, families in (("without StudentT", fewer), (f"all {len(FAMILIES)}", FAMILIES)):
        call = partial(fit_replicates, families, first, second, jnp.asarray(weights), jnp.asarray(taus))
        compile_time, run, found = timed(call, FIT_PATIENCE)
        theirs = sum(each[family][0] for family in families) * count
        print(f"| {name} | {compile_time:.1f} | {run:.2f} | {theirs:.1f} | {theirs / run:.2g} |", flush=True)
    compare(found, each, taus)


def compare(found: list[CopulaFit], each: dict[type[Copula], tuple[float, np.ndarray]], taus: np.ndarray) -> None:
    """One row for each family: both fits to the data themselves."""
    print(
        "\n| on the data | pyvinecopulib, ms a fit | largest difference in τ | within its reach | pairs beyond it",
        end="",
    )
    print(" | log L, ours less theirs: least | greatest |\n|---|--:|--:|--:|--:|--:|--:|")
    for fit, (family, (seconds, peer)) in zip(found, each.items(), strict=True):
        tau = np.asarray(jax.vmap(lambda copula: copula.tau())(fit.copula))[0]
        gap, gain = np.abs(tau - peer[:, 0]), np.asarray(fit.log_likelihood)[0] - peer[:, 1]
        beyond = (np.abs(tau - taus) > REACH) & (len(family.free) > 0)
        gaps = f"{gap.max():.0e} | {gap[~beyond].max(initial=0.0):.0e} | {beyond.sum()}"
        print(f"| {family.__name__} | {seconds * 1e3:.2f} | {gaps} | {gain.min():.0e} | {gain.max():.0e} |")


def main() -> None:
    """The evaluations, then the fits."""
    jax.config.update("jax_enable_x64", True)
    parser = record.parser(__doc__)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--replicates", type=int, default=200, help="that are fitted; 0: evaluations only")
    parser.add_argument("--sample", type=int, default=10, help="replicates that the peer fits")
    options = parser.parse_args()
    evaluations(options.points)
    by_cdf(options.points)
    if options.replicates:
        fits(options.replicates, options.sample)


if __name__ == "__main__":
    record.run(main)
