"""An objective given as a function of what a cascade does, minimised by `rcjax.solving.minimise` and by others.

The objective is error + λ·cost, whose optimum Bellman's equation tells: so every method can be held to it. Value and
slope are those of all λ at once; methods that take each λ on its own solve some, and their time is scaled.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rcjax
from benchmarks.race.contenders import Objective, make_log
from benchmarks.timing import timed
from rcjax._core.batching import number_pairs, take_entries
from rcjax.solving.quadrature import build_tables, outcome_of_cuts

PATIENCE = 5.0
SOME = 20  # λ that are solved for on their own
QUERIES = 1000


def loss(outcome: rcjax.solving.Outcome, lam: jax.Array) -> jax.Array:
    """error + λ·cost."""
    return outcome.error + lam * outcome.cost


class Ranks:
    """The same objective as a function of ranks u (k − 1,), for solvers that know nothing of cascades."""

    def __init__(self, model: rcjax.CascadeModel) -> None:
        k = len(model.models)
        left, right = np.arange(k - 1), np.arange(1, k)
        places = number_pairs(k)[left, right]
        chain = take_entries(model.copulas, places)
        tables = jax.jit(build_tables)(model.marginals, chain, model.cost, left, right)
        low, high = (np.asarray(end)[:-1] for end in tables.grid.smooth_range)
        self.low, self.high, self.k = low, high, k
        links = np.ones(k - 1, bool)
        self.value = lambda u, price: outcome_of_cuts(tables, jnp.append(u, 0.0), links, 0).terms.loss(price)

    @property
    def middle(self) -> np.ndarray:
        """(k − 1,)."""
        return (self.low + self.high) / 2


#: λ (L,) → the loss (L,) of what is found.
Solver = Callable[[np.ndarray], np.ndarray]


def by_minimise(model: rcjax.CascadeModel, ranks: Ranks) -> Solver:
    def solve(lam: np.ndarray) -> np.ndarray:
        frontier = rcjax.solving.minimise(loss, model, "full", lam=lam)
        return np.asarray(frontier.error + frontier.lam * frontier.cost)

    return solve


def by_bellman(model: rcjax.CascadeModel, ranks: Ranks) -> Solver:
    def solve(lam: np.ndarray) -> np.ndarray:
        frontier = rcjax.solve_frontier(model, lam=lam, cascades="full")
        return np.asarray(frontier.error + frontier.lam * frontier.cost)

    return solve


def by_jaxopt(model: rcjax.CascadeModel, ranks: Ranks) -> Solver:
    """L-BFGS-B from the middle, vmapped over λ."""
    from jaxopt import LBFGSB

    solver = LBFGSB(fun=ranks.value, maxiter=100)

    def one(price: jax.Array) -> jax.Array:
        solution = solver.run(jnp.asarray(ranks.middle), bounds=(ranks.low, ranks.high), price=price)
        return ranks.value(solution.params, price)

    solve = jax.jit(jax.vmap(one))
    return lambda lam: np.asarray(solve(lam))


def by_scipy(model: rcjax.CascadeModel, ranks: Ranks) -> Solver:
    """L-BFGS-B from the middle, one λ after the other, with slopes by JAX."""
    from scipy.optimize import minimize

    both = jax.jit(jax.value_and_grad(ranks.value))

    def call(u: np.ndarray, price: float) -> tuple[float, np.ndarray]:
        value, slope = both(u, price)
        return float(value), np.asarray(slope)

    bounds = list(zip(ranks.low, ranks.high, strict=True))

    def solve(lam: np.ndarray) -> np.ndarray:
        return np.array(
            [minimize(call, ranks.middle, (p,), jac=True, bounds=bounds, method="L-BFGS-B").fun for p in lam]
        )

    return solve


def by_differences(model: rcjax.CascadeModel, ranks: Ranks) -> Solver:
    """The paper's way: scipy's L-BFGS-B in numpy, slopes by differences, one λ after the other."""
    from scipy.optimize import minimize

    plain, bounds = Objective(model), list(zip(ranks.low, ranks.high, strict=True))
    return lambda lam: np.array(
        [minimize(plain, ranks.middle, (p,), bounds=bounds, method="L-BFGS-B").fun for p in lam]
    )


#: name → (the solver, whether it takes each λ on its own).
METHODS: dict[str, tuple[Callable[..., Solver], bool]] = {
    "rcjax.solving.minimise": (by_minimise, False),
    "jaxopt L-BFGS-B": (by_jaxopt, False),
    "scipy L-BFGS-B, slopes by JAX": (by_scipy, True),
    "scipy L-BFGS-B, differences": (by_differences, True),
    "solve_frontier (Bellman)": (by_bellman, False),
}


def _setting(models: int, lambdas: int) -> tuple[rcjax.CascadeModel, np.ndarray]:
    model = rcjax.fit(make_log(QUERIES, models, 0))
    return model, np.geomspace(1e-3, 1.0, lambdas) / float(model.cost[-1])


def solve(method: str, models: int, lambdas: int) -> dict[str, Any]:
    """One method, from a fitted model to the cuts of the cascade of all models at every λ."""
    model, lam = _setting(models, lambdas)
    prepare, separate = METHODS[method]
    solver = prepare(model, Ranks(model))
    chosen = lam[np.linspace(0, lambdas - 1, SOME).astype(int)] if separate else lam
    compiling, running, reached = timed(lambda: solver(chosen), PATIENCE)
    before = time.process_time()
    solver(chosen)
    busy = time.process_time() - before
    best = by_bellman(model, Ranks(model))(chosen)
    return {
        "compile, s": max(compiling, 0.0),
        "run, s": running * lambdas / len(chosen),
        "run, s of CPU": busy * lambdas / len(chosen),
        "loss over Bellman's, mean": float(np.mean(reached - best)),
        "most": float(np.max(reached - best)),
    }


def evaluations(way: str, models: int, lambdas: int) -> dict[str, Any]:
    """Value and slope at all λ: by JAX at once, or in numpy one after the other."""
    model, lam = _setting(models, lambdas)
    ranks = Ranks(model)
    u = np.broadcast_to(ranks.middle, (lambdas, models - 1))
    if way == "numpy":
        plain, step = Objective(model), 1e-6 * np.eye(models - 1)
        value = lambda: [plain(row, price) for row, price in zip(u, lam, strict=True)]  # noqa: E731
        slope = lambda: [  # noqa: E731
            [plain(row + move, price) for move in [0 * step[0], *step]] for row, price in zip(u, lam, strict=True)
        ]
    else:
        both = jax.jit(jax.vmap(jax.value_and_grad(ranks.value)))
        alone = jax.jit(jax.vmap(ranks.value))
        value, slope = (lambda: alone(u, lam)), (lambda: both(u, lam))
    compiling, running, _ = timed(value, PATIENCE)
    compiling_slope, running_slope, _ = timed(slope, PATIENCE)
    return {
        "value: compile, s": max(compiling, 0.0),
        "value: run, s": running,
        "with slope: compile, s": max(compiling_slope, 0.0),
        "with slope: run, s": running_slope,
    }
