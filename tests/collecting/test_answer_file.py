"""The file of a run: a full disk, lines that are cut off, calls that were lost, answers written again."""

import errno
import json
import os
from decimal import Decimal

import pytest

from rcjax._base.files import LineFile
from rcjax.collecting.answer_file import LOST, AnswerFile, read_answer_file


def row(call, **more):
    """What `collect` writes for a call that was answered."""
    answer = {
        "text": "4",
        "logprob": -0.5,
        "correct": None,
        "reference": ["4"],
        "asked": '{"signal": "stated"}',
    }
    money = {"cost": 0.25, "at_most": 0.25}
    about = {"call_log": 1, "call": call, "query": call, "model": "m", "error": None}
    return about | answer | money | more


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answers.jsonl"


def test_a_full_disk_takes_what_was_put_aside_for_it(path, monkeypatch):
    file = AnswerFile(path)
    aside = file.under_way.stat().st_size
    append, full = LineFile.append, []

    def no_space(self, line):
        if not full:
            full.append(file.under_way.stat().st_size)
            os.write(self._file, line[:20])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, line)

    monkeypatch.setattr(LineFile, "append", no_space)
    file.begin("a", "q", "m", Decimal(1))
    file.write(row("a"))
    assert aside >= 1 << 20
    assert full[0] > aside
    assert file.full.errno == errno.ENOSPC
    assert file.under_way.stat().st_size == 0
    file.close()
    held = read_answer_file(path)
    assert (list(held.rows), held.broken) == (["a"], 1)


def test_a_call_that_was_lost_counts_at_its_most(path):
    first = AnswerFile(path)
    first.begin("a", "qa", "m", Decimal("0.5"))
    first.begin("b", "qb", "m", Decimal("0.125"))
    first.begin("b", "qb", "m", Decimal("0.75"))  # another attempt
    first.write(row("a"))
    os.close(first._journal)  # as a kill does
    second = AnswerFile(path)
    assert second.lost == 1
    assert second.answers.rows["b"]["error"] == LOST
    assert second.answers.spent == Decimal("1")
    second.close()
    assert not second.under_way.exists()
    third = AnswerFile(path)
    assert (third.lost, third.answers.spent) == (0, Decimal("1"))
    third.close()


def test_an_answer_written_again_counts_once(path):
    file = AnswerFile(path)
    file.write(row("a"))
    file.write(row("a", correct=True, grading_cost=0.5))
    assert file.answers.spent == Decimal("0.75")
    file.tidy()
    file.write(row("b"))
    file.close()
    assert [json.loads(line)["call"] for line in path.read_text().splitlines()] == ["a", "b"]
    assert read_answer_file(path).rows["a"]["correct"] is True


def test_a_line_that_is_cut_off_is_passed_over(path):
    file = AnswerFile(path)
    file.write(row("a"))
    file.close()
    with open(path, "ab") as text:
        text.write(b'{"call_log": 1, "call": "b", "que')
    file = AnswerFile(path)
    file.write(row("c"))
    file.close()
    assert list(read_answer_file(path).rows) == ["a", "c"]
