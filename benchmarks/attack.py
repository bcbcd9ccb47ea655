"""`rcjax serve` under attack: hostile clients before it, hostile upstreams behind it, well-behaved clients between.

    python -m benchmarks.attack [--minutes 10] [--workers 1]

A real service runs before a real upstream on loopback, which misbehaves in the way that the question names. Attacks
take turns until the time is over: bodies that are legal and slow to parse, heads without an end, offers of other
protocols, requests that a web page could send, connections that send nothing, clients that leave; replies of a
gigabyte, compressed, nested, endless, without text, with numbers that are no JSON, redirects, resets. Each attack names
the response that its client must get. Meanwhile well-behaved clients ask questions, and a monitor reads /health. At the
end the service is stopped while clients ask. As root on Linux, a control group limits the service to 512 MB a worker.
Then other clients try to spend a month's money (`benchmarks.gateway.spending`), and repeat the attacks that once
brought the service down (`benchmarks.gateway.bullets`).

Prints a Markdown table of the attacks that the service held. The exit status is 1 if it did not hold one, if a
well-behaved client got no answer or waited for more than five seconds, or if memory grew by more than a fifth. Linux;
needs `pip install 'rcjax[serve]'`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.gateway import bullets, spending
from benchmarks.gateway.hostile import BODIES, BODY, HEAD, JSON, SENT, posted
from benchmarks.gateway.misbehaving import MODES, misbehaving
from benchmarks.gateway.servers import Box, boxed, open_files, policy_of, resident

_MODELS = ("small", "large")
_PATIENCE = 5.0  # seconds that a well-behaved client, or a look at /health, may wait
_BOX = 512  # megabytes of a worker
_ROOM = 430.0  # that one attack may take: what is left of them
_GROWTH = 1.2  # of memory, from the end of the first round on
_WELL_BEHAVED = 4  # clients


@dataclass(slots=True)
class Row:
    """What an attack came to."""

    times: int = 0
    misses: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """The longest that it took."""


@dataclass(slots=True)
class Meanwhile:
    """What well-behaved clients saw."""

    answers: int = 0
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0
    health: float = 0.0
    """The slowest answer of /health, in seconds."""


@dataclass(frozen=True, slots=True)
class Service:
    """The service that is attacked."""

    port: int
    process: subprocess.Popen[bytes]

    def send(self, *parts: bytes, patience: float = 20.0) -> bytes:
        """What it says to bytes that are sent as they are, until it closes, or a whole answer is there."""
        said = b""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), patience) as connection:
            for part in parts:
                connection.sendall(part)
            while not _is_whole(said) and (data := connection.recv(65_536)):
                said += data
        return said

    def ask(self, text: str, patience: float = 60.0, **fields: Any) -> tuple[int, bytes]:
        """(status, body) of an ordinary question."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=patience)
        body = {"model": "policy", "messages": [{"role": "user", "content": text}], **fields}
        try:
            connection.request("POST", _PATH, json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def pids(self) -> list[int]:
        """Of the processes that serve."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        spawned = [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
        return spawned or [pid]

    def memory(self) -> float:
        """Megabytes of all of them."""
        return sum(resident(pid) for pid in self.pids()) / 1e6


def _is_whole(said: bytes) -> bool:
    head, _, body = said.partition(b"\r\n\r\n")
    length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(length) and len(body) >= int(length[0].partition(b":")[2])


@contextmanager
def serving(folder: Path, base_url: str, workers: int, box: Box | None = None) -> Iterator[Service]:
    """`rcjax serve` with a policy of two models, a log and shadow queries; within a limit on its memory."""
    table = '["{}"]\nbase_url = "{}"\ninput = 0.1\noutput = 0.4\nsignal = "choice"\n'
    (folder / "models.toml").write_text("".join(table.format(name, base_url) for name in _MODELS))
    policy_of(_MODELS).save(folder / "policy.json")
    words = [
        sys.executable,
        "-c",
        "from rcjax.cli import main; main()",
        "serve",
        "policy.json",
        "--models",
        "models.toml",
    ]
    words += ["--port", "0", "--json", "--workers", str(workers), "--log", "calls.jsonl"]
    words += ["--shadow", "10%", "--timeout", "3", "--deadline", "8", "--retries", "1", "--drain", "10"]
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    with (folder / "stderr").open("wb") as errors:
        enter = None if box is None else box.enter
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=errors, cwd=folder, env=environment, preexec_fn=enter
        )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        if not first:
            raise SystemExit((folder / "stderr").read_text())
        yield Service(int(json.loads(first)["url"].rpartition(":")[2]), process)
    finally:
        process.kill()
        process.wait()


_PATH = "/v1/chat/completions"


def _status(said: bytes) -> int:
    return int(said[9:12]) if said.startswith(b"HTTP/1.1 ") else 0


def _expect(status: int, right: Sequence[int], told: bytes = b"") -> str | None:
    return None if status in right else f"{status or 'closed'}, not {' or '.join(map(str, right))} {told[:200]!r}"


def hold_connections(service: Service) -> str | None:
    """400 connections, most of which send nothing and the others half a head; then an ordinary request."""
    held = []
    try:
        for number in range(400):
            held.append(socket.create_connection(("127.0.0.1", service.port), 20))
            if number % 4 == 0:
                held[-1].sendall(HEAD)
        return _expect(*_asked(service, "good"))
    finally:
        for connection in held:
            connection.close()


def leave(service: Service) -> str | None:
    """100 clients that go while a model is at work."""
    for _ in range(100):
        with socket.create_connection(("127.0.0.1", service.port), 20) as connection:
            connection.sendall(posted(BODY.replace(b"good", b"slow")))
    return _expect(*_asked(service, "good"))


def hold_bodies(service: Service) -> str | None:
    """60 bodies of four megabytes that stop before their end, for a second; then an ordinary request."""
    held = []
    try:
        for _ in range(60):
            held.append(socket.create_connection(("127.0.0.1", service.port), 20))
            held[-1].settimeout(0.5)
            with suppress(OSError):
                held[-1].sendall(HEAD + JSON + b"content-length: 3900000\r\n\r\n" + b" " * 1_000_000)
        return _expect(*_asked(service, "good"))
    finally:
        for connection in held:
            connection.close()


def hold_many_bodies(service: Service) -> str | None:
    """300 bodies of which a byte has come, of one client; then an ordinary request."""
    held = []
    try:
        for _ in range(300):
            held.append(socket.create_connection(("127.0.0.1", service.port), 20))
            held[-1].sendall(HEAD + JSON + b"content-length: 1000\r\n\r\n ")
        return _expect(*_asked(service, "good"))
    finally:
        for connection in held:
            connection.close()


def read_nothing(service: Service) -> str | None:
    """40 answers of eight megabytes that nobody reads; then an ordinary request, and the memory."""
    held, before = [], service.memory()
    try:
        for _ in range(40):
            held.append(socket.create_connection(("127.0.0.1", service.port), 20))
            held[-1].sendall(posted(BODY.replace(b"good", b"long")))
        time.sleep(1.0)
        grown = service.memory() - before
        return _expect(*_asked(service, "good")) or (f"{grown:.0f} MB more" if grown > _ROOM else None)
    finally:
        for connection in held:
            connection.close()


def prompts_at_once(service: Service) -> str | None:
    """40 prompts of 3.9 megabytes at once: answers, or 429; then the memory."""
    text, before = "x" * 3_900_000, service.memory()
    with ThreadPoolExecutor(40) as pool:
        statuses = [status for status, _ in pool.map(service.ask, [text] * 40)]
    grown = service.memory() - before
    wrong = [status for status in statuses if status not in (200, 429)]
    return f"statuses {wrong}" if wrong else f"{grown:.0f} MB more" if grown > _ROOM else None


def replies_at_once(service: Service) -> str | None:
    """20 replies of 50 megabytes at once, which are refused; then the memory."""
    before = service.memory()
    with ThreadPoolExecutor(20) as pool:
        statuses = [status for status, _ in pool.map(service.ask, ["fifty megabytes"] * 20)]
    grown = service.memory() - before
    wrong = [status for status in statuses if status not in (429, 502, 504)]
    return f"statuses {wrong}" if wrong else f"{grown:.0f} MB more" if grown > _ROOM else None


def roles(service: Service) -> str | None:
    """Ten streams of chunks that say nothing, until their deadline; an ordinary request; then the memory."""
    before = service.memory()
    with ThreadPoolExecutor(10) as pool:
        asked = [pool.submit(service.ask, "roles without an end", model="large", stream=True) for _ in range(10)]
        miss = _expect(*_asked(service, "good"))
        wrong = [one.result()[0] for one in asked if one.result()[0] not in (502, 504)]
    grown = service.memory() - before
    return miss or (f"statuses {wrong}" if wrong else f"{grown:.0f} MB more" if grown > _ROOM else None)


def _asked(service: Service, text: str) -> tuple[int, Sequence[int]]:
    return service.ask(text)[0], (200,)


def _mode(name: str, right: Sequence[int]) -> Callable[[Service], str | None]:
    """An upstream that misbehaves, to a question that is answered whole, in pieces, or by a model alone."""

    def attack(service: Service) -> str | None:
        for fields in ({}, {"stream": True}, {"model": "large"}, {"model": "large", "stream": True, "logprobs": True}):
            status, body = service.ask(name, **fields)
            miss = _expect(status, right, body) or _not_json(body)
            if miss:
                return f"{fields}: {miss}"
        return None

    return attack


def _not_json(body: bytes) -> str | None:
    texts = [part.strip() for part in body.split(b"\n\ndata: ")] if body.startswith(b"data: ") else [body]
    for text in texts:
        with suppress(ZeroDivisionError, ValueError):
            if text.removeprefix(b"data: ") != b"[DONE]":
                json.loads(text.removeprefix(b"data: "), parse_constant=lambda constant: 1 / 0)
            continue
        return f"not JSON: {text[:200]!r}"
    return None


def attacks() -> dict[str, Callable[[Service], str | None]]:
    """All of them, by what they are called; each gives what went wrong, or None."""
    found: dict[str, Callable[[Service], str | None]] = {}
    for name, (body, right) in BODIES.items():
        found[name] = lambda service, body=body, right=right: _expect(_status(service.send(posted(body()))), right)
    for name, (parts, right) in SENT.items():
        found[name] = lambda service, parts=parts, right=right: _expect(_status(service.send(*parts())), right)
    found["400 connections that are held"] = hold_connections
    found["60 bodies that are held"] = hold_bodies
    found["300 bodies of which a byte came"] = hold_many_bodies
    found["40 prompts of 3.9 MB at once"] = prompts_at_once
    found["20 replies of 50 MB at once"] = replies_at_once
    found["ten streams of chunks that say nothing"] = roles
    found["40 answers of 8 MB that nobody reads"] = read_nothing
    found["100 clients that leave"] = leave
    for name, right in MODES.items():
        found[f"an upstream: {name}"] = _mode(name, right)
    return found


def behave_well(service: Service, meanwhile: Meanwhile, stop: threading.Event) -> None:
    """Ask ordinary questions, one after the other."""
    while not stop.is_set():
        start = time.monotonic()
        try:
            status, body = service.ask("good")
            if status != 200:
                meanwhile.failures.append(f"{status} {body[:200]!r}")
        except (OSError, HTTPException) as problem:
            meanwhile.failures.append(repr(problem))
        meanwhile.answers += 1
        meanwhile.slowest = max(meanwhile.slowest, time.monotonic() - start)
        stop.wait(0.05)


def look(service: Service, meanwhile: Meanwhile, stop: threading.Event) -> None:
    """Look at /health again and again."""
    while not stop.is_set():
        start = time.monotonic()
        if b" 200 OK" not in service.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"):
            meanwhile.failures.append("/health")
        meanwhile.health = max(meanwhile.health, time.monotonic() - start)
        stop.wait(0.1)


def run(service: Service, seconds: float) -> tuple[dict[str, Row], Meanwhile, list[float], list[int]]:
    """(what each attack came to, what others saw, megabytes and open files after each round)."""
    rows, meanwhile, stop = defaultdict[str, Row](Row), Meanwhile(), threading.Event()
    for _ in range(_WELL_BEHAVED):
        threading.Thread(target=behave_well, args=(service, meanwhile, stop), daemon=True).start()
    threading.Thread(target=look, args=(service, meanwhile, stop), daemon=True).start()
    end, memory, files = time.monotonic() + seconds, list[float](), list[int]()
    while time.monotonic() < end or len(memory) < 2:
        for name, attack in attacks().items():
            start = time.monotonic()
            try:
                miss = attack(service)
            except (OSError, HTTPException) as problem:
                miss = repr(problem)
            row = rows[name]
            row.times, row.seconds = row.times + 1, max(row.seconds, time.monotonic() - start)
            row.misses += [] if miss is None else [miss]
        memory.append(service.memory())
        files.append(sum(open_files(pid) for pid in service.pids()))
    stop.set()
    time.sleep(1.0)
    return rows, meanwhile, memory, files


def stop_while_asked(service: Any, clients: int = 140, seconds: float = 3.0) -> int:
    """How many of so many clients, who ask again and again on kept connections, are reset as the service ends."""
    resets: list[str] = []

    def ask() -> None:
        connection = HTTPConnection("127.0.0.1", service.port, timeout=30)
        headers = {"content-type": "application/json"}
        while True:
            try:
                connection.request("POST", _PATH, BODY, headers)
            except OSError:  # nothing was sent: it takes no requests any more
                return
            try:
                response = connection.getresponse()
                response.read()
            except (OSError, HTTPException) as problem:
                resets.append(repr(problem))
                return
            if response.getheader("connection") == "close":
                return

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    service.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    service.process.wait(60)
    return len(resets)


def what_missed(rows: dict[str, Row], meanwhile: Meanwhile, memory: Sequence[float]) -> list[str]:
    """What did not hold, a line each."""
    misses = [f"{name}: {miss}" for name, row in rows.items() for miss in row.misses[:3]] + meanwhile.failures[:5]
    misses += [f"a wait of {wait:.1f} s" for wait in (meanwhile.slowest, meanwhile.health) if wait > _PATIENCE]
    return misses + (["memory grows"] if memory[-1] > _GROWTH * memory[0] else [])


def main() -> None:
    """Attack, and print what held."""
    options = record.parser(__doc__)
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--workers", type=int, default=1)
    chosen = options.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        misbehaving() as base_url,
        boxed(_BOX * chosen.workers) as box,
        serving(Path(folder), base_url, chosen.workers, box) as service,
    ):
        rows, meanwhile, memory, files = run(service, 60 * chosen.minutes)
        resets = stop_while_asked(service)
        killed = 0 if box is None else box.killed()
        said = (Path(folder) / "stderr").read_text()
    print("| attack | times | held | longest, s |\n|---|--:|--:|--:|")
    for name, row in rows.items():
        print(f"| {name} | {row.times} | {row.times - len(row.misses)} | {row.seconds:.1f} |")
    failed = f"{len(meanwhile.failures)} failed, the slowest took {meanwhile.slowest:.2f} s"
    print(f"\n{meanwhile.answers:,} ordinary questions meanwhile: {failed}.")
    print(f"The slowest look at /health took {meanwhile.health:.2f} s.")
    print(f"Memory: {memory[0]:.0f} MB after the first round, {memory[-1]:.0f} MB after the last of {len(memory)}.")
    within = "" if box is None else f" All of it within a control group of {_BOX * chosen.workers} MB."
    print(f"{killed} processes were killed for memory.{within}")
    print(f"Open files: {files[0]}, then {files[-1]}. At the end, {resets} of 140 clients were reset.")
    misses = what_missed(rows, meanwhile, memory) + (["a traceback"] if "Traceback" in said else [])
    misses += ([f"{resets} resets at the end"] if resets else []) + (["killed for memory"] if killed else [])
    misses += spending.play() + bullets.play()
    attacked = f"`rcjax serve` under {len(rows)} attacks for {chosen.minutes:.0f} minutes"
    record.headline(
        f"{attacked}: held; ordinary questions that failed",
        f"{_held(rows)}; {len(meanwhile.failures)} of {meanwhile.answers:,}",
    )
    record.headline("the same: memory after the first round and the last, MB", f"{memory[0]:.0f}; {memory[-1]:.0f}")
    if misses:
        print("\nWhat did not hold:\n")
        print("\n".join(f"- {miss}" for miss in misses))
        raise SystemExit(1)


def _held(rows: dict[str, Row]) -> str:
    return f"{sum(not row.misses for row in rows.values())} of {len(rows)}"


if __name__ == "__main__":
    record.run(main)
