"""A policy that compares answers says so where it is given none; the loop of the page gives them."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest
from agreement_logs import make_log
from policy_samples import make_policy

import rcjax
from rcjax.policy import Agreement, Defer
from rcjax.replaying.replay import walk_log

PAGE = Path(__file__).parents[2] / "rcjax" / "docs" / "production.md"
COMPARING = make_policy(agreements={"médium": Agreement("small", "large")})


def test_a_step_without_answers_raises_and_names_what_is_missing():
    both = {"answer": "A", "answers": {"small": "B"}}
    for names in ((), ("answer",), ("answers",)):
        with pytest.raises(ValueError, match="compares the answer of médium with that of small: give step") as problem:
            COMPARING.step("médium", logprob=-0.1, **{name: both[name] for name in names})
        assert [name for name in both if f"{name}= (" not in str(problem.value)] == [*names]
    assert COMPARING.step("médium", logprob=-0.1, **both) == Defer("large", COMPARING.calibrate("médium", logprob=-0.1))


def test_steps_that_compare_nothing_need_no_answers():
    plain = make_policy()
    for model in plain.models:
        assert plain.step(model, logprob=-0.1)
    for model in ("small", "large"):
        assert COMPARING.step(model, logprob=-0.1) == plain.step(model, logprob=-0.1)


@pytest.mark.thorough
def test_the_loop_of_the_page_errs_as_often_as_promised(tmp_path):
    with jax.enable_x64(True):
        log, fresh = make_log(300, 0.0, seed=0), make_log(2_000, 0.0, seed=1)
        tuned = rcjax.tune(log, budget=200e-6, intervals=False)
        policy = tuned.policy
        assert any(rung.agreements for rung in policy.policies)
        (said,) = [remark for remark in tuned.remarks if "compares answers" in remark]
        assert "policy.step needs answer= and answers=" in said
        walks = [walk_log(rung, fresh).wrong for rung in policy.rungs]
    promised = np.mean([walks[policy.rung_of(q)][q] for q in range(fresh.n_queries)])
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
