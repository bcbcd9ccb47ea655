"""`rcjax tune`: the frontier of a log, and the policy for a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rcjax._base.wording import budget_between
from rcjax.cli.common import require_distinct, require_writable, start_jax
from rcjax.cli.failures import attempt, conclude, reported
from rcjax.cli.inputs import read_file
from rcjax.cli.option_records import checked, with_options
from rcjax.cli.options import AsJson, LogFile, MaxDifference, Reading, spread, with_difference
from rcjax.cli.parsers import budget as parse_budget, models_to_read, queries_a_day
from rcjax.cli.plausible import require_plausible_budget, require_plausible_log
from rcjax.cli.printing import warn
from rcjax.policy.spec import OUTPUT, PROMISES, TARGET, Spec
from rcjax.policy.targets import Target

if TYPE_CHECKING:
    from rcjax.logs.log import Log
    from rcjax.tuning.tune import Tuned

_OTHERS = "the others are used where they can be"


BudgetOrPeriod = Annotated[
    Any,
    typer.Option(
        "--budget",
        parser=parse_budget,
        metavar="MONEY",
        help="Fewest errors for this money per query: 0.00015, 0.15/k (per thousand), 150/M (per million); or for a "
        "day, week or month: 500/month.",
        rich_help_panel=TARGET,
    ),
]


Queries = Annotated[
    Any,
    typer.Option(
        "--queries",
        parser=queries_a_day,
        metavar="N/month",
        help="How many queries come in a day, week or month, for money for one of these. [default: as many as in LOG, "
        "if that is of a service]",
        rich_help_panel=TARGET,
    ),
]


HeldOut = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Queries for the test of `--confidence`. [default: half of those of LOG, at random]",
        rich_help_panel=PROMISES,
    ),
]


PolicyOut = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write the policy to deploy here (JSON); needs a target.", rich_help_panel=OUTPUT
    ),
]


FrontierOut = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the whole frontier here, for rcjax evaluate.", rich_help_panel=OUTPUT),
]


class Outputs(NamedTuple):
    """The files to write."""

    policy: Path | None
    frontier: Path | None


@with_options
def tune(
    spec: Spec,
    reading: Reading,
    log: LogFile,
    budget: BudgetOrPeriod = None,
    queries: Queries = None,
    max_difference: MaxDifference = None,
    out: PolicyOut = None,
    frontier: FrontierOut = None,
    held_out: HeldOut = None,
    json_: AsJson = False,
) -> None:
    """Find the policy for your target on a log; without a target, the best policies from cheap to dear.

    Most need LOG, a target and `--out`. Money is in the currency of the prices, shown as $.
    """
    budget, period = spread(budget, queries, log)
    spec = with_difference(spec, max_difference, budget=budget, period=period)
    outputs = Outputs(out, frontier)
    how = reading.options(max_difference)
    require_distinct([("--out", out), ("--frontier", frontier)], [*reading.inputs(log), ("--held-out", held_out)])
    target = Target.of(**spec.target) if spec.target else None
    _require(not out or target is not None, "needs a target, such as --budget", "--out")
    checked(spec, held_out is not None)
    with reported(as_json=json_):
        for path in outputs:
            require_writable(path)
        start_jax()  # before JAX is imported
        reading.require_plausible()
        from rcjax.cli.console import Steps

        steps = Steps(3)
        with steps("reading the log"):
            how |= {"segment": spec.segment, "models": models_to_read(reading.models, spec.cascade)}
            logs = _read(log, held_out, how)
        require_plausible_budget(target, logs[0].with_waiting(spec.second_cost), reading.really)
        require_plausible_log(target, logs[0], reading.really)
        unused = _unused_answers(logs[0], spec.cascade)
        if unused is not None:
            warn(unused)
        show = partial(_show, target=target)
        _tune(logs, spec, outputs, steps, show, as_json=json_)


def _require(condition: bool, what: str, option: str) -> None:
    if not condition:
        raise typer.BadParameter(what, param_hint=option)


def _unused_answers(log: Log, cascade: Any) -> str | None:
    """Why answers that the log tells are not used, in a line; None where they are, or there are none."""
    if log.answer is None or cascade is None:
        return None
    named = cascade if isinstance(cascade, str) else ",".join(cascade[0])
    what = f"--cascade {named} does not compare answers, and the default search does"
    return f"what was answered is not used: {what}: leave out --cascade"


def _read(log: Path, held_out: Path | None, how: Mapping[str, Any]) -> tuple[Log, Log | None]:
    """The log, and the queries for the test of a guarantee, where they have a file of their own."""
    from rcjax.logs.reading import read_log

    data = read_file(read_log, log, _OTHERS, **how)
    if not held_out:
        return data, None
    other = {**how, "answers": None, "models": data.models}  # they are of the queries of LOG
    return data, read_file(read_log, held_out, _OTHERS, **other)


def _tune(
    logs: tuple[Log, Log | None],
    spec: Spec,
    outputs: Outputs,
    steps: Callable[[str], AbstractContextManager[None]],
    show: Callable[..., None],
    *,
    as_json: bool,
) -> None:
    """Tune, write and show; then raise what went wrong: a target out of reach, or a file that cannot be written."""
    from rcjax.frontier.choosing import InfeasibleError
    from rcjax.tuning.searches import searched_by
    from rcjax.tuning.tune import tune_in_stages

    infeasible = None
    try:
        tuned = tune_in_stages(*logs, spec, steps, searched_by(spec.search))
    except InfeasibleError as problem:
        tuned, infeasible = problem.tuned, problem
    problems = _write(tuned, outputs)
    problem = next(filter(None, [*problems.values(), infeasible]), None)
    written = Outputs(*(None if path in problems else path for path in outputs))
    written = written if tuned.policy else written._replace(policy=None)
    shown = partial(show, tuned, written=written, done=problem is None)
    conclude(tuned.to_json(), shown, as_json=as_json, problem=problem)


def _write(tuned: Tuned, outputs: Outputs) -> dict[Path, OSError]:
    """Write the files that are asked for; what went wrong, by file."""
    saves: dict[Path, Callable[[], None]] = {}
    if outputs.frontier:
        saves[outputs.frontier] = partial(tuned.frontier.save, outputs.frontier)
    if outputs.policy and tuned.policy:
        saves[outputs.policy] = partial(tuned.policy.save, outputs.policy)
    outcomes = {path: attempt(save) for path, save in saves.items()}
    return {path: problem for path, problem in outcomes.items() if problem}


def _show(tuned: Tuned, *, target: Target | None, written: Outputs, done: bool) -> None:
    """Print the tables, the policy last; `written` are the files that are there, `done` says that nothing is wrong."""
    from rcjax.cli.tables import show_next, show_policy, show_tuning, show_written

    document = tuned.to_json()
    heading = tuned.log.describe()
    if tuned.log.second_cost:
        heading += f" Costs count ${tuned.log.second_cost:.4g} for each second of waiting, beside the money."
    if tuned.held_out is not None:
        heading += f" {tuned.held_out.n_queries:,} other queries are held out for the test of the guarantee."
    rows, chosen = document["model_summary"], tuned.policy.expected if tuned.policy else None
    show_tuning(heading, rows, document["frontier"], chosen=chosen, drawn=target is None, noun=tuned.log.counted.noun)
    if tuned.policy and target is not None:
        show_policy(document["policy"], target, rows, document["remarks"], tuned.log.counted)
    budget = None if target is not None else budget_between([row["cost"] for row in rows])
    show_written(written)
    if done:  # else what is wrong comes last
        show_next(written.policy, budget)
