"""From the tokens of an answer to its raw confidence: which signals a file allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rcjax.signals import SignalError, Token, mean_logprob
from rcjax.signals.chosen import chosen_choice
from rcjax.signals.measures import read_choice
from rcjax.signals.replies import logprob_of
from rcjax.signals.tokens import NO_LOGPROB, TokensError, read_tokens


class TokenSignals(NamedTuple):
    """What a file tells of the confidence of an answer: fields of `ImportedAnswer`."""

    logprob: float | None = None
    signal: str | None = None
    unusable: str | None = None
    likeliest: str | None = None


def of_content(content: Any, text: str, choices: Sequence[str] = ()) -> TokenSignals:
    """What the tokens of a reply tell, as an API has them: of a choice its probability, of a text the mean.

    Args:
        content: as `read_tokens` takes it.
        text: the reply.
        choices: their names; none of a free text.

    >>> of_content([{"token": "Par", "logprob": -0.2}, {"token": "is", "logprob": -0.1}], "Paris").logprob
    -0.15...
    >>> of_content([{"token": "Paris", "logprob": 0.5}], "Paris").unusable
    'a log-probability is missing, NaN or above 0'
    """
    try:
        tokens = read_tokens(content, text)
        return of_choice(tokens, choices, chosen_choice(text, choices)) if choices else _mean(tokens)
    except TokensError as problem:
        return TokenSignals(unusable=problem.why)
    except SignalError:
        return TokenSignals()


def of_choice(tokens: Sequence[Token], choices: Sequence[str], chosen: str | None) -> TokenSignals:
    """What tokens tell of a choice: the probability of the one `chosen`, and the likeliest where that is another."""
    try:
        _, logprob, likeliest = read_choice(tokens, choices, chosen)
    except SignalError:
        return TokenSignals()
    return TokenSignals(logprob, "choice", likeliest=likeliest)


def of_numbers(logprobs: Sequence[Any]) -> TokenSignals:
    """The mean of log-probabilities whose tokens are not told.

    >>> [of_numbers(logprobs).logprob for logprobs in ([-0.25, -0.75], [])], of_numbers([-0.1, None]).unusable
    ([-0.5, None], 'a log-probability is missing, NaN or above 0')
    """
    numbers = [logprob_of(logprob) for logprob in logprobs]
    tokens = [Token("", number) for number in numbers if number is not None]
    if len(tokens) < len(numbers):
        return TokenSignals(unusable=NO_LOGPROB)
    return _mean(tokens) if tokens else TokenSignals()


def _mean(tokens: Sequence[Token]) -> TokenSignals:
    return TokenSignals(mean_logprob(tokens), "mean")
