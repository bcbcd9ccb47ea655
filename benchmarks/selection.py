"""Ways to choose cascades, compared on queries that were not tuned on: a study over resplits of real logs.

    python -m benchmarks.selection --data DIR [--splits 50] [--out FILE]

Every {name}_train.csv of DIR (with prices.toml) is a log, together with {name}_test.csv if there is one. The first
splits are those of the files; then `--splits` random splits tune on 30, 100 and 300 queries, if at least 100 others
remain. Each method's policies answer the other queries. The figure is the area under the error–cost curve against the
area of the plain baseline (the best single model or pair, one threshold, by the labels), over the costs that the two
share, in per cent. Below 0 is better; ± is one standard error over splits, which share queries. With --out the rows of
all splits are kept as JSON lines.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.methods import Curve, areas, best_single_or_pair, change, rational_tuning, replayed
from benchmarks.paper.inputs import pooled, resplit
from benchmarks.report import collected, machine, markdown, with_error

SIZES, LEFT = (30, 100, 300), 100
BASELINE = "pair, by the labels"


def curves(train: rcjax.Log, test: rcjax.Log) -> dict[str, Curve]:
    """Every method's curve on the test log."""
    model = rcjax.fit(train)
    pairs = [cascade for size in (1, 2) for cascade in itertools.combinations(model.models, size)]
    return {
        BASELINE: best_single_or_pair(model, train, test),
        "every model in turn": rational_tuning(model, test, "full"),
        "all subcascades": rational_tuning(model, test),
        "adaptive": rational_tuning(model, test, "adaptive"),
        "pair, by the model": rational_tuning(model, test, pairs),
        "selected (the default)": replayed(rcjax.tuning.select_frontier(train, model=model).frontier, test),
    }


def study(folder: Path, splits: int) -> Iterator[dict]:
    """A row for each log, size and split: changes of area by method. Split −1 is that of the files."""
    for path in sorted(folder.glob("*_train.csv")):
        name = path.name.removesuffix("_train.csv")
        whole, *parts = pooled(folder, name)
        if parts:
            yield {"log": name, "queries": parts[0].n_queries, "split": -1} | _changes(parts[0], parts[1])
        for size in SIZES:
            if whole.n_queries < size + LEFT:
                continue
            for split in range(splits):
                halves = resplit(whole, size, split)
                yield {"log": name, "queries": size, "split": split} | _changes(*halves)


def _changes(train, test):
    found = curves(train, test)
    old = found.pop(BASELINE)
    both = {method: areas({"new": new, "old": old}) for method, new in found.items()}
    return {method: change(area["new"], area["old"]) for method, area in both.items()}


def table(rows: list[dict], choose: Callable[[dict], bool], methods: list[str]) -> pl.DataFrame:
    """Mean change of area against the baseline by log, and over logs, with standard errors over splits."""
    lines = []
    for size in sorted({row["queries"] for row in rows if choose(row)}):
        means: dict[str, list[float]] = {}
        names = dict.fromkeys(row["log"] for row in rows if choose(row) and row["queries"] == size)
        for name in names:
            group = [row for row in rows if choose(row) and (row["queries"], row["log"]) == (size, name)]
            line = {"queries": size, "log": name, "splits": len(group)}
            for method in methods:
                known = np.array([row[method] for row in group if row.get(method) is not None])
                means.setdefault(method, []).append(known.mean() if known.size else np.nan)
                line[method] = with_error(known)
            lines.append(line)
        if len(names) > 1:
            average = {method: f"{np.nanmean(values):+.2f}" for method, values in means.items()}
            lines.append({"queries": size, "log": "mean of the logs", "splits": None} | average)
    return pl.DataFrame(lines)


def main() -> None:
    """Print the tables."""
    parser = record.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the logs")
    parser.add_argument("--splits", type=int, default=50, help="random splits of each log and size")
    parser.add_argument("--out", type=Path, help="keep the changes of all splits here, as JSON lines")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    found = study(options.data, options.splits)
    rows = collected(found, "{log}, {queries} queries, split {split}", options.out)
    methods = [key for key in rows[0] if key not in ("log", "queries", "split")]
    print(f"{machine()} Change of area, per cent.\n\nThe splits of the files:\n")
    print(markdown(table(rows, lambda row: row["split"] < 0, methods)))
    print("\nRandom splits:\n")
    drawn = table(rows, lambda row: row["split"] >= 0, methods)
    print(markdown(drawn))
    means = drawn.filter(pl.col("log") == "mean of the logs") if len(drawn) else drawn
    for method in methods:
        cells = [f"{row[method]} % ({row['queries']})" for row in means.iter_rows(named=True)]
        record.headline(f"area of “{method}” against the {BASELINE} (queries to tune on)", ", ".join(cells))


if __name__ == "__main__":
    record.run(main)
