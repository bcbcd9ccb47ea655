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
from rcjax.cli.options import (
    OUTPUT,
    PROMISES,
    SEARCH,
    TARGET,
    Answers,
    AsJson,
    ErrorCost,
    Labels,
    LogFile,
    MaxDifference,
    MaxError,
    MaxSeconds,
    Models,
    Prices,
    ReferenceModel,
    SameBy,
    ScoreMax,
    SecondCost,
    Task,
    TaskOption,
    checked,
    counted,
    one_target,
    scoring,
    spread,
)
from rcjax.cli.parsers import as_search, budget, fraction, models_to_read, names, queries_a_day
from rcjax.cli.plausible import Really, require_plausible_budget, require_plausible_prices
from rcjax.cli.printing import warn
from rcjax.policy.spec import Spec

if TYPE_CHECKING:
    from rcjax.logs.log import Log
    from rcjax.policy.targets import Target
    from rcjax.tuning.tune import Tuned

_OTHERS = "the others are used where they can be"


Cascade = Annotated[
    Any,
    typer.Option(
        parser=names,
        metavar="all|full|adaptive|A,B,…",
        help="Search by the model alone: **all**: the best cascade of any of the models; **full**: every model "
        "in turn; **adaptive**: skip to a larger model when very unsure; or the models of one cascade. [default: "
        "single models and pairs by the labels]",
        rich_help_panel=SEARCH,
    ),
]


BudgetOrPeriod = Annotated[
    Any,
    typer.Option(
        "--budget",
        parser=budget,
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
        show_default=False,
        metavar="N/month",
        help="How many queries come in a day, week or month, for money for one of these. [default: as many as in LOG, "
        "if that is of a service]",
        rich_help_panel=TARGET,
    ),
]


NoFollow = Annotated[
    bool,
    typer.Option(
        "--no-follow",
        help="A service is to keep the policy's position, and not to follow its bill.",
        rich_help_panel=PROMISES,
    ),
]


AbstainPrice = Annotated[
    Any,
    typer.Option(
        parser=fraction,
        metavar="SHARE",
        help="Let the last model refuse to answer, where a refusal costs you this share of an error: 0.3 or 30%.",
        rich_help_panel=SEARCH,
    ),
]


Confidence = Annotated[
    Any,
    typer.Option(
        parser=fraction,
        metavar="SHARE",
        help="Guarantee `--max-error` or `--budget` with this confidence, such as 95%, by a test on queries that "
        "the tuning does not see.",
        rich_help_panel=PROMISES,
    ),
]


HeldOut = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="Queries for the test of `--confidence`. [default: half of those of LOG, at random]",
        rich_help_panel=PROMISES,
    ),
]


Judged = Annotated[
    bool,
    typer.Option(
        "--judged",
        help="Let judges' verdicts count in the test of `--confidence`, corrected by the labels by hand; without it "
        "only labels by hand do.",
        rich_help_panel=PROMISES,
    ),
]


Bands = Annotated[
    bool,
    typer.Option(
        "--bands/--no-bands", help="Intervals by the bootstrap, at some seconds' cost.", rich_help_panel=OUTPUT
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


def tune(
    log: LogFile,
    prices: Prices = None,
    budget: BudgetOrPeriod = None,
    queries: Queries = None,
    max_error: MaxError = None,
    max_difference: MaxDifference = None,
    error_cost: ErrorCost = None,
    out: PolicyOut = None,
    frontier: FrontierOut = None,
    bands: Bands = True,
    labels: Labels = None,
    answers: Answers = None,
    reference: ReferenceModel = None,
    same: SameBy = None,
    score_max: ScoreMax = None,
    task: TaskOption = Task.generation,
    models: Models = None,
    cascade: Cascade = None,
    abstain_price: AbstainPrice = None,
    confidence: Confidence = None,
    held_out: HeldOut = None,
    judged: Judged = False,
    no_follow: NoFollow = False,
    max_seconds: MaxSeconds = None,
    second_cost: SecondCost = None,
    really: Really = False,
    json_: AsJson = False,
) -> None:
    """Find the policy for your target on a log; without a target, the best policies from cheap to dear.

    Most need LOG, a target and `--out`. Money is in the currency of the prices, shown as $.
    """
    budget, period = spread(budget, queries, log)
    target, outputs = one_target(budget, max_error, error_cost, max_difference), Outputs(out, frontier)
    compared, scale = counted(reference, same, max_difference), scoring(score_max)
    options = [("--out", out), ("--frontier", frontier)]
    inputs = [("LOG", log), ("--prices", prices), ("--labels", labels), ("--answers", answers)]
    require_distinct(options, [*inputs, ("--held-out", held_out)])
    _require(not out or target is not None, "needs a target, such as --budget", "--out")
    spec = Spec(
        targets=() if target is None else (target,),
        search="selected" if cascade is None else as_search(cascade),
        abstain_price=abstain_price,
        confidence=confidence,
        judged=judged,
        intervals=bands,
        second_cost=second_cost or 0.0,
        max_seconds=max_seconds,
        follows=not no_follow,
        period=period,
    )
    checked(spec, held_out is not None)
    with reported(as_json=json_):
        for path in outputs:
            require_writable(path)
        start_jax()  # before JAX is imported
        require_plausible_prices(prices, really)
        reading = {"prices": prices, "labels": labels, "answers": answers, "task": task.value}
        reading |= {"reference": compared, **scale}
        from rcjax.cli.console import Steps

        steps = Steps(3)
        with steps("reading the log"):
            logs = _read(log, held_out, models_to_read(models, cascade), reading)
        require_plausible_budget(target, logs[0].with_waiting(spec.second_cost), really)
        unused = _unused_answers(logs[0], spec.search, cascade)
        if unused is not None:
            warn(unused)
        show = partial(_show, target=target)
        _tune(logs, spec, outputs, steps, show, as_json=json_)


def _require(condition: bool, what: str, option: str) -> None:
    if not condition:
        raise typer.BadParameter(what, param_hint=option)


def _unused_answers(log: Log, search: Any, cascade: tuple[str, ...] | None) -> str | None:
    """Why answers that the log tells are not used, in a line; None where they are, or there are none."""
    if log.answer is None or search == "selected":
        return None
    what = f"--cascade {','.join(cascade or ())} does not compare answers, and the default search does"
    return f"what was answered is not used: {what}: leave out --cascade"


def _read(log: Path, held_out: Path | None, models: Any, reading: Mapping[str, Any]) -> tuple[Log, Log | None]:
    """The log, and the queries for the test of a guarantee, where they have a file of their own."""
    from rcjax.logs.reading import read_log

    data = read_file(read_log, log, _OTHERS, models=models, **reading)
    if not held_out:
        return data, None
    other = {**reading, "answers": None}  # they are of the queries of LOG
    return data, read_file(read_log, held_out, _OTHERS, models=data.models, **other)


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
