"""What a cascade tells its policy of answers, so that those of two models can be compared. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rcjax.policy.policy import AnyPolicy, Policy
from rcjax.serving.answer_keys import AnswerKeys, checked_key
from rcjax.serving.exchange import Exchange

_OTHERWISE = "such answers are not compared, and the confidence decides"


class Comparing:
    """Answers as a policy compares them: as the signal reads them, or keys of the user's own.

    Args:
        policy: the policy or mixture.
        key: what makes a key of an answer.

    Raises ValueError where the policy compares keys, and nothing makes them; TypeError for what cannot be called.
    """

    def __init__(self, policy: AnyPolicy, key: Callable[[str], str] | None) -> None:
        key = checked_key(key)
        keyed = any(one.compare == "key" for part in policy.policies for one in part.agreements.values())
        if keyed and key is None:
            what = "the policy compares keys of answers, as the column answer_key of its log has them"
            raise ValueError(f"answer_key: {what}: give the function that makes one of an answer")
        # Without a key, the decision is left to the confidence.
        self._keys = None if key is None else AnswerKeys(key, _OTHERWISE)

    def arguments(self, policy: Policy, attempts: Sequence[Exchange]) -> dict[str, Any]:
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
        return None if self._keys is None else self._keys(answer)
