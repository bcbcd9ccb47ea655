"""A gateway for tests: a real one before a real upstream, in threads of the test's process, or as a process.

    with gateway(behave=lambda request, headers: Response(sure("B", -0.1))) as service:
        service.post({"model": "policy", "messages": [{"role": "user", "content": "A or B?"}]})

`behave` and what it gives are those of `chat_server`. The upstream has the models small, middle and large, which it
knows as org/small and so on; the policy asks the next larger one below a confidence of one half.
"""

import contextlib
import http.client
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from helpers.chat_server import KEY, Server, served
from rcjax.policy import Calibration, Policy, Rule
from rcjax.serving.gateway.catalog import ServiceSettings
from rcjax.serving.gateway.chat_request import RequestLimits
from rcjax.serving.gateway.processes import Connection
from rcjax.serving.gateway.service import build_app

MODELS = ("small", "middle", "large")
PRICES = {"small": (0.1, 0.4), "middle": (0.5, 1.5), "large": (3, 15)}  # per million tokens
SURE, UNSURE = math.log(0.9), math.log(0.4)  # raw; calibrated by `make_policy` they are 0.83 and 0.16


def make_policy(**changes):
    """small → middle → large, each kept from a confidence of one half on; the last one always."""
    identity = Calibration("none", intercept=2.0, slope=4.0, smallest=-9.0, largest=0.0)
    parts = {
        "models": MODELS,
        "calibrations": dict.fromkeys(MODELS, identity),
        "rules": {
            "small": (Rule(0.5, "ask", "middle"), Rule(1.0, "answer")),
            "middle": (Rule(0.5, "ask", "large"), Rule(1.0, "answer")),
            "large": (Rule(1.0, "answer"),),
        },
        "cost": {"small": 1e-5, "middle": 5e-5, "large": 3e-4},
    }
    return Policy(**{**parts, **changes})


def write_models(path, base_url, signal="choice", tables=None):
    """A models.toml; `tables` has lines that a model's table has besides, by model, and models besides."""
    tables = dict.fromkeys(MODELS, "") | dict(tables or {})
    texts = [
        f'[{json.dumps(name)}]\nmodel = {json.dumps("org/" + name)}\nbase_url = "{base_url}"\n'
        f'key_env = "KEY_OF_THE_TEST"\ninput = {PRICES.get(name, (1, 1))[0]}\noutput = {PRICES.get(name, (1, 1))[1]}\n'
        f'signal = "{signal}"\n{more}\n'
        for name, more in tables.items()
    ]
    path.write_text("\n".join(texts))
    return path


def command_of(pid):
    """The command line of a process; nothing of one that has just ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def until(condition, seconds=120.0):
    """Wait for what no event tells."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@dataclass
class Reply:
    """The reply of a gateway to a request."""

    status: int
    headers: Mapping
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def events(self):
        """The events of a stream; the last is "[DONE]" where it ends well."""
        data = [block.removeprefix(b"data: ") for block in self.body.split(b"\n\n") if block]
        return ["[DONE]" if one == b"[DONE]" else json.loads(one) for one in data]

    @property
    def text(self):
        """Return the text of a stream, one choice after the other."""
        choices = [choice for event in self.events[:-1] for choice in event["choices"]]
        return "".join(choice["delta"].get("content") or "" for choice in choices)


@dataclass
class Service:
    """A gateway that runs."""

    url: str
    server: Server
    """The upstream; `server.requests` are the bodies that reached it."""
    folder: Path
    """With policy.json (or NAME.json), models.toml and calls.jsonl."""
    app: object = None
    """The application, where it runs in this process: `app.state.gateway`."""
    process: object = None
    """Where it runs in a process of its own."""
    said: dict = field(default_factory=dict)
    """The JSON that a process said first."""
    forgotten: int = 0
    """Lines of the log that `log_rows` leaves out."""

    def get(self, path, **headers):
        return self._request("GET", path, None, headers)

    def post(self, body, path="/v1/chat/completions", **headers):
        """Send a body, bytes as they are; of names of headers _ is -."""
        headers = {"content_type": "application/json", **headers}
        return self._request("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), headers)

    def ask(self, text="A or B?", **fields):
        return self.post({"model": "policy", "messages": [{"role": "user", "content": text}], **fields})

    def forget(self):
        """Leave out of `server.requests` and `log_rows` what was there before."""
        self.wait_until_idle()
        self.server.requests.clear()
        self.forgotten = len(self._lines())

    def wait_until_idle(self):
        """Wait until no request is worked on: a second question may come after the end of a stream."""
        until(lambda: not self.app.state.gateway.in_progress)

    def workers(self):
        """The processes that serve, where it runs in processes of its own."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return {int(child) for child in children if b"spawn_main" in command_of(child)}

    def log_rows(self):
        if self.app is not None:
            self.wait_until_idle()
        return [json.loads(line) for line in self._lines()[self.forgotten :]]

    def logged(self, number):
        """The rows of the log once there are so many: calls of shadow queries come after the answer."""
        log = self.app.state.gateway.log
        with self.server.changed:
            before, log.observe = log.observe, lambda outcome: (before(outcome), self._tell())
            assert self.server.changed.wait_for(lambda: len(self._lines()) - self.forgotten >= number, 120)
            log.observe = before
        return self.log_rows()

    def _tell(self):
        with self.server.changed:
            self.server.changed.notify_all()

    def _lines(self):
        path = self.folder / "calls.jsonl"
        return path.read_text().splitlines() if path.exists() else []

    def _request(self, method, path, body, headers):
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=120)
        with contextlib.closing(connection):
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            return Reply(
                response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
            )


@contextlib.contextmanager
def gateway(policy=None, behave=None, *, signal="choice", tables=None, base_url=None, limits=None, **settings):
    """A gateway in a thread.

    Args:
        policy: or policies by name; by default that of `make_policy` under the name policy.
        behave: what the upstream answers, as in `chat_server`.
        signal, tables: of `write_models`.
        base_url: where the models are asked, if not at the upstream itself.
        limits: changes of those of the settings.
        settings: others of `ServiceSettings`.
    """
    with _files(policy, behave, signal, tables, base_url) as (server, folder, files):
        settings = ServiceSettings(
            files,
            folder / "models.toml",
            limits=RequestLimits(**(limits or {})),
            **({"log": folder / "calls.jsonl"} | settings),
        )
        app = build_app(settings)
        with _running(app) as url:
            yield Service(url, server, folder, app)


@contextlib.contextmanager
def gateway_process(policy=None, behave=None, *options, signal="choice", tables=None, python=sys.executable):
    """`rcjax serve` with these options besides, such as "--workers", 2; its standard error is in folder / "stderr"."""
    with _files(policy, behave, signal, tables) as (server, folder, files):
        line = [
            *([python] if isinstance(python, str) else python),
            "-c",
            "from rcjax.cli import main; main()",
            "serve",
            "--port",
            "0",
            "--json",
        ]
        line += [part for name, path in files.items() for part in ("--policy", f"{name}={path}")]
        line += ["--models", str(folder / "models.toml"), "--log", str(folder / "calls.jsonl"), *map(str, options)]
        with open(folder / "stderr", "wb") as errors:
            process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            first = process.stdout.readline()
            assert first, (folder / "stderr").read_text()
            said = json.loads(first)
            yield Service(said["url"], server, folder, process=process, said=said)
        finally:
            process.terminate()
            process.wait(120)
            process.stdout.close()


@contextlib.contextmanager
def _files(policy, behave, signal, tables, base_url=None):
    """(the upstream, a folder, the files of policies in it by name)."""
    policies = policy if isinstance(policy, Mapping) else {"policy": policy or make_policy()}
    with (
        served(behave, KEY) as (server, own_url),
        tempfile.TemporaryDirectory() as name,
        _variable("KEY_OF_THE_TEST", KEY),
    ):
        folder = Path(name)
        write_models(folder / "models.toml", base_url or own_url, signal, tables)
        files = {name: folder / f"{name}.json" for name in policies}
        for name, path in files.items():
            if policies[name] is not None:  # which is only to come
                policies[name].save(path)
        yield server, folder, files


@contextlib.contextmanager
def _running(app):
    """The URL of an application that runs in a thread; it is there at once, as the socket listens already."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        config = uvicorn.Config(app, lifespan="on", access_log=False, log_config=None, ws="none", http=Connection)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def _variable(name, value):
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
