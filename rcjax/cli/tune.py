"""`rcjax tune` and `sweep`: the frontier of a log and the policy for a target; the frontiers of many logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table

from rcjax._base.codec import read_value
from rcjax._base.figures import Money, capitalised, count, example_budget, format_number, percent
from rcjax.cli.app import start_jax
from rcjax.cli.console import (
    LEVEL,
    TERMINAL,
    Progress,
    Screen,
    attempt,
    busy,
    cascade_lines,
    command,
    comparison_table,
    conclude,
    escape_arguments,
    facts,
    facts_grid,
    facts_rows,
    facts_table,
    make_table,
    staged,
    warn,
)
from rcjax.cli.inputs import (
    models_to_read,
    read_log,
    require_distinct,
    require_libraries,
    require_outputs,
    require_plausible_log,
    require_plausible_prices,
    require_plausible_target,
)
from rcjax.cli.options import OUTPUT, AsJson, BudgetOptions, LogFiles, LogOptions, Really
from rcjax.policy.comparison import MIN_GAIN, MIN_SHARE, Comparison, Rival, preferred_rival
from rcjax.policy.decisions import describe_cascade, is_chain, threshold_digits
from rcjax.policy.error_kind import ERRORS, ErrorKind
from rcjax.policy.ladder import DAYS_PER_PERIOD, Queries
from rcjax.policy.policy import AbstractPolicy
from rcjax.policy.spec import Spec

if TYPE_CHECKING:
    from rcjax.tuning.sweeps import Sweep
    from rcjax.tuning.tune import Tuned

_MAX_LISTED = 5  # logs that were left out
_SHADOW_QUERIES = 200  # a week, as the calendar of docs/production.md has them


def sweep(
    config: Annotated[Path, typer.Argument(metavar="CONFIG")],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FOLDER")] = None,
    float32: bool = False,
    ray: Annotated[str | None, typer.Option(metavar="HOST:PORT")] = None,
    really: Really = False,
    json_: AsJson = False,
) -> None:
    """Tune many logs at once, with several cascades, copulas, prices and replicates.

    CONFIG has the arguments of `rcjax.tuning.sweeps.sweep` by name; it needs at least logs = ["logs/*.csv"]. Results
    are Parquet files in a folder, a row per point of a frontier. The same command resumes a sweep that was killed.

    Example: `rcjax sweep nightly.toml`

    Args:
        config: TOML file of the logs and the settings.
        out: Folder of the results. [default: CONFIG without .toml]
        float32: Solve in float32, which is faster on consumer GPUs.
        ray: Solve on a Ray cluster, a batch on each core or GPU: address of its head, or `auto` for RAY_ADDRESS or the
            cluster of this machine.
    """
    from rcjax._core.batching import count_cores

    start_jax(cpu_devices=count_cores(), float64=not float32, long=True)
    if ray is not None:
        require_libraries("--ray", "ray", "ray")
        import jax

        jax.config.update("jax_platforms", "cpu")  # the GPUs of this machine are for the tasks of Ray
    from rcjax.tuning.sweeps.sweeping import read_sweep, sweep as run_sweep

    settings = read_sweep(config)
    settings["out"] = str(out or settings["out"])
    _require_apart(config, settings)
    require_plausible_prices(settings.get("prices"), really)
    started = time.perf_counter()
    progress = Progress()
    with busy("solving", progress=progress), redirect_stdout(sys.stderr):  # Ray prints the nodes that it has lost
        results = run_sweep(**settings, ray=ray, progress=progress.note)
    facts = _facts(results, time.perf_counter() - started)
    conclude(facts, partial(_show_sweep, facts), as_json=json_)


def _require_apart(config: Path, settings: Mapping[str, Any]) -> None:
    """Refuse a folder of results in which the sweep would overwrite its inputs."""
    folder = Path(settings["out"])
    written = [folder / "sweep.json", folder / "logs.parquet", *folder.glob("fits/*"), *folder.glob("parts/*")]
    logs = settings["logs"]
    paths = logs.values() if isinstance(logs, Mapping) else logs
    prices = settings.get("prices")
    inputs = [("CONFIG", config), *(("logs", path) for path in paths)]
    inputs += [("prices", prices)] if isinstance(prices, str) else []
    require_distinct([("--out", folder), *(("--out", path) for path in written)], inputs)


def _facts(results: Sweep, seconds: float) -> dict[str, Any]:
    import polars as pl

    from rcjax.solving.frontier.points import PointStatus

    logs = results.logs
    counts = results.points.group_by("status").len().sort("status").collect()
    unused = logs.filter(pl.col("problem").is_not_null())
    return {
        "folder": str(results.path),
        "logs": logs.height - unused.height,
        "left_out": [{"log": row["log"], "problem": row["problem"]} for row in unused.to_dicts()],
        "points": int(counts["len"].sum()),
        "status": {PointStatus(row["status"]).message: row["len"] for row in counts.to_dicts()},
        "seconds": round(seconds, 3),
    }


@escape_arguments
def _show_sweep(facts: dict[str, Any]) -> None:
    screen = Screen()
    for entry in facts["left_out"][:_MAX_LISTED]:
        warn(f"{entry['log']} is left out: {entry['problem']}")
    omitted = len(facts["left_out"]) - _MAX_LISTED
    if omitted > 0:
        warn(f"and {omitted:,} more: see logs.parquet")
    screen.print(f"{count(facts['points'], 'point')} of {count(facts['logs'], 'log')}, in {facts['seconds']:,.1f} s")
    for message, points in facts["status"].items():
        screen.print(f"  {points:>12,}  {message}", markup=False, soft_wrap=True)
    screen.print(f"written to {facts['folder']}/parts: read them with polars, pandas or DuckDB", soft_wrap=True)


_GAP = 3  # between two columns of a table
_MIN_WIDTH = 20  # columns of a cascade in a table
_POINTS, _MORE_POINTS = 5, 9  # shown points of the frontier, with a target and without


#: Kind of file that each option writes.
_KINDS_OF_OUTPUT = {"--out": "policy", "--frontier": "frontier"}


def tune(
    *,
    budget_options: BudgetOptions,
    spec: Spec,
    reading: LogOptions,
    log: LogFiles,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", rich_help_panel=OUTPUT)] = None,
    frontier: Annotated[Path | None, typer.Option(metavar="FILE", rich_help_panel=OUTPUT)] = None,
    json_: AsJson = False,
) -> None:
    """Find the policy for your target; without a target, show the best policies, cheapest first.

    Most people need LOG, a target and `--out`. Money is in the currency of the prices, shown as $.

    Example: `rcjax tune log.csv --budget 150/M --out policy.json`

    Args:
        out: Write the policy to deploy here, as JSON; needs a target.
        frontier: Write the frontier here, for rcjax evaluate.
    """
    spec = budget_options.add_to(spec, *log)
    options = reading.options() | {"segment": spec.segment, "models": models_to_read(reading.models, spec.cascade)}
    target = spec.target
    if out and target is None:
        raise typer.BadParameter("needs a target, such as --budget", param_hint="--out")
    spec.check()
    require_outputs({"--out": out, "--frontier": frontier}, reading.inputs(*log), _KINDS_OF_OUTPUT)
    start_jax()  # before JAX is imported
    from rcjax.logs.sources import join_parts
    from rcjax.solving.frontier.frontier import InfeasibleError
    from rcjax.tuning.tune import tune_in_stages

    steps = staged(3)
    with steps("reading the log"):
        data = read_log(join_parts(log), **options)
    require_plausible_target(target, data, reading.really)
    require_plausible_log(target, data, reading.really)
    if data.answer is not None:
        _warn_of_unused_answers(spec)
    infeasible = None
    try:
        tuned = tune_in_stages(data, None, spec, steps)
    except InfeasibleError as problem:
        if problem.tuned is None:  # the budget is below every model's price: nothing was fitted
            raise
        tuned, infeasible = problem.tuned, problem
    unwritten = attempt(partial(tuned.frontier.save, frontier)) if frontier else None
    unwritten = unwritten or (attempt(partial(tuned.policy.save, out)) if out and tuned.policy else None)
    problem, show = unwritten or infeasible, partial(_show_tuning, tuned, out, (unwritten or infeasible) is None)
    conclude(tuned.to_json(), show, as_json=json_, problem=problem, problem_first=infeasible is not None)


def _warn_of_unused_answers(spec: Spec) -> None:
    """Warn if the search does not compare the answers of the log."""
    if spec.cascade is not None:
        named = spec.cascade if isinstance(spec.cascade, str) else ",".join(spec.cascade[0])
        reason = f"--cascade {named} does not compare answers, and the default search does"
        warn(f"the answers of the log are not used: {reason}: leave out --cascade")


def _show_tuning(tuned: Tuned, out: Path | None, is_complete: bool) -> None:
    """Print the tables, then the policy; `is_complete` says that no problem occurred, and the policy is written."""
    document = tuned.to_json()
    heading = tuned.log.describe(confidences=False)
    if tuned.held_out is not None:
        heading += f" {tuned.held_out.n_queries:,} other queries are held out for the test of the guarantee."
    rows, chosen = document["model_summary"], None
    if not tuned.log.has_confidences:
        rows = [{**row, "calibration_error": None} for row in rows]
    if tuned.policy is not None:
        rungs = zip(tuned.policy.weights, tuned.policy.adjacent_rungs, strict=True)
        chosen = [rung.expected for weight, rung in rungs if weight >= MIN_SHARE]
    units = {"money": tuned.money, "noun": tuned.log.error_kind.noun}
    show_tuning(heading, rows, document["frontier"], chosen=chosen, **units)
    if tuned.policy:
        error_kind = tuned.log.error_kind
        _show_policy(document["policy"], document["comparison"], _policy_texts(tuned), tuned.money, error_kind)
    if is_complete:  # else there is a problem
        advised = tuned.policy and tuned.comparison and preferred_rival(tuned.policy, tuned.comparison)
        example = None if tuned.target else example_budget([row["cost"] for row in rows])
        _show_next(out, example, advised.subject if advised else "", _keeping(tuned, advised or None))


@escape_arguments
def show_tuning(
    heading: str,
    rows: Sequence[Mapping[str, Any]],
    points: Sequence[Mapping[str, Any]],
    *,
    money: Money,
    chosen: Sequence[Mapping[str, Any]] | None = None,
    noun: str = ERRORS.noun,
) -> None:
    """Print the log, the models, and some points of the frontier.

    Args:
        points: entries of the JSON form of the frontier.
        chosen: error, cost and λ of each rung of the policy for a target, whose rows have asterisks if they are points;
            None to show more points.
    """
    screen = Screen()
    screen.print(heading, style="bold")
    single_models = {row["model"]: facts({**row, "error": 1 - row["accuracy"]}, money, noun) for row in rows}
    screen.print(facts_rows("each model alone", single_models, money))
    abstaining = any(point.get("abstention") for point in points)
    points = [*points, *([] if abstaining else _models_left_out(rows, points))]
    costs, errors = ([point[name] for point in points] for name in ("cost", "error"))
    single_rows = [i for i, point in enumerate(points) if len(point["models"]) == 1]
    rows_of_rungs = (
        next((i for i, point in enumerate(points) if _is_chosen(point, rung)), None) for rung in chosen or ()
    )
    chosen_rows = [i for i in rows_of_rungs if i is not None]
    most = _MORE_POINTS if chosen is None else _POINTS
    listed = choose_rows(costs, errors, most, abstaining, [*chosen_rows, *single_rows])
    for row in chosen_rows:
        if row not in listed:  # it replaces the nearest point, which is as good in print
            others = {*listed}.difference(chosen_rows)  # empty if every listed row is chosen: no row is replaced
            nearest = min(others, key=lambda i: abs(costs[i] - costs[row]), default=row)
            listed = sorted({*listed} - {nearest} | {row}, key=lambda i: costs[i])
    remarks = [f"{len(listed)} of {len(points)}; --json lists all"] * (len(listed) < len(points))
    has_intervals = chosen is None and any("error_interval" in point for point in points)
    remarks += [f"in brackets, {100 * LEVEL:.0f} % intervals"] * has_intervals  # else said below the comparison
    remarks += ["* is that for your target"] * (len(chosen_rows) == 1)
    remarks += ["* marks the two policies that your target mixes"] * (len(chosen_rows) > 1)
    brackets = f" ({'; '.join(remarks)})" if remarks else ""
    screen.print(f"The frontier, the best policies of these models, cheapest first{brackets}:")
    starred = [i in chosen_rows for i in listed]
    screen.print(_frontier_table([points[i] for i in listed], money, screen.width, starred, noun))


def choose_rows(
    cost: Sequence[float], error: Sequence[float], most: int, abstaining: bool = False, kept: Sequence[int] = ()
) -> list[int]:
    """Choose the points that a table shows, cheapest first: at most `most` corners of the hull.

    The hull is computed from figures as printed, with three digits, so that equal rows appear once. Where models may
    abstain, the hull of cost and error misses points that abstain less, so points are spread evenly instead.

    Args:
        cost, error: (L,) figures of the points.
        most: number of rows at most, beside `kept`.
        abstaining: whether models may abstain.
        kept: indices that are shown unless a point dominates them as printed, such as single models'.

    >>> choose_rows([3.0, 1.0, 2.0, 9.0], [0.1, 0.5, 0.2, 0.3], 9), choose_rows([3.0, 1.0, 2.0], [0.1] * 3, 2, True)
    ([1, 2, 0], [1, 0])
    >>> choose_rows([1.0, 2.0, 3.0, 4.0], [0.4, 0.3, 0.21, 0.1], 2, kept=[1])
    [0, 1, 3]
    >>> choose_rows([1.0, 1.0], [0.1, 0.1], 9, kept=[1])
    [1]
    """
    import numpy as np

    from rcjax.solving.frontier.points import lower_hull, pareto, thin_hull

    costs = np.array([float(f"{figure:.3g}") for figure in cost])
    errors = np.round(np.asarray(error, float), 3)
    others = (place for place in range(len(costs)) if place not in {*kept})
    first = [*kept, *others]  # kept points go first among points that are printed alike
    front = np.array(first)[pareto(costs[first], errors[first])]
    if abstaining:
        order = np.argsort(costs, kind="stable")
        chosen = order[np.unique(np.linspace(0, len(order) - 1, most).round().astype(int))]
    else:
        hull = front[lower_hull(costs[front], errors[front])]
        chosen = hull[thin_hull(costs[hull], errors[hull], most)]
    shown = {*chosen.tolist(), *({*front.tolist()} & {*kept})}
    return sorted(shown, key=lambda place: (costs[place], -errors[place]))


def _is_chosen(point: Mapping[str, Any], chosen: Mapping[str, Any]) -> bool:
    """Return whether a point is the chosen policy, whose cost may be a bill where the point's is predicted."""
    same_lam = chosen.get("lam") is not None and point.get("lam") == chosen["lam"]
    return point["error"] == chosen["error"] and (same_lam or point["cost"] == chosen["cost"])


def list_best_buys(
    cost: Sequence[float], error: Sequence[float], single_cost: Sequence[float], single_error: Sequence[float]
) -> list[int]:
    """Return the indices of the single models that no policy beats.

    A policy beats a model if it makes `MIN_GAIN` errors fewer for the same money, or no more errors for less money.

    Args:
        cost, error: (L,) figures of the corners of a hull; ladders lie on the lines between them.
        single_cost, single_error: (k,) figures of the single models.

    >>> list_best_buys([1.0, 3.0], [0.3, 0.1], [1.0, 2.0, 2.0, 4.0], [0.3, 0.2005, 0.21, 0.1])
    [0, 1]
    """
    import numpy as np

    costs, errors, alone, wrong = (np.asarray(column, float) for column in (cost, error, single_cost, single_error))
    order = np.lexsort((-errors, costs))
    near = wrong < np.interp(alone, costs[order], errors[order]) + MIN_GAIN
    beaten = ((costs < alone[:, None]) & (errors <= wrong[:, None])).any(1)
    return np.flatnonzero(near & ~beaten).tolist()


def _models_left_out(rows: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the single models that are best buys and not points: a ladder between two points is slightly better."""
    cost, error = ([point[name] for point in points] for name in ("cost", "error"))
    present = {point["models"][0] for point in points if len(point["models"]) == 1}
    costs_and_errors = [row["cost"] for row in rows], [1 - row["accuracy"] for row in rows]
    best = [rows[i] for i in list_best_buys(cost, error, *costs_and_errors)]
    return [
        {
            "cost": row["cost"],
            "error": 1 - row["accuracy"],
            "seconds": row.get("seconds"),
            "models": [row["model"]],
            "rules": {row["model"]: [{"up_to": 1.0, "action": "answer"}]},
        }
        for row in best
        if row["model"] not in present
    ]


def _policy_texts(tuned: Tuned) -> dict[str, Any]:
    assert tuned.policy is not None
    assert tuned.comparison is not None
    period, today = tuned.policy.period, tuned.comparison.today
    assert tuned.target is not None
    aim = tuned.target.describe(tuned.log.error_kind, "today's" if today is None else today.subject)
    money_note = None if period is None else f"a service keeps to {period} (UTC), for {tuned.spec.queries}"
    return {
        "advice": f"{capitalised(str(tuned.advice))}.",
        "notes": [note for note in tuned.notes if not note.endswith(tuned.kept or "\n")],  # the advice has that
        "money": money_note,
        "aim": aim if period is None else f"at most {period}",
        "unadvised": "not advised: " * (preferred_rival(tuned.policy, tuned.comparison) is not None),
        "watching": _describe_watching(tuned.policy, tuned.spec.queries),
    }


def _describe_watching(policy: AbstractPolicy, queries: Queries | None) -> str | None:
    """Say what shadow queries cost, on which checks rest; None if they ask no further model."""
    from rcjax.serving.shadow import ShadowCost

    week = _SHADOW_QUERIES if queries is None else min(_SHADOW_QUERIES, 7 * queries.per_day)
    cost = ShadowCost.estimate(policy, policy.models).query * week * DAYS_PER_PERIOD["month"] / 7
    asked = f"{week:,.0f} shadow queries a week cost ${format_number(cost)} a month"
    return f"Watching it: {asked} (rcjax serve --shadow {week:.0f}/week)." if cost else None


@escape_arguments
def _show_policy(
    policy: Mapping[str, Any],
    comparison: Mapping[str, Any],
    texts: Mapping[str, Any],
    money: Money,
    error_kind: ErrorKind,
) -> None:
    screen = Screen()
    screen.print("What to do", style="bold")
    screen.print(Padding(texts["advice"], (0, 2)))
    compared = read_value(Comparison, comparison, "comparison")
    screen.print(comparison_table(compared, money, error_kind.noun, is_expected=True))
    screen.hang("note", *texts["notes"])
    screen.print(f"\nPolicy for your target ({texts['unadvised']}{texts['aim']}):", style="bold")
    lines = cascade_lines(policy)
    for line in lines:
        screen.print(line)
    if signs := " and ".join(sign for sign in ">≤" if any(sign in line for line in lines)):
        confidence = f"calibrated confidence, the {error_kind.success} among answers so sure"
        above = f"an answer stays if its {confidence}, is above; else the next is asked"
        screen.print(f"  ({signs}: {above if signs == '>' else f'the {confidence}'})")
    expected = policy["expected"]
    figures = [*facts(expected, money, error_kind.noun)]
    screen.print(facts_table({"expected": figures}, money))
    if (level := expected.get("level")) is not None:
        screen.print(f"(a–b): a {percent(level, 0)} interval")
    for fact in figures:
        if fact.explanation:
            screen.hang("note", f"{fact.label}: {fact.explanation}")
    if texts["money"]:
        screen.hang("money", texts["money"])
    if texts["watching"]:
        screen.print(texts["watching"])


def _keeping(tuned: Tuned, advised: Rival | None) -> str:
    """Return the next step if the advice is to keep today's; empty if it is not. `advised` is the advised rival."""
    comparison = tuned.comparison
    if comparison is None or (today := comparison.today) is None:
        return ""
    if not (comparison.is_todays_policy if advised is None else advised is today):
        return ""
    if tuned.kept.startswith(" until"):
        return "log and label as many queries more as said above, then run the same command again"
    later = "" if tuned.kept else "; once more queries are logged and labelled, run the same command again"
    return f"keep {today.subject}: this log shows nothing better{later}"


@escape_arguments
def _show_next(policy: Path | None, budget: str | None, advised: str, keeping: str) -> None:
    """Print the file of the policy, if it is written, and the next step.

    `budget` is an example without a target; `advised` names the rival that is advised in place of the policy, if any;
    `keeping` is the next step if today's is kept.
    """
    screen = Screen()
    if policy is not None:
        instead = f" all the same: the tuned one, not {advised}, which is advised" if advised else ""
        screen.print_path(f"Policy written to {policy}{instead}")
    if keeping:
        screen.next_step(keeping)
    elif policy is not None:
        evaluate = command("evaluate", policy, "NEW_LOG.csv")
        when = "before you deploy it against this advice" if advised else "before you deploy it"
        screen.next_step(f"{when}, is it as good on queries that are not in this log?", evaluate)
    elif budget is not None:
        target = f"a target, such as --budget {budget}"
        screen.next_step(f"the same command with {target}, and --out policy.json, chooses a policy")
    else:
        evaluate = "rcjax evaluate tries it on queries that are not in this log, before you deploy it"
        screen.next_step(f"the same command with --out policy.json writes this policy; {evaluate}")


def _frontier_table(
    points: Sequence[Mapping[str, Any]], money: Money, width: int, starred: Sequence[bool], noun: str
) -> Table:
    """Make a table of points: the cost, the other figures, and the cascade in the remaining width."""
    figures = [facts({**point, "cost_interval": None, "seconds_p95": None}, money, noun) for point in points]
    cost_first = {str(i): sorted(row, key=lambda fact: fact.unit != "money") for i, row in enumerate(figures)}
    labels, cells = facts_grid(cost_first, money)
    heads = [label.replace(", ", ",\n").replace("per ", "per\n") for label in labels]
    cells = [[f"{'* ' * is_starred}{row[0]}", *row[1:]] for row, is_starred in zip(cells, starred, strict=True)]
    widths = [max(map(len, (*head.split("\n"), *column))) for head, *column in zip(heads, *cells, strict=True)]
    remaining = max(max(width, TERMINAL) - sum(widths) - _GAP * (len(heads) + 1), _MIN_WIDTH)
    table = make_table(*heads, text_columns=0, unbroken=True)
    digits = threshold_digits(points)
    cascades = [describe_cascade(point, remaining, digits) for point in points]
    are_chains = all(map(is_chain, points))
    head = "models, answering above a confidence" if are_chains else "models, and what they do at a confidence"
    head = head if any(sign in cascade for cascade in cascades for sign in ">≤") else "models"
    # Fold a name that is wider than the room, rather than cut figures.
    table.add_column(head.replace(", ", ",\n", 1) if len(head) > remaining else head, overflow="fold")
    for row, cascade, is_starred in zip(cells, cascades, starred, strict=True):
        table.add_row(*row, cascade, style="bold" if is_starred else None)
    return table
