"""What was fitted in a sweep, kept so that any of its frontiers can be had again, with its model, to deploy."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
from rcjax.model.calibrator_files import calibrators_from_json, calibrators_to_json
from rcjax.model.cascade_model import CascadeModel
from rcjax.model.margins_file import marginals_from_json, marginals_to_json
from rcjax.model.provenance import Details
from rcjax.solving.lambda_grid import select
from rcjax.sweeps.batch_program import Fit
from rcjax.sweeps.problems import Batch, Search
from rcjax.sweeps.result_tables import FITS


def fits_table(batch: Batch, fits: Fit) -> pl.DataFrame:
    """A row per sample of a batch whose replicate 0 is among its problems, from the fits of these (U, …)."""
    rows = []
    for number, (sample, replicate) in enumerate(batch.problems):
        if replicate == 0:
            one = jax.tree.map(lambda leaf, number=number: leaf[number], fits)
            content = {
                "calibrators": calibrators_to_json(one.calibrators),
                "marginals": marginals_to_json(one.marginals),
                **{name: np.asarray(getattr(one, name)).tolist() for name in ("taus", "cost")},
            }
            if one.copulas is not None:
                content["copulas"] = {type(copula).__name__: arrays_to_json(copula) for copula in one.copulas}
            rows.append({"log": sample.log, "seed": sample.seed, "fit": json.dumps(content)})
    return pl.DataFrame(rows, schema=FITS)


def model_of(log: Mapping[str, Any], fit: str, copula: str) -> CascadeModel:
    """The model of a sample, from the rows of its log and of its fit, under one of the copulas."""
    data = json.loads(fit)
    family = as_family(copula)
    details = json.loads(log["details"]) | {"fit": {"copula": family.__name__, "method": "tau"}}
    calibrators = calibrators_from_json(data["calibrators"], log["task"])
    copulas = jax.vmap(family.from_tau)(jnp.asarray(data["taus"]))
    if "copulas" in data:
        copulas = family(**arrays_from_json(data["copulas"][family.__name__]))
    return CascadeModel(
        calibrators=calibrators,
        marginals=marginals_from_json(data["marginals"], calibrators),
        copulas=copulas,
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
