"""Speed on a GPU: sweeps and their stages, many λ at once, one frontier and its chain of steps, `solve`.

    python -m benchmarks.gpu --record       # every figure of benchmarks/results/gpu.md, in at most five minutes
    python -m benchmarks.gpu --small        # the same on whatever there is, in small

Each figure is from a process of its own, on the accelerator or, for comparison, on the CPU cores of the same machine. A
problem is a log of five models, or a bootstrap replicate of it, fitted and solved for all λ, each the best of 31
cascades. A stage is timed by waiting for its result, which a sweep does not do.

Parts that fail or take too long are named at the end, after the figures of the others: `--only PART …` repeats them.
Standard error has the time of each process.
"""

import dataclasses
import os
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rcjax
from benchmarks import record
from benchmarks.chains import loops
from benchmarks.race.cells import solved_at_once
from benchmarks.sweeps import synthetic
from benchmarks.timing import alone, timed
from rcjax._core import numerics
from rcjax.solving import bellman, optimum
from rcjax.solving.bellman import SearchTables, plan_cascades
from rcjax.tuning.sweeps import engines

PATIENCE = 1.0  # seconds in which a median is taken


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is done: on a GPU, and in small."""

    logs: int = 400
    cpu_logs: int = 100  # the CPU's rate is the same after so many
    steady: int = 1000  # logs of a sweep that is long enough to have a steady rate
    queries: int = 300
    replicates: int = 19
    lam: int = 50
    prices: tuple[int, ...] = (100_000, 1_000_000)
    cpu_prices: tuple[int, ...] = (10_000,)
    one: int = 100  # λ of one frontier
    cascades: Any = "all"
    most: float = 150.0  # seconds that one process may take
    in_all: float = 300.0  # and all together


SMALL = Sizes(4, 4, 4, 60, 1, 4, (100,), (100,), 4, "full", 1e6, 1e6)


class Attempts:
    """Functions in processes of their own, of which one that fails leaves the others' figures."""

    def __init__(self, sizes: Sizes) -> None:
        self.failures: list[str] = []
        self.most, self.in_all, self.started = sizes.most, sizes.in_all, time.monotonic()

    def __call__(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function returns; None where it does not."""
        before = time.monotonic()
        left = self.started + self.in_all - before
        try:
            if left <= 0:
                raise TimeoutError(f"not begun: {self.in_all:.0f} seconds are over")
            return alone(function, *arguments, patience=min(self.most, left))
        except Exception as problem:
            self.failures.append(f"{what}: {type(problem).__name__}: {' '.join(str(problem).split())}")
            return None
        finally:
            print(f"{what}: {time.monotonic() - before:.0f} s", file=sys.stderr, flush=True)


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


def swept(inputs: dict[str, rcjax.Log], sizes: Sizes) -> dict[str, float]:
    """A sweep: seconds until the first batch is written and of all, problems a second of all and after the first batch.

    `host` are seconds of the CPU in all threads; on an accelerator these are Python, transfers, tables and files.
    """
    before, started, times = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        rcjax.tuning.sweeps.sweep(
            inputs,
            folder,
            cascades=sizes.cascades,
            lam=sizes.lam,
            replicates=sizes.replicates,
            progress=lambda done, _: times.append((time.perf_counter() - started, done)),
        )
    after = resource.getrusage(resource.RUSAGE_SELF)
    host = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    (first, some), (seconds, all_) = times[1], times[-1]
    steady = (all_ - some) / (seconds - first) if all_ > some else all_ / seconds
    return {"first": first, "seconds": seconds, "rate": all_ / seconds, "steady": steady, "host": host}


def sweep(platform: str, sizes: Sizes, float64: bool, cache: str | None) -> dict[str, Any]:
    """A sweep with programs to compile, the same again, and its stages, each waited for."""
    begin(platform, float64, cache)
    inputs = synthetic(sizes.cpu_logs if platform == "cpu" else sizes.logs, sizes.queries)
    cold, warm = swept(inputs, sizes), swept(inputs, sizes)
    with Stages() as stages:
        whole = swept(inputs, sizes)["seconds"]
    seconds = {**stages.seconds, "rest": whole - sum(stages.seconds.values())}
    return {"problems": len(inputs) * (sizes.replicates + 1), "cold": cold, "warm": warm, "stages": seconds}


def long_sweep(platform: str, sizes: Sizes, cache: str) -> dict[str, float]:
    """A sweep of several batches that finds its programs in JAX's cache."""
    begin(platform, True, cache)
    return swept(synthetic(sizes.steady, sizes.queries), sizes)


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

            timed_run.trace = getattr(run, "trace", None)  # type: ignore[attr-defined]
            return timed_run

        engines._program = program  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        engines._program = self.usual


def many_prices(platform: str, counts: tuple[int, ...], float64: bool) -> dict[int, float]:
    """Seconds for so many λ, of the full cascade of five models, a hundred for each of many fitted models."""
    begin(platform, float64)
    batch, model = 100 if platform != "cpu" else 1, rcjax.demo_model()
    return {count: solved_at_once(model, count, batch)["run, s"] for count in counts}


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
    plan = plan_cascades(model.models, sizes.cascades)
    assert plan is not None
    bellman.batch_size = lambda count, most: count
    numerics.unrolled_terms = lambda: numerics.UNROLLED
    fitted = model.marginals, model.copulas, model.cost
    tables = optimum.build_pair_tables(*fitted, plan.pairs)
    search = SearchTables(tables, plan)
    optima = optimum.optimise(search, jnp.asarray(lam))
    return {
        "tables": loops(lambda fitted: optimum.build_pair_tables(*fitted, plan.pairs), fitted),
        "search": loops(optimum.optimise, search, lam),
        "thresholds": loops(optimum.points_at, search, optima),
    }


def solve_and_slopes(platform: str, sizes: Sizes) -> dict[str, float]:
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


def show_sweeps(sizes: Sizes, platform: str, attempt: Attempts) -> None:
    """Sweeps of the same problems on the accelerator, in both precisions, and on the CPU; where their seconds go."""
    print(f"Sweeps, {sizes.lam} λ for each problem:\n")
    print("| on | problems | first batch, programs to compile | compiled | all, compiled | a second | host CPU |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    cores = f"{len(os.sched_getaffinity(0))} CPU cores"
    rows = [(f"{platform}, float64", platform, True), (cores, "cpu", True), (f"{platform}, float32", platform, False)]
    stages = {}
    with tempfile.TemporaryDirectory() as cache:
        for name, where, float64 in rows:
            result = attempt(f"a sweep, {name}", sweep, where, sizes, float64, cache)
            if result is None:
                continue
            cold, warm, stages[name] = result["cold"], result["warm"], result["stages"]
            print(
                f"| {name} | {result['problems']:,} | {cold['first']:.1f} s | {warm['first']:.1f} s | "
                f"{warm['seconds']:.1f} s | {warm['rate']:,.0f} | {warm['host']:.1f} s |",
                flush=True,
            )
            record.headline(
                f"a sweep of {result['problems'] * sizes.lam:,} frontier points: {name}",
                f"{warm['seconds']:.1f} s, {warm['rate']:,.0f} problems per second",
            )
        again = attempt("a long sweep", long_sweep, platform, sizes, cache)
    if again is not None:
        count = sizes.steady * (sizes.replicates + 1)
        print(f"\n{count:,} problems: {again['steady']:,.0f} a second from the second batch on; the first batch of a")
        print(f"process that finds its programs in JAX's cache after {again['first']:.1f} s.")
    names = list(dict.fromkeys(stage for seconds in stages.values() for stage in seconds))
    print("\nSeconds by stage, each waited for; the rest is Python, Parquet and transfers:\n")
    print(f"| on | {' | '.join(names)} |\n|---|{'--:|' * len(names)}")
    for name, seconds in stages.items():
        print(f"| {name} | {' | '.join(f'{seconds.get(stage, 0):.2f}' for stage in names)} |", flush=True)


def show_prices(sizes: Sizes, platform: str, attempt: Attempts) -> None:
    """Many λ at once."""
    runs = {
        f"{platform}, float64": (platform, sizes.prices, True),
        f"{platform}, float32": (platform, sizes.prices, False),
        "CPU, float64": ("cpu", sizes.cpu_prices, True),
    }
    columns = {name: attempt(f"many λ, {name}", many_prices, *run) or {} for name, run in runs.items()}
    print(f"\n| λ at once, full cascade of five models | {' | '.join(columns)} |\n|--:|{'--:|' * len(columns)}")
    for count in sorted({*sizes.prices, *sizes.cpu_prices}):
        cells = (f"{column[count]:.3f} s" if count in column else "–" for column in columns.values())
        print(f"| {count:,} | {' | '.join(cells)} |", flush=True)
    wide, single, _ = (column.get(sizes.prices[-1]) for column in columns.values())
    if wide and single:
        record.headline(f"{sizes.prices[-1]:,} λ at once: float64; float32", f"{wide:.2f} s; {single:.2f} s")


def show_one(sizes: Sizes, platform: str, attempt: Attempts) -> None:
    """One frontier, and how far the devices are from one another."""
    runs = {"float64": (platform, True), "CPU": ("cpu", True), "float32": (platform, False)}
    frontiers = {
        name: attempt(f"one frontier, {name}", one_frontier, where, sizes, float64)
        for name, (where, float64) in runs.items()
    }
    print(f"\n| one frontier of {sizes.one} λ, on {platform} and the CPU | to compile | then |\n|---|--:|--:|")
    for name, one in frontiers.items():
        if one is not None:
            print(f"| {name} | {one['compile']:.1f} s | {1000 * one['run']:.0f} ms |", flush=True)
    exact, cpu, single = frontiers.values()
    if exact is not None and cpu is not None:
        figure = f"{1000 * exact['run']:.0f} ms; {1000 * cpu['run']:.0f} ms"
        record.headline(f"one frontier of {sizes.one} λ, compiled: {platform}; CPU", figure)
        print(f"\nError + λ·cost is at most {np.abs(cpu['loss'] - exact['loss']).max():.0e} from the CPU's.")
    if exact is not None and single is not None:
        print(f"Float32's is at most {np.abs(single['loss'] - exact['loss']).max():.0e} from float64's.")


def show_chain(sizes: Sizes, _: str, attempt: Attempts) -> None:
    """How long the chain of one frontier is."""
    programs = attempt("the chain of one frontier", chain, sizes) or {}
    print("\nTurns of its loops, which wait for one another:\n\n| program | loops | turns |\n|---|---|--:|")
    for program, counts in programs.items():
        for path, turns in sorted(counts.items(), key=lambda item: -item[1]):
            print(f"| {program} | {path} | {turns:,} |", flush=True)


def show_solution(sizes: Sizes, platform: str, attempt: Attempts) -> None:
    """`solve`."""
    solved = attempt("solve", solve_and_slopes, platform, sizes)
    if solved is not None:
        compiling, running, *slopes = (f"{seconds:.3f} s" for seconds in solved.values())
        print(f"\n`rcjax.solving.solve` of {sizes.one} λ: {compiling} to compile, then {running};")
        print(f"slopes of every tenth's error by all costs: {slopes[0]}, then {slopes[1]}.")


PARTS = {
    "sweeps": show_sweeps,
    "one": show_one,
    "solution": show_solution,
    "prices": show_prices,
    "chain": show_chain,
}


def main() -> None:
    """All of it; exits with 1 where something is missing."""
    parser = record.parser(__doc__)
    parser.add_argument("--small", action="store_true", help="a few problems, on whatever there is")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="what is measured; by default all")
    options = parser.parse_args()
    sizes = SMALL if options.small else Sizes()
    attempt = Attempts(sizes)
    platform = attempt("starting", jax.default_backend) or "cpu"
    if platform == "cpu" and sizes is not SMALL and {*options.only} != {"chain"}:
        raise SystemExit("JAX has no accelerator here: install jax[cuda13] where there is one, or give --small")
    for part in options.only:
        PARTS[part](sizes, platform, attempt)
    if attempt.failures:
        print("\nMissing:\n\n- " + "\n- ".join(attempt.failures))
        raise SystemExit(1)


if __name__ == "__main__":
    record.run(main)
