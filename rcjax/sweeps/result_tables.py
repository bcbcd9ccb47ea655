"""The results of a sweep as tables: a row per point, a row per log, a row per fit.

Fits are kept so that any of the frontiers can be had again, with its model, to deploy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl

from rcjax._core.json_values import arrays_from_json, arrays_to_json
from rcjax.copulas.families import as_family
from rcjax.frontier.frontier import Frontier, make_frontier
from rcjax.frontier.outcomes import Outcomes
from rcjax.frontier.points import Points, PointStatus
from rcjax.frontier.policies import Policies
from rcjax.frontier.searches import cascade_names
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.model_file import (
    calibrators_from_json,
    margin_to_json,
    marginals_from_json,
)
from rcjax.model.provenance import Details
from rcjax.solving.frontiers import select
from rcjax.sweeps.batch_program import Fit
from rcjax.sweeps.problems import Batch, Search, SweepSettings

#: Columns of the results, whichever searches there are; what they mean is told by `Sweep.points`.
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
    """A row per point of a batch.

    Args:
        batch: the problems; of the U that were solved, only as many are told as it has.
        models: of each log, by name.
        settings: what is swept over.
        lam: (U, L) in errors per unit of money.
        results: of each search, arrays with leading axes (U, C, L).
    """
    searches = zip(settings.cascades.items(), results, strict=True)
    return pl.concat(
        _search_table(batch, models, name, (None,) if search == "labels" else settings.copulas, lam, arrays)
        for (name, search), arrays in searches
    )


def _search_table(
    batch: Batch,
    models: Mapping[str, tuple[str, ...]],
    name: str,
    copulas: Sequence[str | None],
    lam: np.ndarray,
    arrays: Mapping[str, np.ndarray],
) -> pl.DataFrame:
    problems = batch.problems
    shape = len(problems), len(copulas), lam.shape[1]

    def spread(values: Sequence[str | int | None] | np.ndarray, axis: int) -> list[str | int | None]:
        """A value per problem (axis 0), copula (1) or λ (2), for each point."""
        index = tuple(slice(None) if other == axis else None for other in range(3))
        return np.broadcast_to(np.array(values, object)[index], shape).reshape(-1).tolist()

    def flat(key: str) -> np.ndarray | None:
        """The values of each point, with what axes they have; None if the search has none."""
        values = arrays.get(key)
        return None if values is None else values[: shape[0]].reshape(-1, *values.shape[3:])

    columns = {
        "log": spread([sample.log for sample, _ in problems], 0),
        "seed": spread([sample.seed for sample, _ in problems], 0),
        "replicate": spread([replicate for _, replicate in problems], 0),
        "cascades": [name] * int(np.prod(shape)),
        "copula": spread(copulas, 1),
        "lam": np.broadcast_to(lam[: shape[0], None], shape).reshape(-1).astype(float),
        "cascade": _cascades(arrays["members"], [models[sample.log] for sample, _ in problems]),
        "held_out": spread(arrays["held_out"][: shape[0]].astype(int), 0),
    }
    columns |= {key: flat(key) for key in POINTS if key not in columns}
    return _frame(columns)


def _frame(columns: dict[str, np.ndarray | list[int | str | None]]) -> pl.DataFrame:
    """The table, without figures where a point failed, and without those that are not known."""
    height = len(columns["log"])

    def series(name: str, kind: pl.DataType | type[pl.DataType]) -> pl.Series:
        values = columns[name]
        if isinstance(values, np.ndarray):  # as it is: a list for each point would take longer than to solve it
            return pl.Series(name, values).cast(kind)
        return pl.Series(name, [None] * height if values is None else values, dtype=kind)

    table = pl.DataFrame([series(name, kind) for name, kind in POINTS.items()])
    solved = pl.col("status") < PointStatus.NO_DATA
    figures = [pl.when(solved).then(pl.col(name)).alias(name) for name in _FAILED]
    return table.with_columns(figures).with_columns(pl.col("held_out_error", "held_out_cost").fill_nan(None))


def _cascades(members: np.ndarray, models: list[tuple[str, ...]]) -> list[str]:
    """The names of the models of each point, from members (U, C, L, k), of which each problem has its own models."""
    names_of = []
    for of_problem, names in zip(members, models, strict=False):
        rows = of_problem.reshape(-1, of_problem.shape[-1])
        kinds, inverse = np.unique(rows, axis=0, return_inverse=True)
        labels = [" > ".join(cascade) for cascade in cascade_names(kinds, names)]
        names_of += [labels[p] for p in inverse.reshape(-1)]
    return names_of


def fits_table(batch: Batch, fits: Fit) -> pl.DataFrame:
    """A row per sample of a batch whose replicate 0 is among its problems, from the fits of these (U, …)."""
    rows = []
    for number, (sample, replicate) in enumerate(batch.problems):
        if replicate == 0:
            one = jax.tree.map(lambda leaf, number=number: leaf[number], fits)
            content = {
                "calibrators": margin_to_json(one.calibrators),
                "marginals": margin_to_json(one.marginals),
                "copulas": {type(copula).__name__: arrays_to_json(copula) for copula in one.copulas},
                "cost": np.asarray(one.cost).tolist(),
            }
            rows.append({"log": sample.log, "seed": sample.seed, "fit": json.dumps(content)})
    return pl.DataFrame(rows, schema=FITS)


def model_of(log: Mapping[str, Any], fit: str, copula: str) -> CascadeModel:
    """The model of a sample, from the rows of its log and of its fit, under one of the copulas."""
    data = json.loads(fit)
    family = as_family(copula)
    details = json.loads(log["details"]) | {"fit": {"copula": family.__name__, "method": "tau"}}
    calibrators = calibrators_from_json(data["calibrators"], log["task"])
    return CascadeModel(
        calibrators=calibrators,
        marginals=marginals_from_json(data["marginals"], calibrators),
        copulas=family(**arrays_from_json(data["copulas"][family.__name__])),
        cost=jnp.asarray(data["cost"]),
        models=tuple(log["models"]),
        details=Details.from_json(details),
    )


def frontier_of(model: CascadeModel, points: pl.DataFrame, search: Search) -> Frontier:
    """The frontier of the points of one sample, copula and search, of those that were solved."""
    points = points.filter(pl.col("status") < PointStatus.NO_DATA).sort("lam")
    lam, error, cost, status, first = (points[name].to_numpy() for name in ("lam", "error", "cost", "status", "first"))
    members = np.array([[name in cascade.split(" > ") for name in model.models] for cascade in points["cascade"]])
    bounds, actions = (np.array(points[name].to_list()) for name in ("bounds", "actions"))
    thresholds = None if search == "adaptive" else np.array(points["thresholds"].to_list())
    policies = Policies(first, bounds, actions, members, thresholds)
    solved = select(Points(lam, status, Outcomes(error, cost, np.zeros_like(error)), policies), None)
    named = {"labels": "selected"}.get(search, search) if isinstance(search, str) else search
    return make_frontier(model, solved, search=named)
