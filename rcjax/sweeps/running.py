"""Running a sweep: the logs read, batch after batch solved on all devices and written, until nothing is left."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jax.sharding import Mesh

from rcjax.frontier import Frontier
from rcjax.joint import as_family
from rcjax.plan import make_plan
from rcjax.prices import price_range
from rcjax.quadrature import ORDER, PANELS
from rcjax.sweeps import folder as files
from rcjax.sweeps.library import Library, named
from rcjax.sweeps.models import fits_table, frontier_of, model_of
from rcjax.sweeps.problems import (
    PROBLEMS,
    Batch,
    Sample,
    Search,
    Settings,
    check_settings,
    draw,
    plan_batches,
    size_of_training,
    training,
)
from rcjax.sweeps.solving import (
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
from rcjax.sweeps.tables import logs_table, points_table

_SHARE = 0.25  # of an accelerator's memory, for the largest arrays of the problems that are solved at a time


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What a sweep left in its folder.

    >>> import rcjax, tempfile
    >>> logs = {"monday": rcjax.sample_log(80, seed=0), "tuesday": rcjax.sample_log(90, seed=1)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = rcjax.sweep(logs, folder, cascades="labels", lam=5)
    ...     found.points.select("log", "copula", "status").collect().shape, found.logs["queries"].to_list()
    ((10, 3), [80, 90])
    """

    path: Path

    @property
    def points(self) -> pl.LazyFrame:
        """A row per log, seed, replicate, search, copula and λ, as a polars `LazyFrame` over the parts.

        `log`, `seed`, `replicate` (0: the sample itself), `cascades` (the search), `copula` (null for "labels"), `lam`;
        `error` and `cost` per query, as expected; `status`, a key of `rcjax.sweeps.solving.STATUS_MESSAGES`;
        `cascade`, the names of its models; `thresholds` in calibrated confidence, in the log's order of models (null
        for adaptive policies); `first`, `bounds` and `actions`, the policy as `Frontier` has it; `held_out_error` and
        `held_out_cost` on the `held_out` queries that the problem was not tuned on, as far as all models answered
        them. Figures are null where a point was not solved, or nothing was held out.
        """
        return pl.scan_parquet(self.path / "parts" / "*.parquet")

    @property
    def logs(self) -> pl.DataFrame:
        """A row per log: `models`, their mean `cost`, `queries`, `digest`; or the `problem`, why it was left out."""
        return pl.read_parquet(self.path / "logs.parquet")

    def frontier(
        self, log: str, *, seed: int | None = None, cascades: str | None = None, copula: str | None = None
    ) -> Frontier:
        """The frontier of a log, with its model: `frontier(log).policy(budget=…)` is what to deploy.

        Of a seed, search and copula where the sweep has several; the first ones by default. Raises ValueError where the
        sweep does not have them, or they are not solved.
        """
        settings = self.plan["settings"]
        choices = {"seed": settings["seeds"], "cascades": list(settings["cascades"]), "copula": settings["copulas"]}
        wanted = {"seed": seed, "cascades": cascades, "copula": copula}
        for name, known in choices.items():
            wanted[name] = known[0] if wanted[name] is None else wanted[name]
            if wanted[name] not in known:
                raise ValueError(f"{name} is {wanted[name]!r}; of this sweep it is {', '.join(map(str, known))}")
        search = settings["cascades"][wanted["cascades"]]
        of_log = pl.col("log") == log, pl.col("seed") == wanted["seed"]
        fits = pl.scan_parquet(self.path / "fits" / "*.parquet").filter(*of_log).collect()
        (row,) = self.logs.filter(pl.col("log") == log).to_dicts() or [{"problem": "it is none of this sweep's"}]
        if row["problem"] is not None or fits.is_empty():
            raise ValueError(f"no frontier of {log!r}: {row['problem'] or 'the sweep has not come to it'}")
        kept = pl.col("copula") == wanted["copula"] if search != "labels" else pl.col("copula").is_null()
        same = pl.col("replicate") == 0, pl.col("cascades") == wanted["cascades"], kept
        model = model_of(row, fits["fit"][0], wanted["copula"])
        return frontier_of(model, self.points.filter(*of_log, *same).collect(), search)

    @property
    def plan(self) -> dict[str, Any]:
        """What was swept over, as `sweep.json` has it."""
        return files.read_plan(self.path / "sweep.json")

    @property
    def finished(self) -> bool:
        """Whether all parts are there."""
        return all(files.finished(self.path, self.plan["batches"]))


def sweep(
    logs: Mapping[str, Any] | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    cascades: str | Sequence[str] | Mapping[str, Search] = "all",
    copulas: str | Sequence[str] = "gumbel",
    lam: int | Sequence[float] = 50,
    replicates: int = 0,
    seeds: int | Sequence[int] = 0,
    train: float | int | None = None,
    max_length: int | None = None,
    batch: int = PROBLEMS,
    prices: Any = None,
    task: str = "generation",
    devices: Sequence[Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Fit and solve the product of logs, searches, copulas, prices, bootstrap replicates and seeds.

    `logs` are logs or files by name, or paths of files, which `read_log` reads with `prices` and `task`. `cascades` are
    searches of `solve_frontier`: "all" (of at most `max_length` models), "full", "adaptive", "labels" (the best single
    model or pair by the labels), several of these, or lists of cascades by name. `copulas` are families, fitted by
    Kendall's τ. `lam` is how many prices to solve for, on a grid of each log's own that covers all it can do, or the
    prices. Each of the `seeds` takes other queries to `train` on, a share or number of them (None: all), and draws
    other `replicates`; the queries left out judge the points.

    Problems are solved in batches of equal shape, of `batch` at most, on all `devices` (by default all that JAX has,
    those of other processes after `jax.distributed.initialize` included). Results go to the folder `out` part by part;
    a sweep that was killed goes on where it was when it is called again. A log that cannot be used is told of in
    `Sweep.logs`, and the others are swept over. `progress` is called with how many problems are done, and how many
    there are.

    Raises ValueError for settings that make no sense, a folder that holds another sweep, or where no log can be used.
    """
    settings = check_settings(cascades, copulas, lam, replicates, seeds, train, max_length, batch)
    library = Library(named(logs), {"prices": prices, "task": task})
    batches = plan_batches(library.survey(settings), settings)
    target = Path(out)
    left = _prepare(target, settings, library, batches)
    total = sum(len(batch.problems) for batch in batches)
    done = total - sum(len(batches[number].problems) for number in left)
    report = progress or (lambda done, total: None)
    report(done, total)
    launch = partial(_launch, library=library, settings=settings, mesh=device_mesh(devices))
    models = {name: entry.models for name, entry in library.entries.items()}
    for number, (lam_of, fits, points) in _one_ahead(left, lambda number: launch(batches[number])):
        if jax.process_index() == 0:
            files.write_table(files.part_path(target, number, "fits"), fits_table(batches[number], fits))
            table = points_table(batches[number], models, settings, lam_of, points)
            files.write_table(files.part_path(target, number), table)
        done += len(batches[number].problems)
        report(done, total)
    _wait_for_all()
    return Sweep(target)


def _prepare(target: Path, settings: Settings, library: Library, batches: list[Batch]) -> list[int]:
    """Make the folder, or find it; the numbers of the batches that are left to do, the same in every process."""
    from rcjax import __version__

    if not batches:
        name, entry = next(iter(library.entries.items()))
        raise ValueError(f"no log can be swept over; of {name}: {entry.problem}")
    wanted = {
        "format": files.FORMAT,
        "schema_version": files.SCHEMA,
        "rcjax": __version__,
        "dtype": str(jnp.result_type(float)),
        "settings": dataclasses.asdict(settings),
        "logs": {name: entry.digest for name, entry in library.entries.items()},
        "batches": len(batches),
    }
    done = np.zeros(len(batches), bool)
    if jax.process_index() == 0:
        files.open_folder(target, wanted)
        files.write_table(target / "logs.parquet", logs_table(library.entries))
        done = np.array(files.finished(target, len(batches)))
    if jax.process_count() > 1:
        from jax.experimental.multihost_utils import broadcast_one_to_all

        done = np.asarray(broadcast_one_to_all(done))
    return np.flatnonzero(~done).tolist()


def _wait_for_all() -> None:
    if jax.process_count() > 1:
        from jax.experimental.multihost_utils import sync_global_devices

        sync_global_devices("rcjax.sweep")


def _one_ahead(numbers: Iterable[int], launch: Callable[[int], Any]) -> Iterator[tuple[int, Any]]:
    """(number, what was solved) of each batch, while the devices already work on the next one."""
    running = None
    for number in [*numbers, None]:
        following = None if number is None else (number, launch(number))
        if running is not None:
            yield running[0], collect(running[1])
        running = following


def _launch(batch: Batch, library: Library, settings: Settings, mesh: Mesh) -> tuple[Any, Fit, Any]:
    """(λ (U, L), fits (U, …), the points of each search (U, C, L, …)) of a batch, still to come."""
    shape = batch.shape
    solvable = [paths for paths in shape.paths if paths != "labels"]
    plans = tuple(None if isinstance(paths, str) else make_plan(paths, shape.models) for paths in solvable)
    data, rows = _data(batch, library, settings)
    width = _width(batch, plans, settings, mesh)
    several = mesh.size * (width or 1)
    draws = [
        _draws(place, replicate, _drawn(batch, library, sample, replicate, rows[place]))
        for place, sample in enumerate(batch.samples)
        for replicate in batch.replicates
    ]
    draws = _stacked(draws, batch.room[1], several)
    lam = lay_over(data.lam[draws.sample], mesh, spread=True)
    laid, spread = lay_over(data, mesh, spread=False), lay_over(draws, mesh, spread=True)
    how = {"mesh": mesh, "width": width, "transform": shape.task}
    if settings.replicates:
        own = _stacked([_draws(place, 0, row) for place, row in enumerate(rows)], batch.room[0], several)
        samples = everywhere(program(fit_problem, **how)(laid, lay_over(own, mesh, spread=True)), mesh)
        fits = program(refit_problem, **how)((laid, samples), spread)
    else:
        fits = program(fit_problem, **how)(laid, spread)
    points = ()
    if plans:
        families = tuple(as_family(name) for name in settings.copulas)
        on_all = lay_over(jax.tree.map(np.asarray, plans), mesh, spread=False)
        points = program(solve_problem, mesh, width, families=families)(on_all, (fits, lam))
    labels = "labels" in shape.paths
    solved = program(judge_problem, **how, labels=labels)(laid, (fits, spread, points))
    return lam, fits, _in_order(shape.paths, solved)


def _draws(place: int, replicate: int, rows: np.ndarray) -> Draws:
    return Draws(np.array(place), np.array(replicate), rows)  # pyright: ignore[reportArgumentType]


def _in_order(paths: tuple, solved: tuple) -> list:
    """What was solved, of which "labels" comes last, in the order of the searches."""
    others = iter(solved)
    return [solved[-1] if each == "labels" else next(others) for each in paths]


def _stacked(items: list, room: int, multiple: int) -> Any:
    """As one batched pytree, of a multiple of so many: what fills it up repeats the last."""
    size = -(-room // multiple) * multiple
    filled = items + [items[-1]] * (size - len(items))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *filled)


def _data(batch: Batch, library: Library, settings: Settings) -> tuple[Data, list[np.ndarray]]:
    """The logs of a batch, filled up, and the rows of each sample, filled up with a query that nobody answered."""
    shape = batch.shape
    logs, rows = [], []
    for sample in batch.samples:
        log, entry = library.log(sample.log), library.entries[sample.log]
        n = log.n_queries
        size = size_of_training(n, settings.train, log.source)
        own = training(n, sample, size, entry.digest)
        held_out = np.ones(n, bool)
        held_out[own] = settings.train is None
        matrices = (log.logprob, log.correct, log.answered, log.query_cost, held_out)
        full = [_filled(np.asarray(each), shape.queries) for each in matrices]
        lam = price_range(np.array(entry.cost), settings.lam) if isinstance(settings.lam, int) else settings.lam
        logs.append(Data(*full, np.asarray(lam, full[0].dtype)))  # pyright: ignore[reportArgumentType,reportCallIssue]
        rows.append(_filled(own.astype(np.int32), shape.drawn, shape.queries - 1))
    return _stacked(logs, batch.room[0], 1), rows


def _drawn(batch: Batch, library: Library, sample: Sample, replicate: int, own: np.ndarray) -> np.ndarray:
    empty = batch.shape.queries - 1
    drawn = draw(own[own < empty], sample, replicate, library.entries[sample.log].digest)
    return _filled(drawn, len(own), empty)


def _filled(values, size, value=0):
    """The values (n, …), then others up to the size: False, or a number."""
    rest = np.full((size - len(values), *values.shape[1:]), value, values.dtype)
    return np.concatenate([values, rest])


def _width(batch: Batch, plans: Any, settings: Settings, mesh: Mesh) -> int | None:
    """How many problems a device solves at a time: one on a CPU, whose caches that suits; else what memory allows."""
    device = mesh.devices.flat[0]
    if device.platform == "cpu":
        return None
    k, nodes, size = batch.shape.models, PANELS * ORDER + 2, jnp.result_type(float).itemsize
    prices = settings.lam if isinstance(settings.lam, int) else len(settings.lam)
    ends = max(k * k if plan is None else len(plan.heads) for plan in plans)
    each = size * (
        k * k // 2 * nodes**2 + 4 * prices * ends * nodes + 16 * k * (batch.shape.drawn + batch.shape.queries)
    )
    most = max(1, int(_SHARE * (device.memory_stats() or {}).get("bytes_limit", 2**33)) // each)
    share = -(-batch.room[1] // mesh.size)
    return -(-share // -(-share // most))
