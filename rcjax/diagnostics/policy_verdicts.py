"""From the figures of a check of a policy to verdicts, and what to do about each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rcjax._base.wording import choose_unit, figure, percent
from rcjax.diagnostics.verdicts import CALIBRATION_ERROR, Check, Kind, Limits, Verdict, by_name
from rcjax.goodness_of_fit.reliability import holm
from rcjax.policy.counted import ERRORS, Counted
from rcjax.tuning.retune import RetuningGain

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
