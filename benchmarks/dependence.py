"""The dependence that the Markov chain of confidences leaves out, on queries that were not fitted to.

    python -m benchmarks.dependence density --data DIR [--queries 300]
    python -m benchmarks.dependence markov --data DIR
    python -m benchmarks.dependence sequential --data DIR [--splits 2] [--cascades full all]

DIR holds {name}_train.csv and maybe {name}_test.csv, and prices.toml; both files are pooled and split anew, `queries`
to fit to (half of a smaller log). `sequential` also reads the logs of DIR/public that have confidences.

`density`: neighbours along the chain. Ranks are among the queries fitted to, ties broken at random, so that all have
a density. Each family is fitted by likelihood; "best" takes each pair's by Akaike's criterion; `tll` is
pyvinecopulib's local-likelihood estimate. Figures are mean log densities of the others' ranks, in nats per pair.

`markov`: the conditional test of all triples of neighbours, on the whole log; and the second tree of a vine (first and
third model given the second, by the best families of the first tree), fitted and chosen likewise, on the others.

`sequential`: the calibrated confidence of each model given those of the models asked before it, by a logistic
regression with ridge penalties chosen by five folds of the queries fitted to, takes the place of Φ; marginals,
copulas and frontier are made of it, and its policies answer the others. Against `fit` as it is: log-loss, and
error + λ·cost, mean over λ at which the dearest answer costs 1 to 50 points of error.
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
from benchmarks.paper.inputs import pooled, resplit
from benchmarks.report import progress
from rcjax.copulas import BB1, BB7, Clayton, Copula, Frank, Gaussian, Gumbel, Independence, Joe, SurvivalGumbel, Tawn
from rcjax.model.goodness_of_fit import conditional_test
from rcjax.model.likelihood import Ranks
from rcjax.model.maximum_likelihood import count_parameters, fit_pair

SIX = (SurvivalGumbel, Gumbel, Clayton, Frank, Joe, Gaussian)
ALL = (*SIX, BB1, BB7, Tawn, Independence)
#: λ times the dearest model's cost: 1 to 50 points of error.
STEPS = np.geomspace(0.01, 0.5, 8)
#: Penalties of what earlier models add, in standard deviations of a normal prior; 0: nothing.
PRIORS = (0.0, 0.1, 0.3, 1.0)


def logs(folder: Path, fewest: int = 2) -> Iterator[tuple[str, rcjax.Log]]:
    """(name, whole log) of every log with so many models, of the queries that all of them answered."""
    for path in sorted(folder.glob("*_train.csv")):
        name = path.name.removesuffix("_train.csv")
        log = pooled(folder, name)[0]
        if len(log.models) >= fewest:
            yield name, log.take(log.complete)


def with_public(folder: Path) -> Iterator[tuple[str, rcjax.Log]]:
    """(name, whole log) of `logs`, then those in `public` that have confidences."""
    yield from logs(folder)
    for path in sorted((folder / "public").glob("*.csv")):
        if "confidence" in pl.read_csv(path, n_rows=1).columns:
            log = rcjax.read_log(path)
            yield path.stem, log.take(log.complete)


def split(log: rcjax.Log, queries: int, number: int) -> tuple[rcjax.Log, rcjax.Log]:
    """`queries` of a log, or half of a small one, and the others."""
    return resplit(log, min(queries, log.n_queries // 2), number)


def ranks_among(train: np.ndarray, values: np.ndarray, seed: int) -> np.ndarray:
    """Ranks of values (m, k) among those of each column of `train` (n, k), in (0, 1); ties are broken at random."""
    drawn = np.random.default_rng(seed).uniform(size=values.shape)
    below = np.stack([np.searchsorted(np.sort(t), x, side="left") for t, x in zip(train.T, values.T, strict=True)], 1)
    up_to = np.stack([np.searchsorted(np.sort(t), x, side="right") for t, x in zip(train.T, values.T, strict=True)], 1)
    return (below + drawn * (up_to - below + 1)) / (len(train) + 1)


def filled(columns: Sequence[np.ndarray], size: int) -> tuple[jax.Array, jax.Array]:
    """((P, size) columns filled up with ½, (P, size) weights): one compiled program fits pairs of any length."""
    table = np.stack([np.pad(x, (0, size - len(x)), constant_values=0.5) for x in columns])
    return jnp.asarray(table), jnp.asarray(np.stack([np.arange(size) < len(x) for x in columns]), float)


@dataclasses.dataclass
class Pairs:
    """P pairs of margins as ranks: those to fit to and those to judge by."""

    train: list[tuple[np.ndarray, np.ndarray]]
    test: list[tuple[np.ndarray, np.ndarray]]

    def fit(self, families: Sequence[type[Copula]] = ALL) -> tuple[np.ndarray, np.ndarray, list[Copula]]:
        """(AIC (P, F), mean log density of the test ranks (P, F), the copulas of each family)."""
        size = max(len(u) for u, _ in self.train)
        (u, weights), (v, _) = (filled(side, size) for side in zip(*self.train, strict=True))
        aic, density, found = [], [], []
        for family in families:
            progress(family.__name__)
            fits = jax.jit(jax.vmap(lambda u, v, w, family=family: fit_pair(family, Ranks(u), Ranks(v), w)))(
                u, v, weights
            )
            evaluate = jax.jit(family.log_density)
            members = [jax.tree.map(lambda leaf, p=p: leaf[p], fits.copula) for p in range(len(u))]
            aic.append(2 * count_parameters(family) - 2 * np.asarray(fits.log_likelihood))
            density.append(self._judge(evaluate, members))
            found.append(members)
        return np.stack(aic, 1), np.stack(density, 1), found

    def _judge(self, evaluate, copulas: list[Copula]) -> list[float]:
        """Mean log density of each pair's test ranks, at one size for all."""
        size = max(len(u) for u, _ in self.test)
        (u, weights), (v, _) = (filled(side, size) for side in zip(*self.test, strict=True))
        rows = [evaluate(copula, x, y) for copula, x, y in zip(copulas, u, v, strict=True)]
        return [float((row * w).sum() / w.sum()) for row, w in zip(rows, weights, strict=True)]


def neighbours(folder: Path, queries: int) -> tuple[list[str], Pairs]:
    """(name of the log of each pair, ranks of neighbouring models)."""
    names, train, test = [], [], []
    for name, log in logs(folder):
        first, rest = split(log, queries, 0)
        values = np.asarray(first.logprob, float)
        fitted, judged = (ranks_among(values, np.asarray(part.logprob, float), 0) for part in (first, rest))
        for i in range(len(log.models) - 1):
            names.append(name)
            train.append((fitted[:, i], fitted[:, i + 1]))
            test.append((judged[:, i], judged[:, i + 1]))
    return names, Pairs(train, test)


def nonparametric(pairs: Pairs) -> np.ndarray:
    """(P,) mean log density of the test ranks under pyvinecopulib's transformed local likelihood."""
    import pyvinecopulib as pv

    figures = []
    for train, test in zip(pairs.train, pairs.test, strict=True):
        copula = pv.Bicop(pv.BicopFamily.tll)
        copula.fit(np.stack(train, 1))
        figures.append(np.log(copula.pdf(np.stack(test, 1))).mean())
    return np.array(figures)


def density(folder: Path, queries: int) -> None:
    """A row for each family and choice, a column for each log."""
    names, pairs = neighbours(folder, queries)
    aic, figures, _ = pairs.fit()
    six = [ALL.index(family) for family in SIX]
    choices = {"best of six": six, "best of six, BB1, BB7 and Tawn": range(len(ALL) - 1)}
    rows = {family.__name__: figures[:, place] for place, family in enumerate(ALL[:-1])}
    rows |= {name: _chosen(aic, figures, places) for name, places in choices.items()}
    rows["nonparametric (tll)"] = nonparametric(pairs)
    columns = list(dict.fromkeys(names))
    print(f"| nats per pair, held out | {' | '.join(columns)} | mean of {len(names)} pairs |")
    print(f"|---|{'--:|' * (len(columns) + 1)}")
    for name, row in rows.items():
        cells = [
            f"{np.mean([x for x, log in zip(row, names, strict=True) if log == column]):.3f}" for column in columns
        ]
        print(f"| {name} | {' | '.join(cells)} | {row.mean():.3f} |")
    told = ", ".join(f"{rows[name].mean():.3f} ({name})" for name in ("Gumbel", *choices, "nonparametric (tll)"))
    record.headline("held-out log density of neighbours, nats per pair", told)


def _chosen(aic: np.ndarray, figures: np.ndarray, places: Sequence[int]) -> np.ndarray:
    """(P,) figures of each pair's family of least AIC among some."""
    among = np.asarray(places)
    best = among[np.argmin(np.where(np.isnan(aic), np.inf, aic)[:, among], axis=1)]
    return figures[np.arange(len(figures)), best]


def markov(folder: Path, queries: int) -> None:
    """A row for each triple of neighbours."""
    names, pairs = neighbours(folder, queries)
    aic, _, copulas = pairs.fit()
    best = np.argmin(np.where(np.isnan(aic), np.inf, aic), axis=1)
    triples = [p for p in range(len(names) - 1) if names[p] == names[p + 1]]
    second = Pairs([], [])
    for p in triples:
        first, last = copulas[best[p]][p], copulas[best[p + 1]][p + 1]
        for source, target in ((pairs.train, second.train), (pairs.test, second.test)):
            (a, b), (_, c) = source[p], source[p + 1]
            target.append((np.asarray(first.conditional_on_v(a, b)), np.asarray(last.conditional(b, c))))
    two_aic, two, _ = second.fit()
    gain = _chosen(two_aic, two, range(len(ALL)))
    tests = []
    for name, log in logs(folder, 3):
        values = np.maximum(np.asarray(log.logprob, float).T, -1e9)  # two of −∞ are equal
        for i in range(len(values) - 2):
            there = jnp.ones(len(values[0]), bool)
            tests.append((name, log.models[i : i + 3], conditional_test(*values[i : i + 3], there, jax.random.key(0))))
    print("| log | models | queries | τ of first and last given the middle one | p | second tree, nats per query |")
    print("|---|---|--:|--:|--:|--:|")
    for (name, models, test), nats in zip(tests, gain, strict=True):
        cells = f"{int(test.n)} | {float(test.tau):.2f} | {float(test.p_value):.4f} | {nats:+.3f}"
        print(f"| {name} | {', '.join(models)} | {cells} |")
    rejected = sum(float(test.p_value) < 0.05 for *_, test in tests)
    record.headline("Markov property rejected at 5 %", f"{rejected} of {len(tests)} triples of neighbours")
    record.headline("second tree of a vine, held out, nats per query", f"{gain.mean():+.3f}, least {gain.min():+.3f}")


def regression(features: np.ndarray, correct: np.ndarray, prior: float) -> np.ndarray:
    """Coefficients of a logistic regression on (1, own, earlier …), the own drawn to 1, earlier ones to 0."""
    center, weight = np.zeros(features.shape[1]), np.full(features.shape[1], prior**-2.0)
    center[1], weight[:2] = 1.0, (1.0, 4.0)
    beta = center.copy()
    for _ in range(30):
        p = 1 / (1 + np.exp(-features @ beta))
        slope = features.T @ (correct - p) - weight * (beta - center)
        beta = beta + np.linalg.solve((features.T * (p * (1 - p))) @ features + np.diag(weight), slope)
    return beta


def log_loss(features: np.ndarray, correct: np.ndarray, beta: np.ndarray) -> float:
    """Mean minus log-likelihood."""
    return float(np.logaddexp(0.0, np.where(correct > 0.5, -1, 1) * (features @ beta)).mean())


def given_earlier(
    train: np.ndarray, correct: np.ndarray, test: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log-odds of train (n, m) and test (q, m) given all earlier models' log-odds, and (m,) chosen priors."""
    out = [train.copy(), test.copy()]
    chosen = np.zeros(train.shape[1])
    folds = np.arange(len(train)) % 5
    for j in range(1, train.shape[1]):
        features = [np.c_[np.ones(len(z)), z[:, j], z[:, :j]] for z in (train, test)]
        y, losses = correct[:, j], []
        for prior in PRIORS:
            left = [
                log_loss(features[0][folds == f], y[folds == f], _fitted(features[0][folds != f], y[folds != f], prior))
                for f in range(5)
            ]
            losses.append(np.mean(left))
        chosen[j] = PRIORS[int(np.argmin(losses))]
        beta = _fitted(features[0], y, chosen[j])
        out[0][:, j], out[1][:, j] = (z @ beta for z in features)
    return out[0], out[1], chosen


def _fitted(features: np.ndarray, correct: np.ndarray, prior: float) -> np.ndarray:
    """As it is calibrated, where the prior is 0."""
    return np.eye(features.shape[1])[1] if prior == 0 else regression(features, correct, prior)


def with_confidence(log: rcjax.Log, log_odds: np.ndarray) -> rcjax.Log:
    """The log with other confidences: −log(1 + e^−z)."""
    return dataclasses.replace(log, logprob=jnp.asarray(-np.logaddexp(0.0, -log_odds)), task="generation")


def losses(train: rcjax.Log, test: rcjax.Log, cascades: list[tuple[str, ...]], lam: np.ndarray) -> np.ndarray:
    """(2, L): the model's error + λ·cost of the best of some cascades, and that on the test log."""
    frontier = rcjax.solve_frontier(rcjax.fit(train), lam=lam, cascades=cascades)
    seen = rcjax.replay(frontier, test)
    cost = np.asarray(seen.cost, float)
    order = np.argsort(np.asarray(frontier.lam, float))
    return np.stack(
        [
            (np.asarray(frontier.error, float) + lam * np.asarray(frontier.cost, float))[order],
            (np.asarray(seen.error, float) + lam * cost)[order],
        ]
    )


def compare(train: rcjax.Log, test: rcjax.Log, which: str) -> tuple[float, float, float]:
    """(change of error + λ·cost in per cent, change of the last model's log-loss, models that take earlier ones)."""
    model = rcjax.fit(train)
    odds = [np.log(p) - np.log1p(-p) for p in (np.clip(model.calibrate(x), 1e-6, 1 - 1e-6) for x in (train, test))]
    right = [np.asarray(log.correct, float) for log in (train, test)]
    lam = STEPS / float(np.max(train.cost))
    sizes = range(2, len(train.models) + 1) if which == "all" else [len(train.models)]
    alone = losses(train, test, [(name,) for name in train.models], lam)
    plain, own = ([alone], [alone]) if which == "all" else ([], [])
    for places in (list(c) for size in sizes for c in itertools.combinations(range(len(train.models)), size)):
        names = tuple(train.models[j] for j in places)
        old = [with_confidence(log.select(names), z[:, places]) for log, z in zip((train, test), odds, strict=True)]
        before, after, chosen = given_earlier(odds[0][:, places], right[0][:, places], odds[1][:, places])
        new = [with_confidence(log.select(names), z) for log, z in zip((train, test), (before, after), strict=True)]
        plain.append(losses(old[0], old[1], [names], lam))
        own.append(losses(new[0], new[1], [names], lam) if np.any(chosen) else plain[-1])
    best = [np.stack(found)[np.argmin(np.stack(found)[:, 0], 0), 1, np.arange(len(lam))] for found in (plain, own)]
    last = right[1][:, places[-1]]
    gap = [np.logaddexp(0.0, np.where(last > 0.5, -1, 1) * z).mean() for z in (after[:, -1], odds[1][:, places[-1]])]
    return 100 * float(np.mean(best[1] / best[0]) - 1), float(gap[0] - gap[1]), float(np.count_nonzero(chosen))


def sequential(folder: Path, queries: int, splits: int, cascades: Sequence[str]) -> None:
    """A row for each log."""
    print("| log | cascades | error + λ·cost, % | log-loss of the last model | models that take earlier ones |")
    print("|---|---|--:|--:|--:|")
    gains: dict[str, list[float]] = {which: [] for which in cascades}
    for which, (name, log) in itertools.product(cascades, with_public(folder)):
        found = np.array([compare(*split(log, queries, number), which) for number in range(splits)])
        error = found[:, 0].std(ddof=1) / np.sqrt(splits) if splits > 1 else float("nan")
        gains[which].append(found[:, 0].mean())
        cells = f"{found[:, 0].mean():+.2f} ± {error:.2f} | {found[:, 1].mean():+.4f} | {found[:, 2].mean():.1f}"
        print(f"| {name} | {which} | {cells} |", flush=True)
    for which, changes in gains.items():
        fallen = sum(change <= -1 for change in changes)
        told = f"{np.mean(changes):+.2f} % on average; by 1 % or more on {fallen} of {len(changes)} logs"
        record.headline(f"calibration given earlier confidences, error + λ·cost, {which}", told)


def main() -> None:
    """One of the three parts."""
    parser = record.parser(__doc__)
    parser.add_argument("part", choices=("density", "markov", "sequential"))
    parser.add_argument("--data", type=Path, required=True, help="folder of the logs")
    parser.add_argument("--queries", type=int, default=300, help="queries to fit to")
    parser.add_argument("--splits", type=int, default=2, help="random splits of each log (sequential)")
    parser.add_argument("--cascades", nargs="+", choices=("full", "all"), default=["full", "all"])
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if arguments.part == "sequential":
        sequential(arguments.data, arguments.queries, arguments.splits, arguments.cascades)
    else:
        {"density": density, "markov": markov}[arguments.part](arguments.data, arguments.queries)


if __name__ == "__main__":
    record.run(main)
