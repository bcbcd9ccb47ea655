"""Logs that can hardly be right, though each row can: few queries, labels or costs that tell nothing, and the like.

Answers that are missing, or have a label, by chance tell of all others; those that go with a confidence do not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from rcjax._base.wording import figure
from rcjax.logs.answers import Answers
from rcjax.logs.log import FailedCalls, Log

_FEWEST = 20  # queries
_MOST_CHEAPEST = 1.0  # money for an answer of the cheapest model
_INVERTED = 0.45  # how often a better answer is the surer one of two
_Z = 3.5  # standard errors below a half
_CHANCE = 0.01  # of logs whose answers are missing at random, so many are told biased by them, at most


def oddities(log: Log) -> tuple[str, ...]:
    """What is odd about a log, and what to look at, a sentence each; empty for a log that may be right.

    >>> import rcjax
    >>> log = rcjax.sample_log(300, seed=0)
    >>> oddities(log), oddities(log.take(slice(11)))
    ((), ('11 queries tell good policies from lucky ones no better than dice: log 100 or more',))
    """
    return tuple(_odd(log))


def _odd(log: Log) -> Iterator[str]:
    if log.n_queries < _FEWEST:
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


def lost_answers(answers: Answers) -> tuple[FailedCalls, ...]:
    """Which answers are missing as a call failed, of a log that does not tell of failed calls.

    A missing answer is one that nobody asked for, unless those of its model go with how sure another model is.
    """
    answered, models = answers.answered, answers.models
    if answered.all() or len(models) < 2:
        return ()
    logprob, tests = answers.matrix("logprob", -math.inf), len(models) * (len(models) - 1)

    def goes_with(j: int, i: int) -> bool:
        rows = answered[:, i]
        return i != j and bool(rows.any()) and tests * uneven(logprob[rows, i], answered[rows, j])[1] < _CHANCE

    places = range(len(models))
    lost = frozenset(models[j] for j in places if any(goes_with(j, i) for i in places))
    patterns = Counter(answers.models_by_query().values())
    return tuple(FailedCalls(there | lost, lost - there, n) for there, n in patterns.items() if lost - there)
