"""Do the intervals of `rcjax.tuning.bootstrap` cover the truth as often as they say?

    python -m benchmarks.coverage [--logs 200] [--tuned 60] [--replicates 200]
    python -m benchmarks.coverage --jackknife 5 [--queries 300] [--tuned 60]   # or 11; beside one derivative

Logs of 100, 300 and 1,000 queries are drawn from two populations of 30,000: one sampled from the demo's Markov chain of
Gumbel copulas, and one in which everything that rcjax assumes is false: one latent difficulty drives all confidences
(so that they are no Markov chain, and pairs have Gaussian copulas), and moves the chance to be right besides (so that
what is known of one model says more of another than its own confidence does). What policies truly get wrong and cost is
counted on the whole population. Policies are fixed before the log is seen (`--logs` of them), or tuned on it, by the
labels and cross-validation (`select_frontier`), for prices λ or for budgets, or by the model (`solve_frontier`), with
everything done over in each replicate (`--tuned` of them). Coverage is in per cent, over twelve prices, or budgets, and
all logs, ± one standard error over logs. Beside it, the mean width of the interval for the error, and the mean of the
true error less the predicted one, in points.

`--jackknife`: the error in service of policies by the model, at these prices, over logs drawn from a known model of
five models (the demo's) or of eleven (fitted to the demo's drawn thrice, each time dearer). Beside the bootstrap's
intervals stand those of the infinitesimal jackknife (Jaeckel 1972; Giordano et al. 2019): what the model predicts ±
Student's t times the root of the sum of squares of its derivatives by how much each query counts; and as wide ones
around the bootstrap's middle, which tells width from bias. Seconds are medians for all prices, of the first log those
to compile.
"""

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from scipy.special import expit, logit, ndtr
from scipy.stats import t

import rcjax
from benchmarks import record
from benchmarks.report import machine, markdown
from benchmarks.start import write_drawn
from rcjax.logs.log import Log
from rcjax.model.calibration import Calibrator
from rcjax.model.marginals import Marginal
from rcjax.model.weighted import WeightedRows, reweigh, rows_of
from rcjax.solving.solution import solve

POPULATION, SIZES, PRICES = 30_000, (100, 300, 1000), 12
LEVEL = 0.9
FIXED = "fixed before"


def markov() -> rcjax.Log:
    """The population that the model describes."""
    return rcjax.sample_log(POPULATION, seed=1)


def one_factor(seed: int = 1, loading: float = 0.75, pull: float = 0.8) -> rcjax.Log:
    """The population that it does not describe: a latent ease of each query, on which everything depends.

    `loading`: correlation of the ease with each normal score. `pull`: how much it moves the log-odds to be right,
    at equal confidence.
    """
    model, log = rcjax.demo_model(), markov()
    random = np.random.default_rng(seed)
    ease = random.standard_normal((POPULATION, 1))
    noise = random.standard_normal((POPULATION, len(model.models)))
    ranks = ndtr(loading * ease + np.sqrt(1 - loading**2) * noise)
    confidence = jax.vmap(Marginal.quantile, (0, 1), 1)(model.marginals, jnp.asarray(ranks))
    logprob = jax.vmap(Calibrator.inverse, (0, 1), 1)(model.calibrators, confidence)
    right = random.random(ranks.shape) < expit(logit(np.asarray(confidence)) + pull * ease)
    return Log(**(vars(log) | {"logprob": logprob, "correct": jnp.asarray(right)}))


def prices() -> np.ndarray:
    """λ from where the demo's largest model is best to where its cheapest is."""
    frontier = rcjax.solve_frontier(rcjax.demo_model())
    spent = np.asarray(frontier.cost)
    places = [np.abs(spent - cost).argmin() for cost in np.geomspace(spent[-1] * 1.05, spent[0] * 0.95, PRICES)]
    return np.asarray(frontier.lam)[places]


def budgets() -> np.ndarray:
    """Money per query, from a little above what the demo's cheapest model costs to what the dearest does."""
    bills = np.asarray(rcjax.demo_model().cost)
    return np.geomspace(1.2 * bills.min(), bills.max(), PRICES)


def by_model(log: rcjax.Log, lam: np.ndarray) -> rcjax.Frontier:
    """The best subcascades under the fitted model."""
    return rcjax.solve_frontier(rcjax.fit(log), lam=lam)


def by_labels(log: rcjax.Log, lam: np.ndarray) -> rcjax.Frontier:
    """The default of `rcjax tune`."""
    return rcjax.tuning.select_frontier(log, lam=lam).frontier


def for_budgets(log: rcjax.Log) -> rcjax.Frontier:
    """The default of `rcjax tune` for a budget."""
    return rcjax.tuning.select_frontier(log).frontier


def within(frontier: rcjax.Frontier, money: np.ndarray) -> np.ndarray:
    """The places of the points that budgets get; a budget that is too small for any has none."""
    affordable = money[money >= float(frontier.cost.min())]
    return np.array([frontier.choose(budget=float(budget)) for budget in affordable], int)


class Way(NamedTuple):
    """A way to policies."""

    number: int
    """Of logs."""
    tune: Callable[[rcjax.Log], rcjax.Frontier]
    points: Callable[[rcjax.Frontier], Any] = lambda frontier: slice(None)
    """Which of the frontier's points are looked at."""


def ways(fixed: int, tuned: int) -> dict[str, Way]:
    """All ways by name, with so many logs each."""
    lam, before = prices(), rcjax.solve_frontier(rcjax.demo_model(), lam=prices())
    return {
        FIXED: Way(fixed, lambda log: before),
        "by labels": Way(tuned, partial(by_labels, lam=lam)),
        "by labels, for budgets": Way(tuned, for_budgets, partial(within, money=budgets())),
        "by the model": Way(tuned, partial(by_model, lam=lam)),
    }


def covered(
    frontier: rcjax.Frontier, bands: rcjax.frontier.Bands, true: rcjax.replaying.Replay, points: Any
) -> tuple[float, ...]:
    """Shares of points whose true error and bill lie in their intervals; width; true less predicted error."""
    spent = true.spent if frontier.search == "selected" else true.cost  # who goes by the model knows no bills
    pairs = ((np.asarray(true.error)[points], bands.error[points]), (np.asarray(spent)[points], bands.cost[points]))
    inside = [float(((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean()) for truth, ends in pairs]
    width = float((bands.error[points, 1] - bands.error[points, 0]).mean())
    return *inside, 100 * width, 100 * float((true.error - frontier.error)[points].mean())


def study(name: str, population: rcjax.Log, all_ways: dict[str, Way], replicates: int) -> Iterator[dict[str, Any]]:
    """A row for each way to a policy and each size of the log."""
    random = np.random.default_rng(0)
    for way, (number, tune, points) in all_ways.items():
        for n in SIZES:
            found = []
            for seed in range(number):
                log = population.take(np.sort(random.choice(POPULATION, n, replace=False)))
                frontier = tune(log)
                options = {"replicates": replicates, "level": LEVEL, "refit": way != FIXED, "seed": seed}
                true = rcjax.replay(frontier, population)
                bands = rcjax.tuning.bootstrap(frontier, log, **options)
                found.append(covered(frontier, bands, true, points(frontier)))
            mean, se = np.mean(found, 0), np.std(found, 0, ddof=1) / np.sqrt(number)
            yield {
                "truth": name,
                "policies": way,
                "queries": n,
                "logs": number,
                "error covered, %": f"{100 * mean[0]:.1f} ± {100 * se[0]:.1f}",
                "cost covered, %": f"{100 * mean[1]:.1f} ± {100 * se[1]:.1f}",
                "width, points": f"{mean[2]:.1f}",
                "true less predicted, points": f"{mean[3]:+.2f} ± {se[3]:.2f}",
            }


def ends(cells: list[str]) -> tuple[str, str]:
    """The least and the greatest mean of cells "mean ± error"."""
    means = [cell.partition(" ")[0] for cell in cells]
    return min(means, key=float), max(means, key=float)


def eleven_models() -> rcjax.CascadeModel:
    """A model of eleven: fitted to the demo's five, drawn thrice."""
    with TemporaryDirectory() as folder:
        return rcjax.fit(rcjax.read_log(write_drawn(Path(folder) / "wide.csv", 3000, 0, 11)))


def drawn(model: rcjax.CascadeModel, n: int, seed: int) -> rcjax.Log:
    """A log of n queries that the model describes; every call costs the model's mean."""
    for_confidence, for_answer = jax.random.split(jax.random.key(seed))
    confidence = rcjax.model.sample_confidences(model, for_confidence, n)
    return Log(
        models=model.models,
        logprob=jax.vmap(Calibrator.inverse, (0, 1), 1)(model.calibrators, confidence),
        correct=jax.random.bernoulli(for_answer, confidence),
        query_cost=jnp.broadcast_to(model.cost, confidence.shape),
        answered=jnp.ones(confidence.shape, bool),
        cost=model.cost,
        queries=tuple(range(n)),
        task="choice",
        source="drawn from a known model",
    )


@jax.jit
def slopes(model: rcjax.CascadeModel, rows: WeightedRows, lam: jax.Array) -> jax.Array:
    """(L, n) derivatives of what the model predicts for the best policies at each λ, by how much each query counts."""
    return jax.jacrev(lambda weights: solve(reweigh(model, rows, weights), lam).error)(jnp.ones(len(rows.cost)))


def beside_the_jackknife(
    model: rcjax.CascadeModel, lam: np.ndarray, n: int, logs: int, replicates: int
) -> Iterator[dict[str, Any]]:
    """A row for each kind of interval."""
    population, random = drawn(model, POPULATION, 1), np.random.default_rng(0)
    shares_covered, seconds = [], []
    for seed in range(logs):
        log = population.take(np.sort(random.choice(POPULATION, n, replace=False)))
        fitted = rcjax.fit(log)
        frontier = rcjax.solve_frontier(fitted, lam=lam)
        true, clock = np.asarray(rcjax.replay(frontier, population).error), [time.perf_counter()]
        variance = (np.asarray(slopes(fitted, rows_of(log), jnp.asarray(lam))) ** 2).sum(1)
        clock.append(time.perf_counter())
        bands = rcjax.tuning.bootstrap(frontier, log, replicates=replicates, level=LEVEL, seed=seed)
        clock.append(time.perf_counter())
        half = t.ppf((1 + LEVEL) / 2, n - 1) * np.sqrt(variance)
        shares_covered.append(shares(true, np.asarray(frontier.error), half, np.asarray(bands.error)))
        seconds.append(np.diff(clock))
    yield from rows_beside(shares_covered, np.array(seconds), {"models": len(model.models), "queries": n, "logs": logs})


def rows_beside(
    shares_covered: list[tuple[float, ...]], seconds: np.ndarray, of: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The rows of one size of the log, from `shares` and (derivative, bootstrap) seconds of each log."""
    mean, se = 100 * np.mean(shares_covered, 0), 100 * np.std(shares_covered, 0, ddof=1) / np.sqrt(len(shares_covered))
    took, first = np.median(seconds[1:], 0), seconds[0]
    kinds = (("the bootstrap's", 1, 0), ("the jackknife's", 0, 1), ("as wide, around the bootstrap's middle", 0, 0))
    for number, (kind, clock, middle) in enumerate(kinds):
        yield of | {
            "intervals": kind,
            "error covered, %": f"{mean[number]:.1f} ± {se[number]:.1f}",
            "width, points": f"{mean[4 - clock]:.1f}",
            "middle less true, points": f"{mean[5 + middle]:+.2f} ± {se[5 + middle]:.2f}",
            "seconds": f"{took[clock]:.2f}" if number < 2 else "–",
            "to compile": f"{first[clock] - took[clock]:.0f}" if number < 2 else "–",
        }


def shares(true: np.ndarray, predicted: np.ndarray, half: np.ndarray, ends: np.ndarray) -> tuple[float, ...]:
    """Shares of errors (L,) covered by the bootstrap's intervals, by the jackknife's, by these around the former's
    middle; mean widths of both; mean of the middles of both less the truth.
    """
    middle = ends.mean(1)
    inside = (ends[:, 0] <= true) & (true <= ends[:, 1]), abs(true - predicted) <= half, abs(true - middle) <= half
    figures = *inside, ends[:, 1] - ends[:, 0], 2 * half, middle - true, predicted - true
    return tuple(float(np.mean(figure)) for figure in figures)


def main_jackknife(models: int, queries: int, logs: int, replicates: int) -> None:
    """The table of `--jackknife`."""
    model, lam = rcjax.demo_model(), np.unique(prices())
    if models > len(model.models):
        model, lam = eleven_models(), np.geomspace(3.0, 3000.0, PRICES)
    rows = []
    for row in beside_the_jackknife(model, lam, queries, logs, replicates):
        print(row, file=sys.stderr, flush=True)
        rows.append(row)
    for kind in dict.fromkeys(row["intervals"] for row in rows):
        low, high = ends([row["error covered, %"] for row in rows if row["intervals"] == kind])
        record.headline(f"{100 * LEVEL:.0f} % intervals, {kind}, cover the error", f"{low} to {high} %")
    print(f"{100 * LEVEL:.0f} % intervals, {replicates} replicates. {machine()}\n\n{markdown(pl.DataFrame(rows))}")


def main() -> None:
    """The table."""
    parser = record.parser(__doc__)
    parser.add_argument("--logs", type=int, default=200)
    parser.add_argument("--tuned", type=int, default=60)
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--jackknife", type=int, choices=(5, 11), help="models; beside one derivative, nothing else")
    parser.add_argument("--queries", type=int, default=300, help="of a log beside the jackknife")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if options.jackknife:
        main_jackknife(options.jackknife, options.queries, options.tuned, options.replicates)
        return
    rows = []
    for name, population in (("Markov, Gumbel", markov()), ("one factor", one_factor())):
        for row in study(name, population, ways(options.logs, options.tuned), options.replicates):
            print(row, file=sys.stderr, flush=True)
            rows.append(row)
    level = f"{100 * LEVEL:.0f} %"
    for way in dict.fromkeys(row["policies"] for row in rows):
        shares = [
            ends([row[f"{what} covered, %"] for row in rows if row["policies"] == way]) for what in ("error", "cost")
        ]
        told = f"{level} intervals of policies {way} cover the error; the cost"
        record.headline(told, "; ".join(f"{low} to {high} %" for low, high in shares))
    print(f"{level} intervals, {options.replicates} replicates. {machine()}\n\n{markdown(pl.DataFrame(rows))}")


if __name__ == "__main__":
    record.run(main)
