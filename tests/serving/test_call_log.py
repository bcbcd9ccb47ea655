"""The log of calls: what is written, what a kill leaves behind, and what `read_log` makes of it with labels."""

import json
import math
import os
import stat
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from helpers.call_samples import both, call, write
from hypothesis import given, settings, strategies as st
from tiers import examples

import rcjax
from rcjax._base import files
from rcjax.logs import LeftOutWarning, LogError, read_log
from rcjax.serving.call_log import CallLog


def answers(*right):
    return pl.DataFrame({"query": list(range(len(right))), "answer": list(right)})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "calls.jsonl"


def test_a_log_that_ends_within_a_line_is_continued_on_a_new_one(path):
    write(path, *both(0))
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    write(path, *both(1))
    lines = path.read_bytes().split(b"\n")
    assert lines[1] == whole.split(b"\n")[1][:-39]
    assert [json.loads(line)["query"] for line in lines[2:4]] == ["1", "1"]
    write(path, call(2, "small"))
    assert b"\n\n" not in path.read_bytes()


@pytest.mark.parametrize("content", ["query,answer\nq1,B\n", '{"call_log": 1, "call": "c"}\n'])
def test_a_file_of_another_kind_is_no_log(path, content):
    path.write_text(content)
    with pytest.raises(ValueError, match=r"calls\.jsonl is there already, and holds no log of a service"):
        CallLog(path)
    assert path.read_text() == content


def test_the_same_messages_with_other_tools_or_another_schema_are_another_prompt(path):
    """They counted as a repeat, and were left out."""
    tool = {"type": "function", "function": {"name": "look"}}
    schema = {"response_format": {"type": "json_object"}}
    given = (
        {},
        {"temperature": 0.5},
        {"tools": None},
        {"tools": [tool]},
        {"functions": [tool["function"]]},
        schema,
        {"n": 2},
    )
    with CallLog(path) as log:
        for options in given:
            log.write(call(1, messages=[{"role": "user", "content": "?"}], options=options))
    digests = [json.loads(line)["prompt_digest"] for line in path.read_text().splitlines()]
    assert len({*digests[:3]}) == 1
    assert len({*digests}) == 5


@pytest.mark.skipif(files.fcntl is None, reason="a system without locks of files")
def test_a_program_that_keeps_the_lock_does_not_hold_up_the_log(path):
    with CallLog(path) as log, open(path) as holder:
        files.fcntl.flock(holder, files.fcntl.LOCK_EX)
        writing = threading.Thread(target=lambda: [log.write(call(query, "small")) for query in range(100)])
        writing.start()
        writing.join(5.0)
        is_held_up = writing.is_alive()
        files.fcntl.flock(holder, files.fcntl.LOCK_UN)
        writing.join()
    assert not is_held_up
    assert [json.loads(line)["query"] for line in path.read_bytes().splitlines()] == [*map(str, range(100))]


KILLED = """
import sys
from helpers.call_samples import call
from rcjax.serving.call_log import CallLog

path, name = sys.argv[1:]
with CallLog(path) as log:
    for i in range(1_000_000):
        log.write(call(f"{name}-{i}", answer="x" * (i % 7 * 9000)))
        print(i, flush=True)
"""


def test_processes_that_are_killed_lose_no_line_and_mix_none_though_the_log_is_moved(path):
    folders = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    writers = {
        name: subprocess.Popen(
            [sys.executable, "-c", KILLED, path, name],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": folders},
        )
        for name in "ab"
    }
    moved = path.with_name("moved.jsonl")
    last = {name: [writer.stdout.readline() for _ in range(100)][-1] for name, writer in writers.items()}
    path.rename(moved)
    for name, writer in writers.items():
        last[name] = [last[name], *(writer.stdout.readline() for _ in range(100))][-1]
        writer.kill()
        last[name] = [last[name], *(line for line in writer.communicate()[0].splitlines() if line)][-1]
    lines = [*moved.read_bytes().splitlines(), *path.read_bytes().splitlines()]
    whole = [json.loads(line)["query"] for line in lines if line.endswith(b"}")]
    assert len(lines) - len(whole) <= 2  # what a kill left unfinished
    assert len(whole) == len({*whole})
    assert {f"{name}-{i}" for name in writers for i in range(int(last[name]))} <= {*whole}


@pytest.mark.parametrize("away", [lambda path: path.rename(f"{path}.1"), Path.unlink], ids=["renamed", "removed"])
def test_a_file_that_is_taken_away_gets_no_line_more(path, away):
    with CallLog(path) as log, CallLog(path) as other:
        log.write(call(0))
        path.chmod(0o600)
        away(path)
        other.write(call(1))
        log.write(call(2))
    assert [json.loads(line)["query"] for line in path.read_text().splitlines()] == ["1", "2"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600  # as the one before


def test_what_is_no_call_is_not_written(path):
    with CallLog(path) as log:
        for bad, error in (
            (None, AttributeError),
            ({"query": 1}, AttributeError),
            (call(1, "a", cost=math.nan), ValueError),
        ):
            with pytest.raises(error):
                log.write(bad)
        with pytest.raises(ValueError, match="Out of range"):
            log.write(call(1, "a", logprob=math.inf))
    assert path.read_bytes() == b""


# Reading


def read(path, labels, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        log = read_log(path, labels=labels, **options)
    return log, [str(each.message) for each in caught if each.category is LeftOutWarning]


def test_only_queries_that_went_to_all_models_are_learnt_from(path):
    """The small model answers what it is sure of: what got to the large one would make it look bad."""
    write(path, *both(0), *both(1), call(2, "small", is_shadow_query=False), *both(3, is_shadow_query=False))
    log, (message,) = read(path, answers(*"BBBB"))
    assert log.queries == (0, 1)
    assert message == "calls.jsonl: 3 of 7 rows are left out: 3 of queries that did not go to all models"
    write(path.with_name("none.jsonl"), *both(0, is_shadow_query=False))
    with pytest.raises(LogError, match=r"no query of it went to all models, .*shadow=0\.05"):
        read_log(path.with_name("none.jsonl"), labels=answers("B"))
    frame = pl.read_ndjson(path).drop("call_log", "shadow").with_columns(pl.col("query").cast(int))
    with pytest.warns(rcjax.logs.IncompleteLogWarning):
        assert read_log(frame, labels=answers(*"BBBB")).n_queries == 4


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_a_log_cut_anywhere_loses_one_line_at_most(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("cut") / "calls.jsonl"
    write(path, *both(0), *both(1), *both(2))
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    cut = data.draw(st.integers(len(b"".join(lines[:4])), len(whole)))
    path.write_bytes(whole[:cut])
    log, left_out = read(path, answers(*"BCB"), models=["small", "large"])
    lost = sum(len(b"".join(lines[: i + 1])) - 1 > cut for i in (4, 5))
    assert int(np.asarray(log.answered).sum()) == 6 - lost
    begun = cut not in {len(b"".join(lines[:i])) for i in (4, 5, 6)} and lost
    assert [message for message in left_out if "1 cut off" in message] == left_out[: bool(begun)]
    if data.draw(st.booleans()):  # and it goes on
        write(path, *both(3))
        assert read(path, answers(*"BCBB"))[0].n_queries == log.n_queries + 1


def test_other_damage_is_an_error(path):
    write(path, *both(0), *both(1))
    whole = path.read_text()
    path.write_text(whole + "oops\n")
    with pytest.raises(LogError, match="line 5: not JSON"):
        read_log(path, labels=answers("B", "C"))
    path.write_text(whole.replace('"logprob": -0.1', '"logprob": 0.1'))
    with pytest.raises(LogError, match=r"row 1, model small: logprob 0\.1 > 0"):
        read_log(path, labels=answers("B", "C"))
    path.write_text(whole.replace('"call_log": 1', '"call_log": 2'))
    with pytest.raises(LogError, match=r"call_log 2 is not the version of a call log that rcjax reads, 1"):
        read_log(path, labels=answers("B", "C"))
    other = path.with_name("other.jsonl")
    other.write_text('{"query": 1, "model": "a", "logprob": -1, "correct": 1, "cost": 1}\n{"query": 1, "mod')
    with pytest.raises(LogError, match="line 2: not JSON"):
        read_log(other)
    path.write_text('{"call_log": 1, "que')
    with pytest.raises(LogError, match="no rows: its 1 lines are cut off"):
        read_log(path, labels=answers("B"))


def test_a_new_log_is_for_its_owner_alone_and_an_old_one_stays_as_it_is(tmp_path):
    for name, mode, wanted in (("new.jsonl", None, 0o600), ("old.jsonl", 0o640, 0o640)):
        path = tmp_path / name
        if mode is not None:
            path.touch()
            path.chmod(mode)
        CallLog(path).close()
        assert path.stat().st_mode & 0o777 == wanted
