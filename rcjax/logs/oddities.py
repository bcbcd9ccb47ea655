"""What a log holds, model by model, and logs that can hardly be right though each row can: few queries, and the like.

Answers that are missing, or have a label, by chance tell of all others; those that go with a confidence do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rcjax._base.wording import budget_between, choose_unit, figure, no_confidence
from rcjax.logs.errors import listed
from rcjax.policy.decisions import NO_CONFIDENCE

if TYPE_CHECKING:
    from rcjax.logs.log import Log

FEWEST, _SOME = 20, 50  # queries: below the first there is no policy, below the second it is said
_Z90 = 1.645  # standard errors on either side of a 90 % interval
#: Times the cost of asking every model, from which a budget looks like one of another unit (a thousand apart).
_ANOTHER_UNIT = 100
#: What a budget is meant to be multiplied by, where it was typed per thousand or per million, and not per query.
_UNITS = (1e-3, 1e-6)
_MOST_CHEAPEST = 1.0  # money for an answer of the cheapest model
_INVERTED = 0.45  # how often a better answer is the surer one of two
_Z = 3.5  # standard errors below a half


def oddities(log: Log) -> tuple[str, ...]:
    """What is odd about a log, and what to look at, a sentence each; empty for a log that may be right.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> oddities(log), oddities(log.take(slice(11)))
    ((), ('11 queries tell good policies from lucky ones no better than dice: log 100 or more',))
    """
    return tuple(_odd(log))


def doubts(log: Log) -> tuple[str, ...]:
    """What makes the policies of a log that may be right doubtful, a sentence each.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> doubts(log), doubts(log.take(slice(30)))
    ((), ('30 queries tell an error to ± 10 points, whichever policy it is of: log 100 or more',))
    """
    return tuple(_doubtful(log))


def _doubtful(log: Log) -> Iterator[str]:
    n, labelled = log.n_queries, np.asarray(log.labelled & np.asarray(log.answered))
    labels, confidences = np.asarray(log.correct, float), np.asarray(log.logprob)
    if FEWEST <= n < _SOME:
        known = [float(right[has].mean()) for right, has in zip(labels.T, labelled.T, strict=True) if has.any()]
        best = min(max(known, default=0.5), 1 - 1 / n)
        points = 100 * _Z90 * math.sqrt(best * (1 - best) / n)
        yield f"{n} queries tell an error to ± {points:.0f} points, whichever policy it is of: log 100 or more"
    if log.answer is not None and (confidences[confidences > NO_CONFIDENCE] == 0.0).all():
        return  # answers are compared, and reading the log has said that there is no confidence
    constant = dict[tuple[str, int], list[str]]()
    for name, confidence in zip(log.models[:-1], confidences.T[:-1], strict=True):  # no threshold is on the last
        told = confidence[confidence > NO_CONFIDENCE]
        if len(told) > 1 and (told == told[0]).all():
            constant.setdefault((figure(math.exp(told[0])), len(told)), []).append(name)
    for (value, answers), names in constant.items():
        what = f"the confidence of {listed(names)} is {value} in all {answers:,} answers{' of each' * (len(names) > 1)}"
        yield f"{what}: no threshold parts the right ones from the wrong; look at what fills it, or at its signal"


def odd_budget(budget: float, log: Log, write: Callable[[str], str]) -> str | None:
    """What is odd about a budget per query, and what to give; None of one that decides something.

    Args:
        budget: money per query.
        log: what models cost.
        write: a budget as somebody is to give it, from its amount per million queries.

    >>> import rcjax
    >>> odd_budget(150.0, rcjax.sample_log(300, seed=0), "budget={}e-6".format)[-59:]
    'was $150 per million queries meant? Then give budget=150e-6'
    """
    costs = np.asarray(log.cost, float)
    dearest = float(np.nansum(costs))
    if not 0 < dearest < budget:
        return None
    unit = choose_unit([dearest])
    every = f"what it costs to ask every model of the log, {unit.full(dearest)}"
    what = f"${figure(budget)} a query is {figure(budget / dearest)} times {every}, and any policy meets it"
    return f"{what}: {_meant(budget, costs[np.isfinite(costs)].tolist(), write)}"


def _meant(budget: float, costs: Sequence[float], write: Callable[[str], str]) -> str:
    """What is likely meant by a budget above what asking every model costs, in words: the same figure in another unit.

    >>> _meant(0.15, [2e-5, 8e-4], "--budget {}/M".format)
    'was $150 per million queries meant? Then give --budget 150/M'
    >>> _meant(2e-3, [2e-5, 8e-4], "--budget {}/M".format)
    'give less, such as --budget 130/M: the models alone cost $20.0 to $800 per million queries'
    """
    for scale in _UNITS if budget >= _ANOTHER_UNIT * sum(costs) else ():
        if min(costs) <= budget * scale <= sum(costs):
            other = budget * scale
            return f"was {choose_unit([other]).full(other)} meant? Then give {write(f'{1e6 * other:.6g}')}"
    unit = choose_unit(costs)
    alone = f"the models alone cost ${unit.show(min(costs))} to {unit.full(max(costs))}"
    return f"give less, such as {write(budget_between(costs).removesuffix('/M'))}: {alone}"


def _odd(log: Log) -> Iterator[str]:
    if log.n_queries < FEWEST:
        yield f"{log.n_queries} queries tell good policies from lucky ones no better than dice: log 100 or more"
    labelled = np.asarray(log.labelled & np.asarray(log.answered))
    labels = np.asarray(log.correct, float)[labelled]
    if log.n_queries > 1 and labels.size and (labels == labels[0]).all() and labels[0] in (0, 1):
        what = "the reference's" if log.counted.noun == "difference" else "right"
        way = f"{'every' if labels[0] else 'no'} answer of any model is {what}"
        yield f"{way}: nothing tells the models apart; look at what fills the labels (the column correct, the grader)"
    paid = [(cost, name) for name, cost in zip(log.models, np.asarray(log.cost, float), strict=True) if cost > 0]
    if log.prices is None and paid and min(paid)[0] > _MOST_CHEAPEST:
        what = f"by the column cost an answer of {min(paid)[1]} costs ${figure(min(paid)[0])}, and no model costs less"
        yield f"{what}: is it money per million queries? Write money per query"
    confidences, correct = np.asarray(log.logprob), np.asarray(log.correct, float)
    for name, confidence, right, known in zip(log.models, confidences.T, correct.T, labelled.T, strict=True):
        surer = _surer(confidence[known], right[known])
        if surer is not None:
            yield (
                f"the surer {name} is, the more often it is wrong (of a right and a wrong answer the right one is the "
                f"surer in {100 * surer:.0f} %): are its confidences inverted, or labels of other answers?"
            )


def _surer(confidence: np.ndarray, right: np.ndarray) -> float | None:
    """How often a better answer is the surer one of two, where that is less than chance explains; else None."""
    _, inverse, number = np.unique(confidence, return_inverse=True, return_counts=True)
    rights = np.bincount(inverse, weights=right, minlength=len(number))
    wrongs = number - rights
    pairs = rights.sum() * wrongs.sum()
    if not pairs:
        return None
    surer = float(rights @ (wrongs.cumsum() - wrongs / 2) / pairs)
    spread = math.sqrt((len(confidence) + 1) / (12 * pairs))
    return surer if surer < _INVERTED and surer < 0.5 - _Z * spread else None


def unsure(sure: np.ndarray) -> np.ndarray:
    """(n,) bool: the queries that a model is less sure of than of most, half of them at most; sure (n,)."""
    below, up_to = (np.searchsorted(np.sort(sure), sure, side) for side in ("left", "right"))
    return below + up_to < len(sure)


def uneven(sure: np.ndarray, there: np.ndarray) -> tuple[float, float]:
    """(by how much the share of unsure queries among some differs from that among all, how likely chance does that).

    Args:
        sure: (n,) how sure a model is of each query.
        there: (n,) bool: the some.

    >>> sure = np.arange(100.0)
    >>> uneven(sure, sure % 2 == 0), uneven(sure, sure < 30)[0], uneven(sure, sure >= 0)
    ((0.0, 1.0), 0.5, (0.0, 1.0))
    """
    doubted = unsure(sure)
    n, m, few = len(sure), int(there.sum()), int(doubted.sum())
    if not 0 < m < n or not few:
        return 0.0, 1.0
    gap = abs(int((there & doubted).sum()) - m * few / n)
    spread = math.sqrt(m * (n - m) * few * (n - few) / (n * n * (n - 1)))
    return gap / m, math.erfc(max(gap - 0.5, 0.0) / spread / math.sqrt(2))


def summarise(frame: pl.DataFrame) -> dict[str, Any]:
    """Queries, how many of them all models answered, and of each model its answers, accuracy, separation and cost.

    Separation is the area under the ROC curve of the raw confidence: how often a right answer is more confident than a
    wrong one, where one without a confidence is less sure than all others; None if a model is always or never right.
    Accuracy and separation are of the answers that have a label. Cost is mean money per query; None without money.
    Answers of cost 0 beside others of the same model have lost theirs, and are left out of it (`rcjax.logs.prices`).

    Where `score` stands in place of `correct`, which `scored` then tells, accuracy is the mean score, and of each
    answer that part counts as a right one.

    >>> rows = {"query": ["a", "b"], "model": ["m", "m"], "correct": [0, 1], "logprob": [-1.0, -0.1]}
    >>> summarise(pl.DataFrame(rows))["models"]
    [{'model': 'm', 'answers': 2, 'accuracy': 0.5, 'separation': 1.0, 'cost': None}]
    """
    scored = {} if "correct" in frame.columns else {"scored": True}
    models = [_model(name, rows) for (name,), rows in frame.group_by("model", maintain_order=True)]
    answers = frame.group_by("query").agg(pl.col("model").n_unique())["model"]
    complete = int((answers == len(models)).sum())
    return {"queries": len(answers), "answered_by_all": complete, "models": models} | scored


def _model(name: Any, rows: pl.DataFrame) -> dict[str, Any]:
    costs = _mean_cost(rows["cost"]) if "cost" in rows.columns else None
    rows = rows.rename({"score": "correct"}, strict=False)
    answers, rows = rows.height, rows.filter(rows["correct"].is_not_null())
    right, n = float(rows["correct"].sum()), rows.height
    ranks = float((rows["logprob"].fill_null(NO_CONFIDENCE).rank("average") * rows["correct"]).sum())
    counts = right * (n - right)
    return {
        "model": name,
        "answers": answers,
        "accuracy": right / n if n else None,
        "separation": (ranks - right * (right + 1) / 2) / counts if counts else None,
        "cost": costs,
    }


def _mean_cost(costs: pl.Series) -> float:
    paid = costs.filter(costs > 0)
    return float((paid if len(paid) else costs).mean())  # type: ignore[arg-type]


def tell_unread(rows: Iterable[Mapping[str, Any]]) -> str | None:
    """Which models gave so many answers without a confidence, and how many are right, in words; None if there are none.

    Args:
        rows: these answers, each with its `model` and `correct`, which is None if it has no label.
    """
    labels: dict[str, list[Any]] = {}
    for row in rows:
        labels.setdefault(row["model"], []).append(row["correct"])
    known = {model: [label for label in every if label is not None] for model, every in labels.items()}
    return no_confidence((model, len(labels[model]), len(those), sum(those)) for model, those in known.items())
