"""What `rcjax collect`, `grade` and `label` tell: requests, graders, what is missing, and a next step that helps."""

import json

import pytest
from chat_server import served
from collecting_runs import answers
from command_line import run
from models_of_a_test import Models, questions, write_models, write_questions

pytestmark = pytest.mark.usefixtures("own_settings")


def in_words(result):
    """What a command has printed, without the breaks of lines."""
    return " ".join(result.stdout.split())


def of_two_kinds(n):
    """Every second question without choices, every third without a right answer."""
    rows = questions(n)
    for row in rows[::2]:
        del row["choices"]
    for row in rows[::3]:
        row.pop("answer")
    return rows


def test_requests_are_counted_and_two_kinds_of_question_told(place):
    with served(Models()) as (_, url):
        models = write_models(place / "models.toml", url, ["tiny"])
        for rows, requests, note in ((questions(6), 6, False), (of_two_kinds(6), 12, True)):
            asked = write_questions(place / "questions.jsonl", rows)
            result = run("collect", asked, "--models", models, "--dry-run")
            assert ("6 calls of 12 requests to make" in in_words(result)) == note
            assert ("3 of the 6 questions have choices" in in_words(result)) == note
            document = json.loads(run("collect", asked, "--models", models, "--dry-run", "--json").stdout)
            assert [row["requests"] for row in document["estimate"]] == [requests]


def test_graders_and_what_they_left_are_told(place):
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
        assert "24 answers graded, 24 with a verdict that they had not before" in told
        graded = answers(place)
        both = [row["judged"] == row["correct"] for row in graded if row["correct"] is not None]
        assert f"the grader agrees with {sum(both)} of the 16 labels in correct" in told
        assert 0 < sum(both) < 16
