"""The command line: `rcjax tune`, `evaluate`, `diagnose`, `report`, `check`, `retune`, `sweep` and `demo`.

Importing this module is light; a command imports JAX when it starts to work. Only here, never on
`import rcjax`, are float64 and JAX's persistent compilation cache switched on: a program of the user's own
decides for itself.

Exit status: 0 fine, 1 infeasible or bad data (one line on standard error says what; with RCJAX_TRACEBACK=1 in
the environment, where it was raised), 2 usage. `rcjax check`, which is for scripts: 1 drifted, 2 whatever went wrong.
"""

from __future__ import annotations

import dataclasses
import io
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax._failures import CommandLine, attempt, conclude, reported
from rcjax._options import (
    AsJson,
    Budget,
    CopulaFamily,
    ErrorCost,
    Fresh,
    Labels,
    Lam,
    LogFile,
    MaxError,
    Models,
    Prices,
    Task,
    TaskOption,
    as_search,
    models_to_read,
    names,
    one_target,
)
from rcjax._printing import open_closed_streams, print_json
from rcjax._shell import (
    echoed,
    is_training_log,
    load_tuned,
    read_for,
    read_pair,
    require_distinct,
    require_libraries,
    require_plots,
    require_writable,
    save_plots,
    start_jax,
)
from rcjax._sweeping import sweep
from rcjax._tune_command import tune
from rcjax._upkeep import check, retune

if TYPE_CHECKING:
    from rcjax.logs import Log

__all__ = ["app", "main"]

_DEMO_SHARE = 0.4  # of the cost of always asking the largest model: what `rcjax demo` may spend
_DEMO_FRESH = 10_000


app = typer.Typer(
    cls=CommandLine,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line with the arguments of the process."""
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):  # a terminal without arrows shows question marks, not a traceback
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    app()


def _version(wanted: bool) -> None:
    if wanted:
        from rcjax._version import version

        typer.echo(f"rcjax {version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Confidence thresholds for LLM cascades, from a log of what the models answered.

    A cascade asks a cheap model first and a dearer one only where the cheap one is unsure. Start with
    `rcjax demo`, which needs no data; then `rcjax tune LOG` for your own.
    """


def evaluate(
    policy_or_frontier: Annotated[
        Path,
        typer.Argument(show_default=False, metavar="POLICY_OR_FRONTIER", help="What `rcjax tune` wrote."),
    ],
    log: LogFile,
    prices: Prices = None,
    labels: Labels = None,
    json_: AsJson = False,
) -> None:
    """Answer the queries of a log by a policy, mixture or frontier: the error and cost seen, beside those predicted.

    Use queries that were not in the log for tuning. Models of the log that the policy does not know are
    ignored; without `--prices`, token counts are priced as when tuning.
    """
    with reported(as_json=json_):
        from rcjax._terminal import Screen, busy, expectation, hang, plain_replay, show_replay

        start_jax()
        import rcjax
        from rcjax._overlap import overlap_with_tuned

        with busy("reading"):
            subject = load_tuned(policy_or_frontier)
            data = read_for(subject, log, prices, labels)
        with busy("replaying"):
            seen = plain_replay(rcjax.replay(subject, data))
        predicted, shared = expectation(subject), overlap_with_tuned(data, subject)
        same = shared.whole or is_training_log(subject, data, log, prices, labels)
        if json_:
            counts = {"queries_tuned_on": shared.queries, "rows_tuned_on": shared.rows}
            print_json(seen | {"predicted": predicted, "tuned_on_this_log": same} | counts)
        else:
            show_replay(data.describe(), predicted, seen, same)
            if shared and not same:
                hang(Screen(), "note", f"{shared.describe()}, where it looks better than it is: evaluate it on others")


def diagnose(
    log: LogFile,
    test: Fresh = None,
    prices: Prices = None,
    labels: Labels = None,
    task: TaskOption = Task.generation,
    models: Models = None,
    copula: CopulaFamily = None,
    cascade: Annotated[
        Any,
        typer.Option(
            parser=names,
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
    """Does the promise of a tuning hold, and is the model right on a log? What to do where they do not.

    Tunes on LOG and holds the error and cost promised against queries that the tuning has not seen; fits the model
    and checks calibration, marginals, copulas, the Markov property, and its own predictions. Each check is fine,
    doubtful or bad, says what to do, and which policies it affects.
    """
    figures = sorted(plots.glob("*.png")) if plots else []
    inputs = [("LOG", log), ("--test", test), ("--prices", prices), ("--labels", labels)]
    require_distinct([("--plots", figure) for figure in figures], inputs)
    with reported(as_json=json_):
        from rcjax._terminal import busy
        from rcjax._terminal_checks import show_diagnosis

        if plots:
            require_plots(plots)
        start_jax()
        import rcjax

        others = "only queries that every model answered are judged"
        with busy("reading"):
            chosen = models_to_read(models, cascade)
            training, fresh = read_pair(log, test, others, chosen, prices=prices, labels=labels, task=task.value)
        judged = fresh or training
        with busy("fitting the model"):
            model = rcjax.fit(training, copula=copula or "gumbel")
        search = "selected" if cascade is None else as_search(cascade)
        with busy(f"testing, with {replicates:,} bootstrap replicates"), echoed(rcjax.OverlapWarning):
            found = rcjax.diagnose(model, judged, training=training, replicates=replicates, search=search)
        written, problem = [], None
        if plots:
            with busy("drawing"):
                problem = attempt(lambda: save_plots(found, model, judged, plots, written))
        document = found.to_json()
        show = partial(show_diagnosis, document, every=every, plots=None if problem else plots)
        told = {"plots": [str(path) for path in written]} if plots else {}
        conclude(document | told, show, as_json=json_, problem=problem)


def report(
    log: LogFile,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Write the page here.")] = Path(
        "report.html"
    ),
    test: Fresh = None,
    prices: Prices = None,
    labels: Labels = None,
    task: TaskOption = Task.generation,
    models: Models = None,
    copula: CopulaFamily = None,
    budget: Budget = None,
    max_error: MaxError = None,
    error_cost: ErrorCost = None,
    lam: Lam = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The model in use today. [default: the one that errs least]"),
    ] = None,
    json_: AsJson = False,
) -> None:
    """Write one HTML page for your team: the trade-off to click through, how far to trust it, how to deploy it.

    Tunes as `rcjax tune` does by default, with intervals, and checks as `rcjax diagnose` does. With a target, at most
    one of `--budget`, `--max-error`, `--error-cost` and `--lam`, the page opens at the policy for it. The page needs
    no network and no other file.
    """
    target = one_target(budget, max_error, error_cost, lam)
    inputs = [("LOG", log), ("--test", test), ("--prices", prices), ("--labels", labels)]
    require_distinct([("--out", out)], inputs)
    with reported(as_json=json_):
        from rcjax._terminal import busy, show_report

        require_libraries("a report", "report", "matplotlib", "jinja2")
        require_writable(out)
        start_jax()
        import rcjax

        Thread(target=import_module, args=["rcjax.report.page"]).start()  # matplotlib, needed last
        others = "the others are used where they can be"
        with busy("reading"):
            training, fresh = read_pair(log, test, others, models, prices=prices, labels=labels, task=task.value)
        with busy("tuning, drawing the log again, and checking"), echoed(rcjax.OverlapWarning):
            options: dict[str, Any] = {"test": fresh, "copula": copula or "gumbel", "baseline": baseline}
            options |= {} if target is None else target.to_json()
            found = rcjax.make_report(training, draw=True, **options)
        with busy("writing the page"):
            problem = attempt(lambda: found.save(out))
        written = {} if problem else {"written": str(out)}
        show = partial(show_report, found.headline(), None if problem else out)
        conclude(found.to_json() | written, show, as_json=json_, problem=problem)


def demo(
    queries: Annotated[int, typer.Option(min=50, max=1_000_000, help="Queries of the log to tune on.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 2, help="Another seed samples other queries.")] = 0,
    json_: AsJson = False,
) -> None:
    """Tune a cascade of five models on a synthetic log and check it on fresh queries: no data, no network.

    The log is sampled from a model that was fitted to what five Llama models answered to real questions.
    """
    with reported(as_json=json_):
        from rcjax._terminal import busy, expectation, plain_replay, show_demo, show_policy, show_tuning
        from rcjax._tune import describe_models

        start_jax()
        import rcjax
        from rcjax._targets import Target

        with busy("sampling, fitting and solving"):
            sample = rcjax.sample_log(queries + _DEMO_FRESH, seed)  # at once: two sizes would be compiled twice
            log, fresh = sample.take(slice(queries)), sample.take(slice(queries, None))
            model = rcjax.fit(log)
            frontier = rcjax.solve_frontier(model)
            budget = _DEMO_SHARE * float(log.cost[-1])
            policy = frontier.policy(budget=budget)
        with busy("replaying on fresh queries"):
            seen = plain_replay(rcjax.replay(policy, fresh))
        rows = [dataclasses.asdict(model_alone) for model_alone in describe_models(log, model)]
        alone = _alone(fresh)
        if json_:
            facts = {"synthetic": True, "queries": queries, "seed": seed, "models": list(log.models)}
            results = {"predicted": expectation(policy), "observed": seen, "single_models": alone}
            print_json(facts | {"policy": policy.to_json()} | results)
        else:
            points = frontier.to_json()["frontier"]
            show_tuning(log.describe(), rows, points, None, chosen=policy.expected)
            show_policy(policy.to_json(), Target("budget", budget), rows, None)
            show_demo(policy.to_json(), seen, alone)


def _alone(log: Log) -> dict[str, dict[str, float]]:
    """Return the error and the cost of asking one model always, by model."""
    import numpy as np

    error, cost = 1 - np.asarray(log.correct).mean(axis=0), np.asarray(log.cost)
    pairs = zip(log.models, error.tolist(), cost.tolist(), strict=True)
    return {name: {"error": wrong, "cost": money} for name, wrong, money in pairs}


app.command(epilog="Example: `rcjax tune log.csv --budget 150/M --out policy.json`")(tune)
app.command(epilog="Example: `rcjax evaluate policy.json fresh_log.csv`")(evaluate)
app.command(epilog="Example: `rcjax diagnose log.csv --plots figures`")(diagnose)
app.command(epilog="Example: `rcjax report log.csv --test fresh_log.csv --out report.html`")(report)
app.command(epilog="Example: `rcjax demo --queries 300 --seed 7`")(demo)
app.command(epilog="Example: `rcjax check policy.json last_week.csv`")(check)
app.command(epilog="Example: `rcjax retune policy.json last_month.csv --out policy.json`")(retune)
app.command(epilog="Example: `rcjax sweep nightly.toml`")(sweep)
