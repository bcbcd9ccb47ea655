"""Runs of `rcjax collect` in tests, in this process and in one that can be killed, and the log that they leave."""

import json
import subprocess
import sys

from helpers.chat_server import served
from helpers.command_line import run
from helpers.sample_models import ABILITIES, questions, write_models, write_questions


def collect(place, behave, *options, n=20, names=tuple(ABILITIES), rows=None, more=""):
    """(the result, the server) of a run in this process."""
    asked = write_questions(place / "questions.jsonl", questions(n) if rows is None else rows)
    with served(behave) as (server, url):
        models = write_models(place / "models.toml", url, names, more)
        result = run("collect", asked, "--models", models, "--out", place / "answers.jsonl", *options)
    return result, server


def lines(place):
    """The log's lines: none where there is no file, as after a budget too small for one call."""
    log = place / "answers.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def answers(place):
    return [row for row in lines(place) if row["error"] is None]


def start(place, url, *options, names=tuple(ABILITIES), under=()):
    """A run in a process of its own, `under` another program."""
    write_models(place / "models.toml", url, names)
    line = [sys.executable, "-c", "from rcjax.cli import main; main()", "collect", place / "questions.jsonl"]
    line += ["--models", place / "models.toml", "--out", place / "answers.jsonl", "--signal", "choice", *options]
    line = [str(word) for word in [*under, *line]]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(behave, more):
    """Wait until so many more answers were given."""
    with behave.changed:
        goal = sum(behave.asked.values()) + more
        assert behave.changed.wait_for(lambda: sum(behave.asked.values()) >= goal, timeout=120)
