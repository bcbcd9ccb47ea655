"""The processes of the benchmark: the model, `rcjax serve` five times, LiteLLM's proxy; what they use."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rcjax.policy import Calibration, Ladder, Policy, Rule
from rcjax.policy.ladder import Period
from rcjax.policy.policy import AbstractPolicy

#: The program; RCJAX_LITELLM may name one of another environment, as its dependencies are many.
LITELLM = os.environ.get("RCJAX_LITELLM")
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PATIENCE = 120.0  # seconds to start
_LITELLM_SETTINGS = {
    "litellm_settings": {"callbacks": [], "num_retries": 0, "turn_off_message_logging": True, "request_timeout": 60},
    "general_settings": {"disable_spend_logs": True, "disable_error_logs": True},
}
_LITELLM_ENVIRONMENT = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # to check a key would cost it time
}


@dataclass(frozen=True, slots=True)
class Server:
    """A process that takes requests."""

    port: int
    pid: int
    model: str
    """What to ask for."""
    calls: int = 1
    """How often the model is asked for an answer."""

    def busy(self) -> float:
        """Seconds of CPU, user's and system's, of the process and those that it started, so far."""
        return sum(_busy(pid) for pid in _family(self.pid))


def _busy(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _family(pid: int) -> list[int]:
    members = [pid]
    for member in members:
        for tasks in Path(f"/proc/{member}/task").glob("*/children"):
            members += map(int, tasks.read_text().split())
    return members


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int) -> int:
    """How many files and sockets a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


@contextmanager
def running(words: Sequence[str], port: int, log: Path, environment: dict[str, str] | None = None) -> Iterator[int]:
    """The id of a process that listens at a port, while it runs."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, stdout=output, stderr=output, cwd=log.parent, env={**os.environ, **(environment or {})}
        )
    try:
        end = time.monotonic() + _PATIENCE
        while not _takes_connections(port):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{' '.join(words[:4])} … does not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


@dataclass(frozen=True, slots=True)
class Box:
    """A control group that limits the memory of processes."""

    folder: Path

    def enter(self) -> None:
        """Put the running process into it: its children follow."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def killed(self) -> int:
        """How many processes were killed as there was no memory."""
        name = "memory.events" if (self.folder / "memory.events").exists() else "memory.oom_control"
        lines = (self.folder / name).read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


@contextmanager
def boxed(megabytes: int) -> Iterator[Box | None]:
    """A control group of so much memory, swap included; None where none can be made: that takes root on Linux."""
    first = Path("/sys/fs/cgroup/memory")
    folder = (first if first.is_dir() else Path("/sys/fs/cgroup")) / f"rcjax-{os.getpid()}"
    limit = str(megabytes * 2**20)
    try:
        folder.mkdir()
        if first.is_dir():
            (folder / "memory.limit_in_bytes").write_text(limit)
            (folder / "memory.memsw.limit_in_bytes").write_text(limit)
        else:
            (folder / "memory.max").write_text(limit)
            (folder / "memory.swap.max").write_text("0")
    except OSError:
        with suppress(OSError):
            folder.rmdir()
        yield None
        return
    try:
        yield Box(folder)
    finally:
        end = time.monotonic() + 10
        while folder.is_dir() and time.monotonic() < end:  # its processes end
            with suppress(OSError):
                folder.rmdir()
            time.sleep(0.05)


def _takes_connections(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def upstream(folder: Path) -> Iterator[Server]:
    """The model."""
    port = free_port()
    words = [sys.executable, "-m", "benchmarks.gateway.upstream", str(port)]
    root = str(Path(__file__).parents[2])
    path = {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    with running(words, port, folder / "upstream.log", path) as pid:
        yield Server(port, pid, "large")


def policy_of(names: Sequence[str]) -> Policy:
    """A policy of which the last model alone answers: every request is one call of each."""
    calibration = Calibration("choice", intercept=0.25, slope=0.75, smallest=-6.0, largest=5.5)
    ask = {name: (Rule(0.999, "ask", after), Rule(1.0, "answer")) for name, after in pairwise(names)}
    return Policy(
        tuple(names),
        dict.fromkeys(names, calibration),
        {**ask, names[-1]: (Rule(1.0, "answer"),)},
        dict.fromkeys(names, 1e-5),
    )


def ladder_of(names: Sequence[str]) -> Ladder:
    """A ladder with money for a month, of which each rung is one model: every request is one call."""
    calibration = policy_of(names[:1]).calibrations[names[0]]
    costs = {name: 1e-5 * (place + 1) for place, name in enumerate(names)}
    rungs = [
        Policy(
            (name,),
            {name: calibration},
            {name: (Rule(1.0, "answer"),)},
            {name: cost},
            expected={"error": 0.1, "cost": cost},
        )
        for name, cost in costs.items()
    ]
    return Ladder(tuple(rungs), 0.5, 1.5e-5, period=Period(1e5, "month"))


@contextmanager
def ledger() -> Iterator[str | None]:
    """The address of a store for a ledger; None without a server for it."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as name:
        port = free_port()
        words = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        with running(words, port, Path(name) / "output"):
            yield f"redis://127.0.0.1:{port}"


@contextmanager
def rcjax(
    folder: Path,
    upstream: Server,
    models: Sequence[str],
    *,
    judged: bool,
    logged: bool,
    ledger: str | None = None,
    policy: AbstractPolicy | None = None,
) -> Iterator[Server]:
    """`rcjax serve`: a policy of the models, of which all are asked, or without judging the last of them; or another
    policy, of which one is asked."""
    folder.mkdir()
    base_url = f"http://127.0.0.1:{upstream.port}/v1"
    table = '["{}"]\nbase_url = "{}"\ninput = 0.1\noutput = 0.4\nsignal = "choice"\n'
    (folder / "models.toml").write_text("".join(table.format(name, base_url) for name in models))
    (policy or policy_of(models)).save(folder / "policy.json")
    port = free_port()
    words = [str(Path(sys.executable).parent / "rcjax"), "serve", "policy.json", "--models", "models.toml"]
    words += ["--port", str(port), *(["--log", "calls.jsonl"] if logged else [])]
    words += [] if ledger is None else ["--ledger", ledger]
    with running(words, port, folder / "output") as pid:
        yield Server(port, pid, "policy" if judged else models[-1], len(models) if judged and policy is None else 1)


@contextmanager
def litellm(folder: Path, upstream: Server) -> Iterator[Server | None]:
    """LiteLLM's proxy in front of the model, at its cheapest: one worker, nothing logged, no key; None without it."""
    if LITELLM is None:
        yield None
        return
    folder.mkdir()
    parameters = {"model": "openai/large", "api_base": f"http://127.0.0.1:{upstream.port}/v1", "api_key": "none"}
    models = [{"model_name": "large", "litellm_params": parameters}]
    (folder / "config.yaml").write_text(json.dumps({"model_list": models, **_LITELLM_SETTINGS}))  # JSON is YAML
    port = free_port()
    words = [LITELLM, "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    with running([*words, "--telemetry", "False"], port, folder / "output", _LITELLM_ENVIRONMENT) as pid:
        yield Server(port, pid, "large")


def litellm_version() -> str | None:
    """The version of LiteLLM; None without it."""
    if LITELLM is None:
        return None
    python = Path(LITELLM).parent / "python"
    code = "from importlib.metadata import version; print(version('litellm'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def everything(folder: Path) -> Iterator[dict[str, Server]]:
    """All servers by what they are called in the tables; the model itself first."""
    with ExitStack() as stack:
        start = stack.enter_context
        model, store, pair = start(upstream(folder)), start(ledger()), ["small", "large"]
        servers: dict[str, Server | None] = {
            "no gateway": model,
            "`rcjax serve`, a model": start(rcjax(folder / "a", model, ["large"], judged=False, logged=False)),
            "`rcjax serve`, a policy of one, logged": start(
                rcjax(folder / "b", model, ["large"], judged=True, logged=True)
            ),
            "`rcjax serve`, a cascade of three, all asked": start(
                rcjax(folder / "c", model, ["small", "middle", "large"], judged=True, logged=False)
            ),
            "`rcjax serve`, money for a month, logged": start(
                rcjax(folder / "e", model, pair, judged=True, logged=True, policy=ladder_of(pair))
            ),
            "`rcjax serve`, the same, with a ledger": None
            if store is None
            else start(
                rcjax(folder / "f", model, pair, judged=True, logged=True, policy=ladder_of(pair), ledger=store)
            ),
            "LiteLLM, a model": start(litellm(folder / "d", model)),
        }
        yield {name: server for name, server in servers.items() if server is not None}
