"""Raw confidence → calibrated confidence, in plain Python."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal, get_args

from rcjax._base.arguments import what_it_is
from rcjax._base.codec import Checked, Filled, Share, check_fields
from rcjax._base.json_checks import require

Transform = Literal["choice", "generation", "none"]

TRANSFORMS = get_args(Transform)

#: A raw probability as near as this to a value that a model states is the value, written with other digits.
NEAR = 5e-4

#: The raw log-probability of an answer without a confidence, in logs and to calibrate: exact in single precision.
NO_CONFIDENCE = -(2.0**100)

#: How far above that of answers without a confidence all others lie, as a multiple.
ABOVE = 1.001

_LOG_2 = math.log(2.0)


def _in_order(pairs: tuple[tuple[float, float], ...], where: str) -> tuple[tuple[float, float], ...]:
    """Pairs of a raw and a calibrated confidence: the raw ones rise, the calibrated ones rise or fall."""
    raw, calibrated = zip(*pairs, strict=True)
    require(all(a < b for a, b in pairwise(raw)), where, "must have its raw confidences in rising order", raw)
    monotone = list(calibrated) in (sorted(calibrated), sorted(calibrated, reverse=True))
    require(monotone, where, "must have calibrated confidences that rise, or that fall", calibrated)
    return pairs


@dataclass(frozen=True, slots=True)
class Calibration:
    """Raw log-probability → calibrated confidence, the estimated probability of being right.

    A logistic regression on a transformed probability (the paper's section on calibration):
    Φ = 1 / (1 + exp(−(intercept + slope · ξ))), where, with p = exp(logprob), ξ is

    - `"choice"`: log 1/(1−p);
    - `"generation"`: log 1/(1−p) − log 2 for p ≥ ½, and log p + log 2 for p < ½ (antisymmetric, monotone);
    - `"none"`: log p itself.

    `smallest` and `largest`, the extremes of the finite ξ of the training set, stand in for ξ = −∞ and +∞.

    Values that a model states again and again may have estimates of their own: `stated` holds pairs (p, Φ), p rising.
    A probability within 0.0005 of one has its Φ; between two of them Φ stays between theirs. `unread` is the Φ of an
    answer without a confidence (`NO_CONFIDENCE`), just above which all others lie at the least; None: that of p = 0.
    Raises ValueError for an unknown transform, a number that is not finite, smallest > largest, or stated values out of
    order.

    Example:
        >>> calibrate = Calibration("choice", intercept=-1.0, slope=0.5, smallest=0.0, largest=10.0)
        >>> print(f"{calibrate(-0.01):.4f} {calibrate(0.0):.4f}")
        0.7867 0.9820
        >>> calibrate = Calibration("choice", -1.0, 0.5, 0.0, 10.0, stated=((0.8, 0.4), (0.9, 0.7)))
        >>> print(f"{calibrate(math.log(0.9)):.4f} {calibrate(math.log(0.99)):.4f}")
        0.7000 0.7863
    """

    transform: Transform
    intercept: float
    slope: float
    smallest: float
    largest: float
    stated: Annotated[tuple[tuple[Share, Share], ...], Filled, Checked(_in_order)] | None = None
    unread: Share | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stated", self.stated or None)
        check_fields(self)
        require(self.smallest <= self.largest, "smallest", "must be at most `largest`", self.smallest)

    def __call__(self, logprob: float) -> float:
        """Return the calibrated confidence in [0, 1] of a log-probability (NaN, above 0: ValueError)."""
        try:
            sound = logprob <= 0  # NaN is not
        except TypeError:
            raise TypeError(f"logprob must be a number, not {what_it_is(logprob)}") from None
        if not sound:
            raise ValueError(f"logprob must be at most 0, not {logprob}; clip rounding: min(logprob, 0.0)")
        if logprob == NO_CONFIDENCE:
            if self.unread is not None:
                return self.unread
            logprob = -math.inf
        curve = self._curve(float(logprob))
        amended = curve if self.stated is None else _amended(self.stated, math.exp(logprob), curve)
        return amended if self.unread is None else max(amended, min(ABOVE * self.unread, 1.0))

    def _curve(self, logprob: float) -> float:
        xi = _transformed(self.transform, logprob)
        if math.isinf(xi):
            xi = self.largest if xi > 0 else self.smallest
        return _logistic(self.intercept + self.slope * xi)


def _transformed(transform: Transform, logprob: float) -> float:
    if transform == "none":
        return logprob
    if transform == "generation" and logprob < -_LOG_2:
        return logprob + _LOG_2
    wrong = -math.expm1(logprob)  # 1 − p, exact even where p has rounded to 1
    xi = -math.log(wrong) if wrong > 0 else math.inf
    return xi - _LOG_2 if transform == "generation" else xi


def _logistic(x: float) -> float:
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    odds = math.exp(x)  # only ever of a number below 0, which cannot overflow
    return odds / (1.0 + odds)


def _amended(stated: tuple[tuple[float, float], ...], raw: float, curve: float) -> float:
    """The confidence of a stated value; elsewhere the curve's, between those of its neighbours."""
    index = bisect_left(stated, (raw,))
    beside = stated[max(index - 1, 0) : index + 1]
    distance, confidence = min((abs(value - raw), confidence) for value, confidence in beside)
    if distance <= NEAR:
        return confidence
    rising = stated[0][1] <= stated[-1][1]
    before = stated[index - 1][1] if index > 0 else (0.0 if rising else 1.0)
    after = stated[index][1] if index < len(stated) else (1.0 if rising else 0.0)
    return min(max(curve, min(before, after)), max(before, after))
