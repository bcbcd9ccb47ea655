"""Memory and open files of `rcjax serve` at the highest rate that it holds, for a while.

A policy with a call log; answers whole and in pieces, and clients that leave before theirs is there.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.gateway.load import Load
from benchmarks.gateway.servers import Server, open_files, rcjax, resident, upstream

_WIDTH = 200  # in flight, of the 256 that the gateway takes: those whose client left are still being cleared away
_DELAY = 0.05  # seconds of the model, in the mean: time to leave in
_STREAMED, _LEFT = 0.4, 0.1
_BEGINNING = 0.25  # of the time, in which caches fill; not part of the slope


@dataclass(frozen=True, slots=True)
class Look:
    """The gateway at one moment."""

    seconds: float
    memory: float
    """Megabytes."""
    files: float


def watch(server: Server, seconds: float) -> tuple[list[Look], dict[str, Any]]:
    """(what was seen every second, what the clients tell)."""
    load = Load(server.port, server.model, _WIDTH, seconds, _DELAY, streamed=_STREAMED, left=_LEFT)
    words = [sys.executable, "-m", "benchmarks.gateway.load", load.to_json()]
    start, looks = time.monotonic(), []
    with subprocess.Popen(words, stdout=subprocess.PIPE) as clients:
        while (now := time.monotonic() - start) < seconds:
            looks.append(Look(now, resident(server.pid) / 1e6, open_files(server.pid)))
            time.sleep(1.0)
        told = json.loads(clients.communicate()[0])
    return looks, told


def slope(looks: list[Look], what: str) -> float:
    """By how much it grows in ten minutes, by least squares."""
    times = [look.seconds for look in looks]
    return 600 * statistics.linear_regression(times, [getattr(look, what) for look in looks]).slope


def run(folder: Path, seconds: float) -> None:
    """Watch, and print the table."""
    with upstream(folder) as model, rcjax(folder / "soak", model, ["large"], judged=True, logged=True) as server:
        looks, told = watch(server, seconds)
        time.sleep(2.0)
        after = Look(seconds, resident(server.pid) / 1e6, open_files(server.pid))
        with (folder / "soak" / "calls.jsonl").open("rb") as lines:
            logged = sum(1 for _ in lines)
    late = [look for look in looks if look.seconds >= _BEGINNING * seconds] or looks
    rate = f"{told['requests'] / told['seconds']:,.0f}"
    print(f"{rate} answers per second for {told['seconds']:.0f} s, {_WIDTH} in flight, {_STREAMED:.0%} in pieces.")
    print(
        f"{told['left']:,} clients left; {sum(told['errors'].values())} requests failed; {logged:,} calls are logged."
    )
    print("\n| | after a quarter | at the end | clients gone | slope, per 10 minutes |\n|---|--:|--:|--:|--:|")
    for what, name in (("memory", "memory, MB"), ("files", "open files")):
        values = [getattr(look, what) for look in (late[0], late[-1], after)]
        print(f"| {name} |" + "".join(f" {value:,.0f} |" for value in values) + f" {slope(late, what):+.1f} |")
    what = f"`rcjax serve` at {rate} requests per second, growth in 10 minutes: memory; open files"
    record.headline(what, f"{slope(late, 'memory'):+.1f} MB; {slope(late, 'files'):+.1f}".replace("-", "−"))
