"""Answers as a policy compares them, and keys of answers by a function of the user's own. Standard library only."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from rcjax._base.arguments import what_it_is
from rcjax.policy.policy import AnyPolicy, Policy

if TYPE_CHECKING:
    from rcjax.serving.call_log import Call

_OTHERWISE = "such answers are not compared, and the confidence decides"


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


class Comparing:
    """Answers as a policy compares them: as the signal reads them, or keys of the user's own.

    Args:
        policy: the policy.
        key: what makes a key of an answer.

    Raises ValueError where the policy compares keys, and nothing makes them; TypeError for what cannot be called.
    """

    def __init__(self, policy: AnyPolicy, key: Callable[[str], str] | None) -> None:
        key = checked_key(key)
        keyed = any(one.compare == "key" for part in policy.rungs for one in part.agreements.values())
        if keyed and key is None:
            what = "the policy compares keys of answers, as the column answer_key of its log has them"
            raise ValueError(f"answer_key: {what}: give the function that makes one of an answer")
        # Without a key, the decision is left to the confidence.
        self._keys = None if key is None else AnswerKeys(key, _OTHERWISE)

    def arguments(self, policy: Policy, calls: Sequence[Call]) -> dict[str, Any]:
        """The arguments `answer` and `answers` of `Policy.step` after some models were asked, the last one just now."""
        *before, last = calls
        agreement = policy.agreements.get(last.model)
        if agreement is None:
            return {}
        answers = {call.model: call.answer for call in before}
        if agreement.compare != "key":
            return {"answer": last.answer, "answers": answers}
        keys = {model: self._key_of(answer) for model, answer in answers.items() if model == agreement.earlier}
        return {"answer": self._key_of(last.answer), "answers": keys}

    def _key_of(self, answer: str | None) -> str | None:
        return None if self._keys is None else self._keys(answer)
