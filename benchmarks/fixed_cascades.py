"""Thresholds of fixed cascades against the authors' own: test area under the error–cost curve, by length and chain.

    python -m benchmarks.fixed_cascades --data DIR --curves authors_curves.csv

DIR holds {mmlu,triviaqa}_llama_{train,test}.csv and prices.toml; the curves have the columns benchmark, cascade
(positions joined by -), method, cost_per_million_queries and accuracy. Each cascade is tuned on the training split and
replayed on the test split; the figure is the change of area over the shared range of costs, in per cent, negative
where rcjax is better. The last column is the largest excess of the cost as billed over that at mean costs, in any
replay. Prints a Markdown table.
"""

import argparse
from pathlib import Path

import jax
import numpy as np
import polars as pl

import rcjax

MODELS = ("llama3.2-1b", "llama3.2-3b", "llama3.1-8b", "llama3.1-70b", "llama3.1-405b")
TASKS = {"mmlu": "choice", "triviaqa": "generation"}


def change_of_area(ours: tuple[np.ndarray, np.ndarray], theirs: tuple[np.ndarray, np.ndarray]) -> float:
    """Per cent by which the first (cost, error) curve lies above the second, over the costs that they share."""
    low, high = max(ours[0].min(), theirs[0].min()), min(ours[0].max(), theirs[0].max())
    first, second = (float(rcjax.area_under_curve(*curve, low, high)) for curve in (ours, theirs))
    return 100 * (first / second - 1)


def main() -> None:
    """One row for each benchmark and chain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the logs")
    parser.add_argument("--curves", type=Path, required=True, help="the authors' curves")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    curves = pl.read_csv(arguments.curves).filter(pl.col("method") == "rational_tuning")
    print("| benchmark | chain | 2 | 3 | 4 | 5 | all 26 | billed over mean costs |\n|---|---|--:|--:|--:|--:|--:|--:|")
    for benchmark, task in TASKS.items():
        read = {"prices": arguments.data / "prices.toml", "task": task, "models": MODELS}
        train, test = (
            rcjax.read_log(arguments.data / f"{benchmark}_llama_{part}.csv", **read) for part in ("train", "test")
        )
        model, published = rcjax.fit(train), curves.filter(pl.col("benchmark") == benchmark)
        for chain in ("exact", "paper"):
            changes, billed = {length: [] for length in (2, 3, 4, 5)}, 0.0
            for (name,), curve in published.group_by("cascade", maintain_order=True):
                cascade = tuple(MODELS[int(j)] for j in str(name).split("-"))
                frontier = rcjax.solve_frontier(model, cascades=[cascade], chain=chain)
                seen = rcjax.replay(frontier, test)
                theirs = curve["cost_per_million_queries"].to_numpy() / 1e6, 1 - curve["accuracy"].to_numpy()
                ours = np.asarray(seen.cost), np.asarray(seen.error)
                changes[len(cascade)].append(change_of_area(ours, theirs))
                billed = max(billed, float((np.asarray(seen.spent) / np.asarray(seen.cost) - 1).max()))
            means = [np.mean(each) for each in (*changes.values(), [c for each in changes.values() for c in each])]
            print(f"| {benchmark} | {chain} | {' | '.join(f'{m:+.2f}' for m in means)} | {billed:.1%} |", flush=True)


if __name__ == "__main__":
    main()
