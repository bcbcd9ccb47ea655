"""What was compared in cross-validation: single models, pairs, and policies that compare answers."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from rcjax.frontier.prices import log_lam
from rcjax.policy.targets import TargetName

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


#: Comparing answers, of error + λ·cost, as a share of it over all prices together: the frontier keeps the policies
#: without, so that a gain which is not there costs little, and one that is missed much.
COMPARING = Bar(0.002, 0.0)


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
        if self.agreement is None or not self.agreement.earn(COMPARING):
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
