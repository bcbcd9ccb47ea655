"""New files are loaded while the service runs: no request is lost, and a broken file changes nothing."""

import errno
import logging
import os
import queue
import re
import signal
import threading

import pytest
from helpers.chat_server import Response, sure
from helpers.gateway_service import MODELS, SURE, UNSURE, gateway, gateway_process, make_policy, until

from rcjax.policy import Policy, Rule
from rcjax.serving import shadow
from rcjax.serving.billing import SharedBill
from rcjax.serving.gateway import service as gateway_module
from rcjax.serving.shadow import ShadowRate


@pytest.fixture
def line(monkeypatch):
    """Return a function that waits for the service's next line; the service looks at its files often."""
    monkeypatch.setattr(gateway_module, "RELOAD_SECONDS", 0.05)
    said, logger = queue.SimpleQueue(), logging.getLogger("rcjax.serving")
    handler = logging.Handler()
    handler.emit = lambda record: said.put(record.getMessage())
    logger.addHandler(handler)
    monkeypatch.setattr(logger, "level", logging.INFO)
    yield lambda: said.get(timeout=120)
    logger.removeHandler(handler)
    assert said.empty()


def put(path, text):
    """Replace a file whole: a reader has the old file or the new file."""
    path.with_name("new").write_text(text)
    path.with_name("new").replace(path)


def refusals(page, policy):
    return float(re.search(rf'rcjax_reloads_total{{outcome="refused",policy="{policy}"}} (\S+)', page)[1])


def answers(request, headers):
    return Response(sure("A", SURE if request["model"] == "org/large" else UNSURE))


def alone(model):
    """A policy that asks one model."""
    identity = make_policy().calibrations["small"]
    parts = {"calibrations": {model: identity}, "rules": {model: (Rule(1.0, "answer"),)}, "cost": {model: 1e-5}}
    return make_policy(models=(model,), **parts)


def test_a_changed_file_is_loaded_and_a_broken_file_is_not(line):
    """Each change is a line on standard error."""
    refused = "a new file is refused, the old policies stay: "
    with gateway({"a\x1bb": alone("small"), "two": make_policy()}, answers, tables={"large": ""}) as service:
        path, models = service.folder / "a\x1bb.json", service.folder / "models.toml"

        def model():
            return service.ask(model="a\x1bb").json["model"]

        assert model() == "small"
        os.utime(path)
        assert line() == "the files were read again: nothing has changed"
        alone("large").save(path)
        assert re.fullmatch(r"policy a\\x1bb is \S+ from now on: large alone", line())
        put(path, "{")
        assert line().startswith(f"{refused}{service.folder}/a\\x1bb.json: not JSON")
        path.unlink()
        assert line().startswith(f"{refused}{service.folder}/a\\x1bb.json: No such file")
        alone("new").save(path)
        assert line().startswith(f"{refused}a\\x1bb.json: it asks new, for which models.toml has no table")
        assert model() == "large"
        text = models.read_text()
        put(models, text + "\n" + text.replace('"small"', '"new"').split("\n\n")[0])
        assert line().startswith("policy a\\x1bb is ")
        assert line() == "models.toml is loaded: new changed"
        assert (model(), service.ask(model="two").json["model"]) == ("new", "large")
        page = service.get("/metrics").body.decode()
        assert 'rcjax_reloads_total{outcome="taken up",policy="a\x1bb"} 2.0' in page
        put(models, models.read_text().replace("input = 3\n", "input = 6\n"))
        assert line() == "models.toml is loaded: large changed"
        before = refusals(page, "a\x1bb"), refusals(page, "two")
        put(models, "")
        assert line().startswith(f"{refused}models.toml: no models")
        page = service.get("/metrics").body.decode()
        assert (refusals(page, "a\x1bb"), refusals(page, "two")) == (before[0] + 1, before[1] + 1)  # no policy's file


def test_a_policy_that_has_not_changed_stays_and_no_log_is_read_again(line, monkeypatch):
    """Each reload read all call logs for the traffic of each policy, and started the processes of checks anew."""
    read = []
    monkeypatch.setattr(shadow, "queries_per_day", lambda *_, policy: read.append(policy))
    policies = {"one": alone("small"), "two": make_policy()}
    with gateway(policies, answers, shadow=ShadowRate.parse("200/week")) as service:

        def cascades():
            return {name: one.cascade for name, one in service.app.state.gateway.catalog.policies.items()}

        first = cascades()
        os.utime(service.folder / "models.toml")
        assert line().endswith("nothing has changed")
        assert cascades() == first
        alone("large").save(service.folder / "one.json")
        assert line().startswith("policy one is ")
        assert line().startswith("policy one, shadow: 200 queries a week to all of large: $")
        then = cascades()
        assert then["two"] is first["two"]
        assert then["one"].shadow_share is first["one"].shadow_share
        assert service.ask(model="one").json["model"] == "large"
    assert read == ["one", "two"]


def test_the_pace_of_a_model_that_has_not_changed_stays(line):
    """Reservations for answers without a limit on tokens go by it."""
    with gateway(behave=answers) as service:

        def means():
            catalog = service.app.state.gateway.catalog
            judged = catalog.policies["policy"].cascade._model_caller
            return [model_caller._means for model_caller in (catalog.unjudged_model_caller, judged)]

        service.ask(model="large")
        assert service.ask().json["rcjax"]["models"][-1] == "large"
        first, models = means(), service.folder / "models.toml"
        os.utime(models)
        assert line().endswith("nothing has changed")
        put(models, models.read_text().replace("org/small", "org/other"))
        assert line().startswith("models.toml is loaded")
        for before, after in zip(first, means(), strict=True):
            assert before["large"].tokens < 500
            assert after["large"] is before["large"]
            assert after["small"] is not before["small"]
        alone("large").save(service.folder / "policy.json")
        assert line().endswith(" from now on: large alone")
        assert means()[1].keys() == {"large"}


def test_a_changed_config_map_of_kubernetes_is_loaded(line):
    """A link to a new folder replaces the link to the old folder; the files are links through it."""
    with gateway(alone("small"), answers) as service:
        folder, names = service.folder, ("policy.json", "models.toml")
        for version in ("..1", "..2"):
            (folder / version).mkdir()
        for name in names:
            (folder / "..2" / name).write_text((folder / name).read_text())
            (folder / name).rename(folder / "..1" / name)
        (folder / "..data").symlink_to("..1")
        for name in names:
            (folder / name).symlink_to(f"..data/{name}")
        alone("large").save(folder / "..2" / "policy.json")
        assert service.ask().json["model"] == "small"
        (folder / "..new").symlink_to("..2")
        (folder / "..new").replace(folder / "..data")
        said = line()
        while "from now on" not in said:  # while the files were moved, one was missing or another one
            said = line()
        assert said.endswith(" from now on: large alone")
        assert service.ask().json["model"] == "large"


def test_one_model_answers_all_requests_until_there_is_a_policy(line):
    """Clients get no uncalibrated confidence; the log has everything that tuning needs.

    The cost of shadow queries was to be known once there is a policy, and was told at no time.
    """
    with gateway({"policy": None}, answers, pass_model="small", shadow=1.0) as service:
        reply = service.ask()
        assert (reply.json["model"], reply.json["rcjax"]["status"]) == ("small", "answered")
        assert reply.json["rcjax"]["confidence"] is reply.headers.get("x-rcjax-confidence") is None
        rows = service.logged(3)
        logprobs = {model: pytest.approx(SURE if model == "large" else UNSURE) for model in MODELS}
        assert {row["model"]: row["logprob"] for row in rows} == logprobs
        assert {(row["calibrated"], row["shadow"]) for row in rows} == {(None, True)}
        make_policy(expected={"error": 0.1, "cost": 1e-4}).save(service.folder / "policy.json")
        assert line().endswith(" from now on: small → middle → large")
        cost = "$260 per million queries, 260.0 % on top of what the policy costs"
        advice = "(warning: --shadow 7.7% would add 20 %)"
        assert line() == f"policy policy, shadow: 100 % of its queries to all of small, middle, large: {cost} {advice}"
        alone("large").save(service.folder / "policy.json")
        assert line().endswith(" from now on: large alone")
        assert line().startswith("policy policy, shadow: 100 % of its queries to all of large: ")
        (service.folder / "policy.json").unlink()
        assert line().startswith("a new file is refused")
        reply = service.ask()
        assert (reply.json["model"], float(reply.headers["x-rcjax-confidence"])) == ("large", pytest.approx(0.829))


def test_a_policy_file_without_calibrations_is_a_policy(line):
    policy = Policy(("small",), {}, {"small": (Rule(1.0, "answer"),)}, {"small": 0.0})
    with gateway({"policy": None}, answers, pass_model="small", shadow=1.0, shadow_models=("middle",)) as service:
        policy.save(service.folder / "policy.json")  # with the digest of the policy that passes everything to a model
        assert line().endswith(" from now on: small alone")
        assert line().endswith(", and what middle costs")
        deployment = service.app.state.gateway.catalog.policies["policy"]
        assert not deployment.is_untuned
        assert deployment.shadow_cost is not None
        (service.folder / "policy.json").unlink()
        assert line().startswith("a new file is refused")


def test_an_error_in_a_step_of_the_watch_ends_no_watch(line, monkeypatch):
    """An error ended all reloading silently: now one line says so, and the next file is loaded."""

    others = set(threading.enumerate())  # services of other tests may be watching in this process

    def failing(method):
        def fail(*arguments):
            if threading.current_thread() not in others:
                raise RuntimeError("boom")
            return method(*arguments)

        return fail

    with gateway(alone("small"), answers) as service:
        with monkeypatch.context() as broken:
            broken.setattr(SharedBill, "catch_up", failing(SharedBill.catch_up))
            assert line() == "the spending of other workers cannot be read: boom"
            alone("large").save(service.folder / "policy.json")
            assert line().endswith(" from now on: large alone")
        with monkeypatch.context() as broken:
            broken.setattr(SharedBill, "continue_from", failing(SharedBill.continue_from))
            alone("small").save(service.folder / "policy.json")
            assert line() == "a new file is refused, the old policies stay: boom"
            assert service.ask().json["model"] == "large"
            assert refusals(service.get("/metrics").body.decode(), "policy") == 1
        assert line().endswith(" from now on: small alone")  # it is tried again, though the file has not changed
        with monkeypatch.context() as broken:
            broken.setattr(gateway_module, "file_signature", failing(gateway_module.file_signature))
            assert line() == "new files are not loaded: boom"
        alone("middle").save(service.folder / "policy.json")
        assert line().endswith(" from now on: middle alone")
        assert service.ask().json["model"] == "middle"


def test_a_file_that_cannot_be_read_for_a_moment_is_read_again_and_logged_once(line, monkeypatch):
    """Its signature does not change when the disk answers again."""
    read, failed = gateway_module.CatalogMaker.read, []

    def fail(maker, before=None):
        if before is not None and len(failed) < 3:
            failed.append(maker)
            raise OSError(errno.EIO, "Input/output error")
        return read(maker, before)

    with gateway(alone("small"), answers) as service:
        monkeypatch.setattr(gateway_module.CatalogMaker, "read", fail)
        alone("large").save(service.folder / "policy.json")
        assert line().startswith("a new file is refused, the old policies stay: ")
        assert line().endswith(" from now on: large alone")
        assert len(failed) == 3


@pytest.mark.thorough
def test_a_policy_replaced_a_hundred_times_under_load_loses_no_request():
    policies = [alone(model) for model in MODELS]
    with gateway_process(policies[0], answers) as service:
        answered, stop, more = [], threading.Event(), threading.Semaphore(0)

        def call():
            while not stop.is_set():
                reply = service.ask()
                answered.append((reply.status, reply.json["model"]))
                more.release()

        callers = [threading.Thread(target=call) for _ in range(4)]
        for caller in callers:
            caller.start()
        for i in range(100):
            policies[(i + 1) % 3].save(service.folder / "policy.json")
            os.kill(service.process.pid, signal.SIGHUP)
            assert more.acquire(timeout=120)
            while i < 3 and (200, MODELS[(i + 1) % 3]) not in answered:  # each of the three comes to answer
                assert more.acquire(timeout=120)
        polled = []
        until(lambda: polled.append(service.ask().json["model"]) or polled[-1] == MODELS[100 % 3])
        stop.set()
        for caller in callers:
            caller.join()
        assert {status for status, _ in answered} == {200}
        assert {model for _, model in answered} == {*MODELS}
        rows = [row["query"] for row in service.log_rows()]
        assert len(rows) == len({*rows}) == len(answered) + len(polled)
