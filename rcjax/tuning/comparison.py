"""What was compared in cross-validation, and the verdict on a policy by it, in a sentence.

Differences are those of the contest, on queries that were left out: a cascade is set against the best single model, or
the best pair, by the same measure. A budget buys fewer errors, a price of an error a lower sum of errors and money.
What a limit on the error saves is told by the bills of the log.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rcjax._base.wording import choose_unit, percent
from rcjax.frontier.frontier import Frontier
from rcjax.frontier.points import log_lam
from rcjax.policy.spec import TargetName
from rcjax.tuning.candidates import Targets

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

    def at(self, index: Any) -> "Gain":
        """That of one of several."""
        return Gain(self.mean[index], self.se[index])


class Gains(NamedTuple):
    """What an arm gains on a rival in error + λ·cost at G prices."""

    at_prices: Gain
    """(G,)"""
    overall: Gain
    """() as a share of the rival's error + λ·cost, averaged over the prices."""
    counted: Gain
    """() the same by the labels of the queries left out themselves."""

    @property
    def earned(self) -> bool:
        """Whether the arm gains enough to have a place, and the labels left out do not contradict.

        The frontier keeps the policies without it, so that a gain which is not there costs little, and one that is
        missed much.
        """
        return bool(self.overall.mean > _LEAST and self.counted.mean > -_CONTRADICTION * self.counted.se)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Cross-validated figures of single models, pairs, and policies that compare answers, on queries left out.

    Of S ways to choose, each the best of its kind by the labels of the others: single models, being among them pairs,
    and where answers are compared, all that may. What is best for one target may be another for the next.
    """

    targets: Targets  # G prices, B budgets, each rising
    pairs: Gains  # of pairs, on single models
    agreement: Gains | None  # of policies that may compare answers, on pairs; None: the log tells no answers
    saved: Gain  # (S, B) by how much the error is below that of the best single model
    alone: np.ndarray  # (k,) how often each model errs, by all labels
    luck: np.ndarray  # (2, S) by how much more errs what was chosen than on the queries of the choice: prices, budgets

    @property
    def agreeing(self) -> np.ndarray:
        """(G,) bool: the prices where comparing answers earns its place: it gains over all together, and at the price.

        Of forty prices, one or another always looks better by luck.
        """
        if self.agreement is None or not self.agreement.earned:
            return np.zeros(len(self.targets.lam), bool)
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
        if target == "max_error":
            return 0.0
        luck = self.luck[int(target == "budget")]
        return max(float(luck[_row(comparing, len(luck))] - luck[0]), 0.0)

    def at_budget(self, budget: float, bills: Any = ()) -> int:
        """The place of the budget nearest to one, on the logarithmic scale.

        Of those that pay for as many of some bills, those of the models alone, where there are such: what a cascade
        saves falls at once where the next model can be had for the same money.
        """
        ends, end, alone = (log_lam(money) for money in (self.targets.budgets, budget, bills))
        alike = (alone <= ends[:, None] + 1e-9).sum(1) == (alone <= end + 1e-9).sum()
        return int(np.where(alike | ~alike.any(), np.abs(ends - end), np.inf).argmin())

    def at_price(self, lam: Any) -> np.ndarray:
        """(…) the place of the price nearest to each λ, on the logarithmic scale."""
        return np.abs(log_lam(self.targets.lam) - log_lam(lam)[..., None]).argmin(-1)


def _row(compares: bool, rows: int) -> int:
    """Which way to choose a policy comes from: pairs, or where it compares answers, all that may."""
    return rows - 1 if compares else min(1, rows - 1)


@dataclasses.dataclass(frozen=True)
class Selection:
    """The frontier of the cascades that earn their place, and what they were compared with."""

    frontier: Frontier
    comparison: Comparison
    target: TargetName = "budget"
    """The kind of target that errors of cascades are corrected for."""

    def verdict(
        self,
        point: int,
        target: Mapping[str, float] | None = None,
        rungs: Sequence[str] = (),
        cost: float | None = None,
    ) -> str:
        """What to do, and why, in words.

        Differences are on queries left out, with one standard error: in percentage points of errors for a budget, for a
        price in money with what errors cost. For a limit on the error it is the money that is saved on the log.

        Args:
            point: a place of the frontier.
            target: by its name; None for the point by itself, at its λ.
            rungs: what the queries go by, in words, where a ladder divides them.
            cost: money per query of the ladder; None: that of the point.
        """
        frontier, target, names = self.frontier, target or {}, self.frontier.models
        policy = frontier.policies.on_host().take(point)
        members, agreements = [names[j] for j in np.flatnonzero(policy.members)], policy.agreements
        what = f"use {' → '.join(members)}{' alone' * (len(members) == 1)}"
        if len(set(rungs)) > 1:
            what = f"use {rungs[0]} for some queries and {rungs[1]} for the others"
        if "→" not in what:
            return f"{what}: no cascade is shown to be better"
        compares = agreements is not None and bool(agreements.compares.any())
        if agreements is not None and compares:
            second = int(agreements.compares.argmax())
            first, third = agreements.earlier[second], agreements.differ[second]
            what += f", asking {names[third]} where {names[first]} and {names[second]} differ"
        if "budget" in target:
            return what + _at_budget(frontier, self.comparison, compares, target["budget"])
        if "max_error" in target:
            bill = float(frontier.cost[point]) if cost is None else cost
            return what + _at_error(frontier, self.comparison.alone, target["max_error"], bill)
        return what + _for_price(frontier, self.comparison, compares, point, target)


def _at_budget(frontier: Frontier, comparison: Comparison, compares: bool, budget: float) -> str:
    """Why a cascade is the best for a budget: how many errors it saves."""
    costs = np.asarray(frontier.model.cost, float)
    saved = comparison.saved.at((_row(compares, len(comparison.saved.mean)), comparison.at_budget(budget, costs)))
    less = f"{abs(100 * saved.mean):.1f} ± {100 * saved.se:.1f} points {_way(saved.mean)} {frontier.counted.noun}"
    rival = frontier.models[int(np.where(costs <= max(budget, costs.min()), comparison.alone, np.inf).argmin())]
    return _beside(saved, f"{rival} alone, the best single model that the budget pays for", less)


def _at_error(frontier: Frontier, errors: np.ndarray, limit: float, bill: float) -> str:
    """Why a cascade is the best for a limit on the error: what single models (k,) would cost."""
    costs, names = np.asarray(frontier.model.cost, float), frontier.models
    money, keeps, surest = choose_unit(costs.tolist()), errors <= limit * (1 + 1e-9), int(errors.argmin())
    if not keeps.any():
        does = frontier.counted.does(percent(float(errors[surest])))
        return f": no single model keeps to this limit: {names[surest]} {does}, at {money.full(float(costs[surest]))}"
    rival = int(np.where(keeps, costs, np.inf).argmin())
    saved = float(costs[rival]) - bill
    if saved <= 0:  # a guarantee takes more than to keep to the limit on the log
        return ""
    share = percent(saved / costs[rival], 0)
    return f": {money.full(saved)} ({share}) less than {names[rival]} alone, the cheapest within this limit"


def _for_price(
    frontier: Frontier, comparison: Comparison, compares: bool, point: int, target: Mapping[str, float]
) -> str:
    """Why a cascade is the best at a price of an error: how much less errors and money come to."""
    of_point = float(np.asarray(frontier.lam)[point])
    lam = target.get("lam") or (1 / target["error_cost"] if "error_cost" in target else of_point)
    best = frontier.models[int((comparison.alone + lam * np.asarray(frontier.model.cost, float)).argmin())]
    single = f"{best} alone, the best single model"
    of, rival = (comparison.agreement, "the best pair") if compares else (comparison.pairs, single)
    assert of is not None
    gain = of.at_prices.at(int(comparison.at_price(of_point)))
    money = choose_unit(np.asarray(frontier.model.cost, float).tolist())
    figures = money.measured(abs(gain.mean) / lam, gain.se / lam)
    less = f"{figures} per {money.name} queries {_way(gain.mean)}"
    return _beside(gain, f"{rival} where {frontier.counted.one} counts as ${1 / lam:.3g}", less)


def _beside(gain: Gain, rival: str, less: str) -> str:
    """The gain on a rival as evidence for a choice that stands."""
    if abs(gain.mean) > 2 * gain.se:
        return f": {less} than {rival}, on queries left out"
    return f", as good as {rival}, as far as queries left out tell: {less}"


def _way(saved: Any) -> str:
    return "less" if saved >= 0 else "more"
