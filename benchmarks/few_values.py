"""Marginals, predictions, calibration and copulas of confidences with few values, and so with many ties.

    python -m benchmarks.few_values [--data DIR] [--record]

The confidences of the logs of a folder (`--data`; else of a log of the demo's model) are rounded to twentieths,
replaced by five votes with their probability, or replaced by the nearest of 0.5, 0.8, 0.9, 0.95 and 1. The first table
has, by log: √CvM of the marginals on the log itself; the cascades of two and three models whose predicted error and
cost are more than two standard errors from a replay; and the log-loss of calibration on held-out fifths, with estimates
of the values against the logistic curve alone. The second table has θ by likelihood and by Kendall's τ-b, on samples
of 300 queries of known copulas.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from rcjax import CascadeModel, Log
from rcjax._core.batching import take_entries
from rcjax._core.numerics import kendall_tau
from rcjax.model.likelihood import Ranks
from rcjax.model.marginals import cramer_von_mises
from rcjax.model.maximum_likelihood import fit_pair

KINDS = ("twentieths", "votes", "stated")
STATED = np.array([0.5, 0.8, 0.9, 0.95, 1.0])
TRUE = (
    (rcjax.copulas.Gumbel, 1.5),
    (rcjax.copulas.Gumbel, 3.0),
    (rcjax.copulas.Clayton, 1.0),
    (rcjax.copulas.Frank, 4.0),
)
QUERIES = 300


def few_values(log: Log, kind: str) -> Log:
    """The log with confidences of few values."""
    p = np.exp(np.asarray(log.logprob, float))
    if kind == "twentieths":
        p = np.round(20 * p) / 20
    elif kind == "votes":
        p = np.random.default_rng(0).binomial(5, np.nan_to_num(p)) / 5
    else:
        p = STATED[np.abs(np.nan_to_num(p)[..., None] - STATED).argmin(-1)]
    rows, columns = np.nonzero(np.asarray(log.answered))
    with np.errstate(divide="ignore"):
        logprob = np.log(p)[rows, columns]
    table = {
        "query": [str(log.queries[row]) for row in rows],
        "model": [log.models[column] for column in columns],
        "logprob": np.minimum(logprob, 0.0),
        "correct": np.asarray(log.correct)[rows, columns].astype(int),
        "cost": np.asarray(log.query_cost)[rows, columns],
    }
    return rcjax.read_log(pl.DataFrame(table), task=log.task)


def logs(folder: Path | None) -> Iterator[tuple[str, Log]]:
    """Logs by name: those of a folder, or one of the demo's model."""
    if folder is None:
        yield "demo", rcjax.sample_log(QUERIES, seed=0)
        return
    for path in sorted(folder.glob("*_train.csv")):
        task = "choice" if path.name.startswith("mmlu") else "generation"
        yield path.stem, rcjax.read_log(path, prices=folder / "prices.toml", task=task)


def distances(model: CascadeModel, log: Log) -> np.ndarray:
    """(k,) √CvM of each marginal on the log."""
    phi, answered = np.asarray(model.calibrate(log)), np.asarray(log.answered)
    own = (take_entries(model.marginals, j) for j in range(len(log.models)))
    return np.array([float(cramer_von_mises(m, phi[answered[:, j], j])) for j, m in enumerate(own)])


def far_off(model: CascadeModel, log: Log) -> tuple[float, float]:
    """Shares of pairs and triples whose predicted error, and cost, is over two standard errors from a replay."""
    whole = log.take(log.complete)
    phi, right, price = np.asarray(model.calibrate(whole)), np.asarray(whole.correct), np.asarray(model.cost, float)
    off = []
    for size in (2, 3):
        for places in itertools.combinations(range(len(log.models)), size):
            levels = [[np.quantile(phi[:, j], share) + 1e-9 for j in places[:-1]] for share in (0.3, 0.5, 0.7)]
            error, cost = rcjax.solving.error_and_cost(model, jnp.array(levels), [model.models[j] for j in places])
            for row, thresholds in enumerate(levels):
                waiting, wrong, spent = np.ones(len(phi), bool), np.zeros(len(phi)), np.zeros(len(phi))
                for j, threshold in zip(places, [*thresholds, -1.0], strict=True):
                    answers = waiting & (phi[:, j] > threshold)
                    spent += price[j] * waiting
                    wrong += answers & ~right[:, j]
                    waiting &= ~answers
                pairs = (wrong, float(error[row])), (spent, float(cost[row]))
                off.append([abs(x.mean() - said) > 2 * max(x.std(), 1e-12) / np.sqrt(len(x)) for x, said in pairs])
    shares = np.mean(off, axis=0)
    return float(shares[0]), float(shares[1])


def log_loss_gain(log: Log) -> float:
    """By how much the values' own estimates lower the log-loss on fifths left out, against the curve alone."""
    fold, gains = np.random.default_rng(0).permutation(log.n_queries) % 5, []
    for left_out in range(5):
        model = rcjax.fit(log.take(fold != left_out))
        test = log.take(fold == left_out).select(model.models)
        bare = dataclasses.replace(model, calibrators=dataclasses.replace(model.calibrators, stated=None))
        losses = []
        for own in (model, bare):
            phi, right = np.asarray(own.calibrate(test)), np.asarray(test.correct)
            chance = np.clip(np.where(right, phi, 1 - phi), 1e-3, 1.0)[np.asarray(test.answered)]
            losses.append(-np.log(chance).mean())
        gains.append(losses[1] - losses[0])
    return float(np.mean(gains))


def thetas(family: type[rcjax.copulas.Copula], theta: float, values: int, samples: int) -> Mapping[str, np.ndarray]:
    """θ of samples of a copula whose margins have so many values: by likelihood, and by Kendall's τ-b."""
    rng = np.random.default_rng(values)
    edges = [np.append(np.cumsum(rng.dirichlet(np.full(values, 3.0)))[:-1], 1.0) for _ in range(2)]
    draws = family(theta).sample(jax.random.key(values), (samples, QUERIES))  # pyright: ignore[reportCallIssue]
    places = [np.searchsorted(end, np.asarray(u)).clip(0, values - 1) for end, u in zip(edges, draws, strict=True)]
    margins = []
    for end, place in zip(edges, places, strict=True):
        many, start = jnp.ones((samples, 1)), np.append(0.0, end[:-1])
        margins.append(Ranks(jnp.full(place.shape, 0.5), jnp.asarray(place), many * start, many * end))
    fit = jax.jit(jax.vmap(lambda one, other: fit_pair(family, one, other, jnp.ones(QUERIES)).copula))
    taus = jax.jit(jax.vmap(kendall_tau))(*(place.astype(float) for place in places), np.ones(places[0].shape, bool))
    by_tau = jax.vmap(family.from_tau)(taus)
    return {name: np.asarray(vars(own)["theta"]) for name, own in (("likelihood", fit(*margins)), ("τ-b", by_tau))}


def fits(folder: Path | None) -> None:
    """Marginals, predictions and calibration on logs of few values."""
    print("| log | values | √CvM, worst | error off | cost off | log-loss gained |\n|---|---|--:|--:|--:|--:|")
    rows = []
    for name, log in logs(folder):
        for kind in KINDS:
            few = few_values(log, kind)
            model = rcjax.fit(few)
            rows.append((distances(model, few).max(), *far_off(model, few), log_loss_gain(few)))
            worst, error, cost, gain = rows[-1]
            print(f"| {name} | {kind} | {worst:.4f} | {error:.0%} | {cost:.0%} | {gain:+.4f} |")
    table = np.array(rows)
    record.headline("few values: √CvM of the marginals on their log, worst", f"{table[:, 0].max():.4f}")
    record.headline("few values: pairs and triples whose error is over 2 SE from a replay", f"{table[:, 1].mean():.1%}")
    record.headline("few values: log-loss gained by estimates of the values", f"{table[:, 3].mean():+.4f}")


def parameters() -> None:
    """θ by likelihood, and by Kendall's τ-b."""
    print("\n| copula | values | θ by likelihood | by τ-b |\n|---|--:|--:|--:|")
    worst = {"likelihood": 0.0, "τ-b": 0.0}
    for (family, theta), values in itertools.product(TRUE, (3, 5, 10)):
        estimates = thetas(family, theta, values, 200)
        cells = [f"{x.mean():.3f} ± {x.std():.3f}" for x in estimates.values()]
        print(f"| {family.__name__}({theta}) | {values} | {' | '.join(cells)} |")
        worst = {name: max(worst[name], abs(x.mean() / theta - 1)) for name, x in estimates.items()}
    record.headline(
        "few values: bias of θ, worst, by likelihood / by τ-b", f"{worst['likelihood']:.1%} / {worst['τ-b']:.1%}"
    )


def main() -> None:
    """Print the tables."""
    options = record.parser(__doc__)
    options.add_argument("--data", type=Path, help="a folder of logs NAME_train.csv with prices.toml")
    chosen = options.parse_args()
    jax.config.update("jax_enable_x64", True)
    fits(chosen.data)
    parameters()


if __name__ == "__main__":
    record.run(main)
