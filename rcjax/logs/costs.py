"""What rows cost, and costs that a log lost.

Lost are rows of 0 of a model whose other answers cost money, such as streamed calls without usage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rcjax._base.tokens import Price, Tokens
from rcjax._base.wording import count, percent
from rcjax.logs.answers import Answers
from rcjax.logs.checked_rows import Rows, numbers, require_money
from rcjax.logs.columns import CACHED, TOKENS
from rcjax.logs.errors import listed
from rcjax.logs.prices import price_for

#: (answers that lost their cost, all answers) by model.
Lost = Mapping[Any, tuple[int, int]]


def cost_cells(
    rows: Rows, rates: Mapping[str, Price] | None, names: Sequence[str], by_model: np.ndarray
) -> dict[str, np.ndarray]:
    """The money that each row cost, `cost`: its own column, or its tokens by prices, and then `read` and `cached`.

    Args:
        rows: m of a log.
        rates: prices by model; None if the log tells costs.
        names: of all models so far.
        by_model: (m,) the index of each row's model among them.

    Raises `LogError` for what is no money, and for a model without a price.
    """
    if rates is None:
        cost = numbers(rows, "cost")
        require_money(rows, cost, "cost")
        return {"cost": cost}
    per_million = np.array([price_for(rates, name, f"{rows.name}, ", names).full for name in names], float)[by_model]
    used = _tokens(rows)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused
        cost = (np.stack(used.parts, axis=1) * per_million).sum(axis=1) / 1e6
    require_money(rows, cost, TOKENS[0])
    return {"cost": cost, "read": used.read, "cached": used.cached}


def describe_caches(answers: Answers, rates: Mapping[str, Price]) -> str | None:
    """Which share of the input of each model came from a cache, and at what price; None if none did."""
    said = []
    for number, name in enumerate(answers.models):
        read, cached = answers.frame.filter(answers.frame["model"] == number).select("read", "cached").sum().row(0)
        price = price_for(rates, name)
        how = f"${price.cached_input:g} per million" if price.cached_input is not None else _IN_FULL
        said += [f"{percent(cached / read, 0)} of {name}, at {how}"] if cached else []
    return f"input tokens that came from a cache: {'; '.join(said)}" if said else None


def describe_estimates(answers: Answers) -> str | None:
    """How many costs of a call log are estimates, in words; None if none is."""
    if "estimated" not in answers.frame.columns or not answers.frame["estimated"].any():
        return None
    counts = dict(answers.frame.filter("estimated")["model"].value_counts().rows())
    by_model = [f"{counts[number]:,} of {name}" for number, name in enumerate(answers.models) if number in counts]
    every = count(answers.frame.height, "answer")
    return (
        f"the cost of {sum(counts.values()):,} of {every} is an estimate, as no tokens were counted: {listed(by_model)}"
    )


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


def mend_all(models: Sequence[Any], costs: Sequence[float]) -> tuple[np.ndarray, Lost]:
    """(the costs, in which 0 beside others of the same model is the mean of these, how many such there are, by model).

    A model all of whose answers cost 0 is free.

    >>> costs, lost = mend_all(["a", "a", "a", "b"], [0.0, 2.0, 4.0, 0.0])
    >>> costs.tolist(), lost
    ([3.0, 2.0, 4.0, 0.0], {'a': (1, 3), 'b': (0, 1)})
    """
    by_model, mended, lost = np.asarray(models), np.array(costs, float), {}
    for model in dict.fromkeys(models):
        own = by_model == model
        gone = own & (mended == 0)
        few, every = int(gone.sum()), int(own.sum())
        lost[model] = (few if few < every else 0), every
        if 0 < few < every:
            mended[gone] = math.fsum(mended[own]) / (every - few)  # exact: the order of the rows is nothing to it
    return mended, lost


def tell_lost(lost: Lost) -> str | None:
    """How many answers had lost their cost, in words; None if none has."""
    by_model = listed(f"{few:,} of {count(every, 'answer')} of {name}" for name, (few, every) in lost.items() if few)
    what = "left out of the mean cost, as they cost 0 and others of the same model do not"
    return f"{what}: {by_model} (streamed calls that lost their usage?)" if by_model else None
