"""The policy for a budget: the default of `rcjax tune` against a plain pair, on queries that nothing was tuned on.

    python -m benchmarks.budgets --data DIR [--splits 20] [--labels 100 300 1000] [--targets 14 10 10] [--out FILE]

The logs are every {name}_train.csv of DIR, together with {name}_test.csv if there is one; the logs in DIR/public, or
all files of a DIR without either; and three logs sampled from the demo's model, with 10,000 other queries each.
`--logs` takes some of these logs, `--only` the logs whose name holds a text. Each random split tunes on so many labels,
at most half of the log. The other queries show what a user gets: the errors and the bill of one policy for one target.

Targets come from the single models on the labels: budgets from the cheapest model's bill to the dearest's, by equal
ratios; errors from the best model's to the worst's, by equal steps; prices of an error from 10 to 1,000 times the cost
of an answer, by equal ratios. The methods are the default; `--cascade all`; the best single model by the labels; and
the baseline of all, a plain pair: the best single model or pair on the labels, with any confidence as its threshold. A
method is compared over the targets that it and the plain pair both meet on the labels; the other targets are counted. ±
is one standard error over splits, which share queries.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.agreement import read_whole
from benchmarks.methods import BILL, ERROR, LABELS_BILL, LABELS_ERROR, plain_pairs, policy_for
from benchmarks.paper.inputs import pooled, resplit
from benchmarks.report import collected, machine, markdown, with_error
from rcjax.tuning.tune import with_bills

FOLDER, PUBLIC, SAMPLED = GROUPS = ("data", "public", "sampled")
DRAWS, FRESH, FRESH_SEED = 3, 10_000, 99
DEFAULT, ALL, SINGLE, PLAIN = WAYS = ("default", "--cascade all", "single model", "plain pair")
TARGETS = "budget", "max_error", "error_cost"
OVERSPENT, MISSED = 0.03, 0.01  # of the budget; of the queries
AMONG = 1e-9  # a limit is met within this relative rounding, as `Frontier` has it
N_LAM = 10, 1_000  # an error, in answers

#: How a way answers a target by its name and value: a row of figures. Raises InfeasibleError.
Way = Callable[[str, float], np.ndarray]


class Figure(NamedTuple):
    """A figure of every split and way: what it is called, and whether it is relative to the plain pair."""

    title: str
    relative: bool = True


FIGURES = {
    "error": Figure("Budgets: mean error against the plain pair, per cent"),
    "worst": Figure("Budgets: error at the worst budget above the plain pair's, points"),
    "used": Figure("Budgets: share used, per cent", relative=False),
    "overspent": Figure(f"Budgets: overspent by more than {100 * OVERSPENT:g} %, per cent of them", relative=False),
    "bill": Figure("Errors: mean bill against the plain pair, per cent"),
    "missed": Figure(f"Errors: missed by more than {100 * MISSED:g} point, per cent of them", relative=False),
    "loss": Figure("Prices: mean error + bill/price against the plain pair, per cent"),
    "beaten": Figure("Prices: a single model errs less and costs less, per cent of them", relative=False),
    "beaten on the labels": Figure("Prices: the same on the log tuned on, per cent of them", relative=False),
}


class Source(NamedTuple):
    """A log to split, or, without one, the demo's model to sample."""

    group: str
    name: str
    log: rcjax.Log | None


class Split(NamedTuple):
    """One thing to measure: so many labels were asked for, and `queries` are there."""

    source: Source
    labels: int
    queries: int
    split: int

    def logs(self) -> tuple[rcjax.Log, rcjax.Log]:
        """The log to tune on and the one to judge by, models in the order of their bills on the first."""
        if self.source.log is None:
            train, test = rcjax.sample_log(self.queries, seed=self.split), rcjax.sample_log(FRESH, seed=FRESH_SEED)
        else:
            train, test = resplit(self.source.log, self.queries, self.split)
        order = np.argsort(np.asarray(train.query_cost, float).mean(0), kind="stable")
        names = [train.models[j] for j in order]
        return train.select(names), test.select(names)


def sources(folder: Path | None, groups: Sequence[str], only: str, answers: bool = False) -> Iterator[Source]:
    """The logs of some groups whose name holds a text, with their `answers`; LogError for a folder without any."""
    if folder is not None:
        trained = sorted(folder.glob("*_train.csv")) if FOLDER in groups else []
        bare = not (trained or (folder / "public").exists())
        public = sorted((folder if bare else folder / "public").glob("*.csv")) if PUBLIC in groups else []
        if not trained and not public and {FOLDER, PUBLIC} & {*groups}:
            raise rcjax.LogError(f"{folder} holds no log: neither NAME_train.csv nor public/NAME.csv")
        for name in (path.name.removesuffix("_train.csv") for path in trained):
            if only in name:
                told = answers and (folder / f"{name}_train_answers.csv").exists()
                yield _answered(FOLDER, name, read_whole(folder, name) if told else pooled(folder, name)[0])
        for path in public:
            if only in path.stem:
                yield _answered(PUBLIC, path.stem, rcjax.read_log(path))
    if SAMPLED in groups and only in SAMPLED:
        yield Source(SAMPLED, SAMPLED, None)


def _answered(group: str, name: str, log: rcjax.Log) -> Source:
    """A log with the queries that every model answered, on which all ways can be held to each other."""
    if missing := int((~log.complete).sum()):
        left_out = f"{missing:,} {'is' if missing == 1 else 'are'} left out: some model did not answer"
        print(f"{name}: of {log.n_queries:,} queries {left_out}", file=sys.stderr)
    return Source(group, name, log.take(log.complete))


def splits_of(source: Source, labels: list[int], splits: int) -> Iterator[Split]:
    """The splits of a log; numbers of labels that come to the same half of it are measured once, as the smallest."""
    most = None if source.log is None else source.log.n_queries // 2
    sizes: dict[int, int] = {}
    for wanted in sorted({*labels}):
        sizes.setdefault(wanted if most is None else min(wanted, most), wanted)
    for repeated in sorted({*labels} - {*sizes.values()}):
        print(f"{source.name}: {repeated:,} labels are not there, half of its queries are {most:,}", file=sys.stderr)
    for queries, wanted in sizes.items():
        for split in range(splits if most is not None else min(splits, DRAWS)):
            yield Split(source, wanted, queries, split)


def replayed(policies: Any, train: rcjax.Log, test: rcjax.Log) -> np.ndarray:
    """(…, 4) figures of a policy, or every policy of a frontier."""
    both = [rcjax.replay(policies, log) for log in (train, test)]
    return np.stack([np.asarray(x, float) for seen in both for x in (seen.error, seen.spent)], axis=-1)


def by_labels(points: np.ndarray) -> Way:
    """The best of (P, 4) figures for a target, as they are on the labels."""
    error, bill = points[:, LABELS_ERROR], points[:, LABELS_BILL]

    def choose(target: str, value: float) -> np.ndarray:
        if target == "error_cost":
            return points[np.argmin(error + bill / value)]
        limited, least = (bill, error) if target == "budget" else (error, bill)
        met = np.flatnonzero(limited <= value * (1 + AMONG))
        if not met.size:
            raise rcjax.InfeasibleError(f"no single model or pair meets {target} {value:g}")
        return points[met[np.lexsort((limited[met], least[met]))[0]]]

    return choose


def by_policy(frontier: rcjax.Frontier, train: rcjax.Log, test: rcjax.Log) -> Way:
    """What the policy of a frontier for a target has: of a ladder, the rungs on either side of its position."""
    points, cost = replayed(frontier, train, test), np.asarray(frontier.cost, float)

    def choose(target: str, value: float) -> np.ndarray:
        policy = frontier.policy(**{target: value})
        places = [int(np.abs(cost - rung.expected["cost"]).argmin()) for rung in policy.adjacent_rungs]
        return np.array(policy.weights) @ points[places]

    return choose


def ways_of(train: rcjax.Log, test: rcjax.Log, plain: np.ndarray) -> dict[str, Way]:
    """All ways by name, the log tuned once for each kind of target: `rcjax.tune` takes its policy from that."""
    # A budget above the cost of asking every model would be refused.
    loose: dict[str, Any] = dict.fromkeys(TARGETS, 1e9) | {"budget": float(np.max(train.cost))}
    default = {target: rcjax.tune(train, intervals=False, **{target: loose[target]}).frontier for target in TARGETS}
    chosen = {target: by_policy(frontier, train, test) for target, frontier in default.items()}
    modelled = rcjax.tune(train, cascade="all", intervals=False)
    return {
        DEFAULT: lambda target, value: chosen[target](target, value),
        ALL: by_policy(with_bills(modelled.frontier, modelled.replayed)[0], train, test),
        SINGLE: by_labels(plain[: len(train.models)]),
        PLAIN: by_labels(plain),
    }


def targets_of(singles: np.ndarray, counts: list[int]) -> dict[str, np.ndarray]:
    """Budgets, errors and prices of an error by (k, 4) figures of the single models: so many of each."""
    error, bill = singles[:, LABELS_ERROR], singles[:, LABELS_BILL]
    if not bill.any():
        raise rcjax.LogError("no answer of it costs anything, so there is no budget to keep to: give its costs")
    budgets, errors, prices = counts
    values = (
        np.geomspace(bill[bill > 0].min(), bill.max(), budgets),
        np.linspace(error.min(), error.max(), errors),
        bill.mean() * np.geomspace(*N_LAM, prices),
    )
    return dict(zip(TARGETS, values, strict=True))


def measure(train: rcjax.Log, test: rcjax.Log, counts: list[int]) -> dict[str, dict[str, Any]]:
    """Every figure of one split by way, None where no target was met; how many targets were not, as "unmet"."""
    plain = plain_pairs(train, test)
    singles = plain[: len(train.models)]
    ways = ways_of(train, test, plain)
    row: dict[str, dict[str, Any]] = {figure: {} for figure in (*FIGURES, "unmet")}
    for target, values in targets_of(singles, counts).items():
        taking = [way for way in WAYS if values.size]
        policies = {way: np.array([policy_for(ways[way], target, float(value)) for value in values]) for way in taking}
        for way, policy in policies.items():
            for figure, value in JUDGES[target](policy, policies[PLAIN], values, singles).items():
                row[figure][way] = None if np.isnan(value) else float(value)
            row["unmet"][way] = row["unmet"].get(way, 0) + int(np.isnan(policy[:, ERROR]).sum())
    return row


def judge_budgets(policy: np.ndarray, plain: np.ndarray, budgets: np.ndarray, _: np.ndarray) -> dict[str, float]:
    """Of (B, 4) policies for budgets and the plain pair's: error against it, and how the budgets were used."""
    met = ~np.isnan(policy[:, ERROR])
    both = met & ~np.isnan(plain[:, ERROR])
    used = policy[met, BILL] / budgets[met]
    above = policy[both, ERROR] - plain[both, ERROR]
    return {
        "error": _relative(policy[both, ERROR], plain[both, ERROR]),
        "worst": 100 * float(above.max(initial=-np.inf)) if both.any() else np.nan,
        "used": 100 * _mean(used),
        "overspent": 100 * _mean(used > 1 + OVERSPENT),
    }


def judge_errors(policy: np.ndarray, plain: np.ndarray, errors: np.ndarray, _: np.ndarray) -> dict[str, float]:
    """Of policies for an error at most: bill against the plain pair, and how many break it."""
    met = ~np.isnan(policy[:, ERROR])
    both = met & ~np.isnan(plain[:, ERROR])
    broken = policy[met, ERROR] > errors[met] + MISSED
    return {"bill": _relative(policy[both, BILL], plain[both, BILL]), "missed": 100 * _mean(broken)}


def judge_prices(policy: np.ndarray, plain: np.ndarray, prices: np.ndarray, singles: np.ndarray) -> dict[str, float]:
    """Of policies for prices of an error: errors and money in all, and how many a single model beats in both."""
    loss, plain_loss = (figures[:, ERROR] + figures[:, BILL] / prices for figures in (policy, plain))

    def beaten(*axes: int) -> np.ndarray:
        return np.all([singles[:, axis] < policy[:, axis, None] - AMONG * singles[:, axis] for axis in axes], 0).any(1)

    return {
        "loss": _relative(loss, plain_loss),
        "beaten": 100 * _mean(beaten(ERROR, BILL)),
        "beaten on the labels": 100 * _mean(beaten(LABELS_ERROR, LABELS_BILL)),
    }


JUDGES = {"budget": judge_budgets, "max_error": judge_errors, "error_cost": judge_prices}


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else np.nan


def _relative(values: np.ndarray, others: np.ndarray) -> float:
    """Per cent by which one mean is above another; NaN where there is none, or nothing to be above."""
    return 100 * (values.mean() / others.mean() - 1) if values.size and others.mean() else np.nan


def study(splits: list[Split], counts: list[int]) -> Iterator[dict[str, Any]]:
    """A row for each split."""
    for split in splits:
        names = {"group": split.source.group, "log": split.source.name, "labels": split.labels}
        try:
            yield names | {"queries": split.queries, "split": split.split} | measure(*split.logs(), counts)
        except rcjax.LogError as problem:
            raise rcjax.LogError(
                f"{split.source.name}, {split.labels} labels, split {split.split}: {problem}"
            ) from None


def values_of(rows: list[dict], figure: str, way: str) -> np.ndarray:
    """A figure of a way, of each split; over several logs, the mean of the logs that have it."""
    values = [(row["split"], row[figure][way]) for row in rows if row[figure].get(way) is not None]
    return np.array([np.mean([value for split, value in values if split == s]) for s in sorted({s for s, _ in values})])


def words(rows: list[dict], figure: str, way: str) -> str:
    """A figure of a way with its standard error over splits."""
    return with_error(values_of(rows, figure, way), "+" if FIGURES[figure].relative else "")


def table(rows: list[dict], figure: str) -> pl.DataFrame:
    """A figure by labels, log and way, and the mean of the logs of the folder."""
    ways = [way for way in WAYS if not (way == PLAIN and FIGURES[figure].relative)]
    lines = []
    for labels in sorted({row["labels"] for row in rows}):
        same = [row for row in rows if row["labels"] == labels]
        groups = {name: [row for row in same if row["log"] == name] for name in dict.fromkeys(r["log"] for r in same)}
        folder = [row for row in same if row["group"] == FOLDER]
        if len({row["log"] for row in folder}) > 1:
            groups["mean of the logs of the folder"] = folder
        for name, group in groups.items():
            queries, splits = sorted({row["queries"] for row in group}), len({row["split"] for row in group})
            tuned_on = " to ".join(f"{n:,}" for n in dict.fromkeys((queries[0], queries[-1])))
            line = {"labels": f"{labels:,}", "log": name, "tuned on": tuned_on, "splits": splits}
            lines.append(line | {way: words(group, figure, way) for way in ways})
    return pl.DataFrame(lines)


def unmet(rows: list[dict]) -> str:
    """How many targets each way left unmet, in a sentence."""
    ways = ", ".join(f"{way} {sum(row['unmet'].get(way, 0) for row in rows):,}" for way in WAYS)
    return (
        f"Budgets and errors that a way has no policy for, in all splits: {ways}. They count for none of its figures."
    )


def headlines(rows: list[dict]) -> None:
    """What the page shows."""
    groups = {group: [row for row in rows if row["group"] == group] for group in GROUPS}

    def show(what: str, some: list[dict], figure: str, *ways: str) -> None:
        if any(values_of(some, figure, way).size for way in ways):
            record.headline(what, ", ".join(_cells(some, figure, *ways)))

    first, against = "logs with log-probabilities: ", "the default against a plain pair"
    folder = groups[FOLDER]
    show(f"{first}error that budgets get, {against}", folder, "error", DEFAULT)
    for way, name in ((ALL, f"`{ALL}`"), (SINGLE, "the best single model")):
        show(f"{first}the same by {name}", folder, "error", way)
    for name in dict.fromkeys(row["log"] for row in groups[PUBLIC]):
        some = [row for row in rows if row["log"] == name]
        show(f"{name}: error that budgets get, {against}", some, "error", DEFAULT)
    what = "sampled logs: error at the worst budget, the default above a plain pair, highest of the samples"
    show(what, groups[SAMPLED], "worst", DEFAULT)
    show(f"{first}share of the budget spent, the default; a plain pair", folder, "used", DEFAULT, PLAIN)
    above = f"overspent by more than {100 * OVERSPENT:g} %"
    show(f"{first}budgets {above}, the default; a plain pair", folder, "overspent", DEFAULT, PLAIN)
    show(f"{first}bill for an error at most, {against}", folder, "bill", DEFAULT)
    broken = f"missed by more than {100 * MISSED:g} point"
    show(f"{first}such errors {broken}, the default; a plain pair", folder, "missed", DEFAULT, PLAIN)
    show(f"{first}error + bill/price, {against}", folder, "loss", DEFAULT)
    beaten = f"{first}prices at which a single model errs less and costs less, than the default; than a plain pair"
    show(beaten, folder, "beaten", DEFAULT, PLAIN)
    show(f"{first}the same on the log tuned on", folder, "beaten on the labels", DEFAULT, PLAIN)


def _cells(rows: list[dict], figure: str, *ways: str) -> Iterator[str]:
    """A figure of some ways for each number of labels, with the number of logs where they are several."""
    for labels in sorted({row["labels"] for row in rows}):
        same = [row for row in rows if row["labels"] == labels]
        logs = len({row["log"] for row in same})
        if figure == "worst":
            texts = [f"{values_of(same, figure, way).max(initial=-np.inf):+.2f} points" for way in ways]
        else:
            texts = [f"{words(same, figure, way)} %" for way in ways]
        yield f"{'; '.join(texts)} ({labels:,} labels{f', {logs} logs' if logs > 1 else ''})"


def at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return number


def options_of() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """The parser and what it read."""
    parser = record.parser(__doc__)
    parser.add_argument("--data", type=Path, help="folder of the logs; without it only sampled ones")
    parser.add_argument("--logs", nargs="+", choices=GROUPS, default=GROUPS, help="which groups of logs")
    parser.add_argument("--only", default="", help="the logs whose name holds this")
    parser.add_argument("--splits", type=at_least(1), default=20, help=f"of each log; sampled: at most {DRAWS}")
    parser.add_argument("--labels", type=at_least(20), nargs="+", default=[100, 300, 1_000], help="to tune on")
    words = ("BUDGETS", "ERRORS", "N_LAM")
    parser.add_argument("--targets", type=at_least(0), nargs=3, default=[14, 10, 10], metavar=words, help="how many")
    parser.add_argument("--out", type=Path, help="keep the figures of all splits here, as JSON lines")
    return parser, parser.parse_args()


def main() -> None:
    """Print the tables."""
    parser, options = options_of()
    jax.config.update("jax_enable_x64", True)
    try:
        logs = sources(options.data, options.logs, options.only)
        splits = [split for log in logs for split in splits_of(log, options.labels, options.splits)]
        if not splits:
            parser.error("no log to split: give --data a folder of {name}_train.csv, and --only a part of a name")
        rows = collected(
            study(splits, options.targets), "{log}, {labels} labels, split {split}", options.out, len(splits)
        )
    except rcjax.LogError as problem:
        parser.error(str(problem))
    budgets, errors, prices = options.targets
    print(f"{machine()} {budgets} budgets, {errors} errors, {prices} prices of an error. {unmet(rows)}")
    for name, figure in FIGURES.items():
        if any(row[name] for row in rows):
            print(f"\n{figure.title}:\n\n{markdown(table(rows, name))}")
    headlines(rows)


if __name__ == "__main__":
    record.run(main)
