"""`rcjax report`: one HTML page for a team."""

from __future__ import annotations

import dataclasses
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Annotated, Any

import typer

from rcjax.cli.common import require_distinct, require_libraries, require_writable, start_jax
from rcjax.cli.failures import attempt, conclude, reported
from rcjax.cli.inputs import echoed, read_pair
from rcjax.cli.options import (
    Answers,
    AsJson,
    Budget,
    CopulaFamily,
    ErrorCost,
    Fresh,
    Labels,
    LogFile,
    MaxDifference,
    MaxError,
    Models,
    Prices,
    ReferenceModel,
    SameBy,
    ScoreMax,
    SecondCost,
    Task,
    TaskOption,
    as_options,
    counted,
    one_target,
    scoring,
)
from rcjax.cli.plausible import Really, require_plausible_budget, require_plausible_prices
from rcjax.cli.printing import command


def report(
    log: LogFile,
    prices: Prices = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Write the page here.")] = Path(
        "report.html"
    ),
    test: Fresh = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The model in use today. [default: the one that errs least]"),
    ] = None,
    budget: Budget = None,
    max_error: MaxError = None,
    max_difference: MaxDifference = None,
    error_cost: ErrorCost = None,
    labels: Labels = None,
    answers: Answers = None,
    reference: ReferenceModel = None,
    same: SameBy = None,
    score_max: ScoreMax = None,
    task: TaskOption = Task.generation,
    models: Models = None,
    copula: CopulaFamily = None,
    second_cost: SecondCost = None,
    really: Really = False,
    json_: AsJson = False,
) -> None:
    """Write one HTML page for your team: the trade-off to click through, how far to trust it, how to deploy it.

    Tunes as `rcjax tune` does by default, with intervals, and checks as `rcjax diagnose` does. With a target, at most
    one of `--budget`, `--max-error` and `--error-cost`, the page opens at the policy for it. The page
    needs no network and no other file.
    """
    target = one_target(budget, max_error, error_cost, max_difference)
    compared, scale = counted(reference, same, max_difference), scoring(score_max)
    inputs = [("LOG", log), ("--test", test), ("--prices", prices), ("--labels", labels), ("--answers", answers)]
    require_distinct([("--out", out)], inputs)
    with reported(as_json=json_):
        from rcjax.cli.console import Steps
        from rcjax.cli.tables import show_report

        require_libraries("a report", "report", "matplotlib", "jinja2")
        require_writable(out)
        start_jax()
        import rcjax

        Thread(target=import_module, args=["rcjax.report.page"]).start()  # matplotlib, needed last
        others = "the others are used where they can be"
        require_plausible_prices(prices, really)
        steps = Steps(3)
        with steps("reading"):
            reading = {"prices": prices, "labels": labels, "answers": answers, "task": task.value}
            reading |= {"reference": compared, **scale}
            training, fresh = read_pair(log, test, others, models, **reading)
        require_plausible_budget(target, training.with_waiting(second_cost or 0.0), really)
        with steps("tuning, drawing the log again, and checking"), echoed(rcjax.tuning.OverlapWarning):
            options: dict[str, Any] = {"test": fresh, "copula": copula or "gumbel", "baseline": baseline}
            options |= {"second_cost": second_cost or 0.0}
            options |= {} if target is None else target.to_json()
            findings = rcjax.make_report(training, draw=True, **options)
        files = {"prices": prices, "labels": labels, "answers": answers, "task": None if task == "generation" else task}
        how = {"models": models and ",".join(models), "second-cost": second_cost}
        counting = {"reference": reference, "same": same, **as_options(scale)}
        tune = command("tune", log, **files, **how, **counting) + " --really" * really
        findings = dataclasses.replace(findings, command=tune)
        with steps("writing the page"):
            problem = attempt(lambda: findings.save(out))
        written = {} if problem else {"written": str(out)}
        show = partial(show_report, findings.headline(), None if problem else out)
        conclude(findings.to_json() | written, show, as_json=json_, problem=problem)
