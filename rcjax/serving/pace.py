"""The pace of a model: length and time of its answers, to estimate the cost of a request that has not ended.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Options that limit the tokens of an answer.
TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")


_MEMORY = 50  # answers in the running means


@dataclass
class Pace:
    """Running means over the answers of a model; before the first answer, a guess that counts as one answer.

    >>> pace = Pace()
    >>> pace.add(written=1500, seconds=10.0)
    >>> pace.written, pace.rate
    (1000.0, 100.0)
    """

    written: float = 500.0
    """Tokens of an answer."""
    seconds: float = 10.0
    """Time of an answer."""
    _answers: int = 1

    @classmethod
    def guess(cls, written: float) -> Pace:
        """Guess the pace of a model that has not answered yet, from the tokens of an answer."""
        return cls(written, written * cls.seconds / cls.written)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.written / self.seconds

    def add(self, written: int, seconds: float) -> None:
        """Count an answer whose tokens are known."""
        self._answers = min(self._answers + 1, _MEMORY)
        share = 1 / self._answers
        self.written += share * (written - self.written)
        self.seconds += share * (max(seconds, 1e-3) - self.seconds)


def token_limit(options: Mapping[str, Any]) -> int | None:
    """Return the limit on the tokens of a reply, over all its samples; None if the options set none.

    >>> token_limit({"max_tokens": 10, "n": 5}), token_limit({})
    (50, None)
    """
    limits = [options[name] for name in TOKEN_LIMITS if _is_count(options.get(name))]
    samples = options.get("n")
    return max(limits) * (samples if _is_count(samples) else 1) if limits else None


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0
