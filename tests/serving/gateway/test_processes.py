"""The service as processes: several workers with one log and one page of metrics, and its end."""

import json
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from helpers.chat_server import Response, sure
from helpers.gateway_service import SURE, command_of, gateway_process, until
from test_hostile_requests import QUESTION
from test_reloading import alone

from benchmarks.attack import stop_while_asked
from rcjax.serving.gateway import processes


def answers(request, headers):
    slow = request["messages"][-1]["content"] == "slow"
    return Response(sure("A", SURE), delay=1.5 if slow else 0.0)


def said(service):
    return (service.folder / "stderr").read_text()


def figure(service, name):
    """Return the sum of a figure over its labels."""
    lines = service.get("/metrics").body.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"rcjax_{name}[{{ ]", line))


def models(service, n):
    with ThreadPoolExecutor(8) as callers:
        return [*callers.map(lambda i: service.ask(f"question {i}").json["model"], range(n))]


def lines(*paths):
    """Return the queries of all lines; each line must be whole."""
    return [json.loads(line)["query"] for path in paths for line in path.read_text().splitlines()]


def test_workers_share_a_log_and_figures_and_are_replaced():
    with gateway_process(alone("small"), answers, "--workers", 2, "--log-prompts") as service:
        log, moved = service.folder / "calls.jsonl", service.folder / "moved.jsonl"
        until(lambda: figure(service, "worker_starts_total") == 2)
        assert {*models(service, 60)} == {"small"}
        log.rename(moved)
        assert {*models(service, 60)} == {"small"}
        assert len({*lines(log)}) == 60 == len({*lines(moved)})
        assert figure(service, "requests_total") == 120
        workers = service.workers()
        alone("large").save(service.folder / "policy.json")
        until(lambda: {*models(service, 16)} == {"large"})
        assert service.workers() == workers
        os.kill(min(workers), signal.SIGKILL)
        until(lambda: len(service.workers() - workers) == 1 and figure(service, "worker_starts_total") == 3)
        assert len({*lines(log, moved)}) == figure(service, "requests_total")
        asked = len(service.server.requests)
        with ThreadPoolExecutor(1) as caller:
            last = caller.submit(service.ask, "slow")
            service.server.wait_for(asked + 1)
            service.process.terminate()
            assert last.result().status == 200
        assert service.process.wait(120) == 0
        assert len({*lines(log, moved)}) == len(lines(log, moved)) == len(service.server.requests)


@pytest.mark.thorough
def test_a_worker_that_cannot_start_says_so_until_it_can():
    with gateway_process(None, answers, "--workers", 2) as service:
        until(lambda: figure(service, "worker_starts_total") == 2)
        good = (service.folder / "policy.json").read_text()
        before = service.workers()
        (service.folder / "policy.json").write_text("{")
        os.kill(min(before), signal.SIGKILL)
        trying = f"a worker cannot start, another one will be tried: {service.folder / 'policy.json'}: not JSON"
        until(lambda: said(service).count(trying) >= 2)
        assert service.ask().status == 200
        (service.folder / "policy.json").write_text(good)
        until(lambda: figure(service, "worker_starts_total") == 3)
        assert "Traceback" not in said(service)


@pytest.mark.thorough
def test_workers_end_after_their_supervisor_was_killed():
    """They finish the requests under way, and free the port for the next service."""
    with gateway_process(None, answers, "--workers", 2) as service, ThreadPoolExecutor(1) as caller:
        until(lambda: figure(service, "worker_starts_total") == 2)
        workers, (host, port) = service.workers(), service.url.removeprefix("http://").split(":")
        try:
            last = caller.submit(service.ask, "slow")
            service.server.wait_for(1)
            service.process.kill()
            assert last.result().status == 200
            until(lambda: refuses(host, port) and not any(map(command_of, workers)))
        finally:
            for worker in filter(command_of, workers):
                os.kill(worker, signal.SIGKILL)
        assert "Traceback" not in said(service)


def test_the_folder_of_a_killed_service_is_removed_by_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, new = tmp_path / "rcjax-serve-left", tmp_path / "rcjax-serve-new"
    left.mkdir(), new.mkdir()  # the new one is not locked yet
    (left / "lock").touch()
    (left / "counter_1.db").touch()
    with processes._open_shared_folder(2) as running, processes._open_shared_folder(2):
        assert running.exists()
    assert [*tmp_path.iterdir()] == [new]


@pytest.mark.thorough
def test_a_start_that_takes_long_is_no_fault(tmp_path):
    """A worker answers its supervisor after seven seconds, as long as imports may take on a busy machine."""
    slow = "import sys, time\nif 'spawn_main' in ' '.join(sys.orig_argv): time.sleep(7)\n"
    (tmp_path / "sitecustomize.py").write_text(slow)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    python = "env", f"PYTHONPATH={path}", sys.executable
    with gateway_process(None, answers, "--workers", 2, python=python) as service:
        until(lambda: figure(service, "worker_starts_total") == 2)
        assert "died" not in said(service)
        before = service.workers()
        service.process.send_signal(signal.SIGHUP)  # each is replaced once another one serves
        until(lambda: not service.workers() & before and service.ask().status == 200)


@pytest.mark.thorough
def test_no_connection_of_a_busy_client_is_reset_at_the_end():
    """Waiting connections are not reset either: a busy loop of uvloop accepts one connection in a turn."""
    with gateway_process(None, answers, "--drain", 60) as service:
        port = int(service.url.rpartition(":")[2])
        assert stop_while_asked(SimpleNamespace(port=port, process=service.process), 100, 1.0) == 0


def refuses(host, port):
    with socket.socket() as trial:
        return trial.connect_ex((host, int(port))) != 0


@pytest.mark.thorough
def test_a_request_that_is_on_its_way_at_the_end_is_answered():
    """The connection is idle when the signal comes, as are the kept connections of clients."""
    body = json.dumps(QUESTION).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    sent = head + b"content-length: %d\r\n\r\n%s" % (len(body), body)
    with gateway_process(None, answers) as service:
        host, port = service.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=120) as connection:
            connection.sendall(sent)
            assert b" 200 OK" in connection.recv(65_536)
            service.process.send_signal(signal.SIGTERM)
            until(lambda: refuses(host, port))  # it has heard
            connection.sendall(sent)
            said = b""
            while data := connection.recv(65_536):
                said += data
            assert b" 200 OK" in said
            assert b"connection: close" in said
        assert service.process.wait(120) in (0, -signal.SIGTERM)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("signals", "status"),
    [([signal.SIGTERM], 0), ([signal.SIGTERM] * 2, 0), ([signal.SIGINT], 130), ([signal.SIGINT] * 2, 130)],
)
def test_a_drain_that_is_cut_short_ends_with_the_usual_status_and_no_traceback(signals, status):
    """One process ends with the status of several."""
    with gateway_process(None, lambda *_: Response(sure("B", SURE), delay=30), "--drain", 1) as service:
        asking = threading.Thread(target=lambda: service.post(QUESTION))
        asking.start()
        service.server.wait_for(1)
        for one in signals:
            service.process.send_signal(one)
            time.sleep(0.2)
        assert service.process.wait(120) == status
        asking.join()
        assert "Traceback" not in (service.folder / "stderr").read_text()
