"""What `rcjax serve` adds to a call: milliseconds, and requests per second and core, beside LiteLLM's proxy.

    RCJAX_LITELLM=…/bin/litellm python -m benchmarks.gateway [--seconds 10] [--rounds 3]
    python -m benchmarks.gateway --soak 600

The model answers alike, at once or between 0.25 and 0.75 seconds after it was asked; it and the clients are processes
of their own, on loopback. First so many requests are in flight to a model that takes its time: of each answer, the
milliseconds that it came later than the model's own time. Then 64 are in flight to a model that takes none: requests
per second, and per second of CPU, user's and system's, that the gateway used: the same on a busy machine. The servers
take turns, in rounds; medians count. LiteLLM's proxy is at its cheapest (one worker, no logging, no key), and left out
where RCJAX_LITELLM names none. `--soak` looks at memory and open files instead. Linux; needs
`pip install 'rcjax[serve]'`. Prints Markdown tables.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.gateway import servers, soak
from benchmarks.gateway.load import Load
from benchmarks.gateway.servers import Server

_WIDTHS = (1, 64, 256)
_DELAY = 0.5  # seconds of the model, in the mean
_FULL = 64  # in flight, where the model takes no time
_MODEL, _POLICY = "`rcjax serve`, a model", "`rcjax serve`, a policy of one, logged"
_LITELLM = "LiteLLM, a model"
_PACKAGES = ("openai", "aiohttp", "uvicorn", "uvloop", "starlette")


@dataclass(frozen=True, slots=True)
class Wait:
    """Milliseconds by which answers came later than by the model's own time."""

    half: float
    most: float
    """Of 99 in 100."""
    rate: float
    """Requests per second meanwhile."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How much a server does when it has no time left."""

    requests: float
    """Per second."""
    per_core: float
    """Per second of CPU that it used."""


def send(load: Load) -> dict[str, Any]:
    """Send requests, by a process of its own; what went wrong is printed."""
    words = [sys.executable, "-m", "benchmarks.gateway.load", load.to_json()]
    told = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    if told["errors"]:
        print(f"not all requests got an answer, but {told['errors']}: {load.to_json()}\n")
    return told


def wait(server: Server, width: int, seconds: float) -> Wait:
    """How much later answers come, with so many in flight."""
    patience = seconds * (3 if width == 1 else 1)  # there are few
    told = send(Load(server.port, server.model, width, patience, _DELAY, server.calls))
    added = sorted(told["added"])
    return Wait(statistics.median(added), added[int(0.99 * len(added))], len(added) / told["seconds"])


def rate(server: Server, seconds: float, *, logprobs: bool) -> Rate:
    """How many requests a server answers."""
    busy = server.busy()
    told = send(Load(server.port, server.model, _FULL, seconds, logprobs=logprobs))
    return Rate(told["requests"] / told["seconds"], told["requests"] / max(server.busy() - busy, 0.01))


def medians(rows: list[Any]) -> Any:
    """The median of each field."""
    kind = type(rows[0])
    return kind(*(statistics.median(getattr(row, name) for row in rows) for name in kind.__slots__))


def measure(everything: Mapping[str, Server], seconds: float, rounds: int) -> tuple[dict[Any, Wait], dict[Any, Rate]]:
    """(waits by server and width, rates by server and whether clients ask for log-probabilities)."""
    waits, rates = defaultdict[Any, list[Wait]](list), defaultdict[Any, list[Rate]](list)
    for server in everything.values():
        send(Load(server.port, server.model, _FULL, 2.0))  # connections are made, code is loaded
    for _ in range(rounds):
        for width in _WIDTHS:
            for name, server in everything.items():
                waits[name, width].append(wait(server, width, seconds))
        for logprobs in (False, True):
            for name, server in everything.items():
                rates[name, logprobs].append(rate(server, seconds, logprobs=logprobs))
    return {at: medians(rows) for at, rows in waits.items()}, {at: medians(rows) for at, rows in rates.items()}


def show_waits(waits: Mapping[Any, Wait]) -> None:
    """The table of milliseconds."""
    print(f"Milliseconds added, the model taking {1e3 * _DELAY:.0f} ms:\n")
    print("| |" + "".join(f" {width} in flight: p50 | p99 | requests/s |" for width in _WIDTHS))
    print("|---|" + "--:|--:|--:|" * len(_WIDTHS))
    for name in dict.fromkeys(name for name, _ in waits):
        row = [waits[name, width] for width in _WIDTHS]
        print(f"| {name} |" + "".join(f" {one.half:.1f} | {one.most:.1f} | {one.rate:.0f} |" for one in row))


def show_rates(rates: Mapping[Any, Rate], everything: Mapping[str, Server]) -> None:
    """The table of requests per second."""
    print(f"\n{_FULL} in flight, the model taking no time; then the same where clients ask for log-probabilities:\n")
    title = " requests/s | per core-second | ms of CPU |"
    print(f"| | calls |{2 * title}\n|---|--:|{2 * '--:|--:|--:|'}")
    for name, server in everything.items():
        row = [rates[name, logprobs] for logprobs in (False, True)]
        cells = "".join(f" {one.requests:,.0f} | {one.per_core:,.0f} | {1e3 / one.per_core:.2f} |" for one in row)
        print(f"| {name} | {server.calls} |{cells}")


def show_headlines(waits: Mapping[Any, Wait], rates: Mapping[Any, Rate], *, busy: bool) -> None:
    """What the page of figures shows; `busy` where other programs were at work."""
    where = ", on a machine busy with other work" if busy else ""
    wait, rate = waits[_POLICY, 64], rates[_POLICY, False]
    record.headline(
        f"a policy of one model by `rcjax serve`, logged: milliseconds added to a call, 64 in flight{where}: p50; p99",
        f"{wait.half:.1f}; {wait.most:.1f}",
    )
    record.headline(
        "the same, the model taking no time: requests per second; per second of CPU",
        f"{rate.requests:,.0f}; {rate.per_core:,.0f}",
    )
    if (_LITELLM, False) not in rates:
        return
    ours, other = rates[_MODEL, False], rates[_LITELLM, False]
    record.headline(
        f"one model by `rcjax serve` over the same by LiteLLM {servers.litellm_version()}: both",
        f"{ours.requests / other.requests:.1f}; {ours.per_core / other.per_core:.1f}",
    )


def main() -> None:
    """Measure, and print the tables."""
    options = record.parser(__doc__)
    options.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    options.add_argument("--rounds", type=int, default=3, help="medians of so many")
    options.add_argument("--soak", type=float, metavar="SECONDS", help="look at memory and open files for so long")
    chosen = options.parse_args()
    busy = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        if chosen.soak:
            soak.run(Path(folder), chosen.soak)
            return
        with servers.everything(Path(folder)) as everything:
            waits, rates = measure(everything, chosen.seconds, chosen.rounds)
            show_waits(waits)
            show_rates(rates, everything)
    versions = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    print(f"\nLiteLLM {servers.litellm_version() or 'is not there: name it by RCJAX_LITELLM'}; {versions}.")
    print(f"When it began, {busy:.1f} other processes wanted to run (the load average of a minute).")
    show_headlines(waits, rates, busy=busy > 1)


if __name__ == "__main__":
    record.run(main)
