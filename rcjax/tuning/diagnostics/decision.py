"""Decide on a policy, in words, with advice, and on a retuned policy in its place.

`evaluate`, `check`, `diagnose`, `report` and `retune` print the decision, and `rcjax retune` writes a new policy if and
only if it says "tune again". The decision rests on two primary figures, the policy's error and its money, and on what a
retuned policy would gain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rcjax._base.figures import Money, count, percent
from rcjax.policy.counted import ERRORS, Counted
from rcjax.tuning.diagnostics.checks import CheckResult, PrimaryFigure
from rcjax.tuning.diagnostics.replacement import Replacement

State = Literal["as promised", "better than promised", "worse than promised", "unclear", "no fair sample"]


@dataclasses.dataclass(frozen=True)
class PolicyDecision:
    """The decision on a policy that was checked."""

    state: State
    """State of the policy, in a word or two."""
    sentence: str
    """The two primary figures, each beside its promise, in words."""
    tune_again: bool
    """Whether `rcjax retune` would write a new policy; False if nothing was tuned again."""
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
) -> PolicyDecision:
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
        tune_again = not biased and (replacement.replaces_broken if broken else replacement.replaces_sound)
        grounds = replacement.in_words(counted, renewed=broken)
    reasons = tuple(dict.fromkeys((*biased, *grounds)))  # a biased sample may be among both
    if biased:
        advice = "mend the log, as said above, then check again"
        return PolicyDecision("no fair sample", sentence, False, advice, reasons)
    if broken:
        keeps_margin = primary[0].name != "difference" or primary[0].verdict != "bad"
        instead = "keep the policy" if keeps_margin else f"use {error.rival}"
        advice = "tune again" if tune_again else f"see what has changed, and {instead}: nothing better is shown yet"
        if replacement is None:
            advice = "see what has changed; whether to tune again, rcjax check says without --no-retuning"
        return PolicyDecision("worse than promised", sentence, tune_again, advice, reasons)
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
    return PolicyDecision(state, sentence, tune_again, advice, reasons)


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


def describe_followed(
    followed: Mapping[str, float], cost: PrimaryFigure, money: Money, counted: Counted = ERRORS
) -> str:
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
