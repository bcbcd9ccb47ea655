"""Checks: one figure each, judged by a limit and by chance. The one table of all that `diagnose` and `check` look at.

A check is not a significance test alone: with enough queries every model is rejected, and with few none is. A figure
is doubtful where it is large enough to matter and chance does not explain it, or where it is large and the queries
are too few to tell.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import numpy as np

from rcjax.goodness_of_fit.bootstrap import SIGNIFICANT
from rcjax.goodness_of_fit.reliability import holm
from rcjax.policy.counted import ERRORS

Verdict = Literal["fine", "doubtful", "bad"]


class Limits(NamedTuple):
    """Where a figure starts to matter: doubtful beyond the first, bad beyond the second."""

    doubtful: float
    bad: float


@dataclasses.dataclass(frozen=True)
class Kind:
    """What is checked."""

    name: str
    """As in JSON, such as "calibration error"."""
    label: str
    """What it is called in front of people; {noun} is what is counted."""
    meaning: str
    """What its figure says."""
    limits: Limits
    """Doubtful and bad from here on; downwards where the second is the smaller one."""
    unit: Literal["share", "number"] = "share"
    """"share" is shown as a percentage."""

    def judged(
        self,
        subject: str,
        figure: float,
        advice: str,
        *,
        p_value: float | None = None,
        verdict: Verdict = "fine",
        noun: str = ERRORS.noun,
    ) -> "CheckResult":
        """A check of this kind.

        Args:
            subject, figure, advice, p_value, verdict: as `CheckResult` has them.
            noun: what is counted.
        """
        words = {name: getattr(self, name).format(noun=noun) for name in ("label", "meaning")}
        own = {"subject": subject, "figure": figure, "p_value": p_value, "verdict": verdict, "advice": advice}
        return CheckResult(**vars(self) | words | own)


@dataclasses.dataclass(frozen=True)
class CheckResult(Kind):
    """One figure, judged."""

    subject: str = ""
    """The model, pair or chain that it is about; empty for the log as a whole."""
    figure: float = math.nan
    """The figure itself, as `unit` says."""
    p_value: float | None = None
    """How likely chance alone makes such a figure; None if that is not tested."""
    verdict: Verdict = "fine"
    advice: str = ""
    """What it means and what to do, in a sentence; empty if all is fine."""


def worst(checks: Iterable[CheckResult]) -> Verdict:
    """The worst verdict of some checks."""
    verdicts = {check.verdict for check in checks}
    return "bad" if "bad" in verdicts else "doubtful" if "doubtful" in verdicts else "fine"


def by_name(*kinds: Kind) -> Mapping[str, Kind]:
    """Kinds of checks by their names."""
    return {kind.name: kind for kind in kinds}


#: A raw p-value of a primary figure below it raises a doubt, where it raises no alarm.
UNLIKELY = 0.1

#: At most this share of the looks at logs in which nothing has changed, or of years of looks, raises an alarm.
ALARM = 0.05

_UNSEEN = "difference to the promise on queries that were not tuned on"

#: All that is checked: first what `diagnose` checks of a tuning and its model, then what `check` does of a policy.
#: The table in the documentation is made of these limits.
KINDS = by_name(
    Kind("queries", "queries", "that every model answered", Limits(200, 50), "number"),
    Kind("accuracy", "change of own {noun}", "difference to the log that was fitted", Limits(0.03, 0.06)),
    Kind(
        "calibration error",
        "calibration error",
        "how far confidences are from what came, on average",
        Limits(0.05, 0.10),
    ),
    Kind(
        "separation",
        "better is surer",
        "how often the better of two answers has the higher confidence; by chance 50 %",
        Limits(0.65, 0.55),
    ),
    Kind(
        "certain answers",
        "confidence 1",
        "share of answers with confidence 1, which no threshold can part",
        Limits(0.5, 0.9),
    ),
    Kind(
        "marginal",
        "fit of one model",
        "distance of its confidences from the curve fitted to them",
        Limits(0.03, 0.06),
        "number",
    ),
    Kind(
        "copula",
        "fit of two models",
        "how far off it is in how their confidences go together, in probability",
        Limits(0.015, 0.03),
    ),
    Kind(
        "Markov property",
        "fit of three",
        "how far the first still predicts the third when the second is known; 0: not at all",
        Limits(0.10, 0.25),
        "number",
    ),
    Kind("predicted error", "{noun} off promise", _UNSEEN, Limits(0.01, 0.03)),
    Kind("predicted cost", "cost off promise", _UNSEEN, Limits(0.05, 0.15)),
    Kind("error", "rise of {noun}", "seen less promised", Limits(0.02, 0.05)),
    Kind(
        "difference", "{noun} over today's", "how many points more than today's on the same queries", Limits(0.0, 0.02)
    ),
    Kind("cost", "rise of cost", "how far the bill is above what was promised", Limits(0.05, 0.15)),
    Kind(
        "budget",
        "cheapest over budget",
        "how far the bill of the cheapest rung is above the budget, which is kept below it",
        Limits(0.05, 0.15),
    ),
    Kind(
        "confidences",
        "confidences",
        "distance of their distribution from that before; 0: the same",
        Limits(0.05, 0.10),
        "number",
    ),
    Kind("asked", "how often asked", "change of the share of queries that the model is asked", Limits(0.05, 0.10)),
    Kind("failed calls", "failed calls", "rise of the share of calls without an answer", Limits(0.02, 0.05)),
    Kind("tokens", "tokens per call", "rise of the tokens of a call, of questions and answers", Limits(0.10, 0.25)),
    Kind("bill", "bill of a query", "rise of what queries cost, whichever rung they went by", Limits(0.10, 0.25)),
    Kind("lacking answers", "lacking answers", "share of queries that a model failed to answer", Limits(0.05, 0.05)),
    Kind(
        "labels",
        "labels by chance",
        "how far the share of unsure queries among those labelled is from that among all",
        Limits(0.05, 0.10),
    ),
)

#: The figures that decide whether a policy is still right; all others explain.
PRIMARY = ("error", "difference", "cost", "budget")


def judge(name: str, figure: float, p_value: float | None = None, *, by_chance: bool | None = None) -> Verdict:
    """The verdict on a figure, by its limits: large figures that chance explains are doubtful at worst.

    Args:
        name: of the check, whose limits are those of `KINDS[name]`.
        figure: what is judged.
        p_value: tells whether chance explains it.
        by_chance: tells it instead, where a band was looked at.

    >>> judge("calibration error", 0.12, 0.001), judge("calibration error", 0.12, 0.3), judge("separation", 0.8)
    ('bad', 'doubtful', 'fine')
    """
    limits = KINDS[name].limits
    sign = 1 if limits.bad > limits.doubtful else -1
    if np.isnan(figure):
        return "doubtful"
    if by_chance is None:
        by_chance = p_value is not None and not p_value < SIGNIFICANT
    if sign * figure > sign * limits.bad:
        return "doubtful" if by_chance else "bad"
    return "doubtful" if sign * figure > sign * limits.doubtful and not by_chance else "fine"


def adjusted(checks: Iterable[CheckResult], looks: float = 1.0, alarm: float = ALARM) -> list[CheckResult]:
    """Checks of a policy with raw p-values, judged together: adjusted by Holm's method, and for so many looks.

    A figure beyond its limit that chance does not explain is bad; a primary one that chance might explain, doubtful.

    Args:
        checks: the checks.
        looks: how many separate looks a year of looks comes to.
        alarm: the level of all together.
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
        for check, p_value in zip(checks, holm(raw).tolist(), strict=True)
    ]


def _verdict(check: CheckResult, p_value: float, alarm: float) -> Verdict:
    if not check.figure > check.limits.doubtful:
        return "fine"
    if p_value < alarm:
        return "bad"
    unlikely = check.p_value is not None and check.p_value < UNLIKELY
    return "doubtful" if unlikely and check.name in PRIMARY else "fine"
