"""Without labels: are promises of how often policies differ from a reference kept, and what is lost against labels?

    python -m benchmarks.reference --data DIR [--splits 20] [--draws 10]

Real logs with answers, {name}_train.csv and {name}_train_answers.csv (and test files, where there are) and prices.toml
in DIR, pooled. The dearest model is the reference: an answer is wrong where it is another one. Of each log 150 queries
are drawn at random to tune on, by the default search, `--splits` times; the others are the population, whose
differences are known exactly, and 150 held-out queries are drawn from it with replacement, `--draws` times. A promise,
made with 95 % confidence, is false where the policy differs more often in the population than promised; at most 5 % of
the draws may lead to one. "cost" is that of the policies promised over that of the reference.

Then, what tuning on differences loses against tuning on the true labels of the same 150 queries: the true error in the
population of the policies for 14 budgets, from that of the cheapest model to that of the dearest, over that of the
policies tuned on labels (geometric mean), and how much more money they take.
"""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.agreement import read_whole
from benchmarks.guarantee import certified, geometric_mean, share, truth
from benchmarks.report import markdown, progress
from rcjax.policy.reference import Reference

FITTED, HELD_OUT, BUDGETS, CONFIDENCE = 150, 150, 14, 0.95
TARGETS = (0.05, 0.1, 0.2)  # of answers that differ


def measured(folder: Path, splits: int, draws: int) -> None:
    """Print both tables of a folder of logs."""
    promises, losses = [], []
    for path in sorted(folder.glob("*_train_answers.csv")):
        name = path.name.removesuffix("_train_answers.csv")
        log = by_differences(folder, name)
        for split in range(splits):
            progress(f"{name}: split {split + 1} of {splits}")
            order = np.random.default_rng((48, split)).permutation(log.n_queries)
            train, population = (log.take(np.sort(part)) for part in np.split(order, [FITTED]))
            frontier = rcjax.tuning.select_frontier(train).frontier
            promises += [{"log": name} | row for row in promised(frontier, population, split, draws)]
            losses += [{"log": name} | row for row in lost(frontier, train, population)]
    frame = pl.DataFrame(promises, infer_schema_length=None)
    print(f"\nPromises of the difference, confidence {CONFIDENCE}, {HELD_OUT} queries held out.\n")
    lines = [line(group) | {"log": log, "at most": f"{100 * target:.0f} %"} for (log, target), group in _by(frame)]
    columns = ["log", "at most", "made, %", "false, %", "cost"]
    print(markdown(pl.DataFrame(lines).select(columns)), flush=True)
    record.headline("promises of the difference that are false, of draws, six logs", f"{share(frame['false'])} %")
    worst = max(lines, key=lambda row: float(row["false, %"].partition(" ")[0]))
    told = f"the same, the most of any log and target ({worst['log']}, {worst['at most']})"
    record.headline(told, f"{worst['false, %']} %")
    print("\nTrue error at 14 budgets, tuned on differences over tuned on labels.\n")
    rows = pl.DataFrame(losses, infer_schema_length=None)
    print(markdown(pl.DataFrame([_lost_line(name, group) for (name,), group in _groups(rows)])))
    ratio = geometric_mean(rows["error"])
    record.headline("true error at 14 budgets, tuned on differences instead of labels", f"{100 * (ratio - 1):+.1f} %")


def by_differences(folder: Path, name: str) -> rcjax.Log:
    """All queries of a log, counted by whether answers are those of its dearest model; its labels in `Log.errors`."""
    reference = Reference(read_whole(folder, name).models[-1], counts="differences")
    return read_whole(folder, name, reference=reference)


def promised(frontier: rcjax.Frontier, population: rcjax.Log, seed: int, draws: int) -> list[dict]:
    """What is promised on held-out queries, and whether it is false."""
    true, rng, rows = truth(frontier, population), np.random.default_rng((1, seed)), []
    dearest = float(np.asarray(frontier.model.cost).max())
    for _ in range(draws):
        log = population.take(rng.integers(population.n_queries, size=HELD_OUT))
        for target in TARGETS:
            index = certified(frontier, log, max_error=target, confidence=CONFIDENCE)
            cost = None if index is None else float(true.cost[index]) / dearest
            rows.append(
                {"target": target, "made": index is not None, "false": true.is_false(index, target), "cost": cost}
            )
    return rows


def lost(frontier: rcjax.Frontier, train: rcjax.Log, population: rcjax.Log) -> list[dict]:
    """True errors and costs at each budget over those of policies that are tuned on labels."""
    frontiers = frontier, rcjax.tuning.select_frontier(_labelled(train)).frontier
    replays = [rcjax.replay(one, _labelled(population)) for one in frontiers]
    low, high = float(np.asarray(train.cost).min()), float(np.asarray(train.cost).max())
    rows = []
    for budget in np.geomspace(low, high, BUDGETS) * (1 + 1e-6):
        try:
            places = [one.choose(budget=float(budget)) for one in frontiers]
        except rcjax.InfeasibleError:  # nothing is as cheap by the bills of these queries
            continue
        errors, costs = (
            [float(getattr(replayed, what)[place]) for replayed, place in zip(replays, places, strict=True)]
            for what in ("error", "spent")
        )
        rows.append({"error": errors[0] / errors[1] if errors[1] else None, "cost": costs[0] / costs[1]})
    return rows


def _labelled(log: rcjax.Log) -> rcjax.Log:
    assert log.errors is not None
    return dataclasses.replace(log.errors, hand=None, reference=None)


def line(group: pl.DataFrame) -> dict[str, str]:
    """The figures of one log and target."""
    cost = group["cost"].drop_nulls()
    told = f"{100 * float(cost.mean()):.0f} %" if len(cost) else "–"  # type: ignore[arg-type]
    return {"made, %": share(group["made"]), "false, %": share(group["false"]), "cost": told}


def _by(frame: pl.DataFrame):
    return frame.group_by(["log", "target"], maintain_order=True)


def _groups(frame: pl.DataFrame):
    return frame.group_by(["log"], maintain_order=True)


def _lost_line(name: str, group: pl.DataFrame) -> dict[str, str]:
    ratios = {what: 100 * (geometric_mean(group[what]) - 1) for what in ("error", "cost")}
    return {"log": name, "true error, %": f"{ratios['error']:+.1f}", "money, %": f"{ratios['cost']:+.1f}"}


def main() -> None:
    """Both tables."""
    parser = record.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of real logs with answers")
    parser.add_argument("--splits", type=int, default=20, help="times that queries to tune on are drawn from each log")
    parser.add_argument("--draws", type=int, default=10, help="held-out logs drawn for each of them")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    measured(arguments.data, arguments.splits, arguments.draws)


if __name__ == "__main__":
    record.run(main)
