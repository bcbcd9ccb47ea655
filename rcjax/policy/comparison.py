"""The comparison of a policy with today's model or policy, and with the best single model for its money.

`rcjax.tune` makes a comparison on the log tuned on, and the provenance of the policy keeps it;
`rcjax.tuning.replaying.comparing` makes one on a fresh log. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from rcjax._base.codec import Amount, Between, Record, read_value, to_json_value
from rcjax._base.figures import (
    Z_ONE_SIDED_90,
    Z_ONE_SIDED_95,
    Money,
    describe_points,
    format_number,
    in_points,
    percent,
)
from rcjax.policy.decisions import describe_cascade
from rcjax.policy.error_kind import ERRORS, ErrorKind
from rcjax.policy.policy import AbstractPolicy

#: The entry of a policy's provenance that records its comparison.
COMPARISON = "comparison"
#: The name of a rival that is a policy.
IN_SERVICE = "the policy in service"

_ASSUMED = " (assumed: give --today)"

#: Least gain, in errors, for which a cascade is preferred to a single model.
MIN_GAIN = 0.001

#: Least share of the queries with which a rung is mentioned: a smaller share is rounded to 0.0 %.
MIN_SHARE = 5e-4

_COST_TOLERANCE = 1e-3  # relative difference up to which two bills count as equal
_MIN_ERROR_GAP = 0.01  # difference of errors up to which two policies may count as alike
_MIN_SAVING = 0.05  # saved share of a bill below which a cascade may not be worth its upkeep
_MIN_FOR_WORST = 20  # queries below which no upper limit of a difference is printed
_BY_ESTIMATE = "by estimate"  # not by count: labels are averaged with expectations (docs/method.md)
_RISEN = 0.02  # rise of a bill since the tuning that gets a note if today's has risen, too

#: Where the upper limit of a difference holds, by whether the queries are fresh (`upper_after_choice`).
WORST: Mapping[bool, str] = {True: "at worst (95 %)", False: "at worst (in 9 logs of 10)"}

Role = Literal["today", "single"]
_ROLES: Mapping[str, str] = {"today": "today's", "single": "best single model at or below this price"}


@dataclass(frozen=True, slots=True)
class Rival(Record):
    """A model or a policy that a policy is compared with, on the same queries.

    Args:
        name: a model that answers everything, or "the policy in service".
        role: `today`: in use today; `single`: the single model with the fewest errors for the policy's money.
        error: share of the queries answered wrongly; abstentions count at their price.
        cost: mean cost of the rival, in dollars per query.
        error_difference: error of the policy minus `error`.
        se: standard error of `error_difference`, paired by query; 0 if the policy is the rival itself.
        saving_se: standard error of `cost` minus the cost of the policy, paired by query.

    >>> rival = Rival("large", "today", error=0.12, cost=2e-4, error_difference=0.003, se=0.006)
    >>> rival.title, rival.gap_clause("error"), rival.gap_cell
    ("large alone, today's", '0.3 ± 0.6 points more error than', '+0.3 ± 0.6')
    """

    name: str
    role: Role
    error: Annotated[float, Between()]
    cost: Amount
    error_difference: Annotated[float, Between()]
    se: Amount
    saving_se: Amount = 0.0

    @property
    def subject(self) -> str:
        """The rival as the subject of a sentence."""
        return self.name if self.name == IN_SERVICE else f"{self.name} alone"

    @property
    def title(self) -> str:
        """The rival with its role."""
        return f"{self.subject}, {_ROLES[self.role]}"

    @property
    def gap_cell(self) -> str:
        """Difference of the policy's error from the rival's for a table, in points; "none" if the two are the same."""
        if self.error_difference == self.se == 0:
            return "none"
        sign = "" if _is_same(self.error_difference) else "+-"[self.error_difference < 0]
        return f"{sign}{in_points(abs(self.error_difference)):.1f} ± {in_points(self.se):.1f}"

    def gap_clause(self, noun: str) -> str:
        """Describe the difference in a clause that ends in *than* or *as*; `noun` is that of the kind of error."""
        return describe_gap(self.error_difference, self.se, noun)

    @property
    def is_shown_less(self) -> bool:
        """Whether the policy errs significantly less than the rival (one-sided, 5 %)."""
        return self.error_difference + Z_ONE_SIDED_95 * self.se <= 0

    def describe(self, money: Money, noun: str) -> str:
        """Describe the rival: its role, its cost, and how much more or less the policy errs."""
        return f"{self.title}: {money.full(self.cost)}; the policy has {self.gap_clause(noun)} it"


def upper_after_choice(difference: float, se: float) -> float:
    """Return the upper limit of a policy's error minus today's, on the queries that the policy was chosen on.

    The errors of policies that seem better than today's are optimistic: they err more on fresh queries. So a policy
    counts as erring as much as today's, unless it errs significantly less (one-sided, 5 %). With the one-sided
    90 % limit, the margin is then kept in nine of ten logs for which a policy is chosen, from 150 labels on; a plain
    95 % limit breaks it in a third of these at 150 labels (`benchmarks.match`).

    Args:
        difference, se: error of the policy minus today's, and its standard error.

    >>> round(upper_after_choice(0.003, 0.005), 4), round(upper_after_choice(-0.003, 0.005), 4)
    (0.0094, 0.0064)
    >>> round(upper_after_choice(-0.03, 0.005), 4)
    -0.0218
    """
    shown = difference + Z_ONE_SIDED_95 * se
    return shown if shown <= 0 else max(difference, 0.0) + Z_ONE_SIDED_90 * se


def describe_gap(difference: float, se: float, noun: str, number: str = "") -> str:
    """Describe a difference of errors and its standard error in points, in a clause that ends in *than* or *as*.

    Args:
        difference, se: the difference and its standard error.
        noun: noun of the counted quantity.
        number: the difference as a number of answers, in words; empty to leave it out.

    >>> describe_gap(-0.005, 0.009, "error"), describe_gap(0.0, 0.001, "error")
    ('0.5 ± 0.9 points less error than', 'the same error (± 0.1 points) as')
    """
    if _is_same(difference):
        return f"the same {noun} (± {in_points(se):.1f} points) as"
    return f"{describe_points(difference, se)} {noun}{f' ({number})' * bool(number)} than"


def _is_same(difference: float) -> bool:
    """Return whether a difference of errors is 0.0 points as printed."""
    return float(f"{in_points(difference):.1f}") == 0


@dataclass(frozen=True, slots=True)
class UnsupportedGain(Record):
    """The expected gain of a policy over the best single model for a target, which held-out queries do not support.

    Args:
        model: name of the single model.
        expected: gain that the tuning expects, in errors; at a price, in errors + λ·cost.
        held_out: gain on held-out queries.
        se: standard error of `held_out`.

    >>> print(UnsupportedGain("large", expected=0.0004, held_out=-0.012, se=0.008).describe("points of error"))
    no cascade is shown to be better than large alone here: on queries left out the best lost 1.2 ± 0.8 points of error
    """

    model: str
    expected: Annotated[float, Between()]
    held_out: Annotated[float, Between()]
    se: Amount

    def describe(self, units: str) -> str:
        """Describe the gains in words, given their units, such as "points of error"."""
        gains = f"the best is expected to gain less than {100 * MIN_GAIN:.1f} {units}"
        if self.held_out < -self.se:
            gains = f"on queries left out the best lost {-100 * self.held_out:.1f} ± {100 * self.se:.1f} {units}"
        return f"no cascade is shown to be better than {self.model} alone here: {gains}"


@dataclass(frozen=True, slots=True)
class Comparison(Record):
    """A policy beside its rivals, on the same queries.

    Args:
        error: share of the queries that the policy answers wrongly; abstentions count at their price.
        cost: mean cost of the policy, in dollars per query.
        n_queries: number of queries.
        fresh: whether the policy was tuned on other queries. Otherwise `error` is the error that the tuning expects,
            which the default search corrects for optimism.
        rivals: the rivals, today's model or policy first.
        next_error_cost: dollars per error that the next dearer policy avoids; None if none does, or if it is not known.
        unsupported_gain: gain over the best single model for the budget, if held-out queries do not support it; None if
            they do, or if it is not known.
        abstain_price: errors that an abstention counts as; None if the policy does not abstain.
        is_today_default: whether today's model is the default, not given.
        replayed_error: error of the policy's replay on the log tuned on, without the correction for optimism; None on
            fresh queries, or if it is not known.
        labelled: number of queries with a label, from which errors are estimated; None if every answer has a label.
    """

    error: Annotated[float, Between()]
    cost: Amount
    n_queries: int
    fresh: bool
    rivals: tuple[Rival, ...]
    next_error_cost: Amount | None = None
    unsupported_gain: UnsupportedGain | None = None
    abstain_price: Amount | None = None
    is_today_default: bool = False
    replayed_error: Annotated[float, Between()] | None = None
    labelled: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, with the saving beside each rival and the ends of both differences."""
        document = to_json_value(self)
        for row, rival in zip(document["rivals"], self.rivals, strict=True):
            saving, spread = rival.cost - self.cost, Z_ONE_SIDED_95 * rival.saving_se
            row |= {"error_difference_upper": self.upper_difference(rival), "saving": saving}
            row["saving_interval"] = [saving - spread, saving + spread]
        return document

    @property
    def today(self) -> Rival | None:
        """Today's model or policy; None if the log does not have it."""
        return next((rival for rival in self.rivals if rival.role == "today"), None)

    @property
    def single(self) -> Rival | None:
        """The best single model for the money; None if it is today's, or the policy itself."""
        return next((rival for rival in self.rivals if rival.role == "single"), None)

    @property
    def is_todays_policy(self) -> bool:
        """Whether the policy is the one in use today."""
        return self.today is not None and self.today.se == 0

    def upper_difference(self, rival: Rival) -> float:
        """Return the upper limit of the policy's error minus a rival's, as `WORST` says."""
        difference, se = rival.error_difference, rival.se
        return difference + Z_ONE_SIDED_95 * se if self.fresh else upper_after_choice(difference, se)

    def _least_saving(self, rival: Rival) -> float:
        """Return the lower limit of the saving beside a rival (one-sided, 95 %)."""
        return rival.cost - self.cost - Z_ONE_SIDED_95 * rival.saving_se

    def exceeds(self, margin: float) -> bool:
        """Return whether the policy errs significantly more than today's plus a margin (one-sided, 2.5 %).

        >>> today = Rival("large", "today", error=0.12, cost=2e-4, error_difference=0.04, se=0.01)
        >>> Comparison(0.16, 5e-5, 300, True, (today,)).exceeds(0.01)
        True
        """
        return self.today is not None and self.today.error_difference - 1.96 * self.today.se > margin

    @property
    def is_dominated(self) -> bool:
        """Whether today's model or policy costs no more and errs no more, on fresh queries."""
        today = self.today
        if today is None or self.is_todays_policy or not self.fresh:
            return False
        return today.cost <= self.cost and today.error_difference >= 0

    def shared_rise(self, promised: Comparison) -> str | None:
        """Return a note if today's bill, too, has risen since the tuning, by half of the policy's rise at least.

        >>> def compare(cost, todays):
        ...     return Comparison(0.12, cost, 300, True, (Rival("large", "today", 0.12, todays, 0.0, 0.006),))
        >>> compare(1.05e-4, 2e-4).shared_rise(compare(1e-4, 2e-4))
        >>> compare(1.05e-4, 2.1e-4).shared_rise(compare(1e-4, 2e-4))
        'large alone costs 5.0 % more than when tuned, too: queries are longer, or prices are higher'
        """
        now, then = self.today, promised.today
        if now is None or then is None or now.name != then.name or not (then.cost and promised.cost):
            return None
        rise, todays = self.cost / promised.cost - 1, now.cost / then.cost - 1
        if rise < _RISEN or todays < rise / 2:
            return None
        risen = f"{now.subject} costs {percent(todays)} more than when tuned, too"
        return f"{risen}: queries are longer, or prices are higher"

    def headline(self, money: Money, error_kind: ErrorKind = ERRORS) -> str:
        """Return the change from today's, and a gain that is not supported, as a sentence without a subject.

        >>> today = Rival("large", "today", error=0.12, cost=2e-4, error_difference=0.003, se=0.006)
        >>> Comparison(0.123, 5e-5, 300, False, (today,)).headline(Money(1e8, "month"))
        "saves $15,000 of $20,000 a month (75 %), at ...; at worst (in 9 logs of 10) 1.1 points more (1,100,000)"
        """
        change, gain = self._describe_change(money, error_kind), self.unsupported_gain
        return change if gain is None else f"{change}; {gain.describe(f'points of {error_kind.noun}')}"

    def _describe_change(self, money: Money, error_kind: ErrorKind) -> str:
        today = self.today
        if today is None:
            return f"{error_kind.predicate(percent(self.error))}{self.price_clause} at {money.full(self.cost)}"
        if self.is_todays_policy:
            return f"costs {money.full(self.cost)} as before{_ASSUMED * self.is_today_default}"
        at = self._describe_errors(today, money, error_kind)
        saved, scale = today.cost - self.cost, max(today.cost, self.cost)
        if abs(saved) <= _COST_TOLERANCE * scale:
            return f"costs the same, {money.full(self.cost)}, at {at}"
        if saved > 0:
            share = percent(saved / today.cost, 0)
            saves = money.saving(today.cost, self.cost, today.saving_se)
            least = self._least_saving(today)
            digits = len(saves.partition(" ")[0].partition(".")[2])
            surely = f"; at least ${least * money.scale:,.{digits}f}" if "±" in saves and least > 0 else ""
            return f"saves {saves} of {money.full(today.cost)} ({share}{surely}), at {at}"
        return f"costs ${money.show(self.cost)} instead of {money.full(today.cost)}, at {at}"

    @property
    def price_clause(self) -> str:
        """What an abstention counts as in an error, in brackets; empty if the policy does not abstain."""
        price = self.abstain_price
        return "" if price is None else f" (an abstention counts as {100 * price:.4g} %)"

    def _describe_errors(self, today: Rival, money: Money, error_kind: ErrorKind) -> str:
        """Describe the difference from today's errors and its upper end, in points and as numbers of answers."""
        is_counted = bool(error_kind.answers) and self.abstain_price is None  # an abstention is no wrong answer
        upper = self.upper_difference(today)
        number, worst_number = (money.number(abs(gap)) if is_counted else "" for gap in (today.error_difference, upper))
        if today.error_difference <= 0 and not today.is_shown_less:
            number = ""  # nobody should count on fewer errors that chance may explain
        side = "more" if today.error_difference > 0 else "fewer"
        answers = number and f"{number} {side} {error_kind.answers} {money.per}"
        worst = f"{describe_points(upper)}{f' ({worst_number})' * bool(worst_number)}"
        is_left_out = not self.fresh and today.error_difference < 0 < upper and not _is_same(today.error_difference)
        worst = f"; {WORST[self.fresh]} {'the same' if _is_same(upper) else worst}"
        worst += ", as a gain that is not shown does not count" * is_left_out
        gap = describe_gap(today.error_difference, today.se, f"{error_kind.noun}{self.price_clause}", answers)
        return f"{gap} {today.title}{_ASSUMED * self.is_today_default}{worst * (self.n_queries >= _MIN_FOR_WORST)}"

    @property
    def preferred(self) -> Rival | None:
        """The rival that is preferred to a cascade on the log tuned on; None if there is none.

        A rival is preferred if it costs no more than the cascade; today's, also if the cascade saves less than 5 % of
        its bill. The cascade must not err significantly less (one-sided, 5 %), nor by more than a point.

        >>> today = Rival("large", "today", error=0.12, cost=2e-4, error_difference=-0.003, se=0.006)
        >>> Comparison(0.117, 1.94e-4, 300, False, (today,)).preferred.name
        'large'
        >>> Comparison(0.117, 1.8e-4, 300, False, (today,)).preferred
        """
        if self.fresh or self.is_todays_policy or self.unsupported_gain is not None:
            return None

        def is_alike(rival: Rival) -> bool:
            return -rival.error_difference <= min(Z_ONE_SIDED_95 * rival.se, _MIN_ERROR_GAP)

        alike = [*filter(is_alike, self.rivals)]
        no_dearer = next(filter(self._costs_no_more, alike), None)
        today = next((rival for rival in alike if rival.role == "today"), None)
        saves_little = today is not None and self.cost > (1 - _MIN_SAVING) * today.cost
        return no_dearer or (today if saves_little else None)

    def _costs_no_more(self, rival: Rival) -> bool:
        return rival.cost <= self.cost * (1 + _COST_TOLERANCE)

    def prefer(self, rival: Rival, policy: str, money: Money, error_kind: ErrorKind = ERRORS) -> str:
        """Return the advice to keep or to use a rival in place of a policy; the reason first.

        Args:
            rival: the preferred rival.
            policy: name of the policy.
            money: unit of the amounts.
            error_kind: kind of error, with its words.
        """
        verb, of_policy = self._describe_change(money, error_kind).split(" ", 1)
        would = f"{policy} would {verb.removesuffix('s')}"
        advice = f"{'keep' if rival.role == 'today' else 'use'} {rival.subject}: {_BY_ESTIMATE}"
        if not self._costs_no_more(rival):
            return f"{advice} {would} only {of_policy}"
        simpler = "" if rival.name == IN_SERVICE else ", and is simpler"
        return f"{advice} it does as well within chance, for no more money{simpler}; {would} {of_policy}"

    def describe_optimism(self, error_kind: ErrorKind = ERRORS) -> str | None:
        """Say what the policy errs on where it was chosen; None if that is the expected error, as printed.

        >>> print(Comparison(0.186, 1e-4, 300, False, (), replayed_error=0.183).describe_optimism())
        on these queries it errs on 18.3 %, but was chosen on them
        >>> today = Rival("large", "today", error=0.17, cost=2e-4, error_difference=0.003, se=0.006)
        >>> print(Comparison(0.173, 1e-4, 300, False, (today,), replayed_error=0.179).describe_optimism())
        on these queries it errs on 17.9 %, 0.9 points more than today's: the estimate also uses confidences and answers
        """
        counted = self.replayed_error
        if counted is None or self.is_todays_policy or (shown := percent(counted)) == percent(self.error):
            return None
        errs = f"on these queries it {error_kind.predicate(shown)}{self.price_clause}"
        if counted < self.error:
            return f"{errs}, but was chosen on them"
        beside = "" if self.today is None else f", {describe_points(counted - self.today.error)} than today's"
        return f"{errs}{beside}: the estimate also uses confidences and answers"

    def rows(self, money: Money) -> list[tuple[str, str, str, str]]:
        """Return a table of the policy and its rivals: name, money, error, the policy's error minus the rival's."""
        policy = ("this policy", money.show(self.cost), percent(self.error), "")
        rivals = ((rival.title, money.show(rival.cost), percent(rival.error), rival.gap_cell) for rival in self.rivals)
        return [policy, *rivals]

    def describe_error_costs(self, error_kind: ErrorKind = ERRORS) -> str | None:
        """Return the price of an error up to which the policy pays beside today's, or what a stricter policy pays.

        The policy pays up to its saving per error that it adds to today's; at worst, up to the least saving per error
        of the upper limit. None if it saves nothing or adds none, and no stricter policy is known.

        >>> today = Rival("large", "today", error=0.12, cost=2e-4, error_difference=0.003, se=0.006)
        >>> Comparison(0.123, 5e-5, 300, True, (today,)).describe_error_costs()
        'it pays if one error costs less than $0.0500 (at worst, $0.0117)'
        >>> Comparison(0.1, 1e-4, 300, True, (), next_error_cost=0.0112).describe_error_costs()
        'a stricter policy would pay $0.0112 for each error that it avoids'
        """
        today = self.today
        if today is not None and today.cost > self.cost and today.error_difference > 0:
            most = f"${format_number((today.cost - self.cost) / today.error_difference)}"
            least = self._least_saving(today)
            at_worst = f"${format_number(least / self.upper_difference(today))}" if least > 0 else "it saves nothing"
            return f"it pays if {error_kind.unit} costs less than {most} (at worst, {at_worst})"
        if not self.next_error_cost:
            return None
        unit = error_kind.unit.removeprefix("one ").removeprefix("a ")
        return f"a stricter policy would pay ${format_number(self.next_error_cost)} for each {unit} that it avoids"


def describe_rungs(policy: AbstractPolicy, *, thresholds: bool = False) -> str:
    """Name the models of a policy in the order of asking; for a ladder, each rung with its share of the queries.

    A rung with a cascade for each segment is named by the column of the segments, as "cascades by topic". With
    `thresholds`, other rungs are described with their thresholds.
    """

    def name_rung(rung: Any) -> str:
        if rung.segments:
            return f"cascades by {policy.segment_column or 'segment'}"
        if thresholds:
            return describe_cascade(rung.to_json()).replace("\n", "; ")
        compared = [
            f"{agreement.earlier} and {name}, and {agreement.model} where they differ"
            for name, agreement in rung.agreements.items()
        ]
        return ", then ".join(compared) or " → ".join(rung.models) + " alone" * (len(rung.models) == 1)

    shares: dict[str, float] = {}
    for weight, rung in zip(policy.weights, policy.adjacent_rungs, strict=True):
        if weight >= MIN_SHARE:
            shares[name_rung(rung)] = shares.get(name_rung(rung), 0.0) + weight
    if len(shares) == 1:
        return next(iter(shares))
    (first, share), (second, _) = shares.items()
    digits = 0 if 0.005 <= share < 0.995 else 1
    these = f"{first} for {percent(share, digits)} of the queries"
    return f"{these}; for the others {second}" if " and " in second else f"{these} and {second} for the others"


def advise(
    policy: AbstractPolicy,
    comparison: Comparison,
    money: Money,
    error_kind: ErrorKind = ERRORS,
    margin: float | None = None,
    kept: str = "",
) -> str:
    """Return the advice on a policy in a sentence: to use it, keep it or not use it, and what this changes.

    The advice is "do not use" if on fresh queries today's is as good for no more money or the policy breaks a margin.
    On the log tuned on, it may be to keep or to use a rival (`preferred_rival`).

    Args:
        policy: the policy.
        comparison: comparison of the policy with today's.
        money: unit of the amounts.
        error_kind: kind of error, with its words.
        margin: tolerated error above today's that the policy was tuned for; None for another target.
        kept: reason why the tuning kept today's, such as ": …" or " until July: …"; empty if it did not.
    """
    if (rival := preferred_rival(policy, comparison)) is not None:
        return comparison.prefer(rival, describe_rungs(policy), money, error_kind)
    broken = comparison.fresh and margin is not None and comparison.exceeds(margin)
    verb = "keep" if comparison.is_todays_policy else "do not use" if comparison.is_dominated or broken else "use"
    where = f"on {comparison.n_queries:,} fresh queries " if comparison.fresh else f"{_BY_ESTIMATE} "
    where = "" if comparison.is_todays_policy and not comparison.fresh else where
    named = describe_rungs(policy, thresholds=verb == "do not use")  # a policy tuned again may differ in these alone
    until, _, why = kept.partition(": ")
    named += describe_abstention(policy)
    return f"{verb} {named}{until}: {where}it {comparison.headline(money, error_kind)}{f'; {why}' * bool(why)}"


def describe_abstention(policy: AbstractPolicy) -> str:
    """Say for which share of the queries a policy is expected to give no answer, after a comma; empty for none."""
    share = policy.expected.get("abstention") or 0.0
    return f", with no answer for {percent(share)} of the queries" if share >= MIN_SHARE else ""


def preferred_rival(policy: AbstractPolicy, comparison: Comparison) -> Rival | None:
    """Return the rival to keep or to use in place of a policy (`Comparison.preferred`); a model alone has none."""
    is_cascade = len({name for rung in policy.adjacent_rungs for name in rung.models}) > 1
    return comparison.preferred if is_cascade else None


def recorded_comparison(provenance: Mapping[str, Any]) -> Comparison | None:
    """Read the comparison of a policy's tuning; None if it is not recorded, ValueError for a damaged entry."""
    return read_value(Comparison | None, provenance.get(COMPARISON), f"provenance.{COMPARISON}")
