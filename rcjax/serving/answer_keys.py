"""Keys of answers, made by a function of the user's own, and what a cascade warns of. Standard library only."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, cast

from rcjax._base.arguments import what_it_is


class CascadeWarning(UserWarning):
    """A model's confidence cannot be read, or a call cannot be logged; the cascade goes on."""


def checked_key(key: Any) -> Callable[[str], str] | None:
    """The function that makes keys, or None. Raises TypeError for what cannot be called."""
    if key is not None and not callable(key):
        raise TypeError(f"answer_key must be a function of an answer, not {what_it_is(key)}")
    return cast("Callable[[str], str] | None", key)


class AnswerKeys:
    """Makes keys of answers; where none can be made there is none, and a `CascadeWarning` once.

    Args:
        key: the user's function.
        otherwise: what becomes of answers without a key, in words.

    >>> keys = AnswerKeys(str.upper, "such answers are not compared")
    >>> keys("b"), keys(None)
    ('B', None)
    """

    def __init__(self, key: Callable[[str], Any], otherwise: str) -> None:
        self._key, self._otherwise = key, otherwise
        self._warned = False

    def __call__(self, answer: str | None) -> str | None:
        """The key of an answer; None where there is none."""
        if answer is None:
            return None
        try:
            key = self._key(answer)
        except Exception as problem:
            return self._warn(f"{type(problem).__name__}")
        return key if key is None or isinstance(key, str) else self._warn(f"it gave {what_it_is(key)}")

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"answer_key failed: {problem}: {self._otherwise}", CascadeWarning, stacklevel=3)
