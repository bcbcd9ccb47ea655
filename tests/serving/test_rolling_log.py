"""When a call log rolls over, and to what: names, sizes, days, and that nothing is overwritten or out of order."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from bare_python import run_bare
from call_samples import CALL, DAY, call, content_of, files_of, queries_of, write
from hypothesis import given, settings, strategies as st
from misses import in_turn
from tiers import examples

from rcjax._base import line_file, log_parts
from rcjax._base.log_parts import parts_of
from rcjax.serving.call_log import CallLog, Roll

LINE = 400  # bytes, more than one line of `call` has


@pytest.fixture
def path(tmp_path):
    return tmp_path / "calls.jsonl"


def names_of(path):
    return [file.name for file in files_of(path)]


# When it rolls, and to what


def test_a_file_is_never_longer_than_its_size(path):
    write(path, *(call(i, answer="x" * (7 * i % 300)) for i in range(100)), roll=Roll(size=3 * LINE))
    assert queries_of(path) == [str(i) for i in range(100)]
    sizes = [file.stat().st_size for file in files_of(path)]
    assert max(sizes) <= 3 * LINE
    assert all(sizes)
    assert names_of(path)[:2] == [f"calls.{DAY}.0001.jsonl", f"calls.{DAY}.0002.jsonl"]
    assert sorted(names_of(path)) == names_of(path)


def test_a_file_that_is_just_full_is_left(path):
    write(path, call(0))
    size = path.stat().st_size
    write(path, call(1), roll=Roll(size=2 * size))
    assert names_of(path) == ["calls.jsonl"]
    write(path, call(2), roll=Roll(size=3 * size - 1))
    assert names_of(path) == [f"calls.{DAY}.0001.jsonl", "calls.jsonl"]


def test_a_line_that_is_longer_than_the_size_is_alone(path):
    write(path, *(call(i, answer="x" * 5000 * (i % 2)) for i in range(4)), roll=Roll(size=LINE))
    assert [file.read_bytes().count(b"\n") for file in files_of(path)] == [1] * 4


def test_each_day_has_its_parts_whatever_the_hour(path):
    times = ["2026-02-27T00:00:00Z", "2026-02-27T23:59:59Z", "2026-02-28T23:59:59Z", "2026-03-01T00:00:00+00:00"]
    times += ["2026-03-02T01:30:00+02:00", "2026-03-01T23:59:59-01:00"]
    write(path, *(call(i, time=at) for i, at in enumerate(times)), roll=Roll(daily=True))
    lines = {file.name: file.read_text().splitlines() for file in files_of(path)}
    days = {name: [json.loads(line)["time"][:13] for line in own] for name, own in lines.items()}
    assert days == {
        "calls.2026-02-27.0001.jsonl": ["2026-02-27T00", "2026-02-27T23"],
        "calls.2026-02-28.0001.jsonl": ["2026-02-28T23"],
        "calls.2026-03-01.0001.jsonl": ["2026-03-01T00", "2026-03-02T01"],  # which is 23:30 in UTC
        "calls.jsonl": ["2026-03-01T23"],
    }


def test_a_call_that_is_late_at_midnight_stays_where_it_is(path):
    times = [f"2026-02-27T23:59:5{i}Z" for i in range(3)] + ["2026-02-28T00:00:00Z", "2026-02-27T23:59:59Z"]
    write(path, *(call(i, time=at) for i, at in enumerate(times)), roll=Roll(daily=True))
    assert [file.read_bytes().count(b"\n") for file in files_of(path)] == [3, 2]


def test_a_clock_that_jumps_stops_no_rolling_and_keeps_the_order(path):
    times = ["2026-01-05", "2150-01-01", "2026-01-06", "1970-01-01", "2026-01-07", "9999-12-31", "0001-01-01"]
    write(path, *(call(i, time=at) for i, at in enumerate(times)), roll=Roll(daily=True))
    assert queries_of(path) == [str(i) for i in range(len(times))]
    assert sorted(names_of(path)) == names_of(path)
    assert len(files_of(path)) >= 5


def test_the_day_of_calls_that_tell_no_time_is_that_of_the_last_write(path):
    write(path, call(0, time=""), call(1, time="soon"))
    at = datetime(2026, 1, 2, 23, 59, tzinfo=UTC).timestamp()
    os.utime(path, (at, at))
    write(path, call(2, time=""), call(3, time=""), roll=Roll(daily=True))
    assert names_of(path) == ["calls.2026-01-02.0001.jsonl", "calls.jsonl"]
    assert queries_of(path) == ["0", "1", "2", "3"]


def test_the_first_line_that_tells_a_day_tells_that_of_the_file(path):
    path.write_bytes(b'{"call_log": 1, "que\n[]\n' + b'{"time": 5}\n')
    write(path, call(0, time="2026-01-02"))
    write(path, call(1, time="2026-01-03"), roll=Roll(daily=True))
    assert names_of(path) == ["calls.2026-01-02.0001.jsonl", "calls.jsonl"]


def test_a_log_without_roll_never_rolls_and_follows_one_that_does(path):
    with CallLog(path) as plain, CallLog(path, roll=Roll(size=2 * LINE)) as rolling:
        for i in range(0, 40, 4):
            plain.write(call(i, time=f"{i + 1:04d}-01-01"))
            rolling.write(call(i + 1))
            rolling.write(call(i + 2))
            plain.write(call(i + 3))
    assert queries_of(path) == [str(i) for i in range(40)]
    assert len(files_of(path)) > 10


def test_no_file_is_overwritten(path):
    for number, make in ((1, Path.mkdir), (2, Path.touch), (3, lambda other: other.write_text("mine"))):
        make(path.with_name(f"calls.{DAY}.{number:04d}.jsonl"))
    write(path, call(0), call(1), roll=Roll(size=1))
    assert path.with_name(f"calls.{DAY}.0003.jsonl").read_text() == "mine"
    assert b'"0"' in path.with_name(f"calls.{DAY}.0004.jsonl").read_bytes()


def test_who_takes_a_name_first_has_it(path, monkeypatch):
    """Another programme makes the file between the look and the rename."""
    really = log_parts._dated_parts

    def dated_parts(real):
        result = really(real)
        path.with_name(f"calls.{DAY}.0001.jsonl").write_text("mine")
        return result

    monkeypatch.setattr(log_parts, "_dated_parts", dated_parts)
    write(path, call(0), call(1), roll=Roll(size=1))
    assert path.with_name(f"calls.{DAY}.0001.jsonl").read_text() == "mine"
    assert path.with_name(f"calls.{DAY}.0002.jsonl").read_bytes().count(b"\n") == 1


def test_numbers_go_on_where_parts_were_moved_away(path):
    write(path, *(call(i) for i in range(4)), roll=Roll(size=1))
    parts_of(path)[0].unlink()
    write(path, call(4), roll=Roll(size=1))
    assert names_of(path)[:-1] == [f"calls.{DAY}.000{number}.jsonl" for number in (2, 3, 4)]


def test_a_log_that_is_a_link_rolls_where_it_leads_to(path, tmp_path):
    (tmp_path / "disk").mkdir()
    path.symlink_to(tmp_path / "disk" / "service.jsonl")
    write(path, *(call(i) for i in range(3)), roll=Roll(size=1))
    assert path.is_symlink()
    assert sorted(file.name for file in (tmp_path / "disk").iterdir()) == [
        f"service.{DAY}.0001.jsonl",
        f"service.{DAY}.0002.jsonl",
        "service.jsonl",
    ]
    assert queries_of(path) == ["0", "1", "2"]


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_any_sequence_of_writes_and_rolls_holds_what_one_file_would(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("rolled")
    path, whole = folder / "calls.jsonl", folder / "whole.jsonl"
    rolls = st.builds(Roll, size=st.integers(1, 3000), daily=st.booleans()) | st.just(Roll(daily=True)) | st.none()
    days = st.dates().map(str) | st.sampled_from(["", DAY, "2026-11-25T00:00:00Z"])
    step = st.tuples(st.sampled_from(["write", "reopen", "another"]), st.integers(0, 1500), days)
    logs = [CallLog(path, roll=data.draw(rolls))]
    with CallLog(whole) as one:
        for i, (what, length, day) in enumerate(data.draw(st.lists(step, max_size=30))):
            if what == "reopen":
                logs.pop().close()
            if what != "write" or not logs:
                logs.append(CallLog(path, roll=data.draw(rolls)))
            for log in (one, data.draw(st.sampled_from(logs))):
                log.write(call(i, answer="x" * length, time=day))
    for log in logs:
        log.close()
    assert content_of(path) == whole.read_bytes()
    assert all(file.stat().st_size for file in parts_of(path))


# Where there is less than on Linux


def test_without_locks_one_process_rolls_as_well(path, monkeypatch):
    monkeypatch.setattr(line_file, "fcntl", None)
    write(path, *(call(i) for i in range(10)), roll=Roll(size=2 * LINE))
    assert queries_of(path) == [str(i) for i in range(10)]
    assert len(files_of(path)) > 3


def test_rolling_needs_only_the_standard_library(path):
    program = f"""
from rcjax.serving.call_log import Call, CallLog, Roll
with CallLog(sys.argv[1], roll=Roll(size=1, daily=True)) as log:
    log.write({CALL!r})
    log.write({CALL!r})
"""
    run_bare(program, path)
    assert len(files_of(path)) == 2


@in_turn(
    ("arguments", "error", "says"),
    [
        ({}, ValueError, "by size= .bytes., daily=True or both: give one"),
        ({"size": 0}, ValueError, "size must be at least 1, not 0"),
        ({"size": 1.5}, TypeError, "size must be a whole number, not a float"),
        ({"size": True}, TypeError, "size must be a whole number"),
        ({"daily": 1}, TypeError, "daily must be True or False, not an int"),
    ],
)
def test_what_is_no_roll(arguments, error, says):
    with pytest.raises(error, match=says):
        Roll(**arguments)


def test_a_roll_of_another_kind(path):
    with pytest.raises(TypeError, match="roll must be a Roll or None, not an int"):
        CallLog(path, roll=100)
    assert not path.exists()
