"""What one process measures: a fit, a contender on a problem, rcjax on a large one, many problems at once."""

import dataclasses
import itertools
import json
import resource
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import rcjax
from benchmarks.methods import answers, outcomes
from benchmarks.race import objectives
from benchmarks.race.contenders import METHODS, make_log
from benchmarks.timing import timed
from rcjax._base.files import write_atomically
from rcjax.model.cascade_model import model_from_json
from rcjax.solving.bellman import SearchTables, best_cascades, make_plan
from rcjax.solving.optimum import build_pair_tables

FEW = 3  # λ at which losses are compared
FRESH = 20_000
PATIENCE = 3.0
LAMBDAS = 100  # of each model, where many problems are solved at once


@dataclasses.dataclass(frozen=True)
class Setting:
    """One problem."""

    models: int = 5
    lambdas: int = 100
    queries: int = 1000


def _lambdas(model: rcjax.CascadeModel, count: int) -> np.ndarray:
    return np.geomspace(1e-3, 1.0, count) / float(model.cost[-1])


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fit(model_file: str, **values: int) -> dict[str, Any]:
    """`rcjax.fit` on the log of a problem; the contenders read the model that it leaves behind."""
    log = make_log(values["queries"], values["models"], 0)
    compiling, running, model = timed(lambda: rcjax.fit(log), PATIENCE)
    write_atomically(model_file, json.dumps(model.to_json()))
    return {"compile, s": max(compiling, 0.0), "run, s": running, "peak memory, MB": _peak()}


def contender(method: str, model_file: str, **values: int) -> dict[str, Any]:
    """One method, from a fitted model and its log to the thresholds of the cascade of all models."""
    setting = Setting(**values)
    log, fresh = (make_log(n, setting.models, seed) for n, seed in ((setting.queries, 0), (FRESH, 1)))
    model = model_from_json(json.loads(Path(model_file).read_text("utf-8")))
    prepare, separate = METHODS[method]
    solve = prepare(model, log)
    everything = _lambdas(model, setting.lambdas)
    compared = everything[np.linspace(0, setting.lambdas - 1, FEW).astype(int)]
    lam = compared if separate else everything
    compiling, running, found = timed(lambda: solve(lam), PATIENCE)
    peak = _peak()
    found = np.asarray(found)
    thresholds = found if separate else found[np.searchsorted(everything, compared)]
    error, cost = rcjax.solving.error_and_cost(model, jnp.asarray(thresholds))
    seen = outcomes(answers(model, fresh, model.models), thresholds)
    return {
        "compile, s": max(compiling, 0.0),
        "run, s": running * setting.lambdas / len(lam),
        "peak memory, MB": peak,
        "loss": float(jnp.mean(error + compared * cost)),
        "loss on fresh queries": float(np.mean(seen.error + compared * seen.cost)),
    }


def stretch(cascades: Any, **values: int) -> dict[str, Any]:
    """rcjax alone, on more models and λ than the others could take."""
    setting = Setting(**values)
    model = rcjax.fit(make_log(setting.queries, setting.models, 0))
    lam = _lambdas(model, setting.lambdas)
    compiling, running, _ = timed(lambda: rcjax.solve_frontier(model, lam=lam, cascades=cascades).error, PATIENCE)
    return {"compile, s": max(compiling, 0.0), "run, s": running, "peak memory, MB": _peak()}


def every_cascade(**values: int) -> dict[str, Any]:
    """The work that the paper times: a fit, then each cascade of two models or more on its own."""
    setting = Setting(**values)
    log = make_log(setting.queries, setting.models, 0)
    cascades = [c for size in range(2, setting.models + 1) for c in itertools.combinations(log.models, size)]

    def work():
        model = rcjax.fit(log)
        lam = _lambdas(model, setting.lambdas)
        return [rcjax.solve_frontier(model, lam=lam, cascades=[cascade]).error for cascade in cascades]

    compiling, running, _ = timed(work, PATIENCE)
    return {"solved": len(cascades), "compile, s": max(compiling, 0.0), "run, s": running, "peak memory, MB": _peak()}


def at_once(problems: int, dtype: Literal["float32", "float64"], batch: int = 100) -> dict[str, Any]:
    """`solved_at_once` of a model that is fitted to 1,000 queries of five models."""
    jax.config.update("jax_enable_x64", dtype == "float64")
    return solved_at_once(rcjax.fit(make_log(1000, 5, 0)), problems, batch)


def solved_at_once(model: rcjax.CascadeModel, problems: int, batch: int) -> dict[str, Any]:
    """The full cascade of a model at 100 λ for each of many fitted models at once, as of bootstrap replicates.

    The replicates are the model itself, with dependence and costs that vary by a tenth.
    """
    k = len(model.models)
    plan = make_plan([tuple(range(k))], k)
    lam = jnp.asarray(_lambdas(model, LAMBDAS))

    def solve(factor):
        copulas = jax.tree.map(lambda x: 1 + (x - 1) * factor, model.copulas)
        tables = build_pair_tables(model.marginals, copulas, model.cost * factor, plan.pairs)
        best = best_cascades(SearchTables(tables, plan), lam)
        return best.cut.u, best.gain

    factors = jnp.linspace(0.9, 1.1, max(1, problems // LAMBDAS))
    sweep = jax.jit(partial(jax.lax.map, solve, batch_size=batch))
    compiling, running, _ = timed(lambda: sweep(factors), PATIENCE)
    return {"compile, s": max(compiling, 0.0), "run, s": running, "peak memory, MB": _peak()}


KINDS = {
    "fit": fit,
    "contender": contender,
    "every cascade": every_cascade,
    "stretch": stretch,
    "at once": at_once,
    "objective": objectives.solve,
    "evaluations": objectives.evaluations,
}
