"""Decide on a policy, in words, with advice: `evaluate`, `check`, `diagnose`, `report` and `retune` print the decision.

`rcjax retune` writes a new policy if and only if the others say "tune again".

The decision rests on two primary figures, the policy's error and its money. Each is compared with its promise, the
figure expected by the tuning, whose sampling error is that of the queries tuned on. On 144 tunings of six logs, with
300 labels each, errors were 0.54 points above the promise on average (`benchmarks.drift --promises`). They were 0.78
points above the error on the queries tuned on, and 0.37 above the middle of the interval; the middle is no promise, as
the log chooses it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rcjax._base.figures import Money, choose_unit, count, percent
from rcjax.model.goodness_of_fit.reliability import Mean, excess, mean_rise
from rcjax.policy.comparison import ERRORS, Counted
from rcjax.policy.policy import AnyPolicy
from rcjax.tuning.diagnostics.checks import KINDS, CheckResult
from rcjax.tuning.diagnostics.replacement import Replacement
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


State = Literal["as promised", "better than promised", "worse than promised", "unclear", "no fair sample"]


@dataclasses.dataclass(frozen=True)
class Decision:
    """The decision on a policy that was checked."""

    state: State
    """State of the policy, in a word or two."""
    sentence: str
    """The two primary figures, each beside its promise, in words."""
    tune_again: bool
    """Whether `rcjax retune` would write a new policy; False if that was not tested."""
    advice: str
    """Advice, in words; screens add the command to tune again."""
    reasons: tuple[str, ...] = ()
    """Reasons against tuning again, or its gain, in words."""

    @property
    def alarm(self) -> bool:
        """Whether the exit status is 1."""
        return self.state in ("worse than promised", "no fair sample")

    @property
    def headline(self) -> str:
        """State and sentence."""
        return f"{self.state}: {self.sentence}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the headline."""
        return dataclasses.asdict(self) | {"headline": self.headline}


def decide(
    primary: Sequence[CheckResult],
    sample: Sequence[CheckResult],
    error: PrimaryFigure,
    cost: PrimaryFigure,
    replacement: Replacement | None,
    money: Money,
    counted: Counted = ERRORS,
    unlabelled: int = 0,
    tuned_on: int = 0,
) -> Decision:
    """Decide on a policy.

    Args:
        primary: checks of its error and its money, adjusted for each other.
        sample: checks that the log is a fair sample.
        error, cost: figures of the primary checks.
        replacement: gain of a retuned policy; None if that was not tested.
        money: unit of money.
        counted: kind of error that is counted.
        unlabelled: number of queries of the log without a label.
        tuned_on: number of queries that the policy was tuned on.
    """
    biased = [check.advice for check in sample if check.verdict == "bad"]
    verdicts = [check.verdict for check in primary]
    sentence = "; ".join((_error_in_words(error, primary[0], counted), _money_in_words(cost, primary[1], money)))
    broken, tune_again, grounds = "bad" in verdicts, False, ()
    if replacement is not None:
        tune_again = not biased and (replacement.acceptable if broken else replacement.accepted)
        grounds = replacement.in_words(counted, renewed=broken)
    reasons = tuple(dict.fromkeys((*biased, *grounds)))  # both may hold that the log is no fair sample
    if biased:
        advice = "mend the log, as said above, then check again"
        return Decision("no fair sample", sentence, False, advice, reasons)
    if broken:
        keep = "see what has changed, and keep the policy: nothing better is shown yet"
        advice = "tune again" if tune_again else keep
        if replacement is None:
            advice = "see what has changed; whether to tune again, rcjax check says without --no-retuning"
        return Decision("worse than promised", sentence, tune_again, advice, reasons)
    state: State = "as promised"
    doubted = error if primary[0].verdict == "doubtful" else cost
    if "doubtful" in verdicts:
        state, sentence = "unclear", f"{sentence}; {_too_few(doubted, unlabelled, tuned_on)}"
    elif error.gap < 0 and error.before and error.falls:
        state = "better than promised"
    if tune_again:
        advice = "tune again, for the gain above" if grounds else "tune again: whether that gains cannot be tested"
    else:
        advice = _to_keep(state == "unclear" and not doubted.tuned_on_is_the_limit, unlabelled)
    return Decision(state, sentence, tune_again, advice, reasons)


def _to_keep(more_would_tell: bool, unlabelled: int) -> str:
    """Return the advice that goes with a policy that stays: more queries if they would tell, else the next check."""
    if not more_would_tell:
        return "keep the policy; check again with fresh queries, such as next week's"
    more = f"label the {count(unlabelled, 'query')} without a label" if unlabelled else "log and label more queries"
    return f"{more}, then check all together"


def _error_in_words(error: PrimaryFigure, check: CheckResult, counted: Counted) -> str:
    points, se = 100 * error.gap, 100 * error.se
    if check.name == "difference":
        more = f"{abs(100 * error.seen):.1f} ± {se:.1f} points {'more' if error.seen > 0 else 'less'} {counted.noun}"
        margin = f"{'within' if points <= 0 else 'over'} the margin of {100 * error.expected:.3g}"
        return f"the policy has {more} than {error.rival} on the same queries, {margin}{_chance(check)}"
    than = f"{abs(points):.1f} ± {se:.1f} points {'more' if points >= 0 else 'less'} than the"
    return f"the policy {counted.does(percent(error.seen))}, {than} {percent(error.expected)} promised{_chance(check)}"


def _money_in_words(cost: PrimaryFigure, check: CheckResult, money: Money) -> str:
    if check.name == "budget":
        if check.verdict == "fine":
            return f"its budget is kept, {money.full(cost.expected)}"
        over = f"over the ${money.show(cost.expected)}{_chance(check)}"
        return f"even its cheapest rung costs {money.full(cost.seen)}, {over}"
    rise = f"{percent(abs(cost.rise))} {'more' if cost.rise >= 0 else 'less'}"
    than = f"{rise} than the ${money.show(cost.expected)} promised{_chance(check)}"
    return f"it costs {money.full(cost.seen)}, {than}"


def _chance(check: CheckResult) -> str:
    """Return the p-value of a figure beyond its limit, in brackets, and whether chance explains the figure."""
    if check.p_value is None or (check.verdict == "fine" and not check.figure > check.limits.doubtful):
        return ""
    return f" ({'by chance, ' * (check.verdict == 'fine')}p = {check.p_value:.2g})"


def _too_few(doubted: PrimaryFigure, unlabelled: int, tuned_on: int) -> str:
    """Explain whether the queries tuned on or those of the log are too few to tell, in words."""
    if doubted.tuned_on_is_the_limit:
        return f"that may be chance: the {tuned_on:,} that it was tuned on are too few to tell"
    noun = "labels" if unlabelled else "queries"
    return f"that may be chance: the {doubted.n:,} {noun} of this log are too few to tell"


def tell_followed(followed: Mapping[str, float], cost: PrimaryFigure, money: Money, counted: Counted = ERRORS) -> str:
    """Describe a ladder that follows its bill: its bill, its position, and the errors that a change of cost makes.

    Args:
        followed: as `PolicyCheck.followed`.
        cost: cost at the position as tuned, expected and seen.
        money: unit of money.
        counted: kind of error that is counted.
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


def tell_cheaper(cost: PrimaryFigure, money: Money) -> Iterator[str]:
    """Yield a remark if the bill is significantly lower than promised, which is no drift."""
    if cost.rise < -0.05 and cost.p_value > 0.95:
        less = f"{money.full(cost.seen)}, less than the {money.full(cost.expected)} promised"
        yield f"the policy costs {less}, which is no drift: rcjax retune may make use of it"


def remark_on_money(
    followed: Mapping[str, float] | None, bill: PrimaryFigure, money: Money, counted: Counted = ERRORS
) -> Iterator[str]:
    """Yield a remark on a ladder that follows its bill; else on a bill below the promise."""
    if followed is None:
        yield from tell_cheaper(bill, money)
    else:
        yield tell_followed(followed, bill, money, counted)
