"""Policies of whose log several answers of a model voted: who is asked, what is paid, what is logged, what fails."""

import asyncio
import json
import math
import threading
import warnings

import pytest
from helpers.chat_server import Response, completion, serving, sure
from helpers.gateway_service import PRICES, make_policy
from helpers.scripted_cascade import make_cascade

from rcjax._base.tokens import Price
from rcjax.policy import Policy, Rule, signals
from rcjax.policy.signals.signal import describe_difference, record_signal
from rcjax.serving.call_log import CallLog, Query
from rcjax.serving.endpoints import Endpoint, LoggedNormaliser, separate_votes
from rcjax.serving.exchange import Exchange, ModelCaller
from rcjax.serving.failures import CascadeWarning
from rcjax.serving.models_file import ServedModel
from rcjax.serving.usage import AnswerMeans, CallUsage

MONEY = {name: ServedModel(name, name, Price(*price)) for name, price in PRICES.items()}


def votes(compare="text", **more):
    """How a log with three answers to a query says that small was asked."""
    return {
        "request_settings": {"small": {"signal": "votes", "samples": 3, "separate": True, "compare": compare, **more}}
    }


def voting_policy(threshold=0.5, **changes) -> Policy:
    """small → large, where a share of one half or less of three answers is too little."""
    plain = make_policy().calibrations["small"]
    names = "small", "large"
    cut = 1 / (1 + math.exp(-(2 + 4 * math.log(threshold))))
    parts = {
        "models": names,
        "calibrations": dict.fromkeys(names, plain),
        "rules": {"small": (Rule(cut, "ask", "large"), Rule(1.0, "answer")), "large": (Rule(1.0, "answer"),)},
        "cost": {"small": 3e-5, "large": 3e-4},
        "provenance": votes(),
    }
    return Policy(**{**parts, **changes})


class Upstream:
    """Answers of small, one after the other; large says that it is large."""

    def __init__(self, *texts):
        self.texts, self.lock = list(texts), threading.Lock()

    def __call__(self, request, headers):
        if "large" in request["model"]:
            return Response(sure("B", -0.1))
        with self.lock:
            text = self.texts.pop(0)
        return text if isinstance(text, Response) else Response(completion(text, usage=(100, 10)))


BROKEN = Response({"error": {"message": "x"}}, status=400)


def ask(*texts, policy=None, log=None, **options):
    """(result, the requests) of one question to a cascade whose small model says these texts."""

    async def main():
        options.setdefault("signal", signals.Choice())
        asked = policy or voting_policy()
        models = {name: MONEY[name] for name in asked.models}
        async with (
            serving(Upstream(*texts)) as (server, client),
            make_cascade(asked, client, models=models, retries=0, log=log, **options) as cascade,
        ):
            return await cascade.ask("Which planet is largest?", "q1"), server.requests

    return asyncio.run(main())


@pytest.mark.parametrize(("samples", "n"), [(3, 1), (1, 3), (3, 2)])
def test_reservations_and_estimates_count_each_answer_once(samples, n):
    """Three votes or three choices: the mean cost and the tokens of a call are those of all of them."""

    def behave(request, headers):
        reply = completion("Mars", usage=(100, 300 * n))
        return Response({**reply, "choices": [{**reply["choices"][0], "index": index} for index in range(n)]})

    async def main():
        signal = signals.Votes(samples, separate=True) if samples > 1 else signals.Votes(n)
        async with serving(behave) as (_, client):
            price, mean = Price(0, 10), 1e-5 * 200 * samples * n
            endpoint = Endpoint(client, "small", signal, {"n": n}, price, mean, samples)
            model_caller = ModelCaller({"small": endpoint}, None, 9)
            query, history = Query("q", [{"role": "user", "content": "?"}]), []
            expected = [model_caller.estimate_cost(query, "small")]
            for _ in range(50):
                await model_caller.call(query, "small", None, history)
            expected.append(model_caller.estimate_cost(query, "small"))
            cancelled = CallUsage(unanswered=samples, unfinished=samples)
            expected.append(endpoint.price_call(cancelled, 0.0, model_caller._means["small"], {}).cost)
            await model_caller.close()
        return [cost / (1e-5 * samples * n) for cost in expected]

    assert asyncio.run(main()) == [pytest.approx(200), *[pytest.approx(298, abs=1.0)] * 2]


def test_reservations_cover_second_questions_checks_and_schemas():
    """A second question repeats the question and the answer; a check costs what earlier checks have cost."""
    query, means = Query("q", [{"role": "user", "content": "x" * 400}]), AnswerMeans()
    options = {"max_tokens": 50, "n": 1}

    def estimate(signal, mean_cost=None, needs_confidence=True, **more):
        endpoint = Endpoint(None, "m", signal, options | more, Price(1, 10), mean_cost)
        return 1e6 * endpoint.estimate_cost(query.with_handling(needs_confidence=needs_confidence), means)

    alone = estimate(None)
    assert alone == pytest.approx(100 + 500)
    assert estimate(signals.Verification()) == pytest.approx(alone + 100 + 50 + 80 + 10)
    assert estimate(signals.Verification(), needs_confidence=False) == pytest.approx(alone)
    assert estimate(signals.Stated()) == pytest.approx(alone + 100 + 50 + 80 + 100)
    assert estimate(signals.Stated(question=None)) == pytest.approx(alone)
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": ["y" * 396]}}}
    assert estimate(None, response_format=schema) == pytest.approx(alone + 100 + 20, abs=10)
    check = signals.ReplyCheck("python:checks:judge")
    assert estimate(check, 0.01) == pytest.approx(10_000)  # no check has told its cost: the mean of the log has it
    means.add_check(0.002)
    assert estimate(check, 0.01) == pytest.approx(alone + 2_000)


def test_a_call_that_is_cancelled_ends_after_its_votes():
    """It was logged and paid as soon as its first vote had ended, and the others still held slots and connections."""

    async def main():
        under_way = []

        async def send(request, usage):
            under_way.append(turns := 5 * len(under_way))
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(turns):  # as long as a connection takes to be closed
                    await asyncio.sleep(0)
                under_way.remove(turns)

        endpoint = Endpoint(None, "small", signals.Votes(3, separate=True), {}, Price(1, 10), None, 3)
        exchange = Exchange(Query("q", [{"role": "user", "content": "?"}]), "small", endpoint)
        asking = asyncio.create_task(exchange.run(send, send, None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(under_way) == 3
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        return under_way

    assert asyncio.run(main()) == []


def test_a_model_is_asked_several_times_and_the_most_common_answer_is_kept():
    result, requests = ask("Mars", "Jupiter.", " jupiter ")
    assert [request["model"] for request in requests] == ["small"] * 3
    assert all("n" not in request and "temperature" not in request for request in requests)
    assert (result.status, result.model) == ("answered", "small")
    assert result.text.strip().lower().startswith("jupiter")
    assert result.answer == result.text  # as labels are compared with it
    (call,) = result.calls
    assert call.logprob == pytest.approx(math.log(2 / 3))
    assert result.cost == pytest.approx(3 * (100 * 0.1 + 10 * 0.4) / 1e6)
    assert (call.attempts, call.input_tokens, call.output_tokens) == (3, 300, 30)
    assert result.usage["total_tokens"] == 330


def test_answers_of_choices_are_letters():
    plain = voting_policy().calibrations["small"]
    calibration = type(plain)("choice", 2.0, 4.0, 0.0, 9.0)
    policy = voting_policy(calibrations=dict.fromkeys(("small", "large"), calibration), provenance=votes("choice"))
    result, _ = ask("(B)", "A", "The answer is B.", policy=policy)
    assert (result.model, result.answer, result.text) == ("small", "b", "(B)")


def test_a_sample_that_fails_leaves_no_confidence():
    with pytest.warns(CascadeWarning, match="the reply has 2 of 3 samples: the others failed"):
        result, _ = ask("Mars", BROKEN, "Mars")
    assert result.model == "large"
    assert "2 of 3 samples" in result.calls[0].error
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is read where nothing came
        result, _ = ask(BROKEN, BROKEN, BROKEN)
    assert result.calls[0].error.startswith("HTTP 400")
    calibration = voting_policy().calibrations["small"]
    rules = {"small": (Rule(1.0, "answer"),)}
    last = Policy(("small",), {"small": calibration}, rules, {"small": 3e-5}, provenance=votes())
    with pytest.warns(CascadeWarning):
        result, _ = ask("Mars", BROKEN, "Venus", policy=last)
    assert (result.status, result.text) == ("answered", "Mars")


def test_records_tell_the_votes_and_make_the_signal_again(tmp_path):
    with CallLog(tmp_path / "calls.jsonl") as log:
        ask("a", "a", "b", log=log)
    (row,) = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert row["model"] == "small"
    record = json.loads(row["request_settings"])
    assert {name: record[name] for name in ("signal", "samples", "separate", "compare")} == {
        "signal": "votes", "samples": 3, "separate": True, "compare": "text",
    }  # fmt: skip
    again = separate_votes(record)
    assert again.normalise == LoggedNormaliser("text")
    assert describe_difference(record, again) is None
    assert record_signal(signals.Votes()) == {"signal": "votes", "samples": 5, "temperature": 0.7}
    asked = {"request_settings": {"small": record, "large": {"signal": "mean"}}}
    result, _ = ask("a", "a", "b", policy=voting_policy(provenance=asked), signal=None)
    assert result.answer == "a"


def planet(answer):
    return next((name for name in ("mars", "venus") if name in answer.lower()), "")


def test_keys_are_made_by_the_users_function():
    policy = voting_policy(provenance=votes("key"))
    with pytest.raises(ValueError, match="signal of small: the policy was tuned on votes, which runs code, so the"):
        ask(policy=policy, signal={"large": signals.MeanLogprob()})
    keyed = {"small": signals.Votes(3, None, planet, separate=True), "large": signals.MeanLogprob()}
    said = "It is Mars!", "venus, I think", "mars of course"
    result, requests = ask(*said, policy=policy, signal=keyed)
    assert (result.model, result.text, result.answer) == ("small", "It is Mars!", "mars")
    assert result.calls[0].logprob == pytest.approx(math.log(2 / 3))
    assert len(requests) == 3
    assert ask(*said, policy=voting_policy())[0].model == "large"  # as texts, no two are equal
    result, _ = ask("Pluto", "Ceres", "Mars", policy=policy, signal=keyed)
    assert (result.model, result.calls[0].logprob) == ("large", pytest.approx(math.log(1 / 3)))
    with pytest.warns(CascadeWarning, match="model small: its confidence cannot be read: no sample has an"):
        assert ask("Pluto", "Ceres", "Eris", policy=policy, signal=keyed)[0].model == "large"
