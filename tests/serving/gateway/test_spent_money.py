"""A budget for a period is a limit: requests reserve their possible cost, and spent money is spent for all requests."""

import asyncio
import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from helpers.chat_server import Response, completion, serving, sure
from helpers.gateway_service import SURE, gateway, make_policy, until
from helpers.scripted_cascade import PRICES, good, make_cascade, script
from test_followed_bills import ladder

from rcjax._base.tokens import Price
from rcjax.policy import signals
from rcjax.policy.ladder import Ladder, Period
from rcjax.serving.billing import SharedBill
from rcjax.serving.call_log import Query
from rcjax.serving.failures import CascadeWarning
from rcjax.serving.models_file import ServedModel

MONEY = 0.01
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}

#: Requests that are not judged.
NOT_JUDGED = ({"n": 2}, {"response_format": {"type": "json_object"}}, {"tools": [TOOL]})


@pytest.fixture(autouse=True)
def _within_the_month(monkeypatch):
    """Fix a date in mid-month: near its end few queries are expected, and little money buys expensive rungs."""
    now = datetime(2026, 11, 15, tzinfo=UTC).timestamp()
    monkeypatch.setattr("rcjax.serving.billing.time.time", lambda: now)


def month(money=MONEY):
    return ladder(period=Period(money, "month"))


def behave(request, headers):
    """Answer with as many tokens as the request allows, or with a letter."""
    wanted = request.get("max_tokens")
    return Response(sure("B", SURE, (100, 1 if wanted is None else wanted * request.get("n", 1))), delay=0.05)


def spend_all(service):
    """Spend more than the month's money."""
    billing = service.app.state.gateway.catalog.policies["policy"].cascade.billing
    billing.pay_shadow([SimpleNamespace(cost=2 * billing.money_left)])


def spend_most(service):
    """Leave so little that the cheapest rung answers."""
    billing = service.app.state.gateway.catalog.policies["policy"].cascade.billing
    billing.pay_shadow([SimpleNamespace(cost=billing.money_left - 0.001)])


def spent(service):
    return sum(row["cost"] for row in service.log_rows())


def test_spent_money_sends_judged_and_other_requests_to_the_cheapest_rung():
    with gateway(month(1.0), behave) as service:
        before = [service.ask(**fields).json["model"] for fields in NOT_JUDGED]
        spend_all(service)
        after = [service.ask(**fields, stream=False).json["model"] for fields in ({}, *NOT_JUDGED)]
        streamed = service.ask(tools=[TOOL], stream=True).events[0]["model"]
    assert before == ["large"] * len(NOT_JUDGED)
    assert (after, streamed) == (["small"] * (1 + len(NOT_JUDGED)), "small")


def test_a_choice_of_tools_without_tools_is_judged():
    with gateway(month(), behave) as service:
        reply = service.ask(tool_choice="auto", function_call="auto").json
        assert reply["rcjax"]["not_judged"] == []
        assert not {"tool_choice", "function_call"} & {*service.server.requests[-1]}
        assert service.ask(tools=[TOOL], tool_choice="auto").json["rcjax"]["not_judged"] == ["tools"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_service_that_stops_says_until_when(path):
    with gateway(month(), behave, stops_at_budget=True, shadow=1.0) as service:
        assert service.ask().status == 200
        service.logged(3)
        spend_all(service)
        service.forget()
        for fields in ({}, *(NOT_JUDGED if path.endswith("completions") else ())):
            asked = {"messages": [{"role": "user", "content": "A or B?"}]} if "chat" in path else {"input": "A or B?"}
            reply = service.post({"model": "policy", **asked, **fields}, path)
            assert (reply.status, reply.json["error"]["code"]) == (429, "budget_spent")
            said = reply.json["error"]["message"]  # without the operator's budget
            assert re.fullmatch(r"the money left does not .*: the next month begins \d{4}-\d\d-01 00:00 UTC", said)
            assert reply.headers["x-should-retry"] == "false"
            assert 0 < int(reply.headers["retry-after"]) <= 31 * 86_400
        assert service.server.requests == service.log_rows() == []
        assert service.ask(model="large").status == 200  # on no bill


def test_the_first_request_refused_in_a_period_is_warned_of_though_some_money_is_left():
    """A service that stops never spends the last of its money: no line said why all requests were refused."""
    with gateway(month(), behave, stops_at_budget=True) as service:
        billing = service.app.state.gateway.catalog.policies["policy"].cascade.billing
        billing.pay_shadow([SimpleNamespace(cost=billing.money_left - 1e-8)])
        with pytest.warns(CascadeWarning, match=r"is left of .* a request that may cost .* is refused") as warned:
            assert [service.ask().status for _ in range(3)] == [429] * 3
        assert len(warned) == 1


def test_a_service_that_stops_refuses_for_a_moment_while_running_requests_reserve_the_money():
    with gateway(month(1.0), behave, stops_at_budget=True) as service:
        billing = service.app.state.gateway.catalog.policies["policy"].cascade.billing
        with billing.choose_and_reserve([1.0], float):
            reply = service.ask()
        assert (reply.status, reply.json["error"]["code"]) == (429, "too_many_requests")
        assert (reply.headers["retry-after"], "x-should-retry" in reply.headers) == ("1", False)
        assert service.ask().status == 200


def test_a_service_that_stops_answers_nothing_while_its_spending_is_unknown(tmp_path):
    totals = tmp_path / "calls.jsonl.totals"
    with gateway(month(), behave, log=tmp_path / "calls.jsonl", stops_at_budget=True) as service:
        assert service.ask().status == 200
        billing = service.app.state.gateway.catalog.policies["policy"].cascade.billing

        def lose():
            totals.unlink()
            totals.mkdir()
            until(lambda: billing._sync() or billing._is_spending_unknown)

        with pytest.warns(CascadeWarning, match="cannot save spending"):
            lose()
        service.forget()
        for fields in ({}, *NOT_JUDGED):
            reply = service.ask(**fields)
            assert (reply.status, reply.json["error"]["code"]) == (503, "spending_unknown")
        assert service.server.requests == []
        totals.rmdir()
        until(lambda: billing._sync() or not billing._is_spending_unknown)
        assert service.ask().status == 200


@pytest.mark.parametrize(("stops", "then"), [(False, "the cheapest rung answers"), (True, "requests are refused")])
def test_a_service_that_starts_without_money_says_what_it_does(stops, then, tmp_path):
    log = tmp_path / "calls.jsonl"
    with gateway(month(1e-6), behave, log=log) as service:
        assert service.ask().status == 200  # which costs ten times as much
    what = f"the money of this month is spent .*: {then} until it ends"
    with pytest.warns(CascadeWarning, match=what), gateway(month(1e-6), behave, log=log, stops_at_budget=stops):
        pass


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("fields", [{"max_tokens": 10_000}, {"max_tokens": 200, "n": 2}, {"max_tokens": 20}])
def test_the_possible_cost_of_a_request_is_reserved_before_it_is_answered(fields, stops):
    """Of 60 requests at once, the cheapest rung answers those that the money does not cover, or they are refused."""
    with gateway(month(), behave, stops_at_budget=stops) as service, ThreadPoolExecutor(60) as pool:
        replies = [*pool.map(lambda _: service.ask(**fields), range(60))]
        rows = service.log_rows()
        dear = sum(row["cost"] for row in rows if row["model"] != "small")
        cheapest = (100 * 0.1 + fields["max_tokens"] * fields.get("n", 1) * 0.4) / 1e6
        assert dear <= MONEY + 60 * 100 * 3 / 1e6  # the prompt has 100 tokens here, not what its bytes are taken for
        if stops:
            assert {reply.status for reply in replies} <= {200, 429}
            assert spent(service) <= MONEY + 60 * 100 * 3 / 1e6
        else:
            assert {reply.status for reply in replies} == {200}
            assert spent(service) <= MONEY + 60 * (100 * 3 / 1e6 + cheapest)
        billing = service.app.state.gateway.catalog.policies["policy"].cascade.billing
        with billing.reserve_if_covered(max(billing.money_left, 0.0)) as nothing_is_put_aside:
            assert nothing_is_put_aside is (billing.money_left > 0)


def test_shadow_calls_end_with_the_money(tmp_path):
    """A query whose shadow calls the money does not cover is no shadow query: else only hard queries were complete."""
    log = tmp_path / "calls.jsonl"
    with gateway(month(), behave, shadow=1.0, log=log) as service:
        service.ask()
        service.server.wait_for(3)
        spend_all(service)
        assert service.ask().json["model"] == "small"
        page = service.get("/metrics").body.decode()
        assert 'rcjax_shadow_queries_total{outcome="no money",policy="policy"} 1.0' in page
    rows = [json.loads(line) for line in log.read_text().splitlines()]  # all that there will be
    assert sorted((row["model"], row["shadow"]) for row in rows) == [
        ("large", True),
        ("middle", True),
        ("small", False),
        ("small", True),
    ]


def test_shadow_calls_that_the_end_of_a_service_cuts_off_are_paid_for(tmp_path):
    """The provider has the requests, so the log has their estimated cost."""

    def slow(request, headers):
        return Response(sure("B", SURE), delay=0.0 if request["model"] == "org/small" else 20.0)

    log = tmp_path / "calls.jsonl"
    with gateway(month(1.0), slow, shadow=1.0, log=log, limits={"drain": 0.2}) as service:
        spend_most(service)
        assert service.ask().json["model"] == "small"
        service.server.wait_for(3)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    with gateway(month(1.0), slow, log=log) as service:
        left = service.app.state.gateway.catalog.policies["policy"].cascade.billing.money_left
    assert {row["model"] for row in rows} == {"small", "middle", "large"}
    assert left == pytest.approx(0.001 - sum(row["cost"] for row in rows))


def test_an_answer_without_a_limit_is_expected_to_be_as_long_as_recent_answers():
    def wordy(request, headers):
        return Response(completion("x", usage=(100, 1800)))  # of two choices

    with gateway(month(1.0), wordy) as service:
        estimate_cost = service.app.state.gateway.catalog.unjudged_model_caller.estimate_cost
        prompt = json.loads('{"id": "q", "messages": [{"role": "user", "content": "' + "x" * 400 + '"}]}')
        assert estimate_cost(Query(**prompt), "large") == pytest.approx((100 * 3 + 500 * 15) / 1e6)
        for _ in range(30):
            service.ask(n=2)
        assert estimate_cost(Query(**prompt), "large") == pytest.approx((100 * 3 + 900 * 15) / 1e6, rel=0.05)
        assert estimate_cost(Query(**prompt, options={"max_tokens": 7}), "large") == pytest.approx(405e-6)


def test_a_paid_answer_of_a_shadow_query_is_reserved_no_longer(monkeypatch):
    """While the shadow calls ran, the answer counted twice, as paid and as reserved."""
    monkeypatch.setattr(Ladder, "draw_rung", lambda *_: 0)

    async def main():
        may_end = asyncio.Event()
        waiting = Response(sure("A", SURE), held=may_end)
        models = {name: ServedModel(name, name, price=Price(**price)) for name, price in PRICES.items()}
        async with (
            serving(script(small=good("A", SURE), middle=waiting, large=waiting)) as (_, client),
            make_cascade(month(100.0), client, signal=signals.Choice(), models=models, shadow=1.0) as cascade,
        ):
            result = await cascade.ask("A or B?")
            others = [cascade._model_caller.estimate_cost(result.query, model) for model in ("middle", "large")]
            reserved = math.fsum(cascade.billing._reserved.values())
            may_end.set()
            return result.model, reserved, math.fsum(others)

    model, reserved, estimate_of_others = asyncio.run(main())
    assert (model, reserved) == ("small", pytest.approx(estimate_of_others))


def test_a_shadow_query_reserves_no_model_of_its_rung_twice(tmp_path, monkeypatch):
    """Near the limit such a query was refused although the money covered all of its calls."""
    policy = month(1.0)
    cost = {name: rung.cost[name] for rung in policy.rungs for name in rung.models}
    whole = make_policy(cost=cost, expected=policy.rungs[-1].expected)
    policy = replace(policy, rungs=(policy.rungs[0], whole), position=1.0)
    amounts, reserve = [], SharedBill.reserve_if_covered

    def note(billing, cost):
        amounts.append((cost, math.fsum(billing._reserved.values())))
        return reserve(billing, cost)

    monkeypatch.setattr(Ladder, "draw_rung", lambda *_: 1)
    monkeypatch.setattr(SharedBill, "reserve_if_covered", note)
    log = tmp_path / "calls.jsonl"
    with gateway(policy, behave, shadow=1.0, log=log) as service:
        service.ask()
        service.server.wait_for(3)
        billing = service.app.state.gateway.catalog.policies["policy"].cascade.billing
        until(lambda: not billing._reserved)
    ((extra, reserved),) = amounts
    assert extra == 0 < reserved
