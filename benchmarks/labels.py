"""A few labels by hand with a judge for the rest: errors, intervals and guarantees.

    python -m benchmarks.labels [--data DIR] [--splits 50] [--labels 100,300] [--out FILE]
    python -m benchmarks.labels --part intervals [--splits 50]
    python -m benchmarks.labels --part guarantee [--splits 400]
    python -m benchmarks.labels [--part intervals] --kept FILE [FILE ...]

The last makes the table of rows that earlier runs have kept (`--out`), so that several may run side by side.

Of a log with labels for all answers, some are left, and 1,000 further queries are judged, or bare. Judges agree with
the labels in 98, 95, 90 or 80 % of the answers, at random; or they err in favour of the dearest model (it is called
right in 30 % of the cases where it is wrong); or they call 40 % of the right answers to the shortest queries wrong.

The area is that under the error–cost curve of the default search on the other queries, against the labels alone, in per
cent: below 0 is better. Beside it stand the area where the judge is taken at its word, and that of 1,000 true labels.
"Promised" is the error that the frontier says of its policies less what comes, in points, averaged over the frontier.

`intervals`: how often the 90 % intervals of the bootstrap hold the true error of a policy, on logs of the demo's model,
whose truth is 20,000 fresh queries: over the points of the frontier; and at twenty prices λ that no log has chosen,
each by the point nearest to it. `guarantee`: how often a guarantee of 95 % is given at the true error itself, where
it is false; and how often at a target that is kept, which is its power.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.methods import Curve, areas, change
from benchmarks.paper.inputs import pooled
from benchmarks.report import collected, machine, markdown, with_error
from rcjax.logs.log import HandLabels
from rcjax.model.label_outcomes import take_hand_labelled
from rcjax.solving.frontier.frontier import Frontier

FURTHER, LEFT, FRESH = 1000, 200, 20_000
REPLICATES = 100
N_LAM = np.geomspace(50, 5000, 20)  # λ of the demo's frontier


class Judge(NamedTuple):
    """Who judges the answers, and how."""

    name: str
    errors: float = 0.0  # how often it errs at random
    to_the_dearest: float = 0.0  # how often it calls a wrong answer of the dearest model right
    to_the_shortest: float = 0.0  # how often it calls right answers to the shortest third of the queries wrong

    def verdicts(self, log: rcjax.Log, rng: np.random.Generator) -> np.ndarray:
        """(n, k, 1) from 0 to 1; NaN of a judge without a name."""
        right, cost = np.asarray(log.correct), np.asarray(log.query_cost)
        if self.name == NOBODY.name:
            return np.full((*right.shape, 1), np.nan)
        said = np.where(rng.random(right.shape) < self.errors, ~right, right)
        said[:, np.argmax(cost.mean(0))] |= rng.random(len(right)) < self.to_the_dearest
        short = cost <= np.quantile(cost, 1 / 3, axis=0)
        said &= ~(short & (rng.random(right.shape) < self.to_the_shortest))
        return said[..., None].astype(float)


NOBODY = Judge("nobody")
REST = {
    "agrees in 95 %": "a judge for the rest who agrees in 95 %",
    "nobody": "the rest bare",
    "thousand": "and true labels up to 1,000",
}
JUDGES = (
    *(Judge(f"agrees in {100 - 100 * share:.0f} %", share) for share in (0.02, 0.05, 0.1, 0.2)),
    Judge("lenient to the dearest", 0.05, to_the_dearest=0.3),
    Judge("strict to the shortest", 0.05, to_the_shortest=0.4),
    NOBODY,
)


def partly(log: rcjax.Log, labelled: np.ndarray, judged: np.ndarray) -> rcjax.Log:
    """The log, of whose labels only some are left, with verdicts."""
    hand = HandLabels(jnp.asarray(labelled), jnp.asarray(judged), ("judged",))
    return dataclasses.replace(log, correct=jnp.asarray(labelled & np.asarray(log.correct)), hand_labels=hand)


def some(log: rcjax.Log, labels: int, rng: np.random.Generator) -> np.ndarray:
    """(n, k) bool: so many queries at random."""
    chosen = np.isin(np.arange(log.n_queries), rng.choice(log.n_queries, labels, replace=False))
    return np.repeat(chosen[:, None], len(log.models), axis=1)


def _frontier(log: rcjax.Log) -> Frontier:
    return rcjax.tuning.select_frontier(log).frontier


def _at_its_word(log: rcjax.Log) -> rcjax.Log:
    assert log.hand_labels is not None
    said = np.asarray(log.hand_labels.judged)[..., 0] > 0.5
    return dataclasses.replace(log, correct=jnp.asarray(np.where(log.labelled, log.correct, said)), hand_labels=None)


def compare(train: rcjax.Log, test: rcjax.Log, labels: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """A row for each judge: changes of area against the labels alone, and what was promised beyond what came."""
    labelled = some(train, labels, rng)
    others = rng.permutation(np.flatnonzero(~labelled[:, 0]))[: max(1000 - labels, 0)]
    thousand = train.take(np.sort(np.concatenate([np.flatnonzero(labelled[:, 0]), others])))
    frontiers = {"alone": _frontier(train.take(labelled[:, 0])), "thousand": _frontier(thousand)}
    for judge in JUDGES:
        log = partly(train, labelled, judge.verdicts(train, rng))
        frontiers[judge.name] = _frontier(log)
        if judge is not NOBODY:
            frontiers[f"{judge.name}, at its word"] = _frontier(_at_its_word(log))
    replayed = {name: rcjax.replay(frontier, test) for name, frontier in frontiers.items()}
    curves = {name: Curve(np.asarray(seen.cost), np.asarray(seen.error)) for name, seen in replayed.items()}
    area = areas(curves)
    for name, frontier in frontiers.items():
        promised = 100 * float(np.mean(np.asarray(frontier.error) - curves[name].error))
        yield {"outcomes": name, "change": change(area[name], area["alone"]), "promised": promised}


def splits_of(folder: Path | None, splits: int, labels: list[int]) -> Iterator[dict[str, Any]]:
    """A row for each log, number of labels, split and judge."""
    logs = {} if folder is None else {path.name.removesuffix("_test.csv"): path for path in folder.glob("*_test.csv")}
    for name in ["the demo's model", *sorted(logs)]:
        whole = pooled(folder, name)[0] if folder and name in logs else rcjax.sample_log(3000, seed=10**6)
        for number in labels:
            size = min(number + FURTHER, whole.n_queries - LEFT)
            for split in range(splits):
                rng = np.random.default_rng((number, split))
                order = rng.permutation(whole.n_queries)
                train, test = (whole.take(np.sort(part)) for part in (order[:size], order[size:]))
                for row in compare(train, test, number, rng):
                    yield {"log": name, "labels": number, "split": split} | row


def areas_table(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """By number of labels and outcomes: mean changes of area for each log, and what was promised too much."""
    lines = []
    for number in sorted({row["labels"] for row in rows}):
        for outcomes in dict.fromkeys(row["outcomes"] for row in rows):
            own = [row for row in rows if row["labels"] == number and row["outcomes"] == outcomes]
            logs = {name: [row["change"] for row in own if row["log"] == name] for name in {r["log"] for r in own}}
            line: dict[str, Any] = {"labels": number, "outcomes": outcomes}
            line |= {name: with_error(np.array(logs[name])) for name in sorted(logs)}
            lines.append(line | {"promised less came": with_error(np.array([row["promised"] for row in own]))})
            if outcomes in REST:
                headline = f"{number} labels by hand, {REST[outcomes]}: area against the labels alone"
                record.headline(headline, f"{with_error(np.array([row['change'] for row in own]))} %")
    return pl.DataFrame(lines)


def intervals_of(splits: int, labels: list[int]) -> Iterator[dict[str, Any]]:
    """A row for each number of labels, log of the demo's model and judge: how much of the frontier is covered."""
    fresh = rcjax.sample_log(FRESH, seed=10**6 + 1)
    for number in labels:
        for seed in range(splits):
            whole = rcjax.sample_log(number + FURTHER, seed=seed)
            for judge in (None, *JUDGES[1:]):
                rng = np.random.default_rng((seed, number))
                labelled = some(whole, number, rng)
                log = whole.take(labelled[:, 0])
                log = log if judge is None else partly(whole, labelled, judge.verdicts(whole, rng))
                name = "labels alone" if judge is None else judge.name
                yield {"labels": number, "split": seed, "judge": name} | _covered(log, fresh)


def _covered(log: rcjax.Log, fresh: rcjax.Log) -> dict[str, float]:
    frontier = _frontier(log)
    bands = np.asarray(rcjax.tuning.bootstrap(frontier, log, replicates=REPLICATES).error)
    true = np.asarray(rcjax.replay(frontier, fresh).error)
    inside = (bands[:, 0] <= true) & (true <= bands[:, 1])
    nearest = np.abs(np.log(np.asarray(frontier.lam)) - np.log(N_LAM)[:, None]).argmin(1)
    points = {"frontier": inside, "prices": inside[nearest], "above": true > bands[:, 1], "below": true < bands[:, 0]}
    points |= {"width": bands[:, 1] - bands[:, 0]}
    return {name: 100 * float(values.mean()) for name, values in points.items()}


def intervals_table(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """By number of labels and judge: how often intervals hold the true error."""
    lines = []
    for number, judge in dict.fromkeys((row["labels"], row["judge"]) for row in rows):
        own = [row for row in rows if (row["labels"], row["judge"]) == (number, judge)]
        shares = {what: [row[what] for row in own] for what in ("frontier", "prices", "above", "below", "width")}
        mean = {what: np.mean(values) for what, values in shares.items()}
        line = {"labels": number, "judge": judge, "logs": len(own)}
        line |= {f"covers, {what}, %": with_error(np.array(shares[what])) for what in ("frontier", "prices")}
        line |= {f"truth {what}, %": f"{mean[what]:.1f}" for what in ("above", "below")}
        lines.append(line | {"width, points": f"{mean['width']:.1f}"})
        both = f"{mean['frontier']:.1f}; {mean['prices']:.1f} %"
        record.headline(f"90 % intervals, {number} labels, judge: {judge}: frontier; prices", both)
    return pl.DataFrame(lines)


def guarantee(splits: int, labels: list[int]) -> pl.DataFrame:
    """Guarantees given at the true error, and at 1.25 times it, by labels by hand and with judges."""
    fresh, lines = rcjax.sample_log(FRESH, seed=10**6 + 1), []
    for number in labels:
        for judge in JUDGES[1:]:
            rng = np.random.default_rng(number)
            train = rcjax.sample_log(number + FURTHER, seed=1)
            train = partly(train, some(train, number, rng), judge.verdicts(train, rng))
            frontier = rcjax.solve_frontier(rcjax.fit(train), lam=[800.0])
            true = float(rcjax.replay(frontier, fresh).error[0])
            passes = dict.fromkeys(((1.0, False), (1.0, True), (1.25, False), (1.25, True)), 0)
            for seed in range(splits):
                held = rcjax.sample_log(number + FURTHER, seed=100 + seed)
                held = partly(held, some(held, number, rng), judge.verdicts(held, rng))
                for times, judged in passes:
                    passes[times, judged] += _is_given(frontier, held, train, times * true, judged)
            shares = {key: f"{100 * many / splits:.1f}" for key, many in passes.items()}
            line = {"labels": number, "judge": judge.name, "broken, by hand, %": shares[1.0, False]}
            line |= {"broken, judged, %": shares[1.0, True], "given, by hand, %": shares[1.25, False]}
            lines.append(line | {"given, judged, %": shares[1.25, True]})
        own = (
            pl.DataFrame(line for line in lines if line["labels"] == number).select(pl.col("^.*%$").cast(float)).mean()
        )
        what = f"guarantees of 95 % that are false, {number} labels: by hand; with a judge or nobody"
        record.headline(what, f"{own['broken, by hand, %'][0]:.1f}; {own['broken, judged, %'][0]:.1f} %")
    return pl.DataFrame(lines)


def _is_given(frontier: Frontier, held: rcjax.Log, train: rcjax.Log, limit: float, judged: bool) -> bool:
    log, options = (held, {"judged": True, "tuned_on": train}) if judged else (take_hand_labelled(held), {})
    try:
        rcjax.certify(frontier, log, max_error=limit, **options)
    except rcjax.InfeasibleError:
        return False
    return True


def main() -> None:
    """Print the table of one part."""
    parser = record.parser(__doc__)
    parser.add_argument("--part", choices=("areas", "intervals", "guarantee"), default="areas")
    parser.add_argument("--data", type=Path, help="folder of real logs")
    parser.add_argument("--splits", type=int, default=50, help="splits of each log, or simulated logs")
    parser.add_argument("--labels", default="100,300", help="how many labels, with commas between")
    parser.add_argument("--out", type=Path, help="keep the rows here, as JSON lines")
    parser.add_argument("--kept", type=Path, nargs="+", metavar="FILE", help="rows that earlier runs have kept")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    labels = [int(number) for number in options.labels.split(",")]
    print(f"{machine()}\n")
    if options.part == "guarantee":
        if options.kept:
            parser.error("--kept: the part guarantee keeps no rows")
        print(markdown(guarantee(options.splits, labels)))
        return
    if options.kept:
        rows = [json.loads(line) for path in options.kept for line in path.read_text().splitlines()]
    elif options.part == "intervals":
        rows = collected(intervals_of(options.splits, labels), "{labels} labels, log {split}, {judge}", options.out)
    else:
        what = "{log}, {labels} labels, split {split}, {outcomes}"
        rows = collected(splits_of(options.data, options.splits, labels), what, options.out)
    print(markdown(intervals_table(rows) if options.part == "intervals" else areas_table(rows)))


if __name__ == "__main__":
    record.run(main)
