"""The file of a run: full disks, lines cut off, calls lost; and two runs on it: whoever has it first has it alone."""

import json
import os
from decimal import Decimal

import pytest
from helpers.chat_server import served
from helpers.command_line import run
from helpers.sample_models import ENVIRONMENT, Models, questions, write_models, write_questions

from rcjax.collecting import answer_file
from rcjax.collecting.answer_file import LOST_CALL, AnswerFile, read_answer_file
from rcjax.logs.errors import LogError

pytestmark = [pytest.mark.usefixtures("own_settings"), pytest.mark.skipif(os.name != "posix", reason="locks and links")]


def test_a_log_is_locked_before_it_is_read(tmp_path, monkeypatch):
    """It was read first: rows of another run that came in between were written over, and their money forgotten."""
    path = tmp_path / "answers.jsonl"
    first = AnswerFile(path)
    first.write(row("a"))
    read, tried = answer_file.read_answer_file, []

    def late(path):
        answers = read(path)
        if not tried:
            tried.append(path)
            with pytest.raises(LogError, match="another rcjax collect writes to it"):
                AnswerFile(path)  # a third run, while the second one reads
        return answers

    first.close()
    monkeypatch.setattr(answer_file, "read_answer_file", late)
    second = AnswerFile(path)
    assert tried
    assert [*second.answers.rows] == ["a"]
    second.close()


def test_a_lock_that_was_removed_while_waiting_is_not_held(tmp_path, monkeypatch):
    """A run that opens the file of calls under way just before another one removes it begins anew."""
    path = tmp_path / "answers.jsonl"
    first, opened, once = AnswerFile(path), os.open, []

    def late(name, *rest, **more):
        journal = opened(name, *rest, **more)
        if str(name).endswith(".under-way") and not once:
            once.append(name)
            first.close()
        return journal

    monkeypatch.setattr(answer_file.os, "open", late)
    second = AnswerFile(path)
    assert os.path.samestat(os.stat(second.under_way), os.fstat(second._journal))
    with pytest.raises(LogError, match="another rcjax collect writes to it"):
        AnswerFile(path)
    second.close()


def test_a_refused_file_leaves_no_journal(tmp_path):
    path = tmp_path / "answers.jsonl"
    AnswerFile(path).close()
    path.write_text("Dear all\n")
    with pytest.raises(LogError, match="not a file of rcjax collect"):
        AnswerFile(path)
    assert os.listdir(tmp_path) == ["answers.jsonl"]
    held = AnswerFile(tmp_path / "lost.jsonl")
    held.begin("a", "q", "m", 1)
    os.close(held._journal)
    (tmp_path / "lost.jsonl").write_text("Dear all\n")
    with pytest.raises(LogError, match="not a file of rcjax collect"):
        AnswerFile(tmp_path / "lost.jsonl")
    assert held.under_way.exists()  # it tells of a call that may have been paid for


def test_a_run_beside_another_one_asks_nothing(tmp_path, monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    asked = write_questions(tmp_path / "questions.jsonl", questions(3))
    (tmp_path / "link.jsonl").symlink_to("answers.jsonl")
    held = AnswerFile(tmp_path / "answers.jsonl")
    with served(Models()) as (server, url):
        models = write_models(tmp_path / "models.toml", url, ["tiny"])
        other = run("collect", asked, "--models", models, "--signal", "choice", "--out", tmp_path / "link.jsonl")
    held.close()
    assert (other.exit_code, server.requests) == (1, [])
    assert "link.jsonl: another rcjax collect writes to it: wait for its end" in other.stderr


def row(call, **more):
    """What `collect` writes for a call that was answered."""
    answer = {
        "text": "4",
        "logprob": -0.5,
        "correct": None,
        "reference": ["4"],
        "request_settings": '{"signal": "stated"}',
    }
    money = {"cost": 0.25, "at_most": 0.25}
    about = {"call_log": 1, "call": call, "query": call, "model": "m", "error": None}
    return about | answer | money | more


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answers.jsonl"


def test_a_lost_call_counts_at_its_largest_cost(path):
    first = AnswerFile(path)
    first.begin("a", "qa", "m", Decimal("0.5"))
    first.begin("b", "qb", "m", Decimal("0.125"))
    first.begin("b", "qb", "m", Decimal("0.75"))  # another attempt
    first.write(row("a"))
    os.close(first._journal)  # as a kill does
    second = AnswerFile(path)
    assert second.lost_calls == 1
    assert second.answers.rows["b"]["error"] == LOST_CALL
    assert second.answers.spent == Decimal("1")
    second.close()
    assert not second.under_way.exists()
    third = AnswerFile(path)
    assert (third.lost_calls, third.answers.spent) == (0, Decimal("1"))
    third.close()


def test_a_rewritten_row_counts_once(path):
    file = AnswerFile(path)
    file.write(row("a"))
    file.write(row("a", correct=True, grading_cost=0.5))
    assert file.answers.spent == Decimal("0.75")
    file.rewrite_if_needed()
    file.write(row("b"))
    file.close()
    assert [json.loads(line)["call"] for line in path.read_text().splitlines()] == ["a", "b"]
    assert read_answer_file(path).rows["a"]["correct"] is True


def test_a_truncated_line_is_ignored(path):
    file = AnswerFile(path)
    file.write(row("a"))
    file.close()
    with open(path, "ab") as text:
        text.write(b'{"call_log": 1, "call": "b", "que')
    file = AnswerFile(path)
    file.write(row("c"))
    file.close()
    assert list(read_answer_file(path).rows) == ["a", "c"]
