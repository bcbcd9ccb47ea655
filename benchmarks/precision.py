"""Float32 against float64: how far frontiers are apart.

    python -m benchmarks.precision --data DIR

Of each training log in DIR, fitted and solved in both: the frontier of all subcascades at 50 λ. Told
are the largest differences of error + λ·cost and of error, in points, and of cost, relative to the dearest model's; and
how many of the points name another cascade. Prints a Markdown table.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import numpy as np

import rcjax
from benchmarks.paper.inputs import CHOICE
from rcjax.prices import price_range


def solved(read: Any) -> dict[str, np.ndarray]:
    """The frontier's arrays, and λ."""
    log = read()
    lam = price_range(np.asarray(log.cost, float), 50)
    found = rcjax.solve_frontier(rcjax.fit(log), lam=lam)
    arrays = {name: np.asarray(getattr(found, name), float) for name in ("error", "cost", "members")}
    return arrays | {"lam": lam, "dearest": np.asarray(log.cost, float).max()}


def main() -> None:
    """A row per log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    folder = parser.parse_args().data
    readers: dict[str, Any] = {}
    for path in sorted(folder.glob("*_train.csv")):
        task = "choice" if path.name.split("_", 1)[0] in CHOICE else "generation"
        options = {"prices": folder / "prices.toml", "task": task}
        readers[path.stem] = lambda path=path, options=options: rcjax.read_log(path, **options)
    print("| log | loss, points | error, points | cost, % | other cascades |\n|---|--:|--:|--:|--:|")
    for name, read in readers.items():
        single = solved(read)
        with jax.enable_x64(True):
            double = solved(read)
        error, cost = (np.abs(single[each] - double[each]) for each in ("error", "cost"))
        loss = np.abs(single["error"] - double["error"] + double["lam"] * (single["cost"] - double["cost"]))
        other = (single["members"] != double["members"]).any(1).sum()
        relative = 100 * cost.max() / double["dearest"]
        print(
            f"| {name} | {100 * loss.max():.5f} | {100 * error.max():.4f} | {relative:.4f} | {other} of 50 |",
            flush=True,
        )


if __name__ == "__main__":
    main()
