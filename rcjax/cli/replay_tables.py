"""Tables of policies on logged queries: replayed, tuned again, and those of the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from rcjax._base.wording import choose_unit, count, describe_cascade, figure, percent
from rcjax._core.json_values import plain
from rcjax._core.thinning import spread
from rcjax.cli.console import Screen, hang, make_table, next_step
from rcjax.cli.printing import shown
from rcjax.policy.counted import ERRORS
from rcjax.policy.policy import AnyPolicy

if TYPE_CHECKING:
    from rcjax.frontier.frontier import Frontier
    from rcjax.logs.log import Log

LEVEL = 0.9  # of the intervals that are shown


_SECONDS = {"seconds": "seconds, mean", "seconds_p95": "seconds, 95 %"}


def expectation(subject: AnyPolicy | Frontier) -> dict[str, Any]:
    """Return the error and cost that the tuning promised: numbers for a policy, lists for a frontier.

    And the share of queries that get no answer, where models may refuse. With intervals where there are any, of which
    `level` says how often they cover the truth.
    """
    if isinstance(subject, AnyPolicy):
        expected = subject.expected
        figures: dict[str, Any] = {name: expected.get(name) for name in ("error", "cost")}
        figures |= {"abstention": expected["abstention"]} if expected.get("abstention") is not None else {}
        if expected.get("level") is not None:
            ends = {
                f"{name}_interval": [expected[f"{name}_low"], expected[f"{name}_high"]]
                for name in ("error", "cost")
                if f"{name}_low" in expected
            }
            figures |= ends | {"level": expected["level"]}
        return figures | {name: expected[name] for name in _SECONDS if expected.get(name) is not None}
    figures = {"error": plain(subject.error), "cost": plain(subject.cost)}
    if subject.abstention is not None:
        figures["abstention"] = plain(subject.abstention)
    if subject.bands is not None:
        figures |= {"error_interval": plain(subject.bands.error), "cost_interval": plain(subject.bands.cost)}
        figures["level"] = subject.bands.level
    return figures if subject.seconds is None else figures | subject.seconds.to_json()


def brief_seconds(value: float | None) -> str:
    """Seconds in a table: two digits, or three where there are so many.

    >>> brief_seconds(0.8342), brief_seconds(12.34), brief_seconds(None)
    ('0.83', '12.3', '–')
    """
    return "–" if value is None else figure(value, 2 if value < 9.95 else 3)


def plain_replay(subject: AnyPolicy | Frontier, log: Log) -> dict[str, Any]:
    """Return what a policy or frontier does on a log as JSON values, with 90 % intervals for the true error and cost.

    Of a ladder that follows its bill, `followed` is what following it does with these queries, in their order.
    """
    from rcjax.replaying.curves import error_interval
    from rcjax.replaying.following import follow
    from rcjax.replaying.replay import replay as replay_

    replay, followed = replay_(subject, log), {}
    if isinstance(subject, AnyPolicy) and (stream := follow(subject, log)) is not None:
        followed = {"followed": stream.to_json() | {"tuned": subject.position}}
    names = ("cost", "error", "cost_se", "error_se", "spent", "spent_se", "share", "abstention", "error_answered")
    figures = {name: plain(getattr(replay, name)) for name in names} | {"n": replay.n, "models": list(replay.models)}
    spread = np.array([-1, 1]) * NormalDist().inv_cdf((1 + LEVEL) / 2)
    intervals = {"error_interval": error_interval(replay, log, LEVEL)}
    for name in ("cost", "spent"):
        mean, se = (np.asarray(getattr(replay, field), float)[..., None] for field in (name, f"{name}_se"))
        intervals[f"{name}_interval"] = np.maximum(mean + spread * se, 0.0)
    seconds = {} if replay.seconds is None else replay.seconds.to_json()
    return figures | plain(intervals) | {"level": LEVEL} | seconds | followed


@shown
def show_replay(
    heading: str,
    predicted: Mapping[str, Any],
    replayed: Mapping[str, Any],
    tuned_on: bool = False,
    noun: str = ERRORS.noun,
    *,
    billed: bool = True,
) -> None:
    """Print what happened when a policy or a frontier answered the queries of a log, beside the promise.

    Args:
        heading: what was read.
        predicted, replayed: as `expectation` and `plain_replay` give them.
        tuned_on: whether it was tuned on this very log.
        noun: what is counted.
        billed: whether costs were promised as bills, and else at the models' mean costs.
    """
    screen = Screen()
    screen.print(heading, style="bold")
    table = _frontier_replayed if isinstance(replayed["cost"], list) else _policy_replayed
    screen.print(f"Replayed on {count(replayed['n'], 'query')}; in brackets, {100 * LEVEL:.0f} % intervals.")
    screen.print(table(predicted, replayed, noun, "spent" if billed else "cost"))
    if tuned_on:
        what = "this is the very log that it was tuned on, where it looks better than it is: evaluate it on others"
        hang(screen, "note", what)


@shown
def show_next_of_replay(check: str | None) -> None:
    """Print what to do after a replay: the command that checks a policy; None for a frontier."""
    if check:
        next_step(Screen(), "serve it (rcjax serve --help), or is a difference more than chance?", check)
    else:
        next_step(Screen(), "rcjax tune with a target, such as --budget, and --out policy.json, for one of these")


@shown
def show_demo(facts: Mapping[str, Any], alone: Mapping[str, tuple[float, float]], share: float) -> None:
    """Print the demo: its log, its policy, and what following the budget comes to on fresh queries, in 24 lines.

    Args:
        facts: its JSON form.
        alone: the error and the cost of each model on the log tuned on.
        share: the budget, as a share of the cost of the last model.
    """
    screen, policy, month = Screen(), facts["policy"], facts["queries_a_month"]
    money = choose_unit([cost for _, cost in alone.values()])
    screen.print(f"SYNTHETIC: {facts['queries']:,} queries, sampled from a model of five LLMs; no LLM is asked.")
    rows = [(name, percent(error), money.show(cost)) for name, (error, cost) in alone.items()]
    screen.print(_plain_table(("each model alone", "error", f"$ per {money.name}"), rows))
    largest = facts["models"][-1]
    budget = f"${money.show(policy['budget'])} per {money.name}"
    screen.print(f"\nWith {percent(share, 0)} of the money of {largest}, {budget}, rcjax tune finds:")
    for part_share, part in _parts(policy):
        cascade = describe_cascade(_point(part))
        screen.print(f"  {percent(part_share, 0):>5} of the queries: {cascade}")
    screen.print(f"  {_sure(facts['predicted'], 'error', percent)} error expected, in brackets the 90 % interval\n")
    models, followed, n = facts["single_models"], facts["observed"]["followed"], facts["observed"]["n"]
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
    heading: str, facts: Mapping[str, Any], saved: Path | None, noun: str = ERRORS.noun, *, done: bool = True
) -> None:
    """Print a policy tuned again beside the one before: `facts` is the document of `rcjax retune --json`.

    `saved` is its file, where it is written; `noun` is what is counted; `done` says that nothing is wrong.
    """
    screen = Screen()
    screen.print(heading, style="bold")
    policies = {"before": facts["before"], "after": facts["policy"]}
    for name, policy in policies.items():
        for queries, cascade in _cascades(policy, name):
            screen.print(f"{queries}:\n{cascade}")
    replays = facts["replayed"]
    money = choose_unit([replay["spent"] for replay in replays.values() if replay])
    expected = {name: policy["expected"] for name, policy in policies.items()}
    outcomes = {name: replay and {**replay, **replay.get("followed", {})} for name, replay in replays.items()}
    table = make_table("on these queries", "before", "after")

    def row(label: str, of: Mapping[str, Any], show: Any) -> None:
        table.add_row(label, *(_maybe(of[name], show) for name in policies))

    row(f"expected {noun}", expected, lambda of: _maybe(of.get("error"), percent))
    row("replayed", outcomes, lambda of: percent(of["error"]) if "bill" in of else _sure(of, "error", percent))
    table.add_section()
    row(f"expected $ per {money.name}", expected, lambda of: _maybe(of.get("cost"), money.show))
    row("replayed", outcomes, lambda of: money.show(of["bill"]) if "bill" in of else _sure(of, "spent", money.show))
    if any(of and "bill" in of for of in outcomes.values()):
        row("by rung, on average", outcomes, lambda of: _maybe(of.get("position"), lambda where: f"{where:.1f}"))
    table.add_section()
    parts = (part for policy in policies.values() for _, part in _parts(policy))
    for model in dict.fromkeys(model for part in parts for model in part["models"]):
        row(f"answered by {model}", replays, partial(_share, model=model))
    screen.print(table)
    screen.print("The new policy was tuned on these queries, where it looks a little better than it is.")
    gain = facts["gain"]
    if gain and gain["loss"] > 0:
        share, se = 100 * gain["share"], 100 * gain["se"] / gain["loss"]
        lowered = f"it {'lowers' if share >= 0 else 'raises'} {noun} + λ·cost by {abs(share):.1f} ± {se:.1f} %"
        same = "policies tuned again answer as the one before does: nothing is gained, and nothing lost"
        screen.print(f"On queries left out of the tuning {lowered if share or se else same}.")
    for remark in facts["remarks"]:
        hang(screen, "note", remark)
    if saved:
        screen.print_path(f"Policy written to {saved}")
        next_step(screen, "rcjax serve takes it within seconds where it serves this file; else deploy it")
    elif done:
        next_step(screen, "the same command with --out writes the new policy")


def _share(replayed: Mapping[str, Any], model: str) -> str:
    return percent(dict(zip(replayed["models"], replayed["share"], strict=True)).get(model))


def _policy_replayed(predicted: Mapping[str, Any], replayed: Mapping[str, Any], noun: str, kind: str) -> Table:
    """A row per figure of a policy: predicted, observed at the position as it was tuned, and where it follows its bill.

    `kind` is that of the cost that was promised: "spent", or "cost" at the models' mean costs.
    """
    followed, money = replayed.get("followed", {}), choose_unit([replayed[kind]])
    bill = _maybe(followed.get("bill"), money.show)
    rows = [(noun, *(_sure(of, "error", percent) for of in (predicted, replayed, followed)))]
    if replayed["abstention"] or predicted.get("abstention"):
        refused = (_maybe(of.get("abstention"), percent) for of in (predicted, replayed, followed))
        rows += [
            ("without answer", *refused),
            (f"{noun} among the answered", "", percent(replayed["error_answered"]), ""),
        ]
    promised = _sure(predicted, "cost", money.show)
    if kind == "cost":
        rows += [(f"$ per {money.name} at mean prices", promised, _sure(replayed, "cost", money.show), "")]
        promised = ""
    rows += [(f"$ per {money.name}", promised, _sure(replayed, "spent", money.show), bill)]
    if followed:
        tuned, mean, low, high = (f"{followed[name]:.1f}" for name in ("tuned", "position", "low", "high"))
        rows += [("rung, on average", tuned, tuned, f"{mean} ({low}–{high})")]
    for name, words in _SECONDS.items() if "seconds" in replayed else ():
        rows += [(words, brief_seconds(predicted.get(name)), brief_seconds(replayed[name]), "")]
    shares = zip(replayed["models"], replayed["share"], strict=True)
    rows += [(f"by {name}", "", percent(share), "") for name, share in shares if share]
    table = make_table("", "predicted", "observed", *["following\nits bill"] * bool(followed))
    for row in rows:
        table.add_row(*row[: len(table.columns)])
    return table


def _frontier_replayed(predicted: Mapping[str, Any], replayed: Mapping[str, Any], noun: str, kind: str) -> Table:
    """A row for some points of a frontier."""
    money = choose_unit(replayed[kind])
    heads = (f"$ per {money.name},\npredicted", "\nobserved", f"{noun},\npredicted", f"{noun},\nobserved")
    refusing, timed = any(replayed["abstention"]), "seconds" in replayed
    more = [*["no answer,\nobserved"] * refusing, *["seconds,\n95 %"] * timed]
    table = make_table(*heads, *more, numbers=4 + len(more))
    for i in spread(replayed[kind], replayed["error"]):
        figures = {name: values[i] for name, values in replayed.items() if name.startswith((kind, "error"))}
        table.add_row(
            money.show(predicted["cost"][i]),
            _sure(figures, kind, money.show),
            percent(predicted["error"][i]),
            _sure(figures, "error", percent),
            *[percent(replayed["abstention"][i])] * refusing,
            *[brief_seconds(replayed["seconds_p95"][i]) if timed else ""] * timed,
        )
    return table


def _point(policy: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's JSON form as a point of a frontier: thresholds where each model has one, else rules."""
    names, compared = _asked(policy), {"agreements": policy.get("agreements", {})}
    cuts = {}
    for name, following in zip(names, [*names[1:], None], strict=True):
        rules = policy["rules"][name]
        acts = [(rule["action"], rule.get("model")) for rule in rules]
        if compared["agreements"] and acts == [("ask", following)]:  # always, so that answers can be compared
            cuts[name] = 1.0
            continue
        if acts != [*[("ask", following)] * bool(following), ("answer", None)]:
            return {"models": names, "rules": {name: policy["rules"][name] for name in names}, **compared}
        cuts[name] = rules[0]["up_to"] if following else 0.0
    return {"models": names, "thresholds": cuts, **compared}


def _asked(policy: Mapping[str, Any]) -> list[str]:
    """The models that some query goes to, in order: a rung also names those that only its segments ask."""
    asked = {*policy["models"][:1]}
    for name in policy["models"]:
        if name in asked:
            asked |= {rule.get("model") for rule in policy["rules"][name]}
            asked.add(policy.get("agreements", {}).get(name, {}).get("model"))
    return [name for name in policy["models"] if name in asked]


def _parts(policy: Mapping[str, Any]) -> list[tuple[float, Mapping[str, Any]]]:
    """The policies, with their weights, of the JSON form of a policy or a ladder."""
    if "rungs" not in policy:
        return [(1.0, policy)]
    low, share = divmod(policy["position"], 1)
    rungs = policy["rungs"][int(low) : int(low) + 2]
    return [(1 - share, rungs[0]), (share, rungs[1])] if share else [(1.0, rungs[0])]


def _cascades(policy: Mapping[str, Any], name: str = "") -> list[tuple[str, str]]:
    """(which queries, in words, the cascade that they go by) for the JSON form of a policy or a ladder.

    Args:
        policy: the JSON form.
        name: with which the words begin.
    """
    rows = []
    for share, part in _parts(policy):
        queries = f"for {percent(share)} of the queries, by lot" if share < 1 else ""
        for segment, own in {"": part, **part.get("segments", {})}.items():
            others = "others" if part.get("segments") else ""
            words = filter(None, (name, queries, f"segment {segment}" if segment else others))
            rows.append((", ".join(words), _indent(describe_cascade(_point(own), width=76))))
    return rows


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))


def _maybe(value: float | None, show: Any) -> str:
    return "–" if value is None else show(value)


def _sure(figures: Mapping[str, Any], name: str, show: Any) -> str:
    """A figure, with its interval where there is one."""
    value, ends = figures.get(name), figures.get(f"{name}_interval")
    if value is None or ends is None or None in ends:
        return _maybe(value, show)
    return f"{show(value)} ({'–'.join(show(end).removesuffix(' %') for end in ends)})"
