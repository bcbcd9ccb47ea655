"""`rcjax tune`: the frontier of a log, and the policy for a target."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax._base.wording import budget_between
from rcjax.cli.common import require_distinct, require_writable, start_jax
from rcjax.cli.failures import attempt, conclude, reported
from rcjax.cli.inputs import OTHERS_USED, read_file
from rcjax.cli.option_records import checked, with_options
from rcjax.cli.options import AsJson, BudgetOrPeriod, LogFile, Queries, Reading, spread
from rcjax.cli.parsers import models_to_read
from rcjax.cli.plausible import require_plausible_budget, require_plausible_log
from rcjax.cli.printing import warn
from rcjax.policy.spec import OUTPUT, Spec
from rcjax.policy.targets import Target

if TYPE_CHECKING:
    from rcjax.logs.log import Log
    from rcjax.tuning.tune import Tuned


@with_options
def tune(
    *,
    budget: BudgetOrPeriod = None,
    spec: Spec,
    reading: Reading,
    log: LogFile,
    queries: Queries = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the policy to deploy here (JSON); needs a target.", rich_help_panel=OUTPUT
        ),
    ] = None,
    frontier: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the whole frontier here, for rcjax evaluate.", rich_help_panel=OUTPUT),
    ] = None,
    json_: AsJson = False,
) -> None:
    """Find the policy for your target on a log; without a target, the best policies, cheapest first.

    Most need LOG, a target and `--out`. Money is in the currency of the prices, shown as $.
    """
    spec = spread(spec, budget, queries, log)
    how = reading.options()
    require_distinct([("--out", out), ("--frontier", frontier)], reading.inputs(log))
    target = Target.of(**spec.target) if spec.target else None
    if out and target is None:
        raise typer.BadParameter("needs a target, such as --budget", param_hint="--out")
    checked(spec)
    with reported(as_json=json_):
        require_writable(out)
        require_writable(frontier)
        start_jax()  # before JAX is imported
        reading.require_plausible()
        from rcjax.cli.console import Steps
        from rcjax.logs.reading import read_log

        steps = Steps(3)
        with steps("reading the log"):
            how |= {"segment": spec.segment, "models": models_to_read(reading.models, spec.cascade)}
            data = read_file(read_log, log, OTHERS_USED, **how)
        require_plausible_budget(target, data.with_waiting(spec.second_cost), reading.really)
        require_plausible_log(target, data, reading.really)
        unused = _unused_answers(data, spec.cascade)
        if unused is not None:
            warn(unused)
        _tune(data, spec, (out, frontier), steps, as_json=json_)


def _unused_answers(log: Log, cascade: Any) -> str | None:
    """Why answers that the log tells are not used, in a line; None if they are, or there are none."""
    if log.answer is None or cascade is None:
        return None
    named = cascade if isinstance(cascade, str) else ",".join(cascade[0])
    what = f"--cascade {named} does not compare answers, and the default search does"
    return f"what was answered is not used: {what}: leave out --cascade"


def _tune(
    log: Log,
    spec: Spec,
    files: tuple[Path | None, Path | None],
    steps: Callable[[str], AbstractContextManager[None]],
    *,
    as_json: bool,
) -> None:
    """Tune, write the policy and the frontier, and show; then raise what went wrong: a target, or a file."""
    from rcjax.frontier.hull import InfeasibleError
    from rcjax.tuning.searches import searched_by
    from rcjax.tuning.tune import tune_in_stages

    infeasible = None
    try:
        tuned = tune_in_stages(log, None, spec, steps, searched_by(spec.search))
    except InfeasibleError as problem:
        tuned, infeasible = problem.tuned, problem
    out, frontier = files
    unwritten = attempt(partial(tuned.frontier.save, frontier)) if frontier else None
    unwritten = unwritten or (attempt(partial(tuned.policy.save, out)) if out and tuned.policy else None)
    problem = unwritten or infeasible
    written = None if unwritten or tuned.policy is None else out
    conclude(tuned.to_json(), partial(_show, tuned, written, problem is None), as_json=as_json, problem=problem)


def _show(tuned: Tuned, written: Path | None, done: bool) -> None:
    """Print the tables, the policy last; `written` is its file, if it is there, `done` says that nothing is wrong."""
    from rcjax.cli.tables import show_next, show_policy, show_tuning

    document = tuned.to_json()
    target = Target.of(**tuned.target) if tuned.target else None
    heading = tuned.log.describe()
    if tuned.log.second_cost:
        heading += f" Costs count ${tuned.log.second_cost:.4g} for each second of waiting, beside the money."
    if tuned.held_out is not None:
        heading += f" {tuned.held_out.n_queries:,} other queries are held out for the test of the guarantee."
    rows, chosen = document["model_summary"], tuned.policy.expected if tuned.policy else None
    show_tuning(heading, rows, document["frontier"], chosen=chosen, noun=tuned.log.counted.noun)
    if tuned.policy and target is not None:
        notes = tuned.remarks[1:] if tuned.verdict else tuned.remarks
        show_policy(document["policy"], target, rows, tuned.verdict, notes, tuned.log.counted)
    if done:  # else what is wrong comes last
        show_next(written, budget_between([row["cost"] for row in rows]) if target is None else None)
