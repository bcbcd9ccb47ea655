"""Policies before the models of a router: what is asked, what it costs, what is sent, and what is wrong in one line."""

import asyncio
import json
import os

import pytest
from helpers.gateway_service import make_policy
from helpers.routers import Router

from rcjax.policy import Ladder
from rcjax.serving.gateway.catalog import digest_of
from rcjax.serving.gateway.chat_request import ApiError, chat_request
from rcjax.serving.integrations.behind_router import Desk

SUPPORT = {"model": "rcjax/support", "policy": "support.json", "signal": "choice"}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
MEAN = {"small": 1e-5, "middle": 5e-5, "large": 3e-4}  # of the policy


@pytest.fixture
def folder(tmp_path):
    make_policy().save(tmp_path / "support.json")
    return tmp_path


def ask(router, folder, headers=(), **fields):
    """The completion that answers a request."""
    asked = {"model": "support", "messages": [{"role": "user", "content": "A or B?"}], **fields}
    desk = Desk(lambda: router, lambda: [folder / "none", folder])
    return asyncio.run(desk.answer(chat_request(asked), dict(headers), 9, litellm_trace_id="t"))


class RefusalError(Exception):
    def __init__(self, status, **more):
        self.status_code = status
        vars(self).update(more)


def test_models_are_asked_by_the_router_until_one_is_sure(folder):
    router = Router(SUPPORT)
    router.behave.unsure = ("small", "middle")
    whole = ask(router, folder, headers={"x-rcjax-query": "q1"}, policy="other.json", seed=3)
    assert [model for model, _ in router.asked] == ["small", "middle", "large"]
    told = router.asked[0][1]
    assert (told["disable_fallbacks"], told["litellm_trace_id"], told["logprobs"], told["seed"]) == (True, "t", True, 3)
    assert told["metadata"] == {"rcjax": {"policy": "support", "query": "q1"}, "model_group": "small"}
    assert whole["choices"][0]["message"]["content"] == "B"
    assert (whole["usage"]["total_tokens"], whole["rcjax"]["models"]) == (303, ["small", "middle", "large"])
    assert whole["rcjax"]["query"] == "q1"


def test_a_request_costs_what_its_attempts_cost(folder):
    """By the router's prices, or the policy's means where it has none; a reply of its cache costs nothing."""
    priced = {"small": {"response_cost": 1e-3}, "middle": {"response_cost": 2e-3}, "large": {"response_cost": 4e-3}}
    unpriced = {"small": {"response_cost": 1e-3}, "middle": {"response_cost": 0.0}}
    cached = priced | {"small": {"response_cost": 0.0, "cache_hit": True}}
    for costs, total in ((priced, 7e-3), (unpriced, 1e-3 + MEAN["middle"] + MEAN["large"]), (cached, 6e-3)):
        router = Router(SUPPORT)
        router.behave.unsure, router.costs = ("small", "middle"), costs
        whole = ask(router, folder)
        assert whole["rcjax"]["cost"] == pytest.approx(total)
        assert "cost" not in whole["usage"]


def test_tools_pass_to_the_largest_model(folder):
    router = Router(SUPPORT)
    told = ask(router, folder, tools=TOOLS)["rcjax"]
    assert (told["status"], told["not_judged"]) == ("not judged", ["tools"])
    assert (router.asked[-1][0], router.asked[-1][1]["tools"]) == ("large", TOOLS)


def test_what_a_router_raises_is_an_error_of_the_gateway(folder):
    """A model that fails is skipped upward, as long as there is another."""
    problems = [
        (RefusalError(400, code="context_length_exceeded"), (400, "context_length_exceeded")),
        (RefusalError(429, cooldown_time=5), (429, "upstream_rate_limited")),
        (RefusalError(401), (502, "upstream_failed")),
        (ValueError("no healthy deployment of sk-1"), (502, "upstream_failed")),
    ]
    for problem, (status, code) in problems:
        router = Router(SUPPORT)
        router.problems = {"small": problem}
        assert ask(router, folder)["rcjax"]["models"] == ["small", "middle"]
        router.problems = dict.fromkeys(("small", "middle", "large"), problem)
        with pytest.raises(ApiError) as error:
            ask(router, folder)
        assert (error.value.status, error.value.code) == (status, code)
        assert "sk-1" not in error.value.message


MISCONFIGURED = [
    ([{"model": "rcjax/support"}], "model: rcjax/support has no policy in config.yaml: give"),
    ([], "model: rcjax/support has no policy in config.yaml: give"),
    ([SUPPORT, SUPPORT | {"policy": "b.json"}], "has several policies in config.yaml: give"),
    ([SUPPORT | {"policy": "gone.json"}], "there is no file gone.json in the folder that LiteLLM was"),
    ([SUPPORT | {"policy": "larger.json"}], "larger.json asks larger, which is not there in the model_list of"),
    ([SUPPORT, {"model": "rcjax/small"}], "support.json asks small, which is a policy itself"),
    ([SUPPORT | {"signal": None}], "the policy does not say what its log was made with: give it"),
    ([SUPPORT | {"policy": "words.json"}], "words.json"),
]


def test_what_is_misconfigured_is_one_line(folder):
    text = (folder / "support.json").read_text()
    (folder / "larger.json").write_text(text.replace('"large"', '"larger"'))
    (folder / "words.json").write_text("words")
    for policies, message in MISCONFIGURED:
        router = Router(*policies)
        for entry in router.model_list[3:]:
            if entry["litellm_params"]["model"] == "rcjax/small":
                entry["model_name"] = "small"
        with pytest.raises(ApiError) as error:
            ask(router, folder)
        assert (error.value.status, error.value.code) == (500, "misconfigured")
        assert message in error.value.message
        assert "\n" not in error.value.message


def test_a_file_that_changes_is_read_again_and_one_that_cannot_be_changes_nothing(folder, caplog):
    """Broken, half-written or missing for a while: each is said once, and the policy before goes on with its bill."""
    desk, path = Desk(lambda: Router(SUPPORT), lambda: [folder]), folder / "support.json"
    cheap = make_policy(expected={"error": 0.1, "cost": 1e-4})
    whole = [Ladder((cheap,), 0.0, budget=budget) for budget in (1e-4, 2e-4)]
    texts = [json.dumps(one.to_json()) for one in whole]

    async def hashes():
        for number, text in enumerate((texts[0], texts[1], "broken", texts[1][:99], None, None, texts[1], texts[0])):
            path.unlink(missing_ok=True)
            if text is not None:
                path.write_text(text)
                os.utime(path, ns=(1, number))
            request = chat_request({"model": "support", "messages": [{"role": "user", "content": "A or B?"}]})
            yield (await desk.answer(request, {}))["rcjax"]["policy_hash"]
        (_, _, catalog) = next(iter(desk._catalogs.values()))
        yield catalog.policies["support"].cascade.billing.bill.balance

    async def collected():
        return [one async for one in hashes()]

    *got, balance = asyncio.run(collected())
    first, second = map(digest_of, whole)
    assert got == [first, *[second] * 6, first]
    assert balance == pytest.approx(2 * 1e-4 + 6 * 2e-4 - 8 * MEAN["small"])
    assert caplog.text.count("the policy before goes on") == 3
