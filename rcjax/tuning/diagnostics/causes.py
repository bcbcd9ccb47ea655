"""The changes of each model, the cause that a log shows for a deviation, and the single model that is better."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import compress
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from rcjax._base.figures import format_number, percent
from rcjax.logs.errors import LogError, join_names
from rcjax.logs.log import Log
from rcjax.logs.oddities import find_inverted
from rcjax.logs.prices import price_factors
from rcjax.model.calibration import expected_calibration_error
from rcjax.model.goodness_of_fit.two_samples import (
    Change,
    SampleMean,
    calibration_change,
    distribution_change,
    rise_of_mean,
)
from rcjax.policy.comparison import Comparison, describe_gap
from rcjax.policy.error_kind import ErrorKind
from rcjax.policy.policy import AbstractPolicy
from rcjax.policy.spec import recorded_tuning
from rcjax.tuning.diagnostics.decision import ELSE_HAS_CHANGED, WOULD_LEARN, PolicyDecision
from rcjax.tuning.diagnostics.findings import ALARM, FINDING_KINDS, Finding, confidence_finding, look_p_value
from rcjax.tuning.diagnostics.weeks import MAX_CONFIDENCES, Weeks
from rcjax.tuning.replaying.comparing import compare_policy, list_models, name_today
from rcjax.tuning.replaying.walk import calibrated_confidence

_SAME = 5e-4  # difference of errors that is printed as 0.0 points
_DEARER, _ALIKE = 1.1, 1.25  # least factor of all costs, and most ratio of two factors, for a rise of all costs alike


@dataclasses.dataclass(frozen=True)
class ModelChange:
    """Figures of one model on a fresh log, and on the queries tuned on."""

    model: str
    """Name of the model."""
    answers: int
    """Number of labelled answers of the fresh log."""
    accuracy: float
    """Share of right answers."""
    accuracy_tuned: float
    """Share of right answers on the queries tuned on."""
    confidence: float
    """Mean calibrated confidence."""
    calibration_error: float
    """Expected calibration error."""
    calibration_error_tuned: float
    """Expected calibration error on the queries tuned on."""
    calibration_p: float
    """p-value of the change of calibration."""
    distance: float
    """Distance of the raw confidences from the raw confidences on the queries tuned on: √CvM."""
    distance_p: float
    """p-value of the distance."""
    median: float
    """Median of the raw confidences, as a probability."""
    median_tuned: float
    """Median of the raw confidences on the queries tuned on."""
    error_p: float
    """One-sided p-value of the rise of its error, at one look."""

    def findings(self, error_kind: ErrorKind) -> Iterator[Finding]:
        """Yield the findings on a change of the calibration and of the distribution of confidences."""
        name = self.model
        accuracy, before, confidence = map(percent, (self.accuracy, self.accuracy_tuned, self.confidence))
        means = f"its {error_kind.success} is {accuracy} ({before} when tuned), where its confidence says {confidence}"
        off = f"{percent(self.calibration_error)}, {percent(self.calibration_error_tuned)} on queries tuned on"
        worse = self.calibration_error > self.calibration_error_tuned  # a better calibration is no alarm
        yield FINDING_KINDS["calibration error"].finding(
            name,
            self.calibration_error,
            f"the calibration error of {name} is {off}: {means}",
            p_value=self.calibration_p if worse else 1.0,
        )
        yield confidence_finding(name, Change(self.distance, self.distance_p), (self.median_tuned, self.median))

    @property
    def rise(self) -> float:
        """Rise of its error."""
        return self.accuracy_tuned - self.accuracy

    def describe(self, noun: str) -> str:
        """Describe the change of the model in words; `noun` is the kind of error."""
        errors = f"{100 * (1 - self.accuracy_tuned):.0f} → {100 * (1 - self.accuracy):.0f} %"
        same = abs(self.accuracy - self.accuracy_tuned) < FINDING_KINDS["error"].limits.doubtful
        return "its raw confidences" if same else f"{noun} {errors}"


def compare_models(
    policy: AbstractPolicy, old: Log, new: Log, unalarmed: np.ndarray, weeks: Weeks
) -> tuple[ModelChange, ...]:
    """Compare each model in the window with the carried queries and the weeks without an alarm.

    Args:
        policy: the policy.
        old: the queries that the policy carries.
        new: the fresh log.
        unalarmed: (n,) bool: the fresh queries of weeks without an alarm, which join the old ones.
        weeks: weeks of the fresh log.
    """
    before, now = _take_answers(policy, old), _take_answers(policy, new.take(weeks.in_window))
    if unalarmed.any():
        parts = before, _take_answers(policy, new.take(unalarmed))
        before = _ModelAnswers(*(np.concatenate(columns, -1) for columns in zip(*parts, strict=True)))
    place = weeks.name_window(new.source)
    return tuple(_compare_model(name, before, now, j, place) for j, name in enumerate(policy.models))


class _ModelAnswers(NamedTuple):
    """The answers of the k models of a policy to the n queries of a log."""

    logprob: np.ndarray  # (k, n) in single precision, as policies carry them
    confidence: np.ndarray  # (k, n) calibrated confidence
    correct: np.ndarray  # (k, n) whether the answer is right, or its score
    labelled: np.ndarray  # (k, n) bool: the answer has a label
    answered: np.ndarray  # (k, n) bool: there is an answer


def _take_answers(policy: AbstractPolicy, log: Log) -> _ModelAnswers:
    """Take the answers of a log with the models of a policy, in the order of the log."""
    logprob = np.asarray(log.logprob).T
    carried = logprob.astype(np.float32)
    calibrations = [policy.calibrations[name] for name in log.models]
    confidence = calibrated_confidence(calibrations, carried.astype(logprob.dtype))
    columns = np.asarray(log.correct, float).T, log.labelled.T, np.asarray(log.answered).T
    return _ModelAnswers(carried, confidence, *columns)


def _compare_model(name: str, old: _ModelAnswers, new: _ModelAnswers, j: int, source: str) -> ModelChange:
    labelled = [(side.confidence[j, side.labelled[j]], side.correct[j, side.labelled[j]]) for side in (old, new)]
    if min(len(right) for _, right in labelled) < 2:
        raise LogError(f"{source}: fewer than two answers of {name} with a label: log more")
    (phi_before, right_before), (phi, right) = labelled
    rng = np.random.default_rng(0)
    raw_before, raw = (_draw_confidences(rng, side.logprob[j, side.answered[j]]) for side in (old, new))
    distance = distribution_change(raw_before, raw)
    return ModelChange(
        model=name,
        answers=len(right),
        accuracy=float(right.mean()),
        accuracy_tuned=float(right_before.mean()),
        confidence=float(phi.mean()),
        calibration_error=expected_calibration_error(phi, right),
        calibration_error_tuned=expected_calibration_error(phi_before, right_before),
        calibration_p=calibration_change(*labelled).p_value,
        distance=distance.figure,
        distance_p=distance.p_value,
        median=math.exp(np.median(raw)),
        median_tuned=math.exp(np.median(raw_before)),
        error_p=rise_of_mean(SampleMean.estimate(1 - right_before), SampleMean.estimate(1 - right))[1],
    )


def _draw_confidences(rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
    return values if len(values) <= MAX_CONFIDENCES else rng.choice(values, MAX_CONFIDENCES, replace=False)


def changed_models(
    policy: AbstractPolicy,
    models: Sequence[ModelChange],
    moved: Collection[str],
    followed: Mapping[str, float] | None,
    *,
    error_alarm: bool,
    looks: float,
) -> list[ModelChange]:
    """Return the models whose change may explain the primary figures, of those with moved confidences or calibration.

    A model counts if its error has risen by more than chance explains, and by more than twice the others' on average:
    else the queries are harder. After an alarm of an error, a model also counts if its error has not fallen. Only
    models of the rungs in use count, and today's, unless all models of the policy have moved.

    Args:
        policy: the policy.
        models: all models of the policy.
        moved: names of those whose calibration or confidences have changed by more than chance explains.
        followed: `PolicyCheck.followed`.
        error_alarm: whether an error raised an alarm.
        looks: number of separate looks in a year.
    """
    total = sum(row.rise for row in models)

    def is_worse(row: ModelChange) -> bool:
        if look_p_value(row.error_p, looks) >= ALARM:
            return error_alarm and row.rise >= 0
        return 2 * (total - row.rise) < row.rise * max(len(models) - 1, 1)

    worse = [row for row in models if row.model in moved and is_worse(row)]
    harder = sum(row.rise > 0 and look_p_value(row.error_p, looks) < ALARM for row in models) == len(policy.models)
    worse = [*models] if harder else worse
    if len(worse) == len(policy.models):
        return worse
    today, rungs = recorded_tuning(policy).spec.today, policy.adjacent_rungs
    if followed is not None:
        rungs = policy.rungs[int(followed["low"]) : math.ceil(followed["high"]) + 1]
    asked = {*(name for rung in rungs for name in rung.models), *(() if today is None else list_models(today))}
    return [row for row in worse if row.model in asked]


class Cause(NamedTuple):
    """A change that a log shows, with the first remedy."""

    clause: str
    """The change, in words."""
    advice: str
    """First remedy, in words."""
    models: frozenset[str] = frozenset()
    """Names of the models that have changed; others may take their place."""
    in_labels: bool = False
    """Whether the labels look wrong, so that no figure counts."""
    in_costs: bool = False
    """Whether all models cost more alike, so that only the saving counts."""


def changed_prices(policy: AbstractPolicy, log: Log) -> dict[str, float]:
    """Return the factor of each price that differs from that of the tuning, by model of the policy."""
    return price_factors(recorded_tuning(policy).prices or {}, log.prices or {}, policy.models)


def find_cause(
    policy: AbstractPolicy, log: Log, changed: Sequence[tuple[str, str]], *, is_dearer: bool = True
) -> Cause | None:
    """Return the first cause of these: labels, a model, prices, costs of all models; None without any.

    Changed prices are told beside a changed model.

    Args:
        policy: the policy.
        log: the fresh log.
        changed: names of the models whose accuracy or confidences have changed, with the change in words.
        is_dearer: whether the cost has risen by more than chance explains; else the costs are no cause.
    """
    inverted = [name for name, _ in find_inverted(log)]
    if 2 * len(inverted) > len(log.models):
        clause = f"check the labels first: the surer {join_names(inverted)} are, the more often they are wrong"
        return Cause(clause, "check the labels, then check again", in_labels=True)
    prices = changed_prices(policy, log)
    by_price = join_names(f"{name} (times {format_number(factor)})" for name, factor in prices.items())
    if len({*map(format_number, prices.values())}) == 1 < len(prices) == len(policy.models):
        by_price = f"all times {format_number(next(iter(prices.values())))}"
    repriced = [f"prices have changed: {by_price}"] * bool(prices)
    if 0 < len(changed) < max(len(policy.models), 2):
        models = (f"model {name} has changed ({change})" for name, change in changed)
        return Cause("; ".join([*models, *repriced]), "", frozenset(name for name, _ in changed))
    if changed:
        clause = "; ".join(["all models have changed", *repriced])
        return Cause(clause, "see whether questions, prompts or labels have changed")
    if repriced:
        return Cause(repriced[0], "")
    if not is_dearer:
        return None
    known = [(log.cost[log.models.index(name)], policy.cost[name]) for name in policy.models]
    factors = [float(now / before) for now, before in known if before]
    if len(factors) > 1 and min(factors) >= _DEARER and max(factors) <= _ALIKE * min(factors):
        often = f"all models cost {math.exp(np.log(factors).mean()):.2g} times as much"
        return Cause(f"{often}: check prices and lengths first", "check prices and lengths first", in_costs=True)
    return None


def explain_decision(
    decision: PolicyDecision, cause: Cause | None, policy: AbstractPolicy, log: Log, looks: float
) -> PolicyDecision:
    """Open a decision with its cause, and name the single model with less error for less money, by more than chance.

    The cheaper models and the looks share the level. A model beyond the budget is not named. Today's is advised too if
    it has no more error for no more money, as by `rcjax report`. An alarm, or a retuning that gains, keeps its advice.

    Args:
        decision: the decision by the figures.
        cause: the cause of a deviation; None without one.
        policy: the policy.
        log: the fresh log.
        looks: number of separate looks in a year.
    """
    if cause is not None and cause.in_labels and decision.state != "no fair sample":
        return dataclasses.replace(decision, cause=cause.clause, advice=cause.advice)
    spec, noun = recorded_tuning(policy).spec, log.error_kind.noun
    today, most = spec.today, policy.budget or spec.budget or math.inf
    subjects = [*log.models, *([] if today is None or isinstance(today, str) else [today])]
    asked = [{*policy.models, *list_models(subject)} for subject in subjects]
    known = [names <= {*log.models} and log.select([*names]).complete.any() for names in asked]
    compared = [compare_policy(policy, log, subject) for subject in compress(subjects, known)]
    todays = [beside for beside in compared if today is not None and beside.rivals[0].subject == name_today(today)]
    usable = [beside for beside in compared if beside.rivals[0].cost <= most]
    cheaper = [beside.rivals[0] for beside in usable if beside.rivals[0].cost < beside.cost]
    sure = NormalDist().inv_cdf((1 - ALARM / max(len(cheaper), 1)) ** (1 / looks))
    better = [rival for rival in cheaper if rival.error_difference > sure * rival.se]
    advice, reasons = "", decision.reasons
    if any(beside.is_dominated for beside in todays if beside in usable):
        advice = f"use {todays[0].rivals[0].subject}: it has no more {noun} on these queries, for no more money"
    if better:
        rival = max(better, key=lambda rival: rival.error_difference)
        gap = describe_gap(-rival.error_difference, rival.se, noun)
        reasons = (f"{rival.subject} has {gap} the policy on these queries, for less money", *reasons)
        advice = f"use {rival.subject}: it has less {noun} on these queries, for less money"
    if not advice or decision.alarm or decision.tune_again:
        advice = decision.advice
    if cause is None or decision.state == "no fair sample":
        return dataclasses.replace(decision, advice=advice, reasons=reasons)
    clause, then = cause.clause, "tune again" if decision.tune_again else "check again"
    if cause.models:
        advice = f"{_replace_changed(cause, usable, todays)}; {'or' if decision.tune_again else 'then'} {then}"
    elif cause.advice:
        advice = f"{cause.advice}, then {then}{': nothing better is shown yet' * (not decision.tune_again)}"
    if cause.in_costs and todays and (saved := 1 - todays[0].cost / todays[0].rivals[0].cost) > 0:
        clause = f"{clause}; the policy still saves {percent(saved, 0)}"
    if spec.match is not None and today is not None and cause.models & {*list_models(today)}:
        decision = dataclasses.replace(decision, state=ELSE_HAS_CHANGED, tune_again=False, gain="", title="")
        advice, reasons = f"{_replace_changed(cause, usable, todays)}; then check again", (WOULD_LEARN,)
        clause = f"{clause}; beside today's, which has changed, a margin tells little"
    return dataclasses.replace(decision, cause=clause, advice=advice, reasons=reasons)


def _replace_changed(cause: Cause, compared: Sequence[Comparison], todays: Sequence[Comparison]) -> str:
    """Name the single model to use until changed models are mended, or say to keep the policy.

    It is the model with the fewest errors; of those that err as often as the policy, one that costs less.
    """
    most = max((side for beside in todays for side in (beside.cost, beside.rivals[0].cost)), default=math.inf)
    rivals = [beside.rivals[0] for beside in compared]
    rivals = [rival for rival in rivals if rival.name not in cause.models and rival.cost <= most]
    cost = max((beside.cost for beside in compared), default=0.0)
    usable = [rival for rival in rivals if rival.error_difference > (-_SAME if rival.cost < cost else 0.0)]
    best = max(usable, key=lambda rival: rival.error_difference, default=None)
    instead = "keep the policy" if best is None else f"use {best.subject}"
    are = "is" if len(cause.models) == 1 else "are"
    return f"until {join_names(sorted(cause.models))} {are} mended, {instead}"
