"""How long answers took: which seconds of a log are known, and what waiting for them costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import field

import jax
import numpy as np

from rcjax._base.wording import count
from rcjax.logs.cells import CELL, Cells
from rcjax.logs.errors import LogError
from rcjax.logs.listing import brief

__all__ = ["Waiting", "require_all_seconds", "tell_seconds"]


@dataclasses.dataclass(frozen=True, eq=False)
class Waiting(Cells):
    """What a second of waiting is worth, where the costs of a log count it, and what answers cost without it."""

    second_cost: float
    """Money per second."""
    money: jax.Array = field(metadata=CELL)
    """(n, k) money per query, as `Log.query_cost` has it where waiting costs nothing."""


def tell_seconds(models: Sequence[str], seconds: np.ndarray, answered: np.ndarray) -> str:
    """Which answers tell how long they took, as the end of a sentence.

    >>> seconds = np.array([[0.5, 2.0], [0.7, np.nan]])
    >>> tell_seconds(("small", "large"), seconds, np.ones((2, 2), bool))
    '3 of 4 answers tell their seconds; none: large 1'
    >>> tell_seconds(("small", "large"), np.ones((2, 2)), np.ones((2, 2), bool))
    'every answer tells its seconds'
    """
    missing = (answered & np.isnan(seconds)).sum(0)
    if not missing.any():
        return "every answer tells its seconds"
    total = int(answered.sum())
    without = ", ".join(f"{name} {number:,}" for name, number in zip(models, missing.tolist(), strict=True) if number)
    return f"{total - int(missing.sum()):,} of {count(total, 'answer')} tell their seconds; none: {without}"


def require_all_seconds(
    where: str, seconds: np.ndarray | None, answered: np.ndarray, models: Sequence[str], queries: Sequence[int | str]
) -> np.ndarray:
    """(n, k) the seconds, 0 where there is no answer. Raises `LogError` where one is not known, naming the first.

    Args:
        where: the log's name.
        seconds: (n, k), NaN where unknown; None for none at all.
        answered: (n, k) bool.
        models, queries: their names.
    """
    if seconds is None:
        raise LogError(f"{where}: no column seconds (or latency_ms): a price of waiting needs those of every answer")
    unknown = answered & np.isnan(seconds)
    if unknown.any():
        row, column = (int(index) for index in np.argwhere(unknown)[0])
        which = f"query {brief(queries[row])}, model {brief(models[column])}"
        more = f" ({int(unknown.sum()):,} such answers)" if unknown.sum() > 1 else ""
        what = "the seconds are not known, and a price of waiting needs those of every answer"
        raise LogError(f"{where}, {which}: {what}{more}: add them, or leave out these rows")
    return np.where(answered, seconds, 0.0)
