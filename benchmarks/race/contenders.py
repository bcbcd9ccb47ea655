"""What a user would pick instead of rcjax, at the same work: thresholds of one cascade at many λ."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl

import rcjax
from benchmarks.methods import QUANTILES, answers, outcomes_on_grid
from rcjax._core.batching import number_pairs, take_entries
from rcjax.solving.quadrature import build_tables

_MAX_COMBINATIONS = 3e6


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
        places = number_pairs(k)[left, right]
        tables = jax.jit(build_tables)(model.marginals, take_entries(model.copulas, places), model.cost, left, right)
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


#: λ (L,) → thresholds (L, k − 1).
Solver = Callable[[np.ndarray], np.ndarray]


def by_rcjax(model: rcjax.CascadeModel, log: rcjax.Log) -> Solver:
    """`solve_frontier`, from the model's parameters on."""
    return lambda lam: np.asarray(rcjax.solve_frontier(model, lam=lam, cascades="full").thresholds[:, :-1])


def by_lbfgsb(starts: int) -> Callable[[rcjax.CascadeModel, rcjax.Log], Solver]:
    """The paper's way: scipy's L-BFGS-B in numpy, from the middle and from random starts."""

    def prepare(model, log):
        from scipy.optimize import minimize

        objective, m = Objective(model), len(model.models) - 1
        first = np.vstack([np.full(m, 0.5), np.random.default_rng(0).random((starts - 1, m))])
        bounds = [(1e-6, 1 - 1e-6)] * m

        def solve(lam):
            best = []
            for price in lam:
                found = [minimize(objective, start, (price,), method="L-BFGS-B", bounds=bounds) for start in first]
                best.append(min(found, key=lambda each: each.fun).x)
            return _thresholds(model, np.array(best))

        return solve

    return prepare


def by_jaxopt(model: rcjax.CascadeModel, log: rcjax.Log) -> Solver:
    """jaxopt's L-BFGS-B over the same objective as rcjax, vmapped over λ."""
    return lambda lam: np.asarray(_jaxopt(model, jnp.asarray(lam)))


@jax.jit
def _jaxopt(model, lam):
    from jaxopt import LBFGSB

    low, high = model.marginals.lowest[:-1], model.marginals.highest[:-1]

    def loss(thresholds, price):
        error, cost = rcjax.solving.error_and_cost(model, thresholds)
        return error + price * cost

    def one(price):
        solver = LBFGSB(fun=loss, maxiter=50)
        return solver.run((low + high) / 2, bounds=(low + 1e-6, high - 1e-6), price=price).params

    return jax.vmap(one)(lam)


def by_grid(model: rcjax.CascadeModel, log: rcjax.Log) -> Solver:
    """Every combination of 40 quantiles per threshold, fewer where there would be over three million, on the labels."""
    data = answers(model, log, model.models)
    count = int(min(QUANTILES, _MAX_COMBINATIONS ** (1 / (data.cost.size - 1))))
    grids = [np.quantile(column, np.arange(1, count + 1) / count) for column in data.confidence.T[:-1]]

    def solve(lam):
        found = outcomes_on_grid(data, grids)
        best = [np.argmin(found.error + price * found.cost) for price in lam]
        places = np.unravel_index(best, found.cost.shape)
        return np.stack([grid[place] for grid, place in zip(grids, places, strict=True)], axis=-1)

    return solve


def by_bayes(model: rcjax.CascadeModel, log: rcjax.Log) -> Solver:
    """Bayesian optimisation on the labels, 25 evaluations for each λ."""
    from benchmarks.peers.bayesian import best_thresholds

    data = answers(model, log, model.models)
    return lambda lam: np.stack([best_thresholds(data, price, seed=0) for price in lam])


def _thresholds(model, u):
    marginals = take_entries(model.marginals, slice(0, u.shape[1]))
    return np.asarray(_quantiles(marginals, u))


@jax.jit
def _quantiles(marginals, u):
    return jax.vmap(jax.vmap(lambda marginal, cut: marginal.quantile(cut)), (None, 0))(marginals, u)


#: name → (what makes the solver ready, whether it solves each λ on its own).
METHODS: dict[str, tuple[Callable[[rcjax.CascadeModel, rcjax.Log], Solver], bool]] = {
    "rcjax": (by_rcjax, False),
    "L-BFGS-B, 1 start": (by_lbfgsb(1), True),
    "L-BFGS-B, 20 starts": (by_lbfgsb(20), True),
    "jaxopt L-BFGS-B": (by_jaxopt, False),
    "grid search": (by_grid, False),
    "Bayesian optimisation": (by_bayes, True),
}
