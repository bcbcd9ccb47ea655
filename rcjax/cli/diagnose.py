"""`rcjax diagnose`: does the promise hold, and is the model right."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax.cli.common import require_distinct, require_libraries, require_writable, start_jax
from rcjax.cli.failures import attempt, conclude, reported
from rcjax.cli.inputs import echoed, read_pair
from rcjax.cli.option_records import with_options
from rcjax.cli.options import AsJson, CopulaFamily, Fresh, LogFile, Reading
from rcjax.cli.parsers import cascade as read_cascade, models_to_read

if TYPE_CHECKING:
    from rcjax.diagnostics import Diagnosis
    from rcjax.logs.log import Log
    from rcjax.model.cascade_model import CascadeModel


@with_options
def diagnose(
    reading: Reading,
    log: LogFile,
    test: Fresh = None,
    copula: CopulaFamily = None,
    cascade: Annotated[
        Any,
        typer.Option(
            parser=read_cascade,
            metavar="all|full|adaptive|A,B,…",
            help="Judge what `rcjax tune` promises with this `--cascade`. [default: what it promises without]",
        ),
    ] = None,
    replicates: Annotated[
        int, typer.Option(min=20, max=100_000, help="Bootstrap replicates behind each p-value.")
    ] = 1000,
    plots: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write figures (PNG) into this folder; needs matplotlib.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show every check, not only those to act on.")] = False,
    json_: AsJson = False,
) -> None:
    """Does the promise of a tuning hold, and is the model right on a log? And what to do if not.

    Tunes on LOG and holds the error and cost promised against queries that the tuning has not seen; fits the model
    and checks calibration, marginals, copulas, the Markov property, and its own predictions. Each check is fine,
    doubtful or bad, says what to do, and which policies it affects.
    """
    how = reading.options()
    figures = sorted(plots.glob("*.png")) if plots else []
    require_distinct([("--plots", figure) for figure in figures], [*reading.inputs(log), ("--test", test)])
    with reported(as_json=json_):
        from rcjax.cli.check_tables import show_diagnosis
        from rcjax.cli.console import Steps

        if plots:
            require_plots(plots)
        start_jax()
        import rcjax

        reading.require_plausible()
        others = "only queries that every model answered are judged"
        steps = Steps(4 if plots else 3)
        with steps("reading"):
            training, fresh = read_pair(log, test, others, models_to_read(reading.models, cascade), **how)
        judged = fresh or training
        with steps("fitting the model"):
            model = rcjax.fit(training, copula=copula or "gumbel")
        search = "selected" if cascade is None else cascade
        with steps(f"testing, with {replicates:,} redrawings of the log"), echoed(rcjax.tuning.OverlapWarning):
            diagnosis = rcjax.diagnose(model, judged, training=training, replicates=replicates, search=search)
        written, problem = [], None
        if plots:
            with steps("drawing"):
                problem = attempt(lambda: save_plots(diagnosis, model, judged, plots, written))
        document = diagnosis.to_json()
        show = partial(show_diagnosis, document, every=every, plots=None if problem else plots)
        files = {"plots": [str(path) for path in written]} if plots else {}
        conclude(document | files, show, as_json=json_, problem=problem)


def require_plots(folder: Path) -> None:
    """Refuse, before any work, figures that could not be drawn or written."""
    require_libraries("--plots", "plots", "matplotlib")
    if folder.exists() and not folder.is_dir():
        raise OSError(f"cannot write figures into {folder}: it is a file: give a folder")
    require_writable(folder / "figure.png" if folder.is_dir() else folder)


def save_plots(diagnosis: Diagnosis, model: CascadeModel, log: Log, folder: Path, written: list[Path]) -> None:
    """Draw every figure of a diagnosis into a folder, made if need be, and add each file to those `written`."""
    from rcjax.plots import diagnosis_figures, save_figure

    folder.mkdir(exist_ok=True)
    for name, figure in diagnosis_figures(diagnosis, model, log).items():
        path = folder / f"{name}.png"
        save_figure(figure, path)
        written.append(path)
