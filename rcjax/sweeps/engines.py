"""Where the batches of a sweep are solved: here, by all devices of all processes. Elsewhere: `ray_engine`.

An engine takes the numbers of the batches that are missing and gives the tables of each, in any order. It writes
nothing, so that results are written in one place, once and whole, whoever solved them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

import jax
import polars as pl
from jax.sharding import Mesh

from rcjax.sweeps.batch_program import collect, device_mesh
from rcjax.sweeps.launching import launch
from rcjax.sweeps.library import Library
from rcjax.sweeps.models import fits_table
from rcjax.sweeps.problems import Batch, SweepSettings
from rcjax.sweeps.result_tables import points_table


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


#: (number, tables) of each batch; None where another process writes them.
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
