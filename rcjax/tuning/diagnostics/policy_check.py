"""Is a policy still right? A fresh log of labelled answers against what the policy was tuned on: the one verdict.

Two figures are primary: the error of the policy and its money. They share the level of the alarm, and decide. All else
(calibration and confidences of each model, labels, what tuning again would gain) explains. A figure has drifted where
it is beyond its limit *and* chance does not explain it: what is too small to matter does not alarm in a log of any
size, and of logs, or of years of looks, in which nothing has changed at most that share does.

A log that tells times is taken by its weeks (`window`): its last eight, against the queries tuned on and the weeks
before these that were found fine.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from rcjax._base.checks import takes
from rcjax._base.wording import count, percent
from rcjax._core.json_values import plain
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.calibration import expected_calibration_error
from rcjax.model.goodness_of_fit.changes import calibration_change, distribution_change
from rcjax.policy.comparison import IN_SERVICE
from rcjax.policy.counted import ERRORS, Counted, recorded_counted
from rcjax.policy.following import Bill
from rcjax.policy.policy import AnyPolicy
from rcjax.policy.record import recorded_count, recorded_tuning
from rcjax.tuning.certify import Overlap, overlap
from rcjax.tuning.diagnostics.checks import KINDS, PRIMARY, CheckResult, Verdict, adjusted, worst
from rcjax.tuning.diagnostics.decision import Baseline, Decision, Figure, decide, tell_cheaper, tell_followed
from rcjax.tuning.diagnostics.replacement import Replacement, judge_replacement, judge_sample
from rcjax.tuning.diagnostics.window import WEEKLY, WINDOW, Weeks, separate_looks
from rcjax.tuning.replaying.comparing import Replies, Today, comparable_log, models_of
from rcjax.tuning.replaying.replay import Rungs, Stream, Trace, walk_log
from rcjax.tuning.replaying.walk import calibrated_confidence
from rcjax.tuning.retune import carried_log, why_untested

_MOST_COMPARED = (
    20_000  # answers of each model and sample whose confidences are compared: more show nothing that matters
)

_FEWEST = 20  # queries, below which nothing has drifted for certain


@dataclasses.dataclass(frozen=True)
class ModelChange:
    """What a fresh log says of one model, beside what the log tuned on said."""

    model: str
    answers: int
    """Labelled answers of the fresh log."""
    accuracy: float
    accuracy_tuned: float
    confidence: float
    """Mean calibrated confidence."""
    calibration_error: float
    calibration_error_tuned: float
    calibration_p: float
    """Of the change of what confidences mean."""
    distance: float
    """√CvM of the raw confidences."""
    distance_p: float
    median: float
    """Of the raw confidences, as a probability."""
    median_tuned: float

    def checks(self, counted: Counted) -> Iterator[CheckResult]:
        """Do its confidences mean what they did, and are they distributed as they were?"""
        name = self.model
        accuracy, before, confidence = map(percent, (self.accuracy, self.accuracy_tuned, self.confidence))
        means = f"its {counted.success} is {accuracy} ({before} when tuned), where its confidence says {confidence}"
        off = f"{percent(self.calibration_error)}, {percent(self.calibration_error_tuned)} on queries tuned on"
        worse = self.calibration_error > self.calibration_error_tuned  # confidences that mean more are no alarm
        yield KINDS["calibration error"].judged(
            name,
            self.calibration_error,
            f"the calibration error of {name} is {off}: {means}",
            p_value=self.calibration_p if worse else 1.0,
        )
        yield KINDS["confidences"].judged(
            name,
            self.distance,
            f"the raw confidences of {name} have moved by {self.distance:.3f} (their median is {self.median:.2g}, "
            f"{self.median_tuned:.2g} when tuned): has the model, its prompt or the kind of question changed?",
            p_value=self.distance_p,
        )


@dataclasses.dataclass(frozen=True)
class Looked:
    """Which queries a check looked at, and how often it is taken to look."""

    looks: int
    """A year; the alarms of all are 5 % together."""
    weeks: int
    """That the queries checked came in; 0 of a log without times."""
    begin: str | None
    """The day on which these weeks began."""
    earlier: int
    """Queries of earlier weeks that were found fine, and joined those tuned on."""
    alarms: tuple[str, ...] = ()
    """The first day of each week at whose end a look raised an alarm."""
    since: str | None = None
    """The day of the week from which on what has drifted is highest; None where nothing has drifted."""

    def describe(self) -> str:
        """The window in words; empty for a log that is looked at once."""
        how = "weekly" if self.looks == WEEKLY else f"{self.looks} times a year"
        if not self.weeks:
            return "" if self.looks == 1 else f"Checked {how} (--looks)."
        joined = f" and {self.earlier:,} queries of earlier weeks, which were fine" if self.earlier else ""
        weeks = f"The last {count(self.weeks, 'week')}, since {self.begin}"
        return f"{weeks}, beside what was tuned on{joined}; checked {how} (--looks)."


@dataclasses.dataclass(frozen=True)
class PolicyCheck:
    """What a fresh log says of a policy. Figures are shares of 1, money is per query."""

    source: str
    """The fresh log."""
    policy_models: tuple[str, ...]
    """The models that the policy may ask."""
    n: int
    """Queries checked: those that all models of the policy answered."""
    reference: int
    """Queries of the log tuned on that the policy carries."""
    tuned_on: int
    """All queries of that log."""
    looked: Looked
    models: tuple[ModelChange, ...]
    error: Figure
    """Of a ladder that follows its bill, of what following it comes to."""
    cost: Figure
    """The bill, at the position of a ladder; for policies found by the model alone, the cost at the models' mean costs.
    Of a ladder that follows its bill that of its cheapest rung, beside the budget."""
    bill: Figure
    """What the position as tuned costs, beside what was promised; mostly `cost` itself."""
    replacement: Replacement | None
    """What tuning again would gain, and whether `rcjax retune` would write what comes of it. None where not tested."""
    checks: tuple[CheckResult, ...]
    """Every check: the two primary figures first. `p_value` is adjusted, and "bad" has changed."""
    decision: Decision
    """What all of it comes to, and what to do: the same on every screen."""
    remarks: tuple[str, ...]
    """What is worth knowing besides."""
    followed: dict[str, float] | None = None
    """What following its bill does on these queries, in their order (`replaying.stream.Stream.to_json`), with
    `budget`, and `tuned`, the position as it was tuned, and what `error_tuned` is there. None for what follows none."""
    unlabelled: int = 0
    """Of the `n` queries, those of which no answer is labelled."""
    counted: Counted = ERRORS
    """What is counted on the log, with the words for it; in the JSON form its noun."""

    @property
    def drifted(self) -> bool:
        """Whether a primary figure has, or the log is no fair sample, so that nothing is certain."""
        return self.decision.alarm

    @property
    def verdict(self) -> Verdict:
        """That of the primary figures: "bad" has drifted, "doubtful" may be chance."""
        return worst(self.checks[:2]) if not self.decision.alarm else "bad"

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values, without what does not apply; what is not a number becomes None."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.followed is None:
            del fields["followed"]
        records: dict[str, Any] = {
            name: dataclasses.asdict(getattr(self, name)) for name in ("looked", "error", "cost", "bill")
        }
        records["looked"]["described"] = self.looked.describe()
        records["models"] = [dataclasses.asdict(one) for one in self.models]
        records["checks"] = [dataclasses.asdict(one) | {"primary": one.name in PRIMARY} for one in self.checks]
        records |= {"replacement": self.replacement and self.replacement.to_json()}
        records |= {"decision": self.decision.to_json(), "counted": self.counted.noun}
        return {"drifted": self.drifted, "verdict": self.verdict} | plain(fields | records)


@takes(policy=AnyPolicy, log=Log)
def check_policy(
    policy: AnyPolicy,
    log: Log,
    *,
    retuning: bool | Replacement = True,
    looks: int | None = None,
    seed: int = 0,
) -> PolicyCheck:
    """Is a policy still right on a fresh log, whose queries it was not tuned on? The verdict that every screen gives.

    Tested first are the error and the cost of the policy against those promised, one-sided, counting the sampling of
    both logs; the two share the alarm. A ladder is judged by its expected error and cost on each query, without the
    noise of the lots. Where it follows its bill, its error counts that it keeps to its budget with; its cost has
    drifted where even its cheapest rung costs more. What explains is tested, and adjusted, by itself: for each model
    what its confidences mean and how they are distributed. Improvements are no alarm.

    Of a log with times (`Log.time`) the last eight weeks are checked, and earlier ones that were found fine join the
    queries tuned on. Where some queries were tuned on, a remark counts them.

    Args:
        policy: the policy in service.
        log: the fresh log.
        retuning: whether to ask what re-tuning would gain, which takes most of the time; or what is known of that.
        looks: how often a year the policy is checked: at most 5 % of years in which nothing changes raise an alarm. By
            default 52 for a log with times, else 1.
        seed: of the folds.

    Raises ValueError for a policy made by hand, which carries no queries that it was tuned on; LogError where the log
    lacks a model, is the one tuned on, or has too few answers.

    >>> import rcjax
    >>> log = rcjax.sample_log(600, seed=0).select(["llama3.2-1b", "llama3.1-70b"])
    >>> train, fresh = log.split(0.5, seed=0)
    >>> policy = rcjax.solve_frontier(rcjax.fit(train), lam=[1000.0], cascades="full").policy(lam=1000.0)
    >>> check = rcjax.check_policy(policy, fresh)
    >>> check.drifted, len(check.checks), check.reference
    (False, 6, 300)
    """
    shared = overlap(log, policy)
    if shared.whole:
        raise LogError(f"{log.source}: all of its queries were tuned on: check the policy on fresh ones")
    if (promised := recorded_counted(policy.provenance).noun) != log.counted.noun:
        raise LogError(f"{log.source}: it tells the {log.counted.noun}, and the policy was tuned for the {promised}")
    log = log if log.time is None else log.take(np.argsort(np.asarray(log.time, float), kind="stable"))
    old = carried_log(policy).select(policy.models)
    if (today := _matched(policy, log)) is not None:  # differences are on queries that both have answered
        named = {*policy.models, *models_of(today)}
        log = log.take(log.select([name for name in log.models if name in named]).complete)
    new = log.select(policy.models)
    weeks, outcomes = Weeks.of(new), _outcomes(policy, old, new, log)
    looks = looks or (1 if weeks.end is None else WEEKLY)
    seen = _looked(outcomes, weeks.of_rows(new.complete), separate_looks(looks), log.counted)
    window, fine = new.take(weeks.in_window), weeks.ago_in(seen.joined)
    models = _model_changes(policy, old, new, fine, weeks.in_window)
    secondary = adjusted((check for row in models for check in row.checks(log.counted)), separate_looks(looks))
    sample = judge_sample(log.take(weeks.in_window), policy.models)
    replacement = retuning if isinstance(retuning, Replacement) else None
    replacement = judge_replacement(policy, log.take(weeks.in_window), seed=seed) if retuning is True else replacement
    unlabelled = int((window.complete & ~window.labelled.any(1)).sum())
    tuned_on = recorded_count(policy.provenance, "queries", old.n_queries)
    about = {"counted": log.counted, "unlabelled": unlabelled, "tuned_on": tuned_on}
    followed = outcomes.followed(seen.rows)
    money = recorded_tuning(policy).spec.money([seen.cost.expected, seen.cost.seen])
    told = tell_cheaper(seen.bill, money)
    told = told if followed is None else (tell_followed(followed, seen.bill, money, log.counted),)
    return PolicyCheck(
        source=PurePath(log.source).name,
        policy_models=policy.models,
        n=seen.error.n,
        reference=old.n_queries,
        looked=seen.in_words(weeks, looks, int(fine.sum())),
        models=models,
        error=seen.error,
        cost=seen.cost,
        bill=seen.bill,
        replacement=replacement,
        checks=(*seen.primary, *(one for one in sample if one.verdict == "bad"), *secondary),
        decision=decide(seen.primary, sample, seen.error, seen.cost, replacement, money, **about),
        followed=followed,
        remarks=(*_remarks(policy, window, shared, replacement), *told),
        **about,
    )


@dataclasses.dataclass(frozen=True)
class _Outcomes:
    """What becomes of the N queries of a log that all models answered, and what that is compared with."""

    wrong: np.ndarray  # (N,) of a ladder that follows its bill, as it follows it
    money: np.ndarray  # (N,) of a ladder that follows its bill, by its cheapest rung
    bill: np.ndarray  # (N,) at the position as tuned
    error: Baseline
    cost: Baseline  # of `money`
    promised: Baseline  # of `bill`
    stream: Stream | None = None
    about: dict[str, float] = dataclasses.field(default_factory=dict)  # what else `PolicyCheck.followed` tells

    def followed(self, rows: np.ndarray) -> dict[str, float] | None:
        """What following the bill came to with some queries, (N,) bool; None where none is followed."""
        if self.stream is None:
            return None
        return Stream(*(of[rows] for of in self.stream)).to_json() | self.about


def _outcomes(policy: AnyPolicy, old: Log, new: Log, log: Log) -> _Outcomes:
    """What becomes of queries that all models of a policy, and where they count today's, have answered.

    Args:
        policy: the policy.
        old, new: the log that it carries and the fresh one, of its models.
        log: the fresh one, of all models.
    """
    before, now = walk_log(policy, old), walk_log(policy, new)
    trained_on = recorded_count(policy.provenance, "complete_queries", len(before.wrong))
    by_model = recorded_tuning(policy).spec.search != "selected"
    bill = _costs(now, by_model)
    error = Baseline.promised(policy, "error", before.wrong, trained_on)
    promised = Baseline.promised(policy, "cost", _costs(before, by_model), trained_on)
    if (today := _matched(policy, log)) is not None:
        margin, shared = recorded_tuning(policy).spec.match, comparable_log(log, [policy, today])
        error = Baseline(None, margin, rival=f"{today} alone" if isinstance(today, str) else IN_SERVICE)
        now = now._replace(wrong=Replies.of(policy, shared).wrong - Replies.of(today, shared).wrong)
    if policy.budget is None or not policy.follows:
        return _Outcomes(now.wrong, bill, bill, error, promised, promised)
    rungs = Rungs.of(policy, new)
    stream = rungs.followed(Bill.of(policy.budget))
    limit = Baseline(None, policy.budget)
    about = {"tuned": policy.position, "error_tuned": float(now.wrong.mean()), "budget": policy.budget}
    return _Outcomes(stream.wrong, rungs.spent[0], bill, error, limit, promised, stream, about)


def _matched(policy: AnyPolicy, log: Log) -> Today | None:
    """What a policy with a margin is held to, where a log has its answers; None for other policies."""
    spec = recorded_tuning(policy).spec
    if spec.match is None or spec.today is None or not {*models_of(spec.today)} <= {*log.models}:
        return None
    return spec.today


class _Seen(NamedTuple):
    """What the look at the last weeks saw."""

    rows: np.ndarray  # (N,) bool: the queries looked at
    error: Figure
    cost: Figure
    bill: Figure  # at the position as tuned
    primary: list[CheckResult]
    joined: np.ndarray  # (J,) the weeks, counted back, that were found fine
    alarms: list[int]  # the weeks, counted back, at whose end a look raised an alarm
    since: int | None  # how many weeks ago what has drifted began to be highest; None where nothing has

    def in_words(self, weeks: Weeks, looks: int, earlier: int) -> Looked:
        span = 0 if weeks.end is None else min(WINDOW, int(weeks.ago.max()) + 1)
        since = None if self.since is None else weeks.date(self.since)
        alarms = tuple(filter(None, map(weeks.date, self.alarms)))
        return Looked(looks, span, weeks.date(span - 1) if span else None, earlier, alarms, since)


def _looked(outcomes: _Outcomes, weeks: Weeks, separate: float, counted: Counted) -> _Seen:
    """Every look from the first week on, and what the last one saw: weeks without an alarm join the baseline.

    Args:
        outcomes: what became of the queries.
        weeks: theirs.
        separate: how many separate looks the looks of a year come to.
        counted: what is counted.
    """
    spoilt, alarms, last = set[int](), list[int](), None
    for ago, rows, earlier in weeks.windows():
        if rows.sum() < 2 and ago:
            continue
        fine = earlier & ~np.isin(weeks.ago, [*spoilt])
        error = outcomes.error.beside(outcomes.wrong[rows], outcomes.wrong[fine])
        cost = outcomes.cost.beside(outcomes.money[rows], outcomes.money[fine])
        primary = adjusted([error.error_check(counted), cost.money_check()], separate)
        if any(check.verdict == "bad" for check in primary) and error.n >= _FEWEST:
            spoilt |= {*weeks.ago[rows].tolist()}
            alarms.append(ago)
        last = rows, fine, error, cost, primary
    assert last is not None  # the look at the last week
    rows, fine, error, cost, primary = last
    since = None
    if weeks.end is not None and (bad := [check.verdict == "bad" for check in primary])[0] | bad[1]:
        figure, values = (error, outcomes.wrong) if bad[0] else (cost, outcomes.money)
        since = weeks.since(values, figure.expected)
    if error.n < _FEWEST:
        primary = [
            dataclasses.replace(one, verdict="doubtful" if one.verdict == "bad" else one.verdict) for one in primary
        ]
    bill = outcomes.promised.beside(outcomes.bill[rows], outcomes.bill[fine])
    return _Seen(rows, error, cost, bill, primary, np.unique(weeks.ago[fine]), alarms, since)


def _model_changes(
    policy: AnyPolicy, old: Log, new: Log, fine: np.ndarray, window: np.ndarray
) -> tuple[ModelChange, ...]:
    """What the queries in the window say of each model, beside those carried and those of weeks that were fine."""
    sides = [_answers(policy, old)], [_answers(policy, new.take(window))]
    if fine.any():
        sides[0].append(_answers(policy, new.take(fine)))
    before, now = (
        {name: np.concatenate([getattr(one, name) for one in side], -1) for name in _Answers._fields} for side in sides
    )
    return tuple(
        _compare_model(name, _Answers(**before), _Answers(**now), j, new.source) for j, name in enumerate(policy.models)
    )


class _Answers(NamedTuple):
    """The answers of the k models of a policy to the n queries of a log."""

    logprob: np.ndarray  # (k, n) in the precision in which a policy carries them
    confidence: np.ndarray  # (k, n) calibrated
    correct: np.ndarray  # (k, n)
    labelled: np.ndarray  # (k, n) those with a label; where some have none, of a fair sample
    answered: np.ndarray  # (k, n)


def _answers(policy: AnyPolicy, log: Log) -> _Answers:
    """What a log of the models of a policy, in its order, tells of each."""
    logprob = np.asarray(log.logprob).T
    carried = logprob.astype(np.float32)
    calibrations = [policy.calibrations[name] for name in log.models]
    confidence = calibrated_confidence(calibrations, carried.astype(logprob.dtype))
    return _Answers(carried, confidence, np.asarray(log.correct, float).T, log.labelled.T, np.asarray(log.answered).T)


def _compare_model(name: str, old: _Answers, new: _Answers, j: int, source: str) -> ModelChange:
    labelled = [(side.confidence[j, side.labelled[j]], side.correct[j, side.labelled[j]]) for side in (old, new)]
    if min(len(right) for _, right in labelled) < 2:
        raise LogError(f"{source}: fewer than two answers of {name} with a label: log more")
    (phi_before, right_before), (phi, right) = labelled
    rng = np.random.default_rng(0)
    raw_before, raw = (_some(rng, side.logprob[j, side.answered[j]]) for side in (old, new))
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
    )


def _some(rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
    return values if len(values) <= _MOST_COMPARED else rng.choice(values, _MOST_COMPARED, replace=False)


def _costs(walked: Trace, by_model: bool) -> np.ndarray:
    """(n,) values whose mean is the cost, of the kind that the search promises: bills, or at the models' mean costs.

    The variance of the latter is n times that of their mean: what one query moves is how often a model is asked, and
    what its answers cost on average.
    """
    if not by_model:
        return walked.spent
    mean, share = walked.query_cost.mean(1), walked.asked.mean(1)
    return walked.charge + share @ (walked.query_cost - mean[:, None])


def _remarks(policy: AnyPolicy, log: Log, shared: Overlap, replacement: Replacement | None) -> Iterator[str]:
    if shared:
        yield f"{shared.describe()}, which hides what has changed: check it on fresh queries"
    if not log.complete.all():
        missing = log.n_queries - int(log.complete.sum())
        yield f"{missing:,} of {log.n_queries:,} queries lack the answer of some model, and do not count"
    if replacement is not None and replacement.gain is None and not replacement.against:
        yield f"whether tuning again would gain was not tested: {why_untested(policy, log)[0]}"
