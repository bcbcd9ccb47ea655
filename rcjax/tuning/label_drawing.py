"""Which answers to label by hand next: drawn at random, likelier where a label narrows what is known of the best.

The error of a policy is estimated by what is expected of its answers, and by what labels correct of that
(`rcjax.model.label_outcomes`). A correction has the variance Σ (1/π − 1) · d² · σ² over answers, with π the probability
of being labelled, d whether the policy gives the answer, and σ² = f (1 − f) what is left open of one that is right with
probability f. For a given number of labels that is least where π is proportional to σ · √(mean of d²) (Neyman 1934).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from rcjax._base.wording import count
from rcjax.logs.errors import LogError
from rcjax.logs.log import Log
from rcjax.model.label_outcomes import expected_right, label_probability
from rcjax.policy.targets import Target
from rcjax.tuning.label_places import LabelPlaces
from rcjax.tuning.label_relevance import relevance

__all__ = ["LabelDraw", "draw_labels"]


_EVEN = 0.2  # of the labels are drawn evenly, from all models alike: what seems decided may be decided wrongly


_FEWEST = 3  # labels of a model, old and new together: two are needed, and one may be skipped


_CERTAIN = 0.02  # an answer is never taken to be right, or wrong, with less doubt than this


_UNKNOWN = 10.0  # labels of each model that a judge's word without any label is taken to be worth


@dataclasses.dataclass(frozen=True)
class LabelDraw:
    """Answers to label, m of those of n queries by k models, and with which probability they were drawn."""

    query: np.ndarray
    """(m,) their rows."""
    model: np.ndarray
    """(m,) their columns; of several variants of a model that give an answer, the first."""
    chance: np.ndarray
    """(n, k) the probability with which a label of each answer counts from now on, those of earlier rounds too; above 0
    and at most 1, NaN where there is no answer."""


def draw_labels(log: Log, number: int, *, target: Target | None = None, seed: int = 0) -> LabelDraw:
    """Draw answers of a log to label by hand: exactly so many, each with a known probability, none with 0.

    They are drawn systematically (Madow 1949), which gives every answer just the probability that it should have, and
    every model as many labels as it should have but for one.

    Where the log has several samples, one that several variants of a model answer by is drawn once, and its label
    counts for all of them.

    Labels that are there already were drawn in earlier rounds. An answer then can have a label from two draws. Both
    rounds estimate the same sum by themselves: the earlier one by Σ y/p; this one by the labels that there are, and
    Σ y/π over those that it draws of the rest. Their mean with weights 1 − v and v, v the share of this round among a
    model's labels, counts an old label (1 − v)/p + v times, and a new one v/π times. So 1 over that are their
    probabilities from now on, and no π is above v.

    Args:
        log: the log, `read_log(…, unlabelled=True)` where it has few labels or none.
        number: of answers to draw.
        target: what the policy is for; None for all targets.
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
    places, labelled = LabelPlaces.of(log), log.labelled
    unlabelled = np.asarray(log.answered) & ~labelled
    free, old = places.gathered(np.logical_or, unlabelled), places.gathered(np.logical_or, labelled).sum(0)
    _require(log.source, number, free, old)
    useful = np.sqrt(places.gathered(np.add, np.where(unlabelled, _usefulness(log, target) ** 2, 0.0)))
    shares = _shares(useful, free)
    labels = _per_model(shares, number, _least(free, old))
    share = _share_of_round(labels, old, free)
    columns = [_filled(column, *limits) for column, *limits in zip(shares.T, labels, share, strict=True)]
    drawn = np.stack(columns, axis=1)
    chosen = _systematic(drawn, free, number, np.random.default_rng(seed))
    counted = label_probability(log) if labelled.any() else np.zeros(labelled.shape)
    earlier = places.gathered(np.maximum, np.where(labelled, counted, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):  # a model of which none is drawn has no share
        chance = np.where(free, np.minimum(drawn / share, 1.0), np.nan)
        chance = np.where(earlier > 0, 1 / ((1 - share) / earlier + share), chance)
    return LabelDraw(*places.first(*chosen, unlabelled), places.spread(chance))


def _require(source: str, number: int, free: np.ndarray, labels: np.ndarray) -> None:
    if not free.any():
        raise LogError(f"{source}: every answer has a label already")
    if number > free.sum():
        raise LogError(f"{source}: only {count(int(free.sum()), 'answer')} without a label: draw no more than that")
    need = int(_least(free, labels).sum())
    if number < need:
        what = f"{count(number, 'label')} for {count(len(labels), 'model')}, which need {_FEWEST} each at least"
        raise LogError(f"{source}: {what}: draw {need} or more, or leave out models")


def _least(free: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(k,) labels that models need to have as many as are needed, or all of their answers."""
    return np.minimum(np.maximum(_FEWEST - labels, 0), free.sum(0)).astype(float)


def _usefulness(log: Log, target: Target | None) -> np.ndarray:
    """(n, k) what the probabilities should be proportional to: σ · √(how much policies depend on the answer)."""
    labels, right = log.labelled.sum(0), None
    judged = log.hand is not None and bool(log.hand.is_judged.any())
    if labels.all() and labels.min() > 1:
        right = np.asarray(expected_right(log), float)
    elif judged:
        assert log.hand is not None
        right = _by_judges(np.asarray(log.hand.judged, float))
    confidence = np.exp(np.nan_to_num(np.asarray(log.logprob, float), nan=0.0, neginf=-1e9))
    doubt = _doubt(right) if right is not None else (_doubt(confidence) + 0.25) / 2
    known = float(labels.mean()) if labels.all() else _UNKNOWN
    return np.sqrt(doubt * relevance(log, right, target, known))


def _by_judges(verdicts: np.ndarray) -> np.ndarray:
    """(n, k) how likely answers are right by the word of judges (n, k, J); their mean verdict where there is none."""
    told = np.isfinite(verdicts)
    mean = np.where(told, verdicts, 0.0).sum(-1) / np.maximum(told.sum(-1), 1)
    overall = mean[told.any(-1)].mean()
    return np.clip(np.where(told.any(-1), mean, overall), 0.1, 0.9)


def _doubt(right: np.ndarray) -> np.ndarray:
    right = np.clip(right, _CERTAIN, 1 - _CERTAIN)
    return right * (1 - right)


def _shares(useful: np.ndarray, free: np.ndarray) -> np.ndarray:
    """(n, k) what probabilities are proportional to, with sum 1: by use, and a part of them evenly over models."""
    useful, size = np.where(free, useful, 0.0), free.sum(0)
    even = np.where(free, 1 / np.maximum(size, 1), 0.0) / (size > 0).sum()
    total = useful.sum()
    return (1 - _EVEN) * useful / total + _EVEN * even if total > 0 else even


def _per_model(shares: np.ndarray, number: int, least: np.ndarray) -> np.ndarray:
    """(k,) how many labels each model is to have on average, at least so many, with a sum of `number`."""
    plain = _filled(shares, float(number)).sum(0)
    more = np.maximum(plain - least, 0.0)
    return least + more * ((number - least.sum()) / more.sum() if more.any() else 0.0)


def _filled(share: np.ndarray, total: float, most: float = 1.0) -> np.ndarray:
    """Probabilities proportional to shares, none above `most`, that sum to a total."""
    drawn = np.zeros(share.shape)
    full = np.zeros(share.shape, bool)
    while total - most * full.sum() > 1e-12:
        rest = np.where(full, 0.0, share)
        if not rest.any():
            break
        drawn = np.where(full, most, rest * (total - most * full.sum()) / rest.sum())
        over = (drawn > most) & ~full
        if not over.any():
            break
        full |= over
    return np.minimum(drawn, most)


def _share_of_round(labels: np.ndarray, old: np.ndarray, free: np.ndarray) -> np.ndarray:
    """(k,) v, the share of this round among each model's labels.

    It is larger where no probability up to it would do to draw so many of the answers that are left.
    """
    size = np.maximum(free.sum(0), 1)
    share = np.where(old > 0, np.maximum(labels / np.maximum(labels + old, 1e-300), labels / size), 1.0)
    return np.where(labels > 0, np.minimum(share, 1.0), 0.0)


def _systematic(
    drawn: np.ndarray, free: np.ndarray, number: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns) of the answers drawn, in order of the queries; those of a model are next to each other."""
    query, model = np.nonzero(free)
    order = np.lexsort((rng.random(len(query)), model))
    query, model = query[order], model[order]
    ends = np.cumsum(drawn[query, model])
    ends *= number / ends[-1]
    chosen = np.searchsorted(ends, np.arange(number) + rng.random(), side="right")
    chosen = np.minimum(chosen, len(ends) - 1)
    order = np.lexsort((model[chosen], query[chosen]))
    return query[chosen][order], model[chosen][order]
