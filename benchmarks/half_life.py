"""Weights of recent queries by a half-life, for logs that drift: the log density of the queries that come next.

    python -m benchmarks.half_life --data DIR [--orders 3] [--worlds NAMES]

The last 400 queries are fitted to with weights 0.5^(age/h), the age in queries, and the next 100 judge; then the window
moves on by these. DIR holds {name}_train.csv and maybe {name}_test.csv, prices.toml, and public/*.csv with confidences.

No log has times, so queries come in these orders: `shuffled`: at random, nothing drifts. `as filed`: of MMLU subject by
subject. `other questions`: those of MMLU give way to those of TriviaQA, evenly from first to last, for the same models.
`dependence fades`: shuffled; a share of the queries, which rises from none to all, has each model's answer from another
query, so that marginals and calibration stay. `dependence ends`: so it is from the middle on.

Figures are changes of the held-out log density against equal weights, nats per query and pair, with the standard error
over the blocks of 100: of Gumbel's copula of neighbours along the chain, by weighted τ-b as in
`rcjax.model.fit_copula`, on ranks among the 400, ties broken at random.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.dependence import ranks_among, with_public
from benchmarks.report import progress
from rcjax.copulas import Gumbel
from rcjax.model.fitting import weighted_tau

WINDOW, BLOCK = 400, 100
HALF_LIVES = (50, 100, 200, 400)
WORLDS = ("as filed", "other questions", "shuffled", "dependence fades", "dependence ends")


def other_questions(folder: Path, family: str) -> rcjax.Log:
    """MMLU's and TriviaQA's queries of the same models as one log, whose query ids begin with the benchmark."""
    paths = [path for name in ("mmlu", "triviaqa") for path in sorted(folder.glob(f"{name}_{family}_t*[nt].csv"))]
    frames = [pl.read_csv(path).with_columns(query=pl.format(f"{path.stem}-{{}}", "query")) for path in paths]
    log = rcjax.read_log(pl.concat(frames, how="diagonal"), prices=folder / "prices.toml", task="generation")
    return log.take(log.complete)


def giving_way(log: rcjax.Log, rng: np.random.Generator) -> rcjax.Log:
    """As many queries of either benchmark, in an order in which the second one's share rises from 0 to 1."""
    second = np.array([str(query).startswith("triviaqa") for query in log.queries])
    least = min(second.sum(), (~second).sum())
    rows = np.concatenate([rng.permutation(np.flatnonzero(part))[:least] for part in (~second, second)])
    late = np.sqrt(rng.random(2 * least))  # density 2x; that of 1 − x falls
    return log.take(rows[np.argsort(np.where(np.arange(2 * least) < least, 1 - late, late))])


def broken_up(log: rcjax.Log, share: np.ndarray, rng: np.random.Generator) -> rcjax.Log:
    """The log where a share (n,) of the queries has each model's answer from another of them."""
    rows = np.flatnonzero(rng.random(log.n_queries) < share)
    cells = {name: np.array(getattr(log, name)) for name in ("logprob", "correct", "query_cost")}
    for j in range(len(log.models)):
        others = rng.permutation(rows)
        for values in cells.values():
            values[rows, j] = values[others, j]
    return dataclasses.replace(log, **{name: jnp.asarray(values) for name, values in cells.items()})


def ordered(log: rcjax.Log, world: str, rng: np.random.Generator) -> rcjax.Log:
    """A log in the order of a world."""
    if world == "as filed":
        return log
    if world == "other questions":
        return giving_way(log, rng)
    log = log.take(rng.permutation(log.n_queries))
    passed = np.arange(log.n_queries) / log.n_queries
    share = {"shuffled": 0 * passed, "dependence fades": passed, "dependence ends": 1.0 * (passed >= 0.5)}[world]
    return broken_up(log, share, rng)


def windows(log: rcjax.Log) -> Iterator[tuple[rcjax.Log, rcjax.Log]]:
    """(queries to fit to, those that come next), again and again."""
    for start in range(0, log.n_queries - WINDOW - BLOCK + 1, BLOCK):
        yield log.take(np.arange(WINDOW) + start), log.take(np.arange(BLOCK) + start + WINDOW)


def weights() -> np.ndarray:
    """(1 + H, 400): equal weights, then those of each half-life."""
    age = np.arange(WINDOW)[::-1]
    return np.stack([np.ones(WINDOW), *(0.5 ** (age / half_life) for half_life in HALF_LIVES)])


@jax.jit
def _densities(past: jax.Array, block: jax.Array, weights: jax.Array) -> jax.Array:
    """(1 + H,) mean log density of a block's ranks (100, 2) under Gumbel's copula of the past ranks (400, 2)."""
    taus = jax.vmap(lambda weight: weighted_tau(*past.T, weight))(weights)
    return jax.vmap(lambda tau: Gumbel.from_tau(tau).log_density(*block.T).mean())(taus)


def density(log: rcjax.Log) -> Iterator[np.ndarray]:
    """(H,) changes of the log density of each block of a log in its order."""
    for number, (past, block) in enumerate(windows(log)):
        fitted, judged = (np.asarray(part.logprob, float) for part in (past, block))
        ranks = [jnp.asarray(ranks_among(fitted, values, number)) for values in (fitted, judged)]
        found = [
            np.asarray(_densities(*(part[:, j : j + 2] for part in ranks), jnp.asarray(weights())))
            for j in range(fitted.shape[1] - 1)
        ]
        mean = np.mean(found, axis=0)
        yield mean[1:] - mean[0]


def worlds(folder: Path, orders: int, names: Sequence[str]) -> Iterator[tuple[str, str, list[rcjax.Log]]]:
    """(world, name of a log, the log in its orders)."""
    whole = [(name, log) for name, log in with_public(folder) if log.n_queries > WINDOW + BLOCK]
    mixed = [(family, other_questions(folder, family)) for family in ("llama", "qwen_oai")]
    for world in names:
        for name, log in mixed if world == "other questions" else whole:
            progress(f"{world}: {name}")
            count = 1 if world == "as filed" else orders
            yield world, name, [ordered(log, world, np.random.default_rng((5, number))) for number in range(count)]


def main() -> None:
    """Print a row for each half-life, order and log, and name the means of each order."""
    parser = record.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the logs")
    parser.add_argument("--orders", type=int, default=3, help="random orders of each log")
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=WORLDS, help="orders of the queries")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print("| order | log | blocks | half-life | log density, nats |")
    print("|---|---|--:|--:|--:|")
    found: dict[str, list[np.ndarray]] = {}
    for world, name, logs in worlds(arguments.data, arguments.orders, arguments.worlds):
        figures = np.stack(list(itertools.chain.from_iterable(map(density, logs))))
        mean, error = figures.mean(0), figures.std(0, ddof=1) / np.sqrt(len(figures))
        found.setdefault(world, []).append(mean)
        for half_life, change, se in zip(HALF_LIVES, mean, error, strict=True):
            print(f"| {world} | {name} | {len(figures)} | {half_life} | {change:+.4f} ± {se:.4f} |", flush=True)
    for world, means in found.items():
        shown = zip(HALF_LIVES, np.mean(means, axis=0), strict=True)
        told = "; ".join(f"{half_life}: {change:+.4f}" for half_life, change in shown)
        record.headline(f"{world}, mean of {len(means)} logs, by half-life: log density, nats", told)


if __name__ == "__main__":
    record.run(main)
