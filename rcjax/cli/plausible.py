"""Budgets, prices and logs that are hardly meant as they stand. `--yes` says that they are.

A budget of 60 is $60 a query, and 60/M was meant; a price of 2.5e-7 is per token, and is read per million; of a log no
answer is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax._base.wording import budget_between, choose_unit, figure
from rcjax.cli.printing import warn

if TYPE_CHECKING:
    from rcjax._base.tokens import Price
    from rcjax.logs.log import Log
    from rcjax.policy.targets import Target

Really = Annotated[bool, typer.Option("--yes", help="Take prices, budgets and logs that look odd.")]

#: Money per million tokens, below which hardly any price is, and below which it is one for a token.
_LEAST_PRICE, _PER_TOKEN = 5e-3, 2e-5

#: Times the cost of the most expensive policy, from which a budget looks like one of another unit (a thousand apart).
_ANOTHER_UNIT = 100

#: What a budget is meant to be multiplied by, where it was typed per thousand or per query, and not per million.
_UNITS = (1e-3, 1e-6)


def require_plausible_prices(prices: Any, really: bool) -> None:
    """Refuse prices per token, which are to be per million. Raises LogError where they cannot be read, too.

    Args:
        prices: a file or a mapping, as `rcjax.read_log` takes them, or None.
        really: they are meant so.
    """
    if prices is None or really:
        return
    from rcjax.logs.prices import PriceList, read_prices

    name = Path(prices).name if isinstance(prices, str | Path) else "prices"
    read = read_prices(prices)
    if not isinstance(read, PriceList):  # whose fields say that they are per token
        _require(name, read)


def require_plausible_models(path: Path | None, really: bool) -> None:
    """The same of a `models.toml`. Raises ValueError where it cannot be read, too."""
    if path is None or really:
        return
    from rcjax.serving.models_file import read_models

    _require(path.name, {name: model.price for name, model in read_models(path).items()})


def require_plausible_log(target: Target | None, log: Log, really: bool) -> None:
    """Say what is odd about a log, a line each; LogError where a policy is to come of one that can hardly be right.

    Args:
        target: the target; None if there is to be no policy.
        log: the log.
        really: it is right.
    """
    from rcjax.logs.errors import LogError
    from rcjax.logs.oddities import oddities

    odd = oddities(log)
    for what in odd:
        warn(f"{Path(log.source).name}: {what}")
    if odd and target is not None and not really:
        raise LogError(f"{Path(log.source).name}: no policy of a log that can hardly be right; if it is, add --yes")


def _require(name: str, prices: Mapping[str, Price]) -> None:
    """Refuse the first price of input or output that is too small."""
    from rcjax.logs.errors import LogError

    for model, price in prices.items():
        for side, money in zip(("input", "output"), map(float, price[:2]), strict=True):
            if 0 < money < _LEAST_PRICE:
                what = f"{side} price {money:.6g} is money per million tokens, less than any model costs"
                unit, scale = ("token", 1e6) if money < _PER_TOKEN else ("1,000 tokens", 1e3)
                advice = f"if it is meant per {unit}, write {money * scale:.6g}; if it is right, add --yes"
                raise LogError(f"{name}, model {model}: {what}: {advice}")


def require_plausible_budget(target: Target | None, log: Log, really: bool) -> None:
    """Refuse a budget per query that is above what asking every model costs: nothing would be decided by it.

    Args:
        target: the target; others than a budget are let be.
        log: what models cost.
        really: it is meant so.
    """
    import numpy as np

    if target is None or target.name != "budget" or really:
        return
    costs, budget = np.asarray(log.cost, float), target.value
    dearest = float(np.nansum(costs))
    if not 0 < dearest < budget:
        return
    unit = choose_unit([dearest])
    every = f"what it costs to ask every model of the log, {unit.full(dearest)}"
    what = f"${figure(budget)} a query is {figure(budget / dearest)} times {every}, and any policy meets it"
    meant = _meant(budget, costs[np.isfinite(costs)].tolist())
    raise typer.BadParameter(f"{what}: {meant}; if it is right, add --yes", param_hint="--budget")


def _meant(budget: float, costs: Sequence[float]) -> str:
    """What is likely meant by a budget above what asking every model costs, in words: the same figure in another unit.

    >>> _meant(0.15, [2e-5, 8e-4])
    'was $150 per million queries meant? Then give --budget 150/M'
    >>> _meant(2e-3, [2e-5, 8e-4])
    'give less, such as --budget 130/M: the models alone cost $20.0 to $800 per million queries'
    """
    for scale in _UNITS if budget >= _ANOTHER_UNIT * sum(costs) else ():
        if min(costs) <= budget * scale <= sum(costs):
            other = budget * scale
            return f"was {choose_unit([other]).full(other)} meant? Then give --budget {1e6 * other:.6g}/M"
    unit = choose_unit(costs)
    alone = f"the models alone cost ${unit.show(min(costs))} to {unit.full(max(costs))}"
    return f"give less, such as --budget {budget_between(costs)}: {alone}"
