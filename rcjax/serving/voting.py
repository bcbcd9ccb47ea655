"""Several answers of one model that vote, in service: their share as its confidence, as its log had it.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from rcjax.policy.answers import COMPARISONS, Comparison, comparable
from rcjax.serving.answer_keys import AnswerKeys
from rcjax.signals import Votes


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
        normalise = AsInLog("key", AnswerKeys(key, _OTHERWISE))
    elif compare not in COMPARISONS or compare == "key":
        what = f"the answers of {model} vote by keys, as the column answer_key of its log has them"
        raise ValueError(f"{what}, which no reply tells: give answer_key, the function that makes one of an answer")
    else:
        normalise = AsInLog(cast(Comparison, compare))
    return Votes(int(record.get("samples", 1)), record.get("temperature"), normalise, apart=True)
