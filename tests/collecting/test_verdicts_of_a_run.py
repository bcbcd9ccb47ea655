"""Judges and programs of `rcjax collect` and `rcjax grade`: what is no verdict is asked once more, counted and told."""

import json

import pytest
from chat_server import Response, completion, served
from collecting_runs import answers
from command_line import run
from models_of_a_test import Models, questions, write_models, write_questions

pytestmark = pytest.mark.usefixtures("own_settings")


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


def test_verdicts_that_can_be_misread_are_none_and_told(place):
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
