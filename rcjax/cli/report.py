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
from rcjax.cli.inputs import OTHERS_USED, echoed, read_pair
from rcjax.cli.option_records import with_options
from rcjax.cli.options import AsJson, BudgetOrPeriod, CopulaFamily, Fresh, LogFile, Queries, Reading, as_period, spread
from rcjax.cli.plausible import require_plausible_budget
from rcjax.cli.printing import command
from rcjax.policy.spec import Spec
from rcjax.policy.targets import Target


@with_options
def report(
    *,
    budget: BudgetOrPeriod = None,
    spec: Annotated[Spec, "max_error", "error_cost", "second_cost"],
    reading: Reading,
    log: LogFile,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Write the page here.")] = Path(
        "report.html"
    ),
    test: Fresh = None,
    queries: Queries = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The model in use today. [default: the one that errs least]"),
    ] = None,
    copula: CopulaFamily = None,
    json_: AsJson = False,
) -> None:
    """Write one HTML page for your team: the trade-off to click through, how far to trust it, how to deploy it.

    Tunes as `rcjax tune` does by default, with intervals, and checks as `rcjax diagnose` does. With a target, at most
    one of `--budget`, `--max-error` and `--error-cost`, the page opens at the policy for it. The page
    needs no network and no other file.
    """
    spec = spread(spec, budget, queries, log)
    target = Target.of(**spec.target) if spec.target else None
    how = reading.options()
    require_distinct([("--out", out)], [*reading.inputs(log), ("--test", test)])
    with reported(as_json=json_):
        from rcjax.cli.console import Steps
        from rcjax.cli.tables import show_report

        require_libraries("a report", "report", "matplotlib", "jinja2")
        require_writable(out)
        start_jax()
        import rcjax

        Thread(target=import_module, args=["rcjax.report.page"]).start()  # matplotlib, needed last
        reading.require_plausible()
        steps = Steps(3)
        with steps("reading"):
            training, fresh = read_pair(log, test, OTHERS_USED, reading.models, **how)
        require_plausible_budget(target, training.with_waiting(spec.second_cost), reading.really)
        with steps("tuning, drawing the log again, and checking"), echoed(rcjax.tuning.OverlapWarning):
            options: dict[str, Any] = {"test": fresh, "copula": copula or "gumbel", "baseline": baseline}
            options |= {"second_cost": spec.second_cost} | spec.target
            findings = rcjax.make_report(training, draw=True, **options)
        second_cost = {"second-cost": spec.second_cost or None}
        tune = command("tune", log, **reading.as_options(), **second_cost) + " --yes" * reading.really
        findings = dataclasses.replace(findings, command=tune, option=as_period(spec))
        with steps("writing the page"):
            problem = attempt(lambda: findings.save(out))
        written = {} if problem else {"written": str(out)}
        show = partial(show_report, findings.headline(), None if problem else out)
        conclude(findings.to_json() | written, show, as_json=json_, problem=problem)
