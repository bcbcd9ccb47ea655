"""Answers as a policy compares them, and keys of answers by a function of the user's own; votes among several answers
of one model, in service: their share as its confidence, as its log had it. Standard library only.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from rcjax._base.arguments import what_it_is
from rcjax.policy.answers import COMPARISONS, Comparison, comparable
from rcjax.policy.policy import AnyPolicy, Policy
from rcjax.signals import Votes

if TYPE_CHECKING:
    from rcjax.serving.call_log import Call


#: What to do about keys that nothing makes.
_NO_KEY = "give rcjax.Cascade the function that makes one of an answer; a service needs a log with a column answer"

_OTHERWISE = "such answers are not compared, and the confidence decides"


class CascadeWarning(UserWarning):
    """A model's confidence cannot be read, or a call cannot be logged; the cascade goes on."""


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
        """The key of an answer, or None."""
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
        if key is not None and not callable(key):
            raise TypeError(f"answer_key must be a function of an answer, not {what_it_is(key)}")
        keyed = any(one.compare == "key" for part in policy.rungs for one in part.agreements.values())
        if keyed and key is None:
            what = "the policy compares keys of answers, as the column answer_key of its log has them"
            raise ValueError(f"answer_key: {what}: {_NO_KEY}")
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


@dataclass(frozen=True, slots=True)
class AsInLog:
    """Answers as those of a log are compared; nothing is left of one that is empty."""

    compare: Comparison
    key: Callable[[str], str | None] | None = field(default=None, repr=False)
    """What makes the keys that are compared, where keys are."""

    def __call__(self, text: str) -> str:
        """What is left of an answer.

        >>> AsInLog("choice")("The answer is B."), AsInLog("text")(" 1,000 ")
        ('b', '1000')
        """
        return comparable(text if self.key is None else self.key(text), self.compare) or ""

    def answer(self, text: str) -> str:
        """The answer for a log: the letter of a choice, a text as it is, as labels are compared with it."""
        return self(text) if self.compare == "choice" else text


_NO_VOTE = "such answers vote for nothing"


def votes_apart(record: Mapping[str, Any], model: str, key: Callable[[str], Any] | None = None) -> Votes | None:
    """The signal of a model of whose log several answers voted, each asked for by itself; None for another signal.

    Args:
        record: what the policy keeps of how the model was asked.
        model: its name.
        key: what makes a key of an answer, where the answers of the log were compared by keys.

    Raises ValueError where they were, and nothing makes keys.

    >>> votes_apart({"signal": "votes", "samples": 3, "apart": True, "compare": "choice"}, "small")
    Votes(samples=3, temperature=None, normalise=AsInLog(compare='choice'), apart=True)
    """
    compare = record.get("compare")
    if record.get("signal") != "votes" or compare is None:
        return None
    if compare == "key" and key is not None:
        normalise = AsInLog("key", AnswerKeys(key, _NO_VOTE))
    elif compare not in COMPARISONS or compare == "key":
        what = f"the answers of {model} vote by keys, as the column answer_key of its log has them"
        raise ValueError(f"answer_key: {what}: {_NO_KEY}")
    else:
        normalise = AsInLog(cast(Comparison, compare))
    return Votes(int(record.get("samples", 1)), record.get("temperature"), normalise, apart=True)
