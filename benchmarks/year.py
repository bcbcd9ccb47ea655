"""A year of weekly `rcjax check` and `rcjax retune`: good policies kept, and policies replaced after a change.

    python -m benchmarks.year --data DIR [--target budget] [--histories 20] [--first 0] [--weeks 52] [--only NAMES]
        [--drifts NAMES] [--arms NAMES] [--partial FILE]

A history tunes a policy for a budget, or for a limit on the error (`--target max_error` or `match`), on 300 queries of
a log. Every week people label some queries, 50 or 100; the policy is checked on the last eight weeks, tuned again on
them and what it carries, and replaced, by the functions that the commands call. From the fourteenth week on something
has changed, or that week's labels are bad. True errors are those of all queries of the log, at the budget; a limit on
the error is drawn between the errors of the single models, and a margin to the dearest model is 1 to 3 points.

Arms: `kept`: the policy of the first day. `remembers 50`, `remembers 100`: as said. `by price 50`: replaced within a
limit on the error as for a budget, at the price of an error. `alone 100`: tuned again on the week alone, replaced if
shown to be better, as it once was, and not checked.

Drifts: `none`; `worse`: the first model that the policy asks answers 15 % of what it answered rightly wrongly; `surer`:
the odds of its confidences are 2.7 times as high; `topics`: queries that the dearest model is unsure of come four times
as often; `easier`, if asked for: a quarter as often; `price`: the dearest model costs 40 %; `poison`: for a week all
answers are labelled right, or at random, or those of the dearest model the other way round.

Histories are written to the file of `--partial` as they end, and those that are there are not done again: so a run goes
on where another ended. Real logs are {name}_train.csv and {name}_test.csv, pooled, and prices.toml in DIR.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.drift import surer
from benchmarks.paper.inputs import pooled
from benchmarks.report import machine, markdown, progress
from rcjax.policy.ladder import with_provenance
from rcjax.policy.policy import AbstractPolicy
from rcjax.policy.spec import recorded_tuning
from rcjax.solving.frontier.points import shares_at_bill
from rcjax.tuning.diagnostics.decision import assess_replacement
from rcjax.tuning.diagnostics.policy_check import check_policy
from rcjax.tuning.diagnostics.weeks import WINDOW
from rcjax.tuning.replaying.replay import LadderReplay
from rcjax.tuning.retuning_gain import held_out_gain

LOGS = ("mmlu_llama", "mmlu_qwen_oai", "triviaqa_llama", "triviaqa_qwen_oai", "public/firstpass_opus", "public/bfcl")
DRIFTS = ("none", "worse", "surer", "topics", "price", "poison")
ARMS = {"kept": 0, "remembers 50": 50, "by price 50": 50, "remembers 100": 100, "alone 100": 100}
TUNED_ON, DRIFTS_AT = 300, 13
_WEEK = 7 * 86_400.0
_WORSE, _SURER, _OFTEN, _CUT = 0.15, 1.0, 4.0, 0.4


class World(NamedTuple):
    """The queries that come."""

    log: rcjax.Log
    weights: np.ndarray  # (n,) how often each comes


class Stock:
    """The queries of a log, dealt one after the other; all of them come once before one comes again."""

    def __init__(self, n: int, rng: np.random.Generator) -> None:
        self.n, self.rng, self.left = n, rng, np.zeros(0, int)

    def deal(self, size: int, weights: np.ndarray | None = None) -> np.ndarray:
        """(size,) positions of queries, each as often as its weight says."""
        if weights is not None:
            return self.rng.choice(self.n, size, replace=False, p=weights / weights.sum())
        if len(self.left) < size:
            self.left = np.concatenate([self.left, self.rng.permutation(self.n)])
        dealt, self.left = self.left[:size], self.left[size:]
        return dealt


def drifted(log: rcjax.Log, drift: str, first: str, rng: np.random.Generator) -> World:
    """What comes after a drift, where a policy asks the model `first` first."""
    j, weights = log.models.index(first), np.ones(log.n_queries)
    if drift == "worse":
        right = np.array(log.correct)
        right[:, j] &= rng.random(len(right)) >= _WORSE
        codes = None if log.answer is None else np.array(log.answer)
        if codes is not None:  # other answers than those of anybody else
            codes[np.asarray(log.correct)[:, j] & ~right[:, j], j] = log.n_queries
        log = dataclasses.replace(log, correct=jax.device_put(right), answer=codes)  # type: ignore[arg-type]
    elif drift == "surer":
        values = np.array(log.logprob)
        values[:, j] = np.asarray(surer(log, _SURER).logprob)[:, j]
        log = dataclasses.replace(log, logprob=jax.device_put(values))
    elif drift == "price":
        cost = np.array(log.query_cost)
        cost[:, -1] *= _CUT
        log = dataclasses.replace(log, query_cost=jax.device_put(cost)).take(slice(None))
    elif drift in ("topics", "easier"):
        sure = np.asarray(log.logprob)[:, -1]
        hard = sure < np.median(sure) if (sure < np.median(sure)).any() else ~np.asarray(log.correct)[:, -1]
        weights = np.where(hard == (drift == "topics"), _OFTEN, 1.0)
    return World(log, weights)


def poisoned(log: rcjax.Log, rng: np.random.Generator) -> rcjax.Log:
    """A week's log with bad labels."""
    right, kind = np.array(log.correct), rng.integers(3)
    if kind == 0:
        right[:] = True
    elif kind == 1:
        right = rng.random(right.shape) < 0.5
    else:
        right[:, -1] ^= True
    return dataclasses.replace(log, correct=jax.device_put(right))


def in_week(world: World, rows: np.ndarray, week: int, start: int) -> rcjax.Log:
    """Queries of a world as the log of a week, with names of their own, numbered from `start`."""
    log = world.log.take(rows)
    names = tuple(f"{week}-{start + i}" for i in range(len(rows)))
    return dataclasses.replace(log, queries=names, time=(_WEEK * (week + 0.5),) * len(rows))


def together(weeks: Sequence[rcjax.Log]) -> rcjax.Log:
    """The logs of some weeks as one, as a folder of them is read."""
    first = weeks[0]
    cells = {
        name: jax.device_put(np.concatenate([np.asarray(getattr(week, name)) for week in weeks]))
        for name in ("logprob", "correct", "query_cost", "answered", "answer")
        if getattr(first, name) is not None
    }
    names, times = (tuple(one for week in weeks for one in getattr(week, of)) for of in ("queries", "time"))
    return dataclasses.replace(first, **cells, queries=names, time=times).take(slice(None))


class Truth(NamedTuple):
    """The figures of a policy in a world."""

    error: float
    cost: float
    over: float  # error above the limit, or above today's and the margin; below 0 within it


def true_figures(policy: AbstractPolicy, world: World) -> Truth:
    """The figures of a policy in a world; a ladder for a budget stands where its rungs cost the budget."""
    rungs, share = LadderReplay.of(policy, world.log), world.weights / world.weights.sum()
    cost, wrong = rungs.spent @ share, rungs.wrong @ share
    weights = np.zeros(len(cost))
    if policy.budget is None:
        weights[[policy.rungs.index(rung) for rung in policy.adjacent_rungs]] = policy.weights
    else:
        weights = shares_at_bill(cost, np.array([policy.budget]))[0]
    error, spec = float(weights @ wrong), recorded_tuning(policy).spec
    todays = 0.0 if spec.match is None else 1 - float(np.asarray(world.log.correct)[:, -1] @ share)
    return Truth(error, float(weights @ cost), error - todays - (spec.max_error or spec.match or 0.0))


def tuned_again(
    policy: AbstractPolicy, week: rcjax.Log, *, remembers: bool, drifted: bool, by_price: bool = False
) -> AbstractPolicy:
    """Return the policy after a week: the new one where `rcjax.tuning.diagnostics.decision` replaces the old."""
    known = policy if remembers else with_provenance(policy, kept_sample=None)
    try:
        tuned = rcjax.retune(known, week, intervals=False)
    except ValueError:  # no policy keeps to the target
        return policy
    new = tuned.policy
    assert new is not None  # as there is a target
    judged = assess_replacement(known, new, week, tuned.log)
    if by_price and judged.saving is not None:
        judged = dataclasses.replace(judged, saving=None, held_out=held_out_gain(known, week))
    if remembers:
        return new if judged.replaces(broken=drifted) else policy
    gain = held_out_gain(known, week)
    return new if gain is not None and not judged.faults and gain.gain.mean > 1.645 * gain.gain.se else policy


@dataclasses.dataclass
class Course:
    """A policy in the course of the weeks: what errs, and by how much a replacement was worse or better."""

    policy: AbstractPolicy
    figures: list[Truth]
    steps: list[float]
    by_price: bool = False
    truth: World | None = None
    weeks: list[rcjax.Log] = dataclasses.field(default_factory=list)
    alarms: list[int] = dataclasses.field(default_factory=list)

    def live(self, week: rcjax.Log | None, truth: World, *, remembers: bool) -> None:
        """One week."""
        before = self.figures[-1] if self.figures and truth is self.truth else true_figures(self.policy, truth)
        self.truth = truth
        if week is not None:
            self.weeks = [*self.weeks, week][-WINDOW:]
            fresh = together(self.weeks) if remembers else week
            drifted = remembers and check_policy(self.policy, fresh, retuning=False).drifted
            self.alarms += [len(self.figures) + 1] if drifted else []
            new = tuned_again(self.policy, fresh, remembers=remembers, drifted=drifted, by_price=self.by_price)
            if new is not self.policy:
                self.policy = new
                after = true_figures(new, truth)
                self.steps.append(after.error - before.error)
                before = after
        self.figures.append(before)

    def copy(self) -> "Course":
        """The same, that goes on by itself."""
        lists = {name: [*getattr(self, name)] for name in ("figures", "steps", "weeks", "alarms")}
        return dataclasses.replace(self, **lists)


def draw_target(target: str, log: rcjax.Log, rng: np.random.Generator) -> dict[str, Any]:
    """A target of a kind for a log, as options of `tune`."""
    if target == "match":
        return {"match": float(rng.choice([0.01, 0.02, 0.03])), "today": log.models[-1]}
    if target == "max_error":
        errors = 1 - np.asarray(log.correct, float).mean(0)
        return {"max_error": float(errors.min() + rng.uniform(0.1, 0.5) * (errors[0] - errors.min()))}
    low, high = np.log([log.cost[0], log.cost[-1]])
    return {"budget": float(np.exp(low + rng.uniform(0.35, 0.9) * (high - low)))}


def history(name: str, log: rcjax.Log, number: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each arm and drift of one history."""
    rng = np.random.default_rng([number, 7])
    stock = Stock(log.n_queries, rng)
    target = draw_target(options.target, log, rng)
    plain = World(log, np.ones(log.n_queries))
    start = in_week(plain, stock.deal(TUNED_ON), 0, 0)
    try:
        policy = rcjax.tune(start, **target, intervals=False).policy
    except ValueError:  # no policy keeps to the target on these queries: no history
        return
    assert policy is not None
    first = max(zip(policy.weights, policy.adjacent_rungs, strict=True), key=lambda part: part[0])[1].first_model
    worlds = {drift: drifted(log, drift, first, np.random.default_rng([number, 8])) for drift in options.drifts}
    draws = [stock.deal(100) for _ in range(DRIFTS_AT)]
    for arm in options.arms:
        size, remembers, spent = ARMS[arm], not arm.startswith("alone"), time.process_time()
        course = Course(policy, [], [], by_price=arm.startswith("by price"))
        for week, rows in enumerate(draws, 1):
            course.live(in_week(plain, rows[:size], week, 0) if size else None, plain, remembers=remembers)
        for drift, world in worlds.items():
            rest, weeks = np.random.default_rng([number, 9, len(drift)]), course.copy()
            later = Stock(log.n_queries, rest)
            for week in range(DRIFTS_AT + 1, options.weeks + 1):
                rows = later.deal(100, world.weights if drift in ("topics", "easier") else None)
                fresh = in_week(world, rows[:size], week, 0) if size else None
                if fresh is not None and drift == "poison" and week == DRIFTS_AT + 1:
                    fresh = poisoned(fresh, rest)
                weeks.live(fresh, world, remembers=remembers)
            errors, bills, over = map(list, zip(*weeks.figures, strict=True))
            yield {"log": name, "history": number, "arm": arm, "drift": drift, "errors": errors, "bills": bills} | {
                "over": over,
                "steps": weeks.steps,
                "alarms": weeks.alarms,
                "seconds": time.process_time() - spent,
            }
            spent = time.process_time()


def read(folder: Path, name: str) -> rcjax.Log:
    """A log by its name."""
    if name == "public/bfcl":
        return rcjax.read_log(folder / "public/bfcl2024_calls.csv")
    if name.startswith("public/"):
        return rcjax.read_log(folder / f"{name}.csv")
    return dataclasses.replace(pooled(folder, name)[0], seconds=None)


def table(rows: list[dict[str, Any]], weeks: int) -> str:
    """By drift and arm: error after the drift, beside keeping the policy; years with a bad step; the worst step."""
    kept = {(row["log"], row["history"], row["drift"]): row for row in rows if row["arm"] == "kept"}
    shown = []
    for drift in dict.fromkeys(row["drift"] for row in rows):
        for arm in dict.fromkeys(row["arm"] for row in rows):
            some = [row for row in rows if (row["drift"], row["arm"]) == (drift, arm)]
            pairs = [(row, kept.get((row["log"], row["history"], drift))) for row in some]
            gaps = [
                100 * (np.mean(row["errors"][DRIFTS_AT:]) - np.mean(base["errors"][DRIFTS_AT:]))
                for row, base in pairs
                if base is not None
            ]
            if arm == "kept" or not gaps:
                continue
            worst = [100 * max([*row["steps"], 0.0]) for row in some]
            alarms = [(min([*row["alarms"], 99]), max([*row["alarms"], 0])) for row in some]
            shown.append(
                {
                    "drift": drift,
                    "arm": arm,
                    "years": len(some),
                    "error beside kept, points": f"{np.mean(gaps):+.2f} ± {np.std(gaps) / np.sqrt(len(gaps)):.2f}",
                    "worst": f"{max(gaps):+.1f}",
                    "replaced a year": f"{np.mean([len(row['steps']) for row in some]):.1f}",
                    "years with a step of +1 point": f"{100 * np.mean([one > 1 for one in worst]):.0f} %",
                    "worst step": f"{max(worst):+.1f}",
                    "alarm before": f"{100 * np.mean([one <= DRIFTS_AT for one, _ in alarms]):.0f} %",
                    "after": f"{100 * np.mean([one > DRIFTS_AT for _, one in alarms]):.0f} %",
                }
            )
    return markdown(pl.DataFrame(shown))


def limit_table(rows: list[dict[str, Any]]) -> str:
    """By drift and arm: money after the drift, beside keeping the policy; errors above the limit; replacements."""
    kept = {(row["log"], row["history"], row["drift"]): row for row in rows if row["arm"] == "kept"}
    shown = []
    for drift, arm in dict.fromkeys((row["drift"], row["arm"]) for row in rows):
        some = [row for row in rows if (row["drift"], row["arm"]) == (drift, arm)]
        bases = [kept[row["log"], row["history"], drift] for row in some]
        bills = [[np.mean(row["bills"][DRIFTS_AT:]) for row in each] for each in (some, bases)]
        change, over = 100 * (np.divide(*bills) - 1), 100 * np.array([row["over"][DRIFTS_AT:] for row in some])
        shown.append(
            {
                "drift": drift,
                "arm": arm,
                "years": len(some),
                "money beside kept, %": f"{change.mean():+.1f} ± {change.std() / np.sqrt(len(some)):.1f}",
                "error minus limit, points": f"{over.mean():+.2f}",
                "above the limit, points": f"{over.clip(0).mean():.2f}",
                "weeks over by a point": f"{100 * (over > 1).mean():.0f} %",
                "years that end over by a point": f"{100 * (over[:, -1] > 1).mean():.0f} %",
                "worst end": f"{over[:, -1].max():+.1f}",
                "replaced a year": f"{np.mean([len(row['steps']) for row in some]) * 52 / len(some[0]['errors']):.1f}",
            }
        )
    return markdown(pl.DataFrame(shown))


def main() -> None:
    parser = record.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with real logs")
    parser.add_argument("--target", choices=("budget", "max_error", "match"), default="budget")
    parser.add_argument("--histories", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first history")
    parser.add_argument("--weeks", type=int, default=52)
    parser.add_argument("--only", type=lambda text: text.split(","), default=LOGS)
    parser.add_argument("--drifts", type=lambda text: text.split(","), default=DRIFTS)
    arms = ("kept", "remembers 50", "remembers 100", "alone 100")
    parser.add_argument("--arms", type=lambda text: text.split(","), default=arms)
    parser.add_argument("--partial", type=Path, help="file for the histories so far")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    kept: Path | None = options.partial
    known = [json.loads(line) for line in kept.read_text().splitlines()] if kept and kept.exists() else []
    rows = [row for row in known if row["log"] in options.only and row["arm"] in options.arms]
    done = {(row["log"], row["history"]) for row in rows}
    logs = {name: read(options.data, name) for name in options.only}
    for number in range(options.first, options.first + options.histories):
        for name, log in logs.items():
            if (name, number) in done:
                continue
            progress(f"history {number}, {name}")
            new = [*history(name, log, number, options)]
            rows += new
            if kept:
                with kept.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in new)
    seconds = sum(row["seconds"] for row in rows) / max(len(rows), 1)
    print(f"{machine()} {len(rows)} years of {options.weeks} weeks, {seconds:.1f} CPU seconds each.\n")
    print(table(rows, options.weeks) if options.target == "budget" else limit_table(rows))


if __name__ == "__main__":
    record.run(main)
