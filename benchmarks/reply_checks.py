"""The verdicts of a reply check as the signal: is a tuned policy as good as the gate that a peer publishes?

    python -m benchmarks.reply_checks --data DIR [--splits 20] [--record]

firstpass runs each answer's tests, which give 0, 0.5 or 1, keeps what passes all of them, and asks a larger model about
the rest. Here policies are tuned on random halves of the same logs (DIR/public/firstpass_*.csv, 974 programming tasks,
two models): for the error that the gate has there, for what it costs there, and for a tenth more, as a budget is kept
with a margin. Policy and gate answer the other half. ± is one standard error over splits, which share queries.
"""

from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.paper.inputs import resplit

LOGS = {"firstpass_opus": ".9333 at $3,076/M", "firstpass_k5": ".9230 at $15,660/M"}  # as published
TARGETS = ("its error", "its bill", "its bill + 10 %")
HEAD = ("log", "published", "gate on the whole log", "tuned for", "right, points above it", "bill, % above it")


def gate(log: rcjax.Log) -> tuple[float, float]:
    """(share right, dollars per query) where the cheaper model's answer is kept if it passes all its tests."""
    passed = np.asarray(log.logprob[:, 0]) == 0
    correct, cost = np.asarray(log.correct), np.asarray(log.query_cost)
    right = np.where(passed, correct[:, 0], correct[:, 1])
    return float(right.mean()), float((cost[:, 0] + ~passed * cost[:, 1]).mean())


def compare(log: rcjax.Log, split: int) -> Iterator[tuple[float, float]]:
    """By target: points of right answers, and per cent of the bill, that a tuned policy has more than the gate."""
    train, test = resplit(log, log.n_queries // 2, split)
    (share, bill), (right, spent) = gate(train), gate(test)
    for target in ({"max_error": 1 - share}, {"budget": bill}, {"budget": 1.1 * bill}):
        replay = rcjax.replay(rcjax.tune(train, **target, intervals=False).policy, test)
        yield 100 * (1 - float(replay.error) - right), 100 * (float(replay.spent) / spent - 1)


def main() -> None:
    """Print the table."""
    options = record.parser(__doc__)
    options.add_argument("--data", type=Path, required=True, help="a folder with public/firstpass_*.csv")
    options.add_argument("--splits", type=int, default=20, help="random halves of each log")
    chosen = options.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for name, published in LOGS.items():
        log = rcjax.read_log(pl.read_csv(chosen.data / "public" / f"{name}.csv"))
        right, bill = gate(log)
        figures = np.array([[*compare(log, split)] for split in range(chosen.splits)])
        for target, sample in zip(TARGETS, figures.transpose(1, 2, 0), strict=True):
            gain, more = (f"{one.mean():+.2f} ± {one.std(ddof=1) / len(one) ** 0.5:.2f}" for one in sample)
            print(f"| {name} | {published} | {right:.4f} at ${1e6 * bill:,.0f}/M | {target} | {gain} | {more} |")
            record.headline(f"{name}: right answers above a peer's gate, for {target}", f"{gain} points, {more} %")


if __name__ == "__main__":
    record.run(main)
