"""`rcjax collect` against a server that fails in every way: nothing is lost, nothing is paid for twice."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from chat_server import KEY, Response, completion, served, sure
from command_line import run
from hypothesis import given, settings
from hypothesis import strategies as st
from misses import in_turn
from models_of_a_test import ABILITIES, ENVIRONMENT, PRICES, Models, money, questions, write_models, write_questions
from statsmodels.stats.proportion import proportion_confint

import rcjax
from rcjax.logs import LeftOutWarning

pytestmark = pytest.mark.usefixtures("own_settings")


def collect(place, behave, *options, n=20, names=tuple(ABILITIES), rows=None, more=""):
    """(the result, the server) of a run in this process."""
    asked = write_questions(place / "questions.jsonl", questions(n) if rows is None else rows)
    with served(behave) as (server, url):
        models = write_models(place / "models.toml", url, names, more)
        result = run("collect", asked, "--models", models, "--out", place / "answers.jsonl", *options)
    return result, server


def lines(place):
    return [json.loads(line) for line in (place / "answers.jsonl").read_text().splitlines()]


def answers(place):
    return [row for row in lines(place) if row["error"] is None]


def test_every_model_answers_every_question_once(place):
    behave = Models(failures=0.05)
    result, _ = collect(place, behave, "--signal", "choice", n=300)
    assert result.exit_code == 0, result.stderr
    rows = answers(place)
    assert Counter((row["query"], row["model"]) for row in rows) == Counter(
        (f"q{i}", name) for i in range(300) for name in ABILITIES
    )
    assert {row["answer"] == row["reference"][0] for row in rows if row["correct"]} == {True}
    assert {row["subject"] for row in rows} == {"odd", "even"}
    assert sum(Decimal(str(row["cost"])) for row in rows) == behave.charged
    log = rcjax.read_log(place / "answers.jsonl", task="choice")
    assert log.models == ("tiny", "small", "medium", "large")
    assert log.complete.all()
    assert "300 answered by all" in result.stdout
    assert "--task choice" in " ".join(result.stdout.split())
    assert not (place / "answers.jsonl.under-way").exists()


def test_the_same_command_again_asks_nothing(place):
    collect(place, Models())
    before = (place / "answers.jsonl").read_bytes()
    result, server = collect(place, Models())
    assert result.exit_code == 0
    assert server.requests == []
    assert (place / "answers.jsonl").read_bytes() == before


def test_a_new_model_alone_is_asked(place):
    collect(place, Models(), names=["tiny", "large"])
    result, server = collect(place, Models(), names=["tiny", "small", "large"])
    assert result.exit_code == 0
    assert {request["model"] for request in server.requests} == {"org/small"}
    assert len(answers(place)) == 60


def test_a_larger_sample_holds_the_smaller_one(place):
    collect(place, Models(), "--limit", 5, names=["tiny"])
    asked = {row["query"] for row in answers(place)}
    assert len(asked) == 5
    collect(place, Models(), "--limit", 9, names=["tiny"])
    assert asked < {row["query"] for row in answers(place)}
    assert len(answers(place)) == 9


def test_who_is_down_does_not_hold_up_the_others(place):
    class Down(Models):
        def __call__(self, request, headers):
            if request["model"] == "org/small":
                return Response({}, hang=True)
            return super().__call__(request, headers)

    start = time.perf_counter()
    result, _ = collect(place, Down(), "--signal", "choice", "--timeout", "5")
    assert result.exit_code == 1
    assert Counter(row["model"] for row in answers(place)) == {"tiny": 20, "medium": 20, "large": 20}
    assert "small: 10 calls in a row have failed" in " ".join(result.stdout.split())
    assert time.perf_counter() - start < 60
    result, _ = collect(place, Models(), "--signal", "choice")
    assert result.exit_code == 0
    assert len(answers(place)) == 80


@in_turn(
    ("response", "says"),
    [
        (Response({"error": {"code": "invalid_api_key"}}, 401), "is its key right?"),
        (Response({"error": {"code": "model_not_found"}}, 404), "is its name right?"),
        (Response({"error": {"code": "insufficient_quota"}}, 429), "out of credit"),
        (Response({}, 429, {"retry-after": "7200"}), "left alone for 7,200 seconds"),
    ],
)
def test_a_model_that_will_not_answer_is_not_asked_again(response, says, place):
    result, server = collect(place, lambda request, headers: response, "--signal", "choice", names=["tiny"])
    assert result.exit_code == 1
    assert says in " ".join(result.stdout.split())
    assert len(server.requests) <= 8  # as many as were under way
    assert answers(place) == []


def test_a_rate_limit_is_obeyed(place):
    times = []

    def behave(request, headers):
        times.append(time.perf_counter())
        if len(times) == 1:
            return Response({}, 429, {"retry-after": "1"})
        return Models()(request, headers)

    result, _ = collect(place, behave, "--signal", "choice", "--concurrency", 1, n=3, names=["tiny"])
    assert result.exit_code == 0
    assert 1.0 <= times[1] - times[0] < 5.0


@in_turn("body", [b"", b"[]", b'{"choices": []}', b'{"choices": [{"message": {}}]}', b"\xff{"])
def test_malformed_replies_are_failed_calls(body, place):
    def behave(request, headers):
        return Response(body) if request["messages"][0]["content"].startswith("Question 3?") else Models()(request, {})

    result, _ = collect(place, behave, "--signal", "choice", n=5, names=["tiny"])
    assert result.exit_code == 0
    (failed,) = [row for row in lines(place) if row["error"]]
    assert failed["query"] == "q3"
    assert failed["cost"] <= failed["at_most"] > 0
    assert len(answers(place)) == 4


def test_without_log_probabilities_the_signal_is_another_one(place):
    class Stating(Models):
        def answer(self, name, prompt, counts):
            return completion("80%", None, counts) if "percentage" in prompt else super().answer(name, prompt, counts)

    result, _ = collect(place, Stating(logprobs=False), names=["tiny"], n=6)
    assert result.exit_code == 0
    assert "tiny: gives no log-probabilities: signal stated" in " ".join(result.stdout.split())
    rows = answers(place)
    assert {round(2.718281828459045 ** row["logprob"], 6) for row in rows} == {0.8}
    assert {row["output_tokens"] for row in rows} == {2}  # the second question is paid for
    assert json.loads(rows[0]["asked"])["signal"] == "stated"


def test_log_probabilities_that_are_dropped_are_told(place):
    result, _ = collect(place, Models(logprobs=False), "--signal", "choice", names=["tiny"])
    assert result.exit_code == 1
    assert "has no log-probabilities" in result.stdout


def test_tokens_that_are_not_counted_are_estimated(place):
    result, _ = collect(place, Models(usage=False), "--signal", "choice", names=["tiny"], n=4)
    assert result.exit_code == 0
    for row in answers(place):
        assert row["estimated"]
        assert 0 < row["cost"] <= row["at_most"]


@given(
    st.integers(1, 60),
    st.sampled_from([0.0, 0.3]),
    st.booleans(),
    st.lists(st.integers(0, 60), min_size=30, max_size=30),
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(0, 999), st.integers(0, 9999)), min_size=4, max_size=4),
)
@settings(max_examples=12, deadline=None)
def test_the_budget_is_never_exceeded(thousandths, failures, usage, lengths, concurrency, cents):
    rows = [row | {"prompt": row["prompt"] + " é" * lengths[i % 30]} for i, row in enumerate(questions(40))]
    options = ["--signal", "choice", "--concurrency", concurrency, "--budget", thousandths / 1000]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv(*next(iter(ENVIRONMENT.items())))
        for name, (read, written) in zip(ABILITIES, cents, strict=True):
            patch.setitem(PRICES, name, (read / 100, written / 100))
        behave = Models(failures=failures, usage=usage)
        budget = thousandths / 1000
        result, _ = collect(Path(folder), behave, *options, "--json", rows=rows)
        assert behave.charged <= Decimal(str(budget))
        document = json.loads(result.stdout)
        assert behave.charged <= Decimal(str(document["spent"])) <= Decimal(str(budget))
        done = len(answers(Path(folder)))
        failed = sum(row["error"] is not None for row in lines(Path(folder)))
        assert document["budget_spent"] or done + failed == 160
        # A second run has what is left, and no more.
        collect(Path(folder), behave, *options, rows=rows)
        assert behave.charged <= Decimal(str(budget))


def start(place, url, *options, names=tuple(ABILITIES), under=()):
    """A run in a process of its own, `under` another program."""
    write_models(place / "models.toml", url, names)
    line = [sys.executable, "-c", "from rcjax.cli import main; main()", "collect", place / "questions.jsonl"]
    line += ["--models", place / "models.toml", "--out", place / "answers.jsonl", "--signal", "choice", *options]
    line = [str(word) for word in [*under, *line]]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(behave, more, process):
    goal = sum(behave.asked.values()) + more
    while sum(behave.asked.values()) < goal and process.poll() is None:
        time.sleep(0.002)


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.thorough)])
def test_after_many_kills_the_log_is_the_same(kills, place):
    behave = Models(failures=0.05, delay=0.03)
    write_questions(place / "questions.jsonl", questions(150))
    in_flight = 0
    with served(behave) as (_, url):
        for kill in range(kills):
            process = start(place, url, names=["tiny", "large"])
            wait_for(behave, 8, process)
            process.kill()
            _, told = process.communicate()
            if kill and "were under way" in told:
                in_flight += int(told.split("warning: ")[1].split()[0])
        process = start(place, url, names=["tiny", "large"])
        _, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    in_flight += int(told.split("warning: ")[1].split()[0])
    rows = {(row["query"], row["model"]): row for row in answers(place)}
    assert len(rows) == len(answers(place)) == 300
    again = sum(count - 1 for count in behave.asked.values())
    assert 0 < again <= in_flight
    assert sum(row["error"].startswith("the run ended") for row in lines(place) if row["error"]) == in_flight
    # What was paid for and lost counts at its most.
    assert behave.charged <= sum(row["at_most"] for row in lines(place))
    with pytest.warns(LeftOutWarning):
        killed = rcjax.read_log(place / "answers.jsonl", task="choice")
    (place / "answers.jsonl").unlink()
    collect(place, Models(), "--signal", "choice", n=150, names=["tiny", "large"])
    whole = rcjax.read_log(place / "answers.jsonl", task="choice")
    order = [killed.queries.index(query) for query in whole.queries]
    assert killed.take(order).digest == whole.digest


def test_an_interrupt_finishes_the_calls_under_way(place):
    behave = Models(delay=0.2)
    write_questions(place / "questions.jsonl", questions(400))
    with served(behave) as (_, url):
        process = start(place, url)
        wait_for(behave, 20, process)
        process.send_signal(signal.SIGINT)
        shown, told = process.communicate(timeout=60)
        assert process.returncode == 130, told
        assert "finishing the calls under way" in told
        assert "the same command again" in " ".join(shown.split())
        assert len(answers(place)) == sum(behave.asked.values())
        assert not (place / "answers.jsonl.under-way").exists()


def test_a_second_interrupt_does_not_wait(place):
    behave = Models(delay=30.0)
    write_questions(place / "questions.jsonl", questions(40))
    with served(behave) as (_, url):
        process = start(place, url)
        wait_for(behave, 8, process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        before = time.perf_counter()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
        assert time.perf_counter() - before < 15
    assert process.returncode == 130, told
    assert "Traceback" not in told
    lost = [row for row in lines(place) if row["error"]]
    assert lost
    assert all(row["at_most"] > 0 for row in lost)


def test_a_full_disk_loses_nothing_that_was_paid_for(place):
    behave = Models(delay=0.05)
    write_questions(place / "questions.jsonl", questions(200))

    # As on a full disk, a write fails.
    limited = ["bash", "-c", "trap '' XFSZ; ulimit -f 1075; exec \"$@\"", "limited"]
    (place / "answers.jsonl").write_text("")
    with served(behave) as (_, url):
        process = start(place, url, under=limited)
        _, told = process.communicate(timeout=120)
        done = len({row["call"] for row in answers(place)})  # one that was graded has a line before and after
        assert process.returncode in (0, 1)
        assert "Traceback" not in told
        process = start(place, url)
        _, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    assert len(answers(place)) == 800
    assert done <= 800


def test_two_runs_do_not_write_to_one_file(place):
    behave = Models(delay=0.3)
    write_questions(place / "questions.jsonl", questions(60))
    with served(behave) as (_, url):
        process = start(place, url)
        wait_for(behave, 4, process)
        result = run(
            "collect", place / "questions.jsonl", "--models", place / "models.toml", "--out", place / "answers.jsonl"
        )
        assert result.exit_code == 1
        assert "another rcjax collect writes to it" in result.stderr
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_the_key_is_nowhere(place):
    class Telling(Models):
        def wrong(self, draw):
            return Response({"error": {"message": f"your key {KEY} is odd", "code": KEY}}, 500)

    result, _ = collect(place, Telling(failures=0.3), n=30)
    again = run("grade", place / "answers.jsonl", "--grade", "contains")
    probe = run("collect", "--probe", "--models", place / "models.toml")
    written = [path.read_text(errors="replace") for path in place.rglob("*") if path.is_file()]
    printed = [part for one in (result, again, probe) for part in (one.stdout, one.stderr)]
    assert not any(KEY in text for text in [*written, *printed])
    assert not any("Question 1?" in text for text in [(place / "answers.jsonl").read_text(), *printed])


def test_the_key_of_openai_goes_to_openai_alone(place, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-for-openai-alone")
    monkeypatch.delenv("KEY_OF_THE_TEST")
    heads = []

    def behave(request, headers):
        heads.append(headers["authorization"])
        return Response(sure("A", -0.1))

    asked = write_questions(place / "questions.jsonl", questions(2))
    with served(behave, key="none") as (_, url):
        models = write_models(place / "models.toml", url, ["tiny"])
        models.write_text(models.read_text().replace('key_env = "KEY_OF_THE_TEST"\n', ""))
        result = run("collect", asked, "--models", models, "--out", place / "answers.jsonl", "--signal", "choice")
    assert result.exit_code == 0, result.stdout
    assert {*heads} == {"bearer none"}


def test_a_key_that_is_not_set(place, monkeypatch):
    monkeypatch.delenv("KEY_OF_THE_TEST")
    result, server = collect(place, Models())
    assert result.exit_code == 1
    assert "model tiny: the environment variable KEY_OF_THE_TEST with its key is not set" in result.stderr
    assert server.requests == []
    assert not (place / "answers.jsonl").exists()


def test_a_dry_run_asks_nothing(place):
    result, server = collect(place, Models(), "--dry-run", "--json", "--budget", "0.0001")
    assert result.exit_code == 0
    assert server.requests == []
    assert not (place / "answers.jsonl").exists()
    document = json.loads(result.stdout)
    by_model = {row["model"]: row for row in document["estimate"]}
    assert [row["questions"] for row in by_model.values()] == [20] * 4
    assert all(row["likely_cost"] <= row["most_cost"] for row in by_model.values())
    assert by_model["large"]["likely_cost"] / by_model["tiny"]["likely_cost"] == pytest.approx(100, rel=0.1)
    assert 0 < document["reach"] < 1


def test_the_estimate_is_near_what_it_costs(place):
    behave = Models()
    result, _ = collect(place, behave, "--signal", "choice", "--json", n=60)
    document = json.loads(result.stdout)
    likely = sum(row["likely_cost"] for row in document["estimate"])
    assert float(behave.charged) == pytest.approx(likely, rel=0.3)
    assert behave.charged <= sum(row["most_cost"] for row in document["estimate"])


def test_a_probe_says_what_models_can_do(place):
    def behave(request, headers):
        if request["model"] == "org/tiny" and "logprobs" in request:
            return Response({"error": {"code": "unsupported_parameter"}}, 400)
        if request["model"] == "org/small":
            return Response({"error": {"code": "invalid_api_key"}}, 401)
        body = completion("A", None if request["model"] == "org/tiny" else [("A", {"A": -0.1, "B": -3.0})])
        return Response(body | {"choices": body["choices"] * request.get("n", 1)})

    with served(behave) as (server, url):
        models = write_models(place / "models.toml", url, ["tiny", "small", "large"])
        result = run("collect", "--probe", "--models", models, "--json")
        shown = run("collect", "--probe", "--models", models).stdout
    assert result.exit_code == 1
    tiny, small, large = json.loads(result.stdout)["models"]
    assert (tiny["logprobs"], tiny["samples"], tiny["signals"]) == (False, True, ["votes", "stated"])
    assert small["error"] == "HTTP 401 (invalid_api_key)"
    assert (large["logprobs"], large["top"], large["counted"]) == (True, 2, True)
    assert large["signals"] == ["choice", "verification", "votes", "stated", "mean"]
    assert "does not answer" in shown
    assert [request["model"] for request in server.requests[:6]].count("org/large") <= 2


def test_one_log_has_one_way_to_ask_a_model(place):
    collect(place, Models(), names=["tiny"])
    result, _ = collect(place, Models(), "--signal", "stated", names=["tiny"])
    assert result.exit_code == 1
    assert "its answers were asked for with the signal 'choice', not 'stated'" in result.stderr
    result, _ = collect(place, Models(), names=["tiny"], more="options = { temperature = 0.5 }")
    assert result.exit_code == 1
    assert "--again asks for them anew, --new-out FILE begins another log" in result.stderr


def test_the_policy_tells_how_its_models_were_asked(place):
    collect(place, Models(), n=60, names=["tiny", "large"], more="options = { temperature = 0.0 }")
    log = rcjax.read_log(place / "answers.jsonl", task="choice")
    assert log.asked["tiny"]["choices"] == ["A", "B"]
    out = place / "policy.json"
    result = run("tune", place / "answers.jsonl", "--task", "choice", "--max-error", "20%", "--no-bands", "--out", out)
    assert result.exit_code == 0, result.stderr
    policy = rcjax.load_policy(out)
    asked = policy.provenance["asked"]["large"]
    assert (asked["signal"], asked["options"]) == ("choice", {"max_tokens": 16, "temperature": 0.0})
    assert rcjax.retune(policy, log.take(slice(40))).policy.provenance["asked"] == policy.provenance["asked"]


def test_several_graders_by_kind(place):
    rows = [row | {"grade": "letter" if i % 2 else "any"} for i, row in enumerate(questions(8))]
    result, _ = collect(
        place, Models(), "--grade", "letter=choice", "--grade", "any=regex:.", rows=rows, names=["tiny"]
    )
    assert result.exit_code == 0, result.stderr
    by_kind = {row["grade"]: row["graded_by"] for row in answers(place)}
    assert by_kind == {"letter": "choice", "any": "regex:."}
    assert all(row["correct"] for row in answers(place) if row["grade"] == "any")


class WithJudge(Models):
    """The largest model judges: right where the answer is among the right ones, by the lines of the rubric."""

    def __call__(self, request, headers):
        prompt = request["messages"][-1]["content"]
        if not prompt.startswith("You grade"):
            return super().__call__(request, headers)
        self.judged = getattr(self, "judged", 0) + 1
        right, answer = (re.search(rf"<{part} \w+>\n(.*)", prompt)[1] for part in ("right_answer", "answer"))
        self.charged += money("large", len(prompt) // 4, 1)
        return Response(completion("Y" if answer == right else "N", None, (len(prompt) // 4, 1)))


def test_a_judge_costs_money_and_is_blind(place):
    behave = WithJudge()
    result, server = collect(place, behave, "--grade", "judge:large", "--json", n=12, names=["tiny", "large"])
    assert result.exit_code == 0, result.stderr
    rows = answers(place)
    assert behave.judged == 24
    assert [row["correct"] for row in rows] == [row["answer"] == row["reference"][0] for row in rows]
    assert len(lines(place)) == 24 + 2  # one line for each call, and the probes
    assert json.loads(result.stdout)["spent"] == pytest.approx(float(behave.charged), rel=1e-9)
    judged = [
        r["messages"][0]["content"] for r in server.requests if r["messages"][0]["content"].startswith("You grade")
    ]
    assert not any("tiny" in prompt or "org/" in prompt for prompt in judged)


def test_a_judge_that_fails_can_be_asked_later(place):
    class Away(WithJudge):
        def __call__(self, request, headers):
            if request["messages"][-1]["content"].startswith("You grade"):
                return Response({}, 401)
            return super().__call__(request, headers)

    result, _ = collect(place, Away(), "--grade", "judge:large", n=6, names=["tiny"], rows=None)
    shown = " ".join(result.stdout.split())
    assert "no model of this name" in result.stderr or "the judge large" in shown
    with served(Away()) as (_, url):
        models = write_models(place / "models.toml", url, ["tiny", "large"])
        out = ["--models", models, "--out", place / "answers.jsonl"]
        result = run("collect", place / "questions.jsonl", *out, "--grade", "judge:large")
        assert "grading stopped: the judge large: HTTP 401" in " ".join(result.stdout.split())
        assert all(row["correct"] is None for row in answers(place))
    behave = WithJudge()
    with served(behave) as (_, url):
        write_models(place / "models.toml", url, ["tiny", "large"])
        result = run("collect", place / "questions.jsonl", *out, "--grade", "judge:large")
        assert result.exit_code == 0, result.stderr
    assert behave.asked == Counter()
    assert behave.judged == 12
    assert all(row["correct"] is not None for row in answers(place))


def test_a_judge_has_a_column_of_its_own(place):
    """Verdicts into judged leave the labels as they are, and are read as those of a judge."""
    collect(place, Models(), "--grade", "regex:^A", names=["tiny", "large"])
    labels = [row["correct"] for row in answers(place)]
    line = ["grade", place / "answers.jsonl", "--grade", "contains", "--into", "judged_b", "--json"]
    document = json.loads(run(*line).stdout)
    rows = answers(place)
    assert [row["correct"] for row in rows] == labels
    assert {row["judged_b"] for row in rows} <= {True, False}
    assert {row["graded_by_judged_b"] for row in rows} == {"contains"}
    assert {row["graded_by"] for row in rows} != {"contains"}
    assert document["graded"] == len(rows) == document["changed"]
    assert json.loads(run(*line).stdout)["changed"] == 0
    assert run("grade", place / "answers.jsonl", "--into", "judgement").exit_code == 2
    log = rcjax.read_log(place / "answers.jsonl", task="choice")
    assert log.hand is not None
    assert log.hand.judges == ("judged_b",)


def test_grading_again_asks_no_model(place):
    collect(place, Models(), "--grade", "regex:^A", names=["tiny"])
    assert {row["correct"] for row in answers(place)} == {True, False}
    result = run("grade", place / "answers.jsonl", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["graded"] == 20
    assert document["changed"] > 0
    assert [row["correct"] for row in answers(place)] == [
        row["answer"] == row["reference"][0] for row in answers(place)
    ]
    again = json.loads(run("grade", place / "answers.jsonl", "--json").stdout)
    assert again["changed"] == 0


def test_an_audit_by_hand(place):
    collect(place, Models(), names=["tiny", "large"])
    table = place / "answers.audit.csv"
    line = ["grade", place / "answers.jsonl", "--questions", place / "questions.jsonl", "--audit", 25]
    written = run(*line)
    assert written.exit_code == 0, written.stderr
    assert "25 answers to grade by hand are in" in " ".join(written.stdout.split())
    frame = pl.read_csv(table)
    assert frame.columns == ["id", "question", "right_answer", "answer", "correct"]
    assert frame["question"][0].startswith("Question")
    assert not any(name in table.read_text() for name in ("tiny", "large", "true", "false"))
    assert "nothing is graded" in " ".join(run(*line).stdout.split())
    verdicts = [int(row["answer"] == row["right_answer"]) for row in frame.iter_rows(named=True)]
    verdicts[0] = 1 - verdicts[0]
    frame.with_columns(correct=pl.Series(verdicts)).write_csv(table)
    both = json.loads(run(*line, "--json").stdout)["audit"]["agreement"]
    assert (both["n"], both["agree"], both["too_kind"] + both["too_strict"]) == (25, 24, 1)
    assert (both["low"], both["high"]) == pytest.approx(proportion_confint(24, 25, alpha=0.1, method="wilson"))
    frame.with_columns(correct=pl.lit("perhaps")).write_csv(table)
    refused = run(*line)
    assert refused.exit_code == 1
    assert "answers.audit.csv, row 2: correct is 'perhaps': give 1 or 0" in refused.stderr


def test_an_audit_with_the_run(place):
    result, _ = collect(place, Models(), "--audit", 12, names=["tiny"])
    assert result.exit_code == 0, result.stderr
    table = place / "answers.audit.csv"
    frame = pl.read_csv(table)
    assert frame.height == 12
    frame.with_columns(correct=(pl.col("answer") == pl.col("right_answer")).cast(int)).write_csv(table)
    result, server = collect(place, Models(), "--audit", 12, "--json", names=["tiny"])
    assert server.requests == []
    assert json.loads(result.stdout)["audit"]["agreement"]["agree"] == 12


@pytest.mark.skipif(os.name != "posix", reason="a terminal")
def test_progress_is_shown_on_a_terminal_alone(place):
    result, _ = collect(place, Models(), names=["tiny"])
    assert "━" not in result.stderr


@in_turn(
    ("options", "says"),
    [
        ("{ max_tokns = 3 }", "model tiny: options: the client knows no max_tokns"),
        ("{ stream = true }", "stream cannot be used"),
        ("{ model = 'x' }", "model cannot be set for every question"),
        ("{ max_tokens = '3' }", "model tiny: options: max_tokens must be a whole number"),
    ],
)
def test_options_that_no_model_takes(options, says, place):
    result, server = collect(place, Models(), names=["tiny"], more=f"options = {options}")
    assert result.exit_code == 1
    assert says in result.stderr
    assert server.requests == []


@pytest.mark.parametrize(
    "content", ["Dear all\n", '{"prompt": "x"}\n', '{"call_log": 1, "query": "a", "model": "b"}\n']
)
def test_a_file_of_something_else_stays_as_it_is(content, place):
    (place / "answers.jsonl").write_text(content)
    result, server = collect(place, Models(), names=["tiny"])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("error: answers.jsonl, line 1: ")
    assert "give another --out" in result.stderr
    assert server.requests == []
    assert (place / "answers.jsonl").read_text() == content


@in_turn(
    ("line", "says"),
    [
        (["{questions}"], "give the file of the models"),
        (["--models", "{models}"], "Invalid value for QUESTIONS"),
        (["{questions}", "--models", "{models}"], "Invalid value for --out"),
        (["{questions}", "--models", "{models}", "--out", "{questions}"], "must not be the file of QUESTIONS"),
        (["{questions}", "--models", "{models}", "--out", "{models}"], "must not be the file of --models"),
        (["{questions}", "--models", "{models}", "--out", "log.csv"], "give a name that ends in .jsonl"),
        (["{questions}", "--models", "{models}", "--dry-run", "--signal", "sure"], "'sure' is no signal"),
        (["{questions}", "--models", "{models}", "--dry-run", "--budget", "0"], "not above 0"),
        (["{questions}", "--models", "{models}", "--dry-run", "--limit", "0"], "Invalid value for '--limit'"),
    ],
)
def test_usage_errors(line, says, place):
    names = {
        "questions": write_questions(place / "questions.jsonl", questions(2)),
        "models": write_models(place / "models.toml", "http://127.0.0.1:9/v1"),
    }
    result = run("collect", *[word.format(**names) for word in line], "--json")
    assert result.exit_code == 2, result.stderr
    assert says in json.loads(result.stdout)["error"]["message"]
