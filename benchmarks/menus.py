"""Long chains and wide menus: the frontier of many models, in seconds and memory.

    python -m benchmarks.menus

The logs are synthetic, of 1,000 queries; models of rising cost are right more often, and their confidences are
dependent. Adaptive policies are solved in full, and the best cascades up to a length. Each row is from a process of its
own. Prints a Markdown table.
"""

import itertools
import resource
import time
from typing import Any

import jax
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.timing import alone
from rcjax.cli.app import start_jax

CASES = [(10, "adaptive", None), (30, "adaptive", None), (12, "all", None), (30, "all", 2), (30, "all", 3)]


def menu(models: int, queries: int = 1000) -> rcjax.Log:
    """A log of so many models."""
    rng = np.random.default_rng(0)
    difficulty = rng.normal(size=(queries, 1))
    ability = np.linspace(-0.5, 1.5, models)
    score = ability - 0.8 * difficulty + 0.6 * rng.normal(size=(queries, models))
    right = rng.random((queries, models)) < 1 / (1 + np.exp(-2 * score))
    frame = pl.DataFrame(
        {
            "query": np.repeat(np.arange(queries), models),
            "model": [f"model{j:02d}" for j in range(models)] * queries,
            "confidence": (1 / (1 + np.exp(-score))).reshape(-1),
            "correct": right.reshape(-1),
            "cost": np.tile(np.geomspace(1e-6, 1e-3, models), queries),
        }
    )
    return rcjax.read_log(frame)


def candidates(models: tuple[str, ...], search: str, longest: int | None) -> Any:
    """The cascades of a search, of at most so many models."""
    if longest is None:
        return search
    return [path for size in range(1, longest + 1) for path in itertools.combinations(models, size)]


def case(models: int, search: Any, max_length: int | None) -> dict[str, Any]:
    """Seconds to fit and to solve, the first time and the second, and peak memory."""
    start_jax(long=True)
    log = menu(models)
    times = []
    for _ in range(2):
        started = time.perf_counter()
        model = jax.block_until_ready(rcjax.fit(log))
        fitted = time.perf_counter()
        frontier = rcjax.solve_frontier(model, cascades=candidates(log.models, search, max_length))
        float(frontier.error[0])
        times.append((fitted - started, time.perf_counter() - fitted))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"first": sum(times[0]), "fit": times[1][0], "solve": times[1][1], "points": len(frontier.lam), "peak": peak}


def main() -> None:
    """A row per case."""
    record.parser(__doc__).parse_args()
    print("| models | search | points | fit, s | frontier, s | first time, s | peak memory, GiB |\n|" + "--:|" * 7)
    for models, search, length in CASES:
        found = alone(case, models, search, length)
        told = search if length is None else f"{search}, of {length} at most"
        times = f"{found['fit']:.2f} | {found['solve']:.2f} | {found['first']:.0f}"
        record.headline(
            f"{models} models, {told}: `fit` and frontier, compiled; memory",
            f"{found['fit'] + found['solve']:.1f} s; {found['peak']:.2f} GiB",
        )
        print(f"| {models} | {told} | {found['points']} | {times} | {found['peak']:.2f} |", flush=True)


if __name__ == "__main__":
    record.run(main)
