"""Several answers of one model that vote, in service: the confidence of `small ×3`, as its log had it.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from rcjax._base.variants import base_model, samples_of
from rcjax.policy.answers import COMPARISONS, Comparison, comparable
from rcjax.serving.answer_keys import AnswerKeys
from rcjax.signals import Votes

__all__ = ["AsInLog", "signal_of_votes"]


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


_OTHERWISE = "such answers vote for nothing"


def signal_of_votes(
    name: str, record: Mapping[str, Any], transform: str, key: Callable[[str], Any] | None = None
) -> Votes:
    """The signal of a vote: so many answers, each by a request of its own, and the share of the most common one.

    Args:
        name: of the vote, such as "small ×3".
        record: what the policy keeps of how it was asked; empty for nothing.
        transform: that of the policy's confidences; of choices, letters are compared.
        key: what makes a key of an answer, where the answers of the log were compared by keys.

    Raises ValueError where they were, and nothing makes keys.

    >>> signal_of_votes("small ×3", {}, "choice")
    Votes(samples=3, temperature=None, normalise=AsInLog(compare='choice'), apart=True)
    """
    compare = record.get("compare", "choice" if transform == "choice" else "text")
    if compare == "key" and key is not None:
        keyed = AsInLog("key", AnswerKeys(key, _OTHERWISE))
        return Votes(samples_of(name), record.get("temperature"), keyed, apart=True)
    if compare not in COMPARISONS or compare == "key":
        what = f"the answers of {base_model(name)} vote by keys, as the column answer_key of its log has them"
        raise ValueError(f"{what}, which no reply tells: give answer_key, the function that makes one of an answer")
    temperature = record.get("temperature")
    return Votes(samples_of(name), temperature, AsInLog(cast(Comparison, compare)), apart=True)
