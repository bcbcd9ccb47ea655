"""Price lists of other projects: genai-prices, by model and day, and the files of LiteLLM and OpenRouter.

A price is read when it is looked up. `genai_prices` is an extra, `rcjax[prices]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from functools import cache
from typing import Any, NamedTuple

from rcjax._base.extras import import_extra
from rcjax._base.tokens import Price

GENAI = "genai"
"""The name that stands for genai-prices in place of a file of prices."""


class ListedPrice(NamedTuple):
    """The price of a model's tokens."""

    price: Price
    """Dollars per million tokens."""
    source: str
    """The list with the provider and the entry, in words."""

    def describe(self) -> str:
        """Describe the price in words.

        >>> ListedPrice(Price(0.15, 0.6, cached_input=0.075), "a list").describe()
        'input $0.15, output $0.6, cached_input $0.075 (a list)'
        """
        parts = [f"{name} ${price:g}" for name, price in self.price.record().items()]
        tiers = self.price.tiers
        more = f", more above {tiers[0][0]:,} input tokens" if tiers else ""
        return f"{', '.join(parts)}{more} ({self.source})"


class PriceList(Mapping[str, Price]):
    """Prices by model. `find` also gives their source, and prices at other times."""

    name: str
    """The name of the list, in words."""

    def find(self, model: str, when: datetime | None = None) -> ListedPrice | None:
        """Return the price of a model at a time, by default at noon of today (UTC); None if the list has none."""
        raise NotImplementedError

    def __getitem__(self, model: str) -> Price:
        listed = self.find(model)
        if listed is None:
            raise KeyError(model)
        return listed.price


#: The fields of genai-prices, LiteLLM and OpenRouter for `PRICES`; LiteLLM and OpenRouter have prices per token.
_FIELD_NAMES = (
    ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok"),
    ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost", "cache_creation_input_token_cost"),
    ("prompt", "completion", "input_cache_read", "input_cache_write"),
)


@dataclass(frozen=True)
class GenaiPrices(PriceList):
    """The prices of genai-prices, by the providers' names of models, also as provider/model."""

    api: str | None = None
    """The address of an API, whose provider's prices count."""

    @property
    def name(self) -> str:
        """The version of the library, and the day of its newest price."""
        return _genai_name()

    def find(self, model: str, when: datetime | None = None) -> ListedPrice | None:
        """Return the price of a model at a time, by default at noon of today (UTC), as some change within a day."""
        noon = datetime.combine(datetime.now(UTC).date(), time(12), UTC)
        for provider, reference in self._references(model):
            try:
                kept, entry = _snapshot().find_provider_model(reference, None, provider, self.api)
            except LookupError:
                continue
            listed = entry.get_prices(noon if when is None else when)
            starts = sorted(
                {tier.start for name in _FIELD_NAMES[0] for tier in getattr(getattr(listed, name, None), "tiers", ())}
            )
            prices = [
                _price([_tier(getattr(listed, name, None), start) for name in _FIELD_NAMES[0]], 1.0)
                for start in (0, *starts)
            ]
            if prices[0] is None:
                return None
            above = tuple((start, price) for start, price in zip(starts, prices[1:], strict=True) if price is not None)
            return ListedPrice(prices[0]._replace(tiers=above), f"{kept.id} {entry.id}")
        return None

    def _references(self, model: str) -> Iterator[tuple[str | None, str]]:
        """Yield the pairs (provider, the provider's name of the model) that a name may stand for."""
        yield None, model
        before, slash, after = model.partition("/")
        if slash and self.api is None:
            yield before, after
            yield "openrouter", model

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(model.id for provider in _snapshot().providers for model in provider.models))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _snapshot() -> Any:
    return import_extra("genai_prices.data_snapshot", extra="prices").get_snapshot()


@cache
def _genai_name() -> str:
    from importlib.metadata import version

    dated = (
        entry.constraint.start_date
        for provider in _snapshot().providers
        for model in provider.models
        for entry in (model.prices if isinstance(model.prices, list) else ())
        if hasattr(entry.constraint, "start_date")
    )
    newest = max(day for day in dated if day <= datetime.now(UTC).date())  # the list has future prices, too
    return f"genai-prices {version('genai-prices')}, whose newest price is of {newest}"


def _tier(price: Any, start: int) -> Any:
    """Return the price, by its tiers if any, for requests with more input tokens than `start`."""
    tiers = getattr(price, "tiers", ())
    return next((tier.price for tier in reversed(tiers) if tier.start <= start), getattr(price, "base", price))


def _price(values: Sequence[Any], scale: float) -> Price | None:
    """Read a price from numbers or texts, multiplied by `scale`; None if the input or output price is missing."""
    try:
        numbers = [None if value is None else round(scale * float(value), 12) for value in values]
    except (TypeError, ValueError):
        return None
    if None in numbers[:2] or any(number is not None and not 0 <= number < 1e18 for number in numbers):
        return None
    return Price(*numbers)


@dataclass(frozen=True)
class PriceFile(PriceList):
    """The prices in a file of LiteLLM or OpenRouter, by its names of models or their part after the last slash."""

    name: str
    """The name of the file."""
    entries: Mapping[str, Mapping[str, object]]
    """The file's fields of each model."""
    names: tuple[str, ...]
    """The file's fields for `PRICES`, in the same order."""

    def find(self, model: str, when: datetime | None = None) -> ListedPrice | None:
        """Return the price of a model, whatever the time: the file has no dates."""
        last = model.rpartition("/")[2]
        alike = [name for name in self.entries if name.rpartition("/")[2] == last]
        for name in (model, last, *(alike if len(alike) == 1 else ())):
            entry = self.entries.get(name, {})
            price = _price([entry.get(name) for name in self.names], 1e6)
            if price is not None:
                return ListedPrice(price._replace(tiers=self._tiers(entry)), f"{self.name}: {name}")
        return None

    def _tiers(self, entry: Mapping[str, Any]) -> tuple[tuple[int, Price], ...]:
        """Read LiteLLM's prices of long requests."""
        starts = [k for k in (128, 200, 256) if entry.get(f"{self.names[0]}_above_{k}k_tokens") is not None]
        rows = ([entry.get(f"{name}_above_{k}k_tokens", entry.get(name)) for name in self.names] for k in starts)
        prices = [_price(row, 1e6) for row in rows]
        return tuple((1000 * k, price) for k, price in zip(starts, prices, strict=True) if price is not None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def read_price_file(content: Any, file: str) -> PriceFile | None:
    """Read LiteLLM's or OpenRouter's price list from a file's content; None for another content.

    >>> models = {"small": {"input_cost_per_token": 1e-7, "output_cost_per_token": 4e-7}}
    >>> read_price_file(models, "p.json")["small"].input
    0.1
    """
    models = content.get("data") if isinstance(content, Mapping) else None
    if isinstance(models, list):
        priced = [entry for entry in models if isinstance(entry, Mapping) and isinstance(entry.get("pricing"), Mapping)]
        entries = {str(entry.get("id")): entry["pricing"] for entry in priced}
        return PriceFile(file, entries, _FIELD_NAMES[2]) if entries else None
    entries = {name: entry for name, entry in content.items() if isinstance(entry, Mapping)}
    if any(_FIELD_NAMES[1][0] in entry for entry in entries.values()):
        return PriceFile(file, entries, _FIELD_NAMES[1])
    return None
