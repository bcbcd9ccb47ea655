"""Policies that compare the answers of two models, against policies by confidence alone: simulated and real logs.

    python -m benchmarks.agreement [--samples 100] [--data DIR --splits 20] [--out FILE]

Simulated logs have three models whose stated confidences tell little. Two right answers agree, and two wrong answers
agree with probability q. The default search tunes on 300 queries, with their answers and without; both frontiers answer
20,000 fresh queries. The frontiers of 20,000 queries give the true difference.

`--data` adds real logs: every {name}_train.csv with its {name}_train_answers.csv (and test files, if there are any), at
random splits of 200 or 300 queries to tune on. Figures are in per cent of the figures without answers, over the costs
that both frontiers cover: the area under straight lines through all points; `mixed`, the area under the lines through
the corners of the hull, which mixtures of two policies reach; `budgets`, the mean error of the single policies for
budgets. Below 0 is better; ± is one standard error over samples, or over splits, which share queries. A second frontier
of each sample takes policies by answers wherever they look better, without cross-validation: it shows the most that
could be gained.
"""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.methods import compare_frontiers
from benchmarks.paper.inputs import resplit
from benchmarks.report import collected, machine, markdown, with_error
from rcjax.tuning.cross_validation import CrossValidation

MODELS = ("small", "medium", "large")
COST = (1e-5, 3e-5, 3e-4)
EASE, HARDNESS = (0.6, 1.2, 2.6), 1.0  # log-odds of being right, and how a query's difficulty lowers them
STATED, TOLD = (0.5, 0.8, 0.9, 0.95, 1.0), 0.5  # confidences that are stated, and by how much right answers' are higher
CHANCES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
SIZE, FRESH = 300, 20_000
LEFT = 100
WORTH = 3  # per cent of area, a gain that is to be found


def simulate(n: int, q: float, seed: int) -> rcjax.Log:
    """A log of stated confidences, with answers: right ones agree, two wrong ones with probability q."""
    rng = np.random.default_rng(seed)
    hard = HARDNESS * rng.normal(size=(n, 1))
    right = rng.random((n, 3)) < 1 / (1 + np.exp(hard - np.array(EASE)))
    told = TOLD * right + rng.normal(size=(n, 3))
    stated = np.array(STATED)[np.searchsorted([-0.8, 0.0, 0.6, 1.4], told)]
    common = rng.random((n, 3)) < math.sqrt(q)
    own = np.broadcast_to([f"wrong, as {name} says" for name in MODELS], (n, 3))
    answer = np.where(right, "right", np.where(common, "wrong", own))
    columns = {"correct": right.astype(int), "confidence": stated, "answer": answer, "cost": np.tile(COST, (n, 1))}
    table = {"query": np.repeat(np.arange(n), 3), "model": np.tile(MODELS, n)}
    return rcjax.read_log(pl.DataFrame(table | {name: values.ravel() for name, values in columns.items()}))


def without_answers(log: rcjax.Log) -> rcjax.Log:
    """The same log, as if it did not tell what was answered."""
    return dataclasses.replace(log, answer=None, compare=None)


def compare(train: rcjax.Log, test: rcjax.Log) -> dict[str, Any]:
    """The changes by answers, whether they were used at all, and the change of area if they are used in any case."""
    selection, without = (
        rcjax.tuning.select_frontier(train),
        rcjax.tuning.select_frontier(without_answers(train)).frontier,
    )
    frontier, comparison = selection.frontier, selection.cross_validation
    assert comparison is not None  # as the search is by labels
    used = frontier.policies.agreements is not None
    figures = compare_frontiers(frontier, without, test)
    forced = figures["change"] if used else compare_frontiers(_in_any_case(train), without, test)["change"]
    gain = None if comparison.agreement_gains is None else -100 * comparison.agreement_gains.overall.mean
    prices = float(comparison.uses_agreement.mean())
    return figures | {"used": used, "in any case": forced, "prices": prices, "cross-validated": gain}


def _in_any_case(train: rcjax.Log) -> rcjax.Frontier:
    """The frontier with policies by agreement wherever they look better on the log, whatever is cross-validated."""
    with mock.patch.object(CrossValidation, "agreeing", property(lambda self: np.full(len(self.targets.lam), True))):
        return rcjax.tuning.select_frontier(train).frontier


def simulated(samples: int) -> Iterator[dict[str, Any]]:
    """A row for each q and sample; sample −1 is the truth."""
    for q in CHANCES:
        fresh = simulate(FRESH, q, seed=1)
        yield {"q": q, "sample": -1} | compare(simulate(FRESH, q, seed=2), fresh)
        for sample in range(samples):
            yield {"q": q, "sample": sample} | compare(simulate(SIZE, q, seed=1_000 + sample), fresh)


def real(folder: Path, splits: int) -> Iterator[dict[str, Any]]:
    """A row for each log and random split."""
    for path in sorted(folder.glob("*_train_answers.csv")):
        name = path.name.removesuffix("_train_answers.csv")
        whole = read_whole(folder, name)
        size = SIZE if whole.n_queries >= SIZE + LEFT else 200
        for split in range(splits):
            yield {"log": name, "queries": size, "split": split} | compare(*resplit(whole, size, split))


def read_whole(folder: Path, name: str, **options: Any) -> rcjax.Log:
    """All queries of a log, training and test ones, with their answers; `options` of `read_log` besides."""
    frames = []
    for part in ("train", "test"):
        if (folder / f"{name}_{part}.csv").exists():
            log = pl.read_csv(folder / f"{name}_{part}.csv")
            answers = pl.read_csv(folder / f"{name}_{part}_answers.csv")
            frame = log.join(answers, on=["query", "model"], how="left", maintain_order="left")
            frames.append(frame.with_columns(query=pl.format("{}-{}", pl.lit(part), "query")))
    task = "choice" if name.startswith("mmlu") else "generation"
    whole = pl.concat(frames, how="diagonal_relaxed")
    return rcjax.read_log(whole, prices=folder / "prices.toml", task=task, **options)


def simulated_table(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """By q: the true change, that of samples, and how often answers were used."""
    lines = []
    for q in CHANCES:
        truth = next(row for row in rows if row["q"] == q and row["sample"] < 0)
        group = [row for row in rows if row["q"] == q and row["sample"] >= 0]
        if not group:
            continue
        changes, forced = (np.array([row[name] for row in group]) for name in ("change", "in any case"))
        line = {"q": q, "true change": f"{truth['change']:+.2f}", "change, mean": with_error(changes)}
        line |= {"used in any case": with_error(forced)}
        for name in ("mixed", "budgets"):
            own = with_error(np.array([row[name] for row in group]))
            line |= {f"true change, {name}": f"{truth[name]:+.2f}", f"change, {name}": own}
        line |= {"samples": len(group), "answers used": f"{100 * np.mean([row['used'] for row in group]):.0f} %"}
        lines.append(line | {"worse by over 1 %": f"{100 * np.mean(changes > 1):.0f} %"})
    return pl.DataFrame(lines)


def used_where_worth_it(rows: list[dict[str, Any]]) -> tuple[float, int]:
    """(share, number) of samples with answers used, where using them in any case lowers the area by over 3 %."""
    used = [row["used"] for row in rows if row["sample"] >= 0 and row["in any case"] < -WORTH]
    return float(np.mean(used)) if used else float("nan"), len(used)


def real_table(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """By log: the change of area, and how often answers were used."""
    lines = []
    for name in dict.fromkeys(row["log"] for row in rows):
        group = [row for row in rows if row["log"] == name]
        used = f"{100 * np.mean([row['used'] for row in group]):.0f} %"
        line = {"log": name, "queries": group[0]["queries"], "splits": len(group)}
        line |= {what: with_error(np.array([row[what] for row in group])) for what in ("change", "mixed", "budgets")}
        lines.append(line | {"answers used": used})
    return pl.DataFrame(lines)


def main() -> None:
    """Print the tables."""
    parser = record.parser(__doc__)
    parser.add_argument("--samples", type=int, default=100, help="simulated logs for each q")
    parser.add_argument("--data", type=Path, help="folder of real logs")
    parser.add_argument("--splits", type=int, default=20, help="random splits of each real log")
    parser.add_argument("--out", type=Path, help="keep the rows here, as JSON lines")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(f"{machine()} Change of area by answers, per cent.\n")
    if options.samples:
        rows = collected(simulated(options.samples), "q {q}, sample {sample}", options.out)
        print("Simulated:\n")
        table = simulated_table(rows)
        print(markdown(table))
        for line in table.iter_rows(named=True):
            what = f"simulated, wrong answers agree with probability {line['q']:g}: change of area, and the true one"
            record.headline(what, f"{line['change, mean']} %, {line['true change']} %")
            what = what.replace("change of area", "of the error that budgets get")
            record.headline(what, f"{line['change, budgets']} %, {line['true change, budgets']} %")
        share, number = used_where_worth_it(rows)
        what = f"simulated: answers used, of samples where policies by answers gain over {WORTH} % of area"
        record.headline(what, f"{100 * share:.0f} % of {number}")
        print(f"\n{what}: {100 * share:.0f} % of {number}")
    if options.data:
        rows = collected(real(options.data, options.splits), "{log}, split {split}", options.out)
        print("\nReal:\n")
        table = real_table(rows)
        print(markdown(table))
        for line in table.iter_rows(named=True):
            what = f"{line['log']}: change by answers of area, and of the error that budgets get"
            record.headline(what, f"{line['change']} %, {line['budgets']} %")


if __name__ == "__main__":
    record.run(main)
