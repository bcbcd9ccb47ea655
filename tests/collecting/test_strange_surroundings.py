"""A file with several names."""

import os

import pytest

from rcjax.collecting.answer_file import AnswerFile
from rcjax.logs.errors import LogError


def test_a_log_with_a_hard_link_is_refused(tmp_path):
    """Locks go by names: a run by the other name wrote to the same file."""
    file = AnswerFile(tmp_path / "a.jsonl")
    os.link(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    try:
        with pytest.raises(LogError, match=r"b\.jsonl has another name too \(a hard link\)"):
            AnswerFile(tmp_path / "b.jsonl")
    finally:
        file.close()
    assert [path.name for path in tmp_path.glob("*.under-way")] == []
