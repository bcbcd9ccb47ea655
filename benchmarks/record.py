"""What a benchmark prints, kept in benchmarks/results/NAME.md with its command, date and versions.

    python -m benchmarks.speed             # print
    python -m benchmarks.speed --record            # print, and write benchmarks/results/speed.md
    python -m benchmarks.drift … --record power    # one part of a benchmark, benchmarks/results/drift_power.md

A program makes its options by `parser`, names its figures, of which `rcjax/docs/measured.md` shows some, by `headline`,
and runs by `run(main)`. Only `--record` writes: a quick try with few logs must not replace a long run.
"""

import argparse
import io
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

from rcjax._base.files import write_atomically

RESULTS = Path(__file__).parent / "results"
TABLE = "| what | figure |\n|---|---|"

_headlines: list[tuple[str, str]] = []


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all benchmarks have, to which a program adds its own."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    told = "write what is printed to benchmarks/results/ too; PART where the benchmark has several"
    options.add_argument("--record", nargs="?", const="", metavar="PART", help=told)
    return options


def headline(what: str, figure: str) -> None:
    """Name a figure for the page: `headline("fit, five models, 300 queries", "0.035 s")`."""
    _headlines.append((what, figure))


def run(main: Callable[[], None]) -> None:
    """Run a program; with `--record`, and where it ends well, keep what it printed."""
    part, words = _split(sys.argv[1:])
    if part is None:
        main()
        return
    _headlines.clear()
    printed = _Both(sys.stdout)
    with redirect_stdout(printed):
        main()
    module = sys.modules["__main__"]
    name = (module.__spec__.name if module.__spec__ else "benchmark").removesuffix(".__main__")
    path = RESULTS / f"{'_'.join(filter(None, [name.rpartition('.')[2], part]))}.md"
    path.parent.mkdir(exist_ok=True)
    command = " ".join(["python -m", name, *words])
    title = (module.__doc__ or name).strip().partition("\n")[0].rstrip(".")
    write_atomically(path, document(title, command, printed.text.getvalue()))
    print(f"wrote {path.parent.name}/{path.name}", file=sys.stderr)


def document(title: str, command: str, printed: str) -> str:
    """The file of one run."""
    rows = "\n".join(f"| {what} | {figure} |" for what, figure in _headlines)
    table = f"{TABLE}\n{rows}\n\n" if rows else ""
    return f"# {title}\n\n    {command}\n\n{circumstances()}\n\n{table}{printed.strip()}\n"


def circumstances() -> str:
    """The day, the versions and the machine, with how long Python takes for a loop: machines differ, and days."""
    packages = ", ".join(f"{package} {version(package)}" for package in ("rcjax", "jax", "jaxlib", "numpy"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    today = datetime.now(UTC).date().isoformat()
    return (
        f"{today}. {packages}, Python {platform.python_version()}; {platform.system()}, {platform.machine()}, "
        f"{cores} CPU cores. A Python loop of 10⁷ additions took {loop():.2f} s."
    )


def loop() -> float:
    """Seconds that Python takes to add ten million numbers: how fast this machine is, today."""
    start, total = time.perf_counter(), 0
    for number in range(10**7):
        total += number
    return time.perf_counter() - start


def _split(words: list[str]) -> tuple[str | None, list[str]]:
    """(the part to record, None for nothing; the other words, with DIR for a folder: it is nobody's business where)."""
    known, others = parser(None).parse_known_args([word for word in words if word not in ("-h", "--help")])
    return known.record, ["DIR" if os.path.sep in word else shlex.quote(word) for word in others]


class _Both(io.TextIOBase):
    """A stream that writes to another one, and remembers."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.text = stream, io.StringIO()

    def write(self, text: str, /) -> int:
        self.stream.write(text)
        return self.text.write(text)

    def flush(self) -> None:
        self.stream.flush()
