"""Which answers of a log have a label by hand, and what judges say of all of them."""

from __future__ import annotations

import dataclasses
from dataclasses import field

import jax
import numpy as np

from rcjax.logs.cells import CELL, Cells


@dataclasses.dataclass(frozen=True, eq=False)
class HandLabels(Cells):
    """Labels by hand of some of the answers of n queries by k models, and the verdicts of J judges."""

    labelled: jax.Array = field(metadata=CELL)
    """(n, k) bool: a person said whether the answer is right (`Log.correct`)."""
    judged: jax.Array = field(metadata=CELL)
    """(n, k, J) the judges' verdicts, from 0 (wrong) to 1 (right); NaN where there is none."""
    judges: tuple[str, ...]
    """Names of the J judges, as the columns are called."""
    samples: np.ndarray | None = field(default=None, metadata=CELL)
    """(n, k) which of several samples each answer is, as the column `sample` says, and so its label; "" where there is
    no answer. None where the log has one answer of each model."""

    def matrices(self) -> list[np.ndarray]:
        """What a digest of the log is made from, one row per query."""
        return [np.asarray(self.labelled), np.asarray(self.judged)]

    def take(self, rows: np.ndarray) -> HandLabels:
        """Those of some queries, by position."""
        return self._along("query", np.arange(len(self.labelled))[rows])  # a mask and a slice, too

    def select(self, columns: list[int]) -> HandLabels:
        """Those of some models, by position."""
        return self._along("model", np.arange(self.labelled.shape[1])[columns])
