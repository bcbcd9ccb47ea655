"""From the tokens of an answer to its raw confidence: which signals a file allows, as parts of its line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rcjax.importing.lines import Line, unread
from rcjax.signals import SignalError, Token, mean_logprob
from rcjax.signals.chosen import chosen_choice
from rcjax.signals.measures import read_choice
from rcjax.signals.replies import logprob_of
from rcjax.signals.tokens import NO_LOGPROB, TokensError, read_tokens


def of_content(content: Any, text: str, choices: Sequence[str] = ()) -> Line:
    """What the tokens of a reply tell, as an API has them: of a choice its probability, of a text the mean.

    Args:
        content: as `read_tokens` takes it.
        text: the reply.
        choices: their names; none of a free text.

    >>> of_content([{"token": "Par", "logprob": -0.25}, {"token": "is", "logprob": -0.75}], "Paris")
    {'logprob': -0.5, 'signal': 'mean'}
    >>> of_content([{"token": "Paris", "logprob": 0.5}], "Paris")
    {'error': 'a log-probability is missing, NaN or above 0', 'unread': True}
    """
    try:
        tokens = read_tokens(content, text)
    except TokensError as problem:
        return unread(problem.why)
    except SignalError:
        return {}
    return of_choice(tokens, choices, chosen_choice(text, choices)) if choices else _mean(tokens)


def of_choice(tokens: Sequence[Token], choices: Sequence[str], chosen: str | None) -> Line:
    """What tokens tell of a choice: the probability of the one `chosen`, and the likeliest where that is another."""
    try:
        _, logprob, likeliest = read_choice(tokens, choices, chosen)
    except SignalError:
        return {}
    return {"logprob": logprob, "signal": "choice", "likeliest": likeliest}


def of_numbers(logprobs: Sequence[Any]) -> Line:
    """The mean of log-probabilities whose tokens are not told.

    >>> of_numbers([-0.25, -0.75]), of_numbers([]), of_numbers([-0.1, None])["unread"]
    ({'logprob': -0.5, 'signal': 'mean'}, {}, True)
    """
    numbers = [logprob_of(logprob) for logprob in logprobs]
    tokens = [Token("", number) for number in numbers if number is not None]
    if len(tokens) < len(numbers):
        return unread(NO_LOGPROB)
    return _mean(tokens) if tokens else {}


def _mean(tokens: Sequence[Token]) -> Line:
    return {"logprob": mean_logprob(tokens), "signal": "mean"}
