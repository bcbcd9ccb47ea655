"""Following the bill: a ladder over streams of queries that nothing was tuned on, at usual and unusual costs.

    python -m benchmarks.following --data DIR [--splits 3] [--labels 100 300 1000] [--budgets 14] [--queries 4000]

Logs, splits and budgets are those of `benchmarks.budgets`. The queries not tuned on come in random order as a stream to
the rungs of `rcjax.tune`'s ladder; after each query the position moves as in `Cascade`, by `rcjax.policy.ladder`. The
rows are windows W with the costs of the tuning, and W = 400 with other costs. The columns are the error against a plain
pair, and against a plain pair for the same money (the budget, or the pair's bill if it is larger); the share of the
budget used; the budgets overspent by over 3 %; the largest overspending on the way, in budgets of a query; and the
number of queries after which the bill stays within 3 % of the budget. Budgets that every rung exceeds, or that no rung
can use up, are left out. ± is one standard error over splits, which share queries.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.budgets import FOLDER, PUBLIC, Split, by_labels, sources, splits_of, targets_of
from benchmarks.methods import BILL, ERROR, plain_pairs
from benchmarks.report import collected, machine, markdown, with_error
from rcjax.policy.bills import WINDOW, Bill
from rcjax.solving.frontier.points import shares_at_bill
from rcjax.tuning.replaying.replay import LadderReplay

FIGURES = ("error", "for the same money", "used", "overspent", "on the way", "until")
WINDOWS = (100.0, 200.0, WINDOW, 1000.0)
NEAR = 0.03  # of the budget

#: What queries cost, times what the log says: by the share of the stream that is over, and a generator.
CHANGES: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "as tuned": lambda place, rng: np.ones_like(place),
    "40 % more": lambda place, rng: np.full_like(place, 1.4),
    "30 % less": lambda place, rng: np.full_like(place, 0.7),
    "rising to twice": lambda place, rng: 1 + place,
    "heavy tails": lambda place, rng: np.exp(1.5 * rng.standard_normal(place.shape) - 1.125),
}


def error_for(rungs: LadderReplay, money: float) -> float:
    """The error of a ladder where its bill is some money."""
    return float(shares_at_bill(rungs.spent.mean(1), np.array([money]))[0] @ rungs.wrong.mean(1))


class Stream(NamedTuple):
    """What a stream came to."""

    error: float
    used: float  # of the budget
    most: float  # overspent on the way, in queries' budgets
    until: int  # queries, from which on the bill was within `NEAR` of the budget


def follow(rungs: LadderReplay, budget: float, window: float, changes: np.ndarray, rng: np.random.Generator) -> Stream:
    """A stream of (N,) queries, whose costs are those of the log times `changes`, by the code that serves."""
    count = len(changes)
    queries, lots = rng.integers(0, rungs.wrong.shape[1], count), rng.random(count)
    bill, wrong, paid = Bill.open(budget, window), np.zeros(count), np.zeros(count)
    for place, (query, lot) in enumerate(zip(queries.tolist(), lots.tolist(), strict=True)):
        low, share = divmod(bill.position(rungs.rung_costs, 0.0), 1)
        rung = int(low) + (lot < share)
        wrong[place] = rungs.wrong[rung, query]
        paid[place] = rungs.spent[rung, query] * changes[place]
        bill = bill.after_query(paid[place], rungs.rung_costs[rung], 0.0)
    mean = np.cumsum(paid) / np.arange(1, count + 1) / budget
    far = np.flatnonzero(np.abs(mean - 1) > NEAR)
    most = float((np.cumsum(paid - budget) / budget).max())
    return Stream(float(wrong.mean()), float(paid.mean() / budget), most, int(far[-1]) + 1 if far.size else 0)


def measure(split: Split, budgets: int, queries: int) -> list[dict]:
    """A row for each window and change of costs: means over the budgets of a split."""
    train, test = split.logs()
    plain = plain_pairs(train, test)
    everyone = targets_of(plain[: len(train.models)], [budgets, 1, 1])["budget"]
    policy = rcjax.tune(train, budget=float(everyone.max()), intervals=False).policy
    assert policy is not None  # as there is a target
    rungs = LadderReplay.of(policy, test)
    place, rows = np.arange(queries) / queries, []
    for change, window in [("as tuned", window) for window in WINDOWS] + [(name, WINDOW) for name in CHANGES][1:]:
        rng = np.random.default_rng(split.split)
        changes = CHANGES[change](place, rng)
        ends = rungs.spent.mean(1)[[0, -1]] * (changes[-queries // 4 :].mean(), changes[: queries // 4].mean())
        values = everyone[(everyone > ends[0]) & (everyone < ends[1])]
        if not values.size:
            continue
        pair = np.array([by_labels(plain)("budget", float(value)) for value in values])
        streams = [follow(rungs, float(value), window, changes, rng) for value in values]
        error, used, most, until = np.array(streams).T
        money = [error_for(rungs, max(value, bill)) for value, bill in zip(values, pair[:, BILL], strict=True)]
        own = np.mean(money) if change == "as tuned" else np.nan
        figures = {
            "error": 100 * (error.mean() / pair[:, ERROR].mean() - 1),
            "for the same money": 100 * (own / pair[:, ERROR].mean() - 1),
            "used": 100 * used.mean(),
            "overspent": 100 * (used > 1 + NEAR).mean(),
            "on the way": most.max(),
            "until": float(np.median(until)),
        }
        head = {"group": split.source.group, "log": split.source.name, "labels": split.labels, "split": split.split}
        rows.append(head | {"window": window, "costs": change} | figures)
    return rows


def _mean(values: pl.Series) -> str:
    return with_error(values.drop_nans())


def main() -> None:
    """Print the tables."""
    options = record.parser(__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--only", default="", help="the logs whose name holds this")
    options.add_argument("--splits", type=int, default=3)
    options.add_argument("--labels", type=int, nargs="+", default=[100, 300, 1000])
    options.add_argument("--budgets", type=int, default=14)
    options.add_argument("--queries", type=int, default=4000)
    options.add_argument("--out", type=Path, help="rows as JSON lines")
    given: argparse.Namespace = options.parse_args()
    jax.config.update("jax_enable_x64", True)
    splits = [
        split
        for source in sources(given.data, (FOLDER, PUBLIC), given.only)
        for split in splits_of(source, given.labels, given.splits)
    ]
    each = (row for split in splits for row in measure(split, given.budgets, given.queries))
    rows = pl.DataFrame(collected(each, "{log}, {labels} labels, split {split}", given.out))
    for group, title in ((FOLDER, "Logs with log-probabilities"), (PUBLIC, "Public logs of few values")):
        chosen = rows.filter(pl.col("group") == group)
        if chosen.is_empty():
            continue
        keys = ["labels", "costs", "window"]
        table = chosen.group_by(keys, maintain_order=True).agg(
            *(pl.col(name).map_batches(_mean, pl.String, returns_scalar=True) for name in FIGURES[:2]),
            *(pl.col(name).mean() for name in ("used", "overspent")),
            pl.col("on the way").max(),
            pl.col("until").median(),
        )
        print(f"## {title}\n\n{markdown(table.sort('labels', maintain_order=True))}\n")
        usual = chosen.filter((pl.col("window") == WINDOW) & (pl.col("costs") == "as tuned"))
        shares = usual.group_by("labels", maintain_order=True).agg(pl.col("overspent").mean()).sort("labels").rows()
        words = ", ".join(f"{share:.1f} ({labels} labels)" for labels, share in shares)
        record.headline(f"{title.lower()}: of a hundred budgets that are followed, overspent by over 3 %", words)
    print(machine())


if __name__ == "__main__":
    record.run(main)
