"""The ledger of several replicas, in a real store: shared, replayed, cut off, restarted, killed."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from helpers import call_samples
from helpers.gateway_service import until
from helpers.ledger_replica import BUDGET, LADDER, QUERIES, costs_in
from helpers.redis_store import Proxy, in_a_store, store

from rcjax.policy.ladder import Period
from rcjax.serving import totals as module
from rcjax.serving.billing import SharedBill, SpendingUnknownError
from rcjax.serving.gateway.clients import Client, ClientLimits
from rcjax.serving.totals import Ledger, address_of

pytestmark = in_a_store
MONEY = LADDER.period.money


@pytest.fixture(scope="module")
def shared():
    with store() as one:
        yield one


@pytest.fixture
def ledgers(monkeypatch):
    """Makes ledgers, which are closed at the end; they wait long for the store, except where its answers get lost."""
    made = []

    def make(url, replica="a", answer_seconds=30.0):
        with monkeypatch.context() as patch:
            patch.setattr(module, "ANSWER_SECONDS", answer_seconds)
            made.append(Ledger(url, replica))
        return made[-1]

    yield make
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in made:
            one.close()


@pytest.fixture
def name(request):
    """Of a policy that no other test has."""
    return request.node.name


def paying(cost, billing):
    """A query that costs so much."""
    call = call_samples.call("q", "m", cost=cost, charge=billing.charge)
    billing.pay([call], 0.1)


def settled(*billings):
    """What is left, or the balance, once all have heard of it."""
    for billing in billings:
        assert billing._totals.sync()
    for billing in billings:
        assert billing._totals.sync()
        billing.catch_up()
    return [billing.money_left if billing.balance is None else billing.balance for billing in billings]


def test_replicas_share_money_and_a_new_one_begins_with_it(shared, ledgers, name):
    one, two = (SharedBill(LADDER, name, None, ledgers(shared.url, replica)) for replica in "ab")
    assert [one.money_left, two.money_left] == [MONEY, MONEY]
    for _ in range(60):
        paying(3.0, one)
    paying(5.0, two)
    assert settled(one, two) == pytest.approx([MONEY - 185] * 2)
    assert one.bill.queries == pytest.approx(two.bill.queries, abs=0.1)
    paying(0.0, one)  # which tells how many queries come, the others' too
    assert settled(one) == pytest.approx([MONEY - 185])
    new = SharedBill(LADDER, name, None, ledgers(shared.url, "c"))
    assert new.money_left == pytest.approx(MONEY - 185)
    assert new.bill.queries == pytest.approx(one.bill.queries, abs=1.1) != LADDER.period.money / BUDGET
    other = SharedBill(LADDER, "other than it", None, ledgers(shared.url, "c"))
    assert other.money_left == MONEY
    one.pay_shadow([call_samples.call("q", "m", cost=7.0)])
    assert settled(one, new) == pytest.approx([MONEY - 192] * 2)


def test_balances_of_budgets_per_query_are_shared_and_credit_is_bounded(shared, ledgers, name):
    policy = replace(LADDER, period=None)
    one, two = (SharedBill(policy, name, None, ledgers(shared.url)) for _ in "ab")
    paying(10 * BUDGET, one)
    paying(3 * BUDGET, two)
    assert settled(one, two) == pytest.approx([-11 * BUDGET] * 2)
    assert SharedBill(policy, name, None, ledgers(shared.url)).balance == pytest.approx(-11 * BUDGET)
    for _ in range(500):
        paying(0.0, one)
    assert settled(one, two) == pytest.approx([400 * BUDGET] * 2)  # a window's


def test_an_answer_of_the_store_that_is_lost_counts_once(shared, ledgers, name):
    proxy = Proxy(shared.port)
    near = SharedBill(LADDER, name, None, ledgers(shared.url))
    with warnings.catch_warnings(record=True) as said:  # from the start on: a thread warns whenever it notices
        warnings.simplefilter("always")
        far = SharedBill(LADDER, name, None, ledgers(proxy.url, answer_seconds=1.0))
        until(lambda: far._totals.down_since is None)  # a busy store may miss the first second
        proxy.cut = "answers"
        paying(3.0, far)
        until(lambda: settled(near) == [MONEY - 3.0])  # it has arrived
        until(lambda: far._totals.down_since is not None)
        paying(4.0, far)
        assert settled(near) == [MONEY - 3.0]  # nothing is sent before the first payment is confirmed
        assert (far.money_left, far._totals.waiting) == (MONEY - 7.0, 2)  # by its own count
        proxy.cut = ""
        until(lambda: far._totals.waiting == 0 and far._totals.down_since is None)
        assert settled(near) == [MONEY - 7.0]
        far.catch_up()
        assert far.money_left == MONEY - 7.0
    warned = "\n".join(str(one.message) for one in said)
    assert re.search(r"has not answered since \d{4}-\d\d-\d\d .*\(TimeoutError\): answers go on", warned)
    assert "answers again, after" in warned
    proxy.close()


def test_an_emptied_store_is_restored_by_the_replicas(ledgers, name):
    with store() as forgetful:
        one, two = (SharedBill(LADDER, name, None, ledgers(forgetful.url)) for _ in "ab")
        paying(3.0, one)
        paying(5.0, two)
        settled(one, two)
        with warnings.catch_warnings(record=True) as said:  # from before the store stops: threads see it
            warnings.simplefilter("always")
            forgetful.stop()
            paying(7.0, one)
            for billing in (one, two, one, two):
                assert not billing._totals.sync()
            assert one.money_left == MONEY - 15.0
            assert one.position > 0.0  # answers go on
            forgetful.start()
            assert settled(one, two) == [MONEY - 15.0] * 2
        assert sum("has not answered since" in str(one.message) for one in said) == 2  # once for each
        late = SharedBill(LADDER, name, None, ledgers(forgetful.url))
        assert late.money_left == MONEY - 15.0


def test_an_emptied_store_is_told_balances_by_the_replicas(ledgers, name):
    policy = replace(LADDER, period=None)
    with store() as forgetful:
        one, two = (SharedBill(policy, name, None, ledgers(forgetful.url)) for _ in "ab")
        paying(10 * BUDGET, one)
        assert settled(one, two) == pytest.approx([-9 * BUDGET] * 2)
        paying(3 * BUDGET, two)
        paying(0.0, two)
        assert settled(one, two) == pytest.approx([-10 * BUDGET] * 2)
        one._totals._client.flushall()
        paying(2 * BUDGET, one)
        assert settled(one, two) == pytest.approx([-11 * BUDGET] * 2)


def test_past_minutes_of_idle_clients_are_forgotten(shared, ledgers, name):
    one = ledgers(shared.url)
    total = one.total(name, "minute", (0.0, 60.0))
    total.add(0.0)
    assert one.sync()  # which counts it
    assert one.waiting == 0
    one._client.delete(total.keys[0])
    assert one.sync()
    assert not one._client.exists(total.keys[0])


@pytest.mark.parametrize("reply", [[], ["1", "2"], ["1", "2", None], None, ["x", "2", ""]])
def test_a_malformed_reply_of_the_store_is_a_failure(ledgers, name, monkeypatch, reply):
    ledger = ledgers("redis://127.0.0.1:1")
    ledger.total(name, "day", (0.0, 86_400.0))
    monkeypatch.setattr("redis.client.Pipeline.execute", lambda self: [reply])
    with pytest.warns(UserWarning, match="has not answered since"):
        assert not ledger.sync()


def test_without_any_total_the_cheapest_rung_answers(ledgers, name):
    with pytest.warns(UserWarning, match="has not answered since"):
        billing = SharedBill(LADDER, name, None, ledgers("redis://127.0.0.1:1"))
    assert billing.position == 0.0
    assert SharedBill(replace(LADDER, period=None), name, None, ledgers("redis://127.0.0.1:1")).position > 0.0
    paying(3.0, billing)
    with pytest.warns(UserWarning, match=r"did not get 1 payment: the other replicas count their money as unspent"):
        billing._totals.close()


def test_a_replica_that_begins_without_the_store_takes_no_old_queries_for_new_ones(shared, ledgers, name):
    one = SharedBill(LADDER, name, None, ledgers(shared.url))
    one.bill = replace(one.bill, queries=50.0)  # fewer than were expected
    for _ in range(300):
        paying(0.1, one)
    settled(one)
    proxy = Proxy(shared.port)
    proxy.cut = "requests"
    with pytest.warns(UserWarning, match="has not answered since"):
        late = SharedBill(LADDER, name, None, ledgers(proxy.url, "b", answer_seconds=2.0))
    proxy.cut = ""
    with pytest.warns(UserWarning, match="answers again"):
        until(late._totals.sync)
    assert settled(one, late) == pytest.approx([MONEY - 30.0] * 2)
    assert late.bill.queries == pytest.approx(one.bill.queries, rel=0.01)
    proxy.close()


def test_what_is_paid_after_a_clock_was_set_back_over_midnight_counts(shared, ledgers, name):
    one, day = ledgers(shared.url), (1.7e9, 1.7e9 + 86_400.0)
    for start, payments in ((0.0, 50), (86_400.0, 1), (0.0, 20)):
        for _ in range(payments):
            one.total(name, "day", (day[0] + start, day[1] + start)).add(1.0)
            assert one.sync()
    for ledger in (one, ledgers(shared.url)):
        total = ledger.total(name, "day", day)
        assert ledger.sync()
        assert total.last_read()[0] == 70.0


def test_periods_have_totals_of_their_own_which_the_store_forgets_after_them(shared, ledgers, name):
    month = replace(LADDER, period=Period(500.0, "month"))
    one = ledgers(shared.url)
    day, whole = SharedBill(LADDER, name, None, one), SharedBill(month, name, None, one)
    paying(2.0, day)
    assert settled(day, whole) == [MONEY - 2.0, 500.0]
    keys = {key: one._client.ttl(key) / 86_400 for key in one._client.keys(f"rcjax:{{policy_{name}}}:*")}
    (total,) = (key for key in keys if ":day:" in key and ":from:" not in key)
    assert one._client.hgetall(total) == {"amount": "2", "queries": "1"}
    assert 1.9 < keys[total] <= 2.0
    assert {key.split(":")[2] for key in keys} == {"day", "month", "query_count"}
    assert all(0 < days <= 33 for days in keys.values())


def test_totals_of_minutes_are_forgotten_after_a_minute(ledgers, name):
    minute = ledgers("redis://127.0.0.1:1").total(name, "minute", (0.0, 60.0))
    assert minute.seconds == 120


def test_a_new_cap_holds_from_the_next_call_on(ledgers, name):
    """As where a policy with a lower budget is taken up."""
    total = partial(ledgers("redis://127.0.0.1:1").total, name, "query", (0.0, 0.0), may_fall=True)
    total(cap=40.0).add(30.0)
    assert total(cap=40.0).last_read()[0] == 30.0
    assert total(cap=20.0).last_read()[0] == 20.0


def test_a_policy_and_a_client_of_like_names_share_no_total(shared, ledgers, name):
    one = ledgers(shared.url)
    policy = SharedBill(LADDER, f"client_{name}", None, one)
    ClientLimits(one).pay(Client("0" * 64, money=LADDER.period, name=name), 5.0)
    assert settled(policy) == [MONEY]


def test_a_client_with_money_is_refused_until_the_ledger_has_answered(shared, ledgers, name):
    client = Client("0" * 64, money=LADDER.period, name=name)
    limits = ClientLimits(ledgers("redis://127.0.0.1:1"))
    with pytest.raises(SpendingUnknownError, match="cannot be read: try again"), limits.reserve(client, 0.1):
        pass
    with limits.reserve(replace(client, money=None), 0.1):
        pass
    one = ledgers(shared.url)
    assert one.sync()
    with ClientLimits(one).reserve(client, 0.1):
        pass


def test_the_spending_of_a_client_or_policy_that_is_new_while_the_ledger_is_away_is_unknown(ledgers, name):
    known, new = (Client("0" * 64, money=LADDER.period, name=f"{name}_{which}") for which in ("known", "new"))
    with store() as mortal:
        one = ledgers(mortal.url)
        limits = ClientLimits(one)
        limits.track([known])
        assert one.sync()
    with pytest.warns(UserWarning, match="has not answered since"):
        assert not one.sync()
    with limits.reserve(known, MONEY):
        pass
    with pytest.raises(SpendingUnknownError, match="is not known now"), limits.reserve(new, 0.1):
        pass
    stopping = SharedBill(LADDER, name, None, one, stops_at_budget=True)
    with pytest.raises(SpendingUnknownError), stopping.choose_and_reserve(("dear", "cheap"), lambda _: 0.0):
        pass
    billing = SharedBill(LADDER, name, None, one)
    assert billing.position == 0.0
    with (
        billing.choose_and_reserve(("dear", "cheap"), lambda _: 0.0) as candidate,
        billing.reserve_if_covered(0.0) as is_paid,
    ):
        assert (candidate, is_paid) == ("cheap", False)
    tomorrow = LADDER.period.bounds(time.time() + 86_400.0)
    assert not one.total(f"client {new.name}", "day", tomorrow).is_unknown  # nobody has spent of it


def test_requests_do_not_wait_for_a_store_that_hangs(ledgers, name):
    """The store begins an answer that never ends: each byte of it comes in time."""
    found, begun, released = [], threading.Event(), threading.Event()

    def trickle(listener):
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            begun.set()
            while not released.wait(0.05):
                connection.sendall(b"+")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        ledger = ledgers(f"redis://127.0.0.1:{listener.getsockname()[1]}")
        ledger.total(name, "day", (0.0, 86_400.0))
        week = partial(ledger.total, name, "week", (0.0, 604_800.0))
        server, sync, asking = (
            threading.Thread(target=to, daemon=True)
            for to in (partial(trickle, listener), ledger.sync, lambda: found.append(week()))
        )
        server.start(), sync.start()
        until(begun.is_set)
        asking.start()
        until(lambda: found)
        released.set()
        server.join(), sync.join()


def test_messages_show_addresses_without_passwords(capfd):
    assert address_of("rediss://name:secret@host:1/2") == "rediss://host:1/2"
    for wrong in ("http://host", "redis://", "host:6379", "redis://host:x", "redis://:se cret@[1"):
        with pytest.raises(ValueError, match=r"^not an address of a ledger: give redis://host:6379") as problem:
            Ledger(wrong)
        assert "cret" not in str(problem.value)
    with store("--requirepass", "secret") as locked:
        with pytest.raises(ValueError, match=r"^redis://127.0.0.1:\d+ refuses: AuthenticationError: check") as problem:
            Ledger(locked.url.replace("//", "//:guess@")).check()
        assert "guess" not in str(problem.value)
        Ledger(locked.url.replace("//", "//:secret@")).check()
    Ledger("redis://127.0.0.1:1").check()  # it may come


class Replicas:
    """Processes that serve a ladder for a simulated day, each with a log and a clock of its own."""

    def __init__(self, folder, seconds):
        self.folder, self.seconds, self.began = folder, seconds, None
        self.processes = {}

    def begin(self):
        """Begin the day, once all processes have started."""
        for process in self.processes.values():
            process.stdout.readline()
        self.began = time.time()
        for process in self.processes.values():
            self._tell(process)

    def _tell(self, process):
        process.stdin.write(f"{self.began}\n")
        process.stdin.close()

    def start(self, name, url, clock=0.0, queries=QUERIES // 5, first=0):
        words = [name, url, self.folder / f"{name}.jsonl", self.seconds, clock, queries, first]
        line = [sys.executable, Path(__file__).parents[1] / "helpers" / "ledger_replica.py", *words]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen([*map(str, line)], stderr=(self.folder / name).open("w"), **pipes)
        self.processes[name] = process
        if self.began is not None:
            self._tell(process)

    def spent(self):
        for process in self.processes.values():
            process.wait(self.seconds + 120)
            process.stdout.close()
        return sum(costs_in(self.folder / f"{name}.jsonl") for name in self.processes)


def test_two_processes_keep_to_one_budget(shared, tmp_path):
    """Each hears the other at least once in a fiftieth of the day."""
    replicas = Replicas(tmp_path, 0.0)
    for number, name in enumerate("ab"):
        replicas.start(name, shared.url, 20.0 - 40.0 * number, QUERIES // 2)
    replicas.begin()
    assert replicas.spent() / MONEY == pytest.approx(1.0, abs=0.02)


@pytest.mark.thorough
def test_five_processes_one_killed_and_one_cut_off_keep_to_one_budget(tmp_path):
    """Of a day in 150 s: at 60 s one is killed, and a new one goes on; from 75 s on one is cut off for 30 s."""
    with store() as one:
        replicas, proxy = Replicas(tmp_path, 150.0), Proxy(one.port)
        for number, name in enumerate("abcde"):
            replicas.start(name, proxy.url if name == "e" else one.url, 10.0 * number - 20.0)
        replicas.begin()
        time.sleep(60.0)
        killed = replicas.processes["a"]
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        replicas.start("new", one.url, 20.0, first=int(QUERIES / 5 * 0.4) + 40)
        time.sleep(15.0)
        proxy.cut = "requests and answers"
        time.sleep(30.0)
        proxy.cut = ""
        spent = replicas.spent()
        assert spent / MONEY == pytest.approx(1.0, abs=0.01)
        said = (tmp_path / "e").read_text()
        assert said.count("has not answered since") == said.count("answers again, after") == 1
        proxy.close()


@pytest.mark.thorough
def test_without_a_ledger_each_spends_all_of_it(tmp_path):
    replicas = Replicas(tmp_path, 20.0)
    for name in "abcde":
        replicas.start(name, "none")
    replicas.begin()
    assert replicas.spent() / MONEY > 3.0
