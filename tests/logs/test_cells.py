"""A log's columns declare their axes: nothing is forgotten where queries or models are taken."""

import dataclasses
from typing import Any

import jax
import numpy as np
import polars as pl
import pytest

import rcjax
from rcjax.logs.log import CELL, QUERY, Cells
from rcjax.policy.error_kind import Reference

N, MODELS = 4, ("small", "large")
ROWS = {
    "query": [query for query in range(N) for _ in MODELS],
    "model": [*MODELS] * N,
    "correct": [1, 0, 0, 1, None, 1, 1, None],
    "confidence": [0.9, 0.8] * N,
    "cost": [1.0, 3.0] * N,
    "answer": ["a", "b", "b", "b"] * (N // 2),
    "seconds": [1.0, 2.0] * N,
    "language": [name for name in ("de", "en") for _ in range(N)],
}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Warmer(rcjax.Log):
    """A log with columns that `Log` knows nothing of."""

    temperature: np.ndarray | None = dataclasses.field(default=None, metadata=CELL)
    length: np.ndarray | None = dataclasses.field(default=None, metadata=QUERY)


@pytest.fixture
def log():
    reference = Reference("large", counts="differences")
    return rcjax.read_log(pl.DataFrame(ROWS), reference=reference)


def arrays_of(record):
    """(field, its array or tuple) of a record and of those in it."""
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Cells):
            yield from arrays_of(value)
        elif isinstance(value, jax.Array | np.ndarray) or field.name in ("models", "queries"):
            yield field, value


def test_every_array_of_a_log_declares_its_axes(log):
    assert None not in (log.labelled_log.hand_labels, log.seconds, log.answer)
    for part in (log, log.take([2, 0, 0]), log.select(["large"]), log.take([1]).select(MODELS[::-1])):
        sizes = {"query": part.n_queries, "model": len(part.models)}
        for field, value in arrays_of(part):
            axes = field.metadata["axes"]
            assert np.shape(value)[: len(axes)] == tuple(sizes[axis] for axis in axes), field.name


def test_a_new_field_is_taken_along_its_axes(log):
    temperature = np.arange(2.0 * N).reshape(N, 2)
    warmer = Warmer(**vars(log), temperature=temperature, length=np.arange(N))
    part: Any = warmer.take([3, 1]).select(["large"])
    assert part.temperature.tolist() == [[7.0], [3.0]]
    assert part.length.tolist() == [3, 1]
    assert part.digest == log.take([3, 1]).select(["large"]).digest
