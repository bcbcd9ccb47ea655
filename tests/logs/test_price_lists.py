"""Prices that others keep: of genai-prices by name and day, and the files of LiteLLM and OpenRouter."""

import json
from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest
from genai_prices import Usage, calc_price

import rcjax
from rcjax._base.tokens import Price
from rcjax.logs import LogError, PricesWarning
from rcjax.logs.prices import read_prices
from rcjax.serving.models_file import read_models
from rcjax.serving.price_lists import GenaiPrices
from rcjax.serving.usage import CallUsage

MODELS = ("gpt-4o-mini", "claude-sonnet-4-5")


def frame(models=MODELS, n=20, **more):
    """A log with tokens and no money."""
    rng = np.random.default_rng(0)
    rows = {
        "query": np.repeat(np.arange(n), len(models)),
        "model": [*models] * n,
        "correct": rng.integers(0, 2, n * len(models)),
        "confidence": rng.random(n * len(models)),
        "input_tokens": rng.integers(10, 400_000, n * len(models)),
        "output_tokens": rng.integers(1, 900, n * len(models)),
        "cached_tokens": rng.integers(0, 10, n * len(models)),
    }
    return pl.DataFrame(rows | more)


def test_calls_cost_the_listed_price_with_tiers_and_caches():
    table = frame()
    with pytest.warns(PricesWarning, match=r"genai-prices .* newest price .*: gpt-4o-mini: input \$0.15, output \$0.6"):
        log = rcjax.read_log(table, prices="genai", models=MODELS)
    wanted = [
        float(
            calc_price(
                Usage(
                    input_tokens=row["input_tokens"],
                    output_tokens=row["output_tokens"],
                    cache_read_tokens=row["cached_tokens"],
                ),
                row["model"],
            ).total_price
        )
        for row in table.iter_rows(named=True)
    ]
    assert np.asarray(log.query_cost).ravel() == pytest.approx(wanted, rel=1e-6)
    assert log.prices["gpt-4o-mini"].output == 0.6


@pytest.mark.parametrize(
    ("time", "price"),
    [("2025-03-01T12:00:00.000+00:00", 10.0), ("2025-09-01T12:00:00.000+00:00", 2.0), (1_740_830_400, 10.0)],
)
def test_the_day_of_a_call_chooses_the_price(time, price):
    """OpenAI lowered the price of o3 in June 2025."""
    times = {"call_log": 1, "shadow": "true", "time": time, "cached_tokens": 0}
    table = frame(("gpt-4o-mini", "o3")).with_columns(pl.lit(value).alias(name) for name, value in times.items())
    with pytest.warns(PricesWarning):
        log = rcjax.read_log(table, prices="genai", models=("gpt-4o-mini", "o3"))
    tokens = table.filter(model="o3")
    wanted = (price * tokens["input_tokens"] + 4 * price * tokens["output_tokens"]) / 1e6
    assert np.asarray(log.query_cost)[:, 1] == pytest.approx(wanted.to_numpy(), rel=1e-6)


LISTS = {
    "litellm": {
        "sample_spec": {"max_tokens": "set to the most"},
        "gpt-4o-mini": {"input_cost_per_token": 1.5e-7, "output_cost_per_token": 6e-7, "search_context": {"low": 1}},
        "anthropic/claude-sonnet-4-5": {
            "input_cost_per_token": 3e-6,
            "output_cost_per_token": 1.5e-5,
            "cache_read_input_token_cost": 3e-7,
            "input_cost_per_token_above_200k_tokens": 6e-6,
            "output_cost_per_token_above_200k_tokens": 2.25e-5,
        },
        "dall-e-3": {"input_cost_per_pixel": 1e-8},
    },
    "openrouter": {
        "data": [
            {"id": "openai/gpt-4o-mini", "pricing": {"prompt": "0.00000015", "completion": "0.0000006"}},
            {
                "id": "anthropic/claude-sonnet-4-5",
                "pricing": {"prompt": "0.000003", "completion": "0.000015", "input_cache_read": "0.0000003"},
            },
        ]
    },
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_litellm_and_openrouter_price_a_log(name, tmp_path):
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(LISTS[name]))
    table = frame().with_columns(input_tokens=pl.lit(1000), output_tokens=pl.lit(10), cached_tokens=pl.lit(0))
    with pytest.warns(PricesWarning, match=f"by {name}.json: gpt-4o-mini: input"):
        log = rcjax.read_log(table, prices=path, models=MODELS)
    assert np.asarray(log.query_cost)[0] == pytest.approx([156e-6, 3150e-6])
    with pytest.raises(LogError, match=f"model gpt-4o-maxi: no price in {name}.json; the nearest are .*gpt-4o-mini"):
        rcjax.read_log(frame(("gpt-4o-maxi", "claude-sonnet-4-5")), prices=path)


def test_long_requests_have_the_higher_price_of_litellm(tmp_path):
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(LISTS["litellm"]))
    found = read_prices(path).find("claude-sonnet-4-5")
    assert [found.price.at(read).input for read in (200_000, 200_001)] == [3.0, 6.0]


def test_a_model_that_the_library_does_not_know_is_named_with_the_nearest():
    with pytest.raises(LogError, match=r"model gpt-4p: no price in genai-prices .*; the nearest are gpt-4"):
        rcjax.read_log(frame(("gpt-4p", "gpt-4o")), prices="genai")


def test_a_models_file_without_prices_has_the_listed_prices(tmp_path):
    path = tmp_path / "models.toml"
    path.write_text(
        '["gpt-4o-mini"]\n[fast]\nmodel = "llama-3.1-8b-instant"\nbase_url = "https://api.groq.com/openai/v1"\n'
        '[mine]\nbase_url = "http://localhost:1/v1"\ninput = 0\noutput = 0\n'
    )
    models = read_models(path)
    groq = GenaiPrices("https://api.groq.com/openai/v1").find("llama-3.1-8b-instant").price
    assert [float(price) for price in models["fast"].price[:2]] == [*groq[:2]]
    assert models["gpt-4o-mini"].listed.startswith("input $0.15, output $0.6")
    assert models["mine"].listed is None
    assert {name: float(one.price.input) for name, one in models.items()} == {
        name: float(price.input) for name, price in read_prices(path).items()
    }
    path.write_text('[mine]\nbase_url = "http://localhost:1/v1"\n')
    for read in (read_models, read_prices):
        with pytest.raises(ValueError, match=r"mine: no input price: genai-prices knows no mine at http://localhost:1"):
            read(path)


def test_prices_that_were_read_before_are_prices():
    """`check --prices` fills the gaps of a file with the prices of the tuning, and was refused."""
    prices = read_prices({"small": Price(0.1, 0.4, tiers=((10, Price(0.2, 0.8)),)), "large": (2.0, 8.0)})
    assert prices["small"].at(11) == Price(0.2, 0.8)
    assert prices["large"].output == 8.0


def test_a_models_file_charges_long_requests_by_their_tier(tmp_path):
    """Served calls, budgets and a log of 500,000 input tokens had half the listed price."""
    path = tmp_path / "models.toml"
    path.write_text(f'["{MODELS[0]}"]\n["{MODELS[1]}"]\nbase_url = "https://api.anthropic.com/v1"\n')
    price = read_models(path)[MODELS[1]].price
    wanted = calc_price(Usage(input_tokens=500_000, output_tokens=1_000), MODELS[1]).total_price
    usage = CallUsage()
    for _ in range(2):  # each request has a tier of its own
        usage.add({"prompt_tokens": 500_000, "completion_tokens": 1_000})
        usage.add({"prompt_tokens": 1_000, "completion_tokens": 0})
    assert usage.money(price) == 2 * wanted + 2 * price.input / 1_000
    assert price.max_money(500_000, 1_000) >= wanted
    table = frame().with_columns(input_tokens=pl.lit(500_000), output_tokens=pl.lit(1_000), cached_tokens=pl.lit(0))
    log = rcjax.read_log(table, prices=path, models=MODELS)
    assert np.asarray(log.query_cost)[0, 1] == pytest.approx(float(wanted))
    assert read_prices(log.prices) == log.prices == read_prices(path)


def test_future_prices_are_not_used():
    newest = GenaiPrices().name.rpartition(" ")[2]
    assert newest <= datetime.now(UTC).date().isoformat()
