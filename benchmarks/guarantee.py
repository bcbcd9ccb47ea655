"""The guarantee of `rcjax.certify`: how often it is false, and its price.

    python -m benchmarks.guarantee [--logs 1000] [--fits 100] [--data DIR [--splits 10] [--draws 20]]

Sampled logs: held-out logs are drawn from the demo's model, so the true error and cost of a position on a ladder are
known from many more queries. `--logs` of them are certified with one frontier (10⁶ queries give the truth), and one
each with `--fits` frontiers of their own training logs (200,000 queries). A promise is false if the chosen position
truly misses a limit; at most 1 − confidence of the logs may lead to a false promise. Beside `certify` are the cheapest
position that is predicted to keep the limit, and the cheapest position that kept it on the held-out log.

Real logs are pairs {name}_train.csv and {name}_test.csv in DIR, pooled, with prices.toml. The default is tuned on 250
queries drawn at random, `--splits` times, with targets of 1, 1.25 and 1.5 times the error of the best single model on
these queries. The other queries are the population: its error is known exactly, and held-out logs are drawn from it
with replacement, `--draws` times, as the guarantee assumes. "cost" is the cost of the chosen positions over that of the
cheapest position that truly keeps the limit (geometric mean; without a choice, the dearest rung counts).

The first table has how often a test shows that a true share of errors is below a limit: by the bet, and by the exact
binomial tail.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import polars as pl
import scipy.stats

import rcjax
from benchmarks import record
from benchmarks.paper.inputs import pooled
from benchmarks.report import markdown, progress
from rcjax.solving.frontier.frontier import MAX_RUNGS
from rcjax.tuning.certify import refutes_mean

FITTED, HELD_OUT = 250, (150, 300, 600)
MULTIPLES = (1.0, 1.25, 1.5)  # of the error of the best model on the training log
CONFIDENCE = 0.95
#: Held-out queries, a limit, and a true error below it.
SETTINGS = ((100, 0.1, 0.04), (300, 0.05, 0.02), (300, 0.2, 0.13), (600, 0.03, 0.015), (1000, 0.1, 0.075))


class Truth(NamedTuple):
    """What the rungs of a frontier truly do, (R,) by rising predicted cost."""

    error: np.ndarray
    cost: np.ndarray

    @classmethod
    def of(cls, frontier: rcjax.Frontier, population: rcjax.Log) -> "Truth":
        """On the whole population."""
        policies = frontier.policies.take(np.resize(frontier.rung_indices, MAX_RUNGS))  # one length is compiled
        seen = rcjax.replay(dataclasses.replace(frontier, policies=policies), population)
        error, cost = (np.asarray(each, float)[: len(frontier.rung_indices)] for each in (seen.error, seen.spent))
        return cls(error, cost)

    def at(self, position: float) -> tuple[float, float]:
        """(error, cost) at a position of the ladder."""
        place = np.arange(len(self.cost))
        return float(np.interp(position, place, self.error)), float(np.interp(position, place, self.cost))

    def is_false(self, position: float | None, max_error: float) -> bool:
        """Whether a position misses a limit; no policy, no promise."""
        return position is not None and self.at(position)[0] > max_error

    def over_best(self, position: float, target: float) -> float | None:
        """Cost of a position over that of the cheapest one that keeps the target; None where there is none."""
        places = np.linspace(0, len(self.cost) - 1, 50 * len(self.cost))
        keeps = [cost for error, cost in map(self.at, places.tolist()) if error <= target]
        return self.at(position)[1] / min(keeps) if keeps else None


def certified(frontier: rcjax.Frontier, log: rcjax.Log, **targets: Any) -> float | None:
    """The position that is certified, None where there is none."""
    try:
        return rcjax.certify(frontier, log, **targets).position
    except rcjax.InfeasibleError:
        return None


def cheapest(error: np.ndarray, limit: float) -> float | None:
    """The cheapest position of rungs with these errors (R,) that keeps a limit; None where none does."""
    places = np.linspace(0, len(error) - 1, 50 * len(error))
    keeps = np.interp(places, np.arange(len(error)), error) <= limit
    return float(places[keeps.argmax()]) if keeps.any() else None


def choices(
    frontier: rcjax.Frontier, log: rcjax.Log, max_error: float, confidence: float = CONFIDENCE
) -> dict[str, float | None]:
    """The position that is certified, and those that prediction and counting take to keep a limit on the error."""
    return {
        "certify": certified(frontier, log, max_error=max_error, confidence=confidence),
        "by prediction": cheapest(np.asarray(frontier.error, float)[frontier.rung_indices], max_error),
        "by counting": cheapest(Truth.of(frontier, log).error, max_error),
    }


def share(values: pl.Series) -> str:
    """A share in per cent, with the standard error of as many independent draws."""
    if not len(values):
        return "–"
    mean = float(values.mean())  # type: ignore[arg-type]
    return f"{100 * mean:.1f} ± {100 * np.sqrt(mean * (1 - mean) / len(values)):.1f}"


def geometric_mean(values: pl.Series) -> float:
    """Of those that there are."""
    return float(np.exp(values.drop_nulls().cast(float).log().to_numpy().mean())) if values.count() else np.nan


def power(repeats: int = 4_000) -> pl.DataFrame:
    """How often one test shows that errors are below a limit, by the bet and by counting them."""
    rows = []
    for n, limit, error in SETTINGS:
        lost = np.random.default_rng(n).random((repeats, n)) < error
        shown = {"by a bet, %": refutes_mean(lost, limit, 1 - CONFIDENCE)}
        shown["by the binomial tail, %"] = scipy.stats.binom.cdf(lost.sum(1), n, limit) <= 1 - CONFIDENCE
        figures = {name: f"{100 * passed.mean():.0f}" for name, passed in shown.items()}
        rows.append({"n": n, "limit, %": 100 * limit, "error, %": 100 * error} | figures)
    return pl.DataFrame(rows)


# -- sampled logs


def sampled(logs: int, fits: int) -> None:
    """Print how often a promise about sampled logs is false, with one frontier and with many."""
    settings = ((f"one frontier, {logs} held-out logs of each size", [(0, logs)], 10**6),)
    settings += ((f"{fits} frontiers, a held-out log of each size for each", [(s, 1) for s in range(fits)], 200_000),)
    for title, runs, size in settings:
        population, judged = rcjax.sample_log(size, seed=size), []
        for fit, repeats in runs:
            frontier, rows = frontier_of(fit), []
            for repeat in range(repeats):
                progress(f"frontier {fit}, log {repeat + 1} of {repeats}")
                rows += on_sampled(frontier, 10_000 * (fit + 1) + repeat)
            judged += judge(frontier, rows, population)
        if judged:
            summary = table(pl.DataFrame(judged), ["n", "targets"])
            worst = summary.filter(pl.col("targets").str.contains("0.95"))["certify: false, %"].to_list()
            told = f"promises with 95 % confidence that are false, at most: {title}"
            record.headline(told, f"{max(worst, key=lambda cell: float(cell.partition(' ')[0]))} %")
            print(f"\nSampled logs: {title}.\n\n{markdown(summary)}", flush=True)


def frontier_of(seed: int) -> rcjax.Frontier:
    """The frontier of a sampled training log."""
    return rcjax.solve_frontier(rcjax.fit(rcjax.sample_log(FITTED, seed=seed)))


def on_sampled(frontier: rcjax.Frontier, seed: int) -> list[dict]:
    """What every method chooses on held-out logs of both sizes."""
    rows = []
    for n in HELD_OUT[:2]:
        log = rcjax.sample_log(n, seed=seed)
        for error, level in itertools.product((0.2, 0.25, 0.3), (0.9, 0.95)):
            chosen = choices(frontier, log, error, level)
            head = {"n": n, "max_error": error, "confidence": level}
            rows += [head | {"position": position, "method": method} for method, position in chosen.items()]
    return rows


def judge(frontier: rcjax.Frontier, rows: list[dict], population: rcjax.Log) -> list[dict]:
    """Which promises are false: a row for each."""
    true, found = Truth.of(frontier, population), []
    for row in rows:
        told = f"error ≤ {row['max_error']:.2g}, confidence {row['confidence']:.2g}"
        position = row["position"]
        figures = {"made": position is not None, "false": true.is_false(position, row["max_error"])}
        found.append({"n": row["n"], "targets": told, "method": row["method"]} | figures)
    return found


def table(rows: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """A row for each setting: how often something is certified, and how often each method's promise is false."""
    lines = []
    for setting, group in rows.group_by(by, maintain_order=True):
        line = dict(zip(by, setting, strict=True))
        for (method,), part in group.group_by(["method"], maintain_order=True):
            line |= {f"{method}: made, %": share(part["made"])} if method == "certify" else {}
            line[f"{method}: false, %"] = share(part["false"])
            if "over" in part.columns:
                line[f"{method}: cost"] = geometric_mean(part["over"])
        lines.append(line)
    return pl.DataFrame(lines, infer_schema_length=None)


# -- real logs


def real(folder: Path, splits: int, draws: int) -> None:
    """Print the tables of a folder of logs."""
    rows = []
    for path in sorted(folder.glob("*_test.csv")):
        name = path.name.removesuffix("_test.csv")
        log, *_ = pooled(folder, name)
        for split in range(splits):
            train, population = log.split(FITTED / log.n_queries, seed=split)
            frontier = rcjax.tuning.select_frontier(train).frontier
            true, rng = Truth.of(frontier, population), np.random.default_rng(split)
            best = 1 - float(np.asarray(train.correct)[train.complete].mean(0).max())
            for draw in range(draws):
                progress(f"{name}: split {split + 1} of {splits}, draw {draw + 1} of {draws}")
                for n in HELD_OUT:
                    found = on_real(frontier, true, population, best, n, rng)
                    rows += [{"log": name, "n": n} | row for row in found]
    frame = pl.DataFrame(rows, infer_schema_length=None)
    print(f"\nReal logs, confidence {CONFIDENCE}, n queries held out, drawn with replacement.\n")
    print(markdown(table(frame, ["log", "n"])))
    print("\nOver all logs and targets.\n")
    print(markdown(by_method(frame)))
    for row in by_method(frame).iter_rows(named=True):
        told = f"promises on real logs that are false, {row['n']} queries held out: {row['method']}"
        record.headline(told, f"{row['false, %']} %")


def on_real(
    frontier: rcjax.Frontier, true: Truth, population: rcjax.Log, best: float, n: int, rng: np.random.Generator
) -> Iterator[dict]:
    """What every method chooses on one held-out log, judged by the population it is drawn from."""
    log = population.take(rng.integers(population.n_queries, size=n))
    for target in (multiple * best for multiple in MULTIPLES):
        for method, position in choices(frontier, log, target).items():
            figures = {"made": position is not None, "false": true.is_false(position, target)}
            over = true.over_best(len(true.cost) - 1.0 if position is None else position, target)
            yield {"method": method} | figures | {"over": over}


def by_method(rows: pl.DataFrame) -> pl.DataFrame:
    """A row for each size and method."""
    lines = []
    for (n, method), part in rows.group_by(["n", "method"], maintain_order=True):
        figures = {"false, %": share(part["false"]), "cost": geometric_mean(part["over"])}
        lines.append({"n": n, "method": method, "made, %": share(part["made"])} | figures)
    return pl.DataFrame(lines).sort("n", maintain_order=True)


def main() -> None:
    """All tables."""
    parser = record.parser(__doc__)
    parser.add_argument("--logs", type=int, default=1000, help="sampled held-out logs for one frontier")
    parser.add_argument("--fits", type=int, default=100, help="sampled training logs, each with a held-out log")
    parser.add_argument("--data", type=Path, help="folder of real logs")
    parser.add_argument("--splits", type=int, default=10, help="training logs drawn from each real log")
    parser.add_argument("--draws", type=int, default=20, help="held-out logs drawn for each of them")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(f"One policy whose error is known.\n\n{markdown(power())}\n")
    sampled(arguments.logs, arguments.fits)
    if arguments.data:
        real(arguments.data, arguments.splits, arguments.draws)


if __name__ == "__main__":
    record.run(main)
