"""From the answers of one model to one query to its raw confidence: which signals the files allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from rcjax.importing.foreign_answers import ImportedAnswer
from rcjax.signals import SignalError, Token, mean_logprob, normalise_answer, vote_share
from rcjax.signals.chosen import chosen_choice
from rcjax.signals.measures import read_choice
from rcjax.signals.replies import logprob_of
from rcjax.signals.tokens import NO_LOGPROB, TokensError, read_tokens


class TokenSignals(NamedTuple):
    """What a file tells of the confidence of an answer: fields of `ImportedAnswer`."""

    logprobs: dict[str, float]
    unusable: str | None = None
    likeliest: str | None = None


class Confident(NamedTuple):
    """The answer that stands for several to one query, and how confident the model was."""

    answer: ImportedAnswer
    logprob: float


class ImportedSignal(NamedTuple):
    """One way from answers to a confidence."""

    name: str
    says: str
    """In words, for the note that tells which one was used."""
    read: Callable[[Sequence[ImportedAnswer]], Confident | None]
    """The confidence of the answers (not empty) to a query; None where they do not allow it."""


def of_content(content: Any, text: str, choices: Sequence[str] = ()) -> TokenSignals:
    """What the tokens of a reply tell, as an API has them: of a choice its probability, of a text the mean.

    Args:
        content: as `read_tokens` takes it.
        text: the reply.
        choices: their names; none of a free text.

    >>> of_content([{"token": "Par", "logprob": -0.2}, {"token": "is", "logprob": -0.1}], "Paris").logprobs
    {'mean': -0.15...}
    >>> of_content([{"token": "Paris", "logprob": 0.5}], "Paris").unusable
    'a log-probability is missing, NaN or above 0'
    """
    try:
        tokens = read_tokens(content, text)
        return of_choice(tokens, choices, chosen_choice(text, choices)) if choices else TokenSignals(_mean(tokens))
    except TokensError as problem:
        return TokenSignals({}, problem.why)
    except SignalError:
        return TokenSignals({})


def of_choice(tokens: Sequence[Token], choices: Sequence[str], chosen: str | None) -> TokenSignals:
    """What tokens tell of a choice: the probability of the one `chosen`, and the likeliest where that is another."""
    try:
        _, logprob, likeliest = read_choice(tokens, choices, chosen)
    except SignalError:
        return TokenSignals({})
    return TokenSignals({"choice": logprob}, likeliest=likeliest)


def of_numbers(logprobs: Sequence[Any]) -> TokenSignals:
    """The mean of log-probabilities whose tokens are not told.

    >>> [of_numbers(logprobs).logprobs for logprobs in ([-0.25, -0.75], [])], of_numbers([-0.1, None]).unusable
    ([{'mean': -0.5}, {}], 'a log-probability is missing, NaN or above 0')
    """
    numbers = [logprob_of(logprob) for logprob in logprobs]
    tokens = [Token("", number) for number in numbers if number is not None]
    if len(tokens) < len(numbers):
        return TokenSignals({}, NO_LOGPROB)
    return TokenSignals(_mean(tokens) if tokens else {})


def _mean(tokens: Sequence[Token]) -> dict[str, float]:
    return {"mean": mean_logprob(tokens)}


def _as_stated(name: str, answers: Sequence[ImportedAnswer]) -> Confident | None:
    first = answers[0]
    return Confident(first, first.logprobs[name]) if name in first.logprobs else None


def _votes(answers: Sequence[ImportedAnswer]) -> Confident | None:
    """The answer of most samples; where only the first was scored, that one, whatever its share."""
    if len(answers) < 2:
        return None
    if not all(answer.scored for answer in answers[1:]):
        return _share(answers[0], answers)
    try:
        winner = normalise_answer(vote_share(answer.text for answer in answers)[0])
    except SignalError:
        return None
    return _share(next(answer for answer in answers if normalise_answer(answer.text or "") == winner), answers)


def _share(answer: ImportedAnswer, samples: Sequence[ImportedAnswer]) -> Confident | None:
    """An answer with the share of the samples that give it too."""
    if not normalise_answer(answer.text or ""):
        return None
    same = [normalise_answer(sample.text or "") == normalise_answer(answer.text or "") for sample in samples]
    return Confident(answer, math.log(sum(same) / len(same)))


#: In the order of preference.
SIGNALS = (
    ImportedSignal(
        "own",
        "what the files tell: of lm-eval the likelihood of the choice among all choices",
        partial(_as_stated, "own"),
    ),
    ImportedSignal("choice", "the probability of the choice made", partial(_as_stated, "choice")),
    ImportedSignal("mean", "the mean log-probability of the tokens", partial(_as_stated, "mean")),
    ImportedSignal("votes", "the share of the samples that give the answer", _votes),
)


def _nothing(answers: Sequence[ImportedAnswer]) -> Confident:
    return Confident(answers[0], 0.0)


#: The confidence of one answer where the files tell none, which is the same for all.
ALONE = ImportedSignal(
    "none", "1 for each answer by itself, as the files tell none: only how many agree does", _nothing
)

#: The same where no query has several answers.
UNTOLD = ImportedSignal(
    "none", "1 for each answer, as the files tell none: whether models agree is all that tells", _nothing
)


def has_samples(queries: Sequence[Sequence[ImportedAnswer]]) -> bool:
    """Whether most queries have several answers, and all of these a score: some programs score one of them alone.

    Args:
        queries: the answers to each, those that did not fail.
    """
    several = [len(answers) > 1 for answers in queries]
    scored = all(answer.scored for answers in queries for answer in answers if len(answers) > 1)
    return scored and 2 * sum(several) > len(several)


def alone_signal(queries: Iterable[Sequence[ImportedAnswer]]) -> ImportedSignal:
    """What tells the confidence of each answer by itself: the first signal that most of them allow, or none.

    Args:
        queries: the answers to each, those that did not fail.
    """
    answers = [answer for several in queries for answer in several]
    signals = [signal for signal in SIGNALS if signal.name != "votes"]
    counts = [sum(signal.read([answer]) is not None for answer in answers) for signal in signals]
    best = max(range(len(signals)), key=lambda index: (counts[index], -index))
    return signals[best] if counts[best] else ALONE
