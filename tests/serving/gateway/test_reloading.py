"""New files are taken up while the service runs: no request is lost, and a broken one changes nothing."""

import os
import signal
import threading

import pytest
from chat_server import Response, sure
from gateway_service import MODELS, SURE, UNSURE, gateway, gateway_process, make_policy, until

from rcjax.policy import Rule
from rcjax.serving.gateway import service as gateway_module


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(gateway_module, "_INTERVAL", 0.05)


def answers(request, headers):
    return Response(sure("A", SURE if request["model"] == "org/large" else UNSURE))


def alone(model):
    """A policy that asks one model."""
    identity = make_policy().calibrations["small"]
    parts = {"calibrations": {model: identity}, "rules": {model: (Rule(1.0, "answer"),)}, "cost": {model: 1e-5}}
    return make_policy(models=(model,), **parts)


def test_a_changed_file_is_taken_up_and_a_broken_one_is_not(caplog):
    """Each change is a line on standard error."""
    caplog.set_level("INFO", "rcjax.serving")
    refused = "a new file is refused, the old policies stay: "
    with gateway({"a\x1bb": alone("small"), "two": make_policy()}, answers, tables={"large": ""}) as service:
        path, models = service.folder / "a\x1bb.json", service.folder / "models.toml"

        def model():
            return service.ask(model="a\x1bb").json["model"]

        assert (caplog.records, model()) == ([], "small")
        os.utime(path)
        until(lambda: caplog.messages == ["the files are read again: what they say is as before"])
        alone("large").save(path)
        until(lambda: caplog.messages[-1].startswith("policy a\\x1bb is "))
        assert caplog.messages[-1].endswith(" from now on: large")
        path.write_text("{")
        until(lambda: f"{refused}{service.folder}/a\\x1bb.json: not JSON" in caplog.text)
        path.unlink()
        until(lambda: f"{refused}{service.folder}/a\\x1bb.json: No such file" in caplog.text)
        alone("new").save(path)
        until(lambda: f"{refused}a\\x1bb.json: it asks new, for which models.toml has no table" in caplog.text)
        assert model() == "large"
        text = models.read_text()
        models.write_text(text + "\n" + text.replace('"small"', '"new"').split("\n\n")[0])
        until(lambda: model() == "new")
        assert caplog.messages[-1].startswith("models.toml is taken up: small, ")
        assert service.ask(model="two").json["model"] == "large"
        page = service.get("/metrics").body.decode()
        assert 'rcjax_reloads_total{outcome="taken up",policy="a\x1bb"} 2.0' in page
        models.write_text("")
        until(lambda: f"{refused}models.toml: no models" in caplog.text)


def test_everything_passes_to_one_model_until_there_is_a_policy(caplog):
    """No confidence is told that nobody has calibrated; the log has all that a policy is tuned on."""
    with gateway({"policy": None}, answers, passing="small", shadow=1.0) as service:
        reply = service.ask()
        assert (reply.json["model"], reply.json["rcjax"]["status"]) == ("small", "answered")
        assert reply.json["rcjax"]["confidence"] is reply.headers.get("x-rcjax-confidence") is None
        until(lambda: len(service.log_rows()) == 3)
        rows = service.log_rows()
        logprobs = {model: pytest.approx(SURE if model == "large" else UNSURE) for model in MODELS}
        assert {row["model"]: row["logprob"] for row in rows} == logprobs
        assert {(row["calibrated"], row["shadow"]) for row in rows} == {(None, True)}
        alone("large").save(service.folder / "policy.json")
        until(lambda: service.ask().json["model"] == "large")
        (service.folder / "policy.json").unlink()
        until(lambda: "a new file is refused" in caplog.text)
        reply = service.ask()
        assert (reply.json["model"], float(reply.headers["x-rcjax-confidence"])) == ("large", pytest.approx(0.829))


@pytest.mark.thorough
def test_a_policy_replaced_a_hundred_times_under_load_loses_no_request():
    policies = [alone(model) for model in MODELS]
    with gateway_process(policies[0], answers) as service:
        answered, stop = [], threading.Event()

        def call():
            while not stop.is_set():
                reply = service.ask()
                answered.append((reply.status, reply.json["model"]))

        callers = [threading.Thread(target=call) for _ in range(4)]
        for caller in callers:
            caller.start()
        for i in range(100):
            policies[(i + 1) % 3].save(service.folder / "policy.json")
            os.kill(service.process.pid, signal.SIGHUP)
            until(lambda: len(answered) > i)  # noqa: B023
        polled = []
        until(lambda: polled.append(service.ask().json["model"]) or polled[-1] == MODELS[100 % 3])
        stop.set()
        for caller in callers:
            caller.join()
        assert {status for status, _ in answered} == {200}
        assert {model for _, model in answered} == {*MODELS}
        rows = [row["query"] for row in service.log_rows()]
        assert len(rows) == len({*rows}) == len(answered) + len(polled)
