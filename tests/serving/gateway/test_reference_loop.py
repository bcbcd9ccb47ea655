"""A service whose policy has a reference: shadow queries go to it, and the loop closes with nobody in it."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from chat_server import Response, sure
from command_line import run
from gateway_service import MODELS, SURE, UNSURE, gateway, gateway_process, make_policy
from reference_logs import letters, write_answers

from rcjax.policy import Calibration, Rule, load_policy
from rcjax.serving.gateway.lineup import digest_of

pytestmark = pytest.mark.usefixtures("own_settings")

IDENTITY = Calibration("none", intercept=2.0, slope=4.0, smallest=-9.0, largest=0.0)
PAIR = {
    "models": ("small", "middle"),
    "calibrations": dict.fromkeys(("small", "middle"), IDENTITY),
    "rules": {"small": (Rule(0.5, "ask", "middle"), Rule(1.0, "answer")), "middle": (Rule(1.0, "answer"),)},
    "cost": {"small": 1e-5, "middle": 5e-5},
}


def with_reference(model="large"):
    """small → middle, tuned to say what another model says."""
    return make_policy(**PAIR, provenance={"same_as": {"model": model, "same": "answer"}})


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_shadow_queries_go_to_the_reference_and_their_answers_are_labels():
    def behave(request, _):
        asked, number = request["model"].removeprefix("org/"), int(request["messages"][-1]["content"])
        return Response(sure("A" if asked == "large" or number % 2 else "B", SURE if number % 2 else UNSURE))

    with gateway(with_reference(), behave, shadow=1.0) as service:
        for number in range(8):
            service.ask(str(number))
        until(lambda: len(service.log_rows()) == 8 * len(MODELS))
        assert {row["model"] for row in service.log_rows()} == {*MODELS}
        with_pair = run("evaluate", _saved(service, with_reference()), service.folder / "calls.jsonl", "--json")
        document = json.loads(with_pair.stdout)
        assert document["error"] == 0.5, with_pair.stderr
        assert document["reference"]["reference"] == "large"


def _saved(service, policy):
    policy.save(service.folder / "again.json")
    return service.folder / "again.json"


def test_without_shadow_queries_or_a_table_the_reference_is_not_asked():
    with gateway(with_reference(), lambda *_: Response(sure("A", UNSURE))) as service:
        service.ask("1")
        assert {row["model"] for row in service.log_rows()} == {"small", "middle"}
    with gateway_process(with_reference("huge"), lambda *_: Response(sure("A", UNSURE)), "--shadow", "100%") as service:
        service.ask("1")
        until(lambda: len(service.log_rows()) == 2)
        told = (service.folder / "stderr").read_text()
        assert "models.toml has no table for huge, the reference of policy policy" in told


class World:
    """Questions, and what each model says to them; it may change."""

    def __init__(self, n, seed, worse=False):
        self.logprob, self.said = letters(n, seed, worse)

    def __call__(self, request, _):
        i, j = int(request["messages"][-1]["content"].split()[-1]), MODELS.index(request["model"].removeprefix("org/"))
        return Response(sure(self.said[i, j], float(self.logprob[i, j])))


@pytest.mark.thorough
def test_the_loop_runs_with_nobody_in_it(tmp_path):
    """Fine while nothing changes; once the small ones say other things, check alarms, and retune puts it right."""
    tune = ["tune", write_answers(tmp_path / "log.csv", 300, seed=0), "--task", "choice", "--reference", "large"]
    tuned = run(*tune, "--max-error", "12%", "--no-bands", "--out", tmp_path / "first.json")
    assert tuned.exit_code == 0, tuned.stderr
    first, worlds = load_policy(tmp_path / "first.json"), [World(300, seed=1)]
    tables = dict.fromkeys(MODELS, "options = { max_tokens = 1 }")

    def upstream(request, headers):
        return worlds[-1](request, headers)

    with gateway_process(first, upstream, "--shadow", "100%", tables=tables) as service:
        policy, log = service.folder / "policy.json", service.folder / "calls.jsonl"
        _ask_all(service)
        log.rename(tmp_path / "monday.jsonl")
        quiet = run("check", policy, tmp_path / "monday.jsonl", "--no-retuning", "--json")
        assert quiet.exit_code == 0, (quiet.stdout, quiet.stderr)
        worlds.append(World(300, seed=2, worse=True))
        _ask_all(service)
        alarm = run("check", policy, log, "--json")
        assert (alarm.exit_code, json.loads(alarm.stdout)["drifted"]) == (1, True), alarm.stderr
        again = run("retune", policy, log, "--out", policy, "--json")
        assert again.exit_code == 0, again.stderr
        second = load_policy(policy)
        assert digest_of(second) != digest_of(first)
        until(lambda: _served(service) == digest_of(second))
    write_answers(tmp_path / "later.csv", 300, seed=3, worse=True)
    differs = [_differs(tmp_path / name, tmp_path / "later.csv", one) for name, one in (("a", first), ("b", second))]
    assert differs[1] < 0.16 < differs[0]


def _ask_all(service):
    def ask(i):
        body = {"model": "policy", "messages": [{"role": "user", "content": f"question {i}"}]}
        assert service.post(body).status == 200

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(300)))
    everyone = {*load_policy(service.folder / "policy.json").models, "large"}
    until(lambda: len(service.log_rows()) == 300 * len(everyone), seconds=60)


def _served(service):
    (entry,) = [one for one in service.get("/v1/models").json["data"] if one["id"] == "policy"]
    return entry["rcjax"]["policy_hash"]


def _differs(path, log, policy):
    policy.save(path)
    return json.loads(run("evaluate", path, log, "--json").stdout)["error"]
