"""Files with several names, secrets in logs of before."""

import json
import os

import pytest

from rcjax.collecting.answer_file import AnswerFile
from rcjax.logs import read_log
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


def test_secrets_in_a_log_of_before_get_into_no_policy(tmp_path):
    """Earlier versions wrote options of all kinds, which a policy that is tuned on the log keeps."""
    options = {"temperature": 0, "tools": [{"api_key": "s3cret"}], "extra_body": {"servers": [{"token": "s3cret"}]}}
    asked = json.dumps({"signal": "choice", "top": 20, "options": options})
    rows = [
        {"call_log": 1, "query": f"q{i}", "model": model, "correct": i % 2, "logprob": -0.1 - i / 99, "cost": 1e-5}
        | {"shadow": True, "error": None, "asked": asked}
        for i in range(40)
        for model in ("small", "large")
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked_for = read_log(path).asked
    assert asked_for is not None
    told = asked_for["small"]
    assert "s3cret" not in json.dumps(told)
    assert told["options"] == {"temperature": 0}
    assert len(told["others"]) == 16
