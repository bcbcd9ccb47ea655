"""Where the batches of a sweep are solved: here, by all devices of all processes. Elsewhere: `ray_engine`.

An engine takes the numbers of the batches that are missing and gives the tables of each, in any order. It writes
nothing, so that results are written in one place, once and whole, whoever solved them. A batch is on its way
when its logs are arrays, laid over the devices, and its programs are started (`launch`).

Problems have nothing to tell each other, so each device goes through its share on its own (`jax.shard_map`), so many
at a time: loops that run until they converge wait for nobody elsewhere.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from rcjax._core.batching import fill_up, stack
from rcjax._core.compilation import compiled
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


def launch(batch: Batch, library: Library, settings: SweepSettings, mesh: Mesh) -> tuple[Any, Fit, Any]:
    """(λ (U, L), fits (U, …), the points of each search (U, C, L, …)) of a batch, still to come.

    Args:
        batch: U problems of one shape.
        library: the logs.
        settings: what is swept over.
        mesh: the devices.
    """
    shape = batch.shape
    solvable = [paths for paths in shape.paths if paths != "labels"]
    plans = tuple(None if isinstance(paths, str) else make_plan(paths, shape.models) for paths in solvable)
    most = _at_a_time(batch, plans, settings, mesh)
    data = stack(_room_for([_sample(sample, shape, library, settings) for sample in batch.samples], batch.room[0]))
    samples = _Spread(batch.room[0], most, mesh)
    problems = _Spread(batch.room[1], most, mesh)
    numbers, replicates = np.array(_room_for(batch.numbers, problems.size), np.int32).T
    laid, draws = lay_over(data, mesh, spread=False), lay_over(Draws(numbers, replicates), mesh, spread=True)  # pyright: ignore
    lam = lay_over(data.lam[numbers], mesh, spread=True)
    families = tuple(as_family(name) for name in settings.copulas)
    options = {"transform": shape.task, "families": families}
    if settings.replicates:
        every = np.minimum(np.arange(samples.size, dtype=np.int32), batch.room[0] - 1)
        alone = lay_over(Draws(every, np.zeros_like(every)), mesh, spread=True)  # pyright: ignore
        fitted = everywhere(samples.program(fit_problem, **options)(laid, alone), mesh)
        fits = problems.program(refit_problem, **options)((laid, fitted), draws)
    else:
        fits = problems.program(fit_problem, **options)(laid, draws)
    points = ()
    if plans:
        on_all = lay_over(jax.tree.map(np.asarray, plans), mesh, spread=False)
        points = problems.program(solve_problem, panels=settings.panels)(on_all, (fits, lam))
    solved = problems.program(judge_problem, labels="labels" in shape.paths)(laid, (fits, draws, points))
    others = iter(solved)  # of which "labels" comes last: in the order of the searches
    return lam, fits, [solved[-1] if path == "labels" else next(others) for path in shape.paths]


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

    return compiled(run)


def device_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """The devices in one row: all that JAX knows of, those of other processes included, by default."""
    return Mesh(np.array(jax.devices() if devices is None else list(devices)), (_AXIS,))


def lay_over(tree: Any, mesh: Mesh, spread: bool) -> Any:
    """NumPy arrays as arrays of all devices: spread along their leading axis, or whole on each.

    Every process has all of them, and gives its own devices their part.
    """
    sharding = NamedSharding(mesh, P(_AXIS) if spread else P())
    return jax.tree.map(lambda leaf: jax.make_array_from_callback(leaf.shape, sharding, lambda i: leaf[i]), tree)


def everywhere(tree: Any, mesh: Mesh) -> Any:
    """What lies spread over the devices, whole on each."""
    return _copies(mesh)(tree)


@cache
def _copies(mesh: Mesh) -> Callable[[Any], Any]:
    return jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh, P()))


def collect(tree: Any) -> Any:
    """NumPy arrays of arrays that are spread over devices, in every process: all of them in one go."""
    if jax.process_count() > 1:
        from jax.experimental.multihost_utils import process_allgather

        tree = process_allgather(tree, tiled=True)
    return jax.device_get(tree)


@dataclasses.dataclass(frozen=True)
class Work:
    """What a sweep is to solve."""

    library: Library
    settings: SweepSettings
    batches: list[Batch]

    def launch(self, number: int, mesh: Mesh) -> Any:
        """A batch on its way, as of `launch`."""
        return launch(self.batches[number], self.library, self.settings, mesh)

    def tables(self, number: int, solved: Any) -> BatchTables:
        """The tables of a batch, of what `launch` gave and `collect` collected."""
        batch, (lam, fits, points) = self.batches[number], solved
        models = {name: entry.models for name, entry in self.library.entries.items()}
        return BatchTables(fits_table(batch, fits), points_table(batch, models, self.settings, lam, points))


@dataclasses.dataclass(frozen=True)
class BatchTables:
    """The results of a batch, as its files hold them."""

    fits: pl.DataFrame
    points: pl.DataFrame


#: (number, what makes its tables) of each batch; None if another process writes them.
Solved = Generator[tuple[int, Callable[[], BatchTables] | None], None, None]
#: (the work, the numbers of the batches that are missing) → what was solved, in any order.
Engine = Callable[[Work, list[int]], Solved]


def solve_here(work: Work, numbers: list[int], *, devices: Sequence[Any] | None = None) -> Solved:
    """The engine of this process and of those that JAX knows of, which all call it alike; the first has the tables.

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
            running.append((number, work.launch(number, mesh)))
        if len(running) > ahead or (number is None and running):
            first, solved = running.popleft()
            solved = collect(solved)
            yield first, partial(work.tables, first, solved) if jax.process_index() == 0 else None


def solve_batch(work: Work, number: int, mesh: Mesh) -> BatchTables:
    """One batch, on these devices."""
    return work.tables(number, collect(work.launch(number, mesh)))
