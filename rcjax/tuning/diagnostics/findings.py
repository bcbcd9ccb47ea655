"""The findings of `diagnose` and of `check`: a finding is a figure with a verdict and advice.

A verdict is more than a significance test: with enough queries every model is rejected, and with few none is. A figure
is doubtful if it is large enough to matter and chance does not explain it, or if it is large and there are too few
queries to tell.

The findings of `diagnose` are the calibration of each model and the promise. The two primary figures of a policy are
its error and its money, each compared with a promise or a limit. A promise is the figure that the tuning expects, and
has the sampling error of the queries tuned on. The centre of the interval is no better a promise, as it depends on the
same labels. On 144 tunings of six logs, with 300 labels each, fresh errors were higher on average
(`benchmarks.drift --promises`):

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

from rcjax._base.figures import count, percent
from rcjax.logs.log import Log
from rcjax.logs.oddities import find_unsure, measure_unevenness
from rcjax.model.goodness_of_fit.bootstrap import SIGNIFICANCE_LEVEL
from rcjax.model.goodness_of_fit.reliability import SampleMean, excess_over_limit, holm_adjusted, rise_of_mean
from rcjax.policy.error_kind import ERRORS, ErrorKind
from rcjax.policy.policy import AbstractPolicy
from rcjax.policy.spec import CascadeSet, Spec
from rcjax.tuning.replaying.comparing import paired_error

#: Verdict on one figure; a policy gets a `PolicyDecision`.
FindingVerdict = Literal["fine", "doubtful", "bad"]


class Limits(NamedTuple):
    """The limits beyond which a figure is doubtful or bad."""

    doubtful: float
    bad: float


@dataclasses.dataclass(frozen=True)
class FindingKind:
    """A kind of finding."""

    name: str
    """Name in JSON, such as "calibration error"."""
    label: str
    """Name on screens; {noun} stands for the kind of error."""
    limits: Limits
    """Limits from which on a figure is doubtful and bad; lower figures are worse where `bad` is the smaller limit."""
    unit: Literal["share", "points", "number"] = "share"
    """Unit of the figure; a "share" is printed as a percentage, a difference of shares as percentage "points"."""

    def finding(
        self,
        subject: str,
        figure: float,
        advice: str,
        *,
        p_value: float | None = None,
        verdict: FindingVerdict = "fine",
        noun: str = ERRORS.noun,
    ) -> Finding:
        """Make a finding of this kind.

        Args:
            subject, figure, advice, p_value, verdict: as the fields of `Finding`.
            noun: the kind of error.
        """
        kind = dataclasses.replace(self, label=self.label.format(noun=noun))
        return Finding(kind, subject, figure, p_value, verdict, advice)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A figure with its verdict, and advice if the verdict is not fine."""

    kind: FindingKind
    """Kind of the finding; its label names the kind of error."""
    subject: str
    """Model that the figure describes; empty for the log as a whole."""
    figure: float
    """Figure, in the unit of its kind."""
    p_value: float | None
    """p-value of the figure; None if it is not tested."""
    verdict: FindingVerdict
    """Verdict on the figure."""
    advice: str
    """Explanation of the figure with advice, in words; empty if the verdict is fine."""

    @property
    def name(self) -> str:
        """Name of the kind."""
        return self.kind.name

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the finding and of its kind as one object."""
        document = dataclasses.asdict(self)
        kind = document.pop("kind") | {"limits": self.kind.limits._asdict()}
        return kind | document | {"primary": self.name in PRIMARY}


def merge_findings(findings: Iterable[Finding], checked: Iterable[Finding]) -> list[Finding]:
    """Return findings; those of a check take the place of those of the same name and model."""
    return [*{(finding.name, finding.subject): finding for finding in (*findings, *checked)}.values()]


def worst_verdict(findings: Iterable[Finding]) -> FindingVerdict:
    """Return the worst verdict of some findings."""
    verdicts = {finding.verdict for finding in findings}
    return "bad" if "bad" in verdicts else "doubtful" if "doubtful" in verdicts else "fine"


#: Level of the raw p-value below which a primary figure is doubtful, if it raises no alarm.
UNLIKELY = 0.1

#: Level of an alarm: the share of looks, or of years of looks, with a false alarm where nothing has changed.
ALARM = 0.05

#: All kinds of findings: first those of `diagnose`, then those of `check`. `docs/diagnosis.md` defines the figures.
FINDING_KINDS: Mapping[str, FindingKind] = {
    kind.name: kind
    for kind in (
        FindingKind("queries", "queries", Limits(200, 50), "number"),
        FindingKind("accuracy", "change of own {noun}", Limits(0.03, 0.06), "points"),
        FindingKind("calibration error", "calibration error", Limits(0.05, 0.10)),
        FindingKind("separation", "better is surer", Limits(0.65, 0.55)),
        FindingKind("certain answers", "confidence 1", Limits(0.5, 0.9)),
        FindingKind("predicted error", "{noun} off the expected", Limits(0.01, 0.03), "points"),
        FindingKind("predicted cost", "cost off the expected", Limits(0.05, 0.15)),
        FindingKind("error", "rise of {noun}", Limits(0.02, 0.05), "points"),
        FindingKind("difference", "{noun} above today's", Limits(0.0, 0.02), "points"),  # limits beyond the margin
        FindingKind("cost", "rise of cost", Limits(0.05, 0.15)),
        FindingKind("budget", "least bill over budget", Limits(0.05, 0.15)),
        FindingKind("confidences", "confidences", Limits(0.05, 0.10), "number"),
        FindingKind("asked", "how often asked", Limits(0.05, 0.10)),
        FindingKind("failed calls", "failed calls", Limits(0.02, 0.05)),
        FindingKind("tokens", "tokens per call", Limits(0.10, 0.25)),
        FindingKind("bill", "bill of a query", Limits(0.10, 0.25)),
        FindingKind("lacking answers", "lacking answers", Limits(0.05, 0.05)),
        FindingKind("labels", "labels by chance", Limits(0.05, 0.10)),
    )
}

#: Names of the findings that decide whether a policy is still right; the other findings explain.
PRIMARY = ("error", "difference", "cost", "budget")


def verdict_of(name: str, figure: float, *, by_chance: bool = False) -> FindingVerdict:
    """Return the verdict on a figure by the limits of its kind; if chance explains it, it is doubtful at worst.

    >>> verdict_of("calibration error", 0.12), verdict_of("calibration error", 0.12, by_chance=True)
    ('bad', 'doubtful')
    """
    limits = FINDING_KINDS[name].limits
    sign = -1 if limits.bad < limits.doubtful else 1
    if np.isnan(figure):
        return "doubtful"
    if sign * figure > sign * limits.bad:
        return "doubtful" if by_chance else "bad"
    return "doubtful" if sign * figure > sign * limits.doubtful and not by_chance else "fine"


def assess_together(findings: Iterable[Finding], looks: float = 1.0, alarm: float = ALARM) -> list[Finding]:
    """Give findings their verdicts, by p-values adjusted for the number of looks and by Holm's method.

    A figure beyond its limit is bad if its adjusted p-value is below `alarm`. A primary figure beyond its limit is
    doubtful if its raw p-value is below `UNLIKELY`.

    Args:
        findings: findings with raw p-values.
        looks: number of separate looks in a year.
        alarm: level of all findings together.
    """
    findings = list(findings)
    raw = [math.nan if finding.p_value is None else 1 - (1 - finding.p_value) ** looks for finding in findings]
    assessed = []
    for finding, p_value in zip(findings, holm_adjusted(raw).tolist(), strict=True):
        verdict: FindingVerdict = "fine"
        if finding.figure > finding.kind.limits.doubtful:
            unlikely = finding.p_value is not None and finding.p_value < UNLIKELY
            if p_value < alarm:
                verdict = "bad"
            elif unlikely and finding.name in PRIMARY:
                verdict = "doubtful"
        advice = "" if verdict == "fine" else finding.advice
        adjusted = None if math.isnan(p_value) else p_value
        assessed.append(dataclasses.replace(finding, p_value=adjusted, verdict=verdict, advice=advice))
    return assessed


def _assess(
    name: str,
    subject: str,
    figure: float,
    advice: str,
    *,
    p_value: float | None = None,
    verdict: FindingVerdict | None = None,
    noun: str = ERRORS.noun,
) -> Finding:
    """Make a finding, by default with the verdict of its limits; a fine figure gets no advice."""
    by_chance = p_value is not None and not p_value < SIGNIFICANCE_LEVEL
    verdict = verdict or verdict_of(name, figure, by_chance=by_chance)
    advice = "" if verdict == "fine" else advice
    return FINDING_KINDS[name].finding(subject, figure, advice, p_value=p_value, verdict=verdict, noun=noun)


def assess_size(n: int) -> Finding:
    """Assess whether a log has enough queries."""
    rough = f"{n} queries were answered by every model: every figure here is rough; label more, 300 if you can"
    return _assess("queries", "", float(n), rough)


_LABELS_ALARM = 0.01  # level of the tests of labels: the share of false alarms where labels are drawn at random


def assess_missing_answers(log: Log, models: Collection[str]) -> Finding:
    """Assess the share of the queries sent to all models that a model, or the reference, failed to answer.

    Calls that were not made do not count (`Log.failed`), as a log may hold the queries of several policies.

    >>> import rcjax
    >>> log = rcjax.sample_log(100, seed=0)
    >>> assess_missing_answers(log, log.models).verdict
    'fine'
    """
    reference = "" if log.reference is None else log.reference.model
    failures = [calls for calls in log.failed if {*models} <= calls.asked and {*models, reference} & calls.failed]
    failed = sum(calls.queries for calls in failures)
    asked = failed + int(log.select([name for name in log.models if name in models]).complete.sum())
    kind, advice = FINDING_KINDS["lacking answers"], ""
    verdict: FindingVerdict = "bad" if failed > kind.limits.bad * asked else "fine"
    if verdict == "bad":
        by_model = {
            name: sum(calls.queries for calls in failures if name in calls.failed) for name in (*models, reference)
        }
        most = max(by_model, key=lambda name: by_model[name])
        advice = (
            f"an answer is missing for {failed:,} of {count(asked, 'query')}, most often one of {most}"
            f"{', the reference' * (most == reference)}: the answered queries may be the easier ones, and not a "
            "fair sample; look at why (the column error of a call log), and log more"
        )
    return kind.finding("", failed / max(asked, 1), advice, verdict=verdict)


def assess_label_sampling(log: Log, models: Sequence[str]) -> Iterator[Finding]:
    """Assess whether labels are drawn at random, and not more or less often where the cheapest model is unsure.

    Each set of partly labelled answers has a finding, on the queries that all models answered. Its figure is the share
    of unsure queries among the labelled queries minus the share among all queries. The p-value is raw.

    Args:
        log: the log.
        models: names of the models whose labels count, the cheapest first.
    """
    log = log.select(models)
    log = log.take(log.complete) if log.complete.any() else log
    sure = np.asarray(log.logprob, float)[:, 0]
    doubted = find_unsure(sure)
    label_sets = {labelled.tobytes(): (name, labelled) for name, labelled in zip(models, log.labelled.T, strict=True)}
    for name, labelled in label_sets.values():
        if labelled.all() or not labelled.any() or not doubted.any():
            continue
        gap, p_value = measure_unevenness(sure, labelled)
        low, high = (percent(float(labelled[part].mean())) for part in (doubted, ~doubted))
        advice = (
            f"{low} of the answers of {name} have a label where {models[0]} is less sure, {high} where it is surer: "
            "labels that are not drawn at random tell little of the other answers; draw others (rcjax label)"
        )
        yield FINDING_KINDS["labels"].finding(name, gap, advice, p_value=p_value)


def assess_sample(log: Log, models: Sequence[str]) -> list[Finding]:
    """Assess whether a log is a fair sample: few answers are missing, and labels are drawn at random.

    Args:
        log: the log.
        models: names of the models whose answers count, the cheapest first.
    """
    return [
        assess_missing_answers(log, models),
        *assess_together(assess_label_sampling(log, models), alarm=_LABELS_ALARM),
    ]


@dataclasses.dataclass(frozen=True)
class ModelCalibration:
    """Accuracy and calibration of one model on a log."""

    model: str
    """Name of the model."""
    accuracy: float
    """Share of right answers."""
    expected_accuracy: float
    """Share of right answers on the log that was fitted."""
    accuracy_p: float
    """p-value of `accuracy` − `expected_accuracy`."""
    calibration_error: float
    """Held-out expected calibration error of all labelled answers."""
    calibration_error_by_chance: float
    """Calibration error of perfectly calibrated confidences with as many answers."""
    calibration_p: float
    """p-value of the calibration error."""
    separation: float
    """Probability that the better of two answers has the higher confidence; NaN if no answer is better."""
    slope: float
    """Slope of the logistic regression of labels on confidences."""
    slope_p: float
    """p-value of the slope."""
    certain_share: float
    """Share of answers with probability 1."""
    states_confidence: bool
    """Whether the model states its confidences."""

    def findings(self, error_kind: ErrorKind = ERRORS) -> Iterator[Finding]:
        """Assess accuracy, calibration error, the separation of better answers, and the share of certain answers."""
        yield self._accuracy_finding(error_kind.noun)
        yield self._calibration_finding()
        yield self._separation_finding()
        yield self._certain_finding()

    def _accuracy_finding(self, noun: str) -> Finding:
        gap = self.accuracy - self.expected_accuracy
        advice = (
            f"the {noun} of {self.model} is {percent(1 - self.accuracy)} here, and "
            f"{percent(1 - self.expected_accuracy)} on the queries fitted to: this log is "
            f"{'harder' if gap < 0 else 'easier'}; tune on queries like those to come"
        )
        return _assess("accuracy", self.model, abs(gap), advice, p_value=self.accuracy_p, noun=noun)

    def _calibration_finding(self) -> Finding:
        chance = percent(self.calibration_error_by_chance)
        why = f"more than the {chance} that chance explains: label more queries, or drop the model"
        if self.calibration_p >= SIGNIFICANCE_LEVEL:
            why = (
                f"but so few queries give {chance} to a perfect calibration: label more before you trust its confidence"
            )
        advice = f"the calibration error of {self.model} is {percent(self.calibration_error)}, {why}"
        return _assess("calibration error", self.model, self.calibration_error, advice, p_value=self.calibration_p)

    def _separation_finding(self) -> Finding:
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
            share = f"in {percent(figure)} of cases (by chance 50 %)"
            advice = f"the better of two answers of {name} has the higher confidence {share}: {hint}"
        return _assess("separation", name, figure, advice, p_value=self.slope_p, verdict=verdict)

    def _certain_finding(self) -> Finding:
        remedy = "use another signal, such as votes" if self.states_confidence else "log more digits, or another signal"
        advice = (
            f"{percent(self.certain_share, 0)} of the answers of {self.model} have probability 1, and no threshold can "
            f"tell these answers apart: {remedy}"
        )
        return _assess("certain answers", self.model, self.certain_share, advice)


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

    def findings(self, error_kind: ErrorKind = ERRORS) -> Iterator[Finding]:
        """Assess whether the error and the cost of policies are no higher than promised when they were tuned."""
        for name, noun in (("error", error_kind.noun), ("cost", "cost")):
            gap = self._gap(name)
            off = f"{100 * gap.figure:.1f} points" if name == "error" else percent(gap.figure)
            why = "go by what rcjax evaluate shows on fresh queries, and tune on queries like those to come"
            if gap.by_chance:
                why = "chance alone can explain that; label more queries before you rely on it"
            finding = f"on queries not seen, the {noun} of policies tuned in this way is {off} {gap.direction}"
            advice = f"{finding} than expected, mean over the curve: {why}"
            is_lower = gap.direction == "lower"  # which no service regrets
            verdict = "fine" if is_lower else verdict_of(f"predicted {name}", gap.figure, by_chance=gap.by_chance)
            yield _assess(f"predicted {name}", "", gap.figure, advice, verdict=verdict, noun=error_kind.noun)

    def describe(self) -> str:
        """Describe in words how far error and cost are from the promise.

        >>> figures = {"predicted_error": [0.2], "predicted_cost": [1.0], "error": [0.3], "cost": [0.9]}
        >>> Promise("labels", [1.0], **figures, error_band=[0.1], cost_band=[0.1]).describe()
        '10.0 points off the expected, mostly higher, and the cost 10.0 %, mostly lower'
        """
        error, cost = (self._gap(name) for name in ("error", "cost"))
        points = f"{100 * error.figure:.1f} points off the expected, mostly {error.direction}"
        return f"{points}, and the cost {percent(cost.figure)}, mostly {cost.direction}"

    def is_by_chance(self, name: str) -> bool:
        """Return whether chance alone can explain the gap of "error" or "cost"."""
        return self._gap(name).by_chance

    def _gap(self, name: str) -> _Gap:
        fields = (name, f"predicted_{name}", f"{name}_band")
        observed, promised, band = (np.asarray(getattr(self, field)) for field in fields)
        gap = observed - promised
        outside = np.abs(gap) > band
        # If all costs are 0, the gap is 0 on any scale.
        scale = (float(promised.mean()) or 1.0) if name == "cost" else 1.0
        figure = float(np.abs(gap).mean()) / scale
        return _Gap(figure, "higher" if gap.mean() > 0 else "lower", bool(outside.mean() <= 0.25))


#: Share of the queries tuned on that the sampling error of a promised error counts: choosing on the same labels adds
#: variance. The root mean squared error is 1.85 points, and 1.70 by sampling alone (`benchmarks.drift --promises`).
_PROMISE_SHARE = 0.85


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
    n_expected: int
    """Effective number of queries behind `expected`; 0 for a limit."""
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
    def too_few_tuned_on(self) -> bool:
        """Whether most of the standard error comes from the queries tuned on, which are fewer than those of the log."""
        return 0 < self.n_expected < 0.8 * self.n

    def error_finding(self, error_kind: ErrorKind = ERRORS) -> Finding:
        """Return the finding on an error; for a difference from a rival, the finding on it beside its margin."""
        kind, figure = FINDING_KINDS["error"], self.gap
        if self.rival is not None:
            kind, figure = FINDING_KINDS["difference"], self.observed
            kind = dataclasses.replace(kind, limits=Limits(*(self.expected + limit for limit in kind.limits)))
            advice = (
                f"the policy has {100 * self.observed:.1f} points more {error_kind.noun} than {self.rival}, where "
                f"{100 * self.expected:.3g} were to be the most"
            )
        else:
            expected = percent(self.expected)
            if self.interval is not None:
                expected += f" ({' to '.join(percent(end) for end in self.interval)})"
            advice = f"the policy {error_kind.does(percent(self.observed))}, where {expected} was expected"
        return kind.finding("", figure, advice, p_value=self.p_value, noun=error_kind.noun)

    def money_finding(self, spec: Spec) -> Finding:
        """Return the finding on a bill; beside a budget (`n_expected` is 0), on the cheapest rung of a ladder.

        `spec` has the options of the tuning, for the unit of money.
        """
        name, subject, than = "cost", "the policy", "expected"
        if not self.n_expected:
            name, subject, than = "budget", "even the cheapest rung", "in the budget"
        money = spec.money([self.expected, self.observed])
        advice = (
            f"{subject} costs {money.full(self.observed)}, {percent(self.rise)} more than the "
            f"${money.show(self.expected)} {than}: look at prices, at the length of questions and answers, and at how "
            "often each model is asked"
        )
        return FINDING_KINDS[name].finding("", self.rise, advice, p_value=self.p_value)


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
    limit: float = 0.0
    """Limit, without a promise."""
    interval: tuple[float, float] | None = None
    """Interval that the policy records for its promise; None without one."""
    rival: str | None = None
    """Name of the rival that the figure is a difference from; None if it is no difference."""

    @classmethod
    def of_promise(cls, policy: AbstractPolicy, name: str, carried: np.ndarray, trained_on: int) -> Baseline:
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
        queries = max(2, round(_PROMISE_SHARE * trained_on) if name == "error" else trained_on)
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
            se, p_value = excess_over_limit(now, self.limit)
            if self.rival is not None:  # as in comparisons, unless the two are the same
                se = float(paired_error(values)) if values.any() else 0.0
            return PrimaryFigure(now.mean, self.limit, se, p_value, now.n, 0, rival=self.rival)
        before = self.promise.pool(SampleMean.estimate(earlier)) if len(earlier) else self.promise
        interval = None if len(earlier) else self.interval
        return PrimaryFigure(now.mean, before.mean, *rise_of_mean(before, now), now.n, before.n, interval)
