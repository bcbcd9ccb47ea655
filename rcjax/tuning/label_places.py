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
    """(n, k) q·S + s for sample s of query q."""
    column: np.ndarray
    """(k,) the model of each variant, among the B."""
    models: tuple[str, ...]
    """Names of the B models."""
    samples: int
    """S; 1 where the log has one answer of each model."""

    @classmethod
    def of(cls, log: Log) -> LabelPlaces:
        """Those of a log."""
        of_log = None if log.hand is None else log.hand.samples
        names = log.models if of_log is None else tuple(base_model(name) for name in log.models)
        models = tuple(dict.fromkeys(names))
        if of_log is None:
            sample, samples = np.zeros(log.logprob.shape, int), 1
        else:
            labels, sample = np.unique(of_log, return_inverse=True)
            sample, samples = sample.reshape(of_log.shape), len(labels)
        row = np.arange(log.n_queries)[:, None] * samples + sample
        return cls(row, np.array([models.index(name) for name in names]), models, samples)

    def gathered(self, how: np.ufunc, values: np.ndarray) -> np.ndarray:
        """(n·S, B) the values (n, k) of the variants that give an answer, as one, by `np.logical_or`, `np.add`, …

        Where nobody gives it, False or 0.
        """
        one = np.zeros(self._shape, values.dtype)
        how.at(one, (self.row, self.column), values)
        return one

    def spread(self, one: np.ndarray) -> np.ndarray:
        """(n, k) what (n·S, B) says of each variant's answer."""
        return one[self.row, self.column]

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
