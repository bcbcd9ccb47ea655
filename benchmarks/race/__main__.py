"""From one log to the thresholds of one cascade at many λ: rcjax against what a user would pick instead.

    python -m benchmarks.race --out DIR [--quick] [--limit 120] [--device gpu]

Synthetic logs of 2 to 8 models, 10 to 1,000 λ, 300 to 100,000 queries; every method asks every model in turn and
minimises error + λ·cost. Then rcjax alone: fixed cascades and adaptive policies of up to 20 models, all subcascades of
up to 12, 10,000 λ, and up to a million problems at once. Each measurement has a process of its own, which is stopped
after `--limit` seconds; methods that take each λ on its own solve a few of them, and their time is scaled to all. Times
are medians; compilation is the first call less that. The loss is what the Markov-copula model predicts at the
thresholds found, less the least of any method; the loss on fresh queries is counted on 20,000 of them. Writes CSV
files, race.md and race.png; what has been measured in DIR is not measured again.

    python -m benchmarks.race --objectives --out DIR

measures objectives of one's own alone: `rcjax.solving.minimise` beside jaxopt's and scipy's L-BFGS-B and Bellman's
equation, on five models and 200 λ.
"""

import argparse
import dataclasses
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import polars as pl
from matplotlib.figure import Figure
from rich.progress import track

from benchmarks import record
from benchmarks.race.cells import KINDS, Setting
from benchmarks.race.contenders import METHODS
from benchmarks.race.objectives import METHODS as OWN_METHODS
from benchmarks.report import machine, markdown
from rcjax._base.files import write_atomically
from rcjax.report.plots import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE

_AXES = ("models", "lambdas", "queries")
_PATIENT = 8  # times the limit, where rcjax is alone


def problems_of_the_race(quick: bool) -> list[dict[str, int]]:
    """One of length, resolution and size varies at a time."""
    if quick:
        settings = [Setting(models=2, lambdas=10, queries=300), Setting(models=3, lambdas=30, queries=300)]
    else:
        settings = [Setting(models=k) for k in (2, 3, 4, 5, 6, 8)]
        settings += [Setting(lambdas=n) for n in (10, 1000)]
        settings += [Setting(queries=n) for n in (300, 10_000, 100_000)]
    return [dataclasses.asdict(setting) for setting in settings]


def stretches(quick: bool) -> list[dict]:
    """rcjax alone on long chains and many λ."""
    lengths = {"full": (2, 5, 10, 20), "adaptive": (2, 5, 10, 20), "all": (2, 4, 6, 8, 10, 12)}
    settings = [(name, k, 100) for name in lengths for k in ((2, 3) if quick else lengths[name])]
    settings += [] if quick else [("full", 5, n) for n in (10, 1000, 10_000)]
    settings += [] if quick else [("full", 20, 10_000), ("adaptive", 20, 10_000), ("all", 12, 10_000)]
    return [{"cascades": name, "models": k, "lambdas": n} for name, k, n in settings]


def many(quick: bool) -> list[dict]:
    """100 problems to a million at once, in both precisions."""
    counts = (100, 1000) if quick else (100, 1000, 10_000, 100_000, 1_000_000)
    return [{"problems": n, "dtype": dtype} for dtype, n in itertools.product(("float64", "float32"), counts)]


def own_objectives(quick: bool) -> dict[str, list[dict]]:
    """The same objective by every solver, and its value and slope."""
    size = {"models": 3, "lambdas": 20} if quick else {"models": 5, "lambdas": 200}
    return {
        "evaluations": [{"way": way, **size} for way in ("JAX", "numpy")],
        "objective": [{"method": name, **size} for name in OWN_METHODS],
    }


class Measurements:
    """A folder of measurements, a line of JSON each, made where they are missing."""

    def __init__(self, folder: Path, limit: float, device: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.limit, self.device = folder, limit, device
        self.path = folder / "measurements.jsonl"
        lines = self.path.read_text("utf-8").splitlines() if self.path.exists() else []
        self.known = {json.dumps(cell): figures for cell, figures in map(json.loads, lines)}

    def table(self, kind: str, cells: list[dict]) -> pl.DataFrame:
        """One row for each cell."""
        rows = [
            cell | self._measure([kind, self.device, cell])
            for cell in track(cells, description=kind, disable=not sys.stderr.isatty())
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def _measure(self, cell: list) -> dict[str, Any]:
        key = json.dumps(cell)
        if key not in self.known:
            kind, device, values = cell
            own = {"model_file": self._model_file(values)} if kind in ("fit", "contender") else {}
            self.known[key] = self._run([kind, device, values | own])
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([cell, self.known[key]]) + "\n")
        return self.known[key]

    def _model_file(self, values: dict[str, int]) -> str:
        return str(self.folder / f"model-{values['models']}-{values['queries']}.json")

    def _run(self, cell: list) -> dict[str, Any]:
        command = [sys.executable, "-m", "benchmarks.race", "--one", json.dumps(cell)]
        limit = self.limit * (1 if cell[0] == "contender" else _PATIENT)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            return {"failed": f"over {limit:g} s"}
        return json.loads(done.stdout) if done.returncode == 0 else {"failed": done.stderr.strip()[-200:]}


def compare(frame: pl.DataFrame) -> pl.DataFrame:
    """Beside each time its ratio to that of rcjax on the same problem, beside each loss how far the least is."""
    ours = pl.col("run, s").filter(pl.col("method") == "rcjax").first().over(_AXES)
    least = pl.col("loss").min().over(_AXES)
    return frame.with_columns(
        (pl.col("run, s") / ours).alias("run time over that of rcjax"),
        (pl.col("loss") - least).alias("loss over the least"),
    ).drop("loss")


def exponents(frame: pl.DataFrame, by: str, axes: tuple[str, ...], base: dict[str, int]) -> pl.DataFrame:
    """Slopes of log run time in the log of each axis, where the others are at their base, for each method."""
    rows = []
    for (name,), chosen in frame.group_by(by, maintain_order=True):
        row: dict[str, Any] = {by: name}
        for axis in axes:
            same = [pl.col(other) == base[other] for other in axes if other != axis]
            known = chosen.filter(pl.col("run, s").is_not_null(), *same).select(axis, "run, s").unique().to_numpy()
            row[axis] = float(np.polyfit(*np.log(known).T, 1)[0]) if len(known) > 2 else None
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def draw(tables: dict[str, pl.DataFrame]) -> Figure:
    """Run time on logarithmic axes: the race by length, resolution and size; rcjax by length; problems at once."""
    base = dataclasses.asdict(Setting())
    race, stretched, problems = (tables[kind] for kind in ("contender", "stretch", "at once"))
    figure = Figure(figsize=(13, 8), layout="constrained")
    grid = figure.add_gridspec(2, 6)
    markers, colours = (
        "osD^vP",
        (BLUE, GREY, ORANGE, PURPLE, GREEN, BLACK),
    )

    def panel(place, frame, x, by, label):
        ax = figure.add_subplot(place)
        for name, marker, colour in zip(frame[by].unique(maintain_order=True), markers, colours, strict=False):
            chosen = frame.filter(pl.col(by) == name, pl.col("run, s").is_not_null()).sort(x)
            ax.plot(chosen[x], chosen["run, s"], marker=marker, color=colour, linewidth=1.2, label=name)
        ax.set(xscale="log", yscale="log", xlabel=label, ylabel="seconds, compiled")
        ax.grid(color="#DDDDDD", linewidth=0.6)
        if x == "models":
            ax.set_xticks(sorted(set(frame[x])), labels=map(str, sorted(set(frame[x]))))
            ax.minorticks_off()
        return ax

    for place, axis in enumerate(_AXES):
        same = [pl.col(other) == base[other] for other in _AXES if other != axis]
        ax = panel(grid[0, 2 * place : 2 * place + 2], race.filter(*same), axis, "method", axis)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=len(METHODS), frameon=False)
    hundred = stretched.filter(pl.col("lambdas") == base["lambdas"])
    panel(grid[1, :3], hundred, "models", "cascades", "models, rcjax, 100 lambdas").legend(frameon=False, fontsize=8)
    panel(grid[1, 3:], problems, "problems", "dtype", "problems at once").legend(frameon=False, fontsize=8)
    return figure


def report(tables: dict[str, pl.DataFrame]) -> str:
    """Everything in one page."""
    base = dataclasses.asdict(Setting())
    slopes = exponents(tables["contender"], "method", _AXES, base)
    long = exponents(tables["stretch"], "cascades", ("models", "lambdas"), base)
    sections = {
        "The race": markdown(compare(tables["contender"])),
        "Fitted exponents of the run time": f"{markdown(slopes)}\n\n{markdown(long)}",
        "A fit, and each cascade on its own, as the paper times it": markdown(tables["every cascade"]),
        "rcjax on long chains and many lambdas": markdown(tables["stretch"]),
        "Many problems at once": markdown(tables["at once"]),
        "Fitting": markdown(tables["fit"]),
    }
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items())
    return f"{machine()}\n\n{body}\n"


def report_objectives(tables: dict[str, pl.DataFrame]) -> None:
    """Print what was measured of objectives of one's own."""
    solved = tables["objective"]
    busy = "run, s of CPU"
    (ours,) = solved.filter(pl.col("method") == "rcjax.solving.minimise")[busy]
    record.headline(
        "an objective of one's own, five models, 200 λ: `rcjax.solving.minimise`, compiled", f"{ours:.2g} s of CPU"
    )
    for name in ("jaxopt L-BFGS-B", "scipy L-BFGS-B, slopes by JAX", "scipy L-BFGS-B, differences"):
        (seconds,) = solved.filter(pl.col("method") == name)[busy]
        record.headline(f"the same by {name}, from one start", f"{seconds / ours:.2g} times as long")
    solved = solved.with_columns((pl.col(busy) / ours).alias("over minimise's"))
    print(f"{machine()}\n\n## Solved\n\n{markdown(solved)}\n\n## Value and slope\n\n{markdown(tables['evaluations'])}")


def main() -> None:
    """Race, or measure one thing."""
    parser = record.parser(__doc__)
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--objectives", action="store_true", help="objectives of one's own alone")
    parser.add_argument("--quick", action="store_true", help="few and small problems")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one method on one problem")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        kind, device, cell = json.loads(options.one)
        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_platforms", {"cpu": "cpu", "gpu": "cuda"}[device])
        print(json.dumps(KINDS[kind](**cell)))
        return
    if options.out is None:
        parser.error("--out is missing")
    made = Measurements(options.out, options.limit, options.device)
    if options.objectives:
        report_objectives({kind: made.table(kind, rows) for kind, rows in own_objectives(options.quick).items()})
        return
    race = problems_of_the_race(options.quick)
    logs = [dict(pair) for pair in dict.fromkeys(tuple((n, each[n]) for n in ("models", "queries")) for each in race)]
    cells = {
        "fit": logs,
        "contender": [{**problem, "method": name} for problem, name in itertools.product(race, METHODS)],
        "every cascade": [{"models": 3 if options.quick else 5, "lambdas": 17, "queries": 300}],
        "stretch": stretches(options.quick),
        "at once": many(options.quick),
    }
    tables = {kind: made.table(kind, each) for kind, each in cells.items()}
    for kind, table in tables.items():
        write_atomically(options.out / f"{kind.replace(' ', '_')}.csv", table.write_csv())
    ratios = compare(tables["contender"]).group_by("method", maintain_order=True)
    for (method,), rows in ratios:
        if method != "rcjax":
            ratio = rows["run time over that of rcjax"].median()
            record.headline(f"a frontier by {method}, median over the problems", f"{ratio:,.3g} times as long")
    page = report(tables)
    print(page)
    write_atomically(options.out / "race.md", f"# Race\n\n{page}\n![Run times](race.png)\n")
    draw(tables).savefig(options.out / "race.png", dpi=150)
    print(options.out / "race.md")


if __name__ == "__main__":
    record.run(main)
