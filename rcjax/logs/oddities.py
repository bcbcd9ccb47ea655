"""Logs that can hardly be right, though each row can: few queries, labels or costs that tell nothing, and the like."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rcjax._base.wording import figure
from rcjax.logs.log import Log

_FEWEST = 20  # queries
_MOST_CHEAPEST = 1.0  # money for an answer of the cheapest model
_INVERTED = 0.45  # how often a better answer is the surer one of two
_Z = 3.5  # standard errors below a half


class OddLogWarning(UserWarning):
    """A log can hardly be right: what is tuned on it is worth no more than it is."""


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
    for name, logprob, right, known in zip(log.models, log.logprob.T, log.correct.T, labelled.T, strict=True):
        surer = _surer(np.asarray(logprob)[known], np.asarray(right, float)[known])
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
