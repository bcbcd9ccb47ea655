"""A run of `rcjax collect` that is killed, interrupted or out of space: nothing that was paid for is lost."""

import asyncio
import errno
import json
import os
import signal
import warnings

import pytest
from helpers.chat_server import served
from helpers.collecting_runs import answers, collect, lines, start, wait_for
from helpers.sample_models import Models, questions, write_questions

import rcjax
from rcjax.collecting.answer_file import AnswerFile
from rcjax.collecting.run import Run
from rcjax.logs import LeftOutWarning

pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.mark.thorough
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.thorough)])
def test_after_many_kills_the_log_is_the_same(kills, place):
    behave = Models(failures=0.05, delay=0.03)
    write_questions(place / "questions.jsonl", questions(150))
    in_flight = 0
    with served(behave) as (_, url):
        for kill in range(kills):
            process = start(place, url, names=["tiny", "large"])
            wait_for(behave, 8)
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
    (place / "answers.jsonl").rename(place / "killed.jsonl")
    collect(place, Models(), "--signal", "choice", n=150, names=["tiny", "large"])
    with pytest.warns(LeftOutWarning):  # both with the floats that the command has switched on
        killed = rcjax.read_log(place / "killed.jsonl", task="choice")
    whole = rcjax.read_log(place / "answers.jsonl", task="choice")
    same = killed.take([killed.queries.index(query) for query in whole.queries])
    for name in ("logprob", "correct", "answer"):  # costs count what a broken connection may have cost, too
        assert getattr(same, name).tolist() == getattr(whole, name).tolist()


def test_a_killed_log_can_be_read_with_its_verdicts(place):
    """Each answer has a line, and another one with its verdict: the later line of a call counts."""
    collect(place, Models(), "--signal", "choice", names=["tiny", "large"])
    log, graded = place / "answers.jsonl", lines(place)
    whole = rcjax.read_log(log, task="choice")
    plain = [row | {"correct": None, "graded_by": None} for row in graded]
    log.write_text("".join(json.dumps(row) + "\n" for row in [*plain, *graded]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as that of rows left out
        killed = rcjax.read_log(log, task="choice")
    assert killed.correct.tolist() == whole.correct.tolist()


def test_an_interrupt_finishes_the_calls_under_way(place):
    behave = Models(delay=0.2)
    write_questions(place / "questions.jsonl", questions(400))
    with served(behave) as (_, url):
        process = start(place, url)
        wait_for(behave, 20)
        process.send_signal(signal.SIGINT)
        shown, told = process.communicate(timeout=120)
        assert process.returncode == 130, told
        assert "finishing the calls under way" in told
        assert "the same command again" in " ".join(shown.split())
        assert len(answers(place)) == sum(behave.asked.values())
        assert not (place / "answers.jsonl.under-way").exists()


def test_an_interrupt_before_the_first_call_says_so(place, monkeypatch):
    """It said that calls count as spent."""

    def interrupt(work):
        work.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio, "run", interrupt)
    result, _ = collect(place, Models(), names=["tiny"])
    assert (result.exit_code, result.stderr) == (130, "warning: ended: nothing was asked\n")
    (place / "answers.jsonl").write_text("")
    result, _ = collect(place, Models(), names=["tiny"])
    assert "calls under way count as spent, and are made again" in result.stderr


def test_a_second_interrupt_does_not_wait(place):
    behave = Models(delay=600.0)
    write_questions(place / "questions.jsonl", questions(40))
    with served(behave) as (_, url):
        process = start(place, url)
        wait_for(behave, 8)
        process.send_signal(signal.SIGINT)
        assert any("finishing the calls under way" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert "Traceback" not in told
    lost = [row for row in lines(place) if row["error"]]
    assert lost
    assert all(row["at_most"] > 0 for row in lost)


def test_a_full_disk_ends_a_run_whose_money_is_all_put_aside(place, monkeypatch):
    """The money for verdicts on answers that could not be written stayed put aside, and later questions waited."""
    go = Run.ask_all

    async def go_within_a_minute(self):
        async with asyncio.timeout(60.0):
            await go(self)

    def fail(self, row):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "answers.jsonl")

    monkeypatch.setattr(Run, "ask_all", go_within_a_minute)
    monkeypatch.setattr(AnswerFile, "write", fail)
    options = "--signal", "choice", "--grade", "judge:large", "--budget", "0.08"
    result, server = collect(place, Models(), *options, n=12, names=["tiny", "large"])
    assert (result.exit_code, len(server.requests)) == (1, 2)
    assert "No space left on device" in result.stderr


@pytest.mark.thorough
def test_a_full_disk_loses_nothing_that_was_paid_for(place):
    behave = Models(delay=0.05)
    write_questions(place / "questions.jsonl", questions(200))

    # As on a full disk, a write fails.
    limited = ["bash", "-c", "trap '' XFSZ; ulimit -f 100; exec \"$@\"", "limited"]
    (place / "answers.jsonl").write_text("")
    with served(behave) as (_, url):
        process = start(place, url, under=limited)
        _, told = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "Traceback" not in told
        process = start(place, url)
        _, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    assert len(answers(place)) == 800
