"""What a label by hand is of: an answer of a model, which several variants of the model may give.

`small` gives the first of its answers to a query, and `small ×3` that of most of three, which often is the same. One
label tells of both.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from rcjax._base.variants import base_model
from rcjax.logs.log import Log

__all__ = ["LabelPlaces"]


@dataclasses.dataclass(frozen=True)
class LabelPlaces:
    """Where the answers of n queries by k variants are among those to label: n·S rows, for S samples, by B models."""

    row: np.ndarray
    """(n, k)"""
    column: np.ndarray
    """(k,)"""
    models: tuple[str, ...]
    """Names of the B models."""
    samples: int
    """S; 1 where the log has one answer of each model."""

    @classmethod
    def of(cls, log: Log) -> LabelPlaces:
        """Those of a log."""
        n, told = log.n_queries, None if log.hand is None else log.hand.samples
        names = log.models if told is None else tuple(base_model(name) for name in log.models)
        models = tuple(dict.fromkeys(names))
        if told is None:
            sample, samples = np.zeros(log.logprob.shape, int), 1
        else:
            labels, sample = np.unique(told, return_inverse=True)
            sample, samples = sample.reshape(told.shape), len(labels)
        row = np.arange(n)[:, None] * samples + sample
        return cls(row, np.array([models.index(name) for name in names]), models, samples)

    def any(self, mask: np.ndarray) -> np.ndarray:
        """(n·S, B) bool: some variant's answer is so; mask (n, k)."""
        gathered = np.zeros(self._shape, bool)
        np.logical_or.at(gathered, (self.row, self.column), mask)
        return gathered

    def sum(self, values: np.ndarray) -> np.ndarray:
        """(n·S, B) sums over the variants that give an answer, of values (n, k)."""
        gathered = np.zeros(self._shape)
        np.add.at(gathered, (self.row, self.column), values)
        return gathered

    def most(self, values: np.ndarray) -> np.ndarray:
        """(n·S, B) the largest of values (n, k) from 0."""
        gathered = np.zeros(self._shape)
        np.maximum.at(gathered, (self.row, self.column), values)
        return gathered

    def spread(self, gathered: np.ndarray) -> np.ndarray:
        """(n, k) what (n·S, B) says of each variant's answer."""
        return gathered[self.row, self.column]

    def first(self, row: np.ndarray, column: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(m,) queries and variants of answers at (row, column), each (m,): of several variants the first in a mask."""
        variant = np.full(self._shape, -1)
        for place in reversed(range(len(self.column))):
            here = mask[:, place]
            variant[self.row[here, place], self.column[place]] = place
        return row // self.samples, variant[row, column]

    @property
    def _shape(self) -> tuple[int, int]:
        return len(self.row) * self.samples, len(self.models)
