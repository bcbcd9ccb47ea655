"""Where the batches of a sweep are solved: here, by all devices, or as tasks of a Ray cluster.

An engine takes the numbers of the batches that are missing and gives the tables of each, in any order. It writes
nothing, so that results are written in one place, once and whole, whoever solved them. A batch is on its way
when its logs are arrays, laid over the devices, and its programs are started (`launch`).

Problems have nothing to tell each other, so each device goes through its share on its own (`jax.shard_map`), so many
at a time: loops that run until they converge wait for nobody elsewhere.

A task of Ray (https://docs.ray.io), on one core or one GPU, is sent its batch and the logs that are in it, and returns
the tables: nodes need not share a folder. Ray solves a batch again whose node is lost. Batches are solved as by one
device of a process alone, so results are the same to the byte where nodes have the same kind of core.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import socket
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from rcjax._base.extras import required, version
from rcjax._core.batching import fill_up, stack
from rcjax._core.compilation import compiled, in_full
from rcjax.copulas.families import as_family
from rcjax.frontier.points import lam_range
from rcjax.model.calibrated import stated_in
from rcjax.solving.paths import CascadePlan, make_plan
from rcjax.solving.quadrature import ORDER
from rcjax.sweeps.batch_program import Data, Draws, Fit, fit_problem, judge_problem, refit_problem, solve_problem
from rcjax.sweeps.problems import Batch, Library, Sample, Shape, SweepSettings, random_state, training
from rcjax.sweeps.result_tables import fits_table, points_table

_SHARE = 0.25  # of an accelerator's memory, for the largest arrays of the problems that are solved at a time
_AXIS = "problems"


@dataclasses.dataclass(frozen=True)
class Work:
    """What a sweep is to solve."""

    library: Library
    settings: SweepSettings
    batches: list[Batch]

    def tables(self, number: int, solved: Any) -> BatchTables:
        """The tables of a batch, of what `launch` gave, on the host."""
        batch, (lam, fits, points) = self.batches[number], solved
        models = {name: entry.models for name, entry in self.library.entries.items()}
        return fits_table(batch, fits), points_table(batch, models, self.settings, lam, points)


#: The fits and the points of a batch, as its files hold them.
BatchTables = tuple[pl.DataFrame, pl.DataFrame]
#: (number, what makes its tables) of each batch.
Solved = Generator[tuple[int, Callable[[], BatchTables]], None, None]
#: (the work, the numbers of the batches that are missing) → what was solved, in any order.
Engine = Callable[[Work, list[int]], Solved]


def launch(work: Work, number: int, mesh: Mesh) -> tuple[Any, Fit, Any]:
    """(λ (U, L), fits (U, …), the points of each search (U, C, L, …)) of a batch of U problems, still to come."""
    library, settings, batch = work.library, work.settings, work.batches[number]
    shape = batch.shape
    solvable = [paths for paths in shape.paths if paths != "labels"]
    plans = tuple(None if isinstance(paths, str) else make_plan(paths, shape.models) for paths in solvable)
    most = _at_a_time(batch, plans, settings, mesh)
    data = stack(_room_for([_sample(sample, shape, library, settings) for sample in batch.samples], batch.room[0]))
    samples = _Spread(batch.room[0], most, mesh)
    problems = _Spread(batch.room[1], most, mesh)
    numbers, replicates = np.array(_room_for(batch.numbers, problems.size), np.int32).T
    laid, draws = lay_over(data, mesh, spread=False), lay_over(Draws(numbers, replicates), mesh, spread=True)  # pyright: ignore
    lam, on_all = lay_over(data.lam[numbers], mesh, spread=True), jax.tree.map(np.asarray, plans)
    families = tuple(as_family(name) for name in settings.copulas)
    options = {"transform": shape.task, "families": families}
    every = np.minimum(np.arange(samples.size, dtype=np.int32), batch.room[0] - 1)

    def solve(run: Callable[..., Any]) -> tuple[Fit, Any]:
        if settings.replicates:
            alone = Draws(every, np.zeros_like(every))  # pyright: ignore
            fitted = run(samples.program(fit_problem, **options), laid, alone)
            fits = run(problems.program(refit_problem, **options), (laid, fitted), draws)
        else:
            fits = run(problems.program(fit_problem, **options), laid, draws)
        points = run(problems.program(solve_problem, panels=settings.panels), on_all, (fits, lam)) if plans else ()
        return fits, run(problems.program(judge_problem, labels="labels" in shape.paths), laid, (fits, draws, points))

    if most is not None:
        _compile_together(solve, mesh)
    fits, solved = solve(partial(_run, mesh))
    others = iter(solved)  # of which "labels" comes last: in the order of the searches
    return lam, fits, [solved[-1] if path == "labels" else next(others) for path in shape.paths]


def _run(mesh: Mesh, program: Callable[..., Any], shared: Any, problems: Any) -> Any:
    return program(lay_over(shared, mesh, spread=False), lay_over(problems, mesh, spread=True))


def _compile_together(solve: Callable[..., Any], mesh: Mesh) -> None:
    """Compile all programs of a batch at a time, in threads; calls then find them compiled."""

    def shapes(tree: Any, *axes: str) -> Any:
        def shape(leaf: Any) -> jax.ShapeDtypeStruct:
            weak, sharding = getattr(leaf, "weak_type", False), NamedSharding(mesh, P(*axes))
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=weak)

        return jax.tree.map(shape, tree)

    with ThreadPoolExecutor() as threads:
        compiling = []

        def lower(program: Any, shared: Any, problems: Any) -> Any:
            traced = program.trace(shapes(shared), shapes(problems, _AXIS))
            compiling.append(threads.submit(traced.lower().compile))
            return traced.out_info

        solve(lower)
        for program in compiling:
            program.result()


def _room_for(items: list, room: int) -> list:
    """As many items as there is room for: what fills it up repeats the last."""
    return items + [items[-1]] * (room - len(items))


def _sample(sample: Sample, shape: Shape, library: Library, settings: SweepSettings) -> Data:
    """The log of a sample, filled up, and what is tuned on of it; without the leading axis."""
    log, entry = library.log(sample.log), library.entries[sample.log]
    chosen = training(log.n_queries, sample, settings.train, entry)
    held_out = np.ones(log.n_queries, bool)
    held_out[chosen] = settings.train is None
    matrices = log.logprob, log.correct, log.answered, log.query_cost, held_out
    full = fill_up(*map(np.asarray, matrices), size=shape.queries)
    rows = np.full(shape.drawn, shape.queries - 1, np.int32)
    rows[: len(chosen)] = chosen
    lam = lam_range(np.array(entry.cost), settings.lam) if isinstance(settings.lam, int) else settings.lam
    values = stated_in(log) if shape.stated else None
    drawing = rows, np.int32(len(chosen)), random_state(sample, entry).generate_state(2)
    dtype = full[0].dtype
    return Data(*full, *drawing, np.asarray(lam, dtype), None if values is None else values.astype(dtype))  # pyright: ignore


def _at_a_time(batch: Batch, plans: Sequence[CascadePlan | None], settings: SweepSettings, mesh: Mesh) -> int | None:
    """How many problems a device may solve at a time: one (None) on a CPU, whose caches that suits; else by memory."""
    device = mesh.devices.flat[0]
    if device.platform == "cpu":
        return None
    k, stated, size = batch.shape.models, batch.shape.stated, jnp.result_type(float).itemsize
    nodes = (settings.panels + stated) * (ORDER + 1) + 1 if stated else settings.panels * ORDER + 2
    prices = settings.lam if isinstance(settings.lam, int) else len(settings.lam)
    ends = max((k * k if plan is None else len(plan.heads) for plan in plans), default=1)
    problem_bytes = size * (
        k * k // 2 * nodes**2 + 4 * prices * ends * nodes + 16 * k * (batch.shape.drawn + batch.shape.queries)
    )
    return max(1, int(_SHARE * (device.memory_stats() or {}).get("bytes_limit", 2**33)) // problem_bytes)


class _Spread:
    """A number of problems spread over devices, evenly, each going through its share in as few turns as it may."""

    def __init__(self, count: int, most: int | None, mesh: Mesh) -> None:
        self.mesh, share = mesh, -(-count // mesh.size)
        self.width = None if most is None else -(-share // -(-share // most))
        multiple = mesh.size * (self.width or 1)
        self.size = -(-count // multiple) * multiple

    def program(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """Compiled: `function(shared, problem, **options)` of every problem, which lie spread over the devices."""
        return _program(function, self.mesh, self.width, **options)


@cache
def _program(function: Callable[..., Any], mesh: Mesh, width: int | None, **options: Any) -> Callable[..., Any]:
    def share(shared: Any, problems: Any) -> Any:
        return lax.map(lambda problem: function(shared, problem, **options), problems, batch_size=width)

    def run(shared: Any, problems: Any) -> Any:
        specs = {"in_specs": (P(), P(_AXIS)), "out_specs": P(_AXIS)}
        return jax.shard_map(share, mesh=mesh, check_vma=False, **specs)(shared, problems)

    # An accelerator's programs are compiled ahead (`_compile_together`); a CPU's may be kept in files.
    return compiled(run) if width is None else jax.jit(in_full(run))


def device_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """The devices in one row: by default all that JAX knows of."""
    return Mesh(np.array(jax.devices() if devices is None else list(devices)), (_AXIS,))


def lay_over(tree: Any, mesh: Mesh, spread: bool) -> Any:
    """Arrays of all devices: spread along their leading axis, or whole on each."""
    return jax.device_put(tree, NamedSharding(mesh, P(_AXIS) if spread else P()))


def solve_here(work: Work, numbers: list[int], *, devices: Sequence[Any] | None = None) -> Solved:
    """The engine of this process.

    Args:
        work: what to solve.
        numbers: of its batches.
        devices: by default all that JAX has.
    """
    mesh = device_mesh(devices)
    # The devices are at the next batch while this one is collected; an accelerator waits for no host, with one more.
    ahead, running = 1 if mesh.devices.flat[0].platform == "cpu" else 2, deque()
    for number in [*numbers, *[None] * ahead]:
        if number is not None:
            running.append((number, launch(work, number, mesh)))
        if len(running) > ahead or (number is None and running):
            first, solved = running.popleft()
            yield first, partial(work.tables, first, jax.device_get(solved))


_RETRIES = 3  # of a batch whose worker or node was lost
_AHEAD = 2  # batches that are sent for each that can run at a time: none waits for the next, and memory holds them
_PATIENCE = 10.0  # seconds until the cluster must have answered
#: What of JAX's configuration changes results, or how long they take: tasks have it as this process does.
_TAKEN_OVER = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_disable_most_optimizations",
    "jax_traceback_in_locations_limit",
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@contextmanager
def connected(address: str) -> Iterator[Engine]:
    """The engine of a Ray cluster that exists, to which this process is connected within the block.

    Args:
        address: HOST:PORT of its head, or ray://HOST:PORT; "auto": the cluster that this process is connected to
            already, the one of RAY_ADDRESS, or the one of which this machine is a node.

    Raises ImportError without Ray, and ConnectionError where there is no cluster.
    """
    ray = required("ray", extra="ray")
    there = ray.is_initialized()
    if not there:
        _connect(ray, os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
    try:
        yield partial(_solve, ray)
    finally:
        if not there:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if port.isdecimal():  # Ray itself would try for minutes, then end this process
            socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
        ray.init(address=address, log_to_driver=False, logging_level="warning")
    except (OSError, OverflowError, RuntimeError, ValueError) as problem:
        advice = "start one (ray start --head), or give the HOST:PORT of its head"
        raise ConnectionError(f"no Ray cluster at {address}: {advice} ({' '.join(str(problem).split())})") from None


def _solve(ray: Any, work: Work, numbers: list[int]) -> Solved:
    """The batches as tasks, some ahead of those that can run, as they come."""
    kind = _kind(ray)
    options = {"num_cpus": 1, "max_retries": _RETRIES} | ({"num_gpus": 1} if kind == "GPU" else {})
    task = ray.remote(**options)(_task)
    setting = {name: _of_jax(name) for name in _TAKEN_OVER} | ({} if kind == "GPU" else {"jax_platforms": "cpu"})
    waiting, running = deque(numbers), {}

    @lru_cache(maxsize=1)  # once for batches that follow each other and are of the same logs
    def put(names: tuple[str, ...]) -> Any:
        # As bytes: arrays that Ray itself unpacks would be float32 before the task has switched on float64.
        return ray.put(pickle.dumps(work.library.part(names)))

    try:
        while waiting or running:
            room = max(1, int(_AHEAD * ray.cluster_resources().get(kind, 0)))  # nodes come and go
            while waiting and len(running) < room:
                number = waiting.popleft()
                sent = put(_names(work, number)), work.batches[number], work.settings
                running[task.remote(setting, _versions(), *sent)] = number
            for reference in ray.wait([*running])[0]:
                number = running.pop(reference)
                tables = _result(ray, reference, work, number)
                yield number, lambda tables=tables: tables
    finally:
        for reference in running:
            ray.cancel(reference)


def _kind(ray: Any) -> str:
    """What a task is given one of: "GPU" where the cluster has any, unless JAX_PLATFORMS says cpu; else "CPU"."""
    gpus = ray.cluster_resources().get("GPU", 0) >= 1 and os.environ.get("JAX_PLATFORMS") != "cpu"
    return "GPU" if gpus else "CPU"


def _names(work: Work, number: int) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sample.log for sample in work.batches[number].samples))


def _versions() -> dict[str, str]:
    return {"rcjax": version(), "jax": jax.__version__, "numpy": np.__version__}


def _task(setting: dict[str, Any], versions: dict[str, str], library: bytes, batch: Any, settings: Any) -> BatchTables:
    """What a node does: one batch, on the device that Ray gives it."""
    if versions != _versions():
        theirs, ours = (", ".join(map(" ".join, some.items())) for some in (_versions(), versions))
        node = socket.gethostname()
        raise ValueError(f"node {node} has {theirs}, this process has {ours}: install the same on all nodes")
    for name, value in setting.items():
        if _of_jax(name) != value:
            jax.config.update(name, value)
    work = Work(pickle.loads(library), settings, [batch])
    return work.tables(0, jax.device_get(launch(work, 0, device_mesh(jax.devices()[:1]))))


def _of_jax(name: str) -> Any:
    """A value of JAX's configuration: this thread's, where threads may differ; of the others there is only one."""
    return getattr(jax.config, name) if hasattr(jax.config, name) else jax.config.read(name)


def _result(ray: Any, reference: Any, work: Work, number: int) -> BatchTables:
    """What a task returned; where it failed, one message, without the traceback that Ray sends along."""
    first, *others = _names(work, number)
    batch = f"batch {number} (log {first}{f' and {len(others):,} more' if others else ''})"
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as failure:
        cause = failure.cause
        if isinstance(cause, ValueError):
            raise cause from None
        # Ray sends a traceback as the message where a node cannot import rcjax; its last line is the reason.
        reason = (str(cause).strip().splitlines() or [""])[-1]
        raise RuntimeError(f"{batch} failed on Ray: {type(cause).__name__}: {reason}") from None
    except ray.exceptions.RayError as failure:
        advice = "give nodes more memory, or sweep smaller batches; the same command goes on"
        times = f"{_RETRIES + 1} times ({type(failure).__name__})"
        raise ConnectionError(f"{batch} was lost {times}, with the node that solved it: {advice}") from None
