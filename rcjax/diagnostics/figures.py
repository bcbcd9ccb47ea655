"""The primary figures of a policy, its error and its money: what was promised, what is seen, and what chance explains.

The promise is the figure that the tuning told, with the sampling of the queries tuned on. Of three candidates this one
was measured to be the least off (`benchmarks.drift --promises`): on 144 tunings of six logs, 300 labels each, errors
were .54 points above it on average, .78 above those of the policy on the queries tuned on, .37 above the middle of the
interval; the nearest of the three is no promise, as the log chooses it.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from rcjax._base.wording import choose_unit, percent
from rcjax.diagnostics.checks import KINDS, CheckResult
from rcjax.goodness_of_fit.changes import Mean, excess, mean_rise
from rcjax.policy.counted import ERRORS, Counted
from rcjax.policy.policy import AnyPolicy
from rcjax.replaying.comparing import paired_error

#: What a promise is off by beyond sampling, as the policy was chosen by the same labels: it counts as one of so many
#: fewer queries (root mean squared 1.85 points for 1.70; `benchmarks.drift --promises`).
_CHOSEN = 0.85


@dataclasses.dataclass(frozen=True)
class Figure:
    """A primary figure: the mean of a log's queries beside what was promised, or beside a limit."""

    seen: float
    expected: float
    """What was promised and, where earlier weeks joined, seen before; or the limit."""
    se: float
    """Standard error of their difference."""
    p_value: float
    """One-sided, of a rise as large by chance, at one look."""
    n: int
    """Queries that tell what is seen."""
    before: int
    """Queries that tell what is expected; 0 where that is a limit."""
    tuned: float
    """What it is on the queries that the policy carries."""
    interval: tuple[float, float] | None = None
    """That the policy records for its promise, or None."""
    rival: str | None = None
    """What the figure is a difference from, on the same queries; None where it is no difference."""

    @property
    def gap(self) -> float:
        """By how much what is seen is above what is expected."""
        return self.seen - self.expected

    @property
    def rise(self) -> float:
        """The same as a share of what is expected."""
        return relative(self.seen, self.expected)

    @property
    def tuned_on_is_the_limit(self) -> bool:
        """Whether it is the queries tuned on that leave most in doubt, and not those of the log."""
        return 0 < self.before < 0.8 * self.n

    @property
    def falls(self) -> bool:
        """Whether it is lower than expected by more than chance explains."""
        return self.p_value > 0.975

    def error_check(self, counted: Counted = ERRORS) -> CheckResult:
        """The check of an error; of a difference, beside a margin."""
        if self.rival is not None:
            told = f"the policy has {100 * self.seen:.1f} points more {counted.noun} than {self.rival}"
            advice = f"{told}, where {100 * self.expected:.3g} were to be the most"
            return KINDS["difference"].judged("", self.gap, advice, p_value=self.p_value, noun=counted.noun)
        promised = percent(self.expected)
        if self.interval is not None:
            promised += f" ({' to '.join(percent(end) for end in self.interval)})"
        advice = f"the policy {counted.does(percent(self.seen))}, where {promised} was expected"
        return KINDS["error"].judged("", self.gap, advice, p_value=self.p_value, noun=counted.noun)

    def money_check(self) -> CheckResult:
        """The check of a bill; of the cheapest rung of a ladder that follows its bill, where `before` is 0."""
        name, what, than = "cost", "the policy", "expected"
        if not self.before:
            name, what, than = "budget", "even the cheapest rung", "in the budget"
        money = choose_unit([self.expected, self.seen])
        advice = (
            f"{what} costs {money.full(self.seen)}, {percent(self.rise)} more than the ${money.show(self.expected)} "
            f"{than}: look at prices, at the length of questions and answers, and at how often each model is asked"
        )
        return KINDS[name].judged("", self.rise, advice, p_value=self.p_value)


def relative(observed: float, expected: float) -> float:
    """By how much a figure is above another, as a share of it."""
    if expected > 0:
        return observed / expected - 1
    return float(np.inf) if observed > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class Baseline:
    """What a primary figure is compared with: a promise told by some queries, or a limit, which needs none."""

    promise: Mean | None
    limit: float | None = None
    tuned: float = math.nan
    interval: tuple[float, float] | None = None
    rival: str | None = None

    @classmethod
    def promised(cls, policy: AnyPolicy, name: str, carried: np.ndarray, trained_on: int) -> Baseline:
        """What the tuning promised; where it records nothing, what the policy does on the queries that it carries.

        Args:
            policy: the policy.
            name: "error" or "cost".
            carried: (m,) the figure of each query that the policy carries.
            trained_on: how many queries it was tuned on.
        """
        told, ends = policy.expected.get(name), [policy.expected.get(f"{name}_{end}") for end in ("low", "high")]
        expected = None if told is None else float(told)
        known = None not in ends and policy.expected.get("level") is not None
        interval = tuple(map(float, ends)) if known else None  # type: ignore[arg-type]
        queries = max(2, round(_CHOSEN * trained_on) if name == "error" else trained_on)
        return cls(Mean.of(carried, expected, queries), None, float(carried.mean()), interval)  # type: ignore[arg-type]

    def beside(self, values: np.ndarray, earlier: np.ndarray) -> Figure:
        """What is seen beside it.

        Args:
            values: (n,) the figure of each query of a log.
            earlier: (m,) that of queries of earlier weeks, which were found fine.
        """
        now = Mean.of(values)
        if self.promise is None:
            limit = float(self.limit or 0.0)
            se, p_value = excess(now, limit)
            if self.rival is not None:  # as comparisons have it, where the two are not the same
                se = float(paired_error(values)) if values.any() else 0.0
            return Figure(now.mean, limit, se, p_value, now.n, 0, self.tuned, rival=self.rival)
        before = self.promise.and_(Mean.of(earlier)) if len(earlier) else self.promise
        interval = None if len(earlier) else self.interval
        return Figure(now.mean, before.mean, *mean_rise(before, now), now.n, before.n, self.tuned, interval)
