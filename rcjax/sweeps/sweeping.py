"""Running a sweep: the logs read, batch after batch solved on all devices and written, until nothing is left.

The folder of a sweep holds what was asked for, what became of each log, and the results, part by part:

    sweep.json              the settings, the logs by their digests, the batches: what a sweep that goes on must match
    logs.parquet            a row per log: its models and costs, or why it could not be used
    fits/000042.parquet     a row per sample of a batch: its calibrators and marginals, from which models are made again
    parts/000042.parquet    the results of a batch: a row per sample, replicate, copula, search and λ

What is in `parts` is written last.
Files are written whole or not at all, so what is there is done. They depend on the problems alone, and hold no date: a
sweep that was killed and went on leaves the same bytes as one that was not.
"""

from __future__ import annotations

import dataclasses
import glob
import inspect
import io
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl

from rcjax._base.checks import SCHEMA_VERSION, header, instance, read_table, shown
from rcjax._base.extras import version
from rcjax._base.files import write_atomically
from rcjax._core.batching import as_here
from rcjax.frontier.frontier import Frontier
from rcjax.logs.errors import near
from rcjax.sweeps.engines import BatchTables, Engine, Work, connected, solve_here
from rcjax.sweeps.problems import (
    MANY_PROBLEMS,
    PANELS,
    PROBLEMS,
    Batch,
    Library,
    Search,
    SweepSettings,
    named,
    plan_batches,
)
from rcjax.sweeps.result_tables import frontier_of, model_of

FORMAT = "rcjax-sweep"


def open_folder(folder: Path, wanted: Mapping[str, Any]) -> None:
    """Make the folder of a sweep, or go on with the one that is there.

    Raises ValueError where it holds another sweep, and says what differs; or anything else.
    """
    plan = folder / "sweep.json"
    for name in ("fits", "parts"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if plan.exists():
        _check_same(plan, wanted)
    elif any((folder / "parts").glob("*.parquet")):
        raise ValueError(f"{folder}: there are results of a sweep, but no sweep.json: give another folder")
    else:
        write_atomically(plan, json.dumps(wanted, indent=1, allow_nan=False) + "\n")
    for path in folder, folder / "fits", folder / "parts":
        for stale in path.glob(".*.tmp"):  # of a run that was killed while it wrote
            stale.unlink(missing_ok=True)


def _check_same(plan: Path, wanted: Mapping[str, Any]) -> None:
    record = read_plan(plan)
    for key, value in json.loads(json.dumps(wanted)).items():
        if record.get(key) != value:
            difference = _difference(record.get(key), value)
            raise ValueError(
                f"{plan.parent}: holds another sweep: {key} {difference}: give another folder, or delete this one"
            )


def _difference(old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        key = next(key for key in [*old, *new] if old.get(key) != new.get(key))
        return f"of {key} {_difference(old.get(key), new.get(key))}"
    return f"was {shown(old)} and is {shown(new)}"


def read_plan(path: Path) -> dict[str, Any]:
    """What `sweep.json` holds; ValueError where that is not a sweep of this version."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        header(record, FORMAT)
    except FileNotFoundError:
        raise ValueError(f"{path.parent}: no sweep was run into this folder: there is no {path.name}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}: give the folder of a sweep") from None
    return record


def part_path(folder: Path, number: int, kind: str = "parts") -> Path:
    """Where the results of a batch lie, or its "fits"."""
    return folder / kind / f"{number:06d}.parquet"


def finished(folder: Path, batches: int) -> list[bool]:
    """Of each batch, whether its results are there."""
    return [part_path(folder, number).exists() for number in range(batches)]


def write_table(path: Path, table: pl.DataFrame) -> None:
    """Write a table as Parquet, at once."""
    content = io.BytesIO()
    table.write_parquet(content)
    write_atomically(path, content.getvalue())


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What a sweep left in its folder.

    >>> import rcjax, tempfile
    >>> logs = {"monday": rcjax.sample_log(80, seed=0), "tuesday": rcjax.sample_log(90, seed=1)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     swept = rcjax.sweeps.sweep(logs, folder, cascades="labels", lam=5)
    ...     swept.points.select("log", "copula", "status").collect().shape, swept.logs["queries"].to_list()
    ((10, 3), [80, 90])
    """

    path: Path

    @property
    def points(self) -> pl.LazyFrame:
        """A row per log, seed, replicate, search, copula and λ, as a polars `LazyFrame` over the parts.

        `log`, `seed`, `replicate` (0: the sample itself), `cascades` (the search), `copula` (null for "labels"), `lam`;
        `error` and `cost` per query, as expected; `status`, a `PointStatus`;
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

        Args:
            log: the name of the log.
            seed, cascades, copula: which, where the sweep has several; the first ones by default.

        Raises ValueError where the sweep does not have them, or they are not solved.
        """
        settings = self.plan["settings"]
        choices = {"seed": settings["seeds"], "cascades": list(settings["cascades"]), "copula": settings["copulas"]}
        wanted = {"seed": seed, "cascades": cascades, "copula": copula}
        for name, available in choices.items():
            wanted[name] = available[0] if wanted[name] is None else wanted[name]
            if wanted[name] not in available:
                raise ValueError(f"{name} is {wanted[name]!r}; of this sweep it is {', '.join(map(str, available))}")
        search = settings["cascades"][wanted["cascades"]]
        of_log = pl.col("log") == log, pl.col("seed") == wanted["seed"]
        fits = pl.scan_parquet(self.path / "fits" / "*.parquet").filter(*of_log).collect()
        (row,) = self.logs.filter(pl.col("log") == log).to_dicts() or [{"problem": "it is none of this sweep's"}]
        if row["problem"] is not None or fits.is_empty():
            raise ValueError(f"no frontier of {log!r}: {row['problem'] or 'the sweep has not come to it'}")
        of_copula = pl.col("copula") == wanted["copula"] if search != "labels" else pl.col("copula").is_null()
        same = pl.col("replicate") == 0, pl.col("cascades") == wanted["cascades"], of_copula
        model = model_of(row, fits["fit"][0], wanted["copula"])
        return frontier_of(model, self.points.filter(*of_log, *same).collect(), search)

    @property
    def plan(self) -> dict[str, Any]:
        """What was swept over, as `sweep.json` has it."""
        return read_plan(self.path / "sweep.json")

    @property
    def finished(self) -> bool:
        """Whether all parts are there."""
        return all(finished(self.path, self.plan["batches"]))


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
    batch: int | None = None,
    panels: int = PANELS,
    prices: Any = None,
    task: str = "generation",
    devices: Sequence[Any] | None = None,
    on: Literal["ray"] | None = None,
    address: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Fit and solve the product of logs, searches, copulas, λ, bootstrap replicates and seeds.

    Problems are solved in batches of equal shape. Results go to a folder part by part; a sweep that was killed goes on
    where it was when it is called again. A log that cannot be used is told of in `Sweep.logs`, and the others are swept
    over.

    Args:
        logs: logs or files by name, or paths of files.
        out: the folder of the results.
        cascades: searches of `solve_frontier`: "all" (of at most `max_length` models), "full", "adaptive", "labels"
            (the best single model or pair by the labels), several of these, or lists of cascades by name.
        copulas: families, fitted by Kendall's τ.
        lam: how many λ to solve for, on a grid of each log's own that covers all it can do; or the λ.
        replicates: bootstrap replicates of each problem, beside the problem itself.
        seeds: one, or several. Each takes other queries to train on, and draws other replicates.
        train: a share or a number of queries to train on; the queries left out judge the points. None: all.
        max_length: the most models in a cascade; None: all.
        batch: the most problems solved at once, and written together: by default 256 on a CPU, and on an accelerator
            4,096, as far as its memory goes at a time.
        panels: of eight quadrature nodes each, on each model's confidences: 9 tell error to 5e-6 but of the sharpest
            mixtures, 17 are those of `solve_frontier`, and take 1.4 times as long.
        prices, task: as `read_log` takes them, for files.
        devices: by default all that JAX has, those of other processes after `jax.distributed.initialize` included.
        on: "ray": batches are tasks of a Ray cluster that exists, each on one GPU, or one core where there is none.
            None: the devices of this process.
        address: HOST:PORT of the cluster's head. By default the cluster that this process, or machine, is part of.
        progress: called with how many problems are done, and how many there are.

    Raises ValueError for settings that make no sense, a folder that holds another sweep, or where no log can be used;
    ConnectionError where there is no Ray cluster, or it lost a batch four times.
    """
    if batch is None:
        accelerated = on is None and (devices or jax.devices())[0].platform != "cpu"
        batch = MANY_PROBLEMS if accelerated else PROBLEMS
    taken: Any = cascades, copulas, lam, replicates, seeds, train, max_length, batch, panels
    settings = SweepSettings(*taken)
    library = Library(named(logs), {"prices": prices, "task": task})
    with _engine(on, address, devices) as engine:
        batches = plan_batches(library.survey(settings), settings)
        _run(engine, Work(library, settings, batches), Path(out), progress or (lambda done, total: None))
    return Sweep(Path(out))


def _engine(on: str | None, address: str | None, devices: Any) -> AbstractContextManager[Engine]:
    """What solves the batches, within a block; ValueError where the arguments do not go together."""
    if on is None and address is None:
        return nullcontext(partial(solve_here, devices=devices))
    if on != "ray":
        wrong = "address is that of a Ray cluster" if on is None else f"on is {on!r}"
        raise ValueError(f"{wrong}: give on='ray' for a Ray cluster, or neither for this process")
    if devices is not None or jax.distributed.is_initialized():
        raise ValueError("on='ray' takes the devices of a Ray cluster: leave out devices and jax.distributed")
    return connected(address)


def _run(engine: Engine, work: Work, target: Path, report: Callable[[int, int], None]) -> None:
    """Have what is missing solved, and write it, in a thread: the next batch waits for no disk."""
    left = _prepare(target, work.settings, work.library, work.batches)
    sizes = [len(batch.problems) for batch in work.batches]
    total = sum(sizes)
    done = total - sum(sizes[number] for number in left)
    report(done, total)

    def written(number: int, future: Future[None]) -> None:
        nonlocal done
        future.result()
        done += sizes[number]
        report(done, total)

    writing: deque[tuple[int, Future[None]]] = deque()
    # Closed at once, so that nothing goes on where a file cannot be written.
    with closing(engine(work, left)) as solved, ThreadPoolExecutor(1) as writer:
        for number, tables in solved:
            writing.append((number, writer.submit(as_here(_write), target, number, tables)))
            if len(writing) > 1:
                written(*writing.popleft())
        for last in writing:
            written(*last)
    _wait_for_all()


def _write(target: Path, number: int, tables: Callable[[], BatchTables] | None) -> None:
    if tables is not None:
        made = tables()
        write_table(part_path(target, number, "fits"), made.fits)
        write_table(part_path(target, number), made.points)


def _prepare(target: Path, settings: SweepSettings, library: Library, batches: list[Batch]) -> list[int]:
    """Make the folder, or find it; the numbers of the batches that are left to do, the same in every process."""
    if not batches:
        name, entry = next(iter(library.entries.items()))
        raise ValueError(f"no log can be swept over; of {name}: {entry.problem}")
    wanted = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "rcjax": version(),
        "dtype": str(jnp.result_type(float)),
        "settings": dataclasses.asdict(settings),
        "logs": {name: entry.digest for name, entry in library.entries.items()},
        "batches": len(batches),
    }
    done = np.zeros(len(batches), bool)
    if jax.process_index() == 0:
        open_folder(target, wanted)
        write_table(target / "logs.parquet", pl.DataFrame(list(library.entries.values())))
        done = np.array(finished(target, len(batches)))
    if jax.process_count() > 1:
        from jax.experimental.multihost_utils import broadcast_one_to_all

        done = np.asarray(broadcast_one_to_all(done))
    return np.flatnonzero(~done).tolist()


def _wait_for_all() -> None:
    if jax.process_count() > 1:
        from jax.experimental.multihost_utils import sync_global_devices

        sync_global_devices("rcjax.sweeps.sweep")


_NOT_IN_FILES = {"devices", "progress", "on", "address"}  # how to sweep, not what over


def read_sweep(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arguments of `sweep` that a TOML file holds; paths in it are relative to its folder.

    `logs` is a list of paths, which may have wildcards (`logs/*.csv`), or a table of paths by name; `prices` a file,
    or a table; everything else is as `sweep` has it. Without `out` results go to a folder of the file's own name.
    Raises ValueError where the file cannot be read, or names what `sweep` does not know, or no log.
    """
    path = Path(path)
    everything = inspect.signature(sweep).parameters
    names = [name for name in everything if name not in _NOT_IN_FILES]
    defaults: dict[str, Any] = {
        field.name: everything[field.name].default for field in dataclasses.fields(SweepSettings)
    }
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file: give the TOML file of a sweep")
    settings = read_table(path)
    try:
        instance(settings, Mapping, "what it holds")
        for key in settings:
            if key not in names:
                raise ValueError(f"{key} is no setting of a sweep{near(key, names)}: there are {', '.join(names)}")
        instance(settings.setdefault("out", path.stem), str, "out")
        instance(settings.get("prices", ""), (str, Mapping), "prices")
        chosen = {key: value for key, value in settings.items() if key in defaults}
        SweepSettings(**{**defaults, "batch": PROBLEMS, **chosen})  # pyright: ignore
        settings["logs"] = _logs(settings.get("logs"), path.parent)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}: correct the file") from None
    for key in ("out", "prices"):
        if isinstance(settings.get(key), str):
            settings[key] = str(path.parent / settings[key])
    return settings


def _logs(value: Any, folder: Path) -> Any:
    """Paths of files, by name where they have one; of a name without wildcards the file may be missing."""
    files = [*value.values()] if isinstance(value, dict) else value
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise ValueError('logs: give a list of files such as ["logs/*.csv"], or a table of files by name')
    if isinstance(value, dict):
        return {name: str(folder / file) for name, file in value.items()}
    files = []
    for pattern in value:
        some = sorted(glob.glob(str(folder / pattern))) if glob.has_magic(pattern) else [str(folder / pattern)]
        if not some:
            raise ValueError(f"logs: no file is named {pattern}: correct the pattern, or leave it out")
        files += some
    return list(dict.fromkeys(files))
