"""Engines that solve the batches of a sweep: the devices of this process, or tasks of a Ray cluster.

An engine takes the numbers of the missing batches and yields two tables of each batch, in any order: a row per point,
and a row per fit, from which a frontier is rebuilt with its model to deploy. `rcjax.tuning.sweeps.sweeping` writes the
files. `launch` lays the logs of a batch over the devices as arrays, and starts its programs.

Problems are independent, so each device works through its share on its own (`jax.shard_map`), several problems at a
time: a loop that runs until it converges does not wait for other devices.

A task of Ray (https://docs.ray.io) receives a batch with its logs, solves it on one core or one GPU, and returns the
tables: nodes need not share a folder. Ray solves a batch again if its node is lost. As a task has a single device,
results are the same to the byte on nodes with the same kind of core.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import socket
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
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

from rcjax._base.extras import import_extra, version
from rcjax._core.batching import as_json_values, pad_to_size_class, stack, take_entries
from rcjax._core.compilation import compiled, in_full_precision
from rcjax.copulas.families import as_family
from rcjax.model.calibrated_models import FitRecord, calibrators_to_json, find_stated_in_log
from rcjax.model.cascade_model import CascadeModel, calibrators_from_json, marginals_from_json, marginals_to_json
from rcjax.policy.spec import Spec
from rcjax.solving.bellman import CascadePlan, make_plan
from rcjax.solving.frontier.frontier import Frontier, make_frontier
from rcjax.solving.frontier.points import LossTerms, Points, PointStatus, Policies, lam_range
from rcjax.solving.quadrature import ORDER
from rcjax.solving.tradeoff import keep_best
from rcjax.tuning.sweeps.problems import (
    Batch,
    Data,
    Draws,
    Fit,
    Library,
    Sample,
    Shape,
    SweepSearch,
    SweepSettings,
    fit_problem,
    judge_problem,
    random_state,
    refit_problem,
    solve_problem,
    training_rows,
)

_MEMORY_SHARE = 0.25  # share of the memory of an accelerator for the largest arrays of a batch of problems
_AXIS = "problems"


@dataclasses.dataclass(frozen=True)
class Work:
    """The batches of a sweep, with its logs and settings."""

    library: Library
    settings: SweepSettings
    batches: list[Batch]

    def tables(self, number: int, solved: Any) -> BatchTables:
        """Build the tables of a batch from the result of `launch`, on the host."""
        batch, (lam, fits, points) = self.batches[number], solved
        models = {name: entry.models for name, entry in self.library.entries.items()}
        return fits_table(batch, fits), points_table(batch, models, self.settings, lam, points)


#: The fits and the points of a batch, as its files hold them.
BatchTables = tuple[pl.DataFrame, pl.DataFrame]
#: (number, function that builds the tables) of each batch.
Solved = Generator[tuple[int, Callable[[], BatchTables]], None, None]
#: (the work, the numbers of the missing batches) → the solved batches, in any order.
Engine = Callable[[Work, list[int]], Solved]


def launch(work: Work, number: int, mesh: Mesh) -> tuple[Any, Fit, Any]:
    """Start a batch of U problems; return (λ (U, L), fits (U, …), points of each search (U, C, L, …)) unawaited."""
    library = work.library
    settings = work.settings
    batch = work.batches[number]
    shape = batch.shape
    by_model = [paths for paths in shape.paths if paths != "labels"]
    plans = tuple(None if isinstance(paths, str) else make_plan(paths, shape.models) for paths in by_model)
    most = problems_at_a_time(batch, plans, settings, mesh)
    data = stack(_pad_list([_pad_sample(sample, shape, library, settings) for sample in batch.samples], batch.room[0]))
    samples = _Spread(batch.room[0], most, mesh)
    problems = _Spread(batch.room[1], most, mesh)
    numbers, replicates = np.array(_pad_list(batch.numbers, problems.size), np.int32).T
    logs, draws = lay_over(data, mesh, spread=False), lay_over(Draws(numbers, replicates), mesh, spread=True)  # pyright: ignore
    lam = lay_over(data.lam[numbers], mesh, spread=True)
    plan_arrays = jax.tree.map(np.asarray, plans)
    families = tuple(as_family(name) for name in settings.copulas)
    options = {"transform": shape.task, "families": families}
    sample_numbers = np.minimum(np.arange(samples.size, dtype=np.int32), batch.room[0] - 1)

    def solve(run: Callable[..., Any]) -> tuple[Fit, Any]:
        if settings.replicates:
            whole_samples = Draws(sample_numbers, np.zeros_like(sample_numbers))  # pyright: ignore
            fitted = run(samples.program(fit_problem, **options), logs, whole_samples)
            fits = run(problems.program(refit_problem, **options), (logs, fitted), draws)
        else:
            fits = run(problems.program(fit_problem, **options), logs, draws)
        points = run(problems.program(solve_problem, panels=settings.panels), plan_arrays, (fits, lam)) if plans else ()
        return fits, run(problems.program(judge_problem, labels="labels" in shape.paths), logs, (fits, draws, points))

    if most is not None:
        _compile_together(solve, mesh)
    fits, solved = solve(partial(_run, mesh))
    others = iter(solved)  # in the order of the searches, but "labels" is the last
    return lam, fits, [solved[-1] if path == "labels" else next(others) for path in shape.paths]


def _run(mesh: Mesh, program: Callable[..., Any], shared: Any, problems: Any) -> Any:
    return program(lay_over(shared, mesh, spread=False), lay_over(problems, mesh, spread=True))


def _compile_together(solve: Callable[..., Any], mesh: Mesh) -> None:
    """Compile all programs of a batch in parallel threads; calls then find them compiled."""

    def shapes(tree: Any, *axes: str) -> Any:
        def shape(leaf: Any) -> jax.ShapeDtypeStruct:
            weak = getattr(leaf, "weak_type", False)
            sharding = NamedSharding(mesh, P(*axes))
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


def _pad_list(items: list, room: int) -> list:
    """Pad a list to a length by repeating the last item."""
    return items + [items[-1]] * (room - len(items))


def _pad_sample(sample: Sample, shape: Shape, library: Library, settings: SweepSettings) -> Data:
    """Return the padded log of a sample with the rows to tune on, without a leading axis."""
    log = library.log(sample.log)
    entry = library.entries[sample.log]
    chosen = training_rows(log.n_queries, sample, settings.train, entry)
    held_out = np.ones(log.n_queries, bool)
    held_out[chosen] = settings.train is None  # without `train`, replicates are judged by the rows that they left out
    matrices = log.logprob, log.correct, log.answered, log.query_cost, held_out
    full = pad_to_size_class(*map(np.asarray, matrices), size=shape.queries)
    rows = np.full(shape.drawn, shape.queries - 1, np.int32)
    rows[: len(chosen)] = chosen
    lam = lam_range(np.array(entry.cost), settings.lam) if isinstance(settings.lam, int) else settings.lam
    values = find_stated_in_log(log) if shape.stated else None
    key = random_state(sample, entry).generate_state(2)
    return Data(*full, rows, np.int32(len(chosen)), key, np.asarray(lam, full[0].dtype), values)  # pyright: ignore


def problems_at_a_time(
    batch: Batch, plans: Sequence[CascadePlan | None], settings: SweepSettings, mesh: Mesh
) -> int | None:
    """Return the number of problems that an accelerator solves at a time, by its memory.

    None on a CPU, whose caches suit one problem at a time.

    Args:
        batch: batch of problems.
        plans: plan of each search; None for adaptive policies.
        settings: settings of the sweep.
        mesh: devices.
    """
    device = mesh.devices.flat[0]
    if device.platform == "cpu":
        return None
    k, stated, size = batch.shape.models, batch.shape.stated, jnp.result_type(float).itemsize
    nodes = (settings.panels + stated) * (ORDER + 1) + 1 if stated else settings.panels * ORDER + 2
    lam_count = settings.lam if isinstance(settings.lam, int) else len(settings.lam)
    suffixes = max((k * k if plan is None else len(plan.suffix_first) for plan in plans), default=1)
    problem_bytes = size * (
        k * k // 2 * nodes**2 + 4 * lam_count * suffixes * nodes + 16 * k * (batch.shape.drawn + batch.shape.queries)
    )
    return max(1, int(_MEMORY_SHARE * (device.memory_stats() or {}).get("bytes_limit", 2**33)) // problem_bytes)


class _Spread:
    """A number of problems, spread evenly over devices; each device solves its share in as few turns as possible."""

    def __init__(self, count: int, most: int | None, mesh: Mesh) -> None:
        self.mesh, share = mesh, -(-count // mesh.size)
        self.width = None if most is None else -(-share // -(-share // most))
        multiple = mesh.size * (self.width or 1)
        self.size = -(-count // multiple) * multiple

    def program(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """Return the compiled map of `function(shared, problem, **options)` over the spread problems."""
        return _program(function, self.mesh, self.width, **options)


@cache
def _program(function: Callable[..., Any], mesh: Mesh, width: int | None, **options: Any) -> Callable[..., Any]:
    def share(shared: Any, problems: Any) -> Any:
        return lax.map(lambda problem: function(shared, problem, **options), problems, batch_size=width)

    def run(shared: Any, problems: Any) -> Any:
        specs = {"in_specs": (P(), P(_AXIS)), "out_specs": P(_AXIS)}
        return jax.shard_map(share, mesh=mesh, check_vma=False, **specs)(shared, problems)

    # An accelerator's programs are compiled ahead (`_compile_together`); a CPU's may be kept in files.
    return compiled(run) if width is None else jax.jit(in_full_precision(run))


def device_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """Return a mesh of the devices in one row; by default, of all devices of JAX."""
    return Mesh(np.array(jax.devices() if devices is None else list(devices)), (_AXIS,))


def lay_over(tree: Any, mesh: Mesh, spread: bool) -> Any:
    """Place arrays on all devices: spread along their leading axis, or replicated."""
    return jax.device_put(tree, NamedSharding(mesh, P(_AXIS) if spread else P()))


def solve_here(work: Work, numbers: list[int], *, devices: Sequence[Any] | None = None) -> Solved:
    """Solve batches in this process, by default on all devices of JAX: an engine."""
    mesh = device_mesh(devices)
    # The devices solve the next batch while a batch is collected; an accelerator needs two, or it waits.
    ahead = 1 if mesh.devices.flat[0].platform == "cpu" else 2
    running = deque()
    for number in [*numbers, *[None] * ahead]:
        if number is not None:
            running.append((number, launch(work, number, mesh)))
        if len(running) > ahead or (number is None and running):
            first, solved = running.popleft()
            yield first, partial(work.tables, first, jax.device_get(solved))


_RETRIES = 3  # retries of a batch whose worker or node was lost
_QUEUED = 2  # batches sent per batch that can run at a time, so that no worker waits for its next batch
_CONNECT_SECONDS = 10.0  # until the cluster must have answered
#: The options of JAX that change results, or their time; tasks take over the values of this process.
_JAX_OPTIONS = (
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
    """Connect this process to a running Ray cluster for the block, and give its engine.

    Args:
        address: HOST:PORT of the head of the cluster, or ray://HOST:PORT; "auto": the cluster that this process is
            connected to already, or that RAY_ADDRESS names, or that has this machine as a node.

    Raises ImportError without Ray, and ConnectionError if there is no cluster.
    """
    ray = import_extra("ray", extra="ray")
    connected_before = ray.is_initialized()
    if not connected_before:
        _connect(ray, os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
    try:
        yield partial(_solve, ray)
    finally:
        if not connected_before:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if port.isdecimal():  # Ray would try for minutes, then end this process
            socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level="warning")
    except (OSError, OverflowError, RuntimeError, ValueError) as problem:
        advice = "start one (ray start --head), or give the HOST:PORT of its head"
        raise ConnectionError(f"no Ray cluster at {address}: {advice} ({' '.join(str(problem).split())})") from None


def _solve(ray: Any, work: Work, numbers: list[int]) -> Solved:
    """Solve batches as tasks of Ray, and yield them in the order in which they end; some tasks are sent ahead."""
    has_gpu = ray.cluster_resources().get("GPU", 0) >= 1
    kind = "GPU" if has_gpu and os.environ.get("JAX_PLATFORMS") != "cpu" else "CPU"  # the resource of a task
    options = {"num_cpus": 1, "max_retries": _RETRIES} | ({"num_gpus": 1} if kind == "GPU" else {})
    task = ray.remote(**options)(_task)
    setting = {name: _jax_option(name) for name in _JAX_OPTIONS} | ({} if kind == "GPU" else {"jax_platforms": "cpu"})
    waiting, running = deque(numbers), {}

    @lru_cache(maxsize=1)  # successive batches often have the same logs
    def put(names: tuple[str, ...]) -> Any:
        # As bytes: arrays that Ray unpacks would become float32 before the task has enabled float64.
        return ray.put(pickle.dumps(work.library.part(names)))

    try:
        while waiting or running:
            room = max(1, int(_QUEUED * ray.cluster_resources().get(kind, 0)))  # nodes come and go
            while waiting and len(running) < room:
                number = waiting.popleft()
                content = put(_log_names(work, number)), work.batches[number], work.settings
                running[task.remote(setting, _versions(), *content)] = number
            for reference in ray.wait([*running])[0]:
                number = running.pop(reference)
                tables = _result(ray, reference, work, number)
                yield number, lambda tables=tables: tables
    finally:
        for reference in running:
            ray.cancel(reference)


def _log_names(work: Work, number: int) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sample.log for sample in work.batches[number].samples))


def _versions() -> dict[str, str]:
    return {"rcjax": version(), "jax": jax.__version__, "numpy": np.__version__}


def _task(setting: dict[str, Any], versions: dict[str, str], library: bytes, batch: Any, settings: Any) -> BatchTables:
    """Solve one batch on a node, on the device that Ray assigns."""
    if versions != _versions():
        installed, expected = (", ".join(map(" ".join, by_name.items())) for by_name in (_versions(), versions))
        node = socket.gethostname()
        raise ValueError(f"node {node} has {installed}, this process has {expected}: install the same on all nodes")
    for name, value in setting.items():
        if _jax_option(name) != value:
            jax.config.update(name, value)
    work = Work(pickle.loads(library), settings, [batch])
    return work.tables(0, jax.device_get(launch(work, 0, device_mesh(jax.devices()[:1]))))


def _jax_option(name: str) -> Any:
    """Return an option of JAX's configuration: this thread's value if threads may differ, else the global one."""
    return getattr(jax.config, name) if hasattr(jax.config, name) else jax.config.read(name)


def _result(ray: Any, reference: Any, work: Work, number: int) -> BatchTables:
    """Return the result of a task, or raise one message without Ray's traceback."""
    first, *others = _log_names(work, number)
    batch = f"batch {number} (log {first}{f' and {len(others):,} more' if others else ''})"
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as failure:
        cause = failure.cause
        if isinstance(cause, ValueError):
            raise cause from None
        # If a node cannot import rcjax, Ray's message is a traceback, whose last line is the reason.
        reason = (str(cause).strip().splitlines() or [""])[-1]
        raise RuntimeError(f"{batch} failed on Ray: {type(cause).__name__}: {reason}") from None
    except ray.exceptions.RayError as failure:
        advice = "give nodes more memory, or sweep smaller batches; the same command goes on"
        times = f"{_RETRIES + 1} times ({type(failure).__name__})"
        raise ConnectionError(f"{batch} was lost {times}, with the node that solved it: {advice}") from None


#: Columns of the results for all searches; `Sweep.points` explains them.
POINTS = {
    "log": pl.String,
    "seed": pl.Int64,
    "replicate": pl.Int64,
    "cascades": pl.String,
    "copula": pl.String,
    "lam": pl.Float64,
    "error": pl.Float64,
    "cost": pl.Float64,
    "status": pl.Int8,
    "cascade": pl.String,
    "thresholds": pl.List(pl.Float64),
    "bounds": pl.List(pl.List(pl.Float64)),
    "actions": pl.List(pl.List(pl.Int64)),
    "held_out_error": pl.Float64,
    "held_out_cost": pl.Float64,
    "held_out": pl.Int64,
}
FITS = {"log": pl.String, "seed": pl.Int64, "fit": pl.String}
#: Columns that are null for a failed point.
_FIGURES = ("error", "cost", "cascade", "thresholds", "bounds", "actions", "held_out_error", "held_out_cost")


def points_table(
    batch: Batch,
    models: Mapping[str, tuple[str, ...]],
    settings: SweepSettings,
    lam: np.ndarray,
    results: Sequence[Mapping[str, np.ndarray]],
) -> pl.DataFrame:
    """Build the table of a batch, with a row per point.

    Args:
        batch: the problems; solved problems beyond their number are padding.
        models: names of the models, by log.
        settings: settings of the sweep.
        lam: (U, L) errors per dollar.
        results: arrays of each search, with leading axes (U, C, L).
    """
    samples, replicates = zip(*batch.problems, strict=True)
    count = len(samples)
    names = np.array([models[sample.log] for sample in samples], object)
    problems = pl.DataFrame(
        {
            "log": [sample.log for sample in samples],
            "seed": [sample.seed for sample in samples],
            "replicate": list(replicates),
            **{f"model {j}": list(column) for j, column in enumerate(names.T)},
        }
    )
    tables = []
    for (name, search), arrays in zip(settings.cascades.items(), results, strict=True):
        if search != "adaptive":
            arrays = {**arrays, "thresholds": arrays["bounds"][..., -2]}
        copulas = [None] if search == "labels" else list(settings.copulas)
        place, copula, point = (index.ravel() for index in np.indices((count, len(copulas), lam.shape[1])))
        rows = problems[place].with_columns(
            cascades=pl.lit(name),
            copula=pl.Series(copulas, dtype=pl.String).gather(copula),
            lam=pl.Series(lam[place, point]),
            held_out=pl.Series(arrays["held_out"][place]),
            **{
                key: pl.Series(values[:count].reshape(-1, *values.shape[3:]))
                for key, values in arrays.items()
                if key not in ("members", "held_out")
            },
        )
        tables.append(_finish_points(rows, arrays["members"][:count].reshape(len(place), -1)))
    return pl.concat(tables)


def _finish_points(points: pl.DataFrame, members: np.ndarray) -> pl.DataFrame:
    """Add the cascades by name to a table of points, from members (n, k), and clear the figures of failed points."""
    member = [pl.when(pl.lit(pl.Series(belongs))).then(pl.col(f"model {j}")) for j, belongs in enumerate(members.T)]
    points = points.with_columns(cascade=pl.concat_str(member, separator=" > ", ignore_nulls=True))
    known = {name: pl.col(name) if name in points.columns else pl.lit(None) for name in POINTS}
    table = points.select(known[name].cast(kind).alias(name) for name, kind in POINTS.items())
    solved = pl.col("status") < PointStatus.NO_DATA
    figures = [pl.when(solved).then(pl.col(name)).alias(name) for name in _FIGURES]
    return table.with_columns(figures).with_columns(pl.col("held_out_error", "held_out_cost").fill_nan(None))


def fits_table(batch: Batch, fits: Fit) -> pl.DataFrame:
    """Build the table of fits from the fits of a batch's problems (U, …): a row per sample with its replicate 0."""
    rows = []
    for number, (sample, replicate) in enumerate(batch.problems):
        if replicate == 0:
            fit = take_entries(fits, number)
            content = {
                "calibrators": calibrators_to_json(fit.calibrators),
                "marginals": marginals_to_json(fit.marginals),
                "copulas": {type(copula).__name__: as_json_values(vars(copula)) for copula in fit.copulas},
                "cost": np.asarray(fit.cost).tolist(),
            }
            rows.append({"log": sample.log, "seed": sample.seed, "fit": json.dumps(content)})
    return pl.DataFrame(rows, schema=FITS)


def rebuild_model(log: Mapping[str, Any], fit: str, copula: str) -> CascadeModel:
    """Rebuild the model of a sample under one of the copulas, from the rows of its log and of its fit."""
    data = json.loads(fit)
    family = as_family(copula)
    parameters = data["copulas"][family.__name__]
    record = json.loads(log["record"]) | {"fit": {"copula": family.__name__, "method": "tau"}}
    calibrators = calibrators_from_json(data["calibrators"])
    return CascadeModel(
        calibrators=calibrators,
        marginals=marginals_from_json(data["marginals"], calibrators),
        copulas=family(**{name: jnp.asarray(np.array(held, float)) for name, held in parameters.items()}),
        cost=jnp.asarray(data["cost"]),
        models=tuple(log["models"]),
        record=FitRecord.from_json(record),
    )


def rebuild_frontier(model: CascadeModel, points: pl.DataFrame, search: SweepSearch) -> Frontier:
    """Rebuild the frontier from the solved points of one sample, copula and search."""
    points = points.filter(pl.col("status") < PointStatus.NO_DATA).sort("lam")
    lam, error, cost, status = (points[name].to_numpy() for name in ("lam", "error", "cost", "status"))
    members = np.array([[name in cascade.split(" > ") for name in model.models] for cascade in points["cascade"]])
    bounds, actions = (np.array(points[name].to_list()) for name in ("bounds", "actions"))
    policies = Policies(bounds, actions, members)
    solved = keep_best(Points(lam, status, LossTerms(error, cost, np.zeros_like(error)), policies), None)
    return make_frontier(model, solved, Spec(cascade=None if search == "labels" else search))
