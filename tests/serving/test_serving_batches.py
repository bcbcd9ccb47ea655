"""Many queries against a real server on loopback: order and limits, the log, shadow queries."""

import asyncio
import json

import polars as pl
import pytest
from helpers.chat_server import serving
from helpers.gateway_service import MODELS, SURE, UNSURE
from helpers.scripted_cascade import POLICY, ask, good, script

from rcjax import read_log
from rcjax._base.tokens import Price
from rcjax.logs import LeftOutWarning
from rcjax.policy import signals
from rcjax.serving.call_log import CallLog
from rcjax.serving.cascade import Cascade
from rcjax.serving.models_file import ServedModel

# Logs and shadow queries


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_prompts_are_logged_only_when_asked_for(tmp_path):
    with CallLog(tmp_path / "calls.jsonl", prompts=True, answers=False) as log:
        ask(script(small=good("A", SURE)), log=log)
    (row,) = read(tmp_path / "calls.jsonl")
    assert json.loads(row["prompt"]) == [{"role": "user", "content": "the prompt"}]
    assert row["answer"] is None


def test_shadow_queries_go_to_all_models_and_their_share_is_by_id(tmp_path):
    behave = script(small=good("A", SURE), middle=good("B", SURE), large=good("C", SURE))

    async def main(log):
        async with serving(behave) as (_, client):
            cascade = Cascade(POLICY, client, signal=signals.Choice(), log=log, shadow=0.3)
            return await cascade.ask_all((i, "?") for i in range(100))

    with CallLog(tmp_path / "calls.jsonl") as log:
        results = asyncio.run(main(log))
    rows = read(tmp_path / "calls.jsonl")
    assert all([call.model for call in result.calls] == ["small"] for result in results)
    models = {str(i): {row["model"] for row in rows if row["query"] == str(i)} for i in range(100)}
    shadow = {row["query"] for row in rows if row["shadow"]}
    assert shadow == {query for query, asked in models.items() if asked == {*MODELS}}
    assert all(models[query] == {"small"} for query in models.keys() - shadow)
    assert 15 < len(shadow) < 45
    with CallLog(tmp_path / "again.jsonl") as log:
        asyncio.run(main(log))
    assert {row["query"] for row in read(tmp_path / "again.jsonl") if row["shadow"]} == shadow


def test_shadow_models_are_asked_about_shadow_queries_alone(tmp_path):
    """What a tuning left out is in the log beside the policy's own, at its own price, to be tuned on."""

    def behave(request, headers):
        return good("D", UNSURE) if request["model"] == "org/tiny" else good("A", SURE)

    options = {
        "signal": signals.Choice(),
        "models": {"tiny": ServedModel("tiny", "org/tiny", Price(1, 2))},
        "shadow": 0.3,
    }

    async def main(log):
        async with serving(behave) as (_, client):
            cascade = Cascade(POLICY, client, log=log, **options)
            return await cascade.ask_all((i, f"{i}?") for i in range(40))

    with CallLog(tmp_path / "calls.jsonl") as log:
        results = asyncio.run(main(log))
    assert all([call.model for call in result.calls] == ["small"] for result in results)
    rows = read(tmp_path / "calls.jsonl")
    shadow = {row["query"] for row in rows if row["shadow"]}
    tiny = {row["query"]: row for row in rows if row["model"] == "tiny"}
    assert set(tiny) == shadow
    assert len(tiny) > 4
    for row in tiny.values():
        assert (row["cost"], row["shadow"], row["calibrated"]) == (pytest.approx((100 + 2) / 1e6), True, None)
    with pytest.warns(LeftOutWarning):
        log = read_log(
            tmp_path / "calls.jsonl", labels=pl.DataFrame({"query": sorted(shadow), "answer": "A"}), task="choice"
        )
    assert set(log.models) == {*MODELS, "tiny"}
    j = log.models.index("tiny")
    assert int(log.answered[:, j].sum()) == len(tiny)
    assert not log.correct[:, j].any()
    assert float(log.cost[j]) == pytest.approx(102e-6)
