"""What is booked for calls that fail: nothing where nothing came back, streamed or not; the mean for what did."""

import asyncio
import contextlib
import http.client
import itertools
import json
import time
import warnings
from dataclasses import replace

import pytest
from helpers.chat_server import Response, completion, events_of, serving
from helpers.gateway_service import gateway, make_policy
from helpers.scripted_cascade import ask, broken, cascade_policy, make_cascade, script
from test_serving_votes import voting_policy

from rcjax._base.tokens import Price
from rcjax.policy import Ladder, Policy, Rule, signals
from rcjax.serving.call_log import CallLog, CascadeError, Query
from rcjax.serving.failures import CascadeWarning
from rcjax.serving.models_file import ServedModel

pytestmark = pytest.mark.filterwarnings("ignore::rcjax.serving.failures.CascadeWarning")
MEAN = 3e-4  # of the large model, in the policy
EMPTY = Response(b"")
ERROR = {"error": {"message": "too long", "code": "internal_error"}}

#: What a server does, and what is booked for it.
FREE = {
    "refused": broken(400),
    "too many requests": broken(429),
    "its own fault": broken(500),
}
#: What comes to nothing, though somebody may have worked on it.
LOST = {
    "late": Response(completion("A"), delay=30),
    "late behind a proxy": broken(504),
    "late behind Cloudflare": broken(524),
    "reset at once": Response([], hang=True),
    "reset after comments": Response([b": wait\n\n", b": wait\n\n"], hang=True),
}
CHARGED = {
    "not JSON": (Response(b'{"choices": ['), Response([b"data: {\n\n"])),
    "an error in place of an answer": (Response(ERROR), Response([ERROR], hang=True)),
    "nothing in it": (EMPTY, Response([])),
    "breaks off": (Response(completion("A", usage=None)), Response(events_of(completion("A"))[:2], hang=True)),
    "no tokens told": (Response(completion("A", usage=None)), Response(events_of(completion("A", usage=None)))),
}


def alone():
    """A policy of one model, whose answer is kept whatever it is."""
    whole = cascade_policy()
    calibrations = {"large": whole.calibrations["large"]}
    prices = {"large": {"input": 3, "output": 15}}
    return Policy(("large",), calibrations, {"large": (Rule(1.0, "answer"),)}, {"large": MEAN}, prices=prices)


def booked(response, *, streamed, deadline=60.0, **options):
    """(the money that a question has cost, of each call whether it is an estimate)."""

    async def deliver(chunk):
        pass

    how = {"asking": {"deadline": deadline, "deliver": deliver if streamed else None}, "retries": 1}
    outcome, _ = ask(lambda request, headers: response, "A or B?", policy=alone(), **how, **options)
    result = outcome.result if isinstance(outcome, CascadeError) else outcome
    return result.cost, tuple(call.estimated for call in result.calls)


def test_what_failed_for_free_costs_nothing_streamed_or_not():
    costs = {(name, way): booked(what, streamed=way) for name, what in FREE.items() for way in (False, True)}
    assert {case: cost for case, cost in costs.items() if cost != (0.0, (False,))} == {}


RATE = 50  # tokens a second, of a model that has not answered yet


@pytest.mark.parametrize("name", LOST)
def test_what_was_lost_costs_what_was_sent_and_the_time(name):
    """A quarter of the bytes as tokens, of each attempt, and what a model writes meanwhile: it may go on with it."""
    patience = ({"deadline": 2.0}, {"timeout": 2.0}) if name == "late" else ({},)
    costs = [booked(LOST[name], streamed=way, **more) for way in (False, True) for more in patience]
    seconds = 2.0 if name == "late" else 0.0
    assert all(estimated == (True,) for _, estimated in costs)
    assert all(seconds * RATE * 15 <= 1e6 * cost - 6 <= (seconds + 20.0) * RATE * 15 for cost, _ in costs)
    assert name != "late" or min(costs)[0] >= MEAN


@pytest.mark.parametrize("streamed", [False, True])
def test_an_abandoned_answer_costs_the_mean_at_least_and_the_limit_at_most(streamed):
    """There is one attempt. The mean is that of the policy, until answers tell another."""
    limited = {"timeout": 1.0, "options": {"max_tokens": 2}}
    cost, estimated = booked(LOST["late"], streamed=streamed, **limited)
    assert (cost, estimated) == (pytest.approx(MEAN), (True,))
    answers = [Response(completion("A", usage=(100, 900)))] * 3 + [LOST["late"]]
    calls = []
    ask(script(large=answers), "A or B?", policy=alone(), times=4, timeout=5.0, retries=0, observe=calls.append)
    assert calls[-1].cost >= 0.99 * calls[0].cost == pytest.approx(0.99 * (300 + 900 * 15) / 1e6)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("content", ["", [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]])
def test_an_abandoned_request_without_text_costs_the_mean_at_least(content, streamed):
    """It reserves as much."""

    async def deliver(chunk):
        pass

    async def main():
        models = {"large": ServedModel("large", "large", Price(3, 15))}
        async with serving(lambda request, headers: LOST["late"]) as (server, client):
            how = {"models": models, "options": {"max_tokens": 2}, "signal": signals.Choice(), "observe": calls.append}
            async with make_cascade(alone(), client, **how) as cascade:
                query = Query("q", [{"role": "user", "content": content}])
                expected = cascade.estimate_cost(query)
                task = asyncio.create_task(cascade.ask(query.messages, "q", deliver=deliver if streamed else None))
                while not server.requests:
                    await asyncio.sleep(0.01)
                task.cancel()
                await asyncio.wait([task])
        return expected

    calls = []
    expected = asyncio.run(main())
    assert [(call.cost, call.estimated, call.attempts) for call in calls] == [(pytest.approx(MEAN), True, 1)]
    assert expected >= (MEAN if content else 0)


def test_what_came_back_costs_the_mean_streamed_or_not():
    costs = {
        (name, way): booked(whats[way], streamed=bool(way)) for name, whats in CHARGED.items() for way in (False, True)
    }
    assert {case: cost for case, cost in costs.items() if cost != (pytest.approx(MEAN), (True,))} == {}


def test_tokens_reported_before_a_stream_broke_off_count():
    usage = {"prompt_tokens": 100, "completion_tokens": 1}
    events = [{**event, "usage": usage} for event in events_of(completion("A"))[:2]]
    assert booked(Response(events, hang=True), streamed=True) == (pytest.approx((100 * 3 + 15) / 1e6), (False,))


EIGHT = "12345678" * 4  # tokens: 32 bytes
SAID = completion(f"{EIGHT} {EIGHT}")
TOOL = {"name": "look", "parameters": {}}
ASKING = {
    "/v1/chat/completions": (
        lambda prompt: {"messages": [{"role": "user", "content": prompt}]},
        {"tools": [{"type": "function", "function": TOOL}]},
    ),
    "/v1/responses": (lambda prompt: {"input": prompt}, {"tools": [{"type": "function", **TOOL}]}),
}

#: What a server does, and the tokens of its answer by what came of it, whole and streamed; None: it costs nothing.
#: A whole answer that nobody waits for has 500, until the model has told what it writes as a rule.
UNTOLD = {
    "refused": (broken(400), None, None),
    "no usage": (Response(SAID | {"usage": None}), 17, 17),
    "zeros": (Response(SAID | {"usage": {"prompt_tokens": 0, "completion_tokens": 0}}), 17, 17),
    "breaks off": (Response(events_of(SAID)[:2], hang=True), 0, 9),
    "an error in the stream": (Response([*events_of(SAID)[:3], ERROR]), 0, 17),
    "the client leaves": (Response([*events_of(SAID)[:3], *[b": wait\n\n"] * 600], pause=0.02), 500, 17),
}


def leave(service, body, path):
    """Ask, read no more than the first chunks of an answer, and be gone."""
    before = len(service.server.requests)
    with contextlib.closing(http.client.HTTPConnection(service.url.removeprefix("http://"), timeout=30)) as connection:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response, came = connection.getresponse() if body["stream"] else None, b""
        while response is not None and came.count(EIGHT.encode()) < 2:
            came += response.read1(65_536)
        service.server.wait_for(before + 1)
    service.wait_until_idle()


@pytest.mark.parametrize("path", [*ASKING])
def test_an_answer_that_is_not_judged_costs_at_least_its_bytes(path):
    """By prices, as an estimate; a policy that follows its bill pays for what was asked by its name."""
    ladder = Ladder((make_policy(expected={"error": 0.1, "cost": 1e-4}),), 0.0, budget=1.0)
    prompts, (asking, tools), got, wanted = {f"{EIGHT}{name}": name for name in UNTOLD}, ASKING[path], {}, {}

    def behave(request, headers):
        return UNTOLD[prompts[request["messages"][0]["content"]]][0]

    with gateway(ladder, behave, limits={"retries": 0}) as service:
        cascade = service.app.state.gateway.catalog.policies["policy"].cascade
        for prompt, name in prompts.items():
            for stream, model in itertools.product((False, True), ("large", "policy")):
                before, more = cascade.billing.bill.balance, tools if model == "policy" else {}
                body = {"model": model, "stream": stream, **asking(prompt), **more}
                began = time.monotonic()
                leave(service, body, path) if "leaves" in name else service.post(body, path)
                waited = time.monotonic() - began
                row, said, case = service.log_rows()[-1], UNTOLD[name][1 + stream], (name, stream, model)
                read = -(-(len(prompt) + len(json.dumps(ASKING["/v1/chat/completions"][1]["tools"])) * bool(more)) // 4)
                cost = 0.0 if said is None else (3 * read + 15 * said) / 1e6
                paid = before + 1.0 - cascade.billing.bill.balance if more else cost
                got[case] = row["cost"], paid, row["estimated"]
                assert min(row["cost"], paid) >= cost - 1e-12
                # A whole answer that breaks off costs what a model writes meanwhile.
                within = 15 * (waited * RATE + 1) / 1e6 if case[:2] == ("breaks off", False) else 1e-12
                wanted[case] = pytest.approx(cost, abs=within), pytest.approx(cost, abs=within), said is not None
        page = service.get("/metrics").body.decode()
    assert got == wanted
    for name in ("large", "policy"):
        counted = page.partition(f'rcjax_request_cost_total{{policy="{name}"}} ')[2].split()[0]
        assert float(counted) == pytest.approx(sum(cost for case, (cost, _, _) in got.items() if case[-1] == name))


def test_votes_that_never_came_have_no_part_in_the_mean():
    replies = [Response(completion("A", usage=None)), broken(400), broken(400)]
    voting = voting_policy()
    alone = {"models": ("small",), "rules": {"small": (Rule(1.0, "answer"),)}, "cost": {"small": 3e-5}}
    last = replace(voting, calibrations={"small": voting.calibrations["small"]}, **alone)
    result, _ = ask(script(small=replies), policy=last, signal=signals.MeanLogprob(), retries=0)
    assert result.cost == pytest.approx(1e-5)  # one of three


def test_without_prices_a_lost_attempt_costs_the_mean_as_its_retry_does():
    unpriced = replace(alone(), prices=None)
    replies = script(large=[LOST["reset at once"], Response(completion("A"))])
    result, server = ask(replies, "A or B?", policy=unpriced, retries=1)
    assert (result.text, len(server.requests)) == ("A", 2)
    assert (result.cost, result.calls[0].estimated) == (pytest.approx(2 * MEAN), True)


def test_without_prices_a_lost_second_question_costs_no_more_than_a_whole_call():
    def behave(request, headers):
        return Response(completion("A")) if len(request["messages"]) == 1 else Response([], hang=True)

    unpriced = replace(alone(), prices=None)
    asked = {"signal": signals.Verification(), "shadow": 1.0}  # else nobody asks for the confidence
    result, server = ask(behave, "A or B?", policy=unpriced, retries=0, **asked)
    assert (result.text, len(server.requests)) == ("A", 2)
    assert result.cost == pytest.approx(MEAN)


def test_a_call_is_paid_and_logged_where_its_warnings_are_exceptions(tmp_path):
    """The server reports a cost in place of the price, which is worth a warning; the query then fails by it."""
    ladder = Ladder((replace(alone(), expected={"error": 0.1, "cost": MEAN}),), 0.0, budget=1.0)
    reply = completion("A", usage=(100, 1))
    reply = Response(reply | {"usage": reply["usage"] | {"cost": 0.02}})

    async def main():
        async with (
            serving(lambda request, headers: reply) as (_, client),
            make_cascade(ladder, client, signal=signals.Choice(), log=log, observe=calls.append) as cascade,
        ):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                with pytest.raises(CascadeWarning, match="reports the cost of each call"):
                    await cascade.ask("A or B?")
            return cascade.billing.balance

    calls = []
    with CallLog(tmp_path / "calls.jsonl") as log:
        assert asyncio.run(main()) == pytest.approx(1.0 - 0.02)
    assert [call.cost for call in calls] == [0.02]
    assert json.loads((tmp_path / "calls.jsonl").read_text())["cost"] == 0.02
