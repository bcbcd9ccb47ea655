"""What to do, and why, in a sentence: the verdict on a policy that was chosen from a frontier.

Differences are those of the contest, on queries that were left out: a cascade is set against the best single model, or
the best pair, by the same measure. A budget buys fewer errors, a limit on the error a lower bill, a price a lower loss.
"""

from collections.abc import Mapping

import numpy as np

from rcjax.frontier.frontier import Frontier
from rcjax.frontier.policies import ABSTAIN, Agreements
from rcjax.policy.targets import TargetName
from rcjax.tuning.comparison import SHOWN, Comparison, Gain

__all__ = ["tell_choice", "tell_corrections"]


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
    limited = "budget" in target or "max_error" in target
    why = (
        _for_money(frontier, comparison, point, target) if limited else _for_price(comparison, members, compared, price)
    )
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
    how = "counted on them" if labelled else "estimated from labels and judges"
    counted = f"costs are the bills of these queries, and errors of single models are {how}"
    if luck < 5e-4 or not (np.asarray(frontier.members).sum(1) > 1).any():
        return counted
    points = f"{100 * luck:.2g} points"
    why = "the best of many looks better on its own log than on new queries"
    return f"{counted}; those of cascades are raised by {points}, as {why}"


def _for_money(frontier: Frontier, comparison: Comparison, point: int, target: Mapping[str, float]) -> str:
    """Why a policy is the best for a budget, or a limit on the error."""
    at, budget = comparison.at_budgets, target.get("budget")
    assert at is not None
    spent = float(np.asarray(frontier.cost)[point])
    place = at.nearest(spent if budget is None else budget, np.asarray(frontier.model.cost, float))
    alone = int(np.asarray(frontier.members)[point].sum()) == 1
    goal = "at this budget" if budget is not None else "at this error"
    if alone:
        return f"no cascade is shown to be better {goal}"
    agreements = frontier.policies.agreements
    compares = agreements is not None and np.asarray(agreements.compares)[point].any()
    arms = len(at.saved.mean)
    row = arms - 1 if compares else min(1, arms - 1)
    saved = at.saved.at((row, place))
    fewer = f"{abs(100 * saved.mean):.1f} ± {100 * saved.se:.1f} points {'fewer' if saved.mean >= 0 else 'more'} errors"
    if SHOWN.earned(saved):
        return f"{fewer} than the best single model for the same money"
    return f"that it beats the best single model for the same money is not shown: {fewer} on queries left out"


def _for_price(comparison: Comparison, members: list[str], compared: str, price: int) -> str:
    """Why a policy is the best at a price of an error."""
    if len(members) == 1:
        nothing = "no cascade is shown to be better"
        return nothing if comparison.agreement is None else f"{nothing}, nor is going by whether answers agree"
    if compared:
        assert comparison.agreement is not None
        return _tell(comparison.agreement.at_prices.at(price), "the best pair")
    if len(members) == 2:
        return _tell(Gain(-comparison.gain[0, price], comparison.gain_se[0, price]), "the best single model")
    row = int(np.searchsorted(comparison.lengths, len(members)))
    return _tell(Gain(comparison.gain[row, price], comparison.gain_se[row, price]), "the best pair")


def _tell(gain: Gain, rival: str) -> str:
    """What a gain shows of a policy that was chosen."""
    figures = f"{abs(100 * gain.mean):.2f} ± {100 * gain.se:.2f} points of error + λ·cost"
    if SHOWN.earned(gain):
        return f"{figures} better than {rival}"
    way = "better" if gain.mean >= 0 else "worse"
    return f"that it beats {rival} is not shown: {figures} {way} on queries left out"


def _by_agreement(frontier: Frontier, point: int) -> str:
    """What a policy that compares answers does, in words; empty for others."""
    agreements: Agreements | None = frontier.policies.agreements
    if agreements is None or not np.asarray(agreements.compares)[point].any():
        return ""
    second = int(np.argmax(np.asarray(agreements.compares)[point]))
    first, third = (int(np.asarray(places)[point, second]) for places in (agreements.earlier, agreements.differ))
    names = frontier.models
    if third == ABSTAIN:
        return f"refusing where {names[first]} and {names[second]} differ"
    return f"asking {names[third]} where {names[first]} and {names[second]} differ"
