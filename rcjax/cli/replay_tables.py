"""Tables of policies on logged queries: replayed, tuned again, and those of the demo."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from rcjax._base.wording import Money, choose_unit, count, describe_cascade, percent
from rcjax._core.json_values import plain
from rcjax.cli.console import Screen, hang, make_table, next_step
from rcjax.cli.printing import shown
from rcjax.policy.counted import ERRORS
from rcjax.policy.facts import Fact, facts
from rcjax.policy.policy import AnyPolicy

if TYPE_CHECKING:
    from rcjax.frontier.frontier import Frontier
    from rcjax.logs.log import Log

LEVEL = 0.9  # of the intervals that are shown

_TERMINAL = 80  # columns


def predicted(tuned: AnyPolicy | Frontier) -> dict[str, Any]:
    """What was expected when it was tuned, as JSON values: of a policy figures, of a frontier lists of them."""
    if isinstance(tuned, AnyPolicy):
        return dict(tuned.expected)
    figures = {"error": tuned.error, "cost": tuned.cost, "abstention": tuned.abstention}
    return {name: plain(values) for name, values in figures.items() if values is not None}


def plain_replay(tuned: AnyPolicy | Frontier, log: Log) -> dict[str, Any]:
    """Return what a policy does on a log as JSON values, with 90 % intervals for the true error and cost.

    Of a frontier, figures are lists with a value for each point. Of a ladder that follows its bill, `followed` is what
    following it does with these queries, in their order.
    """
    from rcjax.replaying.figures import error_interval
    from rcjax.replaying.replay import follow, replay as replay_

    replay = replay_(tuned, log)
    names = ("cost", "error", "cost_se", "error_se", "spent", "spent_se", "share", "abstention", "error_answered")
    figures = {name: plain(getattr(replay, name)) for name in names} | {"n": replay.n, "models": list(replay.models)}
    spread = np.array([-1, 1]) * NormalDist().inv_cdf((1 + LEVEL) / 2)
    intervals = {"error_interval": error_interval(replay, log, LEVEL)}
    for name in ("cost", "spent"):
        mean, se = (np.asarray(figures[part])[..., None] for part in (name, f"{name}_se"))
        intervals[f"{name}_interval"] = np.maximum(mean + spread * se, 0.0)
    seconds = {} if replay.seconds is None else replay.seconds.to_json()
    followed = {}
    if isinstance(tuned, AnyPolicy) and (stream := follow(tuned, log)) is not None:
        followed = {"followed": stream.to_json() | {"tuned": tuned.position}}
    return figures | plain(intervals) | {"level": LEVEL} | seconds | followed


def facts_grid(subjects: Mapping[str, Iterable[Fact]], money: Money) -> tuple[list[str], list[list[str]]]:
    """(the labels of all facts, in the order of the subject that has most; the cells of each subject, in words)."""
    rows = [{fact.label: fact.show(money) for fact in listed} for listed in subjects.values()]
    labels = [*dict.fromkeys(label for row in (max(rows, key=len), *rows) for label in row)]
    return labels, [[row.get(label, "") for label in labels] for row in rows]


def facts_table(subjects: Mapping[str, Iterable[Fact]], money: Money, head: str = "") -> Table:
    """A row for each fact, a column for each subject."""
    labels, cells = facts_grid(subjects, money)
    table = make_table(head, *subjects)
    for label, *row in zip(labels, *cells, strict=True):
        table.add_row(label, *row)
    return table


def replayed_facts(replayed: Mapping[str, Any], money: Money, noun: str) -> dict[str, list[Fact]]:
    """What a policy did on a log, as `plain_replay` gives it: at its position as tuned, and following its bill."""
    refused, followed = replayed["abstention"] > 0, replayed.get("followed")
    as_tuned = {name: replayed[name] for name in replayed if refused or name not in ("abstention", "error_answered")}
    as_tuned |= {"cost": replayed["spent"], "cost_interval": replayed["spent_interval"]}
    shares = dict(zip(replayed["models"], replayed["share"], strict=True))
    by_model = [Fact(f"by {name}", share, "share") for name, share in shares.items() if share]
    if followed is None:
        return {"observed": [*facts(as_tuned, money, noun), *by_model]}
    as_followed = followed | {"cost": followed["bill"], "abstention": followed["abstention"] if refused else None}
    return {
        "observed": [*facts(as_tuned | {"position": followed["tuned"]}, money, noun), *by_model],
        "following\nits bill": [*facts(as_followed, money, noun)],
    }


@shown
def show_replay(
    heading: str, document: Mapping[str, Any], notes: Sequence[str], noun: str, then: tuple[str, str], rungs: Any = ()
) -> None:
    """Print what happened when a policy or a frontier answered the queries of a log, beside the promise.

    Args:
        heading: what was read.
        document: that of `rcjax evaluate --json`.
        notes: what else there is to say of it.
        noun: what is counted.
        then: what to do next, and the command that does it.
        rungs: of a frontier the points that are shown.
    """
    screen, money = Screen(), choose_unit(document["cost"] if rungs else [document["spent"]])
    screen.print(heading, style="bold")
    screen.print(f"Replayed on {count(document['n'], 'query')}; in brackets, {100 * LEVEL:.0f} % intervals.")
    if rungs:
        table = make_table(f"predicted $ per {money.name}", "observed", f"predicted {noun}", "observed")
        expected, interval = document["predicted"], document["error_interval"]
        paid = "spent" if document["search"] == "selected" else "cost"  # as was promised: bills, or mean costs
        for i in rungs:
            costs = (money.show(cost[i]) for cost in (expected["cost"], document[paid]))
            observed = Fact(noun, document["error"][i], "share", tuple(interval[i])).show(money)
            table.add_row(*costs, percent(expected["error"][i]), observed)
    else:
        expected = {"predicted": [*facts(document["predicted"], money, noun)]}
        table = facts_table(expected | replayed_facts(document, money, noun), money)
    screen.print(table)
    for note in notes:
        hang(screen, "note", note)
    next_step(screen, *then)


@shown
def show_demo(document: Mapping[str, Any], alone: Mapping[str, tuple[float, float]], share: float) -> None:
    """Print the demo: its log, its policy, and what following the budget comes to on fresh queries, in 24 lines.

    Args:
        document: its JSON form.
        alone: the error and the cost of each model on the log tuned on.
        share: the budget, as a share of the cost of the last model.
    """
    screen, policy, month = Screen(), document["policy"], document["queries_a_month"]
    money = choose_unit([cost for _, cost in alone.values()])
    screen.print(f"SYNTHETIC: {document['queries']:,} queries, sampled from a model of five LLMs; no LLM is asked.")
    rows = [(name, percent(error), money.show(cost)) for name, (error, cost) in alone.items()]
    screen.print(_plain_table(("each model alone", "error", f"$ per {money.name}"), rows))
    largest = document["models"][-1]
    budget = f"${money.show(policy['budget'])} per {money.name}"
    screen.print(f"\nWith {percent(share, 0)} of the money of {largest}, {budget}, rcjax tune finds:")
    for line in cascade_lines(policy):
        screen.print(line)
    error, *_ = facts(document["policy"]["expected"], money)
    screen.print(f"  {error.show(money)} error expected, in brackets the 90 % interval\n")
    models, followed, n = document["single_models"], document["observed"]["followed"], document["observed"]["n"]
    served = {f"{name} alone": (of["error"], of["cost"]) for name, of in list(models.items())[-2:]}
    served["the policy, following its budget"] = followed["error"], followed["bill"]
    rows = [(name, percent(error), f"{month * cost:,.0f}") for name, (error, cost) in served.items()]
    screen.print(
        _plain_table((f"on {n:,} fresh queries", "error", f"$ a month, {month / 30:,.0f} queries a day"), rows)
    )
    before, now = round(month * models[largest]["cost"]), round(month * followed["bill"])
    more = followed["error"] - models[largest]["error"]
    points = f"{100 * abs(more):.1f} points {'more' if more > 0 else 'less'} error"
    screen.print(f"\nThat saves ${before - now:,} of ${before:,} a month, at {points} than {largest}.")
    doors = "rcjax collect --help, with questions; rcjax serve --help, with an endpoint; with a log"
    next_step(screen, doors, "rcjax tune log.csv --prices prices.toml")


def _plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table without lines."""
    table = make_table(*heads)
    table.box = None
    for row in rows:
        table.add_row(*row)
    return table


@shown
def show_retuning(
    heading: str, document: Mapping[str, Any], saved: Path | None, noun: str = ERRORS.noun, *, done: bool = True
) -> None:
    """Print a policy tuned again beside the one before.

    Args:
        heading: what was read.
        document: that of `rcjax retune --json`.
        saved: the file of the new policy, where it is written.
        noun: what is counted.
        done: that nothing is wrong.
    """
    screen = Screen()
    screen.print(heading, style="bold")
    policies, replays = {"before": document["before"], "after": document["policy"]}, document["replayed"]
    for name, policy in policies.items():
        for line in cascade_lines(policy, name):
            screen.print(line)
    money = choose_unit([replay["spent"] for replay in replays.values() if replay])
    columns: dict[str, list[Fact]] = {}
    for name, policy in policies.items():
        columns[f"{name},\nexpected"] = [*facts(policy["expected"], money, noun)]
        did = replayed_facts(replays[name], money, noun) if replays[name] else {"": []}
        *_, columns[f"{name},\non these"] = did.values()
    brief = {  # rungs of two ladders do not compare, and intervals have no room
        name: [fact._replace(interval=None) for fact in column if fact.unit != "rung"]
        for name, column in columns.items()
    }
    screen.print(facts_table(brief, money))
    screen.print("The new policy was tuned on these queries, where it looks a little better than it is.")
    for remark in document["remarks"]:
        hang(screen, "note", remark)
    if saved:
        screen.print_path(f"Policy written to {saved}")
        next_step(screen, "rcjax serve takes it within seconds where it serves this file; else deploy it")
    elif done:
        next_step(screen, "the same command with --out writes the new policy")


def _parts(policy: Mapping[str, Any]) -> list[tuple[float, Mapping[str, Any]]]:
    """The policies, with their weights, of the JSON form of a policy or a ladder."""
    if "rungs" not in policy:
        return [(1.0, policy)]
    low, share = divmod(policy["position"], 1)
    rungs = policy["rungs"][int(low) : int(low) + 2]
    return [(1 - share, rungs[0]), (share, rungs[1])] if share else [(1.0, rungs[0])]


def cascade_lines(policy: Mapping[str, Any], name: str = "") -> list[str]:
    """The cascades of the JSON form of a policy or a ladder, in lines; before each which queries go by it.

    Args:
        policy: the JSON form.
        name: with which the words begin.
    """
    lines = []
    for share, part in _parts(policy):
        queries = f"{percent(share)} of the queries" if share < 1 else ""
        for segment, own in {"": part, **part.get("segments", {})}.items():
            others = "others" if part.get("segments") else ""
            words = ", ".join(filter(None, (name, queries, f"segment {segment}" if segment else others)))
            first, *more = describe_cascade(own, width=_TERMINAL - 4).split("\n")
            whole = f"  {words}: {first}" if words else f"  {first}"
            fits = not more and len(whole) <= _TERMINAL
            lines += [whole] if fits else [f"  {words}:", *(f"    {line}" for line in (first, *more))]
    return lines
