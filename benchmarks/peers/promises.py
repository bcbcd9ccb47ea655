"""Where a method promises how often a policy answers other than the dearest model: how often is that false?

Harness of `benchmarks.reference`: 150 queries to choose models with, 150 labels drawn with replacement from the others
to choose a threshold with, and the others as the population, where the truth is known exactly. Two promise with 95 %
confidence, BARGAIN and `rcjax.certify`; UCCI and agreement-based cascading keep to what they estimate.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

import rcjax
from benchmarks.guarantee import Truth, certified, share
from benchmarks.methods import Columns
from benchmarks.peers.abc import SIZES, answered, safe_share, votes
from benchmarks.peers.bargain import thresholds_for
from benchmarks.peers.ucci import isotonic
from benchmarks.reference import CONFIDENCE, FITTED, HELD_OUT, TARGETS, by_differences
from benchmarks.report import progress

#: What a policy does on a log: how often it differs, and its mean bill.
Rule = Callable[[Columns], tuple[float, float]]
#: Labels to choose models with, labels to choose a threshold with, and the share that may differ; None: no promise.
Promiser = Callable[[Columns, Columns, float], Rule | None]
RCJAX = "`rcjax.certify`, 95 %"


def _pair(small: int, threshold: float) -> Rule:
    """The dearest model answers what a smaller one is as confident of as a threshold, or less."""

    def rule(data: Columns) -> tuple[float, float]:
        passed = data.logprob[:, small] <= threshold
        return float((~passed * data.wrong[:, small]).mean()), float(
            (data.cost[:, small] + passed * data.cost[:, -1]).mean()
        )

    return rule


def _by_threshold(choose: Callable[[np.ndarray, np.ndarray, float], float]) -> Promiser:
    """The small model is the one whose policy is billed least where models are chosen; its threshold is of the others.

    Args:
        choose: confidences, whether answers differ, and the share that may: the threshold.
    """

    def promiser(train: Columns, held: Columns, limit: float) -> Rule | None:
        small = min(
            range(train.wrong.shape[1] - 1),
            key=lambda j: _pair(j, choose(train.logprob[:, j], train.wrong[:, j], limit))(train)[1],
        )
        threshold = choose(held.logprob[:, small], held.wrong[:, small], limit)
        return None if threshold == np.inf else _pair(small, threshold)

    return promiser


def by_bargain(confidence: np.ndarray, differs: np.ndarray, limit: float) -> float:
    """BARGAIN's threshold."""
    return float(thresholds_for(confidence, differs, np.array([1 - limit]), 1 - CONFIDENCE)[0])


def by_ucci(confidence: np.ndarray, differs: np.ndarray, limit: float) -> float:
    """UCCI's: the least at which the calibrated probabilities of what is kept come to the limit at most."""
    order = np.argsort(confidence, kind="stable")
    values, risk = isotonic(confidence[order], differs[order])
    counts = np.unique(confidence, return_counts=True)[1]
    above = np.append(np.cumsum((risk * counts)[::-1])[::-1] / len(confidence), 0.0)
    place = int(np.argmax(above <= limit))
    return float(np.append(-np.inf, values)[place])


def by_agreement(train: Columns, held: Columns, limit: float) -> Rule | None:
    """The ensemble before the dearest model that is billed least, with the share of votes that is safe."""
    last = train.wrong.shape[1] - 1
    ensembles = [e for size in SIZES for e in itertools.combinations(range(last), size)]

    def bill(tier: tuple[int, ...]) -> float:
        return answered(train, (tier, (last,)), [safe_share(votes(train, tier), limit)])[1]

    if not ensembles:
        return None
    tier = min(ensembles, key=bill)
    theta = safe_share(votes(held, tier), limit)
    return None if theta >= 1 else lambda data: answered(data, (tier, (last,)), [theta])


PROMISERS: dict[str, Promiser] = {
    "BARGAIN, 95 %": _by_threshold(by_bargain),
    "UCCI, as it estimates": _by_threshold(by_ucci),
    "agreement-based cascading, as it estimates": by_agreement,
}


def promises(folder: Path, only: str, splits: int, draws: int) -> Iterator[dict]:
    """A row for each log, split, draw, target and method: whether something was promised, and whether it was false."""
    for path in sorted(folder.glob("*_train_answers.csv")):
        name = path.name.removesuffix("_train_answers.csv")
        if only not in name:
            continue
        log = by_differences(folder, name)
        for split in range(splits):
            progress(f"promises, {name}: split {split + 1} of {splits}")
            order = np.random.default_rng((48, split)).permutation(log.n_queries)
            train, population = (log.take(np.sort(part)) for part in np.split(order, [FITTED]))
            for row in _of_split(train, population, split, draws):
                yield {"log": name, "split": split} | row


def _of_split(train: rcjax.Log, population: rcjax.Log, split: int, draws: int) -> Iterator[dict]:
    frontier = rcjax.tuning.select_frontier(train).frontier
    true, rng = Truth.of(frontier, population), np.random.default_rng((1, split))
    fitted, whole = Columns.of(train), Columns.of(population)
    dearest = whole.cost[:, -1].mean()
    for _ in range(draws):
        log = population.take(rng.integers(population.n_queries, size=HELD_OUT))
        held = Columns.of(log)
        for target in TARGETS:
            position = certified(frontier, log, max_error=target, confidence=CONFIDENCE)
            came: dict[str, tuple[float, float] | None] = {RCJAX: None if position is None else true.at(position)}
            for name, promiser in PROMISERS.items():
                rule = promiser(fitted, held, target)
                came[name] = None if rule is None else rule(whole)
            for name, figures in came.items():
                cost = 1.0 if figures is None else figures[1] / dearest
                false = figures is not None and figures[0] > target
                yield {"target": target, "method": name, "made": figures is not None, "false": false, "cost": cost}


def table_of_promises(rows: list[dict]) -> pl.DataFrame:
    """A line for each method, most often false first: promises made and false, the worst log and target, the bill."""
    frame, lines = pl.DataFrame(rows), []
    for (method,), group in frame.group_by(["method"], maintain_order=True):
        worst = group.group_by(["log", "target"], maintain_order=True).agg(pl.col("false").mean()).sort("false")
        log, target, most = worst.row(-1)
        line = {"method": method, "made, %": share(group["made"]), "false, %": share(group["false"])}
        line |= {"at worst, %": f"{100 * most:.0f} ({log}, at most {100 * target:.0f} %)"}
        lines.append(line | {"bill, % of the dearest": f"{100 * group['cost'].to_numpy().mean():.0f}"})
    return pl.DataFrame(lines).sort(pl.col("false, %").str.extract(r"^([\d.]+)").cast(float), descending=True)
