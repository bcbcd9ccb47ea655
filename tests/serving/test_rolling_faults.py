"""A call log that rolls over: every line once and whole, whoever writes, is killed, or takes the file away."""

import errno
import json
import multiprocessing
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from call_samples import CALL, call, content_of, files_of, queries_of, write

from rcjax.serving.call_log import CallLog, Roll

LINE = 400  # bytes, more than one line of `call` has


@pytest.fixture
def path(tmp_path):
    return tmp_path / "calls.jsonl"


# Many writers


def work(path, name, n, size):
    with CallLog(path, roll=size and Roll(size=size, daily=True)) as log:
        for i in range(n):
            log.write(call(f"{name}-{i}", answer="x" * (1 + 37 * i % 500), time=f"2026-01-{1 + i * 5 // n:02d}"))


def fork_work(log, name, n):
    for i in range(n):
        log.write(call(f"{name}-{i}"))


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods()[:2])
def test_processes_and_threads_write_every_line_once(path, method):
    n, size = 1000, 20 * LINE
    context = multiprocessing.get_context(method)
    sizes = [size] * 4 + [None]
    writers = [context.Process(target=work, args=(path, f"p{k}", n, most)) for k, most in enumerate(sizes)]
    for process in writers:
        process.start()
    threads = [threading.Thread(target=work, args=(path, f"t{k}", n, size)) for k in range(2)]
    for thread in threads:
        thread.start()
    for worker in (*threads, *writers):
        worker.join()
    assert [process.exitcode for process in writers] == [0] * 5
    names = [f"p{k}" for k in range(5)] + ["t0", "t1"]
    assert sorted(queries_of(path)) == sorted(f"{name}-{i}" for name in names for i in range(n))
    assert len(files_of(path)) > 50
    for name in names:  # each writer's in its order
        own = [query for query in queries_of(path) if query.startswith(f"{name}-")]
        assert own == [f"{name}-{i}" for i in range(n)]


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork")
def test_processes_that_are_forked_may_share_an_open_log(path):
    """As workers of a server that loads the application first: what is open has one lock for all of them."""
    context = multiprocessing.get_context("fork")
    with CallLog(path, roll=Roll(size=5 * LINE)) as log:
        log.write(call("before"))
        children = [context.Process(target=fork_work, args=(log, f"p{k}", 500)) for k in range(4)]
        for child in children:
            child.start()
        fork_work(log, "parent", 500)
        for child in children:
            child.join()
    assert [child.exitcode for child in children] == [0] * 4
    names = ["parent", *(f"p{k}" for k in range(4))]
    assert sorted(queries_of(path)) == sorted(["before", *(f"{name}-{i}" for name in names for i in range(500))])


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork")
def test_a_process_that_is_forked_while_a_thread_writes_can_write(path):
    with CallLog(path, roll=Roll(size=1)) as log:
        log.write(call(0))
        child = multiprocessing.get_context("fork").Process(target=fork_work, args=(log, "child", 2))
        with log._lines._turn:
            child.start()
            child.join(30)
        child.kill()
        log.write(call(1))
    assert queries_of(path) == ["0", "child-0", "child-1", "1"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files cannot be counted here")
def test_no_file_stays_open(path):
    with CallLog(path, roll=Roll(size=1)) as log:
        log.write(call(0))
        before = len(os.listdir("/proc/self/fd"))
        for i in range(50):
            log.write(call(i))
        assert len(os.listdir("/proc/self/fd")) == before
    assert len(os.listdir("/proc/self/fd")) == before - 1


# Kills


KILLED = """
import sys
from call_samples import call
from rcjax.serving.call_log import CallLog, Roll

path, name = sys.argv[1:]
with CallLog(path, roll=Roll(size=2000)) as log:
    for i in range(1_000_000):
        log.write(call(f"{name}-{i}", answer="x" * (i % 700)))
        print(i, flush=True)
"""


def start(program, *arguments):
    folders = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": folders},
    )


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_writers_that_are_killed_lose_no_line_that_was_written(path):
    draw, last = random.Random(0), {}
    for k in range(4):
        writers = {f"{k}{name}": start(KILLED, path, f"{k}{name}") for name in "abc"}
        deadline = time.monotonic() + 60
        while len(files_of(path)) < 40 * (k + 1):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for name, writer in writers.items():
            time.sleep(draw.random() / 50)
            writer.kill()
            written = [int(line) for line in writer.communicate()[0].splitlines() if line]
            last[name] = max(written, default=-1)
    lines = content_of(path).splitlines()
    whole = [json.loads(line)["query"] for line in lines if line.endswith(b"}")]
    assert len(lines) - len(whole) <= len(last)
    assert len(whole) == len({*whole})
    assert {f"{name}-{i}" for name, most in last.items() for i in range(most)} <= {*whole}
    assert sum(query.split("-")[0] in last for query in whole) == len(whole)


AT_ONCE = """
import os, signal, sys
from call_samples import call
from rcjax.serving.call_log import CallLog, Roll

path, name, when, count = sys.argv[1:]
really, left = getattr(os, name), [int(count)]

def deadly(*arguments):
    left[0] -= 1
    if left[0] == 0 and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    result = really(*arguments)
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(os, name, deadly)
with CallLog(path, roll=Roll(size=1)) as log:
    for i in range(1, 6):
        log.write(call(i))
        print(i, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("name", "count"), [("replace", 2), ("open", 2), ("open", 3), ("open", 4), ("write", 3)])
def test_a_kill_at_each_step_of_rolling_over(path, name, count, when):
    write(path, call(0))
    child = start(AT_ONCE, path, name, when, count)
    written = [int(line) for line in child.communicate()[0].splitlines()]
    assert child.returncode == -signal.SIGKILL
    queries = list(map(int, queries_of(path)))
    assert queries in ([0, *written], [0, *written, len(written) + 1])
    write(path, call("next"), roll=Roll(size=1))
    assert queries_of(path) == [*map(str, queries), "next"]


# Other programmes


@pytest.mark.parametrize("away", [lambda path: path.rename(f"{path}.1"), Path.unlink], ids=["renamed", "removed"])
def test_a_file_that_is_taken_away_gets_no_line_more(path, away):
    with CallLog(path) as log, CallLog(path, roll=Roll(size=10**6, daily=True)) as other:
        log.write(call(0))
        other.write(call(1))
        away(path)
        other.write(call(2))
        log.write(call(3))
    assert queries_of(path) == ["2", "3"]
    rest = Path(f"{path}.1")
    assert not rest.exists() or queries_of(rest) == ["0", "1"]


def test_a_file_that_is_emptied_is_gone_on_with(path):
    """As logrotate's copytruncate does."""
    with CallLog(path, roll=Roll(daily=True)) as log:
        log.write(call(0, time="2026-01-01"))
        os.truncate(path, 0)
        write(path, call(1, time="2026-01-02"))
        log.write(call(2, time="2026-01-02"))
    assert files_of(path) == [path]
    assert queries_of(path) == ["1", "2"]


def test_a_folder_that_is_taken_away_is_an_error_until_it_is_back(tmp_path):
    path = tmp_path / "logs" / "calls.jsonl"
    path.parent.mkdir()
    with CallLog(path, roll=Roll(size=1)) as log:
        log.write(call(0))
        path.parent.rename(tmp_path / "old")
        for _ in range(2):
            with pytest.raises(FileNotFoundError):
                log.write(call(1))
        path.parent.mkdir()
        log.write(call(2))
    assert queries_of(path) == ["2"]


def test_a_process_may_go_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    with CallLog("calls.jsonl", roll=Roll(size=1)) as log:
        log.write(call(0))
        monkeypatch.chdir(tmp_path / "sub")
        log.write(call(1))
    assert queries_of(tmp_path / "calls.jsonl") == ["0", "1"]
    assert not [*(tmp_path / "sub").iterdir()]


@pytest.mark.skipif(not hasattr(os, "fchmod"), reason="this system has no permissions")
@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_new_file_has_the_permissions_of_the_one_before(path, mode):
    write(path, call(0))
    path.chmod(mode)
    write(path, call(1), roll=Roll(size=1))
    assert [stat.S_IMODE(file.stat().st_mode) for file in files_of(path)] == [mode] * 2


def test_a_closed_log_takes_no_line(path):
    log = CallLog(path, roll=Roll(size=1))
    log.close()
    log.close()
    with pytest.raises(OSError, match="closed"):
        log.write(CALL)
    assert path.read_bytes() == b""


# A full disk


FULL = """
import resource, signal, sys
from call_samples import call
from rcjax.serving.call_log import CallLog, Roll

path, size = sys.argv[1], int(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
with CallLog(path, roll=Roll(size=size)) as log:
    for i in range(30):
        try:
            log.write(call(i))
            print(i)
        except OSError:
            pass
"""


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no such limits")
@pytest.mark.parametrize("size", [2000, 10_000])
def test_a_full_disk_loses_no_line_that_was_written(path, size):
    child = start(FULL, path, size)
    written = child.communicate()[0].split()
    assert child.returncode == 0
    assert len(written) == 30 if size == 2000 else 5 < len(written) < 15
    lines = content_of(path).splitlines()
    assert [json.loads(line)["query"] for line in lines[: len(written)]] == written
    assert len(lines) - len(written) <= 1  # what there was room for of the next one


@pytest.mark.parametrize("step", ["open", "replace"])
def test_a_disk_without_room_for_a_part_is_an_error(path, monkeypatch, step):
    really = getattr(os, step)

    def full(*arguments):
        if step == "replace" or (len(arguments) > 1 and arguments[1] & os.O_EXCL):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[-1]))
        return really(*arguments)

    with CallLog(path, roll=Roll(size=1)) as log:
        log.write(call(0))
        monkeypatch.setattr(os, step, full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                log.write(call(1))
        monkeypatch.setattr(os, step, really)
        assert files_of(path) == [path]
        log.write(call(2))
    assert queries_of(path) == ["0", "2"]
