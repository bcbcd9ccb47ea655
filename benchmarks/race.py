"""From one log to the thresholds of one cascade at many λ: rcjax against what a user would pick instead.

    python -m benchmarks.race --out DIR [--quick] [--limit 120] [--device gpu]

Synthetic logs of 2 to 8 models, 10 to 1,000 λ, 300 to 100,000 queries; every method asks every model in turn and
minimises error + λ·cost. Each run has a process of its own, which is stopped after `--limit` seconds; methods that
take each λ on its own solve a few of them, and their time is scaled to all. Compilation is the first call less the
best of those that follow. The loss is what the Markov-copula model predicts at the thresholds found, less the least of
any method; the loss on fresh queries is counted on 20,000 of them. Writes race.csv, race.md and race.png.
"""

import argparse
import dataclasses
import itertools
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from matplotlib.figure import Figure

import rcjax
from benchmarks.methods import QUANTILES, answers, outcomes, outcomes_on_grid
from benchmarks.report import markdown
from benchmarks.timing import timed
from rcjax import plots
from rcjax._files import write_atomically
from rcjax._trees import part
from rcjax.cascade import build_tables
from rcjax.joint import pairs

FEW = 6  # λ at which losses are compared
FRESH = 20_000
_MOST_COMBINATIONS = 3e6


@dataclasses.dataclass(frozen=True)
class Setting:
    """One problem."""

    models: int = 5
    lambdas: int = 100
    queries: int = 1000


def make_log(queries: int, models: int, seed: int) -> rcjax.Log:
    """A log of models of rising skill and price, whose confidences share the difficulty of the query."""
    rng = np.random.default_rng(seed)
    difficulty = rng.normal(size=(queries, 1))
    skill = np.linspace(-0.3, 2.5, models)
    odds = skill - 1.2 * difficulty + 0.8 * rng.normal(size=(queries, models))
    correct = rng.random((queries, models)) < 1 / (1 + np.exp(-odds))
    confidence = 1 / (1 + np.exp(-(1.5 * odds + 0.5)))
    frame = {
        "query": np.repeat(np.arange(queries), models),
        "model": [f"m{j}" for j in range(models)] * queries,
        "confidence": confidence.ravel(),
        "correct": correct.ravel(),
        "cost": np.tile(1e-5 * 3.0 ** np.arange(models), queries),
    }
    return rcjax.read_log(pl.DataFrame(frame))


class Objective:
    """error + λ·cost of the full cascade in numpy, over u in (0, 1): the quadrature of rcjax, cut linearly."""

    def __init__(self, model: rcjax.CascadeModel) -> None:
        k = len(model.models)
        left, right = np.arange(k - 1), np.arange(1, k)
        places = np.array([pairs(k).index(pair) for pair in zip(left, right, strict=True)])
        tables = jax.jit(build_tables)(model.marginals, part(model.copulas, places), model.cost, left, right)
        tables = jax.tree.map(np.asarray, tables)
        self.weight, self.edges, self.kernel = tables.grid.weight, tables.grid.edges, tables.kernel
        self.quantile, self.cost = tables.grid.quantile, tables.cost

    def __call__(self, u: np.ndarray, lam: float) -> float:
        """The loss at cuts u (k − 1,)."""
        density, loss = np.ones(self.weight.shape[1]), 1.0
        for j, cut in enumerate([*u, 0.0]):
            left, right = self.edges[j, :-1], self.edges[j, 1:]
            width = np.where(right > left, right - left, 1.0)
            below = self.weight[j] * np.clip((cut - left) / width, 0.0, 1.0)
            loss += lam * self.cost[j] * (self.weight[j] @ density)
            loss -= ((self.weight[j] - below) * self.quantile[j]) @ density
            if j < len(u):
                density = (below * density) @ self.kernel[j]
        return float(loss)


Solver = Callable[[rcjax.CascadeModel, rcjax.Log, np.ndarray], np.ndarray]


def by_rcjax(model: rcjax.CascadeModel, log: rcjax.Log, lam: np.ndarray) -> np.ndarray:
    """Thresholds (L, k − 1) by `solve_frontier`."""
    return rcjax.solve_frontier(model, lam=lam, cascades="full").thresholds[:, :-1]


def by_lbfgsb(starts: int) -> Solver:
    """The paper's way: scipy's L-BFGS-B in numpy, from the middle and from random starts."""

    def solve(model, log, lam):
        from scipy.optimize import minimize

        objective, m = Objective(model), len(model.models) - 1
        first = np.vstack([np.full(m, 0.5), np.random.default_rng(0).random((starts - 1, m))])
        bounds = [(1e-6, 1 - 1e-6)] * m
        best = []
        for price in lam:
            found = [minimize(objective, start, (price,), method="L-BFGS-B", bounds=bounds) for start in first]
            best.append(min(found, key=lambda each: each.fun).x)
        return _thresholds(model, np.array(best))

    return solve


def by_jaxopt(model: rcjax.CascadeModel, log: rcjax.Log, lam: np.ndarray) -> np.ndarray:
    """jaxopt's L-BFGS-B over the same objective as rcjax, vmapped over λ."""
    return _jaxopt(model, jnp.asarray(lam))


@jax.jit
def _jaxopt(model, lam):
    from jaxopt import LBFGSB

    low, high = model.marginals.lowest[:-1], model.marginals.highest[:-1]

    def loss(thresholds, price):
        error, cost = rcjax.error_and_cost(model, thresholds)
        return error + price * cost

    def one(price):
        solver = LBFGSB(fun=loss, maxiter=50)
        return solver.run((low + high) / 2, bounds=(low + 1e-6, high - 1e-6), price=price).params

    return jax.vmap(one)(lam)


def by_grid(model: rcjax.CascadeModel, log: rcjax.Log, lam: np.ndarray) -> np.ndarray:
    """Every combination of 40 quantiles per threshold, fewer where there would be over three million, on the labels."""
    data = answers(model, log, model.models)
    count = int(min(QUANTILES, _MOST_COMBINATIONS ** (1 / (data.cost.size - 1))))
    grids = [np.quantile(column, np.arange(1, count + 1) / count) for column in data.confidence.T[:-1]]
    found = outcomes_on_grid(data, grids)
    best = [np.argmin(found.error + price * found.cost) for price in lam]
    places = np.unravel_index(best, found.cost.shape)
    return np.stack([grid[place] for grid, place in zip(grids, places, strict=True)], axis=-1)


def by_bayes(model: rcjax.CascadeModel, log: rcjax.Log, lam: np.ndarray) -> np.ndarray:
    """Bayesian optimisation on the labels, 25 evaluations for each λ."""
    from benchmarks.bayesian import best_thresholds

    data = answers(model, log, model.models)
    return np.stack([best_thresholds(data, price, seed=0) for price in lam])


def _thresholds(model, u):
    marginals = part(model.marginals, slice(0, u.shape[1]))
    return np.asarray(jax.vmap(jax.vmap(lambda marginal, cut: marginal.quantile(cut)), (None, 0))(marginals, u))


#: name → (solver, whether it solves each λ on its own).
METHODS: dict[str, tuple[Solver, bool]] = {
    "rcjax": (by_rcjax, False),
    "L-BFGS-B, 1 start": (by_lbfgsb(1), True),
    "L-BFGS-B, 20 starts": (by_lbfgsb(20), True),
    "jaxopt L-BFGS-B": (by_jaxopt, False),
    "grid search": (by_grid, False),
    "Bayesian optimisation": (by_bayes, True),
}


def run_one(method: str, setting: Setting) -> dict:
    """The figures of one method on one problem."""
    log, fresh = (make_log(n, setting.models, seed) for n, seed in ((setting.queries, 0), (FRESH, 1)))
    fitting, fit, _ = timed(lambda: rcjax.fit(log), 2.0)
    model = rcjax.fit(log)
    solve, separate = METHODS[method]
    everything = np.geomspace(1e-3, 1.0, setting.lambdas) / float(model.cost[-1])
    compared = everything[np.linspace(0, setting.lambdas - 1, FEW).astype(int)]
    lam = compared if separate else everything
    compiling, running, found = timed(lambda: solve(model, log, lam), 2.0)
    found = np.asarray(found)
    thresholds = found if separate else found[np.searchsorted(everything, compared)]
    error, cost = rcjax.error_and_cost(model, jnp.asarray(thresholds))
    seen = outcomes(answers(model, fresh, model.models), thresholds)
    return {
        "fit, compile, s": fitting,
        "fit, s": fit,
        "compile, s": 0.0 if separate else max(compiling, 0.0),
        "run, s": running * setting.lambdas / len(lam),
        "peak memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "loss": float(jnp.mean(error + compared * cost)),
        "loss on fresh queries": float(np.mean(seen.error + compared * seen.cost)),
    }


def settings(quick: bool) -> list[Setting]:
    """All problems: one of length, resolution and size varies at a time."""
    lengths = (2, 3) if quick else (2, 3, 4, 5, 6, 7, 8)
    resolutions = (10, 30) if quick else (10, 30, 300, 1000)
    sizes = (300, 600) if quick else (300, 10_000, 100_000)
    found = [Setting(models=k) for k in lengths] + [
        Setting(lambdas=n, models=lengths[-1] if quick else 5) for n in resolutions
    ]
    return found + [Setting(queries=n, models=lengths[-1] if quick else 5) for n in sizes]


def race(quick: bool, limit: float, device: str) -> pl.DataFrame:
    """All methods on all problems, each in a process of its own."""
    rows = []
    for setting, method in itertools.product(settings(quick), METHODS):
        values = dataclasses.asdict(setting)
        command = [sys.executable, "-m", "benchmarks.race", "--one", json.dumps([method, values]), "--device", device]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
            figures = json.loads(done.stdout) if done.returncode == 0 else {"failed": done.stderr.strip()[-200:]}
        except subprocess.TimeoutExpired:
            figures = {"failed": f"over {limit:g} s"}
        rows.append(values | {"method": method} | figures)
        if sys.stderr.isatty():
            print(rows[-1], file=sys.stderr)
    frame = pl.DataFrame(rows, infer_schema_length=None)
    least = pl.col("loss").min().over("models", "lambdas", "queries")
    return frame.with_columns((pl.col("loss") - least).alias("loss over the least"))


def exponents(frame: pl.DataFrame) -> list[dict]:
    """Slopes of log run time in log length, resolution and size, by method."""
    found = []
    base = dataclasses.asdict(Setting())
    for method in METHODS:
        row: dict = {"method": method}
        for axis in base:
            same = [pl.col(other) == base[other] for other in base if other != axis]
            chosen = frame.filter(pl.col("method") == method, pl.col("run, s").is_not_null(), *same)
            known = chosen.select(axis, "run, s").unique().to_numpy()
            row[axis] = float(np.polyfit(*np.log(known).T, 1)[0]) if len(known) > 2 else None
        found.append(row)
    return found


def draw(frame: pl.DataFrame, path: Path) -> None:
    """Run time against length, resolution and size, on logarithmic axes."""
    base = dataclasses.asdict(Setting())
    figure = Figure(figsize=(12, 4), layout="constrained")
    markers = "osD^vP"
    colours = (plots.BLUE, plots.GREY, plots.ORANGE, plots.PURPLE, plots.GREEN, plots.BLACK)
    for place, axis in enumerate(base):
        ax = figure.add_subplot(1, 3, place + 1)
        same = [pl.col(other) == base[other] for other in base if other != axis]
        for method, marker, colour in zip(METHODS, markers, colours, strict=True):
            chosen = frame.filter(pl.col("method") == method, pl.col("run, s").is_not_null(), *same).sort(axis)
            ax.plot(chosen[axis], chosen["run, s"], marker=marker, color=colour, linewidth=1.2, label=method)
        ax.set(xscale="log", yscale="log", xlabel=axis, ylabel="seconds, compiled")
        ax.grid(color="#DDDDDD", linewidth=0.6)
    ax.legend(frameon=False, fontsize=8)
    plots.save_figure(figure, path)


def main() -> None:
    """Race, or run one method on one problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--quick", action="store_true", help="few and small problems")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one method on one problem")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", {"cpu": "cpu", "gpu": "cuda"}[options.device])
    if options.one:
        method, values = json.loads(options.one)
        print(json.dumps(run_one(method, Setting(**values))))
        return
    if options.out is None:
        parser.error("--out is missing")
    options.out.mkdir(parents=True, exist_ok=True)
    frame = race(options.quick, options.limit, options.device)
    write_atomically(options.out / "race.csv", frame.write_csv())
    text = f"{markdown(frame)}\n\nFitted exponents of the run time:\n\n{markdown(pl.DataFrame(exponents(frame)))}\n"
    write_atomically(options.out / "race.md", text)
    draw(frame, options.out / "race.png")
    print(options.out / "race.md")


if __name__ == "__main__":
    main()
