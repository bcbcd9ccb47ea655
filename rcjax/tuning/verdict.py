"""What to do, and why, in a sentence: the verdict on a policy that was chosen from a frontier.

Differences are those of the contest, on queries that were left out: a cascade is set against the best single model, or
the best pair, by the same measure. A budget buys fewer errors, a limit on the error a lower bill, a price a lower loss.
Policies are chosen by other figures, those of the whole log, corrected for luck: where the contest says worse, what
they say is told beside it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rcjax._base.wording import choose_unit, percent
from rcjax.frontier.frontier import Frontier
from rcjax.policy.targets import TargetName
from rcjax.tuning.comparison import SHOWN, Comparison, Gain


def tell_choice(frontier: Frontier, comparison: Comparison, point: int, target: Mapping[str, float]) -> str:
    """What to do for a target, and why.

    Args:
        frontier: that the policy was chosen from.
        comparison: what the contest has shown.
        point: the place of the policy.
        target: by its name; empty where the point was asked for by itself, at its λ.
    """
    models = frontier.models
    members = [models[j] for j in np.flatnonzero(np.asarray(frontier.members)[point])]
    price = int(comparison.nearest(float(np.asarray(frontier.lam)[point])))
    what = f"use {' → '.join(members)}" if len(members) > 1 else f"use {members[0]} alone"
    compared = _by_agreement(frontier, point)
    if "budget" in target:
        why = _at_budget(frontier, comparison, point, target["budget"])
    elif "max_error" in target:
        why = _at_error(frontier, comparison, point, target["max_error"])
    else:
        why = _for_price(frontier, comparison, point, price)
    return f"{what}{f', {compared}' if compared else ''}: {why}"


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


def _at_budget(frontier: Frontier, comparison: Comparison, point: int, budget: float) -> str:
    """Why a policy is the best for a budget: how many errors it saves."""
    at = comparison.at_budgets
    assert at is not None
    if _is_single(frontier, point):
        return "no cascade is shown to be better at this budget"
    column = at.nearest(budget, np.asarray(frontier.model.cost, float))
    saved = at.saved.at((_row(frontier, point, len(at.saved.mean)), column))
    fewer = f"{abs(100 * saved.mean):.1f} ± {100 * saved.se:.1f} points {_way(saved.mean)} {frontier.counted.noun}"
    if SHOWN.earned(saved):
        return f"{fewer} than the best single model for the same money"
    unseen = f"that it beats the best single model for the same money is not shown: {fewer} on queries left out"
    affordable = np.asarray(frontier.model.cost, float) <= budget * (1 + 1e-9)
    gap = _least_alone(comparison, np.where(affordable, 0.0, np.inf)) - _figures(frontier, point)[0]
    return unseen + _though(saved.mean, round(100 * gap, 1), f"{100 * gap:.1f} points less")


def _at_error(frontier: Frontier, comparison: Comparison, point: int, limit: float) -> str:
    """Why a policy is the best for a limit on the error: how much money it saves."""
    at, costs, names = comparison.at_errors, np.asarray(frontier.model.cost, float), frontier.models
    assert at is not None
    if _is_single(frontier, point):
        return "no cascade is shown to cost less within this limit"
    money, keeps, surest = choose_unit(costs.tolist()), at.alone <= limit * (1 + 1e-9), int(at.alone.argmin())
    if not keeps.any():
        does = frontier.counted.does(percent(float(at.alone[surest])))
        return f"no single model keeps to this limit: {names[surest]} {does}, at {money.full(float(costs[surest]))}"
    rival = int(np.where(keeps, costs, np.inf).argmin())
    best = f"{names[rival]} alone{_which(rival == surest, float(at.alone[rival]), frontier.counted.noun)}"
    column = at.nearest(limit)
    saved, bill = at.saved.at((_row(frontier, point, len(at.saved.mean)), column)), float(at.cost[0, column])
    share = f" ({percent(abs(saved.mean) / bill, 0)})" if bill > 0 else ""
    figures = f"${money.show(abs(float(saved.mean)))} ± {money.show(float(saved.se))}"
    less = f"{figures} per {money.name} queries{share} {_way(saved.mean)}"
    if not SHOWN.earned(saved):
        unseen = f"that it costs less than {best} is not shown: {less} on queries left out"
        gap = float(costs[rival]) - _figures(frontier, point)[1]
        return unseen + _though(saved.mean, gap, f"${money.show(abs(gap))} less")
    today = "" if rival == surest else _beside(frontier, point, surest)
    return f"{less} than {best}{today}"


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


def _figures(frontier: Frontier, point: int) -> tuple[float, float]:
    """(errors, and refusals at their price; the cost) of a policy, as it was chosen by."""
    return float(np.asarray(frontier.penalty)[point]), float(np.asarray(frontier.cost)[point])


def _least_alone(comparison: Comparison, beside: np.ndarray) -> float:
    """The least error of a single model, with what counts beside it (k,)."""
    assert comparison.at_errors is not None
    return float((comparison.at_errors.alone + beside).min())


def _though(seen: Any, gap: float, words: str) -> str:
    """Why a policy was chosen that gains nothing on queries left out: its gain by the figures of the choice, if any."""
    return f", though by the whole log, corrected for luck, {words}" if seen < 0 < gap else ""


def _is_single(frontier: Frontier, point: int) -> bool:
    return int(np.asarray(frontier.members)[point].sum()) == 1


def _row(frontier: Frontier, point: int, rows: int) -> int:
    """Which way to choose a policy comes from: pairs, or where it compares answers, all that may."""
    return rows - 1 if _by_agreement(frontier, point) else min(1, rows - 1)


def _for_price(frontier: Frontier, comparison: Comparison, point: int, price: int) -> str:
    """Why a policy is the best at a price of an error."""
    size, noun = int(np.asarray(frontier.members)[point].sum()), frontier.counted.noun
    if size == 1:
        nothing = "no cascade is shown to be better"
        return nothing if comparison.agreement is None else f"{nothing}, nor is going by whether answers agree"
    if _by_agreement(frontier, point):
        assert comparison.agreement is not None
        return _tell(comparison.agreement.at_prices.at(price), "the best pair", noun)
    gain, lam = comparison.pairs.at_prices.at(price), float(comparison.lam[price])
    error, cost = _figures(frontier, point)
    gap = _least_alone(comparison, lam * np.asarray(frontier.model.cost, float)) - error - lam * cost
    why = _though(gain.mean, round(100 * gap, 2), f"{100 * gap:.2f} points better")
    return _tell(gain, "the best single model", noun) + why


def _tell(gain: Gain, rival: str, noun: str) -> str:
    """What a gain shows of a policy that was chosen."""
    figures = f"{abs(100 * gain.mean):.2f} ± {100 * gain.se:.2f} points of {noun} + λ·cost"
    if SHOWN.earned(gain):
        return f"{figures} better than {rival}"
    way = "better" if gain.mean >= 0 else "worse"
    return f"that it beats {rival} is not shown: {figures} {way} on queries left out"


def _by_agreement(frontier: Frontier, point: int) -> str:
    """What a policy that compares answers does, in words; empty for others."""
    agreements = frontier.policies.agreements
    if agreements is None or not np.asarray(agreements.compares)[point].any():
        return ""
    second = int(np.argmax(np.asarray(agreements.compares)[point]))
    first, third = (int(np.asarray(places)[point, second]) for places in (agreements.earlier, agreements.differ))
    names = frontier.models
    return f"asking {names[third]} where {names[first]} and {names[second]} differ"
