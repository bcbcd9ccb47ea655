"""Several answers of a model to a query, as one: the answer of most of them, their share, and what all of them cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

__all__ = ["Samples", "Vote", "vote"]


#: Of what else is known of the answers that vote, what counts is the most: they are asked for at once.
_LONGEST = ("seconds",)


@dataclasses.dataclass(frozen=True)
class Samples:
    """Answers of models to queries, S of each at most, in order; arrays of shape (…, S), those that are there first."""

    logprob: np.ndarray
    """Natural log of the raw confidence of each answer."""
    correct: np.ndarray
    """bool: the answer is right."""
    cost: np.ndarray
    """Money."""
    answer: np.ndarray
    """Whole numbers: equal ones are equal answers, 0 is none."""
    answered: np.ndarray
    """bool: there is such an answer."""
    also: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """What else is known of each answer, by name."""


@dataclasses.dataclass(frozen=True)
class Vote:
    """What answers come to; arrays of shape (…)."""

    logprob: np.ndarray
    """Natural log of the confidence; NaN where there are too few answers."""
    correct: np.ndarray
    """bool: the answer of most is right, as the first that gave it is."""
    cost: np.ndarray
    """Money, the sum of theirs; 0 where there are too few."""
    answer: np.ndarray
    """The answer of most; 0 where there are too few."""
    answered: np.ndarray
    """bool: there are enough answers."""
    also: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """What else is known, by name: that of the first answer that is that of most; of `seconds` the longest of those
    that vote, NaN where one is not known. NaN or False where too few."""


def vote(samples: Samples, number: int) -> Vote:
    """The vote of the first so many answers; one answer keeps its own confidence.

    Confidence is the share of the most common answer. Of equally common ones the one that came first counts. An empty
    answer votes for nothing, but counts; where all are empty, the confidence is 0.

    Args:
        samples: the answers.
        number: how many of them vote, from 1 to S.

    >>> right, there, money = np.array([True, True, False]), np.ones(3, bool), np.array([1.0, 1.0, 2.0])
    >>> answers = Samples(np.log([0.9, 0.8, 0.7]), right, money, np.array([7, 7, 5]), there)
    >>> three = vote(answers, 3)
    >>> round(float(np.exp(three.logprob)), 4), bool(three.correct), float(three.cost), int(three.answer)
    (0.6667, True, 4.0, 7)
    """
    answered = samples.answered.sum(-1) >= number
    logprob, correct, cost, answer = (
        values[..., :number] for values in (samples.logprob, samples.correct, samples.cost, samples.answer)
    )
    alike = ((answer[..., :, None] == answer[..., None, :]) & (answer[..., None] != 0)).sum(-1)
    first = alike.argmax(-1)[..., None]  # the first of the largest
    if number > 1:
        with np.errstate(divide="ignore"):
            logprob = np.log(alike / number)
    own = [np.take_along_axis(values, first, -1)[..., 0] for values in (logprob, correct, answer)]
    also = {
        name: values[..., :number].max(-1) if name in _LONGEST else np.take_along_axis(values, first, -1)[..., 0]
        for name, values in samples.also.items()
    }
    return Vote(
        logprob=np.where(answered, own[0], np.nan),
        correct=own[1] & answered,
        cost=np.where(answered, cost.sum(-1), 0.0),
        answer=np.where(answered, own[2], 0),
        answered=answered,
        also={name: np.where(answered, values, _empty_like(values, answered)) for name, values in also.items()},
    )


def _empty_like(values: np.ndarray, answered: np.ndarray) -> np.ndarray:
    """What stands where there is no vote: False of bool values, NaN of numbers."""
    return np.full(answered.shape, False if values.dtype == bool else np.nan)
