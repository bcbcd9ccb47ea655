"""`rcjax grade --reference`: a judge says which answers are those of a model, without right answers."""

import json

import pytest
from helpers.chat_server import served
from helpers.collecting_runs import answers
from helpers.command_line import run
from helpers.sample_models import questions, write_models, write_questions
from test_collect_judges import WithJudge

import rcjax
from rcjax.policy.error_kind import Reference

pytestmark = pytest.mark.usefixtures("own_settings")


def test_a_judge_says_what_is_the_same(place):
    """It is not asked of the reference's own answers, nor twice; `read_log` takes its word for its reference alone."""
    asked = [{name: value for name, value in row.items() if name != "answer"} for row in questions(12)]
    path, behave = place / "answers.jsonl", WithJudge()
    with served(behave) as (_, url):
        models = write_models(place / "models.toml", url, ["tiny", "large"])
        write_questions(place / "questions.jsonl", asked)
        collected = run("collect", place / "questions.jsonl", "--models", models, "--signal", "choice", "--out", path)
        assert collected.exit_code == 0, collected.stderr
        line = ["grade", path, "--reference", "large", "--grade", "judge:large", "--models", models]
        line += ["--questions", place / "questions.jsonl", "--json"]
        first = json.loads(run(*line).stdout)
        assert (first["graded"], behave.judged) == (12, 12)
        assert json.loads(run(*line).stdout)["changed"] == 0
        assert behave.judged == 12
    rows = answers(place)
    said = {row["query"]: row["text"] for row in rows if row["model"] == "large"}
    small = [row for row in rows if row["model"] == "tiny"]
    assert [row["judged_same"] for row in small] == [row["text"] == said[row["query"]] for row in small]
    assert {(row["same_as"], row["graded_by_judged_same"], row["correct"]) for row in small} == {
        ("large", "judge:large", None)
    }
    log = rcjax.read_log(path, task="choice", reference=Reference("large", "judge:large"))
    same = {row["query"]: bool(row["judged_same"]) for row in small}  # rows come as their answers did
    assert log.correct[:, log.models.index("tiny")].tolist() == [same[query] for query in log.queries]


def test_options_that_need_a_reference_are_reported(place):
    (place / "answers.jsonl").write_text("")
    cases = {"--into judged_b": "its verdicts go to judged_same", "--out a.jsonl": "goes with the log of a service"}
    for options, words in cases.items():
        result = run("grade", place / "answers.jsonl", "--reference", "large", *options.split())
        assert result.exit_code == 2
        assert words in " ".join(result.stderr.replace("│", " ").split())
