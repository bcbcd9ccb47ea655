"""What is booked for calls that fail: nothing where nothing came back, streamed or not; the mean for what did."""

import asyncio

import pytest
from chat_server import Response, completion, events_of, serving
from gateway_service import gateway
from scripted_cascade import broken, cascade_policy
from test_serving_votes import voting_policy

from rcjax import signals
from rcjax.policy import Policy, Rule
from rcjax.serving.cascade import Cascade, CascadeError

pytestmark = pytest.mark.filterwarnings("ignore::rcjax.serving.answer_keys.CascadeWarning")
MEAN = 3e-4  # of the large model, in the policy
EMPTY = Response(b"")
ERROR = {"error": {"message": "too long", "code": "internal_error"}}

#: What a server does, and what is booked for it.
FREE = {
    "refused": broken(400),
    "too many requests": broken(429),
    "its own fault": broken(500),
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
    return Policy(
        ("large",),
        {"large": whole.calibrations["large"]},
        {"large": (Rule(1.0, "answer"),)},
        {"large": MEAN},
        prices={"large": {"input": 3, "output": 15}},
    )


def booked(response, *, streamed, policy=None, **options):
    """The money that a question has cost."""

    async def main():
        async def deliver(piece):
            pass

        async with (
            serving(lambda request, headers: response) as (_, client),
            Cascade(policy or alone(), client, signal=signals.Choice(), retries=1, **options) as cascade,
        ):
            try:
                result = await cascade.ask("A or B?", deadline=2.0, deliver=deliver if streamed else None)
            except CascadeError as error:
                result = error.result
            return result.cost, tuple(call.estimated for call in result.calls)

    return asyncio.run(main())


def test_what_failed_for_free_costs_nothing_streamed_or_not():
    costs = {(name, way): booked(what, streamed=way) for name, what in FREE.items() for way in (False, True)}
    assert {case: cost for case, cost in costs.items() if cost != (0.0, (False,))} == {}


def test_what_timed_out_costs_what_was_sent_as_an_estimate():
    """A quarter of the bytes as tokens, of each attempt: a server may have worked on it all the same."""
    late = Response(completion("A"), delay=30)
    costs = {booked(late, streamed=way, **more) for way in (False, True) for more in ({}, {"timeout": 0.4})}
    assert sorted({round(1e6 * cost, 6) for cost, _ in costs}) == [2 * 3, 2 * 2 * 3]
    assert all(estimated == (True,) for _, estimated in costs)


def test_what_came_back_costs_the_mean_streamed_or_not():
    costs = {
        (name, way): booked(whats[way], streamed=bool(way)) for name, whats in CHARGED.items() for way in (False, True)
    }
    assert {case: cost for case, cost in costs.items() if cost != (pytest.approx(MEAN), (True,))} == {}


def test_tokens_that_were_told_before_it_broke_off_are_paid():
    told = {"prompt_tokens": 100, "completion_tokens": 1}
    events = [{**event, "usage": told} for event in events_of(completion("A"))[:2]]
    assert booked(Response(events, hang=True), streamed=True) == (pytest.approx((100 * 3 + 15) / 1e6), (False,))


def test_the_gateway_books_nothing_for_them_either():
    """By a model that is passed on, and by a policy whose last model streams."""

    def behave(request, headers):
        return broken(400) if request["model"] == "org/large" else Response(completion("A", usage=None))

    with gateway(behave=behave) as service:
        for name in ("large", "policy"):
            for stream in (False, True):
                body = {"model": name, "messages": [{"role": "user", "content": "A or B?"}], "stream": stream}
                service.post(body)
        rows = [row for row in service.log_rows() if row["model"] == "large"]
        lines = service.get("/metrics").body.decode().splitlines()
    assert [(row["cost"], row["estimated"]) for row in rows] == [(0.0, False)] * 4
    spent = [line for line in lines if line.startswith("rcjax_call_cost") and 'model="large"' in line]
    assert {line.rsplit(" ", 1)[1] for line in spent if "_created" not in line} == {"0.0"}


def test_votes_that_never_came_have_no_part_in_the_mean():
    responses = [Response(completion("A", usage=None)), broken(400), broken(400)]

    async def main():
        left = list(responses)
        async with serving(lambda request, headers: left.pop(0)) as (_, client):
            policy = voting_policy()
            model = policy.models[0]
            rules, cost = {model: (Rule(1.0, "answer"),)}, {model: 3e-5}
            last = Policy((model,), {model: policy.calibrations[model]}, rules, cost, provenance=policy.provenance)
            async with Cascade(last, client, signal=signals.MeanLogprob(), retries=0) as cascade:
                return await cascade.ask("?")

    assert asyncio.run(main()).cost == pytest.approx(1e-5)  # one of three
