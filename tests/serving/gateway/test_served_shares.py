"""Rules for a share of the queries in service: the same query is treated alike."""

from chat_server import Response, sure
from gateway_service import SURE, UNSURE, gateway, make_policy as make_served

from rcjax.policy import Defer, Rule


def split_policy():
    """The small model, unsure at a confidence of 0.16, passes on 30 % of such queries."""
    split = (Rule(0.1, "ask", "large"), Rule(0.5, "ask", "large", share=0.3), Rule(1.0, "answer"))
    return make_served(rules={**make_served().rules, "small": split})


def behave(request, headers):
    return Response(sure("A", UNSURE if request["model"].endswith("small") else SURE))


def passed_on(policy, query):
    return isinstance(policy.step("small", logprob=UNSURE, query=query), Defer)


def test_a_service_passes_on_a_share_and_treats_a_query_alike():
    policy = split_policy()
    with gateway(policy, behave) as service:
        body = {"model": "policy", "messages": [{"role": "user", "content": "A or B?"}]}
        queries = [f"q{i}" for i in range(12)] * 2
        models = [service.post(body, x_rcjax_query=query).headers["x-rcjax-model"] for query in queries]
    assert [model == "large" for model in models] == [passed_on(policy, query) for query in queries]
    assert {*models} == {"small", "large"}
