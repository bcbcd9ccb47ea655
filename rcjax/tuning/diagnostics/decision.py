"""The one verdict on a policy, in words, and what to do: `evaluate`, `check`, `diagnose`, `report` and `retune` say it.

`rcjax retune` writes a new policy where, and only where, the others say "tune again".

It rests on two primary figures, the policy's error and its money. The promise is the figure that the tuning told, with
the sampling of the queries tuned on. Of three candidates this one was measured to be the least off (`benchmarks.drift
--promises`): on 144 tunings of six logs, 300 labels each, errors were .54 points above it on average, .78 above those
of the policy on the queries tuned on, .37 above the middle of the interval; the nearest of the three is no promise, as
the log chooses it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rcjax._base.wording import Money, choose_unit, count, percent
from rcjax.model.goodness_of_fit.changes import Mean, excess, mean_rise
from rcjax.policy.counted import ERRORS, Counted
from rcjax.policy.policy import AnyPolicy
from rcjax.tuning.diagnostics.checks import KINDS, CheckResult
from rcjax.tuning.diagnostics.replacement import Replacement
from rcjax.tuning.replaying.comparing import paired_error

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
        told, low, high = (policy.expected.get(f"{name}{end}") for end in ("", "_low", "_high"))
        known = policy.expected.get("level") is not None
        interval = (float(low), float(high)) if known and low is not None and high is not None else None
        queries = max(2, round(_CHOSEN * trained_on) if name == "error" else trained_on)
        promise = Mean.of(carried, None if told is None else float(told), queries)
        return cls(promise, tuned=float(carried.mean()), interval=interval)

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


State = Literal["as promised", "better than promised", "worse than promised", "unclear", "no fair sample"]


@dataclasses.dataclass(frozen=True)
class Decision:
    """What a check of a policy comes to."""

    state: State
    sentence: str
    """The two primary figures, each with what was promised, in words."""
    tune_again: bool
    """Whether `rcjax retune` would write a new policy; False where that was not asked."""
    advice: str
    """What to do, in words; where it is to tune again, the command follows."""
    reasons: tuple[str, ...] = ()
    """Why not to tune again, or what that gains."""

    @property
    def alarm(self) -> bool:
        """Whether the exit status is 1."""
        return self.state in ("worse than promised", "no fair sample")

    @property
    def headline(self) -> str:
        """The state and the sentence."""
        return f"{self.state}: {self.sentence}"

    def to_json(self) -> dict[str, Any]:
        """The fields, and the headline."""
        return dataclasses.asdict(self) | {"headline": self.headline}


def decide(
    primary: Sequence[CheckResult],
    sample: Sequence[CheckResult],
    error: Figure,
    cost: Figure,
    replacement: Replacement | None,
    money: Money,
    counted: Counted = ERRORS,
    unlabelled: int = 0,
    tuned_on: int = 0,
) -> Decision:
    """The verdict on a policy.

    Args:
        primary: the checks of its error and its money, adjusted for each other.
        sample: whether the log is a fair sample.
        error, cost: the figures of the primary checks.
        replacement: what tuning again would gain, if that was asked.
        money: the unit of money.
        counted: what is counted.
        unlabelled: queries of the log without a label.
        tuned_on: queries that the policy was tuned on.
    """
    biased = [check.advice for check in sample if check.verdict == "bad"]
    verdicts = [check.verdict for check in primary]
    sentence = "; ".join((_error_in_words(error, primary[0], counted), _money_in_words(cost, primary[1], money)))
    again = replacement is not None and not biased
    if replacement is not None:
        again &= replacement.acceptable if "bad" in verdicts else replacement.accepted
    reasons = (*biased, *(() if replacement is None else replacement.in_words(counted)))
    if biased:
        advice = "mend the log, as said above, then check again"
        return Decision("no fair sample", sentence, False, advice, reasons)
    if "bad" in verdicts:
        advice = "tune again" if again else "see what has changed, and keep the policy: nothing better is shown yet"
        if replacement is None:
            advice = "see what has changed; whether to tune again, rcjax check says without --no-retuning"
        return Decision("worse than promised", sentence, again, advice, reasons)
    state: State = "as promised"
    doubted = error if primary[0].verdict == "doubtful" else cost
    if "doubtful" in verdicts:
        state, sentence = "unclear", f"{sentence}; {_too_few(doubted, unlabelled, tuned_on)}"
    elif error.gap < 0 and error.before and error.falls:
        state = "better than promised"
    if again:
        better = replacement is not None and replacement.gain is not None and replacement.gain.better
        advice = "tune again" if better else "keep the policy, or tune again, which learns from these queries too"
    elif state == "unclear" and not doubted.tuned_on_is_the_limit:
        more = f"label the {count(unlabelled, 'query')} without a label" if unlabelled else "log and label more queries"
        advice = f"{more}, then check all together"
    else:
        advice = "keep the policy; check again with fresh queries, such as next week's"
    return Decision(state, sentence, again, advice, reasons)


def _error_in_words(error: Figure, check: CheckResult, counted: Counted) -> str:
    points, se = 100 * error.gap, 100 * error.se
    if check.name == "difference":
        more = f"{abs(100 * error.seen):.1f} ± {se:.1f} points {'more' if error.seen > 0 else 'less'} {counted.noun}"
        margin = f"{'within' if points <= 0 else 'over'} the margin of {100 * error.expected:.3g}"
        return f"the policy has {more} than {error.rival} on the same queries, {margin}{_chance(check)}"
    than = f"{abs(points):.1f} ± {se:.1f} points {'more' if points >= 0 else 'less'} than the"
    return f"the policy {counted.does(percent(error.seen))}, {than} {percent(error.expected)} promised{_chance(check)}"


def _money_in_words(cost: Figure, check: CheckResult, money: Money) -> str:
    if check.name == "budget":
        if check.verdict == "fine":
            return f"its budget is kept, {money.full(cost.expected)}"
        over = f"over the ${money.show(cost.expected)}{_chance(check)}"
        return f"even its cheapest rung costs {money.full(cost.seen)}, {over}"
    way = "more" if cost.rise >= 0 else "less"
    share = percent(abs(cost.rise))
    than = f"{share} {way} than the ${money.show(cost.expected)} promised{_chance(check)}"
    return f"it costs {money.full(cost.seen)}, {than}"


def _chance(check: CheckResult) -> str:
    """The p-value of a figure that is not fine, in brackets."""
    return f" (p = {check.p_value:.2g})" if check.verdict != "fine" and check.p_value is not None else ""


def _too_few(doubted: Figure, unlabelled: int, tuned_on: int) -> str:
    """Which queries are too few to tell."""
    if doubted.tuned_on_is_the_limit:
        return f"that may be chance: the {tuned_on:,} that it was tuned on are too few to tell"
    what = "labels" if unlabelled else "queries"
    return f"that may be chance: the {doubted.n:,} {what} of this log are too few to tell"


def tell_followed(followed: Mapping[str, float], cost: Figure, money: Money, counted: Counted = ERRORS) -> str:
    """What following its bill comes to, where a ladder does: a change of what queries cost is told in errors.

    Args:
        followed: as `PolicyCheck.followed`.
        cost: what was expected and what was seen at the position as tuned.
        money: the unit of money.
        counted: what is counted.
    """
    change = cost.rise
    now, tuned, low, high = (f"{followed[name]:.1f}" for name in ("position", "tuned", "low", "high"))
    error, before = (percent(followed[name]) for name in ("error", "error_tuned"))
    bill = f"{money.full(followed['bill'])} (budget ${money.show(followed['budget'])})"
    return (
        f"following its bill, in the order of these queries, it costs {bill}, with {error} {counted.noun} by rung "
        f"{now} on average ({low} to {high}); at rung {tuned}, as tuned, it would have {before}, and cost "
        f"{percent(abs(change))} {'more' if change > 0 else 'less'} than expected"
    )


def tell_cheaper(cost: Figure, money: Money) -> Iterator[str]:
    """A remark on money that is less than was promised, by more than chance explains: that is no drift."""
    if cost.rise < -0.05 and cost.p_value > 0.95:
        less = f"{money.full(cost.seen)}, less than the {money.full(cost.expected)} promised"
        yield f"the policy costs {less}, which is no drift: rcjax retune may make use of it"
