"""Logs of millions of rows: time and memory of reading, fitting and tuning, against the number of rows.

    python -m benchmarks.big_logs [--rows 100000 300000 1000000 3000000 10000000] [--kind csv] [--budget 2e-4]

Each log is synthetic (`rcjax.sample_log`, five models), and is written into a temporary folder in blocks. Each step
runs in a process of its own, and compiles its programs unless an earlier step compiled them for the same size. The
table has seconds of CPU, as processors are often shared, with wall time beside them. The exponent is the slope of log
time in log rows: over all sizes, and between the two largest sizes, where imports and compilation weigh least. Prints a
Markdown table.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import record

_BLOCK = 50_000  # queries drawn at a time


def write_log(path: Path, rows: int) -> None:
    """A synthetic log of so many rows, five for each query, as CSV or Parquet by the path's suffix."""
    import polars as pl

    import rcjax

    def blocks():
        for number, start in enumerate(range(0, rows // 5, _BLOCK)):
            log = rcjax.sample_log(_BLOCK, seed=number)
            n = min(_BLOCK, rows // 5 - start)
            names = {"logprob": log.logprob, "correct": log.correct, "cost": log.query_cost}
            columns = {name: np.asarray(matrix)[:n].ravel() for name, matrix in names.items()}
            ids = np.repeat(np.arange(start, start + n), len(log.models))
            frame = pl.DataFrame({"query": ids, "model": list(log.models) * n, **columns})
            yield frame.with_columns(pl.col("correct").cast(pl.Int8))

    if path.suffix == ".csv":
        with open(path, "wb") as file:
            for number, frame in enumerate(blocks()):
                frame.write_csv(file, include_header=number == 0)
        return
    parts = []
    for number, frame in enumerate(blocks()):
        parts.append(path.with_name(f"part-{number}.parquet"))
        frame.write_parquet(parts[-1])
    pl.scan_parquet(parts).sink_parquet(path)
    for part in parts:
        part.unlink()


def measure(command: list[str], environment: dict[str, str]) -> tuple[float, float, float]:
    """(seconds of CPU, seconds, peak resident memory in GiB) of a process of its own."""
    start = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    unit = 1 if sys.platform == "darwin" else 1024
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - start, usage.ru_maxrss * unit / 2**30


def commands(path: Path, budget: float) -> dict[str, list[str]]:
    """What is measured, by name."""
    head = "from rcjax.cli.app import start_jax; start_jax(); import jax, rcjax\n"
    read = f"log = rcjax.read_log({str(path)!r}, task='choice')\n"
    fit = "jax.block_until_ready(rcjax.fit(log))"
    tune = ["tune", str(path), "--task", "choice", "--budget", str(budget), "--json"]
    return {
        "read": [sys.executable, "-c", head + read],
        "read, fit": [sys.executable, "-c", head + read + fit],
        "`rcjax tune`": [sys.executable, "-c", "from rcjax.cli import main; main()", *tune],
    }


def main() -> None:
    """The table."""
    parser = record.parser(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10**5, 3 * 10**5, 10**6, 3 * 10**6, 10**7])
    parser.add_argument("--kind", choices=["csv", "parquet"], default="csv")
    parser.add_argument("--budget", type=float, default=2e-4, help="dollars per query")
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float, float]]] = {}
    print("| rows | file, MB | step | CPU, s | wall, s | peak memory, GiB |\n|--:|--:|---|--:|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"RCJAX_CACHE_DIR": str(Path(folder) / "compiled")}
        for rows in options.rows:
            path = Path(folder) / f"log.{options.kind}"
            # In a process of its own: this one stays small.
            code = f"from benchmarks.big_logs import *; write_log(Path({str(path)!r}), {rows})"
            measure([sys.executable, "-c", code], environment)
            for step, command in commands(path, options.budget).items():
                figures = measure(command, environment)
                found.setdefault(step, []).append(figures)
                cells = f"{rows:,} | {path.stat().st_size / 1e6:,.0f} | {step}"
                told = f"{step}: {rows:,} rows, with compilation"
                record.headline(told, f"{figures[0]:.0f} s of CPU, {figures[2]:.1f} GiB")
                print(f"| {cells} | {figures[0]:.1f} | {figures[1]:.1f} | {figures[2]:.2f} |", flush=True)
    if len(options.rows) > 1:
        print("\n| step | exponent, all sizes | exponent, two largest |\n|---|--:|--:|")
        for step, figures in found.items():
            seconds = np.log([each[0] for each in figures])
            slopes = [np.polyfit(np.log(options.rows[-last:]), seconds[-last:], 1)[0] for last in (len(seconds), 2)]
            print(f"| {step} | {slopes[0]:.2f} | {slopes[1]:.2f} |")


if __name__ == "__main__":
    record.run(main)
