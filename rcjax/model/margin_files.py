"""Calibrators and marginals as JSON values, and back; of what models state, only the places that are taken."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcjax._core.json_values import arrays_from_json, arrays_to_json, plain
from rcjax.model.calibration import Calibrator, Transform
from rcjax.model.marginals import Atoms, Marginal
from rcjax.model.stated import StatedValues, padded, size_for

FORMAT = "rcjax-model"


def fields_of(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Field → array, of the fields that a class has."""
    others = ("transform", "stated", "atoms")
    names = [field.name for field in dataclasses.fields(kind) if field.name not in others]
    return arrays_from_json({name: data[name] for name in names})


def calibrators_from_json(data: Mapping[str, Any], transform: Transform) -> Calibrator:
    """The inverse of `margin_to_json`, with the transform of the raw confidences."""
    calibrators = Calibrator(**fields_of(Calibrator, data), transform=transform)
    if data.get("stated") is None:
        return calibrators
    logprobs = [[-np.inf if value is None else value for value in row] for row in data["stated"]["logprob"]]
    size = size_for(max(map(len, logprobs)))
    columns = (padded_rows(rows, size, np.nan) for rows in (logprobs, data["stated"]["confidence"]))
    return dataclasses.replace(calibrators, stated=StatedValues(*columns))


def padded_rows(rows: Sequence[Sequence[float]], size: int, behind: float) -> jax.Array:
    """(k, V) rows of several lengths in so many places, with something behind them."""
    return jnp.asarray(np.stack([padded(row, size, behind) for row in rows]), jnp.result_type(float))


def margin_to_json(part: Calibrator | Marginal) -> dict[str, Any]:
    """Field → lists, of k models; of the values that models state the places that are taken, the log of 0 as null."""
    name = "stated" if isinstance(part, Calibrator) else "atoms"
    data, values = arrays_to_json(dataclasses.replace(part, **{name: None})), getattr(part, name)
    del data[name]
    if values is None:
        return data
    columns = {field: np.asarray(column) for field, column in vars(values).items()}
    taken = ~np.isnan(columns["logprob"]) if "logprob" in columns else columns["mass"] > 0
    rows = {
        field: [row[there].tolist() for row, there in zip(column, taken, strict=True)]
        for field, column in columns.items()
    }
    return data | {name: plain(rows)}  # the logarithm of 0 as null


def marginals_from_json(data: Mapping[str, Any], calibrators: Calibrator) -> Marginal:
    """The inverse of `margin_to_json`; atoms have as many places as the values that are stated."""
    marginals, atoms = Marginal(**fields_of(Marginal, data)), data.get("atoms")
    if atoms is None:
        return marginals
    size = max(map(len, atoms["value"]))
    size = size_for(size) if calibrators.stated is None else max(size, calibrators.stated.logprob.shape[-1])
    value, mass = (padded_rows(atoms[name], size, end) for name, end in (("value", np.inf), ("mass", 0.0)))
    return dataclasses.replace(marginals, atoms=Atoms(jnp.minimum(value, marginals.highest[:, None]), mass))
