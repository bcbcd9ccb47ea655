"""A call log that rolled over is read with its parts, as the one file that it would be; and nothing else is."""

import dataclasses
import json
import warnings

import numpy as np
import polars as pl
import pytest
from call_samples import both, call, content_of, files_of, parts_in_one, write
from hypothesis import given, settings, strategies as st
from misses import in_turn
from tiers import examples

from rcjax._base.log_parts import parts_of
from rcjax.logs import LeftOutWarning, LogError, PartsWarning, log_files, read_answers, read_log
from rcjax.logs.log_files import LogFiles
from rcjax.serving.call_log import CallLog, Roll

LABELS = pl.DataFrame({"query": [str(i) for i in range(100)], "answer": ["B", "C"] * 50})
SMALL = Roll(size=1)


@pytest.fixture
def path(tmp_path):
    """Four queries in eight files: two lines of the first day, the others of later ones."""
    days = ["2026-01-01", "2026-01-02", "2026-01-02", "2026-01-03"]
    calls = [one for i, day in enumerate(days) for one in both(i, time=day)]
    return write(tmp_path / "calls.jsonl", *calls, roll=SMALL)


def read(path, labels=LABELS, **options):
    """(the log, what warnings tell of parts, what they tell of rows)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        log = read_log(path, labels=labels, **options)
    kinds = PartsWarning, LeftOutWarning
    return log, *([str(one.message) for one in caught if one.category is kind] for kind in kinds)


def refusal(path, **options):
    with pytest.raises(LogError) as caught:
        read_log(path, **{"labels": LABELS} | options)
    (line,) = str(caught.value).splitlines()
    return line


def assert_equal(log, other):
    for field in dataclasses.fields(log):
        mine, theirs = getattr(log, field.name), getattr(other, field.name)
        if field.name != "source":
            np.testing.assert_array_equal(mine, theirs, err_msg=field.name)
    assert log.digest == other.digest


# What is read


def test_the_parts_are_read_with_the_log_and_counted(path):
    log, parts, left_out = read(path)
    assert log.queries == (0, 1, 2, 3)
    assert log.source == str(path)
    assert log.complete.all()
    assert parts == [
        "calls.jsonl: read with 7 parts that rolled off it, calls.2026-01-01.0001.jsonl to calls.2026-01-03.0001.jsonl"
    ]
    assert left_out == []
    assert_equal(log, read(parts_in_one(path))[0])
    with pytest.warns(PartsWarning, match="read with 7 parts"):
        assert read_answers(str(path), ["small"], labels=LABELS).n_queries == 4


def test_a_log_without_parts_tells_of_none(tmp_path):
    assert read(write(tmp_path / "calls.jsonl", *both(0), *both(1)))[1:] == ([], [])


OPTIONS = {
    "query": st.integers(0, 6),
    "model": st.sampled_from(["small", "large"]),
    "answer": st.sampled_from(["B", "C", None, '}"}', "x" * 300]),
    "logprob": st.floats(-5, 0) | st.just(-np.inf),
    "cost": st.floats(1e-6, 1e-3),
    "shadow": st.sampled_from([True, True, True, False]),
    "error": st.sampled_from([None, None, None, "timed out"]),
    "time": st.sampled_from(["2026-01-01", "2026-01-02T12:00:00Z", ""]),
}


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_any_log_that_rolled_is_read_as_if_it_had_not(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("rolled")
    path, end = folder / "calls.jsonl", list(both(0)) + list(both(1))
    calls = data.draw(st.lists(st.builds(call, **OPTIONS), max_size=25)) + end
    for one in calls:
        roll = data.draw(st.sampled_from([SMALL, Roll(size=900), Roll(daily=True), None]))
        write(path, one, roll=roll)
        if data.draw(st.integers(0, 9)) == 0:  # a kill
            with open(path, "ab") as file:
                file.write(json.dumps({"call_log": 1, "query": "q"}).encode()[: data.draw(st.integers(1, 20))])
    lines = b"\n".join(content for file in files_of(path) for content in file.read_bytes().splitlines())
    whole = folder / "whole" / "calls.jsonl"
    whole.parent.mkdir()
    whole.write_bytes(lines + b"\n")
    log, parts, left_out = read(path)
    other, none, also_left_out = read(whole)
    assert_equal(log, other)
    assert left_out == also_left_out
    assert none == []
    count = len(parts_of(path))
    assert [told.split(" that ")[0] for told in parts] == [
        f"calls.jsonl: read with {count} part{'s' * (count > 1)}" for _ in range(bool(count))
    ]


def test_of_an_answer_that_is_repeated_in_another_part_the_first_counts(tmp_path):
    path = tmp_path / "calls.jsonl"
    failed = call(0, error="timed out", logprob=None)
    write(path, failed, *both(0), *both(1), call(0, logprob=-3.0), call(2), roll=SMALL)
    log, _, (message,) = read(path)
    assert float(log.logprob[0, 0]) == pytest.approx(-0.1)
    assert message == "calls.jsonl: 2 of 7 rows are left out: 1 calls that failed; 1 repeated answers"


@pytest.mark.parametrize("end", [None, b"", b'{"ca', b'{"call_log": 1, "query'])
def test_right_after_it_rolled_over(path, end):
    """The file is not there yet, is empty, or holds what a kill left of its first line."""
    log, _, _ = read(path)
    if end is None:
        path.rename(parts_of(path)[-1].with_name("calls.2026-01-03.0002.jsonl"))
    else:
        whole = path.read_bytes()
        path.write_bytes(end)
        parts_of(path)[-1].with_name("calls.2026-01-03.0002.jsonl").write_bytes(whole)
    again, (parts,), left_out = read(path)
    assert_equal(log, again)
    assert parts.startswith("calls.jsonl: read with 8 parts")
    assert parts.endswith("; it holds nothing since") == (not end)
    assert left_out == (["calls.jsonl: 1 of 9 rows are left out: 1 cut off"] if end else [])


def test_a_part_of_which_a_kill_left_nothing_is_left_out(path):
    first, second, *_ = parts_of(path)
    first.write_bytes(b"")  # as when the service was killed while it made the part
    second.write_bytes(b'{"call_log": 1, "que')
    log, (parts,), (left_out,) = read(path)
    assert log.queries == (1, 2, 3)
    assert "read with 6 parts" in parts
    assert "1 of 7 rows are left out: 1 cut off" in left_out
    for file in files_of(path):
        file.write_bytes(b'{"call_log": 1, "que')
    assert refusal(path) == "calls.jsonl: no rows: all 8 lines of it and its parts are cut off"


def test_one_part_alone(path):
    first, second, *_ = parts_of(path)
    first.write_bytes(content_of(path))
    log, parts, left_out = read(first)
    assert log.source == str(first)
    assert log.queries == (0, 1, 2, 3)
    assert parts == left_out == []
    assert refusal(second) == f"{second.name}: only one model, large: a cascade needs at least two"


def test_a_link_to_a_log_is_read_with_the_parts_beside_the_log(path, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "log.jsonl"
    link.symlink_to(path)
    log, (parts,), _ = read(link)
    assert log.queries == (0, 1, 2, 3)
    assert parts.startswith("log.jsonl: read with 7 parts that rolled off it, calls.2026-01-01.0001.jsonl to")


def test_a_log_that_was_upgraded_in_between(path):
    """Older parts lack a column that newer ones have."""
    first = parts_of(path)[0]
    row = json.loads(first.read_bytes())
    for name in ("served", "attempts", "estimated", "calibrated"):
        del row[name]
    first.write_text(json.dumps(row | {"new": {"a": [1]}}) + "\n")
    assert read(path)[0].complete.all()


# What is not read


@in_turn(
    "name",
    [
        *("calls.2026-01-01.001.jsonl", "calls.2026-02-30.0001.jsonl", "calls.2026-01-01.00001.jsonl"),
        *("calls.2026-01-01.0001.jsonl.gz", "calls.2026-01-01.0001.ndjson", "calls.2026-01-01.0001.csv"),
        *(
            "call.2026-01-01.0001.jsonl",
            "my.calls.2026-01-01.0001.jsonl",
            "calls.2026-01-01.0001.2026-01-01.0001.jsonl",
        ),
        *("calls.2026-01-01.jsonl", "calls.jsonl.1", "calls.2026-01-01.0001.jsonl\n", "calls.２026-01-01.0001.jsonl"),
    ],
)
def test_only_the_names_of_parts_are_parts(tmp_path, name):
    path = write(tmp_path / "calls.jsonl", *both(0), *both(1))
    (tmp_path / name).write_text("oops\n")
    log, parts, _ = read(path)
    assert log.n_queries == 2
    assert parts == []


def test_only_call_logs_have_parts(tmp_path):
    path = tmp_path / "log.jsonl"
    answer = {"logprob": -1.0, "correct": 1, "cost": 1}
    rows = [{"query": query, "model": model, **answer} for query in (0, 1) for model in "ab"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    part = write(tmp_path / "log.2026-01-01.0001.jsonl", *both(7))
    log, parts, _ = read(path, labels=None)
    assert log.queries == (0, 1)
    assert parts == []
    path.unlink()
    part.write_text(json.dumps(rows[0]) + "\n")
    assert refusal(path) == f"{path} is missing: give a file"
    path.touch()
    assert "the file is empty" in refusal(path)
    table = path.with_suffix(".csv")
    table.write_text("query,model,logprob,correct,cost\n1,a,-1,1,1\n1,b,-1,1,2\n2,a,-1,1,1\n2,b,-1,1,2\n")
    (tmp_path / "log.2026-01-01.0001.csv").write_text("oops")
    assert read(table, labels=None)[1] == []


# What cannot be read


def test_a_message_names_the_part_and_the_row_in_it(path):
    part = parts_of(path)[2]
    whole = part.read_text()
    part.write_text(whole + whole.replace('"logprob": -0.1', '"logprob": 0.1').replace('"1"', '"9"'))
    assert refusal(path).startswith("calls.2026-01-02.0001.jsonl, row 2, model small: logprob 0.1 > 0: ")
    part.write_text(whole.replace('"call_log": 1', '"call_log": 2'))
    assert "calls.2026-01-02.0001.jsonl, row 1, model small: call_log 2 is from a newer rcjax" in refusal(path)
    part.write_text(whole + "oops\n")
    assert refusal(path).startswith("calls.2026-01-02.0001.jsonl, line 2: not JSON")
    part.write_text(whole)
    path.write_text(path.read_text().replace("-0.01", "-0.01x"))
    assert refusal(path).startswith("calls.jsonl, line 1: not JSON")


def damaged(part):
    part.write_text("oops\n")


def binary(part):
    part.write_bytes(b"\xff\xfe\x00\x01 \x80\n")


def other(part):
    part.write_text('{"query": 1, "model": "small", "correct": 1, "logprob": -1, "cost": 1}\n')


def folder(part):
    part.unlink()
    part.mkdir()


def dangling(part):
    part.unlink()
    part.symlink_to(part.with_name("absent"))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (damaged, ", line 1: not JSON: Expecting value: write one object per line"),
        (other, ": it has the name of a part of calls.jsonl, but holds no calls: move it away"),
        (folder, ": it has the name of a part of calls.jsonl, and is a folder: move it away"),
        (dangling, ": it has the name of a part of calls.jsonl, and is no file: move it away"),
        (binary, ": it has the name of a part of calls.jsonl, and cannot be read: begins as UTF-16"),
    ],
)
@pytest.mark.parametrize("active", ["calls", "empty", "absent"])
def test_a_part_that_cannot_be_read_is_an_error(path, spoil, says, active):
    part = parts_of(path)[3]
    spoil(part)
    if active == "empty":
        path.write_bytes(b"")
    elif active == "absent":
        path.unlink()
    assert refusal(path).startswith(part.name + says)


# While it is read


def served(files):
    """The queries of the rows of a log, one file at a time."""
    for rows in files.rows(False, None):
        yield rows.name, rows.frame["query"].to_list()


def test_a_log_that_rolls_over_while_its_parts_are_read_loses_nothing(path):
    files = LogFiles(path)
    rows = served(files)
    taken = [next(rows) for _ in range(3)]
    write(path, *both(4), roll=SMALL)
    taken += rows
    assert [query for _, queries in taken for query in queries] == [str(i) for i in range(5) for _ in range(2)]
    assert len(files.parts) == 9
    assert taken[-1][0] == "calls.jsonl"


def test_a_log_that_has_just_rolled_over_loses_nothing(path, monkeypatch):
    """Between the look for parts and the look at the file."""
    really, last = log_files._size, path.with_name("calls.2026-01-03.0002.jsonl")

    def size(file):
        if file == path and path.exists() and len(files.parts) == 7:
            path.rename(last)
        return really(file)

    files = LogFiles(path)
    rows = served(files)
    next(rows)
    monkeypatch.setattr(log_files, "_size", size)
    assert [query for _, queries in rows for query in queries] == list("0112233")
    assert files.parts[-1] == last
    assert files.parts_read.endswith("; it holds nothing since")


@pytest.mark.parametrize("parts", [True, False])
def test_a_log_that_rolls_over_while_its_end_is_read_is_to_be_read_again(path, parts):
    if not parts:
        for part in parts_of(path):
            part.unlink()
    files = LogFiles(path)
    rows = served(files)
    for name, _ in rows:
        if name == "calls.jsonl":
            break
    write(path, call(4), roll=SMALL)
    with pytest.raises(LogError, match=r"^calls.jsonl: it rolled over while it was read: read it again$"):
        next(rows)


def test_what_is_appended_meanwhile_is_for_the_next_time(path):
    files = LogFiles(path)
    rows = served(files)
    next(rows)
    with CallLog(path) as log:
        log.write(call(7))
    assert [name for name, _ in rows][-1] == "calls.jsonl"
