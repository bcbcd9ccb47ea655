"""Rules for a share of the queries in service: the same query is treated alike, and what is expected of all."""

import asyncio
import dataclasses

import jax
import numpy as np
import pytest
from chat_server import Response, serving, sure
from gateway_service import SURE, UNSURE, gateway, make_policy as make_served
from hypothesis import given, settings, strategies as st
from test_expectations import check_against_replay, make_policy
from tiers import examples

from rcjax import signals
from rcjax.policy import Defer, Mixture, Rule
from rcjax.serving.cascade import Cascade
from rcjax.serving.gateway.expectations import expect


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def split_policy():
    """The small model, unsure at a confidence of 0.16, passes on 30 % of such queries."""
    split = (Rule(0.1, "ask", "large"), Rule(0.5, "ask", "large", share=0.3), Rule(1.0, "answer"))
    return make_served(rules={**make_served().rules, "small": split})


def behave(request, headers):
    return Response(sure("A", UNSURE if request["model"].endswith("small") else SURE))


def passed_on(policy, query):
    return isinstance(policy.step("small", logprob=UNSURE, query=query), Defer)


@pytest.mark.thorough
def test_a_cascade_passes_on_a_share_and_treats_a_query_alike():
    policy = split_policy()

    async def main():
        async with serving(behave) as (_, client):
            cascade = Cascade(policy, client, signal=signals.Choice())
            return [await cascade.ask_all((i, "?") for i in range(200)) for _ in range(2)]

    once, again = asyncio.run(main())
    assert [one.model for one in once] == [one.model for one in again]
    assert [one.model == "large" for one in once] == [passed_on(policy, i) for i in range(200)]
    assert sum(one.model == "large" for one in once) == pytest.approx(60, abs=20)


def test_a_service_passes_on_a_share_and_treats_a_query_alike():
    policy = split_policy()
    with gateway(policy, behave) as service:
        body = {"model": "policy", "messages": [{"role": "user", "content": "A or B?"}]}
        queries = [f"q{i}" for i in range(12)] * 2
        models = [service.post(body, x_rcjax_query=query).headers["x-rcjax-model"] for query in queries]
    assert [model == "large" for model in models] == [passed_on(policy, query) for query in queries]
    assert {*models} == {"small", "large"}


def with_shares(policy, seed):
    """Most rules but the last are for a share."""
    rng = np.random.default_rng(seed)
    rules = {
        name: [
            dataclasses.replace(rule, share=rng.uniform(0.1, 0.9) if rng.random() < 0.6 else None)
            for rule in table[:-1]
        ]
        + [table[-1]]
        for name, table in policy.rules.items()
    }
    return dataclasses.replace(policy, rules=rules)


@pytest.mark.thorough
@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32), answers=st.sampled_from([1.0, 0.5]))
def test_what_is_expected_of_a_policy_is_its_replay(seed, answers):
    policy = with_shares(make_policy(seed, answers), seed)
    check_against_replay(policy)
    check_against_replay(Mixture((policy, make_policy(seed + 1)), (0.4, 0.6)))


def test_queries_reach_a_model_by_the_share_that_is_passed_on():
    policy = make_policy(0)
    rules = {**policy.rules, "small": (Rule(1.0, "ask", "large", share=0.25), Rule(1.0, "answer"))}
    expected = expect(dataclasses.replace(policy, rules=rules))
    assert {*expected.reach["large"].weights} == {0.25}
    assert {*expected.reach["small"].weights} == {1.0}
    assert expected.answered["small"] == pytest.approx(0.75)
