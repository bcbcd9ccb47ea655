"""Graders that give scores: functions, programs and judges with a scale; what becomes of the scores."""

import asyncio
import json
import re
import sys

import numpy as np
import pytest
from helpers.chat_server import Response, completion, served
from helpers.collecting_runs import answers, collect
from helpers.command_line import run
from helpers.sample_models import Models

import rcjax
from rcjax.collecting.grading import make_graders
from rcjax.collecting.questions import Question
from rcjax.collecting.user_graders import (
    GraderError,
    JudgeGrader,
    Submission,
    convert_verdict,
    judge_prompt,
    parse_score,
)

ASKED = Submission(Question("q", ({"role": "user", "content": "Capital?"},), ("Paris",)), "Paris", "Paris")


@pytest.mark.parametrize(
    ("value", "most", "verdict"),
    [
        (0.25, 1.0, 0.25),
        (np.float32(0.25), 1.0, 0.25),
        (1.0, 1.0, True),
        (0, 1.0, False),
        (1, 10.0, 0.1),
        (10, 10.0, True),
        (np.bool_(True), 10.0, True),
        (None, 10.0, None),
        (1, None, True),
    ],
)
def test_a_function_returns_a_verdict_or_a_score(value, most, verdict):
    graded = convert_verdict(value, "mine", most)
    assert graded == verdict
    assert type(graded) is type(verdict)


@pytest.mark.parametrize(
    ("value", "most", "words"),
    [
        (7, 1.0, "mine gives 7: it must give true, false, a score from 0 to 1, or nothing"),
        (float("nan"), 1.0, "mine gives nan: "),
        ("0.5", 1.0, "mine gives a text: it must give true, false, a score from 0 to 1"),
        (0.5, None, "mine gives a float: it must give true, false, or nothing"),
    ],
)
def test_invalid_verdicts_are_refused(value, most, words):
    with pytest.raises(GraderError) as problem:
        convert_verdict(value, "mine", most)
    assert words in str(problem.value)


@pytest.mark.parametrize(
    ("reply", "share"),
    [
        ("7", 0.7),
        ("Half of it is there.\n**7.5**", 0.75),
        ("Score: 7/10.", 0.7),
        ("10", True),
        ('{"score": 4}', 0.4),
        ("<think>3</think>8", 0.8),
        ("3\n4", None),
        ("11", None),
        ("7/20", None),
        ("I give it 7", None),
        ('{"score": true}', None),
    ],
)
def test_scores_of_a_judge_are_read(reply, share):
    said = parse_score(reply, 10)
    assert said == share
    assert type(said) is type(share)


def test_a_judge_gets_the_scale_and_a_reminder():
    asked = []

    async def ask(messages):
        asked.append(messages)
        return "good" if len(asked) == 1 else "8"

    judge = JudgeGrader(ask, max_score=10)
    assert asyncio.run(judge.grade(ASKED)) == 0.8
    assert "from 0 for nothing to 10 for all of it" in asked[0][0]["content"]
    assert "one number alone, from 0 to 10" in asked[1][-1]["content"]
    assert judge.reply_form == "a number from 0 to 10"
    assert judge_prompt(ASKED, "{answer} of {score_max}", 5.0) == "Paris of 5"
    assert "score_max" not in judge_prompt(ASKED)


def test_a_full_score_without_a_scoring_grader_is_refused():
    with pytest.raises(GraderError, match="--score-max 10: no grader gives scores: name one of judge:MODEL"):
        make_graders(["exact"], score_max=10)


def write_grader(place, monkeypatch, body):
    (place / "points.py").write_text(f"def points(text, right):\n    return {body}\n")
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delitem(sys.modules, "points", raising=False)
    return "python:points:points"


@pytest.mark.usefixtures("own_settings")
def test_scores_of_a_function_are_a_log_to_tune(place, monkeypatch):
    grader = write_grader(place, monkeypatch, "1.0 if text in right else 0.25")
    result, _ = collect(place, Models(), "--grade", grader, names=["tiny", "large"], n=40)
    assert result.exit_code == 0, (result.stdout, result.stderr)
    told = " ".join(result.stdout.split())
    assert "mean score" in told
    assert "scores from 0 to 1 are in the column correct: rcjax tune counts the score that is lost" in told
    rows = answers(place)
    assert {row["correct"] for row in rows} == {True, 0.25}
    log = rcjax.read_log(place / "answers.jsonl", task="choice")
    assert log.scores is not None
    assert {*np.unique(log.correct).tolist()} == {0.25, 1.0}
    more, _ = collect(place, Models(), "--grade", grader, names=["tiny", "large"], n=42)  # goes on in that file
    assert more.exit_code == 0, more.stderr


class Marks(Models):
    """The largest model gives 10 points for a right answer and 4 for another."""

    def __call__(self, request, headers):
        prompt = request["messages"][-1]["content"]
        if not prompt.startswith("You grade"):
            return super().__call__(request, headers)
        right, answer = (re.search(rf"<{part} \w+>\n(.*)", prompt)[1] for part in ("right_answer", "answer"))
        return Response(completion("10" if answer == right else "4/10", None, (len(prompt) // 4, 1)))


@pytest.mark.usefixtures("own_settings")
def test_a_judge_with_a_scale_beside_labels(place):
    collect(place, Marks(), "--grade", "exact", names=["tiny", "large"], n=20)
    with served(Marks()) as (_, url):
        text = (place / "models.toml").read_text()
        (place / "models.toml").write_text(re.sub(r'base_url = "[^"]*"', f'base_url = "{url}"', text))
        line = ["grade", place / "answers.jsonl", "--grade", "judge:large", "--models", place / "models.toml"]
        line += ["--questions", place / "questions.jsonl", "--score-max", "10"]
        result = run(*line, "--into", "judged", "--json")
        refused = run(*line, "--reference", "large")
    assert result.exit_code == 0, (result.stdout, result.stderr)
    document, rows = json.loads(result.stdout), answers(place)
    assert all(row["judged"] == (True if row["correct"] else 0.4) for row in rows)
    wrong = sum(not row["correct"] for row in rows)
    assert document["agreement"] == pytest.approx(1 - 0.4 * wrong / len(rows))
    assert "scores from 0 to 1 are in the column judged" in document["notes"]
    assert refused.exit_code == 2
    assert "cannot be combined with --reference" in refused.stderr
