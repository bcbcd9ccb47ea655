"""What rows cost, and costs that a log lost.

Lost are rows of 0 of a model whose other answers cost money, such as streamed calls without usage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rcjax._base.wording import count
from rcjax.logs.checked_rows import Rows, numbers, require_money
from rcjax.logs.columns import TOKENS
from rcjax.logs.errors import listed
from rcjax.logs.matrices import Matrices
from rcjax.logs.prices import price_for

#: (answers that lost their cost, all answers) by model.
Lost = Mapping[str, tuple[int, int]]


def cost_cells(rows: Rows, names: Sequence[str], by_model: np.ndarray, rates: Mapping | None) -> np.ndarray:
    """The money (m,) that each row cost: its own column, or its tokens by prices.

    Args:
        rows: m of a log.
        names: of all models so far.
        by_model: (m,) the index of each row's model among them.
        rates: money per million tokens of input and of output, by model; None where the log tells costs.

    Raises `LogError` for what is no money, and for a model without a price.
    """
    if rates is None:
        cost = numbers(rows, "cost")
        require_money(rows, cost, "cost")
        return cost
    per_million = np.array([price_for(rates, name, f"{rows.name}, ", names) for name in names])[by_model]
    tokens = np.stack([numbers(rows, column) for column in TOKENS], axis=1)
    with np.errstate(over="ignore"):  # what overflows is refused
        cost = (tokens * per_million).sum(axis=1) / 1e6
    require_money(rows, cost, TOKENS[0])
    return cost


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
    by_model = listed(f"{few:,} of {count(every, 'answer')} of {name}" for name, (few, every) in lost.items() if few)
    what = "left out of the mean cost, as they cost 0 and others of the same model do not"
    return f"{what}: {by_model} (streamed calls that lost their usage?)" if by_model else None
