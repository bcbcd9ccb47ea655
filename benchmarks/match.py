"""As good as today's model, for less: the money saved, and how often the margin is missed, on queries not tuned on.

    python -m benchmarks.match --data DIR [--splits 20] [--labels 150 300 500] [--margins 0.01 0.02]

Logs and splits are those of `benchmarks.budgets`. Today's is the dearest model of a log (`dearest`), or what
`rcjax tune` takes where nobody says (`default`: the model with the fewest errors, the cheaper of two that are within a
standard error). Ways to a policy that is to err on no more than a margin beyond today's:

- `--match`: of `rcjax tune`;
- `--max-error`: of `rcjax tune`, at today's error on the labels and the margin;
- plain pair: the cheapest single model or pair whose difference on the labels and 1.645 standard errors keep to the
  margin;
- UCCI: the cheapest pair that keeps to today's error and the margin, by an isotonic calibration (`benchmarks.peers`).

Where a way finds nothing cheaper, today's model stays. The table has, over the splits: the share of today's bill that
is saved, the points of error more than today's, in what share of the splits that is beyond the margin, and beyond it by
a point or more, and in what share a cheaper policy was found. What is beyond is counted on the queries not tuned on,
whose noise is in it.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.budgets import FOLDER, PUBLIC, Split, sources, splits_of
from benchmarks.methods import Columns
from benchmarks.peers.ucci import ucci
from benchmarks.report import collected, machine, markdown
from rcjax.tuning.replaying.comparing import default_today

_Z = 1.645

MIN_QUERIES = 900  # queries of a log: with fewer, those not tuned on tell no margin of a point

#: (error, bill) on the queries not tuned on, of what a way chooses; None where it finds nothing cheaper than today's.
Found = tuple[float, float] | None
Way = Callable[[rcjax.Log, rcjax.Log, int, float], Found]


def by_tuning(target: str) -> Way:
    """`rcjax tune` for a target."""

    def way(train: rcjax.Log, test: rcjax.Log, today: int, margin: float) -> Found:
        value = margin if target == "match" else margin + 1 - float(np.asarray(train.correct)[:, today].mean())
        try:
            tuned = rcjax.tune(train, today=train.models[today], intervals=False, **{target: value})
        except rcjax.InfeasibleError:
            return None
        replayed = rcjax.replay(tuned.policy, test)
        return float(replayed.error), float(replayed.spent)

    return way


def plain_pair(train: rcjax.Log, test: rcjax.Log, today: int, margin: float) -> Found:
    """The cheapest single model or pair that is shown to keep to the margin."""
    (logprob, wrong, cost, _), there = Columns.of(train), Columns.of(test)
    best, n = (np.inf, None), len(wrong)
    for first, second in itertools.combinations_with_replacement(range(wrong.shape[1]), 2):
        order = np.argsort(logprob[:, first], kind="stable")
        sure = logprob[order, first]
        steps = (wrong[:, second] - wrong[:, first])[order]
        base = (wrong[:, first] - wrong[:, today])[order]
        last = np.flatnonzero(np.append(sure[1:] > sure[:-1], True))  # ties stay together
        passed = np.tril(np.ones((n, n), bool))[last] if first != second else np.zeros((1, n), bool)
        difference = base + passed * steps
        spread = ((difference - difference.mean(1, keepdims=True)) ** 2).sum(1)
        bound = difference.mean(1) + _Z * np.sqrt(np.maximum(spread, 1.0)) / n
        bill = cost[:, first].mean() + (passed * cost[order, second]).mean(1) * (first != second)
        bill = np.where(bound <= margin, bill, np.inf)
        if bill.min() < min(best[0], cost[:, today].mean() * (1 - 1e-9)):
            place = int(bill.argmin())
            threshold = logprob[order[last[place]], first] if first != second else -np.inf
            best = bill.min(), (first, second, threshold)
    if best[1] is None:
        return None
    error, bill = there.pair(*best[1][:2], np.array([best[1][2]]))
    return (float(error[0]), float(bill[0])) if best[1][0] != best[1][1] else _alone(there, best[1][0])


def _alone(columns: Columns, model: int) -> tuple[float, float]:
    return float(columns.wrong[:, model].mean()), float(columns.cost[:, model].mean())


def by_ucci(train: rcjax.Log, test: rcjax.Log, today: int, margin: float) -> Found:
    """The cheapest pair of UCCI that is expected to keep to today's error and the margin."""
    here = Columns.of(train)
    points = ucci(here, Columns.of(test))
    limit, bill = _alone(here, today)
    met = points[(points[:, 0] <= limit + margin) & (points[:, 1] < bill * (1 - 1e-9))]
    return None if not met.size else tuple(met[met[:, 1].argmin(), 2:].tolist())


WAYS: dict[str, Way] = {
    "--match": by_tuning("match"),
    "--max-error": by_tuning("max_error"),
    "plain pair": plain_pair,
    "UCCI": by_ucci,
}


def measure(split: Split, margins: list[float]) -> Iterator[dict]:
    """A row for each today's model, margin and way."""
    train, test = split.logs()
    there = Columns.of(test)
    todays = {"dearest": len(train.models) - 1, "default": train.models.index(default_today(train))}
    for (which, today), margin, (name, way) in itertools.product(todays.items(), margins, WAYS.items()):
        before = _alone(there, today)
        found = way(train, test, today, margin)
        error, bill = found or before
        yield {
            "group": split.source.group,
            "log": split.source.name,
            "labels": split.labels,
            "today": which,
            "margin": 100 * margin,
            "way": name,
            "saved": 100 * (1 - bill / before[1]) if before[1] else 0.0,
            "more": 100 * (error - before[0]),
            "beyond": 100.0 * (error - before[0] > margin + 1e-9),
            "found": 100.0 * (found is not None and bill < before[1] * (1 - 1e-9)),
            "far": 100.0 * (error - before[0] > margin + 0.01),
        }


FIGURES = {
    "saved": "saved, %",
    "more": "error more, points",
    "beyond": "beyond the margin, % of splits",
    "found": "cheaper found, % of splits",
    "far": "by a point or more, %",
}


def table(rows: pl.DataFrame, heads: list[str]) -> str:
    """Means over the splits of each log, then over the logs."""
    by_log = rows.group_by(list(dict.fromkeys([*heads, "log"])), maintain_order=True).agg(pl.col(*FIGURES).mean())
    means = by_log.group_by(heads, maintain_order=True).agg(pl.col(*FIGURES).mean())
    shown = means.with_columns(pl.col("saved", "beyond", "found", "far").round(0), pl.col("more").round(2))
    return markdown(shown.rename(FIGURES))


def main() -> None:
    """Print the tables."""
    options = record.parser(__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--only", default="", help="the logs whose name holds this")
    options.add_argument("--splits", type=int, default=20)
    options.add_argument("--labels", type=int, nargs="+", default=[150, 300, 500])
    options.add_argument("--margins", type=float, nargs="+", default=[0.01, 0.02])
    options.add_argument("--out", type=Path, help="keep the rows in this file")
    given = options.parse_args()
    jax.config.update("jax_enable_x64", True)
    every = [
        split
        for source in sources(given.data, (FOLDER, PUBLIC), given.only)
        if source.log is not None and source.log.n_queries >= MIN_QUERIES
        for split in splits_of(source, given.labels, given.splits)
    ]
    total = len(every) * 2 * len(given.margins) * len(WAYS)
    label = "{log}, {labels} labels, {today}, {way}"
    rows = pl.DataFrame(
        collected((row for split in every for row in measure(split, given.margins)), label, given.out, total)
    )
    print(machine(), end="\n\n")
    for group, title in ((FOLDER, "Logs with log-probabilities"), (PUBLIC, "Public logs")):
        some = rows.filter(pl.col("group") == group)
        if some.height:
            print(f"## {title}: {', '.join(some['log'].unique(maintain_order=True))}\n")
            print(table(some, ["today", "labels", "margin", "way"]), end="\n\n")
    first = 100 * given.margins[0]
    chosen = rows.filter((pl.col("way") == "--match") & (pl.col("labels") == 300) & (pl.col("margin") == first))
    if chosen.height:
        print(f"## `--match {first:g}%` by log, 300 labels\n")
        print(table(chosen, ["log", "today"]))
        dear = chosen.filter((pl.col("today") == "dearest") & (pl.col("group") == FOLDER))
        what = f"`--match {first:g}%` against the dearest model, 300 labels"
        record.headline(f"{what}: saved", f"{dear['saved'].mean():.0f} %")
        record.headline(f"{what}: beyond the margin, share of splits", f"{dear['beyond'].mean():.0f} %")
        broken = 100 * dear["beyond"].sum() / dear["found"].sum()
        record.headline(f"{what}: the same, of splits with a cheaper policy", f"{broken:.0f} %")


if __name__ == "__main__":
    record.run(main)
