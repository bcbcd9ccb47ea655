"""What replies say that they used, and what that costs: the right money of each way in which providers tell it."""

import json
import re
import warnings
from decimal import Decimal

import polars as pl
import pytest
from helpers.chat_server import Response, sure
from helpers.command_line import run
from helpers.gateway_service import SURE
from helpers.scripted_cascade import ask, cascade_policy, script

import rcjax
from rcjax._base.tokens import Price, Tokens
from rcjax.logs import PricesWarning
from rcjax.logs.importing.api_logs import count_tokens
from rcjax.serving.call_log import CallLog
from rcjax.serving.failures import CascadeWarning
from rcjax.serving.models_file import ServedModel
from rcjax.serving.usage import CallUsage

DETAILS = "prompt_tokens_details", "completion_tokens_details"

#: (usage, what it is: read, written, from a cache, into a cache).
SHORT, LONG = ({"prompt_tokens": number, "completion_tokens": 10} for number in (20, 2000))
ANTHROPIC = {"input_tokens": 20, "output_tokens": 10}
REASONING = {DETAILS[1]: {"reasoning_tokens": 200}}
TOLD = [
    (SHORT | {"total_tokens": 30}, (20, 10, 0, 0)),
    # Reasoning: within the output (OpenAI), beside it (Grok), in the total alone (Gemini).
    (SHORT | REASONING | {"completion_tokens": 210, "total_tokens": 230}, (20, 210, 0, 0)),
    (SHORT | REASONING | {"total_tokens": 230}, (20, 210, 0, 0)),
    (SHORT | REASONING, (20, 210, 0, 0)),
    (SHORT | {"total_tokens": 230}, (20, 210, 0, 0)),
    # Caches: within the input (OpenAI, DeepSeek, LiteLLM), beside it (Anthropic, and servers that pass its names on).
    (LONG | {DETAILS[0]: {"cached_tokens": 1500}}, (2000, 10, 1500, 0)),
    (LONG | {"prompt_cache_hit_tokens": 1500}, (2000, 10, 1500, 0)),
    (LONG | {"total_tokens": 2010, "cache_read_input_tokens": 1500}, (2000, 10, 1500, 0)),
    (LONG | {"total_tokens": 3510, "cache_read_input_tokens": 1500}, (3500, 10, 1500, 0)),
    (ANTHROPIC | {"cache_read_input_tokens": 1500}, (1520, 10, 1500, 0)),
    (ANTHROPIC | {"cache_creation_input_tokens": 1000}, (1020, 10, 0, 1000)),
    (SHORT | {"total_tokens": 30, "cache_creation_input_tokens": 1000}, (1020, 10, 0, 1000)),
    (ANTHROPIC | {"input_tokens": 2000, "input_tokens_details": {"cached_tokens": 1500}}, (2000, 10, 1500, 0)),
    # What contradicts itself: input and output count.
    ({"prompt_tokens": 20, "completion_tokens": 30, "total_tokens": 7}, (20, 30, 0, 0)),
    (SHORT | {DETAILS[0]: {"cached_tokens": 1500}}, (20, 10, 20, 0)),
]


@pytest.mark.parametrize(("reported", "tokens"), TOLD)
def test_usage_under_every_name_is_read_as_tokens(reported, tokens):
    usage = CallUsage()
    usage.add(reported)
    assert usage.tokens == Tokens(*tokens)
    line = count_tokens(reported, None, [])
    assert [line.get(f"{name}_tokens", 0) for name in ("input", "output", "cached", "cache_write")] == [*tokens]
    price = Price(1.0, 10.0, 0.1, 2.0)
    read, written, cached, stored = tokens
    assert float(usage.money(price)) == pytest.approx(
        (read - cached - stored + 10 * written + 0.1 * cached + 2 * stored) / 1e6
    )
    assert float(usage.money(Price(1.0, 10.0))) == pytest.approx((read + 10 * written) / 1e6)


def test_a_cache_without_a_price_is_remarked():
    usage = CallUsage()
    usage.add({"prompt_tokens": 20, "completion_tokens": 30, DETAILS[0]: {"cached_tokens": 5}})
    assert "no price cached_input is known" in usage.remarks(Price(1, 1))[0]
    assert usage.remarks(Price(1, 1, 0.1)) == usage.remarks(None) == []


@pytest.mark.parametrize(("read", "written"), [(5, 0), (0, 7)])
def test_audio_that_is_charged_as_text_is_remarked(read, written):
    usage = CallUsage()
    audio = {DETAILS[0]: {"audio_tokens": read}, "completion_tokens_details": {"audio_tokens": written}}
    usage.add({"prompt_tokens": 20, "completion_tokens": 30} | audio)
    assert usage.remarks(Price(1, 1)) == ["its audio is charged as text: no price of audio is known"]


@pytest.mark.parametrize(
    ("more", "bill"),
    [
        ({"cost": 0.002}, "0.002"),
        ({"cost": 0.0001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.002}}, "0.0021"),
        ({"cost": 0.0001, "is_byok": True}, "0.00005"),
        ({"cost": 0}, "0.00005"),  # of a model that has a price
        ({"cost": "free"}, "0.00005"),
    ],
)
def test_a_reported_cost_counts_in_place_of_the_price(more, bill):
    usage = CallUsage()
    usage.add({"prompt_tokens": 20, "completion_tokens": 30} | more)
    assert usage.money(Price(1.0, 1.0)) == Decimal(bill)
    said = "its server reports the cost of each call: it is used in place of prices"
    assert (said in usage.remarks(Price(1, 1))) == (bill not in ("0.00005",))


def test_service_log_and_learning_bill_cached_input_by_the_prices_of_the_policy(tmp_path):
    prices = {"small": {"input": 1.0, "output": 10.0, "cached_input": 0.1}, "middle": {"input": 5.0, "output": 5.0}}
    policy = cascade_policy(prices=prices | {"large": {"input": 9.0, "output": 9.0}})
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, DETAILS[0]: {"cached_tokens": 900}}
    reply = Response(json.dumps(json.loads(json.dumps(sure("A", SURE))) | {"usage": usage}).encode())
    given = {name: ServedModel(name, name, Price(one["input"], one["output"])) for name, one in prices.items()}
    with (
        CallLog(tmp_path / "calls.jsonl") as log,
        pytest.warns(CascadeWarning, match="middle: a cache serves its input"),
    ):
        result, _ = ask(
            script(small=reply, middle=reply, large=reply), policy=policy, models=given, log=log, shadow=1.0
        )
    cost = (100 * 1 + 900 * 0.1 + 10 * 10) / 1e6
    assert result.cost == pytest.approx(cost)
    rows = {row["model"]: row for row in map(json.loads, (tmp_path / "calls.jsonl").read_text().splitlines())}
    assert (rows["small"]["cost"], rows["small"]["cached_tokens"]) == (pytest.approx(cost), 900)
    assert rows["middle"]["cost"] == pytest.approx((1000 * 5 + 10 * 5) / 1e6)
    assert json.loads(rows["small"]["request_settings"])["prices"] == prices["small"]


def test_a_table_with_cached_tokens_says_their_share_once(tmp_path):
    rows = {"query": [1, 1, 2, 2], "model": ["small", "large"] * 2, "correct": [0, 1, 1, 1], "confidence": [0.5] * 4}
    table = pl.DataFrame(
        rows | {"input_tokens": [1000] * 4, "output_tokens": [10] * 4, "cached_tokens": [900, None] * 2}
    )
    prices = {"small": {"input": 1, "output": 10, "cached_input": 0.1}, "large": {"input": 9, "output": 9}}
    with pytest.warns(PricesWarning, match=r"from a cache: 90 % of small, at \$0.1 per million$"):
        log = rcjax.read_log(table, prices=prices)
    assert log.cost.tolist() == pytest.approx([(100 + 90 + 100) / 1e6, 9 * 1010 / 1e6])
    with pytest.warns(PricesWarning, match="90 % of small, at the full price, as none for cached_input is known"):
        assert rcjax.read_log(table, prices={"small": (1, 10), "large": (9, 9)}).cost[0] == pytest.approx(1100 / 1e6)
    table.write_csv(tmp_path / "log.csv")
    assert run("import", tmp_path / "log.csv", "--out", tmp_path / "new.csv").exit_code == 0
    with pytest.warns(PricesWarning, match="90 % of small"):
        assert rcjax.read_log(tmp_path / "new.csv", prices=prices).cost.tolist() == log.cost.tolist()


def test_prices_per_thousand_tokens_are_asked_about(tmp_path):
    (tmp_path / "prices.json").write_text(json.dumps({"small": {"input": 0.00015, "output": 0.0006}}))
    result = run("tune", tmp_path / "no.csv", "--prices", tmp_path / "prices.json", "--budget", "1")
    assert "if it is meant per 1,000 tokens, write 0.15" in " ".join(result.stderr.split())


@pytest.mark.filterwarnings("ignore:.*its server reports the cost of each call")
@pytest.mark.parametrize(
    ("wrong", "cost", "what"),
    [
        ({"prompt_tokens": 10**6}, 1e-5, "reports more tokens than the request can have"),  # the mean of the policy
        ({"completion_tokens": 10**6}, 1e-5, "reports more tokens than the request can have"),
        ({"prompt_tokens": 10**9}, 1e-5, None),  # which counts nothing
        ({"cost": 0.5}, 10.4e-6, "reports a cost far above its tokens' price"),
        ({"cost": 10**9}, 10.4e-6, None),
        ({"cost": 0.05}, 0.05, None),  # as a search costs
    ],
)
def test_counts_and_costs_that_a_request_cannot_have_are_refused(wrong, cost, what):
    """Bytes and prices count in their place, and a line says so."""
    reply = Response(sure("B", SURE) | {"usage": {"prompt_tokens": 100, "completion_tokens": 1, **wrong}})
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        result, _ = ask(script(small=reply), options={"max_tokens": 5})
    assert result.cost == pytest.approx(cost)
    assert result.calls[0].estimated is ("tokens" in {*wrong} or "cost" not in wrong)
    assert [str(one.message) for one in warned if re.search("can have|far above", str(one.message))] == (
        [] if what is None else [next(str(one.message) for one in warned if what in str(one.message))]
    )
