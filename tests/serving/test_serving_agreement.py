"""A cascade and a gateway whose policy compares answers: who is asked, what is known of answers."""

import pytest
from helpers.chat_server import Response, completion, sure
from helpers.gateway_service import MODELS, UNSURE, gateway, make_policy
from helpers.policy_samples import make_ladder
from helpers.scripted_cascade import ask, script

from rcjax.policy import Agreement, Rule, signals

PRICES = {name: {"input": 1.0, "output": 2.0} for name in MODELS}


def comparing(compare="choice", **changes):
    """The policy of three models; the second one's answer is kept where it is the first one's."""
    agreements = {"middle": Agreement("small", "large", compare)}
    return make_policy(**{"prices": PRICES, "agreements": agreements, **changes})


def ask_of(replies, policy, signal=None, **options):
    """(result, the models asked) of one question; replies by model."""
    result, server = ask(script(**replies), policy=policy, signal=signal, retries=0, **options)
    return result, [request["model"] for request in server.requests]


# -- keys of the user's own

SAID = {
    "small": Response(completion("It is Paris. Confidence: 30%")),
    "middle": Response(completion("paris, I say. Confidence: 30%")),
    "large": Response(completion("Lyon. Confidence: 99%")),
}


class City(signals.Stated):
    """A signal of one's own, whose answers are keys."""

    def read(self, reply, second=None):
        reading = super().read(reply, second)
        return signals.Reading(
            next(name for name in ("paris", "lyon") if name in reading.answer.lower()), reading.logprob
        )


def test_a_users_signal_makes_keys_of_answers():
    result, models = ask_of(SAID, comparing("key"), signal=City(question=None))
    assert models == ["small", "middle"]
    assert result.text == "paris, I say. Confidence: 30%"
    stated = signals.Stated(question=None)
    assert ask_of(SAID, comparing("text"), signal=stated)[1] == [*MODELS]
    for policy in (comparing("key"), make_ladder((make_policy(prices=PRICES), comparing("key")), 0.5)):
        with pytest.raises(ValueError, match=r"signal of small, middle: the policy compares keys of answers"):
            ask_of(SAID, policy, signal=stated)


def test_two_models_that_are_compared_are_asked_in_parallel():
    rules = {**make_policy().rules, "small": (Rule(1.0, "ask", "middle"),)}
    slow = {name: Response(sure(letter, UNSURE), delay=0.5) for name, letter in zip(MODELS, "ABC", strict=True)}
    result, models = ask_of(slow, comparing(rules=rules), signal=signals.Choice())
    assert sorted(models[:2]) == ["middle", "small"]
    assert models[2] == "large"
    first, second, last = (call.seconds for call in result.calls)
    assert max(first, second) + last <= result.seconds < first + second + last


# -- the gateway


def upstream(request, headers):
    """The letters of the three models are in the question: "A A B"."""
    said = dict(zip(MODELS, request["messages"][-1]["content"].split(), strict=True))
    name = request["model"].removeprefix("org/")
    return Response(sure(said[name], UNSURE))


def test_a_service_compares_the_answers_of_two_models():
    with gateway(behave=upstream, policy=comparing()) as service:
        replies = [service.ask(question) for question in ("A A B", "A B B", "A B C", "B B A")]
        assert [reply.json["rcjax"]["model"] for reply in replies] == ["middle", "large", "large", "middle"]
        assert [row["answer"] for row in service.log_rows()][:2] == ["A", "A"]
