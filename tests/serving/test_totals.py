"""Totals in a file: of several processes, none counted twice, through kills, full disks and files that are none."""

import contextlib
import errno
import json
import os
import threading
import time
import warnings

import pytest

from rcjax._base import files
from rcjax.serving import totals as module
from rcjax.serving.failures import CascadeWarning
from rcjax.serving.gateway.clients import Client, ClientLimits
from rcjax.serving.totals import TotalsFile

MONTH = (0.0, 4e9)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "calls.jsonl.totals"


def page_of(one, name="a"):
    return one.total(name, "month", MONTH)


def test_processes_share_totals_and_a_new_one_knows_what_the_dead_have_spent(path):
    one, other = TotalsFile(path), TotalsFile(path)
    for turn in range(1, 4):
        page_of(one).add(0.5)
        page_of(other).add(0.25, 0)
        page_of(one, "b").add(9.0)
        for process in (one, other, one):  # as often as it likes
            process.sync()
        assert page_of(one).last_read() == (0.75 * turn, turn, 0)
        assert page_of(other).last_read() == (0.75 * turn, turn, turn)
    third = TotalsFile(path)
    page_of(third)
    third.sync()
    assert page_of(third).last_read() == (2.25, 3, 3)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_payment_that_a_full_disk_refused_is_written_later(path, monkeypatch):
    one = TotalsFile(path)
    page_of(one).add(1.0)
    one.sync()
    size = path.stat().st_size
    page_of(one).add(1.0)
    one.sync()
    assert path.stat().st_size == size  # no block more
    real = os.write

    def full(file, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "write", full)
    page_of(one).add(1.0)
    with pytest.raises(OSError, match="No space left"):
        one.sync()
    assert page_of(one).last_read() == (3.0, 3, 0)
    monkeypatch.setattr(module.os, "write", real)
    one.sync()
    other = TotalsFile(path)
    page_of(other)
    other.sync()
    assert page_of(other).last_read() == (3.0, 3, 3)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"totals": [[1]]}', b'{"totals": 3}', b"[" * 10**5])
def test_an_unreadable_file_begins_anew(path, content):
    path.write_bytes(content)
    one = TotalsFile(path)
    page_of(one).add(1.0)
    if content:
        with pytest.warns(CascadeWarning, match=r"calls.jsonl.totals cannot be read: what was spent is counted anew"):
            one.sync()
    else:
        one.sync()
    assert len(json.loads(path.read_bytes())["totals"]) == 1


@pytest.mark.parametrize("lost", [None, b"", b"\0" * 4096, b'{"totals": [["a",'])
def test_a_file_that_is_lost_is_written_anew_with_what_was_read_of_it(path, lost):
    dead, one, other = TotalsFile(path), TotalsFile(path), TotalsFile(path)
    page_of(dead).add(5.0)
    dead.sync()
    for process in (one, other):
        page_of(process)
        process.sync()
    if lost is None:
        path.unlink()
    else:
        path.write_bytes(lost)
    page_of(one).add(1.0)
    with pytest.warns(CascadeWarning, match="cannot be read: it is written anew") if lost else contextlib.nullcontext():
        one.sync()
    new = TotalsFile(path)
    for process in (other, one, new):
        page_of(process)
        process.sync()
    assert page_of(one).last_read() == (6.0, 2, 1)
    assert page_of(other).last_read() == page_of(new).last_read() == (6.0, 2, 2)


def test_a_full_disk_leaves_the_file_as_it_was_where_it_would_grow(path, monkeypatch):
    for _ in range(30):
        dead = TotalsFile(path)
        page_of(dead).add(1.0)
        dead.sync()
    before, real = path.read_bytes(), os.write

    def full(file, text):
        room = max(os.fstat(file).st_size - os.lseek(file, 0, os.SEEK_CUR), 100)  # less than a block more
        return real(file, text[:room])

    monkeypatch.setattr(module.os, "write", full)
    one = TotalsFile(path)
    for number in range(200):
        page_of(one, f"b{number}").add(1.0)
    with pytest.raises(OSError, match="is the disk full"):
        one.sync()
    assert path.read_bytes() == before
    monkeypatch.setattr(module.os, "write", real)
    one.sync()
    new = TotalsFile(path)
    page_of(new)
    page_of(new, "b7")
    new.sync()
    assert [page_of(new, name).last_read() for name in ("a", "b7")] == [(30.0, 30, 30), (1.0, 1, 1)]


def test_a_kill_before_a_shorter_file_is_cut_loses_nothing(path):
    one = TotalsFile(path)
    page_of(one).add(1.0)
    one.sync()
    with open(path, "ab") as file:
        file.write(b'.0, 3], ["b", "month", 4e9, "dead", 3.0, 1]]}\n')
    new = TotalsFile(path)
    page_of(new)
    new.sync()
    assert page_of(new).last_read() == (1.0, 1, 1)


def test_the_newest_count_of_queries_is_of_any_process(path):
    rows = [["a", "month", 4e9, "old", 2.0, 1], ["a", "month", 4e9, "new", 3.0, 1, 9.0, 1.8e9]]
    path.write_text(json.dumps({"totals": rows}))
    one = TotalsFile(path)
    page_of(one).add(1.0)
    one.sync()
    assert page_of(one).last_read() == (6.0, 3, 2)
    assert page_of(one).query_count == (9.0, 1.8e9)


def test_periods_that_are_over_are_forgotten(path, monkeypatch):
    """Totals of minutes soon, as each of them is in the file that each query writes."""
    one = TotalsFile(path)
    for minute in range(200):
        one.total("a", "minute", (0.0, time.time() + 30.0 - 60.0 * minute)).add(0.0)
    one.sync()
    assert len(json.loads(path.read_bytes())["totals"]) == 2
    monkeypatch.setattr(module.time, "time", lambda: 3e9)
    page_of(one).add(1.0)
    one.sync()
    assert [row[:2] for row in json.loads(path.read_bytes())["totals"]] == [["a", "month"]]


def test_a_file_whose_periods_are_all_over_is_no_unreadable_one(path, monkeypatch):
    one = TotalsFile(path)
    page_of(one).add(1.0)
    one.sync()
    monkeypatch.setattr(module.time, "time", lambda: MONTH[1] + 2 * 86_400.0)
    one.total("a", "month", (MONTH[1], 2 * MONTH[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one.sync()
        assert json.loads(path.read_bytes())["totals"] == []
        one.sync()
        other = TotalsFile(path)
        other.total("a", "month", (MONTH[1], 2 * MONTH[1]))
        other.sync()


def test_only_limits_by_the_minute_are_counted_by_the_minute(path):
    totals = TotalsFile(path)
    limits = ClientLimits(totals)
    for client in (Client("0" * 64, name="free"), Client("0" * 64, requests=3, name="limited")):
        with limits.admit(client):
            limits.pay(client, 1.0)
    totals.sync()
    rows = [row[:2] for row in json.loads(path.read_bytes())["totals"]]
    assert rows == [["client free", "month"], ["client limited", "minute"], ["client limited", "month"]]


def test_a_clock_that_was_hours_ahead_loses_no_day(path, monkeypatch):
    """As where a machine begins with the time of its zone, and is told UTC afterwards."""
    end, now = 1.8e9, 1.8e9 - 3600.0
    monkeypatch.setattr(module.time, "time", lambda: now)
    one = TotalsFile(path)
    one.total("a", "day", (end - 86_400.0, end)).add(5.0)
    one.sync()
    now += 14 * 3600.0
    one.total("a", "day", (end, end + 86_400.0)).add(1.0)
    one.sync()
    now -= 14 * 3600.0
    for process in (one, TotalsFile(path)):
        total = process.total("a", "day", (end - 86_400.0, end))
        process.sync()
        assert total.last_read()[0] == 5.0


def test_a_sync_looks_at_each_row_once(path):
    """With a look at all rows for each total, a payment waits seconds with some hundred clients."""
    one, other = TotalsFile(path), TotalsFile(path)
    for shared in (one, other):
        for client in range(3_000):
            shared.total(f"client {client}", "month", (0.0, 4e9)).add(1.0)
    one.sync()
    start = time.process_time()
    other.sync()
    assert time.process_time() - start < 1.0
    assert {other.total(f"client {client}", "month", (0.0, 4e9)).last_read() for client in range(3_000)} == {
        (2.0, 2, 1)
    }


def test_payments_without_a_folder_are_unknown_until_it_is_back(path):
    one = TotalsFile(path.parent / "lost" / "totals")
    page_of(one).add(1.0)
    with pytest.raises(FileNotFoundError):
        one.sync()
    assert page_of(one).is_unknown
    (path.parent / "lost").mkdir()
    one.sync()
    assert not page_of(one).is_unknown


def test_without_a_file_nothing_is_shared():
    alone = TotalsFile(None)
    page_of(alone).add(1.0)
    alone.sync()
    assert page_of(alone).last_read() == (1.0, 1, 0)


def test_a_slower_thread_does_not_write_an_older_total(path, monkeypatch):
    one, begun, go, real = TotalsFile(path), threading.Event(), threading.Event(), module.try_lock

    def slow(file, patience):
        if not begun.is_set():
            begun.set()
            go.wait(120.0)
        return real(file, patience)

    monkeypatch.setattr(module, "try_lock", slow)
    page_of(one).add(1.0)
    slower, faster = threading.Thread(target=one.sync), threading.Thread(target=one.sync)
    slower.start()
    assert begun.wait(120.0)
    page_of(one).add(1.0)
    faster.start()
    faster.join(0.2)
    go.set()
    slower.join()
    faster.join()
    assert json.loads(path.read_bytes())["totals"][0][-2:] == [2.0, 2]


@pytest.mark.skipif(files.fcntl is None, reason="a system without locks of files")
def test_a_lock_that_another_process_holds_ends_a_sync(path):
    """At once, where an event loop asks; else after a while, so that neither a start nor an end hangs."""
    one = TotalsFile(path)
    page_of(one).add(1.0)
    one.sync()
    with open(path) as holder:
        files.fcntl.flock(holder, files.fcntl.LOCK_EX)
        page_of(one).add(1.0)
        for patience in (0.0, 0.05):
            with pytest.raises(TimeoutError, match="another process holds its lock"):
                one.sync(patience)
    one.sync(0.0)
    assert json.loads(path.read_bytes())["totals"][0][-2:] == [2.0, 2]
