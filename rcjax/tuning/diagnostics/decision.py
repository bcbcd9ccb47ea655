"""The decision on a policy, in words, with advice, and the case for a retuned policy in its place.

`evaluate`, `check`, `diagnose`, `report` and `retune` print the decision, and `rcjax retune` writes a new policy if and
only if the decision says "tune again". The decision rests on the primary figures, the policy's error, its money and its
difference from today's, and on the gain of a retuned policy. A policy within its margin above today's whose own error
is far above its promise is not replaced: labels, prompts or the provider have changed, and a new policy would learn
from the change.

A log without the hard queries makes a bad policy look good. So few calls of the log may have failed, and its labels
must be drawn at random. The new policy must keep its promise on the queries that the policy in service carries. It must
gain half a point of error on all known queries, fresh and carried, each policy at its own bill there. In
cross-validation it must lose no more than a standard error; this is not tested under a limit on seconds, which policies
tuned on folds would not keep. A policy that broke its promise is replaced by a new one that is no worse. A policy
that exceeds the limit of its target by more than chance explains is replaced by a new one nearer to it. A policy
without λ cannot be compared, and is replaced by a new one without faults.

A policy within a limit on the error is replaced by a cheaper one within it (`LimitSaving`). Compared at the
policy's λ instead, dear policies far below the limit stayed, and chance replaced others.

Without drift these rules replace 0.6 policies with a budget a year (`benchmarks.year`). A rule on the sign of the
cross-validated gain replaced eleven a year without a benefit: it compares policies that are tuned on four fifths of the
queries.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, Final, Literal, NamedTuple

from rcjax._base.figures import (
    Z_ONE_SIDED_95,
    Money,
    capitalised,
    count,
    describe_points,
    format_figure,
    format_number,
    format_points,
    percent,
)
from rcjax.logs.errors import LogError
from rcjax.logs.kept_sample import carried_log
from rcjax.logs.log import Log
from rcjax.policy.comparison import describe_gap
from rcjax.policy.error_kind import ERRORS, ErrorKind
from rcjax.policy.ladder import Ladder, penalty
from rcjax.policy.policy import AbstractPolicy
from rcjax.policy.spec import recorded_tuning
from rcjax.tuning.diagnostics.findings import (
    ALARM,
    FINDING_KINDS,
    WEEKLY,
    WINDOW,
    Finding,
    PrimaryFigure,
    PrimaryFigures,
    assess_sample,
    separate_looks,
)
from rcjax.tuning.replaying.comparing import (
    QueryLosses,
    matched_today,
    name_today,
    paired_error,
    take_shared_queries,
)
from rcjax.tuning.retuning_gain import (
    MIN_QUERIES_FOR_GAIN,
    RetuningGain,
    held_out_gain,
    retuning_terms,
    why_untested,
)

#: Errors per query that a new policy must gain: with less, chance replaces policies (`benchmarks.year`).
MIN_IMPROVEMENT = 0.005

#: Share of the money that a new policy must save within a limit on the error (`benchmarks.year --target max_error`).
MIN_SAVING = 0.05

#: Standard errors by which a policy is surely within its limit, in a year of weekly looks.
_SURELY_WITHIN = 2.5

_ROUNDING_OF_LIMIT = 1e-9  # excess over a limit that is due to rounding

_MIN_EXCESS = 0.02  # least excess of error that breaks a promise


@dataclasses.dataclass(frozen=True)
class LimitSaving:
    """The saving of a new policy, where the policy in service keeps a limit on the error on all known queries."""

    saved_share: float
    """Share of the bill that the new policy saves; below 0 if it costs more."""
    added_error: float
    """Error that the new policy adds; below 0 if it errs less."""
    room: float
    """Limit minus the error of the policy in service; 0 at least."""
    se: float
    """Standard error of `room`."""

    @property
    def suffices(self) -> bool:
        """Whether the new policy saves enough within the limit, and adds errors only where there is surely room."""
        has_room = max(self.added_error, _SURELY_WITHIN * self.se) <= self.room
        return self.saved_share >= MIN_SAVING and (self.added_error <= 0 or has_room)

    def describe(self, noun: str) -> str:
        """Say what is saved, and why that replaces the policy in service or not; `noun` is the kind of error."""
        saves = f"it saves {math.floor(1000 * max(self.saved_share, 0.0)) / 10} % of the bill"
        if self.suffices:
            sure = "and this policy is within its limit by more than chance explains"
            return f"{saves}, {sure if self.added_error > 0 else f'with no more {noun}'}"
        if self.saved_share < 0:
            gain = f"{describe_points(self.added_error)} {noun}" if self.added_error < 0 else f"no less {noun}"
            return f"it costs {percent(-self.saved_share)} more for {gain}: the policy stays"
        why_not = "but that this policy has room for more errors may be chance"
        if self.saved_share < MIN_SAVING:
            why_not = f"less than the {100 * MIN_SAVING:.0f} % that replace a policy"
        elif self.added_error > self.room:
            why_not = "but would exceed the limit"
        return f"{saves}, {why_not}: the policy stays"


@dataclasses.dataclass(frozen=True)
class Replacement:
    """The grounds on which a retuned policy replaces the policy in service, or does not."""

    improvement: float | None
    """Gain of the new policy on all known queries, fresh and carried, in errors per query; None if not comparable."""
    faults: tuple[str, ...] = ()
    """Faults of the log or of the new policy, in words; empty without any."""
    held_out: RetuningGain | None = None
    """Held-out gain of retuned policies, estimated where the improvement is large enough."""
    exceeded_limit: str = ""
    """Limit of the target, in words, if the policy in service exceeds it and the new policy exceeds it by less; else
    empty."""
    exceeds_significantly: bool = False
    """Whether there is an `exceeded_limit`, and the policy in service exceeds it by more than chance explains."""
    effect: str = ""
    """Money and error of the new policy on all known queries, beside the policy in service and the target, in words;
    empty if they are not comparable."""
    lam: float | None = None
    """Price λ at which error and money are compared, in errors per unit of money; None if they are not comparable."""
    saving: LimitSaving | None = None
    """Saving of the new policy, which decides if the policy in service keeps a limit on the error; else None."""

    def replaces(self, *, broken: bool) -> bool:
        """Return whether the new policy replaces the policy in service: it has no faults, and gains enough, if known.

        A policy that keeps its promise is replaced for half a point on all known queries, if cross-validation loses no
        more than a standard error; or for the limit, if it exceeds it. A policy that broke its promise is replaced by a
        policy that is no worse, or that exceeds the limit by less: meeting a limit may cost more than the errors saved.
        A policy within a limit on the error, which is not guaranteed, is replaced for money (`LimitSaving`).
        """
        if self.faults:
            return False
        if self.improvement is None or self.exceeds_significantly:  # only faults prevent it, and no unknown gain
            return True
        saves = self.saving is not None and self.saving.suffices
        if broken or self.saving is not None:
            return saves or (broken and (self.improvement >= 0 or bool(self.exceeded_limit)))
        gain = None if self.held_out is None else self.held_out.gain
        return self.improvement > MIN_IMPROVEMENT and (gain is None or gain.mean >= -gain.se)

    def describe_gain(self, error_kind: ErrorKind) -> str:
        """Describe what replacing a policy gains, on all known queries; empty if that is not known."""
        if self.saving is not None and self.saving.suffices:
            return f"save {percent(self.saving.saved_share, 0)} of its bill"
        points = f"gain what {100 * (self.improvement or 0.0):.1f} points of {error_kind.noun} are worth"
        return points if self.improvement is not None and self.improvement > MIN_IMPROVEMENT else ""

    def describe(self, error_kind: ErrorKind, *, broken: bool = False) -> tuple[str, ...]:
        """Describe the faults, or else the new policy and why it replaces the policy or not (see `replaces`)."""
        if self.faults or self.improvement is None:
            return self.faults
        replaces, then = self.replaces(broken=broken), ""
        if self.saving is not None and self.saving.suffices == replaces:
            then = self.saving.describe(error_kind.noun)
        elif not replaces:
            price = (
                f" at ${format_number(1 / self.lam)} for {error_kind.unit}, as the tuning implies" if self.lam else ""
            )
            then = f"{error_kind.noun} and money together{price}, the new policy is worse: the policy stays"
            if self.improvement > MIN_IMPROVEMENT:
                then = "on queries left out of tuning, such a policy is worse: the policy stays"
            elif self.improvement >= 0:
                gained = math.floor(1000 * self.improvement) / 10  # rounded down, so that it stays below the least
                least = f"and {100 * MIN_IMPROVEMENT:.1f} replace a policy"
                then = f"together that gains {gained:.1f} points of {error_kind.noun}{price}, {least}: the policy stays"
            if self.exceeded_limit:
                then = f"this policy exceeds its limit by no more than chance explains, and {then}"
        elif self.exceeds_significantly:
            then = "this policy exceeds the limit itself by more than chance explains"
        elif self.held_out is not None and not broken:
            better = "better" if self.held_out.gain.mean > self.held_out.gain.se else "no worse"
            then = f"on queries left out of tuning, such a policy is {better}, {error_kind.noun} and money together"
        effect = "; ".join(filter(None, (self.effect, then)))
        head = "a policy tuned again on these and the carried queries, replayed on them"
        return (f"{head}: {effect}",) if effect else ()

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        held_out = self.held_out and self.held_out.to_json()
        return dataclasses.asdict(self) | {"faults": list(self.faults), "held_out": held_out}


def assess_replacement(
    policy: AbstractPolicy, new_policy: AbstractPolicy, log: Log, known: Log, seed: int = 0
) -> Replacement:
    """Assess whether a policy tuned again on a log replaces the policy in service.

    Args:
        policy: the policy in service.
        new_policy: the new policy, of `retune`.
        log: the fresh log.
        known: the queries that the new policy was tuned on, fresh and carried.
        seed: seed of the folds.
    """
    if policy.period is not None and isinstance(new_policy, Ladder):  # both spread the same money over as many queries
        new_policy = dataclasses.replace(new_policy, budget=policy.budget)
    lam, known = retuning_terms(policy, log).lam, known.comparable
    compared, gain, untested = Replacement(None), None, None
    try:
        if lam is not None and known.n_queries >= MIN_QUERIES_FOR_GAIN:
            compared = _compare(policy, new_policy, known, lam)
        is_small = compared.improvement is not None and compared.improvement <= MIN_IMPROVEMENT
        if not is_small and compared.saving is None and (gain := held_out_gain(policy, log, seed)) is None:
            why, mendable = why_untested(policy, log)
            untested = f"whether tuning again gains on queries left out was not tested: {why}" if mendable else None
    except LogError as problem:
        return Replacement(None, (f"whether tuning again gains was not tested: {problem}",))
    models = [name for name in log.models if name in {*policy.models, *new_policy.models}]
    biased = [finding.advice for finding in assess_sample(log, models) if finding.verdict == "bad"]
    faults = *biased, _broken_promise(policy, new_policy, log), untested
    return dataclasses.replace(compared, faults=tuple(filter(None, faults)), held_out=gain, lam=lam)


def _compare(policy: AbstractPolicy, new_policy: AbstractPolicy, log: Log, lam: float) -> Replacement:
    """Compare a new policy with a policy on a log, at the price λ and in the terms of the target."""
    spec, error_kind = recorded_tuning(policy).spec, log.error_kind
    target, today = spec.target, matched_today(policy, log)
    log = take_shared_queries(log, (policy, new_policy) if today is None else (policy, new_policy, today))
    old, new = (QueryLosses.of(subject, log) for subject in (policy, new_policy))
    improvement = float((old.penalty - new.penalty + lam * (old.spent - new.spent)).mean())
    rival, todays = ("today's", None) if today is None else (name_today(today), QueryLosses.of(today, log).penalty)
    noun = error_kind.noun if todays is None else f"{error_kind.noun} than {rival}"
    effect = old.describe_change(new, todays, spec, noun)
    if target is None or not target.is_limit or (target.name == "match" and todays is None):
        return Replacement(improvement, effect=effect)
    limit, name = target.value, f"the limit of {100 * target.value:.4g} %"
    before, after = (losses.penalty if todays is None else losses.penalty - todays for losses in (old, new))
    if target.name == "match":
        name = f"the margin of {format_points(limit)}"
    elif target.name == "budget":
        limit, name, before, after = policy.budget or limit, "the budget", old.spent, new.spent
    was, becomes, most = float(before.mean()), float(after.mean()), limit * (1 + _ROUNDING_OF_LIMIT)
    is_nearer = was > max(most, becomes)
    where = f"{'back ' * is_nearer}within" if becomes <= most else "nearer to" if is_nearer else "over"
    se, saving = float(paired_error(before)), None
    if was <= most and target.name != "budget" and spec.confidence is None:
        bill, new_bill = float(old.spent.mean()), float(new.spent.mean())
        share = (bill - new_bill) / (bill or new_bill or 1.0)
        saving = LimitSaving(share, becomes - was, most - was, se)
    return Replacement(
        improvement,
        exceeded_limit=target.describe(error_kind, rival) if is_nearer else "",
        exceeds_significantly=is_nearer and was - limit > Z_ONE_SIDED_95 * se,
        effect=f"{effect}, {where} {name}",
        saving=saving,
    )


def _broken_promise(policy: AbstractPolicy, new_policy: AbstractPolicy, log: Log) -> str | None:
    """Say in words if the new policy breaks its promise on the queries that the policy in service carries; else None.

    The promise is broken if the new error there, abstentions at their price, exceeds both the promise and the old
    policy's error by two points, and significantly so (one-sided, 5 %).
    """
    if policy.provenance.get("kept_sample") is None or not policy.calibrations:
        return None
    carried = carried_log(policy)
    try:
        carried = carried.take(carried.select([*{*policy.models, *new_policy.models}]).complete)
        new, old = (QueryLosses.as_tuned(subject, carried).penalty for subject in (new_policy, policy))
    except LogError:  # it lacks a model, or answers that the policies compare
        return None
    promised = penalty(new_policy.expected)
    bar = max(old.mean(), 0.0 if promised is None else promised)
    spread = max(new.std(), math.sqrt(max(bar * (1 - bar), 0.0))) / math.sqrt(len(new))
    if new.mean() - bar <= max(_MIN_EXCESS, Z_ONE_SIDED_95 * spread):
        return None
    promise = "" if promised is None else f", where {percent(promised)} is expected"
    where = f"on the {count(len(new), 'query')} that this policy carries"
    new_error = f"{where}, the new policy has {percent(new.mean())} {log.error_kind.noun}{promise}"
    return f"{new_error}; this policy has {percent(old.mean())} there"


#: Titles of a policy whose difference from today's may exceed its margin, and of one that is shown to keep it.
NOT_SHOWN, KEPT = "not shown to keep the margin", "the margin is kept"

MIN_LABELS = 100  # labels below which a log with unlabelled queries replaces no policy

_MAX_NEEDED = 10_000  # queries beyond which a number of queries to label is no advice

_ABOVE_PLAN = FINDING_KINDS["error"].limits.doubtful  # rise of an error from which on a sentence mentions it


class DecisionGrounds(NamedTuple):
    """The figures and findings that a decision on a policy rests on."""

    figures: PrimaryFigures
    """The primary figures."""
    findings: Sequence[Finding]
    """The findings on the primary figures in their order, assessed together."""
    sample: Sequence[Finding]
    """Findings on whether the log is a fair sample."""
    unit: Money
    """Unit of money."""
    error_kind: ErrorKind = ERRORS
    """Kind of error."""
    unlabelled: int = 0
    """Number of queries of the log without a label."""
    tuned_on: int = 0
    """Number of queries that the policy was tuned on."""
    bill: float = 0.0
    """Bill of a ladder that follows its bill."""
    looks: int = 1
    """Looks per year."""
    todays_rise: float | None = None
    """Today's error minus its error when the policy was tuned; None if that is not recorded."""
    repriced: bool = False
    """Whether prices have changed since the tuning: the rise of the bill is then no sampling error."""

    @property
    def title(self) -> str:
        """Whether only the cost is beyond its limit, or a margin is shown to be kept, in words; else empty."""
        first, beyond = self.figures.in_order[0], {one.name for one in self.findings if one.verdict != "fine"}
        may_exceed = self.figures.has_margin and first.may_exceed
        if self.repriced and beyond == {"cost"} and not may_exceed:
            return "as expected but for prices"
        if [one.name for one in self.findings if one.verdict == "bad"] == ["cost"]:
            return "dearer than expected"
        if self.repriced and beyond == {"cost"}:
            return NOT_SHOWN
        if not self.figures.has_margin or beyond:
            return ""
        return NOT_SHOWN if first.may_exceed else KEPT

    @property
    def else_has_changed(self) -> bool:
        """Whether today's errs as much more as the policy: only its own error is surely above the promise."""
        bad = {finding.name for finding in self.findings if finding.verdict == "bad"}
        return "own error" in bad and "difference" not in bad

    def describe(self) -> str:
        """Describe in words the primary figures; the third one only beyond its limit."""
        first, (_, money), *third = zip(self.figures.in_order, self.findings, strict=True)
        parts, (error, _, difference) = [self._describe_error(*first), self._describe_money()], self.figures
        if self.else_has_changed and difference is not None:
            as_much = f"{percent(error.expected)} when tuned, and {difference.rival} as much more"
            if self.todays_rise is not None:
                more = f"{describe_points(self.todays_rise)} {self.error_kind.noun}"
                as_much = as_much.removesuffix("as much more") + f"has {more} than then"
            first_of_all = "look at labels, prompts and provider first"
            parts[0] = f"the policy {error.describe_rate(self.error_kind)}, {as_much}: {first_of_all}"
            return "; ".join(parts[: 1 if money.verdict == "fine" else 2])
        for figure, finding in third:
            if finding.verdict != "fine":
                parts.insert(1, self._describe_error(figure, finding).replace("the policy", "it", 1))
            elif self.figures.has_margin and error.gap > max(_ABOVE_PLAN, Z_ONE_SIDED_95 * error.se):
                rise = -math.inf if self.todays_rise is None else self.todays_rise
                todays = ", and so are today's" * (rise > error.gap / 2)
                parts.insert(1, f"errors are {100 * error.gap:.1f} points above plan{todays}")
        if self.title == "dearer than expected":  # what is worse comes first
            error_part, *others, money_part = parts
            parts = [money_part.replace("it", "the policy", 1), error_part.replace("the policy", "it", 1), *others]
        return "; ".join(parts)

    def _describe_error(self, error: PrimaryFigure, finding: Finding) -> str:
        chance = self._chance(finding)
        if error.rival is None:
            than = describe_points(error.gap, error.se)
            rate = f"the policy {error.describe_rate(self.error_kind)}"
            return f"{rate}, {than} than the {percent(error.expected)} expected{chance}"
        against = f"the policy has {describe_gap(error.observed, error.se, self.error_kind.noun)} {error.rival}"
        if finding.name == "worst difference":
            return f"{against}, at worst {100 * error.expected:.1f} points more when tuned{chance}"
        where = f"{'within' if error.gap <= 0 else 'over'} the margin of {format_points(error.expected)}"
        if error.observed == error.se == 0:
            return f"the policy answers as {error.rival} does, {where}"
        if error.gap <= 0 and error.upper > error.expected:
            where = f"at worst (95 %) {describe_points(error.upper)}, over {where.removeprefix('within ')}"
        elif error.observed <= 0:
            return f"{against} on the same queries"
        return f"{against} on the same queries, {where}{chance}"

    def _describe_money(self) -> str:
        money, finding, unit = self.figures.money, self.findings[1], self.unit
        if finding.name != "budget":
            rise = f"{percent(abs(money.rise))} {'more' if money.rise >= 0 else 'less'}"
            chance = " at the old prices" if self.repriced else self._chance(finding)
            than = f"{rise} than the ${unit.show(money.expected)} expected{chance}"
            return f"it costs {unit.full(money.observed)}, {than}"
        budget = f"budget of ${unit.show(money.expected)}"
        if finding.verdict != "fine":
            return f"even its cheapest rung costs {unit.full(money.observed)}, over the {budget}{self._chance(finding)}"
        if self.bill <= money.expected or unit.show(self.bill) == unit.show(money.expected):
            return f"it costs {unit.full(self.bill)}, within its {budget}"
        later = "which the service makes up for on later queries, as it follows its bill"
        over = percent(self.bill / money.expected - 1)
        return f"it costs {unit.full(self.bill)} here, {over} over its {budget}, {later}"

    def _chance(self, finding: Finding) -> str:
        """Return the p-value of a figure beyond its limit, in brackets, and the adjusted one if that decides."""
        limits = finding.kind.limits
        if finding.p_value is None or finding.adjusted_p is None or finding.verdict == "fine":
            return ""
        if finding.figure <= limits.doubtful:  # doubtful, as the queries are few
            return ""
        limit = format_figure(limits.doubtful, finding.kind.unit)
        above = "" if finding.name in ("difference", "worst difference") else f"above the limit of {limit}, "
        alone, tests = f"{above}p = {finding.p_value:.2g}", count(len(self.findings), "test")
        adjusted = f"; {finding.adjusted_p:.2g} adjusted for {tests}"
        if self.looks == 1:
            return f" ({alone}{adjusted * (finding.p_value < ALARM <= finding.adjusted_p)})"
        looks = f"{self.looks} weekly looks" if self.looks == WEEKLY else f"{self.looks} looks a year"
        return f" ({alone} by these queries alone{adjusted} and {looks}, --looks)"

    def describe_doubt(self) -> str:
        """Say whether the queries tuned on or those of the log are too few to tell; beside a limit, how many would."""
        doubted, noun = self.doubted, "labels" if self.unlabelled else "queries"
        that = f"the excess of {self.error_kind.noun}" if self.repriced else "that"
        if doubted.too_few_tuned_on:
            tuned_on = count(self.tuned_on, "query")
            return f"{that} may be chance: the {tuned_on} that the policy was tuned on are too few to tell"
        number = max(doubted.n - self.unlabelled, 0)
        few = f"{that} may be chance: the {number:,} {noun} of this log are too few to tell"
        if doubted.n_expected or doubted is self.figures.money or doubted.gap <= doubted.se / 2:
            return few
        level = 1 - (1 - ALARM / len(self.findings)) ** (1 / separate_looks(self.looks))
        needed = float(f"{doubted.n * (NormalDist().inv_cdf(1 - level) * doubted.se / doubted.gap) ** 2:.2g}")
        return f"{few}; at this excess some {needed:,.0f}{f' in {WINDOW} weeks' * (self.looks == WEEKLY)} would"

    @property
    def advice_on_margin(self) -> str:
        """Advice with the number of further queries that would show that the margin is kept, if it is known."""
        first = self.figures.in_order[0]
        needed = 0.0 if first.gap >= 0 else first.n * (Z_ONE_SIDED_95 * first.se / first.gap) ** 2
        if self.unlabelled:
            return f"to show that the margin is kept, {self._label_rest}"
        if needed > _MAX_NEEDED:
            return "labels will hardly show that the margin is kept: keep the policy, or tune for a wider margin"
        more = f"about {float(f'{needed - first.n:.2g}'):,.0f} more" if needed > first.n else "more"
        return f"to show that the margin is kept, log and label {more} queries like these, then check all together"

    @property
    def _label_rest(self) -> str:
        return f"label the {count(self.unlabelled, 'query')} without a label, then check all together"

    @property
    def has_few_labels(self) -> bool:
        """Whether labels are missing, and those of the log are too few to replace a policy."""
        return bool(self.unlabelled) and self.figures.error.n - self.unlabelled < MIN_LABELS

    @property
    def doubted(self) -> PrimaryFigure:
        """The first figure that is doubtful; else the first."""
        figures = self.figures.in_order
        pairs = zip(figures, self.findings, strict=True)
        return next((figure for figure, finding in pairs if finding.verdict == "doubtful"), figures[0])


#: The state in which today's model, labels, prompts or the provider may be to blame: no new policy is tuned.
ELSE_HAS_CHANGED: Final = "something else has changed"

State = Literal[
    "as expected",
    "better than expected",
    "worse than expected",
    "something else has changed",
    "doubtful",
    "no fair sample",
]


@dataclasses.dataclass(frozen=True)
class PolicyDecision:
    """The decision on a policy that was checked."""

    state: State
    """State of the policy, in a word or two."""
    sentence: str
    """The primary figures, each beside its promise, in words."""
    tune_again: bool
    """Whether `rcjax retune` would write a new policy; False if nothing was tuned again."""
    advice: str
    """Advice, in words; screens add the command to tune again."""
    reasons: tuple[str, ...] = ()
    """Reasons against tuning again, or its gain, in words."""
    title: str = ""
    """The state as screens print it: if only the cost is worse, or for a margin whether it is kept; else empty."""
    cause: str = ""
    """Change that the log shows, in words; empty without a change."""
    gain: str = ""
    """The gain of tuning again, in words, if the policy may stay as well; else empty."""

    @property
    def alarm(self) -> bool:
        """Whether the exit status is 1."""
        return self.state in ("worse than expected", "something else has changed", "no fair sample")

    @property
    def headline(self) -> str:
        """The cause, the title and the sentence."""
        if self.cause and self.state == ELSE_HAS_CHANGED:
            return f"{self.cause}: {self.sentence}"
        stated = f"{self.title or self.state}: {self.sentence}"
        return f"{self.cause}. {capitalised(stated)}" if self.cause else stated

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the headline."""
        return dataclasses.asdict(self) | {"headline": self.headline}


_SURELY_LESS = 0.975  # one-sided p-value of a rise, above which a figure is significantly less than expected


WOULD_LEARN = "a new policy would learn the mistake, if there is one"


def _advise_without_better(grounds: DecisionGrounds) -> str:
    """Return the advice for a policy that is worse than expected, if no retuned policy is better."""
    pairs = zip(grounds.figures.in_order, grounds.findings, strict=True)
    rivals = [figure.rival for figure, finding in pairs if finding.verdict == "bad" and figure.rival is not None]
    in_budget = grounds.figures.money.n_expected == 0  # which today's may exceed
    instead = f"use {rivals[0]}" if rivals and not in_budget else "keep the policy"
    return f"see what has changed, and {instead}: nothing better is shown yet"


def decide(grounds: DecisionGrounds, replacement: Replacement | None) -> PolicyDecision:
    """Decide on a policy; `replacement` is None if a retuned policy was not tested."""
    figures, verdicts = grounds.figures.in_order, [finding.verdict for finding in grounds.findings]
    biased = [finding.advice for finding in grounds.sample if finding.verdict == "bad"]
    sentence = grounds.describe()
    broken, tune_again, explained = "bad" in verdicts, False, ()
    if replacement is not None:
        tune_again = not biased and not grounds.has_few_labels and replacement.replaces(broken=broken)
        explained = replacement.describe(grounds.error_kind, broken=broken)
        if grounds.has_few_labels:
            explained = (f"a log with fewer than {MIN_LABELS} labels and unlabelled queries replaces no policy",)
    reasons = tuple(dict.fromkeys((*biased, *explained)))  # a biased sample may be among both
    if biased:
        return PolicyDecision(
            "no fair sample", sentence, False, "mend the log, as said above, then check again", reasons
        )
    if grounds.else_has_changed:
        advice = "look at labels, prompts and provider first, then check again"
        return PolicyDecision("something else has changed", sentence, False, advice, (WOULD_LEARN,))
    if broken:
        advice = "see what has changed; whether to tune again, rcjax check says without --no-retuning"
        if replacement is not None:
            advice = "tune again" if tune_again else _advise_without_better(grounds)
        return PolicyDecision("worse than expected", sentence, tune_again, advice, reasons, grounds.title)
    state: State = "as expected"
    is_chance = not (grounds.repriced and grounds.doubted is grounds.figures.money)
    over_limit = replacement is not None and replacement.exceeds_significantly  # though no promise is broken
    if "doubtful" in verdicts or over_limit:
        state = "doubtful"
        sentence = f"{sentence}; {grounds.describe_doubt()}" if is_chance else sentence
    elif figures[0].gap < 0 and figures[0].n_expected and figures[0].p_value > _SURELY_LESS:
        state = "better than expected"
    if tune_again:
        advice = "tune again, for the gain above" if explained else "tune again: whether that gains cannot be tested"
        advice = "tune again, to keep the limit" if over_limit else advice
    elif state == "doubtful" and is_chance and not grounds.doubted.too_few_tuned_on:
        advice = grounds._label_rest if grounds.unlabelled else "log and label more queries, then check all together"
    elif grounds.title == NOT_SHOWN:
        advice = grounds.advice_on_margin
    else:
        advice = "keep the policy; check again with fresh queries, such as next week's"
    gain = replacement.describe_gain(grounds.error_kind) if replacement and tune_again and state != "doubtful" else ""
    return PolicyDecision(state, sentence, tune_again, advice, reasons, "" if over_limit else grounds.title, gain=gain)
