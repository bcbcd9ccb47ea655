"""From the figures of a check of a policy to verdicts, and what to do about each; may a new policy replace it?

A log from which hard queries are missing, or in which one question stands a thousand times, makes a bad policy look
good. So few of its calls may have failed, its labels must be drawn at random, the new policy must keep its promise on
the queries that the one in service carries, too, and what is not shown to be better is not taken up.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rcjax._base.wording import choose_unit, count, figure, percent
from rcjax.diagnostics.verdicts import Check, Limits, Verdict
from rcjax.goodness_of_fit.reliability import holm
from rcjax.logs.errors import LogError
from rcjax.logs.kept_sample import read_reference
from rcjax.logs.log import Log
from rcjax.logs.oddities import uneven, unsure
from rcjax.policy.counted import ERRORS, Counted
from rcjax.policy.policy import AnyPolicy
from rcjax.replaying.figures import error_interval
from rcjax.replaying.replay import replay, walk_log
from rcjax.tuning.retune import RetuningGain, recorded_tuning, why_untested

#: Beyond the first a figure matters, if chance does not explain it; beyond the second it is doubtful even if it does.
DRIFT_LIMITS: Mapping[str, Limits] = {
    "Brier score": Limits(0.02, 0.05),
    "calibration error": Limits(0.05, 0.10),
    "confidences": Limits(0.05, 0.10),
    "error": Limits(0.02, 0.05),
    "cost": Limits(0.05, 0.15),
    "re-tuning": Limits(0.02, 0.10),
    "lacking answers": Limits(0.05, 0.05),
    "labels": Limits(0.05, 0.10),
}


_FEWEST = 20  # queries, below which nothing has drifted for certain

_COST = ("seen", "expected", "p_value")

_RETUNE = "run rcjax retune on recent queries"


def judge_drift(figure: float, p_value: float, limits: Limits, alarm: float) -> Verdict:
    """The verdict on a figure: "bad" has drifted, "doubtful" is large, but may be chance.

    Args:
        figure: how much has changed.
        p_value: of the figure, adjusted.
        limits: from where it matters.
        alarm: the level of the test.

    >>> limits = Limits(0.02, 0.05)
    >>> [judge_drift(0.03, p, limits, 0.05) for p in (0.01, 0.3)], judge_drift(0.06, 0.3, limits, 0.05)
    (['bad', 'fine'], 'doubtful')
    """
    if p_value < alarm and figure > limits.doubtful:
        return "bad"
    return "doubtful" if figure > limits.bad else "fine"


def judge_all(raw: Iterable[Check], alarm: float, unlabelled: int = 0, n: int = _FEWEST) -> Iterator[Check]:
    """Checks with raw p-values judged together: p-values adjusted by Holm's method, advice only where it is needed.

    Args:
        raw: the checks.
        alarm: the level of all tests together.
        unlabelled: logged queries without a label, which are to be labelled before others are logged.
        n: queries; of fewer than twenty, none shows more than a doubt.
    """
    checks = list(raw)
    adjusted = holm([math.nan if check.p_value is None else check.p_value for check in checks]).tolist()
    for check, p_value in zip(checks, adjusted, strict=True):
        verdict = judge_drift(check.figure, p_value, check.limits, alarm)
        verdict = "doubtful" if n < _FEWEST and verdict == "bad" else verdict
        wording = check.advice
        if verdict == "doubtful":
            more = "label" if unlabelled and check.name != "cost" else "log"  # answers are enough for a cost
            wording = f"{wording.partition(': ')[0]}; that may be chance: {more} more queries and check again"
        p_or_none = None if math.isnan(p_value) else p_value
        advice = "" if verdict == "fine" else wording
        yield dataclasses.replace(check, p_value=p_or_none, verdict=verdict, advice=advice)


def judge_models(rows: Sequence[Mapping[str, Any]], counted: Counted = ERRORS) -> Iterator[Check]:
    """Do the confidences of each model still mean what they did, and are they distributed as they were?"""
    for row in rows:
        name, excess, error = row["model"], row["brier_excess"], row["calibration_error"]
        accuracy, before, confidence = (percent(row[of]) for of in ("accuracy", "accuracy_tuned", "confidence"))
        means = f"its {counted.success} is {accuracy} ({before} when tuned), where its confidence says {confidence}"
        squared = f"{abs(excess):.3f} {'more' if excess > 0 else 'less'} than it promises"
        advice = f"the squared error of the confidence of {name} is {squared}: {means}; {_RETUNE}"
        yield _check("Brier score", name, abs(excess), row["excess_p"], advice)
        off = f"{percent(error)}, {percent(row['calibration_error_tuned'])} on queries tuned on"
        advice = f"the calibration error of {name} is {off}: {means}; {_RETUNE}"
        worse = error > row["calibration_error_tuned"]  # a curve that is better is no alarm
        yield _check("calibration error", name, error, row["curve_p"] if worse else 1.0, advice)
        median, tuned = figure(row["median"]), figure(row["median_tuned"])
        advice = (
            f"the raw confidences of {name} have moved by {row['distance']:.3f} (their median is {median}, {tuned} "
            f"when tuned): has the model, its prompt or the kind of question changed? If it is to stay so, {_RETUNE}"
        )
        yield _check("confidences", name, row["distance"], row["distance_p"], advice)


def _check(name: str, subject: str, figure: float, p_value: float, advice: str) -> Check:
    unit = "number" if name in ("Brier score", "confidences") else "share"
    return Check(name, subject, figure, p_value, DRIFT_LIMITS[name], unit, "fine", advice)


def judge_policy(
    error: Mapping[str, Any], cost: Mapping[str, Any], gain: RetuningGain | None, counted: Counted = ERRORS
) -> Iterator[Check]:
    """Are error and cost as expected, and would tuning again gain?

    Args:
        error, cost: what was expected and what was seen.
        gain: of tuning again, where it was tested.
        counted: what is counted.
    """
    gap = error["seen"] - error["expected"]
    promised = percent(error["expected"])
    if error["interval"]:
        promised += f" ({' to '.join(percent(end) for end in error['interval'])})"
    advice = f"the policy {counted.does(percent(error['seen']))}, where {promised} was expected: {_RETUNE}"
    yield _check("error", "", abs(gap), error["p_value"], advice)
    yield _judge_cost(cost)
    if gain is not None:
        advice = f"on queries left out policies tuned again {gain.describe(counted.noun)}: {_RETUNE}"
        yield _check("re-tuning", "", gain.share, gain.p_value, advice)


def _judge_cost(cost: Mapping[str, Any]) -> Check:
    """Is the cost as expected; of a ladder that follows its bill: can its budget be kept?"""
    follows = "budget" in cost
    seen, limit, p_value = (cost[name] for name in (("least", "budget", "least_p") if follows else _COST))
    money, gap = choose_unit([limit, seen]), _relative(seen, limit)
    what = "even the cheapest rung" if follows else "the policy"
    than = f"budget of ${money.show(limit)}" if follows else f"${money.show(limit)} expected"
    advice = (
        f"{what} costs {money.full(seen)}, {percent(gap)} more than the {than}: look at prices, at the length of "
        f"questions and answers, and at how often each model is asked; {_RETUNE}"
    )
    return _check("cost", "", max(gap, 0.0) if follows else gap, p_value, advice)


def tell_followed(
    followed: Mapping[str, float], cost: Mapping[str, Any], alarm: float, counted: Counted = ERRORS
) -> str:
    """What following its bill comes to, where a ladder does: a change of what queries cost is told in errors.

    Args:
        followed: as `PolicyCheck.followed`.
        cost: what was expected and what was seen at the position as tuned.
        alarm: the level of the test that costs have changed.
        counted: what is counted.
    """
    money, change = choose_unit([followed["budget"]]), _relative(cost["seen"], cost["expected"])
    now, tuned, low, high = (f"{followed[name]:.1f}" for name in ("position", "tuned", "low", "high"))
    error, before = (percent(followed[name]) for name in ("error", "error_tuned"))
    bill = f"{money.full(followed['bill'])} (budget ${money.show(followed['budget'])})"
    rung = f"by rung {now} on average ({low} to {high}; tuned: {tuned}, with {before})"
    remark = f"following its bill, in the order of these queries, it costs {bill}, with {error} {counted.noun} {rung}"
    if abs(change) > DRIFT_LIMITS["cost"].doubtful and min(cost["p_value"], cost["p_below"]) < alarm:
        remark += f": queries cost {percent(abs(change))} {'more' if change > 0 else 'less'} than tuned"
    return remark


def tell_cheaper(cost: Mapping[str, Any], alarm: float) -> Iterator[str]:
    """A remark on money that is less than was expected, by more than chance explains: that is no drift."""
    if -_relative(cost["seen"], cost["expected"]) > DRIFT_LIMITS["cost"].doubtful and cost["p_below"] < alarm:
        money = choose_unit([cost["expected"], cost["seen"]])
        less = f"{money.full(cost['seen'])}, less than the {money.full(cost['expected'])} expected"
        yield f"the policy costs {less}, which is no drift: rcjax retune may make use of it"


def _relative(observed: float, expected: float) -> float:
    if expected > 0:
        return observed / expected - 1
    return float(np.inf) if observed > 0 else 0.0


_Z = 1.645  # one-sided, 5 %
_CHANCE = 0.01  # of logs whose labels are drawn at random, so many are told biased by them, at most
_MATTERS = 0.02  # of error


def judge_answers(log: Log, models: Collection[str]) -> Check:
    """The share of queries that some of these models, or the reference, failed to answer, of those that all were asked.

    Calls that nobody made are another thing (`Log.failed`): a log may hold the queries of several policies.

    >>> import rcjax
    >>> log = rcjax.sample_log(100, seed=0)
    >>> judge_answers(log, log.models).verdict
    'fine'
    """
    reference = "" if log.reference is None else log.reference.model
    lost = [one for one in log.failed if {*models} <= one.asked and {*models, reference} & one.failed]
    failed = sum(one.queries for one in lost)
    asked = failed + int(log.select([name for name in log.models if name in models]).complete.sum())
    limits, advice = DRIFT_LIMITS["lacking answers"], ""
    verdict = "bad" if failed > limits.bad * asked else "fine"
    if verdict == "bad":
        by_model = {name: sum(one.queries for one in lost if name in one.failed) for name in (*models, reference)}
        most = max(by_model, key=lambda name: by_model[name])
        advice = (
            f"an answer is missing for {failed:,} of {count(asked, 'query')}, most often one of {most}"
            f"{', the reference' * (most == reference)}: what is left may be the easier part, and is no fair sample; "
            "look at why (the column error of a call log), and log more"
        )
    return Check("lacking answers", "", failed / max(asked, 1), None, limits, "share", verdict, advice)


def judge_labels(log: Log, models: Sequence[str]) -> Iterator[Check]:
    """Are labels drawn at random? They are not where queries that the cheapest model is unsure of have more, or fewer.

    A check for each set of answers that are labelled in part, of the queries that all these models answered. Its figure
    is by how much the share of such queries among those labelled differs from that among all; its p-value is raw.

    Args:
        log: the log.
        models: the models whose labels count, the cheapest first.
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
        yield Check("labels", name, gap, p_value, DRIFT_LIMITS["labels"], "share", "fine", advice)


def why_not(before: AnyPolicy, after: AnyPolicy, log: Log, gain: RetuningGain | None) -> list[str]:
    """Why a policy tuned again on a log is not to take the place of the one in service, in words; empty if it may.

    Args:
        before: the policy in service.
        after: the new one.
        log: the fresh log.
        gain: what policies tuned again gain on queries left out (`held_out_gain`).
    """
    known = [name for name in log.models if name in {*before.models, *after.models}]
    biased = [judge_answers(log, known), *judge_all(judge_labels(log, known), _CHANCE)]
    whys = [*(one.advice for one in biased if one.verdict == "bad"), _broken(before, after, log)]
    return [why for why in (*whys, _unshown(before, log, gain)) if why]


def _broken(before: AnyPolicy, after: AnyPolicy, log: Log) -> str | None:
    """That it does not keep its promise on the queries that the policy in service carries, where that one does better.

    By more than two points of error, and than chance explains with 95 % confidence.
    """
    carried = before.provenance.get("reference")
    if carried is None:
        return None
    try:
        kept = read_reference(carried, log.task)
        kept = kept.take(kept.select([*{*before.models, *after.models}]).complete)
        new, old = (walk_log(policy, kept).wrong for policy in (after, before))
    except LogError:  # it lacks a model, or what they compare
        return None
    expected = after.expected.get("error_high") or after.expected.get("error")
    bar = max(old.mean(), 0.0 if expected is None else expected)
    spread = max(new.std(), math.sqrt(max(bar * (1 - bar), 0.0))) / math.sqrt(len(new))
    if new.mean() - bar <= max(_MATTERS, _Z * spread):
        return None
    noun, promised = log.counted.noun, after.expected.get("error")
    promise = f"{percent(promised)} {noun} is promised" if promised is not None else "less is promised"
    where = f"on the {count(len(new), 'query')} that the policy in service carries"
    return f"{where} it has {percent(new.mean())} {noun}, where {promise}, and that one has {percent(old.mean())}"


def _unshown(before: AnyPolicy, log: Log, gain: RetuningGain | None) -> str | None:
    """That it is not shown to be better, where the policy in service keeps to its limit, or that it is worse."""
    if gain is None:
        why, mendable = why_untested(before, log)
        return f"whether it gains on queries left out was not tested: {why}" if mendable else None
    if gain.better or (not gain.worse and breaks_limit(before, log)):
        return None
    return f"it is not shown to be better: on queries left out policies tuned again {gain.describe(log.counted.noun)}"


def breaks_limit(policy: AnyPolicy, log: Log) -> bool:
    """Whether a policy is shown, with 95 % confidence, to break the limit on error or money that it was tuned for.

    A ladder that follows its bill keeps to its budget.
    """
    spec = recorded_tuning(policy).spec
    if spec.budget is not None and not policy.follows:
        replayed = replay(policy, log)
        return float(replayed.spent) - _Z * float(np.nan_to_num(replayed.spent_se)) > spec.budget
    return spec.max_error is not None and float(error_interval(replay(policy, log), log)[0]) > spec.max_error
