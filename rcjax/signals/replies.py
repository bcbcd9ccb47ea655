"""What an endpoint replied, and what a signal reads in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from rcjax._base.arguments import what_it_is

#: How far above 0 log-probabilities may come out, and above 1 probabilities: as much as float32 rounds.
ROUNDING = 1e-6


class SignalError(ValueError):
    """A reply that holds no confidence; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a reply, its natural log-probability, and those of the likeliest tokens in its place by their texts.

    Several tokens of one text are one entry of `top`, the log of the sum of their probabilities.
    """

    text: str
    logprob: float
    top: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model replied: one text per sample, and the tokens of the first, where the endpoint tells them.

    `without_tokens` says why those that it tells cannot be used, such as tokens of hidden reasoning.
    """

    texts: tuple[str, ...]
    tokens: tuple[Token, ...] | None = None
    without_tokens: str | None = None
    finish_reason: str | None = None
    """Why the first sample ends there, as the endpoint has it."""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """Of the first sample, as the endpoint has them."""

    @property
    def text(self) -> str:
        """The text of the first sample."""
        return self.texts[0]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a signal reads from a reply: the answer, to be compared with others, and its raw log-probability.

    `text` is the reply to keep, where that is not the first sample; `likeliest` the answer that the model held likelier
    than the one it gave, as happens at temperatures above 0. A log-probability that rounding has put above 0 becomes 0.
    Raises SignalError for what no policy can use: NaN, what is above 0, an answer that is no text.

    >>> Reading("B", 1e-9)
    Reading(answer='B', logprob=0.0, text=None, likeliest=None)
    """

    answer: str
    logprob: float
    text: str | None = None
    likeliest: str | None = None

    def __post_init__(self) -> None:
        others = self.text, self.likeliest
        if not isinstance(self.answer, str) or not all(isinstance(other, str | None) for other in others):
            raise SignalError("what the signal reads must have texts as its answer, its text and the likeliest answer")
        if isinstance(self.logprob, bool) or not isinstance(self.logprob, Real):
            raise SignalError(f"what the signal reads has as its logprob {what_it_is(self.logprob)}: give a number")
        logprob = float(self.logprob)
        if not logprob <= ROUNDING:  # NaN is not
            raise SignalError(f"the signal reads the log-probability {logprob:g}: it must be at most 0")
        object.__setattr__(self, "logprob", min(0.0, logprob))


def logprob_of(value: Any) -> float | None:
    """A value as a natural log-probability; None if it is none: NaN, above 0 by more than rounding, no number.

    >>> logprob_of(-0.5), logprob_of(1e-7), logprob_of(0.5), logprob_of(float("nan")), logprob_of(None)
    (-0.5, 0.0, None, None, None)
    """
    if type(value) is float and value < 0:  # nearly always
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not value <= ROUNDING:
        return None
    try:
        return min(0.0, float(value))
    except OverflowError:  # a whole number, which JSON has at any length
        return None
