"""The results of a sweep as tables: a row per point, a row per log, a row per fit.

The fits are kept so that each frontier can be rebuilt with its model, to deploy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import polars as pl

from rcjax._core.batching import part
from rcjax._core.pytrees import plain
from rcjax.copulas.families import as_family
from rcjax.model.calibrated import Details, calibrators_to_json
from rcjax.model.cascade_model import CascadeModel, calibrators_from_json, marginals_from_json, marginals_to_json
from rcjax.policy.spec import Spec
from rcjax.solving.frontier.frontier import Frontier, make_frontier
from rcjax.solving.frontier.points import LossTerms, Points, PointStatus, Policies
from rcjax.solving.tradeoff import select
from rcjax.tuning.sweeps.problems import Batch, Fit, Search, SweepSettings

#: Columns of the results for all searches; `Sweep.points` explains them.
POINTS = {
    "log": pl.String,
    "seed": pl.Int64,
    "replicate": pl.Int64,
    "cascades": pl.String,
    "copula": pl.String,
    "lam": pl.Float64,
    "error": pl.Float64,
    "cost": pl.Float64,
    "status": pl.Int8,
    "cascade": pl.String,
    "thresholds": pl.List(pl.Float64),
    "first": pl.Int64,
    "bounds": pl.List(pl.List(pl.Float64)),
    "actions": pl.List(pl.List(pl.Int64)),
    "held_out_error": pl.Float64,
    "held_out_cost": pl.Float64,
    "held_out": pl.Int64,
}
FITS = {"log": pl.String, "seed": pl.Int64, "fit": pl.String}
_FAILED = ("error", "cost", "cascade", "thresholds", "first", "bounds", "actions", "held_out_error", "held_out_cost")


def points_table(
    batch: Batch,
    models: Mapping[str, tuple[str, ...]],
    settings: SweepSettings,
    lam: np.ndarray,
    results: Sequence[Mapping[str, np.ndarray]],
) -> pl.DataFrame:
    """Build the table of a batch, with a row per point.

    Args:
        batch: the problems; solved problems beyond their number are padding.
        models: names of the models, by log.
        settings: settings of the sweep.
        lam: (U, L) errors per dollar.
        results: arrays of each search, with leading axes (U, C, L).
    """
    samples, replicates = zip(*batch.problems, strict=True)
    count = len(samples)
    names = np.array([models[sample.log] for sample in samples], object)
    problems = pl.DataFrame(
        {
            "log": [sample.log for sample in samples],
            "seed": [sample.seed for sample in samples],
            "replicate": list(replicates),
            **{f"model {j}": list(column) for j, column in enumerate(names.T)},
        }
    )
    tables = []
    for (name, search), arrays in zip(settings.cascades.items(), results, strict=True):
        if search != "adaptive":
            arrays = {**arrays, "thresholds": arrays["bounds"][..., -2]}
        copulas = [None] if search == "labels" else list(settings.copulas)
        place, copula, price = (index.ravel() for index in np.indices((count, len(copulas), lam.shape[1])))
        rows = problems[place].with_columns(
            cascades=pl.lit(name),
            copula=pl.Series(copulas, dtype=pl.String).gather(copula),
            lam=pl.Series(lam[place, price]),
            held_out=pl.Series(arrays["held_out"][place]),
            **{
                key: pl.Series(values[:count].reshape(-1, *values.shape[3:]))
                for key, values in arrays.items()
                if key not in ("members", "held_out")
            },
        )
        tables.append(_figures(rows, arrays["members"][:count].reshape(len(place), -1)))
    return pl.concat(tables)


def _figures(points: pl.DataFrame, members: np.ndarray) -> pl.DataFrame:
    """Add the cascades by name to a table of points, from members (n, k), and clear the figures of failed points."""
    member = [pl.when(pl.lit(pl.Series(belongs))).then(pl.col(f"model {j}")) for j, belongs in enumerate(members.T)]
    points = points.with_columns(cascade=pl.concat_str(member, separator=" > ", ignore_nulls=True))
    known = {name: pl.col(name) if name in points.columns else pl.lit(None) for name in POINTS}
    table = points.select(known[name].cast(kind).alias(name) for name, kind in POINTS.items())
    solved = pl.col("status") < PointStatus.NO_DATA
    figures = [pl.when(solved).then(pl.col(name)).alias(name) for name in _FAILED]
    return table.with_columns(figures).with_columns(pl.col("held_out_error", "held_out_cost").fill_nan(None))


def fits_table(batch: Batch, fits: Fit) -> pl.DataFrame:
    """Build the table of fits from the fits of a batch's problems (U, …): a row per sample with its replicate 0."""
    rows = []
    for number, (sample, replicate) in enumerate(batch.problems):
        if replicate == 0:
            one = part(fits, number)
            content = {
                "calibrators": calibrators_to_json(one.calibrators),
                "marginals": marginals_to_json(one.marginals),
                "copulas": {type(copula).__name__: plain(vars(copula)) for copula in one.copulas},
                "cost": np.asarray(one.cost).tolist(),
            }
            rows.append({"log": sample.log, "seed": sample.seed, "fit": json.dumps(content)})
    return pl.DataFrame(rows, schema=FITS)


def model_of(log: Mapping[str, Any], fit: str, copula: str) -> CascadeModel:
    """Rebuild the model of a sample under one of the copulas, from the rows of its log and of its fit."""
    data = json.loads(fit)
    family = as_family(copula)
    parameters = data["copulas"][family.__name__]
    details = json.loads(log["details"]) | {"fit": {"copula": family.__name__, "method": "tau"}}
    calibrators = calibrators_from_json(data["calibrators"])
    return CascadeModel(
        calibrators=calibrators,
        marginals=marginals_from_json(data["marginals"], calibrators),
        copulas=family(**{name: jnp.asarray(np.array(held, float)) for name, held in parameters.items()}),
        cost=jnp.asarray(data["cost"]),
        models=tuple(log["models"]),
        details=Details.from_json(details),
    )


def frontier_of(model: CascadeModel, points: pl.DataFrame, search: Search) -> Frontier:
    """Rebuild the frontier from the solved points of one sample, copula and search."""
    points = points.filter(pl.col("status") < PointStatus.NO_DATA).sort("lam")
    lam, error, cost, status, first = (points[name].to_numpy() for name in ("lam", "error", "cost", "status", "first"))
    members = np.array([[name in cascade.split(" > ") for name in model.models] for cascade in points["cascade"]])
    bounds, actions = (np.array(points[name].to_list()) for name in ("bounds", "actions"))
    policies = Policies(first, bounds, actions, members)
    solved = select(Points(lam, status, LossTerms(error, cost, np.zeros_like(error)), policies), None)
    return make_frontier(model, solved, Spec(cascade=None if search == "labels" else search))
