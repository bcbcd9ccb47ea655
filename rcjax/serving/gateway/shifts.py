"""Shifts of confidence: the distribution of this week beside that of the eight weeks before, by model.

All traffic counts, and no label, prompt or answer is needed. Only the first model that a request asks counts, since
later models get a selection of the queries. Counts are kept by week, for each twentieth of the confidence. Standard
library only.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

_STEPS, _WEEKS = 20, 8
_WEEK = 7 * 86_400.0  # seconds
_FEWEST = 100  # answers on each side for a comparison


class Shift(NamedTuple):
    """The shift of a model's confidences from earlier weeks to this week."""

    model: str
    distance: float
    """Kolmogorov-Smirnov distance, between 0 and 1."""
    p_value: float
    """p-value of the distance at one look, too large rather than too small, since confidences are binned."""
    now: int
    """Number of answers of this week."""
    before: int
    """Number of answers of the eight weeks before."""


class Shifts:
    """Counts of the confidences of each policy's models, by week.

    >>> shifts = Shifts()
    >>> for number in range(1000):
    ...     shifts.add("support", "small", (number % 97) / 97, time=0.0)
    ...     shifts.add("support", "small", ((number % 97) / 97) ** 0.5, time=8 * 86_400.0)
    >>> (shift,) = shifts.of("support", time=8 * 86_400.0)
    >>> round(shift.distance, 2), shift.p_value < 1e-6, shift.now, shift.before
    (0.25, True, 1000, 1000)
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], dict[int, list[int]]] = defaultdict(dict)

    def add(self, policy: str, model: str, confidence: float, time: float) -> None:
        """Count the confidence of the model that a request asked first.

        Args:
            policy: the policy's name and digest.
            model: the model's name.
            confidence: calibrated confidence, from 0 to 1.
            time: time of the answer, in seconds since 1970.
        """
        weeks, week = self._counts[policy, model], int(time // _WEEK)
        if week not in weeks:
            weeks[week] = [0] * _STEPS
            for old in [earlier for earlier in weeks if earlier < week - _WEEKS]:
                del weeks[old]
        weeks[week][min(int(confidence * _STEPS), _STEPS - 1)] += 1

    def of(self, policy: str, time: float) -> Iterator[Shift]:
        """Yield the shift of each of a policy's models with enough answers on both sides."""
        this = int(time // _WEEK)
        for (name, model), weeks in [*self._counts.items()]:
            earlier = [counts for week, counts in [*weeks.items()] if week < this]
            now, before = weeks.get(this, [0] * _STEPS), [sum(step) for step in zip(*earlier, strict=True)]
            if name == policy and min(sum(now), sum(before)) >= _FEWEST:
                yield _shift(model, now, before)


def _shift(model: str, now: list[int], before: list[int]) -> Shift:
    n, m = sum(now), sum(before)
    gap = distance = 0.0
    for count, earlier in zip(now, before, strict=True):
        gap += count / n - earlier / m
        distance = max(distance, abs(gap))
    root = math.sqrt(n * m / (n + m))
    x = (root + 0.12 + 0.11 / root) * distance  # Stephens 1970, for samples of any size
    series = 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * x) ** 2) for k in range(1, 101))
    return Shift(model, distance, 1.0 if x < 0.3 else min(max(series, 0.0), 1.0), n, m)
