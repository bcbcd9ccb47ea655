"""The results of a sweep as tables: a row per point, a row per log."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from rcjax.frontier.points import PointStatus
from rcjax.frontier.searches import cascade_names
from rcjax.sweeps.library import Entry
from rcjax.sweeps.problems import Batch, SweepSettings

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
LOGS = {
    "log": pl.String,
    "source": pl.String,
    "models": pl.List(pl.String),
    "cost": pl.List(pl.Float64),
    "queries": pl.Int64,
    "digest": pl.String,
    "problem": pl.String,
    "task": pl.String,
    "details": pl.String,
    "answers": pl.Boolean,
}
FITS = {"log": pl.String, "seed": pl.Int64, "fit": pl.String}
_FAILED = ("error", "cost", "cascade", "thresholds", "first", "bounds", "actions", "held_out_error", "held_out_cost")


def logs_table(entries: Mapping[str, Entry]) -> pl.DataFrame:
    """A row per log, from what is known of each, by name."""
    rows = [{"log": name, **dataclasses.asdict(entry)} for name, entry in entries.items()]
    return pl.DataFrame(rows, schema=LOGS)


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
        """The values of each point, with what axes they have; None where the search has none."""
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
