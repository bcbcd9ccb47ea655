"""What was compared in cross-validation: cascades of each length, and their rivals, by cross-validated figures."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from rcjax.policy.targets import TargetName
from rcjax.solving.lambda_grid import log_lam

__all__ = [
    "COMPARING",
    "COMPARING_ALONE",
    "LONGER",
    "AtBudgets",
    "AtErrors",
    "Bar",
    "Comparison",
    "Gain",
    "Luck",
    "Rival",
    "over_neighbours",
]


_WINDOW = 9  # prices that luck is averaged over


_CONTRADICTION = 3.0  # standard errors


@dataclasses.dataclass(frozen=True)
class Bar:
    """What a way to choose policies must gain to have earned its place."""

    least: float
    """Of error + λ·cost, as a share of it over all prices together."""
    sure: float
    """Standard errors of that."""

    def earned(self, overall: Any, overall_se: Any, counted: Any, counted_se: Any) -> Any:
        """Whether a gain has: it is above both, and the labels left out do not contradict by three standard errors.

        Args:
            overall, overall_se: the gain as a share of error + λ·cost, over all prices, and its standard error.
            counted, counted_se: the same by the labels of the queries left out themselves.

        >>> Bar(0.01, 1.0).earned(0.03, 0.02, -0.01, 0.02), Bar(0.01, 1.0).earned(0.03, 0.04, 0.03, 0.04)
        (True, False)
        """
        enough = (overall > self.least) & (overall > self.sure * overall_se)
        return enough & (counted > -_CONTRADICTION * counted_se)


#: A longer chain takes a place from pairs, and luck helps the longer one.
LONGER = Bar(0.0, 1.0)


#: Comparing answers: the frontier keeps the policies without, so that a gain which is not there costs little, and one
#: that is missed much.
COMPARING = Bar(0.002, 0.0)


#: The same for it to stand in the place of policies without answers, which then do not stay beside.
COMPARING_ALONE = Bar(0.004, 1.0)


class Gain(NamedTuple):
    """What S arms gain on a rival in error + λ·cost, G prices, on queries that were left out; numpy's arrays."""

    gain: np.ndarray
    """(S, G)"""
    gain_se: np.ndarray
    """(S, G) its standard error, over queries."""
    overall: np.ndarray
    """(S,) the gain as a share of the rival's error + λ·cost, averaged over the prices."""
    overall_se: np.ndarray
    """(S,)"""
    counted: np.ndarray
    """(S,) the same by the labels of the queries left out themselves."""
    counted_se: np.ndarray
    """(S,)"""


@dataclasses.dataclass(frozen=True)
class Rival:
    """Cross-validated figures of the best policies that may compare answers; G prices λ, numpy's arrays.

    At each price that is a single model, a pair, or one by agreement (`agreement_candidates`), whichever the labels of
    the other folds make the best. Gains are of expected errors on the queries left out: by their confidences and by
    which of their answers are equal, as the labels of the other folds tell. Counted by the labels of 300 queries, a
    gain of 7 % has a standard error of 5 %, and two of three would be missed.
    """

    error: np.ndarray  # (G,) on queries that the policies were not tuned on; a refusal counts at its price
    cost: np.ndarray  # (G,)
    gain: np.ndarray  # (G,) by how much error + λ·cost is below that of the pair
    gain_se: np.ndarray  # (G,) its standard error, over queries
    overall: float  # the gain as a share of the pair's error + λ·cost, averaged over the prices
    overall_se: float
    counted: float  # the same by the labels of the queries left out themselves
    counted_se: float

    @property
    def earned(self) -> bool:
        """Whether comparing answers gains enough over all prices together (`COMPARING`)."""
        return bool(COMPARING.earned(self.overall, self.overall_se, self.counted, self.counted_se))


@dataclasses.dataclass(frozen=True)
class AtBudgets:
    """Cross-validated figures for B budgets, on queries that the policies were not tuned on; numpy's arrays.

    Of the best that the labels of the others say there is within each budget: of single models, of pairs and single
    models, and where answers are compared, of all that may.
    """

    budgets: np.ndarray  # (B,) money per query, rising
    error: np.ndarray  # (S, B) a refusal counts at its price
    cost: np.ndarray  # (S, B) the bill
    saved: np.ndarray  # (S, B) by how much the error is below that of the best single model
    saved_se: np.ndarray  # (S, B) its standard error, over queries

    def nearest(self, budget: float, bills: Any = ()) -> int:
        """The place of the budget nearest to one, on the logarithmic scale.

        Of those that pay for as many of some bills, those of the models alone, where there are such: what a cascade
        saves falls at once where the next model can be had for the same money.
        """
        ends, bills = (np.log(np.maximum(money, np.finfo(float).tiny)) for money in (self.budgets, np.asarray(bills)))
        own = np.log(max(budget, np.finfo(float).tiny))
        alike = (bills <= ends[:, None] + 1e-9).sum(1) == (bills <= own + 1e-9).sum()
        return int(np.where(alike | ~alike.any(), np.abs(ends - own), np.inf).argmin())


@dataclasses.dataclass(frozen=True)
class AtErrors:
    """Cross-validated bills for E limits on the error, on queries that the policies were not tuned on; numpy's arrays.

    Of the cheapest that the labels of the others say keeps to each limit: of the same ways to choose as `AtBudgets`.
    """

    limits: np.ndarray  # (E,) shares of wrong answers, rising
    cost: np.ndarray  # (S, E) the bill
    saved: np.ndarray  # (S, E) by how much it is below that of the cheapest single model
    saved_se: np.ndarray  # (S, E) its standard error, over queries
    alone: np.ndarray  # (k,) how often each model errs, by all labels

    def nearest(self, limit: float) -> int:
        """The position of the limit nearest to one, of those that as many single models keep to, if there are such."""
        ends = self.limits
        alike = (self.alone <= ends[:, None]).sum(1) == (self.alone <= limit).sum()
        return int(np.where(alike | ~alike.any(), np.abs(ends - limit), np.inf).argmin())


class Luck(NamedTuple):
    """By how much more S ways to choose err on queries left out than on those of the choice, (S,) for each target.

    Of single models, of pairs and single models, and where answers are compared, of all that may.
    """

    prices: np.ndarray
    """Over all prices together."""
    budgets: np.ndarray
    """Over all budgets."""
    errors: np.ndarray
    """Over all limits on the error."""

    def at(self, target: TargetName) -> np.ndarray:
        """That of a kind of target."""
        return {"budget": self.budgets, "max_error": self.errors}.get(target, self.prices)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Cross-validated figures of the best policies with so many models; S lengths, G prices λ, numpy's arrays.

    Length 1 is the best single model, 2 the best pair (or single model) by the labels; from 3 on, the best cascade of
    exactly so many models under the Markov-copula model. A policy that is best for one λ may be another for the next.
    """

    lengths: np.ndarray  # (S,)
    lam: np.ndarray  # (G,) increasing
    error: np.ndarray  # (S, G) on queries that the policies were not tuned on; a refusal counts at its price
    cost: np.ndarray  # (S, G)
    gain: np.ndarray  # (S, G) by how much error + λ·cost is below that of the pair
    gain_se: np.ndarray  # (S, G) its standard error, over queries
    overall: np.ndarray  # (S,) the gain as a share of the pair's error + λ·cost, averaged over the prices
    overall_se: np.ndarray  # (S,)
    agreement: Rival | None = None  # policies that compare answers, where the log tells answers
    at_budgets: AtBudgets | None = None  # what budgets get
    at_errors: AtErrors | None = None  # what limits on the error cost
    luck: Luck | None = None

    @property
    def chosen(self) -> np.ndarray:
        """(G,) the length that earns its place at each price: 2, or a longer one.

        That must gain more than one standard error over all prices together, and at the price itself: of forty prices,
        one or another always looks better by luck.
        """
        short = np.full(len(self.lam), min(2, self.lengths[-1]))
        best = self._longer
        if best is None:
            return short
        earned = (self.gain[best] > self.gain_se[best]) & ~self.agreeing
        return np.where(earned, self.lengths[best], short)

    @property
    def agreeing(self) -> np.ndarray:
        """(G,) bool: the prices where comparing answers earns its place: it gains over all together, and at the price.

        Where a longer cascade earns it too, the one that gains more over all prices has it.
        """
        rival, best = self.agreement, self._longer
        if rival is None or not rival.earned:
            return np.zeros(len(self.lam), bool)
        earned = rival.gain > 0
        if best is not None and self.overall[best] > rival.overall:
            earned &= ~(self.gain[best] > self.gain_se[best])
        return earned

    def luckier(self, target: TargetName, comparing: bool) -> float:
        """By how much luckier the choice of pairs is than that of single models, 0 at the least.

        The best of many looks better than it is on other queries, and there are many more cascades to choose from than
        models. By so much the errors of cascades are raised: so both are told by one measure, and single models are as
        counted. Over all prices together, or all budgets, or all limits on the error: single figures of that are noise.

        Args:
            target: the kind of target that is chosen for.
            comparing: of policies that may compare answers, where there are any.
        """
        if self.luck is None:
            return 0.0
        luck = self.luck.at(target)
        return max(float(luck[-1 if comparing else min(1, len(luck) - 1)] - luck[0]), 0.0)

    @property
    def _longer(self) -> int | None:
        """The place of the longer cascades that gain most, of those that gain enough over all prices together."""
        earned = (self.lengths > 2) & LONGER.earned(self.overall, self.overall_se, self.overall, self.overall_se)
        return int(np.argmax(np.where(earned, self.overall, -np.inf))) if earned.any() else None

    def nearest(self, lam: Any) -> np.ndarray:
        """(…) the place of the price nearest to each λ, on the logarithmic scale."""
        return np.abs(log_lam(self.lam) - log_lam(lam)[..., None]).argmin(-1)


def over_neighbours(luck: np.ndarray) -> np.ndarray:
    """(G,) luck at each price, averaged over the prices next to it.

    >>> over_neighbours(np.array([0.0, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0, 0.0, 0.0])).round(6).tolist()
    [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    """
    padded = np.pad(luck, _WINDOW // 2, "edge")
    return np.convolve(padded, np.full(_WINDOW, 1 / _WINDOW), "valid")
