"""Signals by name and as JSON, and a cascade that reads confidences as its log did."""

import pytest
from helpers.policy_samples import make_policy
from helpers.scripted_cascade import make_cascade
from openai import AsyncOpenAI

from rcjax._base.tokens import Price
from rcjax.policy import signals
from rcjax.policy.signals.signal import (
    ChoiceNormaliser,
    describe_difference,
    record_signal,
    signal_by_name,
    signal_from_record,
)
from rcjax.serving.models_file import ServedModel

CHOICES = ("A", "B")


def test_votes_on_choices_count_letters():
    votes = signal_by_name("votes", CHOICES)
    reply = signals.Reply(("A", "The answer is A.", "(b)", "A) Mars", "no idea"))
    reading = votes.read(reply)
    assert (reading.answer, round(2.718281828459045**reading.logprob, 9)) == ("A", 0.6)


def test_records_of_user_code_make_no_signal():
    assert signal_from_record({"signal": "votes", "samples": 5, "normalise": "mine"}) is None
    assert signal_from_record({"signal": "choice", "top": 20}) is None  # its choices differed by question
    assert signal_from_record({"signal": "newer"}) is None
    assert signal_from_record({"signal": "stated", "newer": 1}) is None
    assert record_signal(object()) == {"signal": "object"}
    with pytest.raises(ValueError, match="'sure' is not a signal: give choice"):
        signal_by_name("sure")


def test_the_first_difference_from_a_record_is_named():
    record = record_signal(signals.Choice(CHOICES))
    assert describe_difference(record, signals.Choice(("A", "B", "C"))) == "choices is ['A', 'B', 'C'], not ['A', 'B']"
    assert describe_difference(record, signals.Stated()) == "signal is 'stated', not 'choice'"
    assert ChoiceNormaliser(CHOICES)("nothing") == ""


def cascade(asked, **arguments):
    policy = make_policy(provenance={"request_settings": asked})
    return make_cascade(policy, AsyncOpenAI(api_key="x"), **arguments)


def recorded(*models, **more):
    return {
        model: record_signal(signals.Choice(CHOICES)) | {"options": {"temperature": 0.0}} | more for model in models
    }


def test_a_cascade_takes_signal_and_options_from_its_policy():
    models = make_policy().models
    endpoints = cascade(recorded(*models))._model_caller.endpoints
    assert {endpoint.signal for endpoint in endpoints.values()} == {signals.Choice(CHOICES)}
    assert {endpoint.options["temperature"] for endpoint in endpoints.values()} == {0.0}
    own = cascade(recorded(*models), options={"temperature": 1.0})._model_caller.endpoints
    assert {endpoint.options["temperature"] for endpoint in own.values()} == {1.0}


def test_a_cascade_takes_prices_from_its_policy():
    models = make_policy().models
    asked = recorded(*models, prices={"input": 0.5, "output": 2.0})
    endpoints = cascade(asked)._model_caller.endpoints
    own = make_policy().prices or {}
    assert {str(endpoints[model].price[0]) for model in models if model not in own} <= {"0.5"}
    given = cascade(asked, models={models[0]: ServedModel(models[0], models[0], Price(9, 9))})._model_caller.endpoints
    assert str(given[models[0]].price[0]) == "9"
    with pytest.raises(ValueError, match=r"provenance\.request_settings.*prices"):
        cascade(recorded(*models, prices={"input": -1}))


def test_a_cascade_refuses_another_signal():
    models = make_policy().models
    with pytest.raises(ValueError, match="tuned on another one: signal is 'stated', not 'choice'"):
        cascade(recorded(*models), signal=signals.Stated())
    with pytest.raises(ValueError, match=f"signal of {models[1]}.*: none is given, and no policy records it"):
        cascade(recorded(*models[:1], *models[2:]))
    with pytest.raises(ValueError, match=r"provenance\.request_settings.*signal"):
        cascade({models[0]: {"signal": 3}})
