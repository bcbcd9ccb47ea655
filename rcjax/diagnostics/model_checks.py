"""Judge what `diagnose` found: enough queries, confidences that mean what they say, a fit that fits, a promise kept."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rcjax._base.wording import percent
from rcjax.diagnostics.checks import KINDS, CheckResult, Verdict, judge
from rcjax.goodness_of_fit.bootstrap import SIGNIFICANT
from rcjax.policy.counted import ERRORS, Counted


def _check(
    name: str,
    subject: str,
    figure: float,
    advice: str,
    *,
    p_value: float | None = None,
    verdict: Verdict | None = None,
    noun: str = ERRORS.noun,
) -> CheckResult:
    """A check, whose advice is dropped if all is fine."""
    verdict = verdict or judge(name, figure, p_value)
    advice = "" if verdict == "fine" else advice
    return KINDS[name].judged(subject, figure, advice, p_value=p_value, verdict=verdict, noun=noun)


def judge_size(n: int) -> Iterator[CheckResult]:
    """Are there enough queries?"""
    rough = f"{n} queries were answered by every model: every figure here is rough; label more, 300 if you can"
    yield _check("queries", "", float(n), rough)


def judge_calibration(rows: Sequence[Mapping[str, Any]], counted: Counted = ERRORS) -> Iterator[CheckResult]:
    """Do confidences mean what they say, tell better answers from worse ones, and differ at all?"""
    for row in rows:
        yield _judge_accuracy(row, counted.noun)
        yield from (judgement(row) for judgement in (_judge_error, _judge_separation, _judge_certain))


def _judge_accuracy(row: Mapping[str, Any], noun: str) -> CheckResult:
    name, gap = row["model"], row["accuracy"] - row["expected_accuracy"]
    advice = (
        f"the {noun} of {name} is {percent(1 - row['accuracy'])} here, and {percent(1 - row['expected_accuracy'])} on "
        f"the queries fitted to: this log is {'harder' if gap < 0 else 'easier'}; tune on queries like those to come"
    )
    return _check("accuracy", name, abs(gap), advice, p_value=row["accuracy_p"], noun=noun)


def _judge_error(row: Mapping[str, Any]) -> CheckResult:
    name, error, chance = row["model"], row["calibration_error"], percent(row["by_chance"])
    if row["p_value"] >= SIGNIFICANT:
        why = f"but so few queries give {chance} to a perfect calibration: label more before you trust its confidence"
    else:
        why = f"more than the {chance} that chance explains: label more queries, or drop the model"
    advice = f"the calibration error of {name} is {percent(error)}, {why}"
    return _check("calibration error", name, error, advice, p_value=row["p_value"])


def _judge_separation(row: Mapping[str, Any]) -> CheckResult:
    name, figure, slope_p = row["model"], row["separation"], row["slope_p"]
    by_chance = not slope_p < SIGNIFICANT
    verdict = limit = judge("separation", figure)
    if row["slope"] < 0 or by_chance:
        verdict = "doubtful" if row["slope"] >= 0 and limit == "fine" else "bad"
    if np.isnan(figure):
        advice = f"no answer of {name} is better than another here: its confidence cannot be judged; label more queries"
    elif row["slope"] < 0 and not by_chance:
        advice = f"the surer {name} is, the worse it answers: are its log-probabilities and labels not mixed up?"
    else:
        what = "deferring by its confidence gains little; get it another signal, or leave it out"
        if limit == "fine":
            what = "but chance alone can make that with so few queries; label more before you trust its confidence"
        share = f"in {percent(figure, 0)} of cases (by chance 50 %)"
        advice = f"the better of two answers of {name} has the higher confidence {share}: {what}"
    return _check("separation", name, figure, advice, p_value=slope_p, verdict=verdict)


def _judge_certain(row: Mapping[str, Any]) -> CheckResult:
    name, share = row["model"], row["certain"]
    remedy = "use another signal, such as votes" if row["states"] else "log more digits, or use another signal"
    advice = (
        f"{percent(share, 0)} of the answers of {name} are given as certain (probability 1), and no threshold can part "
        f"those: {remedy}"
    )
    return _check("certain answers", name, share, advice)


def judge_marginals(rows: Sequence[Mapping[str, Any]]) -> Iterator[CheckResult]:
    """Are the confidences distributed as the mixtures say?"""
    for row in rows:
        name, figure = row["model"], row["trained"]
        moved = figure != row["refitted"] < KINDS["marginal"].limits.doubtful
        why = "they have moved since the training log: fit again on recent queries" if moved else "two betas do not fit"
        advice = f"the confidences of {name} stray from their fitted distribution by {figure:.3f}: {why}"
        if np.isnan(figure):
            advice = f"no distribution can be fitted to the confidences of {name}: they hardly vary"
        yield _check("marginal", name, figure, advice, p_value=row["trained_p"])


def judge_copulas(rows: Sequence[Mapping[str, Any]]) -> Iterator[CheckResult]:
    """Does the family describe how two models' confidences go together?"""
    for row in rows:
        subject, figure = " & ".join(row["pair"]), row["distance"]
        advice = (
            f"{row['family']} misses how {subject} go together, by {percent(figure)} of probability on average: try "
            "--copula auto (Python: fit(log, copula='auto'))"
        )
        if np.isnan(figure):
            advice = f"{row['family']} cannot be fitted to {subject}: one of them hardly varies; leave it out"
        yield _check("copula", subject, figure, advice, p_value=row["process_p"])


def judge_markov(rows: Sequence[Mapping[str, Any]]) -> Iterator[CheckResult]:
    """Do earlier confidences say more than the one just before?"""
    for row in rows:
        first, middle, last = row["models"]
        advice = (
            f"{first} still predicts {last} when {middle} is known (rank correlation {row['tau']:+.2f}, where the fit "
            "takes 0): what is predicted for cascades that ask all three is less sure; go by what rcjax evaluate shows"
        )
        yield _check("Markov property", f"{first} | {middle} | {last}", abs(row["tau"]), advice, p_value=row["p_value"])


def judge_promise(promise: Mapping[str, Any], n: int, counted: Counted = ERRORS) -> Iterator[CheckResult]:
    """Do policies err and cost as was promised when they were tuned?

    Args:
        promise: what was promised, and what was seen.
        n: on how many queries.
        counted: what is counted.
    """
    for name, noun in (("error", counted.noun), ("cost", "cost")):
        gap = _gap(promise, name)
        off = f"{100 * gap.figure:.1f} points" if name == "error" else percent(gap.figure)
        why = "go by what rcjax evaluate shows on fresh queries, and tune on queries like those to come"
        if gap.by_chance:
            why = f"chance alone can make that with {n:,} queries; label more before you rely on the promise"
        what = f"on queries not seen, the {noun} of policies tuned in this way is {off} {gap.way} than promised"
        advice = f"{what}, mean over the curve: {why}"
        verdict = judge(f"predicted {name}", gap.figure, by_chance=gap.by_chance)
        yield _check(f"predicted {name}", "", gap.figure, advice, verdict=verdict, noun=counted.noun)


class _Gap(NamedTuple):
    """What was seen less what was predicted, over sixteen λ."""

    figure: float  # the mean size of it; of costs, as a share of the cost predicted
    way: str  # "higher" or "lower", for most of it
    by_chance: bool


def describe_gaps(promise: Mapping[str, Any]) -> str:
    """How far error and cost are from what was promised, in words, by the figures of `judge_promise`.

    >>> promise = {"error": [0.3], "predicted_error": [0.2], "cost": [0.9], "predicted_cost": [1.0]}
    >>> describe_gaps(promise | {"error_band": [0.1], "cost_band": [0.1]})
    '10.0 points off what was promised, mostly higher, and the cost 10.0 %, mostly lower'
    """
    error, cost = (_gap(promise, name) for name in ("error", "cost"))
    points = f"{100 * error.figure:.1f} points off what was promised, mostly {error.way}"
    return f"{points}, and the cost {percent(cost.figure)}, mostly {cost.way}"


def _gap(frontier: Mapping[str, Any], name: str) -> _Gap:
    seen, predicted, band = (np.asarray(frontier[key]) for key in (name, f"predicted_{name}", f"{name}_band"))
    gap = seen - predicted
    outside = np.abs(gap) > band
    # Costs may all be 0: there is nothing to be wrong about then.
    scale = (float(predicted.mean()) or 1.0) if name == "cost" else 1.0
    figure = float(np.abs(gap).mean()) / scale
    return _Gap(figure, "higher" if gap.mean() > 0 else "lower", bool(outside.mean() <= 0.25))
