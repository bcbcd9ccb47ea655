"""What an endpoint replied, and what a signal reads in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real

from rcjax._base.arguments import what_it_is

__all__ = ["Reading", "Reply", "SignalError", "Token"]


_ROUNDING = 1e-6  # how far above 0 sums and means of log-probabilities may come out


class SignalError(ValueError):
    """A reply that holds no confidence; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a reply, its natural log-probability, and those of the likeliest tokens in its place."""

    text: str
    logprob: float
    top: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model replied: one text per sample, and the tokens of the first, where the endpoint tells them."""

    texts: tuple[str, ...]
    tokens: tuple[Token, ...] | None = None

    @property
    def text(self) -> str:
        """The text of the first sample."""
        return self.texts[0]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a signal reads from a reply: the answer, to be compared with others, and its raw log-probability.

    `text` is the reply to keep, where that is not the first sample. A log-probability that rounding has put above 0
    becomes 0. Raises SignalError for what no policy can use: NaN, what is above 0, an answer that is no text.

    >>> Reading("B", 1e-9)
    Reading(answer='B', logprob=0.0, text=None)
    """

    answer: str
    logprob: float
    text: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.answer, str) or not isinstance(self.text, str | None):
            raise SignalError("what the signal reads must have texts as its answer and its text")
        if isinstance(self.logprob, bool) or not isinstance(self.logprob, Real):
            raise SignalError(f"what the signal reads has as its logprob {what_it_is(self.logprob)}: give a number")
        logprob = float(self.logprob)
        if not logprob <= _ROUNDING:  # NaN is not
            raise SignalError(f"the signal reads the log-probability {logprob:g}: it must be at most 0")
        object.__setattr__(self, "logprob", min(0.0, logprob))
