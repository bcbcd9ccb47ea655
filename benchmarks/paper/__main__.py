"""The paper's tables and figures from a folder of logs, and what else a user would pick beside them.

    python -m benchmarks.paper --data DIR --out DIR [--reference DIR] [--quick] [--bayesian]

DIR of the data holds {benchmark}_{family}_train.csv and _test.csv (as many pairs as there are) and prices.toml; that
of the reference, where it is given, published_tables.json, authors_curves.csv and authors_runtime.csv, whose figures
are then shown beside ours. Each table is written as CSV and Markdown, figures as PNG; `index.md` holds all of them.
What is in the output folder already is not computed again: delete a file to have it made anew.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import jax
import polars as pl
from matplotlib.figure import Figure
from rich.progress import track

from benchmarks import record
from benchmarks.paper import areas, figures, runtime, sensitivity
from benchmarks.paper.inputs import CHOICE, Published, Source, read_folder
from benchmarks.paper.tables import TABLES
from benchmarks.report import markdown
from rcjax._base.files import write_atomically

Rows = list[dict]


_SHORT = 45  # lines of a table that is printed too; the folder has all of them


class Output:
    """The folder of results: makes what is missing, in order, and an index of it all."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.sections = folder, []

    def table(self, name: str, title: str, make: Callable[[], Iterable[dict]]) -> Rows:
        """The rows of a table, read back where it has been made before."""
        path = self.folder / f"{name}.csv"
        if not path.exists():
            rows = list(make())
            if not rows:  # a test of three models, and there are two
                return rows
            write_atomically(path, pl.DataFrame(rows, infer_schema_length=None).write_csv())
        frame = pl.read_csv(path, infer_schema_length=None)
        text = f"## {title}\n\n{markdown(frame)}\n"
        write_atomically(self.folder / f"{name}.md", text)
        self.sections.append(text)
        return frame.to_dicts()

    def figure(self, name: str, title: str, draw: Callable[[], Figure]) -> None:
        """A figure, drawn where it is missing."""
        path = self.folder / f"{name}.png"
        if not path.exists():
            draw().savefig(path, dpi=150)
        self.sections.append(f"## {title}\n\n![{title}]({path.name})\n")

    def index(self) -> None:
        """Everything in one page."""
        write_atomically(self.folder / "index.md", "\n".join(self.sections))


def per_source(sources: list[Source], what: str, make: Callable[[Source], Iterable[dict]]) -> Iterable[dict]:
    """The rows of all sources, with a bar of progress on a terminal."""
    shown = sys.stderr.isatty()
    for source in track(sources, description=what, disable=not shown):
        yield from make(source)


def reproduce(sources: list[Source], published: Published, out: Output, quick: bool, bayesian: bool) -> None:
    """All tables, then all figures."""
    replicates = 50 if quick else 1000
    for name, (title, function) in TABLES.items():

        def rows(function=function, name=name):
            return per_source(sources, name, lambda source: function(source, published, replicates))

        out.table(name, title, rows)
    fixed = out.table(
        "table7_areas",
        "Table 7: area under the error–cost curve of every cascade",
        lambda: per_source(sources, "areas", lambda source: areas.fixed_cascades(source, published, bayesian)),
    )
    against = [("rational tuning", b) for b in ("grid search", "paper's factorisation", "Bayesian optimisation")]
    against += [("authors' rational tuning", "authors' grid search")]
    against += [(method, "the authors'") for method in ("rational tuning", "paper's factorisation")]
    summary = [row for method, baseline in against for row in areas.by_length(fixed, method, baseline)]
    out.table("table7_summary", "Table 7, by length: negative is better", lambda: summary)
    for row in summary:
        if row["models"] == "all":
            told = f"area of {row['method']} against {row['against']}, {row['cascades']} fixed cascades, "
            figure = f"{row['change of area, %']:+.2f} %"
            record.headline(f"{told}{row['benchmark']}, {row['family']}", figure)
    out.table(
        "free_cascades",
        "Where the method chooses the models",
        lambda: per_source(sources, "free cascades", lambda source: areas.free_cascades(source, published)),
    )
    seeds = range(2 if quick else 20)
    few = out.table(
        "table8_low_sample",
        "Table 8: thirty training queries, by seed",
        lambda: per_source(sources, "low sample", lambda source: areas.low_sample(source, 30, seeds)),
    )
    out.table("table8_summary", "Table 8: means over seeds, with 95 % intervals", lambda: areas.over_seeds(few))
    for source in sources:
        name = f"{source.benchmark}_{source.family}"
        out.figure(f"figure5_{name}", f"Figure 5: {name}", lambda source=source: figures.curves(source))
        out.figure(f"appendix_f_{name}", f"Appendix F: {name}", lambda source=source: figures.correlations(source))
        out.figure(f"appendix_e_{name}", f"Appendix E: {name}", lambda source=source: figures.confident(source))
    fits = out.table(
        "figure7_sensitivity",
        "Figure 7: misfit of marginals and copulas, by cascade",
        lambda: per_source(sources, "misfit", lambda source: sensitivity.misfit(source)),
    )
    out.figure("figure7", "Figure 7: change of area by misfit", lambda: figures.sensitivity(fits, fixed))
    out.table(
        "figure8_run_time",
        "Figure 8: seconds for a frontier",
        lambda: runtime.run_times(sources[0], published, quick),
    )
    out.figure("figure6", "Figure 6: thirty training queries", lambda: figures.low_sample(few))
    out.index()


def main() -> None:
    """Reproduce from the command line."""
    parser = record.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the logs")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--reference", type=Path, help="folder of what was published")
    parser.add_argument("--choice", default=",".join(CHOICE), help="benchmarks of multiple choice")
    parser.add_argument("--quick", action="store_true", help="few replicates and seeds")
    parser.add_argument("--bayesian", action="store_true", help="Bayesian optimisation too: hours instead of minutes")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    sources = list(read_folder(options.data, tuple(options.choice.split(","))))
    if not sources:
        parser.error(f"{options.data} holds no pair of _train.csv and _test.csv")
    output = Output(options.out)
    reproduce(sources, Published.read(options.reference), output, options.quick, options.bayesian)
    print("\n".join(section for section in output.sections if 0 < section.count("\n") <= _SHORT))


if __name__ == "__main__":
    record.run(main)
