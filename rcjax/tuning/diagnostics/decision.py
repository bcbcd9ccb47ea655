"""Decide on a policy, in words, with advice, and on a retuned policy in its place.

`evaluate`, `check`, `diagnose`, `report` and `retune` print the decision, and `rcjax retune` writes a new policy if and
only if it says "tune again". The decision rests on two primary figures, the policy's error and its money, and on what a
retuned policy would gain.

A log without the hard queries makes a bad policy look good. So few calls of the log may have failed, and its labels
must be drawn at random. The new policy must keep its promise on the queries that the policy in service carries. It must
gain half a point of error on all known queries, fresh and carried, each policy at its own bill there. In
cross-validation it must lose no more than a standard error; this is not tested under a limit on seconds, which policies
tuned on folds would not keep. A policy that broke its promise is replaced by a new one that is no worse. A policy
without λ cannot be compared, and is replaced by a new one without faults.

Without drift these rules replace .6 policies a year (`benchmarks.year`). A rule on the sign of the cross-validated gain
replaced eleven a year without a benefit: it compares policies that are tuned on four fifths of the queries.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from rcjax._base.figures import Z_ONE_SIDED_95, Money, count, percent
from rcjax._core.batching import map_in_threads
from rcjax.logs.errors import LogError
from rcjax.logs.kept_sample import carried_log, carried_rows, remembered
from rcjax.logs.log import Log
from rcjax.model.calibration import Calibrator
from rcjax.model.label_outcomes import FOLDS, average_equal_answers, corrected_log, deal_folds
from rcjax.policy.counted import ERRORS, Counted
from rcjax.policy.ladder import Ladder
from rcjax.policy.policy import AbstractPolicy
from rcjax.policy.spec import Spec, Target, Tuning, recorded_count, recorded_tuning
from rcjax.solving.frontier.frontier import make_frontier
from rcjax.solving.frontier.points import LossTerms, Points, Policies, policies_from_rules
from rcjax.tuning.candidates import ENOUGH_QUERIES
from rcjax.tuning.cross_validation import Gain
from rcjax.tuning.diagnostics.checks import CheckResult, PrimaryFigure, judge_sample
from rcjax.tuning.replaying.comparing import QueryLosses, comparable_log, matched_today, name_today
from rcjax.tuning.replaying.replay import replay_queries
from rcjax.tuning.replaying.walk import loss_terms_on_log, require_answers
from rcjax.tuning.search import search_of

#: Errors per query that a new policy must gain: with less, chance replaces policies (`benchmarks.year`).
LEAST_IMPROVEMENT = 0.005

#: Queries below which no gain is estimated.
FEWEST_FOR_GAIN = 50

_MATTERS = 0.02  # least excess of error that breaks a promise


@dataclasses.dataclass(frozen=True)
class RetuningGain:
    """Cross-validated gain of retuned policies over the policy in service."""

    loss: float
    """Loss of the policy in service: error + λ·cost, refusals at their price."""
    gain: Gain[float]
    """Loss of the policy in service minus loss of the retuned policies."""
    lam: float
    """Price λ, in errors per unit of money."""
    n: int
    """Number of queries, fresh and carried."""

    def describe(self, noun: str) -> str:
        """Describe the gain in words, at the λ that the policy was tuned for.

        >>> RetuningGain(0.2, Gain(-0.009, 0.01), lam=1000.0, n=300).describe("error")
        'lose the equivalent of 0.9 ± 1.0 points of error'
        """
        points, se = 100 * self.gain.mean, 100 * self.gain.se
        return f"{'gain' if points >= 0 else 'lose'} the equivalent of {abs(points):.1f} ± {se:.1f} points of {noun}"

    def to_json(self) -> dict[str, float]:
        """Return the figures; `retuned` is the loss of the retuned policies."""
        losses = {"loss": self.loss, "retuned": self.loss - self.gain.mean, "se": self.gain.se}
        return losses | {"lam": self.lam, "n": self.n}


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

    def replaces(self, *, broken: bool) -> bool:
        """Return whether the new policy replaces the policy in service: it has no faults, and gains enough, if known.

        A policy that keeps its promise is replaced for half a point on all known queries, if cross-validation loses no
        more than a standard error. One that broke its promise is replaced by a policy that is no worse, or that exceeds
        the limit by less: meeting a limit may cost more than the errors saved.

        Args:
            broken: the policy in service broke its promise.
        """
        if self.against:
            return False
        if self.improvement is None:  # an unknown gain does not prevent replacement; only faults do
            return True
        if broken:
            return self.improvement >= 0 or bool(self.limit)
        gain = None if self.held_out is None else self.held_out.gain
        return self.improvement > LEAST_IMPROVEMENT and (gain is None or gain.mean >= -gain.se)

    def describe(self, counted: Counted, *, broken: bool = False) -> tuple[str, ...]:
        """Describe the faults, or else the gain, in words; `broken` as for `replaces`."""
        if self.against or self.improvement is None:
            return self.against
        verb, points = "gain" if self.improvement >= 0 else "lose", f"{100 * abs(self.improvement):.1f}"
        known = f"{verb} the equivalent of {points} points of {counted.noun} on all known queries"
        if points == "0.0":
            known = f"be as good on all known queries, {counted.noun} and money together"
        small = 0 <= self.improvement <= LEAST_IMPROVEMENT and not broken
        then = f"; the policy stays unless {100 * LEAST_IMPROVEMENT:.1f} points are gained" if small else ""
        if self.held_out is not None:
            then = f", and {self.held_out.describe(counted.noun)} on queries left out"
        elif self.limit and broken:
            then = f", {'but' if verb == 'lose' and points != '0.0' else 'and'} come nearer to its limit, {self.limit}"
        return (f"tuned again, it would {known}{then}",)

    def to_json(self) -> dict[str, Any]:
        """Return the figures of the gain, and the faults."""
        gain = {} if self.held_out is None else self.held_out.to_json()
        return gain | {"improvement": self.improvement, "against": list(self.against)}


class RetuningTerms(NamedTuple):
    """The terms on which retuned policies are compared with the policy in service."""

    tuning: Tuning
    """Options that the policies are tuned by."""
    lam: float | None
    """Price λ, in errors per unit of money; None: they cannot be compared."""
    reason: str = ""
    """Reason why they cannot be compared, in words."""
    mendable: bool = False
    """Whether they could be compared on another log."""


def comparable_tuning(policy: AbstractPolicy, log: Log) -> RetuningTerms:
    """Return the terms on which policies tuned again on a log are compared with a policy.

    λ is that of the target, if the target has one, and else that of the policy.
    """
    tuning = recorded_tuning(policy).within(log.models)
    spec = tuning.spec
    lam = spec.lam if spec.error_cost is None else 1 / spec.error_cost
    lam = policy.expected.get("lam") if lam is None else lam
    absent = [name for name in policy.models if name not in tuning.models]
    if spec.has_own_objective:
        return RetuningTerms(tuning, None, "the policy minimises an objective that its file does not hold")
    if lam is None:
        return RetuningTerms(tuning, None, "the policy does not record its λ")
    if absent:
        lacks = f"the log lacks {', '.join(absent)}, which the policy in service asks"
        return RetuningTerms(tuning, None, lacks, mendable=True)
    if not tuning.can_search:
        return RetuningTerms(tuning, None, "the log has one model only of those tuned on", mendable=True)
    return RetuningTerms(tuning, lam)


def _drawn(log: Log, seed: int) -> Log:
    """Take the complete queries of a log at random, 5,000 at most; the log itself if fewer than two are complete."""
    order = np.random.default_rng(seed).permutation(np.flatnonzero(log.complete))[:ENOUGH_QUERIES]
    return log.take(order) if len(order) > 1 else log


def held_out_gain(policy: AbstractPolicy, log: Log, seed: int = 0) -> RetuningGain | None:
    """Estimate the gain of retuning by five-fold cross-validation, at the policy's λ; None if it cannot be estimated.

    Each fold is answered by the policy in service, and by a policy tuned on the other folds with the same search.
    Answers cost their model's mean cost, and refusals their price. The queries are those of the fresh log and those
    that the policy carries, so that a bad week has no more than its share; 5,000 are drawn at random at most. The
    policy in service was tuned on the carried queries, so its loss there is raised by its optimism. Models
    that give the same answer get the mean of its outcomes (`average_equal_answers`).

    Args:
        policy: the policy in service.
        log: the fresh log.
        seed: seed of the folds.

    The gain cannot be estimated if the policy does not record its λ, or is of `minimise`; if it keeps to a limit on the
    seconds, which policies tuned on folds would not keep; if the log lacks one of its models, or has one model only; or
    with fewer than 50 complete queries.
    """
    tuning, lam, *_ = comparable_tuning(policy, log)
    if lam is None or tuning.spec.max_seconds is not None:
        return None
    log = _drawn(remembered(policy, log.select(tuning.models)), seed)
    if log.complete.sum() < FEWEST_FOR_GAIN:
        return None
    right = average_equal_answers(corrected_log(log))
    retuned, _ = _cross_fitted_losses(policy, log, right, tuning.spec, lam)
    walked, old = replay_queries(policy, right), carried_rows(log)
    terms = LossTerms(walked.wrong, walked.cost_at_means, walked.refused)
    served = np.asarray(terms.loss(lam, tuning.spec.abstain_price), float)
    if old.sum() >= FEWEST_FOR_GAIN:
        tuned_on = max(recorded_count(policy.provenance, "complete_queries", int(old.sum())), int(old.sum()))
        losses = _cross_fitted_losses(policy, log.take(old), right.take(old), tuning.spec, lam)
        served = served + np.where(old, _optimism(*losses) * old.sum() / tuned_on, 0.0)
    gains = served - retuned
    gain = Gain.of(gains, gains).at()
    return RetuningGain(float(served.mean()), gain, float(lam), log.n_queries)


def _cross_fitted_losses(
    policy: AbstractPolicy, log: Log, right: Log, spec: Spec, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """Tune a policy again without each fold of a log, and return (held-out, mean in-sample) losses, (n,) each.

    Args:
        policy: the policy whose kind of cascade is tuned.
        log: the log to tune on.
        right: the same log, with the outcomes that losses are computed from.
        spec: options of the tuning.
        lam: the λ of both.
    """
    fold, n = deal_folds(log.complete), log.n_queries

    def losses(calibrators: Calibrator, policies: Policies) -> np.ndarray:
        terms = loss_terms_on_log(calibrators, policies, right, right.correct, right.cost)
        return np.asarray(terms.loss(lam, spec.abstain_price), float)[0]

    by_fold = np.stack([losses(*tuned) for tuned in _tuned_without(fold, policy, log, spec, lam)])
    held_out = by_fold[fold, np.arange(n)]
    return held_out, (by_fold.sum(0) - held_out) / (FOLDS - 1)


def _tuned_without(
    fold: np.ndarray, policy: AbstractPolicy, log: Log, spec: Spec, lam: float
) -> list[tuple[Calibrator, Policies]]:
    """Tune a policy again without each fold of a log, on the same number of queries each time.

    A frontier of one point is tuned again: the widest rung of the policy, at its λ. `fold` (n,) is the fold of each
    query.
    """
    search = search_of(spec)
    others = [np.flatnonzero(fold != number) for number in range(FOLDS)]
    model = search.fit(log)
    widest = max(policy.rungs, key=lambda rung: (bool(rung.agreements), len(rung.models)))
    nothing = np.zeros(1, model.cost.dtype)
    policies = policies_from_rules([model.models], [widest])
    point = Points(nothing + lam, np.zeros(1, int), LossTerms(nothing, nothing, nothing), policies)
    frontier = make_frontier(model, point, spec)
    require_answers(frontier.policies, log)
    retune_on = search.retuner(frontier, log, np.array([0]))
    n = min(map(len, others))
    return map_in_threads(lambda rows: retune_on(log, rows[:n]), others, n=log.n_queries)


def _optimism(held_out: np.ndarray, in_sample: np.ndarray) -> float:
    """Estimate the optimism of a policy tuned on n queries, 0 at least: mean held-out loss minus in-sample loss.

    Args:
        held_out, in_sample: (n,) losses of policies tuned on four fifths of the queries. Optimism falls with the number
            of queries, and the result is scaled from four fifths to all.
    """
    return max(float((held_out - in_sample).mean()) * (1 - 1 / FOLDS), 0.0)


def why_untested(policy: AbstractPolicy, log: Log) -> tuple[str, bool]:
    """Return (reason why `held_out_gain` is None, in words; whether another log could change that)."""
    terms = comparable_tuning(policy, log)
    if terms.lam is None:
        return terms.reason, terms.mendable
    if terms.tuning.spec.max_seconds is not None:
        return "the policy keeps to a limit on the seconds", False
    return f"fewer than {FEWEST_FOR_GAIN} queries have the answers of all models", True


def judge_replacement(
    policy: AbstractPolicy, after: AbstractPolicy, log: Log, known: Log, seed: int = 0
) -> Replacement:
    """Judge whether a policy tuned again on a log replaces the policy in service.

    Args:
        policy: the policy in service.
        after: the new policy, of `retune`.
        log: the fresh log.
        known: the queries that the new policy was tuned on, fresh and carried.
        seed: seed of the folds.
    """
    if policy.period is not None and isinstance(after, Ladder):  # both spread the same money over as many queries
        after = dataclasses.replace(after, budget=policy.budget)
    lam = comparable_tuning(policy, log).lam
    gain, improvement, untested, limit = None, None, None, ""
    try:
        if lam is None or known.n_queries < FEWEST_FOR_GAIN:
            untested = _reason_untested(policy, log)
        elif (improvement := _improvement(policy, after, known, lam)) <= LEAST_IMPROVEMENT:
            limit = _exceeded_limit(policy, after, known)
        else:
            gain = held_out_gain(policy, log, seed)
            untested = _reason_untested(policy, log) if gain is None else None
    except LogError as problem:
        return Replacement(None, (f"whether it gains was not tested: {problem}",))
    models = [name for name in log.models if name in {*policy.models, *after.models}]
    biased = [check.advice for check in judge_sample(log, models) if check.verdict == "bad"]
    return Replacement(
        improvement, tuple(filter(None, (*biased, _broken_promise(policy, after, log), untested))), gain, limit
    )


def _improvement(before: AbstractPolicy, after: AbstractPolicy, log: Log, lam: float) -> float:
    """Return the mean loss of one policy minus that of another on a log, in errors per query: error + λ·cost."""
    log = comparable_log(log, (before, after))
    old, new = (QueryLosses.of(policy, log) for policy in (before, after))
    return float((old.penalty - new.penalty + lam * (old.spent - new.spent)).mean())


def _exceeded_limit(before: AbstractPolicy, after: AbstractPolicy, log: Log) -> str:
    """Describe the target's limit if a policy exceeds it on a log and the new policy exceeds it by less; else "".

    The limit of a margin is today's error on the same queries plus the margin.
    """
    target = Target.of(**recorded_tuning(before).spec.target)
    today = matched_today(before, log)
    if target.name not in ("max_error", "match", "budget") or (target.name == "match" and today is None):
        return ""
    log = comparable_log(log, (before, after) if today is None else (before, after, today))
    old, new = (QueryLosses.of(policy, log) for policy in (before, after))
    had, has = (float((losses.spent if target.name == "budget" else losses.penalty).mean()) for losses in (old, new))
    limit = target.value
    if target.name == "budget" and before.budget:
        limit = before.budget  # at the traffic of the log
    elif target.name == "match" and today is not None:
        limit += float(QueryLosses.of(today, log).penalty.mean())
    if had <= max(limit * (1 + 1e-9), has):
        return ""
    return target.describe(log.counted, "today's" if today is None else name_today(today))


def _broken_promise(before: AbstractPolicy, after: AbstractPolicy, log: Log) -> str | None:
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
    if new.mean() - bar <= max(_MATTERS, Z_ONE_SIDED_95 * spread):
        return None
    noun = log.counted.noun
    promised = after.expected.get("error")
    promise = f"{percent(promised)} {noun} is promised" if promised is not None else "less is promised"
    where = f"on the {count(len(new), 'query')} that the policy in service carries"
    return f"{where} it has {percent(new.mean())} {noun}, where {promise}, and that one has {percent(old.mean())}"


def _reason_untested(before: AbstractPolicy, log: Log) -> str | None:
    """Say in words why the gain was not tested, if another log could change that; else None."""
    why, mendable = why_untested(before, log)
    return f"whether it gains on queries left out was not tested: {why}" if mendable else None


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
        tune_again = not biased and replacement.replaces(broken=broken)
        grounds = replacement.describe(counted, broken=broken)
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
    points, se, noun = 100 * error.gap, 100 * error.se, counted.noun
    if check.name == "difference":
        more = f"{abs(100 * error.observed):.1f} ± {se:.1f} points {'more' if error.observed > 0 else 'less'} {noun}"
        margin = f"{'within' if points <= 0 else 'over'} the margin of {100 * error.expected:.3g}"
        if error.observed == error.se == 0:
            return f"the policy answers as {error.rival} does, {margin}"
        return f"the policy has {more} than {error.rival} on the same queries, {margin}{_chance(check)}"
    rate = f"the policy {counted.does(percent(error.observed))}"
    than = f"{abs(points):.1f} ± {se:.1f} points {'more' if points >= 0 else 'less'} than the"
    return f"{rate}, {than} {percent(error.expected)} promised{_chance(check)}"


def _money_in_words(cost: PrimaryFigure, check: CheckResult, money: Money) -> str:
    if check.name == "budget":
        if check.verdict == "fine":
            return f"its budget is kept, {money.full(cost.expected)}"
        over = f"over the ${money.show(cost.expected)}{_chance(check)}"
        return f"even its cheapest rung costs {money.full(cost.observed)}, {over}"
    rise = f"{percent(abs(cost.rise))} {'more' if cost.rise >= 0 else 'less'}"
    than = f"{rise} than the ${money.show(cost.expected)} promised{_chance(check)}"
    return f"it costs {money.full(cost.observed)}, {than}"


def _chance(check: CheckResult) -> str:
    """Return the p-value of a figure beyond its limit, in brackets, and whether chance explains the figure."""
    if check.p_value is None or (check.verdict == "fine" and not check.figure > check.kind.limits.doubtful):
        return ""
    return f" ({'by chance, ' * (check.verdict == 'fine')}p = {check.p_value:.2g})"


def _too_few(doubted: PrimaryFigure, unlabelled: int, tuned_on: int) -> str:
    """Explain whether the queries tuned on or those of the log are too few to tell, in words."""
    if doubted.tuned_on_is_the_limit:
        return f"that may be chance: the {tuned_on:,} that it was tuned on are too few to tell"
    noun = "labels" if unlabelled else "queries"
    return f"that may be chance: the {doubted.n:,} {noun} of this log are too few to tell"


#: Points of error by which a change of cost moves a ladder that follows its bill, from which on a remark tells them.
_MOVED = 0.005


def describe_followed(
    followed: Mapping[str, float], cost: PrimaryFigure, money: Money, counted: Counted = ERRORS
) -> str:
    """Describe a ladder that follows its bill: its bill, its position, and the errors that a change of cost makes.

    Args:
        followed: as `PolicyCheck.followed`.
        cost: cost at the position as tuned, expected and observed.
        money: unit of money.
        counted: kind of error that is counted.
    """
    now, tuned, low, high = (f"{followed[name]:.1f}" for name in ("position", "tuned", "low", "high"))
    error, before = (followed[name] for name in ("error", "error_tuned"))
    bill = f"{money.full(followed['bill'])} (budget ${money.show(followed['budget'])})"
    change = f"cost {percent(abs(cost.rise))} {'more' if cost.rise > 0 else 'less'} than expected"
    if abs(error - before) >= _MOVED:
        change = f"have {percent(before)} {counted.noun} in place of {percent(error)}, and {change}"
    return (
        f"following its bill, in the order of these queries, it costs {bill}, by rung {now} on average "
        f"({low} to {high}); at rung {tuned}, as tuned, it would {change}"
    )
