"""Tables of results for people, and the progress towards them."""

import os
import platform
import sys

import jax
import polars as pl


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


def markdown(frame: pl.DataFrame) -> str:
    """A table in Markdown; numbers with four significant digits, "–" where there is none."""

    def cell(value):
        if value is None or value != value:
            return "–"
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    lines = [frame.columns, ["--:" if kind.is_numeric() else "---" for kind in frame.dtypes]]
    lines += [[cell(value) for value in row] for row in frame.iter_rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
