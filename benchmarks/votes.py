"""Is it found whether several samples of a model are worth their money? Simulated models, where the truth is known.

    python -m benchmarks.votes [--samples 50] [--out FILE]

A small model answers each query five times, a large one once. How often the small one is right on a query varies: the
log-odds are drawn for each query, around the same mean. Where they vary little, samples are independent, and the
majority of five is right more often than one; where they vary much, it is right always or never. A wrong answer is the
query's favourite one with some probability, else one of four. What the small model states tells some of the odds. Votes
are worth their money where samples are independent, and where wrong ones differ; they are worth nothing where a model
says the same five times, or where the large one costs as little as three samples.

Logs of 300 queries are tuned by the default search, with votes of two, three and five among the candidates and without;
both frontiers answer 20,000 fresh queries. The truth is the same of the frontiers of 20,000 queries. Figures are in per
cent of those without votes, over the costs that both frontiers cover: the area under straight lines through all points;
`mixed`, under lines through the corners of the hull, which mixtures of two policies reach; `budgets`, the mean error of
the single policies that budgets get. Below 0 is better; ± is one standard error over samples.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import polars as pl
from scipy import special

import rcjax
from benchmarks import record
from benchmarks.methods import compare_frontiers
from benchmarks.report import collected, machine, markdown, with_error
from rcjax._base.variants import samples_of


class Case(NamedTuple):
    """Models that answer in one way."""

    name: str
    spread: float  # of the log-odds of the small model's being right, over queries
    favourite: float  # how often a wrong answer is the favourite one
    price: float  # of the large model, in samples of the small one


CASES = (
    Case("independent samples", 0.5, 0.4, 30),
    Case("some queries are hard", 2.0, 0.6, 30),
    Case("most are always right or wrong", 4.0, 0.9, 30),
    Case("always the same answer", 40.0, 1.0, 30),
    Case("a large model at the price of two samples", 1.0, 0.6, 2),
)
MONEY = 1e-5  # for a sample of the small model
MEAN, STRONG = 0.65, 0.9  # how often a sample of the small model is right, and the large model
TOLD = 0.5  # how far the stated confidence follows these log-odds, against noise of 1
WRONG, DRAWN = 4, 5
SIZE, FRESH = 300, 20_000


def simulate(n: int, case: Case, seed: int) -> rcjax.Log:
    """A log of two models: five samples of the small one, each with what it states, and one answer of the large one."""
    rng = np.random.default_rng(seed)
    hard = rng.normal(size=n)
    odds = _centre(case.spread) + case.spread * hard
    strong = rng.random(n) < special.expit(special.logit(STRONG) + 0.5 * hard)
    return rcjax.read_log(pl.concat([_samples(rng, odds, hard, case.favourite), _alone(rng, strong, case.price)]))


def _centre(spread: float) -> float:
    """The mean log-odds for which a sample is right as often as it is to be."""
    nodes = spread * np.random.default_rng(0).normal(size=20_000)
    grid = np.linspace(0, 5 + spread, 200)
    means = np.array([special.expit(centre + nodes).mean() for centre in grid])
    return float(np.interp(MEAN, means, grid))


def _samples(rng: np.random.Generator, odds: np.ndarray, hard: np.ndarray, favourite: float) -> pl.DataFrame:
    right = rng.random((len(odds), DRAWN)) < special.expit(odds)[:, None]
    wrong = np.where(rng.random(right.shape) < favourite, 0, rng.integers(0, WRONG, right.shape))
    told = special.expit(TOLD * hard[:, None] + rng.normal(size=right.shape))
    answers = np.where(right, "right", np.char.add("wrong ", wrong.astype(str)))
    return _frame("small", right, answers, told.round(2)).with_columns(cost=pl.lit(MONEY))


def _alone(rng: np.random.Generator, right: np.ndarray, price: float) -> pl.DataFrame:
    told = special.expit(right + rng.normal(size=len(right)))
    answers = np.where(right, "right", "wrong of its own")
    frame = _frame("large", right[:, None], answers[:, None], told[:, None].round(2))
    return frame.with_columns(cost=pl.lit(MONEY * price))


def _frame(model: str, right: np.ndarray, answers: np.ndarray, told: np.ndarray) -> pl.DataFrame:
    n, samples = right.shape
    columns = {"query": np.repeat(np.arange(n), samples), "sample": np.tile(np.arange(samples), n)}
    columns |= {"correct": right.astype(int).ravel(), "answer": answers.ravel().astype(str), "confidence": told.ravel()}
    return pl.DataFrame(columns).with_columns(model=pl.lit(model))


def compare(train: rcjax.Log, test: rcjax.Log) -> dict[str, Any]:
    """The change of area by votes, and the share of the frontier that they stand in."""
    selection = rcjax.select_frontier(train)
    alone = rcjax.select_frontier(train.select(["small", "large"])).frontier
    voting = np.array([samples_of(name) > 1 for name in selection.frontier.models])
    members, gain = np.asarray(selection.frontier.members), selection.comparison.votes
    assert gain is not None
    return compare_frontiers(selection.frontier, alone, test) | {
        "used": float(members[:, voting].any(1).mean()),
        "earned": gain.earned,
        "cross-validated": -100 * gain.overall,
        "se": 100 * gain.overall_se,
    }


def simulated(samples: int) -> Iterator[dict[str, Any]]:
    """A row for each case and sample; sample −1 is the truth."""
    for case in CASES:
        fresh = simulate(FRESH, case, seed=1)
        yield {"case": case.name, "sample": -1} | compare(simulate(FRESH, case, seed=2), fresh)
        for sample in range(samples):
            yield {"case": case.name, "sample": sample} | compare(simulate(SIZE, case, seed=1_000 + sample), fresh)


def table(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """By case: the true change, that of samples, and how often votes were used."""
    lines = []
    for case in CASES:
        truth = next(row for row in rows if row["case"] == case.name and row["sample"] < 0)
        group = [row for row in rows if row["case"] == case.name and row["sample"] >= 0]
        if not group:
            continue
        changes = np.array([row["change"] for row in group])
        line = {
            "the small model": case.name,
            "true change": f"{truth['change']:+.2f}",
            "change, mean": with_error(changes),
        }
        for name in ("mixed", "budgets"):
            own = with_error(np.array([row[name] for row in group]))
            line |= {f"true change, {name}": f"{truth[name]:+.2f}", f"change, {name}": own}
        line |= {"samples": len(group), "votes used": f"{100 * np.mean([row['earned'] for row in group]):.0f} %"}
        line |= {"points with votes": f"{100 * np.mean([row['used'] for row in group]):.0f} %"}
        line |= {"of the truth": f"{100 * truth['used']:.0f} %"}
        half = np.mean(changes < truth["change"] / 2) if truth["change"] < -1 else np.nan
        line |= {"over half of the true gain": "–" if np.isnan(half) else f"{100 * half:.0f} %"}
        lines.append(line | {"worse by over 1 %": f"{100 * np.mean(changes > 1):.0f} %"})
    return pl.DataFrame(lines)


def main() -> None:
    """Print the table."""
    parser = record.parser(__doc__)
    parser.add_argument("--samples", type=int, default=50, help="simulated logs for each case")
    parser.add_argument("--out", type=Path, help="keep the rows here, as JSON lines")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows = collected(simulated(options.samples), "{case}, sample {sample}", options.out)
    print(f"{machine()} Change of area by votes, per cent.\n")
    lines = table(rows)
    print(markdown(lines))
    for line in lines.iter_rows(named=True):
        what = f"votes, {line['the small model']}: change of area, and the true one"
        record.headline(what, f"{line['change, mean']} %, {line['true change']} %")


if __name__ == "__main__":
    record.run(main)
