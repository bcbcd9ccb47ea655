"""Graders and judges of a run and grading again."""

import json
import re
from collections import Counter

import pytest
from helpers.chat_server import Response, completion, served
from helpers.collecting_runs import answers, collect, lines
from helpers.command_line import run
from helpers.sample_models import Models, money, questions, write_models, write_questions

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


def test_a_budget_that_ends_leaves_whole_questions_with_their_verdicts(place):
    """The cheap model is quick, the dear one slow: what is paid for it goes to no question that the other lacks."""

    class Slow(WithJudge):
        def __call__(self, request, headers):
            response = super().__call__(request, headers)
            response.delay = 0.03 * request["model"].endswith("large")
            return response

    options = "--signal", "choice", "--grade", "judge:large", "--budget", "0.1"
    result, _ = collect(place, Slow(), *options, "--json", n=60, names=["tiny", "large"])
    document, rows = json.loads(result.stdout), answers(place)
    assert (document["budget_spent"], document["grading"]) == (True, None)
    assert 5 < document["answered_by_all"] == len(rows) / 2 < 60
    assert all(row["correct"] is not None for row in rows)
    result, _ = collect(place, Slow(), *options[:-1], "0.15", "--json", n=60, names=["tiny", "large"])
    more = json.loads(result.stdout)
    assert document["answered_by_all"] < more["answered_by_all"] == more["answers"] / 2


@pytest.mark.parametrize("judge", ["large", "tiny"])
def test_an_answer_begins_only_where_its_verdict_is_paid_for(place, judge):
    """Also where bills are more than the prices say, as of a judge that answers at length itself."""

    class Wordy(WithJudge):
        def __call__(self, request, headers):
            response = super().__call__(request, headers)
            if not request["messages"][-1]["content"].startswith("You grade") and "choices" in response.body:
                response.body["usage"]["completion_tokens"] = 1500
            return response

    options = "--signal", "choice", "--grade", f"judge:{judge}", "--budget", "0.4", "--json"
    result, _ = collect(place, Wordy(), *options, n=60, names=["tiny", "large"])
    document, rows = json.loads(result.stdout), answers(place)
    assert (document["budget_spent"], document["grading"]) == (True, None)
    assert 2 <= document["answered_by_all"] <= len(rows) / 2 < 60
    assert all(row["correct"] is not None for row in rows)
    assert document["spent"] <= 0.4


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


def test_grading_again_names_a_kind_without_a_grader_and_counts_by_grader(place):
    """A kind that was missing from the command was an unexpected KeyError."""
    rows = [row | {"grade": "letter" if number % 4 else "choice"} for number, row in enumerate(questions(20))]
    collect(place, Models(), "--grade", "letter=exact", names=["tiny"], rows=rows)
    refused = run("grade", place / "answers.jsonl", "--grade", "exact")
    assert refused.exit_code == 1
    assert "query q1: no grader for the kind 'letter': give --grade letter=…" in " ".join(refused.stderr.split())
    result = run("grade", place / "answers.jsonl", "--grade", "letter=choice")
    assert "graded 20 answers by choice" in " ".join(result.stdout.split())
    result = run("grade", place / "answers.jsonl", "--grade", "letter=exact")
    assert "graded 15 answers by exact, 5 answers by choice" in " ".join(result.stdout.split())


class Wavering(Models):
    """The largest model judges, and is never clear about questions of an even number."""

    judged = 0

    def __call__(self, request, headers):
        prompt = request["messages"][0]["content"]
        if not prompt.startswith("You grade"):
            return super().__call__(request, headers)
        self.judged += 1
        number = int(prompt.split("Question ")[1].split()[0].strip("?"))
        return Response(completion("The answer is not right" if number % 2 == 0 else "no", None, (9, 1)))


def test_ambiguous_verdicts_are_none_and_reported(place):
    write_questions(place / "questions.jsonl", questions(6))
    behave = Wavering()
    with served(behave) as (_, url):
        models = write_models(place / "models.toml", url, ["tiny", "large"])
        asked = place / "questions.jsonl", "--models", models
        result = run("collect", *asked, "--out", place / "answers.jsonl", "--grade", "judge:large", "--limit", 6)
        assert result.exit_code == 0, result.stderr
        assert behave.judged == 6 + 2 * 6  # two models: once where the verdict is clear, else twice, and no more
        shown = " ".join(result.stdout.split())
        assert "6 answers without a verdict" in shown
        assert "judge:large: asked twice, no verdict on 6 answers" in shown
        assert [row["correct"] for row in answers(place)].count(None) == 6
        more = "--questions", *asked, "--grade", "judge:large", "--again", "--json"
        document = json.loads(run("grade", place / "answers.jsonl", *more).stdout)
    assert (document["graded"], document["without_verdict"]) == (6, 6)
    assert document["notes"][0].startswith("judge:large: asked twice, no verdict on 6 answers")


def in_words(result):
    """What a command has printed, without the breaks of lines."""
    return " ".join(result.stdout.split())


def test_graders_and_ungraded_answers_are_reported(place):
    rows = questions(12)
    for row in rows[::3]:
        row.pop("answer")
    asked = write_questions(place / "questions.jsonl", rows)
    with served(Models()) as (_, url):
        models = write_models(place / "models.toml", url, ["tiny", "large"])
        told = in_words(run("collect", asked, "--models", models, "--out", place / "answers.jsonl"))
        assert "graded 16 answers by choice" in told
        assert "8 answers without a verdict; 8 of them to questions without a right answer" in told
        judged = "grade", place / "answers.jsonl", "--grade", "regex:^A", "--into", "judged"
        told = in_words(run(*judged, "--questions", asked))
        assert "24 answers graded, 24 verdicts new or changed" in told
        graded = answers(place)
        both = [row["judged"] == row["correct"] for row in graded if row["correct"] is not None]
        assert "% of the 16 labels in correct" in told
        assert 0 < sum(both) < 16
