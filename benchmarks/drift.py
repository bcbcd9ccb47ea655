"""Is `rcjax.check_policy` quiet where nothing has changed, and does it see what has?

    python -m benchmarks.drift --data DIR [--splits 500] [--trials 50] [--bands] [--only NAMES] [--search selected]
        [--replicates 200] [--first 0] [--partial FILE]

False alarms: each log, and one sampled from the demo's model, is dealt into two random halves, `--splits` times. A
policy is tuned on one half, at a price of an error drawn anew, as `rcjax tune` does by default, as far as pairs
(`selected`), and among all cascades by the model (`all`); and checked on the other half. Shown is the share of splits
with any alarm at all, with its standard error, and how often each check alarms. With `--bands` policies carry
intervals, as `rcjax tune` makes them. Logs take turns, and the table so far is kept in the file of `--partial`; with
`--first` a run goes on after so many splits of an earlier one.

Power: policies tuned on 300 queries, `--trials` of each log, are checked on 300 or 1,000 others in which something has
been changed. Real logs are {name}_train.csv and {name}_test.csv, pooled, and prices.toml in DIR.
"""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.paper.inputs import pooled
from benchmarks.report import machine, markdown, progress

TUNED_ON = 300
SIZES = (300, 1000)
_TURN = 20  # splits of a log before it is the next one's turn
CHECKS = ("Brier score", "calibration error", "confidences", "error", "cost", "re-tuning")


def logs(folder: Path | None) -> Iterator[tuple[str, rcjax.Log]]:
    """Names and logs: the demo's, then those of the folder, both splits together."""
    yield "sampled", rcjax.sample_log(1000, seed=0)
    if folder is None:
        return
    for train in sorted(folder.glob("*_train.csv")):
        name = train.name.removesuffix("_train.csv")
        yield name, pooled(folder, name)[0]


def tuned(log: rcjax.Log, search: str, lam: float, replicates: int) -> rcjax.Policy:
    """The policy of a search at a price, with intervals from so many replicates; 0 for none."""
    if search == "selected":
        frontier = rcjax.tuning.select_frontier(log, lam=[lam]).frontier
    else:
        frontier = rcjax.solve_frontier(rcjax.fit(log), lam=[lam], cascades=search)
    if replicates:
        frontier = frontier.with_bands(rcjax.tuning.bootstrap(frontier, log, replicates=replicates))
    return frontier.policy(lam=lam)


def price(log: rcjax.Log, rng: np.random.Generator) -> float:
    """A λ between where the dearest model is worth its cost and where the cheapest is best."""
    return float(np.exp(rng.uniform(np.log(0.01), np.log(0.5))) / np.asarray(log.cost).max())


def alarms(policy: rcjax.Policy, log: rcjax.Log) -> set[str]:
    return {check.name for check in rcjax.check_policy(policy, log).checks if check.verdict == "bad"}


class Halvings:
    """How often anything alarms between two random halves of a log, so far."""

    def __init__(self, name: str, log: rcjax.Log, search: str, replicates: int, first: int):
        self.name, self.log, self.search, self.replicates = name, log, search, replicates
        self.first, self.splits = first, 0
        self.counts: Counter[str] = Counter()

    def go_on(self, splits: int) -> None:
        """Until there are so many splits."""
        half = self.log.n_queries // 2
        for seed in range(self.splits, splits):
            progress(f"{self.name}, {self.search}: split {seed + 1} of {splits}")
            rng = np.random.default_rng([self.first + seed, 1])
            order = rng.permutation(self.log.n_queries)
            one, other = self.log.take(order[:half]), self.log.take(order[half : 2 * half])
            found = alarms(tuned(one, self.search, price(self.log, rng), self.replicates), other)
            self.counts.update(found)
            self.counts["any"] += bool(found)
        self.splits = max(self.splits, splits)

    def row(self) -> dict[str, object]:
        """Of the table: the share of splits with each alarm."""
        share = self.counts["any"] / self.splits
        error = np.sqrt(share * (1 - share) / self.splits)
        row: dict[str, object] = {"log": self.name, "search": self.search, "n": self.log.n_queries // 2}
        row |= {"splits": self.splits, "any alarm": f"{100 * share:.1f} ± {100 * error:.1f} %"}
        return row | {check: f"{100 * self.counts[check] / self.splits:.1f} %" for check in CHECKS}


def false_alarms(halvings: list[Halvings], splits: int, partial: Path | None) -> str:
    """The table of false alarms. Logs take turns, so that what is there when time runs out is of all of them."""
    table = ""
    for done in [*range(_TURN, splits, _TURN), splits]:
        for each in halvings:
            each.go_on(done)
            table = markdown(pl.DataFrame([one.row() for one in halvings if one.splits]))
            if partial:
                partial.write_text(table + "\n", "utf-8")
    return table


def surer(log: rcjax.Log, by: float) -> rcjax.Log:
    """Every confidence with its odds multiplied by exp(by)."""
    p = np.exp(np.asarray(log.logprob, float))
    with np.errstate(divide="ignore"):
        odds = np.log(p) - np.log1p(-p) + by
    return dataclasses.replace(log, logprob=jnp.asarray(-np.logaddexp(0, -odds), log.logprob.dtype))


def swapped(log: rcjax.Log, policy: rcjax.Policy) -> rcjax.Log:
    """The policy's first model is silently replaced by the next one in the log, at its own price."""
    j = log.models.index(policy.first)
    other = j + 1 if j + 1 < len(log.models) else j - 1
    columns = {name: np.array(getattr(log, name)) for name in ("logprob", "correct")}
    for values in columns.values():
        values[:, j] = values[:, other]
    return dataclasses.replace(log, **{name: jnp.asarray(values) for name, values in columns.items()})


def less_right(log: rcjax.Log, points: float, rng: np.random.Generator) -> rcjax.Log:
    """So many points of the answers of every model, right ones, made wrong."""
    right = np.array(log.correct)
    for column in right.T:
        places = np.flatnonzero(column)
        column[rng.permutation(places)[: round(points * len(column))]] = False
    return dataclasses.replace(log, correct=jnp.asarray(right))


def dearer(log: rcjax.Log, factor: float) -> rcjax.Log:
    """Every call costs so many times as much, as with more tokens."""
    return dataclasses.replace(log, query_cost=log.query_cost * factor, cost=log.cost * factor)


Change = Callable[[rcjax.Log, rcjax.Policy, np.random.Generator], rcjax.Log]
CHANGES: dict[str, Change] = {
    "nothing": lambda log, policy, rng: log,
    "odds of the confidences × 1.65": lambda log, policy, rng: surer(log, 0.5),
    "odds of the confidences × 2.7": lambda log, policy, rng: surer(log, 1.0),
    "first model replaced": lambda log, policy, rng: swapped(log, policy),
    "accuracy −5 points": lambda log, policy, rng: less_right(log, 0.05, rng),
    "accuracy −10 points": lambda log, policy, rng: less_right(log, 0.10, rng),
    "tokens × 1.2": lambda log, policy, rng: dearer(log, 1.2),
    "tokens × 2": lambda log, policy, rng: dearer(log, 2.0),
}


def power(name: str, log: rcjax.Log, trials: int, replicates: int) -> list[dict[str, object]]:
    """Rows: how often the check alarms on each change, at each number of fresh queries."""
    sizes = [size for size in SIZES if TUNED_ON + size <= log.n_queries]
    counts: Counter[tuple[str, int]] = Counter()
    for seed in range(trials):
        progress(f"{name}: trial {seed + 1} of {trials}")
        rng = np.random.default_rng([seed, 2])
        order = rng.permutation(log.n_queries)
        policy = tuned(log.take(order[:TUNED_ON]), "selected", price(log, rng), replicates)
        for size in sizes:
            fresh = log.take(order[TUNED_ON : TUNED_ON + size])
            for change, apply in CHANGES.items():
                counts[change, size] += bool(alarms(policy, apply(fresh, policy, rng)))
    return [
        {"log": name, "change": change}
        | {f"n = {size}": f"{100 * counts[change, size] / trials:.0f} %" if size in sizes else "–" for size in SIZES}
        for change in CHANGES
    ]


def speed() -> str:
    """How long a check takes, without re-tuning, once compiled: five models and 1,000 queries."""
    log = rcjax.sample_log(1300, seed=1)
    policy = rcjax.solve_frontier(rcjax.fit(log.take(slice(300))), lam=[100.0], cascades="full").policy(lam=100.0)
    fresh = log.take(slice(300, None))
    times = []
    for _ in range(6):
        start = time.perf_counter()
        rcjax.check_policy(policy, fresh, retuning=False)
        times.append(time.perf_counter() - start)
    return f"{len(policy.models)} models, 1,000 queries, without re-tuning: {min(times[1:]):.2f} s."


def main() -> None:
    parser = record.parser(__doc__)
    parser.add_argument("--data", type=Path, help="folder with real logs")
    parser.add_argument("--splits", type=int, default=500)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--bands", action="store_true", help="tune with intervals, which takes longer")
    parser.add_argument("--replicates", type=int, default=200, help="of the bootstrap, with --bands")
    parser.add_argument("--only", help="names of logs, with commas between them, in the order wanted")
    parser.add_argument("--first", type=int, default=0, help="splits that an earlier run has done")
    parser.add_argument("--partial", type=Path, help="file for the table of false alarms so far")
    parser.add_argument("--search", choices=("selected", "all", "both"), default="both")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(f"{machine()} {speed()}\n")
    replicates = arguments.replicates if arguments.bands else 0
    known = dict(logs(arguments.data))
    chosen = [(name, known[name]) for name in (arguments.only.split(",") if arguments.only else known)]
    searches = ("selected", "all") if arguments.search == "both" else (arguments.search,)
    if arguments.splits:
        halvings = [Halvings(*each, search, replicates, arguments.first) for each in chosen for search in searches]
        print(false_alarms(halvings, arguments.splits, arguments.partial), flush=True)
        shares = [100 * log.counts["any"] / log.splits for log in halvings]
        told = f"alarms of `rcjax check` where nothing has changed, {arguments.splits} halvings of each log"
        record.headline(told, f"{min(shares):.1f} to {max(shares):.1f} %")
    if arguments.trials:
        rows = [
            row
            for name, log in chosen
            if log.n_queries >= 2 * TUNED_ON
            for row in power(name, log, arguments.trials, replicates)
        ]
        print(f"\n{markdown(pl.DataFrame(rows))}")
        for row in rows:
            figures = ", ".join(f"{row[size]} ({size})" for size in row if str(size).startswith("n = "))
            record.headline(f"alarms on {row['log']}, {arguments.trials} trials: {row['change']}", figures)


if __name__ == "__main__":
    record.run(main)
