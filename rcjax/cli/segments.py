"""`rcjax tune --by`: policies of segments under one budget; and what commands show of such policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcjax.cli.failures import attempt, conclude
from rcjax.cli.panels import SEGMENTS
from rcjax.cli.parsers import fraction, pairs
from rcjax.cli.printing import command, shown

if TYPE_CHECKING:
    from rcjax.logs.log import Log
    from rcjax.policy.policy import AnyPolicy
    from rcjax.policy.spec import Spec
    from rcjax.policy.targets import Target
    from rcjax.tuning.tuned_segments import TunedSegments

__all__ = ["By", "Shares", "replay_by_segment", "show_segment_checks", "show_segments", "tune_by"]


By = Annotated[
    str | None,
    typer.Option(
        "--by",
        show_default=False,
        metavar="COLUMN",
        help="A policy for each segment that this column of LOG tells, such as a language, at one λ for all that meets "
        "the target over the whole traffic; segments that do not gain by one of their own share a policy.",
        rich_help_panel=SEGMENTS,
    ),
]


def share_list(text: str) -> Any:
    """Parse shares of the traffic: `de=0.2,en=80%`."""
    named = pairs(text.split(","), "--shares")
    return {name: fraction(share) for name, share in named.items()}


Shares = Annotated[
    Any,
    typer.Option(
        "--shares",
        parser=share_list,
        metavar="NAME=SHARE,…",
        help="The traffic that each segment of `--by` has: de=0.2,en=0.8. [default: as in LOG]",
        rich_help_panel=SEGMENTS,
    ),
]


def tune_by(
    logs: tuple[Log, Log | None],
    spec: Spec,
    out: Path | None,
    steps: Callable[[str], AbstractContextManager[None]],
    *,
    as_json: bool,
) -> None:
    """Tune the segments of a log, write and show; then raise what went wrong with the file.

    Args:
        logs: the log, and the queries for the test of a guarantee; None where they are to be split off.
        spec: how, for one target of the whole traffic.
        out: where to write the policies.
        steps: entered for each part of the work, with what it is in words.
        as_json: whether to print a document.
    """
    from rcjax.tuning.tune_segments import tune_segments_in_stages

    tuned, (target,) = tune_segments_in_stages(*logs, spec, steps), spec.targets
    problem = attempt(partial(tuned.policy.save, out)) if out else None
    show = partial(_show, tuned, target, None if problem else out, done=problem is None)
    conclude(tuned.to_json(), show, as_json=as_json, problem=problem)


def _show(tuned: TunedSegments, target: Target, written: Path | None, *, done: bool) -> None:
    document = tuned.to_json()
    heading = tuned.log.describe()
    if tuned.held_out is not None:
        heading += f" {tuned.held_out.n_queries:,} other queries are held out for the test of the guarantee."
    show_segments(heading, document, target, written, done=done)


@shown
def show_segments(
    heading: str, document: Mapping[str, Any], target: Target, written: Path | None, *, done: bool = True
) -> None:
    """Print the policies of segments, given the document of `rcjax tune --by … --json`; `done`: nothing is wrong."""
    from rcjax._base.wording import choose_unit, percent
    from rcjax.cli.console import Screen, hang, make_table, next_step
    from rcjax.cli.tables import _models_table

    screen = Screen()
    screen.print(heading, style="bold")
    policy, rows = document["policy"], document["segments"]
    money = choose_unit([row["cost"] for row in document["model_summary"]])
    screen.print(_models_table(document["model_summary"], money))
    table = make_table(
        policy["by"], "queries", "of traffic", "error", f"$ per {money.name}", "gain of its own", "policy"
    )
    for row in rows:
        tried = row["weight"] is not None
        gain = f"{100 * row['gain']:.1f} ± {percent(row['gain_se'])}" if tried else "not tried"
        cells = f"{row['queries']:,}", percent(row["share"]), percent(row["error"]), money.show(row["cost"]), gain
        table.add_row(row["name"], *cells, "own" if row["own"] else "common")
    expected = policy["expected"]
    table.add_section()
    whole = f"{sum(row['queries'] for row in rows):,}", "", percent(expected["error"]), money.show(expected["cost"])
    table.add_row("all", *whole, "", "", style="bold")
    screen.print(
        f"Policies for your target ({target}), by {policy['by']}; gains of error + λ·cost on queries left out:"
    )
    screen.print(table)
    for name, part in (("common", policy["common"]), *((row["name"], policy["segments"][row["name"]]) for row in rows)):
        if name == "common" or next(row["own"] for row in rows if row["name"] == name):
            _print_policy(screen, name, part)
    for remark in document["remarks"]:
        hang(screen, "note", remark)
    if written:
        screen.print_path(f"Policies written to {written}")
        words = "are they as good on queries that are not in this log?"
        next_step(screen, words, command("evaluate", written, "NEW_LOG.csv"))
    elif done:
        next_step(screen, "the same command with --out policy.json writes these policies")


def _print_policy(screen: Any, name: str, part: Mapping[str, Any]) -> None:
    from rcjax._base.wording import describe_cascade
    from rcjax.cli.replay_tables import _indent, _point

    screen.print(f"{name}:")
    screen.print(_indent(describe_cascade(_point(part), width=76)))


def replay_by_segment(policy: AnyPolicy, log: Log) -> list[dict[str, Any]]:
    """What each segment's policy did on a log, beside what was expected there: a row per segment, as JSON values.

    `name` is None for queries of no known segment.
    """
    from rcjax.replaying.by_segment import UNKNOWN, replay_segments
    from rcjax.replaying.replay import replay

    return [
        {
            "name": name if name != UNKNOWN else None,
            "own": name in policy.own,
            "n": one.n,
            "error": float(one.error),
            "error_se": float(one.error_se) if one.n > 1 else None,
            "cost": float(one.cost),
            "cost_se": float(one.cost_se) if one.n > 1 else None,
            "predicted": {what: policy.part(segment=name).expected.get(what) for what in ("error", "cost")},
        }
        for name, one in replay_segments(policy, log, replay).items()
    ]


@shown
def show_replays(rows: Sequence[Mapping[str, Any]], by: str) -> None:
    """Print what each segment's policy did, beside what was expected: rows of `replay_by_segment`."""
    from rcjax._base.wording import choose_unit, percent
    from rcjax.cli.console import Screen, make_table
    from rcjax.cli.replay_tables import _cost, _error, _maybe

    money = choose_unit([row["cost"] for row in rows])
    unit = f"$ per {money.name}"
    table = make_table(by, "queries", "error,\npredicted", "\nobserved", f"{unit},\npredicted", "\nobserved", "policy")
    for row in rows:
        predicted = row["predicted"]
        table.add_row(
            "no known one" if row["name"] is None else row["name"],
            f"{row['n']:,}",
            _maybe(predicted["error"], percent),
            _error(row["error"], row["error_se"]),
            _maybe(predicted["cost"], money.show),
            _cost(row["cost"], row["cost_se"], money),
            "own" if row["own"] else "common",
        )
    Screen().print(table)


@shown
def show_segment_checks(facts: Mapping[str, Any]) -> None:
    """Print the check of policies of segments (its JSON form): a row for each, and what has drifted where."""
    from rcjax._base.wording import check_name, count, percent
    from rcjax.cli.console import Screen, hang, make_table, next_step

    screen = Screen()
    screen.print(f"{facts['source']}: {count(len(facts['segments']), 'segment')} by {facts['by']}")
    table = make_table(facts["by"], "queries", "tuned on", "error,\nexpected", "\nseen", "drifted")
    for name, one in facts["segments"].items():
        bad = [check_name(check["name"]) for check in one["checks"] if check["verdict"] == "bad"]
        error = one["error"]
        cells = f"{one['n']:,}", f"{one['reference']:,}", percent(error["expected"]), percent(error["seen"])
        table.add_row(name, *cells, ", ".join(dict.fromkeys(bad)) or "–")
    screen.print(table)
    drifted = facts["drifted_segments"]
    every = count(len(facts["segments"]), "segment")
    unclear = [name for name, one in facts["segments"].items() if one["verdict"] == "doubtful"]
    summary = f"fine: none of {every} drifted"
    if unclear:
        summary = f"none of {every} is shown to have drifted, and of {', '.join(unclear)} too few queries tell"
    summary = f"{', '.join(drifted)}: DRIFTED ({len(drifted)} of {every})" if drifted else summary
    screen.print(summary, style="bold")
    for name in drifted:
        for check in facts["segments"][name]["checks"]:
            if check["verdict"] == "bad":
                hang(screen, name[:9], f"{check_name(check['name'])}, {check['subject']}: {check['advice']}")
    for remark in facts["remarks"]:
        hang(screen, "", remark)
    level = f"{100 * facts['alarm']:.4g} %"
    screen.print(f"Where nothing has changed, any segment alarms in {level} of logs at most.")
    again = "rcjax retune with this policy and log" if drifted else "keep the policies; check again with fresh queries"
    next_step(screen, again)
