"""The run of a sweep: read the logs, solve batch after batch on all devices, and write the results.

The folder of a sweep holds its settings, a table of the logs, and the results of each batch:

    sweep.json              settings, digests of the logs, number of batches: a resumed sweep must match them
    logs.parquet            a row per log: its models and costs, or the reason why it could not be used
    fits/000042.parquet     a row per sample of a batch: its calibrators and marginals, from which models are rebuilt
    parts/000042.parquet    the results of a batch: a row per sample, replicate, copula, search and λ

The file in `parts` is written last. Files are written atomically, so that an existing file is complete. The files
depend on the problems alone, and hold no date: a sweep that was killed and resumed leaves the same bytes as an
uninterrupted sweep.
"""

from __future__ import annotations

import dataclasses
import glob
import io
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import polars as pl

from rcjax._base.codec import SCHEMA_VERSION, Object, abbreviate, check_header, load_json, read_table, read_value
from rcjax._base.extras import version
from rcjax._base.files import write_atomically
from rcjax._core.batching import with_thread_settings
from rcjax.logs.errors import suggest_name
from rcjax.serving.price_lists import GENAI
from rcjax.solving.frontier.frontier import Frontier
from rcjax.tuning.sweeps.engines import (
    BatchTables,
    Engine,
    Work,
    connected,
    rebuild_frontier,
    rebuild_model,
    solve_here,
)
from rcjax.tuning.sweeps.problems import (
    MANY_PROBLEMS,
    PROBLEMS,
    Library,
    SweepFields,
    SweepSettings,
    name_logs,
    plan_batches,
)

FORMAT = "rcjax-sweep"


def open_folder(folder: Path, wanted: Mapping[str, Any]) -> None:
    """Make the folder of a sweep, or resume the sweep in it.

    Raises ValueError if the folder holds another sweep, with the difference, or results without a sweep.
    """
    plan = folder / "sweep.json"
    for name in ("fits", "parts"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if plan.exists():
        old, new = ({**record, **record["settings"]} for record in (read_plan(plan), json.loads(json.dumps(wanted))))
        for key in [key for key in {**old, **new} if key != "settings" and old.get(key) != new.get(key)]:
            difference = f"{key} was {abbreviate(old.get(key))} and is {abbreviate(new.get(key))}"
            raise ValueError(f"{folder}: holds another sweep: {difference}: give another folder, or delete this one")
    elif any((folder / "parts").glob("*.parquet")):
        raise ValueError(f"{folder}: there are results of a sweep, but no sweep.json: give another folder")
    else:
        write_atomically(plan, json.dumps(wanted, indent=1, allow_nan=False) + "\n")
    for path in folder, folder / "fits", folder / "parts":
        for stale in path.glob(".*.tmp"):  # left by a run that was killed while it wrote
            stale.unlink(missing_ok=True)


def read_plan(path: Path) -> dict[str, Any]:
    """Read `sweep.json`; ValueError if it is not a sweep of this version."""
    if not path.exists():
        raise ValueError(f"{path.parent}: no sweep was run into this folder: there is no {path.name}")

    def record(content: Any) -> dict[str, Any]:
        check_header(content, FORMAT)
        return content

    return load_json(path, record)


def part_path(folder: Path, number: int, kind: str = "parts") -> Path:
    """Return the path of the results of a batch, or of its "fits"."""
    return folder / kind / f"{number:06d}.parquet"


def write_table(path: Path, table: pl.DataFrame) -> None:
    """Write a table as Parquet, atomically."""
    content = io.BytesIO()
    table.write_parquet(content)
    write_atomically(path, content.getvalue())


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The results of a sweep in its folder.

    >>> import rcjax, tempfile
    >>> logs = {"monday": rcjax.sample_log(300, seed=0), "tuesday": rcjax.sample_log(300, seed=1)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     swept = rcjax.tuning.sweeps.sweep(logs, folder, cascades="labels", lam=5)
    ...     swept.points.select("log", "copula", "status").collect().shape, swept.logs["queries"].to_list()
    ((10, 3), [300, 300])
    """

    path: Path

    @property
    def points(self) -> pl.LazyFrame:
        """A row per log, seed, replicate, search, copula and λ, as a polars `LazyFrame` over the parts.

        `log`, `seed`, `replicate` (0: the sample itself), `cascades` (the search), `copula` (null for "labels"), `lam`;
        `error` and `cost`, expected per query; `status`, a `PointStatus`;
        `cascade`, the names of its models; `thresholds`, calibrated confidences in the log's order of models (null
        for adaptive policies); `bounds` and `actions`, the policy in the form of `Frontier`;
        `held_out_error` and `held_out_cost`, on the `held_out` queries that the problem was not tuned on and all
        models answered. Figures are null for an unsolved point, or without held-out queries.
        """
        return pl.scan_parquet(self.path / "parts" / "*.parquet")

    @property
    def logs(self) -> pl.DataFrame:
        """A row per log: `models`, their mean `cost`, `queries`, `digest`; or the `problem` of a log left out."""
        return pl.read_parquet(self.path / "logs.parquet")

    def frontier(
        self, log: str, *, seed: int | None = None, cascades: str | None = None, copula: str | None = None
    ) -> Frontier:
        """Return the frontier of a log, with its model; `frontier(log).policy(budget=…)` is a policy to deploy.

        Args:
            log: name of the log.
            seed, cascades, copula: choice among several of the sweep; by default, the first.

        Raises ValueError if the sweep does not have them, or has not solved them.
        """
        settings = self.plan["settings"]
        choices = {"seed": settings["seeds"], "cascades": list(settings["cascades"]), "copula": settings["copulas"]}
        wanted = {"seed": seed, "cascades": cascades, "copula": copula}
        for name, available in choices.items():
            wanted[name] = available[0] if wanted[name] is None else wanted[name]
            if wanted[name] not in available:
                raise ValueError(f"{name} is {wanted[name]!r}; this sweep has {', '.join(map(str, available))}")
        search = settings["cascades"][wanted["cascades"]]
        of_log = pl.col("log") == log, pl.col("seed") == wanted["seed"]
        fits = pl.scan_parquet(self.path / "fits" / "*.parquet").filter(*of_log).collect()
        (row,) = self.logs.filter(pl.col("log") == log).to_dicts() or [{"problem": "the sweep has no such log"}]
        if row["problem"] is not None or fits.is_empty():
            raise ValueError(f"no frontier of {log!r}: {row['problem'] or 'the sweep has not solved it yet'}")
        of_copula = pl.col("copula") == wanted["copula"] if search != "labels" else pl.col("copula").is_null()
        same = pl.col("replicate") == 0, pl.col("cascades") == wanted["cascades"], of_copula
        model = rebuild_model(row, fits["fit"][0], wanted["copula"])
        return rebuild_frontier(model, self.points.filter(*of_log, *same).collect(), search)

    @property
    def plan(self) -> dict[str, Any]:
        """The content of `sweep.json`: settings, digests of logs, number of batches."""
        return read_plan(self.path / "sweep.json")


def sweep(
    logs: Mapping[str, Any] | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    prices: Any = None,
    task: str = "generation",
    devices: Sequence[Any] | None = None,
    ray: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    **settings: Unpack[SweepFields],
) -> Sweep:
    """Fit and solve the product of logs, searches, copulas, λ, bootstrap replicates and seeds.

    Problems are solved in batches of equal shape. Results go to a folder batch by batch; another call resumes a sweep
    that was killed. A log that cannot be used is listed in `Sweep.logs` with the reason, and the others are solved.

    Args:
        logs: logs or files by name, or paths of files.
        out: folder of the results.
        prices, task: options of `read_log`, for files.
        devices: devices to use; by default, all devices of JAX.
        ray: HOST:PORT of the head of a Ray cluster, which solves each batch as a task on one GPU, or on one core if the
            cluster has no GPU; "auto": the cluster of this process or machine. None: the devices of this process.
        progress: function that is called with the number of solved problems and the number of all problems.
        settings: fields of `SweepSettings`.

    Raises ValueError for impossible settings, a folder that holds another sweep, or if no log can be used;
    ConnectionError if there is no Ray cluster, or it lost a batch four times.
    """
    fields: dict[str, Any] = dict(settings)  # with lists, which the record turns into tuples
    chosen = SweepSettings(**fields)
    if chosen.batch is None:
        accelerated = ray is None and (devices or jax.devices())[0].platform != "cpu"
        chosen = dataclasses.replace(chosen, batch=MANY_PROBLEMS if accelerated else PROBLEMS)
    if ray is not None and devices is not None:
        raise ValueError("ray: a cluster has devices of its own: leave out devices")
    library = Library(name_logs(logs), {"prices": prices, "task": task})
    with connected(ray) if ray is not None else nullcontext(partial(solve_here, devices=devices)) as engine:
        batches = plan_batches(library.survey(chosen), chosen)
        _run(engine, Work(library, chosen, batches), Path(out), progress or (lambda done, total: None))
    return Sweep(Path(out))


def _run(engine: Engine, work: Work, target: Path, report: Callable[[int, int], None]) -> None:
    """Solve the missing batches, and write them in a thread, so that the next batch does not wait for the disk."""
    missing = _prepare(target, work)
    sizes = [len(batch.problems) for batch in work.batches]
    total = sum(sizes)
    done = total - sum(sizes[number] for number in missing)
    report(done, total)

    def finish(number: int, future: Future[None]) -> None:
        nonlocal done
        future.result()
        done += sizes[number]
        report(done, total)

    writing: deque[tuple[int, Future[None]]] = deque()
    # The engine is closed at once if a file cannot be written.
    with closing(engine(work, missing)) as solved, ThreadPoolExecutor(1) as writer:
        for number, tables in solved:
            writing.append((number, writer.submit(with_thread_settings(_write), target, number, tables)))
            if len(writing) > 1:
                finish(*writing.popleft())
        for last in writing:
            finish(*last)


def _write(target: Path, number: int, tables: Callable[[], BatchTables]) -> None:
    fits, points = tables()
    write_table(part_path(target, number, "fits"), fits)
    write_table(part_path(target, number), points)


def _prepare(target: Path, work: Work) -> list[int]:
    """Make or resume the folder; return the numbers of the missing batches."""
    entries = work.library.entries
    if not work.batches:
        name, entry = next(iter(entries.items()))
        raise ValueError(f"no log can be used; {name}: {entry.problem}")
    wanted = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "rcjax": version(),
        "dtype": str(jnp.result_type(float)),
        "settings": work.settings.to_json(),
        "logs": {name: entry.digest for name, entry in entries.items()},
        "batches": len(work.batches),
    }
    open_folder(target, wanted)
    write_table(target / "logs.parquet", pl.DataFrame(list(entries.values())))
    return [number for number in range(len(work.batches)) if not part_path(target, number).exists()]


_ARGUMENTS = ("logs", "out", "prices", "task")  # arguments of `sweep` in a file, other than the settings


def read_sweep(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the arguments of `sweep` from a TOML file, whose paths are relative to its folder.

    `logs` is a list of paths, which may have wildcards (`logs/*.csv`), or a table of paths by name. `prices` is a file,
    a table, or "genai"; the other entries are as for `sweep`. The default of `out` is a folder named like the file.
    Raises ValueError if the file cannot be read, has an unknown entry, or no log.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file: give the TOML file of a sweep")
    settings = read_table(path)
    names = [*_ARGUMENTS, *(field.name for field in dataclasses.fields(SweepSettings))]
    try:
        for key in read_value(Object, settings, "file"):
            if key not in names:
                raise ValueError(
                    f"{key} is not a setting of a sweep{suggest_name(key, names)}: there are {', '.join(names)}"
                )
        SweepSettings(**{key: value for key, value in settings.items() if key not in _ARGUMENTS})
        places = {"out": read_value(str, settings.get("out", path.stem), "out")}
        if not isinstance(settings.get("prices", {}), Mapping) and settings["prices"] != GENAI:
            places["prices"] = read_value(str, settings["prices"], "prices")
        settings["logs"] = _logs(settings.get("logs"), path.parent)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}: correct the file") from None
    return settings | {key: str(path.parent / place) for key, place in places.items()}


def _logs(value: Any, folder: Path) -> Any:
    """Return the paths of the logs, by name if they have names; a path without wildcards may be missing."""
    files = [*value.values()] if isinstance(value, dict) else value
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise ValueError('logs: give a list of files such as ["logs/*.csv"], or a table of files by name')
    if isinstance(value, dict):
        return {name: str(folder / file) for name, file in value.items()}
    files = []
    for pattern in value:
        matches = sorted(glob.glob(str(folder / pattern))) if glob.has_magic(pattern) else [str(folder / pattern)]
        if not matches:
            raise ValueError(f"logs: no file is named {pattern}: correct the pattern, or leave it out")
        files += matches
    return list(dict.fromkeys(files))
