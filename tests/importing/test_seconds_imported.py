"""Seconds of evaluations that other programs ran: where files tell them, the log does."""

import pytest

from rcjax import LogError
from rcjax.importing import helm, inspect_ai, promptfoo, read_evaluations
from rcjax.importing.answers import How

HEAD = "query,model,correct,confidence,cost"


def table(tmp_path, column, *cells):
    path = tmp_path / "mine.csv"
    rows = [f"q{i},{model},1,0.8,2,{cell}" for i, cell in enumerate(cells) for model in ("a", "b")]
    path.write_text("\n".join([f"{HEAD},{column}", *rows]) + "\n")
    return path


@pytest.mark.parametrize(("column", "cell", "seconds"), [("seconds", "0.5", 0.5), ("latency_ms", "250", 0.25)])
def test_a_table_tells_seconds_or_milliseconds(tmp_path, column, cell, seconds):
    frame = read_evaluations(table(tmp_path, column, cell, ""))
    assert frame["seconds"].to_list() == [seconds, None, seconds, None]  # by model


def test_a_column_of_another_name(tmp_path):
    frame = read_evaluations(table(tmp_path, "took", "3"), columns={"seconds": "took"})
    assert frame["seconds"].to_list() == [3.0, 3.0]
    assert "seconds" not in read_evaluations(table(tmp_path, "took", "3")).columns


@pytest.mark.parametrize(("cell", "why"), [("-1", "seconds is not a time of 0 or more"), ("soon", "give a number")])
def test_what_is_no_time_is_refused(tmp_path, cell, why):
    with pytest.raises(LogError, match=why):
        read_evaluations(table(tmp_path, "seconds", cell))
    with pytest.raises(LogError, match="both seconds and latency_ms"):
        read_evaluations(table(tmp_path, "seconds,latency_ms", "1,1000"))


def test_other_programs_tell_it_in_their_own_way():
    row = {
        "provider": {"id": "m"},
        "prompt": {"raw": "?"},
        "response": {"output": "B"},
        "success": True,
        "latencyMs": 340,
    }
    assert promptfoo._answer(row, How(), "here")["seconds"] == pytest.approx(0.34)
    cached = row | {"response": {"output": "B", "cached": True}}
    assert promptfoo._answer(cached, How(), "here")["seconds"] is None
    sample = {"id": 1, "output": {"completion": "B", "time": 1.25}, "scores": {"match": {"value": "C", "answer": "B"}}}
    assert inspect_ai._answer(sample, {"task": "t", "model": "m"}, How(), "here").seconds == 1.25
    request = {"result": {"success": True, "cached": False, "request_time": 0.1, "completions": [{"text": "B"}]}}
    answer = helm._answer(request, ("1", "", 0), {"exact_match": 1.0}, ("m", "s"), How(), "here")
    assert answer.seconds == 0.1
