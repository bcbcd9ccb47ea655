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

from rcjax._base.figures import Z_ONE_SIDED_95, count, describe_points, percent
from rcjax.logs.log import Log
from rcjax.logs.oddities import MAX_CERTAIN, describe_kept, find_unsure, measure_unevenness
from rcjax.model.goodness_of_fit.two_samples import Change, SampleMean, excess_over_limit, holm_adjusted, rise_of_mean
from rcjax.policy.comparison import Rival, upper_after_choice
from rcjax.policy.error_kind import ERRORS, ErrorKind
from rcjax.policy.ladder import penalty
from rcjax.policy.policy import AbstractPolicy
from rcjax.policy.spec import Spec
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
    """p-value of the figure by itself; None if it is not tested."""
    verdict: FindingVerdict
    """Verdict on the figure."""
    advice: str
    """Explanation of the figure with advice, in words; empty if the verdict is fine."""
    adjusted_p: float | None = None
    """p-value adjusted for the tests and looks that decide together; None if it is not tested with others."""

    @property
    def name(self) -> str:
        """Name of the kind."""
        return self.kind.name

    @property
    def is_by_chance(self) -> bool:
        """Whether the figure is beyond its limit, and fine all the same, as chance explains it."""
        limit, worse = self.kind.limits
        is_beyond = limit < self.figure < math.inf if worse > limit else self.figure < limit
        return self.verdict == "fine" and is_beyond

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the finding and of its kind as one object."""
        document = dataclasses.asdict(self)
        kind = document.pop("kind") | {"limits": self.kind.limits._asdict()}
        return kind | document | {"primary": self.name in PRIMARY}


def merge_findings(findings: Iterable[Finding], checked: Iterable[Finding]) -> list[Finding]:
    """Return findings; those of a check take the place of those of the same name and model.

    A check calls a figure that explains bad if it has changed by more than chance explains; here it is bad by its size.
    """
    judged = (
        finding
        if finding.name not in ("calibration error", "confidences") or finding.verdict == "fine"
        else dataclasses.replace(finding, verdict=assess_figure(finding.name, finding.figure))
        for finding in checked
    )
    return [*{(finding.name, finding.subject): finding for finding in (*findings, *judged)}.values()]


def worst_verdict(findings: Iterable[Finding]) -> FindingVerdict:
    """Return the worst verdict of some findings."""
    verdicts = {finding.verdict for finding in findings}
    return "bad" if "bad" in verdicts else "doubtful" if "doubtful" in verdicts else "fine"


#: Level of an alarm: the share of looks, or of years of looks, with a false alarm where nothing has changed.
ALARM = 0.05

#: Weeks in the window of a check.
WINDOW = 8

#: Looks per year at a log with times.
WEEKLY = 52

#: All kinds of findings: first those of `diagnose`, then those of `check`. `docs/diagnosis.md` defines the figures.
FINDING_KINDS: Mapping[str, FindingKind] = {
    kind.name: kind
    for kind in (
        FindingKind("queries", "queries", Limits(200, 50), "number"),
        FindingKind("accuracy", "change of own {noun}", Limits(0.03, 0.06), "points"),
        FindingKind("calibration error", "calibration error", Limits(0.05, 0.10)),
        FindingKind("separation", "better is surer", Limits(0.65, 0.55)),
        FindingKind("certain answers", "confidence 1", Limits(MAX_CERTAIN, 0.9)),
        FindingKind("predicted error", "{noun} off the expected", Limits(0.01, 0.03), "points"),
        FindingKind("predicted cost", "cost off the expected", Limits(0.05, 0.15)),
        FindingKind("error", "rise of {noun}", Limits(0.02, 0.05), "points"),
        FindingKind("difference", "{noun} above today's", Limits(0.0, 0.02), "points"),  # limits beyond the margin
        FindingKind("own error", "rise of own {noun}", Limits(0.05, 0.10), "points"),
        FindingKind("worst difference", "{noun} above today's", Limits(0.0, 0.02), "points"),  # limits beyond the worst
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
PRIMARY = ("error", "difference", "own error", "worst difference", "cost", "budget")


def assess_figure(name: str, figure: float, *, by_chance: bool = False) -> FindingVerdict:
    """Return the verdict on a figure by the limits of its kind; if chance explains it, it is doubtful at worst.

    >>> assess_figure("calibration error", 0.12), assess_figure("calibration error", 0.12, by_chance=True)
    ('bad', 'doubtful')
    """
    limits = FINDING_KINDS[name].limits
    sign = -1 if limits.bad < limits.doubtful else 1
    if np.isnan(figure):
        return "doubtful"
    if sign * figure > sign * limits.bad:
        return "doubtful" if by_chance else "bad"
    return "doubtful" if sign * figure > sign * limits.doubtful and not by_chance else "fine"


#: Looks per year at windows of eight weeks, and the number of separate looks that raise as many false alarms. By the
#: normal law, 52 looks raise as many as 28 separate ones (`benchmarks.drift`); they count as 40, as promises are half a
#: point too low. Daily looks raise hardly more false alarms than weekly looks.
_LOOKS, _SEPARATE = (1, 4, 12, 26, 52, 365), (1, 4, 12, 25, 40, 60)


def separate_looks(looks: float) -> float:
    """Return the number of separate looks that raise as many false alarms as `looks` per year at a rolling window.

    >>> separate_looks(1), separate_looks(52)
    (1.0, 40.0)
    """
    return float(np.interp(looks, _LOOKS, _SEPARATE))


def look_p_value(p_value: float, looks: float) -> float:
    """Return the p-value of one look, adjusted for a number of separate looks.

    >>> look_p_value(0.01, 1), round(look_p_value(0.01, 40), 2)
    (0.01, 0.33)
    """
    return p_value if looks == 1 else 1 - (1 - p_value) ** looks


def assess_together(findings: Iterable[Finding], looks: float = 1.0, alarm: float = ALARM) -> list[Finding]:
    """Give findings their verdicts, by p-values adjusted for the number of looks and by Holm's method.

    A figure beyond its limit is bad if its adjusted p-value is below `alarm`, the level of all findings together; else
    it is doubtful if it is primary. `looks` is the number of separate looks in a year.
    """
    findings = list(findings)
    raw = [math.nan if finding.p_value is None else look_p_value(finding.p_value, looks) for finding in findings]
    assessed = []
    for finding, p_value in zip(findings, holm_adjusted(raw).tolist(), strict=True):
        verdict: FindingVerdict = "fine"
        if finding.figure > finding.kind.limits.doubtful:
            verdict = "bad" if p_value < alarm else "doubtful" if finding.name in PRIMARY else "fine"
        advice = "" if verdict == "fine" else finding.advice
        adjusted = None if math.isnan(p_value) else p_value
        assessed.append(dataclasses.replace(finding, adjusted_p=adjusted, verdict=verdict, advice=advice))
    return assessed


def confidence_finding(name: str, change: Change, medians: tuple[float, float]) -> Finding:
    """Return the finding on a change of a model's raw confidences (`distribution_change`), and of their medians."""
    before, now = medians
    fact = f"the raw confidences of {name} have moved by {change.figure:.3f} (their median is {now:.2g}, {before:.2g}"
    advice = f"{fact} before): has the model, its prompt or the kind of question changed?"
    return FINDING_KINDS["confidences"].finding(name, change.figure, advice, p_value=change.p_value)


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
    part = log.select([name for name in log.models if name in models])
    asked = failed + int(part.complete.sum())
    kind, advice = FINDING_KINDS["lacking answers"], ""
    verdict: FindingVerdict = "bad" if failed > kind.limits.bad * asked else "fine"
    if verdict == "bad":
        by_model = {
            name: sum(calls.queries for calls in failures if name in calls.failed) for name in (*models, reference)
        }
        most = max(by_model, key=lambda name: by_model[name])
        advice = (
            f"an answer is missing for {failed:,} of {count(asked, 'query')}, most often one of {most}"
            f"{', the reference' * (most == reference)}: {describe_kept(part)}; look at why (the column error of a "
            "call log), and log more"
        )
    return kind.finding("", failed / max(asked, 1), advice, verdict=verdict)


def assess_label_sampling(log: Log, models: Sequence[str]) -> Iterator[Finding]:
    """Assess whether labels are drawn at random, and not more or less often where the cheapest model is unsure.

    Each set of partly labelled answers has a finding, on the queries that all models answered. Its figure is the share
    of unsure queries among the labelled queries minus the share among all queries. The p-value is raw. The labels of
    `models` count, the cheapest first.
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

    The answers of `models` count, the cheapest first.
    """
    return [
        assess_missing_answers(log, models),
        *assess_together(assess_label_sampling(log, models), alarm=_LABELS_ALARM),
    ]


#: Share of the queries tuned on that the sampling error of a promised error counts: choosing on the same labels adds
#: variance. The root mean squared error is 1.85 points, and 1.70 by sampling alone (`benchmarks.drift --promises`).
_PROMISE_SHARE = 0.85


@dataclasses.dataclass(frozen=True)
class PrimaryFigure:
    """A primary figure: the mean over a log's queries, compared with a promise or a limit."""

    observed: float
    """Mean over the queries of the log."""
    expected: float
    """Promise, averaged with the queries of earlier weeks that joined it; or the limit, if there is one."""
    se: float
    """Standard error of `observed` − `expected`."""
    p_value: float
    """One-sided p-value of the rise, at one look."""
    n: int
    """Number of queries behind `observed`."""
    n_expected: int
    """Effective number of queries behind the promise; 0 without one."""
    interval: tuple[float, float] | None = None
    """Interval that the policy records for its promise; None without one."""
    rival: str | None = None
    """Name of the rival that the figure is a difference from, on the same queries; None if it is no difference."""
    abstain_price: float | None = None
    """Errors that an abstention counts as in an error; None if the policy does not abstain."""

    def describe_rate(self, error_kind: ErrorKind) -> str:
        """Describe an error in words, with the price of an abstention if there is one."""
        counted = "" if self.abstain_price is None else f" (an abstention counts as {100 * self.abstain_price:.4g} %)"
        return f"{error_kind.predicate(percent(self.observed))}{counted}"

    @property
    def gap(self) -> float:
        """Observed minus expected figure."""
        return self.observed - self.expected

    @property
    def upper(self) -> float:
        """Upper end of the gap from a rival (one-sided, 95 %)."""
        return self.observed + Z_ONE_SIDED_95 * self.se

    @property
    def may_exceed(self) -> bool:
        """Whether a difference from a rival is not shown to be within its margin (one-sided, 95 %)."""
        return self.rival is not None and not self.n_expected and self.upper > self.expected

    @property
    def rise(self) -> float:
        """Observed minus expected figure, as a share of the expected figure."""
        return relative(self.observed, self.expected)

    @property
    def too_few_tuned_on(self) -> bool:
        """Whether most of the standard error comes from the queries tuned on, which are fewer than those of the log."""
        return 0 < self.n_expected < 0.8 * self.n

    def error_finding(self, name: str, error_kind: ErrorKind = ERRORS) -> Finding:
        """Return the finding `name` on an error, or on a difference from a rival."""
        kind, figure = FINDING_KINDS[name], self.gap
        if self.rival is not None:
            figure = self.observed
            kind = dataclasses.replace(kind, limits=Limits(*(self.expected + limit for limit in kind.limits)))
            advice = (
                f"the policy has {describe_points(self.observed)} {error_kind.noun} than {self.rival}, where "
                f"{100 * self.expected:.3g} were to be the most"
            )
        else:
            expected = percent(self.expected)
            if self.interval is not None:
                expected += f" ({' to '.join(percent(end) for end in self.interval)})"
            advice = f"the policy {self.describe_rate(error_kind)}, where {expected} was expected"
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


class PrimaryFigures(NamedTuple):
    """The primary figures of a policy on a log."""

    error: PrimaryFigure
    """Error of the policy."""
    money: PrimaryFigure
    """Bill of the policy beside its promise, or of its cheapest rung beside the budget."""
    difference: PrimaryFigure | None = None
    """Error minus today's, beside the margin or the worst promised; None without either."""

    @property
    def has_margin(self) -> bool:
        """Whether the difference from today's stands beside a margin."""
        return self.difference is not None and not self.difference.n_expected

    @property
    def in_order(self) -> list[PrimaryFigure]:
        """The figures in the order of their findings: with a margin, the difference is the first and the error last."""
        figures = [self.error, self.money, *([] if self.difference is None else [self.difference])]
        return figures[::-1] if self.has_margin else figures

    def find(self, spec: Spec, error_kind: ErrorKind = ERRORS) -> list[Finding]:
        """Return the findings on the figures, without verdicts; `spec` has the options of the tuning."""
        names = ("difference", "own error") if self.has_margin else ("error", "worst difference")
        first, money, *third = self.in_order
        thirds = [figure.error_finding(names[1], error_kind) for figure in third]
        return [first.error_finding(names[0], error_kind), money.money_finding(spec), *thirds]


def relative(observed: float, expected: float) -> float:
    """Return the observed figure minus the expected one, as a share of the expected one."""
    if expected > 0:
        return observed / expected - 1
    return float(np.inf) if observed > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class Baseline:
    """The baseline of a primary figure: a promise, with its sampling error, or a limit, which has none.

    A difference from a rival with a promise has a limit too, the promise at worst: an alarm needs an excess over the
    limit, and a rise above the promise that chance does not explain.
    """

    promise: SampleMean | None
    """Promised mean; None for a limit alone."""
    limit: float = 0.0
    """Limit of a difference from a rival, or of a figure without a promise."""
    interval: tuple[float, float] | None = None
    """Interval that the policy records for its promise; None without one."""
    rival: str | None = None
    """Name of the rival that the figure is a difference from; None if it is no difference."""
    abstain_price: float | None = None
    """Errors that an abstention counts as in an error; None if the policy does not abstain."""

    @classmethod
    def of_promise(cls, policy: AbstractPolicy, name: str, carried: np.ndarray, trained_on: int) -> Baseline:
        """Return the promise of a policy's tuning; without a record, its mean over the queries that it carries.

        Args:
            policy: the policy.
            name: "error", in which abstentions count at their price, or "cost".
            carried: (m,) figure of each query that the policy carries.
            trained_on: number of queries that the policy was tuned on.
        """
        expected, low, high = (policy.expected.get(f"{name}{end}") for end in ("", "_low", "_high"))
        known, price = policy.expected.get("level") is not None, None
        if name == "error":
            expected, price = penalty(policy.expected), policy.expected.get("abstain_price")
            trained_on, known = round(_PROMISE_SHARE * trained_on), known and price is None  # the interval is of errors
        interval = (float(low), float(high)) if known and low is not None and high is not None else None
        promise = SampleMean.estimate(carried, None if expected is None else float(expected), max(2, trained_on))
        return cls(promise, interval=interval, abstain_price=price)

    @classmethod
    def of_rival(cls, promised: Rival, queries: int) -> Baseline:
        """Return the promised difference from a rival, and this difference at worst, by the comparison of a tuning."""
        tuned_on = max(2, round(_PROMISE_SHARE * queries))
        promise = SampleMean(promised.error_difference, promised.se**2 * queries, 0.0, tuned_on)
        return cls(promise, upper_after_choice(promised.error_difference, promised.se), rival=promised.subject)

    def compare(self, values: np.ndarray, earlier: np.ndarray) -> PrimaryFigure:
        """Compare the figures of a log's queries (n,) with the baseline.

        The `earlier` figures (m,), of weeks without an alarm, join a promise.
        """
        now = SampleMean.estimate(values)
        if self.promise is None:
            se, p_value = excess_over_limit(now, self.limit)
            if self.rival is not None:  # as in comparisons, unless the two are the same
                se = float(paired_error(values)) if values.any() else 0.0
            return PrimaryFigure(now.mean, self.limit, se, p_value, now.n, 0, rival=self.rival)
        before = self.promise.pool(SampleMean.estimate(earlier)) if len(earlier) else self.promise
        interval, (se, p_value) = None if len(earlier) else self.interval, rise_of_mean(before, now)
        if self.rival is not None:
            se = float(paired_error(values))
            return PrimaryFigure(now.mean, self.limit, se, p_value, now.n, before.n, rival=self.rival)
        counts = now.n, before.n
        return PrimaryFigure(now.mean, before.mean, se, p_value, *counts, interval, abstain_price=self.abstain_price)
