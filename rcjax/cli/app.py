"""The command line, whose commands are `rcjax collect`, `import`, `tune` and those that work with what it gives.

Importing this module is light; a command imports JAX when it starts to work. Only here, never on
`import rcjax`, are float64 and JAX's persistent compilation cache switched on: a program of the user's own
decides for itself.

Exit status: 0 fine, 1 infeasible or bad data (one line on standard error says what; with RCJAX_TRACEBACK=1 in
the environment, where it was raised), 2 usage. `rcjax check`, which is for scripts: 1 drifted, 2 whatever went wrong.
"""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from rcjax.cli.check import check
from rcjax.cli.collect import collect
from rcjax.cli.demo import demo
from rcjax.cli.diagnose import diagnose
from rcjax.cli.evaluate import evaluate
from rcjax.cli.failures import CommandLine
from rcjax.cli.grade import grade
from rcjax.cli.import_ import import_
from rcjax.cli.label import label
from rcjax.cli.option_records import LongHelp
from rcjax.cli.printing import open_closed_streams
from rcjax.cli.report import report
from rcjax.cli.retune import retune
from rcjax.cli.serve import serve
from rcjax.cli.sweep import sweep
from rcjax.cli.tune import tune

app = typer.Typer(
    cls=CommandLine,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run() -> None:
    """Run the command line with the arguments of the process."""
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):  # a terminal without arrows shows question marks, not a traceback
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    app()


def _version(wanted: bool) -> None:
    if wanted:
        from rcjax._base.extras import version

        typer.echo(f"rcjax {version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Confidence thresholds for LLM cascades, from a log of what the models answered.

    A cascade asks a cheap model first and a larger one only if the cheap one is unsure. To look at it, without
    data: `rcjax demo`. With answers in a log: `rcjax tune LOG`. With questions: `rcjax collect`. With only an endpoint:
    `rcjax serve`.
    """


_MAKE, _TUNE, _SERVE = "From questions to a log", "From a log to a policy", "A policy in service"

#: The commands in the order of `rcjax --help`: the panel, the function, an example.
_COMMANDS = (
    (_MAKE, collect, "collect questions.jsonl --models models.toml --out answers.jsonl --limit 300 --budget 5"),
    (_MAKE, grade, "grade answers.jsonl --grade judge:large --models models.toml"),
    (_MAKE, import_, "import logs/*.eval --prices prices.toml --out log.parquet"),
    (_MAKE, label, "label log.csv --n 100 --out to_label.csv --ask"),
    (_TUNE, tune, "tune log.csv --budget 150/M --out policy.json"),
    (_TUNE, evaluate, "evaluate policy.json fresh_log.csv"),
    (_TUNE, diagnose, "diagnose log.csv --plots figures"),
    (_TUNE, report, "report log.csv --test fresh_log.csv --out report.html"),
    (_TUNE, demo, "demo --queries 300 --seed 7"),
    (_SERVE, serve, "serve policy.json --models models.toml --log calls.jsonl --shadow 5%"),
    (_SERVE, check, "check policy.json last_week.csv"),
    (_SERVE, retune, "retune policy.json last_month.csv --out policy.json"),
    ("For researchers", sweep, "sweep nightly.toml"),
)
for _panel, _function, _example in _COMMANDS:
    _command = app.command(
        _example.split()[0], cls=LongHelp, epilog=f"Example: `rcjax {_example}`", rich_help_panel=_panel
    )
    _command(_function)
