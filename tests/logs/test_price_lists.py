"""Lists of prices that others keep are read as they are, and it is said which entry prices which model."""

import json
from pathlib import Path

import polars as pl
import pytest

from rcjax._base.tokens import Price
from rcjax.logs import LogError, PricesWarning, read_log, read_prices

CHAT = {"litellm_provider": "openai", "mode": "chat"}
LITELLM = {
    "gpt-4o-mini": CHAT | {"input_cost_per_token": 1.5e-07, "output_cost_per_token": 6e-07},
    "azure/eu/gpt-4o-mini": CHAT | {"input_cost_per_token": 1.65e-07, "output_cost_per_token": 6.6e-07},
    "groq/llama": CHAT | {"input_cost_per_token": 5e-08, "output_cost_per_token": 8e-08},
    "a/shared": CHAT | {"input_cost_per_token": 1e-06, "output_cost_per_token": 1e-06},
    "b/shared": CHAT | {"input_cost_per_token": 2e-06, "output_cost_per_token": 2e-06},
    "free": CHAT | {"input_cost_per_token": 0, "output_cost_per_token": 0},
    "dall-e-3": {"litellm_provider": "openai", "mode": "image_generation", "output_cost_per_image": 0.04},
}
OPENROUTER = {
    "data": [
        {
            "id": "openai/gpt-4o-mini",
            "pricing": {"prompt": "0.00000015", "completion": "0.0000006", "input_cache_read": "7.5e-8"},
        },
        {"id": "openrouter/auto", "pricing": {"prompt": "-1", "completion": "-1"}},
        {"id": "meta/llama:free", "pricing": {"prompt": "0", "completion": "0"}},
    ]
}


def written(folder, content):
    path = folder / "list.json"
    path.write_text(json.dumps(content))
    return path


def test_entries_of_the_real_list():
    """As litellm 1.110.2 has it."""
    path = Path(__file__).parents[1] / "importing" / "files" / "litellm" / "prices.json"
    content = json.loads(path.read_text())
    prices = read_prices(path)
    assert {*prices} | prices.passed_over == {*content} - {"sample_spec"}
    assert prices.passed_over == {
        *("azure/gpt-image-1.5", "aiml/dall-e-3", "text-embedding-3-small", "whisper-1"),
        "bedrock/*/1-month-commitment/cohere.command-text-v14",
    }
    for entry, pair in prices.items():
        fields = "input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost"
        told = [content[entry].get(field) for field in (*fields, "cache_creation_input_token_cost")]
        assert [*pair] == [price if price is None else pytest.approx(1e6 * price, rel=1e-12) for price in told]


def test_openrouter(tmp_path):
    for content in (OPENROUTER, OPENROUTER["data"]):
        prices = read_prices(written(tmp_path, content))
        assert prices == {"openai/gpt-4o-mini": Price(0.15, 0.6, 0.075), "meta/llama:free": Price(0.0, 0.0)}
        assert prices.passed_over == {"openrouter/auto"}


def log_of(*models):
    rows = [
        {"query": query, "model": model, "correct": query, "confidence": 0.5, "input_tokens": 100, "output_tokens": 10}
        for model in models
        for query in (0, 1)
    ]
    return pl.DataFrame(rows)


@pytest.mark.parametrize(
    ("content", "model", "entry"),
    [
        (LITELLM, "gpt-4o-mini", "gpt-4o-mini"),
        (LITELLM, "openai/gpt-4o-mini", "gpt-4o-mini"),
        (LITELLM, "llama", "groq/llama"),
        (LITELLM, "eu/gpt-4o-mini", None),  # its provider's price and that of no provider differ
        (LITELLM, "shared", None),
        (OPENROUTER, "gpt-4o-mini", "openai/gpt-4o-mini"),
        (OPENROUTER, "azure/gpt-4o-mini", None),
    ],
)
def test_which_entry_prices_a_model(content, model, entry, tmp_path):
    path = written(tmp_path, content)
    other = next(iter(read_prices(path)))
    frame = log_of(model, other) if model != other else log_of(model, "free")
    if entry is None:
        with pytest.raises(LogError, match=r"list\.json, model \S+: may be priced by|model \S+: no price"):
            read_log(frame, prices=path)
        return
    with pytest.warns(PricesWarning, match=rf"list.json: .*{model} is priced by {entry}, [\d.]+ and [\d.]+"):
        log = read_log(frame, prices=path)
    price = sent, received, *_ = read_prices(path)[entry]
    assert log.prices[model] == price
    assert log.cost[log.models.index(model)] == pytest.approx((100 * sent + 10 * received) / 1e6)


@pytest.mark.parametrize(
    ("content", "model", "message"),
    [
        (LITELLM, "dall-e-3", "its entry in list.json has no prices per token of text"),
        (LITELLM, "gpt-4o-min", "did you mean 'gpt-4o-mini'"),
        ({"dall-e-3": LITELLM["dall-e-3"]}, "dall-e-3", "list.json: none of its 1 entries has prices of tokens"),
        ({"data": OPENROUTER["data"][1:2]}, "auto", "list.json: none of its 1 entries has prices of tokens"),
        ({"a": CHAT | {"input_cost_per_token": -1, "output_cost_per_token": "x"}}, "a", "none of its 1 entries"),
    ],
)
def test_a_model_without_a_price_is_refused(content, model, message, tmp_path):
    with pytest.raises(LogError) as problem:
        read_log(log_of("free", model), prices=written(tmp_path, content))
    assert message in str(problem.value)
