"""Several workers: how long a silent one is waited for, when another one is tried, and how the service ends."""

import json
import os
import signal
import socket
import sys
import time
from types import SimpleNamespace

from chat_server import Response, sure
from gateway_service import SURE, gateway_process
from test_hostile_requests import QUESTION

from benchmarks.attack import stop_while_asked
from rcjax.serving.gateway import supervising
from rcjax.serving.gateway.supervising import Patience, Workers


def answers(request, headers):
    return Response(sure("A", SURE))


class Pipe:
    """The end of a pipe to a worker that answers as it is told."""

    def __init__(self, worker):
        self.worker, self.waiting = worker, 0

    def send(self, _):
        self.waiting += 1

    def poll(self):
        return self.waiting > 0 and self.worker.says is not None

    def recv(self):
        self.waiting -= 1
        return self.worker.says


class Worker:
    """A process of Uvicorn's as far as its supervisor sees it; `says` is None, False (it starts) or True."""

    started = ()

    def __init__(self, config, sockets):
        self.says, self.lives, self.exitcode = None, True, None
        self.process = SimpleNamespace(is_alive=lambda: self.lives)
        self.parent_conn, self.pid = Pipe(self), None

    def start(self):
        self.pid = 1000 + len(Worker.started)
        Worker.started = (*Worker.started, self)

    def kill(self):
        self.lives = False

    def join(self):
        pass


def supervised(monkeypatch, caplog, patience):
    """(a supervisor of two workers, what it says, a function that lets seconds pass)."""
    now = [0.0]
    monkeypatch.setattr(supervising, "_Process", Worker)
    monkeypatch.setattr(supervising.time, "monotonic", lambda: now[0])
    monkeypatch.setattr("uvicorn.supervisors.multiprocess.signal.signal", lambda *_: None)
    monkeypatch.setattr(Worker, "started", ())
    caplog.set_level("WARNING", "rcjax.serving")
    workers = Workers(SimpleNamespace(workers=2), [], patience)
    workers.init_processes()

    def wait(seconds):
        for _ in range(int(2 * seconds)):
            now[0] += 0.5
            workers.keep_subprocess_alive()

    return workers, lambda: [record.getMessage() for record in caplog.records], wait


def test_a_worker_that_starts_has_time_and_one_that_hangs_is_replaced(monkeypatch, caplog):
    workers, said, wait = supervised(monkeypatch, caplog, Patience(120.0, 30.0, 30.0))
    one, other = Worker.started
    wait(100)
    assert said() == []  # both still import what they need
    one.says = other.says = True
    wait(5)
    one.says = None
    wait(29)
    assert said() == []
    wait(3)
    assert said() == ["worker 1000 does not answer in 30 s: another one takes its place, start 3"]
    assert workers.processes == [Worker.started[2], other]
    other.lives = False
    wait(1)
    assert said()[1:] == ["worker 1001 is gone: another one takes its place, start 4"]


def test_workers_that_cannot_start_are_tried_less_and_less_often(monkeypatch, caplog):
    _, said, wait = supervised(monkeypatch, caplog, Patience(10.0, 30.0, 30.0))
    Worker.started[0].says = True
    wait(600)
    starts = len(said())
    assert 10 <= starts <= 25  # every 40 s at last, not every 10
    assert said()[0] == "worker 1001 has not started in 10 s: another one takes its place, start 3"
    Worker.started[-1].says = True
    wait(50)
    assert len(said()) == starts


def test_a_start_that_takes_long_is_no_fault(tmp_path):
    """Seven seconds before a worker answers its supervisor, as an import may take on a busy machine."""
    slow = "import sys, time\nif 'spawn_main' in ' '.join(sys.orig_argv): time.sleep(7)\n"
    (tmp_path / "sitecustomize.py").write_text(slow)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    with gateway_process(
        None, answers, "--workers", 2, python=("env", f"PYTHONPATH={path}", sys.executable)
    ) as service:
        assert service.ask().status == 200
        page = service.get("/metrics").body.decode()
        end = time.monotonic() + 60
        while "rcjax_worker_starts_total 2.0" not in page:
            assert time.monotonic() < end
            time.sleep(0.5)
            page = service.get("/metrics").body.decode()
        assert "takes its place" not in (service.folder / "stderr").read_text()


def test_clients_that_ask_again_and_again_are_not_reset_at_the_end():
    """Nor those whose connections wait to be taken: of a busy loop's, uvloop takes one in a turn."""
    with gateway_process(None, answers, "--drain", 60) as service:
        port = int(service.url.rpartition(":")[2])
        assert stop_while_asked(SimpleNamespace(port=port, process=service.process), 100, 1.0) == 0


def test_a_request_that_is_on_its_way_at_the_end_is_answered():
    """On a connection that is idle when the signal comes, as a client's that keeps its connections."""
    body = json.dumps(QUESTION).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    sent = head + b"content-length: %d\r\n\r\n%s" % (len(body), body)
    with gateway_process(None, answers) as service:
        host, port = service.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(sent)
            assert b" 200 OK" in connection.recv(65_536)
            service.process.send_signal(signal.SIGTERM)
            time.sleep(0.4)
            connection.sendall(sent)
            said = b""
            while data := connection.recv(65_536):
                said += data
            assert b" 200 OK" in said
            assert b"connection: close" in said
        assert service.process.wait(30) in (0, -signal.SIGTERM)
