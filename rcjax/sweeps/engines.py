"""Where the batches of a sweep are solved: here, by all devices of all processes. Elsewhere: `ray_engine`.

An engine takes the numbers of the batches that are missing and gives the tables of each, in any order. It writes
nothing, so that results are written in one place, once and whole, whoever solved them. A batch is on its way
when its logs and draws are arrays, laid over the devices, and its programs are started (`launch`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jax.sharding import Mesh

from rcjax._core.batching import fill_up, stack
from rcjax.copulas.families import as_family
from rcjax.frontier.prices import lam_range
from rcjax.model.calibrated import stated_in
from rcjax.solving.paths import CascadePlan, make_plan
from rcjax.solving.quadrature import ORDER
from rcjax.sweeps.batch_program import (
    Data,
    Draws,
    Fit,
    collect,
    device_mesh,
    everywhere,
    fit_problem,
    judge_problem,
    lay_over,
    program,
    refit_problem,
    solve_problem,
)
from rcjax.sweeps.library import Library
from rcjax.sweeps.problems import Batch, Shape, SweepSettings, draw, size_of_training, training
from rcjax.sweeps.result_tables import fits_table, points_table

_SHARE = 0.25  # of an accelerator's memory, for the largest arrays of the problems that are solved at a time


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
    data, rows = _data(batch, library, settings)
    width = _width(batch, plans, settings, mesh)
    several = mesh.size * (width or 1)

    def drawn(number: int, replicate: int) -> Draws:
        sample, own = batch.samples[number], rows[number][rows[number] < shape.queries - 1]
        chosen = draw(own, sample, replicate, library.entries[sample.log].digest)
        return Draws(*map(np.asarray, (number, replicate, _filled(chosen, shape))))  # pyright: ignore

    draws = [drawn(number, replicate) for number in range(len(batch.samples)) for replicate in batch.replicates]
    draws = _stacked(draws, batch.room[1], several)
    lam = lay_over(data.lam[draws.sample], mesh, spread=True)
    laid, spread = lay_over(data, mesh, spread=False), lay_over(draws, mesh, spread=True)
    on_devices = partial(program, mesh=mesh, width=width)
    families = tuple(as_family(name) for name in settings.copulas)
    fit_on_devices = partial(on_devices, transform=shape.task, families=families)
    if settings.replicates:
        samples_alone = _stacked([drawn(number, 0) for number in range(len(rows))], batch.room[0], several)
        samples = everywhere(fit_on_devices(fit_problem)(laid, lay_over(samples_alone, mesh, spread=True)), mesh)
        fits = fit_on_devices(refit_problem)((laid, samples), spread)
    else:
        fits = fit_on_devices(fit_problem)(laid, spread)
    points = ()
    if plans:
        on_all = lay_over(jax.tree.map(np.asarray, plans), mesh, spread=False)
        points = on_devices(solve_problem, panels=settings.panels)(on_all, (fits, lam))
    labels = "labels" in shape.paths
    solved = on_devices(judge_problem, labels=labels)(laid, (fits, spread, points))
    return lam, fits, _in_order(shape.paths, solved)


def _in_order(paths: tuple, solved: tuple) -> list:
    """What was solved, of which "labels" comes last, in the order of the searches."""
    others = iter(solved)
    return [solved[-1] if path == "labels" else next(others) for path in paths]


def _stacked(items: list, room: int, multiple: int) -> Any:
    """As one batched pytree, of a multiple of so many: what fills it up repeats the last."""
    size = -(-room // multiple) * multiple
    filled = items + [items[-1]] * (size - len(items))
    return stack(filled)


def _data(batch: Batch, library: Library, settings: SweepSettings) -> tuple[Data, list[np.ndarray]]:
    """The logs of a batch, filled up, and the rows of each sample, filled up with a query that nobody answered."""
    shape = batch.shape
    logs, rows = [], []
    for sample in batch.samples:
        log, entry = library.log(sample.log), library.entries[sample.log]
        n = log.n_queries
        size = size_of_training(n, settings.train, log.source)
        chosen = training(n, sample, size, entry.digest)
        held_out = np.ones(n, bool)
        held_out[chosen] = settings.train is None
        matrices = log.logprob, log.correct, log.answered, log.query_cost, held_out
        full = fill_up(*map(np.asarray, matrices), size=shape.queries)
        lam = lam_range(np.array(entry.cost), settings.lam) if isinstance(settings.lam, int) else settings.lam
        lam = np.asarray(lam, full[0].dtype)
        values = stated_in(log) if shape.stated else None
        logs.append(Data(*full, lam, None if values is None else values.astype(full[0].dtype)))  # pyright: ignore
        rows.append(_filled(chosen.astype(np.int32), shape))
    return _stacked(logs, batch.room[0], 1), rows


def _filled(rows: np.ndarray, shape: Shape) -> np.ndarray:
    """The rows of a draw, and behind them a query that nobody answered."""
    return np.pad(rows, (0, shape.drawn - len(rows)), constant_values=shape.queries - 1)


def _width(batch: Batch, plans: Sequence[CascadePlan | None], settings: SweepSettings, mesh: Mesh) -> int | None:
    """How many problems a device solves at a time: one on a CPU, whose caches that suits; else what memory allows."""
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
    most = max(1, int(_SHARE * (device.memory_stats() or {}).get("bytes_limit", 2**33)) // problem_bytes)
    share = -(-batch.room[1] // mesh.size)
    return -(-share // -(-share // most))


@dataclasses.dataclass(frozen=True)
class Work:
    """What a sweep is to solve."""

    library: Library
    settings: SweepSettings
    batches: list[Batch]


@dataclasses.dataclass(frozen=True)
class BatchTables:
    """The results of a batch, as its files hold them."""

    fits: pl.DataFrame
    points: pl.DataFrame


#: (number, tables) of each batch; None if another process writes them.
Solved = Generator[tuple[int, BatchTables | None], None, None]
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

    def start(number: int) -> Any:
        return launch(work.batches[number], work.library, work.settings, mesh)

    for number, solved in _one_ahead(numbers, start):
        yield number, _tables(work, number, solved) if jax.process_index() == 0 else None


def solve_batch(work: Work, number: int, mesh: Mesh) -> BatchTables:
    """One batch, on these devices."""
    return _tables(work, number, collect(launch(work.batches[number], work.library, work.settings, mesh)))


def _tables(work: Work, number: int, solved: Any) -> BatchTables:
    batch, (lam, fits, points) = work.batches[number], solved
    models = {name: entry.models for name, entry in work.library.entries.items()}
    return BatchTables(fits_table(batch, fits), points_table(batch, models, work.settings, lam, points))


def _one_ahead(numbers: Iterable[int], launch: Callable[[int], Any]) -> Iterator[tuple[int, Any]]:
    """(number, what was solved) of each batch, while the devices already work on the next one."""
    running = None
    for number in [*numbers, None]:
        following = None if number is None else (number, launch(number))
        if running is not None:
            yield running[0], collect(running[1])
        running = following
