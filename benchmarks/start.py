"""The time that a person waits for each command: with nothing compiled yet, again, and on another log.

    python -m benchmarks.start [--data DIR] [--runs 5] [--program rcjax --program OTHER]

The log has 285 queries and five models: MMLU, Llama models, of the folder of logs (`--data`), or the demo's. The other
log is of other queries, 5 to 25 % more or fewer, another number in every run. The log of eleven models is drawn from
the demo's model three times. A row "nothing kept" begins with an empty folder of programmes; the rows below it use what
those above have left there. Medians of seconds: wall time, also over a Python loop of 10⁷ additions meanwhile, as
machines differ, and days; CPU of all threads, also over that of importing JAX. Several programs run in turns. Prints a
Markdown table.
"""

import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import record

#: Queries in the log, and in the other log by run.
QUERIES, OTHERS = 285, (270, 299, 228, 342, 214)
BUDGET = 1e-4


@dataclass(frozen=True)
class Logs:
    """The files of one run: a log, another one, and the same of eleven models."""

    first: Path
    other: Path
    wide: Path
    other_wide: Path
    options: tuple[str, ...]


@dataclass(frozen=True)
class Time:
    """Seconds that a command took: wall time, and CPU of all its threads, the system's included."""

    wall: float
    cpu: float


def write_drawn(path: Path, queries: int, seed: int, models: int) -> Path:
    """A log of the demo's five models, drawn as often as it takes for so many, each time dearer."""
    import polars as pl

    import rcjax

    frames = []
    for draw in range(-(-models // 5)):
        log = rcjax.sample_log(queries, seed=100 * draw + seed)
        count = min(5, models - 5 * draw)
        columns = {"logprob": log.logprob, "correct": log.correct, "cost": log.query_cost * 1.3**draw}
        values = {name: np.asarray(matrix, float)[:, :count].ravel() for name, matrix in columns.items()}
        names = [f"{name}{draw or ''}" for name in log.models[:count]] * queries
        frames.append(pl.DataFrame({"query": np.repeat(np.arange(queries), count), "model": names, **values}))
    pl.concat(frames).with_columns(pl.col("correct").cast(pl.Int8)).write_csv(path)
    return path


def write_logs(folder: Path, data: Path | None, run: int) -> Logs:
    """The logs of a run: the first and the wide one are always the same."""
    import polars as pl

    queries = OTHERS[run % len(OTHERS)]
    wide = write_drawn(folder / "wide.csv", QUERIES, 0, 11), write_drawn(folder / "wide2.csv", queries, 1 + run, 11)
    if data is None:
        five = write_drawn(folder / "log.csv", QUERIES, 0, 5), write_drawn(folder / "log2.csv", queries, 1 + run, 5)
        return Logs(*five, *wide, ())
    fresh = pl.read_csv(data / "mmlu_llama_test.csv")
    drawn = fresh["query"].unique().sample(queries, seed=run)
    fresh.filter(pl.col("query").is_in(drawn.implode())).write_csv(folder / "log2.csv")
    return Logs(data / "mmlu_llama_train.csv", folder / "log2.csv", *wide, ("--prices", str(data / "prices.toml")))


def commands(logs: Logs, folder: Path) -> list[list[tuple[str, list[str]]]]:
    """(row of the table, words of the command), in groups that share what is kept."""
    policy, budget = str(folder / "policy.json"), ["--budget", str(BUDGET), "--out"]

    def on(command: str, log: Path, *words: str) -> list[str]:
        return [command, str(log), *words, *(() if log in (logs.wide, logs.other_wide) else logs.options)]

    tune = on("tune", logs.first, *budget, policy)
    evaluate, check, retune = (
        [name, policy, str(logs.other), *logs.options] for name in ("evaluate", "check", "retune")
    )
    retune += ["--anyway", "--out", str(folder / "retuned.json")]
    tune_wide = [on("tune", log, *budget, str(folder / "wide.json")) for log in (logs.wide, logs.other_wide)]
    report = [on("report", log, *budget, str(folder / "report.html")) for log in (logs.first, logs.other)]
    return [
        [
            ("`rcjax tune`, nothing kept", tune),
            ("the same again", tune),
            ("another log", on("tune", logs.other, *budget, str(folder / "policy2.json"))),
            ("`rcjax evaluate`, after `tune`", evaluate),
            ("the same again", evaluate),
            ("`rcjax check`, after these", check),
            ("the same again", check),
            ("`rcjax retune`, after these", retune),
            ("the same again", retune),
        ],
        [("`rcjax report`, nothing kept", report[0]), ("the same again", report[0]), ("another log", report[1])],
        [
            ("`rcjax diagnose`, nothing kept", on("diagnose", logs.first)),
            ("the same again", on("diagnose", logs.first)),
            ("another log", on("diagnose", logs.other)),
        ],
        [
            ("`rcjax tune`, eleven models, nothing kept", tune_wide[0]),
            ("another log", tune_wide[1]),
            ("`rcjax diagnose`, eleven models, after `tune`", on("diagnose", logs.wide)),
            ("another log", on("diagnose", logs.other_wide)),
        ],
        [("`rcjax demo`, nothing kept", ["demo"]), ("the same again", ["demo"])],
    ]


def measure(program: list[str], words: list[str], cache: Path) -> Time:
    """Run a command to its end; a status of 1 without a message stands for a verdict."""
    environment = {**os.environ, "RCJAX_CACHE_DIR": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # bytecode is kept, as pip does
    start = time.perf_counter()
    process = subprocess.Popen(
        [*program, *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    message = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if status and (message or os.waitstatus_to_exitcode(status) != 1):
        raise SystemExit(f"{shlex.join(words)} failed:\n{message}")
    return Time(time.perf_counter() - start, usage.ru_utime + usage.ru_stime)


def one_run(program: list[str], logs: Logs) -> Iterator[tuple[tuple[int, int], str, Time]]:
    """(group and place in it, row, time) of every command; each group begins with nothing kept."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for group, rows in enumerate(commands(logs, folder)):
            cache = folder / f"kept-{group}"
            cache.mkdir(mode=0o700)
            for place, (row, words) in enumerate(rows):
                yield (group, place), row, measure(program, words, cache)


def main() -> None:
    """Measure, and print the table."""
    options = record.parser(__doc__)
    options.add_argument("--data", type=Path, help="a folder with mmlu_llama_train.csv, …_test.csv and prices.toml")
    options.add_argument("--runs", type=int, default=5, help="medians of so many")
    options.add_argument("--program", action="append", help="what to run; may be given several times")
    chosen = options.parse_args()
    programs = [shlex.split(program) for program in chosen.program or [str(Path(sys.executable).parent / "rcjax")]]
    names: dict[tuple[int, int], str] = {}
    times = [defaultdict[tuple[int, int], list[Time]](list) for _ in programs]
    loops, imports = [], []
    for run in range(chosen.runs):
        with tempfile.TemporaryDirectory() as folder:
            logs = write_logs(Path(folder), chosen.data, run)
            for program, kept in zip(programs, times, strict=True):
                loops.append(record.loop())
                importing = [sys.executable, "-c"], ["import jax; jax.devices()"], Path(folder)
                imports += [measure(*importing) for _ in range(3)]
                for place, row, taken in one_run(program, logs):
                    names[place] = row
                    kept[place].append(taken)
    _show(names, times, statistics.median(loops), _median(imports))


def _median(times: list[Time]) -> Time:
    return Time(*(statistics.median(getattr(one, field) for one in times) for field in ("wall", "cpu")))


def _show(
    names: dict[tuple[int, int], str], times: list[defaultdict[tuple[int, int], list[Time]]], loop: float, jax: Time
) -> None:
    heads = " wall, s | over the loop | CPU, s | over importing JAX |"
    print("| |" + heads * len(times) + "\n|---|" + "--:|--:|--:|--:|" * len(times))
    for place, row in names.items():
        medians = [_median(kept[place]) for kept in times]
        cells = (f" {t.wall:.2f} | {t.wall / loop:.1f} | {t.cpu:.2f} | {t.cpu / jax.cpu:.1f} |" for t in medians)
        print(f"| {row} |" + "".join(cells))
    print(f"\nThe Python loop took {loop:.2f} s meanwhile, `import jax; jax.devices()` {jax.cpu:.2f} s of the CPU.")

    def seconds(*places: tuple[int, int]) -> str:
        return "; ".join(f"{_median(times[0][place]).wall:.1f} s" for place in places)

    what = "`rcjax tune`, five models, 285 queries: first time; again; another log"
    record.headline(what, seconds((0, 0), (0, 1), (0, 2)))
    record.headline(
        "`rcjax evaluate`; `rcjax diagnose`, `rcjax report` of another log", seconds((0, 4), (2, 2), (1, 2))
    )
    record.headline("`rcjax tune`, eleven models: first time; another log", seconds((3, 0), (3, 1)))
    warm = {"tune": (0, 1), "evaluate": (0, 4), "check": (0, 6), "retune": (0, 8), "report": (1, 1), "diagnose": (2, 1)}
    over = "; ".join(f"{_median(times[0][place]).cpu / jax.cpu:.1f}" for place in warm.values())
    record.headline(f"CPU over that of importing JAX, the same again: {', '.join(warm)}", over)


if __name__ == "__main__":
    record.run(main)
