"""Figure 8: the time of a frontier against the length of the cascade and the number of λ."""

from collections.abc import Iterator

import numpy as np
import polars as pl

import rcjax
from benchmarks.paper.inputs import Published, Source
from benchmarks.timing import timed


def run_times(source: Source, published: Published, quick: bool) -> Iterator[dict]:
    """Seconds to compile and to run, for each length at 100 λ and for each number of λ at full length.

    Beside them what the authors' program took per cascade of that length, on their machine, mean over resolutions.
    """
    names = source.model.models
    settings = [(length, 100) for length in range(2, len(names) + 1)]
    settings += [(len(names), count) for count in ((10, 30) if quick else (10, 30, 300, 1000, 10_000))]
    for length, count in settings:
        lam = np.geomspace(1e-3, 1.0, count) / float(source.model.cost.max())

        def solve(length=length, lam=lam):
            return rcjax.solve_frontier(source.model, lam=lam, cascades=[names[:length]]).error

        compiling, running, _ = timed(solve, 2.0)
        row = {"models": length, "lambdas": count, "compile, s": compiling, "run, s": running}
        yield row | {"authors' program, s": _authors(published, length)}


def _authors(published: Published, length: int) -> float | None:
    if published.run_times is None:
        return None
    rows = published.run_times.filter((pl.col("models") == length) & (pl.col("method") == "rational_tuning"))
    return None if rows.is_empty() else float(rows["mean_seconds"].to_numpy().mean())
