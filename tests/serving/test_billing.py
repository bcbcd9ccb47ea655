"""The bill of a policy in service: money for a period, of several processes of one log, through kills and rotation."""

import json
import os
import threading
import time
import warnings
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import call_samples

from rcjax._base import files
from rcjax.policy import Calibration, Ladder, Policy, Rule
from rcjax.policy.ladder import Period
from rcjax.serving import billing, totals
from rcjax.serving.billing import BudgetSpentError, SharedBill
from rcjax.serving.call_log import CallLog
from rcjax.serving.failures import CascadeWarning
from rcjax.serving.shadow import queries_per_day

PLAIN = Calibration("none", intercept=0.0, slope=1.0, smallest=-9.0, largest=0.0)
COSTS = {"small": 0.02, "middle": 0.05, "large": 0.3}
LADDER = Ladder(
    tuple(
        Policy((name,), {name: PLAIN}, {name: [Rule(1, "answer")]}, {name: cost}, expected={"error": 0.1, "cost": cost})
        for name, cost in COSTS.items()
    ),
    1.2,
    budget=0.1,
    period=Period(200.0, "day"),
)
LOCKED = "another process holds its lock"
DAY, START = 86_400.0, datetime(2024, 11, 3, tzinfo=UTC).timestamp()


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=START, time=lambda: clock.now, monotonic=lambda: clock.now)
    monkeypatch.setattr(billing, "time", clock)
    monkeypatch.setattr(totals, "time", clock)
    return clock


class Worker:
    """A process that serves the ladder: it logs each call, and pays for each query."""

    def __init__(self, path, clock, name="policy", policy=LADDER, dearer=1.4):
        self.log, self.clock, self.dearer = CallLog(path), clock, dearer
        self.billing = SharedBill(policy, name, self.log)

    def answer(self, query):
        self.billing.catch_up()
        rung = LADDER.choose(str(query), self.billing.position)
        cost = self.dearer * rung.cost[rung.first_model] * (0.5 + query % 2)
        ended = datetime.fromtimestamp(self.clock.now, UTC).isoformat(timespec="milliseconds")
        steps = [replace(self.billing.charge, step=step) for step in (1, 2)]
        calls = [call(query, cost / 2, ended, step) for step in steps]
        for one in (*calls, call(query, 5.0, ended, None)):  # as a shadow query adds one
            self.log.write(one)
        self.billing.pay(calls, rung.expected["cost"])
        return cost


def call(query, cost, time, charge):
    return call_samples.call(query, "m", cost=cost, time=time, charge=charge)


def test_workers_of_one_log_share_the_money_through_kills_and_rotation(tmp_path, clock):
    """Nine of ten queries come to one worker; it is killed and started anew, and the log is renamed."""
    path = tmp_path / "calls.jsonl"
    busy, idle, paid, differences = Worker(path, clock), Worker(path, clock), [], []
    other = Worker(path, clock, name="other")
    for query in range(2000):
        clock.now = START + DAY * query / 2000
        if query in (500, 900, 1300):
            busy = Worker(path, clock)  # the one before was killed
        if query in (800, 1500):
            os.rename(path, tmp_path / f"calls-202411{query}.jsonl")
        paid.append((idle if query % 10 == 9 else busy).answer(query))
        other.answer(query)
        differences.append(abs(busy.billing.money_left - idle.billing.money_left))
    assert sum(paid) == pytest.approx(200, rel=0.01)
    assert np.mean(paid[:1000]) == pytest.approx(0.1, rel=0.15)  # by day and night alike
    assert max(differences) < 10 * 0.3 * 1.4 * 1.5  # what came since the last look
    new = Worker(path, clock).billing
    assert new.money_left == pytest.approx(200 - sum(paid))
    assert new.bill.queries == pytest.approx(busy.billing.bill.queries, rel=0.01)  # how many queries come
    assert queries_per_day(path) is None  # of less than a day


def test_the_end_of_the_money_is_a_warning_once_a_period(tmp_path, clock):
    worker, ended = Worker(tmp_path / "calls.jsonl", clock, dearer=20.0), []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for query in range(3000):
            clock.now = START + 2 * DAY * query / 3000
            worker.answer(query)
            if worker.billing.money_left <= 0:
                ended.append(worker.billing.position)
    assert {*ended} == {0.0}
    what = "policy policy: the money of this day is spent ($200 a day): the cheapest rung answers until it ends"
    assert [str(one.message) for one in warned] == [what] * 2


def test_queries_per_day_counts_a_log_and_its_rotated_files(tmp_path, clock):
    worker = Worker(tmp_path / "calls.jsonl", clock)
    for query in range(301):
        clock.now = START + 3 * DAY * query / 300
        worker.answer(query)
    path = tmp_path / "calls.jsonl"
    assert queries_per_day(path) == pytest.approx(100)
    lines = path.read_bytes().splitlines(keepends=True)
    junk = [
        b"\n",
        b"[]\n",
        b"null\n",
        b"\xff\xfe\n",
        b"[" * 10**5 + b"\n",
        b'{"step": 1}\n',
        b'{"step": 1, "time": 3}\n',
    ]
    path.write_bytes(b"".join([*junk, *lines[450:], lines[0][:40]]))
    for name in ("calls-20241104.jsonl", "calls-support.jsonl", "all.jsonl"):
        (tmp_path / name).write_bytes(b"".join(lines[:450]))
    assert queries_per_day(path) == pytest.approx(100)  # of its own rotated file alone
    rows = [json.loads(line) | {"prompt": line.decode()} for line in lines]  # a text with the fields of another line
    path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    (tmp_path / "calls-20241104.jsonl").unlink()
    assert queries_per_day(path, policy="policy") == pytest.approx(100)
    path.write_text("".join(json.dumps(row | {"not_judged": "tools"}) + "\n" for row in rows))
    assert queries_per_day(path, policy="policy") is queries_per_day(path, policy="other") is None
    assert queries_per_day(path) == pytest.approx(100)


def test_a_bill_goes_on_with_the_policy_that_takes_its_place():
    follows = Ladder(LADDER.rungs, LADDER.position, budget=0.1)
    before, after = SharedBill(follows, "policy", None), SharedBill(follows, "policy", None)
    before.pay([SimpleNamespace(cost=39.0, seconds=1.0)], expected=0.3)
    after.continue_from(before)
    assert (after.balance, after.position) == (pytest.approx(0.1 - 39.0), 0.0)


@pytest.mark.parametrize("log", [False, True])
def test_another_kind_of_period_begins_without_spending_and_says_so(tmp_path, clock, log):
    """Also on the first day of a month, which begins when the month begins."""
    clock.now = datetime(2024, 11, 1, 12, tzinfo=UTC).timestamp()
    file = CallLog(tmp_path / "calls.jsonl") if log else None
    monthly = replace(LADDER, period=Period(500.0, "month"))
    before, after, again = (SharedBill(policy, "policy", file) for policy in (monthly, LADDER, LADDER))
    before.pay_shadow([SimpleNamespace(cost=39.0)])
    what = "policy policy: its money is for a day from now on, not for a month: what was spent before the change does"
    with pytest.warns(CascadeWarning, match=what):
        after.continue_from(before)
    assert after.money_left == 200.0
    after.pay_shadow([SimpleNamespace(cost=7.0)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.continue_from(after)
    assert again.money_left == 193.0


def test_requests_that_began_before_a_reload_count_after_it(clock):
    paid = [SimpleNamespace(cost=3.0, seconds=1.0)]
    bills = [SharedBill(Ladder(LADDER.rungs, LADDER.position, budget=0.1), "policy", None) for _ in range(3)]
    for before, after in pairwise(bills):
        after.continue_from(before)
    bills[0].pay(paid, 0.3, "team-a")
    assert [bill.balance for bill in bills] == [pytest.approx(0.1 - 3.0)] * 3
    assert bills[2]._clients["team-a"].balance == pytest.approx(0.1 - 3.0)


def test_money_put_aside_stays_aside_after_a_reload(clock):
    before, after = SharedBill(LADDER, "policy", None), SharedBill(LADDER, "policy", None, stops_at_budget=True)
    with before.choose_and_reserve([150.0], float):
        after.continue_from(before)
        with pytest.raises(BudgetSpentError), after.choose_and_reserve([100.0], float):
            pass
    with after.choose_and_reserve([100.0], float) as chosen:
        assert chosen == 100.0


def test_money_that_running_requests_reserve_is_refused_for_a_moment_alone(clock):
    billing = SharedBill(LADDER, "policy", None, stops_at_budget=True)
    with billing.choose_and_reserve([150.0], float):
        for costs, end in (([100.0], None), ([300.0, 100.0], None), ([201.0], START + DAY)):
            with pytest.raises(BudgetSpentError) as refused, billing.choose_and_reserve(costs, float):
                pass
            assert refused.value.end == end
            assert ("try again" in str(refused.value)) == (end is None)


def test_a_request_that_no_money_covers_takes_none_from_others(clock):
    """A client asked for two thousand million tokens: all others got the cheapest rung, and no shadow query."""
    billing = SharedBill(LADDER, "policy", None)
    with (
        billing.choose_and_reserve([1e6, 1e5], float) as cheapest,
        billing.choose_and_reserve([0.3, 0.02], float) as chosen,
        billing.reserve_if_covered(0.3) as is_covered,
    ):
        assert (cheapest, chosen, is_covered) == (1e5, 0.3, True)


def test_an_answer_that_costs_a_hundred_times_its_rung_is_a_warning_once_a_minute(clock):
    billing = SharedBill(Ladder(LADDER.rungs, LADDER.position, budget=0.1), "policy", None)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for cost, expected, later in ((29, 0.3, 0), (31, 0.3, 0), (90, 0.3, 59), (29, None, 2), (31, None, 0)):
            clock.now += later
            billing.pay([SimpleNamespace(cost=cost, seconds=1.0)], expected)
    what = "policy policy: an answer cost $31, where its rung was tuned to cost $0.3: "
    assert [str(one.message) for one in warned] == [
        f"{what}is a count of its server wrong, or max_tokens too high?"
    ] * 2


@pytest.fixture
def today(monkeypatch):
    """A clock that stands at a time of this day, in which periods end later than now."""
    now = time.time()
    clock = SimpleNamespace(now=now - now % DAY + DAY / 2, time=lambda: clock.now, monotonic=lambda: clock.now)
    monkeypatch.setattr(billing, "time", clock)
    monkeypatch.setattr(totals, "time", clock)
    return clock


def ask(worker, clock, queries):
    """What some queries cost, a minute apart, as an idle worker looks at the end."""
    paid = []
    for query in queries:
        clock.now += 60
        paid.append(worker.answer(query))
    clock.now += 2
    worker.billing.catch_up()
    return sum(paid)


def test_a_lost_log_loses_no_money(tmp_path, today):
    """As copytruncate leaves it, or a full disk."""
    path = tmp_path / "calls.jsonl"
    worker, other = Worker(path, today), Worker(path, today)
    paid = ask(worker, today, range(20)) + ask(other, today, range(20, 40))
    path.write_bytes(b"")
    new = Worker(path, today)
    assert new.billing.money_left == pytest.approx(200 - paid)
    paid += ask(new, today, range(40, 50)) + ask(worker, today, range(50, 60))
    for one in (worker, other, new):
        today.now += 2
        one.billing.catch_up()
        assert one.billing.money_left == pytest.approx(200 - paid)


def test_a_log_without_totals_says_so(tmp_path, today):
    path = tmp_path / "calls.jsonl"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ask(Worker(path, today), today, range(3))
        Worker(path, today)
    os.remove(f"{path}.totals")
    with pytest.warns(CascadeWarning, match=r"policy policy: there is no .*totals: what .* put it back"):
        Worker(path, today)
    open(f"{path}.totals", "w").close()
    with pytest.warns(CascadeWarning, match=r"policy policy: .*totals is empty: what .* put it back"):
        Worker(path, today)


def test_lost_totals_are_no_new_money_while_a_worker_knows_them(tmp_path, today):
    """Nor are they fewer queries, by which each of the next ones would get more of it."""
    path = tmp_path / "calls.jsonl"
    paid = ask(Worker(path, today), today, range(700))
    worker = Worker(path, today)
    paid += ask(worker, today, range(700, 703))
    queries, position = worker.billing.bill.queries, worker.billing.position
    os.remove(f"{path}.totals")
    paid += ask(worker, today, range(703, 706))
    assert worker.billing.money_left == pytest.approx(200 - paid)
    assert worker.billing.bill.queries == pytest.approx(queries, rel=0.01)
    assert worker.billing.position == pytest.approx(position, abs=0.1)
    assert Worker(path, today).billing.money_left == pytest.approx(200 - paid)


def test_a_full_disk_is_a_warning_once_and_totals_are_saved_later(tmp_path, today, monkeypatch):
    path = tmp_path / "calls.jsonl"
    worker, real = Worker(path, today), totals.try_lock
    assert worker.billing.position > 0

    def full(file, patience):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(totals, "try_lock", full)
    with pytest.warns(CascadeWarning, match=r"cannot save spending to .*totals: No space") as warned:
        paid = ask(worker, today, range(5))
    assert len(warned) == 1
    assert worker.billing.position_of("a") == worker.billing.position == 0
    monkeypatch.setattr(totals, "try_lock", real)
    paid += ask(worker, today, range(5, 10))
    assert worker.billing.position > 0
    assert Worker(path, today).billing.money_left == pytest.approx(200 - paid)


@pytest.mark.skipif(files.fcntl is None, reason="a system without locks of files")
def test_no_request_waits_for_a_process_that_holds_the_lock_of_the_totals(tmp_path, today):
    """A request reads what others have spent on the event loop, where waiting would stall all requests."""
    path = tmp_path / "calls.jsonl"
    worker = Worker(path, today)
    paid = ask(worker, today, range(3))
    with open(f"{path}.totals") as holder, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        files.fcntl.flock(holder, files.fcntl.LOCK_EX)
        for seconds, number in ((2, 0), (50, 0), (10, 1), (60, 1)):
            today.now += seconds
            request = threading.Thread(target=worker.billing.catch_up, daemon=True)
            request.start()
            request.join(10)
            assert not request.is_alive()
            assert len(warned) == number
    what = f"cannot save spending to {path}.totals: {LOCKED}: until this works the cheapest rung answers"
    assert str(warned[0].message).startswith(what)
    paid += ask(worker, today, range(3, 6))
    assert Worker(path, today).billing.money_left == pytest.approx(200 - paid)


@pytest.mark.skipif(files.fcntl is None, reason="a system without locks of files")
@pytest.mark.parametrize("then", ["reload", "end"])
def test_what_the_lock_held_back_is_recorded_by_a_new_policy_and_at_the_end(tmp_path, today, then):
    """Another worker just writes: nobody waits for it, and the next query, which makes up for it, may not come."""
    path = tmp_path / "calls.jsonl"
    before = Worker(path, today)
    paid = ask(before, today, range(3))
    after = Worker(path, today)
    with open(f"{path}.totals") as holder:
        files.fcntl.flock(holder, files.fcntl.LOCK_EX)
        paid += before.answer(3)
    if then == "reload":
        after.billing.continue_from(before.billing)
        assert after.billing.money_left == pytest.approx(200 - paid)
        assert after.billing.bill.queries == pytest.approx(before.billing.bill.queries)
        paid += ask(before, today, range(4, 6)) + ask(after, today, range(6, 9))  # as requests that had begun
        assert after.billing.money_left == pytest.approx(200 - paid)
    else:
        before.billing.flush()
    assert Worker(path, today).billing.money_left == pytest.approx(200 - paid)


@pytest.mark.skipif(files.fcntl is None, reason="a system without locks of files")
def test_queries_before_a_start_that_could_not_read_them_are_none_of_now(tmp_path, today, monkeypatch):
    path = tmp_path / "calls.jsonl"
    first = Worker(path, today)
    ask(first, today, range(400))
    monkeypatch.setattr(totals, "LOCK_WAIT_SECONDS", 0.0)
    with open(f"{path}.totals") as holder:
        files.fcntl.flock(holder, files.fcntl.LOCK_EX)
        with pytest.warns(CascadeWarning, match=LOCKED):
            late = Worker(path, today).billing
        assert late.position == 0
    today.now += 2
    late.catch_up()
    assert late.money_left == pytest.approx(first.billing.money_left)
    assert late.bill.queries == pytest.approx(first.billing.bill.queries, rel=0.01)
