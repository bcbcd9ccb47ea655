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
from rcjax.diagnostics.verdicts import CALIBRATION_ERROR, Check, Kind, Limits, Verdict, by_name
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

#: What `check_policy` checks: beyond the first limit a figure matters, if chance does not explain it; beyond the second
#: it is doubtful even if it does.
KINDS = by_name(
    Kind(
        "Brier score",
        "squared error",
        "of the confidence against what came, less what it promises",
        Limits(0.02, 0.05),
        "number",
    ),
    CALIBRATION_ERROR,
    Kind(
        "confidences",
        "confidences",
        "distance of their distribution from that tuned on; 0: the same",
        Limits(0.05, 0.10),
        "number",
    ),
    Kind("error", "change of {noun}", "difference to what was expected", Limits(0.02, 0.05)),
    Kind("cost", "rise of cost", "how far the bill is above what was expected", Limits(0.05, 0.15)),
    Kind(
        "budget",
        "cheapest over budget",
        "how far the bill of the cheapest rung is above the budget, which is kept below it",
        Limits(0.05, 0.15),
    ),
    Kind(
        "re-tuning",
        "tuning again",
        "what it would save, as a share of all money and what the {noun} is worth",
        Limits(0.02, 0.10),
    ),
    Kind("lacking answers", "lacking answers", "share of queries that a model failed to answer", Limits(0.05, 0.05)),
    Kind(
        "labels",
        "labels by chance",
        "how far the share of unsure queries among those labelled is from that among all",
        Limits(0.05, 0.10),
    ),
)


ALARM = 0.05  # of logs in which nothing has changed, so many raise any alarm, at most

_FEWEST = 20  # queries, below which nothing has drifted for certain

_LIKELY = 0.5  # of a p-value, from which on a figure, however large, is what chance makes


def judge_drift(check: Check, p_value: float, alarm: float) -> Verdict:
    """The verdict on the figure of a check: "bad" has drifted, "doubtful" is large, but may be chance.

    Args:
        check: the check, with a raw p-value.
        p_value: of the figure, adjusted for all checks together.
        alarm: the level of the test.
    """
    if p_value < alarm and check.figure > check.limits.doubtful:
        return "bad"
    likely = check.p_value is not None and check.p_value >= _LIKELY
    return "doubtful" if check.figure > check.limits.bad and not likely else "fine"


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
        verdict = judge_drift(check, p_value, alarm)
        verdict = "doubtful" if n < _FEWEST and verdict == "bad" else verdict
        wording = check.advice
        if verdict == "doubtful":
            more = (
                "label" if unlabelled and check.name not in ("cost", "budget") else "log"
            )  # answers are enough for a cost
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
        advice = f"the squared error of the confidence of {name} is {squared}: {means}"
        yield KINDS["Brier score"].judged(name, abs(excess), advice, p_value=row["excess_p"])
        off = f"{percent(error)}, {percent(row['calibration_error_tuned'])} on queries tuned on"
        advice = f"the calibration error of {name} is {off}: {means}"
        worse = error > row["calibration_error_tuned"]  # a curve that is better is no alarm
        p_value = row["curve_p"] if worse else 1.0
        yield KINDS["calibration error"].judged(name, error, advice, p_value=p_value)
        median, tuned = figure(row["median"]), figure(row["median_tuned"])
        advice = (
            f"the raw confidences of {name} have moved by {row['distance']:.3f} (their median is {median}, {tuned} "
            "when tuned): has the model, its prompt or the kind of question changed?"
        )
        yield KINDS["confidences"].judged(name, row["distance"], advice, p_value=row["distance_p"])


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
    advice = f"the policy {counted.does(percent(error['seen']))}, where {promised} was expected"
    yield KINDS["error"].judged("", abs(gap), advice, p_value=error["p_value"], noun=counted.noun)
    yield _judge_cost(cost)
    if gain is not None:
        advice = f"on queries left out policies tuned again {gain.describe(counted.noun)}"
        yield KINDS["re-tuning"].judged("", gain.share, advice, p_value=gain.p_value, noun=counted.noun)


def _judge_cost(cost: Mapping[str, Any]) -> Check:
    """Is the cost as expected; of a ladder that follows its bill: can its budget be kept?"""
    name, what, bill, limit, p_value = "cost", "the policy", cost["seen"], cost["expected"], cost["p_value"]
    if "budget" in cost:
        name, what = "budget", "even the cheapest rung"
        bill, limit, p_value = cost["least"], cost["budget"], cost["least_p"]
    money, gap = choose_unit([limit, bill]), _relative(bill, limit)
    than = f"budget of ${money.show(limit)}" if name == "budget" else f"${money.show(limit)} expected"
    advice = (
        f"{what} costs {money.full(bill)}, {percent(gap)} more than the {than}: look at prices, at the length of "
        "questions and answers, and at how often each model is asked"
    )
    return KINDS[name].judged("", gap, advice, p_value=p_value)


def tell_followed(followed: Mapping[str, float], cost: Mapping[str, Any], counted: Counted = ERRORS) -> str:
    """What following its bill comes to, where a ladder does: a change of what queries cost is told in errors.

    Args:
        followed: as `PolicyCheck.followed`.
        cost: what was expected and what was seen at the position as tuned.
        counted: what is counted.
    """
    money, change = choose_unit([followed["budget"]]), _relative(cost["seen"], cost["expected"])
    now, tuned, low, high = (f"{followed[name]:.1f}" for name in ("position", "tuned", "low", "high"))
    error, before = (percent(followed[name]) for name in ("error", "error_tuned"))
    bill = f"{money.full(followed['bill'])} (budget ${money.show(followed['budget'])})"
    return (
        f"following its bill, in the order of these queries, it costs {bill}, with {error} {counted.noun} by rung "
        f"{now} on average ({low} to {high}); at rung {tuned}, as tuned, it would have {before}, and cost "
        f"{percent(abs(change))} {'more' if change > 0 else 'less'} than expected"
    )


def tell_cheaper(cost: Mapping[str, Any]) -> Iterator[str]:
    """A remark on money that is less than was expected, by more than chance explains: that is no drift."""
    if -_relative(cost["seen"], cost["expected"]) > KINDS["cost"].limits.doubtful and cost["p_below"] < ALARM:
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
    kind, advice = KINDS["lacking answers"], ""
    verdict: Verdict = "bad" if failed > kind.limits.bad * asked else "fine"
    if verdict == "bad":
        by_model = {name: sum(one.queries for one in lost if name in one.failed) for name in (*models, reference)}
        most = max(by_model, key=lambda name: by_model[name])
        advice = (
            f"an answer is missing for {failed:,} of {count(asked, 'query')}, most often one of {most}"
            f"{', the reference' * (most == reference)}: what is left may be the easier part, and is no fair sample; "
            "look at why (the column error of a call log), and log more"
        )
    return kind.judged("", failed / max(asked, 1), advice, verdict=verdict)


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
        yield KINDS["labels"].judged(name, gap, advice, p_value=p_value)


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
    if worth_it(before, log, gain):
        return None
    return f"it is not shown to be better: on queries left out policies tuned again {gain.describe(log.counted.noun)}"


def worth_it(policy: AnyPolicy, log: Log, gain: RetuningGain) -> bool:
    """Whether a policy tuned again on a log is to take the place of one in service, by what it gains."""
    return gain.better or (not gain.worse and breaks_limit(policy, log))


def breaks_limit(policy: AnyPolicy, log: Log) -> bool:
    """Whether a policy is shown, with 95 % confidence, to break the limit on error or money that it was tuned for.

    A ladder that follows its bill keeps to its budget.
    """
    spec = recorded_tuning(policy).spec
    if spec.budget is not None and not policy.follows:
        replayed = replay(policy, log)
        return float(replayed.spent) - _Z * float(np.nan_to_num(replayed.spent_se)) > spec.budget
    return spec.max_error is not None and float(error_interval(replay(policy, log), log)[0]) > spec.max_error
