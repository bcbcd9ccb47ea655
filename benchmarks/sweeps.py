"""Sweeps: problems per second against a loop of `fit` and `solve_frontier`, over devices, and through kills.

    python -m benchmarks.sweeps                      # 1,000 logs, 20 replicates each, 50 λ, 31 cascades
    python -m benchmarks.sweeps --scaling            # 1, 2, 4 and 8 CPU devices
    python -m benchmarks.sweeps --kills 20           # SIGKILL at random, going on each time

Logs are synthetic, of five models. A problem is one log or replicate, fitted and solved for all λ; a loop does the same
in Python, one after the other, without the intervals or anything else. Each figure is from a process of its own; rates
are those after the first two batches, when everything is compiled. Prints Markdown tables.
"""

import multiprocessing
import random
import resource
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import polars as pl

import rcjax
from benchmarks import record
from benchmarks.timing import alone
from rcjax.cli.app import start_jax

CASCADES = 31


def synthetic(count: int, queries: int) -> dict[str, rcjax.Log]:
    """Logs by name, each of other queries."""
    everything = rcjax.sample_log(count * queries, seed=0)
    return {f"log{i:04d}": everything.take(slice(i * queries, (i + 1) * queries)) for i in range(count)}


def sweep_rate(options: dict[str, Any], devices: int, logs: int) -> dict[str, float]:
    """Seconds to read and compile, problems per second from then on, peak memory; of a sweep."""
    start_jax(cpu_devices=devices, float64=not options["float32"], long=True)
    found = synthetic(logs, options["queries"])
    seen: list[tuple[float, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        rcjax.tuning.sweeps.sweep(
            found,
            folder,
            lam=options["lam"],
            replicates=options["replicates"],
            batch=options["batch"],
            panels=options["panels"],
            progress=lambda done, _: seen.append((time.perf_counter() - started, done)),
        )
        points = (
            rcjax.tuning.sweeps.Sweep(Path(folder))
            .points.select(pl.len(), (pl.col("status") < 3).sum())
            .collect()
            .row(0)
        )
    (warm, first), (end, last) = seen[min(2, len(seen) - 2)], seen[-1]
    rate = (last - first) / (end - warm)
    return {"seconds": end, "first": seen[1][0], "rate": rate, "points": points[0], "solved": points[1], **_memory()}


def loop_rate(options: dict[str, Any], problems: int) -> dict[str, float]:
    """Problems per second of `fit` and `solve_frontier` in a loop, of `solve_frontier` alone, and peak memory."""
    start_jax(float64=not options["float32"], long=True)
    log = rcjax.sample_log(options["queries"], seed=0)
    draws = np.random.default_rng(0).integers(0, log.n_queries, (problems + 2, log.n_queries))
    lam = np.geomspace(1e-3, 10.0, options["lam"]) / float(log.cost[-1])
    times = np.zeros(2)
    for number, draw in enumerate(draws):
        started = time.perf_counter()
        model = jax.block_until_ready(rcjax.fit(log.take(draw)))
        fitted = time.perf_counter()
        jax.block_until_ready(rcjax.solve_frontier(model, lam=lam).error)
        if number >= 2:
            times += fitted - started, time.perf_counter() - fitted
    return {"rate": problems / times.sum(), "solve": problems / times[1], **_memory()}


def _memory():
    return {"gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def compare(options: dict[str, Any]) -> None:
    """The sweep against the loop."""
    swept = alone(sweep_rate, options, options["devices"], options["logs"])
    loop = alone(loop_rate, options, options["loop"])
    print("| | problems per second | frontier points per second | peak memory, GiB |\n|---|--:|--:|--:|")
    for name, row in (("`rcjax.tuning.sweeps.sweep`", swept), ("loop of `fit` and `solve_frontier`", loop)):
        print(f"| {name} | {row['rate']:.1f} | {row['rate'] * options['lam']:,.0f} | {row['gigabytes']:.2f} |")
    told = f"a sweep of {swept['points']:,.0f} frontier points, {options['devices']} devices"
    figure = f"{swept['seconds']:.0f} s; {swept['rate'] / loop['rate']:.1f} times as fast as a loop"
    record.headline(told, figure)
    print(f"\nRatio {swept['rate'] / loop['rate']:.1f}; to solving alone {swept['rate'] / loop['solve']:.1f}.")
    print(
        f"{swept['points']:,.0f} points ({swept['solved']:,.0f} solved), each the best of {CASCADES} cascades, in "
        f"{swept['seconds']:.0f} s, the first batch after {swept['first']:.0f} s; {options['devices']} devices."
    )


def scaling(options: dict[str, Any]) -> None:
    """The same work per device on more and more virtual devices of one machine."""
    print("| devices | problems per second | share of the rate on the first line |\n|--:|--:|--:|")
    base = None
    for devices in (1, 2, 4, 8):
        batches = 8
        size = options | {"batch": options["per_device"] * devices}
        logs = batches * size["batch"] // (options["replicates"] + 1)
        rate = alone(sweep_rate, size, devices, logs)["rate"]
        base = base or rate
        print(f"| {devices} | {rate:.1f} | {rate / base:.2f} |", flush=True)


def small_sweep(folder: str) -> None:
    """A sweep of some seconds, of many batches."""
    start_jax(cpu_devices=1, long=True)
    rcjax.tuning.sweeps.sweep(synthetic(12, 60), folder, cascades=["full", "labels"], lam=5, replicates=9, batch=10)


def kills(count: int) -> None:
    """Kill a sweep so many times, at random; it must find what one that was left alone does, to the byte."""
    spawn, dice = multiprocessing.get_context("spawn"), random.Random(0)
    with tempfile.TemporaryDirectory() as own, tempfile.TemporaryDirectory() as other:
        alone(small_sweep, own)
        parts, began = len(list(Path(own).glob("parts/*.parquet"))), []
        for number in range(count):
            process = spawn.Process(target=small_sweep, args=(other,))
            process.start()
            target = number * parts // count
            while process.is_alive() and len(list(Path(other).glob("parts/*.parquet"))) < target:
                time.sleep(0.001)
            time.sleep(dice.uniform(0.0, 0.3 if target else 5.0))
            process.kill()
            process.join()
            began.append((len(list(Path(other).glob("parts/*.parquet"))), process.exitcode == -signal.SIGKILL))
        alone(small_sweep, other)
        same = all(
            (Path(other) / path.relative_to(own)).read_bytes() == path.read_bytes()
            for kind in ("parts", "fits")
            for path in Path(own).glob(f"{kind}/*.parquet")
        )
        killed = sum(hit for _, hit in began)
        print(f"{killed} kills at {[done for done, _ in began]} of {parts} parts done; the same bytes: {same}")


def main() -> None:
    """One of the three."""
    parser = record.parser(__doc__)
    sizes = {"logs": 1000, "queries": 300, "replicates": 19, "lam": 50, "batch": 256, "panels": 9, "loop": 50}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--devices", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--per-device", type=int, default=40)
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--kills", type=int, default=0)
    options = vars(parser.parse_args())
    if options["kills"]:
        kills(options["kills"])
    elif options["scaling"]:
        scaling(options)
    else:
        compare(options)


if __name__ == "__main__":
    record.run(main)
