"""A query with options and a deadline of its own, and an answer that comes in chunks."""

import asyncio
import math
import time

import pytest
from helpers import scripted_cascade
from helpers.chat_server import Response, completion, serving, sure
from helpers.gateway_service import SURE, UNSURE
from helpers.scripted_cascade import POLICY, cascade_policy, good, script

from rcjax._base.tokens import Price
from rcjax.policy import signals
from rcjax.serving.call_log import Query
from rcjax.serving.endpoints import Endpoint
from rcjax.serving.exchange import _MAX_HELD_CHUNKS, AnswerChunk, ChunkForwarder, ModelCaller
from rcjax.serving.usage import AnswerMeans


def ask(behave, *, signal=None, policy=POLICY, chunks=False, **asking):
    """(result or error, the server, the chunks that were delivered); `asking` are arguments of `ask`."""
    delivered = []

    async def deliver(chunk):
        delivered.append(chunk)

    asking["deliver"] = deliver if chunks else None
    how = {"policy": policy, "signal": signal, "options": {"max_tokens": 1}, "retries": 0, "asking": asking}
    return *scripted_cascade.ask(behave, **how), delivered


# Options


def test_a_querys_options_go_before_the_cascades_and_after_the_signals():
    options = {"max_tokens": 9, "seed": 3, "top_logprobs": 2, "logprobs": False, "extra_body": {"top_k": 1}}
    _, server, _ = ask(script(small=good("A", SURE)), options=options)
    (request,) = server.requests
    sent = {name: request[name] for name in ("max_tokens", "seed", "top_logprobs", "logprobs", "top_k")}
    assert sent == {"max_tokens": 9, "seed": 3, "top_logprobs": 20, "logprobs": True, "top_k": 1}


# Deadlines


def slow(seconds, letter="A", logprob=SURE):
    return Response(sure(letter, logprob), delay=seconds)


def test_a_model_that_hangs_leaves_half_of_the_time_to_larger_ones():
    result, _, _ = ask(script(small=slow(60), middle=slow(60), large=good("C", SURE)), deadline=12.0)
    assert (result.status, result.answer) == ("answered", "C")
    assert [call.error for call in result.calls] == ["timed out", "timed out", None]
    first, second, _ = (call.seconds for call in result.calls)  # half of what is left for each
    assert first > 5.9
    assert 2.0 < second < first


def test_where_time_is_up_the_surest_answer_so_far_counts():
    result, _, _ = ask(script(small=good("A", UNSURE), middle=good("B", UNSURE), large=slow(30)), deadline=10.0)
    assert (result.status, result.model) == ("best so far", "small")


def test_a_second_question_that_takes_too_long_leaves_the_answer():
    first, second = Response(completion("Paris")), Response(completion("Y"), delay=30)
    alone = cascade_policy(
        models=("small",),
        calibrations={"small": POLICY.calibrations["small"]},
        rules={"small": POLICY.rules["large"]},
        cost={"small": 1e-5},
    )
    asking = {"signal": signals.Verification(), "shadow": 1.0, "asking": {"deadline": 5.0}}  # the log needs it
    result, _ = scripted_cascade.ask(script(small=[first, second]), policy=alone, **asking)
    assert (result.status, result.text, result.calls[0].error) == (
        "answered",
        "Paris",
        "the second question: timed out",
    )


@pytest.mark.parametrize("deadline", [0, -1, math.nan, "soon"])
def test_an_invalid_deadline_is_refused(deadline):
    with pytest.raises((ValueError, TypeError), match="deadline"):
        ask(script(small=good("A", SURE)), deadline=deadline)


# Pieces


def test_the_answer_of_the_last_model_comes_in_chunks():
    behave = script(small=good("A", UNSURE), middle=good("B", UNSURE), large=good("C", SURE, (200, 7)))
    result, server, chunks = ask(behave, chunks=True)
    assert {chunk.model for chunk in chunks} == {"large"}
    assert [call.model for call in chunks[-1].calls] == ["small", "middle"]
    assert chunks.pop().chunk is None  # the end
    assert "".join(chunk.chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "C"
    assert [request.get("stream") for request in server.requests] == [None, None, True]
    assert (result.text, result.answer, result.calls[-1].logprob) == ("C", "C", pytest.approx(SURE))
    assert result.usage == {"prompt_tokens": 400, "completion_tokens": 9, "total_tokens": 409}


def test_a_first_text_after_many_empty_chunks_is_delivered():
    delivered = []

    async def deliver(chunk):
        delivered.append(chunk.chunk)

    async def main():
        delivery = ChunkForwarder(deliver, AnswerChunk("large", Query("q", ()), ()))
        for text in ["", *[""] * _MAX_HELD_CHUNKS, "Par", "is"]:
            await delivery.forward({"choices": [{"index": 0, "delta": {"content": text}}]})

    asyncio.run(main())
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in delivered) == "Paris"
    assert len(delivered) == _MAX_HELD_CHUNKS + 2


def test_a_model_is_not_blamed_for_a_client_that_reads_slowly():
    async def deliver(chunk):
        await asyncio.sleep(10.0)

    async def main():
        async with serving(script(m=good("A", SURE))) as (_, client):
            model_caller = ModelCaller({"m": Endpoint(client, "m", None, {}, Price(1, 10), None)}, None, 1)
            query = Query("q", [{"role": "user", "content": "?"}])
            return (await model_caller.call(query, "m", None, [], 1.0, deliver=deliver)).call

    call = asyncio.run(main())
    assert (call.text, call.error, call.failure_kind) == (None, "cancelled: the client reads too slowly", "cancelled")
    assert call.cost > 0


def test_a_slow_reader_and_a_wait_for_a_slot_do_not_slow_the_pace_of_a_model(monkeypatch):
    """By a clock that goes on only while a chunk is delivered: abandoned answers are paid by these means."""
    clock = [time.perf_counter()]

    async def deliver(chunk):
        clock[0] += 1_000.0

    async def main():
        async with serving(script(m=good("A", SURE))) as (_, client):
            model_caller = ModelCaller({"m": Endpoint(client, "m", None, {}, Price(1, 10), None)}, None, 1)
            query, exchanges = Query("q", [{"role": "user", "content": "?"}]), []
            monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
            await asyncio.gather(*(model_caller.call(query, "m", None, exchanges, deliver=deliver) for _ in range(2)))
            monkeypatch.undo()
            await model_caller.close()
            return model_caller._means["m"], [exchange.call for exchange in exchanges]

    means, calls = asyncio.run(main())
    assert [call.estimated for call in calls] == [False, False]
    assert min(call.seconds for call in calls) > 900.0
    assert means.seconds <= AnswerMeans.seconds
