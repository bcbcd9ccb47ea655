"""How much single models and pairs that may be the best for a target depend on each answer of a log.

A policy asks one model, or a model and, where its confidence is low, another. Which answers it gives is known without a
label; how good it is, only by labels. What a label of an answer is good for is in how many of the policies that may yet
be the best the answer decides, and in how many it does so where the best does otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rcjax._base.variants import rivals
from rcjax.frontier.hull import lower_hull
from rcjax.logs.log import Log
from rcjax.model.pairs import pairs
from rcjax.policy.targets import Target

__all__ = ["relevance"]


_CUTS = np.linspace(0.05, 0.95, 19)  # quantiles of the first model's confidence at which a pair parts


_SLOPES = 8  # prices of an error that stand for all, where there is no target


_WIDER = 1.5  # times the budget that a policy may cost, to be worth a label where nothing is known of errors


class _Policies(NamedTuple):
    """Policies of one cascade: which queries each of them answers by its first model, the others by the second."""

    first: int
    second: int
    rows: np.ndarray  # (m,) queries that both have answered
    stops: np.ndarray  # (P, m) bool

    def of(self, values: np.ndarray) -> np.ndarray:
        """(P, m) values (n, k) of the answers that the policies give."""
        one, other = values[self.rows, self.first], values[self.rows, self.second]
        return np.where(self.stops, one, other)


def relevance(log: Log, right: np.ndarray | None, target: Target | None, labels: float) -> np.ndarray:
    """(n, k) how much policies that may be the best for a target depend on each answer, from 0; the sum is 1.

    It is Σ w (d² + (d − d*)²) over policies, w how likely the policy is the best, d whether it gives this answer, and
    d* whether the policy does that seems best: what a label narrows of its loss, and of the difference of the two.

    Args:
        log: the log.
        right: (n, k) how likely each answer is right; None where nothing is known, and all policies are as likely.
        target: what the policy is for; None for all targets.
        labels: of each model, by which errors are known.

    >>> import rcjax
    >>> log = rcjax.sample_log(200, seed=0).select(["llama3.2-1b", "llama3.1-8b", "llama3.1-405b"])
    >>> shares = relevance(log, log.correct, Target("budget", 1e-4), labels=200).sum(0)
    >>> int(shares.argmax()), float(shares.sum().round(6))
    (1, 1.0)
    """
    cascades = list(_cascades(log))
    cost, error = _figures(cascades, log, np.full(log.logprob.shape, 0.5) if right is None else right)
    if right is None:
        limit = _WIDER * target.value if target is not None and target.name == "budget" else np.inf
        return _normed(_decided(cascades, (cost <= limit).astype(float), None, log.logprob.shape))
    total = np.zeros(log.logprob.shape)
    for lam in _slopes(cost, error, target):
        loss = error + lam * cost
        best = int(loss.argmin())
        spread = _spread(cascades, best, right) / max(labels, 1.0)
        gap = loss - loss[best]
        weight = np.exp(-0.5 * gap**2 / np.maximum(spread, 1e-12))
        total += _normed(_decided(cascades, weight / weight.sum(), best, total.shape))
    return _normed(total)


def _normed(values: np.ndarray) -> np.ndarray:
    total = values.sum()
    return values / total if total > 0 else np.full(values.shape, 1 / values.size)


def _cascades(log: Log) -> Iterator[_Policies]:
    """Single models, then pairs in the order of the models."""
    answered, logprob = np.asarray(log.answered), np.asarray(log.logprob)
    for j in range(len(log.models)):
        rows = np.flatnonzero(answered[:, j])
        yield _Policies(j, j, rows, np.ones((1, len(rows)), bool))
    apart = rivals(log.models)
    for first, second in pairs(len(log.models)):
        if (first, second) in apart:
            continue
        rows = np.flatnonzero(answered[:, first] & answered[:, second])
        if len(rows):
            confidence = logprob[rows, first]
            cuts = np.unique(np.quantile(confidence, _CUTS, method="lower"))
            yield _Policies(first, second, rows, confidence > cuts[:, None])


def _figures(cascades: list[_Policies], log: Log, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(P,) expected cost and error of all policies."""
    money, costs, errors = np.asarray(log.query_cost, float), [], []
    for one in cascades:
        asked = money[one.rows, one.first] + np.where(one.stops, 0.0, money[one.rows, one.second])
        costs.append(asked.mean(1) if one.first != one.second else money[one.rows, one.first].mean(keepdims=True))
        errors.append(1 - one.of(right).mean(1))
    return np.concatenate(costs), np.concatenate(errors)


def _slopes(cost: np.ndarray, error: np.ndarray, target: Target | None) -> list[float]:
    """λ of a target, by the hull of the policies' costs and errors; without one, some along the hull."""
    if target is not None and not target.is_limit:
        return [target.value if target.name == "lam" else 1 / target.value]
    corners = lower_hull(cost, error)
    x, y = cost[corners], error[corners]
    slopes = np.maximum((y[:-1] - y[1:]) / np.maximum(x[1:] - x[:-1], 1e-300), 0.0)
    if not len(slopes):
        return [0.0]
    if target is None:
        some = np.linspace(0, len(slopes) - 1, min(_SLOPES, len(slopes))).astype(int)
        return slopes[some].tolist()
    place = np.searchsorted(x, target.value) if target.name == "budget" else np.searchsorted(-y, -target.value)
    return [float(slopes[np.clip(place - 1, 0, len(slopes) - 1)])]


def _spread(cascades: list[_Policies], best: int, right: np.ndarray) -> np.ndarray:
    """(P,) variance, by one label of each model, of the difference of each policy's error from that of the best.

    Of an answer that is right with probability f that is f (1 − f), as what is expected of it is known without a label.
    """
    decides = _decides(cascades, best, right.shape)
    theirs = np.where(decides, right, 0.0).sum(1)
    spreads = []
    for one in cascades:
        alike = np.where(one.stops, decides[one.rows, one.first], decides[one.rows, one.second])
        own, other = one.of(right), theirs[one.rows]
        differ = np.where(alike, 0.0, own * (1 - own) + other * (1 - other))
        spreads.append(differ.mean(1))
    return np.concatenate(spreads)


def _decides(cascades: list[_Policies], place: int, shape: tuple[int, ...]) -> np.ndarray:
    """(n, k) bool: the answers that one of all policies gives."""
    decides = np.zeros(shape, bool)
    for one in cascades:
        if place < len(one.stops):
            decides[one.rows, one.first] |= one.stops[place]
            decides[one.rows, one.second] |= ~one.stops[place]
            return decides
        place -= len(one.stops)
    raise IndexError(place)


def _decided(cascades: list[_Policies], weight: np.ndarray, best: int | None, shape: tuple[int, ...]) -> np.ndarray:
    """(n, k) the sum over policies, with weights (P,), of d² + (d − d*)²; of d² alone where no policy is the best."""
    total, start, every = np.zeros(shape), 0, np.zeros(shape[0])
    chosen = None if best is None else _decides(cascades, best, shape)
    for one in cascades:
        own = weight[start : start + len(one.stops)]
        start += len(one.stops)
        stops = own @ one.stops
        total[one.rows, one.first] += stops
        if one.first != one.second:
            total[one.rows, one.second] += own.sum() - stops
        every[one.rows] += own.sum()
    if chosen is None:
        return total
    # (d − d*)² is d where d* is 0, and 1 − d where it is 1, of the policies that are asked about the query.
    return total + np.where(chosen, every[:, None] - total, total)
