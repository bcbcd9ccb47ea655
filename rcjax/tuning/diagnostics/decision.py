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

Without drift these rules replace .6 policies with a budget a year (`benchmarks.year`). A rule on the sign of the
cross-validated gain replaced eleven a year without a benefit: it compares policies that are tuned on four fifths of the
queries.
"""

from __future__ import annotations

import dataclasses
import math
from itertools import compress
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np

from rcjax._base.figures import Z_ONE_SIDED_95, count, describe_points, format_number, format_points, percent
from rcjax._core.batching import map_in_threads
from rcjax.logs.errors import LogError
from rcjax.logs.kept_sample import carried_log, carried_mask, with_carried_queries
from rcjax.logs.log import Log
from rcjax.model.calibration import Calibrator
from rcjax.model.label_outcomes import FOLDS, average_equal_answers, corrected_log, deal_folds
from rcjax.policy.comparison import describe_gap
from rcjax.policy.error_kind import ErrorKind
from rcjax.policy.ladder import Ladder, penalty
from rcjax.policy.policy import AbstractPolicy
from rcjax.policy.spec import Spec, Tuning, recorded_count, recorded_tuning
from rcjax.solving.frontier.frontier import make_frontier
from rcjax.solving.frontier.points import LossTerms, Points, Policies, policies_from_rules
from rcjax.tuning.cross_validation import ENOUGH_QUERIES, Gain
from rcjax.tuning.diagnostics.findings import ALARM, DecisionGrounds, assess_sample
from rcjax.tuning.replaying.comparing import (
    QueryLosses,
    compare_policy,
    list_models,
    matched_today,
    name_today,
    paired_error,
    take_shared_queries,
)
from rcjax.tuning.replaying.replay import replay_queries
from rcjax.tuning.replaying.walk import loss_terms_on_log, require_answers
from rcjax.tuning.search import make_search

#: Errors per query that a new policy must gain: with less, chance replaces policies (`benchmarks.year`).
MIN_IMPROVEMENT = 0.005

#: Share of the money that a new policy must save within a limit on the error (`benchmarks.year --target max_error`).
MIN_SAVING = 0.05

#: Standard errors by which a policy is surely within its limit, in a year of weekly looks.
_SURELY_WITHIN = 2.5

#: Queries below which no gain is estimated.
MIN_QUERIES_FOR_GAIN = 50

_ROUNDING_OF_LIMIT = 1e-9  # excess over a limit that is due to rounding

_MIN_EXCESS = 0.02  # least excess of error that breaks a promise


@dataclasses.dataclass(frozen=True)
class RetuningGain:
    """Cross-validated gain of retuned policies over the policy in service."""

    loss: float
    """Loss of the policy in service: error + λ·cost, abstentions at their price."""
    gain: Gain
    """Loss of the policy in service minus mean loss of the retuned policies."""
    lam: float
    """Price λ, in errors per unit of money."""
    n_queries: int
    """Number of queries, fresh and carried."""

    def to_json(self) -> dict[str, float]:
        """Return the losses, with the gain and its standard error."""
        losses = {"loss": self.loss, "retuned_loss": self.loss - self.gain.mean}
        return losses | {"gain": self.gain.mean, "se": self.gain.se, "lam": self.lam, "n": self.n_queries}


@dataclasses.dataclass(frozen=True)
class LimitSaving:
    """The saving of a new policy, where the policy in service keeps a limit on the error on all known queries."""

    share: float
    """Share of the bill that the new policy saves; below 0 if it costs more."""
    added: float
    """Error that the new policy adds; below 0 if it errs less."""
    room: float
    """Limit minus the error of the policy in service; 0 at least."""
    se: float
    """Standard error of `room`."""

    @property
    def suffices(self) -> bool:
        """Whether the new policy saves enough within the limit, and adds errors only where there is surely room."""
        has_room = max(self.added, _SURELY_WITHIN * self.se) <= self.room
        return self.share >= MIN_SAVING and (self.added <= 0 or has_room)

    def describe(self, noun: str) -> str:
        """Say what is saved, and why that replaces the policy in service or not; `noun` is the kind of error."""
        saves = f"it saves {math.floor(1000 * max(self.share, 0.0)) / 10} % of the bill"
        if self.suffices:
            sure = "and the policy in service is within its limit by more than chance explains"
            return f"{saves}, {sure if self.added > 0 else f'with no more {noun}'}"
        if self.share < 0:
            gain = f"{describe_points(self.added)} {noun}" if self.added < 0 else f"no less {noun}"
            return f"it costs {percent(-self.share)} more for {gain}: the policy stays"
        why_not = "but the policy in service may have room for more errors only by chance"
        if self.share < MIN_SAVING:
            why_not = f"less than the {100 * MIN_SAVING:.0f} % that replace a policy"
        elif self.added > self.room:
            why_not = "but would exceed the limit"
        return f"{saves}, {why_not}: the policy stays"


@dataclasses.dataclass(frozen=True)
class Replacement:
    """The grounds on which a retuned policy replaces the policy in service, or does not."""

    improvement: float | None
    """Gain of the new policy on all known queries, fresh and carried, in errors per query; None if not comparable."""
    against: tuple[str, ...] = ()
    """Faults of the log or of the new policy, in words; empty without any."""
    held_out: RetuningGain | None = None
    """Held-out gain of retuned policies, estimated where the improvement is large enough."""
    limit: str = ""
    """Limit of the target, in words, if the policy in service exceeds it and the new policy exceeds it by less; else
    empty."""
    exceeds: bool = False
    """Whether there is a `limit`, and the policy in service exceeds it by more than chance explains."""
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

        Args:
            broken: the policy in service broke its promise.
        """
        if self.against:
            return False
        if self.improvement is None or self.exceeds:  # an unknown gain does not prevent replacement; only faults do
            return True
        saves = self.saving is not None and self.saving.suffices
        if broken or self.saving is not None:
            return saves or (broken and (self.improvement >= 0 or bool(self.limit)))
        gain = None if self.held_out is None else self.held_out.gain
        return self.improvement > MIN_IMPROVEMENT and (gain is None or gain.mean >= -gain.se)

    def describe(self, error_kind: ErrorKind, *, broken: bool = False) -> tuple[str, ...]:
        """Describe the faults, or else the new policy and why it replaces the policy or not (see `replaces`)."""
        if self.against or self.improvement is None:
            return self.against
        replaces, then = self.replaces(broken=broken), ""
        if self.saving is not None and self.saving.suffices == replaces:
            then = self.saving.describe(error_kind.noun)
        elif not replaces:
            price = f" at ${format_number(1 / self.lam)} for {error_kind.unit}" if self.lam else ""
            then = f"{error_kind.noun} and money together{price}, the new policy is worse: the policy stays"
            if self.improvement > MIN_IMPROVEMENT:
                then = "on queries left out of tuning, such a policy is worse: the policy stays"
            elif self.improvement >= 0:
                gained = math.floor(1000 * self.improvement) / 10  # rounded down, so that it stays below the least
                least = f"and {100 * MIN_IMPROVEMENT:.1f} replace a policy"
                then = f"that is worth {gained:.1f} points of {error_kind.noun}{price}, {least}: the policy stays"
            if self.limit:
                then = f"the policy in service exceeds its limit by no more than chance explains, and {then}"
        elif self.exceeds:
            then = "the policy in service exceeds the limit itself by more than chance explains"
        elif self.held_out is not None and not broken:
            better = "better" if self.held_out.gain.mean > self.held_out.gain.se else "no worse"
            then = f"on queries left out of tuning, such a policy is {better}, {error_kind.noun} and money together"
        effect = "; ".join(filter(None, (self.effect, then)))
        head = "if tuned again on these and the carried queries (so slightly flattered)"
        return (f"{head}: {effect}",) if effect else ()

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        held_out = self.held_out and self.held_out.to_json()
        return dataclasses.asdict(self) | {"against": list(self.against), "held_out": held_out}


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


def retuning_terms(policy: AbstractPolicy, log: Log) -> RetuningTerms:
    """Return the terms on which policies tuned again on a log are compared with a policy.

    λ is that of the target, if the target has one, and else that of the policy.
    """
    tuning = recorded_tuning(policy).restrict_to(log.models)
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


def held_out_gain(policy: AbstractPolicy, log: Log, seed: int = 0) -> RetuningGain | None:
    """Estimate the gain of retuning by five-fold cross-validation, at the policy's λ; None if it cannot be estimated.

    The policy in service answers each fold, and so does a policy tuned on the other folds with the same search. Answers
    cost their model's mean cost, and abstentions their price. The queries are the fresh and the carried ones, so that
    a bad week has no more than its share; at most 5,000 are drawn at random. The policy in service was tuned on the
    carried queries, so its loss there is raised by its optimism. Models that give the same answer get the mean of its
    outcomes (`average_equal_answers`).

    Args:
        policy: the policy in service.
        log: the fresh log.
        seed: seed of the folds.

    `why_untested` lists the reasons why the gain cannot be estimated.
    """
    tuning, lam, *_ = retuning_terms(policy, log)
    if lam is None or tuning.spec.max_seconds is not None:
        return None
    log = with_carried_queries(policy, log.select(tuning.models))
    complete = np.flatnonzero(log.complete)
    if len(complete) < MIN_QUERIES_FOR_GAIN:
        return None
    log = log.take(np.random.default_rng(seed).permutation(complete)[:ENOUGH_QUERIES])
    outcomes = average_equal_answers(corrected_log(log))
    retuned_loss, _ = _cross_fitted_losses(policy, log, outcomes, tuning.spec, lam)
    replayed, carried = replay_queries(policy, outcomes), carried_mask(log)
    terms = LossTerms(replayed.wrong, replayed.cost_at_means, replayed.abstained)
    loss = np.asarray(terms.loss(lam, tuning.spec.abstain_price), float)
    n_carried = int(carried.sum())
    if n_carried >= MIN_QUERIES_FOR_GAIN:
        tuned_on = max(recorded_count(policy.provenance, "complete_queries", n_carried), n_carried)
        losses = _cross_fitted_losses(policy, log.take(carried), outcomes.take(carried), tuning.spec, lam)
        loss = loss + np.where(carried, _optimism(*losses) * n_carried / tuned_on, 0.0)
    gains = loss - retuned_loss
    gain = Gain.of(gains, gains).at()
    return RetuningGain(float(loss.mean()), gain, float(lam), log.n_queries)


def _cross_fitted_losses(
    policy: AbstractPolicy, log: Log, outcomes: Log, spec: Spec, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """Tune a policy again without each fold of a log, and return (held-out, mean in-sample) losses, (n,) each.

    Args:
        policy: the policy whose kind of cascade is tuned.
        log: the log to tune on.
        outcomes: the same log, with the outcomes that losses are computed from.
        spec: options of the tuning.
        lam: the λ of both.
    """
    fold, n = deal_folds(log.queries, log.complete), log.n_queries
    costs = np.broadcast_to(outcomes.cost, outcomes.query_cost.shape)

    def losses(calibrators: Calibrator, policies: Policies) -> np.ndarray:
        terms = loss_terms_on_log(calibrators, policies, outcomes, outcomes.correct, costs)
        return np.asarray(terms.loss(lam, spec.abstain_price), float)[0]

    by_fold = np.stack([losses(*tuned) for tuned in _tune_without_folds(fold, policy, log, spec, lam)])
    held_out = by_fold[fold, np.arange(n)]
    return held_out, (by_fold.sum(0) - held_out) / (FOLDS - 1)


def _tune_without_folds(
    fold: np.ndarray, policy: AbstractPolicy, log: Log, spec: Spec, lam: float
) -> list[tuple[Calibrator, Policies]]:
    """Tune a policy again without each fold of a log, on the same number of queries each time.

    The widest rung of the policy is tuned, at λ, as a frontier of one point. `fold` (n,) is the fold of each query.
    """
    search = make_search(spec)
    rest = [np.flatnonzero(fold != number) for number in range(FOLDS)]
    model = search.fit(log)
    widest = max(policy.rungs, key=lambda rung: (bool(rung.agreements), len(rung.models)))
    zero = np.zeros(1, model.cost.dtype)
    policies = policies_from_rules([model.models], [widest])
    point = Points(zero + lam, np.zeros(1, int), LossTerms(zero, zero, zero), policies)
    frontier = make_frontier(model, point, spec)
    require_answers(frontier.policies, log)
    tune_draw = search.draw_tuner(frontier, log, np.array([0]))
    n = min(map(len, rest))
    return map_in_threads(lambda rows: tune_draw(rows[:n]), rest, n=log.n_queries)


def _optimism(held_out: np.ndarray, in_sample: np.ndarray) -> float:
    """Estimate the optimism of a policy tuned on n queries, 0 at least: mean held-out loss minus in-sample loss.

    Args:
        held_out, in_sample: (n,) losses of policies tuned on four fifths of the queries. Optimism falls with the number
            of queries, and the result is scaled from four fifths to all.
    """
    return max(float((held_out - in_sample).mean()) * (1 - 1 / FOLDS), 0.0)


def why_untested(policy: AbstractPolicy, log: Log) -> tuple[str, bool]:
    """Return (reason why `held_out_gain` is None, in words; whether another log could change that)."""
    terms = retuning_terms(policy, log)
    if terms.lam is None:
        return terms.reason, terms.mendable
    if terms.tuning.spec.max_seconds is not None:
        return "the policy keeps to a limit on the seconds", False
    return f"fewer than {MIN_QUERIES_FOR_GAIN} queries have the answers of all models", True


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
    against = *biased, _broken_promise(policy, new_policy, log), untested
    return dataclasses.replace(compared, against=tuple(filter(None, against)), held_out=gain, lam=lam)


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
        share = 1 - new.spent.mean() / max(old.spent.mean(), np.finfo(float).tiny)
        saving = LimitSaving(float(share), becomes - was, most - was, se)
    words = target.describe(error_kind, rival) if is_nearer else ""
    exceeds = is_nearer and was - limit > Z_ONE_SIDED_95 * se
    return Replacement(improvement, limit=words, exceeds=exceeds, effect=f"{effect}, {where} {name}", saving=saving)


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
    where = f"on the {count(len(new), 'query')} that the policy in service carries"
    new_error = f"{where}, the new policy has {percent(new.mean())} {log.error_kind.noun}{promise}"
    return f"{new_error}; the policy in service has {percent(old.mean())} there"


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

    @property
    def alarm(self) -> bool:
        """Whether the exit status is 1."""
        return self.state in ("worse than expected", "something else has changed", "no fair sample")

    def name_better_model(self, policy: AbstractPolicy, log: Log, looks: float) -> PolicyDecision:
        """Name the single model of a log with less error than the policy for less money, by more than chance explains.

        The cheaper models and the looks share the level. Today's is advised too if it has no more error for no more
        money, as by `rcjax report`. An alarm, or a retuning that gains, keeps its advice.
        """
        today, noun = recorded_tuning(policy).spec.today, log.error_kind.noun
        subjects = [*log.models, *([] if today is None or isinstance(today, str) else [today])]
        asked = [{*policy.models, *list_models(subject)} for subject in subjects]
        known = [names <= {*log.models} and log.select([*names]).complete.any() for names in asked]
        compared = [compare_policy(policy, log, subject) for subject in compress(subjects, known)]
        cheaper = [beside.rivals[0] for beside in compared if beside.rivals[0].cost < beside.cost]
        sure = NormalDist().inv_cdf((1 - ALARM / max(len(cheaper), 1)) ** (1 / looks))
        better = [rival for rival in cheaper if rival.error_difference > sure * rival.se]
        advice, reasons = "", self.reasons
        for rival in (beside.rivals[0] for beside in compared if beside.is_dominated):
            if today is not None and rival.subject == name_today(today):
                advice = f"use {rival.subject}: it has no more {noun} on these queries, for no more money"
        if better:
            rival = max(better, key=lambda rival: rival.error_difference)
            gap = describe_gap(-rival.error_difference, rival.se, noun)
            reasons = (f"{rival.subject} has {gap} the policy on these queries, for less money", *reasons)
            advice = f"use {rival.subject}: it has less {noun} on these queries, for less money"
        if not advice or self.alarm or self.tune_again:
            advice = self.advice
        return dataclasses.replace(self, advice=advice, reasons=reasons)

    @property
    def headline(self) -> str:
        """State and sentence."""
        return f"{self.state}: {self.sentence}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the headline."""
        return dataclasses.asdict(self) | {"headline": self.headline}


_SURELY_LESS = 0.975  # one-sided p-value of a rise, above which a figure is significantly less than expected


_WOULD_LEARN = "a new policy would learn from what has changed"


def decide(evidence: DecisionGrounds, replacement: Replacement | None) -> PolicyDecision:
    """Decide on a policy.

    Args:
        evidence: figures and findings of the policy on a log.
        replacement: gain of a retuned policy; None if that was not tested.
    """
    figures, findings = evidence.figures.in_order, evidence.findings
    biased = [finding.advice for finding in evidence.sample if finding.verdict == "bad"]
    verdicts = [finding.verdict for finding in findings]
    sentence = evidence.describe()
    broken, tune_again, grounds = "bad" in verdicts, False, ()
    if replacement is not None:
        tune_again = not biased and replacement.replaces(broken=broken)
        grounds = replacement.describe(evidence.error_kind, broken=broken)
    reasons = tuple(dict.fromkeys((*biased, *grounds)))  # a biased sample may be among both
    if biased:
        advice = "mend the log, as said above, then check again"
        return PolicyDecision("no fair sample", sentence, False, advice, reasons)
    if evidence.else_has_changed:
        advice = "look at labels, prompts and provider first, then check again"
        return PolicyDecision("something else has changed", sentence, False, advice, (_WOULD_LEARN,))
    if broken:
        pairs = zip(figures, findings, strict=True)
        rivals = [figure.rival for figure, finding in pairs if finding.verdict == "bad" and figure.rival is not None]
        instead = f"use {rivals[0]}" if rivals else "keep the policy"
        advice = "tune again" if tune_again else f"see what has changed, and {instead}: nothing better is shown yet"
        if replacement is None:
            advice = "see what has changed; whether to tune again, rcjax check says without --no-retuning"
        return PolicyDecision("worse than expected", sentence, tune_again, advice, reasons)
    state: State = "as expected"
    over_limit = replacement is not None and replacement.exceeds  # whose promise was too uncertain to be broken
    if "doubtful" in verdicts or over_limit:
        state, sentence = "doubtful", f"{sentence}; {evidence.describe_doubt()}"
    elif figures[0].gap < 0 and figures[0].n_expected and figures[0].p_value > _SURELY_LESS:
        state = "better than expected"
    if tune_again and over_limit:
        advice = "tune again, to keep the limit"
    elif tune_again:
        advice = "tune again, for the gain above" if grounds else "tune again: whether that gains cannot be tested"
    elif state == "doubtful" and not evidence.doubted.too_few_tuned_on:
        unlabelled = f"label the {count(evidence.unlabelled, 'query')} without a label"
        advice = f"{unlabelled if evidence.unlabelled else 'log and label more queries'}, then check all together"
    else:
        advice = "keep the policy; check again with fresh queries, such as next week's"
    return PolicyDecision(state, sentence, tune_again, advice, reasons)
