"""What a run says before its first call, beside what it came to: money, time and calls, once it has seen some."""

import json
import re
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from helpers.chat_server import completion
from helpers.collecting_runs import collect, lines
from helpers.sample_models import Models, lot, money, questions

from rcjax.cli import collect as command, console
from rcjax.cli.collect import _show_estimate, describe_progress
from rcjax.collecting.run import Tally

pytestmark = pytest.mark.usefixtures("own_settings")


def of_text(n):
    rows = questions(n)
    for row in rows:
        del row["choices"]
        row["prompt"] = f"Question {row['query'][1:]}? " + "Why so? " * (1 + int(row["query"][1:]) % 5)
    return rows


class Long(Models):
    """A model whose answers have 900 to 1,900 tokens, where 200 are usual."""

    def __init__(self, failures=0.0, delay=0.0):
        super().__init__(failures, delay, logprobs=False)

    def answer(self, name, prompt, counts):
        if not prompt.startswith("Question"):
            return super().answer(name, prompt, counts)
        read, written = counts[0], 900 + int(1000 * lot("length", prompt))
        self.charged += money(name, read, written) - money(name, *counts)
        return completion("well " * written, None, (read, written))


class Short(Long):
    """A model whose answers have 5 to 20 tokens, where 200 are usual."""

    def answer(self, name, prompt, counts):
        read, written = counts[0], 5 + int(15 * lot("length", prompt))
        self.charged += money(name, read, written)
        return completion("well " * written, None, (read, written))


def before(result):
    document = json.loads(result.stdout)
    return document, sum(row["likely_cost"] for row in document["estimate"])


@pytest.mark.parametrize("judge", [(), ("--grade", "judge:large")])
def test_a_run_tells_from_twenty_answers_on_what_it_costs_within_a_third(judge, place, monkeypatch):
    """The models wait for a line with the first forecast, however late the thread of the lines has its turn."""
    is_told = threading.Event()

    class Patient(Short):
        def answer(self, name, prompt, counts):
            given = Counter(model for question, model in self.asked if question.startswith("Question"))
            assert min(given["small"], given["large"]) < 29 or is_told.wait(120)  # 8 are under way, 21 are counted
            return super().answer(name, prompt, counts)

    def note(run, started):
        words = describe_progress(run, started)
        if "in all" in words:
            is_told.set()
        return words

    monkeypatch.setattr(console, "PROGRESS_INTERVAL", 0.002)
    monkeypatch.setattr(command, "describe_progress", note)
    how = ("--signal", "length", *judge, "--json")
    result, _ = collect(place, Patient(), *how, rows=of_text(80), names=("small", "large"))
    told = re.findall(r"([\d,]+) of 160, .*about \$([\d.]+) in all", result.stderr)
    assert 40 <= int(told[0][0]) < 120
    assert [float(one) for _, one in told] == pytest.approx([json.loads(result.stdout)["spent"]] * len(told), rel=1 / 3)
    assert before(result)[1] > 2 * float(told[0][1])


def test_judges_are_counted_before_and_after_there_are_some(place):
    behave, rows = Long(), of_text(40)
    how = ("--signal", "length", "--max-tokens", "4000", "--grade", "judge:large", "--json")
    told = {}
    for judge in ((), how[4:6]):
        options = [word for word in how if judge or word not in how[4:6]]
        result, _ = collect(place, behave, *options, "--dry-run", rows=rows, names=("small", "large"))
        told[bool(judge)] = before(result)[0]["estimate"]
    for without, judged in zip(told[False], told[True], strict=True):
        for name in ("likely_cost", "max_cost"):
            assert judged[name] > without[name]
        assert judged["likely_cost"] < judged["max_cost"]
    collect(place, behave, *how, rows=rows[:8], names=("small", "large"))
    spent = sum(row["at_most"] + row["grading_cost"] for row in lines(place))
    result, _ = collect(place, behave, *how, rows=rows, names=("small", "large"))
    document, likely = before(result)
    assert likely == pytest.approx(float(document["spent"]) - spent, rel=0.35)


def test_calls_lost_at_a_kill_do_not_raise_the_estimate(place):
    """Their worst case counts as spent, but says nothing about the calls to come."""
    how, rows = ("--signal", "length", "--json"), of_text(30)
    collect(place, Short(), *how, rows=rows[:10], names=("small", "large"))
    likely = before(collect(place, Short(), *how, "--dry-run", rows=rows, names=("small", "large"))[0])[1]
    notes = [{"call": f"lost{i}", "query": f"q{i}", "model": "small", "at_most": 0.01} for i in range(8)]
    journal = place / "answers.jsonl.under-way"
    journal.write_text("".join(json.dumps(note) + "\n" for note in notes))
    result, _ = collect(place, Short(), *how, rows=rows, names=("small", "large"))
    assert "8 calls were under way" in result.stderr
    assert before(result)[0]["spent"] > 0.08
    assert before(result)[1] == pytest.approx(likely)


def test_the_slowest_model_tells_how_long_a_run_still_takes():
    def at(run, seconds):
        return describe_progress(run, time.monotonic() - seconds)

    class Run:
        def __init__(self, **tallies):
            self.tallies, self.forecast, self.models = tallies, None, []

    quick, slow = Tally(to_do=100, done=100), Tally(to_do=100, done=10)
    assert at(Run(quick=quick, slow=slow), 60.0) == "110 of 200, 55 %, about 9 min left"
    assert at(Run(quick=quick, slow=Tally(to_do=100)), 60.0) == "100 of 200, 50 %"
    stopped = Tally(to_do=100, done=10, why_stopped="HTTP 401")
    assert at(Run(quick=Tally(to_do=100, done=50), stopped=stopped), 60.0) == "60 of 200, 30 %, about 1 min left"
    failing = Tally(to_do=100, done=25, failed=25)
    run = Run(failing=failing)
    assert at(run, 60.0) == "25 of 100, 25 %, about 1 min left, 25 failed"
    run.models = [
        SimpleNamespace(name=name, respondent=SimpleNamespace(is_limited=limited))
        for name, limited in {"quick": False, "slow": True}.items()
    ]
    assert at(run, 60.0).endswith(", 25 failed, waiting for the rate limit of slow")


@pytest.mark.parametrize("left", [5, 4])
def test_an_estimate_says_what_it_assumes_until_a_model_has_answered(capsys, left):
    """Whatever its probes have cost before."""
    row = {"model": "small", "questions": left, "calls": left, "requests": left, "likely_cost": 0.1, "max_cost": 1.0}
    _show_estimate({"estimate": [row], "questions": 5, "spent": 0.01, "notes": []})
    assert ("200 tokens an answer" in capsys.readouterr().out) == (left == 5)
