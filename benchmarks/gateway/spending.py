"""Attacks on the money of `rcjax serve`: a month's $.01, and what is worked for it, as the upstream itself counts.

    python -m benchmarks.gateway.spending

Each attack meets a new service with a ladder small → large. The upstream writes as many tokens as it is asked for, or
200, in as many seconds as a question names, and goes on where its client leaves, as most providers do. Before requests
put money aside, and counts were checked, the large model worked in the first five attacks for $2.03, $28.71, $30.06,
$0.050 and $0.056, of which the last two were booked as a tenth and a fortieth, and the wrong counts were booked as
$15,000 and $5,000,000,000.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.gateway.servers import free_port, running
from rcjax.policy import Calibration, Ladder, Policy, Rule
from rcjax.policy.ladder import Period
from rcjax.serving.gateway.clients import hash_key

MONEY = 0.01  # a month
PRICES = {"small": (0.1, 0.4), "large": (3.0, 15.0)}  # per million tokens
_READ, _WRITTEN = 100, 200  # tokens
_UNDER_WAY = 10 * _READ * PRICES["large"][0] / 1e6  # of ten requests, whose prompts have more tokens than bytes tell
_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
_NOT_JUDGED: tuple[dict[str, Any], ...] = (
    {"n": 2},
    {"response_format": {"type": "json_object"}},
    {"tools": [_TOOL]},
    {"tool_choice": "auto"},
)


@dataclass(slots=True)
class Work:
    """What the upstream has worked for, by model."""

    cost: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PRICES, 0.0))
    turn: threading.Lock = field(default_factory=threading.Lock)

    def add(self, model: str, written: int) -> None:
        """Count an answer of a model."""
        read_price, price = PRICES[model]
        with self.turn:
            self.cost[model] += (_READ * read_price + written * price) / 1e6


def _usage(text: str, written: int) -> dict[str, Any]:
    usage: dict[str, Any] = {"prompt_tokens": _READ, "completion_tokens": written}
    if "wrong tokens" in text:
        usage["prompt_tokens"] = 10**9
    if "wrong cost" in text:
        usage["cost"] = 10**9
    return usage


class _Handler(BaseHTTPRequestHandler):
    """The upstream: one completion for each request."""

    protocol_version = "HTTP/1.1"
    work: Work

    def do_POST(self) -> None:
        """Answer as long as is asked for, whether or not somebody waits."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = request["messages"][-1]["content"]
        limit = request.get("max_tokens") or request.get("max_completion_tokens") or _WRITTEN
        written = limit * (request.get("n") or 1)
        seconds = re.search(r"(\d+) s", text)
        self.work.add(request["model"], written)
        time.sleep(float(seconds[1]) if seconds else 0.05)
        tokens = [{"token": "B", "logprob": -0.1, "top_logprobs": [{"token": "B", "logprob": -0.1}]}]
        message = {"role": "assistant", "content": "B"}
        choice = {"index": 0, "finish_reason": "stop", "message": message, "logprobs": {"content": tokens}}
        reply = {"id": "1", "object": "chat.completion", "created": 1, "model": request["model"]}
        body = json.dumps({**reply, "choices": [choice], "usage": _usage(text, written)}).encode()
        with suppress(OSError):
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def working() -> Iterator[tuple[Work, str]]:
    """(the work, the base URL) of an upstream."""
    work = Work()
    handler = type("_Counting", (_Handler,), {"work": work})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield work, f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()


def write_files(folder: Path, base_url: str, money: float) -> None:
    """The ladder and the models that a service is given."""
    calibration = Calibration("choice", intercept=0.25, slope=0.75, smallest=-6.0, largest=5.5)
    rungs, models = list[Policy](), ""
    for name, (read, written) in PRICES.items():
        cost = (_READ * read + _WRITTEN * written) / 1e6
        expected = {"error": 0.1, "cost": cost}
        rungs.append(
            Policy((name,), {name: calibration}, {name: (Rule(1.0, "answer"),)}, {name: cost}, expected=expected)
        )
        models += f'[{name}]\nbase_url = "{base_url}"\ninput = {read}\noutput = {written}\nsignal = "choice"\n'
    Ladder(tuple(rungs), 0.5, 1e-3, period=Period(money, "month")).save(folder / "policy.json")
    (folder / "models.toml").write_text(models)


@dataclass(frozen=True, slots=True)
class Victim:
    """The service that is attacked."""

    port: int
    work: Work
    key: str = "none"

    def ask(self, text: str = "A or B?", patience: float = 60.0, **fields: Any) -> tuple[int, Mapping[str, Any]]:
        """(status, answer) of a question; status 0 if the client leaves before there is one."""
        body = {"model": "policy", "messages": [{"role": "user", "content": text}], **fields}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=patience)
        try:
            headers = {"content-type": "application/json", "authorization": f"Bearer {self.key}"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        except (OSError, HTTPException):
            return 0, {}
        finally:
            connection.close()

    def at_once(self, number: int, **fields: Any) -> None:
        """So many of one question at the same time."""
        with ThreadPoolExecutor(number) as pool:
            for _ in range(number):
                pool.submit(self.ask, **fields)


def spend(victim: Victim) -> None:
    """Spend the month's money, and then ask for what is not judged."""
    for _ in range(5):
        victim.ask(max_tokens=3000, n=2)
    for fields in (*_NOT_JUDGED, dict[str, Any](n=128, max_tokens=1000)):
        victim.ask(**fields)


def _one_by_one(victim: Victim, text: str) -> None:
    for _ in range(5):
        victim.ask(text, tools=[_TOOL], max_tokens=100)


#: What is done to the service, and with which options it runs.
SPENDING: dict[str, tuple[Callable[[Victim], None], tuple[str, ...]]] = {
    "unjudged requests when the money is spent": (spend, ()),
    "200 requests of 10,000 tokens at once": (lambda victim: victim.at_once(200, max_tokens=10_000), ()),
    "200 unjudged requests of 10,000 tokens at once": (
        lambda victim: victim.at_once(200, max_tokens=10_000, tools=[_TOOL]),
        (),
    ),
    "60 clients that leave after .5 s of 3": (
        lambda victim: victim.at_once(60, text="a whole answer in 3 s", patience=0.5, tools=[_TOOL]),
        (),
    ),
    "60 requests with --timeout 1 and 3 s to answer": (
        lambda victim: victim.at_once(60, text="a whole answer in 3 s", tools=[_TOOL]),
        ("--timeout", "1", "--retries", "0"),
    ),
    "an upstream that counts a billion tokens": (lambda victim: _one_by_one(victim, "wrong tokens"), ()),
    "an upstream that tells a cost of $1,000,000,000": (lambda victim: _one_by_one(victim, "wrong cost"), ()),
}


def all_at_once(victim: Victim) -> None:
    """All attacks on a service at the same time."""
    with ThreadPoolExecutor(len(SPENDING)) as pool:
        for attack, options in list(SPENDING.values()):
            if attack is not all_at_once and not options:
                pool.submit(attack, victim)


SPENDING["all of these at once"] = all_at_once, ()
SPENDING["all of these at once, with --stop-at-budget"] = all_at_once, ("--stop-at-budget",)


@dataclass(frozen=True, slots=True)
class Spent:
    """What came of an attack, in money."""

    worked: float
    """By the large model, as the upstream counts."""
    booked: float
    """By the large model, as the service's log counts."""
    whole: float
    """By both models, as the upstream counts."""


@contextmanager
def served(folder: Path, base_url: str, *options: str, money: float = MONEY, **environment: str) -> Iterator[int]:
    """The port of a service, whose files are put into a folder."""
    write_files(folder, base_url, money)
    port = free_port()
    words = [sys.executable, "-c", "from rcjax.cli import main; main()", "serve", "policy.json"]
    words += ["--models", "models.toml", "--log", "calls.jsonl", "--port", str(port), *options]
    root = str(Path(__file__).parents[2])
    path = {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    with running(words, port, folder / "output", path | environment):
        yield port


def attacked(name: str, folder: Path) -> Spent:
    """Attack a new service, whose files are put into a folder."""
    attack, options = SPENDING[name]
    with working() as (work, base_url):
        with served(folder, base_url, *options) as port:
            attack(Victim(port, work))
        rows = [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]
        booked = sum(row["cost"] for row in rows if row["model"] == "large")
        return Spent(work.cost["large"], booked, sum(work.cost.values()))


def play() -> list[str]:
    """Play all attacks, and print a Markdown table; what did not hold, a line each."""
    heads = "worked for by the large model, $ | booked, $ | worked for by both"
    print(f"\n| ${MONEY} a month under | {heads} |\n|---|--:|--:|--:|")
    misses = []
    for name in SPENDING:
        with tempfile.TemporaryDirectory() as folder:
            spent = attacked(name, Path(folder))
        print(f"| {name} | {spent.worked:.4f} | {spent.booked:.4f} | {spent.whole:.4f} |", flush=True)
        most = spent.whole if "--stop-at-budget" in SPENDING[name][1] else spent.worked
        if name.endswith("--stop-at-budget"):
            told = f"{spent.whole:.4f}"
            record.headline(
                f"${MONEY} a month under all attacks on money at once, with --stop-at-budget: worked for, $", told
            )
        misses += [f"{name}: {spent} of ${MONEY}"] if max(most, spent.booked) > MONEY + _UNDER_WAY else []
    return misses + share()


_SHARED = 200.0  # money of eight clients a month

_OTHERS, _GREEDY = 7, 64  # clients that behave; requests at once of the one that does not


@dataclass(slots=True)
class Shared:
    """What the others saw beside a greedy client."""

    answers: int = 0
    refused: int = 0
    slowest: float = 0.0
    positions: float = 0.0

    def ask(self, victim: Victim, end: float) -> None:
        """Ask one short question after the other until some time."""
        while time.monotonic() < end:
            start = time.monotonic()
            status, answer = victim.ask()
            self.slowest = max(self.slowest, time.monotonic() - start)
            self.answers, self.refused = self.answers + 1, self.refused + (status != 200)
            self.positions += (answer.get("rcjax") or {}).get("position") or 0.0


def _beside_greedy(folder: Path, named: bool) -> tuple[Shared, int]:
    """(what seven clients saw, how many requests of the greedy one were answered) in five seconds."""
    keys = [f"key-{number}" for number in range(_OTHERS + 1)]
    tables = [
        f'[client-{number}]\nsha256 = "{hash_key(key)}"\nmax_concurrent = 8\nmoney = "{_SHARED / 4}/month"\n'
        for number, key in enumerate(keys)
    ]
    (folder / "keys.toml").write_text("".join(tables))
    options = ("--keys", "keys.toml") if named else ("--key-env", "RCJAX_KEYS")
    greedy, others, end = list[int](), Shared(), time.monotonic()
    with (
        working() as (work, base_url),
        served(
            folder, base_url, *options, "--concurrency", str(_GREEDY), money=_SHARED, RCJAX_KEYS=",".join(keys)
        ) as port,
        ThreadPoolExecutor(_GREEDY + _OTHERS) as pool,
    ):
        end = time.monotonic() + 5.0

        def take() -> None:
            while time.monotonic() < end:
                status, _ = Victim(port, work, keys[0]).ask("a whole answer in 1 s", max_tokens=1000)
                greedy.append(status)
                time.sleep(0.01)

        for _ in range(_GREEDY):
            pool.submit(take)
        for key in keys[1:]:
            pool.submit(others.ask, Victim(port, work, key), end)
    return others, greedy.count(200)


def share() -> list[str]:
    """Eight clients, one of which is greedy, without names and with names; what did not hold, a line each."""
    heads = "requests of seven others | refused | the slowest, s | they stand at | answers to the greedy one"
    print(f"\n| eight clients | {heads} |\n|---|--:|--:|--:|--:|--:|")
    misses = []
    for named in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            others, taken = _beside_greedy(Path(folder), named)
        mean = others.positions / max(others.answers, 1)
        figures = f"{others.answers} | {others.refused} | {others.slowest:.2f} | {mean:.2f} | {taken}"
        which = "with names" if named else "without names"
        print(f"| {which} | {figures} |", flush=True)
        what = f"eight clients, one greedy, {which}: requests of the others; refused; the slowest, s"
        record.headline(what, f"{others.answers}; {others.refused}; {others.slowest:.2f}")
        misses += [f"{others.refused} requests beside a greedy client are refused"] if named and others.refused else []
    return misses


def main() -> None:
    """Play all attacks; ends with status 1 where something did not hold."""
    record.parser(__doc__).parse_args()
    misses = play()
    if misses:
        print("\n".join(f"- {miss}" for miss in misses))
        raise SystemExit(1)


if __name__ == "__main__":
    record.run(main)
