"""What the command line shows to people: tables and figures, from plain numbers, without JAX."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from rich import box
from rich.console import Console
from rich.table import Table

from rcjax._json import plain
from rcjax._printing import shown
from rcjax._sketch import sketch
from rcjax._targets import Target
from rcjax._wording import Money, between, choose_unit, count, describe_cascade, figure, percent
from rcjax.mixture import Mixture
from rcjax.policy import Policy

if TYPE_CHECKING:
    from rcjax._replay import Replay
    from rcjax.frontier import Frontier

__all__ = [
    "Screen",
    "busy",
    "expectation",
    "hang",
    "make_table",
    "plain_replay",
    "show_demo",
    "show_policy",
    "show_replay",
    "show_report",
    "show_retuning",
    "show_tuning",
    "spread",
]

LEVEL = 0.9  # of the intervals that are shown
_MAX_ROWS = 15
_CHAIN_WIDTH, _BAND_WIDTH, _REFUSED_WIDTH = 43, 12, 8  # leave room for the other columns on a terminal of 80


class Screen(Console):
    """A console that prints text as it is, and leaves a broken pipe to the caller."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:  # called while the exception is handled; rich itself would exit with 1
        """Let the exception pass."""
        raise BrokenPipeError


@contextmanager
def busy(what: str, after: float = 1.0) -> Iterator[None]:
    """Show a spinner on standard error, if that is a terminal, once the work has taken `after` seconds."""
    screen = Screen(stderr=True)
    if not screen.is_terminal:
        yield
        return
    status = screen.status(f"{what} …")
    timer = threading.Timer(after, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # so that a spinner that is just starting is stopped, too
        status.stop()


def expectation(subject: Policy | Mixture | Frontier) -> dict[str, Any]:
    """Return the error and cost that the tuning promised: numbers for a policy or mixture, lists for a frontier.

    And the share of queries that get no answer, where models may refuse. With intervals where there are any, of which
    `level` says how often they cover the truth.
    """
    if isinstance(subject, Policy | Mixture):
        known = subject.expected
        found: dict[str, Any] = {name: known.get(name) for name in ("error", "cost")}
        found |= {"abstention": known["abstention"]} if known.get("abstention") is not None else {}
        if known.get("level") is not None:
            ends = {f"{name}_interval": [known[f"{name}_low"], known[f"{name}_high"]] for name in ("error", "cost")}
            found |= ends | {"level": known["level"]}
        return found
    found = {"error": plain(subject.error), "cost": plain(subject.cost)}
    if subject.abstention is not None:
        found["abstention"] = plain(subject.abstention)
    if subject.bands is not None:
        found |= {"error_interval": plain(subject.bands.error), "cost_interval": plain(subject.bands.cost)}
        found["level"] = subject.bands.level
    return found


def plain_replay(seen: Replay) -> dict[str, Any]:
    """Return what a replay saw as JSON values, with 90 % intervals for the true error and cost."""
    from rcjax._replay import wilson_interval

    names = ("cost", "error", "cost_se", "error_se", "spent", "spent_se", "share", "abstention", "error_answered")
    figures = {name: plain(getattr(seen, name)) for name in names} | {"n": seen.n, "models": list(seen.models)}
    cost, se = (np.asarray(each, float)[..., None] for each in (seen.cost, seen.cost_se))
    intervals = {
        "error_interval": wilson_interval(np.asarray(seen.error), seen.n, LEVEL),
        "cost_interval": np.maximum(cost + np.array([-1, 1]) * NormalDist().inv_cdf((1 + LEVEL) / 2) * se, 0.0),
    }
    return figures | plain(intervals) | {"level": LEVEL}


@shown
def show_tuning(
    heading: str,
    rows: Sequence[Mapping[str, Any]],
    points: Sequence[Mapping[str, Any]],
    saved: Path | None,
    *,
    chosen: Mapping[str, Any] | None = None,
    corrected: bool = False,
) -> None:
    """Print what was read, the models, and the frontier, as a table and drawn.

    `points` are the entries of its JSON form. `chosen` is the error and cost of the policy for a target, whose row is
    marked with an asterisk; a mixture of two points has none. `corrected` says whether errors are higher than what was
    counted, for the luck of the choice.
    """
    screen = Screen()
    screen.print(heading, style="bold")
    money = choose_unit([row["cost"] for row in rows])
    screen.print(_models_table(rows, money))
    shown = spread([point["cost"] for point in points], [point["error"] for point in points])
    mine = _place(points, chosen)
    if mine is not None and mine not in shown:  # in place of the point that is nearest to it
        nearest = min(shown, key=lambda i: abs(points[i]["cost"] - points[mine]["cost"]))
        shown = [mine if i == nearest else i for i in shown]
    some = f" ({len(shown)} of {len(points)} points)" if len(shown) < len(points) else ""
    starred = "" if mine is None else "; * is the policy for your target"
    screen.print(f"The error-cost frontier, as estimated from the log{some}{starred}:")
    screen.print(_frontier_table([points[i] for i in shown], money, screen.width, [i == mine for i in shown]))
    if corrected:
        screen.print(
            "Its errors are corrected for the luck of having been chosen; those of the models are as counted.\n"
        )
    colour = screen.is_terminal and not screen.no_color
    screen.out(sketch(points, rows, money, chosen, colour=colour) + "\n", highlight=False)
    if saved:
        screen.print(f"Frontier written to {saved}", soft_wrap=True)


@shown
def show_copulas(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the family chosen for each pair of models, and how far behind the next best one is."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading in ("models", "copula"):
        table.add_column(heading, no_wrap=heading == "copula")
    table.add_column("Kendall's τ", justify="right")
    table.add_column("next best, and its AIC above")
    for row in (row for row in rows if row["chosen"]):
        others = [r for r in rows if r["pair"] == row["pair"] and not r["chosen"] and r["aic"] is not None]
        ranked = [f"{r['family']}, {figure(r['aic'] - row['aic'], 2)}" for r in sorted(others, key=lambda r: r["aic"])]
        table.add_row(" & ".join(row["pair"]), row["family"], f"{row['tau']:.2f}", *ranked[:1])
    Screen().print(table)


@shown
def show_policy(
    policy: Mapping[str, Any],
    target: Target,
    rows: Sequence[Mapping[str, Any]],
    saved: Path | None,
    remarks: Sequence[str] = (),
    *,
    corrected: bool = False,
) -> None:
    """Print the policy or mixture chosen, given as its JSON form, beside single models, and remarks on it.

    `corrected` says whether its error is higher than what was counted, as that of a single model is.
    """
    screen = Screen()
    money = choose_unit([row["cost"] for row in rows])
    expected = policy["expected"]
    screen.print(f"Policy for your target ({target}):", style="bold")
    for share, part in _parts(policy):
        if share < 1:
            screen.print(f"  for {percent(share)} of the queries, told by a hash of their names:")
        screen.print(_indent(describe_cascade(_point(part), width=76)))
    screen.print(f"  expected cost   {money.full(expected['cost'])}")
    luck = ", corrected for the luck of the choice" * corrected
    screen.print(f"  expected error  {percent(expected['error'])}{luck}")
    if expected.get("abstention") is not None:
        screen.print(f"  without answer  {percent(expected['abstention'])} of the queries,", end=" ")
        screen.print(f"each counted as {expected['abstain_price']:.3g} errors")
    if expected.get("level"):
        costs = "–".join(f"${money.show(expected[end])}" for end in ("cost_low", "cost_high"))
        errors = between([expected["error_low"], expected["error_high"]])
        screen.print(f"  {100 * expected['level']:.4g} % intervals  {costs} and {errors} %")
    for model, words in _alone(rows, target).items():
        row = next(row for row in rows if row["model"] == model)
        figures = f"{percent(1 - row['accuracy'])} wrong{' as counted' * corrected} at ${money.show(row['cost'])}"
        hang(screen, "alone", f"{model}: {figures}, {words}")
    screen.print("  (thresholds of calibrated confidence; policy.step takes yours as logged)")
    for remark in remarks:
        hang(screen, "note", remark)
    if saved:
        screen.print(f"Policy written to {saved}", soft_wrap=True)


def _alone(rows: Sequence[Mapping[str, Any]], target: Target) -> dict[str, str]:
    """The single models to compare a policy with, and why: the best within the target, and the one that errs least."""
    name, value, price = target.name, target.value, target.error_cost or 0.0
    near = {
        "budget": [row for row in rows if row["cost"] <= value],
        "max_error": [row for row in rows if 1 - row["accuracy"] <= value],
    }.get(name, rows)

    def merit(row: Mapping[str, Any]) -> tuple[float, float]:
        wrong = 1 - row["accuracy"]
        return {"budget": (wrong, row["cost"]), "max_error": (row["cost"], wrong)}.get(
            name, (row["cost"] + price * wrong, wrong)
        )

    found = {min(near, key=merit)["model"]: "the best of them within the target"} if near else {}
    return {min(rows, key=lambda row: (1 - row["accuracy"], row["cost"]))["model"]: "the fewest errors"} | found


@shown
def show_replay(heading: str, predicted: Mapping[str, Any], seen: Mapping[str, Any], tuned_on: bool = False) -> None:
    """Print what happened when a policy or a frontier answered the queries of a log, beside the promise.

    `tuned_on`: whether it was tuned on this very log.
    """
    screen = Screen()
    screen.print(heading, style="bold")
    costs = seen["cost"] if isinstance(seen["cost"], list) else [seen["cost"]]
    sure = f"; in brackets, {100 * predicted['level']:.4g} % intervals" if "level" in predicted else ""
    sure = sure if not isinstance(seen["cost"], list) else ""
    screen.print(f"Replayed on {count(seen['n'], 'query')}; ± is one standard error{sure}.")
    screen.print("Costs take each answer at its model's mean price; as billed, at its own.")
    screen.print(_replay_table(predicted, seen, choose_unit(costs)))
    if tuned_on:
        what = "this is the very log that it was tuned on, where it looks better than it is: evaluate it on others"
        hang(screen, "note", what)


@shown
def show_demo(policy: Mapping[str, Any], seen: Mapping[str, Any], alone: Mapping[str, Mapping[str, float]]) -> None:
    """Print the policy of the demo, replayed on fresh queries, among the single models."""
    screen = Screen()
    money = choose_unit([each["cost"] for each in alone.values()])
    table = make_table(f"on {seen['n']:,} fresh queries", "error", f"$ per {money.name}")
    for name, each in alone.items():
        table.add_row(f"{name} alone", percent(each["error"]), money.show(each["cost"]))
    expected = policy["expected"]
    table.add_section()
    table.add_row("the policy", percent(seen["error"]), money.show(seen["cost"]), style="bold")
    table.add_row("the policy, as predicted", percent(expected["error"]), money.show(expected["cost"]))
    screen.print()
    screen.print(table)
    screen.print("Both logs are SYNTHETIC: sampled from a fitted model; no LLM was asked.")
    screen.print("With a log of your own: rcjax tune log.csv --prices prices.toml")


@shown
def show_report(headline: str, written: Path | None) -> None:
    """Print what a report comes to, and where it is."""
    screen = Screen()
    screen.print(headline)
    if written:
        screen.print(f"Report written to {written}", soft_wrap=True)


@shown
def show_retuning(heading: str, found: Mapping[str, Any], saved: Path | None) -> None:
    """Print a policy tuned again beside the one before: `found` is the document of `rcjax retune --json`."""
    screen = Screen()
    screen.print(heading, style="bold")
    policies = {"before": found["before"], "after": found["policy"]}
    for name, policy in policies.items():
        for share, part in _parts(policy):
            screen.print(f"{name}:" if share == 1 else f"{name}, for {percent(share)} of the queries:")
            screen.print(_indent(describe_cascade(_point(part), width=76)))
    replays = found["replayed"]
    money = choose_unit([each["cost"] for each in replays.values() if each])
    table = make_table("on these queries", "before", "after")

    def row(label: str, show: Any) -> None:
        table.add_row(label, *(show(name) for name in policies))

    row("expected error", lambda name: _maybe(policies[name]["expected"].get("error"), percent))
    row("replayed", lambda name: _maybe(replays[name], lambda seen: _error(seen["error"], seen["error_se"])))
    table.add_section()
    row(f"expected $ per {money.name}", lambda name: _maybe(policies[name]["expected"].get("cost"), money.show))
    row("replayed", lambda name: _maybe(replays[name], lambda seen: _cost(seen["cost"], seen["cost_se"], money)))
    table.add_section()
    parts = (part for policy in policies.values() for _, part in _parts(policy))
    for model in dict.fromkeys(model for part in parts for model in part["models"]):
        row(f"answered by {model}", lambda name, model=model: _maybe(replays[name], lambda seen: _share(seen, model)))
    screen.print(table)
    screen.print("The new policy was tuned on these queries, where it looks a little better than it is.")
    gain = found["gain"]
    if gain and gain["loss"] > 0:
        share, se = 100 * gain["share"], 100 * gain["se"] / gain["loss"]
        screen.print(f"On queries left out of the tuning it lowers error + λ·cost by {share:.1f} ± {se:.1f} %.")
    for remark in found["remarks"]:
        hang(screen, "", remark)
    if saved:
        screen.print(f"Policy written to {saved}", soft_wrap=True)


def _share(seen: Mapping[str, Any], model: str) -> str:
    return percent(dict(zip(seen["models"], seen["share"], strict=True)).get(model))


def hang(screen: Screen, label: str, text: str) -> None:
    """Print a paragraph with its label, of up to nine characters, in the margin."""
    table = Table.grid(padding=(0, 1))
    table.add_column(min_width=11, no_wrap=True)
    table.add_column()
    table.add_row(f"  {label}", text)
    screen.print(table)


def spread(cost: ArrayLike, error: ArrayLike, most: int = _MAX_ROWS) -> list[int]:
    """Return positions of at most `most` distinct points, cheapest first, spread evenly along the curve.

    >>> spread([3.0, 1.0, 2.0, 2.0], [0.1, 0.3, 0.2, 0.2])
    [1, 2, 0]
    """
    costs, errors = np.asarray(cost, float), np.asarray(error, float)
    # Points that would be printed alike are one point.
    seen = {(f"{c:.3g}", f"{e:.3f}"): i for i, (c, e) in reversed([*enumerate(zip(costs, errors, strict=True))])}
    order = sorted(seen.values(), key=lambda i: (costs[i], errors[i]))
    if len(order) <= most:
        return order
    steps = np.hypot(*(np.abs(np.diff(x[order])) / max(np.ptp(x[order]), 1e-300) for x in (costs, errors)))
    along = np.concatenate([[0.0], np.cumsum(steps)])
    nearest = [int(np.argmin(np.abs(along - goal))) for goal in np.linspace(0, along[-1], most)]
    return [order[i] for i in dict.fromkeys(nearest)]


def _models_table(rows: Sequence[Mapping[str, Any]], money: Money) -> Table:
    """One row per model: what it is worth by itself, and how far its confidence can be trusted."""
    table = make_table("model", "accuracy", f"$ per {money.name}", "calibration error", "certain")
    for row in rows:
        shares = [percent(row[name]) for name in ("accuracy", "calibration_error", "certain")]
        table.add_row(row["model"], shares[0], money.show(row["cost"]), *shares[1:])
    return table


def _place(points: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any] | None) -> int | None:
    """The position of the point chosen; None where there is none, as for a mixture."""
    if chosen is None:
        return None
    alike = [(point["cost"], point["error"]) == (chosen["cost"], chosen["error"]) for point in points]
    return alike.index(True) if True in alike else None


def _frontier_table(
    points: Sequence[Mapping[str, Any]], money: Money, width: int, starred: Sequence[bool] = ()
) -> Table:
    sure = all("error_interval" in point for point in points)
    refusing = any(point.get("abstention") for point in points)
    heads = [f"$ per\n{money.name}", "error", *[f"{100 * LEVEL:.0f} %\ninterval"] * sure, *["no\nanswer"] * refusing]
    table = make_table(*heads, numbers=len(heads))
    table.columns[-1].no_wrap = sure or refusing
    simple = all(point.get("thresholds") for point in points)
    what = "models, answering above a confidence" if simple else "models, and what they do at a confidence"
    table.add_column(what, no_wrap=True)
    table.add_column("best if 1,000\nerrors cost", justify="right")  # the cost of one is often a fraction of a cent
    for number, point in enumerate(points):
        star = "* " if number < len(starred) and starred[number] else ""
        price = f"${figure(_rounded(1000 / point['lam']), 2)}" if point["lam"] else "more"
        chain = describe_cascade(
            point, width=max(width, 80) - 80 + _CHAIN_WIDTH - _BAND_WIDTH * sure - _REFUSED_WIDTH * refusing
        )
        band = [between(point["error_interval"])] if sure else []
        band += [percent(point["abstention"])] if refusing else []
        cells = (star + money.show(point["cost"]), percent(point["error"]), *band, chain, price)
        table.add_row(*cells, style="bold" if star else None)
    return table


def _replay_table(predicted: Mapping[str, Any], seen: Mapping[str, Any], money: Money) -> Table:
    """Predicted beside observed: a row per figure for a policy, a row per point for a frontier."""
    if not isinstance(seen["cost"], list):
        table = make_table("", "predicted", "observed")
        error, cost = _maybe(predicted["error"], percent), _maybe(predicted["cost"], money.show)
        if "level" in predicted:
            error += f" ({between(predicted['error_interval'])})"
            cost += f" ({'–'.join(money.show(end) for end in predicted['cost_interval'])})"
        table.add_row("error", error, _error(seen["error"], seen["error_se"]))
        if seen["abstention"] or predicted.get("abstention"):
            refused = _maybe(predicted.get("abstention"), percent)
            table.add_row("without answer", refused, percent(seen["abstention"]))
            table.add_row("error among the answered", "", percent(seen["error_answered"]))
        table.add_row(f"$ per {money.name}", cost, _cost(seen["cost"], seen["cost_se"], money))
        table.add_row("  as billed", "", _cost(seen["spent"], seen["spent_se"], money))
        for name, share in zip(seen["models"], seen["share"], strict=True):
            table.add_row(f"answered by {name}", "", percent(share))
        return table
    unit = f"$ per {money.name}"
    heads = (f"{unit},\npredicted", "\nobserved", "\nas billed", "error,\npredicted", "error,\nobserved")
    refusing = any(seen["abstention"])
    table = make_table(*heads, *["no answer,\nobserved"] * refusing, numbers=5 + refusing)
    for i in spread(seen["cost"], seen["error"]):
        table.add_row(
            money.show(predicted["cost"][i]),
            _cost(seen["cost"][i], seen["cost_se"][i], money),
            _cost(seen["spent"][i], seen["spent_se"][i], money),
            percent(predicted["error"][i]),
            _error(seen["error"][i], seen["error_se"][i]),
            *[percent(seen["abstention"][i])] * refusing,
        )
    return table


def _point(policy: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's JSON form as a point of a frontier: thresholds where each model has one, else rules."""
    cuts, names = {}, list(policy["models"])
    for name, following in zip(names, [*names[1:], None], strict=True):
        rules = policy["rules"][name]
        acts = [(rule["action"], rule.get("model")) for rule in rules]
        if acts != [*[("ask", following)] * bool(following), ("answer", None)]:
            return {"models": names, "rules": policy["rules"]}
        cuts[name] = rules[0]["up_to"] if following else 0.0
    return {"models": names, "thresholds": cuts}


def _parts(policy: Mapping[str, Any]) -> list[tuple[float, Mapping[str, Any]]]:
    """The policies, with their weights, of the JSON form of a policy or a mixture."""
    return list(zip(policy["weights"], policy["policies"], strict=True)) if "weights" in policy else [(1.0, policy)]


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))


def make_table(*columns: str, numbers: int | None = None) -> Table:
    """A table with these heads; the first `numbers` columns, or by default all but the first, hold numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        right = i >= 1 if numbers is None else i < numbers
        table.add_column(column, justify="right" if right else "left", no_wrap=not right)
    return table


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")


def _maybe(value: float | None, show: Any) -> str:
    return "–" if value is None else show(value)


def _error(value: float, se: float | None) -> str:
    return f"{percent(value)} ± {'–' if se is None else f'{100 * se:.1f}'}"


def _cost(value: float, se: float | None, money: Money) -> str:
    return f"{money.show(value)} ± {'–' if se is None else figure(se * money.scale, 2)}"
