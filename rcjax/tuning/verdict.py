"""What to do, and why, in a sentence: the verdict on a policy that was chosen from a frontier.

Differences are those of the contest, on queries that were left out: a cascade is set against the best single model, or
the best pair, by the same measure. A budget buys fewer errors, a limit on the error a lower bill, a price of an error
a lower sum of both.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rcjax._base.wording import choose_unit, percent
from rcjax.frontier.frontier import Frontier
from rcjax.policy.targets import TargetName
from rcjax.tuning.comparison import Comparison, Gain


def tell_choice(
    frontier: Frontier, comparison: Comparison, point: int, target: Mapping[str, float], alone: Sequence[str] = ()
) -> str:
    """What to do for a target, and why.

    Args:
        frontier: that the policy was chosen from.
        comparison: what the contest has shown.
        point: the place of the policy.
        target: by its name; empty where the point was asked for by itself, at its λ.
        alone: single models between which a ladder divides the queries.
    """
    names = frontier.models
    members = [names[j] for j in np.flatnonzero(np.asarray(frontier.members)[point])]
    if len(members) == 1:
        divided = len(set(alone)) > 1
        which = f"{alone[0]} for some queries and {alone[1]} for the others" if divided else f"{members[0]} alone"
        return f"use {which}: {_no_cascade(comparison, target)}"
    what, agreements = f"use {' → '.join(members)}", frontier.policies.agreements
    compares = _compares(frontier, point)
    if agreements is not None and compares:
        second = int(np.argmax(np.asarray(agreements.compares)[point]))
        first, third = (int(np.asarray(places)[point, second]) for places in (agreements.earlier, agreements.differ))
        what += f", asking {names[third]} where {names[first]} and {names[second]} differ"
    if "budget" in target:
        return what + _at_budget(frontier, comparison, compares, target["budget"])
    if "max_error" in target:
        return what + _at_error(frontier, comparison, point, target["max_error"])
    return what + _for_price(frontier, comparison, point, target)


def _no_cascade(comparison: Comparison, target: Mapping[str, float]) -> str:
    """Why a single model is the best for a target."""
    if "budget" in target:
        return "no cascade is shown to be better at this budget"
    if "max_error" in target:
        return "no cascade is shown to cost less within this limit"
    agreeing = "" if comparison.agreement is None else ", nor is going by whether answers agree"
    return f"no cascade is shown to be better{agreeing}"


def tell_corrections(frontier: Frontier, comparison: Comparison, target: TargetName, labelled: bool = True) -> str:
    """What of the figures of a frontier, for some kind of target, is counted, and what is corrected.

    Args:
        frontier: of the policies.
        comparison: what the contest has shown.
        target: the kind of target.
        labelled: whether every answer of the log has a label; else errors are estimates.
    """
    luck = comparison.luckier(target, comparing=frontier.policies.agreements is not None)
    how = "counted on them" if labelled else "estimated from those that are labelled"
    counted = f"costs are the bills of these queries, and the {frontier.counted.noun} of single models is {how}"
    if luck < 5e-4 or not (np.asarray(frontier.members).sum(1) > 1).any():
        return counted
    points = f"{100 * luck:.2g} points"
    why = "the best of many looks better on its own log than on new queries"
    return f"{counted}; that of cascades is raised by {points}, as {why}"


def _at_budget(frontier: Frontier, comparison: Comparison, compares: bool, budget: float) -> str:
    """Why a cascade is the best for a budget: how many errors it saves."""
    at = comparison.at_budgets
    assert at is not None
    column = at.nearest(budget, np.asarray(frontier.model.cost, float))
    saved = at.saved.at((_row(compares, len(at.saved.mean)), column))
    less = f"{abs(100 * saved.mean):.1f} ± {100 * saved.se:.1f} points {_way(saved.mean)} {frontier.counted.noun}"
    return _beats(saved, "beat", "the best single model for the same money", less)


def _at_error(frontier: Frontier, comparison: Comparison, point: int, limit: float) -> str:
    """Why a cascade is the best for a limit on the error: how much money it saves."""
    at, costs, names = comparison.at_errors, np.asarray(frontier.model.cost, float), frontier.models
    assert at is not None
    money, keeps, surest = choose_unit(costs.tolist()), at.alone <= limit * (1 + 1e-9), int(at.alone.argmin())
    if not keeps.any():
        does = frontier.counted.does(percent(float(at.alone[surest])))
        return f": no single model keeps to this limit: {names[surest]} {does}, at {money.full(float(costs[surest]))}"
    rival = int(np.where(keeps, costs, np.inf).argmin())
    best = f"{names[rival]} alone{_which(rival == surest, float(at.alone[rival]), frontier.counted.noun)}"
    row, column = _row(_compares(frontier, point), len(at.saved.mean)), at.nearest(limit)
    saved, bill = at.saved.at((row, column)), float(at.cost[0, column])
    share = f" ({percent(abs(saved.mean) / bill, 0)})" if bill > 0 else ""
    figures = f"${money.show(abs(float(saved.mean)))} ± {money.show(float(saved.se))}"
    less = f"{figures} per {money.name} queries{share} {_way(saved.mean)}"
    today = "" if rival == surest or not saved.shown else _beside(frontier, point, surest)
    return _beats(saved, "cost less than", best, less) + today


def _for_price(frontier: Frontier, comparison: Comparison, point: int, target: Mapping[str, float]) -> str:
    """Why a cascade is the best at a price of an error: how much less errors and money come to."""
    of_point = float(np.asarray(frontier.lam)[point])
    lam = target.get("lam") or (1 / target["error_cost"] if "error_cost" in target else of_point)
    compares = _compares(frontier, point)
    of, rival = (comparison.agreement, "the best pair") if compares else (comparison.pairs, "the best single model")
    assert of is not None
    gain = of.at_prices.at(int(comparison.nearest(of_point)))
    money = choose_unit(np.asarray(frontier.model.cost, float).tolist())
    figures = f"${money.show(abs(gain.mean) / lam)} ± {money.show(gain.se / lam)}"
    less = f"{figures} per {money.name} queries {_way(gain.mean)}"
    return _beats(gain, "beat", f"{rival} where {frontier.counted.one} counts as ${1 / lam:.3g}", less)


def _beats(gain: Gain, verb: str, rival: str, less: str) -> str:
    """What a gain on a rival shows."""
    if gain.shown:
        return f": {less} than {rival}, on queries left out"
    return f", which is not shown to {verb} {rival}: {less} on queries left out"


def _which(surest: bool, error: float, noun: str) -> str:
    """What a rival is, for a limit on the error; nothing for one that never errs, as that answers are held to."""
    if not surest:
        return " (the cheapest within this limit)"
    return f" (of the least {noun})" if error > 0 else ""


def _way(saved: Any) -> str:
    return "less" if saved >= 0 else "more"


def _beside(frontier: Frontier, point: int, model: int) -> str:
    """What a policy costs beside the model that errs least."""
    cost, dearer = float(np.asarray(frontier.cost)[point]), float(np.asarray(frontier.model.cost)[model])
    if dearer <= 0:
        return ""
    gap = 1 - cost / dearer
    return (
        f", and {percent(abs(gap), 0)} {_way(gap)} than {frontier.models[model]}, of the least {frontier.counted.noun}"
    )


def _compares(frontier: Frontier, point: int) -> bool:
    """Whether a policy compares answers."""
    agreements = frontier.policies.agreements
    return agreements is not None and bool(np.asarray(agreements.compares)[point].any())


def _row(compares: bool, rows: int) -> int:
    """Which way to choose a policy comes from: pairs, or where it compares answers, all that may."""
    return rows - 1 if compares else min(1, rows - 1)
