"""`rcjax grade` on the log of a service: its shadow calls are judged, and the loop without labels needs nobody."""

import json
import math
import re

import pytest
from helpers.call_samples import both, call
from helpers.chat_server import Response, completion, served, sure
from helpers.command_line import run
from helpers.gateway_service import gateway
from helpers.reference_logs import COSTS, NAMES, letters
from helpers.sample_models import write_models

from rcjax.policy import load_policy
from rcjax.serving.call_log import CallLog

pytestmark = pytest.mark.usefixtures("own_settings")

ASKED = json.dumps({"signal": "choice", "choices": ["A", "B", "C"], "options": {}})


class Judge:
    """Says whether an answer is the other one, by the lines of the rubric; `shown` is what it was asked."""

    def __init__(self):
        self.shown = []

    def __call__(self, request, headers):
        prompt = request["messages"][-1]["content"]
        if not prompt.startswith("You grade"):
            name, number = request["model"], len(prompt)
            letter, logprob = ("A", -0.1) if name == "org/large" else ("AB"[number % 3 == 0], -1.2)
            return Response(sure(letter, logprob))
        self.shown.append(prompt)
        one, other = (re.search(rf"<{part} \w+>\n(.*)", prompt)[1] for part in ("right_answer", "answer"))
        return Response(completion("yes" if one == other else "no", None, (100, 1)))


def line(log, models, *more):
    return "grade", log, "--reference", "large", "--grade", "judge:middle", "--models", models, *more


def rows_of(path):
    return [json.loads(row) for row in path.read_text().splitlines()]


def flat(text):
    return " ".join(text.split())


def test_shadow_answers_of_a_service_are_judged(place):
    """By what it logged, once each, into a file of its own that is a log; the log of the service stays as it is."""
    behave = Judge()
    with gateway(behave=behave, shadow=1.0, log_prompts=True) as service:
        for number in range(9):
            service.ask("A or B?" + " So?" * number)
        service.wait_until_idle()
        log, models = service.folder / "calls.jsonl", service.folder / "models.toml"
        before = log.read_bytes()
        assert len(service.log_rows()) == 27
        first = json.loads(run(*line(log, models, "--budget", "0.001", "--json")).stdout)
        assert first.get("error"), first  # the budget ends: what is judged until then counts
        done = len(behave.shown)
        assert 0 < done < 18
        second = run(*line(log, models, "--json"))
        assert second.exit_code == 0, second.stderr
        document = json.loads(second.stdout)
        assert (document["graded"], document["changed"], len(behave.shown)) == (18, 18 - done, 18)
        service.ask("Which one, A or B?")
        service.wait_until_idle()
        assert log.read_bytes().startswith(before)
        assert json.loads(run(*line(log, models, "--json")).stdout)["changed"] == 2
        rows = rows_of(log.with_name("calls.judged.jsonl"))
    assert len(behave.shown) == 20
    assert all("A or B?" in prompt for prompt in behave.shown)
    assert not any("prompt" in row for row in rows)
    said = {row["query"]: row["answer"] for row in rows if row["model"] == "large"}
    for row in rows:
        if row["model"] != "large":
            assert row["judged_same"] == (row["answer"] == said[row["query"]])
            assert (row["same_as"], row["graded_by_judged_same"]) == ("large", "judge:middle")


def test_ungradable_calls_are_counted(place):
    """No prompt, no text, no answer of the reference, a failed call, a query for one model."""
    log = place / "calls.jsonl"
    asked = [{"role": "user", "content": "B or C?"}]
    told = {"request_settings": ASKED, "messages": asked}
    with CallLog(log, prompts=True) as calls:
        for one in (*both("1", **told), *both("2", **told), *both("3", request_settings=ASKED)):
            calls.write(one)
        calls.write(call("none", answer=None, **told))
        calls.write(call("none", "large", **told))
        calls.write(call("alone", **told))
        calls.write(call("failed", error="HTTP 500", **told))
        calls.write(call("failed", "large", **told))
        calls.write(call("deferred", is_shadow_query=False, **told))
        calls.write(call("1", answer="again", **told))
    before = log.read_bytes()
    with served(Judge()) as (_, url):
        models = write_models(place / "models.toml", url, ["large"])
        result = run("grade", log, "--reference", "large", *_by_large(models), "--json")
        assert result.exit_code == 0, result.stderr
        document = json.loads(result.stdout)
        shown = flat(run("grade", log, "--reference", "large", *_by_large(models)).stdout)
    assert log.read_bytes() == before
    assert document["graded"] == 2
    assert {why.split(" (")[0]: number for why, number in document["left_out"].items()} == {
        "to questions that are not in the log": 1,
        "whose text is not in the log": 1,
        "to queries without an answer of large in the log": 1,
        **{"that failed": 1, "of queries that did not go to all models": 1, "repeated": 1},
    }
    assert all(f"{number} {why}" in shown for why, number in document["left_out"].items())


def _by_large(models):
    return "--grade", "judge:large", "--models", models


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (("calls",), "nothing can be graded: left out are 1 to questions that are not in the log"),
        (("calls", "--out", "calls"), "must not be the file of ANSWERS"),
        (("calls", "--out", "collected"), "collected.jsonl: this is a log of rcjax collect: give another --out"),
        (("collected", "--out", "out"), "goes with the log of a service"),
        (("alone", "--out", "out"), "no answer of large, the reference"),
        (("deferred", "--out", "out"), "let rcjax serve --shadow 5% write the log"),
        (("nothing",), "give the log that rcjax collect, or rcjax serve --log, has written"),
    ],
)
def test_a_log_without_gradable_answers_is_reported(files, words, place):
    one = call("1", request_settings=ASKED)
    logs = {
        "calls": both("1", request_settings=ASKED),
        "alone": [one],
        "deferred": [call("1", is_shadow_query=False, request_settings=ASKED)],
    }
    for name, calls in logs.items():
        with CallLog(place / f"{name}.jsonl") as file:
            for answer in calls:
                file.write(answer)
    row = rows_of(place / "alone.jsonl")[0] | {"call": "a", "text": "B", "reference": [], "question_digest": ""}
    (place / "collected.jsonl").write_text(json.dumps(row))
    models = write_models(place / "models.toml", "http://127.0.0.1:9", ["large"])
    paths = [part if part.startswith("-") else place / f"{part}.jsonl" for part in files]
    result = run("grade", *paths, "--reference", "large", *_by_large(models))
    assert result.exit_code in (1, 2)
    assert words in flat(re.sub("[│╭╮╰╯─]", "", result.stderr))


def _write_week(path, seed, n, worse=False):
    """The log of a service for a week: what three models said to shadow queries, one in two of them free text."""
    logprob, said = letters(n, seed, worse)
    with CallLog(path, prompts=True) as calls:
        for i in range(n):
            query = f"s{seed}-{i}"
            for j, name in enumerate(NAMES.values()):
                answer = f"Well, number {said[i, j]} it is"
                facts = {"cost": COSTS[name], "logprob": float(logprob[i, j]), "request_settings": ASKED}
                messages = [{"role": "user", "content": f"What about {query}?"}]
                calls.write(call(query, name, answer=answer, messages=messages, **facts))
    return path


@pytest.mark.thorough
def test_the_loop_of_free_text_runs_without_a_person(place, monkeypatch):
    """Grade, check, retune: fine where nothing changes, a new policy where the models do."""
    monkeypatch.chdir(place)
    first, same, worse = (_write_week(place / f"week-{seed}.jsonl", seed, 192, worse=seed == 2) for seed in range(3))
    with served(Judge()) as (_, url):
        models = write_models(place / "models.toml", url, ["large"])
        models.write_text(models.read_text().replace('"large"', '"middle"'))
        for week in (first, same, worse):
            result = run(*line(week, models))
            assert result.exit_code == 0, result.stderr
    first, same, worse = (week.with_name(f"{week.stem}.judged.jsonl") for week in (first, same, worse))
    policy, how = place / "policy.json", ("--reference", "large", "--same", "judge:middle", "--task", "choice")
    tuned = run("tune", first, *how, "--max-error", "12%", "--no-bands", "--out", policy)
    assert tuned.exit_code == 0, (tuned.stderr, tuned.exception)
    assert load_policy(policy).provenance["same_as"]["same"] == "judge:middle"
    assert run("check", policy, same, "--no-retuning").exit_code == 0
    raw = run("check", policy, place / "week-1.jsonl", "--no-retuning")  # ungraded: only what needs no labels
    assert (raw.exit_code, "Without labels: no figure of all traffic changed" in flat(raw.stdout)) == (0, True)
    assert "week-1.jsonl --reference large --grade judge:middle" in flat(raw.stdout).rpartition("Next: compare")[2]
    raw = run("check", policy, place / "week-1.jsonl", "--labels", place / "none.csv", "--no-retuning")
    assert (raw.exit_code, "none.csv" in flat(raw.stderr)) == (2, True)
    labels = place / "labels.csv"
    cells = [f"s1-{i},{name},{i % 7 != 0:d}" for i in range(60) for name in NAMES.values()]
    labels.write_text("\n".join(["query,model,correct", *cells]))
    evaluated = run("evaluate", policy, same, "--labels", labels, "--json")
    assert evaluated.exit_code == 0, (evaluated.stderr, evaluated.exception)
    assert json.loads(evaluated.stdout)["reference"]["errs"] is not None
    assert run("check", policy, worse, "--no-retuning").exit_code == 1
    retuned = run("retune", policy, worse, "--out", policy)
    assert retuned.exit_code == 0, (retuned.stderr, retuned.exception)
    assert not math.isnan(load_policy(policy).expected["error"])
