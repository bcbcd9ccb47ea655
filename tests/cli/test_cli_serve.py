"""`rcjax serve` ends at once, with one line, for whatever it cannot serve by; it never begins to."""

import asyncio
import json
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
import uvicorn
from helpers.command_line import run
from helpers.gateway_service import make_policy
from uvicorn.supervisors import Multiprocess

from rcjax.cli.serve import ReplicaOptions, announce
from rcjax.policy import Ladder, Rule
from rcjax.serving.gateway import processes
from rcjax.serving.gateway.catalog import CatalogMaker, EndpointConnections, ServiceSettings
from rcjax.serving.shadow import ShadowRate

TABLE = """[{name}]
base_url = "http://127.0.0.1:9/v1"
input = 1
output = 2
signal = "choice"
{more}
"""


def write_models(path, *names, more=""):
    path.write_text("".join(TABLE.format(name=json.dumps(name), more=more) for name in names))


@pytest.fixture(autouse=True)
def _never(monkeypatch):
    """Nothing is served in these tests: what gets so far fails."""

    def begin(*_):
        raise AssertionError("it began to serve")

    monkeypatch.setattr(uvicorn.Server, "run", begin)
    monkeypatch.setattr(Multiprocess, "run", begin)
    monkeypatch.delenv("UNSET", raising=False)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/of/another")
    monkeypatch.setenv("UMLAUT", "schlüssel")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_policy().save("policy.json")
    make_policy(provenance={"request_settings": {"small": {"signal": "stated"}}}).save("stated.json")
    make_policy(provenance={"tuning": {"cascade": 5}}).save("tampered.json")
    write_models(tmp_path / "models.toml", "small", "middle", "large")
    write_models(tmp_path / "fewer.toml", "small", "large")
    write_models(tmp_path / "unset.toml", "small", "middle", "large", more='key_env = "UNSET"')
    write_models(tmp_path / "wrong.toml", "other", more='key_env = "UNSET"')
    (tmp_path / "silent.toml").write_text((tmp_path / "models.toml").read_text().replace('signal = "choice"', ""))
    return tmp_path


GOOD = "policy.json --models models.toml"
LOGGED = f"{GOOD} --log calls.jsonl"
USAGE = {
    f"{GOOD} --allow-host http://box.local": "'http://box.local' is not a name of a host: give a name without a scheme",
    "": "POLICY: is missing: give the file of a policy, --policy name=file, or --pass with",
    "policy.json": "--models: is missing: give the file of the models",
    "--policy support --models models.toml": "--policy: 'support': give pairs of two names",
    "--policy a*b=policy.json --models models.toml": "'a*b' is not a name for a policy: give one of letters, digits",
    f"{GOOD} --policy policy=policy.json": "--policy: 'policy=policy.json': give pairs of two names",
    f"{GOOD} --host 0.0.0.0": "--host: others can reach 0.0.0.0: give --keys with clients, --key-env",
    f"{GOOD} --keys keys.toml --key-env UNSET": "--keys: cannot be combined with --key-env",
    f"{GOOD} --host 0.0.0.0 --open --keys keys.toml": "--open: cannot be combined with --keys",
    f"{GOOD} --host 0.0.0.0 --open --key-env UNSET": "--open: cannot be combined with --key-env",
    f"{GOOD} --key-env sk-1234": "--key-env: is not a name of an environment variable",
    f"{GOOD} --no-follow --stop-at-budget": "--stop-at-budget: cannot be combined with --no-follow: a service",
    f"{GOOD} --max-body 0": "--max-body': '0' is not a size: give 500KB, 100MB or 1GB",
    f"{GOOD} --shadow 5%": "--shadow: goes with --log only: give --log calls.jsonl too",
    f"{GOOD} --no-log-answers": "--no-log-answers: goes with --log only: give --log calls.jsonl too",
    f"{GOOD} --replica pod-7": "--replica: goes with --log or --ledger only",
    f"{GOOD} --keys keys.toml --open-models": "--open-models: cannot be combined with --keys",
    f"{LOGGED} --shadow-models large": "--shadow-models: goes with --shadow only: give --shadow 5% too",
    f"{GOOD} --log policy.json": "--log: policy.json must not be the file of POLICY, policy.json",
}
FILES = {
    "policy.json --models absent.toml": "absent.toml: No such file or directory",
    f"{GOOD} --log absent/calls.jsonl": "cannot write absent/calls.jsonl: there is no folder absent: create it first",
    f"{GOOD} --host no.such.host.invalid --open": "cannot listen at http://no.such.host.invalid",
}
DATA = {
    "tampered.json --models models.toml": "tampered.json: provenance.tuning.cascade",
    "stated.json --models models.toml": "stated.json: signal of small: the policy was tuned on another one",
    "policy.json --models fewer.toml": "policy.json: it asks middle, for which fewer.toml has no table: add it",
    "policy.json --models wrong.toml": "policy.json: it asks small, middle, large, for which wrong.toml has",
    "policy.json --models silent.toml": "policy.json: signal of small, middle, large: none is given",
    "--models silent.toml --pass large": "--pass large: signal of large: none is given, and no policy records it",
    "policy.json --models unset.toml": "unset.toml, model small: the environment variable UNSET with its key is not",
    "--policy small=policy.json --models models.toml": "models.toml: small is the name of a policy too",
    "--models models.toml --pass huge": "--pass: models.toml has no table for huge: add it, or name another",
    f"{LOGGED} --shadow 5% --shadow-models x,y": "--shadow-models: models.toml has no table for x, y",
    f"{GOOD} --host 0.0.0.0 --key-env UNSET": "--key-env: the environment variable UNSET with the key is not set",
    f"{GOOD} --key-env UMLAUT": "a key in the environment variable UMLAUT has characters that no header can have",
}
LINES = [
    *((line, says, 2, "usage") for line, says in USAGE.items()),
    *((line, says, 1, "file") for line, says in FILES.items()),
    *((line, says, 1, "data") for line, says in DATA.items()),
]


@pytest.mark.parametrize(("line", "says", "status", "kind"), LINES, ids=[line or "nothing" for line, *_ in LINES])
def test_wrong_options_of_serve_are_refused_in_one_line(line, says, status, kind, folder):
    before = sorted(folder.iterdir())
    port = () if "--port" in line else ("--port", 0)
    result = run("serve", *line.split(), *port, "--json")
    assert (result.exit_code, len(result.stderr.splitlines())) == (status, 1), (result.stderr, result.exception)
    error = json.loads(result.stdout)["error"]
    assert error["kind"] == kind, error
    assert says in error["message"]
    assert result.stderr == f"error: {error['message']}\n"
    assert "sk-1234" not in result.stderr
    assert run("serve", *line.split(), *port).exit_code == status
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "hosts"),
    [
        ("", ()),
        ("--host ::1 --allow-host b", ("b",)),
        ("--host Localhost", ()),
        ("--key-env KEY", None),  # a page cannot know the key
        ("--host 0.0.0.0 --key-env KEY --allow-host api.example", ("api.example",)),
        ("--host 0.0.0.0 --open", None),
    ],
)
def test_requests_may_name_only_allowed_hosts_unless_a_key_is_set(options, hosts, folder, monkeypatch):
    served = []
    monkeypatch.setenv("KEY", "secret")
    monkeypatch.setattr(processes, "serve", lambda settings, *_: served.append(settings.hosts))
    result = run("serve", *GOOD.split(), *options.split())
    assert (result.exit_code, served) == (0, [hosts]), result.stderr


def test_an_address_in_use_is_refused_in_one_line(folder):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = run("serve", *GOOD.split(), "--port", port, "--log", "calls.jsonl")
    assert result.exit_code == 1
    told = f"cannot listen at http://127.0.0.1:{port}: Address already in use: choose another --host or --port"
    assert result.stderr == f"error: {told}\n"
    assert not (folder / "calls.jsonl").exists()


def test_right_options_of_serve_start_a_service(folder):
    result = run("serve", *LOGGED.split(), "--port", "0")
    assert "it began to serve" in result.stderr


def test_the_announcement_has_the_address_and_the_policies(folder, capsys):
    files = {"supp\x1bort": folder / "policy.json", "later": folder / "absent.json"}
    settings = ServiceSettings(files, folder / "models.toml", pass_model="large", shadow=0.05)
    catalog = CatalogMaker(settings, EndpointConnections(1.0).api_client).read()
    digest, names = catalog.policies["supp\x1bort"].digest, ["small", "middle", "large"]
    cost = catalog.policies["supp\x1bort"].shadow_cost.describe(0.05)
    announce(settings, False, 1, "http://127.0.0.1:8080", catalog)
    told = capsys.readouterr()
    assert told.err.splitlines() == [
        "serving at http://127.0.0.1:8080/v1, under these names of models:",
        f"  supp\\x1bort ({digest}): small → middle → large",
        f"    shadow: 5 % of its queries to all of small, middle, large: {cost}",
        "  later (no policy yet): large alone",
        "    shadow: 5 % of its queries to all of large, small, middle: the cost is known once there is a policy",
        "figures for Prometheus: http://127.0.0.1:8080/metrics",
    ]
    assert not told.out
    announce(replace(settings, keys_file=folder / "keys.toml"), False, 2, "http://127.0.0.1:8080", catalog)
    what = "max_concurrent and each client's rung hold per worker"
    assert f"{what}; money and requests a minute hold for the whole service" in " ".join(
        capsys.readouterr().err.split()
    )
    announce(replace(settings, stops_at_budget=True), False, 1, "http://127.0.0.1:8080", catalog)
    assert "--stop-at-budget stops nothing: no policy here" in " ".join(capsys.readouterr().err.split())
    announce(replace(settings, share=0.2), False, 1, "http://127.0.0.1:8080", catalog)
    assert "--share divides nothing: no policy follows" in " ".join(capsys.readouterr().err.split())
    announce(settings, True, 1, "http://127.0.0.1:8080", catalog)
    told = capsys.readouterr()
    assert json.loads(told.out) == {
        "url": "http://127.0.0.1:8080",
        "policies": {
            "supp\x1bort": {"models": names, "policy_hash": digest, "passing": False, "shadow": names}
            | catalog.policies["supp\x1bort"].shadow_cost.to_json(0.05),
            "later": {
                "models": ["large"],
                "policy_hash": catalog.policies["later"].digest,
                "passing": True,
                "shadow": ["large", "small", "middle"],
            },
        },
        "models": names,
    }
    assert not told.err


def test_a_share_of_a_ledger_divides_a_number_of_shadow_queries_alone(folder, capsys):
    settings = ServiceSettings({"policy": None}, folder / "models.toml", shadow=0.05)
    assert ReplicaOptions("redis://box", 0.2).apply_to(settings).share == 1.0
    assert "--share divides nothing: replicas of a ledger share the money" in " ".join(capsys.readouterr().err.split())
    ReplicaOptions("redis://box", 0.2).apply_to(replace(settings, shadow=ShadowRate.parse("200/week")))
    assert not capsys.readouterr().err


def test_a_ladder_is_described_by_the_rungs_that_answer(folder):
    """It was described by the models of all rungs, in an order in which no rung asks them."""
    whole, last, later = make_policy(), (Rule(1.0, "answer"),), "; as it follows its bill also small"
    rungs = [
        make_policy(
            models=models,
            calibrations={name: whole.calibrations[name] for name in models},
            rules={name: whole.rules[name] for name in models[:-1]} | {models[-1]: last},
            cost=dict.fromkeys(models, 1e-5),
            expected={"error": 0.1, "cost": cost},
        )
        for models, cost in ((("small",), 1e-5), (("middle", "large"), 2e-5), (("large",), 3e-5))
    ]
    shares = "middle → large for 50 % of the queries and large alone for the others"
    for position, follows, told in (
        (1.0, True, f"middle → large{later}"),
        (1.0, False, "middle → large"),
        (1.5, True, shares + later),
    ):
        Ladder(tuple(rungs), position, 2e-5, follows=follows).save(folder / "ladder.json")
        settings = ServiceSettings({"policy": folder / "ladder.json"}, folder / "models.toml")
        catalog = CatalogMaker(settings, EndpointConnections(1.0).api_client).read()
        assert catalog.policies["policy"].describe_models() == told
        assert [*catalog.policies["policy"].describe_other_calls()] == ["if all models of a rung fail: large"]


def test_neither_jax_nor_numpy_is_loaded(folder):
    heavy = "print([name for name in ('jax', 'numpy', 'polars') if name in sys.modules], file=sys.stderr)"
    code = f"import atexit, sys; atexit.register(lambda: {heavy}); import rcjax.cli; rcjax.cli.main()"
    line = [sys.executable, "-c", code, "serve", *GOOD.split(), "--pass", "huge"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "[]")


def test_a_client_that_fails_to_close_leaves_none_open():
    class Client:
        def __init__(self, problem=None):
            self.problem, self.closed = problem, False

        async def close(self):
            self.closed = True
            if self.problem is not None:
                raise self.problem

    clients = EndpointConnections(1.0)
    clients._api_clients = {(None, "a"): Client(OSError("broken")), (None, "b"): Client()}
    with pytest.raises(OSError, match="broken"):
        asyncio.run(clients.close())
    assert all(client.closed for client in clients._api_clients.values())
