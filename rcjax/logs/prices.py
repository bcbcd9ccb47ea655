"""Prices of tokens by model, from a file or a mapping; the cost of each row of a log, and a log at new prices.

For a model without a price, the costs of the log count. A cost of 0 is a lost cost if other answers of the model cost
money: a streamed call without usage, for instance.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from rcjax._base.codec import read_table
from rcjax._base.figures import count, percent
from rcjax._base.tokens import PRICES, Price, Tokens, too_small
from rcjax.logs.checked_rows import MAX_COST, MIN_COST, Rows, numbers, read_times, require_money
from rcjax.logs.columns import CACHED, TOKENS
from rcjax.logs.errors import (
    LeftOutWarning,
    LogError,
    PricesWarning,
    Warn,
    join_names,
    shorten,
    suggest_name,
    warn_caller,
)
from rcjax.logs.log import Log
from rcjax.logs.sources import require_file
from rcjax.serving.price_lists import GENAI, GenaiPrices, ListedPrice, PriceList, read_price_file

_MIN_PRICE = 1e6 * MIN_COST  # money per million tokens


def read_prices(source: str | os.PathLike[str] | Mapping[str, Any]) -> Mapping[str, Price]:
    """Read prices by model, in money per million tokens.

    `source` is the path of a TOML or JSON file, or a mapping, of the form `{model: {"input": price, "output": price}}`.
    `cached_input` and `cache_write` are optional prices of input that is read from a cache or written to one. A pair
    may stand for the inner mapping. A file is UTF-8, or UTF-16 or UTF-32 with a byte order mark; it may be LiteLLM's
    `model_prices_and_context_window.json` or OpenRouter's list of models. `"genai"` selects the prices of genai-prices
    (`pip install 'rcjax[prices]'`).

    Raises `LogError` for a file that cannot be read, and for prices that are neither 0 nor from 1e-12 to 1e18. Warns of
    prices so small that they may be meant per token (`PricesWarning`).

    >>> read_prices({"small": {"input": 0.1, "output": 0.4}})["small"].output
    0.4
    """
    if isinstance(source, PriceList):
        return source
    if isinstance(source, Mapping):
        name, content = "prices", source
    elif os.fspath(source) == GENAI:
        prices = GenaiPrices()
        _ = prices.name  # raises if the library is missing
        return prices
    else:
        path = Path(source)
        name = path.name
        require_file(path, (".toml", ".json"))
        try:
            content = read_table(path)
        except (ValueError, OSError) as error:
            raise LogError(str(error)) from None
    if not isinstance(content, Mapping) or not content:
        raise LogError(f"{name}: no prices: give a table of input and output prices for each model")
    if (listed_prices := read_price_file(content, name)) is not None:
        return listed_prices
    read = {
        str(model): _price(entry, f"{name}, model {shorten(model)}", str(model)) for model, entry in content.items()
    }
    if (small := too_small(read)) is not None:
        warn_caller(f"{name}, {small}", PricesWarning)
    return read


def price_for(prices: Mapping[str, Price], model: str, prefix: str = "", in_log: Iterable[str] = ()) -> Price:
    """Return the price of a model's tokens, in money per million.

    Args:
        prices: prices by model, from `read_prices`.
        model: name of the model.
        prefix: prefix of the message, such as "log.csv, ".
        in_log: models of the log, which the message does not suggest.

    Raises `LogError` if the model has no price.
    """
    if model in prices:
        return prices[model]
    if isinstance(prices, PriceList):
        similar = difflib.get_close_matches(model, [*prices], n=3, cutoff=0.55)
        nearest = f"; the nearest are {', '.join(map(shorten, similar))}" if similar else ""
        advice = "give a file of prices, leave the model out, or rename it in the log"
        raise LogError(f"{prefix}model {shorten(model)}: no price in {prices.name}{nearest}: {advice}")
    suggestion = f"{suggest_name(model, {*prices} - {*in_log})}; the prices know {join_names(prices)}"
    raise LogError(f"{prefix}model {shorten(model)}: no price{suggestion}: add one, or leave the model out")


def _price(entry: Any, place: str, model: str) -> Price:
    tiers, entry = (entry.tiers, entry[: len(PRICES)]) if isinstance(entry, Price) else ((), entry)
    if isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) in (2, len(PRICES)):
        entry = dict(zip(PRICES, entry, strict=False))
    if not isinstance(entry, Mapping):
        raise LogError(f"{place}: {shorten(reprlib.repr(entry))} is not a price: give an input and an output price")
    if not {*PRICES} & {*entry} and (listed_value := _listed_price(entry, place, model)) is not None:
        return listed_value
    for key in PRICES[:2]:
        if entry.get(key) is None:  # TOML reads the bare header [llama3.2-1b] as table 2-1b within llama3
            advice = "give input and output, and in TOML put a model's name with a dot in quotes"
            raise LogError(f"{place}: no {key} price{suggest_name(key, entry)}: {advice}")
    for key, price in entry.items():
        if key not in PRICES:
            from rcjax.serving.models_file import SETTINGS  # here: the import takes longer than reading prices

            if key in SETTINGS:
                continue  # a `models.toml` is a file of prices, too
            problem = f"{shorten(key)} is not a price{suggest_name(key, PRICES)}"
            raise LogError(f"{place}: {problem}: give {', '.join(PRICES)}, in money per million tokens")
        is_number = isinstance(price, int | float | np.integer | np.floating) and not isinstance(price, bool)
        if price is not None and not (is_number and (price == 0 or _MIN_PRICE <= price <= MAX_COST)):
            value = shorten(reprlib.repr(price))
            limits = f"0, or from {_MIN_PRICE:g} to {MAX_COST:g}"
            raise LogError(f"{place}: {key} price {value}: give money per million tokens, {limits}")
    return Price(**{key: float(entry[key]) for key in PRICES if entry.get(key) is not None}, tiers=tiers)


def _listed_price(entry: Mapping[str, Any], place: str, model: str) -> Price | None:
    """Return the price by genai-prices of an entry of `models.toml`; None for an entry of another kind of file."""
    from rcjax.serving.models_file import SETTINGS, listed_price  # here: the import takes longer than reading prices

    if not {*entry} <= {*SETTINGS}:
        return None
    try:
        return listed_price(str(entry.get("model", model)), entry.get("base_url"), place).price
    except ValueError as problem:
        raise LogError(str(problem)) from None


def price_factors(before: Mapping[str, Any], after: Mapping[str, Any], models: Iterable[str]) -> dict[str, float]:
    """Return the factor by which the price of output has changed, or else that of input, by model.

    >>> price_factors({"small": (0.1, 0.4), "large": (2.0, 8.0)}, {"small": (0.2, 0.4), "large": (2.0, 8.0)}, ["small"])
    {'small': 2.0}
    """
    if not (before and after):
        return {}
    old, new, factors = read_prices(before), read_prices(after), dict[str, float]()
    for name in models:
        if name in old and name in new:
            pairs = [(old[name].output, new[name].output), (old[name].input, new[name].input)]
            changed = [now / then for then, now in pairs if then and then != now]
            factors |= {name: changed[0]} if changed else {}
    return factors


def reprice(log: Log, before: Mapping[str, Any] | None, prices: Any) -> Log:
    """Return a log at new prices; models without a new price keep their costs.

    Args:
        log: the carried queries.
        before: prices of tokens when the policy was tuned, by model; None: they are not known.
        prices: today's prices of tokens, as `rcjax.logs.read_prices` takes them; None: the prices before.

    Raises LogError if prices of input and output have changed by different factors, since the number of tokens is not
    known; if the prices name no model of the log; and if the earlier price of a model is not known.
    """
    if prices is None:
        return log
    old, new = read_prices(before) if before else {}, read_prices(prices)
    changed = [name for name in log.models if name in new]
    if not changed:
        raise LogError(f"the prices name none of {join_names(log.models)}: give those of a model that the policy has")
    if unknown := [name for name in changed if name not in old]:
        problem = f"the prices of {join_names(unknown)} at the time of the tuning are not known"
        raise LogError(f"{problem}: tune again on a log of fresh queries")
    factors = dict.fromkeys(log.models, 1.0)
    for name in changed:
        pairs = [(new[name].input, old[name].input), (new[name].output, old[name].output)]
        ratios = [price / old_price if old_price else math.inf for price, old_price in pairs if price or old_price]
        if not ratios or not max(ratios) <= min(ratios) * (1 + 1e-9) < math.inf:
            problem = f"prices of input and output of {name} have not changed by the same factor"
            raise LogError(f"{problem}, and the policy does not know its tokens: tune again on a log of fresh queries")
        factors[name] = ratios[0]
    by_model = [factors[name] for name in log.models]
    cost = np.asarray(log.query_cost, float) * by_model
    signal = None if log.signal_cost is None else np.asarray(log.signal_cost, float) * by_model
    known = {name: (new if name in new else old)[name] for name in log.models if name in new or name in old}
    repriced = dataclasses.replace(log, query_cost=cost, signal_cost=signal, prices=known)  # type: ignore[arg-type]
    return repriced.take(slice(None))


def cost_cells(rows: Rows, rates: Mapping[str, Price] | None) -> dict[str, np.ndarray]:
    """Return the cost of each row as `cost`, and its `signal_cost` if there is such a column.

    With `rates` the result has input tokens too, as `read`, and cached ones as `cached`.

    Args:
        rows: m rows of a log.
        rates: prices by model; rows of other models have the costs of the log. None if the log has all costs.

    Raises `LogError` for an invalid cost or count, and for a model with neither a price nor a cost.
    """
    if rates is None:
        cost = _logged_cost(rows)
        return {"cost": cost, **_signal_cost(rows, cost)}
    names = [name for name in rows.frame["model"].unique().drop_nulls() if name in rates]
    priced = pl.col("model").is_in(names) if "cost" in rows.frame.columns else pl.lit(True)
    by_price = rows.frame.select(pl.col("model").is_not_null() & priced).to_series().to_numpy()
    cells = {name: np.zeros(rows.frame.height) for name in ("cost", "read", "cached")}
    if by_price.any():
        priced_rows = rows.keep(priced)
        tokens = _tokens(priced_rows)
        per_million = _prices_by_row(priced_rows, rates, tokens.input)
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow is refused below
            cost = (np.stack(tokens.parts, axis=1) * per_million).sum(axis=1) / 1e6
        require_money(priced_rows, cost, TOKENS[0])
        for name, values in {"cost": cost, "read": tokens.input, "cached": np.asarray(tokens.cached_input)}.items():
            cells[name][by_price] = values
    if not by_price.all():
        cells["cost"][~by_price] = _logged_cost(rows.keep(~priced))
    return cells | _signal_cost(rows, cells["cost"])


def _logged_cost(rows: Rows) -> np.ndarray:
    cost = numbers(rows, "cost")
    require_money(rows, cost, "cost")
    return cost


def _signal_cost(rows: Rows, cost: np.ndarray) -> dict[str, np.ndarray]:
    """Return {"signal_cost": money of the second question in each cost, rescaled with it}; {} without the column."""
    columns = rows.frame.columns
    if "signal_cost" not in columns:
        return {}
    money = np.nan_to_num(numbers(rows, "signal_cost", optional=True))
    logged = numbers(rows, "cost", optional=True) if "cost" in columns else cost
    logged = np.where(np.isnan(logged), cost, logged)
    rows.refuse(money > logged, "signal_cost", "is more than the cost, of which it is a part")
    return {"signal_cost": money * np.divide(cost, logged, out=np.ones_like(cost), where=logged > 0)}


def _prices_by_row(rows: Rows, rates: Mapping[str, Price], read: np.ndarray) -> np.ndarray:
    """Return the (m, 4) prices of each row; prices of a list depend on the row's time and input tokens."""
    names = rows.frame["model"].unique(maintain_order=True).to_list()
    prices = {name: price_for(rates, name, f"{rows.name}, ", names) for name in names}
    if not isinstance(rates, PriceList):
        model = rows.frame["model"].replace_strict(names, range(len(names)), return_dtype=pl.Int64).to_numpy()
        per_million = np.array([prices[name].full for name in names], float)[model]
        for number, name in enumerate(names):
            for start, price in prices[name].tiers:
                per_million[(model == number) & (read > start)] = price.full
        return per_million
    times = read_times(rows.frame["time"], rows.name) if "time" in rows.frame.columns else [None] * rows.frame.height
    half_hours = (None if time is None else time // 1_800 * 1_800 for time in times)  # few moments to look up
    listed_prices: dict[tuple[str, float | None], ListedPrice | None] = {}
    per_million = np.empty((rows.frame.height, len(PRICES)))
    for number, key in enumerate(zip(rows.frame["model"], half_hours, strict=True)):
        if key not in listed_prices:
            moment = None if key[1] is None else datetime.fromtimestamp(key[1], UTC)
            listed_prices[key] = rates.find(key[0], moment)
        listed_price = listed_prices[key]
        price = prices[key[0]] if listed_price is None else listed_price.price
        per_million[number] = price.at(int(np.nan_to_num(read[number]))).full
    return per_million


def look_up_prices(models: Sequence[str], rates: Mapping[str, Price], place: str, warn: Warn) -> dict[str, Price]:
    """Return the prices of a log's models; LogError if none has a price.

    Args:
        models: names of the log's models.
        rates: prices by model.
        place: name of the log, for messages.
        warn: receives a warning that names the entries of a price list, and the models without a price.
    """
    prices = {model: rates[model] for model in models if model in rates}
    if not prices:
        price_for(rates, models[0], f"{place}, ")
    if isinstance(rates, PriceList):
        entries = "; ".join(f"{model}: {rate.describe()}" for model in prices if (rate := rates.find(model)))
        warn(PricesWarning, f"{place}: prices per million tokens by {rates.name}: {entries}")
    if unpriced := [model for model in models if model not in prices]:
        warn(PricesWarning, f"{place}: without a price, so as dear as the log says: {join_names(unpriced)}")
    return prices


def describe_caches(frame: pl.DataFrame, models: Sequence[str], rates: Mapping[str, Price]) -> str | None:
    """Say which share of each model's input tokens came from a cache, and at what price; None if none did."""
    shares = []
    for number, read, cached in frame.group_by("model").agg(pl.col("read", "cached").sum()).sort("model").iter_rows():
        model = models[int(number)]
        price = None if model not in rates else rates[model].cached_input
        terms = f"${price:g} per million" if price is not None else "the full price, as none for cached_input is known"
        shares += [f"{percent(cached / read, 0)} of {model}, at {terms}"] if cached else []
    return f"input tokens that came from a cache: {'; '.join(shares)}" if shares else None


def describe_estimates(frame: pl.DataFrame, models: Sequence[str]) -> str | None:
    """Say how many costs of a call log are estimates; None if none is."""
    counts = (
        frame.filter("estimated")["model"].value_counts().sort("model").rows() if "estimated" in frame.columns else []
    )
    if not counts:
        return None
    by_model = join_names(f"{number:,} of {models[model]}" for model, number in counts)
    estimates = f"{sum(number for _, number in counts):,} of {count(frame.height, 'answer')}"
    return f"the cost of {estimates} is an estimate, as no tokens were counted: {by_model}"


def _tokens(rows: Rows) -> Tokens:
    """Return the (m,) tokens of each row; if the cached tokens exceed the input, they are added to the input."""
    read, written = (numbers(rows, column) for column in TOKENS)
    cached, stored = (
        np.nan_to_num(numbers(rows, column, optional=True)) if column in rows.frame.columns else np.zeros_like(read)
        for column in CACHED
    )
    return Tokens(read + np.where(cached + stored > read, cached + stored, 0.0), written, cached, stored)


def impute_lost_costs(
    frame: pl.DataFrame, models: Sequence[str], rates: Mapping[str, Price] | None, place: str, warn: Warn
) -> pl.DataFrame:
    """Replace lost costs: a cost of 0 becomes the mean of the model's other costs; so does its part `signal_cost`.

    A model whose answers all cost 0 is free. If its tokens have a price, that is an error, as no prompt has 0 tokens.

    Args:
        frame: rows with `model` (a number) and `cost`.
        models: names of the models, by number.
        rates: prices by model; None if the log has all costs.
        place: name of the log, for messages.
        warn: receives a warning that counts the lost costs.

    >>> rows = pl.DataFrame({"model": [0, 0, 0, 1], "cost": [0.0, 2.0, 4.0, 0.0]})
    >>> impute_lost_costs(rows, ["a", "b"], None, "a.csv", lambda kind, words: None)["cost"].to_list()
    [3.0, 2.0, 4.0, 0.0]
    """
    numbers = frame["model"].to_numpy()
    money = {name: np.array(frame[name]) for name in ("cost", "signal_cost") if name in frame.columns}
    costs = money["cost"]
    lost = list[str]()
    for number, model in enumerate(models):
        of_model = numbers == number
        is_lost = of_model & (costs == 0)
        lost_rows, rows = int(is_lost.sum()), int(of_model.sum())
        if 0 < lost_rows < rows:
            for values in money.values():
                values[is_lost] = math.fsum(values[of_model]) / (rows - lost_rows)  # exact in any order of the rows
            lost.append(f"{lost_rows:,} of {count(rows, 'answer')} of {model}")
        elif lost_rows and rates is not None and model in rates and rates[model].input > 0:
            problem = "its input tokens are all 0, which no prompt has: count them, or give a column cost"
            raise LogError(f"{place}, model {shorten(model)}: {problem}")
    if lost:
        reason = "left out of the mean cost, as they cost 0 and others of the same model do not"
        warn(LeftOutWarning, f"{place}: {reason}: {join_names(lost)} (streamed calls that lost their usage?)")
    return frame.with_columns(**{name: pl.Series(values) for name, values in money.items()})
