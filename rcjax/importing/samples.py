"""Several answers of a model to each query, kept apart: a row each, for votes to be made of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rcjax.importing.answers import Answer
from rcjax.importing.confidences import SIGNALS, Confident, Signal

__all__ = ["ALONE", "UNTOLD", "alone_signal", "has_samples"]


def _nothing(answers: Sequence[Answer]) -> Confident:
    return Confident(answers[0], 0.0)


#: The confidence of one answer where the files tell none, which is the same for all.
ALONE = Signal("none", "1 for each answer by itself, as the files tell none: only how many agree does", _nothing)

#: The same where no query has several answers.
UNTOLD = Signal("none", "1 for each answer, as the files tell none: whether models agree is all that tells", _nothing)


def has_samples(queries: Sequence[Sequence[Answer]]) -> bool:
    """Whether most queries have several answers, and all of these a score: some programs score one of them alone.

    Args:
        queries: the answers to each, those that did not fail.
    """
    several = [len(answers) > 1 for answers in queries]
    scored = all(answer.scored for answers in queries for answer in answers if len(answers) > 1)
    return scored and 2 * sum(several) > len(several)


def alone_signal(queries: Iterable[Sequence[Answer]]) -> Signal:
    """What tells the confidence of each answer by itself: the first signal that most of them allow, or none.

    Args:
        queries: the answers to each, those that did not fail.
    """
    answers = [answer for several in queries for answer in several]
    signals = [signal for signal in SIGNALS if signal.name != "votes"]
    counts = [sum(signal.read([answer]) is not None for answer in answers) for signal in signals]
    best = max(range(len(signals)), key=lambda place: (counts[place], -place))
    return signals[best] if counts[best] else ALONE
