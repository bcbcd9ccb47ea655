"""Tuning without labels: promises of differences from a reference, and the loss against tuning on labels.

    python -m benchmarks.reference --data DIR [--splits 200] [--draws 5] [--out FILE]

Real logs with answers, {name}_train.csv and {name}_train_answers.csv (and test files, where there are) and prices.toml
in DIR, pooled. The dearest model is the reference: an answer is wrong where it is another one. A split is 300 queries:
150 of a log are drawn at random to tune on, by the default search; the others are the population, whose differences are
known exactly, and 150 held-out queries are drawn from it with replacement, `--draws` times. A promise, made with 95 %
confidence, is false where the policy differs more often in the population than promised; at most 5 % of the draws may
lead to one. "cost" is that of the policies promised over that of the reference.

Then, what tuning on differences loses against tuning on the true labels of the same 150 queries: the true error in the
population of the policies for 14 budgets, from that of the cheapest model to that of the dearest, over that of the
policies tuned on labels (geometric mean), and how much more money they take.

Last, what some labels by hand tell of errors: of the answers to the first held-out queries 50 or 100 are labelled,
drawn as `rcjax label` draws them, and the verdict of the reference stands for the rest. 90 % intervals of the error of
the policies for these budgets, as `rcjax evaluate` gives them, should hold the error in the population nine times of
ten; ± is one standard error over splits, whose policies share queries.

With `--out` the rows of each split are kept, and a later run goes on with those that are there.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.agreement import read_whole
from benchmarks.guarantee import Truth, certified, geometric_mean, share
from benchmarks.labels import partly
from benchmarks.report import collected, markdown, with_error
from rcjax.logs.labels import draw_answers
from rcjax.policy.error_kind import Reference
from rcjax.policy.spec import Target
from rcjax.tuning.replaying.replay import error_interval

FITTED, HELD_OUT, BUDGETS, CONFIDENCE = 150, 150, 14, 0.95
TARGETS = (0.05, 0.1, 0.2)  # of answers that differ
LABELS = (50, 100)  # of answers to held-out queries


def splits_of(folder: Path, splits: int, draws: int, out: Path | None) -> Iterator[dict[str, Any]]:
    """A row for each split and log that `out` has none of: what was promised, lost, and told by some labels."""
    done = {(row["log"], row["split"]) for row in rows_of(out)}
    names = [path.name.removesuffix("_train_answers.csv") for path in sorted(folder.glob("*_train_answers.csv"))]
    logs = {name: by_differences(folder, name) for name in names}
    for split in range(splits):
        for name, log in logs.items():
            if (name, split) not in done:
                yield {"log": name, "split": split} | one_split(log, split, draws)


def rows_of(out: Path | None) -> list[dict[str, Any]]:
    """The rows that a file holds; none where there is no file."""
    return [json.loads(line) for line in out.read_text("utf-8").splitlines()] if out and out.exists() else []


def one_split(log: rcjax.Log, split: int, draws: int) -> dict[str, list[dict[str, Any]]]:
    """The promises, losses and intervals of one split of a log."""
    order = np.random.default_rng((48, split)).permutation(log.n_queries)
    train, population = (log.take(np.sort(part)) for part in np.split(order, [FITTED]))
    frontier = rcjax.tuning.select_frontier(train).frontier
    rng = np.random.default_rng((1, split))
    held_out = [population.take(rng.integers(population.n_queries, size=HELD_OUT)) for _ in range(draws)]
    return {
        "promises": promised(frontier, population, held_out),
        "losses": lost(frontier, train, population),
        "intervals": [row for number in LABELS for row in intervals(frontier, held_out[0], population, number, split)],
    }


def by_differences(folder: Path, name: str) -> rcjax.Log:
    """All queries, counted by whether answers are those of its dearest model; its labels in `Log.labelled_log`."""
    reference = Reference(read_whole(folder, name).models[-1], counts="differences")
    log = read_whole(folder, name, reference=reference)
    assert log.errors is not None
    return dataclasses.replace(log, seconds=None, errors=dataclasses.replace(log.errors, seconds=None))  # half the time


def promised(frontier: rcjax.Frontier, population: rcjax.Log, held_out: list[rcjax.Log]) -> list[dict[str, Any]]:
    """What is promised on each held-out log, and whether it is false."""
    true, rows = Truth.of(frontier, population), []
    dearest = float(np.asarray(frontier.model.cost).max())
    for log in held_out:
        for target in TARGETS:
            position = certified(frontier, log, max_error=target, confidence=CONFIDENCE)
            cost = None if position is None else true.at(position)[1] / dearest
            false = true.is_false(position, target)
            rows.append({"target": target, "made": position is not None, "false": false, "cost": cost})
    return rows


def lost(frontier: rcjax.Frontier, train: rcjax.Log, population: rcjax.Log) -> list[dict[str, Any]]:
    """True errors and costs at each budget over those of policies that are tuned on labels."""
    frontiers = frontier, rcjax.tuning.select_frontier(_labelled(train)).frontier
    chosen = [at_budgets(one) for one in frontiers]
    replays = [rcjax.replay(one, _labelled(population)) for one in frontiers]
    rows = []
    for budget in chosen[0].keys() & chosen[1].keys():
        errors, costs = (
            [float(getattr(replayed, what)[at[budget]]) for replayed, at in zip(replays, chosen, strict=True)]
            for what in ("error", "spent")
        )
        # No error at all counts as half a one: ratios have a geometric mean.
        of, to = (max(error, 0.5 / population.n_queries) for error in errors)
        rows.append({"error": of / to, "cost": costs[0] / costs[1]})
    return rows


def at_budgets(frontier: rcjax.Frontier) -> dict[int, int]:
    """The policies for the budgets, by the number of the budget; none for one that no policy keeps."""
    cost = np.asarray(frontier.model.cost)
    chosen = {}
    for number, budget in enumerate(np.geomspace(cost.min(), cost.max(), BUDGETS) * (1 + 1e-6)):
        try:
            chosen[number] = frontier.index_for(Target("budget", budget))
        except rcjax.InfeasibleError:  # nothing is as cheap by the bills of these queries
            continue
    return chosen


def intervals(
    frontier: rcjax.Frontier, log: rcjax.Log, population: rcjax.Log, labels: int, seed: int
) -> list[dict[str, Any]]:
    """Intervals of the true errors of the policies for the budgets, and these errors.

    Args:
        frontier: tuned on differences.
        log: of held-out queries.
        population: that they are drawn from.
        labels: of how many of its answers labels are left.
        seed: of their draw.
    """
    few = with_few_labels(log, labels, seed)
    ends = error_interval(rcjax.replay(frontier, few), few).tolist()
    true = np.asarray(rcjax.replay(frontier, _labelled(population)).error).tolist()
    chosen = sorted({*at_budgets(frontier).values()})
    return [{"labels": labels, "low": ends[i][0], "high": ends[i][1], "true": true[i]} for i in chosen]


def with_few_labels(log: rcjax.Log, number: int, seed: int) -> rcjax.Log:
    """A log by its labels, of which so many are left; that an answer is the reference's is what a judge says."""
    assert log.errors is not None
    same = np.asarray(log.correct, float)[..., None]
    labelled = np.zeros(same.shape[:2], bool)
    labelled[tuple(zip(*draw_answers(partly(log.errors, labelled, same), number, seed), strict=True))] = True
    return partly(log.errors, labelled, same)


def _labelled(log: rcjax.Log) -> rcjax.Log:
    assert log.errors is not None
    return dataclasses.replace(log.errors, hand_labels=None, reference=None)


def report(rows: list[dict[str, Any]]) -> None:
    """Print the tables of some splits."""
    frames = {what: _frame(rows, what) for what in ("promises", "losses", "intervals")}
    print(f"{len({row['split'] for row in rows})} splits of each log.")
    print(f"\nPromises of the difference, confidence {CONFIDENCE}, {HELD_OUT} queries held out.\n")
    lines = [
        {"log": log, "at most": f"{100 * target:.0f} %"} | line(group)
        for (log, target), group in _by(frames["promises"], "log", "target")
    ]
    print(markdown(pl.DataFrame(lines)), flush=True)
    false = share(frames["promises"]["false"])
    record.headline("promises of the difference that are false, of draws, six logs", f"{false} %")
    worst = max(lines, key=lambda row: float(row["false, %"].partition(" ")[0]))
    record.headline(
        f"the same, the most of any log and target ({worst['log']}, {worst['at most']})", f"{worst['false, %']} %"
    )
    print("\nTrue error at 14 budgets, tuned on differences over tuned on labels.\n")
    print(markdown(pl.DataFrame([lost_line(name, group) for (name,), group in _by(frames["losses"], "log")])))
    ratio = geometric_mean(frames["losses"]["error"])
    record.headline("true error at 14 budgets, tuned on differences instead of labels", f"{100 * (ratio - 1):+.1f} %")
    print("\n90 % intervals of the true error by some labels: how many hold it.\n")
    inside = (pl.col("low") <= pl.col("true")) & (pl.col("true") <= pl.col("high"))
    ends = frames["intervals"].with_columns(inside=inside, width=pl.col("high") - pl.col("low"))
    lines = [interval_line(labels, log, group) for (labels, log), group in _by(ends, "labels", "log")]
    print(markdown(pl.DataFrame(lines)))
    for (labels,), group in _by(ends, "labels"):
        record.headline(f"90 % intervals that hold the true error, {labels} labels", f"{_covered(group)} %")


def _frame(rows: list[dict[str, Any]], what: str) -> pl.DataFrame:
    """The parts of some splits, with their log and split."""
    parts = [{"log": row["log"], "split": row["split"]} | part for row in rows for part in row[what]]
    return pl.DataFrame(parts, infer_schema_length=None)


def _by(frame: pl.DataFrame, *columns: str) -> Iterator[tuple[tuple[Any, ...], pl.DataFrame]]:
    return iter(frame.group_by(columns, maintain_order=True))


def line(group: pl.DataFrame) -> dict[str, str]:
    """The figures of promises of one log and target."""
    cost = group["cost"].drop_nulls()
    mean = f"{100 * float(cost.mean()):.0f} %" if len(cost) else "–"  # type: ignore[arg-type]
    return {"made, %": share(group["made"]), "false, %": share(group["false"]), "cost": mean}


def lost_line(name: str, group: pl.DataFrame) -> dict[str, str]:
    """What tuning on differences loses on one log."""
    ratios = {what: 100 * (geometric_mean(group[what]) - 1) for what in ("error", "cost")}
    return {"log": name, "true error, %": f"{ratios['error']:+.1f}", "money, %": f"{ratios['cost']:+.1f}"}


def interval_line(labels: int, log: str, group: pl.DataFrame) -> dict[str, Any]:
    """How many of some intervals hold what they should, and how wide they are."""
    width = 100 * float(group["width"].mean())  # type: ignore[arg-type]
    return {"labels": labels, "log": log, "hold it, %": _covered(group), "width, points": f"{width:.1f}"}


def _covered(group: pl.DataFrame) -> str:
    """Per cent of intervals that hold the truth, over splits."""
    return with_error(100 * group.group_by("log", "split").agg(pl.col("inside").mean())["inside"].to_numpy(), "")


def main() -> None:
    """All tables."""
    parser = record.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of real logs with answers")
    parser.add_argument("--splits", type=int, default=200, help="times that queries to tune on are drawn from each log")
    parser.add_argument("--draws", type=int, default=5, help="held-out logs drawn for each of them")
    parser.add_argument(
        "--out", type=Path, help="keep the rows here, as JSON lines, and go on with those that are there"
    )
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    before = rows_of(options.out)
    rows = before + collected(
        splits_of(options.data, options.splits, options.draws, options.out), "{log}, split {split}", options.out
    )
    report([row for row in rows if row["split"] < options.splits])


if __name__ == "__main__":
    record.run(main)
