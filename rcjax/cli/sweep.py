"""`rcjax sweep`: fit and solve many logs at once, from a TOML file."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax._base.wording import count
from rcjax.cli.app import start_jax
from rcjax.cli.console import HowFar, Screen, busy
from rcjax.cli.inputs import require_distinct, require_libraries, require_plausible_prices
from rcjax.cli.options import AsJson, Really
from rcjax.cli.printing import conclude, shown, warn

if TYPE_CHECKING:
    from rcjax.tuning.sweeps import Sweep

_MOST_LISTED = 5  # logs that were left out


def sweep(
    config: Annotated[Path, typer.Argument(metavar="CONFIG")],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FOLDER")] = None,
    float32: bool = False,
    ray: Annotated[str | None, typer.Option(metavar="HOST:PORT")] = None,
    really: Really = False,
    json_: AsJson = False,
) -> None:
    """Fit and solve many logs, cascades, copulas, prices and replicates at once.

    CONFIG has the arguments of `rcjax.tuning.sweeps.sweep` by name; it needs at least logs = ["logs/*.csv"]. Results
    are Parquet files in a folder, a row per point of a frontier. The same command resumes a sweep that was killed.

    Example: `rcjax sweep nightly.toml`

    Args:
        config: TOML file of the logs and the settings.
        out: Folder of the results. [default: CONFIG without .toml]
        float32: Solve in float32, which is faster on consumer GPUs.
        ray: Solve on a Ray cluster, a batch on each core or GPU: address of its head, or `auto` for RAY_ADDRESS or the
            cluster of this machine.
    """
    from rcjax._core.batching import cores

    start_jax(cpu_devices=cores(), float64=not float32, long=True)
    if ray is not None:
        _leave_to_ray()
    from rcjax.tuning.sweeps.sweeping import read_sweep, sweep as run_sweep

    settings = read_sweep(config)
    settings["out"] = str(out or settings["out"])
    _require_apart(config, settings)
    require_plausible_prices(settings.get("prices"), really)
    started = time.perf_counter()
    far = HowFar()
    with busy("solving", how_far=far), redirect_stdout(sys.stderr):  # Ray prints the nodes that it has lost
        done = run_sweep(**settings, ray=ray, progress=far.note)
    facts = _facts(done, time.perf_counter() - started)
    if facts["with_answers"]:
        logs = count(facts["with_answers"], "log")
        warn(f"the answers of {logs} are not used: a sweep is of confidences alone; rcjax tune compares answers")
    conclude(facts, partial(_show, facts), as_json=json_)


def _require_apart(config: Path, settings: Mapping[str, Any]) -> None:
    """Refuse a folder of results in which the sweep would overwrite its inputs."""
    folder = Path(settings["out"])
    written = [folder / "sweep.json", folder / "logs.parquet", *folder.glob("fits/*"), *folder.glob("parts/*")]
    logs = settings["logs"]
    paths = logs.values() if isinstance(logs, Mapping) else logs
    prices = settings.get("prices")
    inputs = [("CONFIG", config), *(("logs", path) for path in paths)]
    inputs += [("prices", prices)] if isinstance(prices, str) else []
    require_distinct([("--out", folder), *(("--out", path) for path in written)], inputs)


def _leave_to_ray() -> None:
    """Leave the GPUs of this machine to the tasks of Ray. Raises ValueError without Ray."""
    require_libraries("--ray", "ray", "ray")
    import jax

    jax.config.update("jax_platforms", "cpu")


def _facts(done: Sweep, seconds: float) -> dict[str, Any]:
    import polars as pl

    from rcjax.solving.frontier.points import PointStatus

    logs = done.logs
    counts = done.points.group_by("status").len().sort("status").collect()
    unused = logs.filter(pl.col("problem").is_not_null())
    return {
        "folder": str(done.path),
        "logs": logs.height - unused.height,
        "with_answers": int(logs["answers"].sum()) if "answers" in logs.columns else 0,
        "left_out": [{"log": row["log"], "problem": row["problem"]} for row in unused.to_dicts()],
        "points": int(counts["len"].sum()),
        "status": {PointStatus(row["status"]).message: row["len"] for row in counts.to_dicts()},
        "seconds": round(seconds, 3),
    }


@shown
def _show(facts: dict[str, Any]) -> None:
    screen = Screen()
    for entry in facts["left_out"][:_MOST_LISTED]:
        warn(f"{entry['log']} is left out: {entry['problem']}")
    more = len(facts["left_out"]) - _MOST_LISTED
    if more > 0:
        warn(f"and {more:,} more: see logs.parquet")
    screen.print(f"{count(facts['points'], 'point')} of {count(facts['logs'], 'log')}, in {facts['seconds']:,.1f} s")
    for message, points in facts["status"].items():
        screen.print(f"  {points:>12,}  {message}", markup=False, soft_wrap=True)
    screen.print(f"written to {facts['folder']}/parts: read them with polars, pandas or DuckDB", soft_wrap=True)
