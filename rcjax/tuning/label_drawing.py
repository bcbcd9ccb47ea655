"""Which answers to label by hand next: as many of each model, and of a model any answer as likely as another.

To draw answers more often where policies depend on them was tried, and brought nothing that could be told from noise.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from rcjax._base.wording import count
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.label_outcomes import label_probability

_FEWEST = 3  # labels of a model, old and new together: two are needed, and one may be skipped


@dataclasses.dataclass(frozen=True)
class LabelDraw:
    """Answers to label, m of those of n queries by k models, and with which probability they were drawn."""

    query: np.ndarray
    """(m,) their rows."""
    model: np.ndarray
    """(m,) their columns."""
    chance: np.ndarray
    """(n, k) the probability with which a label of each answer counts from now on, those of earlier rounds too; above 0
    and at most 1, NaN where there is no answer, or no label of its model."""


def draw_labels(log: Log, number: int, *, seed: int = 0) -> LabelDraw:
    """Draw answers of a log to label by hand: exactly so many, each with a known probability, none with 0.

    Models get so many that all have as many labels in the end, and of a model each answer is as likely as another.

    Labels that are there already were drawn in earlier rounds. Where any answer of the model was as likely in these, so
    it is in all rounds together. Else an answer can have a label from two draws of different probabilities. Both
    rounds estimate the same sum by themselves: the earlier one by Σ y/p; this one by the labels that there are, and
    Σ y/π over those that it draws of the rest. Their mean with weights 1 − v and v, v the share of this round among a
    model's labels, counts an old label (1 − v)/p + v times, and a new one v/π times. So 1 over that are their
    probabilities from now on, and no π is above v.

    Args:
        log: the log, `read_log(…, unlabelled=True)` where it has few labels or none.
        number: of answers to draw.
        seed: of the draw.

    Raises `LogError` where there are not as many answers without a label, or more models lack labels.

    >>> import polars as pl
    >>> from rcjax import read_log
    >>> table = {"query": [i // 2 for i in range(80)], "model": ["small", "large"] * 40, "cost": [1.0, 5.0] * 40}
    >>> log = read_log(pl.DataFrame(table | {"confidence": [(1 + i) / 81 for i in range(80)]}), unlabelled=True)
    >>> draw = draw_labels(log, 20)
    >>> len({*zip(draw.query.tolist(), draw.model.tolist())}), bool((draw.chance > 0).all())
    (20, True)
    """
    labelled = log.labelled
    free, old = np.asarray(log.answered) & ~labelled, labelled.sum(0)
    _require(log.source, number, free, old)
    labels = _per_model(number, old, free)
    drawn, share = labels / np.maximum(free.sum(0), 1), _share_of_round(labels, old, free)
    row, column = _at_random(labels, free, np.random.default_rng(seed))
    counted = label_probability(log) if labelled.any() else np.zeros(labelled.shape)
    earlier = np.where(labelled, counted, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):  # a model of which none is drawn has no share
        chance = np.where(free, np.minimum(drawn / share, 1.0), np.nan)
        chance = np.where(earlier > 0, 1 / ((1 - share) / earlier + share), chance)
    even = _is_even(earlier)
    chance = np.where(even & (free | (earlier > 0)), (old + labels) / np.maximum(old + free.sum(0), 1), chance)
    return LabelDraw(row, column, chance)


def _require(source: str, number: int, free: np.ndarray, labels: np.ndarray) -> None:
    if not free.any():
        raise LogError(f"{source}: every answer has a label already")
    if number > free.sum():
        raise LogError(f"{source}: only {count(int(free.sum()), 'answer')} without a label: draw no more than that")
    need = int(_least(free, labels).sum())
    if number < need:
        what = f"{count(number, 'label')} for {count(len(labels), 'model')}, which need {_FEWEST} each at least"
        raise LogError(f"{source}: {what}: draw {need} or more, or leave out models")


def _is_even(earlier: np.ndarray) -> np.ndarray:
    """(k,) bool: whether all labels of a model so far were as likely; a probability of 0 is no label."""
    least, most = np.where(earlier > 0, earlier, np.inf).min(0), earlier.max(0)
    return (most == 0) | (most - least <= 1e-9)


def _least(free: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(k,) labels that models need to have as many as are needed, or all of their answers."""
    return np.minimum(np.maximum(_FEWEST - labels, 0), free.sum(0))


def _per_model(number: int, old: np.ndarray, free: np.ndarray) -> np.ndarray:
    """(k,) how many labels each model is to get, so that all have as many in the end, as far as there are answers."""
    new, left = np.zeros(len(old), int), free.sum(0)
    for _ in range(number):
        new[np.where(new < left, old + new, np.inf).argmin()] += 1
    return new


def _share_of_round(labels: np.ndarray, old: np.ndarray, free: np.ndarray) -> np.ndarray:
    """(k,) v, the share of this round among each model's labels.

    It is larger where no probability up to it would do to draw so many of the answers that are left.
    """
    size = np.maximum(free.sum(0), 1)
    share = np.where(old > 0, np.maximum(labels / np.maximum(labels + old, 1), labels / size), 1.0)
    return np.where(labels > 0, np.minimum(share, 1.0), 0.0)


def _at_random(labels: np.ndarray, free: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns) of so many answers of each model (k,), in order of the queries."""
    chosen = np.zeros(free.shape, bool)
    for model, size in enumerate(labels):
        chosen[rng.choice(np.flatnonzero(free[:, model]), size, replace=False), model] = True
    row, column = np.nonzero(chosen)
    return row, column
