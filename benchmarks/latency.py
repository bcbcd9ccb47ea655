"""Limits on the seconds of an answer, on real logs: how often they are kept.

    python -m benchmarks.latency --data DIR [--splits 50] [--only NAME]

Each log {name}_train.csv of DIR, with {name}_test.csv where it is there and prices.toml, is pooled, and split at random
again and again: 300 queries to tune on (150 of logs that have no more than 300), the others are the population, whose
figures are the truth.

Limits: 95 % of the queries within a limit between the 95 % quantiles of the fastest and the slowest model (geometric
mean), where an error costs a hundred times the dearest model: policies without a limit, of `tune(max_seconds="p95=…")`,
and those that keep to it on the log without a standard error in hand. "Beyond" is the share of the population that
waits longer.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.paper.inputs import pooled
from benchmarks.report import markdown, progress
from rcjax.policy.spec import SecondsLimit, Target
from rcjax.tuning.search import SecondsFilter

TUNED_ON = 300


def splits(log: rcjax.Log, count: int, name: str) -> Iterator[tuple[rcjax.Log, rcjax.Log]]:
    """(queries to tune on, the population)."""
    size = min(TUNED_ON, log.n_queries // 2)
    for number in range(count):
        progress(f"{name}: split {number + 1} of {count}")
        yield log.split(size / log.n_queries, seed=number)


def tuned(log: rcjax.Log, admits: Callable[..., Any] | None = None) -> rcjax.Frontier:
    """The frontier of a log by the default search."""
    return rcjax.tuning.select_frontier(log, admits=admits).frontier


def limited(log: rcjax.Log, count: int, name: str) -> Iterator[dict]:
    """What policies come to with a limit, without, and with nothing in hand."""
    tails = np.quantile(np.asarray(log.seconds, float), 0.95, axis=0, method="inverted_cdf")
    limit = SecondsLimit(float(np.sqrt(tails.min() * tails.max())), tail=True)
    for train, population in splits(log, count, name):
        kept, truth = SecondsFilter.of(limit, train), SecondsFilter.of(limit, population)
        in_hand = {"limit": kept.admits, "limit, nothing in hand": lambda *of, kept=kept: kept.measure(*of)[0] <= 0.05}
        for way, admits in {"no limit": None, **in_hand}.items():
            frontier = tuned(train, admits)
            point = frontier.index_for(Target("error_cost", 100 * np.asarray(train.cost).max()))
            policy = frontier.policies.on_host().take(np.array([point]))
            replayed = rcjax.replay(frontier.policy_at(point), population)
            beyond = float(truth.measure(policy, frontier.model)[0][0])
            yield {"way": way, "beyond": beyond, "error": float(replayed.error), "money": float(replayed.spent)}


def mean(values: pl.Series, digits: int = 2, scale: float = 100.0) -> str:
    """With its standard error over independent splits."""
    spread = float(values.std() or 0.0) / np.sqrt(len(values))  # type: ignore[arg-type]
    return f"{scale * float(values.mean()):.{digits}f} ± {scale * spread:.{digits}f}"  # type: ignore[arg-type]


def limits_table(rows: pl.DataFrame) -> None:
    """Print what each way to keep a limit comes to, log by log, and over all."""
    lines = []
    for (name, way), part in rows.group_by(["log", "way"], maintain_order=True):
        figures = {"beyond, %": mean(part["beyond"]), "at most 5 %, % of splits": mean(part["beyond"] <= 0.05, 0)}
        figures |= {"error, %": mean(part["error"], 1), "$ per million": mean(part["money"], 0, 1e6)}
        lines.append({"log": name, "way": way} | figures)
    print(f"\nLimits: 95 % of the queries within so many seconds.\n\n{markdown(pl.DataFrame(lines))}")
    for (way,), part in rows.group_by(["way"], maintain_order=True):
        told = f"queries that wait longer than a limit for 95 % allows, {way}: mean over all logs, at most 5 %"
        record.headline(told, f"{mean(part['beyond'])} %")


def main() -> None:
    """All tables."""
    parser = record.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of logs with latency_ms")
    parser.add_argument("--splits", type=int, default=50, help="for limits")
    parser.add_argument("--only", default="", help="the logs whose name holds this")
    arguments = parser.parse_args()
    limits = []
    for path in sorted(arguments.data.glob("*_train.csv")):
        name = path.name.removesuffix("_train.csv")
        log = pooled(arguments.data, name)[0] if arguments.only in name else None
        if log is None or log.seconds is None:
            continue
        log = log.take(log.complete & ~np.isnan(np.asarray(log.seconds)).any(1))
        limits += [{"log": name} | row for row in limited(log, arguments.splits, name)]
    if limits:
        limits_table(pl.DataFrame(limits))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    record.run(main)
