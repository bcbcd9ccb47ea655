"""Money: what is spent, what calls under way may still cost, and that both together stay within the budget."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

_PER_MESSAGE, _PER_REQUEST = 16, 64  # tokens that endpoints put around messages, at most

_IMAGE = 20_000  # tokens that a part which is no text may stand for

_CHARACTERS = 4  # of a token, in usual texts


class BudgetSpentError(Exception):
    """What is left of the budget does not cover a call at its worst."""


class Purse:
    """Money for calls, within a budget.

    Args:
        budget: at most so much is spent; None is no limit.
        spent: by earlier runs.
    """

    def __init__(self, budget: Decimal | None = None, spent: Decimal = Decimal(0)) -> None:
        self.budget, self.spent, self.reserved = budget, spent, Decimal(0)
        self._changed = asyncio.Condition()

    @property
    def left(self) -> Decimal | None:
        """What is neither spent nor reserved; None without a budget."""
        return None if self.budget is None else self.budget - self.spent - self.reserved

    async def reserve(self, amount: Decimal) -> None:
        """Put so much aside for a call, when calls under way have left enough of what they reserved.

        Raises BudgetSpentError where it will not be enough.
        """
        async with self._changed:
            while not self.covers(amount):
                if not self.reserved:
                    raise BudgetSpentError
                await self._changed.wait()
            self.reserved += amount

    def reserve_more(self, amount: Decimal) -> None:
        """Put more aside for a call under way, which does not wait: others may wait for it."""
        if not self.covers(amount):
            raise BudgetSpentError
        self.reserved += amount

    def covers(self, amount: Decimal) -> bool:
        """Whether so much is left."""
        return self.left is None or amount <= self.left

    async def settle(self, reserved: Decimal, spent: Decimal) -> None:
        """End a call: what was put aside for it, and what it has cost."""
        self.reserved -= reserved
        self.spent += spent
        async with self._changed:
            self._changed.notify_all()


def most_input_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    """At most so many tokens are in messages: one for each byte, and what endpoints put around them.

    >>> most_input_tokens([{"role": "user", "content": "Hi"}])
    82
    """
    return _PER_REQUEST + sum(_PER_MESSAGE + _bytes(message.get("content")) for message in messages)


def usual_input_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    """About so many tokens are in messages: one for four characters, and four around each."""
    return 3 + sum(4 + _bytes(message.get("content")) // _CHARACTERS for message in messages)


def _bytes(content: Any) -> int:
    if content is None:
        return 0
    if isinstance(content, str):
        return len(content.encode("utf-8", "replace"))
    parts = content if isinstance(content, Sequence) else [content]
    texts = sum(_bytes(part.get("text")) for part in parts if isinstance(part, Mapping))
    others = [part for part in parts if not isinstance(part, Mapping) or part.get("type") != "text"]
    return texts + sum(max(_IMAGE, len(json.dumps(part, default=str)) // 8) for part in others)


def most_output_tokens(options: Mapping[str, Any]) -> int:
    """At most so many tokens come back, over all samples. Raises ValueError where the options set no limit.

    >>> most_output_tokens({"max_tokens": 10, "n": 5})
    50
    """
    limits = [options[name] for name in ("max_tokens", "max_completion_tokens") if _is_count(options.get(name))]
    samples = options.get("n")
    if not limits:
        raise ValueError("options without max_tokens: what such a call costs has no limit")
    return max(limits) * (samples if _is_count(samples) else 1)


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0
