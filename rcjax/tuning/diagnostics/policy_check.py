"""The check of a policy in service: a rolling window of fresh labels against the queries tuned on.

A check looks at a log once at the end of each week. A look at a hundred labelled queries of one week has little power,
and a year of weekly looks has many false alarms. So a look takes the last eight weeks together. Earlier weeks without
an alarm join the queries tuned on; they do not overlap with the window. Looks at overlapping windows are dependent: 52
of them count as forty separate looks. A log without times is looked at once.

Three primary figures decide, and share the level of the alarm: the policy's error, its money, and its error minus
today's. The difference is compared with the margin or, without a margin, with the worst difference that the tuning
printed. With a margin, the policy's own error comes second, since today's may have risen too. The other figures
explain: calibration and confidences of each model, labels, the gain of tuning again. A figure has drifted if it is
beyond its limit *and* chance does not explain it. So a small change does not alarm in a log of any size. If nothing has
changed, the share of logs, or of years of looks, with an alarm is at most its level.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from rcjax._base.codec import takes
from rcjax._base.figures import Money, percent
from rcjax._core.batching import as_json_values
from rcjax.logs.errors import LogError
from rcjax.logs.kept_sample import carried_log
from rcjax.logs.log import Log, sort_by_time
from rcjax.model.label_outcomes import corrected_log
from rcjax.policy.bills import Bill
from rcjax.policy.comparison import recorded_comparison
from rcjax.policy.error_kind import ERRORS, ErrorKind, penalised, recorded_error_kind
from rcjax.policy.policy import AbstractPolicy
from rcjax.policy.spec import Spec, recorded_count, recorded_tuning
from rcjax.tuning.certify import Overlap, overlap
from rcjax.tuning.diagnostics.causes import (
    ModelChange,
    changed_models,
    changed_prices,
    compare_models,
    explain_decision,
    find_cause,
)
from rcjax.tuning.diagnostics.decision import (
    DecisionGrounds,
    PolicyDecision,
    Replacement,
    assess_replacement,
    decide,
)
from rcjax.tuning.diagnostics.findings import (
    ALARM,
    PRIMARY,
    WEEKLY,
    WINDOW,
    Baseline,
    Finding,
    FindingVerdict,
    PrimaryFigure,
    PrimaryFigures,
    assess_sample,
    assess_together,
    look_p_value,
    separate_looks,
    worst_verdict,
)
from rcjax.tuning.diagnostics.weeks import CheckWindow, Weeks, last_weeks
from rcjax.tuning.replaying.comparing import (
    QueryLosses,
    decides_alike,
    list_models,
    matched_today,
    name_today,
    take_shared_queries,
)
from rcjax.tuning.replaying.replay import LadderReplay, Stream, replay_queries
from rcjax.tuning.replaying.walk import require_complete
from rcjax.tuning.retuning_gain import why_untested
from rcjax.tuning.tune import retune

_MIN_QUERIES_FOR_DRIFT = 20  # queries below which neither a drift nor a kept promise is certain


@dataclasses.dataclass(frozen=True)
class PolicyCheck:
    """The check of a policy on a fresh log. Figures are shares of 1; money is per query."""

    source: str
    """Name of the fresh log."""
    policy_models: tuple[str, ...]
    """Names of the models that the policy may ask."""
    n_queries: int
    """Number of queries checked, which all models of the policy answered."""
    carried: int
    """Number of queries that the policy carries."""
    tuned_on: int
    """Number of queries of the log tuned on."""
    window: CheckWindow
    """Window of the check, and its number of looks per year."""
    models: tuple[ModelChange, ...]
    """Figures of each model."""
    error: PrimaryFigure
    """Error of the policy beside its promise, with abstentions at their price. For a ladder that follows its bill: its
    error while following."""
    money: PrimaryFigure
    """Bill at the position of a ladder; for a search by the paper's model, cost at the models' mean costs. For a ladder
    that follows its bill, the bill of its cheapest rung, beside the budget."""
    cost_as_tuned: PrimaryFigure
    """Cost at the position as tuned, beside its promise; the same as `money` unless the policy follows its bill."""
    difference: PrimaryFigure | None
    """Error of the policy minus today's, beside the margin or, without one, the worst promised; None without either."""
    replacement: Replacement | None
    """Gain of a retuned policy, and whether `rcjax retune` would write it; None if that was not tested."""
    findings: tuple[Finding, ...]
    """Findings, the primary ones first; `bad` means a significant change after adjustment."""
    decision: PolicyDecision
    """The decision on the policy and the advice, the same on every screen."""
    remarks: tuple[str, ...]
    """Further remarks, in words."""
    followed: dict[str, float] | None = None
    """Figures of following the bill on these queries, in their order (`Stream.to_json`), with `budget`; `tuned`, the
    position as tuned; and `error_tuned`, its error. Errors have abstentions at their price. None for a policy that does
    not follow its bill."""
    unlabelled: int = 0
    """Number of the `n_queries` queries without a labelled answer."""
    error_kind: ErrorKind = ERRORS
    """Kind of error, with its words; in JSON its noun."""

    @property
    def drifted(self) -> bool:
        """Whether a primary figure has drifted, or the log is no fair sample."""
        return self.decision.alarm

    @property
    def verdict(self) -> FindingVerdict:
        """Verdict on the primary figures: "bad" if one has drifted or the log is no fair sample, "doubtful" if one may
        have by chance, or a margin is not shown to be kept."""
        if self.decision.alarm:
            return "bad"
        worst = worst_verdict(finding for finding in self.findings if finding.name in PRIMARY)
        return "doubtful" if worst == "fine" and self.difference and self.difference.may_exceed else worst

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON values, without `followed` where it is None; None for NaN."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.followed is None:
            del fields["followed"]
        for name in ("window", "error", "money", "cost_as_tuned"):
            fields[name] = dataclasses.asdict(fields[name])
        fields["window"]["described"] = self.window.describe()
        fields["models"] = [dataclasses.asdict(model) for model in self.models]
        fields["findings"] = [finding.to_json() for finding in self.findings]
        fields["replacement"] = self.replacement and self.replacement.to_json()
        fields |= {"decision": self.decision.to_json(), "error_kind": self.error_kind.noun}
        fields["difference"] = self.difference and dataclasses.asdict(self.difference)
        return {"drifted": self.drifted, "verdict": self.verdict} | as_json_values(fields)


def try_check(
    policy: AbstractPolicy, log: Log, replacement: Replacement | None = None
) -> tuple[PolicyCheck | None, str]:
    """Check a policy on a log; return (the check, ""), or (None, the reason against a check)."""
    try:
        return check_policy(policy, log, replacement=replacement), ""
    except ValueError as problem:  # made by hand, tuned on this very log, too few labels
        return None, str(problem)


@takes(policy=AbstractPolicy, log=Log)
def check_policy(
    policy: AbstractPolicy,
    log: Log,
    *,
    retuning: bool = True,
    replacement: Replacement | None = None,
    looks: int | None = None,
    seed: int = 0,
) -> PolicyCheck:
    """Check whether a policy is still right on a fresh log, whose queries it was not tuned on.

    The error and the cost of the policy are tested against their promises, one-sided, with the sampling errors of both
    logs. The difference from today's is tested beside the margin or, without one, the worst promised. Improvements are
    no alarm, and the figures share the level. A ladder is judged by its expected error and cost on each query, without
    the noise of the draw between two rungs. If the ladder follows its bill, its error is the error within its budget,
    and its cost has drifted if its cheapest rung costs more than the budget.

    The calibration and the distribution of each model's confidences are tested too, as an explanation, with p-values
    adjusted among themselves.

    In a log with times (`Log.time`) the last eight weeks are checked, and earlier weeks without an alarm join the
    queries tuned on. Queries that the policy carries, as it was tuned on them, are left out; a remark counts them.

    Args:
        policy: the policy in service.
        log: the fresh log.
        retuning: estimate the gain of retuning, which takes most of the time.
        replacement: a known replacement; nothing is then tuned.
        looks: number of looks per year; without changes, at most 5 % of years have an alarm. None: 52 for a log with
            times, else 1.
        seed: seed of the folds.

    Raises ValueError for a policy made by hand, which carries no queries; LogError if the log lacks a model, is the log
    tuned on, or has too few answers.

    >>> import rcjax
    >>> train, fresh = rcjax.sample_log(600, seed=0).split(0.5, seed=0)
    >>> tuned = rcjax.tune(train, error_cost=0.001, intervals=False)
    >>> check = rcjax.check_policy(tuned.policy, fresh)
    >>> check.drifted, len(check.findings), check.carried
    (False, 6, 300)
    """
    shared = _require_fresh(policy, log)
    recent, unseen = last_weeks(log), sort_by_time(shared.leave_out(log))  # `rcjax retune` takes `recent`
    log = unseen
    carried, new, judged = carried_log(policy), log.select(policy.models), _judged_queries(policy, log)
    old, weeks = carried.select(policy.models), Weeks.of(new)
    figures = _gather_figures(policy, carried.comparable.select(policy.models), log.take(judged))
    looks = looks or (1 if weeks.end is None else WEEKLY)
    separate = separate_looks(looks)
    last_look = _look_at_windows(figures, Weeks(weeks.ago[judged], weeks.end), separate, log.error_kind)
    window = new.take(weeks.in_window)
    unalarmed = np.isin(weeks.ago, last_look.joined_weeks)
    models = compare_models(policy, old, new, unalarmed, weeks)
    secondary = assess_together((finding for model in models for finding in model.findings(log.error_kind)), separate)
    sample = assess_sample(recent, policy.models)
    if replacement is None and retuning:
        replacement = _assess_retuned(policy, recent, seed)
    grounds = _gather_grounds(policy, last_look, looks, window, sample, old.n_queries)
    moved = {finding.subject for finding in secondary if finding.verdict == "bad"}
    changed = changed_models(
        policy,
        models,
        moved,
        last_look.followed,
        error_alarm=any(finding.verdict == "bad" and finding.kind.unit == "points" for finding in last_look.primary),
        looks=separate,
    )
    described = [(row.model, row.describe(log.error_kind.noun)) for row in changed]
    is_dearer = look_p_value(last_look.cost_as_tuned.p_value, separate) < ALARM
    cause = find_cause(policy, last_weeks(unseen), described, is_dearer=is_dearer)
    decision = decide(grounds, replacement)
    return PolicyCheck(
        source=PurePath(log.source).name,
        policy_models=policy.models,
        n_queries=last_look.figures.error.n,
        carried=old.n_queries,
        tuned_on=grounds.tuned_on,
        window=last_look.describe_window(weeks, looks, int(unalarmed.sum())),
        models=models,
        **last_look.figures._asdict(),
        cost_as_tuned=last_look.cost_as_tuned,
        replacement=replacement,
        findings=(*last_look.primary, *(finding for finding in sample if finding.verdict == "bad"), *secondary),
        decision=explain_decision(decision, cause, policy, last_weeks(unseen), separate),
        remarks=(*_remarks(policy, recent, shared, replacement), *last_look.remarks(grounds.unit, log.error_kind)),
        followed=last_look.followed,
        unlabelled=grounds.unlabelled,
        error_kind=log.error_kind,
    )


def _gather_grounds(
    policy: AbstractPolicy, look: _LastLook, looks: int, window: Log, sample: Sequence[Finding], carried: int
) -> DecisionGrounds:
    """Return the grounds of the decision on a policy, from its last look at the queries of the window."""
    promised, difference = recorded_comparison(policy.provenance), look.figures.difference
    rise, rival = None, None if promised is None else promised.today
    if rival is not None and difference is not None and difference.rival == rival.subject:
        rise = look.figures.error.observed - difference.observed - rival.error
    return DecisionGrounds(
        figures=look.figures,
        findings=look.primary,
        sample=sample,
        unit=recorded_tuning(policy).spec.money([look.figures.money.expected, look.figures.money.observed]),
        error_kind=window.error_kind,
        unlabelled=int((window.complete & ~window.labelled.any(1)).sum()),
        tuned_on=recorded_count(policy.provenance, "queries", carried),
        bill=0.0 if look.followed is None else look.followed["bill"],
        looks=looks,
        todays_rise=rise,
        repriced=bool(changed_prices(policy, window)),
    )


def _assess_retuned(policy: AbstractPolicy, log: Log, seed: int) -> Replacement:
    """Tune a policy again on a log, and assess whether the new policy replaces it."""
    try:
        tuned = retune(policy, log, intervals=False)
    except ValueError as problem:  # infeasible, too few queries, or a policy made by hand
        return Replacement(None, (f"the policy cannot be tuned again: {problem}",))
    assert tuned.policy is not None  # as there is a target
    return assess_replacement(policy, tuned.policy, log, tuned.log, seed)


def _require_fresh(policy: AbstractPolicy, log: Log) -> Overlap:
    """Return the queries of a log that the policy was tuned on.

    Raises LogError if it was tuned on all of them, or if the log counts another kind of error than the tuning.
    """
    shared = overlap(log, policy)
    if shared.covers_log:
        raise LogError(f"{log.source}: all of its queries were tuned on: check the policy on fresh ones")
    noun, promised = log.error_kind.noun, recorded_error_kind(policy.provenance).noun
    if noun != promised:
        raise LogError(f"{log.source}: it counts the {noun}, and the policy was tuned for the {promised}")
    return shared


def _judged_queries(policy: AbstractPolicy, log: Log) -> np.ndarray:
    """Return the queries answered by the models tuned on (if too few: of the policy), and of a margin: (n,) bool."""
    today = matched_today(policy, log)
    own = {*policy.models, *(() if today is None else list_models(today))}
    parts = [
        log.select([name for name in log.models if name in models])
        for models in ({*own, *recorded_tuning(policy).models}, own)
    ]
    part = parts[0] if parts[0].has_enough_complete else parts[1]
    require_complete(part, "a check")
    return part.complete


@dataclasses.dataclass(frozen=True)
class _QueryFigures:
    """The N queries of a log that all models answered, with the baselines of the primary figures."""

    error: np.ndarray  # (N,) errors and abstentions at their price; of the stream if a ladder follows its bill
    money: np.ndarray  # (N,) cost; for a ladder that follows its bill, cost of its cheapest rung
    cost_as_tuned: np.ndarray  # (N,) cost at the position as tuned
    difference: np.ndarray  # (N,) errors minus today's; NaN without today's answer
    error_baseline: Baseline
    money_baseline: Baseline
    difference_baseline: Baseline | None  # None: there is nothing to compare the difference with
    cost_baseline: Baseline  # of `cost_as_tuned`
    spec: Spec  # options of the tuning
    stream: Stream | None = None  # None: the policy does not follow its bill
    as_tuned: dict[str, float] = dataclasses.field(default_factory=dict)  # further entries of `PolicyCheck.followed`

    def compare(self, rows: np.ndarray, earlier: np.ndarray) -> PrimaryFigures:
        """Compare some rows with the baselines, which earlier rows join.

        The difference from today's is left out without a margin if too few rows have today's answer.
        """
        baseline, known, difference = self.difference_baseline, np.isfinite(self.difference), None
        if baseline is not None and (baseline.promise is None or (known & rows).sum() >= _MIN_QUERIES_FOR_DRIFT):
            difference = baseline.compare(self.difference[known & rows], self.difference[known & earlier])
        error = self.error_baseline.compare(self.error[rows], self.error[earlier])
        return PrimaryFigures(error, self.money_baseline.compare(self.money[rows], self.money[earlier]), difference)


def _gather_figures(policy: AbstractPolicy, old: Log, log: Log) -> _QueryFigures:
    """Replay a policy on the queries that it carries and on a fresh log, and make the baselines.

    `old` are the carried queries, with the models of the policy; `log` is the fresh log with all models, by which
    missing labels are estimated.
    """
    new = corrected_log(log).select(policy.models)
    before, now = replay_queries(policy, old), replay_queries(policy, new)
    trained_on = recorded_count(policy.provenance, "complete_queries", len(before.wrong))
    spec = recorded_tuning(policy).spec
    cost, carried_cost = (walked.promised_cost(spec.is_by_labels) for walked in (now, before))
    price = policy.expected.get("abstain_price")
    error, carried_error = (penalised(walked.wrong, walked.abstained, price) for walked in (now, before))
    error_baseline = Baseline.of_promise(policy, "error", carried_error, trained_on)
    promised = Baseline.of_promise(policy, "cost", carried_cost, trained_on)
    money, money_baseline, stream, as_tuned = cost, promised, None, dict[str, float]()
    if policy.budget is not None and policy.follows:
        rungs = LadderReplay.of(policy, new)
        stream = rungs.stream(Bill.open(policy.budget))
        as_tuned = {"tuned": policy.position, "error_tuned": float(error.mean()), "budget": policy.budget}
        error = penalised(stream.wrong, stream.abstained, price)
        money, money_baseline = rungs.spent[0], Baseline(None, policy.budget)
    difference, difference_baseline = _compare_today(policy, new, log)
    baselines = error_baseline, money_baseline, difference_baseline, promised
    return _QueryFigures(error, money, cost, difference, *baselines, spec, stream, as_tuned)


def _compare_today(policy: AbstractPolicy, new: Log, log: Log) -> tuple[np.ndarray, Baseline | None]:
    """Return (the policy's errors minus today's, (N,), NaN without its answer; the margin, or the promised difference).

    The baseline is None without both; a promise beside the default for today does not count.
    """
    spec, promised = recorded_tuning(policy).spec, recorded_comparison(policy.provenance)
    differences, today = np.full(int(new.complete.sum()), np.nan), spec.today
    named = {*policy.models, *(() if today is None else list_models(today))}
    if today is None or not named <= {*log.models} or not (complete := log.select([*named]).complete).any():
        return differences, None
    if spec.match is not None:
        baseline = Baseline(None, spec.match, rival=name_today(today))
    elif promised is None or promised.is_today_default or promised.today is None or promised.is_todays_policy:
        return differences, None
    else:
        baseline = Baseline.of_rival(promised.today, promised.n_queries)
    shared = take_shared_queries(log, [policy, today])
    rival = policy if decides_alike(policy, today) else today
    own, todays = (QueryLosses.in_service(subject, shared).penalty for subject in (policy, rival))
    differences[complete[new.complete]] = own - todays
    return differences, baseline


#: Points of error by which a change of cost moves a ladder that follows its bill, from which on a remark tells them.
_MOVED = 0.005


def _describe_followed(followed: Mapping[str, float], cost: PrimaryFigure, money: Money, error_kind: ErrorKind) -> str:
    """Describe a ladder that follows its bill: its position, its bill, and the figures at the position as tuned."""
    now, tuned, low, high = (f"{followed[name]:.1f}" for name in ("position", "tuned", "low", "high"))
    error, before = (followed[name] for name in ("error", "error_tuned"))
    change = f"cost {percent(abs(cost.rise))} {'more' if cost.rise > 0 else 'less'} than expected"
    if abs(error - before) >= _MOVED:
        change = f"have {percent(before)} {error_kind.noun} in place of {percent(error)}, and {change}"
    return (
        f"following its bill, in the order of these queries, the policy goes by rung {now} on average ({low} to "
        f"{high}; its cascades are rungs, 0 the cheapest), for {money.full(followed['bill'])}; at rung {tuned}, as "
        f"tuned, it would {change}"
    )


class _LastLook(NamedTuple):
    """The figures and findings of the look at the last weeks."""

    figures: PrimaryFigures
    cost_as_tuned: PrimaryFigure
    primary: list[Finding]
    joined_weeks: np.ndarray  # (J,) weeks without an alarm, counted back
    alarms: list[int]  # weeks at whose end a look raised an alarm, counted back
    weeks_since_drift: int | None  # weeks since the drift probably began; None without drift
    followed: dict[str, float] | None  # as `PolicyCheck.followed`

    def remarks(self, money: Money, error_kind: ErrorKind) -> Iterator[str]:
        """Yield a remark on a ladder that follows its bill; else on a bill significantly below the promise."""
        cost = self.cost_as_tuned
        if self.followed is not None:
            yield _describe_followed(self.followed, cost, money, error_kind)
        elif cost.rise < -0.05 and cost.p_value > 0.95:  # no drift
            less = f"{money.full(cost.observed)}, less than the ${money.show(cost.expected)} expected"
            yield f"the policy costs {less}: that is not drift, and rcjax retune may make use of the difference"

    def describe_window(self, weeks: Weeks, looks: int, earlier: int) -> CheckWindow:
        span = 0 if weeks.end is None else min(WINDOW, int(weeks.ago.max()) + 1)
        since = None if self.weeks_since_drift is None else weeks.first_day(self.weeks_since_drift)
        alarms = tuple(filter(None, map(weeks.first_day, self.alarms)))
        return CheckWindow(looks, span, weeks.first_day(span - 1) if span else None, earlier, alarms, since)


def _look_at_windows(figures: _QueryFigures, weeks: Weeks, separate: float, error_kind: ErrorKind) -> _LastLook:
    """Look at every window from the first week on, and return the findings of the last look.

    Weeks without an alarm join the baseline of later looks. `separate` is the number of separate looks in a year.
    """
    alarmed, alarms, last = set[int](), list[int](), None
    for ago, rows, earlier in weeks.windows():
        if rows.sum() < 2 and ago:
            continue
        baseline = earlier & ~np.isin(weeks.ago, [*alarmed])
        compared = figures.compare(rows, baseline)
        primary = assess_together(compared.find(figures.spec, error_kind), separate)
        if any(finding.verdict == "bad" for finding in primary) and compared.error.n >= _MIN_QUERIES_FOR_DRIFT:
            alarmed |= {*weeks.ago[rows].tolist()}
            alarms.append(ago)
        last = rows, baseline, compared, primary
    assert last is not None  # the look at the last week
    rows, baseline, compared, primary = last
    if compared.error.n < _MIN_QUERIES_FOR_DRIFT:  # too few for an alarm, and for a promise
        primary = [
            dataclasses.replace(finding, verdict="doubtful")
            if finding.verdict == "bad" or finding is primary[0]
            else finding
            for finding in primary
        ]
    drifted = [figure for figure, finding in zip(compared.in_order, primary, strict=True) if finding.verdict == "bad"]
    weeks_since, columns = None, (figures.error, figures.money, figures.difference)
    if weeks.end is not None and drifted:
        (values,) = (column for column, figure in zip(columns, compared, strict=True) if figure is drifted[0])
        expected = drifted[0].expected
        weeks_since = weeks.start_of_rise(np.nan_to_num(values, nan=expected), expected)
    cost = figures.cost_baseline.compare(figures.cost_as_tuned[rows], figures.cost_as_tuned[baseline])
    joined, followed = np.unique(weeks.ago[baseline]), None
    if figures.stream is not None:
        followed = Stream(*(column[rows] for column in figures.stream)).to_json() | figures.as_tuned
        followed["error"] = compared.error.observed
    return _LastLook(compared, cost, primary, joined, alarms, weeks_since, followed)


def _remarks(policy: AbstractPolicy, log: Log, shared: Overlap, replacement: Replacement | None) -> Iterator[str]:
    if shared:
        yield shared.describe_left_out(recorded_count(policy.provenance, "queries", 0))
    if missing := int((~_judged_queries(policy, log)).sum()):
        yield f"{missing:,} of {log.n_queries:,} queries lack the answer of some model, and do not count"
    if replacement is not None and replacement.improvement is None and not replacement.faults:
        yield f"whether tuning again would gain was not tested: {why_untested(policy, log)[0]}"
