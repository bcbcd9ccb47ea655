"""Policies that compare answers: what they decide, what is refused."""

import dataclasses

import pytest
from policy_samples import make_ladder, make_policy

from rcjax.policy import Agreement, Answer, Defer, load_policy

ASK = Agreement("small", "large")


def comparing(**changes):
    """The policy of three models, the second of which compares its answer with that of the first."""
    return make_policy(agreements={"médium": dataclasses.replace(ASK, **changes)})


def test_equal_answers_are_kept_and_different_ones_ask():
    step = comparing().step
    for logprob in (-4.0, -0.01):  # whatever the confidence is
        kept = step("médium", logprob=logprob, answer="1,000", answers={"small": "1000"})
        asked = step("médium", logprob=logprob, answer="1,000", answers={"small": "1001"})
        assert isinstance(kept, Answer)
        assert kept.model == "médium"
        assert isinstance(asked, Defer)
        assert asked.next_model == "large"
        assert kept.confidence == asked.confidence == comparing().calibrate("médium", logprob=logprob)


@pytest.mark.parametrize("answer", [None, "", "  ", "Paris"])
@pytest.mark.parametrize("answers", [None, {}, {"small": None}, {"small": " "}, {"large": "Paris"}])
@pytest.mark.parametrize("logprob", [-4.0, -0.001])
def test_where_an_answer_is_not_known_the_confidence_decides(answer, answers, logprob):
    decision = comparing().step("médium", logprob=logprob, answer=answer, answers=answers)
    assert decision == make_policy().step("médium", logprob=logprob)


@pytest.mark.parametrize(("how", "equal"), [("text", False), ("choice", True), ("key", False)])
def test_answers_are_compared_as_the_policy_says(how, equal):
    assert comparing(compare=how).agreements["médium"].equal("B) Jupiter", "(b)") is equal


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"other": ASK}, "agreements: must be of models of the policy"),
        ({"small": Agreement("large", "médium")}, r"agreements\['small'\].earlier: must be an earlier model"),
        ({"large": Agreement("small", "médium")}, r"\['large'\].model: must be a later model"),
        ({"médium": {"earlier": "small", "model": "large", "compare": "sound"}}, r"\.compare: this rcjax knows"),
    ],
)
def test_what_cannot_be_right_is_refused_with_its_place(value, message):
    with pytest.raises(ValueError, match=message):
        make_policy(agreements=value)


@pytest.mark.parametrize("wrong", [5, True, ["Paris"]])
def test_an_answer_is_a_text(wrong):
    with pytest.raises(TypeError, match="answer must be"):
        comparing().step("médium", confidence=0.5, answer=wrong)
    with pytest.raises(TypeError, match=r"answers\['small'\] must be"):
        comparing().step("médium", confidence=0.5, answer="Paris", answers={"small": wrong})


def test_the_file_tells_of_agreements_only_where_there_are_some(tmp_path):
    plain, file = make_policy().to_json(), comparing().to_json()
    assert "agreements" not in plain
    assert file["agreements"] == {
        "médium": {"earlier": "small", "model": "large", "compare": "text"},
    }
    comparing().save(tmp_path / "policy.json")
    assert load_policy(tmp_path / "policy.json") == comparing() != make_policy()


def test_a_ladder_keeps_what_its_rungs_compare(tmp_path):
    make_ladder((comparing(), make_policy()), 0.5).save(tmp_path / "ladder.json")
    assert load_policy(tmp_path / "ladder.json").rungs[0].agreements == comparing().agreements
