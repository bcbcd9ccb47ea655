"""From the log-likelihoods of the choices of a question to the choice made, as the metrics of lm-eval have it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rcjax.signals.replies import logprob_of
from rcjax.signals.tokens import NO_LOGPROB

#: How long a choice is, by the metric that divides likelihoods by it.
_LENGTHS: Mapping[str, Callable[[str], int]] = {
    "acc_norm": len,
    "acc_bytes": lambda text: len(text.encode("utf-8", "surrogatepass")),
}


def choice_made(
    replies: Sequence[Sequence[Any]], continuations: Sequence[str] | None, metric: str, mutual: bool
) -> dict[str, Any]:
    """What the likelihoods tell of an answer: its letter, and its log-probability among all choices.

    Args:
        replies: the log-likelihood of each choice, first of a pair; then of each without the question, where `mutual`.
        continuations: the texts of the choices, each after what separates it from the question; None: not told.
        metric: that grades, by which the choice made is the one of the largest likelihood, of the largest per
            character (`acc_norm`) or byte, or of the largest above that without the question (`acc_mutual_info`).
        mutual: whether the second half is without the question.

    Gives fields of an `Answer`: `text`, `logprob` and `signal`, and `unusable` where they are no confidence.

    >>> replies = [["-4.0", "False"], ["-6.0", "False"]]
    >>> choice_made(replies, [" no", " certainly"], "acc_norm", False)["text"]
    'B'
    """
    numbers = [_logprob(logprob) for logprob, _ in replies]
    likelihoods = [logprob for logprob in numbers if logprob is not None]
    number = len(numbers) // 2 if mutual else len(numbers)
    if len(likelihoods) < len(numbers) or max(likelihoods[:number], default=0.0) == -math.inf:
        return {"unusable": NO_LOGPROB}
    if number < 2:
        return {"unusable": "of a likelihood alone, beside no other choice"}
    values = _values(likelihoods, number, continuations, metric)
    if values is None:
        return {"unusable": f"{metric} goes by the lengths of the choices, which the file does not tell"}
    likelihoods = likelihoods[:number]
    index = max(range(number), key=values.__getitem__)
    return {"text": _letter(index), "logprob": _among_all(likelihoods, index), "signal": "own"}


def _logprob(value: Any) -> float | None:
    """A log-likelihood, which lm-eval writes as a text; None where it is none."""
    try:
        return logprob_of(float(value))
    except (TypeError, ValueError):
        return None


def _values(
    likelihoods: Sequence[float], number: int, continuations: Sequence[str] | None, metric: str
) -> list[float] | None:
    """By what a metric chooses among so many choices; None where the file does not tell it."""
    alone = likelihoods[number:]
    if metric == "acc_mutual_info" and len(alone) == number:
        pairs = zip(likelihoods, alone, strict=False)
        return [logprob if logprob == -math.inf else logprob - prior for logprob, prior in pairs]
    if metric not in _LENGTHS:
        return list(likelihoods[:number])
    texts = [] if continuations is None else _without_delimiter(continuations[:number])
    if len(texts) < number or len({*texts}) == 1:  # the choices are in the questions
        return None
    lengths = [_LENGTHS[metric](text) for text in texts]
    pairs = zip(likelihoods, lengths, strict=False)
    return [logprob / length if length else -math.inf for logprob, length in pairs]


def _without_delimiter(continuations: Sequence[str]) -> list[str]:
    """The choices alone: what lm-eval puts between a question and each of them is white space, if anything."""
    blanks = min((text[: len(text) - len(text.lstrip())] for text in continuations), key=len)
    return [text.removeprefix(blanks) for text in continuations]


def _among_all(likelihoods: Sequence[float], index: int) -> float:
    """The log-probability of one of the choices, if it must be one of them."""
    most = max(range(len(likelihoods)), key=likelihoods.__getitem__)
    others = [logprob for other, logprob in enumerate(likelihoods) if other != most]
    total = math.log1p(math.fsum(math.exp(logprob - likelihoods[most]) for logprob in others))
    return min(0.0, likelihoods[index] - likelihoods[most] - total)


def _letter(index: int) -> str:
    """The name of a choice: its letter, and its number where there are more than letters."""
    return chr(ord("A") + index) if index < 26 else str(index + 1)
