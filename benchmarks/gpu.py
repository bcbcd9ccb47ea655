"""On a GPU: sweeps and their stages, many λ at once, one frontier and the chain of steps it waits for, `solve`.

    python -m benchmarks.gpu --record       # every figure of benchmarks/results/gpu.md, in at most five minutes
    python -m benchmarks.gpu --small        # the same on whatever there is, in small

Each figure is from a process of its own, on the accelerator or, for comparison, on the CPU cores of the same machine. A
problem is a log of five models, or a bootstrap replicate of it, fitted and solved for all λ, each the best of 31
cascades. Stages are timed by waiting for each: a sweep itself does not.
"""

import dataclasses
import multiprocessing
import os
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rcjax
from benchmarks import record
from benchmarks.chains import loops
from benchmarks.race.cells import at_once
from benchmarks.sweeps import synthetic
from benchmarks.timing import timed
from rcjax._core import beta
from rcjax.solving import at_lambda, bellman
from rcjax.solving.paths import plan_cascades
from rcjax.sweeps import engines

PATIENCE = 3.0


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is done: on a GPU, and in small."""

    logs: int = 400
    queries: int = 300
    replicates: int = 19
    lam: int = 50
    steady: int = 1000  # logs of a sweep that is long enough to have a steady rate
    prices: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    slow_prices: tuple[int, ...] = (10_000,)  # on the CPU
    one: int = 100  # λ of one frontier
    cascades: Any = "all"


SMALL = Sizes(3, 60, 1, 4, 4, (100,), (100,), 4, "full")


def begin(platform: str, float64: bool = True, cache: str | None = None) -> None:
    """Choose what JAX runs on; before it does anything."""
    if platform == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
    jax.config.update("jax_enable_x64", float64)
    if cache is not None:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def sweep(platform: str, sizes: Sizes, logs: int, float64: bool, cache: str | None) -> dict[str, Any]:
    """Seconds until the first batch is written, of all, and the same again once everything is compiled; stages.

    `host` are seconds of the CPU in all threads; on an accelerator these are Python, transfers, tables and files.
    """
    begin(platform, float64, cache)
    inputs = synthetic(logs, sizes.queries)

    def swept() -> dict[str, float]:
        started, times = time.perf_counter(), []
        with tempfile.TemporaryDirectory() as folder:
            rcjax.sweeps.sweep(
                inputs,
                folder,
                cascades=sizes.cascades,
                lam=sizes.lam,
                replicates=sizes.replicates,
                progress=lambda done, _: times.append((time.perf_counter() - started, done)),
            )
        first, last = times[min(1, len(times) - 1)], times[-1]
        steady = (last[1] - first[1]) / (last[0] - first[0]) if last[1] > first[1] else last[1] / last[0]
        return {"first": first[0], "seconds": last[0], "rate": last[1] / last[0], "steady": steady}

    cold, warm = swept(), swept()
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    swept()
    after = resource.getrusage(resource.RUSAGE_SELF)
    host = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    with Stages() as stages:
        whole = swept()["seconds"]
    rest = whole - sum(stages.seconds.values())
    return {"cold": cold, "warm": warm, "host": host, "stages": dict(stages.seconds), "rest": rest}


class Stages:
    """Within the block every program of a sweep is waited for, and its seconds are counted by its function."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def __enter__(self) -> "Stages":
        self.usual = engines._program

        def program(function: Callable[..., Any], *args: Any, **options: Any) -> Callable[..., Any]:
            run = self.usual(function, *args, **options)

            def timed_run(*arrays: Any) -> Any:
                jax.block_until_ready(arrays)
                started = time.perf_counter()
                result = jax.block_until_ready(run(*arrays))
                self.seconds[function.__name__] += time.perf_counter() - started
                return result

            return timed_run

        engines._program = program  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        engines._program = self.usual


def many_prices(platform: str, count: int, dtype: str) -> float:
    """Seconds for so many λ, of the full cascade of five models, a hundred for each of many fitted models."""
    begin(platform)
    return at_once(count, dtype, 100 if platform != "cpu" else 1)["run, s"]  # type: ignore[arg-type]


def one_frontier(platform: str, sizes: Sizes, float64: bool) -> dict[str, Any]:
    """One frontier: seconds to compile and to run, and its loss at every λ."""
    begin(platform, float64)
    model, lam = rcjax.demo_model(), _prices(sizes)
    compiling, running, frontier = timed(
        lambda: rcjax.solve_frontier(model, lam=lam, cascades=sizes.cascades), PATIENCE
    )
    loss = np.asarray(frontier.error, float) + np.asarray(frontier.lam, float) * np.asarray(frontier.cost, float)
    return {"compile": compiling, "run": running, "loss": loss}


def chain(sizes: Sizes) -> dict[str, dict[str, int]]:
    """The turns of the loops of each program of one frontier, all λ at a time as on an accelerator; on the CPU."""
    begin("cpu")
    model, lam = rcjax.demo_model(), _prices(sizes)
    plan = plan_cascades(model, sizes.cascades)
    assert plan is not None
    bellman._together = lambda count, most: count
    beta._unrolled = lambda: beta.UNROLLED
    fitted = model.marginals, model.copulas, model.cost
    tables = at_lambda.lay_out(*fitted, plan.pairs)
    optima = at_lambda.optimise(tables, jnp.asarray(lam), plan, "exact")
    return {
        "tables": loops(lambda fitted: at_lambda.lay_out(*fitted, plan.pairs), fitted),
        "search": loops(lambda tables, lam: at_lambda.optimise(tables, lam, plan, "exact"), tables, lam),
        "thresholds": loops(lambda tables, optima: at_lambda.points_at(tables, optima, plan, "exact"), tables, optima),
    }


def solution(platform: str, sizes: Sizes) -> dict[str, float]:
    """`solve`, and the slopes of ten errors by all costs: seconds to compile and to run."""
    begin(platform)
    model, lam = rcjax.demo_model(), _prices(sizes)

    def errors(cost: jax.Array) -> jax.Array:
        return rcjax.solving.solve(dataclasses.replace(model, cost=cost), lam[::10], sizes.cascades).error  # type: ignore[arg-type]

    compiling, running, _ = timed(lambda: rcjax.solving.solve(model, lam, sizes.cascades), PATIENCE)  # type: ignore[arg-type]
    slope = jax.jit(jax.jacrev(errors))
    compiling_slopes, slopes, _ = timed(lambda: slope(model.cost), PATIENCE)
    return {"compile": compiling, "run": running, "slopes, compile": compiling_slopes, "slopes, run": slopes}


def _prices(sizes: Sizes) -> np.ndarray:
    return np.geomspace(1e-3, 1.0, sizes.one) / float(rcjax.demo_model().cost[-1])


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def show_sweeps(sizes: Sizes, platform: str, cache: str) -> None:
    """Sweeps of the same problems on the accelerator, in both precisions, and on the CPU; where their seconds go."""
    problems = sizes.logs * (sizes.replicates + 1)
    print(f"A sweep of {problems:,} problems, {sizes.lam} λ each:\n")
    print("| on | first batch, programs to compile | compiled | all, compiled | problems a second | host CPU |")
    print("|---|--:|--:|--:|--:|--:|")
    cores = f"{len(os.sched_getaffinity(0))} CPU cores"
    rows = [(f"{platform}, float64", platform, True), (f"{platform}, float32", platform, False), (cores, "cpu", True)]
    stages = {}
    for name, where, float64 in rows:
        swept = alone(sweep, where, sizes, sizes.logs, float64, cache)
        cold, warm, stages[name] = swept["cold"], swept["warm"], (swept["stages"], swept["rest"])
        print(
            f"| {name} | {cold['first']:.1f} s | {warm['first']:.1f} s | {warm['seconds']:.1f} s | "
            f"{warm['rate']:,.0f} | {swept['host']:.1f} s |",
            flush=True,
        )
        record.headline(
            f"a sweep of {problems * sizes.lam:,} frontier points: {name}",
            f"{warm['seconds']:.1f} s, {warm['rate']:,.0f} problems per second",
        )
    again = alone(sweep, platform, sizes, sizes.steady, True, cache)
    count = sizes.steady * (sizes.replicates + 1)
    print(
        f"\n{count:,} problems: {again['warm']['steady']:,.0f} a second from the second batch on; the first batch of a"
    )
    print(f"process that finds its programs in JAX's cache after {again['cold']['first']:.1f} s.\n")
    names = list(stages[rows[0][0]][0])
    print("Seconds by stage, each waited for; the rest is Python, Parquet and transfers:\n")
    print(f"| on | {' | '.join(names)} | rest |\n|---|{'--:|' * (len(names) + 1)}")
    for name, (seconds, rest) in stages.items():
        print(f"| {name} | {' | '.join(f'{seconds.get(stage, 0):.2f}' for stage in names)} | {rest:.2f} |")


def show_prices(sizes: Sizes, platform: str) -> None:
    """Many λ at once."""
    print("\n| λ at once, full cascade of five models | float64 | float32 | CPU, float64 |\n|--:|--:|--:|--:|")
    for count in sizes.prices:
        wide, single = (alone(many_prices, platform, count, dtype) for dtype in ("float64", "float32"))
        slow = f"{alone(many_prices, 'cpu', count, 'float64'):.3f} s" if count in sizes.slow_prices else "–"
        print(f"| {count:,} | {wide:.3f} s | {single:.3f} s | {slow} |", flush=True)
        if count == sizes.prices[-1]:
            record.headline(f"{count:,} λ at once: float64; float32", f"{wide:.2f} s; {single:.2f} s")


def show_one(sizes: Sizes, platform: str) -> None:
    """One frontier, how long its chain is, and how far the devices are from one another; `solve`."""
    runs = [(platform, True), (platform, False), ("cpu", True)]
    exact, single, cpu = (alone(one_frontier, where, sizes, float64) for where, float64 in runs)
    figure = f"{1000 * exact['run']:.0f} ms; {1000 * cpu['run']:.0f} ms"
    record.headline(f"one frontier of {sizes.one} λ, compiled: {platform}; CPU", figure)
    to_cpu, to_wide = (np.abs(one["loss"] - exact["loss"]).max() for one in (cpu, single))
    print(f"\nOne frontier of {sizes.one} λ, compiled: {platform}; CPU: {figure}; to compile {exact['compile']:.1f} s.")
    print(f"Error + λ·cost is at most {to_cpu:.0e} from the CPU's, float32's {to_wide:.0e} from float64's.\n")
    print("Turns of its loops, which wait for one another:\n\n| program | loops | turns |\n|---|---|--:|")
    for program, counts in alone(chain, sizes).items():
        for path, turns in sorted(counts.items(), key=lambda item: -item[1]):
            print(f"| {program} | {path} | {turns:,} |")
    solved = {name: f"{seconds:.3f} s" for name, seconds in alone(solution, platform, sizes).items()}
    print(f"\n`rcjax.solving.solve` of {sizes.one} λ: {solved['compile']} to compile, then {solved['run']};")
    print(f"slopes of every tenth's error by all costs: {solved['slopes, compile']}, then {solved['slopes, run']}.")


def main() -> None:
    """All of it."""
    parser = record.parser(__doc__)
    parser.add_argument("--small", action="store_true", help="a few problems, on whatever there is")
    sizes = SMALL if parser.parse_args().small else Sizes()
    platform = alone(jax.default_backend)
    if platform == "cpu" and sizes is not SMALL:
        raise SystemExit("JAX has no accelerator here: install jax[cuda13] where there is one, or give --small")
    with tempfile.TemporaryDirectory() as cache:
        show_sweeps(sizes, platform, cache)
    show_prices(sizes, platform)
    show_one(sizes, platform)


if __name__ == "__main__":
    record.run(main)
