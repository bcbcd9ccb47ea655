"""`rcjax collect --samples`: several answers of a model to each question: counted, paid, graded, and how many agree."""

import json
import math
from collections import Counter
from decimal import Decimal

import pytest
from helpers import collecting_runs
from helpers.chat_server import sure
from helpers.collecting_runs import answers
from helpers.command_line import run
from helpers.sample_models import Models, lot, questions, write_models, write_questions

import rcjax
from rcjax.logs import LeftOutWarning

pytestmark = pytest.mark.usefixtures("own_settings")


class Varied(Models):
    """Models whose answer to a question is another one each time, right in half of the cases, always as sure."""

    def answer(self, name, prompt, counts):
        if not prompt.startswith("Question"):
            return sure("A", -0.1, counts)
        letter = "AB"[lot("sample", prompt, name, self.asked[prompt, name]) < 0.5]
        return sure(letter, math.log(0.8), counts)


def collect(place, behave, *options, n=20):
    return collecting_runs.collect(place, behave, "--signal", "choice", *options, n=n, names=("tiny", "large"))


def keys(rows):
    return Counter((row["query"], row["model"], row["sample"]) for row in rows)


def each(n, **samples):
    return Counter((f"q{i}", name, k) for i in range(n) for name, most in samples.items() for k in range(1, most + 1))


def test_every_sample_is_asked_once_paid_for_and_graded(place):
    behave = Varied(failures=0.05)
    result, _ = collect(place, behave, "--samples", 3, "--json", n=40)
    assert result.exit_code == 0, result.stderr
    document, rows = json.loads(result.stdout), answers(place)
    assert keys(rows) == each(40, tiny=3, large=3)
    assert behave.charged <= sum(Decimal(str(row["cost"])) for row in rows) <= behave.charged + behave.lost
    assert all(row["correct"] == (row["answer"] == row["reference"][0]) for row in rows)
    assert {row["answer"] for row in rows if row["query"] == "q3"} == {"A", "B"}
    assert [row["calls"] for row in document["estimate"]] == [120, 120]
    assert [row["questions"] for row in document["estimate"]] == [40, 40]
    assert (document["answers"], document["answered_by_all"], document["ungraded"]) == (240, 40, 0)
    assert all(row["left"] == 0 and row["samples"] == 3 for row in document["models"])
    assert float(behave.charged) <= sum(row["max_cost"] for row in document["estimate"])


def test_more_samples_of_a_log_with_one_are_only_those_that_are_new(place):
    collect(place, Varied())
    assert "sample" not in answers(place)[0]
    _, server = collect(place, Varied(), "--samples", 3)
    assert len(server.requests) == 2 * 20 * 2
    assert keys(answers(place)) == each(20, tiny=3, large=3)
    before = (place / "answers.jsonl").read_bytes()
    for fewer in (1, 3):
        _, server = collect(place, Varied(), "--samples", fewer)
        assert server.requests == []
        assert (place / "answers.jsonl").read_bytes() == before
    # What is new in a log with samples tells which sample it is.
    collect(place, Varied(), n=22)
    assert keys(answers(place)) == each(20, tiny=3, large=3) + Counter(
        (f"q{i}", name, 1) for i in (20, 21) for name in ("tiny", "large")
    )
    assert rcjax.read_log(place / "answers.jsonl", task="choice").n_queries == 20


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("{ extra_body = { temperature = 0 } }", "temperature is 0"),
        ("{ seed = 0 }", "a seed is set"),
        ("{ temperature = 0.7 }", None),
    ],
)
def test_equal_samples_are_reported_beforehand(options, says, place):
    asked, models = write_questions(place / "questions.jsonl", questions(3)), place / "models.toml"
    write_models(models, "http://127.0.0.1:9/v1", ["tiny"], f"options = {options}")
    line = "collect", asked, "--models", models, "--signal", "choice", "--dry-run"
    shown = " ".join(run(*line, "--samples", 2).stdout.split())
    assert ("will be alike" in shown) == (says is not None)
    assert says is None or f"note tiny: {says}: its samples will be alike" in shown
    assert "alike" not in run(*line).stdout


@pytest.mark.parametrize("signal", [(), ("--signal", "votes")])
def test_samples_need_no_confidence_of_their_own(place, signal):
    result, server = collecting_runs.collect(place, Varied(), "--samples", 3, *signal, n=10, names=("tiny", "large"))
    assert result.exit_code == 0
    assert len(server.requests) == 2 * 10 * 3  # no probe, no second question
    assert not any({"logprobs", "temperature", "n"} & {*request} for request in server.requests)
    assert keys(answers(place)) == each(10, tiny=3, large=3)
    assert {row["answer"] for row in answers(place)} == {"A", "B"}
    with pytest.warns(LeftOutWarning, match="of tiny 3"):
        log = rcjax.read_log(place / "answers.jsonl", task="choice")
    assert log.request_settings["tiny"]["samples"] == 3
    assert {round(3 * math.exp(share)) for share in log.logprob.ravel().tolist()} == {2, 3}


def test_samples_of_questions_of_several_kinds_are_all_kept(place):
    """Choice questions were left out as asked otherwise than most: a single answer is compared with none."""
    rows = questions(10)
    for row in rows[:6]:
        del row["choices"]
    collecting_runs.collect(place, Varied(), "--samples", 3, rows=rows, names=("tiny", "large"))
    with pytest.warns(LeftOutWarning) as said:
        log = rcjax.read_log(place / "answers.jsonl")
    assert not [one for one in said if "asked otherwise" in str(one.message)]
    assert (log.n_queries, bool(log.answered.all())) == (10, True)
    assert log.request_settings["tiny"]["compare"] == "text"
