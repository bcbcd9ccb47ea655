"""Lists of prices that others keep, LiteLLM's and OpenRouter's: told by the names of their fields, and per token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from rcjax.logs.errors import LogError
from rcjax.logs.listing import brief, listed

#: Of LiteLLM's list: what models do whose calls cost by tokens alone. An entry may leave it out.
_MODES = (None, "chat", "completion", "responses")

#: The entry of LiteLLM's list that tells what entries look like.
_SPECIMEN = "sample_spec"


class PriceList(dict[str, tuple[float, float]]):
    """(input, output) money per million tokens by entry, of a list whose names are those of providers.

    A model is priced by the entry of its name, or by the only price of entries that end in it after a slash.
    """

    name: str = "prices"
    """Of the list, for messages."""
    passed_over: frozenset[str] = frozenset()
    """Entries that have no prices per token of text."""


def price_list(content: Any, name: str, least: float, most: float) -> PriceList | None:
    """A list of LiteLLM or OpenRouter; None for what is neither.

    Args:
        content: what a JSON file holds.
        name: of the file, for messages.
        least, most: the smallest price above 0 and the largest, in money per million tokens.

    Raises `LogError` for a list without any price per token.

    >>> spec = {"litellm_provider": "openai", "mode": "chat"}
    >>> price_list({"a": {"input_cost_per_token": 1.5e-7, "output_cost_per_token": 6e-7} | spec}, "x.json", 1e-6, 1e18)
    {'a': (0.15, 0.6)}
    """
    entries = _of_openrouter(content) or _of_litellm(content)
    if entries is None:
        return None
    prices, passed_over = PriceList(), set[str]()
    for entry, pair in entries.items():
        numbers = [_per_million(price) for price in pair]
        sound = [number for number in numbers if number is not None and (number == 0 or least <= number <= most)]
        if len(sound) == 2:
            prices[entry] = sound[0], sound[1]
        else:
            passed_over.add(entry)
    if not prices:
        raise LogError(f"{name}: none of its {len(entries):,} entries has prices of tokens: give a list of chat models")
    prices.name, prices.passed_over = name, frozenset(passed_over)
    return prices


def _of_litellm(content: Any) -> dict[str, tuple[Any, Any]] | None:
    """What entries of `model_prices_and_context_window.json` say of tokens; None for another file."""
    if not isinstance(content, Mapping):
        return None
    entries = {str(name): entry for name, entry in content.items() if isinstance(entry, Mapping)}
    if not any("litellm_provider" in entry or "input_cost_per_token" in entry for entry in entries.values()):
        return None
    return {
        name: (entry.get("input_cost_per_token"), entry.get("output_cost_per_token"))
        if entry.get("mode") in _MODES
        else (None, None)
        for name, entry in entries.items()
        if name != _SPECIMEN
    }


def _of_openrouter(content: Any) -> dict[str, tuple[Any, Any]] | None:
    """What the models of `/api/v1/models` cost by their tokens; None for another file."""
    models = content.get("data") if isinstance(content, Mapping) else content
    if not isinstance(models, Sequence) or isinstance(models, str) or not models:
        return None
    if not all(isinstance(one, Mapping) and "id" in one and isinstance(one.get("pricing"), Mapping) for one in models):
        return None
    return {str(one["id"]): (one["pricing"].get("prompt"), one["pricing"].get("completion")) for one in models}


def _per_million(price: Any) -> float | None:
    """A price per token as one per million, without the noise of a product of floats; None for what is none."""
    if isinstance(price, bool) or not isinstance(price, int | float | str):
        return None
    try:
        number = Decimal(str(price))
    except InvalidOperation:
        return None
    return float(number * 10**6) if number.is_finite() and number >= 0 else None


def entry_for(prices: Mapping[str, tuple[float, float]], model: str) -> str | None:
    """The name of the entry that prices a model; None where there is none.

    Raises `LogError` where several entries of a list may be meant, and their prices differ.

    >>> prices = PriceList({"openai/tiny": (0.1, 0.4), "azure/eu/tiny": (0.1, 0.4), "a/big": (2, 8), "b/big": (3, 8)})
    >>> entry_for(prices, "tiny"), entry_for(prices, "azure/tiny"), entry_for({"tiny": (1, 1)}, "tiny")
    ('openai/tiny', None, 'tiny')
    """
    if model in prices:
        return model
    if not isinstance(prices, PriceList):
        return None
    short = model.rpartition("/")[2]
    meant = [entry for entry in prices if entry.endswith(f"/{model}") or entry == short]
    if len({prices[entry] for entry in meant}) > 1:
        advice = "write a file with the price that it had"
        what = f"may be priced by {listed(meant)}, which differ"
        raise LogError(f"{prices.name}, model {brief(model)}: {what}: give it the name of one of them, or {advice}")
    return meant[0] if meant else None


def priced_by(prices: Any, models: Iterable[str]) -> dict[str, str]:
    """The entry that prices each model, where prices come from a list; nothing of prices that name models as logs do.

    >>> priced_by(PriceList({"openai/tiny": (0.1, 0.4)}), ["tiny"])
    {'tiny': 'openai/tiny'}
    """
    if not isinstance(prices, PriceList):
        return {}
    entries = {model: entry_for(prices, model) for model in models}
    return {model: entry for model, entry in entries.items() if entry is not None}
