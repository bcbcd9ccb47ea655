"""Many queries against a real server on loopback: order and limits, the log, shadow queries."""

import asyncio
import json

import polars as pl
import pytest
from helpers.chat_server import Response, serving, sure
from helpers.gateway_service import MODELS, SURE, UNSURE
from helpers.scripted_cascade import POLICY, ask, cascade_policy, good, make_cascade, script

from rcjax import read_log
from rcjax._base.tokens import Price
from rcjax.logs import LeftOutWarning
from rcjax.policy import Agreement, Ladder, Rule, signals
from rcjax.policy.ladder import Period
from rcjax.serving import exchange
from rcjax.serving.call_log import CallLog
from rcjax.serving.completions import read_reply
from rcjax.serving.failures import CascadeWarning
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
            cascade = make_cascade(POLICY, client, signal=signals.Choice(), log=log, shadow=0.3)
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
            cascade = make_cascade(POLICY, client, log=log, **options)
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


def test_a_shadow_query_that_ends_early_logs_the_models_that_were_not_asked(tmp_path):
    """If its client leaves: otherwise those that one model answers at once would be the whole ones, easy queries."""
    slow = Response(sure("B", SURE), delay=60.0)
    whole = {"small": good("A", SURE), "middle": good("B", SURE), "large": good("C", SURE)}
    early = {"small": good("A", UNSURE), "middle": slow}
    behave = script(**{model: [reply, reply, early.get(model, reply)] for model, reply in whole.items()})

    async def main(log):
        async with (
            serving(behave) as (server, client),
            make_cascade(POLICY, client, signal=signals.Choice(), log=log, shadow=1.0) as cascade,
        ):
            await cascade.ask_all([("q0", "one"), ("q1", "two")])
            asking = asyncio.create_task(cascade.ask("three", "q2"))
            await asyncio.to_thread(server.wait_for, 8)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    path = tmp_path / "calls.jsonl"
    with CallLog(path) as log:
        asyncio.run(main(log))
    rows = [row for row in read(path) if row["query"] == "q2"]
    assert [(row["model"], row["shadow"], row["error"], row["cost"] > 0) for row in rows] == [
        ("small", True, None, True),
        ("middle", True, "cancelled: nobody waits for the answer", True),
        ("large", True, "not asked: the query ended early", False),
    ]
    with pytest.warns(LeftOutWarning, match="2 of 9 rows are left out: 2 failed"):
        log = read_log(path, labels=pl.DataFrame({"query": ["q0", "q1", "q2"], "answer": "A"}), task="choice")
    assert [(calls.asked, calls.failed) for calls in log.failed] == [({*MODELS}, {"middle", "large"})]


def test_shadow_calls_that_are_cancelled_before_they_begin_are_logged_and_give_up_their_place(tmp_path):
    """As where a program ends with its answer."""

    async def main(log):
        async with serving(script(small=good("A", SURE))) as (_, client):
            cascade = make_cascade(POLICY, client, signal=signals.Choice(), log=log, shadow=1.0)
            await cascade.ask("one", "q1")
            (task,) = cascade._background
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await cascade.close()
            assert cascade._shadow_queries == 0

    with CallLog(tmp_path / "calls.jsonl") as log:
        asyncio.run(main(log))
    errors = {row["model"]: row["error"] for row in read(tmp_path / "calls.jsonl")}
    assert errors == {"small": None} | dict.fromkeys(("middle", "large"), "not asked: the query ended early")


def test_a_fault_of_one_of_two_models_asked_at_once_does_not_stop_the_other(tmp_path, monkeypatch):
    """Each model has one line: the other's call was logged as not made, and once more when it ended."""

    has_failed = asyncio.Event()

    def fail_on_a(completion):
        reply = read_reply(completion)
        if reply.text == "A":
            has_failed.set()
            raise ZeroDivisionError
        return reply

    monkeypatch.setattr(exchange, "read_reply", fail_on_a)
    rules = {**POLICY.rules, "small": (Rule(1.0, "ask", "middle"),)}
    policy = cascade_policy(rules=rules, agreements={"middle": Agreement("small", "large", "choice")})
    behave = script(small=good("A", SURE), middle=Response(sure("B", SURE), held=has_failed), large=good("C", SURE))
    with CallLog(tmp_path / "calls.jsonl") as log, pytest.raises(ZeroDivisionError):
        ask(behave, policy=policy, log=log, shadow=1.0)
    small, middle, large = read(tmp_path / "calls.jsonl")
    assert small["error"].startswith("rcjax failed: ZeroDivisionError in test_serving_batches.py, line ")
    assert (middle["model"], middle["error"], middle["answer"]) == ("middle", None, "B")
    assert (large["model"], large["error"]) == ("large", "not asked: the query ended early")


def test_a_batch_keeps_the_answers_that_its_money_has_paid_for(tmp_path):
    """The first query beyond the money ended the batch: the other answers were lost, and requests went on."""
    rungs = [
        cascade_policy(
            models=(name,),
            calibrations={name: POLICY.calibrations[name]},
            rules={name: [Rule(1, "answer")]},
            cost={name: cost},
            expected={"error": error, "cost": cost},
            prices=None,
        )
        for name, error, cost in (("small", 0.3, 1e-5), ("large", 0.1, 2e-4))
    ]
    ladder = Ladder(tuple(rungs), 1.0, budget=2e-4, period=Period(0.001, "day"))
    models = {name: ServedModel(name, name, Price(1, 1)) for name in ("small", "large")}

    async def main(log):
        async with (
            serving(lambda request, headers: Response(sure("B", SURE), delay=0.02)) as (server, client),
            make_cascade(
                ladder, client, signal=signals.Choice(), models=models, log=log, concurrency=4, stops_at_budget=True
            ) as cascade,
        ):
            results = await cascade.ask_all([(i, "A or B? Reply with the letter." * 10) for i in range(40)])
            return results, server.requests

    with CallLog(tmp_path / "calls.jsonl") as log, pytest.warns(CascadeWarning, match="refused"):
        results, requests = asyncio.run(main(log))
    answered = [result for result in results if result.status == "answered"]
    refused = [result for result in results if result.status == "failed"]
    assert len(answered) == len(requests) > 4
    assert len(answered) + len(refused) == 40
    assert "the money left does not cover this request: the next day begins" in refused[0].problem
