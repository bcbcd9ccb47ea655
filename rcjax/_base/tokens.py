"""Tokens that calls use, and what they cost: input and output, and of the input what a cache gave and took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rcjax._base.wording import visible

#: The prices of a model, by the names that files have for them; the first two must be there.
PRICES = ("input", "output", "cached_input", "cache_write")


class Tokens(NamedTuple):
    """How many tokens were read and written."""

    read: Any
    """Of the input, all of it."""
    written: Any
    """Of the output, hidden reasoning included."""
    cached: Any = 0
    """Of those that were read: what came from a cache."""
    stored: Any = 0
    """Of those that were read: what was put into a cache."""

    @property
    def parts(self) -> tuple[Any, ...]:
        """The tokens of each of the `PRICES`.

        >>> Tokens(100, 5, cached=60).parts
        (40, 5, 60, 0)
        """
        return self.read - self.cached - self.stored, self.written, self.cached, self.stored


class Price(NamedTuple):
    """Money per million tokens of a model."""

    input: Any
    output: Any
    cached_input: Any = None
    """Of input from a cache; None: as other input."""
    cache_write: Any = None
    """Of input that is put into a cache; None: as other input."""

    @property
    def full(self) -> tuple[Any, ...]:
        """The price of each of the parts of `Tokens.parts`."""
        return self.input, self.output, *(self.input if one is None else one for one in self[2:])

    @property
    def dearest_input(self) -> Any:
        """Of input, whatever a cache does."""
        return max(self.input, self.full[3])

    def money(self, tokens: Tokens) -> Any:
        """What so many tokens cost.

        >>> round(Price(3.0, 15.0, cached_input=0.3).money(Tokens(1_000_000, 0, cached=900_000)), 6)
        0.57
        """
        return sum(price * count for price, count in zip(self.full, tokens.parts, strict=True)) / 1_000_000

    def record(self) -> dict[str, float]:
        """The prices by name, as JSON has them."""
        return {name: float(price) for name, price in zip(PRICES, self, strict=True) if price is not None}

    def completed(self, other: Price | None) -> Price:
        """With what another price of the same model says of caches, where this one says nothing."""
        if other is None or tuple(self[:2]) != tuple(other[:2]):
            return self
        return Price(*(theirs if own is None else own for own, theirs in zip(self, other, strict=True)))


#: Money per million tokens, below which hardly any price is, and below which it is one for a token.
_LEAST_LIKELY, _PER_TOKEN = 5e-3, 2e-5


def too_small(prices: Mapping[str, Price]) -> str | None:
    """The first price that is hardly meant per million tokens, and what it may be, in words; None if there is none.

    >>> too_small({"small": Price(1e-7, 4e-7)}).rpartition(": ")[2]
    'if it is meant per token, write 0.1'
    """
    for model, price in prices.items():
        for side, money in zip(PRICES, map(float, price[:2]), strict=False):
            if 0 < money < _LEAST_LIKELY:
                what = f"{side} price {money:.6g} is money per million tokens, less than any model costs"
                unit, scale = ("token", 1e6) if money < _PER_TOKEN else ("1,000 tokens", 1e3)
                return f"model {visible(model)}: {what}: if it is meant per {unit}, write {money * scale:.6g}"
    return None
