"""Tables of results as Markdown, the rows behind them, and the progress of a run."""

import json
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path

import jax
import numpy as np
import polars as pl
from numpy.typing import ArrayLike


def machine() -> str:
    """What the figures were measured on, in a sentence."""
    device = jax.devices()[0]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = f"Python {platform.python_version()}, jax {jax.__version__}"
    return f"{platform.machine()}, {cores} CPU cores, jax's device {device.device_kind}; {versions}."


def progress(text: str) -> None:
    """One line on a terminal, replaced by the next."""
    if sys.stderr.isatty():
        print(f"{text:<60}", end="\r", file=sys.stderr)


def collected(rows: Iterable[dict], label: str, out: Path | None, total: int | None = None) -> list[dict]:
    """All rows as they come: kept in a file as JSON lines, if there is one, and told of by a label to format.

    With the `total` number of rows to come, the label follows the share that is done.
    """
    found = []
    for row in rows:
        found.append(row)
        if out:
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
        done = "" if total is None else f"{len(found) / total:4.0%}  "
        progress(done + label.format(**row))
    return found


def with_error(values: ArrayLike, sign: str = "+") -> str:
    """The mean of some figures with its sign, and its standard error where there are several; "–" for none.

    `sign=""` is for shares, which have none.
    """
    values = np.asarray(values, float)
    if not values.size:
        return "–"
    error = f" ± {values.std(ddof=1) / np.sqrt(values.size):.2f}" if values.size > 1 else ""
    return f"{values.mean():{sign}.2f}{error}"


def markdown(frame: pl.DataFrame) -> str:
    """A table in Markdown; numbers with four significant digits, "–" where there is none."""

    def cell(value):
        if value is None or value != value:
            return "–"
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    lines = [frame.columns, ["--:" if kind.is_numeric() else "---" for kind in frame.dtypes]]
    lines += [[cell(value) for value in row] for row in frame.iter_rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
