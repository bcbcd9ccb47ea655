"""Tokens of calls and their prices: input, output, and input read from or written to a cache."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Generic, NamedTuple, TypeVar, cast

from rcjax._base.codec import visible

#: Names of a model's prices in files; the first two are required.
PRICES = ("input", "output", "cached_input", "cache_write")


#: A number, or an array of numbers.
N = TypeVar("N")


class Tokens(NamedTuple, Generic[N]):
    """Numbers of tokens that calls used."""

    input: N
    """Input tokens, those read from and written to a cache included."""
    output: N
    """Output tokens, hidden reasoning included."""
    cached_input: N | int = 0
    """Input tokens read from a cache."""
    cache_write: N | int = 0
    """Input tokens written to a cache."""

    @property
    def parts(self) -> tuple[Any, ...]:
        """Tokens at each of the `PRICES`.

        >>> Tokens(100, 5, cached_input=60).parts
        (40, 5, 60, 0)
        """
        all_input, output, cached_input, cache_write = cast(tuple[Any, ...], self)
        return all_input - cached_input - cache_write, output, cached_input, cache_write


class Price(NamedTuple, Generic[N]):
    """Money per million tokens of a model."""

    input: N
    output: N
    cached_input: N | None = None
    """Price of input read from a cache; None for the price of other input."""
    cache_write: N | None = None
    """Price of input written to a cache; None for the price of other input."""
    tiers: Any = ()
    """Pairs (input tokens of one request, the price above that number), in increasing order."""

    def at(self, input_tokens: int) -> Price[N]:
        """Return the price of a request with this number of input tokens.

        >>> Price(1.25, 10.0, tiers=((200_000, Price(2.5, 15.0)),)).at(200_001).output
        15.0
        """
        above = [price for start, price in self.tiers if input_tokens > start]
        return above[-1] if above else self

    @property
    def exact(self) -> Price[Any]:
        """The price in decimals.

        >>> Price(0.1, 0.4).exact.input
        Decimal('0.1')
        """
        exact = (None if value is None else Decimal(str(value)) for value in self[:4])
        return Price(*exact, tiers=tuple((start, price.exact) for start, price in self.tiers))

    @property
    def full(self) -> tuple[Any, ...]:
        """Price of each of `Tokens.parts`."""
        return self.input, self.output, *(self.input if one is None else one for one in self[2:4])

    def max_money(self, input_tokens: int, output_tokens: int) -> Any:
        """Return the largest cost of a request with at most so many tokens: its input may be written to a cache."""
        price: Price[Any] = self.at(input_tokens)
        return (input_tokens * max(price.input, price.full[3]) + output_tokens * price.output) / 1_000_000

    def money(self, tokens: Tokens) -> Any:
        """Return the cost of the tokens of one request.

        >>> round(Price(3.0, 15.0, cached_input=0.3).money(Tokens(1_000_000, 0, cached_input=900_000)), 6)
        0.57
        """
        prices = self.at(tokens.input).full
        return sum(price * count for price, count in zip(prices, tokens.parts, strict=True)) / 1_000_000

    def record(self) -> dict[str, float]:
        """Return the prices of short requests by name, as JSON values."""
        values = zip(PRICES, cast(tuple[Any, ...], self)[:4], strict=True)
        return {name: float(price) for name, price in values if price is not None}

    def completed(self, other: Price | None) -> Price:
        """Fill in missing cache prices from another price, if its input and output prices are the same."""
        if other is None or tuple(self[:2]) != tuple(other[:2]):
            return self
        pairs = zip(self[:4], other, strict=False)
        return Price(*(theirs if ours is None else ours for ours, theirs in pairs), tiers=self.tiers)


#: Money per million tokens: a lower price is unlikely, and below the second bound it is probably per token.
_MIN_LIKELY_PRICE, _PER_TOKEN = 5e-3, 2e-5


def too_small(prices: Mapping[str, Price]) -> str | None:
    """Describe the first price that is too small to be per million tokens, with a proposal; None if there is none.

    >>> too_small({"small": Price(1e-7, 4e-7)}).rpartition(": ")[2]
    'if it is meant per token, write 0.1'
    """
    for model, price in prices.items():
        for side, money in zip(PRICES, map(float, price[:2]), strict=False):
            if 0 < money < _MIN_LIKELY_PRICE:
                what = f"{side} price {money:.6g} is money per million tokens, less than any model costs"
                unit, scale = ("token", 1e6) if money < _PER_TOKEN else ("1,000 tokens", 1e3)
                return f"model {visible(model)}: {what}: if it is meant per {unit}, write {money * scale:.6g}"
    return None
