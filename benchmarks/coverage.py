"""Coverage of the intervals of `rcjax.tuning.bootstrap`.

    python -m benchmarks.coverage [--logs 200] [--tuned 60] [--replicates 200]

Logs of 100, 300 and 1,000 queries are drawn from two populations of 30,000. One is sampled from the demo's Markov chain
of Gumbel copulas. In the other, every assumption of rcjax is false: one latent difficulty drives all confidences (so
they are no Markov chain, and pairs have Gaussian copulas), and also moves the chance to be right (so one model's answer
says more about another model than that model's own confidence). The whole population gives the true error and cost of a
policy. Policies are fixed before the log is drawn (`--logs` of them), or tuned on it (`--tuned` of them): by labels and
cross-validation (`select_frontier`), for prices λ or for budgets that are followed; or by the model (`solve_frontier`),
with every step repeated in each replicate. Coverage is in per cent, over twelve prices or budgets and all logs, ± one
standard error over logs. Beside it are the mean width of the interval for the error, and the mean of the true error
minus the predicted one, in points.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from scipy.special import expit, logit, ndtr

import rcjax
from benchmarks import record
from benchmarks.report import machine, markdown
from rcjax.logs.log import Log
from rcjax.model.calibration import Calibrator
from rcjax.model.marginals import Marginal
from rcjax.solving.frontier.points import position_weights, shares_at_bill

POPULATION, SIZES, N_LAM = 30_000, (100, 300, 1000), 12
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
    places = [np.abs(spent - cost).argmin() for cost in np.geomspace(spent[-1] * 1.05, spent[0] * 0.95, N_LAM)]
    return np.asarray(frontier.lam)[places]


def budgets() -> np.ndarray:
    """Money per query, from a little above what the demo's cheapest model costs to what the dearest does."""
    bills = np.asarray(rcjax.demo_model().cost)
    return np.geomspace(1.2 * bills.min(), bills.max(), N_LAM)


def by_model(log: rcjax.Log, lam: np.ndarray) -> rcjax.Frontier:
    """The best subcascades under the fitted model."""
    return rcjax.solve_frontier(rcjax.fit(log), lam=lam)


def by_labels(log: rcjax.Log, lam: np.ndarray) -> rcjax.Frontier:
    """The default of `rcjax tune`."""
    return rcjax.tuning.select_frontier(log, lam=lam).frontier


def for_budgets(log: rcjax.Log) -> rcjax.Frontier:
    """The default of `rcjax tune` for a budget."""
    return rcjax.tuning.select_frontier(log).frontier


class Way(NamedTuple):
    """A way to policies."""

    number: int
    """Of logs."""
    tune: Callable[[rcjax.Log], rcjax.Frontier]
    money: np.ndarray | None = None
    """Budgets that are followed; None: all points are looked at, each as it is."""


def ways(fixed: int, tuned: int) -> dict[str, Way]:
    """All ways by name, with so many logs each."""
    lam, before = prices(), rcjax.solve_frontier(rcjax.demo_model(), lam=prices())
    return {
        FIXED: Way(fixed, lambda log: before),
        "by labels": Way(tuned, partial(by_labels, lam=lam)),
        "by labels, for budgets": Way(tuned, for_budgets, budgets()),
        "by the model": Way(tuned, partial(by_model, lam=lam)),
    }


def rung_shares(frontier: rcjax.Frontier, budget: float) -> np.ndarray:
    """(L,) share of the queries that goes by each point under the ladder for a budget."""
    rungs, shares = frontier.rung_indices, np.zeros(len(frontier.lam))
    position = getattr(frontier.policy(budget=budget), "position", 0.0)  # a single rung has no position
    shares[rungs] = position_weights(np.array([position]), len(rungs))[0]
    return shares


def covered(
    frontier: rcjax.Frontier,
    bands: rcjax.solving.frontier.Bands,
    true: rcjax.tuning.replaying.Replay,
    money: np.ndarray | None,
) -> tuple[float, ...]:
    """Shares of true errors and bills that lie in their intervals; width; true less predicted error.

    A budget is followed: its true error is that at the position where the rungs truly cost it, and its bill is kept.
    """
    spent = true.spent if frontier.is_by_labels else true.cost  # who goes by the model knows no bills
    if money is None:
        shares, error, bill = np.eye(len(frontier.lam)), np.asarray(true.error), np.asarray(spent)
    else:
        money, rungs = money[money >= float(frontier.cost.min())], frontier.rung_indices
        shares = np.stack([rung_shares(frontier, float(budget)) for budget in money])
        cost, wrong = np.asarray(spent)[rungs], np.asarray(true.error)[rungs]
        error, bill = shares_at_bill(cost, money) @ wrong, None
    ends, predicted = shares @ np.asarray(bands.error), shares @ np.asarray(frontier.error)
    inside = ((ends[:, 0] <= error) & (error <= ends[:, 1])).mean()
    kept = np.asarray(bands.cost)
    paid = np.nan if bill is None else ((kept[:, 0] <= bill) & (bill <= kept[:, 1])).mean()
    return float(inside), float(paid), 100 * float(np.diff(ends).mean()), 100 * float((error - predicted).mean())


def study(name: str, population: rcjax.Log, all_ways: dict[str, Way], replicates: int) -> Iterator[dict[str, Any]]:
    """A row for each way to a policy and each size of the log."""
    random = np.random.default_rng(0)
    for way, (number, tune, money) in all_ways.items():
        for n in SIZES:
            found = []
            for seed in range(number):
                log = population.take(np.sort(random.choice(POPULATION, n, replace=False)))
                frontier = tune(log)
                options = {"replicates": replicates, "level": LEVEL, "refit": way != FIXED, "seed": seed}
                true = rcjax.replay(frontier, population)
                bands = rcjax.tuning.bootstrap(frontier, log, **options)
                found.append(covered(frontier, bands, true, money))
            mean, se = np.mean(found, 0), np.std(found, 0, ddof=1) / np.sqrt(number)
            yield {
                "truth": name,
                "policies": way,
                "queries": n,
                "logs": number,
                "error covered, %": f"{100 * mean[0]:.1f} ± {100 * se[0]:.1f}",
                "cost covered, %": "kept" if money is not None else f"{100 * mean[1]:.1f} ± {100 * se[1]:.1f}",
                "width, points": f"{mean[2]:.1f}",
                "true less predicted, points": f"{mean[3]:+.2f} ± {se[3]:.2f}",
            }


def ends(cells: list[str]) -> tuple[str, str]:
    """The least and the greatest mean of cells "mean ± error"."""
    means = [cell.partition(" ")[0] for cell in cells]
    return min(means, key=float), max(means, key=float)


def main() -> None:
    """The table."""
    parser = record.parser(__doc__)
    parser.add_argument("--logs", type=int, default=200)
    parser.add_argument("--tuned", type=int, default=60)
    parser.add_argument("--replicates", type=int, default=200)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows = []
    for name, population in (("Markov, Gumbel", markov()), ("one factor", one_factor())):
        for row in study(name, population, ways(options.logs, options.tuned), options.replicates):
            print(row, file=sys.stderr, flush=True)
            rows.append(row)
    level = f"{100 * LEVEL:.0f} %"
    for way in dict.fromkeys(row["policies"] for row in rows):
        cells = [[row[f"{what} covered, %"] for row in rows if row["policies"] == way] for what in ("error", "cost")]
        shares = [ends(each) for each in cells if "kept" not in each]
        told = f"{level} intervals of policies {way} cover the error{'; the cost' if len(shares) > 1 else ''}"
        record.headline(told, "; ".join(f"{low} to {high} %" for low, high in shares))
    print(f"{level} intervals, {options.replicates} replicates. {machine()}\n\n{markdown(pl.DataFrame(rows))}")


if __name__ == "__main__":
    record.run(main)
