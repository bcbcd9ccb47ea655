"""What it is worth that the last model of a cascade may refuse, against policies that never do.

    python -m benchmarks.abstention --data DIR [--splits 20] [--queries 300] [--searches full,all,selected] [--out FILE]

Every {name}_train.csv of DIR (with prices.toml) that has a {name}_test.csv is a log. First the splits as they are;
then `--splits` random ones of both files together, with `--queries` to tune on. Both kinds are tuned on the same
queries, at the same prices (a grid of λ and of the price of a refusal), and answer the queries that are left: by the
model, the cascade of every model (`full`) or the best of any models (`all`), or as `rcjax tune` does (`selected`).
Their loss is error + price·abstention + λ·cost. Figures are means over the grid: of the relative change of the loss, as
predicted and on the test queries, of the cost and of the error (where there was one), in per cent, and the abstention
in points. Below 0, refusing is better; ± is one standard error over splits, which share queries.
"""

from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.paper.inputs import pooled, resplit
from benchmarks.report import collected, machine, markdown, with_error

N_LAM = (0.1, 0.2, 0.3, 0.5)
#: λ times what one answer of the dearest model costs: what that is worth, in errors.
WORTH = np.geomspace(3e-3, 1.0, 8)
SEARCHES = ("full", "all", "labels")
COLUMNS = {
    "predicted": "loss, predicted, %",
    "loss": "loss, %",
    "cost": "cost, %",
    "error": "error, %",
    "abstention": "abstention, points",
    "by model": "against all by the model, loss, %",
}


def changes(train: rcjax.Log, test: rcjax.Log, search: str) -> dict[str, float]:
    """Means over the grid of what refusing changes, and of the loss against that of all cascades by the model."""
    model = rcjax.fit(train)
    lam = WORTH / float(np.max(model.cost))

    def solve(search, **refusing):
        if search == "labels":
            return rcjax.tuning.select_frontier(train, model=model, lam=lam, **refusing).frontier
        return rcjax.solve_frontier(model, lam=lam, cascades=search, **refusing)

    never = _figures(solve(search), test, lam, 0.0)
    found: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}
    for price in N_LAM:
        refusing = _figures(solve(search, abstain_price=price), test, lam, price)
        best = refusing if search == "all" else _figures(solve("all", abstain_price=price), test, lam, price)
        for name in ("predicted", "loss", "cost", "error"):
            some = never[name] > 0
            found[name].append(100 * (refusing[name][some] / never[name][some] - 1))
        found["abstention"].append(100 * refusing["abstention"])
        found["by model"].append(100 * (refusing["loss"] / best["loss"] - 1))
    return {name: float(np.concatenate(cells).mean()) for name, cells in found.items()}


def _figures(frontier, test, lam, price):
    seen = rcjax.replay(frontier, test)
    error, cost, abstention = (np.asarray(each, float) for each in (seen.error, seen.cost, seen.abstention))
    loss = error + price * abstention + lam * cost
    predicted = np.asarray(frontier.penalty + frontier.lam * frontier.cost, float)
    return {"error": error, "cost": cost, "abstention": abstention, "loss": loss, "predicted": predicted}


def study(folder: Path, splits: int, queries: int, searches: list[str]) -> Iterator[dict]:
    """A row for each log, split and search. Split −1 is that of the files."""
    for path in sorted(folder.glob("*_train.csv")):
        name = path.name.removesuffix("_train.csv")
        whole, *parts = pooled(folder, name)
        if not parts:
            continue
        for split in range(-1, splits):
            train, test = parts if split < 0 else resplit(whole, queries, split)
            for search in searches:
                row = changes(train, test, search)
                yield {"log": name, "split": split, "cascades": search} | row


def table(rows: list[dict], official: bool) -> pl.DataFrame:
    """The mean of each figure by log and search, and over logs, with standard errors over splits."""
    kept = [row for row in rows if (row["split"] < 0) == official]
    logs = list(dict.fromkeys(row["log"] for row in kept))
    lines = []
    for search in dict.fromkeys(row["cascades"] for row in kept):
        groups = [[row for row in kept if (row["log"], row["cascades"]) == (name, search)] for name in logs]
        for name, group in zip(logs, groups, strict=True):
            figures = {title: with_error([row[key] for row in group]) for key, title in COLUMNS.items()}
            lines.append({"log": name, "cascades": search, "splits": len(group)} | figures)
        means = {
            title: f"{np.mean([np.mean([row[key] for row in group]) for group in groups]):+.2f}"
            for key, title in COLUMNS.items()
        }
        lines.append({"log": "mean of the logs", "cascades": search, "splits": None} | means)
    return pl.DataFrame(lines)


def main() -> None:
    """Print the tables."""
    parser = record.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the logs")
    parser.add_argument("--splits", type=int, default=20, help="random splits of each log")
    parser.add_argument("--queries", type=int, default=300, help="queries to tune on in random splits")
    parser.add_argument("--out", type=Path, help="keep the figures of all splits here, as JSON lines")
    parser.add_argument("--searches", default=",".join(SEARCHES), help="which ones, with commas between them")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    found = study(options.data, options.splits, options.queries, options.searches.split(","))
    rows = collected(found, "{log}, split {split}, {cascades}", options.out)
    prices = ", ".join(f"{price:g}" for price in N_LAM)
    print(
        f"{machine()} Refusals by the last model against none, each at {prices} errors.\n\nThe splits of the files:\n"
    )
    print(markdown(table(rows, official=True)))
    if options.splits:
        print("\nRandom splits:\n")
        drawn = table(rows, official=False)
        print(markdown(drawn))
        for row in drawn.filter(pl.col("log") == "mean of the logs").iter_rows(named=True):
            told = f"loss with refusals by the last model, cascades “{row['cascades']}”"
            record.headline(told, f"{row[COLUMNS['loss']]} %")


if __name__ == "__main__":
    record.run(main)
