"""The table of all checks of `diagnose` and `check`, and the records that make them.

A check judges one figure. It is more than a significance test: with enough queries every model is rejected, and with
few none is. A figure is doubtful if it is large enough to matter and chance does not explain it, or if it is large and
there are too few queries to tell.

The findings of `diagnose` are the calibration of each model and the promise. The two primary figures of a policy are
its error and its money, each beside its promise or its limit. A promise is the figure expected by the tuning, whose
sampling error is that of the queries tuned on. The interval's centre is not used: it depends on the same labels. On 144
tunings of six logs, with 300 labels each, fresh errors were higher on average (`benchmarks.drift --promises`):

    than the promise                          by 0.54 points
    than the error on the queries tuned on    by 0.78 points
    than the centre of the interval           by 0.37 points
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from rcjax._base.figures import choose_unit, count, percent
from rcjax.logs.log import Log
from rcjax.logs.oddities import uneven, unsure
from rcjax.model.goodness_of_fit.bootstrap import SIGNIFICANCE_LEVEL
from rcjax.model.goodness_of_fit.reliability import SampleMean, excess_over_limit, holm_adjusted, rise_of_mean
from rcjax.policy.counted import ERRORS, Counted
from rcjax.policy.policy import AbstractPolicy
from rcjax.solving.frontier.points import CascadeSet
from rcjax.tuning.replaying.comparing import paired_error

#: Verdict of a check on its one figure, as a judge's is on one answer; a policy gets a `PolicyDecision`.
CheckVerdict = Literal["fine", "doubtful", "bad"]


class Limits(NamedTuple):
    """The limits of a figure, beyond which it is doubtful, or bad."""

    doubtful: float
    bad: float


@dataclasses.dataclass(frozen=True)
class CheckKind:
    """A kind of check."""

    name: str
    """Name in JSON, such as "calibration error"."""
    label: str
    """Name on screens; {noun} stands for the kind of error that is counted."""
    limits: Limits
    """Limits from which on a figure is doubtful and bad; lower figures are worse where `bad` is the smaller limit."""
    unit: Literal["share", "number"] = "share"
    """Unit of the figure; a "share" is printed as a percentage."""

    def check(
        self,
        subject: str,
        figure: float,
        advice: str,
        *,
        p_value: float | None = None,
        verdict: CheckVerdict = "fine",
        noun: str = ERRORS.noun,
    ) -> CheckResult:
        """Make a check of this kind.

        Args:
            subject, figure, advice, p_value, verdict: as the fields of `CheckResult`.
            noun: the kind of error that is counted.
        """
        kind = dataclasses.replace(self, label=self.label.format(noun=noun))
        return CheckResult(kind, subject, figure, p_value, verdict, advice)


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """The verdict on one figure."""

    kind: CheckKind
    """Kind of the check; its label has the kind of error that is counted."""
    subject: str
    """Model that the figure describes; empty for the log as a whole."""
    figure: float
    """Figure, in the unit of its kind."""
    p_value: float | None
    """p-value of the figure; None if it is not tested."""
    verdict: CheckVerdict
    """Verdict on the figure."""
    advice: str
    """Sentence with the explanation of the figure and an advice; empty if the verdict is fine."""

    @property
    def name(self) -> str:
        """Name of the kind."""
        return self.kind.name

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the check and of its kind as one object."""
        document = dataclasses.asdict(self)
        return document.pop("kind") | document | {"primary": self.name in PRIMARY}


def worst_verdict(checks: Iterable[CheckResult]) -> CheckVerdict:
    """Return the worst verdict of some checks."""
    verdicts = {check.verdict for check in checks}
    return "bad" if "bad" in verdicts else "doubtful" if "doubtful" in verdicts else "fine"


#: Level of the raw p-value below which a primary figure is doubtful, if it raises no alarm.
UNLIKELY = 0.1

#: Level of an alarm: the share of looks, or of years of looks, with a false alarm where nothing has changed.
ALARM = 0.05

#: All kinds of checks: the kinds of `diagnose`, of a tuning, then the kinds of `check`, of a policy. The table in the
#: documentation defines the figures, and is made from these limits.
KINDS: Mapping[str, CheckKind] = {
    kind.name: kind
    for kind in (
        CheckKind("queries", "queries", Limits(200, 50), "number"),
        CheckKind("accuracy", "change of own {noun}", Limits(0.03, 0.06)),
        CheckKind("calibration error", "calibration error", Limits(0.05, 0.10)),
        CheckKind("separation", "better is surer", Limits(0.65, 0.55)),
        CheckKind("certain answers", "confidence 1", Limits(0.5, 0.9)),
        CheckKind("predicted error", "{noun} off promise", Limits(0.01, 0.03)),
        CheckKind("predicted cost", "cost off promise", Limits(0.05, 0.15)),
        CheckKind("error", "rise of {noun}", Limits(0.02, 0.05)),
        CheckKind("difference", "{noun} over margin", Limits(0.0, 0.02)),
        CheckKind("cost", "rise of cost", Limits(0.05, 0.15)),
        CheckKind("budget", "cheapest over budget", Limits(0.05, 0.15)),
        CheckKind("confidences", "confidences", Limits(0.05, 0.10), "number"),
        CheckKind("asked", "how often asked", Limits(0.05, 0.10)),
        CheckKind("failed calls", "failed calls", Limits(0.02, 0.05)),
        CheckKind("tokens", "tokens per call", Limits(0.10, 0.25)),
        CheckKind("bill", "bill of a query", Limits(0.10, 0.25)),
        CheckKind("lacking answers", "lacking answers", Limits(0.05, 0.05)),
        CheckKind("labels", "labels by chance", Limits(0.05, 0.10)),
    )
}

#: Names of the checks that decide whether a policy is still right; the others explain.
PRIMARY = ("error", "difference", "cost", "budget")


def verdict_of(
    name: str, figure: float, p_value: float | None = None, *, by_chance: bool | None = None
) -> CheckVerdict:
    """Judge a figure by its limits; a large figure that chance explains is doubtful at worst.

    Args:
        name: name of the check, whose limits are in `KINDS[name]`.
        figure: the figure.
        p_value: p-value of the figure; None: chance does not explain it.
        by_chance: chance explains the figure, by a band in place of a p-value; None: the p-value decides.

    >>> verdict_of("calibration error", 0.12, 0.001), verdict_of("calibration error", 0.12, 0.3)
    ('bad', 'doubtful')
    """
    limits = KINDS[name].limits
    sign = -1 if limits.bad < limits.doubtful else 1
    if np.isnan(figure):
        return "doubtful"
    if by_chance is None:
        by_chance = p_value is not None and not p_value < SIGNIFICANCE_LEVEL
    if sign * figure > sign * limits.bad:
        return "doubtful" if by_chance else "bad"
    return "doubtful" if sign * figure > sign * limits.doubtful and not by_chance else "fine"


def adjust_p_values(checks: Iterable[CheckResult], looks: float = 1.0, alarm: float = ALARM) -> list[CheckResult]:
    """Judge checks together, with p-values adjusted for the number of looks and by Holm's method.

    A figure beyond its limit is bad if its adjusted p-value is below `alarm`. A primary figure beyond its limit is
    doubtful if its raw p-value is below `UNLIKELY`.

    Args:
        checks: checks with raw p-values.
        looks: number of separate looks in a year.
        alarm: level of all checks together.
    """
    checks = list(checks)
    raw = [math.nan if check.p_value is None else 1 - (1 - check.p_value) ** looks for check in checks]
    return [
        dataclasses.replace(
            check,
            p_value=None if math.isnan(p_value) else p_value,
            verdict=_verdict(check, p_value, alarm),
            advice=check.advice if _verdict(check, p_value, alarm) != "fine" else "",
        )
        for check, p_value in zip(checks, holm_adjusted(raw).tolist(), strict=True)
    ]


def _verdict(check: CheckResult, p_value: float, alarm: float) -> CheckVerdict:
    if not check.figure > check.kind.limits.doubtful:
        return "fine"
    if p_value < alarm:
        return "bad"
    unlikely = check.p_value is not None and check.p_value < UNLIKELY
    return "doubtful" if unlikely and check.name in PRIMARY else "fine"


def _check(
    name: str,
    subject: str,
    figure: float,
    advice: str,
    *,
    p_value: float | None = None,
    verdict: CheckVerdict | None = None,
    noun: str = ERRORS.noun,
) -> CheckResult:
    """Make a check; its advice is dropped if the verdict is fine."""
    verdict = verdict or verdict_of(name, figure, p_value)
    advice = "" if verdict == "fine" else advice
    return KINDS[name].check(subject, figure, advice, p_value=p_value, verdict=verdict, noun=noun)


def judge_size(n: int) -> Iterator[CheckResult]:
    """Check whether there are enough queries."""
    rough = f"{n} queries were answered by every model: every figure here is rough; label more, 300 if you can"
    yield _check("queries", "", float(n), rough)


_CHANCE = 0.01  # level of the tests of labels: the share of false alarms where labels are drawn at random


def judge_answers(log: Log, models: Collection[str]) -> CheckResult:
    """Check the share of the queries sent to all models that a model, or the reference, failed to answer.

    Calls that were not made do not count (`Log.failed`), as a log may hold the queries of several policies.

    >>> import rcjax
    >>> log = rcjax.sample_log(100, seed=0)
    >>> judge_answers(log, log.models).verdict
    'fine'
    """
    reference = "" if log.reference is None else log.reference.model
    lost = [calls for calls in log.failed if {*models} <= calls.asked and {*models, reference} & calls.failed]
    failed = sum(calls.queries for calls in lost)
    asked = failed + int(log.select([name for name in log.models if name in models]).complete.sum())
    kind, advice = KINDS["lacking answers"], ""
    verdict: CheckVerdict = "bad" if failed > kind.limits.bad * asked else "fine"
    if verdict == "bad":
        by_model = {name: sum(calls.queries for calls in lost if name in calls.failed) for name in (*models, reference)}
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
    difference between the shares of unsure queries among the labelled queries and among all. The p-value is raw.

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


@dataclasses.dataclass(frozen=True)
class ModelCalibration:
    """Figures of the calibration of one model on the log that is judged."""

    model: str
    accuracy: float
    """Share of right answers."""
    expected_accuracy: float
    """Share of right answers on the log that was fitted."""
    accuracy_p: float
    """p-value of `accuracy` − `expected_accuracy`."""
    calibration_error: float
    """Held-out expected calibration error of all labelled answers."""
    by_chance: float
    """Calibration error of a perfect calibration with as many answers."""
    p_value: float
    """p-value of the calibration error."""
    separation: float
    """Probability that the better of two answers has the higher confidence; NaN if no answer is better."""
    slope: float
    """Slope of the logistic regression."""
    slope_p: float
    """p-value of the slope."""
    certain: float
    """Share of answers with probability 1."""
    states: bool
    """Whether the model states its confidences."""

    def checks(self, counted: Counted = ERRORS) -> Iterator[CheckResult]:
        """Check accuracy, calibration error, the separation of better answers, and the share of certain answers."""
        yield self._accuracy_check(counted.noun)
        yield self._error_check()
        yield self._separation_check()
        yield self._certain_check()

    def _accuracy_check(self, noun: str) -> CheckResult:
        gap = self.accuracy - self.expected_accuracy
        advice = (
            f"the {noun} of {self.model} is {percent(1 - self.accuracy)} here, and "
            f"{percent(1 - self.expected_accuracy)} on the queries fitted to: this log is "
            f"{'harder' if gap < 0 else 'easier'}; tune on queries like those to come"
        )
        return _check("accuracy", self.model, abs(gap), advice, p_value=self.accuracy_p, noun=noun)

    def _error_check(self) -> CheckResult:
        error = self.calibration_error
        chance = percent(self.by_chance)
        if self.p_value >= SIGNIFICANCE_LEVEL:
            why = (
                f"but so few queries give {chance} to a perfect calibration: label more before you trust its confidence"
            )
        else:
            why = f"more than the {chance} that chance explains: label more queries, or drop the model"
        advice = f"the calibration error of {self.model} is {percent(error)}, {why}"
        return _check("calibration error", self.model, error, advice, p_value=self.p_value)

    def _separation_check(self) -> CheckResult:
        name, figure = self.model, self.separation
        by_chance = not self.slope_p < SIGNIFICANCE_LEVEL
        verdict = limit = verdict_of("separation", figure)
        if self.slope < 0 or by_chance:
            verdict = "doubtful" if self.slope >= 0 and limit == "fine" else "bad"
        if np.isnan(figure):
            advice = (
                f"no answer of {name} is better than another here: its confidence cannot be judged; label more queries"
            )
        elif self.slope < 0 and not by_chance:
            advice = f"the surer {name} is, the worse it answers: are its log-probabilities and labels not mixed up?"
        else:
            hint = "deferring by its confidence gains little; get it another signal, or leave it out"
            if limit == "fine":
                hint = "but chance alone can make that with so few queries; label more before you trust its confidence"
            share = f"in {percent(figure, 0)} of cases (by chance 50 %)"
            advice = f"the better of two answers of {name} has the higher confidence {share}: {hint}"
        return _check("separation", name, figure, advice, p_value=self.slope_p, verdict=verdict)

    def _certain_check(self) -> CheckResult:
        remedy = "use another signal, such as votes" if self.states else "log more digits, or use another signal"
        advice = (
            f"{percent(self.certain, 0)} of the answers of {self.model} are given as certain (probability 1), and no "
            f"threshold can part those: {remedy}"
        )
        return _check("certain answers", self.model, self.certain, advice)


class _Gap(NamedTuple):
    """The observed figure minus the promised one, over sixteen λ."""

    figure: float  # mean absolute gap; for costs, as a share of the promised cost
    direction: str  # "higher" or "lower", by the mean gap
    by_chance: bool  # at most a quarter of the gaps lie outside their bands


@dataclasses.dataclass(frozen=True)
class Promise:
    """Promised and observed figures of a search at L values of λ; numpy arrays (L,)."""

    search: CascadeSet | Literal["labels", "objective"]
    """Search that found the policies, as `Frontier.search`."""
    lam: np.ndarray
    predicted_error: np.ndarray
    predicted_cost: np.ndarray
    error: np.ndarray
    cost: np.ndarray
    error_band: np.ndarray
    """Half-width of the 90 % band of `error` − `predicted_error`."""
    cost_band: np.ndarray
    """Half-width of the 90 % band of `cost` − `predicted_cost`."""

    def checks(self, n: int, counted: Counted = ERRORS) -> Iterator[CheckResult]:
        """Check whether policies err and cost as was promised when they were tuned.

        Args:
            n: number of queries that the figures were observed on.
            counted: kind of error that is counted.
        """
        for name, noun in (("error", counted.noun), ("cost", "cost")):
            gap = self._gap(name)
            off = f"{100 * gap.figure:.1f} points" if name == "error" else percent(gap.figure)
            why = "go by what rcjax evaluate shows on fresh queries, and tune on queries like those to come"
            if gap.by_chance:
                why = f"chance alone can make that with {n:,} queries; label more before you rely on the promise"
            finding = f"on queries not seen, the {noun} of policies tuned in this way is {off} {gap.direction}"
            advice = f"{finding} than promised, mean over the curve: {why}"
            verdict = verdict_of(f"predicted {name}", gap.figure, by_chance=gap.by_chance)
            yield _check(f"predicted {name}", "", gap.figure, advice, verdict=verdict, noun=counted.noun)

    def describe(self) -> str:
        """Describe in words how far error and cost are from the promise.

        >>> figures = {"predicted_error": [0.2], "predicted_cost": [1.0], "error": [0.3], "cost": [0.9]}
        >>> Promise("labels", [1.0], **figures, error_band=[0.1], cost_band=[0.1]).describe()
        '10.0 points off what was promised, mostly higher, and the cost 10.0 %, mostly lower'
        """
        error, cost = (self._gap(name) for name in ("error", "cost"))
        points = f"{100 * error.figure:.1f} points off what was promised, mostly {error.direction}"
        return f"{points}, and the cost {percent(cost.figure)}, mostly {cost.direction}"

    def _gap(self, name: str) -> _Gap:
        observed, promised, band = (np.asarray(getattr(self, of)) for of in (name, f"predicted_{name}", f"{name}_band"))
        gap = observed - promised
        outside = np.abs(gap) > band
        # If all costs are 0, the gap is 0 on any scale.
        scale = (float(promised.mean()) or 1.0) if name == "cost" else 1.0
        figure = float(np.abs(gap).mean()) / scale
        return _Gap(figure, "higher" if gap.mean() > 0 else "lower", bool(outside.mean() <= 0.25))


#: A promise has the sampling error of 85 % of the queries: choosing on the same labels adds variance. The root mean
#: squared error is 1.85 points, and 1.70 by sampling alone (`benchmarks.drift --promises`).
_CHOSEN = 0.85


@dataclasses.dataclass(frozen=True)
class PrimaryFigure:
    """A primary figure: the mean over a log's queries, compared with a promise or a limit."""

    observed: float
    """Mean over the queries of the log."""
    expected: float
    """Promise, averaged with the queries of earlier weeks that joined it; or the limit."""
    se: float
    """Standard error of `observed` − `expected`."""
    p_value: float
    """One-sided p-value of the rise, at one look."""
    n: int
    """Number of queries behind `observed`."""
    before: int
    """Number of queries behind `expected`; 0 for a limit."""
    interval: tuple[float, float] | None = None
    """Interval that the policy records for its promise; None without one."""
    rival: str | None = None
    """Name of the rival that the figure is a difference from, on the same queries; None if it is no difference."""

    @property
    def gap(self) -> float:
        """Observed minus expected figure."""
        return self.observed - self.expected

    @property
    def rise(self) -> float:
        """Observed minus expected figure, as a share of the expected figure."""
        return relative(self.observed, self.expected)

    @property
    def tuned_on_is_the_limit(self) -> bool:
        """Whether the queries tuned on cause most of the standard error, and the queries of the log less."""
        return 0 < self.before < 0.8 * self.n

    @property
    def falls(self) -> bool:
        """Whether the figure is significantly lower than expected."""
        return self.p_value > 0.975

    def error_check(self, counted: Counted = ERRORS) -> CheckResult:
        """Return the check of an error; of a difference from a rival, the check of its margin."""
        if self.rival is not None:
            finding = f"the policy has {100 * self.observed:.1f} points more {counted.noun} than {self.rival}"
            advice = f"{finding}, where {100 * self.expected:.3g} were to be the most"
            return KINDS["difference"].check("", self.gap, advice, p_value=self.p_value, noun=counted.noun)
        promised = percent(self.expected)
        if self.interval is not None:
            promised += f" ({' to '.join(percent(end) for end in self.interval)})"
        advice = f"the policy {counted.does(percent(self.observed))}, where {promised} was expected"
        return KINDS["error"].check("", self.gap, advice, p_value=self.p_value, noun=counted.noun)

    def money_check(self) -> CheckResult:
        """Return the check of a bill; beside a budget (`before` is 0), that of the cheapest rung of a ladder."""
        name, subject, than = "cost", "the policy", "expected"
        if not self.before:
            name, subject, than = "budget", "even the cheapest rung", "in the budget"
        money = choose_unit([self.expected, self.observed])
        advice = (
            f"{subject} costs {money.full(self.observed)}, {percent(self.rise)} more than the "
            f"${money.show(self.expected)} {than}: look at prices, at the length of questions and answers, and at how "
            "often each model is asked"
        )
        return KINDS[name].check("", self.rise, advice, p_value=self.p_value)


def relative(observed: float, expected: float) -> float:
    """Return the observed figure minus the expected one, as a share of the expected one."""
    if expected > 0:
        return observed / expected - 1
    return float(np.inf) if observed > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class Baseline:
    """The baseline of a primary figure: a promise, with its sampling error, or a limit, which has none."""

    promise: SampleMean | None
    """Promised mean; None for a limit."""
    limit: float | None = None
    """Limit; None for a promise."""
    interval: tuple[float, float] | None = None
    """Interval that the policy records for its promise; None without one."""
    rival: str | None = None
    """Name of the rival that the figure is a difference from; None if it is no difference."""

    @classmethod
    def promised(cls, policy: AbstractPolicy, name: str, carried: np.ndarray, trained_on: int) -> Baseline:
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
        promise = SampleMean.estimate(carried, None if expected is None else float(expected), queries)
        return cls(promise, interval=interval)

    def compare(self, values: np.ndarray, earlier: np.ndarray) -> PrimaryFigure:
        """Compare the queries of a log with the baseline.

        Args:
            values: (n,) figure of each query of the log.
            earlier: (m,) figure of each query of earlier weeks without an alarm, which join a promise.
        """
        now = SampleMean.estimate(values)
        if self.promise is None:
            limit = float(self.limit or 0.0)
            se, p_value = excess_over_limit(now, limit)
            if self.rival is not None:  # as in comparisons, unless the two are the same
                se = float(paired_error(values)) if values.any() else 0.0
            return PrimaryFigure(now.mean, limit, se, p_value, now.n, 0, rival=self.rival)
        before = self.promise.pool(SampleMean.estimate(earlier)) if len(earlier) else self.promise
        interval = None if len(earlier) else self.interval
        return PrimaryFigure(now.mean, before.mean, *rise_of_mean(before, now), now.n, before.n, interval)
