"""Policies that compare answers: what they decide, what is refused."""

import dataclasses
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers.agreement_logs import make_log
from helpers.policy_samples import make_policy

import rcjax
from rcjax.policy import Agreement, Answer, Defer, load_policy
from rcjax.tuning.replaying.replay import replay_queries

PAGE = Path(__file__).parents[2] / "rcjax" / "docs" / "production.md"
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
        ({"médium": {"earlier": "small", "model": "large", "compare": "sound"}}, r"\.compare: must be one of"),
    ],
)
def test_impossible_agreements_are_refused_with_their_place(value, message):
    with pytest.raises(ValueError, match=message):
        make_policy(agreements=value)


@pytest.mark.parametrize("wrong", [5, True, ["Paris"]])
def test_an_answer_that_is_no_text_is_refused(wrong):
    with pytest.raises(TypeError, match="answer must be"):
        comparing().step("médium", confidence=0.5, answer=wrong)
    with pytest.raises(TypeError, match=r"answers\['small'\] must be"):
        comparing().step("médium", confidence=0.5, answer="Paris", answers={"small": wrong})


def test_the_file_has_agreements_only_if_the_policy_has(tmp_path):
    plain, file = make_policy().to_json(), comparing().to_json()
    assert "agreements" not in plain
    assert file["agreements"] == {
        "médium": {"earlier": "small", "model": "large", "compare": "text"},
    }
    comparing().save(tmp_path / "policy.json")
    assert load_policy(tmp_path / "policy.json") == comparing() != make_policy()


def test_a_step_without_answers_raises_and_names_what_is_missing():
    both = {"answer": "A", "answers": {"small": "B"}}
    for names in ((), ("answer",), ("answers",)):
        with pytest.raises(ValueError, match="compares the answer of médium with that of small: give step") as problem:
            comparing().step("médium", logprob=-0.1, **{name: both[name] for name in names})
        assert [name for name in both if f"{name}= (" not in str(problem.value)] == [*names]
    assert comparing().step("médium", logprob=-0.1, **both) == Defer(
        "large", comparing().calibrate("médium", logprob=-0.1)
    )


@pytest.mark.thorough
def test_the_loop_of_the_page_errs_as_often_as_promised(tmp_path):
    with jax.enable_x64(True):
        log, fresh = make_log(300, 0.0, seed=0), make_log(2_000, 0.0, seed=1)
        tuned = rcjax.tune(log, budget=200e-6, intervals=False)
        policy = tuned.policy
        assert any(rung.agreements for rung in policy.adjacent_rungs)
        walks = [replay_queries(rung, fresh).wrong for rung in policy.rungs]
    promised = np.mean([walks[policy.draw_rung(q)][q] for q in range(fresh.n_queries)])
    policy.save(tmp_path / "policy.json")
    block = next(
        text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S) if "def answer" in text
    )
    names: dict = {}
    exec(block.replace("policy.json", str(tmp_path / "policy.json")), names)
    logprob, correct, codes = (np.asarray(matrix) for matrix in (fresh.logprob, fresh.correct, fresh.answer))
    wrong = 0
    for q in range(fresh.n_queries):
        right = {str(codes[q, j]) for j in range(len(fresh.models)) if correct[q, j]}

        def call(model, query):
            column = fresh.models.index(model)
            return str(codes[query, column]), float(logprob[query, column])

        wrong += names["answer"](q, call) not in right
    assert wrong / fresh.n_queries == pytest.approx(promised, abs=1e-9)
