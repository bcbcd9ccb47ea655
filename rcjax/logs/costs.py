"""What rows cost, and costs that a log lost.

Lost are rows of 0 of a model whose other answers cost money, such as streamed calls without usage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rcjax._base.tokens import Price, Tokens
from rcjax._base.wording import count, percent
from rcjax.logs.checked_rows import Rows, numbers, require_money
from rcjax.logs.columns import CACHED, TOKENS
from rcjax.logs.errors import listed
from rcjax.logs.matrices import Matrices
from rcjax.logs.prices import price_for

#: (answers that lost their cost, all answers) by model.
Lost = Mapping[str, tuple[int, int]]


class Costs:
    """What rows cost: their own column, or their tokens by prices; and how much of their input a cache served.

    Args:
        rates: prices by model; None where the log tells costs.
    """

    def __init__(self, rates: Mapping[str, Price] | None) -> None:
        self.rates = rates
        self._input: dict[str, tuple[float, float]] = {}  # by model: all, and from a cache

    def cells(self, rows: Rows, names: Sequence[str], by_model: np.ndarray) -> np.ndarray:
        """The money (m,) that each row cost.

        Args:
            rows: m of a log.
            names: of all models so far.
            by_model: (m,) the index of each row's model among them.

        Raises `LogError` for what is no money, and for a model without a price.
        """
        if self.rates is None:
            cost = numbers(rows, "cost")
            require_money(rows, cost, "cost")
            return cost
        prices = [price_for(self.rates, name, f"{rows.name}, ", names) for name in names]
        used = _tokens(rows)
        for number, name in enumerate(names):
            own, before = by_model == number, self._input.get(name, (0.0, 0.0))
            self._input[name] = before[0] + used.read[own].sum(), before[1] + used.cached[own].sum()
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused
            per_million = np.array([price.full for price in prices])[by_model]
            cost = (np.stack(used.parts, axis=1) * per_million).sum(axis=1) / 1e6
        require_money(rows, cost, TOKENS[0])
        return cost

    def describe(self) -> str | None:
        """Which share of the input of each model came from a cache, and at what price; None where none did."""
        said = []
        for name, (every, cached) in self._input.items():
            price = price_for(self.rates or {}, name) if cached else Price(0, 0)
            how = f"${price.cached_input:g} per million" if price.cached_input is not None else _IN_FULL
            said += [f"{percent(cached / every, 0)} of {name}, at {how}"] if cached else []
        return f"input tokens that came from a cache: {'; '.join(said)}" if said else None


_IN_FULL = "the full price, as none for cached_input is known"


def _tokens(rows: Rows) -> Tokens:
    """The tokens (m,) of each row; of input that is counted apart from what a cache gave and took, all together."""
    read, written = (numbers(rows, column) for column in TOKENS)
    there = [column in rows.frame.columns for column in CACHED]
    cached, stored = (
        np.nan_to_num(numbers(rows, column, optional=True)) if told else np.zeros_like(read)
        for column, told in zip(CACHED, there, strict=True)
    )
    return Tokens(read + np.where(cached + stored > read, cached + stored, 0.0), written, cached, stored)


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
