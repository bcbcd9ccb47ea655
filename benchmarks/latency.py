"""Seconds on real logs: what a price of waiting brings, are figures of seconds right, and are limits kept?

    python -m benchmarks.latency --data DIR [--splits 200] [--priced 20] [--only NAME]

Each log {name}_train.csv of DIR, with {name}_test.csv where it is there and prices.toml, is pooled, and split at random
again and again: 300 queries to tune on (150 of logs that have no more than 300), the others are the population, whose
figures are the truth.

Prices: frontiers tuned with a second at 0, 0.0001 and 0.001 dollars, on `--priced` of the splits. For errors that cost
so much, what the policies chosen by each frontier do on the population: error, money, mean seconds, 95 % quantile; and
what errors, money and waiting come to all in all, relative to the policy that is chosen without a price. The area is
that under the curve of error against money with waiting at that price, as seen on the population, relative to the
frontier that was tuned without a price.

Intervals: those of the seconds of five policies along each frontier. "Predicted" are from the queries tuned on, and the
population is as random as these, so that the nominal 90 % are not quite reached; "replayed" are from 300 queries drawn
from the population with replacement, for which its figures are the exact truth.

Limits: 95 % of the queries within a limit between the 95 % quantiles of the fastest and the slowest model (geometric
mean), where an error costs a hundred times the dearest model: policies of `tune(max_seconds="p95=…")`, and those that
the same search admits without the correction for luck. "Beyond" is the share of the population that waits longer. A
limit that is kept on average has 5 % beyond; by chance, half of the policies at the very limit have more. Guarantees:
`tune(max_error=…, max_seconds="p95=…", confidence=0.9)` on as many held-out queries drawn from the population with
replacement, at 1.5 times the least error that is expected within the limit; a promise is false where the policy truly
misses one of the two.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.paper.inputs import pooled
from benchmarks.report import markdown, progress
from rcjax.frontier.waiting_times import FIGURES
from rcjax.policy.limits import SecondsLimit
from rcjax.replaying.replay import walk_log
from rcjax.tuning.bills import count_waiting, with_seconds
from rcjax.tuning.seconds_limit import admission

TUNED_ON, HELD_OUT = 300, 300
PRICES = (0.0, 1e-4, 1e-3)  # dollars a second
ERROR_COSTS = (3, 30, 300)  # in calls of the dearest model
CONFIDENCE = 0.9
POLICIES = 5  # along a frontier, whose intervals are tried


def splits(log: rcjax.Log, count: int) -> Iterator[tuple[int, rcjax.Log, rcjax.Log]]:
    """(number, queries to tune on, the population)."""
    size = min(TUNED_ON, log.n_queries // 2)
    for number in range(count):
        yield number, *log.split(size / log.n_queries, seed=number)


def beyond(policy: Any, population: rcjax.Log, limit: SecondsLimit) -> float:
    """The share of a population that waits longer than a limit."""
    waits = walk_log(policy, population).seconds
    assert waits is not None
    return float((waits > limit.seconds).mean())


# -- a price of waiting


def priced(log: rcjax.Log, count: int, name: str) -> list[dict]:
    """What the policies of frontiers with each price do on the population, for each cost of an error."""
    rows = []
    for number, train, population in splits(log, count):
        progress(f"{name}: prices, split {number + 1} of {count}")
        frontiers = {price: tuned(count_waiting(train, {"second_cost": price})) for price in PRICES}
        dearest = float(np.asarray(train.cost).max())
        for price, frontier in frontiers.items():
            area = relative_area(frontier, frontiers[0.0], population, price)
            for calls in ERROR_COSTS:
                both = [done(own.policy(error_cost=calls * dearest), population) for own in (frontier, frontiers[0.0])]
                mine, plain = (calls * dearest * own["error"] + own["money"] + price * own["seconds"] for own in both)
                rows.append({"price": price, "calls": calls, "area": area, "all": mine / plain} | both[0])
    return rows


def done(policy: rcjax.Policy, population: rcjax.Log) -> dict[str, float]:
    """What a policy does on the population: errors, money, seconds."""
    replayed, waits = rcjax.replay(policy, population), walk_log(policy, population).seconds
    assert replayed.seconds is not None
    assert waits is not None
    money = replayed.cost if replayed.seconds.money is None else replayed.seconds.money
    tail = float(np.quantile(waits, 0.95, method="inverted_cdf"))
    return {"error": float(replayed.error), "money": float(money), "seconds": float(waits.mean()), "p95": tail}


def tuned(log: rcjax.Log) -> rcjax.Frontier:
    """The frontier of a log by the default search."""
    return rcjax.tuning.select_frontier(log).frontier


def relative_area(frontier: rcjax.Frontier, plain: rcjax.Frontier, population: rcjax.Log, price: float) -> float:
    """Area under error against money with waiting at a price, over that of the frontier tuned without a price."""
    curves = []
    for one in (frontier, plain):
        own = rcjax.replay(one, population)
        assert own.seconds is not None
        money = np.asarray(own.cost if own.seconds.money is None else own.seconds.money, float)
        curves.append((money + price * own.seconds.mean, np.asarray(own.error, float)))
    low, high = max(cost.min() for cost, _ in curves), min(cost.max() for cost, _ in curves)
    if not low < high:
        return np.nan
    mine, theirs = (rcjax.replaying.area_under_curve(cost, error, low, high) for cost, error in curves)
    return mine / theirs


# -- intervals and limits


def limited(log: rcjax.Log, count: int, name: str) -> tuple[list[dict], list[dict]]:
    """(whether each interval covers the truth, what each way to keep a limit comes to)."""
    seconds = np.asarray(log.seconds, float)
    tails = np.quantile(seconds, 0.95, axis=0, method="inverted_cdf")
    limit = SecondsLimit(float(np.sqrt(tails.min() * tails.max())), 0.95)
    intervals, limits = [], []
    for number, train, population in splits(log, count):
        progress(f"{name}: limits, split {number + 1} of {count}")
        rng = np.random.default_rng(number)
        held_out = population.take(rng.integers(population.n_queries, size=min(HELD_OUT, population.n_queries)))
        model = rcjax.fit(train)
        plain = with_seconds(rcjax.tuning.select_frontier(train, model=model).frontier, train)
        intervals += covered(plain, held_out, population)
        here = list(kept(train, model, plain, population, limit))
        limits += here
        least = next((row["least"] for row in here if row["way"] == "limit" and row["made"]), None)
        limits.append(guaranteed(train, held_out, population, limit, least))
    return intervals, limits


def covered(frontier: rcjax.Frontier, held_out: rcjax.Log, population: rcjax.Log) -> Iterator[dict]:
    """Whether the intervals of some policies of a frontier hold the figures of the population."""
    places = np.unique(np.linspace(0, len(frontier.lam) - 1, POLICIES).round().astype(int))
    some = dataclasses.replace(frontier, policies=frontier.policies.take(np.resize(places, POLICIES)), bands=None)
    true, held = rcjax.replay(some, population).seconds, rcjax.replay(some, held_out).seconds
    assert true is not None
    assert held is not None
    assert frontier.seconds is not None
    for row, place in enumerate(places.tolist()):
        for figure, name in enumerate(FIGURES):
            for kind, ends in (("predicted", frontier.seconds.intervals[place]), ("replayed", held.intervals[row])):
                low, high = ends[figure]
                yield {"kind": kind, "figure": name, "holds": bool(low <= true.figures[row, figure] <= high)}


def kept(
    train: rcjax.Log,
    model: rcjax.CascadeModel,
    plain: rcjax.Frontier,
    population: rcjax.Log,
    limit: SecondsLimit,
) -> Iterator[dict]:
    """What the policies chosen without a limit, with it, and without its correction come to."""
    price = 100 * float(np.asarray(train.cost).max())
    admitted = admission(train, model, limit)
    ways: dict[str, Any] = {"no limit": None, "limit": admitted}
    ways["limit, uncorrected"] = dataclasses.replace(admitted, luck=0.0)
    for way, admits in ways.items():
        frontier = plain
        if admits is not None:
            try:
                admits.require_any(model)
                frontier = rcjax.tuning.select_frontier(train, model=model, admits=admits.admits).frontier
            except rcjax.InfeasibleError:
                yield {"way": way, "made": False, "false": False}
                continue
        policy = frontier.policy(error_cost=price)
        replayed = rcjax.replay(policy, population)
        figures = {
            "error": float(replayed.error),
            "money": float(replayed.cost),
            "beyond": beyond(policy, population, limit),
        }
        least = float(np.asarray(frontier.error).min())
        yield {"way": way, "made": True, "false": False, "luck": admitted.luck, "least": least} | figures


def guaranteed(
    train: rcjax.Log, held_out: rcjax.Log, population: rcjax.Log, limit: SecondsLimit, least: float | None
) -> dict:
    """Whether a guarantee of the limit and of 1.5 times the least error expected within it is made, and false."""
    nothing = {"way": "guarantee", "made": False, "false": False}
    if least is None:
        return nothing
    target = min(0.95, max(1.5 * least, 0.02))
    options: dict[str, Any] = {"max_error": target, "max_seconds": limit.text, "confidence": CONFIDENCE}
    try:
        policy = rcjax.tune(train, held_out=held_out, intervals=False, **options).policy
    except rcjax.InfeasibleError:
        return nothing
    assert policy is not None
    replayed, over = rcjax.replay(policy, population), beyond(policy, population, limit)
    false = float(replayed.error) > target + 1e-12 or over > 0.05 + 1e-12
    figures = {"error": float(replayed.error), "money": float(replayed.cost), "beyond": over}
    return {"way": "guarantee", "made": True, "false": false} | figures


# -- tables


def mean(values: pl.Series, digits: int = 2, scale: float = 1.0) -> str:
    """With its standard error over independent splits."""
    known = values.drop_nulls().drop_nans()
    if not len(known):
        return "–"
    spread = float(known.std() or 0.0) / np.sqrt(len(known))  # type: ignore[arg-type]
    return f"{scale * float(known.mean()):.{digits}f} ± {scale * spread:.{digits}f}"  # type: ignore[arg-type]


def prices_table(name: str, rows: list[dict]) -> None:
    """Print what each price does to the policies for each cost of an error."""
    lines = []
    for (calls, price), part in pl.DataFrame(rows).group_by(["calls", "price"], maintain_order=True):
        figures = {"error, %": mean(part["error"], 1, 100), "$ per million": mean(part["money"], 0, 1e6)}
        figures |= {"seconds": mean(part["seconds"]), "95 %": mean(part["p95"])}
        figures |= {"all in all, %": mean(part["all"], 1, 100), "area, %": mean(part["area"], 1, 100)}
        lines.append({"an error costs, calls of the dearest": calls, "$ a second": price} | figures)
    table = pl.DataFrame(lines).sort("an error costs, calls of the dearest", "$ a second")
    print(f"\n{name}: a price of waiting.\n\n{markdown(table)}", flush=True)


def coverage_table(intervals: pl.DataFrame) -> None:
    """Print how often the intervals hold the truth."""
    lines = []
    for (name, kind), part in intervals.group_by(["log", "kind"], maintain_order=True):
        lines.append({"log": name, "intervals": kind} | held(part))
    what = "Intervals of 90 %: how often they hold the population's figure, per cent"
    print(f"\n{what}.\n\n{markdown(pl.DataFrame(lines))}")
    for (kind,), part in intervals.group_by(["kind"], maintain_order=True):
        told = f"90 % intervals of seconds, {kind}: coverage of mean, median, 95 % and 99 % quantile"
        record.headline(told, ", ".join(f"{share} %" for share in held(part).values()))


def held(part: pl.DataFrame) -> dict[str, str]:
    """The share of intervals that hold the truth, in per cent, for each figure; several of one split go together."""
    groups = part.group_by(["figure"], maintain_order=True)
    return {str(figure): f"{100 * float(one['holds'].mean()):.1f}" for (figure,), one in groups}  # type: ignore[arg-type]


def limits_table(limits: pl.DataFrame) -> None:
    """Print what each way to keep a limit comes to, log by log and over all."""
    lines = []
    for (name, way), part in limits.group_by(["log", "way"], maintain_order=True):
        made = part.filter(pl.col("made"))
        figures = {"made, %": mean(part["made"], 0, 100), "beyond, %": mean(made["beyond"], 2, 100)}
        figures |= {"kept, %": mean(made["beyond"] <= 0.05, 0, 100), "luck, points": mean(made["luck"], 2, 100)}
        figures |= {"error, %": mean(made["error"], 1, 100), "$ per million": mean(made["money"], 0, 1e6)}
        lines.append({"log": name, "way": way} | figures | {"false, % of all": mean(part["false"], 1, 100)})
    print(f"\nLimits: 95 % of the queries within so many seconds.\n\n{markdown(pl.DataFrame(lines))}")
    made = limits.filter(pl.col("made"))
    for way in ("limit", "limit, uncorrected"):
        own = made.filter(pl.col("way") == way)["beyond"]
        told = f"queries that wait longer than a limit for 95 % allows, {way}: mean over all logs, at most 5 %"
        record.headline(told, f"{mean(own, 2, 100)} %")
    promises = limits.filter(pl.col("way") == "guarantee")["false"]
    told = "promises of an error and of a 95 % quantile of seconds, with 90 % confidence, that are false"
    record.headline(told, f"{mean(promises, 1, 100)} %")


def main() -> None:
    """All tables."""
    parser = record.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of logs with latency_ms")
    parser.add_argument("--splits", type=int, default=200, help="for intervals and limits")
    parser.add_argument("--priced", type=int, default=20, help="splits for prices of waiting")
    parser.add_argument("--only", default="", help="the logs whose name holds this")
    arguments = parser.parse_args()
    intervals, limits, prices = [], [], []
    for path in sorted(arguments.data.glob("*_train.csv")):
        name = path.name.removesuffix("_train.csv")
        if arguments.only not in name:
            continue
        log = pooled(arguments.data, name)[0]
        log = log.take(log.complete & ~np.isnan(np.asarray(log.seconds)).any(1))
        if arguments.priced:
            rows = priced(log, arguments.priced, name)
            prices_table(name, rows)
            prices += rows
        if arguments.splits:
            held, kept_ = limited(log, arguments.splits, name)
            intervals += [{"log": name} | row for row in held]
            limits += [{"log": name} | row for row in kept_]
    for price in PRICES[1:] if prices else ():
        own = pl.DataFrame(prices).filter(pl.col("price") == price)["all"]
        told = f"errors, money and waiting in all, a second at ${price:g}: policies that count it, relative to others"
        record.headline(told, f"{mean(own, 1, 100)} %")
    if arguments.splits:
        coverage_table(pl.DataFrame(intervals))
        limits_table(pl.DataFrame(limits, infer_schema_length=None))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    record.run(main)
