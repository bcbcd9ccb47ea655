"""Clients with names: permissions, limits, metrics, logs, ids of queries, and reloads of their file."""

import hashlib
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import Context
from pathlib import Path

import pytest
from helpers.chat_server import Response, completion, sure
from helpers.command_line import run
from helpers.gateway_service import SURE, UNSURE, gateway, gateway_process, make_policy, until
from test_followed_bills import ladder

from rcjax._base import files
from rcjax.policy.ladder import Period
from rcjax.serving.billing import BudgetSpentError, SpendingUnknownError
from rcjax.serving.gateway import clients
from rcjax.serving.gateway.catalog import ServiceSettings
from rcjax.serving.gateway.clients import ApiError, Client, ClientLimits, KeyRing, add_key, money_error
from rcjax.serving.totals import TotalsFile

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


ASKED = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "A or B?"}]},
    "/v1/responses": {"input": "A or B?"},
}


def behave(request, headers):
    return Response(sure("B", SURE))


class Keys:
    """A file of keys, with the keys of its clients."""

    def __init__(self, folder):
        self.path, self.keys = folder / "keys.toml", {}

    def add(self, name, limits=""):
        self.keys[name] = add_key(name, self.path)
        with open(self.path, "a") as file:
            file.write(f"{limits}\n")
        return self

    def ask(self, service, name, path="/v1/chat/completions", **fields):
        headers = {"authorization": f"Bearer {self.keys[name]}"}
        headers |= {"x_rcjax_query": fields.pop("query")} if "query" in fields else {}
        asked = {"model": "policy", **ASKED[path]}
        return service.post(asked | fields, path, **headers)

    def get(self, service, name, path):
        return service.get(path, authorization=f"Bearer {self.keys[name]}")


@pytest.fixture
def keys(tmp_path):
    return Keys(tmp_path)


def error_of(reply):
    return reply.status, reply.json["error"]["code"]


def test_a_key_is_printed_once_and_its_hash_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("key", "team-a")
    key = result.stdout.strip()
    text = (tmp_path / "keys.toml").read_text()
    assert key not in text
    assert hashlib.sha256(key.encode()).hexdigest() in text
    assert (tmp_path / "keys.toml").stat().st_mode & 0o777 == 0o600
    assert "has a client team-a already" in run("key", "team-a").stderr
    assert "is not a name of a client" in run("key", "a/b").stderr
    assert json.loads(run("key", "b", "--json").stdout)["name"] == "b"
    assert (tmp_path / "keys.toml").read_text().startswith(text.rstrip())


@pytest.mark.parametrize("text", [None, "{}"])
def test_a_file_of_keys_that_is_not_toml_is_refused_and_not_written(tmp_path, text):
    """A table of TOML was added to a file of JSON."""
    path = tmp_path / "keys.json"
    if text is not None:
        path.write_text(text)
    for use in (lambda: add_key("a", path), lambda: KeyRing.read(path, (), ())):
        with pytest.raises(ValueError, match=r"^keys\.json: .* give a name that ends in \.toml$"):
            use()
    assert (path.read_text() if path.exists() else None) == text


@pytest.mark.skipif(files.fcntl is None, reason="a system without locks of files")
def test_two_keys_that_are_made_at_once_are_both_kept(tmp_path, monkeypatch):
    path, waits, made, real = tmp_path / "keys.toml", threading.Event(), [], clients.secrets.token_urlsafe
    other = threading.Thread(target=lambda: made.append(add_key("other", path)), daemon=True)
    monkeypatch.setattr(files.time, "sleep", lambda _: waits.set())

    def token_while_the_other_starts(size):
        if other.ident is None:
            other.start()
            while not waits.is_set() and other.is_alive():
                other.join(0.01)
        return real(size)

    monkeypatch.setattr(clients.secrets, "token_urlsafe", token_while_the_other_starts)
    made.append(add_key("one", path))
    other.join()
    ring = KeyRing.read(path, (), ())
    assert {ring.clients[clients.hash_key(key)].name for key in made} == {"one", "other"}


def test_clients_may_use_the_policies_and_models_of_their_table(keys):
    keys.add("plain").add("one", 'policies = ["support"]').add("free", 'policies = []\nmodels = ["large"]')
    with gateway({"support": make_policy(), "code": make_policy()}, behave, keys_file=keys.path) as service:
        may = {
            (name, model): keys.ask(service, name, model=model).status
            for name in keys.keys
            for model in ("support", "code", "large", "small", "nothing")
        }
        listed = {name: [one["id"] for one in keys.get(service, name, "/v1/models").json["data"]] for name in keys.keys}
        assert error_of(keys.ask(service, "plain", model="large")) == (403, "not_permitted")
        assert service.ask(model="support").status == 401
    assert {pair for pair, status in may.items() if status == 200} == {
        ("plain", "support"), ("plain", "code"), ("one", "support"), ("free", "large")
    }  # fmt: skip
    assert {status for (_, model), status in may.items() if model == "nothing"} == {404}
    assert listed == {"plain": ["support", "code"], "one": ["support"], "free": ["large"]}


def test_requests_per_minute_and_at_once_are_limited(keys, monkeypatch):
    monkeypatch.setattr("rcjax.serving.gateway.clients.time.time", lambda: 1e9 + 30)
    keys.add("brief", "requests = 3").add("lone", "max_concurrent = 1").add("other", "metrics = true")
    are_refused = threading.Event()

    def behave_once_they_are(request, headers):
        assert are_refused.wait(120)
        return behave(request, headers)

    with gateway(behave=behave_once_they_are, keys_file=keys.path) as service, ThreadPoolExecutor(8) as pool:
        replies = as_completed([pool.submit(keys.ask, service, "lone") for _ in range(4)])
        assert [next(replies).result().status for _ in range(3)] == [429] * 3
        are_refused.set()
        assert next(replies).result().status == 200
        assert keys.ask(service, "lone").status == 200
        replies = [*pool.map(lambda _: keys.ask(service, "brief"), range(5))]
        assert sorted(reply.status for reply in replies) == [200, 200, 200, 429, 429]
        refused = keys.ask(service, "brief")
        assert error_of(refused) == (429, "client_limit")
        assert "brief may send 3 requests a minute: the next one begins 2001-09-09 01:48 UTC" in refused.body.decode()
        assert 1 <= int(refused.headers["retry-after"]) <= 50
        assert keys.ask(service, "other").status == 200
        page = keys.get(service, "other", "/metrics").body.decode()
        # "too_many_requests" would say that the worker needs help: the alert of that goes by it.
        assert {*re.findall(r'rcjax_refused_requests_total\{reason="(\w+)"', page)} == {"client_limit"}
        monkeypatch.setattr("rcjax.serving.gateway.clients.time.time", lambda: 1e9 + 90)
        assert keys.ask(service, "brief").status == 200


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL]}, {"model": "large"}, {"stream": True, "tools": [TOOL]}])
def test_requests_reserve_money_and_the_rest_is_the_limit(keys, fields):
    keys.add("poor", 'money = "0.002/month"\nmodels = ["large"]').add("other")

    def wordy(request, headers):
        return Response(completion("B", usage=(100, 50)) if "logprobs" not in request else sure("B", SURE, (100, 50)))

    with gateway(behave=wordy, keys_file=keys.path) as service, ThreadPoolExecutor(20) as pool:
        replies = [*pool.map(lambda _: keys.ask(service, "poor", max_tokens=50, **fields), range(40))]
        assert {reply.status for reply in replies} == {200, 429}
        spent = sum(row["cost"] for row in service.log_rows())
        assert 0 < spent <= 0.002 + 20 * 100 * 3.6e-6
        refused = keys.ask(service, "poor", max_tokens=1000, model="policy", tools=[TOOL])
        assert error_of(refused) == (429, "client_limit")
        assert re.search(
            r"poor may spend \$0.002 a month, .* the next month begins \d{4}-\d\d-01", refused.body.decode()
        )
        assert refused.headers["x-should-retry"] == "false"
        assert keys.ask(service, "other", tools=[TOOL]).status == 200


def test_a_request_refused_for_reserved_money_may_be_tried_again_at_once():
    client, limits = Client("0" * 64, money=Period(1.0, "month"), name="a"), ClientLimits(TotalsFile(None))
    with limits.reserve(client, 0.6):
        with pytest.raises(BudgetSpentError, match=r"running requests have reserved .*try again") as refused:
            Context().run(limits.reserve(client, 0.6).__enter__)
        error = money_error(refused.value)
        assert (error.headers, error.reason) == ({"retry-after": "1"}, "client_limit")
        with pytest.raises(BudgetSpentError, match="the next month begins") as refused:
            Context().run(limits.reserve(client, 1.1).__enter__)
        assert money_error(refused.value).headers["x-should-retry"] == "false"


def test_no_money_is_spent_while_the_file_of_the_clients_spending_fails(tmp_path):
    """Each worker counted alone, and admitted the whole money."""
    client, path = Client("0" * 64, money=Period(1.0, "month"), name="a"), tmp_path / "clients"
    totals = TotalsFile(path)
    limits = ClientLimits(totals)
    limits.pay(client, 0.25)
    totals.sync()
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError):
        totals.sync()
    with pytest.raises(SpendingUnknownError, match="try again"), limits.reserve(client, 0.1):
        pass
    path.rmdir()
    totals.sync()
    with limits.reserve(client, 0.1):
        pass


def test_what_a_running_request_has_paid_is_not_reserved_too():
    client, limits = Client("0" * 64, money=Period(1.0, "month"), name="a"), ClientLimits(TotalsFile(None))
    with limits.reserve(client, 0.75):
        limits.pay(client, 0.5)
        with limits.reserve(client, 0.25):
            limits.pay(client, 0.5)  # more than was expected: the rest of the first reservation stays
        with pytest.raises(BudgetSpentError):
            limits.reserve(client, 0.01).__enter__()


def test_calls_of_a_running_request_come_off_its_reservation(keys):
    """While the second model is asked, the cost of the first model counts once."""
    keys.add("a", 'money = "1/month"')
    known = []

    def behave(request, headers):
        limits = service.app.state.gateway.client_limits
        client = service.app.state.gateway.catalog.key_ring.by_name("a")
        paid = limits._total(client, time.time()).last_read()[0]
        known.append((paid, sum(limits._by_client["a"].reserved.values())))
        return Response(sure("B", UNSURE if request["model"] == "org/small" else SURE))

    with gateway(behave=behave, keys_file=keys.path) as service:
        assert keys.ask(service, "a").json["rcjax"]["models"] == ["small", "middle"]
    (_, reserved), (paid, rest) = known
    assert 0 < paid < reserved
    assert paid + rest == pytest.approx(reserved)


def test_figures_and_log_name_clients_and_show_no_key(keys):
    keys.add("team-a", 'money = "2/month"').add("team-b").add("operator", "metrics = true")
    with gateway(behave=behave, keys_file=keys.path, shadow=1.0) as service:
        for name, times in {"team-a": 3, "team-b": 1}.items():
            for _ in range(times):
                assert keys.ask(service, name).status == 200
        service.logged(12)
        assert keys.ask(service, "team-b", n="x").status == 400
        rows = service.log_rows()
        page = keys.get(service, "operator", "/metrics").body.decode()
        for name in ("team-a", "team-b"):
            assert keys.get(service, name, "/metrics").status in (401, 403)
    assert {row["client"] for row in rows} == {"team-a", "team-b"}
    assert 'rcjax_client_requests_total{client="team-a",status="200"} 3.0' in page
    assert 'rcjax_client_requests_total{client="team-b",status="400"} 1.0' in page
    own = sum(row["cost"] for row in rows if row["client"] == "team-a" and row.get("step") not in (None, 1_000_000))
    counted = float(re.search(r'rcjax_client_cost_total{client="team-a"} (\S+)', page)[1])
    assert counted == pytest.approx(3 * 10.4e-6) == pytest.approx(own)  # not what shadow queries add
    for text in (page, json.dumps(rows)):
        assert not any(key in text or hashlib.sha256(key.encode()).hexdigest() in text for key in keys.keys.values())


@pytest.mark.parametrize("path", ASKED)
def test_no_client_can_take_the_id_of_another(keys, path):
    keys.add("a").add("b")
    with gateway(behave=behave, keys_file=keys.path) as service:
        for name in ("a", "b"):
            reply = keys.ask(service, name, path, query="a/q1")
            assert reply.headers["x-rcjax-query"] == f"{name}/a/q1"
        assert keys.ask(service, "a", path).headers["x-rcjax-query"].startswith("a/")
        assert [row["query"] for row in service.log_rows()][:2] == ["a/a/q1", "b/a/q1"]


def test_a_changed_file_of_keys_is_loaded_and_a_broken_file_is_not(keys, caplog):
    caplog.set_level("INFO", "rcjax.serving")
    keys.add("a")
    with gateway(behave=behave, keys_file=keys.path) as service:
        assert keys.ask(service, "a").status == 200
        keys.add("b", 'policies = ["missing"]')
        until(lambda: "there is no missing" in caplog.text)
        assert (keys.ask(service, "a").status, keys.ask(service, "b").status) == (200, 401)
        keys.path.write_text(keys.path.read_text().replace("missing", "policy"))
        until(lambda: keys.ask(service, "b").status == 200)
        assert "the file of keys is loaded: a, b" in caplog.text
        keys.path.write_text("".join(keys.path.read_text().partition('["b"]')[1:]))
        until(lambda: keys.ask(service, "a").status == 401)
        assert keys.ask(service, "b").status == 200


def test_a_change_of_the_period_of_a_client_says_that_its_total_begins_anew(keys, caplog):
    """Money without a limit is counted by the month, and a new limit for a month goes on with that."""
    caplog.set_level("INFO", "rcjax.serving")
    keys.add("a", 'money = "1/day"').add("b")
    with gateway(behave=behave, keys_file=keys.path) as service:
        keys.path.write_text(keys.path.read_text().replace("1/day", "1/month") + 'money = "1/month"\n')
        until(lambda: service.app.state.gateway.catalog.key_ring.by_name("b").money is not None)
        until(lambda: "the file of keys is loaded" in caplog.text)
    lines = [line for line in caplog.messages if "from now on" in line]
    assert lines == [
        "client a: its money is for a month from now on, not for a day: "
        "what was spent before the change does not count in it"
    ]


def test_money_holds_over_restarts(keys):
    keys.add("a", 'money = "1/month"')
    with gateway(behave=behave, keys_file=keys.path) as service:
        for _ in range(3):
            keys.ask(service, "a")
        kept = (service.folder / "calls.jsonl.clients", service.folder / "calls.jsonl")
        until(lambda: kept[0].exists() and kept[0].stat().st_size > 0)  # it is made before it is written
        until(lambda: any(row[4] > 3e-5 for row in json.loads(kept[0].read_text())["totals"]))
        texts = [path.read_bytes() for path in kept]
    log = keys.path.with_name("calls.jsonl")
    for path, text in zip((f"{log}.clients", log), texts, strict=True):
        with open(path, "wb") as file:
            file.write(text)
    keys.path.write_text(keys.path.read_text().replace("1/month", "0.00003/month"))
    with gateway(behave=behave, keys_file=keys.path, log=log) as service:
        assert error_of(keys.ask(service, "a")) == (429, "client_limit")


def test_clients_without_names_may_use_models_if_that_is_permitted():
    with gateway(behave=behave, open_models=False) as service:
        assert error_of(service.ask(model="large")) == (403, "not_permitted")
        assert [one["id"] for one in service.get("/v1/models").json["data"]] == ["policy"]
        assert service.ask().status == 200


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ("", "no clients: rcjax key NAME"),
        ('["a b"]\nsha256 = "x"', "'a b' is not a name of a client"),
        ("a = 1", "a is not a table"),
        ('[a]\nsha256 = "rcjax-abc"', "client a.sha256: must be the SHA-256 of a key"),
        (f'[a]\nsha256 = "{"0" * 64}"\nsecret = 1', "client a: secret is not a setting of a client"),
        (f'[a]\nsha256 = "{"0" * 64}"\n[b]\nsha256 = "{"0" * 64}"', "client b: has the key of a"),
        (f'[a]\nsha256 = "{"0" * 64}"\nmoney = "5"', 'client a.money: give money and a period, such as "5/month"'),
        (f'[a]\nsha256 = "{"0" * 64}"\nmoney = 50', 'client a.money: give money and a period, such as "5/month"'),
        (f'[a]\nsha256 = "{"0" * 64}"\nrequests = 0', "client a.requests: must be between 1 and"),
        (f'[a]\nsha256 = "{"0" * 64}"\nmodels = ["x"]', "client a.models: there is no x"),
    ],
)
def test_errors_of_a_file_of_keys_show_no_key(keys, table, what):
    keys.path.write_text(table)
    with pytest.raises(ValueError, match=re.escape(what)) as problem, gateway(keys_file=keys.path):
        pass
    assert "rcjax-abc" not in str(problem.value)


@pytest.mark.parametrize("log", [None, Path("-")])
def test_money_needs_a_log_that_is_a_file(keys, log):
    keys.add("a", 'money = "1/day"')
    with (
        pytest.raises(ValueError, match="client a: its money is counted in a file beside the log"),
        gateway(keys_file=keys.path, log=log),
    ):
        pass


@pytest.mark.parametrize("log", [None, "-"])
def test_workers_without_a_log_share_what_clients_have_used(log, tmp_path, monkeypatch):
    """The totals are in the folder that `rcjax serve` makes for several workers."""
    now = time.time() // 60 * 60 + 30  # within a minute
    monkeypatch.setattr(time, "time", lambda: now)
    settings = ServiceSettings({}, tmp_path / "models.toml", log=log and Path(log), shared_folder=tmp_path)
    one, other = (settings.make_client_totals() for _ in "ab")
    client = Client("0" * 64, requests=2, name="a")
    for _ in range(2):
        with ClientLimits(one).admit(client):
            pass
    one.sync()
    other.total("client a", "minute", (now - 30, now + 30))
    other.sync()
    with pytest.raises(ApiError, match="a may send 2 requests a minute"), ClientLimits(other).admit(client):
        pass


def test_a_restart_forgets_no_request_of_the_minute(keys, tmp_path, monkeypatch):
    """Each start admitted as many requests as a minute may have."""
    keys.add("a", "requests = 3")
    now = time.time() // 60 * 60 + 30  # within a minute
    monkeypatch.setattr(time, "time", lambda: now)
    for allowed in (3, 0):
        with gateway(behave=behave, keys_file=keys.path, log=tmp_path / "calls.jsonl") as service:
            statuses = [keys.ask(service, "a").status for _ in range(4)]
            assert statuses == [200] * allowed + [429] * (4 - allowed)
            service.app.state.gateway._totals.sync()


@pytest.mark.thorough
def test_limits_hold_over_workers(keys):
    """Each worker knows the counts of the others within a second."""
    keys.add("a", "requests = 40")
    with gateway_process(None, behave, "--workers", 2, "--keys", keys.path) as service:
        until(lambda: len(service.workers()) == 2)
        time.sleep(61 - time.time() % 60)  # a minute of its own
        statuses = []
        while statuses[-5:] != [429] * 5:
            statuses.append(keys.ask(service, "a").status)
            time.sleep(0.3)
        assert 40 <= statuses.count(200) <= 46


def test_each_client_has_a_bill_of_its_own(keys):
    """A client whose queries cost a hundred times as much gets the cheapest rung; the others keep theirs."""
    keys.add("greedy").add("usual")

    def behave(request, headers):
        return Response(sure("B", SURE, (100, 1) if request.get("max_tokens", 1) == 1 else (10_000, 2000)))

    def positions(service, name, times, **fields):
        headers = [keys.ask(service, name, **fields).headers for _ in range(times)]
        return [float(one["x-rcjax-position"]) for one in headers]

    with gateway(ladder(), behave, keys_file=keys.path) as service:
        before = positions(service, "usual", 5)
        greedy = positions(service, "greedy", 40, max_tokens=2000)
        after = positions(service, "usual", 5)
        not_judged = [keys.ask(service, name, n=2).json["model"] for name in ("greedy", "usual")]
    assert greedy[0] == pytest.approx(before[0])
    assert greedy[-1] == 0
    assert min(before + after) > 1.2
    assert not_judged == ["small", "large"]
