"""`rcjax collect` by checks: what is a confidence, what is none and is said at the end, money, and another check."""

import json
import math
from pathlib import Path

import pytest
from helpers.chat_server import Response, completion, served
from helpers.checks_of_a_test import FUNCTIONS, SECRET, expected, write_checks, write_program
from helpers.command_line import run
from helpers.sample_models import write_models, write_questions

import rcjax

pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture(autouse=True)
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    write_checks(place)
    return place


def behave(request, headers):
    return Response(completion(request["messages"][-1]["content"].split()[0] + " B", usage=(10, 2)))


def collect(signal, words, *options, more="", names=("tiny",)):
    """A run on questions whose first words a model repeats."""
    rows = [{"query": word, "prompt": f"{word} {SECRET}", "answer": f"{word} B"} for word in words]
    asked = write_questions(Path("questions.jsonl"), rows)
    with served(behave) as (_, url):
        models = write_models(Path("models.toml"), url, names, more)
        named = () if signal is None else ("--signal", signal)
        return run("collect", asked, "--models", models, "--out", "answers.jsonl", *named, *options)


def lines():
    rows = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    return {row["query"]: row for row in rows}  # the last one of each, with its verdict


def test_verdicts_are_confidences_and_failures_are_reported():
    table = {name: expected(FUNCTIONS)[name] for name in ("passes", "costs", "silent", "hangs", "above", "odd")}
    result = collect("python:of_a_test:by_word", table, "--timeout", 6, "--json")
    rows, document = lines(), json.loads(result.stdout)
    for word, outcome in table.items():
        row = rows[word]
        if isinstance(outcome, str):
            assert row["error"].startswith(outcome.replace("1 seconds", "6 seconds")), word
            assert row["logprob"] is None
        else:
            assert row["error"] is None, word
            assert math.exp(float(row["logprob"])) == pytest.approx(outcome)
            assert json.loads(row["request_settings"])["signal"] == "python:of_a_test:by_word"
    assert rows["costs"]["cost"] == pytest.approx(0.125 + rows["passes"]["cost"])
    assert rows["hangs"]["seconds"] > 6
    failing = sum(isinstance(outcome, str) for outcome in table.values())
    remark = next(note for note in document["notes"] if note.startswith("check python:of_a_test:by_word"))
    assert remark.startswith(f"check python:of_a_test:by_word: no confidence in {failing} answers, as it ")
    assert any("are not asked for again" in note for note in document["notes"])
    assert "timed out (1)" in remark
    assert "gave nonsense (2)" in remark
    assert (document["models"][0]["failed"], document["models"][0]["answers"]) == (0, len(table))
    assert [rows[word].get("has_no_confidence", False) for word in table] == [
        isinstance(one, str) for one in table.values()
    ]
    assert document["spent"] > 0.125
    assert SECRET not in result.stdout + result.stderr + Path("answers.jsonl").read_text()


def test_programs_by_the_file_of_models_and_a_log_that_is_read():
    write_program(Path("check"), "print(0.9 if 'a' in call['answer'] else 0.2)")
    told = {"more": 'signal = "command:./check"', "names": ("tiny", "large")}
    result = collect(None, ["a1", "a2", "x1", "x2"], **told)
    assert result.exit_code == 0, result.stderr
    log = rcjax.read_log(Path("answers.jsonl"))
    confidences = sorted(math.exp(logprob) for logprob in log.logprob.ravel().tolist())
    assert confidences == pytest.approx([0.2] * 4 + [0.9] * 4)
    again = collect(None, ["a1", "a2", "x1", "x2"], **told)
    assert again.exit_code == 0, again.stderr


def test_a_check_that_never_works_ends_the_run():
    result = collect("command:./check.py fails", [f"q{i}" for i in range(40)], "--concurrency", 1)
    assert result.exit_code == 1
    words = " ".join(result.stdout.split())
    assert "the confidence of 10 replies in a row cannot be read: the check failed: it ended with status 3" in words
    assert "mend that, or give the model another signal" in words
    assert words.count("10 replies in a row") == 1
    assert "check command:./check.py fails: no confidence in 10 answers, as it failed (10)" in words
    assert len(lines()) == 10
