"""Decide on a policy, in words, with advice, and on a retuned policy in its place.

`evaluate`, `check`, `diagnose`, `report` and `retune` print the decision, and `rcjax retune` writes a new policy if and
only if it says "tune again". The decision rests on two primary figures, the policy's error and its money, and on what a
retuned policy would gain.

A log without the hard queries makes a bad policy look good. So few calls of the log may have failed, and its labels
must be drawn at random. The new policy must keep its promise on the queries that the policy in service carries. It must
gain half a point of error on all known queries, fresh and carried, each policy at its own bill there, and lose no more
than a standard error in cross-validation. Where a gain cannot be tested (a limit on seconds, a policy without λ), a new
policy without faults replaces the old one.

Without drift these rules replace .6 policies a year (`benchmarks.year`). A rule on the sign of the cross-validated gain
replaced eleven a year without a benefit: it compares policies that are tuned on four fifths of the queries.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rcjax._base.figures import Z95, Money, count, percent
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.logs.oddities import uneven, unsure
from rcjax.policy.counted import ERRORS, Counted
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.spec import Target, recorded_tuning
from rcjax.tuning.diagnostics.checks import KINDS, CheckResult, CheckVerdict, PrimaryFigure, adjust_p_values
from rcjax.tuning.replaying.comparing import QueryLosses, comparable_log, matched_today, name_today
from rcjax.tuning.replaying.replay import replay_queries
from rcjax.tuning.retune import (
    FEWEST_FOR_GAIN,
    RetuningGain,
    carried_log,
    comparable_tuning,
    held_out_gain,
    retune,
    why_untested,
)
from rcjax.tuning.tune import Tuned

#: Errors per query that a new policy must gain: with less, chance replaces policies (`benchmarks.year`).
LEAST_IMPROVEMENT = 0.005


@dataclasses.dataclass(frozen=True)
class Replacement:
    """The grounds on which a retuned policy replaces the policy in service, or does not."""

    improvement: float | None
    """Gain of the new policy on the queries that it was tuned on, in errors per query; None if not comparable."""
    against: tuple[str, ...] = ()
    """Faults of the log or of the new policy, in words; empty without any."""
    held_out: RetuningGain | None = None
    """Held-out gain of retuned policies, estimated where the improvement is large enough."""
    limit: str = ""
    """Limit of the target, in words, where the policy in service exceeds it on these queries and the new one less."""

    @property
    def replaces_broken(self) -> bool:
        """Whether the new policy may replace one that broke its promise: no faults, and no worse on known queries.

        A new policy that exceeds the limit by less also counts: meeting a limit may cost more than the errors saved.
        """
        return not self.against and (self.improvement is None or self.improvement >= 0 or bool(self.limit))

    @property
    def replaces_sound(self) -> bool:
        """Whether the new policy replaces one that keeps its promise: no faults, and it gains enough, if known."""
        if self.against or self.improvement is None:
            return not self.against
        kept = self.held_out is None or self.held_out.gain.mean >= -self.held_out.gain.se
        return self.improvement > LEAST_IMPROVEMENT and kept

    def in_words(self, counted: Counted, *, renewed: bool = False) -> tuple[str, ...]:
        """Describe the faults, or else the gain, in words; `renewed`: a new policy that is no worse is enough."""
        if self.against or self.improvement is None:
            return self.against
        verb, points = "gain" if self.improvement >= 0 else "lose", f"{100 * abs(self.improvement):.1f}"
        known = f"{verb} the equivalent of {points} points of {counted.noun} on all known queries"
        if points == "0.0":
            known = f"be as good on all known queries, {counted.noun} and money together"
        small = 0 <= self.improvement <= LEAST_IMPROVEMENT and not renewed
        then = f"; below {100 * LEAST_IMPROVEMENT:.1f} the policy stays" if small else ""
        if self.held_out is not None:
            then = f", and {self.held_out.describe(counted.noun)} on queries left out"
        elif self.limit and renewed:
            then = f", {'but' if verb == 'lose' and points != '0.0' else 'and'} come nearer to its limit, {self.limit}"
        return (f"tuned again, it would {known}{then}",)

    def to_json(self) -> dict[str, Any]:
        """Return the figures of the gain, and the faults."""
        gain = {} if self.held_out is None else self.held_out.to_json()
        return gain | {"improvement": self.improvement, "against": list(self.against)}


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


_CHANCE = 0.01  # level of the tests of labels: the share of false alarms where labels are drawn at random


_MATTERS = 0.02  # least excess of error that breaks a promise


def judge_answers(log: Log, models: Collection[str]) -> CheckResult:
    """Check the share of queries that a model, or the reference, failed to answer, among those that all were asked.

    Calls that were not made do not count (`Log.failed`), as a log may hold the queries of several policies.

    >>> import rcjax
    >>> log = rcjax.sample_log(100, seed=0)
    >>> judge_answers(log, log.models).verdict
    'fine'
    """
    reference = "" if log.reference is None else log.reference.model
    lost = [one for one in log.failed if {*models} <= one.asked and {*models, reference} & one.failed]
    failed = sum(one.queries for one in lost)
    asked = failed + int(log.select([name for name in log.models if name in models]).complete.sum())
    kind, advice = KINDS["lacking answers"], ""
    verdict: CheckVerdict = "bad" if failed > kind.limits.bad * asked else "fine"
    if verdict == "bad":
        by_model = {name: sum(one.queries for one in lost if name in one.failed) for name in (*models, reference)}
        most = max(by_model, key=lambda name: by_model[name])
        advice = (
            f"an answer is missing for {failed:,} of {count(asked, 'query')}, most often one of {most}"
            f"{', the reference' * (most == reference)}: what is left may be the easier part, and is no fair sample; "
            "look at why (the column error of a call log), and log more"
        )
    return kind.check("", failed / max(asked, 1), advice, verdict=verdict)


def judge_labels(log: Log, models: Sequence[str]) -> Iterator[CheckResult]:
    """Check whether labels are drawn at random, and not more or less often where the cheapest model is unsure.

    There is a check for each set of partly labelled answers, on the queries that all models answered. Its figure is the
    difference between the shares of unsure queries among those labelled and among all. The p-value is raw.

    Args:
        log: the log.
        models: names of the models whose labels count, the cheapest first.
    """
    log = log.select(models)
    log = log.take(log.complete) if log.complete.any() else log
    sure = np.asarray(log.logprob, float)[:, 0]
    doubted = unsure(sure)
    sets = {labelled.tobytes(): (name, labelled) for name, labelled in zip(models, log.labelled.T, strict=True)}
    for name, labelled in sets.values():
        if labelled.all() or not labelled.any() or not doubted.any():
            continue
        gap, p_value = uneven(sure, labelled)
        low, high = (percent(float(labelled[part].mean())) for part in (doubted, ~doubted))
        advice = (
            f"{low} of the answers of {name} have a label where {models[0]} is less sure, {high} where it is surer: "
            "labels that are not drawn at random tell little of the rest; draw others (rcjax label)"
        )
        yield KINDS["labels"].check(name, gap, advice, p_value=p_value)


def judge_sample(log: Log, models: Sequence[str]) -> list[CheckResult]:
    """Check whether a log is a fair sample of the queries: few answers are missing, and labels are drawn at random.

    Args:
        log: the log.
        models: names of the models whose answers count, the cheapest first.
    """
    return [judge_answers(log, models), *adjust_p_values(judge_labels(log, models), alarm=_CHANCE)]


def judge_replacement(policy: AnyPolicy, log: Log, tuned: Tuned | None = None, seed: int = 0) -> Replacement:
    """Judge whether a policy tuned again on a log replaces the policy in service.

    Args:
        policy: the policy in service.
        log: the fresh log.
        tuned: the result of `retune` on both; None: it is made here.
        seed: seed of the folds.
    """
    if tuned is None:
        try:
            tuned = retune(policy, log, bands=False)
        except ValueError as problem:  # infeasible, too few queries, or a policy made by hand
            return Replacement(None, (f"it cannot be tuned again: {problem}",))
    after = tuned.policy
    assert after is not None  # as there is a target
    if policy.period is not None:  # both spread the same money over the same queries a day
        after = dataclasses.replace(after, budget=policy.budget)  # type: ignore[type-var]
    lam = comparable_tuning(policy, log).lam
    gain, improvement, untested, limit = None, None, None, ""
    try:
        if lam is None or tuned.log.n_queries < FEWEST_FOR_GAIN:
            untested = _reason_untested(policy, log)
        elif (improvement := _improvement(policy, after, tuned.log, lam)) <= LEAST_IMPROVEMENT:
            limit = _exceeded_limit(policy, after, tuned.log)
        else:
            gain = held_out_gain(policy, log, seed, tuned)
            untested = _reason_untested(policy, log) if gain is None else None
    except LogError as problem:
        return Replacement(None, (f"whether it gains was not tested: {problem}",))
    known = [name for name in log.models if name in {*policy.models, *after.models}]
    biased = [one.advice for one in judge_sample(log, known) if one.verdict == "bad"]
    return Replacement(
        improvement, tuple(filter(None, (*biased, _broken_promise(policy, after, log), untested))), gain, limit
    )


def _improvement(before: AnyPolicy, after: AnyPolicy, log: Log, lam: float) -> float:
    """Return the mean loss of one policy minus that of another on a log, in errors per query: error + λ·cost."""
    log = comparable_log(log, (before, after))
    old, new = (QueryLosses.of(policy, log) for policy in (before, after))
    return float((old.wrong - new.wrong + lam * (old.spent - new.spent)).mean())


def _exceeded_limit(before: AnyPolicy, after: AnyPolicy, log: Log) -> str:
    """Describe the target's limit if a policy exceeds it on a log and the new policy exceeds it by less; else "".

    The limit of a margin is today's error on the same queries plus the margin.
    """
    target = Target.of(**recorded_tuning(before).spec.target)
    today = matched_today(before, log)
    if target.name not in ("max_error", "match", "budget") or (target.name == "match" and today is None):
        return ""
    log = comparable_log(log, (before, after) if today is None else (before, after, today))
    old, new = (QueryLosses.of(policy, log) for policy in (before, after))
    had, has = (float((one.spent if target.name == "budget" else one.wrong).mean()) for one in (old, new))
    limit = target.value
    if target.name == "budget" and before.budget:
        limit = before.budget  # at the traffic of the log
    elif target.name == "match" and today is not None:
        limit += float(QueryLosses.of(today, log).wrong.mean())
    if had <= max(limit * (1 + 1e-9), has):
        return ""
    return target.describe(log.counted, "today's" if today is None else name_today(today))


def _broken_promise(before: AnyPolicy, after: AnyPolicy, log: Log) -> str | None:
    """Say in words if the new policy breaks its promise on the queries that the policy in service carries; else None.

    It does if its error there exceeds both its promise and the other policy's error by two points, and significantly
    so (one-sided, 5 %).
    """
    if before.provenance.get("reference") is None or not before.calibrations:
        return None
    kept = carried_log(before)
    try:
        kept = kept.take(kept.select([*{*before.models, *after.models}]).complete)
        new, old = (replay_queries(policy, kept).wrong for policy in (after, before))
    except LogError:  # it lacks a model, or what they compare
        return None
    expected = after.expected.get("error")
    bar = max(old.mean(), 0.0 if expected is None else expected)
    spread = max(new.std(), math.sqrt(max(bar * (1 - bar), 0.0))) / math.sqrt(len(new))
    if new.mean() - bar <= max(_MATTERS, Z95 * spread):
        return None
    noun = log.counted.noun
    promised = after.expected.get("error")
    promise = f"{percent(promised)} {noun} is promised" if promised is not None else "less is promised"
    where = f"on the {count(len(new), 'query')} that the policy in service carries"
    return f"{where} it has {percent(new.mean())} {noun}, where {promise}, and that one has {percent(old.mean())}"


def _reason_untested(before: AnyPolicy, log: Log) -> str | None:
    """Say in words why the gain was not tested, if another log could change that; else None."""
    why, mendable = why_untested(before, log)
    return f"whether it gains on queries left out was not tested: {why}" if mendable else None
