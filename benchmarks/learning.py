"""Does a learning curve foretell what more labels bring?

    python -m benchmarks.learning [--logs 40] [--truths 300] [--data DIR [--splits 10]]

`rcjax.learning_curve` of `--logs` logs of n queries says by how many per cent twice as many labels would lower the
area under the error–cost curve. Beside it, the truth: what tuning on n and on 2n queries does on average, over
`--truths` draws of queries. Sampled logs: tuned on fresh logs and answered on 20,000 other queries of `sample_log`.
Real logs, from pairs {name}_train.csv, {name}_test.csv and prices.toml in DIR, pooled: tuned on 2n queries drawn at
random and on the half of them, answered on all the others; the curve's own logs, `--splits` of them, are drawn from
the same pool. Intervals are those of `LearningCurve.gain` at 90 %; "covers" is how often they hold the true mean gain.
The second table has the areas of the truth by number of queries, in per cent of that for the largest number, and the
power law through them, whose exponent is free between ½ and 1.
"""

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.paper.inputs import pooled
from benchmarks.report import machine, markdown, progress
from rcjax.solving.lambda_grid import lam_range
from rcjax.tuning.learning_curve import PRICES, area_of_points, fit_power_law, tune_and_answer

LABELS = (200, 400)
SIZES = (50, 100, 200, 400, 800)
JUDGES = 20_000


class Truth(NamedTuple):
    """Areas (J, M) of policies tuned on `queries` (M,) queries, of J draws of them."""

    queries: np.ndarray
    areas: np.ndarray

    def gain(self, n: int) -> tuple[float, float]:
        """By how many per cent the area at 2n is below that at n, and its standard error over the draws."""
        before, after = (self.areas[:, self.queries.tolist().index(size)] for size in (n, 2 * n))
        gain = 100 * (before - after) / before.mean()
        return float(gain.mean()), float(gain.std(ddof=1) / np.sqrt(len(gain)))

    def row(self) -> dict[str, float]:
        """The mean areas and the power law through them."""
        mean = self.areas.mean(0)
        beside = self.areas - self.areas.mean(1, keepdims=True)
        law = fit_power_law(self.queries, mean, beside.var(0, ddof=1))
        figures = {f"{size}": 100 * area / mean[-1] for size, area in zip(self.queries, mean, strict=True)}
        return figures | {"asymptote": 100 * law[0] / mean[-1], "exponent": law[2]}


def truth(log: rcjax.Log, tests: np.ndarray, others: np.ndarray) -> Truth:
    """Tune on the first queries of each row of others (J, P), answer those of the same row of tests (J, T)."""
    cost = np.asarray(log.cost, float)
    lam, sizes = lam_range(cost, PRICES), np.array(SIZES)
    error, charge = tune_and_answer(log, lam, tests, others, sizes)
    return Truth(sizes, area_of_points(charge, error, cost.min(), cost.max()))


def sampled(truths: int) -> Truth:
    """Of logs drawn from the demo's model."""
    rows, size = truths * SIZES[-1], max(SIZES)
    log = rcjax.sample_log(rows + JUDGES, seed=10**6)
    tests = np.broadcast_to(np.arange(rows, rows + JUDGES), (truths, JUDGES))
    return truth(log, tests, np.arange(rows).reshape(truths, size))


def drawn(log: rcjax.Log, truths: int) -> Truth:
    """Of queries drawn from a log, without replacement."""
    rng = np.random.default_rng(10**6)
    orders = np.array([rng.permutation(log.n_queries) for _ in range(truths)])
    return truth(log, orders[:, SIZES[-1] :], orders[:, : SIZES[-1]])


def compare(name: str, logs: list[rcjax.Log], true: Truth) -> dict:
    """A row of the table: what the curves of logs of one size foretell, and what is true."""
    n = logs[0].n_queries
    found = []
    for place, log in enumerate(logs):
        progress(f"{name}, {n} labels: log {place + 1} of {len(logs)}")
        found.append(rcjax.learning_curve(log, seed=place).gain(n))
    expected, low, high = np.array(found).T
    mean, se = true.gain(n)
    return {
        "log": name,
        "labels": n,
        "true gain, %": f"{mean:.2f} ± {se:.2f}",
        "foretold, %": f"{expected.mean():.2f} ± {expected.std(ddof=1) / np.sqrt(len(logs)):.2f}",
        "spread over logs": expected.std(ddof=1),
        "interval, %": f"{low.mean():.2f} to {high.mean():.2f}",
        "covers, %": 100 * float(((low <= mean) & (mean <= high)).mean()),
    }


def main() -> None:
    """Both tables."""
    parser = record.parser(__doc__)
    parser.add_argument("--logs", type=int, default=40, help="sampled logs of each size")
    parser.add_argument("--truths", type=int, default=300, help="draws that the truth is averaged over")
    parser.add_argument("--data", type=Path, help="folder of real logs")
    parser.add_argument("--splits", type=int, default=10, help="logs drawn from each real log")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(f"{machine()}\n")
    true = sampled(arguments.truths)
    laws = [{"log": "sampled"} | true.row()]
    seeds = range(arguments.logs)
    rows = [compare("sampled", [rcjax.sample_log(n, seed=seed) for seed in seeds], true) for n in LABELS]
    for path in sorted(arguments.data.glob("*_test.csv")) if arguments.data else []:
        name = path.name.removesuffix("_test.csv")
        log, *_ = pooled(arguments.data, name)
        log = log.take(log.complete)
        true = drawn(log, arguments.truths)
        laws.append({"log": name} | true.row())
        splits = range(arguments.splits)
        rows += [compare(name, [log.split(n / log.n_queries, seed)[0] for seed in splits], true) for n in LABELS]
    covers = [float(row["covers, %"]) for row in rows]
    record.headline("90 % intervals of the learning curve cover", f"{min(covers):g} to {max(covers):g} %")
    print(f"Gain from twice the labels.\n\n{markdown(pl.DataFrame(rows))}\n")
    print(f"True areas by number of queries, in per cent of the last.\n\n{markdown(pl.DataFrame(laws))}")


if __name__ == "__main__":
    record.run(main)
