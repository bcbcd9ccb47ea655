"""What the paper's factorisation of the chain costs: loss predicted and seen, at the optimum of either chain.

    python -m benchmarks.predicted_and_observed --data DIR

DIR holds NAME_train.csv, NAME_test.csv and prices.toml. For each log the full cascade is tuned on the training split
at nine λ under `chain="paper"` and under `chain="exact"`; the loss is error + λ·cost, as either chain predicts it at
these thresholds, and as replay sees it on the test split (on the training split where there is no other). Each figure
is a mean over the nine λ. Prints a Markdown table.
"""

import argparse
from pathlib import Path

import jax
import numpy as np

import rcjax

#: λ times the cost of the dearest model: what one answer of it may cost, in errors.
SCALED_LAMBDAS = np.geomspace(1e-3, 0.3, 9)


def compare(train: rcjax.Log, test: rcjax.Log) -> list[float]:
    """Mean losses: at the paper's optimum (paper, exact, seen), then at the exact one's (paper, exact, seen)."""
    model = rcjax.fit(train)
    lam = SCALED_LAMBDAS / float(model.cost.max())
    means = []
    for optimum in ("paper", "exact"):
        frontier = rcjax.solve_frontier(model, lam=lam, cascades="full", chain=optimum)
        for chain in ("paper", "exact"):
            error, cost = rcjax.error_and_cost(model, frontier.thresholds, chain=chain)
            means.append(float(np.mean(error + lam * cost)))
        seen = rcjax.replay(frontier, test)
        means.append(float(np.mean(seen.error + lam * seen.cost)))
    return means


def main() -> None:
    """One row for each log of the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the logs")
    folder = parser.parse_args().data
    jax.config.update("jax_enable_x64", True)
    low, high = SCALED_LAMBDAS[[0, -1]]
    print(
        f"Loss error + λ·cost of the full cascade, mean over {len(SCALED_LAMBDAS)} λ "
        f"(geometric, λ · cost of the dearest model from {low:g} to {high:g}).\n"
    )
    print("| log | models | optimum of `paper`: predicted by `paper` | predicted by `exact` | replayed |"
          " optimum of `exact`: predicted by `paper` | predicted by `exact` | replayed |")  # fmt: skip
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for path in sorted(folder.glob("*_train.csv")):
        name = path.name.removesuffix("_train.csv")
        task = "choice" if name.startswith("mmlu") else "generation"
        other = folder / f"{name}_test.csv"
        train = rcjax.read_log(path, prices=folder / "prices.toml", task=task)
        test = rcjax.read_log(other, prices=folder / "prices.toml", task=task) if other.exists() else train
        cells = " | ".join(f"{value:.4f}" for value in compare(train, test))
        print(f"| {name}{'' if other.exists() else ' (train)'} | {len(train.models)} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
