"""What was compared in cross-validation, and the verdict on a policy by it, in a sentence.

Differences are those of the contest, on queries that were left out: a cascade is set against the best single model, or
the best pair, by the same measure. A budget buys fewer errors, a limit on the error a lower bill, a price of an error
a lower sum of both.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rcjax._base.wording import choose_unit, percent
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.points import log_lam
from rcjax.policy.spec import TargetName

_LEAST, _CONTRADICTION = 0.002, 3.0  # of error + λ·cost over all prices together, as a share of it; standard errors


class Gain(NamedTuple):
    """By how much one thing is better than its rival, on queries that were left out: numbers, or numpy's arrays."""

    mean: Any
    """Over the queries."""
    se: Any
    """Its standard error."""

    @classmethod
    def of(cls, forms: np.ndarray) -> "Gain":
        """Of what each of m queries gains, (F, …, m), in the forms that outcomes have (`contest`).

        The mean is of the first form; the standard error of the last, which is the same where all answers are labelled.

        >>> float(Gain.of(np.array([[0.0, 2.0, 1.0, 1.0]])).mean)
        1.0
        """
        return cls(forms[0].mean(-1), forms[-1].std(-1, ddof=1) / np.sqrt(forms.shape[-1]))

    @property
    def shown(self) -> Any:
        """Whether it is above 0 by two standard errors."""
        return (self.mean > 0) & (self.mean > 2 * self.se)

    def at(self, index: Any) -> "Gain":
        """That of one of several."""
        return Gain(self.mean[index], self.se[index])


class Gains(NamedTuple):
    """What policies gain on a rival in error + λ·cost at G prices; S arms, or one."""

    at_prices: Gain
    """(S, G)"""
    overall: Gain
    """(S,) as a share of the rival's error + λ·cost, averaged over the prices."""
    counted: Gain
    """(S,) the same by the labels of the queries left out themselves."""

    def of_arm(self, index: int) -> "Gains":
        """Those of one arm."""
        return Gains(*(gain.at(index) for gain in self))

    @property
    def earned(self) -> bool:
        """Whether one arm gains enough to have a place, and the labels left out do not contradict.

        The frontier keeps the policies without it, so that a gain which is not there costs little, and one that is
        missed much.
        """
        return bool(self.overall.mean > _LEAST and self.counted.mean > -_CONTRADICTION * self.counted.se)


@dataclasses.dataclass(frozen=True)
class AtBudgets:
    """What is saved at B budgets, on queries that the policies were not tuned on; numpy's arrays.

    By the best that the labels of the others say there is within each budget: of single models, of pairs and single
    models, and where answers are compared, of all that may.
    """

    budgets: np.ndarray  # (B,) money per query, rising
    saved: Gain  # (S, B) by how much the error is below that of the best single model

    def nearest(self, budget: float, bills: Any = ()) -> int:
        """The place of the budget nearest to one, on the logarithmic scale.

        Of those that pay for as many of some bills, those of the models alone, where there are such: what a cascade
        saves falls at once where the next model can be had for the same money.
        """
        tiny = np.finfo(float).tiny
        return _nearest(*(np.log(np.maximum(money, tiny)) for money in (self.budgets, budget, np.asarray(bills))))


@dataclasses.dataclass(frozen=True)
class AtErrors:
    """Cross-validated bills for E limits on the error, on queries that the policies were not tuned on; numpy's arrays.

    Of the cheapest that the labels of the others say keeps to each limit: of the same ways to choose as `AtBudgets`.
    """

    limits: np.ndarray  # (E,) shares of wrong answers, rising
    cost: np.ndarray  # (S, E) the bill
    saved: Gain  # (S, E) by how much it is below that of the cheapest single model
    alone: np.ndarray  # (k,) how often each model errs, by all labels

    def nearest(self, limit: float) -> int:
        """The position of the limit nearest to one, of those that as many single models keep to, if there are such."""
        return _nearest(self.limits, limit, self.alone)


def _nearest(ends: np.ndarray, end: Any, alone: np.ndarray) -> int:
    """The place of the end nearest to one, of those that as many figures (k,) lie within, if there are such."""
    alike = (alone <= ends[:, None] + 1e-9).sum(1) == (alone <= end + 1e-9).sum()
    return int(np.where(alike | ~alike.any(), np.abs(ends - end), np.inf).argmin())


class Luck(NamedTuple):
    """By how much more S ways to choose err on queries left out than on those of the choice, (S,) for each target.

    Of single models, of pairs and single models, and where answers are compared, of all that may.
    """

    prices: np.ndarray
    """Over all prices together."""
    budgets: np.ndarray
    """Over all budgets."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Cross-validated figures of single models, pairs, and policies that compare answers; G prices λ, numpy's arrays.

    Each is the best of its kind by the labels, single models being among the pairs, and pairs among those that may
    compare answers. A policy that is best for one λ may be another for the next.
    """

    lam: np.ndarray  # (G,) increasing
    pairs: Gains  # of pairs, on single models
    agreement: Gains | None = None  # of policies that may compare answers, on pairs; None: the log tells no answers
    at_budgets: AtBudgets | None = None  # what budgets get
    at_errors: AtErrors | None = None  # what limits on the error cost
    luck: Luck | None = None

    @property
    def agreeing(self) -> np.ndarray:
        """(G,) bool: the prices where comparing answers earns its place: it gains over all together, and at the price.

        Of forty prices, one or another always looks better by luck.
        """
        if self.agreement is None or not self.agreement.earned:
            return np.zeros(len(self.lam), bool)
        return self.agreement.at_prices.mean > 0

    def luckier(self, target: TargetName, comparing: bool) -> float:
        """By how much luckier the choice of pairs is than that of single models, 0 at the least.

        The best of many looks better than it is on other queries, and there are many more cascades to choose from than
        models. By so much the errors of cascades are raised: so both are told by one measure, and single models are as
        counted. Over all prices together, or all budgets: single figures of that are noise. For a limit on the error
        nothing is chosen among many: a ladder stands where it is met, and raised errors would raise the bill alone.

        Args:
            target: the kind of target that is chosen for.
            comparing: of policies that may compare answers, where there are any.
        """
        if self.luck is None or target == "max_error":
            return 0.0
        luck = self.luck.budgets if target == "budget" else self.luck.prices
        return max(float(luck[-1 if comparing else min(1, len(luck) - 1)] - luck[0]), 0.0)

    def nearest(self, lam: Any) -> np.ndarray:
        """(…) the place of the price nearest to each λ, on the logarithmic scale."""
        return np.abs(log_lam(self.lam) - log_lam(lam)[..., None]).argmin(-1)


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
