"""A log that goes on under the same ids: what was asked, of whom and how is what is asked now, or that is said."""

import pytest
from helpers.chat_server import served
from helpers.collecting_runs import answers
from helpers.command_line import run
from helpers.sample_models import Models, questions, write_models, write_questions

pytestmark = pytest.mark.usefixtures("own_settings")

NAMES = ("tiny", "large")
N = 6


def collect(place, *options, rows=None, served_as="org/", more=""):
    """(the result, the server) of a run in this process."""
    asked = write_questions(place / "questions.jsonl", questions(N) if rows is None else rows)
    with served(Models()) as (server, url):
        models = write_models(place / "models.toml", url, NAMES, more)
        models.write_text(models.read_text().replace('model = "org/', f'model = "{served_as}'))
        line = ["collect", asked, "--models", models, "--out", place / "answers.jsonl", "--signal", "choice"]
        return run(*line, *options), server


def reworded(row):
    return row | {"prompt": row["prompt"].replace("A or B", "B or A")}


#: What is asked otherwise in the second run: its arguments, what differs, and how many answers.
REWORDED = ": the question, its choices, the template or the system message has changed since it was asked"
OTHERWISE = {
    "question": ({"rows": [reworded(row) if row["query"] == "q3" else row for row in questions(N)]}, REWORDED, 2),
    "choices": ({"rows": [row | {"choices": "A|B|C"} for row in questions(N)]}, REWORDED, 2 * N),
    "template": ({"options": ("--template", "{prompt} Be brief.")}, REWORDED, 2 * N),
    "system prompt": ({"options": ("--system", "Be brief.")}, REWORDED, 2 * N),
    "served model": ({"served_as": "org2/"}, "model at the endpoint 'org/tiny', not 'org2/tiny'", 2 * N),
    "options": (
        {"more": "options = { temperature = 0.5 }"},
        "options {'max_tokens': 16}, not {'max_tokens': 16, 'temperature': 0.5}",
        2 * N,
    ),
}


def test_changed_settings_are_refused_with_old_and_new(place):
    assert collect(place)[0].exit_code == 0
    before = (place / "answers.jsonl").read_bytes()
    misses = []
    for name, (how, what, number) in OTHERWISE.items():
        how = dict(how)
        result, server = collect(place, *how.pop("options", ()), **how)
        words = " ".join(result.stderr.split())
        wanted = (what, f"; {number} answers differ so", "answers.jsonl, model ")
        untouched = server.requests == [] and (place / "answers.jsonl").read_bytes() == before
        if result.exit_code != 1 or not untouched or not all(one in words for one in wanted):
            misses.append((name, result.exit_code, words))
    assert not misses


def test_answers_beyond_the_limit_are_not_those_to_other_questions(place):
    collect(place)
    result, server = collect(place, "--limit", 2)
    assert (result.exit_code, server.requests) == (0, [])
    words = " ".join(result.stdout.split())
    assert "8 answers of the log are to questions beyond --limit, and stay in it" in words
    assert "other questions" not in words


def test_a_right_answer_that_changed_is_graded_anew(place):
    collect(place)
    then = {(row["query"], row["model"]): row["correct"] for row in answers(place)}
    turned = [row | {"answer": "AB"[row["answer"] == "A"]} for row in questions(N)]
    result, server = collect(place, rows=turned)
    assert result.exit_code == 0
    assert server.requests == []
    now = {(row["query"], row["model"]): row["correct"] for row in answers(place)}
    assert {key: not right for key, right in then.items()} == {key: bool(right) for key, right in now.items()}
    words = " ".join(result.stdout.split())
    assert "the right answer of 6 questions has changed (query q" in words
    assert "12 answers graded anew" in words
    # The same where answers are graded by hand of another command.
    asked = write_questions(place / "questions.jsonl", questions(N))
    assert run("grade", place / "answers.jsonl", "--questions", asked).exit_code == 0
    assert {(row["query"], row["model"]): row["correct"] for row in answers(place)} == then


def test_answers_to_other_questions_are_counted(place):
    """A question without an id has one by its content: with another template it is another one."""
    rows = [{name: value for name, value in row.items() if name != "query"} for row in questions(N)]
    collect(place, rows=rows)
    result, server = collect(place, "--template", "{prompt} Be brief.", rows=rows)
    assert result.exit_code == 0
    assert len(server.requests) == 2 * N
    assert "12 answers of the log are to other questions than these" in " ".join(result.stdout.split())
