"""Size and power of the tests of the model's fit.

    python -m benchmarks.goodness_of_fit [--datasets 200] [--copulas 100] [--replicates 200] [--only NAME]

Prints a Markdown table: how often each test rejects at the 5 % level, n = 300, where its hypothesis holds (size: 5 % is
right) and where it is false (power: more is better), with the standard error of the simulation. The tests of copulas,
which take most of the five CPU minutes, stand beside the procedure of the paper.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import rcjax
from benchmarks import record
from benchmarks.paper.statistics import logistic_test, paper_statistic
from rcjax._core.numerics import kendall_tau
from rcjax.model.goodness_of_fit.bootstrap import marginal_test, p_value
from rcjax.model.goodness_of_fit.dependence import conditional_test, copula_test, empirical_copula
from rcjax.model.goodness_of_fit.reliability import calibration_test
from rcjax.model.marginals import Marginal
from rcjax.model.maximum_likelihood import fit_marginal

N, LEVEL = 300, 0.05
MASSES = (0.2, 0.1)  # at the lowest and the highest confidence, of both models


@dataclasses.dataclass(frozen=True)
class Study:
    """One row of the table: p-values of tests on data sets drawn from a truth."""

    test: str
    truth: str
    holds: bool
    run: Callable[[jax.Array, int], dict[str, jax.Array]]  # (keys, replicates) → p-values by test


def rejections(p_values: jax.Array) -> str:
    """Share of p-values under 5 %, with the standard error of the simulation."""
    share = float(jnp.mean(p_values < LEVEL))
    return f"{100 * share:.1f} ± {100 * np.sqrt(share * (1 - share) / p_values.size):.1f} %"


def censored(u: jax.Array) -> jax.Array:
    """Ranks with point masses at both ends."""
    low, high = MASSES
    return jnp.where(u < low, 0.0, jnp.where(u > 1 - high, 1.0, u))


def paper_test(
    family: type[rcjax.copulas.Copula], x: jax.Array, y: jax.Array, key: jax.Array, replicates: int = 1000
) -> tuple[jax.Array, jax.Array]:
    """(statistic, p-value) by the procedure of the paper: τ inverted, and replicates that are not ranked.

    As the replicates' margins are known where those of the data are estimated, their statistics
    are larger, and hardly anything is rejected.
    """
    present = jnp.ones(x.shape, bool)
    copula = family.from_tau(kendall_tau(x, y, present))
    ties, sample = jax.random.split(key)
    n = x.shape[0]
    root = jnp.sqrt(n)

    def replicate(key):
        u, v = copula.sample(key, x.shape)
        empirical = empirical_copula(u, v, present)
        # Without ties, the pairs that rise together are those which lie one below the other.
        fitted = family.from_tau(4 * (n * jnp.mean(empirical) - 1) / (n - 1) - 1)
        return root * jnp.mean((empirical - fitted.cdf(u, v)) ** 2)

    drawn = jax.lax.map(replicate, jax.random.split(sample, replicates), batch_size=max(1, 2**20 // n**2))
    statistic = paper_statistic(copula, x, y, ties)
    return statistic, p_value(statistic, drawn)


def on_copulas(truth: rcjax.copulas.Copula, masses: bool, keys: jax.Array, replicates: int) -> dict[str, jax.Array]:
    """The Gumbel copula tested on draws of `truth`: ours, and the paper's procedure."""
    u, v = jax.vmap(lambda key: truth.sample(key, (N,)))(keys)
    if masses:
        u, v = censored(u), censored(v)
    seen = copula_test(rcjax.copulas.Gumbel, u, v, jnp.ones((len(keys), N), bool), jax.random.key(7), replicates)
    paper = partial(paper_test, rcjax.copulas.Gumbel, replicates=replicates)
    _, theirs = jax.jit(lambda *data: jax.lax.map(lambda each: paper(*each), data))(u, v, keys)
    return {"S_n": seen.process_p, "as in the paper": theirs}


def on_marginals(draw: Callable[[jax.Array], jax.Array], keys: jax.Array, replicates: int) -> dict[str, jax.Array]:
    """The mixture of two betas tested on draws, in-sample and held out."""
    judged, trained = (jax.vmap(draw)(jax.vmap(partial(jax.random.fold_in, data=n))(keys)) for n in range(2))
    fitted = jax.jit(jax.vmap(lambda x: fit_marginal(x, jnp.ones(N, bool))))(trained)
    p_refitted, p_trained = (marginal_test(fitted, judged, n, jax.random.key(7), replicates).trained_p for n in (0, N))
    return {"refitted": p_refitted, "trained": p_trained}


def on_calibration(bend: float, keys: jax.Array, replicates: int) -> dict[str, jax.Array]:
    """Confidences whose log-odds are `bend` times the true ones."""

    def one(key):
        logit = 1.5 * jax.random.normal(key, (N,)) + 1.0
        correct = jax.random.bernoulli(jax.random.fold_in(key, 1), jax.nn.sigmoid(logit))
        confidence = jax.nn.sigmoid(bend * logit)
        return confidence, correct

    rng, logs = np.random.default_rng(2), zip(*map(np.asarray, jax.vmap(one)(keys)), strict=True)
    return {"calibration error": jnp.array([calibration_test(*log, rng, replicates).p_value for log in logs])}


def on_chain(draw: Callable[[jax.Array], tuple[jax.Array, ...]], keys: jax.Array, replicates: int) -> dict:
    """Three confidences in (0, 1), and answers that are right as often as these say."""

    def one(key):
        confidence = jnp.stack(draw(key), axis=-1)
        correct = jax.random.bernoulli(jax.random.fold_in(key, 1), confidence)
        answered = jnp.ones(correct.shape, bool)
        direct = conditional_test(*confidence.T, answered[:, 0], jax.random.fold_in(key, 2), replicates).p_value
        return direct, 10 ** logistic_test(confidence, correct, answered)[2, 0]

    direct, logistic = jax.lax.map(one, keys)
    return {"conditional τ": direct, "logistic, as in the paper": logistic}


def gumbel_chain(key: jax.Array) -> tuple[jax.Array, ...]:
    """A Markov chain of three with Gumbel copulas, θ = 2."""
    first, p, q = jax.random.uniform(key, (3, N), minval=1e-6)
    middle = rcjax.copulas.Gumbel(2.0).inverse_conditional(first, p)
    return first, middle, rcjax.copulas.Gumbel(2.0).inverse_conditional(middle, q)


def one_factor(key: jax.Array) -> tuple[jax.Array, ...]:
    """Three normals that share one factor, ρ = 0.7 each: no Markov chain, conditional τ 0.27."""
    noise, factor = jax.random.normal(key, (3, N)), jax.random.normal(jax.random.fold_in(key, 3), (N,))
    return tuple(jax.scipy.stats.norm.cdf(np.sqrt(0.7) * factor + np.sqrt(0.3) * noise))


def two_betas(key: jax.Array) -> jax.Array:
    """Confidences from the model: two betas and point masses."""
    truth = Marginal(*(jnp.asarray(x) for x in (0.2, 0.95, *MASSES)), *jnp.array([[0.4, 0.6], [2.0, 8.0], [5.0, 1.5]]))
    return truth.sample(key, (N,))


def three_modes(key: jax.Array) -> jax.Array:
    """Confidences with three narrow modes, which no mixture of two betas has."""
    kind = jax.random.randint(key, (N,), 0, 3)
    return jnp.clip(0.2 + 0.3 * kind + 0.04 * jax.random.normal(jax.random.fold_in(key, 1), (N,)), 0.01, 0.99)


def studies() -> Iterator[Study]:
    """All rows."""
    gaussian = rcjax.copulas.Gaussian.from_tau(0.5)
    for masses in (False, True):
        tail = ", masses 0.2 and 0.1" if masses else ""
        yield Study("copula", f"Gumbel, θ = 2{tail}", True, partial(on_copulas, rcjax.copulas.Gumbel(2.0), masses))
        yield Study("copula", f"Clayton, τ = 0.5{tail}", False, partial(on_copulas, rcjax.copulas.Clayton(2.0), masses))
        yield Study("copula", f"Gaussian, τ = 0.5{tail}", False, partial(on_copulas, gaussian, masses))
    yield Study("marginal", "two betas and masses", True, partial(on_marginals, two_betas))
    yield Study("marginal", "three modes", False, partial(on_marginals, three_modes))
    yield Study("calibration", "true confidences", True, partial(on_calibration, 1.0))
    yield Study("calibration", "log-odds twice too large", False, partial(on_calibration, 2.0))
    yield Study("Markov", "Gumbel chain, θ = 2", True, partial(on_chain, gumbel_chain))
    yield Study("Markov", "one factor, ρ = 0.7", False, partial(on_chain, one_factor))


def study(datasets: int, of_copulas: int, replicates: int, only: str) -> None:
    """Print the table, a row as soon as it is known."""
    print(
        f"n = {N}, {datasets} data sets ({of_copulas} for copulas), B = {replicates}; rejections at the 5 % level, "
        "± the simulation's error\n"
    )
    print("| test | truth | hypothesis | rejections |\n|---|---|---|---|")
    for number, row in enumerate(studies()):
        if only in row.test:
            count = of_copulas if row.test == "copula" else datasets
            p_values = row.run(jax.random.split(jax.random.key(number), count), replicates)
            cells_of = {name: rejections(p) for name, p in p_values.items()}
            cells = "; ".join(f"{name}: {cell}" for name, cell in cells_of.items())
            for name in p_values if row.holds else ():
                record.headline(f"rejections at 5 % where true: {row.test}, {row.truth}, {name}", cells_of[name])
            print(f"| {row.test} | {row.truth} | {'holds' if row.holds else 'is false'} | {cells} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = record.parser(__doc__)
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--copulas", type=int, default=100, help="data sets of the rows of copulas")
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--only", default="", help="tests whose name contains this")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    study(options.datasets, options.copulas, options.replicates, options.only)


if __name__ == "__main__":
    record.run(main)
