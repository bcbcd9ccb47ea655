"""From what a scorer gave to right or wrong."""

from __future__ import annotations

import math
from typing import Any

from rcjax.logs.errors import LogError

__all__ = ["is_right"]

#: What scorers write for right, half right and wrong: Inspect's letters, and words.
_WORDS = {"c": 1.0, "p": 0.5, "i": 0.0, "n": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}


def is_right(score: Any, right_from: float | None, where: str) -> bool | None:
    """Whether a score means right; None where nothing was scored (None, or not a number).

    Args:
        score: a letter (C, I, P, N), a word, a truth value or a number.
        right_from: from which score on an answer counts as right; None: there must be no partial credit.
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
        advice = "say from which score on an answer is right, with --right-from 0.5 (right_from=0.5)"
        raise LogError(f"{where}: the score {score!r:.60} is partial credit: {advice}")
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
