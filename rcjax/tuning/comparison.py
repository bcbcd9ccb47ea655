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
    "SHOWN",
    "AtBudgets",
    "AtErrors",
    "Bar",
    "Comparison",
    "Gain",
    "Gains",
    "Luck",
    "over_neighbours",
]


_WINDOW = 9  # prices that luck is averaged over


_CONTRADICTION = 3.0  # standard errors


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


@dataclasses.dataclass(frozen=True)
class Bar:
    """What must be gained: the one rule for what has earned its place, or is shown."""

    least: float
    """At least so much."""
    sure: float
    """So many standard errors at least."""

    def earned(self, gain: Gain, counted: Gain | None = None) -> Any:
        """Whether a gain is above both, and the labels left out do not contradict by three standard errors.

        Args:
            gain: what is gained.
            counted: the same by the labels of the queries left out themselves, where the gain is by what is expected.

        >>> [Bar(0.01, 1.0).earned(Gain(0.03, se), Gain(-0.01, 0.02)) for se in (0.02, 0.04)]
        [True, False]
        """
        enough = (gain.mean > self.least) & (gain.mean > self.sure * gain.se)
        return enough if counted is None else enough & (counted.mean > -_CONTRADICTION * counted.se)


#: A longer chain takes a place from pairs, and luck helps the longer one.
LONGER = Bar(0.0, 1.0)


#: Comparing answers, of error + λ·cost, as a share of it over all prices together: the frontier keeps the policies
#: without, so that a gain which is not there costs little, and one that is missed much.
COMPARING = Bar(0.002, 0.0)


#: The same for it to stand in the place of policies without answers, which then do not stay beside.
COMPARING_ALONE = Bar(0.004, 1.0)


#: What is said to be shown.
SHOWN = Bar(0.0, 2.0)


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

    def earn(self, bar: Bar) -> bool:
        """Whether one arm gains enough over all prices together."""
        return bool(bar.earned(self.overall, self.counted))


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
        ends, bills = (np.log(np.maximum(money, np.finfo(float).tiny)) for money in (self.budgets, np.asarray(bills)))
        end = np.log(max(budget, np.finfo(float).tiny))
        alike = (bills <= ends[:, None] + 1e-9).sum(1) == (bills <= end + 1e-9).sum()
        return int(np.where(alike | ~alike.any(), np.abs(ends - end), np.inf).argmin())


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
    agreement: Gains | None = None  # of policies that may compare answers, where the log tells answers
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
        return np.where(self._gains_at_prices(best) & ~self.agreeing, self.lengths[best], short)

    @property
    def agreeing(self) -> np.ndarray:
        """(G,) bool: the prices where comparing answers earns its place: it gains over all together, and at the price.

        Where a longer cascade earns it too, the one that gains more over all prices has it.
        """
        gains, best = self.agreement, self._longer
        if gains is None or not gains.earn(COMPARING):
            return np.zeros(len(self.lam), bool)
        earned = gains.at_prices.mean > 0
        if best is not None and self.overall[best] > gains.overall.mean:
            earned &= ~self._gains_at_prices(best)
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
        earned = (self.lengths > 2) & LONGER.earned(Gain(self.overall, self.overall_se))
        return int(np.argmax(np.where(earned, self.overall, -np.inf))) if earned.any() else None

    def _gains_at_prices(self, length: int) -> np.ndarray:
        """(G,) bool: where the cascades of a length, by its position, gain on the pair."""
        return LONGER.earned(Gain(self.gain[length], self.gain_se[length]))

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
