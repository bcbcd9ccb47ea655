"""Records of what is known of n queries and k models: each field says once over which of the two it runs.

One of them is which answers have a label by hand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import jax
import numpy as np

Axis = Literal["query", "model"]

#: Metadata of a field that has an entry for each query and model, an array (n, k, …); for each query, an array or a
#: tuple; for each model, an array, a tuple or a dictionary by name.
CELL, QUERY, MODEL = ({"axes": axes} for axes in (("query", "model"), ("query",), ("model",)))


@dataclasses.dataclass(frozen=True, eq=False)
class Cells:
    """A record whose fields have axes by their metadata. Those without stay as they are when queries or models are
    taken; those that are such records follow."""

    def _along(self, axis: Axis, index: np.ndarray, names: Sequence[str] = ()) -> Self:
        """The record with the entries at positions (`index`) on an axis; `names` are those of the models there."""
        changes = {}
        for field in dataclasses.fields(self):
            value, axes = getattr(self, field.name), field.metadata.get("axes", ())
            if isinstance(value, Cells):
                changes[field.name] = value._along(axis, index, names)
            elif value is not None and axis in axes:
                changes[field.name] = _entries(value, axes.index(axis), index, names)
        return dataclasses.replace(self, **changes)


def _entries(value: Any, axis: int, index: np.ndarray, names: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        return {name: value[name] for name in names if name in value}
    if isinstance(value, Sequence):
        return tuple(value[i] for i in index.tolist())
    part = np.take(np.asarray(value), index, axis)
    # Texts stay with numpy; not jnp.asarray, which compiles a program for each shape.
    return part if part.dtype.kind in "OSU" else jax.device_put(part)


@dataclasses.dataclass(frozen=True, eq=False)
class HandLabels(Cells):
    """Labels by hand of some of the answers of n queries by k models, and the verdicts of J judges."""

    labelled: jax.Array = dataclasses.field(metadata=CELL)
    """(n, k) bool: a person said whether the answer is right (`Log.correct`)."""
    judged: jax.Array = dataclasses.field(metadata=CELL)
    """(n, k, J) the judges' verdicts, from 0 (wrong) to 1 (right); NaN if there is none."""
    judges: tuple[str, ...]
    """Names of the J judges, as the columns are called."""
    samples: np.ndarray | None = dataclasses.field(default=None, metadata=CELL)
    """(n, k) which of several samples each answer is, as the column `sample` says, and so its label; "" where there is
    no answer. None if the log has one answer of each model."""
