"""Prices of tokens, by model, from a file or a mapping; and what rows of a log cost, costs that were lost too.

Lists that others keep, LiteLLM's and OpenRouter's, are told by the names of their fields, and are per token. Lost
are rows of 0 of a model whose other answers cost money, such as streamed calls without usage.
"""

from __future__ import annotations

import math
import os
import reprlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from rcjax._base.checks import read_table
from rcjax._base.tokens import PRICES, Price, Tokens, too_small
from rcjax._base.wording import count, percent
from rcjax.logs.checked_rows import LEAST, MOST, Rows, numbers, require_money
from rcjax.logs.columns import CACHED, TOKENS
from rcjax.logs.errors import LogError, PricesWarning, brief, listed, near
from rcjax.logs.sources import require_file
from rcjax.serving.models_file import SETTINGS

_LEAST = 1e6 * LEAST  # of a price per million tokens


def read_prices(source: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, Price]:
    """Read prices by model, in money per million tokens.

    `source` is the path of a TOML or JSON file, or a mapping, of the form
    `{model: {"input": price, "output": price}}`, with `cached_input` and `cache_write` besides where input from a
    cache, or put into one, has prices of its own; a pair may stand for the inner mapping. A file may be UTF-8, or
    UTF-16 or UTF-32 with a byte order mark.

    The list of LiteLLM (`model_prices_and_context_window.json`) and that of OpenRouter (its `/api/v1/models`) are read
    as they are: their fields (`input_cost_per_token`, `pricing.prompt`) are per token. Entries without prices per token
    of text are passed over, and a model is also priced by an entry that ends in its name after a slash.

    Raises `LogError` for a file that cannot be read and for prices that are not 0 or from 1e-12 to 1e18; warns of
    prices so small that they may be meant per token (`PricesWarning`).

    >>> read_prices({"small": {"input": 0.1, "output": 0.4}})
    {'small': Price(input=0.1, output=0.4, cached_input=None, cache_write=None)}
    """
    if isinstance(source, Mapping):
        name, content = "prices", source
    else:
        path = Path(source)
        name = path.name
        require_file(path, (".toml", ".json"))
        try:
            content = read_table(path)
        except (ValueError, OSError) as error:
            raise LogError(str(error)) from None
    rates = price_list(content, name)
    if rates is not None:
        return rates
    if not isinstance(content, Mapping) or not content:
        raise LogError(f"{name}: no prices: give a table of input and output prices for each model")
    read = {str(model): _price(entry, f"{name}, model {brief(model)}") for model, entry in content.items()}
    if (small := too_small(read)) is not None:
        warnings.warn(f"{name}, {small}", PricesWarning, stacklevel=2)
    return read


def price_for(prices: Mapping[str, Price], model: str, where: str = "", others: Iterable[str] = ()) -> Price:
    """What the tokens of a model cost, per million.

    Args:
        prices: as `read_prices` gives them.
        model: the model.
        where: before the message, such as "log.csv, ".
        others: models whose prices are theirs, and were not meant.

    Raises `LogError` where nothing prices it.
    """
    entry = entry_for(prices, model)
    if entry is not None:
        return prices[entry]
    if isinstance(prices, PriceList) and model in prices.passed_over:
        what = f"its entry in {prices.name} has no prices per token of text"
        raise LogError(f"{where}model {brief(model)}: no price: {what}: write a file with the price that it had")
    meant = f"{near(model, {*prices} - {*others})}; the prices know {listed(prices)}"
    raise LogError(f"{where}model {brief(model)}: no price{meant}: add one, or leave the model out")


def priced_words(prices: Any, models: Iterable[str]) -> str | None:
    """Which entries of a list price some models, in words; None if prices come from no list.

    >>> priced_words(PriceList({"openai/tiny": Price(0.1, 0.4)}), ["tiny"])
    'prices: tiny is priced by openai/tiny, 0.1 and 0.4 per million tokens'
    """
    entries = priced_by(prices, models)
    if not entries:
        return None
    pairs = [
        f"{brief(model)} is priced by {brief(entry)}, {_shortly(prices[entry])}" for model, entry in entries.items()
    ]
    return f"{prices.name}: {'; '.join(pairs)} per million tokens"


def _shortly(price: Price) -> str:
    cached = "" if price.cached_input is None else f" ({price.cached_input:g} for cached input)"
    return f"{price.input:g} and {price.output:g}{cached}"


def _price(entry: Any, where: str) -> Price:
    if isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) in (2, len(PRICES)):
        entry = dict(zip(PRICES, entry, strict=False))
    if not isinstance(entry, Mapping):
        raise LogError(f"{where}: {brief(reprlib.repr(entry))} is no price: give an input and an output price")
    for key in PRICES[:2]:
        if entry.get(key) is None:  # TOML reads the bare header [llama3.2-1b] as table 2-1b within llama3
            advice = "give input and output, and in TOML put a model's name with a dot in quotes"
            raise LogError(f"{where}: no {key} price{near(key, entry)}: {advice}")
    for key, price in entry.items():
        if key not in SETTINGS:  # a `models.toml` is a file of prices, too
            what = f"{brief(key)} is no price{near(key, PRICES)}"
            raise LogError(f"{where}: {what}: give {', '.join(PRICES)}, in money per million tokens")
        number = isinstance(price, int | float | np.integer | np.floating) and not isinstance(price, bool)
        if key in PRICES and price is not None and not (number and (price == 0 or _LEAST <= price <= MOST)):
            shown, limits = brief(reprlib.repr(price)), f"0, or from {_LEAST:g} to {MOST:g}"
            raise LogError(f"{where}: {key} price {shown}: give money per million tokens, {limits}")
    return Price(**{key: float(entry[key]) for key in PRICES if entry.get(key) is not None})


#: Of LiteLLM's list: what models do whose calls cost by tokens alone. An entry may leave it out.
_MODES = (None, "chat", "completion", "responses")

#: The entry of LiteLLM's list that tells what entries look like.
_SPECIMEN = "sample_spec"


class PriceList(dict[str, Price]):
    """Money per million tokens by entry, of a list whose names are those of providers.

    A model is priced by the entry of its name, or by the only price of entries that end in it after a slash.
    """

    name: str = "prices"
    """Of the list, for messages."""
    passed_over: frozenset[str] = frozenset()
    """Entries that have no prices per token of text."""


def price_list(content: Any, name: str) -> PriceList | None:
    """A list of LiteLLM or OpenRouter; None for what is neither.

    Args:
        content: what a JSON file holds.
        name: of the file, for messages.

    Raises `LogError` for a list without any price per token.

    >>> spec = {"litellm_provider": "openai", "mode": "chat"}
    >>> price_list({"a": {"input_cost_per_token": 1.5e-7, "output_cost_per_token": 6e-7} | spec}, "x.json")
    {'a': Price(input=0.15, output=0.6, cached_input=None, cache_write=None)}
    """
    entries = _of_openrouter(content) or _of_litellm(content)
    if entries is None:
        return None
    prices, passed_over = PriceList(), set[str]()
    for entry, told in entries.items():
        numbers = (_per_million(price) for price in told)
        price = Price(*(n if n is not None and (n == 0 or _LEAST <= n <= MOST) else None for n in numbers))
        if None in price[:2]:
            passed_over.add(entry)
        else:
            prices[entry] = price
    if not prices:
        raise LogError(f"{name}: none of its {len(entries):,} entries has prices of tokens: give a list of chat models")
    prices.name, prices.passed_over = name, frozenset(passed_over)
    return prices


#: Where a list has each of the `PRICES`: LiteLLM's, and OpenRouter's.
_LITELLM = ("input_cost_per_token", "output_cost_per_token")
_LITELLM += ("cache_read_input_token_cost", "cache_creation_input_token_cost")
_OPENROUTER = ("prompt", "completion", "input_cache_read", "input_cache_write")


def _of_litellm(content: Any) -> dict[str, tuple[Any, ...]] | None:
    """What entries of `model_prices_and_context_window.json` say of tokens; None for another file."""
    if not isinstance(content, Mapping):
        return None
    entries = {str(name): entry for name, entry in content.items() if isinstance(entry, Mapping)}
    if not any("litellm_provider" in entry or "input_cost_per_token" in entry for entry in entries.values()):
        return None
    return {
        name: tuple(entry.get(field) if entry.get("mode") in _MODES else None for field in _LITELLM)
        for name, entry in entries.items()
        if name != _SPECIMEN
    }


def _of_openrouter(content: Any) -> dict[str, tuple[Any, ...]] | None:
    """What the models of `/api/v1/models` cost by their tokens; None for another file."""
    models = content.get("data") if isinstance(content, Mapping) else content
    if not isinstance(models, Sequence) or isinstance(models, str) or not models:
        return None
    if not all(isinstance(one, Mapping) and "id" in one and isinstance(one.get("pricing"), Mapping) for one in models):
        return None
    return {str(one["id"]): tuple(map(one["pricing"].get, _OPENROUTER)) for one in models}


def _per_million(price: Any) -> float | None:
    """A price per token as one per million, without the noise of a product of floats; None for what is none."""
    if isinstance(price, bool) or not isinstance(price, int | float | str):
        return None
    try:
        number = Decimal(str(price))
    except InvalidOperation:
        return None
    return float(number * 10**6) if number.is_finite() and number >= 0 else None


def entry_for(prices: Mapping[str, Price], model: str) -> str | None:
    """The name of the entry that prices a model, or None.

    Raises `LogError` where several entries of a list may be meant, and their prices differ.

    >>> prices = PriceList({"openai/tiny": Price(0.1, 0.4), "azure/eu/tiny": Price(0.1, 0.4), "a/big": Price(2, 8)})
    >>> entry_for(prices, "tiny"), entry_for(prices, "azure/tiny"), entry_for({"tiny": Price(1, 1)}, "tiny")
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

    >>> priced_by(PriceList({"openai/tiny": Price(0.1, 0.4)}), ["tiny"])
    {'tiny': 'openai/tiny'}
    """
    if not isinstance(prices, PriceList):
        return {}
    entries = {model: entry_for(prices, model) for model in models}
    return {model: entry for model, entry in entries.items() if entry is not None}


#: (answers that lost their cost, all answers) by model.
Lost = Mapping[Any, tuple[int, int]]


def cost_cells(rows: Rows, rates: Mapping[str, Price] | None) -> dict[str, np.ndarray]:
    """The money that each row cost, `cost`: its own column, or its tokens by prices, and then `read` and `cached`.

    Args:
        rows: m of a log.
        rates: prices by model; None if the log tells costs.

    Raises `LogError` for what is no money, and for a model without a price.
    """
    if rates is None:
        cost = numbers(rows, "cost")
        require_money(rows, cost, "cost")
        return {"cost": cost}
    names = rows.frame["model"].unique(maintain_order=True).to_list()
    full = np.array([price_for(rates, name, f"{rows.name}, ", names).full for name in names], float)
    per_million = full[rows.frame["model"].replace_strict(names, range(len(names)), return_dtype=pl.Int64)]
    used = _tokens(rows)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused
        cost = (np.stack(used.parts, axis=1) * per_million).sum(axis=1) / 1e6
    require_money(rows, cost, TOKENS[0])
    return {"cost": cost, "read": used.read, "cached": used.cached}


def describe_caches(frame: pl.DataFrame, models: Sequence[str], rates: Mapping[str, Price]) -> str | None:
    """Which share of the input of each model came from a cache, and at what price; None if none did."""
    said = []
    for number, read, cached in frame.group_by("model").agg(pl.col("read", "cached").sum()).sort("model").iter_rows():
        model = models[int(number)]
        price = price_for(rates, model).cached_input
        how = f"${price:g} per million" if price is not None else "the full price, as none for cached_input is known"
        said += [f"{percent(cached / read, 0)} of {model}, at {how}"] if cached else []
    return f"input tokens that came from a cache: {'; '.join(said)}" if said else None


def describe_estimates(frame: pl.DataFrame, models: Sequence[str]) -> str | None:
    """How many costs of a call log are estimates, in words; None if none is."""
    counts = (
        frame.filter("estimated")["model"].value_counts().sort("model").rows() if "estimated" in frame.columns else []
    )
    if not counts:
        return None
    by_model = listed(f"{number:,} of {models[model]}" for model, number in counts)
    few = f"{sum(number for _, number in counts):,} of {count(frame.height, 'answer')}"
    return f"the cost of {few} is an estimate, as no tokens were counted: {by_model}"


def _tokens(rows: Rows) -> Tokens:
    """The tokens (m,) of each row; of input that is counted apart from what a cache gave and took, all together."""
    read, written = (numbers(rows, column) for column in TOKENS)
    there = [column in rows.frame.columns for column in CACHED]
    cached, stored = (
        np.nan_to_num(numbers(rows, column, optional=True)) if told else np.zeros_like(read)
        for column, told in zip(CACHED, there, strict=True)
    )
    return Tokens(read + np.where(cached + stored > read, cached + stored, 0.0), written, cached, stored)


def mend_all(models: np.ndarray | Sequence[Any], costs: np.ndarray | Sequence[float]) -> tuple[np.ndarray, Lost]:
    """(the costs, in which 0 beside others of the same model is the mean of these, how many such there are, by model).

    A model all of whose answers cost 0 is free.

    >>> costs, lost = mend_all(["a", "a", "a", "b"], [0.0, 2.0, 4.0, 0.0])
    >>> costs.tolist(), lost
    ([3.0, 2.0, 4.0, 0.0], {'a': (1, 3), 'b': (0, 1)})
    """
    by_model, mended, lost = np.asarray(models), np.array(costs, float), {}
    for model in pl.Series(by_model).unique(maintain_order=True):
        own = by_model == model
        gone = own & (mended == 0)
        few, every = int(gone.sum()), int(own.sum())
        lost[model] = (few if few < every else 0), every
        if 0 < few < every:
            mended[gone] = math.fsum(mended[own]) / (every - few)  # exact: the order of the rows is nothing to it
    return mended, lost


def require_counted(place: str, spent: Mapping[str, float], rates: Mapping[str, Price]) -> None:
    """Refuse tokens that are all 0, which no prompt has: a model that was not counted would be free.

    Args:
        place: of the answers, for the message.
        spent: what all answers of a model cost, by model.
        rates: what their tokens cost.

    Raises `LogError`.
    """
    for model, money in spent.items():
        if money == 0 and price_for(rates, model).input > 0:
            advice = "give a column cost, or import the log with --tokens IN,OUT (tokens=)"
            raise LogError(f"{place}, model {brief(model)}: its input tokens are all 0, which no prompt has: {advice}")


def tell_lost(lost: Lost) -> str | None:
    """How many answers had lost their cost, in words; None if none has."""
    by_model = listed(f"{few:,} of {count(every, 'answer')} of {name}" for name, (few, every) in lost.items() if few)
    what = "left out of the mean cost, as they cost 0 and others of the same model do not"
    return f"{what}: {by_model} (streamed calls that lost their usage?)" if by_model else None
