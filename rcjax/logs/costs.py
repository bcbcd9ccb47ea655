"""Costs that a log lost: rows of 0 of a model whose other answers cost money, such as streamed calls without usage."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from rcjax._base.wording import count
from rcjax.logs.listing import listed
from rcjax.logs.matrices import Matrices

__all__ = ["Lost", "mend", "mend_matrix", "tell_lost"]


#: (answers that lost their cost, all answers) by model.
Lost = Mapping[str, tuple[int, int]]


def mend(cost: np.ndarray) -> int:
    """Give costs of 0 beside others, all of one model, the mean of these, which leaves them out of it; how many.

    A model all of whose answers cost 0 is free.

    >>> cost = np.array([0.0, 2.0, 4.0])
    >>> mend(cost), cost.tolist(), mend(np.zeros(3))
    (1, [3.0, 2.0, 4.0], 0)
    """
    lost = cost == 0
    if lost.all() or not lost.any():
        return 0
    cost[lost] = math.fsum(cost) / (len(cost) - lost.sum())  # exact: the order of the rows is nothing to it
    return int(lost.sum())


def mend_matrix(held: Matrices) -> Lost:
    """The same of each model's column of a log."""
    lost: dict[str, tuple[int, int]] = {}
    for name, column in held.models.items():
        answered = held.take("row")[:, column] >= 0
        cost = held.take("cost")[answered, column]
        lost[name] = mend(cost), len(cost)
        held.take("cost")[answered, column] = cost
    return lost


def tell_lost(lost: Lost) -> str | None:
    """How many answers had lost their cost, in words; None where none has."""
    told = listed(f"{few:,} of {count(every, 'answer')} of {name}" for name, (few, every) in lost.items() if few)
    what = "left out of the mean cost, as they cost 0 and others of the same model do not"
    return f"{what}: {told} (streamed calls that lost their usage?)" if told else None
