"""Several replicas of a service: one ledger, or a share for each; lines on standard output that name the replica."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.chat_server import Response, sure
from helpers.command_line import run
from helpers.gateway_service import SURE, gateway, gateway_process, make_policy, until
from helpers.redis_store import in_a_store, store

from rcjax.cli.inputs import shadow_rate
from rcjax.cli.serve import CallLogOptions, ReplicaOptions
from rcjax.policy import Ladder, Policy, Rule
from rcjax.policy.ladder import Period
from rcjax.serving.gateway.catalog import ServiceSettings
from rcjax.serving.gateway.clients import add_key
from rcjax.serving.shadow import ShadowRate

COSTS = {"small": 10.4e-6, "middle": 51.5e-6, "large": 315e-6}  # of 100 tokens sent and one received
MONEY = 0.01


def ladder(**more):
    """Each model alone, with money for a day."""
    calibrations, rules = make_policy().calibrations, (Rule(1.0, "answer"),)
    rungs = tuple(
        Policy((name,), {name: calibrations[name]}, {name: rules}, {name: cost}, expected={"error": 0.1, "cost": cost})
        for name, cost in COSTS.items()
    )
    return Ladder(rungs, 1.0, 1e-4, **{"period": Period(MONEY, "day"), **more})


def behave(request, headers):
    return Response(sure("B", SURE))


def figure(service, name):
    page = service.get("/metrics").body.decode()
    return float(re.search(rf"^rcjax_{name}(?:{{policy=\"policy\"}})? (\S+)", page, re.MULTILINE)[1])


@in_a_store
def test_two_replicas_share_the_money_of_a_ledger():
    with store() as one, gateway(ladder(), behave, log=None, ledger=one.url, replica="a") as first:
        assert [figure(first, name) for name in ("period_left", "ledger_up", "ledger_waiting")] == [MONEY, 1, 0]
        with gateway(ladder(), behave, ledger=one.url, replica="b") as second:
            spent = sum(float(replica.ask().headers["x-rcjax-cost"]) for replica in (first, second, first))
            for replica in (first, second):
                until(lambda replica=replica: figure(replica, "period_left") == pytest.approx(MONEY - spent, rel=1e-9))
            assert {row["replica"] for row in second.log_rows()} == {"b"}
            one.stop()
            until(lambda: figure(second, "ledger_up") == 0)
            assert second.ask().status == 200
            until(lambda: figure(second, "ledger_waiting") == 1)
            left = figure(second, "period_left")
            one.start()
            until(lambda: figure(first, "period_left") == pytest.approx(left))


def test_figures_of_a_bill_are_there_before_the_first_request():
    with gateway(ladder()) as service:
        assert figure(service, "period_left") == MONEY
        assert figure(service, "ladder_position") >= 0
    with gateway(ladder(period=None)) as service:
        assert figure(service, "bill_balance") == 0


def test_a_replica_has_its_share_of_the_money():
    with gateway(ladder(), share=0.2) as service:
        assert figure(service, "period_left") == pytest.approx(MONEY / 5)


def test_a_replica_has_its_share_of_the_limits_of_clients(tmp_path):
    keys = tmp_path / "keys.toml"
    for name, limits in {
        "many": 'money = "50/month"\nrequests = 600\nmax_concurrent = 7',
        "few": "requests = 2",
        "all": "",
    }.items():
        add_key(name, keys)
        keys.write_text(f"{keys.read_text()}{limits}\n")
    with gateway(ladder(), share=0.2, keys_file=keys) as service:
        clients = service.app.state.gateway.catalog.key_ring.named
    limits = {client.name: (client.money, client.requests, client.max_concurrent) for client in clients}
    assert limits == {"many": (Period(10.0, "month"), 120, 7), "few": (None, 1, None), "all": (None, None, None)}


@pytest.mark.parametrize("ledger", [None, "redis://host"])
@pytest.mark.parametrize(("shadow", "queries"), [("200/week", 40.0), ("5%", None)])
def test_a_replica_has_its_share_of_a_number_of_shadow_queries(shadow, queries, ledger):
    """A share of the queries is not divided, because a replica has only a part; the ledger divides the money."""
    given = CallLogOptions(log=Path("calls.jsonl"), shadow=shadow_rate(shadow))
    settings = ReplicaOptions(ledger=ledger, share=0.2).apply_to(
        given.apply_to(ServiceSettings({}, Path("models.toml")), 2)
    )
    assert settings.shadow == (0.05 if queries is None else ShadowRate(queries, "week", 2))
    assert settings.share == (0.2 if ledger is None else 1.0)


@pytest.mark.parametrize(
    ("shadow", "share", "is_told"), [("200/week", None, True), ("200/week", 1.0, False), ("5%", None, False)]
)
def test_replicas_of_a_ledger_that_each_ask_a_number_of_shadow_queries_say_so(shadow, share, is_told, capsys):
    given = CallLogOptions(log=Path("calls.jsonl"), shadow=shadow_rate(shadow))
    ReplicaOptions(ledger="redis://host", share=share).apply_to(
        given.apply_to(ServiceSettings({}, Path("models.toml")), 1)
    )
    assert ("each replica asks 200 queries a week" in " ".join(capsys.readouterr().err.split())) == is_told


def test_lines_of_two_workers_on_standard_output_are_whole_and_say_which_replica():
    text = "x" * 6_000  # longer than a pipe takes at once
    with gateway_process(None, behave) as upstream:
        models = upstream.folder / "models.toml"
        line = [sys.executable, "-c", "from rcjax.cli import main; main()", "serve", "--pass", "small", "--port", "0"]
        line += ["--models", models, "--log", "-", "--replica", "pod-7", "--workers", "2", "--log-prompts"]
        process = subprocess.Popen([*map(str, line)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            url = next(one for one in process.stderr if one.startswith("serving at ")).split()[2].rstrip(",")
            question = {"model": "policy", "messages": [{"role": "user", "content": text}]}
            asked = [
                subprocess.Popen(
                    ["curl", "-s", "-m", "120", f"{url}/chat/completions", "--json", json.dumps(question)],
                    stdout=subprocess.DEVNULL,
                )
                for _ in range(8)
            ]
            assert [one.wait(120) for one in asked] == [0] * 8
        finally:
            process.terminate()
            rows = [json.loads(line) for line in process.communicate(timeout=120)[0].splitlines()]
    assert [(row["replica"], json.loads(row["prompt"])[0]["content"] == text) for row in rows] == [("pod-7", True)] * 8


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--ledger", "http://host"), "not an address of a ledger: give redis://host:6379"),
        (("--share", "6/5"), "'6/5': give a share above 0 and at most 1"),
        (("--replica", "a b"), "--replica: 'a b' is not a name for a replica"),
        (("--log", "-", "--json"), "--json: cannot be combined with --log -"),
    ],
)
def test_invalid_combinations_of_options_are_refused(options, said, tmp_path, own_settings):
    (tmp_path / "models.toml").write_text(
        '[small]\nbase_url = "http://127.0.0.1:1"\ninput = 1\noutput = 1\nsignal = "choice"\n'
    )
    result = run("serve", "--pass", "small", "--models", tmp_path / "models.toml", *options)
    assert result.exit_code in (1, 2)
    assert said in " ".join(result.output.replace("│", " ").split())


@in_a_store
def test_limits_of_a_client_with_a_name_hold_over_replicas(tmp_path, monkeypatch):
    now = time.time()
    monkeypatch.setattr("rcjax.serving.gateway.clients.time.time", lambda: now)  # no other minute begins
    keys = tmp_path / "keys.toml"
    key = add_key("ann", keys)
    with open(keys, "a") as file:
        file.write("requests = 3\n")
    settings = {"log": None, "keys_file": keys}
    with (
        store() as one,
        gateway(None, behave, ledger=one.url, replica="a", **settings) as first,
        gateway(None, behave, ledger=one.url, replica="b", **settings) as second,
    ):

        def ask(service):
            body = {"model": "policy", "messages": [{"role": "user", "content": "A or B?"}]}
            return service.post(body, authorization=f"Bearer {key}").status

        assert [ask(first), ask(second), ask(first)] == [200] * 3
        until(lambda: ask(second) == 429, 10)
        until(lambda: ask(first) == 429, 10)
