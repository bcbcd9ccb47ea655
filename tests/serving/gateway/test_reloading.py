"""New files are taken up while the service runs: no request is lost, and a broken one changes nothing."""

import os
import signal
import threading
import time

import pytest
from chat_server import Response, sure
from gateway_service import MODELS, SURE, UNSURE, gateway, gateway_process, make_policy
from test_faults import until

from rcjax.policy import Rule


def answers(request, headers):
    return Response(sure("A", SURE if request["model"] == "org/large" else UNSURE))


def alone(model):
    """A policy that asks one model, for a catalog whose models stay."""
    policy = make_policy()
    return make_policy(
        models=(model,),
        calibrations={model: policy.calibrations[model]},
        rules={model: (Rule(1.0, "answer"),)},
        cost={model: 1e-5},
    )


def digest(service, name="policy"):
    return {model["id"]: model for model in service.get("/v1/models").json["data"]}[name]["rcjax"]["policy_hash"]


def test_a_changed_file_is_taken_up_and_a_broken_one_is_not(caplog):
    with gateway({"one": alone("small"), "two": make_policy()}, answers) as service:
        before = digest(service, "one"), digest(service, "two")
        assert service.ask(model="one").json["model"] == "small"
        alone("large").save(service.folder / "one.json")
        until(lambda: digest(service, "one") != before[0])
        assert digest(service, "two") == before[1]
        assert service.ask(model="one").json["model"] == "large"
        after = digest(service, "one")
        (service.folder / "one.json").write_text("{")
        until(lambda: "a new file is refused" in caplog.text)
        assert "one.json" in caplog.text
        assert digest(service, "one") == after
        assert service.ask(model="one").json["model"] == "large"
        page = service.get("/metrics").body.decode()
        assert 'rcjax_reloads_total{outcome="refused",policy="one"} 1.0' in page
        (service.folder / "one.json").unlink()
        until(lambda: caplog.text.count("a new file is refused") == 2)
        assert service.ask(model="one").json["model"] == "large"
        alone("middle").save(service.folder / "one.json")
        until(lambda: digest(service, "one") not in (before[0], after))
        assert service.ask(model="one").json["model"] == "middle"


def test_a_policy_with_a_model_that_is_not_there_is_refused_until_it_is(caplog):
    with gateway(alone("small"), answers, tables={"large": ""}) as service:
        text = (service.folder / "models.toml").read_text()
        policy = make_policy()
        parts = {"calibrations": policy.calibrations["small"], "rules": (Rule(1.0, "answer"),), "cost": 1e-5}
        make_policy(models=("new",), **{name: {"new": value} for name, value in parts.items()}).save(
            service.folder / "policy.json"
        )
        until(lambda: "it asks new, for which models.toml has no table" in caplog.text)
        assert service.ask().json["model"] == "small"
        (service.folder / "models.toml").write_text(text + "\n" + text.replace('"small"', '"new"').split("\n\n")[0])
        until(lambda: service.ask().json["model"] == "new")


def test_everything_passes_to_one_model_until_there_is_a_policy(caplog):
    """No confidence is told that nobody has calibrated; the log has all that a policy is tuned on."""
    with gateway({"policy": None}, answers, passing="small", shadow=1.0) as service:
        reply = service.ask()
        assert (reply.json["model"], reply.json["rcjax"]["status"]) == ("small", "answered")
        assert reply.json["rcjax"]["confidence"] is reply.headers.get("x-rcjax-confidence") is None
        until(lambda: len(service.log_rows()) == 3)
        rows = service.log_rows()
        assert {row["model"]: row["logprob"] for row in rows} == {
            model: pytest.approx(SURE if model == "large" else UNSURE) for model in MODELS
        }
        assert {(row["calibrated"], row["shadow"]) for row in rows} == {(None, True)}
        alone("large").save(service.folder / "policy.json")
        until(lambda: service.ask().json["model"] == "large")
        (service.folder / "policy.json").unlink()
        until(lambda: "a new file is refused" in caplog.text)
        reply = service.ask()
        assert (reply.json["model"], float(reply.headers["x-rcjax-confidence"])) == (
            "large",
            pytest.approx(0.83, abs=0.01),
        )


@pytest.mark.thorough
def test_a_policy_replaced_a_hundred_times_under_load_loses_no_request():
    policies = [alone(model) for model in MODELS]
    with gateway_process(policies[0], answers) as service:
        statuses, stop = [], threading.Event()

        def call():
            while not stop.is_set():
                reply = service.ask()
                statuses.append((reply.status, reply.json["model"]))

        callers = [threading.Thread(target=call) for _ in range(4)]
        for caller in callers:
            caller.start()
        for i in range(100):
            policies[(i + 1) % 3].save(service.folder / "policy.json")
            os.kill(service.process.pid, signal.SIGHUP)
            time.sleep(0.03)
        polled = []
        until(lambda: polled.append(service.ask().json["model"]) or polled[-1] == MODELS[100 % 3])
        stop.set()
        for caller in callers:
            caller.join()
        assert {status for status, _ in statuses} == {200}
        assert {model for _, model in statuses} == {*MODELS}
        rows = [row["query"] for row in service.log_rows()]
        assert len(rows) == len({*rows}) == len(statuses) + len(polled)
