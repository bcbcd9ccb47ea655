"""Replies that strangers write against the graders: none ends a run, is lost, is paid for twice, or stops the clock."""

import asyncio
import contextlib
import json
import math
import os
import signal
import subprocess
import sys

import pytest
from helpers import collecting_runs
from helpers.chat_server import Response, completion, served
from helpers.command_line import run
from helpers.sample_models import write_models, write_questions

from rcjax.collecting import grading, user_graders
from rcjax.collecting.grading import COMPARISONS, make_graders
from rcjax.collecting.questions import Question
from rcjax.collecting.user_graders import JudgeGrader, Submission, parse_verdict

pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture(autouse=True)
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [*sys.path])


#: By name, what no grader was made for.
HOSTILE = {
    "a power of 5,000 digits": "3 × 10^1" + "0" * 5000,
    "5,000 digits": "so " + "9" * 5000,
    "5,000 digits of JSON": '{"answer": 1' + "0" * 5000 + "}",
    "an exponent of 5,000 digits": "3e" + "9" * 5000,
    "a root of 5,000 digits": "√" + "9" * 5000,
    "under 5,000 digits": "1 1/" + "9" * 5000,
    "a large factorial": "999!",
    "infinite": '{"answer": 1e999}',
    "NaN": '{"answer": NaN}',
    "null": '{"answer": null}',
    "halves of pairs": "\ud800 42 \udfff",
    "halves of pairs in JSON": '{"answer": "\\ud800"}',
    "brackets": "[" * 9_000,
    "objects": '{"answer":' * 9_000 + "1" + "}" * 9_000,
    "boxes": r"\boxed{" * 2_000,
    "nulls": "\0" * 5000,
    "a megabyte of a": "a" * 1_000_000,
    "digits of others": "٣๓①²𝟑፩" * 100,
    "much in one sign": "ﷺ" * 2_000,
    "accents": "a" + "\u0300\u0316" * 5000,
    "nothing": "",
}


REFERENCES = ("42", "A", "\ud800", "9" * 5000)


def attempt(text, *reference):
    messages = ({"role": "user", "content": "Why?"},)
    words = {"A": "Mars", "B": "Jupiter"}
    return Submission(Question("q", messages, reference or ("42",), ("A", "B"), words), text, text)


@pytest.mark.thorough
@pytest.mark.parametrize("text", list(HOSTILE.values()), ids=list(HOSTILE))
def test_every_grader_has_a_verdict_on_hostile_replies(text):
    for name, compare in COMPARISONS.items():
        assert compare(attempt(text, *(["42"] if len(text) > 20_000 else REFERENCES))) in (True, False), name
    assert parse_verdict(text) in (True, False, None)

    async def echo(messages):
        return messages[0]["content"].encode().decode()[:9]  # it can be sent

    async def others():
        grading = make_graders(["regex:{answer}$", f"copy=command:{sys.executable} -c '{COPY}'"])
        try:
            names = (grading.common, grading.kinds["copy"], "number")
            said = [await grading.by_name[name].grade(attempt(text)) for name in names]
            return (*said, await JudgeGrader(echo).grade(attempt(text)))
        finally:
            await grading.close()

    by_pattern, by_program, by_number, by_judge = asyncio.run(others())
    assert (by_pattern, by_program, by_judge) == (text.endswith("42"), len(text) % 2 == 0, None)
    assert by_number is ("42" in text and len(text) < 100)


COPY = 'import json, sys; print(json.dumps(len(json.load(sys.stdin)["text"]) % 2 == 0))'


def says(texts):
    """A server whose models give the text of each question, by its prompt."""

    def behave(request, headers):
        prompt = request["messages"][-1]["content"]
        if prompt.startswith("You grade"):
            return Response({"error": {}}, 400) if "wicked" in prompt else Response(completion("yes"))
        return Response(completion(texts[prompt], [(texts[prompt], {texts[prompt]: -0.1})]))

    return behave


def collect(place, texts, *options):
    """(the result, the server) of a run over questions of such answers."""
    rows = [{"query": prompt, "prompt": prompt, "answer": "42"} for prompt in texts]
    asked = write_questions(place / "questions.jsonl", rows)
    with served(says(texts)) as (server, url):
        models = write_models(place / "models.toml", url, ["tiny"])
        line = [asked, "--models", models, "--out", place / "answers.jsonl", "--signal", "mean", "--concurrency", 1]
        result = run("collect", *line, *options)
    return result, [request for request in server.requests if "wicked" not in json.dumps(request)]


def answers(place):
    return {row["query"]: row for row in collecting_runs.answers(place)}


BREAKING = """
import sys
if "wicked" in sys.stdin.read(): sys.exit(3)
print("true")
"""


def breaks(name, monkeypatch, place):
    """A grader, as the command names it, that fails on a wicked reply; and what is said of it."""
    if name == "of ours":
        monkeypatch.setitem(grading.COMPARISONS, "exact", lambda row: not math.isnan(1 / ("wicked" not in row.text)))
        return "exact", "exact failed: ZeroDivisionError"
    if name == "pattern":
        monkeypatch.setattr(user_graders, "PROCESS_SECONDS", 1.0)
        return "regex:^(a+)+$", "takes more than 1 seconds"
    if name == "function":
        (place / "fails_once.py").write_text("def right(text, reference):\n    return 1 // ('wicked' not in text)\n")
        return "python:fails_once:right", "python:fails_once:right: the check failed: ZeroDivisionError"
    if name == "program":
        (place / "breaks.py").write_text(BREAKING)
        return f"command:{sys.executable} breaks.py", "the check failed: it ended with status 3"
    return "judge:tiny", "the judge tiny: HTTP 400"


@pytest.mark.parametrize("name", ["of ours", "pattern", "function", "program", "judge"])
def test_a_reply_that_a_grader_fails_on_is_a_line_without_a_verdict(name, place, monkeypatch):
    """A ValueError of one ended every run, before anything was written; `^(a+)+$` stopped the clock."""
    grader, why = breaks(name, monkeypatch, place)
    texts = {"1?": "aaa", "2?": "a" * 60 + "wicked", "3?": "aa"}
    result, server = collect(place, texts, "--grade", grader)
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    assert [row["correct"] for row in answers(place).values()] == [True, None, True]
    told = "".join(result.stdout.split())
    assert (
        "".join(f"no verdict on 1 answer, as {grader} failed; the first one is query 2?, model tiny:".split()) in told
    )
    assert "".join(why.split()) in told
    assert server != []
    again, server = collect(place, texts, "--grade", grader)
    assert (again.exit_code, server) == (0, [])
    once_more = run("grade", "answers.jsonl", "--grade", "regex:wicked", "--json")
    assert json.loads(once_more.stdout)["graded"] == 3


def test_a_grader_that_fails_on_all_is_left_alone(place):
    (place / "fails_on_all.py").write_text("def right(text, reference):\n    raise KeyError('x')\n")
    result, _ = collect(place, {f"{i}?": "a" for i in range(20)}, "--grade", "python:fails_on_all:right")
    assert result.exit_code == 1
    told = " ".join(result.stdout.split())
    assert "grading stopped: 10 answers in a row without a verdict, as python:fails_on_all:right failed" in told
    assert len(answers(place)) == 20


@pytest.mark.thorough
@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("command", "sent"), [("collect", signal.SIGINT), ("grade", signal.SIGTERM)])
def test_a_grader_that_never_ends_can_be_stopped(command, sent, place):
    """Neither Ctrl-C nor SIGTERM did anything, as nothing heard them."""
    (place / "never_ends.py").write_text(  # a file of Python's would forgive an interrupt while it is made
        "import os\n\ndef right(text, reference):\n    os.close(os.open('begun', os.O_WRONLY))\n    while True: pass\n"
    )
    os.mkfifo(place / "begun")  # which opens when the grader has begun
    with served(says({"1?": "a"})) as (_, url):
        line = [sys.executable, "-c", "from rcjax.cli import main; main()", command]
        if command == "collect":
            write_questions(place / "questions.jsonl", [{"query": "1", "prompt": "1?", "answer": "42"}])
            write_models(place / "models.toml", url, ["tiny"])
            line += ["questions.jsonl", "--models", "models.toml", "--out", "answers.jsonl", "--signal", "mean"]
        else:
            collect(place, {"1?": "a"}, "--grade", "regex:b")
            line += ["answers.jsonl"]
        line += ["--grade", "python:never_ends:right"]
        process = subprocess.Popen(line, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        open(place / "begun").close()
        process.send_signal(sent)
        told = ""
        if command == "collect":  # the first one lets calls finish
            told = next(one for one in process.stderr if "finishing the calls under way" in one)
            process.send_signal(sent)
        while command == "grade" and process.poll() is None:  # of asyncio's own the second counts; more change nothing
            process.send_signal(sent)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
        told += process.communicate()[1]
    assert process.returncode == 130, told
    assert ("finishing the calls under way" in told) == (command == "collect")
    assert "Traceback" not in told
    assert [row["correct"] for row in answers(place).values()] == [None if command == "collect" else False]
    assert not (place / "answers.jsonl.under-way").exists()
