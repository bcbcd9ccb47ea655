"""Have a model's raw confidences moved? Counts over a few bins against the queries that the policy carries.

No label is needed, and no more than some twenty counters, which several workers can add up. The distance is that of
`rcjax.goodness_of_fit.two_samples`, √∫ (F − G)² dH with mid-ranks, of samples whose values within one bin are all tied:
that makes it smaller, by some 2 to 5 % where a model has moved, and the limit for continuous values a little too high.

That limit is for one look. Where a drift is looked at again and again as queries come in, it is exceeded some time in
one of five services in which nothing has changed; 1.27 times the limit, which is for 1 % of looks, in one of 25.

Reference: Anderson 1962, "On the distribution of the two-sample Cramér–von Mises criterion", Annals of Mathematical
Statistics 33: nm/(n + m) · ∫ (F − G)² dH exceeds 0.461 in 5 % of cases where nothing has changed. Standard library
only.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from rcjax.serving.gateway.expectations import Reach

__all__ = ["Bins", "bins_of", "counted", "distance", "distance_by_chance"]


_QUANTILE = 0.461  # of the criterion's limit, at 95 %


_MOST = 20  # bins of about equal weight; one value with as much weight as a bin has one of its own


_SINGLE = struct.Struct("<f")


@dataclass(frozen=True, slots=True)
class Bins:
    """Intervals of raw log-probability, each closed on the right, with the weight that the reference has there."""

    edges: tuple[float, ...]
    """Where each interval but the last ends, ascending."""
    shares: tuple[float, ...]
    """Of the reference, per interval; their sum is 1."""
    size: float
    """How many queries the reference is worth: fewer than it has, where a mixture weighs them differently."""

    def index(self, logprob: float) -> int:
        """The interval of a log-probability, in single precision, as the reference is: what was tied stays tied.

        >>> Bins((-2.0, -1.0), (0.5, 0.5, 0.0), 2).index(-1.0)
        1
        """
        return bisect_left(self.edges, _single(logprob))


def bins_of(reach: Reach) -> Bins | None:
    """About twenty bins of equal weight on the queries that reach a model; None where there are none.

    A value that is as heavy as a bin (a probability that has rounded to 1, the few values of a vote) has a bin of its
    own: what lies between it and the next value of the reference does not.

    >>> bins = bins_of(Reach((-3.0, -2.0, -1.0, 0.0), (0.1, 0.2, 0.5, 0.9), (1.0, 1.0, 1.0, 1.0)))
    >>> len(bins.edges), bins.index(-0.0), bins.index(-0.5), bins.size
    (8, 7, 6, 4.0)
    """
    if not reach.logprobs:
        return None
    weight: dict[float, float] = {}
    for logprob, share in zip(reach.logprobs, reach.weights, strict=True):
        weight[logprob] = weight.get(logprob, 0.0) + share
    total = math.fsum(reach.weights)
    edges = _edges(weight, total / _MOST)
    shares = [0.0] * (len(edges) + 1)
    for logprob, share in weight.items():
        shares[bisect_left(edges, logprob)] += share / total
    # Kish 1965, "Survey Sampling": the size of an equally weighted sample with the same variance.
    return Bins(tuple(edges), tuple(shares), total**2 / math.fsum(w**2 for w in reach.weights))


def distance(bins: Bins, counts: Sequence[float]) -> float | None:
    """√∫ (F − G)² dH between what was counted and the reference, H being both together; None where nothing was.

    >>> bins = Bins((-1.0,), (0.5, 0.5), 100)
    >>> distance(bins, [50, 50]), round(distance(bins, [100, 0]), 3)
    (0.0, 0.25)
    """
    total = math.fsum(counts)
    if not total:
        return None
    square, gap_before = 0.0, 0.0
    for count, share in zip(counts, bins.shares, strict=True):
        gap = gap_before + count / total - share
        both = (count + share * bins.size) / (total + bins.size)
        square += both * ((gap_before + gap) / 2) ** 2
        gap_before = gap
    return math.sqrt(square)


def distance_by_chance(total: float, size: float) -> float:
    """The distance that two samples of so many queries exceed in 5 % of cases where nothing has changed.

    Args:
        total: queries counted, above 0.
        size: queries of the reference, above 0.

    >>> round(distance_by_chance(400, 400), 3)
    0.048
    """
    return math.sqrt(_QUANTILE * (1 / total + 1 / size))


def _edges(weight: dict[float, float], heavy: float) -> list[float]:
    """Ends of intervals that hold at least `heavy` each, where each heavier value has an interval of its own."""
    ordered = sorted(weight)
    edges: list[float] = []
    within = 0.0
    for value, following in zip(ordered, [*ordered[1:], None], strict=True):
        if weight[value] >= heavy and value > -math.inf:
            below = math.nextafter(value, -math.inf)  # no number of single precision lies between
            edges += [below] if not edges or below > edges[-1] else []
            within = 0.0
        within += weight[value]
        if within >= heavy * (1 - 1e-9) or (following is not None and weight[following] >= heavy):
            edges.append(value)
            within = 0.0
    return edges


def _single(number: float) -> float:
    try:
        return _SINGLE.unpack(_SINGLE.pack(number))[0]
    except OverflowError:  # beyond what single precision holds
        return -math.inf


def counted(bins: Bins, logprobs: Sequence[float]) -> list[int]:
    """How many log-probabilities fall into each interval.

    >>> counted(Bins((-2.0, -1.0), (0.5, 0.5, 0.0), 2), [-3.0, -1.5, -1.0, 0.0])
    [1, 2, 1]
    """
    counts = [0] * len(bins.shares)
    for logprob in logprobs:
        counts[bins.index(logprob)] += 1
    return counts
