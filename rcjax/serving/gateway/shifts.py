"""Whether models answer as surely as they did: confidences of this week beside those of eight weeks before, counted.

Of all traffic, without a label, and without prompts or answers: a count for each twentieth of the confidence, week by
week, of the first model that a request asks, which any request might have come to. Standard library only.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

_STEPS, _WEEKS = 20, 8
_WEEK = 7 * 86_400.0  # seconds
_FEWEST = 100  # answers on each side, below which nothing is told


class Shift(NamedTuple):
    """How far the confidences of a model have moved."""

    model: str
    distance: float
    """Of Kolmogorov and Smirnov, between 0 and 1."""
    p_value: float
    """How likely chance alone makes one as large, at one look; too large rather than too small, as values are few."""
    now: int
    """Answers of this week."""
    before: int


class Shifts:
    """Confidences of each policy's models by week.

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
        """An answer of a model that was asked first.

        Args:
            policy: the policy, by its name and its file.
            model: the model.
            confidence: calibrated, from 0 to 1.
            time: when it came, in seconds since 1970.
        """
        weeks, week = self._counts[policy, model], int(time // _WEEK)
        if week not in weeks:
            weeks[week] = [0] * _STEPS
            for old in [one for one in weeks if one < week - _WEEKS]:
                del weeks[old]
        weeks[week][min(int(confidence * _STEPS), _STEPS - 1)] += 1

    def of(self, policy: str, time: float) -> Iterator[Shift]:
        """What has become of the confidences of a policy's models, as far as there are enough of them."""
        this = int(time // _WEEK)
        for (name, model), weeks in [*self._counts.items()]:
            earlier = [counts for week, counts in [*weeks.items()] if week < this]
            now, before = weeks.get(this, [0] * _STEPS), [sum(step) for step in zip(*earlier, strict=True)]
            if name == policy and min(sum(now), sum(before)) >= _FEWEST:
                yield _shift(model, now, before)


def _shift(model: str, now: list[int], before: list[int]) -> Shift:
    n, m = sum(now), sum(before)
    gap = distance = 0.0
    for one, other in zip(now, before, strict=True):
        gap += one / n - other / m
        distance = max(distance, abs(gap))
    root = math.sqrt(n * m / (n + m))
    x = (root + 0.12 + 0.11 / root) * distance  # Stephens 1970, for samples of any size
    series = 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * x) ** 2) for k in range(1, 101))
    return Shift(model, distance, 1.0 if x < 0.3 else min(max(series, 0.0), 1.0), n, m)
