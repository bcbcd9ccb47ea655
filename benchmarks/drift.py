"""`rcjax.check_policy` with and without changes: alarms at one look, and over a year of looks.

    python -m benchmarks.drift --data DIR [--splits 60] [--trials 40] [--histories 20] [--today] [--only NAMES]

False alarms: each log, and a log sampled from the demo's model, is dealt into two random halves, `--splits` times. A
policy is tuned on one half, at a random price of an error or for a random budget, as `rcjax tune` does by default, and
checked on the other half. The table has the share of splits with an alarm, with its standard error, and how often each
finding shows a change.

Power: policies tuned on 300 queries, `--trials` of each log, are checked on 300, 1,000 or 3,000 other queries, of which
some property has been changed; 3,000 are drawn with replacement if a log has fewer.

Years: `--histories` of each log. A policy is tuned on 300 queries. The other queries give 52 weeks of 100 labelled
queries, drawn with replacement, with a look at the window each week. The table has the years with a false alarm, and
the years in which a rise of the error from week 13 on is noticed by week 52.

With `--today`, policies are tuned beside the dearest model, within a margin of one point or for a random budget, and
have a third figure that may raise an alarm.

With `--promises`: how far three kinds of promises of the error are off, and how often each raises an alarm at a
one-sided level of 2.5 % without a change. Real logs are {name}_train.csv and {name}_test.csv, pooled, and prices.toml
in DIR.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from scipy.stats import norm

import rcjax
from benchmarks import record
from benchmarks.paper.inputs import pooled
from benchmarks.report import machine, markdown, progress
from rcjax.tuning.diagnostics.findings import PRIMARY

TUNED_ON, WEEK = 300, 100
SIZES = (300, 1000, 3000)
POINTS = (0.01, 0.02, 0.03, 0.05)
BESIDE_TODAY = False  # set by --today


def logs(folder: Path | None) -> Iterator[tuple[str, rcjax.Log]]:
    """Names and logs: the demo's, then those of the folder, both splits together."""
    yield "sampled", rcjax.sample_log(4000, seed=0)
    if folder is None:
        return
    for train in sorted(folder.glob("*_train.csv")):
        name = train.name.removesuffix("_train.csv")
        yield name, pooled(folder, name)[0]


def tuned(log: rcjax.Log, rng: np.random.Generator) -> rcjax.Policy | rcjax.Ladder:
    """The policy of the default search at a price of an error (beside today's: within a margin), or for a budget."""
    cost, today = np.sort(np.asarray(log.cost, float)), log.models[-1] if BESIDE_TODAY else None
    if rng.random() < 0.5:
        if BESIDE_TODAY:
            return rcjax.tune(log, match=0.01, today=today, intervals=False).policy
        lam = float(np.exp(rng.uniform(np.log(0.01), np.log(0.5))) / cost.max())
        return rcjax.tune(log, lam=lam, intervals=False).policy
    budget = float(np.exp(rng.uniform(np.log(1.1 * cost[0]), np.log(cost[-1]))))
    return rcjax.tune(log, budget=budget, today=today, intervals=False).policy


# What may change.


def surer(log: rcjax.Log, by: float) -> rcjax.Log:
    """Every confidence with its odds multiplied by exp(by)."""
    p = np.exp(np.asarray(log.logprob, float))
    with np.errstate(divide="ignore"):
        odds = np.log(p) - np.log1p(-p) + by
    return dataclasses.replace(log, logprob=jnp.asarray(-np.logaddexp(0, -odds), log.logprob.dtype))


def swapped(log: rcjax.Log, policy: rcjax.Policy) -> rcjax.Log:
    """The policy's first model is silently replaced by the next one in the log, at its own price."""
    j = log.models.index(policy.rungs[0].first_model)
    other = j + 1 if j + 1 < len(log.models) else j - 1
    columns = {name: np.array(getattr(log, name)) for name in ("logprob", "correct")}
    for values in columns.values():
        values[:, j] = values[:, other]
    return dataclasses.replace(log, **{name: jnp.asarray(values) for name, values in columns.items()})


def less_right(log: rcjax.Log, points: float, rng: np.random.Generator, rows: np.ndarray | None = None) -> rcjax.Log:
    """So many points of the answers of every model, right ones, made wrong, of all queries or some rows (bool)."""
    right = np.array(log.correct)
    among = np.ones(len(right), bool) if rows is None else rows
    wronged = rng.random(right.shape) < points / np.maximum(right[among].mean(0), points)
    return dataclasses.replace(log, correct=jnp.asarray(right & ~(wronged & among[:, None])))


def dearer(log: rcjax.Log, factor: float) -> rcjax.Log:
    """Every call costs so many times as much, as with more tokens."""
    return dataclasses.replace(log, query_cost=log.query_cost * factor, cost=log.cost * factor)


Change = Callable[[rcjax.Log, rcjax.Policy, np.random.Generator], rcjax.Log]
CHANGES: dict[str, Change] = {
    "nothing": lambda log, policy, rng: log,
    **{
        f"accuracy −{100 * points:g} points": lambda log, policy, rng, points=points: less_right(log, points, rng)
        for points in (*POINTS, 0.1)
    },
    "odds of the confidences × 2.7": lambda log, policy, rng: surer(log, 1.0),
    "first model replaced": lambda log, policy, rng: swapped(log, policy),
    "tokens × 1.2": lambda log, policy, rng: dearer(log, 1.2),
    "tokens × 2": lambda log, policy, rng: dearer(log, 2.0),
}


# What is shown.


def share(part: int, whole: int) -> str:
    """Return a share in per cent with its standard error."""
    p = part / whole
    return f"{100 * p:.1f} ± {100 * np.sqrt(p * (1 - p) / whole):.1f} %"


def false_alarms(name: str, log: rcjax.Log, splits: int) -> dict[str, object]:
    """Return a row: the share of random halves with an alarm, and with a bad finding of each kind."""
    half, counts = min(log.n_queries // 2, 1000), Counter[str]()
    for seed in range(splits):
        progress(f"{name}: split {seed + 1} of {splits}")
        rng = np.random.default_rng([seed, 1])
        order = rng.permutation(log.n_queries)
        found = rcjax.check_policy(tuned(log.take(order[:half]), rng), log.take(order[half : 2 * half]), retuning=False)
        bad = {finding.name for finding in found.findings if finding.verdict == "bad"}
        counts.update(bad)
        counts["alarm"] += found.drifted
        counts["explains"] += bool(bad - {*PRIMARY})
    kinds = [kind for kind in counts if kind not in ("alarm", "explains")]
    each = ", ".join(f"{kind} {100 * counts[kind] / splits:.1f} %" for kind in sorted(kinds))
    told = {"alarm": share(counts["alarm"], splits), "any other finding": share(counts["explains"], splits)}
    return {"log": name, "n": half, "splits": splits} | told | {"each finding": each}


def power(name: str, log: rcjax.Log, trials: int) -> list[dict[str, object]]:
    """Return rows: how often each change raises an alarm, or any bad finding, at each number of fresh queries."""
    alarms, any_bad = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for seed in range(trials):
        progress(f"{name}: trial {seed + 1} of {trials}")
        rng = np.random.default_rng([seed, 2])
        order = rng.permutation(log.n_queries)
        policy, rest = tuned(log.take(order[:TUNED_ON]), rng), order[TUNED_ON:]
        for size in SIZES:
            fresh = log.take(rest[:size] if size <= len(rest) else rng.choice(rest, size))
            for change, apply in CHANGES.items():
                found = rcjax.check_policy(policy, apply(fresh, policy, rng), retuning=False)
                alarms[change, size] += found.drifted
                any_bad[change, size] += any(finding.verdict == "bad" for finding in found.findings)

    def cell(change: str, size: int) -> str:
        alarm, anything = (100 * counts[change, size] / trials for counts in (alarms, any_bad))
        return f"{alarm:.0f} %" + (f" ({anything:.0f})" if anything > alarm + 0.5 else "")

    return [
        {"log": name, "change": change} | {f"n = {size}": cell(change, size) for size in SIZES} for change in CHANGES
    ]


def year(log: rcjax.Log, rest: np.ndarray, rng: np.random.Generator, points: float = 0.0) -> rcjax.Log:
    """Return 52 weeks of labelled queries with times; from week 13 on, so many points fewer answers are right."""
    rows = rng.choice(rest, 52 * WEEK)
    week = np.arange(52 * WEEK) // WEEK
    chosen = dataclasses.replace(log.take(rows), time=tuple((1.7e9 + 7 * 86_400 * (week + 0.01)).tolist()))
    return less_right(chosen, points, rng, week >= 12) if points else chosen


def years(name: str, log: rcjax.Log, histories: int) -> dict[str, object]:
    """Return a row: the years with a false alarm, and the years in which a rise from week 13 on is noticed."""
    counts = Counter[float]()
    for seed in range(histories):
        progress(f"{name}: history {seed + 1} of {histories}")
        rng = np.random.default_rng([seed, 3])
        order = rng.permutation(log.n_queries)
        policy = tuned(log.take(order[:TUNED_ON]), rng)
        for points in (0.0, *POINTS[1:], 0.1):
            found = rcjax.check_policy(policy, year(log, order[TUNED_ON:], rng, points), retuning=False)
            counts[points] += bool(found.window.alarms)
    noticed = {
        f"+{100 * points:g} points": f"{100 * counts[points] / histories:.0f} %" for points in (*POINTS[1:], 0.1)
    }
    return {"log": name, "histories": histories, "years with a false alarm": share(counts[0.0], histories)} | noticed


def separate_looks(draws: int = 40_000) -> str:
    """Return the numbers of separate looks with as many alarms as looks at windows of eight weeks (normal law)."""
    rng, figures = np.random.default_rng(0), []
    weeks, before = rng.standard_normal((draws, 52)), rng.standard_normal((draws, 1)) * np.sqrt(3)
    sums = np.concatenate([np.zeros((draws, 1)), weeks.cumsum(1)], 1)
    for looks in (4, 12, 26, 52):
        end = np.round(np.arange(1, looks + 1) * 52 / looks).astype(int)
        start = np.maximum(end - 8, 0)
        now, then = (sums[:, end] - sums[:, start]) / (end - start), (before + sums[:, start]) / (3 + start)
        highest = ((now - then) / np.sqrt(1 / (end - start) + 1 / (3 + start))).max(1)
        figures.append(f"{looks}: {0.025 / norm.sf(np.quantile(highest, 0.975)):.1f}")
    return ", ".join(figures)


def promises(chosen: Sequence[tuple[str, rcjax.Log]], splits: int) -> str:
    """Return a table of three promises of the error: how far they are off, and how often they raise an alarm."""
    from rcjax.model.goodness_of_fit.two_samples import SampleMean, rise_of_mean
    from rcjax.tuning.replaying.replay import replay_queries

    rows: dict[str, list[tuple[float, float]]] = {"expected": [], "on the queries tuned on": [], "middle": []}
    for name, log in chosen:
        for seed in range(splits):
            progress(f"{name}: promise {seed + 1} of {splits}")
            rng = np.random.default_rng([seed, 4])
            order, n = rng.permutation(log.n_queries), min(TUNED_ON, log.n_queries // 2)
            policy = rcjax.tune(log.take(order[:n]), lam=0.1 / float(log.cost.max())).policy
            before, after = (replay_queries(policy, log.take(part)).wrong for part in (order[:n], order[n:]))
            middle = (policy.expected["error_low"] + policy.expected["error_high"]) / 2
            for kind, promise in zip(rows, (policy.expected["error"], before.mean(), middle), strict=True):
                rise = rise_of_mean(SampleMean.estimate(before, promise), SampleMean.estimate(after[:TUNED_ON]))
                rows[kind].append((100 * (after.mean() - promise), rise[1]))
    table = [
        {
            "promise": kind,
            "off, mean": f"{np.mean(off):.2f}",
            "root mean square": f"{np.sqrt(np.mean(np.square(off))):.2f}",
        }
        | {"alarms at 2.5 %": share(int(np.sum(np.array(p) < 0.025)), len(p))}
        for kind, pairs in rows.items()
        for off, p in [zip(*pairs, strict=True)]
    ]
    return markdown(pl.DataFrame(table))


def main() -> None:
    parser = record.parser(__doc__)
    parser.add_argument("--data", type=Path, help="folder with real logs")
    parser.add_argument("--splits", type=int, default=60)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--histories", type=int, default=20)
    parser.add_argument("--today", action="store_true", help="tune beside the dearest model")
    parser.add_argument("--promises", action="store_true", help="compare promises, which draws intervals")
    parser.add_argument("--only", help="names of logs, with commas between them, in the order wanted")
    arguments = parser.parse_args()
    global BESIDE_TODAY
    BESIDE_TODAY = arguments.today
    jax.config.update("jax_enable_x64", True)
    print(f"{machine()}\n")
    known = dict(logs(arguments.data))
    chosen = [(name, known[name]) for name in (arguments.only.split(",") if arguments.only else known)]
    long = [(name, log) for name, log in chosen if log.n_queries >= 2 * TUNED_ON]
    if arguments.promises:
        print(promises(chosen, arguments.splits))
        return
    if arguments.splits:
        rows = [false_alarms(*each, arguments.splits) for each in chosen]
        print(f"{markdown(pl.DataFrame(rows))}\n", flush=True)
        for row in rows:
            told = f"alarms of `rcjax check` where nothing has changed, {row['log']}, {row['splits']} halvings"
            record.headline(told, str(row["alarm"]))
    if arguments.trials:
        rows = [row for each in long for row in power(*each, arguments.trials)]
        print(
            f"Alarms after a change (in brackets: any finding that shows it).\n\n{markdown(pl.DataFrame(rows))}\n",
            flush=True,
        )
        for row in rows:
            figures = ", ".join(f"{row[size]} ({size})" for size in row if str(size).startswith("n = "))
            record.headline(f"alarms on {row['log']}, {arguments.trials} trials: {row['change']}", figures)
    if arguments.histories:
        rows = [years(*each, arguments.histories) for each in long]
        print(f"{markdown(pl.DataFrame(rows))}\n\nSeparate looks, by looks a year: {separate_looks()}.")
        for row in rows:
            record.headline(
                f"years of weekly checks with a false alarm, {row['log']}", str(row["years with a false alarm"])
            )


if __name__ == "__main__":
    record.run(main)
