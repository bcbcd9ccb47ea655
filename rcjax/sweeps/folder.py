"""The folder of a sweep: what was asked for, what became of each log, and the results, part by part.

    sweep.json              the settings, the logs by their digests, the batches: what a sweep that goes on must match
    logs.parquet            a row per log: its models and costs, or why it could not be used
    fits/000042.parquet     a row per sample of a batch: its calibrators and marginals, from which models are made again
    parts/000042.parquet    the results of a batch: a row per sample, replicate, copula, search and λ

What is in `parts` is written last.
Files are written whole or not at all, so what is there is done. They depend on the problems alone, and hold no date: a
sweep that was killed and went on leaves the same bytes as one that was not.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from rcjax._base import json_checks as check
from rcjax._base.files import write_atomically

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
        return f"of {key} was {_short(old.get(key))} and is {_short(new.get(key))}"
    return f"was {_short(old)} and is {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


def read_plan(path: Path) -> dict[str, Any]:
    """What `sweep.json` holds; ValueError where that is not a sweep of this version."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path.parent}: no sweep was run into this folder: there is no {path.name}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: is damaged: {error}") from None
    try:
        check.header(record, FORMAT)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
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
