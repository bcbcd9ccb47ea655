"""What was compared in cross-validation: single models, pairs, and policies that compare answers."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from rcjax.frontier.prices import log_lam
from rcjax.policy.targets import TargetName

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
