"""The loss that the paper's factorisation of the chain predicts, and the loss observed, at the optimum of either chain.

    python -m benchmarks.predicted_and_observed --data DIR

DIR holds NAME_train.csv, NAME_test.csv and prices.toml. For each log the full cascade is tuned on the training split at
nine λ, under the paper's factorisation and under the exact chain. The loss is error + λ·cost: as either chain predicts
it at these thresholds, and as a replay on the test split shows it (without a test split, on the training split). Each
figure is a mean over the nine λ.

The second table has the observed minus the promised error, in points, mean over sixteen λ, on the test split: of the
default frontier, and of the fitted model's own prediction; beside them, the difference that the folds of the training
split show. Prints Markdown tables.
"""

from pathlib import Path

import jax
import numpy as np

import rcjax
from benchmarks import record
from benchmarks.paper import factorisation
from rcjax.tuning.diagnostics.diagnosis import HeldOutPart, Promise, held_out_parts, measure_promise

#: λ times the cost of the dearest model: what one answer of it may cost, in errors.
SCALED_LAMBDAS = np.geomspace(1e-3, 0.3, 9)


def compare(train: rcjax.Log, test: rcjax.Log) -> list[float]:
    """Return mean losses (by the paper's chain, by the exact chain, replayed) at the optimum of either chain."""
    model = rcjax.fit(train)
    lam = SCALED_LAMBDAS / float(model.cost.max())
    means = []
    for optimum in (factorisation, rcjax):
        frontier = optimum.solve_frontier(model, lam=lam, cascades="full")
        for predicting in (factorisation, rcjax.solving):
            error, cost = predicting.error_and_cost(model, frontier.thresholds)
            means.append(float(np.mean(error + lam * cost)))
        seen = rcjax.replay(frontier, test)
        means.append(float(np.mean(seen.error + lam * seen.cost)))
    return means


def try_on(train: rcjax.Log, test: rcjax.Log) -> dict[str, Promise]:
    """Return the promises of the default search on fresh queries and in folds, and of the model on fresh queries."""
    model = rcjax.fit(train)
    frontier = rcjax.tuning.select_frontier(train, model=model).frontier
    held = [HeldOutPart(model, test)]
    return {
        "fresh": measure_promise(frontier, held, train.n_queries),
        "model": measure_promise(rcjax.solve_frontier(model), held, train.n_queries),
        "folds": measure_promise(frontier, held_out_parts(model, train, folds=True), train.n_queries),
    }


def points(tried: Promise) -> float:
    """Return the observed minus the promised error, in points, mean over λ."""
    return 100 * float(np.mean(tried.error - tried.predicted_error))


def read(folder: Path, name: str, split: str) -> rcjax.Log:
    """Read a log of the folder."""
    task = "choice" if name.startswith("mmlu") else "generation"
    return rcjax.read_log(folder / f"{name}_{split}.csv", prices=folder / "prices.toml", task=task)


def main() -> None:
    """Print the tables."""
    parser = record.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the logs")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    names = sorted(path.name.removesuffix("_train.csv") for path in arguments.data.glob("*_train.csv"))
    show_chains(arguments.data, names)
    show_promises(arguments.data, [name for name in names if (arguments.data / f"{name}_test.csv").exists()])


def show_chains(folder: Path, names: list[str]) -> None:
    """Print a row for each log: the full cascade under either chain."""
    low, high = SCALED_LAMBDAS[[0, -1]]
    print(
        f"Loss error + λ·cost of the full cascade, mean over {len(SCALED_LAMBDAS)} λ "
        f"(geometric, λ · cost of the dearest model from {low:g} to {high:g}).\n"
    )
    print("| log | models | optimum of `paper`: predicted by `paper` | predicted by `exact` | replayed |"
          " optimum of `exact`: predicted by `paper` | predicted by `exact` | replayed |")  # fmt: skip
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name in names:
        train, tested = read(folder, name, "train"), (folder / f"{name}_test.csv").exists()
        test = read(folder, name, "test") if tested else train
        cells = " | ".join(f"{value:.4f}" for value in compare(train, test))
        print(f"| {name}{'' if tested else ' (train)'} | {len(train.models)} | {cells} |", flush=True)


def show_promises(folder: Path, names: list[str]) -> None:
    """Print a row for each log with a test split: the observed minus the promised error."""
    print("\nError seen less promised, points.\n")
    print("| log | default, test split | by the model, test split | default, folds of the training split |")
    print("|---|--:|--:|--:|")
    for name in names:
        train = read(folder, name, "train")
        tried = try_on(train, read(folder, name, "test").select(train.models))
        cells = " | ".join(f"{points(tried[kind]):.1f}" for kind in ("fresh", "model", "folds"))
        print(f"| {name} | {cells} |", flush=True)


if __name__ == "__main__":
    record.run(main)
