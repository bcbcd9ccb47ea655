"""`rcjax collect` against a server that fails in every way: nothing is lost, nothing is paid for twice."""

import asyncio
import json
import tempfile
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from helpers.chat_server import KEY, Response, completion, served
from helpers.collecting_runs import answers, collect, lines
from helpers.command_line import run
from helpers.sample_models import ABILITIES, ENVIRONMENT, PRICES, Models, questions, write_models, write_questions
from hypothesis import given, settings, strategies as st
from tiers import examples

import rcjax
from rcjax.collecting.respondent import Budget, Expense, Respondent
from rcjax.serving import openai_client
from rcjax.serving.models_file import read_models
from rcjax.serving.usage import CallUsage

pytestmark = pytest.mark.usefixtures("own_settings")


def test_every_model_answers_every_question_once(place):
    behave = Models(failures=0.05)
    result, _ = collect(place, behave, "--signal", "choice", n=60)
    assert result.exit_code == 0, result.stderr
    rows = answers(place)
    assert Counter((row["query"], row["model"]) for row in rows) == Counter(
        (f"q{i}", name) for i in range(60) for name in ABILITIES
    )
    assert {row["answer"] == row["reference"][0] for row in rows if row["correct"]} == {True}
    assert {row["subject"] for row in rows} == {"odd", "even"}
    assert behave.charged <= sum(Decimal(str(row["cost"])) for row in rows) <= behave.charged + behave.lost
    log = rcjax.read_log(place / "answers.jsonl", task="choice")
    assert log.models == ("tiny", "small", "medium", "large")
    assert log.complete.all()
    assert "60 answered by all" in result.stdout
    assert "--task choice" in " ".join(result.stdout.split())
    assert not (place / "answers.jsonl.under-way").exists()


def test_the_next_command_works(place):
    rows = [row | {"answer": None} for row in questions(22)]
    result, _ = collect(place, Models(), "--signal", "choice", rows=rows, names=["tiny", "large"])
    shown = " ".join(result.stdout.split())
    assert "Next: no answer is graded: give --grade (rcjax grade --help), or label some by hand: rcjax label" in shown
    assert f" --n 44 --questions {place / 'questions.jsonl'} --out to_label.csv" in shown
    (place / "answers.jsonl").unlink()
    result, _ = collect(place, Models(), "--signal", "choice", names=["tiny"])
    assert result.stdout.endswith("Next: add the answers of another model: a cascade needs two\n")


def test_the_same_command_again_asks_nothing(place):
    collect(place, Models())
    before = (place / "answers.jsonl").read_bytes()
    result, server = collect(place, Models())
    assert result.exit_code == 0
    assert server.requests == []
    assert (place / "answers.jsonl").read_bytes() == before


def test_a_model_that_is_down_does_not_delay_the_others(place):
    class Down(Models):
        others_asked = asyncio.Event()

        def __call__(self, request, headers):
            if request["model"] == "org/small":
                return Response({}, hang=True, held=self.others_asked)
            response = super().__call__(request, headers)
            if len(self.asked) == 60:
                self.others_asked.set()
            return response

    result, server = collect(place, Down(), "--signal", "choice", "--timeout", "60")
    assert result.exit_code == 1
    assert Counter(row["model"] for row in answers(place)) == {"tiny": 20, "medium": 20, "large": 20}
    assert "small: 10 calls in a row have failed" in " ".join(result.stdout.split())
    models = [request["model"] for request in server.requests]
    last = max(place for place, model in enumerate(models) if model != "org/small")
    assert models[: last + 1].count("org/small") <= 8  # the calls that were held at once
    result, _ = collect(place, Models(), "--signal", "choice")
    assert result.exit_code == 0
    assert len(answers(place)) == 80


@pytest.mark.parametrize(
    ("response", "says"),
    [
        (Response({"error": {"code": "invalid_api_key"}}, 401), "is its key right?"),
        (Response({"error": {"code": "model_not_found"}}, 404), "is its name right?"),
        (Response({"error": {"code": "insufficient_quota"}}, 429), "out of credit"),
        (Response({}, 429, {"retry-after": "7200"}), "asks for a back-off of 7,200 seconds"),
    ],
)
def test_a_model_that_will_not_answer_is_not_asked_again(response, says, place):
    result, server = collect(place, lambda request, headers: response, "--signal", "choice", names=["tiny"])
    assert result.exit_code == 1
    assert says in " ".join(result.stdout.split())
    assert len(server.requests) <= 8  # as many as were under way
    assert answers(place) == []


def test_a_model_that_never_answers_has_no_signal_and_a_reason(place):
    """The table showed the signal stated, beside that of the others, and a rate limit had no advice."""

    def behave(request, headers):
        limit = Response({"error": {"code": "rate_limit_exceeded"}}, 429, {"retry-after-ms": "1"})
        return limit if request["model"] == "org/small" else Models()(request, headers)

    result, _ = collect(place, behave, names=["tiny", "small", "large"], n=3)
    words = " ".join(result.stdout.split())
    assert "small – 0 0 – – –" in words
    assert "tiny choice 3 " in words
    assert "HTTP 429 (rate_limit_exceeded): its rate limit is reached: try again later, or give a lower" in words


def test_a_model_without_replies_is_stopped(place):
    result, server = collect(
        place,
        lambda request, headers: Response(completion("")),
        "--signal",
        "choice",
        "--concurrency",
        1,
        names=["tiny"],
    )
    assert "10 calls in a row have failed, the last one with: an answer without text" in " ".join(result.stdout.split())
    assert (result.exit_code, len(server.requests)) == (1, 10)


def test_a_rate_limit_is_obeyed(place):
    times = []

    def behave(request, headers):
        times.append(time.perf_counter())
        if len(times) == 1:
            return Response({}, 429, {"retry-after": "1"})
        return Models()(request, headers)

    result, _ = collect(place, behave, "--signal", "choice", "--concurrency", 1, n=3, names=["tiny"])
    assert result.exit_code == 0
    assert times[1] - times[0] >= 0.99  # a clock tick early; the back-off of tests is a twentieth of it


def test_a_rate_limit_of_no_seconds_is_backed_off_from(place, monkeypatch):
    """Eleven requests came in a burst, and the answer was given up."""
    monkeypatch.setattr(openai_client, "BACKOFF_SECONDS", (0.2, 0.2))
    times = []

    def behave(request, headers):
        times.append(time.perf_counter())
        return Response({}, 429, {"retry-after": "0"}) if len(times) < 3 else Models()(request, headers)

    result, _ = collect(place, behave, "--signal", "choice", n=1, names=["tiny"])
    assert result.exit_code == 0
    assert times[2] - times[0] >= 0.29


def test_a_server_says_whether_a_retry_is_of_use(place):
    """By the header that OpenAI's client obeys, whatever the status."""
    said = [Response({}, 401, {"x-should-retry": "true"}), Response({}, 503, {"x-should-retry": "false"})]
    result, server = collect(place, lambda request, headers: said.pop(0), "--signal", "choice", n=1, names=["tiny"])
    assert (result.exit_code, len(server.requests)) == (1, 2)
    assert [(row["error"], row["attempts"]) for row in lines(place)] == [("HTTP 503", 2)]


def test_a_model_that_waits_for_its_rate_limit_says_so(place, monkeypatch):
    sleep, limited, statuses = asyncio.sleep, [], iter((429, 200))

    def behave(request, headers):
        return Response(completion("A"), next(statuses), {"retry-after-ms": "100"})

    async def ask(settings):
        respondent = Respondent(settings)

        async def watch(seconds):
            limited.append(respondent.is_limited)
            await sleep(seconds)

        monkeypatch.setattr(asyncio, "sleep", watch)
        options, expense = {"max_tokens": 1}, Expense(Budget(), lambda _: None)
        request = respondent.make_request([{"role": "user", "content": "So?"}], options)
        await respondent.send(request, CallUsage(), expense=expense)
        limited.append(respondent.is_limited)
        await respondent.close()

    with served(behave) as (_, url):
        asyncio.run(ask(read_models(write_models(place / "models.toml", url, ["tiny"]))["tiny"]))
    assert limited[0]
    assert not limited[-1]


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
    assert all(0 < row["signal_cost"] < row["cost"] for row in rows)
    assert json.loads(rows[0]["request_settings"])["signal"] == "stated"


def test_tokens_that_are_not_counted_are_estimated(place):
    result, _ = collect(place, Models(usage=(0, 0)), "--signal", "choice", names=["tiny"], n=4)
    assert result.exit_code == 0
    for row in answers(place):
        assert row["estimated"]
        assert 0 < row["cost"] <= row["at_most"]


@given(
    st.integers(1, 60),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([True, None, (0, 0)]),
    st.lists(st.integers(0, 60), min_size=30, max_size=30),
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(0, 999), st.integers(0, 9999)), min_size=4, max_size=4),
)
@settings(max_examples=examples(20), deadline=None)
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
        assert failed or done == 4 * document["answered_by_all"]  # question by question
        # A second run has what is left, and no more.
        collect(Path(folder), behave, *options, rows=rows)
        assert behave.charged <= Decimal(str(budget))


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


def test_a_dry_run_asks_nothing(place):
    result, server = collect(place, Models(), "--dry-run", "--json", "--budget", "0.0001")
    assert result.exit_code == 0
    assert server.requests == []
    assert not (place / "answers.jsonl").exists()
    document = json.loads(result.stdout)
    by_model = {row["model"]: row for row in document["estimate"]}
    assert [row["questions"] for row in by_model.values()] == [20] * 4
    assert all(row["likely_cost"] <= row["max_cost"] for row in by_model.values())
    assert by_model["large"]["likely_cost"] / by_model["tiny"]["likely_cost"] == pytest.approx(100, rel=0.1)


def test_a_dry_run_names_second_questions_and_what_cannot_be_graded(place):
    rows = [{"query": f"q{i}", "prompt": "Why?", **({"answer": "so"} if i else {})} for i in range(5)]
    result, _ = collect(place, Models(), "--dry-run", rows=rows, names=["tiny", "large"])
    words = " ".join(result.stdout.split())
    assert "10 calls to make" in words
    assert "requests 10 more: a second question about each answer" in words
    assert "1 question without a right answer, hence without verdicts: give right answers, or" in words
    result, _ = collect(place, Models(), "--dry-run", names=["tiny", "large"])
    assert "requests" not in result.stdout
    assert "right answer" not in result.stdout


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
        chosen = run("collect", "--probe", "--models", models, "--signal", "verification").stdout
    assert "tiny: its signal is verification, and it can give votes, stated" in " ".join(chosen.split())
    assert "large: its signal" not in chosen
    assert "its signal" not in shown
    assert result.exit_code == 1
    tiny, small, large = json.loads(result.stdout)["models"]
    assert (tiny["logprobs"], tiny["samples"], tiny["signals"]) == (False, True, ["votes", "stated"])
    assert small["error"] == "HTTP 401 (invalid_api_key): is its key right?"
    assert (large["logprobs"], large["top"], large["counted"]) == (True, 2, True)
    assert large["signals"] == ["choice", "verification", "votes", "stated", "mean"]
    assert "does not answer" in shown
    assert [request["model"] for request in server.requests[:6]].count("org/large") <= 2


def test_a_probe_is_no_dry_run(place):
    """It asked each model although a dry run asks nothing."""
    with served(Models()) as (server, url):
        models = write_models(place / "models.toml", url, ["tiny"])
        result = run("collect", "--probe", "--dry-run", "--models", models)
    assert (result.exit_code, server.requests) == (2, [])
    assert "cannot be combined with --probe" in " ".join(result.stderr.split())


def test_a_budget_below_the_cost_of_a_probe_is_said(place):
    with served(Models()) as (server, url):
        models = write_models(place / "models.toml", url, ["tiny"])
        result = run("collect", "--probe", "--models", models, "--budget", "0.0000001", "--json")
    assert (result.exit_code, server.requests) == (1, [])
    assert json.loads(result.stdout)["models"][0]["error"] == "the budget does not cover a probe"


@pytest.mark.parametrize(("options", "wanted"), [("", 8), ("max_tokens = 5000", 8), ("max_tokens = 5", 5)])
def test_the_limit_of_the_command_caps_that_of_the_file(options, wanted, place):
    """It was ignored without a word."""
    more = f"options = {{ {options} }}"
    _, server = collect(place, Models(), "--max-tokens", "8", "--signal", "choice", names=["tiny"], n=1, more=more)
    assert {request["max_tokens"] for request in server.requests} == {wanted}


def test_a_limit_in_extra_body_bounds_what_is_sent_and_what_a_run_may_cost(place):
    more, how = "options = { extra_body = { max_tokens = 8000 } }", ("--signal", "choice", "--json")
    result, server = collect(place, Models(), *how, names=["large"], n=1, more=more)
    assert {request["max_tokens"] for request in server.requests} == {8000}
    assert json.loads(result.stdout)["estimate"][0]["max_cost"] > 8000 * 30 / 1e6


def test_a_parameter_that_a_server_refuses_is_named(place):
    refused = {"error": {"message": "secret", "code": "unsupported_parameter", "param": "max_tokens"}}
    result, _ = collect(place, lambda *_: Response(refused, 400), "--signal", "choice", names=["tiny"], n=30)
    shown = " ".join(result.stdout.split())
    assert "HTTP 400 (unsupported_parameter: max_tokens): give the model other options in models.toml" in shown


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("{ max_tokns = 3 }", "model tiny: options: the client knows no max_tokns"),
        ("{ max_tokens = '3' }", "model tiny: options: max_tokens must be a whole number"),
        ("{ temperature = 'hot' }", "model tiny: options: temperature must be a number"),
    ],
)
def test_invalid_options_are_refused(options, says, place):
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


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["{questions}"], "give the file of the models"),
        (["{questions}", "--models", "{models}"], "Invalid value for --out"),
        (["{questions}", "--models", "{models}", "--out", "{questions}"], "must not be the file of QUESTIONS"),
        (["{questions}", "--models", "{models}", "--out", "log.csv"], "give a name that ends in .jsonl"),
        (["{questions}", "--models", "{models}", "--dry-run", "--signal", "sure"], "'sure' is not a signal"),
        (["{questions}", "--models", "{models}", "--dry-run", "--budget", "0"], "not above 0"),
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


def test_prices_that_look_per_token_are_doubted(tmp_path):
    models = write_models(tmp_path / "models.toml", "http://localhost:9/v1", ["tiny"])
    models.write_text(models.read_text().replace("input = 0.1", "input = 1e-7"))
    asked = write_questions(tmp_path / "questions.jsonl", questions(2))
    lines = [
        ("collect", asked, "--models", models, "--out", tmp_path / "answers.jsonl", "--dry-run"),
        ("grade", write_questions(tmp_path / "answers.jsonl", []), "--grade", "judge:tiny", "--models", models),
        ("serve", tmp_path / "policy.json", "--models", models),
    ]
    said = {line[0]: " ".join(run(*line).stderr.split()) for line in lines}
    misses = {name for name, words in said.items() if "models.toml, model tiny: input price 1e-07 is" not in words}
    assert not misses
