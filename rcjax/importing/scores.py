"""From what a scorer gave to right or wrong."""

from __future__ import annotations

import math
from typing import Any

from rcjax.logs.errors import LogError

__all__ = ["is_right"]

#: What scorers write for right, half right and wrong: Inspect's letters, and words.
_WORDS = {"c": 1.0, "p": 0.5, "i": 0.0, "n": 0.0} | {
    word: value
    for value, words in ((1.0, "yes true correct right pass passed"), (0.0, "no false incorrect wrong fail failed"))
    for word in words.split()
}


def is_right(score: Any, right_from: float | None, where: str) -> bool | None:
    """Whether a score means right; None where nothing was scored (None, or not a number).

    Args:
        score: a letter (C, I, P, N), a word, a truth value or a number.
        right_from: from which score on an answer counts as right, on whatever scale; None: scores must be 0 or 1.
        where: the place of the score, for messages.

    Raises LogError for partial credit without `right_from`, and for what is no score.

    >>> is_right("C", None, "a"), is_right("I", None, "a"), is_right(0.5, 0.5, "a"), is_right(float("nan"), None, "a")
    (True, False, True, None)
    """
    value = _number(score, where)
    if math.isnan(value):
        return None
    if right_from is not None:
        return value >= right_from
    if value not in (0.0, 1.0):
        kind, example = ("partial credit", "0.5") if 0 < value < 1 else ("on another scale than 0 to 1", "7")
        advice = f"say from which score on an answer is right, with --right-from {example} (right_from={example})"
        raise LogError(f"{where}: the score {score!r:.60} is {kind}: {advice}")
    return value == 1.0


def _number(score: Any, where: str) -> float:
    if score is None:
        return math.nan
    if isinstance(score, bool | int | float):
        return float(score)
    if isinstance(score, str):
        word = score.strip().lower()
        if word in _WORDS:
            return _WORDS[word]
        try:
            return float(word)
        except ValueError:
            pass
    raise LogError(f"{where}: the score {score!r:.60} is neither a number nor C, I, P or N: choose another scorer")
