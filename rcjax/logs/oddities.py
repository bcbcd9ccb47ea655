"""A summary of a log by model, and checks for a log that looks wrong although every row is valid.

The present answers, or the labelled answers, are a fair sample unless presence or labelling depends on a confidence
(`measure_unevenness`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from rcjax._base.figures import Z_ONE_SIDED_95, choose_unit, example_budget, format_number
from rcjax.logs.errors import join_names
from rcjax.logs.log import Log
from rcjax.policy.decisions import NO_CONFIDENCE

MIN_QUERIES, _ENOUGH_QUERIES = 20, 50  # fewer queries than the first give no policy, than the second a warning

#: A budget above this multiple of the cost of asking every model looks like another unit (units differ by 1,000).
_ANOTHER_UNIT = 100

#: Factors that turn a budget per thousand, and per million, queries into money per query.
_UNITS = (1e-3, 1e-6)

_MAX_CHEAPEST_COST = 1.0  # money per answer of the cheapest model; a higher cost may be in another unit

#: Share of a model's answers with confidence 1 above which its thresholds are doubtful.
MAX_CERTAIN = 0.5

_INVERTED = 0.45  # ROC area below which confidences look inverted

_MIN_Z = 3.5  # standard errors below a half

_MIN_GAP = 0.02  # difference of accuracies below which kept queries are not said to be harder or easier


def describe_doubts(log: Log) -> Iterator[str]:
    """Yield a sentence for each reason to doubt the policies of a log that looks right.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> [*describe_doubts(log)], [*describe_doubts(log.take(slice(30)))]
    ([], ['30 queries estimate an error only to ± 10 points: log 100 or more'])
    """
    n, labelled = log.n_queries, np.asarray(log.labelled & np.asarray(log.answered))
    labels, confidences = np.asarray(log.correct, float), np.asarray(log.logprob)
    if not log.complete.all():
        yield _describe_incomplete(log)
    if MIN_QUERIES <= n < _ENOUGH_QUERIES:
        known = [float(right[mask].mean()) for right, mask in zip(labels.T, labelled.T, strict=True) if mask.any()]
        best = min(max(known, default=0.5), 1 - 1 / n)
        points = 100 * Z_ONE_SIDED_95 * math.sqrt(best * (1 - best) / n)
        yield f"{n} queries estimate an error only to ± {points:.0f} points: log 100 or more"
    if log.answer is not None and not log.has_confidences:
        return  # answers are compared, and `read_log` has warned that there is no confidence
    constant = dict[tuple[str, int], list[str]]()
    for name, confidence in zip(log.models[:-1], confidences.T[:-1], strict=True):  # the last has no threshold
        known = confidence[confidence > NO_CONFIDENCE]
        if len(known) > 1 and (known == known[0]).all():
            constant.setdefault((format_number(math.exp(known[0])), len(known)), []).append(name)
    for (value, answers), names in constant.items():
        of_each = " of each" * (len(names) > 1)
        fact = f"the confidence of {join_names(names)} is {value} in all {answers:,} answers{of_each}"
        yield f"{fact}: no threshold parts the right ones from the wrong; look at what fills it, or at its signal"


def _describe_incomplete(log: Log) -> str:
    share = f"{log.complete.sum():,} of {log.n_queries:,} queries"
    if not log.has_enough_complete:
        effect = "models and policies are judged on different queries, without intervals or a correction for optimism"
        return f"every model answered only {share}: {effect}: ask all models the same queries"
    fact = f"all figures are of the {share} that every model answered; the others only calibrate"
    return f"{fact} ({_compare_complete(log)[0]})"


def describe_kept(log: Log) -> str:
    """Say whether the queries that all models of a log answered are harder or easier than all queries."""
    shares, gap = _compare_complete(log)
    if not abs(gap) >= _MIN_GAP:
        return "the answered queries may be no fair sample"
    return f"the answered queries are the {'harder' if gap < 0 else 'easier'} ones ({shares})"


def _compare_complete(log: Log) -> tuple[str, float]:
    """Return (accuracies of a model where all answered and of all its answers, in words; their difference)."""
    labels, labelled = np.asarray(log.correct, float), np.asarray(log.labelled & np.asarray(log.answered))
    j = int(labelled.sum(0).argmax())
    of_these, of_all = (
        float(labels[rows, j].mean()) if rows.any() else math.nan
        for rows in (labelled[:, j] & log.complete, labelled[:, j])
    )
    these, every = (f"{100 * share:.0f} % of" for share in (of_these, of_all))
    return f"{log.models[j]} is right in {these} these, and in {every} all its answers", of_these - of_all


def odd_budget(budget: float, log: Log, write: Callable[[str], str]) -> str | None:
    """Return a sentence, with advice, about a budget above the cost of asking every model; None for a lower budget.

    Args:
        budget: money per query.
        log: the log, for its costs.
        write: formats a budget as the user should give it, from its amount per million queries.

    >>> import rcjax
    >>> odd_budget(150.0, rcjax.sample_log(300, seed=0), "budget={}e-6".format)[-59:]
    'was $150 per million queries meant? Then give budget=150e-6'
    """
    costs = np.asarray(log.cost, float)
    dearest = float(np.nansum(costs))
    if not 0 < dearest < budget:
        return None
    unit = choose_unit([dearest])
    total = f"the cost of asking every model of the log, {unit.full(dearest)}"
    fact = (
        f"${format_number(budget)} a query is {format_number(budget / dearest)} times {total}, and any policy meets it"
    )
    return f"{fact}: {_advise_on_budget(budget, costs[np.isfinite(costs)].tolist(), write)}"


def _advise_on_budget(budget: float, costs: Sequence[float], write: Callable[[str], str]) -> str:
    """Return advice for a budget that is too high: the same figure in another unit, or a lower budget.

    >>> _advise_on_budget(0.15, [2e-5, 8e-4], "--budget {}/M".format)
    'was $150 per million queries meant? Then give --budget 150/M'
    >>> _advise_on_budget(2e-3, [2e-5, 8e-4], "--budget {}/M".format)
    'give less, such as --budget 130/M: the models alone cost $20.0 to $800 per million queries'
    """
    for scale in _UNITS if budget >= _ANOTHER_UNIT * sum(costs) else ():
        if min(costs) <= budget * scale <= sum(costs):
            scaled = budget * scale
            return f"was {choose_unit([scaled]).full(scaled)} meant? Then give {write(f'{1e6 * scaled:.6g}')}"
    unit = choose_unit(costs)
    costs_alone = f"the models alone cost ${unit.show(min(costs))} to {unit.full(max(costs))}"
    return f"give less, such as {write(example_budget(costs).removesuffix('/M'))}: {costs_alone}"


def describe_oddities(log: Log) -> Iterator[str]:
    """Yield a sentence for each oddity of a log, with advice; empty for a log that looks right.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> [*describe_oddities(log)], [*describe_oddities(log.take(slice(11)))]
    ([], ['11 queries cannot tell a good policy from a lucky one: log 100 or more'])
    """
    if log.n_queries < MIN_QUERIES:
        yield f"{log.n_queries} queries cannot tell a good policy from a lucky one: log 100 or more"
    labelled = np.asarray(log.labelled & np.asarray(log.answered))
    labels = np.asarray(log.correct, float)[labelled]
    if log.n_queries > 1 and labels.size and (labels == labels[0]).all() and labels[0] in (0, 1):
        right_word = "the reference's" if log.error_kind.noun == "difference" else "right"
        fact = f"{'every' if labels[0] else 'no'} answer of any model is {right_word}"
        yield f"{fact}: nothing tells the models apart; look at what fills the labels (the column correct, the grader)"
    paid = [(cost, name) for name, cost in zip(log.models, np.asarray(log.cost, float), strict=True) if cost > 0]
    if log.prices is None and paid and min(paid)[0] > _MAX_CHEAPEST_COST:
        cost, name = min(paid)
        fact = f"by the column cost an answer of {name} costs ${format_number(cost)}, and no model costs less"
        yield f"{fact}: is it money per million queries? Write money per query"
    for name, area in find_inverted(log):
        yield (
            f"the surer {name} is, the more often it is wrong (of a right and a wrong answer the right one is the "
            f"surer in {100 * area:.0f} %): are its confidences inverted, or labels of other answers?"
        )


def find_inverted(log: Log) -> Iterator[tuple[str, float]]:
    """Yield each model that is the surer, the more often it is wrong, with its area under the ROC curve."""
    labelled = np.asarray(log.labelled & np.asarray(log.answered))
    confidences, correct = np.asarray(log.logprob), np.asarray(log.correct, float)
    for name, confidence, right, known in zip(log.models, confidences.T, correct.T, labelled.T, strict=True):
        area = area_under_roc(confidence[known], right[known])
        rights, wrongs = right[known].sum(), (1 - right[known]).sum()
        spread = math.sqrt((known.sum() + 1) / (12 * rights * wrongs)) if rights * wrongs else math.inf
        if area < min(_INVERTED, 0.5 - _MIN_Z * spread):
            yield name, area


def area_under_roc(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Compute the area under the ROC curve: P(a right answer is more confident than a wrong one), ties counting half.

    The confidence (n,) may be on any scale. ½ is no discrimination; NaN if all answers are right, or all wrong. An
    answer with score s counts as s right and 1 − s wrong answers.

    >>> area_under_roc(np.array([0.2, 0.5, 0.9]), np.array([0, 1, 1]))
    1.0
    """
    _, inverse, count = np.unique(confidence, return_inverse=True, return_counts=True)
    rights = np.bincount(inverse, weights=np.asarray(correct, float), minlength=len(count))
    wrongs = count - rights
    pairs = rights.sum() * wrongs.sum()
    return float(rights @ (wrongs.cumsum() - wrongs / 2) / pairs) if pairs else float("nan")


def find_unsure(confidence: np.ndarray) -> np.ndarray:
    """Return an (n,) mask of the queries whose (n,) confidence has a mid-rank below the median: at most half."""
    below, up_to = (np.searchsorted(np.sort(confidence), confidence, side) for side in ("left", "right"))
    return below + up_to < len(confidence)


def measure_unevenness(confidence: np.ndarray, subset: np.ndarray) -> tuple[float, float]:
    """Test whether a subset (n,) of queries holds an unusual share of unsure queries, by a model's confidence (n,).

    Return (absolute difference of the shares of unsure queries in the subset and in all queries, two-sided p-value).
    The p-value is by the normal approximation of the hypergeometric distribution, with a continuity correction.

    >>> sure = np.arange(100.0)
    >>> measure_unevenness(sure, sure % 2 == 0), measure_unevenness(sure, sure < 30)[0]
    ((0.0, 1.0), 0.5)
    """
    is_unsure = find_unsure(confidence)
    n, m, unsure_queries = len(confidence), int(subset.sum()), int(is_unsure.sum())
    if not 0 < m < n or not unsure_queries:
        return 0.0, 1.0
    gap = abs(int((subset & is_unsure).sum()) - m * unsure_queries / n)
    spread = math.sqrt(m * (n - m) * unsure_queries * (n - unsure_queries) / (n * n * (n - 1)))
    return gap / m, math.erfc(max(gap - 0.5, 0.0) / spread / math.sqrt(2))


def summarise_models(frame: pl.DataFrame) -> dict[str, Any]:
    """Summarise a log: numbers of queries, and each model's number of answers, accuracy, separation and cost.

    Separation is the area under the ROC curve of the raw confidence, with which a right answer is more confident than a
    wrong answer; None for a model that is always or never right. An answer without a confidence ranks below all others.
    Accuracy and separation use the labelled answers. Cost is mean money per query without lost costs, which are 0
    although other answers of the model cost money; None without a cost.

    With a column `score` in place of `correct`, `scored` is True, accuracy is the mean score, and an answer counts as
    right with the weight of its score.

    >>> rows = {"query": ["a", "b"], "model": ["m", "m"], "correct": [0, 1], "logprob": [-1.0, -0.1]}
    >>> summarise_models(pl.DataFrame(rows))["models"]
    [{'model': 'm', 'answers': 2, 'accuracy': 0.5, 'separation': 1.0, 'cost': None}]
    """
    scored = {} if "correct" in frame.columns else {"scored": True}
    models = [_model(name, rows) for (name,), rows in frame.group_by("model", maintain_order=True)]
    answers = frame.group_by("query").agg(pl.col("model").n_unique())["model"]
    complete = int((answers == len(models)).sum())
    return {"queries": len(answers), "answered_by_all": complete, "models": models} | scored


def _model(name: Any, rows: pl.DataFrame) -> dict[str, Any]:
    cost, answers = None, rows.height
    if "cost" in rows.columns and rows["cost"].count():
        paid = rows["cost"].filter(rows["cost"] > 0)
        cost = float(paid.sum()) / (len(paid) or answers)
    rows = rows.rename({"score": "correct"}, strict=False).drop_nulls("correct")
    correct = rows["correct"].cast(float).to_numpy()
    separation = area_under_roc(rows["logprob"].fill_null(NO_CONFIDENCE).to_numpy(), correct)
    return {
        "model": name,
        "answers": answers,
        "accuracy": float(correct.mean()) if len(correct) else None,
        "separation": None if math.isnan(separation) else separation,
        "cost": cost,
    }
