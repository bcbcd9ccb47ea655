"""The two primary figures of a policy, its error and its money, each beside its promise or its limit.

A promise is the figure expected by the tuning, whose sampling error is that of the queries tuned on. On 144 tunings of
six logs, with 300 labels each, errors were 0.54 points above the promise on average (`benchmarks.drift --promises`).
They were 0.78 points above the error on the queries tuned on, and 0.37 above the middle of the interval; the middle is
no promise, as the log chooses it.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from rcjax._base.figures import choose_unit, percent
from rcjax.model.goodness_of_fit.reliability import Mean, excess, mean_rise
from rcjax.policy.counted import ERRORS, Counted
from rcjax.policy.policy import AnyPolicy
from rcjax.tuning.diagnostics.checks import KINDS, CheckResult
from rcjax.tuning.replaying.comparing import paired_error

#: Share of the queries tuned on that counts for the sampling error of a promise, as the policy was chosen by the same
#: labels: the root mean squared error is 1.85 points, and 1.70 by sampling alone (`benchmarks.drift --promises`).
_CHOSEN = 0.85


@dataclasses.dataclass(frozen=True)
class PrimaryFigure:
    """A primary figure: the mean over a log's queries, compared with a promise or a limit."""

    seen: float
    """Mean over the queries of the log."""
    expected: float
    """Promise, averaged with the queries of earlier weeks that joined it; or the limit."""
    se: float
    """Standard error of `seen` − `expected`."""
    p_value: float
    """One-sided p-value of the rise, at one look."""
    n: int
    """Number of queries behind `seen`."""
    before: int
    """Number of queries behind `expected`; 0 for a limit."""
    tuned: float
    """Mean over the queries that the policy carries."""
    interval: tuple[float, float] | None = None
    """Interval that the policy records for its promise; None without one."""
    rival: str | None = None
    """Name of the rival that the figure is a difference from, on the same queries; None if it is no difference."""

    @property
    def gap(self) -> float:
        """Seen figure minus expected figure."""
        return self.seen - self.expected

    @property
    def rise(self) -> float:
        """Seen figure minus expected figure, as a share of the expected figure."""
        return relative(self.seen, self.expected)

    @property
    def tuned_on_is_the_limit(self) -> bool:
        """Whether the queries tuned on, and not those of the log, cause most of the standard error."""
        return 0 < self.before < 0.8 * self.n

    @property
    def falls(self) -> bool:
        """Whether the figure is significantly lower than expected."""
        return self.p_value > 0.975

    def error_check(self, counted: Counted = ERRORS) -> CheckResult:
        """Return the check of an error; of a difference from a rival, the check of its margin."""
        if self.rival is not None:
            finding = f"the policy has {100 * self.seen:.1f} points more {counted.noun} than {self.rival}"
            advice = f"{finding}, where {100 * self.expected:.3g} were to be the most"
            return KINDS["difference"].judged("", self.gap, advice, p_value=self.p_value, noun=counted.noun)
        promised = percent(self.expected)
        if self.interval is not None:
            promised += f" ({' to '.join(percent(end) for end in self.interval)})"
        advice = f"the policy {counted.does(percent(self.seen))}, where {promised} was expected"
        return KINDS["error"].judged("", self.gap, advice, p_value=self.p_value, noun=counted.noun)

    def money_check(self) -> CheckResult:
        """Return the check of a bill; beside a budget (`before` is 0), that of the cheapest rung of a ladder."""
        name, subject, than = "cost", "the policy", "expected"
        if not self.before:
            name, subject, than = "budget", "even the cheapest rung", "in the budget"
        money = choose_unit([self.expected, self.seen])
        advice = (
            f"{subject} costs {money.full(self.seen)}, {percent(self.rise)} more than the ${money.show(self.expected)} "
            f"{than}: look at prices, at the length of questions and answers, and at how often each model is asked"
        )
        return KINDS[name].judged("", self.rise, advice, p_value=self.p_value)


def relative(observed: float, expected: float) -> float:
    """Return the observed figure minus the expected one, as a share of the expected one."""
    if expected > 0:
        return observed / expected - 1
    return float(np.inf) if observed > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class Baseline:
    """The baseline of a primary figure: a promise, with its sampling error, or a limit, which has none."""

    promise: Mean | None
    """Promised mean; None for a limit."""
    limit: float | None = None
    """Limit; None for a promise."""
    tuned: float = math.nan
    """Mean over the queries that the policy carries."""
    interval: tuple[float, float] | None = None
    """Interval that the policy records for its promise; None without one."""
    rival: str | None = None
    """Name of the rival that the figure is a difference from; None if it is no difference."""

    @classmethod
    def promised(cls, policy: AnyPolicy, name: str, carried: np.ndarray, trained_on: int) -> Baseline:
        """Return the promise of a policy's tuning; without a record, its mean over the queries that it carries.

        Args:
            policy: the policy.
            name: "error" or "cost".
            carried: (m,) figure of each query that the policy carries.
            trained_on: number of queries that the policy was tuned on.
        """
        expected, low, high = (policy.expected.get(f"{name}{end}") for end in ("", "_low", "_high"))
        known = policy.expected.get("level") is not None
        interval = (float(low), float(high)) if known and low is not None and high is not None else None
        queries = max(2, round(_CHOSEN * trained_on) if name == "error" else trained_on)
        promise = Mean.of(carried, None if expected is None else float(expected), queries)
        return cls(promise, tuned=float(carried.mean()), interval=interval)

    def beside(self, values: np.ndarray, earlier: np.ndarray) -> PrimaryFigure:
        """Compare the queries of a log with the baseline.

        Args:
            values: (n,) figure of each query of the log.
            earlier: (m,) figure of each query of earlier weeks without an alarm, which join a promise.
        """
        now = Mean.of(values)
        if self.promise is None:
            limit = float(self.limit or 0.0)
            se, p_value = excess(now, limit)
            if self.rival is not None:  # as in comparisons, unless the two are the same
                se = float(paired_error(values)) if values.any() else 0.0
            return PrimaryFigure(now.mean, limit, se, p_value, now.n, 0, self.tuned, rival=self.rival)
        before = self.promise.and_(Mean.of(earlier)) if len(earlier) else self.promise
        interval = None if len(earlier) else self.interval
        return PrimaryFigure(now.mean, before.mean, *mean_rise(before, now), now.n, before.n, self.tuned, interval)
