"""Attacks on a service that strangers may call, one for each that it once did not withstand, with what it came to then.

Those on money are in `spending`. Of what lies outside the service (caches, files, other commands) a test is run.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gateway import streams
from benchmarks.gateway.spending import Victim, served, working
from rcjax.serving.gateway.clients import hash_key


class Outcome(NamedTuple):
    """What an attack came to."""

    figure: str
    holds: bool


_FOREIGN: dict[str, Any] = {
    "models": ["large"],
    "provider": {"order": ["x"]},
    "api_base": "http://evil.example",
    "api_key": "sk-x",
    "service_tier": "priority",
}


def beside_streams() -> Outcome:
    """200 streams at once on one worker, /ready and a cheap request beside them."""
    (ready, cheap, ready_beside, cheap_beside), rate, _ = streams.measure(200, 50.0, 10.0)
    times = statistics.median(cheap_beside) / statistics.median(cheap)
    told = f"/ready: the slowest {1e3 * max(ready_beside):.0f} ms ({1e3 * max(ready):.0f} alone); a cheap request: "
    told += f"median {times:.1f} times that alone; {rate:,.0f} pieces a second"
    is_cheap = statistics.median(cheap_beside) <= max(0.1, 2 * statistics.median(cheap))
    return Outcome(told, max(ready_beside) <= 0.1 + max(ready) and is_cheap)


def foreign_fields() -> Outcome:
    """A client without a right to models names one, and sends fields that name models, tiers, addresses and keys."""
    with tempfile.TemporaryDirectory() as folder, working() as (work, base_url):
        options = ("--key-env", "RCJAX_KEYS", "--max-tokens", "4096")
        with served(Path(folder), base_url, *options, RCJAX_KEYS="k") as port:
            victim = Victim(port, work, "k")
            statuses = [victim.ask(model="large")[0], victim.ask(max_tokens=100_000)[0]]
            statuses += [victim.ask(**{name: value})[0] for name, value in _FOREIGN.items()]
        cost = sum(work.cost.values())
    return Outcome(f"statuses {sorted({*statuses})}, worked for ${cost:.4f}", cost == 0 and {*statuses} <= {400, 403})


def stolen_ids() -> Outcome:
    """Somebody asks other questions under 60 ids of another client."""
    names = ("victim", "thief")
    with tempfile.TemporaryDirectory() as name, working() as (_, base_url):
        folder = Path(name)
        tables = (f'[{one}]\nsha256 = "{hash_key(one)}"\n' for one in names)
        (folder / "keys.toml").write_text("".join(tables))
        with served(folder, base_url, "--keys", "keys.toml", money=1.0) as port:
            for number in range(60):
                for one in reversed(names):
                    _ask_as(port, one, f"q{number}")
        rows = [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]
    asked: dict[str, set[str]] = {}
    for row in rows:
        asked.setdefault(row["query"], set()).add(row["prompt_digest"])
    shared = sum(len(digests) > 1 for digests in asked.values())
    return Outcome(f"{shared} of {len(asked)} queries have two prompts", shared == 0 and len(asked) == 120)


def _ask_as(port: int, name: str, query: str) -> None:
    from http.client import HTTPConnection

    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"content-type": "application/json", "authorization": f"Bearer {name}", "x-rcjax-query": query}
    body = {"model": "policy", "messages": [{"role": "user", "content": f"A question of {name}"}]}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    connection.getresponse().read()
    connection.close()


def _tested(*nodes: str) -> Callable[[], Outcome]:
    """Whether tests hold."""

    def run() -> Outcome:
        words = [sys.executable, "-m", "pytest", "-q", "-n", "0", *nodes]
        root = Path(__file__).parents[2]
        done = subprocess.run(words, cwd=root, capture_output=True, text=True)
        return Outcome("; ".join(f"`{node.removeprefix('tests/')}`" for node in nodes), done.returncode == 0)

    return run


#: Attacks by what is done, each with what it came to before.
BULLETS: dict[str, tuple[str, Callable[[], Outcome]]] = {
    "200 streams of 50 pieces a second, one worker": (
        "/ready 18 s; a cheap request timed out at 30 s",
        beside_streams,
    ),
    "a key that names any model; fields for models, tiers, addresses, keys; 100,000 tokens": (
        "answered, on no bill",
        foreign_fields,
    ),
    "60 ids of another client, with other questions": ("60 of 60 rows replaced", stolen_ids),
    "500 answers at a hundred times their rung": (
        "30,531 queries at position 0",
        _tested("tests/policy/test_bills.py"),
    ),
    "requests a minute, at once and money of a client, over workers, restarts and replicas": (
        "all keys shared everything",
        _tested("tests/serving/gateway/test_named_clients.py", "tests/serving/gateway/test_replicas.py"),
    ),
    "a shared RCJAX_CACHE_DIR with files of another user": (
        "loaded by JAX's own cache",
        _tested("tests/_core/test_program_files.py"),
    ),
    "`collect --budget` with a judge": (
        "all spent on answers, nothing on verdicts",
        _tested("tests/collecting/test_collect_judges.py"),
    ),
    "a full disk, and copytruncate": (
        "−.0056 became −.0003; the month anew",
        _tested("tests/serving/test_billing.py", "tests/serving/test_totals.py"),
    ),
    "a drain cut short; SIGTERM": (
        "a traceback; −15 of one process, 0 of several",
        _tested("tests/serving/gateway/test_processes.py"),
    ),
    "a key where the name of its variable belongs; line breaks in base_url": (
        "echoed; accepted",
        _tested("tests/serving/test_models_file.py", "tests/cli/test_cli_serve.py"),
    ),
    "gzip in a stream": ('"breaks off"', _tested("tests/serving/gateway/test_hostile_upstreams.py")),
    "modes of logs and sheets; ESC in sheets and reports": (
        "0644; raw",
        _tested("tests/serving/test_call_log.py", "tests/logs/test_label_sheet.py", "tests/cli/test_printing.py"),
    ),
    'ladders of 120,000 rungs, of "models": [] and ["../x"]': (
        "minutes; accepted",
        _tested("tests/policy/test_ladder.py"),
    ),
    "Parquet of 1 MB with 60 million rows, of 14 kB with a text of 400 MB; 400 models": (
        "over 5 GB; over a minute",
        _tested("tests/logs/test_hostile_tables.py", "tests/cli/test_plausible.py"),
    ),
}


def play() -> list[str]:
    """Do all of it, and print a Markdown table; what did not hold, a line each."""
    print("\n| attack | before | now | held |\n|---|---|---|---|")
    misses = []
    for name, (before, attack) in BULLETS.items():
        figure, holds = attack()
        print(f"| {name} | {before} | {figure} | {'yes' if holds else 'no'} |", flush=True)
        misses += [] if holds else [f"{name}: {figure}"]
    return misses
