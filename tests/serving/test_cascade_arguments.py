"""What cannot be a cascade, an argument of one, or a question to it: one line each."""

import asyncio
from types import SimpleNamespace

import pytest
from helpers.chat_server import serving
from helpers.gateway_service import MODELS, SURE
from helpers.scripted_cascade import POLICY, ask, cascade_policy, good, make_cascade, script
from openai import AsyncOpenAI, OpenAI

from rcjax.policy import signals
from rcjax.serving.cascade import Cascade
from rcjax.serving.models_file import ServedModel

# Arguments


TINY = ServedModel("tiny", "tiny")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"api_client": {"small": 1}}, "api_client: none given for middle, large"),
        ({"api_client": OpenAI(api_key="x")}, r"api_client of small: give an openai\.AsyncOpenAI, not an OpenAI"),
        ({"signal": {"large": signals.Choice()}}, "signal of small, middle: none is given"),
        ({"models": {"tiny": TINY}}, "models: tiny: the policy has small, middle, large; others need shadow above 0"),
        ({"shadow": 0.1, "models": {"tiny": TINY}}, "no price known of the shadow models tiny"),
        ({"models": {"small": ServedModel("small", "x", options={"model": "x"})}}, "model cannot be set"),
        ({"options": {"max_tokenz": 1}}, "the client knows no max_tokenz: .* extra_body"),
        ({"options": {"stream": True}}, "stream cannot be used"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"shadow": 1.5}, "shadow: must be between 0 and 1"),
        ({"timeout": 0}, "timeout must be above 0 seconds"),
        (
            {"signal": None},
            "signal of small, middle, large: none is given, and no policy records it: give it, by signal=",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    given = {"api_client": AsyncOpenAI(api_key="x"), "signal": signals.Choice(), **arguments}
    with pytest.raises(ValueError, match=message):
        make_cascade(POLICY, given.pop("api_client"), **given)


def test_a_signal_says_whether_it_asks_a_second_question():
    own = SimpleNamespace(options={}, follow_up=lambda *_: None, read=lambda *_: None)
    with pytest.raises(TypeError, match="signal of small: set second_options to the options of its second question"):
        Cascade(POLICY, AsyncOpenAI(api_key="x"), signal=own)


def test_a_policy_without_prices_in_its_provenance_needs_none():
    for tuning in ({}, {"prices": None}):
        policy = cascade_policy(provenance={"tuning": tuning})
        assert Cascade(policy, AsyncOpenAI(api_key="x"), signal=signals.Choice()).models == MODELS
    for tuning in (None, 5, {"prices": "x"}):
        policy = cascade_policy(provenance={"tuning": tuning})
        with pytest.raises(ValueError, match=r"^provenance\.tuning"):
            Cascade(policy, AsyncOpenAI(api_key="x"), signal=signals.Choice())


# Questions


@pytest.mark.parametrize(
    ("messages", "query", "says"),
    [
        (b"What?", "q", "messages must be a text, or a list of messages .*, not a bytes"),
        ([None], "q", "messages must be a text, or a list"),
        ("What?", 1.5, "query_id must be .*, not a float"),
        ("What?", True, "query_id must be .*, not a bool"),
        ("What?", " ", "query_id must be a whole number, or a text that is not empty"),
    ],
)
def test_an_invalid_question_is_refused(messages, query, says):
    with pytest.raises(TypeError, match=says):
        ask(script(small=good("A", SURE)), messages, query=query)
    with pytest.raises(TypeError, match=says):
        batch([(1, "?"), (query, messages)])


def test_a_number_of_likely_tokens_may_be_none_but_no_text():
    result, server = ask(script(small=good("A", SURE)), asking={"options": {"top_logprobs": None}})
    assert (result.text, server.requests[0]["top_logprobs"]) == ("A", 20)
    with pytest.raises(ValueError, match="top_logprobs must be a whole number, not a text"):
        ask(script(small=good("A", SURE)), asking={"options": {"top_logprobs": "5"}})


def batch(questions):
    """(the results, the requests) of many questions."""

    async def main():
        async with serving(script(small=good("A", SURE))) as (server, client):
            cascade = Cascade(POLICY, client, signal=signals.Choice())
            try:
                return await cascade.ask_all(questions)
            finally:
                requests.extend(server.requests)

    requests = []
    return asyncio.run(main()), requests


def test_ask_all_takes_the_items_of_a_mapping():
    results, requests = batch({"q1": "?", "q2": "!"}.items())
    assert [result.query.id for result in results] == ["q1", "q2"]
    assert len(requests) == 2


def test_the_signal_of_a_models_settings_reads_its_confidence():
    """Only the gateway read it: elsewhere the signal was missing, or another was used without a word."""
    models = {name: ServedModel(name, name, signal="choice") for name in ("small", "middle")}
    given = {"large": signals.Verification(), "middle": signals.Verification()}
    cascade = Cascade(POLICY, AsyncOpenAI(api_key="x"), signal=given, models=models)
    read = [type(cascade.signal_of(name)).__name__ for name in POLICY.models]
    assert read == ["Choice", "Choice", "Verification"]
