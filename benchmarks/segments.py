"""Do segments under one budget gain where they differ, and cost nothing where they do not?

    python -m benchmarks.segments [--samples 12] [--data FOLDER] [--out FILE]
    python -m benchmarks.segments --same --samples 40

Logs of the demo's model, whose queries are dealt to segments at random. In some cases nothing differs between them; in
others some models answer worse, or better, in one segment: their labels there are changed, and their confidences are
not. `rcjax.tune_segments` is held to one policy for all, which `rcjax.tune` finds on the same log, on 16,000 fresh
queries. Figures are in per cent of the loss, error + λ·cost, of one policy for all: mean over twelve prices of an
error; and of its error, mean over five budgets. Below 0 is better. At budgets, `over budget` is how far what was spent
lies above them (below 0 where no policy spends all), `cost` and `error`, how far they lie above what was expected. ± is
one standard error over logs.

With a folder of real logs (mmlu_llama_test.csv, mmlu_subjects.csv and prices.toml), the same on random halves of MMLU
by groups of subjects that follow one another in their numbering, where nobody knows the truth.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.report import collected, machine, markdown, with_error
from rcjax.policy.targets import Target
from rcjax.tuning.segment_budget import allocate
from rcjax.tuning.segment_frontiers import queries_of
from rcjax.tuning.tuned_segments import TunedSegments


class Case(NamedTuple):
    """Segments that differ in one way."""

    name: str
    shares: tuple[float, ...]
    worse: tuple[int, ...] = ()  # models half of whose right answers are wrong in the last segment
    better: tuple[int, ...] = ()  # models half of whose wrong answers are right in the first segment


CASES = (
    Case("three segments, no difference", (0.5, 0.3, 0.2)),
    Case("ten segments, no difference", (0.1,) * 10),
    Case("all but the largest model are worse in one of three", (0.5, 0.3, 0.2), worse=(0, 1, 2, 3)),
    Case("one small model is worse in one half, another better in the other", (0.5, 0.5), worse=(2,), better=(1,)),
    Case("all but the largest model are worse in one of ten", (0.1,) * 10, worse=(0, 1, 2, 3)),
)
SIZES = (300, 1_000, 3_000)
FRESH = 16_000
ERROR_COSTS = np.geomspace(1e-4, 1e-2, 12)
BUDGETS = np.array([50, 100, 150, 200, 300]) * 1e-6
GROUPS = (3, 6)


def simulate(n: int, case: Case, seed: int) -> rcjax.Log:
    """A log of the demo's models with segments."""
    log, rng = rcjax.sample_log(n, seed=seed), np.random.default_rng([seed, 1])
    segment = rng.choice(len(case.shares), n, p=case.shares)
    right, chance = np.array(log.correct), rng.random((n, len(log.models)))
    models = np.arange(len(log.models))
    worse = (segment == len(case.shares) - 1)[:, None] & np.isin(models, case.worse) & (chance < 0.5)
    better = (segment == 0)[:, None] & np.isin(models, case.better) & (chance < 0.5)
    changed = jax.numpy.asarray((right & ~worse) | better)
    return dataclasses.replace(log, correct=changed, by="segment", segment=tuple(f"s{i}" for i in segment))


class Figures(NamedTuple):
    """Error and cost at each target, on fresh queries or as expected."""

    error: np.ndarray
    cost: np.ndarray


def on_fresh(tuned: TunedSegments, fresh: rcjax.Log, targets: list[Target]) -> tuple[Figures, Figures, Figures]:
    """(of the segments' policies, as expected of them, of one policy for all), at each target."""
    menus, parts = [traffic.menu for traffic in tuned.traffics], []
    for traffic in tuned.traffics:
        rows = queries_of(fresh, *traffic.names)
        replayed = rcjax.replay(traffic.frontier, fresh.take(rows))
        parts.append((len(rows) / fresh.n_queries, np.asarray(replayed.error), np.asarray(replayed.cost)))
    whole = rcjax.replay(tuned.whole.frontier, fresh)
    own, told, one = [], [], []
    expected = [(menu.share, menu.error, menu.cost) for menu in menus]
    for target in targets:
        positions = allocate(menus, target).positions
        own.append(_sums(list(zip(parts, positions, strict=True))))
        told.append(_sums(list(zip(expected, positions, strict=True))))
        position = tuned.whole.frontier.choose(**target.to_json())
        one.append((float(whole.error[position]), float(whole.cost[position])))
    return Figures(*np.array(own).T), Figures(*np.array(told).T), Figures(*np.array(one).T)


def _sums(chosen: list[Any]) -> tuple[float, float]:
    error = sum(share * float(errors[place]) for (share, errors, _), place in chosen)
    return error, sum(share * float(costs[place]) for (share, _, costs), place in chosen)


def compare(log: rcjax.Log, fresh: rcjax.Log) -> dict[str, Any]:
    """What the segments change, on fresh queries."""
    tuned = rcjax.tune_segments(log, error_cost=1e-3, intervals=False)
    priced, _, one = on_fresh(tuned, fresh, [Target("error_cost", float(value)) for value in ERROR_COSTS])
    loss, before = (figures.error + figures.cost / ERROR_COSTS for figures in (priced, one))
    budgets = [float(value) for value in BUDGETS if value > float(np.min(tuned.whole.frontier.cost)) * 1.05]
    own, told, other = on_fresh(tuned, fresh, [Target("budget", value) for value in budgets])
    return {
        "change": float(100 * np.mean(loss / before - 1)),
        "budgets": float(100 * np.mean(own.error / other.error - 1)),
        "spent": float(100 * np.mean(own.cost / np.array(budgets) - 1)),
        "cost": float(100 * np.mean(own.cost / told.cost - 1)),
        "error": float(100 * np.mean(own.error / told.error - 1)),
        "own": len(tuned.policy.own) / len(tuned.figures),
        "any": bool(tuned.policy.own),
        "predicted": float(100 * tuned.gain),
    }


def simulated(samples: int, same: bool) -> Iterator[dict[str, Any]]:
    """A row for each case, size and sample; with `same` only of the smallest logs in which nothing differs."""
    for case in [case for case in CASES if not (same and (case.worse or case.better))]:
        fresh = simulate(FRESH, case, seed=10**6)
        for size in SIZES[:1] if same else SIZES:
            for sample in range(samples):
                yield {"case": case.name, "size": size, "sample": sample} | compare(
                    simulate(size, case, seed=1_000 + sample), fresh
                )


def real(folder: Path, samples: int) -> Iterator[dict[str, Any]]:
    """A row for each number of groups of subjects, and random half of MMLU."""
    subjects = pl.read_csv(folder / "mmlu_subjects.csv").filter(split="test")
    number = pl.col("subject").str.extract(r"(\d+)").cast(int)
    table = pl.read_csv(folder / "mmlu_llama_test.csv")
    for groups in GROUPS:
        group = (number * groups // (number.max() + 1)).cast(str)
        frame = table.join(subjects.select("query", group=pl.lit("group ") + group), on="query")
        log = rcjax.read_log(frame, prices=folder / "prices.toml", task="choice", by="group")
        for sample in range(samples):
            train, test = log.split(0.5, seed=sample)
            name = f"MMLU, {groups} groups of subjects"
            yield {"case": name, "size": train.n_queries, "sample": sample} | compare(train, test)


def table(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """By case and size."""
    lines = []
    for case, size in dict.fromkeys((row["case"], row["size"]) for row in rows):
        group = [row for row in rows if (row["case"], row["size"]) == (case, size)]
        columns = {name: np.array([row[name] for row in group], float) for name in group[0] if name != "case"}
        lines.append(
            {
                "segments": case,
                "queries": size,
                "logs": len(group),
                "change of loss": with_error(columns["change"]),
                "of error, at budgets": with_error(columns["budgets"]),
                "over budget": with_error(columns["spent"]),
                "cost": with_error(columns["cost"]),
                "error": with_error(columns["error"]),
                "logs with own policies": f"{100 * columns['any'].mean():.0f} %",
                "segments with own": f"{100 * columns['own'].mean():.0f} %",
                "gain told": with_error(columns["predicted"]),
                "worse by over 1 %": f"{100 * np.mean(columns['change'] > 1):.0f} %",
            }
        )
    return pl.DataFrame(lines)


def main() -> None:
    """Print the table."""
    parser = record.parser(__doc__)
    parser.add_argument("--samples", type=int, default=12, help="logs of each case and size")
    parser.add_argument("--same", action="store_true", help="only logs of 300 queries in which nothing differs")
    parser.add_argument("--data", type=Path, help="a folder of real logs")
    parser.add_argument("--out", type=Path, help="keep the rows here, as JSON lines")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows = collected(simulated(options.samples, options.same), "{case}, {size}, sample {sample}", options.out)
    if options.data is not None:
        rows += collected(real(options.data, options.samples), "{case}, sample {sample}", None)
    print(f"{machine()} Policies of segments against one policy for all, per cent.\n")
    lines = table(rows)
    print(markdown(lines))
    for line in lines.iter_rows(named=True):
        what = f"{line['segments']}, {line['queries']:,} queries: change of error + λ·cost, and of error at budgets"
        record.headline(what, f"{line['change of loss']} %, {line['of error, at budgets']} %")


if __name__ == "__main__":
    record.run(main)
