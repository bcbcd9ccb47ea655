"""What providers reply is collected as what it is."""

import json
from collections import Counter

import pytest
from helpers.chat_server import Response, served
from helpers.command_line import run
from helpers.sample_models import write_models, write_questions

from benchmarks.gateway.quirks import QUIRKS, whole

pytestmark = pytest.mark.usefixtures("own_settings")
WHOLE = {name: quirk for name, quirk in QUIRKS.items() if quirk.whole is not None}


def test_quirky_replies_are_answers_failures_or_retried(place):
    """Each question is put to the model: it replies as the quirk at first, and then well."""
    tries = Counter()

    def once(request, headers):
        name = request["messages"][-1]["content"]
        tries[name] += 1
        return Response(QUIRKS[name].whole if tries[name] == 1 else whole())

    asked = write_questions(
        place / "questions.jsonl",
        [{"query": name, "prompt": name, "choices": ["A", "B"], "answer": "B"} for name in WHOLE],
    )
    with served(once) as (_, url):
        models = write_models(place / "models.toml", url, ["tiny"])
        options = "--out", place / "log.jsonl", "--signal", "choice", "--template", "{prompt}", "--json"
        result = run("collect", asked, "--models", models, *options)
    rows = {row["query"]: row for row in map(json.loads, (place / "log.jsonl").read_text().splitlines())}
    failed = {name for name, row in rows.items() if row["error"] is not None}
    held = {name for name, quirk in WHOLE.items() if quirk.outcome == "held back"}
    again = {name for name, number in tries.items() if number == 2}
    assert failed | again == {name for name, quirk in WHOLE.items() if quirk.outcome != "answer"}
    assert held <= failed
    assert again >= {"error in the choice", "finish_reason network_error", "an object error", "vLLM: abort"}
    assert json.loads(result.stdout)["models"][0]["failed"] == len(failed)
    assert {row["correct"] for row in rows.values() if row["error"] is None} == {True}
