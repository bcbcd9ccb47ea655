"""From what a scorer gave to right or wrong, or to a score between."""

from __future__ import annotations

import math
from typing import Any

from rcjax.logs.errors import LogError

#: What scorers write for right, half right and wrong, as shares of the full score: Inspect's letters, and words.
_WORDS = {"c": 1.0, "p": 0.5, "i": 0.0, "n": 0.0} | {
    word: value
    for value, words in ((1.0, "yes true correct right pass passed"), (0.0, "no false incorrect wrong fail failed"))
    for word in words.split()
}

_ROUNDING = 1e-9  # a mean of scores that are all full may end that much below


def label_of(score: Any, right_from: float | None, most: float, where: str) -> float | None:
    """What a score is as a label: 1 for right, 0 for wrong, between them a score; None where nothing was scored.

    Args:
        score: a letter (C, I, P, N), a word, a truth value or a number; nothing is None, or not a number.
        right_from: from which score on an answer counts as right, on whatever scale; None: scores stay scores.
        most: the full score, where scores stay scores.
        where: the place of the score, for messages.

    Raises LogError for a score below 0 or above the full one without `right_from`, and for what is no score.

    >>> label_of("C", None, 1, "a"), label_of("P", None, 1, "a"), label_of(7, None, 10, "a"), label_of(0.5, 0.5, 1, "a")
    (1.0, 0.5, 0.7, 1.0)
    """
    value = _number(score, most, where)
    if math.isnan(value):
        return None
    if right_from is not None:
        return float(value >= right_from)
    share = value / most
    if not -_ROUNDING <= share <= 1 + _ROUNDING:
        scale = f"on another scale than 0 to {most:g}"
        advice = (
            "give the full score, with --score-max 10 (score_max=10), or say from which score on an answer is right"
        )
        raise LogError(f"{where}: the score {score!r:.60} is {scale}: {advice}, with --right-from 7 (right_from=7)")
    return float(round(share)) if abs(share - round(share)) <= _ROUNDING else share


def _number(score: Any, most: float, where: str) -> float:
    """A score on its scale; NaN for none."""
    if score is None:
        return math.nan
    if isinstance(score, bool):
        return most * score
    if isinstance(score, int | float):
        return float(score)
    if isinstance(score, str):
        word = score.strip().lower()
        if word in _WORDS:
            return most * _WORDS[word]
        try:
            return float(word)
        except ValueError:
            pass
    raise LogError(f"{where}: the score {score!r:.60} is neither a number nor C, I, P or N: choose another scorer")
