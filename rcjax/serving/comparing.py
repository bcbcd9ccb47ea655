"""What a cascade tells its policy of answers, so that those of two models can be compared. Standard library only."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from rcjax._base.arguments import what_it_is
from rcjax.policy.mixture import Mixture
from rcjax.policy.policy import Policy
from rcjax.serving.caller import Attempt, CascadeWarning

__all__ = ["Comparing"]


class Comparing:
    """Answers as a policy compares them: as the signal reads them, or keys of the user's own.

    Args:
        policy: the policy or mixture.
        key: what makes a key of an answer.

    Raises ValueError where the policy compares keys, and nothing makes them; TypeError for what cannot be called.
    """

    def __init__(self, policy: Policy | Mixture, key: Callable[[str], str] | None) -> None:
        if key is not None and not callable(key):
            raise TypeError(f"answer_key must be a function of an answer, not {what_it_is(key)}")
        keyed = any(one.compare == "key" for part in policy.policies for one in part.agreements.values())
        if keyed and key is None:
            what = "the policy compares keys of answers, as the column answer_key of its log has them"
            raise ValueError(f"answer_key: {what}: give the function that makes one of an answer")
        self._key = key
        self._warned = False

    def told(self, policy: Policy, attempts: Sequence[Attempt]) -> dict[str, Any]:
        """The arguments `answer` and `answers` of `Policy.step` after some models were asked, the last one just now."""
        *before, last = [attempt.call for attempt in attempts]
        agreement = policy.agreements.get(last.model)
        if agreement is None:
            return {}
        answers = {call.model: call.answer for call in before}
        if agreement.compare != "key":
            return {"answer": last.answer, "answers": answers}
        keys = {model: self._key_of(answer) for model, answer in answers.items() if model == agreement.earlier}
        return {"answer": self._key_of(last.answer), "answers": keys}

    def _key_of(self, answer: str | None) -> str | None:
        """The key of an answer; None, which leaves the decision to the confidence, where none can be made of it."""
        if answer is None or self._key is None:
            return None
        try:
            key: Any = self._key(answer)
        except Exception as problem:
            return self._warn(f"{type(problem).__name__}")
        return key if key is None or isinstance(key, str) else self._warn(f"it gave {what_it_is(key)}")

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            what = f"answer_key failed: {problem}: such answers are not compared, and the confidence decides"
            warnings.warn(what, CascadeWarning, stacklevel=2)
