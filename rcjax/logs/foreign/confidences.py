"""From the answers of one model to one query to its raw confidence: which signals the files allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from rcjax.logs.foreign.answers import Answer
from rcjax.signals import SignalError, Token, choice_logprob, mean_logprob, normalise_answer, vote_share

__all__ = ["SIGNALS", "Confident", "Signal", "of_tokens"]


class Confident(NamedTuple):
    """The answer that stands for several to one query, and how confident the model was."""

    answer: Answer
    logprob: float


class Signal(NamedTuple):
    """One way from answers to a confidence."""

    name: str
    says: str
    """In words, for the note that tells which one was used."""
    read: Callable[[Sequence[Answer]], Confident | None]
    """The confidence of the answers (not empty) to a query; None where they do not allow it."""


def of_tokens(tokens: Sequence[Token], choices: Sequence[str] = ()) -> dict[str, float]:
    """What the tokens of a reply tell: of a choice its probability, of a text the mean; nothing where they cannot.

    >>> of_tokens([Token("Par", -0.2), Token("is", -0.1)]), of_tokens([Token("yes", -0.2)], "AB")
    ({'mean': -0.15...}, {})
    """
    try:
        return {"choice": choice_logprob(tokens, choices)[1]} if choices else {"mean": mean_logprob(tokens)}
    except SignalError:
        return {}


def _told(name: str, answers: Sequence[Answer]) -> Confident | None:
    first = answers[0]
    return Confident(first, min(0.0, first.logprobs[name])) if name in first.logprobs else None


def _votes(answers: Sequence[Answer]) -> Confident | None:
    """The answer of most samples; where only the first was scored, that one, whatever its share."""
    if len(answers) < 2:
        return None
    if any(answer.score is None for answer in answers[1:]):
        return _share(answers[0], answers)
    try:
        winner = normalise_answer(vote_share(answer.text for answer in answers)[0])
    except SignalError:
        return None
    return _share(next(answer for answer in answers if normalise_answer(answer.text or "") == winner), answers)


def _share(answer: Answer, samples: Sequence[Answer]) -> Confident | None:
    """An answer with the share of the samples that give it too."""
    if not normalise_answer(answer.text or ""):
        return None
    same = [normalise_answer(sample.text or "") == normalise_answer(answer.text or "") for sample in samples]
    return Confident(answer, math.log(sum(same) / len(same)))


#: In the order of preference.
SIGNALS = (
    Signal(
        "own", "what the files tell: of lm-eval the likelihood of the choice among all choices", partial(_told, "own")
    ),
    Signal("choice", "the probability of the choice made", partial(_told, "choice")),
    Signal("mean", "the mean log-probability of the tokens", partial(_told, "mean")),
    Signal("votes", "the share of the samples that give the answer", _votes),
)
