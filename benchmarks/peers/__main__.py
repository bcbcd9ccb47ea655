"""Peers side by side: what a budget gets by rcjax's default and by what others do, on queries that none was tuned on.

    python -m benchmarks.peers --data DIR [--splits 20] [--labels 100 300 1000] [--bayesian] [--out FILE]
    python -m benchmarks.peers --kept FILE [FILE ...]

An arm of `benchmarks.budgets`: its logs, its random splits, its 14 budgets from the cheapest model's bill to the
dearest's, each policy billed by its answers. All get the same log, with what was answered where DIR tells; peers whose
paper goes by confidence make nothing of it, so rcjax stands there without answers, too. Of its policies a method takes
the one of least error, as the labels or its own calibration have it, whose bill on the labels is within the budget. The
queries not tuned on are a stream, drawn at random: rcjax's default follows its bill over it, as `rcjax serve` does; it
also stands there not followed. What a policy that stays as it is comes to over the stream is its mean over the queries.

Figures are in per cent of the error that rcjax's default comes to, over the budgets that both meet, and overspent
budgets beside them; ± is one standard error over splits, which share queries. `--kept` makes the tables of rows that
earlier runs have kept (`--out`), so that several may run side by side.

Then promises, on the logs whose answers are told: `benchmarks.peers.promises`.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import jax
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.budgets import (
    FOLDER,
    GROUPS,
    Split,
    Way,
    at_least,
    by_labels,
    by_policy,
    judge_budgets,
    policy_for,
    sources,
    splits_of,
    targets_of,
    values_of,
)
from benchmarks.following import follow
from benchmarks.methods import BILL, ERROR, Columns, plain_pairs
from benchmarks.peers.abc import agreement_based
from benchmarks.peers.automix import automix
from benchmarks.peers.bargain import bargain
from benchmarks.peers.bayesian import bayesian
from benchmarks.peers.cascade_routing import cascade_routing
from benchmarks.peers.frugalgpt import frugalgpt
from benchmarks.peers.promises import promises, table_of_promises
from benchmarks.peers.ucci import ucci
from benchmarks.report import collected, machine, markdown, with_error
from rcjax.policy.bills import WINDOW
from rcjax.tuning.replaying.replay import LadderReplay
from rcjax.tuning.tune import with_bills

RCJAX, STILL, BARE = "rcjax", "rcjax, not followed", "rcjax, not followed, without answers"
FULL, PLAIN = "rational tuning, all models in turn", "plain pair"
STREAM = 4_000  # queries
BAYESIAN = "Bayesian optimisation"
PEERS: dict[str, Callable[[Columns, Columns], np.ndarray]] = {
    "FrugalGPT": frugalgpt,
    "UCCI": ucci,
    "agreement-based cascading": agreement_based,
    "cascade routing": cascade_routing,
    "AutoMix": automix,
    "BARGAIN": bargain,
    BAYESIAN: bayesian,
}
METHODS = (STILL, BARE, FULL, PLAIN, *PEERS)
FIGURES = {"error": "error against rcjax's default, %", "overspent": "budgets overspent by over 3 %, %"}


def ways_of(train: rcjax.Log, test: rcjax.Log, peers: Iterable[str]) -> dict[str, Way]:
    """All methods by name, rcjax first."""
    plain = plain_pairs(train, test)
    bare = [dataclasses.replace(log, answer=None, compare=None) for log in (train, test)]
    dearest = float(np.max(train.cost))
    tuned = rcjax.tune(train, intervals=False, budget=dearest)
    still = by_policy(tuned.frontier, train, test)
    unaware = still
    if train.answer is not None:
        unaware = by_policy(rcjax.tune(bare[0], intervals=False, budget=dearest).frontier, *bare)
    modelled = rcjax.tune(bare[0], cascade="full", intervals=False)
    full, _ = with_bills(modelled.frontier, modelled.replayed)
    ways = {
        RCJAX: by_following(tuned, still, test),
        STILL: still,
        BARE: unaware,
        FULL: by_policy(full, *bare),
        PLAIN: by_labels(plain),
    }
    columns = [Columns.of(log) for log in (train, test)]
    return ways | {name: by_labels(PEERS[name](*columns)) for name in peers}


def by_following(tuned: rcjax.tuning.Tuned, still: Way, test: rcjax.Log) -> Way:
    """The ladder that follows its bill over a stream of the queries; what it is on the labels is as where it starts."""
    assert tuned.policy is not None  # as there is a target
    rungs = LadderReplay.of(tuned.policy, test)

    def choose(target: str, value: float) -> np.ndarray:
        figures = still(target, value).copy()
        stream = follow(rungs, value, WINDOW, np.ones(STREAM), np.random.default_rng(0))
        figures[[ERROR, BILL]] = stream.error, stream.used * value
        return figures

    return choose


def measure(train: rcjax.Log, test: rcjax.Log, budgets: int, peers: Iterable[str]) -> dict[str, dict]:
    """The figures of one split by method, None where it met no budget; how many it did not meet, as "unmet"."""
    ways = ways_of(train, test, peers)
    singles = plain_pairs(train, test)[: len(train.models)]
    values = targets_of(singles, [budgets, 0, 0])["budget"]
    policies = {
        name: np.array([policy_for(way, "budget", float(value)) for value in values]) for name, way in ways.items()
    }
    row: dict[str, dict] = {figure: {} for figure in (*FIGURES, "unmet")}
    for name, policy in policies.items():
        figures = judge_budgets(policy, policies[RCJAX], values, singles)
        for figure in FIGURES:
            row[figure][name] = None if np.isnan(figures[figure]) else float(figures[figure])
        row["unmet"][name] = int(np.isnan(policy[:, ERROR]).sum())
    return row


def study(splits: Iterable[Split], budgets: int, peers: tuple[str, ...]) -> Iterator[dict]:
    """A row for each split."""
    for split in splits:
        names = {"group": split.source.group, "log": split.source.name, "labels": split.labels}
        yield names | {"queries": split.queries, "split": split.split} | measure(*split.logs(), budgets, peers)


def table(rows: list[dict], figure: str) -> pl.DataFrame:
    """A line for each method, the best with 300 labels first; by number of labels, the mean of the logs."""
    sizes = sorted({row["labels"] for row in rows})
    ranked = sizes[len(sizes) // 2]
    lines = []
    for method in _methods(rows):
        line: dict = {"method": method}
        for labels in sizes:
            some = [row for row in rows if row["labels"] == labels and row[figure].get(method) is not None]
            logs = len({row["log"] for row in some})
            told = with_error(values_of(some, figure, method), "+" if figure == "error" else "")
            line[f"{labels:,} labels"] = f"{told} ({logs} logs)" if some else "–"
        same = [row for row in rows if row["labels"] == ranked]
        lines.append((np.mean(values_of(same, figure, method)), line))
    return pl.DataFrame([line for _, line in sorted(lines, key=lambda pair: (np.isnan(pair[0]), pair[0]))])


def table_of_logs(rows: list[dict]) -> pl.DataFrame:
    """The error against rcjax's default by log and number of labels, a column for each method."""
    lines = []
    for log, labels in dict.fromkeys((row["log"], row["labels"]) for row in rows):
        some = [row for row in rows if row["log"] == log and row["labels"] == labels]
        line = {"log": log, "labels": f"{labels:,}", "splits": len(some)}
        lines.append(line | {m: with_error(values_of(some, "error", m)) for m in _methods(rows) if m != RCJAX})
    return pl.DataFrame(lines)


def _methods(rows: list[dict]) -> list[str]:
    """Those that any row has a figure of, rcjax first."""
    return [name for name in (RCJAX, *METHODS) if any(row["error"].get(name) is not None for row in rows)]


def unmet(rows: list[dict]) -> str:
    """How many budgets each method has no policy for, in a sentence."""
    count = {name: sum(row["unmet"].get(name, 0) for row in rows) for name in (RCJAX, *METHODS)}
    told = ", ".join(f"{name} {number:,}" for name, number in count.items() if number) or "none"
    tried = {name: sum(name in row["error"] for row in rows) for name in _methods(rows)}
    fewer = ", ".join(f"{name} ({number} of {len(rows)})" for name, number in tried.items() if number < len(rows))
    told += f". Measured on fewer splits: {fewer}" if fewer else ""
    return f"Budgets without a policy, in all splits, which count for no figure: {told}."


def headlines(rows: list[dict]) -> None:
    """What the page shows: each method against rcjax, where a peer is better first."""
    better = []
    for log, labels in dict.fromkeys((row["log"], row["labels"]) for row in rows):
        some = [row for row in rows if row["log"] == log and row["labels"] == labels]
        name, error = _best(some)
        if error.mean() < 0:
            better.append(f"{log}, {labels:,} labels: {name} {with_error(error)} %")
    what = "logs on which another method gets fewer errors than rcjax's default for the same budgets, the best one"
    record.headline(what, "; ".join(better) or "none")
    group, folder = "logs with log-probabilities", [row for row in rows if row["group"] == FOLDER]
    for told, some in ((group, folder), ("two logs of few confidences", [r for r in rows if r not in folder])):
        if not some:
            continue
        best_of_all(told, some)
        for line in table(some, "error").iter_rows(named=True):
            if line["method"] == RCJAX:
                continue
            figures = ", ".join(f"{line[column]} ({column})" for column in line if column != "method")
            record.headline(f"{told}: error that budgets get, {line['method']} against rcjax's default, %", figures)
        for line in table(some, "overspent").iter_rows(named=True):
            figures = ", ".join(f"{line[column]} ({column})" for column in line if column != "method")
            record.headline(f"{told}: budgets overspent by over 3 %, {line['method']}, %", figures)


def best_of_all(told: str, rows: list[dict]) -> None:
    """Which method that is not rcjax gets the fewest errors, by number of labels, and how budgets were kept."""
    errors, kept = [], []
    for labels in sorted({row["labels"] for row in rows}):
        some = [row for row in rows if row["labels"] == labels]
        best, error = _best(some)
        errors.append(f"{best} {with_error(error)} % ({labels:,} labels)")
        shares = [with_error(values_of(some, "overspent", name), "") for name in (best, RCJAX)]
        kept.append(f"{shares[0]} %; {shares[1]} % ({labels:,} labels)")
    record.headline(
        f"{told}: the best of all others, error that budgets get against rcjax's default", ", ".join(errors)
    )
    record.headline(f"{told}: the same, budgets overspent by over 3 %; by rcjax's default", ", ".join(kept))


def _best(rows: list[dict]) -> tuple[str, np.ndarray]:
    """The method that is not rcjax with the fewest errors, and its figures."""
    others = {name: values_of(rows, "error", name) for name in _methods(rows) if name not in (RCJAX, STILL, BARE)}
    return min(others.items(), key=lambda item: float(item[1].mean()))


def report(rows: list[dict], promised: list[dict]) -> None:
    """Print all tables."""
    print(machine())
    if rows:
        report_budgets(rows)
    if promised:
        made = table_of_promises(promised)
        draws = len(promised) // len(made)
        print(f"\nPromises of how often answers differ from the dearest model's, {draws} each:\n\n{markdown(made)}")
        for line in made.iter_rows(named=True):
            told = f"promises of the difference that are false, {line['method']}: of all draws; at worst"
            record.headline(told, f"{line['false, %']}; {line['at worst, %']} %")


def report_budgets(rows: list[dict]) -> None:
    """Print the tables of what budgets get."""
    splits = sorted({1 + max(row["split"] for row in rows if row["log"] == log) for log in {r["log"] for r in rows}})
    print(f"Splits of each log: {' to '.join(map(str, dict.fromkeys((splits[0], splits[-1]))))}. {unmet(rows)}")
    for group in GROUPS:
        some = [row for row in rows if row["group"] == group]
        for figure, title in FIGURES.items():
            if some:
                print(f"\n{group}: {title}:\n\n{markdown(table(some, figure))}")
    print(f"\nBy log, {FIGURES['error']}:\n\n{markdown(table_of_logs(rows))}")
    headlines(rows)


def options_of() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """The parser and what it read."""
    parser = record.parser(__doc__)
    parser.add_argument("--data", type=Path, help="folder of the logs; without it only sampled ones")
    parser.add_argument("--logs", nargs="+", choices=GROUPS, default=GROUPS[:2], help="which groups of logs")
    parser.add_argument("--only", default="", help="the logs whose name holds this")
    parser.add_argument("--splits", type=at_least(0), default=20, help="of each log; 0: promises alone")
    parser.add_argument("--labels", type=at_least(20), nargs="+", default=[100, 300, 1_000], help="to tune on")
    parser.add_argument("--budgets", type=at_least(1), default=14, help="how many")
    parser.add_argument("--bayesian", action="store_true", help=f"{BAYESIAN} too: most of the time goes there")
    parser.add_argument("--promises", type=at_least(0), default=5, help="splits of each log for promises")
    parser.add_argument("--draws", type=at_least(1), default=10, help="held-out logs drawn for each of them")
    parser.add_argument("--out", type=Path, help="keep the figures of all splits here, as JSON lines")
    parser.add_argument("--kept", type=Path, nargs="+", metavar="FILE", help="rows that earlier runs have kept")
    return parser, parser.parse_args()


def measured(options: argparse.Namespace) -> Iterator[dict]:
    """The rows of all splits, the first split of every log first, then those of promises."""
    splits = [
        split
        for log in sources(options.data, options.logs, options.only, answers=True)
        for split in splits_of(log, options.labels, options.splits)
    ]
    peers = tuple(name for name in PEERS if options.bayesian or name != BAYESIAN)
    yield from study(sorted(splits, key=lambda split: split.split), options.budgets, peers)
    if options.data is not None and options.promises:
        yield from promises(options.data, options.only, options.promises, options.draws)


def main() -> None:
    """Print the tables."""
    parser, options = options_of()
    jax.config.update("jax_enable_x64", True)
    try:
        if options.kept:
            rows = [json.loads(line) for path in options.kept for line in path.read_text("utf-8").splitlines()]
        else:
            rows = collected(measured(options), "{log}, split {split}", options.out)
    except rcjax.LogError as problem:
        parser.error(str(problem))
    if not rows:
        parser.error("no log to split: give --data a folder of {name}_train.csv, and --only a part of a name")
    report([row for row in rows if "error" in row], [row for row in rows if "target" in row])


if __name__ == "__main__":
    record.run(main)
