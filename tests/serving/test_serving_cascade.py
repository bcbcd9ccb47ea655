"""A cascade against a real server on loopback: who is asked, what fails and how, money, secrets."""

import asyncio
import json
import math
import subprocess
import sys
import warnings

import numpy as np
import polars as pl
import pytest
from helpers.chat_server import KEY, Response, completion, serving, sure
from helpers.gateway_service import MODELS, SURE, UNSURE
from helpers.policy_samples import make_ladder
from helpers.scripted_cascade import POLICY, QUICK, ask, broken, cascade_policy, good, make_cascade, script

import rcjax
from rcjax._base.extras import how_to_install
from rcjax.logs import NoConfidenceWarning
from rcjax.policy import Agreement, Policy, Rule, signals
from rcjax.serving.billing import SharedBill
from rcjax.serving.call_log import CallLog, CascadeError, call_row, has_failed
from rcjax.serving.cascade import Cascade
from rcjax.serving.failures import CascadeWarning
from rcjax.serving.models_file import ServedModel

SECRETS = (KEY, "bearer", "the prompt", "quoted by the server")


def asked(server):
    return [request["model"] for request in server.requests]


# Who is asked


def test_a_ladder_gives_each_query_to_one_rung():
    shared = (POLICY.calibrations, POLICY.rules, POLICY.cost, POLICY.prices)
    large = Policy(("large",), *({"large": by_model["large"]} for by_model in shared))
    ladder = make_ladder((POLICY, large), 0.5)
    behave = script(small=good("A", SURE), middle=good("A", SURE), large=good("B", SURE))

    async def main():
        async with serving(behave) as (_, client):
            cascade = make_cascade(ladder, client, signal=signals.Choice(), shadow=0.5)
            pairs = [(i, "?") for i in range(40)]
            many = [await cascade.ask_all(each) for each in (pairs, pairs, [("session-1", f"{i}?") for i in range(40)])]
            return [[(result.model, result.query.handling.is_shadow_query) for result in results] for results in many]

    lots, again, one_id = asyncio.run(main())
    assert lots == again  # retries go by the same rung
    for drawn in (lots, one_id):  # a client that gives one id to all that it asks does not choose
        assert 8 < sum(model == "large" for model, _ in drawn) < 32
        assert 8 < sum(shadow for _, shadow in drawn) < 32


def test_requests_hold_what_signal_and_options_ask_for():
    options = {
        "options": {"max_tokens": 1, "seed": 5},
        "models": {
            "small": ServedModel("small", "org/small-1b"),
            "large": ServedModel("large", "large", options={"max_tokens": 3, "top_logprobs": 5}),
        },
    }
    behave = script(**{"org/small-1b": good("A", UNSURE), "middle": good("A", UNSURE), "large": good("A", SURE)})
    result, server = ask(behave, **options)
    first, _, last = server.requests
    assert first["messages"] == [{"role": "user", "content": "the prompt"}]
    assert (first["logprobs"], first["top_logprobs"], first["max_tokens"], first["seed"]) == (True, 20, 1, 5)
    assert (last["max_tokens"], last["top_logprobs"]) == (3, 5)
    assert result.calls[0].upstream_model == "org/small-1b"
    assert result.calls[0].model == "small"


def test_conversations_and_clients_and_signals_by_model():
    conversation = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "?"}]

    async def main():
        behave = script(small=good("A", UNSURE), middle=good("A", UNSURE))
        other = script(large=Response(completion("Confidence: 80%")))
        async with serving(behave) as (one, client), serving(other) as (two, second):
            cascade = Cascade(
                POLICY,
                {"small": client, "middle": client, "large": second},
                signal={**dict.fromkeys(MODELS, signals.Choice()), "large": signals.Stated(question=None)},
            )
            return await cascade.ask(conversation, "q1"), one, two

    result, one, two = asyncio.run(main())
    assert asked(one) == ["small", "middle"]
    assert asked(two) == ["large"]
    assert two.requests[0]["messages"] == conversation
    assert result.calls[-1].logprob == pytest.approx(math.log(0.8))


# Failures


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (broken(500), "HTTP 500"),
        (broken(400, code="context_length_exceeded"), "HTTP 400 (context_length_exceeded)"),
        (broken(401, code="invalid_api_key"), "HTTP 401 (invalid_api_key)"),
        (broken(404, code=f"not {KEY}", type="model_not_found"), "HTTP 404 (model_not_found)"),
        (Response(b"<html>the prompt", status=502, headers=QUICK), "HTTP 502"),
        (Response({}, hang=True), "no connection"),
        (Response(b"not json: the prompt"), "malformed answer: not a JSON object"),
        (Response(b""), "malformed answer: not a JSON object"),
        (Response({}), "malformed answer: no choices"),
        (Response(completion("A", choices=[])), "malformed answer: no choices"),
        (Response({"error": {"message": "the prompt", "code": 429}}), "an error in place of an answer (429)"),
        (Response(completion(None)), "an answer without text (finish_reason stop)"),
        (Response(completion("A", choices=[{"message": "x"}])), "malformed answer: no message"),
        (Response(completion("A")), "the reply has no log-probabilities: use"),
        (Response(completion("Well", [("Well", {"Well": -0.1})])), "none of the choices A, B, C, D is among"),
    ],
)
@pytest.mark.filterwarnings("ignore::rcjax.serving.failures.CascadeWarning")
def test_a_model_that_fails_is_skipped_upward(response, error, tmp_path):
    with CallLog(tmp_path / "calls.jsonl") as log:
        result, server = ask(script(small=response, middle=good("B", SURE)), retries=0, log=log)
    assert asked(server) == ["small", "middle"]
    assert (result.status, result.model) == ("answered", "middle")
    failed, answered = result.calls
    assert failed.error.startswith(error)
    assert (failed.logprob, failed.answer, answered.error) == (None, None, None)
    assert result.problem.startswith(f"query q1: some models failed: small: {error}")
    written = (tmp_path / "calls.jsonl").read_text()
    assert [json.loads(line)["error"] for line in written.splitlines()] == [failed.error, None]
    assert not any(secret in written + result.problem for secret in SECRETS)


def test_no_retry_waits_beyond_the_time_of_its_call():
    """The next model is asked at once; the last one fails with the wait that the server asks for."""
    limited = Response({"error": {}}, status=429, headers={"retry-after": "35"})
    result, server = ask(script(small=limited, middle=good("A", SURE)), asking={"deadline": 64.0})
    assert asked(server) == ["small", "middle"]
    assert (result.calls[0].error, result.calls[0].attempts) == ("HTTP 429", 1)
    error, _ = ask(script(small=limited, middle=limited, large=limited), asking={"deadline": 30.0})
    assert error.result.failure.retry_after == 35.0


def test_retries_wait_as_long_as_the_server_says_and_are_counted():
    limited = Response({"error": {}}, status=429, headers={"retry-after-ms": "1200"})
    result, server = ask(script(small=[limited, broken(503), good("A", SURE)]))
    (call,) = result.calls
    assert (call.attempts, call.error, len(server.requests)) == (3, None, 3)
    assert call.seconds > 1.2
    result, server = ask(script(small=broken(500), middle=good("A", SURE)), retries=1)
    assert [call.attempts for call in result.calls] == [2, 1]
    assert result.calls[0].error == "HTTP 500"


def test_a_request_that_backs_off_holds_up_no_other():
    limited = [Response({"error": {}}, status=429, headers={"retry-after": "3"}), good("A", SURE)]

    def behave(request, headers):
        return limited.pop(0) if "limited" in str(request["messages"]) else good("A", SURE)

    async def main():
        async with (
            serving(behave) as (server, client),
            make_cascade(POLICY, client, signal=signals.Choice(), concurrency=1) as cascade,
        ):
            waiting = asyncio.create_task(cascade.ask("limited"))
            while not server.requests:
                await asyncio.sleep(0.01)
            async with asyncio.timeout(2.0):
                await cascade.ask("other")
            return (await waiting).calls[0].attempts, server.busiest

    assert asyncio.run(main()) == (2, 1)


def test_where_the_largest_fails_the_surest_answer_so_far_counts():
    behave = script(small=good("A", math.log(0.55)), middle=good("B", UNSURE), large=broken(400))
    result, _ = ask(behave)
    assert (result.status, result.answer, result.model) == ("best so far", "A", "small")
    assert [call.model for call in result.calls] == list(MODELS)
    assert "large: HTTP 400" in result.problem


def test_where_all_fail_there_is_one_clear_error_without_secrets():
    error, _ = ask(script(small=broken(400), middle=broken(403), large=Response(b"")))
    assert isinstance(error, CascadeError)
    assert str(error) == (
        "query q1: no model answered: small: HTTP 400 (attempts: 1); middle: HTTP 403 (attempts: 1); "
        "large: malformed answer: not a JSON object (attempts: 1)"
    )
    assert error.__cause__ is None
    assert error.__context__ is None
    assert error.result.status == "failed"
    assert not any(secret in str(error) + repr(error.result) for secret in SECRETS)


def test_a_model_that_always_answers_needs_no_confidence():
    with pytest.warns(CascadeWarning, match="model large: its confidence cannot be read: the reply has no log-prob"):
        result, _ = ask(script(small=good("A", UNSURE), middle=good("A", UNSURE), large=Response(completion("C"))))
    assert (result.status, result.text, result.confidence) == ("answered", "C", None)
    assert result.answer is None


def test_an_answer_without_a_confidence_goes_by_the_rules_and_is_learnt_from(tmp_path):
    skipping = {**POLICY.rules, "small": (Rule(0.5, "ask", "large"), Rule(1.0, "answer"))}
    others, log = {"middle": good("A", SURE), "large": good("B", SURE)}, CallLog(tmp_path / "calls.jsonl")
    how = {"policy": cascade_policy(rules=skipping), "log": log, "shadow": 1.0}
    ask(script(small=good("A", SURE), **others), "another prompt", query="q1", **how)
    with pytest.warns(CascadeWarning, match="cannot be read"):
        result, server = ask(script(small=Response(completion("?")), **others), query="q2", **how)
    log.close()
    assert (asked(server)[:2], result.text) == (["small", "large"], "B")
    assert POLICY.step("small", logprob=None).next_model == "middle"
    labels = pl.DataFrame({"query": ["q1", "q2"], "answer": ["A", "B"]})
    with pytest.warns(NoConfidenceWarning, match=r"1 answer of small \(right: 0 of 1\)"):
        learnt = rcjax.read_log(tmp_path / "calls.jsonl", labels=labels, task="choice")
    assert (learnt.n_queries, learnt.complete.all()) == (2, True)
    assert (np.asarray(learnt.query_cost) > 0).all()


def test_a_confidence_that_cannot_be_read_warns_once_a_model():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ask(script(small=Response(completion("A")), middle=good("B", SURE)), times=5)
    assert len([each for each in caught if each.category is CascadeWarning]) == 1


# Second questions


def verified(probability):
    top = {"Y": math.log(probability), "N": math.log1p(-probability)}
    return Response(completion("Y", [("Y", top)], usage=(200, 1)))


def test_a_verification_is_part_of_the_call_and_of_its_cost():
    behave = script(small=[Response(completion("Paris", usage=(100, 10))), verified(0.8)])
    result, server = ask(
        behave, signal=signals.Verification(), options={"max_tokens": 50, "extra_body": {"route": "x"}}
    )
    first, second = server.requests
    assert "Paris" in second["messages"][0]["content"]
    assert (first["max_tokens"], second["max_tokens"], second["logprobs"]) == (50, 1, True)
    assert first["route"] == second["route"] == "x"
    (call,) = result.calls
    assert (call.input_tokens, call.output_tokens, call.attempts) == (300, 11, 2)
    assert result.cost == pytest.approx((300 * 0.1 + 11 * 0.4) / 1e6, rel=1e-15)
    assert call.signal_cost == call_row(call)["signal_cost"] == pytest.approx((200 * 0.1 + 0.4) / 1e6)
    assert (result.text, call.logprob) == ("Paris", pytest.approx(math.log(0.8)))


def test_the_means_of_answers_are_without_second_questions():
    """An answer of ten tokens and its verification of 90 counted as an answer of 100 tokens."""
    second = Response(completion("Y", [("Y", {"Y": SURE})], usage=(200, 90)))

    async def main():
        behave = script(small=[Response(completion("Paris", usage=(100, 10))), second])
        async with (
            serving(behave) as (_, client),
            make_cascade(POLICY, client, signal=signals.Verification()) as cascade,
        ):
            before = cascade._model_caller._means["small"].tokens
            await cascade.ask("Capital?")
            return before, cascade._model_caller._means["small"].tokens

    before, after = asyncio.run(main())
    assert after == pytest.approx((before + 10) / 2)


def test_a_verification_that_fails_leaves_the_answer_and_its_cost():
    behave = script(
        small=[Response(completion("Paris", usage=(100, 10))), broken(400)], middle=broken(400), large=broken(400)
    )
    with pytest.warns(CascadeWarning, match="model small: its confidence cannot be read: the second question: HTTP 4"):
        result, _ = ask(behave, signal=signals.Verification())
    assert (result.status, result.text) == ("best so far", "Paris")
    assert result.calls[0].error == "the second question: HTTP 400"
    # An answer that a user gets is no failed call.
    assert [has_failed(call_row(call)) for call in result.calls] == [False, True, True]
    assert result.cost == pytest.approx((100 * 0.1 + 10 * 0.4) / 1e6)


def test_the_question_about_a_reply_with_half_a_character_is_sent():
    """HTTPX cannot encode a lone surrogate: the answer had no confidence, though `rcjax collect` gave it one."""
    behave = script(small=[Response(completion("half \ud83d", usage=(100, 10))), verified(0.8)])
    result, server = ask(behave, signal=signals.Verification())
    assert "half ?" in server.requests[1]["messages"][0]["content"]
    assert (result.status, result.text, len(server.requests)) == ("answered", "half \ud83d", 2)


def test_second_questions_take_slots_and_wait_no_longer_than_their_call():
    """Eight of them were in flight with two slots, and one backed off until the time of its call was up."""
    limited = Response({"error": {}}, status=429, headers={"retry-after": "35"})
    behave = script(small=[Response(completion("Paris")), limited], middle=broken(400), large=broken(400))
    result, _ = ask(behave, signal=signals.Verification(), asking={"deadline": 64.0})
    assert result.calls[0].error == "the second question: HTTP 429"

    def slow(request, headers):
        is_second = "Proposed answer" in str(request["messages"])
        return Response(completion("Paris"), delay=0.1 * is_second)

    async def main():
        async with (
            serving(slow) as (server, client),
            make_cascade(POLICY, client, signal=signals.Verification(), concurrency=2) as cascade,
        ):
            await asyncio.gather(*(cascade.ask("Capital?") for _ in range(8)))
            return server.busiest

    assert asyncio.run(main()) == 2


def test_a_request_that_was_never_sent_costs_nothing():
    failed, _ = ask(script(), "half \ud83d")
    assert [(call.error, call.cost, call.estimated) for call in failed.result.calls] == [
        ("the client failed: UnicodeEncodeError", 0.0, False)
    ] * 3


class Own(signals.Verification):
    """A user's own signal, which may need the second reply for the answer itself."""


KEPT = (Rule(1, "answer"),)


@pytest.mark.parametrize(
    ("signal", "rules", "agreements", "requests"),
    [
        (signals.Verification(), KEPT, {}, ["small", "small", "middle"]),
        (signals.Stated(), KEPT, {}, ["small", "small", "middle"]),
        (Own(), KEPT, {}, ["small", "small", "middle", "middle"]),
        (
            signals.Verification(),
            (Rule(0.01, "abstain"), Rule(1, "answer")),
            {},
            ["small", "small", "middle", "middle"],
        ),
        (signals.Verification(), KEPT, {"middle": Agreement("small", "large")}, ["small", "small", "middle", "middle"]),
    ],
    ids=["kept", "kept, stated", "own signal", "may abstain", "compared"],
)
def test_a_second_question_is_asked_where_the_confidence_may_decide(signal, rules, agreements, requests):
    def behave(request, headers):
        text = request["messages"][-1]["content"]
        if "How likely" in text:
            return Response(completion("10%"))
        return verified(0.1) if "Is the proposed" in text else Response(completion("Paris", usage=(100, 10)))

    policy = cascade_policy(rules={**POLICY.rules, "middle": rules}, agreements=agreements)
    result, server = ask(behave, signal=signal, policy=policy)
    assert (asked(server), result.calls[-1].answer) == (requests, "Paris")
    last = result.calls[-1]
    assert (last.signal_cost > 0) == (last.logprob is not None) == (len(requests) == 4)


# Money


def test_without_the_client_the_error_says_what_to_install():
    program = "import sys; sys.modules['openai'] = None\nimport rcjax.serving.cascade"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    said = result.stderr.strip()
    assert said.endswith(f"running a cascade needs the client of OpenAI: {how_to_install('run')}")


# Programs of the user's: what they raise costs no answer and no line of the log


def fail(_):
    raise RuntimeError("s3cret")


async def fail_to_deliver(_):
    fail(_)


def test_a_failing_observer_is_a_warning(tmp_path):
    says = "observe= failed, .* RuntimeError in test_serving_cascade.py"
    with CallLog(tmp_path / "calls.jsonl") as log, pytest.warns(CascadeWarning, match=says) as warned:
        result, _ = ask(script(small=good("A", SURE)), observe=fail, log=log)
    rows = (tmp_path / "calls.jsonl").read_text().splitlines()
    assert (result.status, result.text, len(rows)) == ("answered", "A", 1)
    assert "s3cret" not in str([one.message for one in warned])


def test_a_call_is_paid_for_though_its_report_fails(tmp_path, monkeypatch):
    paid, pay = [], SharedBill.pay
    monkeypatch.setattr(SharedBill, "pay", lambda bill, calls, *rest: paid.extend(calls) or pay(bill, calls, *rest))
    with CallLog(tmp_path / "calls.jsonl") as log, warnings.catch_warnings():
        warnings.simplefilter("error", CascadeWarning)
        monkeypatch.setattr(log, "write", fail)
        with pytest.raises(CascadeWarning, match="calls are not logged"):
            ask(script(small=good("A", SURE)), log=log)
    assert [call.model for call in paid] == ["small"]


def test_an_observer_gets_the_calls_that_a_shadow_query_adds():
    calls = []
    ask(lambda request, headers: good("A", SURE), shadow=1.0, observe=calls.append)
    assert all(call.query.handling.is_shadow_query for call in calls)
    assert {call.model for call in calls if call.query.handling.is_beyond_policy} == {"middle", "large"}


def test_no_answer_waits_for_shadow_calls_and_only_so_many_shadow_queries_are_under_way():
    stuck, outcomes = Response(sure("A", SURE), delay=600.0), []

    async def main():
        async with serving(script(small=good("A", SURE), middle=stuck, large=stuck)) as (server, client):
            slots = {"concurrency": 1, "timeout": 600.0, "shadow": 1.0, "observe_shadow": outcomes.append}
            cascade = make_cascade(POLICY, client, signal=signals.Choice(), **slots)
            async with asyncio.timeout(60):
                first = await cascade.ask("?", "q0")
                while len(server.requests) < 2:  # a shadow call is under way
                    await asyncio.sleep(0.01)
                drawn = [first, *[await cascade.ask("?", f"q{i}") for i in range(1, 16)]]
                with pytest.warns(CascadeWarning, match="16 shadow queries are under way") as warned:
                    left_out = [await cascade.ask("?", f"q{i}") for i in range(16, 20)]
            assert all(result.query.handling.is_shadow_query for result in drawn)
            assert not any(result.query.handling.is_shadow_query for result in left_out)
            assert outcomes == ["asked"] * 16 + ["no slot"] * 4
            assert [each.category for each in warned].count(CascadeWarning) == 1
            assert asked(server) == ["small", "middle", *["small"] * 19]

    asyncio.run(main())


def test_shadow_queries_are_drawn_again_once_others_have_ended():
    async def main():
        async with (
            serving(lambda request, headers: good("A", SURE)) as (_, client),
            make_cascade(POLICY, client, signal=signals.Choice(), concurrency=1, shadow=1.0) as cascade,
        ):
            return await cascade.ask_all([(i, "?") for i in range(20)])

    assert all(result.query.handling.is_shadow_query for result in asyncio.run(main()))


def test_a_failing_receiver_of_chunks_is_a_warning(tmp_path):
    behave = script(small=good("B", UNSURE), middle=good("B", UNSURE), large=Response(completion("one two three")))
    with (
        CallLog(tmp_path / "calls.jsonl") as log,
        pytest.warns(CascadeWarning, match="deliver= failed: RuntimeError in test_serving_cascade.py"),
    ):
        result, _ = ask(behave, log=log, asking={"deliver": fail_to_deliver})
    assert (result.status, result.text) == ("answered", "one two three")
    rows = map(json.loads, (tmp_path / "calls.jsonl").read_text().splitlines())
    assert [row["model"] for row in rows] == ["small", "middle", "large"]


def test_where_no_model_was_asked_the_error_says_so():
    late = Response(sure("A", SURE), delay=30)
    error, _ = ask(lambda request, headers: late, query="q", retries=0, asking={"deadline": 1e-9})
    assert isinstance(error, CascadeError)
    assert str(error) == "query q: no model could answer in time"
