"""Frontiers against what others find: SciPy's L-BFGS-B from many starts, and the thresholds of the paper's authors."""

import csv
import itertools
import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cascade_references import random_models, take
from scipy.optimize import minimize

import rcjax
from rcjax import solve_frontier
from rcjax._core.batching import number_pairs
from rcjax.solving.frontier.points import area_under_curve
from rcjax.solving.quadrature import build_tables, outcome_of_cuts

pytestmark = pytest.mark.usefixtures("float64")

#: Costs of the random models lie between 1 and 30.
LAM = np.geomspace(1e-3, 0.1, 8)
GLOBAL = 1e-5


@pytest.mark.thorough
def test_fifty_starts_of_l_bfgs_b_never_beat_the_solver():
    """On the same objective, in u, from uniform starts, with jax's gradients."""
    models = random_models(51, 3, 6)
    k = models.cost.shape[-1]
    left, right = np.arange(k - 1), np.arange(1, k)
    neighbours = number_pairs(k)[left, right]
    lam = LAM[[1, 4, 6]]

    @jax.jit
    def tables_of(model):
        copulas = jax.tree.map(lambda leaf: leaf[neighbours], model.copulas)
        return build_tables(model.marginals, copulas, model.cost, left, right)

    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 1})  # it runs some ten thousand times
    @jax.value_and_grad
    def objective(u, tables, price):
        return outcome_of_cuts(tables, jnp.append(u, 0.0), np.ones(k - 1, bool), 0).terms.loss(price)

    rng = np.random.default_rng(0)
    for i in range(2):
        model = take(models, i)
        tables = tables_of(model)
        low, high = (np.asarray(end)[:-1] for end in tables.grid.smooth_range)
        frontier = solve_frontier(model, lam=lam, cascades="full")
        losses = np.asarray(frontier.error + frontier.lam * frontier.cost)
        for price, best in zip(lam, losses, strict=True):

            def call(u, tables=tables, price=price):
                value, slope = objective(u, tables, price)
                return float(value), np.asarray(slope, float)

            bounds = list(zip(low, high, strict=True))
            starts = low + (high - low) * rng.uniform(size=(50, k - 1))
            least = min(minimize(call, u, jac=True, method="L-BFGS-B", bounds=bounds).fun for u in starts)
            assert best <= least + GLOBAL, (i, price)


@pytest.mark.thorough
@pytest.mark.parametrize(("benchmark", "task"), [("mmlu", "choice"), ("triviaqa", "generation")])
def test_areas_against_the_published_thresholds(shared_data, shared_reference, benchmark, task):
    """On test data, mean over the 26 cascades: less area than the thresholds of the paper's authors."""
    read = {"prices": shared_data / "prices.toml", "task": task}
    train, test = (rcjax.read_log(shared_data / f"{benchmark}_llama_{part}.csv", **read) for part in ("train", "test"))
    with (shared_reference / "authors_curves.csv").open() as file:
        published = [row for row in csv.DictReader(file) if row["benchmark"] == benchmark]
    names = json.loads((shared_reference / "published_tables.json").read_text())["models"][:5]
    model, change = rcjax.fit(train.select(names)), []
    for cascade in (path for length in range(2, 6) for path in itertools.combinations(range(5), length)):
        place = "-".join(map(str, cascade))
        rows = [row for row in published if (row["cascade"], row["method"]) == (place, "rational_tuning")]
        reference = np.array([[float(row["cost_per_million_queries"]), 1 - float(row["accuracy"])] for row in rows]).T
        replayed = rcjax.replay(solve_frontier(model, cascades=[tuple(names[j] for j in cascade)]), test)
        ours = np.array([np.asarray(replayed.cost) * 1e6, replayed.error])
        low, high = max(ours[0].min(), reference[0].min()), min(ours[0].max(), reference[0].max())
        change.append(area_under_curve(*ours, low, high) / area_under_curve(*reference, low, high) - 1)
    assert np.mean(change) < -0.002
    assert max(change) < 0.02
