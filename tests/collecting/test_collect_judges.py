"""Graders and judges of a run and grading again."""

import json
import re
from collections import Counter

import pytest
from chat_server import Response, completion, served
from collecting_runs import answers, collect, lines
from command_line import run
from models_of_a_test import Models, money, write_models

pytestmark = pytest.mark.usefixtures("own_settings")


class WithJudge(Models):
    """The largest model judges: right where the answer is among the right ones, by the lines of the rubric."""

    def __call__(self, request, headers):
        prompt = request["messages"][-1]["content"]
        if not prompt.startswith("You grade"):
            return super().__call__(request, headers)
        self.judged = getattr(self, "judged", 0) + 1
        right, answer = (re.search(rf"<{part} \w+>\n(.*)", prompt)[1] for part in ("right_answer", "answer"))
        self.charged += money("large", len(prompt) // 4, 1)
        return Response(completion("Y" if answer == right else "N", None, (len(prompt) // 4, 1)))


def test_a_judge_costs_money_and_is_blind(place):
    behave = WithJudge()
    result, server = collect(place, behave, "--grade", "judge:large", "--json", n=12, names=["tiny", "large"])
    assert result.exit_code == 0, result.stderr
    rows = answers(place)
    assert behave.judged == 24
    assert [row["correct"] for row in rows] == [row["answer"] == row["reference"][0] for row in rows]
    assert len(lines(place)) == 24 + 2  # one line for each call, and the probes
    assert json.loads(result.stdout)["spent"] == pytest.approx(float(behave.charged), rel=1e-9)
    judged = [
        r["messages"][0]["content"] for r in server.requests if r["messages"][0]["content"].startswith("You grade")
    ]
    assert not any("tiny" in prompt or "org/" in prompt for prompt in judged)


def test_a_judge_that_fails_can_be_asked_later(place):
    class Away(WithJudge):
        def __call__(self, request, headers):
            if request["messages"][-1]["content"].startswith("You grade"):
                return Response({}, 401)
            return super().__call__(request, headers)

    result, _ = collect(place, Away(), "--grade", "judge:large", n=6, names=["tiny"], rows=None)
    shown = " ".join(result.stdout.split())
    assert "no model of this name" in result.stderr or "the judge large" in shown
    with served(Away()) as (_, url):
        models = write_models(place / "models.toml", url, ["tiny", "large"])
        out = ["--models", models, "--out", place / "answers.jsonl"]
        result = run("collect", place / "questions.jsonl", *out, "--grade", "judge:large")
        assert "grading stopped: the judge large: HTTP 401" in " ".join(result.stdout.split())
        assert all(row["correct"] is None for row in answers(place))
    behave = WithJudge()
    with served(behave) as (_, url):
        write_models(place / "models.toml", url, ["tiny", "large"])
        result = run("collect", place / "questions.jsonl", *out, "--grade", "judge:large")
        assert result.exit_code == 0, result.stderr
    assert behave.asked == Counter()
    assert behave.judged == 12
    assert all(row["correct"] is not None for row in answers(place))


def test_grading_again_asks_no_model(place):
    collect(place, Models(), "--grade", "regex:^A", names=["tiny"])
    assert {row["correct"] for row in answers(place)} == {True, False}
    result = run("grade", place / "answers.jsonl", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["graded"] == 20
    assert document["changed"] > 0
    assert [row["correct"] for row in answers(place)] == [
        row["answer"] == row["reference"][0] for row in answers(place)
    ]
    again = json.loads(run("grade", place / "answers.jsonl", "--json").stdout)
    assert again["changed"] == 0
